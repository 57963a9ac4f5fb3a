"""Bearer tokens for SASL OAUTHBEARER: the extension point, and the client credentials of OpenID Connect."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kbatch.arguments import check_fields
from kbatch.extras import require
from kbatch.live.broker_errors import AuthenticationError
from kbatch.public_names import public_in

__all__ = ["BearerToken", "ClientCredentials", "MskTokens", "TokenProvider"]

# A token is requested again after this fraction of its lifetime, as in Kafka's clients.
_USED_PART = 0.8
# A response of a token endpoint is a small JSON object.
_MAX_ANSWER_BYTES = 1 << 20


@public_in("kbatch.live")
@dataclass(frozen=True)
class BearerToken:
    """A token, with extensions for the broker (KIP-342).

    Attributes
    ----------
    value : str
        The token; the representation omits it.
    extensions : mapping of str to str
    """

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


@public_in("kbatch.live")
class TokenProvider(Protocol):
    """A function that returns a token, for ``sasl_oauthbearer_token``.

    It is called for each connection, and again before the session of a connection ends (KIP-368). It may be called by
    several threads at the same time, so a provider that requests tokens should cache them while they are valid.
    """

    def __call__(self) -> str | BearerToken:
        """Return a token that is valid now."""


class ClientCredentials:
    """Tokens of an OpenID Connect endpoint, requested with a client id and a secret, and cached while they are valid.

    Parameters
    ----------
    endpoint : str
        URL of the token endpoint.
    client_id, client_secret : str
    scope : str, optional
    timeout : float
        Seconds for a request.
    """

    def __init__(
        self, endpoint: str, client_id: str, client_secret: str, scope: str | None = None, *, timeout: float = 30
    ) -> None:
        if urllib.parse.urlsplit(endpoint).scheme not in ("https", "http"):
            raise ValueError("sasl.oauthbearer.token.endpoint.url must be a URL that begins with https://")
        self._endpoint = endpoint
        self._client_id = client_id
        self._secret = client_secret
        self._scope = scope
        self._timeout = timeout
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def __repr__(self) -> str:
        return f"ClientCredentials({self._client_id!r})"

    def __call__(self) -> str:
        """Return a token; request a new one shortly before the last one expires."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._token, lifetime = self._requested()
                self._until = time.monotonic() + _USED_PART * lifetime
            return self._token

    def _requested(self) -> tuple[str, float]:
        """Return a new token and its lifetime in seconds."""
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        # RFC 6749, section 2.3.1: both are form-encoded before they are joined.
        pair = ":".join(urllib.parse.quote_plus(each) for each in (self._client_id, self._secret))
        request = urllib.request.Request(
            self._endpoint,
            urllib.parse.urlencode(form).encode(),
            {
                "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        place = urllib.parse.urlsplit(self._endpoint).netloc.rpartition("@")[2]
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                answer = json.loads(response.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            raise AuthenticationError(
                f"token endpoint {place}: HTTP status {error.code}{_reason(error)}; check the client id, the secret "
                "and the scope"
            ) from None
        except OSError as error:
            raise AuthenticationError(f"token endpoint {place}: no token: {error}") from None
        except ValueError:
            raise AuthenticationError(f"token endpoint {place}: the response is not JSON") from None
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise AuthenticationError(f"token endpoint {place}: the response has no access_token")
        lifetime = answer.get("expires_in", 0)
        return token, float(lifetime) if isinstance(lifetime, int | float) else 0.0


class MskTokens:
    """Tokens of AWS IAM for Amazon MSK, signed with the credentials that boto3 finds, and cached while they are valid.

    Parameters
    ----------
    hosts : iterable of str
        Brokers, whose names contain the region. Otherwise it is taken from ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.

    Raises
    ------
    MissingDependencyError
    ValueError
        If the region is unknown.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._signer = require("aws_msk_iam_sasl_signer.MSKAuthTokenProvider", "msk", "sasl.mechanism=AWS_MSK_IAM")
        found = [match[1] for host in hosts if (match := _MSK_HOST.search(host))]
        region = (found or [os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")])[0]
        if region is None:
            raise ValueError("the names of the brokers contain no AWS region: set AWS_REGION in the environment")
        self._region: str = region
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def __repr__(self) -> str:
        return f"MskTokens({self._region!r})"

    def __call__(self) -> str:
        """Return a token; sign a new one if the last one expires soon."""
        with self._lock:
            now = time.time()
            if now >= self._until:
                try:
                    self._token, expires_ms = self._signer.generate_auth_token(self._region)
                except Exception as error:
                    # botocore raises its own classes of errors.
                    raise AuthenticationError(f"no token of AWS IAM for {self._region}: {error}") from None
                self._until = now + _USED_PART * (expires_ms / 1000 - now)
            return self._token


# MSK brokers, such as b-1.name.abc.c2.kafka.eu-west-1.amazonaws.com and boot-x.c1.kafka-serverless.eu-west-1....
_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the error code of RFC 6749 in a response, if it has one."""
    try:
        answer = json.loads(error.read(_MAX_ANSWER_BYTES))
    except (OSError, ValueError):
        return ""
    code = answer.get("error") if isinstance(answer, dict) else None
    return f" ({code})" if isinstance(code, str) else ""
