"""The flags of a command, made from the `option` fields of dataclasses, and their values as objects."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from kbatch.cli.terminal import print_errors
from kbatch.options import BOOLEAN, Option, ValueKind, as_named, option, options_of

__all__ = [
    "JSON",
    "JSON_LINES",
    "NAME_AND_VALUE",
    "REPEATED_PATHS",
    "STORAGE",
    "UsageError",
    "add_flags",
    "given_options",
    "given_storage",
    "given_values",
    "usage",
]

OptionsT = TypeVar("OptionsT")


class UsageError(Exception):
    """Conflicting arguments; `kbatch.cli.main` reports them through the parser of the command."""


@contextmanager
def usage() -> Iterator[None]:
    """Treat a `ValueError` in the block, which only combines arguments, as wrong usage."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


def add_flags(group: argparse._ActionsContainer, options: Iterable[Option]) -> None:
    """Add the flags of options to a parser or a group. A flag that is not given leaves the default to the dataclass."""
    for each in options:
        for flag, kind in each.flags.items():
            text = kind.help or each.help
            if not (kind.is_switch or kind.help or each.is_required or each.default in (None, ())):
                text += f" (default: {each.kind.show(each.default)})"
            text = text.replace("%", "%%")
            names = [kind.letter, flag] if kind.letter else [flag]
            if kind.is_switch and not kind.repeated:
                group.add_argument(*names, action="store_const", const=kind.parse("true"), help=text)
            else:
                group.add_argument(
                    *names,
                    action="append" if kind.repeated else "store",
                    **({"nargs": "?", "const": kind.parse("true")} if kind.is_switch else {}),
                    type=_checked(each, kind),
                    choices=kind.choices or None,
                    required=each.is_required,
                    metavar=kind.metavar,
                    help=text,
                )


def _checked(each: Option, kind: ValueKind) -> Any:
    """Return the type of a flag; of a `ValueError` in a type, argparse would drop the message."""

    def parse(text: str) -> Any:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                value = kind.parse(text)
                each.kind.check(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        for warning in caught:
            print_errors(f"kbatch: warning: {warning.message}")
        return value

    return parse


def given_values(options: Iterable[Option], arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the flags that are given, by field, and the name of each option for messages.

    Raises
    ------
    ValueError
        For two flags of one option.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for each in options:
        found = {flag: getattr(arguments, flag[2:].replace("-", "_"), None) for flag in each.flags}
        given = {flag: value for flag, value in found.items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        if each.flags:
            names[each.name] = next(iter([*given, *each.flags]))
        for flag, value in given.items():
            values[each.name] = type(value[0])(chain(*value)) if each.flags[flag].repeated else value
    return values, names


def given_options(cls: type[OptionsT], arguments: argparse.Namespace) -> OptionsT:
    """Return the options of a dataclass from their flags; an invalid combination is wrong usage."""
    with usage():
        values, names = given_values(options_of(cls), arguments)
        made: OptionsT = as_named(lambda: cls(**values), names)
    return made


def _parse_name_and_value(text: str) -> tuple[tuple[str, str], ...]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"must be NAME=VALUE, got {text!r}")
    return ((name, value),)


REPEATED_PATHS = ValueKind(lambda text: (text,), "path", metavar="PATH", repeated=True)
NAME_AND_VALUE = ValueKind(_parse_name_and_value, "name=value", metavar="NAME=VALUE", repeated=True)


@dataclass(frozen=True)
class CommonFlags:
    """The flags of several commands.

    Attributes
    ----------
    storage : tuple of pairs of str
    json : bool
    """

    storage: tuple[tuple[str, str], ...] | None = option(
        NAME_AND_VALUE, None, flag="--storage-option",
        help="for a path that is a URL such as s3://bucket/logs: an option of its filesystem, such as "
        "endpoint_override=http://host:port; follow_links=true follows symbolic links in a local path; may be repeated",
    )  # fmt: skip
    json: bool = option(BOOLEAN, False, flag="--json", help="print the result as one JSON document")


# `--json`, as in every other command, of those that print JSON lines.
JSON_LINES = ValueKind(lambda text: "json", "true", help="print JSON lines, which is the default", is_switch=True)
STORAGE, JSON = ([each] for each in options_of(CommonFlags))


def given_storage(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the filesystem of the paths."""
    return dict(given_values(STORAGE, arguments)[0].get("storage", ()))
