"""Tables drop the bytes and batches that no record refers to: `compact`, concatenation and conversions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from golden_logs import LOGS
from log_batches import write_segment

import kbatch
from kbatch.kernels import buffers
from kbatch.read import budget

CODECS = ("none", "lz4")


def encoded(count: int, value: bytes, codec: str = "none", base: int = 0, **options: Any) -> bytes:
    return b"".join(
        kbatch.encode(
            [value] * 10,
            keys=[b"key-%d" % (i % 7)] * 10,
            timestamps=0,
            base_offset=base + 10 * i,
            codec=codec,
            **options,
        )
        for i in range(count)
    )


def rows_of(table: kbatch.RecordTable) -> list[Any]:
    return table.to_arrow().to_pylist()


@pytest.mark.parametrize("name", ["codec-zstd-0", "codec-none-0", "txn-0", "compact-src-0"])
@pytest.mark.parametrize("rows", [slice(None), slice(3, 9), slice(0, None, 7), slice(0), [0, 1, 5]], ids=str)
def test_a_compact_table_has_the_same_records_and_only_their_bytes_and_batches(name: str, rows: Any) -> None:
    for table in kbatch.Log(LOGS / name).tables():
        selected = table[rows]
        compact = selected.compact()
        assert compact.equals(selected)
        assert rows_of(compact) == rows_of(selected)
        assert list(compact.batches["base_offset"]) == [
            selected.batches["base_offset"][batch] for batch in np.unique(selected.records["batch"])
        ]
        first = np.searchsorted(compact.records["batch"], np.arange(len(compact.batches)))
        assert list(compact.batches["first_record"]) == list(first)
        assert (compact.consumed, compact.losses, compact.source) == (table.consumed, table.losses, table.source)
        headers = selected.headers
        names = sum(int(headers[f"{each}_len"].clip(0).sum()) for each in ("key", "value"))
        contents = sum(int(selected.records[f"{each}_len"].clip(0).sum()) for each in ("key", "value"))
        # A header has two lengths, of one to five bytes.
        assert contents + names + 2 * len(headers) <= len(compact.data) <= contents + names + 10 * len(headers)


@pytest.mark.parametrize("columns", [["offset"], ["key"], ["headers"], ["value", "offset"], ["topic"]])
def test_tables_of_some_columns_are_compacted(columns: list[str]) -> None:
    table = next(kbatch.Log(LOGS / "codec-lz4-0").tables(columns=columns))
    selected = table[::50]
    assert selected.compact().equals(selected)
    assert selected.compact().columns == table.columns
    assert len(selected.compact().data) <= len(table.data) // 10


def test_headers_of_a_compact_table_keep_duplicates_nulls_and_their_order() -> None:
    headers: list[list[tuple[bytes, bytes | None]]] = [
        [(b"a", b"1"), (b"a", None)],
        [],
        [(b"", b"")],
        [(b"b", None)],
        [(b"c", b"x" * 300)],
    ]
    table = kbatch.decode(kbatch.encode([b"v"] * 5, headers=headers, timestamps=0))
    compact = table[1:].compact()
    assert [compact.headers_of(row) for row in range(4)] == headers[1:]


def test_a_selection_of_a_batch_that_is_split_is_continued_only_with_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)
    data = kbatch.encode([b"v"] * 3000, timestamps=0) + encoded(3, b"w", base=3000)
    tables = list(kbatch.decode_stream([data], max_bytes=40_000))
    assert [table.continued for table in tables[:2]] == [False, True]
    assert [table.compact().continued for table in tables] == [table.continued for table in tables]
    rest = kbatch.concat_tables(tables[1:])
    assert rest.continued
    assert rest[:1].compact().continued
    assert not rest[-1:].compact().continued
    whole = kbatch.concat_tables(table.compact() for table in tables)
    assert whole.equals(kbatch.decode(data))
    assert list(whole.batches["base_offset"]) == [0, 3000, 3010, 3020]


@pytest.mark.parametrize("codec", CODECS)
def test_concatenation_keeps_what_selections_refer_to(codec: str) -> None:
    tables = [kbatch.decode(encoded(100, b"v" * 200, codec)) for _ in range(3)]
    none = kbatch.concat_tables(table[:0] for table in tables)
    assert (len(none), len(none.data), len(none.batches)) == (0, 0, 0)
    one = kbatch.concat_tables([tables[0][:0]])
    assert (len(one.data), len(one.batches)) == (0, 0)
    few = kbatch.concat_tables(table[::200] for table in tables)
    assert len(few) == 15
    assert len(few.data) == 15 * 205
    assert len(few.batches) == 15
    assert rows_of(few) == [row for table in tables for row in rows_of(table[::200])]
    assert few.value(14) == b"v" * 200


def test_concatenation_keeps_all_batches_of_tables_that_are_no_selection() -> None:
    """COL-R4: also those without records in the table."""
    data = encoded(300, b"v" * 400) + kbatch.encode_marker(
        "commit", producer_id=1, producer_epoch=0, offset=3000, timestamp=0
    )
    tables = [kbatch.decode(data, columns=columns) for columns in (["offset", "key"], ["key", "offset"])]
    tables[1] = tables[1].select(["offset", "key"])
    made = kbatch.concat_tables(tables)
    assert len(made.batches) == sum(len(table.batches) for table in tables) == 602
    # The values were not decoded, so their bytes are dropped.
    assert len(made.data) == 2 * 3000 * 5


def test_slices_that_refer_to_all_bytes_are_concatenated_without_a_copy() -> None:
    table = kbatch.decode(encoded(100, b"v" * 200))
    parts = [table[lo : lo + 10] for lo in range(0, len(table), 10)]
    made = kbatch.concat_tables(parts)
    assert made.data is table.data
    assert made.equals(table)
    assert list(made.batches["base_offset"]) == list(table.batches["base_offset"])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("convert", ["arrow", "polars"])
def test_conversions_of_a_small_part_do_not_keep_the_bytes_of_the_table(codec: str, convert: str) -> None:
    table = kbatch.decode(encoded(100, b"v" * 200, codec))
    selected = table[::100]
    if convert == "arrow":
        made = selected.to_arrow(binary="binary_view")
        assert made.equals(selected.to_arrow().cast(made.schema))
        kept = sum(buffer.size for chunk in made["value"].chunks for buffer in chunk.buffers() if buffer)
    else:
        frame = selected.to_polars()
        assert frame["value"].to_list() == selected.values()
        kept = sum(chunk.nbytes for chunk in pa.chunked_array(frame["value"]).chunks)
    assert kept < 10 * 400
    # Views of most of the bytes are no copies.
    whole = table.to_arrow(binary="binary_view")["value"].chunk(0).buffers()
    assert any(buffer is not None and buffer.address == table.data.ctypes.data for buffer in whole)


def test_a_limit_of_memory_does_not_refuse_a_conversion_that_needs_no_copy() -> None:
    data = encoded(100, b"v" * 2000, headers=[[(b"h", b"x" * 20)]] * 10)
    for limit in itertools.count(0, 50_000):
        try:
            table = kbatch.decode(data, limits=kbatch.Limits(max_table_bytes=limit))
        except kbatch.LimitExceededError:
            continue
        break
    assert len(table[::100].to_arrow(columns=["value"], binary="binary_view")) == 10


def test_all_tables_of_a_key_need_the_memory_of_one_table_and_of_what_is_found(tmp_path: Path) -> None:
    size = 1 << 20
    data = b"".join(
        kbatch.encode(
            [b"v" * 1000] * 100,
            keys=[b"key-%d" % (i % 20) for i in range(100)],
            timestamps=0,
            base_offset=100 * n,
            codec="lz4",
        )
        for n in range(200)
    )
    write_segment(tmp_path / "t-0", 0, [data])
    before = buffers.pool_stats().live_bytes
    peaks, tables = [], []
    for table in kbatch.Log(tmp_path / "t-0").tables(key="key-7", max_bytes=size):
        tables.append(table)
        del table
        peaks.append(buffers.pool_stats().live_bytes - before + sum(each.data.nbytes for each in tables))
    found = kbatch.concat_tables(tables)
    assert len(found) == 200 * 5
    assert len(peaks) >= 15
    assert max(peaks) < 4 * size + found.data.nbytes
