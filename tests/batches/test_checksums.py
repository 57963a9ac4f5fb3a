"""The kernel's CRC-32C and CRC-32 equal the ones of the package and zlib, for parts and for runs of batches."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
import oracle
import pytest
from crc32c import crc32c

import kbatch
from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import scan_part
from kbatch.kernels import checksum
from kbatch.read.windows import BufferWindows

# A level that the processor does not have is replaced by its highest one, which is then tested twice.
every_level = pytest.mark.parametrize("level", [0, 1, 2, 3], ids=["tables", "instructions", "256 bits", "512 bits"])
LONG = random.Random(1).randbytes(3_000_000)


@every_level
def test_the_kernel_agrees_with_the_package_at_every_length(level: int) -> None:
    """CRC-R1: every length up to 4096, and longer ones, at every alignment."""
    rng = random.Random(2)
    lengths = [
        *range(4097),
        *range(12_280, 12_300),
        *range(24_570, 24_590),
        *rng.sample(range(4097, 200_000), 200),
        *rng.sample(range(200_000, 2_999_000), 20),
    ]
    for length in lengths:
        start = length % 67
        piece = memoryview(LONG)[start : start + length]
        assert checksum.crc32c(piece, level) == crc32c(piece), length
    for length in (0, 7, 8, 63, 64, 127, 128, 135, 255, 256, 263, 319, 320, 511, 512, 1000):
        for start in range(65):
            piece = memoryview(LONG)[start : start + length]
            assert checksum.crc32c(piece, level) == crc32c(piece), (start, length)
    assert checksum.crc32c(b"123456789", level) == 0xE3069283
    for length in (15, 100, 1000, 100_000):
        for byte in (b"\0", b"\xff"):
            assert checksum.crc32c(byte * length, level) == crc32c(byte * length), (byte, length)


@pytest.mark.parametrize(
    ("shift", "crc"), [(checksum.crc32c_shift, crc32c), (checksum.crc32_shift, zlib.crc32)], ids=["CRC-32C", "CRC-32"]
)
def test_checksums_of_two_parts_combine(shift: Callable[[int, int], int], crc: Callable[[bytes], int]) -> None:
    """CRC-R1, CRC-R7: all splits of short input, random splits of long input, and lengths of up to 64 bits."""
    rng = random.Random(6)
    splits = [(length, at) for length in range(70) for at in range(length + 1)]
    splits += [(length, rng.randint(0, length)) for length in (100, 1000, 4099, 65536, 2_999_999) for _ in range(40)]
    for length, at in splits:
        first, second = LONG[:at], LONG[at:length]
        assert shift(crc(first), len(second)) ^ crc(second) == crc(LONG[:length]), (length, at)
    value = crc(LONG)
    for parts in [(1 << 32, 5), ((1 << 63) - 9, 1 << 40)]:
        assert shift(shift(value, parts[0]), parts[1]) == shift(value, sum(parts))
    assert shift(0, 12345) == 0
    with pytest.raises(OverflowError):
        shift(0, -1)


def test_the_first_bad_batch_is_found() -> None:
    """CRC-R3, CRC-R4: the kernel reports the first batch whose checksum does not match."""
    batches = [oracle.build_batch([oracle.encode_record(value=b"v" * size)]) for size in (10, 500, 20, 700, 30)]
    good = np.frombuffer(b"".join(batches), np.uint8)
    rows = scan_part(good).batches
    assert checksum.first_bad_crc(good, rows, 0, 5, 0) == (5, 0)
    for bad in range(5):
        data = good.copy()
        data[int(rows["position"][bad]) + 70] ^= 1
        row, crc = checksum.first_bad_crc(data, scan_part(data).batches, 0, 5, 0)
        start = int(rows["position"][bad])
        assert (row, crc) == (bad, crc32c(data[start + 21 : start + int(rows["size"][bad])]))
        table = kbatch.decode(data, on_error="skip")
        assert table.batches["status"].tolist() == [int(i == bad) for i in range(5)]
        assert len(table) == 4


# -- magic 0 and 1


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_every_length_have_the_checksum_of_zlib(magic: int) -> None:
    """CRC-R7: messages as encoded, and with the CRC written again."""
    data = LONG[:1200]
    for length in [*range(1100), 1200]:
        message = kbatch.encode([data[:length]], magic=magic, **({"timestamps": 5} if magic else {}))
        assert int.from_bytes(message[12:16], "big") == zlib.crc32(message[16:]), length
        resealed = np.frombuffer(bytearray(message), np.uint8)
        resealed[12:16] = 0
        checksum.write_crcs(resealed, scan_part(resealed).batches)
        assert resealed.tobytes() == message, length


@every_level
def test_the_kernel_agrees_with_zlib_at_every_length(level: int) -> None:
    """CRC-R7: every length up to 4096, and longer ones, at every alignment."""
    data = random.Random(3).randbytes(300_000)
    lengths = [*range(4097), *random.Random(4).sample(range(4097, 299_000), 50)]
    for length in lengths:
        start = length % 17
        piece = data[start : start + length]
        assert checksum.crc32(piece, level) == zlib.crc32(piece), length
    for length in (0, 7, 8, 31, 32, 63, 64, 100, 1000):
        for start in range(65):
            piece = memoryview(data)[start : start + length]
            assert checksum.crc32(piece, level) == zlib.crc32(piece), (start, length)
    assert checksum.crc32(b"123456789", level) == 0xCBF43926
    assert checksum.crc32(bytes(1000), level) == zlib.crc32(bytes(1000))


def test_the_first_bad_message_is_found() -> None:
    """CRC-R7, FRM-R13: rows of every magic in one run; the checksum covers each byte from the magic on."""
    entries = [
        oracle.build_message(b"k", b"v" * 10, magic=0),
        oracle.build_message(None, b"v" * 300, magic=1),
        oracle.three(10),
        oracle.build_wrapper(oracle.message_set([(None, b"w" * 200)] * 3, magic=1), magic=1, offset=20, codec="gzip"),
        oracle.build_message(None, None, magic=0),
        oracle.build_message(b"", b"x" * 70_000, magic=1),
        oracle.build_message(None, None, magic=1),
    ]
    good = np.frombuffer(b"".join(entries), np.uint8)
    rows = scan_part(good).batches
    count = len(entries)
    assert rows["magic"].tolist() == [0, 1, 2, 1, 0, 1, 1]
    assert checksum.first_bad_crc(good, rows, 0, count, 0) == (count, 0)
    shifted = np.concatenate((np.zeros(5, np.uint8), good))[5:]
    assert checksum.first_bad_crc(shifted, scan_part(shifted, origin=1000).batches, 0, count, 1000) == (count, 0)
    for bad in range(count):
        start, size = int(rows["position"][bad]), int(rows["size"][bad])
        assert has_good_batch(BufferWindows(good), rows[bad])
        first = 21 if rows["magic"][bad] == 2 else 17  # byte 16 is the magic
        for at in {first, size // 2, size - 1} - set(range(17)):
            data = good.copy()
            data[start + at] ^= 1
            row, crc = checksum.first_bad_crc(data, rows, 0, count, 0)
            entry = data[start : start + size].tobytes()
            assert (row, crc) == (bad, crc32c(entry[21:]) if rows["magic"][bad] == 2 else zlib.crc32(entry[16:]))
            assert checksum.first_bad_crc(data, rows, bad + 1, count, 0) == (count, 0)
            assert not has_good_batch(BufferWindows(data), rows[bad])
        data = good.copy()
        data[start : start + 8] = np.frombuffer(struct.pack(">q", -7), np.uint8)
        assert checksum.first_bad_crc(data, scan_part(data).batches, 0, count, 0) == (count, 0)
