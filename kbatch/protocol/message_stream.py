"""Messages in a stream: each follows its length, an int32."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import Buffer

from kbatch.arguments import check_types
from kbatch.errors import LimitExceededError, ProtocolError
from kbatch.escaping import counted
from kbatch.protocol.codec import MAX_MESSAGE_SIZE
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between

__all__ = ["MessageSplitter", "split_messages"]

_PREFIX = 4


@public_in("kbatch.protocol")
class MessageSplitter:
    r"""Splits a stream that arrives in chunks of any size.

    Parameters
    ----------
    max_size : int or str, optional
        Largest message that is accepted.

    Notes
    -----
    A message that is complete in one chunk is a view of that chunk. The bytes of other messages are collected as they
    arrive; no memory is reserved because of a length alone.

    Examples
    --------
    >>> from kbatch.protocol import MessageSplitter
    >>> splitter = MessageSplitter()
    >>> [bytes(each) for each in splitter.feed(b"\0\0\0\2hi\0\0")]
    [b'hi']
    >>> [bytes(each) for each in splitter.feed(b"\0\3you")]
    [b'you']
    >>> splitter.pending
    0
    """

    __slots__ = ("_consumed", "_max_size", "_partial")

    def __init__(self, *, max_size: SizeLike = MAX_MESSAGE_SIZE) -> None:
        check_types(MessageSplitter.__init__, locals())
        self._max_size = size_between("max_size", max_size, 0)
        self._partial = bytearray()
        # Bytes of complete messages before `_partial`, with their lengths.
        self._consumed = 0

    def __repr__(self) -> str:
        return f"<MessageSplitter: {counted(self.pending, 'byte')} of an incomplete message>"

    @property
    def pending(self) -> int:
        """Bytes of a message that is not complete yet, with its length."""
        return len(self._partial)

    def feed(self, chunk: Buffer) -> Iterator[memoryview]:
        """Yield the messages that this chunk completes; it must not change while they are used.

        The iterator has to be exhausted before the next call.

        Raises
        ------
        ProtocolError
            If a length is negative.
        LimitExceededError
            If a length is above `max_size`.
        """
        check_types(MessageSplitter.feed, locals())
        view = memoryview(chunk).cast("B").toreadonly()
        position = 0
        if self._partial:
            position = self._collect(view, _PREFIX - len(self._partial), 0)
            if len(self._partial) >= _PREFIX:
                end = _PREFIX + self._size(self._partial)
                position = self._collect(view, end - len(self._partial), position)
                if len(self._partial) == end:
                    done, self._partial = self._partial, bytearray()
                    self._consumed += end
                    yield memoryview(done).toreadonly()[_PREFIX:]
        while len(view) - position >= _PREFIX:
            end = position + _PREFIX + self._size(view[position : position + _PREFIX])
            if end > len(view):
                break
            self._consumed += end - position
            yield view[position + _PREFIX : end]
            position = end
        self._partial += view[position:]

    def _collect(self, view: memoryview, missing: int, position: int) -> int:
        end = min(position + max(missing, 0), len(view))
        self._partial += view[position:end]
        return end

    def _size(self, prefix: Buffer) -> int:
        size = int.from_bytes(memoryview(prefix)[:_PREFIX], "big", signed=True)
        if size < 0:
            raise ProtocolError(f"length of a message is {size}", position=self._consumed)
        if size > self._max_size:
            raise LimitExceededError(
                f"byte {self._consumed}: length of a message is {size}, the limit is {self._max_size}; raise max_size "
                "for larger ones",
                position=self._consumed,
            )
        return size

    def finish(self) -> None:
        """Check that the stream ends with a complete message.

        Raises
        ------
        ProtocolError
            If it does not.
        """
        if self._partial:
            raise ProtocolError(
                f"stream ends within a message, after {counted(len(self._partial), 'byte')} of it",
                position=self._consumed,
            )


@public_in("kbatch.protocol")
def split_messages(data: Buffer, *, max_size: SizeLike = MAX_MESSAGE_SIZE) -> Iterator[memoryview]:
    r"""Yield the messages of a buffer, each a view of it without its length.

    Parameters
    ----------
    data : buffer
        Messages of a connection, in one direction.
    max_size : int or str, optional
        Largest message that is accepted.

    Raises
    ------
    ProtocolError
        If a length is negative, or the buffer ends within a message; after the complete ones.
    LimitExceededError
        If a length is above `max_size`.

    Examples
    --------
    >>> from kbatch.protocol import split_messages
    >>> [bytes(each) for each in split_messages(b"\0\0\0\2hi\0\0\0\3you")]
    [b'hi', b'you']
    """
    check_types(split_messages, locals())
    splitter = MessageSplitter(max_size=max_size)
    yield from splitter.feed(data)
    splitter.finish()
