"""The README's snippets, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run(snippets: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("mark", ["main command", "test command"])
def test_commands_are_one_line_each_where_ci_finds_them(mark: str) -> None:
    command = re.findall(rf"^<!-- {mark} -->\n```\n(.*)\n```$", README, re.MULTILINE)
    assert len(command) == 1
    assert command[0].startswith("python3 -m venv .venv && .venv/bin/pip install")


def test_quickstart(monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = [snippet for snippet in SNIPPETS if "spark" not in snippet]
    assert len(snippets) >= 3
    names = run(snippets, monkeypatch)
    assert names["table"].consumed > 0
    assert names["arrow"].num_rows == len(names["table"])


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_quickstart_on_spark(spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run([SNIPPETS[0], *(snippet for snippet in SNIPPETS if "spark" in snippet)], monkeypatch)
    assert "txn" in capsys.readouterr().out
