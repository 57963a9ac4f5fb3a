"""A read of an offset range examines only part of a log, and finds the same transactions as a full walk."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated_logs import generated, snapshot
from log_batches import segment_path
from oracle import three
from tables import offsets_of
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn

import kbatch
from kbatch.format import INT64_MAX
from kbatch.log import Segment, committed
from kbatch.log.committed import (
    follow_transactions,
    join_transactions,
    open_before,
    segment_transactions,
)
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.read.decode_options import Crc, DecodeOptions, OnError
from kbatch.transactions import Transactions

RAISE = DecodeOptions()


def plain(transactions: Transactions) -> tuple[object, ...]:
    return (
        transactions.aborted.tolist(),
        transactions.open,
        transactions.last_stable_offset,
        transactions.undecided.tolist(),
    )


def within(transactions: Transactions, start: int | None, stop: int | None) -> Transactions:
    return (
        transactions
        if start is None and stop is None
        else transactions._within(start or 0, INT64_MAX if stop is None else stop)
    )


def check_ranges(log: kbatch.Log, options: DecodeOptions = RAISE, step: int = 1) -> int:
    """Compare every range of offsets with the full walk; return the number of shorter walks."""
    whole = follow_transactions(log.segments, options)
    end = log.end_offset
    borders = sorted({*range(0, end + 2, max(step, end // 9)), *(segment.base_offset or 0 for segment in log.segments)})
    shorter = 0
    for i, start in enumerate([None, *borders]):
        for stop in [*borders[i:], None]:
            asked: list[int] = []

            def walk(one: Callable[[int], object], numbers: Sequence[int], asked: list[int] = asked) -> object:
                for number in numbers:
                    asked.append(number)
                    yield one(number)

            found = follow_transactions(log.segments, options, start_offset=start, stop_offset=stop, walk=walk)  # type: ignore[arg-type]
            assert plain(found) == plain(within(whole, start, stop)), (start, stop)
            shorter += len(asked) < len(log.segments)
    return shorter


def snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.snapshot"))


def test_every_range_of_a_golden_log_finds_the_transactions_of_a_full_walk(golden: Path) -> None:
    """TXI-R4, TXI-R7: every start and stop gives the result of the full walk, with and without skipped damage."""
    log = kbatch.Log(golden / "logs" / "txn-0")
    assert len(log.segments) == 3
    assert check_ranges(log) > 0
    for path in sorted((golden / "logs").iterdir()):
        if path.is_dir() and any(path.glob("*.txnindex")):
            check_ranges(kbatch.Log(path), DecodeOptions(on_error="skip"), step=100)


def test_snapshots_of_the_golden_log_are_used(golden: Path) -> None:
    log = kbatch.Log(golden / "logs" / "txn-0")
    first, still = open_before(log.segments, 2, DecodeOptions())
    assert first == 1
    producers = read_producer_snapshot(segment_path(Path(log.path), log.segments[1].base_offset or 0, ".snapshot"))
    expected = producers[producers["current_txn_first_offset"] >= 0]
    assert sorted((t.producer_id, t.first_offset) for t in still) == sorted(
        zip(expected["producer_id"].tolist(), expected["current_txn_first_offset"].tolist(), strict=True)
    )


@pytest.mark.parametrize("seed", range(6 if os.environ.get("KBATCH_TEST_ALL") else 2))
def test_every_range_of_a_generated_log_finds_the_transactions_of_a_full_walk(tmp_path: Path, seed: int) -> None:
    log = generated(tmp_path / "t-0", seed)
    assert check_ranges(log) > 0
    check_ranges(log, DecodeOptions(on_error="skip"), step=9)
    # Without the first segment, transactions may begin before the log; only a .txnindex has their range (TXI-R6).
    segment_path(tmp_path / "t-0", 0).unlink()
    check_ranges(kbatch.Log(tmp_path / "t-0"), step=9)


def test_missing_damaged_and_stale_snapshots_do_not_change_the_result(tmp_path: Path) -> None:
    """A snapshot that contradicts the batches is ignored, and the log is followed from its beginning."""
    for seed in range(4 if os.environ.get("KBATCH_TEST_ALL") else 1):
        directory = tmp_path / f"{seed}-0"
        log = generated(directory, seed)
        files = {path: path.read_bytes() for path in snapshots(directory)}
        bases = [segment.base_offset or 0 for segment in log.segments]

        def restored(files: dict[Path, bytes] = files) -> None:
            for path, content in files.items():
                path.write_bytes(content)

        for path in files:
            path.unlink()
            check_ranges(log, step=95)
            restored()
        for path, content in files.items():
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            check_ranges(log, step=95)
            restored()
        # Snapshots of other segments: of the previous one, the first and the last.
        others = range(1, len(bases)) if os.environ.get("KBATCH_TEST_ALL") else {1, len(bases) - 2, len(bases) - 1}
        for other in others:
            for path in files:
                path.write_bytes(files[segment_path(directory, bases[other], ".snapshot")])
                check_ranges(log, step=95)
                restored()
        # Snapshots with a producer that does not exist, and with a transaction that never began.
        for path in files:
            snapshot(directory, int(path.stem), {1: (0, 0), 77: (int(path.stem) - 1, 1)})
            check_ranges(log, step=95)
            restored()
        for path in files:
            snapshot(directory, int(path.stem), {1: (int(path.stem) + 5, -1)})
            check_ranges(log, step=95)
            restored()


def test_transactions_are_followed_over_skipped_damage_before_the_range(tmp_path: Path) -> None:
    for seed in range(8 if os.environ.get("KBATCH_TEST_ALL") else 2):
        directory = tmp_path / f"{seed}-0"
        log = generated(directory, seed)
        rng = np.random.default_rng(seed)
        for segment in log.segments:
            rows = next(iter(segment.scan()))
            data = bytearray(Path(segment.path).read_bytes())
            row = rows[int(rng.integers(len(rows)))]
            data[int(row["position"]) + int(rng.choice([17, 21, 22, 50]))] ^= 0x40
            Path(segment.path).write_bytes(data)
        log = kbatch.Log(directory)
        check_ranges(log, DecodeOptions(on_error="skip"), step=9)


def test_a_read_of_one_segment_opens_few_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of one segment opens 3 of the log's 40 segments."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    for number in range(40):
        base = 10 * number
        batches = [txn(base, 7, 2), marker(base + 2, 7, ABORT), txn(base + 3, 8), marker(base + 4, 8, COMMIT)]
        if number == 20:
            batches = batches[:1]
        if number == 21:
            batches = [marker(base, 7, ABORT), *batches[2:]]
        segment_path(directory, base).write_bytes(b"".join(batches))
        if number:
            snapshot(directory, base, {7: (base - 10, base - 10 if number == 21 else -1)})
    log = kbatch.Log(directory)
    opened: list[str] = []
    original = Segment.open

    def counted(self: Segment) -> object:
        opened.append(self.path)
        return original(self)

    monkeypatch.setattr(Segment, "open", counted)
    found = follow_transactions(log.segments, DecodeOptions(), start_offset=200, stop_offset=205)
    assert found.aborted.tolist() == [(7, 200, 210, 211)]
    assert len(set(opened)) == 3
    # An open transaction is returned with the timestamp of its first batch.
    whole = follow_transactions(log.segments[:21], DecodeOptions())
    assert follow_transactions(log.segments[:21], DecodeOptions(), start_offset=205).open == whole.open


def test_transactions_of_joined_parts_equal_those_of_one_walk(tmp_path: Path) -> None:
    """Segments followed separately, in threads, pickled, or in pieces as their file grows give the same result."""
    for seed in range(10):
        log = generated(tmp_path / f"{seed}-0", seed, segments=4)
        for options in (DecodeOptions(), DecodeOptions(on_error="skip")):
            whole = plain(follow_transactions(log.segments, options))
            with ThreadPoolExecutor(3) as pool:
                assert plain(follow_transactions(log.segments, options, walk=pool.map)) == whole
            parts = []
            for i, segment in enumerate(log.segments):
                below = log.segments[i + 1].base_offset if i + 1 < len(log.segments) else None
                ends = [0, *(np.cumsum(next(iter(segment.scan()))["size"]).tolist())]
                growing = Segment(segment.path)
                part = None
                for end in ends:
                    growing.size = end
                    part = segment_transactions(growing, below, options, part)
                assert part is not None
                assert part.end == segment.size
                once = segment_transactions(segment, below, options)
                assert part.events.tolist() == once.events.tolist()
                parts.append(pickle.loads(pickle.dumps(part)))
            assert plain(join_transactions(parts)) == whole


def test_a_long_transaction_is_one_event(tmp_path: Path) -> None:
    """One long transaction gives one event, even if its batches fill many windows."""
    path = segment_path(tmp_path, 0)
    path.write_bytes(b"".join(txn(i, 7) for i in range(4000)))
    segment = Segment(path)
    with segment.open() as file:
        assert len(list(file.walk(0))) >= 3
    part = segment_transactions(segment, None, DecodeOptions())
    assert len(part.events) == 1
    assert committed.join_transactions([part]).last_stable_offset == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
def test_a_damaged_segment_that_grows_is_followed_from_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crc: Crc, on_error: OnError, seed: int
) -> None:
    """Each time the result is that of a walk from the start, but only new bytes and the last damage are read."""
    random = np.random.default_rng(seed)
    batches, offset = [], 0
    for _ in range(40):
        producer = int(random.integers(7, 10))
        kind = random.integers(4)
        one = marker(offset, producer, int(random.integers(2))) if kind == 0 else txn(offset, producer, base_sequence=0)
        one = data(offset, count=2) if kind == 1 else one
        if random.integers(6) == 0:
            one = damaged(one, int(random.choice([-1, 11, 16, 22, 47])))
        batches.append(one)
        offset += 2
    read: list[int] = []
    original = committed.read_tables

    def counted(segment: Segment, start: int, *arguments: Any, **options: Any) -> Any:
        read.append(segment.size - start)
        return original(segment, start, *arguments, **options)

    monkeypatch.setattr(committed, "read_tables", counted)
    path = segment_path(tmp_path / "t-0", 0)
    path.parent.mkdir()
    options = DecodeOptions(crc=crc, on_error=on_error)
    since, resumed = None, 0
    for count in range(1, len(batches) + 1):
        path.write_bytes(b"".join(batches[:count]))
        (segment,) = kbatch.Log(path.parent).segments
        read.clear()
        since = segment_transactions(segment, None, options, since)
        resumed += sum(read)
        fresh = segment_transactions(segment, None, options)
        resumed_result, fresh_result = join_transactions([since]), join_transactions([fresh])
        assert plain(resumed_result) == plain(fresh_result), count
        assert resumed_result._withheld() == fresh_result._withheld(), count
        assert since.offsets == fresh.offsets
    assert resumed < 12 * path.stat().st_size


def test_a_lost_marker_in_a_part_leaves_its_transaction_undecided(tmp_path: Path) -> None:
    path = segment_path(tmp_path, 0)
    path.write_bytes(three(0) + txn(3, 7) + damaged(marker(4, 7, ABORT)) + txn(5, 7) + marker(6, 7, COMMIT))
    segment_path(tmp_path, 10).write_bytes(damaged(marker(10, 8, COMMIT)) + three(11))
    log = kbatch.Log(tmp_path)
    # Where damage ends the reading, its headers are not used: the transaction ends at the last good batch.
    for options, last in ((DecodeOptions(on_error="skip"), 4), (DecodeOptions(), 3)):
        assert follow_transactions(log.segments, options).undecided.tolist() == [(7, 3, last, last + 1)]
        check_ranges(log, options)


# -- comparison with decode


def over(batch: bytes, hidden: bytes) -> bytes:
    """Return the batch with a length that also covers the hidden bytes after it, so its CRC does not match."""
    return batch[:8] + (len(batch) + len(hidden) - 12).to_bytes(4, "big") + batch[12:]


BAD = damaged(data(20))
# Inputs that a walk over headers alone gets wrong: it misses batches under a wrong length, and trusts damaged ones.
ROUTES = {
    "hidden data": over(data(0), txn(1, 7)) + txn(1, 7) + BAD + marker(21, 7, ABORT) + data(22),
    "hidden ABORT": txn(0, 7) + over(data(1), marker(2, 7, ABORT)) + marker(2, 7, ABORT) + BAD + data(22),
    "hidden COMMIT": txn(0, 7) + over(data(1), marker(2, 7, COMMIT)) + marker(2, 7, COMMIT) + BAD + data(22) + data(23),
    "hidden ABORT, then COMMIT": txn(0, 7)
    + over(data(1), marker(2, 7, ABORT))
    + marker(2, 7, ABORT)
    + BAD
    + txn(22, 7)
    + marker(23, 7, COMMIT),
    "bad opening": damaged(txn(0, 7)) + data(1) + txn(2, 7) + marker(3, 7, ABORT) + data(4),
    "bad marker": txn(0, 7) + damaged(marker(1, 7, ABORT)) + txn(2, 7) + marker(3, 7, COMMIT),
    "too large": data(0) + txn(1, 7, 40) + data(41) + txn(42, 8) + marker(43, 8, ABORT) + data(44),
    "no entry": txn(0, 7) + b"\xff" * 90 + marker(1, 7, COMMIT) + data(2),
}


def routes(tmp_path: Path, content: bytes, **options: Any) -> list[list[int]]:
    """Decode in one piece, from a stream in small chunks, and from a log."""
    options |= {"isolation": "read_committed", "limits": kbatch.Limits(max_batch_bytes=400)}
    decoder = kbatch.StreamDecoder(**options)
    tables = []
    for i in range(0, len(content), 50):
        decoder.feed(content[i : i + 50])
        tables.append(decoder.flush())
    tables.append(decoder.finish())
    path = tmp_path / "t-0"
    path.mkdir(exist_ok=True)
    segment_path(path, 0).write_bytes(content)
    segment_path(path, 100).write_bytes(b"")
    return [
        offsets_of(kbatch.decode(content, **options)),
        [offset for table in tables for offset in offsets_of(table)],
        [offset for table in kbatch.Log(path).tables(**options) for offset in offsets_of(table)],
    ]


@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
@pytest.mark.parametrize("name", ROUTES)
def test_a_log_follows_transactions_as_decode_does(tmp_path: Path, name: str, crc: Crc) -> None:
    """Batches hidden by a wrong length count; damaged batches and batches above the size limit do not."""
    decoded, streamed, logged = routes(tmp_path, ROUTES[name], on_error="skip", crc=crc)
    assert streamed == decoded
    assert logged == decoded


def test_only_undamaged_batches_decide_transactions(tmp_path: Path) -> None:
    expected = {
        "hidden data": [22],
        "hidden ABORT": [22],
        "hidden COMMIT": [0, 22, 23],
        "hidden ABORT, then COMMIT": [22],
        "bad opening": [1, 4],
        "bad marker": [2],
        "too large": [0, 41, 44],
        "no entry": [0, 2],
    }
    for name, content in ROUTES.items():
        assert routes(tmp_path, content, on_error="skip")[2] == expected[name], name


@pytest.mark.parametrize("name", ROUTES)
def test_stop_returns_no_aborted_record_when_markers_follow_the_damage(tmp_path: Path, name: str) -> None:
    """With "stop", a log returns no record that `decode` omits or withholds."""
    decoded, streamed, logged = routes(tmp_path, ROUTES[name], on_error="stop")
    assert streamed == decoded
    assert set(logged) <= set(decoded)


@pytest.mark.parametrize("start_offset", [None, 1, 3, 4, 22, 23])
@pytest.mark.parametrize("name", ROUTES)
def test_committed_records_do_not_depend_on_the_requested_offsets(
    tmp_path: Path, name: str, start_offset: int | None
) -> None:
    """Damage outside the requested range may hide markers; it is skipped like damage inside the range."""
    content = ROUTES[name]
    everything = routes(tmp_path, content, on_error="skip")[0]
    expected = [offset for offset in everything if start_offset is None or offset >= start_offset]
    assert routes(tmp_path, content, on_error="skip", start_offset=start_offset) == [expected] * 3
    if start_offset is not None:
        before = [offset for offset in everything if offset < start_offset]
        assert routes(tmp_path, content, on_error="skip", stop_offset=start_offset) == [before] * 3


def test_transactions_open_at_stopping_damage_stay_undecided(tmp_path: Path) -> None:
    """The marker of an open transaction may be lost. Markers after the damage decide transactions that begin there."""
    path = segment_path(tmp_path, 0)
    path.write_bytes(txn(0, 7) + b"\xff" * 90 + txn(3, 7) + marker(4, 7, COMMIT) + txn(5, 8) + marker(6, 8, ABORT))
    for on_error in ("raise", "stop"):
        found = kbatch.Log(path).transactions(on_error=on_error)  # type: ignore[arg-type]
        assert found.undecided[["producer_id", "first_offset", "last_offset"]].tolist() == [(7, 0, 0)]
        assert found.aborted[["producer_id", "first_offset"]].tolist() == [(8, 5)]
        assert found.open == []
