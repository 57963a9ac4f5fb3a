"""The floors of reading live topics: ratios that `kbatch.consume` must reach in one run of `bench.live`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.consumers import ARROW, BYTES, CONSUMERS, COUNT, OBJECTS, TABLES, WHOLE_TABLE, Consumer
from bench.floors import AT_LEAST, AT_MOST, Floor
from bench.report import LIVE

__all__ = ["FLOORS", "GOAL", "MEMORY", "LiveFloor", "live_floors"]

MEMORY = "memory"
# The value of `Floor.needs` of what is reported and not required.
GOAL = "goal"
# Upper bound for the growth of resident memory, divided by max_bytes.
MEMORY_BOUND = 2.0
# Lower bound for the rate of kbatch divided by that of the best client in any language.
GOAL_BOUND = 2.0
LZ4, ZSTD = ("small-lz4", "medium-16k-lz4"), ("small-zstd", "medium-16k-zstd")
ALL = ("small", "medium", *LZ4, *ZSTD)


class LiveFloor(NamedTuple):
    """A lower bound for the rate of kbatch divided by that of the best client which gives `against`.

    It applies to each topic of these corpora. Clients are those for Python.
    """

    form: str
    corpora: tuple[str, ...]
    against: str
    bound: float


FLOORS = (
    LiveFloor(COUNT, ("small",), OBJECTS, 25),
    LiveFloor(COUNT, ("medium",), OBJECTS, 8),
    LiveFloor(COUNT, LZ4, OBJECTS, 10),
    LiveFloor(COUNT, ZSTD, OBJECTS, 5),
    LiveFloor(TABLES, ("small",), OBJECTS, 15),
    LiveFloor(TABLES, ("medium", *LZ4, *ZSTD), OBJECTS, 6),
    LiveFloor(WHOLE_TABLE, ("small",), OBJECTS, 12),
    LiveFloor(WHOLE_TABLE, ("medium",), OBJECTS, 5),
    LiveFloor(TABLES, ALL, ARROW, 4),
    LiveFloor(WHOLE_TABLE, ALL, ARROW, 4),
    LiveFloor(COUNT, ("small",), BYTES, 0.85),
    LiveFloor(COUNT, ("medium",), BYTES, 0.75),
)


def live_floors(figures: dict[str, Any], part: float = 1.0) -> list[Floor]:
    """Return the floors of the topics, forms and clients that a run was to measure.

    Parameters
    ----------
    figures : dict
        As `bench.live` writes them.
    part : float
        By which lower bounds are multiplied, for a short run on a busy machine.
    """
    if LIVE not in figures["clients"]:
        return []
    return [*_ratios(figures, part), *_memory(figures)]


def _ratios(figures: dict[str, Any], part: float) -> Iterator[Floor]:
    for topic, facts in figures["topics"].items():
        for floor in FLOORS:
            if facts["corpus"] in floor.corpora and floor.form in figures["forms"]:
                clients = [one for one in CONSUMERS if one.gives == floor.against and one.program is None]
                yield from _floor(
                    figures, topic, floor.form, clients, f"client that gives {floor.against}", floor.bound * part
                )
        for form in figures["forms"]:
            if form == MEMORY:
                continue
            clients = [one for one in CONSUMERS if one.gives in (OBJECTS, ARROW)]
            yield from _floor(figures, topic, form, clients, "client of any language", GOAL_BOUND, GOAL)


def _floor(
    figures: dict[str, Any], topic: str, form: str, clients: list[Consumer], what: str, bound: float, needs: str = ""
) -> Iterator[Floor]:
    """Yield the floor against the best of some clients, unless none of them was to be measured."""
    absent = figures["absent"][topic]
    expected = [
        one.name for one in clients if one.name in figures["clients"] and one.name not in absent and form in one.forms
    ]
    if not expected:
        return
    rates = figures["records_per_second"][topic]
    found = {name: rates[name][form] for name in expected if form in rates.get(name, {})}
    best = max(found, key=found.__getitem__, default="")
    own = rates.get(LIVE, {}).get(form)
    ratio = own / found[best] if own and best else None
    text = f"{'goal: ' if needs else ''}{topic}, {form}: kbatch / the best {what}"
    yield Floor(text, AT_LEAST, bound, ratio, best, needs)


def _memory(figures: dict[str, Any]) -> Iterator[Floor]:
    for topic, found in figures["memory"].items():
        for one in found:
            text = f"{topic}, max_bytes={one['max_bytes'] >> 20} MiB: growth of resident memory / max_bytes"
            yield Floor(text, AT_MOST, MEMORY_BOUND, one["growth"] / one["max_bytes"])
