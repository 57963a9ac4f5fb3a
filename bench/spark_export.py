"""Rate of the main job: a broker's log directory to Parquet on Spark.

``python -m bench.spark_export [--gib 1] [--partitions 4] [--corpus medium-1m-lz4] [--master local[2]]`` writes the logs,
exports them, compares the counts, prints the rate by the clock (Spark's start included, and once more in the session
that then runs), and removes everything.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench.memory import write_log
from kbatch.spark.export import export

__all__ = ["main"]


def main() -> None:
    """Write, export twice, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_export", description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="stored bytes of all partitions (default: 1)")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--corpus", default="medium-1m-lz4")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kbatch-export-") as parent:
        root = Path(parent) / "logs"
        records = stored = 0
        for partition in range(options.partitions):
            directory = root / f"bench.{options.corpus}-{partition}"
            directory.mkdir(parents=True)
            written = write_log(directory, options.corpus, int(options.gib * (1 << 30) / options.partitions))
            records += written["records"]
            stored += written["bytes"]
        for turn in ("with Spark's start", "in the same process again"):
            start = time.perf_counter()
            summary = export(root, Path(parent) / turn.replace(" ", "-"), master=options.master)
            seconds = time.perf_counter() - start
            if summary.records != records:
                sys.exit(f"wrong: wrote {records} records, exported {summary.records}")
            print(
                f"{records:,} records, {stored / 1e6:,.0f} MB stored, {seconds:.1f} s {turn}: "
                f"{records / seconds:,.0f} records/s, {stored / seconds / 1e6:,.0f} MB/s"
            )


if __name__ == "__main__":
    main()
