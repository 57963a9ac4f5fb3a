"""Colors: only where a terminal has them, or where the environment asks for them; the text is the same without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from golden_logs import LOGS
from log_batches import batch, write_segment
from test_cli_widths import SEQUENCE, on_a_terminal

from kbatch.cli import main
from kbatch.cli.styles import Styled, StyledSpan, styled, uses_color

VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TERM", "COLUMNS")


class Stream:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


class Run:
    """Runs a command in this process; returns its status and output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._patch, self._captured = monkeypatch, capfd

    def __call__(self, *arguments: object, **variables: str) -> tuple[object, str, str]:
        for name in VARIABLES:
            self._patch.delenv(name, raising=False)
        for name, value in variables.items():
            self._patch.setenv(name, value)
        try:
            status: object = main([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code
        return status, *self._captured.readouterr()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capfd)


@pytest.mark.parametrize(
    ("variables", "on_terminal", "in_pipe"),
    [
        ({}, True, False),
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"CLICOLOR_FORCE": "0"}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_the_environment_decides(
    variables: dict[str, str], on_terminal: bool, in_pipe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (uses_color(Stream(True)), uses_color(Stream(False))) == (on_terminal, in_pipe)
    assert not uses_color(None) or in_pipe


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", LOGS],
        ["verify", LOGS / "txn-0"],
        ["help", "stats"],
        ["--help"],
        [],
        ["stats", "--detials"],
        ["stats", "x"],
    ],
    ids=str,
)
def test_colors_change_nothing_else(arguments: list[object], run: Run) -> None:
    plain, colored = run(*arguments), run(*arguments, FORCE_COLOR="1")
    assert "\x1b" not in plain[1] + plain[2]
    assert "\x1b" in colored[1] + colored[2]
    assert (colored[0], SEQUENCE.sub("", colored[1]), SEQUENCE.sub("", colored[2])) == plain


@pytest.mark.parametrize(
    "arguments", [["stats", "--json", LOGS], ["dump", LOGS / "txn-0"], ["completion", "bash"]], ids=str
)
def test_output_for_programs_has_no_colors(arguments: list[object], run: Run) -> None:
    assert run(*arguments, FORCE_COLOR="1", COLUMNS="40") == run(*arguments)


def test_a_terminal_has_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    lines = on_a_terminal(["stats", str(LOGS / "txn-0")], 200)
    assert lines[0].startswith("\x1b[1mtopic-partition ")


def test_losses_and_errors_are_red(tmp_path: Path, run: Run) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [1]), batch(1, [2]), batch(2, [3])])
    (path,) = (tmp_path / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    _, out, _ = run("verify", tmp_path, FORCE_COLOR="1")
    assert "\x1b[1;31mDAMAGED, 1 finding\x1b[0m" in out
    _, out, _ = run("stats", tmp_path, FORCE_COLOR="1")
    assert re.search(r"\x1b\[1;31m *\d+ bytes\x1b\[0m$", out, re.MULTILINE)
    _, _, err = run("stats", tmp_path / "missing", FORCE_COLOR="1")
    assert err.startswith("\x1b[1;31mkbatch stats:\x1b[0m ")


def test_names_cannot_contain_colors() -> None:
    line = styled("a\x1b[31m: DAMAGED", "error", "DAMAGED")
    assert (str(line), line.spans) == ("a\\x1b[31m: DAMAGED", (StyledSpan(11, 18, "error"),))
    assert Styled("\x1b").isascii()
    assert styled("text", "error", "other").spans == ()
