"""Formats of keys and values: arguments, Spark's options and flags -> parsers.

This module must not import NumPy: the command line makes its flags from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from kbatch import options as opts
from kbatch.keywords import describes
from kbatch.options import Framing, Option, OptionError, Unknown, ValueKind, option

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from kbatch.options import On
    from kbatch.values.parsed import Parser
    from kbatch.values.registry_settings import RegistryLike, RegistrySettings

    # The forms of a schema in Python; `FormatOptions.schema` says which format takes which.
    ValueSchema: TypeAlias = (
        str | bytes | os.PathLike[str] | Mapping[Any, Any] | list[Any] | np.dtype[Any] | pa.Schema | pa.DataType
    )

__all__ = [
    "ARGUMENTS",
    "SIDES",
    "FormatOptions",
    "RegistryOptions",
    "ValueArguments",
    "ValueFormat",
    "ValueOptions",
    "subjects_of",
]

ValueFormat = Literal["binary", "string", "json", "avro", "protobuf", "struct"]
SIDES: tuple[On, ...] = ("value", "key")

# The formats whose schemas registries have.
_REGISTERED = ("json", "avro", "protobuf")
# The options that a format takes.
_TAKES = {
    "json": {"schema", "schema_file", "unknown", "framing", "subject"},
    "avro": {"schema", "schema_file", "reader_schema", "framing", "subject"},
    "protobuf": {"schema", "schema_file", "framing", "message", "subject"},
    "struct": {"schema", "schema_file"},
}


def _check_format(value: Any) -> None:
    """Check that a value is the name of a format or a parser."""
    if not (hasattr(value, "type") and callable(getattr(value, "parse", None))):
        _FORMATS.check(value)


_FORMATS = opts.choice(*get_args(ValueFormat))
_FORMAT_OR_PARSER = ValueKind(_FORMATS.parse, _FORMATS.example, _check_format, _FORMATS.choices, _FORMATS.metavar)


@opts.documented
@dataclass(frozen=True)
class FormatOptions:
    """The format of keys or of values. Instances can be pickled; files are read where the parser is made.

    In Python, a format may also be a parser of `kbatch.values`, and a schema an object: for json a dictionary of DDL
    types by field, or a type of Arrow; for avro the parsed JSON, or schemas by id; for protobuf the bytes of a
    descriptor set; for struct a dtype, a dictionary of NumPy's codes by field, or a type of Arrow.

    Attributes
    ----------
    {options}
    registry : RegistrySettings or None
        The schema registry of values with Confluent's framing.
    """

    format: ValueFormat | Parser = option(
        _FORMAT_OR_PARSER, "binary", spark="{side}Format", flag="--{side}s",
        help="the format; binary leaves bytes as they are",
    )  # fmt: skip
    schema: ValueSchema | None = option(
        ValueKind(str, "id bigint", metavar="SCHEMA"), None, spark="{side}Schema", flag="--{side}-schema",
        help="json: Spark's DDL, such as 'id bigint, tags array<string>', or a file of it (default: inferred from a "
        "sample of the logs); avro: JSON, an .avsc file, or a directory of <id>.avsc; protobuf: a descriptor set of "
        "protoc, or a .proto file; struct: NumPy's codes, such as 'id:>i8,price:>f8'",
    )  # fmt: skip
    schema_file: str | None = option(opts.TEXT, None, spark="{side}SchemaFile", help="a file that has the schema")
    reader_schema: ValueSchema | None = option(
        ValueKind(str, "reader.avsc", metavar="FILE"), None, spark="{side}ReaderSchema", flag="--{side}-reader-schema",
        help="avro: the schema to which values of all other schemas are resolved, as JSON or a file",
    )  # fmt: skip
    framing: Framing | None = option(
        opts.choice(*get_args(Framing)), None, spark="{side}Framing", flag="--{side}-framing",
        help="avro, protobuf, and json with a schema registry: the prefix that a schema registry's serializer writes "
        "(default: confluent with a schema registry, else none)",
    )  # fmt: skip
    message: str | None = option(
        ValueKind(str, "shop.Order", metavar="NAME"), None, spark="{side}Message", flag="--{side}-message",
        help="protobuf: full name of the message",
    )  # fmt: skip
    subject: str | None = option(
        ValueKind(str, "orders-value", metavar="NAME"), None, spark="{side}Subject", flag="--{side}-subject",
        help="with a schema registry: the subject whose latest version is the schema of the column (default: "
        "TOPIC-value, for keys TOPIC-key)",
    )  # fmt: skip
    unknown: Unknown | None = option(
        opts.choice(*get_args(Unknown)), None, spark="{side}UnknownFields", flag="--{side}-unknown-fields",
        help="json: ignore fields that the schema does not have, treat the whole value as bad, or keep its other "
        "fields and also its bytes (default: ignore with a given schema, else keep)",
    )  # fmt: skip
    registry: RegistrySettings | None = None

    def __post_init__(self) -> None:
        opts.check_options(self)
        if self.schema is not None and self.schema_file is not None:
            raise OptionError("{schema} and {schema_file} exclude each other")
        # A dtype of NumPy can't be compared with None.
        given = [
            each.name
            for each in opts.options_of(FormatOptions)
            if (value := getattr(self, each.name)) is not each.default
            and (each.default is None or value != each.default)
        ]
        name = self.name
        wrong = [each for each in given if each != "format" and each not in _TAKES.get(name, ())]
        if wrong:
            names = " and ".join(f"{{{each}}}" for each in wrong)
            if "format" not in given:
                raise OptionError(f"{names} without {{format}}, which is binary by default")
            raise OptionError(f"{{format}} {{0}} does not take {names}", name)
        has_schema = "schema" in given or "schema_file" in given
        if self.registry is None:
            self._check_without_registry(name, has_schema)
        elif self.reader_schema is not None:
            raise OptionError(
                "{reader_schema} and {registry} exclude each other: {schema} is the schema of the result then"
            )
        elif self.subject is not None and has_schema:
            raise OptionError("{subject} and {schema} exclude each other: either is the schema of the result")

    def _check_without_registry(self, name: str, has_schema: bool) -> None:
        if self.subject is not None:
            raise OptionError("{subject} requires {registry}")
        if name == "json" and self.framing == "confluent":
            raise OptionError("{framing} confluent with {format} json requires {registry}")
        if name in ("avro", "protobuf", "struct") and not has_schema:
            raise OptionError("{format} {0} requires {schema}", name)

    @property
    def name(self) -> str:
        """The name of the format, or of the class of the parser."""
        return self.format if isinstance(self.format, str) else type(self.format).__name__

    @property
    def _source(self) -> Any:
        """The schema, or the path of its file."""
        from pathlib import Path

        return self.schema if self.schema_file is None else Path(self.schema_file)

    def parser(self, sample: Callable[[], list[bytes]], subjects: Callable[[], Iterable[str]] = tuple) -> Parser | None:
        """Return the parser, or None for binary.

        Parameters
        ----------
        sample : callable
            Returns values to infer the schema of json from.
        subjects : callable
            Returns the subjects of a schema registry, if no other one is given.

        Raises
        ------
        ValueError, TypeError
            If the schema is invalid.
        RegistryError
            If the schema registry lacks the schema, or does not answer.
        MissingDependencyError
        """
        from kbatch.values.avro import AvroParser, read_schema, read_schemas
        from kbatch.values.fixed import FixedParser
        from kbatch.values.json import JsonParser, infer_json
        from kbatch.values.parsed import TextParser
        from kbatch.values.protobuf import ProtobufParser, read_descriptors
        from kbatch.values.schemas import json_type, struct_dtype

        if not isinstance(self.format, str):
            return self.format
        if self.format == "binary":
            return None
        if self.format == "string":
            return TextParser()
        if self.registry is not None:
            from kbatch.values.registry_parser import registry_parser

            named = subjects if self.subject is None else lambda: [self.subject or ""]
            source = self._source
            return registry_parser(
                self.format, self.registry, named, source, message=self.message, unknown=self.unknown
            )
        framing = self.framing or "none"
        if self.format == "avro":
            reader = None if self.reader_schema is None else read_schema(self.reader_schema)  # type: ignore[arg-type]
            return AvroParser(read_schemas(self._source), framing, reader)
        if self.format == "protobuf":
            return ProtobufParser(read_descriptors(self._source), self.message, framing)
        if self.format == "struct":
            return FixedParser(struct_dtype(self._source))
        if self.inferred:
            return JsonParser(infer_json(sample()), self.unknown or "keep")
        return JsonParser(json_type(self._source), self.unknown or "ignore")

    @property
    def inferred(self) -> bool:
        """Whether the schema is inferred from values."""
        return self.format == "json" and self.schema is None and self.schema_file is None and self.registry is None

    def json_parser(self, kind: pa.DataType) -> Parser:
        """Return the parser of json for a type that is already known."""
        from kbatch.values.json import JsonParser

        if self.registry is not None:
            from kbatch.values.registry_parser import registry_parser

            return registry_parser("json", self.registry, tuple, kind, unknown=self.unknown)
        return JsonParser(kind, self.unknown or ("keep" if self.inferred else "ignore"))


def _argument(side: On, name: str) -> str:
    """Return the name of the argument for a field of `FormatOptions`."""
    return f"{side}s" if name == "format" else f"{side}_{name}"


# By side, the arguments of reads by the field of `FormatOptions`. A file is given as the schema.
ARGUMENTS: dict[On, dict[str, str]] = {
    side: {each.name: _argument(side, each.name) for each in opts.options_of(FormatOptions) if each.flags}
    for side in SIDES
}


@opts.documented
@dataclass(frozen=True)
class RegistryOptions:
    """The schema registry of keys and values.

    Attributes
    ----------
    {options}
    """

    schema_registry: RegistryLike | None = option(
        ValueKind(str, "https://registry:8081", metavar="URL"), None, spark="schemaRegistry", flag="--schema-registry",
        help="a schema registry with Confluent's HTTP interface, which has the schemas of avro, protobuf and json with "
        "framing: its URL, or a file with settings of Confluent's clients, such as schema.registry.url",
    )  # fmt: skip

    def settings(self, more: Mapping[str, str] | None = None) -> RegistrySettings | None:
        """Return the settings, with those of `more`; None if there are none.

        Raises
        ------
        LogDirectoryError, TypeError, ValueError
        """
        if self.schema_registry is None and not more:
            return None
        from kbatch.values.registry_settings import RegistrySettings

        return RegistrySettings.of({} if self.schema_registry is None else self.schema_registry, more)


@describes()
class ValueArguments(TypedDict, total=False):
    """The arguments of reads that give typed columns: the fields of `FormatOptions` for values and for keys.

    Attributes
    ----------
    values : {"binary", "string", "json", "avro", "protobuf", "struct"} or parser, default "binary"
        The format of the values, or a parser of `kbatch.values`; binary leaves bytes as they are. With another one the
        column ``value`` has the type of the schema; what does not fit is null, and its bytes and the reason are in the
        columns ``value_bad`` and ``value_error``.
    value_schema : str, bytes, path, mapping, list, or type of Arrow or NumPy, default None
        The schema of the values. For JSON: Spark's DDL, such as ``"id bigint"``, a dictionary of types by field, a type
        of Arrow, or a file; default is inferred from a sample. For Avro: JSON, an .avsc file, or a directory of
        ``<id>.avsc``. For Protobuf: a descriptor set, or a .proto file. For struct: a dtype, or NumPy's codes.
    value_reader_schema : str, bytes, path, mapping, list, or type of Arrow or NumPy, default None
        For Avro: the schema to which values of all other schemas are resolved.
    value_framing : {"none", "confluent"}, default None
        The prefix that a schema registry's serializer writes. Default is confluent with a schema registry, else none.
    value_message : str, default None
        For Protobuf: the full name of the message.
    value_subject : str, default None
        With a schema registry: the subject whose latest version is the schema. Default is ``TOPIC-value``.
    value_unknown : {"ignore", "bad", "keep"}, default None
        For JSON: ignore fields that the schema does not have, treat the whole value as bad, or keep its other fields
        and also its bytes. Default is ignore with a given schema, else keep.
    keys : {"binary", "string", "json", "avro", "protobuf", "struct"} or parser, default "binary"
        The format of the keys, or a parser of `kbatch.values`; binary leaves bytes as they are. With another one the
        column ``key`` has the type of the schema; what does not fit is null, and its bytes and the reason are in the
        columns ``key_bad`` and ``key_error``.
    key_schema : str, bytes, path, mapping, list, or type of Arrow or NumPy, default None
        The schema of the keys. For JSON: Spark's DDL, such as ``"id bigint"``, a dictionary of types by field, a type
        of Arrow, or a file; default is inferred from a sample. For Avro: JSON, an .avsc file, or a directory of
        ``<id>.avsc``. For Protobuf: a descriptor set, or a .proto file. For struct: a dtype, or NumPy's codes.
    key_reader_schema : str, bytes, path, mapping, list, or type of Arrow or NumPy, default None
        For Avro: the schema to which values of all other schemas are resolved.
    key_framing : {"none", "confluent"}, default None
        The prefix that a schema registry's serializer writes. Default is confluent with a schema registry, else none.
    key_message : str, default None
        For Protobuf: the full name of the message.
    key_subject : str, default None
        With a schema registry: the subject whose latest version is the schema. Default is ``TOPIC-key``.
    key_unknown : {"ignore", "bad", "keep"}, default None
        For JSON: ignore fields that the schema does not have, treat the whole value as bad, or keep its other fields
        and also its bytes. Default is ignore with a given schema, else keep.
    schema_registry : str, path or mapping, default None
        A schema registry with Confluent's HTTP interface: its URL, or its settings as a file or mapping.
    """

    values: ValueFormat | Parser
    value_schema: ValueSchema | None
    value_reader_schema: ValueSchema | None
    value_framing: Framing | None
    value_message: str | None
    value_subject: str | None
    value_unknown: Unknown | None
    schema_registry: RegistryLike | None
    keys: ValueFormat | Parser
    key_schema: ValueSchema | None
    key_reader_schema: ValueSchema | None
    key_framing: Framing | None
    key_message: str | None
    key_subject: str | None
    key_unknown: Unknown | None


@dataclass(frozen=True)
class ValueOptions:
    """The formats of keys and of values."""

    key: FormatOptions = FormatOptions()
    value: FormatOptions = FormatOptions()

    @property
    def parsed(self) -> tuple[On, ...]:
        """The sides that are parsed."""
        # A parser may have any kind of equality.
        sides: tuple[On, ...] = ("key", "value")
        return tuple(on for on in sides if getattr(self, on).name != "binary")

    @property
    def infers(self) -> bool:
        """Whether a schema is inferred."""
        return any(getattr(self, on).inferred for on in self.parsed)

    def parsers(
        self,
        sample: Callable[[On], list[bytes]],
        known: Mapping[On, pa.DataType] | None = None,
        topics: Callable[[], Iterable[str]] = tuple,
    ) -> dict[On, Parser]:
        """Return the parsers of the sides that are parsed.

        A schema of json that is not given has a type in `known`, or is inferred from what `sample` returns for a side.
        `topics` returns the topics that subjects of a schema registry have their names from.
        """
        made: dict[On, Parser] = {}
        for on in self.parsed:
            given: FormatOptions = getattr(self, on)
            subjects = partial(subjects_of, topics, on)
            is_known = known is not None and on in known
            parser = given.json_parser(known[on]) if known and is_known else given.parser(partial(sample, on), subjects)
            if parser is not None:
                made[on] = parser
        return made

    @classmethod
    def options(cls) -> list[Option]:
        """Return the definitions for values and for keys."""
        sides = [each for side in SIDES for each in opts.options_of(FormatOptions, side=side)]
        return [*sides, *opts.options_of(RegistryOptions)]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ValueOptions:
        """Parse the options of Spark that are about values and keys; names in any case, others are ignored.

        Parameters
        ----------
        options : mapping of str to str
            Also settings of Confluent's clients for a schema registry.

        Raises
        ------
        ValueError
            For options that do not fit the format.

        Examples
        --------
        >>> from kbatch.value_options import ValueOptions
        >>> ValueOptions.parse({"valueFormat": "json", "valueSchema": "id bigint"}).value.schema
        'id bigint'
        """
        from kbatch.values.registry_settings import is_registry_setting

        given = {name.lower(): value for name, value in options.items()}
        settings = {name: value for name, value in given.items() if is_registry_setting(name)}
        made, names = opts.from_strings(opts.options_of(RegistryOptions), given)
        return cls.build(
            lambda side: opts.from_strings(opts.options_of(FormatOptions, side=side), given),
            RegistryOptions(**made).settings(settings),
            names["schema_registry"],
        )

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> ValueOptions:
        """Return the options of the arguments of a read (`ValueArguments`); others are ignored.

        Raises
        ------
        ValueError
            For arguments that do not fit the format.

        Examples
        --------
        >>> from kbatch.value_options import ValueOptions
        >>> ValueOptions.of({"values": "json", "value_schema": {"id": "bigint"}, "last": 3}).parsed
        ('value',)
        """

        def of_side(side: On) -> tuple[dict[str, Any], dict[str, str]]:
            names = ARGUMENTS[side]
            return {field: arguments[name] for field, name in names.items() if name in arguments}, names

        return cls.build(of_side, RegistryOptions(arguments.get("schema_registry")).settings())

    @classmethod
    def build(
        cls,
        parse: Callable[[On], tuple[dict[str, Any], dict[str, str]]],
        registry: RegistrySettings | None = None,
        registry_name: str = "schema_registry",
    ) -> ValueOptions:
        """Build both sides from the values and the names that `parse` returns for each, and a schema registry."""
        sides = {}
        for side in SIDES:
            values, names = parse(side)
            if values.get("format") in _REGISTERED and values.get("framing") != "none":
                values = {**values, "registry": registry}
            sides[side] = opts.as_named(partial(FormatOptions, **values), {**names, "registry": registry_name})
        if registry is not None and not any(each.registry for each in sides.values()):
            raise ValueError(
                f"{registry_name} requires values or keys in {', '.join(_REGISTERED)}, with the framing confluent"
            )
        return cls(**sides)


def subjects_of(topics: Callable[[], Iterable[str]], side: On) -> list[str]:
    """Return the subjects of topics, as serializers name them by default (TopicNameStrategy)."""
    return [f"{topic}-{side}" for topic in topics()]
