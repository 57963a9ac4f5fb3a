"""The flags for the formats of keys and values."""

from __future__ import annotations

import argparse
from dataclasses import replace

from kbatch.cli.flags import add_flags, given_values
from kbatch.options import options_of
from kbatch.value_options import SIDES, FormatOptions, RegistryOptions, ValueOptions

__all__ = ["WRITTEN_VALUES", "add_value_arguments", "value_options"]

# What the flags do in commands that write columns.
WRITTEN_VALUES = (
    "Without a format, bytes are written unchanged. The bytes of values (keys) that cannot be parsed\n"
    "completely are kept in the column value_bad (key_bad), the reason is in value_error (key_error).\n"
    "value_schema_id (key_schema_id) has the id of a schema registry, with framing."
)


def add_value_arguments(group: argparse._ArgumentGroup, description: str = WRITTEN_VALUES) -> None:
    """Add the flags to a group of a command's parser; `value_options` reads them."""
    group.description = description
    for side in SIDES:
        options = options_of(FormatOptions, side=side)
        if side == "key":
            options = [replace(each, help=f"as --value{flag[5:]}") for each in options for flag in each.flags]
        add_flags(group, options)
    add_flags(group, options_of(RegistryOptions))


def value_options(arguments: argparse.Namespace) -> ValueOptions:
    """Return the `ValueOptions` that the flags ask for.

    Raises
    ------
    ValueError
        For flags that do not fit the format.
    """
    made, names = given_values(options_of(RegistryOptions), arguments)
    return ValueOptions.build(
        lambda side: given_values(options_of(FormatOptions, side=side), arguments),
        RegistryOptions(**made).settings(),
        names["schema_registry"],
    )
