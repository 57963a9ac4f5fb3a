"""Whether a cluster still has executors for our job: Spark itself waits for them without end."""

from __future__ import annotations

import time
from typing import Any

from kbatch.errors import KbatchError

__all__ = ["EXECUTOR_TIMEOUT", "ExecutorWatch", "ExecutorsLostError"]

# A setting of the session, in seconds. Clusters that start machines on demand take minutes for the first one.
EXECUTOR_TIMEOUT = "spark.kbatch.executorTimeout"
_DEFAULT_TIMEOUT = "300"


class ExecutorsLostError(KbatchError):
    """The cluster has had no executor for too long."""


class ExecutorWatch:
    """Looks now and then whether a cluster has executors; in local mode the driver is one, and nothing is looked at.

    Parameters
    ----------
    context : SparkContext
    """

    def __init__(self, context: Any) -> None:
        self._master = context.master
        self._spark = context._jsc.sc()
        self._local = self._spark.isLocal()
        self._timeout = float(context.getConf().get(EXECUTOR_TIMEOUT, _DEFAULT_TIMEOUT))
        self._seen = time.monotonic()

    def check(self) -> None:
        """Fail if there has been no executor for as long as `EXECUTOR_TIMEOUT` says (default: 300 seconds).

        Raises
        ------
        ExecutorsLostError
        """
        now = time.monotonic()
        # The driver's own block manager is among them.
        if self._local or self._spark.getExecutorMemoryStatus().size() > 1:
            self._seen = now
        elif now - self._seen > self._timeout:
            raise ExecutorsLostError(
                f"{self._master} has had no executor for us for {now - self._seen:.0f} s: its workers are gone, or "
                f"busy, or smaller than what was asked for; {EXECUTOR_TIMEOUT} sets how many seconds to wait"
            )
