"""What the names of a broker's directories and files say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbatch.errors import LogDirectoryError
from kbatch.format import INT32_MAX, INT64_MAX

__all__ = [
    "DirectoryName",
    "SegmentName",
    "is_aiven_name",
    "is_remote_name",
    "name_of_log",
    "parse_directory_name",
    "parse_segment_name",
    "parse_topic_id_name",
    "segment_names",
]

_MARKED = re.compile(r"(?P<name>\S+-\S+)\.\S+-(?P<mark>delete|future|stray)")
_MARKS = ("-delete", "-future", "-stray")
# Tiered storage puts the segment's id between the offset and the suffix (DSK-R18).
_SEGMENT = re.compile(r"(\d{20})(?:-[\w-]+)?\.log")
# Kafka prints ids in URL-safe base64; after 21 characters two bits are left for the last one.
_ID = r"[A-Za-z0-9_-]{21}[AQgw]"
# Kafka's LocalTieredStorage doesn't pad the offset, Aiven's plugin does.
_LOCAL_TIERED = re.compile(rf"(0|[1-9]\d{{0,18}})-{_ID}\.log", re.ASCII)
_AIVEN = re.compile(rf"\d{{20}}-{_ID}\.log", re.ASCII)
_LOCAL_TIERED_DIRECTORY = re.compile(rf"([a-zA-Z0-9._-]+)-(\d{{1,10}})-{_ID}", re.ASCII)
_TOPIC_ID = re.compile(rf"([a-zA-Z0-9._-]+)-{_ID}", re.ASCII)
_PARTITION = re.compile(r"\d{1,10}", re.ASCII)
_TEMPORARY = re.compile(r"(?P<offset>\d{20})(?P<suffix>\.\w+)\.(?P<mark>cleaned|swap)", re.ASCII)


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
    if not (number.isascii() and number.isdigit()) or int(number) > INT32_MAX:
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
    match = _SEGMENT.fullmatch(name) or _LOCAL_TIERED.fullmatch(name)
    if match is None:
        return None
    base_offset = int(match[1])
    return base_offset if base_offset <= INT64_MAX else None


def is_aiven_name(name: str) -> bool:
    """Whether a file's name is that of a segment which Aiven's plugin for tiered storage has uploaded (DSK-R18)."""
    return _AIVEN.fullmatch(name) is not None


def is_remote_name(name: str) -> bool:
    """Whether a file's name is that of a segment in tiered storage: it is uploaded whole, and never written again."""
    return is_aiven_name(name) or _LOCAL_TIERED.fullmatch(name) is not None


def parse_topic_id_name(name: str) -> str | None:
    """Return the topic of a directory ``topic-topicId``, None for other names.

    Examples
    --------
    >>> parse_topic_id_name("page-views-MWJ6FHTfRYy67jzwZdeqSQ")
    'page-views'
    """
    match = _TOPIC_ID.fullmatch(name)
    return None if match is None else match[1]


def name_of_log(directory: str, segments: Iterable[str]) -> DirectoryName:
    """Tell the topic-partition of a directory by its path, and by the names of the segments in it.

    Parameters
    ----------
    directory : str
        Its path, with that of its parent.
    segments : iterable of str
        Names of ``.log`` files.

    Raises
    ------
    LogDirectoryError
        If the names don't tell.

    Notes
    -----
    Beside a broker's own ``topic-0`` two layouts of tiered storage are known (DSK-R18): that of Kafka's
    ``LocalTieredStorage``, ``topic-0-topicId/1631-segmentId.log``, and that of Aiven's plugin,
    ``topic-topicId/0/00000000000000001631-segmentId.log``. A directory counts as one of these only if all segments in
    it are named so.

    Examples
    --------
    >>> name_of_log("/tier/t-MWJ6FHTfRYy67jzwZdeqSQ/7", ["00000000000000000012-tqimKeZwStOEOwRzT3L5oQ.log"])
    DirectoryName(topic='t', partition=7, mark=None)
    """
    parent, _, name = directory.rpartition("/")
    names = iter(segments)
    first = next(names, "")
    found = None
    if _LOCAL_TIERED.fullmatch(first) and all(map(_LOCAL_TIERED.fullmatch, names)):
        match = _LOCAL_TIERED_DIRECTORY.fullmatch(name)
        found = None if match is None else (match[1], int(match[2]))
    elif is_aiven_name(first) and all(map(is_aiven_name, names)) and _PARTITION.fullmatch(name):
        topic = parse_topic_id_name(parent.rpartition("/")[2])
        found = None if topic is None else (topic, int(name))
    if found is not None and found[1] <= INT32_MAX:
        return DirectoryName(*found, None)
    return parse_directory_name(name)


class SegmentName(NamedTuple):
    """A segment among the files of a directory.

    Attributes
    ----------
    base_offset : int
    name : str
        Of its ``.log`` file, which may be a ``.log.swap``.
    swapped : frozenset of str
        Suffixes of the files beside it, such as ``".txnindex"``, whose ``.swap`` is the one that counts.
    """

    base_offset: int
    name: str
    swapped: frozenset[str] = frozenset()


def segment_names(names: Iterable[str], next_offset: Callable[[str, int], int]) -> list[SegmentName]:
    """Choose the segments among the names of a directory's files, as a broker would when it starts (DSK-R8).

    Parameters
    ----------
    names : iterable of str
    next_offset : callable
        From the name of a ``.log.swap`` file and its base offset, the offset after its last batch; the base offset if
        it has no batch. It is asked only about files that count.

    Returns
    -------
    list of SegmentName
        By base offset.

    Notes
    -----
    The rules are those of Kafka's ``LogLoader.load``. ``.deleted`` files are on their way out, ``.cleaned`` files were
    not finished. A ``.swap`` file is a finished part of a compaction, or of the split of a segment, that was
    interrupted. Together they take the place of every segment whose base offset lies from the least base offset of
    them up to but without the highest offset that follows one of them. But where a ``.cleaned`` file of the same or a
    lower base offset is left, not all parts were finished, and the ``.swap`` is dropped; the originals are still there.
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
        # One without a batch covers nothing, but is renamed over the file of its name all the same.
        if segment.base_offset not in covered and swaps.get(segment.base_offset) != f"{segment.name}.swap"
    ]
    chosen += [
        SegmentName(base_offset, name, frozenset(swapped.get(base_offset, ()))) for base_offset, name in swaps.items()
    ]
    return sorted(chosen)
