"""The tests that check each rule of the format.

``rules/rules.tsv`` has the rules: id, text, and the vectors of ``golden/vectors`` that were made for the rule.
``rules/not-applicable.tsv`` has the rules that do not apply to kbatch, each with the reason. A test checks the rules
that it cites: in its name (``test_frm_r3_...``), in its docstring or a comment, in the docstring of its module, or by
reading a vector of the rule. To print the list:

    python tests/support/rule_index.py [TESTS]

where TESTS is the directory of another checkout's tests.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
RULES = TESTS / "rules"

# "CTL-R1 to CTL-R3" and "DMP-2..DMP-6" are ranges. An id is always written in full, never as "-R4".
_ID = re.compile(r"\b([A-Z0-9]{2,4})-(R?)(\d+)\b(?:(?: to |\.\.)(?:\1-)?R?(\d+)\b)?")
_IN_NAME = re.compile(r"(?<=_)([a-z0-9]{2,4})((?:_r\d+)+)(?=_|$)")


class Rule(NamedTuple):
    text: str
    vectors: list[str]


def _rows(name: str) -> Iterator[list[str]]:
    with (RULES / name).open(newline="") as file:
        yield from csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def rules() -> dict[str, Rule]:
    """Return the rules by id."""
    return {id: Rule(text, vectors.split()) for id, text, vectors in _rows("rules.tsv")}


def not_applicable() -> dict[str, str]:
    """Return the reason for each rule without a test."""
    return dict(_rows("not-applicable.tsv"))


def page() -> str:
    """Return ``docs/format-rules.md``: every rule that docstrings, messages and tests cite, with its meaning."""
    lines = [
        "# Rules of the format",
        "",
        "Docstrings, error messages and tests cite the rules of Kafka's format by the ids on this page: FRM-R3.",
        "The rules were derived from Kafka's source and checked with Kafka's own classes. CORRUPT is an error of the",
        "framing, INVALID an error in a batch, and PARTIAL an incomplete batch at the end of the input. This page is",
        "generated: `python tests/support/rule_index.py --page > docs/format-rules.md`.",
        "",
        "| id | rule |",
        "|---|---|",
    ]
    escaped = {id: re.sub(r"([|<>*\\[\]_`])", r"\\\1", rule.text) for id, rule in rules().items()}
    return "\n".join([*lines, *(f"| {id} | {text} |" for id, text in escaped.items()), ""])


def cited(text: str) -> set[str]:
    """Return the ids in a text."""
    return {
        f"{family}-{letter}{number}"
        for family, letter, first, last in _ID.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def named(name: str) -> set[str]:
    """Return the ids in the name of a test."""
    return {
        f"{family.upper()}-R{number}"
        for family, numbers in _IN_NAME.findall(name)
        for number in re.findall(r"\d+", numbers)
    }


def shown_by(tests: Path = TESTS) -> dict[str, list[str]]:
    """Return the names of the tests that check each rule."""
    known = rules()
    found: dict[str, list[str]] = {id: [] for id in known}
    for path in sorted(tests.rglob("test_*.py")):
        source = path.read_text()
        lines = source.splitlines()
        module = ast.parse(source)
        module_ids = cited(ast.get_docstring(module) or "")
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                text = "\n".join(lines[start - 1 : node.end_lineno])
                for id in module_ids | cited(text) | named(node.name):
                    if id in found:
                        found[id].append(f"{path.relative_to(tests)}::{node.name}")
    for id, rule in known.items():
        there = [each for each in rule.vectors if (tests / f"golden/vectors/{each}.bin").exists()]
        found[id] += [f"test_vectors.py[{each}]" for each in there]
    return found


def main() -> int:
    if sys.argv[1:] == ["--page"]:
        print(end=page())
        return 0
    tests = Path(sys.argv[1]) if len(sys.argv) > 1 else TESTS
    without = not_applicable()
    missing = 0
    for id, shown in shown_by(tests).items():
        missing += not shown and id not in without
        print(id, ", ".join(shown) or without.get(id) or "NO TEST", sep="\t")
    print(f"{missing} rules without a test", file=sys.stderr)
    return missing > 0


if __name__ == "__main__":
    sys.exit(main())
