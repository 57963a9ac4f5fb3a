"""The search for the next batch after damage, and the checksums that keep it linear in the input.

Every header may claim all the bytes that follow it, and only the checksum of these bytes shows whether it is right.
Computing each claimed checksum would take quadratic time. `EntryChecksums` computes running checksums once instead:
P(x) is the checksum of the bytes from an anchor to x, and the checksum of any range follows from two of them,
``crc(a..b) == P(b) ^ shift(P(a), b - a)``. P is stored for every `CHECKSUM_STEP` bytes and completed from the nearest
one, so that a claim of any length costs at most the checksum of 2 * CHECKSUM_STEP bytes.
"""

from collections import namedtuple

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from kbatch.kernels.checksum cimport crc32_legacy, crc32_shift, crc32c_after, crc32c_shift
from kbatch.kernels.scan cimport scan_into
from kbatch.kernels.spans cimport Span
from kbatch.kernels.tuning cimport CHECKSUM_STEP, SEARCH_BLOCK, SEARCH_WAIT, SIGNAL_BYTES
from kbatch.kernels.wire cimport (
    ATTRIBUTES_AT,
    BATCH_HEADER_SIZE,
    BatchRow,
    CODEC,
    CRC_AT,
    CRC_START,
    FaultReport,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_CODEC,
    MAX_CODEC_LEGACY,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    CRC_START_LEGACY,
    MESSAGE_SIZE_V0,
    MIN_ENTRY_SIZE,
    MIN_LENGTH_V0,
    MIN_LENGTH_V2,
    MIN_RECORD,
    RECORD_COUNT_AT,
    header_size,
    load_be16,
    load_be32,
    load_be64,
    minimum_length,
)

cdef enum:
    # Limits on a message that a search accepts: the longest key, and the maximum number of bytes after its value (no
    # writer leaves any). They keep other bytes from looking like messages.
    MAX_KEY = 1 << 20
    MAX_SPARE = 1 << 10
    # Results of a search.
    NOT_FOUND = 0
    FOUND = 1
    NEEDS_MORE = 2


Found = namedtuple("Found", "status position needed")
Lengths = namedtuple("Lengths", "last position holds used")


cdef inline bint plausible_v2(const uint8_t* p, int64_t left, int64_t length, int64_t max_records) noexcept nogil:
    """Whether the record count is possible: bounded by the bytes, or by `max_records` if they are compressed."""
    cdef int32_t count
    cdef int codec
    if left < BATCH_HEADER_SIZE:
        return True
    count = <int32_t>load_be32(p + RECORD_COUNT_AT)
    codec = p[ATTRIBUTES_AT + 1] & CODEC
    if count < 0 or codec > MAX_CODEC:
        return False
    return count <= (max_records if codec else (length - MIN_LENGTH_V2) // MIN_RECORD)


cdef inline bint plausible_legacy(const uint8_t* p, int64_t left, int64_t length, int64_t minimum) noexcept nogil:
    """Whether key and value fill the message, except for a few bytes."""
    # The position of the key's length. The value's length follows the key, and `minimum` includes both.
    cdef int64_t at = header_size(p[MAGIC_AT])
    cdef int64_t rest = length - minimum
    cdef int32_t size
    if left < at + 4:
        return True
    if p[MESSAGE_ATTRIBUTES_AT] & CODEC > MAX_CODEC_LEGACY:
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


cdef inline bint plausible(const uint8_t* p, int64_t left, int64_t max_size, int64_t max_records) noexcept nogil:
    """Whether the `left` bytes at `p`, 17 or more, may begin a decodable entry; the checksum decides later."""
    cdef int64_t length = <int32_t>load_be32(p + LENGTH_AT)
    cdef int64_t minimum
    if p[MAGIC_AT] > 2:
        return False
    minimum = minimum_length(p[MAGIC_AT])
    if length < minimum or LOG_OVERHEAD + length > max_size:
        return False
    if p[MAGIC_AT] == 2:
        return plausible_v2(p, left, length, max_records)
    return plausible_legacy(p, left, length, minimum)


cdef inline bint barren(const uint8_t* p, uint8_t top) noexcept nogil:
    """Whether magic and length rule out an entry at each of the next `SEARCH_BLOCK` positions: the length must be at
    least 14, with a first byte up to `top`. The loops have no branches, so that the compiler vectorizes them.
    """
    cdef uint8_t hits = 0
    cdef int i
    for i in range(SEARCH_BLOCK):
        hits |= (p[i + MAGIC_AT] <= 2) & (p[i + LENGTH_AT] <= top)
    if not hits:
        return True
    # Zeros pass the first test.
    hits = 0
    for i in range(SEARCH_BLOCK):
        hits |= ((p[i + LENGTH_AT + 3] >= MIN_LENGTH_V0)
                 | ((p[i + LENGTH_AT] | p[i + LENGTH_AT + 1] | p[i + LENGTH_AT + 2]) != 0))
    return not hits


cdef int64_t first_plausible(const uint8_t* base, int64_t size, int64_t position, int64_t stop, int64_t max_size,
                             int64_t max_records, int64_t source_end) noexcept nogil:
    cdef uint8_t top = <uint8_t>(min(max_size, INT32_MAX) >> 24)
    cdef int64_t last = min(size - MIN_ENTRY_SIZE, stop - 1)
    cdef int64_t end
    while position <= last:
        end = position + SEARCH_BLOCK
        if end + MIN_ENTRY_SIZE <= size and barren(base + position, top):
            position = end
            continue
        end = min(end, last + 1)
        while position < end:
            if plausible(base + position, size - position, min(max_size, source_end - position), max_records):
                return position
            position += 1
    return -1


cdef class RunningChecksum:
    """The checksums of one polynomial from an anchor on, at every `CHECKSUM_STEP` bytes."""

    def __cinit__(self, bint castagnoli):
        self.castagnoli = castagnoli
        self.anchor = self.end = -1

    def __dealloc__(self):
        free(self.marks)

    cdef uint32_t after(self, uint32_t crc, const uint8_t* p, int64_t size) noexcept nogil:
        if self.castagnoli:
            return crc32c_after(crc, p, size)
        return crc32_shift(crc, size) ^ crc32_legacy(p, size)

    cdef uint32_t at(self, const uint8_t* base, int64_t origin, int64_t position) noexcept nogil:
        """Return P(position), for a position between `anchor` and `end`."""
        cdef int64_t mark = (position - self.anchor) // CHECKSUM_STEP
        cdef int64_t start = self.anchor + mark * CHECKSUM_STEP
        return self.after(self.marks[mark], base + (start - origin), position - start)

    cdef bint extend(self, const uint8_t* base, int64_t origin, int64_t lowest, int64_t end) noexcept nogil:
        """Sum up to `end`, from a new anchor at `lowest` if the summed bytes end before it. False without memory."""
        cdef int64_t count, capacity
        cdef void* grown
        if self.count == 0 or lowest > self.end or lowest < self.anchor:
            self.anchor = self.end = lowest
            self.count = 0
        if end <= self.end and self.count:
            return True
        count = (end - self.anchor) // CHECKSUM_STEP + 1
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
                self.marks[self.count - 1],
                base + (self.anchor + (self.count - 1) * CHECKSUM_STEP - origin),
                CHECKSUM_STEP,
            )
            self.count += 1
        self.end = end
        return True


cdef inline bint contains(const uint8_t* base, int64_t length, int64_t at, int64_t size) noexcept nogil:
    """Whether an entry of `size` bytes at `at` is inside of `length` bytes, and not smaller than its header."""
    return at >= 0 and MIN_ENTRY_SIZE <= size <= length - at and (base[at + MAGIC_AT] != 2 or size >= BATCH_HEADER_SIZE)


cdef class EntryChecksums:
    """Verify the checksums of entries of a source, in time linear in the source even if the entries overlap.

    Every call gets a window, the bytes of the source from position `origin` on, and the lowest position that this call
    or a later one verifies. The window must begin at ``first_byte(lowest)`` or before it.
    """

    def __cinit__(self):
        self.crc32c = RunningChecksum(True)
        self.crc32 = RunningChecksum(False)

    cpdef int64_t first_byte(self, int64_t position):
        """Return where a window for an entry at `position` must begin: at most 127 bytes before it."""
        cdef int64_t first = position
        cdef RunningChecksum running
        for running in (self.crc32c, self.crc32):
            if running.count and running.anchor <= position <= running.end:
                first = min(first, running.anchor + (position - running.anchor) // CHECKSUM_STEP * CHECKSUM_STEP)
        return first

    cdef int entry_holds(self, const uint8_t* base, int64_t origin, int64_t lowest, int64_t position,
                         int64_t size) noexcept nogil:
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
        return self.last_crc == load_be32(p + (CRC_AT if v2 else MESSAGE_CRC_AT))

    def holds(self, window not None, int64_t origin, int64_t position, int64_t size, *, int64_t lowest):
        """Whether the checksum of the entry of `size` bytes at `position` is valid; the window has all of it."""
        cdef Span data = Span(window, 1, False)
        cdef int result
        if not origin <= lowest <= position or not contains(
            <const uint8_t*>data.items, data.length, position - origin, size
        ):
            raise IndexError("entry out of range")
        with nogil:
            result = self.entry_holds(<const uint8_t*>data.items, origin, lowest, position, size)
        if result < 0:
            raise MemoryError
        return result == 1

    def first_bad(self, window not None, int64_t origin, batches not None, int64_t row, int64_t end):
        """Return the first row from `row` up to `end` with an invalid checksum, and the computed one; else `end`, 0."""
        cdef Span data = Span(window, 1, False)
        cdef Span rows = Span(batches, sizeof(BatchRow), False)
        cdef const BatchRow* one
        cdef bint is_inside = True
        cdef int result = 1
        if row < 0 or end > rows.length:
            raise IndexError("rows out of range")
        with nogil:
            while row < end:
                one = &(<const BatchRow*>rows.items)[row]
                is_inside = contains(<const uint8_t*>data.items, data.length, one.position - origin, one.size)
                if not is_inside:
                    break
                result = self.entry_holds(<const uint8_t*>data.items, origin, one.position, one.position, one.size)
                if result != 1:
                    break
                row += 1
        if not is_inside:
            raise IndexError("entry out of range")
        if result < 0:
            raise MemoryError
        return row, 0 if row == end else self.last_crc

    def find(self, window not None, int64_t origin, int64_t position, int64_t stop, *, int64_t max_size,
             int64_t max_records, source_end, reached):
        """Search for the next entry with a valid length, magic and checksum.

        Parameters
        ----------
        window : ndarray of uint8
        origin : int
            Position of ``window[0]`` in the source.
        position, stop : int
            Where the entry may begin: from `position` up to `stop`.
        max_size : int
            Larger entries are not accepted, in bytes.
        max_records : int
            The largest record count of a compressed batch of magic 2. It must not depend on the size of the source: the
            checksum alone shows whether a header is a batch's.
        source_end : int or None
            The end of the source, if it is known. No entry reaches beyond it.
        reached : int or None
            The last offset before the damage. The checksum of a message of magic 0 or 1 does not cover its offset, and
            compressed payloads contain uncompressed messages in part: an uncompressed message is accepted only if its
            offset is greater than this one, by at most the range of a segment.

        Returns
        -------
        status : int
            1 if the entry is at `position`, 0 if there is none before `stop`, 2 if the search needs more bytes.
        position : int
            The entry; or where the search ended and a later one resumes.
        needed : int
            The position up to which the search needs the source to resume.
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
                    found = first_plausible(base, size, at, end, max_size, max_records, known_end)
                    if found < 0:
                        break
                    entry = LOG_OVERHEAD + <int64_t><int32_t>load_be32(base + found + LENGTH_AT)
                    if entry > size - found:
                        break
                    result = self.entry_holds(base, origin, origin + found, origin + found, entry)
                    if result < 0 or (result and fits(base + found, checks_offset, offset)):
                        break
                    at = found + 1
            if found >= 0:
                if entry > size - found:
                    # Twice the present bytes: with more of the header, the entry may prove not to be plausible.
                    needed = origin + found + min(entry, max(SEARCH_WAIT, 2 * (size - found)))
                    return Found(NEEDS_MORE, origin + found, needed)
                if result < 0:
                    raise MemoryError
                return Found(FOUND, origin + found, origin + found + entry)
            if end >= size - MIN_ENTRY_SIZE + 1:
                break
            at = end
            PyErr_CheckSignals()
        if size >= known_end or last <= size - MIN_ENTRY_SIZE + 1:
            return Found(NOT_FOUND, stop, origin + size)
        # The remaining bytes are too few for the header of an entry.
        at = max(position - origin, size - MIN_ENTRY_SIZE + 1)
        return Found(NEEDS_MORE, origin + at, origin + max(at + MESSAGE_SIZE_V0, size + 1))


cdef inline bint is_written(const uint8_t* p, uint64_t base_offset) noexcept nogil:
    """Whether a writer may have made the header at `p` of a batch of magic 2: other bytes rarely look like that."""
    cdef int64_t attributes = <int16_t>load_be16(p + ATTRIBUTES_AT)
    cdef int64_t delta = <int32_t>load_be32(p + LAST_OFFSET_DELTA_AT)
    # Offsets in a segment are at most 2^31 apart: Kafka's indexes store them relative to the first one.
    return (p[MAGIC_AT] == 2 and load_be64(p) - base_offset <= <uint64_t>1 << 31 and 0 <= attributes < 0x80
            and delta >= 0 and delta + 1 >= <int64_t><int32_t>load_be32(p + RECORD_COUNT_AT))


def last_claimed(window not None, int64_t origin, int64_t position, int64_t stop, *, int64_t max_size,
                 int64_t max_records, int64_t base_offset):
    """Return the greatest end, by their lengths, of the batches of magic 2 that may begin up to `stop`, or 0.

    Only complete headers in the window are considered. `base_offset` is the first offset of the segment; the other
    parameters are as for `EntryChecksums.find`.
    """
    cdef Span data = Span(window, 1, False)
    cdef const uint8_t* base = <const uint8_t*>data.items
    cdef int64_t at = position - origin
    cdef int64_t last = min(stop - origin, data.length - BATCH_HEADER_SIZE + 1)
    cdef int64_t claimed = 0
    if at < 0:
        raise IndexError("the search begins before the window")
    with nogil:
        while True:
            at = first_plausible(base, data.length, at, last, max_size, max_records, INT64_MAX)
            if at < 0:
                break
            if is_written(base + at, <uint64_t>base_offset):
                claimed = max(claimed, origin + at + LOG_OVERHEAD + <int32_t>load_be32(base + at + LENGTH_AT))
            at += 1
    return claimed


cdef inline bint fits(const uint8_t* p, bint checks_offset, int64_t reached) noexcept nogil:
    """Whether an entry with a valid checksum may belong to the source, by the offset of an uncompressed message."""
    cdef int64_t offset
    if not checks_offset or p[MAGIC_AT] == 2 or p[MESSAGE_ATTRIBUTES_AT] & CODEC:
        return True
    offset = <int64_t>load_be64(p)
    # Offsets in a segment are at most 2^31 apart: Kafka's indexes store them relative to the first one.
    return reached < offset and <uint64_t>offset - <uint64_t>reached <= <uint64_t>1 << 31


cdef void follow_chain(const uint8_t* base, int64_t size, int64_t origin, int64_t end, int64_t max_size, BatchRow* rows,
                       int64_t capacity, Chain* chain) noexcept nogil:
    cdef int64_t length, start
    cdef uint8_t magic
    cdef FaultReport ignored
    chain.last = -1
    chain.holds = True
    while chain.at < end and chain.at <= size - LOG_OVERHEAD:
        length = <int32_t>load_be32(base + chain.at + LENGTH_AT)
        chain.holds = MIN_LENGTH_V0 <= length <= max_size - LOG_OVERHEAD
        if not chain.holds or chain.at > size - MIN_ENTRY_SIZE:
            break
        magic = base[chain.at + MAGIC_AT]
        chain.holds = magic <= 2 and length >= minimum_length(magic)
        if not chain.holds:
            break
        if rows != NULL and magic == 2:
            if chain.at > size - BATCH_HEADER_SIZE or chain.used == capacity:
                break
            start = 0
            # Only the header is read: the window need not have the rest.
            chain.used += scan_into(base + chain.at, LOG_OVERHEAD + length, &start, origin + chain.at,
                                    rows + chain.used, 1, &ignored)
        chain.last = chain.at
        chain.at += LOG_OVERHEAD + length


def follow_lengths(window not None, int64_t origin, int64_t position, int64_t stop, int64_t max_size,
                   headers=None, int64_t used=0):
    """Follow the header chain from `position` up to `stop`, or to the first header that the window does not contain.

    With `headers`, an ndarray of BATCH_DTYPE, the rows of batches of magic 2 are added to it from row `used` on.

    Returns
    -------
    last, position : int
        The start of the last entry whose length was followed (-1 if there is none), and its end, which may be after the
        window.
    holds : bool
        Whether an entry may begin there, by its bytes in the window.
    used : int
        Rows of `headers` that are filled. When all are, the function returns.
    """
    cdef Span data = Span(window, 1, False)
    cdef Span rows = None if headers is None else Span(headers, sizeof(BatchRow), True)
    cdef int64_t capacity = 0 if rows is None else rows.length
    cdef Chain chain = Chain(position - origin, -1, True, used)
    if chain.at < 0 or used < 0 or used > capacity:
        raise IndexError("out of range")
    with nogil:
        follow_chain(<const uint8_t*>data.items, data.length, origin, stop - origin, max_size,
                     NULL if rows is None else <BatchRow*>rows.items, capacity, &chain)
    return Lengths(-1 if chain.last < 0 else origin + chain.last, origin + chain.at, chain.holds, chain.used)
