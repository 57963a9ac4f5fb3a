"""read_committed: how the transactions of an input are followed before it is decoded, and what is then left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kbatch.decode_options import DecodeOptions
from kbatch.errors import KbatchError
from kbatch.format import BatchStatus
from kbatch.framing import scan_part
from kbatch.passes import decode_part
from kbatch.table import RecordTable
from kbatch.transactions import AbortedRanges, Transactions, TransactionTracker, lost_markers

__all__ = [
    "Aborted",
    "committed",
    "counts_for_transactions",
    "decide",
    "decode_committed",
    "mark_pending",
    "tracking_options",
    "with_pending",
]

Aborted = Iterable[tuple[int, int]] | npt.NDArray[np.void]


def tracking_options(options: DecodeOptions) -> DecodeOptions:
    """Make the options of a pass that only follows transactions, over the batches that `options` would decode."""
    return replace(options, aborted=None, undecided=None, stable_offset=None, framing_only=True)


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
    tracking = tracking_options(options)
    try:
        table = decode_part(data, tracking).table
    except KbatchError as error:
        if error.position is None:
            raise
        # Nothing at or after the damage is handed out, and so nothing there decides.
        table = decode_part(data[: error.position], tracking).table
    good, lost = counts_for_transactions(table.batches, options)
    chosen = good | lost
    return _decide_by(data, options, aborted, table.batches[chosen], lost[chosen])


def with_pending(table: RecordTable, transactions: Transactions) -> RecordTable:
    """Return `table` with what of its source is withheld."""
    return table._with(pending=transactions.pending, last_stable_offset=transactions.last_stable_offset)


def mark_pending(table: RecordTable, transactions: Transactions) -> None:
    """Tell in a table what of its source was withheld."""
    table.pending = transactions.pending
    table.last_stable_offset = transactions.last_stable_offset


def _decide_by(
    data: npt.NDArray[np.uint8],
    options: DecodeOptions,
    aborted: Aborted | None,
    batches: npt.NDArray[np.void],
    lost: npt.NDArray[np.bool_] | None = None,
) -> tuple[DecodeOptions, Transactions | None]:
    """Do what `decide` does by what these batches say, of which some are `lost` markers."""
    tracker = TransactionTracker(check_crc=False, limits=options.limits)
    tracker.add(data, batches, lost=lost)
    if aborted is not None:
        return replace(options, aborted=_aborted_ranges(aborted, tracker)), None
    transactions = tracker.result()
    return committed(options, transactions), transactions


def decode_committed(data: npt.NDArray[np.uint8], options: DecodeOptions, aborted: Aborted | None) -> RecordTable:
    """Follow the transactions of `data` and decode it; parameters are those of `decide`.

    Batches are followed by their headers, in the hope that all are good. Where one turns out to be bad, what was
    followed after it may be void: then the input is followed again, as the decoding goes through it.
    """
    if aborted is not None and not isinstance(aborted, np.ndarray):
        aborted = list(aborted)
    outside = options.start_offset is not None or options.stop_offset is not None
    if options.crc != "verify" or not outside:
        try:
            table = _decode_decided(data, *_decide_by(data, options, aborted, scan_part(data).batches))
        except KbatchError:
            pass
        else:
            if not table.losses:
                return table
    return _decode_decided(data, *decide(data, options, aborted))


def _decode_decided(
    data: npt.NDArray[np.uint8], options: DecodeOptions, transactions: Transactions | None
) -> RecordTable:
    table = decode_part(data, options).table
    return table if transactions is None else with_pending(table, transactions)
