"""The search for the next batch after damage, and the checksums that keep it linear in the input.

Every header may claim all the bytes that follow it, and only the checksum of these bytes shows whether it is right. To
compute each claimed checksum would take quadratic time. `EntryChecksums` computes running checksums once instead:
P(x) is the checksum of the bytes from an anchor to x, and that of any range follows from two of them,
``crc(a..b) == P(b) ^ shift(P(a), b - a)``. P is kept for every `STEP` bytes and completed from the nearest one, so that
a claim costs no more than summing 2 * STEP bytes, whatever it claims.
"""

from collections import namedtuple

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from kbatch.kernels.checksum cimport crc32_legacy, crc32_shift, crc32c_after, crc32c_shift
from kbatch.kernels.scan cimport Stop, scan_into
from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport MIN_RECORD, BatchRow, load_be32, load_be64

cdef enum:
    LOG_OVERHEAD = 12
    MAGIC_AT = 16
    MIN_ENTRY = 17
    MIN_LENGTH_V0 = 14
    # The least size of an entry.
    MIN_SIZE = LOG_OVERHEAD + MIN_LENGTH_V0
    MIN_LENGTH_V1 = 22
    MIN_LENGTH_V2 = 49
    CODEC = 0x07
    CONTROL = 0x20
    MAX_CODEC = 4
    MAX_CODEC_LEGACY = 3
    # Where the checksum begins to cover a batch (CRC-R1) and a message (CRC-R7); it is stored just before.
    CRC_START = 21
    CRC_START_LEGACY = 16
    # Limits on a message that a search accepts: the longest key, and the most bytes after its value (no writer leaves
    # any). They keep other bytes from looking like messages.
    MAX_KEY = 1 << 20
    MAX_SPARE = 1 << 10
    # Positions that are tested together.
    BLOCK = 64
    # Bytes between two running checksums that are kept: 3 % of the bytes summed.
    STEP = 128
    # A search looks for signals after so many bytes.
    SIGNAL_BYTES = 16 << 20
    # An incomplete header that may be an entry's waits for this many bytes, or twice those that are there.
    FIRST_WAIT = 64
    # Results of a search.
    NOT_FOUND = 0
    FOUND = 1
    NEEDS_MORE = 2


Found = namedtuple("Found", "status position needed")
Lengths = namedtuple("Lengths", "last position holds used")


cdef inline int64_t minimum_length(uint8_t magic) noexcept nogil:
    """The least value of the length field (FRM-R2, FRM-R5, LEG-R1)."""
    return MIN_LENGTH_V2 if magic == 2 else (MIN_LENGTH_V1 if magic == 1 else MIN_LENGTH_V0)


cdef inline bint plausible_v2(const uint8_t* p, int64_t left, int64_t length, int64_t max_size) noexcept nogil:
    """Whether the record count is possible: bounded by the bytes, or by what a payload may decompress to."""
    cdef int32_t count
    if left < LOG_OVERHEAD + MIN_LENGTH_V2:
        return True
    count = <int32_t>load_be32(p + 57)
    if count < 0 or p[22] & CODEC > MAX_CODEC:
        return False
    return count <= (max_size if p[22] & CODEC else length - MIN_LENGTH_V2) // MIN_RECORD


cdef inline bint plausible_legacy(const uint8_t* p, int64_t left, int64_t length, int64_t minimum) noexcept nogil:
    """Whether key and value fill the message, but for a few bytes."""
    # The length of the key is here. The value's follows the key, and `minimum` includes both.
    cdef int64_t at = LOG_OVERHEAD + minimum - 8
    cdef int64_t rest = length - minimum
    cdef int32_t size
    if left < at + 4:
        return True
    if p[17] & CODEC > MAX_CODEC_LEGACY:
        return False
    size = <int32_t>load_be32(p + at)
    at += 4
    if size > 0:
        if size > rest or size > MAX_KEY:
            return False
        rest -= size
        at += size
    if left < at + 4:
        return True
    size = <int32_t>load_be32(p + at)
    if size > 0:
        rest -= size
    return 0 <= rest <= MAX_SPARE


cdef inline bint plausible(const uint8_t* p, int64_t left, int64_t max_size) noexcept nogil:
    """Whether the `left` bytes here, 17 or more, may begin an entry that can be decoded; the checksum decides later."""
    cdef int64_t length = <int32_t>load_be32(p + 8)
    cdef int64_t minimum
    if p[MAGIC_AT] > 2:
        return False
    minimum = minimum_length(p[MAGIC_AT])
    if length < minimum or LOG_OVERHEAD + length > max_size:
        return False
    if p[MAGIC_AT] == 2:
        return plausible_v2(p, left, length, max_size)
    return plausible_legacy(p, left, length, minimum)


cdef inline bint barren(const uint8_t* p, uint8_t top) noexcept nogil:
    """Whether none of the `BLOCK` positions from here on has a magic, and a length from 14 to one whose first byte is
    `top`, where they would be. Loops without branches, so that the compiler makes them some vector instructions.
    """
    cdef uint8_t hits = 0
    cdef int i
    for i in range(BLOCK):
        hits |= (p[i + MAGIC_AT] <= 2) & (p[i + 8] <= top)
    if not hits:
        return True
    # Zeros come this far.
    hits = 0
    for i in range(BLOCK):
        hits |= (p[i + 11] >= MIN_LENGTH_V0) | ((p[i + 8] | p[i + 9] | p[i + 10]) != 0)
    return not hits


cdef int64_t first_plausible(const uint8_t* base, int64_t size, int64_t position, int64_t stop, int64_t max_size,
                             int64_t source_end) noexcept nogil:
    """The first position from `position` up to `stop` where an entry may begin that ends in the source, or -1."""
    cdef uint8_t top = <uint8_t>(min(max_size, INT32_MAX) >> 24)
    cdef int64_t last = min(size - MIN_ENTRY, stop - 1)
    cdef int64_t end
    while position <= last:
        end = position + BLOCK
        if end + MIN_ENTRY <= size and barren(base + position, top):
            position = end
            continue
        end = min(end, last + 1)
        while position < end:
            if plausible(base + position, size - position, min(max_size, source_end - position)):
                return position
            position += 1
    return -1


cdef class RunningChecksum:
    """The checksums of one polynomial from an anchor on, at every `STEP` bytes."""

    cdef bint castagnoli
    # Positions in the source: of the first byte that is summed, and after the last one that is.
    cdef int64_t anchor
    cdef int64_t end
    cdef uint32_t* marks
    cdef int64_t count
    cdef int64_t capacity

    def __cinit__(self, bint castagnoli):
        self.castagnoli = castagnoli
        self.anchor = self.end = -1

    def __dealloc__(self):
        free(self.marks)

    cdef inline uint32_t after(self, uint32_t crc, const uint8_t* p, int64_t size) noexcept nogil:
        if self.castagnoli:
            return crc32c_after(crc, p, size)
        return crc32_shift(crc, size) ^ crc32_legacy(p, size)

    cdef inline uint32_t at(self, const uint8_t* base, int64_t origin, int64_t position) noexcept nogil:
        """P(position), for a position that is summed."""
        cdef int64_t mark = (position - self.anchor) // STEP
        cdef int64_t start = self.anchor + mark * STEP
        return self.after(self.marks[mark], base + (start - origin), position - start)

    cdef bint extend(self, const uint8_t* base, int64_t origin, int64_t lowest, int64_t end) noexcept nogil:
        """Sum up to `end`, with a new anchor at `lowest` if what is summed ends before it. False without memory."""
        cdef int64_t count, capacity
        cdef void* grown
        if self.count == 0 or lowest > self.end or lowest < self.anchor:
            self.anchor = self.end = lowest
            self.count = 0
        if end <= self.end and self.count:
            return True
        count = (end - self.anchor) // STEP + 1
        if count > self.capacity:
            capacity = max(count, 2 * self.capacity)
            grown = realloc(self.marks, capacity * sizeof(uint32_t))
            if grown == NULL:
                return False
            self.marks = <uint32_t*>grown
            self.capacity = capacity
        if self.count == 0:
            self.marks[0] = 0
            self.count = 1
        while self.count < count:
            self.marks[self.count] = self.after(
                self.marks[self.count - 1], base + (self.anchor + (self.count - 1) * STEP - origin), STEP
            )
            self.count += 1
        self.end = end
        return True


cdef class EntryChecksums:
    """Whether entries of a source hold their checksums, in time linear in the source however often they overlap.

    Every call is given a window, the bytes of the source from position `origin` on, and the lowest position that this
    call or a later one asks about. The window has to begin at ``first_byte(lowest)`` or before it.
    """

    cdef RunningChecksum crc32c
    cdef RunningChecksum crc32
    # The checksum of the bytes that were looked at last.
    cdef uint32_t last_crc

    def __cinit__(self):
        self.crc32c = RunningChecksum(True)
        self.crc32 = RunningChecksum(False)

    def first_byte(self, int64_t position):
        """Return where a window has to begin that is to cover an entry at `position`: no more than 127 bytes before."""
        cdef int64_t first = position
        cdef RunningChecksum running
        for running in (self.crc32c, self.crc32):
            if running.count and running.anchor <= position <= running.end:
                first = min(first, running.anchor + (position - running.anchor) // STEP * STEP)
        return first

    cdef int entry_holds(self, const uint8_t* base, int64_t origin, int64_t lowest, int64_t position,
                         int64_t size) noexcept nogil:
        """Whether the complete entry at `position` holds its checksum; -1 without memory."""
        cdef const uint8_t* p = base + (position - origin)
        cdef bint v2 = p[MAGIC_AT] == 2
        cdef int64_t start = position + (CRC_START if v2 else CRC_START_LEGACY)
        cdef int64_t end = position + size
        cdef uint32_t whole, before
        if v2:
            if not self.crc32c.extend(base, origin, lowest, end):
                return -1
            whole = self.crc32c.at(base, origin, end)
            before = crc32c_shift(self.crc32c.at(base, origin, start), end - start)
        else:
            if not self.crc32.extend(base, origin, lowest, end):
                return -1
            whole = self.crc32.at(base, origin, end)
            before = crc32_shift(self.crc32.at(base, origin, start), end - start)
        self.last_crc = whole ^ before
        return self.last_crc == load_be32(base + (start - 4 - origin))

    def holds(self, window not None, int64_t origin, int64_t position, int64_t size, *, int64_t lowest):
        """Whether the entry of `size` bytes at `position` holds its checksum; the window has all of it."""
        cdef Span data = Span(window, 1, False)
        cdef int result
        if not origin <= lowest <= position or size < MIN_ENTRY or size > origin + data.length - position:
            raise IndexError("entry out of range")
        if (<const uint8_t*>data.items)[position - origin + MAGIC_AT] == 2 and size < LOG_OVERHEAD + MIN_LENGTH_V2:
            raise IndexError("batch out of range")
        with nogil:
            result = self.entry_holds(<const uint8_t*>data.items, origin, lowest, position, size)
        if result < 0:
            raise MemoryError
        return result == 1

    def first_bad(self, window not None, int64_t origin, batches not None, int64_t row, int64_t end):
        """Return the first row from `row` up to `end` whose checksum does not hold, and that checksum; else `end`."""
        cdef Span data = Span(window, 1, False)
        cdef Span rows = Span(batches, sizeof(BatchRow), False)
        cdef const BatchRow* one
        cdef int result = 1
        if row < 0 or end > rows.length:
            raise IndexError("rows out of range")
        with nogil:
            while row < end:
                one = &(<const BatchRow*>rows.items)[row]
                result = self.entry_holds(<const uint8_t*>data.items, origin, one.position, one.position, one.size)
                if result != 1:
                    break
                row += 1
        if result < 0:
            raise MemoryError
        return row, 0 if row == end else self.last_crc

    def find(self, window not None, int64_t origin, int64_t position, int64_t stop, *, int64_t max_size, source_end,
             reached):
        """Search for the next entry whose length, magic and checksum hold.

        Parameters
        ----------
        window : ndarray of uint8
        origin : int
            Position of ``window[0]`` in the source.
        position, stop : int
            Where the entry may begin: from `position` up to `stop`.
        max_size : int
            Larger entries are not accepted, in bytes.
        source_end : int or None
            Where the source ends, if that is known. No entry reaches beyond it.
        reached : int or None
            The last offset before the damage. The checksum of a message of magic 0 or 1 doesn't cover its offset, and
            codecs keep stretches of what they compress: an uncompressed message is accepted only if its offset is
            above this one, by no more than a segment spans.

        Returns
        -------
        status : int
            1 if the entry is at `position`, 0 if there is none before `stop`, 2 if more bytes have to be known.
        position : int
            The entry; or where the search ended and a later one resumes.
        needed : int
            The position up to which the source has to be known for the search to resume.
        """
        cdef Span data = Span(window, 1, False)
        cdef const uint8_t* base = <const uint8_t*>data.items
        cdef int64_t size = data.length
        cdef int64_t at = position - origin
        cdef int64_t last = stop - origin
        cdef int64_t known_end = INT64_MAX if source_end is None else source_end - origin
        cdef bint checks_offset = reached is not None
        cdef int64_t offset = reached if checks_offset else 0
        cdef int64_t found = -1
        cdef int64_t entry = 0
        cdef int64_t end, needed
        cdef int result
        if at < 0:
            raise IndexError("the search begins before the window")
        while at < last:
            end = min(last, at + SIGNAL_BYTES)
            with nogil:
                while True:
                    found = first_plausible(base, size, at, end, max_size, known_end)
                    if found < 0:
                        break
                    entry = LOG_OVERHEAD + <int64_t><int32_t>load_be32(base + found + 8)
                    if entry > size - found:
                        break
                    result = self.entry_holds(base, origin, origin + found, origin + found, entry)
                    if result < 0 or (result and fits(base + found, checks_offset, offset)):
                        break
                    at = found + 1
            if found >= 0:
                if entry > size - found:
                    # Twice the bytes that are there: then more of the header shows whether the entry is plausible.
                    needed = origin + found + min(entry, max(FIRST_WAIT, 2 * (size - found)))
                    return Found(NEEDS_MORE, origin + found, needed)
                if result < 0:
                    raise MemoryError
                return Found(FOUND, origin + found, origin + found + entry)
            if end >= size - MIN_ENTRY + 1:
                break
            at = end
            PyErr_CheckSignals()
        if size >= known_end or last <= size - MIN_ENTRY + 1:
            return Found(NOT_FOUND, stop, origin + size)
        # Too few bytes are left for the header of an entry: it takes these and more to be complete.
        at = max(position - origin, size - MIN_ENTRY + 1)
        return Found(NEEDS_MORE, origin + at, origin + max(at + MIN_SIZE, size + 1))


cdef inline bint fits(const uint8_t* p, bint checks_offset, int64_t reached) noexcept nogil:
    """Whether an entry whose checksum holds may belong to the source, by the offset of an uncompressed message."""
    cdef int64_t offset
    if not checks_offset or p[MAGIC_AT] == 2 or p[MAGIC_AT + 1] & CODEC:
        return True
    offset = <int64_t>load_be64(p)
    # Offsets in a segment are at most 2^31 apart: Kafka's indexes store them relative to the first one.
    return reached < offset and <uint64_t>offset - <uint64_t>reached <= <uint64_t>1 << 31


def follow_lengths(window not None, int64_t origin, int64_t position, int64_t stop, int64_t max_size,
                   control=None, int64_t used=0):
    """Follow the lengths of entries from `position` on up to `stop`, as far as the window has their headers.

    With `control`, an ndarray of BATCH_DTYPE, the rows of control batches are added to it from row `used` on.

    Returns
    -------
    last, position : int
        Where the last entry begins whose length was followed (-1 if none was), and where it ends: that may be after the
        window.
    holds : bool
        Whether an entry may begin there, as far as its bytes show.
    used : int
        Rows of `control` that are filled. Where all are, the lengths are not followed any further.
    """
    cdef Span data = Span(window, 1, False)
    cdef Span rows = None if control is None else Span(control, sizeof(BatchRow), True)
    cdef BatchRow* row = NULL if rows is None else <BatchRow*>rows.items
    cdef int64_t capacity = 0 if rows is None else rows.length
    cdef const uint8_t* base = <const uint8_t*>data.items
    cdef int64_t size = data.length
    cdef int64_t at = position - origin
    cdef int64_t end = stop - origin
    cdef int64_t last = -1 - origin
    cdef int64_t length, start
    cdef uint8_t magic
    cdef bint holds = True
    cdef Stop ignored
    if at < 0 or used < 0 or used > capacity:
        raise IndexError("out of range")
    with nogil:
        while at < end and at <= size - LOG_OVERHEAD:
            length = <int32_t>load_be32(base + at + 8)
            holds = MIN_LENGTH_V0 <= length <= max_size - LOG_OVERHEAD
            if not holds or at > size - MIN_ENTRY:
                break
            magic = base[at + MAGIC_AT]
            holds = magic <= 2 and length >= minimum_length(magic)
            if not holds:
                break
            if row != NULL and magic == 2:
                if at > size - (LOG_OVERHEAD + MIN_LENGTH_V2) or used == capacity:
                    break
                if base[at + 22] & CONTROL:
                    start = 0
                    # Only the header is read, whether the window has the rest or not.
                    used += scan_into(base + at, LOG_OVERHEAD + length, &start, origin + at, row + used, 1, &ignored)
            last = at
            at += LOG_OVERHEAD + length
    return Lengths(origin + last, origin + at, holds, used)
