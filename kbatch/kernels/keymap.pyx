"""Keys -> their last offsets, in a hash table of bounded size that keeps a 16-byte hash per key, as Kafka's
`SkimpyOffsetMap` does.

Two keys with the same hash would lose a record. Kafka relies on MD5; this is SipHash-2-4 with 128 bits and a random
secret per table, so that nobody can construct keys that collide.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from kbatch.kernels.wire cimport kb_prefetch, load_le64

import os

cdef struct Slot:
    uint64_t low
    uint64_t high
    # Offset + 1; 0 in an empty slot.
    uint64_t after

cdef struct Hash:
    uint64_t low
    uint64_t high

cdef enum:
    # Keys that are hashed together, so that their slots are prefetched before they are read.
    BLOCK = 32
    FIRST_SLOTS = 4096
    # Load factors per 1000 at which the table grows, and at which the largest table is full (Kafka's load factor).
    GROW_AT = 700
    FULL_AT = 900


cdef inline uint64_t rotl(uint64_t x, int b) noexcept nogil:
    return (x << b) | (x >> (64 - b))


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotl(v[1], 13) ^ v[0]
    v[0] = rotl(v[0], 32)
    v[2] += v[3]
    v[3] = rotl(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotl(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotl(v[1], 17) ^ v[2]
    v[2] = rotl(v[2], 32)


cdef inline Hash siphash128(uint64_t k0, uint64_t k1, const uint8_t* p, int64_t size) noexcept nogil:
    """SipHash-2-4-128 (Aumasson and Bernstein)."""
    cdef uint64_t v[4]
    cdef uint64_t m
    cdef int64_t left = size
    cdef int i, _
    cdef Hash out
    v[0] = k0 ^ 0x736f6d6570736575u
    v[1] = k1 ^ 0x646f72616e646f6du ^ 0xee
    v[2] = k0 ^ 0x6c7967656e657261u
    v[3] = k1 ^ 0x7465646279746573u
    while left >= 8:
        m = load_le64(p)
        v[3] ^= m
        sip_round(v)
        sip_round(v)
        v[0] ^= m
        p += 8
        left -= 8
    m = <uint64_t>size << 56
    for i in range(<int>left):
        m |= <uint64_t>p[i] << (8 * i)
    v[3] ^= m
    sip_round(v)
    sip_round(v)
    v[0] ^= m
    v[2] ^= 0xee
    for _ in range(4):
        sip_round(v)
    out.low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xdd
    for _ in range(4):
        sip_round(v)
    out.high = v[0] ^ v[1] ^ v[2] ^ v[3]
    return out


cdef class KeyOffsets:
    """The last offset of each key, in at most `max_bytes`; growing temporarily takes half as much in addition."""

    cdef Slot* slots
    cdef uint64_t slot_count, most_slots, used, secret0, secret1
    cdef readonly Py_ssize_t max_bytes

    def __cinit__(self, Py_ssize_t max_bytes, bytes secret=None):
        cdef const uint8_t* p
        self.slots = NULL
        self.max_bytes = max_bytes
        # A slot is chosen by 32 bits of the hash.
        self.most_slots = min(max(max_bytes // <Py_ssize_t>sizeof(Slot), 2), 0xFFFFFFFF)
        self.slot_count = min(<uint64_t>FIRST_SLOTS, self.most_slots)
        self.used = 0
        secret = os.urandom(16) if secret is None else secret
        if len(secret) != 16:
            raise ValueError(f"a secret has 16 bytes, got {len(secret)}")
        p = <const uint8_t*>secret
        self.secret0, self.secret1 = load_le64(p), load_le64(p + 8)
        self.slots = <Slot*>calloc(self.slot_count, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.used

    @property
    def most_keys(self):
        """The maximum number of keys."""
        return self.most_slots * FULL_AT // 1000

    cdef inline uint64_t place(self, Hash h) noexcept nogil:
        return ((h.low >> 32) * self.slot_count) >> 32

    cdef inline Slot* find(self, Hash h) noexcept nogil:
        """Return the slot of a key, or the empty slot where it belongs; the table is never full."""
        cdef uint64_t i = self.place(h)
        while self.slots[i].after and (self.slots[i].low != h.low or self.slots[i].high != h.high):
            i += 1
            if i == self.slot_count:
                i = 0
        return &self.slots[i]

    cdef int ensure_slot(self) noexcept nogil:
        """Ensure capacity for one more key; return 1, 0 if the table is full, or -1 if memory is exhausted."""
        cdef uint64_t i, before = self.slot_count
        cdef Slot* old = self.slots
        cdef Slot* slot
        cdef Hash h
        if self.slot_count == self.most_slots:
            return 1 if self.used < self.most_slots * FULL_AT // 1000 else 0
        if self.used < self.slot_count * GROW_AT // 1000:
            return 1
        self.slot_count = min(2 * before, self.most_slots)
        self.slots = <Slot*>calloc(self.slot_count, sizeof(Slot))
        if self.slots == NULL:
            self.slots = old
            self.slot_count = before
            return -1
        for i in range(before):
            if old[i].after:
                h.low, h.high = old[i].low, old[i].high
                slot = self.find(h)
                slot[0] = old[i]
        free(old)
        return self.ensure_slot()

    def add(self, const int64_t[:] offsets not None, const int64_t[:] positions not None,
            const int32_t[:] lengths not None, const uint8_t[::1] data not None):
        """Record the offset of each record with a key (a length other than -1), if it is the key's latest.

        Return the number of rows processed, which is less than all if the table is full.
        """
        cdef Py_ssize_t i, j, stop, count = offsets.shape[0]
        cdef int added = 1
        cdef Hash hashes[BLOCK]
        cdef Slot* slot
        cdef uint64_t after
        check_keys(positions, lengths, data, count)
        i = 0
        with nogil:
            while i < count:
                stop = min(i + BLOCK, count)
                self.hash_rows(i, stop, positions, lengths, data, hashes)
                for j in range(i, stop):
                    if lengths[j] < 0 or offsets[j] < 0:
                        continue
                    slot = self.find(hashes[j - i])
                    after = <uint64_t>offsets[j] + 1
                    if not slot.after:
                        added = self.ensure_slot()
                        if added != 1:
                            stop = j
                            break
                        slot = self.find(hashes[j - i])
                        slot.low, slot.high = hashes[j - i].low, hashes[j - i].high
                        self.used += 1
                    if after > slot.after:
                        slot.after = after
                i = stop
                if added != 1:
                    break
        if added < 0:
            raise MemoryError
        return i

    def latest(self, const int64_t[:] offsets not None, const int64_t[:] positions not None,
               const int32_t[:] lengths not None, const uint8_t[::1] data not None, uint8_t[::1] out not None):
        """Write to `out` 1 for each record that has a key without a later offset in the table, else 0."""
        cdef Py_ssize_t i = 0, j, stop, count = offsets.shape[0]
        cdef Hash hashes[BLOCK]
        check_keys(positions, lengths, data, count)
        if out.shape[0] != count:
            raise ValueError(f"out has {out.shape[0]} items for {count} records")
        with nogil:
            while i < count:
                stop = min(i + BLOCK, count)
                self.hash_rows(i, stop, positions, lengths, data, hashes)
                for j in range(i, stop):
                    out[j] = lengths[j] >= 0 and <uint64_t>offsets[j] + 1 >= self.find(hashes[j - i]).after
                i = stop

    cdef inline void hash_rows(self, Py_ssize_t start, Py_ssize_t stop, const int64_t[:] positions,
                               const int32_t[:] lengths, const uint8_t[::1] data, Hash* out) noexcept nogil:
        cdef Py_ssize_t j
        cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
        for j in range(start, stop):
            if lengths[j] >= 0:
                out[j - start] = siphash128(self.secret0, self.secret1, base + positions[j], lengths[j])
                kb_prefetch(&self.slots[self.place(out[j - start])])


cdef int check_keys(const int64_t[:] positions, const int32_t[:] lengths, const uint8_t[::1] data,
                    Py_ssize_t count) except -1:
    """Raise unless all keys are within `data`."""
    cdef Py_ssize_t i
    cdef bint good = positions.shape[0] == count and lengths.shape[0] == count
    if good:
        for i in range(count):
            if lengths[i] >= 0 and (positions[i] < 0 or lengths[i] > data.shape[0] - positions[i]):
                good = False
                break
    if not good:
        raise ValueError("keys are outside the data, or their number differs from that of the offsets")
    return 0


def hash_slices(bytes secret not None, const int64_t[::1] positions not None, const int64_t[::1] lengths not None,
                const uint8_t[::1] data not None, uint64_t[:, ::1] out not None):
    """Write the hash of each slice of `data` to a row of `out`; a null (a negative length) gives zeros."""
    cdef Py_ssize_t i, bad = -1, count = positions.shape[0]
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    cdef const uint8_t* p = <const uint8_t*>secret
    cdef uint64_t k0, k1
    cdef Hash h
    if len(secret) != 16:
        raise ValueError(f"a secret has 16 bytes, got {len(secret)}")
    if lengths.shape[0] != count or out.shape[0] != count or out.shape[1] != 2:
        raise ValueError(f"needed are {count} lengths and {count} rows of 2, got {lengths.shape[0]} and {out.shape[0]}")
    k0, k1 = load_le64(p), load_le64(p + 8)
    with nogil:
        for i in range(count):
            h.low = h.high = 0
            if lengths[i] >= 0:
                if positions[i] < 0 or lengths[i] > data.shape[0] - positions[i]:
                    bad = i
                    break
                h = siphash128(k0, k1, base + positions[i], lengths[i])
            out[i, 0], out[i, 1] = h.low, h.high
    if bad >= 0:
        raise IndexError(f"row {bad}: {lengths[bad]} bytes at position {positions[bad]} of {data.shape[0]} bytes")


def siphash(bytes secret not None, bytes data not None):
    """Return the 16-byte hash; for tests."""
    cdef const uint8_t* p = <const uint8_t*>secret
    if len(secret) != 16:
        raise ValueError(f"a secret has 16 bytes, got {len(secret)}")
    cdef Hash h = siphash128(load_le64(p), load_le64(p + 8), <const uint8_t*>data, len(data))
    return int(h.low).to_bytes(8, "little") + int(h.high).to_bytes(8, "little")
