"""Internal topics and KRaft control records: DSK-R15, DSK-R16, DSK-R17, CTL-R3, CTL-R7.

Kafka's own classes wrote the golden records, and Kafka's JSON converters made the expected contents.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from golden_logs import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import zigzag

import kbatch
from kbatch.errors import InvalidRecordError, KbatchError, UnsupportedFormatError
from kbatch.log.files.control_values import control_value
from kbatch.log.files.internal_topics import consumer_offsets, metadata_records, transaction_state
from kbatch.table import RecordTable

pytest.importorskip("pyarrow")

INTERNAL = GOLDEN / "internal"
CONTROL = [json.loads(line) for line in (INTERNAL / "control.jsonl").read_text().splitlines()]
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def golden(topic: str) -> RecordTable:
    (table,) = kbatch.Log(INTERNAL / f"{topic}-0").tables()
    return table


def expected(topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (INTERNAL / f"{topic}-0" / "expected.jsonl").read_text().splitlines()]


def made(*records: tuple[bytes | None, bytes | None], attributes: int = 0) -> RecordTable:
    """A table of records with these keys and values."""
    payload = bytearray()
    for i, (key, value) in enumerate(records):
        body = b"\0\0" + zigzag(i)
        for part in (key, value):
            body += zigzag(-1) if part is None else zigzag(len(part)) + part
        payload += zigzag(len(body) + 1) + body + b"\0"
    covered = struct.pack(">hiqqqhii", attributes, len(records) - 1, 5, 5, -1, -1, -1, len(records)) + payload
    data = struct.pack(">qiibI", 100, 9 + len(covered), 0, 2, crc32c(covered)) + covered
    return kbatch.decode(data, include_control=True)


def milliseconds(column: Any) -> list[int | None]:
    return column.cast("int64").to_pylist()


def utf8(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


# -- __consumer_offsets


def test_offset_commits_dsk_r15() -> None:
    rows = [row for row in expected("__consumer_offsets") if row["type"] == 1]
    offsets, _, _ = consumer_offsets(golden("__consumer_offsets"))
    values = [row["value"] or {} for row in rows]
    assert {row["version"] for row in rows} == {0, 1, 2, 3, 4}
    assert offsets["offset"].to_pylist() == [row["offset"] for row in rows]
    assert milliseconds(offsets["timestamp"]) == [row["timestamp"] for row in rows]
    for column in ("group", "topic", "partition"):
        assert offsets[column].to_pylist() == [row["key"][column] for row in rows]
    assert offsets["tombstone"].to_pylist() == [row["value"] is None for row in rows]
    assert offsets["version"].to_pylist() == [None if row["value"] is None else row["version"] for row in rows]
    assert offsets["committed_offset"].to_pylist() == [value.get("offset") for value in values]
    assert offsets["metadata"].to_pylist() == [value.get("metadata") for value in values]
    assert milliseconds(offsets["commit_timestamp"]) == [value.get("commitTimestamp") for value in values]
    assert milliseconds(offsets["expire_timestamp"]) == [value.get("expireTimestamp") for value in values]
    epochs = [value.get("leaderEpoch", -1) for value in values]
    assert offsets["leader_epoch"].to_pylist() == [None if epoch == -1 else epoch for epoch in epochs]
    ids = offsets["topic_id"].to_pylist()
    assert [one for one in ids if one] == [bytes.fromhex("01020304050607081112131415161718")]
    assert ids.index(next(filter(None, ids))) == 5


def test_group_metadata_dsk_r15() -> None:
    rows = [row for row in expected("__consumer_offsets") if row["type"] == 2]
    _, groups, skipped = consumer_offsets(golden("__consumer_offsets"))
    assert skipped == {3: 1}
    assert {row["version"] for row in rows} == {0, 1, 2, 3, 4}
    values = [row["value"] or {} for row in rows]
    assert groups["offset"].to_pylist() == [row["offset"] for row in rows]
    assert groups["group"].to_pylist() == [row["key"]["group"] for row in rows]
    assert groups["tombstone"].to_pylist() == [row["value"] is None for row in rows]
    for column, field in (
        ("protocol_type", "protocolType"),
        ("generation", "generation"),
        ("protocol", "protocol"),
        ("leader", "leader"),
    ):
        assert groups[column].to_pylist() == [value.get(field) for value in values]
    assert milliseconds(groups["state_timestamp"]) == [value.get("currentStateTimestamp") for value in values]
    assert groups["members"].to_pylist() == [
        None
        if not value
        else [
            {
                "member_id": member["memberId"],
                "group_instance_id": member.get("groupInstanceId"),
                "client_id": member["clientId"],
                "client_host": member["clientHost"],
                "rebalance_timeout": member.get("rebalanceTimeout"),
                "session_timeout": member["sessionTimeout"],
                "subscription": base64.b64decode(member["subscription"]),
                "assignment": base64.b64decode(member["assignment"]),
            }
            for member in value["members"]
        ]
        for value in values
    ]


def test_transaction_markers_are_not_offset_commits_dsk_r15() -> None:
    """The key of a marker begins like the key of an offset commit of version 0; only the batch's attributes differ."""
    table = made((b"\0\0\0\1", b"\0\0\0\0\0\7"), attributes=0x30)
    assert len(table) == 1
    offsets, groups, skipped = consumer_offsets(table)
    assert (offsets.num_rows, groups.num_rows, skipped) == (0, 0, {})
    assert transaction_state(table).transactions.num_rows == 0
    assert metadata_records(table).num_rows == 0


def test_tables_without_records_give_tables_without_rows() -> None:
    table = kbatch.decode(b"")
    assert consumer_offsets(table).offsets.num_rows == 0
    assert consumer_offsets(table).groups.schema == consumer_offsets(golden("__consumer_offsets")).groups.schema
    assert transaction_state(table).skipped == {}
    assert metadata_records(table).num_rows == 0


COMMIT_KEY = b"\0\1" + utf8("g") + utf8("t") + struct.pack(">i", 0)
GROUP_KEY = b"\0\2" + utf8("g")
TRANSACTION_KEY = b"\0\0" + utf8("id")


def test_minus_one_is_null_and_trailing_bytes_are_ignored_dsk_r15() -> None:
    value = struct.pack(">hqi", 3, -1, -1) + utf8("") + struct.pack(">q", -1)
    offsets, _, _ = consumer_offsets(made((COMMIT_KEY, value + b"more")))
    (row,) = offsets.to_pylist()
    # A committed offset is the value that the client sent, even if it is -1.
    assert row["committed_offset"] == -1
    assert (row["leader_epoch"], row["commit_timestamp"], row["expire_timestamp"]) == (None, None, None)


@pytest.mark.parametrize(
    ("read", "key", "value", "error", "message"),
    [
        (consumer_offsets, None, b"", InvalidRecordError, "key is null"),
        (consumer_offsets, b"\0", b"", InvalidRecordError, "key, byte 0: needs 2 bytes, 1 remain"),
        (
            consumer_offsets,
            b"\0\1\0\1g\0\5t",
            b"",
            InvalidRecordError,
            "key, byte 5, topic: length is 5, but 1 bytes remain",
        ),
        (consumer_offsets, COMMIT_KEY, b"", InvalidRecordError, "OffsetCommitValue, byte 0: needs 2 bytes"),
        (consumer_offsets, COMMIT_KEY, b"\xff\xff", InvalidRecordError, "byte 0: version is -1"),
        (consumer_offsets, COMMIT_KEY, b"\0\5", UnsupportedFormatError, "schema version 5; supported are 0 to 4"),
        (
            consumer_offsets,
            COMMIT_KEY,
            bytes(10) + b"\xff\xff" + bytes(8),
            InvalidRecordError,
            "byte 10, metadata: null, but the field is not nullable",
        ),
        (
            consumer_offsets,
            GROUP_KEY,
            b"\0\5",
            UnsupportedFormatError,
            "GroupMetadataValue, unsupported schema version 5",
        ),
        (
            consumer_offsets,
            GROUP_KEY,
            b"\0\0" + utf8("c") + struct.pack(">ihhi", 1, -1, -1, 2**31 - 1),
            InvalidRecordError,
            "byte 13, members: array of 2147483647 elements, but the remaining 0 bytes hold at most 0",
        ),
        (transaction_state, None, b"", InvalidRecordError, "key is null"),
        (
            transaction_state,
            b"\0\0\0\5",
            b"",
            InvalidRecordError,
            "key, byte 2, transactional_id: length is 5, but 0 bytes remain",
        ),
        (transaction_state, TRANSACTION_KEY, b"\0\2", UnsupportedFormatError, "schema version 2; supported are 0 to 1"),
        (
            transaction_state,
            TRANSACTION_KEY,
            struct.pack(">hqhibi", 0, 1, 1, 1, 1, 9),
            InvalidRecordError,
            "TransactionLogValue, byte 17, transaction_partitions: array of 9 elements",
        ),
        (metadata_records, None, None, InvalidRecordError, "value is null"),
        (metadata_records, None, b"", InvalidRecordError, "byte 0: variable-length integer is cut"),
        (metadata_records, None, b"\0\1\1", UnsupportedFormatError, "unsupported frame version 0; supported is 1"),
        (metadata_records, None, b"\2\1\1", UnsupportedFormatError, "unsupported frame version 2; supported is 1"),
        (metadata_records, None, b"\1\x80\x80\2\0", InvalidRecordError, "byte 1: 32768 has more than 15 bits"),
        (
            metadata_records,
            None,
            b"\1\x80\x80\x80\x80\x80\0",
            InvalidRecordError,
            "byte 1: variable-length integer has more",
        ),
    ],
)
def test_malformed_records_name_their_offset(
    read: Callable[[RecordTable], object],
    key: bytes | None,
    value: bytes | None,
    error: type[KbatchError],
    message: str,
) -> None:
    good = {consumer_offsets: COMMIT_KEY, transaction_state: TRANSACTION_KEY, metadata_records: b""}[read]
    table = made((good, b"\1\x14\0\0" if read is metadata_records else None), (key, value))._with(source="x.log")
    with pytest.raises(error, match=re.escape(message)) as caught:
        read(table)
    assert str(caught.value).startswith("x.log, offset 101: ")
    assert caught.value.source == "x.log"


# -- __transaction_state


def test_transaction_state_dsk_r16() -> None:
    rows = expected("__transaction_state")
    transactions, skipped = transaction_state(golden("__transaction_state"))
    assert skipped == {}
    values = [row["value"] or {} for row in rows]
    assert transactions["transactional_id"].to_pylist() == [row["key"]["transactionalId"] for row in rows]
    assert transactions["offset"].to_pylist() == [row["offset"] for row in rows]
    assert transactions["tombstone"].to_pylist() == [row["value"] is None for row in rows]
    for column, field in (
        ("producer_id", "producerId"),
        ("producer_epoch", "producerEpoch"),
        ("timeout", "transactionTimeoutMs"),
        ("previous_producer_id", "previousProducerId"),
        ("next_producer_id", "nextProducerId"),
        ("next_producer_epoch", "nextProducerEpoch"),
    ):
        found = [value.get(field) for value in values]
        assert transactions[column].to_pylist() == [None if one == -1 else one for one in found], column
    assert transactions["status"].to_pylist() == [
        None if not value else STATES[value["transactionStatus"]] for value in values
    ]
    assert transactions["partitions"].to_pylist() == [
        value.get("transactionPartitions")
        and [{"topic": one["topic"], "partitions": one["partitionIds"]} for one in value["transactionPartitions"]]
        for value in values
    ]
    assert milliseconds(transactions["last_update"]) == [
        value.get("transactionLastUpdateTimestampMs") for value in values
    ]
    starts = [value.get("transactionStartTimestampMs") for value in values]
    assert milliseconds(transactions["start"]) == [None if start == -1 else start for start in starts]
    versions = transactions["client_transaction_version"].to_pylist()
    assert versions[:6] == [None, 0, None, 0, None, 2]
    assert versions[-1] is None


def test_unknown_keys_and_states_are_reported_dsk_r16() -> None:
    value = struct.pack(">hqhibiqq", 0, 1, 1, 1, 9, -1, 5, -1)
    transactions, skipped = transaction_state(made((b"\0\1new", b""), (TRANSACTION_KEY, value), (b"\0\1", None)))
    assert skipped == {1: 2}
    (row,) = transactions.to_pylist()
    assert (row["status"], row["partitions"], row["start"]) == ("Unknown (9)", None, None)


# -- __cluster_metadata


def test_metadata_records_dsk_r17() -> None:
    """PRI-R8: each structure of a flexible version ends with tagged fields."""
    rows = expected("__cluster_metadata")
    found = metadata_records(golden("__cluster_metadata"))
    assert found["offset"].to_pylist() == [row["offset"] for row in rows]
    assert found["frame_version"].to_pylist() == [1] * len(rows)
    assert found["api_key"].to_pylist() == [row["apiKey"] for row in rows]
    assert found["record_type"].to_pylist() == [row["name"] for row in rows]
    assert found["version"].to_pylist() == [row["version"] for row in rows]
    assert found["message"].to_pylist() == [bytes.fromhex(row["message"]) for row in rows]
    assert metadata_records(made((None, b"\1\x7f\3rest"))).to_pylist()[0]["record_type"] is None


# -- control records


def snake(value: Any) -> Any:
    """Return Kafka's JSON with the names and ids that `control_value` uses."""
    if isinstance(value, list):
        return [snake(one) for one in value]
    if not isinstance(value, dict):
        return value
    renamed = {"kRaftVersion": "kraft_version", "kRaftVersionFeature": "kraft_version_feature"}
    fields = {
        renamed.get(name) or re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name): snake(one)
        for name, one in value.items()
    }
    if "voter_directory_id" in fields:
        fields["voter_directory_id"] = uuid.UUID(bytes=base64.urlsafe_b64decode(fields["voter_directory_id"] + "=="))
    return fields


@pytest.mark.parametrize("row", CONTROL, ids=lambda row: f"{row['type']}-v{row['value'].get('version', 0)}")
def test_control_values_ctl_r7(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["bytes"])
    assert control_value(row["type"], data) == {"version": 0} | snake(row["value"])
    for size in range(len(data)):
        with pytest.raises(InvalidRecordError, match=r"^x\.log, offset 7: \w+, byte \d+(, [\w.\[\]]+)?: "):
            control_value(row["type"], data[:size], source="x.log", offset=7)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            fields = control_value(row["type"], bytes(flipped))
        except (InvalidRecordError, UnsupportedFormatError):
            continue
        assert fields.keys() == control_value(row["type"], data).keys()


def test_control_values_of_a_log_ctl_r7() -> None:
    (table,) = kbatch.Log(GOLDEN / "logs" / "kraft-control-0").tables(include_control=True)
    keys = [struct.unpack(">hh", key or b"") for key in table.keys()]  # noqa: SIM118 (a table is not a dict)
    values = {kind: control_value(kind, table.value(i)) for i, (_, kind) in enumerate(keys)}
    assert set(values) == {2, 3, 4, 5, 6}
    assert values[2]["leader_id"] >= 0
    assert {voter["voter_id"] for voter in values[2]["voters"]} >= {values[2]["leader_id"]}
    assert values[3]["last_contained_log_timestamp"] > 0
    assert values[4] == {"version": 0}
    assert values[5]["kraft_version"] == 1
    assert all(voter["endpoints"] for voter in values[6]["voters"])


def test_markers_ctl_r3() -> None:
    assert control_value(0, b"\0\0\0\0\0\5") == {"version": 0, "coordinator_epoch": 5}
    # A later version is read as version 0, and the bytes after it are ignored.
    assert control_value(1, b"\0\5\xff\xff\xff\xffmore") == {"version": 5, "coordinator_epoch": -1}
    for value in (None, b"", b"\0\0\0", b"\xff\xff\0\0\0\0"):
        with pytest.raises(InvalidRecordError, match=r"^offset 3: EndTxnMarker"):
            control_value(1, value, offset=3)


def test_unknown_control_types_and_versions_ctl_r2_ctl_r7() -> None:
    assert control_value(99, b"anything") == {}
    assert control_value(-1, None) == {}
    with pytest.raises(UnsupportedFormatError, match="unsupported LeaderChangeMessage version 2; supported are 0 to 1"):
        control_value(2, b"\0\2")
    with pytest.raises(InvalidRecordError, match="VotersRecord has no value"):
        control_value(6, None)


# -- damage


@settings(deadline=None)
@given(st.binary(max_size=80), st.binary(max_size=120) | st.none())
def test_random_keys_and_values_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    for kind in (b"\0\0", b"\0\1", b"\0\2", b""):
        table = made((kind + key, value))
        for read in (consumer_offsets, transaction_state, metadata_records):
            try:
                read(table)
            except (InvalidRecordError, UnsupportedFormatError):
                continue


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
def test_golden_records_with_a_flipped_bit_are_read_or_refused(topic: str) -> None:
    table = golden(topic)
    read = {
        "__consumer_offsets": consumer_offsets,
        "__transaction_state": transaction_state,
        "__cluster_metadata": metadata_records,
    }[topic]
    chosen = range(len(table)) if topic == "__cluster_metadata" else (1, 4, 5, 6, 11)
    refused = 0
    for i in chosen:
        key, value = table.key(i), table.value(i)
        data = (key or b"") + (value or b"")
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            split = len(key or b"")
            parts = (None if key is None else bytes(flipped[:split]), None if value is None else bytes(flipped[split:]))
            try:
                read(made(parts))
            except (InvalidRecordError, UnsupportedFormatError) as error:
                refused += 1
                del error
    assert refused
