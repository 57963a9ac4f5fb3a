"""The lines of ``kbatch dump``: batches, records and index entries of logs, streams and side files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.cli import jsonlines, kafkatext
from kbatch.cli.block_digests import BlockDigests
from kbatch.cli.decoded_values import DecodedValues
from kbatch.cli.filters import Filters
from kbatch.cli.inputs import Input, base_offset_of, check_first_bytes, standard_input
from kbatch.cli.selection_flags import SelectionFlags
from kbatch.cli.terminal import counted, print_errors, write_lines
from kbatch.errors import KbatchError
from kbatch.escaping import escaped_json, printable
from kbatch.format import BatchStatus
from kbatch.log.committed import follow_transactions
from kbatch.log.files.indexes import stored_entries
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.files.transaction_index import read_transaction_index
from kbatch.log.gaps import SegmentEnd, SegmentGaps
from kbatch.log.key_lookup import KeyIndex, index_of_log
from kbatch.log.ranges import LogSelection, count_back, end_offset_after, seek, segments_within
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.stream import INCOMPLETE_END, decode_stream
from kbatch.table import RecordTable

__all__ = ["Listing"]

# The size of a table. Lines are formatted from one table at a time.
_DUMP_TABLE_BYTES = 8 << 20
_LISTED_PRODUCERS = 5
_CHUNK_BYTES = 1 << 20


class _Source(NamedTuple):
    """Where batches come from, a segment, or a stream or a live partition without one, and how they are decoded."""

    path: str
    topic: str | None
    partition: int | None
    options: DecodeOptions
    segment: Segment | None = None
    in_file: bool = True

    @property
    def place(self) -> str:
        return jsonlines.place_of(self.topic, self.partition, self.path if self.in_file else None)


@dataclass(kw_only=True)
class Listing:
    """One run over all inputs: its options, and the damage and gaps found so far."""

    selection: SelectionFlags
    records: bool
    kafka: bool
    data: bool
    control: bool
    tail: int | None
    producer: int | None
    # The number of records or batches that may still be listed.
    remaining: int | None
    max_shown: int | None
    decoded: DecodedValues | None = None
    # The directory of the key index.
    index: str | None = None
    # Digests in place of the records.
    digests: BlockDigests | None = None
    damaged: bool = False
    withheld: bool = False
    # By file: pairs of successive offsets that are not consecutive.
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        implied = (self.decoded, self.digests, self.tail)
        self.records = self.records or self.data or any(each is not None for each in implied)
        self._filters = Filters(self.selection, self.producer)
        self._index: KeyIndex | None = None
        self._is_filtered = self._filters.any or self.tail is not None
        self._options = DecodeOptions(
            isolation=self.selection.isolation,
            include_control=self.kafka or not self.records or self.control,
            # A listing of batches includes those with a wrong checksum; a listing of records omits their records.
            crc="mark" if self.kafka or not self.records else "verify",
            on_error="skip",
        )

    @property
    def needs_end(self) -> bool:
        """Whether what is listed depends on the end of a log."""
        return self.selection.counts_back or self.tail is not None

    def log(self, each: Input) -> None:
        """List the segments of a log."""
        self._index = index_of_log(self.index, each.segments) if self.selection.key else None
        options = self._within(each)
        start, stop = options.start_offset, options.stop_offset
        withheld = None
        if options.isolation == "read_committed":
            transactions = follow_transactions(each.segments, options, start_offset=start, stop_offset=stop)
            withheld = transactions._withheld_of_log()
            self._report_withheld(each.path, transactions.pending)
        for number, segment in segments_within(each.segments, start, stop):
            if self.remaining == 0:
                break
            if withheld is not None:
                options = replace(options, withheld=withheld.of_segment(segment.path))
            source = _Source(segment.path, *each.topic_partition, options, segment)
            self._write_head(source)
            begin, end = seek(segment, start, self.selection.start_timestamp), segment.size
            if stop is not None:
                end = segment.end_for_offset(stop)
            tables = self._tables(each.segments, number, options, begin, end)
            reached, batches_end = self._list(source, tables, begin)
            if stop is None and self.remaining != 0:
                self._write_invalid(source, segment.size - batches_end)
                self._report_tail(segment, reached)

    def stream(self, each: Input) -> None:
        """List the batches of standard input as they arrive."""
        source = _Source(each.path, *each.topic_partition, self._within(each))
        self._write_head(source)
        reached, batches_end = self._list(source, self._arriving(each.path, source.options))
        if self.remaining != 0:
            self._write_invalid(source, reached - batches_end)

    def live(self, consumer: Iterable[RecordTable]) -> None:
        """List the batches of live partitions as they are fetched."""
        for table in consumer:
            name = f"{table.topic}-{table.partition}"
            source = _Source(name, table.topic, table.partition, self._options, in_file=False)
            self._list(source, iter((table,)))
            if self.remaining == 0:
                break
            del table

    @property
    def read_options(self) -> dict[str, Any]:
        """The arguments of `kbatch.consume` for `live`."""
        chosen, options = self.selection, self._options
        columns = None if self.records or self._filters.by_record else ["offset"]
        return {
            "partitions": chosen.partitions,
            "columns": columns,
            "start_offset": chosen.start_offset,
            "stop_offset": chosen.stop_offset,
            "start_timestamp": chosen.start_timestamp,
            "stop_timestamp": chosen.stop_timestamp,
            "last": self.tail,
            # Other keys are chosen from the tables.
            "key": chosen.key[0] if len(chosen.key) == 1 else None,
            "isolation": options.isolation,
            "include_control": options.include_control,
            "crc": options.crc,
            "on_error": options.on_error,
        }

    def _arriving(self, path: str, options: DecodeOptions) -> Iterator[RecordTable]:
        """Decode standard input. An incomplete batch at its end is reported, and is not a loss."""
        file = standard_input()
        pending: list[tuple[int, int]] = []
        try:
            # Unlike readinto1, read1 does not wait for more than one read of a pipe.
            chunks = iter(lambda: file.read1(_CHUNK_BYTES), b"")
            first = next(chunks, b"")
            check_first_bytes(path, first)
            for table in decode_stream(
                chain([first], chunks),
                isolation=options.isolation,
                include_control=options.include_control,
                crc=options.crc,
                on_error=options.on_error,
                start_offset=options.start_offset,
                stop_offset=options.stop_offset,
                source=path,
                max_bytes=_DUMP_TABLE_BYTES,
            ):
                pending = table.pending
                losses = [loss for loss in table.losses if not loss.reason.startswith(INCOMPLETE_END)]
                for loss in table.losses[len(losses) :]:
                    self._warn(path, loss.position, f"{counted(loss.length, 'byte')} of an incomplete batch")
                yield table._with(losses=losses)
                del table
        except OSError as error:
            error.filename = "standard input"
            raise
        self._report_withheld(path, pending)

    def _within(self, each: Input) -> DecodeOptions:
        """Return the options with the offsets to list: negative ones count back from the end, as last records do."""
        start, stop = self.selection.start_offset, self.selection.stop_offset
        if not self.needs_end:
            return replace(self._options, start_offset=start, stop_offset=stop)
        segment = each.segments[-1]
        end = end_offset_after(segment, segment.last_batch()[0])
        first = each.log.start_checkpoint if each.log is not None else None
        start, stop = (
            count_back(offset, end, first) if offset is not None and offset < 0 else offset for offset in (start, stop)
        )
        options = replace(self._options, start_offset=start, stop_offset=stop)
        if self.tail is None:
            return options
        selection = LogSelection(each.segments, options, _DUMP_TABLE_BYTES, self._filters.rows, key_index=self._index)
        return replace(options, start_offset=selection.start_of_last(self.tail, end, self._filters.records))

    def _tables(
        self, segments: Sequence[Segment], number: int, options: DecodeOptions, begin: int, end: int
    ) -> Iterator[RecordTable]:
        """Decode a byte range of a segment; yield a gap of unknown cause after the segment as a loss."""
        segment, offsets_end = segments[number], SegmentEnd(segments[number].base_offset)
        parts = [(begin, end)]
        if self._index is not None and KeyIndex.serves(options, self._filters.rows):
            parts = self._index.ranges(segment, begin, end, self._filters.rows)
        for table in chain.from_iterable(read_tables(segment, *part, options, _DUMP_TABLE_BYTES) for part in parts):
            offsets_end.add(table)
            yield table
            del table
        # Where a segment is skipped because of its timestamps, its last offset is unknown.
        if end == segment.size and (self.selection.start_timestamp is None or begin < end):
            gaps = SegmentGaps(segments).after(number, offsets_end, options.start_offset, options.stop_offset)
            yield from (gap.as_table(options) for gap in gaps if not gap.compacted)

    def _list(self, source: _Source, tables: Iterable[RecordTable], begin: int = 0) -> tuple[int, int]:
        """List tables up to the last one or --max-records; return where they and their last batch end."""
        reached = batches_end = begin
        previous: int | None = None
        for table in tables:
            if len(table.batches):
                last = table.batches[-1]
                batches_end = max(batches_end, int(last["position"] + last["size"]))
            reached = max(reached, batches_end, *(loss.position + loss.length for loss in table.losses))
            errors = self._report_damage(source, table)
            chosen = self._filters.records(table)
            rows = self._filters.batches(chosen)
            if not source.in_file:
                # Brokers send them only with others.
                rows = rows[table.batches["record_count"][rows] != 0]
            if self.remaining is not None:
                chosen, rows = self._limit(chosen, rows)
            self._write(self._lines(source, chosen, rows, errors))
            if self.kafka and self.records and not self._is_filtered and len(table):
                previous = self._find_gaps(source.path, table, previous)
            if source.segment is None:
                sys.stdout.flush()
            if self.remaining == 0:
                break
            # Frees the table before the next one is decoded.
            del table, chosen
        return reached, batches_end

    def _limit(self, table: RecordTable, rows: npt.NDArray[np.intp]) -> tuple[RecordTable, npt.NDArray[np.intp]]:
        assert self.remaining is not None
        if not self.records:
            rows = rows[: self.remaining]
            self.remaining -= len(rows)
            return table, rows
        if len(table) >= self.remaining:
            table = table[: self.remaining]
            last = int(table.records["batch"][-1]) if len(table) else -1
            rows = rows[rows <= last]
        self.remaining -= len(table)
        return table, rows

    def _lines(
        self, source: _Source, table: RecordTable, rows: npt.NDArray[np.intp], errors: dict[int, str]
    ) -> Iterator[str]:
        if self.digests is not None:
            self.digests.add(source.topic, source.partition, source.path, table)
        elif self.kafka:
            holds = self._checksums(source, table)
            yield from kafkatext.lines(table, rows, holds, records=self.records, data=self.data)
        elif self.records:
            yield from jsonlines.record_lines(table, source.place, self.max_shown, self.decoded, in_file=source.in_file)
        else:
            framed = set(table.batches["position"].tolist())
            lost = [loss for loss in table.losses if loss.position not in framed]
            done = 0
            for loss in lost:
                upto = int(np.searchsorted(table.batches["position"][rows], loss.position))
                yield from jsonlines.batch_lines(table, rows[done:upto], source.place, errors, in_file=source.in_file)
                yield jsonlines.loss_line(loss, source.place, in_file=source.in_file)
                done = max(done, upto)
            yield from jsonlines.batch_lines(table, rows[done:], source.place, errors, in_file=source.in_file)

    def _checksums(self, source: _Source, table: RecordTable) -> npt.NDArray[np.bool_]:
        """Whether the checksum of each batch holds; it is unknown for a batch with another fault, and computed here."""
        status = table.batches["status"]
        holds: npt.NDArray[np.bool_] = status != BatchStatus.BAD_CRC
        for row in np.flatnonzero(~BatchStatus.sound(status) & holds).tolist():
            # The bytes of a stream are not kept.
            holds[row] = source.segment is not None and has_good_batch(source.segment, table.batches[row])
        return holds

    def _report_damage(self, source: _Source, table: RecordTable) -> dict[int, str]:
        """Report damage on standard error, and return it by position."""
        found: dict[int, tuple[str, int | None]] = {}
        for batch in table.batches[np.isin(table.batches["status"], (BatchStatus.BAD_CRC, BatchStatus.BAD_INNER_CRC))]:
            text = "a compressed message has a wrong checksum"
            if batch["status"] == BatchStatus.BAD_CRC:
                text = f"wrong checksum 0x{int(batch['crc']):08x}"
            found[int(batch["position"])] = text, int(batch["base_offset"])
        for loss in table.losses:
            # A gap has no bytes.
            size = f" ({counted(loss.length, 'byte')})" if loss.length else ""
            found[loss.position] = f"{loss.reason}{size}", loss.base_offset
        for position, (text, base_offset) in sorted(found.items()):
            where = position if source.in_file else None
            self._warn(source.path, where, text if base_offset is None else f"base offset {base_offset}: {text}")
            self.damaged = True
        return {position: text for position, (text, _) in found.items()}

    def _report_withheld(self, path: str, pending: Sequence[tuple[int, int]]) -> None:
        """Report open and undecided transactions, given as producer id and first offset."""
        if pending:
            first = pending[0][1]
            producers = ", ".join(str(producer) for producer, _ in pending[:_LISTED_PRODUCERS])
            more = ", ..." if len(pending) > _LISTED_PRODUCERS else ""
            count = counted(len(pending), "open or undecided transaction")
            print_errors(
                f"kbatch dump: {path}: records from offset {first} on are withheld: {count} "
                f"(producer {producers}{more})"
            )
            self.withheld = True

    def _write_head(self, source: _Source) -> None:
        if self.kafka:
            self._write(_head(source))

    def _write_invalid(self, source: _Source, size: int) -> None:
        if self.kafka and not self._is_filtered and size:
            name = source.path.rpartition("/")[2]
            self._write([f"Found {size} invalid bytes at the end of {printable(name)}"])

    def _report_tail(self, segment: Segment, reached: int) -> None:
        if reached < segment.size:
            with segment.open() as file:
                text, is_foreign = file.describe_tail(file.tail_at(reached))
            self._warn(segment.path, reached, text)
            self.damaged |= is_foreign

    def _find_gaps(self, path: str, table: RecordTable, previous: int | None) -> int:
        offsets = table.records["offset"]
        first = int(offsets[0])
        before = np.concatenate(([first - 1 if previous is None else previous], offsets[:-1]))
        at = np.flatnonzero(offsets != before + 1)
        if len(at):
            pairs = zip(before[at].tolist(), offsets[at].tolist(), strict=True)
            self.gaps.setdefault(path, []).extend(pairs)
        return int(offsets[-1])

    def print_digests(self) -> None:
        """Print the digests of all logs."""
        if self.digests is not None:
            self._write(self.digests.lines())

    def print_gaps(self) -> None:
        """Report missing offsets on standard error, as Kafka's tool does (DMP-7)."""
        for path, pairs in self.gaps.items():
            print_errors(f"Non-consecutive offsets in {path}")
            for before, after in pairs:
                print_errors(f"  {before} is followed by {after}")

    def side_file(self, each: Input) -> None:
        """List the entries of an index file or a snapshot."""
        if self.kafka:
            self._write([f"Dumping {printable(each.path)}"])
        try:
            entries = _entries(each)
        except KbatchError as error:
            if isinstance(error.__cause__, OSError):
                raise
            print_errors(f"kbatch dump: {error}", style="error")
            self.damaged = True
            return
        if not self.kafka:
            self._write(jsonlines.entry_lines(jsonlines.place_of(*each.topic_partition, each.path), entries))
        elif each.kind == "index" and not len(entries):
            self._write([f"{printable(each.path)} is empty."])
        else:
            self._write(_KAFKA_ENTRIES[each.kind](entries))

    def _write(self, lines: Iterable[str]) -> None:
        write_lines(lines, printable if self.kafka else escaped_json)

    def _warn(self, path: str, position: int | None, text: str) -> None:
        place = path if position is None else f"{path}: byte {position}"
        print_errors(f"kbatch dump: {place}: {text}", style="error")


_KAFKA_ENTRIES = {
    "index": kafkatext.index_lines,
    "timeindex": kafkatext.time_index_lines,
    "txnindex": kafkatext.transaction_index_lines,
    "snapshot": kafkatext.snapshot_lines,
}


def _entries(each: Input) -> npt.NDArray[np.void]:
    if each.kind == "snapshot":
        return read_producer_snapshot(each.path, storage=each.storage)
    if each.kind == "txnindex":
        return read_transaction_index(each.path, storage=each.storage)
    entries, _ = stored_entries(each.path, "index" if each.kind == "index" else "timeindex", each.storage)
    entries["offset"] += base_offset_of(each.path)
    return entries


def _head(source: _Source) -> list[str]:
    name = source.path.rpartition("/")[2]
    lines = [f"Dumping {printable(source.path)}"]
    if name == "bootstrap.checkpoint":
        return [*lines, "KRaft bootstrap snapshot"]
    if name.endswith(".checkpoint"):
        offset, _, epoch = name.removesuffix(".checkpoint").partition("-")
        if offset.isdecimal() and epoch.isdecimal():
            lines.append(f"Snapshot end offset: {int(offset)}, epoch: {int(epoch)}")
        return lines
    base_offset = None if source.segment is None else source.segment.base_offset
    return lines if base_offset is None else [*lines, f"Log starting offset: {base_offset}"]
