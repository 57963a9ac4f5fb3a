"""Topics, partitions and offsets in directory and file names: DSK-R1, DSK-R8, DSK-R9, DSK-R10, DSK-R18."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_batches import batch, write_segment

from kbatch.errors import LogDirectoryError
from kbatch.log import Log, find_logs
from kbatch.log.store.names import parse_directory_name, parse_segment_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-b-3", ("a-b", 3, None)),
        ("t.x-0", ("t.x", 0, None)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49, None)),
        ("t-0.5f3c91-delete", ("t", 0, "delete")),
        ("a-b.c-12.5f3c91-future", ("a-b.c", 12, "future")),
        ("t-7.5f3c91-stray", ("t", 7, "stray")),
        ("t--1", ("t-", 1, None)),
        ("t-2147483647", ("t", 2**31 - 1, None)),
    ],
)
def test_directory_names_dsk_r9(name: str, expected: tuple[str, int, str | None]) -> None:
    assert parse_directory_name(name) == expected


@pytest.mark.parametrize(
    "name", ["t-delete", "t-future", "foo", "-0", "t-", "t-x", "", "-", "t-2147483648", "t-\u0663", "t-+1", "x.1-stray"]
)
def test_other_names_are_not_topic_partitions_dsk_r9(name: str) -> None:
    with pytest.raises(LogDirectoryError) as caught:
        parse_directory_name(name)
    assert "\n" not in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000001631.log", 1631),
        ("00000000000000000000.log", 0),
        ("09223372036854775807.log", 2**63 - 1),
        ("09223372036854775808.log", None),
        ("00000000000000000042-6f0Qxk1lTzK-nZ_3q7Q1sA.log", 42),
        ("00000000000000001631.log.deleted", None),
        ("00000000000000001631.log.cleaned", None),
        ("00000000000000001631.log.swap", None),
        ("00000000000000001631.index", None),
        ("1631.log", None),
        ("server.log", None),
    ],
)
def test_segment_names_dsk_r1_dsk_r18(name: str, expected: int | None) -> None:
    assert parse_segment_name(name) == expected


def test_only_segments_are_read_dsk_r8_dsk_r10(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [batch(0, [1, 2])])
    write_segment(directory, 2, [batch(2, [3])])
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.log.swap",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "notes.log",
    ):
        (directory / name).write_bytes(b"no batch")
    log = Log(directory)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert [segment.live for segment in log.segments] == [False, True]
    assert sum(len(table) for table in log.tables()) == 3


def test_find_logs_dsk_r9(tmp_path: Path) -> None:
    for name in ("b-10", "b-9", "a-0", "a-1.77-delete", "a-2.77-future", "a-3.77-stray"):
        write_segment(tmp_path / name, 0, [batch(0, [1])])
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / "file-0").write_text("not a directory")
    logs = find_logs(tmp_path)
    assert [(log.topic, log.partition) for log in logs] == [("a", 0), ("b", 9), ("b", 10)]
    assert [log.mark for log in logs] == [None] * 3
    logs = find_logs(tmp_path, marked=True)
    assert [(log.topic, log.partition, log.mark) for log in logs] == [
        ("a", 0, None),
        ("a", 1, "delete"),
        ("a", 2, "future"),
        ("a", 3, "stray"),
        ("b", 9, None),
        ("b", 10, None),
    ]
    (only,) = find_logs(tmp_path / "a-1.77-delete", marked=True)
    assert only.mark == "delete"
    with pytest.raises(LogDirectoryError, match="no topic-partition"):
        find_logs(tmp_path / "a-1.77-delete")
    (only,) = find_logs(tmp_path / "b-10")
    assert (only.topic, only.partition) == ("b", 10)


def test_find_logs_reports_errors_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, text in ((tmp_path / "gone", "no such directory"), (file, "not a directory"), (empty, "no topic-part")):
        with pytest.raises(LogDirectoryError, match=text) as caught:
            find_logs(path)
        assert "\n" not in str(caught.value)
        assert caught.value.source == str(path)


def test_log_reports_errors_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "00000000000000000000.index"
    other.write_bytes(b"")
    for path, text in ((tmp_path / "gone", "no such file"), (other, "not a '.log' file"), (tmp_path, "no segment")):
        with pytest.raises(LogDirectoryError, match=text):
            Log(path)


def test_a_single_file_has_the_topic_of_its_directory(tmp_path: Path) -> None:
    named = write_segment(tmp_path / "t-3", 7, [batch(7, [1])])
    log = Log(named)
    assert (log.topic, log.partition, log.start_offset, log.end_offset) == ("t", 3, 7, 8)
    renamed = tmp_path / "backup.log"
    renamed.write_bytes(named.read_bytes())
    log = Log(renamed)
    assert (log.topic, log.partition, log.segments[0].base_offset) == (None, None, None)
    (table,) = log.tables()
    assert table.records["offset"].tolist() == [7]
    assert table.source == str(renamed)
