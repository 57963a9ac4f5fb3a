"""Segments of tiered storage whose chunks were compressed at their upload: windows of the bytes before it."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.codecs import decompress
from kbatch.batches.framing import byte_array
from kbatch.errors import finding_to_error
from kbatch.format import Codec
from kbatch.log.store.storage import RemoteFile, Storage

__all__ = ["ChunkLayout", "ChunkedFile", "zstd_content"]


@dataclass(frozen=True, eq=False)
class ChunkLayout:
    """Where the chunks of a segment are in its object.

    Attributes
    ----------
    size : int
        Bytes of the segment before the upload.
    chunk_size : int
        Bytes of each chunk before the upload; the last one may be smaller.
    positions : ndarray of int64, shape (chunks + 1,)
        Where each chunk begins in the object, and where the last one ends.
    is_compressed : bool
        Whether each chunk is a zstd frame. Otherwise the object has the bytes of the segment.
    """

    size: int
    chunk_size: int
    positions: npt.NDArray[np.int64]
    is_compressed: bool

    @property
    def stored_size(self) -> int:
        """Bytes of the object."""
        return int(self.positions[-1])


class ChunkedFile(RemoteFile):
    """The bytes of a compressed segment. Chunks are decompressed when a window needs them.

    Parameters
    ----------
    path : str
    storage : Storage
    layout : ChunkLayout

    Raises
    ------
    OSError
        If the object can't be opened, or does not have the size of the layout.
    """

    def __init__(self, path: str, storage: Storage, layout: ChunkLayout) -> None:
        self.path = path
        self.size = layout.size
        self._layout = layout
        self._stored = storage.open(path)
        self._start = 0
        self._held = byte_array(b"")
        # The chunk that was decompressed last: the next window often begins in it.
        self._number = -1
        self._chunk = b""

    def close(self) -> None:
        """Close the object. Windows remain valid."""
        self._stored.close()
        self._held, self._chunk, self._number = byte_array(b""), b"", -1

    @property
    def stored_size(self) -> int:
        """Bytes of the object now."""
        return self._stored.size

    def read(self, start: int, size: int) -> bytes:
        """Read a range of the segment's bytes, with one request for all its chunks.

        Raises
        ------
        OSError
            If the object can't be read, or a chunk can't be decompressed.
        """
        layout = self._layout
        end = min(start + size, self.size)
        if end <= start:
            return b""
        first, last = start // layout.chunk_size, (end - 1) // layout.chunk_size
        needed = first + 1 if first == self._number else first
        parts = [self._chunk] if needed > first else []
        if needed <= last:
            begin = int(layout.positions[needed])
            stored = self._stored.window(begin, int(layout.positions[last + 1]))
            for number in range(needed, last + 1):
                low, high = (layout.positions[number : number + 2] - begin).tolist()
                self._chunk = self._decompressed(number, stored[low:high])
                self._number = number
                parts.append(self._chunk)
        skipped = start - first * layout.chunk_size
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data[skipped : skipped + end - start]

    def _decompressed(self, number: int, stored: npt.NDArray[np.uint8]) -> bytes:
        expected = min(self._layout.chunk_size, self.size - number * self._layout.chunk_size)
        try:
            found = zstd_content(stored.data, expected)
        except ValueError as error:
            raise OSError(errno.EIO, f"chunk {number} can't be decompressed: {error}", self.path) from None
        if len(found) != expected:
            raise OSError(errno.EIO, f"chunk {number} has {len(found)} bytes, expected {expected}", self.path)
        return found


def zstd_content(data: memoryview, limit: int) -> bytes:
    """Return the content of a zstd frame.

    Raises
    ------
    ValueError
        If it is damaged, or has more than `limit` bytes.
    """
    arena = Arena()
    try:
        found = decompress(Codec.ZSTD, data, arena, limit)
    except PayloadError as error:
        raise ValueError(str(finding_to_error(error.finding, source=None, position=0))) from None
    return bytes(arena.view[:found])
