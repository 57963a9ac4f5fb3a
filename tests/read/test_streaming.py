"""StreamDecoder equals one decode, however the input is chunked and flushed; FRM-R3, FRM-R14; copies and memory."""

from __future__ import annotations

import gc
import io
import os
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import Outcome, assert_same, cut, streamed, whole
from tables import lost, offsets_of, records_of, short_inputs

import kbatch
from kbatch.kernels import buffers

ON_ERROR = ("raise", "stop", "skip")


A, B, C, D = (oracle.three(offset) for offset in (0, 10, 20, 30))
PACKED = oracle.three(40, codec="gzip")
BAD_B = oracle.with_crc(B, 1)
INVALID = oracle.build_batch(payload=b"\x7f" * 9, record_count=1, base_offset=10)
NESTED = oracle.build_batch([oracle.encode_record(value=oracle.three(70))], base_offset=10)
LONG_B = B[:8] + (len(B) + len(C) - 12).to_bytes(4, "big") + B[12:]
HUGE_B = B[:8] + (2**31 - 1).to_bytes(4, "big") + B[12:]
FAR_B = B[:8] + (60 << 20).to_bytes(4, "big") + B[12:]
STREAMS = {
    "good": A + B + PACKED + C,
    "nothing": b"",
    "partial": A + B + C[:70],
    "partial header": A + C[:14],
    "bad checksum": A + BAD_B + C + D,
    "bad checksum at the end": A + C + BAD_B,
    "two bad checksums": A + BAD_B + BAD_B + C + D,
    "all bad": BAD_B + BAD_B + BAD_B,
    "all bad, partial": BAD_B + BAD_B + A[:30],
    "invalid": A + INVALID + C,
    "invalid, bad checksum": INVALID + oracle.with_crc(INVALID, 3) + C,
    "length too long": A + LONG_B + C + D,
    "length of 2 GiB": A + HUGE_B + C + D,
    "length of 2 GiB at the end": A + HUGE_B,
    "length of 60 MiB": A + FAR_B + C + D,
    "bad, then a length of 2 GiB": A + BAD_B + HUGE_B + C,
    "invalid, then a length of 2 GiB": A + INVALID + HUGE_B + C,
    "short magic 0, then a length of 2 GiB": A + oracle.build_batch(magic=0, payload=b"x" * 9) + HUGE_B[:60] + C,
    "zeros": A + bytes(100) + C,
    "zeros at the end": A + C + bytes(100),
    "nested in a bad batch": A + oracle.with_crc(NESTED, 1) + C,
    "nested in a batch with a longer length": NESTED[:8] + (200).to_bytes(4, "big") + NESTED[12:] + C + D,
    "unknown codec": A + oracle.build_batch(payload=b"x", record_count=1, attributes=5) + C,
    "payload is not gzip": A + oracle.build_batch(payload=b"no gzip", record_count=1, attributes=1, base_offset=9) + C,
    "noise": random.Random(5).randbytes(90) + A + random.Random(6).randbytes(200),
}


@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
@pytest.mark.parametrize("on_error", ON_ERROR)
@pytest.mark.parametrize("name", STREAMS)
def test_every_split_of_the_input_returns_the_same_as_one_decode(name: str, on_error: str, crc: str) -> None:
    data = STREAMS[name]
    expected = whole(data, on_error=on_error, crc=crc)
    # Framing is the same with each `crc` and `on_error`. 5 and 7 have no common divisor with the sizes of the fields of
    # the header.
    step = 7 if crc != "verify" else 1 if on_error == "skip" else 5
    if os.environ.get("KBATCH_TEST_ALL"):
        step = 1
    for at in range(0, len(data) + 1, step):
        chunks = [data[:at], data[at:]]
        assert_same(streamed(chunks, on_error=on_error, crc=crc), expected)
        if at % 7 == 0:
            assert_same(streamed(chunks, lambda _: False, on_error=on_error, crc=crc), expected)
    bytewise = [data[i : i + 1] for i in range(len(data))]
    assert_same(streamed(bytewise, on_error=on_error, crc=crc), expected)
    assert_same(streamed(bytewise, lambda i: i % 50 == 0, on_error=on_error, crc=crc), expected)


@st.composite
def broken_streams(draw: st.DrawFn) -> bytes:
    """Draw batches of any codec, with some bytes damaged, removed or inserted."""
    parts = []
    for i in range(draw(st.integers(0, 7))):
        records = [
            oracle.encode_record(j, j, b"k", draw(st.binary(max_size=40)), [(b"h", None)] * (j % 2))
            for j in range(draw(st.integers(0, 3)))
        ]
        parts.append(
            oracle.build_batch(
                records,
                codec=draw(st.sampled_from(["none", "none", "none", "gzip", "zstd"])),
                base_offset=10 * i,
                attributes=draw(st.sampled_from([0, 0, 0, oracle.TRANSACTIONAL | oracle.CONTROL])),
            )
        )
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "flip", "header", "cut", "insert"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "header" if parts:
                # Damage the first bytes of a batch: offset, length, magic, checksum.
                start = sum(map(len, parts[: draw(st.integers(0, len(parts) - 1))]))
                at = start + draw(st.integers(8, 21))
                if at < len(data):
                    data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(0, 100))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=90))
    return bytes(data)


@short_inputs
@given(st.data())
@pytest.mark.parametrize("on_error", ON_ERROR)
def test_chunks_and_flushes_do_not_change_the_result(on_error: str, data: st.DataObject) -> None:
    stream = data.draw(broken_streams())
    points = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    flushes = data.draw(st.sets(st.integers(0, 12)))
    options: dict[str, Any] = {
        "on_error": on_error,
        "crc": data.draw(st.sampled_from(["verify", "verify", "mark", "skip"])),
        "include_control": data.draw(st.booleans()),
        "start_offset": data.draw(st.none() | st.integers(0, 60)),
        "stop_offset": data.draw(st.none() | st.integers(0, 60)),
        # Below the size of a table that `decode_stream` may split: larger batches do not fit such a table.
        "limits": kbatch.Limits(max_batch_bytes=1 << 20),
    }
    expected = whole(stream, **options)
    chunks = cut(stream, points)
    assert_same(streamed(chunks, flushes.__contains__, **options), expected)
    for max_bytes in (1, 300, 1 << 20):
        found = Outcome(kbatch.decode_stream(chunks, max_bytes=max_bytes, **options))
        if on_error == "stop" and expected.losses:
            # The stream reads nothing after damage: the loss ends where reading ended.
            assert [loss[0] for loss in found.losses] == [loss[0] for loss in expected.losses]
            found.losses = expected.losses
        # decode_stream does not yield empty tables.
        found.consumed = expected.consumed
        assert_same(found, expected)


def test_positions_count_from_the_start_of_the_stream() -> None:
    decoder = kbatch.StreamDecoder(origin=1000, source="topic-3", on_error="skip")
    positions, losses = [], []
    for chunk in (A, B[:5], B[5:], bytes(30), C, D[:20]):
        decoder.feed(chunk)
        table = decoder.flush()
        positions += table.batches["position"].tolist()
        losses += table.losses
    size = len(A)
    assert positions == [1000, 1000 + size, 1000 + 2 * size + 30]
    assert (decoder.position, decoder.pending_bytes) == (1000 + 3 * size + 30, 20)
    losses += decoder.finish().losses
    assert [loss[:2] for loss in losses] == [(1000 + 2 * size, 30), (1000 + 3 * size + 30, 20)]
    assert f"20 of {size} bytes" in losses[1].reason
    decoder = kbatch.StreamDecoder(origin=1000, source="topic-3")
    decoder.feed(A + BAD_B)
    assert len(decoder.flush()) == 3
    for _ in range(2):
        with pytest.raises(kbatch.CrcMismatchError, match=f"topic-3, byte {1000 + size}, base offset 10: ") as caught:
            decoder.flush()
        assert (caught.value.source, caught.value.position) == ("topic-3", 1000 + size)


def test_an_incomplete_batch_at_the_end_is_an_error_that_loses_nothing_frm_r3() -> None:
    decoder = kbatch.StreamDecoder(source="orders")
    assert decoder.feed(A + B[:50]) == 1
    with pytest.raises(
        kbatch.TruncatedBatchError, match=f"orders, byte {len(A)}: .*, after 50 of {len(B)} bytes"
    ) as caught:
        decoder.finish()
    assert (caught.value.source, caught.value.position) == ("orders", len(A))
    assert len(decoder.flush()) == 3
    with pytest.raises(kbatch.TruncatedBatchError, match="feed the rest"):
        decoder.finish()
    assert decoder.feed(B[50:]) == 1
    assert len(decoder.finish()) == 3
    assert (len(decoder.flush()), len(decoder.finish())) == (0, 0)
    for more in (lambda: decoder.feed(b""), lambda: decoder.read_from(io.BytesIO(A).readinto)):
        with pytest.raises(ValueError, match="stream is finished"):
            more()


def test_records_before_damage_at_the_end_can_be_flushed() -> None:
    decoder = kbatch.StreamDecoder()
    decoder.feed(A + BAD_B)
    with pytest.raises(kbatch.CrcMismatchError):
        decoder.finish()
    assert len(decoder.flush()) == 3


def test_feed_returns_the_number_of_batches_that_a_flush_decodes() -> None:
    decoder = kbatch.StreamDecoder(on_error="skip")
    assert [decoder.feed(chunk) for chunk in (A[:60], A[60:], B + C + D[:9], b"")] == [0, 1, 3, 3]
    assert decoder.flush().batches["base_offset"].tolist() == [0, 10, 20]
    assert [decoder.feed(D[9:]), decoder.feed(bytes(20))] == [1, 2]
    assert len(decoder.flush()) == 3
    assert decoder.feed(bytes(5)) == 0
    assert decoder.feed(A) == 1
    (loss,) = decoder.flush().losses
    assert loss[:2] == (4 * len(A), 25)
    decoder.feed(A + B[:9])
    assert repr(decoder) == f"<StreamDecoder at byte {5 * len(A) + 25}: {len(A) + 9} bytes pending, 1 complete batch>"


def test_stop_drops_and_counts_the_bytes_after_damage() -> None:
    decoder = kbatch.StreamDecoder(on_error="stop")
    decoder.feed(A + BAD_B)
    assert len(decoder.flush()) == 3
    assert decoder.stopped
    assert [decoder.feed(C), decoder.read_from(io.BytesIO(C).readinto)] == [0, len(C)]
    assert (len(decoder.flush()), decoder.pending_bytes) == (0, 0)
    table = decoder.finish()
    assert lost(table) == [(len(A), 4 * len(A))]
    # No further chunks are taken from an iterated source.
    taken = iter([A, BAD_B, C, D])
    tables = list(kbatch.decode_stream(taken, on_error="stop"))
    assert list(taken) == [C, D]
    assert [loss[:2] for table in tables for loss in table.losses] == [(len(A), len(A))]


@pytest.mark.parametrize("on_error", ON_ERROR)
def test_a_batch_above_the_limit_is_an_error_at_its_header(on_error: str) -> None:
    """FRM-R14: brokers return batches larger than the fetch size, but none accepts a batch of 2 GiB."""
    decoder = kbatch.StreamDecoder(on_error=on_error)  # type: ignore[arg-type]
    before = buffers.pool_stats()
    assert decoder.feed(A + HUGE_B[:17]) == 2
    assert len(decoder.flush()) == 3
    if on_error == "raise":
        with pytest.raises(kbatch.LimitExceededError, match="declares a batch of 2147483659 bytes") as caught:
            decoder.flush()
        assert caught.value.position == len(A)
        return
    decoder.feed(HUGE_B[17:])
    decoder.feed(C)
    # The decoder may need more bytes to check what looks like a header inside the damage.
    tables = [decoder.flush(), decoder.finish()]
    assert sum(map(len, tables)) == (3 if on_error == "skip" else 0)
    losses = [loss for table in tables for loss in table.losses]
    assert [loss[:2] for loss in losses] == [(len(A), len(B) * (1 if on_error == "skip" else 2))]
    assert "Limits" in losses[0].reason
    assert buffers.pool_stats().live_bytes - before.live_bytes < 4 << 20


def test_the_batch_limit_is_the_same_for_decode_and_streams() -> None:
    """FRM-R14: a batch above the limit is damage for `decode` and for streams; reading resumes at its end."""
    limits = kbatch.Limits(max_batch_bytes=1000)
    large = oracle.build_batch([oracle.encode_record(value=bytes(1000))], base_offset=10)
    data = A + large + C
    with pytest.raises(kbatch.LimitExceededError, match="above the limit of 1000"):
        kbatch.decode(data, limits=limits)
    table = kbatch.decode(data, limits=limits, on_error="skip")
    assert table.batches["base_offset"].tolist() == [0, 20]
    assert lost(table) == [(len(A), len(A) + len(large))]
    for at in range(0, len(data), 13):
        found = streamed([data[:at], data[at:]], on_error="skip", limits=limits)
        assert [batch.base_offset for batch, _ in found.batches] == [0, 20]
        assert found.losses == [(len(A), len(large), None)]


def test_the_caller_sets_the_batch_limit() -> None:
    """FRM-R14: a caller that knows the topic's maximum batch size need not wait for a larger batch."""
    limits = kbatch.Limits(max_batch_bytes=1000)
    large = oracle.build_batch([oracle.encode_record(value=bytes(1000))], base_offset=10)
    decoder = kbatch.StreamDecoder(limits=limits)
    decoder.feed(A + large[:17])
    assert len(decoder.flush()) == 3
    with pytest.raises(kbatch.LimitExceededError, match=rf"{len(large)} bytes, above the limit of 1000; .*\(max_batch"):
        decoder.flush()
    found = streamed([A, large, C], on_error="skip", limits=limits)
    assert [batch.base_offset for batch, _ in found.batches] == [0, 20]
    assert found.losses == [(len(A), len(large), None)]
    # The limit may exceed the default.
    limits = kbatch.Limits(max_batch_bytes=2**31 - 1)
    decoder = kbatch.StreamDecoder(limits=limits)
    assert decoder.feed(FAR_B[:100] + HUGE_B) == 0
    assert len(decoder.flush()) == 0
    # The search of `decode` applies the limit: it skips the good batch that is larger.
    bad = oracle.with_crc(A, 1)
    long_bad = bad[:8] + (len(A) - 11).to_bytes(4, "big") + bad[12:]
    for limit, offsets in ((1000, [20, 21, 22]), (2000, [10, 20, 21, 22])):
        table = kbatch.decode(long_bad + large + C, on_error="skip", limits=kbatch.Limits(max_batch_bytes=limit))
        assert offsets_of(table) == offsets
    for wrong in (-1, 60):
        with pytest.raises(ValueError, match="max_batch_bytes must be at least 61"):
            kbatch.Limits(max_batch_bytes=wrong)


# -- memory


def address(table: kbatch.RecordTable) -> int:
    return int(table.data.ctypes.data)


@pytest.mark.parametrize("view", [lambda b: b, memoryview, lambda b: memoryview(b).toreadonly()])
def test_a_chunk_may_be_overwritten_and_resized_after_feed(view: Callable[[bytearray], Any]) -> None:
    """A receive loop overwrites its buffer, and may resize it."""
    decoder = kbatch.StreamDecoder()
    buffer = bytearray(A)
    decoder.feed(view(buffer))
    buffer[:] = bytes(len(buffer))
    buffer += b"resized"
    assert decoder.flush().values() == [b"a", b"b", b"c"]


def test_tables_keep_their_bytes_when_more_is_fed() -> None:
    """After a flush in the middle of joined bytes, later bytes must not overwrite the ones a table points into."""
    decoder = kbatch.StreamDecoder()
    data = (A + B + C + D) * 20
    tables = []
    for i in range(0, len(data), 50):
        decoder.feed(bytearray(data[i : i + 50]))
        tables.append(decoder.flush())
    tables.append(decoder.finish())
    assert [record for table in tables for record in records_of(table)] == records_of(kbatch.decode(data))


def test_a_large_batch_in_small_chunks_is_joined_in_linear_time() -> None:
    value = random.Random(1).randbytes(3 << 20)
    batch = oracle.build_batch([oracle.encode_record(value=value)], crc=0)
    decoder = kbatch.StreamDecoder(crc="skip")
    began = time.process_time()
    before = buffers.pool_stats()
    for i in range(0, len(batch), 16):
        decoder.feed(batch[i : i + 16])
        if i % 4096 == 0:
            assert len(decoder.flush()) == 0
    after = buffers.pool_stats()
    assert after.fresh + after.reused - before.fresh - before.reused < 1000
    assert decoder.flush().value(0) == value
    assert time.process_time() - began < 20


def test_many_bad_batches_in_small_chunks_take_linear_time() -> None:
    """Undecided bytes are examined again only after they have grown by a large factor."""
    data = BAD_B * 8000
    for size in (40, 1000):
        decoder = kbatch.StreamDecoder(on_error="skip")
        began = time.process_time()
        for i in range(0, len(data), size):
            decoder.feed(data[i : i + size])
            decoder.flush()
        table = decoder.finish()
        assert time.process_time() - began < 10
        assert lost(table)[-1][1] == len(data)


def test_endless_damage_is_not_kept_in_memory() -> None:
    decoder = kbatch.StreamDecoder(on_error="skip")
    losses = []
    bad = oracle.with_crc(INVALID, 1)
    for _ in range(400):
        decoder.feed(bad * 10)
        losses += decoder.flush().losses
        assert decoder.pending_bytes < 100_000 + 10 * len(bad)
    decoder.feed(A)
    table = decoder.flush()
    assert len(table) == 3
    losses += table.losses
    assert [loss[:2] for loss in losses] == [(0, 4000 * len(bad))]
    noise = bytes(1 << 20)
    for _ in range(50):
        decoder.feed(noise)
        assert decoder.flush().consumed >= 0
        assert decoder.pending_bytes < 100


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_long_stream_takes_memory_in_proportion_to_a_chunk(codec: str, kind: Callable[[bytes], Any]) -> None:
    # The values compress to about a fifth, a typical ratio.
    noise = random.Random(3)
    records = [oracle.encode_record(i, value=noise.randbytes(20) + bytes(80)) for i in range(150)]
    batch = oracle.build_batch(records, codec=codec)
    period = batch * (300_000 // len(batch))
    chunk = 200_000

    def chunks(total: int) -> Iterator[Any]:
        source = io.BytesIO(period)
        left = total // len(period) * len(period)
        while left:
            piece = source.read(min(chunk, left))
            if not piece:
                source.seek(0)
                continue
            left -= len(piece)
            yield kind(piece)

    def run(total: int) -> int:
        peak, records = 0, 0
        for table in kbatch.StreamDecoder().tables(chunks(total)):
            records += len(table)
            del table
            peak = max(peak, buffers.pool_stats().live_bytes)
        assert records > 0
        return peak

    gc.collect()
    before = buffers.pool_stats().live_bytes
    tracemalloc.start()
    try:
        run(2 << 20)
        short = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        fresh = buffers.pool_stats().fresh
        pool_peak = run(30 << 20) - before
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert buffers.pool_stats().fresh - fresh < 20
    assert pool_peak < (16 << 20 if codec == "gzip" else 4 << 20)
    assert peak < short + (1 << 20)


def test_max_bytes_bounds_the_size_of_tables() -> None:
    batch = oracle.build_batch([oracle.encode_record(i, value=bytes(20)) for i in range(20)])
    data = batch * 3000
    cost = 20 * 56 + len(batch) + kbatch.BATCH_DTYPE.itemsize
    for chunks in ([data], cut(data, range(0, len(data), 100_000))):
        tables = list(kbatch.decode_stream(chunks, max_bytes=50_000))
        assert sum(map(len, tables)) == 60_000
        assert max(len(table.batches) for table in tables) * cost < 80_000
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        kbatch.decode_stream([data], max_bytes=0)
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        kbatch.StreamDecoder().tables([data], max_bytes=0)


# -- sources


@pytest.fixture
def log_bytes(golden: Path) -> bytes:
    return (golden / "logs" / "codec-none-0" / "00000000000000000000.log").read_bytes()


def test_file_objects_are_sources(golden: Path, log_bytes: bytes) -> None:
    expected = records_of(kbatch.decode(log_bytes))
    path = golden / "logs" / "codec-none-0" / "00000000000000000000.log"

    class OnlyRead:
        def __init__(self) -> None:
            self.file = io.BytesIO(log_bytes)

        def read(self, size: int) -> bytes:
            return self.file.read(min(size, 777))

    with open(path, "rb") as buffered, open(path, "rb", buffering=0) as raw:
        for source in (buffered, raw, io.BytesIO(log_bytes), OnlyRead(), iter([log_bytes]), cut(log_bytes, [5, 900])):
            tables = kbatch.decode_stream(source)
            assert [record for table in tables for record in records_of(table)] == expected


def test_a_pipe_is_a_source(log_bytes: bytes) -> None:
    reader, writer = os.pipe()

    def write() -> None:
        with open(writer, "wb") as file:
            file.write(log_bytes)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        tables = list(kbatch.decode_stream(iter(lambda: os.read(reader, 4096), b"")))
    finally:
        thread.join()
        os.close(reader)
    assert [record for table in tables for record in records_of(table)] == records_of(kbatch.decode(log_bytes))
    assert len(tables) > 1


def test_a_socket_writes_into_the_decoders_memory(log_bytes: bytes) -> None:
    near, far = socket.socketpair()

    def send() -> None:
        with far:
            far.sendall(log_bytes)

    thread = threading.Thread(target=send)
    thread.start()
    decoder = kbatch.StreamDecoder()
    records = []
    with near:
        while decoder.read_from(near.recv_into, 10_000):
            records += records_of(decoder.flush())
    thread.join()
    records += records_of(decoder.finish())
    assert records == records_of(kbatch.decode(log_bytes))


def test_a_table_is_yielded_as_soon_as_a_batch_is_complete() -> None:
    near, far = socket.socketpair()
    with near, far, near.makefile("rb") as file:
        tables = kbatch.decode_stream(file)
        for batch in (A, B):
            far.sendall(batch)
            assert len(next(tables)) == 3
        far.shutdown(socket.SHUT_WR)
        assert list(tables) == []


def test_unusable_sources_raise_an_error() -> None:
    with pytest.raises(TypeError, match=r"kbatch\.decode"):
        kbatch.decode_stream(A)
    with pytest.raises(TypeError, match="open for binary reading"):
        list(kbatch.decode_stream(io.StringIO("text")))  # type: ignore[arg-type]

    class NotReady:
        def read(self, size: int) -> None:
            return None

    with pytest.raises(BlockingIOError, match="nothing to read"):
        list(kbatch.decode_stream(NotReady()))
    decoder = kbatch.StreamDecoder()
    with pytest.raises(TypeError, match="buffer protocol"):
        decoder.feed("text")  # type: ignore[arg-type]
    with pytest.raises(BlockingIOError, match="nothing to read"):
        decoder.read_from(lambda _: None)
    for wrong in (-1, 11):
        with pytest.raises(ValueError, match="readinto returned"):
            decoder.read_from(lambda _, wrong=wrong: wrong, 10)  # type: ignore[misc]
    with pytest.raises(ValueError, match="size must be at least 1"):
        decoder.read_from(io.BytesIO(A).readinto, 0)
    assert decoder.pending_bytes == 0


def test_streams_have_the_options_of_decode() -> None:
    import inspect

    ours = inspect.signature(kbatch.StreamDecoder).parameters
    theirs = {name: p for name, p in inspect.signature(kbatch.decode).parameters.items() if name != "data"}
    assert {name: p for name, p in ours.items() if name not in ("origin", "source")} == theirs
    with pytest.raises(ValueError, match="isolation must be one of 'read_uncommitted', 'read_committed'"):
        kbatch.StreamDecoder(isolation="serializable")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_error must be one of"):
        kbatch.StreamDecoder(on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads"):
        kbatch.StreamDecoder(threads=-1)
