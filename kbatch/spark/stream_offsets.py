"""Offsets of a stream as JSON, as in Spark's checkpoints, with what a log is recognized by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbatch.plan.positions import Position
from kbatch.plan.watching import TopicPartition

__all__ = ["LAG", "START", "Offsets", "Places", "offsets_to_json", "places_from_json", "places_to_json"]

# Keys that are not valid topic names: where the first micro-batch of a query starts, in the offset of its end;
START = "$start"
# how far each log is ahead;
LAG = "$lag"
# the partitions of each topic id: {topic: {id: [partitions]}}; and the checksum of the batch before each offset:
# {topic: {partition: checksum}}. Offsets of earlier releases have neither.
_IDS = "$ids"
_CHECKSUMS_KEY = "$checksums"

Offsets = dict[TopicPartition, int]
# The next offset of each topic-partition, with the topic's id and the checksum of the batch before it, if known.
Places = dict[TopicPartition, Position]


def places_from_json(document: Mapping[str, Any]) -> Places:
    """Return the places that `places_to_json` has written."""
    ids = {
        (topic, number): topic_id
        for topic, each in document.get(_IDS, {}).items()
        for topic_id, numbers in each.items()
        for number in numbers
    }
    checksums = _by_partition(document.get(_CHECKSUMS_KEY, {}).items())
    plain = _by_partition((topic, numbers) for topic, numbers in document.items() if not topic.startswith("$"))
    return {key: Position(offset, None, ids.get(key), checksums.get(key)) for key, offset in plain.items()}


def places_to_json(places: Mapping[TopicPartition, Position]) -> dict[str, Any]:
    """Return places as plain values in sorted order: Spark compares them as text."""
    out = offsets_to_json({key: place.next_offset for key, place in places.items()})
    ids: dict[str, dict[str, list[int]]] = {}
    for (topic, number), place in sorted(places.items()):
        if place.topic_id is not None:
            ids.setdefault(topic, {}).setdefault(place.topic_id, []).append(number)
    if ids:
        out[_IDS] = {topic: dict(sorted(each.items())) for topic, each in ids.items()}
    checksums = {key: place.batch_crc for key, place in places.items() if place.batch_crc is not None}
    if checksums:
        out[_CHECKSUMS_KEY] = offsets_to_json(checksums)
    return out


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Return a number for each topic-partition as ``{topic: {partition: number}}``, in sorted order."""
    out: dict[str, Any] = {}
    for (topic, number), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(number)] = offset
    return out


def _by_partition(topics: Iterable[tuple[str, Mapping[str, int]]]) -> dict[TopicPartition, int]:
    return {(topic, int(number)): value for topic, numbers in topics for number, value in numbers.items()}
