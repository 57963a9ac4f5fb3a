"""Sequences of idempotent producers (catalogue sections 2.4, 9); test_broker_appending compares with a real broker."""

from __future__ import annotations

import pickle
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import oracle
import pytest

import kbatch
from kbatch import BATCH_DTYPE, PRODUCER_DTYPE, ErrorCode, SequenceChecker
from kbatch.log import read_producer_snapshot

MAX = 2**31 - 1


def batches(*rows: tuple[int, int, int], producer_id: int = 7, attributes: int = 0, offset: int = 0) -> Any:
    """Make headers of epoch, first sequence and count, at offsets from `offset` on."""
    table = np.zeros(len(rows), BATCH_DTYPE)
    table["magic"], table["producer_id"], table["attributes"] = 2, producer_id, attributes
    for row, (epoch, sequence, count) in zip(table, rows, strict=True):
        row["producer_epoch"], row["base_sequence"], row["record_count"] = epoch, sequence, count
        row["last_offset_delta"], row["base_offset"] = count - 1, offset
        row["last_offset"] = offset + count - 1
        offset += count
    return table


def marker(epoch: int, coordinator_epoch: int = 0, producer_id: int = 7, offset: int = 0) -> kbatch.RecordTable:
    data = kbatch.encode_marker(
        "commit",
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        offset=offset,
        timestamp=5,
    )
    return kbatch.decode(data, include_control=True)


def codes(checker: SequenceChecker, rows: npt.NDArray[np.void] | kbatch.RecordTable) -> list[str]:
    return [ErrorCode(code).name for code in checker.check(rows, on_error="mark")["error"].tolist()]


GAP = "OUT_OF_ORDER_SEQUENCE_NUMBER"
AGAIN = "DUPLICATE_SEQUENCE_NUMBER"
FENCED = "INVALID_PRODUCER_EPOCH"


def test_the_last_five_batches_are_recognized() -> None:
    """PRD-R10: of six batches the second to the sixth are duplicates, the first is out of order."""
    checker = SequenceChecker()
    six = batches(*[(0, 2 * n, 2) for n in range(6)], offset=100)
    assert codes(checker, six) == ["NONE"] * 6
    verdicts = checker.check(six[1:])
    assert verdicts["error"].tolist() == [ErrorCode.DUPLICATE_SEQUENCE_NUMBER] * 5
    assert verdicts["offset"].tolist() == [102, 104, 106, 108, 110]
    assert codes(checker, six[:1]) == [GAP]
    # A batch with the same first and a different last sequence is not a duplicate.
    assert codes(checker, batches((0, 10, 1), (0, 10, 3), (0, 11, 1))) == [GAP] * 3
    assert codes(checker, batches((0, 12, 1))) == ["NONE"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # PRD-R11, SEQ-R1: after 2^31 - 1 comes 0, within a batch too.
        ([(0, MAX, 1), (0, 0, 1)], ["NONE", "NONE"]),
        ([(0, MAX - 1, 3), (0, 1, 1)], ["NONE", "NONE"]),
        ([(0, MAX - 1, 3), (0, MAX - 1, 3)], ["NONE", AGAIN]),
        ([(0, MAX, 1), (0, 1, 1)], ["NONE", GAP]),
        ([(0, 5, 1), (0, 7, 1)], ["NONE", GAP]),
        ([(0, 5, 1), (0, 6, 1)], ["NONE", "NONE"]),
        ([(0, 5, 1), (0, 0, 1)], ["NONE", GAP]),
        # A new epoch begins at 0; an old one is fenced; rejected batches are not remembered.
        ([(3, 0, 1), (4, 1, 1), (3, 1, 1)], ["NONE", GAP, "NONE"]),
        ([(3, 0, 1), (4, 0, 1), (3, 1, 1), (4, 1, 1)], ["NONE", "NONE", FENCED, "NONE"]),
        ([(3, 0, 1), (2, 1, 1)], ["NONE", FENCED]),
        # Batches of another epoch are not duplicates.
        ([(0, 0, 1), (1, 0, 1), (1, 0, 1)], ["NONE", "NONE", AGAIN]),
        # An unknown producer may begin at any sequence.
        ([(9, 4711, 2)], ["NONE"]),
        # Group coordinators write without sequences.
        ([(0, -1, 1), (0, -1, 1), (1, -1, 1), (0, -1, 1)], ["NONE", "NONE", "NONE", FENCED]),
    ],
)
def test_sequences_are_checked_by_the_rules_of_a_broker(rows: list[tuple[int, int, int]], expected: list[str]) -> None:
    assert codes(SequenceChecker(), batches(*rows)) == expected


def test_sequences_are_counted_by_offsets() -> None:
    """SEQ-R3: sequences are correct even if compaction has removed records of the batch."""
    rows = batches((0, 10, 10), (0, 20, 1))
    rows["record_count"][0] = 2
    assert codes(SequenceChecker(), rows) == ["NONE", "NONE"]


def test_batches_without_a_producer_are_ignored() -> None:
    """PRD-R14: empty control batches, damaged batches and control batches of KRaft are ignored too."""
    rows = batches((0, 0, 1), (0, 9, 1), (0, 9, 1), (0, 9, 1), (0, 1, 1))
    rows["producer_id"][1] = -1
    rows["attributes"][2], rows["record_count"][2] = 0x30, 0
    rows["status"][3] = kbatch.BatchStatus.BAD_CRC
    checker = SequenceChecker()
    assert codes(checker, rows) == ["NONE"] * 5
    assert checker.producers()["last_sequence"].tolist() == [1]


def test_markers_end_transactions() -> None:
    """PRD-R12, PRD-R13: a marker of a higher epoch begins that epoch, at 0."""
    checker = SequenceChecker()
    assert codes(checker, batches((0, 0, 2), attributes=0x10, offset=50)) == ["NONE"]
    assert checker.producers()["current_txn_first_offset"].tolist() == [50]
    assert codes(checker, batches((0, 2, 1))) == ["INVALID_TXN_STATE"]
    assert codes(checker, marker(0, 4)) == ["NONE"]
    assert checker.producers()["current_txn_first_offset"].tolist() == [-1]
    assert codes(checker, batches((0, 0, 2), (0, 2, 1))) == [AGAIN, "NONE"]
    assert codes(checker, marker(0, 3)) == ["TRANSACTION_COORDINATOR_FENCED"]
    assert codes(checker, marker(1, 4)) == ["NONE"]
    assert codes(checker, marker(1, 4)) == ["NONE"]
    assert codes(checker, marker(0, 4)) == [FENCED]
    assert codes(checker, batches((1, 3, 1), (1, 0, 1))) == [GAP, "NONE"]
    assert checker.producers()["coordinator_epoch"].tolist() == [4]


def test_errors_name_the_producer_and_sequences() -> None:
    checker = SequenceChecker()
    checker.check(batches((2, 0, 3)))
    with pytest.raises(kbatch.OutOfOrderSequenceError) as gap:
        checker.check(batches((2, 5, 1), offset=30), source="x.log")
    assert str(gap.value) == "x.log, byte 0, base offset 30: sequence 5 of producer 7; expected 3 after 2"
    assert (gap.value.code, gap.value.base_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 30)
    copy = pickle.loads(pickle.dumps(gap.value))
    assert (type(copy), str(copy), copy.code) == (type(gap.value), str(gap.value), gap.value.code)
    with pytest.raises(kbatch.FencedError, match="epoch 1 of producer 7 after its epoch 2"):
        checker.check(batches((1, 3, 1)))
    with pytest.raises(kbatch.OutOfOrderSequenceError, match="sequence 3 begins epoch 4 of producer 7"):
        checker.check(batches((4, 3, 1)))
    checker.check(batches((2, 3, 1), attributes=0x10, offset=60))
    with pytest.raises(kbatch.TransactionStateError, match="a transaction open since offset 60"):
        checker.check(batches((2, 4, 1)))
    with pytest.raises(ValueError, match="on_error"):
        checker.check(batches(), on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="PRODUCER_DTYPE"):
        SequenceChecker(np.zeros(1, BATCH_DTYPE))


def test_checking_continues_after_rejected_batches() -> None:
    log = batches((0, 0, 1), (0, 5, 1), (0, 6, 1), (0, 5, 1), (0, 7, 1))
    refused = [(each.row, each.code.name, each.text, each.after) for each in SequenceChecker().refusals(log)]
    assert refused == [
        (1, GAP, "sequence 5 of producer 7; expected 1 after 0", 0),
        (3, AGAIN, "sequence 5 of producer 7 is a duplicate of the batch at offset 1", -1),
    ]


def test_a_followed_duplicate_is_the_last_batch_of_its_producer_prd_r10() -> None:
    """ProducerStateEntry.addBatch: a broker that loads or replicates a log appends every batch to the entry."""
    checker = SequenceChecker()
    log = batches((0, 0, 2), (0, 2, 2), (0, 0, 2), offset=100)
    log["max_timestamp"] = [10, 20, 30]
    verdicts = checker.check(log, on_error="follow")
    assert verdicts["error"].tolist() == [0, 0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    assert verdicts["offset"].tolist() == [100, 102, 100]
    state = checker.producers()[["last_sequence", "last_offset", "offset_delta", "timestamp"]]
    assert state.tolist() == [(1, 105, 1, 30)]
    # The oldest batch with these sequences is the one that a later duplicate is answered with.
    assert checker.check(batches((0, 0, 2), offset=106))["offset"].tolist() == [100]
    # Without "follow", the broker appends no duplicate, and the state remains.
    broker = SequenceChecker()
    broker.check(log)
    assert broker.producers()[["last_sequence", "last_offset"]].tolist() == [(3, 103)]


def test_followed_batches_are_remembered_after_every_refusal() -> None:
    """With "follow", refused markers end transactions and set the epoch, as when a broker loads a log."""
    checker = SequenceChecker()
    checker.check(batches((3, 0, 1), attributes=0x10, offset=5))
    for command in ("mark", "follow"):
        verdicts = checker.check(marker(2, 4, offset=6), on_error=command)  # type: ignore[arg-type]
        assert verdicts.tolist() == [(-1, ErrorCode.INVALID_PRODUCER_EPOCH)]
        state = checker.producers()[["producer_epoch", "current_txn_first_offset", "coordinator_epoch"]].tolist()
        assert state == ([(3, 5, -1)] if command == "mark" else [(2, -1, 4)])
    # The batches after a refused marker are checked too.
    data = kbatch.encode_marker("commit", producer_id=7, producer_epoch=1, coordinator_epoch=9, offset=7, timestamp=5)
    later = kbatch.encode([b"a"], producer_id=7, producer_epoch=2, base_sequence=0, base_offset=8)
    table = kbatch.decode(data + later, include_control=True)
    assert checker.check(table, on_error="mark")["error"].tolist() == [ErrorCode.INVALID_PRODUCER_EPOCH, 0]
    assert checker.producers()[["producer_epoch", "last_sequence"]].tolist() == [(2, 0)]


def test_producer_0_a_transaction_at_offset_0_and_a_snapshot_at_offset_0_count() -> None:
    """SEQ-R5: ids, offsets and sequences from 0 on are valid."""
    checker = SequenceChecker()
    assert codes(checker, batches((0, 0, 1), producer_id=0, attributes=0x10)) == ["NONE"]
    assert checker.producers().tolist() == [(0, 0, 0, 0, 0, 0, -1, 0)]
    assert codes(checker, batches((0, 1, 1), producer_id=0)) == ["INVALID_TXN_STATE"]
    again = SequenceChecker(checker.producers())
    assert codes(again, batches((0, 0, 1), producer_id=0, attributes=0x10)) == [AGAIN]
    assert codes(again, batches((0, 1, 1), producer_id=0, attributes=0x10, offset=1)) == ["NONE"]
    # A transaction that is open continues at its first offset.
    assert again.producers()["current_txn_first_offset"].tolist() == [0]


def test_the_state_of_a_producer_without_data_is_empty() -> None:
    """ProducerStateEntry: last sequence and last offset are -1, the delta is 0."""
    checker = SequenceChecker()
    checker.check(marker(1, 2))
    (row,) = checker.producers()[["last_sequence", "last_offset", "offset_delta", "timestamp"]].tolist()
    assert row == (-1, -1, 0, 5)
    # Batches without a sequence leave the last sequence unknown.
    checker.check(batches((1, -1, 4)))
    assert checker.producers()["last_sequence"].tolist() == [-1]


def test_the_transaction_is_checked_after_the_sequence_prd_r12() -> None:
    """A batch outside of the open transaction with the right sequence, also with 0 after the largest one (SEQ-R1)."""
    for last, following in ((4, 5), (MAX, 0)):
        checker = SequenceChecker()
        assert codes(checker, batches((0, last, 1), attributes=0x10)) == ["NONE"]
        assert codes(checker, batches((0, following + 1, 1), (0, following, 1))) == [GAP, "INVALID_TXN_STATE"]
    # Also in a new epoch, and for a transaction at offset 0.
    checker = SequenceChecker()
    assert codes(checker, batches((0, 0, 1), attributes=0x10)) == ["NONE"]
    assert codes(checker, batches((1, 0, 1))) == ["INVALID_TXN_STATE"]


def test_a_refusal_without_an_earlier_batch_has_no_offset_after_it() -> None:
    checker = SequenceChecker()
    checker.check(marker(1))
    (refused,) = checker.refusals(batches((1, 5, 1)))
    assert (refused.code, refused.after) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_a_marker_without_a_valid_value_keeps_the_coordinator_epoch() -> None:
    """PRD-R12: the coordinator epoch is in the value of a marker."""
    checker = SequenceChecker()
    checker.check(marker(1, 4))
    short = oracle.build_batch(
        [oracle.encode_record(0, 0, struct.pack(">hh", 0, 1), b"")], attributes=0x30, producer_id=7, producer_epoch=1
    )
    checker.check(kbatch.decode(short, include_control=True))
    assert checker.producers()["coordinator_epoch"].tolist() == [4]


def test_a_repeated_sequence_in_a_transaction_is_a_duplicate_outside_of_it_too() -> None:
    """PRD-R10 before PRD-R12: the broker looks for duplicates first."""
    checker = SequenceChecker()
    assert codes(checker, batches((0, 0, 1), (0, 1, 1), attributes=0x10)) == ["NONE", "NONE"]
    assert codes(checker, batches((0, 0, 1))) == [AGAIN]


def test_refusals_do_not_remember_duplicates() -> None:
    """The batches after a duplicate continue the sequence before it, and each error is reported once."""
    log = batches((0, 0, 1), (0, 1, 1), (0, 0, 1), (0, 2, 1))
    assert [each.row for each in SequenceChecker().refusals(log)] == [2]


def test_producers_expire() -> None:
    """PRD-R16: a producer with an open transaction does not expire."""
    rows = batches((0, 0, 1), (0, 7, 1), (0, 9, 1))
    rows["max_timestamp"] = [1000, 1999, 2999]
    assert codes(SequenceChecker(), rows) == ["NONE", GAP, GAP]
    assert codes(SequenceChecker(expiration_ms=1000), rows) == ["NONE", GAP, "NONE"]
    rows["attributes"] = 0x10
    assert codes(SequenceChecker(expiration_ms=1000), rows) == ["NONE", GAP, GAP]
    # ProducerStateManager.isProducerExpired: the producer expires when this time has passed, not after it.
    rows = batches((0, 0, 1), (0, 7, 1))
    for later, expected in ((999, GAP), (1000, "NONE")):
        rows["max_timestamp"] = [500, 500 + later]
        assert codes(SequenceChecker(expiration_ms=1000), rows) == ["NONE", expected]
    with pytest.raises(ValueError, match="expiration_ms must be positive, got 0"):
        SequenceChecker(expiration_ms=0)
    SequenceChecker(expiration_ms=1)


def test_the_first_sequence_of_a_snapshot_is_counted_back_from_the_last_seq_r2() -> None:
    """From 0 it goes back to 2^31 - 1: the batch is recognized as a duplicate, and the next one is in order."""
    sent = SequenceChecker()
    sent.check(batches((0, MAX - 1, 3), offset=100))
    again = SequenceChecker(sent.producers())
    assert again.producers().tolist() == sent.producers().tolist()
    assert codes(again, batches((0, MAX - 1, 3), offset=103)) == [AGAIN]
    assert codes(again, batches((0, 1, 1), offset=103)) == ["NONE"]


@pytest.mark.parametrize("name", ["txn-0", "codec-none-0", "codec-zstd-0"])
def test_producer_state_equals_kafkas_snapshots(golden: Path, name: str) -> None:
    """DSK-R6: the state is equal after a walk from the beginning of the log, and from one snapshot to the next."""
    directory = golden / "logs" / name
    log = kbatch.Log(directory)
    checker = SequenceChecker()
    seen = 0
    for segment in log.segments:
        snapshot = segment.path.removesuffix(".log") + ".snapshot"
        if Path(snapshot).exists():
            expected = read_producer_snapshot(snapshot)
            assert sorted(checker.producers().tolist()) == sorted(expected.tolist())
            checker = SequenceChecker(expected)
            seen += 1
        table = kbatch.decode(Path(segment.path).read_bytes(), include_control=True)
        assert (checker.check(table)["error"] == 0).all()
    for path in directory.glob("*.snapshot"):
        if int(path.stem) > int(kbatch.scan(Path(log.segments[-1].path).read_bytes())["last_offset"][-1]):
            assert sorted(checker.producers().tolist()) == sorted(read_producer_snapshot(path).tolist())
            seen += 1
    assert seen >= 1


def test_a_million_batches_take_seconds() -> None:
    rows = np.zeros(1_000_000, BATCH_DTYPE)
    rows["magic"] = 2
    rows["producer_id"] = np.arange(len(rows)) % 1000
    rows["base_sequence"] = np.arange(len(rows)) // 1000
    rows["record_count"] = 1
    checker = SequenceChecker()
    start = time.process_time()
    verdicts = checker.check(rows)
    assert time.process_time() - start < 20
    assert not verdicts["error"].any()
    assert len(checker) == 1000
    assert checker.producers().dtype == PRODUCER_DTYPE
