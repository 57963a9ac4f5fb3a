"""Schemas of Kafka's messages, read from the tables in `kbatch.protocol.schemas`.

A message is a line ``Name: API key 1, versions 0-18, flexible 12+``, or ``record type 3`` instead of the API key for a
key or value that Kafka stores in an internal topic, and a table with one row per field, in wire order;
fields of a structure follow it, indented by two spaces. Columns are separated by two or more spaces, and a table has
only the columns that one of its rows fills:

field
    Name of the field.
type
    ``bool``, ``int8``, ``int16``, ``uint16``, ``int32``, ``uint32``, ``int64``, ``float64``, ``uuid``, ``string``,
    ``bytes``, ``records``, a structure, or ``[]`` and the type of an array's elements. ``old_string`` is a string
    whose length is an int16 in flexible versions too.
versions
    Versions that have the field: ``3``, ``0-12``, or ``12+``.
null
    Versions in which the field can be null.
tag
    Number of a tagged field.
default
    Default, if it is not the type's: 0, false, "", no bytes, an empty array, a structure of defaults, and for
    records null.
skip
    ``yes`` if a value is dropped when a version without the field is written; otherwise it is an error.
meaning
    The purpose of the field; long texts continue in the lines below.
"""

from __future__ import annotations

import functools
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kbatch.protocol.schemas.accounts import ACCOUNTS_TABLES
from kbatch.protocol.schemas.acls import ACLS_TABLES
from kbatch.protocol.schemas.admin import ADMIN_TABLES
from kbatch.protocol.schemas.configs import CONFIGS_TABLES
from kbatch.protocol.schemas.connection import CONNECTION_TABLES
from kbatch.protocol.schemas.control_records import CONTROL_RECORDS_TABLES
from kbatch.protocol.schemas.groups import GROUPS_TABLES
from kbatch.protocol.schemas.metadata import METADATA_TABLES
from kbatch.protocol.schemas.offsets import OFFSETS_TABLES
from kbatch.protocol.schemas.producers import PRODUCERS_TABLES
from kbatch.protocol.schemas.records import RECORDS_TABLES
from kbatch.protocol.schemas.replicas import REPLICAS_TABLES
from kbatch.protocol.schemas.share_groups import SHARE_GROUPS_TABLES
from kbatch.protocol.schemas.stored_cluster import STORED_CLUSTER_TABLES
from kbatch.protocol.schemas.stored_groups import STORED_GROUPS_TABLES
from kbatch.protocol.schemas.stored_members import STORED_MEMBERS_TABLES
from kbatch.protocol.schemas.stored_offsets import STORED_OFFSETS_TABLES
from kbatch.protocol.schemas.stored_segments import STORED_SEGMENTS_TABLES
from kbatch.protocol.schemas.stored_share_states import STORED_SHARE_STATES_TABLES
from kbatch.protocol.schemas.stored_streams_groups import STORED_STREAMS_GROUPS_TABLES
from kbatch.protocol.schemas.streams_groups import STREAMS_GROUPS_TABLES
from kbatch.protocol.schemas.transactions import TRANSACTIONS_TABLES

__all__ = ["PROTOCOL_MESSAGES", "FieldSchema", "MessageSchema", "message_schemas"]

TABLES = (
    CONNECTION_TABLES,
    METADATA_TABLES,
    RECORDS_TABLES,
    OFFSETS_TABLES,
    TRANSACTIONS_TABLES,
    GROUPS_TABLES,
    SHARE_GROUPS_TABLES,
    STREAMS_GROUPS_TABLES,
    ADMIN_TABLES,
    CONFIGS_TABLES,
    REPLICAS_TABLES,
    PRODUCERS_TABLES,
    ACLS_TABLES,
    ACCOUNTS_TABLES,
)
STORED_TABLES = (
    STORED_OFFSETS_TABLES,
    STORED_GROUPS_TABLES,
    STORED_MEMBERS_TABLES,
    STORED_STREAMS_GROUPS_TABLES,
    STORED_SHARE_STATES_TABLES,
    STORED_SEGMENTS_TABLES,
    STORED_CLUSTER_TABLES,
    CONTROL_RECORDS_TABLES,
)
_TITLE = re.compile(r"(\w+): (?:(?:API key|record type) (\d+), )?versions (\S+), flexible (\S+)")
_ZEROS: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "uuid": uuid.UUID(int=0),
    "string": "",
    "old_string": "",
    "bytes": b"",
    "records": None,
}
# Above every version of a message.
_OPEN_END = 1 << 15


class FieldSchema(NamedTuple):
    """A row of a table.

    Attributes
    ----------
    name, type, meaning : str
    versions, nullable : range
    tag : int or None
    default : object
        Value, ``()`` for an empty array, or ``...`` for a structure of defaults.
    droppable : bool
        Whether a value is dropped when a version without the field is written.
    fields : tuple of FieldSchema
        Fields of a structure, or of the structures in an array.
    """

    name: str
    type: str
    versions: range
    nullable: range
    tag: int | None
    default: Any
    droppable: bool
    meaning: str
    fields: tuple[FieldSchema, ...]

    @property
    def element(self) -> str:
        """Type of the elements of an array, or the type itself."""
        return self.type.removeprefix("[]")


class MessageSchema(NamedTuple):
    """A table.

    Attributes
    ----------
    name : str
    api_key : int or None
        None for the headers and control records; the record type for keys and values in internal topics.
    versions, flexible : range
        All versions, and the versions in the flexible encoding of KIP-482.
    fields : tuple of FieldSchema
    """

    name: str
    api_key: int | None
    versions: range
    flexible: range
    fields: tuple[FieldSchema, ...]

    def __repr__(self) -> str:
        names = ", ".join(field.name for field in self.fields)
        return f"MessageSchema({self.name}, API key {self.api_key}, versions {self.versions}, fields {names})"


def _versions(text: str) -> range:
    if text in ("none", "-"):
        return range(0)
    first, _, last = text.removesuffix("+").partition("-")
    return range(int(first), _OPEN_END if text.endswith("+") else int(last or first) + 1)


def _parsed_default(text: str, kind: str, is_structure: bool) -> Any:
    if text == "null":
        return None
    if kind.startswith("[]"):
        return ()
    if is_structure:
        return ...
    zero = _ZEROS.get(kind, 0)
    if text == "-":
        return zero
    return text == "true" if kind == "bool" else type(zero)(text)


def _rows(lines: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the level and the cells of each row; continued meanings are joined."""
    names = lines[0].split()
    indent = lines[0].index(names[-1])
    joined: list[str] = []
    for line in lines[1:]:
        if line.startswith(" " * indent):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    for line in joined:
        cells = re.split(r"\s{2,}", line.strip(), maxsplit=len(names) - 1)
        yield (len(line) - len(line.lstrip())) // 2, dict(zip(names, cells, strict=True))


def _field_rows(rows: list[tuple[int, dict[str, str]]], level: int) -> tuple[FieldSchema, ...]:
    found = []
    starts = [number for number, row in enumerate(rows) if row[0] == level]
    for start, end in itertools.pairwise([*starts, len(rows)]):
        cells = rows[start][1]
        inner = _field_rows(rows[start + 1 : end], level + 1)
        tag = cells.get("tag", "-")
        found.append(
            FieldSchema(
                name=cells["field"],
                type=cells["type"],
                versions=_versions(cells["versions"]),
                nullable=_versions(cells.get("null", "-")),
                tag=None if tag == "-" else int(tag),
                default=_parsed_default(cells.get("default", "-"), cells["type"], bool(inner)),
                droppable=cells.get("skip") == "yes",
                meaning=cells["meaning"],
                fields=inner,
            )
        )
    return tuple(found)


def _message_tables(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the title and the table of each message."""
    for text in texts:
        blocks = text.strip().split("\n\n")
        yield from zip(blocks[::2], blocks[1::2], strict=True)


# Names of requests, responses and their headers.
PROTOCOL_MESSAGES = [title.partition(":")[0] for title, _ in _message_tables(TABLES)]


@functools.cache
def message_schemas() -> dict[str, MessageSchema]:
    """Return the schema of every message, by name."""
    found = {}
    for title, table in _message_tables([*TABLES, *STORED_TABLES]):
        match = _TITLE.fullmatch(title)
        assert match is not None, title
        found[match[1]] = MessageSchema(
            name=match[1],
            api_key=None if match[2] is None else int(match[2]),
            versions=_versions(match[3]),
            flexible=_versions(match[4]),
            fields=_field_rows(list(_rows(table.splitlines())), 0),
        )
    return found
