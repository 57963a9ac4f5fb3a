"""`RecordTable` as users of pyarrow expect a table: rows, columns, schema, concatenation and display."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from golden_logs import LOGS

import kbatch

LOG = LOGS / "codec-zstd-0" / "00000000000000000000.log"


@pytest.fixture(scope="module")
def table() -> kbatch.RecordTable:
    return kbatch.decode(LOG.read_bytes())


def test_every_route_to_arrow_has_one_schema(table: kbatch.RecordTable) -> None:
    assert table.schema == table.to_arrow().schema == pa.table(table).schema
    of_log = next(iter(kbatch.Log(LOG.parent)))
    opened = kbatch.Log(LOG.parent)
    assert of_log.schema == of_log.to_arrow().schema == pa.table(of_log).schema == pa.table(opened).schema
    assert opened.to_arrow().schema == of_log.schema
    assert of_log.columns == (*table.columns, "topic", "partition")


@pytest.mark.parametrize("columns", [["topic"], ["value", "offset"], ["partition", "timestamp", "topic"]])
def test_columns_of_a_log_are_those_of_every_view_in_this_order(columns: list[str]) -> None:
    log = kbatch.Log(LOG.parent)
    whole = log.to_arrow()
    for made in (
        log.to_arrow(columns=columns),
        pa.concat_tables(each.to_arrow() for each in log.tables(columns=columns)),
        pa.concat_tables(each.to_arrow(columns=columns) for each in log),
        pa.concat_tables(pa.table(each.select(columns)) for each in log),
    ):
        assert made.equals(whole.select(columns))
    assert log.to_polars(columns=columns).columns == columns
    assert list(log.to_pandas(columns=columns)) == columns


def test_topic_and_partition_of_bytes_are_null(table: kbatch.RecordTable) -> None:
    made = kbatch.decode(LOG.read_bytes(), columns=["topic", "offset", "partition"]).to_arrow()
    assert made.column_names == ["topic", "offset", "partition"]
    assert made["topic"].null_count == made["partition"].null_count == table.num_rows


@pytest.mark.parametrize(
    "mask",
    [
        lambda rows: rows,
        lambda rows: rows.tolist(),
        pa.array,
        lambda rows: pa.chunked_array([rows[:9], rows[9:]]),
        pl.Series,
        pd.Series,
        np.flatnonzero,
        lambda rows: pa.array(np.flatnonzero(rows)),
        lambda rows: pl.Series(np.flatnonzero(rows)),
    ],
)
def test_masks_and_row_numbers_of_every_library_select_records(
    table: kbatch.RecordTable, mask: Callable[[Any], Any]
) -> None:
    rows = table.records["offset"] % 3 == 1
    assert np.array_equal(table[mask(rows)].records["offset"], table.records["offset"][rows])


@pytest.mark.parametrize("mask", [pa.array, pl.Series, lambda rows: pa.chunked_array([rows])])
def test_null_in_a_mask_selects_no_record(table: kbatch.RecordTable, mask: Callable[[Any], Any]) -> None:
    rows = [True, None, False] + [None] * (len(table) - 3)
    assert table[mask(rows)].records["offset"].tolist() == [0]


def test_a_mask_of_another_length_is_an_error(table: kbatch.RecordTable) -> None:
    with pytest.raises(IndexError, match="the mask has 2 rows, the table has 1,847"):
        table[pa.array([True, False])]
    with pytest.raises(TypeError, match=r"got int; for one record use table\.records\[i\]"):
        table[0]  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="an array of float64"):
        table[np.zeros(3)]


def test_a_name_selects_an_arrow_column(table: kbatch.RecordTable) -> None:
    assert table["offset"].equals(table.to_arrow()["offset"])
    assert table["value"].to_pylist() == table.values()
    assert len(table[pc.less(table["offset"], 10)]) == 10
    with pytest.raises(ValueError, match="no column 'offsets'; there are offset"):
        table["offsets"]


def test_rows_headers_and_equality(table: kbatch.RecordTable) -> None:
    assert (table.num_rows, table.head().num_rows, table.head(2).num_rows, table[:3].head().num_rows) == (1847, 5, 2, 3)
    pairs = table.to_arrow(columns=["headers"])["headers"].to_pylist()
    for row in (0, 1, 500, -1):
        assert table.headers_of(row) == [(each["key"], each["value"]) for each in pairs[row]]
    with pytest.raises(IndexError):
        table.headers_of(len(table))
    assert table.equals(kbatch.decode(kbatch.recompress(LOG.read_bytes(), "none")))
    assert not table.equals(table[1:])
    assert not table[1:].equals(table[:-1])
    assert not table.equals(table.select(["offset"]))
    with pytest.raises(TypeError, match=r"got Table; see also table\.to_arrow"):
        table.equals(table.to_arrow())


@pytest.mark.parametrize("use", [list, np.asarray, np.array, pd.DataFrame, enumerate], ids=lambda use: use.__name__)
def test_a_table_has_no_python_object_per_record(table: kbatch.RecordTable, use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"no Python object per record; use to_arrow\(\), to_polars\(\)"):
        use(table)


@pytest.mark.parametrize("log", ["codec-none-0", "codec-zstd-0", "mixed-0", "txn-0"])
def test_concatenated_tables_equal_one_table(log: str) -> None:
    whole = kbatch.Log(LOGS / log)
    parts = list(whole.tables(max_bytes=4096))
    made = kbatch.concat_tables(parts)
    assert len(parts) > 1
    assert made.to_arrow().equals(whole.to_arrow().combine_chunks())
    assert len(made.headers) == sum(len(part.headers) for part in parts)
    assert made.consumed == sum(part.consumed for part in parts)
    starts = made.batches["first_record"]
    assert np.array_equal(starts, np.searchsorted(made.records["batch"], np.arange(len(made.batches))))
    for field in ("base_offset", "position", "status"):
        assert np.array_equal(made.batches[field], np.concatenate([part.batches[field] for part in parts]))
    assert kbatch.decode(kbatch.encode_table(made, omitted="drop")).values() == made.values()


def test_concatenated_slices_share_their_bytes(table: kbatch.RecordTable) -> None:
    made = kbatch.concat_tables([table[:5], table[9:]])
    assert made.data is table.data
    assert made.values() == table.values()[:5] + table.values()[9:]
    assert not made.records.flags.writeable
    assert kbatch.concat_tables(iter([table])) is table


def test_tables_that_differ_are_not_concatenated(table: kbatch.RecordTable) -> None:
    of_log = next(iter(kbatch.Log(LOG.parent)))
    with pytest.raises(ValueError, match="at least one table"):
        kbatch.concat_tables([])
    with pytest.raises(TypeError, match=r"tables\[1\] must be a RecordTable, got Table"):
        kbatch.concat_tables([table, table.to_arrow()])
    with pytest.raises(ValueError, match="table 1 has the columns offset, table 0 has offset, timestamp"):
        kbatch.concat_tables([table, table.select(["offset"])])
    with pytest.raises(ValueError, match="table 1 is of codec-zstd-0, table 0 of no log; concatenate the Arrow tables"):
        kbatch.concat_tables([table.select(["offset"]), of_log.select(["offset"])])


@pytest.mark.parametrize("cut", [100, 1, 60])
def test_the_repr_and_an_attribute_state_the_bytes_after_the_last_complete_batch(cut: int) -> None:
    data = LOG.read_bytes()[:-cut]
    table = kbatch.decode(data)
    assert table.remaining == len(data) - table.consumed > 0
    assert repr(table).endswith(f", {table.remaining} bytes remain after the last complete batch>")
    committed = kbatch.decode(data, isolation="read_committed")
    assert (committed.remaining, table[:3].remaining) == (table.remaining, table.remaining)
    one = kbatch.decode(data[: table.consumed + 1])
    assert repr(one).endswith(", 1 byte remains after the last complete batch>")


def test_complete_input_has_no_remaining_bytes(table: kbatch.RecordTable) -> None:
    assert table.remaining == 0
    assert repr(table) == "<RecordTable: 1,847 records in 16 batches>"
    bad = bytearray(LOG.read_bytes())
    bad[3000] ^= 1
    for on_error in ("stop", "skip"):
        damaged = kbatch.decode(bad, on_error=on_error)  # type: ignore[arg-type]
        assert damaged.remaining == 0
        assert "1 damaged batch, 1 loss of " in repr(damaged)


@pytest.mark.parametrize("data", [b"h", b"hello", b"hello, world... "])
def test_decode_warns_of_too_few_bytes_for_a_batch(data: bytes) -> None:
    with pytest.warns(RuntimeWarning, match=r"decode: \d+ bytes?, too few to recognize a record batch"):
        table = kbatch.decode(data)
    assert table.remaining == len(data)
    assert "remain" in repr(table)


class Checker(HTMLParser):
    """Records the tags and the text of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_shows_counts_times_schema_and_the_first_rows_escaped() -> None:
    evil = b"<script>alert(1)</script>"
    data = kbatch.encode(
        [evil, None] * 9, keys=[evil] * 18, headers=[[(evil, None)]] * 18, timestamps=1_700_000_000_000
    )
    shown = Checker(kbatch.decode(data)._repr_html_())
    assert set(shown.tags) == {"p", "strong", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert shown.tags.count("tr") == 6
    assert "18 records in 1 batch" in shown.text
    assert "2023-11-14 22:13:20.000Z to 2023-11-14 22:13:20.000Z" in shown.text
    assert "value: binary" in shown.text
    assert "<script>" in shown.text
    assert Checker(kbatch.decode(b"")._repr_html_()).tags.count("tr") == 1


def test_html_of_a_table_of_some_columns_and_of_far_timestamps() -> None:
    far = kbatch.decode(kbatch.encode([b"v" * 99], timestamps=2**62))
    assert f"{2**62} ms" in far._repr_html_()
    assert "(99 bytes)" in far._repr_html_()
    assert "value" not in far.select(["timestampType", "partition"])._repr_html_()


def test_a_loss_names_its_file(tmp_path: Path) -> None:
    """Also after concatenation: positions are those of the file, and a log has several."""
    log = shutil.copytree(LOGS / "txn-0", tmp_path / "txn-0", copy_function=shutil.copyfile)
    segments = sorted(log.glob("*.log"))
    for path in segments:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    table = kbatch.concat_tables(kbatch.Log(log).tables(on_error="skip"))
    assert [loss.file for loss in table.losses] == [str(path) for path in segments]
    assert [loss.file for loss in kbatch.decode(data, on_error="skip").losses] == [None]
