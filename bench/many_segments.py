"""Seconds and memory of planning a scan of very many segments, and of one topic-partition among them.

``python -m bench.many_segments [--partitions 100000] [--segments 10]`` makes a log directory of sparse files in a
temporary directory, plans scans of it, each in a process of its own, and removes it. It fails above the floors of
`FLOORS`, which are those of 10^6 segments in 10^5 partitions.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc

import kbatch

__all__ = ["main"]

# Seconds and bytes.
FLOORS = {"everything": (60.0, 2 << 30), "one partition": (1.0, 2 << 30), "one topic and offsets": (1.0, 2 << 30)}
PARTITIONS_OF_TOPIC = 100
SEGMENT_BYTES, SEGMENT_OFFSETS = 1 << 30, 1_000_000


def make_tree(root: Path, partitions: int, segments: int) -> None:
    """Make directories of sparse segments of 1 GiB with a million offsets each."""
    for number in range(partitions):
        topic, partition = divmod(number, PARTITIONS_OF_TOPIC)
        directory = root / f"topic-{topic:04d}-{partition}"
        directory.mkdir()
        for segment in range(segments):
            path = directory / f"{segment * SEGMENT_OFFSETS:020d}.log"
            with open(path, "wb") as file:
                file.truncate(SEGMENT_BYTES)


def scan_of(root: str, name: str) -> kbatch.Scan:
    """Return the scan with a name of `FLOORS`."""
    scan = kbatch.scan_logs(root)
    topic, partition, offset = pc.field("topic"), pc.field("partition"), pc.field("offset")
    if name == "one partition":
        return scan.filter((topic == "topic-0003") & (partition == 7))
    if name == "one topic and offsets":
        return scan.filter((topic == "topic-0003") & (offset >= SEGMENT_OFFSETS) & (offset < 2 * SEGMENT_OFFSETS))
    return scan


def plan(root: str, name: str) -> None:
    """Plan a scan in this process, and print the seconds and the growth of its memory."""
    scan = scan_of(root, name)
    # Imports are not planning.
    kbatch.scan_logs(Path(__file__).parents[1] / "tests" / "golden" / "logs").explain()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    text = scan.explain()
    seconds = time.perf_counter() - began
    size = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    print(text, file=sys.stderr)
    print(seconds, size)


def main() -> None:
    """Print the figures as rows of a Markdown table; fail above a floor."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--segments", type=int, default=10, help="of each partition")
    parser.add_argument("--plan", nargs=2, metavar=("ROOT", "NAME"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plan:
        plan(*arguments.plan)
        return
    failed = []
    with tempfile.TemporaryDirectory() as root:
        make_tree(Path(root), arguments.partitions, arguments.segments)
        os.sync()
        print("| scan | seconds | MiB |\n|---|---|---|")
        for name, (most_seconds, most_bytes) in FLOORS.items():
            command = [sys.executable, "-m", "bench.many_segments", "--plan", root, name]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            seconds, size = float(output.split()[0]), int(output.split()[1])
            print(f"| {name} | {seconds:.2f} | {size >> 20} |", flush=True)
            if seconds > most_seconds or size > most_bytes:
                failed.append(f"{name}: at most {most_seconds} s and {most_bytes >> 20} MiB")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
