"""Typed columns of logs: every format, bad values, projections, and schemas that are inferred once."""

from __future__ import annotations

import io
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from value_tables import batch_of, table_of, write_log

pytest.importorskip("pyarrow")

import pandas as pd
import polars as pl
import pyarrow as pa
from log_batches import write_segment

import kbatch
from kbatch.log import LogList, sampling
from kbatch.log.record_view import BadValues, RecordView, value_columns_of
from kbatch.log.sampling import sample_logs
from kbatch.value_options import ValueOptions
from kbatch.values import AvroParser, FixedParser, JsonParser, Parsed, ProtobufParser, TextParser
from kbatch.values.parsed import parse_column

RECORD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]}
ROW = np.dtype([("id", ">i8"), ("s", "S2")])
BAD: list[bytes | None] = [None, b"\xff\xff", b""]


def avro(number: int, text: str) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(RECORD), {"id": number, "s": text})
    return out.getvalue()


def descriptors() -> bytes:
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="r.proto", package="p", syntax="proto3").message_type.add(name="R")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="s", number=2, type=9, label=1)
    return files.SerializeToString()


# By format: the arguments, the parser of the same schema, and values.
def case(name: str) -> tuple[dict[str, Any], Any, list[bytes | None]]:
    pair = pa.struct({"id": pa.int64(), "s": pa.string()})
    if name == "json":
        return {"value_schema": pair}, JsonParser(pair), [b'{"id": 1, "s": "a"}', b'{"id": 2, "s": 5}', *BAD]
    if name == "avro":
        return {"value_schema": RECORD}, AvroParser(RECORD), [avro(1, "a"), avro(-5, "bc"), avro(1, "a")[:-1], *BAD]
    if name == "protobuf":
        values: list[bytes | None] = [b"\x08\x01\x12\x01a", b"\x08\x02", b"\x12\x01\xff", *BAD]
        return {"value_schema": descriptors(), "value_message": "p.R"}, ProtobufParser(descriptors(), "p.R"), values
    if name == "struct":
        rows = np.array([(1, b"a"), (2, b"bc")], ROW)
        return {"value_schema": ROW}, FixedParser(ROW), [rows[0].tobytes(), rows[1].tobytes(), *BAD]
    return {}, TextParser(), [b"a", "é".encode(), *BAD]


FORMATS = ["json", "avro", "protobuf", "struct", "string"]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_typed_columns(tmp_path: Path, name: str, many: bool) -> None:
    """The columns are those of the parser; the bytes of a bad value and the reason are next to it."""
    arguments, parser, values = case(name)
    for partition in range(2):
        write_log(tmp_path, "t", values, [b"k"] * len(values), partition)
    logs = kbatch.find_logs(tmp_path)
    source = logs if many else logs[0]
    raw = values * (2 if many else 1)
    expected = parse_column(parser, [pa.array(raw, pa.binary())])
    found = source.to_arrow(values=name, **arguments)
    assert found.schema.field("value").type == parser.type
    assert found.column_names == [*source.schema.names, "value_bad", "value_error", "value_schema_id"]
    assert found["value"].combine_chunks().equals(expected.values.combine_chunks())
    bad = dict(zip(expected.bad.tolist(), expected.errors, strict=True))
    assert bad
    assert found["value_bad"].to_pylist() == [raw[row] if row in bad else None for row in range(len(raw))]
    assert found["value_error"].to_pylist() == [bad.get(row) for row in range(len(raw))]
    assert found["key"].to_pylist() == [b"k"] * len(raw)
    # A parser that is ready is the same as its format and schema.
    assert source.to_arrow(values=parser).equals(found)


@pytest.mark.parametrize("name", FORMATS)
def test_keys_are_parsed_like_values(tmp_path: Path, name: str) -> None:
    arguments, _, keys = case(name)
    write_log(tmp_path, "t", [b"v"] * len(keys), keys)
    write_log(tmp_path / "swapped", "t", keys, [b"v"] * len(keys))
    renamed = {key.replace("value_", "key_"): value for key, value in arguments.items()}
    of_keys = kbatch.find_logs(tmp_path).to_arrow(keys=name, **renamed)
    of_values = kbatch.find_logs(tmp_path / "swapped").to_arrow(values=name, **arguments)
    for ending in ("", "_bad", "_error", "_schema_id"):
        assert of_keys[f"key{ending}"].equals(of_values[f"value{ending}"])
    assert "value_bad" not in of_keys.column_names


def test_both_sides_are_parsed_at_once(tmp_path: Path) -> None:
    write_log(tmp_path, "t", [b'{"a": 1}', b"no"], [b"\0\0\0\1", b"x"])
    found = kbatch.find_logs(tmp_path).to_arrow(
        values="json",
        value_schema="a int",
        keys="struct",
        key_schema=">u4",
        columns=["key", "value.a", "key_error", "value_error"],
    )
    assert found.to_pydict() == {
        "key": [1, None], "value.a": [1, None], "key_error": [None, "expected 4 bytes, found 1"],
        "value_error": [None, "Expecting value: line 1 column 1 (char 0)"],
    }  # fmt: skip


@pytest.fixture
def orders(tmp_path: Path) -> LogList:
    """Two partitions and another topic, with good values, others than expected, and nulls."""
    write_log(tmp_path, "orders", [b'{"id": 1, "user": {"name": "a", "age": 5}}', b'{"id": "x"}', None], partition=0)
    write_log(tmp_path, "orders", [b'{"id": 2, "user": null}', b"no"], partition=1)
    write_log(tmp_path, "users", [b'{"id": 3, "late": [1]}'])
    return kbatch.find_logs(tmp_path)


SCHEMA = {"id": "bigint", "user": {"name": "string", "age": "int"}}


def test_a_column_may_name_a_field(orders: LogList) -> None:
    found = orders.to_arrow(
        values="json", value_schema=SCHEMA, columns=["value.user.name", "offset", "value.id", "value_error"]
    )
    assert found.to_pydict() == {
        "value.user.name": ["a", None, None, None, None, None],
        "offset": [0, 1, 2, 0, 1, 0],
        "value.id": [1, None, None, 2, None, 3],
        "value_error": [
            None, "id: expected int64, found a string", None, None, "Expecting value: line 1 column 1 (char 0)", None
        ],
    }  # fmt: skip
    assert found.schema.field("value.user.name").type == pa.string()
    columns = ["value.user", "value", "value_bad"]
    whole = orders.to_arrow(values="json", value_schema=SCHEMA, columns=columns, last=1)
    assert whole["value.user"].to_pylist() == [None, None, None]
    assert whole["value"].type == pa.struct(
        {"id": pa.int64(), "user": pa.struct({"name": pa.string(), "age": pa.int32()})}
    )


@given(st.data())
def test_named_fields_are_those_of_the_whole_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever columns are named, each is that of a read of all columns, and so are the columns about bad values."""
    name = data.draw(st.sampled_from([each for each in FORMATS if each != "string"]))
    arguments, _, values = case(name)
    chosen = data.draw(st.lists(st.sampled_from(values), max_size=12))
    root = tmp_path_factory.mktemp("logs")
    write_log(root, "t", chosen or [None])
    log = kbatch.find_logs(root)[0]
    every = ["offset", "value", "value.id", "value.s", "value_bad", "value_error", "value_schema_id", "key"]
    columns = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        whole = log.to_arrow(values=name, columns=every, **arguments)
        found = log.to_arrow(values=name, columns=columns, **arguments)
    assert found.equals(whole.select(columns))


def test_only_named_fields_are_parsed(orders: LogList, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are made of the requested fields only, and of nothing if no column of a side is requested."""
    parsed: list[list[str]] = []
    original = JsonParser._parse_lines

    def counting(self: JsonParser, lines: Any, wire: pa.DataType) -> pa.Table:
        parsed.append([each.name for each in wire])
        return original(self, lines, wire)

    log = orders[0]
    formats: dict[str, Any] = {"values": JsonParser(pa.struct({"id": pa.string(), "name": pa.string()}), "keep")}
    with monkeypatch.context() as patch:
        patch.setattr(JsonParser, "_parse_lines", counting)
        for columns, fields in ((["value.id"], ["id"]), (["value_error"], []), (["value"], ["id", "name"])):
            parsed.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                log.to_arrow(columns=columns, **formats)
            assert {tuple(each) for each in parsed} == {tuple(fields)}
        parsed.clear()
        log.to_arrow(columns=["offset"], **formats)
        assert parsed == []
        assert RecordView.of(
            ["offset"], (), values=value_columns_of(ValueOptions.of(formats), lambda on: [], list)
        ).columns == ("offset",)


def test_every_conversion_takes_formats(orders: LogList) -> None:
    formats: dict[str, Any] = {"values": "json", "value_schema": SCHEMA}
    columns = ["offset", "value.id", "value", "value_bad"]
    expected = orders.to_arrow(columns=columns, **formats)
    assert orders.reader(columns=columns, **formats).read_all().equals(expected)
    assert orders.reader(columns=columns, **formats).schema == expected.schema
    assert pl.from_arrow(expected).equals(orders.to_polars(columns=columns, **formats))
    backed = orders.to_pandas(columns=columns, dtype_backend="pyarrow", **formats)
    assert pa.Table.from_pandas(backed).cast(expected.schema).equals(expected)
    frame = orders.to_pandas(columns=columns, **formats)
    assert list(frame.columns) == columns
    assert frame["offset"].dtype == np.int64
    assert frame["value.id"].isna().tolist() == [False, True, True, False, True, False]
    assert frame["value"][0] == {"id": 1, "user": {"name": "a", "age": 5}}
    assert frame["value_bad"].tolist() == expected["value_bad"].to_pylist()
    assert orders.head(4, columns=columns, **formats).equals(expected.slice(0, 4))
    assert orders.tail(2, columns=columns, **formats).equals(expected.slice(4))
    reader = orders.reader(columns=["value.id"], value_schema=SCHEMA, values="json")
    with pytest.warns(RuntimeWarning, match="2 values are null"):
        assert duckdb.from_arrow(reader).sum('"value.id"').fetchall() == [(6,)]


def test_frames_of_pandas_have_the_columns_of_arrow_in_any_order(orders: LogList) -> None:
    formats: dict[str, Any] = {"values": "json", "value_schema": SCHEMA}
    for columns in (["value_error"], ["value", "timestamp", "topic"], ["headers", "value.user", "key"], None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            frame = orders.to_pandas(columns=columns, **formats)
            table = orders.to_arrow(columns=columns, **formats)
            empty = orders.to_pandas(columns=columns, last=0, **formats)
        assert list(frame.columns) == list(empty.columns) == table.column_names
        assert len(frame) == len(table)
        assert len(empty) == 0
        assert isinstance(frame.index, pd.RangeIndex)


@pytest.mark.parametrize("binary", ["binary", "large_binary", "binary_view"])
def test_the_type_of_bytes_is_that_of_columns_without_a_format(orders: LogList, binary: Any) -> None:
    table = orders.to_arrow(values="json", value_schema=SCHEMA, binary=binary)
    assert table.schema.field("key").type == getattr(pa, binary)()
    assert table.schema.field("value_bad").type == pa.binary()
    plain = orders.to_arrow(values="json", value_schema=SCHEMA)
    assert table["value"].equals(plain["value"])
    assert table["value_bad"].equals(plain["value_bad"])


# -- inferred schemas


def test_a_schema_is_inferred_once_from_all_logs(orders: LogList) -> None:
    """All logs have the same columns, also those whose values lack a field; nothing of a later value is lost."""
    found = orders.to_arrow(values="json", columns=["topic", "value", "value_bad"])
    assert found.schema.field("value").type == pa.struct(
        [
            ("id", pa.string()),
            ("user", pa.struct([("name", pa.string()), ("age", pa.int64())])),
            ("late", pa.list_(pa.int64())),
        ]
    )
    assert found["value"].to_pylist()[0] == {"id": "1", "user": {"name": "a", "age": 5}, "late": None}
    assert found["value"].to_pylist()[-1] == {"id": "3", "user": None, "late": [1]}
    assert found["value_bad"].to_pylist() == [None, None, None, None, b"no", None]


def test_an_inferred_schema_does_not_depend_on_the_selection_of_records(orders: LogList) -> None:
    whole = orders.to_arrow(values="json").schema
    for selection in ({"last": 1}, {"start": 1}, {"key": b"none"}, {"start_timestamp": "2024-01-01"}):
        assert orders.to_arrow(values="json", **selection).schema == whole  # type: ignore[arg-type]


def test_a_log_without_values_has_columns_too(tmp_path: Path) -> None:
    write_log(tmp_path, "t", [None, None])
    found = kbatch.find_logs(tmp_path).to_arrow(values="json")
    assert found["value"].to_pylist() == [None, None]
    empty = LogList().to_arrow(values="json", value_schema="id bigint", columns=["value.id"])
    assert empty.schema == pa.schema({"value.id": pa.int64()})


def test_values_that_deviate_from_the_sample_keep_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLED_PLACES", 1)
    monkeypatch.setattr(sampling, "SAMPLED_ROWS", 1)
    values = [b'{"id": %d}' % i for i in range(100)]
    values[50] = b'{"id": "x", "more": 1}'
    write_log(tmp_path, "t", values)
    log = kbatch.find_logs(tmp_path)[0]
    found = log.to_arrow(values="json", columns=["value.id", "value_bad", "value_error"]).slice(50, 1).to_pydict()
    assert found == {
        "value.id": [None],
        "value_bad": [b'{"id": "x", "more": 1}'],
        "value_error": ["id: expected int64, found a string"],
    }
    message = r"^1 value is null or without some fields, because of the format or schema \(first at offset 50: id: exp"
    with pytest.warns(RuntimeWarning, match=message):
        log.to_arrow(values="json", columns=["offset", "value"])


def test_samples_are_spread_over_all_logs(tmp_path: Path) -> None:
    for partition in range(5):
        write_log(tmp_path, "t", [b'{"f%d": 1}' % partition] * 50, partition=partition)
    logs = kbatch.find_logs(tmp_path)
    assert {*sample_logs(list(logs), "value")} == {b'{"f%d": 1}' % partition for partition in range(5)}
    kind = logs.to_arrow(values="json", columns=["value"]).schema.field("value").type
    assert [each.name for each in kind] == [f"f{partition}" for partition in range(5)]


def test_a_sample_skips_damage_and_the_read_reports_it(tmp_path: Path) -> None:
    good = batch_of([b'{"a": 1}'])
    bad = bytearray(batch_of([b'{"b": 2}'], base_offset=1))
    bad[-1] ^= 1
    write_segment(tmp_path / "t-0", 0, [good, bytes(bad)])
    log = kbatch.Log(tmp_path / "t-0")
    with pytest.raises(kbatch.CrcMismatchError):
        log.to_arrow(values="json")
    with pytest.warns(RuntimeWarning, match="1 loss"):
        assert log.to_arrow(values="json", on_error="skip")["value"].to_pylist() == [{"a": 1}]


# -- bad values


def test_a_bad_value_whose_bytes_are_not_a_column_is_a_warning(orders: LogList) -> None:
    formats: dict[str, Any] = {"values": "json", "value_schema": SCHEMA}
    with pytest.warns(
        RuntimeWarning, match=r"^2 values are null or .* \(first: id: expected int64, found a string\); the col"
    ):
        orders.to_arrow(columns=["value.id"], **formats)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for more in ("value_bad", "value_error"):
            orders.to_arrow(columns=["value", more], **formats)
        orders.to_arrow(**formats)
        orders.to_arrow(columns=["offset"], **formats)
    with pytest.raises(TypeError, match="belong to one read"):
        pickle.dumps(BadValues([]))


def test_a_value_that_takes_too_much_memory_is_an_error_that_names_the_limit(tmp_path: Path) -> None:
    write_log(tmp_path, "t", [b'{"a": 1}'] * 10_000)
    log = kbatch.find_logs(tmp_path)[0]
    with pytest.raises(kbatch.LimitExceededError, match=r"raise limits=kbatch\.Limits"):
        log.to_arrow(values="json", value_schema=json_schema_of(200), limits=kbatch.Limits(max_table_bytes=4 << 20))


def json_schema_of(count: int) -> str:
    return ", ".join(f"f{i} bigint" for i in range(count))


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"values": "jsn"}, ValueError, r"^values must be one of .*'jsn', did you mean 'json'\?$"),
        ({"values": 5}, ValueError, "^values must be one of .*got 5$"),
        ({"keys": "avro"}, ValueError, "^keys avro requires key_schema$"),
        ({"value_schema": "id bigint"}, ValueError, "^value_schema without values, which is binary by default$"),
        (
            {"values": "json", "value_framing": "confluent"},
            ValueError,
            "^value_framing confluent with values json requires",
        ),
        ({"values": "json", "value_unknown": "no"}, ValueError, "^value_unknown must be one of"),
        ({"values": TextParser(), "value_schema": "x"}, ValueError, "^values TextParser does not take value_schema$"),
        ({"values": "json", "value_schema": "id bogus"}, ValueError, "^schema 'id bogus': expected a type"),
        ({"values": "json", "value_schema": {"a": {"b": "bogus"}}}, ValueError, "^schema, field a.b: schema 'bogus'"),
        ({"values": "json", "value_schema": {"a": 5}}, TypeError, "^schema, field a: a type must be DDL"),
        ({"values": "json", "value_schema": {5: "int"}}, TypeError, "^schema: field names must be str, got int 5$"),
        ({"values": "json", "value_schema": RECORD}, ValueError, "^schema: a schema of Avro, as it seems"),
        ({"values": "json", "value_schema": "m map<string,int>"}, TypeError, "^JSON can't be read as"),
        (
            {"values": "struct", "value_schema": pa.schema({"a": pa.string()})},
            TypeError,
            "field a: string has no fixed",
        ),
        ({"values": "struct", "value_schema": {"a": "bogus"}}, ValueError, "^schema: {'a': 'bogus'} is not a struct"),
        ({"values": "struct", "value_schema": {"a": None}}, ValueError, "a code must be text such as '>i8', got None"),
        ({"values": "avro", "value_schema": pa.schema({})}, TypeError, "schema must be"),
        ({"values": "avro", "value_schema": "no.avsc"}, ValueError, "^no.avsc: can't read an Avro schema"),
        ({"values": "protobuf", "value_schema": "no.desc"}, ValueError, "^no.desc: can't read a descriptor set"),
        (
            {"columns": ["value.id"]},
            ValueError,
            r"^column 'value.id' needs values, the format of values, such as values",
        ),
        ({"columns": ["key_bad"], "values": "json"}, ValueError, "^column 'key_bad' needs keys, the format of keys"),
        ({"columns": ["value.idd"], "values": "json"}, ValueError, r"^column 'value.idd': .*did you mean 'id'\?"),
        ({"columns": ["value.id.x"], "values": "json"}, ValueError, r"^column 'value.id.x': 'id' has no field 'x'"),
        (
            {"columns": ["value.id"], "values": "string"},
            ValueError,
            "^column 'value.id': there is no field 'id': the t",
        ),
        ({"columns": ["valu"], "values": "json"}, ValueError, "^no column 'valu'; there are offset, .*value_bad"),
        ({"columns": ["value.id", "value.id"], "values": "json"}, ValueError, "^a column is named twice"),
        ({"columns": "value.id", "values": "json"}, TypeError, "^columns must be a sequence or None, got str$"),
        ({"value_format": "json"}, TypeError, "use values, the format of the values$"),
    ],
)
def test_wrong_formats_schemas_and_columns_are_named(
    orders: LogList, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    for source in (orders, orders[0]):
        for method in ("to_arrow", "to_pandas", "reader"):
            with pytest.raises(error, match=message):
                getattr(source, method)(**arguments)


def test_tables_name_where_values_are_parsed(orders: LogList) -> None:
    for source in (orders, orders[0]):
        with pytest.raises(
            TypeError, match=r"^tables\(\) .* 'values'; to_arrow, reader and the other conversions take it"
        ):
            source.tables(values="json")  # type: ignore[call-arg]


SCHEMA_FORMS: list[tuple[str, Any]] = [
    ("json", "id bigint, user struct<name: string>"),
    ("json", {"id": "bigint", "user": {"name": "string"}}),
    ("json", {"id": pa.int64(), "user": "struct<name: string>"}),
    ("json", pa.schema({"id": pa.int64(), "user": pa.struct({"name": pa.string()})})),
    ("json", pa.struct({"id": pa.int64(), "user": pa.struct({"name": pa.string()})})),
    ("struct", "id:>i8,s:S2"),
    ("struct", {"id": ">i8", "s": "S2"}),
    ("struct", ROW),
    ("struct", [("id", ">i8"), ("s", "S2")]),
    ("avro", RECORD),
    ("avro", json.dumps(RECORD)),
]


@pytest.mark.parametrize(("name", "schema"), SCHEMA_FORMS)
def test_a_schema_has_several_forms(tmp_path: Path, name: str, schema: Any) -> None:
    first = next(form for each, form in SCHEMA_FORMS if each == name)
    one, other = (
        ValueOptions.of({"values": name, "value_schema": each}).parsers(lambda on: []) for each in (schema, first)
    )
    assert one["value"].type.equals(other["value"].type)
    if isinstance(schema, str):
        path = tmp_path / "schema"
        path.write_text(schema)
        for form in (path, str(path)):
            of_file = ValueOptions.of({"values": name, "value_schema": form}).parsers(lambda on: [])
            assert of_file["value"].type.equals(other["value"].type)


def test_numbers_of_an_arrow_schema_are_big_endian_as_javas_serializers_write_them(tmp_path: Path) -> None:
    schema = pa.schema(
        {"a": pa.int32(), "b": pa.float64(), "c": pa.bool_(), "d": pa.list_(pa.uint16(), 2), "e": pa.binary(2),
         "f": pa.struct({"g": pa.int8()})}
    )  # fmt: skip
    dtype = [("a", ">i4"), ("b", ">f8"), ("c", "?"), ("d", ">u2", 2), ("e", "V2"), ("f", [("g", "i1")])]
    rows = np.array([(1, 2.5, True, [3, 4], b"xy", (-5,))], dtype)
    write_log(tmp_path, "t", [rows.tobytes()])
    found = kbatch.find_logs(tmp_path).to_arrow(values="struct", value_schema=schema, columns=["value"])
    assert found["value"].to_pylist() == [{"a": 1, "b": 2.5, "c": True, "d": [3, 4], "e": b"xy", "f": {"g": -5}}]


def test_the_table_takes_the_same_forms_of_a_json_schema(tmp_path: Path) -> None:
    table = table_of([b'{"id": 1, "user": {"name": "a"}}'])
    expected = table.values_json(pa.schema({"id": pa.int64()})).values
    (tmp_path / "ddl").write_text("id bigint\n")
    for schema in ("id bigint", {"id": "bigint"}, {"id": pa.int64()}, tmp_path / "ddl"):
        assert table.values_json(schema).values.equals(expected)


class Lengths:
    """A parser of a user."""

    type = pa.struct({"length": pa.int64()})

    def parse(self, column: pa.Array, max_bytes: Any = 0) -> Parsed:
        rows = [each and {"length": len(each)} for each in column.to_pylist()]
        return Parsed(pa.array(rows, self.type), np.zeros(0, np.int64), [])


def test_a_parser_of_the_user_is_a_format(orders: LogList) -> None:
    found = orders.to_arrow(values=Lengths(), columns=["value.length"], start=0)
    assert found["value.length"].to_pylist() == [42, 11, None, 23, 2, 22]


def test_framing_and_schema_ids_are_read(tmp_path: Path) -> None:
    write_log(tmp_path, "t", [b"\0\0\0\0\7" + avro(1, "a"), b"x"])
    found = kbatch.find_logs(tmp_path).to_arrow(
        values="avro",
        value_schema={7: RECORD},
        value_framing="confluent",
        columns=["value.id", "value_schema_id", "value_bad"],
    )
    assert found.to_pydict() == {"value.id": [1, None], "value_schema_id": [7, None], "value_bad": [None, b"x"]}
