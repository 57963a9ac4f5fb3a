"""Conversion and recompression of logs of any size.

Segments keep their base offsets, so that the other files of a log remain valid (`copy_side_files`).
A segment is read, rewritten and written in windows: memory does not depend on its size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.format import ABORTED_DTYPE, INT32_MAX, Codec, Limits
from kbatch.log.discovery import find_logs
from kbatch.log.files.checkpoints import LEADER_EPOCH_CHECKPOINT, START_CHECKPOINT, read_leader_epochs
from kbatch.log.files.contents import MAX_SIDE_FILE, too_large
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.logs import Log
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.log.store.storage import is_url, locate
from kbatch.log.write.log_writer import LogWriter
from kbatch.log.write.staging import NewOutput
from kbatch.options import CodecLevel, CodecName, RaiseOrSkip
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between
from kbatch.read.budget import table_limit
from kbatch.records.loss_list import Loss
from kbatch.rewrite.conversion import Conversion, Lossy
from kbatch.rewrite.recompression import Recompression
from kbatch.rewrite.rewriter import Rewriter, RewriteReport, rewrite_batches, valid_batches
from kbatch.transactions import TransactionTracker

__all__ = [
    "check_apart",
    "check_out",
    "convert_log",
    "copy_side_files",
    "recompress_log",
    "rewrite_log",
    "rewrite_logs",
    "side_files",
]

_COPIED_NAMES = re.compile(rf"{LEADER_EPOCH_CHECKPOINT}|partition\.metadata|(\d{{20}})\.snapshot", re.ASCII)

# Files of a broker's log directory that are copied. Recovery points and the mark of a clean shutdown are not, so the
# broker recovers all logs when it starts.
_COPIED = ("meta.properties", START_CHECKPOINT, "replication-offset-checkpoint")


@public_in("kbatch.log")
def convert_log(
    log: Log | str | os.PathLike[str],
    out: str | os.PathLike[str],
    magic: int = 2,
    *,
    codec: Codec | CodecName | CodecLevel | None = None,
    lossy: Lossy = "raise",
    batch_size: SizeLike = 16384,
    on_error: RaiseOrSkip = "raise",
    limits: Limits | None = None,
    max_bytes: SizeLike = 16 << 20,
    segment_bytes: SizeLike = INT32_MAX,
    index_interval_bytes: SizeLike = 4096,
    sync: bool = True,
    progress: Callable[[int], None] | None = None,
) -> RewriteReport:
    """Convert a log to another magic, as `kbatch.convert` does with bytes, in bounded memory.

    Parameters
    ----------
    log : Log, str or path
        A topic-partition's directory or a ``.log`` file.
    out : str or path
        A directory that does not exist or is empty, or a ``.log`` file that does not exist. It appears only when it is
        complete.
    magic, codec, lossy, batch_size, on_error, limits
        As for `kbatch.convert`.
    max_bytes : int or str
        Approximate limit on the bytes of the log in memory.
    segment_bytes, index_interval_bytes, sync
        As for `LogWriter`. Each segment becomes one segment of the output unless it grows beyond `segment_bytes`.
    progress : callable, optional
        Called with the number of bytes read so far.

    Returns
    -------
    RewriteReport
        Positions of damage are bytes in the file that the reason names.

    Raises
    ------
    ConversionLossError, ...
        As for `kbatch.convert`.
    LogDirectoryError
        If `out` exists or is inside the log, or if `out` is one file and the log has several segments.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> from kbatch.log import convert_log
    >>> with tempfile.TemporaryDirectory() as where:
    ...     report = convert_log("tests/golden/logs/magic1-0", f"{where}/magic1-0")
    ...     set(kbatch.Log(f"{where}/magic1-0").batches()["magic"].tolist())
    {2}
    """
    check_types(convert_log, locals())
    rewriter = Conversion(magic, codec=codec, lossy=lossy, batch_size=batch_size, on_error=on_error, limits=limits)
    return rewrite_log(
        log,
        out,
        rewriter,
        max_bytes=max_bytes,
        segment_bytes=segment_bytes,
        index_interval_bytes=index_interval_bytes,
        sync=sync,
        progress=progress,
    )


@public_in("kbatch.log")
def recompress_log(
    log: Log | str | os.PathLike[str],
    out: str | os.PathLike[str],
    codec: Codec | CodecName | CodecLevel,
    *,
    batch_size: SizeLike = 16384,
    on_error: RaiseOrSkip = "raise",
    limits: Limits | None = None,
    max_bytes: SizeLike = 16 << 20,
    segment_bytes: SizeLike = INT32_MAX,
    index_interval_bytes: SizeLike = 4096,
    sync: bool = True,
    progress: Callable[[int], None] | None = None,
) -> RewriteReport:
    """Compress a log with another codec, as `kbatch.recompress` does with bytes.

    Parameters
    ----------
    log, out
        As for `convert_log`.
    codec, batch_size, on_error, limits
        As for `kbatch.recompress`.
    max_bytes, segment_bytes, index_interval_bytes, sync, progress
        As for `convert_log`.

    Returns
    -------
    RewriteReport

    Raises
    ------
    ConversionLossError, ...
        As for `kbatch.recompress`.
    LogDirectoryError
        As for `convert_log`.

    Examples
    --------
    >>> import tempfile
    >>> from kbatch.log import recompress_log
    >>> with tempfile.TemporaryDirectory() as where:
    ...     report = recompress_log("tests/golden/logs/codec-none-0", f"{where}/codec-none-0", "zstd")
    >>> report.bytes_written < report.bytes / 3
    True
    """
    check_types(recompress_log, locals())
    rewriter = Recompression(codec, batch_size=batch_size, on_error=on_error, limits=limits)
    return rewrite_log(
        log,
        out,
        rewriter,
        max_bytes=max_bytes,
        segment_bytes=segment_bytes,
        index_interval_bytes=index_interval_bytes,
        sync=sync,
        progress=progress,
    )


def rewrite_log(
    log: Log | str | os.PathLike[str],
    out: str | os.PathLike[str],
    rewriter: Rewriter,
    *,
    max_bytes: SizeLike = 16 << 20,
    segment_bytes: SizeLike = INT32_MAX,
    index_interval_bytes: SizeLike = 4096,
    sync: bool = True,
    progress: Callable[[int], None] | None = None,
) -> RewriteReport:
    """Write the output of `rewriter` for a log.

    Parameters
    ----------
    log : Log, str or path
    out : str or path
        As for `convert_log`.
    rewriter : Rewriter
        Its settings also decide how damage is handled.
    max_bytes : int or str
        Approximate limit on the bytes of the log in memory.
    segment_bytes, index_interval_bytes, sync
        As for `LogWriter`. Each segment becomes one segment of the output unless it grows beyond `segment_bytes`.
    progress : callable, optional
        Called with the number of bytes read so far.

    Returns
    -------
    RewriteReport
        The report of `rewriter`. Positions of damage are bytes in the file that the reason names.

    Raises
    ------
    LogDirectoryError
        If `out` exists or is inside the log, or if `out` is one file and the log has several segments.
    """
    check_types(rewrite_log, locals())
    log = log if isinstance(log, Log) else Log(log)
    path = os.fspath(out)
    check_out(log, path)
    with LogWriter(
        path,
        base_offset=log.segments[0].base_offset,
        segment_bytes=segment_bytes,
        index_interval_bytes=index_interval_bytes,
        follow_transactions=False,
        sync=sync,
    ) as writer:
        _Rewriting(log, writer, rewriter, max_bytes, progress).run()
        if not path.endswith(".log") and not log.path.endswith(".log"):
            names = side_files(log).items()
            kept = [name for name, snapshot in names if snapshot is None or rewriter.keeps_producers]
            rewriter.report.damage += copy_side_files(log, kept, writer)
    return rewriter.report


class _Rewriting:
    """Passes the segments of a log through a rewriter to a writer."""

    def __init__(
        self,
        log: Log,
        writer: LogWriter,
        rewriter: Rewriter,
        max_bytes: SizeLike,
        progress: Callable[[int], None] | None,
    ) -> None:
        max_bytes = size_between("max_bytes", max_bytes, 1)
        self._log = log
        self._writer = writer
        self._rewriter = rewriter
        self._max_bytes = max_bytes
        self._progress = progress
        self._keeps_markers = rewriter.keeps_producers
        most = table_limit(rewriter.limits)
        self._tracker = TransactionTracker(limits=rewriter.limits, max_bytes=most, alternative="")
        self._done = 0

    def run(self) -> None:
        last = len(self._log.segments) - 1
        for number, segment in enumerate(self._log.segments):
            # A segment that becomes empty gets no file, except the last one: its name holds the end offset.
            rolled = number == 0
            if number == last and not rolled:
                self._writer.roll(segment.base_offset)
                rolled = True
            # The writer needs the aborted transactions before it starts a new segment at their markers.
            stored = self._stored(segment)
            aborted = [stored]
            for data, rows in self._windows(segment):
                self._tracker.add(data, rows, int(rows["position"][0]))
                followed = self._tracker.drain().aborted
                aborted.append(followed[~np.isin(followed["last_offset"], stored["last_offset"])])
                for piece in rewrite_batches(self._rewriter, data, rows, int(rows["position"][0]), segment.path):
                    if not rolled:
                        self._writer.roll(segment.base_offset)
                        rolled = True
                    self._append_aborted(aborted)
                    self._writer.append(piece)
            if rolled:
                self._append_aborted(aborted)
            self._done += segment.size
        if self._keeps_markers:
            self._rewriter.report.add(RewriteReport(open_transactions=self._tracker.result().open))

    def _append_aborted(self, aborted: list[npt.NDArray[np.void]]) -> None:
        """Pass aborted transactions to the writer, unless the output has no markers."""
        while aborted:
            rows = aborted.pop()
            if self._keeps_markers:
                self._writer.append_aborted(rows)

    def _windows(self, segment: Segment) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]]:
        """Yield the bytes from the first good batch of each table to the last, and the good batches."""
        rewriter = self._rewriter
        consumed = 0
        for table in read_tables(segment, 0, segment.size, rewriter.framing, self._max_bytes):
            rewriter.add_damage(table.losses, segment.path)
            rows = valid_batches(table)
            consumed += table.consumed
            if len(rows):
                end = int(rows["position"][-1] + rows["size"][-1])
                yield segment.window(int(rows["position"][0]), end), rows
                if self._progress is not None:
                    self._progress(self._done + end)
            del table
        rewriter.report.tail_bytes += segment.size - consumed

    def _stored(self, segment: Segment) -> npt.NDArray[np.void]:
        """Return the entries of the segment's ``.txnindex``, one per marker.

        If the log begins within a transaction, only the index has the transaction's first offset.
        """
        rows = np.empty(0, ABORTED_DTYPE)
        if self._keeps_markers:
            try:
                rows = segment.transaction_index()
            except KbatchError:
                if self._rewriter.on_error == "raise":
                    raise
        return rows[np.unique(rows["last_offset"], return_index=True)[1]]


def rewrite_logs(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    rewriter: Rewriter,
    *,
    storage_options: Mapping[str, str] | None = None,
    predicate: Callable[[str, int], bool] | None = None,
    sync: bool = True,
    progress: Callable[[int], None] | None = None,
    on_log: Callable[[Log, RewriteReport], None] | None = None,
    **options: Any,
) -> RewriteReport:
    """Rewrite all logs of a broker's log directory; the output appears only when all are complete.

    Parameters
    ----------
    path : str or path
        A broker's log directory.
    out : str or path
        A directory that does not exist or is empty.
    storage_options, predicate : optional
        As for `find_logs`; without `predicate`, all logs are rewritten.
    rewriter, sync, progress, **options
        As for `rewrite_log`.
    on_log : callable, optional
        Called with each log and its report when the log is complete.

    Returns
    -------
    RewriteReport
        The sums of all logs.
    """
    storage, root = locate(path, storage_options)
    check_apart(root, os.fspath(out))
    logs = find_logs(path, predicate=predicate, storage_options=storage_options)
    done = 0
    total = rewriter.report
    with NewOutput(out, sync=sync) as output:
        for log in logs:
            rewriter.report = RewriteReport()
            # Directories in tiered storage have other names.
            name = f"{log.topic}-{log.partition}"

            def report(read: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + read)

            rewrite_log(log, os.path.join(output.new, name), rewriter, sync=sync, progress=report, **options)
            done += log.size
            total.add(rewriter.report)
            if on_log is not None:
                on_log(log, rewriter.report)
        for name in set(storage.list(root)).intersection(_COPIED):
            output.write_file(name, storage.read(storage.join(root, name), MAX_SIDE_FILE)[0])
    rewriter.report = total
    return total


def check_out(log: Log, out: str) -> None:
    """Raise if `out` is within the log, or is one file for several segments."""
    check_apart(log.path, out)
    if out.endswith(".log") and len(log.segments) > 1:
        raise LogDirectoryError(
            f"{out}: {log.path} has {len(log.segments)} segments and can't be written to one file; give a directory",
            source=out,
        )


def check_apart(path: str, out: str) -> None:
    """Raise if `out` is within the input directory."""
    if is_url(path):
        return
    read, written = os.path.realpath(path), os.path.realpath(out)
    if written == read or (os.path.isdir(read) and os.path.commonpath([read, written]) == read):
        raise LogDirectoryError(f"{out}: is inside the input {path}; choose another output", source=out)


def side_files(log: Log) -> dict[str, int | None]:
    """Return the names of the side files that a rewritten log keeps, each with its offset if it is a producer snapshot.

    These are producer snapshots, leader epochs and the topic's id. They remain valid as long as segments keep their
    base offsets.
    """
    found = (_COPIED_NAMES.fullmatch(name) for name in sorted(log.segments[0].storage.list(log.path)))
    return {match[0]: None if match[1] is None else int(match[1]) for match in found if match}


def copy_side_files(log: Log, names: Iterable[str], writer: LogWriter) -> list[Loss]:
    """Copy the files with these names; return a loss for each file that can't be read and was not copied.

    A snapshot that can't be read is not copied: a broker deletes such a file and follows the log from the previous
    snapshot (``ProducerStateManager.loadFromSnapshot``). Leader epochs that can't be read are not copied either:
    `LogWriter` writes the epochs in the batches.

    Raises
    ------
    LogDirectoryError
        If a file is too large for its kind.
    """
    storage = log.segments[0].storage
    damage = []
    for name in names:
        path = storage.join(log.path, name)
        data, size = storage.read(path, MAX_SIDE_FILE)
        if len(data) < size:
            raise too_large(path, size)
        try:
            if name.endswith(".snapshot"):
                read_producer_snapshot(path, storage=storage)
            elif name == LEADER_EPOCH_CHECKPOINT:
                read_leader_epochs(path, storage=storage)
        except KbatchError as error:
            damage.append(Loss(0, size, f"{error}; it can be rebuilt from the log", file=path))
        else:
            writer.write_file(name, data)
    return damage
