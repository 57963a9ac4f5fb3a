"""A stream of transactions: which batches are withheld at each flush, wherever they are in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import build_message
from tables import offsets_of
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn

import kbatch
from kbatch import Limits
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.stable import StableFront
from kbatch.read.windows import BufferWindows
from kbatch.transactions.opened import OPEN_BYTES

COMMITTED: dict[str, Any] = {"isolation": "read_committed"}


def flushed(decoder: kbatch.StreamDecoder, parts: list[bytes]) -> list[list[int]]:
    """Return the offsets of each flush after a part."""
    offsets = []
    for part in parts:
        decoder.feed(part)
        offsets.append(offsets_of(decoder.flush()))
    return offsets


@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_an_aborted_batch_is_withheld_where_a_later_transaction_is_open_txn_r8(before: int) -> None:
    """Also as the first batch of the stream, or the only one that can be decoded."""
    first = [data(offset) for offset in range(before)]
    at = before
    decoder = kbatch.StreamDecoder(**COMMITTED)
    assert flushed(decoder, first) == [[offset] for offset in range(before)]
    parts = [txn(at, 7) + txn(at + 1, 8) + marker(at + 2, 7, ABORT), data(at + 3), marker(at + 4, 8, COMMIT)]
    assert flushed(decoder, parts) == [[], [], [at + 1, at + 3]]


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_listed_transaction_is_withheld_from_its_first_batch_on_txn_r8(before: int) -> None:
    decoder = kbatch.StreamDecoder(**COMMITTED, aborted=[(7, before), (8, before + 1)])
    parts = [txn(before, 7), txn(before + 1, 8), data(before + 2), marker(before + 3, 8, ABORT), txn(before + 4, 8)]
    assert flushed(decoder, [data(offset) for offset in range(before)]) == [[offset] for offset in range(before)]
    assert flushed(decoder, parts) == [[], [], [before + 2], [], [before + 4]]


def log_of(seed: int, *, damage: bool) -> list[bytes]:
    """Return batches of three producers and their markers; some are damaged."""
    random = np.random.default_rng(seed)
    parts, offset = [], 0
    for _ in range(40):
        producer = int(random.integers(7, 10))
        kind = int(random.integers(5))
        part = marker(offset, producer, kind) if kind < 2 else txn(offset, producer) if kind < 4 else data(offset)
        parts.append(damaged(part) if damage and random.integers(8) == 0 else part)
        offset += 1 + int(random.integers(8) == 0)
    return parts


def assert_equal(tables: list[kbatch.RecordTable], whole: kbatch.RecordTable) -> None:
    columns = ["base_offset", "status"]
    rows = [row for table in tables for row in table.batches[columns].tolist()]
    assert rows == whole.batches[columns].tolist()
    assert [offset for table in tables for offset in offsets_of(table)] == offsets_of(whole)
    assert [loss for table in tables for loss in table.losses] == whole.losses
    assert tables[-1].last_stable_offset == whole.last_stable_offset


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("on_error", ["raise", "skip", "stop"])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_flushes_return_what_one_decode_returns(every: int, on_error: Any, seed: int) -> None:
    parts = log_of(seed, damage=on_error != "raise")
    decoder = kbatch.StreamDecoder(**COMMITTED, on_error=on_error)
    tables = []
    for number, part in enumerate(parts, start=1):
        decoder.feed(part)
        if number % every == 0:
            tables.append(decoder.flush())
    tables.append(decoder.finish())
    whole = kbatch.decode(b"".join(parts), **COMMITTED, on_error=on_error)
    assert_equal(tables, whole)
    assert tables[-1].pending == whole.pending


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("on_error", ["raise", "skip", "stop"])
def test_small_tables_of_a_stream_return_what_one_decode_returns(on_error: Any, seed: int) -> None:
    """Several tables are decoded from the same bytes. Each has the transactions that are undecided from it on."""
    data = b"".join(log_of(seed, damage=on_error != "raise"))
    options = COMMITTED | {"on_error": on_error}
    # With "stop", the bytes that follow the damage by then are lost.
    for chunks in [[data]] if on_error == "stop" else [[data], [data[:900], data[900:]]]:
        tables = list(kbatch.decode_stream(chunks, **options, max_bytes=400))
        whole = kbatch.decode(data, **options)
        assert len(tables) > 1
        assert_equal(tables, whole)
        assert {pair for table in tables for pair in table.pending} >= set(whole.pending)
        assert set(tables[-1].pending) <= set(whole.pending)


@pytest.mark.parametrize("seed", range(3))
def test_a_flush_reports_the_transactions_that_a_decode_of_the_same_batches_reports(seed: int) -> None:
    parts = log_of(seed, damage=False)
    decoder = kbatch.StreamDecoder(**COMMITTED)
    for number, part in enumerate(parts, start=1):
        decoder.feed(part)
        table, whole = decoder.flush(), kbatch.decode(b"".join(parts[:number]), **COMMITTED)
        assert (table.pending, table.last_stable_offset) == (whole.pending, whole.last_stable_offset)


def test_transactions_whose_markers_are_lost_are_pending_at_the_end_dsk_r1() -> None:
    """By offset, with those that are still open."""
    decoder = kbatch.StreamDecoder(**COMMITTED, on_error="skip")
    lost = damaged(marker(4, 7, ABORT))
    decoder.feed(txn(0, 7) + txn(1, 8) + txn(2, 9) + data(3) + lost + data(5))
    table = decoder.flush()
    assert offsets_of(table) == []
    assert table.pending == [(7, 0), (8, 1), (9, 2)]
    decoder.feed(marker(6, 9, ABORT) + txn(7, 6))
    table = decoder.finish()
    assert offsets_of(table) == []
    assert table.pending == [(7, 0), (8, 1), (6, 7)]
    assert table.last_stable_offset == 1


def test_transactions_that_may_have_ended_in_lost_bytes_are_pending_until_they_are_returned_dsk_r1() -> None:
    """All that were open there, and not only those of a producer in the damage."""
    decoder = kbatch.StreamDecoder(**COMMITTED, on_error="skip")
    parts = [txn(0, 7) + txn(1, 8) + b"\xff" * 40 + data(3), data(4) + txn(5, 7), marker(6, 7, COMMIT)]
    tables = []
    for part in parts:
        decoder.feed(part)
        tables.append(decoder.flush())
    tables.append(decoder.finish())
    assert [offsets_of(table) for table in tables] == [[3], [4], [5], []]
    assert [table.pending for table in tables] == [[(7, 0), (8, 1)], [(7, 5)], [], [(7, 0), (8, 1)]]
    assert [table.last_stable_offset for table in tables] == [None, 5, None, None]


@pytest.mark.parametrize("cut", [17, 61, 70])
def test_lost_bytes_end_no_transaction_before_the_next_batch_is_known_dsk_r1(cut: int) -> None:
    """A flush between the lost marker and the end of that batch does not change what the marker may have ended."""
    following = data(3)
    parts = [txn(0, 7) + txn(1, 8) + damaged(marker(2, 9, ABORT)) + following[:cut], following[cut:] + data(4)]
    decoder = kbatch.StreamDecoder(**COMMITTED, on_error="skip")
    assert flushed(decoder, parts) == [[], [3, 4]]
    assert decoder.finish().pending == [(7, 0), (8, 1)]


def test_bytes_that_are_lost_without_a_next_batch_end_no_transaction_before_it_is_known_dsk_r1() -> None:
    """The fields of a message show where it ends, although its length is wrong."""
    message = build_message(b"k", bytes(40), magic=1, offset=2, length=10)
    parts = [txn(0, 7) + txn(1, 8) + message, data(3), data(4)]
    decoder = kbatch.StreamDecoder(**COMMITTED, on_error="skip")
    assert flushed(decoder, parts) == [[], [3], [4]]
    assert decoder.finish().pending == [(7, 0), (8, 1)]


@pytest.mark.parametrize("on_error", ["skip", "stop"])
def test_a_marker_that_is_lost_at_the_end_may_have_ended_its_transaction(on_error: Any) -> None:
    stream = txn(0, 7) + data(1) + damaged(marker(2, 7, ABORT))
    tables = list(kbatch.decode_stream([stream], **COMMITTED, on_error=on_error))
    whole = kbatch.decode(stream, **COMMITTED, on_error=on_error)
    assert [offset for table in tables for offset in offsets_of(table)] == offsets_of(whole) == [1]
    assert [(table.pending, table.last_stable_offset) for table in [tables[0], whole]] == [([(7, 0)], None)] * 2


@pytest.mark.parametrize("on_error", ["skip", "stop"])
def test_damage_decides_nothing_where_a_list_decides_txn_r8(on_error: Any) -> None:
    decoder = kbatch.StreamDecoder(**COMMITTED, on_error=on_error, aborted=[(8, 1)])
    parts = [txn(0, 7) + txn(1, 8) + damaged(data(2)), txn(3, 7)]
    found = flushed(decoder, parts)
    assert [*found, offsets_of(decoder.finish())] == ([[0], [3], []] if on_error == "skip" else [[0], [], []])


# -- the memory of the transactions


def followed(parts: list[bytes], limit: int | None = None) -> StableFront:
    """Return the front of a stream after these batches."""
    options = DecodeOptions(on_error="skip", isolation="read_committed", limits=Limits(max_table_bytes=limit))
    front = StableFront(options)
    front.follow(BufferWindows(np.frombuffer(b"".join(parts), np.uint8)))
    return front


def test_an_open_transaction_of_a_stream_counts_with_its_batch_and_its_row_of_the_history() -> None:
    """The batch takes two numbers, the row of the history three, and the index two or more."""
    count = 100
    used = followed([txn(each, each) for each in range(count)])._tracker.used_bytes
    assert (2 + 3 + 2) * 8 * count <= used - OPEN_BYTES * count <= 100 * count


def test_transactions_whose_markers_are_lost_take_few_bytes_after_they_are_returned() -> None:
    """Each takes two numbers, which are copied at the end of the stream."""
    count = 200
    parts = [txn(2 * each, each) + damaged(marker(2 * each + 1, each, COMMIT)) for each in range(count)]
    front = followed([*parts, data(2 * count)])
    front.release(front.reader.position)
    front.follow(BufferWindows(np.empty(0, np.uint8)))
    assert 2 * 16 * count <= front._tracker.used_bytes <= 2 * 18 * count


def test_a_table_has_the_memory_that_transactions_above_a_quarter_of_the_limit_leave() -> None:
    parts = [txn(each, each) for each in range(100)]
    used = followed(parts)._tracker.used_bytes
    assert used > 0
    for limit, expected in ((4 * used, 4 * used), (4 * used - 4, 4 * used - 5), (2 * used, 2 * used - used // 2)):
        front = followed(parts, limit)
        assert front.table_bytes(1 << 30) == expected
        assert front.table_bytes(100) == 100
