"""read_committed: transactions are followed in a pass before the decoding, which then leaves out aborted batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kbatch.format import BatchStatus
from kbatch.kernels.buffers import trim
from kbatch.read.budget import table_limit
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.read.reader import BatchReader
from kbatch.read.windows import BufferWindows
from kbatch.table import RecordTable
from kbatch.transactions import (
    AbortedRanges,
    LossFollower,
    Transactions,
    TransactionTracker,
    Withheld,
    follow_batches,
)

__all__ = [
    "Aborted",
    "counts_for_transactions",
    "decide",
    "decode_committed",
    "tracking_options",
    "with_pending",
]

Aborted = Iterable[tuple[int, int]] | npt.NDArray[np.void]


def tracking_options(options: DecodeOptions) -> DecodeOptions:
    """Return the options of a pass that only follows transactions, over the batches that `options` would decode.

    Under ``on_error="skip"`` the pass ignores the requested offsets: damage outside of them may hide markers, and is
    skipped like any other. Under "raise" and "stop" only damage within the requested offsets ends the pass.
    """
    start, stop = (None, None) if options.on_error == "skip" else (options.start_offset, options.stop_offset)
    return replace(options, withheld=None, framing_only=True, start_offset=start, stop_offset=stop)


def counts_for_transactions(batches: npt.NDArray[np.void], options: DecodeOptions) -> npt.NDArray[np.bool_]:
    """Return a mask of the batches of a framing pass that count for transactions; the others are lost."""
    good: npt.NDArray[np.bool_] = batches["status"] == BatchStatus.OK
    return good | (batches["status"] == BatchStatus.BAD_CRC) if options.crc == "mark" else good


def _aborted_ranges(aborted: Aborted, batches: npt.NDArray[np.void], tracker: TransactionTracker) -> AbortedRanges:
    """Return the ranges of the aborted transactions that the caller lists, which end at the markers of the input."""
    if isinstance(aborted, np.ndarray) and aborted.dtype.names is not None:
        return AbortedRanges.from_rows(aborted)
    producers, _, positions = tracker.abort_markers
    return AbortedRanges.from_list(aborted, batches, (producers, positions))


def decide(
    data: npt.NDArray[np.uint8], options: DecodeOptions, aborted: Aborted | None
) -> tuple[DecodeOptions, Transactions | None]:
    """Return `options` that leave out the batches of `data` that read_committed withholds.

    Parameters
    ----------
    data : ndarray of uint8, read-only
        All of an input, such as a fetch response.
    options : DecodeOptions
    aborted : iterable of (producer id, first offset), ndarray of ABORTED_DTYPE, or None
        As for `decode`.

    Returns
    -------
    DecodeOptions
        For `decode_part` over any part of `data`.
    Transactions or None
        The transactions of `data`, if no list was given and its markers decided.
    """
    if options.isolation == "read_uncommitted":
        # The list is ignored, as in Kafka's consumer (TXN-R12).
        return options, None
    # Under "raise" no batch at or after damage is returned, so that markers there are not needed.
    reader = BatchReader(tracking_options(options))
    table = reader.read(BufferWindows(data))
    if reader.error is not None and options.on_error != "raise":
        # The losses exceed the memory of a table.
        raise reader.error
    batches = table.batches
    good = counts_for_transactions(batches, options)
    rest = table_limit(options.limits) - options.used_bytes - batches.nbytes - table.losses.nbytes
    tracker = TransactionTracker(limits=options.limits, max_bytes=max(rest, 0))
    # Under "raise" and "stop", damage within the requested offsets ends the pass, and nothing after it is returned.
    # Damage outside of them may hide markers.
    losses = LossFollower(is_final=options.on_error != "skip")
    follow_batches(tracker, losses, batches, good, table.losses, lambda _: (data, 0))
    if options.on_error == "skip":
        tracker.replay(losses.finish())
    elif reader.stopped or reader.error is not None:
        tracker.replay(losses.end())
    is_sound = reader.position == len(data) and bool((good & (batches["magic"] == 2)).all()) and not table.losses
    if options.crc == "verify" and is_sound:
        # This pass has verified all checksums. It does not verify inner messages, which only magic 0 and 1 have.
        options = replace(options, crc="skip")
    if aborted is not None:
        return replace(options, withheld=Withheld(_aborted_ranges(aborted, batches[good], tracker))), None
    transactions = tracker.result()
    return replace(options, withheld=transactions._withheld()), transactions


def with_pending(table: RecordTable, transactions: Transactions) -> RecordTable:
    """Return `table` with the transactions of its source that are withheld."""
    return table._with(pending=lambda: transactions.pending, last_stable_offset=transactions.last_stable_offset)


def decode_committed(
    data: npt.NDArray[np.uint8], options: DecodeOptions, aborted: Aborted | None, source: str | None = None
) -> RecordTable:
    """Follow the transactions of `data`, then decode it; the parameters are as for `decide`."""
    options, transactions = decide(data, options, aborted)
    # The memory of the rows of this pass is filled; the table that would reuse it may need less.
    trim(table_limit(options.limits) // 8)
    table = decode_part(data, options, source=source)
    return table if transactions is None else with_pending(table, transactions)
