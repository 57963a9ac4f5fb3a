"""All records of a key, each search in a new process: kbatch, and a loop over aiokafka's records, in turns.

Run as ``python -m bench.keys``; with ``--check`` it fails if kbatch takes longer than the loop, with ``--quick`` the
log is small, and with ``--index`` it runs `bench.key_index` instead. The log has 1.66 million records of 128 bytes,
compressed with lz4. The clock is the CPU time of the whole process: the start of Python, imports, and the first pass
over the log, for which all memory is new. A second search in the same process shows what only the first one pays.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

CORPUS = "medium-16k-lz4"
# Uncompressed bytes.
SIZE, QUICK_SIZE = 212_000_000, 4_000_000
ROUNDS = 7
AIOKAFKA = "aiokafka, a loop"
# glibc adapts these thresholds to what a process has freed before. By chance, the loop over aiokafka would return the
# memory of a payload after each batch, and take 0.49 s in place of 0.34 s.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}


def kbatch_tables(path: str, key: bytes) -> list[tuple[int, bytes]]:
    import kbatch

    found: list[Any] = []
    for table in kbatch.Log(path).tables(key=key):
        found += zip(table.records["offset"].tolist(), table.values(), strict=True)
    return found


def kbatch_arrow(path: str, key: bytes) -> list[tuple[int, bytes]]:
    import kbatch

    table = kbatch.Log(path).to_arrow(key=key)
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def aiokafka_loop(path: str, key: bytes) -> list[tuple[int, bytes]]:
    from aiokafka.record.memory_records import MemoryRecords

    # Without its C extension, aiokafka is ten times slower and the comparison would be meaningless.
    if "_crecords" not in MemoryRecords.__module__:
        raise RuntimeError("aiokafka has no C extension here, so the comparison would favour kbatch")
    found = []
    with open(path, "rb") as file:
        entries = MemoryRecords(file.read())
    while entries.has_next():
        batch = entries.next_batch()
        if not batch.validate_crc():
            raise ValueError(f"wrong CRC at base offset {batch.base_offset}")
        for record in batch:
            if record.key == key:
                found.append((record.offset, record.value))
    return found


CONTESTANTS: dict[str, Callable[[str, bytes], list[tuple[int, bytes]]]] = {
    "kbatch, Log.tables": kbatch_tables,
    "kbatch, Log.to_arrow": kbatch_arrow,
    AIOKAFKA: aiokafka_loop,
}


def search(who: str, path: str, key: str) -> dict[str, Any]:
    """Search twice in this process; return its CPU seconds until the end of the first search, and of the second."""
    import resource

    def seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    found = CONTESTANTS[who](path, key.encode())
    first = seconds()
    if CONTESTANTS[who](path, key.encode()) != found:
        raise AssertionError(f"{who}: the second search has another result")
    return {"first": first, "again": seconds() - first, "found": [[offset, value.decode()] for offset, value in found]}


def in_new_process(who: str, path: str, key: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.keys", "--search", who, path, key]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | MALLOC).stdout
    done: dict[str, Any] = json.loads(out)
    return done


def main() -> int:
    """Measure, and print a table; return the exit status."""
    if sys.argv[1:2] == ["--search"]:
        print(json.dumps(search(*sys.argv[2:])))
        return 0
    if "--index" in sys.argv:
        from bench.key_index import main as measure_index

        return measure_index([each for each in sys.argv[1:] if each != "--index"])
    import kbatch
    from bench.corpora import corpus
    from bench.memory import write_log

    quick = "--quick" in sys.argv
    made = corpus(CORPUS)
    repeats = max(1, round((QUICK_SIZE if quick else SIZE) / made.payload_bytes))
    key = (kbatch.decode(made.data).key(made.sums.records // 2) or b"").decode()
    times: dict[str, list[tuple[float, float]]] = {who: [] for who in CONTESTANTS}
    results = []
    with tempfile.TemporaryDirectory(prefix="kbatch-keys-") as scratch:
        directory = Path(scratch) / "topic-0"
        directory.mkdir()
        records = write_log(directory, CORPUS, repeats * len(made.data))["records"]
        path = os.fspath(directory / f"{0:020}.log")
        # The first round reads the files of the packages, and is not counted.
        for turn in range(2 if quick else ROUNDS + 1):
            for who in CONTESTANTS:
                done = in_new_process(who, path, key)
                results.append(done["found"])
                if turn:
                    times[who].append((done["first"], done["again"]))
    if not results[0] or any(found != results[0] for found in results):
        raise AssertionError("the contestants find different records")
    print(f"{len(results[0])} of {records:,} records; CPU seconds, medians of {len(times[AIOKAFKA])} processes")
    medians = {who: [statistics.median(each) for each in zip(*taken, strict=True)] for who, taken in times.items()}
    slowest = medians[AIOKAFKA][0]
    for who, (first, again) in medians.items():
        print(f"{who:<22} new process {first:6.3f}  ({first / slowest:4.2f} of aiokafka)   again {again:6.3f}")
    slower = [who for who, (first, _) in medians.items() if first > slowest]
    if slower and "--check" in sys.argv:
        print(f"slower than {AIOKAFKA}: {', '.join(slower)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
