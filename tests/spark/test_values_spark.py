"""Parsed keys and values in Spark: options, schemas, invalid values, projections."""

from __future__ import annotations

import argparse
import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from scripted_registry import framed, serving
from value_tables import table_of, write_log

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from kbatch.cli.value_flags import add_value_arguments, value_options
from kbatch.plan.read_options import parse_options
from kbatch.value_options import FormatOptions, ValueOptions
from kbatch.values.registry_settings import RegistrySettings

AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "sizes", "type": {"type": "array", "items": "float"}},
    ],
}


def load(spark: Any, path: str, schema: str | None = None, **options: str) -> Any:
    reader = spark.read.format("kbatch").options(**options)
    return (reader.schema(schema) if schema else reader).load(path)


def test_conflicting_value_options_are_refused() -> None:
    assert ValueOptions.parse({"VALUEFORMAT": "JSON", "keyformat": "string"}).parsed == ("key", "value")
    assert ValueOptions.parse({}) == ValueOptions()
    for options, message in [
        ({"valueFormat": "xml"}, "must be one of"),
        ({"valueFormat": "avro"}, "requires valueSchema"),
        ({"valueFormat": "string", "valueSchema": "a int"}, "valueFormat string does not take valueSchema"),
        (
            {"valueFormat": "json", "valueFraming": "confluent"},
            "with valueFormat json requires schemaRegistry",
        ),
        ({"keySchema": "a int"}, "keySchema without keyFormat, which is binary by default"),
        ({"valueFormat": "avro", "valueSchema": "{}", "valueSchemaFile": "x"}, "exclude"),
        ({"valueFormat": "json", "valueUnknownFields": "nosuch"}, "'ignore', 'bad'"),
        ({"valueFormat": "avro", "valueSchema": "{}", "valueFraming": "glue"}, "valueFraming must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            ValueOptions.parse(options)


def test_settings_of_a_schema_registry_are_options() -> None:
    given = {"valueFormat": "avro", "schemaRegistry": "http://a", "bearer.auth.token": "s3cr3t"}
    made = ValueOptions.parse(given)
    assert made.value.registry == RegistrySettings(("http://a",), bearer_token="s3cr3t")
    assert ValueOptions.parse({**given, "Schema.Registry.Url": "http://b"}).value.registry.urls == ("http://b",)  # type: ignore[union-attr]
    _, read = parse_options({"path": "x", **given})
    assert read.values == made
    assert "s3cr3t" not in repr(read)
    with pytest.raises(ValueError, match=r"^unknown setting 'schema.registry.uri', did you mean 'schema.registry.u"):
        parse_options({"path": "x", "valueFormat": "avro", "schema.registry.uri": "http://a"})


def test_values_of_a_schema_registry_are_read_by_tasks(spark: Any, tmp_path: Path) -> None:
    with serving() as registry:
        fields = [{"name": "id", "type": "long"}]
        registry.register("orders-value", {"type": "record", "name": "R", "fields": fields})
        fields = [*fields, {"name": "tag", "type": "string", "default": "none"}]
        registry.register("orders-value", {"type": "record", "name": "R", "fields": fields})
        json_schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        registry.register("orders-key", json_schema, "JSON")
        registry.authorization = "Basic bWU6cHc="
        values = [framed(1, b"\x02"), framed(2, b"\x04\x02a"), framed(9, b"")]
        write_log(tmp_path, "orders", values, keys=[framed(3, b'{"n": 1}')] * 3)
        frame = load(
            spark, str(tmp_path), valueFormat="avro", keyFormat="json", schemaRegistry=registry.url,
            **{"basic.auth.user.info": "me:pw"},
        )  # fmt: skip
        rows = frame.select("value.id", "value.tag", "key.n", "value_error", "value_schema_id").orderBy("offset")
        found = [tuple(row) for row in rows.collect()]
        assert found[:2] == [(1, "none", 1, None, 1), (2, "a", 1, None, 2)]
        assert found[2] == (None, None, 1, "unknown schema id 9: the registry has no such schema", 9)


def test_value_flags_of_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_value_arguments(parser)
    assert value_options(parser.parse_args([])) == ValueOptions()
    made = value_options(
        parser.parse_args(
            [
                "--values",
                "avro",
                "--value-schema",
                "x.avsc",
                "--value-framing",
                "confluent",
                "--keys",
                "struct",
                "--key-schema",
                ">i8",
            ]
        )
    )
    assert made == ValueOptions(FormatOptions("struct", ">i8"), FormatOptions("avro", "x.avsc", framing="confluent"))
    with pytest.raises(ValueError, match="--keys avro requires --key-schema"):
        value_options(parser.parse_args(["--keys", "avro"]))


def test_parsers_survive_pickling(tmp_path: Path) -> None:
    (tmp_path / "r.avsc").write_text(json.dumps(AVRO))
    for options in (
        FormatOptions("json", "a int"),
        FormatOptions("avro", str(tmp_path / "r.avsc"), framing="confluent"),
        FormatOptions("struct", "a:>i8"),
        FormatOptions("string"),
    ):
        parser = options.parser(list)
        assert parser is not None
        copy = pickle.loads(pickle.dumps(parser))
        assert copy.type == parser.type
        column = table_of([b"x", None]).to_arrow(columns=["value"]).column(0).chunk(0)
        assert copy.parse(column).values.equals(parser.parse(column).values)


def test_the_transform_of_an_export_parses_values() -> None:
    """The transform of an export replaces values, adds columns of invalid ones, and returns the declared schema."""
    pytest.importorskip("pyspark")
    import pyarrow as pa

    from kbatch.plan.read_options import ReadOptions
    from kbatch.plan.value_columns import value_columns
    from kbatch.records.kafka_columns import spark_batches, spark_schema

    assert value_columns(ValueOptions(), [], ReadOptions()) is None
    options = ValueOptions(FormatOptions("string"), FormatOptions("struct", "n:<u4"))
    made = value_columns(options, [], ReadOptions())
    assert made is not None
    columns = pickle.loads(pickle.dumps(made))
    names = ("offset", "value", "key")
    schema = columns.schema(spark_schema(names))
    assert schema.names == [
        "offset", "value", "key",
        "key_bad", "key_error", "key_schema_id", "value_bad", "value_error", "value_schema_id",
    ]  # fmt: skip
    assert schema.field("value").type == pa.struct([("n", pa.int64())])
    table = table_of([b"\1\0\0\0", None, b"x"], [b"a", b"\xff", None])
    (batch,) = (columns.apply(batch) for batch in spark_batches(table, names))
    assert batch.schema.equals(schema)
    assert batch.to_pydict() == {
        "offset": [0, 1, 2],
        "value": [{"n": 1}, None, None],
        "key": ["a", None, None],
        "key_bad": [None, b"\xff", None],
        "key_error": [None, "byte 0: not UTF-8", None],
        "key_schema_id": [None] * 3,
        "value_bad": [None, None, b"x"],
        "value_error": [None, None, "expected 4 bytes, found 1"],
        "value_schema_id": [None] * 3,
    }
    # A log without keys has no keys to parse.
    assert columns.schema(spark_schema(["value"])).names == ["value", "value_bad", "value_error", "value_schema_id"]


@pytest.mark.spark
def test_json_fields_are_inferred_from_a_sample(spark: Any, tmp_path: Path) -> None:
    values = [b'{"id":1,"tags":["a"],"in":{"x":1.5}}', b"oops", None, b'{"id":2,"new":1}', b"[1]"]
    keys = [b"a", b"\xff", None, b"", b"b"]
    root = write_log(tmp_path, "t", values * 50, keys * 50)
    frame = load(spark, root, valueFormat="json", keyFormat="string")
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,tags:array<string>,in:struct<x:double>,new:bigint>"
    )
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
        "key_bad", "key_error", "key_schema_id", "value_bad", "value_error", "value_schema_id",
    ]  # fmt: skip
    rows = frame.orderBy("offset").limit(5).collect()
    assert [row.value and row.value.asDict(True) for row in rows] == [
        {"id": 1, "tags": ["a"], "in": {"x": 1.5}, "new": None},
        None,
        None,
        {"id": 2, "tags": None, "in": None, "new": 1},
        None,
    ]
    assert [row.value_bad for row in rows] == [None, b"oops", None, None, b"[1]"]
    assert rows[4].value_error == "expected an object, found an array"
    assert [row.key for row in rows] == ["a", None, None, "", "b"]
    assert [row.key_bad for row in rows] == [None, b"\xff", None, None, None]
    assert frame.where("value_bad is not null").count() == 100


@pytest.mark.spark
def test_json_fields_follow_a_ddl_or_user_schema(spark: Any, tmp_path: Path) -> None:
    values = [
        b'{"id":1,"at":"2024-05-06T07:08:09Z","day":"2024-05-06","d":1.25,"more":1}',
        b'{"id":5000000000,"at":"2024-05-06T07:08:09Z"}',
        b"null",
    ]
    root = write_log(tmp_path, "t", values)
    ddl = "id int, at timestamp, day date, d decimal(10,2)"
    rows = load(spark, root, valueFormat="json", valueSchema=ddl).orderBy("offset").collect()
    assert rows[0].value.asDict() == {
        "id": 1,
        "at": rows[0].value["at"],
        "day": datetime(2024, 5, 6).date(),
        "d": Decimal("1.25"),
    }
    assert rows[0].value["at"].astimezone(UTC) == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert [row.value_bad for row in rows] == [None, values[1], None]
    assert [row.value is None for row in rows] == [False, True, True]
    # A user's schema gives the types and the projection.
    schema = "offset long, value_bad binary, value struct<id: int>"
    rows = load(spark, root, schema, valueFormat="json").orderBy("offset").collect()
    assert rows[1].value_bad == values[1]
    assert (rows[0].value["id"], rows[1].value["id"]) == (1, None)
    rows = load(spark, root, "offset long, value_error string", valueFormat="json").orderBy("offset").collect()
    assert [row.value_error for row in rows] == [None] * 3
    assert load(spark, root, "offset long", valueFormat="json").count() == 3
    with pytest.raises(Exception, match="expected a type"):
        load(spark, root, valueFormat="json", valueSchema="id nothing").collect()


@pytest.mark.spark
def test_avro_with_confluent_framing(spark: Any, tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    import io

    def framed(number: int, record: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, AVRO, record)
        return b"\0" + number.to_bytes(4, "big") + out.getvalue()

    at = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    record = {"id": 1, "at": at, "tags": {"a": 1, "b": None}, "kind": "B", "sizes": [1.5]}
    far = framed(7, {**record, "at": 2**62})
    values = [framed(7, record), framed(8, record), b"x", None, far]
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "7.avsc").write_text(json.dumps(AVRO))
    root = write_log(tmp_path / "logs", "t", values)
    options = {"valueFormat": "avro", "valueSchema": str(schemas), "valueFraming": "confluent"}
    frame = load(spark, root, **options)
    rows = frame.orderBy("offset").collect()
    found = rows[0].value.asDict(True)
    assert found.pop("at").astimezone(UTC) == at
    assert found == {"id": 1, "tags": {"a": 1, "b": None}, "kind": "B", "sizes": [1.5]}
    # The last timestamp does not fit in microseconds, so Spark cannot represent the value, and its bytes are kept.
    assert [row.value_bad for row in rows] == [None, values[1], b"x", None, far]
    assert [row.value_schema_id for row in rows] == [7, 8, None, None, 7]
    assert rows[1].value_error == "unknown schema id 8; expected one of 7"
    assert "timestamp beyond microseconds" in rows[4].value_error
    assert frame.selectExpr("value.tags['a'] as a").where("a = 1").count() == 1


@pytest.mark.spark
def test_structs_with_unsigned_numbers(spark: Any, tmp_path: Path) -> None:
    values = [bytes([0, 0, 0, 0, 0, 0, 0, 7, 255]), b"short", None]
    root = write_log(tmp_path, "t", values, [b"\xff" * 8, b"\0" * 8, b"1"])
    options = {"valueFormat": "struct", "valueSchema": "id:>i8,flag:u1", "keyFormat": "struct", "keySchema": ">u8"}
    rows = load(spark, root, **options).orderBy("offset").collect()
    assert [row.value and tuple(row.value) for row in rows] == [(7, 255), None, None]
    assert [row.value_bad for row in rows] == [None, b"short", None]
    assert [row.key for row in rows] == [Decimal(2**64 - 1), Decimal(0), None]
    assert [row.key_bad for row in rows] == [None, None, b"1"]


def test_a_schema_is_inferred_from_a_batch_of_any_size(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from support.bombs import batch, record

    from kbatch import Log
    from kbatch.log.sampling import sample_logs
    from kbatch.tuning import MIN_SPLIT_TABLE

    value = b"{}" + b" " * MIN_SPLIT_TABLE
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(batch(record(value), 1, "zstd"))
    assert sample_logs([Log(tmp_path / "t-0")], "value") == [value]
