"""Logs that grow as a broker's do, and exports that follow them with the local engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import log_batches
from log_batches import NOW

from kbatch.exporting import engine_choice
from kbatch.plan.read_options import ReadOptions
from kbatch.sinks.exports import ExportSetup
from kbatch.sinks.follow_options import FollowOptions
from kbatch.sinks.follower import Follower, FollowSummary
from kbatch.sinks.write_options import WriteOptions


class GrowingLog:
    """A log to which batches of two records are appended; its segments are rolled.

    Parameters
    ----------
    directory : Path
    segment_batches : int
        The batches of a segment.
    """

    def __init__(self, directory: Path, segment_batches: int = 7) -> None:
        self.directory = directory
        self.end = 0
        self._segment_batches = segment_batches
        self._batches = 0
        self._path = Path()

    def append(self, count: int = 1) -> None:
        """Append batches, each in two writes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            if self._batches % self._segment_batches == 0:
                self._path = log_batches.segment_path(self.directory, self.end)
            data = log_batches.batch(self.end, [NOW + self.end, NOW + self.end + 1])
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, data[:30])
                os.write(file, data[30:])
            finally:
                os.close(file)
            self.end += 2
            self._batches += 1


def follow(
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ReadOptions | None = None,
    *,
    table: str | None = None,
    catalog: str | None = None,
    on_commit: Any = None,
    commit_interval: float = 300.0,
    commit_bytes: int = 1 << 30,
    available_now: bool = False,
    **writing: Any,
) -> FollowSummary:
    """Follow with the local engine, with the options of `WriteOptions` as keywords."""
    reading = options or ReadOptions()
    setup = ExportSetup.of(root, out, reading, WriteOptions(**writing), table, catalog, None)
    following = FollowOptions(commit_interval, commit_bytes, available_now)
    return Follower(setup, engine_choice("local", threads=1), following, on_commit=on_commit).run()
