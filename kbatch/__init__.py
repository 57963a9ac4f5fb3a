"""Kafka's record batches to NumPy, Arrow, pandas, Polars and Spark.

Docstrings cite rules of Kafka's format by ids such as FRM-R3; ``docs/format-rules.md`` lists them with their meaning.
"""

from importlib import import_module

from kbatch.lazy_names import LazyNames
from kbatch.version import VERSION

__version__ = VERSION

# The public names, by module. A module is imported when one of its names is first used, so that `import kbatch` and
# `kbatch --help` are fast. `__init__.pyi` declares the names for type checkers and editors.
_NAMES = LazyNames(
    __name__,
    {
        "kbatch.batches.framing": ("scan",),
        "kbatch.broker.appending": ("accept_batch",),
        "kbatch.broker.offsets": ("assign_offsets",),
        "kbatch.broker.producers": ("SequenceChecker",),
        "kbatch.broker.topic_config": ("TopicConfig",),
        "kbatch.broker.validation": ("validate_batch",),
        "kbatch.errors": (
            "CodecError",
            "ConversionLossError",
            "CorruptBatchError",
            "CrcMismatchError",
            "ErrorCode",
            "FencedError",
            "InvalidRecordError",
            "KbatchError",
            "LimitExceededError",
            "LogDirectoryError",
            "MissingColumnError",
            "MissingDependencyError",
            "OutOfOrderSequenceError",
            "ProtocolError",
            "RefusedError",
            "RegistryError",
            "TransactionStateError",
            "TruncatedBatchError",
            "UnsupportedFormatError",
        ),
        "kbatch.exporting": (
            "export",
            "follow",
        ),
        "kbatch.format": (
            "ABORTED_DTYPE",
            "BATCH_DTYPE",
            "CONTROL_DTYPE",
            "HEADER_DTYPE",
            "PRODUCER_DTYPE",
            "RECORD_DTYPE",
            "BatchStatus",
            "Codec",
            "ControlType",
            "Limits",
            "TimestampType",
        ),
        "kbatch.live.consumer": (
            "Consumer",
            "consume",
        ),
        "kbatch.log": (
            "Log",
            "Segment",
            "Tail",
            "find_logs",
        ),
        "kbatch.log.write.indexing": (
            "IndexedLog",
            "index_logs",
        ),
        "kbatch.options": ("CodecName",),
        "kbatch.read.decoding": ("decode",),
        "kbatch.read.stream": (
            "StreamDecoder",
            "decode_stream",
        ),
        "kbatch.records.concatenation": ("concat_tables",),
        "kbatch.records.loss_list": ("Loss",),
        "kbatch.report.writing": (
            "Report",
            "write_report",
        ),
        "kbatch.rewrite.conversion": ("convert",),
        "kbatch.rewrite.recompression": ("recompress",),
        "kbatch.rewrite.rewriter": ("RewriteReport",),
        "kbatch.scans.scans": (
            "Scan",
            "scan_logs",
        ),
        "kbatch.sinks.export_verification": (
            "ExportVerification",
            "verify_export",
        ),
        "kbatch.sinks.follower": ("FollowSummary",),
        "kbatch.sinks.summary": (
            "ExportSummary",
            "PartitionSummary",
        ),
        "kbatch.table": ("RecordTable",),
        "kbatch.transactions": (
            "OpenTransaction",
            "Transactions",
            "control_records",
        ),
        "kbatch.write.batch_writer": ("BatchWriter",),
        "kbatch.write.control_writing": (
            "encode_empty",
            "encode_marker",
        ),
        "kbatch.write.encoding": ("encode",),
        "kbatch.write.original_batches": ("encode_table",),
    },
)
# Public packages. `kbatch.spark` needs PySpark and has to be imported.
_PACKAGES = ("live", "log", "protocol", "values")

__all__ = sorted(["__version__", *_NAMES.names])


def __getattr__(name: str) -> object:
    """Import the module of a public name, or a public package, when it is first used."""
    if name in _PACKAGES:
        return import_module(f"kbatch.{name}")
    return _NAMES.find(name)


def __dir__() -> list[str]:
    """Return the public names, without the modules that the package has imported."""
    return sorted([*__all__, *_PACKAGES, *({"spark"} & set(globals()))])
