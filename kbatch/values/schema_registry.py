"""A client of schema registries with Confluent's HTTP interface, and its cache.

Source: Confluent Schema Registry, "API Reference". Karapace has the same interface, Apicurio under
``/apis/ccompat/v7``.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple

from kbatch.arguments import is_integer
from kbatch.backoff import Backoff
from kbatch.errors import RegistryError
from kbatch.json_text import parse_json
from kbatch.tls import client_context
from kbatch.values.registry_settings import RegistrySettings
from kbatch.values.schema_limits import MAX_SCHEMA_BYTES, shortened_name

__all__ = ["RegisteredSchema", "SchemaRegistry", "UnknownSchemaError"]

# The schemas that a process keeps of a registry, as in Confluent's clients; each reference counts as one.
MAX_CACHED = 1000
MAX_CACHED_CHARACTERS = 64 << 20
# Ids that the registry does not know are asked for again after this time.
UNKNOWN_SECONDS = 60.0
# The most ids that the registry does not know which are asked for in that time.
MAX_UNKNOWN = 1000
# The registries of a process. They are few; more than these lose their cache.
_MAX_REGISTRIES = 16
# A schema is a string in JSON, with up to six bytes for a character.
_MAX_ANSWER = 6 * MAX_SCHEMA_BYTES
_MAX_ERROR_BYTES = 64 << 10
_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 100, 2_000
_SCHEMA_NOT_FOUND = 40403
_UNKNOWN = "the registry has no such schema"
# The error codes for an unknown subject and an unknown version.
_NO_SUBJECT = (40401, 40402)
_MAY_BE_QUERY = frozenset([400, 405, 406, 422, 500, 501])
_TRANSIENT = frozenset([408, 425, 429, 500, 502, 503, 504])


class RegisteredSchema(NamedTuple):
    """A schema.

    Attributes
    ----------
    kind : str
        AVRO, PROTOBUF or JSON.
    text : str
        Of Protobuf, a descriptor in base64 or the text of a file.
    references : tuple of (str, str, int)
        The name by which the schema refers to another one, and the subject and version of that.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]


class UnknownSchemaError(Exception):
    """The registry has no such schema."""


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects only within a server, which has the credentials already."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = (urllib.parse.urlsplit(url) for url in (req.full_url, newurl))
        if before[:2] != after[:2]:
            fp.close()
            raise _RedirectedError(after.netloc.rpartition("@")[2])
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _RedirectedError(Exception):
    """A redirect to another server."""


class SchemaRegistry:
    """The schemas of a registry. Threads may share it; each schema is requested once, and is kept.

    Parameters
    ----------
    settings : RegistrySettings
    """

    _shared: ClassVar[OrderedDict[RegistrySettings, SchemaRegistry]] = OrderedDict()
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, RegisteredSchema] = OrderedDict()
        self._size = 0
        self._failure: tuple[float, RegistryError] | None = None
        # When each unknown schema was asked for, in this order.
        self._unknown: OrderedDict[Hashable, float] = OrderedDict()
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if settings.user_info is not None:
            pair = base64.b64encode(settings.user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        elif settings.bearer_token is not None:
            self._headers["Authorization"] = f"Bearer {settings.bearer_token}"
        context = client_context(
            settings.ca_location,
            settings.certificate_location,
            settings.key_location,
            settings.key_password,
            prefix="schema.registry.",
        )
        self._opener = urllib.request.build_opener(_SameOrigin, urllib.request.HTTPSHandler(context=context))

    @classmethod
    def of(cls, settings: RegistrySettings) -> SchemaRegistry:
        """Return the registry of these settings that the process shares.

        Raises
        ------
        ValueError
            If a file of certificates cannot be used.
        """
        with cls._shared_lock:
            found = cls._shared.get(settings) or cls(settings)
            cls._shared[settings] = found
            cls._shared.move_to_end(settings)
            while len(cls._shared) > _MAX_REGISTRIES:
                cls._shared.popitem(last=False)
            return found

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self._settings.urls)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SchemaRegistry.of, (self._settings,)

    def schema(self, number: int, *, serialized: bool = False) -> RegisteredSchema:
        """Return the schema with an id.

        Parameters
        ----------
        number : int
        serialized : bool
            Whether to ask for a descriptor of Protobuf.

        Raises
        ------
        UnknownSchemaError
        RegistryError
        """
        path = f"/schemas/ids/{number}"
        return self._cached(("id", number, serialized), lambda: self._requested(path, serialized, (_SCHEMA_NOT_FOUND,)))

    def version(self, subject: str, version: int, *, serialized: bool = False) -> RegisteredSchema:
        """Return a version of a subject; errors as for `schema`."""
        path = f"{_subject_path(subject)}/versions/{version}"
        return self._cached(
            ("version", subject, version, serialized),
            lambda: self._requested(path, serialized, (*_NO_SUBJECT, _SCHEMA_NOT_FOUND)),
        )

    def latest_id(self, subject: str) -> int:
        """Return the id of the latest version of a subject, which is asked for every time.

        Raises
        ------
        UnknownSchemaError
            If there is no such subject.
        RegistryError
        """
        answer = self._answer(f"{_subject_path(subject)}/versions/latest", (*_NO_SUBJECT, _SCHEMA_NOT_FOUND))
        number = answer.get("id")
        if not is_integer(number):
            raise RegistryError(f"{self._name}: the response for subject {shortened_name(subject)} has no id")
        return int(number)

    def _cached(self, key: Hashable, request: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        """Return a schema that is known, or request it. The others wait meanwhile, so that it is requested once."""
        begun = time.monotonic()
        with self._lock:
            if (found := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return found
            self._check_unknown(key)
            if self._failure is not None and self._failure[0] >= begun:
                # Another thread has found meanwhile that the registry does not answer.
                raise self._failure[1]
            try:
                made = request()
            except RegistryError as error:
                self._failure = (time.monotonic(), error)
                raise
            except UnknownSchemaError:
                self._unknown[key] = time.monotonic()
                raise
            self._known[key] = made
            self._size += len(made.text)
            while len(self._known) > MAX_CACHED or (self._size > MAX_CACHED_CHARACTERS and len(self._known) > 1):
                self._size -= len(self._known.popitem(last=False)[1].text)
            return made

    def _check_unknown(self, key: Hashable) -> None:
        """Raise UnknownSchemaError for a schema that was asked for a short time ago, or if too many were."""
        oldest = time.monotonic() - UNKNOWN_SECONDS
        while self._unknown and next(iter(self._unknown.values())) <= oldest:
            self._unknown.popitem(last=False)
        if key in self._unknown:
            raise UnknownSchemaError(_UNKNOWN)
        if len(self._unknown) >= MAX_UNKNOWN:
            # If the bytes have no framing, each value seems to have another id.
            raise UnknownSchemaError(f"not asked for, because the registry has none of {MAX_UNKNOWN} other ids")

    def _requested(self, path: str, serialized: bool, unknown: tuple[int, ...]) -> RegisteredSchema:
        asked = f"{path}?format=serialized" if serialized else path
        answer = self._answer(asked, unknown, path if serialized else None)
        text, kind = answer.get("schema"), answer.get("schemaType", "AVRO")
        given = answer.get("references") or []
        if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(given, list):
            raise RegistryError(f"{self._name}: the response for {path} has no schema")
        references: list[Any] = []
        for each in given:
            found = tuple(each.get(name) for name in ("name", "subject", "version")) if isinstance(each, dict) else ()
            if [type(value) for value in found] != [str, str, int]:
                raise RegistryError(f"{self._name}: the response for {path} has a reference without name and version")
            references.append(found)
        return RegisteredSchema(kind.upper(), text, tuple(references))

    @property
    def _name(self) -> str:
        return f"schema registry {', '.join(self._settings.urls)}"

    def _answer(self, path: str, unknown: tuple[int, ...], plain: str | None = None) -> dict[str, Any]:
        """Return the JSON object of a response; UnknownSchemaError for these error codes.

        `plain` is the path for a registry that fails because of the query.
        """
        backoff = Backoff(_FIRST_PAUSE_MS, _MAX_PAUSE_MS)
        for attempt in range(self._settings.max_retries + 1):
            if attempt:
                time.sleep(backoff.next_seconds())
            for url in self._settings.urls:
                status, reason, data = self._response(f"{url}{path}")
                if plain is not None and status in _MAY_BE_QUERY:
                    # Karapace 6.2 and Apicurio 3.3 answer 500 for descriptors of schemas with references.
                    path, plain = plain, None
                    status, reason, data = self._response(f"{url}{path}")
                if status == 200:
                    answer = _json_object(data)
                    if answer is None:
                        raise RegistryError(f"schema registry {url}: the response for {path} is not a JSON object")
                    return answer
                if status is not None and status not in _TRANSIENT:
                    raise self._refusal(url, path, status, _json_object(data), unknown)
                failure = f"schema registry {url}: {reason}"
        raise RegistryError(
            f"{failure}, after {self._settings.max_retries + 1} attempts; check schema.registry.url, and that the "
            "registry runs"
        )

    def _response(self, url: str) -> tuple[int | None, str, bytes]:
        """Return the status, the reason of a failure and the data of a response; no status if there is none.

        Raises
        ------
        RegistryError
            For a failure that another attempt does not change.
        """
        request = urllib.request.Request(url, headers=self._headers)
        place = url.partition("?")[0]
        try:
            with self._opener.open(request, timeout=max(self._settings.timeout_ms, 1) / 1000) as response:
                data: bytes = response.read(_MAX_ANSWER + 1)
                if response.length and len(data) <= _MAX_ANSWER:
                    return None, "the response is cut", b""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, f"HTTP status {error.code}", _error_body(error)
        except _RedirectedError as error:
            raise RegistryError(
                f"schema registry {place}: it redirects to {error}; set schema.registry.url to the server that answers"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise RegistryError(
                    f"schema registry {place}: its certificate is not trusted: {reason.verify_message}; set "
                    "schema.registry.ssl.ca.location to the certificate of its authority"
                ) from None
            text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            return None, f"can't be reached: {text}", b""
        if len(data) > _MAX_ANSWER:
            raise RegistryError(f"schema registry {place}: a response of more than {_MAX_ANSWER} bytes")
        return 200, "", data

    def _refusal(
        self, url: str, path: str, status: int, answer: dict[str, Any] | None, unknown: tuple[int, ...]
    ) -> Exception:
        code, message = (answer or {}).get("error_code"), (answer or {}).get("message")
        if code in unknown:
            return UnknownSchemaError(_UNKNOWN)
        advice = "check the path of schema.registry.url"
        if status in (401, 403):
            advice = "check basic.auth.user.info or bearer.auth.token, and what its user may read"
        shown = f" ({shortened_name(message)})" if isinstance(message, str) else ""
        return RegistryError(f"schema registry {url}: HTTP status {status}{shown} for {path}; {advice}")


def _subject_path(subject: str) -> str:
    return f"/subjects/{urllib.parse.quote(subject, safe='')}"


def _error_body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(_MAX_ERROR_BYTES)
    except (OSError, http.client.HTTPException):
        return b""


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        answer = parse_json(data.decode())
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
