"""Following the transactions of many logs: segments side by side, in threads, or where the caller has them walked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

from kbatch.log import Log, Segment
from kbatch.log.committed import (
    SegmentTransactions,
    follow_transactions,
    join_transactions,
    open_before,
    segment_before,
    segment_transactions,
)
from kbatch.log.segment import inode_of
from kbatch.plan.read_options import ReadOptions
from kbatch.read.decode_options import DecodeOptions
from kbatch.transactions import OpenTransaction, Transactions

__all__ = ["FollowedLog", "SegmentWalker", "follow_options", "log_transactions"]

# Walks segments, each given with the base offset of the next one, and returns what it found in each.
SegmentWalker: TypeAlias = Callable[
    [Sequence[tuple[Segment, int | None]], DecodeOptions], Sequence[SegmentTransactions]
]

# From this many bytes on a Spark job is worth its start: a fraction of a second of work for a core if the files are in
# memory, seconds if a disk has to read them.
_JOB_BYTES = 1 << 30
# Walked ahead of what is joined, per thread.
_AHEAD = 2


def follow_options(options: ReadOptions) -> DecodeOptions:
    """Return what following transactions takes of a read's options."""
    return DecodeOptions(crc=options.crc, on_error=options.on_error)


def log_transactions(
    logs: Sequence[Log],
    options: ReadOptions,
    ranges: Sequence[tuple[int | None, int | None]] | None = None,
    walk_job: SegmentWalker | None = None,
    *,
    job_bytes: int = _JOB_BYTES,
) -> list[Transactions | None]:
    """Follow the transactions of logs over their batches.

    Parameters
    ----------
    logs : sequence of Log
    options : ReadOptions
    ranges : sequence of (start offset or None, stop offset or None), optional
        For each log the offsets that will be read: only what concerns them is followed. None is the log's own end.
    walk_job : callable, optional
        Walks the segments, on other machines perhaps, if there is much of them; else threads of this process do.
    job_bytes : int
        Segments of more bytes than this, together, are much.

    Returns
    -------
    list of Transactions or None
        Of each log, as `kbatch.log.committed.follow_transactions`; None for each under read_uncommitted.
    """
    if options.isolation == "read_uncommitted":
        return [None] * len(logs)
    if ranges is None:
        ranges = [(None, None)] * len(logs)
    follow = follow_options(options)
    known: dict[str, SegmentTransactions] = {}
    if walk_job is not None:
        wanted = [each for log, bounds in zip(logs, ranges, strict=True) for each in _needed(log, *bounds, follow)]
        if sum(segment.size for segment, _ in wanted) > job_bytes:
            walked = walk_job(wanted, follow)
            known = {segment.path: found for (segment, _), found in zip(wanted, walked, strict=True)}
    threads = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:

        def walk(one: Any, numbers: Sequence[int]) -> Iterator[SegmentTransactions]:
            # `log` is the one of the turn.
            ahead: list[SegmentTransactions | Future[SegmentTransactions]] = []
            left = iter(numbers)
            try:
                while True:
                    for number in left:
                        ready = known.get(log.segments[number].path)
                        ahead.append(pool.submit(one, number) if ready is None else ready)
                        if len(ahead) >= _AHEAD * threads:
                            break
                    if not ahead:
                        return
                    first = ahead.pop(0)
                    yield first.result() if isinstance(first, Future) else first
            finally:
                for each in ahead:
                    if isinstance(each, Future):
                        each.cancel()

        found: list[Transactions | None] = []
        for log, (start, stop) in zip(logs, ranges, strict=True):
            found.append(follow_transactions(log.segments, follow, start_offset=start, stop_offset=stop, walk=walk))
    return found


def _needed(log: Log, start: int | None, stop: int | None, options: DecodeOptions) -> list[tuple[Segment, int | None]]:
    """Return the segments of a log that a range needs at least, each with where the next one begins."""
    segments = log.segments
    first = 0
    if start is not None and options.on_error != "skip":
        first = open_before(segments, segment_before(segments, start), options)[0]
    last = len(segments) if stop is None else segment_before(segments, max(0, stop - 1)) + 1
    belows = [*(segment.base_offset for segment in segments[1:]), None]
    return list(zip(segments, belows, strict=True))[first:last]


class FollowedLog:
    """The transactions of one log that grows: what was walked once isn't walked again.

    Parameters
    ----------
    options : ReadOptions

    Attributes
    ----------
    is_whole : bool
        False if damage ended the walk of a segment that isn't the last: markers may be missing.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.plan.following import FollowedLog
    >>> from kbatch.plan.read_options import ReadOptions
    >>> followed = FollowedLog(ReadOptions(isolation="read_committed"))
    >>> followed.follow(kbatch.Log("tests/golden/logs/txn-0"), 300).last_stable_offset
    362
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = follow_options(options)
        # By base offset: what came of a walk, and size and inode of what was walked.
        self._parts: dict[int, SegmentTransactions] = {}
        self._files: dict[int, tuple[int, int]] = {}
        self._first: int | None = None
        self._open: list[OpenTransaction] = []
        self.is_whole = True

    def follow(self, log: Log, start: int) -> Transactions:
        """Say what the log's transactions are from `start` on, as far as it is written.

        Parameters
        ----------
        log : Log
            As it is now. One that was truncated since is followed anew.
        start : int
            Nothing before it will be asked for again: it is what a stream has committed to have read.
        """
        segments = log.segments
        bases = [segment.base_offset or 0 for segment in segments]
        sizes = dict(zip(bases, (segment.size for segment in segments), strict=True))
        if self._options.on_error == "skip":
            self._first = bases[0]
        elif self._first not in sizes or start < self._first:
            first, self._open = open_before(segments, segment_before(segments, start), self._options)
            self._first = bases[first]
        self._parts = {base: part for base, part in self._parts.items() if base in sizes}
        first = bases.index(self._first)
        for number in range(first, len(segments)):
            base, segment = bases[number], segments[number]
            below = bases[number + 1] if number + 1 < len(segments) else None
            # Another file of the same name: the log cleaner's. A smaller one: truncated by a new leader.
            inode = inode_of(segment.path)
            size, known_inode = self._files.get(base, (0, -1))
            part = self._parts.get(base)
            if inode != known_inode or segment.size < size:
                part = None
            # One that was rolled may have got the last of its index since.
            if part is None or not part.is_closed or below is None or size != segment.size:
                self._parts[base] = segment_transactions(segment, below, self._options, part)
                self._files[base] = (segment.size, inode)
        self.is_whole = all(
            self._parts[base].end == sizes[base] or self._options.on_error == "skip" for base in bases[first:-1]
        )
        transactions = join_transactions([self._parts[base] for base in bases[first:]], self._open)
        self._forget(bases, segment_before(segments, start))
        return transactions

    def _forget(self, bases: Sequence[int], number: int) -> None:
        """Pass over the segments before `number`; what they leave open is kept."""
        first = bases.index(self._first or 0)
        # Where damage is skipped, transactions of these segments may be undecided, and stay in `pending`.
        if number <= first or self._options.on_error == "skip":
            return
        passed = [self._parts.pop(base) for base in bases[first:number]]
        self._open = join_transactions(passed, self._open).open
        self._first = bases[number]
