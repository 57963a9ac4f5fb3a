"""Checkpoints: the leader epochs of a log, and the offsets of all logs of a directory."""

from __future__ import annotations

import functools
import os

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import LogDirectoryError
from kbatch.log.files.contents import SPACES, integer, malformed, text_lines
from kbatch.log.store.storage import Entry, Storage, locate
from kbatch.public_names import public_in

__all__ = [
    "CLEANER_CHECKPOINT",
    "LEADER_EPOCH_CHECKPOINT",
    "LEADER_EPOCH_DTYPE",
    "START_CHECKPOINT",
    "checkpoint_offsets",
    "read_leader_epochs",
    "read_offset_checkpoint",
]

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
START_CHECKPOINT = "log-start-offset-checkpoint"
LEADER_EPOCH_DTYPE = np.dtype([("epoch", "<i4"), ("start_offset", "<i8")], align=True)
_CHECKPOINT_VERSION = 0


@public_in("kbatch.log")
def read_leader_epochs(path: str | os.PathLike[str], *, storage: Storage | None = None) -> npt.NDArray[np.void]:
    r"""Read a ``leader-epoch-checkpoint`` file: the start offset of each leader epoch (DSK-R11).

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options, such as that of a segment (`kbatch.Segment.storage`).

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
            (integer(path, number, parts[0], 32), integer(path, number, parts[1], 64))
            for number, parts in _checkpoint(path, 2, "epoch and start offset", storage)
        ],
        LEADER_EPOCH_DTYPE,
    )
    epochs.flags.writeable = False
    return epochs


@public_in("kbatch.log")
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
        The filesystem of a URL that needs options, such as that of a segment (`kbatch.Segment.storage`).

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
        (parts[0], integer(path, number, parts[1], 32)): integer(path, number, parts[2], 64)
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


def _checkpoint(path: str, columns: int, expected: str, storage: Storage | None) -> list[tuple[int, list[str]]]:
    """Return the entries of a checkpoint file, each with its line number.

    As in Kafka's ``CheckpointFile``, a file that ends before its count has no entries: brokers create it empty.
    """
    lines = text_lines(path, storage)
    if lines:
        version = integer(path, 1, lines[0], 32)
        if version != _CHECKPOINT_VERSION:
            raise LogDirectoryError(
                f"{path}, line 1: unsupported version {version}; supported is {_CHECKPOINT_VERSION}",
                source=path,
                position=0,
            )
    if len(lines) < 2:
        return []
    count = integer(path, 2, lines[1], 32)
    entries = []
    for number, line in enumerate(lines[2:], start=3):
        parts = SPACES.split(line)
        if len(parts) != columns or not all(parts):
            raise malformed(path, number, expected, lines)
        entries.append((number, parts))
    if len(entries) != count:
        raise LogDirectoryError(
            f"{path}, line 2: declares {count} entries, but {len(entries)} follow; the file is damaged or truncated",
            source=path,
        )
    return entries
