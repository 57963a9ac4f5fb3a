"""Check that the cost of damage is linear: count the instructions for expensive inputs of n and of 4n entries.

``python -m bench.linear`` decodes each kind of damaged input at both sizes under callgrind, as a buffer, as a stream
and from a log, and then reads the hostile inputs of bench/growth.py. It counts all instructions, including the
interpreter's, and exits with 1 if four times the input takes more than `MAX_RATIO`, or for the latter `MAX_GROWTH`,
times the instructions. Instructions of the operating system are not counted; a test bounds the number of bytes that are
read from a log.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bench.growth import growth_steps
from bench.instructions import profile, run_marked, total

# Linear cost gives 4. A constant cost per call makes the ratio smaller, and a quadratic part soon makes it 16.
MAX_RATIO = 4.4
SIZES = (200, 800)
# The steps of bench/growth.py are of many kinds; sorting and the growth of arrays add a little to linear cost.
MAX_GROWTH = 5.0
GROWTH_SIZES = (500, 2000)
GROWTH = "growth, "
CHUNK = 1024
SMALL_TABLE = 64 << 10


@cache
def good() -> bytes:
    """Build a batch of one record."""
    import kbatch

    return kbatch.encode([b"v"], timestamps=1000)


def forged(size: int) -> bytes:
    """Build only the header of a batch; its length field claims `size` bytes."""
    header = bytearray(good()[:61])
    header[8:12] = (size - 12).to_bytes(4, "big")
    return bytes(header)


def nested(count: int) -> bytes:
    """Build messages of magic 0 with valid checksums; each message is the value of the previous one."""
    size = 26
    out = bytearray(size * count)
    for i in range(count - 1, -1, -1):
        at, value = size * i, size * (count - 1 - i)
        # Offset, length, magic and attributes, no key, value.
        out[at : at + 12] = (5).to_bytes(8, "big") + (14 + value).to_bytes(4, "big")
        out[at + 16 : at + 26] = bytes(2) + b"\xff" * 4 + value.to_bytes(4, "big")
        out[at + 12 : at + 16] = zlib.crc32(memoryview(out)[at + 16 :]).to_bytes(4, "big")
    return bytes(out)


def inputs(count: int) -> dict[str, bytes]:
    """Return the hostile inputs with about `count` entries each."""
    bad = bytearray(good())
    bad[-1] ^= 1
    size = len(good())
    return {
        "wrong checksums": bytes(bad) * count + good(),
        "forged lengths between good batches": (good() + forged(1 << 20)) * count,
        "forged lengths that lead to one good batch": b"".join(
            good() + forged((61 + size) * (count - i) - size) for i in range(count)
        )
        + good() * 2,
        "nested messages after damage": good() + b"\xff" * 30 + nested(count) + good(),
    }


def segment(directory: Path, data: bytes, *, live: bool) -> Any:
    """Write a log whose first segment is `data`; if `live`, it is also the last segment."""
    import kbatch

    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(data)
    if not live:
        (directory / f"{1 << 40:020}.log").write_bytes(b"")
    return kbatch.Log(directory)


def routes(directory: Path, data: bytes) -> dict[str, Callable[[], Any]]:
    """Return the ways to read `data` and skip damage."""
    import kbatch

    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    live = segment(directory / "live-0", data, live=True)
    closed = segment(directory / "closed-0", data, live=False)
    committed: dict[str, Any] = {"isolation": "read_committed", "on_error": "skip"}
    return {
        "buffer": lambda: kbatch.decode(data, on_error="skip"),
        "buffer, skip": lambda: kbatch.decode(data, on_error="skip", crc="skip"),
        "buffer, read_committed": lambda: kbatch.decode(data, **committed),
        "stream": lambda: list(kbatch.decode_stream(chunks, on_error="skip")),
        "stream, mark": lambda: list(kbatch.decode_stream(chunks, on_error="skip", crc="mark")),
        "stream, skip": lambda: list(kbatch.decode_stream(chunks, on_error="skip", crc="skip")),
        "stream, read_committed": lambda: list(kbatch.decode_stream(chunks, **committed)),
        "live segment": lambda: list(live.tables(on_error="skip")),
        "closed segment": lambda: list(closed.tables(on_error="skip", max_bytes=SMALL_TABLE)),
        "closed segment, read_committed": lambda: list(closed.tables(**committed)),
    }


def work(directory: Path) -> dict[str, Callable[[], Any]]:
    """Return the steps to count: each input, read by each route, at each size; and the steps of bench/growth.py."""
    damage = {
        f"{name}, {route}, {count}": step
        for count in SIZES
        for i, (name, data) in enumerate(inputs(count).items())
        for route, step in routes(directory / f"{count}-{i}", data).items()
    }
    growth = {
        f"{GROWTH}{name}, {count}": step
        for count in GROWTH_SIZES
        for name, step in growth_steps(count, directory / f"growth-{count}").items()
    }
    return damage | growth


def main(arguments: list[str] | None = None) -> int:
    """Count instructions for damaged input, print the ratios, and compare them with the limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.linear", description=main.__doc__)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args(arguments).child:
        with tempfile.TemporaryDirectory() as directory:
            steps = work(Path(directory))
            # How much it does in a step depends on the objects of all steps.
            gc.disable()
            # What the first call of a process does, as imports, is neither counted nor repeated for the larger input.
            for name in steps:
                if name.endswith((f", {SIZES[0]}", f", {GROWTH_SIZES[0]}")):
                    steps[name]()
            run_marked(steps.values(), warm=False)
        print(json.dumps(list(steps)))
        return 0
    if not shutil.which("valgrind"):
        print("bench.linear: valgrind is not installed (on Debian: apt-get install valgrind)", file=sys.stderr)
        return 2
    counts: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "profile"
        for i, name in enumerate(profile("bench.linear", out)):
            with out.with_name(f"profile.{2 * i + 2}").open() as lines:
                counts.setdefault(name.rpartition(", ")[0], []).append(total(lines))
    failed = False
    for name, (small, large) in counts.items():
        ratio = large / small
        limit = MAX_GROWTH if name.startswith(GROWTH) else MAX_RATIO
        failed |= ratio > limit
        print(f"{small:12,} {large:12,}  {ratio:5.2f}  {name}{'' if ratio <= limit else '  FAILED'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
