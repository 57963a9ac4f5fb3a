"""Catalogue section 7: aborted ranges, read_committed, last stable offset, and the index rebuilt from a log."""

from __future__ import annotations

import json
import pickle
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import CONTROL, DELETE_HORIZON, INT64_MAX, build_batch
from tracking import lost_event, outcome, track
from transaction_logs import ABORT, COMMIT, Fold, consume, control, control_record, damaged, data, fold, marker, txn

import kbatch
from kbatch.batches.checksums import good_crcs
from kbatch.batches.framing import byte_array, scan_part
from kbatch.transactions import EVENT_DTYPE, AbortedRanges, OpenTransaction, TransactionTracker

GOLDEN = Path(__file__).parents[1] / "golden"
VECTORS = sorted((GOLDEN / "vectors" / "txn").glob("*.json"))
TXN = GOLDEN / "logs" / "txn-0"


def committed(log: bytes, ranges: AbortedRanges, fetch_offset: int = 0) -> tuple[list[int], int]:
    """Return the offsets that a consumer gets and the next fetch offset, by scan, mask and decode."""
    batches = kbatch.scan(log)
    mask = ranges.mask(batches)
    assert mask.shape == (len(batches),)
    assert mask.dtype == np.bool_
    records = kbatch.decode(log, start_offset=fetch_offset).records
    dropped = set(batches["position"][mask].tolist())
    rows = kbatch.decode(log, start_offset=fetch_offset).batches["position"].tolist()
    kept = np.array([position not in dropped for position in rows], np.bool_)[records["batch"]]
    last = batches["base_offset"] + batches["last_offset_delta"]
    return records["offset"][kept].tolist(), max(fetch_offset, int(last[-1]) + 1)


def filtered(log: bytes, aborted: list[Any] | None, fetch_offset: int = 0) -> tuple[list[int], int]:
    """Apply read_committed to a fetch response."""
    return committed(log, listed_ranges(aborted or (), kbatch.scan(log), track(log)), fetch_offset)


def listed_ranges(listed: Any, rows: np.ndarray, tracker: TransactionTracker) -> AbortedRanges:
    """Return the ranges of a list, closed by the ABORT markers of these batches."""
    producers, _, positions = tracker.abort_markers
    return AbortedRanges.from_list(listed, rows, (producers, positions))


# -- 7.1 read_committed over a fetch response


@pytest.mark.parametrize("path", VECTORS, ids=[path.stem for path in VECTORS])
def test_txn_vectors_return_what_kafkas_consumer_returns(path: Path) -> None:
    """Records and next fetch offset equal the results of Kafka's consumer; the model is checked with the same files."""
    vector = json.loads(path.read_text())
    log = bytes.fromhex(vector["hex"])
    expected = (vector["offsets"], vector["nextOffset"])
    read_committed = vector["isolation"] == 1
    batches = oracle.decode(log).batches
    assert consume(batches, vector["aborted"], vector["fetchOffset"], read_committed=read_committed) == expected
    # TXN-R12: under read_uncommitted the list is null.
    aborted = vector["aborted"] if read_committed else None
    assert filtered(log, aborted, vector["fetchOffset"]) == expected
    assert filtered(log, aborted and aborted[::-1] * 2, vector["fetchOffset"]) == expected


def test_there_are_vectors_for_the_rules() -> None:
    assert len(VECTORS) == 15


# The ids that have no file: (batches, aborted, fetch offset, offsets, next offset).
BUILT: dict[str, tuple[list[bytes], list[tuple[int, int]] | None, int, list[int], int]] = {
    # CTL-R5, TXN-R12: read_uncommitted has all data and no control records.
    "TXN-02": ([txn(0, 7, 2), marker(2, 7, ABORT), data(3, -1, 2)], None, 0, [0, 1, 3, 4], 5),
    # TXN-R3: batches of other producers and without a producer stay, between batches of the aborted transaction.
    "TXN-04": (
        [txn(0, 7), txn(1, 8), data(2), txn(3, 7), txn(4, 8), marker(5, 8, COMMIT), marker(6, 7, ABORT), txn(7, 8)],
        [(7, 0)],
        0,
        [1, 2, 4, 7],
        8,
    ),
    # TXN-R2: two aborted transactions of a producer and a committed one between them.
    "TXN-06": (
        [txn(0, 7), marker(1, 7, ABORT), txn(2, 7), marker(3, 7, COMMIT), txn(4, 7), marker(5, 7, ABORT), txn(6, 7)],
        [(7, 0), (7, 4)],
        0,
        [2, 6],
        7,
    ),
    # TXN-R1: the list unsorted and with duplicates.
    "TXN-07": (
        [txn(0, 7), txn(1, 8), marker(2, 7, ABORT), marker(3, 8, ABORT), txn(4, 7), marker(5, 7, ABORT), txn(6, 8)],
        [(7, 4), (8, 1), (7, 0), (8, 1), (7, 0)],
        0,
        [6],
        7,
    ),
    # TXN-R8: the data ends before the marker.
    "TXN-10": ([txn(0, 7), data(1), txn(2, 7, 2)], [(7, 0)], 0, [1], 4),
    # TXN-R11: the response ends with batches that are dropped.
    "TXN-17": ([data(0), txn(1, 7, 3), marker(4, 7, ABORT)], [(7, 1)], 0, [0], 5),
    # TXN-R10: an unknown control type does not end a transaction.
    "TXN-18": ([txn(0, 7), marker(1, 7, 99), txn(2, 7), marker(3, 7, ABORT), txn(4, 7)], [(7, 0)], 0, [4], 5),
}


@pytest.mark.parametrize("name", BUILT)
def test_txn_built_cases_return_the_offsets_of_the_catalogue(name: str) -> None:
    parts, aborted, fetch_offset, offsets, next_offset = BUILT[name]
    log = b"".join(parts)
    model = consume(oracle.decode(log).batches, aborted, fetch_offset, read_committed=aborted is not None)
    assert model == (offsets, next_offset)
    assert filtered(log, aborted, fetch_offset) == (offsets, next_offset)


def test_txn_r9_epochs_are_ignored() -> None:
    """KIP-890: the epoch of the marker is one more than the epoch of the transaction."""
    log = txn(0, 7, producer_epoch=3) + marker(1, 7, ABORT, producer_epoch=4) + txn(2, 7, producer_epoch=4)
    assert filtered(log, [(7, 0)]) == ([2], 3)
    assert outcome(track(log)) == Fold([(7, 0, 1, 2)], [(7, 2, 1000)], 2, [(7, 1)])


def test_txn_r2_a_marker_takes_effect_at_its_last_offset() -> None:
    """Entries up to the last offset of a batch are used, also for a control batch of several records."""
    log = txn(0, 7) + control(1, 7, [control_record(ABORT), control_record(ABORT, delta=1)]) + txn(3, 7)
    for first in range(4):
        assert filtered(log, [(7, first)]) == consume(oracle.decode(log).batches, [(7, first)], 0)


@pytest.fixture(scope="module")
def txn_log() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(TXN.glob("*.log")))


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((TXN / "READ_COMMITTED.json").read_text())
    return loaded


def index_entries(directory: Path) -> list[tuple[int, int, int, int]]:
    """Read all .txnindex files: without the version (TXI-R1)."""
    raw = b"".join(path.read_bytes() for path in sorted(directory.glob("*.txnindex")))
    entries = list(struct.iter_unpack(">hqqqq", raw))
    assert all(entry[0] == 0 for entry in entries)
    return [entry[1:] for entry in entries]


def test_txn_r15_any_window_returns_its_committed_records(txn_log: bytes, truth: dict[str, Any]) -> None:
    """2000 windows of batches with the list that a broker would send, compared with the known records."""
    entries = index_entries(TXN)
    batches = oracle.decode(txn_log).batches
    array = byte_array(txn_log)
    rows = scan_part(array).batches
    good = set(truth["readCommittedOffsets"])
    choose = random.Random(15)
    for _ in range(2000):
        lo, hi = sorted(choose.sample(range(len(batches) + 1), 2))
        window = batches[lo:hi]
        start, stop = window[0].base_offset, window[-1].base_offset + window[-1].last_offset_delta + 1
        listed = [(pid, first) for pid, first, last, _ in entries if last >= start and first < stop]  # TXI-R4
        choose.shuffle(listed)
        tracker = TransactionTracker()
        tracker.add(array, rows[lo:hi], 0)
        ranges = listed_ranges(listed, rows[lo:hi], tracker)
        kept = [b for b, gone in zip(window, ranges.mask(rows[lo:hi]).tolist(), strict=True) if not gone]
        offsets = [r.offset for b in kept if not b.attributes & CONTROL for r in b.records]
        assert offsets == consume(window, listed, start)[0]
        # LSO-R2: the last stable offset, not the list, withholds undecided records.
        decided = [o for o in offsets if o < truth["lastStableOffset"]]
        assert decided == sorted(o for o in good if start <= o < stop)


def test_txn_r15_the_markers_of_a_log_decide_its_transactions(txn_log: bytes, truth: dict[str, Any]) -> None:
    """The markers of the log decide, without an aborted list."""
    ranges = track(txn_log).result()._withheld().aborted
    offsets, next_offset = committed(txn_log, ranges)
    assert [o for o in offsets if o < truth["lastStableOffset"]] == truth["readCommittedOffsets"]
    assert next_offset == truth["logEndOffset"]


# -- 7.2, 7.3 last stable offset, open transactions, the index


def test_txi_r5_the_rebuilt_index_equals_kafkas(txn_log: bytes, truth: dict[str, Any]) -> None:
    """The result equals all .txnindex entries, including last stable offsets; LSO-R1: open transactions."""
    result = track(txn_log).result()
    assert result.aborted.tolist() == index_entries(TXN)
    assert len(result.aborted) == 13
    assert {str(t.producer_id): t.first_offset for t in result.open} == truth["open"]
    assert result.last_stable_offset == truth["lastStableOffset"]
    assert outcome(track(txn_log)) == fold(oracle.decode(txn_log).batches)
    assert all(isinstance(t, OpenTransaction) and t.first_timestamp > 1_600_000_000_000 for t in result.open)


def test_txi_r5_the_rebuilt_index_does_not_depend_on_splits(txn_log: bytes) -> None:
    expected = outcome(track(txn_log))
    count = len(kbatch.scan(txn_log))
    assert outcome(track(txn_log, range(1, count))) == expected
    for split in range(count + 1):
        assert outcome(track(txn_log, [split])) == expected
    choose = random.Random(5)
    for _ in range(50):
        assert outcome(track(txn_log, choose.choices(range(count), k=choose.randrange(12)))) == expected


def test_a_result_may_be_taken_at_any_time(txn_log: bytes) -> None:
    """A result covers the batches so far, and later batches do not change it."""
    array = byte_array(txn_log)
    rows = scan_part(array).batches
    batches = oracle.decode(txn_log).batches
    tracker = TransactionTracker()
    taken = []
    for i in range(len(rows)):
        tracker.add(array, rows[i : i + 1])
        taken.append((tracker.result(), outcome(tracker)))
    for i, (result, then) in enumerate(taken):
        assert then == fold(batches[: i + 1])
        assert result.aborted.tolist() == then.aborted
        assert [tuple(t) for t in result.open] == then.open


def test_txi_r5_the_rebuilt_index_equals_kafkas_before_compaction() -> None:
    directory = GOLDEN / "logs" / "compact-src-0"
    log = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    entries = index_entries(directory)
    assert entries
    assert track(log).result().aborted.tolist() == entries


def test_txi_r8_aborted_ranges_after_compaction_cover_the_remaining_batches() -> None:
    """Empty batches belong to their transaction, and empty control batches are not markers (TXN-R10)."""
    log = (GOLDEN / "logs" / "compact-pass1-0" / "00000000000000000000.log").read_bytes()
    assert outcome(track(log)) == fold(oracle.decode(log).batches)


def open_in_snapshot(path: Path) -> list[OpenTransaction]:
    """Read the open transactions of a producer snapshot (TXI-R7)."""
    raw = path.read_bytes()
    entries = struct.iter_unpack(">qhiqiqiq", raw[10:])
    return [OpenTransaction(entry[0], entry[7]) for entry in entries if entry[7] >= 0]


@pytest.mark.parametrize("base", [186, 280])
def test_txi_r6_tracking_may_start_at_any_segment(base: int, txn_log: bytes, truth: dict[str, Any]) -> None:
    """The snapshot gives the first offsets; without it a transaction begins at its first batch in the segments."""
    log = b"".join(path.read_bytes() for path in sorted(TXN.glob("*.log")) if int(path.stem) >= base)
    expected = [entry for entry in index_entries(TXN) if entry[2] >= base]
    begun = open_in_snapshot(TXN / f"{base:020d}.snapshot")
    assert begun
    result = track(log, open=begun).result()
    assert result.aborted.tolist() == expected
    assert result.last_stable_offset == truth["lastStableOffset"]
    alone = track(log).result()
    assert [entry[2] for entry in alone.aborted.tolist()] == [entry[2] for entry in expected]
    assert (alone.aborted["first_offset"] >= base).all()
    assert outcome(track(log)) == fold(oracle.decode(log).batches)
    # Both omit the same existing batches.
    batches = kbatch.scan(log)
    masks = [one._withheld().aborted.mask(batches).tolist() for one in (result, alone)]
    assert masks[0] == masks[1]


def test_txi_r3_only_transactions_with_data_are_aborted() -> None:
    """TXN-R6: a marker of an empty transaction and a repeated marker are recorded, but abort nothing."""
    log = marker(0, 7, ABORT) + data(1, 7) + marker(2, 7, ABORT) + txn(3, 7) + marker(4, 7, ABORT) + marker(5, 7, ABORT)
    expected = Fold([(7, 3, 4, 5)], [], None, [(7, 0), (7, 2), (7, 4), (7, 5)])
    for splits in ([], [1], [2], [3], [4], [5], range(6)):
        assert outcome(track(log, splits)) == expected


def test_lso_r3_a_transaction_begins_at_its_first_transactional_batch() -> None:
    log = data(0, 7) + txn(1, 7, 5, base_timestamp=77) + data(6, 7) + txn(7, 7)
    assert outcome(track(log)) == Fold([], [(7, 1, 77)], 1, [])
    result = track(log + marker(8, 7, COMMIT)).result()
    assert (result.open, result.last_stable_offset) == ([], None)


def test_lso_r4_first_timestamp_is_unknown_with_a_delete_horizon() -> None:
    """TS-R5: with the delete horizon bit, the base timestamp field contains the horizon."""
    log = build_batch(producer_id=7, attributes=0x10 | DELETE_HORIZON, base_timestamp=99)
    assert track(log).result().open == [(7, 0, -1)]


def test_open_transactions_are_sorted_by_first_offset() -> None:
    log = txn(0, 9) + txn(1, 3) + marker(2, 9, COMMIT) + txn(3, 5) + txn(4, 9)
    result = track(log, open=[OpenTransaction(4, -9, 5)]).result()
    assert result.open == [(4, -9, 5), (3, 1, 1000), (5, 3, 1000), (9, 4, 1000)]
    assert result.last_stable_offset == -9


def test_batches_outside_of_transactions_are_ignored() -> None:
    """Batches of magic 0 and 1, without a producer id, or without the transactional bit have no effect."""
    legacy = (GOLDEN / "logs" / "mixed-0" / "00000000000000000000.log").read_bytes()
    rows = scan_part(byte_array(legacy)).batches.copy()
    rows["attributes"] |= 0x30 * (rows["magic"] != 2)
    rows["producer_id"] = 5
    tracker = TransactionTracker()
    tracker.add(byte_array(legacy), rows[rows["magic"] != 2])
    log = data(0, 7) + data(1) + txn(2, -1) + marker(3, -1, ABORT) + txn(4, -2)
    for one in (track(log), track(b""), tracker):
        assert outcome(one) == Fold([], [], None, [])
    everything = AbortedRanges([5, 7, -1, -2], [0] * 4, [INT64_MAX] * 4)
    assert not everything.mask(rows[rows["magic"] != 2]).any()
    assert not everything.mask(kbatch.scan(log)).any()


def test_transactions_after_message_sets_are_found() -> None:
    """An old topic may have messages of magic 0 and 1 before its transactions."""
    legacy = (GOLDEN / "logs" / "magic1-0" / "00000000000000000000.log").read_bytes()
    log = legacy + txn(1000, 7) + marker(1001, 7, ABORT) + txn(1002, 8)
    assert outcome(track(log)) == Fold([(7, 1000, 1001, 1002)], [(8, 1002, 1000)], 1002, [(7, 1001)])


def test_many_transactions_take_memory_only_while_open() -> None:
    """Memory is proportional to open and aborted transactions, not to batches or committed ones."""
    parts = []
    for i in range(0, 3000, 3):
        parts += [txn(i, i % 50), txn(i + 1, i % 50), marker(i + 2, i % 50, COMMIT)]
    tracker = track(b"".join(parts), range(100, 3000, 100))
    assert outcome(tracker) == Fold([], [], None, [])
    assert len(pickle.dumps(tracker)) < 5000
    again = pickle.loads(pickle.dumps(track(txn(0, 7) + txn(1, 8))))
    log = marker(2, 8, ABORT) + marker(3, 7, ABORT)
    again.add(byte_array(log), scan_part(byte_array(log)).batches)
    assert outcome(again).aborted == [(8, 1, 2, 0), (7, 0, 3, 4)]


def test_offsets_may_reach_the_end_of_int64() -> None:
    log = txn(INT64_MAX - 1, INT64_MAX) + marker(INT64_MAX, INT64_MAX, ABORT)
    result = track(log).result()
    assert result.aborted.tolist() == [(INT64_MAX, INT64_MAX - 1, INT64_MAX, INT64_MAX)]
    assert result._withheld().aborted.mask(kbatch.scan(log)).tolist() == [True, False]


def test_markers_outside_of_the_bytes_are_rejected() -> None:
    log = txn(0, 7) + marker(1, 7, ABORT)
    array = byte_array(log)
    for name, value in (("position", 10_000), ("position", -1), ("size", 1 << 40), ("size", 10), ("size", -5)):
        rows = scan_part(array).batches.copy()
        rows[name][-1] = value
        with pytest.raises(ValueError, match="outside of the"):
            TransactionTracker().add(array, rows, 0)
    with pytest.raises(ValueError, match="outside of the"):
        TransactionTracker().add(array, scan_part(array).batches, len(txn(0, 7)) + 1)


# -- generated logs

EVENTS = ["txn", "txn", "txn", "idempotent", "abort", "commit", "unknown", "empty", "bad marker", "compressed abort"]
steps = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.integers(1, 3), st.integers(0, 2)), max_size=25
)


def log_of(events: list[tuple[str, int, int, int]], producers: Sequence[int]) -> tuple[bytes, list[oracle.Batch]]:
    """Return the log, and the batches that a reader sees that skips damaged ones."""
    parts, seen = [], []
    offset = 0
    for kind, producer, count, gap in events:
        offset += gap
        pid = producers[producer]
        match kind:
            case "txn":
                batch = txn(offset, pid, count)
            case "idempotent":
                batch = data(offset, pid, count)
            case "abort" | "commit":
                batch = marker(offset, pid, ABORT if kind == "abort" else COMMIT)
            case "compressed abort":
                batch = marker(offset, pid, ABORT, codec="gzip")
            case "unknown":
                batch = marker(offset, pid, 5)
            case "empty":
                batch = control(offset, pid, [], last_offset_delta=0)
            case _:
                batch = damaged(marker(offset, pid, ABORT if count == 1 else COMMIT))
        parts.append(batch)
        seen += oracle.decode(batch).batches
        offset += count if kind in ("txn", "idempotent") else 1
    return b"".join(parts), seen


def damaged_markers(log: bytes) -> list[tuple[int, int]]:
    # `decode` reports adjacent damaged batches as one loss, so it does not return all of them.
    array = byte_array(log)
    rows = scan_part(array).batches
    rows = rows[~good_crcs(array, rows, 0)]
    return [(pid, offset) for pid, offset in rows[["producer_id", "base_offset"]].tolist() if pid >= 0]


@given(
    steps,
    st.sampled_from([(7, 8, 9, -1), (0, 1 << 40, INT64_MAX, 5), (3, 3 + (1 << 16), 2 + (1 << 16), 4)]),
    st.sets(st.integers(0, 25)),
)
@example([("txn", 0, 1, 0), ("bad marker", 0, 1, 0), ("txn", 0, 1, 0), ("abort", 0, 1, 0)], (7, 8, 9, -1), {2})
def test_generated_logs_agree_with_the_model(
    events: list[tuple[str, int, int, int]], producers: tuple[int, ...], splits: set[int]
) -> None:
    """Interleaved producers: the tracker equals the model for any split, and the result equals the consumer's."""
    log, seen = log_of(events, producers)
    expected = fold(seen, lost=damaged_markers(log))
    tracker = track(log, [split for split in splits if split <= len(events)])
    assert outcome(tracker) == expected
    rows = scan_part(byte_array(log)).batches
    listed = [(pid, first) for pid, first, _, _ in expected.aborted]
    gone = tracker.result()._withheld().aborted.mask(rows)
    assert gone.tolist() == listed_ranges(listed, rows, tracker).mask(rows).tolist()
    kept = set(rows["base_offset"][~gone].tolist())
    offsets = [r.offset for b in seen if b.base_offset in kept and not b.attributes & CONTROL for r in b.records]
    assert offsets == consume(seen, listed, 0)[0]


@given(steps, st.lists(st.tuples(st.sampled_from([7, 8, 9]), st.integers(-2, 60)), max_size=8))
def test_any_aborted_list_is_handled_as_by_kafkas_consumer(
    events: list[tuple[str, int, int, int]], listed: list[tuple[int, int]]
) -> None:
    """The list need not match the log; the model has the heap and the set of Kafka's consumer."""
    log, seen = log_of(events, (7, 8, 9, -1))
    tracker = track(log)
    rows = scan_part(byte_array(log)).batches
    ranges = listed_ranges(listed, rows, tracker)
    kept = set(rows["base_offset"][~ranges.mask(rows)].tolist())
    offsets = [r.offset for b in seen if b.base_offset in kept and not b.attributes & CONTROL for r in b.records]
    assert offsets == consume(seen, listed, 0)[0]


def test_drained_transactions_are_released_and_open_ones_kept() -> None:
    """Each decided transaction is returned once, so that endless logs take bounded memory."""
    log = txn(0, 7) + txn(1, 8) + marker(2, 7, ABORT)
    array = byte_array(log)
    rows = scan_part(array).batches
    tracker = TransactionTracker()
    tracker.add(array, rows)
    aborted, undecided, (producers, offsets, _), *_ = tracker.drain()
    assert aborted.tolist() == [(7, 0, 2, 1)]
    assert len(undecided) == 0
    assert (producers.tolist(), offsets.tolist()) == ([7], [2])
    assert len(tracker.result().aborted) == len(tracker.abort_markers[0]) == 0
    assert tracker.result().open == [(8, 1, 1000)]
    more = byte_array(marker(3, 8, ABORT))
    tracker.add(more, scan_part(more).batches)
    assert tracker.drain()[0].tolist() == [(8, 1, 3, 4)]
    assert len(tracker.drain()[0]) == 0
    lost = byte_array(txn(4, 9) + marker(5, 9, ABORT))
    rows = scan_part(lost).batches
    tracker.add(lost, rows[:1])
    tracker.replay(np.array([lost_event(rows[1])], EVENT_DTYPE))
    assert tracker.drain().undecided.tolist() == [(9, 4, 5, 6)]
    assert len(tracker.result().undecided) == 0
