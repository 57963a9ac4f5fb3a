"""Uncompressed messages of magic 0 and 1, which are checked and parsed in runs of 32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tables import decode_by_threads, first_table

import kbatch
from kbatch.batches.framing import byte_array
from kbatch.format import BATCH_DTYPE, RECORD_DTYPE
from kbatch.kernels import checksum
from kbatch.read.decode_options import DecodeOptions

COUNT = 100
# The first and last message of a run, and their neighbours.
PLACES = [0, 1, 30, 31, 32, 33, 63, 64, 98, 99]
with_threads = pytest.mark.parametrize("threads", [1, 2], ids=["one thread", "two threads"])


def values(count: int = COUNT) -> list[bytes | None]:
    return [None if i % 17 == 3 else bytes([i % 256]) * (i * 7 % 90) for i in range(count)]


def encoded(magic: int, given: list[bytes | None] | None = None) -> bytes:
    fields: dict[str, Any] = {"timestamps": list(range(1000, 1000 + COUNT))} if magic else {}
    given = values() if given is None else given
    return kbatch.encode(given, keys=[None if i % 5 else b"k" * (i % 30) for i in range(len(given))],
                         magic=magic, **fields)  # fmt: skip


@with_threads
@pytest.mark.parametrize("magic", [0, 1])
def test_all_messages_of_a_run_are_read(magic: int, threads: int) -> None:
    """LEG-R6: every message and its value is returned, also with fewer columns or offset bounds."""
    data = encoded(magic)
    table = decode_by_threads(data, threads=threads)
    assert table.values() == values()
    assert table.records["offset"].tolist() == list(range(COUNT))
    assert table.records["timestamp"].tolist() == ([*range(1000, 1100)] if magic else [-1] * COUNT)
    assert table.records["batch"].tolist() == table.batches["first_record"].tolist() == list(range(COUNT))
    narrow = decode_by_threads(data, columns=["offset", "value"], threads=threads)
    assert narrow.values() == values()
    assert narrow.records["offset"].tolist() == list(range(COUNT))
    ranged = decode_by_threads(data, start_offset=31, stop_offset=71, threads=threads)
    assert ranged.values() == values()[31:71]


@with_threads
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_bad_checksum_loses_only_its_message(magic: int, place: int, threads: int) -> None:
    """CRC-R7: the error has the position of the message, anywhere in the run."""
    data = bytearray(encoded(magic))
    rows = kbatch.scan(bytes(data))
    at = int(rows["position"][place])
    data[at + 12] ^= 1
    with pytest.raises(kbatch.CrcMismatchError) as error:
        decode_by_threads(data, threads=threads)
    assert (error.value.position, error.value.base_offset) == (at, place)
    left = [*range(place), *range(place + 1, COUNT)]
    table = decode_by_threads(data, on_error="skip", threads=threads)
    assert table.records["offset"].tolist() == left
    assert [(loss.position, loss.length) for loss in table.losses] == [(at, int(rows["size"][place]))]
    assert len(decode_by_threads(data, crc="skip", threads=threads)) == COUNT


@with_threads
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_length_above_the_size_of_its_message_is_invalid(magic: int, place: int, threads: int) -> None:
    """LEG-R6: the length of a key or a value, in a message with a valid checksum, anywhere in the run."""
    given = [b"v" * 20] * COUNT
    for field in ("key", "value"):
        data = bytearray(encoded(magic, given))
        row = kbatch.scan(bytes(data))[place]
        start, size = int(row["position"]), int(row["size"])
        at = start + (26 if magic else 18)
        if field == "value":
            at = start + size - 24
        data[at : at + 4] = (1000).to_bytes(4, "big")
        data[start + 12 : start + 16] = checksum.crc32(data[start + 16 : start + size]).to_bytes(4, "big")
        with pytest.raises(kbatch.InvalidRecordError) as error:
            decode_by_threads(data, threads=threads)
        assert error.value.position == start
        table = decode_by_threads(data, on_error="skip", threads=threads)
        assert table.records["offset"].tolist() == [*range(place), *range(place + 1, COUNT)]


def test_tables_end_with_the_message_that_reaches_their_size() -> None:
    """The message may be anywhere in a run."""
    data = byte_array(encoded(1))
    ends = np.cumsum(kbatch.scan(data)["size"])
    costs = ends + np.arange(1, COUNT + 1) * (RECORD_DTYPE.itemsize + BATCH_DTYPE.itemsize)
    for max_bytes in [1, *(int(cost) + step for cost in costs for step in (0, 1))]:
        last = min(int(np.searchsorted(costs, max_bytes)), COUNT - 1)
        for threads in (1, 2):
            made = first_table(data, DecodeOptions(threads=threads, thread_bytes=1), max_bytes)
            assert (made.consumed, len(made)) == (ends[last], last + 1), (max_bytes, threads)


@with_threads
def test_runs_of_messages_may_be_between_batches_and_wrappers(threads: int) -> None:
    """FRM-R13: magics and codecs change within a log."""
    parts, expected = [], []
    for i, (magic, codec) in enumerate([(1, "none"), (2, "none"), (0, "none"), (1, "lz4"), (1, "none")] * 3):
        given = [b"%d" % i] * (i * 9 + 1)
        parts.append(kbatch.encode(given, magic=magic, codec=codec, **({"timestamps": i} if magic else {})))
        expected += given
    assert decode_by_threads(b"".join(parts), threads=threads).values() == expected
    uncompressed = [part for i, part in enumerate(parts) if i % 5 != 3]
    assert decode_by_threads(b"".join(uncompressed), threads=threads).values() == [
        value for i in range(15) if i % 5 != 3 for value in [b"%d" % i] * (i * 9 + 1)
    ]
