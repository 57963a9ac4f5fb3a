"""The log of the driver: loggers that are shown, and what of a read of a live cluster is in files of its history."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kbatch.plan.live_tasks import LiveTask

__all__ = ["driver_logger", "log_origins"]

# Its name is public: docs/spark-live.md.
_HISTORY_LOGGER = "kbatch.spark.history"


def driver_logger(name: str) -> logging.Logger:
    """Return a logger whose lines of level INFO are in the driver's log, unless logging is configured."""
    logger = logging.getLogger(name)
    if not logger.hasHandlers():
        # Spark starts a process for the reader, whose standard error is in the log of the driver.
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
    return logger


def log_origins(tasks: Iterable[LiveTask]) -> None:
    """Log how many offsets tasks read from files of the history, and how many they fetch."""
    counts = {True: 0, False: 0}
    for task in tasks:
        for part in task:
            counts[part.is_history] += part.records
    driver_logger(_HISTORY_LOGGER).info(
        "%d offsets are in files of the history, %d are fetched from the cluster", counts[True], counts[False]
    )
