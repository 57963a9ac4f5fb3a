"""The tests that check each rule of the format.

``rules/rules.tsv`` has the rules: id, text, and the vectors of ``golden/vectors`` that were made for the rule.
``rules/not-applicable.tsv`` has the rules that do not apply to kbatch, each with the reason. A test checks the rules
that it cites: in its name (``test_frm_r3_...``), in its docstring or a comment, in the docstring of its module, or by
reading a vector of the rule. To print the rules with all of their tests:

    python tests/support/rule_index.py [TESTS]

where TESTS is the directory of another checkout's tests. ``docs/format-rules.md`` has the rules with the tests that are
closest to them: ``python tests/support/rule_index.py --page > docs/format-rules.md``.
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

# The sections of the page, and the families of rules in them.
FAMILIES = {
    "Framing and checksums": ["FRM", "CRC"],
    "Batch headers": ["ATT", "TS", "OFF", "CNT", "EMP", "SEQ"],
    "Records": ["REC", "VAR", "HDR"],
    "Control records": ["CTL"],
    "Message sets": ["LEG"],
    "Codecs": ["COD", "GZ", "SN", "L4", "ZS"],
    "Transactions": ["TXN", "LSO", "TXI"],
    "Log directories and compaction": ["DSK", "CMP"],
    "Producing": ["PRD"],
    "Protocol": ["PRI", "FCH"],
    "Dumps and commands": ["DMP", "CLI"],
    "Columns": ["COL"],
}
MAX_TESTS = 3

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
    """Return ``docs/format-rules.md``: every rule that docstrings, messages and tests cite, with tests."""
    known, shown, without = rules(), shown_by(), not_applicable()
    lines = [
        "# Rules of the format",
        "",
        "Docstrings, error messages and tests cite the rules of Kafka's format by the ids on this page: FRM-R3. The",
        "rules were derived from Kafka's source and checked with Kafka's own classes. kbatch follows them since 0.1.0.",
        'With `on_error="skip"` it also reads on after damage, which Kafka does not do (FRM-R8).',
        "",
        f"The column *tests* has up to {MAX_TESTS} tests of each rule, below `tests/`; "
        "`python tests/support/rule_index.py` prints all. *vectors* are inputs in `tests/golden/vectors`, which",
        "`read/test_vectors.py` decodes. CORRUPT is an error of the framing, INVALID an error in a batch, and PARTIAL",
        "an incomplete batch at the end of the input. This page is generated:",
        "`python tests/support/rule_index.py --page > docs/format-rules.md`.",
        "",
        *(f"- [{title}](#{title.lower().replace(' ', '-')})" for title in FAMILIES),
    ]
    for title, families in FAMILIES.items():
        lines += ["", f"## {title}", "", "| id | rule | tests |", "|---|---|---|"]
        for id, rule in known.items():
            if id.partition("-")[0] in families:
                text = re.sub(r"([|<>*\\[\]_`])", r"\\\1", rule.text)
                lines.append(f"| {id} | {text} | {_tests_text(shown[id]) or without[id]} |")
    return "\n".join([*lines, ""])


def _tests_text(tests: list[str]) -> str:
    """Return the first tests of a rule in Markdown, the vectors among them in one part."""
    vectors = [found[1] for each in tests if (found := re.fullmatch(r"read/test_vectors\.py\[(.*)\]", each))]
    functions = [f"`{each}`" for each in tests if "::" in each]
    if vectors:
        functions[MAX_TESTS - 1 :] = [f"vectors {', '.join(sorted(vectors))}"]
    return ", ".join(functions[:MAX_TESTS])


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
    """Return the names of the tests that check each rule.

    Those that have it in their name are first, then those that cite it, then those whose module cites it. Of these,
    tests that cite fewer rules are first.
    """
    known = rules()
    found: dict[str, list[tuple[int, int, str]]] = {id: [] for id in known}
    for path in sorted(tests.rglob("test_*.py")):
        source = path.read_text()
        lines = source.splitlines()
        module = ast.parse(source)
        module_ids = cited(ast.get_docstring(module) or "")
        for node in ast.walk(module):
            # The tests of this module cite rules as examples.
            if (
                isinstance(node, ast.FunctionDef)
                and node.name.startswith("test_")
                and path.name != "test_rule_index.py"
            ):
                start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                names, texts = named(node.name), cited("\n".join(lines[start - 1 : node.end_lineno]))
                for id in module_ids | texts | names:
                    if id in found:
                        rank, ids = (0, names) if id in names else (1, texts) if id in texts else (3, module_ids)
                        found[id].append((rank, len(ids), f"{path.relative_to(tests)}::{node.name}"))
    for id, rule in known.items():
        there = [each for each in rule.vectors if (tests / f"golden/vectors/{each}.bin").exists()]
        found[id] += [(2, 0, f"read/test_vectors.py[{each}]") for each in there]
    return {id: [test for *_, test in sorted(each, key=lambda ranked: ranked[:2])] for id, each in found.items()}


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
