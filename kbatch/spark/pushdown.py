"""Filters of a query that prune a read (``pushFilters``), for versions of PySpark that do it soundly: none so far.

PySpark keeps the reader that has been given filters for as long as the loaded relation lives, and gives it to later
queries of that relation too. After ``frame.filter("offset >= 7").count()`` a plain ``frame.count()`` is wrong then, and
so is a union of two filters. `probe` finds out whether the running version does so; `SOUND_VERSIONS` is what kbatch
believes. What options say always prunes, with any version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbatch.spark.options import ReadOptions, Within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SETTING", "SOUND_VERSIONS", "is_sound", "probe", "pushed", "require_sound"]

# Versions of PySpark whose `probe` found nothing wrong. In 4.1.4, 4.2.1 and 4.3.0 unions are wrong, and so is a plain
# query after one with a filter, or beside a cached one; 4.0.3 is right, but has no pushFilters.
SOUND_VERSIONS: frozenset[str] = frozenset()
# Without it PySpark refuses every read by a reader that takes filters.
SETTING = "spark.sql.python.filterPushdown.enabled"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PROBE = "kbatch_pushdown_probe"
_PROBE_ROWS = 10


def is_sound(version: str = pyspark.__version__) -> bool:
    """Whether queries stay right with filters that are pushed down, in a version of PySpark."""
    return version in SOUND_VERSIONS


def require_sound(version: str = pyspark.__version__) -> None:
    """Refuse ``option("pushFilters", "true")`` where it gives wrong rows.

    Raises
    ------
    ValueError
    """
    if not is_sound(version):
        known = ", ".join(sorted(SOUND_VERSIONS)) or "no version so far"
        raise ValueError(
            f"pushFilters: PySpark {version} keeps a reader that has been given filters for the next query of the same "
            f"DataFrame, so that rows would be missing there (sound: {known}); leave the option out, and let options "
            "such as topics, partitions, startingOffsets, startingTimestamp and key prune instead"
        )


# -- filters to options


def pushed(options: ReadOptions, filters: Iterable[Any]) -> tuple[ReadOptions, list[Any]]:
    """Narrow a read by the filters of a query, and tell which of them Spark has to apply all the same.

    Parameters
    ----------
    options : ReadOptions
    filters : iterable of pyspark.sql.datasource.Filter
        All of them hold.

    Returns
    -------
    options : ReadOptions
        With `within`, and `key`, narrowed.
    left : list of Filter
        Those that the narrowed read doesn't make true by itself: all of another kind, and those on timestamps. A lower
        bound in time prunes what lies before the first record that reaches it (`Log.offset_for_timestamp`), and no
        more, since timestamps may descend; an upper bound prunes nothing.

    Notes
    -----
    Exact are ``=`` and ``IN`` on topic and partition, ``=``, ``<``, ``<=``, ``>``, ``>=`` on offset, and ``=`` on key.
    """
    left = []
    for one in filters:
        narrowed, exact = _narrow(options, one)
        options = narrowed
        if not exact:
            left.append(one)
    return options, left


def _narrow(options: ReadOptions, one: Any) -> tuple[ReadOptions, bool]:
    kind = type(one).__name__
    column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None
    value = getattr(one, "value", None)
    within = options.within
    if column in ("topic", "partition") and kind in ("EqualTo", "In"):
        # A null among them is equal to nothing.
        listed: tuple[Any, ...] = one.value if kind == "In" else (value,)
        values = frozenset(each for each in listed if each is not None)
        if column == "topic":
            topics = values if within.topics is None else values & within.topics
            return replace(options, within=replace(within, topics=topics)), True
        partitions = values if within.partitions is None else values & within.partitions
        return replace(options, within=replace(within, partitions=partitions)), True
    if column == "offset" and kind in _BOUNDS and type(value) is int:
        low, high = _BOUNDS[kind]
        start = None if low is None else value + low
        stop = None if high is None else value + high
        return replace(options, within=_between(within, start, stop)), True
    lower = kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual")
    if column == "timestamp" and lower and isinstance(value, datetime) and value.tzinfo is not None:
        # Cut to milliseconds.
        since = (value - _EPOCH) // timedelta(milliseconds=1)
        if within.start_timestamp is not None:
            since = max(since, within.start_timestamp)
        return replace(options, within=replace(within, start_timestamp=since)), False
    raw = "key" not in options.values.parsed
    if column == "key" and raw and kind == "EqualTo" and isinstance(value, bytes | bytearray):
        if options.key is not None and options.key != value:
            return replace(options, within=replace(within, nothing=True)), True
        return replace(options, key=bytes(value)), True
    return options, False


# What a comparison adds to its number to make an offset to begin with, and one to stop before.
_BOUNDS: dict[str, tuple[int | None, int | None]] = {
    "EqualTo": (0, 1),
    "GreaterThan": (1, None),
    "GreaterThanOrEqual": (0, None),
    "LessThan": (None, 0),
    "LessThanOrEqual": (None, 1),
}


def _between(within: Within, start: int | None, stop: int | None) -> Within:
    if start is not None and within.start_offset is not None:
        start = max(start, within.start_offset)
    if stop is not None and within.stop_offset is not None:
        stop = min(stop, within.stop_offset)
    return replace(
        within,
        start_offset=within.start_offset if start is None else start,
        stop_offset=within.stop_offset if stop is None else stop,
    )


# -- the probe


class _ProbeReader(DataSourceReader):
    """Ten offsets, of which it leaves out what its filters do, as any source may."""

    def __init__(self) -> None:
        self.options = ReadOptions()

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self.options, left = pushed(self.options, filters)
        return left

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        within = self.options.within
        start, stop = within.start_offset or 0, within.stop_offset
        offsets = list(range(_PROBE_ROWS)[start : _PROBE_ROWS if stop is None else max(0, stop)])
        narrowed = [within != Within()] * len(offsets)
        yield pa.RecordBatch.from_arrays([pa.array(offsets, pa.int64()), pa.array(narrowed)], ["offset", "narrowed"])


class _ProbeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return _PROBE

    def schema(self) -> str:
        return "offset bigint, narrowed boolean"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ProbeReader()


def probe(spark: SparkSession) -> dict[str, bool]:
    """Query a tiny source that takes filters in every way that a loaded relation is used, and tell what came out right.

    Parameters
    ----------
    spark : SparkSession

    Returns
    -------
    dict of str to bool
        By kind of query, whether its rows are right. A version is sound if all of them are. A query that fails isn't
        right.

    Notes
    -----
    It registers a data source named ``kbatch_pushdown_probe``, and sets a setting of the session, which it puts back.
    """
    before = spark.conf.get(SETTING, None)
    spark.conf.set(SETTING, "true")
    spark.dataSource.register(_ProbeSource)
    found: dict[str, bool] = {}

    def check(name: str, offsets: Iterable[int], make: Any) -> None:
        try:
            found[name] = sorted(row[0] for row in make().collect()) == sorted(offsets)
        except Exception:
            found[name] = False

    def load() -> Any:
        return spark.read.format(_PROBE).load()

    every, late, early = range(_PROBE_ROWS), range(7, _PROBE_ROWS), range(3)
    try:
        frame = load()
        # Where filters never reach the reader (PySpark 4.0) everything else is right.
        check("pushed", [True] * 3, lambda: frame.filter("offset >= 7").select("narrowed"))
        check("filtered", late, lambda: frame.filter("offset >= 7"))
        check("another filter", early, lambda: frame.filter("offset < 3"))
        check("unfiltered after filtered", every, lambda: frame)
        first = load()
        check("unfiltered first", every, lambda: first)
        check("filtered after unfiltered", late, lambda: first.filter("offset >= 7"))
        union = load()
        check("union", [*late, *early], lambda: union.filter("offset >= 7").union(union.filter("offset < 3")))
        both = load()
        check("union with unfiltered", [*early, *every], lambda: both.filter("offset < 3").union(both))
        join = load()
        check(
            "self-join",
            range(7, 8),
            lambda: join.filter("offset >= 7").join(join.filter("offset <= 7"), "offset").select("offset"),
        )
        cached = load()
        kept = cached.filter("offset < 3").cache()
        check("cached", early, lambda: kept)
        check("beside cached", every, lambda: cached)
        kept.unpersist()
        whole = load().cache()
        check("filter of cached", late, lambda: whole.filter("offset >= 7"))
        check("whole cached", every, lambda: whole)
        whole.unpersist()
    finally:
        if before is None:
            spark.conf.unset(SETTING)
        else:
            spark.conf.set(SETTING, before)
    return found
