"""One TCP connection of a capture: the messages in its segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kbatch.errors import LimitExceededError, ProtocolError
from kbatch.format import Limits
from kbatch.protocol.api_keys import ApiKey, supported_versions
from kbatch.protocol.codec import Request, Response, UnknownMessage
from kbatch.protocol.conversation import Conversation, request_numbers
from kbatch.protocol.message_stream import MessageSplitter
from kbatch.protocol.tcp_stream import StreamPart, TcpStream
from kbatch.public_names import public_in

__all__ = [
    "CUT_ADVICE",
    "CapturedConnection",
    "CapturedMessage",
    "CapturedSegment",
    "SkippedBytes",
    "utc_time",
]

_SYN, _RST = 2, 4
# The shortest request has a header of version 1 with a null client id.
_SHORTEST_REQUEST = 10
_SHORTEST_RESPONSE = 4
# The first bytes of a TLS record: handshake or data, version 3.
_TLS = (b"\x16\x03", b"\x17\x03")


CUT_ADVICE = "as by a snap length; capture whole packets with tcpdump -s 0"


class CapturedSegment(NamedTuple):
    """A TCP segment as dpkt parses it; `size` is that of its payload before the packet was cut."""

    time: float
    source: str
    target: str
    packet: Any
    size: int


@public_in("kbatch.protocol")
class CapturedMessage(NamedTuple):
    """A message of a capture.

    Attributes
    ----------
    time : datetime
        When its last segment was captured, in UTC.
    client, broker : str
        Addresses with ports.
    is_response : bool
    size : int
        Bytes after the length.
    correlation_id : int
    message : Request, Response, UnknownMessage or None
        None if it could not be read.
    error : ProtocolError, LimitExceededError or None
        Why it could not be read.
    """

    time: datetime
    client: str
    broker: str
    is_response: bool
    size: int
    correlation_id: int
    message: Request | Response | UnknownMessage | None
    error: ProtocolError | LimitExceededError | None


@public_in("kbatch.protocol")
class SkippedBytes(NamedTuple):
    """A part of a capture that could not be read.

    Attributes
    ----------
    time : datetime
        When the bytes were captured, in UTC; for missing ones, those after them.
    client, broker : str
        Addresses with ports; empty for bytes of the file that are of no known connection, such as an incomplete packet.
    is_response : bool
        Whether the bytes were sent by the broker.
    missing : int
        Bytes that the capture does not have.
    skipped : int
        Bytes in the capture that were not read.
    reason : str
    """

    time: datetime
    client: str
    broker: str
    is_response: bool
    missing: int
    skipped: int
    reason: str


class _Direction:
    """The bytes of one side."""

    __slots__ = (
        "first_time", "is_cut", "is_response", "last_time", "missing", "reason", "skipped", "splitter", "started",
        "stream",
    )  # fmt: skip

    def __init__(self, is_response: bool) -> None:
        self.is_response = is_response
        self.stream = TcpStream()
        # None while the start of a message is searched.
        self.splitter: MessageSplitter | None = None
        # The sequence number of the SYN.
        self.started: int | None = None
        # Whether a packet lacks bytes, and the time of the last bytes.
        self.is_cut = False
        self.last_time = 0.0
        # The range that is being skipped.
        self.first_time = 0.0
        self.missing = 0
        self.skipped = 0
        self.reason = "the capture begins after the start of the connection"


class CapturedConnection:
    """Turns the segments of a connection into messages."""

    def __init__(
        self,
        client: str,
        broker: str,
        names: dict[uuid.UUID, str],
        skipped: list[SkippedBytes],
        max_size: int,
        limits: Limits | None,
    ) -> None:
        self._client, self._broker = client, broker
        self._skipped = skipped
        self._max_size = max_size
        self._conversation = Conversation(max_size=max_size, limits=limits, topic_names=names)
        self._versions = supported_versions()
        self._requests, self._responses = _Direction(False), _Direction(True)
        # After a SaslHandshake of version 0, tokens follow without a header.
        self._has_tokens = False

    def is_other(self, source: str, sequence: int) -> bool:
        """Return whether a SYN begins another connection of the same addresses."""
        started = self._side(source).started
        return started is not None and started != sequence

    def feed(self, segment: CapturedSegment) -> Iterator[CapturedMessage]:
        """Yield the messages that a segment completes."""
        packet, side = segment.packet, self._side(segment.source)
        other = self._responses if side is self._requests else self._requests
        if packet.flags & _SYN:
            if side.started is None:
                side.started = packet.seq
                side.stream.start(packet.seq)
                side.splitter = MessageSplitter(max_size=self._max_size)
            return
        for chunk in other.stream.acknowledge(packet.ack):
            yield from self._chunk(other, chunk)
        if segment.size and not packet.flags & _RST:
            data = memoryview(packet.data)
            side.is_cut |= segment.size > len(data)
            for chunk in side.stream.feed(packet.seq, data, segment.time, segment.size):
                yield from self._chunk(side, chunk)

    def finish(self) -> Iterator[CapturedMessage]:
        """Yield the messages after missing bytes, and report what was skipped at the end."""
        for side in (self._requests, self._responses):
            for chunk in side.stream.finish():
                yield from self._chunk(side, chunk)
            if side.splitter is not None and side.splitter.pending:
                self._skip(side, side.splitter.pending, side.last_time, "the capture ends within a message")
            self._report(side)

    def _side(self, source: str) -> _Direction:
        return self._requests if source == self._client else self._responses

    def _chunk(self, side: _Direction, chunk: StreamPart) -> Iterator[CapturedMessage]:
        side.last_time = chunk.time
        if chunk.missing:
            pending = side.splitter.pending if side.splitter is not None else 0
            reason = f"packets were cut, {CUT_ADVICE}" if side.is_cut else "bytes were not captured"
            self._skip(side, pending, chunk.time, reason)
            side.splitter = None
            side.missing += chunk.missing
        if side.splitter is None:
            if not self._begins_message(side, chunk.data):
                self._skip(side, len(chunk.data), chunk.time, _skip_reason(chunk.data, side.reason))
                return
            self._report(side)
            side.splitter = MessageSplitter(max_size=self._max_size)
        try:
            for data in side.splitter.feed(chunk.data):
                message = self._message(side, data, utc_time(chunk.time))
                if message is not None:
                    yield message
        except (LimitExceededError, ProtocolError) as error:
            side.splitter = None
            self._skip(side, len(chunk.data), chunk.time, _skip_reason(chunk.data, str(error)))

    def _message(self, side: _Direction, data: memoryview, time: datetime) -> CapturedMessage | None:
        correlation_id = int.from_bytes(data[4:8] if not side.is_response else data[:4], "big", signed=True)
        if self._has_tokens and not self._is_plausible(side, data):
            return None
        decoded: Request | Response | UnknownMessage | None = None
        error = None
        try:
            if side.is_response:
                decoded = self._conversation.response(data).response
            else:
                decoded = self._conversation.request(data)
                self._conversation._forget(correlation_id)
                if decoded.api_key == ApiKey.SASL_HANDSHAKE and decoded.version == 0:
                    self._has_tokens = True
        except (LimitExceededError, ProtocolError) as found:
            error = found
            kind = "response" if side.is_response else "request"
            reason = f"{kind} with the correlation id {correlation_id}: {found}"
            self._skipped.append(SkippedBytes(time, self._client, self._broker, side.is_response, 0, len(data), reason))
        return CapturedMessage(
            time, self._client, self._broker, side.is_response, len(data), correlation_id, decoded, error
        )

    def _begins_message(self, side: _Direction, data: memoryview) -> bool:
        """Return whether a segment begins with a message, as nearly all messages begin a segment."""
        size = int.from_bytes(data[:4], "big", signed=True)
        return _SHORTEST_RESPONSE <= size <= self._max_size and self._is_plausible(side, data[4:])

    def _is_plausible(self, side: _Direction, data: memoryview) -> bool:
        if side.is_response:
            return len(data) >= 4 and self._conversation.expects(int.from_bytes(data[:4], "big", signed=True))
        if len(data) < _SHORTEST_REQUEST:
            return False
        api_key, version, _ = request_numbers(data)
        return version in self._versions.get(ApiKey(api_key), ())

    def _skip(self, side: _Direction, size: int, time: float, reason: str) -> None:
        if not side.skipped and not side.missing:
            side.first_time = time
        side.skipped += size
        side.reason = reason

    def _report(self, side: _Direction) -> None:
        """Add the range that was skipped to the list."""
        if side.skipped or side.missing:
            self._skipped.append(
                SkippedBytes(
                    utc_time(side.first_time), self._client, self._broker, side.is_response, side.missing, side.skipped,
                    side.reason,
                )
            )  # fmt: skip
        side.skipped = side.missing = 0


def _skip_reason(data: memoryview, otherwise: str) -> str:
    if bytes(data[:2]) in _TLS:
        return "the connection is encrypted with TLS; tshark decrypts it with the keys of one side"
    return otherwise


def utc_time(time: float) -> datetime:
    """Return seconds since 1970 as a datetime in UTC."""
    return datetime.fromtimestamp(time, UTC)
