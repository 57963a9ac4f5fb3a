"""One long batch that two threads share: what they make of it is what one makes of it, whatever its bytes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbatch
from kbatch import workers
from kbatch.checksums import write_crcs
from kbatch.format import BATCH_DTYPE
from kbatch.kernels import decode as kernel
from kbatch.kernels.pipeline import Pipeline

HEADER = 61
# Among so many bytes a record is guessed, if so many follow each other.
GUESSED_BYTES = 4 << 10
GUESSED_RECORDS = 16


# -- where a record begins


def starts_of(payload: bytes) -> list[int]:
    """Where each record of a payload begins, by the lengths alone."""
    starts, at = [], 0
    while at < len(payload):
        starts.append(at)
        length, shift = 0, 0
        while True:
            byte = payload[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += length >> 1
    return starts


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_record_is_guessed_from_any_byte(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    count = data.draw(st.integers(1, 300))
    most = data.draw(st.sampled_from([1, 10, 70, 900, 9000]))
    values = [rng.bytes(int(rng.integers(0, most))) for _ in range(count)]
    keys = [None if len(value) % 3 else value[:5] for value in values]
    headers = [[("k", value[:5])] if len(value) % 5 == 0 else [] for value in values]
    times = np.cumsum(rng.integers(0, data.draw(st.sampled_from([1, 5, 1 << 20])), count))
    payload = kbatch.encode(values, keys=keys, headers=headers, timestamps=times)[HEADER:]
    starts = starts_of(payload)
    after = data.draw(st.integers(0, len(payload) + 5))
    found = kernel.guess(np.frombuffer(payload, np.uint8), after)
    if found is not None:
        at, number = found
        assert after <= at < after + GUESSED_BYTES
        assert starts[number] == at
    elif most <= 70:
        # The last of them are left to who reads to the end.
        assert sum(start >= after for start in starts) <= GUESSED_RECORDS + 50


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 3100), st.integers(0, 40))
def test_a_guess_stays_within_its_bytes(noise: bytes, after: int, count: int) -> None:
    """Whatever they are, and also where they look like records up to their end."""
    records = b"".join(oracle.encode_record(i, i, b"k", b"v") for i in range(count))
    for payload in (noise, noise + records, records + noise):
        found = kernel.guess(np.frombuffer(payload, np.uint8), after)
        if found is not None:
            assert after <= found[0] < len(payload)


def test_what_is_no_run_of_records_is_no_guess() -> None:
    for payload in (b"", b"\x0c", bytes(100_000), b"\xff" * 100_000, b"\x7e\x00" * 50_000):
        assert kernel.guess(np.frombuffer(payload, np.uint8), 0) is None
    # A gap in the offsets.
    for last, found in ((GUESSED_RECORDS - 2, (22 * 15, 16)), (GUESSED_RECORDS - 1, (0, 0))):
        records = [oracle.encode_record(i + (i > last), value=b"v" * 15) for i in range(200)]
        payload = np.frombuffer(b"".join(records), np.uint8)
        assert kernel.guess(payload, 0) == found
    with pytest.raises(ValueError, match="0 or more"):
        kernel.guess(b"", -1)


# -- what threads make of it

SHARED, NOWHERE = 2, (1 << 63) - 1
LONG = 2 << 20
COUNT_AT, LAST_DELTA_AT, ATTRIBUTES_AT = 57, 23, 21


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tell of every pipeline what it shared."""
    real = workers.run
    told.clear()

    def run(pipeline: Pipeline, threads: int) -> None:
        real(pipeline, threads)
        told.append((pipeline.sharing, pipeline.wrong_at))

    monkeypatch.setattr(workers, "run", run)
    yield
    told.clear()


told: list[tuple[int, int]] = []


def outcome(data: bytes, **options: Any) -> tuple[Any, ...]:
    """All that a caller can see that isn't the input itself, or the error."""
    told.clear()
    try:
        table = kbatch.decode(data, **options)
    except kbatch.KbatchError as error:
        return type(error), str(error)
    # Between fields there may be bytes that nobody writes.
    columns = [table.records[name].tobytes() for name in table.records.dtype.names]
    return columns, table.batches.tolist(), table.data.nbytes, table.losses, table.consumed


def same(data: bytes, **options: Any) -> list[int]:
    """Compare; return of each batch that was shared, by two threads and by three, where in it a guess was wrong."""
    shared = []
    one = outcome(data, **options)
    assert not any(sharing for sharing, _ in told)
    for threads in (2, 3):
        assert outcome(data, threads=threads, **options) == one
        shared += [wrong_at for sharing, wrong_at in told if sharing == SHARED]
    return shared


def resealed(batch: bytes | bytearray) -> bytes:
    data = np.frombuffer(bytearray(batch), np.uint8)
    data[8:12] = np.frombuffer((len(data) - 12).to_bytes(4, "big"), np.uint8)
    write_crcs(data, kbatch.scan(data).astype(BATCH_DTYPE))
    return data.tobytes()


def with_number(batch: bytes, at: int, number: int) -> bytes:
    return batch[:at] + number.to_bytes(4, "big", signed=True) + batch[at + 4 :]


def batch_of(records: list[bytes], last_delta: int | None = None) -> bytes:
    """A batch of records that are encoded."""
    batch = kbatch.encode([b""], timestamps=[1_700_000_000_000], base_offset=5)[:HEADER] + b"".join(records)
    batch = with_number(batch, LAST_DELTA_AT, len(records) - 1 if last_delta is None else last_delta)
    return resealed(with_number(batch, COUNT_AT, len(records)))


SHAPES = ["short", "keys and headers", "medium", "some large", "far apart", "append time"]


@cache
def values_of(shape: str) -> list[bytes]:
    rng = np.random.default_rng(SHAPES.index(shape))
    count, most = {"short": (120_000, 20), "medium": (4000, 1300), "some large": (60_000, 60)}.get(shape, (70_000, 40))
    ends = np.cumsum(rng.integers(most // 2, most, count))
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
    many = shape == "keys and headers"
    batch = kbatch.encode(
        values,
        keys=[None if len(value) % 3 == 0 else value[:7] for value in values] if many else None,
        headers=[[("k", value[:5])] * (len(value) % 4) for value in values] if many else None,
        timestamps=np.cumsum(rng.integers(0, 3 if shape != "far apart" else 90_000, len(values))) + 1_700_000_000_000,
        base_offset=1000,
    )
    if shape == "append time":
        batch = bytearray(batch)
        batch[ATTRIBUTES_AT + 1] |= oracle.LOG_APPEND_TIME
        batch = resealed(batch)
    assert len(batch) > LONG
    return batch


@pytest.mark.parametrize("shape", SHAPES)
def test_long_batches_are_shared(shape: str) -> None:
    batch = long_batch(shape)
    table = kbatch.decode(batch)
    assert list(table.values()) == values_of(shape)
    assert table.records["offset"].tolist() == list(range(1000, 1000 + len(table)))
    small = kbatch.encode([b"a", b"b"], base_offset=3)
    for options in (
        {},
        {"crc": "mark"},
        {"crc": "skip"},
        {"columns": ["offset", "value"]},
        {"columns": ["timestamp"]},
        {"include_control": True, "on_error": "skip"},
    ):
        for data in (batch, small * 9 + batch, small * 500 + batch, batch + batch, batch + small[:-3]):
            assert same(data, **options) == [NOWHERE] * 2
    # It isn't the last one; some of it isn't wanted; it is copied, or not read.
    packed = kbatch.encode([b"a"], codec="lz4")
    for data in (batch + small, batch + packed, packed + batch):
        assert same(data) == []
    for options in ({"start_offset": 1100}, {"stop_offset": 1100}, {"start_offset": 5, "stop_offset": 1 << 40}):
        assert same(batch, **options) == []


def test_short_batches_and_long_records_are_not_shared() -> None:
    for values in ([b"v" * 20] * 70_000, [bytes(1100)] * 2500):
        assert same(kbatch.encode(values)) == []


def test_compacted_batches() -> None:
    """Records were removed, and the offsets tell (CNT-R5); or the header doesn't."""
    rng = np.random.default_rng(1)
    kept = np.flatnonzero(rng.integers(0, 50, 80_000))
    records = [oracle.encode_record(i, i, b"key", b"value of %d bytes..." % i) for i in kept.tolist()]
    last = int(kept[-1])
    batch = batch_of(records, last)
    assert len(kbatch.decode(batch)) == len(records)
    assert same(batch) == []
    # Only the first piece is read in vain.
    assert same(batch_of(records)) == [0, 0]
    # None of what is read first, but some later.
    records = [oracle.encode_record(i + (i > 60_000), i, b"key", b"value of %d bytes..." % i) for i in range(80_000)]
    wrong_at, _ = same(batch_of(records))
    assert len(batch) // 2 < wrong_at < len(batch)


@pytest.mark.parametrize("first", [1, 300, 17_000, 70_000, 200_000])
def test_values_that_are_records(first: int) -> None:
    """What is guessed within a value that holds a run of records is wrong, whatever their offsets."""
    inner = b"".join(oracle.encode_record(first + i, i, b"key", b"value") for i in range(20_000))
    records = [oracle.encode_record(i, i, None, b"v" * 20) for i in range(16_000)]
    records.append(oracle.encode_record(len(records), 0, b"k", inner))
    records += [oracle.encode_record(len(records) + i, i, None, b"v" * 20) for i in range(50_000)]
    batch = batch_of(records)
    shared = same(batch)
    assert len(shared) == 2
    if 16_000 < first < len(records):
        assert max(shared) < NOWHERE
    # And at every depth of it, in values of any size.
    rng = np.random.default_rng(first)
    values = []
    while sum(map(len, values)) < 2 * LONG:
        at = int(rng.integers(0, len(inner) - 60_000))
        values.append(inner[at : at + int(rng.integers(0, 60_000))])
        values += [b"v"] * int(rng.integers(50, 100))
    assert len(same(kbatch.encode(values))) == 2


# -- damage


def guesses(payload: bytes) -> list[int]:
    """About where pieces begin."""
    array = np.frombuffer(payload, np.uint8)
    found, at = [], 0
    while at < len(payload):
        left = len(payload) - at
        guess = kernel.guess(array, at + min(max(left // 4, 64 << 10), 1 << 20))
        at = len(payload) if guess is None else guess[0]
        found.append(at)
    return found


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_damage(shape: str) -> None:
    batch = long_batch(shape)
    rng = np.random.default_rng(4)
    small = kbatch.encode([b"a", b"b"], base_offset=3)
    places = [HEADER + at + near for at in guesses(batch[HEADER:]) for near in (-30, -2, -1, 0, 1, 2, 3, 5, 200)]
    places = [place for place in places if place < len(batch)]
    places += rng.integers(ATTRIBUTES_AT, len(batch), 60).tolist() + list(range(ATTRIBUTES_AT, HEADER + 12))
    wrong = 0
    for place in places:
        damaged = bytearray(batch)
        damaged[place] ^= 1 << int(rng.integers(8))
        # The checksum doesn't hold, or does all the same.
        for data in (bytes(damaged), resealed(damaged)):
            crc = ["verify", "mark", "skip"][int(rng.integers(3))]
            shared = same(small + data, crc=crc, on_error=["skip", "raise"][int(rng.integers(2))])
            wrong += min(shared, default=NOWHERE) < NOWHERE
    assert wrong > 10


def test_bad_checksums() -> None:
    batch = bytearray(long_batch("short"))
    batch[17] ^= 1
    data = bytes(batch)
    for on_error in ("raise", "stop", "skip"):
        assert same(data, on_error=on_error)
    assert outcome(data, threads=2)[0] is kbatch.CrcMismatchError
    for crc, status in (("mark", 1), ("skip", 0)):
        assert same(data, crc=crc) == [NOWHERE] * 2
        table = kbatch.decode(data, crc=crc, threads=2)
        assert (len(table), table.batches["status"].tolist()) == (120_000, [status])


@pytest.mark.parametrize("more", [-100_000, -1000, -1, 1, 2, 1000, 100_000, -(1 << 31), (1 << 31) - 1])
def test_counts_that_are_wrong(more: int) -> None:
    batch = long_batch("short")
    count = max(min(120_000 + more, (1 << 31) - 1), -(1 << 31))
    for last_delta in (count - 1, 119_999):
        data = with_number(batch, LAST_DELTA_AT, max(last_delta, -(1 << 31)))
        data = resealed(with_number(data, COUNT_AT, count))
        for on_error in ("raise", "skip"):
            same(data, on_error=on_error)
    assert outcome(data, threads=2)[0] is not bytes


def test_payloads_cut_and_continued() -> None:
    batch = long_batch("short")
    starts = guesses(batch[HEADER:])
    for end in [*(HEADER + at + near for at in starts[:-1] for near in (-1, 0, 1)), len(batch) - 1, LONG, LONG - 1]:
        same(resealed(batch[:end]), on_error="skip")
        same(batch[:end], on_error="skip")
    for more in (b"\0", bytes(50), batch[HEADER : HEADER + 23], batch[HEADER:]):
        same(resealed(batch + more), on_error="skip")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_anything(data: st.DataObject) -> None:
    """Any bytes moved, changed, left out or put in anywhere."""
    batch = bytearray(long_batch(data.draw(st.sampled_from(SHAPES))))
    places = st.integers(HEADER, len(batch) - 1) | st.sampled_from([LONG // 2, *guesses(bytes(batch[HEADER:]))[:-1]])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(places)
        size = data.draw(st.sampled_from([1, 2, 23, 1000, 100_000]))
        match data.draw(st.sampled_from(["change", "leave out", "put in", "copy", "count"])):
            case "change":
                batch[at : at + size] = data.draw(st.sampled_from([b"\0", b"\xff", b"\x0c\0", b"\x7e"])) * size
            case "leave out":
                del batch[at : at + size]
            case "put in":
                batch[at:at] = data.draw(st.binary(max_size=50))
            case "copy":
                other = data.draw(places)
                batch[at : at + size] = batch[other : other + size]
            case "count":
                count = int.from_bytes(batch[COUNT_AT:HEADER], "big") + data.draw(st.integers(-1000, 1000))
                batch = bytearray(with_number(with_number(bytes(batch), COUNT_AT, count), LAST_DELTA_AT, count - 1))
    same(
        resealed(batch) if data.draw(st.booleans()) else bytes(batch),
        on_error=data.draw(st.sampled_from(["raise", "skip"])),
        crc=data.draw(st.sampled_from(["verify", "mark", "skip"])),
        columns=data.draw(st.none() | st.just(["timestamp"]) | st.just(["offset", "value"])),
    )


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals of POSIX")
def test_ctrl_c() -> None:
    """At any time of it: it ends, and the next call is as good as before."""
    small = kbatch.encode([b"v" * 30] * 3000)
    data = small * 300 + long_batch("short")
    wanted = outcome(data)

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
    assert outcome(data, threads=3) == wanted
