"""Where the headers after damage lead by their lengths, and what a header in damage claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import build_batch, build_message, encode_record

import kbatch
from kbatch.format import BATCH_DTYPE, BATCH_HEADER_SIZE, MIN_ENTRY_SIZE
from kbatch.kernels.search import follow_lengths, last_claimed

BATCH = build_batch([encode_record(value=b"v")])
MESSAGE = build_message(b"k", b"v", magic=1, offset=1)
SHORTEST_MESSAGE = build_message(None, None, magic=0)
# The header chain leads over entries of all magics.
CHAIN = [BATCH, MESSAGE, build_batch([], base_offset=1), SHORTEST_MESSAGE, BATCH]
STARTS = [sum(map(len, CHAIN[:count])) for count in range(len(CHAIN) + 1)]


def followed(data: bytes, stop: int | None = None, *, origin: int = 100, max_size: int = 200) -> tuple[int, int, bool]:
    """Follow the header chain of `data`; the result is that of a source that begins with it."""
    window = np.frombuffer(bytes(3) + data, np.uint8)
    end = origin + 3 + (len(data) if stop is None else stop)
    last, position, holds, used = follow_lengths(window, origin, origin + 3, end, max_size)
    assert used == 0
    return (-1 if last == -1 else last - origin - 3), position - origin - 3, holds


def test_the_header_chain_leads_up_to_a_stop() -> None:
    """Over the entry that begins before it. Nothing is read after the stop."""
    data = b"".join(CHAIN)
    for origin in (0, 100):
        for stop in range(len(data) + 1):
            count = sum(start < stop for start in STARTS)
            expected = (STARTS[count - 1] if count else -1, STARTS[count] if count else 0, True)
            assert followed(data, stop, origin=origin) == expected
    assert followed(data + b"\xff" * 50, len(data)) == (STARTS[-2], len(data), True)


@pytest.mark.parametrize("first", CHAIN[:4], ids=["batch", "message", "empty batch", "shortest message"])
def test_the_header_chain_needs_the_first_17_bytes_of_an_entry(first: bytes) -> None:
    for cut in range(len(first)):
        length = (0, len(first), True) if cut >= MIN_ENTRY_SIZE else (-1, 0, True)
        assert followed(first[:cut], 1000) == length
    # An impossible length shows before the rest of the header.
    assert followed(first[:8] + bytes(4), 1000) == (-1, 0, False)
    assert followed(first[:8] + bytes(3), 1000) == (-1, 0, True)


@pytest.mark.parametrize(
    ("magic", "length", "is_possible"),
    [
        (0, 13, False),
        (0, 14, True),
        (1, 21, False),
        (1, 22, True),
        (2, 48, False),
        (2, 49, True),
        (2, 200 - 12, True),
        (2, 200 - 11, False),
        (0, -1, False),
        (3, 100, False),
        (127, 100, False),
        (255, 100, False),
    ],
)
def test_the_header_chain_ends_at_a_header_that_no_entry_has(magic: int, length: int, is_possible: bool) -> None:
    """Its length is that of the magic at least, and at most the limit."""
    header = bytes(8) + length.to_bytes(4, "big", signed=True) + bytes(4) + bytes([magic])
    expected = (len(BATCH), len(BATCH) + 12 + length, True) if is_possible else (0, len(BATCH), False)
    assert followed(BATCH + header, 1000) == expected


def test_the_header_chain_has_rows_of_batches_with_a_whole_header() -> None:
    """Messages have none. It ends when the array is full, and at a batch whose header is cut."""
    data = b"".join(CHAIN)
    batches = kbatch.scan(data)
    is_batch = batches["magic"] == 2
    for capacity in range(5):
        for begin in range(capacity + 1):
            headers = np.zeros(capacity, BATCH_DTYPE)
            found = follow_lengths(np.frombuffer(data, np.uint8), 0, 0, len(data), 200, headers, begin)
            count = min(3, capacity - begin)
            assert headers[begin : found.used].tolist() == batches[is_batch][:count].tolist()
            assert found.used == begin + count
            full = np.flatnonzero(is_batch)[count:][:1].tolist()
            assert found.position == (STARTS[full[0]] if full else len(data))
    headers = np.zeros(4, BATCH_DTYPE)
    for size in range(len(BATCH)):
        found = follow_lengths(np.frombuffer(BATCH[:size], np.uint8), 0, 0, 1000, 200, headers, 0)
        is_whole = size >= BATCH_HEADER_SIZE
        assert (found.used, found.position, found.holds) == (int(is_whole), len(BATCH) if is_whole else 0, True)
    moved = follow_lengths(np.frombuffer(bytes(3) + data, np.uint8), 100, 103, 103 + len(data), 200, headers, 0)
    assert headers[: moved.used]["position"].tolist() == (batches["position"][is_batch] + 103).tolist()
    assert headers[: moved.used]["size"].tolist() == batches["size"][is_batch].tolist()


@pytest.mark.parametrize(("origin", "used"), [(1, 0), (0, -1), (0, 3)])
def test_the_header_chain_begins_inside_of_the_window_and_of_the_rows(origin: int, used: int) -> None:
    headers = np.zeros(2, BATCH_DTYPE)
    data = np.frombuffer(BATCH, np.uint8)
    assert follow_lengths(data, 0, 0, len(data), 200, headers, 1).used == 2
    assert follow_lengths(data, 0, 0, len(data), 200, headers, 2).used == 2
    with pytest.raises(IndexError, match="out of range"):
        follow_lengths(data, origin, 0, len(data), 200, headers, used)


# -- batches that damage may hide until a file has all of them


def claimed(data: bytes, start: int = 0, stop: int | None = None, *, origin: int = 100, base_offset: int = 0) -> int:
    """Return the greatest end that a header in the damage `data` claims, as a position in it; 0 without one."""
    window = np.frombuffer(bytes(3) + data, np.uint8)
    first = origin + 3
    end = first + (len(data) if stop is None else stop)
    limits: dict[str, Any] = {"max_size": 10_000, "max_records": 10_000, "base_offset": base_offset}
    found = last_claimed(window, origin, first + start, end, **limits)
    return found - first if found else 0


@pytest.mark.parametrize("origin", [0, 100])
def test_a_header_in_damage_claims_the_bytes_up_to_its_end(origin: int) -> None:
    """If all of it is known, and it begins in the damage. The end of the last one need not be the greatest."""
    junk = b"\xff" * 30
    long = build_batch([encode_record(value=bytes(5000))])[:BATCH_HEADER_SIZE]
    size = len(build_batch([encode_record(value=bytes(5000))]))
    assert claimed(junk + BATCH + junk, origin=origin) == 30 + len(BATCH)
    assert claimed(junk + long, origin=origin) == 30 + size
    assert claimed(junk + long[:-1], origin=origin) == 0
    assert claimed(junk + long + junk + BATCH, origin=origin) == 30 + size
    assert claimed(junk + BATCH + junk + long, origin=origin) == 60 + len(BATCH) + size
    assert claimed(BATCH + long, origin=origin) == len(BATCH) + size
    assert claimed(junk, origin=origin) == 0
    for start, stop, is_inside in ((0, 30, False), (0, 31, True), (30, 31, True), (31, 200, False)):
        assert claimed(junk + long + junk, start, stop, origin=origin) == (30 + size) * is_inside


@pytest.mark.parametrize(
    ("fields", "is_written"),
    [
        ({}, True),
        ({"base_offset": 6}, False),
        ({"base_offset": 7 + 2**31}, True),
        ({"base_offset": 8 + 2**31}, False),
        ({"base_offset": -1}, False),
        ({"attributes": 0x78}, True),
        ({"attributes": 0x80}, False),
        ({"attributes": 0x7FF8}, False),
        ({"attributes": -0x8000}, False),
        ({"last_offset_delta": 1}, True),
        ({"last_offset_delta": 0}, False),
        ({"last_offset_delta": 2, "record_count": 0}, True),
        ({"last_offset_delta": 0, "record_count": 0}, True),
        ({"last_offset_delta": -1, "record_count": 0}, False),
        ({"last_offset_delta": 2**31 - 1}, True),
    ],
)
def test_a_header_in_damage_claims_bytes_only_if_a_writer_may_have_made_it(
    fields: dict[str, int], is_written: bool
) -> None:
    """With an offset of its segment, known attributes, and as many records as its offsets allow."""
    batch = build_batch([encode_record(), encode_record(1)], **({"base_offset": 7} | fields))  # type: ignore[arg-type]
    assert claimed(b"\xff" * 30 + batch, base_offset=7) == (30 + len(batch)) * is_written


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_in_damage_claims_no_bytes(magic: int) -> None:
    """Its short header has no fields that show whether a writer made it; it belongs to no transaction."""
    message = build_message(b"k", bytes(200), magic=magic, offset=7)
    assert claimed(b"\xff" * 30 + message) == 0


def test_the_search_for_claimed_bytes_begins_inside_of_the_window() -> None:
    limits: dict[str, Any] = {"max_size": 1000, "max_records": 1000, "base_offset": 0}
    data = np.frombuffer(BATCH, np.uint8)
    assert last_claimed(data, 5, 5, 6, **limits) == 5 + len(BATCH)
    with pytest.raises(IndexError, match="before the window"):
        last_claimed(data, 5, 4, 6, **limits)


def test_the_header_chain_has_rows_only_for_an_array() -> None:
    data = np.frombuffer(BATCH, np.uint8)
    assert follow_lengths(data, 0, 0, len(data), 1000) == (0, len(data), True, 0)
    with pytest.raises(IndexError, match="out of range"):
        follow_lengths(data, 0, 0, len(data), 1000, None, 1)
