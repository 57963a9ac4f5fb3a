"""Messages and their bytes: the plan of a schema in one version, requests and responses with their headers."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, NoReturn, TypeVar

from typing_extensions import Buffer

from kbatch.arguments import check_types
from kbatch.error_codes import ErrorCode
from kbatch.errors import LimitExceededError, ProtocolError
from kbatch.format import DEFAULT_LIMITS, Limits
from kbatch.kernels.message_codec import DEPTH_LIMIT, KINDS, Field, Structure, decode_structure, encode_structures
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import Message, message_class
from kbatch.protocol.schema import FieldSchema, MessageSchema, message_schemas
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between
from kbatch.read.budget import table_limit

__all__ = [
    "MAX_MESSAGE_SIZE",
    "Request",
    "Response",
    "UnknownMessage",
    "decode_message",
    "decode_request",
    "decode_response",
    "encode_message",
    "encode_request",
    "encode_response",
    "message_plan",
    "received_response",
]

# A broker's default for requests (socket.request.max.bytes), and twice a consumer's for responses (fetch.max.bytes).
MAX_MESSAGE_SIZE = 100 << 20
MessageT = TypeVar("MessageT", bound=Message)
_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
# The first flexible version of the APIs that have no schema; other numbers are of later APIs, which are flexible from
# version 0 on.
_FLEXIBLE_SINCE = {
    ApiKey.LEADER_AND_ISR: 4,
    ApiKey.STOP_REPLICA: 2,
    ApiKey.UPDATE_METADATA: 6,
    ApiKey.CONTROLLED_SHUTDOWN: 3,
    ApiKey.BEGIN_QUORUM_EPOCH: 1,
    ApiKey.END_QUORUM_EPOCH: 1,
}
_SIZES = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16}


@public_in("kbatch.protocol")
class Request(NamedTuple):
    """A request with its header.

    Attributes
    ----------
    api_key : ApiKey
    version : int
    header : Message
        A ``RequestHeader``: ``correlation_id``, ``client_id``.
    message : Message
    """

    api_key: ApiKey
    version: int
    header: Any
    message: Any


@public_in("kbatch.protocol")
class Response(NamedTuple):
    """A response with its header.

    Attributes
    ----------
    api_key : ApiKey
    version : int
        Version of the message; 0 for a broker's refusal of a newer ``ApiVersionsRequest``.
    header : Message
        A ``ResponseHeader``: ``correlation_id``.
    message : Message
    """

    api_key: ApiKey
    version: int
    header: Any
    message: Any


@public_in("kbatch.protocol")
class UnknownMessage(NamedTuple):
    """A request or response whose API or version kbatch does not know.

    Attributes
    ----------
    api_key : ApiKey
    version : int
    header : Message
        A ``RequestHeader`` or ``ResponseHeader``.
    body : memoryview
        The bytes after the header, a view of the input.

    Raises
    ------
    AttributeError
        For `message`, which a `Request` and a `Response` have: it states the API and the version.
    """

    api_key: ApiKey
    version: int
    header: Any
    body: memoryview

    @property
    def message(self) -> NoReturn:
        """An unknown message has a `body` only."""
        raise AttributeError(
            f"{self.api_key.title} ({self.api_key.value}) in version {self.version} is not known to kbatch; body has "
            "the bytes after the header"
        )


def _field(cls: type[Message], schema: FieldSchema, version: int, flexible: bool, depth: int) -> Field:
    """Return the plan of a field; the plan of an array contains the plan of its elements."""
    compact = flexible and schema.type != "old_string"
    structure = None
    if schema.fields:
        structure = _structure(cls, getattr(cls, schema.element), schema.fields, version, flexible, depth + 1)
        assert schema.tag is None or not any(each.type == "records" for each in schema.fields)
    kind = "struct" if structure else schema.element.removeprefix("old_")
    nullable = version in schema.nullable
    if structure is not None:
        size = sum(each.min_size for each in structure.fields) + flexible
    else:
        size = _SIZES.get(kind) or (1 if compact else 2 if kind == "string" else 4)
    element = None
    if schema.type.startswith("[]"):
        element = Field(schema.name, KINDS[kind], compact, False, -1, None, structure, None, max(size, 1))
        kind, structure, size = "array", None, 1 if compact else 4
    elif structure is not None and nullable:
        size = 1
    tag = -1 if schema.tag is None else schema.tag
    return Field(schema.name, KINDS[kind], compact, nullable, tag, schema.default, structure, element, size)


def _structure(
    top: type[Message], cls: type[Message], fields: tuple[FieldSchema, ...], version: int, flexible: bool, depth: int
) -> Structure:
    assert depth < DEPTH_LIMIT
    plain: list[Field] = []
    tagged: list[Field] = []
    absent: list[Field] = []
    for schema in fields:
        if version in schema.versions:
            (plain if schema.tag is None else tagged).append(_field(top, schema, version, flexible, depth))
        elif not schema.droppable:
            absent.append(_field(top, schema, version, flexible, depth))
    tagged.sort(key=lambda each: each.tag)
    return Structure(cls, tuple(plain), tuple(tagged), tuple(absent), flexible, version)


@functools.cache
def message_plan(name: str, version: int) -> Structure:
    """Return the plan of a message in one version."""
    schema = message_schemas()[name]
    if version not in schema.versions:
        raise ValueError(
            f"{name} has the versions {schema.versions[0]} to {schema.versions[-1]}, {version} is not one of them"
        )
    cls = message_class(name)
    return _structure(cls, cls, schema.fields, version, version in schema.flexible, 0)


def _message_name(message: Message | type[Message]) -> str:
    if not isinstance(message.schema, MessageSchema):
        raise TypeError(f"{message.schema.element} is a part of a message")
    return message.schema.name


def _view(data: Buffer, max_size: SizeLike) -> memoryview:
    max_size = size_between("max_size", max_size, 0)
    view = memoryview(data).cast("B").toreadonly()
    if len(view) > max_size:
        raise LimitExceededError(
            f"message of {len(view)} bytes, the limit is {max_size}; raise max_size for larger ones"
        )
    return view


def _known_message(api_key: int, suffix: str, version: int) -> str | None:
    """Return the name of a message, or None if there is no such API or version."""
    name = f"{ApiKey(api_key).title}{suffix}"
    schema = message_schemas().get(name)
    return name if schema is not None and version in schema.versions else None


def _is_flexible(api_key: int, version: int) -> bool:
    schema = message_schemas().get(f"{ApiKey(api_key).title}Request")
    return version in schema.flexible if schema else version >= _FLEXIBLE_SINCE.get(ApiKey(api_key), 0)


def _request_header_version(api_key: int, version: int) -> int:
    if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return 0
    return 2 if _is_flexible(api_key, version) else 1


def _response_header_version(api_key: int, version: int) -> int:
    # A client must be able to read the header before it knows which versions the broker has (PRI-R8).
    return 1 if _is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS else 0


def _api_key(name: str) -> int:
    api_key = message_schemas()[name].api_key
    if api_key is None:
        raise TypeError(f"{name} is neither a request nor a response")
    return api_key


@public_in("kbatch.protocol")
def decode_message(
    cls: type[MessageT],
    data: Buffer,
    version: int,
    *,
    max_size: SizeLike = MAX_MESSAGE_SIZE,
    limits: Limits | None = None,
) -> MessageT:
    """Read a message without a header.

    Parameters
    ----------
    cls : type
        Class of the message, such as ``FetchResponse``.
    data : buffer
        All bytes of the message. Record batches in the result are views of them.
    version : int
    max_size : int or str, optional
        The maximum size of the message in bytes.
    limits : Limits, optional
        ``max_table_bytes`` is the maximum of memory that the objects of the message take.

    Returns
    -------
    Message

    Raises
    ------
    ProtocolError
        If the bytes are cut, overlong, or not of this version. It states the byte and the field.
    LimitExceededError
        If there are more than `max_size` bytes, or the objects take more memory than the limits allow.
    ValueError
        If Kafka has no such version of the message.

    Examples
    --------
    >>> from kbatch.protocol import ListOffsetsRequest, decode_message
    >>> decode_message(ListOffsetsRequest, bytes.fromhex("ffffffff 00000001 0001"), 1)
    Traceback (most recent call last):
    ...
    kbatch.ProtocolError: byte 4, topics: array of 1 elements, but the remaining 2 bytes hold at most 0
    """
    check_types(decode_message, locals())
    plan, view = message_plan(_message_name(cls), version), _view(data, max_size)
    decoded: MessageT = decode_structure(plan, view, 0, True, table_limit(limits or DEFAULT_LIMITS))[0]
    return decoded


@public_in("kbatch.protocol")
def encode_message(message: Message, version: int) -> list[bytearray | memoryview]:
    """Write a message without a header.

    Parameters
    ----------
    message : Message
    version : int

    Returns
    -------
    list of buffers
        The parts of the message, in order. Record batches of more than 2 KiB are views of the caller's bytes.

    Raises
    ------
    ValueError
        If Kafka has no such version of the message, if a value does not fit its field, or if a field is set that
        the version lacks and that must not be dropped.
    """
    check_types(encode_message, locals())
    return encode_structures([(message_plan(_message_name(message), version), message)], False)


@public_in("kbatch.protocol")
def decode_request(
    data: Buffer, *, max_size: SizeLike = MAX_MESSAGE_SIZE, limits: Limits | None = None
) -> Request | UnknownMessage:
    """Read a request; its header has the API and the version.

    Parameters
    ----------
    data : buffer
        The bytes after the length, as `split_messages` returns them.
    max_size : int or str, optional
        The maximum size of the message in bytes.
    limits : Limits, optional
        ``max_table_bytes`` is the maximum of memory that the objects of the message take.

    Returns
    -------
    Request or UnknownMessage
        The latter for an API or a version that kbatch does not know, with the header and the bytes after it.

    Raises
    ------
    ProtocolError
        As `decode_message` does.
    LimitExceededError

    Examples
    --------
    >>> from kbatch.protocol import HeartbeatRequest, decode_request, encode_request
    >>> sent = b"".join(encode_request(HeartbeatRequest(group_id="g"), 4, correlation_id=7, client_id="c"))
    >>> request = decode_request(sent[4:])
    >>> request.api_key, request.version, request.header.correlation_id, request.message
    (<ApiKey.HEARTBEAT: 12>, 4, 7, HeartbeatRequest(group_id='g'))
    """
    check_types(decode_request, locals())
    view, limit = _view(data, max_size), table_limit(limits or DEFAULT_LIMITS)
    # The first two fields determine the version of the header itself.
    start = decode_structure(message_plan("RequestHeader", 0), view, 0, False, limit)[0]
    api_key, version = ApiKey(start.request_api_key), start.request_api_version
    header_plan = message_plan("RequestHeader", _request_header_version(api_key, version))
    header, position, built = decode_structure(header_plan, view, 0, False, limit)
    name = _known_message(api_key, "Request", version)
    if name is None:
        return UnknownMessage(api_key, version, header, view[position:])
    message = decode_structure(message_plan(name, version), view, position, True, limit - built)[0]
    return Request(api_key, version, header, message)


@public_in("kbatch.protocol")
def encode_request(
    message: Message,
    version: int,
    *,
    correlation_id: int = 0,
    client_id: str | None = None,
    header: Message | None = None,
    framed: bool = True,
) -> list[bytearray | memoryview]:
    """Write a request with its header.

    Parameters
    ----------
    message : Message
    version : int
    correlation_id : int, optional
    client_id : str, optional
    header : Message, optional
        A ``RequestHeader`` whose correlation id, client id and unknown tags are written instead.
    framed : bool, optional
        Whether the length precedes the request, as on a connection.

    Returns
    -------
    list of buffers
        For ``socket.sendmsg``, which takes at most 1024 of them at a time on Linux. Record batches of more than
        2 KiB are views of the caller's bytes.

    Raises
    ------
    ValueError
        As `encode_message` does.
    """
    check_types(encode_request, locals())
    name = _message_name(message)
    plan = message_plan(name, version)
    if header is not None:
        fields: Any = header
        correlation_id, client_id = fields.correlation_id, fields.client_id
    written = message_class("RequestHeader")(
        request_api_key=_api_key(name),
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
        unknown_tags=header.unknown_tags if header is not None else None,
    )
    header_plan = message_plan("RequestHeader", _request_header_version(_api_key(name), version))
    return encode_structures([(header_plan, written), (plan, message)], framed)


@public_in("kbatch.protocol")
def decode_response(
    data: Buffer,
    api_key: int,
    version: int,
    *,
    max_size: SizeLike = MAX_MESSAGE_SIZE,
    limits: Limits | None = None,
) -> Response | UnknownMessage:
    """Read a response.

    Parameters
    ----------
    data : buffer
        The bytes after the length, as `split_messages` returns them.
    api_key : int
        API of the request: a response does not state it.
    version : int
        Version of the request.
    max_size : int or str, optional
        The maximum size of the message in bytes.
    limits : Limits, optional
        ``max_table_bytes`` is the maximum of memory that the objects of the message take.

    Returns
    -------
    Response or UnknownMessage
        The latter for an API or a version that kbatch does not know, with the header and the bytes after it.

    Raises
    ------
    ProtocolError
    LimitExceededError
    """
    check_types(decode_response, locals())
    return received_response(data, api_key, version, max_size=max_size, limits=limits, is_exact=True)


def received_response(
    data: Buffer,
    api_key: int,
    version: int,
    *,
    max_size: SizeLike = MAX_MESSAGE_SIZE,
    limits: Limits | None = None,
    is_exact: bool = False,
) -> Response | UnknownMessage:
    """Read a response as `decode_response`; unless `is_exact`, bytes after it are ignored, as by Kafka's clients."""
    view, limit = _view(data, max_size), table_limit(limits or DEFAULT_LIMITS)
    header_plan = message_plan("ResponseHeader", _response_header_version(api_key, version))
    header, position, built = decode_structure(header_plan, view, 0, False, limit)
    # A broker answers an unsupported version of ApiVersionsRequest in version 0, which every client reads.
    may_be_refusal = api_key == ApiKey.API_VERSIONS and view[position : position + 2] == _UNSUPPORTED
    name = _known_message(api_key, "Response", version)
    if name is None and not may_be_refusal:
        return UnknownMessage(ApiKey(api_key), version, header, view[position:])
    try:
        if name is not None:
            message = decode_structure(message_plan(name, version), view, position, is_exact, limit - built)[0]
            return Response(ApiKey(api_key), version, header, message)
    except ProtocolError:
        if not may_be_refusal:
            raise
    message = decode_structure(message_plan("ApiVersionsResponse", 0), view, position, is_exact, limit - built)[0]
    return Response(ApiKey(api_key), 0, header, message)


@public_in("kbatch.protocol")
def encode_response(
    message: Message,
    version: int,
    *,
    correlation_id: int = 0,
    header: Message | None = None,
    framed: bool = True,
) -> list[bytearray | memoryview]:
    """Write a response with its header; `encode_request` describes parameters, result and errors."""
    check_types(encode_response, locals())
    name = _message_name(message)
    written = header if header is not None else message_class("ResponseHeader")(correlation_id=correlation_id)
    header_plan = message_plan("ResponseHeader", _response_header_version(_api_key(name), version))
    return encode_structures([(header_plan, written), (message_plan(name, version), message)], framed)
