"""Spark jobs for the planning of a read: they follow transactions of segments, or look up what a log has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession

from kbatch.log import Segment
from kbatch.log.committed import SegmentTransactions, segment_transactions
from kbatch.plan.following import SegmentWalker
from kbatch.plan.many import LogMapper
from kbatch.read.decode_options import DecodeOptions
from kbatch.spark.driver.shipping import shipped
from kbatch.tuning import PLAN_TASK_LOGS, WALK_TASK_BYTES

__all__ = ["log_mapper", "segment_walker"]


def segment_walker(spark: SparkSession) -> SegmentWalker:
    """Return a function that follows segments in a job of `spark`, for `kbatch.plan.following.log_transactions`."""

    def walk(segments: Sequence[tuple[Segment, int | None]], options: DecodeOptions) -> list[SegmentTransactions]:
        context = spark.sparkContext
        tasks = max(1, sum(segment.size for segment, _ in segments) // WALK_TASK_BYTES, context.defaultParallelism)
        walked = context.parallelize(segments, min(len(segments), tasks))

        def follow(given: Iterable[tuple[Segment, int | None]]) -> Iterator[SegmentTransactions]:
            return (segment_transactions(segment, below, options) for segment, below in given)

        return list(walked.mapPartitions(shipped(follow)).collect())

    return walk


def log_mapper(spark: SparkSession) -> LogMapper:
    """Return a function that applies another one to logs in a job of `spark`, for `kbatch.plan.many.plan_reads`."""

    def apply(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        context = spark.sparkContext
        tasks = max(len(items) // PLAN_TASK_LOGS, min(len(items), context.defaultParallelism))

        def apply_all(given: Iterable[Any]) -> Iterator[Any]:
            return map(function, given)

        return list(context.parallelize(items, tasks).mapPartitions(shipped(apply_all)).collect())

    return apply
