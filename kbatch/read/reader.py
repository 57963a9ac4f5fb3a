"""Tables from a source of bytes: batches are framed and decoded window by window, and damage handled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import (
    entry_size,
    first_offsets,
    frame_batches,
    framing_error,
    framing_reason,
    max_entry_size,
)
from kbatch.errors import (
    CorruptBatchError,
    Fault,
    Finding,
    KbatchError,
    LimitExceededError,
    TruncatedBatchError,
    add_remedy,
    fault_status,
    finding_text,
    finding_to_error,
)
from kbatch.escaping import counted
from kbatch.format import LOG_OVERHEAD, MIN_ENTRY_SIZE, BatchStatus
from kbatch.kernels.checksum import first_bad_crc
from kbatch.read.budget import TableBudget, table_budget
from kbatch.read.building import BadBatch, TableBuilder
from kbatch.read.damage import DamageEngine, LengthVerdict
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.windows import Windows
from kbatch.records.loss_list import Loss, LossList
from kbatch.table import RecordTable
from kbatch.tuning import FEW_FRAMED, FIRST_FRAMED, FRAMED_BYTES, MAX_FRAMED, MAX_SHARED_FRAMED

__all__ = ["BatchReader"]


class BatchReader:
    """Reads the batches of a source, one table at a time.

    Parameters
    ----------
    options : DecodeOptions
    source : str, optional
        Name of the source, for errors.
    position : int
        Where in the source the first batch begins.

    Attributes
    ----------
    position : int
        All bytes before it have been read, or are lost.
    needed : int
        Nothing can be read until the source is known up to this position, or to its end.
    stopped : bool
        Whether damage ended the reading under ``on_error="stop"``.
    is_undecided : bool
        Whether there is damage at `position` whose end is not known yet.
    decompressed : bool
        Whether the last table has decompressed payloads instead of the window's bytes.
    is_splitting : bool
        Whether the next table continues the batch at `position`, which is larger than a table.
    is_full : bool
        Whether the last table has its maximum size, or the next batch does not fit it.
    error : KbatchError or None
        The error that the next call of `read` raises, under ``on_error="raise"``: the damage after the last table.
    """

    def __init__(self, options: DecodeOptions, *, source: str | None = None, position: int = 0) -> None:
        self.options = options
        self.source = source
        self.position = position
        self.needed = 0
        self.stopped = False
        self.is_undecided = False
        self.decompressed = False
        self.is_full = False
        self.error: KbatchError | None = None
        self.damage = DamageEngine(options)
        # The builder of the batch that is split.
        self._splitting: TableBuilder | None = None

    @property
    def is_splitting(self) -> bool:
        """Whether the next table continues the batch at `position`."""
        return self._splitting is not None

    def has_ended_early(self, end: int) -> bool:
        """Whether the last table ended before a batch that does not fit it, in a source that ends at `end`."""
        return self.is_splitting or (self.is_full and self.position < end)

    def read(
        self,
        windows: Windows,
        *,
        stop: int | None = None,
        max_bytes: int | None = None,
        splits: bool = True,
        expected: tuple[int, int] | None = None,
        options: DecodeOptions | None = None,
    ) -> RecordTable:
        """Read the next table.

        Parameters
        ----------
        windows : Windows
            The source; it has all bytes from `first_byte` on.
        stop : int, optional
            Batches that begin at or after this position are not read. A batch begins there, or the source ends.
        max_bytes : int, optional
            The table ends when its records, batches and data have this size; it has at least one batch.
        splits : bool
            Whether a batch that is larger than `max_bytes` and than `MIN_SPLIT_TABLE` may be split over several tables.
        expected : (int, int), optional
            The expected number of records and of decompressed bytes, as for `TableBuilder`.
        options : DecodeOptions, optional
            The reader's options with other ranges of transactions that read_committed leaves out.

        Returns
        -------
        RecordTable
            Empty, with ``consumed`` 0, if no batch is complete or the end of damage is not known yet.

        Raises
        ------
        KbatchError
            If damage follows the last table: see `error`.
        """
        if self.error is not None:
            raise self.error
        self.is_undecided = False
        if self._splitting is not None:
            return self.read_part(self._splitting, self.position, LossList())
        stop = windows.end if stop is None else min(stop, windows.end)
        options = options or self.options
        budget = table_budget(
            options.limits,
            max_bytes,
            is_strict=options.is_strict,
            splits=splits,
            threads=options.threads,
            used=options.used_bytes,
        )
        if max_bytes is not None:
            max_bytes = min(max_bytes, budget.target)
        if budget.is_strict:
            # The bytes of a batch take memory in addition to its records.
            self.damage.max_size = min(self.damage.max_size, budget.batch)
        return _TableReader(self, windows, stop, max_bytes, expected, options, budget).read()

    def read_part(self, builder: TableBuilder, begin: int, losses: LossList) -> RecordTable:
        """Return the next table of the batch that `builder` splits, for a table that began at `begin`."""
        split = builder.split
        assert split is not None
        rows = split.next_rows()
        self._splitting = None if split.is_done else builder
        if split.is_done:
            self.position = split.end
        return builder.finish_part(rows, consumed=self.position - begin, losses=losses, source=self.source)

    def restarted(self) -> BatchReader:
        """Return a reader that begins where this one is; under ``on_error="raise"`` the two differ in nothing else."""
        return BatchReader(self.options, source=self.source, position=self.position)

    def waits(self, windows: Windows) -> bool:
        """Whether nothing can be read before more of the source is known."""
        return not windows.is_final and windows.end < self.needed

    def entry_after_tail(self, windows: Windows) -> int | None:
        """Return where an entry begins after the incomplete one at `position`, which then is damaged."""
        found = None
        # Under "skip", `read` has already searched for one.
        if self.options.on_error != "skip" and windows.end - self.position >= MIN_ENTRY_SIZE:
            found = self.damage.entry_after_tail(windows, self.position)
        # The engine also returns the end of the source: a message may have a wrong length and end there.
        return None if found == windows.end else found

    def lose_tail(self, windows: Windows, following: int | None, reason: str, hint: str) -> Loss:
        """Pass over the incomplete entry at `position`, which the source ends within, and return the loss.

        Parameters
        ----------
        windows : Windows
        following : int or None
            Where an entry begins after it, if one does: then its length is damaged.
        reason, hint : str
            The reason of the loss otherwise, and an addition to it in the message.

        Raises
        ------
        CorruptBatchError, TruncatedBatchError
            Under ``on_error="raise"``, with and without `following`.
        """
        error: type[KbatchError] = TruncatedBatchError
        if following is not None:
            error, reason = CorruptBatchError, finding_text(Finding(Fault.LENGTH_TOO_LONG))
            hint = f"the next one begins at byte {following}; on_error='skip' loses this batch only"
        if self.options.on_error == "raise":
            where = f"{self.source}, byte {self.position}" if self.source else f"byte {self.position}"
            raise add_remedy(error(f"{where}: {reason}; {hint}", source=self.source, position=self.position))
        loss = Loss(self.position, windows.end - self.position, reason, None)
        self.position = windows.end
        return loss

    def first_byte(self) -> int:
        """Return the first byte that is still needed."""
        return self.damage.first_byte(self.position)


class _TableReader:
    """Builds one table: frames batches of a window for a `TableBuilder`, and handles damage."""

    def __init__(
        self,
        reader: BatchReader,
        windows: Windows,
        stop: int,
        max_bytes: int | None,
        expected: tuple[int, int] | None,
        options: DecodeOptions,
        budget: TableBudget,
    ) -> None:
        self.reader = reader
        self.damage = reader.damage
        self.options = options
        self.windows = windows
        self.stop = stop
        self.max_bytes = max_bytes
        self.expected = expected
        self.budget = budget
        self.begin = reader.position
        self.losses = LossList()
        self.scan_size: int | None = FIRST_FRAMED if options.threads <= 1 else None
        # Whether damage is frequent here.
        self.is_damaged = False
        self._open(0)

    def _open(self, size: int) -> None:
        """Begin a table over the window at the reader's position, of `size` bytes at least."""
        self.origin = self.reader.position
        self.window = self.windows.window(self.origin, min(self.origin + size, self.windows.end))
        self.window_end = self.origin + len(self.window)
        self.builder = TableBuilder(
            self.window,
            self.options,
            origin=self.origin,
            max_bytes=self.max_bytes,
            expected=self.expected,
            budget=self.budget,
            losses=self.losses,
        )

    def read(self) -> RecordTable:
        reader = self.reader
        goes_on = not self.damage.is_searching or self._resume()
        if reader.position != self.origin:
            headers = self.builder.batches.filled()
            self._open(0)
            self.builder.append_bad(headers)
        while goes_on and reader.position < self.stop and not self.builder.is_full:
            if not self.origin <= reader.position < self.window_end:
                # The end of the window, or of damage that reaches beyond it: the rest belongs to the next table.
                break
            goes_on = self._step()
        self._note_offset()
        reader.decompressed, reader.is_full = self.builder.decompresses, self.builder.is_full
        if self.builder.split is not None:
            return reader.read_part(self.builder, self.begin, self.losses)
        return self.builder.finish(consumed=reader.position - self.begin, source=reader.source)

    def _step(self) -> bool:
        """Frame some batches and decode them. False if nothing more can be read for this table."""
        reader = self.reader
        if self.is_damaged:
            return self._damaged_step()
        finding, more = self._frame()
        framed = reader.position
        if not self._decode():
            return False
        if more or reader.position != framed:
            # A changed position is the end of damage: batches framed after its beginning are discarded.
            return True
        if finding is not None:
            return self._bad_framing(finding)
        return reader.position >= self.stop or self._incomplete()

    def _damaged_step(self) -> bool:
        """Frame and decode batches, and pass over the damage between them. False as for `_step`."""
        builder, reader, losses = self.builder, self.reader, self.losses
        first, count, begin = builder.batches.used, len(losses), reader.position
        room = self.budget.table - builder.memory
        if self.max_bytes is not None:
            room = min(room, self.max_bytes - builder.cost)
        span = self.origin, begin, self.stop
        end, lost, self.is_damaged = self.damage.frame(self.windows, self.window, span, builder.batches, max(room, 0))
        batches = builder.batches.filled()[first:]
        if builder.trimmed:
            batches = self._keep(first, (batches["status"] != BatchStatus.OK) | self.options.may_have_records(batches))
        if self.options.withheld is not None:
            bad = batches["status"] != BatchStatus.OK
            self.options.withheld.mark(batches)
            batches["status"][bad] = BatchStatus.BAD_CRC
        losses._append_rows(lost)
        builder.count_losses()
        builder.prepare(first, end - begin)
        builder.accept_framed(first)
        reader.position = end
        goes_on = self._decode()
        losses._settle(count, reader.position)
        return goes_on

    # -- framing

    def _frame(self) -> tuple[Finding | None, bool]:
        """Frame batches from the reader's position on; return a fault, and whether the window may have more batches."""
        builder, reader = self.builder, self.reader
        rows = builder.batches
        first, start = rows.used, reader.position
        count = self.scan_size
        if len(self.window) // MIN_ENTRY_SIZE > builder.max_rows - first:
            count = min(builder.max_rows - first, count or MAX_SHARED_FRAMED)
        end, finding = self._frame_rows(start, count)
        # If `stop` is inside of the window, the batch that ends after it is framed separately.
        more = rows.used > first and (rows.used - first == count or end < self.stop < self.window_end)
        if self.scan_size is not None:
            if self.options.threads > 1:
                self.scan_size = 2 * self.scan_size if self.scan_size < MAX_SHARED_FRAMED else None
            elif end > start:
                fit = FRAMED_BYTES * (rows.used - first) // (end - start)
                self.scan_size = min(2 * self.scan_size, max(fit, FIRST_FRAMED), MAX_FRAMED)
        if builder.trimmed and not self.options.framing_only and rows.used > first:
            self._drop_outside(first)
        batches = rows.filled()[first:]
        if self.options.withheld is not None:
            self.options.withheld.mark(batches)
        builder.prepare(first, end - start)
        reader.position = end
        return finding, more

    def _frame_rows(self, position: int, max_batches: int | None) -> tuple[int, Finding | None]:
        """Append rows of the batches from `position` on that begin before `stop`; return where they end."""
        rows = self.builder.batches
        first = rows.used
        at = {
            "origin": self.origin,
            "position": position - self.origin,
            "max_size": self.damage.max_size,
        }
        data = self.window[: self.stop - self.origin]
        end, finding = frame_batches(data, rows, max_batches=max_batches, **at)
        if rows.used == first and finding is None and len(data) < len(self.window):
            # A batch that begins before `stop` may end after it.
            end, finding = frame_batches(self.window, rows, max_batches=1, **at)
        if finding is not None and finding.fault == Fault.BATCH_TOO_LARGE:
            limit = max_entry_size(self.options.limits)
            if finding.found > limit:
                finding = finding._replace(expected=limit)
            elif self._is_last(self.origin + end, finding.found):
                # The source ends first, as for any other incomplete entry.
                finding = None
            elif self.budget.is_strict:
                finding = finding._replace(detail=self.budget.name)
        return end + self.origin, finding

    def _is_last(self, position: int, size: int) -> bool:
        """Whether the source ends within an entry: it is incomplete, for any value of its length field (FRM-R6)."""
        return self.windows.is_final and position + size > self.windows.end

    def _drop_outside(self, first: int) -> None:
        """Drop the rows from `first` on whose batches have no requested offset.

        Under ``on_error="skip"``, batches with a bad checksum stay: in a damaged header, the offsets may be wrong, and
        so may the length, which may hide batches.
        """
        batches = self.builder.batches.filled()[first:]
        inside = self.options.may_have_records(batches)
        if self.options.on_error == "skip":
            outside = np.flatnonzero(~inside)
            if len(outside):
                inside[outside] = self.damage.bad_crcs(self.windows, batches[outside])
        self._keep(first, inside)

    def _keep(self, first: int, which: npt.NDArray[np.bool_]) -> npt.NDArray[np.void]:
        """Drop the other rows from `first` on, and return those that are left."""
        rows = self.builder.batches
        batches = rows.filled()[first:]
        rows.used = first
        rows.extend(batches[which])
        return rows.filled()[first:]

    # -- decoding

    def _decode(self) -> bool:
        """Decode the rows that were framed. False if nothing more can be read for this table."""
        builder, reader = self.builder, self.reader
        while (bad := self._decode_until_bad()) is not None:
            if not self._bad_batch(bad.row, bad.finding):
                return False
        if not builder.is_full:
            return True
        if builder.decoded < builder.batches.used:
            # The rest belongs to the next table.
            reader.position = int(builder.batches.array["position"][builder.decoded])
            builder.drop_batches_from(builder.decoded)
        return False

    def _decode_until_bad(self) -> BadBatch | None:
        """Decode rows up to the first bad one. Batches inside of one with a wrong length need a good checksum."""
        builder = self.builder
        row, end = builder.decoded, builder.batches.used
        batches = builder.batches.filled()
        suspects = int(np.searchsorted(batches["position"][row:], self.damage.suspect_end)) if row < end else 0
        if not suspects or row < builder.verified or (self.options.framing_only and builder.trimmed):
            return builder.decode()
        bad, crc = self.damage.first_bad(self.windows, batches, row, row + suspects)
        if bad == row + suspects:
            return builder.decode()
        found = builder.decode(bad)
        if found is not None or builder.is_full:
            return found
        return BadBatch(bad, Finding(Fault.BAD_CRC, expected=int(batches["crc"][bad]), found=crc))

    # -- damage

    def _bad_batch(self, row: int, finding: Finding) -> bool:
        """Handle the bad batch at `row` according to `on_error`. False if this table can have nothing more."""
        builder, reader = self.builder, self.reader
        batch = builder.batches.array[row : row + 1]
        position, size = int(batch["position"][0]), int(batch["size"][0])
        base_offset = int(first_offsets(batch)[0])
        if batch["status"][0] == BatchStatus.BAD_CRC and finding.fault != Fault.BAD_CRC:
            finding = self._wrong_checksum(row, finding)
        if self.options.on_error == "raise":
            error = finding_to_error(finding, source=reader.source, position=position, base_offset=base_offset)
            return self._raise_later(error, position, row)
        if self.options.on_error == "stop":
            builder.mark_bad(row, fault_status(finding.fault))
            builder.drop_batches_from(row + 1)
            return self._stop(position, finding, base_offset)
        self._note_offset()
        verdict = self.damage.judge(self.windows, position, size, finding.fault)
        if verdict is LengthVerdict.WAIT:
            builder.drop_batches_from(row)
            reader.position, reader.needed, reader.is_undecided = position, self.damage.needed, True
            return False
        builder.mark_bad(row, fault_status(finding.fault))
        if verdict is LengthVerdict.FOLLOW:
            return self._lose(position, size, finding, base_offset)
        builder.drop_batches_from(row + 1)
        self.damage.begin(position, finding, base_offset=base_offset, size=size)
        return self._resume()

    def _wrong_checksum(self, row: int, fault: Finding) -> Finding:
        """Return the first cause of a fault in a batch whose wrong checksum was accepted (``crc="mark"``)."""
        rows = self.builder.batches.filled()
        _, found = first_bad_crc(self.window, rows, row, row + 1, self.origin)
        detail = f"; its records cannot be decoded either: {finding_text(fault)}"
        return Finding(Fault.BAD_CRC, expected=int(rows["crc"][row]), found=found, detail=detail)

    def _bad_framing(self, finding: Finding) -> bool:
        """Handle bytes that no batch can begin with, according to `on_error`."""
        reader = self.reader
        # An incomplete last entry above the limit is damage if the source cannot end within one, or if another entry
        # follows (FRM-R6).
        is_tail = (
            finding.fault == Fault.BATCH_TOO_LARGE
            and self.windows.may_be_cut
            and self._is_last(reader.position, finding.found)
        )
        if is_tail and self.options.on_error != "skip":
            self._note_offset()
            if self.damage.entry_after_tail(self.windows, reader.position) is None:
                reader.needed = reader.position + finding.found
                return False
        data = self.window[reader.position - self.origin :]
        if self.options.on_error == "raise":
            error = framing_error(finding, data, source=reader.source, position=reader.position)
            return self._raise_later(error, reader.position, self.builder.batches.used)
        reason = framing_reason(finding, data, reader.position)
        if self.options.on_error == "stop":
            return self._stop(reader.position, reason, None)
        self.damage.begin(reader.position, reason, is_tail=is_tail)
        return self._resume()

    def _incomplete(self) -> bool:
        """Handle the incomplete entry at the reader's position, which the window ends within."""
        reader, windows = self.reader, self.windows
        left = self.window_end - reader.position
        size = entry_size(self.window, reader.position - self.origin) if left >= LOG_OVERHEAD else MIN_ENTRY_SIZE
        if self.window_end < windows.end and not self._is_last(reader.position, size):
            # Take a larger window, unless the table already has batches or losses.
            if self.builder.batches.used or self.losses:
                return False
            self._open(max(size, 2 * left))
            return self.window_end - self.origin > left
        reader.needed = reader.position + max(size, left + 1)
        if self.options.on_error != "skip" or not windows.is_final or windows.end - reader.position < MIN_ENTRY_SIZE:
            return False
        self.damage.begin(reader.position, is_tail=True)
        return self._resume()

    def _note_offset(self) -> None:
        if (offset := self.builder.last_good_offset) is not None:
            self.damage.reached = offset

    def _raise_later(self, error: KbatchError, position: int, row: int) -> bool:
        self.builder.drop_batches_from(row)
        self.reader.position, self.reader.error = position, add_remedy(error)
        return False

    def _stop(self, position: int, reason: Finding | str, base_offset: int | None) -> bool:
        self.reader.position, self.reader.stopped = position, True
        if self.windows.is_final:
            self._lose(position, self.windows.end - position, reason, base_offset)
        else:
            # The rest of the source is lost, but its end is not known yet.
            self.damage.begin(position, reason, base_offset=base_offset)
        return False

    def _resume(self) -> bool:
        """Search for the end of the damage. False if it is not known yet, or the source ends in an incomplete entry."""
        reader = self.reader
        self._note_offset()
        found = self.damage.resume(self.windows)
        if found is None:
            reader.position, reader.needed = self.damage.search_position, self.damage.needed
            reader.is_undecided = True
            return False
        reader.position = found.position
        if found.loss is None:
            return False
        self.scan_size = FEW_FRAMED
        frames_alone = self.options.framing_only and self.builder.trimmed
        self.is_damaged = self.options.crc == "verify" and not frames_alone
        if self.options.framing_only and len(found.headers):
            found.headers["status"] = BatchStatus.INVALID
            self.builder.append_bad(found.headers)
        return self._lose(*found.loss)

    def _lose(self, position: int, length: int, reason: Finding | str, base_offset: int | None) -> bool:
        """Add a loss, which ends before the reader's position. False if the table has no memory for more."""
        self.losses._append(position, length, reason, base_offset)
        self.builder.count_losses()
        if self.budget.holds_losses(self.losses.nbytes, self.builder.memory):
            return True
        source, limit = self.reader.source, self.budget.table
        where = f"{source}, byte {position}" if source else f"byte {position}"
        text = f"with {counted(len(self.losses), 'loss')} a table takes more than {limit} bytes of memory"
        error = LimitExceededError(f"{where}: {text}; raise {self.budget.name}", source=source, position=position)
        return self._raise_later(error, self.reader.position, self.builder.decoded)
