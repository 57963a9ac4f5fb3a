"""The framing of batches at its bounds: sizes, limits, positions, numbers of batches, and kinds of wrong files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from oracle import build_batch, build_message, encode_record, three

import kbatch
from kbatch.batches.framing import (
    FRAMING_MIN_ROWS,
    entry_size,
    frame_batches,
    look_of,
    max_entry_size,
    plausible_size,
    put_values,
    scan_complete,
    scan_part,
)
from kbatch.batches.pooled import PooledRows
from kbatch.errors import Fault
from kbatch.format import BATCH_DTYPE, LOG_OVERHEAD, Limits
from kbatch.kernels import scan as kernel

MIB = 1 << 20
# The header chain of batches of different sizes.
MIXED = [three(10), build_message(b"k", b"v" * 20, offset=13), build_batch(base_offset=14), three(15), three(18)]


def array_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(("magic", "smallest"), [(0, 26), (1, 34), (2, 61)])
def test_the_smallest_entry_of_each_magic_frm_r5(magic: int, smallest: int) -> None:
    def entry(size: int) -> np.ndarray:
        return array_of(bytes(8) + (size - LOG_OVERHEAD).to_bytes(4, "big") + bytes(4) + bytes([magic]))

    assert plausible_size(entry(smallest), 0) == smallest
    assert plausible_size(entry(smallest - 1), 0) is None


def test_the_length_field_is_signed_frm_r2() -> None:
    assert entry_size(array_of(bytes(8) + b"\xff" * 4), 0) == LOG_OVERHEAD - 1
    assert entry_size(array_of(b"x" + bytes(8) + b"\0\0\0\x05"), 1) == LOG_OVERHEAD + 5


def test_all_batches_of_a_buffer_are_framed() -> None:
    """Also more batches than rows are reserved for at first, and exactly as many."""
    one = build_batch()
    capacity = PooledRows(BATCH_DTYPE)
    capacity.reserve(FRAMING_MIN_ROWS)
    for count in (len(capacity.array) - 1, len(capacity.array), len(capacity.array) + 1, 5 * len(capacity.array)):
        batches = kbatch.scan(one * count)
        assert np.array_equal(batches["position"], np.arange(count) * len(one))


def test_a_batch_of_the_maximum_size_is_framed_frm_r6() -> None:
    small, large = three(), build_batch([encode_record(value=b"x" * 100)], base_offset=3)
    data = array_of(small + large + small)
    found = scan_part(data, max_size=len(large))
    assert (len(found.batches), found.consumed, found.finding) == (3, len(data), None)
    found = scan_part(data, max_size=len(large) - 1)
    assert (len(found.batches), found.consumed) == (1, len(small))
    assert found.finding is not None
    assert (found.finding.fault, found.finding.found) == (Fault.BATCH_TOO_LARGE, len(large))
    # The length alone decides, also if the bytes are missing.
    found = scan_part(data[: len(small) + 20], max_size=len(large) - 1)
    assert found.finding is not None
    assert found.finding.fault == Fault.BATCH_TOO_LARGE


def test_rows_are_appended_with_positions_in_the_source() -> None:
    """The rows of earlier batches stay, also if a batch exceeds the limit; positions count from the origin."""
    small, large = three(), build_batch([encode_record(value=b"x" * 100)], base_offset=3)
    data = array_of(small + small + large)
    rows = PooledRows(BATCH_DTYPE)
    assert frame_batches(data, rows, origin=1000, position=0, max_batches=1) == (len(small), None)
    end, finding = frame_batches(data, rows, origin=1000, position=len(small), max_size=len(large) - 1)
    assert end == 2 * len(small)
    assert finding is not None
    assert rows.filled()["position"].tolist() == [1000, 1000 + len(small)]


def test_complete_batches_are_required() -> None:
    data = array_of(three() + three(3))
    assert scan_complete(data)["base_offset"].tolist() == [0, 3]
    with pytest.raises(kbatch.TruncatedBatchError, match="byte 88: the batch is incomplete, 87 bytes remain"):
        scan_complete(data[:-1])
    with pytest.raises(kbatch.CorruptBatchError) as caught:
        scan_complete(array_of(three() + bytes(100)))
    assert caught.value.position == 88


def test_values_are_stored_at_positions() -> None:
    out = np.zeros(10, np.uint8)
    put_values(out, np.array([1, 6]), np.array([0x0102, 0x0304]), ">i4")
    assert out.tolist() == [0, 0, 0, 1, 2, 0, 0, 0, 3, 4]


@pytest.mark.parametrize("text", [b"plain text, and more", b"<xml version='1.0'>...", "für alle Fälle".encode()])
def test_an_error_about_another_kind_of_file_is_at_byte_0(text: bytes) -> None:
    for call in (kbatch.decode, kbatch.scan):
        with pytest.raises(kbatch.KbatchError, match="not a Kafka log: the bytes look like text") as caught:
            call(text * 10)
        assert caught.value.position == 0


@pytest.mark.parametrize(
    ("first", "look"),
    [
        (b"abcdefghijkl", "text"),
        # The last character may be cut: up to three of its four bytes are there.
        (b"abcdefghi\xf0\x9f\x98", "text"),
        (b"abcdefgh\xff\x9f\x98\x98", None),
        (b"abcdefg\xf0\x9f\x98\x98a", "text"),
        (b"[1, 2, 3]   ", "JSON"),
        (b'{"a": 1}    ', "JSON"),
        (b"\x7fELF\2\1\1\0\0\0\0\0", "an ELF file"),
        (b"\0bcdefghijkl", None),
        (b"", None),
    ],
)
def test_text_is_recognized_by_its_first_bytes(first: bytes, look: str | None) -> None:
    assert look_of(first) == look


def test_the_largest_stored_batch_has_a_default() -> None:
    """It is the limit on decompressed bytes, and at least 64 MiB."""
    assert max_entry_size(Limits(max_decompressed_bytes=1)) == 64 * MIB
    assert max_entry_size(Limits(max_decompressed_bytes=65 * MIB)) == 65 * MIB
    assert max_entry_size(Limits(max_decompressed_bytes=65 * MIB, max_batch_bytes=100)) == 100


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_the_headers_of_a_file_are_those_of_its_bytes(capacity: int, tmp_path: Path) -> None:
    """Headers are read in blocks; large batches are skipped."""
    large = build_batch([encode_record(value=bytes(100_000))], base_offset=21)
    # The first byte of a block matters too: offsets that need all eight bytes.
    far = [build_batch(base_offset=number << 56) for number in (1, 0x7F, 0x10)]
    data = b"".join([*far, *MIXED, large, *far, *MIXED, large, three(30)]) * 3
    path = tmp_path / "segment"
    path.write_bytes(data)
    expected = kbatch.scan(data)
    rows, position, found = np.zeros(capacity, BATCH_DTYPE), 0, []
    file = os.open(path, os.O_RDONLY)
    try:
        while position < len(data):
            scanned, read, error = kernel.scan_file(file, rows, position, len(data))
            assert (scanned[2], error) == (0, 0)
            assert read > 0
            position = scanned[1]
            found.append(rows[: scanned[0]].copy())
        assert np.array_equal(np.concatenate(found), expected)
        assert kernel.scan_file(file, rows, len(data), len(data) + 100)[2] == -1
    finally:
        os.close(file)


def test_record_counts_are_bounded_by_the_bytes_cnt_r7() -> None:
    """An uncompressed record takes at least seven bytes after the header of 61."""
    batches = kbatch.scan(three() + build_message(b"k", b"v")).copy()
    batches["record_count"][0] = 1000
    assert kernel.survey(batches, False) == ((88 - 61) // 7 + 1, 0)
    batches["record_count"][0] = 3
    assert kernel.survey(batches, False) == (4, 0)
    assert kernel.survey(batches[:0], False) == (0, 0)
