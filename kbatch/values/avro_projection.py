"""The fields of a writer's Avro schema that are needed for some fields of the reader's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kbatch.values.avro_schema import AvroNode, NodeKind

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeptFields", "kept_fields", "pruned_node"]

# By place in a record, the fields to keep of the record that is the field's type; None keeps the whole field.
KeptFields = dict[int, Any]


def kept_fields(writer: AvroNode, reader: AvroNode, kind: pa.DataType) -> KeptFields | None:
    """Return the fields to keep of a writer's schema for the part `kind` of the reader's type.

    Other schemas than records are kept whole, also within records.
    """
    writer, reader = _without_null(writer), _without_null(reader)
    if writer.kind != NodeKind.RECORD or reader.kind != NodeKind.RECORD:
        return None
    kept: KeptFields = {}
    for name, aliases, child in zip(reader.names, reader.aliases, reader.children, strict=True):
        index = kind.get_field_index(name)
        place = next((writer.names[each] for each in (name, *aliases) if each in writer.names), None)
        if index < 0 or place is None:
            continue
        part = kept_fields(writer.children[place], child, kind.field(index).type)
        # Two fields of the reader may have the same field of the writer.
        kept[place] = _union(kept[place], part) if place in kept else part
    return kept


def pruned_node(pa: Any, node: AvroNode, kept: KeptFields | None) -> AvroNode:
    """Return a node with the fields that are kept, and the type of their columns."""
    if kept is None:
        return node
    if node.kind == NodeKind.NULLABLE:
        child = pruned_node(pa, node.children[0], kept)
        return replace(node, type=child.type, children=[child])
    names = [name for name, place in node.names.items() if place in kept]
    places = [node.names[name] for name in names]
    children = [pruned_node(pa, node.children[place], kept[place]) for place in places]
    return replace(
        node,
        type=pa.struct(list(zip(names, (child.type for child in children), strict=True))),
        children=children,
        names={name: number for number, name in enumerate(names)},
        aliases=[node.aliases[place] for place in places],
        defaults=[node.defaults[place] for place in places],
    )


def _without_null(node: AvroNode) -> AvroNode:
    while node.kind == NodeKind.NULLABLE:
        node = node.children[0]
    return node


def _union(one: KeptFields | None, other: KeptFields | None) -> KeptFields | None:
    if one is None or other is None:
        return None
    both = dict(one)
    for place, part in other.items():
        both[place] = _union(both[place], part) if place in both else part
    return both
