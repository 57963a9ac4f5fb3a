"""The history of the topics of a cluster: the parts of a range of offsets that tasks read from files."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from kbatch.format import Limits
from kbatch.live.cluster import PartitionKey
from kbatch.live.live_partitions import LivePartition
from kbatch.live.live_ranges import LiveRange
from kbatch.log import Log
from kbatch.options import OptionError
from kbatch.plan.cluster_tasks import ClusterRange
from kbatch.plan.history import HistoryPlanner
from kbatch.plan.history_copies import found_copies
from kbatch.plan.history_files import cut_at_offsets, cut_split, file_crc
from kbatch.plan.history_plan import FetchedRange, offsets_text
from kbatch.plan.live_tasks import LiveTask, divide_ranges
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import divide_parts
from kbatch.quantities import callers_stacklevel
from kbatch.read.decode_options import DecodeOptions

__all__ = ["ClusterHistory", "check_history_options"]


def check_history_options(options: ReadOptions) -> None:
    """Raise `OptionError` for options that a history excludes."""
    if "stop" in (options.on_error, *(each.get("on_error") for each in options.policies.values())):
        raise OptionError(
            "{on_error} stop cannot be used with a history: damaged parts of its files are fetched; use raise or skip"
        )


class ClusterHistory:
    """The copies of partitions in log directories and tiered storage.

    Parameters
    ----------
    paths : sequence of str
        Without any, all is fetched.
    storage_options : mapping of str to str
        For URLs.

    Attributes
    ----------
    paths : sequence of str
    """

    def __init__(self, paths: Sequence[str], storage_options: Mapping[str, str]) -> None:
        self.paths = paths
        self._storage_options = storage_options
        # By partition, once it was looked for; without copies if all records of the files have been read.
        self._copies: dict[PartitionKey, list[Log]] = {}
        self._notes: set[str] = set()

    def look_for(self, keys: Sequence[PartitionKey]) -> None:
        """Find the copies of partitions that were not looked up yet.

        Raises
        ------
        LogDirectoryError
            If a path does not exist.
        """
        wanted = {key for key in keys if key not in self._copies}
        if wanted:
            found = found_copies(
                self.paths, wanted, self._storage_options, lambda text: self._note(f"{text}; all is fetched instead")
            )
            self._copies |= {key: found.get(key, []) for key in wanted}

    def tasks(self, found: Sequence[tuple[LivePartition, LiveRange]], options: ReadOptions) -> list[LiveTask]:
        """Divide the ranges of partitions among tasks as `divide_ranges`, and these where files begin and end.

        A task reads files of about ``split_bytes``, or fetches.

        Raises
        ------
        BrokerError, AuthenticationError, LogDirectoryError
        """
        self.look_for([(each.topic, each.partition) for _, each in found])
        starts: dict[PartitionKey, list[int]] = {}
        for each in divide_ranges([each for _, each in found], options):
            starts.setdefault((each.topic, each.partition), []).append(each.start)
        tasks: list[LiveTask] = []
        for live, planned in found:
            if begins := starts.get((planned.topic, planned.partition)):
                parts = self.parts(live, ClusterRange.of(planned, 0.0), options, begins)
                tasks += _tasks_between(begins, parts, options)
        return tasks

    def parts(
        self, live: LivePartition, whole: ClusterRange, options: ReadOptions, cuts: Sequence[int] = ()
    ) -> Iterator[ClusterRange]:
        """Yield the parts of a range of offsets, in order: parts in files, of about ``split_bytes``, and the others.

        They are also cut at the offsets `cuts`, which ascend.

        Raises
        ------
        BrokerError, AuthenticationError
        """
        copies = self._copies.get((whole.topic, whole.partition))
        if not copies:
            yield from whole.cut(cuts)
            return
        decoding = DecodeOptions(
            isolation=options.isolation,
            crc=file_crc(options.crc),
            limits=Limits(max_decompressed_bytes=options.max_decompressed_bytes),
        )
        planner = HistoryPlanner(live, copies, decoding)
        plan = planner.plan(whole.start, whole.stop)
        for part, reason in plan.replaced_files():
            self._note(f"{whole.path}: {offsets_text(part.start, part.stop)} fetched from the cluster, since {reason}")
        segments = planner.segments
        for each in plan.parts:
            if isinstance(each, FetchedRange):
                yield from replace(whole.fetched_from(each.start), stop=each.stop).cut(cuts)
                continue
            segment = segments[each.path]
            for piece in cut_at_offsets(each, segment, cuts):
                for split in cut_split(piece, segment, options.split_bytes, options.split_bytes):
                    yield from whole.in_file(split)
        if not plan.splits and whole.start > max((each.base_offset or 0 for each in segments.values()), default=-1):
            # The files have no records from this offset on, where later runs continue.
            self._copies[whole.topic, whole.partition] = []

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            warnings.warn(f"history: {text}", RuntimeWarning, stacklevel=callers_stacklevel())


def _tasks_between(starts: Sequence[int], parts: Iterable[ClusterRange], options: ReadOptions) -> Iterator[LiveTask]:
    """Yield the tasks of the parts of a partition; none has parts before and after one of the offsets."""
    # The offsets have divided the partition by the other options.
    by_bytes = replace(options, min_partitions=None, max_records_per_partition=None)
    for (_, in_files), run in groupby(parts, lambda each: (bisect_right(starts, each.start), each.is_history)):
        found = list(run)
        divided = divide_parts(found, by_bytes) if in_files else [[each] for each in found]
        yield from map(tuple, divided)
