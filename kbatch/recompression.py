"""Batches -> the same batches with another codec: `recompress`.

The records of a batch of magic 2 are never looked at: its payload is decompressed and compressed, and the header around
it stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.codecs import Arena, PayloadError, compress, decompress, level_of, own_codecs
from kbatch.encoding import frame, overheads, raise_trouble, seal
from kbatch.errors import ConversionLossError, Fault, Finding
from kbatch.format import ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, Codec, Limits
from kbatch.kernels import checksum
from kbatch.kernels import decode as _decode_kernel
from kbatch.kernels import repack as _repack
from kbatch.kernels.buffers import allocate
from kbatch.rewriting import BLOCK_BYTES, OnError, Rewriter, RewriteReport, error_at, runs

__all__ = ["Recompression", "recompress"]

Bytes = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]

_INT32_MAX = 2**31 - 1
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
    return Recompression(
        codec, level=level, batch_size=batch_size, on_error=on_error, limits=limits, report=report
    ).bytes_of(data)


# What a recompression does to a batch: only its payload, or its records.
_PAYLOAD, _RECORDS = 1, 2


class Recompression(Rewriter):
    """What `recompress` does; see there for the parameters."""

    codec: Codec

    def __init__(
        self,
        codec: Codec | str | int,
        *,
        level: int | None = None,
        batch_size: int = 16384,
        on_error: OnError = "raise",
        limits: Limits | None = None,
        report: RewriteReport | None = None,
    ) -> None:
        super().__init__(
            codec=codec, level=level, batch_size=batch_size, on_error=on_error, limits=limits, report=report
        )

    def _kinds(self, rows: Batches) -> npt.NDArray[np.int8]:
        own = rows["attributes"] & ATTRIBUTE_CODEC
        current = rows["magic"] == 2
        kinds = np.full(len(rows), _PAYLOAD, np.int8)
        # Messages stand alone, or are one compressed one: these are other records of the log.
        kinds[~current & ((own == 0) | (self.codec == Codec.NONE))] = _RECORDS
        if self.level is None or self.codec == Codec.NONE:
            kinds[own == self.codec] = 0
        # Kafka never compresses these (ATT-R5, EMP-R3).
        kinds[current & ((rows["attributes"] & ATTRIBUTE_CONTROL != 0) | (rows["record_count"] == 0))] = 0
        return kinds

    def _rewrite(self, kind: int, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[memoryview]:
        if self.codec == Codec.ZSTD and (rows["magic"] < 2).any():
            row = rows[int(np.argmax(rows["magic"] < 2))]
            raise error_at(
                ConversionLossError, row, source, f"magic {row['magic']} has no zstd; convert to magic 2 first"
            )
        if kind == _PAYLOAD:
            yield from self._repacked(data, rows, origin, source)
            return
        magics = rows["magic"]
        breaks = [0, *(np.flatnonzero(magics[1:] != magics[:-1]) + 1).tolist(), len(rows)]
        for lo, hi in pairwise(breaks):
            for part, run, begin in runs(data, rows[lo:hi], origin):
                for table in self._tables(part, run, begin, source):
                    piece = self._rebuilt(table, int(magics[lo]), self.codec, source)
                    if piece:
                        yield piece
                self._last_offset = -1

    def _repacked(self, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[memoryview]:
        """Compress payloads anew, some of them at a time."""
        made = rows.copy()
        largest = min(_ORDINARY_GROWTH * int(rows["size"].max()), _ORDINARY_BYTES)
        scratch = allocate(max(BLOCK_BYTES, largest))
        done = 0
        while done < len(rows):
            out = self._memory(BLOCK_BYTES + largest)
            last, used = _repack.repack(
                data,
                made,
                done,
                origin,
                own_codecs(),
                self.codec,
                level_of(self.codec, self.level),
                self.limits.max_decompressed_bytes,
                scratch,
                out,
                BLOCK_BYTES,
                checksum.MAX_SIZE,
            )
            if last > done:
                out = out[:used]
                seal(made[done:last], out)
            else:
                last += 1
                try:
                    out = self._one_repacked(data, made[done:last], origin)
                except PayloadError as error:
                    self._damaged(error, rows[done], source)
                    done = last
                    continue
            self.report.batches_written += last - done
            self.report.records += int(rows["record_count"][done:last].clip(0).sum())
            yield out
            done = last

    def _one_repacked(self, data: Bytes, batch: Batches, origin: int) -> memoryview:
        """Do that to one batch, whatever its shape and size."""
        position, size = np.empty(1, np.int64), np.empty(1, np.int64)
        _decode_kernel.payloads(data, batch, 0, 1, origin, position, size)
        start, stored = int(position[0]), int(size[0])
        if stored < 0:
            raise PayloadError(Finding(Fault.WRAPPER_VALUE))
        own, magic = int(batch["attributes"][0]) & ATTRIBUTE_CODEC, int(batch["magic"][0])
        arena = Arena()
        plain = data.data[start : start + stored]
        if own:
            decompress(own, plain, arena, self.limits.max_decompressed_bytes, magic)
            plain = arena.view[: arena.used]
        payload = compress(self.codec, plain, self.level, magic) if self.codec else plain
        batch["attributes"] = batch["attributes"] & ~ATTRIBUTE_CODEC | int(self.codec)
        before = int(overheads(batch)[0])
        batch["size"] = before + len(payload)
        if batch["size"][0] > _INT32_MAX:
            raise_trouble(7, 0, int(batch["size"][0]))
        out = memoryview(allocate(before + len(payload)))[: before + len(payload)]
        out[before:] = payload
        frame(batch, out)
        return out
