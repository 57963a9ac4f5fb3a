"""Pictures as SVG. Colours are classes, which the style sheet of the page defines for light and dark screens.

Pictures are 400 units wide, so that their text is readable on a phone, and as wide as their column on other screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.escaping import html_text, printable

__all__ = ["Bar", "Pictures", "Row", "Series", "cut"]

_WIDTH = 400
_LEFT, _RIGHT = 52, 8
_INNER = _WIDTH - _LEFT - _RIGHT
_CHARACTER = 6.3


class Series(NamedTuple):
    """Numbers of a chart: their name, their class of colour, and one for each place."""

    name: str
    colour: str
    numbers: npt.NDArray[np.float64]


class Bar(NamedTuple):
    """A part of a row, from `start` to `end` of the whole width (0 to 1), with its class of colour."""

    start: float
    end: float
    colour: str


class Row(NamedTuple):
    """A row of bars, with a text before and after it."""

    name: str
    bars: Sequence[Bar]
    text: str = ""


def cut(text: str, limit: int) -> str:
    """Return a text for people in at most `limit` characters: escaped, and with an ellipsis in its middle."""
    text = printable(text)
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text_at(x: float, y: float, text: str, anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{_coordinate(x)}" y="{_coordinate(y)}"{where}>{html_text(text)}</text>'


class Pictures:
    """Makes the pictures of a page; each has a title and a description for people who do not see it."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def areas(
        self,
        title: str,
        description: str,
        series: Sequence[Series],
        ticks: Sequence[tuple[float, str]],
        scale: Sequence[tuple[float, str]],
    ) -> str:
        """Draw stacked steps.

        Parameters
        ----------
        title, description : str
        series : sequence of Series
            The first is at the bottom.
        ticks : sequence of (float, str)
            Places on the horizontal axis, from 0 to 1, and their texts.
        scale : sequence of (float, str)
            Values on the vertical axis, ascending from 0, and their texts; the last is the top.
        """
        inner, base, most = 142, 150, scale[-1][0] or 1.0
        parts = [*_grid(scale, inner, base), *_time_axis(ticks, base)]
        below = np.zeros(len(series[0].numbers)) if series else np.zeros(0)
        for each in series:
            above = below + each.numbers
            if each.numbers.any():
                xs = _LEFT + _INNER * np.arange(len(above) + 1) / len(above)
                steps = _steps(xs, base - inner * above / most, base - inner * below / most)
                parts.append(f'<path class="{each.colour}" d="{steps}"/>')
            below = above
        parts.append(f'<path class="axis" d="M{_LEFT} {base}H{_WIDTH - _RIGHT}"/>')
        return self._svg(title, description, base + 20, parts)

    def columns(
        self,
        title: str,
        description: str,
        counts: Sequence[float],
        labels: Sequence[str],
        scale: Sequence[tuple[float, str]],
    ) -> str:
        """Draw a column for each count, with labels below; `scale` is as for `areas`."""
        inner, base, most = 122, 130, scale[-1][0] or 1.0
        step = _INNER / max(len(counts), 1)
        parts = _grid(scale, inner, base)
        widest = max(map(len, labels), default=1) * _CHARACTER + 6
        every = max(1, int(np.ceil(widest / step)))
        for i, (number, label) in enumerate(zip(counts, labels, strict=True)):
            x = _LEFT + i * step
            if number:
                size = max(inner * number / most, 1)
                parts.append(_rect("c0", x + step * 0.08, base - size, step * 0.84, size))
            if i % every == 0:
                parts.append(_text_at(x + step / 2, base + 13, label, "middle"))
        parts.append(f'<path class="axis" d="M{_LEFT} {base}H{_WIDTH - _RIGHT}"/>')
        return self._svg(title, description, base + 20, parts)

    def rows(
        self,
        title: str,
        description: str,
        rows: Sequence[Row],
        *,
        ticks: Sequence[tuple[float, str]] = (),
        background: bool = False,
        least: float = 0.0,
    ) -> str:
        """Draw rows of bars, each below its name.

        Parameters
        ----------
        title, description : str
        rows : sequence of Row
        ticks : sequence of (float, str)
            As for `areas`.
        background : bool
            Whether the whole width of each row is shown.
        least : float
            The least width of a bar, so that it can be seen.
        """
        height, top = 28, 4
        parts: list[str] = []
        left, width = 4, _WIDTH - 8
        for number, row in enumerate(rows):
            y = top + number * height
            room = int(width / _CHARACTER) - len(row.text) - 2
            parts.append(_text_at(left, y + 9, cut(row.name, max(room, 8))))
            if row.text:
                parts.append(_text_at(left + width, y + 9, row.text, "end"))
            if background:
                parts.append(_rect("back", left, y + 13, width, 9))
            for bar in row.bars:
                size = max(width * (bar.end - bar.start), least)
                x = min(left + width * bar.start, left + width - size)
                parts.append(_rect(bar.colour, x, y + 13, size, 9))
        base = top + len(rows) * height
        parts += _time_axis(ticks, base, left, width)
        if ticks:
            parts.append(f'<path class="axis" d="M{left} {base}h{width}"/>')
        return self._svg(title, description, base + (20 if ticks else 2), parts)

    def _svg(self, title: str, description: str, height: int, parts: Sequence[str]) -> str:
        number = next(self._numbers)
        names = f"picture-{number}", f"picture-{number}-text"
        return (
            f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="{names[0]} {names[1]}">'
            f'<title id="{names[0]}">{html_text(title)}</title>'
            f'<desc id="{names[1]}">{html_text(description)}</desc>{"".join(parts)}</svg>'
        )


def _rect(colour: str, x: float, y: float, width: float, height: float) -> str:
    place = f'x="{_coordinate(x)}" y="{_coordinate(y)}"'
    return f'<rect class="{colour}" {place} width="{width:.2f}" height="{_coordinate(height)}"/>'


def _grid(scale: Sequence[tuple[float, str]], height: int, base: int) -> list[str]:
    """Return the lines and texts of the vertical axis, of a height above a base."""
    parts = []
    for value, text in scale:
        y = base - height * value / (scale[-1][0] or 1.0)
        parts.append(f'<path class="grid" d="M{_LEFT} {_coordinate(y)}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text_at(_LEFT - 5, y + 3.5, text, "end"))
    return parts


def _time_axis(
    ticks: Sequence[tuple[float, str]], base: float, left: float = _LEFT, width: float = _INNER
) -> list[str]:
    """Draw ticks, with the texts of all, or of each second, third, ... where more would overlap."""
    parts, texts = [], []
    for place, text in ticks:
        x = left + width * place
        anchor = "end" if place > 0.92 else "start" if place < 0.04 else "middle"
        parts.append(f'<path class="axis" d="M{_coordinate(x)} {base}v4"/>')
        length = len(text) * _CHARACTER
        texts.append((x - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor], length, x, text, anchor))
    step = 1
    while any(a + length + _CHARACTER > b for (a, length, *_), (b, *_) in pairwise(texts[::step])):
        step += 1
    return parts + [_text_at(x, base + 14, text, anchor) for *_, x, text, anchor in texts[::step]]


def _steps(xs: npt.NDArray[np.float64], top: npt.NDArray[np.float64], bottom: npt.NDArray[np.float64]) -> str:
    """Return a path along steps, and back along others."""
    there = [
        f"{_coordinate(x)} {_coordinate(y)}H{_coordinate(after)}" for x, y, after in zip(xs, top, xs[1:], strict=False)
    ]
    back = [
        f"{_coordinate(x)} {_coordinate(y)}H{_coordinate(before)}"
        for x, y, before in zip(xs[:0:-1], bottom[::-1], xs[-2::-1], strict=True)
    ]
    return f"M{'L'.join([*there, *back])}Z"
