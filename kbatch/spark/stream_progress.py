"""The metrics of a stream, from the progress that Spark reports of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kbatch.arguments import check_types
from kbatch.public_names import public_in
from kbatch.spark.stream_offsets import BYTES, LAG, MISSING, START, offsets_from_json

__all__ = ["StreamMetrics", "TopicMetrics", "stream_metrics"]

# How Spark describes sources in Python; it does not name which.
_DESCRIPTION = ".python.PythonMicroBatchStream"


@public_in("kbatch.spark")
@dataclass(frozen=True)
class TopicMetrics:
    """What a micro-batch read of a topic, as sums over its partitions.

    Attributes
    ----------
    offsets : int
        From the start of the micro-batch to its end: records, and offsets without one.
    log_bytes : int or None
        Bytes of the batches that it read; None for a live cluster, whose driver does not know them. This and the other
        attributes are None before PySpark 4.2.
    missing_offsets : int or None
        Offsets that were deleted before they could be read; with ``failOnDataLoss=true`` such a query fails.
    lag_offsets : int or None
        From the end of the micro-batch to the end of the logs.

    Examples
    --------
    >>> from kbatch.spark import TopicMetrics
    >>> TopicMetrics(offsets=100, log_bytes=5000, missing_offsets=0, lag_offsets=20).lag_offsets
    20
    """

    offsets: int
    log_bytes: int | None
    missing_offsets: int | None
    lag_offsets: int | None


@public_in("kbatch.spark")
@dataclass(frozen=True)
class StreamMetrics:
    """What a micro-batch read.

    Attributes
    ----------
    records : int
        Rows of all topics; Spark does not count them by topic.
    seconds : float
        Of the whole micro-batch.
    topics : dict of str to TopicMetrics

    Examples
    --------
    >>> from kbatch.spark import StreamMetrics
    >>> StreamMetrics(records=100, seconds=0.5, topics={}).records
    100
    """

    records: int
    seconds: float
    topics: dict[str, TopicMetrics]


@public_in("kbatch.spark")
def stream_metrics(progress: Mapping[str, Any]) -> StreamMetrics:
    """Return the metrics of a micro-batch from the progress of its query.

    Parameters
    ----------
    progress : StreamingQueryProgress
        ``query.lastProgress``, an element of ``query.recentProgress``, or ``event.progress`` of a listener. If the
        query has several sources with kbatch's format, the metrics are their sums.

    Returns
    -------
    StreamMetrics
        Named as the metrics of an export, see `kbatch.export`.

    Raises
    ------
    ValueError
        If the query has no source with kbatch's format.

    Notes
    -----
    Spark's sources in Python cannot add metrics of their own. The numbers are those of the offsets in the progress:
    ``sources[0]["latestOffset"]`` has them by partition, under ``$lag``, ``$bytes`` and ``$missing``.

    Examples
    --------
    >>> from kbatch.spark import stream_metrics
    >>> source = {
    ...     "description": "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1",
    ...     "startOffset": {"orders": {"0": 100}}, "endOffset": {"orders": {"0": 124}}, "numInputRows": 24,
    ...     "latestOffset": {"orders": {"0": 130}, "$lag": {"orders": {"0": 6}}},
    ... }  # fmt: skip
    >>> metrics = stream_metrics({"sources": [source], "durationMs": {"triggerExecution": 500}})  # query.lastProgress
    >>> metrics.records, metrics.seconds, metrics.topics["orders"].lag_offsets
    (24, 0.5, 6)
    """
    check_types(stream_metrics, locals())
    sources = [each for each in progress.get("sources", ()) if _DESCRIPTION in each["description"]]
    if not sources:
        raise ValueError("the query has no source of kbatch: its progress names no stream in Python")
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for source in sources:
        for topic, name, value in _numbers(source):
            found[topic][name] = found[topic].get(name, 0) + value
    return StreamMetrics(
        sum(source["numInputRows"] for source in sources),
        progress["durationMs"].get("triggerExecution", 0) / 1000,
        {topic: _topic_metrics(each) for topic, each in sorted(found.items())},
    )


def _numbers(source: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield numbers of partitions: topic, name and value."""
    start, end, latest = (_document(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
    begin = offsets_from_json(end.get(START, start))
    for (topic, number), stop in offsets_from_json(end).items():
        yield topic, "offsets", max(0, stop - begin.get((topic, number), 0))
    for key, name in (BYTES, "log_bytes"), (MISSING, "missing_offsets"), (LAG, "lag_offsets"):
        for (topic, _), value in offsets_from_json(latest.get(key, {})).items():
            yield topic, name, value


def _document(offset: Any) -> dict[str, Any]:
    """Return an offset: text in events, a document in the progress of a query; of none "None", "null" or None."""
    found = json.loads(offset) if isinstance(offset, str) and offset not in ("", "None") else offset
    return found if isinstance(found, dict) else {}


def _topic_metrics(found: Mapping[str, int]) -> TopicMetrics:
    others = (found.get(name) for name in ("log_bytes", "missing_offsets", "lag_offsets"))
    return TopicMetrics(found.get("offsets", 0), *others)
