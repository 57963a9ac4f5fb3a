"""Every way to decompress a payload from Python that is fast for some size of it, and how kbatch's are compressed.

None is told a size that the payload itself doesn't tell: a gzip member ends with its size, a snappy block begins with
it, an lz4 frame of the corpora says how large a block may be, and zstd frames of the corpora say nothing. What isn't
installed isn't in `WAYS`. Left out, as slower at every size: pyarrow's codecs, backports.zstd; and for CRC-32C, where
the crc32c package is the measure, google-crc32c and awscrt.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cramjam
import lz4.block
import lz4.frame
import snappy
import zstandard

from bench.corpora import KIB, MIB
from kbatch.kernels import buffers

__all__ = ["COMPRESS", "WAYS", "Way", "fastest"]

# Made once: a context for each batch would cost more than a small batch's data.
zstd_context = zstandard.ZstdDecompressor()
zstd_compressor = zstandard.ZstdCompressor(3)
# Memory that was touched before, as large as the largest payload.
warm = memoryview(bytearray(2 * MIB))


@dataclass(frozen=True)
class Way:
    """A library and a call of it, which either makes an object of each payload or fills memory that it is given."""

    library: str
    call: str
    take: Callable[[bytes], Any] | None = None
    fill: Callable[[bytes, memoryview], int] | None = None

    @property
    def name(self) -> str:
        return f"{self.library} {self.call}"

    def kept(self, payloads: list[bytes], size: int) -> list[Any]:
        """Decompress all and hold on to it: as objects, or in one piece of memory of the kind that a table gets."""
        if self.take is not None:
            take = self.take
            return [take(payload) for payload in payloads]
        assert self.fill is not None
        fill, at = self.fill, 0
        arena = memoryview(buffers.allocate(size + 64 * KIB))
        for payload in payloads:
            at += fill(payload, arena[at:])
        return [arena[:at]]

    def dropped(self, payloads: list[bytes]) -> int:
        """Decompress all into the same warm memory, or into objects that are let go; return the bytes."""
        size = 0
        if self.take is not None:
            take = self.take
            for payload in payloads:
                size += len(take(payload))
        else:
            assert self.fill is not None
            fill = self.fill
            for payload in payloads:
                size += fill(payload, warm)
        return size


def gzip_size(payload: bytes) -> int:
    return int.from_bytes(payload[-4:], "little")


def xerial_blocks(payload: bytes) -> Iterator[memoryview]:
    """Give the blocks of a xerial stream, behind its 16-byte header."""
    view = memoryview(payload)
    at = 16
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 4], "big")
        yield view[at + 4 : at + 4 + size]
        at += 4 + size


def xerial_take(uncompress: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    return lambda payload: b"".join([uncompress(block) for block in xerial_blocks(payload)])


def xerial_fill(payload: bytes, room: memoryview) -> int:
    size = 0
    for block in xerial_blocks(payload):
        size += cramjam.snappy.decompress_raw_into(block, room[size:])
    return size


def lz4_blocks(payload: bytes) -> Iterator[tuple[memoryview, bool]]:
    """Give the blocks of a frame, and whether each is stored as it was; corpora's frames have a header of 7 bytes."""
    view = memoryview(payload)
    at = 7
    while length := int.from_bytes(payload[at : at + 4], "little"):
        end = at + 4 + (length & 0x7FFFFFFF)
        yield view[at + 4 : end], bool(length >> 31)
        at = end


def lz4_fill(payload: bytes, room: memoryview) -> int:
    size = 0
    for block, stored in lz4_blocks(payload):
        if stored:
            room[size : size + len(block)] = block
            size += len(block)
        else:
            size += cramjam.lz4.decompress_block_into(block, room[size:], 64 * KIB)
    return size


def lz4_take(payload: bytes) -> bytes:
    decompress = lz4.block.decompress
    parts = [
        bytes(block) if stored else decompress(block, uncompressed_size=64 * KIB)
        for block, stored in lz4_blocks(payload)
    ]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def ways() -> dict[str, list[Way]]:
    found: dict[str, list[Way]] = {
        "gzip": [
            Way("zlib", "decompress", lambda payload: zlib.decompress(payload, 31)),
            Way("zlib", "decompress, sized", lambda payload: zlib.decompress(payload, 31, gzip_size(payload))),
            Way("cramjam", "decompress_into", fill=cramjam.gzip.decompress_into),
        ],
        "snappy": [
            Way("python-snappy", "uncompress", xerial_take(snappy.uncompress)),
            Way("cramjam", "decompress_raw_into", fill=xerial_fill),
        ],
        "snappy-raw": [
            Way("python-snappy", "uncompress", snappy.uncompress),
            Way("cramjam", "decompress_raw", cramjam.snappy.decompress_raw),
            Way("cramjam", "decompress_raw_into", fill=cramjam.snappy.decompress_raw_into),
        ],
        "lz4": [
            Way("lz4", "frame.decompress", lz4.frame.decompress),
            Way("lz4", "block.decompress", lz4_take),
            Way("cramjam", "decompress_into", fill=cramjam.lz4.decompress_into),
            Way("cramjam", "decompress_block_into", fill=lz4_fill),
        ],
        "zstd": [
            Way("zstandard", "decompressobj", lambda payload: zstd_context.decompressobj().decompress(payload)),
            Way("zstandard", "readinto", fill=lambda payload, room: zstd_context.stream_reader(payload).readinto(room)),
            Way("cramjam", "decompress_into", fill=cramjam.zstd.decompress_into),
        ],
    }
    try:
        from isal import igzip_lib
    except ImportError:
        pass
    else:
        gzip_flag = igzip_lib.DECOMP_GZIP
        found["gzip"].append(
            Way(
                "isal",
                "decompress, sized",
                lambda payload: igzip_lib.decompress(payload, gzip_flag, 15, gzip_size(payload)),
            )
        )
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        pass
    else:
        found["gzip"].append(
            Way("zlib-ng", "decompress, sized", lambda payload: zlib_ng.decompress(payload, 31, gzip_size(payload)))
        )
    try:
        import deflate
    except ImportError:
        pass
    else:
        found["gzip"].append(Way("deflate", "gzip_decompress", deflate.gzip_decompress))
    return found


WAYS = ways()


def gzip(payload: bytes) -> bytes:
    encoder = zlib.compressobj(-1, zlib.DEFLATED, 31)
    return encoder.compress(payload) + encoder.flush()


def snappy_blocks(payload: bytes) -> list[bytes]:
    return [snappy.compress(payload[at : at + 32 * KIB]) for at in range(0, len(payload), 32 * KIB)]


def lz4_frame(payload: bytes) -> bytes:
    size = lz4.frame.BLOCKSIZE_MAX64KB
    return lz4.frame.compress(payload, compression_level=0, block_size=size, block_linked=False, store_size=False)


# Compressing a payload, and nothing else, by the library that the codec is known by, as kbatch has it do.
COMPRESS: dict[str, Callable[[bytes], Any]] = {
    "gzip": gzip,
    "snappy": snappy_blocks,
    "lz4": lz4_frame,
    "zstd": zstd_compressor.compress,
}


def fastest(codec: str, payloads: list[bytes]) -> Way:
    """Return the way that takes these payloads the shortest, after a look at each."""

    def seconds(way: Way) -> float:
        start = time.process_time()
        way.dropped(payloads)
        return time.process_time() - start

    return min(WAYS[codec], key=lambda way: min(seconds(way) for _ in range(3)))
