"""The transactions of a stream: the position up to which they are decided, and the batches to leave out."""

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
        # Pairs of a position and the number of rows whose data ends before it.
        self._counts: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return self._stop - self._first

    def rows(self) -> npt.NDArray[np.void]:
        return self._rows[self._first : self._stop]

    def add(self, rows: npt.NDArray[np.void], end: int) -> None:
        """Add rows whose data ends before position `end`."""
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
        """Drop the rows whose data ends before `position`."""
        while self._counts and self._counts[0][0] <= position:
            self._first += self._counts.popleft()[1]


class StableFront:
    """Follows the transactions of a stream, ahead of its decoding.

    Its memory is proportional to the number of batches not released yet, of open transactions, and, for `finish`, of
    transactions whose marker was lost.

    Parameters
    ----------
    options : DecodeOptions
        The options of the decoding.
    aborted : iterable of (producer id, first offset), optional
        The aborted transactions of a fetch response. With this list nothing is undecided, and only the markers that
        end a listed transaction are used.
    source : str, optional
        Name of the stream, for errors.
    position : int
        Position of the first batch in the stream.

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
        # The reader has verified the checksums that the options require.
        self._tracker = TransactionTracker(check_crc=False, limits=options.limits)
        self._transactions = self._tracker.result()
        self._listed = None if aborted is None else ListedAborts(aborted)
        # The batches that are not released begin at number `_first`. For each: its position, and the greatest offset
        # up to it.
        self._positions = array("q")
        self._reach = array("q")
        self._first = 0
        # The transactions that are not released: the aborted ones, and the ones whose markers are lost.
        self._aborted = _Ended()
        self._undecided = _Ended()
        # Producer id and first offset of every transaction whose marker is lost.
        self._all_undecided = array("q")

    def follow(self, windows: Windows) -> None:
        """Follow the transactions in all batches that are complete so far."""
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
        """Return `options` that leave out aborted transactions, and transactions that remain undecided."""
        # No batch before the decided position is undecided, except at the end of the stream.
        stable = self.last_stable_offset if self._returns_all(is_final) else None
        if self._listed is not None:
            return replace(options, aborted=self._listed.ranges(), undecided=None, stable_offset=stable)
        undecided = self._ranges(self._undecided) if len(self._undecided) else None
        return replace(options, aborted=self._ranges(self._aborted), undecided=undecided, stable_offset=stable)

    def _returns_all(self, is_final: bool) -> bool:
        """Whether undecided transactions remain undecided, so that their batches are returned with that status."""
        return (is_final and self.reader.error is None) or self.reader.stopped

    def decided_end(self, windows: Windows) -> int:
        """Return the position up to which batches can be decoded now."""
        if self._returns_all(windows.is_final):
            return windows.end
        cut = self._cut()
        return self.reader.position if cut is None else min(cut, self.reader.position)

    def pending(self, *, is_finished: bool = False) -> dict[str, Any]:
        """Return the transactions withheld so far, as arguments of RecordTable.

        Transactions whose markers are lost are included until they are released, and all of them at the end.
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
        """The first offset of the first open transaction; None without one, or if a list decides."""
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
            A position after all of these batches, and before all later ones.
        lost : ndarray of bool, shape (batches,)
            The damaged markers among them.
        """
        self._tracker.add(data, batches, origin, lost)
        # The other fields in the headers of damaged markers are not used.
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
        """Return the position before which everything is decided; None if every transaction so far is."""
        stable = self.last_stable_offset
        if stable is None:
            return None
        at = bisect_left(self._reach, stable, self._first)
        return self._positions[at] if at < len(self._positions) else None

    def _ranges(self, ended: _Ended) -> AbortedRanges:
        """Return the offset ranges of transactions that are decided and not released."""
        rows, stable = ended.rows(), self.last_stable_offset
        return AbortedRanges.from_rows(rows if stable is None else rows[rows["first_offset"] < stable])

    def release(self, position: int) -> None:
        """Forget the batches before `position`, which have been returned."""
        self._first = bisect_left(self._positions, position, self._first)
        if 2 * self._first >= len(self._positions):
            del self._positions[: self._first], self._reach[: self._first]
            self._first = 0
        self._aborted.release(position)
        self._undecided.release(position)
