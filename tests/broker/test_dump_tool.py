"""``kbatch dump --format kafka`` against Kafka's own tool, for all files of the golden logs."""

from __future__ import annotations

import os
import subprocess

import pytest
from golden_logs import LOGS

from kbatch.cli import main

try:
    from broker.server import JVM, Unavailable, find_jars, find_java
except ImportError:
    pytest.skip("no harness for a broker on this platform", allow_module_level=True)

# No broker is started, but Java needs about as much memory.
pytestmark = pytest.mark.broker
# Kafka's tool fails at the zeros of a preallocated file.
FILES = sorted(
    str(path.relative_to(LOGS))
    for suffix in ("log", "index", "timeindex", "txnindex", "snapshot")
    for path in LOGS.glob(f"*-0/*.{suffix}")
    if path.parent.name != "prealloc-0"
)


@pytest.fixture(scope="module")
def tool() -> list[str]:
    try:
        return [find_java(), *JVM, "-cp", f"{find_jars()}/*", "org.apache.kafka.tools.DumpLogSegments"]
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("theirs", "ours"), [([], []), (["--deep-iteration"], ["--records"]), (["--print-data-log"], ["--print-data-log"])]
)
def test_output_equals_that_of_kafkas_tool(
    tool: list[str],
    theirs: list[str],
    ours: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DMP-1 to DMP-6: batches, records, control records and auxiliary files, byte for byte."""
    command = [*tool, "--files", ",".join(FILES), *theirs]
    done = subprocess.run(command, cwd=LOGS, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(LOGS)
    assert main(["dump", "--format", "kafka", *ours, *FILES]) == 0
    expected, found = (text.splitlines(keepends=True) for text in (done.stdout, capsys.readouterr().out))
    assert len(expected) > len(FILES)
    assert found == expected, os.fspath(LOGS)
