"""Transactions: control records, what is aborted, what is still open, and which batches read_committed leaves out.

A transaction is the transactional batches of a producer id up to the marker, a control batch, that decides them. The
rules are those of Kafka: of its broker (``ProducerStateManager``, ``TransactionIndex``) for the transactions of a log,
and of its consumer (``CompletedFetch``) for those of a fetch response.
"""

from kbatch.transactions.aborted import AbortedRanges, ListedAborts
from kbatch.transactions.control import control_records, lost_markers
from kbatch.transactions.tracker import (
    EVENT_DTYPE,
    OpenTransaction,
    TransactionRecorder,
    Transactions,
    TransactionTracker,
)

__all__ = [
    "EVENT_DTYPE",
    "AbortedRanges",
    "ListedAborts",
    "OpenTransaction",
    "TransactionRecorder",
    "TransactionTracker",
    "Transactions",
    "control_records",
    "lost_markers",
]
