"""The results of one run: read, written small, asked for ratios."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "ALONE",
    "BOTH",
    "COPY",
    "CRC",
    "CRC_CALLS",
    "DROPPED",
    "HALF",
    "IN_TURNS",
    "KBATCH",
    "KEPT",
    "PEERS",
    "Foreign",
    "Result",
    "Results",
    "compact",
    "foreign_versions",
]

KBATCH = "kbatch"
PEERS = ("aiokafka", "kafka-python")
# What is measured beside contestants: limits.
CRC, CRC_CALLS, COPY, ALONE = "CRC-32C alone", "CRC alone, a call a batch", "memcpy alone", "codecs alone"
# Two processes beside two threads: one of them alone, and both at once.
HALF, BOTH = "one process, half", "two processes"
# A decoder of another language has its name in its own; how that of kbatch beside one begins, and may end.
LANGUAGE = re.compile(r"\b(?:Java|Go|Rust)\b")
IN_TURNS, WITH_SUMS = "kbatch, in turns with ", ", with sums"
# How the name of a way to decompress ends.
KEPT, DROPPED = ", kept", ", dropped"
FACTS = ("stage", "corpus", "who", "records", "batches", "payload_bytes", "stored_bytes")


class Foreign(NamedTuple):
    """A decoder of another language: how many times it takes as long as kbatch, which only decodes, or sums as well."""

    name: str
    ratio: float
    with_sums: float | None


class Result(NamedTuple):
    """One contestant at one corpus of one stage: its median in seconds, and what it worked on."""

    seconds: float
    records: int
    batches: int
    payload_bytes: int


def compact(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what pytest-benchmark found, without what nobody reads: an entry a contestant.

    An entry of ``extra_info["others"]``, or ``other`` with ``other_seconds``, is a contestant that took turns;
    ``sums_seconds`` is the contestant itself with summing on top; ``seconds`` stands for the median where a benchmark
    timed itself.
    """
    entries = []
    for benchmark in document["benchmarks"]:
        info = benchmark["extra_info"]
        if "stage" not in info:
            continue
        own = {key: info[key] for key in FACTS if key in info}
        own["seconds"] = info.get("seconds", benchmark["stats"]["median"])
        entries.append(own)
        others = dict(info.get("others", {}))
        if "other" in info:
            others[info["other"]] = info["other_seconds"]
        if "sums_seconds" in info:
            others[info["who"] + WITH_SUMS] = info["sums_seconds"]
        entries += [own | {"who": who, "seconds": seconds} for who, seconds in others.items()]
    for entry in entries:
        entry["seconds"] = float(f"{entry['seconds']:.6g}")
    return entries


def foreign_versions(document: dict[str, Any]) -> dict[str, str]:
    """Return the versions that decoders of other languages gave."""
    infos = (benchmark["extra_info"] for benchmark in document["benchmarks"])
    return {info["other"]: info["other_version"] for info in infos if "other_version" in info}


class Results:
    """All that one run measured, by stage, corpus and contestant.

    Parameters
    ----------
    document : dict
        What `bench.__main__` writes: ``machine``, ``versions``, ``size``, ``quick``, ``skipped``, ``failed``,
        ``memory``, ``live`` (records a second by topic, client and what it made) and ``results``, the entries of
        `compact`.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.machine: str = document["machine"]
        self.versions: dict[str, str] = document["versions"]
        self.quick: bool = document["quick"]
        self.skipped: list[str] = document["skipped"]
        self.failed: list[str] = document["failed"]
        self.memory: list[dict[str, Any]] = document["memory"]
        self.live: dict[str, dict[str, dict[str, float]]] = document["live"]
        self.by_name: dict[tuple[str, str, str], Result] = {
            (entry["stage"], entry["corpus"], entry["who"]): Result(
                entry["seconds"], entry["records"], entry["batches"], entry["payload_bytes"]
            )
            for entry in document["results"]
        }

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls(json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Write the document, an entry a line."""
        head = {key: value for key, value in self.document.items() if key != "results"}
        lines = ",\n".join(json.dumps(entry) for entry in self.document["results"])
        path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "results": [\n{lines}\n]}}\n')

    def get(self, stage: str, corpus: str, who: str) -> Result | None:
        """Return one contestant, None if it didn't run."""
        return self.by_name.get((stage, corpus, who))

    def stages(self) -> list[str]:
        """Return the stages, in the order in which they ran."""
        return list(dict.fromkeys(stage for stage, _, _ in self.by_name))

    def corpora(self, stage: str) -> list[str]:
        """Return the corpora of a stage, in the order in which they ran."""
        return list(dict.fromkeys(corpus for found, corpus, _ in self.by_name if found == stage))

    def contestants(self, stage: str, corpus: str) -> dict[str, Result]:
        """Return who ran at a corpus of a stage."""
        return {who: result for (found, name, who), result in self.by_name.items() if (found, name) == (stage, corpus)}

    def ratio(self, stage: str, corpus: str, slower: str, faster: str = KBATCH) -> float | None:
        """Return how many times `slower` takes as long as `faster`."""
        one, other = self.get(stage, corpus, slower), self.get(stage, corpus, faster)
        return one.seconds / other.seconds if one and other else None

    def most_by_two(self, corpus: str) -> float | None:
        """Return how many times as fast as one process are two that share nothing, at half of a corpus each."""
        ratio = self.ratio("threads", corpus, HALF, BOTH)
        return 2 * ratio if ratio else None

    def to_limit(self, stage: str, corpus: str, limits: Iterable[str]) -> float | None:
        """Return how many times kbatch takes as long as all of `limits` together."""
        own, found = self.get(stage, corpus, KBATCH), [self.get(stage, corpus, who) for who in limits]
        return own.seconds / sum(limit.seconds for limit in found if limit) if own and all(found) else None

    def fastest(self, stage: str, corpus: str, wanted: Callable[[str], bool]) -> tuple[str, Result] | None:
        """Return the fastest contestant of those whose name is wanted."""
        found = [entry for entry in self.contestants(stage, corpus).items() if wanted(entry[0])]
        return min(found, key=lambda entry: entry[1].seconds, default=None)

    def library(self, corpus: str, ending: str) -> tuple[str, float] | None:
        """Return the fastest way to decompress a corpus, and how many times kbatch takes as long as it."""
        found = self.fastest("decompress", corpus, lambda who: who.endswith(ending))
        own = self.get("decompress", corpus, KBATCH)
        return (found[0].removesuffix(ending), own.seconds / found[1].seconds) if found and own else None

    def foreign(self, corpus: str, *languages: str) -> Foreign | None:
        """Return the decoder of some languages that is the fastest beside kbatch, which took turns with it."""
        found = []
        for who, result in self.contestants("foreign", corpus).items():
            language = LANGUAGE.search(who)
            if who.startswith(KBATCH) or not language or language[0] not in languages:
                continue
            own = self.get("foreign", corpus, f"{IN_TURNS}{who}") or self.get("decode", corpus, KBATCH)
            summed = self.get("foreign", corpus, f"{IN_TURNS}{who}{WITH_SUMS}")
            if own:
                name = LANGUAGE.sub("", who).strip(" ()")
                with_sums = result.seconds / summed.seconds if summed else None
                found.append(Foreign(name, result.seconds / own.seconds, with_sums))
        return min(found, key=lambda decoder: decoder.ratio, default=None)
