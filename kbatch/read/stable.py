"""The transactions of a stream: the position up to which they are decided, and the batches to leave out."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.format import BATCH_DTYPE
from kbatch.read.budget import followed_table_bytes, table_limit
from kbatch.read.committed import counts_for_transactions, tracking_options
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.read.windows import Windows
from kbatch.read.withheld import KEPT_BYTES, EndedTransactions, PendingTransactions
from kbatch.table import RecordTable
from kbatch.transactions import (
    AbortedRanges,
    ListedAborts,
    LossFollower,
    TransactionTracker,
    Withheld,
    follow_batches,
)
from kbatch.transactions.opened import INDEX_BYTES, OPEN_BYTES, as_array

__all__ = ["StableFront"]


# The memory of a transaction whose marker is lost, until the end: producer id and first offset, and a copy.
_LOST_BYTES = 16 * 9 // 8 + 16


class _StreamTracker(TransactionTracker):
    """A tracker that also keeps the open transactions as a history."""

    # In addition, a row of the history with its index, and the position and producer of the batch.
    _open_bytes = OPEN_BYTES + 24 * 9 // 8 + INDEX_BYTES + 16 * 9 // 8

    def __init__(self, options: DecodeOptions) -> None:
        super().__init__(limits=options.limits, max_bytes=table_limit(options.limits))
        self.pending = PendingTransactions()
        # The producers whose transactions lost bytes have ended.
        self._lost = array("q")
        self._kept_bytes = 0

    def count_kept(self, ended: int, lost: int) -> None:
        """Count ended transactions that are kept, and those whose markers were lost; raise as `replay` does.

        An error is raised again, because the tracker has not followed the rest of the batches then.
        """
        self._kept_bytes = ended * KEPT_BYTES + lost * _LOST_BYTES
        self._check_memory()

    def _ended_bytes(self) -> int:
        return super()._ended_bytes() + self._kept_bytes

    def _replay(self, events: npt.NDArray[np.void]) -> None:
        """Apply events, and note which open transactions have changed."""
        is_open = self._open
        before = {producer_id: is_open.get(producer_id) for producer_id in events["producer_id"].tolist()}
        super()._replay(events)
        for producer_id, earlier in before.items():
            now = is_open.get(producer_id)
            if now != earlier:
                if earlier is not None:
                    self.pending.end(producer_id)
                if now is not None:
                    self.pending.begin(producer_id, now.first_offset)
        for producer_id in self._lost:
            if producer_id not in before:
                self.pending.end(producer_id)
        del self._lost[:]

    def _end_all(self, offset: int, position: int) -> None:
        self._lost.frombytes(np.ascontiguousarray(self._open.rows()[:, 2]).tobytes())
        super()._end_all(offset, position)


class StableFront:
    """Follows the transactions of a stream, ahead of its decoding.

    Its memory is proportional to the number of batches not released yet, of open transactions, and, for `finish`, of
    transactions whose marker was lost. The work for each call is proportional to the bytes that are new to it, to the
    batches that can be decoded, and to the transactions that begin or end in them. It does not depend on the number of
    open or ended transactions.

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
        self._tracker = _StreamTracker(options)
        self._table_bytes = followed_table_bytes(table_limit(options.limits))
        self._listed = None if aborted is None else ListedAborts(aborted)
        # A list decides all transactions. Under "raise" and "stop", only damage outside of the requested offsets is
        # passed over.
        self._losses = LossFollower(is_final=options.on_error != "skip") if aborted is None else None
        # Whether damage has ended the reading.
        self._has_ended = False
        # Position and producer id of each batch. Those that are not released begin at number `_first`.
        self._positions = array("q")
        self._producers = array("q")
        self._first = 0
        # The transactions that are not released: the aborted ones, and the ones whose markers are lost.
        self._aborted = EndedTransactions()
        self._undecided = EndedTransactions()
        # Producer id and first offset of every transaction whose marker is lost.
        self._all_undecided = array("q")
        # The last options that were returned, and what they depend on.
        self._restricted: tuple[object, DecodeOptions] | None = None

    def follow(self, windows: Windows) -> None:
        """Follow the transactions in all batches that are complete so far."""
        reader = self.reader
        self._count_kept()
        while reader.error is None and not reader.stopped and reader.position < windows.end:
            if reader.waits(windows):
                break
            begin = reader.position
            table = reader.read(windows, max_bytes=self._table_bytes, splits=False)
            if reader.position == begin and not len(table.batches):
                break
            self._add(table, windows.window(begin, windows.end), begin)
        if self._losses is None or self._has_ended:
            return
        if reader.stopped or reader.error is not None:
            self._has_ended = True
            self._tracker.replay(self._losses.end())
            self._note_ended(np.empty(0, BATCH_DTYPE))
        elif windows.is_final and reader.options.on_error == "skip":
            self._tracker.replay(self._losses.finish())
            self._note_ended(np.empty(0, BATCH_DTYPE))

    def restrict(self, options: DecodeOptions, windows: Windows) -> DecodeOptions:
        """Return `options` that leave out aborted transactions, and transactions that remain undecided."""
        # No batch before the decided position is undecided, except at the end of the stream.
        stable = None if self._listed is not None else self._tracker.stable_position
        limit = stable if self._returns_all(windows.is_final) else None
        stop = bisect_left(self._positions, self.decided_end(windows), self._first)
        # Several tables may be decoded from the same bytes.
        key = self.reader.position, stop, limit
        if self._restricted is None or self._restricted[0] != key:
            producer_ids = array("q")
            if len(self._aborted) or len(self._undecided) or self._listed is not None:
                producer_ids = as_array(np.unique(np.array(self._producers[self._first : stop], np.int64)))
            aborted = self._aborted.of_producers(producer_ids, stable)
            if self._listed is not None:
                aborted = np.concatenate([aborted, self._listed.open_entries(producer_ids)])
            undecided = self._undecided.of_producers(producer_ids, stable)
            withheld = Withheld(_ranges(aborted), _ranges(undecided), limit)
            self._restricted = key, replace(options, withheld=withheld)
        return self._restricted[1]

    def _returns_all(self, is_final: bool) -> bool:
        """Whether undecided transactions remain undecided, so that their batches are returned with that status."""
        return (is_final and self.reader.error is None) or self.reader.stopped

    def decided_end(self, windows: Windows) -> int:
        """Return the position up to which batches can be decoded now."""
        if self._returns_all(windows.is_final):
            return windows.end
        stable = None if self._listed is not None else self._tracker.stable_position
        return self.reader.position if stable is None else stable

    def pending(self, *, is_finished: bool = False) -> dict[str, Any]:
        """Return the transactions withheld so far, as arguments of RecordTable.

        Transactions whose markers are lost are included until they are released, and all of them at the end.
        """
        if self._listed is not None:
            return {}
        pending: Callable[[], list[tuple[int, int]]] = self._tracker.pending.snapshot()
        if is_finished:
            lost = np.array(self._all_undecided, np.int64).reshape(-1, 2)
            transactions = self._tracker.result()

            def pending() -> list[tuple[int, int]]:
                return sorted(
                    [*transactions.pending, *((one, first) for one, first in lost.tolist())], key=lambda pair: pair[1]
                )

        return {"pending": pending, "last_stable_offset": self.last_stable_offset}

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset of the first open transaction; None without one, or if a list decides."""
        return None if self._listed is not None else self._tracker.last_stable_offset

    def _add(self, table: RecordTable, data: npt.NDArray[np.uint8], origin: int) -> None:
        """Follow the batches of a table.

        Parameters
        ----------
        table : RecordTable
            The next batches and losses, up to the reader's position.
        data : ndarray of uint8
            A window of the stream with all good batches of the table.
        origin : int
            Position of ``data[0]`` in the stream.
        """
        good = counts_for_transactions(table.batches, self.reader.options)
        follow_batches(self._tracker, self._losses, table.batches, good, table.losses, lambda _: (data, origin))
        batches = table.batches if good.all() else table.batches[good]
        if len(batches):
            self._positions.frombytes(batches["position"].tobytes())
            self._producers.frombytes(batches["producer_id"].tobytes())
        self._note_ended(batches)

    def _note_ended(self, batches: npt.NDArray[np.void]) -> None:
        """Take over the transactions that have ended, the listed ones by these next batches."""
        ended = self._tracker.drain()
        if self._listed is not None:
            producers, _, positions = ended.abort_markers
            self._aborted.add(self._listed.follow(batches, (producers, positions)).tolist())
            self._count_kept()
            return
        self._aborted.add(_spans(ended.aborted, ended.aborted_spans))
        undecided = list(_spans(ended.undecided, ended.undecided_spans))
        self._undecided.add(undecided)
        for (producer_id, _, last), first_offset in zip(
            undecided, ended.undecided["first_offset"].tolist(), strict=True
        ):
            self._all_undecided.extend((producer_id, first_offset))
            self._tracker.pending.add_undecided(producer_id, first_offset, last)
        self._count_kept()

    def _count_kept(self) -> None:
        self._tracker.count_kept(len(self._aborted) + len(self._undecided), len(self._all_undecided) // 2)

    def table_bytes(self, max_bytes: int) -> int:
        """Return `max_bytes` for a table, or less if the transactions take more than a quarter of the limit."""
        limit = table_limit(self.reader.options.limits)
        return min(max_bytes, limit - max(self._tracker.used_bytes - limit // 4, 0))

    def release(self, position: int) -> None:
        """Forget the batches before `position`, which have been returned."""
        self._first = bisect_left(self._positions, position, self._first)
        if 2 * self._first >= len(self._positions):
            del self._positions[: self._first], self._producers[: self._first]
            self._first = 0
        self._aborted.release(position)
        self._undecided.release(position)
        self._tracker.pending.release(position)


def _ranges(rows: npt.NDArray[np.int64]) -> AbortedRanges:
    return AbortedRanges(*rows.T, by="position")


def _spans(rows: npt.NDArray[np.void], spans: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    return zip(rows["producer_id"].tolist(), *spans.T.tolist(), strict=True)
