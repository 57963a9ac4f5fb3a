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

from kbatch.errors import ConversionLossError, error_at
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    NO_TIMESTAMP,
    Codec,
    Limits,
)
from kbatch.rewrite.grouping import reencoded
from kbatch.rewrite.rewriter import Memory, OnError, RewriteReport, RewriteSettings, Run, rewrite_bytes
from kbatch.table import RecordTable

__all__ = ["Conversion", "Lossy", "convert"]

Lossy = Literal["raise", "drop"]
Batches = npt.NDArray[np.void]

# What can't be held, as an error names it.
_REFUSED_TEXTS = {
    "control_batches": "control batches, which end transactions",
    "transactional_batches": "batches of transactions, what was aborted among them",
    "producer_batches": "producer ids, epochs and sequences",
    "delete_horizons": "delete horizons",
    "records_with_headers": "headers of records",
    "timestamps": "timestamps",
}
# These are dropped whatever `lossy` is: they say nothing about records.
_ALWAYS_DROPPED = ("leader_epochs", "empty_batches")


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
    conversion = Conversion(
        magic,
        codec=codec,
        level=level,
        lossy=lossy,
        batch_size=batch_size,
        on_error=on_error,
        limits=limits,
        report=report,
    )
    return rewrite_bytes(conversion, data)


class Conversion:
    """The `Rewriter` of `convert`; see there for the parameters."""

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
        self.settings = RewriteSettings.of(codec, level, batch_size, on_error, limits, report)
        if magic not in (0, 1, 2):
            raise ValueError(f"magic must be 0, 1 or 2, got {magic!r}")
        if lossy not in ("raise", "drop"):
            raise ValueError(f"lossy must be 'raise' or 'drop', got {lossy!r}")
        if level is not None and codec is None:
            raise ValueError("level goes with codec=")
        if magic < 2 and self.settings.codec == Codec.ZSTD:
            raise ValueError(f"zstd needs magic 2, got magic {magic}")
        self.magic = magic
        self.lossy = lossy

    @property
    def keeps_producers(self) -> bool:
        """Whether producer ids and control batches are kept."""
        return self.magic == 2

    def kinds(self, batches: Batches) -> npt.NDArray[np.int8]:
        """Return 1 for each batch of another magic."""
        kinds: npt.NDArray[np.int8] = (batches["magic"] != self.magic).astype(np.int8)
        return kinds

    def rewrite(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Yield the batches or messages that hold the records of a run."""
        check = None
        if self.magic < 2:
            self._check_headers(run.batches, run.source)
            check = self._check_records
        return reencoded(run, self.magic, self.settings.codec, self.settings, memory, check)

    def _check_headers(self, rows: Batches, source: str | None) -> None:
        """Count what is lost of the headers of batches, or raise."""
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
        if self.settings.codec is None:
            packed = data & ~empty & (attributes & ATTRIBUTE_CODEC == Codec.ZSTD)
            if packed.any():
                raise error_at(
                    ConversionLossError,
                    rows[int(np.argmax(packed))],
                    source,
                    f"magic {self.magic} has no zstd, with which this batch is compressed; name another codec, as with "
                    "codec='lz4' (--codec lz4)",
                )

    def _check_records(self, table: RecordTable, source: str | None) -> None:
        """Count what is lost of records, or raise."""
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
        if self.lossy == "raise" and name not in _ALWAYS_DROPPED:
            row = int(np.argmax(lost))
            raise error_at(
                ConversionLossError,
                batches[row if batch is None else int(batch[row])],
                source,
                f"magic {self.magic} can't hold {_REFUSED_TEXTS[name]}, which this is the first batch to have; "
                "lossy='drop' (--lossy drop) drops them and tells how many they were",
            )
        report = self.settings.report
        setattr(report, name, getattr(report, name) + count)
