"""Measure what the compression of an export's files costs, and what it saves.

``python -m bench.compression [--rounds 5]`` runs the task of an export in this process, without
Spark: it reads a log, decodes it and writes one Parquet file, for every codec and level in `SETTINGS`. It prints CPU
time and size as Markdown. ``--quick`` runs everything once with few records, to check the results.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.corpora import corpus, corpus_file

__all__ = ["CORPORA", "SETTINGS", "Figure", "main", "measure", "report"]

SETTINGS = ("none", "snappy", "lz4", "zstd:-5", "zstd:-3", "zstd:-1", "zstd:1", "zstd:2", "zstd:3", "gzip:6")
# Events as JSON, records with headers around random bytes, and large random values, which no codec compresses.
CORPORA = ("medium-16k-lz4", "headers", "large")
QUICK_BYTES = 300_000


@dataclass(frozen=True)
class Figure:
    """The cost of one setting: CPU seconds of a task, and the size of its files."""

    seconds: float
    rows: int
    file_bytes: int


def measure(corpus_name: str, size: int | None, rounds: int, scratch: Path) -> dict[str, Figure]:
    """Export a corpus with every setting, in turns; return the medians."""
    from kbatch.log import Log
    from kbatch.plan.planner import plan
    from kbatch.plan.read_options import ReadOptions
    from kbatch.sinks.file_names import FileNames
    from kbatch.sinks.outputs import OutputPlace
    from kbatch.sinks.task import ExportJob, reports_of
    from kbatch.sinks.write_options import WriteOptions

    directory = scratch / f"{corpus_name}-0"
    directory.mkdir()
    shutil.copyfile(corpus_file(corpus_name, size), directory / f"{0:020d}.log")
    options = ReadOptions()
    (splits,) = plan([Log(directory)], options)
    expected = corpus(corpus_name, size).sums.records
    seconds: dict[str, list[float]] = {each: [] for each in SETTINGS}
    sizes: dict[str, int] = {}
    # The first round loads modules and code.
    for turn in range(-1, rounds):
        for setting in SETTINGS[: 1 if turn < 0 else None]:
            with tempfile.TemporaryDirectory(dir=scratch) as out:
                job = ExportJob(options, FileNames(OutputPlace(out), "0a1b2c3d"), WriteOptions(compression=setting))
                gc.collect()
                start = time.process_time()
                (found,) = reports_of(job([(0, splits)]))
                if turn >= 0:
                    seconds[setting].append(time.process_time() - start)
            if found.counts.records != expected:
                sys.exit(f"{corpus_name}, {setting}: {found.counts.records} rows instead of {expected}")
            sizes[setting] = sum(file.file_bytes for file in found.files)
    return {each: Figure(statistics.median(seconds[each]), expected, sizes[each]) for each in SETTINGS}


def report(figures: dict[str, dict[str, Figure]], default: str) -> str:
    """Return the figures as a Markdown table, with a row for each setting."""
    heads = [f"{name}: million rows/s | size" for name in figures]
    lines = [f"| compression | {' | '.join(heads)} |", "|---|" + "---:|" * (2 * len(figures))]
    for setting in SETTINGS:
        cells = []
        for found in figures.values():
            each, plain = found[setting], found["none"]
            cells += [f"{each.rows / each.seconds / 1e6:.2f}", f"{each.file_bytes / plain.file_bytes:.0%}"]
        mark = " (default)" if setting == default else ""
        lines.append(f"| {setting}{mark} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    from kbatch.sinks.write_options import WriteOptions

    parser = argparse.ArgumentParser(prog="python -m bench.compression", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--quick", action="store_true", help="run once with few records, to check the results")
    options = parser.parse_args(arguments)
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in CORPORA:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rounds = 1 if options.quick else options.rounds
            figures[name] = measure(name, QUICK_BYTES if options.quick else None, rounds, Path(scratch))
    print(report(figures, WriteOptions().compression))
    return 0


if __name__ == "__main__":
    sys.exit(main())
