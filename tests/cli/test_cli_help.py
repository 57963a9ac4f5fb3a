"""Help and usage errors: exit statuses of a command, nearest names, one-line usage, and width."""

from __future__ import annotations

import re

import pytest

from kbatch.cli import main
from kbatch.cli.running import make_parser

COMMANDS = sorted(make_parser()[1])


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["help", command] if command else ["help"]) == 0
    return capsys.readouterr().out


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_prints_what_the_option_prints(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"] if command else ["--help"])
    printed = capsys.readouterr().out
    assert help_of(command, capsys) == printed
    assert printed.startswith(f"usage: kbatch {command}".rstrip())


@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_in_help_are_values_of_the_command_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = re.findall(r"\(default: ([^)]*)\)", re.sub(r"\s+", " ", help_of(command, capsys)))
    assert not {"", "(", "()", "[]", "None", "True", "False"}.intersection(texts)


def test_the_help_of_a_command_lists_its_own_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    statuses = {
        name: re.findall(r"^  (\d+) ", help_of(name, capsys).split("exit status:")[1], re.MULTILINE)
        for name in COMMANDS
    }
    assert statuses["help"] == ["0", "1", "2", "130"]
    assert statuses["verify"] == ["0", "1", "2", "3", "130"]
    assert statuses["dump"] == ["0", "1", "2", "3", "4", "130"]
    assert statuses["export"] == statuses["follow"] == ["0", "1", "2", "3", "4", "5", "130"]
    for name in COMMANDS:
        text = help_of(name, capsys).split("exit status:")[1]
        for other in COMMANDS:
            assert not re.search(rf"\b{other}\b", text) or other in ("help", "completion", "report")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dmp", "data"], "kbatch: error: unknown command 'dmp', did you mean 'dump'? (choose from "),
        (["help", "verfy"], "kbatch help: error: argument COMMAND: invalid choice: 'verfy', did you mean 'verify'? "),
        (
            ["dump", "data", "--recods"],
            "kbatch dump: error: unrecognized arguments: --recods, did you mean '--records'?",
        ),
        (["dump", "data", "--ofsets=1:2"], "error: unrecognized arguments: --ofsets=1:2, did you mean '--offsets'?"),
        (["dump", "data", "--format", "kafak"], "must be one of 'json', 'kafka', got 'kafak', did you mean 'kafka'?"),
        (
            ["export", "a", "b", "--isolation", "read_commited"],
            "kbatch export: error: argument --isolation: must be one of 'read_uncommitted', 'read_committed', "
            "got 'read_commited', did you mean 'read_committed'?",
        ),
    ],
)
def test_the_nearest_name_is_suggested(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in error_of(arguments, capsys)[-1]


def test_names_without_a_near_one_get_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["xyz"], ["stats", "data", "--xyz"], ["stats", "data", "-9x", "--xyz"]):
        assert "did you mean" not in error_of(arguments, capsys)[-1]


def test_an_error_has_the_usage_of_its_command_and_how_to_get_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["recompress", "a", "b", "--codec", "lz4", "--xyz"], capsys) == [
        "usage: kbatch recompress [OPTION ...] --codec CODEC[:LEVEL] PATH OUT",
        "help: kbatch help recompress",
        "kbatch recompress: error: unrecognized arguments: --xyz",
    ]
    assert error_of(["--xyz", "stats", "data"], capsys) == [
        "usage: kbatch [OPTION ...] COMMAND ...",
        "help: kbatch help",
        "kbatch: error: unrecognized arguments: --xyz",
    ]


def test_an_error_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["stats", "data", "--x\x1b[31m"], capsys)[-1].endswith(r"--x\x1b[31m")


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_the_columns(
    command: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only commands of examples, words, and options with their value are wider."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for line in help_of(command, capsys).splitlines():
        is_example = re.match(r" *(kbatch|eval) ", line)
        # A word, or an option with its value.
        is_unbreakable = re.fullmatch(r" *(\S+|\[?--?[\w-]+ \S+( \.\.\.\])?)", line)
        assert len(line) <= columns or is_example or is_unbreakable, line


def test_paragraphs_are_filled_and_examples_are_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = help_of("stats", capsys)
    assert "\nSummarize topic-partitions: segments, batches, records,\ncontrol records, open" in text
    assert "\n  kbatch stats --json data | jq '.logs[] | [.name, .records]'\n" in text
    assert "\n  kbatch stats --details data/orders-0\n      all statistics of one\n" in text
    assert "\n  0    done\n" in text
