"""Formats of keys and values: Spark's options and the export's flags -> parsers, without importing pyspark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from kbatch import options as opts
from kbatch.options import Framing, Option, OptionError, ValueKind, option

if TYPE_CHECKING:
    import pyarrow as pa

    from kbatch.options import On
    from kbatch.values.parsed import Parser

__all__ = ["SIDES", "FormatOptions", "ValueFormat", "ValueOptions"]

ValueFormat = Literal["binary", "string", "json", "avro", "protobuf", "struct"]
SIDES: tuple[On, ...] = ("value", "key")

# The options that a format takes.
_TAKES = {
    "json": {"schema", "schema_file", "unknown"},
    "avro": {"schema", "schema_file", "reader_schema", "framing"},
    "protobuf": {"schema", "schema_file", "framing", "message"},
    "struct": {"schema", "schema_file"},
}


@opts.documented
@dataclass(frozen=True)
class FormatOptions:
    """The format of keys or of values. Instances hold plain values only; files are read on the driver.

    Attributes
    ----------
    {options}
    """

    format: ValueFormat = option(
        opts.choice(*get_args(ValueFormat)), "binary", spark="{side}Format", flag="--{side}s",
        help="the format; binary leaves bytes as they are",
    )  # fmt: skip
    schema: str | None = option(
        ValueKind(str, "id bigint", metavar="SCHEMA"), None, spark="{side}Schema", flag="--{side}-schema",
        help="json: Spark's DDL, such as 'id bigint, tags array<string>', or a file of it (default: inferred from a "
        "sample of the logs); avro: JSON, an .avsc file, or a directory of <id>.avsc; protobuf: a descriptor set of "
        "protoc, or a .proto file; struct: NumPy's codes, such as 'id:>i8,price:>f8'",
    )  # fmt: skip
    schema_file: str | None = option(opts.TEXT, None, spark="{side}SchemaFile", help="a file that has the schema")
    reader_schema: str | None = option(
        ValueKind(str, "reader.avsc", metavar="FILE"), None, spark="{side}ReaderSchema", flag="--{side}-reader-schema",
        help="avro: the schema to which values of all other schemas are resolved, as JSON or a file",
    )  # fmt: skip
    framing: Framing = option(
        opts.choice(*get_args(Framing)), "none", spark="{side}Framing", flag="--{side}-framing",
        help="avro and protobuf: the prefix that a schema registry's serializer writes",
    )  # fmt: skip
    message: str | None = option(
        ValueKind(str, "shop.Order", metavar="NAME"), None, spark="{side}Message", flag="--{side}-message",
        help="protobuf: full name of the message",
    )  # fmt: skip
    unknown: Literal["ignore", "bad", "keep"] | None = option(
        opts.choice("ignore", "bad", "keep"), None, spark="{side}UnknownFields", flag="--{side}-unknown-fields",
        help="json: ignore fields that the schema does not have, treat the whole value as bad, or keep its other "
        "fields and also its bytes (default: ignore with a given schema, else keep)",
    )  # fmt: skip

    def __post_init__(self) -> None:
        opts.check_options(self)
        if self.schema is not None and self.schema_file is not None:
            raise OptionError("{schema} and {schema_file} exclude each other")
        given = [each.name for each in opts.options_of(FormatOptions) if getattr(self, each.name) != each.default]
        wrong = [name for name in given if name != "format" and name not in _TAKES.get(self.format, ())]
        if wrong:
            raise OptionError(
                "{format} {0} does not take " + " and ".join(f"{{{name}}}" for name in wrong), self.format
            )
        if self.format in ("avro", "protobuf", "struct") and "schema" not in given and "schema_file" not in given:
            raise OptionError("{format} {0} requires {schema}", self.format)

    def parser(self, sample: Callable[[], list[bytes]]) -> Parser | None:
        """Return the parser, or None for binary. `sample` returns values to infer the schema of json from.

        Raises
        ------
        ValueError, TypeError
            If the schema is invalid.
        MissingDependencyError
        """
        from kbatch.values.avro import AvroParser, read_schema, read_schemas
        from kbatch.values.ddl import parse_ddl
        from kbatch.values.fixed import FixedParser
        from kbatch.values.json import JsonParser, infer_json
        from kbatch.values.parsed import TextParser
        from kbatch.values.protobuf import ProtobufParser, read_descriptors

        if self.format == "binary":
            return None
        if self.format == "string":
            return TextParser()
        if self.format == "avro":
            reader = None if self.reader_schema is None else read_schema(self.reader_schema)
            return AvroParser(read_schemas(self.schema or str(self.schema_file)), self.framing, reader)
        if self.format == "protobuf":
            return ProtobufParser(read_descriptors(self.schema or str(self.schema_file)), self.message, self.framing)
        text = self._schema_text()
        if self.format == "struct":
            return FixedParser(text or "")
        if text is None:
            return JsonParser(infer_json(sample()), self.unknown or "keep")
        return JsonParser(parse_ddl(text), self.unknown or "ignore")

    @property
    def inferred(self) -> bool:
        """Whether the schema is inferred from values."""
        return self.format == "json" and self.schema is None and self.schema_file is None

    def json_parser(self, kind: pa.DataType) -> Parser:
        """Return the parser of json for a type that is already known."""
        from kbatch.values.json import JsonParser

        return JsonParser(kind, self.unknown or ("keep" if self.inferred else "ignore"))

    def _schema_text(self) -> str | None:
        from kbatch.values.schema_limits import read_file

        path = self.schema_file
        # The schema is the name of a file if such a file exists, else the text itself.
        if path is None and self.schema is not None and len(self.schema) < 4096 and os.path.isfile(self.schema):
            path = self.schema
        if path is None:
            return self.schema
        try:
            return read_file(path, "the schema").decode().strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: can't read the schema: {error}") from None


@dataclass(frozen=True)
class ValueOptions:
    """The formats of keys and of values."""

    key: FormatOptions = FormatOptions()
    value: FormatOptions = FormatOptions()

    @property
    def parsed(self) -> tuple[On, ...]:
        """The sides that are parsed."""
        return tuple(on for on in ("key", "value") if getattr(self, on).format != "binary")

    @classmethod
    def options(cls) -> list[Option]:
        """Return the definitions for values and for keys."""
        return [each for side in SIDES for each in opts.options_of(FormatOptions, side=side)]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ValueOptions:
        """Parse the options of Spark that are about values and keys; names in any case, others are ignored.

        Parameters
        ----------
        options : mapping of str to str

        Raises
        ------
        ValueError
            For options that do not fit the format.

        Examples
        --------
        >>> from kbatch.plan.value_options import ValueOptions
        >>> ValueOptions.parse({"valueFormat": "json", "valueSchema": "id bigint"}).value.schema
        'id bigint'
        """
        given = {name.lower(): value for name, value in options.items()}
        return cls.build(lambda side: opts.from_strings(opts.options_of(FormatOptions, side=side), given))

    @classmethod
    def build(cls, parse: Callable[[On], tuple[dict[str, Any], dict[str, str]]]) -> ValueOptions:
        """Build both sides from the values and the names that `parse` returns for each."""
        sides = {}
        for side in SIDES:
            values, names = parse(side)
            sides[side] = opts.as_named(partial(FormatOptions, **values), names)
        return cls(**sides)
