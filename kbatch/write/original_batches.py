"""Decoded tables -> the batches that they were decoded from."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.codecs import parse_codec
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    NO_TIMESTAMP,
    RECORD_DTYPE,
    BatchStatus,
    Codec,
)
from kbatch.kernels.sizes import measure_batches
from kbatch.kernels.source import Column, RecordColumns
from kbatch.options import CodecLevel, CodecName
from kbatch.public_names import public_in
from kbatch.table import RecordTable
from kbatch.write.batch_layout import BatchRows
from kbatch.write.composing import compose, raise_fault

__all__ = ["encode_table", "table_records"]


@public_in("kbatch")
def encode_table(
    table: RecordTable,
    *,
    codec: Codec | CodecName | CodecLevel | None = None,
    omitted: Literal["raise", "drop"] = "raise",
) -> bytes:
    """Encode decoded batches as they were: with every field of their headers, gaps of offsets, and empty batches.

    Uncompressed batches as Kafka writes them are reproduced byte for byte; compressed payloads are the same after
    decompression. Where the format leaves a choice, the batches are as Kafka writes them: lengths are in their shortest
    form, the unused attributes of records and the timestamp deltas hidden by log-append time are 0, and empty batches
    have no codec (EMP-R3).

    The batches of a slice or selection contain its records and keep their fields, as after compaction (OFF-R4); batches
    without selected records are not written.

    Parameters
    ----------
    table : RecordTable
        It must contain the control batches of the input: decode with ``include_control=True``.
    codec : str or kbatch.Codec, optional
        As for `encode`; for all batches except control batches (ATT-R5). Default is the codec of each batch.
    omitted : {"raise", "drop"}
        How to treat batches that the decode omitted: control batches, batches of aborted or pending transactions, and
        damaged ones.

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        If the table has only some columns; if the decode left out batches, unless `omitted` is "drop"; if records come
        from a batch with a bad checksum, which a new one would hide; if the magic does not allow the codec or the
        timestamps.

    References
    ----------
    Rules such as EMP-R3 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> data = kbatch.encode([b"a", b"b"], leader_epoch=3, offsets=[5, 9], timestamps=1000)
    >>> kbatch.encode(kbatch.decode(data)) == data
    True
    """
    check_types(encode_table, locals())
    level = None
    if codec is not None:
        chosen, level = parse_codec(codec)
    if omitted not in ("raise", "drop"):
        raise ValueError(f"omitted must be 'raise' or 'drop', got {omitted!r}")
    rows = table.records
    if rows.dtype != RECORD_DTYPE:
        raise ValueError("the table has only some of its columns; decode all of them to encode them again")
    batches = _kept_batches(table, omitted)
    legacy = batches["magic"] < 2
    first, counts = batches["first_record"], batches["record_count"]
    if legacy.any():
        # A message set has no header to keep these in.
        batches["base_offset"][legacy] = rows["offset"][first[legacy]]
        batches["last_offset"][legacy] = rows["offset"][(first + counts - 1)[legacy]]
        _check_message_times(batches[legacy], rows["timestamp"])
    attributes = batches["attributes"]
    if codec is not None:
        change = attributes & ATTRIBUTE_CONTROL == 0
        change |= legacy  # which have no control bit
        attributes[change] = attributes[change] & ~ATTRIBUTE_CODEC | int(chosen)
    attributes[counts == 0] &= ~ATTRIBUTE_CODEC
    if (legacy & (attributes & ATTRIBUTE_CODEC == Codec.ZSTD)).any():
        raise ValueError("zstd needs magic 2, got batches of magic 0 or 1")
    times = rows["timestamp"]
    appended = ~legacy & (attributes & ATTRIBUTE_LOG_APPEND_TIME != 0)
    if appended.any():
        times = times.copy()
        times[_record_rows(batches[appended])] = np.repeat(batches["base_timestamp"][appended], counts[appended])
    records = table_records(table, timestamps=times)
    _, row, fault, found = measure_batches(records, batches)
    raise_fault(fault, row, found)
    return compose(records, batches, level)


def _check_message_times(batches: BatchRows, times: npt.NDArray[np.int64]) -> None:
    """Raise for timestamps that the magic of the surrounding compressed message cannot express (LEG-R16)."""
    counts = batches["record_count"]
    times = times[_record_rows(batches)]
    without = np.repeat(batches["magic"] == 0, counts)
    if (times[without] != NO_TIMESTAMP).any():
        raise ValueError("a compressed message of magic 0 cannot keep the timestamps of messages of magic 1 in it")
    appended = np.repeat((batches["magic"] == 1) & (batches["attributes"] & ATTRIBUTE_LOG_APPEND_TIME != 0), counts)
    if (times != np.repeat(batches["max_timestamp"], counts))[appended].any():
        raise ValueError(
            "a compressed message with an append time cannot keep messages of magic 0, which have no timestamps"
        )


def _record_rows(batches: BatchRows) -> npt.NDArray[np.int64]:
    """Return the rows of the records of batches."""
    counts = batches["record_count"]
    ends = np.cumsum(counts, dtype=np.int64)
    return np.repeat(batches["first_record"] - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


def _kept_batches(table: RecordTable, omitted: str) -> BatchRows:
    """Return the batches to write; `first_record` and `record_count` refer to the rows of the table."""
    batches = table.batches.copy()
    here = np.bincount(table.records["batch"], minlength=len(batches))
    status = batches["status"]
    tainted = (status != BatchStatus.OK) & (here > 0)
    if tainted.any():
        where = int(np.argmax(tainted))
        raise ValueError(
            f"byte {batches['position'][where]}, base offset {batches['base_offset'][where]}: the checksum is wrong "
            f"({BatchStatus(int(status[where])).name}), and a new one would hide that; leave these records out"
        )
    empty = (batches["record_count"] == 0) & (batches["magic"] == 2) & (status == BatchStatus.OK)
    control = (batches["magic"] == 2) & (batches["attributes"] & ATTRIBUTE_CONTROL != 0)
    missing = (here == 0) & ~empty & (control | (status != BatchStatus.OK))
    if omitted == "raise":
        if table.losses:
            loss = table.losses[0]
            raise ValueError(
                f"byte {loss.position}: the decode lost {loss.length} bytes ({loss.reason}); omitted='drop'"
            )
        if missing.any():
            where = int(np.argmax(missing))
            what = BatchStatus(int(status[where])).name
            raise ValueError(
                f"byte {batches['position'][where]}, base offset {batches['base_offset'][where]}: the decode left out "
                + (
                    "this control batch; decode with include_control=True, or give omitted='drop'"
                    if status[where] == BatchStatus.OK
                    else f"this batch ({what}); omitted='drop' drops such batches"
                )
            )
    batches["record_count"] = here
    kept: BatchRows = batches[(here > 0) | empty]
    return kept


def table_records(
    table: RecordTable,
    *,
    offsets: npt.NDArray[np.int64] | None = None,
    timestamps: npt.NDArray[np.int64] | None = None,
) -> RecordColumns:
    """Return the columns of all records of a table, with its offsets and timestamps replaced if given."""
    rows = table.records
    keys, values = Column(), Column()
    keys.add_slices(rows["key_pos"], rows["key_len"], table.data)
    values.add_slices(rows["value_pos"], rows["value_len"], table.data)
    columns: dict[str, Any] = {}
    headers = table.headers
    if len(headers):
        header_keys, header_values = Column(), Column()
        header_keys.add_slices(headers["key_pos"], headers["key_len"], table.data)
        header_values.add_slices(headers["value_pos"], headers["value_len"], table.data)
        counts = rows["header_count"]
        columns = {
            "header_first": np.cumsum(counts, dtype=np.int64) - counts,
            "header_count": counts,
            "header_keys": header_keys,
            "header_values": header_values,
        }
    return RecordColumns(
        values,
        keys,
        offsets=rows["offset"] if offsets is None else offsets,
        timestamps=rows["timestamp"] if timestamps is None else timestamps,
        **columns,
    )
