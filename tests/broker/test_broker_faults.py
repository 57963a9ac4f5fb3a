"""Faults of a cluster of three brokers: no record is missing or repeated, or the read ends with one error."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kbatch
from kbatch.live import AuthenticationError, BrokerConnectionError, BrokerError
from kbatch.protocol import ApiKey

try:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        OffsetSpec,
        ResourcePatternType,
        ResourceType,
    )

    from broker.broker_cluster import BrokerCluster, kafka_admin, running_cluster, wait_until
    from broker.clients import kafka, librdkafka, plain, send
    from broker.proxy import Cut, Exchange
    from broker.reading import offsets_of
    from broker.server import Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

USER, PASSWORD = "reader", "secret"
LOGIN = "org.apache.kafka.common.security"
SECURITY = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "listener.name.sasl.plain.sasl.jaas.config": f'{LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "listener.name.sasl.oauthbearer.sasl.jaas.config": (
        f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x";'
    ),
    "connections.max.reauth.ms": "60000",
}
QUICK = {
    "request_timeout_ms": 1000,
    "default_api_timeout_ms": 20_000,
    "reconnect_backoff_ms": 20,
    "fetch_max_wait_ms": 100,
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    try:
        directory = tmp_path_factory.mktemp("cluster")
        with running_cluster(directory, settings=SECURITY, listeners={"SASL": "SASL_PLAINTEXT"}) as made:
            yield made
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _repaired(cluster: BrokerCluster) -> Iterator[None]:
    yield
    cluster.repair()


def topic_on(cluster: BrokerCluster, *replicas: int, count: int = 0, **config: Any) -> str:
    """Make a topic with one partition on these brokers, of which the first leads, and write records."""
    topic = f"topic-{next(_numbers)}"
    cluster.create_on(topic, [replicas], **({"min_insync_replicas": 1} | config))
    write(cluster, topic, count)
    return topic


def write(cluster: BrokerCluster, topic: str, count: int, start: int = 0, **settings: Any) -> None:
    """Write records in batches of ten."""
    with librdkafka(cluster.direct, **settings) as producer:
        send(producer, topic, 0, plain(count, start))


def consume(cluster: BrokerCluster, topic: str, **options: Any) -> kbatch.Consumer:
    return kbatch.consume(topic, **({"bootstrap_servers": cluster.bootstrap, **QUICK} | options))


def offsets_after(consumer: kbatch.Consumer, tables: int, fault: Callable[[], object]) -> list[int]:
    """Return the offsets of a read in which a fault happens after some tables."""
    found: list[int] = []
    with consumer:
        for place, table in enumerate(consumer):
            found += table.records["offset"].tolist()
            if place == tables:
                fault()
    assert place > tables
    return found


def followed(consumer: kbatch.Consumer, count: int) -> list[int]:
    """Return the offsets of the next records of a read that follows."""
    found: list[int] = []
    while len(found) < count:
        found += next(consumer).records["offset"].tolist()
    return found


def assert_names(error: BrokerError, cluster: BrokerCluster, topic: str) -> None:
    """Assert that an error names broker, topic and partition, also in its message."""
    addresses = {address for broker in cluster.brokers.values() for address in broker.addresses.values()}
    assert error.broker in addresses | {proxy.bootstrap for proxy in cluster.proxies.values()}
    assert (error.topic, error.partition) == (topic, 0)
    assert f"broker {error.broker}" in str(error)
    assert topic in str(error)


# -- brokers that end, hang or are replaced


def test_a_leader_that_is_killed_in_mid_fetch_is_replaced_and_comes_back(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 2, 3, 1, count=1000)

    def kill() -> None:
        cluster.brokers[2].kill()

    assert offsets_after(consume(cluster, topic, fetch_max_bytes=1), 5, kill) == list(range(1000))
    assert cluster.leaders(topic)[0] != 2
    # The other brokers hold what a read from the beginning needs, while one is down.
    assert offsets_after(consume(cluster, topic, fetch_max_bytes=1), 5, lambda: cluster.restart(2)) == list(range(1000))


def test_a_broker_that_stands_still_is_replaced(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 2, 3, 1, count=500)
    assert offsets_after(consume(cluster, topic, fetch_max_bytes=1), 5, cluster.brokers[2].pause) == list(range(500))
    assert cluster.leaders(topic)[0] != 2


def test_a_partition_without_a_leader_is_one_error_and_readable_when_its_broker_is_back(
    cluster: BrokerCluster,
) -> None:
    topic = topic_on(cluster, 3, count=100)
    consumer = consume(cluster, topic, fetch_max_bytes=1, default_api_timeout_ms=2000)
    with pytest.raises(
        BrokerError, match=rf"{topic}-0, no records from offset \d+ on .*\(default\.api\.timeout\.ms\)"
    ) as raised:
        offsets_after(consumer, 2, cluster.brokers[3].kill)
    assert (raised.value.topic, raised.value.partition) == (topic, 0)
    cluster.restart(3)
    wait_until(lambda: cluster.leaders(topic)[0] == 3, "the broker leads again")
    assert followed(consume(cluster, topic), 100) == list(range(100))


def test_a_leader_that_moves_is_followed(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, 3)
    found: list[int] = []
    with consume(cluster, topic, end=None, start="earliest") as consumer:
        for place, node in enumerate((2, 3, 1, 3)):
            write(cluster, topic, 100, place * 100)
            found += followed(consumer, 100)
            cluster.move_leader(topic, 0, node)
            wait_until(lambda: cluster.leaders(topic)[0] == node, "the leader has moved")  # noqa: B023
        write(cluster, topic, 100)
        found += followed(consumer, 100)
    assert found == list(range(500))


def test_a_partition_that_moves_to_other_brokers_is_followed(cluster: BrokerCluster) -> None:
    """The broker that led deletes its replica."""
    topic = topic_on(cluster, 1, 2, count=100)
    with consume(cluster, topic, end=None, start="earliest") as consumer:
        found = followed(consumer, 100)
        with kafka_admin(cluster.direct) as admin:
            admin.alter_partition_reassignments({kafka.TopicPartition(topic, 0): [3]})
        wait_until(lambda: cluster.replicas(topic)[0] == [3] == [cluster.leaders(topic)[0]], "the partition has moved")
        write(cluster, topic, 100)
        assert found + followed(consumer, 100) == list(range(200))


def test_an_unclean_leader_that_lacks_records_which_were_read_is_one_error(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, count=100, unclean_leader_election_enable="true")
    with consume(cluster, topic, end=None, start="earliest") as consumer:
        assert followed(consumer, 100) == list(range(100))
        cluster.brokers[2].pause()
        wait_until(lambda: cluster.replicas(topic, in_sync=True)[0] == [1], "the follower is behind")
        write(cluster, topic, 50, acks=1)
        assert followed(consumer, 50) == list(range(100, 150))
        cluster.brokers[1].kill()
        cluster.brokers[2].go_on()
        with pytest.raises(
            BrokerError, match="the records from offset 100 to 150, exclusive, which were read"
        ) as raised:
            next(consumer)
        assert_names(raised.value, cluster, topic)


# -- connections


@pytest.mark.parametrize("size", [0, 3, 30, 300])
def test_after_a_response_that_is_cut_no_record_is_missing_or_repeated(cluster: BrokerCluster, size: int) -> None:
    topic = topic_on(cluster, 1, 2, 3, count=300)
    cuts = itertools.count()

    def change(exchange: Exchange) -> None:
        if exchange.api_key == ApiKey.FETCH and next(cuts) % 4 == 3:
            raise Cut((len(exchange.data).to_bytes(4, "big") + exchange.data)[:size])

    cluster.proxies[1].change = change
    assert followed(consume(cluster, topic, fetch_max_bytes=1), 300) == list(range(300))
    assert next(cuts) > 30


def test_a_connection_that_hangs_is_replaced(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, 3, count=300)
    proxy = cluster.proxies[1]

    def hang() -> None:
        proxy.hang()
        threading.Timer(2, proxy.go_on).start()

    assert offsets_after(consume(cluster, topic, fetch_max_bytes=1), 5, hang) == list(range(300))


def test_a_connection_that_hangs_for_good_is_one_error(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, count=300)
    consumer = consume(cluster, topic, fetch_max_bytes=1, default_api_timeout_ms=1500, request_timeout_ms=500)
    with pytest.raises(
        BrokerConnectionError, match=r"no response to \w+ for 500 ms \(request\.timeout\.ms\)"
    ) as raised:
        offsets_after(consumer, 5, cluster.proxies[1].hang)
    assert_names(raised.value, cluster, topic)


def flip_in_fetch(number: int, from_end: int) -> Callable[[Exchange], bytes | None]:
    """Return a change that flips a bit near the end of one Fetch response."""
    fetches = itertools.count()

    def change(exchange: Exchange) -> bytes | None:
        if exchange.api_key != ApiKey.FETCH or next(fetches) != number:
            return None
        data = bytearray(exchange.data)
        data[-from_end] ^= 1
        return len(data).to_bytes(4, "big") + data

    return change


def test_a_wrong_checksum_in_a_response_is_an_error_that_names_broker_topic_partition_and_offset(
    cluster: BrokerCluster,
) -> None:
    topic = topic_on(cluster, 1, 2, 3, count=100)
    cluster.proxies[1].change = flip_in_fetch(3, 20)
    consumer = consume(cluster, topic, fetch_max_bytes=1)
    with pytest.raises(
        kbatch.CrcMismatchError, match=rf"broker {cluster.proxies[1].bootstrap}, {topic}-0, byte 0, base offset 30"
    ):
        list(consumer)
    # Damage at the end of a response is fetched again; here it was only in the response.
    cluster.proxies[1].change = flip_in_fetch(3, 20)
    assert followed(consume(cluster, topic, fetch_max_bytes=1, on_error="skip"), 100) == list(range(100))


# -- records and topics that are gone


def test_records_that_retention_deletes_before_they_are_read_are_one_error(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 2, 1, 3, count=500)
    with consume(cluster, topic, fetch_max_bytes=1) as consumer:
        next(consumer)
        # The records are of 2023.
        resource = ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET),
            ],
        )
        cluster.admin.incremental_alter_configs([resource])[resource].result(60)
        wait_until(
            lambda: offsets_of(cluster.direct, [(topic, 0)], OffsetSpec.earliest())[topic, 0] == 500, "records are gone"
        )
        with pytest.raises(
            BrokerError,
            match=r"offset \d+, which .*the records before offset 500 were deleted by retention .*begin a new read",
        ) as raised:
            list(consumer)
        assert_names(raised.value, cluster, topic)
    # Nothing is left to read, and nothing is missing.
    assert list(consume(cluster, topic)) == []


def test_a_read_from_the_earliest_record_begins_after_those_that_are_deleted_meanwhile(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 2, 1, 3, count=100)
    with consume(cluster, topic) as consumer:
        cluster.admin.delete_records([TopicPartition(topic, 0, 40)])[TopicPartition(topic, 0, 40)].result(60)
        assert followed(consumer, 60) == list(range(40, 100))


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_or_made_again_is_one_error(cluster: BrokerCluster, again: bool) -> None:
    topic = topic_on(cluster, 1, 2, 3, count=100)
    with consume(cluster, topic, end=None, start="earliest") as consumer:
        assert followed(consumer, 100) == list(range(100))
        cluster.delete(topic)
        if again:
            wait_until(lambda: topic not in cluster.topics(), "the topic is deleted")
            cluster.create_on(topic, [[1, 2, 3]])
        expected = "deleted and recreated" if again else "there is no topic"
        with pytest.raises(BrokerError, match=expected) as raised:
            list(consumer)
        assert f"broker {raised.value.broker}" in str(raised.value)
        assert raised.value.topic == topic
        assert topic in str(raised.value)


# -- other replicas, and reads that go on without records that are gone


def test_the_closest_replica_is_read_and_the_leader_when_it_is_gone(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, 3, count=500)
    fetches: dict[int, int] = dict.fromkeys(cluster.proxies, 0)

    def counting(node: int) -> Callable[[Exchange], None]:
        def count(exchange: Exchange) -> None:
            fetches[node] += exchange.api_key == ApiKey.FETCH

        return count

    for node, proxy in cluster.proxies.items():
        proxy.change = counting(node)
    assert followed(consume(cluster, topic, fetch_max_bytes=1, client_rack="b"), 500) == list(range(500))
    assert fetches[2] > 45
    assert fetches[1] < 5
    assert fetches[3] == 0
    # Racks are letters: this one has no broker.
    assert followed(consume(cluster, topic, fetch_max_bytes=1, client_rack="z"), 500) == list(range(500))
    assert fetches[1] > 45
    consumer = consume(cluster, topic, fetch_max_bytes=1, client_rack="b")
    assert offsets_after(consumer, 5, cluster.brokers[2].kill) == list(range(500))


@pytest.mark.long
def test_a_closest_replica_that_is_behind_or_comes_back_repeats_and_loses_nothing(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, 3)
    found: list[int] = []
    with consume(cluster, topic, end=None, start="earliest", client_rack="c") as consumer:
        for place, fault in enumerate(
            (
                lambda: None,
                cluster.brokers[3].pause,
                cluster.brokers[3].go_on,
                cluster.brokers[3].kill,
                lambda: cluster.restart(3),
                lambda: cluster.move_leader(topic, 0, 3),
            )
        ):
            fault()
            # Otherwise a producer that sends a batch again may write it twice.
            write(cluster, topic, 100, place * 100, **{"enable.idempotence": True})
            found += followed(consumer, 100)
    assert found == list(range(600))


def test_a_read_goes_on_after_lost_records_if_it_is_told_to(cluster: BrokerCluster) -> None:
    """An unclean election, retention, and a topic that is recreated."""
    topic = topic_on(cluster, 1, 2, count=100, unclean_leader_election_enable="true")
    with consume(cluster, topic, end=None, start="earliest", fail_on_data_loss=False) as consumer:
        assert followed(consumer, 100) == list(range(100))
        cluster.brokers[2].pause()
        wait_until(lambda: cluster.replicas(topic, in_sync=True)[0] == [1], "the follower is behind")
        write(cluster, topic, 50, acks=1)
        assert followed(consumer, 50) == list(range(100, 150))
        cluster.brokers[1].kill()
        cluster.brokers[2].go_on()
        wait_until(lambda: cluster.leaders(topic)[0] == 2, "there is another leader")
        write(cluster, topic, 20)
        with pytest.warns(RuntimeWarning, match="records from offset 100 to 150"):
            assert followed(consumer, 20) == list(range(100, 120))
        cluster.repair()
        cluster.delete(topic)
        wait_until(lambda: topic not in cluster.topics(), "the topic is deleted")
        cluster.create_on(topic, [[2, 1]])
        write(cluster, topic, 30)
        with pytest.warns(RuntimeWarning, match="deleted and recreated"):
            assert followed(consumer, 30) == list(range(30))
        missing = consumer.missing_offsets
    assert [(each.first_offset, each.last_offset) for each in missing][:1] == [(100, 149)]
    assert len(missing) == 2


def test_a_read_with_an_end_goes_on_after_records_that_retention_deletes(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 2, 1, 3, count=500)
    with consume(cluster, topic, fetch_max_bytes=1, fail_on_data_loss=False) as consumer:
        found = next(consumer).records["offset"].tolist()
        until = TopicPartition(topic, 0, 400)
        cluster.admin.delete_records([until])[until].result(60)
        with pytest.warns(RuntimeWarning, match="the records before offset 400 were deleted by retention"):
            found += [offset for table in consumer for offset in table.records["offset"].tolist()]
        (missing,) = consumer.missing_offsets
    assert missing.last_offset == 399
    assert found == [*range(missing.first_offset), *range(400, 500)]


# -- streams of Spark


def streamed(cluster: BrokerCluster, topic: str, **options: str) -> Any:
    """Return a query of a topic, with the calls of Spark."""
    LiveQuery = pytest.importorskip("stream_query").LiveQuery
    return LiveQuery(cluster.bootstrap, topic, **{"kafka.request.timeout.ms": "1000"}, **options)


def test_a_stream_continues_after_its_leader_was_lost_and_moved(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 2, 3, 1, count=500)
    query = streamed(cluster, topic, maxOffsetsPerTrigger="300", minPartitions="4")
    try:
        query.plan()
        # The tasks are planned with the leader that is lost.
        cluster.brokers[2].kill()
        assert query.batch() == list(range(300))
        query.restart()
        assert query.drain() == list(range(300, 500))
        cluster.repair()
        cluster.move_leader(topic, 0, 1)
        write(cluster, topic, 50)
        assert query.drain() == list(range(500, 550))
        epochs = [each["$epochs"][topic]["0"] for each in query.log]
        assert epochs[0] < epochs[-1]
    finally:
        query.stop_all()


def test_an_unclean_leader_is_one_error_of_a_stream_or_its_records_follow(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, count=100, unclean_leader_election_enable="true")
    query = streamed(cluster, topic)
    try:
        assert query.drain() == list(range(100))
        cluster.brokers[2].pause()
        wait_until(lambda: cluster.replicas(topic, in_sync=True)[0] == [1], "the follower is behind")
        write(cluster, topic, 50, acks=1)
        assert query.drain() == list(range(100, 150))
        cluster.brokers[1].kill()
        cluster.brokers[2].go_on()
        wait_until(lambda: cluster.leaders(topic)[0] == 2, "there is another leader")
        # The offsets of the records that are gone have others.
        write(cluster, topic, 80)
        query.restart()
        with pytest.raises(BrokerError, match="before offset 150, but the records from offset 100 on are no longer"):
            query.batch()
        query.options["failOnDataLoss"] = "false"
        query.restart()
        assert query.drain() == list(range(100, 180))
    finally:
        query.stop_all()


# -- rights


def acl(topic: str, operation: AclOperation, kind: Any = AclBinding) -> Any:
    return kind(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def allow(cluster: BrokerCluster, topic: str, operation: AclOperation) -> None:
    binding = acl(topic, operation)
    cluster.admin.create_acls([binding])[binding].result(60)


def sasl(cluster: BrokerCluster, mechanism: str, **more: Any) -> dict[str, Any]:
    servers = [broker.addresses["SASL"] for broker in cluster.brokers.values()]
    return {
        "bootstrap_servers": servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        **more,
    }


def test_a_topic_that_may_not_be_read_is_one_error_that_names_the_acls(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, 3, count=100)
    login = sasl(cluster, "PLAIN", sasl_username=USER, sasl_password=PASSWORD)
    remedy = r"TOPIC_AUTHORIZATION_FAILED .*; the principal needs the ACLs DESCRIBE and READ on this topic"
    with pytest.raises(BrokerError, match=remedy) as raised:
        consume(cluster, topic, **login)
    assert raised.value.topic == topic
    allow(cluster, topic, AclOperation.DESCRIBE)
    wait_until(lambda: consume(cluster, topic, **login).ranges, "the topic may be described")
    with pytest.raises(BrokerError, match=rf"{topic}-0: fetch of offset 0 failed with {remedy}") as raised:
        list(consume(cluster, topic, **login))
    assert_names(raised.value, cluster, topic)
    allow(cluster, topic, AclOperation.READ)
    wait_until(lambda: followed(consume(cluster, topic, **login), 100), "the topic may be read")
    with consume(cluster, topic, end=None, start="earliest", **login) as consumer:
        assert followed(consumer, 100) == list(range(100))
        found = acl(topic, AclOperation.READ, AclBindingFilter)
        cluster.admin.delete_acls([found])[found].result(60)
        with pytest.raises(BrokerError, match=rf"{topic}-0: fetch of offset 100 failed with {remedy}") as raised:
            list(consumer)
    assert_names(raised.value, cluster, topic)


def test_a_group_that_may_not_be_used_is_one_error_that_names_the_acl(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, 3, count=100)
    for operation in (AclOperation.DESCRIBE, AclOperation.READ):
        allow(cluster, topic, operation)
    login = sasl(cluster, "PLAIN", sasl_username=USER, sasl_password=PASSWORD)
    wait_until(lambda: followed(consume(cluster, topic, **login), 100), "the topic may be read")
    remedy = r"failed with GROUP_AUTHORIZATION_FAILED .*; the principal needs the ACL READ on this group"
    with pytest.raises(BrokerError, match=remedy) as raised:
        list(consume(cluster, topic, group="readers", **login))
    assert f"broker {raised.value.broker}" in str(raised.value)
    binding = AclBinding(
        ResourceType.GROUP,
        "readers",
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    cluster.admin.create_acls([binding])[binding].result(60)
    wait_until(lambda: followed(consume(cluster, topic, group="readers", **login), 100), "the group may be used")


def token(seconds: float) -> str:
    """Return a token without a signature, which brokers accept in tests."""
    now = time.time() - 1
    parts = {"alg": "none"}, {"sub": USER, "iat": now, "exp": now + 1 + seconds}
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def test_tokens_are_renewed_during_a_read_and_one_that_has_expired_is_one_error(cluster: BrokerCluster) -> None:
    topic = topic_on(cluster, 1, 2, 3)
    for operation in (AclOperation.DESCRIBE, AclOperation.READ):
        allow(cluster, topic, operation)
    wait_until(
        lambda: consume(cluster, topic, **sasl(cluster, "PLAIN", sasl_username=USER, sasl_password=PASSWORD)).ranges,
        "the topic may be described",
    )
    lifetimes: list[float] = []

    def provide() -> str:
        lifetimes.append(2.0 if time.monotonic() < good_until else -5.0)
        return token(lifetimes[-1])

    good_until = time.monotonic() + 4
    login = sasl(cluster, "OAUTHBEARER", sasl_oauthbearer_token=provide)
    with consume(cluster, topic, end=None, start="earliest", **login) as consumer:
        for start in range(0, 80, 20):
            write(cluster, topic, 20, start)
            assert followed(consumer, 20) == list(range(start, start + 20))
            time.sleep(0.8)
        # Two connections, and another session of the second one.
        assert len(lifetimes) >= 3
        with pytest.raises(AuthenticationError, match=r"check the token: its issuer|refused the token") as raised:
            list(consumer)
    assert raised.value.broker in str(raised.value)
