"""Pages for users of other tools: the code of the other tool runs against a broker, and returns what kbatch returns.

A block of the other tool that has no output of its own on the page prints what the next block of kbatch prints.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_readme import ROOT, Block, blocks

from kbatch.cli import main

try:
    from trips import write_trips

    from broker.server import JVM, Broker, Unavailable, find_jars, find_java
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

PAGES = ROOT / "docs" / "coming-from"
ADDRESS = "localhost:9092"


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with Broker(tmp_path_factory.mktemp("trips") / "broker") as started:
            write_trips(started.bootstrap)
            yield started
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))


def runs_here(block: Block) -> bool:
    """Whether a block is about the broker; the schema registry of the pages is in test_readme.py."""
    return "localhost:8081" not in block.text


def printed(block: Block, broker: Broker, names: dict[str, Any]) -> str:
    """Run a block, with the groups of each side by another name, and return what it prints."""
    text = block.text.replace(ADDRESS, broker.bootstrap).replace('"billing"', f'"billing-{block.language}"')
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile("\n" * (block.line - 1) + text, str(block.page), "exec"), names)
    return output.getvalue()


# Importing kafka-python gives these warnings.
@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_the_other_client_prints_what_kbatch_prints(name: str, trips: Broker, monkeypatch: Any) -> None:
    module = name.replace("-python", "").replace("-", "_")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(ROOT)
    namespaces: dict[str, dict[str, Any]] = {"py": {}, "python": {}}
    waiting: list[tuple[Block, str]] = []
    compared = 0
    found = [block for block in blocks(PAGES / f"{name}.md") if block.language in ("py", "python", "text")]
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block.language == "text" or not runs_here(block):
            continue
        output = printed(block, trips, namespaces[block.language])
        if following is not None and following.language == "text":
            for each, theirs in [*waiting, (block, output)]:
                assert theirs == following.text, f"{each.page.name}:{each.line}"
            compared += len(waiting)
            waiting = []
        elif output:
            waiting.append((block, output))
    assert not waiting
    assert compared >= 8
