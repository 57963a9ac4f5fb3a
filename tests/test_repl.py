"""Tab completion in IPython lists the public names and the options of functions, with and without jedi."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from golden_logs import LOGS
from public_api import MODULES

import kbatch

pytest.importorskip("IPython")
pytest.importorskip("pyspark")

from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

Complete = Callable[[str], set[str]]


@pytest.fixture(scope="module")
def shell() -> Any:
    made = InteractiveShell()
    made.user_ns["kbatch"] = kbatch
    made.user_ns["log"] = kbatch.Log(LOGS / "txn-0")
    return made


@pytest.fixture(params=[True, False], ids=["jedi", "without jedi"])
def complete(request: pytest.FixtureRequest, shell: Any) -> Complete:
    """Return the completions of the end of a line, without names that begin with an underscore."""

    def completions(line: str) -> set[str]:
        shell.Completer.use_jedi = request.param
        with provisionalcompleter():
            found = {each.text.rpartition(".")[2] for each in shell.Completer.completions(line, len(line))}
        return {text for text in found if not text.startswith("_")}

    return completions


@pytest.mark.parametrize("module", MODULES)
def test_completion_of_a_public_module_lists_its_public_names_only(module: str, complete: Complete) -> None:
    importlib.import_module(module)
    public = {name for name in importlib.import_module(module).__all__ if not name.startswith("_")}
    packages = {each.rpartition(".")[2] for each in MODULES[1:]} if module == "kbatch" else set()
    assert public <= complete(f"{module}.") <= public | packages


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kbatch.export('logs', 'out', compr", {"compression="}),
        ("kbatch.follow('logs', 'out', commit_b", {"commit_bytes="}),
        ("kbatch.consume('orders', sasl_me", {"sasl_mechanism="}),
        ("kbatch.scan_logs('logs', isol", {"isolation="}),
        ("log.to_arrow(value_sc", {"value_schema="}),
        ("log.count(max_b", {"max_bytes="}),
        ("kbatch.protocol.FetchRequest(max_w", {"max_wait_ms="}),
        ("kbatch.protocol.FetchRequest.FetchTopic(part", {"partitions="}),
    ],
)
def test_completion_of_a_call_lists_its_options(line: str, expected: set[str], complete: Complete) -> None:
    assert complete(line) == expected


def test_completion_of_an_object_lists_its_public_attributes(complete: Complete) -> None:
    names = complete("log.")
    assert {"tables", "to_arrow", "segments", "transactions"} <= names
    assert all(hasattr(kbatch.Log, name) or name in vars(kbatch.Log(LOGS / "txn-0")) for name in names)
