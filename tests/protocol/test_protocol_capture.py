"""Captured traffic: the exchanges of pcap and pcapng files, and what could not be read."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import random
import sys
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from captured_traffic import (
    LINK_TYPES,
    TcpPeer,
    fragments,
    joined,
    packet_bytes,
    pcapng_block,
    pcapng_section,
    write_capture,
    write_packets,
)

import kbatch
from kbatch.cli import main
from kbatch.errors import KbatchError, MissingDependencyError, ProtocolError
from kbatch.protocol import (
    ApiKey,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    decode_fetch,
    encode_request,
    encode_response,
    read_capture,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol" / "orders.pcap"
ORDERS = uuid.UUID(int=7)


def sent(number: int, message: Message | None = None, version: int = 4) -> bytes:
    message = HeartbeatRequest(group_id=f"group-{number}") if message is None else message
    return b"".join(encode_request(message, version, correlation_id=number, client_id="c"))


def answered(number: int, message: Message | None = None, version: int = 4) -> bytes:
    message = HeartbeatResponse(error_code=number) if message is None else message
    return b"".join(encode_response(message, version, correlation_id=number))


def numbers(path: Path, port: int | None = None) -> list[tuple[int | None, int | None]]:
    """Return the correlation id of each request and response."""
    return [
        (
            None if each.request is None else each.request.header.correlation_id,
            None if each.response is None else each.response.header.correlation_id,
        )
        for each in read_capture(path, port=port)
    ]


def beats(peer: TcpPeer, count: int, size: int = 1 << 16) -> list[tuple[str, str, bytes]]:
    return joined(*(peer.client(sent(i), size) + peer.broker(answered(i), size) for i in range(count)))


def test_traffic_of_librdkafka_becomes_tables() -> None:
    """The file was captured with tcpdump from a producer and a group member of librdkafka, and a broker of Kafka 4."""
    capture = read_capture(GOLDEN)
    values = []
    for exchange in capture:
        if exchange.request.api_key == ApiKey.FETCH and exchange.response is not None:
            for fetched in decode_fetch(
                exchange.response.message, request=exchange.request.message, topic_names=capture.topic_names
            ):
                assert fetched.topic == "orders"
                values += [fetched.table.value(i) for i in range(len(fetched.table))]
    assert sorted(json.loads(value)["id"] for value in values) == list(range(12))
    assert capture.skipped == []


@pytest.mark.parametrize("link", ["ethernet", "vlan", "raw", "sll", "sll2", "loopback"])
@pytest.mark.parametrize("ng", [False, True])
@pytest.mark.parametrize("addresses", [("10.0.0.7", "10.0.0.1"), ("fd00::7", "fd00::1")])
def test_link_types_and_addresses(tmp_path: Path, link: str, ng: bool, addresses: tuple[str, str]) -> None:
    peer = TcpPeer((addresses[0], 51022), (addresses[1], 9092))
    path = write_capture(tmp_path / "c", peer.opening() + beats(peer, 3), link=link, ng=ng)
    assert numbers(path) == [(0, 0), (1, 1), (2, 2)]
    shown = [f"[{each}]" if ":" in each else each for each in addresses]
    [first, *_] = read_capture(path)
    assert (first.client, first.broker) == (f"{shown[0]}:51022", f"{shown[1]}:9092")
    assert first.response_time > first.request_time
    assert first.request_time.isoformat() == "2023-11-14T22:13:20.002000+00:00"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_reordered_and_repeated_segments_change_nothing(tmp_path: Path, size: int, seed: int) -> None:
    rng = random.Random(seed)
    peer = TcpPeer(first=2**32 - 30)
    opening, packets = peer.opening(), []
    for i in range(5):
        for part in (peer.client(sent(i), size), peer.broker(answered(i), size)):
            # Reordered within a message: an acknowledgement of the other side is later than what it acknowledges.
            part += rng.choices(part, k=2)
            rng.shuffle(part)
            packets += part
    path = write_capture(tmp_path / "c", opening + packets)
    capture = read_capture(path)
    assert [each.response.message.error_code for each in capture] == list(range(5))
    assert capture.skipped == []


def test_after_missing_bytes_reading_continues_at_the_next_message(tmp_path: Path) -> None:
    peer = TcpPeer()
    opening, lost = peer.opening(), beats(peer, 2)
    del lost[2]  # the second request
    later = joined(*(peer.client(sent(i)) + peer.broker(answered(i)) for i in range(5, 8)))
    path = write_capture(tmp_path / "c", opening + lost + later)
    capture = read_capture(path)
    assert [(each.request.header.correlation_id, each.response is not None) for each in capture] == [
        (0, True), (5, True), (6, True), (7, True),
    ]  # fmt: skip
    assert [(each.is_response, each.missing, each.skipped) for each in capture.skipped] == [
        (True, 0, len(answered(1)) - 4),
        (False, len(sent(1)), 0),
    ]
    assert "no request has the correlation id 1" in capture.skipped[0].reason
    assert "not captured" in capture.skipped[1].reason


def test_a_snap_length_that_cuts_packets_is_reported(tmp_path: Path) -> None:
    peer = TcpPeer()
    opening = peer.opening()
    big = sent(0, HeartbeatRequest(group_id="g" * 500))
    packets = joined(opening, peer.client(big), peer.broker(answered(0)), beats(peer, 2)[2:])
    path = write_capture(tmp_path / "c", packets, snap_length=150)
    capture = read_capture(path)
    assert [each.request.header.correlation_id for each in capture] == [1]
    [cut] = [each for each in capture.skipped if each.missing and not each.is_response]
    assert cut.missing + cut.skipped == len(big) + len(sent(0))
    assert cut.reason == "packets were cut, as by a snap length; capture whole packets with tcpdump -s 0"


@pytest.mark.parametrize("snap_length", [20, 40, 54, 57, 60])
def test_a_capture_of_packets_without_their_messages_reports_what_is_missing(tmp_path: Path, snap_length: int) -> None:
    peer = TcpPeer()
    path = write_capture(tmp_path / "c", peer.opening() + beats(peer, 2), snap_length=snap_length)
    capture = read_capture(path)
    assert list(capture) == []
    reasons = {each.reason for each in capture.skipped}
    assert len(reasons) == 1
    assert "packets were cut" in reasons.pop()
    if snap_length >= 54:
        lost = sum(each.missing + each.skipped for each in capture.skipped)
        assert lost == sum(len(sent(i) + answered(i)) for i in range(2))


def test_a_capture_that_ends_within_a_message_reports_it(tmp_path: Path) -> None:
    peer = TcpPeer()
    packets = peer.opening() + beats(peer, 2, 10)
    path = write_capture(tmp_path / "c", packets[:-1])
    capture = read_capture(path)
    assert [each.response is not None for each in capture] == [True, False]
    assert [(each.is_response, each.missing, each.skipped, each.reason) for each in capture.skipped] == [
        (True, 0, 10, "the capture ends within a message")
    ]


def test_packets_of_several_interfaces_and_sections_are_read_with_their_link_types_and_times(tmp_path: Path) -> None:
    peer = TcpPeer()
    packets = peer.opening() + beats(peer, 3)
    interfaces = [("ethernet", 6), ("sll2", 9), ("raw", 3)]
    first = pcapng_section(interfaces, [(i % 3, packet) for i, packet in enumerate(packets[:5])])
    second = pcapng_section(interfaces[1:], [(i % 2, packet) for i, packet in enumerate(packets[5:])], "big", 5)
    path = tmp_path / "c"
    path.write_bytes(first + pcapng_block(5, bytes(8)) + second)
    assert numbers(path) == [(0, 0), (1, 1), (2, 2)]
    times = [time for each in read_capture(path) for time in (each.request_time, each.response_time)]
    assert [round(each.timestamp() * 1000) - 1_700_000_000_000 for each in times] == list(range(2, 8))


def test_packets_of_a_link_type_that_is_not_supported_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LINK_TYPES, "usb", 220)
    peer = TcpPeer()
    packets = peer.opening() + beats(peer, 2)
    path = tmp_path / "c"
    other = (1, packets[0])
    path.write_bytes(pcapng_section([("ethernet", 6), ("usb", 6)], [other, *((0, each) for each in packets), other]))
    capture = read_capture(path)
    assert len(list(capture)) == 2
    [skipped] = capture.skipped
    assert (skipped.client, skipped.broker, skipped.skipped) == ("", "", 80)
    assert "packets have the link type 220, which is not supported" in skipped.reason
    path.write_bytes(pcapng_section([("usb", 6)], [(0, packets[0])]))
    with pytest.raises(ProtocolError, match=f"{path}: packets have the link type 220, which is not supported"):
        list(read_capture(path))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (bytes.fromhex("01000000 00000000 00000000"), "has the length 0, expected at least 12"),
        (bytes.fromhex("01000000 07000000 00000000"), "has the length 7, expected at least 12"),
        (bytes.fromhex("0a0d0d0a 1c000000 00000000"), "the byte-order mark 00000000"),
        (pcapng_block(6, bytes(20)), "a block of pcapng of type 6 and 32 bytes is damaged"),
        (pcapng_block(6, bytes(4)), "a block of pcapng of type 6 and 16 bytes is damaged"),
        (pcapng_block(1, bytes([1]) + bytes(7)) + pcapng_block(6, bytes(12) + b"\xff" * 8), "type 6 .* is damaged"),
        (pcapng_block(1, bytes([1]) + bytes(7)) + pcapng_block(6, bytes(4) + b"\xff" * 8 + bytes(8)), "seconds since"),
        (pcapng_block(3, bytes(8)), "a block of pcapng of type 3 and 20 bytes is damaged"),
    ],
)
def test_damaged_blocks_are_an_error_that_states_the_place(tmp_path: Path, blocks: bytes, message: str) -> None:
    path = tmp_path / "c"
    path.write_bytes(pcapng_section([], []) + blocks)
    with pytest.raises(ProtocolError, match=rf"before byte \d+: .*{message}"):
        list(read_capture(path))


@pytest.mark.parametrize(
    ("compress", "method"), [(gzip.compress, "gzip"), (zstandard.compress, "zstd"), (lzma.compress, "xz")]
)
def test_a_compressed_capture_is_an_error_that_names_the_method(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], compress: Callable[[bytes], bytes], method: str
) -> None:
    path = tmp_path / "c"
    path.write_bytes(compress(GOLDEN.read_bytes()))
    message = f"{path} is compressed with {method}; decompress it first: {method} -dk FILE"
    with pytest.raises(ProtocolError, match=message):
        list(read_capture(path))
    assert main(["dump", "--protocol", str(path)]) == 1
    assert message in capfd.readouterr().err


def test_requests_that_wait_for_a_response_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbatch.protocol.capture.MAX_WAITING_BYTES", 1 << 20)
    peer = TcpPeer()
    requests = [sent(i, ProduceRequest(transactional_id="x" * 10_000, acks=1), 9) for i in range(2000)]
    path = write_capture(tmp_path / "c", joined(peer.opening(), *(peer.client(each) for each in requests)))
    tracemalloc.start()
    try:
        found = [each.request.header.correlation_id for each in read_capture(path)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == list(range(2000))
    assert peak < 6 << 20


def test_a_request_whose_id_is_used_again_has_no_response(tmp_path: Path) -> None:
    first, second = TcpPeer(), TcpPeer(first=500_000)
    packets = joined(first.opening(), first.client(sent(0)), second.opening(), beats(second, 1))
    assert numbers(write_capture(tmp_path / "c", packets)) == [(0, None), (0, 0)]


def test_a_capture_that_begins_within_a_connection_is_read_from_the_next_message_on(tmp_path: Path) -> None:
    peer = TcpPeer()
    packets = peer.client(sent(0) + sent(1), 25) + beats(peer, 4)
    path = write_capture(tmp_path / "c", packets[1:])
    capture = read_capture(path)
    assert [each.request.header.correlation_id for each in capture][-3:] == [1, 2, 3]
    assert capture.skipped[0].reason == "the capture begins after the start of the connection"


@pytest.mark.parametrize("addresses", [("10.0.0.7", "10.0.0.1"), ("fd00::7", "fd00::1")])
def test_fragments_of_ip_packets_are_reported(tmp_path: Path, addresses: tuple[str, str]) -> None:
    peer = TcpPeer((addresses[0], 51022), (addresses[1], 9092))
    whole = [packet_bytes(each, "raw") for each in peer.opening()]
    (large,) = peer.client(sent(0, HeartbeatRequest(group_id="g" * 3000)))
    rest = [packet_bytes(each, "raw") for each in peer.client(sent(1)) + peer.broker(answered(1))]
    capture = read_capture(write_packets(tmp_path / "c", [*whole, *fragments(large, 1200), *rest]))
    assert [each.request.header.correlation_id for each in capture if each.request is not None] == [1]
    assert sum(each.missing for each in capture.skipped) == len(large[2]) - 20
    assert capture.skipped[-1].reason.startswith("packets are fragments of IP packets, which are not put together")
    assert capture.skipped[-1].skipped == sum(map(len, fragments(large, 1200)))


@pytest.mark.parametrize("port", [None, 9092])
def test_a_capture_of_a_tunnel_is_reported(tmp_path: Path, port: int | None) -> None:
    peer = TcpPeer()
    header = bytes.fromhex("4500ffff00000000402f0000") + bytes([10, 1, 0, 1, 10, 1, 0, 2])
    packets = [
        header + bytes.fromhex("00000800") + packet_bytes(each, "raw") for each in peer.opening() + beats(peer, 2)
    ]
    capture = read_capture(write_packets(tmp_path / "c", packets), port=port)
    reason = "no packet has a TCP segment; packets in tunnels, such as VXLAN and GRE, are not read"
    if port is None:
        assert list(capture) == []
        assert [(each.skipped, each.reason) for each in capture.skipped] == [(sum(map(len, packets)), reason)]
    else:
        with pytest.raises(ProtocolError, match=f"no connection to port 9092: {reason}"):
            list(capture)


def test_only_connections_to_the_port_are_read(tmp_path: Path) -> None:
    kafka, other = TcpPeer(broker=("10.0.0.1", 19092)), TcpPeer(("10.0.0.7", 1234), ("10.0.0.1", 80))
    packets = joined(kafka.opening(), other.opening(), other.client(b"GET / HTTP/1.1\r\n\r\n"), beats(kafka, 1))
    path = write_capture(tmp_path / "c", packets)
    capture = read_capture(path, port=19092)
    assert len(list(capture)) == 1
    assert capture.skipped == []
    everything = read_capture(path)
    assert len(list(everything)) == 1
    assert [(each.broker, each.skipped) for each in everything.skipped] == [("10.0.0.1:80", 18)]
    with pytest.raises(ProtocolError, match="no connection to port 9092"):
        list(read_capture(path, port=9092))


def test_the_side_with_the_port_is_the_broker_even_if_its_port_is_higher(tmp_path: Path) -> None:
    peer = TcpPeer(("10.0.0.7", 1234), ("10.0.0.1", 39092))
    path = write_capture(tmp_path / "c", beats(peer, 2))
    assert numbers(path, 39092) == [(0, 0), (1, 1)]


def test_tls_is_reported(tmp_path: Path) -> None:
    peer = TcpPeer()
    path = write_capture(tmp_path / "c", peer.opening() + peer.client(bytes.fromhex("160301020001") + bytes(100)))
    capture = read_capture(path)
    assert list(capture) == []
    assert [each.reason.partition(";")[0] for each in capture.skipped] == ["the connection is encrypted with TLS"]


def test_tokens_after_a_sasl_handshake_of_version_0_are_no_messages(tmp_path: Path) -> None:
    peer = TcpPeer()
    token = b"\0user\0secret"
    packets = joined(
        peer.opening(),
        peer.client(sent(0, SaslHandshakeRequest(mechanism="PLAIN"), 0)),
        peer.broker(answered(0, SaslHandshakeResponse(), 0)),
        peer.client(len(token).to_bytes(4, "big") + token),
        peer.broker(bytes(4)),
        beats(peer, 3)[2:],
    )
    path = write_capture(tmp_path / "c", packets)
    assert numbers(path) == [(0, 0), (1, 1), (2, 2)]


def test_requests_without_a_response_come_last(tmp_path: Path) -> None:
    peer = TcpPeer()
    packets = joined(
        peer.opening(), peer.client(sent(9)), peer.client(sent(8, ProduceRequest(acks=0), 9)), beats(peer, 2)
    )
    path = write_capture(tmp_path / "c", packets)
    assert numbers(path) == [(8, None), (0, 0), (1, 1), (9, None)]


def test_a_port_that_is_used_again_begins_a_new_connection(tmp_path: Path) -> None:
    first, second = TcpPeer(), TcpPeer(first=500_000)
    packets = joined(first.opening(), beats(first, 2), second.opening(), beats(second, 2))
    path = write_capture(tmp_path / "c", packets)
    assert numbers(path) == [(0, 0), (1, 1), (0, 0), (1, 1)]


def test_names_of_topics_may_follow_the_messages_with_their_ids(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    peer = TcpPeer()
    topic = FetchRequest.FetchTopic(topic_id=ORDERS, partitions=[FetchRequest.FetchPartition(partition=0)])
    records = kbatch.encode([b"v"])
    partition = FetchResponse.PartitionData(partition_index=0, records=records)
    fetched = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic_id=ORDERS, partitions=[partition])])
    metadata = MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(name="orders", topic_id=ORDERS)])
    packets = joined(
        peer.opening(),
        peer.client(sent(1, FetchRequest(topics=[topic]), 13)),
        peer.broker(answered(1, fetched, 13)),
        peer.client(sent(2, MetadataRequest(), 12)),
        peer.broker(answered(2, metadata, 12)),
    )
    path = write_capture(tmp_path / "c", packets)
    assert read_capture(path).topic_names == {ORDERS: "orders"}
    assert main(["dump", "--protocol", str(path)]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["type"], line["api"]) for line in lines] == [
        ("request", "FETCH"), ("response", "FETCH"), ("request", "METADATA"), ("response", "METADATA"),
    ]  # fmt: skip
    assert lines[0]["message"]["topics"][0]["topic"] == "orders"
    assert lines[1]["message"]["responses"][0]["topic"] == "orders"
    assert lines[1]["message"]["responses"][0]["partitions"][0]["records"]["batches"][0]["records"][0]["value"] == "v"
    assert (lines[0]["client"], lines[0]["broker"], lines[0]["time"]) == (
        "10.0.0.7:51022", "10.0.0.1:9092", "2023-11-14T22:13:20.002000+00:00",
    )  # fmt: skip


def test_the_command_reports_what_it_could_not_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    peer = TcpPeer()
    packets = joined(peer.opening(), beats(peer, 2)[2:])
    path = write_capture(tmp_path / "c", packets)
    assert main(["dump", "--protocol", str(path)]) == 3
    errors = capfd.readouterr().err
    assert f"{path}: 10.0.0.7:51022 to 10.0.0.1:9092: {len(sent(0))} bytes missing: bytes were not captured" in errors


def test_a_message_with_an_error_is_listed_and_the_next_is_read(tmp_path: Path) -> None:
    peer = TcpPeer()
    bad = sent(4, FetchRequest(), 13)
    bad = bad[:20] + b"\xff" * (len(bad) - 20)
    packets = joined(peer.opening(), peer.client(bad), beats(peer, 1))
    capture = read_capture(write_capture(tmp_path / "c", packets))
    assert [each.request.header.correlation_id for each in capture if each.response is not None] == [0]
    assert "request with the correlation id 4" in capture.skipped[0].reason


@pytest.mark.parametrize("data", [b"", b"GET / HTTP", bytes(100), b"\n\r\r\n" + bytes(3)])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c"
    path.write_bytes(data)
    with pytest.raises(ProtocolError, match="neither a pcap nor a pcapng file"):
        list(read_capture(path))


def test_a_missing_file_is_an_error_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_capture(tmp_path / "none")


def test_a_packet_with_a_huge_length_is_refused(tmp_path: Path) -> None:
    peer = TcpPeer()
    data = bytearray(write_capture(tmp_path / "c", peer.opening()).read_bytes())
    data[24 + 8 : 24 + 12] = b"\xff\xff\xff\x7f"
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(ProtocolError, match="2,147,483,647 bytes, the limit is 16777216"):
        list(read_capture(tmp_path / "c"))


@pytest.mark.parametrize("ng", [False, True])
def test_a_capture_that_ends_within_a_packet_is_read_up_to_it_and_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ng: bool
) -> None:
    peer = TcpPeer()
    packets = peer.opening() + beats(peer, 2)
    whole = write_capture(tmp_path / "whole", packets, ng=ng).read_bytes()
    start = len(write_capture(tmp_path / "c", packets[:-1], ng=ng).read_bytes())
    for end in range(start, len(whole)):
        path = tmp_path / "c"
        path.write_bytes(whole[:end])
        capture = read_capture(path)
        assert [each.response is not None for each in capture] == [True, False]
        if end == start:
            assert capture.skipped == []
            continue
        [torn] = capture.skipped
        assert torn.skipped == end - start
        assert torn.missing > 0
        assert torn.reason.startswith("the file ends within a packet")
    assert main(["dump", "--protocol", str(path)]) == 3
    expected = (
        f"kbatch dump: {path}: {torn.skipped} bytes skipped and {torn.missing} byte missing: the file ends within"
    )
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize("seed", range(20))
def test_damaged_pcapng_files_give_messages_or_an_error(tmp_path: Path, seed: int) -> None:
    peer = TcpPeer()
    path = tmp_path / "c"
    data = pcapng_section([("raw", 6)], [(0, each) for each in peer.opening() + beats(peer, 20)])
    rng = random.Random(seed)
    for _ in range(40):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 5, 50])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        found = []
        with contextlib.suppress(KbatchError):
            found.extend(read_capture(path))
        assert len(found) <= 2 * 20


@pytest.mark.parametrize("seed", range(60))
def test_damaged_captures_give_messages_or_an_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(GOLDEN.read_bytes())
    for _ in range(rng.choice([1, 5, 50, 500])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path = tmp_path / "c"
    path.write_bytes(data)
    found = []
    with contextlib.suppress(KbatchError):
        found.extend(read_capture(path))
    assert len(found) <= 60


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dpkt", None)
    with pytest.raises(MissingDependencyError, match="reading captures needs dpkt"):
        list(read_capture(GOLDEN))
