"""One pass over a stretch of batches: scan, check, decompress, parse; and what to do where one of them fails."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch import workers
from kbatch.checksums import crc_holds, first_bad_crc, good_crcs
from kbatch.codecs import Arena, PayloadError, decompress
from kbatch.decode_options import Crc, DecodeOptions
from kbatch.errors import Fault, Finding, fault_status, finding_text, finding_to_error
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    BATCH_DTYPE,
    HEADER_DTYPE,
    MIN_ENTRY_SIZE,
    MIN_RECORD_SIZE,
    RECORD_DTYPE,
    BatchStatus,
    Codec,
    record_dtype,
)
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
from kbatch.kernels import checksum
from kbatch.kernels import decode as _kernel
from kbatch.kernels.pipeline import Pipeline
from kbatch.kernels.scan import sample as _sample
from kbatch.kernels.scan import survey as _survey
from kbatch.kernels.spans import check_layouts
from kbatch.pooled import PooledRows
from kbatch.table import Loss, RecordTable
from kbatch.transactions import lost_markers

__all__ = ["Part", "decode_part"]

# No offset lies beyond them.
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_POINTERS = frozenset(("key", "value", "headers"))
_CRC_STEPS = {"skip": 0, "verify": 1, "mark": 2}

check_layouts(np.empty(0, BATCH_DTYPE), np.empty(0, RECORD_DTYPE), np.empty(0, HEADER_DTYPE))

# An arena begins with room for so many times its input, within bounds: what isn't touched of it costs nothing.
_USUAL_RATIO = 5
_MIN_ARENA_BYTES = 64 << 10
_MAX_ARENA_BYTES = 256 << 20
# What one thread does alone after a batch that was unusual: where many are, others would do work that is void.
_ALONE_BYTES = 1 << 20
# A thread is started for no less than this, by whether there is something to decompress. To start one takes 50 us: two
# are as fast as one for 1 MiB of uncompressed batches, 1.4 to 1.7 times as fast for 256 KiB of compressed ones.
_THREAD_BYTES = 512 << 10
_THREAD_BYTES_PACKED = 128 << 10
# Without the processor's instruction checksums are summed beforehand, so that the cache still has the bytes.
_SUM_BYTES = 512 << 10
# Of what is still to come, an arena gets room for no more than this many times its size: what a hostile first batch
# grows by says nothing.
_MAX_EXPECTED_RATIO = 6
# How many batches are framed at a time right after damage, and from how many on all the rest is.
_FEW_BATCHES = 16
_MOST_SLOW_BATCHES = 1 << 16
# What the rest is like is told by the first batches: so many, or so many bytes.
_SAMPLE_BATCHES = 64
_SAMPLE_BYTES = 1 << 20


def _offset_bound(offset: int) -> int:
    """Return an offset as the kernel takes it: no record lies beyond the bounds of int64."""
    return min(max(int(offset), _LEAST), _MOST)


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
    """One pass over a buffer: the state that scan, check, decompress and parse hand to each other."""

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
        self.max_bytes = max_bytes
        self.final = final
        self.followed = followed
        self.searching = searching
        self.patience = patience
        self.max_size = max_size
        self._claims = claims
        self.until = len(data) if until is None else until
        self.room = room
        self.stopped = False
        self.losses: list[Loss] = []
        # Rows [0, next) of `batches` are done; all of them together reach to `position` of `data`.
        self.headers = PooledRows(BATCH_DTYPE)
        self.next = 0
        self.position = 0
        # The last row of a batch that is good.
        self.good = -1
        # Of the rows of the last scan, those that can't be decoded whatever their bytes are.
        self.refused: list[int] = []
        # After damage few batches are framed at a time, and then ever more: what is framed may turn out to be void.
        self.scan_size: int | None = None
        # From here to the end of `data` a search has found no batch.
        self.barren = len(data) + 1
        self.rows: PooledRows | None = None
        # None as long as all payloads are uncompressed: then positions point into `data` itself.
        self.arena: Arena | None = None
        # Where a row has no position, nothing that a table holds points to bytes.
        self.columns = options.record_columns
        self.keeps_data = options.framing_only or not _POINTERS.isdisjoint(self.columns)
        self.trimmed = options.start_offset is not None or options.stop_offset is not None
        # Rows are trimmed by their offsets, also where these are not wanted.
        self.dtype = record_dtype((*self.columns, "offset") if self.trimmed else self.columns)
        self.first_offset = _LEAST if options.start_offset is None else _offset_bound(options.start_offset)
        self.last_offset = _MOST if options.stop_offset is None else _offset_bound(options.stop_offset - 1)
        # Bytes that one thread is to do alone.
        self.alone = 0

    # -- framing

    def run(self) -> Part:
        if self.searching:
            self._resume(*self._find(0), "no batch begins here")
        goes_on = not self._is_plain() or self._frame_and_decode()
        while goes_on and not self.searching and not self.stopped and self.position < self.until:
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
        return Part(self._table(), self.searching, self.stopped)

    @property
    def claims(self) -> Claims:
        """What wrong lengths have cost: few inputs have any."""
        if self._claims is None:
            self._claims = Claims(len(self.data))
        return self._claims

    @property
    def batches(self) -> npt.NDArray[np.void]:
        return self.headers.filled()

    def _is_plain(self) -> bool:
        """Whether every batch is wanted as it is."""
        return not (
            self.searching
            or self.trimmed
            or self.until < len(self.data)
            or self.options.aborted is not None
            or self.options.undecided is not None
            or self.options.stable_offset is not None
        )

    def _frame_and_decode(self) -> bool:
        """Decode batches as they are framed, if they are uncompressed. False if nothing more is wanted.

        Framed all at once beforehand, headers would be fetched from memory twice, and by one thread. Anything unusual
        ends this; what comes then, from `position` on, is as if nothing had been done.
        """
        if self.options.crc != "skip" and not checksum.AVAILABLE:
            return True
        begun = self.position
        count, taken, records, packed, refused = _sample(
            self.data, begun, _SAMPLE_BATCHES, _SAMPLE_BYTES, self.options.include_control
        )
        if not count or packed or refused:
            return True
        is_all = count < _SAMPLE_BATCHES and taken < _SAMPLE_BYTES
        believed = self._believed()
        needed = 0
        while True:
            # Room for what the rest is if it is like what is known so far, which is most often so.
            if self.position - begun > taken:
                count, taken, records = self.next, self.position - begun, 0 if self.rows is None else self.rows.used
            share = 1 if is_all else 1.1 * (len(self.data) - self.position) / taken
            wanted, rows = int(share * count) + _SAMPLE_BATCHES, int(share * records) + _SAMPLE_BATCHES
            if self.max_bytes is not None:
                wanted = min(wanted, self.max_bytes // BATCH_DTYPE.itemsize + 1)
                rows = min(rows, self.max_bytes // self.dtype.itemsize + 1)
            self.headers.reserve(wanted)
            if self.rows is None:
                self.rows = PooledRows(self.dtype, 0 if self.options.framing_only else rows)
            elif needed:
                self.rows.reserve(max(needed, rows))
            pipeline = self._pipeline(
                self.next,
                self.next,
                self.options.crc,
                position=self.position,
                max_size=_MOST if believed is None else believed,
            )
            workers.run(pipeline, min(self.options.threads, max(1, (len(self.data) - self.position) // _THREAD_BYTES)))
            self.next, self.rows.used = pipeline.next, pipeline.used
            self.headers.used = self.next
            self.good = self.next - 1
            if self.next == pipeline.hi:
                self.position = pipeline.position
                if self._is_full():
                    return False
                if self.next < len(self.headers.array):
                    return True
                needed = 0
            else:
                batch = self.headers.array[self.next]
                self.position = int(batch["position"]) - self.origin
                if self._is_full():
                    return False
                needed = int(batch["record_count"])
                room = len(self.rows.array) - self.rows.used
                if self.options.framing_only or not room < needed <= int(batch["size"]) // MIN_RECORD_SIZE:
                    return True

    def _scan(self) -> tuple[Finding | None, bool]:
        """Frame what begins at `position` and append the rows that are wanted; tell also if there is more to frame."""
        data = self.data if self.until == len(self.data) else self.data[: self.until]
        first = self.headers.used
        end, finding = self._frame(data, self.scan_size)
        more = self.headers.used - first == self.scan_size
        if self.until < len(self.data) and finding is None and end < self.until:
            # What begins before the end that is asked for may reach beyond it.
            if self.headers.used == first:
                end, finding = self._frame(self.data, 1)
            more = self.headers.used > first
        if self.scan_size is not None:
            self.scan_size = 2 * self.scan_size if self.scan_size < _MOST_SLOW_BATCHES else None
        batches = self.headers.filled()[first:]
        if self.trimmed and not self.options.framing_only and len(batches):
            wanted = self._within(batches)
            if self.options.on_error == "skip":
                # Of a damaged header neither the offsets are believed nor the length, which may hide batches.
                others = np.flatnonzero(~wanted)
                wanted[others] = ~good_crcs(self.data, batches[others], self.origin)
            self.headers.used = first
            self.headers.extend(batches[wanted])
            batches = self.headers.filled()[first:]
        if self.options.aborted is not None:
            batches["status"][self.options.aborted.mask(batches)] = BatchStatus.ABORTED
        if self.options.undecided is not None:
            batches["status"][self.options.undecided.mask(batches)] = BatchStatus.UNDECIDED
        if self.options.stable_offset is not None:
            batches["status"][batches["last_offset"] >= self.options.stable_offset] = BatchStatus.UNDECIDED
        self._prepare(batches, end)
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
            self.headers,
            origin=self.origin,
            position=self.position,
            max_batches=max_batches,
            max_size=self._believed(),
        )

    def _within(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Tell which batches may have records that are wanted.

        As brokers do, by the header: a batch whose offsets lie outside is not looked at. One whose offsets wrap or go
        down can't be judged so. The base offset of a compressed message set isn't known, and -1: below all that may be
        wanted. Producers leave the offset of such a set 0, whatever it holds (LEG-R12).
        """
        first, last = batches["base_offset"], batches["last_offset"]
        unknown = (last < first) | ((first < 0) & (last == 0))
        within: npt.NDArray[np.bool_] = unknown | ((last >= self.first_offset) & (first <= self.last_offset))
        return within

    def _prepare(self, batches: npt.NDArray[np.void], end: int) -> None:
        """Make room for the records of `batches`, up to byte `end`, and know what is to be done with them."""
        records, packed, refused = (
            (0, 0, 0) if self.options.framing_only else _survey(batches, self.options.include_control)
        )
        if self.max_bytes is not None:
            records = min(records, self.max_bytes // self.dtype.itemsize)
        if packed and self.room is not None:
            records = min(records, self.room[0])
        if self.rows is None:
            self.rows = PooledRows(self.dtype, records)
        self.refused = []
        if refused:
            # zstd came with magic 2 (ZS-R1).
            most = np.where(batches["magic"] == 2, Codec.ZSTD, Codec.LZ4)
            unknown = (batches["attributes"] & ATTRIBUTE_CODEC) > most
            self.refused = (
                np.flatnonzero(unknown & (batches["status"] == BatchStatus.OK)) + self.headers.used - len(batches)
            ).tolist()
        if packed and self.arena is None:
            self.arena = Arena(self._usual_arena(end) if self.keeps_data else 0)
            if self.rows.used and self.keeps_data:
                # Rows made so far point into `data`: its beginning becomes the beginning of the arena.
                done = self._end_of(self.next - 1) - self.origin
                self.arena.reserve(done)
                self.arena.view[:done] = self.data.data[:done]
                self.arena.used = done

    def _usual_arena(self, end: int) -> int:
        usual = _USUAL_RATIO * (end - self.position)
        if self.max_bytes is not None:
            usual = min(usual, self.max_bytes)
        if self.room is not None:
            usual = min(usual, self.room[1])
        return min(max(usual, _MIN_ARENA_BYTES), _MAX_ARENA_BYTES)

    def _expect(self) -> None:
        """Make room for the rest of the stretch, by how much the payloads grew so far.

        Without this the arena would grow by copying, which for lz4 takes a third as long as decompressing.
        """
        assert self.arena is not None
        at = int(self.batches["position"][self.next]) - self.origin
        ratio = min(self.arena.used / max(at, 1), _MAX_EXPECTED_RATIO)
        expected = int(1.1 * ratio * (self.position - at)) + _MIN_ARENA_BYTES
        if self.max_bytes is not None:
            expected = min(expected, max(self.max_bytes - self._cost(), 0) + _MIN_ARENA_BYTES)
        self.arena.reserve(expected)

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
        if self.good >= 0:
            self.claims.reached = int(self.headers.array["last_offset"][self.good])

    def _lose(self, start: int, end: int, reason: str, base_offset: int | None = None) -> None:
        if end > start:
            self.losses.append(Loss(self.origin + start, end - start, reason, base_offset))

    # -- batches

    def _decode_rows(self) -> bool:
        """Decode the rows from `next` on. False if nothing more is wanted after that."""
        while self.next < self.headers.used:
            if not self._is_full() and not self._decode_run():
                return False
            if self._is_full():
                if self.next < self.headers.used:
                    # The rest is for the next table.
                    self.position = int(self.batches["position"][self.next]) - self.origin
                    self.headers.used = self.next
                return False
        return True

    def _is_full(self) -> bool:
        return self.max_bytes is not None and self.next > 0 and self._cost() >= self.max_bytes

    def _cost(self) -> int:
        """Bytes that the table takes so far."""
        assert self.rows is not None
        done = self.batches[: self.next]
        if self.arena is not None:
            plain = self.arena.used
        elif self.keeps_data and len(done):
            plain = int(done["position"][-1] + done["size"][-1]) - self.origin
        else:
            plain = 0
        return self.rows.used * self.dtype.itemsize + plain + done.nbytes

    def _decode_run(self) -> bool:
        """Decode batches up to one that is unusual, and that one. False if an error ended everything."""
        hi = self._run_pipeline()
        if self.next == hi or self._is_full():
            return True
        return self._decode_batch(self.next)

    def _run_pipeline(self) -> int:
        """Decode ordinary batches; return the row before which it would have ended by itself."""
        assert self.rows is not None
        lo, hi, crc = self.next, self.headers.used, self.options.crc
        arena = self.arena
        threads = self.options.threads
        if self.alone:
            hi = min(hi, self._row_after(lo, self.alone))
            threads = 1
        good = hi
        if crc != "skip" and not checksum.AVAILABLE:
            good = hi = min(hi, self._row_after(lo, _SUM_BYTES))
            if crc == "mark":
                self._mark(lo, hi)
            else:
                good, _ = first_bad_crc(self.data, self.batches, lo, hi, self.origin)
            crc = "skip"
        if good > lo:
            pipeline = self._pipeline(lo, good, crc)
            stored = self._end_of(good - 1) - int(self.batches["position"][lo])
            least = _THREAD_BYTES if arena is None else _THREAD_BYTES_PACKED
            workers.run(pipeline, min(threads, max(1, stored // least)))
            self.next, self.rows.used = pipeline.next, pipeline.used
            if arena is not None:
                arena.used = pipeline.arena_used
            if self.next > lo:
                self.good = self.next - 1
            if self.next == hi:
                self.alone = 0
        return hi

    def _pipeline(self, lo: int, hi: int, crc: Crc, *, position: int = -1, max_size: int = _MOST) -> Pipeline:
        assert self.rows is not None
        return Pipeline(
            self.data,
            self.headers.array,
            lo,
            hi,
            self.origin,
            self.rows.array,
            self.rows.used,
            None if self.arena is None else self.arena.view,
            0 if self.arena is None else self.arena.used,
            packed=self.arena is not None,
            keep=self.keeps_data,
            crc=_CRC_STEPS[crc],
            check_inner=self.options.crc != "skip",
            framing_only=self.options.framing_only,
            most=_MOST if self.max_bytes is None else self.max_bytes,
            limit=self.options.limits.max_decompressed_bytes,
            include_control=self.options.include_control,
            trimmed=self.trimmed,
            first_offset=self.first_offset,
            last_offset=self.last_offset,
            position=position,
            max_size=max_size,
        )

    def _row_after(self, row: int, size: int) -> int:
        """Return the first row after `row` that begins `size` bytes or more after it, or their number."""
        positions = self.batches["position"]
        return bisect_left(positions, positions[row] + size, row)

    def _end_of(self, row: int) -> int:
        return int(self.batches["position"][row]) + int(self.batches["size"][row])

    def _decode_batch(self, row: int) -> bool:
        """Decode a batch that may be bad. False if an error ended everything."""
        assert self.rows is not None
        room = len(self.rows.array), 0 if self.arena is None else len(self.arena.view)
        finding = self._check(row) if self.options.crc == "verify" else None
        if self.options.crc == "mark":
            self._mark(row, row + 1)
        refused = bisect_left(self.refused, row)
        if finding is not None:
            return self._fail(row, finding)
        if self.options.framing_only:
            self.next = row + 1
        elif refused < len(self.refused) and self.refused[refused] == row:
            return self._fail(row, self._refusal(row))
        elif self.arena is None:
            finding = self._parse(row, self.data)
        else:
            if self.keeps_data:
                self._expect()
            finding = self._decode_packed(row)
        if finding is not None:
            return self._fail(row, finding)
        self.good = row
        if room == (len(self.rows.array), 0 if self.arena is None else len(self.arena.view)):
            self.alone = _ALONE_BYTES
        return True

    def _refusal(self, row: int) -> Finding:
        """Why a batch can't be decoded, whatever its bytes are and also if it has no records (ATT-R3)."""
        batch = self.batches[row]
        codec = int(batch["attributes"]) & ATTRIBUTE_CODEC
        if batch["magic"] != 2:
            return Finding(Fault.LEGACY_CODEC, wanted=int(batch["magic"]), found=codec)
        return Finding(Fault.UNKNOWN_CODEC, found=codec)

    def _mark(self, lo: int, hi: int) -> None:
        """Mark the rows from `lo` up to `hi` whose checksum is bad."""
        while lo < hi:
            lo, _ = first_bad_crc(self.data, self.batches, lo, hi, self.origin)
            if lo < hi:
                if self.batches["status"][lo] == BatchStatus.OK:
                    self.batches["status"][lo] = BatchStatus.BAD_CRC
                lo += 1

    def _check(self, row: int) -> Finding | None:
        """Return what is wrong with the checksum of a batch, if anything is."""
        good, crc = first_bad_crc(self.data, self.batches, row, row + 1, self.origin)
        if good > row:
            return None
        if self._passes_over(row):
            self.batches["status"][row] = BatchStatus.BAD_CRC
            return None
        return Finding(Fault.BAD_CRC, wanted=int(self.batches["crc"][row]), found=crc)

    def _passes_over(self, row: int) -> bool:
        """Whether damage in this row is not to be told: its batch lies outside of the offsets that are wanted."""
        return self.trimmed and self.options.framing_only and not self._within(self.batches[row : row + 1])[0]

    def _decode_packed(self, row: int) -> Finding | None:
        """Decode a batch by way of the arena, compressed or not."""
        assert self.arena is not None
        arena = self.arena
        position = np.empty(1, np.int64)
        size = np.empty(1, np.int64)
        _kernel.payloads(self.data, self.batches, row, row + 1, self.origin, position, size)
        used = arena.used
        finding: Finding | None = None
        try:
            self._unpack(row, arena, position, size)
            finding = self._parse(row, np.frombuffer(arena.view, np.uint8), position, size)
        except PayloadError as error:
            finding = error.finding
        if finding is not None or not self.keeps_data:
            # Nothing points to what it was decompressed to.
            arena.used = used
        return finding

    def _unpack(self, row: int, arena: Arena, position: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> None:
        """Append the plain payload of a batch to the arena; `position` and `size` tell where it is, and then where."""
        batch = self.batches[row]
        magic, attributes = int(batch["magic"]), int(batch["attributes"])
        codec = attributes & ATTRIBUTE_CODEC
        start, stored = int(position[0]), int(size[0])
        position[0] = arena.used
        if codec and (
            batch["status"] > BatchStatus.BAD_CRC
            or (magic == 2 and batch["record_count"] <= 0)
            or (attributes & ATTRIBUTE_CONTROL and not self.options.include_control)
        ):
            # There is nothing to read in it, whatever it is.
            size[0] = 0
            return
        if stored < 0:
            raise PayloadError(Finding(Fault.WRAPPER_VALUE))
        payload = self.data.data[start : start + stored]
        size[0] = decompress(codec, payload, arena, self.options.limits.max_decompressed_bytes, magic)

    def _parse(
        self,
        row: int,
        data: npt.NDArray[np.uint8],
        position: npt.NDArray[np.int64] | None = None,
        size: npt.NDArray[np.int64] | None = None,
    ) -> Finding | None:
        """Run the kernel over a batch; `next` is then the row after it, unless something is wrong with it."""
        assert self.rows is not None
        while True:
            self.next, self.rows.used, fault, record, byte, wanted, found = _kernel.decode(
                data,
                self.batches,
                row,
                row + 1,
                self.origin,
                position,
                size,
                self.rows.array,
                self.rows.used,
                self.options.include_control,
                self.options.crc != "skip",
                self.trimmed,
                self.first_offset,
                self.last_offset,
            )
            if fault:
                return Finding(Fault(fault), byte, record, wanted, found)
            if self.next > row:
                return None
            # No room for the records of the batch, whose count the kernel has found to be possible.
            self.rows.reserve(int(self.batches["record_count"][row]))

    def _fail(self, row: int, finding: Finding) -> bool:
        """Do with the bad batch at `row` what `on_error` says. False if that ends everything."""
        assert self.rows is not None
        batch = self.batches[row]
        position, size = int(batch["position"]) - self.origin, int(batch["size"])
        base_offset = int(first_offsets(self.batches[row : row + 1])[0])
        if self.options.on_error == "raise":
            raise finding_to_error(
                finding, source=self.source, position=self.origin + position, base_offset=base_offset
            )
        self.batches["status"][row] = fault_status(finding.fault)
        self.batches["first_record"][row] = self.rows.used
        self.next = row + 1
        self.alone = _ALONE_BYTES
        reason = finding_text(finding)
        if self.options.on_error == "stop":
            self._lose(position, len(self.data), reason, base_offset)
            self.position = position
            self.headers.used = row + 1
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
                self.headers.used = row
                self.position = position
                return False
            if found or not self.final:
                end = found_at
                self.headers.used = row + 1
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
            self.headers.extend(markers)
            self.next = self.headers.used

    def _length_holds(self, row: int, finding: Finding, end: int) -> bool | None:
        """Whether the length of the bad batch at `row` can be followed: it is not covered by the batch's checksum.

        It can if the checksum of these bytes is right, if the source ends there, or if a batch with a good checksum
        follows; any header of a batch will do where checksums are not asked for. None if that takes bytes that are
        still to come.
        """
        position = int(self.batches["position"][row]) - self.origin
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

    def _table(self) -> RecordTable:
        if self.rows is None:
            self.rows = PooledRows(self.dtype)
        records = self.rows.finished()
        if self.trimmed and "offset" not in self.columns:
            records = records[list(self.options.record_dtype.names or ())]
            records.setflags(write=False)
        if not self.keeps_data:
            data = self.data[:0].copy()
            data.setflags(write=False)
        else:
            data = self.data if self.arena is None else self.arena.array()
        return RecordTable(
            records,
            self.headers.finished(),
            data,
            consumed=self.position,
            losses=self.losses,
            source=self.source,
            columns=self.columns,
        )


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
    if options.threads > 1 and len(data) >= 2 * _THREAD_BYTES_PACKED:
        workers.wake(options.threads)
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
