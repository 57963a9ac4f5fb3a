"""Parsers of keys and values (JSON, Avro, Protobuf and fixed-width structs) into Arrow columns.

The ``parse`` method of a parser turns a column of bytes into a column of its ``type``, of the same length, with null
where the bytes are null or cannot be parsed. Bad bytes are kept, with the reason (`ParsedValues.bad_values`), so that
nothing is lost.
"""

from kbatch.values.avro import AvroParser
from kbatch.values.deviations import FieldDeviation
from kbatch.values.fixed import FixedParser
from kbatch.values.json import JsonParser, infer_json
from kbatch.values.parsed import Parsed, ParsedValues, Parser, TextParser
from kbatch.values.protobuf import ProtobufParser

__all__ = [
    "AvroParser",
    "FieldDeviation",
    "FixedParser",
    "JsonParser",
    "Parsed",
    "ParsedValues",
    "Parser",
    "ProtobufParser",
    "TextParser",
    "infer_json",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
