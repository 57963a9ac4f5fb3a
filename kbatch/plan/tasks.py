"""Reads the splits of a task as tables of bounded size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kbatch.errors import LogDirectoryError
from kbatch.format import Limits
from kbatch.log import Segment
from kbatch.log.gaps import SegmentEnd, SegmentGap, SegmentGaps
from kbatch.log.key_lookup import KeyIndex, index_directory, index_of_log
from kbatch.log.missing import is_gone, report_data_loss
from kbatch.log.reading import NOT_REACHED, TABLE_BYTES, lost_table, read_tables
from kbatch.log.row_filter import RowFilter, key_bytes
from kbatch.log.segment import check_order, last_offset, planned_segment
from kbatch.log.store.names import parse_segment_name
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.plan.split import Split
from kbatch.plan.watching import open_log
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.data import decoded_columns
from kbatch.table import RecordTable
from kbatch.tuning import KEY_TABLE_BYTES

__all__ = ["TableSize", "task_options", "task_tables"]


@dataclass(frozen=True, slots=True)
class TableSize:
    """The limits on the tables of a task.

    Attributes
    ----------
    max_bytes : int
        As for `kbatch.log.reading.read_tables`.
    is_strict : bool
        Whether `max_bytes` also limits large batches (`kbatch.read.decode_options.DecodeOptions`).
    limits : Limits or None
        Default is the limits in the options of the read.
    """

    max_bytes: int = TABLE_BYTES
    is_strict: bool = False
    limits: Limits | None = None


def task_options(options: ReadOptions) -> ReadOptions:
    """Return the options without those that only planning needs: bounds and partitions of 10^5 logs take megabytes."""
    return replace(options, starting=Bound(), ending=Bound(), assign=None, topics=None, partitions=None)


def task_tables(
    splits: Sequence[Split],
    options: ReadOptions,
    columns: tuple[str, ...] | None = None,
    gaps: list[SegmentGap] | None = None,
    size: TableSize = TableSize(),
    rows: RowFilter | None = None,
) -> Iterator[tuple[Split, RecordTable]]:
    """Decode the splits of a task one after the other, in tables of bounded size.

    With a row filter, the tables contain only matching records, but all batches and losses. After damage has
    stopped the read of a log with ``on_error="stop"``, its other splits are losses. If offsets are missing after a
    segment, an empty table follows its tables, with a loss unless compaction has removed the offsets.

    Parameters
    ----------
    splits : sequence of Split
    options : ReadOptions
    columns : tuple of str, optional
        The columns of the records that the caller uses, from `kbatch.records.kafka_columns.SPARK_COLUMNS`.
    gaps : list of SegmentGap, optional
        Missing offsets after a segment are appended to it before their table.
    size : TableSize
        Limits on the tables.
    rows : RowFilter, optional
        The records to select, instead of the records with ``options.key``.

    Yields
    ------
    Split, RecordTable
        The split, or the part of it that the key index selects.

    Raises
    ------
    LogDirectoryError
        If a segment was deleted after the read was planned, with ``fail_on_data_loss=True``; otherwise its records are
        a loss. With ``on_gap="raise"``, if offsets are missing for an unknown reason.
    """
    rows = RowFilter(keys=key_bytes(options.key)) if rows is None else rows
    if columns is not None:
        columns = tuple(dict.fromkeys((*columns, *rows.columns)))
    stopped: set[str] = set()
    indexes: dict[str, KeyIndex | None] = {}
    general = options
    for split in splits:
        options = general._for_topic(split.topic)
        segment = planned_segment(
            split.path,
            is_named=split.is_named,
            live=split.live,
            storage_options=options.storage,
            size=split.size,
        )
        if split.log in stopped:
            yield split, lost_table(segment, split.start, split.end, NOT_REACHED)
            continue
        position, reached = split.start, None
        end = SegmentEnd(segment.base_offset)
        try:
            decode = _decode_options(split, options, columns, size)
            if rows.keys and split.log not in indexes:
                indexes[split.log] = index_of_log(index_directory(options.index), [segment])
            index = indexes.get(split.log)
            parts = [(split.start, split.end)]
            if index is not None and KeyIndex.serves(decode, rows):
                # The first and the last batch show the offsets that were read.
                parts = index.ranges(segment, *parts[0], rows, with_ends=True)
            for position, stop in parts:
                part = split if len(parts) == 1 else replace(split, start=position, end=stop)
                for table in _part_tables(segment, position, stop, decode, options, size):
                    position += table.consumed
                    end.add(table)
                    if (last := last_offset(table.batches)) is not None:
                        reached = last
                    if options.on_error == "stop" and table.losses:
                        stopped.add(split.log)
                    yield part, rows.chosen(table)._with(topic=split.topic, partition=split.partition)
                    del table
        except LogDirectoryError as error:
            if not is_gone(error):
                raise
            yield split, lost_table(segment, position, split.end, _deleted(split, position, options))
            continue
        if split.log not in stopped:
            if split.end == split.size:
                check_order(split.path, reached, None, split.below)
            yield from _gap_tables(segment, split, end, options, gaps)


def _decode_options(
    split: Split, options: ReadOptions, columns: tuple[str, ...] | None, size: TableSize
) -> DecodeOptions:
    return DecodeOptions(
        include_control=options.include_control,
        crc=options.crc,
        on_error=options.on_error,
        start_offset=split.start_offset,
        stop_offset=split.stop_offset,
        limits=size.limits or Limits(max_decompressed_bytes=options.max_decompressed_bytes),
        withheld=split.withheld,
        columns=None if columns is None else decoded_columns(columns),
        is_strict=size.is_strict,
    )


def _part_tables(
    segment: Segment, start: int, end: int, decode: DecodeOptions, options: ReadOptions, size: TableSize
) -> Iterator[RecordTable]:
    # Small tables stay in the cache while few of their records are kept.
    max_bytes = size.max_bytes if options.key is None else min(size.max_bytes, KEY_TABLE_BYTES)
    return read_tables(segment, start, end, decode, max_bytes, splits=True)


def _gap_tables(
    segment: Segment, split: Split, end: SegmentEnd, options: ReadOptions, gaps: list[SegmentGap] | None
) -> Iterator[tuple[Split, RecordTable]]:
    """Yield an empty table for each gap after a split that ends with its segment."""
    stops = [each for each in (split.stop_offset, split.stable_offset, split.below) if each is not None]
    if split.end < split.size or end.missing(split.below, split.start_offset, min(stops, default=None)) is None:
        return
    log = open_log(split.log, options.storage)
    following = [] if log is None else [each for each in log.segments if (each.base_offset or 0) >= (split.below or 0)]
    for gap in SegmentGaps([segment, *following]).after(0, end, split.start_offset, min(stops)):
        if not gap.compacted and options.on_gap == "raise":
            raise gap.error(None if split.topic is None else f"{split.topic}-{split.partition}")
        if gaps is not None:
            gaps.append(gap)
        yield split, gap.as_table()


def _deleted(split: Split, position: int, options: ReadOptions) -> str:
    """Return the reason of the loss if a segment no longer exists; raise if the options do not allow this."""
    name = split.log if split.topic is None else f"{split.topic}-{split.partition}"
    base = parse_segment_name(os.path.basename(split.path))
    first = max(base or 0, split.start_offset or 0)
    ends = [each for each in (split.below, split.stop_offset) if each is not None]
    asked = f"the records from byte {position} to {split.end}, within offsets {first} to "
    asked += f"{min(ends) - 1}" if ends else "the end of the log"
    log = open_log(split.log, options.storage)
    if log is None:
        available = "the log no longer exists"
    else:
        first = log.start_offset if log.segments[0].base_offset is None else log.segments[0].base_offset
        available = f"the first offset available is now {first} and the last one {log.end_offset - 1}"
    reason = f"{split.path} was deleted after the read was planned: {asked}, were not read; {available}"
    if options.fail_on_data_loss:
        report_data_loss(f"{name}: {reason}", fails=True)
    return reason
