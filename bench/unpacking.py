"""``python -m bench.unpacking [CORPUS ...]``: what of decoding compressed batches takes how long, in ns a record.

All take turns in one run. First the fastest decompression alone that keeps its output; then kbatch, with less and less
to do, whose differences are the parts. The last part is below 0 where the library's calls from Python take longer than
reading the records.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import kbatch
from bench.corpora import corpus, payloads
from bench.libraries import fastest

ROUNDS = 21
NAMES = [f"medium-{size}-{codec}" for codec in ("lz4", "snappy", "snappy-raw") for size in ("16k", "1m")]


def parts(name: str) -> dict[str, float]:
    """Return the nanoseconds a record of each part, medians."""
    what = corpus(name)
    stored = payloads(what.data)
    codec = name.split("-", 2)[2]
    way = fastest(codec, stored)
    todo: dict[str, Callable[[], Any]] = {
        "library": partial(way.kept, stored, what.payload_bytes),
        "kbatch": lambda: kbatch.decode(what.data),
        "no checksum": lambda: kbatch.decode(what.data, crc="skip"),
        "one column": lambda: kbatch.decode(what.data, crc="skip", columns=["offset"]),
    }
    seconds: dict[str, list[float]] = {part: [] for part in todo}
    for _ in range(ROUNDS + 1):
        for part, function in todo.items():
            start = time.process_time()
            result = function()
            seconds[part].append(time.process_time() - start)
            del result
    records = what.sums.records
    return {part: statistics.median(found[1:]) / records * 1e9 for part, found in seconds.items()}


def main(names: list[str]) -> None:
    gc.disable()
    print("| corpus | library | kbatch | / library | of it checksum | rows | reading, calls |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in names:
        ns = parts(name)
        shares = (
            ns["kbatch"] - ns["no checksum"],
            ns["no checksum"] - ns["one column"],
            ns["one column"] - ns["library"],
        )
        cells = [ns["library"], ns["kbatch"], *shares]
        texts = [f"{cell:.1f}" for cell in cells]
        texts.insert(2, f"{ns['kbatch'] / ns['library']:.2f}")
        print(f"| {name} | {' | '.join(texts)} |")


if __name__ == "__main__":
    main(sys.argv[1:] or NAMES)
