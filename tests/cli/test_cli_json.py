"""--json of every command: one outline of the document, only JSON on standard output, messages on standard error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_batches import write_segment

import kbatch
from kbatch.cli import main

# The arguments of each command that reads {log} and may write {out}.
COMMANDS = {
    "verify": ["{log}"],
    "stats": ["{log}"],
    "diff": ["--on-error", "skip", "{log}", "{log}"],
    "convert": ["--on-error", "skip", "{log}", "{out}"],
    "recompress": ["--codec", "lz4", "--on-error", "skip", "{log}", "{out}"],
    "compact": ["--include-active", "{log}", "{out}"],
}
# `compact` refuses damaged segments.
DAMAGED = {"verify": 3, "stats": 3, "diff": 2, "convert": 3, "recompress": 3}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for partition in range(2):
        batches = [kbatch.encode([b"v"] * 3, keys=[b"k"] * 3, timestamps=1, base_offset=n) for n in (0, 3)]
        write_segment(tmp_path / f"logs/t-{partition}", 0, batches)
    return tmp_path / "logs"


def run(
    command: str, log: Path, out: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> tuple[int, Any, str]:
    status = main([command, "--json", *(each.format(log=log, out=out) for each in arguments)])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else None, captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_same_outline(
    command: str, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for log, names in ((logs, ["t-0", "t-1"]), (logs / "t-1", ["t-1"])):
        out = tmp_path / f"out-{len(names)}"
        status, found, err = run(command, log, out, capsys, COMMANDS[command])
        assert (status, err) == (0, "")
        assert (found["command"], found["exit_status"], found["damaged"]) == (command, 0, False)
        assert [each["name"] for each in found["logs"]] == names
        assert [(each["topic"], each["partition"]) for each in found["logs"]] == [
            ("t", int(name[2:])) for name in names
        ]
        if "{out}" in COMMANDS[command]:
            assert found["out"] == str(out)
        if command != "diff":
            paths = [str(logs / name) for name in names]
            assert [each["path"] for each in found["logs"]] == paths


@pytest.mark.parametrize("command", DAMAGED)
def test_damage_is_in_the_document(
    command: str, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (logs / "t-1").glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    status, found, err = run(command, logs, tmp_path / "out", capsys, COMMANDS[command])
    assert status == found["exit_status"] == DAMAGED[command]
    assert found["damaged"] is True
    first, second = found["logs"]
    if command in ("convert", "recompress"):
        assert first["losses"] == []
        assert [loss["position"] for loss in second["losses"]] == [len(data) // 2]
    assert (err != "") == (command == "diff")


@pytest.mark.parametrize("command", [*COMMANDS, "dump"])
def test_an_error_leaves_standard_output_empty(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = COMMANDS.get(command, ["{log}"])
    status, found, err = run(command, tmp_path / "missing", tmp_path / "out", capsys, arguments)
    assert (status, found) == (2 if command == "diff" else 1, None)
    assert err.startswith(f"kbatch {command}: ")
    assert len(err.splitlines()) == 1


def test_conversions_list_what_they_dropped(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = golden / "logs" / "txn-0"
    arguments = ["--magic", "1", "--codec", "lz4", "--lossy", "drop", "{log}", "{out}"]
    _, found, _ = run("convert", log, tmp_path / "out", capsys, arguments)
    (one,) = found["logs"]
    report = kbatch.log.convert_log(log, tmp_path / "again", 1, codec="lz4", lossy="drop")
    assert {name: count for name, count in one["dropped"].items() if count} == report.lost
    assert (one["batches"], one["bytes_written"]) == (report.batches, report.bytes_written)


def test_rewriting_a_directory_reports_each_log(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found, _ = run("recompress", golden / "logs", tmp_path / "out", capsys, ["--codec", "none", "{log}", "{out}"])
    for each in found["logs"]:
        log, written = kbatch.Log(each["path"]), kbatch.Log(tmp_path / "out" / each["name"])
        assert (each["batches"], each["batches_written"]) == (len(log.batches()), len(written.batches()))
        assert each["bytes_written"] == written.size


def test_dump_prints_json_lines(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--json", "--records", str(logs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([json.loads(line) for line in lines]) == 12


def test_export_has_the_same_outline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbatch.sinks import exports
    from kbatch.sinks.summary import ExportSummary, PartitionSummary

    summary = ExportSummary("logs", "out", records=7, partitions=[PartitionSummary("t", 1, 7)], loss_count=1)
    monkeypatch.setattr(exports, "run_export", lambda *_, **__: summary)
    assert main(["export", "--json", "logs", str(tmp_path / "out")]) == 3
    found = json.loads(capsys.readouterr().out)
    (part,) = found.pop("logs")
    assert (found["command"], found["exit_status"], found["damaged"], found["records"]) == ("export", 3, True, 7)
    assert (part["name"], part["topic"], part["partition"], part["records"]) == ("t-1", "t", 1, 7)
