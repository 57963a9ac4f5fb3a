"""The constants that decide the speed of kernels but not their results, each with its measurement."""

cdef enum:
    # -- scanning

    # For batches smaller than FAR_BATCH_MIN, prefetch all bytes this far ahead; for larger ones, up to FAR_BATCH_MAX,
    # the place where a header is expected. Batches of 490 to 600 bytes take 40 ns each to scan, and 60 if only two
    # lines of each are prefetched. Prefetching only the lines of the headers is faster where all batches have the same
    # size, and slower elsewhere.
    HEADERS_AHEAD = 2 << 10
    FAR_BATCH_MIN = 1 << 10
    FAR_BATCH_MAX = 64 << 10
    # How many bytes the header may be from that place.
    FAR_SLACK = 288
    # Headers of a file are read in blocks of HEADER_BLOCK bytes, or one by one from this size of batches on. Following
    # batches of 3.8 KB one by one takes two thirds of the time.
    HEADER_BLOCK = 32 << 10
    FAR_HEADER = 2 << 10
    # A low estimate of the compressed bytes per record.
    COMPRESSED_RECORD = 8

    # -- parsing

    # Prefetch the bytes this far ahead: 10 % off decoding lz4 batches of 130-byte records.
    PAYLOAD_AHEAD = 1024
    # For uncompressed batches up to this size, prefetch the next batch instead: its checksum then reads the cache,
    # which takes 4.3 instead of 5.3 ns per record of 48 bytes. Prefetching larger ones would evict the bytes that the
    # parser is reading.
    NEXT_BATCH_MAX = 128 << 10
    # Prefetch the rows this far ahead: 5 % off decoding records of 130 bytes.
    ROWS_AHEAD = 2048

    # From this size in bytes on, the rows of a table are written by non-temporal stores. To decode a table and then add
    # up its columns takes 11.1 instead of 12.3 ns per record where the rows have 37 MB. Rows of 4.6 MB that a log's
    # tables reuse one after the other stay in the cache: with these stores, 32 MB of a log take 12.7 instead of 9.6 ms.
    STREAMED_BYTES = 8 << 20

    # -- decoding batches

    # The first scratch memory of a thread, in bytes. Untouched pages are never allocated.
    FIRST_SCRATCH = 4 << 20
    # Uncompressed batches and messages that are checked and then parsed together, and their maximum size.
    RUN = 32
    RUN_BATCH = 1 << 10
    # Batches of this size exceed most caches: their checksum and records are computed LONG_STRIDE bytes at a time.
    LONG_BATCH = 2 << 20
    LONG_STRIDE = 64 << 10
    # Stored bytes of a group of batches that a thread claims. Decompressed it is about four times that, which fits into
    # the L2 cache together with its destination. With lz4 batches of 16 KiB two threads are 1.82 times as fast as one,
    # with twice as much 1.74 times.
    GROUP_BYTES = 256 << 10
    # Towards the end a group is a quarter of the remaining bytes, but at least this, so that threads end together.
    LAST_GROUP_BYTES = 16 << 10
    # A waiting thread first pauses, after WAIT_PAUSES tries yields its processor, and after WAIT_YIELDS tries sleeps.
    WAIT_PAUSES = 1000
    WAIT_YIELDS = 3000

    # -- searching

    # Positions that are tested together.
    SEARCH_BLOCK = 64
    # Distance in bytes between two stored running checksums: they take 3 % of the bytes summed.
    CHECKSUM_STEP = 128
    # An incomplete header that may be an entry's waits for at least this many bytes.
    SEARCH_WAIT = 64
    # Where damage is frequent: the bytes that are framed at a time, those that are searched for the end of one damage,
    # and those without damage after which damage is no longer frequent.
    FRAMED_BYTES = 512 << 10
    SEARCHED_BYTES = 64 << 10
    SOUND_BYTES = 64 << 10

    # Bytes between two checks for signals.
    SIGNAL_BYTES = 16 << 20
