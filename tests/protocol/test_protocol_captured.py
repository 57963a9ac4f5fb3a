"""Messages between clients of several languages and a broker, captured by ``tests/broker/capture.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbatch.protocol import (
    ApiKey,
    ProtocolError,
    decode_fetch,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    split_messages,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol"
CAPTURES = sorted(path.with_suffix("") for path in GOLDEN.glob("*.requests"))


class Answered(NamedTuple):
    api_key: int
    version: int
    data: bytes


def requests(capture: Path) -> list[bytes]:
    return [bytes(each) for each in split_messages(capture.with_suffix(".requests").read_bytes())]


def responses(capture: Path) -> Iterator[Answered]:
    pending = {}
    for each in requests(capture):
        request = decode_request(each)
        pending[request.header.correlation_id] = request.api_key, request.version
    for data in split_messages(capture.with_suffix(".responses").read_bytes()):
        yield Answered(*pending.pop(int.from_bytes(data[:4], "big")), bytes(data))


def test_every_client_was_captured() -> None:
    names = {capture.name.rpartition("-")[0] for capture in CAPTURES}
    assert names == {"aiokafka", "java", "kafka-python", "librdkafka"}
    seen = {decode_request(each).api_key for capture in CAPTURES for each in requests(capture)}
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.END_TXN, ApiKey.OFFSET_COMMIT} <= seen


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_messages_round_trip_to_the_same_bytes(capture: Path) -> None:
    for data in requests(capture):
        request = decode_request(data)
        written = encode_request(request.message, request.version, header=request.header, framed=False)
        assert b"".join(written) == data
    for answered in responses(capture):
        response = decode_response(answered.data, answered.api_key, answered.version)
        written = encode_response(response.message, response.version, header=response.header, framed=False)
        assert b"".join(written) == answered.data


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_every_truncation_is_an_error(capture: Path) -> None:
    for data in requests(capture):
        for end in range(len(data)):
            with pytest.raises(ProtocolError):
                decode_request(data[:end])
    for answered in responses(capture):
        for end in range(0, len(answered.data), 3):
            with pytest.raises(ProtocolError):
                decode_response(answered.data[:end], answered.api_key, answered.version)


def test_fetched_records_are_decoded() -> None:
    rows = 0
    for capture in CAPTURES:
        for answered in responses(capture):
            if answered.api_key == ApiKey.FETCH:
                response = decode_response(answered.data, answered.api_key, answered.version)
                rows += sum(len(each.table) for each in decode_fetch(response.message))
    assert rows > 10
