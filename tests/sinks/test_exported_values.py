"""Exports of parsed values: nothing is lost without a trace, and the summary lists fields that do not fit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from log_batches import write_segment
from value_tables import batch_of

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.dataset")

import iceberg_catalog  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from local_export import export  # noqa: E402

from kbatch.cli.export_summary import summary_lines  # noqa: E402
from kbatch.errors import LogDirectoryError  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks import parquet  # noqa: E402
from kbatch.value_options import FormatOptions, ValueOptions  # noqa: E402

JSON = ReadOptions(values=ValueOptions(value=FormatOptions("json")))


def write_json(root: Path, values: list[bytes | None], partition: int = 0, keys: Any = None) -> Path:
    """Write values in batches of 100 records."""
    batches = [
        batch_of(values[first : first + 100], None if keys is None else keys[first : first + 100], first)
        for first in range(0, len(values), 100)
    ]
    write_segment(root / f"t-{partition}", 0, batches)
    return root


def read(out: Path) -> list[dict[str, Any]]:
    rows = ds.dataset(out, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (int(row["partition"]), row["offset"]))


def deviating(count: int, every: int) -> list[bytes | None]:
    """Return values; a few have a field and types that a small sample does not contain."""
    values: list[bytes | None] = [b'{"id": %d, "name": "n%d"}' % (i, i) for i in range(count)]
    for i in range(every // 2, count, every):
        values[i] = b'{"id": "x%d", "name": %d, "late": {"at": %d}}' % (i, i, i)
    return values


def unsampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infer the schema from the first value of each log only."""
    from kbatch.log import sampling

    monkeypatch.setattr(sampling, "SAMPLED_PLACES", 1)
    monkeypatch.setattr(sampling, "SAMPLED_ROWS", 1)


def test_values_with_unknown_fields_and_other_types_keep_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later field or type does not make a value unreadable, its data is in value_bad, and the status is not 0."""
    unsampled(monkeypatch)
    values = deviating(600, 200)
    root = write_json(write_json(tmp_path / "logs", values), [*values[:50], b"no json", None], 1)
    summary = export(root, tmp_path / "out", JSON)
    assert summary.bad_values == 1
    assert summary.incomplete_values == 3
    assert summary.exit_status == 5
    for row in read(tmp_path / "out"):
        original = (values if row["partition"] == 0 else [*values[:50], b"no json", None])[row["offset"]]
        if original is None:
            assert (row["value"], row["value_bad"], row["value_error"]) == (None, None, None)
        elif original == b"no json":
            assert (row["value"], row["value_bad"]) == (None, original)
            assert row["value_error"].startswith("Expecting value")
        elif b"late" in original:
            assert row["value"] == {"id": None, "name": str(row["offset"])}
            assert row["value_bad"] == original
            assert row["value_error"] == "id: expected int64, found a string"
        else:
            assert row["value"] == json.loads(original)
            assert (row["value_bad"], row["value_error"]) == (None, None)
        assert row["value_schema_id"] is None


def test_a_schema_is_inferred_from_all_parts_of_a_segment_without_an_index(tmp_path: Path) -> None:
    """A copy of a log may have no index files; samples are then spread over its bytes."""
    values: list[bytes | None] = [b'{"id": %d}' % i for i in range(20_000)]
    for i in range(15_000, 20_000):
        values[i] = b'{"id": "x%d", "late": {"at": %d}}' % (i, i)
    root = write_json(tmp_path / "logs", values)
    summary = export(root, tmp_path / "out", JSON)
    assert (summary.incomplete_values, summary.exit_status) == (0, 0)
    rows = read(tmp_path / "out")
    assert (rows[0]["value"], rows[-1]["value"]) == (
        {"id": "0", "late": None},
        {"id": "x19999", "late": {"at": 19_999}},
    )
    assert next(root.rglob("*.index"), None) is None


def test_a_summary_names_no_field_for_a_value_of_another_type(tmp_path: Path) -> None:
    root = write_json(tmp_path / "logs", [*([b'{"id": 1}'] * 300)])
    export(root, tmp_path / "out", JSON)
    write_segment(root / "t-0", 300, [batch_of([b"[1]"], None, 300)])
    lines = summary_lines(export(root, tmp_path / "out", JSON))
    assert "  schema     value: expected an object, found an array: 1 time, first in t-0 at offset 300" in lines


def test_the_summary_lists_fields_with_counts_and_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsampled(monkeypatch)
    root = write_json(tmp_path / "logs", deviating(600, 200))
    write_json(root, [b'{"id": 1, "name": "a", "late": 1}'], 1)
    summary = export(root, tmp_path / "out", JSON)
    place = {"topic": "t", "partition": 0, "offset": 100}
    assert summary.to_dict()["deviations"] == [
        {"column": "value", "kind": kind, "field": field, "reason": reason, "occurrences": count, **place}
        for kind, field, reason, count in (
            ("conflict", "id", "expected int64, found a string", 3),
            ("text", "name", "found a number", 3),
            ("unknown", "late", "not in the schema", 4),
        )
    ]
    text = "\n".join(summary_lines(summary))
    assert "  incomplete 4 values: without some fields in the output, their bytes are in value_bad" in text
    assert "  schema     value field 'late': not in the schema: 4 times, first in t-0 at offset 100" in text
    assert "  schema     value field 'name': found a number, written as text: 3 times, first in t-0" in text


def test_the_summary_lists_a_hundred_fields(tmp_path: Path) -> None:
    flood: list[bytes | None] = [json.dumps({f"n{i}_{k}": i for k in range(20)}).encode() for i in range(100)]
    root = write_json(tmp_path / "logs", flood)
    values = ValueOptions(value=FormatOptions("json", "id bigint", unknown="keep"))
    summary = export(root, tmp_path / "out", ReadOptions(values=values))
    assert len([each for each in summary.deviations if each["field"] is not None]) == 100
    assert sum(each["occurrences"] for each in summary.deviations) == 2000
    lines = summary_lines(summary)
    assert sum(line.startswith("  schema  ") for line in lines) == 20
    assert any("more fields; " in line for line in lines)


def test_complete_values_have_exit_status_0(tmp_path: Path) -> None:
    root = write_json(tmp_path / "logs", [b'{"id": 1}', b'{"id": 2.5, "x": [1]}', b'{"id": 3, "x": {"y": 1}}', None])
    summary = export(root, tmp_path / "out", JSON)
    assert (summary.exit_status, summary.bad, summary.bad_values) == (0, 0, 0)
    assert [row["value"] for row in read(tmp_path / "out")] == [
        {"id": 1.0, "x": None},
        {"id": 2.5, "x": "[1]"},
        {"id": 3.0, "x": '{"y": 1}'},
        None,
    ]
    assert {each["kind"] for each in summary.deviations} == {"text"}


def test_the_errors_and_schema_ids_of_avro_are_exported(tmp_path: Path) -> None:
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "7.avsc").write_text('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}')
    good = b"\0\0\0\0\7\2"
    root = write_json(tmp_path / "logs", [good, b"\0\0\0\0\10\2", good[:5], b"x", None])
    values = ValueOptions(value=FormatOptions("avro", str(schemas), framing="confluent"))
    summary = export(root, tmp_path / "out", ReadOptions(values=values))
    rows = read(tmp_path / "out")
    assert [row["value"] for row in rows] == [{"id": 1}, None, None, None, None]
    assert [row["value_schema_id"] for row in rows] == [7, 8, 7, None, None]
    assert [row["value_error"] for row in rows] == [
        None,
        "unknown schema id 8; expected one of 7",
        "byte 5: ends within the datum",
        "no Confluent framing: 1 bytes, fewer than the prefix of 5",
        None,
    ]
    assert (summary.bad_values, summary.incomplete_values, summary.deviations) == (3, 0, [])


def columns_of(out: Path) -> dict[str, Any]:
    """Return the column chunks of the first row group, by path."""
    file = pq.ParquetFile(sorted(out.rglob("*.parquet"))[0])
    group = file.metadata.row_group(0)
    return {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}


def orders(count: int) -> list[bytes | None]:
    return [
        json.dumps(
            {
                "id": i,
                "user": {"name": f"n{i % 50}", "session": f"s{i:040d}"},
                "lines": [{"x": i % 3}],
                "tags": ["a", "b"],
                "offset": i % 4,
                "ok": i % 2 == 0,
            }
        ).encode()
        for i in range(count)
    ]


def test_fields_have_statistics_and_dictionaries_where_they_pay(tmp_path: Path) -> None:
    """A sample decides for each field: repeated values get a dictionary, unique ones do not."""
    root = write_json(tmp_path / "logs", orders(3000), keys=[b"k%d" % i for i in range(3000)])
    export(root, tmp_path / "out", JSON)
    columns = columns_of(tmp_path / "out")
    repetitive = {"value.user.name", "value.lines.list.element.x", "value.tags.list.element", "value.offset"}
    unique = {"value.id", "value.user.session", "key", "offset"}
    for path in repetitive:
        assert "RLE_DICTIONARY" in columns[path].encodings, path
    for path in unique:
        assert "RLE_DICTIONARY" not in columns[path].encodings, path
    for path in (repetitive | unique | {"value.ok", "value_error"}) - {"key"}:
        assert columns[path].statistics is not None, path
    assert (columns["value.id"].statistics.min, columns["value.id"].statistics.max) == (0, 2999)
    assert columns["key"].statistics is None
    export(root, tmp_path / "none", JSON, dictionary=())
    assert not any("RLE_DICTIONARY" in column.encodings for column in columns_of(tmp_path / "none").values())


def test_repeated_keys_have_a_dictionary(tmp_path: Path) -> None:
    root = write_json(tmp_path / "logs", orders(1000), keys=[b"k%d" % (i % 9) for i in range(1000)])
    export(root, tmp_path / "out")
    assert "RLE_DICTIONARY" in columns_of(tmp_path / "out")["key"].encodings


def test_a_filter_on_a_field_reads_the_row_groups_that_can_match(tmp_path: Path) -> None:
    root = write_json(tmp_path / "logs", orders(3000))
    export(root, tmp_path / "out", JSON, flatten=True, row_group_rows=500)
    (path,) = (tmp_path / "out").rglob("*.parquet")
    (fragment,) = ds.dataset(path, format="parquet").get_fragments()
    assert fragment.num_row_groups == 6
    (group,) = fragment.subset(ds.field("id") == 1234).row_groups
    assert group.id == 2
    # The same for nested fields: the ranges of the row groups are disjoint.
    export(root, tmp_path / "nested", JSON, row_group_rows=500)
    (path,) = (tmp_path / "nested").rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    for name, first in (("value.id", 0), ("value.user.session", f"s{0:040d}")):
        at = [metadata.row_group(0).column(i).path_in_schema for i in range(metadata.num_columns)].index(name)
        found = [metadata.row_group(i).column(at).statistics for i in range(6)]
        assert found[0].min == first
        assert all(before.max < after.min for before, after in itertools.pairwise(found))


def test_keys_have_bloom_filters(tmp_path: Path) -> None:
    """Readers skip row groups by them; a writer without them writes the same rows."""
    if not parquet._has_bloom_filters():
        pytest.skip("this pyarrow writes no Bloom filters")
    keys = [b"key-%d" % i for i in range(3000)]
    root = write_json(tmp_path / "logs", orders(3000), keys=keys)
    export(root, tmp_path / "out", row_group_rows=1000)
    (path,) = (tmp_path / "out").rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    for number in range(3):
        columns = {column.path_in_schema: column for column in map(metadata.row_group(number).column, range(6))}
        assert columns["key"].bloom_filter_length > 0
        assert columns["value"].bloom_filter_offset is None
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        query = (
            f"select row_group_id, bloom_filter_excludes from parquet_bloom_probe('{path}', 'key', 'key-1500'::blob)"
        )
        assert connection.execute(query).fetchall() == [(0, True), (1, False), (2, True)]
    strings = ReadOptions(values=ValueOptions(key=FormatOptions("string")))
    export(root, tmp_path / "strings", strings)
    assert columns_of(tmp_path / "strings")["key"].bloom_filter_length > 0


def test_a_writer_without_bloom_filters_writes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_has_bloom_filters", lambda: False)
    root = write_json(tmp_path / "logs", orders(10), keys=[b"k"] * 10)
    export(root, tmp_path / "out")
    assert columns_of(tmp_path / "out")["key"].bloom_filter_offset is None
    assert [row["key"] for row in read(tmp_path / "out")] == [b"k"] * 10


def test_flatten_writes_fields_as_columns(tmp_path: Path) -> None:
    """Names of Kafka's columns get a prefix, in any case of letters; the fields of keys give way to those of values."""
    values: list[bytes | None] = [
        b'{"id": 1, "Offset": 7, "deep": {"x": 1}, "value_bad": "b"}',
        None,
        b"{}",
        b"no",
        b"null",
    ]
    keys = [b'{"id": 5, "name": "n"}', None, b"{}", b"{", b"{}"]
    root = write_json(tmp_path / "logs", values, keys=keys)
    both = ReadOptions(values=ValueOptions(FormatOptions("json"), FormatOptions("json")))
    summary = export(root, tmp_path / "out", both, flatten=True)
    assert (summary.bad_keys, summary.bad_values) == (1, 1)
    rows = read(tmp_path / "out")
    assert list(rows[0]) == [
        "key_id", "name", "id", "value_Offset", "deep", "value_value_bad", "offset", "timestamp", "timestampType",
        "headers", "key_is_null", "key_bad", "key_error", "key_schema_id", "value_is_null", "value_bad", "value_error",
        "value_schema_id", "topic", "partition",
    ]  # fmt: skip
    first = rows[0]
    assert (first["key_id"], first["name"], first["id"], first["value_Offset"]) == (5, "n", 1, 7)
    assert (first["deep"], first["value_value_bad"], first["offset"]) == ({"x": 1}, "b", 0)
    assert [row["id"] for row in rows] == [1, None, None, None, None]
    # Without this column, an empty object and a tombstone could not be distinguished.
    assert [row["value_is_null"] for row in rows] == [False, True, False, True, True]
    assert [row["value_bad"] for row in rows] == [None, None, None, b"no", None]


def test_flatten_leaves_values_without_fields_as_they_are(tmp_path: Path) -> None:
    root = write_json(tmp_path / "logs", [b"1", b"2"])
    export(root, tmp_path / "out", JSON, flatten=True)
    assert [row["value"] for row in read(tmp_path / "out")] == [1, 2]


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("written", ["delta", "iceberg"])
def test_tables_take_parsed_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, flatten: bool
) -> None:
    where = {}
    if written == "iceberg":
        iceberg_catalog.use(tmp_path, monkeypatch)
        where = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}
    root = write_json(tmp_path / "logs", [*orders(150), b"no json", None], keys=[b"k"] * 152)
    export(root, tmp_path / "out", JSON, format=written, flatten=flatten, **where)
    if written == "delta":
        table = pytest.importorskip("deltalake").DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
    else:
        table = iceberg_catalog.table().scan().to_arrow()
    rows = sorted(table.to_pylist(), key=lambda row: row["offset"])
    assert [(row if flatten else row["value"] or {}).get("id") for row in rows] == [*range(150), None, None]
    assert rows[150]["value_bad"] == b"no json"
    assert rows[150]["value_error"]


def output(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the keywords of an export to a format."""
    if kind == "iceberg":
        iceberg_catalog.use(tmp_path, monkeypatch)
        return {"format": kind, "table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}
    if kind == "delta":
        pytest.importorskip("deltalake")
    return {"format": kind}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("flatten", [False, True], ids=["struct", "flat"])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "delta", "iceberg"])
def test_an_export_that_continues_keeps_the_inferred_schema(
    kind: str, flatten: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later values have a new field and another type: the columns stay, and the summary lists the fields."""
    settings = output(kind, tmp_path, monkeypatch) | {"flatten": flatten, "new_fields": "bad"}
    root, out = tmp_path / "logs", tmp_path / "out"
    write_json(root, [b'{"id": %d, "offset": [{"a": %d}], "value_bad": "v"}' % (i, i) for i in range(100)])
    export(root, out, JSON, **settings)
    late: list[bytes | None] = [b'{"id": "x%d", "offset": [{"a": 1, "b": 2}], "late": 1}' % i for i in range(100)]
    write_segment(root / "t-0", 100, [batch_of(late, None, 100)])
    summary = export(root, out, JSON, **settings)
    assert (summary.action, summary.records, summary.incomplete_values) == ("continued", 100, 100)
    assert {each["field"] for each in summary.deviations} == {"id", "offset[].b", "late"}
    if kind in ("parquet", "arrow"):
        files = [path for path in out.rglob("part-*") if path.is_file()]
        found = [ds.dataset(path, format="parquet" if kind == "parquet" else "ipc").schema for path in files]
        assert len(found) == 2
        assert found[0].equals(found[1])
    if kind == "parquet":
        assert export(root, out, JSON, **settings | {"mode": "overwrite"}).incomplete_values == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("kind", ["parquet", "arrow", "delta", "iceberg"])
def test_an_export_that_continues_keeps_the_flat_columns_of_keys_and_values(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = output(kind, tmp_path, monkeypatch) | {"flatten": True, "new_fields": "bad"}
    root, out = tmp_path / "logs", tmp_path / "out"
    both = ReadOptions(values=ValueOptions(FormatOptions("json"), FormatOptions("json")))
    keys = [b'{"id": %d, "name": "n", "key.x": 1}' % i for i in range(100)]
    write_json(root, [b'{"id": %d, "at": {"x": %d}, "topic": "t"}' % (i, i) for i in range(100)], keys=keys)
    export(root, out, both, **settings)
    late: list[bytes | None] = [b'{"id": "x%d", "name": "of a value"}' % i for i in range(100)]
    write_segment(root / "t-0", 100, [batch_of(late, [b'{"id": %d, "late": 1}' % i for i in range(100)], 100)])
    summary = export(root, out, both, **settings)
    assert (summary.action, summary.incomplete_values, summary.incomplete_keys) == ("continued", 100, 100)
    assert {(each["column"], each["field"]) for each in summary.deviations} == {
        ("key", "late"), ("value", "id"), ("value", "name"),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("kind", ["parquet", "arrow", "delta", "iceberg"])
def test_other_types_of_fields_are_refused_by_name(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given schema may add fields to files, and leave out fields; another type, or flat columns, are refused."""
    settings = output(kind, tmp_path, monkeypatch)
    root, out = tmp_path / "logs", tmp_path / "out"
    write_json(root, [b'{"id": 1, "at": [{"x": 1}]}'] * 3)
    export(root, out, JSON, **settings)

    def continued(schema: str | None, **writing: Any) -> Any:
        values = ValueOptions(value=FormatOptions("json", schema))
        return export(root, out, ReadOptions(values=values), **settings, **writing)

    with pytest.raises(LogDirectoryError, match=r"value\.at\[\]\.x \(int64, not string\); "):
        continued("id bigint, at array<struct<x: string>>")
    with pytest.raises(LogDirectoryError, match=r"value \(missing\)"):
        continued(None, flatten=True)
    assert continued("id bigint").action == "unchanged"
    wider = "id bigint, at array<struct<x: bigint, y: bigint>>, more string"
    assert continued(wider).action == "unchanged"
