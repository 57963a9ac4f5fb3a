"""Batches, records and index entries in the format of DumpLogSegments of Kafka 4.3 (DMP-1 to DMP-6).

Two differences are intended: bytes that are not text are ``base64:...`` (Kafka replaces invalid UTF-8), and the listing
continues after damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from kbatch.cli.batches import (
    BATCH_FIELDS,
    TIMESTAMP_TYPES,
    codec_names,
    inner_checksums,
    last_sequences,
    sequence_after,
    timestamp_types,
)
from kbatch.cli.control_fields import control_text
from kbatch.cli.shown import plain_text
from kbatch.format import ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_TRANSACTIONAL, INT32_MAX
from kbatch.kernels.slices import header_keys
from kbatch.table import RecordTable

__all__ = ["index_lines", "lines", "snapshot_lines", "time_index_lines", "transaction_index_lines"]

_TEXT_RECORDS = 4096
_FLAGS = ("false", "true")


def lines(
    table: RecordTable, rows: npt.NDArray[np.intp], crc_holds: npt.NDArray[np.bool_], *, records: bool, data: bool
) -> Iterator[str]:
    """Yield one line per batch in `rows`, and one per record of these batches.

    Parameters
    ----------
    table : RecordTable
    rows : ndarray of int
        The batches to list.
    crc_holds : ndarray of bool, shape (batches,)
    records, data : bool
        Whether to list records, and their keys and values.
    """
    record_lines = _record_lines(table, data) if records else iter(())
    counts = np.bincount(table.records["batch"], minlength=len(table.batches))[rows].tolist()
    for line, count in zip(_batch_lines(table.batches[rows], crc_holds[rows]), counts, strict=True):
        yield line
        yield from islice(record_lines, count)


def _batch_lines(batches: npt.NDArray[np.void], crc_holds: npt.NDArray[np.bool_]) -> Iterator[str]:
    for row, codec, kind, sequence, holds in zip(
        batches[BATCH_FIELDS].tolist(), codec_names(batches),
        timestamp_types(batches).tolist(), last_sequences(batches).tolist(), crc_holds.tolist(),
        strict=True,
    ):  # fmt: skip
        (
            base_offset, last_offset, count, base_timestamp, max_timestamp, producer_id, producer_epoch,
            base_sequence, epoch, position, size, crc, attributes, magic, _,
        ) = row  # fmt: skip
        if magic == 2:
            has_horizon = attributes & ATTRIBUTE_DELETE_HORIZON != 0
            horizon = f"OptionalLong[{base_timestamp}]" if has_horizon else "OptionalLong.empty"
            head = (
                f"baseOffset: {base_offset} lastOffset: {last_offset} count: {count} baseSequence: {base_sequence} "
                f"lastSequence: {sequence} producerId: {producer_id} producerEpoch: {producer_epoch} "
                f"partitionLeaderEpoch: {epoch} isTransactional: {_FLAGS[attributes & ATTRIBUTE_TRANSACTIONAL != 0]} "
                f"isControl: {_FLAGS[attributes & ATTRIBUTE_CONTROL != 0]} deleteHorizonMs: {horizon}"
            )
        else:
            head = f"offset: {last_offset}"
        yield (
            f"{head} position: {position} {TIMESTAMP_TYPES[kind]}: {max_timestamp} size: {size} magic: {magic} "
            f"compresscodec: {codec} crc: {crc} isvalid: {_FLAGS[holds]}"
        )


def _record_lines(table: RecordTable, data: bool) -> Iterator[str]:
    batches = table.batches
    kinds = [TIMESTAMP_TYPES[kind] for kind in timestamp_types(batches).tolist()]
    new = batches["magic"] == 2
    control = ((batches["attributes"] & ATTRIBUTE_CONTROL) != 0) & new
    for start in range(0, len(table), _TEXT_RECORDS):
        part = table[start : start + _TEXT_RECORDS]
        records = part.records
        batch = records["batch"]
        base = batches["base_sequence"][batch].astype(np.int64)
        sequence = sequence_after(base, records["offset"] - batches["base_offset"][batch])
        sequence[base < 0] = -1
        header_lists = _header_keys(part)
        checksums = None if new[batch].all() else inner_checksums(part)
        is_control = control[batch].tolist()
        has_values = data or any(is_control)
        keys = part.keys() if has_values else []
        values = part.values() if has_values else []
        for i, (offset, timestamp, key_size, value_size, row, is_new, number) in enumerate(
            zip(
                records["offset"].tolist(), records["timestamp"].tolist(), records["key_len"].tolist(),
                records["value_len"].tolist(), batch.tolist(), new[batch].tolist(), sequence.tolist(), strict=True,
            )
        ):  # fmt: skip
            line = f"| offset: {offset} {kinds[row]}: {timestamp} keySize: {key_size} valueSize: {value_size}"
            if is_new:
                line += f" sequence: {number} headerKeys: [{header_lists[i]}]"
            elif checksums is not None:
                crc, holds = checksums[i]
                line += f" isValid: {_FLAGS[holds]} crc: {crc}"
            if is_control[i]:
                line += f" {control_text(keys[i], values[i])}"
            elif data:
                key, value = keys[i], values[i]
                if key is not None:
                    line += f" key: {plain_text(key)}"
                if value is not None:
                    line += f" payload: {plain_text(value)}"
            yield line


def _header_keys(table: RecordTable) -> list[str]:
    keys = [plain_text(key) for key in header_keys(table.headers, table.data)]
    return list(map(",".join, table._by_record(keys)))


def index_lines(entries: npt.NDArray[np.void]) -> Iterator[str]:
    """Yield the lines of an ``.index`` file."""
    for offset, position in entries.tolist():
        yield f"offset: {offset} position: {position}"


def time_index_lines(entries: npt.NDArray[np.void]) -> Iterator[str]:
    """Yield the lines of a ``.timeindex`` file."""
    for timestamp, offset in entries.tolist():
        yield f"timestamp: {timestamp} offset: {offset}"


def transaction_index_lines(entries: npt.NDArray[np.void]) -> Iterator[str]:
    """Yield the lines of a ``.txnindex`` file."""
    for producer_id, first, last, stable in entries.tolist():
        yield (
            f"version: 0 producerId: {producer_id} firstOffset: {first} lastOffset: {last} lastStableOffset: {stable}"
        )


def snapshot_lines(entries: npt.NDArray[np.void]) -> Iterator[str]:
    """Yield the lines of a ``.snapshot`` file."""
    for producer_id, last_offset, timestamp, begun, last_sequence, delta, coordinator, epoch in entries.tolist():
        open_since = "OptionalLong.empty" if begun == -1 else f"OptionalLong[{begun}]"
        line = (
            f"producerId: {producer_id} producerEpoch: {epoch} coordinatorEpoch: {coordinator} "
            f"currentTxnFirstOffset: {open_since} lastTimestamp: {timestamp}"
        )
        if last_offset >= 0:
            # A snapshot keeps only the last batch (SEQ-R2).
            first = last_sequence - delta if last_sequence >= delta else INT32_MAX - (delta - last_sequence) + 1
            line += (
                f" firstSequence: {first} lastSequence: {last_sequence} lastOffset: {last_offset} "
                f"offsetDelta: {delta} timestamp: {timestamp}"
            )
        yield line
