from libc.stdint cimport int32_t, int64_t, uint8_t

from kbatch.kernels.rows cimport PayloadState, ParseOptions
from kbatch.kernels.wire cimport BAD_CRC, CONTROL, BatchRow, FaultReport


cdef inline bint gives_rows(const BatchRow* batch, bint include_control) noexcept nogil:
    """Whether the payload of a batch is parsed."""
    return (batch.status <= BAD_CRC and batch.record_count != 0
            and (include_control or not batch.attributes & CONTROL))


# Start parsing the payload of a batch that `gives_rows`: initialize `state` with the number of records. Returns whether
# the payload can hold them; for a wrapper all of its messages are checked, except their keys and values.
cdef bint count_records(const uint8_t* payload, int64_t size, const BatchRow* batch, bint check_crc,
                        PayloadState* state, FaultReport* report) noexcept nogil

# Read a payload after `count_records` to rows, for which `into` has capacity; return how many are kept. The row of a
# wrapper is completed. At a fault the result is -1, the rows are undefined, and the row of the batch is unchanged.
# If `state.is_part`, only the beginning of a payload of magic 2 is known: as many records as are complete and ordinary
# are read, and the result is 0.
cdef int64_t read_rows(const uint8_t* base, int64_t position, int64_t size, BatchRow* batch, int32_t index, char* into,
                       PayloadState* state, const ParseOptions* options, FaultReport* report) noexcept nogil
