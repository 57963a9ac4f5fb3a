"""Columns and fields that come later: what becomes a column, what is refused, and that all data stays readable."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import log_batches
import pytest
from value_tables import batch_of

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")

import iceberg_catalog  # noqa: E402
import local_export  # noqa: E402
from export_outputs import FORMATS, Output  # noqa: E402
from later_columns import BOTH, JSON, add, changes, given, rows_of, schema_of  # noqa: E402

import kbatch  # noqa: E402
from kbatch.cli import main  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks.commits import TableCommitError  # noqa: E402
from kbatch.values import JsonParser, infer_json  # noqa: E402
from kbatch.values.json import infer_fields  # noqa: E402
from kbatch.values.merged_types import with_new_fields  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
every_format = pytest.mark.parametrize("out", FORMATS, indirect=True)
tables = pytest.mark.parametrize("out", ["delta", "iceberg"], indirect=True)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "json"


# -- inferred schemas


@pytest.mark.parametrize("by_day", [False, True], ids=["", "by day"])
@every_format
def test_a_new_field_becomes_a_column_from_the_run_that_reads_it(logs: Path, out: Output, by_day: bool) -> None:
    add(logs, 0, [{"id": i, "lines": [{"x": i}]} for i in range(50)])
    assert out.write(logs, JSON, by_day=by_day).schema_changes == []
    add(logs, 50, [{"id": i, "lines": [{"x": i, "y": "y"}], "late": {"at": i}} for i in range(50, 100)])
    summary = out.write(logs, JSON, by_day=by_day)
    assert (summary.action, summary.records, summary.bad) == ("continued", 50, 0)
    assert changes(summary) == [
        ("value.lines[].y", "added", "string"),
        ("value.late", "added", "struct<at: int64>"),
    ]
    add(logs, 100, [{"id": 100, "lines": []}, {"id": "x", "late": {"at": 100}}])
    summary = out.write(logs, JSON, by_day=by_day)
    assert (summary.schema_changes, summary.incomplete_values) == ([], 1)
    rows = rows_of(out)
    assert rows[0]["value"] == {"id": 0, "lines": [{"x": 0, "y": None}], "late": None}
    assert rows[99]["value"] == {"id": 99, "lines": [{"x": 99, "y": "y"}], "late": {"at": 99}}
    assert rows[100]["value"] == {"id": 100, "lines": [], "late": None}
    assert (rows[101]["value"]["id"], rows[101]["value"]["late"]) == (None, {"at": 100})
    assert [row["offset"] for row in rows if row["value_bad"]] == [101]
    assert out.write(logs, JSON, by_day=by_day).action == "unchanged"


@every_format
def test_a_new_field_becomes_a_column_of_flat_data(logs: Path, out: Output) -> None:
    add(logs, 0, [{"id": 1}, {"id": 2}])
    out.write(logs, JSON, flatten=True)
    add(logs, 2, [{"id": 3, "topic": "x", "late": 1.5}])
    summary = out.write(logs, JSON, flatten=True)
    assert changes(summary) == [("value_topic", "added", "string"), ("late", "added", "double")]
    add(logs, 3, [{"id": 4, "late": 2.5}])
    assert out.write(logs, JSON, flatten=True).schema_changes == []
    rows = rows_of(out)
    assert [(row["id"], row["value_topic"], row["late"]) for row in rows] == [
        (1, None, None), (2, None, None), (3, "x", 1.5), (4, None, 2.5),
    ]  # fmt: skip


@every_format
def test_the_column_of_a_key_keeps_its_name_if_values_get_a_field_of_that_name(logs: Path, out: Output) -> None:
    add(logs, 0, [{"x": 1}], [b'{"id": 7}'])
    out.write(logs, BOTH, flatten=True)
    add(logs, 1, [{"x": 2, "id": "v"}], [b'{"id": 8}'])
    assert changes(out.write(logs, BOTH, flatten=True)) == [("value_id", "added", "string")]
    add(logs, 2, [{"x": 3, "id": "w"}], [b'{"id": 9}'])
    assert out.write(logs, BOTH, flatten=True).schema_changes == []
    assert [(row["id"], row["value_id"], row["x"]) for row in rows_of(out)] == [(7, None, 1), (8, "v", 2), (9, "w", 3)]


@every_format
def test_with_new_fields_bad_the_columns_stay(logs: Path, out: Output) -> None:
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    add(logs, 1, [{"id": 2, "late": 1}])
    summary = out.write(logs, JSON, new_fields="bad")
    assert (summary.schema_changes, summary.incomplete_values) == ([], 1)
    row = rows_of(out)[1]
    assert (row["value"], row["value_bad"]) == ({"id": 2}, b'{"id": 2, "late": 1}')


def test_new_fields_bad_is_refused_without_an_inferred_schema(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(logs, 0, [{"id": 1}])
    with pytest.raises(ValueError, match="new_fields=bad is for schemas that are inferred"):
        kbatch.export(logs, tmp_path / "out", engine="local", values="json", value_schema="id int", new_fields="bad")
    with pytest.raises(ValueError, match="new_fields=bad is for schemas that are inferred"):
        kbatch.export(logs, tmp_path / "out", engine="local", new_fields="bad")
    flags = ["--values", "json", "--value-schema", "id int", "--new-fields", "bad"]
    with pytest.raises(SystemExit) as ended:
        main(["export", os.fspath(logs), os.fspath(tmp_path / "out"), *flags])
    assert ended.value.code == 2
    assert "--new-fields bad needs --values json or --keys json without a schema" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("indexed", [False, True], ids=["no index", "index"])
def test_a_few_new_records_after_many_old_ones_are_enough(logs: Path, tmp_path: Path, indexed: bool) -> None:
    """The sample is taken of what earlier runs have not read, wherever it begins."""
    out = Output("parquet", tmp_path / "out")
    batches = [
        batch_of([b'{"id": %d}' % i for i in range(first, first + 100)], None, first) for first in range(0, 20_000, 100)
    ]
    path = log_batches.write_segment(logs / "t-0", 0, batches)
    out.write(logs, JSON)
    with open(path, "ab") as file:
        file.write(batch_of([b'{"id": 1, "late": 2}'] * 3, None, 20_000))
    if indexed:
        segment = next(iter(kbatch.find_logs(logs)[0].segments))
        entries = b"".join(
            int(row["last_offset"]).to_bytes(4, "big") + int(row["position"]).to_bytes(4, "big")
            for rows in segment.scan() for row in rows[::10]
        )  # fmt: skip
        Path(str(path).replace(".log", ".index")).write_bytes(entries)
    assert changes(out.write(logs, JSON)) == [("value.late", "added", "int64")]
    assert rows_of(out)[-1]["value"] == {"id": 1, "late": 2}


def test_a_field_outside_of_the_sample_is_kept_in_value_bad(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbatch.log import sampling

    monkeypatch.setattr(sampling, "SAMPLED_PLACES", 1)
    monkeypatch.setattr(sampling, "SAMPLED_ROWS", 1)
    out = Output("parquet", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    add(logs, 1, [{"id": 2}, {"id": 3, "late": 1}])
    summary = out.write(logs, JSON)
    assert (summary.schema_changes, summary.incomplete_values) == ([], 1)
    add(logs, 3, [{"id": 4, "late": 2}])
    assert changes(out.write(logs, JSON)) == [("value.late", "added", "int64")]


ODD_NAMES = [
    "x.y",
    "a b",
    "",
    "\u00e9",
    "q\"'",
    "a,b;c=d(e){f}",
    "a\tb\n",
    "element",
    "value",
    "PARTITION",
    "date",
    "a" * 300,
]


@pytest.mark.parametrize("flatten", [False, True], ids=["struct", "flat"])
@every_format
def test_new_fields_can_have_any_name(logs: Path, out: Output, flatten: bool) -> None:
    later = {"id": 2, **dict.fromkeys(ODD_NAMES, 5), "n": dict.fromkeys(ODD_NAMES, 6)}
    for number, value in enumerate([{"id": 1}, later, later]):
        add(logs, number, [value])
        summary = out.write(logs, JSON, flatten=flatten)
        assert (summary.bad, len(summary.schema_changes)) == (0, len(ODD_NAMES) + 1 if number == 1 else 0)
    add(logs, 3, [b'{"id": 3, "\\u0000": 1, "\\ud800": 1}'])
    summary = out.write(logs, JSON, flatten=flatten)
    assert (summary.schema_changes, summary.incomplete_values) == ([], 1)
    rows = rows_of(out)
    assert len(rows) == 4
    assert rows[1]["n"] if flatten else rows[1]["value"] == later


def test_fields_that_tables_cannot_have_are_not_added() -> None:
    """Objects without fields, names that differ from others in case only, and fields that are always null."""
    known = infer_json([b'{"id": 1, "user": {"name": "n"}, "tags": [{"a": 1}], "raw": 1}'])
    found = infer_fields(
        [
            b'{"ID": 2, "user": {"Name": "n", "age": 1}, "e": {}, "l": [{}], "raw": {"x": 1}, "n": null,'
            b'"tags": [{"b": {"e": {}, "c": 1}}]}'
        ]
    )
    merged = with_new_fields(known, found, 1000)
    assert str(merged) == (
        "struct<id: int64, user: struct<name: string, age: int64>, "
        "tags: list<item: struct<a: int64, b: struct<c: int64>>>, raw: int64>"
    )
    assert JsonParser(merged, "keep").parse(pa.array([b'{"tags": [{"b": {"c": 1}}]}'])).bad.tolist() == []
    assert with_new_fields(pa.string(), found, 1000) == pa.string()


@every_format
def test_a_field_that_is_null_at_first_gets_the_type_of_its_later_values(logs: Path, out: Output) -> None:
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    add(logs, 1, [{"id": 2, "late": None, "list": []}])
    summary = out.write(logs, JSON)
    assert (changes(summary)[0][:2], summary.bad) == (("value.list", "added"), 0)
    add(logs, 2, [{"id": 3, "late": 1.5}])
    assert changes(out.write(logs, JSON)) == [("value.late", "added", "double")]
    assert [row["value"]["late"] for row in rows_of(out)] == [None, None, 1.5]


def test_a_schema_gets_no_fields_beyond_its_limit() -> None:
    known = pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.int64()})})
    found = pa.struct({"x": pa.struct({"y": pa.int64(), "z": pa.int64()}), "d": pa.int64(), "e": pa.int64()})
    assert with_new_fields(known, found, 5).names == ["a", "b", "d", "e"]
    assert with_new_fields(known, found, 6).names == ["a", "b", "x"]
    assert with_new_fields(known, found, 2) == known


# -- given schemas


@every_format
def test_a_given_schema_adds_fields_and_leaves_out_others(logs: Path, out: Output) -> None:
    add(logs, 0, [{"id": 1, "old": "o", "lines": [{"x": 1}]}])
    out.write(logs, given("id bigint, old string, lines array<struct<x: int>>"))
    add(logs, 1, [{"id": 2, "old": "o", "lines": [{"x": 2, "y": "y"}], "new": 2.5}])
    later = given("id bigint, lines array<struct<x: int, y: string>>, new double, day timestamp")
    summary = out.write(logs, later)
    assert [name for name, change, _ in changes(summary) if change == "added"] == [
        "value.lines[].y", "value.new", "value.day",
    ]  # fmt: skip
    add(logs, 2, [{"id": 3, "old": "p"}])
    assert out.write(logs, given("id bigint, old string")).schema_changes == []
    add(logs, 3, [{"id": 4, "old": "q", "new": 4.5}])
    # The columns of all earlier runs count, and not only those of the last one.
    with pytest.raises(kbatch.LogDirectoryError, match=r"value\.new \(double, not string\)"):
        out.write(logs, given("id bigint, new string"))
    assert out.write(logs, JSON).incomplete_values == 0
    assert [(row["value"]["id"], row["value"]["old"], row["value"]["new"]) for row in rows_of(out)] == [
        (1, "o", None), (2, None, 2.5), (3, "p", None), (4, "q", 4.5),
    ]  # fmt: skip
    assert rows_of(out)[1]["value"]["lines"] == [{"x": 2, "y": "y"}]


@every_format
def test_headers_can_be_left_out_and_come_later(logs: Path, out: Output) -> None:
    add(logs, 0, [{"id": 1}])
    out.write(logs)
    add(logs, 1, [{"id": 2}])
    assert out.write(logs, ReadOptions(include_headers=False)).schema_changes == []
    assert [row["headers"] for row in rows_of(out)] in ([[], None], [None, None])


WIDER = [("id int", "id bigint", 1 << 40), ("id float", "id double", 1e100)]
WIDER += [("id decimal(5, 1)", "id decimal(20, 1)", 123456789.5)]


@pytest.mark.parametrize(("before", "after", "value"), WIDER)
def test_iceberg_columns_get_wider_types(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, value: Any
) -> None:
    iceberg_catalog.use(tmp_path, monkeypatch)
    out = Output("iceberg", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, given(before))
    add(logs, 1, [{"id": value}])
    (change,) = out.write(logs, given(after)).schema_changes
    assert (change["column"], change["change"]) == ("value.id", "widened")
    assert change["before"] != change["type"]
    assert [row["value"]["id"] for row in rows_of(out)] == [1, Decimal(str(value)) if "decimal" in after else value]
    with pytest.raises(kbatch.LogDirectoryError, match=r"Iceberg table db.t has other columns: value\.id"):
        out.write(logs, given(before))


@pytest.mark.parametrize(("before", "after", "value"), WIDER)
@pytest.mark.parametrize("out", ["parquet", "arrow", "delta"], indirect=True)
def test_wider_types_are_refused_where_readers_do_not_combine_them(
    logs: Path, out: Output, before: str, after: str, value: Any
) -> None:
    add(logs, 0, [{"id": 1}])
    out.write(logs, given(before))
    add(logs, 1, [{"id": value}])
    files = out.files()
    with pytest.raises(kbatch.LogDirectoryError, match=r"value\.id \(.*, not .*: (not all readers|deltalake)"):
        out.write(logs, given(after))
    assert out.files() == files
    assert out.write(logs, given(after), mode="overwrite").action == "replaced"
    assert len(rows_of(out)) == 2


@every_format
def test_fields_that_cannot_be_combined_are_refused_before_anything_is_read(logs: Path, out: Output) -> None:
    add(logs, 0, [{"id": 1, "at": {"x": 1}}])
    out.write(logs, given("id bigint, at struct<x: bigint>"))
    add(logs, 1, [b"\0 no JSON"])
    files = out.files()
    for schema, text in (
        ("id int, at struct<x: bigint>", r"value\.id \(int64, not int32\)"),
        ("id bigint, at struct<x: string>", r"value\.at\.x \(int64, not string\)"),
        ("id bigint, at string", r"value\.at \(struct<x: int64>, not string\)"),
        ("id bigint, AT string", r"value\.AT \(new, and 'at' differs only in case\)"),
    ):
        with pytest.raises(kbatch.LogDirectoryError, match=text):
            out.write(logs, given(schema))
    assert out.files() == files


@pytest.mark.parametrize("mode", ["continue", "overwrite"])
def test_a_delta_table_gets_columns_of_local_times(logs: Path, tmp_path: Path, mode: str) -> None:
    """They need a feature of the table, which it gets first."""
    deltalake = pytest.importorskip("deltalake")
    out = Output("delta", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, given("id bigint"))
    add(logs, 1, [{"id": 2, "at": "2026-01-02T03:04:05"}])
    out.write(logs, given("id bigint, at timestamp_ntz"), mode=mode)
    assert str(rows_of(out)[1]["value"]["at"]) == "2026-01-02 03:04:05"
    assert "timestampNtz" in deltalake.DeltaTable(str(out.path)).protocol().writer_features


# -- commits


@tables
def test_columns_and_files_are_one_commit(logs: Path, out: Output) -> None:
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    versions = len(versions_of(out))
    add(logs, 1, [{"id": 2, "late": 1}])
    out.write(logs, JSON)
    assert len(versions_of(out)) == versions + 1


def versions_of(out: Output) -> list[Any]:
    return list(out.table().history() if out.kind == "delta" else out.table().snapshots())


@pytest.mark.parametrize("before", [True, False], ids=["before the run", "during the run"])
def test_a_delta_table_keeps_what_others_have_changed(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    deltalake = pytest.importorskip("deltalake")
    from kbatch.sinks.export_run import ExportRun

    out = Output("delta", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    add(logs, 1, [{"id": 2, "late": 1}])

    def change() -> None:
        alter = out.table().alter
        alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
        alter.set_table_name("orders")
        alter.set_column_metadata("offset", {"comment": "of Kafka"})
        more = out.table().to_pyarrow_table().slice(0, 1).set_column(2, "offset", pa.array([7], pa.int64()))
        deltalake.write_deltalake(out.path, more.select(out.table().schema().to_arrow().names), mode="append")

    commit = ExportRun.commit
    if before:
        change()
    else:
        monkeypatch.setattr(ExportRun, "commit", lambda run: (change(), commit(run))[1])
    assert changes(out.write(logs, JSON)) == [("value.late", "added", "int64")]
    table = out.table()
    assert [row["offset"] for row in rows_of(out)] == [0, 1, 7]
    assert (table.metadata().name, table.metadata().configuration) == (
        "orders", {"delta.logRetentionDuration": "interval 40 days"},
    )  # fmt: skip
    assert [each.metadata for each in table.schema().fields if each.name == "offset"] == [{"comment": "of Kafka"}]


@tables
def test_a_commit_that_fails_leaves_the_columns_as_they_were(
    logs: Path, out: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    before = rows_of(out)
    add(logs, 1, [{"id": 2, "late": 1}])

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        if out.kind == "delta":
            import deltalake

            patch.setattr(deltalake.DeltaTable, "create_write_transaction", fail)
        else:
            import pyiceberg.table

            patch.setattr(pyiceberg.table.Transaction, "commit_transaction", fail)
        with pytest.raises(TableCommitError, match="no answer"):
            out.write(logs, JSON)
    assert rows_of(out) == before
    assert changes(out.write(logs, JSON)) == [("value.late", "added", "int64")]
    assert rows_of(out)[1]["value"] == {"id": 2, "late": 1}


@tables
def test_a_column_that_another_program_adds_meanwhile_is_not_overwritten(
    logs: Path, out: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbatch.sinks.export_run import ExportRun

    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON, flatten=True)
    add(logs, 1, [{"id": 2, "late": 1}])
    commit = ExportRun.commit

    def meanwhile(run: ExportRun) -> Any:
        if out.kind == "delta":
            from deltalake import Field

            out.table().alter.add_columns([Field("late", "string")])
        else:
            with out.table().update_schema() as update:
                update.union_by_name(pa.schema({"late": pa.string()}))
        return commit(run)

    monkeypatch.setattr(ExportRun, "commit", meanwhile)
    with pytest.raises(TableCommitError, match=r"late \(string, not int64\)"):
        out.write(logs, JSON, flatten=True)
    assert [row["late"] for row in rows_of(out)] == [None]


def test_a_run_that_is_killed_while_it_commits_new_columns_leaves_readable_files(logs: Path, tmp_path: Path) -> None:
    """The next run compares its columns with those of the run that it finishes, or undoes."""
    out = Output("parquet", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, given("id bigint"))
    add(logs, 1, [{"id": 2, "late": None}])
    shutil.copytree(out.path, tmp_path / "before")
    found = set()
    for name, count in [(name, count) for name in ("rename", "replace", "fsync") for count in range(1, 5)]:
        shutil.rmtree(out.path)
        shutil.copytree(tmp_path / "before", out.path)
        process = multiprocessing.get_context("spawn").Process(target=killed_run, args=(logs, out.path, name, count))
        process.start()
        process.join()
        rows = [row["value"] for row in rows_of(out)]
        assert rows in ([{"id": 1}], [{"id": 1, "late": None}, {"id": 2, "late": None}])
        try:
            text = out.write(logs, given("id bigint, late string")).action
        except kbatch.LogDirectoryError as error:
            text = re.sub(".* other columns: (.*?);.*", r"\1", str(error))
        found.add((process.exitcode, text))
        assert [row["offset"] for row in rows_of(out)] == [0, 1]
    assert found >= {(-signal.SIGKILL, "continued"), (-signal.SIGKILL, "value.late (int64, not string)")}


def killed_run(logs: Path, path: Path, name: str, count: int) -> None:
    original: Any = local_export.export
    local_export.export = lambda root, out: original(root, out, given("id bigint, late bigint"))  # type: ignore[assignment]
    local_export.export_killed_at(logs, path, name, count)


def test_files_in_an_object_store_get_new_columns(logs: Path, s3_server: str) -> None:
    from kbatch.log.store.storage import filesystem
    from kbatch.sinks.manifest import Manifest
    from kbatch.sinks.outputs import open_place

    own = {"access_key": "me", "secret_key": "secret", "background_writes": "false"}
    storage = {**own, "endpoint_override": f"http://{s3_server}"}
    filesystem("s3://later", {**storage, "allow_bucket_creation": "true"})[0].create_dir("later")
    for number, value in enumerate(({"id": 1}, {"id": 2, "late": 1}, {"id": 3, "more": 1})):
        add(logs, number, [value])
        summary = local_export.export(logs, "s3://later/out", JSON, storage=storage)
        assert (summary.records, summary.bad) == (1, 0)
    found = Manifest.read(open_place("s3://later/out", storage))
    assert found is not None
    assert found.schema.field("value").type.names == ["id", "late", "more"]


# -- readers of files


def test_readers_combine_files_with_and_without_new_columns(logs: Path, tmp_path: Path) -> None:
    out = Output("parquet", tmp_path / "out")
    add(logs, 0, [{"id": 1, "user": {"name": "n"}}])
    out.write(logs, JSON, flatten=True)
    add(logs, 1, [{"id": 2, "user": {"name": "n", "age": 3}, "late": "x"}])
    out.write(logs, JSON, flatten=True)
    expected = [(1, {"name": "n", "age": None}, None), (2, {"name": "n", "age": 3}, "x")]
    files = f"{out.path}/**/*.parquet"
    rows = ds.dataset(out.path, schema=schema_of(out), partitioning="hive").to_table().to_pylist()
    assert sorted((row["id"], row["user"], row["late"]) for row in rows) == expected
    polars = pytest.importorskip("polars")
    schema = polars.Schema(polars.from_arrow(schema_of(out).empty_table()).schema)
    frame = polars.scan_parquet(
        files,
        schema=schema,
        hive_partitioning=False,
        missing_columns="insert",
        cast_options=polars.ScanCastOptions(missing_struct_fields="insert"),
    )
    assert sorted(frame.select("id", "user", "late").collect().rows()) == expected
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        query = f"select id, user, late from read_parquet('{files}', union_by_name=true) order by id"
        assert connection.execute(query.replace("user", '"user"')).fetchall() == expected
