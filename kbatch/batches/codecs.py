"""Decompression of payloads under a limit, and compression.

Kafka has four codecs. Section 5 of the catalogue (``COD``, ``GZ``, ``SN``, ``L4``, ``ZS``) states which input a reader
must accept or reject; it follows Kafka's own Java reader. Three rules hold for all codecs:

- the limit is checked while decompressing, so that no memory is allocated for output beyond it (COD-R8);
- a length in the input is bounded by the size of the input before it is allocated (SN-R7, ZS-R6, L4-R6, GZ-R5);
- a malformed payload does not affect the next one (COD-R9).

Trailing bytes and concatenation differ by codec (COD-R4, COD-R5):

====== ======================================= =====================================
codec  after the stream                        a further stream
====== ======================================= =====================================
gzip   ignored unless they begin a member      continues the output
snappy xerial: 1 to 3 bytes ignored; raw: none xerial: continues the output; raw: no
lz4    ignored                                 ignored
zstd   rejected                                continues the output
====== ======================================= =====================================

Ordinary payloads are decompressed by C functions of the libraries (`kbatch.kernels.codecs`), and all others, slower, by
the Python functions of the packages (`decompress_carefully`). With ``KBATCH_NATIVE_CODECS=0`` in the environment when
`kbatch` is imported, the Python functions decompress every payload. Results and errors are the same, with one known
difference:

If the extra "fast" is installed, ISA-L decompresses ordinary gzip. It accepts streams with incomplete codes, which zlib
and Kafka reject and no writer produces. The member's checksum and size must be right in any case.

`compress` writes the same format as Kafka's own producer, which all clients read: one gzip member; xerial
snappy in blocks of 32 KiB (SN-R9); an lz4 frame of independent blocks of 64 KiB without content size and checksums
(L4-R12); one zstd frame.
"""

from __future__ import annotations

import threading
from typing import cast

import numpy as np

from kbatch.batches.arena import Arena
from kbatch.batches.careful import append_uncompressed, decompress_carefully
from kbatch.batches.native import addresses
from kbatch.format import Codec
from kbatch.kernels.codecs import Codecs, compress_to_bytes, decompress_into
from kbatch.options import CODEC_LEVELS, CodecName, parse_codec_level

__all__ = [
    "codec_name",
    "codec_text",
    "compress",
    "decompress",
    "level_of",
    "own_codecs",
    "parse_codec",
]

# The largest ratio of an ordinary payload's decompressed and compressed size: the capacity that is reserved.
ORDINARY_RATIO = 8
# The smallest capacity that is reserved for a payload, in bytes.
MIN_RESERVED = 256 << 10

_DEFAULT_LEVELS: dict[int, int] = {Codec.GZIP: -1, Codec.ZSTD: 3}


class _Contexts(threading.local):
    """The codecs of the kernels, one object per thread."""

    def __init__(self) -> None:
        self.codecs = Codecs(addresses())


_contexts = _Contexts()


def own_codecs() -> Codecs:
    """Return the calling thread's contexts for `kbatch.kernels`."""
    return _contexts.codecs


def decompress(codec: int, payload: memoryview, arena: Arena, limit: int, magic: int = 2) -> int:
    """Decompress `payload` and append the result to `arena`.

    Parameters
    ----------
    codec : int
        Bits 0 to 2 of the batch's attributes. 0 copies the payload, without regard to the limit.
    payload : memoryview
        The records part of a batch of magic 2, or the value of a message of magic 0 or 1; contiguous bytes.
    arena : Arena
        The output is written after ``arena.used``, which is advanced.
    limit : int
        The maximum number of decompressed bytes (COD-R8).
    magic : int
        The magic of the batch. Clients that wrote magic 0 computed a wrong header checksum of lz4 frames (KAFKA-3160),
        so that it is ignored for magic 0, as in Kafka's reader (L4-R5).

    Returns
    -------
    int
        The number of bytes appended.

    Raises
    ------
    PayloadError
        If the payload is empty, is not a valid stream of its codec or exceeds `limit`, or if the codec is unknown.
        ``arena.used`` and the used bytes are then unchanged.
    """
    if codec == 0:
        return append_uncompressed(payload, arena)
    if not addresses():
        return decompress_carefully(codec, payload, arena, limit, magic)
    # The kernels only accept payloads of an ordinary shape and size; any other is decompressed from its beginning.
    arena.reserve(min(limit, max(MIN_RESERVED, ORDINARY_RATIO * len(payload))))
    size = decompress_into(_contexts.codecs, codec, magic > 0, payload, arena.view[arena.used :], limit)
    if size < 0:
        return decompress_carefully(codec, payload, arena, limit, magic)
    arena.used += size
    return size


def parse_codec(codec: Codec | str | int) -> tuple[Codec, int | None]:
    """Return a codec and its level, given as ``"zstd"``, ``"zstd:3"`` or a number; None is the codec's default.

    Raises
    ------
    TypeError, ValueError
        The message begins with "codec".
    """
    if isinstance(codec, str):
        try:
            name, level = parse_codec_level(codec, CODEC_LEVELS)
        except ValueError as error:
            raise ValueError(f"codec {error}") from None
        return Codec[name.upper()], level
    if isinstance(codec, bool) or not isinstance(codec, int | np.integer):
        raise TypeError(f"codec must be a str such as 'zstd:3', or a kbatch.Codec, got {type(codec).__name__}")
    try:
        return Codec(codec), None
    except ValueError:
        raise ValueError(f"codec must be 0 to {max(Codec)}, got {codec}") from None


def codec_name(codec: int) -> CodecName:
    """Return the name of a codec as users write it.

    Examples
    --------
    >>> from kbatch.batches.codecs import codec_name
    >>> codec_name(4)
    'zstd'
    """
    return cast(CodecName, Codec(codec).name.lower())


def codec_text(codec: Codec, level: int | None) -> str:
    """Return the text from which `parse_codec` makes this codec and level."""
    return codec_name(codec) if level is None else f"{codec_name(codec)}:{level}"


def level_of(codec: int, level: int | None) -> int:
    """Return the level for the library, from a level that `parse_codec` returns."""
    return _DEFAULT_LEVELS.get(codec, 0) if level is None else level


def compress(codec: int, plain: memoryview, level: int | None = None, magic: int = 2) -> bytes:
    """Compress a payload.

    Parameters
    ----------
    codec : int
        One of `kbatch.Codec`; `Codec.NONE` copies.
    plain : memoryview
        Contiguous bytes.
    level : int, optional
        A level of `CODEC_LEVELS`. The default is 6 for gzip, 3 for zstd, and the fast compressor for lz4.
        Kafka's producer uses the same defaults; its name for the fast compressor is level 9.
    magic : int
        The magic of the batch. Readers of magic 0 expect the wrong lz4 header checksum that Kafka once wrote (L4-R5).

    Returns
    -------
    bytes

    Examples
    --------
    >>> from kbatch.batches.codecs import compress
    >>> from kbatch import Codec
    >>> compress(Codec.SNAPPY, memoryview(b"plain")).hex(" ", -4)
    '82534e41 50505900 00000001 00000001 00000007 0510706c 61696e'
    """
    if codec == 0:
        return bytes(plain)
    return compress_to_bytes(_contexts.codecs, codec, level_of(codec, level), magic, plain)
