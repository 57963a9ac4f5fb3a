"""Random schedules of faults: every record is read once, in order, or the read ends with one error."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.protocol import ApiKey

BROKERS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Errors that pass, with which a broker may answer for a partition at any time.
PASSING = (3, 5, 6, 9, 56, 74, 75, 78)


def partition(rng: random.Random) -> ScriptedPartition:
    """Return a partition with batches of any codec and size, and gaps between their offsets."""
    made = ScriptedPartition(leader=rng.randint(1, BROKERS))
    base = 0
    for _ in range(rng.randint(0, 30)):
        base += rng.choice((0, 0, 0, 7))
        values = [b"%d" % (base + i) for i in range(rng.choice((1, 3, 40)))]
        made.batches.append(kbatch.encode(values, base_offset=base, codec=rng.choice(CODECS), leader_epoch=0))
        base += len(values)
    return made


def random_fault(rng: random.Random, partitions: list[ScriptedPartition]) -> Fault:
    def move() -> None:
        each = rng.choice(partitions)
        each.leader = rng.randint(1, BROKERS)
        each.epoch += 1

    def refuse(response: Any) -> None:
        for topic in getattr(response, "responses", ()):
            part = rng.choice(topic.partitions)
            part.error_code, part.records = rng.choice(PASSING), b""

    return rng.choice(
        (
            Fault(),
            Fault(),
            Fault(cut=rng.randint(0, 300)),
            Fault(hangs=True) if rng.random() < 0.2 else Fault(),
            Fault(run=move),
            Fault(change=refuse),
        )
    )


@pytest.mark.parametrize("seed", range(25))
def test_every_record_is_read_once_whatever_fails_meanwhile(seed: int) -> None:
    rng = random.Random(seed)
    partitions = [partition(rng) for _ in range(rng.randint(1, 6))]
    cluster = ScriptedCluster(BROKERS, orders=partitions)
    for api_key in (ApiKey.FETCH, ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.API_VERSIONS):
        cluster.fail(api_key, *(random_fault(rng, partitions) for _ in range(rng.randint(0, 40))))
    consumer = kbatch.consume(
        "orders",
        transport=cluster.connect,
        bootstrap_servers=[f"broker-{each}" for each in range(1, BROKERS + 1)],
        request_timeout_ms=60,
        default_api_timeout_ms=20_000,
        reconnect_backoff_ms=1,
        retry_backoff_ms=1,
        fetch_max_wait_ms=10,
        fetch_max_bytes=rng.choice((1, 300, 1 << 20)),
        max_bytes=rng.choice((1, None)),
    )
    found: dict[int | None, list[int]] = {}
    for table in consumer:
        offsets = table.records["offset"].tolist()
        assert table.values() == [b"%d" % each for each in offsets]
        found.setdefault(table.partition, []).extend(offsets)
    expected = {
        number: kbatch.decode(b"".join(each.batches)).records["offset"].tolist()
        for number, each in enumerate(partitions)
        if each.batches
    }
    assert found == expected
    assert all(each.is_closed for each in cluster.open)
