"""Captured traffic: the messages in a pcap or pcapng file, which `tcpdump` and Wireshark write."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple, cast

from kbatch.arguments import check_types
from kbatch.batches.regular_files import open_regular
from kbatch.errors import ProtocolError
from kbatch.extras import require
from kbatch.format import Limits
from kbatch.protocol.captured_connection import (
    CUT_ADVICE,
    CapturedConnection,
    CapturedMessage,
    CapturedSegment,
    SkippedBytes,
    utc_time,
)
from kbatch.protocol.codec import MAX_MESSAGE_SIZE, Request, Response, UnknownMessage
from kbatch.protocol.conversation import has_response
from kbatch.protocol.packet_file import PacketFile
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between

__all__ = ["Capture", "CapturedExchange", "read_capture"]

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
# Requests that wait for a response: a capture may have only one direction.
MAX_WAITING_BYTES = 64 << 20
_IPV4_SIZE = 4
_TCP = 6
# The flag "more fragments" and the offset of IPv4, and the extension header of IPv6.
_FRAGMENT_BITS, _FRAGMENT_HEADER = 0x3FFF, 44
_FRAGMENTS = (
    "packets are fragments of IP packets, which are not put together; tshark -q -z follow,tcp,raw,0 prints the bytes "
    "of connection 0"
)
_NO_SEGMENT = "no packet has a TCP segment; packets in tunnels, such as VXLAN and GRE, are not read"


@public_in("kbatch.protocol")
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


@public_in("kbatch.protocol")
class Capture:
    """The messages in a capture file; `read_capture` opens one.

    Iterating yields a `CapturedExchange` per response, in the order of the responses, and at the end one per request
    without a response. Each iteration reads the file again.

    Attributes
    ----------
    skipped : list of SkippedBytes
        What the last iteration could not read: bytes that were not captured, packets that were cut, connections that
        are encrypted or not of Kafka's protocol, messages with errors, and a last packet that is incomplete.
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
        waiting = 0
        for message in self.messages():
            key = message.client, message.broker, message.correlation_id
            request = open_requests.pop(key, None)
            waiting -= 0 if request is None else request.size
            if message.is_response:
                if request is not None:
                    yield _exchange(request, message)
                continue
            if request is not None:
                # The id is used again, as on a new connection from the same port.
                yield _exchange(request, None)
            if isinstance(message.message, Request) and not has_response(message.message):
                yield _exchange(message, None)
                continue
            open_requests[key] = message
            waiting += message.size
            while waiting > MAX_WAITING_BYTES:
                oldest = open_requests.pop(next(iter(open_requests)))
                waiting -= oldest.size
                yield _exchange(oldest, None)
        for request in open_requests.values():
            yield _exchange(request, None)

    def _read(self, names: dict[uuid.UUID, str], skipped: list[SkippedBytes]) -> Iterator[CapturedMessage]:
        connections: dict[tuple[str, str], CapturedConnection] = {}
        for segment in self._segments(skipped):
            source, target, packet = segment.source, segment.target, segment.packet
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
            yield from connection.feed(segment)
        for connection in connections.values():
            yield from connection.finish()
        if self._port is not None and not connections:
            reason = f": {skipped[0].reason}" if skipped else ""
            raise ProtocolError(f"{self._path}: the capture has no connection to port {self._port}{reason}")

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

    def _segments(self, skipped: list[SkippedBytes]) -> Iterator[CapturedSegment]:
        """Yield the TCP segments of the packets."""
        dpkt: Any = require("dpkt", "capture", "reading captures")
        parsers: dict[int, Callable[[bytes], Any]] = {}
        # Bytes and times of packets whose segment is not known, by the reason.
        lost: dict[str, tuple[int, float]] = {}
        file, time, has_segment, others = PacketFile(self._path), 0.0, False, 0
        for time, link, data, size in file.packets():
            if link not in _LINKS:
                reason = f"packets have the link type {link}, which is not supported; capture with tcpdump -i INTERFACE"
                lost[reason] = lost.get(reason, (0, 0.0))[0] + len(data), time
                continue
            if link not in parsers:
                parsers[link] = _link_parser(dpkt, link)
            try:
                network = parsers[link](data)
            # The parser raises errors of many types for damaged packets.
            except Exception:
                network = None
            segment = getattr(network, "data", None)
            if _is_fragment(network):
                lost[_FRAGMENTS] = lost.get(_FRAGMENTS, (0, 0.0))[0] + len(data), time
            elif isinstance(segment, dpkt.tcp.TCP):
                has_segment = True
                source, target = _endpoints(network, segment)
                rest = _payload_size(network, segment) if size > len(data) else 0
                yield CapturedSegment(time, source, target, segment, max(len(segment.data), rest))
            elif size > len(data) and getattr(network, "p", _TCP) == _TCP:
                reason = f"packets were cut before the end of their TCP header, {CUT_ADVICE}"
                lost[reason] = lost.get(reason, (0, 0.0))[0] + len(data), time
            else:
                others += len(data)
        if others and not has_segment and not lost:
            lost[_NO_SEGMENT] = others, time
        if lost and not parsers:
            raise ProtocolError(f"{self._path}: {next(iter(lost))}")
        for reason, (size, at) in lost.items():
            skipped.append(SkippedBytes(utc_time(at), "", "", False, 0, size, reason))
        if file.torn is not None:
            present, missing = file.torn
            reason = "the file ends within a packet, as if the capture was killed or the file was cut"
            skipped.append(SkippedBytes(utc_time(time), "", "", False, missing, present, reason))


def _is_fragment(network: Any) -> bool:
    """Return whether an IP packet is a fragment of a larger one."""
    if (flags := getattr(network, "_flags_offset", None)) is not None:
        return bool(flags & _FRAGMENT_BITS)
    headers = getattr(network, "extension_hdrs", {})
    return _FRAGMENT_HEADER in headers and bool(headers[_FRAGMENT_HEADER].frag_off or headers[_FRAGMENT_HEADER].m_flag)


def _link_parser(dpkt: Any, link: int) -> Any:
    """Return a function from the bytes of a packet to its IP packet."""
    names = _LINKS[link]
    if names is None:
        return lambda data: (dpkt.ip6.IP6 if data[0] >> 4 == 6 else dpkt.ip.IP)(data)
    parser = getattr(getattr(dpkt, names[0]), names[1])
    return lambda data: parser(data).data


def _payload_size(network: Any, segment: Any) -> int:
    """Return the size that the payload of a segment had before its packet was cut."""
    if len(network.src) == _IPV4_SIZE:
        size = network.len - (network.hl << 2)
    else:
        size = network.plen - sum(each.length for each in network.all_extension_headers)
    found: int = size - (segment.off << 2)
    return found


def _endpoints(network: Any, segment: Any) -> tuple[str, str]:
    if len(network.src) == _IPV4_SIZE:
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


@public_in("kbatch.protocol")
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
    messages in flight: requests that wait for a response take at most 64 MiB, and the oldest of more is yielded without
    one. Packets may have several link types: Ethernet with VLAN tags, raw IP, loopback, Linux cooked.

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
