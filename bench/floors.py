"""What was promised, beside what one run measured. What didn't run is told as such, and never as met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.results import ALONE, COPY, CRC, DROPPED, KEPT, Results

__all__ = ["AT_LEAST", "AT_MOST", "CODECS", "CONVERSIONS", "FOREIGN", "MEMORY", "THREADS", "Floor", "floors"]

AT_LEAST, AT_MOST = ">=", "<="
CODECS = ("gzip", "snappy", "snappy-raw", "lz4", "zstd")
COMPRESSED = tuple(f"medium-{size}-{codec}" for codec in CODECS for size in ("16k", "1m"))
# Stages and corpora of what is written anew.
CONVERSIONS = (
    ("convert to magic 1", "small"),
    ("convert to magic 1", "medium"),
    ("convert to magic 1", "medium-16k-lz4"),
    ("convert to magic 2", "small-v0"),
    ("convert to magic 2", "small-v1"),
    ("recompress to none", "small-lz4"),
    ("recompress to none", "medium-16k-zstd"),
    ("recompress to lz4", "small"),
    ("recompress to lz4", "medium-16k-zstd"),
    ("recompress to zstd", "small-lz4"),
    ("recompress to zstd", "medium-16k-gzip"),
)
# What a floor needs beside Python packages.
FOREIGN, MEMORY = "foreign", "memory"
# Each of these, and whatever else ran with two threads.
THREADS = ("small", "medium", "large", "headers", *COMPRESSED)
MEMORY_CORPORA = ("medium", "medium-1m-zstd")


class Floor(NamedTuple):
    """A figure that was promised.

    Attributes
    ----------
    text : str
    side : str
        `AT_LEAST` or `AT_MOST`.
    bound : float
    measured : float or None
        None if what it needs didn't run.
    note : str
        What bounds it, or a figure beside it.
    needs : str
        `FOREIGN`, `MEMORY` or nothing: what has to be there, or asked for, beside Python packages.
    """

    text: str
    side: str
    bound: float
    measured: float | None
    note: str = ""
    needs: str = ""

    @property
    def met(self) -> bool:
        if self.measured is None:
            return False
        return self.measured >= self.bound if self.side == AT_LEAST else self.measured <= self.bound

    @property
    def state(self) -> str:
        return "not run" if self.measured is None else "met" if self.met else "**not met**"


def floors(results: Results) -> list[Floor]:
    """Return every floor, whatever ran."""
    return [
        *decoding(results),
        *decompressing(results),
        *viewing(results),
        *threads(results),
        *memory(results),
        *writing(results),
    ]


def decoding(results: Results) -> Iterator[Floor]:
    yield Floor("small: aiokafka's iteration with CRC", AT_LEAST, 8, results.ratio("decode", "small", "aiokafka"))
    for bound, text, languages in ((2.5, "Java", ["Java"]), (1.5, "the fastest in Rust or Go", ["Rust", "Go"])):
        found = results.foreign("small", *languages)
        note = found.name if found else ""
        if found and found.with_sums:
            note += f"; {found.with_sums:.2f} if kbatch sums the columns too"
        yield Floor(f"small: {text}", AT_LEAST, bound, found.ratio if found else None, note, FOREIGN)
    both = results.to_limit("decode", "small", [CRC, COPY])
    yield Floor("small: kbatch / (CRC-32C alone + memcpy)", AT_MOST, 1.7, both)
    yield Floor("large: kbatch / CRC-32C alone", AT_MOST, 1.25, results.to_limit("decode", "large", [CRC]))
    own = results.get("decode", "single", "kbatch")
    yield Floor("one-record batches: ns a batch", AT_MOST, 100, own.seconds / own.batches * 1e9 if own else None)


def decompressing(results: Results) -> Iterator[Floor]:
    for corpus in COMPRESSED:
        kept, dropped = results.library(corpus, KEPT), results.library(corpus, DROPPED)
        note = f"{kept[0]}; {dropped[1]:.2f} if its output is dropped" if kept and dropped else ""
        text = f"{corpus}: kbatch / the fastest decompression alone"
        yield Floor(text, AT_MOST, 1.12, kept[1] if kept else None, note)


def viewing(results: Results) -> Iterator[Floor]:
    for stage, form, bounds in (
        ("to Arrow", "contiguous columns", (20, 12)),
        ("to Arrow, views", "views", (25, 20)),
    ):
        for corpus, bound in zip(("small", "medium"), bounds, strict=True):
            text = f"{corpus}: aiokafka + Arrow, to {form}"
            yield Floor(text, AT_LEAST, bound, results.ratio(stage, corpus, "aiokafka"))


def threads(results: Results) -> Iterator[Floor]:
    for corpus in dict.fromkeys([*THREADS, *results.corpora("threads")]):
        ratio = results.ratio("threads", corpus, "one thread", "two threads")
        most = results.most_by_two(corpus)
        note = f"two processes that share nothing: {most:.2f}" if most else ""
        yield Floor(f"{corpus}: one thread / two threads, by the clock", AT_LEAST, 1.85, ratio, note)


def memory(results: Results) -> Iterator[Floor]:
    measured = {entry["corpus"]: entry for entry in results.memory}
    for corpus in MEMORY_CORPORA:
        found = measured.get(corpus)
        note = f"{found['gib']:g} GiB; {found['before'] / (1 << 20):.0f} MiB before it starts" if found else ""
        ratio = found["after"] / found["max_bytes"] if found else None
        yield Floor(f"{corpus}: peak memory of iterating a log / max_bytes", AT_MOST, 3, ratio, note, MEMORY)


def writing(results: Results) -> Iterator[Floor]:
    for peer, bound in (("aiokafka", 10), ("kafka-python", 100)):
        ratio = results.ratio("encode", "small", peer)
        yield Floor(f"small: {peer}'s builder, encode from Arrow", AT_LEAST, bound, ratio)
    for corpus in COMPRESSED:
        if "snappy-raw" not in corpus:
            ratio = results.to_limit("encode compressed", corpus, [ALONE])
            yield Floor(f"{corpus}: encode / compressing alone", AT_MOST, 1.25, ratio)
    for stage, corpus in CONVERSIONS:
        share = results.ratio(stage, corpus, ALONE)
        most = results.ratio(stage, corpus, "aiokafka", ALONE)
        note = f"codecs alone take {share:.0%} of it" if share else ""
        if most and most < 10:
            note += f": {most:.1f} is the most there is"
        ratio = results.ratio(stage, corpus, "aiokafka")
        yield Floor(f"{corpus}, {stage}: aiokafka's decode and build", AT_LEAST, 10, ratio, note)
