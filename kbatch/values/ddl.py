"""Parses Spark's DDL (``id bigint, tags array<string>``) into Arrow types, without Spark's Java parser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kbatch.extras import require
from kbatch.values.schema_limits import SchemaTooLargeError, TypeSize, check_text_size

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["parse_ddl"]

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[^\W]+|[<>(),:])", re.UNICODE)


def parse_ddl(text: str) -> pa.DataType:
    """Read a schema: fields (``a int, b struct<c: string>``) for a struct, or one type (``array<int>``).

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from kbatch.values.ddl import parse_ddl
    >>> parse_ddl("id bigint, at timestamp, tags array<string>")
    StructType(struct<id: int64, at: timestamp[us, tz=UTC], tags: list<element: string>>)
    """
    check_text_size(len(text), "the schema")
    reader = _Reader(text)
    try:
        kind = reader.type(1)
        if reader.done:
            return kind
    except SchemaTooLargeError:
        raise
    except ValueError:
        pass
    reader = _Reader(text)
    kind = reader.struct("", 1)
    if not reader.done:
        raise reader.error("the end")
    return kind


class _Reader:
    def __init__(self, text: str) -> None:
        self.pa = require("pyarrow", "arrow", "a schema")
        self.text = text
        self.at = 0
        self.nodes = 0
        pa = self.pa
        self.simple = {
            "boolean": pa.bool_(),
            "byte": pa.int8(),
            "tinyint": pa.int8(),
            "short": pa.int16(),
            "smallint": pa.int16(),
            "int": pa.int32(),
            "integer": pa.int32(),
            "long": pa.int64(),
            "bigint": pa.int64(),
            "float": pa.float32(),
            "real": pa.float32(),
            "double": pa.float64(),
            "string": pa.string(),
            "binary": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us", "UTC"),
            "timestamp_ltz": pa.timestamp("us", "UTC"),
            "timestamp_ntz": pa.timestamp("us"),
        }

    @property
    def done(self) -> bool:
        return not self.text[self.at :].strip()

    def error(self, expected: str) -> ValueError:
        found = self.text[self.at :].strip()[:30] or "the end"
        return ValueError(f"schema {self.text[:100]!r}: expected {expected} at character {self.at}, found {found!r}")

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match.group(1) if match else ""

    def take(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group(1)

    def expect(self, token: str) -> None:
        if self.peek() != token:
            raise self.error(f"{token!r}")
        self.take()

    def type(self, depth: int) -> Any:
        pa = self.pa
        self.nodes += 1
        TypeSize(self.nodes, depth).check("schema", f"character {self.at}")
        start = self.at
        name = self.take().lower()
        if name in self.simple:
            return self.simple[name]
        if name in ("decimal", "numeric", "dec"):
            digits = [10, 0]
            if self.peek() == "(":
                self.take()
                digits = [self.number(), 0]
                if self.peek() == ",":
                    self.take()
                    digits[1] = self.number()
                self.expect(")")
            if not 1 <= digits[0] <= 38 or digits[1] > digits[0]:
                raise ValueError(f"schema: decimal({digits[0]}, {digits[1]}) is not supported: at most 38 digits")
            return pa.decimal128(*digits)
        if name in ("array", "map", "struct"):
            self.expect("<")
            if name == "struct":
                kind = pa.struct([]) if self.peek() == ">" else self.struct(">", depth)
            elif name == "array":
                kind = pa.list_(pa.field("element", self.type(depth + 1)))
            else:
                key = self.type(depth + 1)
                self.expect(",")
                kind = pa.map_(key, self.type(depth + 1))
            self.expect(">")
            return kind
        self.at = start
        raise self.error("a type")

    def number(self) -> int:
        if not re.fullmatch(r"\d{1,3}", self.peek(), re.ASCII):
            raise self.error("a number")
        return int(self.take())

    def struct(self, end: str, depth: int) -> Any:
        """Read fields up to the token `end`, which is not consumed."""
        fields: list[tuple[str, Any]] = []
        while True:
            name = self.peek()
            if not name or (name[0] != "`" and not re.fullmatch(r"\w+", name)):
                raise self.error("a field's name")
            self.take()
            if self.peek() == ":":
                self.take()
            # NOT NULL has no effect: a field may be missing in any value.
            fields.append((name[1:-1].replace("``", "`") if name[0] == "`" else name, self.type(depth + 1)))
            if self.peek().lower() == "not":
                self.take()
                if self.take().lower() != "null":
                    raise self.error("NOT NULL")
            if self.peek().lower() == "comment":
                self.take()
                self.take()
            if self.peek() != ",":
                break
            self.take()
        names = [name for name, _ in fields]
        if len(set(names)) != len(names):
            raise ValueError(f"schema {self.text[:100]!r}: two fields have the same name")
        return self.pa.struct(fields)
