"""Newer internal topics: group protocols of Kafka 4, state of share groups, events of tiered storage; DSK-R15.

Kafka's own serializers wrote the golden records: ``tests/protocol/java/Stored.java`` prints them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_logs import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from test_internal_topics import golden, made

import kbatch
from kbatch.errors import InvalidRecordError, KbatchError, UnsupportedFormatError
from kbatch.log import (
    cluster_metadata,
    consumer_offsets,
    group_records,
    metadata_records,
    remote_log_metadata,
    share_group_state,
    transaction_state,
)
from kbatch.table import RecordTable

pytest.importorskip("pyarrow")

STORED = [line.split(" ") for line in (GOLDEN / "internal" / "stored.txt").read_text().splitlines()]
TOPIC_ID = uuid.UUID(int=(1 << 64) + 2).bytes
FUNCTIONS: dict[str, Callable[[RecordTable], Any]] = {
    "__cluster_metadata": metadata_records,
    "__consumer_offsets": consumer_offsets,
    "__remote_log_metadata": remote_log_metadata,
    "__share_group_state": share_group_state,
    "__transaction_state": transaction_state,
}


def stored(topic: str) -> RecordTable:
    def part(text: str) -> bytes | None:
        return None if text == "-" else bytes.fromhex(text)

    return made(*((part(key), part(value)) for name, key, value in STORED if name == topic))


def rows(table: Any) -> list[dict[str, Any]]:
    """The rows without the offset and the timestamp of the record."""
    return [
        {name: cell for name, cell in row.items() if name not in ("offset", "timestamp")} for row in table.to_pylist()
    ]


def test_the_state_of_share_groups() -> None:
    tables, skipped = share_group_state(stored("__share_group_state"))
    assert (set(tables), skipped) == ({"ShareSnapshot", "ShareUpdate"}, {})
    key = {"group_id": "g", "topic_id": TOPIC_ID, "partition": 3}
    snapshot, tombstone = rows(tables["ShareSnapshot"])
    created = snapshot.pop("create_timestamp")
    assert created.timestamp() == 1.0
    assert snapshot == key | {
        "tombstone": False,
        "version": 0,
        "snapshot_epoch": 4,
        "state_epoch": 1,
        "leader_epoch": 2,
        "start_offset": 5,
        "delivery_complete_count": 3,
        "write_timestamp": None,
        "state_batches": [{"first_offset": 5, "last_offset": 7, "delivery_state": 2, "delivery_count": 1}],
    }
    assert {name: cell for name, cell in tombstone.items() if cell is not None} == key | {"tombstone": True}
    (update,) = rows(tables["ShareUpdate"])
    assert (update["start_offset"], update["delivery_complete_count"], update["state_batches"]) == (-1, -1, [])
    assert tables["ShareSnapshot"]["offset"].to_pylist() == [100, 102]
    assert tables["ShareUpdate"]["offset"].to_pylist() == [101]


def test_records_of_the_group_protocols_dsk_r15() -> None:
    table = stored("__consumer_offsets")
    tables, skipped = group_records(table)
    assert skipped == {}
    assert consumer_offsets(table).skipped == {3: 1, 5: 1, 16: 1, 11: 1, 23: 1}
    assert rows(tables["ConsumerGroupMetadata"]) == [
        {"group_id": "c", "tombstone": False, "version": 0, "epoch": 9, "metadata_hash": 77}
    ]
    (member,) = rows(tables["ConsumerGroupMemberMetadata"])
    assert member["classic_member_metadata"] == {
        "session_timeout_ms": 45000,
        "supported_protocols": [{"name": "range", "metadata": b"\1\2"}],
    }
    assert (member["member_id"], member["client_host"], member["subscribed_topic_names"]) == (
        "m",
        "/1.2.3.4",
        ["orders"],
    )
    (expression,) = rows(tables["ConsumerGroupRegularExpression"])
    assert (expression["regular_expression"], expression["topics"], expression["version"]) == ("o.*", ["orders"], 8)
    (share,) = rows(tables["ShareGroupMetadata"])
    assert (share["group_id"], share["tombstone"], share["epoch"]) == ("s", True, None)
    (topology,) = rows(tables["StreamsGroupTopology"])
    assert topology["subtopologies"][0]["source_topics"] == ["in"]
    # Every record type has a table, with or without rows.
    assert len(tables) == 19
    assert sum(each.num_rows for each in tables.values()) == 5


def test_older_records_of_consumer_offsets_are_counted_dsk_r15() -> None:
    tables, skipped = group_records(golden("__consumer_offsets"))
    found = consumer_offsets(golden("__consumer_offsets"))
    assert found.skipped == {3: 1}
    assert tables["ConsumerGroupMetadata"].num_rows == 1
    assert sum(skipped.values()) == found.offsets.num_rows + found.groups.num_rows


def test_events_of_tiered_storage() -> None:
    tables, skipped = remote_log_metadata(stored("__remote_log_metadata"))
    assert skipped == {}
    assert {name: each.num_rows for name, each in tables.items()} == {
        "RemoteLogSegmentMetadataRecord": 1,
        "RemoteLogSegmentMetadataUpdateRecord": 1,
        "RemotePartitionDeleteMetadataRecord": 1,
        "RemoteLogSegmentMetadataSnapshotRecord": 1,
    }
    (segment,) = rows(tables["RemoteLogSegmentMetadataRecord"])
    partition = {"name": "orders", "id": TOPIC_ID, "partition": 3}
    identity = {"topic_id_partition": partition, "id": uuid.UUID(int=(3 << 64) + 4).bytes}
    assert segment["remote_log_segment_id"] == identity
    assert (segment["start_offset"], segment["end_offset"], segment["segment_size_in_bytes"]) == (10, 20, 4096)
    assert segment["segment_leader_epochs"] == [{"leader_epoch": 0, "offset": 10}]
    assert (segment["custom_metadata"], segment["txn_index_empty"]) == (b"\x09", True)
    assert segment["max_timestamp_ms"].timestamp() == 1.234
    (update,) = rows(tables["RemoteLogSegmentMetadataUpdateRecord"])
    assert (update["remote_log_segment_id"], update["custom_metadata"]) == (identity, None)
    (deletion,) = rows(tables["RemotePartitionDeleteMetadataRecord"])
    assert (deletion["topic_id_partition"], deletion["remote_partition_delete_state"]) == (partition, 0)


def framed(number: int, version: int, body: bytes) -> tuple[None, bytes]:
    return None, bytes([1, number, version]) + body


def test_the_brokers_topics_and_partitions_of_a_cluster_dsk_r17() -> None:
    tables, skipped = cluster_metadata(golden("__cluster_metadata"))
    assert skipped == {20: 1}
    ((topic,), (partition,)) = (rows(tables[name]) for name in ("TopicRecord", "PartitionRecord"))
    assert topic == {"version": 0, "name": "orders", "topic_id": TOPIC_ID}
    assert (partition["topic_id"], partition["partition_id"], partition["version"]) == (TOPIC_ID, 3, 1)
    assert (partition["replicas"], partition["isr"], partition["leader"]) == ([1, 2], [1], 1)
    assert (partition["directories"], partition["last_known_elr"]) == ([], None)
    (feature,) = rows(tables["FeatureLevelRecord"])
    assert (feature["name"], feature["feature_level"]) == ("metadata.version", 29)
    (change,) = rows(tables["BrokerRegistrationChangeRecord"])
    assert (change["broker_id"], change["broker_epoch"], change["fenced"]) == (1, 300, None)


def test_fields_that_a_change_of_a_partition_leaves_are_null_dsk_r17() -> None:
    """Tagged fields: their number, each with its tag, its size and its value (PRI-R8)."""
    head = (3).to_bytes(4, "big") + TOPIC_ID
    leader = b"\x02\x00\x05\x02\x00\x00\x00\x02" + b"\x01\x04\x00\x00\x00\x02"
    without = b"\x01\x01\x04\xff\xff\xff\xff"
    directories = b"\x01\x08\x11\x02" + TOPIC_ID
    table = made(framed(5, 0, head + leader), framed(5, 0, head + without), framed(5, 1, head + directories))
    changes = rows(cluster_metadata(table).tables["PartitionChangeRecord"])
    assert [(row["leader"], row["isr"], row["directories"]) for row in changes] == [
        (2, [2], None),
        (-1, None, None),
        (None, None, [TOPIC_ID]),
    ]
    assert {row["leader_recovery_state"] for row in changes} == {None}


def test_a_record_of_a_cluster_that_does_not_match_its_schema_is_an_error_with_its_offset() -> None:
    with pytest.raises(InvalidRecordError, match=r"^offset 100: metadata record, "):
        cluster_metadata(made(framed(9, 0, TOPIC_ID[:8])))
    with pytest.raises(UnsupportedFormatError, match=r"^offset 100: metadata record, .*version 9"):
        cluster_metadata(made(framed(3, 9, b"")))


@pytest.mark.parametrize("topic", FUNCTIONS)
def test_each_function_refuses_the_log_of_another_internal_topic(topic: str, tmp_path: Path) -> None:
    directory = tmp_path / f"{topic}-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(kbatch.encode([b"v"], keys=[b"k"]))
    (table,) = kbatch.Log(directory).tables()
    functions = [*FUNCTIONS.items(), ("__consumer_offsets", group_records), ("__cluster_metadata", cluster_metadata)]
    for name, function in functions:
        if name != topic:
            with pytest.raises(InvalidRecordError, match=f"records of {topic}, this function reads records of {name}"):
                function(table)


@pytest.mark.parametrize(("topic", "function"), [("__share_group_state", transaction_state)])
def test_a_key_of_another_topic_is_no_row(topic: str, function: Callable[[RecordTable], Any]) -> None:
    """The record type is the same, and the topic of the bytes is not known."""
    with pytest.raises(InvalidRecordError, match="offset 100: key, byte 5: 20 trailing bytes"):
        function(stored(topic))


@pytest.mark.parametrize(
    ("function", "key", "value", "text"),
    [
        (share_group_state, "00", "0000", "offset 100: key, byte 0: needs 2 bytes, 1 remain"),
        (share_group_state, None, "0000", "offset 100: key is null"),
        (share_group_state, "0000 0001 67", "0000", "offset 100: key, byte 5, topic_id: needs 16 bytes, 0 remain"),
        (group_records, "0003 0001 63 00", "0000", "offset 100: key, byte 5: 1 trailing bytes after the message"),
        (group_records, "0003 0001 63", "0000 0000", "offset 100: ConsumerGroupMetadataValue, byte 2, epoch: needs 4"),
        (group_records, "0003 0001 63", "ffff", "offset 100: ConsumerGroupMetadataValue, byte 0: version is -1"),
        (remote_log_metadata, None, None, "offset 100: remote log metadata, value is null"),
        (remote_log_metadata, None, "01 80", "offset 100: remote log metadata, byte 1: variable-length integer is cut"),
        (remote_log_metadata, None, "01 808004", "byte 1: 65536 has more than 15 bits"),
    ],
)
def test_malformed_records_name_their_offset(
    function: Callable[[RecordTable], Any], key: str | None, value: str | None, text: str
) -> None:
    record = tuple(None if part is None else bytes.fromhex(part) for part in (key, value))
    with pytest.raises(InvalidRecordError, match=text):
        function(made(record))


def test_trailing_bytes_of_a_value_are_ignored_dsk_r15() -> None:
    """As by Kafka."""
    topic, key, value = STORED[3]
    assert topic == "__consumer_offsets"
    tables, _ = group_records(made((bytes.fromhex(key), bytes.fromhex(value) + b"more")))
    assert tables["ConsumerGroupMetadata"]["epoch"].to_pylist() == [9]


def test_unknown_versions_and_types_are_reported() -> None:
    with pytest.raises(UnsupportedFormatError, match="offset 100: ConsumerGroupMetadataValue, unsupported schema vers"):
        group_records(made((bytes.fromhex("0003 0001 63"), b"\0\1")))
    with pytest.raises(UnsupportedFormatError, match="offset 100: remote log metadata, unsupported frame version 0"):
        remote_log_metadata(made((None, b"\0\0\0")))
    assert group_records(made((b"\0\x63", b"x"))).skipped == {99: 1}
    assert remote_log_metadata(made((None, b"\1\x63\0"))).skipped == {99: 1}


@given(
    st.sampled_from([group_records, share_group_state, remote_log_metadata]),
    st.sampled_from(STORED),
    st.integers(0, 60),
    st.binary(max_size=3),
)
def test_damaged_records_are_read_or_raise(
    function: Callable[[RecordTable], Any], record: list[str], position: int, damage: bytes
) -> None:
    key, value = (None if part == "-" else bytearray.fromhex(part) for part in record[1:])
    for part in (key, value):
        if part is not None:
            part[position : position + len(damage)] = damage
    table = made((None if key is None else bytes(key), None if value is None else bytes(value)))
    try:
        found = function(table)
    except KbatchError:
        return
    assert sum(each.num_rows for each in found.tables.values()) + sum(found.skipped.values()) == 1
