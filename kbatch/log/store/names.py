"""Names of a broker's directories and files."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbatch.errors import LogDirectoryError
from kbatch.format import INT32_MAX, INT64_MAX

__all__ = [
    "INTERNAL_TOPICS",
    "DirectoryName",
    "SegmentName",
    "is_remote_name",
    "name_of_log",
    "parse_directory_name",
    "parse_kafka_uuid",
    "parse_segment_name",
    "parse_topic_id_name",
    "segment_names",
    "tiered_topic_id",
]

# The topics in which Kafka itself stores its state.
INTERNAL_TOPICS = frozenset(
    (
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    )
)

_MARKED = re.compile(r"(?P<name>\S+-\S+)\.\S+-(?P<mark>delete|future|stray)")
_MARKS = ("-delete", "-future", "-stray")
# Tiered storage puts the segment's id between the offset and the suffix (DSK-R18).
_SEGMENT = re.compile(r"(\d{20})(?:-[\w-]+)?\.log")
# Kafka prints ids in URL-safe base64; the 22nd character holds only two bits.
_ID = r"[A-Za-z0-9_-]{21}[AQgw]"
_ID_LENGTH = 22
# Kafka's LocalTieredStorage and Aiven's plugin pad the offset to 20 digits; both spellings are read.
_TIERED = re.compile(rf"(0|[1-9]\d{{0,18}}|\d{{20}})-{_ID}\.log", re.ASCII)
_LOCAL_TIERED_DIRECTORY = re.compile(rf"([a-zA-Z0-9._-]+)-(\d{{1,10}})-{_ID}", re.ASCII)
_TOPIC_ID = re.compile(rf"([a-zA-Z0-9._-]+)-{_ID}", re.ASCII)
_PARTITION = re.compile(r"\d{1,10}", re.ASCII)
_TEMPORARY = re.compile(r"(?P<offset>\d{20})(?P<suffix>\.\w+)\.(?P<mark>cleaned|swap)", re.ASCII)


class DirectoryName(NamedTuple):
    """The parts of a topic-partition directory's name.

    Attributes
    ----------
    topic : str
        May be truncated in the name of a directory marked ``delete`` or ``stray``.
    partition : int
    mark : str or None
        ``"delete"``, ``"future"`` or ``"stray"`` if the directory is not the live log of the topic-partition.
    """

    topic: str
    partition: int
    mark: str | None


def parse_directory_name(name: str) -> DirectoryName:
    """Parse the name of a topic-partition directory (DSK-R9).

    Raises
    ------
    LogDirectoryError
        For a name that Kafka's ``LocalLog.parseTopicPartitionName`` rejects.

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
            raise LogDirectoryError(
                f"{name!r} ends with a directory mark, but does not have the form 'topic-partition.id-mark'"
            )
        stem, mark = marked["name"], marked["mark"]
    topic, dash, number = stem.rpartition("-")
    if not dash:
        raise LogDirectoryError(f"{name!r} does not name a topic-partition: it has no '-'")
    if not topic:
        raise LogDirectoryError(f"{name!r} does not name a topic-partition: the topic is empty")
    if not (number.isascii() and number.isdigit()) or int(number) > INT32_MAX:
        raise LogDirectoryError(
            f"{name!r} does not name a topic-partition: {number!r} after the last '-' is not a partition"
        )
    return DirectoryName(topic, int(number), mark)


def parse_segment_name(name: str) -> int | None:
    """Return the base offset in the name of a segment's ``.log`` file (DSK-R1), None for other names.

    Examples
    --------
    >>> parse_segment_name("00000000000000001631.log")
    1631
    >>> parse_segment_name("00000000000000001631.log.deleted")
    """
    match = _SEGMENT.fullmatch(name) or _TIERED.fullmatch(name)
    if match is None:
        return None
    base_offset = int(match[1])
    return base_offset if base_offset <= INT64_MAX else None


def is_remote_name(name: str) -> bool:
    """Whether a file has the name of a segment in tiered storage, which is uploaded whole and never written again."""
    return _TIERED.fullmatch(name) is not None


def parse_topic_id_name(name: str) -> str | None:
    """Return the topic of a directory ``topic-topicId``, None for other names.

    Examples
    --------
    >>> parse_topic_id_name("page-views-MWJ6FHTfRYy67jzwZdeqSQ")
    'page-views'
    """
    match = _TOPIC_ID.fullmatch(name)
    return None if match is None else match[1]


def parse_kafka_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID that Kafka writes as 22 characters of URL-safe base64; None for another text and for zeros.

    Examples
    --------
    >>> parse_kafka_uuid("MWJ6FHTfRYy67jzwZdeqSQ")
    UUID('31627a14-74df-458c-baee-3cf065d7aa49')
    """
    try:
        found = base64.b64decode(text.rstrip("=") + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return uuid.UUID(bytes=found) if len(found) == 16 and any(found) else None


def tiered_topic_id(directory: str) -> uuid.UUID | None:
    """Return the topic's id in the path of a topic-partition in tiered storage; None for other paths.

    Examples
    --------
    >>> tiered_topic_id("/tier/t-MWJ6FHTfRYy67jzwZdeqSQ/7") == tiered_topic_id("/tier/t-7-MWJ6FHTfRYy67jzwZdeqSQ")
    True
    """
    parent, _, name = directory.rpartition("/")
    if _PARTITION.fullmatch(name):
        name = parent.rpartition("/")[2]
    return parse_kafka_uuid(name[-_ID_LENGTH:]) if _TOPIC_ID.fullmatch(name) else None


def name_of_log(directory: str, segments: Iterable[str]) -> DirectoryName:
    """Return the topic-partition of a directory, from its path and the names of its segments.

    Parameters
    ----------
    directory : str
        Its path, including the parent.
    segments : iterable of str
        Names of ``.log`` files.

    Raises
    ------
    LogDirectoryError
        If the names do not identify a topic-partition.

    Notes
    -----
    In addition to a broker's own ``topic-0``, two layouts of tiered storage are supported (DSK-R18): Kafka's
    ``LocalTieredStorage``, ``topic-0-topicId/00000000000000001631-segmentId.log``, and Aiven's plugin,
    ``topic-topicId/0/00000000000000001631-segmentId.log``. A directory has one of these layouts only if all its
    segments have such names; its own name decides which.

    Examples
    --------
    >>> name_of_log("/tier/t-MWJ6FHTfRYy67jzwZdeqSQ/7", ["00000000000000000012-tqimKeZwStOEOwRzT3L5oQ.log"])
    DirectoryName(topic='t', partition=7, mark=None)
    """
    parent, _, name = directory.rpartition("/")
    names = list(segments)
    found = None
    if names and all(map(is_remote_name, names)):
        match = _LOCAL_TIERED_DIRECTORY.fullmatch(name)
        if match is not None:
            found = match[1], int(match[2])
        elif _PARTITION.fullmatch(name) and (topic := parse_topic_id_name(parent.rpartition("/")[2])) is not None:
            found = topic, int(name)
    if found is not None and found[1] <= INT32_MAX:
        return DirectoryName(*found, None)
    return parse_directory_name(name)


class SegmentName(NamedTuple):
    """A segment among the files of a directory.

    Attributes
    ----------
    base_offset : int
    name : str
        Name of its ``.log`` or ``.log.swap`` file.
    swapped : frozenset of str
        Suffixes of the segment's other files, such as ``".txnindex"``, whose ``.swap`` is used.
    """

    base_offset: int
    name: str
    swapped: frozenset[str] = frozenset()


def segment_names(names: Iterable[str], next_offset: Callable[[str, int], int]) -> list[SegmentName]:
    """Return the segments among the files of a directory, as a starting broker chooses them (DSK-R8).

    Parameters
    ----------
    names : iterable of str
    next_offset : callable
        Maps the name of a ``.log.swap`` file and its base offset to the offset after its last batch, or to the base
        offset if it has no batch. Called only for files that are used.

    Returns
    -------
    list of SegmentName
        By base offset.

    Notes
    -----
    The rules come from Kafka's ``LogLoader.load``. ``.deleted`` files are about to be deleted, ``.cleaned`` files
    are incomplete. A ``.swap`` file is a complete part of an interrupted compaction or segment split. Together the
    ``.swap`` files replace every segment whose base offset is at least their lowest base offset and below their highest
    end offset. A ``.swap`` file is ignored if there is a ``.cleaned`` file with the same or a lower base
    offset: then not all parts were complete, and the original segments still exist.
    """
    segments = []
    swaps: dict[int, str] = {}
    swapped: dict[int, set[str]] = {}
    cleaned = INT64_MAX
    companions = []
    for name in names:
        base_offset = parse_segment_name(name)
        if base_offset is not None:
            segments.append(SegmentName(base_offset, name))
        elif name.endswith((".cleaned", ".swap")) and (match := _TEMPORARY.fullmatch(name)) is not None:
            base_offset = int(match["offset"])
            if match["mark"] == "cleaned":
                cleaned = min(cleaned, base_offset)
            elif match["suffix"] == ".log" and base_offset <= INT64_MAX:
                swaps[base_offset] = name
            else:
                companions.append((base_offset, match["suffix"]))
    for base_offset, suffix in companions:
        if base_offset < cleaned:
            swapped.setdefault(base_offset, set()).add(suffix)
    swaps = {base_offset: name for base_offset, name in swaps.items() if base_offset < cleaned}
    covered = range(0)
    if swaps:
        end = max(next_offset(name, base_offset) for base_offset, name in swaps.items())
        covered = range(min(swaps), max(end, min(swaps)))
    chosen = [
        segment._replace(swapped=frozenset(swapped.get(segment.base_offset, ()))) if swapped else segment
        for segment in segments
        # A .swap without a batch covers no offsets, but still replaces the segment of its name.
        if segment.base_offset not in covered and swaps.get(segment.base_offset) != f"{segment.name}.swap"
    ]
    chosen += [
        SegmentName(base_offset, name, frozenset(swapped.get(base_offset, ()))) for base_offset, name in swaps.items()
    ]
    return sorted(chosen)
