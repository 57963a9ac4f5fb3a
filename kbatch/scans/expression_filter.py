"""A filter of records as an Arrow expression: the rows for which it is true, and what it excludes.

Arrow itself decides what a filter excludes. A file of a dataset may have a guarantee, an expression that is true for
all of its rows, and `pyarrow.dataset.Dataset.get_fragments` leaves out the files whose guarantee contradicts a filter.
The file need not exist. So any function that Arrow simplifies prunes, and what it cannot decide is read.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.bounds import Domain, Pruning
from kbatch.extras import require
from kbatch.format import INT64_MAX, NO_TIMESTAMP, VIEW_COLUMNS
from kbatch.log.record_view import RecordView
from kbatch.quantities import EPOCH
from kbatch.records.arrow import view_schema
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

__all__ = ["ExpressionFilter", "LogPruning"]

INT64_MIN = -INT64_MAX - 1
# A range of this number of records that is selected as a whole is not copied.
_WHOLE_ROWS = 4096
# A condition on more keys than these excludes no row before Arrow evaluates it.
_MAX_KEYS = 16
_NUMBER = re.compile(r"(?<![\w.:-])-?\d{1,18}(?![\w.:-])")
_TIME_TEXT = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?Z")
_HEXADECIMAL = re.compile(r"(?<![\w.:-])(?:[0-9A-F]{2})+(?![\w.:-])")


class LogPruning(NamedTuple):
    """What a filter excludes of the records of one log.

    Attributes
    ----------
    pruning : Pruning
        The range of offsets, and the time before which no record is needed.
    is_empty : bool
        Whether the filter is true for no record of the log.
    is_always_true : bool
        Whether the filter is true for every record of the log within the range of offsets.
    """

    pruning: Pruning
    is_empty: bool = False
    is_always_true: bool = False


class ExpressionFilter:
    """A condition on the columns of records.

    Parameters
    ----------
    expression : pyarrow.compute.Expression
    view : RecordView, optional
        The columns that the condition may use; default is all columns of records.

    Raises
    ------
    TypeError
        If it is not an expression, or its result is not a boolean.
    ValueError
        If it uses a column that records do not have, or compares types that Arrow does not compare.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> from kbatch.scans.expression_filter import ExpressionFilter
    >>> found = ExpressionFilter((pc.field("offset") >= 5) & (pc.field("topic") == "orders"))
    >>> found.columns
    ('offset', 'topic')
    >>> found.of_log("orders", 0).pruning.offset.low, found.may_select("users", 0)
    (5, False)
    """

    def __init__(self, expression: pc.Expression, view: RecordView | None = None) -> None:
        pa, compute = require("pyarrow", "arrow", "a filter"), require("pyarrow.compute", "arrow", "a filter")
        if not isinstance(expression, compute.Expression):
            raise TypeError(
                f"a filter must be a pyarrow.compute.Expression, such as pc.field('offset') > 5, got {expression!r}"
            )
        self.expression = expression
        self._field = compute.field
        self._view = RecordView.of(None, VIEW_COLUMNS) if view is None else view
        self._schema = self._view.schema
        try:
            found = _evaluated(expression, self._schema.empty_table()).type
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            names = ", ".join(self._schema.names)
            reason = str(error).partition("\n")[0]
            if "timestamp" in reason:
                reason += "; timestamps compare with a datetime with a time zone, such as datetime(..., tzinfo=UTC)"
            raise ValueError(f"the filter {expression} does not fit the columns {names}: {reason}") from None
        if pa.types.is_null(found):
            self.expression = expression.cast(pa.bool_())
        elif not pa.types.is_boolean(found):
            raise TypeError(f"a filter must have a boolean result, got {expression}, which is {found}")

    def __str__(self) -> str:
        # Arrow writes the values of `isin` on lines of their own.
        return " ".join(str(self.expression).split())

    def __and__(self, other: ExpressionFilter) -> ExpressionFilter:
        names = dict.fromkeys((*self._schema.names, *other._schema.names))
        return ExpressionFilter(self.expression & other.expression, self._view.of_columns(tuple(names)))

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition uses."""
        return tuple(name for name in self._schema.names if not self._is_bound_without(name))

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """The columns of records that the condition is evaluated on."""
        return self._view.of_columns(self.columns).columns if self.columns else ()

    def _is_bound_without(self, name: str) -> bool:
        pa = require("pyarrow", "arrow", "a filter")
        rest = pa.schema([each for each in self._schema if each.name != name])
        try:
            _evaluated(self.expression, rest.empty_table())
        except pa.ArrowInvalid:
            return False
        return True

    def selected(self, table: RecordTable) -> list[RecordTable]:
        """Return the records for which the condition is true, in order; null counts as false.

        Ranges of records that are selected as a whole are not copied, such as those after a time.
        """
        known = self._of_bounds(table) if len(table) >= _WHOLE_ROWS else None
        if known is not None:
            return [table] if known else []
        mask = self._mask(table)
        count = int(np.count_nonzero(mask))
        if count == len(table) or not count:
            return [table] if count else []
        parts: list[RecordTable] = []
        begin = 0
        of_chunks = np.add.reduceat(mask, np.arange(0, len(mask), _WHOLE_ROWS), dtype=np.int64)
        is_whole = of_chunks == _WHOLE_ROWS
        # Each run of chunks that are whole, and each of others, is one part.
        edges = np.flatnonzero(is_whole[1:] != is_whole[:-1]) + 1
        for end in (*(edges * _WHOLE_ROWS).tolist(), len(mask)):
            if is_whole[begin // _WHOLE_ROWS]:
                parts.append(table[begin:end])
            elif mask[begin:end].any():
                rows = np.zeros(len(mask), np.bool_)
                rows[begin:end] = mask[begin:end]
                parts.append(table[rows])
            begin = end
        return parts

    def _of_bounds(self, table: RecordTable) -> bool | None:
        """Return the value of the condition for all records, if the bounds of their offsets and times decide it."""
        columns = set(self.columns)
        if not columns <= {"topic", "partition", "offset", "timestamp"}:
            return None
        bounds = self._named(table.topic, table.partition)
        if "offset" in columns:
            offsets = table.records["offset"]
            bounds &= self._within(Domain(int(offsets.min()), int(offsets.max())))
        if "timestamp" in columns:
            times, timestamp = table.records["timestamp"], self._field("timestamp")
            low, high = int(times.min()), int(times.max())
            if low <= NO_TIMESTAMP:
                return None
            bounds &= (timestamp >= _timestamp(low)) & (timestamp <= _timestamp(high))
        if not self._is_possible(bounds):
            return False
        return None if self._inverse._is_possible(bounds) else True

    @functools.cached_property
    def _inverse(self) -> ExpressionFilter:
        """The condition that is true for all other records; it is only used to decide what is possible."""
        inverse = ExpressionFilter.__new__(ExpressionFilter)
        inverse.expression, inverse._schema = ~self.expression | self.expression.is_null(), self._schema
        return inverse

    def _mask(self, table: RecordTable) -> npt.NDArray[np.bool_]:
        pa = require("pyarrow", "arrow", "a filter")
        # A condition without columns needs some column for the number of rows.
        view = self._view.of_columns(self.columns or ("offset",))
        made = pa.Table.from_batches(view.batches(table), schema=view.schema)
        try:
            found = _evaluated(self.expression, made)
        except pa.ArrowInvalid:
            # A time in microseconds is compared in microseconds, which the largest timestamps exceed.
            if "timestamp" not in made.column_names:
                raise
            found = _evaluated(self.expression, _within_microseconds(made))
        mask: npt.NDArray[np.bool_] = found.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
        return mask

    # -- what the filter excludes

    def may_select(self, topic: str | None, partition: int | None) -> bool:
        """Whether the condition can be true for a record of a topic-partition."""
        if not {"topic", "partition"} & set(self.columns):
            return True
        return self._topic_may_be(topic) and self._is_possible(self._named(topic, partition))

    @functools.cached_property
    def keys(self) -> tuple[bytes, ...]:
        """The only keys with which the condition can be true; none if other keys are possible."""
        pa = require("pyarrow", "arrow", "a filter")
        if "key" not in self.columns or self._schema.field("key").type != pa.binary():
            return ()
        # A key that the expression compares with is in its text, an empty one as no text.
        found = sorted({b"", *map(bytes.fromhex, _HEXADECIMAL.findall(str(self.expression)))})
        key = self._field("key")
        if len(found) > _MAX_KEYS or self._is_possible(key.is_null()):
            return ()
        gaps = [key < found[0], *((key > a) & (key < b) for a, b in itertools.pairwise(found)), key > found[-1]]
        if any(map(self._is_possible, gaps)):
            return ()
        return tuple(each for each in found if self._is_possible(key == each))

    @functools.cached_property
    def pruning(self) -> Pruning:
        """What the filter excludes of every log: offsets and times."""
        return self._range_of(None)

    def of_log(self, topic: str | None, partition: int | None) -> LogPruning:
        """Return what the filter excludes of a log."""
        named = self._named(topic, partition)
        names, ranges = {"topic", "partition"} & set(self.columns), {"offset", "timestamp"} & set(self.columns)
        pruning = self.pruning
        if not self._is_possible(named):
            return LogPruning(pruning, is_empty=True)
        # The range of one log is smaller only if the condition differs between logs.
        if names and ranges and not self._reaches_ends(named, pruning):
            pruning = self._range_of(named)
        if pruning.offset.high is not None and (pruning.offset.low or 0) > pruning.offset.high:
            return LogPruning(pruning, is_empty=True)
        return LogPruning(pruning, False, not self._inverse._is_possible(named & self._within(pruning.offset)))

    def may_have(self, topic: str | None, partition: int | None, offsets: Domain) -> bool:
        """Whether the condition can be true for a record of a topic-partition with an offset in a range."""
        return self._is_possible(self._named(topic, partition) & self._within(offsets))

    def _named(self, topic: str | None, partition: int | None) -> pc.Expression:
        names, numbers = self._field("topic"), self._field("partition")
        return (names.is_null() if topic is None else names == topic) & (
            numbers.is_null() if partition is None else numbers == _int32(partition)
        )

    def _within(self, offsets: Domain) -> pc.Expression:
        offset = self._field("offset")
        low, high = INT64_MIN if offsets.low is None else offsets.low, offsets.high
        return (offset >= low) & (offset <= (INT64_MAX if high is None else high))

    @functools.lru_cache(maxsize=1 << 14)  # noqa: B019
    def _topic_may_be(self, topic: str | None) -> bool:
        names = self._field("topic")
        return self._is_possible(names.is_null() if topic is None else names == topic)

    def _range_of(self, named: pc.Expression | None) -> Pruning:
        """Return the offsets and the time that the condition excludes, of logs of a name or of all."""

        def possible(guarantee: pc.Expression) -> bool:
            return self._is_possible(guarantee if named is None else named & guarantee)

        low = high = since = None
        if "offset" in self.columns:
            offset = self._field("offset")
            low = _smallest(lambda x: possible(offset <= x), self._numbers)
            high = -_smallest(lambda x: possible(offset >= -x), [-x for x in self._numbers[::-1]], low=-INT64_MAX)
            if high == INT64_MAX:
                high = None
        if "timestamp" in self.columns:
            since = _smallest(lambda x: possible(self._not_after(x)), self._times)
        # As the bounds of a read, which have no negative offsets.
        low = None if low is None or low <= 0 else low
        high = None if high is None else max(high, -1)
        return Pruning(offset=Domain(low, high), since=None if since == INT64_MIN else since)

    @functools.cached_property
    def _numbers(self) -> list[int]:
        """Numbers in the expression, among which bounds of offsets are."""
        return sorted({int(each) for each in _NUMBER.findall(str(self.expression))})

    @functools.cached_property
    def _times(self) -> list[int]:
        """Times in the expression, in milliseconds."""
        found = (datetime.datetime.fromisoformat(each) for each in _TIME_TEXT.findall(str(self.expression)))
        return sorted({(each - EPOCH) // datetime.timedelta(milliseconds=1) for each in found})

    def _reaches_ends(self, named: pc.Expression, pruning: Pruning) -> bool:
        """Whether Arrow can exclude no more of a log of this name than of every log."""
        offset, (low, high) = self._field("offset"), (pruning.offset.low, pruning.offset.high)
        ends = [
            offset <= (INT64_MIN if low is None else low),
            offset >= (INT64_MAX if high is None else high),
            self._not_after(INT64_MIN if pruning.since is None else pruning.since),
        ]
        return all(self._is_possible(named & end) for end in ends)

    def _not_after(self, milliseconds: int) -> pc.Expression:
        """Return that a timestamp is not later; a batch with such a largest timestamp can have null ones too."""
        timestamp = self._field("timestamp")
        return (timestamp <= _timestamp(milliseconds)) | timestamp.is_null()

    def _is_possible(self, guarantee: pc.Expression) -> bool:
        """Whether the condition can be true for rows with a guarantee, as far as Arrow can decide."""
        pa, dataset = require("pyarrow", "arrow", "a filter"), require("pyarrow.dataset", "arrow", "a filter")
        files = dataset.FileSystemDataset.from_paths(
            ["x"], schema=self._schema, format=_any_format(), filesystem=_local_files(), partitions=[guarantee]
        )
        try:
            return any(True for _ in files.get_fragments(filter=self.expression))
        except pa.ArrowInvalid:
            # A bound that the type of a constant does not reach, such as the largest timestamp in microseconds.
            return True


@functools.cache
def _any_format() -> object:
    return require("pyarrow.dataset", "arrow", "a filter").IpcFileFormat()


@functools.cache
def _local_files() -> object:
    return require("pyarrow.fs", "arrow", "a filter").LocalFileSystem()


def _int32(number: int) -> pa.Scalar:
    pa = require("pyarrow", "arrow", "a filter")
    return pa.scalar(number, pa.int32())


@functools.cache
def _time_type() -> pa.DataType:
    return view_schema(["timestamp"]).field(0).type


def _timestamp(milliseconds: int) -> pa.Scalar:
    return require("pyarrow", "arrow", "a filter").scalar(milliseconds, _time_type())


def _evaluated(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """Return the values of an expression for the rows of a table, in their order."""
    acero = require("pyarrow.acero", "arrow", "a filter")
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["selected"]))
    made: pa.Table = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    return made.column(0)


def _within_microseconds(table: pa.Table) -> pa.Table:
    """Return a table whose timestamps are within the range of microseconds, which compare like those beyond it."""
    pa, pc = require("pyarrow", "arrow", "a filter"), require("pyarrow.compute", "arrow", "a filter")
    place = table.column_names.index("timestamp")
    kind, limit = table.schema.field(place).type, INT64_MAX // 1000
    numbers = table.column(place).cast(pa.int64())
    clipped = pc.max_element_wise(pc.min_element_wise(numbers, limit, skip_nulls=False), -limit, skip_nulls=False)
    return table.set_column(place, "timestamp", clipped.cast(kind))


def _smallest(
    possible: Callable[[int], bool], hints: Sequence[int], low: int = INT64_MIN, high: int = INT64_MAX
) -> int:
    """Return the smallest possible number by bisection, beginning near the sorted `hints`; if there is none, `high`.

    `possible` states whether a number up to its argument is possible.
    """
    if possible(low):
        return low
    # Numbers up to `low` are excluded.
    points = [each for hint in hints for each in (hint - 1, hint, hint + 1) if low < each < high]
    while points:
        middle = points[len(points) // 2]
        if possible(middle):
            high = middle
        else:
            low = middle
        points = [each for each in points if low < each < high]
    while high - low > 1:
        middle = (low + high) // 2
        if possible(middle):
            high = middle
        else:
            low = middle
    return high
