"""`kbatch.consume` against a real broker: records as librdkafka reads them, TLS, each SASL mechanism, and faults."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.live import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    ClientSettings,
    Cluster,
    Transport,
    connect_socket,
)
from kbatch.live.fetch_sessions import FetchSession
from kbatch.protocol import ApiKey, MessageSplitter, decode_request

try:
    import confluent_kafka
    from certificates import Authority
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.clients import CODECS, EPOCH, WRITERS, oddities, plain
    from broker.reading import Partition, consumed, rows_of
    from broker.server import SETTINGS, Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

USER, PASSWORD = "me", 'pass"word;='
LOGIN = "org.apache.kafka.common.security"
REAUTHENTICATION_MS = 1500


class Ready:
    """A broker with topics, and the certificates of its listeners."""

    def __init__(self, directory: Path, broker: Broker, authority: Authority) -> None:
        self.directory = directory
        self.broker = broker
        self.authority = authority

    def settings(self, listener: str, **more: Any) -> dict[str, Any]:
        return {"bootstrap_servers": self.broker.addresses[listener], "ssl_ca_location": self.authority.path, **more}


def secured_settings(authority: Authority) -> dict[str, str]:
    """Return the settings of listeners for TLS, mutual TLS and SASL."""
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.sign("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
        "ssl.client.auth": "none",
        "listener.name.mutual.ssl.client.auth": "required",
        "connections.max.reauth.ms": str(REAUTHENTICATION_MS),
    }
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\\\"')
    modules = {
        "plain": f'{LOGIN}.plain.PlainLoginModule required user_{USER}="{escaped}";',
        "scram-sha-256": f"{LOGIN}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{LOGIN}.scram.ScramLoginModule required;",
        "oauthbearer": f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x";',
    }
    stores["listener.name.sasl.sasl.enabled.mechanisms"] = ",".join(modules).upper()
    return stores | {f"listener.name.sasl.{name}.sasl.jaas.config": text for name, text in modules.items()}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    directory = tmp_path_factory.mktemp("live")
    authority = Authority(directory)
    scram = [f"--add-scram=SCRAM-SHA-{size}=[name={USER},password={PASSWORD}]" for size in (256, 512)]
    try:
        broker = Broker(
            directory / "broker",
            settings=SETTINGS | secured_settings(authority),
            listeners={"TLS": "SSL", "MUTUAL": "SSL", "SASL": "SASL_SSL"},
            format_options=scram,
        )
        with broker:
            write_topics(broker.bootstrap)
            yield Ready(directory, broker, authority)
    except Unavailable as error:
        pytest.skip(str(error))


def write_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = {"codecs": len(CODECS), "writers": len(WRITERS), "txn": 1, "plain": 2}
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in names.items()]).values():
        future.result(60)
    for number, codec in enumerate(CODECS):
        WRITERS["librdkafka"](bootstrap, codec, "codecs", number, [*oddities(codec), *plain(300)])
    for number, write in enumerate(WRITERS.values()):
        write(bootstrap, "gzip", "writers", number, [*oddities("w"), *plain(50)])
    for number in range(2):
        WRITERS["librdkafka"](bootstrap, "lz4", "plain", number, plain(2000))
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 2})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        for each in range(20):
            producer.produce("txn", b"%d %d" % (number, each))
        producer.flush(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)


def rows_by_partition(consumer: kbatch.Consumer) -> dict[Partition, list[Any]]:
    found: dict[Partition, list[Any]] = {}
    for row in rows_of(consumer):
        found.setdefault((str(row.topic), int(row.partition or 0)), []).append(row)
    return found


@pytest.mark.parametrize("max_bytes", [None, 1 << 20])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_records_are_those_that_librdkafka_reads(ready: Ready, isolation: Any, max_bytes: int | None) -> None:
    partitions = [("codecs", i) for i in range(5)] + [("writers", i) for i in range(3)] + [("txn", 0)]
    expected = consumed(ready.broker.bootstrap, partitions, isolation)
    assert sum(map(len, expected.values())) > 2000
    found = kbatch.consume(
        ["codecs", "writers", "txn"], bootstrap_servers=ready.broker.bootstrap, isolation=isolation, max_bytes=max_bytes
    )
    assert rows_by_partition(found) == expected


def test_small_fetches_of_compressed_and_transactional_batches_repeat_and_lose_nothing(ready: Ready) -> None:
    partitions = [("codecs", i) for i in range(5)] + [("txn", 0)]
    expected = consumed(ready.broker.bootstrap, partitions, "read_committed")
    found = kbatch.consume(
        ["codecs", "txn"], bootstrap_servers=ready.broker.bootstrap, isolation="read_committed", fetch_max_bytes=1
    )
    assert rows_by_partition(found) == expected


class Recorded:
    """A transport that keeps the fetch requests."""

    def __init__(self, transport: Transport, requests: list[Any]) -> None:
        self._transport = transport
        self._requests = requests
        self.receive_into, self.set_timeout = transport.receive_into, transport.set_timeout
        self.close = transport.close

    def send(self, parts: Sequence[Any]) -> None:
        for data in MessageSplitter().feed(b"".join(parts)):
            request: Any = decode_request(bytes(data))
            if request.api_key == ApiKey.FETCH:
                self._requests.append(request.message)
        self._transport.send(parts)


def fetches_of_a_read(ready: Ready) -> tuple[kbatch.Consumer, list[Any]]:
    """Read a topic in small responses; return the consumer and the fetches."""
    requests: list[Any] = []
    consumer = kbatch.consume(
        "plain",
        bootstrap_servers=ready.broker.bootstrap,
        fetch_max_bytes=1,
        transport=lambda server, settings: Recorded(connect_socket(server, settings), requests),
    )
    assert sum(map(len, consumer)) == 4000
    return consumer, requests


def test_a_broker_answers_incremental_fetches_of_a_session(ready: Ready) -> None:
    """KIP-227: the first request is a full one, the others have what changed, and the broker accepts all of them."""
    consumer, requests = fetches_of_a_read(ready)
    assert [each.session_epoch for each in requests] == list(range(len(requests)))
    assert {each.session_id for each in requests[1:]} == {requests[1].session_id} != {0}
    # A response has room for one batch, so that one partition changes at a time.
    listed = [sum(len(topic.partitions) for topic in each.topics) for each in requests]
    assert listed[0] == 2
    assert set(listed[1:]) <= {0, 1}
    assert consumer.metrics.errors == 0


def test_after_a_session_that_the_broker_does_not_know_a_read_goes_on(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = FetchSession.accept

    def forget(self: FetchSession, response: Any) -> None:
        accept(self, response)
        if self._sent_epoch == 2:
            self._id += 1

    monkeypatch.setattr(FetchSession, "accept", forget)
    consumer, requests = fetches_of_a_read(ready)
    assert consumer.metrics.errors >= 1
    assert [each.session_epoch for each in requests[:6]] == [0, 1, 2, 3, 0, 1]


def test_times_and_offsets_choose_records(ready: Ready) -> None:
    bounds: dict[str, Any] = {"bootstrap_servers": ready.broker.bootstrap, "columns": ["partition", "offset"]}
    rows = kbatch.consume("plain", start=EPOCH_TIME(1990), **bounds).to_arrow().to_pylist()
    assert sorted(map(tuple, map(dict.values, rows))) == [(p, o) for p in range(2) for o in range(1990, 2000)]
    rows = kbatch.consume("plain", last=2, partitions=[1], **bounds).to_arrow().to_pylist()
    assert [row["offset"] for row in rows] == [1998, 1999]
    rows = kbatch.consume("plain", start="end-3ms", partitions=[1], **bounds).to_arrow().to_pylist()
    assert [row["offset"] for row in rows] == [1996, 1997, 1998, 1999]


def EPOCH_TIME(milliseconds: int) -> Any:
    import numpy as np

    return np.datetime64(EPOCH + milliseconds, "ms")


def test_a_cluster_lists_topics_and_offsets(ready: Ready) -> None:
    with Cluster(ClientSettings.of(bootstrap_servers=ready.broker.bootstrap)) as cluster:
        topics = {topic.name: topic for topic in cluster.topics()}
        assert {"codecs", "writers", "txn", "plain"} <= set(topics)
        assert topics["__transaction_state"].is_internal
        assert list(topics["plain"].partitions) == [0, 1]
        wanted = {("plain", 0): -2, ("plain", 1): -1, ("txn", 0): EPOCH}
        assert cluster.offsets(wanted) == {("plain", 0): 0, ("plain", 1): 2000, ("txn", 0): 0}
        assert cluster.offsets({("plain", 0): 1 << 50}) == {("plain", 0): None}
        with pytest.raises(BrokerError, match="plain-7: there is no such partition; the topic has 2"):
            cluster.offsets({("plain", 7): -1})


# -- TLS


def count(**settings: Any) -> int:
    return sum(map(len, kbatch.consume("plain", columns=["offset"], **settings)))


def test_tls_verifies_the_certificate_and_the_name(ready: Ready) -> None:
    assert count(**ready.settings("TLS", security_protocol="SSL")) == 4000
    pem = ready.authority.path.read_text()
    assert count(bootstrap_servers=ready.broker.addresses["TLS"], security_protocol="SSL", ssl_ca_pem=pem) == 4000


def test_a_certificate_of_an_unknown_authority_is_refused(ready: Ready) -> None:
    other = Authority(ready.directory, "other")
    settings = ready.settings("TLS", security_protocol="SSL") | {"ssl_ca_location": other.path}
    with pytest.raises(AuthenticationError, match=r"its certificate is not trusted: .*; set ssl.ca.location"):
        count(**settings)
    assert count(**settings, enable_ssl_certificate_verification=False) == 4000


def test_a_certificate_for_another_name_is_refused(ready: Ready) -> None:
    port = ready.broker.addresses["TLS"].rpartition(":")[2]
    settings = ready.settings("TLS", security_protocol="SSL") | {"bootstrap_servers": f"localhost:{port}"}
    with pytest.raises(AuthenticationError, match=r"ssl.endpoint.identification.algorithm=none"):
        count(**settings)
    assert count(**settings, ssl_endpoint_identification_algorithm="none") == 4000


def test_mutual_tls_needs_a_certificate_that_the_broker_trusts(ready: Ready) -> None:
    settings = ready.settings("MUTUAL", security_protocol="SSL", default_api_timeout_ms=1000)
    own = ready.authority.sign("client", password=b"key password")
    files = {"ssl_certificate_location": own, "ssl_key_location": own, "ssl_key_password": "key password"}
    assert count(**settings, **files) == 4000
    with pytest.raises(AuthenticationError, match=r"refuses the client's certificate, or requires one"):
        count(**settings)
    other = Authority(ready.directory, "stranger").sign("stranger-client")
    with pytest.raises(AuthenticationError, match=r"refuses the client's certificate, or requires one"):
        count(**settings, ssl_certificate_location=other, ssl_key_location=other)
    with pytest.raises(ValueError, match=r"ssl.key.password the password of the key"):
        count(**settings, **(files | {"ssl_key_password": "wrong"}))


def test_tls_on_one_side_only_is_reported(ready: Ready) -> None:
    timeout = {"socket_connection_setup_timeout_ms": 1000}
    with pytest.raises(BrokerConnectionError, match="TLS"):
        count(bootstrap_servers=ready.broker.addresses["TLS"], **timeout)
    with pytest.raises(
        BrokerConnectionError, match=r"no TLS connection .*; check that this port of the broker uses TLS"
    ):
        count(**ready.settings("PLAINTEXT", security_protocol="SSL", **timeout))


# -- SASL


def sasl(ready: Ready, mechanism: str, **more: Any) -> dict[str, Any]:
    return ready.settings("SASL", security_protocol="SASL_SSL", sasl_mechanism=mechanism, **more)


MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_password_authenticates(ready: Ready, mechanism: str) -> None:
    if mechanism != "PLAIN":
        pytest.importorskip("scramp")
    assert count(**sasl(ready, mechanism, sasl_username=USER, sasl_password=PASSWORD)) == 4000


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_one_error_at_once_without_the_password(ready: Ready, mechanism: str) -> None:
    if mechanism != "PLAIN":
        pytest.importorskip("scramp")
    with pytest.raises(
        AuthenticationError, match=rf"{mechanism} failed: .*; check the password of user 'me'"
    ) as raised:
        count(**sasl(ready, mechanism, sasl_username=USER, sasl_password="s3cr3t-value"))
    assert raised.value.code == kbatch.ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "s3cr3t" not in str(raised.value)


def unsecured_token(seconds: float) -> str:
    """Return a token without a signature, which brokers accept in tests (KIP-255)."""
    # A token must not be issued in the future, by the broker's clock, which has milliseconds.
    now = time.time() - 1
    parts = {"alg": "none"}, {"sub": USER, "iat": now, "exp": now + seconds}
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def test_a_token_authenticates_and_an_expired_one_does_not(ready: Ready) -> None:
    settings = sasl(ready, "OAUTHBEARER")
    assert count(**settings, sasl_oauthbearer_token=lambda: unsecured_token(60)) == 4000
    with pytest.raises(AuthenticationError, match=r"check the token|refused the token"):
        count(**settings, sasl_oauthbearer_token=lambda: unsecured_token(-60))


def test_a_mechanism_that_the_broker_does_not_offer_is_reported_with_those_that_it_offers(ready: Ready) -> None:
    pytest.importorskip("scramp")
    settings = sasl(ready, "PLAIN", sasl_username=USER, sasl_password=PASSWORD)
    with pytest.raises(BrokerConnectionError):
        count(**(settings | {"bootstrap_servers": ready.broker.bootstrap, "socket_connection_setup_timeout_ms": 500}))


def test_a_session_is_authenticated_again_before_it_ends(ready: Ready) -> None:
    """The broker closes connections that send requests after the end of their session (KIP-368)."""
    settings = sasl(ready, "PLAIN", sasl_username=USER, sasl_password=PASSWORD)
    with kbatch.consume("plain", **settings, fetch_max_bytes=1, max_bytes=1 << 20) as consumer:
        offsets: list[int] = []
        until = time.monotonic() + 2.5 * REAUTHENTICATION_MS / 1000
        for table in consumer:
            offsets += table.records["offset"].tolist()
            if time.monotonic() < until:
                time.sleep(0.1)
        opened = len(consumer._live._cluster._connections)
    assert sorted(offsets) == sorted([*range(2000)] * 2)
    assert opened <= 2


# -- faults


def test_a_topic_is_followed_over_tls_until_another_thread_closes_it(ready: Ready) -> None:
    settings = ready.settings("TLS", security_protocol="SSL", metadata_max_age_ms=100)
    admin = AdminClient({"bootstrap.servers": ready.broker.bootstrap})
    admin.create_topics([NewTopic("followed", 1, 1)])["followed"].result(60)
    with kbatch.consume("followed", end=None, columns=["offset", "value"], **settings) as consumer:
        WRITERS["librdkafka"](ready.broker.bootstrap, "none", "followed", 0, plain(30))
        found: list[int] = []
        while len(found) < 30:
            found += next(consumer).records["offset"].tolist()
        assert found == list(range(30))
        closing = threading.Timer(0.3, consumer.close)
        closing.start()
        began = time.monotonic()
        assert list(consumer) == []
        assert time.monotonic() - began < 2
        closing.join()


def test_a_broker_that_restarts_during_a_read_is_read_to_the_end(tmp_path: Path) -> None:
    try:
        broker = Broker(tmp_path / "broker")
    except Unavailable as error:
        pytest.skip(str(error))
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(60)
        for number in range(3):
            WRITERS["librdkafka"](broker.bootstrap, "none", "orders", number, plain(500))
        del admin
        found: dict[int | None, list[int]] = {}
        is_read = threading.Event()

        def restart() -> None:
            time.sleep(1)
            broker.start()
            # The broker ends with the thread that has started it.
            is_read.wait(120)

        with kbatch.consume("orders", bootstrap_servers=broker.bootstrap, fetch_max_bytes=1) as consumer:
            for place, table in enumerate(consumer):
                found.setdefault(table.partition, []).extend(table.records["offset"].tolist())
                if place == 5:
                    broker.kill()
                    threading.Thread(target=restart, daemon=True).start()
        assert place > 5
        is_read.set()
        assert found == {number: list(range(500)) for number in range(3)}
