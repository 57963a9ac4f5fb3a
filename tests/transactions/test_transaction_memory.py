"""The memory of transactions is bounded: of open ones, of ended ones, and of the list of a fetch response."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import with_crc
from support.bombs import MIB, RECORD, measured

import kbatch
from kbatch import LimitExceededError, Limits
from kbatch.kernels.checksum import crc32c
from kbatch.log.committed import segment_transactions
from kbatch.read.decode_options import DecodeOptions
from kbatch.transactions import EVENT_DTYPE, ListedAborts, TransactionRecorder, TransactionTracker
from kbatch.transactions.opened import OPEN_BYTES, Begun, OpenedRows, OpenTransaction, OpenTransactions, ProducerIndex
from kbatch.transactions.recorder import EVENT_BYTES

LIMIT = 24 * MIB
WINDOW = 8 * MIB

COMMIT_RECORD = bytes.fromhex("2000000008000000010c00000000000000")

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def transactional(producer_id: int, offset: int) -> bytes:
    """A transactional batch of one record; `kbatch.encode` takes longer."""
    rest = struct.pack(">hiqqqhii", 16, 0, 1000, 1000, producer_id, 0, 0, 1) + RECORD
    return struct.pack(">qiibI", offset, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def abort(producer_id: int, offset: int) -> bytes:
    return bytes(kbatch.encode_marker("abort", offset=offset, producer_id=producer_id, producer_epoch=0))


def commit(producer_id: int, offset: int) -> bytes:
    """A marker with a key of a version, a type and no value; `kbatch.encode_marker` takes longer."""
    rest = struct.pack(">hiqqqhii", 48, 0, 1000, 1000, producer_id, 0, -1, 1) + COMMIT_RECORD
    return struct.pack(">qiibI", offset, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def drained(directory: Path, **options: Any) -> int:
    return sum(len(table) for table in kbatch.Log(directory).tables(isolation="read_committed", **options))


def log_of(directory: Path, data: bytes) -> Path:
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(data)
    return directory


@linux
def test_open_transactions_count_towards_the_limit_of_a_table(tmp_path: Path) -> None:
    """A batch of 68 bytes opens a transaction. A log has the limit `max_bytes` if it is given."""
    data = b"".join(transactional(number, number) for number in range(200_000))
    few = data[: len(data) // 100]
    log, limits = log_of(tmp_path / "t-0", data), Limits(max_table_bytes=LIMIT)
    drained(log_of(tmp_path / "few-0", few))
    table_bytes = "limits=kbatch.Limits(max_table_bytes=...)"
    routes: dict[str, tuple[Callable[[], int], int, str]] = {
        "decode": (lambda: len(kbatch.decode(data, isolation="read_committed", limits=limits)), LIMIT, table_bytes),
        "Log.tables of 24 MiB": (lambda: drained(log, limits=limits), LIMIT, table_bytes),
        "Log.tables of 16 MiB": (lambda: drained(log, max_bytes=16 * MIB), 16 * MIB, "max_bytes"),
    }
    for name, (call, limit, raises) in routes.items():
        increase, result = measured(call)
        assert increase <= limit * 13 // 10 + WINDOW, name
        assert isinstance(result, str), name
        assert "of them open, take more than " in result
        assert f"bytes of memory; raise {raises}, or read with" in result
        assert (f"{log}/" in result) == (f"more than {limit} bytes" in result) == name.startswith("Log.tables")
    increase, result = measured(lambda: drained(log, max_bytes=128 * MIB))
    assert (increase <= 128 * MIB * 13 // 10 + WINDOW, result) == (True, 0)
    assert len(kbatch.decode(few, isolation="read_committed", limits=limits).pending) == 2000
    with pytest.raises(LimitExceededError, match="of them open, take more than"):
        list(kbatch.decode_stream([data], isolation="read_committed", limits=limits))


@linux
def test_open_transactions_of_a_stream_stay_within_the_limit_of_a_table() -> None:
    data = b"".join(transactional(number, number) for number in range(200_000))
    limits = Limits(max_table_bytes=LIMIT)

    def streamed() -> int:
        chunks = (data[begin : begin + 65536] for begin in range(0, len(data), 65536))
        return sum(map(len, kbatch.decode_stream(chunks, isolation="read_committed", limits=limits)))

    list(kbatch.decode_stream([data[:68000]], isolation="read_committed", limits=limits))
    increase, result = measured(streamed)
    assert f"of them open, take more than {LIMIT} bytes of memory" in result
    assert increase <= LIMIT * 13 // 10 + WINDOW


def streamed(data: bytes, limits: Limits, chunk: int = 65536) -> int:
    """Decode a stream and drop its tables; return the number of batches."""
    count = 0
    chunks = (data[begin : begin + chunk] for begin in range(0, len(data), chunk))
    for table in kbatch.decode_stream(chunks, isolation="read_committed", limits=limits):
        count += len(table.batches)
        del table
    return count


@linux
def test_a_stream_that_ends_with_undecided_transactions_stays_within_the_limit() -> None:
    """Its last tables are smaller: the transactions take most of the limit."""
    count, limit = 200_000, 2 * LIMIT
    data = b"".join(transactional(number, number) for number in range(count))
    streamed(data[:68000], Limits(max_table_bytes=limit))
    increase, result = measured(lambda: streamed(data, Limits(max_table_bytes=limit)))
    assert result == count
    # The transactions keep the bytes of the stream back.
    assert increase <= limit * 13 // 10 + WINDOW + len(data) // 2


@linux
def test_ended_transactions_that_a_stream_keeps_count_towards_the_limit_of_a_table() -> None:
    """They are kept until the first open transaction is decided; an object for each producer would take a kilobyte."""
    count = 100_000
    pairs = (transactional(number, 2 * number + 1) + abort(number, 2 * number + 2) for number in range(count))
    data = transactional(1 << 40, 0) + b"".join(pairs) + abort(1 << 40, 2 * count + 1)
    streamed(transactional(1, 0), Limits(max_table_bytes=LIMIT))
    increase, result = measured(lambda: streamed(data, Limits(max_table_bytes=LIMIT)))
    assert result == 2 * count + 2
    assert increase <= LIMIT * 13 // 10 + WINDOW + len(data) // 2
    with pytest.raises(LimitExceededError, match="of them open, take more than 16777216 bytes"):
        streamed(data, Limits(max_table_bytes=16 * MIB))


def test_a_stream_with_too_many_transactions_returns_nothing_after_the_error() -> None:
    """The rest of the batches that it was following is not followed."""
    count = 5000
    data = b"".join(transactional(number, number) for number in range(count))
    data += b"".join(abort(number, count + number) for number in range(count))
    decoder = kbatch.StreamDecoder(isolation="read_committed", limits=Limits(max_table_bytes=512 << 10))
    decoder.feed(data)
    for call in (decoder.flush, decoder.flush, decoder.finish, decoder.flush):
        with pytest.raises(LimitExceededError, match="of them open, take more than 524288 bytes"):
            call()


@linux
def test_a_large_chunk_of_a_stream_is_followed_in_parts() -> None:
    """The headers of 200,000 batches would take 17 MiB."""
    data = b"".join(transactional(number, number) for number in range(200_000))
    limits = Limits(max_table_bytes=LIMIT)

    def streamed() -> int:
        return sum(map(len, kbatch.decode_stream([data], isolation="read_committed", limits=limits)))

    list(kbatch.decode_stream([data[:68000]], isolation="read_committed", limits=limits))
    increase, result = measured(streamed)
    assert f"of them open, take more than {LIMIT} bytes of memory" in result
    # The bytes that the caller passes at once are copied.
    assert increase <= LIMIT * 13 // 10 + WINDOW + len(data)


@linux
def test_transactions_whose_markers_are_lost_stay_within_the_limit_in_a_large_chunk() -> None:
    """Every second batch is a marker with a bad checksum, so that each transaction is undecided."""
    data = b"".join(
        transactional(number, 2 * number) + with_crc(commit(number, 2 * number + 1), 1) for number in range(165_000)
    )
    options: dict[str, Any] = {"isolation": "read_committed", "on_error": "skip"}
    limits = Limits(max_table_bytes=LIMIT)

    def streamed() -> int:
        return sum(len(table.losses) for table in kbatch.decode_stream([data], limits=limits, **options))

    list(kbatch.decode_stream([data[:68000]], limits=limits, **options))
    increase, result = measured(streamed)
    assert "open, take more than" in str(result)
    assert increase <= LIMIT * 13 // 10 + WINDOW + len(data)


@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
def test_a_chunk_of_a_stream_may_have_more_headers_than_a_table(on_error: Any) -> None:
    """The pass over the transactions refuses nothing that becomes several tables."""
    data = b"".join(bytes(kbatch.encode([b"v"], base_offset=number)) for number in range(4000))
    options = {"on_error": on_error, "limits": Limits(max_table_bytes=200_000)}
    tables = list(kbatch.decode_stream([data], isolation="read_committed", **options))
    assert [offset for table in tables for offset in table.records["offset"].tolist()] == list(range(4000))
    assert [loss for table in tables for loss in table.losses] == []


def test_open_transactions_of_a_log_writer_have_the_limit_of_a_table(tmp_path: Path) -> None:
    """An open one counts with 160 bytes; an error is raised again, because not all batches were followed."""
    count = MIB // OPEN_BYTES
    assert OPEN_BYTES <= 160
    data = b"".join(transactional(number, number) for number in range(count + 1))
    size = len(data) // (count + 1)
    limits = Limits(max_table_bytes=MIB)
    with kbatch.log.LogWriter(tmp_path / "t-0", limits=limits, sync=False) as writer:
        writer.append(data[: size * count])
        for batch in (data[size * count :], bytes(kbatch.encode([b"v"], base_offset=count + 1))):
            with pytest.raises(LimitExceededError, match=r"more than 1048576 bytes of memory; raise limits=kbatch.Lim"):
                writer.append(batch)
        assert (writer.next_offset, writer.bytes_written) == (count, size * count)
    assert len(kbatch.Log(tmp_path / "t-0").transactions().open) == count
    with kbatch.log.LogWriter(tmp_path / "u-0", limits=limits, follow_transactions=False, sync=False) as writer:
        writer.append(data)


@linux
def test_ended_transactions_count_towards_the_limit_of_a_table(tmp_path: Path) -> None:
    data = b"".join(transactional(5, 2 * number) + abort(5, 2 * number + 1) for number in range(100_000))
    log = log_of(tmp_path / "t-0", data)
    drained(log_of(tmp_path / "few-0", data[:1000]))
    increase, result = measured(lambda: drained(log, limits=Limits(max_table_bytes=LIMIT), max_bytes=16 * MIB))
    assert increase <= 16 * MIB * 13 // 10 + WINDOW
    assert isinstance(result, str)
    assert f"0 of them open, take more than {16 * MIB} bytes of memory; raise max_bytes" in result
    assert drained(log, limits=Limits(max_table_bytes=4 * LIMIT)) == 0


@linux
def test_committed_transactions_of_a_segment_take_no_memory(tmp_path: Path) -> None:
    """Each of 100,000 begins and ends within it: by one producer, and by as many of them."""
    count = 100_000
    pairs = (transactional(5, 2 * number) + commit(5, 2 * number + 1) for number in range(count))
    log = log_of(tmp_path / "t-0", b"".join(pairs))
    pairs = (transactional(number, 2 * number) + commit(number, 2 * number + 1) for number in range(count))
    many = log_of(tmp_path / "many-0", b"".join(pairs))

    def events(directory: Path, limit: int) -> int:
        options = DecodeOptions(limits=Limits(max_table_bytes=limit))
        return len(segment_transactions(kbatch.Log(directory).segments[0], None, options).events)

    assert events(log, MIB // 2) == 1
    increase, result = measured(lambda: events(log, 16 * MIB))
    assert (increase <= 8 * MIB, result) == (True, 1)
    assert (drained(log, max_bytes=16 * MIB), drained(many, max_bytes=16 * MIB)) == (count, count)
    with pytest.raises(LimitExceededError, match="take more than 524288 bytes"):
        events(many, MIB // 2)


def test_transactions_that_take_exactly_the_limit_are_followed() -> None:
    count = 10_000
    events = np.zeros(count, EVENT_DTYPE)
    events["producer_id"] = events["offset"] = events["position"] = np.arange(count)
    events["kind"] = 2
    TransactionTracker(max_bytes=count * OPEN_BYTES).replay(events)
    TransactionRecorder(max_bytes=count * (OPEN_BYTES + EVENT_BYTES)).replay(events)
    with pytest.raises(LimitExceededError, match="the transactions, 10,000 of them open"):
        TransactionTracker(max_bytes=count * OPEN_BYTES - 1).replay(events)
    with pytest.raises(LimitExceededError, match="the transactions, 10,000 of them open"):
        TransactionRecorder(max_bytes=count * (OPEN_BYTES + EVENT_BYTES) - 1).replay(events)


@linux
@pytest.mark.parametrize("followed", [TransactionTracker, TransactionRecorder])
def test_open_transactions_take_at_most_the_memory_that_is_counted(followed: type[TransactionTracker]) -> None:
    count = 300_000
    events = np.zeros(count, EVENT_DTYPE)
    events["producer_id"] = events["offset"] = events["position"] = np.arange(count) * 7919 % count
    events["kind"] = 2

    def call() -> int:
        tracker = followed()
        tracker.replay(events)
        kept = tracker.events if isinstance(tracker, TransactionRecorder) else tracker.result().open
        return len(kept) and tracker.used_bytes

    increase, used = measured(call)
    assert increase <= used
    assert used <= 256 * count


def test_an_index_of_producers_finds_what_a_dict_finds() -> None:
    """Also after it has sorted its producers, and for producers that were removed and added again."""
    random = np.random.default_rng(1)
    index, expected = ProducerIndex(), dict[int, int]()
    for step in range(12_000):
        producer = int(random.integers(6000)) - 3000
        assert index.find(producer) == expected.get(producer, -1)
        if producer in expected and step % 3:
            assert index.pop(producer) == expected.pop(producer)
        elif producer not in expected:
            assert index.pop(producer) == -1
            index.add(producer, step)
            expected[producer] = step
        assert len(index) == len(expected)
    ids, numbers = index.columns()
    assert dict(zip(ids.tolist(), numbers.tolist(), strict=True)) == expected


def test_rows_of_ended_transactions_are_forgotten() -> None:
    opened, still = OpenedRows(), dict[int, Begun]()
    random = np.random.default_rng(2)
    for step in range(8000):
        producer = int(random.integers(40))
        assert opened.get(producer) == still.get(producer)
        if producer in still:
            assert opened.end(producer) == still.pop(producer)
        else:
            still[producer] = Begun(step, step + 5, producer, -1)
            opened.begin(still[producer])
        assert opened.first() == min(still.values(), default=None)
        assert len(opened._is_open) <= 64 + 2 * 40
    assert opened.end(41) is None
    assert opened.rows().tolist() == [list(each) for each in sorted(still.values())]
    opened.clear()
    assert (len(opened), opened.first(), len(opened.rows())) == (0, None, 0)


def test_open_transactions_are_a_sequence_of_tuples() -> None:
    rows = [OpenTransaction(number, 10 * number, -1) for number in range(2500)]
    found = OpenTransactions.of(rows)
    assert found == rows
    assert list(found) == rows
    assert (found[1], found[-1], found[3:5]) == (rows[1], rows[-1], rows[3:5])
    assert pickle.loads(pickle.dumps(found)) == found
    assert (found == OpenTransactions.of(rows[1:]), found == rows[1:], found == tuple(rows)) == (False, False, False)
    assert (rows[7] in found, len(found.below(30)), repr(found.below(11))) == (True, 3, repr(rows[:2]))


@linux
def test_a_list_of_aborted_transactions_takes_no_object_for_each_entry() -> None:
    """Of a million entries, which all begin at the last batch."""
    count = 1_000_000
    data = transactional(1, 0) + transactional(2, 2 * count) + abort(2, 2 * count + 1)
    pairs = [(number, number) for number in range(count)]
    kbatch.decode(data, isolation="read_committed", aborted=pairs[:10])

    def streamed() -> int:
        decoder = kbatch.StreamDecoder(isolation="read_committed", aborted=pairs)
        decoder.feed(data)
        return len(decoder.finish())

    for call in (streamed, lambda: len(kbatch.decode(data, isolation="read_committed", aborted=pairs))):
        increase, result = measured(call)
        assert increase <= 250 * count
        assert result == 1


def test_listed_entries_begin_and_end_in_the_order_of_their_offsets() -> None:
    """Repeated entries, several of a producer, producers that are not listed, and entries that never begin."""
    data = b"".join([transactional(p, o) for p, o in [(7, 0), (8, 1), (7, 4), (9, 5)]])
    batches = kbatch.scan(data)
    position = batches["position"].tolist()
    listed = ListedAborts([(7, 4), (8, 1), (7, 0), (7, 0), (9, 100), (-1, 2)])
    assert listed.open_entries().tolist() == []
    markers = ([7, 6, 10, 8, 7], [position[1], position[1], position[1], position[2], position[3]])
    assert listed.follow(batches, markers).tolist() == [
        [7, position[0], position[1]],
        [7, position[0], position[1]],
        [8, position[1], position[2]],
        [7, position[2], position[3]],
    ]
    assert listed.open_entries().tolist() == [[-1, position[2], 2**63 - 1]]
    assert listed.open_entries({-1, 7, 3}).tolist() == [[-1, position[2], 2**63 - 1]]
    assert listed.open_entries(set()).tolist() == []
    assert ListedAborts([]).follow(batches, markers).tolist() == []
