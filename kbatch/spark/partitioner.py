"""Kafka's default partitioner: the partition that a record with a key is sent to."""

from __future__ import annotations

__all__ = ["key_partition", "murmur2"]

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_INT32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash of ``org.apache.kafka.common.utils.Utils.murmur2``, as an unsigned number of 32 bits.

    Examples
    --------
    >>> murmur2(b"21") == -973932308 & 0xFFFFFFFF
    True
    """
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _INT32
        k = (k ^ k >> 24) * _MULTIPLIER & _INT32
        h = (h * _MULTIPLIER & _INT32) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _INT32
    h = (h ^ h >> 13) * _MULTIPLIER & _INT32
    return h ^ h >> 15


def key_partition(key: bytes, partitions: int) -> int:
    """Return the partition of `key` in a topic of so many, as ``BuiltInPartitioner.partitionForKey`` does.

    It is where producers of Kafka's Java client put it without a partitioner of the user's, if the topic has had this
    number of partitions ever since; librdkafka does so with ``partitioner=murmur2_random`` only.

    Examples
    --------
    >>> key_partition(b"user-17", 1)
    0
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
