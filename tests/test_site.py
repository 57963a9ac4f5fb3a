"""The documentation site: its sections have all pages, and its generated pages have all names. Sphinx is not needed.

`.ci/site` builds the site; `test_built_site.py` checks what is built.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import re
import runpy
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import public_api
import pytest
from checked_links import main, wrong_links

import kbatch
from kbatch.protocol import ApiKey
from kbatch.protocol.schema import FieldSchema, message_schemas

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module", autouse=True)
def extension() -> Any:
    """Make the modules of the site's extension importable."""
    path = list(sys.path)
    sys.path.insert(0, str(DOCS / "_ext"))
    yield
    sys.path[:] = path


def module(name: str) -> Any:
    return importlib.import_module(f"kbatch_site.{name}")


@pytest.fixture(scope="module")
def sections() -> dict[str, tuple[str, str, list[str]]]:
    path = list(sys.path)
    found: dict[str, tuple[str, str, list[str]]] = runpy.run_path(str(DOCS / "conf.py"))["site_sections"]
    sys.path[:] = path
    return found


def written_pages() -> set[str]:
    """Return the pages that people write, without suffix."""
    paths = [path.relative_to(DOCS) for suffix in ("md", "ipynb") for path in DOCS.rglob(f"*.{suffix}")]
    return {str(path.with_suffix("")) for path in paths}


@functools.cache
def generated_pages() -> dict[str, str]:
    parts = (
        module("python_pages").generate,
        module("command_pages").generate,
        module("protocol_pages").generate,
        module("project_files").project_pages,
    )
    return {name: text for part in parts for name, text in part().items()}


# -- sections


def test_every_page_is_in_one_section(sections: dict[str, tuple[str, str, list[str]]]) -> None:
    """Sphinx warns about a page in none, but not about one in two."""
    pages = written_pages()
    tree = module("tree")
    listed = Counter(page for name in sections for page in tree.matching(sections[name][2], pages))
    listed.update(name for name in sections if name in pages)
    assert {page: listed[page] for page in pages} == dict.fromkeys(pages - {"index"}, 1) | {"index": 0}


def test_the_page_of_a_section_leads_to_its_pages(sections: dict[str, tuple[str, str, list[str]]]) -> None:
    """Readers on GitHub have no navigation: its links, or those of the pages below it, lead to all of them."""
    pages = written_pages()
    for name, (_, _, patterns) in sections.items():
        below = set(module("tree").matching(patterns, pages))
        reached, new = set(), {name} & pages
        while new:
            reached |= new
            new = {target for page in new for target in links_of(page)} & below - reached
        assert not reached or below <= reached, f"{name}: no link to {below - reached}"


def links_of(page: str) -> set[str]:
    """Return the pages that a page links to, without suffix."""
    path = DOCS / f"{page}.md"
    text = path.read_text() if path.exists() else ""
    found = {path.parent / link for link in re.findall(r"\]\(([^)#\s:]+)\.(?:md|ipynb)", text)}
    return {os.path.relpath(os.path.normpath(target), DOCS) for target in found}


def test_a_section_without_a_page_leaves_its_pages_to_the_front_page() -> None:
    entries = module("tree").entries
    sections = {"one": ("One", "", ["a", "d/*"]), "two": ("Two", "", ["b"])}
    pages = {"index", "one", "a", "b", "d/x", "d/e/y"}
    assert entries("index", sections, pages) == ["One <one>", "b"]
    assert entries("one", sections, pages) == ["a", "d/x"]
    assert entries("a", sections, pages) == []


@pytest.mark.parametrize("page", sorted(written_pages()))
def test_every_page_begins_with_a_sentence_about_it(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    first = re.search(r"^# [^\n]+\n+(.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert first is not None
    assert re.match(r"[\w`\[]", first[1]), "a list or a table"
    assert re.search(r"[.:?](?:\s|$)", first[1])


@pytest.mark.parametrize("page", sorted(written_pages() - {"benchmarks"}))
def test_ratios_of_speed_are_only_on_the_page_of_benchmarks(page: str) -> None:
    ratio = r"\btimes (?:as|faster|slower)\b|\btwice as (?:fast|slow)|\bhalf (?:of )?the time|\dx (?:faster|slower)"
    assert re.findall(ratio, (DOCS / f"{page}.md").read_text()) == []


def test_links_out_of_docs_lead_to_pages_or_become_text() -> None:
    rewritten = module("project_files").rewritten
    text = (
        "[a](../SECURITY.md#x) [b](../kbatch/table.py) [c](live.md#y) [d](../README.md#z) [e](https://a.b/c) "
        "![f](../bench/chart.svg)\n```\n[g](../kbatch/table.py)\n```\n"
    )
    assert rewritten(text, DOCS / "x.md", DOCS / "x.md", DOCS) == (
        "[a](reference/security.markdown#x) b [c](live.md#y) [d](index.md) [e](https://a.b/c) "
        "![f](../bench/chart.svg)\n```\n[g](../kbatch/table.py)\n```\n"
    )
    assert rewritten("[a](docs/live.md#y)", ROOT / "CHANGELOG.md", DOCS / "reference" / "changelog", DOCS) == (
        "[a](../live.md#y)"
    )


def test_pictures_follow_the_theme_of_the_site() -> None:
    text = """<picture>
  <source media="(prefers-color-scheme: dark)" srcset="../bench/dark.svg">
  <img alt="A chart" src="../bench/light.svg">
</picture>"""
    assert module("project_files").rewritten(text, DOCS / "x.md", DOCS / "x.md", DOCS) == (
        "![A chart](../bench/light.svg){.only-light} ![A chart](../bench/dark.svg){.only-dark}"
    )


# -- generated pages


def test_generated_pages_are_not_committed() -> None:
    assert all(name.startswith("reference/") for name in generated_pages())
    assert "/docs/reference/" in (ROOT / ".gitignore").read_text().splitlines()


def test_pages_are_equal_in_each_build() -> None:
    assert generated_pages() == generated_pages.__wrapped__()


def test_no_two_pages_have_names_that_some_file_systems_do_not_distinguish() -> None:
    assert [name for name, n in Counter(page.lower() for page in generated_pages()).items() if n > 1] == []


def test_every_public_name_has_a_page() -> None:
    python_pages = module("python_pages")
    assert python_pages.MODULES == public_api.MODULES
    texts = generated_pages()
    messages = "".join(text for name, text in texts.items() if name.startswith("reference/protocol/"))
    for each in public_api.MODULES:
        for name in importlib.import_module(each).__all__:
            if name == "__version__":
                continue
            if f"{each}.{name}" in python_pages.homes():
                page, value = python_pages.homes()[f"{each}.{name}"]
                text = texts[f"reference/python/{page}"]
                assert ".. auto" in text or f".. py:data:: {page}" in text, value
            else:
                assert f".. py:class:: {each}.{name}\n" in messages


def test_every_field_of_the_structured_arrays_has_a_meaning() -> None:
    described = module("dtype_fields")
    dtypes = {name: value for name in kbatch.__all__ if isinstance(value := getattr(kbatch, name), np.dtype)}
    assert described.FIELDS.keys() == described.PURPOSES.keys() == dtypes.keys()
    for name, dtype in dtypes.items():
        assert set(described.FIELDS[name]) == set(dtype.names or ())


def test_every_member_of_an_enumeration_is_listed() -> None:
    texts = generated_pages()
    for page, value in module("python_pages").homes().values():
        if hasattr(value, "__members__"):
            listed = re.findall(r"^   \* - ``(\w+)``$", texts[f"reference/python/{page}"], re.MULTILINE)
            assert listed == [member.name for member in value]


def test_every_command_has_a_page_with_its_flags() -> None:
    texts = generated_pages()
    parsers = module("command_pages").parsers()
    assert {f"reference/commands/kbatch-{name}" for name in parsers} | {"reference/commands/index"} == {
        name for name in texts if name.startswith("reference/commands/")
    }
    for name, parser in parsers.items():
        text = texts[f"reference/commands/kbatch-{name}"]
        for action in parser._actions:
            if action.help != argparse.SUPPRESS:
                assert all(
                    re.search(rf"^\.\. option:: .*{flag}\b", text, re.MULTILINE) for flag in action.option_strings
                )
        assert "Exit status\n" in text
        assert "\x1b" not in text


def names(fields: tuple[FieldSchema, ...]) -> list[str]:
    return [name for field in fields for name in (field.name, *names(field.fields))]


def test_every_message_is_on_a_page_with_its_fields() -> None:
    texts = [text for name, text in generated_pages().items() if name.startswith("reference/protocol/")]
    parts = {
        part.split("\n", 1)[0]: part
        for text in texts
        for part in re.split(r"^\.\. _message-\w+:\n\n", text, flags=re.MULTILINE)[1:]
    }
    assert set(parts) == set(message_schemas())
    for name, schema in message_schemas().items():
        listed = re.findall(r"^   \* - (?::level\d:)?`+(\w+)`+$", parts[name], re.MULTILINE)
        assert listed == names(schema.fields), name


def test_every_api_key_is_in_the_index_of_the_protocol() -> None:
    index = module("protocol_pages").generate()["reference/protocol/index"]
    rows = re.findall(r"^   \* - (\d+)\n     - (\w+)$", index, re.MULTILINE)
    assert rows == [(str(int(key)), key.title) for key in ApiKey]


@pytest.mark.parametrize(
    ("versions", "of", "text"),
    [
        (range(0, 1 << 15), range(0, 10), "all"), (range(3, 1 << 15), range(0, 10), "3+"), (range(0), range(0, 10), ""),
        (range(0, 4), range(0, 10), "0-3"), (range(2, 3), range(0, 10), "2"), (range(0, 10), range(0, 10), "all"),
        (range(0, 1 << 15), range(4, 10), "all"), (range(12, 1 << 15), range(0, 10), ""),
    ],
)  # fmt: skip
def test_versions_are_written_as_in_kafka(versions: range, of: range, text: str) -> None:
    assert module("protocol_pages").versions_text(versions, of) == text


def test_help_texts_become_paragraphs_examples_and_tables() -> None:
    text = (
        "Read *it*, with --mode x.\n\nexamples:\n  kbatch a b  first one\n  kbatch c\n\n"
        "exit status:\n  0    done\n  1    bad,\n       or worse\n"
    )
    table = ".. list-table::\n   :header-rows: 1\n   :widths: 20 80\n\n   * - status\n     - meaning\n"
    assert list(module("command_pages")._blocks(text)) == [
        "Read \\*it\\*, with ``--mode`` x.\n\n",
        "Examples\n----------\n\n.. code-block:: sh\n\n   # first one\n   kbatch a b\n   kbatch c\n\n",
        f"Exit status\n-------------\n\n{table}   * - ``0``\n     - done\n   * - ``1``\n     - bad, or worse\n\n",
    ]


# -- the build


def test_ci_and_the_documentation_build_the_site_with_the_same_command() -> None:
    command = re.findall(r"^(sphinx-build .*)$", (ROOT / ".ci" / "site").read_text(), re.MULTILINE)
    assert command == ["sphinx-build -W --keep-going -q -b html -d build/doctrees docs build/site"]
    assert (
        "sphinx-build -W --keep-going -b html -d build/doctrees docs build/site"
        in (DOCS / "contributing.md").read_text()
    )
    assert "\n.ci/site\n" in (ROOT / ".ci" / "run").read_text()


def test_the_group_of_the_documentation_has_the_extensions_of_the_site() -> None:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["docs"]
    packages = {re.split("[>=]", each)[0].replace("-", "_") for each in group}
    path = list(sys.path)
    extensions = runpy.run_path(str(DOCS / "conf.py"))["extensions"]
    sys.path[:] = path
    assert {each for each in extensions if not each.startswith(("sphinx.", "kbatch_"))} <= packages
    assert all(">=" in each and "<" not in each for each in group), "only lower bounds, for every supported Python"


def test_only_answers_about_a_page_make_a_link_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        {"filename": "a.md", "lineno": 1, "uri": "u", "status": status, "info": info}
        for status, info in [
            ("working", ""), ("broken", "404 Client Error: Not Found for url: u"), ("broken", "Anchor 'x' not found"),
            ("broken", "429 Client Error: Too Many Requests"), ("broken", "Connection refused"), ("timeout", "slow"),
            ("redirected", ""), ("ignored", ""), ("broken", "403 Client Error: Forbidden"),
        ]
    ]  # fmt: skip
    wrong, unchecked = wrong_links(results)
    assert (len(wrong), len(unchecked)) == (2, 4)
    path = tmp_path / "output.json"
    path.write_text('{"filename": "a.md", "lineno": 3, "uri": "u", "status": "broken", "info": "410 Gone"}\n')
    assert main(path) == 1
    assert capsys.readouterr().out == "wrong: a.md:3: u: 410 Gone\n"
