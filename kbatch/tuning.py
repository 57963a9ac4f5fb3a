"""The constants that decide the speed and memory of ``read/``, but not its results.

Kernels have theirs in ``kernels/tuning.pxd``, and other modules have theirs after their imports. A value without a
figure has not been measured: it is the order of magnitude at which the cost of one step no longer matters, and the
memory does not yet.
"""

# -- read/building.py

# The first capacity of an arena is this many times the size of its input, within bounds. Untouched pages are never
# allocated.
USUAL_RATIO = 5
MIN_ARENA_BYTES = 64 << 10
MAX_ARENA_BYTES = 256 << 20
# The stored bytes that one thread decodes after an unusual batch: if there are many such batches, the work of other
# threads would be discarded.
SERIAL_BYTES = 1 << 20
# The stored bytes per thread, for uncompressed and compressed batches. Starting a thread takes 50 us: two threads are
# as fast as one for 1 MiB of uncompressed batches, and 1.4 to 1.7 times as fast for 256 KiB of compressed batches.
THREAD_BYTES = 512 << 10
THREAD_BYTES_COMPRESSED = 128 << 10
# The number of batches from which the size of the following ones is estimated.
SAMPLE_BATCHES = 64
# A table whose header rows count is first decoded up to this fraction of it (one part in ...), to estimate their size.
HEADER_SAMPLE = 64
# The largest estimated ratio of decompressed and stored bytes, which bounds the capacity that a hostile first batch can
# make an arena reserve.
MAX_EXPECTED_RATIO = 6

# -- read/budget.py

# The scratch memory of a thread: at most this, and at least enough for a group of ordinary batches of 1 KiB.
MAX_SCRATCH = 16 << 20
MIN_SCRATCH = 256 << 10
# The smallest limit on a table that is split: a batch of 1 MiB, the largest that brokers accept by default, fits even
# if it decompresses to ten times its size.
MIN_SPLIT_TABLE = 16 << 20
# The smallest default of `Limits.max_table_bytes`: ten fetch responses of 50 MiB, Kafka's default limit.
MIN_DEFAULT_TABLE = 512 << 20
# The smallest limit on a table whose transactions are followed.
MIN_FOLLOWED_TABLE = 256 << 10

# -- read/reader.py

# The number of batches that are framed at a time: few right after damage, since batches framed after a bad one are
# discarded, then twice as many each time, up to about FRAMED_BYTES, which stay in the cache until they are decoded.
# Framing takes 25 us of Python each time: 32 MB of batches of 108 bytes take 11.0 ms with 4,096 batches at a time, and
# 9.9 ms with 16,384. Several threads decode larger groups, and finally everything.
FEW_FRAMED = 16
FIRST_FRAMED = 1 << 10
MAX_FRAMED = 16 << 10
FRAMED_BYTES = 7 << 18
MAX_SHARED_FRAMED = 1 << 16

# -- read/chunks.py

# The smallest buffer of a stream.
CHUNKS_MIN_CAPACITY = 16 << 10

# -- read/stream.py

# The number of batches that are framed at a time to count them, so that their rows stay in the cache.
STREAM_FRAMED = 1024
# Bytes that `read_from` requests at a time.
STREAM_READ_BYTES = 1 << 20

# -- log/reading.py

# The limit on a table, in bytes, where the rest of its memory is larger, as Python objects per row, or it is only
# searched.
SMALL_TABLE_BYTES = 16 << 20
# The size of a table that the caller gets, if it sets no limit.
LOG_TABLE_BYTES = 64 << 20
# The size of a table of which only the records with a key are kept. Its memory is new only once, and stays in the
# cache: `python -m bench.keys` takes 0.31 s of processor time in a new process with 8 MiB, 0.34 s with 2 MiB, and up
# to 0.45 s with 64 MiB.
KEY_TABLE_BYTES = 8 << 20
