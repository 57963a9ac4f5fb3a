"""Finds where two logs agree again after a difference, for comparisons by order."""

from __future__ import annotations

import numpy as np

from kbatch.records.comparison import DIGEST_WORDS, key_digests, record_digests
from kbatch.table import RecordTable

__all__ = ["resume_point"]

# The records of each side among which a comparison by order searches the next equal record after a difference. The cost
# stays linear with any number, because the searched records are then skipped; the memory grows with it.
ALIGNMENT_RECORDS = 1024

# The number of records in which the next equal one is searched first. Each further search takes four times as many, so
# that all searches together cost as much as a few passes over the skipped records.
_FIRST_SEARCH = 4


def resume_point(a: RecordTable, b: RecordTable, secret: bytes) -> tuple[int, int]:
    """Return the number of records of each table before the next record that both have.

    Of several such records, the one with the fewest records before it is chosen. Records are the same if key, value and
    headers are equal. Without one among the first `ALIGNMENT_RECORDS`, these are all skipped.
    """
    count = _FIRST_SEARCH
    while True:
        count = min(count, ALIGNMENT_RECORDS)
        left, right = (_digests(table[:count], secret) for table in (a, b))
        # The rows are the first ones with each digest.
        _, rows, other_rows = np.intersect1d(left, right, return_indices=True)
        if len(rows):
            cost = 2 * (rows + other_rows) + (rows != other_rows)
            best = int(np.argmin(cost))
            return int(rows[best]), int(other_rows[best])
        if count == ALIGNMENT_RECORDS or count >= max(len(a), len(b)):
            both = min(len(a), len(b), ALIGNMENT_RECORDS)
            return both, both
        count *= 4


def _digests(table: RecordTable, secret: bytes) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return a digest of key, value and headers of each record, as one item."""
    digests = record_digests(table, secret)
    # Null and empty have different digests.
    digests[:, DIGEST_WORDS["timestamp"]] = 0
    words = np.ascontiguousarray(np.concatenate([key_digests(table, secret), digests], axis=1))
    rows: np.ndarray[tuple[int], np.dtype[np.void]] = words.view(np.dtype((np.void, words.shape[1] * 8))).reshape(-1)
    return rows
