"""What a read is asked to do: the options of Spark's own Kafka source, and those of damage and planning.

No pyspark in here: the export, the data source and their tasks share it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kbatch.arrow import Overflow
from kbatch.decode_options import Crc, Isolation, OnError
from kbatch.format import Limits
from kbatch.partitioner import key_partition
from kbatch.spark.value_options import VALUE_OPTIONS, ValueOptions

__all__ = [
    "DEFAULT_SPLIT_BYTES",
    "MOST_ROW_BYTES",
    "Bound",
    "ReadOptions",
    "Table",
    "parse_options",
    "parse_size",
]

DEFAULT_SPLIT_BYTES = 128 << 20
# UnsafeRow ends at 2^31 - 16 bytes (BufferHolder); of that the fixed part and the topic's name take less than a KiB.
MOST_ROW_BYTES = (1 << 31) - 16 - 1024

# What Spark puts among the options by itself: load()'s argument (one path, or several as a JSON list).
_SPARK_OWN = {"path", "paths"}
# Options that begin so are those of the filesystem that a URL is in (`kbatch.log.storage.filesystem`).
_STORAGE = "storage."
_OPTIONS = (
    "assign",
    "crc",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "includeControl",
    "includeHeaders",
    "isolationLevel",
    "kafka.isolation.level",
    "key",
    "keyHex",
    "keyPartitions",
    "maxDecompressedBytes",
    "maxRecordBytes",
    "maxRecordsPerPartition",
    "minPartitions",
    "onError",
    "partitions",
    "splitBytes",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "table",
    "timestampOverflow",
    "topics",
    *VALUE_OPTIONS,
)
_EARLIEST, _LATEST = -2, -1

# What the rows are.
Table = Literal["records", "losses", "transactions"]
PerPartition = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends, as asked: at most one of the three is set; none means the log's own end.

    Attributes
    ----------
    timestamp : int or None
        Milliseconds since the epoch, for every partition.
    timestamps, offsets : dict of topic to dict of partition to int, or None
        Per partition; every partition that is read must be named. In `offsets` -2 is the earliest, -1 the latest.
    """

    timestamp: int | None = None
    timestamps: PerPartition | None = None
    offsets: PerPartition | None = None


@dataclass(frozen=True)
class ReadOptions:
    """What to read, and what to do with damage. Picklable, with plain values only.

    Attributes
    ----------
    topics : tuple of str or None
        Names of topics; None with `topic_pattern` None means every topic.
    topic_pattern : str or None
        Regular expression that the whole name must match.
    assign : dict of topic to list of int, or None
        Exactly these partitions.
    partitions : frozenset of int or None
        Only these partitions of each topic.
    starting, ending : Bound
        First offset, and the offset before which to stop.
    latest_if_no_timestamp : bool
        What a starting timestamp after the last record means: nothing to read (True), or an error.
    include_headers, include_control : bool
        Whether there is a column of headers; whether control records are handed out.
    isolation, crc, on_error : str
        As for `kbatch.decode`.
    timestamp_overflow : str
        What becomes of a timestamp that microseconds can't hold: "raise" or "null".
    key : bytes or None
        Only records whose key is these bytes; a null key never is.
    key_partitions : int or None
        Kafka's default partitioner has shared the topics out among so many partitions, so that `key` stands in one of
        them only (`key_partition`).
    split_bytes : int
        Aim for the bytes that one task reads.
    min_partitions : int or None
        Cut finer than `split_bytes` where that gives fewer tasks, as far as there are batches.
    max_records_per_partition : int or None
        A task reads at most so many offsets, but for a single batch that has more: batches aren't divided.
    max_decompressed_bytes : int
        Of one batch; see `kbatch.Limits`.
    max_record_bytes : int
        A record of which the columns that are wanted have more bytes is an error: of the data source only. The default
        is what a row of Spark can hold; an executor needs about four times the largest record in its heap.
    table : str
        What the rows of the data source are: "records"; "losses", what damage costs a read with these options; or
        "transactions", those that read_committed leaves out or withholds.
    storage : dict of str to str
        Options of the filesystem where the path is a URL. They may be secrets, and aren't shown.
    values : ValueOptions
        How keys and values are parsed.
    """

    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    assign: dict[str, list[int]] | None = None
    partitions: frozenset[int] | None = None
    starting: Bound = field(default_factory=Bound)
    ending: Bound = field(default_factory=Bound)
    latest_if_no_timestamp: bool = False
    include_headers: bool = False
    include_control: bool = False
    isolation: Isolation = "read_uncommitted"
    crc: Crc = "verify"
    on_error: OnError = "raise"
    timestamp_overflow: Overflow = "raise"
    key: bytes | None = None
    key_partitions: int | None = None
    split_bytes: int = DEFAULT_SPLIT_BYTES
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_decompressed_bytes: int = Limits().max_decompressed_bytes
    max_record_bytes: int = MOST_ROW_BYTES
    table: Table = "records"
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    values: ValueOptions = field(default_factory=ValueOptions)

    def __post_init__(self) -> None:
        _one_of("isolationLevel", self.isolation, ("read_uncommitted", "read_committed"))
        _one_of("crc", self.crc, ("verify", "mark", "skip"))
        _one_of("onError", self.on_error, ("raise", "stop", "skip"))
        _one_of("timestampOverflow", self.timestamp_overflow, ("raise", "null"))
        _one_of("table", self.table, get_args(Table))
        if self.table == "losses" and self.on_error == "raise":
            raise ValueError(
                "table=losses tells what a read with onError=skip or onError=stop loses; with onError=raise (or "
                "failOnDataLoss=true) damage is an error"
            )
        if self.split_bytes < 1:
            raise ValueError(f"splitBytes must be at least 1, got {self.split_bytes}")
        for name, count in (
            ("keyPartitions", self.key_partitions),
            ("maxRecordsPerPartition", self.max_records_per_partition),
            ("minPartitions", self.min_partitions),
        ):
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        if not 1 <= self.max_record_bytes <= MOST_ROW_BYTES:
            raise ValueError(f"maxRecordBytes must be from 1 to {MOST_ROW_BYTES}, got {self.max_record_bytes}")
        if self.key_partitions is not None and self.key is None:
            raise ValueError("keyPartitions says where a key is; it needs option key or keyHex")
        if self.key is not None and self.table != "records":
            raise ValueError(f"key chooses records; with table={self.table} there are none to choose")
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise ValueError(f"subscribePattern {self.topic_pattern!r} is no regular expression: {error}") from None

    @property
    def key_partition(self) -> int | None:
        """The only partition that `key` can be in, as far as it is known."""
        if self.key is None or self.key_partitions is None:
            return None
        return key_partition(self.key, self.key_partitions)

    def leaves_out(self, partition: int | None) -> bool:
        """Whether `key` cannot be in this partition."""
        return self.key_partition is not None and partition != self.key_partition


def parse_options(options: Mapping[str, str]) -> tuple[list[str], ReadOptions]:
    """Return the paths to read and the options, from the strings that Spark hands over.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case. The names and values are those of Spark's Kafka source where it has them: ``subscribe``,
        ``subscribePattern``, ``assign``, ``startingOffsets``, ``endingOffsets``, ``startingTimestamp``,
        ``endingTimestamp``, ``startingOffsetsByTimestamp``, ``endingOffsetsByTimestamp``,
        ``startingOffsetsByTimestampStrategy``, ``failOnDataLoss``, ``includeHeaders``, ``minPartitions``,
        ``maxRecordsPerPartition``, ``kafka.isolation.level``. Ours: ``topics`` (the same as ``subscribe``),
        ``partitions`` (such as ``0,2,5-7``), ``isolationLevel`` (the same as ``kafka.isolation.level``),
        ``includeControl``, ``crc``, ``onError``, ``timestampOverflow``, ``splitBytes``, ``maxDecompressedBytes`` (of
        one batch), ``maxRecordBytes`` (of one record's key, value and headers), ``key`` (text, taken as UTF-8) or
        ``keyHex`` (any bytes) for the records of one key, ``keyPartitions`` (how many partitions Kafka's default
        partitioner had to choose from, so that only the key's own is read), ``storage.NAME``, an option of the
        filesystem that a URL is in (`kbatch.log.storage.filesystem`), and ``table``: ``records``; ``losses`` for what
        damage costs, where ``onError`` is then ``skip`` unless it is given; ``transactions`` for the aborted, undecided
        and open ones, whatever the isolation. What is in keys and values: ``valueFormat``, ``keyFormat`` and what goes
        with them (`ValueOptions.parse`).

    Raises
    ------
    ValueError
        An unknown option, a value that isn't one of its option's, or options that contradict each other.

    Examples
    --------
    >>> from kbatch.spark.options import parse_options
    >>> paths, read = parse_options({"path": "/data", "subscribe": "orders,users", "splitBytes": "64m"})
    >>> paths, read.topics, read.split_bytes
    (['/data'], ('orders', 'users'), 67108864)
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in _OPTIONS}
    storage = {name.removeprefix(_STORAGE): value for name, value in given.items() if name.startswith(_STORAGE)}
    unknown = sorted(name for name in set(given) - set(known) - _SPARK_OWN if not name.startswith(_STORAGE))
    if unknown:
        raise ValueError(f"unknown option {', '.join(map(repr, unknown))}; known are {', '.join(_OPTIONS)}, storage.*")

    def get(name: str, parse: Callable[[str, str], Any], default: Any = None) -> Any:
        value = given.get(name.lower())
        return default if value is None else parse(name, value)

    chosen = [name for name in ("topics", "subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) > 1:
        raise ValueError(f"options {' and '.join(chosen)} exclude each other")
    if "isolationlevel" in given and "kafka.isolation.level" in given:
        raise ValueError("options isolationLevel and kafka.isolation.level are the same; give one of them")
    if "key" in given and "keyhex" in given:
        raise ValueError("options key and keyHex exclude each other")
    if "assign" in chosen and "partitions" in given:
        raise ValueError("options assign and partitions exclude each other")
    fail_on_data_loss = get("failOnDataLoss", _boolean)
    on_error = get("onError", _text)
    table = get("table", _text, "records")
    if on_error is None:
        skip = fail_on_data_loss is False or (fail_on_data_loss is None and table == "losses")
        on_error = "skip" if skip else "raise"
    elif fail_on_data_loss is not None and fail_on_data_loss != (on_error == "raise"):
        raise ValueError(f"options failOnDataLoss={str(fail_on_data_loss).lower()} and onError={on_error} disagree")
    strategy = get("startingOffsetsByTimestampStrategy", _text, "error").lower()
    _one_of("startingOffsetsByTimestampStrategy", strategy, ("error", "latest"))
    read = ReadOptions(
        topics=get("topics", _names) or get("subscribe", _names),
        topic_pattern=get("subscribePattern", _text),
        assign=get("assign", _assignment),
        partitions=get("partitions", _partitions),
        starting=_bound("starting", get, forbidden=_LATEST),
        ending=_bound("ending", get, forbidden=_EARLIEST),
        latest_if_no_timestamp=strategy == "latest",
        include_headers=get("includeHeaders", _boolean, False),
        include_control=get("includeControl", _boolean, False),
        isolation=get("isolationLevel", _text) or get("kafka.isolation.level", _text, "read_uncommitted"),
        crc=get("crc", _text, "verify"),
        on_error=on_error,
        timestamp_overflow=get("timestampOverflow", _text, "raise"),
        key=get("keyHex", _hexadecimal, get("key", _utf8)),
        key_partitions=get("keyPartitions", _count),
        split_bytes=get("splitBytes", parse_size, DEFAULT_SPLIT_BYTES),
        min_partitions=get("minPartitions", _count),
        max_records_per_partition=get("maxRecordsPerPartition", _count),
        max_decompressed_bytes=get("maxDecompressedBytes", parse_size, Limits().max_decompressed_bytes),
        max_record_bytes=get("maxRecordBytes", parse_size, MOST_ROW_BYTES),
        table=table,
        storage=storage,
        values=ValueOptions.parse(options),
    )
    return _paths(given), read


def parse_size(name: str, text: str) -> int:
    """Return a number of bytes: ``67108864``, ``64m``, ``64 MiB`` (powers of 1024, as in Spark's own settings)."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not found or not int(found[1]):
        raise ValueError(f"{name} must be a number of bytes such as 67108864 or 64m, got {text!r}")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]


def _paths(given: dict[str, str]) -> list[str]:
    paths: list[str] = []
    if "path" in given:
        paths.append(given["path"])
    if "paths" in given:
        paths += json.loads(given["paths"])
    if not paths:
        raise ValueError("no path: name the log directory in load(...)")
    return paths


def _bound(side: str, get: Callable[..., Any], *, forbidden: int) -> Bound:
    # A timestamp for all goes before timestamps per partition, these before offsets: Spark's own order.
    timestamp = get(f"{side}Timestamp", _timestamp)
    if timestamp is not None:
        return Bound(timestamp=timestamp)
    timestamps = get(f"{side}OffsetsByTimestamp", _per_partition)
    if timestamps is not None:
        return Bound(timestamps=timestamps)
    name = f"{side}Offsets"
    text = get(name, _text)
    own_end, other_end = ("earliest", "latest") if side == "starting" else ("latest", "earliest")
    if text is None or text.strip().lower() == own_end:
        return Bound()
    if text.strip().lower() == other_end:
        raise ValueError(f"{name} can't be {other_end!r} in a batch read")
    offsets = _per_partition(name, text)
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if offset == forbidden or offset < _EARLIEST:
                raise ValueError(f"{name}: offset {offset} of {topic}-{partition} is not allowed in a batch read")
    return Bound(offsets=offsets)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _text(name: str, value: str) -> str:
    return value


def _utf8(name: str, value: str) -> bytes:
    return value.encode()


def _hexadecimal(name: str, value: str) -> bytes:
    try:
        return bytes.fromhex(value.strip().removeprefix("0x"))
    except ValueError:
        raise ValueError(f"{name} must be hexadecimal digits, two a byte, got {value!r}") from None


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"\s*\d{1,18}\s*", value, re.ASCII) or not int(value):
        raise ValueError(f"{name} must be a number, 1 or more, got {value!r}")
    return int(value)


def _boolean(name: str, value: str) -> bool:
    _one_of(name, value.strip().lower(), ("true", "false"))
    return value.strip().lower() == "true"


def _names(name: str, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names:
        raise ValueError(f"{name} names no topic")
    return names


def _partitions(name: str, value: str) -> frozenset[int]:
    numbers: set[int] = set()
    for part in value.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not found:
            raise ValueError(f"{name} must be numbers and ranges such as 0,2,5-7, got {value!r}")
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        # A partition is an int32, so that a typing error can't ask for a set of astronomic size.
        if last < first or last >= 1 << 31 or last - first > 100_000:
            raise ValueError(f"{name}: {part.strip()!r} is no range of partitions")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def _timestamp(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} must be milliseconds since the epoch, got {value!r}") from None


def _per_partition(name: str, value: str) -> PerPartition:
    wanted = f'{name} must be JSON such as {{"topic": {{"0": 23, "1": 45}}}}, got {value!r}'
    try:
        parsed = json.loads(value)
        result = {
            str(topic): {int(partition): offset for partition, offset in partitions.items()}
            for topic, partitions in parsed.items()
        }
    except (ValueError, AttributeError):
        raise ValueError(wanted) from None
    if not all(type(offset) is int for partitions in result.values() for offset in partitions.values()):
        raise ValueError(wanted)
    return result


def _assignment(name: str, value: str) -> dict[str, list[int]]:
    wanted = f'{name} must be JSON such as {{"topic": [0, 1]}}, got {value!r}'
    try:
        parsed = json.loads(value)
        result = {str(topic): list(partitions) for topic, partitions in parsed.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError(wanted) from None
    if not result or not all(type(number) is int for numbers in result.values() for number in numbers):
        raise ValueError(wanted)
    return result
