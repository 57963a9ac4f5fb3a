"""Batches -> the same records in another magic: `convert`.

What a conversion does to a batch follows Kafka: down as ``RecordsUtil.downConvert`` (PRD-R9), up as ``LogValidator``
(PRD-R8), but that offsets stay what they are. What the older format can't hold is lost only where the caller said so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.encoding import seal
from kbatch.errors import ConversionLossError
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_DTYPE,
    MIN_RECORD_SIZE,
    NO_TIMESTAMP,
    RECORD_DTYPE,
    Codec,
    Limits,
)
from kbatch.kernels import checksum
from kbatch.kernels import convert as _kernel
from kbatch.kernels.buffers import allocate
from kbatch.rewriting import MESSAGE_BYTES, OnError, Output, Rewriter, RewriteReport, error_at, runs
from kbatch.table import RecordTable

__all__ = ["Conversion", "Lossy", "convert"]

Lossy = Literal["raise", "drop"]
Bytes = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]

# By how much a message that becomes a batch of magic 2 grows at most.
_BATCH_GROWTH = 66
# What can't be held, as a refusal says it: nobody has looked further than to the first of them.
_REFUSED_TEXTS = {
    "control_batches": "control batches, which end transactions",
    "transactional_batches": "batches of transactions, what was aborted among them",
    "producer_batches": "producer ids, epochs and sequences",
    "delete_horizons": "delete horizons",
    "records_with_headers": "headers of records",
    "timestamps": "timestamps",
}
# Nobody is asked about these: they say nothing about records.
_UNASKED = ("leader_epochs", "empty_batches")


def convert(
    data: Buffer,
    magic: int = 2,
    *,
    codec: Codec | str | None = None,
    level: int | None = None,
    lossy: Lossy = "raise",
    batch_size: int = 16384,
    on_error: OnError = "raise",
    limits: Limits | None = None,
    report: RewriteReport | None = None,
) -> bytes:
    """Convert batches to another magic; those that have it are copied as they are.

    Offsets, keys, values, timestamps and their type stay. To magic 2: a compressed message set becomes a batch;
    messages that stand alone are put together up to `batch_size`; magic 0 has no timestamps, which gives -1. From magic
    2: a compressed batch becomes a compressed message set, of any other each record a message.

    Parameters
    ----------
    data : buffer
        Whole batches.
    magic : {2, 1, 0}
    codec : {"none", "gzip", "snappy", "lz4", "zstd"}, or kbatch.Codec, optional
        Of what is converted. Default is each batch's own. Magic 0 and 1 have no zstd: another one has to be given then.
    level : int, optional
        As for `kbatch.encode`, with `codec`.
    lossy : {"raise", "drop"}
        What to do about what the magic can't hold: refuse, or drop it and count it in the report. Below magic 2 that
        are headers, control batches, producer ids, epochs and sequences, that batches are transactional, and delete
        horizons; with magic 0 timestamps too. As in Kafka's down-conversion, records of aborted transactions become
        records like all others. Leader epochs, and batches without records, are dropped and counted in any case.
    batch_size : int
        Bytes before compression.
    on_error : {"raise", "skip"}
        What to do at damage: raise; or leave it out, and say so in the report.
    limits : Limits, optional
        What a batch may cost at most.
    report : RewriteReport, optional
        Is added to.

    Returns
    -------
    bytes

    Raises
    ------
    ConversionLossError
        At the first batch that can't be converted without a loss.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        At damage, as `kbatch.decode`.
    TruncatedBatchError
        If `data` ends within a batch.

    See Also
    --------
    kbatch.log.convert_log : the same for a log of any size.

    Examples
    --------
    >>> import kbatch
    >>> old = kbatch.encode([b"a", b"b"], timestamps=1000, magic=1)
    >>> new = kbatch.convert(old, 2)
    >>> kbatch.scan(new)["record_count"].tolist(), kbatch.decode(new).values()
    ([2], [b'a', b'b'])

    Magic 1 has no headers:

    >>> report = kbatch.RewriteReport()
    >>> batch = kbatch.encode([b"a"], headers=[[("k", b"v")]], timestamps=1000)
    >>> kbatch.convert(batch, 1, lossy="drop", report=report) == kbatch.encode([b"a"], timestamps=1000, magic=1)
    True
    >>> report.lost
    {'records_with_headers': 1}
    """
    return Conversion(
        magic,
        codec=codec,
        level=level,
        lossy=lossy,
        batch_size=batch_size,
        on_error=on_error,
        limits=limits,
        report=report,
    ).bytes_of(data)


class Conversion(Rewriter):
    """What `convert` does; see there for the parameters."""

    def __init__(
        self,
        magic: int = 2,
        *,
        codec: Codec | str | int | None = None,
        level: int | None = None,
        lossy: Lossy = "raise",
        batch_size: int = 16384,
        on_error: OnError = "raise",
        limits: Limits | None = None,
        report: RewriteReport | None = None,
    ) -> None:
        super().__init__(
            codec=codec, level=level, batch_size=batch_size, on_error=on_error, limits=limits, report=report
        )
        if magic not in (0, 1, 2):
            raise ValueError(f"magic must be 0, 1 or 2, got {magic!r}")
        if lossy not in ("raise", "drop"):
            raise ValueError(f"lossy must be 'raise' or 'drop', got {lossy!r}")
        if level is not None and codec is None:
            raise ValueError("level goes with codec=")
        if magic < 2 and self.codec == Codec.ZSTD:
            raise ValueError(f"zstd needs magic 2, got magic {magic}")
        self.magic = magic
        self.lossy = lossy

    def _kinds(self, rows: Batches) -> npt.NDArray[np.int8]:
        kinds: npt.NDArray[np.int8] = (rows["magic"] != self.magic).astype(np.int8)
        return kinds

    def _rewrite(self, kind: int, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[memoryview]:
        if self.magic < 2:
            rows = self._checked_headers(rows, source)
        for part, run, begin in runs(data, rows, origin):
            merged = self._merged(part, run, begin) if self.magic == 2 and not self.codec else None
            if merged is not None:
                yield merged
                continue
            flat = self._flat(run)
            if flat is not None and flat[0]:
                out = memoryview(allocate(_most_bytes(run)))
                done, used = self._lower(part, run, flat, begin, out, check_crc=False)
                if done:
                    yield out[:used]
                    if done == len(run):
                        self._last_offset = -1
                        continue
                    run = run[done:]
                    part = part[int(run["position"][0]) - begin :]
                    begin = int(run["position"][0])
            for table in self._tables(part, run, begin, source):
                piece = self._rebuilt(table, self.magic, self.codec, source)
                if piece:
                    yield piece
            self._last_offset = -1

    def _flat(self, rows: Batches) -> npt.NDArray[np.bool_] | None:
        if self.magic == 2 or self.codec:
            return None
        attributes = rows["attributes"]
        flat: npt.NDArray[np.bool_] = (rows["magic"] == 2) & (rows["record_count"] > 0)
        flat &= attributes & (ATTRIBUTE_CODEC | ATTRIBUTE_CONTROL) == 0
        if self.lossy == "raise":
            flat &= attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_DELETE_HORIZON) == 0
            flat &= rows["producer_id"] < 0
        return flat

    def _lower_into(self, out: Output, data: Bytes, rows: Batches, flat: npt.NDArray[np.bool_]) -> int:
        room = out.memory(_most_bytes(rows))
        done, used = self._lower(data, rows, flat, 0, room, check_crc=True)
        if done:
            self.report.bytes_written += used
            out.add([room[:used]], int(rows["position"][done - 1] + rows["size"][done - 1]))
        return done

    def _report_lowered(self, rows: Batches) -> None:
        self._checked_headers(rows, None)
        self.report.batches += len(rows)
        self.report.rewritten += len(rows)
        self.report.bytes += int(rows["size"].sum())

    def _lower(
        self,
        data: Bytes,
        rows: Batches,
        flat: npt.NDArray[np.bool_],
        origin: int,
        out: memoryview,
        *,
        check_crc: bool,
    ) -> tuple[int, int]:
        """Write the messages of batches, up to the first that isn't flat or ordinary; how many batches and bytes."""
        if not flat.all():
            rows = rows[: int(np.argmin(flat))]
        most = int(_most_records(rows).max())
        if most > len(self._rows):
            self._rows = np.empty(max(most, 2 * len(self._rows)), RECORD_DTYPE)
        drops = self.lossy == "drop"
        done, used, records, with_headers, with_times, self._last_offset = _kernel.lower(
            data, rows, origin, self.magic, self._last_offset, self._rows, out, drops, check_crc, checksum.MAX_SIZE
        )
        report = self.report
        report.records += records
        report.batches_written += records
        report.records_with_headers += with_headers
        report.timestamps += 0 if self.magic else with_times
        return done, used

    def _merged(self, data: Bytes, rows: Batches, origin: int) -> memoryview | None:
        """Put messages that stand alone together; None if one doesn't, or needs a closer look."""
        out = memoryview(allocate(len(data) + len(rows) * _BATCH_GROWTH))
        made = np.empty(len(rows), BATCH_DTYPE)
        most = checksum.MAX_SIZE
        used, count = _kernel.merge(data, rows, origin, self.batch_size, out, made, most)
        if used < 0:
            return None
        seal(made[:count], out)
        self.report.records += len(rows)
        self.report.batches_written += count
        return out[:used]

    def _checked_headers(self, rows: Batches, source: str | None) -> Batches:
        """Count what is lost of headers, or refuse it."""
        current = rows["magic"] == 2
        attributes = rows["attributes"]
        control = current & (attributes & ATTRIBUTE_CONTROL != 0)
        empty = current & (rows["record_count"] == 0) & ~control
        data = current & ~control
        self._lose("control_batches", control, rows, source)
        self._lose("transactional_batches", data & (attributes & ATTRIBUTE_TRANSACTIONAL != 0), rows, source)
        self._lose("producer_batches", data & (rows["producer_id"] >= 0), rows, source)
        self._lose("delete_horizons", data & (attributes & ATTRIBUTE_DELETE_HORIZON != 0), rows, source)
        self._lose("leader_epochs", data & (rows["partition_leader_epoch"] >= 0), rows, source)
        self._lose("empty_batches", empty, rows, source)
        if self.codec is None:
            packed = data & ~empty & (attributes & ATTRIBUTE_CODEC == Codec.ZSTD)
            if packed.any():
                raise error_at(
                    ConversionLossError,
                    rows[int(np.argmax(packed))],
                    source,
                    f"magic {self.magic} has no zstd, with which this batch is compressed; name another codec, as with "
                    "codec='lz4' (--codec lz4)",
                )
        return rows

    def _check_records(self, table: RecordTable, source: str | None) -> None:
        if self.magic == 2:
            return
        rows, batches = table.records, table.batches
        if self.magic == 0:
            self._lose("timestamps", rows["timestamp"] != NO_TIMESTAMP, batches, source, rows["batch"])
        self._lose("records_with_headers", rows["header_count"] > 0, batches, source, rows["batch"])

    def _lose(
        self,
        name: str,
        lost: npt.NDArray[np.bool_],
        batches: Batches,
        source: str | None,
        batch: npt.NDArray[np.int32] | None = None,
    ) -> None:
        count = int(np.count_nonzero(lost))
        if not count:
            return
        if self.lossy == "raise" and name not in _UNASKED:
            row = int(np.argmax(lost))
            raise error_at(
                ConversionLossError,
                batches[row if batch is None else int(batch[row])],
                source,
                f"magic {self.magic} can't hold {_REFUSED_TEXTS[name]}, which this is the first batch to have; "
                "lossy='drop' (--lossy drop) drops them and tells how many they were",
            )
        setattr(self.report, name, getattr(self.report, name) + count)


def _most_records(rows: Batches) -> npt.NDArray[np.int64]:
    """Return how many records batches of magic 2 may have: no count is believed that the bytes can't hold."""
    most: npt.NDArray[np.int64] = np.minimum(rows["record_count"], rows["size"] // MIN_RECORD_SIZE)
    return most


def _most_bytes(rows: Batches) -> int:
    """Return how many bytes batches of magic 2 may become as messages."""
    return int(rows["size"].sum() + MESSAGE_BYTES * _most_records(rows).clip(0).sum())
