"""`consume`: the records of live topics, as tables and frames."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from typing_extensions import Unpack

from kbatch.arguments import check_types, suggests_names
from kbatch.escaping import counted
from kbatch.extras import require
from kbatch.format import VIEW_COLUMNS
from kbatch.keywords import describes
from kbatch.live.async_reading import AsyncTables
from kbatch.live.client_arguments import ClientArguments
from kbatch.live.cluster import Cluster
from kbatch.live.counters import ConsumerMetrics, ReadCounters
from kbatch.live.group_reading import STARTS, GroupReading, GroupUse
from kbatch.live.live_options import LiveArguments, LiveOptions
from kbatch.live.live_partitions import chosen_partitions
from kbatch.live.live_sampling import sample_partitions
from kbatch.live.live_tables import LiveTables
from kbatch.live.settings import ClientSettings
from kbatch.live.transport import TransportFactory
from kbatch.log.conversions import joined_frames, record_batches
from kbatch.log.missing import MissingOffsets
from kbatch.log.read_arguments import SCAN_HINTS, ReadArguments, ViewOptions
from kbatch.log.record_view import RecordView, value_columns_of
from kbatch.log.topics import TopicChoice, TopicFilter
from kbatch.options import Binary, as_named
from kbatch.public_names import public_in
from kbatch.records.arrow import requested_binary
from kbatch.records.data import checked_columns
from kbatch.records.display import html_of, more_rows
from kbatch.settings_text import ClientConfig
from kbatch.table import RecordTable
from kbatch.value_options import ValueOptions
from kbatch.values.typed_columns import ValueColumns

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["ConsumeOptions", "Consumer", "consume"]

# The memory of a read, if the caller sets no limit.
_DEFAULT_BYTES = 128 << 20
# The partitions that a notebook shows.
_HTML_PARTITIONS = 10


@describes(ViewOptions, LiveArguments, ClientArguments)
class ConsumeOptions(ViewOptions, LiveArguments, ClientArguments, total=False):
    """The arguments of `consume`: those of reads, formats of values and keys, and the settings of Kafka's clients."""


_CONSUME_HINTS = {
    **SCAN_HINTS,
    **{
        "consumer_group": "use group",
        "isolation_level": "use isolation",
        "history": 'kbatch.scan_logs("kafka://...", history=...) takes it',
    },
    **{"servers": "use bootstrap_servers", "security": "use security_protocol"},
}
_CONSUMER_HINTS = {
    **SCAN_HINTS,
    **dict.fromkeys((*ConsumeOptions.__annotations__, "topics", "partitions", "columns"), "consume takes it"),
}


@public_in("kbatch")
class Consumer:
    """Records of live topics, returned by `kbatch.consume`.

    A consumer is an iterator of `RecordTable`, and is read once: a conversion returns the records that were not read
    yet. The tables of a partition are in the order of their offsets; tables of several partitions alternate.

    Connections are closed at the end of the records, at the end of a ``with`` block, by `close`, and when the object is
    garbage-collected. With a group they stay open at the end of the records, so that `commit` is possible.

    Examples
    --------
    >>> import kbatch
    >>> consumer = kbatch.consume("orders", bootstrap_servers="localhost:9092")  # doctest: +SKIP
    >>> consumer.ranges  # doctest: +SKIP
    {('orders', 0): (0, 1200)}
    >>> sum(len(table) for table in consumer)  # doctest: +SKIP
    1200
    """

    def __init__(self, live: LiveTables, columns: Sequence[str] | None, values: ValueColumns | None = None) -> None:
        self._live = live
        self._names = columns
        self._values = values
        self._tables = live.tables()
        self._async = AsyncTables(functools.partial(next, self._tables, None), live.close)
        self._finalizer = weakref.finalize(self, live.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self._live.is_closed:
                self._live.commit_automatically()
        finally:
            self.close()

    def __repr__(self) -> str:
        topics = sorted({topic for topic, _ in self.ranges})
        return f"<Consumer: {', '.join(topics) or 'no partitions'}>"

    def _repr_html_(self) -> str:
        """Return the ranges and positions of the first partitions for a notebook; asks no broker."""
        ranges, positions, lag = self.ranges, self.positions, self.lag
        names = ["topic", "partition", "from offset", "to offset", "position", "lag"]
        rows = []
        for topic, partition in itertools.islice(sorted(ranges), _HTML_PARTITIONS):
            start, stop = ranges[topic, partition]
            numbers = (start, stop, positions.get((topic, partition)), lag.get((topic, partition)))
            rows.append([topic, str(partition), *("-" if each is None else f"{each:,}" for each in numbers)])
        rows += more_rows(len(ranges), _HTML_PARTITIONS, "more partition", len(names))
        topics = len({topic for topic, _ in ranges})
        facts = [("", f"{counted(len(ranges), 'partition')} of {counted(topics, 'topic')}")]
        facts.append(("columns", ", ".join(self._names or VIEW_COLUMNS)))
        return html_of("Consumer", facts, names, rows)

    def close(self) -> None:
        """End the read, leave the group, and close all connections. Nothing is committed."""
        self._finalizer()
        # Only the reading thread can close the generator; if another thread calls this, the read fails.
        with contextlib.suppress(ValueError):
            self._tables.close()

    @property
    def ranges(self) -> dict[tuple[str, int], tuple[int, int | None]]:
        """The first offset to read and the exclusive end of the read, by topic and partition.

        The end is None if the read follows.
        """
        follows = self._live.follows
        return {key: (start, None if follows else stop) for key, (start, stop) in self._live.ranges.items()}

    @property
    def metrics(self) -> ConsumerMetrics:
        """A snapshot of the counters of this read."""
        return self._live.metrics

    @property
    def missing_offsets(self) -> list[MissingOffsets]:
        """The offsets that were deleted before they were read, with ``fail_on_data_loss=False``."""
        return list(self._live.loss.missing)

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The topics and partitions that are being read.

        With a group the assignment is empty at first, and changes while tables are requested.
        """
        return sorted(self._live.ranges)

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """The offset after the last returned batch, which `commit` commits, by topic and partition.

        Batches without records for the caller count as returned, such as batches of aborted transactions.
        """
        return {key: each.offset for key, each in self._live.positions.items()}

    @property
    def lag(self) -> dict[tuple[str, int], int]:
        """The number of offsets from the position to the end, by topic and partition.

        The end is the high watermark of the last response, or under read_committed the last stable offset. Partitions
        are missing until their first response.
        """
        return self._live.lag

    def commit(self) -> None:
        """Commit the positions of all partitions for the group.

        The committed offset of a partition is the offset after the last batch whose records were returned. The leader
        epoch of the batch is committed with it, so that a later read detects a truncation (KIP-320).

        Raises
        ------
        ValueError
            Without a group, or if the consumer is closed.
        BrokerError
            If the client may not commit, or the membership has ended, so that other members may have the partitions.

        Examples
        --------
        >>> import kbatch
        >>> options = {"bootstrap_servers": "localhost:9092", "group": "etl"}
        >>> with kbatch.consume("orders", **options, end=None) as consumer:  # doctest: +SKIP
        ...     for table in consumer:
        ...         store(table)
        ...         consumer.commit()
        """
        if self._live.group is None:
            raise ValueError("commit() needs a group: consume(..., group=NAME)")
        if self._live.is_closed:
            raise ValueError("commit(): the consumer is closed; commit within the with block")
        self._live.commit()

    def __iter__(self) -> Iterator[RecordTable]:
        return self

    def __next__(self) -> RecordTable:
        """Return the next table that has records or losses."""
        return next(self._tables)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._async.leave(functools.partial(self.__exit__, kind))

    def __aiter__(self) -> AsyncIterator[RecordTable]:
        return self

    async def __anext__(self) -> RecordTable:
        """Return the next table that has records or losses; a thread waits for it.

        If the task is cancelled meanwhile, the next call returns the table.
        """
        return await self._async.next_table()

    @property
    def schema(self) -> pyarrow.Schema:
        """The Arrow schema of `reader` and `to_arrow`."""
        return self._view("binary").schema

    @suggests_names(_CONSUMER_HINTS)
    def reader(self, *, binary: Binary = "binary") -> pyarrow.RecordBatchReader:
        """Return a reader of the records as Arrow record batches, in bounded memory.

        Parameters
        ----------
        binary : {"binary", "large_binary", "binary_view"}
            As for `kbatch.RecordTable.to_arrow`.

        Warns
        -----
        RuntimeWarning
            At the end, if damaged bytes were skipped, or values do not fit their format.
        """
        check_types(Consumer.reader, locals())
        pa = require("pyarrow", "arrow", "reader()")
        view = self._view(binary)
        return pa.RecordBatchReader.from_batches(view.schema, record_batches(self, view))

    @suggests_names(_CONSUMER_HINTS)
    def to_arrow(self, *, binary: Binary = "binary") -> pyarrow.Table:
        """Return all records as an Arrow table; `binary` and warnings are as for `reader`."""
        check_types(Consumer.to_arrow, locals())
        self._require_end("to_arrow()")
        pa = require("pyarrow", "arrow", "to_arrow()")
        view = self._view(binary)
        with self._whole_read():
            return pa.Table.from_batches(record_batches(self, view), schema=view.schema)

    @suggests_names(_CONSUMER_HINTS)
    def to_polars(self) -> polars.DataFrame:
        """Return all records as a Polars DataFrame."""
        self._require_end("to_polars()")
        pl = require("polars", "polars", "to_polars()")
        frame: polars.DataFrame = pl.from_arrow(self.to_arrow(binary="binary_view"))
        return frame

    @suggests_names(_CONSUMER_HINTS)
    def to_pandas(self, *, dtype_backend: Literal["numpy", "pyarrow"] = "numpy") -> pandas.DataFrame:
        """Return all records as a pandas DataFrame; `dtype_backend` is as for `kbatch.RecordTable.to_pandas`."""
        check_types(Consumer.to_pandas, locals())
        self._require_end("to_pandas()")
        if dtype_backend not in ("numpy", "pyarrow"):
            raise ValueError(f"dtype_backend must be 'numpy' or 'pyarrow', got {dtype_backend!r}")
        pd = require("pandas", "pandas", "to_pandas()")
        require("pyarrow", "pandas", "to_pandas()")
        frame: pandas.DataFrame
        if dtype_backend == "pyarrow":
            frame = self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
            return frame
        view = self._view("binary")
        with self._whole_read():
            return joined_frames(self, view)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream the records to a reader of the Arrow C stream interface, such as Polars and DuckDB."""
        pa = require("pyarrow", "arrow", "the Arrow C stream")
        if requested_schema is None:
            return self.reader().__arrow_c_stream__()
        schema = pa.Schema._import_from_c_capsule(requested_schema)
        view = self._view(requested_binary(schema)).of_columns(schema.names)
        made = (each if each.schema.equals(schema) else each.cast(schema) for each in record_batches(self, view))
        return pa.RecordBatchReader.from_batches(schema, made).__arrow_c_stream__()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        # Libraries that do not read Arrow streams, such as pandas, would make an array of Python objects.
        raise TypeError("a Consumer is not an array: to_pandas(), to_polars() and to_arrow() return its records")

    @contextlib.contextmanager
    def _whole_read(self) -> Iterator[None]:
        """Close the connections after a conversion, or with a group leave the commit to the caller."""
        self._live.holds_commits = True
        try:
            yield
        finally:
            self._live.holds_commits = False
            if self._live.group is None:
                self.close()

    def _require_end(self, method: str) -> None:
        if self._live.follows:
            raise ValueError(f"{method} needs an end, and end=None follows the topics; iterate, or use reader()")

    def _view(self, binary: Binary) -> RecordView:
        return RecordView.of(self._names, VIEW_COLUMNS, binary, self._values)


@public_in("kbatch")
@suggests_names(_CONSUME_HINTS)
def consume(
    topics: TopicChoice,
    *,
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
    group: str | None = None,
    auto_commit: bool | None = None,
    config: ClientConfig | None = None,
    transport: TransportFactory | None = None,
    **options: Unpack[ConsumeOptions],
) -> Consumer:
    """Read the records of topics of a cluster, from an offset or time to the current end, or without an end.

    The end offsets of the read are fixed when `consume` returns (`Consumer.ranges`): records that are written later are
    not read. With ``end=None`` the read follows the topics: it waits for records, and returns them as they arrive,
    until the consumer is closed. A thread for each broker fetches the next response while the caller works on the
    records of an earlier one.

    With a group, the consumer joins it, reads its assigned partitions from their committed offsets on, and commits with
    `Consumer.commit` or automatically. Without a group, nothing is committed.

    Parameters
    ----------
    topics : str, re.Pattern, or iterable of them
        As for `kbatch.find_logs`: names, globs such as ``orders-*``, and compiled regular expressions. Internal topics
        are read only if they are named.
    partitions : iterable of int, optional
        Only these partitions of each topic. With a group, the consumer does not join it, but reads these partitions and
        commits their offsets.
    columns : sequence of str, optional
        As for `kbatch.Log.to_arrow`: some of offset, timestamp, timestampType, key, value, headers, topic and
        partition, and with a format of values also fields. Default is all of them.
    group : str, optional
        The group to join; ``group_id`` is the same. Each partition is read by one member. Partitions begin at their
        committed offsets (``start="committed"``); without a committed offset, at the latest offset if the read follows,
        else at the earliest, unless ``auto_offset_reset`` is given. With an end, assigned partitions are read to the
        ends that they have at the assignment.
    auto_commit : bool, optional
        Whether to commit the offsets of a table when the next table is requested, and when the ``with`` block ends
        without an exception; ``enable_auto_commit`` is the same. Default is False.
    config : str, path or mapping, optional
        Settings of Kafka's clients: a file such as ``client.properties``, or a mapping.
    transport : TransportFactory, optional
        Opens connections in place of sockets, for tests and tunnels.
    start : int, datetime, datetime64, timedelta, str or mapping, default None
        Where to begin, in the forms of `kbatch.Log.tables`, or "committed" with a group. Default is "earliest"; with
        ``end=None`` it is "latest", and new partitions are detected after ``metadata.max.age.ms`` and read from their
        beginning.
    end : int, datetime, datetime64, timedelta, str or mapping, default "latest"
        Where to end, exclusive, in the forms of `kbatch.Log.tables`. None follows the topics. Under read_committed the
        read ends at the last stable offset.
    threads : int, default 0
        The number of threads that decode; 0 is the number of processors.
    max_bytes : int or str, default "128m"
        The approximate memory of the read, including its receive buffers. A larger batch is read nevertheless. Tables
        that the caller keeps, and views of them, take additional memory.
    fail_on_data_loss : bool, default True
        Whether it is an error if records are deleted before they are read. With False the read resumes after
        retention at the first remaining record, after a truncation at the offset where the log of the new leader
        diverges, and after a recreation at the beginning of the topic. `Consumer.missing_offsets` lists the gaps.
    value_schema, key_schema : str, path, mapping, or type of Arrow or NumPy, default None
        The schema of values or keys, as for `kbatch.Log.to_arrow`. If no JSON schema is given, it is inferred from a
        sample of the records that the partitions have when `consume` is called.
    **options
        Options that select records, such as ``key``, ``last``, ``isolation`` and ``on_error``; the formats of
        values and keys, as for `kbatch.Log.to_arrow`; ``flush_rows``, ``flush_bytes`` and ``flush_interval``, which
        gather the records of small responses; and the settings of Kafka's clients with underscores, such as
        ``bootstrap_servers``, which take precedence over `config`. ``help(kbatch.consume)`` lists them.

    Returns
    -------
    Consumer
        An iterator of tables with ``reader()``, ``to_arrow()``, ``to_polars()`` and ``to_pandas()``.

    Raises
    ------
    BrokerConnectionError
        If no broker can be reached: at the beginning within ``socket.connection.setup.timeout.ms``, later within
        ``default.api.timeout.ms``.
    AuthenticationError
        If the broker refuses the credentials, or its certificate is not trusted.
    BrokerError
        If a topic or partition does not exist or may not be read, if records were deleted before they were read, or if
        the client may not join the group.
    TypeError, ValueError
        For arguments and settings that are not allowed.
    KbatchError
        As for `kbatch.decode`, if a response has damaged batches; the message names broker, topic and partition.

    Examples
    --------
    >>> import kbatch
    >>> with kbatch.consume("orders", bootstrap_servers="localhost:9092", start="-1h") as consumer:  # doctest: +SKIP
    ...     for table in consumer:
    ...         print(table.topic, table.partition, len(table))
    orders 0 1200
    """
    check_types(consume, locals())
    given: dict[str, Any] = dict(options)
    client = {name: given.pop(name) for name in ClientArguments.__annotations__ if name in given}
    live = {name: given.pop(name) for name in LiveArguments.__annotations__ if name in given}
    counters = ReadCounters(live.pop("on_metrics", None))
    flow: LiveOptions = as_named(lambda: LiveOptions(**live), {})
    settings = ClientSettings.of(config, **client)
    use = GroupUse.of(group, auto_commit, settings, given, is_assigned=partitions is not None)
    follows = "end" in given and given["end"] is None
    if follows:
        _follow_topics(given, use)
    given.setdefault("threads", 0)
    formats = ValueOptions.of(given)
    arguments = ReadArguments.of(None, given)  # type: ignore[arg-type]
    if use is not None:
        use.check(arguments)
    if given.get("max_bytes") is None:
        arguments = replace(arguments, max_bytes=_DEFAULT_BYTES)
    if not isinstance(topics, str | re.Pattern):
        topics = list(topics) if isinstance(topics, Iterable) else topics
    TopicFilter(topics)
    cluster = Cluster(settings, transport=transport)
    choose = functools.partial(chosen_partitions, cluster, topics, partitions, arguments.decode.isolation)
    chosen = functools.cache(choose)
    reading: GroupReading | None = None
    try:
        values = value_columns_of(
            formats,
            lambda on: sample_partitions(chosen(), on, arguments.decode.crc),
            lambda: [each.metadata.name for each in chosen()],
        )
        if values is not None:
            arguments = arguments.replaced(columns=RecordView.of(columns, VIEW_COLUMNS, values=values).columns)
        elif columns is not None:
            arguments = arguments.replaced(columns=checked_columns(columns))
        reading = None if use is None else GroupReading(cluster, topics, use, follows=follows)
        is_member = reading is not None and reading.member is not None
        logs = [] if is_member else chosen()
        watch = choose if follows and not is_member else None
        return Consumer(
            LiveTables(cluster, logs, arguments, flow, counters, follows=follows, watch=watch, group=reading),
            columns,
            values,
        )
    except BaseException:
        if reading is not None:
            reading.close()
        cluster.close()
        raise


def _follow_topics(given: dict[str, Any], use: GroupUse | None) -> None:
    """Check the arguments of a read without an end, and set the start if there is none."""
    for name in ("stop_offset", "stop_timestamp"):
        if given.get(name) is not None:
            raise ValueError(f"end=None and {name} exclude each other: end=None follows the topics")
    if use is None and all(given.get(name) is None for name in STARTS):
        given["start"] = "latest"
