"""What members of classic consumer groups send each other: a version, and a message after it."""

from __future__ import annotations

from typing import Any

from kbatch.format import DEFAULT_LIMITS
from kbatch.kernels.message_codec import decode_structure
from kbatch.protocol.codec import encode_message, message_plan
from kbatch.protocol.schema import message_schemas
from kbatch.protocol.stored import leading_number
from kbatch.read.budget import table_limit

__all__ = ["decode_member_data", "encode_member_data"]

_VERSION_BYTES = 2


def encode_member_data(message: Any) -> bytes:
    """Return a subscription or an assignment, in the highest version that kbatch knows."""
    version = message.schema.versions[-1]
    return b"".join([version.to_bytes(_VERSION_BYTES, "big"), *encode_message(message, version)])


def decode_member_data(name: str, data: bytes) -> Any:
    """Return the message of this name. Of later versions, the fields of the highest known one are read, as by Kafka.

    Raises
    ------
    ProtocolError
    """
    stated, start = leading_number(data, 0, varint=False)
    version = min(max(stated, 0), message_schemas()[name].versions[-1])
    return decode_structure(message_plan(name, version), memoryview(data), start, False, table_limit(DEFAULT_LIMITS))[0]
