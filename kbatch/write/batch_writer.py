"""Records -> batches of a target size, appended to a file as they fill."""

from __future__ import annotations

import contextlib
import io
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.codecs import compress
from kbatch.escaping import counted
from kbatch.format import INT32_MAX, INT64_MAX, Codec, TimestampType
from kbatch.kernels import encode as _kernel
from kbatch.kernels.source import RecordColumns
from kbatch.options import CodecLevel, CodecName
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between
from kbatch.write.batch_layout import BatchLayout, BatchRows, append_time_of, check_range, now
from kbatch.write.composing import compose_view, frame_payload, overheads, plan_batches, raise_fault, record_columns
from kbatch.write.record_columns import check_bytes, header_pairs, millisecond, offsets_array

__all__ = ["BatchWriter"]

# Bytes of batches per write, and the number and bytes of records that are kept as Python objects before encoding.
_WRITE_BYTES = 4 << 20
_KEPT = 1024
_KEPT_BYTES = 1 << 20
# Maximum overhead of a record in addition to key, value and headers, and of a header (PRD-R15).
_RECORD_OVERHEAD = 64
_HEADER_OVERHEAD = 10


class Sink(Protocol):
    """The target of a `BatchWriter`: a file open for binary writing, or any object with such a ``write``."""

    def write(self, data: memoryview, /) -> int | None:
        """Write bytes; return the number written, or None if all of them were."""


@public_in("kbatch")
class BatchWriter:
    """Write records to a file as batches of a target size, with consecutive offsets.

    Records are cut into batches as by Kafka's producers, regardless of how they are appended: a batch is closed when
    the next record would make it larger than `batch_size`. Only complete batches are written, many in one call of
    ``file.write``. After an error of the file the writer cannot be used again; a partly written batch is truncated
    if the file can seek.

    As a context manager the writer is closed at the end of the block; after an exception nothing more is written.

    Parameters
    ----------
    file : binary file object
        Anything with ``write``. It is neither opened nor closed here.
    batch_size : int or str
        Maximum size of a batch, in bytes or as in ``"64k"``, including its header and before compression; a larger
        record gets a separate batch.
        The default is the ``batch.size`` of Kafka's producers. Larger batches compress better, but brokers reject
        batches of more than ``message.max.bytes`` after compression, 1 MiB by default.
    base_offset : int
        Offset of the first record.
    append_time : int, datetime or str, optional
        Only with log_append_time. Default is the time when a batch is closed (in magic 1, when records are
        appended).
    magic, codec, timestamp_type, max_records
        As for `kbatch.encode`.
    leader_epoch, producer_id, producer_epoch, base_sequence, transactional, delete_horizon
        As for `kbatch.encode`.

    Attributes
    ----------
    next_offset : int
        The offset that the next record gets.
    next_sequence : int
        The base sequence of the batch after the last closed one; -1 without a producer id.
    bytes_written : int
        Bytes of batches written to the file.
    pending : int
        Records appended but not yet written.

    Raises
    ------
    ValueError, TypeError
        As by `kbatch.encode`. The writer is unchanged if it rejects a record or column.

    Examples
    --------
    >>> import io
    >>> import kbatch
    >>> file = io.BytesIO()
    >>> with kbatch.BatchWriter(file, codec="lz4", base_offset=100) as writer:
    ...     offset = writer.append(b"value", key=b"key", headers=[("source", b"test")])
    ...     offsets = writer.append_many([b"a", b"b", None], timestamps=1000)
    >>> offset, offsets, writer.next_offset
    (100, range(101, 104), 104)
    >>> kbatch.decode(file.getvalue()).values()
    [b'value', b'a', b'b', None]
    """

    def __init__(
        self,
        file: Sink,
        *,
        batch_size: SizeLike = 16384,
        max_records: int | None = None,
        base_offset: int = 0,
        magic: int = 2,
        codec: Codec | CodecName | CodecLevel | None = None,
        timestamp_type: TimestampType | Literal["create_time", "log_append_time"] = TimestampType.CREATE_TIME,
        append_time: Any = None,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        delete_horizon: int | None = None,
    ) -> None:
        check_types(BatchWriter.__init__, locals())
        self._layout = BatchLayout.of(
            magic=magic,
            codec=codec,
            timestamp_type=timestamp_type,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            delete_horizon=delete_horizon,
        )
        if not callable(getattr(file, "write", None)) or isinstance(file, io.TextIOBase):
            raise TypeError(f"file must be open for binary writing, as open(path, 'wb'), got {type(file).__name__}")
        # Unlike in `encode`, None is not allowed: the writer holds a batch until it is full.
        batch_size = size_between("batch_size", batch_size, 0, INT32_MAX)
        self._append_time = append_time
        append_time_of(self._layout, append_time)  # raises if it is invalid
        check_range("base_offset", base_offset, 0, INT64_MAX)
        self._plan = self._layout.plan(batch_size, max_records)
        self._batch_size = batch_size
        self._file = file
        self._closed = False
        self._failed = False
        self.next_offset = int(base_offset)
        self.next_sequence = base_sequence
        self.bytes_written = 0
        # Records from `append`, until there are enough to encode.
        self._single: list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]] = []
        self._single_bytes = 0
        # The batch that is not full yet: its row and its uncompressed payload.
        self._open: BatchRows | None = None
        self._payload = bytearray()
        # The initial position of the file, to which a failed write is undone.
        self._start: int | None = None
        with contextlib.suppress(Exception):
            self._start = file.tell()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        pending, written = counted(self.pending, "record"), counted(self.bytes_written, "byte")
        return f"<BatchWriter at offset {self.next_offset}: {pending} pending, {written} written>"

    @property
    def pending(self) -> int:
        """Records appended but not yet written."""
        return len(self._single) + (0 if self._open is None else int(self._open["record_count"][0]))

    def append(
        self, value: bytes | None, *, key: bytes | None = None, timestamp: Any = None, headers: Any = None
    ) -> int:
        """Add a record.

        Parameters
        ----------
        value, key : bytes or None
        timestamp : int, datetime or str, optional
            Default is the time of this call; -1 means no timestamp.
        headers : list of (key, value), optional
            As for `kbatch.encode`.

        Returns
        -------
        int
            The record's offset.
        """
        self._check_open()
        key, value = check_bytes(key, "key"), check_bytes(value, "value")
        pairs = header_pairs(headers, "headers")
        if self._layout.magic < 2 and pairs:
            raise ValueError(f"headers need magic 2, got magic {self._layout.magic}")
        if self._layout.magic == 0 and timestamp is not None:
            raise ValueError("magic 0 has no timestamps")
        stamp = now() if timestamp is None else millisecond(timestamp)
        if not -1 <= stamp <= INT64_MAX:
            raise ValueError(f"timestamp must be -1 to {INT64_MAX}, got {stamp}")
        if self.next_offset > INT64_MAX:
            raise ValueError("the next offset would exceed 2**63 - 1")
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(_HEADER_OVERHEAD + len(name) + len(data or b"") for name, data in pairs)
        if size > INT32_MAX - 2 * _RECORD_OVERHEAD:
            raise ValueError(f"a record of {size} bytes exceeds the maximum size of a batch")
        offset = self.next_offset
        self._single.append((offset, stamp, key, value, pairs))
        self._single_bytes += size
        self.next_offset += 1
        if len(self._single) >= _KEPT or self._single_bytes >= min(self._batch_size, _KEPT_BYTES):
            self._settle()
        return offset

    def append_many(
        self, values: Any, *, keys: Any = None, timestamps: Any = None, headers: Any = None, offsets: Any = None
    ) -> range | npt.NDArray[np.int64]:
        """Add records from columns.

        Parameters
        ----------
        values, keys, timestamps, headers
            As for `kbatch.encode`. They may be changed after this returns.
        offsets : ndarray or sequence of int, optional
            Strictly increasing, the first at least `next_offset`. Default is consecutive offsets.

        Returns
        -------
        range or ndarray of int64
            The records' offsets.
        """
        self._check_open()
        appended = self._appended()
        records = record_columns(
            values,
            keys=keys,
            timestamps=timestamps,
            headers=headers,
            offsets=offsets,
            next_offset=self.next_offset,
            layout=self._layout,
            append_time=appended,
        )
        given: range | npt.NDArray[np.int64] = range(self.next_offset, self.next_offset + records.count)
        if offsets is not None:
            given = offsets_array(offsets, records.count)
        if records.count:
            self._settle()
            self._take(records)
        return given

    def flush(self) -> None:
        """Close and write the current batch; then flush the file, if it has ``flush``."""
        self._check_open()
        self._settle()
        self._close_batch()
        flush = getattr(self._file, "flush", None)
        if flush is not None:
            flush()

    def close(self) -> None:
        """Flush, and accept no more records. The file stays open."""
        if not self._closed:
            try:
                if not self._failed:
                    self.flush()
            finally:
                self._closed = True

    def __enter__(self) -> BatchWriter:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self._closed = True

    def _check_open(self) -> None:
        if self._failed:
            raise ValueError("an earlier write failed; records since the last complete batch are not in the file")
        if self._closed:
            raise ValueError("the writer is closed")

    def _appended(self) -> int | None:
        return append_time_of(self._layout, self._append_time)

    def _settle(self) -> None:
        """Encode the records from `append`."""
        if not self._single:
            return
        offsets, timestamps, keys, values, headers = (list(column) for column in zip(*self._single, strict=True))
        magic = self._layout.magic
        records = record_columns(
            values,
            keys=keys,
            timestamps=np.array(timestamps, np.int64) if magic else None,
            headers=headers if magic == 2 else None,
            offsets=np.array(offsets, np.int64),
            next_offset=offsets[0],
            layout=self._layout,
            append_time=self._appended(),
        )
        self._single, self._single_bytes = [], 0
        self._take(records)

    def _take(self, records: RecordColumns) -> None:
        """Write the batches that the records complete, and keep the payload of the last, incomplete one."""
        batches = plan_batches(records, self._plan, self._open)
        self.next_offset = int(batches["last_offset"][-1]) + 1
        try:
            self._take_batches(records, batches)
        except BaseException:
            self._failed = True
            raise

    def _take_batches(self, records: RecordColumns, batches: BatchRows) -> None:
        whole = batches[:-1]
        if self._open is not None:
            self._extend(records, batches, 0, skip=int(self._open["record_count"][0]))
            self._open = batches[:1].copy()
            if len(batches) == 1:
                return
            self._close_batch()
            whole = batches[1:-1]
        self._write_batches(records, whole)
        self._extend(records, batches, len(batches) - 1, skip=0)
        self._open = batches[-1:].copy()

    def _extend(self, records: RecordColumns, batches: BatchRows, i: int, skip: int) -> None:
        """Append the records of batch `i`, except the first `skip`, to the kept payload."""
        before = len(self._payload)
        size = int(batches["size"][i] - overheads(batches[i : i + 1])[0])
        self._payload.extend(bytes(size - before))
        with memoryview(self._payload) as whole, whole[before:] as out:
            row, fault = _kernel.payload(records, batches, i, skip, out)
        raise_fault(fault, row)

    def _close_batch(self) -> None:
        """Write the kept batch."""
        if self._open is None:
            return
        batches, payload = self._open, self._payload
        self._complete(batches)
        codec, magic = int(self._layout.codec), self._layout.magic
        stored: bytes | bytearray = payload
        if codec:
            with memoryview(payload) as plain:
                stored = compress(codec, plain, self._layout.level, magic)
        self._open, self._payload = None, bytearray()
        with frame_payload(batches, stored) as out:
            self._write(out)

    def _complete(self, batches: BatchRows) -> None:
        # In magic 1 every message holds the append time, so that the measured maximum is correct.
        appended = self._appended() if self._layout.magic == 2 else None
        self.next_sequence = self._layout.complete(batches, self.next_sequence, appended)

    def _write_batches(self, records: RecordColumns, batches: BatchRows) -> None:
        """Write complete batches, a run of some megabytes at a time."""
        if not len(batches):
            return
        self._complete(batches)
        ends = np.cumsum(batches["size"])
        start = 0
        while start < len(batches):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + _WRITE_BYTES, "right")))
            run = batches[start:stop]
            with compose_view(records, run, self._layout.level) as out:
                self._write(out)
            start = stop

    def _write(self, out: memoryview) -> None:
        """Write bytes of complete batches."""
        try:
            self._hand_over(out)
        except BaseException:
            self._failed = True
            self._take_back()
            raise
        self.bytes_written += len(out)

    def _hand_over(self, out: memoryview) -> None:
        """Write complete batches to the file, which may accept them in pieces."""
        done = 0
        while done < len(out):
            with out[done:] as rest:
                taken = self._file.write(rest)
            if taken is None and not isinstance(self._file, io.RawIOBase):
                return
            if not taken or not 0 < taken <= len(out) - done:
                raise OSError(f"the file took {taken} of {len(out) - done} bytes")
            done += taken

    def _take_back(self) -> None:
        """Truncate the file to the batches written before a failed write."""
        if self._start is not None:
            with contextlib.suppress(Exception):
                self._file.seek(self._start + self.bytes_written)  # type: ignore[attr-defined]
                self._file.truncate()  # type: ignore[attr-defined]
