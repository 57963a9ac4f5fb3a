"""The hashes of slices that comparisons of logs use: SipHash with a secret, in two columns."""

from __future__ import annotations

import numpy as np
import pytest

from kbatch.kernels.keymap import hash_slices, siphash

SECRET = bytes(range(16))


def test_a_slice_has_the_hash_of_its_bytes_and_null_has_none() -> None:
    data = np.arange(100, dtype=np.uint8)
    out = np.full((4, 2), 7, np.uint64)
    hash_slices(SECRET, np.array([0, 5, 0, 100]), np.array([0, 95, -1, 0]), data, out)
    expected = [siphash(SECRET, part) for part in (b"", data[5:].tobytes())]
    assert [row.astype("<u8").tobytes() for row in out] == [*expected, bytes(16), expected[0]]
    assert siphash(SECRET, b"x") != siphash(SECRET[:8] + SECRET[:8], b"x")


@pytest.mark.parametrize("shape", [(1, 2), (3, 2), (2, 1), (2, 3)])
def test_the_output_has_two_columns_and_a_row_for_each_slice(shape: tuple[int, int]) -> None:
    one = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="needed are 2 lengths and 2 rows of 2"):
        hash_slices(SECRET, one, one, np.zeros(0, np.uint8), np.zeros(shape, np.uint64))


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, 4), (3, 1), (1, 3)])
def test_slices_outside_of_the_data_raise(position: int, length: int) -> None:
    out = np.zeros((1, 2), np.uint64)
    with pytest.raises(IndexError, match="row 0"):
        hash_slices(SECRET, np.array([position]), np.array([length]), np.zeros(3, np.uint8), out)
