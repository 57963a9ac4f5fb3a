"""The other files of a log directory: aborted transactions, producers, leader epochs, checkpoints and ids.

Index files are hints, and one that can't be read counts as empty (`kbatch.log.indexes`). The files read here contain
facts that the segments alone do not have, so damage in them is an error.

A path is a local path or a URL; `storage` is needed for a URL with options (`kbatch.log.storage`).
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import re
import uuid
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import CrcMismatchError, LogDirectoryError, UnsupportedFormatError
from kbatch.format import ABORTED_DTYPE, PRODUCER_DTYPE
from kbatch.log.storage import Entry, Storage, locate

__all__ = [
    "CLEANER_CHECKPOINT",
    "LEADER_EPOCH_CHECKPOINT",
    "LEADER_EPOCH_DTYPE",
    "MAX_SIDE_FILE",
    "PARTITION_METADATA",
    "PRODUCER_DTYPE",
    "START_CHECKPOINT",
    "STORED_ABORTED",
    "PartitionMetadata",
    "checkpoint_offsets",
    "read_leader_epochs",
    "read_meta_properties",
    "read_offset_checkpoint",
    "read_partition_metadata",
    "read_producer_snapshot",
    "read_transaction_index",
    "too_large",
]

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
START_CHECKPOINT = "log-start-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"

LEADER_EPOCH_DTYPE = np.dtype([("epoch", "<i4"), ("start_offset", "<i8")], align=True)

STORED_ABORTED = np.dtype([("version", ">i2"), *((name, ">i8") for name in ABORTED_DTYPE.names or ())])
_STORED_PRODUCER = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_first_offset", ">i8"),
    ]
)
_ABORTED_VERSION = 0
_PRODUCER_VERSION = 1
# version i16 @0, CRC-32C u32 @2 of all bytes after it, count i32 @6, entries @10.
_PRODUCER_HEADER = 10
_CRC_END = 6
_CHECKPOINT_VERSION = 0
# Limit on these files, in bytes: far above the files of the largest brokers.
MAX_SIDE_FILE = 256 << 20
_MAX_SHOWN = 60
_SPACES = re.compile(r"\s+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


class PartitionMetadata(NamedTuple):
    """The contents of a ``partition.metadata`` file."""

    version: int
    topic_id: uuid.UUID


def read_transaction_index(path: str | os.PathLike[str], *, storage: Storage | None = None) -> npt.NDArray[np.void]:
    """Read the aborted transactions of a ``.txnindex`` file (TXI-R1, TXI-R2).

    An entry is in the index of the segment that has the transaction's marker; the first offset may be in an earlier
    segment. Kafka's ``TransactionIndex`` defines the format.

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options; see `kbatch.log.storage`.

    Returns
    -------
    ndarray of ABORTED_DTYPE, shape (transactions,)
        ``last_offset`` is the offset of the marker, and ascends. ``last_stable_offset`` is the last stable offset of
        the log when the transaction was completed. An incomplete last entry is ignored.

    Raises
    ------
    UnsupportedFormatError
        If the version of an entry isn't 0.
    LogDirectoryError
        If the file can't be read, or the markers' offsets do not ascend.

    References
    ----------
    Rules such as TXI-R1 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> read_transaction_index("tests/golden/logs/txn-0/00000000000000000000.txnindex")["last_offset"][:3].tolist()
    [30, 50, 88]
    """
    check_types(read_transaction_index, locals())
    path = os.fspath(path)
    data = _read(path, storage)
    stored = np.frombuffer(data, STORED_ABORTED, count=len(data) // STORED_ABORTED.itemsize)
    wrong = np.flatnonzero(stored["version"] != _ABORTED_VERSION)
    last = stored["last_offset"].astype(np.int64)
    descents = np.flatnonzero(last[1:] <= last[:-1]) + 1
    if len(wrong) and not (len(descents) and descents[0] < wrong[0]):
        position = int(wrong[0]) * STORED_ABORTED.itemsize
        raise UnsupportedFormatError(
            f"{path}, byte {position}: unsupported entry version {stored['version'][wrong[0]]}; "
            f"supported is {_ABORTED_VERSION}",
            source=path,
            position=position,
        )
    if len(descents):
        row = int(descents[0])
        position = row * STORED_ABORTED.itemsize
        raise LogDirectoryError(
            f"{path}, byte {position}: marker at offset {last[row]} after one at {last[row - 1]}; the file is damaged; "
            "the markers in the log show which transactions were aborted",
            source=path,
            position=position,
        )
    return _as(stored, ABORTED_DTYPE)


def read_producer_snapshot(path: str | os.PathLike[str], *, storage: Storage | None = None) -> npt.NDArray[np.void]:
    """Read the producers of a ``.snapshot`` file: their state before the offset in the file's name (DSK-R6).

    Kafka's ``ProducerStateManager`` defines the format.

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options; see `kbatch.log.storage`.

    Returns
    -------
    ndarray of PRODUCER_DTYPE, shape (producers,)
        ``last_offset`` and ``last_sequence`` belong to the last batch, and are -1 if there is only a marker. The first
        offset of that batch is ``last_offset - offset_delta``, and its first sequence
        ``(last_sequence - offset_delta) % 2**31``: sequences wrap to 0 after 2**31 - 1. ``timestamp`` (ms) belongs to
        the last batch or marker. ``current_txn_first_offset`` is the first offset of the producer's open transaction,
        ``coordinator_epoch`` the epoch of the last marker; both are -1 without one.

    Raises
    ------
    CrcMismatchError
        If the checksum is wrong.
    UnsupportedFormatError
        If the version isn't 1.
    LogDirectoryError
        If the file can't be read, or its size does not match its number of producers.

    References
    ----------
    Rules such as DSK-R6 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> producers = read_producer_snapshot("tests/golden/logs/txn-0/00000000000000000371.snapshot")
    >>> producers["producer_id"][producers["current_txn_first_offset"] >= 0].tolist()
    [1002, 1004]
    """
    check_types(read_producer_snapshot, locals())
    path = os.fspath(path)
    data = _read(path, storage)
    if len(data) < _PRODUCER_HEADER:
        raise LogDirectoryError(
            f"{path}, byte {len(data)}: ends within the {_PRODUCER_HEADER} bytes of its header",
            source=path,
            position=len(data),
        )
    version = int.from_bytes(data[:2], "big", signed=True)
    if version != _PRODUCER_VERSION:
        raise UnsupportedFormatError(
            f"{path}, byte 0: unsupported producer snapshot version {version}; supported is {_PRODUCER_VERSION}",
            source=path,
            position=0,
        )
    # The package reads the metadata of all its files when it is imported, which takes longer than importing kbatch.log.
    from crc32c import crc32c

    stored, computed = int.from_bytes(data[2:_CRC_END], "big"), crc32c(memoryview(data)[_CRC_END:])
    if stored != computed:
        raise CrcMismatchError(
            f"{path}, byte 2: stored checksum is 0x{stored:08x}, computed 0x{computed:08x}", source=path, position=2
        )
    count = int.from_bytes(data[_CRC_END:_PRODUCER_HEADER], "big", signed=True)
    size = len(data) - _PRODUCER_HEADER
    if size != count * _STORED_PRODUCER.itemsize:
        raise LogDirectoryError(
            f"{path}, byte {_CRC_END}: count is {count}, but {size} bytes follow, with "
            f"{_STORED_PRODUCER.itemsize} per producer",
            source=path,
            position=_CRC_END,
        )
    return _as(np.frombuffer(data, _STORED_PRODUCER, offset=_PRODUCER_HEADER), PRODUCER_DTYPE)


def read_leader_epochs(path: str | os.PathLike[str], *, storage: Storage | None = None) -> npt.NDArray[np.void]:
    r"""Read a ``leader-epoch-checkpoint`` file: the start offset of each leader epoch (DSK-R11).

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options; see `kbatch.log.storage`.

    Returns
    -------
    ndarray of LEADER_EPOCH_DTYPE, shape (epochs,)
        ``epoch`` and ``start_offset``, in the order of the file.

    Raises
    ------
    LogDirectoryError
        If the file can't be read, its version isn't 0, a line is malformed, or the number of entries is not the
        declared one.

    References
    ----------
    Rules such as DSK-R11 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"0\n2\n0 0\n3 120\n")
    ...     file.flush()
    ...     read_leader_epochs(file.name).tolist()
    [(0, 0), (3, 120)]
    """
    check_types(read_leader_epochs, locals())
    path = os.fspath(path)
    epochs = np.array(
        [
            (_integer(path, number, parts[0], 32), _integer(path, number, parts[1], 64))
            for number, parts in _checkpoint(path, 2, "epoch and start offset", storage)
        ],
        LEADER_EPOCH_DTYPE,
    )
    epochs.flags.writeable = False
    return epochs


def read_offset_checkpoint(
    path: str | os.PathLike[str], *, storage: Storage | None = None
) -> dict[tuple[str, int], int]:
    r"""Read a checkpoint file with an offset for each topic-partition (DSK-R11).

    A log directory has the checkpoints ``recovery-point-offset-checkpoint``, ``replication-offset-checkpoint``,
    ``log-start-offset-checkpoint`` and ``cleaner-offset-checkpoint``.

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options; see `kbatch.log.storage`.

    Returns
    -------
    dict
        From (topic, partition) to offset.

    Raises
    ------
    LogDirectoryError
        If the file can't be read, its version isn't 0, a line is malformed, or the number of entries is not the
        declared one.

    References
    ----------
    Rules such as DSK-R11 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"0\n1\norders 2 4711\n")
    ...     file.flush()
    ...     read_offset_checkpoint(file.name)
    {('orders', 2): 4711}
    """
    check_types(read_offset_checkpoint, locals())
    path = os.fspath(path)
    return {
        (parts[0], _integer(path, number, parts[1], 32)): _integer(path, number, parts[2], 64)
        for number, parts in _checkpoint(path, 3, "topic, partition and offset", storage)
    }


def checkpoint_offsets(
    directory: str, name: str, storage: Storage | None = None, entry: Entry | None = None
) -> dict[tuple[str, int], int]:
    """Return the offsets of a checkpoint of a broker's log directory; they are cached until the file changes.

    Parameters
    ----------
    directory : str
    name : str
        Such as `START_CHECKPOINT`.
    storage : Storage, optional
    entry : Entry, optional
        The file's entry in a listing.

    Returns
    -------
    dict
        From (topic, partition) to offset. As in a starting broker, it is empty if the file is missing or malformed.

    Raises
    ------
    LogDirectoryError
        If a remote file can't be read.
    """
    storage = storage or locate(directory)[0]
    path = storage.join(directory, name)
    entry = entry if entry is not None and entry.size is not None else storage.find(path)
    if entry is None:
        return {}
    try:
        return _cached_checkpoint(path, entry, tuple(sorted(storage.options.items())), storage.remote)
    except LogDirectoryError as error:
        # A failed request does not mean that the file is missing or malformed.
        if storage.remote and isinstance(error.__cause__, OSError):
            raise
        return {}


@functools.lru_cache(maxsize=16)
def _cached_checkpoint(
    path: str, _entry: Entry, options: tuple[tuple[str, str], ...], remote: bool
) -> dict[tuple[str, int], int]:
    return read_offset_checkpoint(path, storage=Storage(dict(options), remote=remote))


def read_partition_metadata(path: str | os.PathLike[str], *, storage: Storage | None = None) -> PartitionMetadata:
    r"""Read a ``partition.metadata`` file (DSK-R12).

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options; see `kbatch.log.storage`.

    Returns
    -------
    PartitionMetadata
        ``topic_id`` is a UUID, stored in the file as URL-safe base64 without padding. As in a broker, files of a later
        version are read as version 0.

    Raises
    ------
    LogDirectoryError
        If the file can't be read or is malformed.

    References
    ----------
    Rules such as DSK-R12 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n")
    ...     file.flush()
    ...     read_partition_metadata(file.name).topic_id
    UUID('6b626174-6368-2d74-6573-74732d626b72')
    """
    check_types(read_partition_metadata, locals())
    path = os.fspath(path)
    lines = _lines(path, storage)
    fields = []
    for number, name in enumerate(("version:", "topic_id:"), start=1):
        parts = _SPACES.split(lines[number - 1]) if len(lines) >= number else []
        if len(parts) != 2 or parts[0] != name:
            raise _malformed(path, number, f"'{name} ...'", lines)
        fields.append(parts[1])
    version = _integer(path, 1, fields[0], 32)
    if version < 0:
        raise _malformed(path, 1, "a version of 0 or later", lines)
    try:
        id_bytes = base64.b64decode(fields[1].rstrip("=") + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        id_bytes = b""
    if len(id_bytes) != 16 or not any(id_bytes):
        raise _malformed(path, 2, "the 22 characters of a topic's id", lines)
    return PartitionMetadata(version, uuid.UUID(bytes=id_bytes))


def read_meta_properties(path: str | os.PathLike[str], *, storage: Storage | None = None) -> dict[str, str]:
    r"""Read a log directory's ``meta.properties`` (DSK-R10), or another Java properties file.

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options; see `kbatch.log.storage`.

    Returns
    -------
    dict
        Such as ``version``, ``cluster.id``, ``node.id`` or ``broker.id``, and ``directory.id``; values are text.

    Raises
    ------
    LogDirectoryError
        If the file can't be read, or has an invalid escape.

    References
    ----------
    Rules such as DSK-R10 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"# a comment\nversion=1\nnode.id=3\n")
    ...     file.flush()
    ...     read_meta_properties(file.name)
    {'version': '1', 'node.id': '3'}
    """
    check_types(read_meta_properties, locals())
    path = os.fspath(path)
    properties = {}
    number = 0
    lines = iter(_lines(path, storage))
    for line in lines:
        number += 1
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        first = number
        parts = []
        # Without its last backslash, a part ends with an even number of them. So each part can be examined alone.
        while _continues(line):
            number += 1
            parts.append(line[:-1])
            line = next(lines, "").lstrip(" \t\f")
        match = _PROPERTY.fullmatch("".join([*parts, line]))
        assert match is not None
        properties[_unescaped(path, first, match[1])] = _unescaped(path, first, match[2])
    return properties


# The key ends at the first "=", ":" or blank without a backslash (java.util.Properties.load).
_PROPERTY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _continues(line: str) -> bool:
    """Whether a line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(path: str, number: int, text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise LogDirectoryError(f"{path}, line {number}: '\\u' without four hexadecimal digits", source=path)
        return _ESCAPES.get(match[2], match[2])

    return _ESCAPE.sub(character, text)


def _checkpoint(path: str, columns: int, expected: str, storage: Storage | None) -> list[tuple[int, list[str]]]:
    """Return the entries of a checkpoint file, each with its line number.

    As in Kafka's ``CheckpointFile``, a file that ends before its count has no entries: brokers create it empty.
    """
    lines = _lines(path, storage)
    if lines:
        version = _integer(path, 1, lines[0], 32)
        if version != _CHECKPOINT_VERSION:
            raise LogDirectoryError(
                f"{path}, line 1: unsupported version {version}; supported is {_CHECKPOINT_VERSION}",
                source=path,
                position=0,
            )
    if len(lines) < 2:
        return []
    count = _integer(path, 2, lines[1], 32)
    entries = []
    for number, line in enumerate(lines[2:], start=3):
        parts = _SPACES.split(line)
        if len(parts) != columns or not all(parts):
            raise _malformed(path, number, expected, lines)
        entries.append((number, parts))
    if len(entries) != count:
        raise LogDirectoryError(
            f"{path}, line 2: declares {count} entries, but {len(entries)} follow; the file is damaged or truncated",
            source=path,
        )
    return entries


def _integer(path: str, number: int, text: str, bits: int) -> int:
    if _INTEGER.fullmatch(text) is None or not -(1 << bits - 1) <= int(text) < 1 << bits - 1:
        raise LogDirectoryError(f"{path}, line {number}: {_quoted(text)} is not a {bits}-bit integer", source=path)
    return int(text)


def _malformed(path: str, number: int, expected: str, lines: list[str]) -> LogDirectoryError:
    found = _quoted(lines[number - 1]) if len(lines) >= number else "the end of the file"
    return LogDirectoryError(f"{path}, line {number}: expected {expected}, found {found}", source=path)


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}... ({len(text)} characters)"


def _lines(path: str, storage: Storage | None) -> list[str]:
    # Java's line terminators; Python's splitlines() has more.
    lines = re.split(r"\r\n|\n|\r", _read(path, storage).decode("utf-8", "replace"))
    if not lines[-1]:
        lines.pop()
    return lines


def _read(path: str, storage: Storage | None = None) -> bytes:
    try:
        data, size = (storage or locate(path)[0]).read(path, MAX_SIDE_FILE)
    except OSError as error:
        raise LogDirectoryError(f"{path}: can't be read: {error.strerror}", source=path) from error
    if size > MAX_SIDE_FILE:
        raise too_large(path, size)
    return data


def too_large(path: str, size: int) -> LogDirectoryError:
    """Make the error for a side file beyond `MAX_SIDE_FILE`."""
    return LogDirectoryError(f"{path}: {size} bytes; a file of this kind has at most {MAX_SIDE_FILE}", source=path)


def _as(stored: npt.NDArray[np.void], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Copy the fields of a dtype in its byte order; the result is read-only."""
    rows = np.empty(len(stored), dtype)
    for name in dtype.names or ():
        rows[name] = stored[name]
    rows.flags.writeable = False
    return rows
