"""read_committed for batches in the columns and RDDs of Spark, with lists of aborted transactions."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from golden_logs import COMMITTED, TXN_LOG
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from kbatch.read.decode_options import DecodeOptions, Isolation
from kbatch.spark.table_schemas import RECORD_COLUMNS

pytestmark = pytest.mark.spark

pa = pytest.importorskip("pyarrow")


ONE = txn(0, 7, 2) + data(2) + marker(3, 7, ABORT) + txn(4, 8) + marker(5, 8, COMMIT)
# The marker of producer 7 is in a different row, so its transaction is undecided.
TWO = data(6) + txn(7, 7) + data(8)


def kept(rows: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row.offset)
    return found


def test_rows_use_their_own_markers(spark: Any) -> None:
    """LSO-R1: no record at or after the first transaction that a row leaves undecided is returned."""
    golden = b"".join(path.read_bytes() for path in sorted(TXN_LOG.glob("*.log")))
    rows = [("one", bytearray(ONE)), ("two", bytearray(TWO)), ("golden", bytearray(golden)), ("none", None)]
    frame = spark.createDataFrame(rows, "name string, value binary")
    decoded = kbatch.spark.decode_frame(frame, keep=["name"], isolation="read_committed")
    assert kept(decoded.collect()) == {"one": [2, 4], "two": [6], "golden": COMMITTED}
    assert kbatch.spark.decode_frame(frame.filter("name = 'two'")).count() == 3
    plain = kbatch.spark.decode_batches(isolation="read_committed")
    assert [row.offset for row in plain([ONE, TWO])] == [2, 4, 6]


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ("producer_id bigint, first_offset bigint", (7, 7)),
        ("first_offset bigint, producer_id bigint", (7, 7)),
        ("producerId bigint, firstOffset bigint", (7, 7)),
        ("a int, b bigint", (7, 7)),
    ],
)
def test_a_column_lists_aborted_transactions(spark: Any, fields: str, entry: tuple[int, int]) -> None:
    """TXN-R1, TXN-R8: a list replaces the markers of the row; with null they are used; an empty list aborts nothing."""
    rows = [
        ("listed", bytearray(TWO), [entry]), ("empty", bytearray(TWO), []), ("null", bytearray(TWO), None),
        ("other", bytearray(TWO), [(99, 0)] * 2), ("none", None, [entry]),
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, f"name string, value binary, lost array<struct<{fields}>>")
    options = {"isolation": "read_committed", "aborted_column": "lost"}
    decoded = kbatch.spark.decode_frame(frame, keep=["name"], **options)
    expected = {"listed": [6, 8], "empty": [6, 7, 8], "null": [6], "other": [6, 7, 8]}
    assert kept(decoded.collect()) == expected
    decode = kbatch.spark.decode_batches(keep=["name"], **options)
    assert kept(list(decode(frame.collect()))) == expected
    both = kbatch.spark.decode_frame(frame, keep=["name", "lost"], **options)
    assert both.columns[:2] == ["name", "lost"]
    assert both.count() == 9


def test_fields_of_aborted_transactions_are_found_by_name(spark: Any) -> None:
    rows = [(bytearray(txn(0, 7) + txn(1, 9)), [(1, 9)])]
    frame = spark.createDataFrame(rows, "value binary, a array<struct<first_offset: bigint, producer_id: bigint>>")
    decoded = kbatch.spark.decode_frame(frame, isolation="read_committed", aborted_column="a")
    assert [row.offset for row in decoded.collect()] == [0]
    decode = kbatch.spark.decode_batches(isolation="read_committed", aborted_column="a")
    assert [row.offset for row in decode(frame.collect())] == [0]


def test_markers_decide_records_in_earlier_tables_of_a_row() -> None:
    """A marker may be in a later table of the row than the records of its transaction."""
    from kbatch.spark.functions import _RowDecoder

    def decoded(raw: bytes, isolation: Isolation = "read_committed", partial: str = "raise") -> list[list[int]]:
        options = DecodeOptions(isolation=isolation)
        decoder = _RowDecoder("value", RECORD_COLUMNS, options, partial, "records", None, table_bytes=1)
        return [table.records["offset"].tolist() for table in decoder.tables(raw, None, 0)]

    golden = b"".join(path.read_bytes() for path in sorted(TXN_LOG.glob("*.log")))
    tables = decoded(golden)
    assert len(tables) > 10
    assert list(chain(*tables)) == COMMITTED
    assert list(chain(*decoded(golden, "read_uncommitted"))) != COMMITTED
    decode = kbatch.spark.decode_batches(isolation="read_committed")
    assert [row.offset for row in decode([golden])] == COMMITTED
    # A fetch response may end within a batch.
    assert list(chain(*decoded(ONE[:-3], partial="drop"))) == [2]
    cut = kbatch.spark.decode_batches(isolation="read_committed", partial="drop")
    assert [row.offset for row in cut([ONE[:-3]])] == [2]


def test_losses_under_read_committed() -> None:
    bad = data(0) + txn(1, 7) + damaged(marker(2, 7, ABORT)) + data(3)
    rows = list(kbatch.spark.decode_batches(isolation="read_committed", table="losses")([bad]))
    assert [(row.position, row.base_offset) for row in rows] == [(len(data(0) + txn(1, 7)), 2)]
    decode = kbatch.spark.decode_batches(isolation="read_committed", on_error="skip")
    assert [row.offset for row in decode([bad])] == [0, 3]


def test_invalid_lists_of_aborted_transactions_are_refused(spark: Any) -> None:
    with pytest.raises(ValueError, match="aborted_column='a' requires isolation='read_committed'"):
        kbatch.spark.decode_in_arrow(aborted_column="a")
    with pytest.raises(ValueError, match="isolation must be one of"):
        kbatch.spark.decode_batches(isolation="serializable")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="table must be one of 'records', 'losses', got 'transactions'"):
        kbatch.spark.decode_in_arrow(table="transactions")  # type: ignore[arg-type]
    options: dict[str, Any] = {"isolation": "read_committed", "aborted_column": "a"}
    for kind in (
        "array<bigint>",
        "bigint",
        "array<struct<producer_id: bigint>>",
        "array<struct<a: string, b: bigint>>",
    ):
        frame = spark.createDataFrame([], f"value binary, a {kind}")
        with pytest.raises(ValueError, match=r"column 'a' is .*, not array<struct<producer_id:bigint"):
            kbatch.spark.decode_frame(frame, **options)
    with pytest.raises(ValueError, match="no column 'a'"):
        kbatch.spark.decode_frame(spark.createDataFrame([], "value binary"), **options)
    function = kbatch.spark.decode_in_arrow(**options).function
    raw = pa.array([ONE, TWO], pa.binary())
    pair = pa.struct([("producer_id", pa.int64()), ("first_offset", pa.int64())])
    for lists in ([[], [None]], [[], [(7, None)]]):
        given = pa.record_batch({"value": raw, "a": pa.array(lists, pa.list_(pair))})
        with pytest.raises(TypeError, match="row 1 of the partition, column 'a': aborted: entry 0 must be a pair"):
            list(function(iter([given])))
    given = pa.record_batch({"value": raw, "a": pa.array([[1], []], pa.list_(pa.int64()))})
    with pytest.raises(kbatch.KbatchError, match="not a list of structs of two integers"):
        list(function(iter([given])))
    with pytest.raises(TypeError, match="row 0 of the partition, column 'a': aborted: entry 0"):
        list(kbatch.spark.decode_batches(**options)([spark_row(value=ONE, a=[7])]))
    with pytest.raises(TypeError, match="element 0 of the partition is bytes, not a Row"):
        list(kbatch.spark.decode_batches(**options)([ONE]))


def spark_row(**fields: Any) -> Any:
    from pyspark.sql import Row

    return Row(**fields)
