"""Pages for users of other tools: the code of the other tool runs against a broker, and returns what kbatch returns.

A block of the other tool that has no output of its own on the page prints what the next block of kbatch prints.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from test_coming_from import KAFKA_DUMP_LOG
from test_readme import ROOT, Block, blocks

from kbatch.cli import main

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic
    from trips import write_trips

    from broker.server import JVM, Broker, Unavailable, find_jars, find_java
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

PAGES = ROOT / "docs" / "coming-from"
ADDRESS = "localhost:9092"


@pytest.fixture(scope="module")
def trips(broker: Broker) -> Broker:
    write_trips(broker.bootstrap)
    return broker


def runs_here(block: Block) -> bool:
    """Whether a block is about the broker; the schema registry of the pages is in test_readme.py."""
    return "localhost:8081" not in block.text


def printed(block: Block, broker: Broker, names: dict[str, Any]) -> str:
    """Run a block, with another group for each page and side, and return what it prints."""
    group = f'"{block.page.stem}-{block.language}"'
    text = block.text.replace(ADDRESS, broker.bootstrap).replace('"billing"', group)
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


# -- commands


def run(text: str, broker: Broker | None, directory: Path, **variables: str) -> str:
    """Run a block of commands in a directory, and return what they print."""
    if broker is not None:
        text = text.replace(ADDRESS, broker.bootstrap)
    done = subprocess.run(
        ["sh", "-euc", text], cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def following(page: str, program: str) -> Iterator[tuple[Block, list[Block]]]:
    """Return the blocks of a program's commands, each with the blocks after it up to the first output."""
    found = [block for block in blocks(PAGES / f"{page}.md") if block.language in ("bash", "text")]
    for place, block in enumerate(found):
        if block.text.startswith(f"{program} "):
            outputs = [number for number, each in enumerate(found) if each.language == "text" and number > place]
            yield block, found[place + 1 : outputs[0] + 1 if outputs else len(found)]


def test_kbatch_prints_what_the_page_for_users_of_kcat_states(trips: Broker, capsys: Any) -> None:
    compared = 0
    for block, (after, *_) in following("kcat", "kbatch consume"):
        text = block.text.replace(ADDRESS, trips.bootstrap).replace("\\\n", "")
        assert main(shlex.split(text)[1:]) == 0
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(after.text.splitlines())
        compared += 1
    assert compared >= 7


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
def test_kcat_prints_what_its_page_states(trips: Broker, tmp_path: Path) -> None:
    """Of a block without an output of its own, the output is that of the next command of kbatch."""
    compared = 0
    for block, after in following("kcat", "kcat"):
        if " -J" in block.text:
            continue
        output = run(block.text.replace("billing", "kcat"), trips, tmp_path)
        assert sorted(output.splitlines()) == sorted(after[-1].text.splitlines()), block.line
        compared += 1
    assert compared >= 7


def test_commands_of_kafkas_dump_tool_succeed(tmp_path: Path) -> None:
    try:
        command = [find_java(), *JVM, "-cp", f"{find_jars()}/*", "org.apache.kafka.tools.DumpLogSegments"]
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))
    script = tmp_path / "kafka-dump-log"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert {flag for flag in KAFKA_DUMP_LOG if flag not in done.stdout + done.stderr} == set()
    ran = 0
    for block, _ in following("dump-log-segments", "kafka-dump-log"):
        assert "Dumping" in run(block.text, None, ROOT, PATH=path) or "grep" in block.text, block.line
        ran += 1
    assert ran >= 5


# -- Spark


def broker_with_txn(directory: Path) -> Broker:
    """Return a running broker with the golden log `txn`, and the values of `orders` that the page writes."""
    made = Broker(directory)
    made.start()
    topics = [NewTopic("txn", 1, 1), NewTopic("orders", 1, 1)]
    admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 2})
    for future in admin.create_topics(topics).values():
        future.result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": made.bootstrap, "log_level": 2})
    for value in (b'{"id": 1, "total": 9.5}', b'{"id": 2, "total": 4.5}'):
        producer.produce("orders", value)
    assert producer.flush(60) == 0
    made.stop()
    log = made.log_dir / "txn-0"
    for path in log.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in (LOGS / "txn-0").glob("*.log"):
        shutil.copy(path, log)
    # The broker makes the index files again.
    for path in made.log_dir.glob("*checkpoint"):
        path.unlink()
    made.start()
    return made


# Spark starts in its own process, because the source is a package of the session.
@pytest.mark.long
def test_sparks_kafka_source_prints_what_kbatch_prints(tmp_path: Path) -> None:
    try:
        jars = ",".join(map(str, find_jars(ROOT / "bench" / "spark-kafka.xml").glob("*.jar")))
        started = broker_with_txn(tmp_path / "broker")
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))
    with contextlib.ExitStack() as stack:
        stack.callback(started.stop)
        page = PAGES / "spark-kafka-source.md"
        found = [block for block in blocks(page) if block.language in ("py", "python", "text")]
        code = [(block.language, block.text.replace(ADDRESS, started.bootstrap)) for block in found]
        order = tmp_path / "blocks.json"
        order.write_text(json.dumps(code))
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("spark_page.py"), order, jars],
            cwd=ROOT, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    theirs = ours = ""
    compared = 0
    for (language, text), output in zip(code, json.loads(done.stdout), strict=True):
        if language == "py":
            theirs = output
        elif language == "python":
            ours = output
        else:
            assert ours == text
            assert text.startswith(theirs)
            compared += bool(theirs)
    assert compared == 10
