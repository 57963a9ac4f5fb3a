"""Decompression alone: each codec's own library, called from Python in a simple loop.

The libraries are the ones that kbatch uses. The output is dropped, so the same memory is used for each payload and
stays in the cache; kbatch has to keep the output for its table.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import zstandard

from bench.corpora import XERIAL_BLOCK

__all__ = ["LIBRARIES", "decompress"]

# Created once, because creating a context for each batch would cost more than decompressing a small batch.
zstd_context = zstandard.ZstdDecompressor()
block_buffer = bytearray(2 * XERIAL_BLOCK)


def gzip(payload: bytes) -> int:
    return len(zlib.decompress(payload, 31))


def snappy(payload: bytes) -> int:
    """Decompress the blocks of a xerial stream, which begin after its 16-byte header."""
    view = memoryview(payload)
    size, at = 0, 16
    while at < len(payload):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        size += cramjam.snappy.decompress_raw_into(view[at + 4 : end], block_buffer)
        at = end
    return size


def lz4_frame(payload: bytes) -> int:
    return len(lz4.frame.decompress(payload))


def zstd(payload: bytes) -> int:
    return len(zstd_context.decompressobj().decompress(payload))


# By codec: the name of the library, and a function that returns the size of the decompressed payload.
LIBRARIES: dict[str, tuple[str, Callable[[bytes], int]]] = {
    "gzip": ("zlib", gzip),
    "snappy": ("cramjam", snappy),
    "lz4": ("lz4", lz4_frame),
    "zstd": ("zstandard", zstd),
}
try:
    from isal import igzip_lib
except ImportError:
    pass
else:

    def isal_gzip(payload: bytes) -> int:
        # The payload ends with its decompressed size.
        size = int.from_bytes(payload[-4:], "little")
        return len(igzip_lib.decompress(payload, igzip_lib.DECOMP_GZIP, 15, size))

    LIBRARIES["gzip"] = ("isal", isal_gzip)


def decompress(codec: str, payloads: list[bytes]) -> int:
    """Decompress all payloads; return the number of bytes."""
    function = LIBRARIES[codec][1]
    return sum(map(function, payloads))
