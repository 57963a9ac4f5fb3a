"""Responses are paired with their requests; the segments of a connection become its bytes."""

from __future__ import annotations

import random
import uuid

import pytest

from kbatch.errors import ProtocolError
from kbatch.protocol import (
    Conversation,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    UnknownMessage,
    decode_fetch,
    encode_request,
    encode_response,
)
from kbatch.protocol.tcp_stream import TcpStream

ORDERS = uuid.UUID(int=7)


def sent(message: Message, version: int, number: int) -> bytes:
    return b"".join(encode_request(message, version, correlation_id=number, framed=False))


def answered(message: Message, version: int, number: int) -> bytes:
    return b"".join(encode_response(message, version, correlation_id=number, framed=False))


def test_responses_in_any_order_are_paired_with_their_requests() -> None:
    conversation = Conversation()
    conversation.request(sent(HeartbeatRequest(group_id="a"), 4, 1))
    conversation.request(sent(MetadataRequest(), 12, 2))
    assert [type(each.message).__name__ for each in conversation.unanswered] == ["HeartbeatRequest", "MetadataRequest"]
    later = conversation.response(answered(MetadataResponse(), 12, 2))
    first = conversation.response(answered(HeartbeatResponse(error_code=27), 4, 1))
    assert (later.request.version, later.response.version) == (12, 12)
    assert (first.request.message.group_id, first.response.message.error_code) == ("a", 27)
    assert conversation.unanswered == []


def test_a_response_without_a_request_is_an_error() -> None:
    conversation = Conversation()
    assert not conversation.expects(5)
    with pytest.raises(ProtocolError, match="no request has the correlation id 5"):
        conversation.response(answered(HeartbeatResponse(), 4, 5))


def test_a_produce_request_without_acks_awaits_no_response() -> None:
    conversation = Conversation()
    conversation.request(sent(ProduceRequest(acks=0), 9, 1))
    conversation.request(sent(ProduceRequest(acks=1), 9, 2))
    assert [each.header.correlation_id for each in conversation.unanswered] == [2]


def test_the_response_of_a_request_with_an_error_is_read() -> None:
    conversation = Conversation()
    with pytest.raises(ProtocolError):
        conversation.request(sent(HeartbeatRequest(group_id="group"), 4, 3)[:-4])
    exchange = conversation.response(answered(HeartbeatResponse(error_code=27), 4, 3))
    assert exchange.request is None
    assert exchange.response.message.error_code == 27


def test_messages_of_unknown_apis_are_paired() -> None:
    conversation = Conversation()
    request = conversation.request(bytes.fromhex("03e8 0000 00000009 ffff 00") + b"later")
    exchange = conversation.response(bytes.fromhex("00000009 00") + b"answer")
    assert isinstance(request, UnknownMessage)
    assert exchange.request is request
    assert bytes(exchange.response.body) == b"answer"


@pytest.mark.parametrize(
    ("request_", "response", "version"),
    [
        (
            MetadataRequest(),
            MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(name="orders", topic_id=ORDERS)]),
            12,
        ),
        (
            CreateTopicsRequest(),
            CreateTopicsResponse(topics=[CreateTopicsResponse.CreatableTopicResult(name="orders", topic_id=ORDERS)]),
            7,
        ),
    ],
)
def test_topics_of_a_fetch_have_the_names_that_responses_gave(
    request_: Message, response: Message, version: int
) -> None:
    conversation = Conversation()
    conversation.request(sent(request_, version, 1))
    conversation.response(answered(response, version, 1))
    assert conversation.topic_names == {ORDERS: "orders"}
    partition = FetchResponse.PartitionData(partition_index=0)
    topic = FetchResponse.FetchableTopicResponse(topic_id=ORDERS, partitions=[partition])
    conversation.request(sent(FetchRequest(), 13, 2))
    exchange = conversation.response(answered(FetchResponse(responses=[topic]), 13, 2))
    [named] = decode_fetch(exchange.response.message, topic_names=conversation.topic_names)
    [unnamed] = decode_fetch(exchange.response.message)
    assert (named.topic, unnamed.topic, named.topic_id) == ("orders", "", ORDERS)


def test_a_topic_without_an_id_or_name_names_nothing() -> None:
    topics = [
        MetadataResponse.MetadataResponseTopic(name="orders"),
        MetadataResponse.MetadataResponseTopic(name=None, topic_id=ORDERS),
    ]
    conversation = Conversation()
    conversation.request(sent(MetadataRequest(), 12, 1))
    conversation.response(answered(MetadataResponse(topics=topics), 12, 1))
    assert conversation.topic_names == {}


@pytest.mark.parametrize("seed", range(40))
def test_segments_in_any_order_with_repetitions_give_the_bytes_that_were_sent(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(rng.randint(1, 3000))
    first = rng.choice([0, 1, 2**31 - 100, 2**32 - 1, 2**32 - 1500])
    cuts = sorted(rng.sample(range(len(data) + 1), min(len(data), rng.randint(0, 30))))
    segments = [(at, data[at:end]) for at, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    # Repeated segments overlap in any way.
    segments += [(at, data[at : at + rng.randint(1, 400)]) for at in rng.choices(range(len(data)), k=10)]
    rng.shuffle(segments)
    stream = TcpStream()
    stream.start(first - 1)
    found = b""
    for at, part in segments:
        for chunk in stream.feed((first + at) % 2**32, memoryview(part), 0.0):
            assert chunk.missing == 0
            found += chunk.data
    assert found == data
    assert list(stream.finish()) == []


def test_bytes_that_the_receiver_has_and_the_capture_lacks_are_missing() -> None:
    stream = TcpStream()
    stream.start(99)
    assert [bytes(each.data) for each in stream.feed(100, memoryview(b"abc"), 0.0)] == [b"abc"]
    assert list(stream.feed(107, memoryview(b"hij"), 1.0)) == []
    # The receiver lacks the bytes itself: they may follow.
    assert list(stream.acknowledge(103)) == []
    [chunk] = stream.acknowledge(110)
    assert (chunk.missing, bytes(chunk.data), chunk.time) == (4, b"hij", 1.0)


def test_segments_after_missing_bytes_take_bounded_memory() -> None:
    stream = TcpStream()
    stream.start(0)
    part = memoryview(bytes(1 << 20))
    chunks = [chunk for i in range(20) for chunk in stream.feed(2 + (i << 20), part, 0.0)]
    assert len(chunks) == 20
    assert [chunk.missing for chunk in chunks] == [1] + [0] * 19
