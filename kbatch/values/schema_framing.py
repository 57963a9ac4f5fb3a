"""The prefix that Confluent's serializers write: byte 0, the schema id (4 bytes, big-endian), and for Protobuf a path.

Source: Confluent Schema Registry, "Wire format" (Formats, Serializers, and Deserializers).
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from kbatch.options import Framing
from kbatch.values.memory import MemoryBudget
from kbatch.values.parsed import ByteSlices
from kbatch.values.schema_limits import MAX_NESTING

__all__ = ["PREFIX_BYTES", "Prefixes", "check_framing", "message_path", "read_prefixes", "with_hints"]

PREFIX_BYTES = 5
_PREFIX_HINT = "; it may begin with Confluent's prefix of five bytes: the framing 'confluent' reads it"


def check_framing(framing: Framing) -> None:
    """Raise ValueError for an unknown framing."""
    if framing not in get_args(Framing):
        raise ValueError(f"framing must be one of {', '.join(get_args(Framing))}, got {framing!r}")


class Prefixes(NamedTuple):
    """The schema ids of a column (-1 for rows that are null or lack a prefix), and an error for each missing prefix."""

    ids: npt.NDArray[np.int64]
    errors: dict[int, str]


def read_prefixes(slices: ByteSlices, budget: MemoryBudget) -> Prefixes:
    """Read the prefix of every row."""
    starts = slices.offsets[:-1].astype(np.int64)
    lengths = slices.offsets[1:] - starts
    long_enough = slices.valid & (lengths >= PREFIX_BYTES)
    rows = np.flatnonzero(long_enough)
    prefixes = slices.content[starts[rows, None] + np.arange(PREFIX_BYTES)]
    framed = prefixes[:, 0] == 0
    ids = np.full(len(starts), -1, np.int64)
    ids[rows[framed]] = np.ascontiguousarray(prefixes[framed, 1:]).view(">u4").ravel()
    budget.take_errors(int(np.count_nonzero(slices.valid)) - int(np.count_nonzero(framed)))
    errors = {
        row: f"no Confluent framing: {length} bytes, fewer than the prefix of {PREFIX_BYTES}"
        for row in np.flatnonzero(slices.valid & ~long_enough).tolist()
        for length in (int(lengths[row]),)
    }
    for row, first in zip(rows[~framed].tolist(), prefixes[~framed, 0].tolist(), strict=True):
        errors[row] = f"no Confluent framing: expected 0 as the first byte, found {first}"
    return Prefixes(ids, errors)


def with_hints(errors: dict[int, str], slices: ByteSlices) -> dict[int, str]:
    """Return the errors of values that were parsed without framing, with a hint for those that may have a prefix."""
    starts = slices.offsets
    return {
        row: f"{error}{_PREFIX_HINT}"
        if starts[row + 1] - starts[row] >= PREFIX_BYTES and slices.content[starts[row]] == 0
        else error
        for row, error in errors.items()
    }


def message_path(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Read a Protobuf message's path in its file (a count and indexes, zigzag varints; 0 alone is the first message).

    Returns
    -------
    path : tuple of int
        Index of the top-level message, then of the message within it, and so on.
    at : int
        Byte where the message begins.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from kbatch.values.schema_framing import message_path
    >>> message_path(bytes([0]), 0), message_path(bytes([4, 2, 0]), 0)
    (((0,), 1), ((1, 0), 3))
    """
    count, at = _varint(data, at)
    if not 0 <= count <= MAX_NESTING:
        raise ValueError(f"the message path has {count} indexes; at most {MAX_NESTING} are supported")
    if count == 0:
        return (0,), at
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        path.append(index)
    return tuple(path), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise ValueError("the message path is truncated")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("the message path contains a number of more than 5 bytes")
