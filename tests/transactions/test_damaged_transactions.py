"""Damaged batches and markers: which transactions they open, decide, or leave undecided."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_batches import segment_path
from oracle import CONTROL, build_batch
from streams import bytewise
from tracking import outcome
from transaction_logs import ABORT, COMMIT, control_record, damaged, data, marker, txn

import kbatch
from kbatch.batches.framing import byte_array, scan_part
from kbatch.transactions import TransactionRecorder, Transactions, TransactionTracker
from kbatch.transactions.events import EVENT_DTYPE, LOST_BYTES, NO_PRODUCER

# Beyond the header's attributes, the checksum covers all bits of a byte alike: its sign bit and its lowest one suffice.
ALL_BITS, TWO_BITS = range(8), (0, 7)


def flips(batch: bytes, first: int, last: int) -> list[bytes]:
    """Return the batch with single bits of its bytes from `first` to `last` flipped.

    All bits up to the attributes are, and with KBATCH_TEST_ALL=1 all others too.
    """
    out = []
    for at in range(first, last):
        for bit in ALL_BITS if at < 23 or os.environ.get("KBATCH_TEST_ALL") else TWO_BITS:
            flipped = bytearray(batch)
            flipped[at] ^= 1 << bit
            out.append(bytes(flipped))
    return out


@pytest.fixture(params=["skip", "stop", "raise"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], Transactions]:
    """Follow the transactions of bytes as a sealed segment of a log; reads with any `on_error` do."""
    path = segment_path(tmp_path / "t-0", 0)
    path.parent.mkdir()
    segment_path(path.parent, 1 << 41).write_bytes(b"")

    def follow(log: bytes) -> Transactions:
        path.write_bytes(log)
        return kbatch.Log(path.parent).transactions(on_error=request.param)

    return follow


Followed = Callable[[bytes], Transactions]


def test_no_flipped_bit_opens_a_transaction(followed: Followed) -> None:
    """A flipped transactional bit or producer id would withhold all later records forever."""
    before, after = txn(0, 8) + marker(1, 8, ABORT), data(3, 7) + txn(4, 9) + marker(5, 9, COMMIT)
    for attributes, pid in ((0, 7), (0, -1), (0x10, 9), (CONTROL, 7)):
        batch = build_batch([control_record(ABORT)], base_offset=2, producer_id=pid, attributes=attributes)
        for broken in flips(batch, 17, len(batch)):
            result = followed(before + broken + after)
            assert result.open == []
            assert result.last_stable_offset is None
            assert [entry[:3] for entry in result.aborted.tolist()] == [(8, 0, 1)]


def test_a_damaged_first_batch_leaves_the_next_one(followed: Followed) -> None:
    """The transaction opens at its first good batch since the last marker, with that batch's timestamp."""
    first, second = txn(3, 7), txn(4, 7, base_timestamp=44)
    before = txn(0, 7) + txn(1, 7) + marker(2, 7, ABORT)
    for broken in flips(first, 17, len(first)):
        result = followed(before + broken + data(9) + second + txn(5, 7))
        assert result.open == [(7, 4, 44)]
        assert result.aborted.tolist() == [(7, 0, 2, 3)]


def test_damaged_batches_open_no_transaction(followed: Followed) -> None:
    log = txn(0, 8) + damaged(txn(1, 7, 2)) + damaged(txn(3, 7, 2)) + damaged(txn(5, 8, 2)) + txn(7, 7)
    # Where damage ends the reading, the transaction that is open before it is undecided.
    assert followed(log).pending == [(8, 0), (7, 7)]


def test_damaged_batches_of_records_end_no_transaction(followed: Followed) -> None:
    result = followed(txn(0, 7) + damaged(txn(1, 7, 2)) + txn(3, 8) + damaged(txn(4, 8, 2)) + txn(6, 8))
    # Where damage ends the reading, the transactions that are open before it are undecided, and batch 6 opens another.
    undecided = result.undecided["first_offset"].tolist()
    assert (undecided, result.open) in (
        ([], [(7, 0, 1000), (8, 3, 1000)]),
        ([0, 3], [(8, 6, 1000)]),
    )
    assert len(result.aborted) == 0


def test_a_damaged_batch_does_not_limit_the_last_stable_offset(followed: Followed) -> None:
    """Another transaction ends while the damaged one seems to be open."""
    result = followed(damaged(txn(0, 9)) + txn(1, 7) + marker(2, 7, ABORT))
    assert (result.aborted.tolist(), result.open) == ([(7, 1, 2, 3)], [])


def test_no_flipped_bit_of_a_marker_commits_a_transaction(followed: Followed) -> None:
    """A marker may be that of any producer if its header is damaged, even if that says otherwise."""
    log, batch, after = txn(0, 7) + txn(1, 8), marker(2, 7, ABORT), txn(3, 7) + marker(4, 7, COMMIT)
    # No checksum covers the leader epoch before the magic.
    for broken in [*flips(batch, 8, 12), *flips(batch, 16, len(batch))]:
        result = followed(log + broken + after)
        assert (7, 0) in result.undecided[["producer_id", "first_offset"]].tolist()
        assert min(result.undecided["last_offset"]) >= 1
        assert len(result.aborted) == 0


Reader = Callable[[Path, dict[str, Any]], Iterable[kbatch.RecordTable]]
READERS: dict[str, Reader] = {
    "decode": lambda path, options: [kbatch.decode(path, **options)],
    "stream": lambda path, options: kbatch.decode_stream(bytewise(path.read_bytes(), 50), **options),
    "log": lambda path, options: kbatch.Log(path.parent).tables(**options),
    "log, small tables": lambda path, options: kbatch.Log(path.parent).tables(max_bytes=1, **options),
}


@pytest.mark.parametrize("stop_offset", [None, 2])
@pytest.mark.parametrize("on_error", ["skip", "stop", "raise"])
@pytest.mark.parametrize("reader", READERS)
def test_no_flipped_bit_of_an_abort_marker_returns_its_records(
    reader: str, on_error: str, stop_offset: int | None, tmp_path: Path
) -> None:
    """Not even before the error or the end of a read, where the damage is outside of the requested offsets."""
    path = segment_path(tmp_path / "t-0", 0)
    path.parent.mkdir()
    segment_path(path.parent, 1 << 41).write_bytes(b"")
    batch = marker(2, 7, ABORT)
    options = {"on_error": on_error, "stop_offset": stop_offset, "isolation": "read_committed"}
    for broken in [batch, *flips(batch, 8, len(batch))]:
        path.write_bytes(txn(0, 7, 2) + broken + txn(3, 7, 2) + marker(5, 7, COMMIT) + data(6))
        found = returned(READERS[reader], path, options)
        assert found <= {3, 4, 6}
        if broken is batch and stop_offset is None:
            assert found == {3, 4, 6}


def returned(read: Reader, path: Path, options: dict[str, Any]) -> set[int]:
    """Return the offsets of all records, up to an error."""
    offsets: set[int] = set()
    with contextlib.suppress(kbatch.KbatchError):
        for table in read(path, options):
            offsets.update(table.records["offset"].tolist())
    return offsets


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("offset", [18, 101])
def test_a_forged_header_with_a_small_offset_ends_no_transaction_before_its_records(
    offset: int, segments: int, tmp_path: Path
) -> None:
    """The checksum of the forged header is wrong, so its offset and its length mean nothing."""
    forged = bytearray(marker(offset, 7, COMMIT)[:61])
    forged[8:12] = (66).to_bytes(4, "big")
    forged[17] ^= 1
    directory = tmp_path / "t-0"
    directory.mkdir()
    before, after = txn(100, 1, 2) + txn(102, 1, 2), bytes(forged) + txn(106, 3) + b"\xff" * 70 + marker(108, 1, ABORT)
    segment_path(directory, 100).write_bytes(before if segments == 2 else before + after)
    segment_path(directory, 104 if segments == 2 else 1 << 41).write_bytes(after if segments == 2 else b"")
    for on_error in ("skip", "stop", "raise"):
        options = {"on_error": on_error, "isolation": "read_committed"}
        found = returned(READERS["log, small tables"], directory / "segment", options)
        assert found.isdisjoint(range(100, 104))


def test_the_status_of_rows_is_ignored() -> None:
    """Rows may come from a decode that skipped their batches: only the bytes of a marker decide."""
    array = byte_array(txn(0, 7) + marker(1, 7, ABORT))
    rows = scan_part(array).batches.copy()
    rows["status"] = kbatch.BatchStatus.INVALID
    before = rows.copy()
    tracker = TransactionTracker()
    tracker.add(array, rows)
    assert outcome(tracker).aborted == [(7, 0, 1, 2)]
    assert (rows == before).all()


def test_a_recorder_keeps_batches_that_begin_a_transaction_again_after_lost_bytes() -> None:
    """The lost bytes may have held the marker of the transaction that was open before."""
    data = (7, 0, 0, 1000, 2, 9)
    lost = (NO_PRODUCER, 1, 1, -1, LOST_BYTES, 19)
    again = (7, 5, 5, 1000, 2, 20)
    recorder = TransactionRecorder()
    recorder.replay(np.array([data, lost], EVENT_DTYPE))
    recorder.replay(np.array([again], EVENT_DTYPE))
    assert recorder.events.tolist() == [data, lost, again]
    recorder.replay(np.array([again], EVENT_DTYPE))
    assert len(recorder.events) == 3
