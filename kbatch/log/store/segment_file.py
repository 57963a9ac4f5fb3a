"""An open segment file: bounded windows of its bytes, its batch headers, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array, entry_size, foreign_reason, scan_part
from kbatch.errors import Finding, LogDirectoryError
from kbatch.escaping import counted
from kbatch.format import BATCH_HEADER_SIZE, LOG_OVERHEAD
from kbatch.log.store.chunked_file import ChunkedFile, ChunkLayout
from kbatch.log.store.local_files import LocalFile
from kbatch.log.store.storage import RemoteFile, Storage
from kbatch.public_names import public_in

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SegmentFile", "Tail", "unreadable"]

# Batches per step of a walk over the headers of a local file, and bytes per step for a remote file. A walk may end
# soon, so steps start small and double up to the limit.
FIRST_WALK_BATCHES = 16
WALK_BATCHES = 4 << 10
FIRST_WALK_WINDOW = 64 << 10
WALK_WINDOW = 4 << 20
# Bytes that are compared with zeros at a time at the end of a segment.
ZERO_BLOCK = 1 << 16


@public_in("kbatch")
class Tail(NamedTuple):
    """The bytes after the last complete batch that the header chain leads to.

    Attributes
    ----------
    kind : {"none", "partial", "zeros", "damaged"}
        "none": there are no such bytes. "partial": the beginning of a batch that is being written or was cut (FRM-R3).
        "zeros": only zeros, at least twelve, as in a preallocated file (FRM-R7). "damaged": no batch can begin here.
    position : int
        First byte of the tail in the segment's file.
    size : int
        Number of bytes.
    finding : Finding or None
        The fault, if kind is "damaged".

    References
    ----------
    Rules such as FRM-R3 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.Log("tests/golden/logs/prealloc-0").incomplete_tail
    Tail(kind='zeros', position=397, size=65139, finding=None)
    """

    kind: Literal["none", "partial", "zeros", "damaged"]
    position: int
    size: int
    finding: Finding | None = None


class SegmentFile:
    """An open segment file that gives windows of its bytes, for a ``with`` block.

    Windows are copies and remain valid after the file is closed.
    """

    def __init__(self, path: str, size: int, live: bool, storage: Storage, layout: ChunkLayout | None = None) -> None:
        self.path = path
        self.size = size
        self.live = live
        self._zeros: tuple[int, int] | None = None
        self._file: LocalFile | RemoteFile
        try:
            if layout is None or not layout.is_compressed:
                self._file = storage.open(path, size if layout is None else None)
                stored = self._file.size
            else:
                self._file = ChunkedFile(path, storage, layout)
                stored = self._file.stored_size
        except OSError as error:
            raise unreadable(path, error) from error
        if layout is not None and stored != layout.stored_size:
            self._file.close()
            raise LogDirectoryError(
                f"{path}: has {counted(stored, 'byte')}, but {layout.stored_size:,} according to its .rsm-manifest: "
                "the object was cut, or belongs to another upload",
                source=path,
            )
        if self._file.size < size:
            self._file.close()
            raise _shrunk(path)

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def window(self, start: int, stop: int, capacity: int = 0) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` up to `stop`, read-only; fewer at the end of the file.

        `capacity` is the memory of the window in bytes, if that is more; see `LocalFile.window`.

        Raises
        ------
        LogDirectoryError
            If the file can't be read, or was truncated after the log was opened.
        """
        stop = min(stop, self.size)
        if stop <= start:
            return byte_array(b"")
        try:
            window = self._file.window(start, stop, capacity)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(window) < stop - start:
            raise _shrunk(self.path)
        return window

    def entry_size(self, position: int) -> int | None:
        """Return the size of the entry at `position` by its length field, or None if the file ends before it."""
        if self.size - position < LOG_OVERHEAD:
            return None
        return entry_size(self.window(position, position + LOG_OVERHEAD), 0)

    def walk(self, position: int, stop: int | None = None) -> Iterator[npt.NDArray[np.void]]:
        """Follow the batch headers from `position` on, and yield their rows in arrays of bounded size.

        The walk ends at `stop` or where framing ends; `tail_at` the end of the last batch gives the reason.

        Raises
        ------
        LogDirectoryError
            If the file can't be read, or was truncated after the log was opened.
        """
        end = self.size if stop is None else min(stop, self.size)
        if isinstance(self._file, RemoteFile):
            yield from self._walk_windows(position, end)
            return
        count = FIRST_WALK_BATCHES
        while position < end:
            try:
                scan = self._file.headers(position, end, count)
            except OSError as error:
                raise unreadable(self.path, error) from error
            if self._file.is_shorter_than(self.size):
                raise _shrunk(self.path)
            if len(scan.batches):
                yield scan.batches
            if len(scan.batches) < count:
                return
            position += scan.consumed
            count = min(2 * count, WALK_BATCHES)

    def _walk_windows(self, position: int, end: int) -> Iterator[npt.NDArray[np.void]]:
        """Walk over a remote file: requests for single headers would take longer than the bytes between them."""
        step = size = FIRST_WALK_WINDOW
        while position < end:
            window = self.window(position, min(position + size, end))
            scan = scan_part(window, origin=position)
            if len(scan.batches):
                yield scan.batches
            elif scan.finding is None and len(window) >= LOG_OVERHEAD:
                expected = entry_size(window, 0)
                if len(window) < expected <= end - position:
                    size = expected
                    continue
            position += scan.consumed
            if scan.finding is not None or scan.consumed == 0:
                return
            step = size = min(2 * step, WALK_WINDOW)

    def tail_at(self, position: int) -> Tail:
        """Return the kind of the bytes from `position` on, the end of the last complete batch."""
        left = self.size - position
        if left <= 0:
            return Tail("none", position, 0)
        if left >= LOG_OVERHEAD and position >= self.zeros_from():
            return Tail("zeros", position, left)
        finding = scan_part(self.window(position, position + min(left, BATCH_HEADER_SIZE)), origin=position).finding
        return Tail("partial" if finding is None else "damaged", position, left, finding)

    def describe_tail(self, tail: Tail) -> tuple[str, bool]:
        """Return what the bytes of a tail are, for people, and whether the file is of another kind than a log."""
        if tail.kind == "zeros":
            return f"{counted(tail.size, 'byte')} of zeros: the file is preallocated", False
        foreign = foreign_reason(self.window(0, LOG_OVERHEAD).tobytes()) if tail.position == 0 else None
        if foreign is not None:
            return foreign, True
        return f"{counted(tail.size, 'byte')} of an incomplete batch", False

    def zeros_from(self) -> int:
        """Return where the zeros at the end of the file begin; its size if the last byte is not zero.

        The result is cached, since each length that reaches beyond the file needs it.
        """
        if self._zeros is None or self._zeros[0] != self.size:
            self._zeros = (self.size, self._find_zeros())
        return self._zeros[1]

    def _find_zeros(self) -> int:
        end = self.size
        while end > 0:
            start = max(0, end - ZERO_BLOCK)
            block = self.window(start, end)
            used = np.flatnonzero(block)
            if len(used):
                return start + int(used[-1]) + 1
            end = start
        return 0


def _shrunk(path: str) -> LogDirectoryError:
    return LogDirectoryError(f"{path}: was truncated after the log was opened; open the log again", source=path)


def unreadable(path: str, error: OSError) -> LogDirectoryError:
    """Return the error for a file that the operating system cannot read."""
    return LogDirectoryError(f"{path}: can't be read: {error.strerror}", source=path)
