"""The parser of values whose schemas are in a registry: each value is read with the schema of its id."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import RegistryError
from kbatch.extras import require
from kbatch.quantities import SizeLike
from kbatch.values.avro import AvroParser, read_schema
from kbatch.values.deviations import FieldDeviation
from kbatch.values.json import JsonParser
from kbatch.values.json_schema import json_schema_type
from kbatch.values.memory import MAX_PARSED_BYTES, MemoryBudget
from kbatch.values.parsed import Parsed, Parser, expand, slices_of
from kbatch.values.protobuf import ProtobufParser, read_descriptors
from kbatch.values.registry_references import avro_schema_of, descriptors_of, referenced_schemas
from kbatch.values.registry_settings import RegistrySettings
from kbatch.values.schema_framing import PREFIX_BYTES, read_prefixes
from kbatch.values.schema_limits import shortened_name
from kbatch.values.schema_registry import RegisteredSchema, SchemaRegistry, UnknownSchemaError
from kbatch.values.schemas import json_type

if TYPE_CHECKING:
    import pyarrow as pa

    from kbatch.options import Unknown

__all__ = ["RegistryParser", "registry_parser"]

# The schemas whose decoders a parser keeps.
_MAX_DECODERS = 128
# The memory of the id, the number and the place of a row.
_REGISTERED_ROW_BYTES = 48


@dataclass(frozen=True)
class RegistryParser:
    """Parser of values with Confluent's framing. It can be pickled; each process requests the schemas that it needs.

    Attributes
    ----------
    reader : AvroParser, ProtobufParser or JsonParser
        With the schema of the result.
    settings : RegistrySettings
    narrow : callable or None
        Returns the parser of some fields for a parser of all.
    """

    reader: AvroParser | ProtobufParser | JsonParser
    settings: RegistrySettings
    narrow: Callable[[Parser], Parser] | None = None
    type: pa.DataType = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self._narrowed(self.reader).type)
        object.__setattr__(self, "_parser_of", functools.lru_cache(_MAX_DECODERS)(self._made))

    def __reduce__(self) -> tuple[Any, ...]:
        return RegistryParser, (self.reader, self.settings, self.narrow)

    def _narrowed(self, parser: Parser) -> Parser:
        return parser if self.narrow is None else self.narrow(parser)

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory.

        Raises
        ------
        RegistryError
            If a schema that is not known yet cannot be requested.
        """
        check_types(RegistryParser.parse, locals())
        pa = require("pyarrow", "arrow", "parsing values")
        budget = MemoryBudget(max_bytes)
        n = len(column)
        budget.take(_REGISTERED_ROW_BYTES * n)
        ids, errors = read_prefixes(slices_of(column), budget)
        numbers = np.unique(ids[ids >= 0]).tolist()
        parts: list[Any] = []
        order: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        deviations: list[FieldDeviation] = []
        for number in numbers:
            rows = np.flatnonzero(ids == number).astype(np.int64, copy=False)
            parser = self._known_parser(number)
            if isinstance(parser, str):
                budget.take_errors(len(rows))
                errors |= dict.fromkeys(rows.tolist(), parser)
                continue
            if len(numbers) > 1 or errors or len(rows) < n:
                budget.take(2 * column.nbytes // len(numbers))
            parsed = parser.parse(column if len(rows) == n else column.take(pa.array(rows)), budget.rest)
            errors |= zip(rows[parsed.bad].tolist(), parsed.errors, strict=True)
            deviations += (each._replace(row=int(rows[each.row])) for each in parsed.deviations)
            parts.append(parsed.values)
            order.append(rows)
            # The parts are joined, and then brought into the order of the rows.
            budget.take((1 if len(rows) == n else 3) * parsed.values.nbytes)
        values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)
        bad = sorted(errors)
        return Parsed(
            expand(values, np.concatenate(order), n),
            np.array(bad, np.int64),
            [errors[row] for row in bad],
            ids,
            deviations,
        )

    def _known_parser(self, number: int) -> Parser | str:
        """Return the parser of values with a schema id, or the reason why they cannot be read."""
        try:
            found: Parser | str = self._parser_of(number)  # type: ignore[attr-defined]
        except UnknownSchemaError as error:
            return f"unknown schema id {number}: {error}"
        return found

    def _made(self, number: int) -> Parser | str:
        registry = SchemaRegistry.of(self.settings)
        kind = _REGISTERED_KINDS[type(self.reader)]
        schema = registry.schema(number, serialized=kind == "PROTOBUF")
        if schema.kind != kind:
            return f"schema id {number} is {shortened_name(schema.kind)}, not {kind}"
        try:
            if isinstance(self.reader, AvroParser):
                made: Parser = self._narrowed(
                    AvroParser(avro_schema_of(registry, schema), "confluent", self.reader.schema)  # type: ignore[arg-type]
                )
            elif isinstance(self.reader, ProtobufParser):
                made = self._narrowed(self.reader._of_writer(descriptors_of(registry, number)))
            else:
                made = _Unprefixed(self._narrowed(self.reader))
        except (ValueError, TypeError) as error:
            return f"schema id {number}: {error}"
        return made


_REGISTERED_KINDS: dict[type[Any], str] = {AvroParser: "AVRO", ProtobufParser: "PROTOBUF", JsonParser: "JSON"}


@dataclass(frozen=True)
class _Unprefixed:
    """Parses what follows Confluent's prefix."""

    parser: Parser

    @property
    def type(self) -> pa.DataType:
        return self.parser.type

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        return self.parser.parse(_without_prefixes(column), max_bytes)


def _without_prefixes(column: pa.Array) -> pa.Array:
    """Return a column, all of whose values have a prefix, without the prefixes."""
    pa = require("pyarrow", "arrow", "parsing values")
    slices = slices_of(column)
    n = len(column)
    content = slices.content[slices.offsets[0] : slices.offsets[n]]
    offsets = slices.offsets - slices.offsets[0]
    kept = np.ones(len(content), np.bool_)
    kept[offsets[:-1, None] + np.arange(PREFIX_BYTES)] = False
    offsets = offsets - PREFIX_BYTES * np.arange(n + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content[kept])]
    return pa.Array.from_buffers(pa.binary(), n, buffers)


def registry_parser(
    kind: str,
    settings: RegistrySettings,
    subjects: Callable[[], Iterable[str]],
    schema: Any = None,
    *,
    message: str | None = None,
    unknown: Unknown | None = None,
) -> RegistryParser:
    """Return the parser of a format.

    Parameters
    ----------
    kind : {"avro", "protobuf", "json"}
    settings : RegistrySettings
    subjects : callable
        Returns the subjects whose latest version is the schema of the result, if `schema` is None. All have the same.
    schema : object, optional
        In the forms of `kbatch.value_options.FormatOptions.schema`.
    message : str, optional
        Of Protobuf.
    unknown : {"ignore", "bad", "keep"}, optional
        Of JSON; default is "ignore".

    Raises
    ------
    RegistryError
        If the registry does not answer, or has no such subject.
    ValueError, TypeError
        If the schema is invalid, or JSON Schema that has no columns.
    """
    latest = None
    if schema is None:
        registry = SchemaRegistry.of(settings)
        number, latest = _latest(registry, kind, list(dict.fromkeys(subjects())))
    reader: AvroParser | ProtobufParser | JsonParser
    try:
        if kind == "avro":
            given = read_schema(schema) if latest is None else avro_schema_of(registry, latest)
            if isinstance(given, Mapping) and given and all(isinstance(key, int) for key in given):
                raise ValueError("with a schema registry, one schema of Avro is the schema of the result, not several")
            reader = AvroParser(given)
        elif kind == "protobuf":
            descriptors = read_descriptors(schema) if latest is None else descriptors_of(registry, number)
            reader = ProtobufParser(descriptors, message, "confluent")
        else:
            reader = JsonParser(
                json_type(schema) if latest is None else _json_schema_of(registry, latest), unknown or "ignore"
            )
    except UnknownSchemaError:
        raise RegistryError(f"schema id {number}: the registry lacks a schema that it refers to") from None
    except (ValueError, TypeError) as error:
        if latest is None:
            raise
        raise type(error)(f"schema id {number} of the registry: {error}") from None
    return RegistryParser(reader, settings)


def _latest(registry: SchemaRegistry, kind: str, subjects: list[str]) -> tuple[int, RegisteredSchema]:
    """Return the id and the schema that is the latest version of all subjects."""
    if not subjects:
        raise ValueError(
            "the schema of the result is unknown, because the input has no topic that a subject could have its name "
            "from; name the subject (value_subject), or give the schema (value_schema)"
        )
    ids: dict[int, str] = {}
    for subject in subjects:
        try:
            ids.setdefault(registry.latest_id(subject), subject)
        except UnknownSchemaError:
            raise RegistryError(
                f"{registry}: there is no subject {shortened_name(subject)!r}; name another one (value_subject), or "
                "give the schema of the result (value_schema)"
            ) from None
    if len(ids) > 1:
        first, second = list(ids.values())[:2]
        raise ValueError(
            f"the subjects {shortened_name(first)} and {shortened_name(second)} have different schemas, and a result "
            "has one; name the subject (value_subject), give the schema (value_schema), or read one topic at a time"
        )
    number = next(iter(ids))
    schema = registry.schema(number, serialized=kind == "protobuf")
    if schema.kind != kind.upper():
        raise ValueError(
            f"the schema of subject {shortened_name(ids[number])} is {shortened_name(schema.kind)}, and the format is "
            f"{kind}"
        )
    return number, schema


def _json_schema_of(registry: SchemaRegistry, schema: RegisteredSchema) -> pa.DataType:
    texts = {name: each.text for name, each in referenced_schemas(registry, schema).items()}
    return json_schema_type(schema.text, lambda name: texts[name])
