"""Captures made from messages: segments of TCP connections in packets of several link types."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import dpkt

__all__ = [
    "BROKER",
    "CLIENT",
    "LINK_TYPES",
    "Packet",
    "TcpPeer",
    "fragments",
    "joined",
    "packet_bytes",
    "pcapng_block",
    "pcapng_section",
    "write_capture",
    "write_packets",
]

CLIENT, BROKER = ("10.0.0.7", 51022), ("10.0.0.1", 9092)
# An IP packet with a TCP segment, before its link type is known.
Packet = tuple[str, str, bytes]
FIN, SYN, ACK = 1, 2, 16
LINK_TYPES = {"ethernet": 1, "vlan": 1, "raw": 101, "sll": 113, "sll2": 276, "loopback": 0}


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
    if link == "vlan":
        # 802.1ad with a tag of 802.1Q.
        return bytes(12) + bytes.fromhex("88a80005 81000007") + kind.to_bytes(2, "big") + network
    if link == "sll2":
        return kind.to_bytes(2, "big") + bytes(18) + network
    if link == "sll":
        return bytes(14) + kind.to_bytes(2, "big") + network
    if link == "loopback":
        return (2 if kind == 0x0800 else 30).to_bytes(4, "little") + network
    return network


def fragments(packet: Packet, size: int) -> list[bytes]:
    """Return the bytes of an IP packet without a link type as fragments; `size` is a multiple of 8."""
    source, target, segment = packet
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    src, dst = socket.inet_pton(family, source), socket.inet_pton(family, target)
    found = []
    for at in range(0, len(segment), size):
        part, is_last = segment[at : at + size], at + size >= len(segment)
        if family == socket.AF_INET6:
            header = struct.pack(">BBHI", 6, 0, at | (not is_last), 7)
            found.append(struct.pack(">IHBB", 6 << 28, len(header + part), 44, 64) + src + dst + header + part)
        else:
            flags = at // 8 | (not is_last) << 13
            found.append(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(part), 7, flags, 64, 6, 0) + src + dst + part)
    return found


def write_packets(path: Path, packets: Iterable[bytes], link: int = 101) -> Path:
    """Write packets as they are, a millisecond apart."""
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file, linktype=link)
        for number, data in enumerate(packets):
            writer.writepkt(data, 1_700_000_000 + number / 1000)
    return path


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
            time = 1_700_000_000 + number / 1000
            if snap_length is None or ng:
                writer.writepkt(data[:snap_length], time)
            else:
                header = dpkt.pcap.LEPktHdr(
                    tv_sec=int(time), tv_usec=number * 1000, caplen=min(snap_length, len(data)), len=len(data)
                )
                file.write(bytes(header) + data[:snap_length])
    return path


def pcapng_block(kind: int, body: bytes, order: Literal["little", "big"] = "little") -> bytes:
    """Return a block of pcapng."""
    body += bytes(-len(body) % 4)
    length = (len(body) + 12).to_bytes(4, order)
    return kind.to_bytes(4, order) + length + body + length


def pcapng_section(
    interfaces: Sequence[tuple[str, int]],
    packets: Iterable[tuple[int, Packet]],
    order: Literal["little", "big"] = "little",
    first: int = 0,
) -> bytes:
    """Return a section with interfaces, each a link type and its digits of a second, and packets by interface."""
    section = 0x1A2B3C4D.to_bytes(4, order) + (1).to_bytes(2, order) + bytes(2) + b"\xff" * 8
    blocks = [pcapng_block(0x0A0D0D0A, section, order)]
    for link, digits in interfaces:
        option = (9).to_bytes(2, order) + (1).to_bytes(2, order) + bytes([digits, 0, 0, 0]) + bytes(4)
        blocks.append(pcapng_block(1, LINK_TYPES[link].to_bytes(2, order) + bytes(6) + option, order))
    for number, (interface, packet) in enumerate(packets, first):
        link, digits = interfaces[interface]
        data = packet_bytes(packet, link)
        ticks = (1_700_000_000_000 + number) * 10**digits // 1000
        fields = (interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
        blocks.append(pcapng_block(6, b"".join(each.to_bytes(4, order) for each in fields) + data, order))
    return b"".join(blocks)


def joined(*groups: Sequence[Packet]) -> list[Packet]:
    return [packet for group in groups for packet in group]
