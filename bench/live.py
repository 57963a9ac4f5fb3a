"""Read a topic from a broker: Fetch responses decoded with kbatch, compared with Python's clients on the same records.

``python -m bench.live [--mb 64] [--rounds 3] [--corpus NAME] [--json FILE]`` starts a broker, writes corpora to it, and
lets every client of `bench.consumers` read all of them, each in a fresh process, one after the other: to a count of the
records, and to an Arrow table, whose sums are checked. Times are wall-clock time from creating the client to the last
record, with the garbage collector off; the broker shares the cores. The time for a topic of a few records is
subtracted, because some clients need half a second to start. ``--quick`` runs everything once with few records, to
check the results.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.consumers import CONSUMERS, Connection, Consumer, Topic
from bench.corpora import BASE_TIMESTAMP, Corpus, corpus
from bench.report import live_table
from bench.steps import add_step_arguments, run_fresh

__all__ = ["main"]

NAMES = ("small", "medium", "medium-16k-lz4", "medium-16k-zstd")
PARTITIONS = 4
# Bytes of the small topic, whose time is subtracted.
SMALL = 300_000
STEP_SECONDS = 600


def write_topic(broker: Any, name: str, what: Corpus) -> tuple[Topic, list[int]]:
    """Write the batches of a corpus to the partitions of a topic; return the topic and its sums.

    The broker assigns consecutive offsets, so the sum of offsets differs from the corpus.
    """
    import numpy as np
    from confluent_kafka.admin import AdminClient, NewTopic

    import kbatch
    from tests.broker.reading import wait_for_leaders

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(60)
    wait_for_leaders(broker.bootstrap, [(name, partition) for partition in range(PARTITIONS)])
    batches = kbatch.scan(what.data)
    shares = np.array_split(np.arange(len(batches)), PARTITIONS)
    queues = [deque(zip(batches["position"][s].tolist(), batches["size"][s].tolist(), strict=True)) for s in shares]
    with Connection(broker.bootstrap) as connection:
        while any(queues):
            # A request holds one batch per partition, with base offset 0. The CRC does not cover the base offset.
            heads = {partition: queue.popleft() for partition, queue in enumerate(queues) if queue}
            data = {partition: bytes(8) + what.data[at + 8 : at + size] for partition, (at, size) in heads.items()}
            connection.produce(name, data)
    counts = [int(batches["record_count"][share].sum()) for share in shares]
    sums = what.sums
    offsets = sum(count * (count - 1) // 2 for count in counts)
    timestamps = sums.timestamps + sums.records * BASE_TIMESTAMP
    topic = Topic(broker.bootstrap, name, PARTITIONS, sums.records)
    return topic, [sums.records, offsets, timestamps, sums.key_bytes, sums.value_bytes]


def sums_of(table: Any) -> list[int]:
    """Sum an Arrow table with any binary types: records, offsets, timestamps, bytes of keys, bytes of values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = [pc.sum(pc.binary_length(table[name].cast(pa.large_binary()))).as_py() or 0 for name in ("key", "value")]
    offsets = pc.sum(table["offset"]).as_py()
    # The sum of more than five million current timestamps exceeds int64.
    timestamps = sum(map(int, table["timestamp"].cast(pa.int64()).to_numpy().astype(object)))
    return [len(table), offsets, timestamps, *lengths]


def run_step(order: dict[str, Any]) -> dict[str, Any]:
    """Let one client read a topic to a count and to a table; return seconds without the time for the small topic.

    The small topic is read twice, the first time to warm up.
    """
    import pyarrow as pa

    pa.array([b"warm"], pa.binary()).to_pylist()
    consumer = next(one for one in CONSUMERS if one.name == order["name"])
    small, topic = Topic(**order["small"]), Topic(**order["topic"])
    forms = {"count": consumer.count, "arrow": consumer.arrow}
    sums = None
    seconds: dict[str, float] = {}
    for form, read in forms.items():
        if read is None:
            continue
        times = []
        for one in (small, small, topic):
            gc.collect()
            gc.disable()
            start = time.perf_counter()
            result = read(one)
            times.append(time.perf_counter() - start)
            gc.enable()
        if form == "arrow":
            sums = sums_of(result)
        elif result != topic.records:
            raise AssertionError(f"{consumer.name} counted {result} records, expected {topic.records}")
        seconds |= {form: times[2] - times[1], f"{form}, start": times[1]}
        del result
    return {"seconds": seconds, "sums": sums}


def step(consumer: Consumer, small: Topic, topic: Topic) -> dict[str, Any] | str:
    """Run one client once in a separate process; return its measurements, or the reason why it failed."""
    order = {"name": consumer.name, "small": asdict(small), "topic": asdict(topic)}
    try:
        result, errors = run_fresh("bench.live", order, seconds=STEP_SECONDS, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return f"not finished within {STEP_SECONDS} s"
    return result or ((errors or "").strip().splitlines() or ["failed without a message"])[-1]


def measure(names: list[str], size: int, rounds: int, scratch: Path) -> dict[str, Any]:
    """Write the topics, run all clients in turns, and return the figures."""
    from bench.spark import start_broker

    runs: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in names}
    absent: dict[str, dict[str, str]] = {name: {} for name in names}
    failures: dict[str, dict[str, str]] = {name: {} for name in names}
    facts = {}
    with start_broker(scratch / "broker") as broker:
        for name in names:
            what = corpus(name, size)
            topic, expected = write_topic(broker, name, what)
            small, _ = write_topic(broker, f"{name}-small", corpus(name, SMALL))
            facts[name] = {"records": topic.records - small.records, "stored_bytes": len(what.data)}
            absent[name] = {one.name: reason for one in CONSUMERS if (reason := one.missing(name)) is not None}
            for turn in range(rounds):
                for consumer in CONSUMERS:
                    if (consumer.slow and turn) or consumer.name in failures[name] | absent[name]:
                        continue
                    result = step(consumer, small, topic)
                    if isinstance(result, str):
                        failures[name][consumer.name] = result
                        continue
                    if result["sums"] not in (None, expected):
                        raise AssertionError(f"{name}: {consumer.name} returned {result['sums']}, expected {expected}")
                    runs[name].setdefault(consumer.name, []).append(result["seconds"])
                    print(f"{name}, round {turn + 1}: {consumer.name}: {result['seconds']}", file=sys.stderr)
            corpus.cache_clear()
    rates = {
        name: {
            who: {
                form: facts[name]["records"] / statistics.median(one[form] for one in done)
                for form in ("count", "arrow")
                if form in done[0]
            }
            for who, done in found.items()
        }
        for name, found in runs.items()
    }
    return {
        "rounds": rounds,
        "topics": facts,
        "records_per_second": rates,
        "absent": absent,
        "failures": failures,
        "runs": runs,
    }


def reasons(found: dict[str, dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(f"- {who}: {why}" for some in found.values() for who, why in some.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run all clients and print a table; the exit status is 1 if a client failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--mb", type=float, default=64, help="size of a topic in 10^6 bytes, uncompressed (default: 64)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: 3; slow clients run one")
    parser.add_argument("--corpus", action="append", help=f"may be repeated; default: {', '.join(NAMES)}")
    add_step_arguments(parser)
    options = parser.parse_args(arguments)
    if options.step:
        print(json.dumps(run_step(json.load(sys.stdin))))
        return 0
    names = options.corpus or list(NAMES)
    size, rounds = (500_000, 1) if options.quick else (int(options.mb * 1e6), options.rounds)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="kbatch-live-bench-") as scratch:
        figures = measure(names, size, rounds, Path(scratch))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    failed = reasons(figures["failures"])
    rates = figures["records_per_second"]
    if options.quick:
        result = ["results correct:", *(f"{name}: {', '.join(clients)}" for name, clients in rates.items())]
    else:
        result = [live_table(rates), ""]
    print("\n".join([*result, *reasons(figures["absent"]), *failed]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
