"""The errors of a live cluster: each names the broker, the topic and partition if there is one, and what to do."""

from __future__ import annotations

from typing import Any

from kbatch.error_codes import ErrorCode
from kbatch.errors import KbatchError
from kbatch.public_names import public_in

__all__ = ["AuthenticationError", "BrokerConnectionError", "BrokerError", "refusal_error"]


@public_in("kbatch.live")
class BrokerError(KbatchError):
    """A broker refused a request, or its response cannot be used.

    Attributes
    ----------
    broker : str or None
        The broker, as ``host:port``.
    topic : str or None
    partition : int or None
    code : ErrorCode or None
        The error code of the response, if it has one.
    """

    def __init__(
        self,
        message: str,
        *,
        broker: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        code: ErrorCode | None = None,
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.broker = broker
        self.topic = topic
        self.partition = partition
        self.code = code


@public_in("kbatch.live")
class BrokerConnectionError(BrokerError):
    """A broker cannot be reached, does not respond in time, or closed the connection."""


@public_in("kbatch.live")
class AuthenticationError(BrokerError):
    """The broker or the client could not prove its identity: a password, a token or a certificate is wrong."""


# The advice for error codes. Other codes have only their description.
_REMEDIES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "check the name of the topic, and that it was not deleted",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted or recreated; begin a new read",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the principal needs the ACLs DESCRIBE and READ on this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the principal needs the ACL READ on this group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the principal needs the ACL DESCRIBE on the cluster",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader; check that the brokers of its replicas run",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old or too new for this request",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not send batches of this codec to clients of this version",
    ErrorCode.KAFKA_STORAGE_ERROR: "the log directory of the partition has failed on the broker; see the broker's log",
}


def refusal_error(
    code: int,
    action: str,
    *,
    broker: str | None,
    topic: str | None = None,
    partition: int | None = None,
    message: str | None = None,
) -> BrokerError:
    """Return the error for an error code in a response.

    Parameters
    ----------
    code : int
    action : str
        What was requested, such as ``"fetch of offset 17"``.
    broker, topic, partition
    message : str, optional
        The error message of the response.
    """
    known = ErrorCode(code)
    place = [f"broker {broker}"] if broker is not None else []
    if topic is not None:
        place.append(topic if partition is None else f"{topic}-{partition}")
    parts = [f"{action} failed with {known.name} ({known.value}): {message or known.description}".rstrip(".")]
    if known in _REMEDIES:
        parts.append(_REMEDIES[known])
    return BrokerError(
        f"{', '.join(place)}: {'; '.join(parts)}", broker=broker, topic=topic, partition=partition, code=known
    )
