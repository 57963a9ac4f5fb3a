"""StreamDecoder with isolation="read_committed" equals one decode, however the stream is chunked and flushed."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

import numpy as np
import oracle
import pytest
import transaction_logs as logs
from golden_logs import TXN_FACTS, TXN_LOG
from hypothesis import given
from hypothesis import strategies as st
from streams import Outcome, assert_same, bytewise, cut, streamed, with_end
from tables import offsets_of, records_of, short_inputs
from transaction_logs import ABORT, COMMIT, marker, txn

import kbatch

UNDECIDED = kbatch.BatchStatus.UNDECIDED
COMMITTED: dict[str, Any] = {"isolation": "read_committed"}


def whole(data: bytes, **options: Any) -> Outcome:
    """Decode the whole input, and add the outcome of a stream's end; before an error, only decided records."""
    options |= COMMITTED
    try:
        table = kbatch.decode(data, **options)
    except kbatch.KbatchError as found:
        table = kbatch.decode(data, **options | {"on_error": "stop"})
        outcome = Outcome([table])
        outcome.batches = [(batch, status) for batch, status in outcome.batches if batch.position < found.position]
        outcome.losses = []
        outcome.error = found
    else:
        outcome = with_end(Outcome([table]), data, options)
    return before_error(outcome)


def before_error(outcome: Outcome) -> Outcome:
    """Drop the undecided batches, which have no records, if there is an error: decode raises it without a table."""
    if outcome.error is not None:
        outcome.batches = [(batch, status) for batch, status in outcome.batches if status != UNDECIDED]
    return outcome


@pytest.fixture(scope="module")
def golden_txn() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(TXN_LOG.glob("*.log")))


# -- equality with one decode


@st.composite
def transactional_streams(draw: st.DrawFn) -> list[bytes]:
    """Draw batches of producers with and without transactions, in the order of a log, and their markers."""
    parts: list[bytes] = []
    offset = draw(st.sampled_from([0, 0, 7, 2**40]))
    for _ in range(draw(st.integers(0, 14))):
        producer = draw(st.integers(1, 3))
        count = 1
        match draw(st.sampled_from(["txn", "txn", "txn", "plain", "idempotent", "abort", "commit", "empty", "other"])):
            case "abort":
                part = marker(offset, producer, ABORT)
            case "commit":
                part = marker(offset, producer, COMMIT)
            case "other":
                part = marker(offset, producer, draw(st.integers(2, 6)))
            case "empty":
                part = logs.control(offset, producer, [])
            case kind:
                count = draw(st.integers(1, 3))
                part = oracle.build_batch(
                    [oracle.encode_record(i, i, b"k", draw(st.binary(max_size=20))) for i in range(count)],
                    codec=draw(st.sampled_from(["none", "none", "gzip", "zstd"])),
                    base_offset=offset,
                    producer_id=-1 if kind == "plain" else producer,
                    attributes=oracle.TRANSACTIONAL if kind == "txn" else 0,
                )
        parts.append(part)
        offset += count + draw(st.integers(0, 2))
    return parts


def damage(draw: st.DrawFn, parts: list[bytes], *, lengths: bool) -> bytes:
    """Damage some bytes, but no base offset: no checksum covers base offsets, so a consumer accepts them."""
    starts = [0, *itertools.accumulate(map(len, parts))]
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 3)) if parts else 0):
        start = draw(st.sampled_from(starts[:-1]))
        kinds = ["payload", "payload", "checksum", *(["length", "header", "cut", "insert"] if lengths else [])]
        match draw(st.sampled_from(kinds)):
            case "payload":
                at = start + draw(st.integers(61, 80))
                if at < len(data):
                    data[at] ^= 1 << draw(st.integers(0, 7))
            case "checksum":
                if start + 17 < len(data):
                    data[start + 17] ^= 1
            case "length":
                data[start + 8 : start + 12] = draw(st.integers(0, 500)).to_bytes(4, "big")
            case "header":
                at = start + draw(st.integers(12, 60))
                if at < len(data):
                    data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[start : start + draw(st.integers(0, 100))]
            case "insert":
                data[start:start] = draw(st.binary(max_size=90))
    end = draw(st.sampled_from([len(data), len(data), draw(st.integers(0, len(data)))]))
    return bytes(data[:end])


def is_monotonic(data: bytes, crc: Any) -> bool:
    """Return whether offsets increase; if not, later batches may change the outcome of earlier ones."""
    batches = kbatch.decode(data, on_error="skip", crc=crc).batches
    batches = batches[(batches["status"] == 0) | ((batches["status"] == 1) & (crc != "verify"))]
    ends = np.stack([batches["base_offset"], batches["last_offset"]], axis=1).ravel()
    return bool(np.all(ends[1:] >= ends[:-1]))


@short_inputs
@given(st.data())
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
@pytest.mark.parametrize("listed", [False, True])
def test_chunks_and_flushes_do_not_change_committed_records(listed: bool, on_error: str, data: st.DataObject) -> None:
    """TXN-R1 to TXN-R8 and LSO-R1 to LSO-R3 hold for streams."""
    parts = data.draw(transactional_streams())
    crc = data.draw(st.sampled_from(["verify", "verify", "mark", "skip"]))
    stream = damage(data.draw, parts, lengths=crc == "verify") if data.draw(st.booleans()) else b"".join(parts)
    options: dict[str, Any] = {
        "on_error": on_error,
        "crc": crc,
        "include_control": data.draw(st.booleans()),
        "start_offset": data.draw(st.none() | st.integers(0, 40)),
        "stop_offset": data.draw(st.none() | st.integers(0, 40)),
        # Below the size of a table that `decode_stream` may split: larger batches do not fit such a table.
        "limits": kbatch.Limits(max_batch_bytes=1 << 20),
    }
    if listed:
        pairs = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), max_size=5)
        options["aborted"] = data.draw(pairs)
    chunks = cut(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    flushes = data.draw(st.sets(st.integers(0, 12)))
    found = before_error(streamed(chunks, flushes.__contains__, **options | COMMITTED))
    if not is_monotonic(stream, crc):
        return
    expected = whole(stream, **options)
    assert_same(found, expected)
    assert_same(before_error(streamed(bytewise(stream, 13), **options | COMMITTED)), expected)
    for max_bytes in (1, 300, 1 << 20):
        found = before_error(Outcome(kbatch.decode_stream(chunks, max_bytes=max_bytes, **options | COMMITTED)))
        if on_error == "stop" and expected.losses:
            assert [loss[0] for loss in found.losses] == [loss[0] for loss in expected.losses]
            found.losses = expected.losses
        found.consumed = expected.consumed
        assert_same(found, expected)


@short_inputs
@given(st.data())
def test_each_flush_reports_the_open_transactions(data: st.DataObject) -> None:
    """LSO-R2: a flush considers the bytes fed so far, and returns no records from the last stable offset on."""
    stream = b"".join(data.draw(transactional_streams()))
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    fed = b""
    for chunk in cut(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=8))):
        decoder.feed(chunk)
        fed += chunk
        table = decoder.flush()
        now = kbatch.decode(fed, isolation="read_committed")
        assert (table.pending, table.last_stable_offset) == (now.pending, now.last_stable_offset)
        if now.last_stable_offset is not None:
            assert (table.batches["last_offset"] < now.last_stable_offset).all()
    left = len(stream) - len(fed)
    assert not left
    table = decoder.finish()
    assert (table.pending, table.last_stable_offset) == (now.pending, now.last_stable_offset)
    undecided = table.batches["status"] == UNDECIDED
    assert undecided.all()
    assert not len(table)


@pytest.mark.parametrize("size", [1, 61, 997, 10_007])
@pytest.mark.parametrize("every", [1, 50])
def test_a_golden_log_returns_what_kafkas_consumer_returned(golden_txn: bytes, size: int, every: int) -> None:
    """TXN-R15, LSO-R2: the expected records are the ones Kafka's consumer returned from this log."""
    expected = whole(golden_txn)
    assert_same(streamed(bytewise(golden_txn, size), lambda i: i % every == 0, **COMMITTED), expected)
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    tables = list(decoder.tables(bytewise(golden_txn, size)))
    assert [offset for table in tables for offset in offsets_of(table)] == TXN_FACTS["readCommittedOffsets"]
    assert tables[-1].pending == [(1002, 362), (1004, 367)]
    assert tables[-1].last_stable_offset == 362


@pytest.mark.parametrize("size", [1, 61, 10_007])
@pytest.mark.parametrize("rows", [False, True])
def test_a_golden_log_is_decided_by_its_transaction_index(golden_txn: bytes, size: int, rows: bool) -> None:
    """TXN-R1: an aborted list decides, whether the list or a later marker ends its ranges."""
    entries = [(entry["producerId"], entry["firstOffset"], entry["lastOffset"], -1) for entry in TXN_FACTS["aborted"]]
    aborted: Any = np.array(entries, kbatch.ABORTED_DTYPE) if rows else [entry[:2] for entry in entries]
    expected = whole(golden_txn, aborted=aborted)
    assert UNDECIDED not in {status for _, status in expected.batches}
    assert_same(streamed(bytewise(golden_txn, size), aborted=aborted, **COMMITTED), expected)


# -- which records are withheld, and for how long


def test_an_open_transaction_withholds_records_until_its_marker() -> None:
    """LSO-R1: it also withholds later records of other producers, and no earlier records."""
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    parts = [logs.data(0), txn(1, 7), logs.data(2), txn(3, 8), marker(4, 8, ABORT), marker(5, 7, COMMIT), txn(6, 8)]
    flushed = []
    for part in parts:
        assert decoder.feed(part) == 1
        table = decoder.flush()
        flushed.append((offsets_of(table), table.pending, table.last_stable_offset))
    assert flushed == [
        ([0], [], None),
        ([], [(7, 1)], 1),
        ([], [(7, 1)], 1),
        ([], [(7, 1), (8, 3)], 1),
        ([], [(7, 1)], 1),
        ([1, 2], [], None),
        ([], [(8, 6)], 6),
    ]
    assert decoder.pending_bytes == len(parts[-1])
    assert decoder.feed(b"") == 0
    table = decoder.finish()
    assert table.batches[["base_offset", "status"]].tolist() == [(6, UNDECIDED)]
    assert (table.pending, table.last_stable_offset, decoder.pending_bytes) == ([(8, 6)], 6, 0)


def test_an_aborted_list_withholds_nothing() -> None:
    """TXN-R8: a listed transaction extends to the end of the input, unless its marker ends it (TXN-R2)."""
    decoder = kbatch.StreamDecoder(isolation="read_committed", aborted=iter([(7, 1)]))
    seen = []
    for part in (logs.data(0), txn(1, 7), txn(2, 8), marker(3, 7, ABORT), txn(4, 7), marker(5, 7, ABORT)):
        decoder.feed(part)
        table = decoder.flush()
        seen.append(offsets_of(table))
        assert (table.pending, table.last_stable_offset, decoder.pending_bytes) == ([], None, 0)
    assert seen == [[0], [], [2], [], [4], []]


def test_aborted_lists_are_checked_by_the_constructor() -> None:
    with pytest.raises(TypeError, match="entry 0 must be a pair of integers"):
        kbatch.StreamDecoder(isolation="read_committed", aborted=[7])  # type: ignore[list-item]
    # Without read_committed the list has no effect, as in Kafka's consumer (TXN-R12).
    decoder = kbatch.StreamDecoder(aborted=[(7, 0)])
    decoder.feed(txn(0, 7))
    assert len(decoder.flush()) == 1


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_damage_after_an_open_transaction_is_reported_in_order(on_error: Any) -> None:
    """Markers after damage decide transactions with on_error="skip" only; losses are in the order of the input."""
    head = logs.data(0) + txn(1, 7) + logs.data(2)
    data = head + logs.damaged(logs.data(3)) + marker(4, 7, COMMIT) + logs.data(5)
    decoder = kbatch.StreamDecoder(isolation="read_committed", on_error=on_error)
    tables = []
    for chunk in bytewise(data, 30):
        decoder.feed(chunk)
        tables.append(decoder.flush())
    tables.append(decoder.finish())
    offsets = [offset for table in tables for offset in offsets_of(table)]
    losses = [loss[:2] for table in tables for loss in table.losses]
    assert decoder.stopped == (on_error == "stop")
    if on_error == "stop":
        # The transaction is undecided, as in a log, and withholds only its own records.
        assert offsets == [0, 2]
        assert losses == [(len(head), len(data) - len(head))]
        assert [status for table in tables for status in table.batches["status"].tolist()] == [0, 8, 0, 1]
        assert tables[-1].pending == [(7, 1)]
    else:
        assert offsets == [0, 1, 2, 5]
        assert losses == [(len(head), len(head) // 3)]
        assert tables[-1].pending == []


def test_damage_raises_after_the_decided_records_before_it() -> None:
    head = logs.data(0) + txn(1, 7)
    decoder = kbatch.StreamDecoder(isolation="read_committed", source="orders")
    assert decoder.feed(head + logs.damaged(logs.data(2)) + marker(3, 7, COMMIT)) == 4
    assert offsets_of(decoder.flush()) == [0]
    for call in (decoder.flush, decoder.flush, decoder.finish):
        with pytest.raises(kbatch.CrcMismatchError, match="orders") as caught:
            call()
        assert (caught.value.position, caught.value.base_offset) == (len(head), 2)
        assert decoder.feed(logs.data(4)) == 1
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    # An unreadable record does not affect transactions.
    bad = oracle.build_batch(payload=b"\x7f" * 9, record_count=1, base_offset=2)
    decoder.feed(head + bad)
    assert offsets_of(decoder.flush()) == [0]
    assert offsets_of(decoder.flush()) == []
    decoder.feed(marker(3, 7, COMMIT))
    assert offsets_of(decoder.flush()) == [1]
    with pytest.raises(kbatch.InvalidRecordError):
        decoder.flush()


def test_an_incomplete_last_batch_may_be_completed_after_finish() -> None:
    """FRM-R3: withheld records are still decided when the rest of the batch is fed."""
    end = marker(2, 7, COMMIT)
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    decoder.feed(logs.data(0) + txn(1, 7) + end[:40])
    for _ in range(2):
        with pytest.raises(kbatch.TruncatedBatchError, match=f"40 of {len(end)} bytes"):
            decoder.finish()
    assert offsets_of(decoder.flush()) == [0]
    decoder.feed(end[40:])
    assert offsets_of(decoder.finish()) == [1]


@pytest.mark.parametrize("crc", ["mark", "skip"])
def test_accepted_batches_with_bad_checksums_take_part_in_transactions(crc: Any) -> None:
    """If bad checksums are accepted, such data batches and markers belong to their transactions."""
    parts = [
        logs.damaged(txn(0, 7), 17),
        logs.damaged(marker(1, 7, ABORT), 17),
        logs.damaged(txn(2, 8), 17),
        logs.data(3),
    ]
    table = kbatch.decode(b"".join(parts), crc=crc, **COMMITTED)
    assert table.pending == [(8, 2)]
    assert offsets_of(table) == []
    found = streamed(parts, crc=crc, **COMMITTED)
    assert [batch.base_offset for batch, _ in found.batches] == [0, 1, 2, 3]
    assert_same(found, whole(b"".join(parts), crc=crc))


# -- one decode of damaged input


@pytest.mark.parametrize("on_error", ["stop", "raise"])
def test_markers_after_damage_that_ends_a_decode_are_ignored(on_error: Any) -> None:
    """No bytes after the damage are read, not even batch headers."""
    bad = logs.damaged(logs.data(2))
    data = txn(0, 7) + logs.data(1) + bad + marker(3, 7, COMMIT)
    if on_error == "raise":
        with pytest.raises(kbatch.CrcMismatchError, match="base offset 2"):
            kbatch.decode(data, **COMMITTED)
        return
    table = kbatch.decode(data, on_error="stop", **COMMITTED)
    assert table.batches["status"].tolist() == [UNDECIDED, 0, kbatch.BatchStatus.BAD_CRC]
    assert (table.pending, table.last_stable_offset) == ([(7, 0)], None)


def test_damage_outside_the_offset_bounds_opens_no_transaction_and_is_reported_by_skip_only() -> None:
    bad = logs.damaged(txn(0, 7))
    data = bad + txn(1, 8) + marker(2, 8, ABORT) + logs.data(3)
    for on_error in ("raise", "stop", "skip"):
        table = kbatch.decode(data, start_offset=1, on_error=on_error, **COMMITTED)  # type: ignore[arg-type]
        assert offsets_of(table) == [3]
        assert (table.pending, len(table.losses)) == ([], int(on_error == "skip"))
        assert_same(
            streamed(bytewise(data, 20), start_offset=1, on_error=on_error, **COMMITTED),
            whole(data, start_offset=1, on_error=on_error),
        )


# -- sources


def test_a_pipe_returns_the_committed_records(golden_txn: bytes) -> None:
    reader, writer = os.pipe()

    def write() -> None:
        with open(writer, "wb", buffering=0) as file:
            for chunk in bytewise(golden_txn, 5001):
                file.write(chunk)

    thread = threading.Thread(target=write)
    thread.start()
    with open(reader, "rb", buffering=0) as file:
        tables = list(kbatch.decode_stream(file, isolation="read_committed"))
    thread.join()
    expected = kbatch.decode(golden_txn, isolation="read_committed")
    assert [record for table in tables for record in records_of(table)] == records_of(expected)
    assert tables[-1].pending == expected.pending
