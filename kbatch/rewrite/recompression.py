"""Rewrites batches with another codec: `recompress`.

The records of a batch of magic 2 are not parsed: only its payload is decompressed and compressed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.codecs import compress, decompress, level_of, own_codecs
from kbatch.errors import (
    ConversionLossError,
    Fault,
    Finding,
    InvalidRecordError,
    error_at,
    finding_text,
    finding_to_error,
    offset_of,
)
from kbatch.format import ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, BytesLike, Codec, Limits
from kbatch.kernels import decode as _decode_kernel
from kbatch.kernels import repack as _repack
from kbatch.kernels.buffers import allocate
from kbatch.options import CodecLevel, CodecName, RaiseOrSkip
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.rewrite.grouping import reencoded
from kbatch.rewrite.rewriter import Memory, Rewriter, RewriteReport, Run, rewrite_bytes
from kbatch.write.composing import frame_payload

__all__ = ["Recompression", "recompress"]

# Buffers have the capacity for a batch that grows by this factor; larger ones are rewritten one by one.
RECOMPRESS_GROWTH = 8

# How a batch is rewritten: 1 compresses its payload again; 2 (magic 0) and 3 (magic 1) encode its records again.
_PAYLOAD, _RECORDS = 1, 2


@public_in("kbatch")
def recompress(
    data: BytesLike,
    codec: Codec | CodecName | CodecLevel,
    *,
    batch_size: SizeLike = 16384,
    on_error: RaiseOrSkip = "raise",
    limits: Limits | None = None,
    report: RewriteReport | None = None,
) -> bytes:
    """Compress the payloads of batches with another codec; all other fields stay, except size and checksum.

    Control batches and batches without records have no codec and are copied. Uncompressed messages of magic 0 and 1 are
    combined into compressed message sets of up to `batch_size`; with ``codec="none"`` a compressed message set becomes
    messages again. Records of magic 2 are not parsed.

    Parameters
    ----------
    data : buffer
        Complete batches.
    codec : str or kbatch.Codec
        As for `kbatch.encode`, with or without a level. Without a level, batches that have the codec already are
        copied. Only magic 2 supports zstd.
    batch_size : int or str
        Size limit of combined messages, in bytes before compression.
    on_error, limits, report
        As for `convert`.

    Returns
    -------
    bytes

    Raises
    ------
    ConversionLossError
        For a message of magic 0 or 1, with zstd.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        For damage, as in `kbatch.decode`.
    TruncatedBatchError
        If `data` ends with a partial batch.

    See Also
    --------
    kbatch.log.recompress_log : the same for a log of any size.

    Examples
    --------
    >>> import kbatch
    >>> batch = kbatch.encode([b"value"] * 100, timestamps=1000, producer_id=7, producer_epoch=0, base_sequence=3)
    >>> packed = kbatch.recompress(batch, "zstd")
    >>> len(packed) < len(batch) and kbatch.recompress(packed, "none") == batch
    True
    """
    check_types(recompress, locals())
    rewriter = Recompression(codec, batch_size=batch_size, on_error=on_error, limits=limits, report=report)
    return rewrite_bytes(rewriter, data)


class Recompression(Rewriter):
    """The `Rewriter` of `recompress`; see there for the parameters."""

    codec: Codec
    # Output is produced in blocks of about this size, which stay in the L2 cache.
    block_bytes = 256 << 10
    # The largest batch, after recompression, for which buffers have the capacity.
    ordinary_bytes = 16 << 20

    def __init__(self, codec: Codec | str | None, **options: Any) -> None:
        if codec is None:
            raise TypeError("codec must be a str such as 'zstd:3', or a kbatch.Codec, got None")
        super().__init__(codec, **options)

    def kinds(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.int8]:
        """Return 0 for each batch that is copied, and the kind of rewriting for others."""
        own, magic = batches["attributes"] & ATTRIBUTE_CODEC, batches["magic"]
        kinds = np.full(len(batches), _PAYLOAD, np.int8)
        # An uncompressed message is an entry; a compressed message set is one entry for many messages.
        old = (magic < 2) & ((own == 0) | (self.codec == Codec.NONE))
        kinds[old] = _RECORDS + magic[old]
        if self.level is None or self.codec == Codec.NONE:
            kinds[own == self.codec] = 0
        # Kafka never compresses these (ATT-R5, EMP-R3).
        control = batches["attributes"] & ATTRIBUTE_CONTROL != 0
        kinds[(magic == 2) & (control | (batches["record_count"] == 0))] = 0
        return kinds

    def rewrite(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Yield the batches of a run, compressed with the codec."""
        magics = run.batches["magic"]
        if self.codec == Codec.ZSTD and (magics < 2).any():
            row = run.batches[int(np.argmax(magics < 2))]
            text = f"magic {row['magic']} does not support zstd; convert to magic 2 first"
            raise error_at(ConversionLossError, row, run.source, text)
        if self.kinds(run.batches[:1])[0] == _PAYLOAD:
            return self._repacked(run, memory)
        return reencoded(run, int(magics[0]), self, memory)

    def _repacked(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Compress payloads again, one block at a time."""
        rows, report = run.batches, self.report
        made = rows.copy()
        largest = min(RECOMPRESS_GROWTH * int(rows["size"].max()), self.ordinary_bytes)
        scratch = allocate(max(self.block_bytes, largest))
        level, limit = level_of(self.codec, self.level), self.limits.max_decompressed_bytes
        target = _repack.Target(own_codecs(), self.codec, level, limit)
        done = 0
        while done < len(rows):
            out = memory(self.block_bytes + largest)
            last, used = _repack.repack(target, run.data, made, done, run.origin, scratch, out, self.block_bytes)
            if last > done:
                out = out[:used]
            else:
                last += 1
                try:
                    out = self._one_repacked(run.data, made[done:last], run.origin)
                except PayloadError as error:
                    self._leave_out_payload(error, rows[done], run.source)
                    done = last
                    continue
            report._count_written(rows[done:last])
            yield out
            done = last

    def _leave_out_payload(self, error: PayloadError, row: np.void, source: str | None) -> None:
        """Raise for a payload that can't be decompressed, or leave its batch out."""
        if self.on_error == "raise":
            position, base_offset = int(row["position"]), offset_of(row)
            raise finding_to_error(error.finding, source=source, position=position, base_offset=base_offset) from None
        self.leave_out(row, finding_text(error.finding), source, InvalidRecordError)

    def _one_repacked(self, data: npt.NDArray[np.uint8], batch: npt.NDArray[np.void], origin: int) -> memoryview:
        """Compress one payload again, of any framing and size."""
        position, size = np.empty(1, np.int64), np.empty(1, np.int64)
        _decode_kernel.payloads(data, batch, 0, 1, origin, position, size)
        start, stored = int(position[0]), int(size[0])
        if stored < 0:
            raise PayloadError(Finding(Fault.WRAPPER_VALUE))
        own, magic = int(batch["attributes"][0]) & ATTRIBUTE_CODEC, int(batch["magic"][0])
        arena = Arena()
        payload: Any = data.data[start : start + stored]
        if own:
            decompress(own, payload, arena, self.limits.max_decompressed_bytes, magic)
            payload = arena.view[: arena.used]
        if self.codec:
            payload = compress(self.codec, payload, self.level, magic)
        batch["attributes"] = batch["attributes"] & ~ATTRIBUTE_CODEC | int(self.codec)
        return frame_payload(batch, payload)
