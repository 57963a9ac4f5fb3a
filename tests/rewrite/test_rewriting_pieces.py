"""Rewriting large input in runs and blocks: losses are counted once, and the output grows."""

from __future__ import annotations

import random
from typing import Any

import pytest

import kbatch
from kbatch.batches.framing import byte_array
from kbatch.kernels import encode
from kbatch.kernels.growing import Growing
from kbatch.rewrite.conversion import Conversion
from kbatch.rewrite.recompression import Recompression
from kbatch.rewrite.rewriter import Output, rewrite_batches, rewrite_bytes


def messages(count: int, size: int = 20, **fields: Any) -> bytes:
    return kbatch.encode([b"v" * size] * count, **({"magic": 1, "timestamps": 1000} | fields))


@pytest.mark.parametrize("magic", [0, 1])
def test_the_checksum_is_correct_for_messages_of_every_length(magic: int) -> None:
    """CRC-R7: for every length, also at the end of the memory that contains the message."""
    data = random.Random(4).randbytes(5000)
    fields: dict[str, Any] = {"timestamps": 5} if magic else {}
    for length in [*range(600), 4095, 4096, 5000]:
        values, keys = [data[:length]], [data[: length // 3] if length % 4 else None]
        new = kbatch.encode(values, keys=keys, timestamps=5)
        old = kbatch.encode(values, keys=keys, magic=magic, **fields)
        assert kbatch.convert(new, magic, lossy="drop") == old, length
        assert kbatch.decode(kbatch.convert(old, 2)).values() == values, length


class SmallConversion(Conversion):
    run_bytes = 3000
    scan_batches = 90


class SmallRecompression(Recompression):
    run_bytes = 3000
    scan_batches = 90
    block_bytes = 900


def test_runs_and_blocks_are_joined_to_one_output() -> None:
    values = [b"%d" % i * (i % 50) for i in range(5000)]
    data = kbatch.encode(values, timestamps=1000, batch_size=500)
    old = kbatch.encode(values, timestamps=1000, magic=1)
    compressed = kbatch.recompress(data, "lz4")
    assert kbatch.convert(data, 1) == old
    assert rewrite_bytes(SmallConversion(1), data) == old
    assert rewrite_bytes(SmallRecompression("none"), compressed) == data
    assert kbatch.decode(rewrite_bytes(SmallConversion(2), old)).values() == values
    # Damage in the middle of the input.
    at = int(kbatch.scan(data)["position"][100])
    broken = bytearray(data)
    broken[at + 70] ^= 1
    report = kbatch.RewriteReport()
    end = int(kbatch.scan(data)["position"][101])
    converted = rewrite_bytes(SmallConversion(1, on_error="skip", report=report), broken)
    assert converted == kbatch.convert(data[:at], 1) + kbatch.convert(data[end:], 1)
    assert [(loss.position, loss.length) for loss in report.damage] == [(at, end - at)]


def test_offsets_must_increase_over_a_whole_run() -> None:
    """LEG-R13: they must also increase from one batch to the next."""
    first, second = (kbatch.encode([b"v"] * 3, timestamps=1000, base_offset=offset) for offset in (7, 0))
    with pytest.raises(kbatch.InvalidRecordError, match=f"byte {len(first)}, base offset 0: offsets do not ascend"):
        kbatch.convert(first + second, 1)
    report = kbatch.RewriteReport()
    third = kbatch.encode([b"w"], timestamps=1000, base_offset=10)
    made = kbatch.convert(first + second + third, 1, on_error="skip", report=report)
    assert made == kbatch.convert(first + third, 1)
    assert [(loss.position, loss.length) for loss in report.damage] == [(len(first), len(second))]


def test_compressed_and_uncompressed_batches_form_one_run() -> None:
    """LEG-R13, PRD-R9: any of the batches may be compressed; no loss is counted twice."""
    uncompressed = [kbatch.encode([b"v%d" % i] * 3, timestamps=1000, base_offset=3 * i) for i in range(6)]
    compressed = [kbatch.recompress(part, "lz4") for part in uncompressed]
    for number in range(1 << 6):
        parts = [compressed[i] if number >> i & 1 else uncompressed[i] for i in range(6)]
        report = kbatch.RewriteReport()
        made = kbatch.convert(b"".join(parts), 1, codec="none", report=report)
        assert made == kbatch.convert(b"".join(uncompressed), 1)
        assert (report.batches, report.rewritten, report.records, report.batches_written) == (6, 6, 18, 18)
        assert (report.bytes, report.bytes_written) == (sum(map(len, parts)), len(made))
    # Also if damage after the run causes a second pass over the rest.
    damaged = bytearray(uncompressed[2])
    damaged[-3] ^= 1
    report = kbatch.RewriteReport()
    assert kbatch.convert(
        uncompressed[1] + uncompressed[0] + damaged, 1, on_error="skip", report=report
    ) == kbatch.convert(uncompressed[1], 1)
    assert sorted(loss.position for loss in report.damage) == [
        len(uncompressed[1]),
        len(uncompressed[1] + uncompressed[0]),
    ]
    for i in range(1, 6):
        mixed = b"".join(uncompressed[:i]) + compressed[i - 1] + uncompressed[i]
        with pytest.raises(kbatch.InvalidRecordError, match="offsets do not ascend"):
            kbatch.convert(mixed, 1, codec="none")


def test_losses_of_a_run_are_counted_once() -> None:
    """PRD-R9: each loss is counted once, or raises at its batch."""
    uncompressed = kbatch.encode([b"a"] * 3, timestamps=5)
    idempotent = kbatch.encode(
        [b"b"] * 3, timestamps=5, base_offset=3, producer_id=7, producer_epoch=0, base_sequence=0
    )
    with_headers = kbatch.encode([b"c"], headers=[[("k", b"v")]], timestamps=5, base_offset=6)
    for part, name in ((idempotent, "producer_batches"), (with_headers, "records_with_headers")):
        with pytest.raises(
            kbatch.ConversionLossError, match=f"byte {len(uncompressed)}, base offset {3 if part is idempotent else 6}"
        ):
            kbatch.convert(uncompressed + part, 1)
        report = kbatch.RewriteReport()
        assert (
            kbatch.decode(kbatch.convert(uncompressed + part, 1, lossy="drop", report=report)).values()[:3]
            == [b"a"] * 3
        )
        assert report.lost == {name: 1}
        assert (report.batches, report.rewritten, report.bytes) == (2, 2, len(uncompressed + part))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_offsets_may_decrease_after_skipped_damage(codec: str) -> None:
    """LEG-R13, PRD-R9: Kafka converts each batch by itself; only adjacent batches form a run."""
    first, damaged, third = (
        kbatch.encode([b"v"] * 3, timestamps=5, base_offset=offset, codec=codec) for offset in (6, 3, 0)
    )
    data = first + damaged[:-2] + b"?" + damaged[-1:] + third
    report = kbatch.RewriteReport()
    made = kbatch.convert(data, 1, on_error="skip", report=report)
    assert made == kbatch.convert(first, 1) + kbatch.convert(third, 1)
    assert [(loss.position, loss.length) for loss in report.damage] == [(len(first), len(damaged))]


# -- growing output


def test_pieces_are_appended_and_taken_once() -> None:
    pieces = [bytes([i]) * (i * 1000) for i in range(100)]
    for expected in (0, 1, 10_000, 6_000_000):
        growing = Growing()
        for piece in pieces:
            growing.append(piece, expected)
        assert growing.used == sum(map(len, pieces))
        assert growing.take() == b"".join(pieces)
        with pytest.raises(ValueError, match="have been taken"):
            growing.take()
        with pytest.raises(ValueError, match="have been taken"):
            growing.append(b"", 0)
    assert Growing().take() == b""
    growing = Growing()
    with pytest.raises(OverflowError):
        growing.append(b"a", 2**63 - 1)
    with pytest.raises(ValueError, match="have been taken"):
        growing.append(b"a", 1)


def test_spare_memory_is_appended_in_place() -> None:
    growing = Growing()
    assert growing.spare(1) is None
    growing.append(b"first", 100)
    assert growing.spare(-1) is None
    assert growing.spare(96) is None
    spare = growing.spare(95)
    assert spare is not None
    assert len(spare) == 95
    spare[:6] = b"second"
    growing.append(spare[:6], 100)
    assert growing.used == 11
    growing.append(b"third", 0)
    growing.reserve(10_000)
    spare = growing.spare(10_000)
    assert spare is not None
    spare[:] = b"x" * 10_000
    growing.append(spare, 0)
    del spare
    assert growing.take() == b"firstsecondthird" + b"x" * 10_000
    assert growing.spare(0) is None
    with pytest.raises(ValueError, match="have been taken"):
        growing.reserve(1)


def test_headers_are_written_around_payloads() -> None:
    data = bytearray(
        kbatch.encode([b"v"] * 9, timestamps=1000, batch_size=100, producer_id=3, producer_epoch=0, base_sequence=0)
    )
    expected = bytes(data)
    rows = kbatch.scan(expected).copy()
    for row in rows:
        start = int(row["position"])
        data[start : start + 61] = bytes(61)
    encode.write_headers(rows, memoryview(data))
    assert data == expected
    with pytest.raises(ValueError, match="1 bytes before their memory"):
        encode.write_headers(rows, memoryview(data + b"\0"))
    for name, value in (("size", 60), ("size", 2**31)):
        bad = rows.copy()
        bad[name][-1] = value
        with pytest.raises(ValueError, match=f"batch {len(rows) - 1} has no payload there"):
            encode.write_headers(bad, memoryview(data))


def test_the_first_bytes_do_not_cause_a_large_allocation() -> None:
    """The first batches may grow by a factor of a thousand."""
    noise = random.Random(1).randbytes(100_000)
    values = [bytes(1 << 20)], [noise]
    data = b"".join(kbatch.encode(part, codec="gzip", timestamps=5, base_offset=i) for i, part in enumerate(values))
    output, batches = Output(len(data)), kbatch.scan(data)
    for i in range(len(batches)):
        pieces = rewrite_batches(Recompression("none"), byte_array(data), batches[i : i + 1], memory=output.memory)
        output.add(pieces, int(batches["position"][i] + batches["size"][i]))
    made = output.take()
    assert output.expected < 2 * len(made)
    assert made == b"".join(kbatch.encode(part, timestamps=5, base_offset=i) for i, part in enumerate(values))
