"""Transactions as rows: what read_committed leaves out and withholds, for the data source's table ``transactions``.

No pyspark in here, as in everything that tasks do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kbatch.format import NO_TIMESTAMP
from kbatch.log import Log
from kbatch.plan.following import raise_damage
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import LogRange
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
_MAX_ROWS = 16_000
_MOST_MILLISECONDS = ((1 << 63) - 1) // 1000


def transaction_batches(
    ranges: Sequence[LogRange], columns: Sequence[str], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the aborted, the undecided and the open transactions of logs, which are followed over their batches.

    Parameters
    ----------
    ranges : sequence of LogRange
        The logs; of each the transactions that reach into its offsets. Their markers may stand outside.
    columns : sequence of str
        Some of the columns of `TRANSACTION_SCHEMA`, in the order wanted.
    options : ReadOptions
        What damage means, and a timestamp that microseconds can't hold.

    Yields
    ------
    pyarrow.RecordBatch
        Per log the aborted ones in the order of their markers, likewise the undecided ones, whose markers are lost to
        damage, then the open ones by first offset.

    Raises
    ------
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        With ``on_error="raise"``, as `kbatch.plan.split.require_markers`. Other payloads are not looked at.
    OverflowError
        For such a timestamp, with ``timestamp_overflow="raise"``.
    """
    schema = pa.schema([TRANSACTION_SCHEMA.field(name) for name in columns])
    for log_range in ranges:
        log = Log(log_range.path, storage_options=options.storage)
        transactions = log.transactions(crc=options.crc, on_error=options.on_error)
        if options.on_error == "raise":
            # Damage may also hide whole transactions, which leaves none of them undecided: follow the headers at least.
            raise_damage(log, options.crc if len(transactions.undecided) else "skip")
        rows = _transaction_rows(log, transactions, log_range, options)
        for start in range(0, len(rows["state"]), _MAX_ROWS):
            arrays = [pa.array(rows[field.name][start : start + _MAX_ROWS], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def pending_table(wanted: Sequence[tuple[Log, Transactions, LogRange]], options: ReadOptions) -> pa.Table:
    """Return the undecided and the open transactions of logs that have been followed, in the order of the logs.

    Parameters
    ----------
    wanted : sequence of (Log, Transactions, LogRange)
        The logs, and the offsets that are wanted of each.
    options : ReadOptions

    Returns
    -------
    pyarrow.Table
        Of `TRANSACTION_SCHEMA`.

    Raises
    ------
    OverflowError
        As `transaction_batches`.
    """
    tables = [pa.table(_transaction_rows(*each, options), TRANSACTION_SCHEMA) for each in wanted]
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
    n, still = len(ended), len(open_ones)
    return {
        "topic": [log.topic] * (n + still),
        "partition": [log.partition] * (n + still),
        "producer_id": ended["producer_id"].tolist() + [each.producer_id for each in open_ones],
        "first_offset": ended["first_offset"].tolist() + [each.first_offset for each in open_ones],
        "last_offset": ended["last_offset"].tolist() + [None] * still,
        "state": states + ["open"] * still,
        "first_timestamp": [None] * n + timestamps,
        "last_stable_offset": [transactions.last_stable_offset] * (n + still),
    }


def _microseconds(log: Log, offset: int, milliseconds: int, options: ReadOptions) -> int | None:
    if milliseconds == NO_TIMESTAMP:
        return None
    if abs(milliseconds) <= _MOST_MILLISECONDS:
        return 1000 * milliseconds
    if options.timestamp_overflow == "null":
        return None
    raise OverflowError(
        f"{log.path}, offset {offset}: timestamp {milliseconds} ms doesn't fit timestamp[us]; "
        "timestampOverflow=null gives null in such places"
    )
