"""Conversion of a `RecordTable` to the oracle's records, and the check that every byte is accounted for."""

from __future__ import annotations

import bisect
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from typing_extensions import Buffer

import kbatch
from kbatch.batches.framing import byte_array
from kbatch.read.committed import decode_committed
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.read.reader import BatchReader
from kbatch.read.windows import BufferWindows

# For tests that decode prefixes of batches.
short_inputs = pytest.mark.filterwarnings("ignore:decode. .*too few to recognize:RuntimeWarning")


def first_table(data: npt.NDArray[np.uint8], options: DecodeOptions, max_bytes: int) -> kbatch.RecordTable:
    """Decode the first table of about `max_bytes` from a buffer."""
    return BatchReader(options).read(BufferWindows(data), max_bytes=max_bytes)


def decode_by_threads(data: Buffer, *, threads: int, **options: Any) -> kbatch.RecordTable:
    """Decode as `kbatch.decode` does, but always with the given number of threads, also for small inputs."""
    array = byte_array(data)
    chosen = DecodeOptions(threads=threads, thread_bytes=1, **options)
    if chosen.isolation == "read_uncommitted":
        return decode_part(array, chosen)
    return decode_committed(array, chosen, None)


def batches_of(table: kbatch.RecordTable) -> list[oracle.Batch]:
    """Return the batches with their records, read from the columns; sequences are computed by SEQ-R4."""
    data = table.data
    headers: dict[int, list[tuple[bytes, bytes | None]]] = {}

    def cut(position: int, length: int) -> bytes | None:
        return None if length < 0 else data[position : position + length].tobytes()

    for record, key_at, value_at, key_len, value_len in table.headers.tolist():
        key = cut(key_at, key_len)
        assert key is not None
        headers.setdefault(record, []).append((key, cut(value_at, value_len)))
    rows: dict[int, list[oracle.Record]] = {}
    columns = ["offset", "timestamp", "key_pos", "key_len", "value_pos", "value_len", "header_count", "batch"]
    for i, values in enumerate(zip(*(table.records[name].tolist() for name in columns), strict=True)):
        offset, timestamp, key_pos, key_len, value_pos, value_len, header_count, batch = values
        base_offset, base_sequence = (int(table.batches[name][batch]) for name in ("base_offset", "base_sequence"))
        record_headers = tuple(headers.get(i, ()))
        assert len(record_headers) == header_count
        rows.setdefault(batch, []).append(
            oracle.Record(
                offset,
                timestamp,
                oracle.sequence(base_sequence, oracle.wrap(offset - base_offset, 32)),
                cut(key_pos, key_len),
                cut(value_pos, value_len),
                record_headers,
            )
        )
    result = []
    first = 0
    for i, row in enumerate(table.batches):
        records = tuple(rows.get(i, ()))
        assert int(row["first_record"]) == first
        first += len(records)
        fields = {name: int(row[name]) for name in oracle.Batch._fields if name != "records"}
        result.append(oracle.Batch(**fields, records=records))
    assert first == len(table)
    return result


def records_of(table: kbatch.RecordTable) -> list[oracle.Record]:
    return [record for batch in batches_of(table) for record in batch.records]


def offsets_of(table: kbatch.RecordTable) -> list[int]:
    return table.records["offset"].tolist()


def lost(table: kbatch.RecordTable) -> list[tuple[int, int]]:
    """Return the lost ranges as (first byte, byte after the last), neighbours merged."""
    ranges: list[tuple[int, int]] = []
    for loss in table.losses:
        assert loss.length > 0
        assert loss.reason
        start, end = loss.position, loss.position + loss.length
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def assert_accounted(table: kbatch.RecordTable, size: int) -> None:
    """Check that each byte up to `consumed` is in one good batch or one loss, and that bad batches have no records."""
    lost_ranges = [(loss.position, loss.position + loss.length) for loss in table.losses]
    ranges = list(lost_ranges)
    counts = np.bincount(table.records["batch"], minlength=len(table.batches))
    for i, row in enumerate(table.batches):
        start = int(row["position"])
        if row["status"] in (kbatch.BatchStatus.OK, kbatch.BatchStatus.BAD_INNER_CRC):
            ranges.append((start, start + int(row["size"])))
        else:
            assert counts[i] == 0
            # Losses ascend and do not overlap.
            a, b = lost_ranges[bisect.bisect_right(lost_ranges, (start, sys.maxsize)) - 1]
            assert a <= start < b
    at = 0
    for start, end in sorted(ranges):
        assert start == at, f"bytes {at} to {start} are neither read nor lost (or twice)"
        at = end
    assert at == table.consumed
    assert table.consumed <= size
