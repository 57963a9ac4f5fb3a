"""Rewriting a large input: runs and blocks of it, losses that are counted once, and output that grows."""

from __future__ import annotations

import random
from typing import Any

import pytest

import kbatch
from kbatch.kernels import encode
from kbatch.kernels.growing import Growing
from kbatch.rewrite import rewriter
from kbatch.rewrite.conversion import Conversion
from kbatch.rewrite.recompression import Recompression
from kbatch.rewrite.rewriter import rewrite_bytes


def messages(count: int, size: int = 20, **fields: Any) -> bytes:
    return kbatch.encode([b"v" * size] * count, **({"magic": 1, "timestamps": 1000} | fields))


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_every_length(magic: int) -> None:
    """CRC-R7: the checksum of every length, and contents at the end of the memory that they are read from."""
    data = random.Random(4).randbytes(5000)
    fields: dict[str, Any] = {"timestamps": 5} if magic else {}
    for length in [*range(600), 4095, 4096, 5000]:
        values, keys = [data[:length]], [data[: length // 3] if length % 4 else None]
        new = kbatch.encode(values, keys=keys, timestamps=5)
        old = kbatch.encode(values, keys=keys, magic=magic, **fields)
        assert kbatch.convert(new, magic, lossy="drop") == old, length
        assert kbatch.decode(kbatch.convert(old, 2)).values() == values, length


def test_pieces_of_a_large_input_are_one_output() -> None:
    values = [b"%d" % i * (i % 50) for i in range(5000)]
    data = kbatch.encode(values, timestamps=1000, batch_size=500)
    old = kbatch.encode(values, timestamps=1000, magic=1)
    packed = kbatch.recompress(data, "lz4")
    assert kbatch.convert(data, 1) == old
    small: Any = {"run_bytes": 3000, "max_batches": 90}
    assert rewrite_bytes(Conversion(1), data, **small) == old
    assert rewrite_bytes(Recompression("none", block_bytes=900), packed, **small) == data
    assert kbatch.decode(rewrite_bytes(Conversion(2), old, **small)).values() == values
    # Damage in the middle of it.
    at = int(kbatch.scan(data)["position"][100])
    broken = bytearray(data)
    broken[at + 70] ^= 1
    report = kbatch.RewriteReport()
    end = int(kbatch.scan(data)["position"][101])
    assert rewrite_bytes(Conversion(1, on_error="skip", report=report), bytes(broken), **small) == (
        kbatch.convert(data[:at], 1) + kbatch.convert(data[end:], 1)
    )
    assert [(loss.position, loss.length) for loss in report.damage] == [(at, end - at)]


def test_offsets_rise_over_all_of_a_run() -> None:
    """LEG-R13: also from one batch of it to the next."""
    first, second = (kbatch.encode([b"v"] * 3, timestamps=1000, base_offset=offset) for offset in (7, 0))
    with pytest.raises(kbatch.InvalidRecordError, match=f"byte {len(first)}, base offset 0: offsets don't rise"):
        kbatch.convert(first + second, 1)
    report = kbatch.RewriteReport()
    third = kbatch.encode([b"w"], timestamps=1000, base_offset=10)
    made = kbatch.convert(first + second + third, 1, on_error="skip", report=report)
    assert made == kbatch.convert(first + third, 1)
    assert [(loss.position, loss.length) for loss in report.damage] == [(len(first), len(second))]


def test_one_run_of_batches_with_and_without_a_codec() -> None:
    """LEG-R13, PRD-R9: whichever of them are compressed, and nothing counts twice."""
    plain = [kbatch.encode([b"v%d" % i] * 3, timestamps=1000, base_offset=3 * i) for i in range(6)]
    packed = [kbatch.recompress(part, "lz4") for part in plain]
    for number in range(1 << 6):
        parts = [packed[i] if number >> i & 1 else plain[i] for i in range(6)]
        report = kbatch.RewriteReport()
        made = kbatch.convert(b"".join(parts), 1, codec="none", report=report)
        assert made == kbatch.convert(b"".join(plain), 1)
        assert (report.batches, report.rewritten, report.records, report.batches_written) == (6, 6, 18, 18)
        assert (report.bytes, report.bytes_written) == (sum(map(len, parts)), len(made))
    # Also where damage behind it has all that is left looked at once more.
    damaged = bytearray(plain[2])
    damaged[-3] ^= 1
    report = kbatch.RewriteReport()
    assert kbatch.convert(plain[1] + plain[0] + damaged, 1, on_error="skip", report=report) == kbatch.convert(
        plain[1], 1
    )
    assert sorted(loss.position for loss in report.damage) == [len(plain[1]), len(plain[1] + plain[0])]
    for i in range(1, 6):
        mixed = b"".join(plain[:i]) + packed[i - 1] + plain[i]
        with pytest.raises(kbatch.InvalidRecordError, match="offsets don't rise"):
            kbatch.convert(mixed, 1, codec="none")


def test_losses_of_a_run_of_batches() -> None:
    """PRD-R9: each is counted once, or refused where it is."""
    plain = kbatch.encode([b"a"] * 3, timestamps=5)
    idempotent = kbatch.encode(
        [b"b"] * 3, timestamps=5, base_offset=3, producer_id=7, producer_epoch=0, base_sequence=0
    )
    with_headers = kbatch.encode([b"c"], headers=[[("k", b"v")]], timestamps=5, base_offset=6)
    for part, name in ((idempotent, "producer_batches"), (with_headers, "records_with_headers")):
        with pytest.raises(
            kbatch.ConversionLossError, match=f"byte {len(plain)}, base offset {3 if part is idempotent else 6}"
        ):
            kbatch.convert(plain + part, 1)
        report = kbatch.RewriteReport()
        assert kbatch.decode(kbatch.convert(plain + part, 1, lossy="drop", report=report)).values()[:3] == [b"a"] * 3
        assert report.lost == {name: 1}
        assert (report.batches, report.rewritten, report.bytes) == (2, 2, len(plain + part))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_offsets_may_go_back_where_damage_was_left_out(codec: str) -> None:
    """LEG-R13, PRD-R9: Kafka converts each batch by itself; only batches that are adjacent are one run."""
    first, damaged, third = (
        kbatch.encode([b"v"] * 3, timestamps=5, base_offset=offset, codec=codec) for offset in (6, 3, 0)
    )
    data = first + damaged[:-2] + b"?" + damaged[-1:] + third
    report = kbatch.RewriteReport()
    made = kbatch.convert(data, 1, on_error="skip", report=report)
    assert made == kbatch.convert(first, 1) + kbatch.convert(third, 1)
    assert [(loss.position, loss.length) for loss in report.damage] == [(len(first), len(damaged))]


# -- output that grows


def test_bytes_that_grow() -> None:
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


def test_bytes_that_are_written_where_they_belong() -> None:
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


def test_headers_around_payloads() -> None:
    data = bytearray(
        kbatch.encode([b"v"] * 9, timestamps=1000, batch_size=100, producer_id=3, producer_epoch=0, base_sequence=0)
    )
    wanted = bytes(data)
    rows = kbatch.scan(wanted).copy()
    for row in rows:
        start = int(row["position"])
        data[start : start + 61] = bytes(61)
    encode.frame(rows, memoryview(data))
    assert data == wanted
    with pytest.raises(ValueError, match="1 bytes before their memory"):
        encode.frame(rows, memoryview(data + b"\0"))
    for name, value in (("size", 60), ("size", 2**31)):
        bad = rows.copy()
        bad[name][-1] = value
        with pytest.raises(ValueError, match=f"batch {len(rows) - 1} has no payload there"):
            encode.frame(bad, memoryview(data))


def test_first_bytes_unlike_the_rest_make_no_large_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first batches become may be a thousand times their size."""
    demands: list[int] = []

    class Recorder(Growing):
        def append(self, piece: Any, expected: int) -> None:
            demands.append(expected)
            super().append(piece, expected)

    monkeypatch.setattr(rewriter, "Growing", Recorder)
    dense = kbatch.encode([bytes(1 << 20)], timestamps=5, codec="gzip")
    noise = kbatch.encode([random.Random(1).randbytes(100_000)], timestamps=5, codec="gzip", base_offset=1)
    made = rewrite_bytes(Recompression("none"), dense + noise, run_bytes=4000)
    assert max(demands) < 2 * len(made)
    assert made == kbatch.encode([bytes(1 << 20)], timestamps=5) + kbatch.encode(
        [random.Random(1).randbytes(100_000)], timestamps=5, base_offset=1
    )
