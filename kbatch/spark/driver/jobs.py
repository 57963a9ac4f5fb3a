"""Spark jobs that can be watched and interrupted, and raise kbatch's errors."""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kbatch.errors
from kbatch.errors import KbatchError
from kbatch.interrupts import HeldInterrupts
from kbatch.spark.driver.executors import ExecutorWatch
from kbatch.spark.driver.shipping import WORKER_IMPORT_ERROR

__all__ = ["run_job"]

ResultT = TypeVar("ResultT")


def run_job(spark: SparkSession, work: Callable[[], ResultT], poll: Callable[[], None] | None = None) -> ResultT:
    """Run a Spark action in another thread, let it be interrupted, and return its result.

    Parameters
    ----------
    spark : SparkSession
    work : callable
    poll : callable, optional
        Called from time to time, and when the action has ended.

    Raises
    ------
    KbatchError
        The error of kbatch that a task raised, or else one with Spark's message.
    """
    context = spark.sparkContext
    group = f"kbatch-{uuid.uuid4().hex}"
    results: list[ResultT] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def call() -> None:
        try:
            context.setJobGroup(group, "kbatch export", interruptOnCancel=True)
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=call, name="kbatch-export", daemon=True)
    executors = ExecutorWatch(context)
    thread.start()
    try:
        with HeldInterrupts() as held:
            while not done.wait(0.2):
                held.check()
                executors.check()
                if poll is not None:
                    poll()
    except BaseException:
        with contextlib.suppress(Exception):
            context.cancelJobGroup(group)
        raise
    thread.join()
    if errors:
        raise _task_error(errors[0]) from errors[0]
    if poll is not None:
        poll()
    return results[0]


def _task_error(error: BaseException) -> BaseException:
    """Return the exception of kbatch that a task raised: Spark passes on only its text."""
    found = re.findall(r"^kbatch\.(?:\w+\.)*(\w+): (.+)$", str(error), re.MULTILINE)
    if found:
        name, text = found[-1]
        cls = getattr(kbatch.errors, name, KbatchError)
        made: BaseException = cls(text.strip())
        return made
    cannot_import = re.search(rf"{WORKER_IMPORT_ERROR} .+", str(error))
    if cannot_import:
        return KbatchError(cannot_import[0].strip())
    if isinstance(error, PySparkException) or type(error).__module__.startswith("py4j"):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The cause is the last line of a worker's traceback; without a traceback, the first line of Spark's message.
        raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
        return KbatchError(f"Spark failed: {(raised[-1:] or lines[:1] or [type(error).__name__])[0]}")
    return error
