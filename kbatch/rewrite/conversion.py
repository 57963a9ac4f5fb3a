"""Rewrites batches with the same records in another magic: `convert`.

Conversion follows Kafka, except that offsets stay: down-conversion ``RecordsUtil.downConvert`` (PRD-R9), up-conversion
``LogValidator`` (PRD-R8). Fields that the older format lacks are dropped only with ``lossy="drop"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import ConversionLossError, error_at
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    NO_TIMESTAMP,
    BytesLike,
    Codec,
    Limits,
)
from kbatch.options import CodecLevel, CodecName, RaiseOrSkip
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.rewrite.grouping import reencoded
from kbatch.rewrite.rewriter import Memory, Rewriter, RewriteReport, Run, rewrite_bytes
from kbatch.table import RecordTable

__all__ = ["Conversion", "Lossy", "convert"]

Lossy = Literal["raise", "drop"]

# The losses, as error messages name them.
_REFUSED_TEXTS = {
    "control_batches": "control batches, which end transactions",
    "transactional_batches": "transactional batches, some of which may be aborted",
    "producer_batches": "producer ids, epochs and sequences",
    "delete_horizons": "delete horizons",
    "records_with_headers": "headers of records",
    "timestamps": "timestamps",
}
# These are dropped with any `lossy`: no record depends on them.
_ALWAYS_DROPPED = ("leader_epochs", "empty_batches")


@public_in("kbatch")
def convert(
    data: BytesLike,
    magic: int = 2,
    *,
    codec: Codec | CodecName | CodecLevel | None = None,
    lossy: Lossy = "raise",
    batch_size: SizeLike = 16384,
    on_error: RaiseOrSkip = "raise",
    limits: Limits | None = None,
    report: RewriteReport | None = None,
) -> bytes:
    """Convert batches to another magic; batches that have it already are copied.

    Offsets, keys, values, timestamps and their type stay. To magic 2: a compressed message set becomes a batch;
    uncompressed messages are combined into batches of up to `batch_size`; timestamps of magic 0 are -1. From magic 2: a
    compressed batch becomes a compressed message set, and each record of an uncompressed batch a message.

    Parameters
    ----------
    data : buffer
        Complete batches.
    magic : {2, 1, 0}
    codec : str or kbatch.Codec, optional
        Codec of the converted batches, as for `kbatch.encode`. Default is the codec of each batch. Magic 0 and 1 do not
        support zstd: batches with zstd need another `codec`.
    lossy : {"raise", "drop"}
        Whether to raise for fields that the magic lacks, or to drop and count them. Magic 0 and 1 have no headers,
        control batches, producer ids, epochs and sequences, transactions, or delete horizons; magic 0 has no
        timestamps. As in Kafka's down-conversion, records of aborted transactions become ordinary records. Leader
        epochs, and batches without records, are dropped and counted with either value.
    batch_size : int or str
        Size limit of combined messages, in bytes before compression.
    on_error : {"raise", "skip"}
        Whether to raise at damage, or to leave it out and list it in the report.
    limits : Limits, optional
        As for `kbatch.decode`.
    report : RewriteReport, optional
        Counts are added to this report.

    Returns
    -------
    bytes

    Raises
    ------
    ConversionLossError
        For the first batch that can't be converted without a loss.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        For damage, as in `kbatch.decode`.
    TruncatedBatchError
        If `data` ends with a partial batch.

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
    check_types(convert, locals())
    options: dict[str, Any] = {"batch_size": batch_size, "on_error": on_error, "limits": limits, "report": report}
    rewriter = Conversion(magic, lossy=lossy, codec=codec, **options)
    return rewrite_bytes(rewriter, data)


class Conversion(Rewriter):
    """The `Rewriter` of `convert`; see there for the parameters."""

    def __init__(self, magic: int = 2, *, lossy: Lossy = "raise", **options: Any) -> None:
        super().__init__(**options)
        if magic not in (0, 1, 2):
            raise ValueError(f"magic must be 0, 1 or 2, got {magic!r}")
        if lossy not in ("raise", "drop"):
            raise ValueError(f"lossy must be 'raise' or 'drop', got {lossy!r}")
        if magic < 2 and self.codec == Codec.ZSTD:
            raise ValueError(f"zstd needs magic 2, got magic {magic}")
        self.magic = magic
        self.lossy = lossy
        self.keeps_producers = magic == 2

    def kinds(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.int8]:
        """Return 1 for each batch of another magic."""
        kinds: npt.NDArray[np.int8] = (batches["magic"] != self.magic).astype(np.int8)
        return kinds

    def rewrite(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Yield batches or messages with the records of a run."""
        check = None
        if self.magic < 2:
            self._check_headers(run.batches, run.source)
            check = self._check_records
        return reencoded(run, self.magic, self, memory, check)

    def _check_headers(self, rows: npt.NDArray[np.void], source: str | None) -> None:
        """Count the losses in batch headers, or raise."""
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
        zstd = data & ~empty & (attributes & ATTRIBUTE_CODEC == Codec.ZSTD)
        if self.codec is None and zstd.any():
            text = f"magic {self.magic} does not support zstd; choose another codec, such as codec='lz4' (--codec lz4)"
            raise error_at(ConversionLossError, rows[int(np.argmax(zstd))], source, text)

    def _check_records(self, table: RecordTable, source: str | None) -> None:
        """Count the losses in records, or raise."""
        rows, batches = table.records, table.batches
        if self.magic == 0:
            self._lose("timestamps", rows["timestamp"] != NO_TIMESTAMP, batches, source, rows["batch"])
        self._lose("records_with_headers", rows["header_count"] > 0, batches, source, rows["batch"])

    def _lose(
        self,
        name: str,
        lost: npt.NDArray[np.bool_],
        batches: npt.NDArray[np.void],
        source: str | None,
        batch: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Count the batches marked in `lost`, or raise. With `batch`, the row of each record's batch, count records."""
        count = int(np.count_nonzero(lost))
        if not count:
            return
        if self.lossy == "raise" and name not in _ALWAYS_DROPPED:
            row = int(np.argmax(lost))
            text = (
                f"magic {self.magic} does not support {_REFUSED_TEXTS[name]}; this is the first batch with them, and "
                "lossy='drop' (--lossy drop) drops and counts them"
            )
            raise error_at(ConversionLossError, batches[row if batch is None else int(batch[row])], source, text)
        setattr(self.report, name, getattr(self.report, name) + count)
