"""The results of one run: reduced to the facts that the report needs, written to a file, and compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ALONE", "IN_TURNS", "KBATCH", "PEERS", "Foreign", "Result", "Results", "compact", "foreign_versions"]

KBATCH = "kbatch"
PEERS = ("aiokafka", "kafka-python")
# A codec's own library, which only decompresses the same payloads.
ALONE = "library alone"
# The name of a decoder in another language contains the name of the language.
LANGUAGE = re.compile(r"\b(?:Java|Go|Rust)\b")
# Parts of the names of kbatch's own results: measured in turns with such a decoder; and with sums over the columns.
IN_TURNS, WITH_SUMS = "kbatch, in turns with ", ", with sums"
FACTS = ("stage", "corpus", "who", "records", "payload_bytes")


class Foreign(NamedTuple):
    """A decoder in another language: its time divided by kbatch's, where kbatch only decodes, or also sums columns."""

    name: str
    ratio: float
    with_sums: float | None


class Result(NamedTuple):
    """The result of a contestant at one corpus of one stage: median seconds, and the size of the input."""

    seconds: float
    records: int
    payload_bytes: int


def compact(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Reduce the output of pytest-benchmark to one entry per contestant.

    An entry of ``extra_info["others"]``, or ``other`` with ``other_seconds``, is a contestant that took turns;
    ``sums_seconds`` is the time of the contestant itself when it also sums columns.
    """
    entries = []
    for benchmark in document["benchmarks"]:
        info = benchmark["extra_info"]
        if "stage" not in info:
            continue
        own = {key: info[key] for key in FACTS}
        own["seconds"] = benchmark["stats"]["median"]
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
    """Return the versions that decoders in other languages reported."""
    infos = (benchmark["extra_info"] for benchmark in document["benchmarks"])
    return {info["other"]: info["other_version"] for info in infos if "other_version" in info}


class Results:
    """All measurements of one run, by stage, corpus and contestant.

    Parameters
    ----------
    document : dict
        The document that `bench.__main__` writes: ``machine``, ``versions``, ``size``, ``quick``, ``other_work``
        (processors that other processes used, or None), ``skipped``, ``failed``, ``live`` (records
        per second by topic, client and kind of result) and ``results``, the entries of `compact`.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.machine: str = document["machine"]
        self.versions: dict[str, str] = document["versions"]
        self.quick: bool = document["quick"]
        self.other_work: float | None = document["other_work"]
        self.skipped: list[str] = document["skipped"]
        self.failed: list[str] = document["failed"]
        self.live: dict[str, dict[str, dict[str, float]]] = document["live"]
        self.by_name = {
            (entry["stage"], entry["corpus"], entry["who"]): Result(
                entry["seconds"], entry["records"], entry["payload_bytes"]
            )
            for entry in document["results"]
        }

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls(json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Write the document, one entry per line."""
        head = {key: value for key, value in self.document.items() if key != "results"}
        lines = ",\n".join(json.dumps(entry) for entry in self.document["results"])
        path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "results": [\n{lines}\n]}}\n')

    def get(self, stage: str, corpus: str, who: str) -> Result | None:
        """Return the result of one contestant, or None if it did not run."""
        return self.by_name.get((stage, corpus, who))

    def stages(self) -> list[str]:
        """Return the stages in the order of the run."""
        return list(dict.fromkeys(stage for stage, _, _ in self.by_name))

    def corpora(self, stage: str) -> list[str]:
        """Return the corpora of a stage in the order of the run."""
        return list(dict.fromkeys(corpus for found, corpus, _ in self.by_name if found == stage))

    def contestants(self, stage: str, corpus: str) -> dict[str, Result]:
        """Return the results for one corpus of a stage, by contestant."""
        return {who: result for (found, name, who), result in self.by_name.items() if (found, name) == (stage, corpus)}

    def ratio(self, stage: str, corpus: str, who: str, base: str = KBATCH) -> float | None:
        """Return the time of `who` divided by the time of `base`, or None if one of them did not run."""
        one, other = self.get(stage, corpus, who), self.get(stage, corpus, base)
        return one.seconds / other.seconds if one and other else None

    def fastest_peer(self, stage: str, corpus: str) -> tuple[str, float] | None:
        """Return the fastest client library in Python, and its time divided by kbatch's."""
        found = [(peer, self.ratio(stage, corpus, peer)) for peer in PEERS]
        return min(((peer, ratio) for peer, ratio in found if ratio), key=lambda entry: entry[1], default=None)

    def foreign(self, corpus: str, *languages: str) -> Foreign | None:
        """Return the fastest decoder in any of the languages, relative to kbatch measured in turns with it."""
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
