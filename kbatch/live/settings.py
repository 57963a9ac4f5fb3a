"""The settings of a client, with the names and meanings of Kafka's clients, as one checked object."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from typing_extensions import Unpack

from kbatch.arguments import check_types
from kbatch.keywords import lists_options
from kbatch.live.client_arguments import ClientArguments
from kbatch.live.client_config import jaas_options, read_config
from kbatch.live.group_settings import assignor_names, checked_choice
from kbatch.live.tokens import TokenProvider
from kbatch.log.store.storage import CLUSTER_SCHEME, is_cluster_url
from kbatch.options import did_you_mean
from kbatch.public_names import public_in
from kbatch.settings_text import ClientConfig, as_list, setting_value
from kbatch.values.registry_settings import is_registry_setting

__all__ = ["ClientSettings", "ServerAddress", "parse_servers"]

_DEFAULT_PORT = 9092
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI")
# The class that Java clients need for AWS_MSK_IAM.
_MSK_MODULE, _MSK_HANDLER = "IAMLoginModule", "software.amazon.msk.auth.iam.IAMClientCallbackHandler"

# Settings of librdkafka, and of older or newer Java clients, that are synonyms of another setting.
_ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.timeout.ms": "request.timeout.ms",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
# Settings without effect in kbatch, which occur in files that several programs share: kbatch always behaves so, or they
# concern producers, message objects, Java's metrics, or pauses whose lengths this client sets itself.
_WITHOUT_EFFECT = frozenset(
    [
        "acks",
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "batch.size",
        "buffer.memory",
        "client.dns.lookup",
        "compression.type",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "enable.idempotence",
        "enable.metrics.push",
        "internal.leave.group.on.close",
        "key.deserializer",
        "key.serializer",
        "linger.ms",
        "log.connection.close",
        "log_level",
        "max.in.flight.requests.per.connection",
        "max.poll.records",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "retries",
        "retry.backoff.max.ms",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "security.providers",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "ssl.keymanager.algorithm",
        "ssl.trustmanager.algorithm",
        "value.deserializer",
        "value.serializer",
    ]
)
# Settings with only one supported value, the default of Java clients.
_ONLY_VALUES = {"check.crcs": "true", "exclude.internal.topics": "true"}
_PEM_FILE = "put the PEM text into a file, and name it in"
# Settings of other clients that kbatch refuses, with the alternative.
_REFUSED = {
    "check.crcs": "use the argument crc",
    "exclude.internal.topics": "internal topics are read only if they are named",
    "isolation.level": "use the argument isolation",
    "plugin.library.paths": "librdkafka plug-ins are not supported; sasl_oauthbearer_token takes a function",
    "sasl.client.callback.handler.class": "Java classes are not supported",
    "sasl.kerberos.kinit.cmd": "kbatch runs no command; use sasl.kerberos.keytab and sasl.kerberos.principal, or run "
    "kinit before",
    "sasl.login.callback.handler.class": "Java classes are not supported; sasl_oauthbearer_token takes a function",
    "sasl.login.class": "Java classes are not supported",
    "sasl.oauthbearer.config": "it configures unsecured tokens for tests, which are not supported",
    "ssl.certificate.pem": f"{_PEM_FILE} ssl.certificate.location",
    "ssl.cipher.suites": "Python's ssl module chooses the ciphers",
    "ssl.crl.location": "revocation lists are not supported",
    "ssl.engine.factory.class": "Java classes are not supported",
    "ssl.engine.location": "OpenSSL engines are not supported",
    "ssl.key.pem": f"{_PEM_FILE} ssl.key.location",
    "ssl.keystore.certificate.chain": f"{_PEM_FILE} ssl.certificate.location",
    "ssl.keystore.key": f"{_PEM_FILE} ssl.key.location",
    "ssl.provider": "Java providers are not supported",
}
_JAVA_STORE = (
    "{0} is of type {1}, which is not supported; export its certificates as PEM with keytool or openssl, and set "
    "{0}.type=PEM"
)
# The Java login modules whose mechanism is supported.
_LOGIN_MODULES = ("PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule", _MSK_MODULE, "Krb5LoginModule")
# Options of Krb5LoginModule without effect: a keytab is used if it is named, else the ticket cache.
_KERBEROS_WITHOUT_EFFECT = frozenset(
    ["debug", "doNotPrompt", "refreshKrb5Config", "renewTGT", "storeKey", "useKeyTab", "useTicketCache"]
)


@public_in("kbatch.live")
class ServerAddress(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_servers(value: str | Iterable[str]) -> tuple[ServerAddress, ...]:
    """Return the addresses of ``bootstrap.servers``, or of a URL ``kafka://HOST:PORT[,HOST:PORT]``.

    Raises
    ------
    TypeError, ValueError
        The message omits the text of a URL that contains more than addresses, because it may contain a password.
    """
    if not isinstance(value, str) and (isinstance(value, bytes) or not isinstance(value, Iterable)):
        raise TypeError(f"bootstrap_servers must be HOST:PORT or several of them, got {type(value).__name__}")
    if isinstance(value, str) and is_cluster_url(value):
        value = value[len(CLUSTER_SCHEME) :].removesuffix("/")
        if not value or re.search(r"[@?#/&]", value):
            raise ValueError(
                "a kafka URL is kafka://HOST:PORT[,HOST:PORT] and has no settings, topics or passwords, because URLs "
                "are logged; pass settings as keyword arguments or with config="
            )
    elif not isinstance(value, str):
        value = list(value)
        if not all(isinstance(each, str) for each in value):
            raise TypeError("bootstrap_servers must be HOST:PORT or several of them")
    servers = tuple(map(_server, as_list(value)))
    if not servers:
        raise ValueError("bootstrap_servers must have at least one HOST:PORT")
    return servers


def _server(text: str) -> ServerAddress:
    # Kafka's clients allow the name of a listener before the address.
    match = re.fullmatch(r"(?:\w+://)?(\[[0-9a-fA-F:.%\w]+\]|[^\s:@/?#\[\]]+)(?::(\d{1,5}))?", text, re.ASCII)
    if match is None or int(match[2] or _DEFAULT_PORT) > 65535:
        raise ValueError("each of bootstrap_servers must be HOST:PORT")
    return ServerAddress(match[1].strip("[]"), int(match[2] or _DEFAULT_PORT))


@public_in("kbatch.live")
@dataclass(frozen=True)
class ClientSettings:
    """The settings of a client; `of` creates them from files, mappings and keyword arguments, and checks each value.

    Attributes
    ----------
    bootstrap_servers : tuple of ServerAddress
    others
        The settings of Kafka's clients, with underscores; docs/live-settings.md lists them. `repr` shows no
        secrets.

    Raises
    ------
    TypeError, ValueError
        For addresses that are not `ServerAddress`, and settings that contradict each other.
    """

    bootstrap_servers: tuple[ServerAddress, ...]
    client_id: str = "kbatch"
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_kerberos_service_name: str = "kafka"
    sasl_kerberos_keytab: str | None = None
    sasl_kerberos_principal: str | None = None
    sasl_oauthbearer_token: TokenProvider | None = field(default=None, repr=False)
    sasl_oauthbearer_client_id: str | None = None
    sasl_oauthbearer_client_secret: str | None = field(default=None, repr=False)
    sasl_oauthbearer_scope: str | None = None
    sasl_oauthbearer_token_endpoint_url: str | None = None
    ssl_ca_location: str | None = None
    ssl_ca_pem: str | None = field(default=None, repr=False)
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_endpoint_identification_algorithm: str = "https"
    enable_ssl_certificate_verification: bool = True
    socks5_proxy: str | None = field(default=None, repr=False)
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    socket_connection_setup_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    metadata_max_age_ms: int = 300_000
    fetch_max_bytes: int | None = None
    max_partition_fetch_bytes: int | None = None
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str | None = None
    group_remote_assignor: str | None = None
    partition_assignment_strategy: tuple[str, ...] | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    auto_offset_reset: str | None = None
    enable_auto_commit: bool | None = None
    client_rack: str | None = None

    @classmethod
    @lists_options
    def of(cls, config: ClientConfig | None = None, **options: Unpack[ClientArguments]) -> ClientSettings:
        """Return the settings of a file or mapping, and of keyword arguments, which take precedence.

        Parameters
        ----------
        config : str, path or mapping, optional
            A file such as ``client.properties``, or a mapping of the names of Kafka's clients to values.
        **options
            The settings of Kafka's clients with underscores. ``help(kbatch.live.ClientSettings.of)`` lists them.

        Returns
        -------
        ClientSettings

        Raises
        ------
        OSError
            If the file cannot be read.
        TypeError, ValueError
            For a setting that is unknown, not supported or wrong.

        Examples
        --------
        >>> from kbatch.live import ClientSettings
        >>> settings = ClientSettings.of({"bootstrap.servers": "a:9092,b:9092"}, request_timeout_ms=5000)
        >>> [str(server) for server in settings.bootstrap_servers], settings.request_timeout_ms
        (['a:9092', 'b:9092'], 5000)
        >>> ClientSettings.of({"bootstrap.servers": "a", "isolation.level": "read_committed"})
        Traceback (most recent call last):
        ValueError: isolation.level: use the argument isolation
        """
        check_types(ClientSettings.of, {"config": config})
        given = {} if config is None else _dotted(read_config(config))
        given.update(_dotted({name: value for name, value in options.items() if value is not None}))
        given = _without_java_forms(given)
        made: dict[str, Any] = {}
        for each in fields(cls):
            name = each.name.replace("_", ".")
            if name in given:
                made[each.name] = _checked_setting(name, each.name, given.pop(name))
        _refuse_unknown(given, [each.name.replace("_", ".") for each in fields(cls)])
        if "bootstrap_servers" not in made:
            raise ValueError("bootstrap_servers is missing: the addresses of some brokers, as HOST:PORT[,HOST:PORT]")
        return cls(**made)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates by SASL."""
        return self.security_protocol.startswith("SASL")

    @property
    def sent_mechanism(self) -> str:
        """The mechanism to send to brokers: MSK expects IAM tokens by OAUTHBEARER."""
        return "OAUTHBEARER" if self.sasl_mechanism == "AWS_MSK_IAM" else self.sasl_mechanism

    def _check_group(self) -> None:
        """Raise an error for group settings that contradict each other."""
        for name in ("group_id", "group_instance_id"):
            if getattr(self, name) == "":
                raise ValueError(f"{name.replace('_', '.')} must not be empty")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat.interval.ms ({self.heartbeat_interval_ms}) must be less than session.timeout.ms "
                f"({self.session_timeout_ms})"
            )
        if self.group_protocol == "consumer" and self.partition_assignment_strategy is not None:
            raise ValueError(
                "partition.assignment.strategy belongs to group.protocol=classic; with group.protocol=consumer, "
                "group.remote.assignor names an assignor of the broker"
            )
        if self.group_protocol == "classic" and self.group_remote_assignor is not None:
            raise ValueError("group.remote.assignor belongs to group.protocol=consumer")

    def __post_init__(self) -> None:
        servers = self.bootstrap_servers
        if not (isinstance(servers, tuple) and servers and all(isinstance(each, ServerAddress) for each in servers)):
            raise TypeError(
                "bootstrap_servers must be a tuple of ServerAddress; ClientSettings.of takes HOST:PORT as text"
            )
        self._check()

    def _check(self) -> None:
        """Raise an error for settings that contradict each other."""
        if self.uses_sasl and not self.sasl_mechanism:
            raise ValueError(f"security.protocol={self.security_protocol} needs sasl.mechanism")
        if not self.uses_sasl and self.sasl_mechanism:
            raise ValueError(
                f"sasl.mechanism needs security.protocol=SASL_SSL or SASL_PLAINTEXT, it is {self.security_protocol}"
            )
        if not self.uses_tls:
            given = [name for name in _TLS_SETTINGS if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"{given[0].replace('_', '.')} needs security.protocol=SSL or SASL_SSL, it is "
                    f"{self.security_protocol}"
                )
        self._check_group()
        if self.ssl_key_location and not self.ssl_certificate_location:
            raise ValueError("ssl.key.location needs ssl.certificate.location, the certificate of the key")
        if self.sasl_mechanism == "OAUTHBEARER":
            needed = (
                "sasl_oauthbearer_client_id",
                "sasl_oauthbearer_client_secret",
                "sasl_oauthbearer_token_endpoint_url",
            )
            missing = [name.replace("_", ".") for name in needed if not getattr(self, name)]
            if self.sasl_oauthbearer_token is None and missing:
                raise ValueError(
                    "sasl.mechanism=OAUTHBEARER needs sasl_oauthbearer_token, a function that returns a token, or the "
                    f"settings of the token endpoint, of which {', '.join(missing)} is missing"
                )
        elif self.sasl_mechanism == "AWS_MSK_IAM" and not self.uses_tls:
            raise ValueError("sasl.mechanism=AWS_MSK_IAM needs security.protocol=SASL_SSL")
        elif self.sasl_mechanism in _MECHANISMS[:3] and not (self.sasl_username and self.sasl_password):
            raise ValueError(f"sasl.mechanism={self.sasl_mechanism} needs sasl.username and sasl.password")


_TLS_SETTINGS = ("ssl_ca_location", "ssl_ca_pem", "ssl_certificate_location", "ssl_key_location")
_PATHS = (*_TLS_SETTINGS[:1], *_TLS_SETTINGS[2:], "sasl_kerberos_keytab")
_LOWER_CHOICES = {"group_protocol": ("classic", "consumer"), "auto_offset_reset": ("earliest", "latest", "none")}
# The names that librdkafka uses.
_RESET_ALIASES = {
    "smallest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "end": "latest",
    "error": "none",
}
_INTEGERS = frozenset(name for name in ClientArguments.__annotations__ if name.endswith(("_ms", "_bytes")))


def _dotted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names with dots, without synonyms."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        dotted = name if name in _WITHOUT_EFFECT else name.strip().replace("_", ".")
        dotted = _ALIASES.get(dotted, dotted)
        if dotted in found:
            raise ValueError(f"{dotted} is given twice, under two of its names")
        found[dotted] = value
    return found


def _without_java_forms(given: dict[str, Any]) -> dict[str, Any]:
    """Replace settings that only Java clients have by those of librdkafka."""
    found = dict(given)
    if (jaas := found.pop("sasl.jaas.config", None)) is not None:
        found = {**_of_jaas(setting_value("sasl.jaas.config", str, jaas)), **found}
    if found.get("sasl.client.callback.handler.class") == _MSK_HANDLER:
        del found["sasl.client.callback.handler.class"]
    for store, targets in (
        ("ssl.truststore", ("ssl.ca.location",)),
        ("ssl.keystore", ("ssl.certificate.location", "ssl.key.location")),
    ):
        kind = str(found.pop(f"{store}.type", "JKS")).upper()
        location, password = found.pop(f"{store}.location", None), found.pop(f"{store}.password", None)
        if location is None:
            continue
        if kind != "PEM":
            raise ValueError(_JAVA_STORE.format(store, kind))
        for target in targets:
            found.setdefault(target, location)
        if password is not None and store == "ssl.keystore":
            found.setdefault("ssl.key.password", password)
    if (method := found.pop("sasl.oauthbearer.method", None)) is not None and str(method).lower() not in (
        "oidc",
        "default",
    ):
        raise ValueError('sasl.oauthbearer.method must be "oidc" or "default"')
    for name in ("ssl.enabled.protocols", "ssl.protocol"):
        versions = as_list(found.pop(name, ""))
        if versions and not {"TLSv1.2", "TLSv1.3", "TLS"} & {*versions}:
            raise ValueError(f"{name} must include TLSv1.2 or TLSv1.3; older versions are not supported")
    return found


def _of_jaas(text: str) -> dict[str, Any]:
    module, options = jaas_options(text)
    if module not in _LOGIN_MODULES:
        raise ValueError(f"sasl.jaas.config names the login module {module}; supported are {', '.join(_LOGIN_MODULES)}")
    names = {} if module == _MSK_MODULE else {"username": "sasl.username", "password": "sasl.password"}
    if module == "OAuthBearerLoginModule":
        names = {
            "clientId": "sasl.oauthbearer.client.id",
            "clientSecret": "sasl.oauthbearer.client.secret",
            "scope": "sasl.oauthbearer.scope",
        }
    if module == "Krb5LoginModule":
        names = {
            "keyTab": "sasl.kerberos.keytab",
            "principal": "sasl.kerberos.principal",
            "serviceName": "sasl.kerberos.service.name",
        }
        options = {name: value for name, value in options.items() if name not in _KERBEROS_WITHOUT_EFFECT}
    unknown = sorted(options.keys() - names.keys())
    if unknown:
        raise ValueError(f"sasl.jaas.config has the option {unknown[0]}, which is not supported with {module}")
    return {names[name]: value for name, value in options.items()}


def _checked_setting(dotted: str, name: str, value: Any) -> Any:
    if name == "bootstrap_servers":
        return parse_servers(value)
    if name == "sasl_oauthbearer_token":
        if not callable(value):
            raise TypeError(
                f"sasl_oauthbearer_token must be a function that returns a token, got {type(value).__name__}"
            )
        return value
    if name == "partition_assignment_strategy":
        return assignor_names(as_list(value))
    if name in ("enable_ssl_certificate_verification", "enable_auto_commit"):
        return setting_value(dotted, bool, value)
    if name in _INTEGERS:
        return setting_value(dotted, int, value)
    if name in _PATHS and isinstance(value, os.PathLike):
        value = os.fspath(value)
    text: str = setting_value(dotted, str, value)
    choices = {"security_protocol": _PROTOCOLS, "sasl_mechanism": _MECHANISMS}.get(name)
    if choices is not None:
        text = text.strip().upper()
        if text not in choices:
            raise ValueError(f"{dotted} must be one of {', '.join(choices)}, got {text!r}{did_you_mean(text, choices)}")
    if name in _LOWER_CHOICES:
        return checked_choice(dotted, _RESET_ALIASES.get(text.strip().lower(), text), _LOWER_CHOICES[name])
    if name == "ssl_endpoint_identification_algorithm":
        text = text.strip().lower() or "none"
        if text not in ("https", "none"):
            raise ValueError(f'{dotted} must be "https" or "none", got {text!r}')
    return text


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str]) -> None:
    for name, value in given.items():
        if name in _ONLY_VALUES and str(value).strip().lower() == _ONLY_VALUES[name]:
            continue
        if name in _REFUSED:
            raise ValueError(f"{name}: {_REFUSED[name]}")
        # A file may also contain the settings of a schema registry, which the argument schema_registry reads.
        if name not in _WITHOUT_EFFECT and not is_registry_setting(name):
            raise ValueError(f"unknown setting {name!r}{did_you_mean(name, list(known))}")
