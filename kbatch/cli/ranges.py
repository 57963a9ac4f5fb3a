"""The options ``--offsets A:B`` and ``--times FROM:TO``: one syntax for all commands that read a part of a log."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from kbatch.cli.usage import argument
from kbatch.quantities import parse_time

__all__ = ["RANGES", "Ranges", "add_ranges", "given_ranges", "parse_offsets", "parse_times"]

# For the epilog of each command with `add_ranges`; docs/command-line.md has the same text with examples.
RANGES = """\
ranges:
  A range includes its first value and excludes its last. An empty side is open. Negative values count back.
  --offsets  100:200, 100:, :200; 100 is a single offset; -10: is the last ten offsets of each log
  --times    2024-05-01:2024-05-02, 2024-05-01T06:00:, -1h: (the last hour), 1714521600000: (milliseconds);
             UTC unless a time has an offset such as +02:00
"""

_RANGE_OF_OFFSETS = "a range of offsets such as 100:200, 100:, :200 or -10:, or one offset"
_RANGE_OF_TIMES = (
    "a range of times such as 2024-05-01:2024-05-02, 2024-05-01T06:00: or -1h:, each side in ISO 8601 (UTC), "
    "milliseconds since 1970, or a duration before now"
)


class Ranges(NamedTuple):
    """Half-open ranges; None is an open side.

    Attributes
    ----------
    start_offset, stop_offset : int or None
        Negative offsets count back from the end of the log.
    start_timestamp, stop_timestamp : int or None
        Milliseconds since the epoch.
    """

    start_offset: int | None = None
    stop_offset: int | None = None
    start_timestamp: int | None = None
    stop_timestamp: int | None = None

    @property
    def counts_back(self) -> bool:
        """Whether an offset counts back from the end of the log."""
        return (self.start_offset or 0) < 0 or (self.stop_offset or 0) < 0


def add_ranges(group: argparse._ActionsContainer) -> None:
    """Add ``--offsets`` and ``--times`` to a parser or a group; `given_ranges` reads them."""
    group.add_argument(
        "--offsets",
        metavar="A:B",
        type=argument(parse_offsets),
        default=(None, None),
        help="only offsets from A up to but not including B; see 'ranges' below",
    )
    group.add_argument(
        "--times",
        metavar="FROM:TO",
        type=argument(parse_times),
        default=(None, None),
        help="only timestamps from FROM up to but not including TO; see 'ranges' below",
    )


def given_ranges(arguments: argparse.Namespace) -> Ranges:
    """Return the values of the options that `add_ranges` adds."""
    return Ranges(*arguments.offsets, *arguments.times)


def parse_offsets(text: str) -> tuple[int | None, int | None]:
    """Parse ``A:B``, ``A:``, ``:B`` or ``A``; negative offsets count back from the end of the log.

    Examples
    --------
    >>> parse_offsets("5:"), parse_offsets("7"), parse_offsets("-10:"), parse_offsets("-1")
    ((5, None), (7, 8), (-10, None), (-1, None))
    """
    first, colon, last = text.partition(":")
    try:
        start = int(first) if first else None
        stop = int(last) if last else None
    except ValueError:
        raise ValueError(f"must be {_RANGE_OF_OFFSETS}, got {text!r}") from None
    if start is None and stop is None:
        raise ValueError(f"must be {_RANGE_OF_OFFSETS}, got {text!r}")
    if start is not None and not colon:
        # The offset after -1 is the end of the log.
        stop = None if start == -1 else start + 1
    # Whether -10:5 is empty depends on the log.
    if start is not None and stop is not None and (start < 0) == (stop < 0) and start > stop:
        raise ValueError(f"must be {_RANGE_OF_OFFSETS}, got {text!r}, whose start is after its end")
    return start, stop


def parse_times(text: str) -> tuple[int | None, int | None]:
    """Parse ``FROM:TO``, ``FROM:`` or ``:TO``, two times as for `parse_time`, which may contain colons.

    Examples
    --------
    >>> parse_times("1700000000000:"), parse_times("2023-11-14T22:13:20:2023-11-14T22:13:21Z")
    ((1700000000000, None), (1700000000000, 1700000001000))
    """
    splits = [(text[:i], text[i + 1 :]) for i, character in enumerate(text) if character == ":"]
    found = []
    for first, last in splits:
        # Times contain colons too. At most one of the splits leaves a time, or nothing, on both sides.
        try:
            found.append((parse_time(first) if first else None, parse_time(last) if last else None))
        except ValueError:
            continue
    if len(found) != 1 or found[0] == (None, None):
        raise ValueError(f"must be {_RANGE_OF_TIMES}, got {text!r}")
    start, stop = found[0]
    if start is not None and stop is not None and start > stop:
        raise ValueError(f"must be {_RANGE_OF_TIMES}, got {text!r}, whose start is after its end")
    return start, stop
