"""Messages between real clients (librdkafka, Java, two of Python) and a real broker, through a recording proxy."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbatch.cli import main
from kbatch.protocol import ApiKey, decode_fetch, decode_request, decode_response, encode_request, encode_response

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.clients import WRITERS, kafka, oddities, plain
    from broker.proxy import Proxy, recording
    from broker.server import Broker, Unavailable, running
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    try:
        with running(tmp_path_factory.mktemp("broker")) as broker, recording(broker.bootstrap) as proxy:
            use_clients(broker, proxy.bootstrap)
            yield proxy
    except Unavailable as error:
        pytest.skip(str(error))


def use_clients(broker: Broker, bootstrap: str) -> None:
    """Create topics, write with each client, read in groups, commit one transaction and abort another."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in [*WRITERS, "java", "txn"]]).values():
        future.result(60)
    for name, write in WRITERS.items():
        write(bootstrap, "lz4" if name == "librdkafka" else "gzip", name, 0, [*oddities(name), *plain(50)])
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 2})
    producer.init_transactions(60)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("txn", value)
        producer.flush(60)
        end(60)
    settings = {"bootstrap.servers": bootstrap, "group.id": f"g-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "log_level": 2})
    consumer.subscribe(["txn", *WRITERS])
    assert consumer.consume(50, 60.0)
    consumer.commit(asynchronous=False)
    consumer.close()
    reader = kafka.KafkaConsumer(
        "kafka-python",
        bootstrap_servers=bootstrap,
        group_id="py",
        auto_offset_reset="earliest",
        consumer_timeout_ms=9000,
    )
    assert next(iter(reader)).value is not None
    reader.close()
    java = ["--topic", "java", "--num-records", "50", "--record-size", "100", "--throughput", "-1"]
    broker.run_class(
        "org.apache.kafka.tools.ProducerPerformance", *java, "--producer-props", f"bootstrap.servers={bootstrap}"
    )
    read = ["--bootstrap-server", bootstrap, "--topic", "java", "--messages", "50", "--timeout", "20000"]
    broker.run_class("org.apache.kafka.tools.ConsumerPerformance", *read)


def test_the_proxy_recorded_every_kind_of_message(proxy: Proxy) -> None:
    assert proxy.errors == []
    seen = {ApiKey(each.api_key) for each in proxy.exchanges}
    assert seen >= {
        ApiKey.API_VERSIONS,
        ApiKey.METADATA,
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.END_TXN,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.CREATE_TOPICS,
    }
    clients = {
        decode_request(each.data).message.client_software_name
        for each in proxy.exchanges
        if each.direction == "request" and each.api_key == ApiKey.API_VERSIONS and each.version >= 3
    }
    assert clients == {"apache-kafka-java", "confluent-kafka-python", "kafka-python"}


def test_every_message_is_read_and_written_to_the_same_bytes(proxy: Proxy) -> None:
    counts: Counter[str] = Counter()
    for each in proxy.exchanges:
        if each.direction == "request":
            request = decode_request(each.data)
            written = encode_request(request.message, request.version, header=request.header, framed=False)
        else:
            response = decode_response(each.data, each.api_key, each.version)
            written = encode_response(response.message, response.version, header=response.header, framed=False)
        assert b"".join(written) == each.data, (each.direction, ApiKey(each.api_key), each.version)
        counts[each.direction] += 1
    assert counts["request"] >= counts["response"] > 100


def test_fetch_responses_are_decoded(proxy: Proxy) -> None:
    values = set()
    for each in proxy.exchanges:
        if each.direction == "response" and each.api_key == ApiKey.FETCH:
            response = decode_response(each.data, each.api_key, each.version)
            for fetched in decode_fetch(response.message, isolation="read_committed"):
                values |= {fetched.table.value(row) for row in range(len(fetched.table))}
    assert b"committed" in values
    assert b"aborted" not in values
    assert len(values) > 20


def test_dump_lists_every_message(proxy: Proxy, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for connection in {each.connection for each in proxy.exchanges}:
        paths = tmp_path / "requests", tmp_path / "responses"
        count = 0
        for path, direction in zip(paths, ("request", "response"), strict=True):
            sent = [e.data for e in proxy.exchanges if e.connection == connection and e.direction == direction]
            path.write_bytes(b"".join(len(data).to_bytes(4, "big") + data for data in sent))
            count += len(sent)
        assert main(["dump", "--protocol", *map(str, paths)]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert len(lines) == count
        assert not [line for line in lines if '"error"' in line and "error" in json.loads(line)]
