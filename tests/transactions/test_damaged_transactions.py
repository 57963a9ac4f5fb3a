"""Damaged batches and markers: which transactions they open, decide, or leave undecided."""

from __future__ import annotations

import oracle
import pytest
from oracle import CONTROL, TRANSACTIONAL, build_batch
from tracking import outcome, track
from transaction_logs import ABORT, COMMIT, Fold, control, control_record, damaged, data, marker, txn

import kbatch
from kbatch.batches.framing import byte_array, scan_part
from kbatch.transactions import OpenTransaction, TransactionRecorder, TransactionTracker
from kbatch.transactions.tracker import LOST_BYTES, NO_PRODUCER


def flips(batch: bytes, first: int, last: int) -> list[bytes]:
    """Return the batch with each single bit of its bytes from `first` to `last` flipped."""
    out = []
    for at in range(first, last):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[at] ^= 1 << bit
            out.append(bytes(flipped))
    return out


def test_no_flipped_bit_opens_a_transaction() -> None:
    """A flipped transactional bit or producer id would withhold all later records forever."""
    before, after = txn(0, 8) + marker(1, 8, ABORT), data(3, 7) + txn(4, 9) + marker(5, 9, COMMIT)
    for attributes, pid in ((0, 7), (0, -1), (0x10, 9), (CONTROL, 7)):
        batch = build_batch([control_record(ABORT)], base_offset=2, producer_id=pid, attributes=attributes)
        for broken in flips(batch, 17, len(batch)):
            result = track(before + broken + after).result()
            assert result.open == []
            assert result.last_stable_offset is None
            assert [entry[:3] for entry in result.aborted.tolist()] == [(8, 0, 1)]


def test_a_damaged_first_batch_leaves_the_next_one() -> None:
    """The transaction opens at its first good batch since the last marker, with that batch's timestamp."""
    first, second = txn(3, 7), txn(4, 7, base_timestamp=44)
    before = txn(0, 7) + txn(1, 7) + marker(2, 7, ABORT)
    for broken in flips(first, 17, len(first)):
        log = before + broken + data(9) + second + txn(5, 7)
        assert outcome(track(log)) == Fold([(7, 0, 2, 3)], [(7, 4, 44)], 4, [(7, 2)])
    for bad in range(1, 20):
        many = before + b"".join(damaged(txn(i, 7)) for i in range(3, 3 + bad))
        many += b"".join(txn(i, 7) for i in range(3 + bad, 8 + bad))
        assert track(many).result().open == [(7, 3 + bad, 1000)]


def test_damaged_batches_open_no_transaction() -> None:
    log = txn(0, 8) + damaged(txn(1, 7)) + damaged(txn(2, 7)) + damaged(txn(3, 8))
    assert track(log).result().open == [(8, 0, 1000)]
    assert track(log + txn(4, 7), [4]).result().open == [(8, 0, 1000), (7, 4, 1000)]


def test_initially_open_transactions_follow_the_same_rules() -> None:
    """The open transaction began before the log; the next one of the producer is handled like any other."""
    log = txn(1, 7) + marker(2, 7, COMMIT) + damaged(txn(3, 7))
    assert track(log, open=[OpenTransaction(7, 0)]).result().open == []
    assert track(log + txn(4, 7), open=[OpenTransaction(7, 0)]).result().open == [(7, 4, 1000)]
    assert track(damaged(txn(1, 7)), open=[OpenTransaction(7, 0)]).result().open == [(7, 0, -1)]


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


@pytest.mark.parametrize("other", [8, 7 + (1 << 16)])
def test_a_marker_decides_a_transaction_whose_first_batch_is_damaged(other: int) -> None:
    """Only the batches of transactions that stay open are verified, whatever the ids of other producers."""
    log = damaged(txn(0, 7)) + txn(1, other) + marker(2, other, COMMIT) + marker(3, 7, ABORT)
    assert outcome(track(log)).aborted == [(7, 0, 3, 4)]


def test_a_recorder_keeps_batches_that_begin_a_transaction_again_after_lost_bytes() -> None:
    """The lost bytes may have held the marker of the transaction that was open before."""
    data = (7, 0, 0, 1000, 2)
    lost = (NO_PRODUCER, 1, 1, -1, LOST_BYTES)
    again = (7, 5, 5, 1000, 2)
    recorder = TransactionRecorder()
    recorder.replay_events([data, lost])
    recorder.replay_events([again])
    assert recorder.events.tolist() == [data, lost, again]
    recorder.replay_events([again])
    assert len(recorder.events) == 3


def test_damage_after_the_first_batch_changes_nothing() -> None:
    log = txn(0, 7) + damaged(txn(1, 7)) + txn(2, 8) + damaged(txn(3, 8))
    for splits in ([], [1], [1, 2, 3]):
        assert track(log, splits).result().open == [(7, 0, 1000), (8, 2, 1000)]


def test_a_damaged_batch_does_not_limit_the_last_stable_offset() -> None:
    """Another transaction ends while the damaged one seems to be open."""
    log = damaged(txn(0, 9)) + txn(1, 7) + marker(2, 7, ABORT)
    assert outcome(track(log)) == Fold([(7, 1, 2, 3)], [], None, [(7, 2)])


def test_a_damaged_marker_decides_nothing() -> None:
    """A damaged kind, producer or offset has no effect: the transaction stays open, or has already ended."""
    log, batch = txn(0, 7) + txn(1, 8), marker(2, 7, ABORT)
    for broken in flips(batch, 17, len(batch)):
        still_open = Fold([], [(7, 0, 1000), (8, 1, 1000)], 0, [])
        ended = Fold([], [(8, 1, 1000)], 1, [], ((7, 0, 2, 1),))
        (row,) = scan_part(byte_array(broken)).batches
        own = (row["producer_id"], row["record_count"], row["attributes"] & 0x37) == (7, 1, CONTROL | TRANSACTIONAL)
        assert outcome(track(log + broken)) == (ended if own else still_open)
    assert outcome(track(log + damaged(batch) + marker(3, 7, COMMIT))) == ended


def test_a_larger_control_batch_is_no_damaged_marker() -> None:
    """The header alone tells: a damaged batch of at most 128 bytes may be a marker."""
    for size, undecided in ((128, [(7, 0, 1, 2)]), (129, [])):
        batch = control(1, 7, [control_record(ABORT, value=bytes(5 + size - len(marker(1, 7, ABORT))))])
        assert len(batch) == size
        assert track(txn(0, 7) + damaged(batch)).result().undecided.tolist() == undecided


def test_damaged_batches_count_if_checksums_are_not_verified() -> None:
    log = damaged(txn(0, 7), 17) + damaged(marker(1, 8, ABORT), 17) + damaged(txn(2, 8), 17)
    assert outcome(track(log, check_crc=False)) == Fold([], [(7, 0, 1000), (8, 2, 1000)], 0, [(8, 1)])
    assert outcome(track(log)) == Fold([], [], None, [])


def test_large_batches_are_verified_too() -> None:
    """The batches exceed the size up to which the kernel computes checksums itself."""
    big = build_batch([oracle.encode_record(value=bytes(100_000))], producer_id=7, attributes=0x10)
    assert track(big).result().open == [(7, 0, 1000)]
    assert track(damaged(big, 50_000)).result().open == []
