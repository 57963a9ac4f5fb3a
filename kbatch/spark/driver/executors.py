"""Detects that a cluster has no executor for a job: Spark itself would wait forever."""

from __future__ import annotations

import time
from typing import Any

from kbatch.errors import KbatchError

__all__ = ["EXECUTOR_TIMEOUT", "ExecutorWatch", "ExecutorsLostError"]

# A setting of the session, in seconds. Clusters that start machines on demand take minutes for the first one.
EXECUTOR_TIMEOUT = "spark.kbatch.executorTimeout"
_DEFAULT_TIMEOUT = "300"


class ExecutorsLostError(KbatchError):
    """The cluster had no executor within the timeout."""


class ExecutorWatch:
    """Checks from time to time whether a cluster has executors. In local mode the driver is one, so it checks nothing.

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
        """Raise if there has been no executor for the time of `EXECUTOR_TIMEOUT` (default: 300 seconds).

        Raises
        ------
        ExecutorsLostError
        """
        now = time.monotonic()
        # The driver's own block manager counts too.
        if self._local or self._spark.getExecutorMemoryStatus().size() > 1:
            self._seen = now
        elif now - self._seen > self._timeout:
            raise ExecutorsLostError(
                f"{self._master} has had no executor for this job for {now - self._seen:.0f} s: its workers are "
                f"stopped, busy, or smaller than requested; {EXECUTOR_TIMEOUT} sets the timeout in seconds"
            )
