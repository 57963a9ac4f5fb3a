"""The topic `trips` of the pages for users of other tools: for a scripted cluster, and for a broker."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from scripted_broker import ScriptedPartition

import kbatch

__all__ = ["TRIPS", "Trip", "trip_partitions", "write_trips"]

# 2024-05-01T06:00:00Z
MORNING = 1_714_543_200_000
ABORTING_PRODUCER = 7


class Trip(NamedTuple):
    """A record. An aborted one is alone in its transaction, whose marker has the next offset."""

    partition: int
    minute: int
    key: bytes
    value: bytes
    is_aborted: bool = False

    @property
    def timestamp(self) -> int:
        return MORNING + 60_000 * self.minute


TRIPS = [
    Trip(0, 0, b"berlin", b'{"id": 1, "km": 3.5}'),
    Trip(0, 1, b"paris", b'{"id": 2, "km": 12.0}'),
    Trip(0, 2, b"berlin", b'{"id": 3, "km": 7.25}'),
    Trip(0, 3, b"berlin", b'{"id": 90, "km": 0.5}', is_aborted=True),
    Trip(0, 4, b"paris", b'{"id": 4, "km": 1.5}'),
    Trip(1, 1, b"rome", b'{"id": 5, "km": 9.0}'),
    Trip(1, 3, b"rome", b'{"id": 6, "km": 4.0}'),
    Trip(1, 5, b"oslo", b'{"id": 7, "km": 2.5}'),
]


def trip_partitions() -> list[ScriptedPartition]:
    """Return the partitions with one batch per record."""
    partitions = [ScriptedPartition(), ScriptedPartition()]
    for trip in TRIPS:
        made = partitions[trip.partition]
        options: dict[str, Any] = {"keys": [trip.key], "timestamps": trip.timestamp}
        if trip.is_aborted:
            made.aborted = [(ABORTING_PRODUCER, made.end)]
            options |= {"producer_id": ABORTING_PRODUCER, "producer_epoch": 0, "base_sequence": 0}
        made.write([trip.value], transactional=trip.is_aborted, **options)
        if trip.is_aborted:
            marker = kbatch.encode_marker(
                "abort", producer_id=ABORTING_PRODUCER, producer_epoch=0, offset=made.end, timestamp=trip.timestamp
            )
            made.batches.append(marker)
    return partitions


def write_trips(bootstrap: str) -> None:
    """Create the topic on a broker, with these records."""
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("trips", 2, 1)])["trips"].result(60)
    common = {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 2}
    producer = confluent_kafka.Producer(common)
    aborting = confluent_kafka.Producer(common | {"transactional.id": "aborting"})
    aborting.init_transactions(60)
    for trip in TRIPS:
        one = aborting if trip.is_aborted else producer
        if trip.is_aborted:
            aborting.begin_transaction()
        one.produce("trips", trip.value, trip.key, partition=trip.partition, timestamp=trip.timestamp)
        one.flush(60)
        if trip.is_aborted:
            aborting.abort_transaction(60)
            # The coordinator writes the marker after it has answered.
            stable = {confluent_kafka.TopicPartition("trips", trip.partition): OffsetSpec.latest()}
            end = next(iter(admin.list_offsets(stable).values())).result(60).offset
            isolation = confluent_kafka.IsolationLevel.READ_COMMITTED
            deadline = time.monotonic() + 60
            while next(iter(admin.list_offsets(stable, isolation_level=isolation).values())).result(60).offset < end:
                assert time.monotonic() < deadline
                time.sleep(0.02)
