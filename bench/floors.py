"""What kbatch has to reach, compared with what one run measured. What did not run is reported as such.

Every floor is something that users compare. Bounds leave a margin of 20 to 40 % below what was measured on a quiet
machine of two cores: a floor that is not met is a regression, not noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.results import ALONE, Results

__all__ = ["AT_LEAST", "AT_MOST", "CODECS", "FOREIGN", "PEERS", "THREADS", "Floor", "floors"]

AT_LEAST, AT_MOST = ">=", "<="
FOREIGN = "foreign"
# Stage, corpus and bound of the time of the best client library in Python, divided by kbatch's.
PEERS = (
    ("decode", "small", 10),
    ("to Arrow", "small", 12),
    ("to pandas, ArrowDtype", "small", 12),
    ("encode", "small", 12),
    # Kafka 4 cannot write magic 1: a one-off on archives, which only has to be faster than every client.
    ("convert to magic 1", "small", 1),
)
# The time of kbatch, which checks, decompresses and parses, divided by that of decompressing alone.
CODECS = (("gzip", 1.2), ("snappy", 1.35), ("lz4", 1.4), ("zstd", 1.3))
# The time on one thread divided by that on two. Compressed payloads are copied by one thread at a time.
THREADS = (("small", 1.6), ("medium-16k-lz4", 1.5))


class Floor(NamedTuple):
    """A figure that is to be reached.

    Attributes
    ----------
    text : str
    side : str
        `AT_LEAST` or `AT_MOST`.
    bound : float
    measured : float or None
        None if what it compares did not run.
    note : str
        The contestant.
    needs : str
        `FOREIGN` if other toolchains are needed.
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
    return list(_floors(results))


def _floors(results: Results) -> Iterator[Floor]:
    for stage, corpus, bound in PEERS:
        peer = results.fastest_peer(stage, corpus)
        name, ratio = peer or ("", None)
        yield Floor(f"{stage}, {corpus}: the best client in Python / kbatch", AT_LEAST, bound, ratio, name)
    found = results.foreign("small", "Java", "Rust", "Go")
    note = found.name if found else ""
    if found and found.with_sums:
        note += f"; {found.with_sums:.2f} if kbatch sums the columns too"
    text = "decode, small: the fastest of Java, Rust and Go / kbatch"
    yield Floor(text, AT_LEAST, 1.5, found.ratio if found else None, note, FOREIGN)
    for codec, bound in CODECS:
        corpus = f"medium-16k-{codec}"
        own = results.ratio("decode", corpus, ALONE)
        text = f"decode, {corpus}: kbatch / decompressing alone"
        yield Floor(text, AT_MOST, bound, 1 / own if own else None, "the codec's own library")
    for corpus, bound in THREADS:
        ratio = results.ratio("threads", corpus, "one thread", "two threads")
        yield Floor(f"threads, {corpus}: one thread / two threads, by the clock", AT_LEAST, bound, ratio)
