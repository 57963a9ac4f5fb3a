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

from kbatch.format import ABORTED_DTYPE
from kbatch.read.committed import counts_for_transactions, tracking_options
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.read.windows import Windows
from kbatch.transactions import AbortedRanges, ListedAborts, TransactionTracker

__all__ = ["StableFront"]


class _Ended:
    """Transactions that have ended, as rows of ABORTED_DTYPE in the order of their ends, until they are released."""

    def __init__(self) -> None:
        self._rows = np.empty(64, ABORTED_DTYPE)
        self._first = self._stop = 0
        # Before which positions the data of how many lies.
        self._counts: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return self._stop - self._first

    def rows(self) -> npt.NDArray[np.void]:
        return self._rows[self._first : self._stop]

    def add(self, rows: npt.NDArray[np.void], end: int) -> None:
        """Add rows whose data lies before position `end`."""
        if not len(rows):
            return
        if self._stop + len(rows) > len(self._rows):
            grown = np.empty(2 * (len(self) + len(rows)), ABORTED_DTYPE)
            grown[: len(self)] = self.rows()
            self._rows, self._first, self._stop = grown, 0, len(self)
        self._rows[self._stop : self._stop + len(rows)] = rows
        self._stop += len(rows)
        self._counts.append((end, len(rows)))

    def release(self, position: int) -> None:
        """Drop the rows whose data lies before `position`."""
        while self._counts and self._counts[0][0] <= position:
            self._first += self._counts.popleft()[1]


class StableFront:
    """Follows the transactions of a stream, ahead of its decoding.

    What it keeps is in proportion to what was followed and not released, to open transactions, and, for `finish`, to
    those whose marker was lost.

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
        # Of what was not released: the aborted transactions, and those whose markers are lost.
        self._aborted = _Ended()
        self._undecided = _Ended()
        # Producer ids and first offsets of all whose markers are lost.
        self._all_undecided = array("q")

    def follow(self, windows: Windows) -> None:
        """Follow the transactions over the batches that are complete by now."""
        reader = self.reader
        while reader.error is None and not reader.stopped and reader.position < windows.end:
            if reader.waits(windows):
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
        if self._listed is not None:
            return replace(options, aborted=self._listed.ranges(), undecided=None, stable_offset=stable)
        undecided = self._ranges(self._undecided) if len(self._undecided) else None
        return replace(options, aborted=self._ranges(self._aborted), undecided=undecided, stable_offset=stable)

    def _returns_all(self, is_final: bool) -> bool:
        """Whether what is undecided by now stays so, and gets rows with that status."""
        return (is_final and self.reader.error is None) or self.reader.stopped

    def decided_end(self, windows: Windows) -> int:
        """Return the position up to which the batches are to be decoded by now."""
        if self._returns_all(windows.is_final):
            return windows.end
        cut = self._cut()
        return self.reader.position if cut is None else min(cut, self.reader.position)

    def pending(self, *, is_finished: bool = False) -> dict[str, Any]:
        """Return what is withheld by now, as arguments of RecordTable.

        Of transactions whose markers are lost these are the ones that have not been released, or all at the end.
        """
        if self._listed is not None:
            return {}
        if is_finished:
            lost = np.frombuffer(self._all_undecided.tobytes(), np.int64).reshape(-1, 2).tolist()
        else:
            lost = self._undecided.rows()[["producer_id", "first_offset"]].tolist()
        pending = sorted([*self._transactions.pending, *map(tuple, lost)], key=lambda pair: pair[1])
        return {"pending": pending, "last_stable_offset": self._transactions.last_stable_offset}

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
        ended = self._tracker.drain()
        if self._listed is not None:
            self._listed.close(ended.abort_markers)
            return
        self._transactions = self._tracker.result()
        self._aborted.add(ended.aborted, end)
        self._undecided.add(ended.undecided, end)
        pairs = np.stack([ended.undecided["producer_id"], ended.undecided["first_offset"]], axis=1)
        self._all_undecided.frombytes(pairs.tobytes())
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

    def _ranges(self, ended: _Ended) -> AbortedRanges:
        """Return the offsets of transactions that are decided and not released."""
        rows, stable = ended.rows(), self.last_stable_offset
        return AbortedRanges.from_rows(rows if stable is None else rows[rows["first_offset"] < stable])

    def release(self, position: int) -> None:
        """Forget what lies before `position`: it has been handed out."""
        self._first = bisect_left(self._positions, position, self._first)
        if 2 * self._first >= len(self._positions):
            del self._positions[: self._first], self._reach[: self._first]
            self._first = 0
        self._aborted.release(position)
        self._undecided.release(position)
