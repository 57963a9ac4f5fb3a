"""A connection to one broker: versions, authentication, requests and their responses."""

from __future__ import annotations

import functools
import importlib.metadata
import time
from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from kbatch.error_codes import ErrorCode
from kbatch.errors import LimitExceededError, ProtocolError
from kbatch.format import Limits
from kbatch.kernels.buffers import allocate
from kbatch.live.broker_errors import AuthenticationError, BrokerConnectionError, BrokerError, refusal_error
from kbatch.live.sasl import sasl_exchange
from kbatch.live.settings import ClientSettings, ServerAddress
from kbatch.live.tokens import TokenProvider
from kbatch.live.transport import Transport, TransportFactory, certificate_refusal
from kbatch.protocol.api_keys import ApiKey, common_versions
from kbatch.protocol.codec import MAX_MESSAGE_SIZE, UnknownMessage, encode_request, received_response
from kbatch.protocol.messages import Message, message_class

__all__ = ["BrokerConnection"]

_LENGTH_BYTES = 4
# Smaller responses are not received into buffers of the pool.
_MIN_POOLED = 64 << 10
# The version of ApiVersions requests. Brokers since Kafka 2.4 support it; older ones reject it with a response that
# lists their versions.
_API_VERSIONS_VERSION = 3
# These versions differ from the previous ones only by the flexible encoding. librdkafka's mock broker advertises them
# as its latest versions, but cannot parse them.
_FIRST_FLEXIBLE = {
    ApiKey.JOIN_GROUP: 6,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
}
# A client authenticates again after this fraction of the lifetime of its session. Kafka's clients choose 85 to 95 %.
_SESSION_PART = 0.85
# The first bytes of a TLS record: an alert, and version 3 of the protocol.
_TLS_ALERT = b"\x15\x03"


class BrokerConnection:
    """A connection that is used by one thread at a time; at most one request is in flight.

    Parameters
    ----------
    server : ServerAddress
    settings : ClientSettings
    connect : TransportFactory
    tokens : TokenProvider, optional
        For OAUTHBEARER.

    Raises
    ------
    BrokerConnectionError, AuthenticationError
    """

    def __init__(
        self,
        server: ServerAddress,
        settings: ClientSettings,
        connect: TransportFactory,
        tokens: TokenProvider | None = None,
    ) -> None:
        self.server = server
        self._settings = settings
        self._tokens = tokens
        self._versions: dict[ApiKey, int] = {}
        self._correlation_id = 0
        self._sent: tuple[ApiKey, int, float] | None = None
        self._authenticate_at: float | None = None
        self.is_closed = False
        try:
            self._transport: Transport = connect(server, settings)
        except OSError as error:
            raise BrokerConnectionError(
                f"broker {server}: can't be reached: {error.strerror or error}", broker=str(server)
            ) from error
        try:
            self._learn_versions()
            if settings.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; a request that is waiting in another thread fails."""
        self.is_closed = True
        self._transport.close()

    def version_of(self, api_key: ApiKey, maximum: int | None = None) -> int:
        """Return the version in which a request is sent.

        Raises
        ------
        BrokerError
            If client and broker have no version in common.
        """
        version = self._versions.get(api_key)
        if version is None:
            raise BrokerError(
                f"broker {self.server}: supports no version of {api_key.title} that kbatch supports; kbatch needs "
                "Kafka 0.11 or newer",
                broker=str(self.server),
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        return version if maximum is None else min(version, maximum)

    def has(self, api_key: ApiKey, minimum: int) -> bool:
        """Whether the broker has this version of a request, or a later one that kbatch knows."""
        return self._versions.get(api_key, -1) >= minimum

    def request(self, message: Any, *, maximum: int | None = None) -> Any:
        """Send a request and return the message of the response; errors as for `send` and `receive`."""
        self.send(message, maximum=maximum)
        return self.receive()

    def send(self, message: Message, *, maximum: int | None = None, seconds: float = 0.0) -> None:
        """Send a request.

        Parameters
        ----------
        message : Message
        maximum : int, optional
            The highest version to use.
        seconds : float
            How long the broker may wait before it responds, in addition to ``request.timeout.ms``.

        Raises
        ------
        BrokerConnectionError
        """
        if self._authenticate_at is not None and time.monotonic() >= self._authenticate_at:
            self._authenticate()
        self._send(message, self.version_of(_api_key_of(message), maximum), seconds)

    def receive(self, *, max_size: int = MAX_MESSAGE_SIZE, limits: Limits | None = None) -> Any:
        """Return the message of the response to the request that was sent last.

        Large responses are received into a buffer of the pool, which the record batches in the message refer to.

        Raises
        ------
        BrokerConnectionError
        ProtocolError, LimitExceededError
            If the response is damaged or too large; the connection is closed.
        """
        assert self._sent is not None
        api_key, version, deadline = self._sent
        self._sent = None
        try:
            data = self._receive_frame(api_key, deadline, max_size)
            response = received_response(data, api_key, version, max_size=max_size, limits=limits)
            if isinstance(response, UnknownMessage):
                raise ProtocolError(f"version {version} of {api_key.title} is unknown")
            if response.header.correlation_id != self._correlation_id:
                raise ProtocolError(
                    f"correlation id is {response.header.correlation_id}, expected {self._correlation_id}"
                )
            return response.message
        except (ProtocolError, LimitExceededError) as error:
            self.close()
            raise type(error)(f"broker {self.server}: {api_key.title} response: {error}") from error
        except BaseException:
            # The rest of the response would be read as the next response.
            self.close()
            raise

    def _send(self, message: Message, version: int, seconds: float = 0.0) -> None:
        api_key = _api_key_of(message)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode_request(
            message, version, correlation_id=self._correlation_id, client_id=self._settings.client_id
        )
        deadline = time.monotonic() + seconds + self._settings.request_timeout_ms / 1000
        self._within(deadline, api_key, lambda: self._transport.send(parts))
        self._sent = (api_key, version, deadline)

    def _within(self, deadline: float, api_key: ApiKey, step: Callable[[], Any]) -> Any:
        """Run a step of the transport before a deadline."""
        try:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise TimeoutError
            self._transport.set_timeout(rest)
            return step()
        except OSError as error:
            self.close()
            if (refusal := certificate_refusal(error, self.server)) is not None:
                raise refusal from error
            if isinstance(error, TimeoutError):
                milliseconds = self._settings.request_timeout_ms
                reason = f"no response to {api_key.title} for {milliseconds} ms (request.timeout.ms)"
            elif isinstance(error, ConnectionError):
                raise BrokerConnectionError(self._closed_reason(api_key, 0), broker=str(self.server)) from error
            else:
                reason = f"the connection was lost during {api_key.title}: {error.strerror or error}"
            raise BrokerConnectionError(f"broker {self.server}: {reason}", broker=str(self.server)) from error

    def _receive_frame(self, api_key: ApiKey, deadline: float, max_size: int) -> Buffer:
        prefix = bytearray(_LENGTH_BYTES)
        self._fill(memoryview(prefix), api_key, deadline)
        size = int.from_bytes(prefix, "big", signed=True)
        if prefix.startswith(_TLS_ALERT) and not self._settings.uses_tls:
            raise BrokerConnectionError(
                f"broker {self.server}: this port uses TLS, and security.protocol is "
                f"{self._settings.security_protocol}",
                broker=str(self.server),
            )
        if size < _LENGTH_BYTES:
            raise ProtocolError(f"length is {size}, expected at least {_LENGTH_BYTES}")
        if size > max_size:
            raise LimitExceededError(f"length is {size}, the limit is {max_size}")
        frame: Any = allocate(size) if size >= _MIN_POOLED else bytearray(size)
        self._fill(memoryview(frame)[:size], api_key, deadline)
        return memoryview(frame)[:size].toreadonly()

    def _fill(self, view: memoryview, api_key: ApiKey, deadline: float) -> None:
        """Fill a buffer. Each part that arrives restarts the time-out, so that a large response may take longer."""
        total = len(view)
        while view:
            count = self._within(deadline, api_key, functools.partial(self._transport.receive_into, view))
            if not count:
                raise BrokerConnectionError(self._closed_reason(api_key, total - len(view)), broker=str(self.server))
            view = view[count:]
            deadline = max(deadline, time.monotonic() + self._settings.request_timeout_ms / 1000)

    def _closed_reason(self, api_key: ApiKey, received: int) -> str:
        reason = f"broker {self.server}: closed the connection"
        if received:
            return f"{reason} after {received} bytes of a {api_key.title} response"
        if api_key == ApiKey.API_VERSIONS:
            expects = "" if self._settings.uses_tls else ", or expects TLS (security.protocol)"
            return f"{reason} before the first response; the port may not belong to a Kafka broker{expects}"
        return f"{reason} instead of responding to {api_key.title}"

    def _learn_versions(self) -> None:
        request = message_class("ApiVersionsRequest")(
            client_software_name="kbatch", client_software_version=_software_version()
        )
        self._send(request, _API_VERSIONS_VERSION)
        response = self.receive()
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self._send(message_class("ApiVersionsRequest")(), 0)
            response = self.receive()
        if response.error_code:
            raise refusal_error(response.error_code, "the request for its versions", broker=str(self.server))
        self._versions = common_versions(response)
        for key, version in _FIRST_FLEXIBLE.items():
            if self._versions.get(key) == version:
                self._versions[key] = version - 1

    def _authenticate(self) -> None:
        """Authenticate, or authenticate again in an open session (KIP-368)."""
        mechanism = self._settings.sent_mechanism
        self._send(message_class("SaslHandshakeRequest")(mechanism=mechanism), self.version_of(ApiKey.SASL_HANDSHAKE))
        handshake = self.receive()
        if handshake.error_code:
            offered = ", ".join(handshake.mechanisms) or "none"
            raise self._authentication_error(
                f"does not accept sasl.mechanism={mechanism}; it accepts {offered}", handshake.error_code
            )
        exchange = sasl_exchange(self._settings, self._tokens, self.server.host)
        lifetime = 0
        try:
            message = next(exchange)
            while True:
                response = self._authenticated_step(message)
                lifetime = response.session_lifetime_ms
                message = exchange.send(bytes(response.auth_bytes))
        except StopIteration:
            pass
        except AuthenticationError as error:
            if error.broker is not None:
                raise
            raise self._authentication_error(str(error)) from None
        self._authenticate_at = time.monotonic() + _SESSION_PART * lifetime / 1000 if lifetime > 0 else None

    def _authenticated_step(self, message: bytes) -> Any:
        request = message_class("SaslAuthenticateRequest")(auth_bytes=message)
        self._send(request, self.version_of(ApiKey.SASL_AUTHENTICATE))
        response = self.receive()
        if response.error_code:
            reason = (response.error_message or ErrorCode(response.error_code).description).rstrip(".")
            raise self._authentication_error(
                f"authentication by {self._settings.sasl_mechanism} failed: {reason}; check {self._credentials()}",
                response.error_code,
            )
        return response

    def _credentials(self) -> str:
        if self._settings.sasl_mechanism == "AWS_MSK_IAM":
            return "the AWS credentials, the region, and the IAM policy of the principal"
        if self._settings.sasl_mechanism == "OAUTHBEARER":
            return "the token: its issuer, its audience and its expiration time"
        if self._settings.sasl_mechanism == "GSSAPI":
            return "the Kerberos ticket (klist), and the broker's rules for principals"
        return f"the password of user {self._settings.sasl_username!r}"

    def _authentication_error(self, reason: str, code: int | None = None) -> AuthenticationError:
        return AuthenticationError(
            f"broker {self.server}: {reason}",
            broker=str(self.server),
            code=None if code is None else ErrorCode(code),
        )


def _api_key_of(message: Any) -> ApiKey:
    key = message.schema.api_key
    assert key is not None, type(message).__name__
    return ApiKey(key)


@functools.cache
def _software_version() -> str:
    try:
        return importlib.metadata.version("kafka-record-batch")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
