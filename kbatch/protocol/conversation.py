"""The messages of one connection: each response with its request."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from typing_extensions import Buffer

from kbatch.arguments import check_types
from kbatch.errors import ProtocolError
from kbatch.escaping import counted
from kbatch.format import Limits
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.codec import (
    MAX_MESSAGE_SIZE,
    Request,
    Response,
    UnknownMessage,
    decode_request,
    decode_response,
)
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between

__all__ = ["Conversation", "Exchange", "has_response", "request_numbers"]

# The responses that have names and ids of topics, and their field with them.
_NAMED_TOPICS = {
    ApiKey.METADATA: "topics",
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.DELETE_TOPICS: "responses",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "topics",
}


@public_in("kbatch.protocol")
class Exchange(NamedTuple):
    """A response and its request.

    Attributes
    ----------
    request : Request, UnknownMessage or None
        None if the request could not be read.
    response : Response or UnknownMessage
    """

    request: Request | UnknownMessage | None
    response: Response | UnknownMessage


class _Sent(NamedTuple):
    api_key: int
    version: int
    request: Request | UnknownMessage | None


def request_numbers(data: memoryview) -> tuple[int, int, int]:
    """Return API key, version and correlation id of a request of at least 8 bytes."""
    api_key, version, correlation_id = (
        int.from_bytes(data[at:end], "big", signed=True) for at, end in ((0, 2), (2, 4), (4, 8))
    )
    return api_key, version, correlation_id


def has_response(request: Request | UnknownMessage) -> bool:
    """Return whether a broker answers a request: a ProduceRequest with ``acks=0`` has no response."""
    is_produce = isinstance(request, Request) and request.api_key == ApiKey.PRODUCE
    return not (is_produce and request.message.acks == 0)


@public_in("kbatch.protocol")
class Conversation:
    """Pairs the responses of one connection with their requests, by correlation id.

    A response states neither its API nor its version; those of the request decide how it is read. Pass the requests
    in the order in which they were sent, each before its response.

    Parameters
    ----------
    max_size : int or str, optional
        The maximum size of a message in bytes.
    limits : Limits, optional
        ``max_table_bytes`` is the maximum of memory that the objects of one message take.
    topic_names : dict of UUID to str, optional
        Names of topics by id. Metadata in responses are added to it; conversations may share one.

    Attributes
    ----------
    topic_names : dict of UUID to str

    Notes
    -----
    A request is kept until its response is read. A ProduceRequest with ``acks=0`` has no response, and is not kept.

    Examples
    --------
    >>> from kbatch.protocol import Conversation, HeartbeatRequest, HeartbeatResponse
    >>> from kbatch.protocol import encode_request, encode_response
    >>> conversation = Conversation()
    >>> sent = encode_request(HeartbeatRequest(group_id="g"), 4, correlation_id=7, framed=False)
    >>> conversation.request(b"".join(sent)).message
    HeartbeatRequest(group_id='g')
    >>> answer = encode_response(HeartbeatResponse(error_code=27), 4, correlation_id=7, framed=False)
    >>> exchange = conversation.response(b"".join(answer))
    >>> exchange.request.message.group_id, exchange.response.message.error_code
    ('g', 27)
    """

    __slots__ = ("_limits", "_max_size", "_sent", "topic_names")

    def __init__(
        self,
        *,
        max_size: SizeLike = MAX_MESSAGE_SIZE,
        limits: Limits | None = None,
        topic_names: dict[uuid.UUID, str] | None = None,
    ) -> None:
        check_types(Conversation.__init__, locals())
        self._max_size = size_between("max_size", max_size, 0)
        self._limits = limits
        self._sent: dict[int, _Sent] = {}
        self.topic_names: dict[uuid.UUID, str] = {} if topic_names is None else topic_names

    def __repr__(self) -> str:
        return f"<Conversation: {counted(len(self._sent), 'request')} without a response>"

    @property
    def unanswered(self) -> list[Request | UnknownMessage]:
        """The requests whose response has not been read, in the order in which they were sent."""
        return [each.request for each in self._sent.values() if each.request is not None]

    def request(self, data: Buffer) -> Request | UnknownMessage:
        """Read a request, and keep it for its response.

        Parameters
        ----------
        data : buffer
            The bytes after the length, as `split_messages` returns them.

        Raises
        ------
        ProtocolError
            As `decode_request` does. The response of such a request can still be read.
        LimitExceededError
        """
        check_types(Conversation.request, locals())
        view = memoryview(data).cast("B").toreadonly()
        if len(view) >= 8:
            api_key, version, correlation_id = request_numbers(view)
            # The newest request is the last of the dict, if its correlation id is used again.
            self._sent.pop(correlation_id, None)
            self._sent[correlation_id] = _Sent(api_key, version, None)
        request = decode_request(view, max_size=self._max_size, limits=self._limits)
        if has_response(request):
            self._sent[request.header.correlation_id] = _Sent(request.api_key, request.version, request)
        else:
            del self._sent[request.header.correlation_id]
        return request

    def _forget(self, correlation_id: int) -> None:
        """Keep only what the response of a request needs, and not its contents."""
        if (sent := self._sent.get(correlation_id)) is not None:
            self._sent[correlation_id] = sent._replace(request=None)

    def expects(self, correlation_id: int) -> bool:
        """Return whether a request with this correlation id has no response yet."""
        check_types(Conversation.expects, locals())
        return correlation_id in self._sent

    def response(self, data: Buffer) -> Exchange:
        """Read a response, with its request.

        Parameters
        ----------
        data : buffer
            The bytes after the length, as `split_messages` returns them.

        Raises
        ------
        ProtocolError
            If no request has its correlation id, and as `decode_response` does.
        LimitExceededError
        """
        check_types(Conversation.response, locals())
        view = memoryview(data).cast("B").toreadonly()
        correlation_id = int.from_bytes(view[:4], "big", signed=True)
        sent = self._sent.pop(correlation_id, None)
        if sent is None:
            raise ProtocolError(f"no request has the correlation id {correlation_id}")
        response = decode_response(view, sent.api_key, sent.version, max_size=self._max_size, limits=self._limits)
        if isinstance(response, Response) and response.api_key in _NAMED_TOPICS:
            for topic in getattr(response.message, _NAMED_TOPICS[response.api_key]):
                if topic.name and topic.topic_id.int:
                    self.topic_names[topic.topic_id] = topic.name
        return Exchange(sent.request, response)
