"""Targets that read messages of Kafka's protocol."""

from __future__ import annotations

import random
from typing import Any

from batch_targets import LIMITS, use
from choices import split
from protocol_messages import VERSIONS, generate

import kbatch
from kbatch.protocol import (
    FetchResponse,
    MessageSplitter,
    UnknownMessage,
    aborted_transactions,
    decode_fetch,
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    message_class,
    split_messages,
    supported_versions,
)

MAX_SIZE = 1 << 20


def fuzz_message(data: bytes) -> None:
    """Decode a message of any version, encode it, and decode it again: both messages are equal."""
    choices, data = split(data)
    name, version = choices.of(VERSIONS)
    cls = message_class(name)
    try:
        message = decode_message(cls, data, version, max_size=MAX_SIZE)
    except kbatch.ProtocolError as error:
        assert error.position is not None
        assert 0 <= error.position <= len(data)
        return
    repr(message)
    encoded = b"".join(encode_message(message, version))
    assert decode_message(cls, encoded, version) == message


def fuzz_request(data: bytes) -> None:
    """Decode requests and responses with their headers, and split a stream of messages."""
    choices, data = split(data)
    kind = choices.of(["request", "response", "stream"])
    versions = sorted(supported_versions().items())
    if kind == "response":
        key, span = choices.of(versions)
        try:
            decode_response(data, key, choices.of(list(span)), max_size=MAX_SIZE)
        except kbatch.ProtocolError:
            return
    elif kind == "request":
        try:
            request = decode_request(data, max_size=MAX_SIZE)
        except kbatch.ProtocolError:
            return
        if isinstance(request, UnknownMessage):
            assert data.endswith(request.body)
            return
        encoded = b"".join(encode_request(request.message, request.version, header=request.header, framed=False))
        assert decode_request(encoded) == request
    else:
        _check_split(data, choices.of([1, 3, 100]))


def _check_split(data: bytes, size: int) -> None:
    """Split a stream of messages in chunks and as a whole: the same messages, and an error in both or in none."""
    whole: list[bytes] = []
    parts: list[bytes] = []
    failures = []
    try:
        whole += map(bytes, split_messages(data, max_size=MAX_SIZE))
    except (kbatch.ProtocolError, kbatch.LimitExceededError):
        failures.append("whole")
    splitter = MessageSplitter(max_size=MAX_SIZE)
    try:
        for at in range(0, len(data), size):
            parts += map(bytes, splitter.feed(data[at : at + size]))
        splitter.finish()
    except (kbatch.ProtocolError, kbatch.LimitExceededError):
        failures.append("parts")
    assert failures in ([], ["whole", "parts"]), failures
    assert whole == parts


def fuzz_fetch(data: bytes) -> None:
    """Decode a fetch response and the batches in it."""
    choices, data = split(data)
    version = choices.of(list(range(4, 17)))
    try:
        response = decode_message(FetchResponse, data, version, max_size=MAX_SIZE)
    except kbatch.ProtocolError:
        return
    options: dict[str, Any] = {
        "on_error": choices.of(["skip", "raise", "stop"]),
        "isolation": choices.of(["read_uncommitted", "read_committed"]),
        "limits": LIMITS,
    }
    try:
        for partition in decode_fetch(response, **options):
            if partition.table is not None:
                use(partition.table)
        for topic in response.responses:
            for each in topic.partitions:
                aborted_transactions(each)
    except kbatch.KbatchError:
        return


def message_seeds() -> list[tuple[int, bytes]]:
    """Return a small message of each version with its number in `VERSIONS`."""
    seeds = []
    for number, (name, version) in enumerate(VERSIONS):
        rng = random.Random(f"seed {name} {version}")
        made = min((b"".join(encode_message(generate(rng, name, version), version)) for _ in range(4)), key=len)
        seeds.append((number, made))
    return seeds


def fetch_seed(batches: bytes, version: int) -> bytes:
    """Encode a fetch response with one partition that holds `batches`."""
    response = FetchResponse()
    topic = type(response).FetchableTopicResponse()
    partition = type(response).PartitionData()
    partition.records = batches
    topic.partitions = [partition]
    response.responses = [topic]
    return b"".join(encode_message(response, version))
