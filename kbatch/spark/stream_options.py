"""The options of ``spark.readStream.format("kbatch")``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kbatch import options as opts
from kbatch.bounds import PerPartition
from kbatch.live.cluster_source import ClusterSource
from kbatch.options import OptionError, ValueKind, option
from kbatch.plan.cluster_options import parse_cluster_options
from kbatch.plan.read_options import EARLIEST, LATEST, ReadOptions, parse_options, parse_per_partition
from kbatch.quantities import parse_duration

__all__ = ["StreamReadOptions", "parse_live_stream_options", "parse_stream_options"]

SourceT = TypeVar("SourceT")

_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "prune", "table")


def _parse_starting(text: str) -> int | PerPartition:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    try:
        return parse_per_partition(text)
    except ValueError:
        raise ValueError(
            f'must be earliest, latest or JSON such as {{"topic": {{"0": 23, "1": -2}}}}, got {text!r}'
        ) from None


def _check_starting(value: int | PerPartition) -> None:
    numbers = [value] if isinstance(value, int) else [each for parts in value.values() for each in parts.values()]
    if min(numbers, default=0) < EARLIEST:
        raise ValueError(f"must be earliest, latest or JSON with offsets, -2 or -1, got {value}")


def _check_delay(value: float) -> None:
    if not value >= 0:
        raise ValueError(f"must not be negative, got {value}")


@opts.documented
@dataclass(frozen=True)
class StreamReadOptions:
    """The options of a streaming read.

    Attributes
    ----------
    read : ReadOptions
        As for a batch read; its only bounds are starting timestamps.
    {options}
    """

    read: ReadOptions
    starting: int | PerPartition = option(
        ValueKind(_parse_starting, "earliest", _check_starting, metavar="JSON", show=lambda value: "latest"),
        LATEST, spark="startingOffsets",
        help="where a new query begins: earliest (-2), latest (-1), or offsets by topic and partition",
    )  # fmt: skip
    max_offsets: int | None = option(
        opts.whole_number(1),
        None,
        spark="maxOffsetsPerTrigger",
        help="maximum number of records in a micro-batch; offsets that no longer exist do not count",
    )
    min_offsets: int | None = option(
        opts.whole_number(1), None, spark="minOffsetsPerTrigger",
        help="a micro-batch waits for this number of offsets, up to maxTriggerDelay",
    )  # fmt: skip
    max_bytes: int | None = option(
        opts.size(),
        None,
        spark="maxBytesPerTrigger",
        help="approximate maximum number of bytes that a micro-batch reads",
    )
    # Spark's Kafka source has the same default.
    max_delay: float = option(
        ValueKind(parse_duration, "1m", _check_delay, metavar="TIME", show=lambda value: f"{value / 60:g}m"),
        15 * 60.0, spark="maxTriggerDelay",
        help="the longest wait for minOffsetsPerTrigger: a time such as 90s or 15m; a number alone is milliseconds",
    )  # fmt: skip

    def __post_init__(self) -> None:
        opts.check_options(self)
        if self.max_offsets is not None and self.min_offsets is not None and self.max_offsets < self.min_offsets:
            raise OptionError("{min_offsets} must not be more than {max_offsets}")
        outside = set(self.starting) - set(self.read.assign or self.starting) if isinstance(self.starting, dict) else ()
        if outside:
            raise OptionError("{starting} names {0}, which assign does not", ", ".join(sorted(outside)))


def parse_stream_options(options: Mapping[str, str]) -> tuple[list[str], StreamReadOptions]:
    """Return the directories to watch and the options, from the strings that Spark passes.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case; ``docs/options.md`` lists all of them. The options of a batch read are valid too, except for
        endings and ``table``. Before PySpark 4.2, ``Trigger.AvailableNow`` ends after one micro-batch if there is a
        limit.

    Raises
    ------
    ValueError
        As `parse_options`, and for options that only batch reads have.

    Examples
    --------
    >>> from kbatch.spark.stream_options import parse_stream_options
    >>> given = {"path": "/data", "startingOffsets": "earliest", "maxTriggerDelay": "1m"}
    >>> paths, stream = parse_stream_options(given)
    >>> stream.starting, stream.max_delay, stream.read.fail_on_data_loss
    (-2, 60.0, True)
    """
    return _parse_stream(options, parse_options)


def parse_live_stream_options(options: Mapping[str, str]) -> tuple[ClusterSource, StreamReadOptions]:
    """Return the cluster with its history and the options of a stream of it, as `parse_stream_options`.

    Raises
    ------
    ValueError
        As `parse_cluster_options`, and for options that only batch reads have.
    """
    if any(name.lower() == "maxbytespertrigger" for name in options):
        raise ValueError(
            "maxBytesPerTrigger does not apply to a live cluster: the sizes of records are not known before they are "
            "fetched; use maxOffsetsPerTrigger"
        )
    return _parse_stream(options, parse_cluster_options)


def _parse_stream(
    options: Mapping[str, str], parse: Callable[[Mapping[str, str]], tuple[SourceT, ReadOptions]]
) -> tuple[SourceT, StreamReadOptions]:
    given = {name.lower(): value for name, value in options.items()}
    for name in _BATCH_ONLY:
        if name.lower() in given and not (name == "table" and given["table"] == "records"):
            raise ValueError(f"{name} is not valid in streaming queries")
    if given.get("onerror", "").strip().lower() == "stop":
        raise ValueError("onError=stop is not valid in streaming queries: choose raise or skip")
    values, names = opts.from_strings(opts.options_of(StreamReadOptions), given)
    own = {name.lower() for name in names.values()}
    source, read = parse({name: value for name, value in given.items() if name not in own})
    return source, opts.as_named(lambda: StreamReadOptions(read, **values), names)
