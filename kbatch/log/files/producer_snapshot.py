"""The state of producers: the ``.snapshot`` file of a segment."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import CrcMismatchError, LogDirectoryError, UnsupportedFormatError
from kbatch.format import PRODUCER_DTYPE
from kbatch.log.files.contents import read_side_file, rows_as
from kbatch.log.store.storage import Storage
from kbatch.public_names import public_in

__all__ = ["read_producer_snapshot"]

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
_PRODUCER_VERSION = 1
# version i16 @0, CRC-32C u32 @2 of all bytes after it, count i32 @6, entries @10.
_PRODUCER_HEADER = 10
_CRC_END = 6


@public_in("kbatch.log")
def read_producer_snapshot(path: str | os.PathLike[str], *, storage: Storage | None = None) -> npt.NDArray[np.void]:
    """Read the producers of a ``.snapshot`` file: their state before the offset in the file's name (DSK-R6).

    Kafka's ``ProducerStateManager`` defines the format.

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options, such as that of a segment (`kbatch.Segment.storage`).

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
    data = read_side_file(path, storage)
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
    return rows_as(np.frombuffer(data, _STORED_PRODUCER, offset=_PRODUCER_HEADER), PRODUCER_DTYPE)
