"""Offsets of a stream as JSON, as in Spark's checkpoints, with what a log is recognized by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbatch.plan.positions import Position
from kbatch.plan.watching import TopicPartition

__all__ = [
    "BYTES",
    "LAG",
    "MISSING",
    "START",
    "Offsets",
    "Places",
    "offsets_from_json",
    "offsets_to_json",
    "places_from_json",
    "places_to_json",
]

# Keys that are not valid topic names: where the first micro-batch of a query starts, in the offset of its end;
START = "$start"
# how far each log is ahead, the bytes of the micro-batch, and its offsets that no longer exist;
LAG, BYTES, MISSING = "$lag", "$bytes", "$missing"
# the partitions of each topic id: {topic: {id: [partitions]}}; the leader epoch of a live cluster that no record before
# an offset exceeds, and the checksum of the batch before it: {topic: {partition: number}}. Offsets of earlier releases
# have none of them.
_IDS = "$ids"
_EPOCHS = "$epochs"
_CHECKSUMS_KEY = "$checksums"

Offsets = dict[TopicPartition, int]
# The next offset of each topic-partition, with the topic's id, leader epoch and the checksum of the batch before it, if
# known.
Places = dict[TopicPartition, Position]


def places_from_json(document: Mapping[str, Any]) -> Places:
    """Return the places that `places_to_json` has written."""
    ids = {
        (topic, number): topic_id
        for topic, each in document.get(_IDS, {}).items()
        for topic_id, numbers in each.items()
        for number in numbers
    }
    epochs = offsets_from_json(document.get(_EPOCHS, {}))
    checksums = offsets_from_json(document.get(_CHECKSUMS_KEY, {}))
    plain = offsets_from_json(document)
    return {key: Position(offset, epochs.get(key), ids.get(key), checksums.get(key)) for key, offset in plain.items()}


def places_to_json(places: Mapping[TopicPartition, Position]) -> dict[str, Any]:
    """Return places as plain values in sorted order: Spark compares them as text."""
    out = offsets_to_json({key: place.next_offset for key, place in places.items()})
    ids: dict[str, dict[str, list[int]]] = {}
    for (topic, number), place in sorted(places.items()):
        if place.topic_id is not None:
            ids.setdefault(topic, {}).setdefault(place.topic_id, []).append(number)
    if ids:
        out[_IDS] = {topic: dict(sorted(each.items())) for topic, each in ids.items()}
    for name, field in (_EPOCHS, "leader_epoch"), (_CHECKSUMS_KEY, "batch_crc"):
        numbers = {key: getattr(place, field) for key, place in places.items() if getattr(place, field) is not None}
        if numbers:
            out[name] = offsets_to_json(numbers)
    return out


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Return a number for each topic-partition as ``{topic: {partition: number}}``, in sorted order."""
    out: dict[str, Any] = {}
    for (topic, number), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(number)] = offset
    return out


def offsets_from_json(document: Mapping[str, Any]) -> Offsets:
    """Return a number for each topic-partition of a document, without the keys that are not topics."""
    topics = ((topic, numbers) for topic, numbers in document.items() if not topic.startswith("$"))
    return {(topic, int(number)): value for topic, numbers in topics for number, value in numbers.items()}
