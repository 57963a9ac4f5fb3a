"""Read pytest-benchmark's JSON and print ratios of medians as Markdown, and which of the floors hold.

``python -m bench.report RESULTS.json [--check]``
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Results", "main"]

KBATCH = "kbatch"
PEERS = ("aiokafka", "kafka-python")
# Decompression with its output kept, and kbatch, which took turns with it; for writing, compressing alone.
KEPT, IN_TURNS, ALONE = "kept", "kbatch, in turns", "alone"
# What is written anew, by what becomes of it.
REWRITES = ("convert to magic 1", "convert to magic 2", "recompress to none", "recompress to lz4", "recompress to zstd")
CODECS = ("gzip", "snappy", "snappy-raw", "lz4", "zstd")
# What kbatch decompresses with (`kbatch/codecs.py`); "alone" in a floor means the fastest way of calling these.
LIBRARIES = {
    "gzip": ("zlib",),
    "snappy": ("cramjam",),
    "snappy-raw": ("cramjam",),
    "lz4": ("cramjam", "lz4"),
    "zstd": ("zstandard",),
}


class Result(NamedTuple):
    """One benchmark: its median in seconds, and what it worked on."""

    seconds: float
    records: int
    batches: int
    payload_bytes: int


class Results:
    """All benchmarks of one run, by stage, corpus and contestant."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.machine = document["machine_info"]
        self.by_name: dict[tuple[str, str, str], Result] = {}
        for benchmark in document["benchmarks"]:
            info = benchmark["extra_info"]
            key = (info["stage"], info["corpus"], info["who"])
            self.by_name[key] = Result(
                benchmark["stats"]["median"], info["records"], info["batches"], info["payload_bytes"]
            )
            if "other" in info:
                self.by_name[*key[:2], info["other"]] = self.by_name[key]._replace(seconds=info["other_seconds"])

    def get(self, stage: str, corpus: str, who: str) -> Result | None:
        """Return one benchmark, None if it didn't run."""
        return self.by_name.get((stage, corpus, who))

    def corpora(self, stage: str) -> list[str]:
        """Return the corpora of a stage, in the order in which they ran."""
        return list(dict.fromkeys(corpus for found, corpus, _ in self.by_name if found == stage))

    def ratio(self, stage: str, corpus: str, slower: str, faster: str = KBATCH) -> float | None:
        """Return how many times `slower` takes as long as `faster`."""
        one, other = self.get(stage, corpus, slower), self.get(stage, corpus, faster)
        return one.seconds / other.seconds if one and other else None

    def alone(self, corpus: str, libraries: Sequence[str] | None = None) -> tuple[str, Result] | None:
        """Return the fastest way to decompress a corpus' payloads alone, with some libraries or any."""
        found = [
            (who, result)
            for (stage, name, who), result in self.by_name.items()
            if stage == "compressed"
            and name == corpus
            and who not in (KBATCH, KEPT, IN_TURNS, *PEERS)
            and (libraries is None or who.split()[0] in libraries)
        ]
        return min(found, key=lambda entry: entry[1].seconds, default=None)


class Floor(NamedTuple):
    """A figure that was promised: `measured` is None if what it needs didn't run."""

    text: str
    wanted: str
    measured: float | None
    met: bool


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value: float | None, form: str = ".1f", unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def speed_table(results: Results, stage: str, others: Iterable[str]) -> str:
    others = list(others)
    rows = []
    for corpus in results.corpora(stage):
        own = results.get(stage, corpus, KBATCH)
        rate = [own.records / own.seconds / 1e6, own.payload_bytes / own.seconds / 1e6] if own else [None, None]
        ratios = [number(results.ratio(stage, corpus, other), ".2f") for other in others]
        rows.append([corpus, number(rate[0]), number(rate[1], ",.0f"), *ratios])
    return table(["corpus", "million records/s", "MB/s", *(f"{other} / kbatch" for other in others)], rows)


def scan_table(results: Results) -> str:
    rows = []
    for corpus in results.corpora("scan"):
        own = results.get("scan", corpus, KBATCH)
        per_batch = own.seconds / own.batches * 1e9 if own else None
        ratios = [number(results.ratio("scan", corpus, peer)) for peer in PEERS]
        rows.append([corpus, number(per_batch, ".0f"), *ratios])
    return table(["corpus", "ns a batch", *(f"{peer} / kbatch" for peer in PEERS)], rows)


def compressed_table(results: Results) -> str:
    rows = []
    for corpus in results.corpora("compressed"):
        own = results.get("compressed", corpus, KBATCH)
        same, fastest = results.alone(corpus, LIBRARIES[corpus.split("-", 2)[2]]), results.alone(corpus)
        rows.append(
            [
                corpus,
                number(own and own.payload_bytes / own.seconds / 1e6, ",.0f"),
                number(own and same and own.seconds / same[1].seconds, ".2f"),
                same[0] if same else "-",
                number(results.ratio("compressed", corpus, IN_TURNS, KEPT), ".2f"),
                number(own and fastest and own.seconds / fastest[1].seconds, ".2f"),
                fastest[0] if fastest else "-",
                *(number(results.ratio("compressed", corpus, peer), ".2f") for peer in PEERS),
            ]
        )
    heads = [
        "corpus",
        "MB/s",
        "kbatch / same library alone",
        "which",
        "kbatch / output kept",
        "kbatch / fastest alone",
        "which",
    ]
    return table([*heads, *(f"{peer} / kbatch" for peer in PEERS)], rows)


def transactions_table(results: Results) -> str:
    rows = []
    for corpus in results.corpora("transactions"):
        ratio = results.ratio("transactions", corpus, "read_committed", "read_uncommitted")
        rows.append([corpus, number(ratio, ".2f")])
    return table(["corpus", "read_committed / read_uncommitted"], list(dict.fromkeys(map(tuple, rows))))


def encode_compressed_table(results: Results) -> str:
    stage = "encode compressed"
    rows = []
    for corpus in results.corpora(stage):
        own = results.get(stage, corpus, IN_TURNS)
        ratio = results.ratio(stage, corpus, IN_TURNS, ALONE)
        rows.append([corpus, number(own and own.payload_bytes / own.seconds / 1e6, ",.0f"), number(ratio, ".2f")])
    return table(["corpus", "MB/s", "kbatch / compressing alone"], rows)


def single_nanoseconds(results: Results) -> float | None:
    own = results.get("decode", "single", KBATCH)
    return own.seconds / own.batches * 1e9 if own else None


def floors(results: Results) -> list[Floor]:
    """Return what was promised, with what was measured."""
    found: list[Floor] = []

    def floor(text: str, measured: float | None, wanted: str, holds: Callable[[float], bool]) -> None:
        found.append(Floor(text, wanted, measured, measured is not None and holds(measured)))

    floor("small: aiokafka iteration with CRC / kbatch", results.ratio("decode", "small", "aiokafka"), ">= 5",
          lambda ratio: ratio >= 5)  # fmt: skip
    for corpus in ("small", "medium"):
        floor(f"{corpus}: aiokafka + Arrow / kbatch to Arrow", results.ratio("to Arrow", corpus, "aiokafka"), ">= 10",
              lambda ratio: ratio >= 10)  # fmt: skip
    for codec in CODECS:
        for size in ("16k", "1m"):
            corpus = f"medium-{size}-{codec}"
            kept = results.ratio("compressed", corpus, IN_TURNS, KEPT)
            floor(f"{corpus}: whole decode / library alone, output kept, in turns", kept, "<= 1.25",
                  lambda ratio: ratio <= 1.25)  # fmt: skip
    for peer, wanted in (("aiokafka", 10), ("kafka-python", 100)):
        floor(f"small: {peer}'s builder / kbatch, from Arrow", results.ratio("encode", "small", peer), f">= {wanted}",
              lambda ratio, wanted=wanted: ratio >= wanted)  # fmt: skip
    for corpus in results.corpora("encode compressed"):
        floor(f"{corpus}: whole encode / compressing alone, in turns",
              results.ratio("encode compressed", corpus, IN_TURNS, ALONE), "<= 1.25",
              lambda ratio: ratio <= 1.25)  # fmt: skip
    for stage in REWRITES:
        for corpus in results.corpora(stage):
            if corpus.startswith("small"):
                floor(f"{corpus}, {stage}: aiokafka's decode and builder / kbatch",
                      results.ratio(stage, corpus, "aiokafka"), ">= 10", lambda ratio: ratio >= 10)  # fmt: skip
    floor("single: nanoseconds a one-record batch", single_nanoseconds(results), "<= 250", lambda ns: ns <= 250)
    return found


def report(results: Results) -> str:
    """Return the report as Markdown."""
    machine = results.machine
    cpu = machine.get("cpu") or {}
    processor = cpu.get("brand_raw") or machine.get("processor") or machine.get("machine", "unknown")
    held = floors(results)
    parts = [
        f"Ratios of medians; CPU time, one thread, CRC checked. {processor}, {cpu.get('count', '?')} logical cores, "
        f"{machine.get('system', '')}, Python {machine.get('python_version', '?')}.",
        "## Floors",
        table(
            ["floor", "wanted", "measured", "met"],
            [[f.text, f.wanted, number(f.measured, ".2f"), "met" if f.met else "**not met**"] for f in held],
        ),
        "## Decode to a table (peers: bare iteration)",
        speed_table(results, "decode", [*PEERS, "CRC-32C alone", "memcpy alone"]),
        "## Decode to Arrow: offset, timestamp, key, value",
        speed_table(results, "to Arrow", [*PEERS, "kbatch, views"]),
        "## Compressed batches",
        compressed_table(results),
        "## Batches rewritten (peers: decode and build)",
        *(f"{stage}:\n\n" + speed_table(results, stage, PEERS) for stage in REWRITES if results.corpora(stage)),
        "## Batches of one record",
        f"{number(single_nanoseconds(results), '.0f')} ns a batch; aiokafka takes "
        f"{number(results.ratio('decode', 'single', 'aiokafka'))} times as long.",
        "## Transactions: read_committed, in turns with read_uncommitted",
        transactions_table(results),
        "## Encode from Arrow columns, batches of 16 KiB (peers: their builders)",
        speed_table(results, "encode", [*PEERS, "kbatch, a table"]),
        "## Encode with a codec, in turns with compressing the same payloads alone",
        encode_compressed_table(results),
        "## Scan: headers only",
        scan_table(results),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Print the report; with ``--check`` the exit code is 1 if a floor isn't met."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=main.__doc__)
    parser.add_argument("results", type=Path, help="what --benchmark-json wrote")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a floor isn't met")
    options = parser.parse_args(arguments)
    results = Results(json.loads(options.results.read_text()))
    print(report(results))
    return int(options.check and not all(floor.met for floor in floors(results)))


if __name__ == "__main__":
    sys.exit(main())
