"""A Spark job that follows the transactions of segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql import SparkSession

from kbatch.log import Segment
from kbatch.log.committed import SegmentTransactions, segment_transactions
from kbatch.plan.following import SegmentWalker
from kbatch.read.decode_options import DecodeOptions
from kbatch.spark.driver.shipping import shipped
from kbatch.tuning import WALK_TASK_BYTES

__all__ = ["segment_walker"]


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
