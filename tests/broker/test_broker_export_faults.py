"""Random schedules of faults while topics are followed into tables and by Spark, in processes that are killed too.

Every record is in the output once. A process may end by itself only with an error about brokers that did not answer.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import kbatch

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

try:
    import iceberg_catalog
    from export_outputs import Output

    from broker.broker_cluster import BrokerCluster, running_cluster
    from broker.fault_schedule import (
        QUICK_SETTINGS,
        SECONDS,
        SEED,
        TOPICS,
        FaultSchedule,
        PlainWriter,
        TransactionalWriter,
        assert_acknowledged,
        explained,
        logged,
    )
    from broker.reading import Partition
    from broker.server import Unavailable, ending_with_thread
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = [
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

SETTINGS = {name.replace("_", "."): str(value) for name, value in QUICK_SETTINGS.items()}
STREAMED_QUERY = str(Path(__file__).parents[1] / "support" / "streamed_query.py")
# What a process may end with: brokers that were gone for too long.
NO_ANSWER = re.compile(
    r"no response|closed the connection|no connection|no leader|no records from offset|refused"
    r"|default\.api\.timeout\.ms"
)
# What a query ends with if the driver's own Python worker is killed, which Spark does not replace.
KILLED_WORKER = re.compile(r"EOFException|SocketException|Python worker exited unexpectedly")

EXECUTOR, WORKER = "executor.CoarseGrainedExecutorBackend", "-m pyspark."


class Restarted(threading.Thread):
    """Runs a command, and kills or ends it at random times until it is stopped; then it is started again.

    Attributes
    ----------
    counts : Counter
        What happened to its processes, by name.
    faults : dict of callable to int
        What may happen to a process that runs, by weights. Each gets the process.
    expected : list of re.Pattern
        With which errors a process may end by itself.
    error : BaseException or None
    """

    def __init__(self, name: str, command: list[str], schedule: FaultSchedule, longest: float, directory: Path) -> None:
        super().__init__(daemon=True)
        self.label = name
        self._command = command
        self._schedule = schedule
        self._longest = longest
        self._errors = directory / f"{name}.err"
        self._rng = random.Random(f"{SEED} {name}")
        self._stopped = threading.Event()
        self.counts: Counter[str] = Counter()
        self.faults: dict[Callable[[subprocess.Popen[bytes]], object], int] = {self.kill: 4, self.end: 1}
        self.expected = [NO_ANSWER]
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._schedule.event(f"{self.label} starts")
                self.counts["starts"] += 1
                with self._process() as process:
                    self._disturb(process)
        except BaseException as error:
            self.error = error

    def _disturb(self, process: subprocess.Popen[bytes]) -> None:
        """Wait and do something to a process, until it has ended; sometimes also while it begins."""
        waits = self._rng.random() < 0.8
        while waits and not self.has_begun(process) and process.poll() is None and not self._stopped.wait(0.2):
            pass
        while not self._stopped.is_set():
            end = time.monotonic() + self._rng.choice((self._rng.uniform(0.1, 3), self._rng.uniform(3, self._longest)))
            while time.monotonic() < end and process.poll() is None and not self._stopped.wait(0.05):
                pass
            if process.poll() is not None:
                self._explain(process)
                return
            fault = self._rng.choices(*zip(*self.faults.items(), strict=True))[0]
            fault(process)
            if fault in (self.kill, self.end):
                return
        self.end(process)

    def has_begun(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a process reads records."""
        return True

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.happened("kill")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        self.happened("end")
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(90)
        assert process.poll() is not None, f"{self.label} does not end"
        # The signal may come before its handler is set, or just after an error.
        if process.returncode not in (0, 130, -signal.SIGTERM):
            self._explain(process)

    def happened(self, what: str) -> None:
        self._schedule.event(f"{what} {self.label}")
        self.counts[what] += 1

    def _explain(self, process: subprocess.Popen[bytes]) -> None:
        """Raise unless a process has ended by itself with an error about brokers."""
        errors = self._errors.read_text()
        assert process.returncode == 1, (self.label, process.returncode, errors)
        assert any(each.search(errors) for each in self.expected), (self.label, errors)
        last = errors.strip().splitlines()[-1]
        self._schedule.event(f"{self.label} has ended: {last[:300]}")
        self.counts["errors"] += 1

    @contextmanager
    def _process(self) -> Iterator[subprocess.Popen[bytes]]:
        with open(self._errors, "wb") as errors:
            command = ending_with_thread(self._command)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, process_group=0)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._stopped.set()
        self.join(120)
        assert not self.is_alive(), f"{self.label} does not end"
        self.check()

    def complete(self) -> None:
        """Write what is left, in a process that ends by itself."""
        done = subprocess.run([*self._command, "--available-now"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (self.label, done.stderr[-5000:])


class RestartedQuery(Restarted):
    """A query of Spark, of which workers and executors are killed too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.expected.append(KILLED_WORKER)
        # A driver takes long to start.
        self.faults = {self.kill: 1, self.end: 1, self.kill_executor: 5, self.kill_worker: 8}

    def has_begun(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether executors have started workers; the driver has one, too."""
        found = descendants(process.pid)
        return any(EXECUTOR in found.get(parent_of(pid), "") for pid, command in found.items() if WORKER in command)

    def kill_executor(self, process: subprocess.Popen[bytes]) -> None:
        self._kill_one("kill an executor of", process, EXECUTOR)

    def kill_worker(self, process: subprocess.Popen[bytes]) -> None:
        self._kill_one("kill a worker of", process, WORKER)

    def _kill_one(self, what: str, process: subprocess.Popen[bytes], word: str) -> None:
        found = sorted(pid for pid, command in descendants(process.pid).items() if word in command)
        if found:
            self.happened(what)
            with suppress(ProcessLookupError):
                os.kill(self._rng.choice(found), signal.SIGKILL)


def descendants(root: int) -> dict[int, str]:
    """Return the command lines of the processes that a process has started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        with suppress(OSError):
            found[pid] = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def parent_of(pid: int) -> int:
    """Return the id of the parent of a process, 0 if the process has ended."""
    try:
        # The name of the process is in parentheses, and may contain spaces.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def run_schedule(
    cluster: BrokerCluster,
    make: Callable[[FaultSchedule], list[Restarted]],
    check: Callable[[Restarted, FaultSchedule, list[Any]], int],
) -> None:
    """Follow the topics while faults happen; at the end complete the outputs, and check each."""
    schedule = FaultSchedule(cluster, SEED)
    writers = [kind(schedule, cluster.direct, SEED) for kind in (PlainWriter, TransactionalWriter)]
    followers = make(schedule)
    threads = [*writers, *followers]
    for each in threads:
        each.start()
    with explained(schedule):
        try:
            schedule.run(SECONDS, lambda: [each.check() for each in threads])
        finally:
            for each in threads:
                each.stop()
        for follower in followers:
            follower.complete()
            count = check(follower, schedule, writers)
            print(f"{follower.label}: {count} records, {dict(follower.counts)}")
            assert count > 20 * SECONDS
            assert follower.counts["commits"] > 1
    print(*schedule.events, f"{len(schedule.events)} events in {SECONDS:g} s", sep="\n")


def assert_same(rows: pa.Table, truth: dict[Partition, list[tuple[int, bytes]]]) -> int:
    """Assert that an output has each record once, and no other; return the number."""
    found: dict[Partition, list[tuple[int, bytes]]] = {}
    for row in rows.select(["topic", "partition", "offset", "value"]).to_pylist():
        found.setdefault((row["topic"], row["partition"]), []).append((row["offset"], row["value"]))
    assert set(found) == set(truth)
    for place, expected in truth.items():
        offsets = Counter(offset for offset, _ in found[place])
        repeated = sorted(offset for offset, count in offsets.items() if count > 1)
        missing = sorted({offset for offset, _ in expected}.difference(offsets))
        assert (repeated[:10], missing[:10]) == ([], []), (place, len(repeated), len(missing))
        assert sorted(found[place]) == expected, place
    return sum(map(len, found.values()))


def test_topics_are_followed_into_tables_with_every_acknowledged_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of committed transactions into Delta, all records into Iceberg."""
    pytest.importorskip("deltalake")
    iceberg_catalog.use(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(Path(kbatch.__file__).parents[1]))
    where = {"delta": {}, "iceberg": {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}}
    isolations = {"delta": "read_committed", "iceberg": "read_uncommitted"}
    url = ""

    def make(schedule: FaultSchedule) -> list[Restarted]:
        found = []
        for kind, table in where.items():
            command = [sys.executable, "-m", "kbatch", "follow", url, str(tmp_path / kind), "--format", kind]
            command += ["--engine", "local", "--isolation", isolations[kind], "--commit-interval", "500ms"]
            command += [text for name, value in table.items() for text in (f"--{name}", value)]
            command += [text for topic in TOPICS for text in ("--topic", topic)]
            command += [text for name, value in SETTINGS.items() for text in ("--setting", f"{name}={value}")]
            found.append(Restarted(kind, command, schedule, 12.0, tmp_path))
        return found

    def check(follower: Restarted, schedule: FaultSchedule, writers: list[Any]) -> int:
        kind = follower.label
        truth = logged(cluster, schedule, isolations[kind])
        assert_acknowledged(writers, truth)
        verified = kbatch.verify_export(str(tmp_path / kind), f"kafka://{cluster.direct}", **where[kind])  # type: ignore[arg-type]
        assert (verified.damaged, verified.findings) == (False, [])
        table = Output(kind, tmp_path / kind).table()
        follower.counts["commits"] = table.version() if kind == "delta" else len(table.snapshots())
        return assert_same(table.to_pyarrow_table() if kind == "delta" else table.scan().to_arrow(), truth)

    try:
        with running_cluster(tmp_path / "cluster") as cluster:
            url = f"kafka://{cluster.bootstrap}"
            run_schedule(cluster, make, check)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.spark
def test_a_query_of_spark_writes_every_acknowledged_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver, executors and Python workers are killed; tasks divide partitions."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PYTHONPATH", str(Path(kbatch.__file__).parents[1]))

    def make(schedule: FaultSchedule) -> list[Restarted]:
        options = {f"kafka.{name}": value for name, value in SETTINGS.items()} | {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribe": ",".join(TOPICS),
            "startingOffsets": "earliest",
            "minPartitions": "12",
        }
        command = [sys.executable, STREAMED_QUERY, "local-cluster[2,1,512]", json.dumps(options), str(tmp_path)]
        return [RestartedQuery("spark", command, schedule, 12.0, tmp_path)]

    def check(follower: Restarted, schedule: FaultSchedule, writers: list[Any]) -> int:
        truth = logged(cluster, schedule, "read_committed")
        assert_acknowledged(writers, truth)
        follower.counts["commits"] = sum(
            not each.name.startswith(".") for each in (tmp_path / "state/commits").iterdir()
        )
        return assert_same(written(tmp_path / "out"), truth)

    try:
        with running_cluster(tmp_path / "cluster") as cluster:
            run_schedule(cluster, make, check)
    except Unavailable as error:
        pytest.skip(str(error))


def written(directory: Path) -> pa.Table:
    """Return the rows of the files that Spark's sink has committed; tasks that were killed leave others."""
    names: set[str] = set()
    for log in (directory / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            # The first line is the version.
            names.update(json.loads(line)["path"] for line in log.read_text().splitlines()[1:])
    return pa.concat_tables(pq.ParquetFile(name.removeprefix("file://")).read() for name in sorted(names))
