"""How a report is written: all or nothing, from the command line, with progress, until an interrupt."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from report_logs import write_report_logs
from report_pages import Page

import kbatch
from kbatch.cli import main
from kbatch.report import writing

PAGE_NAME = "report.html"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def command(*arguments: object) -> tuple[int, str, str]:
        status = main(["report", *map(str, arguments)])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return command


def test_the_command_writes_the_page_and_a_summary(run: Any, tmp_path: Path) -> None:
    out = tmp_path / PAGE_NAME
    status, text, errors = run(LOGS / "txn-0", "-o", out)
    assert (status, errors) == (0, "")
    assert text.startswith(f"{out}: 1 log, 337 records, 34 control records, 21.9 KiB; 2 open transactions\n")
    assert Page(out).row("Partitions", "txn-0")["records"] == "337"
    assert "<b>337</b><span>records, 34 control records</span>" in out.read_text()
    assert "<b>1</b><span>topic, 1 partition</span>" in out.read_text()


def test_json_has_the_summary_and_the_advice(run: Any, tmp_path: Path) -> None:
    status, text, _ = run("--json", LOGS, "--topic", "txn", "--output", tmp_path / PAGE_NAME)
    found = json.loads(text)
    assert (status, found["exit_status"], found["damaged"]) == (0, 0, False)
    assert (found["records"], found["control_records"], found["open_transactions"]) == (337, 34, 2)
    assert len(found["logs"]) == 1
    assert {each["where"] for each in found["advice"]} == {"txn"}


def test_damage_has_its_own_status(run: Any, tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(b"\0" * 7 + kbatch.encode([b"v"], timestamps=1) * 2)
    status, text, _ = run(tmp_path / "t-0", "-o", tmp_path / PAGE_NAME)
    assert status == 3
    assert "lost: 7 bytes" in text


def test_the_output_is_required(run: Any) -> None:
    with pytest.raises(SystemExit) as error:
        run(LOGS / "txn-0")
    assert error.value.code == 2


def test_a_page_replaces_an_earlier_one_when_it_is_complete(tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / PAGE_NAME
    out.write_text("earlier")
    monkeypatch.setattr(writing, "page", lambda *arguments: (_ for _ in ()).throw(RuntimeError("failed")))
    with pytest.raises(RuntimeError, match="failed"):
        kbatch.write_report(LOGS / "txn-0", out)
    assert out.read_text() == "earlier"
    assert os.listdir(tmp_path) == [PAGE_NAME]
    monkeypatch.undo()
    kbatch.write_report(LOGS / "txn-0", out)
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert os.listdir(tmp_path) == [PAGE_NAME]


@pytest.mark.parametrize("kind", ["directory", "link", "url", "parent"])
def test_a_page_replaces_nothing_but_a_file(kind: str, tmp_path: Path) -> None:
    out: Any = tmp_path / PAGE_NAME
    if kind == "directory":
        out.mkdir()
        (out / "file").touch()
    elif kind == "link":
        out.symlink_to(tmp_path / "other")
    elif kind == "url":
        out = "s3://bucket/report.html"
    else:
        out = tmp_path / "missing" / PAGE_NAME
    with pytest.raises(kbatch.LogDirectoryError):
        kbatch.write_report(LOGS / "txn-0", out)
    assert not (tmp_path / "other").exists()


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = kbatch.write_report(LOGS, tmp_path / PAGE_NAME, progress=lambda *each: calls.append(each))
    assert {total for _, total in calls} == {report.bytes}
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == report.bytes


def command(out: Path) -> list[str]:
    return [sys.executable, "-m", "kbatch", "report", str(LOGS / "txn-0"), "-o", str(out)]


def test_a_full_disk_leaves_the_earlier_page(tmp_path: Path) -> None:
    out = tmp_path / PAGE_NAME
    out.write_text("earlier")
    limit = resource.RLIMIT_FSIZE, (1000, 1000)
    done = subprocess.run(
        command(out), preexec_fn=lambda: resource.setrlimit(*limit), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"kbatch report: {out}: File too large\n"
    assert (out.read_text(), os.listdir(tmp_path)) == ("earlier", [PAGE_NAME])


def test_a_directory_without_permission_is_an_error(tmp_path: Path) -> None:
    def without_privileges() -> None:
        """Drop the capability by which root ignores permissions (CAP_DAC_OVERRIDE)."""
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)

    (tmp_path / "closed").mkdir(0o555)
    out = tmp_path / "closed" / PAGE_NAME
    done = subprocess.run(command(out), preexec_fn=without_privileges, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"kbatch report: {out}: can't be written: Permission denied\n"


def test_the_next_report_removes_the_files_of_a_killed_one(tmp_path: Path) -> None:
    out = tmp_path / PAGE_NAME
    code = (
        "import sys; from kbatch.report import writing\n"
        "writing.page = lambda *arguments: print('writing', flush=True) or sys.stdin.read()\n"
        "from kbatch.cli import main; main()"
    )
    words = [sys.executable, "-c", code, *command(out)[3:]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.kill()
    (left,) = os.listdir(tmp_path)
    assert left.startswith(f".{PAGE_NAME}.kbatch-")
    assert subprocess.run(command(out), capture_output=True, check=False).returncode == 0
    assert os.listdir(tmp_path) == [PAGE_NAME]


def test_an_interrupt_leaves_the_earlier_page(tmp_path: Path) -> None:
    """SIGINT as soon as the log is read."""
    logs = write_report_logs(tmp_path / "logs", 6000)
    out = tmp_path / "out" / PAGE_NAME
    out.parent.mkdir()
    out.write_text("earlier")
    code = (
        "import sys, time; from kbatch.log.check import statistics; read = statistics.read_tables\n"
        "def slow(*arguments):\n    for table in read(*arguments):\n"
        "        print('reading', flush=True); time.sleep(5); yield table\n"
        "statistics.read_tables = slow\nfrom kbatch.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "report", str(logs), "-o", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "reading\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        assert process.wait(10) == 130
        assert time.monotonic() - began < 2
    assert errors == "kbatch report: interrupted\n"
    assert out.read_text() == "earlier"
    assert os.listdir(out.parent) == [PAGE_NAME]
