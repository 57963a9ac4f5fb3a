"""Capture the messages between clients and a broker, for tests without a broker: ``python -m tests.broker.capture``.

Writes ``tests/golden/protocol/CLIENT-NUMBER.requests`` and ``.responses``, one pair of files per connection.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from .clients import WRITERS, kafka, plain
from .proxy import Exchange, recording
from .server import Broker, running

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol"
# Longer captures contain no other kinds of messages.
MAX_SIZE = 24 << 10


def read_librdkafka(bootstrap: str, topic: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    assert consumer.consume(1, 60)
    consumer.commit(asynchronous=False)
    consumer.close()


def read_kafka_python(bootstrap: str, topic: str) -> None:
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id="py", auto_offset_reset="earliest")
    next(consumer)
    consumer.commit()
    consumer.close()


def use(client: str, broker: Broker, bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(client, 2, 1)]).values():
        future.result(60)
    if client == "java":
        count = ["--topic", client, "--num-records", "5", "--record-size", "50", "--throughput", "-1"]
        producer = ["--producer-props", f"bootstrap.servers={bootstrap}"]
        broker.run_class("org.apache.kafka.tools.ProducerPerformance", *count, *producer)
        consumer = ["--bootstrap-server", bootstrap, "--topic", client, "--messages", "5", "--timeout", "20000"]
        broker.run_class("org.apache.kafka.tools.ConsumerPerformance", *consumer)
        return
    WRITERS[client](bootstrap, "gzip", client, 0, plain(10))
    if client == "librdkafka":
        read_librdkafka(bootstrap, client)
        producer: Any = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(client, b"v")
        producer.commit_transaction(60)
    elif client == "kafka-python":
        read_kafka_python(bootstrap, client)


def save(client: str, exchanges: list[Exchange]) -> None:
    number = 0
    for connection in sorted({each.connection for each in exchanges}):
        streams = {
            direction: b"".join(
                len(each.data).to_bytes(4, "big") + each.data
                for each in list(exchanges)
                if (each.connection, each.direction) == (connection, direction)
            )
            for direction in ("request", "response")
        }
        if sum(map(len, streams.values())) <= MAX_SIZE:
            for direction, data in streams.items():
                (GOLDEN / f"{client}-{number}.{direction}s").write_bytes(data)
            number += 1


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*s"):
        old.unlink()
    with running() as broker:
        for client in (*WRITERS, "java"):
            with recording(broker.bootstrap) as proxy:
                use(client, broker, proxy.bootstrap)
                assert proxy.errors == []
            save(client, proxy.exchanges)


if __name__ == "__main__":
    main()
