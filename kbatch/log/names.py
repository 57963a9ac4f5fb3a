"""What the names of a broker's directories and files say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from kbatch.errors import LogDirectoryError

__all__ = ["DirectoryName", "parse_directory_name", "parse_segment_name", "segment_names"]

_MARKED = re.compile(r"(?P<name>\S+-\S+)\.\S+-(?P<mark>delete|future|stray)")
_MARKS = ("-delete", "-future", "-stray")
# Tiered storage puts the segment's id between the offset and the suffix (DSK-R18).
_SEGMENT = re.compile(r"(\d{20})(?:-[\w-]+)?\.log")
_SWAP = re.compile(r"\d{20}\.log\.swap")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class DirectoryName(NamedTuple):
    """What the name of a topic-partition directory says.

    Attributes
    ----------
    topic : str
        In the name of a directory that is marked ``delete`` or ``stray`` it may be cut.
    partition : int
    mark : str or None
        ``"delete"``, ``"future"`` or ``"stray"`` where the directory is no live log of the topic-partition.
    """

    topic: str
    partition: int
    mark: str | None


def parse_directory_name(name: str) -> DirectoryName:
    """Take the name of a topic-partition directory apart (DSK-R9).

    What is no such name is what Kafka's ``LocalLog.parseTopicPartitionName`` refuses.

    Raises
    ------
    LogDirectoryError
        If it is not the name of one.

    Examples
    --------
    >>> parse_directory_name("page-views-3")
    DirectoryName(topic='page-views', partition=3, mark=None)
    """
    mark = None
    stem = name
    if name.endswith(_MARKS):
        marked = _MARKED.fullmatch(name)
        if marked is None:
            raise LogDirectoryError(f"{name!r} ends like a marked directory, but isn't 'topic-partition.id-mark'")
        stem, mark = marked["name"], marked["mark"]
    topic, dash, number = stem.rpartition("-")
    if not dash:
        raise LogDirectoryError(f"{name!r} is no topic-partition: it has no '-'")
    if not topic:
        raise LogDirectoryError(f"{name!r} is no topic-partition: the topic is empty")
    if not (number.isascii() and number.isdigit()) or int(number) > _INT32_MAX:
        raise LogDirectoryError(f"{name!r} is no topic-partition: {number!r} after the last '-' is no partition number")
    return DirectoryName(topic, int(number), mark)


def parse_segment_name(name: str) -> int | None:
    """Return the base offset that the name of a segment's ``.log`` file carries (DSK-R1), None for other names.

    Examples
    --------
    >>> parse_segment_name("00000000000000001631.log")
    1631
    >>> parse_segment_name("00000000000000001631.log.deleted")
    """
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    base_offset = int(match[1])
    return base_offset if base_offset <= _INT64_MAX else None


def segment_names(names: Iterable[str], directory: str) -> list[tuple[int, str]]:
    """Choose the segments among the names of a directory's files, by base offset.

    ``.deleted`` and ``.cleaned`` files are left alone: a broker would drop them (DSK-R8). A ``.swap`` file is a segment
    that compaction finished and that takes the place of others. While the ``.log`` of its name is there, none of those
    has gone, and the ``.swap`` is left alone; without it, records may be in the ``.swap`` only.

    Raises
    ------
    LogDirectoryError
        If a ``.swap`` stands without the ``.log`` of its name.
    """
    present = set(names)
    for name in sorted(present):
        if _SWAP.fullmatch(name) and name.removesuffix(".swap") not in present:
            raise LogDirectoryError(
                f"{directory}: {name} waits to take the place of compacted segments that are gone already; "
                f"rename it to {name.removesuffix('.swap')} and remove the segments that it covers",
                source=directory,
            )
    found = ((parse_segment_name(name), name) for name in present)
    return sorted((base_offset, name) for base_offset, name in found if base_offset is not None)
