"""Types of arguments, and wrong usage as an error of the parser (exit status 2)."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kbatch.cli.terminal import print_errors
from kbatch.format import INT64_MAX
from kbatch.options import ValueKind, size, whole_number

__all__ = ["UsageError", "argument", "number_argument", "size_argument", "usage"]


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
