"""The metrics of an export as a file in Prometheus's text format, for the textfile collector of the node exporter."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kbatch.errors import KbatchError
from kbatch.extras import require

if TYPE_CHECKING:
    from kbatch.sinks.summary import ExportSummary, PartitionSummary

__all__ = ["MetricsFile"]

# The help texts of the sums over the partitions of a topic, by the suffix of the metric's name.
_OF_TOPIC = {
    "records": "Records written by the last run.",
    "log_bytes": "Bytes of the batches that the last run read.",
    "file_bytes": "Bytes of the data files that the last run wrote.",
    "lost_bytes": "Bytes of the log without readable records in the last run because of damage.",
    "gap_offsets": "Offsets that are missing between two segments for an unknown reason.",
    "lag_offsets": "Offsets from the position of the export to the end of the log.",
}
_OF_FOLLOWED = {"lag_bytes": "Bytes of the log from the position of the export on."}
_OF_RUN = {
    "success": "Whether the last run succeeded: 1 or 0.",
    "exit_status": "The exit status of the last run.",
    "seconds": "Seconds of the last run, without the start of the engine.",
    "end_time_seconds": "When the last run ended, in seconds since the epoch.",
}


class MetricsFile:
    """A file that is replaced at the end of each run.

    Parameters
    ----------
    path : str
        The path; the node exporter's collector reads files that end with ``.prom``.
    out : str
        The output of the export, the label ``out`` of all metrics.

    Raises
    ------
    MissingDependencyError
        Without prometheus_client.
    KbatchError
        If the directory of the file does not exist.
    """

    def __init__(self, path: str, out: str) -> None:
        self._client = require("prometheus_client", "metrics", "metrics of an export")
        self._path = path
        self._out = out
        directory = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(directory):
            raise KbatchError(f"{path}: no directory {directory} for the file of metrics", source=path)

    def write(
        self, summary: ExportSummary | None, exit_status: int, lags: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """Replace the file; without a summary the run has failed, and the file has no metrics of topics.

        `lags` has the lag of all topics, in bytes and offsets, if the run has read only topics with new records.

        Raises
        ------
        KbatchError
            If the file can't be written.
        """
        registry = self._client.CollectorRegistry()
        run = {"success": int(summary is not None), "exit_status": exit_status, "end_time_seconds": time.time()}
        if summary is not None:
            run["seconds"] = summary.seconds
        for name, value in run.items():
            gauge = self._client.Gauge(f"kbatch_export_{name}", _OF_RUN[name], ["out"], registry=registry)
            gauge.labels(self._out).set(value)
        found = _sums(() if summary is None else summary.partitions)
        if lags is not None:
            for name, position in ("lag_bytes", 0), ("lag_offsets", 1):
                found[name] = {topic: lag[position] for topic, lag in lags.items()}
        for name, sums in found.items():
            help = (_OF_TOPIC | _OF_FOLLOWED)[name]
            gauge = self._client.Gauge(f"kbatch_export_{name}", help, ["out", "topic"], registry=registry)
            for topic, total in sums.items():
                gauge.labels(self._out, topic).set(total)
        try:
            self._client.write_to_textfile(self._path, registry)
        except OSError as error:
            raise KbatchError(f"{self._path}: can't write the metrics: {error.strerror}", source=self._path) from None


def _sums(partitions: Iterable[PartitionSummary]) -> dict[str, dict[str, int]]:
    """Return the sums of each metric by topic."""
    found: dict[str, dict[str, int]] = {name: defaultdict(int) for name in _OF_TOPIC}
    for part in partitions:
        values: dict[str, Any] = {name: getattr(part, name) for name in _OF_TOPIC}
        for name, value in values.items():
            found[name][part.topic] += value
    return found
