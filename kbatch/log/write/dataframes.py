"""Writes DataFrames of Arrow, pandas and Polars to log directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from kbatch.arguments import check_types
from kbatch.batches.codecs import codec_text
from kbatch.extras import require
from kbatch.format import INT32_MAX, Codec, TimestampType
from kbatch.log.write.commit import Mode, Written, check_before, commit
from kbatch.log.write.dataframe_rows import RowOptions, check_columns
from kbatch.log.write.parts import PartWriter
from kbatch.log.write.staging import Stage
from kbatch.options import CodecLevel, CodecName
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between
from kbatch.write.batch_layout import BatchLayout
from kbatch.write.record_columns import header_pairs

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_log"]

# Rows per slice: splitting a slice by partition copies its rows.
SLICE_ROWS = 1 << 16


@public_in("kbatch.log")
def write_log(
    root: str | os.PathLike[str],
    frame: Any,
    *,
    topic: str | None = None,
    num_partitions: int = 1,
    mode: Mode = "append",
    offsets: Literal["keep", "assign"] = "keep",
    codec: Codec | CodecName | CodecLevel | None = None,
    batch_size: SizeLike = 16384,
    segment_bytes: SizeLike = 1 << 30,
    index_interval_bytes: SizeLike = 4096,
    timestamp_type: TimestampType | Literal["create_time", "log_append_time"] = TimestampType.CREATE_TIME,
) -> list[Written]:
    """Write the rows of a DataFrame to a log directory, as segments of magic 2 for each topic and partition.

    In an existing log, offsets continue after the last batch, in a new segment; existing files do not change. Either
    all rows are written or none. The next writer or `kbatch.log.roll_back` removes the files that remain after an error
    or a crash. The brokers' lock, ``.lock``, is held during the write, so no broker and no other writer may use the
    directory. A broker that is started on it serves the records of the topics in its metadata: create the topics first,
    since it marks the directories of unknown topics as strays.

    Parameters
    ----------
    root : str or path
        A log directory (``log.dirs`` of a broker, or a new one), local or mounted. Its parent must exist.
    frame : Arrow table, record batch or reader, pandas or Polars DataFrame, RecordTable, or an iterable of these
        Columns, in any order:

        - ``value`` (required) and ``key``: binary, or strings as UTF-8. Null is a null value or a null key.
        - ``topic``: strings. Required unless `topic` is given, which overrides it.
        - ``partition``: integers. If it is missing or null, Kafka's default partitioner chooses among `num_partitions`
          by the key, and rows without a key go to each partition in turn.
        - ``timestamp``: timestamps (UTC if they have no time zone) or milliseconds; null means no timestamp. Default is
          the time of this call.
        - ``headers``: lists of (key, value).
        - ``offset``: ascending within each topic-partition, and beyond its log's end; gaps are kept.
        - ``timestampType`` is allowed, since readers return it, and ignored.

        An iterable is consumed lazily, so it may be larger than memory.
    topic : str, optional
    num_partitions : int
    mode : {"append", "error", "overwrite"}
        If `root` has logs: append to them, raise, or replace them. "overwrite" removes **all** logs of the directory,
        not only the logs of these topics, and the broker's checkpoints. It keeps ``__cluster_metadata`` and directories
        marked ``-delete``, ``-future`` or ``-stray``.
    offsets : {"keep", "assign"}
        Whether to keep the offsets of a column ``offset``. Without the column they are assigned.
    codec : str or Codec, optional
        As for `kbatch.encode`, such as ``"zstd:3"``.
    batch_size : int or str
        As for `kbatch.BatchWriter`.
    segment_bytes, index_interval_bytes : int or str
        As for `kbatch.log.LogWriter`.
    timestamp_type : {"create_time", "log_append_time"}, or kbatch.TimestampType
        With log_append_time, all records get the time of this call.

    Returns
    -------
    list of Written
        By topic and partition: offsets, records, bytes, segments.

    Raises
    ------
    ValueError, TypeError
        If a column or row can't be written; the message names it.
    LogDirectoryError
        If `root` is a URL or locked, has logs and `mode` is "error", or has a log that can't be continued.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> import kbatch
    >>> from kbatch.log import write_log
    >>> rows = pa.table({"key": [b"a", b"b", None], "value": [b"1", b"2", b"3"]})
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for _ in range(2):
    ...         written = write_log(root, rows, topic="orders", codec="lz4")
    ...     log = kbatch.Log(f"{root}/orders-0")
    ...     written[0].first_offset, log.end_offset, len(log.segments)
    (3, 6, 2)
    """
    check_types(write_log, locals())
    if mode not in ("append", "error", "overwrite"):
        raise ValueError(f"mode must be 'append', 'error' or 'overwrite', got {mode!r}")
    layout = BatchLayout.of(magic=2, codec=codec, timestamp_type=timestamp_type)
    options = RowOptions(
        topic=topic,
        num_partitions=num_partitions,
        offsets=offsets,
        codec=codec_text(layout.codec, layout.level),
        batch_size=size_between("batch_size", batch_size, 0, INT32_MAX),
        timestamp_type=layout.timestamp_type,
    )
    stage = Stage(root)
    check_before(stage, mode)
    try:
        stage.make()
        writer = PartWriter(stage.attempt("rows"), options)
        for batch in _arrow_batches(frame, options):
            writer.add(batch)
        return commit(
            stage,
            writer.close(),
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            mode=mode,
        )
    except OSError as error:
        stage.name_error(error)
        raise
    finally:
        stage.remove()


def _arrow_batches(frame: Any, options: RowOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one or several DataFrames as Arrow, without a copy of Arrow data."""
    pa = require("pyarrow", "arrow", "writing a DataFrame")
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    elif type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns"):
        frame = _from_pandas(frame)
    elif not isinstance(frame, pa.Table) and hasattr(frame, "__arrow_c_stream__"):
        try:
            frame = pa.RecordBatchReader.from_stream(frame)
        except pa.ArrowInvalid:
            # A single column.
            raise _no_frame(frame) from None
    if isinstance(frame, pa.RecordBatchReader):
        check_columns(frame.schema, options)
        for batch in frame:
            for start in range(0, batch.num_rows, SLICE_ROWS):
                yield batch.slice(start, SLICE_ROWS)
    elif isinstance(frame, pa.Table):
        check_columns(frame.schema, options)
        yield from frame.to_batches(max_chunksize=SLICE_ROWS)
    elif isinstance(frame, Iterable) and not isinstance(frame, str | bytes | Mapping):
        for each in frame:
            if not hasattr(each, "__arrow_c_stream__") and not hasattr(each, "__arrow_c_array__"):
                raise _no_frame(each)
            yield from _arrow_batches(each, options)
    else:
        raise _no_frame(frame)


def _no_frame(found: Any) -> TypeError:
    return TypeError(
        "a frame must be an Arrow table, record batch or reader, a DataFrame of pandas or Polars, or an iterable of "
        f"these, got {type(found).__name__}"
    )


def _from_pandas(frame: Any) -> pa.Table:
    import pyarrow as pa

    columns, names = [], []
    for name in frame.columns:
        column = frame[name]
        kind = None
        if name == "headers" and column.dtype == object:
            # Python's (str, bytes) pairs have two types, so Arrow cannot infer a type.
            kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
            nulls = column.isna()
            column = [
                None if is_null else header_pairs(row, f"headers[{i}]")
                for i, (row, is_null) in enumerate(zip(column, nulls, strict=True))
            ]
        try:
            columns.append(pa.array(column, kind, from_pandas=True))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TypeError(f"column {name!r}: {error}") from error
        names.append(str(name))
    return pa.Table.from_arrays(
        [each if isinstance(each, pa.ChunkedArray) else pa.chunked_array([each]) for each in columns], names=names
    )
