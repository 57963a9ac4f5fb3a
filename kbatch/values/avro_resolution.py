"""Converts values of a writer's Avro schema to the reader's.

Source: the Avro specification 1.12 (schema resolution; default values of fields: in bytes and fixed, the code points 0
to 255 of the text are the bytes).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from kbatch.values.avro_schema import AvroNode, NodeKind
from kbatch.values.memory import MemoryBudget, memory_of_type

__all__ = ["resolved_array"]

# The types of defaults in JSON.
_JSON_TYPES: dict[NodeKind, type] = {
    NodeKind.BOOLEAN: bool,
    NodeKind.STRING: str,
    NodeKind.BYTES: str,
    NodeKind.FIXED: str,
    NodeKind.DECIMAL: str,
    NodeKind.DECIMAL_FIXED: str,
    NodeKind.ENUM: str,
    NodeKind.ARRAY: list,
    NodeKind.MAP: dict,
    NodeKind.RECORD: dict,
}
_JSON_NAMES: dict[type, str] = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}


def resolved_array(
    pa: Any, array: Any, writer: AvroNode, reader: AvroNode, budget: MemoryBudget, where: str = ""
) -> Any:
    """Convert values of the writer's schema to the reader's (the specification's schema resolution)."""
    while writer.kind == NodeKind.NULLABLE:
        writer = writer.children[0]
    while reader.kind == NodeKind.NULLABLE:
        reader = reader.children[0]
    if array.type.equals(reader.type) and writer.kind == reader.kind and set(writer.symbols) <= set(reader.symbols):
        return array
    kinds = (writer.kind, reader.kind)
    if kinds == (NodeKind.RECORD, NodeKind.RECORD):
        children = []
        for i, (name, node) in enumerate(zip(reader.names, reader.children, strict=True)):
            found = next((k for k in (name, *reader.aliases[i]) if k in writer.names), None)
            if found is not None:
                place = writer.names[found]
                child = array.field(place)
                children.append(resolved_array(pa, child, writer.children[place], node, budget, f"{where}.{name}"))
            elif "default" in reader.defaults[i]:
                default = reader.defaults[i]["default"]
                children.append(_default_array(pa, default, node, len(array), budget, f"{where}.{name}"))
            else:
                missing = f"{where}.{name}"[1:]
                raise ValueError(f"field {missing}: missing in the writer's schema, and without a default")
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(reader.type), mask=mask)
    if kinds == (NodeKind.ARRAY, NodeKind.ARRAY) or kinds == (NodeKind.MAP, NodeKind.MAP):
        if kinds[0] == NodeKind.ARRAY:
            inner = resolved_array(pa, array.values, writer.children[0], reader.children[0], budget, where)
        else:
            items = resolved_array(pa, array.items, writer.children[1], reader.children[1], budget, where)
            fields = [reader.type.key_field, reader.type.item_field]
            inner = pa.StructArray.from_arrays([array.keys, items], fields=fields)
        return pa.Array.from_buffers(
            reader.type, len(array), array.buffers()[:2], array.null_count, array.offset, children=[inner]
        )
    wider = {
        NodeKind.INT: (NodeKind.LONG, NodeKind.FLOAT, NodeKind.DOUBLE),
        NodeKind.LONG: (NodeKind.FLOAT, NodeKind.DOUBLE),
        NodeKind.FLOAT: (NodeKind.DOUBLE,),
        NodeKind.STRING: (NodeKind.BYTES,),
        NodeKind.BYTES: (NodeKind.STRING,),
    }
    if reader.kind in wider.get(writer.kind, ()):
        budget.take(2 * len(array) * memory_of_type(reader.type).row)
        return array.cast(reader.type, safe=writer.kind == NodeKind.BYTES)
    if writer.kind == NodeKind.NULL:
        budget.take(len(array) * memory_of_type(reader.type).row)
        return pa.nulls(len(array), reader.type)
    raise ValueError(f"field {where[1:] or '(top level)'}: {array.type} can't be read as {reader.type}")


def _default_array(pa: Any, value: Any, node: AvroNode, n: int, budget: MemoryBudget, where: str) -> Any:
    try:
        one = pa.array([_default_value(value, node)], node.type)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"field {where[1:]}: the default does not match the type: {error}") from None
    budget.take(n * one.nbytes)
    return one.take(pa.array(np.zeros(n, np.int64)))


def _default_value(value: Any, node: AvroNode) -> Any:
    """Return the value of a default as `pyarrow.array` takes it: JSON has no bytes, decimals and unions."""
    kind = node.kind
    expected = _JSON_TYPES.get(kind)
    if expected is not None and not isinstance(value, expected):
        raise ValueError(f"{value!r} is not {_JSON_NAMES[expected]}")
    if kind == NodeKind.NULLABLE:
        return None if value is None else _default_value(value, node.children[0])
    if kind == NodeKind.UNION:
        return _union_value(value, node)
    if kind == NodeKind.RECORD:
        fields = zip(node.names, node.children, node.defaults, strict=True)
        return {name: _default_value(_field_value(value, name, own), child) for name, child, own in fields}
    if kind == NodeKind.ARRAY:
        return [_default_value(item, node.children[0]) for item in value]
    if kind == NodeKind.MAP:
        return [(key, _default_value(item, node.children[1])) for key, item in value.items()]
    if kind in (NodeKind.BYTES, NodeKind.FIXED, NodeKind.DECIMAL, NodeKind.DECIMAL_FIXED):
        return _bytes_value(value, node)
    if kind == NodeKind.ENUM and value not in node.symbols:
        raise ValueError(f"{value!r} is not a symbol of the enum")
    if kind in (NodeKind.INT, NodeKind.LONG) and type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    if kind in (NodeKind.FLOAT, NodeKind.DOUBLE) and type(value) not in (int, float):
        raise ValueError(f"{value!r} is not a number")
    if kind == NodeKind.NULL and value is not None:
        raise ValueError(f"{value!r} is not null")
    return value


def _bytes_value(text: str, node: AvroNode) -> bytes | Decimal:
    content = text.encode("latin-1")
    if node.kind in (NodeKind.FIXED, NodeKind.DECIMAL_FIXED) and len(content) != node.size:
        raise ValueError(f"{len(content)} bytes for a fixed of {node.size}")
    if node.kind in (NodeKind.BYTES, NodeKind.FIXED):
        return content
    unscaled = int.from_bytes(content, "big", signed=True)
    # Built from its digits, because arithmetic would round to the precision of the context.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -node.type.scale))


def _field_value(value: dict[str, Any], name: str, own: dict[str, Any]) -> Any:
    if name in value:
        return value[name]
    if "default" not in own:
        raise ValueError(f"field {name!r} is missing")
    return own["default"]


def _union_value(value: Any, node: AvroNode) -> Any:
    """Return the default of a union: the value of its first branch that has such values."""
    if value is None and node.null_branch >= 0:
        return None
    for name, child in zip(node.names, node.children, strict=True):
        try:
            return {name: _default_value(value, child)}
        except (ValueError, TypeError):
            continue
    raise ValueError(f"{value!r} is not a value of a branch of the union")
