"""What the whole of a log says about its transactions, for read_committed.

A marker may stand in a later table, segment or task than the records that it decides. So the log's headers are followed
once, from its first batch to its last, before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbatch.decoding import DecodeOptions, tracked_rows
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.transactions import Transactions, TransactionTracker

__all__ = ["follow_transactions"]

_WINDOW = 16 << 20


def follow_transactions(segments: Sequence[Segment], options: DecodeOptions) -> Transactions:
    """Follow the transactions of a log over its batch headers.

    Parameters
    ----------
    segments : sequence of Segment
        All of the log, in order. Where the older ones were deleted, a transaction begins at its first batch that is
        left (TXI-R6).
    options : DecodeOptions
        What damage means (`on_error`, `crc`, `limits`).

    Returns
    -------
    Transactions

    Notes
    -----
    Of the bytes between the headers only those of markers, and of batches that open a transaction, are looked at. Where
    ``on_error="skip"`` passes over damage, the segment that has it is followed by the bytes, checksums and all, so that
    markers behind it are found just as the decoding finds them. With "raise" and "stop" nothing after damage is read.
    """
    tracker = TransactionTracker(check_crc=options.crc == "verify", limits=options.limits)
    for segment in segments:
        if options.on_error == "skip" and segment.last_batch(use_indexes=False)[1].kind not in ("none", "zeros"):
            _follow_bytes(segment, tracker, options)
        else:
            with segment.open() as file:
                for window, rows in file.walk_windows(0):
                    tracker.add(window, rows, int(rows["position"][0]))
    return tracker.result()


def _follow_bytes(segment: Segment, tracker: TransactionTracker, options: DecodeOptions) -> None:
    options = DecodeOptions(crc=options.crc, on_error="skip", limits=options.limits, framing_only=True)
    for table in read_tables(segment, 0, segment.size, options, _WINDOW):
        good = tracked_rows(table.batches, options)
        if len(good):
            start = int(good["position"][0])
            window = segment.window(start, int(good["position"][-1] + good["size"][-1]))
            tracker.add(window, good, start)
