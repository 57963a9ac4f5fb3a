"""Settings of Kafka's clients: names, files, what is refused, and secrets that are never shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.live import BearerToken, ClientSettings, ServerAddress
from kbatch.live.tokens import ClientCredentials

SECRET = "s3cr3t-value"


def settings(config: Any = None, **arguments: Any) -> ClientSettings:
    return ClientSettings.of({"bootstrap.servers": "a:1", **(config or {})}, **arguments)


def test_settings_of_a_file_a_mapping_and_keywords_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "# a comment\n"
        "! another one\n"
        "bootstrap.servers = b1:9092,\\\n"
        "    b2:9093\n"
        "security.protocol: SASL_SSL\n"
        "sasl.mechanism SCRAM-SHA-256\n"
        "sasl.username=caf\\u00e9\n"
        f"sasl.password=a\\\\b\\=c{SECRET}\n"
        "\n"
    )
    names = {
        "bootstrap_servers": ["b1:9092", "b2:9093"],
        "security_protocol": "sasl_ssl",
        "sasl_mechanism": "scram-sha-256",
        "sasl_username": "café",
        "sasl_password": f"a\\b=c{SECRET}",
    }
    dotted = {name.replace("_", "."): value for name, value in names.items()}
    assert (
        ClientSettings.of(path)
        == ClientSettings.of(str(path))
        == ClientSettings.of(**names)
        == ClientSettings.of(dotted)
    )


def test_keywords_take_precedence_over_the_file() -> None:
    assert settings({"client.id": "x", "request.timeout.ms": "5"}, client_id="y") == settings(
        client_id="y", request_timeout_ms=5
    )


@pytest.mark.parametrize(
    ("java", "librdkafka"),
    [
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="me" password="a\\"b;c=d";',
            },
            {
                "security.protocol": "sasl_ssl",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": "me",
                "sasl.password": 'a"b;c=d',
            },
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://id/token",
                "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required\n"
                "  clientId='me' clientSecret='x' scope='kafka';",
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://id/token",
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "x",
                "sasl.oauthbearer.scope": "kafka",
            },
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/ca.pem",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/client.pem",
                "ssl.key.password": "x",
                "ssl.endpoint.identification.algorithm": "",
            },
            {
                "security.protocol": "ssl",
                "ssl.ca.location": "/ca.pem",
                "ssl.certificate.location": "/client.pem",
                "ssl.key.location": "/client.pem",
                "ssl.key.password": "x",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
                "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
            },
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"},
        ),
        (
            {"request.timeout.ms": "7", "fetch.max.wait.ms": "8", "max.partition.fetch.bytes": "9"},
            {"socket.timeout.ms": "7", "fetch.wait.max.ms": 8, "fetch.message.max.bytes": 9},
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "GSSAPI",
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
                'keyTab="/etc/me.keytab" principal="me@TEST" serviceName="stream";',
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "stream",
                "sasl.kerberos.keytab": "/etc/me.keytab",
                "sasl.kerberos.principal": "me@TEST",
                "sasl.kerberos.min.time.before.relogin": 60000,
            },
        ),
    ],
    ids=["plain", "oauthbearer", "tls", "msk", "fetch", "kerberos"],
)
def test_the_names_of_java_and_of_librdkafka_mean_the_same(java: dict[str, Any], librdkafka: dict[str, Any]) -> None:
    assert settings(java) == settings(librdkafka)


def test_settings_that_change_nothing_here_are_accepted() -> None:
    """The client configuration that Confluent Cloud shows, which programs share."""
    shared = {
        "client.dns.lookup": "use_all_dns_ips",
        "acks": "all",
        "auto.commit.interval.ms": "5000",
        "log_level": "2",
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    }
    assert settings(shared) == settings()


def test_the_defaults_of_javas_consumer_are_accepted() -> None:
    defaults = {
        "auto.include.jmx.reporter": "true", "check.crcs": "true", "exclude.internal.topics": "true",
        "metadata.recovery.strategy": "rebootstrap", "metrics.num.samples": "2", "metrics.recording.level": "INFO",
        "metrics.sample.window.ms": "30000", "retry.backoff.max.ms": "1000", "sasl.login.refresh.window.factor": "0.8",
        "socket.connection.setup.timeout.max.ms": "30000", "ssl.trustmanager.algorithm": "PKIX",
    }  # fmt: skip
    assert settings(defaults) == settings()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bootstrap.server": "b"}, "unknown setting 'bootstrap.server', did you mean 'bootstrap.servers'?"),
        ({"group.id": ""}, "group.id must not be empty"),
        ({"isolation.level": "read_committed"}, "isolation.level: use the argument isolation"),
        ({"check.crcs": "false"}, "check.crcs: use the argument crc"),
        (
            {"exclude.internal.topics": False},
            "exclude.internal.topics: internal topics are read only if they are named",
        ),
        ({"auto.offset.reset": "newest"}, "auto.offset.reset must be one of earliest, latest, none, got 'newest'"),
        (
            {"sasl.mechanism": "NTLM"},
            "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS",
        ),
        ({"sasl.kerberos.kinit.cmd": "kinit"}, "sasl.kerberos.kinit.cmd: kbatch runs no command; use sasl.kerberos"),
        ({"security.protocol": "TLS"}, "security.protocol must be one of"),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism needs security.protocol=SASL_SSL or SASL_PLAINTEXT"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs sasl.username and sasl.password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "needs sasl_oauthbearer_token"),
        ({"ssl.ca.location": "x"}, "ssl.ca.location needs security.protocol=SSL or SASL_SSL"),
        ({"security.protocol": "SSL", "ssl.key.location": "x"}, "needs ssl.certificate.location"),
        ({"ssl.truststore.location": "x.jks"}, "ssl.truststore is of type JKS, .* export its certificates as PEM"),
        ({"ssl.truststore.location": "x", "ssl.truststore.type": "PKCS12"}, "is of type PKCS12"),
        ({"ssl.keystore.key": SECRET}, "put the PEM text into a file, and name it in ssl.key.location"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "must include TLSv1.2 or TLSv1.3"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms must be a whole number from 0 to 2147483647, got 'soon'"),
        ({"request.timeout.ms": -1}, "request.timeout.ms must be a whole number from 0 to 2147483647, got -1"),
        ({"fetch.max.bytes": str(1 << 31)}, r"fetch.max.bytes must be a whole number from 0 to 2147483647"),
        ({"enable.ssl.certificate.verification": "no"}, "must be true or false"),
        ({"client.id": 7}, "client.id must be a str, got int"),
        ({"socket.timeout.ms": 1, "request.timeout.ms": 1}, "request.timeout.ms is given twice"),
        ({"sasl.jaas.config": f"nonsense {SECRET}"}, "sasl.jaas.config must have the form"),
        (
            {"sasl.jaas.config": f'x.LdapLoginModule required password="{SECRET}";'},
            "names the login module LdapLoginModule; supported are PlainLoginModule",
        ),
        ({"sasl.jaas.config": f'x.PlainLoginModule required "{SECRET}";'}, "must have options of the form"),
        ({"sasl.jaas.config": f'x.PlainLoginModule required token="{SECRET}";'}, "has the option token"),
        ({"sasl.oauthbearer.token": SECRET}, "sasl_oauthbearer_token must be a function"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_and_without_secrets(given: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        settings(given)
    assert SECRET not in str(raised.value)


def test_a_file_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(kbatch.LogDirectoryError, match=r"none\.properties"):
        ClientSettings.of(tmp_path / "none.properties")


@pytest.mark.parametrize(
    ("given", "servers"),
    [
        ("a:1,b:2", ["a:1", "b:2"]),
        ("a, b ,", ["a:9092", "b:9092"]),
        (["a:1", "b"], ["a:1", "b:9092"]),
        ("[::1]:9,PLAINTEXT://c:3", ["[::1]:9", "c:3"]),
        ("kafka://a:1,b:2", ["a:1", "b:2"]),
        ("kafka://a:1/", ["a:1"]),
    ],
)
def test_bootstrap_servers_have_several_forms(given: Any, servers: list[str]) -> None:
    assert [str(each) for each in ClientSettings.of(bootstrap_servers=given).bootstrap_servers] == servers


@pytest.mark.parametrize(
    "url", [f"kafka://me:{SECRET}@a:1", f"kafka://a:1?sasl.password={SECRET}", f"kafka://a:1/topic#{SECRET}"]
)
def test_settings_in_a_url_are_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="because URLs are logged; pass settings as keyword arguments") as raised:
        ClientSettings.of(bootstrap_servers=url)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("given", ["", "a:b", "a:70000", "http://a:1/x", f"me:{SECRET}@a:1", []])
def test_addresses_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="bootstrap_servers must") as raised:
        ClientSettings.of(bootstrap_servers=given)
    assert SECRET not in str(raised.value)


def test_missing_servers_are_an_error() -> None:
    with pytest.raises(ValueError, match="bootstrap_servers is missing"):
        ClientSettings.of(client_id="x")


def test_secrets_are_in_no_representation() -> None:
    made = settings(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password=SECRET,
        ssl_key_password=SECRET,
        sasl_oauthbearer_client_secret=SECRET,
        socks5_proxy=f"socks5://me:{SECRET}@proxy:1080",
    )
    assert made.sasl_password == SECRET
    assert "sasl_username='me'" in repr(made)
    for shown in (repr(made), str(made), repr(BearerToken(SECRET)), repr(ClientCredentials("https://x", "id", SECRET))):
        assert SECRET not in shown
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("servers", ["a:9092", ["a:9092"], ("a:9092",), (("a", 9092),), ()])
def test_settings_that_are_not_made_by_of_need_addresses(servers: Any) -> None:
    with pytest.raises(TypeError, match=r"tuple of ServerAddress; ClientSettings\.of takes HOST:PORT as text"):
        ClientSettings(servers)


def test_settings_that_are_not_made_by_of_must_not_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"security\.protocol=SASL_SSL needs sasl\.mechanism"):
        ClientSettings((ServerAddress("a", 9092),), security_protocol="SASL_SSL")
