"""DataFrames of Arrow, pandas and Polars -> log directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from kbatch.extras import require
from kbatch.format import Codec, TimestampType
from kbatch.log.write.commit import Mode, Stage, Written, check_before, commit
from kbatch.log.write.parts import PartWriter
from kbatch.log.write.rows import RowOptions, check_columns, parse_compression
from kbatch.write.batch_layout import BatchLayout
from kbatch.write.inputs import header_pairs

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_log"]

# Rows that are handled at a time: what is picked out of them is copied.
_ROWS = 1 << 16


def write_log(
    root: str | os.PathLike[str],
    frame: Any,
    *,
    topic: str | None = None,
    num_partitions: int | None = None,
    mode: Mode = "append",
    offsets: Literal["keep", "assign"] = "keep",
    compression: Codec | str | None = None,
    batch_size: int = 16384,
    segment_bytes: int = 1 << 30,
    index_interval_bytes: int = 4096,
    timestamp_type: TimestampType | Literal["create_time", "log_append_time"] = TimestampType.CREATE_TIME,
) -> list[Written]:
    """Write the rows of a DataFrame into a log directory, as segments of magic 2 for each topic and partition.

    Of a log that is there offsets go on after its last batch, in a new segment: no file of it is changed. All rows are
    written, or none: what an error or a crash leaves is described in `kbatch.log.write.commit`, and removed by the next
    writer or by `kbatch.log.roll_back`. No broker may run on the directory, and no other writer; the lock of brokers,
    ``.lock``, is held for that. A broker that is started on it then serves the records of topics that it knows: create
    them first, since it sets directories of others aside as strays.

    Parameters
    ----------
    root : str or path
        A log directory (``log.dirs`` of a broker, or a new one), local or mounted. Its parent must be there.
    frame : Arrow table, record batch or reader, pandas or Polars DataFrame, RecordTable, or an iterable of these
        Columns, in any order:

        - ``value``, needed, and ``key``: binary, or strings as UTF-8. Null is a null value, null key.
        - ``topic``: strings. Needed unless `topic` is given, which goes before it.
        - ``partition``: integers. Where it is missing or null, Kafka's default partitioner chooses by the key among
          `num_partitions`, and rows without a key go to each in turn.
        - ``timestamp``: timestamps (those without time zone are taken as UTC) or milliseconds; null is none. Default is
          the time of this call.
        - ``headers``: lists of (key, value).
        - ``offset``: rising within each topic-partition, and beyond its log's end; gaps are kept.
        - ``timestampType`` is allowed, as readers give it, and not looked at.

        An iterable is written as it comes, so that it may be larger than memory.
    topic : str, optional
    num_partitions : int, optional
    mode : {"append", "error", "overwrite"}
        What to do if there are logs in `root` already: add to them, refuse, or take their place. "overwrite" removes
        **all** logs of the directory, not only those of these topics, and the checkpoints of a broker about them; but
        for ``__cluster_metadata`` and directories marked ``-delete``, ``-future`` or ``-stray``.
    offsets : {"keep", "assign"}
        Whether a column ``offset`` is kept. Without the column they are assigned.
    compression : str or Codec, optional
        A codec as for `kbatch.encode`, or with a level such as ``"zstd:3"``.
    batch_size : int
        As for `kbatch.BatchWriter`.
    segment_bytes, index_interval_bytes : int
        As for `kbatch.log.LogWriter`.
    timestamp_type : {"create_time", "log_append_time"}, or kbatch.TimestampType
        With log_append_time all records get the time of this call.

    Returns
    -------
    list of Written
        By topic and partition: offsets, records, bytes, segments.

    Raises
    ------
    ValueError, TypeError
        For columns or rows that can't be written; they are named.
    LogDirectoryError
        If `root` is a URL, locked, has logs that `mode` refuses, or a log of it can't be continued.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> import kbatch
    >>> from kbatch.log import write_log
    >>> rows = pa.table({"key": [b"a", b"b", None], "value": [b"1", b"2", b"3"]})
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for _ in range(2):
    ...         written = write_log(root, rows, topic="orders", num_partitions=1, compression="lz4")
    ...     log = kbatch.Log(f"{root}/orders-0")
    ...     written[0].first_offset, log.end_offset, len(log.segments)
    (3, 6, 2)
    """
    if mode not in ("append", "error", "overwrite"):
        raise ValueError(f"mode must be 'append', 'error' or 'overwrite', got {mode!r}")
    try:
        compressed = parse_compression(compression)
    except ValueError as error:
        raise ValueError(f"compression {error}") from None
    options = RowOptions(
        topic=topic,
        num_partitions=num_partitions,
        offsets=offsets,
        compression=compressed,
        batch_size=batch_size,
        timestamp_type=BatchLayout.of(magic=2, codec=compressed[0], timestamp_type=timestamp_type).timestamp_type,
    )
    stage = Stage(root)
    check_before(stage, mode)
    try:
        stage.make()
        writer = PartWriter(stage.attempt("rows"), options)
        for batch in record_batches(frame, options):
            writer.add(batch)
        return commit(
            stage,
            writer.close(),
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            mode=mode,
        )
    finally:
        stage.remove()


def record_batches(frame: Any, options: RowOptions) -> Iterator[pa.RecordBatch]:
    """Yield what a DataFrame or several of them hold as Arrow, without a copy where they are."""
    pa = require("pyarrow", "arrow", "writing a DataFrame")
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    elif type(frame).__module__.partition(".")[0] == "pandas":
        frame = _from_pandas(frame)
    elif not isinstance(frame, pa.Table) and hasattr(frame, "__arrow_c_stream__"):
        frame = pa.RecordBatchReader.from_stream(frame)
    if isinstance(frame, pa.RecordBatchReader):
        check_columns(frame.schema, options)
        for batch in frame:
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start, _ROWS)
    elif isinstance(frame, pa.Table):
        check_columns(frame.schema, options)
        yield from frame.to_batches(max_chunksize=_ROWS)
    elif isinstance(frame, Iterable) and not isinstance(frame, str | bytes | Mapping):
        for each in frame:
            if not hasattr(each, "__arrow_c_stream__") and not hasattr(each, "__arrow_c_array__"):
                raise _no_frame(each)
            yield from record_batches(each, options)
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
            # Pairs of Python are of two types, which Arrow doesn't guess.
            kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
            gone = column.isna()
            column = [
                None if missing else header_pairs(row, f"headers[{i}]")
                for i, (row, missing) in enumerate(zip(column, gone, strict=True))
            ]
        try:
            columns.append(pa.array(column, kind, from_pandas=True))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TypeError(f"column {name!r}: {error}") from error
        names.append(str(name))
    return pa.Table.from_arrays(
        [each if isinstance(each, pa.ChunkedArray) else pa.chunked_array([each]) for each in columns], names=names
    )
