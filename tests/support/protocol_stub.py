"""The stub of `kbatch.protocol`, made from the schemas of the messages.

``python tests/support/protocol_stub.py`` writes it, after a change of a schema or of the public names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kbatch.protocol
from kbatch.protocol.schema import FieldSchema, MessageSchema, message_schemas

__all__ = ["STUB", "stub_text"]

STUB = Path(kbatch.protocol.__file__).with_suffix(".pyi")
_HEAD = '''\
"""The public names, with the fields of all messages; made by tests/support/protocol_stub.py."""

from uuid import UUID

from typing_extensions import dataclass_transform

'''
_BASE = """\
@dataclass_transform(kw_only_default=True, eq_default=False)
class _Fields(Message): ...
"""
_TYPES = {
    "bool": "bool",
    "float64": "float",
    "uuid": "UUID",
    "string": "str",
    "old_string": "str",
    "bytes": "bytes",
    "records": "bytes | bytearray | memoryview",
}


def _type_of(field: FieldSchema, owner: str) -> str:
    kind = f"{owner}.{field.element}" if field.fields else _TYPES.get(field.element, "int")
    if field.type.startswith("[]"):
        kind = f"list[{kind}]"
    return f"{kind} | None" if len(field.nullable) or field.default is None else kind


def _structures(fields: tuple[FieldSchema, ...]) -> dict[str, FieldSchema]:
    found: dict[str, FieldSchema] = {}
    for field in fields:
        if field.fields:
            found.setdefault(field.element, field)
            found = {**_structures(field.fields), **found}
    return found


def _fields(fields: tuple[FieldSchema, ...], owner: str, indent: str) -> Iterator[str]:
    yield f"{indent}unknown_tags: dict[int, bytes] = ..."
    for field in fields:
        yield f"{indent}{field.name}: {_type_of(field, owner)} = ..."


def _message(schema: MessageSchema) -> Iterator[str]:
    yield f"class {schema.name}(_Fields):"
    for name, structure in sorted(_structures(schema.fields).items()):
        yield f"    class {name}(_Fields):"
        yield from _fields(structure.fields, schema.name, " " * 8)
        yield ""
    yield from _fields(schema.fields, schema.name, " " * 4)
    yield ""


def stub_text() -> str:
    """Return the stub: the imports of the module, and a class for each message and structure."""
    source = Path(kbatch.protocol.__file__).read_text()
    imports = ["from kbatch.protocol import primitives as primitives"]
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kbatch"):
            imports += [f"from {node.module} import {each.name} as {each.name}" for each in node.names]
    lines = [line for _, schema in sorted(message_schemas().items()) for line in _message(schema)]
    return _HEAD + "\n".join(sorted(imports)) + "\n\n" + _BASE + "\n" + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    STUB.write_text(stub_text())
