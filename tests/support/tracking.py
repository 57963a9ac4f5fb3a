"""The transaction tracker over the bytes of a log, and its result in the form of the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from transaction_logs import Fold

from kbatch.batches.framing import byte_array, scan_part
from kbatch.format import ABORTED_DTYPE
from kbatch.transactions import TransactionTracker


def track(log: bytes, splits: Sequence[int] = (), **options: Any) -> TransactionTracker:
    """Track a log in several calls of `add`, split after these numbers of batches, each with its own bytes only."""
    array = byte_array(log)
    rows = scan_part(array).batches
    tracker = TransactionTracker(**options)
    bounds = [0, *sorted(splits), len(rows)]
    for lo, hi in itertools.pairwise(bounds):
        part = rows[lo:hi]
        start = int(part["position"][0]) if len(part) else 0
        end = int(part["position"][-1] + part["size"][-1]) if len(part) else 0
        tracker.add(array[start:end], part, start)
    return tracker


def outcome(tracker: TransactionTracker) -> Fold:
    """Return the result of the tracker in the form of the model."""
    result = tracker.result()
    assert result.aborted.dtype == ABORTED_DTYPE
    producers, offsets = tracker.abort_markers
    return Fold(
        result.aborted.tolist(),
        [tuple(t) for t in result.open],
        result.last_stable_offset,
        list(zip(producers.tolist(), offsets.tolist(), strict=True)),
        tuple(result.undecided.tolist()),
    )
