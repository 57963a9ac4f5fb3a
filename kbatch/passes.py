"""One pass over a stretch of batches: frame them, have a table built of them, and deal with the damage among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.building import TableBuilder
from kbatch.checksums import crc_holds, good_crcs
from kbatch.decode_options import DecodeOptions
from kbatch.errors import Fault, Finding, fault_status, finding_text, finding_to_error
from kbatch.format import MIN_ENTRY_SIZE, BatchStatus
from kbatch.framing import (
    Claims,
    damaged_end,
    find_batch,
    first_offsets,
    frame,
    may_end_later,
    most_believed,
    scan_part,
)
from kbatch.table import Loss, RecordTable
from kbatch.transactions import lost_markers

__all__ = ["Part", "decode_part", "decode_parts"]

# How many batches are framed at a time: right after damage, at the beginning, and later. What a window's headers and
# rows take stays in the cache until they are decoded. Several threads share a window, which is all
# that is left.
_FEW_BATCHES = 16
_FIRST_BATCHES = 1 << 10
_WINDOW_BATCHES = 4 << 10
_SHARED_WINDOW_BATCHES = 1 << 16


@dataclass(slots=True)
class Part:
    """What `decode_part` made of a stretch of a larger source.

    Attributes
    ----------
    table : RecordTable
    searching : bool
        Whether the stretch ended in the middle of damage: the next one has to begin with a search for a batch.
    stopped : bool
        Whether nothing after this is wanted: ``on_error="stop"`` met damage.
    """

    table: RecordTable
    searching: bool
    stopped: bool


class _Pass:
    """One pass over a buffer: frames batches for a `TableBuilder`, and decides what follows a bad one."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        options: DecodeOptions,
        *,
        origin: int,
        source: str | None,
        max_bytes: int | None,
        final: bool,
        followed: bool,
        searching: bool,
        patience: int,
        max_size: int | None,
        claims: Claims | None,
        until: int | None,
        room: tuple[int, int] | None,
    ) -> None:
        self.data = data
        self.options = options
        self.origin = origin
        self.source = source
        self.final = final
        self.followed = followed
        self.searching = searching
        self.patience = patience
        self.max_size = max_size
        self._claims = claims
        self.until = len(data) if until is None else until
        self.builder = TableBuilder(data, options, origin=origin, max_bytes=max_bytes, expected=room)
        self.stopped = False
        self.losses: list[Loss] = []
        # The batches framed so far reach to this byte of `data`.
        self.position = 0
        # After damage few batches are framed at a time, and then ever more: what is framed may turn out to be void.
        self.scan_size: int | None = _FIRST_BATCHES if options.threads <= 1 else None
        # From here to the end of `data` a search has found no batch.
        self.barren = len(data) + 1

    # -- framing

    def run(self) -> Part:
        if self.searching:
            self._resume(*self._find(0), "no batch begins here")
        while not self.searching and not self.stopped and self.position < self.until:
            finding, more = self._scan()
            framed = self.position
            if not self._decode_rows():
                break
            if more or self.position != framed:
                # If the position has changed, a length could not be followed: what was framed after it is void.
                continue
            if finding is not None:
                self._bad_framing(finding)
            elif not self._resume_after_partial():
                break
        if self._claims is not None:
            self._reach()
        table = self.builder.finish(consumed=self.position, losses=self.losses, source=self.source)
        return Part(table, self.searching, self.stopped)

    @property
    def claims(self) -> Claims:
        """What wrong lengths have cost: few inputs have any."""
        if self._claims is None:
            self._claims = Claims(len(self.data))
        return self._claims

    def _scan(self) -> tuple[Finding | None, bool]:
        """Frame what begins at `position` and append the rows that are wanted; tell also if there is more to frame."""
        rows = self.builder.batches
        data = self.data if self.until == len(self.data) else self.data[: self.until]
        first = rows.used
        end, finding = self._frame(data, self.scan_size)
        more = rows.used - first == self.scan_size
        if self.until < len(self.data) and finding is None and end < self.until:
            # What begins before the end that is asked for may reach beyond it.
            if rows.used == first:
                end, finding = self._frame(self.data, 1)
            more = rows.used > first
        if self.scan_size is not None:
            self.scan_size *= 2
            if self.options.threads <= 1:
                self.scan_size = min(self.scan_size, _WINDOW_BATCHES)
            elif self.scan_size > _SHARED_WINDOW_BATCHES:
                self.scan_size = None
        batches = rows.filled()[first:]
        if self.builder.trimmed and not self.options.framing_only and len(batches):
            wanted = self.builder.may_have_records(batches)
            if self.options.on_error == "skip":
                # Of a damaged header neither the offsets are believed nor the length, which may hide batches.
                others = np.flatnonzero(~wanted)
                wanted[others] = ~good_crcs(self.data, batches[others], self.origin)
            rows.used = first
            rows.extend(batches[wanted])
            batches = rows.filled()[first:]
        if self.options.aborted is not None:
            batches["status"][self.options.aborted.mask(batches)] = BatchStatus.ABORTED
        if self.options.undecided is not None:
            batches["status"][self.options.undecided.mask(batches)] = BatchStatus.UNDECIDED
        if self.options.stable_offset is not None:
            batches["status"][batches["last_offset"] >= self.options.stable_offset] = BatchStatus.UNDECIDED
        self.builder.prepare(first, end - self.position)
        self.position = end
        return finding, more

    def _believed(self) -> int | None:
        """Return what a header may claim at most, in bytes, if that is less than it can."""
        if self._claims is None or self._claims.max_size >= len(self.data):
            return self.max_size
        return self.claims.max_size if self.max_size is None else min(self.max_size, self.claims.max_size)

    def _frame(self, data: npt.NDArray[np.uint8], max_batches: int | None) -> tuple[int, Finding | None]:
        return frame(
            data,
            self.builder.batches,
            origin=self.origin,
            position=self.position,
            max_batches=max_batches,
            max_size=self._believed(),
        )

    def _bad_framing(self, finding: Finding) -> None:
        if self.options.on_error == "raise":
            raise finding_to_error(finding, source=self.source, position=self.origin + self.position)
        if finding.fault == Fault.BATCH_TOO_LARGE and finding.wanted != self.max_size:
            self._lose_framing(f"header claims a batch of {finding.found} bytes, and too many that large were none")
        else:
            self._lose_framing(finding_text(finding))

    def _resume_after_partial(self) -> bool:
        """See whether what looks like the incomplete last batch hides whole ones: a damaged length does that.

        A value of the incomplete batch that is itself a batch can't be told from one: who stores those should not skip.
        """
        left = len(self.data) - self.position
        if self.options.on_error != "skip" or not self.final or left < MIN_ENTRY_SIZE:
            return False
        found_at, found = self._after(self.position)
        if not found:
            return False
        self._lose(self.position, found_at, "length field reaches beyond batches that are whole")
        self.position = found_at
        self.scan_size = _FEW_BATCHES
        return True

    def _lose_framing(self, reason: str) -> None:
        """Nothing can be framed from `position` on: stop there, or go on at the next batch."""
        if self.options.on_error == "stop":
            self._lose(self.position, len(self.data), reason)
            self.stopped = True
        else:
            self._resume(*self._after(self.position), reason)

    def _resume(self, found_at: int, found: bool, reason: str) -> None:
        self._lose(self.position, found_at, reason)
        self.position = found_at
        self.scan_size = _FEW_BATCHES
        # Where the source goes on, what was found at the end of `data` has to be looked at again with more of it.
        self.searching = not found and not self.final

    def _after(self, position: int) -> tuple[int, bool]:
        """Return where to go on after the bad entry at `position`, and whether an entry is known to begin there."""
        end = damaged_end(self.data, position, self.claims)
        return self._find(position + 1) if end is None else (end, True)

    def _find(self, position: int) -> tuple[int, bool]:
        if position < self.barren:
            self._reach()
            most = most_believed(self.options.limits)
            found_at, found = find_batch(self.data, position, max_size=most, final=self.final, claims=self.claims)
            if found or not self.final:
                return found_at, found
            self.barren = position
        return len(self.data), self.followed

    def _reach(self) -> None:
        """Let `claims` know what is reached."""
        if (offset := self.builder.last_good_offset) is not None:
            self.claims.reached = offset

    def _lose(self, start: int, end: int, reason: str, base_offset: int | None = None) -> None:
        if end > start:
            self.losses.append(Loss(self.origin + start, end - start, reason, base_offset))

    # -- batches

    def _decode_rows(self) -> bool:
        """Decode the rows that were framed. False if nothing more is wanted after that."""
        builder = self.builder
        while (bad := builder.decode()) is not None:
            if not self._fail(bad.row, bad.finding):
                return False
        if not builder.is_full:
            return True
        if builder.decoded < builder.batches.used:
            # The rest is for the next table.
            self.position = int(builder.batches.array["position"][builder.decoded]) - self.origin
            builder.drop_batches_from(builder.decoded)
        return False

    def _fail(self, row: int, finding: Finding) -> bool:
        """Do with the bad batch at `row` what `on_error` says. False if that ends everything."""
        rows = self.builder.batches.filled()
        batch = rows[row]
        position, size = int(batch["position"]) - self.origin, int(batch["size"])
        base_offset = int(first_offsets(rows[row : row + 1])[0])
        if self.options.on_error == "raise":
            raise finding_to_error(
                finding, source=self.source, position=self.origin + position, base_offset=base_offset
            )
        self.builder.mark_bad(row, fault_status(finding.fault))
        reason = finding_text(finding)
        if self.options.on_error == "stop":
            self._lose(position, len(self.data), reason, base_offset)
            self.position = position
            self.builder.drop_batches_from(row + 1)
            self.stopped = True
            return False
        end = position + size
        holds = self._length_holds(row, finding, end)
        if not holds:
            self.claims.wrong(size)
            waits = not self.final and (len(self.data) - position < self.patience if self.patience else position > 0)
            found_at, found = len(self.data), False
            if not (waits and (holds is None or not self.patience)):
                found_at, found = self._after(position)
            if waits and (not found or (not self.patience and may_end_later(self.data, position))):
                # What follows may decide it: the next part begins at this batch and sees more of that.
                self.builder.drop_batches_from(row)
                self.position = position
                return False
            if found or not self.final:
                end = found_at
                self.builder.drop_batches_from(row + 1)
                self.position = end
                self.searching = not found
                self.scan_size = _FEW_BATCHES
                if found and self.options.framing_only:
                    self._keep_markers(position, end)
        self._lose(position, end, reason, base_offset)
        return not self.searching

    def _keep_markers(self, position: int, end: int) -> None:
        """Give rows to the markers behind a bad batch, if headers lead over damage to the batch found at `end`."""
        scan = scan_part(self.data[:end], origin=self.origin, position=position)
        if scan.finding is None and scan.consumed == end:
            markers = scan.batches[1:]
            markers = markers[lost_markers(markers)]
            markers["status"] = BatchStatus.BAD_CRC
            self.builder.append_bad(markers)

    def _length_holds(self, row: int, finding: Finding, end: int) -> bool | None:
        """Whether the length of the bad batch at `row` can be followed: it is not covered by the batch's checksum.

        It can if the checksum of these bytes is right, if the source ends there, or if a batch with a good checksum
        follows; any header of a batch will do where checksums are not asked for. None if that takes bytes that are
        still to come.
        """
        position = int(self.builder.batches.array["position"][row]) - self.origin
        if finding.fault != Fault.BAD_CRC and crc_holds(self.data, position, end - position):
            return True
        if end == len(self.data):
            return True if self.final else None
        verify = self.options.crc == "verify"
        follows = scan_part(self.data, position=end, max_batches=1, max_size=self._believed() if verify else None)
        if follows.finding is not None:
            return False
        if verify:
            if len(follows.batches):
                size = int(follows.batches["size"][0])
                if crc_holds(self.data, end, size):
                    return True
                self.claims.wrong(size)
                return False
        elif len(self.data) - end >= MIN_ENTRY_SIZE:
            return True
        return False if self.final else None


def decode_part(
    data: npt.NDArray[np.uint8],
    options: DecodeOptions,
    *,
    origin: int = 0,
    source: str | None = None,
    max_bytes: int | None = None,
    final: bool = True,
    followed: bool = False,
    searching: bool = False,
    patience: int = 0,
    max_size: int | None = None,
    claims: Claims | None = None,
    until: int | None = None,
    room: tuple[int, int] | None = None,
) -> Part:
    """Decode batches from the beginning of `data`, a stretch of a larger source.

    Parameters
    ----------
    data : ndarray of uint8, read-only
    options : DecodeOptions
    origin : int
        Position of ``data[0]`` in the source; batches, losses and errors are told by their position there.
    source : str, optional
        Path of the source, for errors.
    max_bytes : int, optional
        Stop when records, batches and bytes of the table take so much; one batch is decoded at least.
    final : bool
        Whether the source ends where `data` does, or what is read of it.
    followed : bool
        Whether it is known that a batch begins where `data` ends, which then has to be `final`: damage ends there.
    searching : bool
        Whether the part before this one ended in damage: then the first batch has to be found.
    patience : int
        Where bytes that are still to come may decide how far damage reaches, leave it to the next part, unless so many
        bytes of it are there. By 0 it is decided from what is there, at the latest where the part begins with it.
    max_size : int, optional
        What a header may claim at most, in bytes; more is damage.
    claims : Claims, optional
        Those of the whole source; without them what wrong lengths cost is bounded for this stretch only.
    until : int, optional
        Where in `data` to end: a batch that begins there or after it is left. The bytes from there on only tell how far
        damage before them reaches.
    room : (int, int), optional
        The records and the plain bytes that are to be expected of compressed batches, as far as `max_bytes` lets them
        in: there is room for no more at first. Default is as much as there may be.

    Returns
    -------
    Part
        ``table.consumed`` counts from the beginning of `data`.
    """
    return _Pass(
        data,
        options,
        origin=origin,
        source=source,
        max_bytes=max_bytes,
        final=final,
        followed=followed,
        searching=searching,
        patience=patience,
        max_size=max_size,
        claims=claims,
        until=until,
        room=room,
    ).run()


def decode_parts(
    data: npt.NDArray[np.uint8],
    options: DecodeOptions,
    *,
    max_bytes: int,
    origin: int = 0,
    source: str | None = None,
    followed: bool = False,
) -> Iterator[Part]:
    """Decode all of `data`, a part of about `max_bytes` at a time; parameters as for `decode_part`.

    The last part may leave bytes that are no whole batch.
    """
    position = 0
    searching = stopped = False
    while position < len(data) and not stopped:
        part = decode_part(
            data[position:],
            options,
            origin=origin + position,
            source=source,
            max_bytes=max_bytes,
            followed=followed,
            searching=searching,
        )
        consumed, searching, stopped = part.table.consumed, part.searching, part.stopped
        yield part
        # What the caller drops must be free for the next table: no reference is kept.
        del part
        if not consumed:
            return
        position += consumed
