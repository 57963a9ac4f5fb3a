"""The records and batches that a listing includes, and the arguments that choose them."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.quantities import parse_time
from kbatch.table import RecordTable

__all__ = ["Filters", "parse_bytes", "parse_offsets", "parse_times"]


@dataclass(frozen=True, slots=True)
class Filters:
    """The records and batches to list; None chooses all.

    Attributes
    ----------
    start_offset, stop_offset, start_timestamp, stop_timestamp : int or None
        Half-open ranges; timestamps in milliseconds.
    key : bytes or None
    producer_id : int or None
    """

    start_offset: int | None = None
    stop_offset: int | None = None
    start_timestamp: int | None = None
    stop_timestamp: int | None = None
    key: bytes | None = None
    producer_id: int | None = None

    @property
    def by_record(self) -> bool:
        """Whether a batch is chosen by its records."""
        return self.key is not None or self.start_timestamp is not None or self.stop_timestamp is not None

    @property
    def any(self) -> bool:
        """Whether any filter is set."""
        bounded = self.start_offset is not None or self.stop_offset is not None
        return self.by_record or bounded or self.producer_id is not None

    def records(self, table: RecordTable) -> RecordTable:
        """Return the chosen records; the table was decoded with the range of offsets."""
        rows = table.records
        chosen = np.ones(len(rows), np.bool_)
        if self.producer_id is not None:
            chosen &= (table.batches["producer_id"] == self.producer_id)[rows["batch"]]
        if self.start_timestamp is not None:
            chosen &= rows["timestamp"] >= self.start_timestamp
        if self.stop_timestamp is not None:
            chosen &= rows["timestamp"] < self.stop_timestamp
        if self.key is not None:
            chosen &= rows["key_len"] == len(self.key)
            found = np.flatnonzero(chosen)
            for i, byte in enumerate(self.key):
                found = found[table.data[rows["key_pos"][found] + i] == byte]
            chosen[:] = False
            chosen[found] = True
        return table if chosen.all() else table[chosen]

    def batches(self, chosen: RecordTable) -> npt.NDArray[np.intp]:
        """Return the rows of the batches to list, from a table of the chosen records."""
        if self.by_record:
            return np.unique(chosen.records["batch"]).astype(np.intp)
        if self.producer_id is not None:
            return np.flatnonzero(chosen.batches["producer_id"] == self.producer_id)
        return np.arange(len(chosen.batches))


def parse_offsets(text: str) -> tuple[int | None, int | None]:
    """Parse ``A:B``, ``A:``, ``:B`` or ``A``; negative offsets count back from the end of the log.

    Examples
    --------
    >>> parse_offsets("5:"), parse_offsets("7"), parse_offsets("-10:"), parse_offsets("-1")
    ((5, None), (7, 8), (-10, None), (-1, None))
    """
    first, colon, last = text.partition(":")
    try:
        start = int(first) if first else None
        stop = int(last) if last else None
    except ValueError:
        raise ValueError(f"must be a range of offsets, A:B, A:, :B or A, got {text!r}") from None
    if start is None and stop is None:
        raise ValueError(f"must be a range of offsets, A:B, A:, :B or A, got {text!r}")
    if start is not None and not colon:
        # The offset after -1 is the end of the log.
        stop = None if start == -1 else start + 1
    return start, stop


def parse_times(text: str) -> tuple[int | None, int | None]:
    """Parse ``FROM:TO`` or ``FROM..TO``, two times as for `parse_time`; either side may be empty.

    Examples
    --------
    >>> parse_times("1700000000000:"), parse_times("2023-11-14T22:13:20..2023-11-14T22:13:21Z")
    ((1700000000000, None), (1700000000000, 1700000001000))
    """
    if ".." in text:
        splits = [text.split("..", 1)]
    else:
        splits = [[text[:i], text[i + 1 :]] for i, character in enumerate(text) if character == ":"]
    found = []
    for first, last in splits:
        try:
            found.append((parse_time(first) if first else None, parse_time(last) if last else None))
        except ValueError:
            continue
    if len(found) != 1 or found[0] == (None, None):
        raise ValueError(
            f"must be a range of times, FROM:TO or FROM..TO, each in ISO 8601 (UTC), as milliseconds, or as a "
            f"duration before now such as 1h, got {text!r}"
        )
    return found[0]


def parse_bytes(text: str) -> bytes:
    r"""Parse text, ``hex:...`` or ``base64:...``; ``text:`` before a text avoids either prefix.

    Examples
    --------
    >>> parse_bytes("key-1"), parse_bytes("hex:00ff"), parse_bytes("base64:AAAA"), parse_bytes("text:hex:00")
    (b'key-1', b'\x00\xff', b'\x00\x00\x00', b'hex:00')
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "hex":
            return bytes.fromhex(rest)
        if kind == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"{text!r}: {error}") from None
    return (rest if kind == "text" else text).encode("utf-8", "surrogateescape")
