"""The memory of a message's objects: counted while they are built, and limited like that of a table."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import kbatch
from kbatch.protocol import (
    ApiVersionsRequest,
    DescribeClientQuotasResponse,
    DescribeTransactionsRequest,
    FetchResponse,
    Message,
    MetadataResponse,
    OffsetFetchRequest,
    ProduceRequest,
    RequestHeader,
    ShareFetchRequest,
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
)


def metadata(count: int = 4000) -> MetadataResponse:
    partition = MetadataResponse.MetadataResponsePartition
    topic = MetadataResponse.MetadataResponseTopic
    partitions = [
        partition(partition_index=i % 5, leader_id=1000 + i, replica_nodes=[1, 2000 + i], isr_nodes=[3000 + i])
        for i in range(count)
    ]
    return MetadataResponse(topics=[topic(name=f"topic-{i}", partitions=partitions[i::100]) for i in range(100)])


def records(count: int) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=i, records=b"") for i in range(count)]
    return ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=data)])


def quotas(count: int) -> DescribeClientQuotasResponse:
    entries = DescribeClientQuotasResponse.EntryData
    value = DescribeClientQuotasResponse.ValueData
    return DescribeClientQuotasResponse(entries=[entries(values=[value(key="k", value=i / 7)]) for i in range(count)])


def offsets(texts: list[str]) -> OffsetFetchRequest:
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=text, partition_indexes=[]) for text in texts]
    return OffsetFetchRequest(group_id="g", topics=topics)


# What each kind of object costs: numbers, texts of one, two and four bytes a character, ids, bytes, views, structures.
MESSAGES: dict[str, tuple[Message, int]] = {
    "metadata": (metadata(), 9),
    "numbers": (FetchResponse(responses=[FetchResponse.FetchableTopicResponse()] * 20000), 12),
    "integers": (
        OffsetFetchRequest(
            topics=[
                OffsetFetchRequest.OffsetFetchRequestTopic(
                    name="t", partition_indexes=list(range(1 << 20, 1 << 20 | 50000))
                )
            ]
        ),
        3,
    ),
    "ascii": (offsets([f"topic {i}" for i in range(10000)]), 3),
    "long text": (offsets([f"{i}" * 2000 for i in range(1000)]), 3),
    "wide text": (offsets([f"\U0001f600{i}" * 50 for i in range(4000)]), 3),
    "short text": (DescribeTransactionsRequest(transactional_ids=["", "a", "b"] * 10000), 0),
    "ids": (
        ShareFetchRequest(topics=[ShareFetchRequest.FetchTopic(topic_id=uuid.UUID(int=i << 90)) for i in range(9000)]),
        1,
    ),
    "views": (records(10000), 3),
    "doubles": (quotas(8000), 1),
    "tags": (ApiVersionsRequest(unknown_tags=dict.fromkeys(range(20000), b"value")), 3),
    "one large tag": (ApiVersionsRequest(unknown_tags={9: bytes(3 << 20)}), 3),
    "records": (
        FetchResponse(
            responses=[
                FetchResponse.FetchableTopicResponse(partitions=[FetchResponse.PartitionData(records=bytes(1 << 20))])
            ]
        ),
        4,
    ),
}


def limits(size: int) -> kbatch.Limits:
    return kbatch.Limits(max_table_bytes=size)


def peak_of(call: Callable[[], Any]) -> int:
    """Return the most memory that a call takes, with its result."""
    gc.collect()
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
        del result
        return peak
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", MESSAGES)
def test_the_limit_counts_the_memory_of_the_objects(kind: str) -> None:
    """A message is decoded with a limit above the memory that it takes, and refused with one below it."""
    message, version = MESSAGES[kind]
    data = b"".join(encode_message(message, version))
    decode_message(type(message), data, version)
    taken = peak_of(lambda: decode_message(type(message), data, version))
    decode_message(type(message), data, version, limits=limits(int(taken * 1.3) + 2000))
    if kind != "records":
        with pytest.raises(kbatch.LimitExceededError, match=r"the objects of the message take more than \d+ bytes"):
            decode_message(type(message), data, version, limits=limits(int(taken * 0.8)))


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_above_the_limit_takes_no_more_memory_than_the_limit(kind: str) -> None:
    message, version = MESSAGES[kind]
    data = b"".join(encode_message(message, version))

    def refused() -> None:
        with pytest.raises(kbatch.LimitExceededError):
            decode_message(type(message), data, version, limits=limits(100_000 if kind != "records" else 100))

    refused()
    assert peak_of(refused) < 200_000


def test_requests_and_responses_with_their_headers_are_limited_as_a_whole() -> None:
    request = b"".join(encode_request(ApiVersionsRequest(unknown_tags={9: bytes(5000)}), 3))[4:]
    response = b"".join(encode_response(metadata(200), 9))[4:]
    decode_request(request, limits=limits(100_000))
    decode_response(response, 3, 9, limits=limits(200_000))
    with pytest.raises(kbatch.LimitExceededError, match=r"^byte \d+, message: .* limits=kbatch.Limits"):
        decode_request(request, limits=limits(4000))
    with pytest.raises(kbatch.LimitExceededError, match=r"^byte \d+, topics\[\d+\].* limits=kbatch.Limits"):
        decode_response(response, 3, 9, limits=limits(4000))
    # The header counts too: each of the two fits.
    header = RequestHeader(unknown_tags={9: bytes(5000)})
    for message, given, fits in (
        (ApiVersionsRequest(), header, True),
        (ApiVersionsRequest(unknown_tags={9: bytes(5000)}), None, True),
        (ApiVersionsRequest(unknown_tags={9: bytes(5000)}), header, False),
    ):
        request = b"".join(encode_request(message, 3, header=given, framed=False))
        with contextlib.nullcontext() if fits else pytest.raises(kbatch.LimitExceededError):
            decode_request(request, limits=limits(8000))


def test_by_default_the_limit_is_that_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbatch.read.budget.default_table_bytes", lambda: 100_000)
    with pytest.raises(kbatch.LimitExceededError, match="take more than 100000 bytes"):
        decode_message(MetadataResponse, b"".join(encode_message(metadata(), 9)), 9)
