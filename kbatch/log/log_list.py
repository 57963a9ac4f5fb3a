"""The logs that were found in a log directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

from typing_extensions import Unpack

from kbatch.arguments import check_types, is_integer, suggests_names
from kbatch.escaping import counted
from kbatch.log.conversions import Conversions
from kbatch.log.logs import Log
from kbatch.log.read_arguments import READ_HINTS, ReadArguments, TableOptions
from kbatch.log.topics import first_names
from kbatch.options import did_you_mean
from kbatch.public_names import public_in
from kbatch.records.display import html_of, more_rows
from kbatch.table import RecordTable

__all__ = ["LogList"]

# The logs that a representation lists.
_SHOWN_LOGS = 7


@public_in("kbatch.log")
class LogList(Conversions):
    """The logs of a directory in their order, with the conversions of `Log` for the records of all of them.

    `kbatch.find_logs` returns it. It has a length, and is iterated, indexed and sliced. It is neither a ``list`` nor a
    ``Sequence``, which libraries would take for a column of Python objects. They take it for a stream of records:
    ``pyarrow.table(logs)``, ``polars.DataFrame(logs)``, ``duckdb.sql("from logs")``. The records of a log follow those
    of the previous one; within a log they are in the order of their offsets. ``len(logs)`` is the number of logs,
    ``logs.count()`` the number of records. ``logs["orders"]`` is the list of the logs of a topic, and
    ``logs["orders", 0]`` the log of one partition.

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
    >>> logs["codec-lz4", 0].end_offset
    3208
    """

    def __init__(self, logs: Iterable[Log] = ()) -> None:
        self._logs = tuple(logs)

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs)

    def __contains__(self, item: object) -> bool:
        """Whether there is a log, or one of a topic, or of a topic and partition."""
        if isinstance(item, str):
            return any(log.topic == item for log in self._logs)
        return item in self._logs or any((log.topic, log.partition) == item for log in self._logs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogList):
            return NotImplemented
        return self._logs == other._logs

    def __hash__(self) -> int:
        return hash(self._logs)

    @suggests_names(READ_HINTS)
    def tables(self, *, columns: Sequence[str] | None = None, **options: Unpack[TableOptions]) -> Iterator[RecordTable]:
        """Decode all logs, one after the other, in tables of bounded size.

        Parameters
        ----------
        columns
            As for `Log.tables`.
        **options
            As for `Log.tables`; they apply to each log. ``last=n`` is the last `n` records of each log, and `tail`
            returns the last ones in all. In `start` and `end`, ``"end-1h"`` is before the largest timestamp of the last
            batches of all partitions of the topic in this list.

        Yields
        ------
        RecordTable
            With the `topic`, `partition` and `source` of its log.
        """
        check_types(LogList.tables, locals())
        return self._tables(ReadArguments.of(columns, options))

    def _logs_to_read(self) -> Sequence[Log]:
        return self._logs

    def _has_topic(self) -> bool:
        # An empty list has the columns that other results of `find_logs` have.
        return not self or any(log.topic is not None for log in self)

    @overload
    def __getitem__(self, index: SupportsIndex | tuple[str, int]) -> Log: ...

    @overload
    def __getitem__(self, index: slice | str) -> LogList: ...

    def __getitem__(self, index: SupportsIndex | tuple[str, int] | slice | str) -> Any:
        """Return one log by its place or its topic and partition, or the logs of a slice or a topic.

        Raises
        ------
        IndexError
        KeyError
            If there is no such topic or partition, or several logs have it: directories marked ``-future`` and others.
        """
        if isinstance(index, str):
            return LogList(self._of_topic(index))
        if not isinstance(index, tuple):
            return LogList(self._logs[index]) if isinstance(index, slice) else self._logs[index]
        if len(index) != 2 or not isinstance(index[0], str) or not is_integer(index[1]):
            raise TypeError(f"a LogList is indexed by a place, a slice, a topic or (topic, partition), got {index!r}")
        topic, partition = index
        of_topic = self._of_topic(topic)
        found = [log for log in of_topic if log.partition == partition]
        found = [log for log in found if log.mark is None] or found
        if not found:
            numbers = first_names([str(log.partition) for log in of_topic])
            raise KeyError(f"no log of {topic}-{partition}; the partitions of {topic!r} are {numbers}")
        if len(found) > 1:
            raise KeyError(f"several logs of {topic}-{partition}: {', '.join(log.path for log in found)}")
        return found[0]

    def _of_topic(self, topic: str) -> list[Log]:
        found = [log for log in self._logs if log.topic == topic]
        if not found:
            topics = sorted({log.topic for log in self._logs if log.topic is not None})
            hint = did_you_mean(topic, topics)
            raise KeyError(f"no log of topic {topic!r}{hint or f'; the topics are {first_names(topics)}'}")
        return found

    def __repr__(self) -> str:
        rows = [f"  {name}: {segments}, {size}" for name, segments, size in self._rows()]
        if len(self) > _SHOWN_LOGS:
            rows.append(f"  ... and {counted(len(self) - _SHOWN_LOGS, 'more log')}")
        return "\n".join([f"<LogList: {self._summary()}>", *rows])

    def _repr_html_(self) -> str:
        """Return topics, partitions, segments, sizes and offsets of the first logs for a notebook; reads no file."""
        names = ["log", "segments", "size", "offset of the first segment"]
        first = [log.segments[0].base_offset if log.segments else None for log in self._logs[:_SHOWN_LOGS]]
        rows = [
            [*row, "-" if offset is None else f"{offset:,}"] for row, offset in zip(self._rows(), first, strict=True)
        ]
        rows += more_rows(len(self), _SHOWN_LOGS, "more log", len(names))
        return html_of("LogList", [("", self._summary())], names, rows)

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
