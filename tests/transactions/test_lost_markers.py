"""Markers that are lost to damage, and the entries of the segment's ``.txnindex`` for them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from log_batches import segment_path
from oracle import CONTROL, TRANSACTIONAL, build_batch, encode_record, three
from tables import offsets_of
from transaction_logs import ABORT, COMMIT, consume, damaged, marker, txn

import kbatch
from kbatch.plan.following import FollowedLog, followed
from kbatch.plan.read_options import ReadOptions

Entry = tuple[int, int, int]
NEXT = 100


def index(*entries: Entry) -> bytes:
    """Write entries of (producer id, first offset, last offset) in the format of TXI-R1."""
    return b"".join(struct.pack(">hqqqq", 0, *entry, entry[2] + 1) for entry in entries)


def log_of(directory: Path, batches: list[bytes], entries: bytes | None, *, after: bytes = three(NEXT)) -> kbatch.Log:
    directory = directory / "t-0"
    directory.mkdir(exist_ok=True)
    path = segment_path(directory, 0)
    path.write_bytes(b"".join(batches))
    segment_path(directory, NEXT).write_bytes(after)
    path.with_suffix(".txnindex").unlink(missing_ok=True)
    if entries is not None:
        path.with_suffix(".txnindex").write_bytes(entries)
    return kbatch.Log(directory)


def committed(log: kbatch.Log, **options: object) -> list[int]:
    return [
        offset
        for table in log.tables(isolation="read_committed", on_error="skip", **options)  # type: ignore[arg-type]
        for offset in offsets_of(table)
    ]


# Producer 7 aborts at 8, producer 9 commits at 9.
LOG = [
    three(0),
    txn(3, 7, 2),
    txn(5, 9, 2),
    txn(7, 7),
    marker(8, 7, ABORT),
    marker(9, 9, COMMIT),
    three(10),
    txn(13, 7),
]
LOG.append(marker(14, 7, COMMIT))
KEPT = [0, 1, 2, 5, 6, 10, 11, 12, 13, NEXT, NEXT + 1, NEXT + 2]
LOST = {"payload": -1, "length": 10, "longer": 11, "magic": 16, "type": 22, "producer": 47}


@pytest.mark.parametrize("max_bytes", [1, 64 << 20])
@pytest.mark.parametrize("at", LOST.values(), ids=LOST)
def test_the_index_replaces_a_lost_marker(tmp_path: Path, at: int, max_bytes: int) -> None:
    """TXI-R2: exactly the records of the transaction are excluded, and all later records are returned."""
    assert committed(log_of(tmp_path, LOG, index((7, 3, 8)))) == KEPT
    batches = [*LOG[:4], damaged(LOG[4], at), *LOG[5:]]
    log = log_of(tmp_path, batches, index((7, 3, 8)))
    assert committed(log, max_bytes=max_bytes) == KEPT
    assert log.transactions(on_error="skip").aborted.tolist() == [(7, 3, 8, 5)]
    tables = list(log.tables(isolation="read_committed", on_error="skip", max_bytes=max_bytes))
    begin = sum(map(len, LOG[:4]))
    # The gap before the next segment is a loss of no bytes.
    found = [(loss.position, loss.length) for table in tables for loss in table.losses if loss.length]
    assert found == [(begin, len(LOG[4]))]
    assert all(table.pending == [] for table in tables)


def test_damage_around_a_lost_marker_does_not_change_the_result(tmp_path: Path) -> None:
    """The first batch of the transaction is also lost, the marker ends its segment, or zeros replace it."""
    entries = index((7, 3, 8))
    both = [LOG[0], damaged(LOG[1]), *LOG[2:4], damaged(LOG[4]), *LOG[5:]]
    assert committed(log_of(tmp_path, both, entries)) == KEPT
    zeros = [*LOG[:4], bytes(len(LOG[4])), *LOG[5:]]
    assert committed(log_of(tmp_path, zeros, entries)) == KEPT
    wide = [*LOG[:4], bytes(len(LOG[4]) + len(LOG[5])), *LOG[6:]]
    log = log_of(tmp_path, wide, entries)
    # The lost COMMIT of producer 9 stays unknown: an index has aborted transactions only.
    assert committed(log) == [each for each in KEPT if each not in (5, 6)]
    assert log.transactions(on_error="skip").undecided.tolist() == [(9, 5, 7, 8)]
    for tail in (damaged(LOG[4]), LOG[4][:-3], bytes(30)):
        assert committed(log_of(tmp_path, [*LOG[:2], LOG[3], tail], entries)) == [0, 1, 2, *KEPT[-3:]]


def test_the_transaction_may_begin_in_an_earlier_segment(tmp_path: Path) -> None:
    """TXI-R2: the index of the marker's segment contains the entry."""
    log = log_of(tmp_path, [three(0), txn(3, 7)], None, after=damaged(marker(NEXT, 7, ABORT)) + three(NEXT + 1))
    after = [0, 1, 2, NEXT + 1, NEXT + 2, NEXT + 3]
    assert committed(log) == after
    assert log.transactions(on_error="skip").pending == [(7, 3)]
    segment_path(tmp_path / "t-0", NEXT).with_suffix(".txnindex").write_bytes(index((7, 3, NEXT)))
    assert committed(log) == after
    assert log.transactions(on_error="skip").aborted.tolist() == [(7, 3, NEXT, NEXT + 1)]
    # The same holds if that segment has been deleted (TXI-R6).
    gone = txn(NEXT, 7) + damaged(marker(NEXT + 1, 7, ABORT)) + three(NEXT + 2)
    log = log_of(tmp_path, [], None, after=gone)
    segment_path(tmp_path / "t-0", 0).unlink()
    segment_path(tmp_path / "t-0", NEXT).with_suffix(".txnindex").write_bytes(index((7, 3, NEXT + 1)))
    assert committed(kbatch.Log(tmp_path / "t-0")) == [NEXT + 2, NEXT + 3, NEXT + 4]


DAMAGED = [*LOG[:4], damaged(LOG[4]), *LOG[5:]]
FORGED = {
    "another producer": index((8, 3, 8)),
    "began later": index((7, 5, 8)),
    "a batch at the offset": index((7, 3, 7)),
    "first after last": index((7, 9, 8)),
    "below": index((7, 3, 2)),
    "no damage there": index((7, 3, 15)),
    "beyond the segment": index((7, 3, NEXT + 1)),
    "negative producer": index((-1, 3, 8)),
    "version": b"\1" + index((7, 3, 8))[1:],
    "descending": index((7, 3, 9), (7, 3, 8)),
    "fragment": index((7, 3, 8))[:-1],
}


@pytest.mark.parametrize("name", FORGED)
def test_index_entries_that_contradict_the_log_are_ignored(tmp_path: Path, name: str) -> None:
    """The transaction stays undecided."""
    without = committed(log_of(tmp_path, DAMAGED, None))
    assert without == KEPT
    log = log_of(tmp_path, DAMAGED, FORGED[name])
    assert committed(log) == without
    assert log.transactions(on_error="skip").undecided.tolist() == [(7, 3, 8, 5)]
    assert committed(log_of(tmp_path, LOG, FORGED[name])) == KEPT


def test_without_damage_the_index_is_ignored(tmp_path: Path) -> None:
    """This includes offsets that compaction removed: it removes a marker only with its whole transaction (CMP-R6)."""
    batches = [three(0), txn(3, 7), three(5), marker(8, 7, COMMIT)]
    assert committed(log_of(tmp_path, batches, index((7, 3, 4)))) == [0, 1, 2, 3, 5, 6, 7, *KEPT[-3:]]
    # The index is not used either if damage ends the reading.
    log = log_of(tmp_path, DAMAGED, b"\1" * 34)
    assert len(log.transactions(on_error="stop").open) == 0
    assert len(log.transactions().aborted) == 0


def test_the_index_replaces_any_lost_abort_marker(tmp_path: Path) -> None:
    """If ABORT markers are lost, a consumer with the index of the undamaged log returns the same records.

    If the checksum of a COMMIT marker is bad, its transaction is undecided: the index does not list it.
    """
    rng = np.random.default_rng(11)
    for _ in range(60):
        batches: list[bytes] = []
        entries: list[Entry] = []
        begun: dict[int, int] = {}
        # Offsets of open transactions, and of transactions by the index in `batches` of the marker that ended them.
        written: dict[int, list[int]] = {}
        ended: dict[int, list[int]] = {}
        offset = 0
        kinds: list[bool] = []
        for _ in range(int(rng.integers(5, 31))):
            producer = int(rng.integers(4))
            abort = False
            if producer == 0:
                batches.append(three(offset))
                offset += 3
            elif producer in begun and rng.random() < 0.5:
                abort = rng.random() < 0.6
                batches.append(marker(offset, producer, ABORT if abort else COMMIT))
                if abort:
                    entries.append((producer, begun[producer], offset))
                del begun[producer]
                ended[len(kinds)] = written.pop(producer)
                offset += 1
            else:
                begun.setdefault(producer, offset)
                written.setdefault(producer, []).extend([offset, offset + 1])
                batches.append(txn(offset, producer, 2))
                offset += 2
            kinds.append(abort)
        for producer in sorted(begun):
            batches.append(marker(offset, producer, COMMIT))
            ended[len(kinds)] = written.pop(producer)
            kinds.append(False)
            offset += 1
        expected, _ = consume(
            oracle.decode(b"".join(batches)).batches, [(pid, first) for pid, first, _ in entries], fetch_offset=0
        )
        broken = [
            damaged(batch, int(rng.integers(8, len(batch)))) if abort and rng.random() < 0.7 else batch
            for batch, abort in zip(batches, kinds, strict=True)
        ]
        undecided: list[list[int]] = []
        for i, abort in enumerate(kinds):
            is_commit = kbatch.scan(batches[i])["attributes"][0] & CONTROL and not abort
            # After a batch with a damaged length, its header would not be found either.
            if is_commit and broken[i - 1] == batches[i - 1] and rng.random() < 0.5:
                broken[i] = damaged(batches[i], int(rng.choice([17, -1])))
                undecided.append(ended[i])
        withheld = {offset for offsets in undecided for offset in offsets}
        log = log_of(tmp_path, broken, index(*entries))
        found = committed(log, max_bytes=int(rng.choice([1, 300, 1 << 20])))[:-3]
        assert found == [offset for offset in expected if offset not in withheld]
        pending = log.transactions(on_error="skip").pending
        assert [first for _, first in pending] == sorted(offsets[0] for offsets in undecided)


# -- damaged markers with a readable header

ENDS = [("aborted", ABORT, COMMIT, [0, 1, 2, 6, 9, 10, 11]), ("committed", COMMIT, ABORT, [0, 1, 2, 3, 4, 9, 10, 11])]


def two_transactions(kind: int, next_kind: int) -> list[bytes]:
    """Build two transactions of producer 7; the marker of the first is damaged."""
    bad = damaged(marker(5, 7, kind))
    return [three(0), txn(3, 7, 2), bad, txn(6, 7), marker(7, 7, next_kind), three(9)]


def outcomes(batches: list[bytes], tmp_path: Path) -> list[tuple[list[int], list[tuple[int, int]], int | None]]:
    """Return offsets, pending transactions and last stable offset from decode, from streams and from a log."""
    whole = b"".join(batches)
    options: dict[str, Any] = {"isolation": "read_committed", "on_error": "skip"}
    table = kbatch.decode(whole, **options)
    out = [(offsets_of(table), table.pending, table.last_stable_offset)]
    for size in (1, 61, 200, len(whole)):
        decoder = kbatch.StreamDecoder(**options)
        have = []
        for at in range(0, len(whole), size):
            decoder.feed(whole[at : at + size])
            have += offsets_of(decoder.flush())
        table = decoder.finish()
        out.append((have + offsets_of(table), table.pending, table.last_stable_offset))
    log = log_of(tmp_path, batches, None, after=b"")
    transactions = log.transactions(on_error="skip")
    tables = list(log.tables(**options))
    assert all(table.pending == transactions.pending for table in tables)
    out.append((committed(log), transactions.pending, transactions.last_stable_offset))
    return out


@pytest.mark.parametrize(("kind", "next_kind", "kept"), [end[1:] for end in ENDS], ids=[end[0] for end in ENDS])
def test_the_next_marker_does_not_decide_the_transaction_of_a_damaged_one(
    tmp_path: Path, kind: int, next_kind: int, kept: list[int]
) -> None:
    """TXN-R2: only its own records are withheld, for any outcome of the producer's next transaction."""
    batches = two_transactions(kind, next_kind)
    withheld = [offset for offset in kept if offset not in (3, 4)]
    found = outcomes(batches, tmp_path)
    assert found == [(withheld, [(7, 3)], None)] * len(found)
    # Producer 9 withholds only its own records.
    found = outcomes([*batches[:-1], txn(8, 9), three(9)], tmp_path)
    assert found == [([o for o in withheld if o < 8], [(7, 3), (9, 8)], 8)] * len(found)
    first, opened, bad = batches[:3]
    mixed = [first, opened, txn(5, 9), bad[:7] + b"\6" + bad[8:], txn(7, 9)]
    mixed += [txn(8, 7), marker(9, 7, next_kind), marker(10, 9, COMMIT), three(11)]
    expected = [0, 1, 2, 5, 7, *([8] if next_kind == COMMIT else []), 11, 12, 13]
    found = outcomes(mixed, tmp_path)
    assert found == [(expected, [(7, 3)], None)] * len(found)


@pytest.mark.parametrize("max_bytes", [1, 64 << 20])
def test_an_index_that_lists_a_damaged_marker_decides(tmp_path: Path, max_bytes: int) -> None:
    """TXI-R2: the entry has the marker's producer and its offset."""
    batches = two_transactions(ABORT, COMMIT)
    log = log_of(tmp_path, batches, index((7, 3, 5)))
    assert committed(log, max_bytes=max_bytes) == [0, 1, 2, 6, 9, 10, 11, NEXT, NEXT + 1, NEXT + 2]
    transactions = log.transactions(on_error="skip")
    assert transactions.pending == []
    assert transactions.aborted.tolist() == [(7, 3, 5, 6)]


@pytest.mark.parametrize("entries", [index((7, 6, 7)), b"", None], ids=["others", "empty", "none"])
@pytest.mark.parametrize("max_bytes", [1, 64 << 20])
def test_an_index_without_the_damaged_marker_decides_nothing(
    tmp_path: Path, entries: bytes | None, max_bytes: int
) -> None:
    """A commit is not inferred: without an entry the transaction is undecided, although the index has every abort."""
    log = log_of(tmp_path, two_transactions(COMMIT, ABORT), entries)
    assert committed(log, max_bytes=max_bytes) == [0, 1, 2, 9, 10, 11, NEXT, NEXT + 1, NEXT + 2]
    transactions = log.transactions(on_error="skip")
    assert transactions.undecided.tolist() == [(7, 3, 5, 6)]
    assert transactions.pending == [(7, 3)]
    assert transactions.aborted.tolist() == [(7, 6, 7, 8)]


@pytest.mark.parametrize("entries", [None, b"", index((7, 3, NEXT))], ids=["none", "empty", "entry"])
def test_the_damaged_marker_may_be_in_a_later_segment(tmp_path: Path, entries: bytes | None) -> None:
    after = [damaged(marker(NEXT, 7, ABORT if entries else COMMIT)), txn(NEXT + 1, 7), marker(NEXT + 2, 7, COMMIT)]
    log = log_of(tmp_path, [three(0), txn(3, 7), three(4)], b"", after=b"".join(after))
    if entries is not None:
        segment_path(tmp_path / "t-0", NEXT).with_suffix(".txnindex").write_bytes(entries)
    assert committed(log) == [0, 1, 2, 4, 5, 6, NEXT + 1]
    assert log.transactions(on_error="skip").pending == ([] if entries else [(7, 3)])
    assert committed(log, start_offset=3, stop_offset=5) == [4]


def test_damage_that_ends_reading_decides_nothing(tmp_path: Path) -> None:
    for _, kind, next_kind, _ in ENDS:
        batches = two_transactions(kind, next_kind)
        table = kbatch.decode(b"".join(batches), isolation="read_committed", on_error="stop")
        assert (offsets_of(table), table.pending) == ([0, 1, 2], [(7, 3)])
        log = log_of(tmp_path, batches, None)
        tables = list(log.tables(isolation="read_committed", on_error="stop"))
        assert [offset for table in tables for offset in offsets_of(table)] == [0, 1, 2]


def test_damaged_data_batches_do_not_end_a_transaction(tmp_path: Path) -> None:
    """Data batches with a flipped control bit are too large for a marker, or have several records."""
    large = build_batch([encode_record(0, 0, b"k", bytes(80))], base_offset=4, producer_id=7, attributes=TRANSACTIONAL)
    assert len(large) > 128
    for batch, after in (large, 5), (txn(4, 7, 2), 6):
        batches = [three(0), txn(3, 7), damaged_bit(batch, 22, 0x20), txn(after, 7), marker(after + 1, 7, COMMIT)]
        found = outcomes([*batches, three(after + 2)], tmp_path)
        assert found == [([0, 1, 2, 3, after, after + 2, after + 3, after + 4], [], None)] * len(found)
    # A marker of a producer without an open transaction ends no transaction either, if no other one is open.
    batches = [three(0), damaged(marker(3, 7, ABORT)), txn(4, 7), marker(5, 7, COMMIT), three(6)]
    found = outcomes(batches, tmp_path)
    assert found == [([0, 1, 2, 4, 6, 7, 8], [], None)] * len(found)


def damaged_bit(batch: bytes, at: int, bit: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ bit]) + batch[at + 1 :]


def test_a_damaged_marker_counts_if_checksums_are_not_verified() -> None:
    bad = damaged_bit(marker(5, 7, ABORT), 17, 1)
    for crc in ("mark", "skip"):
        table = kbatch.decode(txn(3, 7, 2) + bad + txn(6, 7), isolation="read_committed", on_error="skip", crc=crc)  # type: ignore[arg-type]
        assert (table.pending, table.last_stable_offset) == ([(7, 6)], 6)


def test_adjacent_damaged_markers_each_end_their_transaction(tmp_path: Path) -> None:
    """Each marker ends its own transaction, even if no valid batch follows the first marker."""
    batches = [three(0), txn(3, 7), txn(4, 8), txn(5, 9)]
    batches += [damaged(marker(6, 7, ABORT)), damaged(marker(7, 8, COMMIT)), damaged(marker(8, 9, ABORT))]
    batches += [txn(9, 7), txn(10, 8), txn(11, 9), marker(12, 7, COMMIT), marker(13, 8, ABORT), marker(14, 9, COMMIT)]
    batches.append(three(15))
    found = outcomes(batches, tmp_path)
    assert found == [([0, 1, 2, 9, 11, 15, 16, 17], [(7, 3), (8, 4), (9, 5)], None)] * len(found)
    log = log_of(tmp_path, batches, index((7, 3, 6), (9, 5, 8), (8, 10, 13)))
    assert committed(log) == [0, 1, 2, 9, 11, 15, 16, 17, NEXT, NEXT + 1, NEXT + 2]
    transactions = log.transactions(on_error="skip")
    assert transactions.pending == [(8, 4)]
    assert [last for _, _, last, _ in transactions.aborted.tolist()] == [6, 8, 13]


# -- markers in bytes that were lost

ABORTED_THEN_COMMITTED = [txn(0, 7, 3), marker(3, 7, ABORT), txn(4, 7, 3), marker(7, 7, COMMIT), three(8)]
DESTROYED = {
    "zeros": lambda batch: bytes(len(batch)),
    "other bytes": lambda batch: b"\xff" * len(batch),
    "producer id": lambda batch: damaged(batch, 47),
    "attributes": lambda batch: damaged_bit(batch, 22, 0x20),
    "length": lambda batch: damaged(batch, 10),
    "offset and payload": lambda batch: damaged(damaged(batch, 7), -1),
    "second half": lambda batch: batch[:39] + bytes(39),
    "first half": lambda batch: bytes(39) + batch[39:],
}


@pytest.mark.parametrize("form", DESTROYED)
def test_a_transaction_that_is_open_before_lost_bytes_is_undecided(tmp_path: Path, form: str) -> None:
    """The next COMMIT marker of its producer commits only the batches after the lost bytes."""
    first, aborted, *rest = ABORTED_THEN_COMMITTED
    found = outcomes([first, DESTROYED[form](aborted), *rest], tmp_path)
    assert found == [([4, 5, 6, 8, 9, 10], [(7, 0)], None)] * len(found)


@pytest.mark.parametrize("form", DESTROYED)
def test_an_index_decides_a_transaction_whose_marker_was_destroyed(tmp_path: Path, form: str) -> None:
    """TXI-R2: it lists the offset that is missing."""
    first, aborted, *rest = ABORTED_THEN_COMMITTED
    log = log_of(tmp_path, [first, DESTROYED[form](aborted), *rest], index((7, 0, 3)))
    assert committed(log) == [4, 5, 6, 8, 9, 10, NEXT, NEXT + 1, NEXT + 2]
    assert log.transactions(on_error="skip").aborted.tolist() == [(7, 0, 3, 4)]
    assert log.transactions(on_error="skip").pending == []


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize("sequence", [0, 3])
def test_no_later_batch_of_the_producer_decides(tmp_path: Path, sequence: int, epoch: int) -> None:
    """SEQ-R6, TXN-R9: a new sequence, the next one or a higher epoch may follow a COMMIT as well as an ABORT."""
    later = txn(4, 7, 3, base_sequence=sequence, producer_epoch=epoch)
    found = outcomes([txn(0, 7, 3, base_sequence=0), bytes(78), later, marker(7, 7, COMMIT), three(8)], tmp_path)
    assert found == [([4, 5, 6, 8, 9, 10], [(7, 0)], None)] * len(found)


def test_lost_bytes_leave_every_open_transaction_undecided(tmp_path: Path) -> None:
    """Also of producers whose next marker is ABORT, and of those without one; transactions that begin later do not."""
    batches = [txn(0, 7), txn(1, 8), txn(2, 9), bytes(300), txn(6, 7), txn(7, 10), marker(8, 8, COMMIT)]
    batches += [marker(9, 7, ABORT), marker(10, 10, COMMIT), three(11)]
    found = outcomes(batches, tmp_path)
    assert found == [([7, 11, 12, 13], [(7, 0), (8, 1), (9, 2)], None)] * len(found)


@pytest.mark.parametrize("at", [-1, 8, 10, 16, 22, 30])
def test_a_lost_batch_of_records_ends_no_transaction(tmp_path: Path, at: int) -> None:
    """Its header shows which offsets were lost, also if its length or magic is damaged (SEQ-R6)."""
    for batch in (three(1), txn(1, 7, 3, base_sequence=0), txn(1, 8, 3), txn(1, 9, base_sequence=5)):
        after = int(kbatch.scan(batch)["last_offset"][0]) + 1
        batches = [txn(0, 7), damaged(batch, at), txn(after, 7), marker(after + 1, 7, COMMIT), three(after + 2)]
        found = outcomes(batches, tmp_path)
        assert found == [([0, after, after + 2, after + 3, after + 4], [], None)] * len(found)


def test_bytes_between_adjacent_offsets_hide_no_marker(tmp_path: Path) -> None:
    batches = [txn(0, 7), b"\xff" * 200, txn(1, 7), marker(2, 7, COMMIT), three(3)]
    found = outcomes(batches, tmp_path)
    assert found == [([0, 1, 3, 4, 5], [], None)] * len(found)
    # If offsets decrease, they show nothing.
    found = outcomes([txn(5, 7), b"\xff" * 200, txn(3, 8), marker(4, 8, COMMIT), three(6)], tmp_path)
    assert found == [([3, 6, 7, 8], [(7, 5)], None)] * len(found)


def test_the_end_of_a_segment_was_lost(tmp_path: Path) -> None:
    """The marker may have been there: the next segment does not decide the transaction."""
    after = [txn(NEXT, 7), marker(NEXT + 1, 7, COMMIT), three(NEXT + 2)]
    for tail in (marker(1, 7, ABORT)[:50], bytes(100), damaged(marker(1, 7, ABORT), 47)):
        log = log_of(tmp_path, [txn(0, 7), tail], None, after=b"".join(after))
        assert committed(log) == [NEXT, NEXT + 2, NEXT + 3, NEXT + 4]
        assert log.transactions(on_error="skip").pending == [(7, 0)]
    # An index decides; and no offset is missing before a segment that begins with the next one.
    segment_path(tmp_path / "t-0", 0).with_suffix(".txnindex").write_bytes(index((7, 0, 1)))
    assert log.transactions(on_error="skip").pending == []


def test_plans_of_spark_leave_the_same_transactions_undecided(tmp_path: Path) -> None:
    first, _, *rest = ABORTED_THEN_COMMITTED
    log = log_of(tmp_path, [first, bytes(78), *rest], None)
    options = ReadOptions(isolation="read_committed", on_error="skip")
    assert FollowedLog(options).follow(log, 0).pending == [(7, 0)]
    known = followed(log, options, None, None)
    assert known is not None
    assert known.pending == [(7, 0)]


def with_length(batch: bytes, longer: int) -> bytes:
    """Return a batch whose length field is too large by `longer` bytes."""
    return batch[:8] + (len(batch) - 12 + longer).to_bytes(4, "big") + batch[12:]


@pytest.mark.parametrize("longer", [-10, 50])
def test_a_header_in_lost_bytes_counts_only_if_lengths_lead_from_it_to_the_next_batch(
    tmp_path: Path, longer: int
) -> None:
    """A wrong length hides the ABORT marker at 4 and leads to bytes that resemble the header of a batch with 4 to 6."""
    lost_bytes = [with_length(three(1), 78), bytes(78), damaged(with_length(three(4), longer))]
    found = outcomes([txn(0, 7), *lost_bytes, txn(7, 7), marker(8, 7, COMMIT), three(9)], tmp_path)
    assert found == [([7, 9, 10, 11], [(7, 0)], None)] * len(found)


@pytest.mark.parametrize("longer", [-2, 40])
def test_a_bad_batch_explains_its_offsets_once_if_its_length_is_wrong(tmp_path: Path, longer: int) -> None:
    """The offsets of the lost batch of records show that no marker was lost, so the transaction is still open."""
    batches = [txn(0, 7), damaged(with_length(three(1), longer)), txn(4, 7), marker(5, 7, COMMIT), three(6)]
    found = outcomes(batches, tmp_path)
    assert found == [([0, 4, 6, 7, 8], [], None)] * len(found)
