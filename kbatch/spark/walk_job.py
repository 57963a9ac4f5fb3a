"""A Spark job that walks the segments of logs for their transactions."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from kbatch.log import Segment
from kbatch.log.committed import SegmentTransactions, segment_transactions
from kbatch.plan.following import SegmentWalker
from kbatch.read.decode_options import DecodeOptions

__all__ = ["segment_walker"]

# Segments of so many bytes make a task.
_TASK_BYTES = 1 << 30


def segment_walker(spark: SparkSession) -> SegmentWalker:
    """Return what walks segments as a job of `spark`, for `kbatch.plan.following.log_transactions`."""

    def walk(wanted: Sequence[tuple[Segment, int | None]], options: DecodeOptions) -> list[SegmentTransactions]:
        context = spark.sparkContext
        tasks = max(1, sum(segment.size for segment, _ in wanted) // _TASK_BYTES, context.defaultParallelism)
        walked = context.parallelize(wanted, min(len(wanted), tasks))
        return walked.map(lambda each: segment_transactions(*each, options)).collect()

    return walk
