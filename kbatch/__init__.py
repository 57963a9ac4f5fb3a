"""Kafka's record batches to NumPy, Arrow, pandas, Polars and Spark.

Docstrings cite rules of Kafka's format by ids such as FRM-R3; ``docs/format-rules.md`` lists them with their meaning.
"""

from kbatch.batches.framing import scan
from kbatch.broker.appending import accept_batch
from kbatch.broker.offsets import assign_offsets
from kbatch.broker.producers import SequenceChecker
from kbatch.broker.topic_config import TopicConfig
from kbatch.broker.validation import validate_batch
from kbatch.errors import (
    CodecError,
    ConversionLossError,
    CorruptBatchError,
    CrcMismatchError,
    ErrorCode,
    FencedError,
    InvalidRecordError,
    KbatchError,
    LimitExceededError,
    LogDirectoryError,
    MissingColumnError,
    MissingDependencyError,
    OutOfOrderSequenceError,
    ProtocolError,
    RefusedError,
    TransactionStateError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from kbatch.format import (
    ABORTED_DTYPE,
    BATCH_DTYPE,
    CONTROL_DTYPE,
    HEADER_DTYPE,
    PRODUCER_DTYPE,
    RECORD_DTYPE,
    BatchStatus,
    Codec,
    ControlType,
    Limits,
    TimestampType,
)
from kbatch.log import Log, Segment, Tail, find_logs
from kbatch.read.decoding import decode
from kbatch.read.stream import StreamDecoder, decode_stream
from kbatch.records.concatenation import concat_tables
from kbatch.records.data import Loss
from kbatch.rewrite.conversion import convert
from kbatch.rewrite.recompression import recompress
from kbatch.rewrite.rewriter import RewriteReport
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, Transactions, control_records
from kbatch.write.batch_writer import BatchWriter
from kbatch.write.control import encode_empty, encode_marker
from kbatch.write.encoding import encode
from kbatch.write.tables import encode_table

__version__ = "0.1.0"

__all__ = [
    "ABORTED_DTYPE",
    "BATCH_DTYPE",
    "CONTROL_DTYPE",
    "HEADER_DTYPE",
    "PRODUCER_DTYPE",
    "RECORD_DTYPE",
    "BatchStatus",
    "BatchWriter",
    "Codec",
    "CodecError",
    "ControlType",
    "ConversionLossError",
    "CorruptBatchError",
    "CrcMismatchError",
    "ErrorCode",
    "FencedError",
    "InvalidRecordError",
    "KbatchError",
    "LimitExceededError",
    "Limits",
    "Log",
    "LogDirectoryError",
    "Loss",
    "MissingColumnError",
    "MissingDependencyError",
    "OpenTransaction",
    "OutOfOrderSequenceError",
    "ProtocolError",
    "RecordTable",
    "RefusedError",
    "RewriteReport",
    "Segment",
    "SequenceChecker",
    "StreamDecoder",
    "Tail",
    "TimestampType",
    "TopicConfig",
    "TransactionStateError",
    "Transactions",
    "TruncatedBatchError",
    "UnsupportedFormatError",
    "__version__",
    "accept_batch",
    "assign_offsets",
    "concat_tables",
    "control_records",
    "convert",
    "decode",
    "decode_stream",
    "encode",
    "encode_empty",
    "encode_marker",
    "encode_table",
    "find_logs",
    "recompress",
    "scan",
    "validate_batch",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules that the package imports."""
    packages = ("log", "protocol", "spark", "values")
    return sorted([*__all__, *(name for name in packages if name in globals())])
