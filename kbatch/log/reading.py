"""Tables of bounded size from a stretch of one segment."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from kbatch.decode_options import DecodeOptions
from kbatch.errors import CorruptBatchError, TruncatedBatchError, finding_text, finding_to_error
from kbatch.format import BATCH_DTYPE, LOG_OVERHEAD, MIN_ENTRY_SIZE, SHORTEST_ENTRY
from kbatch.framing import Claims, damaged_end, find_batch, most_believed, size_by_fields
from kbatch.log.segment import Segment, SegmentFile, Tail
from kbatch.passes import decode_part
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
    A stretch of damage is one loss, however many windows it takes; it stands in the table that follows its end.

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
        # What is read is memory beside two tables, the caller's and the one in the making.
        most = max(max_bytes * 3 // 8, _MIN_WINDOW)
        # Compressed batches make a table of half of that; and what they are decompressed to is memory beside it.
        most_packed = max(most // 2, _MIN_WINDOW)
        size = most_packed
        position = start
        # Tables of one log are much alike: without this, rows and bytes would each have room for a whole table, and
        # in time all of that would be touched.
        room: tuple[int, int] | None = None
        searching = False
        claims = Claims(file.size)
        # Damage that goes on at the end of a window is told when its own end is known: as one loss.
        open_loss: Loss | None = None
        while position < limit:
            window = file.window(position, min(position + size, limit))
            if position + len(window) < min(position + size, limit):
                # Cut underneath since it was opened.
                file.size = end = limit = position + len(window)
            final = position + len(window) == end
            part = decode_part(
                window,
                options,
                origin=position,
                source=segment.path,
                max_bytes=max_bytes,
                final=final,
                # A stretch that ends before its file does ends where a batch begins.
                followed=final and not whole,
                searching=searching,
                claims=claims,
                room=room,
            )
            table = part.table
            packed = table.data is not window
            if packed and len(table) > (room[0] // 2 if room else 0):
                room = len(table) + len(table) // 16, len(table.data) + len(table.data) // 16
            searching = part.searching
            position += table.consumed
            table.losses = [_judged(file, loss, options) for loss in table.losses]
            open_loss = _carry(table.losses, open_loss, searching)
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
                # Few different sizes: windows are read to the same memory again.
                size = most_packed if packed else most
                while size // 2 >= max(_MIN_WINDOW, consumed + consumed // 4):
                    size //= 2
                continue
            wanted = file.entry_size(position)
            if wanted is not None and max(length + 1, SHORTEST_ENTRY) <= wanted <= end - position:
                # The next batch is larger than the window, or reaches into the zeros.
                limit = max(limit, position + wanted)
                size = wanted + most
                continue
            found = _damaged_end(file, position, end, claims)
            if found is None:
                found = _next_batch(file, position + 1, end, options, claims)
            tail = file.tail_at(position)
            if found is None and whole and segment.live and not searching and tail.kind != "damaged":
                return False
            followed = found is not None or (not whole and tail.finding is None)
            stop = end if found is None else found
            loss = _judged(file, Loss(position, stop - position, _TOO_LONG if followed else _CUT), options)
            if loss.reason == _CUT:
                loss = loss._replace(reason=_damage(segment, tail, options))
            elif loss.reason == _TOO_LONG and options.on_error == "raise":
                raise CorruptBatchError(
                    f"{segment.path}, byte {position}: {_TOO_LONG} (the next one at byte {stop}); "
                    "on_error='skip' loses this batch only",
                    source=segment.path,
                    position=position,
                )
            if options.on_error == "stop":
                stop = end
                loss = loss._replace(length=end - position)
            table = lost_table(segment, position, stop, loss.reason, loss.base_offset, options=options)
            open_loss = _carry(table.losses, open_loss, False)
            yield table
            del table
            if options.on_error == "stop":
                return True
            position, searching = stop, False
        if open_loss is not None:
            table = lost_table(segment, position, position, "", options=options)
            table.losses = [open_loss]
            yield table
    return False


def _carry(losses: list[Loss], open_loss: Loss | None, searching: bool) -> Loss | None:
    """Begin `losses` with the one that was left open before; take out and return the one that is open after them."""
    if open_loss is not None:
        after = open_loss.position + open_loss.length
        # What has a base offset is a batch, and so where the search has ended.
        if losses and losses[0].position == after and losses[0].base_offset is None:
            losses[0] = open_loss._replace(length=open_loss.length + losses[0].length)
        else:
            losses.insert(0, open_loss)
    return losses.pop() if searching and losses else None


def _judged(file: SegmentFile, loss: Loss, options: DecodeOptions) -> Loss:
    """Say (or raise) what is wrong with a batch that is only cut because the stretch that is read ends within it.

    Where the file has all the bytes that its length asks for, they tell: so that damage is the same however a file is
    cut in stretches.
    """
    if loss.reason not in (_CUT, _TOO_LONG):
        return loss
    wanted = file.entry_size(loss.position)
    if wanted is None or not SHORTEST_ENTRY <= wanted <= file.size - loss.position:
        return loss
    window = file.window(loss.position, loss.position + wanted)
    told = decode_part(window, options, origin=loss.position, source=file.path).table.losses
    if not told or told[0].position != loss.position:
        return loss
    return loss._replace(reason=told[0].reason, base_offset=told[0].base_offset)


def _damaged_end(file: SegmentFile, position: int, end: int, claims: Claims) -> int | None:
    """Ask the entry at `position`, whose length field leads nowhere, where it ends; that is at `end` at most."""
    window = file.window(position, min(position + _MIN_WINDOW, end))
    if len(window) < SHORTEST_ENTRY:
        return None
    size = size_by_fields(window, 0)
    if size is not None and len(window) < size <= min(end - position, claims.max_size):
        window = file.window(position, position + size)
    found = damaged_end(window, 0, claims)
    return None if found is None or position + found >= end else position + found


def _next_batch(file: SegmentFile, position: int, end: int, options: DecodeOptions, claims: Claims) -> int | None:
    """Search from `position` up to `end` for a whole batch with a good checksum."""
    size = _MIN_WINDOW
    most = most_believed(options.limits)
    while end - position >= MIN_ENTRY_SIZE:
        window = file.window(position, min(position + size, end))
        final = position + len(window) >= end
        at, found = find_batch(window, 0, max_size=most, final=final, claims=claims)
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
    return RecordTable(
        np.empty(0, options.record_dtype),
        np.empty(0, BATCH_DTYPE),
        np.empty(0, np.uint8),
        consumed=end - start,
        losses=[Loss(start, end - start, reason, base_offset)],
        source=segment.path,
        columns=options.record_columns,
    )
