"""What arguments may be: the types of options, and how wrong usage becomes the parser's own error, exit status 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kbatch.format import INT64_MAX

__all__ = ["UsageError", "argument", "usage", "whole_number"]


class UsageError(Exception):
    """Arguments that don't fit together; `kbatch.cli.main` lets the parser of the command say so."""


@contextmanager
def usage() -> Iterator[None]:
    """Treat a `ValueError` in the block, which only combines arguments, as wrong usage."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


def argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make the type of an option of a function that raises `ValueError`: argparse would drop its text."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def whole_number(least: int, most: int = INT64_MAX) -> Callable[[str], int]:
    """Make the type of an option that is a whole number within these bounds.

    Examples
    --------
    >>> from kbatch.cli.usage import whole_number
    >>> whole_number(0, 100)("7")
    7
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be a whole number, got {text!r}") from None
        if not least <= value <= most:
            raise ValueError(f"must be {least} to {most}, got {value}")
        return value

    return argument(parse)
