"""Tables and help fit the terminal: numbers are never cut; output to a pipe is as wide as its content."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from golden_logs import LOGS

from kbatch.cli import terminal
from kbatch.cli.terminal import shortened, table_lines

WIDTHS = [40, 60, 80, 120, 200]
LONG = "a-topic-with-a-name-of-some-sixty-characters-as-many-have-11"
HEAD = ("topic-partition", "records", "size", "offsets", "first time (UTC)", "codecs")
ROWS = [
    ("orders-0", "12,345", "1.5 MiB", "0 - 12344", "2023-11-14 22:13:20", "zstd 3.20x"),
    (LONG, "9,876,543,210", "999.9 GiB", "100 - 9876543309", "2023-11-14 22:13:20", "gzip 2.00x, lz4 1.50x, none"),
    ("all", "9,876,555,555", "999.9 GiB", "", "", ""),
]


def on_a_terminal(arguments: list[str], columns: int) -> list[str]:
    """Return the lines that a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "kbatch", *arguments]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        shown = b""
        while piece := _read(ours):
            shown += piece
        assert (process.wait(timeout=60), process.stderr.read() if process.stderr else b"") == (0, b"")
    os.close(ours)
    return shown.decode().splitlines()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # on Linux, the other end is closed
        return b""


def in_columns(monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setattr(terminal, "_terminal_width", lambda: columns)
    return table_lines([HEAD, *ROWS], left=frozenset((0, 4, 5)))


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_table_fits_and_its_numbers_are_complete(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = in_columns(monkeypatch, columns)
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    for name, *cells in ROWS:
        for cell in cells:
            assert cell in text
        assert name in text or shortened(name, columns - 2) in text or "…" in text


def test_names_are_shortened_before_rows_become_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = in_columns(monkeypatch, 200)
    assert len(wide) == len(ROWS) + 1
    assert LONG in wide[2]
    full = max(map(len, wide))
    narrower = in_columns(monkeypatch, full - 20)
    assert len(narrower) == len(ROWS) + 1
    assert shortened(LONG, 40) in narrower[2]
    blocks = in_columns(monkeypatch, 60)
    assert blocks[:3] == ["  orders-0", "    records           12,345", "    size              1.5 MiB"]
    assert blocks[-3:] == ["  all", "    records           9,876,555,555", "    size              999.9 GiB"]


def test_a_shortened_name_keeps_both_ends() -> None:
    assert shortened(LONG, 20) == "a-topic-wi…y-have-11"
    assert [len(shortened(LONG, width)) for width in (2, 15, 16, len(LONG), 100)] == [2, 15, 16, len(LONG), len(LONG)]


def test_output_to_a_pipe_is_not_cut() -> None:
    command = [sys.executable, "-m", "kbatch", "stats", str(LOGS)]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == len(list(LOGS.iterdir())) + 2
    assert "…" not in done.stdout
    assert max(map(len, lines)) > 120


@pytest.mark.parametrize("columns", [40, 120])
def test_stats_fits_a_terminal(columns: int, tmp_path: Path) -> None:
    shutil.copytree(LOGS / "mixed-0", tmp_path / LONG)
    (tmp_path / LONG).rename(tmp_path / f"{LONG}-0")
    lines = on_a_terminal(["stats", "--details", str(tmp_path), str(LOGS / "txn-0")], columns)
    assert max(map(len, lines)) <= columns
    numbers = {word for line in on_a_terminal(["stats", str(tmp_path)], 200) for word in re.findall(r"[\d,]{3,}", line)}
    assert all(number in "\n".join(lines) for number in numbers)


@pytest.mark.parametrize("columns", [60, 80])
def test_output_to_a_pipe_follows_columns(columns: int) -> None:
    command = [sys.executable, "-m", "kbatch", "stats", str(LOGS)]
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert max(map(len, done.stdout.splitlines())) <= columns
