"""The interface of scans: arguments, errors, sources, and the objects that engines take."""

from __future__ import annotations

import datetime
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.acero
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import kbatch
from kbatch.errors import LogDirectoryError
from kbatch.format import VIEW_COLUMNS
from kbatch.log.selection import Selection, choose_logs
from kbatch.log.source import DirectoryTree, LogSource, SegmentSource
from kbatch.records.arrow import view_schema
from kbatch.scans import polars_scan
from kbatch.scans.file_source import FileSource
from kbatch.scans.polars_expressions import to_arrow_expression

LOGS = Path(__file__).parents[1] / "golden" / "logs"
OFFSET, TOPIC = pc.field("offset"), pc.field("topic")


@pytest.fixture
def scan() -> kbatch.Scan:
    return kbatch.scan_logs(LOGS, topics="codec-*")


@pytest.fixture(scope="module")
def whole() -> pa.Table:
    return kbatch.find_logs(LOGS, topics="codec-*").to_arrow()


def test_conversions_have_the_records_of_all_logs(scan: kbatch.Scan, whole: pa.Table) -> None:
    assert scan.schema.names == list(VIEW_COLUMNS) == scan.columns
    assert scan.to_arrow().equals(whole)
    assert pa.table(scan).equals(whole)
    assert scan.reader().read_all().equals(whole)
    assert scan.to_polars().equals(pl.DataFrame(whole))
    assert pl.DataFrame(scan).equals(pl.DataFrame(whole))
    for kind in ("binary", "large_binary", "binary_view"):
        assert scan.to_arrow(binary=kind).schema.field("value").type == getattr(pa, kind)()  # type: ignore[arg-type]
    for backend in ("numpy", "pyarrow"):
        frame = scan.select("offset", "value").to_pandas(dtype_backend=backend)  # type: ignore[arg-type]
        assert frame["offset"].tolist() == whole["offset"].to_pylist()
        assert frame["value"].dropna().tolist() == whole["value"].drop_null().to_pylist()
    none = scan.filter(OFFSET < 0)
    assert none.to_arrow().num_rows == none.count() == len(none.to_pandas()) == none.to_polars().height == 0
    assert none.head().num_rows == none.tail().num_rows == scan.head(0).num_rows == scan.tail(0).num_rows == 0


def test_a_scan_never_changes(scan: kbatch.Scan) -> None:
    scan.filter(OFFSET < 5).select("offset")
    assert scan.columns == list(VIEW_COLUMNS)
    assert scan.count() == sum(log.count() for log in kbatch.find_logs(LOGS, topics="codec-*"))


def test_a_filter_uses_columns_that_are_not_selected(scan: kbatch.Scan, whole: pa.Table) -> None:
    chosen = scan.select("value").filter((OFFSET == 7) & (TOPIC == "codec-lz4"))
    expected = whole.filter((OFFSET == 7) & (TOPIC == "codec-lz4"))
    assert chosen.to_arrow()["value"].to_pylist() == expected["value"].to_pylist()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda scan: scan.filter(pc.field("nope") > 1), ValueError, "nope > 1.*No match for FieldRef.Name"),
        (lambda scan: scan.filter(OFFSET == "x"), ValueError, "no kernel matching input types"),
        (lambda scan: scan.filter(OFFSET + 1), TypeError, "boolean result, got .* int64"),
        (lambda scan: scan.filter("offset > 5"), TypeError, "must be a pyarrow.compute.Expression"),
        (lambda scan: scan.filter(pl.col("offset") % 2 == 0), TypeError, r"no exact counterpart.*lazy\(\).filter"),
        (lambda scan: scan.select("nope"), ValueError, "nope.*there are offset"),
        (lambda scan: scan.select("value").select("offset"), ValueError, "the scan has value"),
        (lambda scan: scan.select(), ValueError, "at least one column"),
        (lambda scan: scan.select("offset", "offset"), ValueError, "named twice"),
        (lambda scan: scan.head(-1), ValueError, "0 or more"),
        (len, TypeError, "count"),
        (lambda scan: kbatch.scan_logs(LOGS / "absent"), LogDirectoryError, "no such file or directory"),
        (lambda scan: kbatch.scan_logs([]), ValueError, "empty list"),
        (lambda scan: kbatch.scan_logs(LOGS, limit=3), TypeError, "'limit'; head"),
        (lambda scan: kbatch.scan_logs(LOGS, topics=5), TypeError, "topics must be"),
        (lambda scan: kbatch.scan_logs(LOGS, topics="absent").count(), ValueError, "no log of topic 'absent'"),
        (lambda scan: kbatch.scan_logs(LOGS, start={"absent": {0: 1}}).count(), ValueError, "start names absent-0"),
    ],
)
def test_errors_name_what_was_expected(
    scan: kbatch.Scan, call: Callable[[kbatch.Scan], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(scan)


def test_a_partition_that_a_filter_excludes_may_be_named_by_a_bound() -> None:
    scan = kbatch.scan_logs(LOGS, start={"codec-lz4": {0: 3200}}, topics=["codec-lz4", "txn"])
    assert scan.filter(TOPIC == "txn").count() == kbatch.Log(LOGS / "txn-0").count()


def test_the_end_of_a_topic_does_not_depend_on_the_filter(tmp_path: Path) -> None:
    for number, first in enumerate((1_700_000_000_000, 1_700_000_100_000)):
        with kbatch.log.LogWriter(tmp_path / f"t-{number}") as writer:
            writer.append(kbatch.encode([b"v"] * 100, timestamps=[first + 1000 * i for i in range(100)]))
    scan = kbatch.scan_logs(tmp_path, start="end-150s")
    assert scan.filter(pc.field("partition") == 0).count() == 51


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (pl.col("offset") > 5, OFFSET > 5),
        ((pl.col("topic") == "a") & (pl.col("key") == b"k"), (TOPIC == "a") & (pc.field("key") == b"k")),
        (pl.lit(b"k") == pl.col("key"), pc.field("key") == b"k"),
        (pl.col("topic").is_in(["a", "b"]), TOPIC.isin(["a", "b"])),
        (pl.col("timestamp").is_null(), pc.field("timestamp").is_null()),
    ],
)
def test_expressions_of_polars_become_expressions_of_arrow(condition: pl.Expr, expected: pc.Expression) -> None:
    table = pa.table(
        {
            "offset": [4, 6, None],
            "topic": ["a", "b", None],
            "key": pa.array([b"k", b"x", None], pa.binary()),
            "timestamp": pa.array([5, None, -1], pa.timestamp("ms", "UTC")),
        }
    )
    assert table.filter(to_arrow_expression(condition, view_schema(VIEW_COLUMNS))).equals(table.filter(expected))


@pytest.mark.parametrize(
    "condition",
    [
        ~pl.col("topic").is_in(["a"]),
        pl.col("topic").is_in(["a"]).is_null(),
        pl.col("offset").map_elements(lambda offset: 1 / 0, return_dtype=pl.Boolean),
        pl.col("topic").str.starts_with("a") & (pl.col("offset") > 3),
        pl.col("key") == pl.col("topic").cast(pl.Binary).reverse(),
    ],
)
def test_expressions_whose_nulls_differ_or_that_arrow_does_not_have_are_refused(condition: pl.Expr) -> None:
    """Arrow's ``is_in`` is false for null, and that of Polars is null, which a negation keeps null."""
    with pytest.raises(TypeError, match="no exact counterpart"):
        to_arrow_expression(condition, view_schema(VIEW_COLUMNS))


def test_older_versions_of_polars_have_the_same_records(
    scan: kbatch.Scan, whole: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pl, "scan_external_reader", raising=False)
    lazy, frame = polars_scan.lazy_frame(scan), pl.DataFrame(whole).lazy()
    late = datetime.datetime(2023, 11, 14, 22, 14, 50, tzinfo=datetime.UTC)
    queries: Sequence[Callable[[pl.LazyFrame], pl.LazyFrame]] = (
        lambda lazy: lazy.filter(pl.col("timestamp") >= late, pl.col("offset") % 2 == 0).select("offset", "topic"),
        lambda lazy: lazy.head(9).filter(pl.col("offset") > 3),
        lambda lazy: lazy.tail(4),
        lambda lazy: lazy.top_k(3, by=["offset", "topic"]),
        lambda lazy: lazy.select(pl.len()),
        lambda lazy: lazy.filter(pl.col("key") == b"key-12").select(pl.len()),
    )
    for query in queries:
        assert query(lazy).collect().equals(query(frame).collect())


def test_a_dataset_has_no_way_around_its_methods(scan: kbatch.Scan, whole: pa.Table) -> None:
    """The dataset of C++ that the class has to wrap has one file, which does not exist."""
    records = scan.dataset()
    assert isinstance(records, pa.dataset.Dataset)
    assert records.schema == scan.schema
    assert records.to_table().equals(whole)
    assert records.filter(OFFSET < 3).count_rows() == 15
    assert records.head(2, columns=["offset"]).to_pydict() == {"offset": [0, 1]}
    assert records.take([0, 5], columns=["offset"])["offset"].to_pylist() == [0, 5]
    assert records.sort_by([("offset", "descending")]).head(1)["offset"][0].as_py() == max(whole["offset"].to_pylist())
    assert records.scanner(columns=["offset"]).projected_schema.names == ["offset"]
    for refused in (records.get_fragments, lambda: records.replace_schema(whole.schema)):
        with pytest.raises(NotImplementedError):
            refused()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(records)
    with pytest.raises(TypeError, match="names"):
        records.scanner(columns={"x": OFFSET})
    declaration = pa.acero.Declaration("scan", pa.acero.ScanNodeOptions(records))
    with pytest.raises(FileNotFoundError, match="scanner"):
        declaration.to_table()


def test_each_request_sees_the_logs_of_that_time(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "codec-lz4-0", tmp_path / "codec-lz4-0")
    scan, opened = kbatch.scan_logs(tmp_path), kbatch.scan_logs(kbatch.find_logs(tmp_path))
    before = scan.count()
    shutil.copytree(LOGS / "codec-none-0", tmp_path / "codec-none-0")
    assert scan.count() > before == opened.count()


def test_a_source_of_segments_of_another_kind_is_scanned() -> None:
    class Some:
        def logs(self, selection: Selection, excludes: Any = None) -> Sequence[kbatch.Log]:
            return choose_logs([str(LOGS / "txn-0")], selection, excludes=excludes)

        def describe(self) -> str:
            return "some logs"

    source: SegmentSource = Some()
    assert kbatch.scan_logs(source).count() == 337
    assert isinstance(FileSource(DirectoryTree([LOGS])), LogSource)
    assert kbatch.scan_logs(FileSource(source)).count() == 337
    assert "some logs" in repr(kbatch.scan_logs(source).filter(OFFSET > 5))


def test_threads_end_when_the_consumer_does(scan: kbatch.Scan) -> None:
    def running() -> int:
        return sum(thread.name.startswith("kbatch-scan") for thread in threading.enumerate())

    before = running()
    for threads in (1, 3):
        reader = kbatch.scan_logs(LOGS, threads=threads).reader()
        reader.read_next_batch()
        reader.close()
        del reader
    deadline = time.monotonic() + 10
    while running() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running() == before


def test_losses_are_warned_of_at_the_end(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "codec-lz4-0", tmp_path / "codec-lz4-0")
    segment = sorted((tmp_path / "codec-lz4-0").glob("*.log"))[0]
    content = bytearray(segment.read_bytes())
    content[3000] ^= 1
    segment.write_bytes(content)
    scan = kbatch.scan_logs(tmp_path, on_error="skip")
    with pytest.warns(RuntimeWarning, match="1 loss of"):
        lost = scan.count()
    with pytest.warns(RuntimeWarning, match="1 loss of"):
        assert scan.to_arrow().num_rows == lost
    # Bytes that the filter excludes are not read.
    assert scan.filter(OFFSET >= 2000).count() == kbatch.Log(LOGS / "codec-lz4-0").count(start=2000)
    with pytest.raises(kbatch.KbatchError):
        kbatch.scan_logs(tmp_path).to_arrow()
    assert kbatch.scan_logs(tmp_path).filter(OFFSET >= 2000).to_arrow().num_rows > 0
