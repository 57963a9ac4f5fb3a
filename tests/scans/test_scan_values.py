"""Typed columns of scans: every front returns those of the logs, and only the fields that a query needs are parsed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from value_tables import write_log

import kbatch
from kbatch.scans import file_source
from kbatch.values import JsonParser

SCHEMA = {"id": "bigint", "user": {"name": "string", "age": "int"}, "tags": "array<string>"}
FORMATS: dict[str, Any] = {"values": "json", "value_schema": SCHEMA, "keys": "string"}
COLUMNS = ["topic", "partition", "offset", "value.id", "value.user.name", "key", "value_error", "key_bad"]


def document(i: int) -> bytes | None:
    if i % 11 == 0:
        return None
    if i % 7 == 0:
        return b"bad %d" % i
    user = None if i % 5 == 0 else {"name": f"u{i % 3}", "age": i}
    return json.dumps({"id": i, "user": user, "tags": ["t"] * (i % 3), "more": i}).encode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for partition in range(3):
        values = [document(i + 100 * partition) for i in range(60)]
        write_log(tmp_path, "orders", values, [b"k%d" % (i % 4) for i in range(60)], partition)
    write_log(tmp_path, "users", [document(i) for i in range(1, 30)], [b"\xff"] * 29)
    return tmp_path


@pytest.fixture
def fields(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return a list that gets the fields of each parse of JSON by Arrow."""
    parsed: list[list[str]] = []
    original = JsonParser._parse_lines

    def counting(self: JsonParser, lines: Any, wire: pa.DataType) -> pa.Table:
        if bytes(lines) != b'{"v":null}\n':
            parsed.append([each.name for each in wire])
        return original(self, lines, wire)

    monkeypatch.setattr(JsonParser, "_parse_lines", counting)
    return parsed


def test_every_front_returns_the_columns_of_the_logs(root: Path) -> None:
    logs = kbatch.find_logs(root)
    scan = kbatch.scan_logs(root, **FORMATS)
    whole = logs.to_arrow(**FORMATS)
    whole = whole.select(scan.columns)
    assert scan.schema.equals(whole.schema)
    assert scan.to_arrow().equals(whole)
    assert scan.reader().read_all().equals(whole)
    assert pa.table(scan).equals(whole)
    expected = logs.to_arrow(columns=COLUMNS, **FORMATS)
    chosen = kbatch.scan_logs(root, columns=COLUMNS, **FORMATS)
    assert chosen.schema.equals(expected.schema)
    assert chosen.to_arrow().equals(expected)
    assert scan.select(COLUMNS).to_arrow().equals(expected)
    assert chosen.head(70).equals(expected.slice(0, 70))
    assert chosen.tail(70).equals(expected.slice(len(expected) - 70))
    assert chosen.count() == len(expected)
    frame = pl.from_arrow(expected)
    assert isinstance(frame, pl.DataFrame)
    assert frame.equals(chosen.to_polars())
    assert frame.equals(chosen.lazy().collect())
    assert frame.equals(pl.scan_pyarrow_dataset(chosen.dataset()).collect())
    assert chosen.to_pandas()["value.id"].isna().tolist() == expected["value.id"].is_null().to_pylist()
    records = chosen.dataset()
    assert duckdb.from_arrow(records).fetchall() == list(map(tuple, frame.rows()))


CONDITIONS: list[Callable[[], pc.Expression]] = [
    lambda: pc.field("value.id") > 30,
    lambda: (pc.field("value.user.name") == "u1") & (pc.field("offset") < 40),
    lambda: pc.field("value_error").is_valid(),
    lambda: pc.field("value.id").is_null() | (pc.field("topic") == "users"),
    lambda: (pc.field("key") == "k1") & (pc.field("partition") == 1),
    lambda: pc.field("key").is_null(),
    lambda: pc.field("value.id").isin([1, 2, 103]),
]


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_conditions_on_typed_columns_are_those_of_arrow(root: Path, number: int) -> None:
    condition = CONDITIONS[number]()
    expected = kbatch.find_logs(root).to_arrow(columns=COLUMNS, **FORMATS).filter(condition)
    assert len(expected)
    scan = kbatch.scan_logs(root, columns=COLUMNS, **FORMATS).filter(condition)
    assert scan.to_arrow().equals(expected)
    assert scan.count() == len(expected)
    assert scan.tail(3).equals(expected.slice(max(0, len(expected) - 3)))
    assert scan.select("offset").to_arrow().equals(expected.select(["offset"]))
    assert scan.filter(pc.field("offset") >= 5).to_arrow().equals(expected.filter(pc.field("offset") >= 5))


@pytest.mark.filterwarnings("ignore:.*values are null or without some fields")
def test_a_condition_on_a_field_of_a_struct(root: Path) -> None:
    whole = kbatch.find_logs(root).to_arrow(columns=["offset", "value"], values="json", value_schema=SCHEMA)
    scan = kbatch.scan_logs(root, columns=["offset", "value"], values="json", value_schema=SCHEMA)
    condition = pc.field("value", "user", "age") >= 10
    assert scan.filter(condition).to_arrow().equals(whole.filter(condition))


@pytest.mark.filterwarnings("ignore:.*values are null or without some fields")
def test_engines_push_conditions_on_typed_columns(root: Path) -> None:
    scan = kbatch.scan_logs(root, columns=COLUMNS, **FORMATS)
    frame = scan.to_polars()
    for what in (
        pl.col("value.id") > 30,
        (pl.col("value.user.name") == "u1") & (pl.col("offset") < 40),
        pl.col("value_error").is_not_null(),
        pl.col("key").is_in(["k1", "k2"]),
        pl.col("value.id").is_null() & (pl.col("topic") == "orders"),
    ):
        assert scan.lazy().filter(what).collect().equals(frame.filter(what))
        assert pl.scan_pyarrow_dataset(scan.dataset()).filter(what).collect().equals(frame.filter(what))
        assert scan.lazy().filter(what).select(pl.len()).collect().item() == frame.filter(what).height
        assert scan.filter(what).to_polars().equals(frame.filter(what))
    records, table = scan.dataset(), scan.to_arrow()
    sql = duckdb.connect()
    for where in ('"value.id" > 30', "key = 'k1' and partition = 1", "value_error is not null", '"value.id" in (1, 2)'):
        sql.register("records", records)
        found = sql.execute(f"select * from records where {where}").fetchall()
        sql.register("records", table)
        assert found == sql.execute(f"select * from records where {where}").fetchall()
        assert found


def test_only_the_fields_of_a_query_are_parsed(root: Path, fields: list[list[str]]) -> None:
    scan = kbatch.scan_logs(root, columns=["offset", "value.id", "value.user.age", "value_error"], **FORMATS)

    def parsed_by(query: Callable[[], Any]) -> set[tuple[str, ...]]:
        fields.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            query()
        return {tuple(each) for each in fields}

    lazy, records = scan.lazy(), scan.dataset()
    assert parsed_by(lambda: lazy.select("offset").collect()) == set()
    assert parsed_by(lambda: lazy.select(pl.len()).collect()) == set()
    assert parsed_by(lambda: lazy.filter(pl.col("offset") > 3).select("offset").collect()) == set()
    assert parsed_by(lambda: scan.count()) == set()
    # Whole texts that may be bad are parsed again, with all fields.
    whole = ("id", "user", "tags")
    assert parsed_by(lambda: lazy.select(pl.col("value.id").sum()).collect()) <= {("id",), whole}
    assert parsed_by(lambda: lazy.select("value_error").collect()) <= {(), whole}
    assert parsed_by(lambda: lazy.filter(pl.col("value.user.age") > 3).select("offset").collect()) <= {("user",), whole}
    assert parsed_by(lambda: duckdb.from_arrow(records).aggregate('sum("value.id")').fetchall()) <= {("id",), whole}
    assert parsed_by(lambda: scan.select("value.id", "value.user.age").to_arrow()) <= {("id", "user"), whole}
    # Good texts are not parsed with all fields.
    write_log(root / "good", "t", [document(i) for i in (1, 2, 3, 4)])
    good = kbatch.scan_logs(root / "good", columns=["value.id", "value.tags"], values="json", value_schema=SCHEMA)
    assert parsed_by(lambda: good.lazy().select("value.id").collect()) == {("id",)}
    assert parsed_by(lambda: good.to_arrow()) == {("id", "tags")}


def test_a_schema_is_inferred_once_and_when_it_is_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = file_source.sample_logs

    def counting(*arguments: Any) -> list[bytes]:
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(file_source, "sample_logs", counting)
    scan = kbatch.scan_logs(root, values="json", topics="orders")
    assert calls == []
    narrow = scan.filter(pc.field("partition") == 1)
    assert (
        scan.schema.field("value").type
        == kbatch.find_logs(root)["orders"].to_arrow(values="json").schema.field("value").type
    )
    calls.clear()
    assert scan.filter(pc.field("offset") < 0).schema.equals(scan.schema)
    assert narrow.select("value.id", "value_error").to_arrow()["value.id"].null_count > 0
    narrow.lazy().select("value", "value_error").collect()
    assert calls == []


def test_bad_values_whose_bytes_are_not_columns_are_a_warning(root: Path) -> None:
    scan = kbatch.scan_logs(root, topics="orders", values="json", value_schema=SCHEMA)
    with pytest.warns(RuntimeWarning, match=r"^23 values are null or .*value_bad and value_error have the bytes"):
        scan.select("value.id").to_arrow()
    with pytest.warns(RuntimeWarning, match=r"^23 values are null"):
        scan.select("value.id").lazy().collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan.select("value.id", "value_bad").to_arrow()
        scan.select("offset").to_arrow()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (lambda scan: scan.select("value.idd"), "column 'value.idd': there is no field 'idd', did you mean 'id'"),
        (lambda scan: scan.select("value.id").select("value.user"), "no column 'value.user'; the scan has value.id"),
        (lambda scan: scan.select("valu"), "no column 'valu'; there are offset, "),
        (lambda scan: scan.filter(pc.field("value") == b"x"), "does not fit the columns offset, .*value_schema_id"),
        (lambda scan: scan.filter(pc.field("valu") == 5), "does not fit the columns offset, .*value_schema_id"),
    ],
)
def test_wrong_columns_and_conditions_are_named(root: Path, query: Callable[[kbatch.Scan], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        query(kbatch.scan_logs(root, values="json", value_schema=SCHEMA))


def test_wrong_formats_are_named_by_the_call(root: Path) -> None:
    with pytest.raises(ValueError, match=r"^values avro requires value_schema$"):
        kbatch.scan_logs(root, values="avro")
    with pytest.raises(ValueError, match=r"^column 'value.id' needs values"):
        kbatch.scan_logs(root, columns=["value.id"])
    with pytest.raises(ValueError, match=r"^schema 'id bogus': expected a type"):
        kbatch.scan_logs(root, values="json", value_schema="id bogus").schema  # noqa: B018
