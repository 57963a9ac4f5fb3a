"""Messages in every version: round trips, truncation, damage, and errors with the byte and the field."""

from __future__ import annotations

import copy
import pickle
import random
import struct
import uuid
from typing import Any

import pytest
from protocol_messages import LISTED_APIS, VERSIONS, generate

import kbatch
from kbatch.protocol import (
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    JoinGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProtocolError,
    RequestHeader,
    UnknownMessage,
    common_versions,
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
    message_class,
    supported_versions,
)
from kbatch.protocol.schema import PROTOCOL_MESSAGES, message_schemas


def joined(message: Any, version: int) -> bytes:
    return b"".join(encode_message(message, version))


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_message_round_trips(name: str, version: int) -> None:
    rng = random.Random(f"{name} {version}")
    for _ in range(8):
        message = generate(rng, name, version)
        data = joined(message, version)
        read = decode_message(message_class(name), data, version)
        assert read == message
        assert joined(read, version) == data


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_default_values_round_trip(name: str, version: int) -> None:
    cls = message_class(name)
    message = cls()
    assert decode_message(cls, joined(message, version), version) == message
    assert repr(message) == f"{name}()"
    # Reading the default of a structure or an array stores it in the object, which stays equal to a new one.
    for field in cls.schema.fields:
        getattr(message, field.name)
    assert message == cls()
    assert decode_message(cls, joined(message, version), version) == cls()


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_truncation_is_an_error(name: str, version: int) -> None:
    cls = message_class(name)
    rng = random.Random(f"cut {name} {version}")
    data = min((joined(generate(rng, name, version), version) for _ in range(5)), key=lambda each: abs(len(each) - 150))
    ends = range(len(data)) if len(data) < 400 else [*range(200), *rng.sample(range(len(data)), 100)]
    for end in ends:
        with pytest.raises(ProtocolError) as caught:
            decode_message(cls, data[:end], version)
        assert caught.value.position is not None
        assert 0 <= caught.value.position <= end
        assert str(caught.value).startswith(f"byte {caught.value.position}")
    with pytest.raises(ProtocolError, match=rf"byte {len(data)}: 3 trailing bytes after the message"):
        decode_message(cls, data + b"\0\0\0", version)


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_damaged_messages_are_read_or_raise_a_protocol_error(name: str, version: int) -> None:
    cls = message_class(name)
    rng = random.Random(f"damage {name} {version}")
    for _ in range(12):
        data = bytearray(joined(generate(rng, name, version), version))
        for _ in range(rng.choice([1, 1, 5])):
            if data:
                data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        try:
            message = decode_message(cls, data, version)
        except ProtocolError:
            continue
        # Invalid UTF-8 is decoded as U+FFFD, which takes more bytes and may make a string too long.
        assert decode_message(cls, joined(message, version), version) == message


def test_random_bytes_are_read_or_raise_a_protocol_error() -> None:
    rng = random.Random(17)
    unknown = 0
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(80))
        start = rng.choice([b"", struct.pack(">ihb", 5, -1, 0)])
        data = struct.pack(">hh", rng.choice([*supported_versions(), 7, 999]), rng.randrange(20)) + start + data
        try:
            request = decode_request(data)
        except ProtocolError:
            continue
        if isinstance(request, UnknownMessage):
            unknown += 1
            assert data.endswith(request.body)
            continue
        encoded = b"".join(encode_request(request.message, request.version, header=request.header, framed=False))
        again = decode_request(encoded)
        assert again == request
    assert unknown > 100


@pytest.mark.parametrize(
    ("cls", "version", "data", "text"),
    [
        (FetchResponse, 0, "7fffffff", "byte 0, responses: array of 2147483647 elements, but the remaining 0 bytes"),
        (FetchResponse, 0, "80000000", "byte 0, responses: array of -2147483648 elements"),
        (FetchResponse, 0, "ffffffff", "byte 0, responses: null, but the field is not nullable"),
        (FetchResponse, 12, "00000000 0000 00000000 ffffffff0f", "byte 10, responses: array of 4294967294 elements"),
        (FetchResponse, 12, "00000000 0000 00000000 ffffffff1f", "byte 10, responses: .* more than 32 bits"),
        (FetchResponse, 12, "00000000 0000 00000000 808080808000", "byte 10, responses: .* more than 32 bits"),
        (FetchResponse, 12, "00000000 0000 00000000 80", "byte 10, responses: variable-length integer is cut"),
        (
            FetchResponse,
            0,
            "00000001 000161 00000001 00000007 0000 0000000000000005 00000063 0102",
            r"byte 25, responses\[0\].partitions\[0\].records: length is 99, but 2 bytes remain",
        ),
        (
            FetchResponse,
            0,
            "00000001 000161 00000001 00000007 0000 0000000000000005 fffffffe",
            r"byte 25, responses\[0\].partitions\[0\].records: length is -2",
        ),
        (MetadataRequest, 0, "00000002 000161 fffe 0000", r"byte 7, topics\[1\].name: length is -2"),
        (MetadataRequest, 0, "00000001 ffff", r"byte 4, topics\[0\].name: null, but"),
        (JoinGroupRequest, 6, "8080028080", "byte 0, group_id: length is 32767, but 2 bytes remain"),
        (ApiVersionsRequest, 3, "01 61", "byte 1, client_software_version: length is 96, but 0 bytes remain"),
        (ApiVersionsResponse, 3, "0000 01 00000000 01 00 02 0102", "byte 11, supported_features: 1 trailing bytes"),
        (
            ApiVersionsResponse,
            3,
            "0000 01 00000000 02 0301 01 0301 00",
            "byte 11, zk_migration_ready: tag 3 is repeated",
        ),
        (ApiVersionsResponse, 3, "0000 01 00000000 02 630161 630162", "byte 11: tag 99 is repeated"),
        (ApiVersionsResponse, 3, "0000 01 00000000 01 63 05 00", "byte 10: needs 5 bytes, 1 remain"),
    ],
)
def test_errors_name_the_byte_and_the_field(cls: Any, version: int, data: str, text: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{text}"):
        decode_message(cls, bytes.fromhex(data), version)


def test_errors_have_position_and_field_and_can_be_pickled() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_message(MetadataRequest, bytes.fromhex("00000002 000161 fffe 0000"), 0)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.position, error.field) == (7, "topics[1].name")
    assert str(error) == str(caught.value)
    assert isinstance(error, kbatch.KbatchError)


def test_strings_longer_than_kafka_allows_are_rejected() -> None:
    """PRI-R5: this holds even if the encoding allows longer strings."""
    data = bytes.fromhex("818002") + b"x" * 32768 + b"\1\0"
    with pytest.raises(ProtocolError, match="byte 0, client_software_name: string of 32768 bytes, the limit is 32767"):
        decode_message(ApiVersionsRequest, data, 3)
    with pytest.raises(ValueError, match="client_software_name: string of 32768 bytes"):
        encode_message(ApiVersionsRequest(client_software_name="x" * 32768), 3)


def test_text_that_is_not_utf8_is_replaced() -> None:
    assert decode_message(MetadataRequest, bytes.fromhex("00000001 0003 61ff62"), 0).topics[0].name == "a\ufffdb"


def test_messages_above_the_size_limit_are_not_written() -> None:
    data = joined(MetadataRequest(topics=[]), 1)
    assert decode_message(MetadataRequest, data, 1, max_size=len(data)) == MetadataRequest(topics=[])
    with pytest.raises(kbatch.LimitExceededError, match="message of 4 bytes, the limit is 3"):
        decode_message(MetadataRequest, data, 1, max_size=3)


@pytest.mark.parametrize(
    ("message", "version", "text"),
    [
        (FetchRequest(topics=None), 4, "topics: None, but the field is not nullable"),
        (FetchRequest(max_wait_ms=2**31), 4, "max_wait_ms: 2147483648 is not between -2147483648 and 2147483647"),
        (FetchRequest(isolation_level=-129), 4, "isolation_level: -129 is not between -128 and 127"),
        (FetchRequest(max_wait_ms=2**70), 4, "max_wait_ms: .*"),
        (FetchRequest(max_wait_ms="1"), 4, "max_wait_ms: .*"),
        (FetchRequest(topics={}), 4, "topics: expected a list, got dict"),
        (FetchRequest(topics=[FetchRequest()]), 4, r"topics\[0\]: expected FetchRequest.FetchTopic, got FetchRequest"),
        (
            FetchRequest(topics=[FetchRequest.FetchTopic(), FetchRequest.FetchTopic(topic=b"x")]),
            4,
            r"topics\[1\].topic: expected str, got bytes",
        ),
        (FetchRequest(topics=[FetchRequest.FetchTopic(topic="\ud800")]), 4, r"topics\[0\].topic: .*surrogates"),
        (ListOffsetsRequest(isolation_level=1), 1, "isolation_level: version 1 does not have this field"),
        (ProduceRequest(transactional_id="t"), 2, "transactional_id: version 2 does not have this field"),
        (MetadataRequest(unknown_tags={5: b""}), 8, "version 8 has no tagged fields"),
        (FetchRequest(unknown_tags={0: b""}), 12, "tag 0 is not unknown: set the field with this tag"),
        (FetchRequest(unknown_tags={-1: b""}), 12, "tag -1 is not between"),
    ],
)
def test_values_that_do_not_fit_their_field_are_not_written(message: Any, version: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        encode_message(message, version)


def test_ignorable_fields_are_dropped_in_versions_without_them() -> None:
    data = joined(FetchRequest(rack_id="r", session_epoch=7), 4)
    assert decode_message(FetchRequest, data, 4) == FetchRequest()


def test_unsupported_versions_raise() -> None:
    with pytest.raises(ValueError, match="FetchRequest has the versions 0 to 18, 19 is not one of them"):
        encode_message(FetchRequest(), 19)
    with pytest.raises(TypeError, match="FetchTopic is a part of a message"):
        decode_message(FetchRequest.FetchTopic, b"", 0)


@pytest.mark.parametrize(
    ("api_key", "version", "flexible"),
    [(1, 19, True), (17, 2, False), (4, 3, False), (4, 4, True), (83, 0, True), (999, 7, True), (-1, 0, True)],
)
def test_a_message_of_an_unknown_api_or_version_has_its_header_and_body(
    api_key: int, version: int, flexible: bool
) -> None:
    """Nothing of it is lost: the tagged fields belong to the header where the version is flexible (PRI-R8)."""
    start = struct.pack(">hhi", api_key, version, 5) + b"\0\2me"
    tags = bytes.fromhex("01 09 01 ff") if flexible else b""
    unknown = decode_request(start + tags + b"the body")
    assert isinstance(unknown, UnknownMessage)
    assert (unknown.api_key, unknown.version, bytes(unknown.body)) == (api_key, version, b"the body")
    assert (unknown.header.correlation_id, unknown.header.client_id) == (5, "me")
    assert unknown.header.unknown_tags == ({9: b"\xff"} if flexible else {})
    for end in range(len(start + tags)):
        with pytest.raises(ProtocolError):
            decode_request((start + tags)[:end])

    answer = decode_response(struct.pack(">i", 5) + tags + b"the body", api_key, version)
    assert isinstance(answer, UnknownMessage)
    assert (answer.api_key, answer.version, bytes(answer.body)) == (api_key, version, b"the body")
    assert (answer.header.correlation_id, answer.header.unknown_tags) == (5, {9: b"\xff"} if flexible else {})


def test_a_controlled_shutdown_of_version_0_has_no_client_id() -> None:
    unknown = decode_request(struct.pack(">hhii", 7, 0, 5, 1))
    assert (unknown.header.correlation_id, unknown.header.client_id, bytes(unknown.body)) == (5, "", b"\0\0\0\1")


def test_listed_apis_have_a_schema() -> None:
    """`test_protocol_schemas` compares the list with Kafka's jar."""
    listed = {}
    for line in LISTED_APIS.read_text().splitlines():
        key, name, versions, flexible = line.split(" ")
        first, last = map(int, versions.split("-"))
        listed[int(key)] = range(first, last + 1)
        schema = message_schemas()[name]
        assert schema.api_key == int(key)
        assert str(schema.flexible.start if schema.flexible else "none") == flexible, name
        assert message_schemas()[name.replace("Request", "Response")].versions == schema.versions
    assert listed == supported_versions()


def test_messages_are_constructed_from_their_fields() -> None:
    with pytest.raises(TypeError, match="FetchRequest has no field 'topic'"):
        FetchRequest(topic="x")
    request = FetchRequest()
    with pytest.raises(AttributeError):
        request.topic = "x"
    with pytest.raises(AttributeError, match="FetchRequest has no field 'topic'"):
        _ = request.topic
    request.topics.append(FetchRequest.FetchTopic(topic="x"))
    assert FetchRequest().topics == []
    assert request == FetchRequest(topics=[FetchRequest.FetchTopic(topic="x")])
    assert request != FetchRequest()
    assert request != 3
    assert FetchRequest().max_bytes == 2**31 - 1
    assert FetchResponse.PartitionData().diverging_epoch == FetchResponse.EpochEndOffset(epoch=-1, end_offset=-1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(request)


def test_repr_is_short() -> None:
    partitions = [FetchResponse.PartitionData(partition_index=i + 1, records=memoryview(bytes(9))) for i in range(1000)]
    message = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])
    assert repr(message) == (
        "FetchResponse(responses=[FetchableTopicResponse(topic='t', partitions=["
        "PartitionData(partition_index=1, records=<9 bytes>), PartitionData(partition_index=2, records=<9 bytes>), "
        "PartitionData(partition_index=3, records=<9 bytes>), ... 997 more])])"
    )
    assert repr(FetchRequest(rack_id="x" * 100, unknown_tags={9: b"x"})).endswith("..., unknown_tags={9: b'x'})")


def test_messages_are_copied_and_pickled() -> None:
    message = MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(name="t")], unknown_tags={9: b"x"})
    assert copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert message.to_dict(changed=True) == {"topics": [{"name": "t"}]}
    assert "controller_id" not in message.to_dict(version=0)


def test_unknown_tagged_fields_are_written_back() -> None:
    data = bytes.fromhex("01 01 02 05 02 aabb 630163")
    message = decode_message(ApiVersionsRequest, data, 3)
    assert message.unknown_tags == {5: b"\xaa\xbb", 99: b"c"}
    assert joined(message, 3) == data
    message.unknown_tags[7] = b""
    assert joined(message, 3) == bytes.fromhex("01 01 03 05 02 aabb 0700 630163")


def test_tags_have_32_bits() -> None:
    """Kafka reads a tag as an unsigned varint, and keeps those that it does not know."""
    data = bytes.fromhex("01 01 01 feffffff0f 01 aa")
    message = decode_message(ApiVersionsRequest, data, 3)
    assert message.unknown_tags == {0xFFFFFFFE: b"\xaa"}
    assert joined(message, 3) == data
    with pytest.raises(ValueError, match="tag 4294967296 is not between 0 and 4294967295"):
        joined(ApiVersionsRequest(unknown_tags={1 << 32: b""}), 3)


def test_request_headers_round_trip() -> None:
    for version, size in ((11, 10 + 6), (12, 10 + 6 + 1)):
        buffers = encode_request(FetchRequest(), version, correlation_id=9, client_id="client")
        data = b"".join(buffers)
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        request = decode_request(data[4:])
        assert (request.api_key, request.version) == (ApiKey.FETCH, version)
        assert request.header == RequestHeader(
            request_api_key=1, request_api_version=version, correlation_id=9, client_id="client"
        )
        assert request.message == FetchRequest()
        assert len(data) - 4 - len(joined(FetchRequest(), version)) == size


def test_a_request_header_is_written_back_unchanged() -> None:
    data = bytes.fromhex("0012 0003 00000007 ffff 01 050161 01 01 00")
    request = decode_request(data)
    assert request.header.client_id is None
    assert request.header.unknown_tags == {5: b"a"}
    assert b"".join(encode_request(request.message, 3, header=request.header, framed=False)) == data


@pytest.mark.parametrize("version", [0, 3, 4])
def test_the_header_of_an_api_versions_response_is_not_flexible(version: int) -> None:
    """PRI-R8: the header has no tagged fields in any version."""
    data = b"".join(encode_response(ApiVersionsResponse(), version, correlation_id=5))
    assert data[4:10] == bytes.fromhex("00000005 0000")
    assert decode_response(data[4:], ApiKey.API_VERSIONS, version).message == ApiVersionsResponse()


def test_an_unsupported_version_error_is_read_in_version_0() -> None:
    refusal = ApiVersionsResponse(
        error_code=kbatch.ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, max_version=2)],
    )
    data = b"".join(encode_response(refusal, 0, correlation_id=5, framed=False))
    response = decode_response(data, 18, 4)
    assert (response.version, response.message) == (0, refusal)
    same = b"".join(encode_response(refusal, 4, correlation_id=5, framed=False))
    assert decode_response(same, 18, 4).version == 4
    with pytest.raises(ProtocolError):
        decode_response(data[:-1], 18, 4)
    # kbatch does not have the version that the client asked for.
    assert decode_response(data, 18, 99) == response
    with pytest.raises(ProtocolError):
        decode_response(data[:-1], 18, 99)


def test_the_highest_common_version_is_selected() -> None:
    def version(key: int, low: int, high: int) -> Any:
        return ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)

    response = ApiVersionsResponse(
        api_keys=[version(0, 3, 7), version(1, 4, 99), version(2, 90, 99), version(4, 0, 5), version(999, 0, 1)]
    )
    assert common_versions(response) == {ApiKey.PRODUCE: 7, ApiKey.FETCH: 18}


def test_messages_have_the_api_keys_of_kafka() -> None:
    for name, schema in message_schemas().items():
        if schema.api_key is not None and name in PROTOCOL_MESSAGES:
            assert name in (f"{ApiKey(schema.api_key).title}Request", f"{ApiKey(schema.api_key).title}Response")
    assert ApiKey(999).name == "UNKNOWN_999"
    assert ApiKey(999) == 999
    with pytest.raises(ValueError, match="'x'"):
        ApiKey("x")


def test_records_are_views_and_large_ones_are_not_joined() -> None:
    large, small = kbatch.encode([b"v" * 5000]), kbatch.encode([b"v"])
    data = [
        ProduceRequest.PartitionProduceData(index=0, records=large),
        ProduceRequest.PartitionProduceData(index=1, records=small),
        ProduceRequest.PartitionProduceData(index=2, records=None),
        ProduceRequest.PartitionProduceData(index=3, records=memoryview(large)),
    ]
    request = ProduceRequest(acks=-1, topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=data)])
    for version in (3, 9):
        buffers = encode_request(request, version)
        # A flexible version ends with tagged fields.
        assert len(buffers) == (5 if version == 9 else 4)
        assert all(isinstance(buffers[i], memoryview) and buffers[i].obj is large for i in (1, 3))
        received = bytearray(b"".join(buffers))
        assert int.from_bytes(received[:4], "big") == len(received) - 4
        read = decode_request(memoryview(received)[4:]).message
        parts = read.topic_data[0].partition_data
        assert [None if part.records is None else bytes(part.records) for part in parts] == [large, small, None, large]
        assert parts[0].records.obj is received
        assert len(kbatch.decode(parts[1].records)) == 1


def test_ids_are_uuids() -> None:
    topic = uuid.UUID(int=7)
    request = FetchRequest(topics=[FetchRequest.FetchTopic(topic_id=topic)])
    assert decode_message(FetchRequest, joined(request, 13), 13).topics[0].topic_id == topic
    request.topics[0].topic_id = None
    assert decode_message(FetchRequest, joined(request, 13), 13).topics[0].topic_id == uuid.UUID(int=0)
