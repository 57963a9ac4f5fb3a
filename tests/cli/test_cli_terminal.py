"""The progress line of commands on a terminal; output to a pipe has none."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from log_batches import batch, write_segment

from kbatch.cli import main
from kbatch.cli.terminal import ProgressLine, _bytes_text, _waiting, counted, print_errors
from kbatch.errors import LogDirectoryError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write_segment(tmp_path / "logs" / "t-0", 0, (batch(i, [1000 + i], value=bytes(5000)) for i in range(300)))
    write_segment(tmp_path / "logs" / "t-0", 300, [])
    return tmp_path / "logs"


def command(name: str, log: Path) -> list[str]:
    rest = {"convert": ["--magic", "1"], "recompress": ["--codec", "lz4"], "compact": ["--include-active"]}
    out = [str(log.parent / "out")] if name in rest else []
    rest["index"] = ["--index", str(log.parent / "out")]
    return [sys.executable, "-m", "kbatch", name, str(log), *out, *rest.get(name, [])]


@pytest.mark.parametrize("name", ["verify", "stats", "convert", "recompress", "compact", "index"])
def test_progress_is_one_line_that_is_overwritten(name: str, log: Path) -> None:
    """Progress is one line that is overwritten, reaches the end, and is empty after the command."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(name, log), stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        assert process.stdout is not None
        printed = process.stdout.read()
        assert process.wait(timeout=60) == 0
    shown = b""
    while piece := _read(ours):
        shown += piece
    os.close(ours)
    assert "\n" not in shown.decode()
    lines = shown.decode().split("\r")
    assert any(re.fullmatch(r"\[#{30}\] (\S+ MiB) of \1", line.strip()) for line in lines), lines
    assert lines[-2:] == [" " * len(lines[-2]), ""]
    assert printed
    assert "[#" not in printed


@pytest.mark.parametrize("name", ["verify", "stats", "convert", "recompress", "compact", "index"])
def test_output_to_a_pipe_has_no_progress(name: str, log: Path) -> None:
    done = subprocess.run(command(name, log), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[#" not in done.stdout


@pytest.mark.parametrize("name", ["convert", "recompress", "compact"])
@pytest.mark.parametrize("single", [False, True], ids=["directory", "file"])
def test_an_interrupt_leaves_no_output(
    name: str, single: bool, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C after the last read: the output does not exist."""
    arguments = command(name, log)[3:]
    if single:
        segment = next(log.glob("t-0/*.log"))
        arguments[1:3] = [str(segment), str(log.parent / segment.name)]

    def interrupt(self: ProgressLine, done: int, total: int) -> None:
        assert sorted(os.listdir(log.parent)) != ["logs"]
        if done == total:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "show_bytes", interrupt)
    assert main(arguments) == 130
    assert capsys.readouterr() == ("", f"kbatch {name}: interrupted\n")
    assert os.listdir(log.parent) == ["logs"]


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_progress_shows_the_rate_and_the_time_to_go(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress states bytes, records, rate and remaining time, as far as they fit in one line."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    line = ProgressLine()
    line.show_bytes(0, 300 << 20, 0)
    now = 110.0
    line.show_bytes(100 << 20, 300 << 20, 4_000_000)
    first, second = capsys.readouterr().err.split("\r")[1:]
    assert first.strip().endswith("] 0 bytes of 300.0 MiB" + ", 0 records" * (columns > 40))
    texts = second.strip().partition("] ")[2].split(", ")
    expected = ["100.0 MiB of 300.0 MiB", "4,000,000 records", "10.0 MiB/s", "0:20 left"]
    assert texts == expected[: 1 if columns == 40 else None]
    assert all(len(text) < columns for text in (first, second))


def test_counts_have_a_plural_and_separators() -> None:
    assert [counted(1, "batch"), counted(0, "batch"), counted(2000, "file")] == ["1 batch", "0 batches", "2,000 files"]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # on Linux, the other end is closed
        return b""


class SlowLog:
    """The opening of a log on storage that takes long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, *arguments: object, **options: object) -> Any:
        time.sleep(self.seconds)
        raise LogDirectoryError("slow")


@pytest.mark.parametrize("name", ["verify", "stats", "diff", "report", "convert", "recompress", "compact", "index"])
def test_progress_moves_while_logs_are_listed(
    name: str, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line appears at once and changes before the first second has passed, while the storage does not answer."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("kbatch.cli.terminal._TICK_SECONDS", 0.02)
    slow = SlowLog(0.2)
    for function in ("find_inputs", "open_paths", "open_path"):
        monkeypatch.setattr(f"kbatch.cli.inputs.{function}", slow)
    rest = {"diff": [str(log)], "report": ["-o", str(log.parent / "r.html")]}.get(name, command(name, log)[5:])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main([name, str(log), *rest]) in (1, 2)
    shown = [line.strip() for line in capsys.readouterr().err.split("\r")]
    assert shown[1] == "listing ..."
    assert len({line for line in shown if line.startswith("listing ...")}) >= 4
    assert shown[-1] == f"kbatch {name}: slow"


def test_other_output_clears_the_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with ProgressLine("reading a file ...") as line:
        print_errors("kbatch stats: a note")
        line.write("reading another file ...")
    assert capsys.readouterr().err == (
        "\rreading a file ...\r                  \rkbatch stats: a note\n"
        "\rreading another file ...\r                        \r"
    )


def test_a_line_that_is_too_long_ends_after_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ProgressLine().write("connecting to kafka://localhost:9092 ...")
    assert capsys.readouterr().err == "\rconnecting to"


def test_the_time_without_news_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [_waiting("listing ...", seconds) for seconds in (0, 0.9, 1, 12.3)] == [
        "listing ...",
        "listing ...",
        "listing ... 1 s",
        "listing ... 12 s",
    ]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    texts = [_bytes_text(1 << 20, 4 << 20, None, 1.0, waited).partition("] ")[2] for waited in (0, 3)]
    assert texts == ["1.0 MiB of 4.0 MiB, 1.0 MiB/s, 0:03 left", "1.0 MiB of 4.0 MiB, 256.0 KiB/s, 0:12 left"]
