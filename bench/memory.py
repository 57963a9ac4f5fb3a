"""Measure the peak memory of iterating a large log in tables of bounded size.

``python -m bench.memory [--gib 4] [--corpus medium] [--max-mib 64]`` writes a log, iterates it in a fresh process,
prints the peak memory of that process, and removes the log.

The steps run in separate processes, started by a process that imports few modules: on Linux, ``ru_maxrss`` of a process
starts with the value of its parent.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["iterate", "main", "read_log", "step", "write_log"]

MIB = 1 << 20


def status(field: str) -> int:
    """Return a field of ``/proc/self/status`` in bytes, or 0 if the file does not exist."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def peak() -> int:
    """Return ``ru_maxrss`` in bytes: the peak resident memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def write_log(directory: Path, corpus_name: str, size: int) -> dict[str, int]:
    """Write a partition directory of about `size` bytes: copies of a corpus at increasing offsets.

    Only the base offsets differ between the copies. The CRC does not cover them.

    Returns
    -------
    dict
        Records, bytes, and the sum of offsets modulo 2**64.
    """
    import numpy as np

    import kbatch
    from bench.corpora import corpus

    made = corpus(corpus_name)
    batches = kbatch.scan(made.data)
    data = np.frombuffer(made.data, np.uint8).copy()
    offset_bytes = batches["position"][:, None] + np.arange(8)
    step = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1
    repeats = max(1, round(size / len(data)))
    with (directory / f"{0:020}.log").open("wb") as log:
        for turn in range(repeats):
            shifted = (batches["base_offset"] + turn * step).astype(">i8")
            data[offset_bytes] = shifted.view(np.uint8).reshape(-1, 8)
            log.write(data)
    records = made.sums.records
    offsets = repeats * made.sums.offsets + records * step * (repeats * (repeats - 1) // 2)
    return {"records": repeats * records, "bytes": repeats * len(data), "offsets": offsets % 2**64}


def read_log(directory: Path, max_bytes: int) -> dict[str, float]:
    """Iterate the log in tables of `max_bytes`; return sums, seconds and memory in bytes."""
    import numpy as np

    import kbatch

    log = kbatch.Log(directory)
    before = peak()
    records = tables = anonymous = offsets = 0
    start = time.perf_counter()
    for table in log.tables(max_bytes=max_bytes):
        records += len(table)
        offsets += int(table.records["offset"].sum(dtype=np.uint64))
        tables += 1
        anonymous = max(anonymous, status("RssAnon"))
    seconds = time.perf_counter() - start
    return {
        "records": records,
        "offsets": offsets % 2**64,
        "tables": tables,
        "seconds": seconds,
        "before": before,
        "after": peak(),
        "anonymous": anonymous,
    }


def step(*arguments: str) -> dict[str, Any]:
    """Run this module with the given arguments; return the JSON that it prints."""
    command = [sys.executable, "-m", "bench.memory", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def iterate(corpus: str, gib: float, max_mib: float = 64, parent: Path | None = None) -> dict[str, Any]:
    """Write a log, iterate it in a fresh process, check the sums, and remove the log.

    Returns
    -------
    dict
        ``corpus``, ``gib``, ``max_bytes``, ``bytes`` of the log, and the result of `read_log`.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="kbatch-memory-") as scratch:
        directory = Path(scratch) / f"bench.{corpus}-0"
        directory.mkdir()
        written = step("--step=write", f"--dir={directory}", f"--corpus={corpus}", f"--gib={gib}")
        read = step("--step=read", f"--dir={directory}", f"--max-mib={max_mib}")
    if (read["records"], read["offsets"]) != (written["records"], written["offsets"]):
        raise AssertionError(f"wrote {written}, read {read}")
    return {"corpus": corpus, "gib": gib, "max_bytes": int(max_mib * MIB), "bytes": written["bytes"]} | read


def main() -> None:
    """Measure the peak memory and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0, help="size of the log (default: 4)")
    parser.add_argument("--corpus", default="medium", help="corpus to fill the log with (default: medium)")
    parser.add_argument("--max-mib", type=float, default=64, help="max_bytes of a table in MiB (default: 64)")
    parser.add_argument("--dir", type=Path, help="directory for the log (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--step", choices=["write", "read"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "write":
        print(json.dumps(write_log(options.dir, options.corpus, int(options.gib * (1 << 30)))))
        return
    if options.step == "read":
        print(json.dumps(read_log(options.dir, int(options.max_mib * MIB))))
        return

    found = iterate(options.corpus, options.gib, options.max_mib, options.dir)
    if options.json:
        print(json.dumps(found))
        return
    print(f"log            {found['bytes'] / MIB:,.0f} MiB, {found['records']:,} records ({options.corpus})")
    print(f"tables         {found['tables']} of at most {options.max_mib:g} MiB")
    print(f"peak before    {found['before'] / MIB:,.0f} MiB (ru_maxrss, kbatch imported, log opened)")
    print(f"peak after     {found['after'] / MIB:,.0f} MiB (ru_maxrss), "
          f"{found['after'] / found['max_bytes']:.2f} times max_bytes")  # fmt: skip
    if found["anonymous"]:
        print(f"own memory     {found['anonymous'] / MIB:,.0f} MiB at most (RssAnon, read after each table)")
    print(f"rate           {found['bytes'] / found['seconds'] / 1e6:,.0f} MB/s, "
          f"{found['records'] / found['seconds'] / 1e6:,.1f} million records/s (wall-clock time)")  # fmt: skip


if __name__ == "__main__":
    main()
