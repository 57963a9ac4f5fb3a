"""The number of bytes that a task reads to write files of the target size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from kbatch.errors import KbatchError
from kbatch.format import Limits
from kbatch.log import Log
from kbatch.log.sampling import places_at
from kbatch.plan.read_options import DEFAULT_SPLIT_BYTES
from kbatch.read.decoding import decode
from kbatch.records.kafka_columns import spark_batches
from kbatch.sinks.files import file_size
from kbatch.sinks.task import ExportJob

__all__ = ["log_samples", "output_ratio", "task_bytes"]

# Each task has about 0.1 s of overhead, so small logs are not cut into smaller splits than this.
MIN_SPLIT_BYTES = 16 << 20
# The maximum that a task reads to fill a file: about a minute of work.
MAX_SPLIT_BYTES = 8 << 30
# The sample for estimating the size of the output: the number of places, and the bytes to read at each.
SIZING_PLACES = 8
SIZING_BYTES = 1 << 20


def task_bytes(cores: int, samples: Callable[[], Iterator[tuple[Any, bool]]], job: ExportJob, size: int) -> int:
    """Return the bytes of the logs that a task reads: enough for a file of the target size, with all cores busy.

    `samples` returns `log_samples`, and `size` is the number of bytes that all tasks read. A size in the options is the
    maximum. Otherwise, each core gets the same number of tasks, each of which writes 0.75 to 1.5 files.
    """
    limit = job.options.split_bytes
    # The same number of tasks for each core: three equal tasks on two cores would take as long as four.
    turns = -(-size // (cores * limit))
    if limit == DEFAULT_SPLIT_BYTES and turns > 1:
        ratio = output_ratio(samples(), job)
        if ratio is not None:
            limit = int(min(max(limit, job.writing.file_bytes / ratio), MAX_SPLIT_BYTES))
        turns = (size + cores * limit // 2) // (cores * limit)
        limit += limit // 2
    share = size // (cores * max(1, turns)) + 1
    return min(limit, max(share, MIN_SPLIT_BYTES))


def log_samples(logs: Sequence[Log]) -> Iterator[tuple[Any, bool]]:
    """Yield bytes from places spread over the logs, and whether they begin with a batch."""
    size = sum(log.size for log in logs)
    targets = [size * (2 * place + 1) // (2 * SIZING_PLACES) for place in range(SIZING_PLACES if size else 0)]
    # Samples that overlap would look more compressible than the logs are.
    length = min(SIZING_BYTES, size // SIZING_PLACES)
    for segment, position, is_batch in places_at(logs, targets):
        with contextlib.suppress(KbatchError, OSError, ValueError):
            yield segment.window(position, min(segment.size, position + length)), is_batch


def output_ratio(samples: Iterator[tuple[Any, bool]], job: ExportJob) -> float | None:
    """Return the bytes of the output per byte of the logs, estimated from the samples of `log_samples`.

    None if no sample can be decoded; the tasks report the reason.
    """
    read = 0
    batches: list[pa.RecordBatch] = []
    for data, is_batch in samples:
        with contextlib.suppress(KbatchError, OSError, ValueError):
            table = decode(
                data,
                crc="skip",
                on_error="stop" if is_batch else "skip",
                limits=Limits(max_decompressed_bytes=job.options.max_decompressed_bytes),
            )._with(topic="", partition=0)
            found = list(spark_batches(table, job.columns, overflow="null"))
            if job.transform is not None:
                found = [job.transform.apply(batch) for batch in found]
            read += table.consumed - int(table.losses.lengths.sum())
            batches += found
    if not read or not batches:
        return None
    return max(file_size(batches, job.schema, job.writing), 1) / read
