"""Output fits the terminal: words and numbers are never cut; output to a pipe is as wide as its content."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from golden_logs import LOGS

from kbatch.cli import main
from kbatch.cli.filling import filled_line
from kbatch.cli.tables import table_lines

WIDTHS = [40, 60, 80, 120, 200]
# The control sequences of colors.
SEQUENCE = re.compile(r"\x1b\[[\d;]*m")
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
    monkeypatch.setenv("COLUMNS", str(columns))
    return table_lines([HEAD, *ROWS], left=frozenset((0, 4, 5)))


def too_wide(lines: list[str], columns: int) -> list[str]:
    """Return the lines that do not fit, except those with one word, which cannot be wrapped."""
    return [line for line in lines if len(line) > columns and len(line.split()) > 1]


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_table_fits_and_its_cells_are_complete(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = in_columns(monkeypatch, columns)
    assert too_wide(lines, columns) == []
    text = " ".join(" ".join(lines).split())
    for row in ROWS:
        for cell in row:
            assert cell in text


def test_rows_become_blocks_of_lines_where_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = in_columns(monkeypatch, 200)
    assert len(wide) == len(ROWS) + 1
    assert LONG in wide[2]
    full = max(map(len, wide))
    assert in_columns(monkeypatch, full) == wide
    blocks = in_columns(monkeypatch, full - 1)
    assert blocks[:3] == ["  orders-0", "    records           12,345", "    size              1.5 MiB"]
    assert blocks[-3:] == ["  all", "    records           9,876,555,555", "    size              999.9 GiB"]


def test_a_narrow_table_has_short_cells_and_then_fewer_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["name", "size", "time", "codec"], ["orders-0", "1.5 MiB", "22:13:20", "gzip 2.00x, none"]]
    short = {3: ["codec", "mixed 1.5x"]}

    def lines(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        return table_lines(rows, left=frozenset((0, 3)), indent="", short=short, optional=(2, 1))

    assert lines(46)[1] == "orders-0  1.5 MiB  22:13:20  gzip 2.00x, none"
    assert lines(44) == ["name         size      time  codec", "orders-0  1.5 MiB  22:13:20  mixed 1.5x"]
    assert lines(30) == [
        "name         size  codec",
        "orders-0  1.5 MiB  mixed 1.5x",
        "30 columns are too few for: time",
    ]
    assert lines(20)[1:] == ["orders-0  mixed 1.5x", "20 columns are too few for: size, time"]
    assert lines(19)[0] == "orders-0"
    assert "gzip 2.00x, none" in " ".join(" ".join(lines(19)).split())


@pytest.mark.parametrize("columns", [80, 100, 120, 160])
def test_stats_are_tables_from_80_columns_on(columns: int) -> None:
    lines = [SEQUENCE.sub("", line) for line in on_a_terminal(["stats", str(LOGS)], columns)]
    (txn,) = [line.split() for line in lines if line.startswith("txn-0 ") and "KiB" in line]
    assert {"337", "34", "2", "21.9"} <= set(txn)
    names = lines[0].split()
    assert {"topic-partition", "records", "control", "open", "size", "codecs", "lost"} <= set(names)
    assert ("segments" in names) is (columns == 160)
    assert (f"{columns} columns are too few for: segments" in "\n".join(lines)) is (columns < 160)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(
    "text",
    [
        "  read       398.4 KiB of batches (79 gzip, 77 lz4, 167 none, 78 snappy, 69 zstd)",
        "kbatch stats: /a/path/without/spaces/that/is/longer/than/some/terminals/are/wide: no such file or directory",
        "no-words-" * 30,
        "",
    ],
)
def test_lines_are_wrapped_between_words(text: str, columns: int) -> None:
    lines = list(filled_line(text, columns))
    assert too_wide(lines, columns) == []
    assert " ".join(lines).split() == text.split()


def test_continued_lines_begin_below_the_second_column() -> None:
    assert list(filled_line("  lost       1.2 MiB in 7 places: out/_losses, and more than that", 50)) == [
        "  lost       1.2 MiB in 7 places: out/_losses, and",
        "             more than that",
    ]
    assert list(filled_line("kbatch stats: no such file or directory", 30)) == [
        "kbatch stats: no such file or",
        "  directory",
    ]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", str(LOGS)],
        ["diff", str(LOGS / "txn-0"), str(LOGS / "compact-src-0")],
        ["compact", "--now", "2026-03-01", "--dry-run", str(LOGS)],
        ["stats", "--details", str(LOGS / "txn-0")],
        ["stats", "/a/path/that/does/not/exist/in/any/file/system"],
        ["stats", "--offsest", "1"],
        [],
    ],
    ids=" ".join,
)
def test_every_output_fits(
    arguments: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def output() -> str:
        with contextlib.suppress(SystemExit):
            main(arguments)
        return "".join(capsys.readouterr())

    monkeypatch.setenv("COLUMNS", str(columns))
    shown = output()
    assert too_wide(shown.splitlines(), columns) == []
    monkeypatch.delenv("COLUMNS")
    if arguments[:2] != ["stats", "--details"]:
        assert shown.split() == output().split()


def test_output_to_a_pipe_is_not_cut() -> None:
    command = [sys.executable, "-m", "kbatch", "stats", str(LOGS)]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    lines = done.stdout.splitlines()
    assert lines.index("") == len(list(LOGS.iterdir())) + 2
    assert "…" not in done.stdout
    assert max(map(len, lines)) > 120


@pytest.mark.parametrize("columns", [40, 120])
def test_stats_fits_a_terminal(columns: int, tmp_path: Path) -> None:
    shutil.copytree(LOGS / "mixed-0", tmp_path / LONG)
    (tmp_path / LONG).rename(tmp_path / f"{LONG}-0")
    lines = on_a_terminal(["stats", "--details", str(tmp_path), str(LOGS / "txn-0")], columns)
    assert too_wide([SEQUENCE.sub("", line) for line in lines], columns) == []
    numbers = {word for line in on_a_terminal(["stats", str(tmp_path)], 200) for word in re.findall(r"[\d,]{3,}", line)}
    assert all(number in "\n".join(lines) for number in numbers)


@pytest.mark.parametrize("columns", [60, 80])
def test_output_to_a_pipe_follows_columns(columns: int) -> None:
    command = [sys.executable, "-m", "kbatch", "stats", str(LOGS)]
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert max(map(len, done.stdout.splitlines())) <= columns
