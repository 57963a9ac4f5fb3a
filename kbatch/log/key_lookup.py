"""Reads by key with the key index of a log: which byte ranges of its segments may hold records with a key."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kbatch.errors import KbatchError
from kbatch.escaping import printable
from kbatch.log.files.indexes import OffsetEntry
from kbatch.log.files.key_index import KeyIndexFile, KeyIndexHeader, base_offset_of_index
from kbatch.log.files.properties import topic_id_of
from kbatch.log.row_filter import RowFilter
from kbatch.log.segment import Segment
from kbatch.log.store.names import name_of_log
from kbatch.log.store.storage import identity
from kbatch.read.decode_options import DecodeOptions

__all__ = [
    "IndexLike",
    "KeyIndex",
    "default_index_directory",
    "index_directory",
    "index_of_log",
    "is_of_segment",
    "key_index_name",
]

# Where the key index is: a directory; by default that of `default_index_directory`; False for none.
IndexLike: TypeAlias = "str | os.PathLike[str] | bool | None"

# The files that are opened for a segment. Copies of a log with other bytes have files of their own.
_MAX_COPIES = 8


def default_index_directory() -> str | None:
    """Return the directory of key indexes in the user's cache directory, by the XDG rule; None without a home."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        cache = os.path.join(home, ".cache")
    return os.path.join(cache, "kbatch", "key-index")


def index_directory(index: IndexLike) -> str | None:
    """Return the directory that the argument ``index`` of a read means; None for no index."""
    if index is None or index is True:
        return default_index_directory()
    if index is False:
        return None
    if not isinstance(index, str | os.PathLike) or not isinstance(path := os.fspath(index), str):
        raise TypeError(f"index must be a path, a bool or None, got {type(index).__name__}")
    if not path:
        raise ValueError("index is an empty path")
    return os.path.abspath(path)


def key_index_name(segments: Sequence[Segment]) -> str:
    """Return the name of the directory of a log's index: the topic id and the partition, or else from the path."""
    first = segments[0]
    path = first.storage.absolute(first.path)
    directory = os.path.dirname(path)
    names = [os.path.basename(segment.path) for segment in segments]
    with contextlib.suppress(KbatchError, OSError):
        partition = name_of_log(directory, names).partition
        topic_id = topic_id_of(first.storage, directory)
        if topic_id is not None:
            # Not in the form of a topic-partition, for which readers of a log directory would take it.
            return f"{topic_id}.{partition}"
    return hashlib.sha256(os.fsencode(identity(directory))).hexdigest()[:32]


def is_of_segment(header: KeyIndexHeader, segment: Segment) -> bool:
    """Whether an index was made from a segment with this size, base offset, and last batch."""
    if (header.size, header.base_offset) != (segment.size, segment.base_offset):
        return False
    rows = next(segment.scan(header.last_position), None)
    if rows is None:
        return False
    row = rows[0]
    end = int(row["position"] + row["size"])
    return (end, int(row["crc"]), int(row["last_offset"])) == (header.size, header.crc, header.last_offset)


def index_of_log(directory: str | None, segments: Sequence[Segment]) -> KeyIndex | None:
    """Return the index of a log in a directory of indexes; None without one."""
    if directory is None or not os.path.isdir(directory):
        return None
    path = os.path.join(directory, key_index_name(segments))
    names: dict[int, list[str]] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(path)):
            if (base_offset := base_offset_of_index(name)) is not None:
                names.setdefault(base_offset, []).append(name)
    return KeyIndex(path, names) if names else None


class _Found(NamedTuple):
    """What the index of a segment knows of a filter: its blocks, whether each is needed, and the last batch."""

    blocks: npt.NDArray[np.void]
    needed: npt.NDArray[np.bool_]
    last_position: int


class KeyIndex:
    """The index files of a log.

    A file that does not belong to the segment, or is damaged, is ignored: the segment is then read as without it.

    Parameters
    ----------
    directory : str
    names : mapping of int to sequence of str
        The names of the files by the base offset of the segment.
    """

    def __init__(self, directory: str, names: Mapping[int, Sequence[str]]) -> None:
        self._directory = directory
        self._names = names
        # By segment and filter; None if there is no file of it.
        self._known: dict[tuple[str, RowFilter], _Found | None] = {}

    @staticmethod
    def serves(options: DecodeOptions, rows: RowFilter) -> bool:
        """Whether a read can use an index.

        It has a key. It verifies checksums, since otherwise it returns the records of damaged batches too, whose keys
        may have changed. It does not stop at damage, which may be anywhere.
        """
        return bool(rows.keys) and options.crc == "verify" and options.on_error != "stop"

    @property
    def used(self) -> int:
        """The number of segments whose file was used in `ranges`."""
        return len({path for (path, _), found in self._known.items() if found is not None})

    def ranges(
        self, segment: Segment, start: int, end: int, rows: RowFilter, *, with_ends: bool = False
    ) -> list[tuple[int, int]]:
        """Return the parts of a byte range of a segment that may hold the records of a filter.

        Parameters
        ----------
        segment : Segment
        start, end : int
            A batch begins at `start`, and at `end` unless that is the segment's size.
        rows : RowFilter
        with_ends : bool
            Whether the parts include the first and the last batch of the range.

        Returns
        -------
        list of (int, int)
            The last batch of the segment is always included: the offset after it shows whether offsets are missing.
            Without a usable file, the whole range.
        """
        whole = [(start, end)]
        if segment.base_offset not in self._names or start >= end:
            return whole
        known = (segment.path, rows)
        if known not in self._known:
            self._known[known] = self._lookup(segment, rows)
        found = self._known[known]
        if found is None:
            return whole
        needed = found.needed
        if with_ends:
            needed = needed.copy()
            at = np.searchsorted(found.blocks["position"], [start, end - 1], "right") - 1
            needed[at if end < segment.size else at[:1]] = True
        edges = np.flatnonzero(np.diff(needed, prepend=False, append=False))
        if not _begin_blocks(segment, found.blocks[edges[edges < len(needed)]]):
            self._known[known] = None
            _log_unused(self._directory, segment.path, "no batch begins where a block does")
            return whole
        positions = np.append(found.blocks["position"], segment.size)[edges]
        ranges = [(int(begin), int(stop)) for begin, stop in positions.reshape(-1, 2)]
        if not ranges or ranges[-1][1] < segment.size:
            ranges.append((found.last_position, segment.size))
        cut = [(max(begin, start), min(stop, end)) for begin, stop in ranges]
        return [(begin, stop) for begin, stop in cut if begin < stop]

    def _lookup(self, segment: Segment, rows: RowFilter) -> _Found | None:
        for name in self._names[segment.base_offset or 0][:_MAX_COPIES]:
            path = os.path.join(self._directory, name)
            try:
                with KeyIndexFile(path) as file:
                    if is_of_segment(file.header, segment):
                        return _found_in(file, rows)
            except (KbatchError, OSError, ValueError) as error:
                _log_unused(path, segment.path, error)
        return None


def _log_unused(path: str, segment: str, reason: object) -> None:
    logger = logging.getLogger(__name__)
    logger.debug("the key index %s of %s is not used: %s", printable(path), printable(segment), reason)


def _found_in(file: KeyIndexFile, rows: RowFilter) -> _Found:
    """Return what a file knows of a filter.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    blocks, numbers = file.blocks(), file.numbers(rows.keys)
    if len(numbers) and numbers[-1] >= len(blocks):
        raise ValueError(f"it has block {numbers[-1]}, but only {len(blocks)} blocks")
    needed = np.zeros(len(blocks), np.bool_)
    needed[numbers] = True
    if rows.start_timestamp is not None:
        needed &= blocks["max_timestamp"] >= rows.start_timestamp
    if rows.stop_timestamp is not None:
        needed &= blocks["min_timestamp"] < rows.stop_timestamp
    return _Found(blocks, needed, file.header.last_position)


def _begin_blocks(segment: Segment, blocks: npt.NDArray[np.void]) -> bool:
    """Whether a good batch begins at the position of each block, with an offset that is not after the block."""
    # The header of a compressed message set has only its last offset.
    offsets, positions = blocks["last_offset"].tolist(), blocks["position"].tolist()
    return segment._begin_batches(map(OffsetEntry, offsets, positions))
