"""How keys and values are to be parsed: Spark's options and the export's flags -> parsers. No pyspark in here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from kbatch.values.framing import Framing, check_framing

if TYPE_CHECKING:
    import pyarrow as pa

    from kbatch.values.parsed import On, Parser

__all__ = ["VALUE_OPTIONS", "Format", "FormatOptions", "ValueOptions"]

Format = Literal["binary", "string", "json", "avro", "protobuf", "struct"]

_PARTS = ("Format", "Schema", "SchemaFile", "ReaderSchema", "Framing", "Message", "UnknownFields")
# The options' names, for keys and for values.
VALUE_OPTIONS = tuple(f"{on}{part}" for on in ("key", "value") for part in _PARTS)


@dataclass(frozen=True)
class FormatOptions:
    """The format of keys or of values. Picklable, with plain values only.

    Attributes
    ----------
    format : {"binary", "string", "json", "avro", "protobuf", "struct"}
        ``"binary"`` leaves bytes as they are.
    schema : str or None
        For json Spark's DDL, or a file of it, None for what a sample has; for avro a schema's JSON, the path of an
        ``.avsc`` file or of a directory with ``<id>.avsc``; for protobuf the path of a descriptor set or a ``.proto``
        file; for struct ``name:code,...`` with NumPy's codes. Files are read where options are, on the driver.
    schema_file : str or None
        A file that holds it instead.
    reader_schema : str or None
        For avro what values are to look like, as JSON or a path.
    framing : {"none", "confluent"}
        For avro and protobuf.
    message : str or None
        For protobuf the message's full name.
    unknown : {"ignore", "bad"} or None
        For json what becomes of values with fields that the schema doesn't have; None as for `RecordTable.values_json`.
    """

    format: Format = "binary"
    schema: str | None = None
    schema_file: str | None = None
    reader_schema: str | None = None
    framing: Framing = "none"
    message: str | None = None
    unknown: Literal["ignore", "bad"] | None = None

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise ValueError(f"a format must be one of {', '.join(get_args(Format))}, got {self.format!r}")
        check_framing(self.framing)
        if self.unknown not in (None, "ignore", "bad"):
            raise ValueError(f"unknown fields are to be 'ignore' or 'bad', got {self.unknown!r}")
        if self.schema is not None and self.schema_file is not None:
            raise ValueError("a schema and a file of it exclude each other")
        given = {
            "schema": self.schema is not None or self.schema_file is not None,
            "reader's schema": self.reader_schema is not None,
            "framing": self.framing != "none",
            "message": self.message is not None,
            "rule for unknown fields": self.unknown is not None,
        }
        fits = {
            "json": {"schema", "rule for unknown fields"},
            "avro": {"schema", "reader's schema", "framing"},
            "protobuf": {"schema", "framing", "message"},
            "struct": {"schema"},
        }.get(self.format, set())
        wrong = [name for name, is_given in given.items() if is_given and name not in fits]
        if wrong:
            raise ValueError(f"format {self.format} takes no {' and no '.join(wrong)}")
        if self.format in ("avro", "protobuf", "struct") and not given["schema"]:
            raise ValueError(f"format {self.format} needs a schema")

    def parser(self, sample: Callable[[], list[bytes]]) -> Parser | None:
        """Return the parser; None for binary. `sample` is asked for values where json has no schema.

        Raises
        ------
        ValueError, TypeError
            If the schema is none.
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
        text = self._text()
        if self.format == "struct":
            return FixedParser(text or "")
        if text is None:
            return JsonParser(infer_json(sample()), self.unknown or "bad")
        return JsonParser(parse_ddl(text), self.unknown or "ignore")

    def json_parser(self, kind: pa.DataType) -> Parser:
        """Return the parser of json with a type that is known otherwise."""
        from kbatch.values.json import JsonParser

        inferred = self.schema is None and self.schema_file is None
        return JsonParser(kind, self.unknown or ("bad" if inferred else "ignore"))

    def _text(self) -> str | None:
        path = self.schema_file
        # A struct's or DDL's text is no file's name, unless there is such a file.
        if path is None and self.schema is not None and len(self.schema) < 4096 and os.path.isfile(self.schema):
            path = self.schema
        if path is None:
            return self.schema
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: no schema can be read from it: {error}") from None


@dataclass(frozen=True)
class ValueOptions:
    """The formats of keys and of values."""

    key: FormatOptions = FormatOptions()
    value: FormatOptions = FormatOptions()

    @property
    def parsed(self) -> tuple[On, ...]:
        """Which of the two are to be parsed at all."""
        sides: tuple[On, ...] = ("key", "value")
        return tuple(on for on in sides if getattr(self, on).format != "binary")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ValueOptions:
        """Read what Spark's options say of values and keys.

        Parameters
        ----------
        options : mapping of str to str
            ``valueFormat``, ``valueSchema``, ``valueSchemaFile``, ``valueReaderSchema``, ``valueFraming``,
            ``valueMessage``, ``valueUnknownFields``, which are the attributes of `FormatOptions`, and the same of keys
            (``keyFormat``, ...). Names in any case; others are passed over.

        Raises
        ------
        ValueError
            For options that don't fit the format.

        Examples
        --------
        >>> from kbatch.spark.value_options import ValueOptions
        >>> ValueOptions.parse({"valueFormat": "json", "valueSchema": "id bigint"}).value.schema
        'id bigint'
        """
        given = {name.lower(): value for name, value in options.items()}
        sides = {}
        for on in ("key", "value"):
            parts = [given.get(f"{on}{part}".lower()) for part in _PARTS]
            kind, schema, file, reader, framing, message, unknown = parts
            try:
                sides[on] = FormatOptions(
                    (kind or "binary").lower(),  # type: ignore[arg-type]
                    schema,
                    file,
                    reader,
                    (framing or "none").lower(),  # type: ignore[arg-type]
                    message,
                    unknown.lower() if unknown else None,  # type: ignore[arg-type]
                )
            except ValueError as error:
                raise ValueError(f"options {on}Format, {on}Schema, ...: {error}") from None
        return cls(**sides)
