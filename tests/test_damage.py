"""What damage costs: bytes in proportion to the damage, time and memory in proportion to the input."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import oracle
import pytest
from log_batches import write_segment
from tables import assert_accounted, lost, offsets_of

import kbatch
from kbatch.kernels.buffers import pool_stats

GOOD = oracle.build_batch([oracle.encode_record(value=b"v")])
BAD_CRC = oracle.with_crc(GOOD, 1)
INVALID = oracle.build_batch(payload=b"\x7f" * 9, record_count=1)
NO_GZIP = oracle.build_batch(payload=b"no gzip, this", record_count=1, attributes=1)
BAD_GZIP = oracle.build_batch(payload=gzip.compress(b"\x7f" * 9), record_count=1, attributes=1)


@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
@pytest.mark.parametrize(
    "unit",
    [
        [GOOD, BAD_CRC],
        [BAD_CRC, BAD_CRC, GOOD],
        [GOOD, bytes(73)],
        [oracle.with_crc(INVALID, 1), oracle.with_crc(INVALID, 1), GOOD],
        [INVALID],
        [NO_GZIP],
        [GOOD, BAD_GZIP],
        [BAD_GZIP],
    ],
    ids=[
        "every second",
        "two of three",
        "zeros between",
        "invalid",
        "all invalid",
        "no gzip",
        "bad gzip",
        "all bad gzip",
    ],
)
def test_many_bad_batches_take_no_longer_than_many(unit: list[bytes], crc: str) -> None:
    """Each of these took minutes once: what is lost at a bad batch must not be the work on all that follows it."""
    data = b"".join(unit) * (400_000 // len(b"".join(unit)))
    before = pool_stats().live_bytes
    began = time.process_time()
    table = kbatch.decode(data, crc=crc, on_error="skip")  # type: ignore[arg-type]
    assert time.process_time() - began < 5
    assert pool_stats().live_bytes - before < 20 * len(data) + (8 << 20)
    assert table.consumed == len(data)
    good = data.count(GOOD)
    assert len(table) >= good
    if crc == "verify":
        assert len(table) == good
        assert_accounted(table, len(data))


def test_crafted_headers_do_not_end_the_search() -> None:
    """Headers that claim megabytes use up what the search may cost; smaller batches are believed all the same."""
    fake = bytearray(GOOD[:61])
    fake[8:12] = (3_000_000).to_bytes(4, "big")
    data = bytes(12) + bytes(fake) * 60 + GOOD * 50_000
    table = kbatch.decode(data, on_error="skip")
    assert len(table) == 50_000
    assert lost(table) == [(0, 12 + 60 * 61)]


@pytest.mark.parametrize("crc", ["mark", "skip"])
@pytest.mark.parametrize("max_bytes", [64 << 10, 256 << 10, 64 << 20])
def test_lengths_are_followed_alike_in_every_window(tmp_path: Path, crc: str, max_bytes: int) -> None:
    """Where wrong checksums are not minded, a bad batch among batches that have them costs itself only."""
    batches = [oracle.with_crc(oracle.three(10 * i), 1) for i in range(3000)]
    batches[3] = oracle.with_crc(oracle.build_batch(payload=b"\x7f" * 30, record_count=1, base_offset=30), 1)
    path = write_segment(tmp_path / "t-0", 0, batches)
    table = kbatch.decode(path.read_bytes(), crc=crc, on_error="skip")  # type: ignore[arg-type]
    assert len(table) == 3 * 2999
    tables = list(kbatch.Log(path).tables(crc=crc, on_error="skip", max_bytes=max_bytes))  # type: ignore[arg-type]
    assert [offset for each in tables for offset in offsets_of(each)] == offsets_of(table)
    assert [loss for each in tables for loss in each.losses] == table.losses


def test_a_damaged_length_in_a_live_log_is_not_its_end(tmp_path: Path) -> None:
    """It looks like the incomplete last batch, but whole ones follow: an error, or a loss."""
    batches = [oracle.three(10 * i) for i in range(10)]
    damaged = bytearray(batches[4])
    damaged[9] ^= 0x40
    size = len(batches[0])
    path = write_segment(tmp_path / "t-0", 0, [*batches[:4], bytes(damaged), *batches[5:]])
    log = kbatch.Log(path)
    with pytest.raises(kbatch.CorruptBatchError, match="beyond batches that are whole") as caught:
        list(log.tables())
    assert (caught.value.source, caught.value.position) == (str(path), 4 * size)
    for on_error, count, length in (("stop", 4, 6 * size), ("skip", 9, size)):
        tables = list(log.tables(on_error=on_error))  # type: ignore[arg-type]
        assert sum(map(len, tables)) == 3 * count
        assert [(loss.position, loss.length) for each in tables for loss in each.losses] == [(4 * size, length)]


def test_claims_of_compressed_batches_get_no_memory() -> None:
    """CNT-R7: forged record counts must not keep the good batch after them from being read."""
    forged = oracle.build_batch(payload=bytes(1000), record_count=2**31 - 1, attributes=4)
    before = pool_stats().live_bytes
    table = kbatch.decode(forged * 2000 + GOOD, on_error="skip")
    assert len(table) == 1
    assert pool_stats().live_bytes - before < 16 * len(forged) * 2000


def test_bounds_at_the_ends_of_int64() -> None:
    """FRM-R12: offsets wrap, and no bound leaves out the largest one."""
    top = 2**63 - 1
    data = oracle.build_batch([oracle.encode_record(value=b"v")], base_offset=top)
    assert offsets_of(kbatch.decode(data, start_offset=0)) == [top]
    assert offsets_of(kbatch.decode(data, start_offset=0, stop_offset=2**70)) == [top]
    assert offsets_of(kbatch.decode(data, stop_offset=top)) == []
    wrapping = oracle.three(2**63 - 2)
    assert offsets_of(kbatch.decode(wrapping, start_offset=0)) == [2**63 - 2, 2**63 - 1]
    for wrong in ("1", 1.5):
        with pytest.raises(TypeError, match="must be an integer"):
            kbatch.decode(data, start_offset=wrong)  # type: ignore[arg-type]


def test_selections_of_a_table() -> None:
    table = kbatch.decode(oracle.three(10) + oracle.three(20))
    assert offsets_of(table[[-3, -1]]) == [20, 22]
    assert offsets_of(table[np.array([True, False] * 3)]) == [10, 12, 21]
    assert table[[-3, -1]].batches["first_record"].tolist() == [0, 0]
    assert not table[[0]].records.flags.writeable
    assert len(table[[]]) == 0
    with pytest.raises(ValueError, match="ascend"):
        table[[-1, 0]]
    for wrong in ("offset", None, 3, (slice(1), slice(1))):
        with pytest.raises(TypeError, match="a table takes a slice"):
            table[wrong]  # type: ignore[index]
    with pytest.raises(TypeError, match="row numbers or a mask"):
        table[[[0, 1]]]
