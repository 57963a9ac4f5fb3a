"""Bytes, or a file, to batch rows: only the headers are read, not the payloads."""

from collections import namedtuple

from libc.errno cimport EINTR, errno
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from posix.types cimport off_t
from posix.unistd cimport pread

from kbatch.kernels.spans cimport Span
from kbatch.kernels.tuning cimport (
    COMPRESSED_RECORD,
    FAR_BATCH_MAX,
    FAR_BATCH_MIN,
    FAR_SLACK,
    FAR_HEADER,
    HEADER_BLOCK,
    HEADERS_AHEAD,
)
from kbatch.kernels.wire cimport (
    ATTRIBUTES_AT,
    ATTRIBUTES_V1,
    BAD_CRC,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_HEADER_SIZE,
    BatchRow,
    CODEC,
    CONTROL,
    CRC_AT,
    FAULT_BAD_MAGIC,
    FAULT_BATCH_TOO_SHORT,
    FAULT_LENGTH_TOO_SMALL,
    FAULT_NONE,
    FaultReport,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_CODEC,
    MAX_CODEC_LEGACY,
    MAX_TIMESTAMP_AT,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    MESSAGE_TIMESTAMP_AT,
    MIN_ENTRY_SIZE,
    MIN_LENGTH_V0,
    MIN_RECORD,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    fault_at,
    kb_prefetch_span,
    load_be16,
    load_be32,
    load_be64,
    minimum_length,
)

cdef enum:
    # The base offset and record count of a wrapper, until it is decompressed (LEG-R23).
    UNKNOWN = -1
    # The error of `scan_file` if the file is shorter than the caller stated.
    FILE_TOO_SHORT = -1

Scanned = namedtuple("Scanned", "rows position fault expected found")


cdef inline void fill_v2(const uint8_t* p, BatchRow* row) noexcept nogil:
    row.base_offset = <int64_t>load_be64(p)
    row.partition_leader_epoch = <int32_t>load_be32(p + LEADER_EPOCH_AT)
    row.magic = 2
    row.crc = load_be32(p + CRC_AT)
    row.attributes = <int16_t>load_be16(p + ATTRIBUTES_AT)
    row.last_offset_delta = <int32_t>load_be32(p + LAST_OFFSET_DELTA_AT)
    row.last_offset = <int64_t>(<uint64_t>row.base_offset + <uint64_t><int64_t>row.last_offset_delta)
    row.base_timestamp = <int64_t>load_be64(p + BASE_TIMESTAMP_AT)
    row.max_timestamp = <int64_t>load_be64(p + MAX_TIMESTAMP_AT)
    row.producer_id = <int64_t>load_be64(p + PRODUCER_ID_AT)
    row.producer_epoch = <int16_t>load_be16(p + PRODUCER_EPOCH_AT)
    row.base_sequence = <int32_t>load_be32(p + BASE_SEQUENCE_AT)
    row.record_count = <int32_t>load_be32(p + RECORD_COUNT_AT)


cdef inline void fill_legacy(const uint8_t* p, int8_t magic, BatchRow* row) noexcept nogil:
    # A message stores its last offset.
    row.last_offset = <int64_t>load_be64(p)
    # Magic 0 has no timestamp type.
    row.attributes = p[MESSAGE_ATTRIBUTES_AT] & (ATTRIBUTES_V1 if magic == 1 else CODEC)
    cdef bint wrapper = (row.attributes & CODEC) != 0
    row.base_offset = UNKNOWN if wrapper else row.last_offset
    row.record_count = UNKNOWN if wrapper else 1
    row.partition_leader_epoch = -1
    row.magic = magic
    row.crc = load_be32(p + MESSAGE_CRC_AT)
    row.last_offset_delta = 0
    row.base_timestamp = -1
    row.max_timestamp = <int64_t>load_be64(p + MESSAGE_TIMESTAMP_AT) if magic == 1 else -1
    row.producer_id = -1
    row.producer_epoch = -1
    row.base_sequence = -1


cdef inline void prefetch_headers(const uint8_t* p, int64_t size) noexcept nogil:
    """Prefetch the headers of the batches after the one of `size` bytes at `p`.

    Each header gives the position of the next, so that a scan would wait for memory at every one. Batches that a
    producer sent when they were full differ in size by a record at most: the header of the fourth batch from here is
    near ``p + 4 * size``, and four headers are loaded at the same time.
    """
    if size < FAR_BATCH_MIN:
        kb_prefetch_span(p + HEADERS_AHEAD, size)
    elif size < FAR_BATCH_MAX:
        kb_prefetch_span(p + 4 * size - FAR_SLACK, 2 * FAR_SLACK)


cdef int64_t scan_into(const uint8_t* base, int64_t size, int64_t* position, int64_t origin, BatchRow* rows,
                       int64_t capacity, FaultReport* report) noexcept nogil:
    cdef int64_t at = position[0]
    cdef int64_t n = 0
    cdef int64_t left
    cdef int64_t minimum
    cdef int32_t length
    cdef int8_t magic
    cdef const uint8_t* p
    report.fault = FAULT_NONE
    while n < capacity:
        left = size - at
        if left < LOG_OVERHEAD:
            break
        p = base + at
        length = <int32_t>load_be32(p + LENGTH_AT)
        if length < MIN_LENGTH_V0:
            # A fault even if the batch is incomplete (FRM-R2).
            fault_at(report, FAULT_LENGTH_TOO_SMALL, p, MIN_LENGTH_V0, length)
            break
        if left < MIN_ENTRY_SIZE:
            break
        magic = <int8_t>p[MAGIC_AT]
        if magic < 0 or magic > 2:
            fault_at(report, FAULT_BAD_MAGIC, p, 0, magic)
            break
        minimum = minimum_length(magic)
        if length < minimum:
            fault_at(report, FAULT_BATCH_TOO_SHORT, p, minimum, length)
            break
        if left - LOG_OVERHEAD < length:
            break
        prefetch_headers(p, LOG_OVERHEAD + <int64_t>length)
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


def scan_headers(data not None, rows not None, int64_t first, int64_t end, int64_t position, int64_t origin):
    """Fill `rows`, from row `first` up to row `end`, with the batches of `data` from byte `position` on.

    Returns (rows filled, position after the last complete batch, fault, expected, found). The scan ends when the rows
    are full, at an incomplete batch (no fault), or at bytes that cannot be the beginning of a batch (a fault).
    ``origin`` is added to every position that is stored.
    """
    cdef Span bytes_ = Span(data, 1, False)
    cdef Span into = Span(rows, sizeof(BatchRow), True)
    cdef FaultReport report = FaultReport(FAULT_NONE, -1, -1, 0, 0)
    cdef int64_t n
    if position < 0:
        raise ValueError("position must not be negative")
    if first < 0 or end < first or end > into.length:
        raise IndexError("rows out of range")
    with nogil:
        n = scan_into(<const uint8_t*>bytes_.items, bytes_.length, &position, origin, <BatchRow*>into.items + first,
                      end - first, &report)
    return Scanned(n, position, report.fault, report.expected, report.found)


cdef int64_t pread_all(int fd, uint8_t* block, int64_t size, int64_t position, int* error) noexcept nogil:
    """Read up to `size` bytes at `position`; return their number, which is smaller at the end of the file."""
    cdef int64_t done = 0
    cdef ssize_t n
    while done < size:
        n = pread(fd, block + done, <size_t>(size - done), <off_t>(position + done))
        if n == 0:
            break
        if n > 0:
            done += n
        elif errno != EINTR:
            error[0] = errno
            break
    return done


cdef int64_t scan_file_into(int fd, int64_t* position, int64_t end, BatchRow* rows, int64_t capacity,
                            FaultReport* report, int64_t* bytes_read, int* error) noexcept nogil:
    cdef uint8_t[HEADER_BLOCK] block
    cdef int64_t start = position[0]
    cdef int64_t held = 0
    cdef int64_t n = 0
    cdef int64_t at
    cdef int64_t header
    cdef int64_t size = 0
    report.fault = FAULT_NONE
    while n < capacity and position[0] < end:
        header = min(<int64_t>BATCH_HEADER_SIZE, end - position[0])
        if position[0] + header > start + held:
            start = position[0]
            # The next batches are probably of the same size.
            held = min(<int64_t>HEADER_BLOCK if size < FAR_HEADER else header, end - start)
            held = pread_all(fd, block, held, start, error)
            bytes_read[0] += held
            if held < header:
                if error[0] == 0:
                    error[0] = FILE_TOO_SHORT
                break
        # One batch at a time: the block must have its header, and the file up to `end` the whole batch.
        at = 0
        if scan_into(block + (position[0] - start), end - position[0], &at, position[0], rows + n, 1, report) == 0:
            break
        size = at
        position[0] += size
        n += 1
    return n


def scan_file(int fd, rows not None, int64_t position, int64_t end):
    """Fill `rows` with the batches of a file from byte `position` up to `end`; only blocks with headers are read.

    Returns the same as `scan_headers`, the number of bytes read, and an error: 0, the errno of a failed read, or -1 if
    the file ends before `end`, as far as that was noticed. Rows before the error are valid.
    """
    cdef Span into = Span(rows, sizeof(BatchRow), True)
    cdef FaultReport report = FaultReport(FAULT_NONE, -1, -1, 0, 0)
    cdef int64_t bytes_read = 0
    cdef int error = 0
    cdef int64_t n
    if position < 0:
        raise ValueError("position must not be negative")
    with nogil:
        n = scan_file_into(fd, &position, end, <BatchRow*>into.items, into.length, &report, &bytes_read, &error)
    return Scanned(n, position, report.fault, report.expected, report.found), bytes_read, error


def survey(rows not None, bint include_control):
    """Return (records, compressed): how many record rows to reserve, and how many batches have a compressed payload.

    Record counts are bounded by the size of the payload (CNT-R7): an uncompressed record takes at least seven bytes,
    and a compressed one is estimated to take `COMPRESSED_RECORD`.
    """
    cdef Span span = Span(rows, sizeof(BatchRow), False)
    cdef const BatchRow* row = <const BatchRow*>span.items
    cdef int64_t records = 0
    cdef int64_t compressed = 0
    cdef int64_t payload
    cdef int codec
    cdef int64_t _
    with nogil:
        for _ in range(span.length):
            codec = row.attributes & CODEC
            payload = row.size - BATCH_HEADER_SIZE
            if row.status > BAD_CRC or codec > (MAX_CODEC if row.magic == 2 else MAX_CODEC_LEGACY):
                pass
            elif row.magic != 2:
                compressed += codec != 0
                records += row.size // COMPRESSED_RECORD if codec else 1
            elif row.record_count > 0 and (include_control or not row.attributes & CONTROL):
                compressed += codec != 0
                records += min(<int64_t>row.record_count, payload // (COMPRESSED_RECORD if codec else MIN_RECORD))
            row += 1
    return records, compressed
