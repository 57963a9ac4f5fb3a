"""Kafka's default partitioner: the partition that a record with a key is sent to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kbatch.kernels import murmur as _kernel

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["key_partition", "key_partitions", "murmur2"]

_POSITIVE = np.uint32(0x7FFFFFFF)


def murmur2(data: bytes) -> int:
    """Return the hash of ``org.apache.kafka.common.utils.Utils.murmur2``, as an unsigned 32-bit integer.

    Parameters
    ----------
    data : bytes

    Returns
    -------
    int

    Examples
    --------
    >>> murmur2(b"21") == -973932308 & 0xFFFFFFFF
    True
    """
    out = np.empty(1, np.uint32)
    _kernel.murmur2(np.array([0, len(data)], np.int64), np.frombuffer(data, np.uint8), out)
    return int(out[0])


def key_partition(key: bytes, partitions: int) -> int:
    """Return the partition of `key` in a topic of `partitions`, as ``BuiltInPartitioner.partitionForKey`` does.

    Kafka's Java producers send the key to this partition, unless the user configures another partitioner or the number
    of partitions has changed. librdkafka does so only with ``partitioner=murmur2_random``.

    Parameters
    ----------
    key : bytes
    partitions : int
        Number of partitions of the topic.

    Returns
    -------
    int

    Examples
    --------
    >>> key_partition(b"user-17", 1)
    0
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def key_partitions(keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
    """Return the partition of each key, as `key_partition` does; a null key counts as an empty one.

    Parameters
    ----------
    keys : Arrow array
        A binary or string array of any layout.
    partitions : int

    Returns
    -------
    ndarray of int64, shape (keys,)

    Examples
    --------
    >>> import pyarrow as pa
    >>> keys = [b"user-17", b"user-18", None]
    >>> key_partitions(pa.array(keys), 12).tolist() == [key_partition(key or b"", 12) for key in keys]
    True
    """
    import pyarrow as pa

    binary = keys.cast(pa.large_binary())
    _, edges, data = binary.buffers()
    out = np.empty(len(binary), np.uint32)
    if len(binary):
        offsets = np.frombuffer(edges, np.int64)[binary.offset : binary.offset + len(binary) + 1]
        _kernel.murmur2(offsets, np.frombuffer(data or b"", np.uint8), out)
    return (out & _POSITIVE).astype(np.int64) % partitions
