"""The records that a cluster with its history has returned, by origin."""

from __future__ import annotations

import threading
from typing import NamedTuple

from kbatch.public_names import public_in

__all__ = ["OriginCounters", "ReadOrigin"]


@public_in("kbatch.live")
class ReadOrigin(NamedTuple):
    """The records that were read from one place.

    Attributes
    ----------
    source : str
        A path or URL of the history, or the URL of the cluster.
    records : int
        The number of returned records.
    bytes : int
        The size of their batches.
    """

    source: str
    records: int
    bytes: int


class OriginCounters:
    """Counts by origin, updated by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, source: str, records: int, size: int) -> None:
        """Add records and bytes of a place."""
        with self._lock:
            before = self._counts.get(source, (0, 0))
            self._counts[source] = before[0] + records, before[1] + size

    def origins(self) -> tuple[ReadOrigin, ...]:
        """Return the counts by place."""
        with self._lock:
            return tuple(ReadOrigin(source, *counts) for source, counts in sorted(self._counts.items()))
