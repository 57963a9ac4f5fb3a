"""The picklable plan of a read of a partition with its history, which tasks elsewhere can carry out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kbatch.errors import LogDirectoryError
from kbatch.plan.split import Split

__all__ = ["FetchedRange", "HistoryPlan", "RefusedFile", "offsets_text", "unavailable"]


class RefusedFile(NamedTuple):
    """A file, or a copy of a log, that is not read.

    Attributes
    ----------
    path : str
    first, stop : int or None
        The range of its offsets, as far as known; `stop` is exclusive.
    reason : str
    """

    path: str
    first: int | None
    stop: int | None
    reason: str

    def may_have(self, start: int, stop: int) -> bool:
        """Whether the file may have offsets of a range; `stop` is exclusive, and earlier offsets are known."""
        if self.first is None or self.first >= start:
            return self.first is None or self.first < stop
        return self.stop is not None and self.stop > start


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """Offsets that brokers must send.

    Attributes
    ----------
    start, stop : int
        `stop` is exclusive.
    is_after_files : bool
        Whether the records before this range are read from files.
    last_epoch : int
        The leader epoch of the batch before this range in the files, or -1.
    """

    start: int
    stop: int
    is_after_files: bool = False
    last_epoch: int = -1


@dataclass(frozen=True)
class HistoryPlan:
    """The picklable plan for one partition.

    Attributes
    ----------
    topic, partition
    start, stop : int
        The range of offsets; `stop` is exclusive.
    log_start : int
        The log start offset of the cluster.
    parts : tuple of Split or FetchedRange
        In the order of the offsets.
    refused : tuple of RefusedFile
    """

    topic: str
    partition: int
    start: int
    stop: int
    log_start: int
    parts: tuple[Split | FetchedRange, ...] = ()
    refused: tuple[RefusedFile, ...] = ()

    @property
    def splits(self) -> list[Split]:
        """The parts that are read from files."""
        return [part for part in self.parts if isinstance(part, Split)]

    @property
    def fetched(self) -> list[FetchedRange]:
        """The parts that brokers send."""
        return [part for part in self.parts if isinstance(part, FetchedRange)]

    def replaced_files(self) -> Iterator[tuple[FetchedRange, str]]:
        """Yield the offsets before the last file that brokers must send, with the reason."""
        last = max((split.stop_offset or 0 for split in self.splits), default=0)
        for part in self.fetched:
            # After the last file, copies of another log are irrelevant.
            is_end = bool(last) and part.start >= last
            refused = self.refused_within(part.start, part.stop, whole_copies=not is_end)
            if refused:
                yield part, refused
            elif self.start < part.start < last:
                yield part, "no file of the history has them"

    def refused_within(self, start: int, stop: int, *, whole_copies: bool = True) -> str:
        """Return text with the reasons why files with offsets of a range are not read."""
        found = [
            f"{each.path}: {each.reason}"
            for each in self.refused
            if (whole_copies if each.first is None else each.may_have(start, stop))
        ]
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        return "; ".join(found[:3]) + more


def offsets_text(start: int, stop: int) -> str:
    """Return a range of offsets as text; `stop` is exclusive."""
    return f"offset {start}" if start + 1 == stop else f"offsets {start} to {stop - 1}"


def unavailable(plan: HistoryPlan, start: int, stop: int, reason: str = "") -> LogDirectoryError:
    """Return the error for offsets that the cluster has deleted and no sound file has."""
    reason = reason or plan.refused_within(start, stop) or "no file of the history has them"
    where = next((each.path for each in plan.refused), None)
    return LogDirectoryError(
        f"{plan.topic}-{plan.partition}: {offsets_text(start, stop)} can't be read: deleted from the cluster "
        f"(whose log begins at offset {plan.log_start}), and {reason}; restore these files, or begin at offset {stop}",
        source=where,
    )
