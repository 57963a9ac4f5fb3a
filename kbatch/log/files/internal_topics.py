"""The records of Kafka's internal topics as Arrow tables.

Most of these topics are compacted: a later record with the same key, or a tombstone, replaces an earlier one. The
functions here return every record of a table; only the last one of each key is current.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from kbatch.arguments import check_types
from kbatch.errors import ProtocolError, UnsupportedFormatError
from kbatch.extras import require
from kbatch.log.files.internal_records import (
    FRAME_VERSION,
    RecordKind,
    framed_message,
    framed_tables,
    internal_records,
    keyed_tables,
    located,
    record_kinds,
    timestamps,
)
from kbatch.protocol.schema import message_schemas
from kbatch.protocol.stored import leading_number
from kbatch.public_names import public_in
from kbatch.records.display import short_repr
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ConsumerOffsets",
    "StoredRecords",
    "TransactionStates",
    "cluster_metadata",
    "consumer_offsets",
    "group_records",
    "metadata_records",
    "remote_log_metadata",
    "share_group_state",
    "transaction_state",
]

_OFFSET_COMMIT = RecordKind(
    "OffsetCommit",
    names={"offset": "committed_offset"},
    nulls={"leader_epoch": -1, "topic_id": uuid.UUID(int=0)},
    whole_keys=False,
)
_GROUP_METADATA = RecordKind("GroupMetadata", names={"current_state_timestamp": "state_timestamp"}, whole_keys=False)
_TRANSACTION = RecordKind(
    "TransactionLog",
    names={
        "transaction_timeout_ms": "timeout",
        "transaction_status": "status",
        "transaction_partitions": "partitions",
        "partition_ids": "partitions",
        "transaction_last_update_timestamp_ms": "last_update",
        "transaction_start_timestamp_ms": "start",
    },
    nulls=dict.fromkeys(
        ("producer_id", "previous_producer_id", "next_producer_id", "producer_epoch", "next_producer_epoch"), -1
    ),
)
_TRANSACTION_COLUMNS = [
    "offset",
    "timestamp",
    "transactional_id",
    "tombstone",
    "version",
    "producer_id",
    "producer_epoch",
    "timeout",
    "status",
    "partitions",
    "last_update",
    "start",
    "previous_producer_id",
    "next_producer_id",
    "next_producer_epoch",
    "client_transaction_version",
]

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
# Values of fields that a record does not change.
_UNCHANGED = {
    "PartitionChangeRecord": {"leader": -2, "leader_recovery_state": -1},
    "BrokerRegistrationChangeRecord": {"fenced": 0, "in_controlled_shutdown": 0},
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


class StoredRecords(NamedTuple):
    """The contents of the records of an internal topic.

    Attributes
    ----------
    tables : dict of str to pyarrow.Table
        A table for each kind of record, by Kafka's name of it, without rows if there are no such records. Columns are
        the ``offset`` and ``timestamp`` of the record; for a topic with keys the fields of the key, and ``tombstone``;
        ``version``; and the fields of the value. Ids are the 16 bytes of a UUID.
    skipped : dict
        Number of records by each other record type.
    """

    tables: dict[str, pa.Table]
    skipped: dict[int, int]

    def __repr__(self) -> str:
        return short_repr(self, self._fields)


@public_in("kbatch.log")
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
    # The first brokers that stored commits wrote type 0, with the fields of type 1.
    kinds = {0: _OFFSET_COMMIT, 1: _OFFSET_COMMIT, 2: _GROUP_METADATA}
    tables, skipped = keyed_tables(pa, table, "__consumer_offsets", kinds)
    return ConsumerOffsets(tables["OffsetCommit"], tables["GroupMetadata"], skipped)


@public_in("kbatch.log")
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
    tables, skipped = keyed_tables(pa, table, "__transaction_state", {0: _TRANSACTION})
    found = tables["TransactionLog"].select(_TRANSACTION_COLUMNS)
    states = [
        None if state is None else _STATES.get(state, f"Unknown ({state})") for state in found["status"].to_pylist()
    ]
    position = _TRANSACTION_COLUMNS.index("status")
    return TransactionStates(found.set_column(position, "status", pa.array(states, pa.string())), skipped)


@public_in("kbatch.log")
def metadata_records(table: RecordTable) -> pa.Table:
    """Decode the frames of ``__cluster_metadata`` records, or of records of its snapshots (DSK-R17).

    Parameters
    ----------
    table : RecordTable
        Records of control batches are skipped; `kbatch.log.control_value` decodes them.

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
    rows = []
    for offset, timestamp, _, value in internal_records(table, "__cluster_metadata", keys=False):
        try:
            key, position, message = framed_message(value)
            version, position = leading_number(message, position, varint=True)
        except (ProtocolError, UnsupportedFormatError) as error:
            raise located(table, offset, "metadata record", error) from None
        rows.append((offset, timestamp, FRAME_VERSION, key, _METADATA_RECORDS.get(key), version, message[position:]))
    offsets, times, *others = zip(*rows, strict=True) if rows else ([],) * 7
    types = {
        "frame_version": pa.int16(),
        "api_key": pa.int16(),
        "record_type": pa.string(),
        "version": pa.int16(),
        "message": pa.binary(),
    }
    columns = {"offset": pa.array(offsets, pa.int64()), "timestamp": timestamps(pa, times)}
    return pa.table(columns | {name: pa.array(cells, types[name]) for name, cells in zip(types, others, strict=True)})


@public_in("kbatch.log")
def cluster_metadata(table: RecordTable) -> StoredRecords:
    """Decode the records of ``__cluster_metadata`` about brokers, topics, partitions, settings and features (DSK-R17).

    Parameters
    ----------
    table : RecordTable
        Of the log, or of a ``.checkpoint`` file, which is a snapshot of the records before the offset in its name.
        Records of control batches are skipped.

    Returns
    -------
    StoredRecords
        Tables ``TopicRecord``, ``PartitionRecord``, ``PartitionChangeRecord``, ``RemoveTopicRecord``,
        ``RegisterBrokerRecord``, ``ConfigRecord`` and so on. Fields that a change does not set are null. Ids have the
        16 bytes of a UUID. Records about quotas, users, ACLs, delegation tokens and controllers are skipped;
        `metadata_records` returns the frames of all records.

    Raises
    ------
    InvalidRecordError
        If a value is null or does not match its schema; with the record's offset. Also if the table is from another
        internal topic.
    UnsupportedFormatError
        If the version of a frame or of a value is unknown.
    MissingDependencyError
        Without pyarrow.

    References
    ----------
    Rules such as DSK-R17 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.log import cluster_metadata
    >>> (table,) = kbatch.Log("tests/golden/internal/__cluster_metadata-0").tables()
    >>> partitions = cluster_metadata(table).tables["PartitionRecord"]
    >>> partitions.select(["partition_id", "leader", "isr"]).to_pylist()
    [{'partition_id': 3, 'leader': 1, 'isr': [1]}]
    """
    check_types(cluster_metadata, locals())
    pa = require("pyarrow", "arrow", "cluster_metadata()")
    kinds = {
        number: RecordKind(name, nulls=_UNCHANGED.get(name, {}))
        for number, name in _METADATA_RECORDS.items()
        if name in message_schemas()
    }
    return StoredRecords(*framed_tables(pa, table, "__cluster_metadata", kinds, "metadata record"))


@public_in("kbatch.log")
def group_records(table: RecordTable) -> StoredRecords:
    """Decode records of ``__consumer_offsets`` that are of the group protocols since Kafka 4 (DSK-R15).

    Parameters
    ----------
    table : RecordTable
        Records of control batches are skipped.

    Returns
    -------
    StoredRecords
        Tables ``ConsumerGroupMetadata``, ``ConsumerGroupMemberMetadata``, ``ShareGroupMetadata``,
        ``StreamsGroupTopology`` and so on, for record types 3 to 23. The value columns of a tombstone are null, and so
        are timestamps of -1. `consumer_offsets` decodes the types below 3, which are skipped here.

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
    >>> found = [group_records(table) for table in log.tables()]
    >>> found[0].tables["ConsumerGroupMetadata"].select(["group_id", "epoch"]).to_pylist()
    [{'group_id': 'new-protocol', 'epoch': 3}]
    """
    check_types(group_records, locals())
    pa = require("pyarrow", "arrow", "group_records()")
    kinds = record_kinds("ConsumerGroup", "ShareGroup", "StreamsGroup")
    return StoredRecords(*keyed_tables(pa, table, "__consumer_offsets", kinds))


@public_in("kbatch.log")
def share_group_state(table: RecordTable) -> StoredRecords:
    """Decode records of ``__share_group_state``.

    Parameters
    ----------
    table : RecordTable
        Records of control batches are skipped.

    Returns
    -------
    StoredRecords
        Tables ``ShareSnapshot`` and ``ShareUpdate``. The value columns of a tombstone are null, and so are timestamps
        of -1.

    Raises
    ------
    InvalidRecordError
        If a key is null, or a key or value does not match its schema; with the record's offset. Also if the table is
        from another internal topic.
    UnsupportedFormatError
        If the version of a value is unknown.
    MissingDependencyError
        Without pyarrow.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.log import share_group_state
    >>> list(share_group_state(kbatch.decode(b"")).tables)
    ['ShareSnapshot', 'ShareUpdate']
    """
    check_types(share_group_state, locals())
    pa = require("pyarrow", "arrow", "share_group_state()")
    kinds = record_kinds("ShareSnapshot", "ShareUpdate")
    return StoredRecords(*keyed_tables(pa, table, "__share_group_state", kinds))


@public_in("kbatch.log")
def remote_log_metadata(table: RecordTable) -> StoredRecords:
    """Decode records of ``__remote_log_metadata``, the events of tiered storage.

    Parameters
    ----------
    table : RecordTable
        Records of control batches are skipped.

    Returns
    -------
    StoredRecords
        Tables ``RemoteLogSegmentMetadataRecord``, ``RemoteLogSegmentMetadataUpdateRecord``,
        ``RemotePartitionDeleteMetadataRecord`` and ``RemoteLogSegmentMetadataSnapshotRecord``. Timestamps of -1 are
        null.

    Raises
    ------
    InvalidRecordError
        If a value is null or does not match its schema; with the record's offset. Also if the table is from another
        internal topic.
    UnsupportedFormatError
        If the version of a value is unknown.
    MissingDependencyError
        Without pyarrow.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.log import remote_log_metadata
    >>> list(remote_log_metadata(kbatch.decode(b"")).tables)[:2]
    ['RemoteLogSegmentMetadataRecord', 'RemoteLogSegmentMetadataUpdateRecord']
    """
    check_types(remote_log_metadata, locals())
    pa = require("pyarrow", "arrow", "remote_log_metadata()")
    return StoredRecords(
        *framed_tables(pa, table, "__remote_log_metadata", record_kinds("Remote"), "remote log metadata")
    )
