"""Damage: whether the length of a bad batch is right, where reading resumes, and which bytes are lost."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import good_crcs
from kbatch.batches.framing import entry_size, max_entry_size, plausible_size, scan_part, size_by_fields
from kbatch.batches.pooled import PooledRows
from kbatch.errors import Fault, Finding, finding_text
from kbatch.format import (
    BATCH_DTYPE,
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_AT,
    MIN_ENTRY_SIZE,
    MIN_RECORD_SIZE,
    SHORTEST_ENTRY,
    Limits,
)
from kbatch.kernels.damaged import frame_damaged
from kbatch.kernels.search import EntryChecksums, follow_lengths
from kbatch.quantities import MAX_DECOMPRESSED_BYTES
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.windows import Windows
from kbatch.records.loss_list import Loss
from kbatch.transactions import MAX_LOST_HEADERS

__all__ = ["DamageEngine", "LengthVerdict", "Resumption", "most_records"]

_NO_ENTRY, _ENTRY, _MORE_NEEDED = range(3)
_HEADER_ROWS = 64
# The maximum number of batches and of losses that are framed at a time where damage is frequent.
_FRAMED_ROWS = 4096
_FRAMED_LOSSES = 1024
# The length field of a batch without records.
_LENGTH_OF_EMPTY = np.frombuffer((BATCH_HEADER_SIZE - LOG_OVERHEAD).to_bytes(4, "big"), np.uint8)
_LENGTH_TOO_LONG = Finding(Fault.LENGTH_TOO_LONG)


class LengthVerdict(enum.Enum):
    """Whether the length of a bad batch is right."""

    FOLLOW = "it is right: the next entry begins after the batch"
    SEARCH = "it may be wrong: the next entry has to be searched for"
    WAIT = "the decision needs bytes that are not known yet"


def most_records(limits: Limits) -> int:
    """Return the largest record count of a batch that a search accepts: with more, none can be decoded.

    Lower limits do not hide a batch from the search, so that it is an error or a loss that names them.
    """
    return max(limits.max_decompressed_bytes, MAX_DECOMPRESSED_BYTES) // MIN_RECORD_SIZE


class Resumption(NamedTuple):
    """Where reading resumes after damage.

    Attributes
    ----------
    position : int
    loss : tuple or None
        Position, length, reason and base offset of the lost bytes. None if there is no damage, only an incomplete last
        batch.
    headers : ndarray of BATCH_DTYPE
        Headers in the damage, if only headers are read: the first one, unless the reader has framed it, and the ones
        after it, if their lengths lead to `position`.
    """

    position: int
    loss: tuple[int, int, Finding | str, int | None] | None
    headers: npt.NDArray[np.void]


class _MoreNeededError(Exception):
    """A decision needs the bytes of the source up to position `args[0]`, which are not known yet."""


@dataclass(slots=True)
class _Search:
    """Damage whose end is not known yet."""

    start: int
    reason: Finding | str
    base_offset: int | None
    # Whether the source ends within the entry, which is damage only if another entry follows.
    is_tail: bool
    # The next position to search, and whether the fields of the damaged entry may still show where it ends.
    cursor: int
    tries_fields: bool = True
    # The header chain from the end of the bad batch: its last entry, the end of that, and whether it can be followed.
    last: int = -1
    chain: int = -1
    chain_holds: bool = False
    headers: PooledRows = field(default_factory=lambda: PooledRows(BATCH_DTYPE))


class DamageEngine:
    """Finds the end of damage in a source. All decisions between a length and a checksum are made here.

    The reader of the source reports a bad batch to `judge`, which returns a `LengthVerdict`. If the length may be
    wrong, the reader begins a search (`begin`) and calls `resume` until the end of the damage is known. Buffers, files
    and streams only supply windows of bytes.

    Parameters
    ----------
    options : DecodeOptions

    Attributes
    ----------
    needed : int
        After a decision that has to wait: the position up to which the source has to be known before it can be made.
    reached : int or None
        The last offset of the last good batch; the reader sets it.
    suspect_end : int
        Entries that begin before this position are inside of a batch with a wrong length. They are decoded only if
        their checksum is good, also under ``crc="skip"``.

    Notes
    -----
    **No loss is silent.** Reading advances in two ways only: over an entry, which gives a row of ``table.batches``, or
    from the start of a search to its end, which gives a `Loss` of exactly these bytes. An incomplete last entry is not
    read and not counted as consumed.

    **The result does not depend on windows, chunks and flushes.** Each decision depends only on the bytes of the
    source, the position of its end, and earlier decisions. If a decision needs a byte that is not known yet, it waits;
    the number of known bytes never decides. The same engine reads the whole source and keeps its state across windows.

    **The size limit is the same for every source.** It applies to the length field, before any byte of the entry is
    requested: an entry with a larger length is damage. The exception is the last entry of a fetch response or of a file
    that is being written, if the source ends within it and no valid entry follows its header: it is incomplete, and its
    length does not matter (FRM-R6). A stream, whose end is not known, and a file that is no longer written have no such
    entry.

    **An entry whose length, magic and checksum are valid is returned after any damage.** A search tests every position
    after the start of the damage, in order, and ends at the first valid entry. No budget limits the number of wrong
    headers. There are four exceptions. An entry inside of another one whose length was followed is not returned, since
    values may contain batches; one forged header suffices for this, if its length ends at the end of the source or
    where a good batch begins (`judge`). An entry larger than the limit is not returned, nor is what no writer makes: a
    batch with more records than its bytes, or the limit on its payload, allow, and a message with a key of more than 1
    MiB or more than 1 KiB after its value. An uncompressed message of magic 0 or 1 is not returned if its offset cannot
    follow the last good one, since compressed data contains parts of its input unchanged (`EntryChecksums.find`). The
    search verifies checksums also under ``crc="skip"``.

    **The cost is linear in the input.** Each byte is searched once: a search begins after the start of its damage, and
    the next one begins after its end. All checksums come from running checksums, which sum each byte once; after that,
    the checksum of a range has the same cost for any length (`EntryChecksums`). A bad batch is decoded only if it
    begins at or after `suspect_end`, or if its checksum is good. The first case moves `suspect_end` to its end, and in
    the second its length is followed. So each byte is decoded at most twice, and twice more if `judge` has to wait. The
    header chain is followed once per search, and not beyond the end of the search.
    """

    def __init__(self, options: DecodeOptions) -> None:
        self.max_size = max_entry_size(options.limits)
        self._max_records = most_records(options.limits)
        self.needed = 0
        self.reached: int | None = None
        self.suspect_end = 0
        self._verifies = options.crc == "verify"
        self._keeps_headers = options.framing_only
        self._checksums = EntryChecksums()
        self._search: _Search | None = None

    @property
    def is_searching(self) -> bool:
        """Whether there is damage whose end is not known yet."""
        return self._search is not None

    @property
    def open_loss(self) -> Loss | None:
        """The damage whose end is not known yet, as a loss of length 0."""
        search = self._search
        if search is None:
            return None
        reason = search.reason if isinstance(search.reason, str) else finding_text(search.reason)
        return Loss(search.start, 0, reason, search.base_offset)

    @property
    def search_position(self) -> int:
        """The position before which all bytes of the damage have been searched."""
        assert self._search is not None
        return self._search.start if self._search.tries_fields else self._search.cursor

    def first_byte(self, position: int) -> int:
        """Return the first byte that is still needed if all bytes before `position` have been read."""
        search = self._search
        if search is None:
            return self._checksums.first_byte(position)
        if search.tries_fields:
            return min(position, self._checksums.first_byte(search.start))
        first = self._checksums.first_byte(search.cursor)
        return min(first, search.chain) if search.chain_holds else first

    # -- one bad batch

    def judge(self, windows: Windows, position: int, size: int, fault: Fault) -> LengthVerdict:
        """Decide whether the length of the bad batch at `position` is right: no checksum covers it.

        It is right if the checksum of these bytes is good, if the source ends there, or if an entry with a good
        checksum follows. Unless checksums are verified, any valid header suffices.
        """
        try:
            holds = self._length_holds(windows, position, size, fault)
        except _MoreNeededError as error:
            self.needed = error.args[0]
            return LengthVerdict.WAIT
        if not holds:
            self.suspect_end = max(self.suspect_end, position + size)
        return LengthVerdict.FOLLOW if holds else LengthVerdict.SEARCH

    def _length_holds(self, windows: Windows, position: int, size: int, fault: Fault) -> bool:
        end = position + size
        if fault != Fault.BAD_CRC and self._entry_holds(windows, position, size, lowest=position):
            return True
        if end == windows.end and windows.is_final:
            return True
        window = self._bytes(windows, end, end + MIN_ENTRY_SIZE)
        following = None if window is None else plausible_size(window, 0)
        if following is None or following > self.max_size:
            return False
        return not self._verifies or self._entry_holds(windows, end, following, lowest=position)

    def bad_crcs(self, windows: Windows, batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Return for each batch whether its checksum is bad."""
        spans = list(zip(batches["position"].tolist(), batches["size"].tolist(), strict=True))
        first = spans[0][0]
        if first >= self.suspect_end:
            return ~good_crcs(windows.window(first, sum(spans[-1])), batches, first)
        return np.array([not self._entry_holds(windows, *span, lowest=span[0]) for span in spans])

    def first_bad(self, windows: Windows, batches: npt.NDArray[np.void], row: int, end: int) -> tuple[int, int]:
        """Return the first row from `row` up to `end` with a bad checksum, and the checksum of its bytes."""
        first = self._checksums.first_byte(int(batches["position"][row]))
        window = windows.window(first, int(batches["position"][end - 1] + batches["size"][end - 1]))
        return self._checksums.first_bad(window, first, batches, row, end)

    # -- frequent damage

    def frame(
        self, windows: Windows, window: npt.NDArray[np.uint8], span: tuple[int, int, int], rows: PooledRows, room: int
    ) -> tuple[int, npt.NDArray[np.int64], bool]:
        """Frame batches, and pass over the damage between them, with few calls for many losses.

        Parameters
        ----------
        windows : Windows
        window : ndarray of uint8
        span : (int, int, int)
            The positions of the window, of the first batch, and of the end of the batches.
        rows : PooledRows
            Gets the rows of the batches, as `frame_damaged` fills them.
        room : int
            The memory for rows and losses, in bytes.

        Returns
        -------
        position : int
            Where the last batch or loss ends: the first position if another step has to decide.
        losses : ndarray of int64
            For `LossList._append_rows`.
        is_damaged : bool
            Whether there may be more damage close by.
        """
        origin, position, stop = span
        rows.reserve(min(_FRAMED_ROWS, room // (2 * BATCH_DTYPE.itemsize)))
        losses = np.empty((min(_FRAMED_LOSSES, room // 256), 6), np.int64)
        framed = frame_damaged(
            self._checksums,
            window,
            origin,
            position,
            min(stop, position + room // 4),
            rows.array[rows.used :],
            losses,
            max_size=self.max_size,
            max_records=self._max_records,
            source_end=windows.end if windows.is_final else None,
            keeps_headers=self._keeps_headers,
        )
        rows.used += framed.rows
        self.suspect_end = max(self.suspect_end, framed.suspect_end)
        return framed.position, losses[: framed.losses], framed.is_damaged and framed.position > position

    # -- the end of damage

    def begin(
        self,
        position: int,
        reason: Finding | str = _LENGTH_TOO_LONG,
        *,
        base_offset: int | None = None,
        size: int | None = None,
        is_tail: bool = False,
    ) -> None:
        """Begin the search for the end of the damage at `position`.

        Parameters
        ----------
        position : int
        reason : Finding or str
        base_offset, size : int, optional
            The base offset and size of the bad batch there, if it could be framed.
        is_tail : bool
            Whether the source may end within the entry there, and does: it is damage only if another entry follows.
        """
        self._search = _Search(position, reason, base_offset, is_tail, position + 1)
        if size is not None:
            self._search.last, self._search.chain, self._search.chain_holds = position, position + size, True

    def resume(self, windows: Windows) -> Resumption | None:
        """Resume the search that was begun.

        Returns
        -------
        Resumption or None
            None if the decision needs bytes that are not known yet: see `needed`.
        """
        search = self._search
        assert search is not None
        try:
            found = self._find(windows, search)
        except _MoreNeededError as error:
            self.needed = error.args[0]
            return None
        self._search = None
        position, is_entry = found
        headers = search.headers.filled()
        leads_there = search.chain_holds and position in (search.chain, search.last)
        headers = headers[: np.searchsorted(headers["position"], position if leads_there else search.start + 1)]
        if search.is_tail and not is_entry:
            return Resumption(search.start, None, headers)
        loss = search.start, position - search.start, search.reason, search.base_offset
        return Resumption(position, loss, headers)

    def entry_after_tail(self, windows: Windows, position: int) -> int | None:
        """Return where an entry begins after the incomplete one at `position`, or None if no valid entry follows.

        The result is the end of the source if the fields of the entry show that it ends there.
        """
        self.begin(position, is_tail=True)
        found = self.resume(windows)
        return None if found is None or found.loss is None else found.position

    def _find(self, windows: Windows, search: _Search) -> tuple[int, bool]:
        """Return where the damage ends, and whether an entry is known to begin there."""
        if search.tries_fields:
            if self._keeps_headers and not search.chain_holds:
                self._keep_first_header(windows, search)
            end = self._end_by_fields(windows, search.start)
            search.tries_fields = False
            if end is not None:
                self._follow_chain(windows, search, end)
                return end, True
        needed = search.cursor + MIN_ENTRY_SIZE
        while True:
            first = self.first_byte(search.cursor)
            window = windows.window(first, needed)
            status, search.cursor, needed = self._checksums.find(
                window,
                first,
                search.cursor,
                windows.end,
                max_size=self.max_size,
                max_records=self._max_records,
                source_end=windows.end if windows.is_final else None,
                reached=self.reached,
            )
            self._follow_chain(windows, search, search.cursor)
            if status == _ENTRY:
                return search.cursor, True
            if status == _NO_ENTRY:
                return self._end_without_entry(windows, search)
            if needed > windows.end:
                raise _MoreNeededError(needed)

    def _end_without_entry(self, windows: Windows, search: _Search) -> tuple[int, bool]:
        """Return the end of damage that no valid entry follows: an incomplete last entry, if the chain leads there."""
        stop = windows.end
        if windows.is_bounded:
            return stop, True
        self._follow_chain(windows, search, stop)
        if search.chain_holds and not search.is_tail:
            return (search.last if search.chain > stop else search.chain), False
        return stop, False

    def _follow_chain(self, windows: Windows, search: _Search, stop: int) -> None:
        """Follow the header chain after a bad batch up to `stop`, and keep its headers."""
        while search.chain_holds and search.chain < stop:
            before = search.chain
            keeps_headers = self._keeps_headers and search.headers.used <= MAX_LOST_HEADERS
            if keeps_headers:
                search.headers.reserve(_HEADER_ROWS)
            window = windows.window(before, min(before + (1 << 16), stop))
            last, search.chain, search.chain_holds, used = follow_lengths(
                window,
                before,
                before,
                stop,
                self.max_size,
                search.headers.array if keeps_headers else None,
                search.headers.used if keeps_headers else 0,
            )
            search.last = max(search.last, last)
            if search.chain == before and (not keeps_headers or used == search.headers.used):
                return
            if keeps_headers:
                search.headers.used = min(used, MAX_LOST_HEADERS + 1)

    def _keep_first_header(self, windows: Windows, search: _Search) -> None:
        """Keep the header where the damage begins: the fields after a wrong length or magic may be right."""
        window = self._bytes(windows, search.start, search.start + BATCH_HEADER_SIZE)
        if window is None:
            return
        header = window[:BATCH_HEADER_SIZE].copy()
        header[LOG_OVERHEAD - len(_LENGTH_OF_EMPTY) : LOG_OVERHEAD] = _LENGTH_OF_EMPTY
        header[MAGIC_AT] = 2
        search.headers.used = 0
        search.headers.extend(scan_part(header).batches)
        search.headers.filled()["position"] = search.start

    def _end_by_fields(self, windows: Windows, position: int) -> int | None:
        """Return the end of the entry at `position`, whose length field or magic is wrong, if other fields show it.

        The checksum of magic 0 and 1 does not cover the length field, but it covers the lengths of key and value: if it
        is good for the bytes up to the end of the value, the message ends there. If the magic is wrong, a valid entry
        after the batch shows that the length is right.
        """
        window = self._bytes(windows, position, position + SHORTEST_ENTRY)
        if window is None:
            return None
        if window[MAGIC_AT] <= 1:
            size = self._size_by_fields(windows, position)
            if size is not None and self._entry_holds(windows, position, size, lowest=position):
                return position + size
        size = entry_size(window, 0)
        if not SHORTEST_ENTRY <= size <= self.max_size:
            return None
        end = position + size
        window = self._bytes(windows, end, end + MIN_ENTRY_SIZE)
        following = None if window is None else plausible_size(window, 0)
        if following is None or following > self.max_size:
            return None
        return end if self._entry_holds(windows, end, following, lowest=position) else None

    def _size_by_fields(self, windows: Windows, position: int) -> int | None:
        """Return the size of the message at `position` by the lengths of its key and value."""
        known = SHORTEST_ENTRY
        while known <= self.max_size:
            window = self._bytes(windows, position, position + known)
            if window is None:
                return None
            size, known = size_by_fields(window[:known], 0)
            if size is not None:
                return size if size <= self.max_size else None
        return None

    # -- bytes

    def _entry_holds(self, windows: Windows, position: int, size: int, *, lowest: int) -> bool:
        """Whether the entry is complete and its checksum good; later calls need no byte before `lowest`."""
        first = self._checksums.first_byte(lowest)
        window = self._bytes(windows, first, position + size)
        return window is not None and self._checksums.holds(window, first, position, size, lowest=lowest)

    def _bytes(self, windows: Windows, start: int, stop: int) -> npt.NDArray[np.uint8] | None:
        """Return the bytes from `start` up to `stop` at least; None if the source ends before."""
        if stop > windows.end:
            if windows.is_final:
                return None
            raise _MoreNeededError(stop)
        return windows.window(start, stop)
