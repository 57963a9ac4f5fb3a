"""The memory of transactions is bounded: of open ones, of ended ones, and of the list of a fetch response."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bombs import MIB, RECORD, measured

import kbatch
from kbatch import LimitExceededError, Limits
from kbatch.kernels.checksum import crc32c
from kbatch.transactions import EVENT_DTYPE, ListedAborts, TransactionRecorder, TransactionTracker
from kbatch.transactions.tracker import _ENDED_BYTES, _OPEN_BYTES

LIMIT = 24 * MIB
WINDOW = 8 * MIB

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def transactional(producer_id: int, offset: int) -> bytes:
    """A transactional batch of one record; `kbatch.encode` takes longer."""
    rest = struct.pack(">hiqqqhii", 16, 0, 1000, 1000, producer_id, 0, 0, 1) + RECORD
    return struct.pack(">qiibI", offset, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def abort(producer_id: int, offset: int) -> bytes:
    return bytes(kbatch.encode_marker("abort", offset=offset, producer_id=producer_id, producer_epoch=0))


def drained(directory: Path, **options: Any) -> int:
    return sum(len(table) for table in kbatch.Log(directory).tables(isolation="read_committed", **options))


def log_of(directory: Path, data: bytes) -> Path:
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(data)
    return directory


@linux
def test_open_transactions_count_towards_the_limit_of_a_table(tmp_path: Path) -> None:
    """A batch of 68 bytes opens a transaction, which takes hundreds of bytes as an object."""
    data = b"".join(transactional(number, number) for number in range(100_000))
    few = data[: len(data) // 50]
    log, limits = log_of(tmp_path / "t-0", data), Limits(max_table_bytes=LIMIT)
    drained(log_of(tmp_path / "few-0", few))
    routes: dict[str, Callable[[], int]] = {
        "decode": lambda: len(kbatch.decode(data, isolation="read_committed", limits=limits)),
        "Log.tables": lambda: drained(log, limits=limits, max_bytes=16 * MIB),
    }
    for name, call in routes.items():
        increase, result = measured(call)
        assert increase <= LIMIT * 13 // 10 + WINDOW, name
        assert isinstance(result, str), name
        assert "of them open, take more than " in result
        assert "bytes of memory; raise limits=kbatch.Limits(max_table_bytes=...)" in result
        assert (str(log) in result) == (name == "Log.tables")
    assert len(kbatch.decode(few, isolation="read_committed", limits=limits).pending) == 2000
    with pytest.raises(LimitExceededError, match="of them open, take more than"):
        list(kbatch.decode_stream([data], isolation="read_committed", limits=limits))


@linux
def test_ended_transactions_count_towards_the_limit_of_a_table(tmp_path: Path) -> None:
    data = b"".join(transactional(5, 2 * number) + abort(5, 2 * number + 1) for number in range(50_000))
    log = log_of(tmp_path / "t-0", data)
    drained(log_of(tmp_path / "few-0", data[:1000]))
    increase, result = measured(lambda: drained(log, limits=Limits(max_table_bytes=LIMIT), max_bytes=16 * MIB))
    assert increase <= LIMIT * 13 // 10 + WINDOW
    assert isinstance(result, str)
    assert f"0 of them open, take more than {LIMIT} bytes of memory" in result
    assert drained(log, limits=Limits(max_table_bytes=4 * LIMIT)) == 0


def test_transactions_that_take_exactly_the_limit_are_followed() -> None:
    count = 10_000
    events = np.zeros(count, EVENT_DTYPE)
    events["producer_id"] = events["offset"] = events["position"] = np.arange(count)
    events["kind"] = 2
    TransactionTracker(max_bytes=count * _OPEN_BYTES).replay(events)
    TransactionRecorder(max_bytes=count * (_OPEN_BYTES + _ENDED_BYTES)).replay(events)
    with pytest.raises(LimitExceededError, match="the transactions, 10,000 of them open"):
        TransactionTracker(max_bytes=count * _OPEN_BYTES - 1).replay(events)
    with pytest.raises(LimitExceededError, match="the transactions, 10,000 of them open"):
        TransactionRecorder(max_bytes=count * (_OPEN_BYTES + _ENDED_BYTES) - 1).replay(events)


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
