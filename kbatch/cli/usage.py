"""Types of arguments, and wrong usage as an error of the parser (exit status 2)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kbatch.format import INT64_MAX
from kbatch.options import whole_number

__all__ = ["UsageError", "argument", "number_argument", "usage"]


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
    """Return the type of an option from a function that raises `ValueError`, whose message argparse would drop."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def number_argument(minimum: int, maximum: int = INT64_MAX) -> Callable[[str], Any]:
    """Return the type of an option that is a whole number within these bounds.

    Examples
    --------
    >>> from kbatch.cli.usage import number_argument
    >>> number_argument(0, 100)("7")
    7
    """
    kind = whole_number(minimum, maximum)

    def parse(text: str) -> Any:
        value = kind.parse(text)
        kind.check(value)
        return value

    return argument(parse)
