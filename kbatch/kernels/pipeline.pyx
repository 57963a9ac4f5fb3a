"""Checksum, decompression and parsing of a stretch of batches, by one thread or by several at once, without the GIL.

One thread goes from batch to batch: each is checked, decompressed to the arena and parsed while it is in the first
level of the cache. Several take groups of consecutive batches, of which each has its place in the arena and in the rows
where one thread would have put it. Headers, and what payloads say of their own size, tell how much a group will take,
so that most get their places as they are taken; a thread then does with a group what one alone does with all. Where
that can't be told beforehand - lz4 of one block, zstd as Java writes it, messages in wrappers - a group gets its place
when all before it have theirs: until then it is decompressed to a scratch, to be copied and parsed in its turn.
A long batch that is the last one is shared: see `do_long`.

This module knows no policy and no errors. At a batch with anything unusual about it - a bad checksum, a fault, an odd
frame, no room for it - everything ends: the batches before it are done, it and those after it are as if they had not
been looked at. The facade takes that batch, which tells what is wrong with it, or makes room, and calls again.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kbatch.kernels.atomic cimport kb_add, kb_get, kb_set, kb_swap, kb_turn, pass_time
from kbatch.kernels.buffers import allocate
from kbatch.kernels.checksum cimport crc32_legacy, crc32c_after, crc32c_joined
from kbatch.kernels.decode cimport (
    BAD_CRC,
    BAD_INNER_CRC,
    CODEC,
    Measure,
    Report,
    Wanted,
    gives_rows,
    guess_record,
    measure,
    read_plain,
    read_rows,
    wrapper_value,
)
from kbatch.kernels.frames cimport Codecs, declared, plain_payload
from kbatch.kernels.helper cimport Work
from kbatch.kernels.scan cimport Chain, Road, Stop, follow_lengths, hop, scan_into, start_chain
from kbatch.kernels.spans cimport RecordSpan, Span
from kbatch.kernels.wire cimport (
    HEADER_V2,
    MIN_RECORD,
    BatchRow,
    header_size,
    kb_likely,
    kb_prefetch,
    kb_unlikely,
)

cdef enum:
    # The checksum of magic 2 covers the batch from its attributes on (CRC-R1), that of magic 0 and 1 the entry from its
    # magic on (CRC-R7).
    CRC_START = 21
    CRC_START_LEGACY = 16
    LZ4 = 3
    ZSTD = 4
    # What to do with checksums.
    SKIP = 0
    VERIFY = 1
    MARK = 2
    # Stored bytes of a group: decompressed about four times that, which stays in the L2 cache with what it is copied
    # from. With lz4 batches of 16 KiB two threads are 1.82 times as fast as one, with twice as much 1.74 times.
    GROUP = 256 << 10
    # Where nothing is compressed: its first batch has to be waited for. 16 KiB batches: 1.75, and 1.66 with half of it.
    PLAIN_GROUP = 512 << 10
    # Batches are small on whose lengths threads would wait for each other.
    SMALL = 512
    # Towards the end groups are a quarter of what is left, so that no thread waits long for the last one of another.
    LAST_GROUP = 16 << 10
    # What isn't touched of it costs nothing.
    FIRST_SCRATCH = 4 << 20
    MAX_SCRATCH = 16 << 20
    # So many bytes are framed at a time, where that is done here: one thread has them in the first level of the cache.
    FRAMED = 16 << 10
    # So many messages that stand alone are done together at most.
    RUN = 32
    # A batch of so many bytes, which is too much for most caches, is summed and read by so many at a time.
    LONG = 2 << 20
    STRIDE = 64 << 10
    # If it is the last one threads share it, in pieces of so many bytes, the last ones smaller. Not if a record takes
    # more than so many bytes: they are harder to guess, and summing them is most of the work.
    PIECE = 1 << 20
    LAST_PIECE = 64 << 10
    LONG_RECORD = 1 << 10
    # A batch to be shared: there is none, there may be soon, there are pieces.
    NONE = 0
    COMING = 1
    SHARED = 2
    # The caller's thread looks for signals each time so many bytes are through.
    SIGNAL_BYTES = 16 << 20
    # A row before all others: what is done is void.
    ABORTED = -1


# Where rows and decompressed bytes go next, and where there is no more room for them.
cdef struct Place:
    int64_t used
    int64_t end
    int64_t arena_used
    int64_t arena_end


# Batches `lo` to `hi`, for one thread, which has to frame them in the bytes `start` to `stop` unless they are `framed`.
# Of a group that is not `placed` the arena's bytes are -1 where they aren't known.
cdef struct Group:
    int64_t number
    int64_t lo
    int64_t hi
    int64_t start
    int64_t stop
    bint framed
    bint placed
    # Whether its last batch may be shared.
    bint shares
    Place place


# A batch of a group that isn't placed, between decompression and parsing.
cdef struct Item:
    int64_t row
    # Its payload: in the data or in its place; or where this is NULL, in the thread's scratch, from byte `at` on.
    const uint8_t* payload
    int64_t at
    int64_t size
    # Where in the arena it belongs.
    int64_t place
    Measure measured


# What is done behind each block of a batch that is being decompressed, while the first levels of the cache have both
# sides of it: for lz4 batches of 1 MiB that takes 5 % off the whole.
cdef struct Follower:
    BatchRow* row
    int32_t index
    # What the checksum covers, how many bytes of it lie before the payload; and how many are summed, to what.
    const uint8_t* covered
    int64_t before
    int64_t summed
    uint32_t crc
    # Where the payload goes to, the rows, and which are there.
    const uint8_t* base
    int64_t position
    char* into
    const Wanted* wanted
    Measure measured


cdef void follow(void* context, int64_t read, int64_t written) noexcept nogil:
    cdef Follower* it = <Follower*>context
    cdef Report report
    if it.covered != NULL:
        read += it.before
        it.crc = crc32c_after(it.crc, it.covered + it.summed, read - it.summed)
        it.summed = read
    read_rows(it.base, it.position, written, it.row, it.index, it.into, &it.measured, it.wanted, &report)


cdef int64_t read_through(Follower* it, int64_t at, int64_t end) noexcept nogil:
    """Sum a payload from byte `at` to `end`, where records have to end, and read all that aren't read.

    Returns how many rows there are then, or -1.
    """
    cdef Report report
    it.measured.part = True
    while at < end:
        at = min(at + STRIDE, end)
        follow(it, at, at)
    it.measured.part = False
    return read_rows(it.base, it.position, end, it.row, it.index, it.into, &it.measured, it.wanted, &report)


cdef class Worker:
    """What a thread needs of its own."""

    cdef Codecs codecs
    cdef object block
    cdef Span _block
    cdef uint8_t* scratch
    cdef int64_t room
    cdef object item_block
    cdef Span _items
    cdef Item* items
    cdef int64_t capacity
    cdef int64_t count

    def __init__(self, Codecs codecs not None):
        self.codecs = codecs

    cdef void let_go(self) noexcept:
        """Give back its memory. No thread uses it any more."""
        self._block = self._items = None
        self.block = self.item_block = None
        self.scratch = NULL
        self.items = NULL
        self.room = self.capacity = self.count = 0

    cdef bint grow(self, int64_t used, int64_t wanted) noexcept with gil:
        """Have room for `wanted` bytes, of which `used` stay."""
        cdef Span span
        cdef int64_t size = max(self.room, FIRST_SCRATCH)
        while size < wanted:
            size *= 2
        if size > MAX_SCRATCH:
            return False
        try:
            block = allocate(size)
            span = Span(block, 1, True)
        except MemoryError:
            return False
        if used:
            memcpy(span.items, self.scratch, used)
        self._block = span
        self.block = block
        self.scratch = <uint8_t*>span.items
        self.room = size
        return True

    cdef bint reserve(self, int64_t count) noexcept with gil:
        """Have room for `count` items; those that are there are lost."""
        try:
            block = allocate(count * sizeof(Item))
            self._items = Span(block, sizeof(Item), True)
        except MemoryError:
            return False
        self.item_block = block
        self.items = <Item*>self._items.items
        self.capacity = count
        return True


cdef class Pipeline(Work):
    """The batches `lo` to `hi` of `data`, of which `origin` is the position in the source, and where they go.

    Record rows go to `out`, from row `used` on, and what is decompressed to `arena`, from byte `arena_used` on. With
    `packed` False no batch is compressed, and positions are those in `data`. With `keep` False rows have no positions,
    and nothing has to stay decompressed.

    `crc` is 0 to skip checksums, 1 to end at a bad one, 2 to mark its batch; `check_inner` is whether to look at those
    of the messages in wrappers. With `framing_only` nothing but checksums is looked at.
    Everything ends after the batch with which rows, batches and bytes come to `most`. `limit` is the most bytes that a
    compressed payload may come to; the other arguments are those of `kbatch.kernels.decode.decode`.

    With a `position` 0 or more, `hi` is where rows end so far: batches are framed from that byte of `data` on and their
    rows appended to `batches`, until there is no room, no whole batch, one that is compressed, or takes more than
    `max_size` bytes. Only with `packed` False.

    The caller vouches that every row's position and size lie within `data` (they come from `scan`), one after the
    other, and that no other thread touches what is written to.

    Attributes
    ----------
    hi, position : int
        Where the rows end, and what of `data` is framed.
    next : int
        The batch after the last one that is done.
    used, arena_used : int
        Rows and bytes of the arena that are filled then.
    sharing, wrong_at : int
        2 if the last batch was shared; where in it what was guessed was wrong, far beyond it if that was nowhere.
    """

    cdef readonly int64_t lo
    cdef Span _data
    cdef Span _batches
    cdef RecordSpan _out
    cdef Span _arena
    cdef const uint8_t* base
    cdef BatchRow* rows
    cdef char* out
    cdef int64_t capacity
    cdef uint8_t* arena
    cdef int64_t arena_room
    cdef int64_t origin
    cdef Wanted wanted
    cdef int crc
    cdef bint packed
    cdef bint keep
    cdef bint counts_data
    cdef bint framing_only
    cdef bint include_control
    cdef int64_t limit
    cdef int64_t most
    # What threads write to has cache lines of its own, by who does: for batches of 100 bytes, two threads are no faster
    # than one if they share theirs.
    cdef int64_t _line_1[8]
    # By the thread whose turn it is. No wrapper from row `placed` on has been read when everything has ended.
    cdef readonly int64_t next
    cdef readonly int64_t used
    cdef readonly int64_t arena_used
    cdef int64_t placed
    cdef int64_t _line_2[8]
    # By the thread that takes a group: which is the next one, and where it begins.
    cdef int64_t lock
    cdef readonly int64_t hi
    cdef readonly int64_t position
    cdef int64_t first_position
    cdef Road road
    cdef bint frames
    cdef int64_t claimed
    cdef int64_t next_row
    # Where in the arena it begins, or -1.
    cdef int64_t arena_claimed
    cdef int64_t _line_3[8]
    # The group whose turn it is.
    cdef int64_t turn
    cdef int64_t _line_4[8]
    # The first row that is left, once one is known, and what is filled before it.
    cdef int64_t stop
    cdef int64_t stop_used
    cdef int64_t stop_arena_used
    # The batch that is shared, with the next piece of it, and what the sums of pieces come to; how many are being read;
    # and where the first one begins, in records and bytes, that turned out to be none. With the lock.
    cdef int64_t _line_5[8]
    cdef readonly int64_t sharing
    cdef int64_t shared_row
    cdef Follower shared
    cdef int64_t reading
    cdef int64_t wrong
    cdef readonly int64_t wrong_at
    cdef int64_t _line_6[8]
    # Threads at work, and whether no more may begin.
    cdef int64_t inside
    cdef int64_t closed
    # What the threads that help were given.
    cdef list lent

    def __init__(self, data not None, batches not None, int64_t lo, int64_t hi, int64_t origin, out not None,
                 int64_t used, arena, int64_t arena_used, *, bint packed, bint keep, int crc, bint check_inner,
                 bint framing_only, int64_t most, int64_t limit, bint include_control, bint trimmed,
                 int64_t first_offset, int64_t last_offset, int64_t position=-1, int64_t max_size=INT64_MAX):
        self._data = Span(data, 1, False)
        self._batches = Span(batches, sizeof(BatchRow), True)
        self._out = RecordSpan(out, True)
        if arena is not None:
            self._arena = Span(arena, 1, True)
            self.arena = <uint8_t*>self._arena.items
            self.arena_room = self._arena.length
        if lo < 0 or hi > self._batches.length or used < 0 or used > self._out.length:
            raise IndexError("rows out of range")
        if arena_used < 0 or arena_used > self.arena_room:
            raise IndexError("arena out of range")
        if trimmed and not framing_only and self._out.fields.offset < 0:
            raise ValueError("out has no offset to trim by")
        if self._out.length and self._out.stride != self._out.fields.itemsize:
            raise ValueError("out must be contiguous")
        self.lo = self.next = self.next_row = lo
        self.hi = hi
        self.used = used
        self.arena_used = arena_used
        self.base = <const uint8_t*>self._data.items
        self.rows = <BatchRow*>self._batches.items
        self.out = self._out.items
        self.capacity = self._out.length
        self.origin = origin
        self.wanted.fields = self._out.fields
        self.wanted.whole = self._out.whole
        self.wanted.check_crc = check_inner
        self.wanted.trimmed = trimmed
        self.wanted.first_offset = first_offset
        self.wanted.last_offset = last_offset
        self.crc = crc
        self.packed = packed
        self.keep = keep
        # Where there is no arena, a table holds the data as far as its batches reach.
        self.counts_data = keep and not packed
        self.framing_only = framing_only
        self.include_control = include_control
        self.limit = limit
        self.most = most
        self.stop = self.wrong_at = INT64_MAX
        self.lent = []
        if position > self._data.length or (packed and position >= 0):
            raise ValueError("nothing can be framed there")
        self.frames = position >= 0
        self.position = self.first_position = position
        self.road = Road(self.base, self._data.length, max_size, include_control, not framing_only)

    def work_alone(self, codecs):
        """Do all of it in this thread, which looks for signals: where one raises, so does this."""
        cdef Worker worker = Worker(codecs)
        cdef Place place = Place(self.used, self.capacity, self.arena_used, self.arena_room)
        cdef int64_t i = self.lo
        cdef int64_t looked
        cdef int64_t count
        cdef bint more = True
        while more:
            PyErr_CheckSignals()
            looked = 0
            with nogil:
                while more and looked < SIGNAL_BYTES:
                    if i == self.hi and not self.frame():
                        break
                    count = self.some(worker, &place, i, self.hi)
                    i += count
                    if count:
                        looked += self.rows[i - 1].position + self.rows[i - 1].size - self.rows[i - count].position
                    more = count and self.cost(i, place.used, place.arena_used) < self.most
            if i == self.hi and looked < SIGNAL_BYTES:
                break
        self.next = i
        self.used = place.used
        self.arena_used = place.arena_used

    def work(self, codecs):
        """Do all of it in this thread, with those that `help`: none of them is at it any more then.

        This thread looks for signals. Where one raises, so does this: then the caller has to `abandon` all.
        """
        cdef Worker worker = Worker(codecs)
        with nogil:
            self.run(worker, True)
        self.close()

    cdef object lend(self, Codecs codecs):
        worker = Worker(codecs)
        self.lent.append(worker)
        return worker

    cdef void help(self, void* own) noexcept nogil:
        kb_add(&self.inside, 1)
        if not kb_get(&self.closed):
            self.run(<Worker>own, False)
        kb_add(&self.inside, -1)

    def abandon(self):
        """Let all stop, at any time, and wait until none is at it; what is written to is undefined then."""
        self.end_at(ABORTED, 0, 0)
        self.close()

    cdef void close(self):
        """Let no thread begin, wait until none is at it, and let go of the arrays."""
        cdef int64_t tries = 0
        cdef Worker worker
        if kb_swap(&self.closed, True):
            return
        with nogil:
            while kb_get(&self.inside):
                pass_time(&tries)
        if self.stop == INT64_MAX:
            self.next = self.hi
        elif self.stop != ABORTED:
            self.next = self.stop
            self.used = self.stop_used
            self.arena_used = self.stop_arena_used
            self.forget()
        if self.first_position >= 0 and self.stop != ABORTED:
            self.frame_next()
        # A helper holds this object until it gets another.
        self._data = self._batches = self._arena = self._out = None
        for worker in self.lent:
            worker.let_go()

    cdef void frame_next(self) noexcept nogil:
        """Have a row of what has ended it, as there is if one thread frames, which no thread may have come to."""
        cdef Stop stop
        self.position = self.first_position
        if self.next > self.lo:
            self.position = self.rows[self.next - 1].position + self.rows[self.next - 1].size - self.origin
        self.hi = self.next + scan_into(self.base, self._data.length, &self.position, self.origin,
                                        self.rows + self.next, min(1, self._batches.length - self.next), &stop, False)

    cdef void forget(self) noexcept nogil:
        """Let the rows of wrappers that were read too early be as `scan` made them."""
        cdef int64_t i
        for i in range(self.next, self.placed):
            if self.rows[i].magic != 2 and self.rows[i].attributes & CODEC:
                self.rows[i].base_offset = self.rows[i].record_count = -1
                self.rows[i].last_offset_delta = 0
                if self.rows[i].status == BAD_INNER_CRC:
                    self.rows[i].status = 0

    cdef inline int64_t cost(self, int64_t i, int64_t used, int64_t arena_used) noexcept nogil:
        """Bytes that a table of the batches before `i` takes."""
        cdef int64_t plain = arena_used
        if self.counts_data:
            plain = self.rows[i - 1].position + self.rows[i - 1].size - self.origin
        return used * self.wanted.fields.itemsize + plain + i * <int64_t>sizeof(BatchRow)

    cdef inline bint there(self, const BatchRow* row) noexcept nogil:
        cdef int64_t at = row.position - self.origin
        return at >= 0 and row.size >= CRC_START and row.size <= self._data.length - at

    cdef inline bint summed(self, BatchRow* row, int64_t summed, uint32_t crc) noexcept nogil:
        """Whether the checksum holds or is marked; of magic 2, `summed` bytes of what it covers come to `crc`."""
        cdef const uint8_t* p = self.base + (row.position - self.origin)
        cdef uint32_t found
        if self.crc == SKIP:
            return True
        if kb_likely(row.magic == 2):
            found = crc32c_after(crc, p + CRC_START + summed, row.size - CRC_START - summed)
        else:
            found = crc32_legacy(p + CRC_START_LEGACY, row.size - CRC_START_LEGACY)
        if kb_likely(found == row.crc):
            return True
        if self.crc == MARK and row.status == 0:
            row.status = BAD_CRC
        return self.crc == MARK

    cdef inline bint supported(self, const BatchRow* row) noexcept nogil:
        return (row.attributes & CODEC) <= (ZSTD if row.magic == 2 else LZ4)

    cdef inline const uint8_t* payload(self, const BatchRow* row, int64_t* size) noexcept nogil:
        """Where the payload of a batch begins, and its size; NULL where a wrapper has none."""
        cdef const uint8_t* p = self.base + (row.position - self.origin)
        cdef int64_t at = header_size(row.magic)
        if row.magic != 2 and row.attributes & CODEC:
            at = wrapper_value(p, row.size, row.magic, size)
        else:
            size[0] = row.size - at
        if at < 0 or size[0] < 0:
            return NULL
        return p + at

    cdef int64_t to_scratch(self, Worker worker, const BatchRow* row, const uint8_t* p, int64_t size,
                            int64_t used) noexcept nogil:
        """Decompress to the scratch, from byte `used` on; how many bytes, or -1."""
        cdef int64_t written
        cdef int64_t room
        # No library gets a pointer to nothing.
        if worker.scratch == NULL and not worker.grow(0, 1):
            return -1
        while True:
            room = worker.room - used
            written = plain_payload(worker.codecs, row.attributes & CODEC, row.magic > 0, p, size,
                                    worker.scratch + used, room, self.limit)
            # Whether it was for the room can't be told.
            if written >= 0 or room >= self.limit or not worker.grow(used, worker.room + 1):
                return written

    cdef inline int64_t some(self, Worker worker, Place* place, int64_t lo, int64_t hi) noexcept nogil:
        """Do the next batches of those from `lo` to `hi`; how many, which is none if anything is unusual about it."""
        cdef int64_t count = 0
        if self.rows[lo].magic != 2:
            count = self.plain_run(place, lo, hi)
        return count or self.step(worker, place, lo)

    cdef int64_t plain_run(self, Place* place, int64_t lo, int64_t hi) noexcept nogil:
        """Do messages that stand alone, of those from `lo` to `hi`; how many.

        They end before one with anything unusual about it, and after the one with which all come to `most`. Of 74 bytes
        one takes 16 ns with framing, and 26 if `step` does each.
        """
        cdef const BatchRow* row
        cdef int64_t used = place.used
        cdef int64_t at
        cdef int64_t count = 0
        cdef int64_t i
        if self.packed or self.wanted.trimmed:
            return 0
        hi = min(hi, lo + (<int64_t>RUN if self.framing_only else min(<int64_t>RUN, place.end - used)))
        for i in range(lo, hi):
            row = &self.rows[i]
            at = row.position - self.origin
            if (row.magic == 2 or row.attributes & CODEC or row.status or at < 0 or row.size < CRC_START
                    or row.size > self._data.length - at):
                break
            if self.crc != SKIP and kb_unlikely(
                crc32_legacy(self.base + at + CRC_START_LEGACY, row.size - CRC_START_LEGACY) != row.crc
            ):
                break
            # What is framed next.
            kb_prefetch(self.base + at + FRAMED)
            kb_prefetch(self.base + at + FRAMED + 64)
            count += 1
            if self.cost(i + 1, used + (0 if self.framing_only else count), place.arena_used) >= self.most:
                break
        if self.framing_only:
            return count
        count = read_plain(self.base, self.rows + lo, count, self.origin, <int32_t>lo,
                           self.out + used * self.wanted.fields.itemsize, &self.wanted)
        for i in range(count):
            self.rows[lo + i].first_record = used + i
        place.used = used + count
        return count

    cdef bint step(self, Worker worker, Place* place, int64_t i) noexcept nogil:
        """Do batch `i`, when all before it are done, unless anything is unusual about it."""
        cdef BatchRow* row = &self.rows[i]
        cdef const uint8_t* base = self.base
        cdef const uint8_t* p
        cdef int64_t size
        cdef int64_t position
        cdef int64_t added = 0
        cdef int64_t count
        cdef Measure measured
        cdef Report report
        cdef Follower follower
        # What a library is to read is summed behind it, when it lies in the first levels of the cache. Before it, the
        # sum waits for memory: that took 4 ns for a record of 130 bytes, now 2. Libraries are safe whatever they read.
        # A long batch, too, is summed as it is read.
        cdef bint unpacks = row.attributes & CODEC and not self.framing_only
        cdef bint behind = unpacks or self.is_long(row)
        if kb_unlikely(not self.there(row)):
            return False
        if not behind and kb_unlikely(not self.summed(row, 0, 0)):
            return False
        if self.framing_only:
            return True
        row.first_record = place.used
        if not self.supported(row):
            return False
        if not gives_rows(row, self.include_control):
            return not behind or self.summed(row, 0, 0)
        p = self.payload(row, &size)
        if p == NULL:
            return False
        if behind and not unpacks:
            return self.do_long(place, i, p, size)
        position = p - base
        if unpacks:
            follower.summed = follower.crc = 0
            follower.measured.done = follower.measured.done_at = 0
            if self.keep:
                base = self.arena
                position = place.arena_used
                if row.magic == 2 and row.record_count <= place.end - place.used:
                    self.follow_with(&follower, place, row, i, self.arena, place.arena_used)
                    worker.codecs.follow_context = &follower
                    worker.codecs.follow = follow
                size = plain_payload(worker.codecs, row.attributes & CODEC, row.magic > 0, p, size,
                                     self.arena + place.arena_used, place.arena_end - place.arena_used, self.limit)
                worker.codecs.follow = NULL
                added = size
            else:
                size = self.to_scratch(worker, row, p, size, 0)
                base = worker.scratch
                position = 0
            if size < 0 or kb_unlikely(not self.summed(row, follower.summed, follower.crc)):
                return False
        elif self.packed and self.keep:
            if size > place.arena_end - place.arena_used:
                return False
            memcpy(self.arena + place.arena_used, p, size)
            base = self.arena
            position = place.arena_used
            added = size
        if not measure(base + position, size, row, self.wanted.check_crc, &measured, &report):
            return False
        if measured.count > place.end - place.used:
            return False
        if unpacks:
            measured.done = follower.measured.done
            measured.done_at = follower.measured.done_at
        count = read_rows(base, position, size, row, <int32_t>i, self.out + place.used * self.wanted.fields.itemsize,
                          &measured, &self.wanted, &report)
        if kb_unlikely(count < 0):
            return False
        place.used += count
        place.arena_used += added
        return True

    cdef inline void follow_with(self, Follower* follower, const Place* place, BatchRow* row, int64_t i,
                                 const uint8_t* base, int64_t position) noexcept nogil:
        """Prepare for a batch of magic 2 whose plain payload is at `position`, and there is room for its rows.

        Whether its checksum holds, and whether its header tells the truth, is seen in the end.
        """
        follower.row = row
        follower.index = <int32_t>i
        follower.covered = NULL
        if self.crc != SKIP:
            follower.covered = self.base + (row.position - self.origin) + CRC_START
        follower.before = header_size(row.magic) - CRC_START
        follower.base = base
        follower.position = position
        follower.into = self.out + place.used * self.wanted.fields.itemsize
        follower.wanted = &self.wanted
        follower.measured.part = True

    # -- long batches

    cdef inline bint is_long(self, const BatchRow* row) noexcept nogil:
        return row.size >= LONG and row.magic == 2 and not self.packed and not self.framing_only

    cdef inline bint shareable(self, const BatchRow* row) noexcept nogil:
        """Whether records of a long batch can be guessed: by its header, no offset is left out."""
        return (not self.wanted.trimmed and <int64_t>row.last_offset_delta + 1 == row.record_count
                and row.size // LONG_RECORD <= row.record_count)

    cdef bint do_long(self, Place* place, int64_t i, const uint8_t* p, int64_t size) noexcept nogil:
        """Do batch `i`, which is long and has its payload at `p`, as `step` does.

        If it is the last one it is shared. A piece ends where a record is guessed to begin, with as many records as are
        guessed to be before it. If exactly that is found in all pieces, the rows are those that one thread would have
        made. Else this thread goes on alone from the first piece in which it isn't.
        """
        cdef BatchRow* row = &self.rows[i]
        cdef int64_t at = 0
        cdef int64_t count
        cdef int64_t tries = 0
        cdef uint32_t crc = 0
        cdef Follower it
        cdef Report report
        if not measure(p, size, row, self.wanted.check_crc, &it.measured, &report):
            return False
        count = it.measured.count
        if count > place.end - place.used:
            return False
        it.summed = it.crc = 0
        self.follow_with(&it, place, row, i, self.base, p - self.base)
        if kb_get(&self.sharing) == COMING and i == self.shared_row and self.shareable(row):
            self.shared = it
            kb_set(&self.sharing, SHARED)
            self.do_pieces()
            while kb_get(&self.reading):
                pass_time(&tries)
            at = self.shared.measured.done_at
            crc = self.shared.crc
            it.summed = it.before + at
            it.measured.done = self.wrong
            it.measured.done_at = self.wrong_at
        if it.measured.done_at < size:
            count = read_through(&it, at, size)
        if count < 0 or not self.summed(row, row.size - CRC_START, crc ^ it.crc):
            return False
        place.used += count
        return True

    cdef void do_pieces(self) noexcept nogil:
        """Read pieces of the batch that is shared, until there are none."""
        cdef BatchRow row
        cdef int64_t at
        cdef int64_t number
        cdef int64_t end
        cdef bint good
        cdef Follower it
        while self.take_piece(&it, &row, &end):
            at = it.measured.done_at
            number = it.measured.done
            good = read_through(&it, at, end) >= 0
            it.crc = crc32c_joined(it.crc, 0, row.size - HEADER_V2 - end)
            self.acquire()
            self.shared.crc ^= it.crc
            if not good and at < self.wrong_at:
                self.wrong = number
                self.wrong_at = at
            self.release()
            kb_add(&self.reading, -1)

    cdef bint take_piece(self, Follower* it, BatchRow* row, int64_t* end) noexcept nogil:
        """Take the next piece, and the row of a batch that ends where it does; False if there is none."""
        cdef Measure* next = &self.shared.measured
        cdef int64_t size = self.shared.row.size - HEADER_V2
        cdef int64_t number
        cdef bint more
        self.acquire()
        more = next.done_at < size and self.wrong_at == INT64_MAX
        if more:
            it[0] = self.shared
            row[0] = it.row[0]
            it.row = row
            it.crc = 0
            it.summed = it.before + next.done_at if next.done_at else 0
            if guess_record(it.base, it.position, size, next.done_at + piece_size(size - next.done_at), end,
                            &number) and next.done < number < row.record_count:
                row.record_count = <int32_t>number
            else:
                end[0] = size
            next.done = row.record_count
            next.done_at = end[0]
            kb_add(&self.reading, 1)
        self.release()
        return more

    cdef void share(self) noexcept nogil:
        """Take part in the batch that is shared, if there is one, or may be soon."""
        cdef int64_t tries = 0
        while kb_get(&self.sharing) == COMING and kb_get(&self.stop) != ABORTED:
            pass_time(&tries)
        if kb_get(&self.sharing) == SHARED:
            self.do_pieces()

    # -- groups

    cdef bint frame(self) noexcept nogil:
        """Append the rows of a few batches; whether there are any."""
        cdef int64_t at = self.position
        cdef int64_t n
        cdef int64_t i
        if not self.frames:
            return False
        n = self.frame_some(&at, self._data.length, self.hi, self._batches.length)
        for i in range(self.hi, self.hi + n):
            if self.rows[i].attributes & CODEC or self.rows[i].size > self.road.max_size:
                n = i - self.hi
                at = self.rows[i].position - self.origin
                self.frames = False
                break
        self.hi += n
        self.position = at
        return n > 0

    cdef int64_t frame_some(self, int64_t* at, int64_t end, int64_t lo, int64_t hi) noexcept nogil:
        """Frame from byte `at` to `end`, to the rows from `lo` to `hi`, a few batches, or one; how many."""
        cdef Stop stop
        cdef int64_t n = scan_into(self.base, min(at[0] + FRAMED, end), at, self.origin, self.rows + lo, hi - lo, &stop,
                                   False)
        if n == 0:
            n = scan_into(self.base, end, at, self.origin, self.rows + lo, min(1, hi - lo), &stop, False)
        return n

    cdef bint claim(self, Worker worker, Group* group) noexcept nogil:
        """Take the next group; False if there is none."""
        self.acquire()
        group.number = self.claimed
        group.lo = group.hi = self.next_row
        group.shares = False
        if kb_get(&self.stop) > group.lo:
            if self.frames:
                self.look_ahead(group)
            elif group.lo < self.hi:
                self.divide(group)
                self.give_place(worker.codecs, group)
        if group.lo < group.hi:
            self.claimed += 1
            self.next_row = group.hi
            group.shares = group.placed and group.stop - group.start >= LONG and self.is_last(group)
            if group.shares:
                self.shared_row = group.hi - 1
                kb_set(&self.sharing, COMING)
        self.release()
        return group.lo < group.hi

    cdef bint is_last(self, const Group* group) noexcept nogil:
        """Whether there is nothing to be claimed after a group; False if that isn't known."""
        cdef Chain chain
        if not self.frames or kb_get(&self.stop) <= group.hi:
            return group.hi == self.hi
        start_chain(&chain, group.stop, self._data.length)
        return not hop(&self.road, &chain)

    cdef void look_ahead(self, Group* group) noexcept nogil:
        """Find the next group and its place where nothing is framed yet, which the group's thread does then."""
        cdef Chain chain
        cdef Chain before
        cdef int64_t end = self.position + group_size(self._data.length - self.position, PLAIN_GROUP)
        cdef int64_t room = self._batches.length - self.hi
        cdef bint small = self.position - self.first_position < SMALL * (self.hi - self.lo)
        cdef bint more = True
        follow_lengths(&self.road, &chain, self.position, end, small)
        if chain.batches > room or chain.records > self.capacity - self.used or self.cost_after(&chain) >= self.most:
            # Only as many as there is room for, or as are wanted.
            start_chain(&chain, self.position, end)
            while more and chain.at < end and chain.batches < room:
                before = chain
                if not hop(&self.road, &chain) or chain.records > self.capacity - self.used:
                    chain = before
                    break
                more = self.cost_after(&chain) < self.most
        group.framed = False
        group.placed = True
        group.start = self.position
        group.stop = self.position = chain.at
        group.hi = self.hi = self.hi + chain.batches
        group.place = Place(self.used, self.used + chain.records, self.arena_used, self.arena_used)
        self.used = group.place.end
        self.frames = group.hi > group.lo
        if not more:
            self.end_before(group.hi, self.used, self.arena_used)

    cdef inline int64_t cost_after(self, const Chain* chain) noexcept nogil:
        """Bytes that a table takes with what a chain has come by."""
        cdef int64_t plain = chain.at if self.counts_data else 0
        return ((self.used + chain.records) * self.wanted.fields.itemsize + plain
                + (self.hi + chain.batches) * <int64_t>sizeof(BatchRow))

    cdef void divide(self, Group* group) noexcept nogil:
        """Find the next group of those that are framed."""
        cdef int64_t above = self.hi
        cdef int64_t middle
        cdef int64_t at
        group.framed = True
        group.start = at = self.rows[group.lo].position
        # At least one: a thread without any would wait for its turn.
        at += group_size(self.rows[above - 1].position - at, GROUP)
        group.hi += 1
        while group.hi < above:
            middle = group.hi + (above - group.hi) // 2
            if self.rows[middle].position < at:
                group.hi = middle + 1
            else:
                above = middle

    cdef void give_place(self, Codecs codecs, Group* group) noexcept nogil:
        """Find the place of a group, or what is known of it; it may become shorter. Only with the lock.

        It is placed if all before it are, up to the first batch of which not all is foreseen, or that fills the table.
        """
        cdef bint first = kb_get(&self.turn) == group.number
        cdef bint more = True
        cdef int64_t used = self.used if first else 0
        cdef int64_t arena_used = self.arena_used if first else self.arena_claimed
        cdef int64_t count = 0
        cdef int64_t size = 0
        cdef int64_t i
        group.placed = first
        group.place.used = used
        group.place.arena_used = arena_used
        for i in range(group.lo, group.hi if arena_used >= 0 else group.lo):
            self.foresee(codecs, i, &count, &size)
            if size > self.arena_room - arena_used:
                size = -1
            if group.placed and (size < 0 or count < 0 or count > self.capacity - used):
                group.placed = i > group.lo
                if group.placed:
                    group.hi = i
                    break
            if size < 0:
                arena_used = -1
                break
            arena_used += size
            if group.placed:
                used += count
                more = self.cost(i + 1, used, arena_used) < self.most
                if not more:
                    group.hi = i + 1
                    break
        group.place.arena_end = self.arena_claimed = arena_used
        if group.placed:
            group.place.end = self.used = used
            self.arena_used = arena_used
            if not more:
                self.end_before(group.hi, used, arena_used)
            kb_set(&self.turn, group.number + 1)
        elif not self.packed:
            # Its records are to be counted, in its turn: one batch at a time.
            group.hi = group.lo + 1
        group.stop = self.rows[group.hi - 1].position + self.rows[group.hi - 1].size

    cdef inline void foresee(self, Codecs codecs, int64_t i, int64_t* count, int64_t* size) noexcept nogil:
        """How many rows and bytes of the arena a batch will take; -1 each where that can't be told."""
        cdef const BatchRow* row = &self.rows[i]
        cdef const uint8_t* p
        cdef bint unpacks = row.attributes & CODEC
        count[0] = size[0] = 0
        if self.framing_only:
            return
        if not self.there(row) or not self.supported(row):
            count[0] = size[0] = -1
            return
        if not gives_rows(row, self.include_control):
            return
        size[0] = row.size - header_size(row.magic)
        if unpacks and self.keep:
            p = self.payload(row, size)
            size[0] = -1 if p == NULL else declared(codecs, row.attributes & CODEC, p, size[0])
        count[0] = 1 if row.magic != 2 else row.record_count
        # What is compressed and not kept may have any number of records.
        if row.magic != 2 and unpacks or not self.within(i) or (
                row.magic == 2 and count[0] > size[0] // MIN_RECORD and (self.keep or not unpacks)):
            count[0] = -1
        if not self.packed or not self.keep:
            size[0] = 0

    cdef inline void acquire(self) noexcept nogil:
        cdef int64_t tries = 0
        while kb_swap(&self.lock, 1):
            # Who has it may have to wait for this processor.
            pass_time(&tries)

    cdef inline void release(self) noexcept nogil:
        kb_set(&self.lock, 0)

    cdef void end_at(self, int64_t row, int64_t used, int64_t arena_used) noexcept nogil:
        """Leave the batches from `row` on; what is filled before it."""
        self.acquire()
        self.end_before(row, used, arena_used)
        self.release()

    cdef inline void end_before(self, int64_t row, int64_t used, int64_t arena_used) noexcept nogil:
        """Do so, with the lock."""
        if row < kb_get(&self.stop):
            self.stop_used = used
            self.stop_arena_used = arena_used
            kb_set(&self.stop, row)

    cdef int run(self, Worker worker, bint looks) except -1 nogil:
        """Take groups until there are none, or everything ends; `looks` is whether to look for signals."""
        cdef Group group
        cdef int64_t looked = 0
        cdef bint more
        while self.claim(worker, &group):
            if looked >= SIGNAL_BYTES and looks:
                looked = 0
                with gil:
                    PyErr_CheckSignals()
            looked += group.stop - group.start
            more = self.do_placed(worker, &group) if group.placed else self.do_in_turn(worker, &group)
            if group.shares:
                # If it hasn't come to it, nothing will.
                kb_turn(&self.sharing, COMING, NONE)
            if not more:
                break
        self.share()
        return 0

    cdef bint do_placed(self, Worker worker, Group* group) noexcept nogil:
        """Do a group that has its place; whether to go on after it."""
        cdef int64_t at = group.start
        cdef int64_t framed = group.hi if group.framed else group.lo
        cdef int64_t i = group.lo
        cdef int64_t count = 1
        while count and i < group.hi and kb_get(&self.stop) > i:
            if i == framed:
                framed += self.frame_some(&at, group.stop, framed, group.hi)
            count = self.some(worker, &group.place, i, framed) if i < framed else 0
            i += count
        # Where a payload isn't what it said to be, what comes after the group is in the wrong place.
        if kb_likely(i == group.hi and (group.framed or at == group.stop) and group.place.used == group.place.end
                     and group.place.arena_used == group.place.arena_end):
            return True
        self.end_at(i, group.place.used, group.place.arena_used)
        return False

    cdef bint do_in_turn(self, Worker worker, Group* group) noexcept nogil:
        """Do a group that gets its place when all before it have theirs; whether to go on after it."""
        # Then others begin behind what it will have come to.
        cdef bint foreseen = group.place.arena_end >= 0
        cdef int64_t tries = 0
        cdef int64_t ready = group.lo
        cdef int64_t i
        cdef bint more
        cdef Place place
        if self.packed:
            ready = self.prepare(worker, group)
        while kb_get(&self.turn) != group.number:
            if kb_get(&self.stop) <= group.lo:
                return False
            pass_time(&tries)
        if kb_get(&self.stop) <= group.lo:
            return False
        more = self.settle(worker, group.lo, &ready)
        if more and ready < group.hi:
            # From here on in order: what could not be prepared, for want of room or for what it is.
            more = self.finish(worker)
            i = ready
            place = Place(self.used, self.capacity, self.arena_used,
                          group.place.arena_end if foreseen else self.arena_room)
            while more and i < group.hi:
                more = self.step(worker, &place, i)
                if more:
                    i += 1
                    self.placed = i
                if not more or self.cost(i, place.used, place.arena_used) >= self.most:
                    self.end_at(i, place.used, place.arena_used)
                    more = False
            self.used = place.used
            self.arena_used = place.arena_used
            worker.count = 0
        if more and foreseen and self.arena_used != group.place.arena_end:
            self.end_at(group.hi, self.used, self.arena_used)
            more = False
        if more:
            kb_set(&self.turn, group.number + 1)
        self.finish(worker)
        return more

    cdef bint within(self, int64_t i) noexcept nogil:
        """Whether by its header no record of batch `i` is trimmed. When it is read that is seen to be so, or not."""
        cdef const BatchRow* row = &self.rows[i]
        if not self.wanted.trimmed:
            return True
        if row.last_offset > self.wanted.last_offset:
            return False
        if row.magic != 2 and row.attributes & CODEC:
            # The offset of the first message isn't known; sets don't overlap.
            return i > self.lo and self.rows[i - 1].last_offset >= self.wanted.first_offset
        return row.base_offset >= self.wanted.first_offset

    cdef int64_t prepare(self, Worker worker, const Group* group) noexcept nogil:
        """Check and decompress a group; the first batch that is left for its turn.

        If its place in the arena is known, or once all groups before it have theirs, it is decompressed to that. Else
        it is to the scratch, from where it has to be copied: that takes a tenth of the time of lz4.
        """
        cdef BatchRow* row
        cdef Item* item
        cdef const uint8_t* p
        cdef uint8_t* out
        cdef int64_t start = group.place.arena_used if self.keep else -1
        cdef int64_t end = group.place.arena_end if group.place.arena_end >= 0 else self.arena_room
        cdef int64_t size
        cdef int64_t used = 0
        cdef int64_t total = 0
        cdef int64_t room = 0
        cdef int64_t i
        cdef Report report
        worker.count = 0
        if group.hi - group.lo > worker.capacity and not worker.reserve(group.hi - group.lo):
            return group.lo
        for i in range(group.lo, group.hi):
            if kb_get(&self.stop) <= group.lo:
                return i
            row = &self.rows[i]
            if not self.there(row) or not self.supported(row):
                return i
            if not gives_rows(row, self.include_control):
                if not self.summed(row, 0, 0):
                    return i
                continue
            if not self.within(i):
                return i
            p = self.payload(row, &size)
            if p == NULL:
                return i
            item = &worker.items[worker.count]
            item.row = i
            item.payload = p
            if start < 0 and self.keep and kb_get(&self.turn) == group.number:
                start = self.arena_used
            if start >= 0:
                room = end - start - total
                if room < (0 if row.attributes & CODEC else size):
                    return i
            if row.attributes & CODEC:
                if start >= 0:
                    out = self.arena + start + total
                    size = plain_payload(worker.codecs, row.attributes & CODEC, row.magic > 0, p, size, out, room,
                                         self.limit)
                    item.payload = p = out
                else:
                    size = self.to_scratch(worker, row, p, size, used)
                    item.payload = NULL
                    item.at = used
                    p = worker.scratch + used
                    used += size
            # Behind the library, as in `step`.
            if size < 0 or not self.summed(row, 0, 0):
                return i
            item.size = size
            total += size
            if not measure(p, size, row, self.wanted.check_crc, &item.measured, &report):
                return i
            worker.count += 1
        return group.hi

    cdef bint settle(self, Worker worker, int64_t lo, int64_t* ready) noexcept nogil:
        """Give the batches from `lo` to `ready` their place; whether everything goes on after them.

        `ready` becomes the first batch that has none.
        """
        cdef Item* item
        cdef int64_t used = self.used
        cdef int64_t arena_used = self.arena_used
        cdef int64_t n = 0
        cdef int64_t i = lo
        cdef bint more = True
        while more and i < ready[0]:
            self.rows[i].first_record = used
            if n < worker.count and worker.items[n].row == i:
                item = &worker.items[n]
                item.place = arena_used
                if (item.measured.count > self.capacity - used
                        or (self.keep and item.size > self.arena_room - arena_used)):
                    more = False
                    break
                used += item.measured.count
                if self.keep:
                    arena_used += item.size
                n += 1
            i += 1
            more = self.cost(i, used, arena_used) < self.most
        self.used = used
        self.arena_used = arena_used
        if not more:
            self.end_at(i, used, arena_used)
        if n < worker.count:
            worker.count = n
        ready[0] = i
        self.placed = max(self.placed, i)
        return more

    cdef bint finish(self, Worker worker) noexcept nogil:
        """Read what was prepared to its rows; False at a batch that can't be read."""
        cdef Item* item
        cdef const uint8_t* p
        cdef int64_t i
        for i in range(worker.count):
            item = &worker.items[i]
            if kb_get(&self.stop) <= item.row:
                return False
            p = item.payload if item.payload != NULL else <const uint8_t*>worker.scratch + item.at
            # Read where the cache has it; positions are those in the arena.
            if not self.read(p - item.place, item.place, item.size, item.row, &item.measured):
                self.end_at(item.row, self.rows[item.row].first_record, item.place)
                return False
            if self.keep and p != self.arena + item.place:
                memcpy(self.arena + item.place, p, item.size)
        return True

    cdef inline bint read(self, const uint8_t* base, int64_t position, int64_t size, int64_t i,
                          Measure* measured) noexcept nogil:
        """Read a batch to its rows; False if it can't be, or not all of its records are wanted."""
        cdef BatchRow* row = &self.rows[i]
        cdef Report report
        return read_rows(base, position, size, row, <int32_t>i,
                         self.out + row.first_record * self.wanted.fields.itemsize, measured, &self.wanted,
                         &report) == measured.count


cdef inline int64_t group_size(int64_t left, int64_t most) noexcept nogil:
    """Bytes of the next group where so many are left."""
    return min(max(left // 4, LAST_GROUP), most)


cdef inline int64_t piece_size(int64_t left) noexcept nogil:
    """Bytes of the next piece of a long batch."""
    return min(max(left // 4, LAST_PIECE), PIECE)
