"""`kbatch.export` and `kbatch.follow`: logs or live topics to Parquet files or tables, by the chosen engine.

`kbatch.sinks.export_run` has the steps of a run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, get_args

from typing_extensions import Unpack

from kbatch.arguments import check_types, suggests_names
from kbatch.bounds import BoundArguments, given_bounds
from kbatch.extras import require
from kbatch.keywords import describes
from kbatch.log.key_lookup import IndexLike
from kbatch.log.source import LogSource
from kbatch.options import CodecLevel, CodecName, Crc, EngineName, Isolation, OnError, OptionError, Overflow, as_named
from kbatch.plan.arrow_batches import Transform
from kbatch.plan.read_options import OnGap, ReadOptions, split_policies
from kbatch.public_names import public_in
from kbatch.settings_text import ClientConfig
from kbatch.sinks.counts import Progress
from kbatch.sinks.exports import Engine, ExportSetup, exported_cluster, run_export
from kbatch.sinks.follow_options import FollowOptions
from kbatch.sinks.follower import Follower, FollowSummary, OnCommit, OnProgress
from kbatch.sinks.local_engine import LocalExecutor
from kbatch.sinks.metrics import MetricsFile
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.write_options import ExportMode, NewFields, OutputFormat, WriteOptions
from kbatch.value_options import ValueArguments, ValueOptions

__all__ = ["ExportOptions", "engine_choice", "export", "follow"]

# From this number of bytes on, `auto` chooses Spark. With the same processors the local engine was the faster one at
# every size that was measured (`python -m bench.engines`), so this is a matter of time: at the 0.73 s for 202 MB that
# two cores took, about an hour.
SPARK_BYTES = 1 << 40


# What to use in place of the names that callers of other libraries expect.
_HINTS = {
    **dict.fromkeys(("options", "writing"), "their fields are arguments here, such as topics, isolation and by_day"),
    "storage": "use storage_options",
    **dict.fromkeys(("topic", "partition"), "use topics and partitions"),
    **dict.fromkeys(("value_format", "schema"), "use values, the format of the values, and value_schema"),
}


@describes(BoundArguments, ValueArguments, ReadOptions, WriteOptions)
class ExportOptions(BoundArguments, ValueArguments, total=False):
    """The options of `export`: of the selection, of reading, and of `WriteOptions`.

    Attributes
    ----------
    compression : str, default "zstd"
        The codec of the files: zstd, snappy, gzip, lz4 or none, with a level such as ``"zstd:3"``; Arrow IPC has zstd,
        lz4 and none.
    topics : sequence of str, default None
        Only these topics: names, and globs such as ``orders-*``.
    partitions : collection of int, default None
        Only these partitions of each topic.
    start_timestamp : datetime, datetime64, timedelta, str or int, default None
        The first offset of the record with this time or a later one, as in Spark's Kafka source.
    stop_timestamp : datetime, datetime64, timedelta, str or int, default None
        Where to end: the offset of the first record with this time or a later one.
    latest_if_no_timestamp : bool, default True
        Whether a partition without a record at or after the starting time is skipped; otherwise it is an error.
    on_error : {"raise", "stop", "skip"}, or mapping of str to them, default "raise"
        At damage, and at formats that cannot be read: fail; stop reading that partition; or skip it. All losses are
        listed. A mapping has a value for each topic, and ``"*"`` for the others.
    on_gap : {"report", "raise"}, or mapping of str to them, default "report"
        Whether missing offsets that nothing explains are reported, or an error. A mapping is as for `on_error`.
    fail_on_data_loss : bool, or mapping of str to bool, default True
        Whether it is an error if offsets to read do not exist: before the first offset of a log, after its last, or
        deleted by retention during the read. With False they are reported. A mapping is as for `on_error`.
    """

    topics: Sequence[str] | None
    topic_pattern: str | None
    assign: Mapping[str, Sequence[int]] | None
    partitions: Collection[int] | None
    latest_if_no_timestamp: bool
    isolation: Isolation
    key: bytes | str | None
    key_partitions: int | None
    index: IndexLike
    include_headers: bool | None
    include_control: bool
    crc: Crc
    on_error: OnError | Mapping[str, OnError]
    on_gap: OnGap | Mapping[str, OnGap]
    fail_on_data_loss: bool | Mapping[str, bool]
    timestamp_overflow: Overflow
    max_decompressed_bytes: int
    max_record_bytes: int
    split_bytes: int
    format: OutputFormat
    mode: ExportMode
    compression: CodecName | CodecLevel
    row_group_rows: int
    row_group_bytes: int
    file_bytes: int
    by_day: bool
    dictionary: Sequence[str]
    max_bad: str
    flatten: bool
    new_fields: NewFields


@public_in("kbatch")
@suggests_names(_HINTS)
def export(
    logdir: str | os.PathLike[str] | LogSource | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    config: ClientConfig | None = None,
    history: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    engine: EngineName = "auto",
    threads: int | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    table: str | None = None,
    catalog: str | None = None,
    transform: Transform | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    mark_seen: bool = True,
    metrics: str | os.PathLike[str] | None = None,
    **options: Unpack[ExportOptions],
) -> ExportSummary:
    """Write the records of log directories or of a live cluster as Parquet, partitioned by topic and partition.

    Parameters
    ----------
    logdir : str or path, iterable of them, or ClusterSource
        A broker's log directory, a topic-partition directory, or one ``.log`` file in such a directory. Or a live
        cluster: ``kafka://HOST:PORT[,HOST:PORT]``, or a `kbatch.live.ClusterSource`. Its topics are exported up to the
        ends that they have when the export begins.
    out : str or path
        A directory, or a URL such as ``s3://bucket/directory``. If it has the data of earlier exports, `mode` decides:
        by default the export continues after them, whichever engine they used. If it fails or is interrupted,
        everything that it has written is removed.
    config : str, path or mapping, optional
        For a cluster: the settings of Kafka's clients, as for `kbatch.consume`.
    history : str or path, or iterable of them, optional
        For a cluster: log directories and tiered storage with copies of its topics, as for `kbatch.scan_logs`. Closed
        segments are read from there, and only the rest is fetched; positions and files are the same as without it.
        Workers of Spark must have the same paths.
    engine : {"auto", "local", "spark"}
        What runs the tasks: threads of this process, or Spark. Rows, files, commits and the summary are the same.
        ``"auto"`` takes Spark if `master` is given, if a session is active, or if the logs have 1 TiB or more and
        PySpark is installed; otherwise this process.
    threads : int, optional
        For the local engine: the number of tasks at a time, by default one for each processor.
    master : str, optional
        Spark's master URL. None is the active session if there is one, else ``local[*]``. On a cluster, log directory
        and output must be on a file system that all workers can access.
    conf : mapping of str to str, optional
        Spark's settings, for a session that the export starts.
    table, catalog : str, optional
        For ``format="iceberg"``: the table, as ``namespace.name``, and the name of the catalog in pyiceberg's
        configuration.
    transform : Transform, optional
        Applied to each batch of records before it is written, in the tasks. To parse keys and values, use `values`
        instead.
    storage_options : mapping of str to str, optional
        For URLs, as for `kbatch.find_logs`.
    progress : callable, optional
        Called from time to time with three numbers: the bytes of the logs that were read, all bytes to read, and the
        records written.
    mark_seen : bool
        Whether the reports of this run and of earlier ones count as seen when this function returns. Otherwise
        `ExportSummary.mark_seen` marks them, or the next export repeats them.
    metrics : str or path, optional
        A file for Prometheus's node exporter, which is replaced at the end of the run, also of one that fails: records,
        bytes, losses and lag by topic, seconds and success. Needs prometheus_client.
    **options
        `ExportOptions`: the selection, such as ``topics``, ``start`` and ``key``; reading, such as ``isolation``,
        ``on_error`` and ``values``; and the files, such as ``format``, ``mode``, ``compression`` and ``by_day``.
        ``help(kbatch.export)`` lists them.

    Returns
    -------
    ExportSummary

    Raises
    ------
    LogDirectoryError
        If no log exists, `out` cannot be written, another export is writing to it, or a log has changed since the last
        export (deleted, truncated or recreated); raised before the engine is started.
    BrokerError, AuthenticationError
        As for `kbatch.consume`, from a cluster. Retries within ``default.api.timeout.ms`` outlast restarts of brokers
        and changes of leaders.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, ...
        For damage, with ``on_error="raise"``. Everything written is removed.
    MissingDependencyError, SparkStartError
        If pyarrow, PySpark or the library of a format is not installed, or Spark cannot be started.
    TableCommitError
        If a Delta or Iceberg table does not accept the files.
    TypeError
        For an unknown option.
    ValueError
        For options that conflict with each other, with the engine or with the logs, and for a session of Spark
        Connect, which has no RDDs.

    Notes
    -----
    Files are ``topic=T/partition=N/part-<first offset>-<task>-<run>-<id>.parquet``, with rows in the order of the log,
    and columns key, value, offset, timestamp, timestampType (and headers) as in Spark's Kafka source; topic and
    partition are in the path, and with ``by_day`` also ``date=YYYY-MM-DD`` below them: the day of the timestamp in UTC,
    or ``__HIVE_DEFAULT_PARTITION__`` for records without a timestamp. Offsets increase within a file, and from file to
    file of a run in the order of their names. ``_manifest.json`` holds the summary, the offset at which the next run
    continues for each topic-partition, and the list of files.

    If anything was lost, ``_losses/part-*.parq`` are Parquet files with one row per loss, in the order of the
    logs: topic, partition, file, position, length, reason, base_offset. If read_committed withheld records,
    ``_transactions/part-<run>.parq`` lists the transactions that are the reason, with the columns of the data source's
    table ``transactions`` and state ``open`` or ``undecided``. Readers do not take them for data: Spark, pyarrow and
    pandas ignore directories of such names, and ``**/*.parquet`` in DuckDB and Polars does not match the files.

    On a mounted file system the first export appears complete, with one rename; later ones rename their files into
    place one after the other, and then replace the manifest. A run that is killed meanwhile is finished by the next.
    An object store has no rename: tasks write files in their final place, and the manifest lists them when all are
    complete. A reader that does not use the manifest sees the files of unfinished exports. (A worker that is killed may
    leave an incomplete multipart upload, which is invisible and which the store's lifecycle rules remove.)

    What a run has lost, withheld, or found missing or changed is also in ``_reports``: a file for each such run, which
    remains when the data is replaced. ``summary.unseen_reports`` has the reports of runs that died after their commit,
    before anybody saw them, and the exit status is that of the worst run.

    A Delta or Iceberg table gets the files and the positions in one transaction. The files of a run are below
    ``OUT/run-<run>/``, its manifest and side tables in ``OUT/_export-<run>/``. Iceberg tables are partitioned by topic,
    partition and the day of ``timestamp``; their files have topic and partition as columns.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as out:
    ...     summary = kbatch.export("tests/golden/logs/codec-zstd-0", out, engine="local", compression="zstd:3")
    >>> summary.records, len(summary.files), summary.engine
    (3144, 1, 'local')
    """
    check_types(export, locals())
    reading, writing = _split_options(options, storage_options)
    choose = engine_choice(engine, threads=threads, master=master, conf=conf)
    cluster = exported_cluster(logdir, "logdir", config, history, storage_options)
    return run_export(
        logdir if cluster is None else cluster,
        out,
        choose,
        reading,
        writing,
        table=table,
        catalog=catalog,
        transform=transform,
        progress=progress,
        mark_seen=mark_seen,
        metrics=metrics,
    )


@public_in("kbatch")
@suggests_names(_HINTS)
def follow(
    logdir: str | os.PathLike[str] | LogSource | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    config: ClientConfig | None = None,
    history: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    commit_interval: float | str = 300.0,
    commit_bytes: int | str = 1 << 30,
    available_now: bool = False,
    engine: EngineName = "auto",
    threads: int | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    table: str | None = None,
    catalog: str | None = None,
    transform: Transform | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_commit: OnCommit | None = None,
    progress: OnProgress | None = None,
    metrics: str | os.PathLike[str] | None = None,
    **options: Unpack[ExportOptions],
) -> FollowSummary:
    """Export log directories that a broker is writing to, or a live cluster, continuously: commit after commit.

    Each commit is an export that continues (`export`), so that every record is written once, however often the process
    is stopped or killed, and an `export` may take over. The function returns only with `available_now`; an interrupt
    (SIGINT, or SIGTERM in a command) ends it after the running commit, or undoes the run that has not begun to commit.

    Parameters
    ----------
    logdir, out, config, history, engine, threads, master, conf, table, catalog, transform, storage_options
        As for `export`. Directories must be on a local or mounted file system. The engine runs until the end.
    commit_interval : float or str
        Commit when a record has waited for these seconds, or a time such as ``"30s"``. What waits at the start is
        committed at once. Each commit writes at least a file for each topic-partition with new records.
    commit_bytes : int or str
        Commit when this number of bytes of the logs waits, and read about as many for one commit, from the oldest
        segments on and in proportion to what waits in each topic-partition: a long history takes several commits.
    available_now : bool
        Return when everything is committed that the logs had at the call.
    on_commit : callable, optional
        Called after each commit with its `ExportSummary` and the `Lag` then, whose fields are ``bytes`` and
        ``offsets``.
    progress : callable, optional
        Called from time to time with a `FollowProgress`: ``lag``, and ``read_bytes``, ``total_bytes`` and ``records``
        of the running run.
    metrics : str or path, optional
        As for `export`, replaced after each commit, and with ``lag_bytes`` by topic.
    start, start_offset, start_timestamp : as for `export`, default None
        Where to begin in topic-partitions without a position. Topic-partitions that appear later are read from their
        beginning, or from the given time on.
    end, stop_offset, stop_timestamp, mode : None
        Not allowed: an export that follows has no end, and each commit continues after the one before.
    **options
        The options of `export`, without ``on_error="stop"``. ``help(kbatch.follow)`` lists them.

    Returns
    -------
    FollowSummary

    Raises
    ------
    LogDirectoryError
        As `export`. While it runs, other exports to `out` end with this error, as does a second call.
    CorruptBatchError, TableCommitError, MissingDependencyError, SparkStartError, TypeError, ValueError, ...
        As `export`. The commits before remain.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as out:
    ...     summary = kbatch.follow("tests/golden/logs/codec-zstd-0", out, engine="local", available_now=True)
    >>> summary.commits, summary.records, summary.lag
    (1, 3144, Lag(bytes=0, offsets=0))
    """
    check_types(follow, locals())
    reading, writing = _split_options(options, storage_options)
    interval: Any = commit_interval
    size: Any = commit_bytes
    following = as_named(lambda: FollowOptions(interval, size, available_now), {})
    choose = engine_choice(engine, threads=threads, master=master, conf=conf)
    cluster = exported_cluster(logdir, "logdir", config, history, storage_options)
    source = logdir if cluster is None else cluster
    follower: Follower = as_named(
        lambda: Follower(
            ExportSetup.of(source, out, reading, writing, table, catalog, transform),
            choose,
            following,
            on_commit=on_commit,
            progress=progress,
            metrics=None if metrics is None else MetricsFile(os.fspath(metrics), os.fspath(out)),
        ),
        {"ending": "end"},
    )
    return follower.run()


def engine_choice(
    engine: EngineName, *, threads: int | None = None, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Callable[[int], Engine]:
    """Return the function that chooses the engine for logs of a number of bytes; see `export`.

    Raises
    ------
    ValueError
        For an unknown engine, and arguments of the other one.
    MissingDependencyError
        If Spark is chosen, and PySpark is not installed.
    """
    if engine not in get_args(EngineName):
        raise ValueError(f"engine must be auto, local or spark, got {engine!r}")
    if threads is not None and threads < 1:
        raise OptionError("{threads} must be 1 or more, got {0}", threads)
    of_spark = " and ".join(f"{{{name}}}" for name, given in (("master", master), ("conf", conf)) if given)
    if engine == "local" and of_spark:
        raise OptionError(f"{of_spark}: for Spark, which {{engine}} local excludes; use {{engine}} spark or auto")
    if threads is not None and (engine == "spark" or of_spark):
        raise OptionError("{threads}: for the local engine; with Spark {master} decides, such as local[4]")

    def local(reason: str) -> Engine:
        return Engine("local", reason, lambda: contextlib.nullcontext(LocalExecutor(threads)))

    def spark(reason: str) -> Engine:
        require("pyspark", "spark", "the engine spark")
        from kbatch.spark.export_job import spark_engine

        made: Engine = spark_engine(master, conf, reason)
        return made

    def by_size(size: int) -> Engine:
        if size < SPARK_BYTES:
            return local("no master, no active session, and few bytes")
        if find_spec("pyspark") is None:
            return local("PySpark is not installed")
        return spark(f"the logs have {SPARK_BYTES:,} bytes or more")

    if engine == "local" or threads is not None:
        chosen = local("requested")
    elif engine == "spark":
        chosen = spark("requested")
    elif of_spark:
        chosen = spark(f"{OptionError(of_spark)} given")
    elif _has_session():
        chosen = spark("a session is active")
    else:
        return by_size
    return lambda size: chosen


def _split_options(options: ExportOptions, storage: Mapping[str, str] | None) -> tuple[ReadOptions, WriteOptions]:
    """Return the options of reading and of writing."""
    given: dict[str, Any] = dict(options)
    start, end = given_bounds(given)
    values = ValueOptions.of(given)
    for name in (*BoundArguments.__annotations__, *ValueArguments.__annotations__):
        given.pop(name, None)
    written = {each.name for each in fields(WriteOptions)}
    writing = {name: given.pop(name) for name in [*given] if name in written}
    for name, kind in ("topics", tuple), ("partitions", frozenset):
        if given.get(name) is not None:
            given[name] = kind([given[name]] if isinstance(given[name], str | int) else given[name])
    if isinstance(given.get("key"), str):
        given["key"] = given["key"].encode()
    if isinstance(given.get("index"), os.PathLike):
        given["index"] = os.fspath(given["index"])
    if "dictionary" in writing:
        writing["dictionary"] = tuple(writing["dictionary"])
    stored = dict(storage or {})
    # A partition without a record at or after the starting time has nothing to export.
    given.setdefault("latest_if_no_timestamp", True)
    reading = ReadOptions(**split_policies(given), starting=start, ending=end, values=values, storage=stored)
    return reading, WriteOptions(**writing, storage=stored)


def _has_session() -> bool:
    """Whether a session of Spark is active. PySpark is not imported for it: a session exists only after that import."""
    if "pyspark.sql" not in sys.modules:
        return False
    from kbatch.spark.driver.session import active_session

    return active_session() is not None
