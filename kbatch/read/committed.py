"""read_committed: how the transactions of an input are followed before it is decoded, and what is then left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kbatch.format import BatchStatus
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader, decode_part
from kbatch.read.windows import BufferWindows
from kbatch.table import RecordTable
from kbatch.transactions import AbortedRanges, Transactions, TransactionTracker, lost_markers

__all__ = [
    "Aborted",
    "committed",
    "counts_for_transactions",
    "decide",
    "decode_committed",
    "tracking_options",
    "with_pending",
]

Aborted = Iterable[tuple[int, int]] | npt.NDArray[np.void]


def tracking_options(options: DecodeOptions) -> DecodeOptions:
    """Make the options of a pass that only follows transactions, over the batches that `options` would decode.

    Under ``on_error="skip"`` it does not depend on the offsets that are asked for: damage outside of them may hide
    markers, and is passed over as anywhere else. With "raise" and "stop" only damage within them ends the pass.
    """
    options = replace(options, aborted=None, undecided=None, stable_offset=None, framing_only=True)
    return replace(options, start_offset=None, stop_offset=None) if options.on_error == "skip" else options


def counts_for_transactions(
    batches: npt.NDArray[np.void], options: DecodeOptions
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Tell which batches of a framing pass count for transactions.

    Returns
    -------
    good, lost : ndarray of bool, shape (batches,)
        Those whose checksum holds, if that is asked for; and the markers whose doesn't, where damage is passed over:
        with "raise" and "stop" it ends what is known.
    """
    good: npt.NDArray[np.bool_] = batches["status"] == BatchStatus.OK
    bad = batches["status"] == BatchStatus.BAD_CRC
    if options.crc == "mark":
        return good | bad, np.zeros_like(good)
    if options.on_error != "skip":
        return good, np.zeros_like(good)
    return good, bad & lost_markers(batches)


def _aborted_ranges(aborted: Aborted, tracker: TransactionTracker) -> AbortedRanges:
    """Take the aborted transactions as a caller gives them, with the markers of the input."""
    if isinstance(aborted, np.ndarray) and aborted.dtype.names is not None:
        return AbortedRanges.from_rows(aborted)
    return AbortedRanges.from_list(aborted, tracker.abort_markers)


def committed(options: DecodeOptions, transactions: Transactions) -> DecodeOptions:
    """Make `options` leave out what read_committed does, given what is known of the whole source."""
    return replace(
        options,
        aborted=AbortedRanges.from_transactions(transactions),
        undecided=AbortedRanges.from_rows(transactions.undecided) if len(transactions.undecided) else None,
        stable_offset=transactions.last_stable_offset,
    )


def decide(
    data: npt.NDArray[np.uint8], options: DecodeOptions, aborted: Aborted | None
) -> tuple[DecodeOptions, Transactions | None]:
    """Make `options` leave out of `data` what read_committed does.

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
        What the markers in `data` say, where they decided: without a list.
    """
    if options.isolation == "read_uncommitted":
        # A list is of no effect there, as in Kafka's consumer (TXN-R12).
        return options, None
    # Under "raise" nothing at or after damage is returned, and so nothing there decides.
    reader = BatchReader(tracking_options(options))
    table = reader.read(BufferWindows(data))
    batches = table.batches
    good, lost = counts_for_transactions(batches, options)
    chosen = good | lost
    tracker = TransactionTracker(check_crc=False, limits=options.limits)
    tracker.add(data, batches[chosen], lost=lost[chosen])
    is_sound = reader.position == len(data) and bool((good & (batches["magic"] == 2)).all()) and not table.losses
    if options.crc == "verify" and is_sound:
        # This pass has verified all checksums. Those of messages inside of compressed ones it has not.
        options = replace(options, crc="skip")
    if aborted is not None:
        return replace(options, aborted=_aborted_ranges(aborted, tracker)), None
    transactions = tracker.result()
    return committed(options, transactions), transactions


def with_pending(table: RecordTable, transactions: Transactions) -> RecordTable:
    """Return `table` with what of its source is withheld."""
    return table._with(pending=transactions.pending, last_stable_offset=transactions.last_stable_offset)


def decode_committed(data: npt.NDArray[np.uint8], options: DecodeOptions, aborted: Aborted | None) -> RecordTable:
    """Follow the transactions of `data`, then decode it; parameters are those of `decide`."""
    options, transactions = decide(data, options, aborted)
    table = decode_part(data, options)
    return table if transactions is None else with_pending(table, transactions)
