"""Payload -> plain payload under a limit, and back.

Kafka knows four codecs, and what each reader must take or refuse stands in section 5 of the catalogue (``COD``, ``GZ``,
``SN``, ``L4``, ``ZS``), which follows Kafka's own Java reader. Three things hold for all of them:

- the limit is checked while decompressing, so output past it never gets memory (COD-R8);
- no length found in the input is allocated before it is bounded by what the input can hold (SN-R7, ZS-R6, L4-R6,
  GZ-R5);
- nothing that a broken payload leaves behind reaches the next one (COD-R9).

Trailing bytes and concatenation differ by codec (COD-R4, COD-R5):

====== ======================================= =====================================
codec  after the stream                        a further stream
====== ======================================= =====================================
gzip   ignored unless they begin a member      continues the output
snappy xerial: 1 to 3 bytes ignored; raw: none xerial: continues the output; raw: no
lz4    ignored                                 ignored
zstd   refused                                 continues the output
====== ======================================= =====================================

There are two ways to decompress. Ordinary payloads go to C functions of the libraries (`kbatch.kernels.codecs`), and
all others, slower, through the Python functions of the packages (`decompress_carefully`). With
``KBATCH_NATIVE_CODECS=0`` in the environment, which is read once, when `kbatch` is imported, every payload goes the
second way. Results and errors are the same, with one known difference:

Where the extra "fast" is installed, ordinary gzip is decompressed by ISA-L. That takes streams with incomplete codes,
which zlib, and so Kafka, refuses, and which nothing writes; the member's checksum and size have to hold all the same.

What `compress` writes is what Kafka's own producer does, and what every other client reads: one gzip member; xerial
snappy in blocks of 32 KiB (SN-R9); an lz4 frame of independent blocks of 64 KiB without content size and checksums
(L4-R12); one zstd frame.
"""

from __future__ import annotations

import threading

from kbatch.batches.arena import Arena
from kbatch.batches.careful import append_uncompressed, decompress_carefully
from kbatch.batches.native import addresses
from kbatch.format import Codec
from kbatch.kernels.codecs import Codecs
from kbatch.kernels.codecs import packed as _packed
from kbatch.kernels.codecs import plain as _plain

__all__ = ["check_level", "compress", "decompress", "level_of", "own_codecs"]

# The largest ratio of an ordinary payload's decompressed and compressed size: the capacity that is reserved.
_ORDINARY_RATIO = 8
# The smallest capacity that is reserved for a payload, in bytes.
_MIN_RESERVED = 256 << 10

# The levels of Kafka's `compression.*.level` (COD-R10).
_LEVEL_RANGES: dict[int, tuple[int, int]] = {Codec.GZIP: (-1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
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
    """Append the plain form of `payload` to `arena`.

    Parameters
    ----------
    codec : int
        Bits 0 to 2 of the batch's attributes. 0 copies the payload as it is, whatever the limit: it is there already.
    payload : memoryview
        The records part of a batch of magic 2, or the value of a message of magic 0 or 1; contiguous bytes.
    arena : Arena
        Where the output goes, after ``arena.used``, which is moved on.
    limit : int
        The most bytes that the payload may decompress to (COD-R8).
    magic : int
        Of the batch. Clients that wrote magic 0 got the header checksum of lz4 frames wrong (KAFKA-3160), so that
        there, as in Kafka's reader, it may be anything (L4-R5).

    Returns
    -------
    int
        Bytes appended.

    Raises
    ------
    PayloadError
        If the payload is no valid stream of its codec, is empty, passes `limit`, or the codec is unknown.
        ``arena.used`` is then what it was; its bytes and those before it are untouched.
    """
    if codec == 0:
        return append_uncompressed(payload, arena)
    if not addresses():
        return decompress_carefully(codec, payload, arena, limit, magic)
    # Kernels take payloads of an ordinary shape and size; any other is decompressed from its beginning.
    arena.reserve(min(limit, max(_MIN_RESERVED, _ORDINARY_RATIO * len(payload))))
    size = _plain(_contexts.codecs, codec, magic > 0, payload, arena.view[arena.used :], limit)
    if size < 0:
        return decompress_carefully(codec, payload, arena, limit, magic)
    arena.used += size
    return size


def check_level(codec: int, level: int | None) -> None:
    """Raise `ValueError` if Kafka doesn't know this level of the codec (COD-R10); None is always good."""
    if level is None:
        return
    if codec not in _LEVEL_RANGES:
        raise ValueError(f"codec {Codec(codec).name.lower()} has no level, got {level}")
    least, most = _LEVEL_RANGES[codec]
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"level must be an int, got {type(level).__name__}")
    # zlib takes 0, which stores; Kafka doesn't.
    if not least <= level <= most or (codec == Codec.GZIP and level == 0):
        span = "1 to 9, or -1 for the default" if codec == Codec.GZIP else f"{least} to {most}"
        raise ValueError(f"level of {Codec(codec).name.lower()} must be {span}, got {level}")


def level_of(codec: int, level: int | None) -> int:
    """Return the level that a library gets for one that `check_level` lets pass."""
    return _DEFAULT_LEVELS.get(codec, 0) if level is None else level


def compress(codec: int, plain: memoryview, level: int | None = None, magic: int = 2) -> bytes:
    """Compress a plain payload.

    Parameters
    ----------
    codec : int
        One of `kbatch.Codec`; `Codec.NONE` copies.
    plain : memoryview
        Contiguous bytes.
    level : int, optional
        One that `check_level` lets pass. Default is that of the library: 6 for gzip, 3 for zstd, and for lz4 the fast
        compressor. That is also what Kafka's producer uses by default, though it calls it level 9.
    magic : int
        Of the batch. Readers of magic 0 want the wrong header checksum of lz4 that Kafka once wrote (L4-R5).

    Returns
    -------
    bytes

    Examples
    --------
    >>> from kbatch.batches.codecs import compress
    >>> from kbatch.format import Codec
    >>> compress(Codec.SNAPPY, memoryview(b"plain")).hex(" ", -4)
    '82534e41 50505900 00000001 00000001 00000007 0510706c 61696e'
    """
    if codec == 0:
        return bytes(plain)
    return _packed(_contexts.codecs, codec, level_of(codec, level), magic, plain)
