"""Exports with the local engine: the tasks run one after the other in a thread of this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbatch.exporting import engine_choice
from kbatch.plan.read_options import ReadOptions
from kbatch.sinks.exports import run_export
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.write_options import WriteOptions


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
    """Export with the local engine, with the options of `WriteOptions` as keywords.

    Without `is_seen`, it ends as a process that dies before anybody has seen the summary.
    """
    return run_export(
        logdir,
        out,
        engine_choice("local", threads=1),
        options or ReadOptions(),
        WriteOptions(**writing),
        table=table,
        catalog=catalog,
        mark_seen=is_seen,
    )


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
