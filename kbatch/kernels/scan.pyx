"""Bytes to batch rows: the headers only, payloads untouched."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport (
    BatchRow,
    FAULT_BAD_MAGIC,
    FAULT_BATCH_TOO_SHORT,
    FAULT_LENGTH_TOO_SMALL,
    FAULT_NONE,
    MIN_RECORD,
    load_be16,
    load_be32,
    load_be64,
)

cdef enum:
    LOG_OVERHEAD = 12
    MAGIC_AT = 16
    MIN_ENTRY = 17
    # How far ahead headers of small batches are fetched: by who fills rows in between, and by who only follows lengths.
    # With 2 KiB for both two threads take 2 % longer for messages of 150 bytes.
    NEAR = 2 << 10
    FAR_AHEAD = 4 << 10
    # From so many places lengths of small batches are followed at a time; guesses are looked for among so many bytes.
    CHAINS = 4
    GUESSED_BYTES = 2 << 10
    # Least values of the length field, by magic (FRM-R2, FRM-R5, LEG-R1).
    MIN_LENGTH_V0 = 14
    MIN_LENGTH_V1 = 22
    MIN_LENGTH_V2 = 49
    # A guess, below what is usual, at the compressed bytes that a record takes.
    PACKED_RECORD = 8
    CODEC = 0x07
    MAX_CODEC = 4
    MAX_CODEC_LEGACY = 3
    CONTROL = 0x20
    ATTRIBUTES_V1 = 0x0F
    UNKNOWN = -1
    BAD_CRC = 1


cdef inline void fill_v2(const uint8_t* p, BatchRow* row) noexcept nogil:
    row.base_offset = <int64_t>load_be64(p)
    row.partition_leader_epoch = <int32_t>load_be32(p + 12)
    row.magic = 2
    row.crc = load_be32(p + 17)
    row.attributes = <int16_t>load_be16(p + 21)
    row.last_offset_delta = <int32_t>load_be32(p + 23)
    row.last_offset = <int64_t>(<uint64_t>row.base_offset + <uint64_t><int64_t>row.last_offset_delta)
    row.base_timestamp = <int64_t>load_be64(p + 27)
    row.max_timestamp = <int64_t>load_be64(p + 35)
    row.producer_id = <int64_t>load_be64(p + 43)
    row.producer_epoch = <int16_t>load_be16(p + 51)
    row.base_sequence = <int32_t>load_be32(p + 53)
    row.record_count = <int32_t>load_be32(p + 57)


cdef inline void fill_legacy(const uint8_t* p, int8_t magic, BatchRow* row) noexcept nogil:
    # The offset is that of the entry's last record. The first, and the count, of a wrapper need decompression
    # (LEG-R23).
    row.last_offset = <int64_t>load_be64(p)
    # Magic 0 knows no timestamp types, and neither knows more than four bits (LEG-R3).
    row.attributes = p[17] & (ATTRIBUTES_V1 if magic == 1 else CODEC)
    cdef bint wrapper = (row.attributes & CODEC) != 0
    row.base_offset = UNKNOWN if wrapper else row.last_offset
    row.record_count = UNKNOWN if wrapper else 1
    row.partition_leader_epoch = -1
    row.magic = magic
    row.crc = load_be32(p + 12)
    row.last_offset_delta = 0
    row.base_timestamp = -1
    row.max_timestamp = <int64_t>load_be64(p + 18) if magic == 1 else -1
    row.producer_id = -1
    row.producer_epoch = -1
    row.base_sequence = -1


cdef int64_t scan_into(const uint8_t* base, int64_t size, int64_t* position, int64_t origin, BatchRow* rows,
                       int64_t capacity, Stop* stop, bint ahead) noexcept nogil:
    cdef int64_t at = position[0]
    cdef int64_t n = 0
    cdef int64_t left
    cdef int64_t minimum
    cdef int32_t length
    cdef int8_t magic
    cdef const uint8_t* p
    stop.fault = FAULT_NONE
    while n < capacity:
        left = size - at
        if left < LOG_OVERHEAD:
            break
        p = base + at
        length = <int32_t>load_be32(p + 8)
        if length < MIN_LENGTH_V0:
            # Before asking whether enough bytes are there: FRM-R2.
            stop.fault = FAULT_LENGTH_TOO_SMALL
            stop.wanted = MIN_LENGTH_V0
            stop.found = length
            break
        if left < MIN_ENTRY:
            break
        magic = <int8_t>p[MAGIC_AT]
        if magic < 0 or magic > 2:
            stop.fault = FAULT_BAD_MAGIC
            stop.found = magic
            break
        minimum = MIN_LENGTH_V2 if magic == 2 else (MIN_LENGTH_V1 if magic == 1 else MIN_LENGTH_V0)
        if length < minimum:
            stop.fault = FAULT_BATCH_TOO_SHORT
            stop.wanted = minimum
            stop.found = length
            break
        if left - LOG_OVERHEAD < length:
            break
        if ahead or length < FAR:
            fetch_ahead(p, LOG_OVERHEAD + <int64_t>length, NEAR)
        if magic == 2:
            fill_v2(p, &rows[n])
        else:
            fill_legacy(p, magic, &rows[n])
        rows[n].position = origin + at
        rows[n].size = LOG_OVERHEAD + <int64_t>length
        rows[n].first_record = 0
        rows[n].status = 0
        n += 1
        at += LOG_OVERHEAD + <int64_t>length
    position[0] = at
    return n


cdef bint hop(const Road* road, Chain* chain) noexcept nogil:
    """Go on to the next batch, if nothing is unusual about this one: it is whole, and not compressed."""
    cdef int64_t left = road.length - chain.at
    cdef const uint8_t* p = road.base + chain.at
    cdef int64_t size
    cdef int64_t count = 1
    if left < MIN_ENTRY:
        return False
    size = <int64_t><int32_t>load_be32(p + 8) + LOG_OVERHEAD
    if size < LOG_OVERHEAD + MIN_LENGTH_V0 or size > left or size > road.max_size:
        return False
    fetch_ahead(p, size, FAR_AHEAD)
    if p[MAGIC_AT] == 2:
        count = <int32_t>load_be32(p + 57) if size >= LOG_OVERHEAD + MIN_LENGTH_V2 else -1
        if p[22] & CODEC or count < 0 or count > (size - LOG_OVERHEAD - MIN_LENGTH_V2) // MIN_RECORD:
            return False
        if p[22] & CONTROL and not road.include_control:
            count = 0
    elif p[MAGIC_AT] > 2 or p[17] & CODEC:
        return False
    chain.at += size
    chain.batches += 1
    chain.records += count if road.counts else 0
    return True


cdef int64_t guess(const Road* road, int64_t at, int64_t end) noexcept nogil:
    """The first byte from `at` on from which lengths lead on as those of batches do; -1 if there is none near."""
    cdef Chain chain
    cdef int64_t i
    for i in range(at, min(at + GUESSED_BYTES, end)):
        start_chain(&chain, i, end)
        if hop(road, &chain) and hop(road, &chain) and hop(road, &chain) and hop(road, &chain):
            return i
    return -1


cdef void follow_lengths(const Road* road, Chain* whole, int64_t start, int64_t end, bint small) noexcept nogil:
    """Follow lengths from byte `start` to `end`, or to anything unusual.

    Each length tells where the next one is, so that one waits for the other. Where batches are small they are followed
    from four places at a time, three of them guessed: that takes 8 % off what two threads take for messages of 150
    bytes. A guess is true if those before it lead there.
    """
    cdef Chain chains[CHAINS]
    cdef int64_t at
    cdef int n = 1
    cdef int k
    cdef bint running = True
    start_chain(&chains[0], start, end)
    if small:
        for k in range(1, CHAINS):
            at = guess(road, start + k * (end - start) // CHAINS, end)
            if at < 0:
                break
            chains[n - 1].end = at
            start_chain(&chains[n], at, end)
            n += 1
    while running:
        running = False
        for k in range(n):
            if chains[k].at < chains[k].end:
                if hop(road, &chains[k]):
                    running = True
                else:
                    chains[k].end = 0
    whole[0] = chains[0]
    for k in range(1, n):
        if whole.at != chains[k].start:
            break
        whole.at = chains[k].at
        whole.batches += chains[k].batches
        whole.records += chains[k].records


def scan(data not None, rows not None, int64_t first, int64_t end, int64_t position, int64_t origin):
    """Fill `rows`, from row `first` up to row `end`, with the batches of `data` from byte `position` on.

    Returns (rows filled, position after the last whole batch, fault, wanted, found). It ends where these are full,
    where fewer bytes remain than the next batch needs (no fault), or at bytes that no batch can begin with (a fault).
    ``origin`` is added to every position that is stored.
    """
    cdef Span bytes_ = Span(data, 1, False)
    cdef Span into = Span(rows, sizeof(BatchRow), True)
    cdef Stop stop
    cdef int64_t n
    stop.fault = FAULT_NONE
    stop.wanted = 0
    stop.found = 0
    if position < 0:
        raise ValueError("position must not be negative")
    if first < 0 or end < first or end > into.length:
        raise IndexError("rows out of range")
    with nogil:
        n = scan_into(<const uint8_t*>bytes_.items, bytes_.length, &position, origin, <BatchRow*>into.items + first,
                      end - first, &stop, True)
    return n, position, stop.fault, stop.wanted, stop.found


# What headers say about decoding: records to make room for, batches to decompress, and those that can't be decoded.
cdef struct Surveyed:
    int64_t records
    int64_t packed
    int64_t refused


cdef void add_up(const BatchRow* rows, int64_t n, bint include_control, Surveyed* out) noexcept nogil:
    cdef const BatchRow* row
    cdef int64_t payload
    cdef int64_t i
    cdef int codec
    for i in range(n):
        row = &rows[i]
        if row.status > BAD_CRC:
            continue
        codec = row.attributes & CODEC
        if codec > (MAX_CODEC if row.magic == 2 else MAX_CODEC_LEGACY):
            out.refused += 1
            continue
        if row.magic != 2:
            if codec:
                out.packed += 1
                out.records += row.size // PACKED_RECORD
            else:
                out.records += 1
            continue
        if row.record_count <= 0 or (row.attributes & CONTROL and not include_control):
            continue
        payload = row.size - (LOG_OVERHEAD + MIN_LENGTH_V2)
        if codec:
            out.packed += 1
            out.records += min(<int64_t>row.record_count, payload // PACKED_RECORD)
        else:
            out.records += min(<int64_t>row.record_count, payload // MIN_RECORD)


def survey(rows not None, bint include_control):
    """What the headers say about decoding `rows`, in one pass over them.

    Returns (records, packed, refused): how many records to make room for; how many batches have a payload to
    decompress; how many can't be decoded, for their magic or codec. No count is believed that the bytes can't hold
    (CNT-R7): a plain payload has seven bytes a record at least, and of a compressed one eight are guessed.
    """
    cdef Span span = Span(rows, sizeof(BatchRow), False)
    cdef Surveyed total = Surveyed(0, 0, 0)
    with nogil:
        add_up(<const BatchRow*>span.items, span.length, include_control, &total)
    return total.records, total.packed, total.refused


def sample(data not None, int64_t position, int64_t most, int64_t enough, bint include_control):
    """What the first batches of `data` from byte `position` on are like; nothing is kept.

    There are `most` of them at most, and no more after the one with which they take `enough` bytes.

    Returns (batches, bytes, records, packed, refused): how many they are, what they take, and what `survey` says.
    """
    cdef Span bytes_ = Span(data, 1, False)
    cdef BatchRow row
    cdef Surveyed total = Surveyed(0, 0, 0)
    cdef Stop stop
    cdef int64_t at = position
    cdef int64_t count = 0
    cdef int64_t n = 1
    if position < 0:
        raise ValueError("position must not be negative")
    with nogil:
        while n and count < most and at - position < enough:
            n = scan_into(<const uint8_t*>bytes_.items, bytes_.length, &at, 0, &row, 1, &stop, False)
            add_up(&row, n, include_control, &total)
            count += n
    return count, at - position, total.records, total.packed, total.refused
