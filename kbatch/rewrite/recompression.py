"""Batches -> the same batches with another codec: `recompress`.

The records of a batch of magic 2 are never looked at: its payload is decompressed and compressed, and the header around
it stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

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
from kbatch.format import ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, Codec, Limits
from kbatch.kernels import decode as _decode_kernel
from kbatch.kernels import repack as _repack
from kbatch.kernels.buffers import allocate
from kbatch.rewrite.grouping import reencoded
from kbatch.rewrite.rewriter import (
    Memory,
    OnError,
    RewriteReport,
    RewriteSettings,
    Run,
    rewrite_bytes,
)
from kbatch.write.encoding import frame_payload, parse_codec

__all__ = ["Recompression", "recompress"]

Bytes = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]

# Output is made in blocks of about so many bytes, which stay in the L2 cache.
_BLOCK_BYTES = 256 << 10
# How many times as large an ordinary batch becomes at most with another codec, and how large: for that there is room.
_ORDINARY_GROWTH = 8
_ORDINARY_BYTES = 16 << 20


def recompress(
    data: Buffer,
    codec: Codec | str,
    *,
    level: int | None = None,
    batch_size: int = 16384,
    on_error: OnError = "raise",
    limits: Limits | None = None,
    report: RewriteReport | None = None,
) -> bytes:
    """Compress the payloads of batches with another codec; every other field stays, but size and checksum.

    Control batches and batches without records have no codec and stay as they are. Messages of magic 0 and 1 that stand
    alone are put together to compressed sets up to `batch_size`; with ``codec="none"`` a compressed set becomes
    messages again. Records of magic 2 are not looked at.

    Parameters
    ----------
    data : buffer
        Whole batches.
    codec : {"none", "gzip", "snappy", "lz4", "zstd"}, or kbatch.Codec
        zstd only for magic 2.
    level : int, optional
        As for `kbatch.encode`. Without it a batch that has the codec already is copied.
    batch_size : int
        Bytes before compression.
    on_error, limits, report
        As for `convert`.

    Returns
    -------
    bytes

    Raises
    ------
    ConversionLossError
        At a message of magic 0 or 1, with zstd.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        At damage, as `kbatch.decode`.
    TruncatedBatchError
        If `data` ends within a batch.

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
    recompression = Recompression(
        codec, level=level, batch_size=batch_size, on_error=on_error, limits=limits, report=report
    )
    return rewrite_bytes(recompression, data)


# What a recompression does to a batch: it compresses the payload, or encodes records of magic 0 (2) or 1 (3).
_PAYLOAD, _RECORDS = 1, 2


class Recompression:
    """The `Rewriter` of `recompress`; see there for the parameters."""

    # What isn't compressed or decompressed stays.
    keeps_producers = True

    def __init__(
        self,
        codec: Codec | str | int,
        *,
        level: int | None = None,
        batch_size: int = 16384,
        on_error: OnError = "raise",
        limits: Limits | None = None,
        report: RewriteReport | None = None,
        block_bytes: int = _BLOCK_BYTES,
        ordinary_bytes: int = _ORDINARY_BYTES,
    ) -> None:
        self.settings = RewriteSettings.of(codec, level, batch_size, on_error, limits, report)
        self.codec = parse_codec(codec)
        self._block_bytes = block_bytes
        self._ordinary_bytes = ordinary_bytes

    def kinds(self, batches: Batches) -> npt.NDArray[np.int8]:
        """Return 0 for batches that stay as they are, or how the others are rewritten."""
        own, magic = batches["attributes"] & ATTRIBUTE_CODEC, batches["magic"]
        kinds = np.full(len(batches), _PAYLOAD, np.int8)
        # Uncompressed messages are entries of their own, and a compressed set is one entry.
        old = (magic < 2) & ((own == 0) | (self.codec == Codec.NONE))
        kinds[old] = _RECORDS + magic[old]
        if self.settings.level is None or self.codec == Codec.NONE:
            kinds[own == self.codec] = 0
        # Kafka never compresses these (ATT-R5, EMP-R3).
        control = batches["attributes"] & ATTRIBUTE_CONTROL != 0
        kinds[(magic == 2) & (control | (batches["record_count"] == 0))] = 0
        return kinds

    def rewrite(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Yield the batches of a run with the codec."""
        magics = run.batches["magic"]
        if self.codec == Codec.ZSTD and (magics < 2).any():
            row = run.batches[int(np.argmax(magics < 2))]
            raise error_at(
                ConversionLossError, row, run.source, f"magic {row['magic']} has no zstd; convert to magic 2 first"
            )
        if self.kinds(run.batches[:1])[0] == _PAYLOAD:
            return self._repacked(run, memory)
        return reencoded(run, int(magics[0]), self.codec, self.settings, memory)

    def _repacked(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Compress payloads again, a block at a time."""
        rows, report = run.batches, self.settings.report
        made = rows.copy()
        largest = min(_ORDINARY_GROWTH * int(rows["size"].max()), self._ordinary_bytes)
        scratch = allocate(max(self._block_bytes, largest))
        level, limit = level_of(self.codec, self.settings.level), self.settings.limits.max_decompressed_bytes
        target = _repack.Target(own_codecs(), self.codec, level, limit)
        done = 0
        while done < len(rows):
            out = memory(self._block_bytes + largest)
            last, used = _repack.repack(target, run.data, made, done, run.origin, scratch, out, self._block_bytes)
            if last > done:
                out = out[:used]
            else:
                last += 1
                try:
                    out = self._one_repacked(run.data, made[done:last], run.origin)
                except PayloadError as error:
                    self._leave_out(error, rows[done], run.source)
                    done = last
                    continue
            report.batches_written += last - done
            report.records += int(rows["record_count"][done:last].clip(0).sum())
            yield out
            done = last

    def _leave_out(self, error: PayloadError, row: np.void, source: str | None) -> None:
        """Raise for a payload that can't be decompressed, or leave its batch out."""
        if self.settings.on_error == "raise":
            position, base_offset = int(row["position"]), offset_of(row)
            raise finding_to_error(error.finding, source=source, position=position, base_offset=base_offset) from None
        self.settings.leave_out(row, finding_text(error.finding), source, InvalidRecordError)

    def _one_repacked(self, data: Bytes, batch: Batches, origin: int) -> memoryview:
        """Compress one payload again, whatever its framing and size."""
        position, size = np.empty(1, np.int64), np.empty(1, np.int64)
        _decode_kernel.payloads(data, batch, 0, 1, origin, position, size)
        start, stored = int(position[0]), int(size[0])
        if stored < 0:
            raise PayloadError(Finding(Fault.WRAPPER_VALUE))
        own, magic = int(batch["attributes"][0]) & ATTRIBUTE_CODEC, int(batch["magic"][0])
        arena = Arena()
        plain = data.data[start : start + stored]
        if own:
            decompress(own, plain, arena, self.settings.limits.max_decompressed_bytes, magic)
            plain = arena.view[: arena.used]
        payload = compress(self.codec, plain, self.settings.level, magic) if self.codec else plain
        batch["attributes"] = batch["attributes"] & ~ATTRIBUTE_CODEC | int(self.codec)
        return frame_payload(batch, payload)
