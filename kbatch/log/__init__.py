"""Reads a broker's log directories: their names, segments and index files, with seeks and tables of bounded size.

In addition to `Log` and `Segment`, the package reads the other files of a log directory, and the records of a broker's
internal topics.
"""

from kbatch.log.check.comparison import compare_logs
from kbatch.log.check.differences import ComparedLog, ComparedRecord, Comparison, Difference, PartitionComparison
from kbatch.log.discovery import find_logs
from kbatch.log.files.checkpoints import read_leader_epochs, read_offset_checkpoint
from kbatch.log.files.control_values import control_value
from kbatch.log.files.internal_topics import (
    consumer_offsets,
    group_records,
    metadata_records,
    remote_log_metadata,
    share_group_state,
    transaction_state,
)
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.files.properties import read_meta_properties, read_partition_metadata
from kbatch.log.files.transaction_index import read_transaction_index
from kbatch.log.log_list import LogList
from kbatch.log.logs import Log
from kbatch.log.segment import Segment
from kbatch.log.store.segment_file import Tail
from kbatch.log.write.commit import Written, roll_back
from kbatch.log.write.compaction import Compaction, compact_log
from kbatch.log.write.dataframes import write_log
from kbatch.log.write.log_writer import LogWriter
from kbatch.log.write.rewriting import convert_log, recompress_log

__all__ = [
    "Compaction",
    "ComparedLog",
    "ComparedRecord",
    "Comparison",
    "Difference",
    "Log",
    "LogList",
    "LogWriter",
    "PartitionComparison",
    "Segment",
    "Tail",
    "Written",
    "compact_log",
    "compare_logs",
    "consumer_offsets",
    "control_value",
    "convert_log",
    "find_logs",
    "group_records",
    "metadata_records",
    "read_leader_epochs",
    "read_meta_properties",
    "read_offset_checkpoint",
    "read_partition_metadata",
    "read_producer_snapshot",
    "read_transaction_index",
    "recompress_log",
    "remote_log_metadata",
    "roll_back",
    "share_group_state",
    "transaction_state",
    "write_log",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
