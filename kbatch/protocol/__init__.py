"""Kafka's protocol: requests and responses as Python objects, with record batches in place.

The class of each message, such as ``FetchRequest``, is an attribute of this module.
"""

from __future__ import annotations

from typing import Any

from kbatch.error_codes import ErrorCode
from kbatch.errors import ProtocolError
from kbatch.protocol.api_keys import ApiKey, common_versions, supported_versions
from kbatch.protocol.codec import (
    MAX_MESSAGE_SIZE,
    Request,
    Response,
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
)
from kbatch.protocol.fetch import FetchedPartition, aborted_transactions, decode_fetch
from kbatch.protocol.framing import MessageSplitter, split_messages
from kbatch.protocol.messages import Message, message_class

__all__ = [
    "MAX_MESSAGE_SIZE",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "ApiKey",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "ErrorCode",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "Message",
    "MessageSplitter",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "ProtocolError",
    "Request",
    "RequestHeader",
    "Response",
    "ResponseHeader",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "aborted_transactions",
    "common_versions",
    "decode_fetch",
    "decode_message",
    "decode_request",
    "decode_response",
    "encode_message",
    "encode_request",
    "encode_response",
    "message_class",
    "split_messages",
    "supported_versions",
]


def __getattr__(name: str) -> Any:
    # Classes of messages are made when they are first used: all of them take longer than the import of kbatch.
    if name in __all__:
        return message_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, and the module of primitive types."""
    return [*__all__, "primitives"]
