"""CPU seconds of planning a read of very many topic-partitions on Spark, and of handing splits to tasks.

``python -m bench.partitions [--logs 10000] [--splits 100000]`` makes a log directory of hard links to a small log with
transactions, and plans reads of it: in one process, and as kbatch does, in a Spark job (export) or in the tasks (data
source). Then it runs 100 empty tasks, with all splits in their closure and with the splits as elements of an RDD. CPU
seconds include all descendants of this process that still run or have been waited for. Workers that Spark ends without
waiting for them are missing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kbatch.log.selection import choose_logs
from kbatch.plan import planner
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.plan.split import Split

__all__ = ["main"]

MASTER = "local[2]"
# The timestamp in the middle of the log.
MIDDLE = 1_700_000_021_998
SOURCE = Path(__file__).parents[1] / "tests" / "golden" / "logs" / "txn-0"
# ext4 refuses more than 65,000 links of a file.
MOST_LINKS = 50_000
ResultT = TypeVar("ResultT")


def make_logs(root: Path, count: int, segments: int | None = None) -> None:
    """Make topic-partitions that are hard links of a few of them, with all segments of the log or the first ones."""
    chosen = sorted(path.stem for path in SOURCE.glob("*.log"))[:segments]
    names = [path.name for path in SOURCE.iterdir() if path.stem in chosen and path.suffix != ".jsonl"]
    for number in range(count):
        directory = root / f"many-{number}"
        directory.mkdir()
        first = number - number % MOST_LINKS
        for name in names:
            if number > first:
                os.link(root / f"many-{first}" / name, directory / name)
            else:
                (directory / name).write_bytes((SOURCE / name).read_bytes())


def tree_cpu() -> float:
    """Return the CPU seconds of this process and its descendants, including those that have ended."""
    ticks: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks[int(entry)] = (int(fields[1]), sum(map(int, fields[11:15])))
    total = 0
    for process, (_, cpu) in ticks.items():
        ancestor = process
        while ancestor != os.getpid() and ancestor in ticks:
            ancestor = ticks[ancestor][0]
        total += cpu if ancestor == os.getpid() else 0
    return total / os.sysconf("SC_CLK_TCK")


def measured(name: str, work: Callable[[], ResultT]) -> ResultT:
    """Print the CPU seconds of all processes and of this one, and the seconds that passed."""
    began, own, tree = time.monotonic(), time.process_time(), tree_cpu()
    result = work()
    seconds, own, tree = time.monotonic() - began, time.process_time() - own, tree_cpu() - tree
    print(f"| {name} | {tree:.1f} | {own:.1f} | {seconds:.1f} |", flush=True)
    return result


def plan(spark: Any, root: Path, name: str, options: ReadOptions) -> None:
    """Plan the same reads in one process and in parallel."""
    from kbatch.spark.datasource import KbatchReader
    from kbatch.spark.export_job import SparkExecutor

    logs = choose_logs([str(root)], options.selection, options.storage)
    starts = [None] * len(logs)
    mapper = SparkExecutor(spark).apply
    one = measured(f"{name}, export, one process", lambda: planner.plan_reads(logs, options, starts))
    job = measured(f"{name}, export, Spark job", lambda: planner.plan_reads(logs, options, starts, mapper=mapper))
    assert [len(read.splits) for read in job] == [len(read.splits) for read in one]
    reader = KbatchReader([str(root)], options, ("offset",))
    parallel, planner.MANY_LOGS = planner.MANY_LOGS, len(logs) + 1
    before = measured(f"{name}, data source, planned in one process", reader.partitions)
    planner.MANY_LOGS = parallel
    after = measured(f"{name}, data source, planned by the tasks", reader.partitions)
    first = measured(f"{name}, data source, tasks of the former", lambda: rows(spark, reader, before))
    second = measured(f"{name}, data source, tasks of the latter", lambda: rows(spark, reader, after))
    assert first == second > len(logs)


def rows(spark: Any, reader: Any, partitions: Sequence[Any]) -> int:
    """Read partitions in tasks, as Spark's data source does, and count the rows."""
    parts = spark.sparkContext.parallelize(partitions, min(len(partitions), 64))
    return int(parts.map(lambda part: sum(batch.num_rows for batch in reader.read(part))).sum())


def hand_over(spark: Any, count: int) -> None:
    """Run 100 empty tasks for which `count` splits are planned."""
    path = "/data/kafka/topic-with-a-name-{}/00000000000000000000.log"
    splits = [
        (Split(path.format(i), 0, 1 << 27, 1 << 30, False, "topic-with-a-name", i, None, None, None),)
        for i in range(count)
    ]
    context = spark.sparkContext
    numbers = context.parallelize(range(100), 100)
    measured(f"{count:,} splits in the closure of 100 tasks", lambda: numbers.map(lambda i: len(splits[i])).sum())
    measured(f"{count:,} splits as elements of 100 tasks", lambda: context.parallelize(splits, 100).map(len).sum())


def main() -> None:
    """Print the figures as rows of a Markdown table."""
    from kbatch.spark import spark_session

    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=10_000, help="default: 10,000")
    parser.add_argument("--splits", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--dir", type=Path, help="directory for the logs (default: the system's temporary directory)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.dir) as root,
        spark_session(MASTER, app_name="kbatch planning") as spark,
    ):
        make_logs(Path(root), options.logs)
        spark.sparkContext.parallelize(range(4), 4).map(lambda i: i + 1).sum()
        print("| step | CPU s, all processes | CPU s, this process | s |\n|---|---:|---:|---:|", flush=True)
        plan(spark, Path(root), "read_committed", ReadOptions(isolation="read_committed"))
        plan(spark, Path(root), "startingTimestamp", ReadOptions(starting=Bound(timestamp=MIDDLE)))
        hand_over(spark, options.splits)


if __name__ == "__main__":
    main()
