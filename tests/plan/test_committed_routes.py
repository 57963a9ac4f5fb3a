"""read_committed has one result by every route: buffers, streams, logs, threads and tasks of a plan."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from log_batches import segment_path
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn
from wrong_offsets import WrittenLog, moved, write_log

import kbatch
from kbatch.log.selection import open_selected
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.tasks import task_tables

Keys = list[bytes | None]
# The number of seeds for each test; .ci/long sets the variable.
EXAMPLES = 50 if os.environ.get("KBATCH_TEST_ALL") else 20


def keys_of(tables: Iterable[kbatch.RecordTable]) -> tuple[Keys, str | None]:
    """Return the keys of all records up to an error, and the name of the error."""
    found: Keys = []
    try:
        for table in tables:
            found += table.keys()
    except kbatch.KbatchError as error:
        return found, type(error).__name__
    return found, None


def decoded(log: bytes, **options: Any) -> kbatch.RecordTable:
    return kbatch.decode(log, isolation="read_committed", **options)


def streamed(log: bytes, seed: int, **options: Any) -> list[kbatch.RecordTable]:
    """Feed chunks of random sizes, flush sometimes, and finish."""
    draw = random.Random(seed)
    decoder = kbatch.StreamDecoder(isolation="read_committed", **options)
    tables, begin = [], 0
    while begin < len(log):
        size = draw.choice([1, 7, 61, 100, 400, len(log)])
        decoder.feed(log[begin : begin + size])
        begin += size
        if draw.random() < 0.5:
            tables.append(decoder.flush())
    return [*tables, decoder.finish()]


def planned(path: Path, **options: Any) -> Iterator[kbatch.RecordTable]:
    """Yield the tables of all tasks of a plan with as many tasks as there are batches."""
    read = ReadOptions(isolation="read_committed", split_bytes=1, **options)
    for task in plan(open_selected([str(path)]), read):
        for _, table in task_tables(task, read):
            yield table


def check_routes(log: WrittenLog, seed: int, **options: Any) -> tuple[Keys, str | None]:
    """Compare all routes; return the keys and the error of the log."""
    whole = b"".join(log.segments)
    table = decoded(whole, **options)
    stream = streamed(whole, seed, **options)
    assert keys_of(stream) == (table.keys(), None)
    assert sorted(stream[-1].pending or []) == sorted(table.pending or [])
    assert stream[-1].last_stable_offset == table.last_stable_offset
    assert decoded(whole, threads=2, **options).keys() == table.keys()

    opened = kbatch.Log(log.path)
    transactions = opened.transactions(**options)
    if not table.losses or options["on_error"] == "skip":
        # Otherwise a log also knows the transactions after the damage that ended the read.
        assert sorted(transactions.pending) == sorted(table.pending or [])
    tables = opened.tables(isolation="read_committed", **options)
    keys, error = keys_of(tables)
    # A log raises where segments overlap; all that it returns before has the same records.
    assert keys == table.keys()[: len(keys)]
    assert error in (None, "LogDirectoryError")
    assert error is not None or len(keys) == len(table.keys())
    for more in ({"max_bytes": 1}, {"threads": 2}):
        assert keys_of(opened.tables(isolation="read_committed", **more, **options)) == (keys, error)
    assert keys_of(planned(log.path, **options)) == (keys, error)
    return keys, error


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_every_route_returns_the_same_records_whatever_the_offsets_are(tmp_path: Path, start: int) -> None:
    """Wrong offsets, damaged batches, segments with wrong names: no route returns a record that another withholds."""
    statuses: set[int] = set()
    for seed in range(start, start + EXAMPLES):
        log = write_log(tmp_path, seed)
        assert check_routes(log, seed, on_error="skip")[1] in (None, "LogDirectoryError")
        statuses |= set(decoded(b"".join(log.segments), on_error="skip").batches["status"].tolist())
    expected = {"OK", "BAD_CRC", "ABORTED", "UNDECIDED"}
    assert statuses >= {int(kbatch.BatchStatus[name]) for name in expected}


@pytest.mark.parametrize("on_error", ["raise", "stop"])
def test_every_route_returns_the_same_records_of_undamaged_batches(tmp_path: Path, on_error: str) -> None:
    for seed in range(1000, 1000 + EXAMPLES):
        check_routes(write_log(tmp_path, seed, is_damaged=False), seed, on_error=on_error)


def test_every_route_returns_the_same_records_before_damage_that_stops_it(tmp_path: Path) -> None:
    for seed in range(3000, 3020):
        check_routes(write_log(tmp_path, seed), seed, on_error="stop")


def test_every_route_returns_the_same_records_before_segments_that_overlap(tmp_path: Path) -> None:
    """DSK-R13: a log and its tasks return records of the segments before, and none that the markers do not decide."""
    errors = [
        check_routes(write_log(tmp_path, seed, is_damaged=False, overlaps=True), seed)[1] for seed in range(2000, 2040)
    ]
    assert {"LogDirectoryError", None} == set(errors)


@pytest.mark.parametrize("name", [99, 18])
def test_tasks_withhold_aborted_records_below_the_name_of_their_segment(tmp_path: Path, name: int) -> None:
    """The file's name does not decide which transactions reach into a segment."""
    first = txn(0, 4) + marker(1, 4, COMMIT)
    second = txn(18, 4) + txn(19, 5) + marker(20, 4, ABORT)
    directory = tmp_path / "t-0"
    directory.mkdir()
    segment_path(directory, 0).write_bytes(first)
    segment_path(directory, name).write_bytes(second)
    keys, error = check_routes(WrittenLog(directory, [first, second]), 0)
    assert (keys, error) == ([b"k0"], None)


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@pytest.mark.parametrize("offset", [6, 99, 100])
def test_a_marker_that_is_not_above_its_transaction_decides_nothing(kind: int, offset: int) -> None:
    """No checksum covers an offset: the marker may be that of another place."""
    table = decoded(txn(100, 4) + marker(offset, 4, kind) + data(102))
    assert (table.keys(), table.pending, table.last_stable_offset) == ([b"k102"], [(4, 100)], None)
    assert table.batches["status"].tolist() == [kbatch.BatchStatus.UNDECIDED, 0, 0]


def test_a_batch_that_is_not_above_the_one_before_ends_certainty_of_all_open_transactions() -> None:
    log = txn(100, 4) + txn(101, 5) + data(7) + marker(103, 4, COMMIT) + txn(104, 5) + marker(105, 5, COMMIT)
    table = decoded(log)
    assert (table.keys(), table.pending) == ([b"k7", b"k104"], [(4, 100), (5, 101)])


def test_records_of_pending_transactions_are_never_returned_after_a_damaged_marker() -> None:
    """A transaction is withheld from its first batch to its marker, also where its own offsets do not ascend."""
    log = txn(102, 4) + moved(txn(103, 4), 100) + damaged(marker(104, 4, COMMIT)) + data(105)
    table = decoded(log, on_error="skip")
    assert (table.keys(), table.pending) == ([b"k105"], [(4, 100), (4, 102)])


@pytest.mark.parametrize("listed", [None, [(4, 100)]])
@pytest.mark.parametrize("offset", [101, 1 << 50])
def test_an_abort_ends_at_the_position_of_its_marker(listed: list[tuple[int, int]] | None, offset: int) -> None:
    """TXN-R2: as in Kafka's consumer, later records of the producer do not depend on the marker's offset."""
    log = txn(100, 4) + marker(offset, 4, ABORT) + txn(102, 4) + marker(103, 4, COMMIT)
    assert decoded(log, aborted=listed).keys() == [b"k102"]
    assert keys_of(streamed(log, 1, aborted=listed)) == ([b"k102"], None)


def test_a_listed_abort_ends_at_a_marker_below_its_first_offset() -> None:
    """TXN-R2: the list of a fetch response decides all transactions, whatever the offset of a marker is."""
    log = txn(100, 4) + marker(6, 4, ABORT) + txn(102, 4) + moved(txn(103, 4), 5) + marker(104, 4, COMMIT)
    assert decoded(log, aborted=[(4, 100)]).keys() == [b"k102", b"k103"]
    assert keys_of(streamed(log, 1, aborted=[(4, 100)])) == ([b"k102", b"k103"], None)
    again = txn(100, 4) + moved(txn(101, 4), 5) + marker(102, 4, ABORT)
    assert decoded(again, aborted=[(4, 100)]).keys() == []


def first_error(tables: Iterable[kbatch.RecordTable]) -> tuple[type[kbatch.KbatchError], int | None, int | None] | None:
    """Return the class, position and base offset of the error that ends the tables."""
    try:
        for _ in tables:
            pass
    except kbatch.KbatchError as error:
        return type(error), error.position, error.base_offset
    return None


def flipped_batches(draw: random.Random) -> bytes:
    """Make batches of several producers; bits are flipped in checksums, lengths, magics, types and records."""
    batches, offset = [], 0
    for _ in range(draw.randint(3, 10)):
        producer, count, kind = draw.randint(4, 6), draw.randint(1, 3), draw.random()
        if kind < 0.3:
            batch = data(offset, count=count)
        elif kind < 0.7:
            batch = txn(offset, producer, count)
        else:
            batch, count = marker(offset, producer, draw.choice([ABORT, COMMIT])), 1
        offset += count
        if draw.random() < 0.25:
            at = draw.choice([len(batch) - 1, len(batch) - 1, 62, 63, 16, 11, 11, 22])
            batch = batch[:at] + bytes([batch[at] ^ 1 << draw.randrange(6)]) + batch[at + 1 :]
        batches.append(batch)
    return b"".join(batches)


@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
def test_the_first_error_is_the_same_by_every_route(tmp_path: Path, crc: str) -> None:
    """No batch after damage decides whether one before it is returned, so every route comes to the same error first."""
    compared = 0
    for seed in range(4 * EXAMPLES):
        log = flipped_batches(random.Random(seed))
        directory = tmp_path / f"t-{seed}"
        directory.mkdir()
        segment_path(directory, 0).write_bytes(log)
        expected = first_error(decoded(each, crc=crc) for each in [log])
        if expected is None:
            # An incomplete batch at the end is damage for some sources only.
            continue
        opened = kbatch.Log(directory)
        options: dict[str, Any] = {"isolation": "read_committed", "crc": crc}
        chunk = random.Random(seed).choice([40, 100, len(log)])
        chunks = [log[begin : begin + chunk] for begin in range(0, len(log), chunk)]
        assert first_error(decoded(each, crc=crc, threads=2) for each in [log]) == expected
        assert first_error(kbatch.decode_stream(chunks, **options)) == expected, seed
        assert first_error(kbatch.decode_stream([log], max_bytes=1, **options)) == expected, seed
        for more in ({}, {"max_bytes": 1}, {"threads": 2}):
            assert first_error(opened.tables(**options, **more)) == expected, seed
        assert first_error(planned(directory, crc=crc)) == expected, seed
        compared += 1
    assert compared > 1.5 * EXAMPLES
