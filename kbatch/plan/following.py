"""Follows the transactions of the logs of a read, with the segments of a log in parallel."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from kbatch.format import INT64_MAX, Limits
from kbatch.log import Log, Segment
from kbatch.log.committed import (
    SegmentTransactions,
    Walk,
    follow_transactions,
    join_transactions,
    open_before,
    segment_before,
    segment_transactions,
)
from kbatch.log.reading import read_tables
from kbatch.log.segment import inode_of
from kbatch.plan.read_options import ReadOptions
from kbatch.read.decode_options import Crc, DecodeOptions
from kbatch.transactions import OpenTransaction, Transactions
from kbatch.tuning import SMALL_TABLE_BYTES

__all__ = [
    "FollowedLog",
    "check_markers",
    "follow_options",
    "followed",
    "needed_segments",
    "raise_damage",
    "walk_ahead",
    "walk_threads",
]

# Segments per thread that are followed before their results are joined.
FOLLOW_AHEAD = 2

_THREADS = min(8, os.cpu_count() or 1)


def follow_options(options: ReadOptions) -> DecodeOptions:
    """Return the options of a read that affect the tracking of transactions."""
    return DecodeOptions(crc=options.crc, on_error=options.on_error)


def followed(
    log: Log, options: ReadOptions, start: int | None, stop: int | None, walk: Walk = map
) -> Transactions | None:
    """Return the transactions of a log that reach into a range of offsets; None under read_uncommitted.

    Parameters
    ----------
    log : Log
    options : ReadOptions
    start, stop : int or None
        None is the log's own end on that side.
    walk : Walk
        As for `kbatch.log.committed.follow_transactions`.
    """
    if options.isolation == "read_uncommitted":
        return None
    return follow_transactions(log.segments, follow_options(options), start_offset=start, stop_offset=stop, walk=walk)


def walk_threads() -> ThreadPoolExecutor:
    """Return the threads for `walk_ahead`; they start when they are used."""
    return ThreadPoolExecutor(_THREADS, "kbatch-follow")


def walk_ahead(
    pool: ThreadPoolExecutor,
    known: Mapping[int, SegmentTransactions],
    follow: Callable[[int], SegmentTransactions],
    numbers: Sequence[int],
) -> Iterator[SegmentTransactions]:
    """Yield the transactions of segments in order: `known` ones, or the result of `follow`, which runs in threads.

    Only a few segments ahead of the yielded one are followed, since a walk may end early.
    """

    def one(number: int) -> SegmentTransactions:
        return known[number] if number in known else follow(number)

    waiting = iter(numbers)
    ahead = deque(pool.submit(one, number) for number in islice(waiting, FOLLOW_AHEAD * _THREADS))
    try:
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(pool.submit(one, number) for number in islice(waiting, 1))
    finally:
        for future in ahead:
            future.cancel()


def check_markers(log: Log, transactions: Transactions, options: ReadOptions, stop: int | None = None) -> None:
    """Raise the damage that hides markers, if ``on_error="raise"`` and it leaves a transaction undecided.

    Parameters
    ----------
    log : Log
    transactions : Transactions
        The transactions of the log.
    options : ReadOptions
    stop : int, optional
        Only transactions that begin before this offset count.

    Raises
    ------
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        The first error in the log.
    """
    undecided = transactions.undecided["first_offset"]
    if options.on_error == "raise" and np.any(undecided < (INT64_MAX if stop is None else stop)):
        raise_damage(log, options.crc, transactions, options.max_decompressed_bytes)


def raise_damage(
    log: Log,
    crc: Crc,
    transactions: Transactions | None = None,
    max_decompressed_bytes: int = Limits().max_decompressed_bytes,
) -> None:
    """Raise the first error in the framing of a log, and in its checksums with ``crc="verify"``.

    With `transactions`, it is the first error of a read, including errors in records that they do not withhold.
    """
    withheld = None if transactions is None else transactions._withheld_of_log()
    limits = Limits(max_decompressed_bytes=max_decompressed_bytes)
    for segment in log.segments:
        options = DecodeOptions(crc=crc, framing_only=True)
        if withheld is not None and segment.path in withheld.segments:
            options = DecodeOptions(
                crc=crc, limits=limits, columns=("offset",), withheld=withheld.of_segment(segment.path)
            )
        for _ in read_tables(segment, 0, segment.size, options, SMALL_TABLE_BYTES):
            pass


def needed_segments(
    log: Log, start: int | None, stop: int | None, options: ReadOptions
) -> list[tuple[int, Segment, int | None]]:
    """Return the segments that `followed` needs at least: their numbers, and the base offsets of the next ones."""
    segments = log.segments
    first = 0
    if start is not None and options.on_error != "skip":
        first = open_before(segments, segment_before(segments, start), follow_options(options))[0]
    last = len(segments) if stop is None else segment_before(segments, max(0, stop - 1)) + 1
    belows = [*(segment.base_offset for segment in segments[1:]), None]
    return list(zip(range(len(segments)), segments, belows, strict=True))[first:last]


class FollowedLog:
    """The transactions of one growing log. Bytes are followed only once.

    Parameters
    ----------
    options : ReadOptions

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
        # The transactions of each segment and the inode of its file when they were read; the key is the base offset.
        self._parts: dict[int, SegmentTransactions] = {}
        self._inodes: dict[int, int] = {}
        self._first: int | None = None
        # The transactions that were open before it, and the last offset before it.
        self._open: Sequence[OpenTransaction] = []
        self._last_offset: int | None = None

    def follow(self, log: Log, start: int) -> Transactions:
        """Return the log's transactions from `start` on, up to the last complete batch.

        Parameters
        ----------
        log : Log
            The current log. If it was truncated or recreated since the last call, it is followed again from the start.
        start : int
            Later calls do not need offsets before this one, which a stream has committed.
        """
        segments = log.segments
        bases = [segment.base_offset or 0 for segment in segments]
        last = max(self._parts, default=None)
        if last in bases and not self._parts[last].is_of(segments[bases.index(last)]):
            self._parts, self._first, self._open = {}, None, []
        if self._options.on_error == "skip":
            self._first = bases[0]
        elif self._first not in bases or start < self._first:
            first, self._open = open_before(segments, segment_before(segments, start), self._options)
            self._first, self._last_offset = bases[first], None
        self._parts = {base: part for base, part in self._parts.items() if base in bases}
        first = bases.index(self._first)
        for segment, base, below in list(zip(segments, bases, [*bases[1:], None], strict=True))[first:]:
            # The log cleaner replaces a file by another file of the same name; a new leader truncates it.
            inode = inode_of(segment.path)
            part = self._parts.get(base)
            if part is not None and (inode != self._inodes[base] or segment.size < part.size):
                part = None
            # The index may have grown if the segment has been rolled since.
            if part is None or not part.is_closed or below is None or part.size != segment.size:
                self._parts[base] = segment_transactions(segment, below, self._options, part)
                self._inodes[base] = inode
        parts = [self._parts[base] for base in bases[first:]]
        transactions = join_transactions(parts, self._open, self._last_offset, self._options.limits)
        self._forget(bases, segment_before(segments, start))
        return transactions

    def _forget(self, bases: Sequence[int], number: int) -> None:
        """Drop the results before segment `number`, except for transactions that are open there."""
        first = bases.index(self._first or 0)
        # If damage is skipped, undecided transactions of these segments must stay in `pending`.
        if number <= first or self._options.on_error == "skip":
            return
        dropped = [self._parts.pop(base) for base in bases[first:number]]
        self._open = join_transactions(dropped, self._open, self._last_offset, self._options.limits).open
        for part in dropped:
            if part.offsets is not None:
                self._last_offset = part.offsets[1]
        self._first = bases[number]
