"""A topic-partition's log: its segments as one sequence of records."""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import LogDirectoryError, finding_to_error
from kbatch.escaping import counted
from kbatch.format import BATCH_DTYPE, Limits
from kbatch.log.committed import follow_transactions
from kbatch.log.files.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    LEADER_EPOCH_DTYPE,
    START_CHECKPOINT,
    checkpoint_offsets,
    read_leader_epochs,
)
from kbatch.log.files.properties import topic_id_of
from kbatch.log.log_tables import TablesOfLog
from kbatch.log.ranges import count_back, end_offset_after, first_offset, first_offset_since
from kbatch.log.segment import Segment, check_order, last_offset, listed_segments
from kbatch.log.store.listing import ListedDirectory, find_file, list_path
from kbatch.log.store.names import is_remote_name, name_of_log, tiered_topic_id
from kbatch.log.store.segment_file import Tail
from kbatch.log.store.storage import Entry, Storage, locate
from kbatch.public_names import public_in
from kbatch.quantities import TimeLike, parse_time
from kbatch.read.decode_options import Crc, DecodeOptions, OnError
from kbatch.records.display import shown_time
from kbatch.transactions import Transactions

__all__ = ["Log"]

# The suffix of the file with the leader epochs of a segment in tiered storage.
_TIERED_EPOCHS = ".leader_epoch_checkpoint"


@public_in("kbatch")
class Log(TablesOfLog):
    """The log of one topic-partition, as a broker keeps it on disk.

    File sizes are read once, when the log is opened; batches that a broker appends later are not seen. Files are open
    only while they are read. Files of an interrupted compaction (``.swap``, ``.cleaned``, ``.deleted``) are treated as
    by a broker that starts (DSK-R8).

    Parameters
    ----------
    path : str or path
        A topic-partition directory, or one ``.log`` file; local, or a URL such as ``s3://bucket/logs/topic-0``.
        Directories of tiered storage in a known layout (DSK-R18) are logs too.
    use_indexes : bool
        Whether seeks may start at entries of ``.index`` and ``.timeindex`` files that agree with the bytes of the log;
        see `Segment.seek_offset`. Otherwise every seek follows the batch headers from the beginning of a segment.
    storage_options : mapping of str to str, optional
        For a URL, as for `kbatch.find_logs`.

    Attributes
    ----------
    path : str
    topic : str or None
    partition : int or None
        From the name of the directory (DSK-R9), or of the parent of a ``.log`` file; None if that name does not denote
        a topic-partition.
    mark : str or None
        ``"delete"``, ``"future"`` or ``"stray"`` for a marked directory. The first and last may truncate the topic.
    segments : list of Segment
        In order of base offset.

    Raises
    ------
    LogDirectoryError
        If the path does not exist, the directory has no segment, the file is not a ``.log`` file, the filesystem of a
        URL can't be reached, or the segments that a damaged ``.log.swap`` file replaces can't be determined.

    References
    ----------
    Rules such as DSK-R18 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> log = kbatch.Log("tests/golden/logs/codec-none-0")
    >>> log.topic, log.partition, log.start_offset, log.end_offset
    ('codec-none', 0, 0, 3160)
    >>> sum(len(table) for table in log.tables(start_offset=3000))
    160
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        use_indexes: bool = True,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        check_types(Log.__init__, locals())
        self._init(*locate(path, storage_options), None, None, use_indexes)

    @classmethod
    def _listed(cls, found: ListedDirectory, root: Mapping[str, Entry] | None) -> Log:
        """Make a log from the listings of its directory and of the log directory above it."""
        log = cls.__new__(cls)
        log._init(found.storage, found.path, found.listing, root, True)
        return log

    def _init(
        self,
        storage: Storage,
        path: str,
        listing: Mapping[str, Entry] | None,
        root: Mapping[str, Entry] | None,
        use_indexes: bool,
    ) -> None:
        self.path = path
        self.use_indexes = use_indexes
        self._storage = storage
        absolute = storage.absolute(path)
        if listing is None:
            listing = list_path(storage, path)
        self._is_file = listing is None
        if listing is not None:
            self.segments = listed_segments(storage, path, listing, use_indexes)
        elif not absolute.endswith(".log"):
            raise LogDirectoryError(f"{self.path}: not a '.log' file", source=self.path)
        else:
            is_live = not is_remote_name(os.path.basename(absolute))
            self.segments = [Segment(path, live=is_live, storage_options=storage.options)]
        self._directory = os.path.dirname(absolute) if self._is_file else absolute
        # Listings save requests to a remote filesystem. Local files are looked up when they are needed.
        self._listing = listing if storage.remote else None
        self._root = root if storage.remote else None
        self.topic: str | None = None
        self.partition: int | None = None
        self.mark: str | None = None
        # A directory with segments may have a name that is not a topic-partition.
        with contextlib.suppress(LogDirectoryError):
            names = (os.path.basename(segment.path) for segment in self.segments)
            self.topic, self.partition, self.mark = name_of_log(self._directory, names)

    def __repr__(self) -> str:
        return f"<kbatch Log {self.path!r}, {counted(len(self.segments), 'segment')}, {counted(self.size, 'byte')}>"

    def _shown_names(self) -> Iterator[tuple[str, str]]:
        yield "path", self.path
        if self.topic is not None:
            yield "topic, partition", f"{self.topic}, {self.partition}" + (f" ({self.mark})" if self.mark else "")

    def _shown_facts(self) -> Iterator[tuple[str, str]]:
        yield "offsets", f"{self.start_offset} to {self.end_offset} (exclusive)"
        if (last := self._last[0]) is not None:
            first = next(rows[0] for segment in self.segments for rows in segment.scan())
            times = (shown_time(int(row[name])) for row, name in ((first, "base_timestamp"), (last, "max_timestamp")))
            yield "timestamps of the first and last batch", " to ".join(times)

    @property
    def storage_options(self) -> dict[str, str]:
        """The options with which the log was opened."""
        return self._storage.options

    @property
    def size(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def incomplete_tail(self) -> Tail:
        """The bytes after the last complete batch of the last segment; only kind "damaged" is an error."""
        return self._last[1]

    @property
    def start_offset(self) -> int:
        """The base offset of the first batch, or the broker's log start offset if that is higher (`start_checkpoint`).

        The first segment's name is used for a log without batches, and before a compressed message set.
        """
        return max(first_offset(self.segments), self.start_checkpoint or 0)

    @property
    def start_checkpoint(self) -> int | None:
        """The broker's log start offset, or None if it is unknown or outside the segments.

        Brokers delete only whole segments. After a deletion by offset (DeleteRecords) the earlier records of the first
        segment remain on disk, and only the ``log-start-offset-checkpoint`` of the log directory hides them from
        consumers. The file applies to topic-partition directories directly in the log directory, not to a single
        ``.log`` file and not to a directory marked ``-delete``, ``-future`` or ``-stray``.

        As in a starting broker, a missing or malformed checkpoint is ignored. An offset beyond the end of the log is
        ignored too: a broker would drop all segments, but the files may be a partial copy, or older than the
        checkpoint.
        """
        first = self.segments[0].base_offset
        if first is None or self.topic is None or self.partition is None or self.mark is not None:
            return None
        if self._is_file or is_remote_name(os.path.basename(self.segments[0].path)):
            return None
        entry = None
        if self._root is not None and (entry := self._root.get(START_CHECKPOINT)) is None:
            return None
        known = checkpoint_offsets(os.path.dirname(self._directory), START_CHECKPOINT, self._storage, entry)
        offset = known.get((self.topic, self.partition), 0)
        return offset if first < offset <= self.end_offset else None

    @property
    def leader_epochs(self) -> npt.NDArray[np.void]:
        """The start offset of each leader epoch, from the ``leader-epoch-checkpoint``; empty without that file.

        In tiered storage, each segment may have a file of the epochs up to it; that of the last segment is read.

        Returns
        -------
        ndarray of LEADER_EPOCH_DTYPE, shape (epochs,)

        Raises
        ------
        LogDirectoryError
            As for `kbatch.log.read_leader_epochs`.
        """
        last = self.segments[-1]
        if is_remote_name(os.path.basename(last.path)):
            path = last.sibling(_TIERED_EPOCHS) if last.has(_TIERED_EPOCHS) else None
        else:
            path = find_file(self._storage, self._directory, self._listing, LEADER_EPOCH_CHECKPOINT)
        return np.empty(0, LEADER_EPOCH_DTYPE) if path is None else read_leader_epochs(path, storage=self._storage)

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The topic's id from ``partition.metadata``; None without that file, which brokers write since Kafka 2.8.

        In tiered storage it is part of the name of the directory.

        Raises
        ------
        LogDirectoryError
            As for `kbatch.log.read_partition_metadata`.
        """
        if is_remote_name(os.path.basename(self.segments[0].path)):
            return tiered_topic_id(self._directory)
        return topic_id_of(self._storage, self._directory, self._listing)

    @property
    def end_offset(self) -> int:
        """The offset after the last complete batch, from its header; an empty last segment's base offset."""
        return end_offset_after(self.segments[-1], self._last[0])

    @property
    def last_timestamp(self) -> int | None:
        """The largest timestamp of the last batch, in milliseconds, from its header; None without a batch.

        Timestamps need not ascend: an earlier batch may have a larger one. It is -1 if the batch has no timestamp.
        """
        row = self._last[0]
        for segment in reversed(self.segments[:-1]):
            if row is not None:
                break
            row = segment.last_batch(use_indexes=self.use_indexes)[0]
        return None if row is None else int(row["max_timestamp"])

    @functools.cached_property
    def _last(self) -> tuple[np.void | None, Tail]:
        return self.segments[-1].last_batch(use_indexes=self.use_indexes)

    def batches(self) -> npt.NDArray[np.void]:
        """Return the headers of all batches, without decompression and without checksum verification.

        Returns
        -------
        ndarray of BATCH_DTYPE, shape (batches,)
            All batches on disk, including those before `start_checkpoint`, in log order. ``position`` is the byte in
            the segment's file. The array takes 96 bytes per batch; `Segment.scan` takes bounded memory.

        Raises
        ------
        CorruptBatchError
            If the header chain leads to a byte where no batch can begin.
        LogDirectoryError
            If a segment other than the last ends with an incomplete batch, or overlaps the next.
        """
        return all_batches(self.segments)

    def _offset(self, name: str, offset: int) -> int:
        """Return an offset; a negative one counts back from the end of the log, at most to its beginning."""
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise TypeError(f"{name} must be an integer or None, got {offset!r}")
        return int(offset) if offset >= 0 else count_back(int(offset), self.end_offset, self.start_checkpoint)

    def transactions(
        self, *, crc: Crc = "verify", on_error: OnError = "raise", limits: Limits | None = None
    ) -> Transactions:
        """Return the aborted and the open transactions of the log, from its control markers.

        Parameters
        ----------
        crc, on_error, limits
            As for `tables`. A damaged marker leaves its transaction undecided.

        Returns
        -------
        Transactions
            The aborted transactions, as in the log's ``.txnindex`` files; the open ones; and the last stable offset,
            where a consumer with read_committed stops (LSO-R1, LSO-R2).

        References
        ----------
        Rules such as LSO-R1 are listed in ``docs/format-rules.md``.

        Examples
        --------
        >>> import kbatch
        >>> transactions = kbatch.Log("tests/golden/logs/txn-0").transactions()
        >>> len(transactions.aborted), transactions.last_stable_offset
        (13, 362)
        """
        check_types(Log.transactions, locals())
        options = DecodeOptions(crc=crc, on_error=on_error, limits=limits if limits is not None else Limits())
        return follow_transactions(self.segments, options)

    def offset_for_timestamp(
        self,
        timestamp: TimeLike,
        *,
        start_offset: int | None = None,
        crc: Crc = "verify",
        on_error: OnError = "raise",
    ) -> int | None:
        """Return the offset of the first record with `timestamp` or a later one, or None.

        This follows Kafka's ``offsetsForTimes``: batches are skipped by ``maxTimestamp``, control batches count, and
        the result is the first such record in the log, not the one closest in time.

        Parameters
        ----------
        timestamp : datetime, datetime64, timedelta, str or int
            As for `tables`.
        start_offset : int, optional
            Smallest offset to consider; a negative number counts back from `end_offset`. Default is the log start
            offset (`start_checkpoint`).
        crc, on_error
            As for `tables`. With ``"stop"`` and ``"skip"`` the result is the first such record of a read with
            ``on_error="skip"``.

        Raises
        ------
        KbatchError
            If a batch that has to be decoded can't be, or headers can't be followed to the end of a segment that may
            hold the record.

        Notes
        -----
        Timestamps may descend, so each segment before the result has to be ruled out. That relies on the
        ``maxTimestamp`` of headers, never on the ``.timeindex`` alone: its last matching entry must point to a batch
        with exactly that maximum, and the headers after that batch are followed to the segment's end (see
        `Segment.seek_timestamp`). If the timestamps of a closed segment ascend, these headers are in its last few
        kilobytes.
        """
        check_types(Log.offset_for_timestamp, locals())
        first = self.start_checkpoint if start_offset is None else self._offset("start_offset", start_offset)
        options = DecodeOptions(
            include_control=True,
            start_offset=first,
            crc=crc,
            on_error="raise" if on_error == "raise" else "skip",
        )
        since = parse_time(timestamp, "timestamp")
        return first_offset_since(self.segments, since, options, use_indexes=self.use_indexes)


def all_batches(segments: Sequence[Segment]) -> npt.NDArray[np.void]:
    """Return the headers of all batches of some segments, as `Log.batches` does."""
    parts = [np.empty(0, BATCH_DTYPE)]
    reached, before = None, ""
    for segment in segments:
        check_order(before, reached, segment.path, segment.base_offset)
        end = 0
        for rows in segment.scan():
            parts.append(rows)
            end = int(rows["position"][-1] + rows["size"][-1])
            if (last := last_offset(rows)) is not None:
                reached, before = last, segment.path
        with segment.open() as file:
            tail = file.tail_at(end)
        if tail.finding is not None:
            raise finding_to_error(tail.finding, source=segment.path, position=end)
        if tail.kind != "none" and not segment.live:
            raise LogDirectoryError(
                f"{segment.path}, byte {end}: {tail.size} bytes after the last complete batch; "
                "only the last segment of a log may have them",
                source=segment.path,
                position=end,
            )
    return np.concatenate(parts)
