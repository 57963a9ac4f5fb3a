"""What in the logs looks wrong, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kbatch.escaping import counted, format_size
from kbatch.format import BATCH_HEADER_SIZE
from kbatch.report.collecting import LogFigures, TopicFigures
from kbatch.report.scales import format_duration

__all__ = ["Advice", "advise", "total"]

# Fewer batches or bytes than these show nothing.
_MIN_BATCHES = 50
_MIN_BYTES = 32 << 10
_FEW_RECORDS = 10
_SMALL_BATCH = 4 << 10
_LOW_RATIO = 1.1
_SKEW = 1.6
_HOT_KEY = 0.2
_LATE, _VERY_LATE = 0.05, 60_000
_ABORTED = 0.1
_SMALL_SEGMENT = 1 << 20
_ABORT = "`kafka-transactions.sh find-hanging` and `kafka-transactions.sh abort`"
_MANY_SEGMENTS = 20


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that looks wrong.

    Attributes
    ----------
    level : {"problem", "setting"}
        Whether data is lost or withheld, or a setting costs time or space.
    where : str
        A topic, or a log.
    finding : str
        What was found, with numbers.
    change : str
        What to do.
    """

    level: Literal["problem", "setting"]
    where: str
    finding: str
    change: str


def total(topic: TopicFigures, name: str) -> int:
    """Return the sum of one of the statistics over the logs of a topic."""
    return sum(log.statistics[name] or 0 for log in topic.logs)


def _old_batches(topic: TopicFigures) -> int:
    """Return the number of batches of magic 0 and 1."""
    return sum(count for log in topic.logs for magic, count in log.statistics["magics"].items() if magic != "2")


def advise(topics: Sequence[TopicFigures]) -> list[Advice]:
    """Return what looks wrong, problems first."""
    found = [each for topic in topics for each in _of_topic(topic)]
    return sorted(found, key=lambda each: each.level != "problem")


def _of_topic(topic: TopicFigures) -> Iterator[Advice]:
    for log in topic.logs:
        yield from _damage(log)
        yield from _hanging_transactions(log)
    yield from _left_open(topic)
    yield from _tiny_batches(topic)
    yield from _compression(topic)
    yield from _skewed_partitions(topic)
    yield from _bad_times(topic)
    yield from _others(topic)


def _damage(log: LogFigures) -> Iterator[Advice]:
    statistics = log.statistics
    if statistics["lost_bytes"]:
        yield Advice(
            "problem",
            log.name,
            f"{format_size(statistics['lost_bytes'])} are damaged, in {counted(statistics['losses'], 'place')}",
            "Restore the files from a replica. `kbatch verify` lists each place; `kbatch convert --on-error skip` "
            "writes a copy of the intact batches.",
        )
    if statistics["missing_offsets"]:
        yield Advice(
            "problem",
            log.name,
            f"{counted(statistics['missing_offsets'], 'offset')} missing between segments, for an unknown reason",
            "A segment is missing, or has lost its end: restore it from a replica.",
        )
    if statistics["transactions"]["undecided"]:
        yield Advice(
            "problem",
            log.name,
            f"{counted(statistics['transactions']['undecided'], 'transaction')} whose marker is lost",
            "read_committed does not return these records, since nothing shows whether they were committed. Restore "
            "the damaged or missing segment from a replica.",
        )


def _hanging_transactions(log: LogFigures) -> Iterator[Advice]:
    if log.hanging:
        still = [each for each in log.transactions if each.outcome == "open"]
        first = max(still, key=lambda each: each.duration or 0)
        when = "" if log.statistics["segments"] is None else " when the log ends"
        yield Advice(
            "problem",
            log.name,
            f"{counted(log.hanging, 'transaction')} open for more than 15 minutes{when}; the longest for "
            f"{format_duration(first.duration)}, of producer {first.producer_id} from offset {first.first_offset:,} on",
            "read_committed returns no record from this offset on. If the producer no longer runs, end its transaction "
            f"with {_ABORT}.",
        )


def _left_open(topic: TopicFigures) -> Iterator[Advice]:
    if left_open := sum(log.left_open for log in topic.logs):
        yield Advice(
            "problem",
            topic.topic,
            f"{counted(left_open, 'transaction')} open at the end of the log, begun more than 15 minutes before this "
            "report",
            "read_committed does not return these records. In a copy, their markers are missing, since they were "
            f"written after it was made. In the log of a running broker, the transactions hang: end them with "
            f"{_ABORT}.",
        )


def _tiny_batches(topic: TopicFigures) -> Iterator[Advice]:
    records, size = topic.batch_records.figures, topic.batch_bytes.figures
    old = _old_batches(topic)
    # An uncompressed message of an older format is a batch of its own, whatever the settings of its producer.
    if records["count"] < _MIN_BATCHES or 2 * old > records["count"]:
        return
    if records["mean"] < _FEW_RECORDS and size["mean"] < _SMALL_BATCH:
        overhead = BATCH_HEADER_SIZE * (records["count"] - old) / max(total(topic, "bytes"), 1)
        yield Advice(
            "setting",
            topic.topic,
            f"tiny batches: {records['mean']:.1f} records and {format_size(round(size['mean']))} on average; their "
            f"headers are {overhead:.0%} of the topic",
            "Raise linger.ms of the producer (5 to 100) and batch.size: larger batches compress better, and cost the "
            "broker less.",
        )


def _compression(topic: TopicFigures) -> Iterator[Advice]:
    stored = {name: 0 for log in topic.logs for name in log.statistics["codecs"]}
    plain, payload = dict(stored), dict(stored)
    for log in topic.logs:
        for name, entry in log.statistics["codecs"].items():
            stored[name] += entry["bytes"]
            plain[name] += entry["plain_bytes"] or 0
            payload[name] += entry["payload_bytes"]
    size = sum(stored.values())
    if size < _MIN_BYTES:
        return
    share = stored.get("none", 0) / size
    if share > 0.5:
        yield Advice(
            "setting",
            topic.topic,
            f"no compression: {format_size(stored['none'])}, {share:.0%} of the topic",
            "Set compression.type=zstd or lz4 of the producer, unless the values are compressed already. `kbatch "
            "recompress --codec zstd` shows what it would save.",
        )
    compressed = {name for name in stored if name != "none"}
    for name in sorted(compressed):
        ratio = plain[name] / max(payload[name], 1)
        if stored[name] > _MIN_BYTES and 0 < ratio < _LOW_RATIO:
            yield Advice(
                "setting",
                topic.topic,
                f"{name} saves little: {ratio:.2f}x",
                "Set compression.type=none if the values are compressed already, or raise linger.ms and batch.size.",
            )
    if len([name for name in compressed if stored[name] > size * 0.05]) > 1:
        yield Advice(
            "setting",
            topic.topic,
            f"several codecs: {', '.join(sorted(compressed))}",
            "Set the same compression.type in all producers. A compression.type of the topic makes the broker "
            "recompress.",
        )


def _skewed_partitions(topic: TopicFigures) -> Iterator[Advice]:
    sizes = np.array([log.statistics["bytes"] for log in topic.logs])
    records = sum(log.statistics["records"] for log in topic.logs)
    hot = ""
    if topic.keys is not None and topic.keys.frequent and records:
        share = topic.keys.frequent[0].least / records
        if share > _HOT_KEY:
            hot = f"; one key has {share:.0%} of the records"
    if len(sizes) > 1 and sizes.sum() > _MIN_BYTES and sizes.max() > _SKEW * sizes.mean():
        largest = topic.logs[int(sizes.argmax())]
        yield Advice(
            "setting",
            topic.topic,
            f"skewed partitions: {largest.name} has {format_size(int(sizes.max()))}, "
            f"{sizes.max() / sizes.mean():.1f} times the average of {len(sizes):,} partitions{hot}",
            "Choose a key with more values, add a suffix to the frequent keys, or write records without order to "
            "partitions by round robin (a null key).",
        )
    elif hot and records > 1000:
        yield Advice(
            "setting",
            topic.topic,
            hot.removeprefix("; "),
            "A producer writes all records of a key to one partition. If their order does not matter, add a suffix to "
            "the key.",
        )


def _bad_times(topic: TopicFigures) -> Iterator[Advice]:
    timed, late = sum(log.timed for log in topic.logs), sum(log.late for log in topic.logs)
    most = max((log.max_late for log in topic.logs), default=0)
    if timed and late > _LATE * timed and most > _VERY_LATE:
        yield Advice(
            "setting",
            topic.topic,
            f"{late / timed:.0%} of the records are older than a record before them, by up to {format_duration(most)}",
            "Windows of stream processors need at least this grace. If the time of the append will do, set "
            "message.timestamp.type=LogAppendTime.",
        )
    future = sum(log.from_future for log in topic.logs)
    if future:
        yield Advice(
            "setting",
            topic.topic,
            f"{counted(future, 'record')} with a timestamp in the future",
            "Retention by time keeps their segments until then. Check the clocks and units (milliseconds) of the "
            "producers; message.timestamp.after.max.ms makes the broker refuse such records.",
        )
    without = sum(log.without_time for log in topic.logs)
    if without:
        yield Advice(
            "setting",
            topic.topic,
            f"{counted(without, 'record')} without a timestamp",
            "Retention by time and searches by time do not see them: update the producers that write them.",
        )


def _others(topic: TopicFigures) -> Iterator[Advice]:
    if old := _old_batches(topic):
        yield Advice(
            "setting",
            topic.topic,
            f"{counted(old, 'batch')} in the message format of Kafka before 0.11",
            "They have no headers and no transactions. `kbatch convert --magic 2` rewrites the log.",
        )
    ended = sum(log.statistics["transactions"][name] for log in topic.logs for name in ("committed", "aborted"))
    aborted = sum(log.statistics["transactions"]["aborted"] for log in topic.logs)
    if ended >= 10 and aborted > _ABORTED * ended:
        yield Advice(
            "setting",
            topic.topic,
            f"{aborted / ended:.0%} of the transactions are aborted",
            "Aborted records take space, and consumers read them in vain. Look for timeouts (transaction.timeout.ms) "
            "and restarts of the producers.",
        )
    tombstones, records = total(topic, "tombstones"), total(topic, "records")
    if tombstones and not any(log.rewritten or log.removed_between or log.removed_segments for log in topic.logs):
        yield Advice(
            "setting",
            topic.topic,
            f"{counted(tombstones, 'tombstone')} ({tombstones / max(records, 1):.1%} of the records), and no sign of "
            "compaction",
            "If they are to delete keys, set cleanup.policy=compact. If the topic has it, the log cleaner has not "
            "reached it yet: see min.cleanable.dirty.ratio and max.compaction.lag.ms.",
        )
    small = [
        log for log in topic.logs
        if (log.statistics["segments"] or 0) > _MANY_SEGMENTS
        and log.statistics["bytes"] < _SMALL_SEGMENT * log.statistics["segments"]
    ]  # fmt: skip
    if small:
        count, size = (sum(log.statistics[name] for log in small) for name in ("segments", "bytes"))
        yield Advice(
            "setting",
            topic.topic,
            f"small segments: {count:,} of {format_size(size // count)} on average",
            "Each has several open files in the broker. Raise segment.ms and segment.bytes.",
        )
