"""A key in 10 GiB with and without the key index, each search in a new process.

Run as ``python -m bench.keys --index``; with ``--check`` it fails if a search with the index takes a second or more,
with ``--quick`` the segments are small, and ``--directory DIR`` keeps the log for the next run. The log has ten closed
segments of 1 GiB: uncompressed records of 200 bytes with 4.6 million different keys, which each segment has once. It
takes 10 GiB of disk. The times are of the whole process: the start of Python and imports too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["main", "write_segments"]

SEGMENTS = 10
SIZE, QUICK_SIZE = 1 << 30, 16 << 20
# Bytes of a record with its key, and of a batch.
RECORD_BYTES, BATCH_BYTES = 233, 16 << 10
ROUNDS = 3

SEARCH = """
import sys, kbatch
path, key, index = sys.argv[1:]
found = kbatch.Log(path).to_arrow(key=key, index=index or False)
print(found.num_rows)
"""


class Taken(NamedTuple):
    """The seconds of a process, and what it printed."""

    cpu: float
    elapsed: float
    out: str


def write_segments(directory: Path, size: int) -> int:
    """Write the segments; return the number of keys. Only base offsets differ, which no checksum covers."""
    import numpy as np
    import pyarrow as pa

    import kbatch

    count, step = size // RECORD_BYTES, 1 << 16
    rng = np.random.default_rng(1)
    parts = []
    for first in range(0, count, step):
        many = min(step, count - first)
        keys = pa.array([b"user-%09d" % number for number in range(first, first + many)], pa.binary())
        noise = pa.py_buffer(rng.integers(32, 127, 200 * many, np.uint8))
        values = pa.Array.from_buffers(pa.binary(200), many, [None, noise])
        times = 1_700_000_000_000 + np.arange(first, first + many)
        parts.append(
            kbatch.encode(
                values.cast(pa.binary()), keys=keys, timestamps=times, base_offset=first, batch_size=BATCH_BYTES
            )
        )
    data = np.frombuffer(b"".join(parts), np.uint8).copy()
    parts.clear()
    batches = kbatch.scan(data)
    offset_bytes = batches["position"][:, None] + np.arange(8)
    for number in range(SEGMENTS):
        shifted = (batches["base_offset"] + number * count).astype(">i8")
        data[offset_bytes] = shifted.view(np.uint8).reshape(-1, 8)
        (directory / f"{number * count:020}.log").write_bytes(data)
    (directory / f"{SEGMENTS * count:020}.log").touch()
    return count


def in_new_process(*command: str) -> Taken:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    out = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True, text=True).stdout
    elapsed, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed, out)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--directory", type=Path, help="where the log is, or is written and kept")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kbatch-key-index-") as scratch:
        root = given.directory or Path(scratch)
        log, index = root / "topic-0", root / "index"
        size = QUICK_SIZE if given.quick else SIZE
        count = size // RECORD_BYTES
        if not log.exists():
            log.mkdir(parents=True)
            write_segments(log, size)
        return _measure(os.fspath(log), os.fspath(index), count, check=given.check)


def _measure(log: str, index: str, count: int, *, check: bool) -> int:
    build = in_new_process("-m", "kbatch", "index", log, "--index", index, "--json")
    (about,) = json.loads(build.out)["logs"]
    indexed = about["segment_bytes"]
    print(
        f"{SEGMENTS} segments of {indexed / SEGMENTS / (1 << 20):,.0f} MiB; the index has {about['bytes']:,} bytes, "
        f"{about['bytes'] / indexed:.2%} of them, {about['bytes'] / about['keys']:.2f} for each key of a block"
    )
    if about["written"]:
        rate = indexed / build.cpu / (1 << 30)
        print(f"build: {build.cpu:.2f} s of CPU, {build.elapsed:.2f} s elapsed; {rate:.2f} GiB for a second of CPU")
    slow = False
    for what, key, rows in (("a key of each segment", f"user-{count // 2:09}", SEGMENTS), ("no such key", "absent", 0)):
        for name, given in (("with the index", index), ("without it", "")):
            taken = [in_new_process("-c", SEARCH, log, key, given) for _ in range(ROUNDS if given else 1)]
            if any(int(each.out) != rows for each in taken):
                raise AssertionError(f"{what} {name}: found {taken[0].out.strip()} records, expected {rows}")
            cpu, elapsed = (min(getattr(each, name) for each in taken) for name in ("cpu", "elapsed"))
            print(f"{what:<22} {name:<15} {cpu:7.3f} s of CPU {elapsed:7.3f} s elapsed")
            slow |= bool(given) and elapsed >= 1
    if slow and check:
        print("a search with the index takes a second or more", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
