"""The files of an export: formats, sizes, compression, statistics, order and days, as other libraries read them."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import log_batches
import numpy as np
import pytest
from log_batches import DAY, NOW

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from kbatch.log.selection import open_selected  # noqa: E402
from kbatch.plan.planner import plan  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks import files  # noqa: E402
from kbatch.sinks.file_names import FileNames  # noqa: E402
from kbatch.sinks.outputs import OutputPlace  # noqa: E402
from kbatch.sinks.task import ExportJob, reports_of  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402

pytestmark = pytest.mark.spark


def run(
    root: Path,
    out: Path,
    options: ReadOptions | None = None,
    *,
    limits: files.FileLimits = files.FileLimits(),  # noqa: B008
    **writing: Any,
) -> list[Path]:
    """Run all tasks of an export without Spark; return the output files, sorted by name."""
    chosen = options or ReadOptions()
    expected = WriteOptions(**writing)
    tasks = plan(open_selected([str(root)]), chosen)
    out.mkdir()
    (splits,) = tasks
    job = ExportJob(chosen, names_in(out), expected, limits=limits)
    written = [file for report in reports_of(job([(0, splits)])) for file in report.files]
    assert not [path for path in out.iterdir() if path.is_file()]
    return [out / file.name for file in written]


def names_in(path: Path) -> FileNames:
    return FileNames(OutputPlace(str(path)), "0a1b2c3d")


def log(root: Path, timestamps: Iterable[int], *, size: int = 20, per_batch: int = 100, topic: str = "t-0") -> Path:
    """Write a log with one record per timestamp and incompressible values."""
    numbers = list(timestamps)
    noise = random.Random(7)
    batches = [
        log_batches.batch(i, numbers[i : i + per_batch], value=noise.randbytes(size))
        for i in range(0, len(numbers), per_batch)
    ]
    log_batches.write_segment(root / topic, 0, batches)
    return root


def offsets(path: Path) -> list[int]:
    return pq.ParquetFile(path).read(["offset"])["offset"].to_pylist()


@pytest.mark.parametrize("compression", ["zstd", "zstd:3", "snappy", "gzip", "gzip:1", "lz4", "none"])
def test_footers_have_statistics_encodings_and_order(golden: Path, tmp_path: Path, compression: str) -> None:
    (path,) = run(golden / "logs" / "codec-zstd-0", tmp_path / "out", compression=compression)
    file = pq.ParquetFile(path)
    group = file.metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    codec = compression.partition(":")[0]
    assert {column.compression for column in columns.values()} == {
        {"none": "UNCOMPRESSED", "lz4": "LZ4"}.get(codec, codec.upper())
    }
    assert columns["value"].statistics is None
    assert columns["key"].statistics is None
    assert (columns["offset"].statistics.min, columns["offset"].statistics.max) == (0, 3143)
    assert columns["timestamp"].statistics.has_min_max
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert "DELTA_BINARY_PACKED" in columns["timestamp"].encodings
    assert "RLE_DICTIONARY" in columns["key"].encodings
    assert columns["offset"].has_offset_index
    assert columns["offset"].has_column_index
    names = [column.path for column in file.schema]
    assert group.sorting_columns == (pq.SortingColumn(names.index("offset")),)
    assert offsets(path) == list(range(3144))


def test_readers_accept_every_file_option(spark: Any, golden: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    polars = pytest.importorskip("polars")
    seen = set()
    for i, compression in enumerate(("zstd:9", "snappy", "gzip", "lz4", "none")):
        out = tmp_path / f"out-{i}"
        run(
            golden / "logs" / "txn-0",
            out,
            ReadOptions(include_headers=True),
            compression=compression,
            row_group_rows=7,
            dictionary=("value", "offset") if i % 2 else ("key",),
            by_day=True,
        )
        columns = ["offset", "timestamp", "value"]
        expected = pq.read_table(out, partitioning=None).sort_by("offset").select(columns)
        rows = [tuple(row.values()) for row in expected.to_pylist()]
        with duckdb.connect() as connection:
            query = f"""select "offset", epoch_us(timestamp), value from '{out}/**/*.parquet' order by "offset\""""
            found = connection.execute(query).fetchall()
        assert found == [(row[0], int(row[1].timestamp() * 1000) * 1000, row[2]) for row in rows]
        frame = polars.scan_parquet(f"{out}/**/*.parquet").sort("offset").select(columns).collect()
        assert frame["offset"].to_list() == [row[0] for row in rows]
        assert frame["value"].to_list() == [row[2] for row in rows]
        by_spark = spark.read.parquet(str(out)).orderBy("offset").select("offset", "value").collect()
        assert [(row.offset, bytes(row.value)) for row in by_spark] == [(row[0], row[2]) for row in rows]
        seen.add(len(rows))
    assert len(seen) == 1


def test_statistics_of_row_groups_have_disjoint_offsets(tmp_path: Path) -> None:
    """Row groups have disjoint offset ranges, so readers use the statistics to skip row groups."""
    (path,) = run(log(tmp_path / "logs", range(NOW, NOW + 5000)), tmp_path / "out", row_group_rows=1000)
    metadata = pq.read_metadata(path)
    bounds = [metadata.row_group(i).column(2).statistics for i in range(metadata.num_row_groups)]
    assert [(each.min, each.max) for each in bounds] == [(i, i + 999) for i in range(0, 5000, 1000)]


def test_row_groups_have_at_most_the_given_size(tmp_path: Path) -> None:
    root = log(tmp_path / "logs", range(NOW, NOW + 4000), size=1000)
    (path,) = run(root, tmp_path / "bytes", row_group_bytes=500_000)
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    assert metadata.num_row_groups == 8
    assert max(sizes) < 550_000
    assert min(sizes[:-1]) > 400_000
    (path,) = run(root, tmp_path / "rows", row_group_rows=1500)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [1500, 1500, 1000]


def test_pages_of_large_values_are_small(tmp_path: Path) -> None:
    """A page, which a reader loads at once, has fewer than 1,024 values if the values are large."""
    root = log(tmp_path / "logs", range(NOW, NOW + 400), size=100_000, per_batch=1)
    (path,) = run(root, tmp_path / "out", compression="none")
    group = pq.read_metadata(path).row_group(0)
    assert group.num_rows == 400
    start = group.column(1).data_page_offset
    # A page begins with its header, whose second field is its size: Thrift, as zigzag varints.
    with path.open("rb") as file:
        file.seek(start)
        header = file.read(16)
    assert header[:3] == b"\x15\x00\x15"
    size = shift = 0
    for byte in header[3:]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    assert 1_000_000 < size // 2 < 2_100_000


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_task_starts_a_new_file_at_the_file_size(tmp_path: Path, kind: str) -> None:
    root = log(tmp_path / "logs", range(NOW, NOW + 10_000), size=1000, per_batch=1)
    paths = run(root, tmp_path / "out", file_bytes=2_000_000, row_group_bytes=250_000, format=kind, compression="none")
    sizes = [path.stat().st_size for path in paths]
    # The remainder of 10.1 MB gets a separate file if, and only if, less than half of it fits in the fifth.
    assert len(paths) == 5 or (len(paths) == 6 and sizes[4] + sizes[5] / 2 > 2_000_000)
    assert all(abs(size - 2_000_000) < 250_000 for size in sizes[:-1])
    if kind == "parquet":
        rows = [offsets(path) for path in paths]
        assert [offset for each in rows for offset in each] == list(range(10_000))
        assert [path.name[:31] for path in paths] == [f"part-{each[0]:020d}-00000" for each in rows]
        assert [path.name for path in paths] == sorted(path.name for path in paths)


def test_the_last_rows_get_no_tiny_file(tmp_path: Path) -> None:
    """The last rows go into the previous file if that file grows only by little."""
    root = log(tmp_path / "logs", range(NOW, NOW + 2010), size=1000, per_batch=1)
    paths = run(root, tmp_path / "out", file_bytes=2_100_000, row_group_rows=500, compression="none")
    assert [len(offsets(path)) for path in paths] == [2010]


def test_arrow_files(golden: Path, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    import pyarrow.dataset

    root = golden / "logs" / "codec-zstd-0"
    for compression in ("zstd", "zstd:5", "lz4", "none"):
        out = tmp_path / compression.replace(":", "-")
        (path,) = run(root, out, format="arrow", compression=compression, by_day=True)
        assert path.name.startswith("part-00000000000000000000-00000-")
        with pa.ipc.open_file(path) as reader:
            table = reader.read_all()
        assert table["offset"].to_pylist() == list(range(3144))
        assert polars.scan_ipc(f"{out}/**/*.arrow").select(polars.len()).collect().item() == 3144
        found = pyarrow.dataset.dataset(out, format="ipc", partitioning="hive").to_table()
        assert found["value"].to_pylist() == table["value"].to_pylist()
        assert found["topic"].unique().to_pylist() == ["codec-zstd"]


# -- days


def day(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "__HIVE_DEFAULT_PARTITION__"
    return str(datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).date())


def by_date(paths: Iterable[Path]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for path in paths:
        assert "date" not in pq.ParquetFile(path).schema_arrow.names
        found.setdefault(path.parent.name.removeprefix("date="), []).extend(offsets(path))
    return found


TIMES = {
    "steady": [NOW + i * 600_000 for i in range(1000)],
    "one day": [NOW + i for i in range(1000)],
    "to and fro": [NOW + (i % 3) * DAY for i in range(1000)],
    "before 1970": [i * 3_600_000 - 5 * DAY for i in range(240)],
    "nulls": [NOW + i * 1_000_000 if i % 7 else -1 for i in range(300)],
    "all null": [-1] * 100,
    "midnight": [DAY - 1, DAY, 2 * DAY - 1, 2 * DAY],
}


@pytest.mark.parametrize("name", TIMES)
def test_each_record_is_in_the_directory_of_its_day(tmp_path: Path, name: str) -> None:
    times = TIMES[name]
    # One batch per record, because a first timestamp of -1 would be the base of all timestamps of a batch.
    root = log(tmp_path / "logs", times, per_batch=1 if -1 in times else 50)
    paths = run(root, tmp_path / "out", by_day=True)
    expected_days: dict[str, list[int]] = {}
    for offset, time in enumerate(times):
        expected_days.setdefault(day(None if time == -1 else time), []).append(offset)
    assert by_date(paths) == expected_days
    assert len(paths) == len(expected_days)


def test_readers_read_the_days_as_partitions(spark: Any, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    polars = pytest.importorskip("polars")
    import pyarrow.dataset

    times = [NOW + i * DAY // 4 if i % 9 else -1 for i in range(60)]
    out = tmp_path / "out"
    run(log(tmp_path / "logs", times, per_batch=1), out, by_day=True)
    expected_days: dict[Any, int] = {}
    for time in times:
        key = None if time == -1 else datetime.date.fromisoformat(day(time))
        expected_days[key] = expected_days.get(key, 0) + 1
    assert len(expected_days) > 10
    frame = spark.read.parquet(str(out))
    assert frame.schema["date"].dataType.simpleString() == "date"
    assert {row.date: row["count"] for row in frame.groupBy("date").count().collect()} == expected_days
    assert frame.filter("date = to_date(timestamp)").count() == len(times) - expected_days[None]
    with duckdb.connect() as connection:
        query = f"select date, count(*) from read_parquet('{out}/**/*.parquet', hive_partitioning=true) group by date"
        found = dict(connection.execute(query).fetchall())
    assert {None if key is None else str(key): n for key, n in found.items()} == {
        None if key is None else str(key): n for key, n in expected_days.items()
    }
    found = dict(
        polars.scan_parquet(f"{out}/**/*.parquet", hive_partitioning=True, try_parse_hive_dates=True)
        .group_by("date").len().collect().rows()
    )  # fmt: skip
    assert found == expected_days
    table = pyarrow.dataset.dataset(out, format="parquet", partitioning="hive").to_table(columns=["date"])
    counts = {row["values"]: row["counts"] for row in table["date"].value_counts().to_pylist()}
    assert counts == {None if key is None else str(key): n for key, n in expected_days.items()}


def test_days_in_random_order_open_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of 250 days in random order keep a bounded number of files open and make few files."""
    opened: list[int] = []
    create = files.DataFiles._create

    def counted(self: Any, *arguments: Any) -> Any:
        file = create(self, *arguments)
        opened.append(len(self._open))
        return file

    monkeypatch.setattr(files.DataFiles, "_create", counted)
    numbers = random.Random(3)
    times = [NOW + numbers.randrange(250) * DAY for _ in range(8_000)]
    root = log(tmp_path / "logs", times)
    paths = run(root, tmp_path / "out", by_day=True)
    assert len(paths) == len({day(time) for time in times}) == 250
    # With little memory a day gets several files, and no record is lost or duplicated.
    limits = files.FileLimits(held_bytes=100_000)
    more = run(root, tmp_path / "more", limits=limits, by_day=True, row_group_bytes=50_000)
    assert 250 < len(more) < 8_000 / 8
    assert max(opened) == 32
    assert sorted(offset for each in by_date(more).values() for offset in each) == list(range(8_000))
    assert {date: sorted(each) for date, each in by_date(more).items()} == by_date(paths)


def test_too_many_days_are_an_error(tmp_path: Path) -> None:
    """Timestamps in nanoseconds, or random ones, are an error instead of a million directories."""
    root = log(tmp_path / "logs", [NOW + i * DAY for i in range(51)])
    with pytest.raises(kbatch.KbatchError, match=r"t-0: timestamps of more than 50 days.*write it without by_day"):
        run(root, tmp_path / "out", limits=files.FileLimits(days=50), by_day=True)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    far = log(tmp_path / "far", [253_402_300_800_000, 9_000_000_000_000_000], per_batch=1)
    paths = run(far, tmp_path / "far-out", by_day=True)
    assert [path.parent.name for path in paths] == ["date=+10000-01-01", "date=+287168-08-24"]


def test_reports_have_statistics_of_the_files(tmp_path: Path) -> None:
    times = [NOW + 5, -1, NOW - 5]
    chosen = ReadOptions()
    tasks = plan(open_selected([str(log(tmp_path / "logs", times, per_batch=1))]), chosen)
    (report,) = reports_of(ExportJob(chosen, names_in(tmp_path))(enumerate(tasks)))
    (file,) = report.files
    assert (file.rows, file.first_offset, file.last_offset, file.null_timestamps) == (3, 0, 2, 1)
    assert (file.first_timestamp, file.last_timestamp) == ((NOW - 5) * 1000, (NOW + 5) * 1000)
    assert file.file_bytes == (tmp_path / file.name).stat().st_size


def test_descending_offsets_are_not_declared_sorted(tmp_path: Path) -> None:
    """A footer declares an order only if the rows have it, because readers rely on the declaration."""
    schema = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
    options = WriteOptions(row_group_rows=2)
    with files.DataFiles(names_in(tmp_path), ("t", 0), 0, schema, options, "here") as target:
        for pair in ([1, 2], [3, 4], [4, 3], [9, 8], [20, 21]):
            batch = pa.record_batch([pa.array(pair), pa.array([0, 0], schema.field(1).type)], schema=schema)
            target.write(batch, batch.column(0), batch.column(1))
    found = [pq.ParquetFile(tmp_path / each.name) for each in target.written]
    assert [file.read()["offset"].to_pylist() for file in found] == [[1, 2, 3, 4], [4, 3, 9, 8, 20, 21]]
    assert [bool(file.metadata.row_group(0).sorting_columns) for file in found] == [True, False]


class Doubled:
    """A transform that adds a column and removes some."""

    def schema(self, schema: Any) -> Any:
        return pa.schema([schema.field("offset"), ("twice", pa.int64())])

    def apply(self, batch: Any) -> Any:
        twice = pa.array(np.asarray(batch.column("offset")) * 2)
        return pa.record_batch([batch.column("offset"), twice], schema=self.schema(batch.schema))


def test_a_transform_changes_the_written_columns(tmp_path: Path) -> None:
    chosen = ReadOptions()
    tasks = plan(open_selected([str(log(tmp_path / "logs", TIMES["to and fro"]))]), chosen)
    (tmp_path / "out").mkdir()
    job = ExportJob(chosen, names_in(tmp_path / "out"), WriteOptions(by_day=True), Doubled())
    (report,) = reports_of(job(enumerate(tasks)))
    assert [file.rows for file in report.files] == [334, 333, 333]
    tables = [pq.ParquetFile(tmp_path / "out" / file.name).read() for file in report.files]
    rows = pa.concat_tables(tables).sort_by("offset")
    assert rows.to_pydict() == {"offset": list(range(1000)), "twice": list(range(0, 2000, 2))}


def test_an_error_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error also removes the files of days that were complete."""
    root = log(tmp_path / "logs", TIMES["steady"])
    monkeypatch.setattr(pq.ParquetWriter, "write_table", failing(pq.ParquetWriter.write_table, 4))
    with pytest.raises(kbatch.KbatchError, match=r"while exporting .*t-0.*\.log: OSError: .*No space left"):
        run(root, tmp_path / "out", limits=files.FileLimits(open_files=2), by_day=True)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def failing(function: Any, after: int) -> Any:
    calls = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise OSError(28, "No space left on device")
        return function(*arguments, **options)

    return call


def test_invalid_write_options_are_refused() -> None:
    for text in ("gzip:9", "zstd:-5"):
        assert WriteOptions(compression=text).compression == text
    for text in ("lzo", "zstd:-131073", "zstd:23", "snappy:1", "zstd:", "gzip:x", ""):
        with pytest.raises(ValueError, match="compression"):
            WriteOptions(compression=text)
    for given, message in (
        ({"format": "orc"}, "format must be one of 'parquet', 'arrow', 'delta', 'iceberg'"),
        ({"format": "arrow", "compression": "gzip"}, "zstd, lz4 or none, not gzip"),
        ({"row_group_rows": 0}, "row_group_rows must be at least 1"),
        ({"file_bytes": -1}, "file_bytes must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            WriteOptions(**given)  # type: ignore[arg-type]


def test_reports_are_plain_json(tmp_path: Path) -> None:
    chosen = ReadOptions()
    tasks = plan(open_selected([str(log(tmp_path / "logs", TIMES["steady"]))]), chosen)
    (text,) = ExportJob(chosen, names_in(tmp_path), WriteOptions(by_day=True))(enumerate(tasks))
    assert [file["date"] for file in json.loads(text)["files"]] == sorted({day(time) for time in TIMES["steady"]})
