"""Very many logs: planning in a job, or by the tasks, gives the same results as planning in one process."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_batches import NOW, batch, write_segment

import kbatch

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql.datasource", exc_type=ImportError)

from kbatch.log.selection import choose_logs
from kbatch.plan import planner
from kbatch.plan.planner import LogRead, LogRequest, plan, plan_or_defer, plan_reads
from kbatch.plan.read_options import Bound, ReadOptions, TableName
from kbatch.plan.split import Split
from kbatch.spark.datasource import KbatchReader

COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp")
FIELDS = {"counts": ("topic", "partition", "records"), "losses": ("topic", "partition", "length")}
PER_PARTITION = {"txn": {0: 1_700_000_000_000, 1: 0, 2: 0, 3: 0}, "plain": dict.fromkeys(range(3), NOW + 15)}
BEYOND = Bound(offsets={topic: dict.fromkeys(numbers, 10**6) for topic, numbers in PER_PARTITION.items()})


@pytest.fixture(scope="module")
def root(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four logs with transactions, open ones too, and three without."""
    root: Path = tmp_path_factory.mktemp("logs")
    for number in range(4):
        shutil.copytree(golden / "logs" / "txn-0", root / f"txn-{number}")
    for segment in sorted((root / "txn-3").glob("*.log"))[1:]:
        # Without the later segments, transactions stay open.
        segment.unlink()
    for number in range(3):
        batches = [batch(i, [NOW + i, NOW + i + 1], value=bytes(100)) for i in range(0, 40, 2)]
        write_segment(root / f"plain-{number}", 0, batches[:10])
        write_segment(root / f"plain-{number}", 20, batches[10:])
    return root


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat two logs as very many."""
    monkeypatch.setattr(planner, "MANY_LOGS", 2)


def pickled_map(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Apply a function as a Spark job does: all that it gets and returns is pickled."""
    return [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(function))(each))) for each in map(copied, items)]


def copied(item: Any) -> Any:
    return pickle.loads(pickle.dumps(item))


def middle(root: Path) -> int:
    """Return a timestamp in the middle of the logs with transactions."""
    tables = kbatch.Log(root / "txn-0").tables()
    return int(np.median(np.concatenate([table.records["timestamp"] for table in tables])))


def chosen(root: Path, name: str) -> ReadOptions:
    time = middle(root)
    options: dict[str, dict[str, Any]] = {
        "committed": {"isolation": "read_committed"},
        "from a time": {"starting": Bound(timestamp=time), "latest_if_no_timestamp": True},
        "to a time": {"ending": Bound(timestamp=time), "isolation": "read_committed"},
        "times per partition": {"starting": Bound(timestamps=PER_PARTITION), "isolation": "read_committed"},
        "offsets": {"starting": Bound(offset=21), "ending": Bound(offset=300), "isolation": "read_committed"},
        "missing offsets": {"ending": BEYOND, "isolation": "read_committed", "fail_on_data_loss": False},
        "small splits": {"isolation": "read_committed", "split_bytes": 10_000},
        "stop at damage": {"isolation": "read_committed", "on_error": "stop"},
    }
    return ReadOptions(**options[name])


NAMES = [
    "committed",
    "from a time",
    "to a time",
    "times per partition",
    "offsets",
    "missing offsets",
    "small splits",
    "stop at damage",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_job_plans_the_same_reads(root: Path, name: str, always: None) -> None:
    options = chosen(root, name)
    logs = choose_logs([str(root)], options.selection)
    for starts in ([None] * len(logs), [5, None, 30, 0, 200, 400, None]):
        expected = plan_reads(logs, options, starts)
        calls: list[int] = []

        def mapper(function: Any, items: Sequence[Any], calls: list[int] = calls) -> list[Any]:
            calls.append(len(items))
            return pickled_map(function, items)

        assert same(plan_reads(logs, options, starts, mapper=mapper), expected)
        assert calls == [len(logs) if name != "small splits" else 3]


def same(found: Sequence[LogRead], expected: Sequence[LogRead]) -> bool:
    """Whether two plans are equal, transactions and their arrays included."""
    return list(map(plain, found)) == list(map(plain, expected))


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    names = getattr(value, "__dataclass_fields__", None) or getattr(value, "__slots__", None) or ()
    return {name: plain(getattr(value, name)) for name in names} or value


@pytest.mark.parametrize("name", NAMES)
def test_tasks_that_plan_their_logs_return_the_same_rows(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = chosen(root, name)
    reader = KbatchReader([str(root)], options, COLUMNS)
    expected, planned = rows(reader), reader.partitions()
    assert all(isinstance(split, Split) for each in planned for split in each.value)
    monkeypatch.setattr(planner, "MANY_LOGS", 2)
    deferred = [part.log for each in reader.partitions() for part in each.value if isinstance(part, LogRequest)]
    found = [(log.topic, log.partition) for log in deferred]
    assert len(found) == len(set(found)) == (3 if name == "small splits" else 7)
    assert rows(reader) == expected
    assert len(expected) > 50


@pytest.mark.parametrize("table", ["counts", "losses"])
def test_tasks_plan_their_logs_for_counts_and_losses_too(
    root: Path, table: TableName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = shutil.copytree(root, tmp_path / "damaged")
    for number, log in enumerate(sorted(damaged.iterdir())):
        segment = min(log.glob("*.log"))
        data = bytearray(segment.read_bytes())
        data[70 + number] ^= 1
        segment.write_bytes(data)
    options = ReadOptions(table=table, isolation="read_committed", on_error="skip")
    reader = KbatchReader([str(damaged)], options, tuple(FIELDS[table]))
    expected = totals(reader)
    assert len(expected) == 7
    assert all(isinstance(split, Split) for each in reader.partitions() for split in each.value)
    monkeypatch.setattr(planner, "MANY_LOGS", 2)
    assert all(isinstance(part, LogRequest) for each in reader.partitions() for part in each.value)
    assert totals(reader) == expected


def totals(reader: KbatchReader) -> dict[tuple[str, int], int]:
    """Return the sum of the records or of the lost bytes of each topic-partition."""
    sums: dict[tuple[str, int], int] = {}
    for topic, partition, number in rows(reader):
        sums[topic, partition] = sums.get((topic, partition), 0) + number
    return sums


def rows(reader: KbatchReader) -> list[tuple[Any, ...]]:
    """Return the rows of all tasks, sorted; partitions are pickled as Spark does."""
    batches = [batch for each in reader.partitions() for batch in reader.read(copied(each))]
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def test_errors_of_a_job_are_those_of_one_process(root: Path, always: None) -> None:
    """The error of planning keeps its class and message, also if a job or a task raises it."""
    for options in (
        ReadOptions(starting=Bound(timestamp=4_000_000_000_000)),
        ReadOptions(ending=BEYOND, isolation="read_committed"),
    ):
        logs = choose_logs([str(root)], options.selection)
        starts = [None] * len(logs)
        with pytest.raises((ValueError, kbatch.LogDirectoryError)) as expected:
            plan_reads(logs, options, starts)
        with pytest.raises(type(expected.value)) as found:
            plan_reads(logs, options, starts, mapper=pickled_map)
        assert str(found.value) == str(expected.value)
        with pytest.raises(type(expected.value)):
            rows(KbatchReader([str(root)], options, COLUMNS))


def test_partitions_of_bounds_are_checked_before_tasks_start(root: Path, always: None) -> None:
    options = ReadOptions(starting=Bound(timestamps={"txn": {0: 1}}))
    with pytest.raises(ValueError, match="must name exactly the partitions"):
        KbatchReader([str(root)], options, COLUMNS).partitions()


def test_few_logs_and_plain_reads_are_planned_in_one_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ReadOptions(isolation="read_committed")
    logs = choose_logs([str(root)], options.selection)
    assert all(isinstance(part, Split) for task in plan_or_defer(logs, options) for part in task)
    plan_reads(logs, options, [None] * 7, mapper=lambda function, items: pytest.fail("there are few logs"))
    monkeypatch.setattr(planner, "MANY_LOGS", 2)
    assert all(isinstance(part, Split) for task in plan_or_defer(logs, ReadOptions()) for part in task)
    plan_reads(logs, ReadOptions(), [None] * 7, mapper=lambda function, items: pytest.fail("no look-up is needed"))


def test_records_appended_after_planning_are_not_read(root: Path, tmp_path: Path, always: None) -> None:
    """A DataFrame returns the same rows each time, although its tasks plan the read."""
    shutil.copytree(root, tmp_path / "logs")
    reader = KbatchReader([str(tmp_path / "logs")], ReadOptions(isolation="read_committed"), COLUMNS)
    partitions = reader.partitions()
    before = [each for part in partitions for each in reader.read(part)]
    with (tmp_path / "logs" / "plain-0" / f"{20:020d}.log").open("ab") as file:
        file.write(batch(40, [NOW]))
    after = [each for part in partitions for each in reader.read(copied(part))]
    assert after == before


@pytest.mark.parametrize("fails", [True, False])
def test_a_segment_that_is_deleted_after_planning_is_reported(
    root: Path, tmp_path: Path, always: None, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(root, tmp_path / "logs")
    options = ReadOptions(isolation="read_committed", fail_on_data_loss=fails)
    reader = KbatchReader([str(tmp_path / "logs")], options, COLUMNS)
    partitions = reader.partitions()
    expected = rows(reader)
    (tmp_path / "logs" / "plain-1" / f"{0:020d}.log").unlink()
    if fails:
        with pytest.raises(kbatch.LogDirectoryError, match=r"plain-1.*(No such file|deleted)"):
            [list(reader.read(part)) for part in partitions]
        return
    found = [row for part in partitions for each in reader.read(part) for row in each.to_pylist()]
    assert len(found) == len(expected) - 20
    assert "plain-1" in caplog.text


# -- one planner


def test_tasks_estimate_their_records_and_bytes(golden: Path) -> None:
    """Estimates come from the names of the segments, for which no file is read."""
    path = golden / "logs" / "codec-none-0"
    size, count = sum(each.stat().st_size for each in path.glob("*.log")), 3160
    options = ReadOptions(split_bytes=size // 5)
    for log in (kbatch.Log(path), kbatch.Log(path)):
        tasks = copied(plan([log], options))
        assert len(tasks) >= 5
        assert sum(task.bytes for task in tasks) == size
        assert sum(task.records for task in tasks) == pytest.approx(count, rel=0.1)
        assert [task.bytes for task in tasks] == [sum(split.end - split.start for split in task) for task in tasks]
    request = LogRequest(kbatch.Log(path))
    assert (request.bytes, request.records) == (size, pytest.approx(count, rel=0.1))
    # The number of records of a single segment is unknown.
    single = kbatch.Log(min(path.glob("*.log")))
    assert [task.records for task in plan([single], ReadOptions())] == [None]


def test_only_the_planner_resolves_bounds_and_follows_whole_logs() -> None:
    """Every read of the export and of the data source is planned by it; a stream and side tables know their offsets."""
    package = Path(kbatch.__file__).parent
    users = {
        name: {
            str(path.relative_to(package))
            for folder in ("plan", "sinks", "spark")
            for path in (package / folder).rglob("*.py")
            if re.search(rf"^(from .* import .*|    )\b{name}\b", path.read_text(), re.MULTILINE)
        }
        for name in ("resolve_log", "follow_transactions")
    }
    assert users == {
        "resolve_log": {"plan/planner.py"},
        "follow_transactions": {"plan/following.py"},
    }
