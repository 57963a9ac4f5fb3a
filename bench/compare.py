"""Compare the main operations of two builds of kbatch, run in turns.

``python -m bench.compare BEFORE [AFTER]`` takes two Python interpreters, each with its own kbatch installed (AFTER is
this one by default). Each runs in a separate process on the same files. An operation alternates between the two, so
that both run under the same conditions; the table has the minimum of each and their ratio. ``-k TEXT`` selects
operations, ``--quick`` runs each once to check the results.
"""

# The code that `serve` runs with another build of kbatch must not import anything from this checkout.
from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["Build", "main", "operations"]

CODECS = ("gzip", "snappy", "lz4", "zstd")
COLUMNS = ["offset", "timestamp", "key", "value"]
CORPORA = (
    "small",
    "medium",
    "large",
    "headers",
    "single",
    "ten",
    "small-v1",
    *(f"medium-16k-{codec}" for codec in CODECS),
)
FEWEST_ROUNDS = 5
CHUNK = 100_000
# Operations with this in their name are measured in wall-clock time, others in CPU time of the process.
THREADS = "two threads"


def operations(data: dict[str, bytes], log: Path) -> dict[str, Callable[[], Any]]:
    """Return the operations by name: on corpora, and on a partition directory that holds the corpus ``medium``."""
    import pyarrow as pa

    import kbatch

    found: dict[str, Callable[[], Any]] = {}
    for name in CORPORA:
        found[f"decode {name}"] = partial(kbatch.decode, data[name])
    for name in ("small", "medium-16k-lz4", "medium-16k-zstd"):
        found[f"decode {name}, {THREADS}"] = partial(kbatch.decode, data[name], threads=2)
    for name in ("small", "medium", "large"):
        found[f"to Arrow {name}"] = lambda name=name: kbatch.decode(data[name]).to_arrow(columns=COLUMNS)
    found["to pandas small"] = lambda: kbatch.decode(data["small"]).to_pandas(columns=COLUMNS)
    found["read_committed small"] = partial(kbatch.decode, data["small"], isolation="read_committed")
    found["Log.tables medium"] = lambda: sum(map(len, kbatch.Log(log).tables(max_bytes=4 << 20)))
    found["Log.tables medium, 64 MiB"] = lambda: sum(map(len, kbatch.Log(log).tables(max_bytes=64 << 20)))
    found["Log.batches medium"] = lambda: len(kbatch.Log(log).batches())
    found["StreamDecoder medium"] = lambda: stream(data["medium"])
    for name in ("small", "medium"):
        table = kbatch.decode(data[name]).to_arrow(columns=COLUMNS).combine_chunks()
        given = {"values": table["value"], "keys": table["key"], "timestamps": table["timestamp"].cast(pa.int64())}
        codecs = ("none",) if name == "small" else ("none", "lz4", "zstd")
        for codec in codecs:
            found[f"encode {name}, {codec}"] = partial(kbatch.encode, **given, batch_size=16 << 10, codec=codec)
    found["convert small to magic 1"] = partial(kbatch.convert, data["small"], 1)
    found["convert small-v1 to magic 2"] = partial(kbatch.convert, data["small-v1"], 2)
    found["recompress medium-16k-gzip to lz4"] = partial(kbatch.recompress, data["medium-16k-gzip"], "lz4")
    return found


def stream(data: bytes) -> int:
    """Feed a stream decoder in chunks; return the number of records."""
    import kbatch

    decoder = kbatch.StreamDecoder()
    view = memoryview(data)
    count = 0
    for at in range(0, len(data), CHUNK):
        decoder.feed(view[at : at + CHUNK])
        count += len(decoder.flush())
    return count + len(decoder.finish())


def fingerprint(result: Any) -> str:
    """Return the part of a result that must be equal in both builds: a hash of written bytes, or the number of rows."""
    if isinstance(result, (bytes, bytearray, memoryview)):
        return f"{len(result)} bytes, {zlib.crc32(result):08x}"
    return str(result if isinstance(result, int) else len(result))


def serve(directory: Path) -> None:
    """Read operation names from standard input; run each, and print the seconds and the fingerprint of its result."""
    data = {name: (directory / name).read_bytes() for name in CORPORA}
    todo = operations(data, directory / "medium-0")
    gc.disable()
    print(json.dumps(list(todo)), flush=True)
    for line in sys.stdin:
        name = line.strip()
        clock = time.perf_counter if THREADS in name else time.process_time
        start = clock()
        try:
            result = todo[name]()
            seconds = clock() - start
            text = fingerprint(result)
        except Exception as error:  # reported next to the other build's result
            result, seconds, text = None, clock() - start, f"{type(error).__name__}: {error}"
        print(json.dumps([seconds, text]), flush=True)
        del result


class Build:
    """A process that runs operations with one build of kbatch; a context manager that ends it."""

    def __init__(self, python: str, directory: Path) -> None:
        # -P keeps this directory and the current one off the path, where they would hide the other kbatch.
        command = [python, "-P", __file__, "--serve", os.fspath(directory)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=directory
        )
        self.names: list[str] = self._answer()

    def __enter__(self) -> Build:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, name: str) -> tuple[float, str]:
        """Run an operation once; return its seconds and the fingerprint of its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        seconds, result = self._answer()
        return seconds, result

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"bench.compare: {self._process.args[0]} ended with {self._process.wait()}")  # type: ignore[index]
        return json.loads(line)


def measure(builds: list[Build], name: str, seconds: float) -> tuple[list[float], list[str]]:
    """Run an operation alternately in the builds for some seconds; return the minimum time and the result of each."""
    results = [build.run(name)[1] for build in builds]
    if seconds <= 0:
        return [build.run(name)[0] for build in builds], results
    times: list[list[float]] = [[] for _ in builds]
    until = time.perf_counter() + seconds
    order = list(range(len(builds)))
    while len(times[0]) < FEWEST_ROUNDS or time.perf_counter() < until:
        for i in order:
            times[i].append(builds[i].run(name)[0])
        order.reverse()
    return [min(found) for found in times], results


def main(arguments: list[str] | None = None) -> int:
    """Print the table; the exit status is 1 if the builds return different results."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?", help="the Python interpreter that has the build to compare with")
    parser.add_argument("after", nargs="?", default=sys.executable, help="default: this interpreter")
    parser.add_argument("-k", metavar="TEXT", default="", help="run only operations with this text in their name")
    parser.add_argument("--seconds", type=float, default=4, help="seconds to spend on each operation (default: 4)")
    parser.add_argument("--quick", action="store_true", help="run each once, on little data, to check the results")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return 0
    if options.before is None:
        parser.error("the interpreter of the build to compare with is missing")
    from bench.corpora import corpus_file

    different = 0
    with tempfile.TemporaryDirectory(prefix="kbatch-compare-") as scratch:
        directory = Path(scratch)
        for name in CORPORA:
            (directory / name).symlink_to(corpus_file(name, 1_000_000 if options.quick else None))
        # The second segment is the last one of its log, so that the first one is closed.
        (directory / "medium-0").mkdir()
        shutil.copyfile(directory / "medium", directory / "medium-0" / f"{0:020}.log")
        (directory / "medium-0" / f"{1 << 40:020}.log").touch()
        with Build(options.before, directory) as before, Build(options.after, directory) as after:
            print("| operation | before, ms | after, ms | after / before | |\n|---|---:|---:|---:|---|")
            for name in before.names:
                if options.k not in name or name not in after.names:
                    continue
                (old, new), results = measure([before, after], name, 0 if options.quick else options.seconds)
                same = results[0] == results[1]
                different += not same
                note = "" if same else f"**{results[0]} before, {results[1]} after**"
                print(f"| {name} | {old * 1e3:.3f} | {new * 1e3:.3f} | {new / old:.2f} | {note} |", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
