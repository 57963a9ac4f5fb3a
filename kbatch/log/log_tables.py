"""The tables of one log: `Log` without the files of its directory."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NoReturn, cast

from kbatch.arguments import check_types, suggests_names
from kbatch.batches.codecs import codec_name
from kbatch.bounds import BoundLike
from kbatch.errors import KbatchError
from kbatch.escaping import counted
from kbatch.format import ATTRIBUTE_CODEC, Limits
from kbatch.log.conversions import Conversions
from kbatch.log.key_lookup import IndexLike, index_of_log
from kbatch.log.log_bounds import LogBound, start_of, stop_of
from kbatch.log.ranges import LogSelection
from kbatch.log.read_arguments import READ_HINTS, ReadArguments, TableOptions
from kbatch.log.row_filter import RowFilter
from kbatch.log.segment import Segment
from kbatch.quantities import SizeLike, TimeLike
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.records.display import html_of, table_rows
from kbatch.table import RecordTable

__all__ = ["TablesOfLog"]

# A notebook shows the first records of a log if these first batches have any.
_HEAD_BATCHES = 16


class TablesOfLog(Conversions):
    """A log as an iterable of its tables, without a length; its display in a notebook."""

    topic: str | None
    partition: int | None
    segments: list[Segment]
    use_indexes: bool

    @property
    @abstractmethod
    def start_checkpoint(self) -> int | None:
        """The broker's log start offset, if it is known."""

    @property
    @abstractmethod
    def start_offset(self) -> int:
        """The first offset of the log."""

    @property
    @abstractmethod
    def end_offset(self) -> int:
        """The offset after the last record."""

    @property
    @abstractmethod
    def last_timestamp(self) -> int | None:
        """The largest timestamp of the last batch, if there is one."""

    @suggests_names(READ_HINTS)
    def tables(
        self,
        *,
        start: BoundLike | None = None,
        end: BoundLike | None = None,
        start_offset: int | None = None,
        stop_offset: int | None = None,
        start_timestamp: TimeLike | None = None,
        stop_timestamp: TimeLike | None = None,
        last: int | None = None,
        key: bytes | str | None = None,
        index: IndexLike = None,
        isolation: Isolation = "read_uncommitted",
        include_control: bool = False,
        crc: Crc = "verify",
        on_error: OnError = "raise",
        limits: Limits | None = None,
        columns: Sequence[str] | None = None,
        threads: int = 1,
        max_bytes: SizeLike | None = None,
    ) -> Iterator[RecordTable]:
        """Decode the log, in tables of bounded size.

        Parameters
        ----------
        start, end : int, datetime, datetime64, timedelta, str or mapping, optional
            Where to begin and where to end, exclusive:

            - an int is an offset, and a negative one counts back from `end_offset`;
            - a datetime, a datetime64 or a text in ISO 8601 is a time: rows are selected by their timestamp, exactly;
            - a timedelta or a text such as ``"-1h"`` is a time before now;
            - ``"end-1h"`` is a time before the end of the topic, the largest timestamp of its last batch;
            - ``"earliest"`` and ``"latest"`` are the log start offset and `end_offset`;
            - a mapping has one of these for some partitions, ``{0: 100, 1: "latest"}``, or for some partitions of some
              topics, ``{"orders": {0: 100}}``. The others are read from their beginning, or to their end.

            `start_offset`, `start_timestamp`, `stop_offset` and `stop_timestamp` are typed spellings of the same
            bounds. They exclude `start` and `end`, but not each other: an offset and a time both apply.
        start_offset, stop_offset : int, optional
            Only records with `start_offset` <= offset < `stop_offset`. Negative numbers count back from `end_offset`.
            By default the read begins at the log start offset (`start_checkpoint`), as for a consumer. A smaller
            `start_offset`, such as 0, includes records that the broker has deleted but that are still on disk.
        start_timestamp, stop_timestamp : datetime, datetime64, timedelta, str or int, optional
            Only records with `start_timestamp` <= timestamp < `stop_timestamp`. A time without a time zone is UTC. A
            text is in ISO 8601, an integer is milliseconds since the epoch, and a timedelta or a text such as ``"-1h"``
            is a time before now. Producers choose timestamps freely, so an earlier record may follow a later one:
            `stop_timestamp` selects rows and does not end the read. With `start_timestamp`, index files and batch
            headers allow skipping bytes that contain only earlier batches.
        last : int, optional
            Only the last records, at most this number, among those that the other arguments select. Records are
            counted, not offsets: compacted and transactional logs have gaps. Of several logs, the last records of each.
        key : bytes or str, optional
            Only records with this key; a text is taken as UTF-8.
        index : str, path or bool, optional
            With a `key`: the directory of the key index that `kbatch.index_logs` has written. Blocks of batches without
            the key are then not read, so that damage in them is neither an error nor a loss. By default the one in the
            user's cache directory, if it exists; False uses none. An index that does not fit a segment is ignored. With
            ``on_error="stop"``, ``crc="mark"`` and ``"skip"`` none is used.
        isolation : {"read_uncommitted", "read_committed"}
            As for `kbatch.decode`, with the markers of the whole log, which is followed first: see `transactions`.
        include_control, crc, on_error, limits, columns, threads
            As for `kbatch.decode`. With ``on_error="stop"`` damage ends the read of the whole log.
        max_bytes : int or str, optional
            Limit on the memory of a table: records, batches, data and header rows, in addition to tables that the
            caller keeps. A larger batch is split (`RecordTable.continued`), or refused if its payload takes more than
            three quarters of the limit, or if payload and compressed bytes together take more than seven eighths. The
            memory of the process grows by at most 1.3 times the limit, plus 8 MiB. Views of a table, such as
            `to_arrow` and `to_pandas`, come on top: ``limits.max_table_bytes`` limits a table with one view. A limit
            below 16 MiB only ends tables. Under read_committed a limit from 16 MiB on also applies to the transactions
            (by default ``limits.max_table_bytes`` does). Default is about 64 MiB, or 8 MiB before the choice of a
            `key`, and more if a batch is larger.

        Yields
        ------
        RecordTable
            With `topic`, `partition` and the segment's path as `source`; ``position`` in batches and losses is a byte
            of that file. One without records may have empty batches or losses, such as a gap between segments.

        Raises
        ------
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            As for `kbatch.decode`, with the file and the byte in it.
        TruncatedBatchError
            If a segment other than the last ends within a batch (DSK-R14).
        LogDirectoryError
            If a segment begins before the end of the previous one (DSK-R13).

        Warns
        -----
        RuntimeWarning
            If there are no records, because the start was given as a duration before now and the last timestamp is
            earlier, as in a backup.

        References
        ----------
        Rules such as DSK-R13 are listed in ``docs/format-rules.md``.

        Examples
        --------
        >>> import kbatch
        >>> log = kbatch.Log("tests/golden/logs/txn-0")
        >>> for table in log.tables(last=3, isolation="read_committed"):
        ...     print(table.records["offset"])
        [353 360 361]

        Notes
        -----
        `start_timestamp` relies on ``maxTimestamp``, which may be too large after compaction; that only costs time
        (TS-R4). See `Segment.seek_timestamp`.
        """
        check_types(TablesOfLog.tables, given := locals())
        columns = given.pop("columns")
        del given["self"]
        return self._tables(ReadArguments.of(columns, cast(TableOptions, given)))

    def _has_topic(self) -> bool:
        return self.topic is not None

    def _logs_to_read(self) -> Sequence[TablesOfLog]:
        return [self]

    def _selection(self, arguments: ReadArguments, start: LogBound, stop: LogBound) -> LogSelection:
        """Return what is read of the log within its bounds."""
        return LogSelection(
            self.segments,
            replace(arguments.decode, start_offset=start_of(self, start), stop_offset=stop_of(self, stop)),
            arguments.max_bytes,
            arguments.rows(start, stop),
            self.use_indexes,
            self.topic,
            self.partition,
            last=arguments.last,
            end_offset=None if arguments.last is None else self.end_offset,
            key_index=index_of_log(arguments.index, self.segments) if arguments.keys else None,
        )

    @abstractmethod
    def _shown_names(self) -> Iterator[tuple[str, str]]:
        """Yield the path, topic and partition that a notebook shows of a log."""

    @abstractmethod
    def _shown_facts(self) -> Iterator[tuple[str, str]]:
        """Yield what a notebook shows of the batches of a log: reads the first and the last ones."""

    def _repr_html_(self) -> str:
        """Return offsets, times, codec, columns and first rows for a notebook.

        The first and the last batches are read, except from a remote storage.
        """
        size = sum(segment.size for segment in self.segments)
        facts = [
            ("", f"{counted(len(self.segments), 'segment')}, {counted(size, 'byte')}"),
            *self._shown_names(),
        ]
        if any(segment.storage.remote for segment in self.segments):
            facts.append(("records", "head() reads the first ones"))
            return html_of("Log", facts)
        head = RecordTable._empty(self._default_columns())
        try:
            facts += self._shown_facts()
            # Each table has one batch. The first batches may have no records: transaction markers, or compacted away.
            options = DecodeOptions(columns=self._default_columns(), start_offset=self.start_checkpoint)
            names = (self.topic, self.partition)
            tables = LogSelection(self.segments, options, 1, RowFilter(), self.use_indexes, *names).tables()
            head = next((table for table in itertools.islice(tables, _HEAD_BATCHES) if len(table)), head)
            if len(head):
                codec = codec_name(int(head.batches["attributes"][0]) & ATTRIBUTE_CODEC)
                facts.append(("codec of the first batch", codec))
        except (KbatchError, OSError) as error:
            facts.append(("error", str(error)))
        return html_of("Log", facts, *table_rows(head))

    def __iter__(self) -> Iterator[RecordTable]:
        return self.tables()

    def __len__(self) -> NoReturn:
        raise TypeError(
            "a Log has no length: log.count() is the number of its records, len(log.segments) that of its segments, "
            "and log.size that of its bytes"
        )

    def __bool__(self) -> bool:
        return True
