"""The options of a read: those of Spark's Kafka source, and options for damage and planning."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from typing_extensions import TypedDict

from kbatch import options as opts
from kbatch.arguments import check_fields
from kbatch.bounds import Bound, PerPartition, Pruning
from kbatch.escaping import printable
from kbatch.java_patterns import java_pattern
from kbatch.options import CRC, ISOLATION, ON_ERROR, Crc, Isolation, OnError, OptionError, Overflow, ValueKind, option
from kbatch.quantities import INT64_MAX, MAX_DECOMPRESSED_BYTES, parse_time
from kbatch.value_options import ValueOptions

if TYPE_CHECKING:
    from kbatch.log.selection import Selection

__all__ = [
    "DEFAULT_SPLIT_BYTES",
    "EARLIEST",
    "LATEST",
    "MOST_ROW_BYTES",
    "Bound",
    "OnGap",
    "ReadOptions",
    "TableName",
    "TopicPolicy",
    "ignored_options",
    "log_ignored",
    "parse_options",
    "parse_paths",
    "parse_per_partition",
    "parse_read",
    "split_policies",
    "warn_ignored",
]

DEFAULT_SPLIT_BYTES = 128 << 20
# UnsafeRow is limited to 2^31 - 16 bytes (BufferHolder); its fixed part and the topic's name take less than a KiB.
MOST_ROW_BYTES = (1 << 31) - 16 - 1024

# Spark's Kafka source uses these numbers for the first offset and for the end of a log.
EARLIEST, LATEST = -2, -1
# The prefix of file system options for URLs (`kbatch.log.store.storage.filesystem`).
_STORAGE = "storage."
# Options of Spark's Kafka source without a meaning for directories: connections, consumers, and limits of streams.
_OF_BROKERS = ("kafka.", "fetchoffset.", "kafkaconsumer.", "groupidprefix")
_OF_STREAMS = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxbytespertrigger", "maxtriggerdelay")

# The rows that a read returns.
TableName = Literal["records", "counts", "losses", "transactions"]
OnGap = Literal["report", "raise"]


class TopicPolicy(TypedDict, total=False):
    """The options that may be set for a single topic."""

    on_error: OnError
    fail_on_data_loss: bool
    on_gap: OnGap


# -- kinds of values


def parse_per_partition(text: str) -> PerPartition:
    """Return numbers by topic and partition from JSON, as Spark's Kafka source writes them."""
    message = f'must be JSON such as {{"topic": {{"0": 23, "1": 45}}}}, got {text!r}'
    try:
        result = {
            str(topic): {int(partition): number for partition, number in partitions.items()}
            for topic, partitions in json.loads(text).items()
        }
    except (ValueError, AttributeError):
        raise ValueError(message) from None
    numbers = [number for partitions in result.values() for number in partitions.values()]
    if not all(type(number) is int for number in numbers):
        raise ValueError(message)
    if any(abs(number) > INT64_MAX for number in numbers):
        raise ValueError(f"must have numbers in the range of an int64, got {text!r}")
    return result


def _parse_assignment(text: str) -> dict[str, list[int]]:
    message = f'must be JSON such as {{"topic": [0, 1]}}, got {text!r}'
    try:
        result = {str(topic): list(partitions) for topic, partitions in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError(message) from None
    numbers = [number for partitions in result.values() for number in partitions]
    if not numbers or not all(type(number) is int for number in numbers):
        raise ValueError(message)
    return result


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError(f"must be names with commas between, got {text!r}")
    return names


def _parse_partitions(text: str) -> frozenset[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not found:
            raise ValueError(f"must be numbers and ranges such as 0,2,5-7, got {text!r}")
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        # A partition is an int32; a typo must not create a huge set.
        if last < first or last >= 1 << 31 or last - first > 100_000:
            raise ValueError(f"must be numbers and ranges such as 0,2,5-7; {part.strip()!r} is not a range")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def _parse_hexadecimal(text: str) -> bytes:
    try:
        return bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        raise ValueError(f"must be hexadecimal digits, two for each byte, got {text!r}") from None


def _parse_time(text: str) -> int:
    """Return a time in milliseconds; Spark's Kafka source has milliseconds of any number of digits."""
    return parse_time(int(text) if re.fullmatch(r"\s*[-+]?\d+\s*", text, re.ASCII) else text)


def _check_pattern(text: str) -> None:
    java_pattern(text)


def _parse_offsets(text: str, side: str) -> Bound:
    own, other, forbidden = ("earliest", "latest", LATEST) if side == "starting" else ("latest", "earliest", EARLIEST)
    word = text.strip().lower()
    if word == own:
        return Bound()
    if word == other:
        raise ValueError(f"cannot be {other!r} in a batch read")
    offsets = parse_per_partition(text)
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if offset == forbidden or offset < EARLIEST:
                raise ValueError(f"must not have offset {offset} in a batch read, got it for {topic}-{partition}")
    return Bound(offsets=offsets)


def _bound(side: str, where: str) -> Any:
    """Return the option for one end; a timestamp overrides timestamps per partition, which override offsets."""
    sides: dict[str, Callable[[str], Bound]] = {
        f"{side}Timestamp": lambda text: Bound(timestamp=_parse_time(text)),
        f"{side}OffsetsByTimestamp": lambda text: Bound(timestamps=parse_per_partition(text)),
        f"{side}Offsets": lambda text: _parse_offsets(text, side),
    }
    examples = ("1700000000000", '{"topic": {"0": 1700000000000}}', '{"topic": {"0": 23}}')
    spark = {name: ValueKind(parse, example) for (name, parse), example in zip(sides.items(), examples, strict=True)}
    end = "-2 is the earliest" if side == "starting" else "-1 is the latest"
    flags = {
        f"--{side}-offsets": ValueKind(
            sides[f"{side}Offsets"],
            examples[2],
            metavar="JSON",
            help=f'{where}, as {{"topic": {{"0": 23}}}}; {end}',
        ),
    }
    text = f"{where}: by a time, by a time for each partition, or by an offset for each partition ({end})"
    kind = ValueKind(str, "", show=lambda bound: "earliest" if side == "starting" else "latest")
    return option(kind, spark=spark, flag=flags, first_wins=True, default_factory=Bound, help=text)


_TOPIC_NAMES = ValueKind(_parse_names, "orders,users", metavar="T", repeated=True)
_KEY = ValueKind(str.encode, "order-1")
_STRATEGY = opts.choice("error", "latest")


def _parse_late(text: str) -> bool:
    word = _STRATEGY.parse(text)
    _STRATEGY.check(word)
    return bool(word == "latest")


_LATE = ValueKind(
    _parse_late, "latest", metavar=_STRATEGY.metavar, show=lambda is_latest: "latest" if is_latest else "error"
)
_KEY_HEX = ValueKind(_parse_hexadecimal, "00ff", help="bytes in hexadecimal")


def _parse_index(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _check_index(index: str | bool) -> None:
    if index == "":
        raise ValueError("must be a directory, got an empty text")


_INDEX = ValueKind(_parse_index, "/var/cache/kbatch", _check_index, metavar="DIR")
_WITHOUT_INDEX = ValueKind(lambda text: False, "true", help="with a key: use no key index", is_switch=True)


@opts.documented
@dataclass(frozen=True)
class ReadOptions:
    """The records to read, and how to treat damage; the parameters are in the order of ``docs/options.md``.

    Instances hold only plain values and can be pickled.

    Attributes
    ----------
    {options}
    storage : dict of str to str
        Options of a URL's file system. They may be secrets, so the repr omits them.
    values : ValueOptions
        The formats of keys and values.
    policies : dict of str to dict
        By topic, the values of `on_error`, `fail_on_data_loss` and `on_gap` that differ from the general ones.

    Raises
    ------
    OptionError
        A `ValueError`: a value that an option cannot have, or options that contradict each other.

    Examples
    --------
    >>> ReadOptions(topics=("orders",), on_error="skip").split_bytes
    134217728
    """

    topics: tuple[str, ...] | None = option(
        _TOPIC_NAMES, None, spark={"subscribe": _TOPIC_NAMES, "topics": _TOPIC_NAMES}, flag="--topic",
        help="only these topics: names, and globs such as orders-*; the flag may be given more than once",
    )  # fmt: skip
    topic_pattern: str | None = option(
        ValueKind(str.strip, "orders-.*", _check_pattern, metavar="REGEX"), None, spark="subscribePattern",
        flag="--topic-pattern",
        help="only topics whose whole name matches this regular expression of Java, as in Spark's Kafka source; it is "
        "an error if there is none",
    )  # fmt: skip
    assign: dict[str, list[int]] | None = option(
        ValueKind(_parse_assignment, '{"topic": [0, 1]}', metavar="JSON"), None, spark="assign",
        help='exactly these partitions, as {"topic": [0, 1]}',
    )  # fmt: skip
    partitions: frozenset[int] | None = option(
        ValueKind(_parse_partitions, "0,2,5-7", metavar="N,N-N", repeated=True), None, spark="partitions",
        flag="--partition",
        help="only these partitions of each topic, such as 0,2,5-7; the flag may be given more than once",
    )  # fmt: skip
    starting: Bound = _bound("starting", "where to begin")
    ending: Bound = _bound("ending", "where to stop, exclusive")
    latest_if_no_timestamp: bool = option(
        _LATE, False, spark="startingOffsetsByTimestampStrategy",
        help="a partition without a record at or after the starting time is an error, or is skipped (latest)",
    )  # fmt: skip
    include_headers: bool | None = option(
        opts.BOOLEAN, None, spark="includeHeaders",
        flag={"--no-headers": opts.switch_off("leave out the column of record headers"), "--headers": opts.BOOLEAN},
        help="the column of record headers: by default an export has it, and the data source does not, like Spark's "
        "Kafka source",
    )  # fmt: skip
    include_control: bool = option(
        opts.BOOLEAN, False, spark="includeControl", flag="--control",
        help="include control records (transaction markers)",
    )  # fmt: skip
    isolation: Isolation = option(
        ISOLATION, "read_uncommitted", flag="--isolation",
        spark={"isolationLevel": ISOLATION, "kafka.isolation.level": ISOLATION},
        help="every record; or only records of committed transactions and records outside of transactions, up to the "
        "first open transaction",
    )  # fmt: skip
    crc: Crc = option(
        CRC, "verify", spark="crc", flag="--crc",
        help="verify checksums; accept and count batches with a wrong checksum (mark); or do not compute checksums",
    )  # fmt: skip
    on_error: OnError = option(
        ON_ERROR, "raise", spark="onError", flag="--on-error",
        help="at damage, and at formats that cannot be read: fail; stop reading that partition; or skip it. All "
        "losses are listed",
    )  # fmt: skip
    timestamp_overflow: Overflow = option(
        opts.choice("raise", "null"), "raise", spark="timestampOverflow", flag="--timestamp-overflow",
        help="a timestamp beyond the year 294247 is an error, or null",
    )  # fmt: skip
    key: bytes | None = option(
        _KEY, None, spark={"key": _KEY, "keyHex": _KEY_HEX}, flag={"--key": opts.BYTES},
        help="only records with this key: text, taken as UTF-8",
    )  # fmt: skip
    key_partitions: int | None = option(
        opts.whole_number(1), None, spark="keyPartitions", flag="--key-partitions",
        help="with a key: read only the partition that Kafka's default partitioner chooses for it among this number",
    )  # fmt: skip
    index: str | bool | None = option(
        _INDEX, None, spark="keyIndex", flag={"--index": _INDEX, "--no-index": _WITHOUT_INDEX},
        help="with a key: the directory of the index that `kbatch index` has written, so that blocks of batches "
        "without the key are not read (default: the one in the user's cache directory, if it exists)",
    )  # fmt: skip
    split_bytes: int = option(
        opts.size(),
        DEFAULT_SPLIT_BYTES,
        spark="splitBytes",
        flag="--split-size",
        help="bytes of the log that a task reads",
    )
    min_partitions: int | None = option(
        opts.whole_number(1), None, spark="minPartitions",
        help="at least this number of tasks, if there are enough batches",
    )  # fmt: skip
    max_records_per_partition: int | None = option(
        opts.whole_number(1), None, spark="maxRecordsPerPartition",
        help="at most this number of offsets in a task, except for a single batch that has more",
    )  # fmt: skip
    max_decompressed_bytes: int = option(
        opts.size(), MAX_DECOMPRESSED_BYTES, spark="maxDecompressedBytes",
        help="bytes that one batch may decompress to; see `kbatch.Limits`",
    )  # fmt: skip
    max_record_bytes: int = option(
        opts.size(1, MOST_ROW_BYTES), MOST_ROW_BYTES, spark="maxRecordBytes",
        help="a record with more bytes of key, value and headers is an error; the maximum is the largest row that "
        "Spark can hold, and an executor needs about four times its largest record in its heap",
    )  # fmt: skip
    table: TableName = option(
        opts.choice(*get_args(TableName)), "records", spark="table",
        help="the rows: records; counts, the numbers of records; losses, the byte ranges lost to damage (onError is "
        "then skip by default); or transactions, the aborted, undecided and open ones, with any isolation level",
    )  # fmt: skip
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    values: ValueOptions = field(default_factory=ValueOptions)
    fail_on_data_loss: bool = option(
        opts.BOOLEAN, True, spark="failOnDataLoss",
        flag={
            "--allow-missing-offsets": opts.switch_off(
                "report offsets to read that do not exist, instead of failing: before the first offset of a log, after "
                "its last, or deleted by retention during the read. The exit status is then 3"
            )
        },
        help="whether it is an error if offsets to read do not exist: before the first offset of a log, after its "
        "last, or deleted by retention during the read. With false they are reported. In Spark, false also changes the "
        "default of onError to skip",
    )  # fmt: skip
    prune: Pruning = option(
        ValueKind(Pruning.from_json, '{"offset": [5, null, null]}', metavar="JSON", show=lambda value: "none"),
        spark="prune", default_factory=Pruning,
        help="what a condition on the records excludes; `kbatch.spark.read_logs` sets it",
    )  # fmt: skip
    on_gap: OnGap = option(
        opts.choice(*get_args(OnGap)), "report", spark="onGap", flag="--gaps",
        help="offsets that are missing between two segments of a log, where nothing shows that compaction has removed "
        "them: list the gap as a loss (exit status 3), or fail",
    )  # fmt: skip
    policies: dict[str, TopicPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        opts.check_options(self)
        check_fields(self)
        if isinstance(self.index, str):
            # The processes of a cluster have different working directories.
            object.__setattr__(self, "index", os.path.abspath(self.index))
        chosen = [name for name in ("topics", "topic_pattern", "assign") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise OptionError(" and ".join(f"{{{name}}}" for name in chosen) + " exclude each other")
        if self.assign is not None and self.partitions is not None:
            raise OptionError("{assign} and {partitions} exclude each other")
        if self.table == "losses" and self.on_error == "raise":
            raise OptionError("{table} losses requires {on_error} skip or stop; with raise, damage is an error")
        if self.key_partitions is not None and self.key is None:
            raise OptionError("{key_partitions} requires {key}")
        if self.key is not None and self.table not in ("records", "counts"):
            raise OptionError("{key} chooses records; {table} {0} has none", self.table)
        for topic, policy in self.policies.items():
            self._check_policy(topic, policy)

    def __repr__(self) -> str:
        # Its module imports NumPy, which the command line parsers must not import.
        from kbatch.records.display import changed_repr

        return changed_repr(self)

    def _check_policy(self, topic: str, policy: TopicPolicy) -> None:
        unknown = sorted(set(policy) - set(TopicPolicy.__annotations__))
        if unknown:
            names = ", ".join(TopicPolicy.__annotations__)
            raise OptionError("{policies} of topic {0!r} may have {1}, got {2}", topic, names, ", ".join(unknown))
        try:
            replace(self, policies={}, **policy)
        except OptionError as error:
            raise OptionError(f"{error.text} for topic {{{len(error.values)}!r}}", *error.values, topic) from None

    def _for_topic(self, topic: str | None) -> ReadOptions:
        """Return the options of a topic, with its policy in place of the general options and without `policies`."""
        if not self.policies:
            return self
        return self._by_topic.get(topic, self._by_topic[None])

    @cached_property
    def _by_topic(self) -> dict[str | None, ReadOptions]:
        general = replace(self, policies={})
        return {None: general} | {topic: replace(general, **policy) for topic, policy in self.policies.items()}

    def __getstate__(self) -> dict[str, Any]:
        # Without what is cached.
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def selection(self) -> Selection:
        """The part that selects topic-partitions, offsets and times."""
        # The command line parsers import this module, but neither NumPy nor the modules of logs.
        from kbatch.log.selection import Selection

        return Selection(**{each.name: getattr(self, each.name) for each in fields(Selection)})


def split_policies(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `ReadOptions`; some of the given values may map topics to policies.

    Examples
    --------
    >>> from kbatch.plan.read_options import split_policies
    >>> split_policies({"on_error": {"orders": "skip", "*": "stop"}, "on_gap": "raise"})
    {'on_gap': 'raise', 'on_error': 'stop', 'policies': {'orders': {'on_error': 'skip'}}}
    """
    mapped = {name: given[name] for name in TopicPolicy.__annotations__ if isinstance(given.get(name), Mapping)}
    made = {name: value for name, value in given.items() if name not in mapped}
    policies: dict[str, Any] = {}
    for name, by_topic in mapped.items():
        for topic, value in by_topic.items():
            if topic == opts.EVERY_TOPIC:
                made[name] = value
            else:
                policies.setdefault(topic, {})[name] = value
    return {**made, "policies": policies} if policies else made


def parse_options(options: Mapping[str, str]) -> tuple[list[str], ReadOptions]:
    """Return the paths to read and the options, from the strings that Spark passes.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case; ``docs/options.md`` lists them. Options of Spark's Kafka source keep their names and
        values; those without a meaning for directories are ignored (`warn_ignored`). ``path`` is a log directory;
        ``paths`` has several log directories, as a JSON list or separated by commas.
        ``storage.NAME`` is an option of the file system (`kbatch.log.store.storage.Storage`). Settings of a schema
        registry have the names that Confluent's clients use, such as ``schema.registry.url``.

    Raises
    ------
    ValueError
        An unknown option, a value that an option cannot have, or options that contradict each other.

    Examples
    --------
    >>> from kbatch.plan.read_options import parse_options
    >>> paths, read = parse_options({"path": "/data", "subscribe": "orders,users", "splitBytes": "64m"})
    >>> paths, read.topics, read.split_bytes
    (['/data'], ('orders', 'users'), 67108864)
    """
    given = {name.lower(): value for name, value in options.items()}
    if "history" in given:
        raise ValueError("history belongs to a live cluster: name its brokers, or name the directories in paths")
    # load() passes its argument as an option.
    apart = {"path", "paths", *(name.lower() for name in _ignored(options, is_stream=False))}
    return _paths(given), parse_read(given, apart)


def parse_read(
    given: Mapping[str, str], apart: Container[str], excluded: Container[str] = (), added: Iterable[str] = ()
) -> ReadOptions:
    """Return the options of a read, by name in lower case, except those that its source handles `apart`.

    Parameters
    ----------
    given : mapping of str to str
    apart : container of str
    excluded : container of str
        Options that this source does not support.
    added : iterable of str
        Options that only this source has.

    Raises
    ------
    ValueError
    """
    from kbatch.values.registry_settings import is_registry_setting

    storage = {name.removeprefix(_STORAGE): value for name, value in given.items() if name.startswith(_STORAGE)}
    reading = opts.options_of(ReadOptions)
    known = [name for each in (*reading, *ValueOptions.options()) for name in each.spark]
    own = (
        name for name in given if not name.startswith(_STORAGE) and name not in apart and not is_registry_setting(name)
    )
    opts.refuse_unknown(own, [name for name in (*known, *added, "storage.*") if name not in excluded])
    values, names = opts.from_strings(reading, given)
    if "fail_on_data_loss" in values:
        values.setdefault("on_error", "raise" if values["fail_on_data_loss"] else "skip")
    if values.get("table") == "losses":
        values.setdefault("on_error", "skip")
    parsed = ValueOptions.parse(given)
    made: ReadOptions = opts.as_named(lambda: ReadOptions(**values, storage=storage, values=parsed), names)
    return made


def _ignored(options: Iterable[str], *, is_stream: bool) -> list[str]:
    """Return the given options of Spark's Kafka source that have no meaning for directories."""
    read = {name.lower() for each in opts.options_of(ReadOptions) for name in each.spark}
    return ignored_options((name for name in options if name.lower() not in read), _OF_BROKERS, is_stream=is_stream)


def ignored_options(options: Iterable[str], prefixes: tuple[str, ...], *, is_stream: bool) -> list[str]:
    """Return the options that begin with one of the prefixes, and in a batch read the limits of streams.

    Spark's Kafka source ignores limits of streams in batch reads too.
    """
    limits = () if is_stream else _OF_STREAMS
    return [name for name in options if name.lower().startswith(prefixes) or name.lower() in limits]


def warn_ignored(options: Iterable[str], *, is_stream: bool = False) -> None:
    """Log one warning that names the options that a read of directories ignores."""
    log_ignored(_ignored(options, is_stream=is_stream), "log directories", is_stream=is_stream)


def log_ignored(names: Iterable[str], source: str, *, is_stream: bool) -> None:
    """Log one warning that names the options of Spark's Kafka source that have no effect, if there are any."""
    if listed := ", ".join(sorted(names)):
        logging.getLogger(__name__).warning(
            "these options of Spark's Kafka source mean nothing for %s of %s, and are ignored: %s",
            "a stream" if is_stream else "a batch read",
            source,
            printable(listed),
        )


def _paths(given: dict[str, str]) -> list[str]:
    paths: list[str] = []
    if "path" in given:
        paths.append(given["path"])
    if "paths" in given:
        paths += parse_paths("paths", given["paths"])
    if not paths:
        raise ValueError(
            "no path: name the log directory in load(...), or in the option path, or a live cluster in the option "
            "kafka.bootstrap.servers. A table needs CREATE TABLE t USING kbatch OPTIONS (path '...') without a list of "
            "columns"
        )
    return paths


def parse_paths(name: str, text: str) -> list[str]:
    """Return the paths of an option: JSON, as ``load([...])`` passes them, or with commas between, as in log.dirs."""
    try:
        paths = json.loads(text) if text.lstrip().startswith("[") else [path.strip() for path in text.split(",")]
    except ValueError:
        paths = []
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise ValueError(
            f'{name} must be a JSON list such as ["/disk-1", "/disk-2"], or have commas between, got {text!r}'
        )
    return list(paths)
