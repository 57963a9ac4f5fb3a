"""An export from its arguments to its summary, with any engine: `kbatch.sinks.export_run` has the steps of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kbatch.batches.framing import scan_part
from kbatch.errors import LogDirectoryError, finding_to_error
from kbatch.interrupts import INTERRUPTED, HeldInterrupts
from kbatch.log import Log
from kbatch.log.discovery import root_list
from kbatch.log.selection import choose_logs, map_logs
from kbatch.plan.arrow_batches import Transform
from kbatch.plan.read_options import ReadOptions
from kbatch.sinks.commits import RunTarget
from kbatch.sinks.counts import Progress
from kbatch.sinks.export_run import Executor, ExportRun, Limit, open_target
from kbatch.sinks.metrics import MetricsFile
from kbatch.sinks.outputs import OutputPlace, open_place
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.table_target import check_parent
from kbatch.sinks.working import RunLock
from kbatch.sinks.write_options import WriteOptions

__all__ = ["Engine", "ExportSetup", "run_export"]


@dataclass(frozen=True)
class Engine:
    """What runs the tasks of an export.

    Attributes
    ----------
    name, reason : str
        For the summary: "local" or "spark", and why it was chosen.
    start : callable
        Returns the context in which the tasks run. It is called only if there is something to read.
    """

    name: str
    reason: str
    start: Callable[[], AbstractContextManager[Executor]]


@dataclass(frozen=True)
class ExportSetup:
    """What the runs to an output have in common: the arguments of an export.

    Attributes
    ----------
    logdirs : tuple of str
    place : OutputPlace
    reading : ReadOptions
    writing : WriteOptions
    table, catalog : str or None
    transform : Transform or None
    """

    logdirs: tuple[str, ...]
    place: OutputPlace
    reading: ReadOptions
    writing: WriteOptions
    table: str | None = None
    catalog: str | None = None
    transform: Transform | None = None

    @classmethod
    def of(
        cls,
        logdir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        out: str | os.PathLike[str],
        reading: ReadOptions,
        writing: WriteOptions,
        table: str | None,
        catalog: str | None,
        transform: Transform | None,
    ) -> ExportSetup:
        """Return the setup of arguments, which are checked."""
        _check_options(reading, writing, transform, has_table=table is not None or catalog is not None)
        logdirs = tuple(os.fspath(each) for each in root_list(logdir, "logdir"))
        return cls(logdirs, open_place(os.fspath(out), writing.storage), reading, writing, table, catalog, transform)

    def target(self) -> RunTarget:
        """Return the output of a new run."""
        target = open_target(self.place, self.writing, table=self.table, catalog=self.catalog)
        check_parent(self.place)
        return target

    def logs(self) -> list[Log]:
        """Return the logs that the options choose, after a look at the first batch of each."""
        logs = choose_logs(self.logdirs, self.reading.selection, self.reading.storage)
        if not logs:
            raise LogDirectoryError(
                f"{', '.join(self.logdirs)}: the options exclude all of the topic-partitions", source=self.logdirs[0]
            )
        for log in logs:
            if log.topic is None:
                raise LogDirectoryError(
                    f"{log.path}: its directory is not named 'topic-partition', so the topic is unknown",
                    source=log.path,
                )
        _check_first_batches([log for log in logs if self.reading._for_topic(log.topic).on_error == "raise"])
        return logs

    def run(
        self,
        target: RunTarget,
        logs: Sequence[Log],
        engine: Engine,
        *,
        limit: Limit | None = None,
        within: RunLock | None = None,
    ) -> ExportRun:
        """Return a run that exports some logs; `limit` and `within` are as for `ExportRun`."""
        name, source = (engine.name, engine.reason), ",".join(self.logdirs)
        return ExportRun(
            source, target, logs, self.reading, self.writing, self.transform, name, limit=limit, within=within
        )


def run_export(
    logdir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
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
    logs = setup.logs()
    chosen = engine(sum(log.size for log in logs))
    run = setup.run(target, logs, chosen)
    # The run releases them before it commits.
    del logs
    with contextlib.ExitStack() as to_the_end, run:
        # An export that continues and finds nothing new takes a second instead of ten.
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
    """Raise for options that conflict with each other."""
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


def _check_first_batches(logs: Sequence[Log]) -> None:
    """Raise before Spark is started if the first batch of a log cannot be read."""

    def check(log: Log) -> None:
        segment = log.segments[0]
        scan = scan_part(segment.window(0, min(segment.size, 1 << 16)), max_batches=1)
        if scan.finding is not None:
            with segment.open() as file:
                if file.tail_at(0).kind == "damaged" or not segment.live:
                    raise finding_to_error(scan.finding, source=segment.path, position=0)

    map_logs(logs, check, logs)
