"""The records of Kafka's internal topics as Arrow tables.

Two of these topics are compacted: a later record with the same key, or a tombstone, replaces an earlier one. The
functions here return every record of a table; only the last one of each key is current.

The schemas come from Apache Kafka's group and transaction coordinators (``OffsetCommitKey``, ``OffsetCommitValue``,
``GroupMetadataKey``, ``GroupMetadataValue``, ``TransactionLogKey``, ``TransactionLogValue``) and the frame of its
metadata records (``AbstractApiMessageSerde``); DSK-R15, DSK-R16, DSK-R17. The records are small and few, so they are
parsed in Python, one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kbatch.arguments import check_types
from kbatch.errors import InvalidRecordError, ProtocolError, UnsupportedFormatError
from kbatch.extras import require
from kbatch.format import ATTRIBUTE_CONTROL
from kbatch.protocol.primitives import Reader, WireError
from kbatch.protocol.stored import unknown_version
from kbatch.records.display import short_repr
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FRAME_VERSION",
    "ConsumerOffsets",
    "TransactionStates",
    "consumer_offsets",
    "internal_records",
    "located_errors",
    "metadata_records",
    "transaction_state",
]

_OFFSET_COMMIT_KEYS = (0, 1)
_GROUP_METADATA_KEY = 2
_TRANSACTION_KEY = 0
_OFFSET_COMMIT_KNOWN, _OFFSET_COMMIT_FLEXIBLE = 4, 4
_GROUP_METADATA_KNOWN, _GROUP_METADATA_FLEXIBLE = 4, 4
_TRANSACTION_KNOWN, _TRANSACTION_FLEXIBLE = 1, 1
FRAME_VERSION = 1
# Smallest sizes of a group's member, of a topic in a transaction, and of a partition.
_MIN_MEMBER = 15
_MIN_TOPIC = 3
_MIN_PARTITION = 4
_NO_UUID = bytes(16)

# Kafka's TransactionState.
_STATES = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}
# Kafka's MetadataRecordType; the missing numbers were abandoned before a release.
_METADATA_RECORDS = {
    0: "RegisterBrokerRecord",
    1: "UnregisterBrokerRecord",
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    7: "FenceBrokerRecord",
    8: "UnfenceBrokerRecord",
    9: "RemoveTopicRecord",
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord",
    14: "ClientQuotaRecord",
    15: "ProducerIdsRecord",
    17: "BrokerRegistrationChangeRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    20: "NoOpRecord",
    21: "ZkMigrationStateRecord",
    22: "RemoveUserScramCredentialRecord",
    23: "BeginTransactionRecord",
    24: "EndTransactionRecord",
    25: "AbortTransactionRecord",
    26: "RemoveDelegationTokenRecord",
    27: "RegisterControllerRecord",
    28: "ClearElrRecord",
}


INTERNAL_TOPICS = {
    "__cluster_metadata",
    "__consumer_offsets",
    "__remote_log_metadata",
    "__share_group_state",
    "__transaction_state",
}


class ConsumerOffsets(NamedTuple):
    """The contents of ``__consumer_offsets`` records.

    Attributes
    ----------
    offsets : pyarrow.Table
        One row per commit: ``offset`` and ``timestamp`` of the record; from its key ``group, topic, partition``;
        ``tombstone``; and from the value ``version, committed_offset, leader_epoch, metadata, commit_timestamp,
        expire_timestamp, topic_id``. ``topic_id`` has the 16 bytes of a UUID.
    groups : pyarrow.Table
        One row per state of a group of the classic protocol: ``offset, timestamp, group, tombstone, version,
        protocol_type, generation, protocol, leader, state_timestamp, members``. Members are a list of structures;
        ``subscription`` and ``assignment`` are bytes whose format depends on the protocol type.
    skipped : dict
        Number of records by each other key type; `group_records` decodes types 3 and up.
    """

    offsets: pa.Table
    groups: pa.Table
    skipped: dict[int, int]

    def __repr__(self) -> str:
        return short_repr(self, self._fields)


class TransactionStates(NamedTuple):
    """The contents of ``__transaction_state`` records.

    Attributes
    ----------
    transactions : pyarrow.Table
        One row per state of a transactional id: ``offset`` and ``timestamp`` of the record, ``transactional_id,
        tombstone, version, producer_id, producer_epoch, timeout`` (ms), ``status, partitions, last_update, start,
        previous_producer_id, next_producer_id, next_producer_epoch, client_transaction_version``. ``status`` is Kafka's
        name, such as ``"Ongoing"``, or ``"Unknown (9)"``. ``partitions`` is a list of ``topic`` and its ``partitions``.
    skipped : dict
        Number of records by each other key type.
    """

    transactions: pa.Table
    skipped: dict[int, int]

    def __repr__(self) -> str:
        return short_repr(self, self._fields)


def consumer_offsets(table: RecordTable) -> ConsumerOffsets:
    """Decode records of ``__consumer_offsets`` (DSK-R15).

    Parameters
    ----------
    table : RecordTable
        Records of control batches are skipped. Commits of aborted transactions are included unless the table was
        decoded with ``isolation="read_committed"``.

    Returns
    -------
    ConsumerOffsets
        The value columns of a tombstone are null. Timestamps and leader epochs of -1, and fields that the value's
        version does not have, are null too. Timestamps are ``timestamp("ms", UTC)``.

    Raises
    ------
    InvalidRecordError
        If a key is null, or a key or value does not match its schema; with the record's offset. Also if the table is
        from another internal topic.
    UnsupportedFormatError
        If the version of a value is unknown.
    MissingDependencyError
        Without pyarrow.

    References
    ----------
    Rules such as DSK-R15 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> log = kbatch.Log("tests/golden/internal/__consumer_offsets-0")
    >>> found = [consumer_offsets(table) for table in log.tables()]
    >>> found[0].offsets.select(["group", "committed_offset"]).slice(0, 1).to_pylist()
    [{'group': 'group-0', 'committed_offset': 1048576}]
    >>> found[0].skipped
    {3: 1}
    """
    check_types(consumer_offsets, locals())
    pa = require("pyarrow", "arrow", "consumer_offsets()")
    offsets: list[dict[str, Any]] = []
    groups: list[dict[str, Any]] = []
    skipped: dict[int, int] = {}
    for row, key, value in internal_records(table, "__consumer_offsets"):
        with located_errors(table, row, "key"):
            reader = Reader(key)
            kind = reader.int16()
            if kind in _OFFSET_COMMIT_KEYS:
                row |= {"group": reader.string(), "topic": reader.string(), "partition": reader.int32()}
            elif kind == _GROUP_METADATA_KEY:
                row |= {"group": reader.string()}
            else:
                skipped[kind] = skipped.get(kind, 0) + 1
                continue
        row["tombstone"] = value is None
        commit = kind != _GROUP_METADATA_KEY
        if value is not None:
            with located_errors(table, row, "OffsetCommitValue" if commit else "GroupMetadataValue"):
                row |= _offset_commit(value) if commit else _group_metadata(value)
        (offsets if commit else groups).append(row)
    when = pa.timestamp("ms", "UTC")
    record = [("offset", pa.int64()), ("timestamp", when), ("group", pa.string())]
    member = [
        ("member_id", pa.string()),
        ("group_instance_id", pa.string()),
        ("client_id", pa.string()),
        ("client_host", pa.string()),
        ("rebalance_timeout", pa.int32()),
        ("session_timeout", pa.int32()),
        ("subscription", pa.binary()),
        ("assignment", pa.binary()),
    ]
    return ConsumerOffsets(
        pa.Table.from_pylist(
            offsets,
            pa.schema(
                [
                    *record,
                    ("topic", pa.string()),
                    ("partition", pa.int32()),
                    ("tombstone", pa.bool_()),
                    ("version", pa.int16()),
                    ("committed_offset", pa.int64()),
                    ("leader_epoch", pa.int32()),
                    ("metadata", pa.string()),
                    ("commit_timestamp", when),
                    ("expire_timestamp", when),
                    ("topic_id", pa.binary(16)),
                ]
            ),
        ),
        pa.Table.from_pylist(
            groups,
            pa.schema(
                [
                    *record,
                    ("tombstone", pa.bool_()),
                    ("version", pa.int16()),
                    ("protocol_type", pa.string()),
                    ("generation", pa.int32()),
                    ("protocol", pa.string()),
                    ("leader", pa.string()),
                    ("state_timestamp", when),
                    ("members", pa.list_(pa.struct(member))),
                ]
            ),
        ),
        skipped,
    )


def transaction_state(table: RecordTable) -> TransactionStates:
    """Decode records of ``__transaction_state`` (DSK-R16).

    Parameters
    ----------
    table : RecordTable
        Records of control batches are skipped.

    Returns
    -------
    TransactionStates
        The value columns of a tombstone are null. Timestamps, producer ids and epochs of -1, and fields that the
        value's version does not have, are null too. ``partitions`` is null if the value's are. Timestamps are
        ``timestamp("ms", UTC)``.

    Raises
    ------
    InvalidRecordError
        If a key is null, or a key or value does not match its schema; with the record's offset. Also if the table is
        from another internal topic.
    UnsupportedFormatError
        If the version of a value is unknown.
    MissingDependencyError
        Without pyarrow.

    References
    ----------
    Rules such as DSK-R16 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> log = kbatch.Log("tests/golden/internal/__transaction_state-0")
    >>> found = [transaction_state(table) for table in log.tables()]
    >>> found[0].transactions["status"].to_pylist()[:3]
    ['Empty', 'Empty', 'Ongoing']
    """
    check_types(transaction_state, locals())
    pa = require("pyarrow", "arrow", "transaction_state()")
    rows: list[dict[str, Any]] = []
    skipped: dict[int, int] = {}
    for row, key, value in internal_records(table, "__transaction_state"):
        with located_errors(table, row, "key"):
            reader = Reader(key)
            kind = reader.int16()
            if kind != _TRANSACTION_KEY:
                skipped[kind] = skipped.get(kind, 0) + 1
                continue
            row["transactional_id"] = reader.string()
            if reader.remaining:
                raise WireError(f"byte {reader.position}: {reader.remaining} trailing bytes")
        row["tombstone"] = value is None
        if value is not None:
            with located_errors(table, row, "TransactionLogValue"):
                row |= _transaction(value)
        rows.append(row)
    when = pa.timestamp("ms", "UTC")
    topic = pa.struct([("topic", pa.string()), ("partitions", pa.list_(pa.int32()))])
    schema = pa.schema(
        [
            ("offset", pa.int64()),
            ("timestamp", when),
            ("transactional_id", pa.string()),
            ("tombstone", pa.bool_()),
            ("version", pa.int16()),
            ("producer_id", pa.int64()),
            ("producer_epoch", pa.int16()),
            ("timeout", pa.int32()),
            ("status", pa.string()),
            ("partitions", pa.list_(topic)),
            ("last_update", when),
            ("start", when),
            ("previous_producer_id", pa.int64()),
            ("next_producer_id", pa.int64()),
            ("next_producer_epoch", pa.int16()),
            ("client_transaction_version", pa.int16()),
        ]
    )
    return TransactionStates(pa.Table.from_pylist(rows, schema), skipped)


def metadata_records(table: RecordTable) -> pa.Table:
    """Decode the frames of ``__cluster_metadata`` records, or of records of its snapshots (DSK-R17).

    Parameters
    ----------
    table : RecordTable
        Records of control batches are skipped; `kbatch.log.control.control_value` decodes them.

    Returns
    -------
    pyarrow.Table
        ``offset, timestamp, frame_version, api_key, record_type, version, message``. ``record_type`` is the name of the
        schema, such as ``"TopicRecord"``, or null for an unknown api key; ``version`` is the version of the schema;
        ``message`` has the bytes after the frame, in Kafka's flexible encoding.

    Raises
    ------
    InvalidRecordError
        If a value is null or ends within its frame; with the record's offset. Also if the table is from another
        internal topic.
    UnsupportedFormatError
        If the frame version isn't 1. Version 0 was a preview in Kafka 2.8.
    MissingDependencyError
        Without pyarrow.

    References
    ----------
    Rules such as DSK-R17 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> log = kbatch.Log("tests/golden/internal/__cluster_metadata-0")
    >>> found = [metadata_records(table) for table in log.tables()]
    >>> found[0]["record_type"].to_pylist()[:2]
    ['FeatureLevelRecord', 'TopicRecord']
    """
    check_types(metadata_records, locals())
    pa = require("pyarrow", "arrow", "metadata_records()")
    rows: list[dict[str, Any]] = []
    for row, _, value in internal_records(table, "__cluster_metadata", keys=False):
        with located_errors(table, row, "metadata record"):
            if value is None:
                raise WireError("value is null")
            reader = Reader(value)
            frame = reader.uvarint()
            if frame != FRAME_VERSION:
                raise unknown_version(frame, "frame", f"supported is {FRAME_VERSION}")
            key, version = _uint15(reader), _uint15(reader)
        row |= {
            "frame_version": frame,
            "api_key": key,
            "record_type": _METADATA_RECORDS.get(key),
            "version": version,
            "message": reader.take(reader.remaining),
        }
        rows.append(row)
    schema = pa.schema(
        [
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", "UTC")),
            ("frame_version", pa.int16()),
            ("api_key", pa.int16()),
            ("record_type", pa.string()),
            ("version", pa.int16()),
            ("message", pa.binary()),
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def internal_records(
    table: RecordTable, topic: str, *, keys: bool = True
) -> Iterator[tuple[dict[str, Any], bytes, bytes | None]]:
    """Yield the first columns, the key and the value of each record outside control batches."""
    if table.topic in INTERNAL_TOPICS and table.topic != topic:
        raise InvalidRecordError(
            f"{table.source}: these are records of {table.topic}, this function reads records of {topic}",
            source=table.source,
        )
    table.require("offset", "timestamp", "key", "value")
    control = table.batches["attributes"][table.records["batch"]] & ATTRIBUTE_CONTROL != 0
    data = table[~control] if np.any(control) else table
    offsets, timestamps = data.records["offset"].tolist(), data.records["timestamp"].tolist()
    for offset, timestamp, key, value in zip(offsets, timestamps, data.keys(), data.values(), strict=True):
        if keys and key is None:
            raise InvalidRecordError(f"{_where(table, offset)}key is null", source=table.source)
        yield {"offset": offset, "timestamp": _none_if(timestamp)}, key or b"", value


def _where(table: RecordTable, offset: int) -> str:
    return f"{table.source}, offset {offset}: " if table.source else f"offset {offset}: "


@contextlib.contextmanager
def located_errors(table: RecordTable, row: dict[str, Any], schema: str) -> Iterator[None]:
    """Add the record's offset and the schema to errors raised in the block."""
    try:
        yield
    except (WireError, ProtocolError) as error:
        raise InvalidRecordError(f"{_where(table, row['offset'])}{schema}, {error}", source=table.source) from None
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(f"{_where(table, row['offset'])}{schema}, {error}", source=table.source) from None


def _value(value: bytes, known: int, flexible: int) -> tuple[Reader, int]:
    reader = Reader(value)
    version = reader.int16()
    if version < 0:
        raise WireError(f"byte 0: version is {version}")
    if version > known:
        raise unknown_version(version, "schema", f"supported are 0 to {known}")
    reader.flexible = version >= flexible
    return reader, version


def _uint15(reader: Reader) -> int:
    position = reader.position
    value = reader.uvarint()
    if value > 0x7FFF:
        raise WireError(f"byte {position}: {value} has more than 15 bits")
    return value


def _none_if(value: int, none: int = -1) -> int | None:
    return None if value == none else value


def _offset_commit(value: bytes) -> dict[str, Any]:
    reader, version = _value(value, _OFFSET_COMMIT_KNOWN, _OFFSET_COMMIT_FLEXIBLE)
    row: dict[str, Any] = {"version": version, "committed_offset": reader.int64()}
    if version >= 3:
        row["leader_epoch"] = _none_if(reader.int32())
    row["metadata"] = reader.string()
    row["commit_timestamp"] = _none_if(reader.int64())
    if version == 1:
        row["expire_timestamp"] = _none_if(reader.int64())
    topic_id = reader.tags({0: lambda field: field.take(16)}).get(0, _NO_UUID)
    row["topic_id"] = topic_id if topic_id != _NO_UUID else None
    return row


def _group_metadata(value: bytes) -> dict[str, Any]:
    reader, version = _value(value, _GROUP_METADATA_KNOWN, _GROUP_METADATA_FLEXIBLE)

    def member() -> dict[str, Any]:
        fields: dict[str, Any] = {"member_id": reader.string()}
        if version >= 3:
            fields["group_instance_id"] = reader.nullable_string()
        fields["client_id"] = reader.string()
        fields["client_host"] = reader.string()
        if version >= 1:
            fields["rebalance_timeout"] = reader.int32()
        fields["session_timeout"] = reader.int32()
        fields["subscription"] = reader.bytes_()
        fields["assignment"] = reader.bytes_()
        reader.tags()
        return fields

    row: dict[str, Any] = {
        "version": version,
        "protocol_type": reader.string(),
        "generation": reader.int32(),
        "protocol": reader.nullable_string(),
        "leader": reader.nullable_string(),
    }
    if version >= 2:
        row["state_timestamp"] = _none_if(reader.int64())
    row["members"] = reader.array(member, min_size=_MIN_MEMBER)
    reader.tags()
    return row


def _transaction(value: bytes) -> dict[str, Any]:
    reader, version = _value(value, _TRANSACTION_KNOWN, _TRANSACTION_FLEXIBLE)

    def topic() -> dict[str, Any]:
        fields = {"topic": reader.string(), "partitions": reader.array(reader.int32, min_size=_MIN_PARTITION)}
        reader.tags()
        return fields

    row: dict[str, Any] = {
        "version": version,
        "producer_id": _none_if(reader.int64()),
        "producer_epoch": _none_if(reader.int16()),
        "timeout": reader.int32(),
    }
    status = reader.int8()
    row["status"] = _STATES.get(status, f"Unknown ({status})")
    row["partitions"] = reader.nullable_array(topic, min_size=_MIN_TOPIC)
    row["last_update"] = _none_if(reader.int64())
    row["start"] = _none_if(reader.int64())
    tags = reader.tags({0: Reader.int64, 1: Reader.int64, 2: Reader.int16, 3: Reader.int16})
    row["previous_producer_id"] = _none_if(tags.get(0, -1))
    row["next_producer_id"] = _none_if(tags.get(1, -1))
    row["client_transaction_version"] = tags.get(2, 0) if version >= _TRANSACTION_FLEXIBLE else None
    row["next_producer_epoch"] = _none_if(tags.get(3, -1))
    return row
