"""The pages on compatibility name tests and versions that exist, and docs/kips.md every KIP of the project."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

import kbatch

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "kips.md"
RULES = ROOT / "docs" / "format-rules.md"
COMPATIBILITY = ROOT / "docs" / "compatibility.md"
ROW = re.compile(r"^\| (\d+(?:, \d+)*) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|(.*)$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


@functools.cache
def functions_of(path: str) -> set[str]:
    """Return the names of the functions in a file below `tests/`."""
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def rows() -> list[re.Match[str]]:
    return list(ROW.finditer(PAGE.read_text()))


def numbers() -> list[int]:
    return [int(number) for row in rows() for number in row[1].split(", ")]


def test_each_kip_has_one_row_and_rows_are_sorted_within_their_table() -> None:
    found = numbers()
    assert len(found) == len(set(found)) > 60
    for table in PAGE.read_text().split("\n## ")[1:]:
        first = [int(row[1].split(",")[0]) for row in ROW.finditer(table)]
        assert first == sorted(first)


def test_every_kip_that_the_project_names_has_a_row() -> None:
    sources = [*(ROOT / "kbatch").rglob("*.py*"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    named: dict[int, str] = {}
    for path in [*sources, ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "tests" / "rules" / "rules.tsv"]:
        if path.suffix != ".pyc":
            for number in re.findall(r"\bKIP-(\d+)", path.read_text()):
                named.setdefault(int(number), str(path.relative_to(ROOT)))
    assert len(named) > 20
    assert {number: place for number, place in named.items() if number not in numbers()} == {}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"KIP-{row[1]}")
def test_a_row_states_the_versions_what_is_supported_and_the_tests(row: re.Match[str]) -> None:
    assert re.fullmatch(r"(?:fetches |, |\d+\.\d+(?:\.\d+)?)+|none yet", row[3])
    if row[4].startswith("no"):
        return
    since = re.match(r"(\d+)\.(\d+)\.(\d+)(?:, partly|, [a-z ]+)?: .*\S", row[4])
    assert since is not None
    assert tuple(map(int, since.groups())) <= tuple(map(int, kbatch.__version__.split(".")[:3]))
    assert TEST.search(row[5])


@pytest.mark.parametrize("page", [PAGE, RULES, COMPATIBILITY], ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    found = TEST.findall(page.read_text())
    assert len(found) > 10
    named = [(path.removeprefix("tests/"), name) for path, name in found if "/" in path]
    files = [each for each in named if (ROOT / "tests" / each[0]).is_file()]
    assert [each for each in named if each not in files] == []
    assert [each for each in files if each[1] and each[1] not in functions_of(each[0])] == []


def test_the_lowest_versions_are_those_of_the_package() -> None:
    accepted = (ROOT / "pyproject.toml").read_text()
    text = COMPATIBILITY.read_text()
    for names, versions in re.findall(r"^\| ([a-z0-9, ]+) \| (\d[\d., ]+)[^|]*\| \d", text, re.MULTILINE):
        for name, version in zip(names.split(", "), versions.strip().split(", "), strict=True):
            assert f'"{name}>={version}"' in accepted or f'"{name}>={version},' in accepted, name


def test_the_releases_of_kafka_and_pyspark_are_those_of_the_tests() -> None:
    text = COMPATIBILITY.read_text()
    broker = ROOT / "tests" / "broker"
    sources = [
        broker / "pom.xml",
        broker / "tiered.xml",
        broker / "legacy" / "make.py",
        ROOT / ".ci" / "spark-versions",
    ]
    found = [re.findall(r"\b\d+\.\d+\.\d+(?:\.\d+)?\b", path.read_text()) for path in sources]
    brokers, tiered, legacy, spark = ([*dict.fromkeys(each)] for each in found)
    named = [brokers[1], tiered[1], *legacy, spark[0]]
    assert [version for version in named if version not in text] == []


def test_a_public_name_on_the_page_exists() -> None:
    for name in set(re.findall(r"`kbatch((?:\.\w+)+)`", PAGE.read_text())):
        functools.reduce(getattr, name[1:].split("."), kbatch)
