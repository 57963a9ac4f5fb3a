"""The engines of an export, local and Spark, on the same topic: with their start, in steady state, and with values.

``python -m bench.engines [--rounds 3] [--megabytes 200 1000] [--json FILE] [--check]`` writes two log directories and
exports them to Parquet with both engines in turns, each in a fresh process on all processors. It prints the seconds and
their ratio, and the largest resident memory of the local engine, as Markdown.

- *with start*: the command line, from Enter to the prompt, for a log directory of 200 MB in lz4;
- *steady*: `kbatch.export` in a process that has exported before, with its session, if it has one, still active;
- *days*: the command line with ``--values json --by-day``, for 1 GB of JSON before compression;
- *days, steady*: the same by `kbatch.export`, as *steady*.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.corpora import SEED, json_columns
from bench.steps import add_step_arguments, run_fresh

__all__ = ["main"]

ENGINES = ("spark", "local")
MASTER = "local[*]"
PARTITIONS = 4
# Records of a partition that are drawn once and repeated: drawing takes longer than encoding.
DRAWN = 100_000
BATCH = 500
# About the bytes of a record in a log of lz4, and of its value.
STORED, VALUE = 47.5, 108
DAYS = 4
STEP_SECONDS = 3600
# How many times as fast as Spark the local engine is at least.
FLOORS = {"with start": 5.0, "steady": 1.0, "days": 1.5, "days, steady": 1.0}
# The most memory of the local engine: of the process, and row groups for each thread.
PROCESS_BYTES, GROUPS, GROUP_BYTES = 200 << 20, 3.5, 128 << 20


def write_logs(root: Path, records: int) -> int:
    """Write a topic of events in JSON, of some days; return the stored bytes."""
    import kbatch
    from kbatch.log import LogWriter

    columns = json_columns(np.random.default_rng(SEED), DRAWN)
    keys, values = list(columns.keys.strings()), list(columns.values.strings())
    each = records // PARTITIONS
    root.mkdir()
    begin, step = int(columns.timestamps[0]), DAYS * 86_400_000 / each
    for partition in range(PARTITIONS):
        with LogWriter(root / f"events-{partition}", segment_bytes="256m") as writer:
            for first in range(0, each, BATCH):
                rows = slice(first % DRAWN, first % DRAWN + BATCH)
                times = begin + ((first + np.arange(BATCH)) * step).astype(np.int64)
                batch = kbatch.encode(values[rows], keys=keys[rows], base_offset=first, timestamps=times, codec="lz4")
                writer.append(batch)
    return sum(path.stat().st_size for path in root.rglob("*.log"))


def run_step(order: dict[str, Any]) -> dict[str, Any]:
    """Export with one engine in this process, after a run on a small topic."""
    import kbatch

    engine, options = order["engine"], order["options"]
    arguments: dict[str, Any] = {**options, "engine": engine}
    if engine == "local":
        return export_twice(order, arguments, kbatch)
    from kbatch.spark import spark_session

    with spark_session(MASTER, app_name="kbatch benchmark", conf={"spark.driver.memory": "2g"}):
        return export_twice(order, arguments, kbatch)


def export_twice(order: dict[str, Any], arguments: dict[str, Any], kbatch: Any) -> dict[str, Any]:
    out = Path(order["out"])
    kbatch.export(order["warm"], out / "warm", **arguments)
    os.sync()
    began = time.perf_counter()
    summary = kbatch.export(order["logs"], out / "measured", **arguments)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "records": summary.records}


def with_start(logs: Path, out: Path, engine: str, *flags: str) -> dict[str, Any]:
    """Run the command line in a process of its own; return also its CPU seconds and largest resident bytes."""
    command = [sys.executable, "-m", "kbatch", "export", str(logs), str(out / "measured"), "--engine", engine, *flags]
    os.sync()
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen([*command, "--json"], stdout=output, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{engine} failed with status {process.returncode}")
        output.seek(0)
        records = json.load(output)["records"]
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss << 10
    return {"seconds": seconds, "cpu": cpu, "peak": peak, "records": records}


def steady(logs: Path, warm: Path, out: Path, engine: str, options: dict[str, Any]) -> dict[str, Any]:
    """Export in a fresh process that has exported before."""
    order = {"logs": str(logs), "warm": str(warm), "out": str(out), "engine": engine, "options": options}
    result, error = run_fresh("bench.engines", order, seconds=STEP_SECONDS, stderr=subprocess.PIPE)
    if result is None:
        sys.exit(f"{engine} failed:\n{error}")
    return result


def measure(rounds: int, megabytes: tuple[int, int], scratch: Path) -> dict[str, Any]:
    """Write the logs, run the engines in turns, and return the figures."""
    warm, small, large = (scratch / name for name in ("warm", "small", "large"))
    write_logs(warm, PARTITIONS * 10_000)
    stored = {
        "small": write_logs(small, int(megabytes[0] * 1e6 / STORED)),
        "large": write_logs(large, int(megabytes[1] * 1e6 / VALUE)),
    }
    days = {"values": "json", "by_day": True}
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {name: {each: [] for each in ENGINES} for name in FLOORS}
    for _ in range(rounds):
        for engine in ENGINES:
            for name, run in (
                ("with start", lambda out, engine=engine: with_start(small, out, engine)),
                ("steady", lambda out, engine=engine: steady(small, warm, out, engine, {})),
                ("days", lambda out, engine=engine: with_start(large, out, engine, "--values", "json", "--by-day")),
                ("days, steady", lambda out, engine=engine: steady(large, warm, out, engine, days)),
            ):
                out = scratch / "out"
                out.mkdir()
                result = run(out)
                shutil.rmtree(out)
                runs[name][engine].append(result)
                print(f"{name}, {engine}: {json.dumps(result)}", file=sys.stderr, flush=True)
    return {"rounds": rounds, "stored": stored, "processors": os.cpu_count(), "runs": runs}


def report(figures: dict[str, Any]) -> tuple[str, bool]:
    """Return the figures as Markdown, and whether they are within the floors."""
    met = True
    lines = [
        f"{figures['stored']['small'] / 1e6:,.0f} MB, and {figures['stored']['large'] / 1e6:,.0f} MB for days, stored "
        f"in lz4; {figures['processors']} processors; medians of {figures['rounds']} rounds.",
        "",
        "| export | records | Spark, s | local, s | ratio | floor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, floor in FLOORS.items():
        seconds = {
            engine: statistics.median(run["seconds"] for run in found)
            for engine, found in figures["runs"][name].items()
        }
        ratio = seconds["spark"] / seconds["local"]
        met = met and ratio >= floor
        records = figures["runs"][name]["local"][0]["records"]
        lines.append(
            f"| {name} | {records:,} | {seconds['spark']:.2f} | {seconds['local']:.2f} | {ratio:.2f} | {floor:g} |"
        )
    runs = [*figures["runs"]["with start"]["local"], *figures["runs"]["days"]["local"]]
    peak = max(run["peak"] for run in runs)
    ceiling = PROCESS_BYTES + int(figures["processors"] * GROUPS * GROUP_BYTES)
    lines += ["", f"Memory of the local engine: {peak >> 20:,} MiB, at most {ceiling >> 20:,}"]
    return "\n".join(lines), met and peak <= ceiling


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; with ``--check`` fail below a floor."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, nargs=2, default=(200, 1000), help="of both logs (default: 200 1000)")
    parser.add_argument("--check", action="store_true", help="fail below a floor")
    add_step_arguments(parser)
    options = parser.parse_args(arguments)
    if options.step:
        print(json.dumps(run_step(json.load(sys.stdin))))
        return 0
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        megabytes = (2, 10) if options.quick else tuple(options.megabytes)
        figures = measure(1 if options.quick else options.rounds, megabytes, Path(scratch))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    text, met = report(figures)
    print(text)
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
