"""accept_batch and SequenceChecker compared with a real broker that gets the same bytes."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kbatch
from kbatch import ErrorCode, TimestampType, TopicConfig
from kbatch.kernels.checksum import write_crcs

try:
    from confluent_kafka import Consumer, TopicPartition

    from broker.clients import librdkafka
    from broker.server import Broker
    from broker.test_broker_encode import CODECS, create, produce
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

NOW = int(time.time() * 1000)
HOUR = 3_600_000
# Positions of batch fields, with their struct codes.
FIELDS = {
    "base_offset": (0, "q"),
    "length": (8, "i"),
    "magic": (16, "b"),
    "attributes": (21, "h"),
    "last_offset_delta": (23, "i"),
    "base_timestamp": (27, "q"),
    "producer_id": (43, "q"),
    "producer_epoch": (51, "h"),
    "record_count": (57, "i"),
}
TOPICS: dict[str, tuple[dict[str, str], TopicConfig]] = {
    "plain": ({}, TopicConfig()),
    "compacted": ({"cleanup.policy": "compact"}, TopicConfig(compacted=True)),
    "append-time": (
        {"message.timestamp.type": "LogAppendTime"},
        TopicConfig(timestamp_type=TimestampType.LOG_APPEND_TIME),
    ),
    "recompressed": ({"compression.type": "zstd"}, TopicConfig(compression_type="zstd")),
    "uncompressed": ({"compression.type": "uncompressed"}, TopicConfig(compression_type="uncompressed")),
    "small": (
        {"max.message.bytes": "300", "message.timestamp.before.max.ms": str(HOUR)},
        TopicConfig(max_message_bytes=300, timestamp_before_max_ms=HOUR),
    ),
}


def with_crc(data: bytes) -> bytes:
    out = bytearray(data)
    write_crcs(np.frombuffer(out, np.uint8), kbatch.scan(data).copy())
    return bytes(out)


def changed(data: bytes, write_crc: bool = True, **fields: int) -> bytes:
    out = bytearray(data)
    for name, value in fields.items():
        at, code = FIELDS[name]
        struct.pack_into(">" + code, out, at, value)
    return with_crc(bytes(out)) if write_crc else bytes(out)


def cut(data: bytes, size: int) -> bytes:
    """Truncate or extend a batch, with correct length and checksum."""
    return with_crc(changed(data[:size].ljust(size, b"z"), write_crc=False, length=size - 12))


GOOD = kbatch.encode([b"a", b"bb"], keys=[b"k", b"k"], timestamps=[NOW, NOW + 1])
GZIP = kbatch.encode([b"a" * 50, b"b" * 50], keys=[b"k", b"k"], timestamps=[NOW, NOW + 1], codec="gzip")
ODD = {
    "good": GOOD,
    "gzip": GZIP,
    "base offset": changed(GOOD, base_offset=5),
    "two batches": GOOD + GOOD,
    "control": changed(GOOD, attributes=0x20),
    "id without sequence": changed(GOOD, producer_id=9, producer_epoch=0),
    "offsets of six": changed(GOOD, last_offset_delta=5),
    "offsets of none": changed(GOOD, last_offset_delta=-1),
    "count 1": changed(GOOD, record_count=1),
    "count 3": changed(GOOD, record_count=3, last_offset_delta=2),
    "count 0": changed(GOOD, record_count=0, last_offset_delta=-1),
    "no records": kbatch.encode_empty(0, 0),
    "offsets with a gap": kbatch.encode([b"a", b"b"], offsets=[0, 5]),
    "checksum": GOOD[:-2] + b"x" + GOOD[-1:],
    "codec 5": changed(GOOD, attributes=5),
    "not gzip": changed(GOOD, attributes=1),
    "gzip cut": cut(GZIP, len(GZIP) - 9),
    "bytes left": cut(GOOD, len(GOOD) + 2),
    "record cut": cut(GOOD, len(GOOD) - 2),
    "two hours ahead": kbatch.encode([b"a"], keys=[b"k"], timestamps=NOW + 2 * HOUR),
    "two hours ago": kbatch.encode([b"a", b"b"], keys=[b"k", b"k"], timestamps=[NOW, NOW - 2 * HOUR]),
    "no timestamp": kbatch.encode([b"a"], keys=[b"k"], timestamps=-1),
    "a null key": kbatch.encode([b"a", b"b"], keys=[b"k", None], timestamps=NOW),
    "broker's time": changed(GOOD, attributes=8),
    "unknown attributes": changed(GOOD, attributes=0x4200),
    "delete horizon": changed(GOOD, attributes=0x40),
    "time before 1970": changed(GOOD, base_timestamp=-5),
    "no complete batch": GOOD[:40],
    "nothing": b"",
    "no batch after it": GOOD + b"\xff" * 30,
    "magic 1": kbatch.encode([b"a"], keys=[b"k"], magic=1),
    "magic 3": changed(GOOD, write_crc=False, magic=3),
    "too short": changed(GOOD, write_crc=False, length=30),
    "negative length": changed(GOOD, write_crc=False, length=-5),
    "2 MB": kbatch.encode([b"x" * 2_000_000], keys=[b"k"]),
    "400 bytes": kbatch.encode([b"x" * 400], keys=[b"k"], timestamps=NOW),
    "400 bytes that compress": kbatch.encode([b"x" * 400], keys=[b"k"], timestamps=NOW, codec="gzip"),
}


@pytest.fixture(scope="module")
def topics(broker: Broker) -> Broker:
    for name, (config, _) in TOPICS.items():
        create(broker.bootstrap, f"appended-{name}", **config)
    return broker


def verdict(data: bytes, topic: TopicConfig) -> int:
    try:
        kbatch.accept_batch(data, 0, topic)
    except kbatch.RefusedError as error:
        return int(error.code)
    return 0


@pytest.mark.parametrize("topic", TOPICS)
def test_batches_are_refused_like_by_a_broker(topics: Broker, topic: str) -> None:
    """PRD-R1 to R4, with the codes of a real broker."""
    theirs = {name: produce(topics.bootstrap, f"appended-{topic}", data)[0] for name, data in ODD.items()}
    ours = {name: verdict(data, TOPICS[topic][1]) for name, data in ODD.items()}
    assert {name: ErrorCode(code).name for name, code in ours.items()} == {
        name: ErrorCode(code).name for name, code in theirs.items()
    }
    assert len(set(theirs.values())) >= 5


def stored(broker: Broker, topic: str) -> bytes:
    (segment,) = Path(broker.log_dir, f"{topic}-0").glob("*.log")
    return segment.read_bytes()


def records(data: bytes) -> list[Any]:
    table = kbatch.decode(data)
    rows = table.records[["offset", "timestamp", "header_count"]].tolist()
    return list(zip(rows, table.keys(), table.values(), strict=True))


@pytest.mark.parametrize("topic", ["plain", "append-time", "recompressed", "uncompressed"])
def test_stored_batches_equal_those_of_a_broker(topics: Broker, topic: str) -> None:
    """PRD-R5 to R7: byte for byte, except for recompressed payloads, because compressors differ."""
    config, ours = TOPICS[topic]
    name = f"stored-{topic}"
    create(topics.bootstrap, name, **config)
    headers = [[("h", b"1"), ("h", None)], None, [("", b"")]]
    sent = [
        kbatch.encode(
            [b"a" * 100, None, b""], keys=[None, b"", b"k"], timestamps=[NOW, -1, NOW - 5], headers=headers, codec=codec
        )
        for codec in CODECS
    ]
    sent += [changed(sent[0], attributes=0x4200), changed(sent[0], attributes=0x40)]
    if topic != "append-time":
        sent += [changed(sent[0], attributes=8)]
    for number, data in enumerate(sent):
        assert produce(topics.bootstrap, name, data) == (0, 3 * number)
    log = stored(topics, name)
    rows = kbatch.scan(log)
    assert len(rows) == len(sent)
    for number, (data, row) in enumerate(zip(sent, rows, strict=True)):
        theirs = log[row["position"] : row["position"] + row["size"]]
        made = kbatch.accept_batch(
            data,
            3 * number,
            ours,
            leader_epoch=int(row["partition_leader_epoch"]),
            now_ms=int(row["max_timestamp"]) if topic == "append-time" else None,
        )
        if topic == "recompressed" and data is not sent[4]:
            own = kbatch.scan(made)[0]
            same = [field for field in rows.dtype.names or () if field not in ("position", "size", "crc")]
            assert own[same] == row[same]
            assert records(made) == records(theirs)
        else:
            assert made == theirs, number


# (epoch, first sequence, record count) of batches that a producer might send, with every kind of error.
SCRIPT = [
    (0, 0, 3),
    (0, 3, 1),
    (0, 3, 1),  # the same batch again
    (0, 0, 3),  # the previous batch again
    (0, 3, 2),  # another batch that begins at a known sequence
    (0, 5, 1),  # one record is missing
    (0, 4, 2),
    (0, 6, 1),
    (0, 7, 1),
    (0, 8, 1),
    (0, 3, 1),  # the first of the last five batches
    (0, 0, 3),  # the sixth-last batch
    (1, 1, 1),  # a new epoch that does not begin at 0
    (1, 0, 1),
    (0, 9, 1),  # a fenced epoch
    (1, 0, 1),  # the same batch again
    (1, 2, 1),
    (1, 1, 1),
    (3, 0, 2),
    (3, 2147483647, 1),
    (3, 2, 1),
]
# 2^31 - 1 and 0 are in one batch.
WRAPPING = [
    (0, 2147483645, 2),
    (0, 2147483647, 2),
    (0, 2147483645, 2),
    (0, 2147483647, 2),
    (0, 0, 1),
    (0, 1, 1),
]


@pytest.mark.parametrize("script", [SCRIPT, WRAPPING], ids=["script", "wrapping"])
def test_sequences_are_checked_like_by_a_broker(broker: Broker, script: list[tuple[int, int, int]]) -> None:
    """PRD-R10, PRD-R11, SEQ-R1."""
    topic = f"sequences-{len(script)}"
    create(broker.bootstrap, topic)
    checker = kbatch.SequenceChecker()
    end = 0
    theirs, ours = [], []
    for epoch, sequence, count in script:
        data = bytearray(
            kbatch.encode([b"x"] * count, producer_id=77, producer_epoch=epoch, base_sequence=sequence, timestamps=NOW)
        )
        code, offset = produce(broker.bootstrap, topic, bytes(data))
        theirs.append((code, offset))
        after = kbatch.assign_offsets(data, end, leader_epoch=0)
        ((offset, error),) = checker.check(kbatch.scan(data), on_error="mark").tolist()
        if error == ErrorCode.NONE:
            end = after
        ours.append((0 if error == ErrorCode.DUPLICATE_SEQUENCE_NUMBER else error, offset))
    assert ours == theirs
    assert {code for code, _ in theirs} == ({0, 45, 47} if script is SCRIPT else {0, 45})
    log = stored(broker, topic)
    assert int(kbatch.scan(log)["last_offset"][-1]) == end - 1
    again = kbatch.SequenceChecker()
    assert (again.check(kbatch.scan(log))["error"] == 0).all()
    assert again.producers().tolist() == checker.producers().tolist()


def consumed(broker: Broker, topic: str, count: int, **settings: str) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "x", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = []
        while len(messages) < count:
            more = consumer.consume(count - len(messages), timeout=30)
            assert more
            messages += more
        assert not consumer.consume(1, timeout=1)
        return [message.value() for message in messages]
    finally:
        consumer.close()


def wait_for_markers(broker: Broker, topic: str, count: int) -> bytes:
    """Wait until the log has `count` markers; brokers write them after they answer the commit."""
    deadline = time.monotonic() + 30
    while True:
        log = stored(broker, topic)
        if len(kbatch.control_records(kbatch.decode(log, include_control=True))) == count:
            return log
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_broker_ends_the_transactions_of_encoded_batches(broker: Broker) -> None:
    """A client begins and ends the transactions; encoded batches between use its id, epoch and next sequence."""
    topic = "encoded-transactions"
    create(broker.bootstrap, topic)
    checker = kbatch.SequenceChecker()
    expected: list[bytes] = []
    for number, commit in enumerate([True, False, True]):
        # A new client each time: it does not know the sequences that encoded batches used.
        with librdkafka(broker.bootstrap, transactional_id="kbatch-encoded") as producer:
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce(topic, b"theirs-%d" % number, partition=0)
            assert producer.flush(60) == 0
            last = kbatch.scan(stored(broker, topic))[-1]
            for sequence, codec in enumerate(CODECS, start=1):
                ours = kbatch.encode(
                    [b"ours-%d" % number],
                    codec=codec,
                    producer_id=int(last["producer_id"]),
                    producer_epoch=int(last["producer_epoch"]),
                    base_sequence=sequence,
                    transactional=True,
                )
                answer = produce(broker.bootstrap, topic, ours, transactional_id="kbatch-encoded")
                assert answer == (0, last["last_offset"] + sequence)
            if commit:
                producer.commit_transaction(60)
                expected += [b"theirs-%d" % number] + [b"ours-%d" % number] * len(CODECS)
            else:
                producer.abort_transaction(60)
            log = wait_for_markers(broker, topic, number + 1)
    assert kbatch.decode(log, isolation="read_committed").values() == expected
    assert consumed(broker, topic, len(expected), **{"isolation.level": "read_committed"}) == expected
    assert (checker.check(kbatch.decode(log, include_control=True))["error"] == 0).all()
    assert len(checker) == 1
    assert checker.producers()["current_txn_first_offset"].tolist() == [-1]
