"""`scan_logs`: the records of logs as a lazy table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from kbatch.arguments import check_types, suggests_names
from kbatch.bounds import Bound
from kbatch.format import VIEW_COLUMNS
from kbatch.log.read_arguments import SCAN_HINTS, ReadArguments, ViewOptions
from kbatch.log.record_view import RecordView
from kbatch.log.selection import Selection
from kbatch.log.source import SourceLike
from kbatch.log.topics import TopicChoice, TopicFilter, partition_numbers
from kbatch.public_names import public_in
from kbatch.records.display import COLUMN_TYPES, changed_repr, html_of
from kbatch.scans.explaining import explained
from kbatch.scans.given_sources import scanned_source
from kbatch.scans.polars_expressions import is_polars_expression, to_arrow_expression
from kbatch.scans.polars_scan import lazy_frame
from kbatch.scans.scan_reading import Reading
from kbatch.scans.scanned_records import ScannedRecords
from kbatch.scans.typed_scans import TypedValues
from kbatch.settings_text import ClientConfig
from kbatch.value_options import ValueOptions

if TYPE_CHECKING:
    import polars
    import pyarrow.compute as pc
    import pyarrow.dataset

__all__ = ["Scan", "scan_logs"]


@public_in("kbatch")
class Scan(ScannedRecords):
    """The records of logs as a lazy table: nothing is read before records are requested. `scan_logs` makes it.

    A scan is immutable: `filter` and `select` return another one. Each request of records lists directories again, or
    asks the cluster, and reads in its own threads, ahead of the consumer and in bounded memory. Records are in the
    order of topic, partition and offset.

    Any library that takes an Arrow stream takes a scan: ``pyarrow.table(scan)``, ``polars.DataFrame(scan)``. `lazy` and
    `dataset` are tables that Polars and DuckDB query with their own filters and columns pushed down.

    Examples
    --------
    >>> import kbatch
    >>> import pyarrow.compute as pc
    >>> scan = kbatch.scan_logs("tests/golden/logs", topics="codec-*")
    >>> late = scan.filter(pc.field("offset") >= 3150).select("topic", "offset")
    >>> late.count()
    81
    >>> late.head(2).to_pylist()
    [{'topic': 'codec-gzip', 'offset': 3150}, {'topic': 'codec-gzip', 'offset': 3151}]
    """

    __slots__ = ()

    def filter(self, condition: pc.Expression | polars.Expr) -> Scan:
        """Return a scan of the records for which a condition is true, in addition to earlier conditions.

        Conditions on topic, partition, offset and timestamp leave files, segments and batches unread; the condition is
        applied exactly to each record of the others. A timestamp excludes batches whose largest timestamp is smaller.
        It does not end the read, since later records may have smaller timestamps.

        Parameters
        ----------
        condition : pyarrow.compute.Expression or polars.Expr
            Over the columns of records, also those that are not selected. Null counts as false. Of Polars, an
            expression that has an exact counterpart in Arrow.

        Returns
        -------
        Scan

        Raises
        ------
        TypeError
            For something else, for a condition whose result is not a boolean, and for an expression of Polars that has
            no exact counterpart.
        ValueError
            For a column that records do not have, or types that cannot be compared.

        Notes
        -----
        Damage is treated as in a read of the same ranges of bytes without a filter. Bytes that the filter excludes are
        not read, so damage there is neither an error nor a loss, as with ``start_offset``. Where damage hides whether
        bytes are excluded, they are read. With ``on_error="stop"`` only the end of the read is pruned, since earlier
        damage decides where it stops. With ``crc="mark"`` and ``"skip"``, only topics and partitions exclude bytes,
        since headers that are not verified may have wrong offsets and times.
        """
        if is_polars_expression(condition):
            condition = to_arrow_expression(condition, self._conditions().schema)
        return self._narrowed(condition)

    def explain(self) -> str:
        """Plan the read, and return what is read, what is not, and why.

        Returns
        -------
        str

        Examples
        --------
        >>> import kbatch
        >>> import pyarrow.compute as pc
        >>> scan = kbatch.scan_logs("tests/golden/logs", topics="codec-*")
        >>> print(scan.filter((pc.field("topic") == "codec-lz4") & (pc.field("offset") < 100)).explain())
        SCAN tests/golden/logs
        columns: offset, timestamp, timestampType, key, value, headers, topic, partition
        filter: ((topic == "codec-lz4") and (offset < 100)); true for all records that are read
        logs: 1 of 5; 4 have a topic or partition that the filter excludes
        segments: 1 of 2; 1 outside of the range of offsets and times
        bytes: 3,234 of 62,704 of these logs
        records: about 166 in these bytes
        pruned by: offset <= 99 (1 log)
        """
        return explained(self._reading, self._names)

    # -- tables of other libraries

    def lazy(self) -> polars.LazyFrame:
        """Return the scan as a LazyFrame of Polars.

        Columns, filters, slices from both ends, and counts are pushed down. A filter that Arrow does not have is left
        to Polars.

        Examples
        --------
        >>> import kbatch
        >>> import polars as pl
        >>> frame = kbatch.scan_logs("tests/golden/logs", topics="codec-*").lazy()
        >>> frame.filter(pl.col("offset") >= 3150).group_by("topic").len().collect().height
        3
        """
        return lazy_frame(self)

    def dataset(self) -> pyarrow.dataset.Dataset:
        """Return the scan as an Arrow dataset, for DuckDB and `polars.scan_pyarrow_dataset`.

        Columns and filters are pushed down, and batches are read as they are needed. The extra ``duckdb`` installs
        DuckDB.

        Examples
        --------
        >>> import duckdb
        >>> import kbatch
        >>> records = kbatch.scan_logs("tests/golden/logs", topics="codec-*").dataset()
        >>> duckdb.sql('from records select count(*) where "offset" >= 3150').fetchall()
        [(81,)]
        """
        from kbatch.scans.arrow_dataset import LogDataset

        return LogDataset(self)

    def __repr__(self) -> str:
        chosen = self._reading.condition
        shown = "" if chosen is None else f", filter {chosen}"
        return f"<Scan of {self._reading.source.describe()}: {', '.join(self._names)}{shown}>"

    def _repr_html_(self) -> str:
        """Return source, choice of records and columns for a notebook; reads nothing, as nothing is read before."""
        reading = self._reading
        facts = [("", f"records of {reading.source.describe()}, which are read when they are requested")]
        for name in ("topics", "partitions"):
            chosen = getattr(reading.selection, name)
            if chosen is not None:
                facts.append((name, chosen if isinstance(chosen, str) else ", ".join(map(str, chosen))))
        for name in ("start", "end"):
            if (bound := getattr(reading.arguments, name)) != Bound():
                facts.append((name, changed_repr(bound)))
        if reading.condition is not None:
            facts.append(("filter", str(reading.condition)))
        types: dict[str, str] = dict(COLUMN_TYPES)
        if self._values is not None:
            types |= {on: getattr(self._values.formats, on).name for on in self._values.formats.parsed}
        rows = [[name, types.get(name, "parsed")] for name in self._names]
        return html_of("Scan", facts, ["column", "type"], rows)


# The settings of a cluster that its URL cannot have.
_CLUSTER_SETTINGS = ("bootstrap_servers", "security_protocol", "sasl_mechanism", "sasl_username", "sasl_password")
_SETTINGS_HINT = "use config={...}, or give kbatch.live.ClusterSource(kbatch.live.ClientSettings.of(...)) as the source"


@public_in("kbatch")
@suggests_names({**SCAN_HINTS, **dict.fromkeys((*_CLUSTER_SETTINGS, "ssl_ca_location", "client_id"), _SETTINGS_HINT)})
def scan_logs(
    source: SourceLike,
    *,
    topics: TopicChoice | None = None,
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    config: ClientConfig | None = None,
    history: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    include_expired: bool = False,
    **options: Unpack[ViewOptions],
) -> Scan:
    """Return the records of logs as a lazy table.

    Parameters
    ----------
    source : str or path, iterable of them, Log, LogList, or kbatch.live.ClusterSource
        Log directories, topic-partition directories and ``.log`` files, by path or URL, which each read lists again; or
        logs that are open already; or a cluster, by a URL ``kafka://HOST:PORT[,HOST:PORT]`` without settings.
    topics : str, re.Pattern, or iterable of them, optional
        As for `kbatch.find_logs`. Internal topics under a directory, such as ``__consumer_offsets``, are read only if
        a name is given here, or the path of the topic-partition.
    partitions : iterable of int, optional
        Only these partitions of each topic.
    columns : sequence of str, optional
        As `Scan.select`. Default is all of them; topic and partition are null if the name of a directory has none. With
        a format of values also fields, such as ``value.user.id``: engines then request them one by one.
    storage_options : mapping of str to str, optional
        For URLs, as for `kbatch.find_logs`.
    config : str, path or mapping, optional
        For a cluster, the settings of Kafka's clients as for `kbatch.consume`: a file such as ``client.properties``, or
        a mapping. `kbatch.live.ClusterSource` takes them as keyword arguments.
    history : str or path, or iterable of them, optional
        For a cluster, copies of its logs: log directories of brokers, backups, and tiered storage, by path or URL.
        Closed segments are read from there, and only the rest is fetched, as for `kbatch.live.ClusterSource`.
    include_expired : bool
        Whether records of the history are returned that the cluster has deleted.
    threads : int, default 0
        The number of threads that decode; 0 is the number of processors. A scan holds at most ``threads + 2`` tables of
        ``max_bytes`` each, and the batches that are made of them.
    value_schema, key_schema : str, path, mapping, or type of Arrow or NumPy, default None
        The schema of values or keys, as for `kbatch.Log.to_arrow`. A schema of JSON that is not given is inferred once,
        when it is first needed.
    **options
        Those of `kbatch.Log.to_arrow`, such as ``start``, ``end``, ``last``, ``key``, ``isolation`` and ``on_error``;
        ``help(kbatch.scan_logs)`` lists them. Times before now are taken when `scan_logs` is called. With ``values``
        and ``keys`` the columns have types, and only the fields that a query needs are parsed.

    Returns
    -------
    Scan

    Raises
    ------
    LogDirectoryError
        If a local path does not exist. Other errors are raised when records are read.
    TypeError, ValueError
        For arguments that are not allowed.

    Examples
    --------
    >>> import kbatch
    >>> scan = kbatch.scan_logs("tests/golden/logs", topics="codec-lz4", columns=["topic", "offset"])
    >>> scan.head(2).to_pydict()
    {'topic': ['codec-lz4', 'codec-lz4'], 'offset': [0, 1]}
    """
    check_types(scan_logs, locals())
    options.setdefault("threads", 0)
    formats = ValueOptions.of(options)
    arguments = ReadArguments.of(None, options)
    if topics is not None and not isinstance(topics, str | re.Pattern):
        TopicFilter(topics := list(topics) if isinstance(topics, Iterable) else topics)
    selection = Selection(
        topics=topics,
        partitions=partition_numbers(partitions),
    )
    chosen = scanned_source(source, storage_options, config, history=history, include_expired=include_expired)
    reading = Reading(chosen, selection, arguments)
    if not formats.parsed:
        return Scan(reading, RecordView.of(columns, VIEW_COLUMNS).columns)
    values = TypedValues(formats, reading.sampled, reading.topics)
    scan = Scan(reading, values.names, values)
    return scan if columns is None else scan.select(columns)
