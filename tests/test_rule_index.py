"""A test checks every rule of the format; `rule_index` describes how a test cites a rule."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import public_api
import pytest
import rule_index

import kbatch

PAGE = Path(__file__).parents[1] / "docs" / "format-rules.md"


def test_every_rule_has_a_test() -> None:
    without = rule_index.not_applicable()
    shown = rule_index.shown_by()
    assert [id for id, tests in shown.items() if not tests and id not in without] == []


def test_rules_without_a_test_have_a_reason() -> None:
    shown = rule_index.shown_by()
    for id, reason in rule_index.not_applicable().items():
        assert reason
        assert shown[id] == []


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("CNT-R3: a count", {"CNT-R3"}),
        ("DSK-R14, and TXN-R2 to R4", {"DSK-R14", "TXN-R2", "TXN-R3", "TXN-R4"}),
        ("CTL-R1 to CTL-R3", {"CTL-R1", "CTL-R2", "CTL-R3"}),
        ("DMP-2..DMP-4", {"DMP-2", "DMP-3", "DMP-4"}),
        ("as RFC 1952 has it", set()),
    ],
)
def test_ids_are_found_in_texts(text: str, ids: set[str]) -> None:
    assert rule_index.cited(text) == ids


def test_ids_are_found_in_names() -> None:
    assert rule_index.named("test_seq_r1_r4_sequences_follow") == {"SEQ-R1", "SEQ-R4"}
    assert rule_index.named("test_swap_that_is_cut_dsk_r8_dsk_r14") == {"DSK-R8", "DSK-R14"}
    assert rule_index.named("test_whatever_is_read") == set()


def test_the_page_of_the_rules_lists_every_rule_and_the_package_names_the_page() -> None:
    page = rule_index.page()
    assert PAGE.read_text() == page
    assert [id for id in rule_index.rules() if page.count(f"| {id} |") != 1] == []
    assert "docs/format-rules.md" in (kbatch.__doc__ or "")


@pytest.mark.parametrize("module", public_api.MODULES)
def test_public_docstrings_that_cite_rules_refer_to_their_page(module: str) -> None:
    if module == "kbatch.spark":
        pytest.importorskip("pyspark")
    rules = PAGE.read_text()
    public = importlib.import_module(module)
    for name in public.__all__:
        value = getattr(public, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            # An editor shows the docstring of a method without its class.
            members = inspect.getmembers(value) if inspect.isclass(value) else []
            shown = {name: value, **{f"{name}.{key}": each for key, each in members if not key.startswith("_")}}
            for place, each in shown.items():
                text = inspect.getdoc(each) or ""
                # Other texts have the form of an id: UTF-8, KIP-482.
                ids = [id for id in sorted(rule_index.cited(text)) if f"| {id} |" in rules]
                assert not ids or "docs/format-rules.md" in text, f"{module}.{place} cites {ids}"
