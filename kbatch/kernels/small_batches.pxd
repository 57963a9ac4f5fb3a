from libc.stdint cimport int64_t

from kbatch.kernels.batch_decoder cimport BatchDecoder


# Decode a run of small uncompressed batches of one magic from batch `lo` on; return their number. The run ends before a
# batch that needs `decode_batch`, which may be the first one, and after the batch that fills the table.
cdef int64_t decode_small_batches(BatchDecoder decoder, int64_t lo) noexcept nogil
