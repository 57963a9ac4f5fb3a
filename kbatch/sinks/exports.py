"""An export from its arguments to its summary, with any engine; `kbatch.sinks.export_run` has the steps of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kbatch.interrupts import INTERRUPTED, HeldInterrupts
from kbatch.log.discovery import root_list
from kbatch.log.source import LogSource
from kbatch.log.store.storage import is_cluster_url
from kbatch.options import OptionError
from kbatch.plan.arrow_batches import Transform
from kbatch.plan.read_options import ReadOptions
from kbatch.settings_text import ClientConfig
from kbatch.sinks.commits import RunTarget
from kbatch.sinks.counts import Progress
from kbatch.sinks.export_run import Executor, ExportRun, Limit, open_target
from kbatch.sinks.metrics import MetricsFile
from kbatch.sinks.outputs import OutputPlace, open_place
from kbatch.sinks.run_input import DirectoryInput, RunInput
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.table_target import check_parent
from kbatch.sinks.working import RunLock
from kbatch.sinks.write_options import WriteOptions

if TYPE_CHECKING:
    from kbatch.live import ClusterSource
    from kbatch.scans.given_sources import HistoryLike

__all__ = ["Engine", "ExportSetup", "ExportedLogs", "exported_cluster", "run_export", "run_input"]

# The input of an export: log directories, or a cluster by its URL or as a source.
ExportedLogs: TypeAlias = "str | os.PathLike[str] | LogSource | Iterable[str | os.PathLike[str]]"


@dataclass(frozen=True)
class Engine:
    """The engine that runs the tasks of an export.

    Attributes
    ----------
    name, reason : str
        For the summary: "local" or "spark", and the reason for choosing it.
    start : callable
        Returns the context in which the tasks run. It is called only if there is something to read.
    """

    name: str
    reason: str
    start: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class ExportSetup:
    """The arguments of an export, which all its runs share.

    Attributes
    ----------
    source : RunInput
    place : OutputPlace
    reading : ReadOptions
    writing : WriteOptions
    table, catalog : str or None
    transform : Transform or None
    """

    source: RunInput
    place: OutputPlace
    reading: ReadOptions
    writing: WriteOptions
    table: str | None = None
    catalog: str | None = None
    transform: Transform | None = None

    @classmethod
    def of(
        cls,
        logdir: ExportedLogs,
        out: str | os.PathLike[str],
        reading: ReadOptions,
        writing: WriteOptions,
        table: str | None,
        catalog: str | None,
        transform: Transform | None,
    ) -> ExportSetup:
        """Check the arguments of an export, and return them as a setup."""
        _check_options(reading, writing, transform, has_table=table is not None or catalog is not None)
        source = run_input(logdir, reading)
        return cls(source, open_place(os.fspath(out), writing.storage), reading, writing, table, catalog, transform)

    def target(self) -> RunTarget:
        """Return the output of a new run."""
        target = open_target(self.place, self.writing, table=self.table, catalog=self.catalog)
        check_parent(self.place)
        return target

    def run(
        self,
        target: RunTarget,
        logs: Sequence[Any],
        engine: Engine,
        *,
        limit: Limit | None = None,
        within: RunLock | None = None,
    ) -> ExportRun:
        """Return a run that exports some logs; `limit` and `within` are as for `ExportRun`."""
        return ExportRun(
            self.source,
            target,
            logs,
            self.reading,
            self.writing,
            self.transform,
            (engine.name, engine.reason),
            limit=limit,
            within=within,
        )


def run_input(logdir: ExportedLogs, reading: ReadOptions) -> RunInput:
    """Return the input of an export. Modules of live topics are imported only for a cluster."""
    source = exported_cluster(logdir, "logdir")
    if source is None:
        given: Any = logdir
        return DirectoryInput([os.fspath(each) for each in root_list(given, "logdir")], reading)
    from kbatch.sinks.cluster_input import ClusterInput

    _check_for_cluster(source, reading)
    return ClusterInput(source, reading)


def exported_cluster(
    given: Any,
    name: str,
    config: ClientConfig | None = None,
    history: HistoryLike = None,
    storage_options: Mapping[str, str] | None = None,
) -> ClusterSource | None:
    """Return the cluster that an argument names; None for paths. The options are for URLs of the history.

    Raises
    ------
    TypeError
        For another type.
    ValueError
        For a cluster with other paths, and settings without a cluster.
    """
    is_source = isinstance(given, LogSource)
    if isinstance(given, bytes) or not (is_source or isinstance(given, str | os.PathLike | Iterable)):
        raise TypeError(f"{name} must be one or several paths, or a ClusterSource, got {type(given).__name__}")
    paths = [] if is_source else [os.fspath(each) for each in root_list(given, name)]
    urls = [path for path in paths if is_cluster_url(path)]
    if urls and len(paths) > 1:
        raise ValueError(
            f"{name}: a cluster excludes other paths; several brokers of it are kafka://HOST:PORT,HOST:PORT"
        )
    if not is_source:
        if not urls and config is None and history is None:
            return None
        # Exports of files do not import scans.
        from kbatch.scans.given_sources import cluster_source

        storage = None if history is None else storage_options
        return cluster_source(urls[0] if urls else "", storage, config, history=history)
    from kbatch.live import ClusterSource

    if not isinstance(given, ClusterSource):
        raise TypeError(f"{name} must be paths or a ClusterSource, got {type(given).__name__}")
    if config is not None or history is not None:
        name = "config" if config is not None else "history"
        raise ValueError(f"{name} and a ClusterSource exclude each other: the source has its own")
    return given


def _check_for_cluster(source: ClusterSource, reading: ReadOptions) -> None:
    """Raise an error for options that need the files of logs, and options that a history excludes."""
    from kbatch.plan.cluster_history import check_history_options

    if reading.index:
        raise OptionError("{index} needs log directories; brokers have no key index")
    if source.include_expired:
        raise ValueError(
            "include_expired is for kbatch.scan_logs; export the log directories of the history to another output"
        )
    if source.history:
        check_history_options(reading)


def run_export(
    logdir: ExportedLogs,
    out: str | os.PathLike[str],
    engine: Callable[[int], Engine],
    reading: ReadOptions,
    writing: WriteOptions,
    *,
    table: str | None = None,
    catalog: str | None = None,
    transform: Transform | None = None,
    progress: Progress | None = None,
    mark_seen: bool = True,
    metrics: str | os.PathLike[str] | None = None,
) -> ExportSummary:
    """Export as `kbatch.export` does. `engine` is called with the bytes of the logs, and returns the engine."""
    file = None if metrics is None else MetricsFile(os.fspath(metrics), os.fspath(out))
    try:
        setup = ExportSetup.of(logdir, out, reading, writing, table, catalog, transform)
        with contextlib.closing(setup.source):
            summary = _committed_run(setup, engine, progress)
    except BaseException as error:
        if file is not None:
            file.write(None, INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
        raise
    if file is not None:
        file.write(summary, summary.exit_status)
    if mark_seen:
        summary.mark_seen()
    return summary


def _committed_run(setup: ExportSetup, engine: Callable[[int], Engine], progress: Progress | None) -> ExportSummary:
    """Run an export to the end of its commit."""
    target = setup.target()
    logs = setup.source.logs()
    chosen = engine(sum(log.size for log in logs))
    run = setup.run(target, logs, chosen)
    # The run releases the logs before it commits.
    del logs
    with contextlib.ExitStack() as to_the_end, run:
        # Without new records, an export that continues takes a second instead of ten.
        idle = run.has_nothing_to_read()
        with contextlib.nullcontext() if idle else chosen.start() as executor:
            run.run(executor, progress)
            # An interrupt in the middle of a table's commit would leave unknown whether it succeeded, and one while
            # Spark stops would report that nothing was written.
            held = to_the_end.enter_context(HeldInterrupts())
            summary = run.commit()
            held.finish()
    return summary


def _check_options(
    options: ReadOptions, writing: WriteOptions, transform: Transform | None, *, has_table: bool
) -> None:
    """Raise an error for options that conflict with each other."""
    if transform is not None and not hasattr(transform, "schema"):
        raise TypeError(f"transform must have the methods schema and apply, got {type(transform).__name__}")
    if has_table and writing.format != "iceberg":
        raise ValueError("table and catalog are valid with format iceberg only")
    if transform is not None and options.values.parsed:
        raise ValueError("give either a transform or formats of keys and values, not both")
    if writing.new_fields == "bad" and not options.values.infers:
        raise ValueError("new_fields=bad is for schemas that are inferred: values or keys in json, without a schema")
    if writing.flatten and not options.values.parsed:
        raise ValueError("flatten needs a format of keys or values, such as json")
