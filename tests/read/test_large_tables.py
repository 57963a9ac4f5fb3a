"""Rows of large tables are written by non-temporal stores: they are the rows that small tables have."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from generated_kinds import KINDS
from tables import decode_by_threads

import kbatch

# More bytes of rows than the size from which rows are written that way.
LARGE = 12 << 20
# At and next to the bounds of zig-zag numbers of one to four bytes.
TIMESTAMP_DELTAS = [0, 1, 63, 64, 8191, 8192, 1 << 20, -1, -64, -65]
OFFSET_DELTAS = [0, 1, 63, 64, 8191, 8192, 1 << 20]
LENGTHS = [None, 0, 1, 63, 64, 100]
HEADERS: list[list[tuple[bytes, bytes | None]]] = [[], [(b"k", b"v")], [(b"", None), (b"k" * 70, b"v" * 70)]]
DELTAS = list(product(TIMESTAMP_DELTAS, OFFSET_DELTAS))


def content(length: int | None) -> bytes | None:
    return None if length is None else b"x" * length


def batches_of_all_numbers() -> list[bytes]:
    """Return batches of one, ten and many records, whose deltas, lengths and headers are at their bounds."""
    records = [oracle.encode_record(offset, time, b"key", b"value") for time, offset in DELTAS]
    records += [
        oracle.encode_record(1, 2, content(key), content(value), headers)
        for key, value, headers in product(LENGTHS, LENGTHS, HEADERS)
    ]
    return [
        oracle.build_batch(some, last_offset_delta=2**21, max_timestamp=77, attributes=attributes)
        for attributes in (0, oracle.LOG_APPEND_TIME)
        for size in (1, 10, 200)
        for some in (records[start : start + size] for start in range(0, len(records), size))
    ]


def test_deltas_of_every_length_in_bytes_give_the_offset_and_timestamp() -> None:
    for size in (1, 3, 10, len(DELTAS)):
        for start in range(0, len(DELTAS), size):
            some = DELTAS[start : start + size]
            made = [oracle.encode_record(offset, time, b"key", b"value") for time, offset in some]
            # The batch behind it lets all its records be read without checks of single bytes.
            batch = oracle.build_batch(made, base_offset=5, last_offset_delta=2**21, base_timestamp=1000)
            found = kbatch.decode(batch + KINDS["magic 2, none"]).records[: len(some)]
            assert found["timestamp"].tolist() == [1000 + time for time, _ in some]
            assert found["offset"].tolist() == [5 + offset for _, offset in some]


def repeated(rows: npt.NDArray[np.void], size: int, batches: int, times: int) -> npt.NDArray[np.void]:
    """Return the rows of a log that has the `size` bytes and the `batches` of these rows that many times."""
    expected = np.tile(rows, times)
    turn = np.repeat(np.arange(times), len(rows))
    for field in ("key_pos", "value_pos", "headers_pos"):
        expected[field] += turn * size
    expected["batch"] += (turn * batches).astype(np.int32)
    return expected


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["all numbers", *(kind for kind in KINDS if kind.endswith("none"))])
def test_rows_of_large_tables_are_those_of_small_ones(kind: str, threads: int) -> None:
    unit = b"".join(batches_of_all_numbers()) if kind == "all numbers" else KINDS[kind] * 100
    small = kbatch.decode(unit)
    times = LARGE // small.records.nbytes + 1
    large = decode_by_threads(unit * times, threads=threads)
    assert large.records.nbytes > LARGE
    np.testing.assert_array_equal(large.records, repeated(small.records, len(unit), len(small.batches), times))
