"""Long batches, which one thread sums and parses in strides: several threads return the same result."""

from __future__ import annotations

import contextlib
import gc
import signal
from functools import cache
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbatch
from kbatch.format import BATCH_DTYPE
from kbatch.kernels.checksum import write_crcs

HEADER = 61


# The minimum size of a long batch, and the size of a stride, in bytes.
LONG = 2 << 20
STRIDE = 64 << 10
COUNT_AT, LAST_DELTA_AT, ATTRIBUTES_AT = 57, 23, 21


def outcome(data: bytes, **options: Any) -> tuple[Any, ...]:
    """Return every part of the result except the input bytes, or the error."""
    try:
        table = kbatch.decode(data, **options)
    except kbatch.KbatchError as error:
        return type(error), str(error)
    # Padding between fields is not initialized.
    columns = [table.records[name].tobytes() for name in table.records.dtype.names]
    return columns, table.batches.tolist(), table.data.nbytes, table.losses, table.consumed


def same(data: bytes, **options: Any) -> None:
    """Check that one thread and several return the same; several sum the whole batch before they parse it."""
    one = outcome(data, **options)
    for threads in (2, 3):
        assert outcome(data, threads=threads, **options) == one


def with_valid_crc(batch: bytes | bytearray) -> bytes:
    data = np.frombuffer(bytearray(batch), np.uint8)
    data[8:12] = np.frombuffer((len(data) - 12).to_bytes(4, "big"), np.uint8)
    write_crcs(data, kbatch.scan(data).astype(BATCH_DTYPE))
    return data.tobytes()


def with_number(batch: bytes, at: int, number: int) -> bytes:
    return batch[:at] + number.to_bytes(4, "big", signed=True) + batch[at + 4 :]


def batch_of(records: list[bytes], last_delta: int | None = None) -> bytes:
    """Build a batch from encoded records."""
    batch = kbatch.encode([b""], timestamps=[1_700_000_000_000], base_offset=5)[:HEADER] + b"".join(records)
    batch = with_number(batch, LAST_DELTA_AT, len(records) - 1 if last_delta is None else last_delta)
    return with_valid_crc(with_number(batch, COUNT_AT, len(records)))


SHAPES = ["short", "keys and headers", "medium", "some large", "far apart", "append time"]


@cache
def values_of(shape: str) -> list[bytes]:
    rng = np.random.default_rng(SHAPES.index(shape))
    count, max_size = {"short": (120_000, 20), "medium": (4000, 1300), "some large": (60_000, 60)}.get(
        shape, (70_000, 40)
    )
    ends = np.cumsum(rng.integers(max_size // 2, max_size, count))
    noise = rng.bytes(int(ends[-1]))
    values = [noise[start:end] for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
    if shape == "some large":
        for at in (500, 20_000, 20_001, 40_000, count - 1):
            values[at] = rng.bytes(90_000)
    return values


@cache
def long_batch(shape: str) -> bytes:
    values = values_of(shape)
    rng = np.random.default_rng(9)
    with_headers = shape == "keys and headers"
    batch = kbatch.encode(
        values,
        keys=[None if len(value) % 3 == 0 else value[:7] for value in values] if with_headers else None,
        headers=[[("k", value[:5])] * (len(value) % 4) for value in values] if with_headers else None,
        timestamps=np.cumsum(rng.integers(0, 3 if shape != "far apart" else 90_000, len(values))) + 1_700_000_000_000,
        base_offset=1000,
    )
    if shape == "append time":
        batch = bytearray(batch)
        batch[ATTRIBUTES_AT + 1] |= oracle.LOG_APPEND_TIME
        batch = with_valid_crc(batch)
    assert len(batch) > LONG
    return batch


@pytest.mark.parametrize("shape", SHAPES)
def test_long_batches_of_every_shape_decode_the_same(shape: str) -> None:
    batch = long_batch(shape)
    table = kbatch.decode(batch)
    assert list(table.values()) == values_of(shape)
    assert table.records["offset"].tolist() == list(range(1000, 1000 + len(table)))
    small = kbatch.encode([b"a", b"b"], base_offset=3)
    compressed = kbatch.encode([b"a"], codec="lz4")
    for options in (
        {},
        {"crc": "mark"},
        {"columns": ["offset", "value"]},
        {"columns": ["timestamp"]},
        {"start_offset": 1100},
        {"start_offset": 5, "stop_offset": 1200},
    ):
        for data in (batch, small * 9 + batch, batch + small[:-3], compressed + batch):
            same(data, **options)


def test_long_compacted_batches_decode_the_same() -> None:
    """Records were removed; the last offset delta still counts them, or does not (CNT-R5)."""
    rng = np.random.default_rng(1)
    kept = np.flatnonzero(rng.integers(0, 50, 80_000))
    records = [oracle.encode_record(i, i, b"key", b"value of %d bytes..." % i) for i in kept.tolist()]
    for last in (int(kept[-1]), None):
        batch = batch_of(records, last)
        assert kbatch.decode(batch).records["offset"].tolist() == (kept + 5).tolist()
        same(batch)


# -- damage


def stride_edges(batch: bytes | bytearray) -> list[int]:
    """Return positions near the ends of strides: the first ones, some in the middle, and the last."""
    every = range(HEADER + STRIDE, len(batch), STRIDE)
    return [*every[:2], every[len(every) // 2], every[-1]]


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_damaged_long_batches_decode_the_same(shape: str) -> None:
    batch = long_batch(shape)
    rng = np.random.default_rng(4)
    small = kbatch.encode([b"a", b"b"], base_offset=3)
    places = [at + near for at in stride_edges(batch) for near in (-30, -2, -1, 0, 1, 2, 3, 5, 200)]
    places = [place for place in places if place < len(batch)]
    places += rng.integers(ATTRIBUTES_AT, len(batch), 20).tolist() + list(range(ATTRIBUTES_AT, HEADER + 12))
    for place in places:
        damaged = bytearray(batch)
        damaged[place] ^= 1 << int(rng.integers(8))
        # The checksum is wrong, or is written again after the change.
        for data in (bytes(damaged), with_valid_crc(damaged)):
            crc = ["verify", "mark", "skip"][int(rng.integers(3))]
            same(small + data, crc=crc, on_error=["skip", "raise"][int(rng.integers(2))])


def test_long_batches_with_bad_checksums_decode_the_same() -> None:
    batch = bytearray(long_batch("short"))
    batch[17] ^= 1
    data = bytes(batch)
    for on_error in ("raise", "stop", "skip"):
        same(data, on_error=on_error)
    assert outcome(data)[0] is kbatch.CrcMismatchError
    for crc, status in (("mark", 1), ("skip", 0)):
        same(data, crc=crc)
        table = kbatch.decode(data, crc=crc)
        assert (len(table), table.batches["status"].tolist()) == (120_000, [status])


@pytest.mark.parametrize("more", [-100_000, -1000, -1, 1, 2, 1000, 100_000, -(1 << 31), (1 << 31) - 1])
def test_long_batches_with_wrong_counts_decode_the_same(more: int) -> None:
    batch = long_batch("short")
    count = max(min(120_000 + more, (1 << 31) - 1), -(1 << 31))
    for last_delta in (count - 1, 119_999):
        data = with_number(batch, LAST_DELTA_AT, max(last_delta, -(1 << 31)))
        data = with_valid_crc(with_number(data, COUNT_AT, count))
        for on_error in ("raise", "skip"):
            same(data, on_error=on_error)
    assert outcome(data, threads=2)[0] is not bytes


def test_long_batches_with_shorter_or_longer_payloads_decode_the_same() -> None:
    batch = long_batch("short")
    for end in [*(at + near for at in stride_edges(batch) for near in (-1, 0, 1)), len(batch) - 1, LONG, LONG - 1]:
        same(with_valid_crc(batch[:end]), on_error="skip")
        same(batch[:end], on_error="skip")
    for more in (b"\0", bytes(50), batch[HEADER : HEADER + 23], batch[HEADER:]):
        same(with_valid_crc(batch + more), on_error="skip")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_arbitrary_changes_of_a_long_batch_decode_the_same(data: st.DataObject) -> None:
    """Bytes are copied, changed, removed or inserted anywhere."""
    batch = bytearray(long_batch(data.draw(st.sampled_from(SHAPES))))
    places = st.integers(HEADER, len(batch) - 1) | st.sampled_from([LONG // 2, *stride_edges(batch)])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(places)
        size = data.draw(st.sampled_from([1, 2, 23, 1000, 100_000]))
        match data.draw(st.sampled_from(["change", "remove", "insert", "copy", "count"])):
            case "change":
                batch[at : at + size] = data.draw(st.sampled_from([b"\0", b"\xff", b"\x0c\0", b"\x7e"])) * size
            case "remove":
                del batch[at : at + size]
            case "insert":
                batch[at:at] = data.draw(st.binary(max_size=50))
            case "copy":
                other = data.draw(places)
                batch[at : at + size] = batch[other : other + size]
            case "count":
                count = int.from_bytes(batch[COUNT_AT:HEADER], "big") + data.draw(st.integers(-1000, 1000))
                batch = bytearray(with_number(with_number(bytes(batch), COUNT_AT, count), LAST_DELTA_AT, count - 1))
    same(
        with_valid_crc(batch) if data.draw(st.booleans()) else bytes(batch),
        on_error=data.draw(st.sampled_from(["raise", "skip"])),
        crc=data.draw(st.sampled_from(["verify", "mark", "skip"])),
        columns=data.draw(st.none() | st.just(["timestamp"]) | st.just(["offset", "value"])),
    )


# Hypothesis has a callback for collections, and Python ignores what is raised in one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_ctrl_c_interrupts_the_decode_of_a_long_batch() -> None:
    """The call ends whenever the signal arrives, and the next call returns the same as before."""
    small = kbatch.encode([b"v" * 30] * 3000)
    data = small * 300 + long_batch("short")
    expected = outcome(data)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(60):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * (i + 1))
                kbatch.decode(data, threads=3)
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # A thread pool that was interrupted while it was made ends its threads when it is collected.
    gc.collect()
    assert outcome(data, threads=3) == expected
