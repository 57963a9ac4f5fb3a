"""Captured traffic: the messages in a pcap or pcapng file, which `tcpdump` and Wireshark write."""

from __future__ import annotations

import io
import os
import socket
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple, cast

from kbatch.arguments import check_types
from kbatch.batches.regular_files import open_regular
from kbatch.errors import ProtocolError
from kbatch.escaping import counted
from kbatch.extras import require
from kbatch.format import Limits
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.captured_connection import CapturedConnection, CapturedMessage, SkippedBytes
from kbatch.protocol.codec import MAX_MESSAGE_SIZE, Request, Response, UnknownMessage
from kbatch.quantities import SizeLike, size_between

__all__ = ["Capture", "CapturedExchange", "is_capture", "read_capture"]

# The first bytes of pcap in both byte orders, with microseconds or nanoseconds, and of pcapng.
_MAGICS = {bytes.fromhex(each) for each in ("d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a")}
# The largest packet or block that is read; snap lengths are at most 256 KiB.
_MAX_PACKET = 16 << 20
# Names of dpkt's classes by link type (https://www.tcpdump.org/linktypes.html); None for a bare IP packet.
_LINKS = {
    0: ("loopback", "Loopback"),
    1: ("ethernet", "Ethernet"),
    12: None,
    14: None,
    101: None,
    108: ("loopback", "Loopback"),
    113: ("sll", "SLL"),
    228: None,
    229: None,
    276: ("sll2", "SLL2"),
}


class CapturedExchange(NamedTuple):
    """A request of a capture, and its response.

    Attributes
    ----------
    client, broker : str
        Addresses with ports, such as ``10.0.0.7:51022``.
    request_time, response_time : datetime or None
        When the last segment of the message was captured, in UTC. None for a message that is not there.
    request : Request, UnknownMessage or None
        None if the request could not be read.
    response : Response, UnknownMessage or None
        None if the response could not be read or was not captured, or if a ProduceRequest had ``acks=0``.
    """

    client: str
    broker: str
    request_time: datetime | None
    response_time: datetime | None
    request: Request | UnknownMessage | None
    response: Response | UnknownMessage | None


class Capture:
    """The messages in a capture file; `read_capture` opens one.

    Iterating yields a `CapturedExchange` per response, in the order of the responses, and at the end one per request
    without a response. Each iteration reads the file again.

    Attributes
    ----------
    skipped : list of SkippedBytes
        What the last iteration could not read: bytes that were not captured, connections that are encrypted or not of
        Kafka's protocol, and messages with errors.
    """

    def __init__(self, path: str, port: int | None, max_size: int, limits: Limits | None) -> None:
        self._path = path
        self._port = port
        self._max_size = max_size
        self._limits = limits
        self._names: dict[uuid.UUID, str] | None = None
        self.skipped: list[SkippedBytes] = []

    def __repr__(self) -> str:
        return f"<Capture: {self._path}>"

    @property
    def topic_names(self) -> dict[uuid.UUID, str]:
        """Names of topics by id, from all metadata in the capture: the first access reads the file.

        Fetch requests since version 13 have only ids, and the metadata may follow later.
        """
        if self._names is None:
            names: dict[uuid.UUID, str] = {}
            for _ in self._read(names, []):
                pass
            self._names = names
        return self._names

    def messages(self) -> Iterator[CapturedMessage]:
        """Yield each message in the order in which its last segment was captured."""
        self.skipped = []
        yield from self._read({}, self.skipped)

    def __iter__(self) -> Iterator[CapturedExchange]:
        open_requests: dict[tuple[str, str, int], CapturedMessage] = {}
        for message in self.messages():
            key = message.client, message.broker, message.correlation_id
            if not message.is_response:
                decoded = message.message
                if isinstance(decoded, Request) and decoded.api_key == ApiKey.PRODUCE and decoded.message.acks == 0:
                    yield _exchange(message, None)
                else:
                    open_requests.pop(key, None)
                    open_requests[key] = message
            elif (request := open_requests.pop(key, None)) is not None:
                yield _exchange(request, message)
        for request in open_requests.values():
            yield _exchange(request, None)

    def _read(self, names: dict[uuid.UUID, str], skipped: list[SkippedBytes]) -> Iterator[CapturedMessage]:
        connections: dict[tuple[str, str], CapturedConnection] = {}
        for time, source, target, packet in self._segments():
            connection = connections.get((source, target)) or connections.get((target, source))
            is_syn = bool(packet.flags & 2)
            if connection is None or (is_syn and connection.is_other(source, packet.seq)):
                if connection is not None:
                    yield from connection.finish()
                client, broker = self._roles(source, target, packet)
                if self._port is not None and not broker.endswith(f":{self._port}"):
                    continue
                connection = CapturedConnection(client, broker, names, skipped, self._max_size, self._limits)
                connections[client, broker] = connection
            yield from connection.feed(source, packet, time)
        for connection in connections.values():
            yield from connection.finish()
        if self._port is not None and not connections:
            raise ProtocolError(f"{self._path}: the capture has no connection to port {self._port}")

    def _roles(self, source: str, target: str, packet: Any) -> tuple[str, str]:
        """Return the client and the broker of a connection, from its first segment."""
        ports = packet.sport, packet.dport
        if self._port is not None and self._port in ports and ports[0] != ports[1]:
            is_request = packet.dport == self._port
        elif packet.flags & 2:
            # A SYN with an ACK is the answer of the side that listens.
            is_request = not packet.flags & 16
        else:
            # Clients have high ports.
            is_request = packet.dport <= packet.sport
        return (source, target) if is_request else (target, source)

    def _segments(self) -> Iterator[tuple[float, str, str, Any]]:
        """Yield time, source, target and TCP segment of each packet that has one."""
        dpkt: Any = require("dpkt", "capture", "reading captures")
        with _PacketFile(open_regular(self._path)) as file:
            try:
                reader = dpkt.pcap.UniversalReader(file)
                link = reader.datalink()
            except (ValueError, dpkt.Error) as error:
                raise ProtocolError(f"{self._path} is neither a pcap nor a pcapng file ({error})") from None
            if link not in _LINKS:
                raise ProtocolError(
                    f"{self._path}: packets have the link type {link}, which is not supported; "
                    "convert the file with editcap -T ether"
                )
            parse = _link_parser(dpkt, link)
            packets = iter(reader)
            while True:
                try:
                    time, data = next(packets)
                except (StopIteration, dpkt.NeedData):
                    # A capture that was killed ends within a packet.
                    return
                try:
                    network = parse(data)
                # The parser raises errors of many types for damaged packets.
                except Exception:
                    continue
                segment = getattr(network, "data", None)
                if isinstance(segment, dpkt.tcp.TCP):
                    yield float(time), *_endpoints(network, segment), segment


def _link_parser(dpkt: Any, link: int) -> Any:
    """Return a function from the bytes of a packet to its IP packet."""
    names = _LINKS[link]
    if names is None:
        return lambda data: (dpkt.ip6.IP6 if data[0] >> 4 == 6 else dpkt.ip.IP)(data)
    parser = getattr(getattr(dpkt, names[0]), names[1])
    return lambda data: parser(data).data


def _endpoints(network: Any, segment: Any) -> tuple[str, str]:
    if len(network.src) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, network.src)}:{segment.sport}", (
            f"{socket.inet_ntop(socket.AF_INET, network.dst)}:{segment.dport}"
        )
    return f"[{socket.inet_ntop(socket.AF_INET6, network.src)}]:{segment.sport}", (
        f"[{socket.inet_ntop(socket.AF_INET6, network.dst)}]:{segment.dport}"
    )


def _exchange(request: CapturedMessage, response: CapturedMessage | None) -> CapturedExchange:
    return CapturedExchange(
        request.client,
        request.broker,
        request.time,
        None if response is None else response.time,
        cast("Request | UnknownMessage | None", request.message),
        None if response is None else cast("Response | UnknownMessage | None", response.message),
    )


class _PacketFile(io.BufferedReader):
    """A file of packets, of which none makes a huge allocation."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_PACKET:
            raise ProtocolError(f"byte {self.tell()}: a packet of {counted(size, 'byte')}, the limit is {_MAX_PACKET}")
        return super().read(size)


def is_capture(path: str) -> bool:
    """Return whether a file begins like a pcap or pcapng file."""
    with open_regular(path) as file:
        return file.read(4) in _MAGICS


def read_capture(
    path: str | os.PathLike[str],
    *,
    port: int | None = None,
    max_size: SizeLike = MAX_MESSAGE_SIZE,
    limits: Limits | None = None,
) -> Capture:
    """Read the messages in a capture of Kafka's traffic.

    Parameters
    ----------
    path : path
        A pcap or pcapng file, such as ``tcpdump -s 0 -w FILE port 9092`` writes. Needs the extra ``capture``.
    port : int, optional
        The port of the brokers; other connections are ignored. By default the side that accepted a connection is the
        broker, or the one with the lower port if the capture begins later.
    max_size : int or str, optional
        The maximum size of a message in bytes.
    limits : Limits, optional
        ``max_table_bytes`` is the maximum of memory that the objects of one message take.

    Returns
    -------
    Capture
        An iterable of `CapturedExchange`.

    Raises
    ------
    OSError
        If the file can't be opened.
    MissingDependencyError
        On iteration, without the extra.
    ProtocolError
        On iteration, if the file is not a capture, or has no connection to `port`. Messages with errors are listed in
        ``Capture.skipped``.

    Notes
    -----
    Segments are put in order, and repeated ones are dropped. After bytes that were not captured, reading continues at
    the next segment that begins with a message. Encrypted connections are listed as skipped. Memory is bounded by the
    messages in flight.

    Examples
    --------
    >>> from kbatch.protocol import read_capture
    >>> for exchange in read_capture("tests/golden/protocol/orders.pcap"):
    ...     if exchange.request.header.client_id == "shop":
    ...         print(exchange.request.api_key.name, exchange.request.version)
    API_VERSIONS 3
    METADATA 13
    API_VERSIONS 3
    PRODUCE 10
    PRODUCE 10
    """
    check_types(read_capture, locals())
    path = os.fspath(path)
    # A missing file is reported here, and not where the capture is iterated.
    open_regular(path).close()
    return Capture(path, port, size_between("max_size", max_size, 0), limits)
