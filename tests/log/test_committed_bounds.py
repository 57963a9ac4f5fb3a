"""The bounds of what is followed of a log for read_committed: segments, snapshots, index entries, growing files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from generated_logs import snapshot
from log_batches import segment_path, write_segment
from oracle import three
from tables import offsets_of
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn

import kbatch
from kbatch.log import committed
from kbatch.log.committed import follow_transactions, open_before, segment_before, segment_transactions
from kbatch.read.decode_options import DecodeOptions
from kbatch.transactions import Transactions

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


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_snapshot_lists_any_number_of_open_transactions(tmp_path: Path, count: int) -> None:
    write_segment(tmp_path, 0, [txn(number, number) for number in range(count)])
    state = {number: (number, number) for number in range(count)}
    for base in (count, count + 1):
        write_segment(tmp_path, base, [data(base)])
        snapshot(tmp_path, base, state)
    assert begins(kbatch.Log(tmp_path), 2) == (1, [(number, number) for number in range(count)])


# -- segments that are joined


@pytest.mark.parametrize(("first", "is_certain"), [(3, False), (5, False), (6, True)])
def test_a_transaction_continues_in_a_segment_that_begins_after_the_last_offset_dsk_r1(
    tmp_path: Path, first: int, is_certain: bool
) -> None:
    """Otherwise segments overlap, or an offset is wrong: its marker may be anywhere."""
    write_segment(tmp_path, 0, [txn(0, 7), data(5)])
    write_segment(tmp_path, 3, [marker(first, 7, COMMIT), data(9)])
    found = follow_transactions(kbatch.Log(tmp_path).segments, SKIP)
    assert found.undecided["producer_id"].tolist() == ([] if is_certain else [7])
    assert (found.aborted.tolist(), found.open) == ([], [])


def test_a_marker_lost_at_the_end_of_a_segment_ends_no_transaction_of_the_next_one(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [txn(0, 7), damaged(marker(1, 7, ABORT))])
    write_segment(directory, 2, [txn(2, 7), marker(3, 7, COMMIT)])
    tables = kbatch.Log(directory).tables(isolation="read_committed", on_error="skip")
    assert [offset for table in tables for offset in offsets_of(table)] == [2]


# -- ranges of offsets


def walked(log: kbatch.Log, start: int | None, stop: int | None) -> tuple[Transactions, list[int]]:
    asked: list[int] = []

    def walk(one: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
        for number in numbers:
            asked.append(number)
            yield one(number)

    return follow_transactions(log.segments, DecodeOptions(), start_offset=start, stop_offset=stop, walk=walk), asked


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


@pytest.mark.parametrize(("start", "first"), [(0, 0), (6, 0), (7, 1)])
def test_a_walk_begins_at_the_segment_before_that_of_the_start(tmp_path: Path, start: int, first: int) -> None:
    assert walked(log_with(tmp_path, STATES), start, None)[1][0] == first


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


def test_a_producer_id_of_0_is_one(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, [txn(0, 0), damaged(marker(1, 0, ABORT))])
    path.with_suffix(".txnindex").write_bytes(entry(0, 0, 1))
    write_segment(tmp_path, 2, [data(2)])
    assert follow_transactions(kbatch.Log(tmp_path).segments, SKIP).aborted["producer_id"].tolist() == [0]


# -- growing files


def with_length(batch: bytes, length: int) -> bytes:
    """Replace the length field of a batch."""
    return batch[:8] + struct.pack(">i", length) + batch[12:]


@pytest.fixture
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is read in tables, after each of which it may be resumed."""
    monkeypatch.setattr(committed, "SMALL_TABLE_BYTES", 1)


def end_of(directory: Path, batches: Sequence[bytes], below: int | None = None) -> int:
    write_segment(directory, 0, batches)
    return segment_transactions(kbatch.Log(directory).segments[0], below, SKIP).end


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_undamaged_segment_is_resumed_after_its_last_batch(tmp_path: Path, count: int) -> None:
    batches = [three(3 * number) for number in range(count)]
    assert end_of(tmp_path, batches) == sum(map(len, batches))


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize(
    ("extra", "resumes_at"),
    [(-1, 4), (0, 4), (1, 1), (1000, 1), ((1 << 31) - 1 - 12, 4)],
    ids=["shorter", "up to the last batch", "into the last batch", "beyond the end", "above the limit"],
)
def test_a_segment_is_resumed_before_a_length_that_may_turn_out_to_be_right(
    tmp_path: Path, extra: int, resumes_at: int
) -> None:
    """Once the file is longer, the batches after it may be inside of it. A length above the limit is wrong."""
    batches = [three(3 * number) for number in range(4)]
    size = len(batches[0])
    batches[1] = damaged(with_length(batches[1], min(2 * size + extra, (1 << 31) - 1 - 12) - 12))
    assert end_of(tmp_path, batches) == resumes_at * size


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize("hurt", [None, 2, 4])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_segment_that_grows_has_the_transactions_of_the_whole_file(
    tmp_path: Path, on_error: Any, hurt: int | None
) -> None:
    """Whatever was known of it, from each batch on and within one."""
    batches = [txn(0, 7), txn(1, 8), marker(2, 7, ABORT), txn(3, 7), marker(4, 8, COMMIT), data(5), marker(6, 7, ABORT)]
    if hurt is not None:
        batches[hurt] = damaged(batches[hurt])
    whole = b"".join(batches)
    options = DecodeOptions(on_error=on_error)
    path = segment_path(tmp_path, 0)
    known = []
    for stop in [*(sum(map(len, batches[:count])) for count in range(len(batches))), len(whole) - 1]:
        path.write_bytes(whole[:stop])
        known.append(segment_transactions(kbatch.Log(tmp_path).segments[0], None, options))
    path.write_bytes(whole)
    segment = kbatch.Log(tmp_path).segments[0]
    for below in (None, 7):
        expected = segment_transactions(segment, below, options)
        assert expected.is_closed == (below is not None)
        for since in known:
            found = segment_transactions(segment, below, options, since)
            assert found.events.tolist() == expected.events.tolist()
            assert found.end == expected.end


def test_a_segment_whose_index_has_changed_is_followed_from_its_beginning(tmp_path: Path) -> None:
    """An entry may appear for a marker that was lost before: a broker rebuilds the index."""
    path = write_segment(tmp_path, 0, [data(0), txn(1, 7), damaged(marker(2, 7, ABORT)), data(3)])
    before = segment_transactions(kbatch.Log(tmp_path).segments[0], None, SKIP)
    assert before.end == path.stat().st_size
    path.with_suffix(".txnindex").write_bytes(entry(7, 1, 2))
    segment = kbatch.Log(tmp_path).segments[0]
    expected = segment_transactions(segment, None, SKIP)
    assert expected.events.tolist() != before.events.tolist()
    assert segment_transactions(segment, None, SKIP, before).events.tolist() == expected.events.tolist()
