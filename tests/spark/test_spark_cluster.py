"""A real standalone cluster whose Python does not have kbatch: the archive contains it, and workers are killed."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

if not sys.platform.startswith("linux"):
    pytest.skip("finds the processes of the cluster in /proc", allow_module_level=True)

from spark_cluster import Cluster  # noqa: E402

pytestmark = pytest.mark.spark

PARTITIONS = 8
# The records of each partition; a partition is one task.
RECORDS = 60_000
# Enough seconds for a busy machine.
TIMEOUT = 300
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark-on-a-cluster.md"
# All of these JVMs are short-lived.
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@pytest.fixture(scope="module")
def logs(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions of a topic; each repeats the batches of a real segment, with ascending offsets."""
    data = (golden / "logs" / "codec-zstd-0" / f"{0:020}.log").read_bytes()
    batches = kbatch.scan(data)
    copy = np.frombuffer(data, np.uint8).copy()
    offset_bytes = batches["position"][:, None] + np.arange(8)
    step = int(batches["last_offset"][-1]) + 1
    root = tmp_path_factory.mktemp("cluster-logs")
    for partition in range(PARTITIONS):
        (root / f"events-{partition}").mkdir()
        with (root / f"events-{partition}" / f"{0:020}.log").open("wb") as log:
            for turn in range(RECORDS // step):
                copy[offset_bytes] = (batches["base_offset"] + turn * step).astype(">i8").view(np.uint8).reshape(-1, 8)
                log.write(copy)
    return root


@pytest.fixture(scope="module")
def offsets(logs: Path) -> dict[int, np.ndarray[Any, Any]]:
    return {
        int(log.partition or 0): np.concatenate([table.records["offset"] for table in log.tables()])
        for log in kbatch.find_logs(logs)
    }


# The packages that tasks import.
PACKAGES = ("cramjam", "crc32c", "lz4", "numpy", "pyarrow", "python-snappy", "typing_extensions", "zstandard")
# A fifth of pyarrow, which tasks do not load.
UNUSED = re.compile(r"libarrow_flight|libgandiva")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the packages that executors need, as `pip install --target` writes them."""
    # Every executor unpacks the archive, which takes half the time if it is not compressed.
    path = tmp_path_factory.mktemp("archive") / "deps.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(Path(kbatch.__file__).parent, "kbatch")
        for name in PACKAGES:
            for file in importlib.metadata.files(name) or ():
                if not {"..", "__pycache__", "tests", "include"} & set(file.parts) and not UNUSED.match(file.name):
                    tar.add(str(file.locate()), file.as_posix())
    return path


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of the version that runs the tests, with no packages installed, named `python3`."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True, with_pip=False)
    path = home / "bin" / "python3"
    code = "import importlib.util as u; print([m for m in ('kbatch', 'numpy', 'pyarrow', 'pyspark') if u.find_spec(m)])"
    output = subprocess.run([path, "-Pc", code], env={}, capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), python) as one:
        one.add_worker()
        one.add_worker()
        yield one


class Driver:
    """Starts programs that use the cluster, each in a separate process that ends with its test."""

    def __init__(self, cluster: Cluster, archive: Path, logs: Path) -> None:
        self.cluster = cluster
        self.conf = {
            "spark.archives": f"{archive}#deps",
            "spark.executorEnv.PYTHONPATH": "./deps",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": JVM,
            "spark.executor.extraJavaOptions": JVM,
        }
        self.directory: Path | None = None
        self.names = {"logs": str(logs), "master": cluster.master}
        # A name, not a path: the driver finds the interpreter with kbatch, and each executor finds its own.
        self.environment = os.environ | {
            "PYSPARK_PYTHON": "python3",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, code: str, *, without: str = "", **names: str) -> subprocess.Popen[str]:
        conf = {name: value for name, value in self.conf.items() if name != without}
        head = "\n".join(f"{name} = {value!r}" for name, value in {**self.names, **names, "conf": conf}.items())
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", f"{HEAD}\n{head}\n{code}"],
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, code: str, *, without: str = "", **names: str) -> str:
        return self.result(self.start(code, without=without, **names))

    def result(self, process: subprocess.Popen[str]) -> str:
        out, error = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, error
        return out

    def close(self) -> None:
        for process in self._started:
            # SIGTERM lets the program end its JVM and delete its temporary files.
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


HEAD = """
import json, warnings
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
warnings.filterwarnings("ignore", category=ResourceWarning)
import kbatch, kbatch.spark
from kbatch.errors import KbatchError
from kbatch.spark import register, spark_session
"""

EXPORT = """
with spark_session(master, conf=conf):
    try:
        summary = kbatch.export(logs, out, engine="spark")
    except KbatchError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print(summary.records)
"""

LAST = """
with spark_session(master, conf=conf):
    print(kbatch.export(logs, out).records, flush=True)
    try:
        kbatch.export(logs, lost)
    except KbatchError as error:
        print(f"{type(error).__name__}: {error}")
"""


DATA_SOURCE = """
from pyspark.sql.functions import count, sum
def where(batches):
    import pyarrow, kbatch.kernels.decode
    for batch in batches:
        yield pyarrow.record_batch({"path": [kbatch.kernels.decode.__file__] * len(batch)})
with spark_session(master, conf=conf) as spark:
    register(spark)
    frame = spark.read.format("kbatch").option("splitBytes", "1000000").load(logs)
    rows = frame.groupBy("partition").agg(count("offset").alias("n"), sum("offset").alias("sum")).collect()
    here = spark.range(4).mapInArrow(where, "path string").distinct().collect()
    print(json.dumps([[[row.partition, row.n, row.sum] for row in rows], [row.path for row in here]]), flush=True)
    frame.write.partitionBy("topic", "partition").parquet(out)
"""


FAILED = """
with spark_session(master, conf=conf) as spark:
    register(spark)
    for read in (
        lambda: kbatch.export(logs, out),
        lambda: kbatch.spark.decode_frame(spark.createDataFrame([(bytearray(61),)], "value binary")).collect(),
        lambda: spark.read.format("kbatch").load(logs).collect(),
        lambda: spark.readStream.format("kbatch").option("startingOffsets", "earliest").load(logs).writeStream.format(
            "noop"
        ).trigger(availableNow=True).start().awaitTermination(),
        lambda: spark.createDataFrame([(bytearray(61),)], "value binary").write.format("kbatch").option(
            "topic", "t").option("numPartitions", 1).mode("append").save(out),
    ):
        try:
            read()
        except Exception as error:
            print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def driver(cluster: Cluster, archive: Path, logs: Path) -> Iterator[Driver]:
    one = Driver(cluster, archive, logs)
    yield one
    one.close()


def wait_until(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not what():
        assert process.poll() is None, f"ended too soon: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def busy_worker(cluster: Cluster, root: Path, process: subprocess.Popen[str]) -> int:
    """Wait until a task has begun to write below `root`; return a worker that runs Python."""
    wait_until(lambda: any(path.is_file() for path in root.rglob("*.parquet")), process)
    # A busy executor has two processes: its JVM, and the daemon that starts Python workers.
    return next(number for number in cluster.workers if len(cluster.executor_processes(number)) > 1)


def assert_rows(out: Path, offsets: dict[int, np.ndarray[Any, Any]]) -> None:
    for partition, expected in offsets.items():
        files = sorted((out / "topic=events" / f"partition={partition}").glob("*.parquet"))
        found = np.concatenate([pq.ParquetFile(file).read(["offset"])["offset"].to_numpy() for file in files])
        np.testing.assert_array_equal(np.sort(found), expected)


def test_without_an_archive_every_error_names_the_remedy(driver: Driver, golden: Path, tmp_path: Path) -> None:
    """The export, `decode_frame`, and the data source in a read, a stream and a write, in one driver."""
    driver.conf["spark.cores.max"] = "1"
    # Failed tasks of the data source are repeated by default.
    driver.conf["spark.task.maxFailures"] = "1"
    # Workers import pyarrow before they get anything of kbatch.
    packages = tmp_path / "packages"
    packages.mkdir()
    driver.conf["spark.executorEnv.PYTHONPATH"] = str(packages)
    for path in Path(pa.__file__).parent.parent.iterdir():
        if path.name.startswith(("numpy", "pyarrow")):
            (packages / path.name).symlink_to(path)
    logs = str(golden / "logs" / "codec-lz4-0")
    output = driver.run(FAILED, without="spark.archives", logs=logs, out=str(tmp_path / "out"))
    exported, *others = map(json.loads, output.splitlines())
    assert exported[0] == "KbatchError"
    assert exported[1].startswith("the Python of Spark's workers cannot import kbatch (No module named '")
    assert "venv-pack" in exported[1]
    assert "\n" not in exported[1]
    assert list(tmp_path.iterdir()) == [packages]
    assert len(others) == 4
    for _, text in others:
        assert "ModuleNotFoundError: the Python of Spark's workers cannot import kbatch (No module named " in text
        assert "venv-pack (or conda-pack)" in text
        assert "--py-files does not work" in text


@pytest.mark.long
def test_executors_import_kbatch_from_the_archive(
    driver: Driver, tmp_path: Path, offsets: dict[int, np.ndarray[Any, Any]]
) -> None:
    """The data source reads all rows, even if an executor is killed during the read."""
    process = driver.start(DATA_SOURCE, out=str(tmp_path / "out"))
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    rows, paths = json.loads(line)
    assert {partition: (n, total) for partition, n, total in rows} == {
        partition: (len(expected), int(expected.sum())) for partition, expected in offsets.items()
    }
    works = tuple(f"{work}/" for work in driver.cluster.workers.values())
    assert paths
    assert all(path.startswith(works) and "/deps/kbatch/" in path for path in paths)
    driver.cluster.kill_executors(busy_worker(driver.cluster, tmp_path, process))
    driver.result(process)
    assert_rows(tmp_path / "out", offsets)


def test_killed_workers_lose_and_duplicate_no_row_until_the_last_one_is_killed(
    driver: Driver, tmp_path: Path, offsets: dict[int, np.ndarray[Any, Any]]
) -> None:
    """A worker is killed together with its executor: one of two in the first export, the other in the second."""
    # The first executors must start within the same timeout.
    driver.conf["spark.kbatch.executorTimeout"] = "30"
    process = driver.start(LAST, out=str(tmp_path / "out"), lost=str(tmp_path / "lost"))
    killed = busy_worker(driver.cluster, tmp_path, process)
    driver.cluster.kill_worker(killed)
    assert process.stdout is not None
    line = process.stdout.readline()
    # Before the second export ends.
    for number in set(driver.cluster.workers) - {killed}:
        driver.cluster.kill_worker(number)
    assert line, process.communicate()
    assert int(line) == sum(map(len, offsets.values()))
    assert_rows(tmp_path / "out", offsets)
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet")}
    assert written == set(json.loads((tmp_path / "out" / "_manifest.json").read_text())["files"])
    output = driver.result(process)
    assert output.startswith(f"ExecutorsLostError: {driver.cluster.master} has had no executor for this job for ")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.long
def test_a_packed_virtual_environment_reaches_the_workers(
    driver: Driver, archive: Path, tmp_path: Path, offsets: dict[int, np.ndarray[Any, Any]]
) -> None:
    """The data source, the export and the job of the page run in the environment that venv-pack has packed."""
    venv_pack = pytest.importorskip("venv_pack")
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    with tarfile.open(archive) as tar:
        tar.extractall(next(environment.glob("lib/python*/site-packages")), filter="data")
    # Not as .tar: Spark unpacks that with Java, which refuses the link to the interpreter.
    packed = tmp_path / "environment.tar.gz"
    venv_pack.pack(prefix=str(environment), output=str(packed), compress_level=1)
    driver.conf["spark.archives"] = f"{packed}#environment"
    del driver.conf["spark.executorEnv.PYTHONPATH"]
    driver.environment["PYSPARK_PYTHON"] = "./environment/bin/python"
    # The data source is planned on the driver, with the same relative path.
    driver.directory = tmp_path
    total = sum(map(len, offsets.values()))
    assert int(driver.run(EXPORT, out=str(tmp_path / "exported"))) == total
    assert_rows(tmp_path / "exported", offsets)
    rows, paths = json.loads(driver.run(DATA_SOURCE, out=str(tmp_path / "read")))
    assert sum(n for _, n, _ in rows) == total
    works = tuple(f"{work}/" for work in driver.cluster.workers.values())
    assert all(path.startswith(works) and "/environment/lib/" in path for path in paths)
    assert submitted_counts(driver, tmp_path) == {partition: len(expected) for partition, expected in offsets.items()}


def submitted_counts(driver: Driver, directory: Path) -> dict[int, int]:
    """Run `job.py` of the page by `spark-submit`; return the records of each partition that it writes."""
    import pyspark

    job = re.search(r"^```\n(from kbatch\.spark import .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert job is not None
    out = directory / "counts"
    code = job[1].replace('"orders"', '"events"')
    code = code.replace("/data/kafka", driver.names["logs"]).replace("/data/counts", str(out))
    (directory / "job.py").write_text(code)
    settings = itertools.chain.from_iterable(("--conf", f"{name}={value}") for name, value in driver.conf.items())
    command = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", driver.names["master"], *settings]
    environment = {name: value for name, value in driver.environment.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, "job.py"], cwd=directory, env=environment, capture_output=True, text=True, check=False,
        timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = pq.read_table(out).to_pylist()
    return {row["partition"]: row["count"] for row in found}
