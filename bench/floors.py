"""The floors: ratios that kbatch must reach, compared with the measurements of one run.

Every floor is a figure that users compare. Bounds are 20 to 40 % below the figures that were measured on a quiet
machine with two cores, so a floor that is not met is a regression, not noise. A floor that did not run is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.results import ALONE, Results

__all__ = ["AT_LEAST", "AT_MOST", "CODECS", "FOREIGN", "LANGUAGES", "PEERS", "THREADS", "Floor", "floors"]

AT_LEAST, AT_MOST = ">=", "<="
FOREIGN = "foreign"
# Corpus, languages, and lower bound for the time of the fastest decoder in one of these, divided by kbatch's.
LANGUAGES = (
    ("small", ("Java", "Rust", "Go"), 1.5),
    ("single", ("Java", "Go"), 1.5),
    ("ten", ("Java", "Rust", "Go"), 1.0),
)
# Stage, corpus, and lower bound for the time of the best client library in Python, divided by kbatch's.
PEERS = (
    ("decode", "small", 10),
    ("to Arrow", "small", 12),
    ("to pandas, ArrowDtype", "small", 12),
    ("encode", "small", 12),
    # Kafka 4 cannot write magic 1, so this conversion is rare and only has to be faster than every client.
    ("convert to magic 1", "small", 1),
)
# Upper bounds for the time of kbatch, which checks, decompresses and parses, divided by the time to only decompress.
CODECS = (("gzip", 1.2), ("snappy", 1.35), ("lz4", 1.4), ("zstd", 1.3))
# Lower bounds for the time on one thread divided by the time on two. Only one thread at a time copies compressed
# payloads.
THREADS = (("small", 1.6), ("medium-16k-lz4", 1.5))


class Floor(NamedTuple):
    """A ratio that kbatch must reach.

    Attributes
    ----------
    text : str
    side : str
        `AT_LEAST` or `AT_MOST`.
    bound : float
    measured : float or None
        None if one of the contestants did not run.
    note : str
        The contestant.
    needs : str
        `FOREIGN` if the floor needs toolchains of other languages.
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
    """Return every floor, including floors that did not run."""
    return list(_floors(results))


def _floors(results: Results) -> Iterator[Floor]:
    for stage, corpus, bound in PEERS:
        peer = results.fastest_peer(stage, corpus)
        name, ratio = peer or ("", None)
        yield Floor(f"{stage}, {corpus}: the best client in Python / kbatch", AT_LEAST, bound, ratio, name)
    for corpus, languages, bound in LANGUAGES:
        found = results.foreign(corpus, *languages)
        note = found.name if found else ""
        if found and found.with_sums:
            note += f"; {found.with_sums:.2f} if kbatch sums the columns too"
        text = f"decode, {corpus}: the fastest of {', '.join(languages[:-1])} and {languages[-1]} / kbatch"
        yield Floor(text, AT_LEAST, bound, found.ratio if found else None, note, FOREIGN)
    for codec, bound in CODECS:
        corpus = f"medium-16k-{codec}"
        own = results.ratio("decode", corpus, ALONE)
        text = f"decode, {corpus}: kbatch / decompressing alone"
        yield Floor(text, AT_MOST, bound, 1 / own if own else None, "the codec's own library")
    for corpus, bound in THREADS:
        ratio = results.ratio("threads", corpus, "one thread", "two threads")
        yield Floor(f"threads, {corpus}: one thread / two threads, wall-clock time", AT_LEAST, bound, ratio)
