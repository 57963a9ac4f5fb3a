"""Damage: whether the length of a bad batch holds, where reading resumes, and what is lost in between."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import good_crcs
from kbatch.batches.framing import entry_size, max_entry_size, plausible_size, size_by_fields
from kbatch.batches.pooled import PooledRows
from kbatch.errors import Fault
from kbatch.format import BATCH_DTYPE, MAGIC_AT, MIN_ENTRY_SIZE, SHORTEST_ENTRY
from kbatch.kernels.search import EntryChecksums, follow_lengths
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.windows import Windows
from kbatch.records.data import Loss

__all__ = ["LENGTH_TOO_LONG", "DamageEngine", "LengthVerdict", "Resumption"]

LENGTH_TOO_LONG = "length field reaches beyond batches that are whole"
_NO_ENTRY, _ENTRY, _MORE_NEEDED = range(3)
_CONTROL_ROWS = 64


class LengthVerdict(enum.Enum):
    """What follows a bad batch."""

    FOLLOW = "the length in its header holds: the next entry begins after it"
    SEARCH = "the length cannot be trusted: the next entry has to be searched for"
    WAIT = "bytes that are not known yet decide"


class Resumption(NamedTuple):
    """Where reading resumes after damage.

    Attributes
    ----------
    position : int
    loss : Loss or None
        None if there turned out to be no damage: an incomplete last batch.
    markers : ndarray of BATCH_DTYPE
        The control batches in the damage, where only headers are read and their lengths lead to `position`.
    """

    position: int
    loss: Loss | None
    markers: npt.NDArray[np.void]


class _MoreNeededError(Exception):
    """A decision needs the bytes of the source up to position `args[0]`, which are not known yet."""


@dataclass(slots=True)
class _Search:
    """Damage whose end is not known yet."""

    start: int
    reason: str
    base_offset: int | None
    # Whether it is an incomplete last entry, which is damage only if another entry follows.
    is_tail: bool
    # Where an entry may begin, and whether the damaged entry itself may still show where it ends.
    cursor: int
    tries_fields: bool = True
    # What the lengths lead to from the end of a bad batch: the last entry, its end, and whether they can be followed.
    last: int = -1
    chain: int = -1
    chain_holds: bool = False
    control: PooledRows = field(default_factory=lambda: PooledRows(BATCH_DTYPE))


class DamageEngine:
    """Finds the end of damage in a source. The only place where lengths and checksums are weighed against each other.

    The reader of the source reports a bad batch to `judge`, which returns a `LengthVerdict`. Unless the length holds,
    the reader begins a search (`begin`) and has it resumed (`resume`) until the end of the damage is known. A buffer, a
    file and a stream only supply windows of bytes.

    Parameters
    ----------
    options : DecodeOptions

    Attributes
    ----------
    needed : int
        After a decision that has to wait: the position up to which the source has to be known. To ask before that
        changes nothing.
    reached : int or None
        The last offset of the last good batch, as the reader knows it.
    suspect_end : int
        Entries that begin before this position lie in bytes that a wrong length claimed. They are decoded only if
        their checksum holds, whatever the option `crc` is.

    Notes
    -----
    **No loss is silent.** Reading advances in two ways only: over an entry, which gives a row of ``table.batches``, or
    from the start of a search to its end, which gives a `Loss` of exactly these bytes. An incomplete last entry is left
    where it is, and not counted as read.

    **The result does not depend on windows, cuts and flushes.** Each decision is a function of the bytes of the source,
    of where it ends, and of what came before. Where a byte that it needs is not known yet, the answer is to wait:
    nothing is decided by how much is there. State is kept across windows, so that it is the same engine that goes
    through the source however it is cut. One exception is outside of this class: under read_committed the offsets of
    batches have to ascend, since a stream does not take back what it has returned (`StreamDecoder`).

    **The size limit is the same for every source.** It is applied to the length field, before anything is asked for: an
    entry that claims more is damage. The exception is an entry that a fetch response or a file that is being written
    ends within, if no valid entry follows its header: it is incomplete, whatever it claims (FRM-R6). A stream, whose
    end is not known, and a file that is no longer written have no such entry.

    **An entry whose length, magic and checksum are valid is returned, whatever came before it.** A search looks at
    every position after the start of the damage, in order, and ends at the first valid entry. There is no budget that
    wrong headers could use up. The exceptions: an entry inside another one whose length was followed, since values may
    hold batches (one forged header suffices, if its length ends where the source does or where a good batch begins: see
    `judge`); an entry larger than the limit; and an uncompressed message of magic 0 or 1 whose offset cannot
    follow the last good one, since codecs keep stretches of what they compress (`EntryChecksums.find`). The search
    verifies checksums also under ``crc="skip"``.

    **The cost is linear in the input.** A byte is searched once: a search begins after the start of its damage, and the
    next one after its end. Every checksum that a decision needs comes from running checksums, which sum a byte once and
    then cost the same for any length (`EntryChecksums`). A bad batch is decoded only if it begins at or after
    `suspect_end`, or if its checksum holds. The first moves `suspect_end` beyond it, and the second is followed by its
    length, so that a byte is decoded at most twice, and twice more where `judge` has to wait. The chain of lengths is
    followed once per search, and no further than the search.
    """

    def __init__(self, options: DecodeOptions) -> None:
        self.max_size = max_entry_size(options.limits)
        self.needed = 0
        self.reached: int | None = None
        self.suspect_end = 0
        self._verifies = options.crc == "verify"
        self._keeps_markers = options.framing_only
        self._checksums = EntryChecksums()
        self._search: _Search | None = None

    @property
    def is_searching(self) -> bool:
        """Whether there is damage whose end is not known yet."""
        return self._search is not None

    @property
    def open_loss(self) -> Loss | None:
        """The damage whose end is not known yet, without a length."""
        search = self._search
        return None if search is None else Loss(search.start, 0, search.reason, search.base_offset)

    @property
    def search_position(self) -> int:
        """The position up to which the bytes of the damage have been searched."""
        assert self._search is not None
        return self._search.start if self._search.tries_fields else self._search.cursor

    def first_byte(self, position: int) -> int:
        """Return the first byte that is still needed, where all before `position` has been read."""
        search = self._search
        if search is None:
            return self._checksums.first_byte(position)
        if search.tries_fields:
            return min(position, self._checksums.first_byte(search.start))
        first = self._checksums.first_byte(search.cursor)
        return min(first, search.chain) if search.chain_holds else first

    # -- one bad batch

    def judge(self, windows: Windows, position: int, size: int, fault: Fault) -> LengthVerdict:
        """Decide whether the length of the bad batch at `position` holds: no checksum covers it.

        It holds if the checksum of these bytes does, if the source ends there, or if an entry whose checksum holds
        follows. Where checksums are not asked for, any header of an entry will do.
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

    # -- the end of damage

    def begin(
        self,
        position: int,
        reason: str = LENGTH_TOO_LONG,
        *,
        base_offset: int | None = None,
        size: int | None = None,
        is_tail: bool = False,
    ) -> None:
        """Begin to search for the end of the damage at `position`.

        Parameters
        ----------
        position : int
        reason : str
        base_offset, size : int, optional
            Of the bad batch there, if it could be framed.
        is_tail : bool
            Whether it is an entry that the source ends within, and may end within: no damage unless another follows.
        """
        self._search = _Search(position, reason, base_offset, is_tail, position + 1)
        if size is not None:
            self._search.last, self._search.chain, self._search.chain_holds = position, position + size, True

    def resume(self, windows: Windows) -> Resumption | None:
        """Resume the search that was begun.

        Returns
        -------
        Resumption or None
            None if bytes that are not known yet decide: see `needed`.
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
        control = search.control.filled()
        leads_there = search.chain_holds and position in (search.chain, search.last)
        markers = control[control["position"] < (position if leads_there else 0)]
        if search.is_tail and not is_entry:
            return Resumption(search.start, None, markers)
        loss = Loss(search.start, position - search.start, search.reason, search.base_offset)
        return Resumption(position, loss, markers)

    def entry_after_tail(self, windows: Windows, position: int) -> int | None:
        """Return where an entry begins after the one at `position`, which the source ends within; None if none does.

        It is the end of the source, if the damaged entry itself shows that it ends there.
        """
        self.begin(position, is_tail=True)
        found = self.resume(windows)
        return None if found is None or found.loss is None else found.position

    def _find(self, windows: Windows, search: _Search) -> tuple[int, bool]:
        """Return where the damage ends, and whether an entry is known to begin there."""
        if search.tries_fields:
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
        """Return where damage ends after which no entry is valid: at the incomplete last one, if lengths lead to it."""
        stop = windows.end
        if windows.is_bounded:
            return stop, True
        self._follow_chain(windows, search, stop)
        if search.chain_holds and not search.is_tail:
            return (search.last if search.chain > stop else search.chain), False
        return stop, False

    def _follow_chain(self, windows: Windows, search: _Search, stop: int) -> None:
        """Follow the lengths after a bad batch up to `stop`, and keep the control batches among them."""
        while search.chain_holds and search.chain < stop:
            before = search.chain
            if self._keeps_markers:
                search.control.reserve(_CONTROL_ROWS)
            window = windows.window(before, min(before + (1 << 16), stop))
            last, search.chain, search.chain_holds, used = follow_lengths(
                window,
                before,
                before,
                stop,
                self.max_size,
                search.control.array if self._keeps_markers else None,
                search.control.used,
            )
            search.last = max(search.last, last)
            if search.chain == before and used == search.control.used:
                return
            search.control.used = used

    def _end_by_fields(self, windows: Windows, position: int) -> int | None:
        """Return where the entry at `position` ends whose length field or magic is wrong, if it shows otherwise.

        The checksum of magic 0 and 1 does not cover the length, but those of key and value: if it holds up to where
        they end, the message ends there. Where the magic is wrong, what follows by the length shows that it is right.
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
        """Return the bytes that the message at `position` takes by the lengths of its key and value."""
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
        """Whether the entry is all there and holds its checksum; `lowest` is the lowest position still asked about."""
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
