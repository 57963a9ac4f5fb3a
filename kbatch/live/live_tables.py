"""The tables of a live read: batches of responses are decoded as those of a log, and rows are chosen."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator, Mapping
from dataclasses import replace

from kbatch.live.cluster import Cluster, PartitionKey
from kbatch.live.fetching import NO_END, RESPONSES, FetchedBatches, FetchLimits, PartitionFetch
from kbatch.live.live_partitions import LivePartition, resolved_bounds
from kbatch.live.live_read import LiveRead
from kbatch.log.conversions import last_rows, warn_if_after_end
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.row_filter import RowFilter
from kbatch.read.committed import decide
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_tables
from kbatch.table import RecordTable

__all__ = ["LiveTables"]

# The smallest response that is requested, however small the memory.
_MIN_RESPONSE = 64 << 10
# Larger responses are not faster, and the first one arrives later.
_MAX_RESPONSE = 64 << 20
# The last records are first searched among this number of offsets, then among four times as many.
_SEARCHED_OFFSETS = 1024


class LiveTables:
    """The records of partitions between their bounds.

    Parameters
    ----------
    cluster : Cluster
        It is closed with this object.
    logs : list of LivePartition
    arguments : ReadArguments
        With `max_bytes` for everything: half of it is for responses, and a quarter for a table.
    watch : callable, optional
        Given the partitions that are read, returns those that are new. With it, the read follows and has no end.
    """

    def __init__(
        self,
        cluster: Cluster,
        logs: list[LivePartition],
        arguments: ReadArguments,
        watch: Callable[[Container[PartitionKey]], list[LivePartition]] | None = None,
    ) -> None:
        self._watch = watch
        self._cluster = cluster
        self._logs = logs
        self._arguments = arguments
        self._bounds = arguments.bounds(logs)
        isolation = arguments.decode.isolation
        offsets = resolved_bounds(cluster, logs, self._bounds, isolation)
        self._by_key = {(log.metadata.name, log.number): log for log in logs}
        self._rows = {key: arguments.rows(*bounds) for key, bounds in zip(self._by_key, self._bounds, strict=True)}
        self.ranges = dict(zip(self._by_key, offsets, strict=True))
        needed = dict.fromkeys(name for rows in self._rows.values() for name in rows.columns)
        self._selected = arguments.decode.table_columns
        self._options = arguments.decode
        if self._selected is not None and needed:
            # Rows are chosen by these columns, so they are decoded even if the table does not have them.
            self._options = replace(self._options, columns=tuple(dict.fromkeys((*self._selected, *needed))))
        self._reads: list[LiveRead] = []

    @property
    def follows(self) -> bool:
        """Whether the read has no end."""
        return self._watch is not None

    def close(self) -> None:
        """End the read, and close all connections."""
        for read in self._reads:
            read.close()
        self._cluster.close()

    def tables(self) -> Generator[RecordTable, None, None]:
        """Yield the tables that have records or losses, and close the connections at the end.

        Warns
        -----
        RuntimeWarning
            If there are no records because the start is relative to now.
        """
        last = self._arguments.last
        is_empty = True
        try:
            if last is not None:
                for table in self._last(last):
                    is_empty = is_empty and not len(table)
                    yield table
                    del table
            if last is None or self._watch is not None:
                for table in self._within(self._rest(last is not None), self._watch is not None):
                    is_empty = is_empty and not len(table)
                    yield table
                    del table
            if is_empty:
                warn_if_after_end(self._logs, self._bounds)
        finally:
            self.close()

    def _rest(self, is_after: bool) -> Mapping[PartitionKey, tuple[int, int]]:
        """Return the ranges to read, or what follows them, without their ends if the read follows."""
        if self._watch is None:
            return self.ranges
        return {key: (stop if is_after else start, NO_END) for key, (start, stop) in self.ranges.items()}

    def _new_fetches(self) -> list[PartitionFetch]:
        """Return the partitions that were made during the read, from their beginning."""
        assert self._watch is not None
        found = []
        for log in self._watch(self._by_key):
            key = (log.metadata.name, log.number)
            self._logs.append(log)
            self._by_key[key] = log
            self._rows[key] = RowFilter(keys=self._arguments.keys)
            self.ranges[key] = (log.start_offset, log.start_offset)
            found.append(PartitionFetch(*key, log.metadata.id, log.start_offset, NO_END, may_begin_later=True))
        return found

    def _within(self, ranges: Mapping[PartitionKey, tuple[int, int]], follows: bool = False) -> Iterator[RecordTable]:
        """Yield the tables between offsets."""
        fetches = []
        for key, (start, stop) in ranges.items():
            log = self._by_key[key]
            is_first = start <= log.start_offset
            fetches.append(PartitionFetch(*key, log.metadata.id, start, stop, may_begin_later=is_first))
        watch = self._new_fetches if follows else None
        read = LiveRead(self._cluster, fetches, self._sizes, self._options, watch)
        self._reads.append(read)
        for batches in read.batches():
            if batches.fetch.is_stopped:
                continue
            yield from self._decoded(batches)
            del batches
        read.close()
        self._reads.remove(read)

    @property
    def _sizes(self) -> FetchLimits:
        settings = self._cluster.settings
        leaders = {leader.broker for log in self._logs for leader in log.metadata.partitions.values()}
        size = max(self._arguments.max_bytes // 2 // (RESPONSES * max(len(leaders), 1)), _MIN_RESPONSE)
        size = min(size, _MAX_RESPONSE)
        return FetchLimits(
            size if settings.fetch_max_bytes is None else settings.fetch_max_bytes,
            settings.max_partition_fetch_bytes,
            settings.fetch_min_bytes,
            settings.fetch_max_wait_ms,
            settings.default_api_timeout_ms / 1000,
        )

    def _decoded(self, batches: FetchedBatches) -> Iterator[RecordTable]:
        """Decode the batches of a response."""
        fetch = batches.fetch
        stop = None if fetch.stop == NO_END else fetch.stop
        options = replace(self._options, start_offset=batches.start, stop_offset=stop)
        # A broker lists no transactions if none was aborted; markers would withhold those that end in a later response.
        decided: DecodeOptions = decide(batches.data, options, batches.aborted or [])[0]
        source = f"broker {batches.broker}, {fetch.name}"
        rows: RowFilter = self._rows[fetch.topic, fetch.partition]
        made = decode_tables(batches.data, decided, source=source, max_bytes=max(self._arguments.max_bytes // 4, 1))
        for table in made:
            has_losses = bool(table.losses)
            if len(table) or has_losses:
                chosen = rows.chosen(table._with(topic=fetch.topic, partition=fetch.partition))
                del table
                if len(chosen) or has_losses:
                    yield chosen if self._selected is None or not rows.columns else chosen.select(self._selected)
                del chosen
            if has_losses and options.on_error == "stop":
                fetch.is_stopped = True
                return

    def _last(self, count: int) -> Iterator[RecordTable]:
        """Yield the last `count` records of each partition, whose tables are searched from the end."""
        if count == 0:
            return
        found: dict[PartitionKey, list[RecordTable]] = {key: [] for key in self.ranges}
        rest = dict.fromkeys(self.ranges, count)
        stops = {key: stop for key, (start, stop) in self.ranges.items() if start < stop}
        span = max(count, _SEARCHED_OFFSETS)
        while stops:
            searched = {key: (max(self.ranges[key][0], stop - span), stop) for key, stop in stops.items()}
            tables: dict[PartitionKey, list[RecordTable]] = {key: [] for key in searched}
            for table in self._within(searched):
                assert table.topic is not None
                assert table.partition is not None
                tables[table.topic, table.partition].append(table)
            for key, each in tables.items():
                kept = list(last_rows(each, rest[key]))
                rest[key] -= sum(map(len, kept))
                found[key][:0] = kept
            stops = {key: start for key, (start, _) in searched.items() if rest[key] and start > self.ranges[key][0]}
            span *= 4
        for key in self.ranges:
            yield from (table for table in found[key] if len(table) or table.losses)
