"""Captures made from messages: segments of TCP connections in packets of several link types."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import dpkt

__all__ = ["BROKER", "CLIENT", "Packet", "TcpPeer", "joined", "write_capture"]

CLIENT, BROKER = ("10.0.0.7", 51022), ("10.0.0.1", 9092)
# An IP packet with a TCP segment, before its link type is known.
Packet = tuple[str, str, bytes]
FIN, SYN, ACK = 1, 2, 16
LINK_TYPES = {"ethernet": 1, "raw": 101, "sll": 113, "loopback": 0}


class TcpPeer:
    """Both sides of a connection; each method returns a packet."""

    def __init__(self, client: tuple[str, int] = CLIENT, broker: tuple[str, int] = BROKER, first: int = 1000) -> None:
        self._sides = (client, broker)
        self._next = [first, 2**32 - 20]

    def _packet(self, side: int, flags: int, data: bytes, sequence: int | None = None) -> Packet:
        (source, sport), (target, dport) = self._sides[side], self._sides[1 - side]
        segment = dpkt.tcp.TCP(
            sport=sport, dport=dport, flags=flags, data=data,
            seq=(self._next[side] if sequence is None else sequence) % 2**32,
            ack=self._next[1 - side] % 2**32 if flags & ACK else 0,
        )  # fmt: skip
        return source, target, bytes(segment)

    def opening(self) -> list[Packet]:
        first = self._packet(0, SYN, b"")
        self._next[0] += 1
        second = self._packet(1, SYN | ACK, b"")
        self._next[1] += 1
        return [first, second]

    def client(self, data: bytes, size: int = 1 << 16) -> list[Packet]:
        return self._data(0, data, size)

    def broker(self, data: bytes, size: int = 1 << 16) -> list[Packet]:
        return self._data(1, data, size)

    def _data(self, side: int, data: bytes, size: int) -> list[Packet]:
        packets = []
        for at in range(0, len(data), size):
            part = data[at : at + size]
            packets.append(self._packet(side, ACK, part))
            self._next[side] += len(part)
        return packets


def packet_bytes(packet: Packet, link: str) -> bytes:
    source, target, segment = packet
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    src, dst = socket.inet_pton(family, source), socket.inet_pton(family, target)
    if family == socket.AF_INET6:
        network = bytes(dpkt.ip6.IP6(src=src, dst=dst, nxt=6, plen=len(segment), hlim=64)) + segment
        kind = 0x86DD
    else:
        network = bytes(dpkt.ip.IP(src=src, dst=dst, p=6, data=segment))
        kind = 0x0800
    if link == "ethernet":
        return bytes(12) + kind.to_bytes(2, "big") + network
    if link == "sll":
        return bytes(14) + kind.to_bytes(2, "big") + network
    if link == "loopback":
        return (2 if kind == 0x0800 else 30).to_bytes(4, "little") + network
    return network


def write_capture(
    path: Path, packets: Iterable[Packet], *, link: str = "ethernet", snap_length: int | None = None, ng: bool = False
) -> Path:
    """Write packets, a millisecond apart."""
    with path.open("wb") as file:
        if ng:
            writer = dpkt.pcapng.Writer(file, idb=dpkt.pcapng.InterfaceDescriptionBlockLE(linktype=LINK_TYPES[link]))
        else:
            writer = dpkt.pcap.Writer(file, linktype=LINK_TYPES[link])
        for number, packet in enumerate(packets):
            data = packet_bytes(packet, link)
            writer.writepkt(data[:snap_length], 1_700_000_000 + number / 1000)
    return path


def joined(*groups: Sequence[Packet]) -> list[Packet]:
    return [packet for group in groups for packet in group]
