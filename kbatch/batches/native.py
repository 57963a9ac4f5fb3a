"""The C functions within the packages of the codecs, by which kernels call them without Python.

No such package ships headers, but the extension modules of some export the public functions of the library that is
linked into them, whose declarations have been the same for years. Here they are looked up, once. Those that decompress
count only if they give back a text from its compressed form; zlib's, which compare versions and sizes themselves, if
the version is known; and those that compress if they make of a text what the package makes of it. Where some are not
found - another platform, another build of the package - the packages themselves are called, with equal results in more
time. The environment variable ``KBATCH_NATIVE_CODECS=0`` makes that so for all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import struct
from collections.abc import Callable

import lz4.frame
import zstandard

__all__ = ["addresses"]

_TEXT = b"plain and simple, plain and simple, plain and simple"
# The same by LZ4_compress_default, in a frame by LZ4F_compressFrame, and by ZSTD_compress.
_LZ4_BLOCK = bytes.fromhex("ff03706c61696e20616e642073696d706c652c2012000a50696d706c65")
_LZ4_FRAME = bytes.fromhex(
    "04224d186c403400000000000000ab1d000000ff03706c61696e20616e642073696d706c652c2012000a50696d706c6500000000ec375582"
)
_ZSTD = bytes.fromhex("28b52ffd2434c5000090706c61696e20616e642073696d706c652c200100ca9961a317fbb8")

# And as a raw deflate stream.
_DEFLATED = bytes.fromhex("2bc849cccc5348cc4b5128cecc2dc849d5512820280200")

# The beginning of ISA-L's `struct inflate_state`, and more than all of it.
_ISAL_STATE = struct.Struct("@PIIPQIi")
_ISAL_STATE_SIZE = 256 << 10

# For the text compressed, and more than lz4 wants to see for that.
_ROOM = 1000

_pointer = ctypes.c_void_p
_size = ctypes.c_size_t


@functools.cache
def addresses() -> dict[str, int]:
    """Return the addresses of the C functions that were found, by their names in C.

    Returns
    -------
    dict
        Of a library, all functions by which `kbatch.kernels.codecs` decompresses, or none; and so by which it
        compresses. Empty if ``KBATCH_NATIVE_CODECS`` is ``0`` in the environment.

    Examples
    --------
    >>> from kbatch.batches.native import addresses
    >>> all(isinstance(address, int) for address in addresses().values())
    True
    """
    found: dict[str, int] = {}
    if os.environ.get("KBATCH_NATIVE_CODECS") == "0":
        return found
    for module, works, names in _LIBRARIES:
        # Whatever keeps a library from being called so, the package is there.
        with contextlib.suppress(Exception):
            library = _library(module)
            pointers = {name: ctypes.cast(getattr(library, name), _pointer).value or 0 for name in names}
            if works(library):
                found.update(pointers)
    return found


def _library(module: str) -> ctypes.CDLL:
    """Return the library that is an extension module; its functions are looked for in what it is linked to, too."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise ImportError(module)
    # A module that is part of the interpreter has no file.
    return ctypes.CDLL(spec.origin if spec.has_location else None)


def _lz4_works(library: ctypes.CDLL) -> bool:
    out = ctypes.create_string_buffer(len(_TEXT))
    if library.LZ4_decompress_safe(_LZ4_BLOCK, out, len(_LZ4_BLOCK), len(_TEXT)) != len(_TEXT) or out.raw != _TEXT:
        return False
    context = _pointer()
    out = ctypes.create_string_buffer(len(_TEXT))
    written, taken = _size(len(_TEXT)), _size(len(_LZ4_FRAME))
    library.LZ4F_createDecompressionContext.restype = _size
    library.LZ4F_decompress.restype = _size
    if library.LZ4F_createDecompressionContext(ctypes.byref(context), 100):
        return False
    left = library.LZ4F_decompress(context, out, ctypes.byref(written), _LZ4_FRAME, ctypes.byref(taken), None)
    library.LZ4F_freeDecompressionContext(context)
    return left == 0 and written.value == len(_TEXT) and out.raw == _TEXT


def _zstd_works(library: ctypes.CDLL) -> bool:
    out = ctypes.create_string_buffer(len(_TEXT))
    library.ZSTD_createDCtx.restype = _pointer
    library.ZSTD_decompressDCtx.restype = _size
    context = _pointer(library.ZSTD_createDCtx())
    if not context:
        return False
    written = library.ZSTD_decompressDCtx(context, out, _size(len(_TEXT)), _ZSTD, _size(len(_ZSTD)))
    library.ZSTD_freeDCtx(context)
    return written == len(_TEXT) and out.raw == _TEXT


def _zlib_works(library: ctypes.CDLL) -> bool:
    # zlib itself compares the version and the size of the stream with its own, at every inflateInit2_().
    library.zlibVersion.restype = ctypes.c_char_p
    version: bytes = library.zlibVersion()
    return version.startswith(b"1.")


def _isal_works(library: ctypes.CDLL) -> bool:
    state = ctypes.create_string_buffer(_ISAL_STATE_SIZE)
    out = ctypes.create_string_buffer(len(_TEXT) + 1)
    source = ctypes.create_string_buffer(_DEFLATED + b"tail")
    library.isal_inflate_init(state)
    start, begin = ctypes.addressof(out), ctypes.addressof(source)
    _ISAL_STATE.pack_into(state, 0, start, len(_TEXT) + 1, 0, begin, 0, len(_DEFLATED) + 4, 0)
    if library.isal_inflate_stateless(state) != 0:
        return False
    next_out, room, _, next_in, _, left, _ = _ISAL_STATE.unpack_from(state)
    ends = (next_out - start, room, next_in - begin, left)
    return ends == (len(_TEXT), 1, len(_DEFLATED), 4) and out.raw[:-1] == _TEXT


def _lz4_packs(library: ctypes.CDLL) -> bool:
    # As `codecs.pxd` declares it: blocks of 64 KiB, independent; what is 0 is not wanted, or the default.
    preferences = struct.pack("@4iQI2i5I", 4, 1, 0, 0, 0, 0, 0, 0, *bytes(5))
    out = ctypes.create_string_buffer(_ROOM)
    library.LZ4F_compressFrame.restype = _size
    size = library.LZ4F_compressFrame(out, _size(_ROOM), _TEXT, _size(len(_TEXT)), preferences)
    wanted: bytes = lz4.frame.compress(_TEXT, block_size=4, block_linked=False, store_size=False)
    return out.raw[:size] == wanted


def _zstd_packs(library: ctypes.CDLL) -> bool:
    out = ctypes.create_string_buffer(_ROOM)
    library.ZSTD_createCCtx.restype = _pointer
    library.ZSTD_CCtx_setParameter.restype = library.ZSTD_compress2.restype = _size
    context = _pointer(library.ZSTD_createCCtx())
    if not context:
        return False
    # At another level than the default, which makes something else of the text.
    library.ZSTD_CCtx_setParameter(context, 100, 19)
    size = library.ZSTD_compress2(context, out, _size(_ROOM), _TEXT, _size(len(_TEXT)))
    library.ZSTD_freeCCtx(context)
    return out.raw[:size] == zstandard.ZstdCompressor(19).compress(_TEXT)


_LIBRARIES: list[tuple[str, Callable[[ctypes.CDLL], bool], tuple[str, ...]]] = [
    (
        "lz4.frame._frame",
        _lz4_works,
        (
            "LZ4_decompress_safe",
            "LZ4F_createDecompressionContext",
            "LZ4F_decompress",
            "LZ4F_freeDecompressionContext",
        ),
    ),
    ("lz4.frame._frame", _lz4_packs, ("LZ4F_compressFrame",)),
    ("zstandard._cffi", _zstd_works, ("ZSTD_createDCtx", "ZSTD_decompressDCtx", "ZSTD_freeDCtx")),
    (
        "zstandard._cffi",
        _zstd_packs,
        ("ZSTD_createCCtx", "ZSTD_CCtx_setParameter", "ZSTD_compress2", "ZSTD_freeCCtx"),
    ),
    ("zlib", _zlib_works, ("inflateInit2_", "inflateReset", "inflate", "inflateEnd")),
    # Of the extra "fast".
    ("isal.isal_zlib", _isal_works, ("isal_inflate_init", "isal_inflate_stateless")),
]
