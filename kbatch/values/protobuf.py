"""Parses Protobuf messages into an Arrow column, with the C parser of the `protobuf` package.

The types match Spark's ``from_protobuf``: enums are strings, and fields with presence (messages, ``optional``,
members of a ``oneof``, all fields of proto2) are null if they are not set.
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kbatch.arguments import check_fields, check_types
from kbatch.escaping import printable
from kbatch.extras import require
from kbatch.options import Framing
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.records.display import short_repr
from kbatch.values.memory import MAX_PARSED_BYTES, MemoryBudget
from kbatch.values.parsed import Parsed, empty_structs, slices_of
from kbatch.values.protobuf_memory import MessageMemory
from kbatch.values.schema_framing import PREFIX_BYTES, check_framing, message_path, read_prefixes
from kbatch.values.schema_limits import (
    FullNames,
    SchemaTooLargeError,
    TypeSize,
    at,
    check_text_size,
    path_below,
    read_file,
    shortened_name,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ProtobufParser", "compiled_descriptors", "read_descriptors"]

# The number of messages that exist as Python objects at a time.
PROTOBUF_ROWS = 4096


def read_descriptors(source: bytes | str | os.PathLike[str]) -> bytes:
    """Return a descriptor set, given as bytes, or as the path of a set or of a ``.proto`` file (`grpcio-tools`)."""
    check_types(read_descriptors, locals())
    if isinstance(source, bytes):
        return source
    if os.fspath(source).endswith(".proto"):
        return compiled_descriptors(source)
    return read_file(os.fspath(source), "a descriptor set")


def compiled_descriptors(path: str | os.PathLike[str]) -> bytes:
    """Compile a ``.proto`` file, and its imports from the same directory, to a descriptor set.

    Raises
    ------
    MissingDependencyError
        Without grpcio-tools.
    ValueError
        If it can't be compiled.
    """
    protoc = require("grpc_tools.protoc", None, "a .proto file, unlike a descriptor set,", "grpcio-tools")
    import tempfile

    path = os.fspath(path)
    # Raises for a FIFO: protoc would wait for its other end forever.
    read_file(path, "a .proto file")
    included = os.path.join(os.path.dirname(os.path.abspath(str(protoc.__file__))), "_proto")
    with tempfile.TemporaryDirectory() as directory:
        out = os.path.join(directory, "set")
        folder = os.path.dirname(os.path.abspath(path))
        arguments = ["protoc", f"-I{folder}", f"-I{included}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, os.path.join(folder, os.path.basename(path))]) or not os.path.exists(out):
            raise ValueError(f"{printable(path)}: protoc failed; see its messages above")
        with open(out, "rb") as file:
            return file.read()


@public_in("kbatch.values")
@dataclass(frozen=True)
class ProtobufParser:
    """Parser of Protobuf's binary encoding.

    Attributes
    ----------
    descriptors : bytes
        A ``FileDescriptorSet``, as ``protoc --include_imports --descriptor_set_out=FILE`` writes it.
    message : str, optional
        Full name of the message. Default is the first message of the set's last file.
    framing : {"none", "confluent"}
        Whether byte 0, the schema id and the message path precede the message. The id is ignored; a value with the path
        of another message is bad.

    Raises
    ------
    ValueError
        If `descriptors` is not a descriptor set or lacks the message, the message contains itself, or it is too large:
        16 MiB of descriptors, 64 levels, 32 Mi characters of full names, or 20,000 fields and other parts. A message
        counts wherever it is used.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from google.protobuf import descriptor_pb2, duration_pb2
    >>> from kbatch.values import ProtobufParser
    >>> files = descriptor_pb2.FileDescriptorSet()
    >>> files.file.add().ParseFromString(duration_pb2.DESCRIPTOR.serialized_pb) > 0
    True
    >>> parser = ProtobufParser(files.SerializeToString(), "google.protobuf.Duration")
    >>> parser.parse(pa.array([duration_pb2.Duration(seconds=5).SerializeToString()])).values.to_pylist()
    [{'seconds': 5, 'nanos': 0}]
    """

    descriptors: bytes
    message: str | None = None
    framing: Framing = "none"

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)

    def __post_init__(self) -> None:
        check_fields(self)
        check_framing(self.framing)
        require("google.protobuf", "protobuf", "values_protobuf()")
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

        pa = require("pyarrow", "arrow", "values_protobuf()")
        check_text_size(len(self.descriptors), "the descriptor set")
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(self.descriptors).file
            if not files:
                raise ValueError("it contains no file")
            _check_full_names(files)
            for file in files:
                pool.Add(file)
            name = self.message
            if name is None:
                last = pool.FindFileByName(files[-1].name)
                name = next(iter(last.message_types_by_name.values())).full_name
            found = pool.FindMessageTypeByName(name)
        except KeyError:
            raise ValueError(
                f"the descriptors contain no message {shortened_name(repr(self.message))}; use its full name"
            ) from None
        except StopIteration:
            raise ValueError(f"{shortened_name(files[-1].name)} has no message; name one") from None
        except SchemaTooLargeError:
            raise
        except (message.DecodeError, TypeError, ValueError) as error:
            reason = shortened_name(str(error))
            raise ValueError(
                f"descriptors: not a descriptor set (protoc --include_imports --descriptor_set_out=FILE): {reason}"
            ) from None
        object.__setattr__(self, "_pool", pool)
        # Before the classes, which `protobuf` makes recursively for all messages in the message.
        object.__setattr__(self, "_type", _Types(pa).struct(found, (), "")[0])
        object.__setattr__(self, "_memory", MessageMemory.of(found))
        object.__setattr__(self, "_columns", _Columns(pa))
        object.__setattr__(self, "_class", message_factory.GetMessageClass(found))
        # The message path that values have.
        object.__setattr__(self, "_path", _path(found))

    def __reduce__(self) -> tuple[Any, ...]:
        made = ProtobufParser, (self.descriptors, self.message, self.framing)
        kept = getattr(self, "_kept", None)
        return made if kept is None else (_restored, (*made, kept))

    def _projected(self, kind: pa.DataType) -> ProtobufParser:
        """Return a parser of the fields of `kind`, and of those with strings that only their columns check."""
        from google.protobuf import descriptor_pb2

        files = descriptor_pb2.FileDescriptorSet.FromString(self.descriptors).file
        # The parser checks the strings of proto3. Files with editions may change that for each field.
        checked = {file.name for file in files if file.syntax == "proto3"}
        pa = require("pyarrow", "arrow", "parsing values")
        made = object.__new__(ProtobufParser)
        kept = _kept_message(pa, self._class.DESCRIPTOR, self.type, kind, checked)  # type: ignore[attr-defined]
        made.__dict__.update(self.__dict__, _kept=kind, _type=kept)
        return made

    def _of_writer(self, descriptors: bytes) -> ProtobufParser:
        """Return a parser of values with the message path that the message has in another descriptor set.

        Raises
        ------
        ValueError
        """
        name = self._class.DESCRIPTOR.full_name  # type: ignore[attr-defined]
        made = object.__new__(ProtobufParser)
        made.__dict__.update(self.__dict__, _path=_path_in(descriptors, name))
        return made

    @property
    def type(self) -> pa.DataType:
        """A struct with the fields of the message."""
        return self._type  # type: ignore[attr-defined]

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""
        check_types(ProtobufParser.parse, locals())
        pa = require("pyarrow", "arrow", "values_protobuf()")
        from google.protobuf.message import DecodeError

        read = self._class  # type: ignore[attr-defined]
        columns: _Columns = self._columns  # type: ignore[attr-defined]
        budget = MemoryBudget(max_bytes)
        self._check_memory(column, budget)
        errors: dict[int, str] = {}
        ids = None
        framed = self.framing == "confluent"
        path: tuple[int, ...] = self._path  # type: ignore[attr-defined]
        if framed:
            ids, errors = read_prefixes(slices_of(column), budget)
        parts = []
        for start in range(0, len(column), PROTOBUF_ROWS):
            messages: list[Any] = []
            for row, data in enumerate(column.slice(start, PROTOBUF_ROWS).to_pylist(), start):
                made = None
                if data is not None and row not in errors:
                    try:
                        if framed:
                            found, at = message_path(data, PREFIX_BYTES)
                            if found != path:
                                raise ValueError(f"expected message path {list(path)}, found {list(found)}")
                            data = data[at:]
                        made = read.FromString(data)
                    except (DecodeError, ValueError) as error:
                        budget.take_errors(1)
                        errors[row] = printable(str(error))
                messages.append(made)
            try:
                parts.append(columns.messages(messages, read.DESCRIPTOR, self.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError):
                # The parser accepts strings of proto2 that are not UTF-8.
                for row, message in enumerate(messages, start):
                    try:
                        parts.append(columns.messages([message], read.DESCRIPTOR, self.type))
                    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError) as error:
                        budget.take_errors(1)
                        errors[row] = f"a string that is not UTF-8: {error}"
                        parts.append(pa.nulls(1, self.type))
        bad = sorted(errors)
        values = pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)
        return Parsed(values, np.array(bad, np.int64), [errors[row] for row in bad], ids)

    def _check_memory(self, column: pa.Array, budget: MemoryBudget) -> None:
        """Raise ValuesTooLargeError if the messages or columns may need more memory than allowed."""
        memory: MessageMemory = self._memory  # type: ignore[attr-defined]
        offsets = slices_of(column).offsets
        content = int(offsets[-1] - offsets[0])
        rows = len(column) * memory.row + 4 * content
        fits = rows + content * memory.most <= budget.rest
        budget.take(rows)
        if fits:
            return
        for data in column:
            if data.is_valid:
                text = data.as_py()
                budget.take(memory.of_items(text if self.framing == "none" else _unframed(text)))


def _unframed(data: bytes) -> bytes:
    """Return a message without its prefix; nothing if the prefix is bad."""
    try:
        return data[message_path(data, PREFIX_BYTES)[1] :]
    except ValueError:
        return b""


def _path(descriptor: Any) -> tuple[int, ...]:
    """Return the path of a message: the index in its file, then in each enclosing message."""
    outer = descriptor.containing_type
    if outer is None:
        names = list(descriptor.file.message_types_by_name)
        return (names.index(descriptor.name),)
    return (*_path(outer), [nested.name for nested in outer.nested_types].index(descriptor.name))


def _path_in(descriptors: bytes, name: str) -> tuple[int, ...]:
    """Return the path of a message in the last file of a descriptor set."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    prefix = f"{file.package}." if file.package else ""
    below, path = file.message_type, []
    for part in name.removeprefix(prefix).split("."):
        place = next((number for number, each in enumerate(below) if each.name == part), None)
        if place is None or not name.startswith(prefix):
            raise ValueError(f"its file has no message {shortened_name(name)}")
        path.append(place)
        below = below[place].nested_type
    return tuple(path)


class _Types:
    """Makes the Arrow types of messages, each message once, with their sizes. `path` is the place, for errors."""

    def __init__(self, pa: Any) -> None:
        self.pa = pa
        self.made: dict[str, tuple[Any, TypeSize]] = {}
        self.schema = "the descriptor set"

    def struct(self, descriptor: Any, above: tuple[str, ...], path: str) -> tuple[Any, TypeSize]:
        name = descriptor.full_name
        if name in self.made:
            return self.made[name]
        if name in above:
            raise ValueError(
                f"{self.schema}, {at(path)}: message {shortened_name(name)} contains itself; recursive types are "
                "not supported"
            )
        above = (*above, name)
        TypeSize(depth=len(above)).check(self.schema, path)
        fields, size = [], TypeSize()
        for field in descriptor.fields:
            kind, part = self.field(field, above, path_below(path, field.name))
            fields.append((field.name, kind))
            size = TypeSize(size.nodes + part.nodes, max(size.depth, 1 + part.depth))
            size.check(self.schema, path)
        self.made[name] = self.pa.struct(fields), size
        return self.made[name]

    def field(self, field: Any, above: tuple[str, ...], path: str) -> tuple[Any, TypeSize]:
        if _is_map(field):
            (key, of_key), (item, of_item) = (self.scalar(each, above, path) for each in field.message_type.fields)
            return self.pa.map_(key, item), TypeSize.around((of_key, of_item), self.schema, path)
        kind, size = self.scalar(field, above, path)
        if field.is_repeated:
            return self.pa.list_(kind), TypeSize.around((size,), self.schema, path)
        return kind, size

    def scalar(self, field: Any, above: tuple[str, ...], path: str) -> tuple[Any, TypeSize]:
        if field.message_type is not None:
            return self.struct(field.message_type, above, path)
        pa = self.pa
        kind = {
            field.CPPTYPE_INT32: pa.int32(),
            field.CPPTYPE_INT64: pa.int64(),
            field.CPPTYPE_UINT32: pa.uint32(),
            field.CPPTYPE_UINT64: pa.uint64(),
            field.CPPTYPE_DOUBLE: pa.float64(),
            field.CPPTYPE_FLOAT: pa.float32(),
            field.CPPTYPE_BOOL: pa.bool_(),
            field.CPPTYPE_ENUM: pa.string(),
            field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
        }[field.cpp_type]
        return kind, TypeSize()


def _is_map(field: Any) -> bool:
    return bool(field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry)


def _restored(cls: type[ProtobufParser], arguments: tuple[Any, ...], kept: pa.DataType) -> ProtobufParser:
    return cls(*arguments)._projected(kept)


def _kept_message(pa: Any, descriptor: Any, whole: Any, kind: Any | None, checked: Set[str]) -> Any | None:
    """Return the part of a message's type that has to be read: what is requested, and unchecked strings; or None."""
    fields = []
    for of_field in whole:
        field = descriptor.fields_by_name[of_field.name]
        index = -1 if kind is None else kind.get_field_index(of_field.name)
        part = None if kind is None or index < 0 else kind.field(index).type
        if field.message_type is not None and not field.is_repeated:
            part = _kept_message(pa, field.message_type, of_field.type, part, checked)
        elif part is not None or _has_unchecked_text(field, checked):
            part = of_field.type
        if part is not None:
            fields.append(of_field.with_type(part))
    return None if kind is None and not fields else pa.struct(fields)


def _has_unchecked_text(field: Any, checked: Set[str]) -> bool:
    """Whether a field may have strings that the parser accepts although they are not UTF-8."""
    if field.message_type is not None:
        return any(_has_unchecked_text(each, checked) for each in field.message_type.fields)
    return field.type == field.TYPE_STRING and field.file.name not in checked


class _Columns:
    """Makes Arrow columns from messages. The names of an enum's numbers are collected once."""

    def __init__(self, pa: Any) -> None:
        self.pa = pa
        self.enums: dict[str, dict[int, str]] = {}

    def messages(self, messages: list[Any], descriptor: Any, kind: Any) -> Any:
        """Return messages, some of them None, as a struct array with the fields of a type."""
        mask = np.array([message is None for message in messages], np.bool_)
        children = []
        for of_field in kind:
            name = of_field.name
            field = descriptor.fields_by_name[name]
            if _is_map(field) or field.is_repeated:
                children.append(self._repeated(messages, field, of_field.type))
            elif field.has_presence:
                column = [getattr(m, name) if m is not None and m.HasField(name) else None for m in messages]
                children.append(self._field(column, field, of_field.type))
            else:
                column = [None if m is None else getattr(m, name) for m in messages]
                children.append(self._field(column, field, of_field.type))
        missing = self.pa.array(mask) if mask.any() else None
        if not children:
            return empty_structs(~mask)
        return self.pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)

    def _field(self, values: list[Any], field: Any, kind: Any) -> Any:
        if field.message_type is not None:
            return self.messages(values, field.message_type, kind)
        if field.enum_type is not None:
            names = self._names(field.enum_type)
            # An open enum may contain numbers without a name.
            values = [None if value is None else names.get(value, str(value)) for value in values]
        return self.pa.array(values, kind)

    def _repeated(self, messages: list[Any], field: Any, kind: Any) -> Any:
        lists = [() if m is None else getattr(m, field.name) for m in messages]
        offsets = np.zeros(len(messages) + 1, np.int32)
        np.cumsum([len(items) for items in lists], out=offsets[1:])
        bits = self.pa.py_buffer(np.packbits(np.array([m is not None for m in messages], bool), bitorder="little"))
        if _is_map(field):
            key, item = field.message_type.fields
            keys = self._field([each for items in lists for each in items], key, kind.key_type)
            values = self._field([items[each] for items in lists for each in items], item, kind.item_type)
            inner = self.pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
        else:
            inner = self._field([each for items in lists for each in items], field, kind.value_type)
        return self.pa.Array.from_buffers(kind, len(messages), [bits, self.pa.py_buffer(offsets)], children=[inner])

    def _names(self, enum: Any) -> dict[int, str]:
        name = enum.full_name
        if name not in self.enums:
            self.enums[name] = {number: value.name for number, value in enum.values_by_number.items()}
        return self.enums[name]


# The named parts of a file, a message, an enum and a service, by the names of their descriptors.
_NAMED_PARTS = {
    "FileDescriptorProto": ("message_type", "enum_type", "extension", "service"),
    "DescriptorProto": ("nested_type", "enum_type", "extension", "field", "oneof_decl"),
    "EnumDescriptorProto": ("value",),
    "ServiceDescriptorProto": ("method",),
}
_GROUPS_WITH_PARTS = ("message_type", "nested_type", "enum_type", "service")


def _check_full_names(files: Any) -> None:
    """Raise SchemaTooLargeError if the full names in a descriptor set are too long together, or too deep."""
    names = FullNames("the descriptor set")
    # `protobuf` looks for a relative reference in every part of its scope's name, so that these are levels too.
    stack = [(file, file.package, len(file.package), 1 + file.package.count(".")) for file in files]
    while stack:
        scope, path, size, depth = stack.pop()
        TypeSize(depth=depth).check(names.schema, path)
        for group in _NAMED_PARTS[scope.DESCRIPTOR.name]:
            for part in getattr(scope, group):
                full_size = size + 1 + len(part.name)
                names.add(full_size, path)
                if group in _GROUPS_WITH_PARTS:
                    stack.append((part, path_below(path, part.name), full_size, depth + 1))
