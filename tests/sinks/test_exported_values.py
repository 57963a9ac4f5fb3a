"""Exports of parsed values: nothing is lost without a trace, and the summary lists fields that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_batches import write_segment
from value_tables import batch_of

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.dataset")

import pyarrow.dataset as ds  # noqa: E402
from local_export import export  # noqa: E402

from kbatch.cli.export import summary_lines  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.plan.value_options import FormatOptions, ValueOptions  # noqa: E402

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
    from kbatch.plan import value_columns

    monkeypatch.setattr(value_columns, "_SAMPLED_PLACES", 1)
    monkeypatch.setattr(value_columns, "_SAMPLED_ROWS", 1)


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
