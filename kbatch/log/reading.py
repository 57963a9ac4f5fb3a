"""Decodes a byte range of one segment into tables of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kbatch.format import INT64_MAX, LOG_OVERHEAD
from kbatch.log.segment import Segment
from kbatch.log.store.segment_file import SegmentFile
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable
from kbatch.tuning import MIN_SPLIT_TABLE

__all__ = ["NOT_REACHED", "TABLE_BYTES", "lost_table", "read_tables"]

# The limit on a table, in bytes, where a whole log is decoded and tables are dropped at once, as in a task of Spark:
# large enough for speed, small compared with the other memory of a worker.
TABLE_BYTES = 32 << 20
# The smallest window of a file.
MIN_WINDOW = 64 << 10

# The reason of the losses after damage that ended the read of a log.
NOT_REACHED = "not read: on_error='stop' ended the read at earlier damage"

# A window that the damage engine requests may begin this many bytes before the table's window, since `DamageEngine`
# resumes its checksums there.
_OVERLAP = 128
_NO_BYTES: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
_TRUNCATED = "truncated batch: only the last segment of a log may end with an incomplete batch"


class FileWindows:
    """A byte range of a segment file, in windows that keep tables within `max_bytes`.

    Parameters
    ----------
    file : SegmentFile
    end : int
        End of the range: a position where a batch begins, or the end of the file.
    max_bytes : int
        Limit on a table. The windows take memory in addition to two tables: the caller's and the next one.
    is_strict : bool
        Whether the limit includes windows of large batches.
    """

    is_final = True

    def __init__(self, file: SegmentFile, end: int, max_bytes: int, *, is_strict: bool = False) -> None:
        self._file = file
        self.end = min(end, file.size)
        self.is_bounded = end < file.size
        self.may_be_cut = file.live and not self.is_bounded
        # The window of uncompressed batches is the data of the table. Other windows and the scratch memory of the
        # threads take memory in addition to a table, an eighth of it each.
        self._max_size = max(max_bytes * 3 // 8, MIN_WINDOW)
        self._max_compressed_size = max(max_bytes // 8, MIN_WINDOW)
        self._size = self._max_compressed_size
        # The number of bytes by which a window may exceed a request.
        self._max_ahead = max(max_bytes, MIN_SPLIT_TABLE) // 8 if is_strict else INT64_MAX
        # The window kept for the next request, and whether a request made it larger than `_size`.
        self._held = _NO_BYTES
        self._begin = 0
        self._is_large = False
        # The last window that was requested for a few bytes.
        self._few = _NO_BYTES
        self._few_begin = 0

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` up to at least `stop`, or to the end of the range.

        With ``stop <= start`` the window is for a table. Otherwise the damage engine requests it: for a search, or for
        a few bytes at a position that a length field points to.
        """
        is_table = stop <= start
        expected = min(start + self._size, self.end) if is_table else min(stop, self.end)
        begin, end = self._begin, self._begin + len(self._held)
        # A table in the rest of a large window would keep all of its memory, so these bytes are read again.
        is_rest = is_table and self._is_large and 2 * (end - start) <= len(self._held)
        if begin <= start and expected <= end and not is_rest:
            return self._held[start - begin : expected - begin if is_table and not self._is_large else None]
        if not is_table and stop - start <= MIN_WINDOW:
            return self._few_bytes(start, expected)
        self._is_large = stop - start > self._size
        if self._is_large:
            # A large batch, or damaged headers with large lengths. The window is larger than the request, so that few
            # requests read the file.
            stop += min(stop - start, self._max_ahead)
        stop = min(max(stop, start + self._size), self.end)
        if begin - _OVERLAP <= start < begin:
            stop = max(stop, end)
        # Frees the memory for the next window, unless a table points into it.
        self._held = self._few = _NO_BYTES
        self._held, self._begin = self._file.window(start, stop, self._size), start
        return self._held

    def _few_bytes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return a small window. A search requests one after the other, and each has twice the size of the last one.

        So a search reads few times, and what is read is at most a multiple of what is requested.
        """
        begin, end = self._few_begin, self._few_begin + len(self._few)
        if not (begin <= start and stop <= end):
            size = min(2 * len(self._few), self._size) if begin <= start <= end else 0
            if size > MIN_WINDOW:
                self._held = _NO_BYTES
            self._few = _NO_BYTES
            self._few, self._few_begin = self._file.window(start, min(max(stop, start + size), self.end)), start
        return self._few[start - self._few_begin :]

    def adapt(self, consumed: int, is_compressed: bool) -> None:
        """Choose the size of the next window from the bytes that the last table consumed.

        Few sizes are used, so that windows reuse the same memory.
        """
        self._size = self._max_compressed_size if is_compressed else self._max_size
        while self._size // 2 >= max(MIN_WINDOW, consumed + consumed // 4):
            self._size //= 2


def read_tables(
    segment: Segment, start: int, end: int, options: DecodeOptions, max_bytes: int, *, splits: bool = False
) -> Iterator[RecordTable]:
    """Decode the batches of `segment` from byte `start` up to `end`, one table at a time.

    Parameters
    ----------
    segment : Segment
    start, end : int
        A batch begins at `start`, and at `end` unless that is the segment's size.
    options : DecodeOptions
    max_bytes : int
        Limit on the records, batches and bytes of one table, up to the size of a batch.
    splits : bool
        Whether batches that are larger than a table are split over several tables.

    Yields
    ------
    RecordTable
        With ``on_error="stop"`` a table with a loss is the last one.

    Notes
    -----
    An incomplete batch or zeros at the end of a live segment are neither an error nor a loss. At the end of any other
    segment they are damage (DSK-R14).
    """
    with segment.open() as file:
        windows = FileWindows(file, end, max_bytes, is_strict=options.is_strict)
        reader = BatchReader(options, source=segment.path, position=start)
        zeros = file.zeros_from() if segment.live else windows.end
        # A batch that begins before the zeros at the end of a live file may extend into them.
        stop = zeros if windows.end - zeros >= LOG_OVERHEAD else windows.end
        # Tables of one log have similar sizes. Without this estimate, rows and bytes would each get the capacity of a
        # whole table, and over time all their pages would be touched.
        expected: tuple[int, int] | None = None
        while reader.position < min(stop, windows.end) and not reader.stopped:
            before = reader.position
            table = reader.read(windows, stop=stop, max_bytes=max_bytes, splits=splits, expected=expected)
            compressed = reader.decompressed
            if compressed and len(table) > (expected[0] // 2 if expected else 0):
                expected = len(table) + len(table) // 16, len(table.data) + len(table.data) // 16
            consumed = table.consumed
            if consumed or len(table.batches) or table.losses:
                windows.adapt(consumed, compressed)
                yield table
            # No reference is kept: the memory of a table is free for the next one as soon as the caller drops it.
            del table
            if reader.error is not None:
                raise reader.error
            if reader.position == before and not reader.is_splitting:
                break
        if not reader.stopped and reader.position < min(stop, windows.end):
            yield from _read_tail(segment, windows, reader)


def _read_tail(segment: Segment, windows: FileWindows, reader: BatchReader) -> Iterator[RecordTable]:
    """Yield the incomplete entry at the end of a range as a loss, if it is one."""
    following = reader.entry_after_tail(windows)
    if following is None and windows.may_be_cut:
        return
    if following is None and windows.is_bounded:
        following = windows.end
    hint = f"{windows.end - reader.position} bytes remain; on_error='skip' or 'stop' reads the complete batches"
    loss = reader.lose_tail(windows, following, _TRUNCATED, hint)
    yield lost_table(segment, loss.position, windows.end, loss.reason, options=reader.options)


def lost_table(
    segment: Segment,
    start: int,
    end: int,
    reason: str,
    base_offset: int | None = None,
    *,
    options: DecodeOptions | None = None,
) -> RecordTable:
    """Make an empty table with one loss and the columns of `options`."""
    options = options if options is not None else DecodeOptions()
    return RecordTable._empty(
        options.table_columns,
        consumed=end - start,
        losses=[Loss(start, end - start, reason, base_offset)],
        source=segment.path,
    )
