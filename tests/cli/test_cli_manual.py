"""The manual page: committed as the parsers make it, correct for groff, and installed with the package."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from kbatch.cli import main
from kbatch.cli.running import make_parser

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kbatch.1"


def test_the_committed_page_is_the_one_that_the_parsers_make(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kbatch help --man > docs/kbatch.1`` makes it."""
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["help", "--man"]) == 0
        assert capsys.readouterr().out == PAGE.read_text()


def test_the_page_is_installed_where_man_looks_for_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["data-files"] == {"share/man/man1": ["docs/kbatch.1"]}
    assert "*.1" in (ROOT / "MANIFEST.in").read_text()


def test_the_page_has_every_command_and_option() -> None:
    text = PAGE.read_text().replace("\\-", "-")
    for name, parser in make_parser()[1].items():
        section = re.search(rf'^.SH "KBATCH {name.upper()}"$(.*?)(?=^.SH)', text, re.MULTILINE | re.DOTALL)
        assert section is not None, name
        shown = [each for each in parser._actions if each.help is not argparse.SUPPRESS]
        missing = [flag for action in shown for flag in action.option_strings if flag not in section[1]]
        assert missing == [], name


def test_a_formatter_has_no_warnings() -> None:
    tool = next(filter(shutil.which, ("mandoc", "groff")), None)
    if tool is None:
        pytest.skip("neither mandoc nor groff is installed")
    command = ["mandoc", "-Tlint", "-Wwarning"] if tool == "mandoc" else ["groff", "-man", "-ww", "-Tutf8", "-rLL=200n"]
    done = subprocess.run([*command, str(PAGE)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "kbatch" in done.stdout or tool == "mandoc"


def test_the_page_of_one_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["help", "--man", "stats"])
    assert "--man takes no COMMAND" in capsys.readouterr().err


def test_kbatch_without_arguments_prints_an_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: kbatch COMMAND [OPTION ...]"
    for name, parser in make_parser()[1].items():
        assert any(line.split(maxsplit=1) == [name, parser.summary] for line in lines)
    assert len(lines) < 40
