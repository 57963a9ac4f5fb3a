"""The settings of a client of a schema registry, with the names of Confluent's clients."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kbatch.options import did_you_mean
from kbatch.settings_text import as_list, parse_properties, setting_value
from kbatch.values.schema_limits import read_file

__all__ = ["RegistryLike", "RegistrySettings", "is_registry_setting"]

# A URL, several with commas, or the path of a file of settings; or settings.
RegistryLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]

_SETTINGS_PREFIX = "schema.registry."
# The settings of Confluent's clients that have no prefix there.
_WITHOUT_PREFIX = ("basic.auth.", "bearer.auth.")
# By setting, without the prefix, the field that has it.
_SETTING_FIELDS = {
    "url": "urls",
    "basic.auth.user.info": "user_info",
    "bearer.auth.token": "bearer_token",
    "ssl.ca.location": "ca_location",
    "ssl.certificate.location": "certificate_location",
    "ssl.key.location": "key_location",
    "ssl.key.password": "key_password",
    "request.timeout.ms": "timeout_ms",
    "max.retries": "max_retries",
}
# By setting, its only value here and why others are refused.
_SOURCES = {
    "basic.auth.credentials.source": ("USER_INFO", "put USER:PASSWORD into basic.auth.user.info"),
    "bearer.auth.credentials.source": ("STATIC_TOKEN", "put a token into bearer.auth.token"),
}
_JAVA_STORES = {
    "ssl.truststore": ("ssl.ca.location",),
    "ssl.keystore": ("ssl.certificate.location", "ssl.key.location"),
}
_REGISTRY_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")


def is_registry_setting(name: str) -> bool:
    """Whether a setting of Kafka's clients is about a schema registry."""
    return name.lower().startswith((_SETTINGS_PREFIX, *_WITHOUT_PREFIX))


@dataclass(frozen=True)
class RegistrySettings:
    """Where a schema registry is, and how the client authenticates. `of` makes it of what users have.

    Attributes
    ----------
    urls : tuple of str
        They are tried in this order.
    user_info, bearer_token : str or None
        ``USER:PASSWORD``, or a token. `repr` does not show them.
    ca_location, certificate_location, key_location, key_password : str or None
        Files in PEM.
    timeout_ms : int
        For a request.
    max_retries : int
        Further attempts after all URLs have failed.
    """

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    timeout_ms: int = 30_000
    max_retries: int = 3

    @classmethod
    def of(cls, source: RegistryLike, more: Mapping[str, Any] | None = None) -> RegistrySettings:
        """Return the settings of a URL, of the path of a properties file, or of a mapping; those of `more` win.

        Settings of other programs are ignored, so that a file of a Kafka client can be given too. With ``url``, the
        name in confluent-kafka-python, all names are those of a registry, without the prefix ``schema.registry.``.

        Raises
        ------
        LogDirectoryError, TypeError, ValueError
            For a file that cannot be read, and for settings that are unknown, not supported or wrong; without secrets.

        Examples
        --------
        >>> from kbatch.values.registry_settings import RegistrySettings
        >>> RegistrySettings.of("https://a:8081,https://b:8081").urls
        ('https://a:8081', 'https://b:8081')
        >>> RegistrySettings.of({"schema.registry.url": "http://a", "basic.auth.user.info": "me:secret"}).user_info
        'me:secret'
        """
        given = _own_settings(_settings_of(source)) | _own_settings(more or {})
        for name, (only, advice) in _SOURCES.items():
            if name in given and str(given.pop(name)).strip().upper() != only:
                raise ValueError(f"{name} must be {only}: {advice}")
        for store, targets in _JAVA_STORES.items():
            kind = str(given.pop(f"{store}.type", "JKS")).upper()
            location = given.pop(f"{store}.location", None)
            password = given.pop(f"{store}.password", None)
            if location is not None and kind != "PEM":
                raise ValueError(
                    f"{_named(store)}.location is of type {kind}, which is not supported; export its certificates as "
                    f"PEM, and set {_named(targets[0])}"
                )
            if location is not None:
                given = {**dict.fromkeys(targets, location), **given}
                if password is not None and store == "ssl.keystore":
                    given.setdefault("ssl.key.password", password)
        made: dict[str, Any] = {}
        for name, value in given.items():
            if name not in _SETTING_FIELDS:
                known = [*map(_named, _SETTING_FIELDS), *_SOURCES]
                raise ValueError(f"unknown setting {_named(name)!r}{did_you_mean(_named(name), known)}")
            made[_SETTING_FIELDS[name]] = _value(name, value)
        if "urls" not in made:
            raise ValueError(
                f"{_SETTINGS_PREFIX}url is missing: the URL of the registry, such as https://registry:8081"
            )
        settings = cls(**made)
        settings._check()
        return settings

    def _check(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if self.user_info is not None and self.bearer_token is not None:
            raise ValueError("basic.auth.user.info and bearer.auth.token exclude each other")
        if self.key_location and not self.certificate_location:
            raise ValueError(f"{_SETTINGS_PREFIX}ssl.key.location needs {_SETTINGS_PREFIX}ssl.certificate.location")


def _settings_of(source: RegistryLike) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        if not all(isinstance(name, str) for name in source):
            raise TypeError("schema_registry must be a URL, a file of settings, or a mapping of names to values")
        return source
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"schema_registry must be a URL, a file or a mapping, got {type(source).__name__}")
    text = os.fspath(source)
    if "://" in text or "@" in text:
        return {f"{_SETTINGS_PREFIX}url": text}
    lines = re.split(r"\r\n|\n|\r", read_file(text, "the settings of the schema registry").decode("utf-8", "replace"))
    return parse_properties(lines, text)


def _own_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings about a registry, without the prefix and without those that are None."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = name.removeprefix(_SETTINGS_PREFIX)
        if value is None or not ("url" in given or is_registry_setting(name)):
            continue
        if own in found:
            raise ValueError(f"{_named(own)} is given twice")
        found[own] = value
    return found


def _named(name: str) -> str:
    """Return the name of a setting as Confluent's clients have it."""
    return name if name.startswith(_WITHOUT_PREFIX) else f"{_SETTINGS_PREFIX}{name}"


def _value(name: str, value: Any) -> Any:
    if name == "url":
        texts = as_list(value) if isinstance(value, str | list | tuple) else []
        if not texts or not all(map(_REGISTRY_URL.fullmatch, texts)):
            # The text is not repeated: it may have a password.
            raise ValueError(
                f"{_named(name)} must be http://HOST:PORT or https://HOST:PORT, optionally with a path. User and "
                "password belong into basic.auth.user.info, because URLs are logged"
            )
        return tuple(text.rstrip("/") for text in texts)
    if name.endswith(".location") and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name in ("request.timeout.ms", "max.retries"):
        return setting_value(_named(name), int, value)
    text = setting_value(_named(name), str, value)
    if name == "basic.auth.user.info" and ":" not in text:
        raise ValueError(f"{name} must be USER:PASSWORD")
    if not text or any(each in text for each in "\r\n"):
        raise ValueError(f"{_named(name)} must be a text of one line")
    return text
