"""Gathers the batches of small responses of a partition, so that they become one table."""

from __future__ import annotations

import time

import numpy as np

from kbatch.batches.framing import byte_array, scan_part
from kbatch.live.fetch_state import FetchedBatches, FetchEvent
from kbatch.live.live_options import LiveOptions

__all__ = ["BatchGathering"]

_MAGIC_POSITION = 16
_OFFSET_BYTES = 8


class _Gathered:
    """Copies of the batches of one partition, as if a single response had them."""

    def __init__(self, first: FetchedBatches, due: float) -> None:
        self._first = first._replace(data=byte_array(b""), slot=None)
        self._last = self._first
        self._data = bytearray()
        self._size = 0
        # Several responses may list the same transaction.
        self._aborted: dict[tuple[int, int], None] | None = None if first.aborted is None else {}
        self.rows = 0
        self.due = due

    def __len__(self) -> int:
        return len(self._data)

    def add(self, batches: FetchedBatches, rows: int) -> None:
        """Add the batches of a response, and release its memory."""
        # An incomplete batch at the end is fetched again. Decoding finds damage later.
        whole = batches.data if batches.is_damaged else batches.data[: batches.size]
        self._size = len(self._data) + batches.size
        self._data += whole.data
        if batches.aborted is not None and self._aborted is not None:
            self._aborted.update(dict.fromkeys(batches.aborted))
        self.rows += rows
        if batches.slot is not None:
            batches.slot.release()
        self._last = batches._replace(data=self._first.data, slot=None)

    def joined(self) -> FetchedBatches:
        """Return all batches."""
        aborted = None if self._aborted is None else sorted(self._aborted, key=lambda each: each[1])
        data = byte_array(memoryview(self._data).toreadonly())
        return self._last._replace(data=data, start=self._first.start, aborted=aborted, size=self._size)


class BatchGathering:
    """Gathers batches until a limit is reached or they are due.

    Parameters
    ----------
    options : LiveOptions
    max_bytes : int
        The limit on the memory of all gathered batches.
    """

    def __init__(self, options: LiveOptions, max_bytes: int) -> None:
        self._seconds = options.flush_seconds
        self._rows = options.flush_rows
        self._bytes = min(max_bytes if options.flush_bytes is None else options.flush_bytes, max_bytes)
        self._max_bytes = max_bytes
        self._held: dict[int, _Gathered] = {}

    def seconds_left(self) -> float | None:
        """Return the time until gathered batches are due, or None if there are none."""
        if not self._held:
            return None
        return max(min(each.due for each in self._held.values()) - time.monotonic(), 0.0)

    def ready(self, event: FetchEvent) -> list[FetchedBatches]:
        """Add a report, and return the batches that are complete, by partition in the order of their offsets."""
        if self._seconds is None:
            return event.batches
        found: list[FetchedBatches] = []
        for each in event.batches:
            self._take(each, found)
        event.batches = []
        for key in event.gone:
            self._flush(key, found)
        if sum(map(len, self._held.values())) > self._max_bytes:
            found += self.rest()
        return found

    def due(self) -> list[FetchedBatches]:
        """Return the batches that are due."""
        found: list[FetchedBatches] = []
        if self._held:
            now = time.monotonic()
            for key in [key for key, each in self._held.items() if now >= each.due]:
                self._flush(key, found)
        return found

    def rest(self) -> list[FetchedBatches]:
        """Return all gathered batches."""
        found: list[FetchedBatches] = []
        for key in list(self._held):
            self._flush(key, found)
        return found

    def _take(self, batches: FetchedBatches, found: list[FetchedBatches]) -> None:
        """Gather batches, or add them to `found` after the gathered batches of their partition."""
        assert self._seconds is not None
        key = id(batches.fetch)
        rows = 0 if self._rows is None else int(scan_part(batches.data).batches["record_count"].sum())
        if not _may_follow(batches):
            self._flush(key, found)
            found.append(batches)
            return
        held = self._held.get(key)
        if held is None:
            if batches.is_damaged or self._is_complete(len(batches.data), rows):
                # It is not copied.
                found.append(batches)
                return
            held = self._held[key] = _Gathered(batches, time.monotonic() + self._seconds)
        held.add(batches, rows)
        if batches.is_damaged or self._is_complete(len(held), held.rows):
            self._flush(key, found)

    def _is_complete(self, size: int, rows: int) -> bool:
        return size >= self._bytes or (self._rows is not None and rows >= self._rows)

    def _flush(self, key: int, found: list[FetchedBatches]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            found.append(held.joined())


def _may_follow(batches: FetchedBatches) -> bool:
    """Whether all records of the batches follow those read before, so that offsets need not be compared."""
    head: np.ndarray[tuple[int], np.dtype[np.uint8]] = batches.data[: _MAGIC_POSITION + 1]
    # The offset of a batch of magic 0 or 1 may be the offset of its last record.
    return (
        len(head) > _MAGIC_POSITION
        and int(head[_MAGIC_POSITION]) >= 2
        and int.from_bytes(head[:_OFFSET_BYTES].tobytes(), "big") >= batches.start
    )
