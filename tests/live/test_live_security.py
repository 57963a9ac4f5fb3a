"""Authentication, TLS and proxies without a broker: what is sent, what is reported, and what is kept secret."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.live import AuthenticationError, BearerToken, BrokerConnectionError, ClientSettings, connect_socket
from kbatch.live.tokens import ClientCredentials, MskTokens
from kbatch.protocol import ApiKey

SECRET = "s3cr3t-value"


def cluster_of(records: int = 40) -> ScriptedCluster:
    made = ScriptedPartition()
    for i in range(records):
        made.write([b"%d" % i])
    return ScriptedCluster(orders=[made])


def read(cluster: ScriptedCluster, **settings: Any) -> int:
    settings = {"bootstrap_servers": "broker-1", "security_protocol": "SASL_PLAINTEXT", **settings}
    return sum(map(len, kbatch.consume("orders", transport=cluster.connect, **settings)))


PLAIN = {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": SECRET}


# -- SASL


def test_plain_sends_user_and_password_on_each_connection() -> None:
    cluster = cluster_of()
    cluster.password = b"\0me\0" + SECRET.encode()
    assert read(cluster, **PLAIN) == 40
    sent = cluster.sent(ApiKey.SASL_AUTHENTICATE)
    assert len(sent) == len(cluster.open) == 2
    assert {bytes(each.auth_bytes) for each in sent} == {b"\0me\0" + SECRET.encode()}


def test_a_wrong_password_is_not_tried_again_and_not_shown() -> None:
    cluster = cluster_of()
    with pytest.raises(AuthenticationError) as raised:
        read(cluster, **PLAIN)
    assert str(raised.value) == (
        "broker broker-1:9092: authentication by PLAIN failed: Authentication failed: Invalid username or password; "
        "check the password of user 'me'"
    )
    assert raised.value.code == kbatch.ErrorCode.SASL_AUTHENTICATION_FAILED
    assert len(cluster.sent(ApiKey.SASL_AUTHENTICATE)) == 1


def test_a_mechanism_that_the_broker_lacks_is_reported_with_those_that_it_has() -> None:
    pattern = r"broker-1:9092: does not accept sasl.mechanism=SCRAM-SHA-256; it accepts PLAIN, OAUTHBEARER"
    with pytest.raises(AuthenticationError, match=pattern):
        read(cluster_of(), **(PLAIN | {"sasl_mechanism": "SCRAM-SHA-256"}))


def test_scram_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scramp", None)

    def accept(response: Any) -> None:
        response.error_code = 0

    cluster = cluster_of()
    cluster.fail(ApiKey.SASL_HANDSHAKE, Fault(change=accept))
    with pytest.raises(kbatch.MissingDependencyError, match=r"SCRAM-SHA-256 needs scramp.* the extra .scram.: "):
        read(cluster, **(PLAIN | {"sasl_mechanism": "SCRAM-SHA-256"}))


def test_an_open_connection_is_authenticated_again_before_its_session_ends() -> None:
    cluster = cluster_of()
    cluster.password, cluster.session_ms = SECRET.encode(), 60
    tables = kbatch.consume(
        "orders",
        transport=cluster.connect,
        bootstrap_servers="broker-1",
        security_protocol="SASL_PLAINTEXT",
        fetch_max_bytes=1,
        **PLAIN,
    )
    count = 0
    for table in tables:
        count += len(table)
        time.sleep(0.01)
    assert count == 40
    assert len(cluster.open) == 2
    assert len(cluster.sent(ApiKey.SASL_AUTHENTICATE)) > 3
    # Within a session of an open connection only these two messages are exchanged again.
    assert len(cluster.sent(ApiKey.SASL_HANDSHAKE)) == len(cluster.sent(ApiKey.SASL_AUTHENTICATE))
    assert len(cluster.sent(ApiKey.API_VERSIONS)) == 2


@pytest.mark.parametrize("token", [SECRET, BearerToken(SECRET, {"traceId": "7"})])
def test_a_token_of_a_function_is_sent(token: str | BearerToken) -> None:
    cluster = cluster_of()
    cluster.password = b"\x01\x01"
    assert read(cluster, sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token=lambda: token) == 40
    extension = b"traceId=7\x01" if isinstance(token, BearerToken) else b""
    sent = {bytes(each.auth_bytes) for each in cluster.sent(ApiKey.SASL_AUTHENTICATE)}
    assert sent == {b"n,,\x01auth=Bearer " + SECRET.encode() + b"\x01" + extension + b"\x01"}


@pytest.mark.parametrize("token", ["", "a\nb", None, 7])
def test_a_function_that_returns_no_token_is_an_error(token: Any) -> None:
    with pytest.raises((AuthenticationError, TypeError), match=r"did not return a token|value must be a str"):
        read(cluster_of(), sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token=lambda: token)


def test_a_token_that_the_broker_refuses_is_an_error_with_its_reason() -> None:
    cluster = cluster_of()
    cluster.password = b"\x01"

    def refuse(response: Any) -> None:
        response.auth_bytes = b'{"status":"invalid_token"}'

    cluster.fail(ApiKey.SASL_AUTHENTICATE, Fault(change=refuse))
    with pytest.raises(AuthenticationError, match=r"broker-1:9092: the broker refused the token \(invalid_token\)"):
        read(cluster, sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token=lambda: SECRET)


# -- AWS IAM


class Signer:
    """In place of the package, which signs with credentials."""

    calls: list[str]

    @classmethod
    def generate_auth_token(cls, region: str) -> tuple[str, int]:
        cls.calls.append(region)
        return f"token-{len(cls.calls)}", int(1000 * (time.time() + 60))


def test_tokens_of_iam_are_signed_once_for_the_region_of_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    Signer.calls = []
    for name in ("aws_msk_iam_sasl_signer", "aws_msk_iam_sasl_signer.MSKAuthTokenProvider"):
        monkeypatch.setitem(sys.modules, name, Signer)  # type: ignore[arg-type]
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    tokens = MskTokens(["b-1.name.abc.c2.kafka.eu-west-1.amazonaws.com", "x"])
    assert (tokens(), tokens()) == ("token-1", "token-1")
    MskTokens(["boot-x.c1.kafka-serverless.us-east-2.amazonaws.com"])()
    MskTokens(["localhost"])()
    assert Signer.calls == ["eu-west-1", "us-east-2", "eu-north-1"]
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(ValueError, match="set AWS_REGION in the environment"):
        MskTokens(["localhost"])


def test_tokens_of_iam_are_sent_by_oauthbearer(monkeypatch: pytest.MonkeyPatch) -> None:
    Signer.calls = []
    for name in ("aws_msk_iam_sasl_signer", "aws_msk_iam_sasl_signer.MSKAuthTokenProvider"):
        monkeypatch.setitem(sys.modules, name, Signer)  # type: ignore[arg-type]
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    cluster = cluster_of()
    cluster.password = b"\x01auth=Bearer token-1\x01\x01"
    assert read(cluster, sasl_mechanism="AWS_MSK_IAM", security_protocol="SASL_SSL") == 40
    assert {each.mechanism for each in cluster.sent(ApiKey.SASL_HANDSHAKE)} == {"OAUTHBEARER"}
    cluster.password = b"other"
    with pytest.raises(AuthenticationError, match=r"AWS_MSK_IAM failed: .*; check the AWS credentials"):
        read(cluster, sasl_mechanism="AWS_MSK_IAM", security_protocol="SASL_SSL")


def test_the_package_for_iam_signs_a_request_for_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    token = MskTokens(["b-1.x.kafka.eu-west-1.amazonaws.com"])()
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert SECRET not in url


# -- OpenID Connect


@contextlib.contextmanager
def serving(answer: Callable[[dict[str, Any]], tuple[int, bytes]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run a token endpoint; yield its URL and the requests that it gets."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            requests.append({"authorization": self.headers["Authorization"], **dict(urllib.parse.parse_qsl(body))})
            status, text = answer(requests[-1])
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_client_credentials_request_one_token_for_all_connections() -> None:
    cluster = cluster_of()
    cluster.password = b"\x01auth=Bearer the-token\x01\x01"
    answer = json.dumps({"access_token": "the-token", "expires_in": 300}).encode()
    with serving(lambda _: (200, answer)) as (url, requests):
        settings = {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": url,
            "sasl_oauthbearer_client_id": "me",
            "sasl_oauthbearer_client_secret": "a:b",
            "sasl_oauthbearer_scope": "kafka",
        }
        assert read(cluster, **settings) == 40
    assert len(cluster.sent(ApiKey.SASL_AUTHENTICATE)) == 2
    assert requests == [{"authorization": "Basic bWU6YSUzQWI=", "grant_type": "client_credentials", "scope": "kafka"}]


def test_a_token_is_requested_again_when_it_is_nearly_expired() -> None:
    numbers = iter(range(9))
    with serving(lambda _: (200, b'{"access_token": "t%d", "expires_in": 0.25}' % next(numbers))) as (url, _):
        tokens = ClientCredentials(url, "me", SECRET)
        assert (tokens(), tokens()) == ("t0", "t0")
        time.sleep(0.3)
        assert tokens() == "t1"


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, b'{"error": "invalid_client"}', r"HTTP status 401 \(invalid_client\); check the client id, the secret"),
        (500, b"<html>", r"HTTP status 500; check"),
        (200, b"<html>", r"the response is not JSON"),
        (200, b'{"token": "x"}', r"the response has no access_token"),
        (200, b"[]", r"the response has no access_token"),
    ],
)
def test_an_endpoint_that_gives_no_token_is_an_error_without_the_secret(
    status: int, answer: bytes, message: str
) -> None:
    with serving(lambda _: (status, answer)) as (url, _), pytest.raises(AuthenticationError, match=message) as raised:
        ClientCredentials(url, "me", SECRET)()
    assert SECRET not in str(raised.value)
    assert "token endpoint 127.0.0.1:" in str(raised.value)


def test_an_endpoint_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(AuthenticationError, match=r"token endpoint 127.0.0.1:1: no token: "):
        ClientCredentials("http://127.0.0.1:1/token", "me", SECRET)()
    with pytest.raises(ValueError, match=r"must be a URL that begins with https://"):
        ClientCredentials("file:///etc/passwd", "me", SECRET)


# -- TLS and proxies over sockets


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept connections on loopback, one after the other; yield the address."""
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                answer(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


QUICK = {"socket_connection_setup_timeout_ms": 500, "default_api_timeout_ms": 500, "request_timeout_ms": 500}


def test_a_port_that_closes_the_connection_is_no_broker() -> None:
    pattern = r"closed the connection before the first response; .*expects TLS \(security.protocol\)"
    with listening(lambda _: None) as address, pytest.raises(BrokerConnectionError, match=pattern):
        kbatch.consume("orders", bootstrap_servers=address, **QUICK)


def test_a_port_that_speaks_http_is_no_broker() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    pattern = r"broker 127.0.0.1:\d+: ApiVersions response: .*length is 1213486160, the limit is"
    with listening(answer) as address, pytest.raises(kbatch.LimitExceededError, match=pattern):
        kbatch.consume("orders", bootstrap_servers=address, **QUICK)


def test_a_port_that_never_answers_is_an_error_that_names_the_setting() -> None:
    with (
        listening(lambda _: time.sleep(0.7)) as address,
        pytest.raises(BrokerConnectionError, match=r"request.timeout.ms"),
    ):
        kbatch.consume("orders", bootstrap_servers=address, **QUICK)


def test_tls_encrypts_and_verifies(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from certificates import Authority

    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("broker"))

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.sendall(wrapped.recv(100).upper())

    def echo(address: str, ca: Path) -> bytes:
        settings = ClientSettings.of(bootstrap_servers=address, security_protocol="SSL", ssl_ca_location=ca)
        transport = connect_socket(settings.bootstrap_servers[0], settings)
        try:
            transport.set_timeout(5)
            transport.send([b"he", memoryview(b"llo")])
            received = bytearray(100)
            return bytes(received[: transport.receive_into(memoryview(received))])
        finally:
            transport.close()

    with listening(answer) as address:
        assert echo(address, authority.path) == b"HELLO"
        with pytest.raises(AuthenticationError, match=r"certificate is not trusted: .*; set ssl.ca.location"):
            echo(address, other.path)
        with pytest.raises(ValueError, match=r"ssl.ca.location has no certificates"):
            echo(address, tmp_path / "none.pem")


def test_a_socks_proxy_resolves_the_name_of_the_broker() -> None:
    pytest.importorskip("python_socks")
    asked: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        # RFC 1928, and the user name and password of RFC 1929.
        connection.recv(100)
        connection.sendall(b"\5\2")
        asked.append(connection.recv(100))
        connection.sendall(b"\1\0")
        asked.append(connection.recv(100))
        connection.sendall(b"\5\0\0\1\0\0\0\0\0\0")
        connection.sendall(connection.recv(100).upper())

    with listening(answer) as address:
        settings = ClientSettings.of(
            bootstrap_servers="broker.internal:9092", socks5_proxy=f"socks5://me:{SECRET}@{address}"
        )
        transport = connect_socket(settings.bootstrap_servers[0], settings)
        transport.set_timeout(5)
        transport.send([b"hello"])
        received = bytearray(10)
        assert received[: transport.receive_into(memoryview(received))] == b"HELLO"
        transport.close()
    assert asked == [b"\1\2me\x0c" + SECRET.encode(), b"\5\1\0\3\x0fbroker.internal" + (9092).to_bytes(2, "big")]


def test_a_socks_proxy_that_is_down_is_an_error_without_its_password() -> None:
    pytest.importorskip("python_socks")
    settings = ClientSettings.of(bootstrap_servers="b", socks5_proxy=f"socks5://me:{SECRET}@127.0.0.1:1", **QUICK)
    with pytest.raises(BrokerConnectionError) as raised:
        connect_socket(settings.bootstrap_servers[0], settings)
    assert SECRET not in str(raised.value)
    assert "broker b:9092" in str(raised.value)
