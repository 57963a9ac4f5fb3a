"""Kafka's protocol: requests and responses as Python objects, with record batches in place.

The class of each message, such as ``FetchRequest``, is an attribute of this module.
"""

from __future__ import annotations

from typing import Any

from kbatch.error_codes import ErrorCode
from kbatch.errors import ProtocolError
from kbatch.protocol.api_keys import ApiKey, common_versions, supported_versions
from kbatch.protocol.capture import Capture, CapturedExchange, read_capture
from kbatch.protocol.captured_connection import CapturedMessage, SkippedBytes
from kbatch.protocol.codec import (
    MAX_MESSAGE_SIZE,
    Request,
    Response,
    UnknownMessage,
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
)
from kbatch.protocol.conversation import Conversation, Exchange
from kbatch.protocol.fetch import FetchedPartition, aborted_transactions, decode_fetch
from kbatch.protocol.message_stream import MessageSplitter, split_messages
from kbatch.protocol.messages import Message, message_class
from kbatch.protocol.schema import PROTOCOL_MESSAGES

__all__ = [
    "MAX_MESSAGE_SIZE",
    "ApiKey",
    "Capture",
    "CapturedExchange",
    "CapturedMessage",
    "Conversation",
    "ErrorCode",
    "Exchange",
    "FetchedPartition",
    "Message",
    "MessageSplitter",
    "ProtocolError",
    "Request",
    "Response",
    "SkippedBytes",
    "UnknownMessage",
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
    "read_capture",
    "split_messages",
    "supported_versions",
]
# The class of each request and response, and of both headers.
__all__ += PROTOCOL_MESSAGES


def __getattr__(name: str) -> Any:
    # Classes of messages are made when they are first used: all of them take longer than the import of kbatch.
    if name in PROTOCOL_MESSAGES:
        return message_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
