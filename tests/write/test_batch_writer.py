"""BatchWriter: batches that do not depend on the calls, consecutive offsets, and no partial batch after an error."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import CONTENT, HEADER
from tables import records_of

import kbatch

RECORD = st.tuples(CONTENT, CONTENT, st.lists(HEADER, max_size=2), st.integers(-1, 2**41))
PRODUCER = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 2**31 - 5, "transactional": True}


@given(
    records=st.lists(RECORD, max_size=60),
    pieces=st.lists(st.integers(0, 9), max_size=12),
    batch_size=st.sampled_from([0, 100, 1000, 16384]),
    max_records=st.sampled_from([None, 1, 7]),
    codec=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
    magic=st.sampled_from([2, 2, 1, 0]),
    base_offset=st.sampled_from([0, 2**40]),
)
def test_batches_do_not_depend_on_the_calls(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    pieces: list[int],
    batch_size: int,
    max_records: int | None,
    codec: str,
    magic: int,
    base_offset: int,
) -> None:
    """Any mixture of `append` and `append_many` writes the bytes of one `encode`."""
    options: dict[str, Any] = {"batch_size": batch_size, "max_records": max_records, "magic": magic}
    options["codec"] = "gzip" if codec == "zstd" and magic < 2 else codec
    options["base_offset"] = base_offset
    if magic == 2:
        options |= PRODUCER
    file = io.BytesIO()
    written = 0
    with kbatch.BatchWriter(file, **options) as writer:
        for size in pieces:
            piece = records[written : written + size]
            if size % 3 == 0 or size == 1:
                for key, value, headers, timestamp in piece:
                    offset = writer.append(
                        value,
                        key=key,
                        timestamp=timestamp if magic else None,
                        headers=headers if magic == 2 else None,
                    )
                    assert offset == writer.next_offset - 1
            else:
                offsets = writer.append_many(
                    [value for _, value, _, _ in piece],
                    keys=[key for key, _, _, _ in piece],
                    timestamps=[timestamp for _, _, _, timestamp in piece] if magic else None,
                    headers=[headers for _, _, headers, _ in piece] if magic == 2 else None,
                )
                assert list(offsets) == list(range(base_offset + written, base_offset + written + len(piece)))
            written += len(piece)
            assert writer.next_offset == base_offset + written
            assert writer.bytes_written == len(file.getvalue())
            assert sum(len(b.records) for b in oracle.decode(file.getvalue()).batches) + writer.pending == written
    assert writer.pending == 0
    records = records[:written]
    assert file.getvalue() == kbatch.encode(
        [value for _, value, _, _ in records],
        keys=[key for key, _, _, _ in records],
        timestamps=[timestamp for _, _, _, timestamp in records] if magic else None,
        headers=[headers for _, _, headers, _ in records] if magic == 2 else None,
        **options,
    )


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_every_batch_has_the_delete_horizon(codec: str) -> None:
    """TS-R5, KIP-534: a batch also has it if a later call completes the batch."""
    options: dict[str, Any] = {"delete_horizon": 5000, "codec": codec, "batch_size": 100, "transactional": True}
    options |= {"producer_id": 7, "producer_epoch": 1, "base_sequence": 3, "leader_epoch": 2}
    times = [1000, 9000, 4000] * 10
    file = io.BytesIO()
    with kbatch.BatchWriter(file, **options) as writer:
        for start in range(0, 30, 7):
            writer.append_many([b"v" * 9] * len(times[start : start + 7]), timestamps=times[start : start + 7])
    assert file.getvalue() == kbatch.encode([b"v" * 9] * 30, timestamps=times, **options)
    table = kbatch.decode(file.getvalue())
    assert table.records["timestamp"].tolist() == times
    assert set(table.batches["base_timestamp"].tolist()) == {5000}


@pytest.mark.parametrize("codec", ["none", "lz4"])
@settings(max_examples=5)
@given(rows=st.integers(1, 60_000))
def test_batches_continue_over_large_pieces(codec: str, rows: int) -> None:
    """Pieces of several megabytes; the last records of a piece are in one batch with the first records of the next."""
    numbers = pa.array(np.random.default_rng(rows).integers(0, 2**60, rows).view("V8").tolist(), pa.binary())
    values = pa.chunked_array([numbers] * 3)
    file = io.BytesIO()
    with kbatch.BatchWriter(file, codec=codec, batch_size=5000) as writer:
        for start in range(0, len(values), 25_001):
            writer.append_many(values.slice(start, 25_001), timestamps=5, keys=values.slice(start, 25_001))
    assert file.getvalue() == kbatch.encode(values, keys=values, timestamps=5, codec=codec, batch_size=5000)


def test_values_may_be_larger_than_a_batch_or_run() -> None:
    """One piece makes several runs of 4 MiB; some records are larger than a batch or than a run."""
    values = [b"x" * size for size in (10, 5 << 20, 100, 9_000_000, 3 << 20, 3 << 20, 1, 70_000)]
    for codec in ("none", "zstd"):
        file = io.BytesIO()
        with kbatch.BatchWriter(file, codec=codec) as writer:
            writer.append_many(values, timestamps=0)
            for value in values:
                writer.append(value, timestamp=0)
        assert file.getvalue() == kbatch.encode(values * 2, timestamps=0, codec=codec, batch_size=16384)


def test_offsets_may_have_gaps() -> None:
    file = io.BytesIO()
    with kbatch.BatchWriter(file, base_offset=5) as writer:
        assert writer.append_many([b"a", b"b"], offsets=[5, 9]).tolist() == [5, 9]  # type: ignore[union-attr]
        assert writer.append(b"c") == 10
        assert writer.append_many([b"d"], offsets=pa.array([20])).tolist() == [20]  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="must be at least 21, got 20"):
            writer.append_many([b"e"], offsets=[20])
        with pytest.raises(ValueError, match="record 1: offset is 30; offsets must be strictly increasing"):
            writer.append_many([b"e", b"f"], offsets=[30, 30])
        assert writer.append_many([]) == range(21, 21)
    assert kbatch.decode(file.getvalue()).records["offset"].tolist() == [5, 9, 10, 20]


def test_sequence_0_follows_the_largest_one_seq_r1() -> None:
    """Across batches, within a batch, and across flushes; the sequences advance with the offsets (SEQ-R3)."""
    options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 2**31 - 2}
    out = io.BytesIO()
    with kbatch.BatchWriter(out, max_records=1, **options) as writer:
        writer.append_many([b"a", b"b", b"c"])
        writer.flush()
        writer.append(b"d")
    assert kbatch.scan(out.getvalue())["base_sequence"].tolist() == [2**31 - 2, 2**31 - 1, 0, 1]
    out = io.BytesIO()
    with kbatch.BatchWriter(out, max_records=3, **options) as writer:
        writer.append_many([b"a", b"b", b"c"])
        writer.append(b"d")
    assert kbatch.scan(out.getvalue())["base_sequence"].tolist() == [2**31 - 2, 1]


def test_flush_ends_a_batch() -> None:
    file = io.BytesIO()
    with kbatch.BatchWriter(file, **PRODUCER) as writer:
        writer.append(b"a")
        assert (writer.pending, writer.bytes_written, writer.next_sequence) == (1, 0, 2**31 - 5)
        writer.flush()
        assert (writer.pending, writer.bytes_written, writer.next_sequence) == (0, len(file.getvalue()), 2**31 - 4)
        writer.flush()
        writer.append_many([b"b"] * 5)
        writer.flush()
    table = kbatch.decode(file.getvalue())
    assert table.batches["base_offset"].tolist() == [0, 1]
    assert table.batches["base_sequence"].tolist() == [2**31 - 5, 2**31 - 4]
    assert writer.next_sequence == 1  # SEQ-R1: 0 comes after 2**31 - 1


def test_the_file_is_flushed_and_left_open(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    with path.open("ab") as file:
        writer = kbatch.BatchWriter(file)
        writer.append(b"a")
        writer.flush()
        assert len(kbatch.decode(path.read_bytes())) == 1
        writer.close()
        writer.close()
        assert not file.closed
        with kbatch.BatchWriter(file, base_offset=writer.next_offset) as more:
            more.append(b"b")
    assert kbatch.decode(path.read_bytes()).records["offset"].tolist() == [0, 1]
    assert [r.value for r in records_of(kbatch.decode(path.read_bytes()))] == [b"a", b"b"]


def test_append_times_are_stored() -> None:
    """TS-R8: the batch has the append time; in magic 1 every message has it."""
    for magic in (1, 2):
        for codec in ("none", "gzip"):
            file = io.BytesIO()
            with kbatch.BatchWriter(
                file, magic=magic, codec=codec, timestamp_type="log_append_time", append_time=777
            ) as writer:
                writer.append(b"a", timestamp=5)
                writer.append_many([b"b"], timestamps=[6])
            table = kbatch.decode(file.getvalue())
            assert table.records["timestamp"].tolist() == [777, 777]
            assert set(kbatch.TimestampType.of(table.batches).tolist()) == {kbatch.TimestampType.LOG_APPEND_TIME}
    file = io.BytesIO()
    with kbatch.BatchWriter(file, timestamp_type=kbatch.TimestampType.LOG_APPEND_TIME) as writer:
        writer.append(b"a", timestamp=5)
    assert kbatch.decode(file.getvalue()).records["timestamp"][0] > 1.6e12


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"value": "a"}, TypeError, "value must be bytes or None, got str; encode it"),
        ({"value": b"", "key": 5}, TypeError, "key must be bytes or None, got int"),
        ({"value": b"", "headers": [(None, b"")]}, ValueError, "a header needs a key"),
        ({"value": b"", "timestamp": -2}, ValueError, "timestamp must be -1 to"),
        ({"value": b"", "timestamp": "now"}, ValueError, "timestamp must be a time such as"),
    ],
)
def test_a_refused_record_changes_nothing(options: dict[str, Any], error: type[Exception], text: str) -> None:
    file = io.BytesIO()
    with kbatch.BatchWriter(file) as writer:
        writer.append(b"a", timestamp=0)
        with pytest.raises(error, match=text):
            writer.append(**options)
        with pytest.raises(TypeError):
            writer.append_many([b"b", "c"])
        with pytest.raises(ValueError, match="record 1: timestamp is -2"):
            writer.append_many([b"b", b"c"], timestamps=[5, -2])
        assert writer.append(b"d", timestamp=0) == 1
    assert file.getvalue() == kbatch.encode([b"a", b"d"], timestamps=0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"magic": 1, "codec": "zstd"}, "zstd needs magic 2"),
        ({"batch_size": -1}, "batch_size must be"),
        ({"base_offset": -1}, "base_offset must be"),
        ({"append_time": 5}, "append_time needs"),
        ({"codec": "gzip:11"}, "gzip:1 to gzip:9, .* got 'gzip:11'"),
        ({"transactional": True}, "needs a producer_id"),
    ],
)
def test_invalid_writer_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kbatch.BatchWriter(io.BytesIO(), **options)


@pytest.mark.parametrize("file", ["orders.log", None, io.StringIO()])
def test_other_objects_than_binary_files_are_refused(file: Any) -> None:
    with pytest.raises(TypeError, match=r"file must be open for binary writing, as open\(path, 'wb'\), got"):
        kbatch.BatchWriter(file)
    with pytest.raises(TypeError, match="batch_size must be a number of bytes such as 67108864 or 64m, got None"):
        kbatch.BatchWriter(io.BytesIO(), batch_size=None)  # type: ignore[arg-type]


def test_legacy_magics_have_no_headers() -> None:
    for magic in (0, 1):
        writer = kbatch.BatchWriter(io.BytesIO(), magic=magic)
        writer.append(b"a", headers=[])
        with pytest.raises(ValueError, match="headers need magic 2"):
            writer.append(b"a", headers=[("k", b"v")])
    with pytest.raises(ValueError, match="magic 0 has no timestamps"):
        kbatch.BatchWriter(io.BytesIO(), magic=0).append(b"a", timestamp=5)


def test_the_largest_offset_can_be_written() -> None:
    file = io.BytesIO()
    with kbatch.BatchWriter(file, base_offset=2**63 - 1) as writer:
        assert writer.append(b"a") == 2**63 - 1
        with pytest.raises(ValueError, match="next offset would exceed"):
            writer.append(b"b")
        with pytest.raises(ValueError, match="base_offset must be at most 9,223,372,036,854,775,807"):
            writer.append_many([b"b"])
    assert kbatch.decode(file.getvalue()).records["offset"].tolist() == [2**63 - 1]


# -- errors of the file


class Full(io.BytesIO):
    """A file on a disk with limited capacity, which accepts bytes in pieces until it is full."""

    def __init__(self, capacity: int, *, error: type[BaseException] = OSError, step: int = 1000) -> None:
        super().__init__()
        self.capacity, self.error, self.step = capacity, error, step

    def write(self, data: Any, /) -> int:
        size = min(len(data), self.step)
        if self.tell() + size > self.capacity:
            super().write(bytes(data)[: self.capacity - self.tell()])
            raise self.error("disk full")
        return super().write(bytes(data)[:size])


@pytest.mark.parametrize("capacity", [0, 1, 60, 5000, 16000, 40_000])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_no_partial_batch(capacity: int, error: type[BaseException]) -> None:
    """A partly written batch is truncated, and nothing is written after it."""
    file = Full(capacity, error=error)
    writer = kbatch.BatchWriter(file, batch_size=1000)

    def fill() -> None:
        while True:
            writer.append_many([b"x" * 100] * 15, timestamps=0)

    with pytest.raises(error, match="disk full"):
        fill()
    assert len(file.getvalue()) == writer.bytes_written <= capacity
    kept = oracle.decode(file.getvalue())
    assert (kept.error, kept.unread) == (None, 0)
    before = file.getvalue()
    for again in (lambda: writer.append(b"a"), lambda: writer.append_many([b"a"]), writer.flush):
        with pytest.raises(ValueError, match="an earlier write failed"):
            again()
    writer.close()
    assert file.getvalue() == before


def test_nothing_is_written_after_an_exception() -> None:
    file = io.BytesIO()
    writer = kbatch.BatchWriter(file)

    def fail() -> None:
        with writer:
            writer.append(b"a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert file.getvalue() == b""
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.append(b"b")
    writer.close()
    assert file.getvalue() == b""


def test_files_need_only_write() -> None:
    """A file may have only `write` without a result; a raw file that is not ready is an error."""

    class Pipe:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: Any, /) -> None:
            self.data += bytes(data)

    pipe = Pipe()
    with kbatch.BatchWriter(pipe) as writer:
        writer.append(b"a", timestamp=0)
    assert pipe.data == kbatch.encode([b"a"], timestamps=0)

    class Busy(io.RawIOBase):
        def write(self, data: Any, /) -> None:
            return None

    writer = kbatch.BatchWriter(Busy())
    writer.append(b"a")
    with pytest.raises(OSError, match="the file took None of"):
        writer.close()


def test_columns_may_change_after_the_call() -> None:
    """Records of a piece that wait for the next batch have been copied."""
    array = np.arange(100, dtype=np.uint8).reshape(10, 10)
    expected = kbatch.encode(array.copy(), timestamps=0)
    file = io.BytesIO()
    with kbatch.BatchWriter(file) as writer:
        writer.append_many(array, timestamps=0)
        array[:] = 0
    assert file.getvalue() == expected
