"""SASL mechanisms: the client's messages, each sent after the broker's response to the previous one.

A mechanism is a generator. It yields the bytes that the client sends, and receives the bytes of the broker's response.
"""

from __future__ import annotations

import json
from collections.abc import Generator

from kbatch.extras import require
from kbatch.live.broker_errors import AuthenticationError
from kbatch.live.kerberos import gssapi_exchange
from kbatch.live.settings import ClientSettings
from kbatch.live.tokens import BearerToken, ClientCredentials, MskTokens, TokenProvider

__all__ = ["SaslExchange", "sasl_exchange", "token_provider"]

SaslExchange = Generator[bytes, bytes, None]


def token_provider(settings: ClientSettings) -> TokenProvider | None:
    """Return the token provider that all connections of a client share; None for mechanisms without tokens."""
    if settings.sasl_mechanism == "AWS_MSK_IAM":
        return MskTokens([server.host for server in settings.bootstrap_servers])
    if settings.sasl_mechanism != "OAUTHBEARER":
        return None
    if settings.sasl_oauthbearer_token is not None:
        return settings.sasl_oauthbearer_token
    return ClientCredentials(
        settings.sasl_oauthbearer_token_endpoint_url or "",
        settings.sasl_oauthbearer_client_id or "",
        settings.sasl_oauthbearer_client_secret or "",
        settings.sasl_oauthbearer_scope,
        timeout=settings.request_timeout_ms / 1000,
    )


def sasl_exchange(settings: ClientSettings, tokens: TokenProvider | None, host: str) -> SaslExchange:
    """Return the messages of the configured mechanism; `host` is the broker, whose name Kerberos verifies.

    Raises
    ------
    MissingDependencyError
        For SCRAM without scramp, and GSSAPI without gssapi.
    AuthenticationError
        If the broker cannot prove that it knows the password, or there is no token.
    """
    user, password = settings.sasl_username or "", settings.sasl_password or ""
    if settings.sasl_mechanism == "PLAIN":
        return _plain_exchange(user, password)
    if settings.sasl_mechanism == "GSSAPI":
        return gssapi_exchange(settings, host)
    if tokens is not None:
        return _oauthbearer(tokens)
    return _scram(settings.sasl_mechanism, user, password)


def _plain_exchange(user: str, password: str) -> SaslExchange:
    # RFC 4616, without an authorization identity.
    yield b"\0".join([b"", user.encode(), password.encode()])


def _scram(mechanism: str, user: str, password: str) -> SaslExchange:
    scramp = require("scramp", "scram", f"sasl.mechanism={mechanism}")
    client = scramp.ScramClient([mechanism], user, password)
    answer = yield client.get_client_first().encode()
    try:
        client.set_server_first(answer.decode())
        answer = yield client.get_client_final().encode()
        client.set_server_final(answer.decode())
    except (scramp.ScramException, UnicodeDecodeError):
        # The exception is not chained, because its text may contain parts of the exchange.
        raise AuthenticationError(
            "the broker's part of the SCRAM exchange is wrong: it does not know the password of this user"
        ) from None


def _oauthbearer(tokens: TokenProvider) -> SaslExchange:
    given = tokens()
    token = given if isinstance(given, BearerToken) else BearerToken(given)
    if not isinstance(token.value, str) or not token.value or any(each in token.value for each in "\x01\r\n"):
        raise AuthenticationError("sasl_oauthbearer_token did not return a token: it must be text of one line")
    pairs = "".join(f"{name}={value}\x01" for name, value in token.extensions.items())
    # RFC 7628. Kafka's brokers take the identity from the token.
    answer = yield f"n,,\x01auth=Bearer {token.value}\x01{pairs}\x01".encode()
    if answer:
        # The broker states its reason as JSON, and fails after the client's last message.
        try:
            status = json.loads(answer).get("status")
        except (ValueError, AttributeError):
            status = None
        yield b"\x01"
        raise AuthenticationError(f"the broker refused the token{f' ({status})' if isinstance(status, str) else ''}")
