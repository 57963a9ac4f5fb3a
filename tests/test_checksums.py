"""The kernel's CRC-32C against the package's, and who checks what."""

from __future__ import annotations

import random

import numpy as np
import oracle
import pytest
from crc32c import crc32c

import kbatch
from kbatch import checksums
from kbatch.framing import scan_part
from kbatch.kernels import checksum

needs_instruction = pytest.mark.skipif(not checksum.AVAILABLE, reason="this processor has no CRC-32C instruction")


@needs_instruction
def test_the_kernel_agrees_with_the_package_at_every_length() -> None:
    """CRC-R1; lengths around every change of method, from any alignment."""
    data = random.Random(1).randbytes(200_000)
    lengths = [*range(1200), *random.Random(2).sample(range(1200, 199_000), 200)]
    for length in lengths:
        start = length % 9
        assert checksum.crc32c(data[start : start + length]) == crc32c(data[start : start + length]), length
    assert checksum.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("max_size", [-1, 200, 1 << 30])
def test_the_first_bad_batch_is_found_whoever_checks(max_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRC-R3, CRC-R4: all by the package (no instruction), by both, all by the kernel."""
    if max_size > 0 and not checksum.AVAILABLE:
        pytest.skip("this processor has no CRC-32C instruction")
    monkeypatch.setattr(checksum, "MAX_SIZE", max_size)
    batches = [oracle.build_batch([oracle.encode_record(value=b"v" * size)]) for size in (10, 500, 20, 700, 30)]
    good = np.frombuffer(b"".join(batches), np.uint8)
    rows = scan_part(good).batches
    assert checksums.first_bad_crc(good, rows, 0, 5, 0) == (5, 0)
    for bad in range(5):
        data = good.copy()
        data[int(rows["position"][bad]) + 70] ^= 1
        row, crc = checksums.first_bad_crc(data, scan_part(data).batches, 0, 5, 0)
        start = int(rows["position"][bad])
        assert (row, crc) == (bad, crc32c(data[start + 21 : start + int(rows["size"][bad])]))
        table = kbatch.decode(data, on_error="skip")
        assert table.batches["status"].tolist() == [int(i == bad) for i in range(5)]
        assert len(table) == 4
