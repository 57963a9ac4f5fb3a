"""The part of logs that a command reads: the same flags in every command, with the names of `kbatch.Log.tables`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from kbatch.cli.flags import add_flags, given_values
from kbatch.options import BYTES, Isolation, ValueKind, option, options_of
from kbatch.plan.read_options import ReadOptions
from kbatch.quantities import parse_time

__all__ = [
    "INDEX",
    "RANGES",
    "SelectionFlags",
    "add_selection",
    "given_index",
    "given_selection",
    "parse_offsets",
    "parse_times",
]

# For the epilog of each command with ranges; docs/command-line.md has the same text with examples.
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


@dataclass(frozen=True)
class SelectionFlags:
    """The topic-partitions and records to read; None, or no key, chooses all.

    Attributes
    ----------
    topics : tuple of str or None
        Names and globs.
    partitions : frozenset of int or None
    start_offset, stop_offset : int or None
        Half-open, as all ranges. Negative offsets count back from the end of the log.
    start_timestamp, stop_timestamp : int or None
        Milliseconds since the epoch.
    isolation : str
    key : tuple of bytes
        The record has one of these keys.
    """

    topics: tuple[str, ...] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int | None = None
    stop_offset: int | None = None
    start_timestamp: int | None = None
    stop_timestamp: int | None = None
    isolation: Isolation = "read_uncommitted"
    key: tuple[bytes, ...] = ()

    @property
    def counts_back(self) -> bool:
        """Whether an offset counts back from the end of the log."""
        return (self.start_offset or 0) < 0 or (self.stop_offset or 0) < 0

    @property
    def predicate(self) -> Callable[[str | None, int | None], bool] | None:
        """Whether a topic-partition is to be read; None for all."""
        if self.topics is None and self.partitions is None:
            return None
        from kbatch.log.selection import LogChooser, Selection

        return LogChooser(Selection(topics=self.topics, partitions=self.partitions))


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


@dataclass(frozen=True)
class RangeFlags:
    """The flags of ranges; each is two values of a `SelectionFlags`.

    Attributes
    ----------
    offsets, times : pair of int or None
    """

    offsets: tuple[int | None, int | None] | None = option(
        ValueKind(parse_offsets, "100:200", metavar="A:B"), None, flag="--offsets",
        help="only offsets from A up to but not including B; see 'ranges' below",
    )  # fmt: skip
    times: tuple[int | None, int | None] | None = option(
        ValueKind(parse_times, "-1h:", metavar="FROM:TO"), None, flag="--times",
        help="only timestamps from FROM up to but not including TO; see 'ranges' below",
    )  # fmt: skip


_READING = {each.name: each for each in options_of(ReadOptions)}
_REPEATED_KEY = replace(
    BYTES,
    parse=lambda text: (BYTES.parse(text),),
    repeated=True,
    help=f"{BYTES.help}; may be given more than once, for records with any of the keys",
)
# The key index of a read.
INDEX = [_READING["index"]]
_SELECTING = {
    "topics": _READING["topics"],
    "partitions": _READING["partitions"],
    **{each.name: each for each in options_of(RangeFlags)},
    "isolation": _READING["isolation"],
    "key": replace(_READING["key"], flags={"--key": _REPEATED_KEY}),
}


class _Refused(argparse.Action):
    """A flag that has no meaning for a command; `const` is the reason."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(f"{self.option_strings[0]} has no meaning for this command: {self.const}")


def add_selection(group: argparse._ActionsContainer, *names: str, reason: str = "") -> None:
    """Add the flags of a `SelectionFlags`; `given_selection` reads them.

    Parameters
    ----------
    group : parser or group
    *names : str
        ``topics``, ``partitions``, ``offsets``, ``times``, ``isolation`` and ``key``, as far as the command has them.
    reason : str
        Why the command refuses the others.
    """
    for name, each in _SELECTING.items():
        if name in names:
            add_flags(group, [each])
        else:
            for flag in each.flags:
                group.add_argument(flag, action=_Refused, const=reason, help=argparse.SUPPRESS)


def given_index(arguments: argparse.Namespace) -> str | None:
    """Return the directory of the key index that the flags of `INDEX` mean; None for no index."""
    from kbatch.log.key_lookup import index_directory

    return index_directory(given_values(INDEX, arguments)[0].get("index"))


def given_selection(arguments: argparse.Namespace) -> SelectionFlags:
    """Return the values of the flags that `add_selection` adds."""
    values, _ = given_values(_SELECTING.values(), arguments)
    offsets, times = values.pop("offsets", (None, None)), values.pop("times", (None, None))
    return SelectionFlags(
        start_offset=offsets[0], stop_offset=offsets[1], start_timestamp=times[0], stop_timestamp=times[1], **values
    )
