"""The axes of pictures: where ticks are, and their texts."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from kbatch.escaping import format_size
from kbatch.report.buckets import TIME_WIDTHS

__all__ = ["format_duration", "format_width", "number_scale", "short", "size_scale", "time_ticks"]

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
# From the year 1 to 9999.
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000, 253_402_300_799_999
_WIDTH_NAMES: dict[int, str] = dict(
    zip(
        TIME_WIDTHS,
        ("millisecond", "10 milliseconds", "100 milliseconds", "second", "10 seconds", "30 seconds", "minute",
         "5 minutes", "10 minutes", "30 minutes", "hour", "2 hours", "6 hours", "12 hours", "day", "week",
         "4 weeks", "52 weeks"),
        strict=False,
    )
)  # fmt: skip
# Distances between ticks.
_TIME_STEPS = (
    1, 10, 100, _SECOND, 5 * _SECOND, 15 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR,
    12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 28 * _DAY, 91 * _DAY, 364 * _DAY,
)  # fmt: skip


def format_width(width: int) -> str:
    """Return the name of the width of a bucket of times."""
    return _WIDTH_NAMES.get(width, f"{width // (364 * _DAY):,} years")


def format_duration(milliseconds: int | None) -> str:
    """Format a duration for people.

    Examples
    --------
    >>> from kbatch.report.scales import format_duration
    >>> [format_duration(number) for number in (None, 850, 61_000, 7_500_000, 200_000_000)]
    ['-', '850 ms', '1 min 1 s', '2 h 5 min', '2 d 7 h']
    """
    if milliseconds is None:
        return "-"
    if milliseconds < _SECOND:
        return f"{milliseconds:,} ms"
    if milliseconds < _MINUTE:
        return f"{milliseconds / 1000:.1f} s"
    for large, small, size, part in (("min", "s", _MINUTE, _SECOND), ("h", "min", _HOUR, _MINUTE)):
        if milliseconds < size * (60 if size == _MINUTE else 24):
            rest = milliseconds % size // part
            return f"{milliseconds // size} {large}" + (f" {rest} {small}" if rest else "")
    days, rest = divmod(milliseconds // _HOUR, 24)
    if days >= 100 * 365:
        return f"{days // 365:,} years"
    return f"{days:,} d" + (f" {rest} h" if rest and days < 100 else "")


def short(number: float) -> str:
    """Format a number in few characters: ``1.5k``, ``20M``."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def number_scale(most: float) -> list[tuple[float, str]]:
    """Return round numbers from 0 to at least `most`, with their texts."""
    step = _round_step(most / 3, (1, 2, 2.5, 5, 10), 10)
    if most <= 3:
        step = 1.0
    return [(i * step, short(i * step)) for i in range(int(np.ceil(max(most, 1e-9) / step)) + 1)]


def size_scale(most: float) -> list[tuple[float, str]]:
    """Return round numbers of bytes from 0 to at least `most`, with their texts."""
    step = _round_step(max(most, 3) / 3, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), 1024)
    return [(i * step, _short_size(i * step)) for i in range(int(np.ceil(max(most, 1) / step)) + 1)]


def _short_size(size: float) -> str:
    """Format a multiple of a power of two."""
    if size < 1024:
        return f"{size:.0f} B"
    return format_size(round(size)).replace(".0 ", " ")


def _round_step(least: float, steps: tuple[float, ...], base: float) -> float:
    unit = float(base ** np.floor(np.log(max(least, 1e-9)) / np.log(base)))
    return next((each * unit for each in steps if each * unit >= least * 0.999), base * unit)


def time_ticks(first: int, last: int, limit: int = 5) -> list[tuple[float, str]]:
    """Return places between two times, from 0 to 1, at round times in UTC, with their texts."""
    span = max(last - first, 1)
    if first < _FIRST_TIME or last > _LAST_TIME:
        return []
    step = next((each for each in _TIME_STEPS if span / each <= limit), None)
    if step is None:
        step = 364 * _DAY * int(np.ceil(span / (364 * _DAY) / limit))
    begin = -(-first // step) * step
    ticks = []
    for time in range(begin, last + 1, step):
        when = datetime.fromtimestamp(time / 1000, UTC)
        if step >= 28 * _DAY:
            text = f"{when:%Y-%m}"
        elif step >= _DAY:
            text = f"{when:%m-%d}"
        elif step >= _MINUTE:
            text = f"{when:%H:%M}" if span < _DAY else f"{when:%m-%d %H}h"
        elif step >= _SECOND:
            text = f"{when:%H:%M:%S}"
        else:
            text = f"{when:%S}.{when.microsecond // 1000:03}"
        ticks.append(((time - first) / span, text))
    return ticks
