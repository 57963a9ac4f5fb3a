"""A backfill: all records of a topic, from its tiered storage and by Fetch, with the processor time of the broker.

``python -m bench.backfill [--megabytes 2048] [--rounds 3] [--json FILE]`` starts a broker with tiered storage, writes a
topic, waits until its closed segments are in the tier, and reads the topic in turns: all by Fetch, and with the tier as
history; by a scan into Arrow, and by an export to Parquet with the local engine. Each read runs in a fresh process, and
its sums are checked. It prints the seconds, and the processor time of the broker, as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.broker_topics import Topic, write_topic
from bench.corpora import corpus
from bench.steps import add_step_arguments, run_fresh

__all__ = ["main"]

PARTITIONS = 4
CORPUS = "medium-16k-lz4"
SEGMENT_BYTES = 16 << 20
UPLOAD_SECONDS = 600
WAYS = {
    "scan to Arrow, by Fetch": ("scan", False),
    "scan to Arrow, tier, then Fetch": ("scan", True),
    "export to Parquet, by Fetch": ("export", False),
    "export to Parquet, tier, then Fetch": ("export", True),
}


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_uploads(tier: Path, log_dir: Path, topic: Topic) -> int:
    """Wait until all closed segments are in the tier; return their bytes."""
    deadline = time.monotonic() + UPLOAD_SECONDS
    while True:
        closed = sum(len(list(log_dir.glob(f"{topic.name}-{each}/*.log"))) - 1 for each in range(topic.partitions))
        # It is the last file of a segment that is uploaded.
        if len(list(tier.glob(f"{topic.name}-*/*.leader_epoch_checkpoint"))) >= closed:
            return sum(path.stat().st_size for path in tier.glob(f"{topic.name}-*/*.log"))
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {UPLOAD_SECONDS} s, not all of {closed} segments are in the tier")
        time.sleep(1)


def run_step(order: dict[str, Any]) -> dict[str, Any]:
    """Read the topic and return the seconds and the sums."""
    import pyarrow.dataset

    import kbatch
    from kbatch.live import ClientSettings, ClusterSource

    start, cpu = time.perf_counter(), time.process_time()
    source = ClusterSource(ClientSettings.of(bootstrap_servers=order["bootstrap"]), history=order["history"])
    if order["kind"] == "scan":
        sums = sums_of(kbatch.scan_logs(source, topics=order["topic"], columns=["offset", "key", "value"]).reader())
        origins = [list(each) for each in source.origins] if order["history"] else []
        return {
            "seconds": time.perf_counter() - start,
            "cpu": time.process_time() - cpu,
            "sums": sums,
            "origins": origins,
        }
    with tempfile.TemporaryDirectory(dir=order["scratch"]) as out:
        summary = kbatch.export(source, out, topics=[order["topic"]], engine="local")
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        sums = sums_of(pyarrow.dataset.dataset(out).to_batches(columns=["offset", "value"]))
    origins = [["history", summary.history_records, summary.history_bytes]]
    return {"seconds": seconds, "cpu": used, "sums": sums, "origins": origins}


def sums_of(batches: Iterable[Any]) -> list[int]:
    """Return the number of records, and the sums of offsets and of the sizes of values."""
    import pyarrow.compute as pc

    records = offsets = size = 0
    for batch in batches:
        records += batch.num_rows
        offsets += pc.sum(batch["offset"]).as_py() or 0
        size += pc.sum(pc.binary_length(batch["value"])).as_py() or 0
    return [records, offsets, size]


def measure(megabytes: int, rounds: int, scratch: Path) -> dict[str, Any]:
    """Write the topic and scan it in turns; return the figures."""
    from bench.spark import BROKER_JVM, BROKER_SETTINGS
    from tests.broker.server import JVM, TIERED_POM, Broker, tiered_settings

    what = corpus(CORPUS)
    copies = max(1, round((megabytes << 20) / len(what.data)))
    options = [option for option in JVM if "slf4j" in option]
    settings = {**tiered_settings(scratch / "tier"), **BROKER_SETTINGS}
    tier = scratch / "tier" / "kafka-tiered-storage"
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    with Broker(scratch / "broker", jvm=[*BROKER_JVM, *options], settings=settings, pom=TIERED_POM) as broker:
        config = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES)}
        topic = write_topic(broker.bootstrap, "events", what, PARTITIONS, copies, config)
        uploaded = wait_for_uploads(tier, broker.log_dir, topic)
        if not uploaded:
            raise RuntimeError("no segment is in the tier; the topic is too small")
        expected = [topic.sums[0], topic.sums[1], topic.sums[4]]
        assert broker._process is not None
        pid = broker._process.pid
        # The first round compiles the broker's code, and is not counted.
        for turn in range(rounds + 1):
            for name, (kind, with_tier) in WAYS.items():
                order = {
                    "kind": kind,
                    "bootstrap": broker.bootstrap,
                    "topic": topic.name,
                    "history": str(tier) if with_tier else None,
                    "scratch": str(scratch),
                }
                before = processor_seconds(pid)
                found, _ = run_fresh("bench.backfill", order, seconds=3600)
                if found is None or found["sums"] != expected:
                    raise AssertionError(f"{name}: read {found and found['sums']}, the topic has {expected}")
                found["broker_cpu"] = processor_seconds(pid) - before
                if turn:
                    runs[name].append(found)
                print(f"round {turn} of {rounds}: {name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    stored = copies * len(what.data)
    return {"corpus": CORPUS, "stored_bytes": stored, "tier_bytes": uploaded, "records": topic.records, "runs": runs}


def report(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    rounds = len(next(iter(figures["runs"].values())))
    lines = [
        f"{figures['records']:,} records in {PARTITIONS} partitions, {figures['stored_bytes'] / 1e6:,.0f} MB stored "
        f"({figures['corpus']}), of which {figures['tier_bytes'] / 1e6:,.0f} MB are in the tier; medians of {rounds} "
        "rounds, each in a fresh process",
        "",
        "| read | seconds | processor seconds of kbatch | of the broker |",
        "|---|---:|---:|---:|",
    ]
    for name, runs in figures["runs"].items():
        cells = [statistics.median(run[each] for run in runs) for each in ("seconds", "cpu", "broker_cpu")]
        lines.append(f"| {name} | {' | '.join(f'{each:.2f}' for each in cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure all ways."""
    parser = argparse.ArgumentParser(prog="python -m bench.backfill", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=2048, help="stored bytes of the topic, in MiB (default: 2048)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    add_step_arguments(parser)
    options = parser.parse_args(arguments)
    if options.step:
        print(json.dumps(run_step(json.load(sys.stdin))))
        return 0
    megabytes, rounds = (200, 1) if options.quick else (options.megabytes, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="kbatch-backfill-bench-") as scratch:
        figures = measure(megabytes, rounds, Path(scratch))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    print(report(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
