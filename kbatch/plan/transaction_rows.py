"""Transactions that read_committed omits or withholds, as rows of the data source's table ``transactions``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kbatch.format import INT64_MAX, NO_TIMESTAMP
from kbatch.log import Log
from kbatch.plan.following import raise_damage
from kbatch.plan.planner import LogRange
from kbatch.plan.read_options import ReadOptions
from kbatch.transactions import Transactions

__all__ = ["TRANSACTION_SCHEMA", "pending_table", "transaction_batches"]

TRANSACTION_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("producer_id", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("state", pa.string()),
        ("first_timestamp", pa.timestamp("us", "UTC")),
        ("last_stable_offset", pa.int64()),
    ]
)
_TRANSACTION_ROWS = 16_000
_MAX_MILLISECONDS = INT64_MAX // 1000


def transaction_batches(
    ranges: Sequence[LogRange], columns: Sequence[str], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Follow the batches of logs; yield their aborted, undecided and open transactions.

    Parameters
    ----------
    ranges : sequence of LogRange
        The logs, and the range of offsets into which their transactions must reach. Markers may be outside of it.
    columns : sequence of str
        The columns of `TRANSACTION_SCHEMA` to return, in this order.
    options : ReadOptions
        How to treat damage, and timestamps that do not fit microseconds.

    Yields
    ------
    pyarrow.RecordBatch
        For each log, aborted transactions in the order of their markers, then undecided transactions, whose markers
        are damaged or lost, then open transactions by first offset.

    Raises
    ------
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        With ``on_error="raise"``, for damage that may hide markers.
    OverflowError
        For a timestamp that does not fit, with ``timestamp_overflow="raise"``.
    """
    schema = pa.schema([TRANSACTION_SCHEMA.field(name) for name in columns])
    for log_range in ranges:
        log = Log(log_range.path, storage_options=options.storage)
        on_error = options._for_topic(log.topic).on_error
        transactions = log.transactions(crc=options.crc, on_error=on_error)
        if on_error == "raise":
            # Damage may hide a whole transaction, which is then not undecided either: check at least the headers.
            raise_damage(log, options.crc if len(transactions.undecided) else "skip")
        rows = _transaction_rows(log, transactions, log_range, options)
        for start in range(0, len(rows["state"]), _TRANSACTION_ROWS):
            arrays = [pa.array(rows[field.name][start : start + _TRANSACTION_ROWS], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def pending_table(followed: Sequence[tuple[Log, Transactions, LogRange]], options: ReadOptions) -> pa.Table:
    """Return the undecided and open transactions of logs, in the order of the logs.

    Parameters
    ----------
    followed : sequence of (Log, Transactions, LogRange)
        The logs, their transactions, and the range of offsets into which these must reach.
    options : ReadOptions

    Returns
    -------
    pyarrow.Table
        With `TRANSACTION_SCHEMA`.

    Raises
    ------
    OverflowError
        As `transaction_batches`.
    """
    tables = [pa.table(_transaction_rows(*each, options), TRANSACTION_SCHEMA) for each in followed]
    rows = pa.concat_tables([TRANSACTION_SCHEMA.empty_table(), *tables])
    return rows.filter(pa.compute.not_equal(rows["state"], "aborted"))


def _transaction_rows(
    log: Log, transactions: Transactions, log_range: LogRange, options: ReadOptions
) -> dict[str, list[Any]]:
    ended = np.concatenate([transactions.aborted, transactions.undecided])
    states = ["aborted"] * len(transactions.aborted) + ["undecided"] * len(transactions.undecided)
    open_ones = transactions.open
    kept = np.ones(len(ended), np.bool_)
    if log_range.start_offset is not None:
        kept &= ended["last_offset"] >= log_range.start_offset
    if log_range.stop_offset is not None:
        kept &= ended["first_offset"] < log_range.stop_offset
        open_ones = [each for each in open_ones if each.first_offset < log_range.stop_offset]
    timestamps = [_microseconds(log, each.first_offset, each.first_timestamp, options) for each in open_ones]
    ended, states = ended[kept], list(compress(states, kept))
    n, open_count = len(ended), len(open_ones)
    return {
        "topic": [log.topic] * (n + open_count),
        "partition": [log.partition] * (n + open_count),
        "producer_id": ended["producer_id"].tolist() + [each.producer_id for each in open_ones],
        "first_offset": ended["first_offset"].tolist() + [each.first_offset for each in open_ones],
        "last_offset": ended["last_offset"].tolist() + [None] * open_count,
        "state": states + ["open"] * open_count,
        "first_timestamp": [None] * n + timestamps,
        "last_stable_offset": [transactions.last_stable_offset] * (n + open_count),
    }


def _microseconds(log: Log, offset: int, milliseconds: int, options: ReadOptions) -> int | None:
    if milliseconds == NO_TIMESTAMP:
        return None
    if abs(milliseconds) <= _MAX_MILLISECONDS:
        return 1000 * milliseconds
    if options.timestamp_overflow == "null":
        return None
    raise OverflowError(
        f"{log.path}, offset {offset}: timestamp {milliseconds} ms does not fit timestamp[us]; "
        "timestampOverflow=null replaces it by null"
    )
