"""The cost of damage is linear in the input: instructions for inputs of n and of 4n entries, made to be expensive.

``python -m bench.linear`` decodes each kind of hostile input at both sizes under callgrind, as a buffer and as a
stream, counts all instructions, those of Python included, and exits with 1 where four times the input takes more than
`MAX_RATIO` times the instructions.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.instructions import parse, profile, run_marked

# Linear is 4; what is done once per call makes it less, and a quadratic part soon makes it 16.
MAX_RATIO = 4.4
SIZES = (250, 1000)
CHUNK = 1024


def good() -> bytes:
    """Build a batch of one record."""
    import kbatch

    return kbatch.encode([b"v"], timestamps=1000)


def forged(size: int) -> bytes:
    """Build the header of a batch of `size` bytes, none of which are its own."""
    header = bytearray(good()[:61])
    header[8:12] = (size - 12).to_bytes(4, "big")
    return bytes(header)


def nested(count: int) -> bytes:
    """Build messages of magic 0 with good checksums, each of which is the value of the one before."""
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
    """Return the hostile inputs of about `count` entries."""
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


def work() -> dict[str, Callable[[], Any]]:
    """Return what is counted: each input, by each route."""
    import kbatch

    steps: dict[str, Callable[[], Any]] = {}
    for count in SIZES:
        for name, data in inputs(count).items():
            chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
            for crc in ("verify", "skip"):
                steps[f"{name}, buffer, {crc}, {count}"] = lambda data=data, crc=crc: kbatch.decode(
                    data, on_error="skip", crc=crc
                )
            steps[f"{name}, stream, verify, {count}"] = lambda chunks=chunks: list(
                kbatch.decode_stream(chunks, on_error="skip")
            )
    return steps


def main(arguments: list[str] | None = None) -> int:
    """Count, print the ratios, and compare them with the limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.linear", description=main.__doc__)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args(arguments).child:
        steps = work()
        run_marked(steps.values())
        print(json.dumps(list(steps)))
        return 0
    if not shutil.which("valgrind"):
        print("bench.linear: valgrind is not installed (on Debian: apt-get install valgrind)", file=sys.stderr)
        return 2
    counts: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "profile"
        for i, name in enumerate(profile("bench.linear", out)):
            with out.with_name(f"profile.{2 * i + 2}").open() as lines:
                counts.setdefault(name.rpartition(", ")[0], []).append(sum(parse(lines, "").values()))
    failed = False
    for name, (small, large) in counts.items():
        ratio = large / small
        failed |= ratio > MAX_RATIO
        print(f"{small:12,} {large:12,}  {ratio:5.2f}  {name}{'' if ratio <= MAX_RATIO else '  FAILED'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
