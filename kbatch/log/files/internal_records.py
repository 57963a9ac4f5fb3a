"""Which records an internal topic has, and the messages in them as the columns of Arrow tables."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kbatch.errors import InvalidRecordError, KbatchError, ProtocolError, UnsupportedFormatError
from kbatch.format import ATTRIBUTE_CONTROL, NO_TIMESTAMP
from kbatch.log.store.names import INTERNAL_TOPICS
from kbatch.protocol.messages import Message
from kbatch.protocol.schema import FieldSchema, message_schemas
from kbatch.protocol.stored import decode_after_version, decode_key, leading_number, unknown_version
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FRAME_VERSION",
    "RecordKind",
    "framed_message",
    "framed_tables",
    "internal_records",
    "keyed_tables",
    "located",
    "record_kinds",
    "timestamps",
]

FRAME_VERSION = 1
_TIMESTAMP = re.compile(r"(^|_)timestamp(_ms)?$")


class RecordKind(NamedTuple):
    """A kind of record, and how its table differs from the schemas of its key and value.

    Attributes
    ----------
    name : str
        Kafka's name, to which those of the schemas of a key and its value add ``Key`` and ``Value``.
    names : mapping
        Names of columns by the names of fields.
    nulls : mapping
        Values that mean null, by the names of fields. -1 always does in a timestamp.
    whole_keys : bool
        Whether a key must end with its fields.
    """

    name: str
    names: Mapping[str, str] = {}
    nulls: Mapping[str, Any] = {}
    whole_keys: bool = True


class _DecodedRecord(NamedTuple):
    """A decoded record. The version and the value of a tombstone are None."""

    offset: int
    timestamp: int
    key: Message | None
    version: int | None
    value: Message | None


def record_kinds(*prefixes: str) -> dict[int, RecordKind]:
    """Return the kinds whose schemas have these prefixes, by record type."""
    return {
        schema.api_key: RecordKind(name.removesuffix("Value"))
        for name, schema in message_schemas().items()
        if name.startswith(prefixes) and name.endswith(("Value", "Record")) and schema.api_key is not None
    }


def internal_records(
    table: RecordTable, topic: str, *, keys: bool = True
) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    """Yield offset, timestamp, key and value of each record outside control batches."""
    if table.topic in INTERNAL_TOPICS and table.topic != topic:
        raise InvalidRecordError(
            f"{table.source}: these are records of {table.topic}, this function reads records of {topic}",
            source=table.source,
        )
    table.require("offset", "timestamp", "key", "value")
    control = table.batches["attributes"][table.records["batch"]] & ATTRIBUTE_CONTROL != 0
    data = table[~control] if np.any(control) else table
    offsets, times = data.records["offset"].tolist(), data.records["timestamp"].tolist()
    for offset, timestamp, key, value in zip(offsets, times, data.keys(), data.values(), strict=True):
        if keys and key is None:
            raise InvalidRecordError(f"{_where(table, offset)}key is null", source=table.source)
        yield offset, timestamp, key or b"", value


def _where(table: RecordTable, offset: int) -> str:
    return f"{table.source}, offset {offset}: " if table.source else f"offset {offset}: "


def located(table: RecordTable, offset: int, part: str, error: KbatchError) -> KbatchError:
    """Return an error of the bytes of a record with the record's offset and the part that they are."""
    kind = UnsupportedFormatError if isinstance(error, UnsupportedFormatError) else InvalidRecordError
    return kind(f"{_where(table, offset)}{part}, {error}", source=table.source)


def framed_message(value: bytes | None) -> tuple[int, int, bytes]:
    """Return the record type of a value in a frame, the position after it, and the value (DSK-R17)."""
    if value is None:
        raise ProtocolError("value is null")
    frame, position = leading_number(value, 0, varint=True)
    if frame != FRAME_VERSION:
        raise unknown_version(frame, "frame", f"supported is {FRAME_VERSION}")
    return *leading_number(value, position, varint=True), value


def keyed_tables(
    pa: Any, table: RecordTable, topic: str, kinds: Mapping[int, RecordKind]
) -> tuple[dict[str, pa.Table], dict[int, int]]:
    """Return a table for each kind of record, by name, and the number of records of each other record type.

    The key begins with the record type, and the value with its version.
    """
    found: dict[str, list[_DecodedRecord]] = {kind.name: [] for kind in kinds.values()}
    skipped: dict[int, int] = {}
    for offset, timestamp, data, value in internal_records(table, topic):
        part, version, message = "key", None, None
        try:
            number, position = leading_number(data, 0, varint=False)
            if number not in kinds:
                skipped[number] = skipped.get(number, 0) + 1
                continue
            name = kinds[number].name
            key = decode_key(f"{name}Key", data, position, whole=kinds[number].whole_keys)
            part = f"{name}Value"
            if value is not None:
                version, message = decode_after_version(part, value, 0)
        except (ProtocolError, UnsupportedFormatError) as error:
            raise located(table, offset, part, error) from None
        found[name].append(_DecodedRecord(offset, timestamp, key, version, message))
    tables = {
        kind.name: _arrow_table(pa, kind, found[kind.name], f"{kind.name}Key", f"{kind.name}Value")
        for kind in kinds.values()
    }
    return tables, skipped


def framed_tables(
    pa: Any, table: RecordTable, topic: str, kinds: Mapping[int, RecordKind], part: str
) -> tuple[dict[str, pa.Table], dict[int, int]]:
    """Return what `keyed_tables` does, of a topic without keys whose values have a frame; `part` names these."""
    found: dict[str, list[_DecodedRecord]] = {kind.name: [] for kind in kinds.values()}
    skipped: dict[int, int] = {}
    for offset, timestamp, _, value in internal_records(table, topic, keys=False):
        try:
            number, position, data = framed_message(value)
            if number not in kinds:
                skipped[number] = skipped.get(number, 0) + 1
                continue
            name = kinds[number].name
            version, message = decode_after_version(name, data, position, varint=True)
        except (ProtocolError, UnsupportedFormatError) as error:
            raise located(table, offset, part, error) from None
        found[name].append(_DecodedRecord(offset, timestamp, None, version, message))
    return {kind.name: _arrow_table(pa, kind, found[kind.name], None, kind.name) for kind in kinds.values()}, skipped


def timestamps(pa: Any, values: Sequence[int]) -> pa.Array:
    """Return the timestamps of records as an array, with null for -1."""
    return pa.array([None if value == NO_TIMESTAMP else value for value in values], pa.timestamp("ms", "UTC"))


def _arrow_table(pa: Any, kind: RecordKind, records: list[_DecodedRecord], key: str | None, value: str) -> pa.Table:
    """Return the records with the fields of the schemas of their keys and values."""
    versions = [record.version for record in records]
    columns = [
        ("offset", pa.array([record.offset for record in records], pa.int64())),
        ("timestamp", timestamps(pa, [record.timestamp for record in records])),
    ]
    if key is not None:
        columns += _field_columns(pa, kind, key, [record.key for record in records], [0] * len(records))
        columns.append(("tombstone", pa.array([version is None for version in versions], pa.bool_())))
    columns.append(("version", pa.array(versions, pa.int16())))
    columns += _field_columns(pa, kind, value, [record.value for record in records], versions)
    return pa.table([column for _, column in columns], names=[name for name, _ in columns])


def _field_columns(
    pa: Any, kind: RecordKind, schema: str, messages: Sequence[Message | None], versions: Sequence[int | None]
) -> Iterator[tuple[str, pa.Array]]:
    for field in message_schemas()[schema].fields:
        cells = _field_cells(kind, field, messages, versions)
        yield kind.names.get(field.name, field.name), pa.array(cells, _arrow_type(pa, kind, field))


def _field_cells(
    kind: RecordKind, field: FieldSchema, messages: Sequence[Message | None], versions: Sequence[int | None]
) -> list[Any]:
    """Return a field of messages of these versions as Arrow takes it, None where a version does not have it."""
    known = {version for version in set(versions) if version is not None and version in field.versions}
    get = operator.attrgetter(field.name)
    cells = [get(message) if version in known else None for message, version in zip(messages, versions, strict=True)]
    if field.fields:
        return [_nested(kind, field, cell, version) for cell, version in zip(cells, versions, strict=True)]
    null = kind.nulls.get(field.name, NO_TIMESTAMP if _is_timestamp(field) else None)
    if null is not None:
        cells = [None if cell == null else cell for cell in cells]
    return [_uuid_bytes(cell) for cell in cells] if field.element == "uuid" else cells


def _uuid_bytes(value: Any) -> Any:
    """Return an id as bytes, or an array of ids as a list of them."""
    if isinstance(value, list):
        return [each.bytes for each in value]
    return None if value is None else value.bytes


def _nested(kind: RecordKind, field: FieldSchema, value: Any, version: int | None) -> Any:
    """Return a structure as a dict, or an array of structures as a list of them."""
    if isinstance(value, list):
        return [_nested(kind, field, each, version) for each in value]
    if value is None:
        return None
    return {
        kind.names.get(each.name, each.name): _field_cells(kind, each, [value], [version])[0] for each in field.fields
    }


def _is_timestamp(field: FieldSchema) -> bool:
    return field.type == "int64" and _TIMESTAMP.search(field.name) is not None


def _arrow_type(pa: Any, kind: RecordKind, field: FieldSchema) -> Any:
    if field.fields:
        found = pa.struct(
            [(kind.names.get(each.name, each.name), _arrow_type(pa, kind, each)) for each in field.fields]
        )
    elif _is_timestamp(field):
        found = pa.timestamp("ms", "UTC")
    else:
        others = {"bool": pa.bool_(), "bytes": pa.binary(), "uuid": pa.binary(16)}
        found = others[field.element] if field.element in others else pa.type_for_alias(field.element)
    return pa.list_(found) if field.type.startswith("[]") else found
