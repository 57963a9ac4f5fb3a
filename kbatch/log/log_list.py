"""The logs that were found in a log directory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

from typing_extensions import Unpack

from kbatch.escaping import counted
from kbatch.log.conversions import Conversions, TableOptions, fixed_times
from kbatch.log.logs import Log
from kbatch.records.display import html_of
from kbatch.table import RecordTable

__all__ = ["LogList"]

# The logs that a representation lists.
_SHOWN_LOGS = 7


class LogList(Conversions):
    """The logs of a directory in their order, with the conversions of `Log` for the records of all of them.

    `kbatch.find_logs` returns it. It has a length, and is iterated, indexed and sliced. It is neither a ``list`` nor a
    ``Sequence``, which libraries would take for a column of Python objects. They take it for a stream of records:
    ``pyarrow.table(logs)``, ``polars.DataFrame(logs)``, ``duckdb.sql("from logs")``. The records of a log follow those
    of the previous one; within a log they are in the order of their offsets.

    Parameters
    ----------
    logs : iterable of Log

    Examples
    --------
    >>> import kbatch
    >>> logs = kbatch.find_logs("tests/golden/logs", predicate=lambda topic, partition: topic.startswith("codec-"))
    >>> logs.to_arrow(columns=["topic", "offset"]).group_by("topic").aggregate([("offset", "max")]).num_rows
    5
    >>> [log.topic for log in logs][:2]
    ['codec-gzip', 'codec-lz4']
    """

    def __init__(self, logs: Iterable[Log] = ()) -> None:
        self._logs = tuple(logs)

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogList):
            return NotImplemented
        return self._logs == other._logs

    def __hash__(self) -> int:
        return hash(self._logs)

    def tables(self, *, columns: Sequence[str] | None = None, **options: Unpack[TableOptions]) -> Iterator[RecordTable]:
        """Decode all logs, one after the other, in tables of bounded size.

        Parameters
        ----------
        columns, **options
            As for `Log.tables`; they apply to each log.

        Yields
        ------
        RecordTable
            With the `topic`, `partition` and `source` of its log.
        """
        options = fixed_times(options)
        return itertools.chain.from_iterable(log.tables(columns=columns, **options) for log in self)

    def _has_topic(self) -> bool:
        # An empty list has the columns that other results of `find_logs` have.
        return not self or any(log.topic is not None for log in self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Log: ...

    @overload
    def __getitem__(self, index: slice) -> LogList: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        """Return one log, or the list of the logs of a slice."""
        return LogList(self._logs[index]) if isinstance(index, slice) else self._logs[index]

    def __repr__(self) -> str:
        rows = [f"  {name}: {segments}, {size}" for name, segments, size in self._rows()]
        if len(self) > _SHOWN_LOGS:
            rows.append(f"  ... and {counted(len(self) - _SHOWN_LOGS, 'more log')}")
        return "\n".join([f"<LogList: {self._summary()}>", *rows])

    def _repr_html_(self) -> str:
        """Return the first logs for a notebook: their topics, partitions, segments and sizes."""
        rows = self._rows()
        if len(self) > _SHOWN_LOGS:
            rows.append([f"... and {counted(len(self) - _SHOWN_LOGS, 'more log')}", "", ""])
        return html_of("LogList", [("", self._summary())], ["log", "segments", "size"], rows)

    def _summary(self) -> str:
        topics = len({log.topic for log in self})
        size = sum(log.size for log in self)
        return f"{counted(len(self), 'log')} of {counted(topics, 'topic')}, {counted(size, 'byte')}"

    def _rows(self) -> list[list[str]]:
        rows = []
        for log in self._logs[:_SHOWN_LOGS]:
            name = log.path if log.topic is None else f"{log.topic}-{log.partition}"
            if log.mark is not None:
                name += f" ({log.mark})"
            rows.append([name, counted(len(log.segments), "segment"), counted(log.size, "byte")])
        return rows
