"""The arguments that every read of logs has: of one log, of a list of logs, and of a scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kbatch.arguments import is_integer
from kbatch.bounds import Bound, BoundArguments, given_bounds
from kbatch.format import Limits
from kbatch.keywords import describes
from kbatch.log.key_lookup import IndexLike, index_directory
from kbatch.log.log_bounds import BoundedLog, LogBound, bounds_by_log
from kbatch.log.row_filter import RowFilter, key_bytes
from kbatch.quantities import SizeLike
from kbatch.read.budget import checked_table_bytes
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.tuning import KEY_TABLE_BYTES
from kbatch.value_options import ARGUMENTS, ValueArguments

__all__ = ["READ_HINTS", "SCAN_HINTS", "ReadArguments", "TableOptions", "ViewOptions"]

_FIRST = "head(n) returns the first records, last=n the last ones"
_TIME = "use {0}, which takes a time or an offset, or {1}_timestamp"
_CHOICE = 'find_logs(topics=..., partitions=...) and logs["topic", 0] choose logs'
_FILTER = "kbatch.scan_logs(...).filter(...) selects records by a condition"
_VALUES = "to_arrow, reader and the other conversions take it; a table has values_json and similar methods"
# What to use in place of the names that callers of other libraries expect.
READ_HINTS = {
    **dict.fromkeys(("limit", "n", "n_rows", "nrows", "count", "max_records", "max_rows", "first"), _FIRST),
    **dict.fromkeys(("start_time", "starting_time", "since", "from_time", "start_ts"), _TIME.format("start", "start")),
    **dict.fromkeys(("end_time", "ending_time", "stop_time", "until", "end_timestamp"), _TIME.format("end", "stop")),
    **dict.fromkeys(("end_offset", "stop"), "use end, which is exclusive, or stop_offset"),
    **dict.fromkeys(("offset", "offsets", "starting_offset"), "use start and end, or start_offset and stop_offset"),
    **dict.fromkeys(("time", "times", "timestamp", "timestamps"), "use start and end, which take times or offsets"),
    **dict.fromkeys(("topic", "topics", "partition", "partitions"), _CHOICE),
    **dict.fromkeys(("filter", "filters", "where", "predicate", "condition"), _FILTER),
    **dict.fromkeys(("value_format", "format", "parse"), "use values, the format of the values"),
    **dict.fromkeys(("schema", "value_type"), "use value_schema, with values"),
    **{"key_format": "use keys, the format of the keys", "value_unknown_fields": "use value_unknown"},
    **dict.fromkeys((name for names in ARGUMENTS.values() for name in names.values()), _VALUES),
    "schema_registry": _VALUES,
    **dict.fromkeys(("batch_size", "chunk_size", "max_table_bytes"), "use max_bytes, the most memory of a table"),
}
# The same for scans, which choose logs and conditions themselves.
SCAN_HINTS = {
    **READ_HINTS,
    **{"topic": "use topics", "partition": "use partitions", "binary": "reader(binary=...) and to_arrow take it"},
    **dict.fromkeys(("filter", "filters", "where", "predicate", "condition"), "use scan.filter(...)"),
}


@describes(BoundArguments)
class TableOptions(BoundArguments, total=False):
    """The arguments of `Log.tables` except `columns`; its docstring has more about them.

    Attributes
    ----------
    last : int, default None
        Only the last records, at most this number, among those that the other arguments select; of several logs, the
        last records of each.
    key : bytes or str, default None
        Only records with this key; a text is taken as UTF-8.
    index : str, path or bool, default None
        With a `key`: the directory of the key index that `kbatch.index_logs` has written. Default is the one in the
        user's cache directory, if it exists; False uses none.
    isolation : {"read_uncommitted", "read_committed"}, default "read_uncommitted"
        Every record; or only records of committed transactions and records outside of transactions, up to the first
        open transaction.
    include_control : bool, default False
        Whether control records (transaction markers) are included.
    crc : {"verify", "mark", "skip"}, default "verify"
        Verify checksums; accept and mark batches with a wrong checksum; or do not compute checksums.
    on_error : {"raise", "stop", "skip"}, default "raise"
        At damage: raise an error; stop reading; or skip it and list it as a loss.
    limits : Limits, default None
        The limits of decoded batches and tables. Default is ``kbatch.Limits()``.
    threads : int, default 1
        The number of threads that decode; 0 is the number of processors.
    max_bytes : int or str, default None
        The limit on the memory of a decoded table, such as "64m". Default is about 64 MiB, or 8 MiB with a `key`.
    """

    last: int | None
    key: bytes | str | None
    index: IndexLike
    isolation: Isolation
    include_control: bool
    crc: Crc
    on_error: OnError
    limits: Limits | None
    threads: int
    max_bytes: SizeLike | None


@describes(TableOptions, ValueArguments)
class ViewOptions(TableOptions, ValueArguments, total=False):
    """The arguments of `to_arrow` and similar methods: those of `Log.tables`, and the formats of values and keys."""


@dataclass(frozen=True)
class ReadArguments:
    """The arguments of a read, checked and independent of its logs. Instances can be pickled.

    Attributes
    ----------
    start, end : Bound
    last : int or None
    keys : tuple of bytes
        The key of the records, if only those with a key are read.
    decode : DecodeOptions
        Without offsets.
    index : str or None
        The directory of the key index.
    max_bytes : int
        Approximate limit on the size of a table; ``decode.is_strict`` makes it a limit.
    """

    start: Bound
    end: Bound
    last: int | None
    keys: tuple[bytes, ...]
    decode: DecodeOptions
    max_bytes: int
    index: str | None = None

    @classmethod
    def of(cls, columns: Sequence[str] | None, options: TableOptions) -> ReadArguments:
        """Check the arguments of a read.

        Raises
        ------
        TypeError, ValueError
            With the name of the argument.
        """
        start, end = given_bounds(options)
        last = options.get("last")
        if last is not None and (not is_integer(last) or last < 0):
            raise ValueError(f"last must be a number of records, 0 or more, got {last!r}")
        max_bytes, limits = options.get("max_bytes"), options.get("limits")
        decoding: dict[str, Any] = {
            name: options[name]
            for name in ("isolation", "include_control", "crc", "on_error", "threads")
            if name in options
        }
        decode = DecodeOptions(
            limits=Limits() if limits is None else limits, columns=columns, is_strict=max_bytes is not None, **decoding
        )
        keys = key_bytes(options.get("key"))
        return cls(
            start,
            end,
            None if last is None else int(last),
            keys,
            decode,
            KEY_TABLE_BYTES if keys and max_bytes is None else checked_table_bytes(max_bytes),
            index_directory(options.get("index")),
        )

    def bounds(self, logs: Sequence[BoundedLog]) -> list[tuple[LogBound, LogBound]]:
        """Return where the read of each log begins and ends; errors as for `bounds_by_log`."""
        return list(zip(bounds_by_log(logs, self.start, "start"), bounds_by_log(logs, self.end, "end"), strict=True))

    @property
    def needs_all_logs(self) -> bool:
        """Whether the bounds of a log depend on the others: on the end of its topic, or on which partitions exist."""
        return any(bound.before_end is not None or bound.partitions is not None for bound in (self.start, self.end))

    def rows(self, start: LogBound, stop: LogBound) -> RowFilter:
        """Return the choice of records within the offsets of one log."""
        return RowFilter(start.timestamp, stop.timestamp, self.keys)

    def replaced(self, **decode: Any) -> ReadArguments:
        """Return the arguments with other options of decoding."""
        return replace(self, decode=replace(self.decode, **decode))
