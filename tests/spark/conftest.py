"""One Spark that retries tasks, in a process of its own, for all tests of killed workers and failing tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import log_batches
import pytest
from log_batches import DAY, NOW

import kbatch

FAILING = """
import os, resource, signal
from pathlib import Path


class KillOnce:
    \"\"\"A transform that ends its worker in the middle of a task, once.\"\"\"

    def __init__(self, mark):
        self.mark = mark

    def schema(self, schema):
        return schema

    def apply(self, batch):
        if batch.column("offset")[0].as_py() >= 500:
            try:
                Path(self.mark).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return batch


class SmallFiles:
    \"\"\"A transform that limits the size of the files of its worker.\"\"\"

    def schema(self, schema):
        return schema

    def apply(self, batch):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
        return batch
"""
RUN = """
import json, os, signal, sys, warnings
warnings.simplefilter("ignore")
import failing
import kbatch.spark
from kbatch.errors import KbatchError
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql.functions import udf

directory = sys.argv[1]
killed = f"{directory}/killed"
results = {}

def fragile(n):
    context = TaskContext.get()
    if n % 250 == 200 and context.attemptNumber() == 0:
        open(f"{killed}-{n}", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return str(n)

def run(spark):
    global killed
    kbatch.spark.register(spark)
    frame = spark.range(0, 1000, 1, 4).select(udf(fragile, "string")("id").alias("value"))
    writer = frame.write.format("kbatch").mode("append").option("topic", "t").option("numPartitions", "1")
    writer.save(f"{directory}/written")
    killed += "-again"
    writer.save(f"{directory}/written")
    writing = {"engine": "spark", "row_group_rows": 100, "by_day": True}
    transform = failing.KillOnce(f"{directory}/killed")
    summary = kbatch.export(f"{directory}/logs", f"{directory}/out", transform=transform, **writing)
    results["exported"] = summary.records, len(summary.files)
    try:
        kbatch.export(f"{directory}/large", f"{directory}/full", transform=failing.SmallFiles(), **writing)
    except KbatchError as error:
        results["full disk"] = type(error).__name__, str(error)
    spark.sql("SELECT nosuch FROM range(3)")

try:
    with kbatch.spark.spark_session("local[2,4]", app_name="retried", conf={"spark.speculation": "true"}) as spark:
        run(spark)
except AnalysisException as error:
    condition = error.getCondition() if hasattr(error, "getCondition") else error.getErrorClass()
    results["error"] = type(error).__name__, condition, str(error)
print(json.dumps(results))
"""


@pytest.fixture(scope="session")
def retried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Write and export while workers are killed or a disk is full, and leave the session with an error.

    Returns the directory of the outputs, and what the process has found.
    """
    directory = tmp_path_factory.mktemp("retried")
    batches = [log_batches.batch(i, [NOW + i * DAY // 300]) for i in range(1000)]
    log_batches.write_segment(directory / "logs" / "t-0", 0, batches)
    noise = Random(1)
    batches = [log_batches.batch(i, [NOW], value=noise.randbytes(10_000)) for i in range(1000)]
    log_batches.write_segment(directory / "large" / "t-0", 0, batches)
    (directory / "failing.py").write_text(FAILING)
    # PySpark takes ``python -c`` for a doctest.
    (directory / "run.py").write_text(RUN)
    paths = os.pathsep.join([str(directory), str(Path(kbatch.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, directory / "run.py", directory],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, json.loads(done.stdout)
