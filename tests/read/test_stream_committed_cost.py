"""Memory and time of StreamDecoder with isolation="read_committed"."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import oracle
import pytest
import transaction_logs as logs
from streams import bytewise
from tables import records_of
from transaction_logs import ABORT, COMMIT, marker, txn

import kbatch
from kbatch.kernels import buffers
from kbatch.transactions import AbortedRanges

COMMITTED: dict[str, Any] = {"isolation": "read_committed"}


def test_a_stream_of_short_transactions_takes_bounded_memory() -> None:
    """The bytes and the state of finished transactions are released."""
    value = oracle.encode_record(value=random.Random(1).randbytes(2000))
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    listed = kbatch.StreamDecoder(isolation="read_committed", aborted=[(1, 10**9)])
    before = buffers.pool_stats().live_bytes
    peak, records, transactions = 0, 0, 600
    for i in range(transactions):
        producer = i % 5
        batch = oracle.build_batch([value], base_offset=2 * i, producer_id=producer, attributes=oracle.TRANSACTIONAL)
        parts = batch + marker(2 * i + 1, producer, ABORT if i % 3 else COMMIT)
        for chunk in bytewise(parts, 777):
            decoder.feed(chunk)
            records += len(decoder.flush())
            listed.feed(chunk)
            listed.flush()
        assert decoder.pending_bytes == 0
        peak = max(peak, buffers.pool_stats().live_bytes - before)
    assert records == transactions // 3
    assert peak < 1 << 20
    for each in (decoder, listed):
        front = each._front
        assert front is not None
        kept = (front._positions, front._producers, front._aborted, front._undecided, front._tracker._aborted.rows())
        assert sum(map(len, kept)) == 0
        assert [len(column) for column in front._tracker._markers] == [0, 0, 0]
        assert len(front._tracker._open._is_open) < 100


def overlapping_transactions(count: int, span: int) -> Iterator[bytes]:
    """Yield `count` transactional batches; each transaction ends after `span` more batches."""
    record = oracle.encode_record(value=bytes(500))
    offset = 0
    for i in range(count + span):
        if i < count:
            yield oracle.build_batch([record], base_offset=offset, producer_id=i, attributes=oracle.TRANSACTIONAL)
            offset += 1
        if i >= span:
            yield marker(offset, i - span, i % 2)
            offset += 1


def fed_and_flushed(chunks: Iterable[bytes]) -> tuple[float, int, int]:
    """Flush after each chunk; return the processor seconds, the records, and the maximum of pending bytes."""
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    records = peak = 0
    chunks = list(chunks)
    began = time.process_time()
    for chunk in chunks:
        decoder.feed(chunk)
        records += len(decoder.flush())
        peak = max(peak, decoder.pending_bytes)
    took = time.process_time() - began
    assert decoder.pending_bytes == 0
    return took, records, peak


def test_an_open_transaction_takes_linear_time() -> None:
    """The work of each of 10,000 flushes follows the new batch: withheld records are not examined again."""
    data_batches = [logs.data(i) for i in range(1, 10_001)]
    short, records, _ = fed_and_flushed([txn(0, 7), *data_batches[:1000], marker(1001, 7, COMMIT)])
    assert records == 1001
    took, records, peak = fed_and_flushed([txn(0, 7), *data_batches, marker(10_001, 7, COMMIT)])
    assert records == 10_001
    assert peak > 10_000 * 60
    assert took < 30 * short + 1


def operations(stream: bytes, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """Feed and flush in chunks of 1 KiB; return the number of lines of kbatch that run, and of ranges searched in."""
    count = 0
    make_ranges = AbortedRanges.__init__

    def counted_ranges(self: AbortedRanges, *columns: Any, **order: Any) -> None:
        nonlocal count
        count += len(columns[0])
        make_ranges(self, *columns, **order)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "/kbatch/" in frame.f_code.co_filename else None

    decoder = kbatch.StreamDecoder(on_error="skip", **COMMITTED, **options)
    with monkeypatch.context() as patched:
        patched.setattr(AbortedRanges, "__init__", counted_ranges)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for chunk in bytewise(stream, 1 << 10):
                decoder.feed(chunk)
                decoder.flush()
            decoder.finish()
        finally:
            sys.settrace(before)
    return count


def lost_markers(count: int) -> bytes:
    return b"".join(txn(2 * i, i) + logs.damaged(marker(2 * i + 1, i, ABORT)) for i in range(count))


def lost_stretches(count: int) -> bytes:
    return b"".join(txn(2 * i, i) + b"\xff" * 78 for i in range(count))


def aborted_behind_an_open_one(count: int) -> bytes:
    return txn(0, 1 << 20) + b"".join(txn(2 * i + 1, i) + marker(2 * i + 2, i, ABORT) for i in range(count))


def open_ones(count: int) -> bytes:
    return b"".join(txn(i, i) for i in range(count))


def overlapping(count: int, kind: int = ABORT) -> bytes:
    begun = b"".join(txn(i, i) for i in range(count))
    return begun + b"".join(marker(count + i, i, kind) for i in range(count))


def overlapping_lost(count: int) -> bytes:
    begun = b"".join(txn(i, i) for i in range(count))
    bad = (logs.damaged(marker(count + 2 * i, i, ABORT)) + logs.data(count + 2 * i + 1) for i in range(count))
    return begun + b"".join(bad)


def aborted_by_one_producer(count: int) -> bytes:
    """One producer's transactions, while those of others begin and end in turn."""
    return b"".join(
        txn(4 * i, i + 9)
        + txn(4 * i + 1, 7)
        + marker(4 * i + 2, 7, ABORT)
        + (marker(4 * i + 3, i - 1, ABORT) if i >= 10 else logs.data(4 * i + 3))
        for i in range(count)
    )


KINDS = [lost_markers, lost_stretches, aborted_behind_an_open_one, open_ones]
KINDS += [overlapping, overlapping_lost, aborted_by_one_producer]


@pytest.mark.parametrize("make", KINDS)
def test_transactions_in_small_chunks_take_linear_time(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush looks neither at open transactions, nor at ended ones that are released or still held back."""
    small, large = (operations(make(count), monkeypatch) for count in (100, 400))
    assert large <= 4.4 * small


@pytest.mark.parametrize("make", [aborted_behind_an_open_one, overlapping, aborted_by_one_producer])
def test_a_list_of_aborted_transactions_takes_linear_time(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(count: int) -> int:
        stream = make(count)
        aborted = [(row[0], row[1]) for row in aborted_in(stream)]
        assert len(aborted) >= count - 50
        return operations(stream, monkeypatch, aborted=aborted)

    small, large = (listed(count) for count in (100, 400))
    assert large <= 4.4 * small


def aborted_in(stream: bytes) -> list[tuple[int, int, int, int]]:
    return logs.fold(oracle.decode(stream).batches).aborted


def test_tables_keep_the_transactions_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table lists what was pending at its flush, also if it is asked later; together they share one history."""
    stream = b"".join(
        txn(2 * i, i) + (marker(2 * i + 1, i - 5, COMMIT) if i >= 5 else logs.data(2 * i + 1)) for i in range(300)
    )
    decoder = kbatch.StreamDecoder(on_error="skip", **COMMITTED)
    tables, expected = [], []
    fed = b""
    for chunk in bytewise(stream, 300):
        decoder.feed(chunk)
        fed += chunk
        tables.append(decoder.flush())
        # Batches from the beginning of the stream to the last complete one.
        still = logs.fold(oracle.decode(fed).batches).open
        expected.append([(producer, first) for producer, first, _ in still])
    assert [table.pending for table in tables] == expected
    assert len({len(each) for each in expected}) > 3


def test_transactions_with_lost_markers_are_pending_until_returned_and_at_the_end() -> None:
    decoder = kbatch.StreamDecoder(on_error="skip", **COMMITTED)
    listed = []
    for part in (txn(0, 7), logs.damaged(marker(1, 7, ABORT)), logs.data(2), logs.data(3)):
        decoder.feed(part)
        listed.append(decoder.flush().pending)
    assert listed == [[(7, 0)], [(7, 0)], [(7, 0)], []]
    assert decoder.finish().pending == [(7, 0)]


def test_continuously_overlapping_transactions_take_linear_time() -> None:
    """The withheld bytes are a sliding window: a flush must neither copy nor examine all of it."""
    before = buffers.pool_stats()
    took, records, peak = fed_and_flushed(overlapping_transactions(3000, 300))
    after = buffers.pool_stats()
    assert records == 1500
    assert 300 * 600 < peak < 330 * 800
    assert after.fresh + after.reused - before.fresh - before.reused < 60_000
    assert took < 60


def test_tables_keep_their_bytes_while_the_window_slides() -> None:
    """Withheld bytes stay in place after the bytes that tables point into; new bytes are written after both."""
    data = b"".join(overlapping_transactions(200, 20))
    decoder = kbatch.StreamDecoder(isolation="read_committed")
    tables = []
    for chunk in bytewise(data, 300):
        decoder.feed(bytearray(chunk))
        tables.append(decoder.flush())
    tables.append(decoder.finish())
    expected = kbatch.decode(data, isolation="read_committed")
    assert [record for table in tables for record in records_of(table)] == records_of(expected)
    assert len(expected) == 100
