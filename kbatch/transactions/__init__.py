"""Transactions: control records, aborted and open transactions, and the batches that read_committed leaves out.

A transaction consists of the transactional batches of a producer id up to its marker, a control batch. Transactions of
a log follow the rules of Kafka's broker (``ProducerStateManager``, ``TransactionIndex``); transactions of a fetch
response follow the consumer (``CompletedFetch``).
"""

from kbatch.transactions.aborted import AbortedRanges, ListedAborts, Withheld, WithheldOfLog
from kbatch.transactions.control_parsing import control_records
from kbatch.transactions.events import EVENT_DTYPE, LostEvents, are_control, record_counts
from kbatch.transactions.lost import MAX_LOST_HEADERS, LossFollower, follow_batches, lost_bytes
from kbatch.transactions.opened import OpenTransaction, OpenTransactions
from kbatch.transactions.recorder import TransactionRecorder
from kbatch.transactions.tracker import Transactions, TransactionTracker

__all__ = [
    "EVENT_DTYPE",
    "MAX_LOST_HEADERS",
    "AbortedRanges",
    "ListedAborts",
    "LossFollower",
    "LostEvents",
    "OpenTransaction",
    "OpenTransactions",
    "TransactionRecorder",
    "TransactionTracker",
    "Transactions",
    "Withheld",
    "WithheldOfLog",
    "are_control",
    "control_records",
    "follow_batches",
    "lost_bytes",
    "record_counts",
]
