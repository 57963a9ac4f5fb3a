"""docs/tutorial.md as its reader follows it: all commands and code from top to bottom, in one directory.

``python tests/test_tutorial.py`` writes the outputs and the chart of the page again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from broker import shop

import kbatch

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
CHART = ROOT / "docs" / "images" / "orders-per-hour.png"
# Lines of the summary of an export that differ in each run.
TIMES = re.compile(r" +(?:time|start) ")
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def make_clone(directory: Path) -> tuple[Path, dict[str, str]]:
    """Return a directory like the top of a fresh clone, and the environment in which `kbatch` is on the PATH."""
    command = directory / "bin" / "kbatch"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kbatch "$@"\n')
    command.chmod(0o755)
    (directory / "clone").mkdir()
    (directory / "clone" / "tests").symlink_to(ROOT / "tests")
    changes = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    # A wide terminal, and pictures in files only.
    changes |= {"COLUMNS": "140", "MPLBACKEND": "Agg"}
    return directory / "clone", changes


def printed_by(language: str, text: str, line: int, names: dict[str, Any]) -> str:
    """Run a block in the current directory; return its output without what differs in each run."""
    if language == "sh":
        done = subprocess.run(["sh", "-euc", text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"line {line}: {done.stderr}"
        lines = done.stdout.splitlines(keepends=True)
        shown = (re.sub(r"\d[\d.,]*(?= )", "...", line) if TIMES.match(line) else line for line in lines)
        return re.sub(r"(?<= )/\S+/(?=parquet-)", ".../", "".join(shown))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (line - 1) + text, str(TUTORIAL), "exec"), names)
    return printed.getvalue()


def with_outputs(page: str) -> str:
    """Run the blocks of the page in the current directory, and return the page with what they print."""
    names: dict[str, Any] = {}
    printed = ""

    def replaced(block: re.Match[str]) -> str:
        nonlocal printed
        if block[1] == "text":
            return f"```text\n{printed}```"
        printed = printed_by(block[1], block[2], page.count("\n", 0, block.start(2)) + 1, names)
        return block[0]

    return BLOCK.sub(replaced, page)


def test_the_tutorial_prints_what_it_shows_and_draws_its_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = pytest.importorskip("matplotlib.testing.compare")
    clone, changes = make_clone(tmp_path)
    monkeypatch.chdir(clone)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    page = TUTORIAL.read_text()
    assert len(re.findall("^```text$", page, re.MULTILINE)) >= 8
    assert with_outputs(page) == page
    # Versions of matplotlib place text differently by a part of a pixel.
    assert compare.compare_images(str(CHART), str(clone / CHART.name), tol=5) is None


def test_the_log_directory_of_the_tutorial_has_the_records_of_its_script() -> None:
    expected: dict[str, list[tuple[bytes, bytes, int]]] = {"orders": [], "payments": []}
    for record in shop.records():
        expected[record.topic].append((record.key.encode(), record.value, record.time))
    logs = kbatch.find_logs(shop.GOLDEN)
    for topic, records in expected.items():
        table = logs[topic].to_arrow(columns=["key", "value", "timestamp"])
        columns = (table["key"], table["value"], table["timestamp"].cast("int64"))
        assert sorted(zip(*(column.to_pylist() for column in columns), strict=True)) == sorted(records)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        clone, changes = make_clone(Path(temporary))
        os.environ.update(changes)
        os.chdir(clone)
        renewed = with_outputs(TUTORIAL.read_text())
        shutil.copy(CHART.name, CHART)
        os.chdir(ROOT)
    TUTORIAL.write_text(renewed)
