"""Aborted transactions: the ``.txnindex`` file of a segment."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import LogDirectoryError, UnsupportedFormatError
from kbatch.format import ABORTED_DTYPE
from kbatch.log.files.contents import read_side_file, rows_as
from kbatch.log.store.storage import Storage
from kbatch.public_names import public_in

__all__ = ["STORED_ABORTED", "read_transaction_index"]

STORED_ABORTED = np.dtype([("version", ">i2"), *((name, ">i8") for name in ABORTED_DTYPE.names or ())])
_ABORTED_VERSION = 0


@public_in("kbatch.log")
def read_transaction_index(path: str | os.PathLike[str], *, storage: Storage | None = None) -> npt.NDArray[np.void]:
    """Read the aborted transactions of a ``.txnindex`` file (TXI-R1, TXI-R2).

    An entry is in the index of the segment that has the transaction's marker; the first offset may be in an earlier
    segment. Kafka's ``TransactionIndex`` defines the format.

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options, such as that of a segment (`kbatch.Segment.storage`).

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
    data = read_side_file(path, storage)
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
    return rows_as(stored, ABORTED_DTYPE)
