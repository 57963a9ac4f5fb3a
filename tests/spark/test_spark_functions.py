"""Raw batches in columns and RDDs: `mapInArrow`, `mapPartitions`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def segments(golden: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((golden / "logs").glob("codec-*/*.log"))]


def pieces(data: bytes) -> list[bytes]:
    """Return each batch separately."""
    return [data[int(b["position"]) : int(b["position"] + b["size"])] for b in kbatch.scan(data)]


def triples(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    table = kbatch.decode(data)
    return list(zip(table.records["offset"].tolist(), table.keys(), table.values(), strict=True))


def run(decode: Any, batches: list[Any]) -> list[Any]:
    """Call the function as Spark does, without Spark."""
    return list(decode.function(iter(batches)))


def test_decode_frame_keeps_the_given_columns(spark: Any, segments: list[bytes]) -> None:
    rows = [(f"t{i}", i, bytearray(data)) for i, data in enumerate(segments)] + [("none", 99, None)]
    frame = spark.createDataFrame(rows, "topic string, number int, raw binary")
    decoded = kbatch.spark.decode_frame(frame, "raw", keep=["number", "topic"], include_headers=True)
    assert decoded.columns == [
        "number", "topic", "key", "value", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    got: dict[str, list[Any]] = {}
    for row in decoded.collect():
        assert row.topic == f"t{row.number}"
        key, value = (None if v is None else bytes(v) for v in (row.key, row.value))
        got.setdefault(row.topic, []).append((row.offset, key, value))
    assert got == {f"t{i}": triples(data) for i, data in enumerate(segments)}
    assert decoded.filter("headers is not null").count() > 0


def test_decode_in_arrow_works_with_map_in_arrow(spark: Any, segments: list[bytes]) -> None:
    frame = spark.createDataFrame([(bytearray(data),) for data in segments], "value binary")
    decoded = frame.mapInArrow(*kbatch.spark.decode_in_arrow())
    assert decoded.count() == sum(len(kbatch.decode(data)) for data in segments)


def test_decode_batches_works_with_map_partitions(spark: Any, segments: list[bytes]) -> None:
    from pyspark.sql import Row

    decode = kbatch.spark.decode_batches()
    rows = spark.sparkContext.parallelize([*segments, None], 2).mapPartitions(decode).collect()
    assert [(row.offset, row.key, row.value) for row in rows] == [t for data in segments for t in triples(data)]
    decode = kbatch.spark.decode_batches("raw", keep=["name"], include_headers=True)
    elements = [Row(name=str(i), raw=data) for i, data in enumerate(segments)]
    rdd = spark.sparkContext.parallelize(elements, 2).mapPartitions(decode)
    schema = "name string, key binary, value binary, offset long, timestamp timestamp, timestampType int, "
    schema += "headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rdd, schema)
    assert frame.filter("name = '1'").count() == len(kbatch.decode(segments[1]))
    assert frame.filter("size(headers) > 0").count() > 0


def test_small_rows_share_arrow_batches(segments: list[bytes]) -> None:
    raw = pieces(segments[0]) * 20
    batches = run(kbatch.spark.decode_in_arrow(), [pa.record_batch({"value": pa.array(raw, pa.binary())})])
    assert sum(batch.num_rows for batch in batches) == 20 * len(kbatch.decode(segments[0]))
    assert len(batches) <= 3
    assert all(batch.num_rows <= 16_000 for batch in batches)


def test_kept_columns_have_the_values_of_their_row(segments: list[bytes]) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    raw = [None, *pieces(segments[0])[:3], b""]
    names = ["a", "b", None, "d", "e"]
    keep = StructType([StructField("name", StringType())])
    given = pa.record_batch({"value": pa.array(raw, pa.binary()), "name": pa.array(names)})
    (batch,) = run(kbatch.spark.decode_in_arrow(keep=keep), [given])
    counts = [len(kbatch.decode(data)) for data in raw[1:4]]
    assert batch.column("name").to_pylist() == ["b"] * counts[0] + [None] * counts[1] + ["d"] * counts[2]
    assert batch.schema.names == ["name", "key", "value", "offset", "timestamp", "timestampType"]


def test_errors_name_the_row(segments: list[bytes]) -> None:
    bad = bytearray(segments[0])
    bad[200] ^= 1
    given = [pa.record_batch({"value": pa.array(raw, pa.binary())}) for raw in ([segments[0]], [None, bytes(bad)])]
    with pytest.raises(kbatch.CrcMismatchError, match=r"row 2 of the partition, column 'value', byte 0, base offset 0"):
        run(kbatch.spark.decode_in_arrow(), given)
    rows = sum(batch.num_rows for batch in run(kbatch.spark.decode_in_arrow(on_error="skip"), given))
    assert rows == 2 * len(kbatch.decode(segments[0])) - int(kbatch.scan(segments[0])["record_count"][0])
    with pytest.raises(kbatch.CrcMismatchError, match="row 1 of the partition"):
        list(kbatch.spark.decode_batches()([None, bytes(bad)]))


def test_a_partial_batch_of_a_row_is_an_error_unless_dropped(segments: list[bytes]) -> None:
    """FRM-R3: a fetch response may end within a batch; the option `partial` decides whether a column's value may."""
    cut = segments[0][:-5]
    with pytest.raises(kbatch.TruncatedBatchError, match=r"row 0 of the partition, .* an incomplete batch"):
        list(kbatch.spark.decode_batches()([cut]))
    rows = list(kbatch.spark.decode_batches(partial="drop")([cut]))
    assert len(rows) == len(kbatch.decode(cut)) < len(kbatch.decode(segments[0]))


def test_memory_is_bounded_by_one_row(segments: list[bytes]) -> None:
    """One Arrow batch is read at a time, and its rows are returned before the next is read."""
    taken = 0

    def source() -> Iterator[Any]:
        nonlocal taken
        for _ in range(5):
            taken += 1
            yield pa.record_batch({"value": pa.array([segments[0]], pa.binary())})

    decoded = kbatch.spark.decode_in_arrow().function(source())
    next(decoded)
    assert taken == 1
    assert sum(1 for _ in decoded) == 4


def test_invalid_arguments_are_refused(spark: Any) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    with pytest.raises(ValueError, match="'offset' is also a column of the records"):
        kbatch.spark.decode_in_arrow(keep=StructType([StructField("offset", LongType())]))
    with pytest.raises(ValueError, match="'raise' or 'drop'"):
        kbatch.spark.decode_in_arrow(partial="keep")
    with pytest.raises(ValueError, match="crc must be one of"):
        kbatch.spark.decode_batches(crc="no")  # type: ignore[arg-type]
    frame = spark.createDataFrame([("a",)], "value string")
    with pytest.raises(ValueError, match="'value' is string, not binary"):
        kbatch.spark.decode_frame(frame)
    with pytest.raises(ValueError, match="no column 'topic'; the columns are value"):
        kbatch.spark.decode_frame(frame, keep=["topic"])
    with pytest.raises(TypeError, match="element 0 of the partition is bytes"):
        list(kbatch.spark.decode_batches(keep=["a"])([b""]))


def test_losses_of_a_column_are_rows(spark: Any, segments: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    """FRM-R8: bytes skipped with on_error="skip" are rows of the table, and a read of records logs a warning."""
    bad = bytearray(segments[0])
    batches = kbatch.scan(bad)
    for row in (1, len(batches) // 2):
        bad[int(batches["position"][row]) + 70] ^= 1
    cut = bytes(bad[:-5])
    rows = [("good", segments[1]), ("bad", bytes(bad)), ("none", None), ("cut", cut)]
    last = int(batches["position"][-1])
    left = (last, len(cut) - last, "the last batch is incomplete", None)
    skipped = [loss[:4] for loss in kbatch.decode(bad, on_error="skip").losses]
    assert len(skipped) == 2
    expected = {"bad": skipped, "cut": [*skipped, left]}
    frame = spark.createDataFrame(
        [(n, None if d is None else bytearray(d)) for n, d in rows], "name string, raw binary"
    )
    lost = kbatch.spark.decode_frame(frame, "raw", keep=["name"], table="losses")
    assert lost.columns == ["name", "position", "length", "reason", "base_offset"]
    got: dict[str, list[Any]] = {}
    for row in lost.collect():
        got.setdefault(row.name, []).append(tuple(row[1:]))
    assert got == expected
    values = [data for _, data in rows]
    plain = [tuple(row) for row in kbatch.spark.decode_batches(table="losses", partial="drop")(values)]
    assert plain == skipped * 2
    stopped = kbatch.spark.decode_in_arrow(table="losses", on_error="stop")
    (batch,) = run(stopped, [pa.record_batch({"value": pa.array([bytes(bad)], pa.binary())})])
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        loss[:4] for loss in kbatch.decode(bad, on_error="stop").losses
    ]
    assert not caplog.records
    list(kbatch.spark.decode_batches(on_error="skip")(values))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 6
    assert lines[0].startswith(f"row 1 of the partition, column 'value', byte {skipped[0][0]}: ")
    assert lines[-1] == "5 losses in this task; table='losses' returns all of them as rows"
    with pytest.raises(ValueError, match="requires on_error='skip' or 'stop'"):
        kbatch.spark.decode_in_arrow(table="losses", on_error="raise")
    with pytest.raises(ValueError, match="table must be one of 'records', 'losses'"):
        kbatch.spark.decode_batches(table="loss")  # type: ignore[arg-type]
