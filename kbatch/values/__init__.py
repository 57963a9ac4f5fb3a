"""What is in keys and values: JSON, Avro, Protobuf and fixed-width structs -> Arrow columns.

Every parser has a ``type`` and ``parse``: bytes in, a column of that type out, of the same length, null where the bytes
are null or bad. Bad ones are named with the reason and kept as they are (`ParsedValues.bad_values`): nothing is lost.
"""

from kbatch.values.avro import AvroParser
from kbatch.values.fixed import FixedParser
from kbatch.values.json import JsonParser, infer_json
from kbatch.values.parsed import Parsed, ParsedValues, Parser, TextParser
from kbatch.values.protobuf import ProtobufParser

__all__ = [
    "AvroParser",
    "FixedParser",
    "JsonParser",
    "Parsed",
    "ParsedValues",
    "Parser",
    "ProtobufParser",
    "TextParser",
    "infer_json",
]
