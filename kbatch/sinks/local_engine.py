"""Runs the tasks of an export in threads of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from kbatch.interrupts import HeldInterrupts
from kbatch.plan.planner import Mapper
from kbatch.plan.split import Task
from kbatch.sinks.counts import Counts, Progress
from kbatch.sinks.task import ExportJob, TaskReport, reports_of

__all__ = ["LocalExecutor"]

# How often, in seconds, the progress is shown and a held interrupt is raised.
POLL_SECONDS = 0.1


class LocalExecutor:
    """Runs tasks in threads; decoding, compression and Parquet encoding release the GIL.

    Parameters
    ----------
    threads : int, optional
        The number of tasks that run at the same time, each with the memory of a Spark task. Default is one for each
        processor that this process may use.

    Attributes
    ----------
    cores : int
    mapper : None
        Logs are planned in the calling thread.
    """

    mapper: Mapper | None = None

    def __init__(self, threads: int | None = None) -> None:
        self.cores = available_cores() if threads is None else threads

    def run(self, job: ExportJob, tasks: Sequence[Task[Any]], progress: Progress | None) -> Iterator[TaskReport]:
        """Run the job for each task; return the reports in the order of the tasks.

        After an error or an interrupt, running tasks end at their next table, and no other task is started.
        """
        work = _Work(job, tasks)
        total = sum(task.bytes for task in tasks)
        with HeldInterrupts() as held, ThreadPoolExecutor(self.cores, "kbatch-export") as pool:
            threads = [pool.submit(work.run) for _ in range(min(self.cores, len(tasks)))]
            try:
                is_done = False
                while not is_done:
                    done, rest = wait(threads, POLL_SECONDS, FIRST_EXCEPTION)
                    held.check()
                    if progress is not None:
                        progress(min(work.counts.read_bytes, total), total, work.counts.records)
                    is_done = not rest or any(thread.exception() is not None for thread in done)
            finally:
                work.stop()
                job.stop()
        for thread in threads:
            thread.result()
        return reports_of(report for reports in work.reports for report in reports)


def available_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Work:
    """The tasks that threads take one after the other, their counts, and their reports."""

    def __init__(self, job: ExportJob, tasks: Sequence[Task[Any]]) -> None:
        self.counts = Counts()
        # As JSON, which takes less memory than the objects.
        self.reports: list[list[str]] = [[] for _ in tasks]
        self._job = job
        self._tasks = iter(enumerate(tasks))
        self._lock = threading.Lock()
        self._is_stopped = False

    def run(self) -> None:
        """Run tasks until none is left; several threads call this at the same time."""
        try:
            while (found := self._next()) is not None:
                number, task = found
                self.reports[number] = [report.to_json() for report in self._job.run(number, task, self._count)]
        except _StoppedError:
            pass
        except BaseException:
            with self._lock:
                is_first, self._is_stopped = not self._is_stopped, True
            # Reads that were stopped because of another error end with their own errors.
            if is_first:
                raise

    def _next(self) -> tuple[int, Task[Any]] | None:
        with self._lock:
            return None if self._is_stopped else next(self._tasks, None)

    def _count(self, counts: Counts) -> None:
        if self._is_stopped:
            raise _StoppedError
        with self._lock:
            self.counts += counts

    def stop(self) -> None:
        """End all tasks at their next table."""
        self._is_stopped = True


class _StoppedError(BaseException):
    """Another task has failed, or the export was interrupted. Error handlers of tasks do not catch it."""
