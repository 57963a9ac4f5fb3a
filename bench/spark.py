"""Read Kafka's records on Spark: kbatch, Spark's own Kafka source, and a client library in mapPartitions.

``python -m bench.spark [--records 8000000] [--rounds 3] [--only NAME ...] [--json FILE] [--check]`` starts a real
broker, produces a topic, and lets every contestant of `bench.contestants` read the same records, each in a fresh driver
process with ``local[2]``, one after the other: from the broker, or from the broker's log directory while it is down. It
checks the output and prints rows per second and ratios as Markdown. ``--quick`` runs everything once with few records,
to check the results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.contestants import COMPRESSION, CONTESTANTS, EXPORT, KAFKA, LIVE_LOCAL, LIVE_SPARK, Input, Sums
from bench.steps import add_step_arguments, run_fresh

__all__ = ["main"]

MASTER = "local[2]"
PARTITIONS = 8
# Lower bounds for the rows per second of exports to Parquet, divided by Spark's own source.
FLOORS = {EXPORT: 4.0, LIVE_SPARK: 4.0, LIVE_LOCAL: 6.0}
STEP_SECONDS = 3600

# The settings of the tests' broker save memory and start-up time; these make it fast.
BROKER_JVM = ["-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-Djava.awt.headless=true"]
BROKER_SETTINGS = {"log.index.interval.bytes": "4096", "num.network.threads": "3", "num.io.threads": "8"}


def start_broker(directory: Path) -> Any:
    from tests.broker.server import JVM, SETTINGS, Broker

    logging = [option for option in JVM if "slf4j" in option]
    return Broker(directory, jvm=[*BROKER_JVM, *logging], settings={**SETTINGS, **BROKER_SETTINGS})


def produce(broker: Any, topic: str, records: int, codec: str) -> Input:
    """Write a topic as librdkafka does by default, but with a codec and larger batches."""
    import confluent_kafka
    import numpy as np
    from confluent_kafka.admin import AdminClient, NewTopic

    from bench.corpora import SEED, json_columns

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(60)
    settings = {"compression.type": codec, "enable.idempotence": True, "linger.ms": 50, "log_level": 2}
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, **settings})
    rng = np.random.default_rng(SEED)
    counts = [records // PARTITIONS + (partition < records % PARTITIONS) for partition in range(PARTITIONS)]
    key_bytes = value_bytes = 0
    for partition, count in enumerate(counts):
        columns = json_columns(rng, count)
        key_bytes += int(columns.keys.lengths.sum())
        value_bytes += int(columns.values.lengths.sum())
        rows = zip(columns.keys.strings(), columns.values.strings(), columns.timestamps.tolist(), strict=True)
        for key, value, timestamp in rows:
            while True:
                try:
                    producer.produce(topic, value, key, partition, timestamp=timestamp)
                    break
                except BufferError:
                    producer.poll(0.05)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"the broker did not accept {left} records within two minutes")
    sums = Sums(records, sum(count * (count - 1) // 2 for count in counts), key_bytes, value_bytes)
    return Input(str(broker.log_dir), topic, tuple(range(PARTITIONS)), broker.bootstrap, sums)


def step(name: str, warm: Input | None, given: Input, scratch: Path) -> dict[str, Any]:
    """Run one contestant once in a separate process; return its seconds by sink."""
    order = {"name": name, "warm": warm and asdict(warm), "given": asdict(given), "scratch": str(scratch)}
    result, _ = run_fresh("bench.spark", order, seconds=STEP_SECONDS)
    if result is None:
        sys.exit(f"{name} failed")
    return result


def run_step(order: dict[str, Any]) -> dict[str, Any]:
    """Start Spark, run the contestant on the small topic to warm up, and measure it on the large one."""
    import warnings

    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    from kbatch.spark import spark_session

    contestant = CONTESTANTS[order["name"]]
    conf = {"spark.driver.memory": "2g"}
    if contestant.broker:
        from tests.broker.server import find_jars

        jars = find_jars(Path(__file__).with_name("spark-kafka.xml"))
        conf["spark.jars"] = ",".join(sorted(map(str, jars.glob("*.jar"))))
    warm, given = (
        each and Input(**{**each, "sums": Sums(**each["sums"]), "partitions": tuple(each["partitions"])})
        for each in (order["warm"], order["given"])
    )
    start = time.perf_counter()
    with spark_session(MASTER, app_name="kbatch benchmark", conf=conf) as spark:
        started = time.perf_counter() - start
        if warm is not None:
            contestant.run(spark, warm, Path(order["scratch"]))
        return {"start": started, "seconds": contestant.run(spark, given, Path(order["scratch"]))}


def measure(
    names: Sequence[str], records: int, rounds: int, codec: str, scratch: Path, *, warming: int = 500_000
) -> dict[str, Any]:
    """Produce, run the contestants in turns, and return the figures."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    broker = start_broker(scratch / "broker")
    with broker:
        warm = produce(broker, "warm", warming, codec) if warming else None
        given = produce(broker, "events", records, codec)
        fewer = produce(broker, "fewer", records // 8, codec)
    stored = sum(os.path.getsize(path) for path in given.segments())
    for turn in range(rounds):
        for name in names:
            contestant = CONTESTANTS[name]
            if contestant.slow and turn:
                continue
            print(f"round {turn + 1} of {rounds}: {name} ...", file=sys.stderr, flush=True)
            topic = fewer if contestant.slow else given
            if contestant.broker:
                with broker:
                    result = step(name, warm, topic, scratch)
            else:
                result = step(name, warm, topic, scratch)
            runs[name].append(result)
            print(f"  {json.dumps(result)}", file=sys.stderr, flush=True)
    rates = {
        name: {
            sink: topic.sums.records / statistics.median(run["seconds"][sink] for run in found)
            for sink in CONTESTANTS[name].sinks
        }
        for name, found in runs.items()
        for topic in (fewer if CONTESTANTS[name].slow else given,)
    }
    start = statistics.median(run["start"] for found in runs.values() for run in found)
    return {
        "records": records,
        "stored_bytes": stored,
        "value_bytes": given.sums.value_bytes,
        "codec": codec,
        "parquet_compression": COMPRESSION,
        "master": MASTER,
        "partitions": PARTITIONS,
        "rounds": rounds,
        "spark_start_seconds": start,
        "rows_per_second": rates,
        "runs": runs,
    }


def ratios(rates: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the ratios that the floors bound, of those contestants that ran."""
    return {name: rates[name]["parquet"] / rates[KAFKA]["parquet"] for name in FLOORS if name in rates}


def report(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    rates = figures["rows_per_second"]
    kafka = rates[KAFKA]["parquet"]
    once = ", ".join(name for name, contestant in CONTESTANTS.items() if contestant.slow)
    lines = [
        f"{figures['records']:,} records in {figures['partitions']} partitions, {figures['stored_bytes'] / 1e6:,.0f} "
        f"MB stored ({figures['codec']}); {figures['master']}; Parquet with {figures['parquet_compression']}. Medians "
        f"of {figures['rounds']} rounds ({once}: one, on an eighth of the records), each in a fresh driver that has "
        f"run on a smaller topic before; without Spark's start of {figures['spark_start_seconds']:.1f} s.",
        "",
        "| rows/s | Parquet | this / Spark's Kafka source | count |",
        "|---|---:|---:|---:|",
    ]
    for name, found in rates.items():
        cells = [f"{found[sink]:,.0f}" if sink in found else "" for sink in ("parquet", "count")]
        cells.insert(1, f"{found['parquet'] / kafka:.2f}" if "parquet" in found and name != KAFKA else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    for name, found in ratios(rates).items():
        state = "met" if found >= FLOORS[name] else "**not met**"
        lines.append(f"- Floor: {name} / {KAFKA}, Parquet >= {FLOORS[name]:g}: {found:.2f}, {state}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run all contestants; with ``--check`` the exit status is 1 if a floor is not met."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=8_000_000, help="default: 8,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, metavar="NAME", help="only these contestants")
    parser.add_argument("--codec", default="lz4", help="codec of the batches in the log (default: lz4)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a floor is not met")
    add_step_arguments(parser)
    options = parser.parse_args(arguments)
    if options.step:
        print(json.dumps(run_step(json.load(sys.stdin))))
        return 0
    names = options.only or list(CONTESTANTS)
    records, rounds = (20_000, 1) if options.quick else (options.records, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="kbatch-spark-bench-") as scratch:
        if options.quick:
            measure(names, records, rounds, options.codec, Path(scratch), warming=0)
            print(f"{', '.join(names)}: all read the {records:,} records")
            return 0
        figures = measure(names, records, rounds, options.codec, Path(scratch))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    print(report(figures))
    found = ratios(figures["rows_per_second"])
    return int(options.check and any(found[name] < FLOORS[name] for name in found))


if __name__ == "__main__":
    sys.exit(main())
