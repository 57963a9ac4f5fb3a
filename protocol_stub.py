"""The stub of `kbatch.protocol`, made from the schemas of the messages when kbatch is built.

``python protocol_stub.py`` writes it too, after a change of a schema or of the public names.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbatch.protocol.schema import FieldSchema, MessageSchema

__all__ = ["STUB", "stub_text", "write_stub"]

PACKAGE = Path(__file__).parent / "kbatch"
STUB = PACKAGE / "protocol" / "__init__.pyi"
_HEAD = '''\
"""The public names, with the fields of all messages; made by protocol_stub.py."""

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


def _schemas() -> dict[str, MessageSchema]:
    """Return the schemas without importing the packages around them: a build has neither NumPy nor the kernels."""
    parents = {name: ModuleType(name) for name in ("kbatch", "kbatch.protocol")}
    known = dict(sys.modules)
    try:
        for name in known:
            if name.partition(".")[0] == "kbatch":
                del sys.modules[name]
        for name, module in parents.items():
            module.__path__ = [str(PACKAGE.parent.joinpath(*name.split(".")))]
            sys.modules[name] = module
        schema = importlib.import_module("kbatch.protocol.schema")
        return {name: schema.message_schemas()[name] for name in schema.PROTOCOL_MESSAGES}
    finally:
        for name in list(sys.modules):
            if name.partition(".")[0] == "kbatch":
                del sys.modules[name]
        sys.modules.update(known)


def _imports() -> Iterator[str]:
    """Yield the imports of the module that are public."""
    body = ast.parse((PACKAGE / "protocol" / "__init__.py").read_text()).body
    public = {
        each.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        for each in node.value.elts
        if isinstance(each, ast.Constant)
    }
    for node in body:
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                if name.name in public:
                    yield f"from {node.module} import {name.name} as {name.name}"


def stub_text() -> str:
    """Return the stub: the imports of the module, and a class for each message and structure."""
    lines = [line for _, schema in sorted(_schemas().items()) for line in _message(schema)]
    return _HEAD + "\n".join(sorted(_imports())) + "\n\n" + _BASE + "\n" + "\n".join(lines).rstrip() + "\n"


def write_stub() -> None:
    """Write the stub, unless it is there already."""
    text = stub_text()
    if not STUB.exists() or STUB.read_text() != text:
        STUB.write_text(text)


if __name__ == "__main__":
    write_stub()
