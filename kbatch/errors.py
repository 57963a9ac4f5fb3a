"""The exceptions, and the one function that turns a kernel's fault into an exception.

Every exception about input has the location, if known: ``source`` (a file's path), ``position`` (the byte of the source
at which the batch starts), ``base_offset`` (of that batch) and ``record`` (its number in the batch). Unprintable
characters in a message, such as those in a file's name, are escaped.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.error_codes import ErrorCode
from kbatch.escaping import printable
from kbatch.format import BatchStatus
from kbatch.public_names import public_in

__all__ = [
    "CodecError",
    "ConversionLossError",
    "CorruptBatchError",
    "CrcMismatchError",
    "ErrorCode",
    "Fault",
    "FencedError",
    "Finding",
    "InvalidRecordError",
    "KbatchError",
    "LimitExceededError",
    "LogDirectoryError",
    "MissingColumnError",
    "MissingDependencyError",
    "OutOfOrderSequenceError",
    "ProducerStateError",
    "ProtocolError",
    "RefusedError",
    "RegistryError",
    "TransactionStateError",
    "TruncatedBatchError",
    "UnsupportedFormatError",
    "add_remedy",
    "cannot_write",
    "error_at",
    "exists_already",
    "fault_status",
    "finding_text",
    "finding_to_error",
    "is_damage",
    "offset_of",
]


# The note of an error about damage under ``on_error="raise"``.
_HOW_TO_SKIP = (
    "on_error='skip' reads all other batches and lists this damage in losses; kbatch.log.recompress_log(..., "
    "on_error='skip') copies them to a new log (docs/how-to/salvage.md)"
)


@public_in("kbatch")
class KbatchError(Exception):
    """Base of all errors that kbatch raises about its input.

    The message is one line, with unprintable characters escaped. The attributes are not escaped.

    Attributes
    ----------
    source : str or None
        Path of the file that the bytes came from.
    position : int or None
        Byte position in the source at which the batch starts.
    base_offset : int or None
        Base offset of the batch, from its header. For a compressed message set, the last offset, since its header has
        only that one.
    record : int or None
        Number of the record in its batch, from 0.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str | None = None,
        position: int | None = None,
        base_offset: int | None = None,
        record: int | None = None,
    ) -> None:
        super().__init__(printable(message))
        self.source = source
        self.position = position
        self.base_offset = base_offset
        self.record = record

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments survive pickling: errors cross process borders in Spark and multiprocessing.
        return (_unpickled_error, (type(self), self.args, self.__dict__))


def _unpickled_error(cls: type[KbatchError], args: tuple[str], state: dict[str, object]) -> KbatchError:
    error = cls(*args)
    error.__dict__.update(state)
    return error


@public_in("kbatch")
class CorruptBatchError(KbatchError):
    """No batch can begin with these bytes, so that the headers after them cannot be followed."""


@public_in("kbatch")
class CrcMismatchError(KbatchError):
    """The stored checksum differs from the checksum of the bytes."""


@public_in("kbatch")
class InvalidRecordError(KbatchError):
    """The records of a batch contradict its header or their own lengths."""


@public_in("kbatch")
class CodecError(KbatchError):
    """The compressed payload is not a valid stream of its codec."""


@public_in("kbatch")
class UnsupportedFormatError(KbatchError):
    """A codec, a magic or a combination that kbatch does not read."""


@public_in("kbatch")
class LimitExceededError(KbatchError):
    """A batch exceeds a limit of `kbatch.Limits`."""


@public_in("kbatch")
class TruncatedBatchError(KbatchError):
    """The input ends within a batch where complete batches are required."""


@public_in("kbatch")
class ProtocolError(KbatchError, ValueError):
    """The bytes are not a message of Kafka's protocol, or not one of this API and version.

    Attributes
    ----------
    field : str or None
        Path of the field that could not be read, such as ``responses[0].partitions[3].records``.
    """

    def __init__(self, message: str, *, position: int | None = None, field: str | None = None, **where: Any) -> None:
        at = ([] if position is None else [f"byte {position}"]) + ([] if field is None else [field])
        super().__init__(": ".join([", ".join(at), message] if at else [message]), position=position, **where)
        self.field = field


@public_in("kbatch")
class RefusedError(KbatchError):
    """A broker would not append this batch.

    Attributes
    ----------
    code : ErrorCode
        The error code of the broker's response.
    records : ndarray of int64
        Numbers of the invalid records in the batch; empty if the batch as a whole is invalid.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode = ErrorCode.INVALID_RECORD,
        records: npt.NDArray[np.int64] | None = None,
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.code = code
        self.records = np.zeros(0, np.int64) if records is None else records


class ProducerStateError(RefusedError, InvalidRecordError):
    """The producer fields of a batch contradict each other, so that a broker cannot encode it again.

    Kafka has no error code for it: ``MemoryRecordsBuilder.validateProducerState`` throws an IllegalArgumentException,
    which a broker answers with UNKNOWN_SERVER_ERROR.
    """


@public_in("kbatch")
class OutOfOrderSequenceError(RefusedError):
    """A producer's sequence numbers have a gap or decrease."""


@public_in("kbatch")
class FencedError(RefusedError):
    """A later epoch of the producer, or of its transaction coordinator, has been seen."""


@public_in("kbatch")
class TransactionStateError(RefusedError):
    """A producer writes outside of its open transaction."""


@public_in("kbatch")
class LogDirectoryError(KbatchError):
    """A path is not a log directory or log file, or has a name that Kafka does not use."""


def exists_already(path: str, what: str = "exists already", remedy: str = "or remove it") -> LogDirectoryError:
    """Make the error for an output that exists; `what` and `remedy` replace parts of the message."""
    return LogDirectoryError(f"{path}: {what}; choose another path, {remedy}", source=path)


def cannot_write(path: str, error: OSError) -> LogDirectoryError:
    """Make the error for an output whose directory or file the system does not create."""
    return LogDirectoryError(f"{path}: can't be written: {error.strerror or error}", source=path)


@public_in("kbatch")
class ConversionLossError(KbatchError):
    """The target magic cannot represent the content of a batch; the message names the option that allows the loss."""


@public_in("kbatch")
class RegistryError(KbatchError):
    """A schema registry cannot be reached, refuses the client, or lacks the schema of a result."""


@public_in("kbatch")
class MissingColumnError(KbatchError, ValueError):
    """A table was decoded without the requested column; the message states how to decode it."""


@public_in("kbatch")
class MissingDependencyError(KbatchError, ImportError):
    """An optional package is missing; the message names the extra that installs it."""


class Fault(enum.IntEnum):
    """The faults that kernels report; the twin of ``Fault`` in ``kernels/wire.pxd``."""

    NONE = 0
    LENGTH_TOO_SMALL = 1
    BAD_MAGIC = 2
    LEGACY_CODEC = 3
    BATCH_TOO_SHORT = 4
    BAD_CRC = 5
    COUNT_NEGATIVE = 6
    COUNT_TOO_LARGE = 7
    VARINT_TOO_LONG = 8
    VARINT_CUT = 9
    RECORD_LENGTH = 10
    RECORD_CUT = 11
    KEY_LENGTH = 12
    VALUE_LENGTH = 13
    HEADER_COUNT = 14
    HEADER_KEY_LENGTH = 15
    HEADER_VALUE_LENGTH = 16
    RECORD_SIZE = 17
    TRAILING_BYTES = 18
    CODEC = 19
    UNKNOWN_CODEC = 20
    OVER_LIMIT = 21
    WRAPPER_VALUE = 22
    WRAPPER_EMPTY = 23
    WRAPPER_OFFSET = 24
    INNER_LENGTH = 25
    INNER_CUT = 26
    INNER_MAGIC = 27
    INNER_COMPRESSED = 28
    BATCH_TOO_LARGE = 29
    OVER_TABLE = 30
    LENGTH_TOO_LONG = 31


class Finding(NamedTuple):
    """A fault and its location.

    ``at`` is the byte within the payload, after decompression, for faults of records, and within the batch for the
    others; -1 if no byte can be named. The message of the fault explains ``expected`` and ``found``.
    """

    fault: Fault
    at: int = -1
    record: int = -1
    expected: int = 0
    found: int = 0
    detail: str = ""


_TEXTS: dict[Fault, tuple[type[KbatchError], BatchStatus, str]] = {
    Fault.LENGTH_TOO_SMALL: (
        CorruptBatchError,
        BatchStatus.INVALID,
        "length field is {found}, every format needs at least {expected}; nothing after it can be framed",
    ),
    Fault.BAD_MAGIC: (
        CorruptBatchError,
        BatchStatus.INVALID,
        "magic is {found}, expected 0, 1 or 2; nothing after it can be framed",
    ),
    Fault.LEGACY_CODEC: (
        UnsupportedFormatError,
        BatchStatus.UNSUPPORTED,
        "codec id is {found}, messages of magic {expected} allow 0 to 3 (none, gzip, snappy, lz4)",
    ),
    Fault.BATCH_TOO_SHORT: (
        CorruptBatchError,
        BatchStatus.INVALID,
        "length field is {found}, a batch of this magic needs at least {expected}",
    ),
    Fault.BAD_CRC: (
        CrcMismatchError,
        BatchStatus.BAD_CRC,
        "stored checksum is 0x{expected:08x}, the bytes give 0x{found:08x}{detail}",
    ),
    Fault.COUNT_NEGATIVE: (InvalidRecordError, BatchStatus.INVALID, "record count is {found}"),
    Fault.COUNT_TOO_LARGE: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "record count is {found}, the payload can hold at most {expected}",
    ),
    Fault.VARINT_TOO_LONG: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "variable-length integer is longer than {expected} bytes",
    ),
    Fault.VARINT_CUT: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "variable-length integer extends beyond the end of its record or payload",
    ),
    Fault.RECORD_LENGTH: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "record length is {found}, {expected} bytes remain in the payload",
    ),
    Fault.RECORD_CUT: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "payload ends before the record that the header counts ({expected} records, {found} present)",
    ),
    Fault.KEY_LENGTH: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "key length is {found}, {expected} bytes remain in the record",
    ),
    Fault.VALUE_LENGTH: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "value length is {found}, {expected} bytes remain in the record",
    ),
    Fault.HEADER_COUNT: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "header count is {found}, the rest of the record can hold at most {expected}",
    ),
    Fault.HEADER_KEY_LENGTH: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "header key length is {found}, {expected} bytes remain in the record",
    ),
    Fault.HEADER_VALUE_LENGTH: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "header value length is {found}, {expected} bytes remain in the record",
    ),
    Fault.RECORD_SIZE: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "record length is {expected}, its fields take {found} bytes",
    ),
    Fault.TRAILING_BYTES: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "{found} bytes remain after the last of {expected} records",
    ),
    Fault.CODEC: (CodecError, BatchStatus.BAD_CODEC, "{detail}"),
    Fault.UNKNOWN_CODEC: (
        UnsupportedFormatError,
        BatchStatus.UNSUPPORTED,
        "codec id is {found}, expected 0 to 4 (none, gzip, snappy, lz4, zstd)",
    ),
    Fault.OVER_LIMIT: (
        LimitExceededError,
        BatchStatus.OVER_LIMIT,
        "payload decompresses to more than {expected} bytes; raise Limits(max_decompressed_bytes=...) to decode it",
    ),
    Fault.WRAPPER_VALUE: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "compressed message has no value, or its key or value extends beyond it",
    ),
    Fault.WRAPPER_EMPTY: (InvalidRecordError, BatchStatus.INVALID, "compressed message holds no messages"),
    Fault.WRAPPER_OFFSET: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "offset of the compressed message is {expected}, below the offset {found} of the last message in it",
    ),
    Fault.INNER_LENGTH: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "length field of an inner message is {found}, its magic needs at least {expected}",
    ),
    Fault.INNER_CUT: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "inner message is incomplete: it takes {expected} bytes, {found} remain",
    ),
    Fault.INNER_MAGIC: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "inner message has magic {found}, expected 0 or 1",
    ),
    Fault.INNER_COMPRESSED: (
        InvalidRecordError,
        BatchStatus.INVALID,
        "inner message is compressed itself (codec id {found})",
    ),
    Fault.BATCH_TOO_LARGE: (
        LimitExceededError,
        BatchStatus.OVER_LIMIT,
        "header declares a batch of {found} bytes, above the limit of {expected}; raise {detail} if such batches are "
        "valid",
    ),
    Fault.OVER_TABLE: (
        LimitExceededError,
        BatchStatus.OVER_LIMIT,
        "with this batch {detail} to decode it",
    ),
    Fault.LENGTH_TOO_LONG: (
        CorruptBatchError,
        BatchStatus.INVALID,
        "length field reaches beyond complete batches",
    ),
}


def fault_status(fault: Fault) -> BatchStatus:
    """Return the ``status`` of a batch with this fault."""
    return _TEXTS[fault][1]


def finding_text(finding: Finding) -> str:
    """Return the message for a fault, without its location."""
    return _TEXTS[finding.fault][2].format(expected=finding.expected, found=finding.found, detail=finding.detail)


def finding_to_error(
    finding: Finding, *, source: str | None, position: int, base_offset: int | None = None
) -> KbatchError:
    """Return the exception for a fault in the batch at `position` of `source`."""
    where = [source] if source else []
    where.append(f"byte {position}")
    if base_offset is not None:
        where.append(f"base offset {base_offset}")
    if finding.record >= 0:
        where.append(f"record {finding.record}")
    if finding.at >= 0:
        where.append(f"payload byte {finding.at}")
    return _TEXTS[finding.fault][0](
        f"{', '.join(where)}: {finding_text(finding)}",
        source=source,
        position=position,
        base_offset=base_offset,
        record=finding.record if finding.record >= 0 else None,
    )


def is_damage(error: BaseException) -> bool:
    """Whether an error is about damaged bytes, which a read with ``on_error="skip"`` passes over."""
    kinds = (CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, TruncatedBatchError)
    return isinstance(error, kinds) and not isinstance(error, RefusedError)


def add_remedy(error: KbatchError) -> KbatchError:
    """Add the note to an error about damage that tells how to read the rest; a traceback shows it below the message."""
    if is_damage(error):
        error.add_note(_HOW_TO_SKIP)
    return error


def offset_of(row: np.void) -> int:
    """Return the base offset of a batch, or its last offset if the header does not contain the first (LEG-R23)."""
    return int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"])


def error_at(kind: type[KbatchError], row: np.void, source: str | None, text: str, **details: Any) -> KbatchError:
    """Make an exception about a batch; `details` are further arguments of its class."""
    position, base_offset = int(row["position"]), offset_of(row)
    where = f"{source}, " if source else ""
    message = f"{where}byte {position}, base offset {base_offset}: {text}"
    return kind(message, source=source, position=position, base_offset=base_offset, **details)
