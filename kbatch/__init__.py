"""Kafka's record batches to NumPy, Arrow, pandas, Polars and Spark."""

from kbatch.decoding import decode
from kbatch.errors import (
    CodecError,
    CorruptBatchError,
    CrcMismatchError,
    InvalidRecordError,
    KbatchError,
    LimitExceededError,
    LogDirectoryError,
    MissingDependencyError,
    OutOfOrderSequenceError,
    TruncatedBatchError,
    UnsupportedFormatError,
)
from kbatch.format import BATCH_DTYPE, HEADER_DTYPE, RECORD_DTYPE, BatchStatus, Codec, Limits, TimestampType
from kbatch.framing import scan
from kbatch.log import Log, Segment, Tail, find_logs
from kbatch.streaming import StreamDecoder, decode_stream
from kbatch.table import Loss, RecordTable

__version__ = "0.1.0"

__all__ = [
    "BATCH_DTYPE",
    "HEADER_DTYPE",
    "RECORD_DTYPE",
    "BatchStatus",
    "Codec",
    "CodecError",
    "CorruptBatchError",
    "CrcMismatchError",
    "InvalidRecordError",
    "KbatchError",
    "LimitExceededError",
    "Limits",
    "Log",
    "LogDirectoryError",
    "Loss",
    "MissingDependencyError",
    "OutOfOrderSequenceError",
    "RecordTable",
    "Segment",
    "StreamDecoder",
    "Tail",
    "TimestampType",
    "TruncatedBatchError",
    "UnsupportedFormatError",
    "__version__",
    "decode",
    "decode_stream",
    "find_logs",
    "scan",
]
