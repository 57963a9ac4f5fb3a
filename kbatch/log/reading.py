"""Tables of bounded size from a stretch of one segment."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from kbatch.format import LOG_OVERHEAD
from kbatch.log.segment import Segment, SegmentFile
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.records.data import Loss
from kbatch.table import RecordTable

__all__ = ["NOT_REACHED", "lost_table", "read_tables"]

# The reason of the loss of segments after damage that stopped the reading of a log.
NOT_REACHED = "not read: on_error='stop' met damage before it"

_MIN_WINDOW = 64 << 10
# By how much a window about damage may begin before that of the table: `DamageEngine` resumes its checksums there.
_OVERLAP = 128
_NOTHING: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
_CUT = "batch is cut: only the last segment of a log may end with an incomplete one"


class FileWindows:
    """A stretch of a segment file, in windows that keep tables within `max_bytes`.

    Parameters
    ----------
    file : SegmentFile
    end : int
        Where the stretch ends: a batch is known to begin there, or it is the end of the file.
    max_bytes : int
        What a table may take. The windows are memory in addition to two tables: the caller's and the next one.
    """

    is_final = True

    def __init__(self, file: SegmentFile, end: int, max_bytes: int) -> None:
        self._file = file
        self.end = min(end, file.size)
        self.is_bounded = end < file.size
        self.may_be_cut = file.live and not self.is_bounded
        # Compressed batches become tables of twice their size or more, and are decompressed to memory besides.
        self._max_size = max(max_bytes * 3 // 8, _MIN_WINDOW)
        self._max_compressed_size = max(self._max_size // 2, _MIN_WINDOW)
        self._size = self._max_compressed_size
        # The last window, unless it was a look at a few bytes elsewhere, and whether it was asked for beyond this size.
        self._held = _NOTHING
        self._begin = 0
        self._is_large = False

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` on, up to `stop` at least, as far as the stretch reaches.

        If nothing is asked for beyond `start`, the window is for a table. What is asked for otherwise is about damage:
        it begins near the table's position, or is a look at a few bytes where a length leads to.
        """
        is_table = stop <= start
        wanted = min(start + self._size, self.end) if is_table else stop
        begin, end = self._begin, self._begin + len(self._held)
        if begin <= start and wanted <= end:
            return self._held[start - begin : wanted - begin if is_table and not self._is_large else None]
        is_near = begin - _OVERLAP <= start <= end
        if not is_table and not is_near and stop - start <= _MIN_WINDOW:
            return self._read(start, min(stop, self.end))
        self._is_large = stop - start > self._size
        if self._is_large:
            # A large batch, or damage in which headers claim much. With twice as much kept, the file is read at most
            # a few times, whatever they claim.
            stop += stop - start
        stop = min(max(stop, start + self._size), self.end)
        if start < begin and is_near:
            stop = max(stop, end)
        # The memory is free for the next window, unless a table points into it.
        self._held = _NOTHING
        self._held, self._begin = self._read(start, stop), start
        return self._held

    def _read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        window = self._file.window(start, stop)
        if len(window) < stop - start:
            # Cut since it was opened.
            self._file.size = self.end = start + len(window)
        return window

    def adapt(self, consumed: int, is_compressed: bool) -> None:
        """Choose the size of the next window by what the last table took of its own.

        There are few different sizes, so that windows are read to the same memory again.
        """
        self._size = self._max_compressed_size if is_compressed else self._max_size
        while self._size // 2 >= max(_MIN_WINDOW, consumed + consumed // 4):
            self._size //= 2


def read_tables(
    segment: Segment, start: int, end: int, options: DecodeOptions, max_bytes: int
) -> Generator[RecordTable, None, bool]:
    """Decode the batches of `segment` from byte `start` up to `end`, one table at a time.

    Parameters
    ----------
    segment : Segment
    start, end : int
        `start` is where a batch begins; `end` too, or it is the segment's size.
    options : DecodeOptions
    max_bytes : int
        About what records, batches and bytes of one table take; one batch is decoded at least.

    Yields
    ------
    RecordTable

    Returns
    -------
    bool
        Whether ``on_error="stop"`` met damage.

    Notes
    -----
    The incomplete batch or the zeros at the end of a segment that is live are neither an error nor a loss; at the end
    of any other they are (DSK-R14).
    """
    with segment.open() as file:
        windows = FileWindows(file, end, max_bytes)
        reader = BatchReader(options, source=segment.path, position=start)
        zeros = file.zeros_from() if segment.live else windows.end
        # Batches that begin before the zeros at the end of a live file may reach into them.
        stop = zeros if windows.end - zeros >= LOG_OVERHEAD else windows.end
        # Tables of one log are much alike: without this, rows and bytes would each have the capacity of a whole table,
        # and in time all of it would be touched.
        expected: tuple[int, int] | None = None
        while reader.position < min(stop, windows.end) and not reader.stopped:
            before = reader.position
            table = reader.read(windows, stop=stop, max_bytes=max_bytes, expected=expected)
            compressed = reader.decompressed
            if compressed and len(table) > (expected[0] // 2 if expected else 0):
                expected = len(table) + len(table) // 16, len(table.data) + len(table.data) // 16
            consumed = table.consumed
            if consumed or len(table.batches) or table.losses:
                windows.adapt(consumed, compressed)
                yield table
            # What the caller drops must be free for the next table: no reference is kept.
            del table
            if reader.error is not None:
                raise reader.error
            if reader.position == before:
                break
        if reader.stopped:
            return True
        if reader.position >= min(stop, windows.end):
            return False
        return (yield from _read_tail(segment, windows, reader))


def _read_tail(segment: Segment, windows: FileWindows, reader: BatchReader) -> Generator[RecordTable, None, bool]:
    """Judge the incomplete entry at the end of a stretch; return whether ``on_error="stop"`` met damage."""
    following = reader.entry_after_tail(windows)
    if following is None and windows.may_be_cut:
        return False
    if following is None and windows.is_bounded:
        following = windows.end
    hint = f"{windows.end - reader.position} bytes remain; on_error='skip' or 'stop' reads the complete batches"
    loss = reader.lose_tail(windows, following, _CUT, hint)
    yield lost_table(segment, loss.position, windows.end, loss.reason, options=reader.options)
    return reader.options.on_error == "stop"


def lost_table(
    segment: Segment,
    start: int,
    end: int,
    reason: str,
    base_offset: int | None = None,
    *,
    options: DecodeOptions | None = None,
) -> RecordTable:
    """Make a table that has nothing but a loss, with the columns that `options` ask for."""
    options = options if options is not None else DecodeOptions()
    return RecordTable._empty(
        options.record_columns,
        consumed=end - start,
        losses=[Loss(start, end - start, reason, base_offset)],
        source=segment.path,
    )
