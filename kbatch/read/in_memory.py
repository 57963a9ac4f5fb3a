"""Decodes bytes in memory to tables: a part of a source, which begins with a batch."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.read.windows import BufferWindows
from kbatch.table import RecordTable

__all__ = ["decode_part", "decode_tables"]


def decode_part(
    data: npt.NDArray[np.uint8],
    options: DecodeOptions,
    *,
    origin: int = 0,
    source: str | None = None,
    is_bounded: bool = False,
) -> RecordTable:
    """Decode the batches of `data`, a part of a larger source that begins with a batch, to one table.

    Parameters
    ----------
    data : ndarray of uint8, read-only
    options : DecodeOptions
    origin : int
        Position of ``data[0]`` in the source; positions in the table and in errors are positions in the source.
    source : str, optional
        Name of the source, for errors.
    is_bounded : bool
        Whether a batch is known to begin where `data` ends: damage ends there.

    Returns
    -------
    RecordTable
        ``consumed`` counts from the beginning of `data`.

    Raises
    ------
    KbatchError
        Under ``on_error="raise"``, at damage.
    """
    reader = BatchReader(options, source=source, position=origin)
    table = reader.read(BufferWindows(data, origin, is_bounded=is_bounded))
    if reader.error is not None:
        raise reader.error
    return table


def decode_tables(
    data: npt.NDArray[np.uint8],
    options: DecodeOptions,
    *,
    origin: int = 0,
    source: str | None = None,
    is_bounded: bool = False,
    max_bytes: int,
    splits: bool = True,
) -> Generator[RecordTable, None, BatchReader]:
    """Decode the batches of `data` to tables of about `max_bytes`; the other parameters are as for `decode_part`.

    Yields
    ------
    RecordTable

    Returns
    -------
    BatchReader
        Its ``position`` is where the last table ends.
    """
    reader = BatchReader(options, source=source, position=origin)
    windows = BufferWindows(data, origin, is_bounded=is_bounded)
    while reader.position < windows.end and not reader.stopped:
        before = reader.position
        table = reader.read(windows, max_bytes=max_bytes, splits=splits)
        if len(table.batches) or table.losses or table.consumed:
            yield table
        # Keep no reference: if the caller drops the table, the next one can use its memory.
        del table
        if reader.error is not None:
            raise reader.error
        if reader.position == before and not reader.is_splitting:
            break
    return reader
