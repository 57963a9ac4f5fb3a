"""The records of newer internal topics as Arrow tables, whose columns come from the schemas of the messages in them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kbatch.arguments import check_types
from kbatch.errors import ProtocolError
from kbatch.extras import require
from kbatch.format import NO_TIMESTAMP
from kbatch.log.internal import FRAME_VERSION, internal_records, located_errors
from kbatch.protocol.messages import Message
from kbatch.protocol.schema import FieldSchema, message_schemas
from kbatch.protocol.stored import decode_after_version, decode_key, leading_number, unknown_version
from kbatch.records.display import short_repr
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StoredRecords", "group_records", "remote_log_metadata", "share_group_state"]

_TIMESTAMP = re.compile(r"(^|_)timestamp(_ms)?$")


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
    return _keyed(table, "__consumer_offsets", ("ConsumerGroup", "ShareGroup", "StreamsGroup"), "group_records()")


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
    return _keyed(table, "__share_group_state", ("ShareSnapshot", "ShareUpdate"), "share_group_state()")


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
    names = {int(s.api_key or 0): name for name, s in message_schemas().items() if name.startswith("Remote")}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    skipped: dict[int, int] = {}
    for row, _, value in internal_records(table, "__remote_log_metadata", keys=False):
        with located_errors(table, row, "remote log metadata"):
            if value is None:
                raise ProtocolError("value is null")
            frame, position = leading_number(value, 0, varint=True)
            if frame != FRAME_VERSION:
                raise unknown_version(frame, "frame", f"supported is {FRAME_VERSION}")
            kind, position = leading_number(value, position, varint=True)
            if kind not in names:
                skipped[kind] = skipped.get(kind, 0) + 1
                continue
            version, message = decode_after_version(names[kind], value, position, varint=True)
        rows[names[kind]].append(row | {"version": version} | _fields_as_cells(message))
    return StoredRecords({name: _arrow_table(pa, each, None, name) for name, each in rows.items()}, skipped)


def _keyed(table: RecordTable, topic: str, prefixes: tuple[str, ...], caller: str) -> StoredRecords:
    """Decode records whose key begins with the record type, and whose value begins with its version."""
    pa = require("pyarrow", "arrow", caller)
    names = {
        int(schema.api_key or 0): name.removesuffix("Key")
        for name, schema in message_schemas().items()
        if name.startswith(prefixes) and name.endswith("Key")
    }
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    skipped: dict[int, int] = {}
    for row, key, value in internal_records(table, topic):
        with located_errors(table, row, "key"):
            kind, position = leading_number(key, 0, varint=False)
            if kind not in names:
                skipped[kind] = skipped.get(kind, 0) + 1
                continue
            name = names[kind]
            row |= _fields_as_cells(decode_key(f"{name}Key", key, position))
        row["tombstone"] = value is None
        if value is not None:
            with located_errors(table, row, f"{name}Value"):
                version, message = decode_after_version(f"{name}Value", value, 0)
            row |= {"version": version} | _fields_as_cells(message)
        rows[name].append(row)
    return StoredRecords(
        {name: _arrow_table(pa, each, f"{name}Key", f"{name}Value") for name, each in rows.items()}, skipped
    )


def _fields_as_cells(message: Message) -> dict[str, Any]:
    return {field.name: _cell(field, getattr(message, field.name)) for field in message.schema.fields}


def _cell(field: FieldSchema, value: Any) -> Any:
    if isinstance(value, Message):
        return _fields_as_cells(value)
    if isinstance(value, list):
        return [_fields_as_cells(each) if isinstance(each, Message) else _cell(field, each) for each in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    return None if value == NO_TIMESTAMP and _is_timestamp(field) else value


def _is_timestamp(field: FieldSchema) -> bool:
    return field.type == "int64" and _TIMESTAMP.search(field.name) is not None


def _arrow_table(pa: Any, rows: list[dict[str, Any]], key: str | None, value: str) -> pa.Table:
    columns = [("offset", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC"))]
    if key is not None:
        columns += [*_arrow_fields(pa, message_schemas()[key].fields), ("tombstone", pa.bool_())]
    columns += [("version", pa.int16()), *_arrow_fields(pa, message_schemas()[value].fields)]
    return pa.Table.from_pylist(rows, pa.schema(columns))


def _arrow_fields(pa: Any, fields: Iterable[FieldSchema]) -> list[tuple[str, Any]]:
    return [(field.name, _arrow_type(pa, field)) for field in fields]


def _arrow_type(pa: Any, field: FieldSchema) -> Any:
    if field.fields:
        kind = pa.struct(_arrow_fields(pa, field.fields))
    elif _is_timestamp(field):
        kind = pa.timestamp("ms", "UTC")
    else:
        others = {"bool": pa.bool_(), "bytes": pa.binary(), "uuid": pa.binary(16)}
        kind = others[field.element] if field.element in others else pa.type_for_alias(field.element)
    return pa.list_(kind) if field.type.startswith("[]") else kind
