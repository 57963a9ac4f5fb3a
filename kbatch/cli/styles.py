"""Colors of a terminal, by the conventions of ``NO_COLOR``, ``FORCE_COLOR`` and ``CLICOLOR_FORCE``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from kbatch.escaping import printable

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Style", "Styled", "StyledSpan", "colored", "styled", "uses_color"]

Style = Literal["heading", "error", "warning", "name"]

# Parameters of the control sequence "select graphic rendition" (ECMA-48).
_SEQUENCES: dict[Style, str] = {"heading": "1", "error": "1;31", "warning": "33", "name": "36"}


class StyledSpan(NamedTuple):
    """The style of the characters from `start` up to `stop`."""

    start: int
    stop: int
    style: Style


class Styled(str):
    """An escaped line, parts of which have a style.

    Attributes
    ----------
    spans : tuple of StyledSpan
        In order, without overlaps.
    """

    spans: tuple[StyledSpan, ...]

    def __new__(cls, text: str, spans: Iterable[StyledSpan] = ()) -> Self:
        """Escape a text; spans refer to the escaped text."""
        made = super().__new__(cls, printable(text))
        made.spans = tuple(spans)
        return made


class _Stream(Protocol):
    def isatty(self) -> bool: ...


def styled(text: str, style: Style, part: str | None = None) -> Styled:
    """Return a line with a style, or the first occurrence of a part of it.

    Examples
    --------
    >>> from kbatch.cli.styles import styled
    >>> styled("orders-0: DAMAGED", "error", "DAMAGED").spans
    (StyledSpan(start=10, stop=17, style='error'),)
    """
    text = printable(text)
    shown = text if part is None else printable(part)
    start = text.find(shown)
    return Styled(text, [StyledSpan(start, start + len(shown), style)] if shown and start >= 0 else [])


def uses_color(stream: _Stream | Any) -> bool:
    """Whether output to a stream has colors.

    As in Python itself: never with a value of the environment variable ``NO_COLOR``; else with one of ``FORCE_COLOR``,
    or of ``CLICOLOR_FORCE`` other than 0; else on a terminal, unless ``TERM`` is ``dumb``.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and stream is not None and bool(stream.isatty())


def colored(text: str, style: Style) -> str:
    """Return a text with the control sequences of a style."""
    return f"\x1b[{_SEQUENCES[style]}m{text}\x1b[0m"
