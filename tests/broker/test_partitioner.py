"""The hash of Kafka's default partitioner, with the values of Kafka's ``UtilsTest.testMurmur2``."""

from __future__ import annotations

import numpy as np
import pytest

from kbatch.broker.partitioner import key_partition, murmur2
from kbatch.kernels import murmur as kernel

KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KAFKA)
def test_keys_hash_as_in_kafka(key: bytes) -> None:
    """The third byte of a tail, as in ``abc``, is shifted by 16."""
    assert murmur2(key) == KAFKA[key] & 0xFFFFFFFF


def test_a_column_of_keys_hashes_like_single_keys() -> None:
    """Also empty keys, with bytes above 0x7F, and keys that are followed by other bytes."""
    keys = [b"", *KAFKA, b"\xff\xfe\xfd", b"\x80" * 7, b""]
    offsets = np.cumsum([0, *map(len, keys)])
    out = np.zeros(len(keys), np.uint32)
    kernel.murmur2(offsets, np.frombuffer(b"".join(keys), np.uint8), out)
    assert out.tolist() == [murmur2(key) for key in keys]
    assert murmur2(b"") == 275646681
    kernel.murmur2(np.zeros(1, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.uint32))


def test_partitions_are_positive_remainders() -> None:
    """``Utils.toPositive`` clears the sign bit."""
    assert key_partition(b"foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000
    assert key_partition(b"abc", 7) == 479470107 % 7


@pytest.mark.parametrize(
    ("offsets", "items", "match"),
    [
        ([], 0, "0 offsets, but out has 0 items"),
        ([0, 3], 2, "2 offsets, but out has 2 items"),
        ([-1, 3], 1, "key 0 is bytes -1 to 3 of 3"),
        ([0, 2, 1], 2, "key 1 is bytes 2 to 1 of 3"),
        ([0, 3, 4], 2, "key 1 is bytes 3 to 4 of 3"),
    ],
)
def test_keys_outside_of_the_data_raise(offsets: list[int], items: int, match: str) -> None:
    data = np.frombuffer(b"abc", np.uint8)
    with pytest.raises(IndexError, match=match):
        kernel.murmur2(np.array(offsets, np.int64), data, np.zeros(items, np.uint32))
