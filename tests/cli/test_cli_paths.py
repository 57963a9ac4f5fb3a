"""Paths that cannot be used have one message in every command and function."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS

import kbatch
from kbatch.cli import main
from kbatch.log import LogWriter, compact_log, convert_log, recompress_log, write_log

LOG = LOGS / "txn-0"


def readers(path: Path, out: Path) -> dict[str, list[str]]:
    """Return the commands that read `path`, by name."""
    return {
        **{command: [command, str(path)] for command in ("dump", "verify", "stats")},
        **{command: [command, str(path), str(out)] for command in ("convert", "compact", "export")},
        "recompress": ["recompress", str(path), str(out), "--codec", "lz4"],
        "diff": ["diff", str(path), str(LOG)],
    }


@pytest.mark.parametrize("command", sorted(readers(Path(), Path())))
@pytest.mark.parametrize(
    ("directories", "message"),
    [
        (["orders-0"], "orders-0: the directory of topic 'orders', partition 0, contains no segment ('.log' file)"),
        (
            ["data/orders-1", "data/orders-0"],
            "data: its topic-partition directories (orders-0, orders-1) contain no segment ('.log' file)",
        ),
        (["data"], "data: no topic-partition directory ('topic-0', with segments) in this directory"),
    ],
    ids=["topic-partition", "log directory", "other"],
)
def test_a_directory_without_segments_is_named_as_such(
    command: str, directories: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in directories:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    path = tmp_path / Path(directories[0]).parts[0]
    if path.name == "data" and "/" not in directories[0]:
        (path / "partition.metadata").unlink()
    assert main(readers(path, tmp_path / "out")[command]) == (2 if command == "diff" else 1)
    assert capsys.readouterr().err == f"kbatch {command}: {tmp_path}/{message}\n"


def test_log_and_find_logs_name_a_topic_partition_without_segments(tmp_path: Path) -> None:
    path = tmp_path / "orders-7"
    path.mkdir()
    message = r"the directory of topic 'orders', partition 7, contains no segment \('.log' file\)$"
    for call in (kbatch.Log, kbatch.find_logs):
        with pytest.raises(kbatch.LogDirectoryError, match=message) as caught:
            call(path)
        assert caught.value.source == str(path)
    # A marked directory may have segments, which find_logs() does not read by default.
    marked = tmp_path / "marked" / "txn-0.0123456789abcdef0123456789abcdef-delete"
    shutil.copytree(LOG, marked, copy_function=shutil.copyfile)
    for directory in (marked, marked.parent):
        with pytest.raises(kbatch.LogDirectoryError, match="no topic-partition directory"):
            kbatch.find_logs(directory)
    # Other topic-partitions of a log directory are read.
    shutil.copytree(LOG, tmp_path / "txn-0", copy_function=shutil.copyfile)
    assert [log.topic for log in kbatch.find_logs(tmp_path)] == ["txn"]
    with pytest.raises(kbatch.LogDirectoryError, match=r"no segment .* in this directory; kbatch.find_logs\(\) finds"):
        kbatch.Log(tmp_path)


def writers(out: Path) -> dict[str, Any]:
    """Return the functions that write `out`, by name."""
    log = kbatch.Log(LOG)
    return {
        "convert_log": lambda: convert_log(log, out, magic=2),
        "recompress_log": lambda: recompress_log(log, out, "lz4"),
        "compact_log": lambda: compact_log(log, out),
        "LogWriter": lambda: LogWriter(out),
        "kbatch.export": lambda: kbatch.export(LOG, out, engine="spark"),
        **{
            command: lambda command=command: main(readers(LOG, out)[command])
            for command in ("convert", "recompress", "compact", "export")
        },
        "directory": lambda: main(["convert", str(LOGS), str(out)]),
    }


@pytest.mark.parametrize("writer", sorted(writers(Path())))
def test_an_output_that_exists_has_one_message(writer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if writer.endswith("export"):
        pytest.importorskip("pyspark")
    out = tmp_path / "out-0"
    out.mkdir()
    (out / "mine").write_text("")
    reason = ", and is not the output of an export (no _manifest.json)" if writer.endswith("export") else ""
    message = f"{out}: exists already{reason}; choose another path, or remove it"
    try:
        assert writers(out)[writer]() == 1
        found = capsys.readouterr().err.removesuffix("\n").partition(": ")[2]
    except kbatch.LogDirectoryError as error:
        found = str(error)
    assert found == message
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_an_index_file_that_exists_has_the_same_message(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000000.timeindex"
    index.write_bytes(b"")
    with pytest.raises(kbatch.LogDirectoryError) as caught:
        convert_log(kbatch.Log(LOG / "00000000000000000000.log"), index.with_suffix(".log"), magic=2)
    assert str(caught.value) == f"{index}: exists already; choose another path, or remove it"


def test_write_log_names_the_logs_that_exist_and_what_to_do(tmp_path: Path) -> None:
    rows = kbatch.Log(LOG).to_arrow(last=1).select(["value"])
    write_log(tmp_path, rows, topic="t")
    with pytest.raises(kbatch.LogDirectoryError) as caught:
        write_log(tmp_path, rows, topic="t", mode="error")
    assert str(caught.value) == (
        f"{tmp_path}: exists already, with logs (t-0); choose another path, append to them, or replace all of them "
        "with mode='overwrite'"
    )


def test_a_path_that_does_not_exist_is_an_error_with_a_similar_name_next_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "orders-0").mkdir()
    for command in (["stats"], ["verify"], ["convert"], ["index"], ["diff", str(LOG)]):
        out = [str(tmp_path / "out")] if command == ["convert"] else []
        assert main([*command, str(tmp_path / "order-0"), *out]) == (2 if command[0] == "diff" else 1)
        expected = f"{tmp_path}/order-0: no such file or directory, did you mean 'orders-0'?"
        assert capsys.readouterr().err == f"kbatch {command[0]}: {expected}\n"
        assert main([*command, str(tmp_path / "xyz"), *out]) != 0
        assert capsys.readouterr().err.endswith("xyz: no such file or directory\n")


@pytest.mark.parametrize("command", [["export", "--engine", "local"], ["follow", "--available-now"]])
def test_a_log_directory_that_does_not_exist_is_an_error_with_a_similar_name(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    assert main([*command, str(tmp_path / "date"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"kbatch {command[0]}: {tmp_path}/date: no such directory, did you mean 'data'?\n"


@pytest.mark.parametrize("command", ["stats", "verify", "dump", "report", "index"])
def test_a_path_within_another_one_is_read_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(LOG)
    rest = {"report": ["-o", str(tmp_path / "r.html")], "index": ["--index", str(tmp_path / "index")]}.get(command, [])
    found = []
    for paths in ([LOGS, LOG, tmp_path / "link"], [LOGS]):
        if command == "index":
            shutil.rmtree(tmp_path / "index", ignore_errors=True)
        assert main([command, *map(str, paths), "--json", *rest]) == 0
        # An index has a random secret, on which its size depends.
        found.append(re.sub(r'"bytes": \d+', "", capsys.readouterr().out))
    assert found[0] == found[1]


def test_the_page_of_a_report_is_no_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(LOG), "-o", "-"])
    assert "--output is a file" in capsys.readouterr().err
