"""The bounds of what is followed of a log for read_committed: segments, snapshots, index entries."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from generated_logs import snapshot
from log_batches import write_segment
from oracle import DELETE_HORIZON, TRANSACTIONAL, encode_record
from tables import offsets_of
from transaction_logs import ABORT, COMMIT, control, damaged, data, marker, txn

import kbatch
from kbatch.log import committed
from kbatch.log.committed import (
    follow_transactions,
    join_transactions,
    open_before,
    segment_before,
    segment_transactions,
)
from kbatch.read.decode_options import DecodeOptions
from kbatch.transactions import Transactions
from kbatch.transactions.opened import OPEN_BYTES
from kbatch.transactions.recorder import EVENT_BYTES

SKIP = DecodeOptions(on_error="skip")


@pytest.mark.parametrize(
    ("offset", "number"), [(-1, 0), (0, 0), (1, 0), (4, 0), (5, 1), (6, 1), (8, 1), (9, 2), (100, 2)]
)
def test_an_offset_belongs_to_the_last_segment_that_begins_at_or_before_it(
    tmp_path: Path, offset: int, number: int
) -> None:
    for base in (1, 5, 9):
        write_segment(tmp_path, base, [data(base)])
    assert segment_before(kbatch.Log(tmp_path).segments, offset) == number


# -- snapshots

# Producer 7 commits in the second segment; 8 aborts in the third one; 9 begins in the second one.
LOG = {
    0: [txn(0, 7), txn(1, 8, 2), data(3)],
    4: [txn(4, 9), marker(5, 7, COMMIT), data(6)],
    7: [marker(7, 8, ABORT), data(8)],
}
# For each segment: each producer's last offset, and the first offset of its open transaction.
STATES = {4: {7: (0, 0), 8: (2, 1)}, 7: {7: (5, -1), 8: (2, 1), 9: (4, 4)}}


def log_with(directory: Path, states: dict[int, dict[int, tuple[int, int]]], **changed: bytes) -> kbatch.Log:
    """Write `LOG` with these snapshots; ``at0=...`` replaces the batch with this base offset."""
    for base, batches in LOG.items():
        offsets = [struct.unpack_from(">q", one)[0] for one in batches]
        write_segment(directory, base, [changed.get(f"at{at}", one) for at, one in zip(offsets, batches, strict=True)])
    for base, producers in states.items():
        snapshot(directory, base, producers)
    return kbatch.Log(directory)


def begins(log: kbatch.Log, number: int, **options: Any) -> tuple[int, list[tuple[int, int]]]:
    first, already = open_before(log.segments, number, DecodeOptions(**options))
    return first, [(each.producer_id, each.first_offset) for each in already]


@pytest.mark.parametrize(
    ("number", "expected"), [(0, (0, [])), (1, (0, [])), (2, (1, [(7, 0), (8, 1)]))], ids=["first", "second", "third"]
)
def test_the_walk_begins_at_the_segment_before_with_the_transactions_of_its_snapshot_txi_r7(
    tmp_path: Path, number: int, expected: tuple[int, list[tuple[int, int]]]
) -> None:
    assert begins(log_with(tmp_path, STATES), number) == expected


@pytest.mark.parametrize(
    ("base", "producers", "is_used"),
    [
        (4, {7: (3, 0), 8: (2, 1)}, True),
        (4, {7: (4, 0), 8: (2, 1)}, False),
        (4, {7: (0, 0), 8: (2, 1), 9: (3, -1)}, True),
        (4, {7: (0, 0), 8: (2, 2)}, False),
        (4, {7: (0, 0), 8: (2, 3)}, False),
        (4, {7: (0, 0), 8: (2, 1), 9: (3, 4)}, False),
        (4, {7: (0, 0), 8: (2, 0)}, False),
        (4, {7: (1, 1), 8: (0, 0)}, False),
        (4, {7: (0, 0)}, False),
        (7, {7: (5, -1), 8: (2, 1)}, False),
        (7, {7: (5, 0), 8: (2, 1), 9: (4, 4)}, False),
        (7, {8: (2, 1), 9: (6, 4)}, True),
        (7, {8: (2, 1), 9: (7, 4)}, False),
    ],
)
def test_a_snapshot_that_the_log_contradicts_is_not_used(
    tmp_path: Path, base: int, producers: dict[int, tuple[int, int]], is_used: bool
) -> None:
    """It lists offsets below its segment, and each transaction begins with a transactional batch of its producer."""
    log = log_with(tmp_path, STATES | {base: producers})
    assert begins(log, 2) == ((1, [(7, 0), (8, 1)]) if is_used else (0, []))


@pytest.mark.parametrize(
    ("batch", "crc", "is_used"),
    [
        (txn(1, 8, 2), "verify", True),
        (txn(1, 6, 2), "verify", False),
        (data(1, 8, 2), "verify", False),
        (marker(1, 8, ABORT), "verify", False),
        (damaged(txn(1, 8, 2)), "verify", False),
        (damaged(txn(1, 8, 2)), "skip", True),
    ],
    ids=["the batch", "another producer", "no transaction", "a marker", "a damaged batch", "an unverified batch"],
)
def test_a_transaction_of_a_snapshot_begins_with_a_good_transactional_batch(
    tmp_path: Path, batch: bytes, crc: Any, is_used: bool
) -> None:
    log = log_with(tmp_path, STATES, at1=batch)
    assert (begins(log, 2, crc=crc)[0] == 1) == is_used


@pytest.mark.parametrize("missing", [4, 7])
def test_both_snapshots_are_needed(tmp_path: Path, missing: int) -> None:
    assert begins(log_with(tmp_path, {base: each for base, each in STATES.items() if base != missing}), 2) == (0, [])


def test_a_transaction_of_a_snapshot_has_no_timestamp_if_its_batch_has_a_delete_horizon_lso_r4(tmp_path: Path) -> None:
    """The base timestamp of the batch is then the horizon."""
    for horizon, expected in (0, 1000), (DELETE_HORIZON, -1):
        records = [encode_record(), encode_record(1)]
        batch = control(1, 8, records, base_timestamp=1000, attributes=TRANSACTIONAL | horizon)
        _, already = open_before(log_with(tmp_path, STATES, at1=batch).segments, 2, DecodeOptions())
        assert {each.producer_id: each.first_timestamp for each in already}[8] == expected


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_snapshot_lists_any_number_of_open_transactions(tmp_path: Path, count: int) -> None:
    write_segment(tmp_path, 0, [txn(number, number) for number in range(count)])
    state = {number: (number, number) for number in range(count)}
    for base in (count, count + 1):
        write_segment(tmp_path, base, [data(base)])
        snapshot(tmp_path, base, state)
    assert begins(kbatch.Log(tmp_path), 2) == (1, [(number, number) for number in range(count)])


# -- segments that are joined


@pytest.mark.parametrize(
    ("base", "first", "is_certain"), [(3, 3, False), (3, 5, False), (3, 6, True), (8, 6, True), (8, 5, False)]
)
def test_a_transaction_continues_in_a_segment_that_begins_after_the_last_offset_dsk_r1(
    tmp_path: Path, base: int, first: int, is_certain: bool
) -> None:
    """Otherwise segments overlap, or an offset is wrong: its marker may be anywhere. The name shows nothing."""
    write_segment(tmp_path, 0, [txn(0, 7), data(5)])
    write_segment(tmp_path, base, [marker(first, 7, COMMIT), data(9)])
    found = follow_transactions(kbatch.Log(tmp_path).segments, SKIP)
    assert found.undecided["producer_id"].tolist() == ([] if is_certain else [7])
    assert (found.aborted.tolist(), found.open) == ([], [])


def test_a_marker_lost_at_the_end_of_a_segment_ends_no_transaction_of_the_next_one(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [txn(0, 7), damaged(marker(1, 7, ABORT))])
    write_segment(directory, 2, [txn(2, 7), marker(3, 7, COMMIT)])
    tables = kbatch.Log(directory).tables(isolation="read_committed", on_error="skip")
    assert [offset for table in tables for offset in offsets_of(table)] == [2]


def test_a_transaction_in_doubt_at_the_end_of_a_segment_withholds_nothing_of_the_next_one(tmp_path: Path) -> None:
    """Its offsets begin below its name."""
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [txn(0, 7), data(5)])
    write_segment(directory, 8, [txn(5, 7), marker(6, 7, COMMIT)])
    tables = kbatch.Log(directory).tables(isolation="read_committed", on_error="skip")
    assert [offset for table in tables for offset in offsets_of(table)] == [5, 5]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_transactions_of_all_segments_have_one_limit_however_they_are_walked(tmp_path: Path, is_lazy: bool) -> None:
    for base in (0, 60):
        write_segment(tmp_path, base, [txn(number, number) for number in range(base, base + 60)])
    log = kbatch.Log(tmp_path)
    options = DecodeOptions(limits=kbatch.Limits(max_table_bytes=100 * OPEN_BYTES))

    def walk(one: Callable[[int], Any], numbers: Sequence[int]) -> Any:
        return map(one, numbers) if is_lazy else [one(number) for number in numbers]

    with pytest.raises(kbatch.LimitExceededError, match=f"{60:020}.log: .*more than"):
        follow_transactions(log.segments, options, walk=walk)
    parts = [segment_transactions(segment, None, options) for segment in log.segments]
    with pytest.raises(kbatch.LimitExceededError, match="more than"):
        join_transactions(parts, limits=options.limits)
    assert len(join_transactions(parts).open) == 120


# -- ranges of offsets


def walked(
    log: kbatch.Log, start: int | None, stop: int | None, on_error: Any = "raise"
) -> tuple[Transactions, list[int]]:
    asked: list[int] = []
    options = DecodeOptions(on_error=on_error)

    def walk(one: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
        for number in numbers:
            asked.append(number)
            yield one(number)

    return follow_transactions(log.segments, options, start_offset=start, stop_offset=stop, walk=walk), asked


@pytest.mark.parametrize(
    ("start", "stop", "aborted", "pending"),
    [
        (None, None, [8], [9]),
        (7, None, [8], [9]),
        (8, None, [], [9]),
        (None, 1, [], []),
        (None, 2, [8], []),
        (None, 4, [8], []),
        (None, 5, [8], [9]),
        (7, 8, [8], [9]),
    ],
)
def test_a_range_has_the_transactions_that_overlap_it(
    tmp_path: Path, start: int | None, stop: int | None, aborted: list[int], pending: list[int]
) -> None:
    """Producer 8 has offsets 1 to 7, including its marker; 9 is open from offset 4 on."""
    found, _ = walked(log_with(tmp_path, {}), start, stop)
    assert found.aborted["producer_id"].tolist() == aborted
    assert [each.producer_id for each in found.open] == pending
    assert found.last_stable_offset == (4 if pending else None)


@pytest.mark.parametrize(
    ("stop", "numbers"),
    # Producer 7 is open at the end of the first segment, 8 at the end of the second one.
    [(None, [0, 1, 2]), (0, [0]), (1, [0, 1]), (2, [0, 1, 2]), (4, [0, 1, 2])],
)
def test_a_walk_ends_where_the_transactions_below_the_stop_are_decided(
    tmp_path: Path, stop: int | None, numbers: list[int]
) -> None:
    assert walked(log_with(tmp_path, {}), None, stop)[1] == numbers


@pytest.mark.parametrize(("stop", "numbers"), [(2, [0]), (3, [0, 1]), (4, [0, 1]), (5, [0, 1, 2])])
def test_a_walk_ends_before_a_segment_that_begins_at_the_stop(tmp_path: Path, stop: int, numbers: list[int]) -> None:
    for base in (0, 2, 4, 6):
        write_segment(tmp_path, base, [data(base, 1, 2)])
    assert walked(kbatch.Log(tmp_path), None, stop)[1] == numbers


@pytest.mark.parametrize(
    ("start", "on_error", "first"), [(0, "raise", 0), (6, "raise", 0), (7, "raise", 1), (7, "stop", 1), (7, "skip", 0)]
)
def test_a_walk_begins_at_the_segment_before_that_of_the_start(
    tmp_path: Path, start: int, on_error: Any, first: int
) -> None:
    """With "skip" at the beginning of the log: lost markers may be anywhere."""
    assert walked(log_with(tmp_path, STATES), start, None, on_error)[1][0] == first


# -- memory


@pytest.mark.parametrize(
    ("max_bytes", "limit", "name"),
    [
        (None, 5000, "Limits(max_table_bytes=...)"),
        (3000, 3000, "max_bytes"),
        (10, 2000, "max_bytes"),
        (4999, 4999, "max_bytes"),
        (5000, 5000, "Limits(max_table_bytes=...)"),
        (9000, 5000, "Limits(max_table_bytes=...)"),
    ],
)
def test_transactions_have_the_limit_of_a_table_or_a_lower_max_bytes_from_a_minimum_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int | None, limit: int, name: str
) -> None:
    """The error names the one to raise."""
    monkeypatch.setattr(committed, "MIN_SPLIT_TABLE", 2000)
    write_segment(tmp_path, 0, [txn(number, number) for number in range(100)])
    options = DecodeOptions(limits=kbatch.Limits(max_table_bytes=5000))
    with pytest.raises(kbatch.LimitExceededError, match=f"more than {limit} bytes of memory; raise .*") as caught:
        follow_transactions(kbatch.Log(tmp_path).segments, options, max_bytes=max_bytes)
    assert f"{name}, or read with" in str(caught.value).split("; raise ")[1]
    assert ("Limits" in str(caught.value)) == ("Limits" in name)


def test_a_segment_is_followed_in_the_memory_that_earlier_ones_leave(tmp_path: Path) -> None:
    """It ends there, and not when it is joined."""
    for base in (0, 60):
        write_segment(tmp_path, base, [txn(number, number) for number in range(base, base + 60)])
    followed = []

    def walk(one: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
        for number in numbers:
            part = one(number)
            followed.append(number)
            yield part

    options = DecodeOptions(limits=kbatch.Limits(max_table_bytes=61 * (OPEN_BYTES + EVENT_BYTES)))
    with pytest.raises(kbatch.LimitExceededError, match=f"{60:020}.log: .*more than"):
        follow_transactions(kbatch.Log(tmp_path).segments, options, walk=walk)
    assert followed == [0]


# -- index entries of a damaged segment


def entry(producer: int, first: int, last: int) -> bytes:
    return struct.pack(">hqqqq", 0, producer, first, last, last + 1)


@pytest.mark.parametrize(
    ("listed", "is_aborted"),
    [
        (entry(7, 1, 2), True),
        (entry(7, 2, 2), False),
        (entry(7, 1, 3), False),
        (entry(-1, 1, 2), False),
        (entry(8, 1, 2), False),
        (b"", False),
    ],
)
def test_an_entry_replaces_a_lost_marker_if_it_is_possible_in_its_segment_txi_r2(
    tmp_path: Path, listed: bytes, is_aborted: bool
) -> None:
    """Its marker follows the transaction's first batch, and is below the next segment."""
    path = write_segment(tmp_path, 0, [data(0), txn(1, 7), damaged(marker(2, 7, ABORT))])
    path.with_suffix(".txnindex").write_bytes(listed)
    write_segment(tmp_path, 3, [data(3)])
    found = follow_transactions(kbatch.Log(tmp_path).segments, SKIP)
    assert found.open == []
    assert found.aborted["producer_id"].tolist() == [7] * is_aborted
    assert found.undecided["producer_id"].tolist() == [7] * (not is_aborted)


@pytest.mark.parametrize(("number", "last", "is_aborted"), [(0, 2, True), (1, 5, True), (2, 8, True), (1, 2, False)])
def test_the_index_of_each_segment_replaces_its_own_lost_markers(
    tmp_path: Path, number: int, last: int, is_aborted: bool
) -> None:
    """Also of the first, of the last, and of one between them."""
    for each in range(4):
        first = 3 * each
        end = marker(first + 2, 7, ABORT)
        batches = [data(first), txn(first + 1, 7), damaged(end) if each == number else end]
        path = write_segment(tmp_path, first, batches)
        if each == number:
            path.with_suffix(".txnindex").write_bytes(entry(7, last - 1, last))
    found = follow_transactions(kbatch.Log(tmp_path).segments, SKIP)
    assert (3 * number + 1 in found.aborted["first_offset"]) == is_aborted
    assert found.undecided["first_offset"].tolist() == [3 * number + 1] * (not is_aborted)
    assert len(found.aborted) == 3 + is_aborted


@pytest.mark.parametrize(("last", "is_aborted"), [(2, True), (3, False), (4, False)])
def test_an_entry_beyond_its_segment_is_ignored_where_a_wrong_offset_is_too(
    tmp_path: Path, last: int, is_aborted: bool
) -> None:
    path = write_segment(tmp_path, 0, [data(0), txn(1, 7), damaged(marker(2, 7, ABORT)), data(9)])
    path.with_suffix(".txnindex").write_bytes(entry(7, 1, last))
    write_segment(tmp_path, 3, [data(3)])
    found = follow_transactions(kbatch.Log(tmp_path).segments, SKIP)
    assert found.aborted["producer_id"].tolist() == [7] * is_aborted
    assert found.undecided["producer_id"].tolist() == [7] * (not is_aborted)


@pytest.mark.parametrize(
    ("listed", "aborted", "undecided"),
    [((7, 1, 2), [7], []), ((7, 2, 2), [], [7, 8]), ((7, 3, 2), [], [7, 8]), ((-1, 1, 2), [], [7, 8])],
)
def test_an_impossible_entry_does_not_explain_a_missing_offset_txi_r2(
    tmp_path: Path, listed: tuple[int, int, int], aborted: list[int], undecided: list[int]
) -> None:
    """A transaction begins before its marker, and has a producer. Without the entry, any transaction may have ended."""
    path = write_segment(tmp_path, 0, [txn(0, 8), txn(1, 7)])
    path.write_bytes(path.read_bytes() + b"\xff" * 40 + data(3))
    path.with_suffix(".txnindex").write_bytes(entry(*listed))
    found = follow_transactions(kbatch.Log(tmp_path).segments, SKIP)
    assert found.aborted["producer_id"].tolist() == aborted
    assert sorted(found.undecided["producer_id"].tolist()) == undecided


@pytest.mark.parametrize("content", [b"no index", b"", b"\1" * 34], ids=["cut", "empty", "unknown version"])
def test_an_index_that_cannot_be_read_has_no_entries(tmp_path: Path, content: bytes) -> None:
    path = write_segment(tmp_path, 0, [txn(0, 0), damaged(marker(1, 0, ABORT)), data(2)])
    path.with_suffix(".txnindex").write_bytes(content)
    (segment,) = kbatch.Log(tmp_path).segments
    for below in (None, 5):
        entries = committed._read_index(segment, below)
        assert entries.tolist() == []


def test_a_producer_id_of_0_is_one(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, [txn(0, 0), damaged(marker(1, 0, ABORT))])
    path.with_suffix(".txnindex").write_bytes(entry(0, 0, 1))
    write_segment(tmp_path, 2, [data(2)])
    assert follow_transactions(kbatch.Log(tmp_path).segments, SKIP).aborted["producer_id"].tolist() == [0]
