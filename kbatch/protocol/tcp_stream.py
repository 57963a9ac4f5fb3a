"""One direction of a TCP connection: the bytes of captured segments in the order in which they were sent."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["StreamPart", "TcpStream"]

# Bytes and segments after a missing one that are kept: it may still follow. A receiver's window is rarely larger.
_MAX_BYTES = 16 << 20
_MAX_SEGMENTS = 16384
_HALF = 1 << 31


class StreamPart(NamedTuple):
    """Bytes of a stream.

    Attributes
    ----------
    missing : int
        Bytes before `data` that the capture does not have.
    data : bytes
    time : float
        When the segment was captured, in seconds since 1970.
    """

    missing: int
    data: memoryview
    time: float


class TcpStream:
    """Orders the segments of one direction, drops repeated bytes, and finds missing ones."""

    __slots__ = ("_bytes", "_end", "_later", "_number", "_position", "_sent", "_time")

    def __init__(self) -> None:
        # The sequence number of the next byte, modulo 2**32; None before the first segment.
        self._end: int | None = None
        # Position of the next byte in the stream.
        self._position = 0
        # Segments after missing bytes: position, a number that makes entries unique, time, data.
        self._later: list[tuple[int, int, float, memoryview]] = []
        self._number = 0
        self._bytes = 0
        # The end of all segments, of which packets that were cut have only the beginning, and the last time.
        self._sent = 0
        self._time = 0.0

    def start(self, sequence: int) -> None:
        """Begin with the sequence number of a SYN."""
        self._end = (sequence + 1) % (1 << 32)

    def feed(self, sequence: int, data: memoryview, time: float, size: int = 0) -> Iterator[StreamPart]:
        """Yield the chunks that are complete up to this segment; it had `size` bytes if that is more than `data`."""
        if self._end is None:
            self._end = sequence
        # Sequence numbers wrap: the smaller of both distances is the right one.
        distance = (sequence - self._end + _HALF) % (1 << 32) - _HALF
        heapq.heappush(self._later, (self._position + distance, self._number, time, data))
        self._sent = max(self._sent, self._position + distance + max(size, len(data)))
        self._time = time
        self._number += 1
        self._bytes += len(data)
        yield from self._ready()
        if self._bytes > _MAX_BYTES or len(self._later) > _MAX_SEGMENTS:
            yield from self.finish()

    def acknowledge(self, number: int) -> Iterator[StreamPart]:
        """Yield the segments after missing bytes that the receiver has: they were sent, and not captured."""
        if self._end is not None and self._later:
            distance = (number - self._end + _HALF) % (1 << 32) - _HALF
            if self._position + distance >= self._later[0][0]:
                yield from self.finish()

    def finish(self) -> Iterator[StreamPart]:
        """Yield the segments after missing bytes, which do not follow any more."""
        missing = 0
        while self._later:
            missing += self._pass(self._later[0][0])
            for chunk in self._ready():
                yield chunk._replace(missing=missing)
                missing = 0
        missing += self._pass(self._sent)
        if missing:
            yield StreamPart(missing, memoryview(b""), self._time)

    def _pass(self, position: int) -> int:
        """Advance to a position; return the number of bytes up to it."""
        missing = max(position - self._position, 0)
        if missing:
            self._advance(missing)
        return missing

    def _ready(self) -> Iterator[StreamPart]:
        while self._later and self._later[0][0] <= self._position:
            position, _, time, data = heapq.heappop(self._later)
            self._bytes -= len(data)
            data = data[self._position - position :]
            if data:
                self._advance(len(data))
                yield StreamPart(0, data, time)

    def _advance(self, size: int) -> None:
        assert self._end is not None
        self._position += size
        self._end = (self._end + size) % (1 << 32)
