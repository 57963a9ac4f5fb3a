"""How far the transactions of a stream are decided, and which of its batches read_committed leaves out."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.decode_options import DecodeOptions
from kbatch.format import ABORTED_DTYPE
from kbatch.isolation import counts_for_transactions, tracking_options
from kbatch.reader import BatchReader
from kbatch.transactions import AbortedRanges, ListedAborts, TransactionTracker
from kbatch.windows import Windows

__all__ = ["StableFront"]


class StableFront:
    """Follows the transactions of a stream, ahead of its decoding.

    What it keeps is in proportion to the batches that were followed and not released, and to open transactions
    and those whose marker was lost.

    Parameters
    ----------
    options : DecodeOptions
        Those of the decoding.
    aborted : iterable of (producer id, first offset), optional
        What a fetch response lists as aborted. Then nothing is undecided, and of the markers only those count that end
        what is listed.
    source : str, optional
        Name of the stream, for errors.
    position : int
        Where in the stream the first batch begins.

    Attributes
    ----------
    reader : BatchReader
        Reads the batches of the stream, without their records.
    """

    def __init__(
        self,
        options: DecodeOptions,
        aborted: Iterable[tuple[int, int]] | None = None,
        *,
        source: str | None = None,
        position: int = 0,
    ) -> None:
        self.reader = BatchReader(tracking_options(options), source=source, position=position)
        # The batches have been checked by the reader, as far as the options ask for it.
        self._tracker = TransactionTracker(check_crc=False, limits=options.limits)
        self._transactions = self._tracker.result()
        self._listed = None if aborted is None else ListedAborts(aborted)
        # Of the batches that are not released, from number `_first` on: where they begin, and the greatest offset up to
        # each.
        self._positions = array("q")
        self._reach = array("q")
        self._first = 0
        # Rows of ABORTED_DTYPE as they were found; and of how many of them the data lies before which position.
        self._aborted = array("q")
        self._found: deque[tuple[int, int]] = deque()

    def follow(self, windows: Windows) -> None:
        """Follow the transactions over the batches that are complete by now."""
        reader = self.reader
        while reader.error is None and not reader.stopped and reader.position < windows.end:
            if not windows.is_final and windows.end < reader.needed:
                return
            begin = reader.position
            table = reader.read(windows)
            if reader.position == begin and not len(table.batches):
                return
            good, lost = counts_for_transactions(table.batches, reader.options)
            chosen = good | lost
            start = min(begin, int(table.batches["position"].min(initial=begin)))
            self._add(windows.window(start, windows.end), table.batches[chosen], start, reader.position, lost[chosen])

    def restrict(self, options: DecodeOptions, *, is_final: bool) -> DecodeOptions:
        """Return `options` that leave out what is known to be aborted, and what stays undecided."""
        # Before the end of what is decided no batch is undecided, unless that is the end of the stream.
        stable = self.last_stable_offset if self._returns_all(is_final) else None
        return replace(options, aborted=self._ranges(), undecided=self._undecided(), stable_offset=stable)

    def _returns_all(self, is_final: bool) -> bool:
        """Whether what is undecided by now stays so, and gets rows with that status."""
        return (is_final and self.reader.error is None) or self.reader.stopped

    def decided_end(self, windows: Windows) -> int:
        """Return the position up to which the batches are to be decoded by now."""
        if self._returns_all(windows.is_final):
            return windows.end
        cut = self._cut()
        return self.reader.position if cut is None else min(cut, self.reader.position)

    @property
    def pending(self) -> dict[str, Any]:
        """What is withheld by now, as arguments of RecordTable."""
        if self._listed is not None:
            return {}
        transactions = self._transactions
        return {"pending": transactions.pending, "last_stable_offset": transactions.last_stable_offset}

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset of the first transaction that is open by now; None if none is, or a list decides."""
        return None if self._listed is not None else self._transactions.last_stable_offset

    def _add(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[np.void],
        origin: int,
        end: int,
        lost: npt.NDArray[np.bool_],
    ) -> None:
        """Follow the next batches.

        Parameters
        ----------
        data : ndarray of uint8
        batches : ndarray of BATCH_DTYPE
        origin : int
            Position of ``data[0]`` in the stream.
        end : int
            A position after all of these batches, and before those that come.
        lost : ndarray of bool, shape (batches,)
            Which of them are markers that were damaged.
        """
        self._tracker.add(data, batches, origin, lost)
        # What else their headers say isn't believed.
        batches = batches[~lost]
        aborted, markers = self._tracker.drain()
        if self._listed is not None:
            self._listed.close(markers)
            return
        self._transactions = self._tracker.result()
        if len(aborted):
            self._aborted.frombytes(aborted.tobytes())
            self._found.append((end, len(aborted)))
        if len(batches):
            reach = np.maximum.accumulate(batches["last_offset"])
            if self._reach:
                np.maximum(reach, self._reach[-1], out=reach)
            self._positions.frombytes(batches["position"].tobytes())
            self._reach.frombytes(reach.tobytes())

    def _cut(self) -> int | None:
        """Return the position before which everything is decided; None if all that was followed is."""
        stable = self.last_stable_offset
        if stable is None:
            return None
        at = bisect_left(self._reach, stable, self._first)
        return self._positions[at] if at < len(self._positions) else None

    def _ranges(self) -> AbortedRanges:
        """Return which batches are left out, of those that are decided and not released."""
        if self._listed is not None:
            return self._listed.ranges()
        aborted = np.frombuffer(self._aborted.tobytes(), ABORTED_DTYPE)
        stable = self.last_stable_offset
        if stable is not None:
            aborted = aborted[aborted["first_offset"] < stable]
        return AbortedRanges.from_rows(aborted)

    def _undecided(self) -> AbortedRanges | None:
        """Return which batches are withheld because the markers of their transactions are lost."""
        if self._listed is not None or not len(self._transactions.undecided):
            return None
        return AbortedRanges.from_rows(self._transactions.undecided)

    def release(self, position: int) -> None:
        """Forget what lies before `position`: it has been handed out."""
        self._first = bisect_left(self._positions, position, self._first)
        if 2 * self._first >= len(self._positions):
            del self._positions[: self._first], self._reach[: self._first]
            self._first = 0
        past = 0
        while self._found and self._found[0][0] <= position:
            past += self._found.popleft()[1]
        del self._aborted[: past * (ABORTED_DTYPE.itemsize // self._aborted.itemsize)]
