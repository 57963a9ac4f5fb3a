"""Options of different kinds in one read, stream or export; each has the same effect as without the others."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from value_tables import batch_of

import kbatch
from kbatch.cli import main

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.spark

BATCHES, PER_BATCH = 6, 20
# The number of the damaged batch of partition 1.
DAMAGED_BATCH = 2


def value(offset: int) -> bytes | None:
    return {3: b"no json", 5: None}.get(offset % 10, json.dumps({"id": offset, "of": {"day": "x"}}).encode())


def key(offset: int) -> bytes:
    return b"k%d" % (offset % 4)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Orders in two partitions, the second one damaged, a log with an empty file, and an empty directory."""
    root = tmp_path / "logs"
    for partition in range(2):
        batches = []
        for number in range(BATCHES):
            offsets = range(number * PER_BATCH, (number + 1) * PER_BATCH)
            batches.append(batch_of([*map(value, offsets)], [*map(key, offsets)], number * PER_BATCH))
        if partition:
            batches[DAMAGED_BATCH] = batches[DAMAGED_BATCH][:-1] + b"!"
        (root / f"orders-{partition}").mkdir(parents=True)
        (root / f"orders-{partition}" / f"{0:020d}.log").write_bytes(b"".join(batches))
    (root / "empty-0").mkdir()
    (root / "empty-0" / f"{0:020d}.log").touch()
    (root / "none-0").mkdir()
    return root


def readable_offsets(partition: int, of_key: bytes | None = None) -> list[int]:
    lost = range(DAMAGED_BATCH * PER_BATCH, (DAMAGED_BATCH + 1) * PER_BATCH) if partition else range(0)
    return [n for n in range(BATCHES * PER_BATCH) if n not in lost and of_key in (None, key(n))]


EXPECTED = [(partition, offset) for partition in range(2) for offset in readable_offsets(partition, b"k3")]
OPTIONS = {"key": "k3", "onError": "skip", "valueFormat": "json", "topics": "orders"}


def rows_of(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select("partition", "offset", *columns).collect())


def check_values(frame: Any) -> None:
    rows = rows_of(frame, "value.id", "value_bad")
    assert [row[:2] for row in rows] == EXPECTED
    for _, offset, number, bad in rows:
        assert number == (None if offset % 10 in (3, 5) else offset)
        assert bad == (b"no json" if offset % 10 == 3 else None)


def test_a_key_filter_works_with_parsed_values_and_damage(spark: Any, logs: Path) -> None:
    reader = spark.read.format("kbatch").options(**OPTIONS)
    check_values(reader.load(str(logs)))
    for schema in ("partition int, offset long", "offset long, value_bad binary, partition int", "offset long"):
        assert spark.read.format("kbatch").options(**OPTIONS).schema(schema).load(str(logs)).count() == len(EXPECTED)
    only = spark.read.format("kbatch").options(**{**OPTIONS, "valueFormat": "binary"}).schema("partition int")
    assert only.load(str(logs)).count() == len(EXPECTED)


def test_a_stream_of_one_key_has_its_parsed_values(spark: Any, logs: Path, tmp_path: Path) -> None:
    frame = spark.readStream.format("kbatch").options(**OPTIONS, startingOffsets="earliest").load(str(logs))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(120)
    check_values(spark.read.parquet(str(tmp_path / "out")))


def test_logs_without_records_have_no_value_fields(spark: Any, logs: Path, tmp_path: Path) -> None:
    frame = spark.read.format("kbatch").options(valueFormat="json", topics="empty").load(str(logs))
    assert frame.count() == 0
    summary = kbatch.export(logs / "empty-0", tmp_path / "out", engine="spark")
    assert (summary.records, summary.files, summary.exit_status) == (0, [], 0)
    assert "none" not in {log.topic for log in kbatch.find_logs(logs)}


@pytest.mark.parametrize("written", ["parquet", "arrow", "delta"])
def test_parsed_values_are_exported(
    spark: Any, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    out = tmp_path / "out"
    flags = ["--key", "k3", "--values", "json", "--topic", "orders", "--on-error", "skip", "--format", written]
    assert main(["export", str(logs), str(out), *flags, "--by-day"]) == 3
    bad = sum(offset % 10 == 3 for _, offset in EXPECTED)
    assert f"unparsed   {bad} values: null in the output, their bytes are in value_bad\n" in capsys.readouterr().out
    if written == "delta":
        table = pytest.importorskip("deltalake").DeltaTable(str(out)).to_pyarrow_table()
    else:
        table = pytest.importorskip("pyarrow.dataset").dataset(out, format=written, partitioning="hive").to_table()
    rows = sorted(
        table.select(["partition", "offset", "value", "value_bad"]).to_pylist(), key=lambda row: (*row.values(),)[:2]
    )
    assert [(int(row["partition"]), row["offset"]) for row in rows] == EXPECTED
    for row in rows:
        parsed = {"id": row["offset"], "of": {"day": "x"}}
        assert row["value"] == (None if row["offset"] % 10 in (3, 5) else parsed)
        assert row["value_bad"] == (b"no json" if row["offset"] % 10 == 3 else None)
    assert {str(day) for day in table["date"].to_pylist()} == {str(datetime.date(1970, 1, 1))}
