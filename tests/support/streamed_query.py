"""``streamed_query.py MASTER SETTINGS DIRECTORY [--available-now]``: topics of a live cluster to Parquet, by Spark.

SETTINGS are options of the source, as JSON. Below DIRECTORY are the sink's files in ``out``, and the checkpoint in
``state``. SIGTERM stops the query.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

import kbatch.spark

# Killed workers and executors are replaced, and their tasks are repeated.
CONF = {
    "spark.task.maxFailures": "100",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
}


def main(master: str, settings: dict[str, str], directory: Path, available_now: bool) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with kbatch.spark.spark_session(master, app_name="faults", conf=CONF) as spark:
        kbatch.spark.register(spark)
        reader = spark.readStream.format("kbatch").options(**settings)
        writer = reader.load().select("topic", "partition", "offset", "value").writeStream.format("parquet")
        writer = writer.option("path", str(directory / "out")).option("checkpointLocation", str(directory / "state"))
        trigger = {"availableNow": True} if available_now else {"processingTime": "200 milliseconds"}
        query = writer.trigger(**trigger).start()
        while query.isActive and not stopped.wait(0.1):
            pass
        if query.exception() is not None:
            # Python's exception has no class of the cause, which may have no message.
            print(query.exception(), query._jsq.exception().get().cause().toString(), sep="\n", file=sys.stderr)
            sys.exit(1)
        query.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]), "--available-now" in sys.argv)
