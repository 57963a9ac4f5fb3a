"""The history of the topics of an export: which parts of a range of offsets its tasks read from files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kbatch.format import Limits
from kbatch.live.cluster import PartitionKey
from kbatch.live.live_partitions import LivePartition
from kbatch.log import Log
from kbatch.plan.cluster_tasks import ClusterRange
from kbatch.plan.history import HistoryPlanner
from kbatch.plan.history_copies import found_copies
from kbatch.plan.history_files import cut_split
from kbatch.plan.history_plan import FetchedRange, offsets_text
from kbatch.plan.read_options import ReadOptions
from kbatch.quantities import callers_stacklevel
from kbatch.read.decode_options import DecodeOptions

__all__ = ["ClusterHistory"]


class ClusterHistory:
    """The copies of partitions in log directories and tiered storage.

    Parameters
    ----------
    paths : sequence of str
    storage_options : mapping of str to str
        For URLs.
    """

    def __init__(self, paths: Sequence[str], storage_options: Mapping[str, str]) -> None:
        self._paths = paths
        self._storage_options = storage_options
        # By partition, as far as it was looked for; none if all that the files have is read.
        self._copies: dict[PartitionKey, list[Log]] = {}
        self._notes: set[str] = set()

    def look_for(self, keys: Sequence[PartitionKey]) -> None:
        """Find the copies of partitions that were not looked for yet.

        Raises
        ------
        LogDirectoryError
            If a path does not exist.
        """
        wanted = {key for key in keys if key not in self._copies}
        if wanted:
            found = found_copies(
                self._paths, wanted, self._storage_options, lambda text: self._note(f"{text}; all is fetched instead")
            )
            self._copies |= {key: found.get(key, []) for key in wanted}

    def parts(self, live: LivePartition, whole: ClusterRange, options: ReadOptions) -> Iterator[ClusterRange]:
        """Yield the parts of a range of offsets, in order: those in files, of about ``split_bytes``, and the others.

        Raises
        ------
        BrokerError, AuthenticationError
        """
        copies = self._copies.get((whole.topic, whole.partition))
        if not copies:
            yield whole
            return
        decoding = DecodeOptions(
            isolation=options.isolation,
            crc="verify" if options.crc == "mark" else options.crc,
            limits=Limits(max_decompressed_bytes=options.max_decompressed_bytes),
        )
        planner = HistoryPlanner(live, copies, decoding)
        plan = planner.plan(whole.start, whole.stop)
        for part, reason in plan.replaced_files():
            self._note(f"{whole.path}: {offsets_text(part.start, part.stop)} fetched from the cluster, since {reason}")
        segments = planner.segments
        for each in plan.parts:
            if isinstance(each, FetchedRange):
                yield replace(whole.fetched_from(each.start), stop=each.stop)
                continue
            for split in cut_split(each, segments[each.path], options.split_bytes, options.split_bytes):
                start, stop = split.start_offset or 0, split.stop_offset or 0
                if start < stop:
                    density = split.bytes / (stop - start)
                    yield replace(whole, start=start, stop=stop, density=density, split=split, may_begin_later=False)
        if not plan.splits and whole.start > max((each.base_offset or 0 for each in segments.values()), default=-1):
            # The files have nothing from this offset on, from which later runs continue.
            self._copies[whole.topic, whole.partition] = []

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            warnings.warn(f"history: {text}", RuntimeWarning, stacklevel=callers_stacklevel())
