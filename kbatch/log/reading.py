"""Tables of bounded size from a stretch of one segment."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from kbatch.decoding import DecodeOptions, decode_part
from kbatch.errors import CorruptBatchError, TruncatedBatchError, finding_text, finding_to_error
from kbatch.format import BATCH_DTYPE, LOG_OVERHEAD, MIN_ENTRY_SIZE, RECORD_DTYPE, SHORTEST_ENTRY
from kbatch.framing import find_batch, most_believed
from kbatch.log.segment import Segment, SegmentFile, Tail
from kbatch.table import Loss, RecordTable

__all__ = ["NOT_REACHED", "lost_table", "read_tables"]

# What is lost where damage in an earlier segment stopped the reading of a log.
NOT_REACHED = "not read: on_error='stop' met damage before it"

_MIN_WINDOW = 64 << 10
_TOO_LONG = "length field reaches beyond batches that are whole"
_CUT = "batch is cut: only the last segment of a log may end with an incomplete one"


def read_tables(
    segment: Segment, start: int, end: int, options: DecodeOptions, max_bytes: int
) -> Generator[RecordTable, None, bool]:
    """Decode the batches of `segment` from byte `start` up to `end`, by the table.

    Parameters
    ----------
    segment : Segment
    start, end : int
        `start` is where a batch begins; `end` too, or it is the segment's size.
    options : DecodeOptions
    max_bytes : int
        What records, batches and bytes of one table may take, about; one batch is decoded at least.

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
        whole = end >= file.size
        end = min(end, file.size)
        limit = end
        zeros = file.zeros_from() if segment.live else end
        if end - zeros >= LOG_OVERHEAD:
            # Zeros at the end of a live file are for the decoder only as far as a batch reaches into them.
            limit = zeros
        most = max(max_bytes // 2, _MIN_WINDOW)
        size = most
        position = start
        searching = False
        while position < limit:
            window = file.window(position, min(position + size, limit))
            if position + len(window) < min(position + size, limit):
                # Cut underneath since it was opened.
                file.size = end = limit = position + len(window)
            part = decode_part(
                window,
                options,
                origin=position,
                source=segment.path,
                max_bytes=max_bytes,
                final=position + len(window) == end,
                searching=searching,
            )
            table = part.table
            searching = part.searching
            position += table.consumed
            if part.stopped:
                table.losses[-1] = table.losses[-1]._replace(length=end - table.losses[-1].position)
            consumed, stopped, length = table.consumed, part.stopped, len(window)
            # What the caller drops must be free for the next table: no reference is kept.
            del window, part
            if consumed or table.losses:
                yield table
            del table
            if stopped:
                return True
            if consumed:
                # Compressed batches fill a table from less than a window.
                size = min(most, max(_MIN_WINDOW, 2 * consumed))
                continue
            wanted = file.entry_size(position)
            if wanted is not None and max(length + 1, SHORTEST_ENTRY) <= wanted <= end - position:
                # The next batch is larger than the window, or reaches into the zeros.
                limit = max(limit, position + wanted)
                size = wanted + most
                continue
            found = _next_batch(file, position + 1, end, options)
            if found is not None:
                if options.on_error == "raise":
                    raise CorruptBatchError(
                        f"{segment.path}, byte {position}: {_TOO_LONG} (the next one at byte {found}); "
                        "on_error='skip' loses this batch only",
                        source=segment.path,
                        position=position,
                    )
                if options.on_error == "stop":
                    yield lost_table(segment, position, end, _TOO_LONG)
                    return True
                yield lost_table(segment, position, found, _TOO_LONG)
                position, searching = found, False
                continue
            tail = file.tail_at(position)
            if whole and segment.live and not searching and tail.kind != "damaged":
                return False
            yield lost_table(segment, position, end, _damage(segment, tail, options))
            return options.on_error == "stop"
    return False


def _next_batch(file: SegmentFile, position: int, end: int, options: DecodeOptions) -> int | None:
    """Search from `position` up to `end` for a whole batch with a good checksum."""
    size = _MIN_WINDOW
    most = most_believed(options.limits)
    while end - position >= MIN_ENTRY_SIZE:
        window = file.window(position, min(position + size, end))
        final = position + len(window) >= end
        at, found = find_batch(window, 0, max_size=most, final=final)
        if found:
            return position + at
        if final:
            break
        # A header at the very beginning whose batch goes beyond the window needs a larger one.
        size = 2 * size if at == 0 else _MIN_WINDOW
        position += at
    return None


def _damage(segment: Segment, tail: Tail, options: DecodeOptions) -> str:
    """Raise for what stands where a batch should, or say it."""
    if tail.finding is not None:
        if options.on_error == "raise":
            raise finding_to_error(tail.finding, source=segment.path, position=tail.position)
        return finding_text(tail.finding)
    if options.on_error == "raise":
        raise TruncatedBatchError(
            f"{segment.path}, byte {tail.position}: {_CUT}; {tail.size} bytes remain; on_error='skip' or 'stop' "
            "reads what is whole",
            source=segment.path,
            position=tail.position,
        )
    return _CUT


def lost_table(segment: Segment, start: int, end: int, reason: str) -> RecordTable:
    """Make a table that has nothing but a loss."""
    return RecordTable(
        np.empty(0, RECORD_DTYPE),
        np.empty(0, BATCH_DTYPE),
        np.empty(0, np.uint8),
        consumed=end - start,
        losses=[Loss(start, end - start, reason)],
        source=segment.path,
    )
