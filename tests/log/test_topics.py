"""Topics by name, glob and pattern, and several log directories."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

import kbatch
from kbatch import LogDirectoryError, find_logs
from kbatch.cli import main
from kbatch.log.selection import choose_logs
from kbatch.log.topics import TopicChoice, TopicFilter
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions, parse_options
from kbatch.plan.tasks import task_tables


@pytest.mark.parametrize(
    ("topics", "found"),
    [
        ("txn", ["txn"]),
        (["txn", "codec-lz4"], ["codec-lz4", "txn"]),
        ("codec-?z4*", ["codec-lz4"]),
        (["codec-[gl]*z*", "tx*"], ["codec-gzip", "codec-lz4", "txn"]),
        (re.compile("codec-.{3}"), ["codec-lz4"]),
        ([re.compile("t.n"), "codec-lz4"], ["codec-lz4", "txn"]),
        (re.compile("nothing.*"), []),
        ((name for name in ("txn",)), ["txn"]),
    ],
)
def test_topics_are_chosen_by_name_glob_and_pattern(golden: Path, topics: TopicChoice, found: list[str]) -> None:
    assert [log.topic for log in find_logs(golden / "logs", topics=topics)] == found


@pytest.mark.parametrize("topics", ["nope", "nope-*", ["txn", "no?e"]])
def test_a_name_or_glob_without_a_log_is_an_error(golden: Path, topics: TopicChoice) -> None:
    with pytest.raises(LogDirectoryError, match=r"golden/logs: no log of topic 'no.*; the topics are codec-gzip, "):
        find_logs(golden / "logs", topics=topics)


def test_a_glob_respects_case_and_the_whole_name() -> None:
    chosen = TopicFilter(["a.b-*", "Exact"])
    assert chosen("a.b-1")
    assert not any(map(chosen, ("aXb-1", "A.B-1", "xa.b-1", "exact", "Exact2", None)))


@pytest.mark.parametrize(
    ("topics", "partitions", "found"),
    [(None, [1, 7], ["a-1", "b-1"]), ("a", {0}, ["a-0"]), (["b"], (), []), ("b", [0], []), (None, None, 3)],
)
def test_partitions_are_chosen_of_each_topic(
    tmp_path: Path, golden: Path, topics: TopicChoice | None, partitions: Iterable[int] | None, found: object
) -> None:
    for name in ("a-0", "a-1", "b-1"):
        shutil.copytree(golden / "logs" / "txn-0", tmp_path / name)
    logs = find_logs(tmp_path, topics=topics, partitions=partitions)
    assert ([f"{log.topic}-{log.partition}" for log in logs] if isinstance(found, list) else len(logs)) == found
    assert len(find_logs(tmp_path / "a-1", topics=topics and "a", partitions=partitions)) == (
        partitions is None or 1 in partitions
    )


def test_partitions_of_another_type_are_refused(golden: Path) -> None:
    with pytest.raises(TypeError, match=r"^partitions must be numbers such as \[0, 1\], got \['0'\]$"):
        find_logs(golden / "logs", partitions=["0"])  # type: ignore[list-item]


def test_topics_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="topics must be names, globs or compiled regular expressions, got 3"):
        TopicFilter([3])  # type: ignore[list-item]


def test_a_topic_partition_directory_is_subject_to_topics(golden: Path) -> None:
    assert len(find_logs(golden / "logs" / "txn-0", topics="txn")) == 1
    with pytest.raises(LogDirectoryError, match="no log of topic 'orders'; the topics are txn"):
        find_logs(golden / "logs" / "txn-0", topics="orders")


@pytest.fixture
def disks(golden: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two of a broker's log directories."""
    for disk, name in (("disk-1", "txn-0"), ("disk-2", "codec-lz4-0")):
        shutil.copytree(golden / "logs" / name, tmp_path / disk / name)
    return tmp_path / "disk-1", tmp_path / "disk-2"


def test_several_log_directories_are_read_as_one(disks: tuple[Path, Path]) -> None:
    logs = find_logs(disks)
    assert [log.topic for log in logs] == ["codec-lz4", "txn"]
    assert len(find_logs([*disks, disks[0]])) == 2
    assert [log.topic for log in find_logs([str(disk) for disk in disks], topics="t*")] == ["txn"]
    with pytest.raises(ValueError, match="got an empty list"):
        find_logs([])


def test_a_topic_partition_in_two_directories_is_an_error(disks: tuple[Path, Path]) -> None:
    """As in Kafka's LogManager; otherwise, each record would be returned twice."""
    shutil.copytree(disks[0] / "txn-0", disks[1] / "txn-0")
    message = r"txn-0 is in .*disk-1/txn-0 and in .*disk-2/txn-0: give only one of them"
    with pytest.raises(LogDirectoryError, match=message):
        find_logs(disks)
    paths, options = parse_options({"paths": f"{disks[0]}, {disks[1]}"})
    with pytest.raises(LogDirectoryError, match=message):
        choose_logs(paths, options.selection)


def test_spark_options_name_several_directories_and_globs(disks: tuple[Path, Path]) -> None:
    one, two = map(str, disks)
    for given in ({"paths": f"{one},{two}"}, {"paths": f'["{one}", "{two}"]'}, {"path": one, "paths": two}):
        paths, options = parse_options({**given, "subscribe": "codec-*, txn"})
        assert paths == [one, two]
        assert [log.topic for log in choose_logs(paths, options.selection)] == ["txn", "codec-lz4"]
    _, options = parse_options({"path": one, "topics": "codec-*"})
    with pytest.raises(ValueError, match=r"no log of topic 'codec-\*'; the topics are txn"):
        choose_logs([one], options.selection)
    for text in ("", "[1]", "[", "/a,,/b"):
        with pytest.raises(ValueError, match="paths must be a JSON list such as"):
            parse_options({"paths": text})


def test_commands_accept_globs_and_several_directories(
    disks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = map(str, disks)
    assert main(["dump", "--records", "--tail", "1", "--json", "--topic", "tx*", one, two]) == 0
    assert '"topic":"txn"' in capsys.readouterr().out.replace(" ", "")
    assert main(["dump", "--topic", "no*", one, two]) == 1
    assert "no log of topic 'no*'; the topics are codec-lz4, txn" in capsys.readouterr().err


def test_the_tables_of_several_directories_have_all_records(disks: tuple[Path, Path], golden: Path) -> None:
    counts = {name: kbatch.Log(golden / "logs" / name).to_arrow(columns=["offset"]).num_rows for name in
              ("txn-0", "codec-lz4-0")}  # fmt: skip
    assert find_logs(disks).to_arrow(columns=["offset"]).num_rows == sum(counts.values())


def test_splits_of_a_relative_path_are_read_in_any_working_directory(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a cluster have working directories of their own."""
    monkeypatch.chdir(golden / "logs")
    (splits,) = plan(choose_logs(["txn-0"], ReadOptions().selection), ReadOptions())
    monkeypatch.chdir(tmp_path)
    assert sum(len(table) for _, table in task_tables(splits, ReadOptions(), ("offset",))) > 300
