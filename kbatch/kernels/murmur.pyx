"""Keys -> the hash of Kafka's default partitioner, a column at a time."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:
    MULTIPLIER = 0x5BD1E995
    SEED = 0x9747B28C


cdef inline uint32_t load(const uint8_t* at) noexcept nogil:
    # Little-endian, as in Kafka's Java code.
    return at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 | <uint32_t> at[3] << 24


cdef uint32_t hash_one(const uint8_t* at, int64_t length) noexcept nogil:
    cdef uint32_t m = <uint32_t> MULTIPLIER, h = <uint32_t> SEED ^ <uint32_t> length, k
    cdef const uint8_t* end = at + (length & ~<int64_t> 3)
    while at < end:
        k = load(at) * m
        k = (k ^ k >> 24) * m
        h = h * m ^ k
        at += 4
    length &= 3
    if length == 3:
        h ^= <uint32_t> at[2] << 16
    if length >= 2:
        h ^= <uint32_t> at[1] << 8
    if length:
        h = (h ^ at[0]) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


def murmur2(const int64_t[::1] offsets not None, const uint8_t[::1] data not None, uint32_t[::1] out not None):
    """Hash the keys ``data[offsets[i]:offsets[i + 1]]``, each into ``out[i]``.

    Raises
    ------
    IndexError
        If `out` doesn't have one item per key, or a key isn't within `data`.
    """
    cdef Py_ssize_t i, count = offsets.shape[0] - 1
    cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
    if count < 0 or out.shape[0] != count:
        raise IndexError(f"{offsets.shape[0]} offsets, but out has {out.shape[0]} items")
    with nogil:
        for i in range(count):
            if offsets[i] < 0 or offsets[i + 1] < offsets[i] or offsets[i + 1] > data.shape[0]:
                with gil:
                    raise IndexError(f"key {i} is bytes {offsets[i]} to {offsets[i + 1]} of {data.shape[0]}")
            out[i] = hash_one(start + offsets[i], offsets[i + 1] - offsets[i])
