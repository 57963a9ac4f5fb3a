"""Rate of the main job: a broker's log directory to Parquet on Spark.

``python -m bench.spark_export [--gib 1] [--partitions 4] [--corpus medium-1m-lz4] [--master local[2]]`` writes the
logs, exports them, compares the counts, prints the rate by the clock, and removes everything.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.memory import write_log
from kbatch.spark.export import export

__all__ = ["main"]


def main() -> None:
    """Write, export, compare, print."""
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
        summary = export(root, Path(parent) / "out", master=options.master)
    if summary.records != records:
        sys.exit(f"wrong: wrote {records} records, exported {summary.records}")
    print(
        f"{records:,} records, {stored / 1e6:,.0f} MB stored, {summary.seconds:.1f} s "
        f"after {summary.start_seconds:.1f} s of starting Spark: "
        f"{records / summary.seconds:,.0f} records/s, {stored / summary.seconds / 1e6:,.0f} MB/s"
    )


if __name__ == "__main__":
    main()
