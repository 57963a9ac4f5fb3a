"""The constants that decide the speed and memory of the facade, but not its results.

Kernels have theirs in ``kernels/tuning.pxd``. A value without a figure has not been measured: it is the order of
magnitude at which the cost of one step no longer matters, and the memory does not yet.
"""

# -- batches/framing.py

# The smallest capacity of the rows of batches; it doubles when they are full.
FRAMING_MIN_ROWS = 1024

# -- batches/careful.py

# The output requested at a time from lz4, which allocates the maximum output of a call: 315 to 410 us for 1 MiB with a
# kept context, as lz4.frame.decompress takes.
LZ4_STEP = 256 << 10
# The compressed bytes that zlib gets at a time. It copies the input that it does not use, which would take quadratic
# time if it got the whole payload.
GZIP_FEED = 256 << 10
# The first step into a member, in bytes; each further one is four times as long. With 256 KiB at once, 2,000 members of
# 30 bytes took 8.1 times the instructions of 500 (`python -m bench.linear`).
GZIP_FIRST_FEED = 1 << 10
# The output requested from zlib at a time: with smaller pieces, 1 MiB takes up to a tenth longer.
GZIP_STEP = 1 << 20
# zlib's objects take several times the size of a piece, so it is smaller if the limit is low: a part of the limit.
GZIP_STEPS = 128
GZIP_MIN_STEP = 64 << 10

# -- batches/arena.py

# The smallest capacity that an arena grows to.
ARENA_MIN_GROWTH = 256 << 10

# -- batches/codecs.py

# The largest ratio of an ordinary payload's decompressed and compressed size: the capacity that is reserved.
ORDINARY_RATIO = 8
# The smallest capacity that is reserved for a payload, in bytes.
MIN_RESERVED = 256 << 10

# -- records/trimming.py

# A table is copied without the bytes that its records do not refer to if the copy, with its rows, takes at most this
# part of the bytes that are released, and if these have a size that matters.
TRIM_RATIO = 4
TRIM_MIN_BYTES = 64 << 10

# -- values/parsed.py

# A column is parsed in parts of this size, so that values fit int32 offsets and memory is bounded.
VALUES_PART_BYTES = 16 << 20
VALUES_PART_ROWS = 1 << 20
# The memory that the values of a part may take, in bytes, or this multiple of their own bytes if that is more. A part
# that needs more is halved. A single value that needs more is bad.
VALUES_PART_MEMORY = 128 << 20
VALUES_MEMORY_RATIO = 64

# -- values/protobuf.py

# The number of messages that exist as Python objects at a time.
PROTOBUF_ROWS = 4096

# -- values/json.py

# Rows that Arrow refuses are parsed again in this number of parts. Arrow takes 50 us for a few rows, Python 10 us per
# row.
JSON_PARTS = 16
# Arrow parses blocks of a buffer in parallel.
JSON_BLOCK_BYTES = 2 << 20

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
# discarded, then twice as many each time. The headers and rows of 4,096 stay in the cache until they are decoded.
# Several threads decode larger groups, and finally everything.
FEW_FRAMED = 16
FIRST_FRAMED = 1 << 10
MAX_FRAMED = 4 << 10
MAX_SHARED_FRAMED = 1 << 16

# -- read/chunks.py

# The smallest buffer of a stream.
CHUNKS_MIN_CAPACITY = 16 << 10

# -- read/stream.py

# The number of batches that are framed at a time to count them, so that their rows stay in the cache.
STREAM_FRAMED = 1024
# Bytes that `read_from` requests at a time.
STREAM_READ_BYTES = 1 << 20

# -- rewrite/rewriter.py

# The size of the output is estimated as at most this multiple of the input.
REWRITE_MAX_GROWTH = 8

# -- rewrite/recompression.py

# Buffers have the capacity for a batch that grows by this factor; larger ones are rewritten one by one.
RECOMPRESS_GROWTH = 8

# -- rewrite/grouping.py

# The approximate size of a table of decoded records.
GROUPING_TABLE_BYTES = 8 << 20

# -- log/storage.py

# Smallest request to a remote file, in bytes: the request itself costs more than the transfer of this many bytes.
MIN_REQUEST = 64 << 10

# -- log/indexes.py

# Entries per read: about a page of a local file, and enough of a remote one to be worth a request.
LOCAL_INDEX_BLOCK = 512
REMOTE_INDEX_BLOCK = 8192

# -- log/directories.py

# Concurrent listings of a remote filesystem: each is a round trip.
LISTED_AT_ONCE = 16

# -- log/reading.py

# The limit on a table, in bytes, where a whole log is decoded and tables are dropped at once, as in a task of Spark:
# large enough for speed, small compared with the other memory of a worker.
TABLE_BYTES = 32 << 20
# The same where the rest of a table's memory is larger, as Python objects per row, or the table is only searched.
SMALL_TABLE_BYTES = 16 << 20
# Rows of 65 bytes that a comparison by key collects before it reduces them to one per key.
LATEST_MIN_ROWS = 1 << 18
# The size of a table that the caller gets, if it sets no limit.
LOG_TABLE_BYTES = 64 << 20
# The capacity of a window of a file from which memory matters more than the time that new pages take.
FRUGAL_WINDOW = 1 << 20
# The smallest window of a file.
MIN_WINDOW = 64 << 10

# -- log/segment_file.py

# Batches per step of a walk over the headers of a local file, and bytes per step for a remote file. A walk may end
# soon, so steps start small and double up to the limit.
FIRST_WALK_BATCHES = 16
WALK_BATCHES = 4 << 10
FIRST_WALK_WINDOW = 64 << 10
WALK_WINDOW = 4 << 20
# Bytes that are compared with zeros at a time at the end of a segment.
ZERO_BLOCK = 1 << 16

# -- log/write/commit.py

# Bytes that are read at a time when files are compared before a commit.
COMMIT_READ_BYTES = 16 << 20

# -- log/write/dataframes.py

# Rows per slice: splitting a slice by partition copies its rows.
SLICE_ROWS = 1 << 16

# -- log/alignment.py

# The records of each side among which a comparison by order searches the next equal record after a difference. The cost
# stays linear with any number, because the searched records are then skipped; the memory grows with it.
ALIGNMENT_RECORDS = 1024
# Further tables are read for the search as long as the keys and values of the remaining records have fewer bytes.
ALIGNMENT_BYTES = 16 << 20

# -- plan/split.py

# Opening a file counts as reading this number of bytes, and a task opens at most this number of tiny files.
OPEN_COST = 1 << 20
MAX_OPENED = 128
# A task may exceed the even share by this fraction (one part in ...), which avoids a tiny rest.
SHARE_SLACK = 16


# -- plan/following.py

# Segments per thread that are followed before their results are joined.
FOLLOW_AHEAD = 2

# -- plan/planner.py

# The number of logs from which planning is worth a job or the work of the tasks: a second or two in one process.
MANY_LOGS = 1000
# A Spark job is worth its start from this number of bytes to follow: a fraction of a second of work for a core if the
# files are in memory, seconds if a disk has to read them.
FOLLOW_JOB_BYTES = 1 << 30

# -- log/selection.py

# Remote logs that are examined at the same time: each needs round trips.
REMOTE_THREADS = 16

# -- sinks/working.py

# How often a run in an object store shows that it lives, and after how long without that it counts as dead, in seconds:
# a process that is stopped for minutes is rare, and a user waits that long after a run was killed.
RENEWAL_SECONDS = 30.0
DEAD_SECONDS = 300.0

# -- sinks/outputs.py

# Concurrent requests that delete objects.
DELETE_THREADS = 16

# -- sinks/files.py

# Fractions of the target size: a file that lacks no more than FILE_SLACK is full, and the last rows of a task go into a
# file that exceeds it by up to FILE_REST. A row group may exceed its size by GROUP_SLACK.
FILE_SLACK = 1 / 16
FILE_REST = 1 / 8
GROUP_SLACK = 1 / 16

# -- sinks/parquet.py

# The number of values of a column from which its encoding is chosen: 0.1 ms for each column of a file.
DICTIONARY_SAMPLE = 8192
# They have at most about this size, unless there are only a few.
DICTIONARY_SAMPLE_BYTES = 4 << 20
# The size of a dictionary from which on Parquet's writer gives it up, after it has encoded a part of the column.
DICTIONARY_BYTES = 1 << 20
# The share of keys that a Bloom filter takes for others. With 1 % it is 9.6 bits per key, with 5 % 6.2.
BLOOM_MISSES = 0.05
# Limits of a page of Parquet.
PAGE_BYTES = 1 << 20
PAGE_ROWS = 16_384

# -- spark/functions.py

# Larger Arrow batches slow Spark down, and smaller ones too (see `kbatch.records.kafka_columns.spark_batches`).
ARROW_ROWS = 16_000
ARROW_BYTES = 4 << 20

# -- sinks/counts.py

# How often a running task writes its counts, in seconds.
COUNTER_SECONDS = 0.5

# -- sinks/sizing.py

# Each task has about 0.1 s of overhead, so small logs are not cut into smaller splits than this.
MIN_SPLIT_BYTES = 16 << 20
# The most that a task reads to fill a file: about a minute of work.
MAX_SPLIT_BYTES = 8 << 30
# The sample from which the size of the output is estimated: places, and the bytes that are read at each.
SIZING_PLACES = 8
SIZING_BYTES = 1 << 20

# -- spark/export_job.py

# Logs or segments per task of a job that plans, and their bytes.
PLAN_TASK_ITEMS = 1024
PLAN_TASK_BYTES = 1 << 30
