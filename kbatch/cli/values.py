"""The flags that say what is in keys and values."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_value_arguments", "value_options"]

_FORMATS = ("binary", "string", "json", "avro", "protobuf", "struct")


def add_value_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the group of flags to a command's parser; `value_options` reads them."""
    group = parser.add_argument_group(
        "what is in keys and values",
        "Bytes are written as they are, unless a format is named. What is none of the format and its schema isn't\n"
        "lost: its bytes stand in the column value_bad (key_bad).",
    )
    helps = {
        "schema": "json: Spark's DDL, such as 'id bigint, tags array<string>', or a file of it (default: what a sample "
        "of the logs has); avro: an .avsc file, or a directory of <id>.avsc; protobuf: protoc's descriptor set, or a "
        ".proto file; struct: such as 'id:>i8,price:>f8'",
        "framing": "avro and protobuf: what a schema registry's serializer puts before them (default: none)",
        "message": "protobuf: full name of the message",
        "reader-schema": "avro: the schema that values of all others are read as",
        "unknown-fields": "json: leave out fields that the schema doesn't have, or take the value as bad (default: "
        "ignore with a schema that is given, else bad)",
    }
    for on, flag in (("value", "values"), ("key", "keys")):
        told = helps if on == "value" else {part: f"as --value-{part}" for part in helps}
        group.add_argument(
            f"--{flag}", choices=_FORMATS, default="binary", help=f"format of {flag} (default: %(default)s)"
        )
        group.add_argument(f"--{on}-schema", metavar="SCHEMA", help=told["schema"])
        group.add_argument(f"--{on}-framing", choices=("none", "confluent"), default="none", help=told["framing"])
        group.add_argument(f"--{on}-message", metavar="NAME", help=told["message"])
        group.add_argument(f"--{on}-reader-schema", metavar="FILE", help=told["reader-schema"])
        group.add_argument(f"--{on}-unknown-fields", choices=("ignore", "bad"), help=told["unknown-fields"])


def value_options(arguments: argparse.Namespace) -> Any:
    """Return the `kbatch.spark.value_options.ValueOptions` that the flags ask for.

    Raises
    ------
    ValueError
        For flags that don't fit the format.
    """
    from kbatch.spark.value_options import FormatOptions, ValueOptions

    sides = {}
    for on, flag in (("value", "values"), ("key", "keys")):
        try:
            sides[on] = FormatOptions(
                format=getattr(arguments, flag),
                schema=getattr(arguments, f"{on}_schema"),
                framing=getattr(arguments, f"{on}_framing"),
                message=getattr(arguments, f"{on}_message"),
                reader_schema=getattr(arguments, f"{on}_reader_schema"),
                unknown=getattr(arguments, f"{on}_unknown_fields"),
            )
        except ValueError as error:
            raise ValueError(f"--{flag}: {error}") from None
    return ValueOptions(**sides)
