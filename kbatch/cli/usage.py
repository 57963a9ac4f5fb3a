"""Types of arguments, and wrong usage as an error of the parser (exit status 2)."""

from __future__ import annotations

import argparse
import base64
import binascii
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kbatch.cli.terminal import print_errors
from kbatch.options import CODEC_LEVELS, INT64_MAX, ValueKind, parse_codec_level, size, whole_number

__all__ = [
    "UsageError",
    "add_json",
    "add_storage_option",
    "argument",
    "codec_argument",
    "name_and_value",
    "number_argument",
    "parse_bytes",
    "size_argument",
    "storage_options",
    "usage",
]


class UsageError(Exception):
    """Conflicting arguments; `kbatch.cli.main` reports them through the parser of the command."""


@contextmanager
def usage() -> Iterator[None]:
    """Treat a `ValueError` in the block, which only combines arguments, as wrong usage."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


def argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the type of an option from a function that raises `ValueError`, whose message argparse would drop.

    Warnings are printed on standard error.
    """

    def parsed(text: str) -> Any:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                value = parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        for each in caught:
            print_errors(f"kbatch: warning: {each.message}")
        return value

    return parsed


def codec_argument(text: str) -> str:
    """Return a codec, with or without a level, if it is valid."""
    argument(lambda each: parse_codec_level(each, CODEC_LEVELS))(text)
    return text


def number_argument(minimum: int, maximum: int = INT64_MAX) -> Callable[[str], Any]:
    """Return the type of an option that is a whole number within these bounds.

    Examples
    --------
    >>> from kbatch.cli.usage import number_argument
    >>> number_argument(0, 100)("7")
    7
    """
    return _argument_of(whole_number(minimum, maximum))


def size_argument(minimum: int, maximum: int = INT64_MAX) -> Callable[[str], Any]:
    """Return the type of an option that is a size in bytes, such as 65536 or 64k, within these bounds.

    Examples
    --------
    >>> from kbatch.cli.usage import size_argument
    >>> size_argument(0)("64k")
    65536
    """
    return _argument_of(size(minimum, maximum))


def _argument_of(kind: ValueKind) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind.parse(text)
        kind.check(value)
        return value

    return argument(parse)


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--storage-option``, for the filesystem of the paths."""
    parser.add_argument(
        "--storage-option",
        dest="storage_options",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=name_and_value,
        help="for a PATH that is a URL such as s3://bucket/logs: an option of its filesystem, such as "
        "endpoint_override=http://host:port; follow_links=true follows symbolic links in a local PATH; may be repeated",
    )


def name_and_value(text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``, as the type of an option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def storage_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the values of the option that `add_storage_option` adds."""
    return dict(arguments.storage_options)


def parse_bytes(text: str) -> bytes:
    r"""Parse text, ``hex:...`` or ``base64:...``; ``text:`` before a text avoids either prefix.

    Examples
    --------
    >>> from kbatch.cli.usage import parse_bytes
    >>> parse_bytes("key-1"), parse_bytes("hex:00ff"), parse_bytes("base64:AAAA"), parse_bytes("text:hex:00")
    (b'key-1', b'\x00\xff', b'\x00\x00\x00', b'hex:00')
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "hex":
            return bytes.fromhex(rest)
        if kind == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        expected = "an even number of hexadecimal digits" if kind == "hex" else "complete base64"
        raise ValueError(f"must have {expected} after {kind}:, got {text!r}") from None
    return (rest if kind == "text" else text).encode("utf-8", "surrogateescape")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
