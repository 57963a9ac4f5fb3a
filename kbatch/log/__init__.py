"""Reads a broker's log directories: their names, segments and index files, with seeks and tables of bounded size.

In addition to `Log` and `Segment`, the package reads the other files of a log directory, and the records of a broker's
internal topics.
"""

from kbatch.lazy_names import LazyNames

# The public names, by module; `__init__.pyi` declares them for type checkers and editors.
_NAMES = LazyNames(
    __name__,
    {
        "kbatch.live.topic_backup": ("backup_topics",),
        "kbatch.live.comparing": ("compare_logs",),
        "kbatch.log.check.differences": (
            "ComparedLog",
            "ComparedRecord",
            "Comparison",
            "Difference",
            "PartitionComparison",
        ),
        "kbatch.log.check.statistics": (
            "LogStatistics",
            "log_statistics",
        ),
        "kbatch.log.check.statistics_sums": (
            "StatisticsSums",
            "sum_statistics",
        ),
        "kbatch.log.discovery": ("find_logs",),
        "kbatch.log.files.checkpoints": (
            "read_leader_epochs",
            "read_offset_checkpoint",
        ),
        "kbatch.log.files.control_values": ("control_value",),
        "kbatch.log.files.internal_topics": (
            "cluster_metadata",
            "consumer_offsets",
            "group_records",
            "metadata_records",
            "remote_log_metadata",
            "share_group_state",
            "transaction_state",
        ),
        "kbatch.log.files.producer_snapshot": ("read_producer_snapshot",),
        "kbatch.log.files.properties": (
            "read_meta_properties",
            "read_partition_metadata",
        ),
        "kbatch.log.files.transaction_index": ("read_transaction_index",),
        "kbatch.log.log_list": ("LogList",),
        "kbatch.log.logs": ("Log",),
        "kbatch.log.missing": ("MissingOffsets",),
        "kbatch.log.segment": ("Segment",),
        "kbatch.log.store.segment_file": ("Tail",),
        "kbatch.log.write.commit": (
            "Written",
            "roll_back",
        ),
        "kbatch.log.write.compaction": (
            "Compaction",
            "compact_log",
        ),
        "kbatch.log.write.dataframes": ("write_log",),
        "kbatch.log.write.log_writer": ("LogWriter",),
        "kbatch.log.write.rewriting": (
            "convert_log",
            "recompress_log",
        ),
    },
)

__all__ = _NAMES.names
__getattr__ = _NAMES.find


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
