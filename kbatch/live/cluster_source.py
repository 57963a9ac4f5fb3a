"""A cluster as the source of a scan: partitions are planned as ranges of offsets, and read one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from kbatch.arguments import check_types
from kbatch.batches.framing import max_entry_size, scan_part
from kbatch.bounds import Bound
from kbatch.errors import LogDirectoryError
from kbatch.live.cluster import Cluster, PartitionKey
from kbatch.live.counters import ReadCounters
from kbatch.live.fetch_state import RESPONSES, FetchedBatches, FetchLimits, PartitionFetch
from kbatch.live.fetched_tables import decided_options, fetched_tables, tables_of_part
from kbatch.live.live_options import LiveOptions
from kbatch.live.live_partitions import LivePartition, chosen_partitions, resolved_bounds
from kbatch.live.live_read import LiveRead, ReadPolicy
from kbatch.live.live_sampling import sample_partitions
from kbatch.live.live_tables import LiveTables
from kbatch.live.origins import OriginCounters, ReadOrigin
from kbatch.live.settings import ClientSettings
from kbatch.live.transport import TransportFactory, check_transport
from kbatch.log.counting import adjacent_spans, decided_by_headers
from kbatch.log.discovery import root_list
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.selection import Selection
from kbatch.log.source import Excludes, RangeRequest, ReadAhead
from kbatch.log.store.storage import is_cluster_url, locate
from kbatch.options import On
from kbatch.public_names import public_in
from kbatch.quantities import largest, smallest
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.data import decoded_columns
from kbatch.table import RecordTable

__all__ = ["ClusterSource", "PlannedOffsets"]

# The size of the first response of a read; each later one is four times as large. A consumer may need few
# records.
_FIRST_RESPONSE = 256 << 10
_SMALLEST_FETCH = 64 << 10
_LARGEST_FETCH = 16 << 20
# A response has at most this fraction of `max_bytes`: three are in memory, and the records may be compressed.
_RESPONSE_PART = 8
# A read from the end begins with this number of offsets, then reads about four times as many bytes, up to a limit.
_LAST_OFFSETS = 64
_SPAN_BYTES = 16 << 20
# The number of partitions that are planned ahead.
_PLANNED_PARTITIONS = 2


@public_in("kbatch.live")
class ClusterSource:
    """The topics of a cluster as a source for `kbatch.scan_logs`, with settings that a URL cannot contain.

    Each read asks the cluster for its partitions and their offsets, opens its own connections, and closes them when it
    ends.

    Parameters
    ----------
    settings : ClientSettings
    history : str or path, or iterable of them, optional
        Copies of the logs, by path or URL: log directories of brokers, backups, and tiered storage. Closed segments are
        read from there, and only the rest is fetched. Segments that are missing, damaged, or from another log are
        fetched too, with a RuntimeWarning. See the page "Backfill from tier or disk".
    include_expired : bool
        Whether to return records of the history before the cluster's log start offset, which the cluster has deleted.
    storage_options : mapping of str to str, optional
        For URLs of the history, as for `kbatch.find_logs`.
    transport : TransportFactory, optional
        Opens connections; by default, sockets.

    Raises
    ------
    LogDirectoryError
        If a local path of the history does not exist.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.live import ClientSettings, ClusterSource
    >>> source = ClusterSource(ClientSettings.of(bootstrap_servers="localhost:9092", client_id="report"))
    >>> source
    <ClusterSource: kafka://localhost:9092>
    >>> kbatch.scan_logs(source, topics="orders").count()  # doctest: +SKIP
    1200
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        history: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        include_expired: bool = False,
        storage_options: Mapping[str, str] | None = None,
        transport: TransportFactory | None = None,
    ) -> None:
        check_types(ClusterSource.__init__, locals())
        check_transport(transport)
        self._settings = settings
        self._transport = transport
        self._history = _history_paths(history, storage_options)
        if not self._history and (include_expired or storage_options is not None):
            name = "include_expired" if include_expired else "storage_options"
            raise ValueError(f"{name} belongs to history, which is not given")
        self._include_expired = include_expired
        self._storage_options = dict(storage_options or {})
        self._origins = OriginCounters()

    def __repr__(self) -> str:
        return f"<ClusterSource: {self.describe()}>"

    @property
    def history(self) -> tuple[str, ...]:
        """The paths and URLs of the history."""
        return self._history

    @property
    def include_expired(self) -> bool:
        """Whether records that the cluster has deleted are returned."""
        return self._include_expired

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of the URLs of the history."""
        return dict(self._storage_options)

    @property
    def origins(self) -> tuple[ReadOrigin, ...]:
        """The records and bytes that reads of this source with a history have returned so far, by path or cluster.

        Records that were read ahead of a consumer that stopped are included.
        """
        return self._origins.origins()

    def open(self, arguments: ReadArguments) -> _OpenCluster:
        """Return the cluster for one read, called by scans; scans add the history themselves."""
        check_types(ClusterSource.open, locals())
        return _OpenCluster(self._connected(), arguments)

    def _connected(self) -> Cluster:
        """Return the cluster; the caller closes it."""
        return Cluster(self._settings, transport=self._transport)

    @property
    def url(self) -> str:
        """The URL of the cluster, without settings."""
        return f"kafka://{','.join(map(str, self._settings.bootstrap_servers))}"

    def describe(self) -> str:
        """Return the URL, without settings, and the paths of the history."""
        return f"{self.url} with history {', '.join(self._history)}" if self._history else self.url


def _history_paths(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None, options: Mapping[str, str] | None
) -> tuple[str, ...]:
    paths = [] if given is None else [os.fspath(path) for path in root_list(given, "history")]
    for path in paths:
        if is_cluster_url(path):
            raise LogDirectoryError(f"{path}: history needs paths of log directories or tiered storage", source=path)
        storage, text = locate(path, options)
        if not storage.remote and storage.find(text) is None:
            raise LogDirectoryError(f"{text}: no such directory, given as history", source=text)
    return tuple(dict.fromkeys(paths))


@dataclass(frozen=True)
class PlannedOffsets:
    """The offsets that a scan reads of a partition; `stop` is exclusive.

    Attributes
    ----------
    request : RangeRequest
    start, stop : int
    is_after_files : bool
        Whether the records before this range were read from files, so that no offsets may be missing in between.
    last_epoch : int
        The leader epoch of the batch before this range in the files, or -1.
    """

    request: RangeRequest
    start: int
    stop: int
    is_after_files: bool = False
    last_epoch: int = -1

    @property
    def log(self) -> LivePartition:
        """The partition."""
        log: LivePartition = self.request.log
        return log

    def fetch(self, start: int, stop: int, size: int) -> PartitionFetch:
        """Return the fetches of the range; `size` is the size of the first response in bytes."""
        log = self.log
        return PartitionFetch(
            log.metadata.name,
            log.number,
            log.metadata.id,
            start,
            stop,
            last_epoch=self.last_epoch if start == self.start else -1,
            may_begin_later=start <= log.start_offset and not self.is_after_files,
            soft_bytes=size,
        )


@dataclass
class _Span:
    """A task that reads a part of a range, with the number of bytes that it has read."""

    start: int
    stop: int
    size: int = 0


class _InOrder:
    """Adds the partitions of a read one after the other (`kbatch.live.live_read.PartitionChanges`)."""

    follows = False

    def __init__(self, planned: Iterable[PlannedOffsets]) -> None:
        self._planned = iter(planned)
        self._next: PlannedOffsets | None = None
        self._fetch: PartitionFetch | None = None
        self.current: PlannedOffsets | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all partitions have been added."""
        if self._next is None:
            self._next = next((each for each in self._planned if each.start < each.stop), None)
        return self._next is None

    def poll(self, read: LiveRead) -> None:
        """Add the next partition if the previous one is read to its end."""
        if read.unfinished or self.is_complete:
            return
        assert self._next is not None
        self.current, self._next = self._next, None
        # Responses continue to grow.
        size = _FIRST_RESPONSE if self._fetch is None else self._fetch.soft_bytes
        self._fetch = self.current.fetch(self.current.start, self.current.stop, size)
        read.add([self._fetch], self.current.log.metadata)


class _OpenCluster:
    """A `kbatch.log.source.OpenSource`: a cluster with the connections of one request of records."""

    def __init__(self, cluster: Cluster, arguments: ReadArguments) -> None:
        self._cluster = cluster
        self._arguments = arguments
        self._open: list[LiveRead | LiveTables] = []
        self._chosen_logs: Sequence[LivePartition] = ()
        self._lock = threading.Lock()
        self._offsets_since: dict[int, dict[PartitionKey, int | None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for read in list(self._open):
            read.close()
        self._cluster.close()

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[LivePartition]:
        isolation = self._arguments.decode.isolation
        self._chosen_logs = chosen_partitions(
            self._cluster, selection.topics, selection.partitions, isolation, excludes=excludes
        )
        return self._chosen_logs

    # -- plans

    def plan(self, request: RangeRequest) -> PlannedOffsets:
        """Look up the offsets of a request.

        Raises
        ------
        BrokerError, AuthenticationError
        """
        last = self._arguments.last
        if request.is_empty or last == 0:
            return PlannedOffsets(request, 0, 0)
        log, isolation = request.log, self._arguments.decode.isolation
        bounds = (request.start._replace(timestamp=None), request.stop)
        [(start, stop)] = resolved_bounds(self._cluster, [log], [bounds], isolation)
        start = self._since(log, request.start.timestamp, start, stop)
        if last is not None:
            start = self._first_of_last(request, start, stop, last)
        low, high = request.pruning.offset.low, request.pruning.offset.high
        stop = smallest(stop, None if high is None else high + 1) or 0
        # With "stop", the read must see the damage at which it stops.
        if self._arguments.decode.on_error != "stop":
            start = self._since(log, request.pruning.since, largest(start, low) or 0, stop)
        return PlannedOffsets(request, start, stop)

    def _since(self, log: LivePartition, timestamp: int | None, start: int, stop: int) -> int:
        """Return the first offset of a range that begins at a timestamp."""
        # A record without a timestamp has -1, which a broker does not look up.
        if timestamp is None or timestamp < 0 or start >= stop:
            return start
        with self._lock:
            if timestamp not in self._offsets_since:
                # One request for each leader, and not one for each partition.
                wanted: dict[PartitionKey, int] = {
                    (each.metadata.name, each.number): timestamp for each in self._chosen_logs
                }
                isolation = self._arguments.decode.isolation
                self._offsets_since[timestamp] = self._cluster.offsets(wanted, isolation=isolation)
            found = self._offsets_since[timestamp][log.metadata.name, log.number]
        return stop if found is None else max(start, found)

    def _first_of_last(self, request: RangeRequest, start: int, stop: int, count: int) -> int:
        """Return the offset of the first of the last records that the arguments select."""
        arguments = replace(
            self._arguments.replaced(columns=("offset",)),
            start=Bound(offset=start, timestamp=request.start.timestamp),
            end=Bound(offset=stop, timestamp=request.stop.timestamp),
        )
        tables = LiveTables(self._cluster, [request.log], arguments, LiveOptions(), ReadCounters())
        self._open.append(tables)
        found = [int(table.records["offset"][0]) for table in tables._last(count) if len(table)]
        return min(found, default=stop)

    # -- tables

    def ahead(self, logs: Sequence[LivePartition], *, reverse: bool) -> ReadAhead:
        threads = self._arguments.decode.threads
        # A span from the end depends on the size of the previous one, and with "stop" the end of the read on damage.
        is_serial = reverse or self._arguments.decode.on_error == "stop"
        # Another response must be received while tasks are decoded.
        return ReadAhead(threads, _PLANNED_PARTITIONS, 1 if is_serial else min(threads + 1, RESPONSES - 1))

    def tasks(self, planned: Iterable[PlannedOffsets], *, reverse: bool) -> Iterator[tuple[PlannedOffsets, Any]]:
        """Yield the batches of each response, or spans of offsets from the end for tasks to fetch."""
        if reverse:
            yield from self._spans(planned)
            return
        for each, batches in self._batches(planned):
            # The memory of the response is free when its last table has been taken.
            if batches.slot is not None:
                batches.slot.hold()
            yield each, batches
            del batches

    def _batches(self, planned: Iterable[PlannedOffsets]) -> Iterator[tuple[PlannedOffsets, FetchedBatches]]:
        order = _InOrder(planned)
        read = self._read([], self._arguments.decode, order)
        self._open.append(read)
        for batches in read.batches():
            if not batches.fetch.is_stopped:
                assert order.current is not None
                yield order.current, batches
            del batches
        read.close()
        self._open.remove(read)

    def _read(
        self, fetches: Sequence[PartitionFetch], options: DecodeOptions, changes: _InOrder | None = None
    ) -> LiveRead:
        return LiveRead(self._cluster, fetches, self._sizes, options, ReadPolicy.strict(), changes)

    def _spans(self, planned: Iterable[PlannedOffsets]) -> Iterator[tuple[PlannedOffsets, _Span]]:
        for each in planned:
            is_whole = self._arguments.decode.on_error == "stop"
            length = each.stop - each.start if is_whole else _LAST_OFFSETS
            stop = each.stop
            while stop > each.start:
                span = _Span(max(each.start, stop - length), stop)
                yield each, span
                stop = span.start
                length = max(1, min(4 * length, length * _SPAN_BYTES // max(span.size, 1)))

    def tables(
        self, planned: PlannedOffsets, work: Any, columns: tuple[str, ...], *, reverse: bool
    ) -> Iterator[RecordTable]:
        columns = tuple(dict.fromkeys((*columns, *planned.request.rows.columns)))
        options = replace(self._arguments.decode, columns=decoded_columns(columns))
        if reverse:
            yield from reversed(list(self._span_tables(planned, work, options)))
            return
        try:
            yield from self._chosen(planned, work, options)
        finally:
            if work.slot is not None:
                work.slot.release()

    def _span_tables(self, planned: PlannedOffsets, span: _Span, options: DecodeOptions) -> Iterator[RecordTable]:
        fetch = planned.fetch(span.start, span.stop, _FIRST_RESPONSE)
        read = self._read([fetch], options)
        self._open.append(read)
        for batches in read.batches():
            if not fetch.is_stopped:
                for table in self._chosen(planned, batches, options):
                    needed = table.batches["base_offset"] < span.stop
                    span.size += int(table.batches["size"][needed].sum())
                    yield table
                    del table
            del batches
        read.close()
        self._open.remove(read)

    def _chosen(
        self, planned: PlannedOffsets, batches: FetchedBatches, options: DecodeOptions
    ) -> Iterator[RecordTable]:
        for table in fetched_tables(batches, options, self._arguments.max_bytes):
            is_last = options.on_error == "stop" and bool(table.losses)
            if is_last:
                batches.fetch.is_stopped = True
            yield planned.request.rows.chosen(table)
            del table
            if is_last:
                return

    @property
    def _sizes(self) -> FetchLimits:
        size = max(self._arguments.max_bytes // _RESPONSE_PART, _SMALLEST_FETCH)
        return FetchLimits.of(self._cluster.settings, min(size, _LARGEST_FETCH))

    # -- counts, samples and text

    def counts(self, requests: Sequence[RangeRequest]) -> list[int | None]:
        """Count by the headers of batches, which are fetched with their records."""
        if self._arguments.decode.on_error != "raise" or self._arguments.last is not None:
            return [None] * len(requests)
        found: list[int | None] = [0 if each.is_empty else None for each in requests]
        planned = []
        for place, each in enumerate(requests):
            if each.is_exact and not each.is_empty and not each.rows.columns:
                planned.append(self.plan(each))
                found[place] = 0
        places = {id(each): place for place, each in enumerate(requests)}
        for part, batches in self._batches(planned):
            place = places[id(part.request)]
            found[place] = (found[place] or 0) + self._count_of(part, batches)
        return found

    def count_of(self, planned: PlannedOffsets) -> int:
        """Count the records of some offsets by batch headers; see `counts`."""
        return sum(self._count_of(part, batches) for part, batches in self._batches([planned]))

    def _count_of(self, planned: PlannedOffsets, batches: FetchedBatches) -> int:
        """Return the number of records of a response; batches are decoded only if their headers do not suffice."""
        options = decided_options(batches, replace(self._arguments.decode, columns=("offset",)))
        scanned = scan_part(batches.data)
        if scanned.finding is not None:
            return self._decoded_count(batches, (0, len(batches.data)), options)
        rows = scanned.batches[options.may_have_records(scanned.batches)]
        is_whole, is_empty = decided_by_headers(rows, options, planned.request.rows)
        unknown = rows[~(is_whole | is_empty) | (rows["size"] > max_entry_size(options.limits))]
        count = int(rows["record_count"][is_whole & ~is_empty].sum())
        return count + sum(self._decoded_count(batches, span, options) for span in adjacent_spans(unknown))

    def _decoded_count(self, batches: FetchedBatches, span: tuple[int, int], options: DecodeOptions) -> int:
        return sum(map(len, tables_of_part(batches, *span, options, self._arguments.max_bytes)))

    def sampled(self, logs: Sequence[LivePartition], on: On) -> list[bytes]:
        return sample_partitions(logs, on, self._arguments.decode.crc)

    def explained(self, planned: Sequence[PlannedOffsets]) -> Iterator[str]:
        total = sum(each.log.end_offset - each.log.start_offset for each in planned)
        yield f"offsets: {sum(max(each.stop - each.start, 0) for each in planned):,} of {total:,} of these logs"
        if self._arguments.decode.isolation == "read_committed":
            yield "isolation: read_committed, up to the last stable offsets, by the lists of the brokers"
