"""Framing where damage is frequent: batches are framed and verified, and the end of damage between them is searched.

A step of `kbatch.read.damage.DamageEngine` takes 50 us for each loss, and this takes less than one. It decides in the
same way, but only what depends on nothing but the window: it ends before anything else, which the engine then decides.
"""

from collections import namedtuple

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from kbatch.kernels.scan cimport scan_into
from kbatch.kernels.search cimport Chain, EntryChecksums, first_plausible, follow_chain
from kbatch.kernels.spans cimport Span
from kbatch.kernels.tuning cimport FRAMED_BYTES, SEARCHED_BYTES, SOUND_BYTES
from kbatch.kernels.wire cimport (
    BAD_CRC,
    BATCH_HEADER_SIZE,
    BatchRow,
    FAULT_BAD_CRC,
    FAULT_LENGTH_TOO_LONG,
    FaultReport,
    INVALID,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_SIZE_V0,
    MIN_ENTRY_SIZE,
    MIN_LENGTH_V2,
    header_size,
    load_be32,
    minimum_length,
)

cdef enum:
    # Answers, in addition to yes (1) and no (0): another step has to decide, and no memory.
    UNDECIDED = 2
    NO_MEMORY = -1

Framed = namedtuple("Framed", "position rows losses suspect_end is_damaged")

# A row of the losses.
cdef struct LossRow:
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t fault
    int64_t expected
    int64_t found


cdef class DamagedWindow:
    """A window of the source: positions are those in the window."""

    cdef EntryChecksums checksums
    cdef const uint8_t* base
    cdef int64_t origin
    cdef int64_t size
    # Where the source ends, or a position that no batch reaches.
    cdef int64_t source_end
    cdef int64_t max_size
    cdef int64_t max_records

    cdef inline int beyond(self, int64_t end) noexcept nogil:
        """Return the answer to whether the source has the bytes up to `end`, which the window has not."""
        return 0 if end > self.source_end else UNDECIDED

    cdef inline int64_t entry_size(self, int64_t at) noexcept nogil:
        return LOG_OVERHEAD + <int64_t><int32_t>load_be32(self.base + at + LENGTH_AT)

    cdef int holds(self, int64_t at, int64_t size, int64_t lowest) noexcept nogil:
        if size > self.size - at:
            return self.beyond(at + size)
        return self.checksums.entry_holds(self.base, self.origin, self.origin + lowest, self.origin + at, size)

    cdef int entry_holds(self, int64_t at, int64_t lowest) noexcept nogil:
        """Whether an entry with a valid checksum begins at `at`."""
        cdef int64_t size
        cdef uint8_t magic
        if at > self.size - MIN_ENTRY_SIZE:
            return self.beyond(at + MIN_ENTRY_SIZE)
        size = self.entry_size(at)
        magic = self.base[at + MAGIC_AT]
        if magic > 2 or size < LOG_OVERHEAD + minimum_length(magic) or size > self.max_size:
            return 0
        return self.holds(at, size, lowest)

    cdef int message_holds(self, int64_t at) noexcept nogil:
        """Whether a message of magic 0 or 1 is valid, by the lengths of its key and value."""
        cdef int64_t end = at + header_size(self.base[at + MAGIC_AT])
        for _ in range(2):
            if end + 4 - at > self.max_size:
                return 0
            if end + 4 > self.size:
                return self.beyond(end + 4)
            end += 4 + max(<int64_t><int32_t>load_be32(self.base + end), <int64_t>0)
        return 0 if end - at > self.max_size else self.holds(at, end - at, at)

    cdef int ends_by_fields(self, int64_t at, int64_t* end) noexcept nogil:
        """Whether fields show the end of the damaged entry at `at`, as `DamageEngine._end_by_fields` decides."""
        cdef int64_t size
        if at > self.size - MESSAGE_SIZE_V0:
            return self.beyond(at + MESSAGE_SIZE_V0)
        if self.base[at + MAGIC_AT] <= 1 and self.message_holds(at) != 0:
            return UNDECIDED
        size = self.entry_size(at)
        if size < MESSAGE_SIZE_V0 or size > self.max_size:
            return 0
        end[0] = at + size
        return self.entry_holds(end[0], at)

    cdef int ends(self, int64_t at, int64_t* end) noexcept nogil:
        """Set `end` to the end of the damage at `at`. It is a batch of magic 2, or another step has to decide."""
        cdef int64_t stop = min(self.size, at + SEARCHED_BYTES)
        cdef int answer = self.ends_by_fields(at, end)
        while answer == 0:
            at = first_plausible(self.base, self.size, at + 1, stop, self.max_size, self.max_records,
                                 self.source_end)
            if at < 0:
                return UNDECIDED
            end[0] = at
            if self.entry_size(at) > self.size - at:
                return UNDECIDED
            answer = self.holds(at, self.entry_size(at), at)
        return UNDECIDED if answer == 1 and self.base[end[0] + MAGIC_AT] != 2 else answer

    cdef int is_length_right(self, int64_t at, int64_t end) noexcept nogil:
        """Whether the length of the batch at `at`, whose checksum is bad, is right: see `DamageEngine.judge`."""
        return 1 if end == self.source_end else self.entry_holds(end, at)

    cdef bint ends_within(self, int64_t at) noexcept nogil:
        """Whether the source ends within the entry at `at`, which is damage if another entry follows."""
        if at > self.size - MIN_ENTRY_SIZE:
            return False
        return self.source_end - at < self.entry_size(at) <= self.max_size

    cdef int64_t add_first_header(self, int64_t at, BatchRow* row) noexcept nogil:
        """Add the header where damage begins, as `DamageEngine._keep_first_header` does; return the number of rows."""
        cdef uint8_t[BATCH_HEADER_SIZE] header
        cdef int64_t start = 0
        cdef FaultReport ignored
        if at > self.size - BATCH_HEADER_SIZE:
            return 0
        memcpy(header, self.base + at, BATCH_HEADER_SIZE)
        memset(header + LENGTH_AT, 0, 4)
        header[LENGTH_AT + 3] = MIN_LENGTH_V2
        header[MAGIC_AT] = 2
        scan_into(header, BATCH_HEADER_SIZE, &start, self.origin + at, row, 1, &ignored)
        row.status = INVALID
        return 1

    cdef int64_t add_chain(self, int64_t at, int64_t end, BatchRow* rows, int64_t capacity) noexcept nogil:
        """Add the headers from `at` on if their lengths lead to `end`; return the number of rows, or `capacity`."""
        cdef Chain chain = Chain(at, -1, True, 0)
        cdef int64_t i
        follow_chain(self.base, self.size, self.origin, end, self.max_size, rows, capacity, &chain)
        if chain.used < capacity and not (chain.holds and chain.at == end):
            return 0
        for i in range(chain.used):
            rows[i].status = INVALID
        return chain.used


def frame_damaged(EntryChecksums checksums not None, window not None, int64_t origin, int64_t position, int64_t stop,
                  batches not None, losses not None, *, int64_t max_size, int64_t max_records, source_end,
                  bint keeps_headers):
    """Frame batches of magic 2, and pass over the damage between them.

    It ends where another step has to decide, after `SOUND_BYTES` without damage or `FRAMED_BYTES`, and if an array is
    full.

    Parameters
    ----------
    checksums : EntryChecksums
    window : ndarray of uint8
    origin : int
        Position of ``window[0]`` in the source.
    position, stop : int
        Batches begin from `position` up to `stop`.
    batches : ndarray of BATCH_DTYPE
        Gets a row for each batch. The checksums of those with the status OK are good; those with a bad one have a
        status.
    losses : ndarray of int64, shape (n, 6)
        Gets a row for each loss, as in `Pipeline.run_skipping`.
    max_size, max_records : int
        As for `EntryChecksums.find`.
    source_end : int or None
        Where the source ends, if that is known.
    keeps_headers : bool
        Whether headers in the damage get rows too, with the status INVALID.

    Returns
    -------
    position : int
        Where the last batch or loss ends.
    rows, losses : int
        The numbers of rows that are filled.
    suspect_end : int
        The end of the last batch with a wrong length.
    is_damaged : bool
        Whether there may be more damage close by.
    """
    cdef Span data = Span(window, 1, False)
    cdef Span into = Span(batches, sizeof(BatchRow), True)
    cdef Span lost = Span(losses, sizeof(LossRow), True)
    cdef BatchRow* rows = <BatchRow*>into.items
    cdef LossRow* loss = <LossRow*>lost.items
    cdef DamagedWindow source = DamagedWindow()
    cdef FaultReport report
    cdef int64_t at = position - origin
    cdef int64_t last = min(stop - origin, at + FRAMED_BYTES)
    cdef int64_t sound = at
    cdef int64_t suspect = 0
    cdef int64_t used = 0
    cdef int64_t count = 0
    cdef int64_t end, start, added
    cdef int answer = 1
    if at < 0:
        raise IndexError("the batches begin before the window")
    PyErr_CheckSignals()
    source.checksums, source.origin = checksums, origin
    source.source_end = INT64_MAX if source_end is None else source_end - origin
    source.base, source.size = <const uint8_t*>data.items, data.length
    source.max_size, source.max_records = max_size, max_records
    if checksums.first_byte(position) < origin:
        return Framed(position, 0, 0, 0, False)
    with nogil:
        while at < last and at - sound < SOUND_BYTES and used < into.length and count < lost.length:
            start = at
            added = scan_into(source.base, source.size, &start, origin, rows + used, 1, &report)
            end = at
            if added:
                end = start
                answer = UNDECIDED
                if rows[used].size <= max_size and rows[used].magic == 2:
                    answer = source.holds(at, rows[used].size, at)
                if answer == 1:
                    used += 1
                    at = end
                    continue
                if answer == 0:
                    rows[used].status = BAD_CRC
                    loss[count] = LossRow(origin + at, 0, rows[used].base_offset, FAULT_BAD_CRC, rows[used].crc,
                                          checksums.last_crc)
                    answer = source.is_length_right(at, end)
            else:
                answer = 0
                loss[count] = LossRow(origin + at, 0, 0, report.fault, report.expected, report.found)
                if not report.fault:
                    answer = 0 if source.ends_within(at) else UNDECIDED
                    loss[count] = LossRow(origin + at, 0, 0, FAULT_LENGTH_TOO_LONG, 0, 0)
            if answer == 0:
                answer = source.ends(at, &end)
                if answer == 1 and added:
                    suspect = max(suspect, start)
                    if keeps_headers and start < end:
                        added += source.add_chain(start, end, rows + used + 1, into.length - used - 1)
                elif answer == 1 and keeps_headers:
                    added = source.add_first_header(at, rows + used)
            if answer != 1 or added == into.length - used:
                break
            used += added
            loss[count].size = end - at
            count += 1
            at = sound = end
    if answer == NO_MEMORY:
        raise MemoryError
    return Framed(origin + at, used, count, origin + suspect if suspect else 0,
                  answer == 1 and at - sound < SOUND_BYTES)
