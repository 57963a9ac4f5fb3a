"""The stub of `kbatch.protocol`, made from the schemas of the messages when kbatch is built.

``python protocol_stub.py`` writes it too, after a change of a schema or of the public names.
"""

from __future__ import annotations

import ast
import importlib
import re
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

from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, NoReturn, overload
from uuid import UUID

from typing_extensions import Buffer, TypeVar, dataclass_transform

from kbatch.format import Limits
from kbatch.options import Crc, Isolation, OnError
from kbatch.quantities import SizeLike
'''
# The functions and classes whose types depend on the classes of messages.
_TYPED = """\
_MessageT = TypeVar("_MessageT", bound=Message, default=Any)
_HeaderT = TypeVar("_HeaderT", bound=Message, default=Any)

@dataclass_transform(kw_only_default=True, eq_default=False)
class _Fields(Message): ...

class Request(NamedTuple, Generic[_MessageT]):
    api_key: ApiKey
    version: int
    header: RequestHeader
    message: _MessageT

class Response(NamedTuple, Generic[_MessageT]):
    api_key: ApiKey
    version: int
    header: ResponseHeader
    message: _MessageT

class UnknownMessage(NamedTuple, Generic[_HeaderT]):
    api_key: ApiKey
    version: int
    header: _HeaderT
    body: memoryview
    @property
    def message(self) -> NoReturn: ...

def common_versions(response: ApiVersionsResponse) -> dict[ApiKey, int]: ...
def decode_request(
    data: Buffer, *, max_size: SizeLike = ..., limits: Limits | None = None
) -> Request | UnknownMessage[RequestHeader]: ...
def encode_request(
    message: Message,
    version: int,
    *,
    correlation_id: int = 0,
    client_id: str | None = None,
    header: RequestHeader | None = None,
    framed: bool = True,
) -> list[bytearray | memoryview]: ...
def aborted_transactions(partition: FetchResponse.PartitionData) -> list[tuple[int, int]] | None: ...
def decode_fetch(
    response: FetchResponse,
    *,
    request: FetchRequest | None = None,
    isolation: Isolation = "read_uncommitted",
    include_control: bool = False,
    crc: Crc = "verify",
    on_error: OnError = "raise",
    threads: int = 1,
    limits: Limits | None = None,
    columns: Sequence[str] | None = None,
) -> list[FetchedPartition]: ...
"""
# A response is of the class that the key of its API names.
_RESPONSE = """\
@overload
def decode_response(
    data: Buffer, api_key: {key}, version: int, *, max_size: SizeLike = ..., limits: Limits | None = None
) -> Response{message} | UnknownMessage[ResponseHeader]: ...
"""
_DECLARED = set(re.findall(r"^(?:class|def) (\w+)", _TYPED + _RESPONSE, re.MULTILINE)) | {"message_class"}
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


def _responses(schemas: dict[str, MessageSchema]) -> Iterator[str]:
    """Yield `decode_response` for the key of each API, as a member and as a number."""
    keys = _keys()
    for name, schema in sorted(schemas.items()):
        if name.endswith("Response") and schema.api_key is not None:
            key = f"Literal[ApiKey.{keys[schema.api_key]}, {schema.api_key}]"
            yield _RESPONSE.format(key=key, message=f"[{name}]")
    yield _RESPONSE.format(key="int", message="")


def _classes(schemas: dict[str, MessageSchema]) -> Iterator[str]:
    """Yield `message_class` for each name."""
    for name in sorted(schemas):
        yield f'@overload\ndef message_class(name: Literal["{name}"]) -> type[{name}]: ...'
    yield "@overload\ndef message_class(name: str) -> type[Message]: ..."


def _keys() -> dict[int, str]:
    """Return the names of `ApiKey` by number, from the source."""
    body = ast.parse((PACKAGE / "protocol" / "api_keys.py").read_text()).body
    (enumeration,) = [node for node in body if isinstance(node, ast.ClassDef)]
    return {
        node.value.value: ast.unparse(node.targets[0])
        for node in enumeration.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)
    }


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
                if name.name in public - _DECLARED:
                    yield f"from {node.module} import {name.name} as {name.name}"


def stub_text() -> str:
    """Return the stub: the imports of the module, and a class for each message and structure."""
    schemas = _schemas()
    lines = [line for _, schema in sorted(schemas.items()) for line in _message(schema)]
    typed = [_TYPED, *_responses(schemas), *_classes(schemas), ""]
    return _HEAD + "\n".join(sorted(_imports())) + "\n\n" + "\n".join([*typed, *lines]).rstrip() + "\n"


def write_stub() -> None:
    """Write the stub, unless it is there already."""
    text = stub_text()
    if not STUB.exists() or STUB.read_text() != text:
        STUB.write_text(text)


if __name__ == "__main__":
    write_stub()
