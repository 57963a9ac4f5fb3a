"""The options of a read of a live cluster by Spark: settings of the client, and what does not apply."""

from __future__ import annotations

import logging

import pytest

from kbatch.live import ServerAddress
from kbatch.plan.cluster_options import is_live, parse_cluster_options, parse_source, warn_without_effect

SERVERS = {"kafka.bootstrap.servers": "a:9092,b:9093"}
GIVEN = {**SERVERS, "subscribe": "orders"}


def test_settings_of_the_client_have_the_prefix_of_sparks_kafka_source() -> None:
    source, read = parse_cluster_options(
        {
            **GIVEN,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": 'x.ScramLoginModule required username="me" password="swordfish";',
            "kafka.request.timeout.ms": "5000",
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
        }
    )
    settings = source._settings
    assert settings.bootstrap_servers == (ServerAddress("a", 9092), ServerAddress("b", 9093))
    assert (settings.sasl_mechanism, settings.sasl_username, settings.sasl_password) == (
        "SCRAM-SHA-512", "me", "swordfish",
    )  # fmt: skip
    assert settings.request_timeout_ms == 5000
    assert (read.topics, read.isolation, read.include_headers) == (("orders",), "read_committed", True)


def test_a_path_of_a_directory_decides_against_a_cluster() -> None:
    assert is_live(GIVEN)
    assert is_live({"path": "kafka://a:9092", "subscribe": "orders"})
    assert not is_live({**GIVEN, "path": "/data"})
    assert not is_live({**GIVEN, "paths": "/data,/more"})
    assert parse_source({**GIVEN, "path": "/data"})[0] == ["/data"]
    for given in ({"path": "kafka://a:1"}, {"kafka.bootstrap.servers": "a:1"}):
        assert repr(parse_source({**given, "topics": "t"})[0]) == "<ClusterSource: kafka://a:1>"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**GIVEN, "subscrib": "x"}, "unknown option 'subscrib', did you mean 'subscribe'"),
        (SERVERS, "no topics: a live cluster needs one of subscribe, subscribePattern and assign"),
        ({**GIVEN, "assign": '{"a": [0]}'}, "subscribe and assign exclude each other"),
        ({**GIVEN, "keyIndex": "/x"}, "keyIndex does not apply to a live cluster: a key index is of files"),
        ({**GIVEN, "splitBytes": "1m"}, "splitBytes does not apply to a live cluster: the sizes of records are not kn"),
        ({**GIVEN, "kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset: use startingOffsets"),
        ({**GIVEN, "onGap": "raise"}, "onGap does not apply to a live cluster"),
        ({**GIVEN, "storage.token": "x"}, "storage.token does not apply to a live cluster"),
        ({**GIVEN, "kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit: nothing is committed to Kafka"),
        ({**GIVEN, "kafka.key.deserializer": "X"}, "kafka.key.deserializer: keys are bytes"),
        ({**GIVEN, "kafka.sasl.mechansim": "PLAIN"}, "options kafka.*: unknown setting 'sasl.mechansim', did you mean"),
        ({**GIVEN, "kafka.ssl.truststore.location": "/t.jks"}, "options kafka.*: ssl.truststore is of type JKS"),
        ({**GIVEN, "path": "kafka://c:1"}, "path and kafka.bootstrap.servers exclude each other"),
        ({"path": "kafka://me:swordfish@c:1", "subscribe": "t"}, "options kafka.*: a kafka URL is kafka://HOST:PORT"),
        ({**SERVERS, "subscribe": "t", "keyPartitions": "3"}, "keyPartitions requires key"),
    ],
)
def test_errors_name_the_option_and_the_remedy_without_secrets(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as raised:
        parse_source(given)
    assert str(raised.value).startswith(message)
    assert "swordfish" not in str(raised.value)


def test_options_of_files_are_not_among_those_that_an_error_lists() -> None:
    with pytest.raises(ValueError, match="unknown option 'nosuch'") as raised:
        parse_cluster_options({**GIVEN, "nosuch": "1"})
    assert "minPartitions" in str(raised.value)
    assert "splitBytes" not in str(raised.value)


def test_options_without_an_effect_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        **GIVEN, "groupIdPrefix": "x", "kafka.group.id": "g", "fetchOffset.numRetries": "3",
        "kafkaConsumer.pollTimeoutMs": "9", "maxOffsetsPerTrigger": "5",
    }  # fmt: skip
    source, _ = parse_cluster_options(given)
    assert source._settings.group_id is None
    warn_without_effect(given)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "these options of Spark's Kafka source mean nothing for a batch read of a live cluster, and are ignored: "
        "fetchOffset.numRetries, groupIdPrefix, kafka.group.id, kafkaConsumer.pollTimeoutMs, maxOffsetsPerTrigger"
    )
