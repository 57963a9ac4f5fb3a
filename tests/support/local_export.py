"""Exports without Spark: the tasks run one after the other in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kbatch.log.selection import choose_logs
from kbatch.plan.planner import Mapper
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split, Task
from kbatch.plan.value_columns import value_columns
from kbatch.sinks.counts import Progress
from kbatch.sinks.export_run import ExportRun, open_target
from kbatch.sinks.outputs import open_place
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.task import ExportJob, TaskReport, reports_of
from kbatch.sinks.write_options import WriteOptions


class LocalExecutor:
    """Runs tasks in this process."""

    cores = 2
    mapper: Mapper | None = None

    def run(self, job: ExportJob, tasks: Sequence[Task[Split]], progress: Progress | None) -> Iterator[TaskReport]:
        return reports_of(job(enumerate(tasks)))


def export(
    logdir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ReadOptions | None = None,
    *,
    table: str | None = None,
    catalog: str | None = None,
    is_seen: bool = True,
    **writing: Any,
) -> ExportSummary:
    """Export like `kbatch.spark.export`, with the options of `WriteOptions` as keywords.

    Without `is_seen`, it ends as a process that dies before anybody has seen the summary.
    """
    options, chosen = options or ReadOptions(), WriteOptions(**writing)
    place = open_place(os.fspath(out), chosen.storage)
    target = open_target(place, chosen, table=table, catalog=catalog)
    logs = choose_logs([os.fspath(logdir)], options.selection)
    earlier = target.data_schema() if options.values.parsed and chosen.mode == "continue" else None
    transform = value_columns(options.values, logs, options, flatten=chosen.flatten, earlier=earlier)
    with ExportRun(os.fspath(logdir), target, logs, options, chosen, transform) as run:
        run.run(None if run.has_nothing_to_read() else LocalExecutor(), None)
        summary = run.commit()
    if is_seen:
        summary.mark_seen()
    return summary


def export_killed_at(root: Path, out: Path, name: str, count: int) -> None:
    """Export, and kill this process at a call of a function of `os`: the `count`-th of that name."""
    original: Callable[..., Any] = getattr(os, name)
    calls: list[int] = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(os, name, call)
    export(root, out)


def log_offsets(root: Path) -> dict[str, list[int]]:
    """Return the offsets of the records of all logs of a directory, by the name of the topic-partition."""
    import kbatch

    return {
        f"{log.topic}-{log.partition}": [int(offset) for table in log.tables() for offset in table.records["offset"]]
        for log in kbatch.find_logs(root)
    }
