"""Growing arrays of rows (`kbatch.batches.pooled`), and how their capacity is reserved in advance."""

from __future__ import annotations

import numpy as np
import pytest

import kbatch
from kbatch.batches.framing import byte_array, frame_batches, scan_part
from kbatch.batches.pooled import PooledRows
from kbatch.format import BATCH_DTYPE, RECORD_DTYPE
from kbatch.kernels.buffers import pool_stats
from kbatch.kernels.scan import scan_headers, survey
from kbatch.read import workers
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.read.windows import BufferWindows


def encoded(sizes: list[tuple[int, int]], **options: object) -> bytes:
    """Encode a batch for each (records, bytes of a value)."""
    parts, offset = [], 0
    for count, size in sizes:
        parts.append(kbatch.encode([b"v" * size] * count, base_offset=offset, **options))  # type: ignore[call-overload]
        offset += count
    return b"".join(parts)


def test_rows_keep_their_values_when_they_grow() -> None:
    rows = PooledRows(BATCH_DTYPE)
    assert len(rows.array) == len(rows.filled()) == len(rows.finished()) == 0
    given = np.zeros(1000, BATCH_DTYPE)
    given["base_offset"] = np.arange(1000)
    given["status"] = np.arange(1000) % 7
    for at in range(0, 1000, 50):
        rows.extend(given[at : at + 50])
        assert rows.used == at + 50 <= len(rows.array) <= max(2 * rows.used, 50)
        assert rows.filled().tolist() == given[: at + 50].tolist()
    live = pool_stats().live_blocks
    finished = rows.finished()
    del rows
    assert finished.tolist() == given.tolist()
    assert not finished.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        finished.setflags(write=True)
    assert pool_stats().live_blocks == live
    del finished
    assert pool_stats().live_blocks == live - 1


def test_framing_appends_rows() -> None:
    """FRM-R3: framing appends up to the requested number of rows, with positions in the source."""
    data = byte_array(encoded([(1, 10)] * 3000))
    whole = scan_part(data, origin=77).batches
    rows = PooledRows(BATCH_DTYPE)
    position, finding = 0, None
    for count in (1, 5, 0, 1100):
        position, finding = frame_batches(data, rows, origin=77, position=position, max_batches=count)
        assert finding is None
    assert rows.used == 1106
    assert frame_batches(data, rows, origin=77, position=position) == (len(data), None)
    assert rows.filled().tolist() == whole.tolist()
    for first, end in ((-1, 1), (3, 2), (0, len(rows.array) + 1)):
        with pytest.raises(IndexError):
            scan_headers(data, rows.array, first, end, 0, 0)
    with pytest.raises(ValueError, match="position"):
        scan_headers(data, rows.array, 0, 1, -1, 0)


def test_the_survey_counts_at_most_what_the_bytes_can_hold() -> None:
    """CNT-R7: the count of a header is bounded by its payload; batches without rows are not counted."""
    parts = [encoded([(3, 10)] * 20), encoded([(2, 50)] * 5, codec="lz4"), encoded([(1, 10)], magic=1)]
    assert [survey(scan_part(byte_array(data)).batches, False) for data in parts] == [(60, 0), (10, 5), (1, 0)]
    rows = scan_part(byte_array(b"".join(parts))).batches
    assert survey(rows, False) == (71, 5)
    rows["record_count"][:25] = 1 << 30
    payloads = rows["size"][:25] - 61
    assert survey(rows, False) == ((payloads[:20] // 7).sum() + (payloads[20:] // 8).sum() + 1, 5)
    rows["status"] = 3
    assert survey(rows, False) == (0, 0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [[(1, 4000)] * 64 + [(200, 2)] * 900, [(200, 2)] * 64 + [(1, 0)] * 5000])
def test_capacity_adapts_to_batches_that_differ_from_the_first_ones(
    monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, int]], threads: int
) -> None:
    """Later estimates use all decoded batches: capacity is reserved a few times, not for each batch."""
    data = encoded(sizes)
    runs = []
    run = workers.run_pipeline
    monkeypatch.setattr(workers, "run_pipeline", lambda *given: runs.append(given) or run(*given))  # type: ignore[func-returns-value]
    table = kbatch.decode(data, threads=threads)
    assert len(runs) < 8
    assert table.consumed == len(data)
    assert table.batches["record_count"].tolist() == [count for count, _ in sizes]
    assert np.array_equal(table.records["offset"], np.arange(sum(count for count, _ in sizes)))
    assert np.array_equal(table.records["value_len"], np.repeat([size for _, size in sizes], [n for n, _ in sizes]))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65])
def test_small_input_is_decoded_in_one_run(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """This holds whether the input ends with a complete batch or not."""
    whole = encoded([(3, 10)] * count)
    runs = []
    run = workers.run_pipeline
    monkeypatch.setattr(workers, "run_pipeline", lambda *given: runs.append(given) or run(*given))  # type: ignore[func-returns-value]
    for data in (whole, whole + whole[:50]):
        runs.clear()
        table = kbatch.decode(data)
        assert (len(table), len(table.batches), table.consumed, len(runs)) == (3 * count, count, len(whole), 1)


def test_an_incomplete_large_batch_reserves_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small batch precedes the first bytes of a large one: no further small batches can follow."""
    requested = []
    reserve = PooledRows.reserve
    monkeypatch.setattr(PooledRows, "reserve", lambda self, count: requested.append(count) or reserve(self, count))
    data = encoded([(1, 0)]) + encoded([(1, 3 << 20)])[:-1]
    assert len(kbatch.decode(data)) == 1
    assert max(requested) <= 1024


def test_the_last_offset_is_known_to_the_next_table() -> None:
    """LEG-R26: a search after damage compares offsets with it, even if the search begins in a new table."""
    data = byte_array(encoded([(3, 10)] * 100) + encoded([(3, 10)] * 4, codec="lz4"))
    reader, tables = BatchReader(DecodeOptions()), 0
    while reader.position < len(data):
        table = reader.read(BufferWindows(data), max_bytes=7000)
        assert reader.damage.reached == table.batches["last_offset"][-1]
        tables += 1
    assert tables > 3


def test_arrays_of_tables_are_read_only() -> None:
    """This holds for every way to create a table."""
    uncompressed = encoded([(3, 10)] * 3)
    compressed = encoded([(3, 10)] * 3, codec="lz4")
    for data in (b"", uncompressed, compressed, uncompressed + compressed):
        for options in ({}, {"columns": ["timestamp"], "start_offset": 2}, {"columns": []}):
            table = kbatch.decode(data, **options)  # type: ignore[arg-type]
            for array in (table.records, table.batches, table.data):
                assert not array.flags.writeable
            assert table.batches.dtype == BATCH_DTYPE
            assert options or table.records.dtype == RECORD_DTYPE
    assert kbatch.decode(uncompressed, columns=["timestamp"], start_offset=2).records.dtype.names == (
        "timestamp",
        "batch",
    )


def test_options_are_compared_by_value() -> None:
    """Options with the same values are equal, although the class is not frozen."""
    assert DecodeOptions() == DecodeOptions(limits=kbatch.Limits()) != DecodeOptions(threads=2)
    for name, value in (("crc", "no"), ("on_error", ["skip"]), ("isolation", None)):
        with pytest.raises(ValueError, match=f"{name} must be one of"):
            DecodeOptions(**{name: value})  # type: ignore[arg-type]
    assert DecodeOptions(threads=0).threads >= 1
