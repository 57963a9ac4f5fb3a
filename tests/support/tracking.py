"""The transactions of the bytes of a log, and the result in the form of the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from transaction_logs import Fold

from kbatch.batches.checksums import good_crcs
from kbatch.batches.framing import byte_array, scan_part
from kbatch.format import ABORTED_DTYPE, NO_TIMESTAMP
from kbatch.transactions import LostEvents, TransactionTracker
from kbatch.transactions.control_parsing import lost_markers
from kbatch.transactions.events import EVENT_DTYPE, LOST_MARKER


def track(log: bytes, splits: Sequence[int] = (), **options: Any) -> TransactionTracker:
    """Follow a log in several parts, split after these numbers of batches, each with its own bytes only.

    Damaged batches are left out. A damaged marker ends the transaction of the producer in its header.
    """
    array = byte_array(log)
    rows = scan_part(array).batches
    tracker = TransactionTracker(**options)
    bounds = [0, *sorted(splits), len(rows)]
    for lo, hi in itertools.pairwise(bounds):
        part = rows[lo:hi]
        start = int(part["position"][0]) if len(part) else 0
        end = int(part["position"][-1] + part["size"][-1]) if len(part) else 0
        good = good_crcs(array, part, 0)
        lost = np.flatnonzero(~good & lost_markers(part))
        events = np.array([lost_event(part[row]) for row in lost], EVENT_DTYPE)
        following = np.cumsum(good)[lost]
        is_last = following == good.sum()
        tracker.add(array[start:end], part[good], start, LostEvents(following[~is_last], events[~is_last]))
        tracker.replay(events[is_last])
    return tracker


def lost_event(batch: np.void) -> tuple[int, int, int, int, int, int]:
    producer_id, offset = int(batch["producer_id"]), int(batch["base_offset"])
    return producer_id, offset, offset, NO_TIMESTAMP, LOST_MARKER, int(batch["position"]) - 1


def outcome(tracker: TransactionTracker) -> Fold:
    """Return the result of the tracker in the form of the model."""
    result = tracker.result()
    assert result.aborted.dtype == ABORTED_DTYPE
    producers, offsets, _ = tracker.abort_markers
    return Fold(
        result.aborted.tolist(),
        [tuple(t) for t in result.open],
        result.last_stable_offset,
        list(zip(producers.tolist(), offsets.tolist(), strict=True)),
        tuple(result.undecided.tolist()),
    )
