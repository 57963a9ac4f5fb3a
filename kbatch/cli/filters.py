"""Which records and batches a listing is to have, and how that is written on a command line."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from kbatch.table import RecordTable

__all__ = ["Filters", "parse_bytes", "parse_offsets", "parse_time", "parse_times"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Fewer digits could be a part of a time.
_MILLISECONDS = re.compile(r"0|-?[0-9]{5,}")


@dataclass(frozen=True, slots=True)
class Filters:
    """What is wanted; None is all.

    Attributes
    ----------
    start_offset, stop_offset, start_timestamp, stop_timestamp : int or None
        From the first up to but without the second; timestamps in milliseconds.
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
        """Whether only a batch's records say if it is wanted."""
        return self.key is not None or self.start_timestamp is not None or self.stop_timestamp is not None

    @property
    def any(self) -> bool:
        """Whether anything may be left out."""
        bounded = self.start_offset is not None or self.stop_offset is not None
        return self.by_record or bounded or self.producer_id is not None

    def records(self, table: RecordTable) -> RecordTable:
        """Choose the records; offsets are what the table was decoded with."""
        rows = table.records
        wanted = np.ones(len(rows), np.bool_)
        if self.producer_id is not None:
            wanted &= (table.batches["producer_id"] == self.producer_id)[rows["batch"]]
        if self.start_timestamp is not None:
            wanted &= rows["timestamp"] >= self.start_timestamp
        if self.stop_timestamp is not None:
            wanted &= rows["timestamp"] < self.stop_timestamp
        if self.key is not None:
            wanted &= rows["key_len"] == len(self.key)
            found = np.flatnonzero(wanted)
            for i, byte in enumerate(self.key):
                found = found[table.data[rows["key_pos"][found] + i] == byte]
            wanted[:] = False
            wanted[found] = True
        return table if wanted.all() else table[wanted]

    def batches(self, chosen: RecordTable) -> npt.NDArray[np.intp]:
        """Return the rows of the batches to tell, of a table of the records that were chosen."""
        if self.by_record:
            return np.unique(chosen.records["batch"]).astype(np.intp)
        if self.producer_id is not None:
            return np.flatnonzero(chosen.batches["producer_id"] == self.producer_id)
        return np.arange(len(chosen.batches))


def parse_offsets(text: str) -> tuple[int | None, int | None]:
    """Read ``A:B``, ``A:``, ``:B`` or ``A``.

    Examples
    --------
    >>> parse_offsets("5:"), parse_offsets("7")
    ((5, None), (7, 8))
    """
    first, colon, last = text.partition(":")
    try:
        start = int(first) if first else None
        stop = int(last) if last else None
    except ValueError:
        raise ValueError(f"{text!r} is no range of offsets: wanted A:B, A:, :B or A") from None
    if start is None and stop is None:
        raise ValueError(f"{text!r} is no range of offsets: wanted A:B, A:, :B or A")
    return start, stop if colon else (start or 0) + 1


def parse_times(text: str) -> tuple[int | None, int | None]:
    """Read ``FROM:TO`` or ``FROM..TO``, either of which may be left out, as milliseconds since the epoch.

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
            found.append((parse_time(first), parse_time(last)))
        except (ValueError, OverflowError):
            continue
    if len(found) != 1 or found[0] == (None, None):
        raise ValueError(
            f"{text!r} is no range of times: wanted FROM:TO or FROM..TO, each in ISO 8601 (UTC) or as milliseconds"
        )
    return found[0]


def parse_time(text: str) -> int | None:
    """Read a time in ISO 8601 (UTC), or milliseconds since the epoch, as milliseconds; None if it is empty."""
    if not text:
        return None
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    when = datetime.fromisoformat(text)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def parse_bytes(text: str) -> bytes:
    r"""Read text, ``hex:...`` or ``base64:...``; ``text:...`` is what follows, whatever it begins with.

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
