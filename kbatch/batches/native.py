"""C functions inside the packages of the codecs, which the kernels call directly.

No package of a codec ships C headers, but the extension modules of some export the functions of the library that is
linked into them. `addresses` looks these up once, when `kbatch` is imported. A kernel that has an address decompresses
or compresses without the GIL and without a Python object per payload.

Functions
---------
========== ==================== ============ ===========================================================
package    extension module     versions     functions
========== ==================== ============ ===========================================================
lz4        lz4.frame._frame     >=4.3, <5    LZ4_decompress_safe, LZ4F_createDecompressionContext,
                                             LZ4F_decompress, LZ4F_freeDecompressionContext;
                                             LZ4F_compressFrame
zstandard  zstandard._cffi      >=0.23, <1   ZSTD_createDCtx, ZSTD_decompressDCtx, ZSTD_freeDCtx;
                                             ZSTD_createCCtx, ZSTD_CCtx_setParameter, ZSTD_compress2,
                                             ZSTD_freeCCtx
zlib       zlib                 >=1.2, <2    inflateInit2_, inflateReset, inflate, inflateEnd
isal       isal.isal_zlib       >=1.7, <1.10 isal_inflate_init, isal_inflate_stateless
========== ==================== ============ ===========================================================

zlib is Python's own module; its version is the C library's. isal comes with the extra "fast". Snappy is not in
the table: cramjam exports no C functions and is called by its Python functions.

Why this is safe
----------------
- All functions are public in the headers of their libraries; lz4, zstd and zlib declare them stable.
  `kbatch/kernels/codecs.pxd` repeats the declarations.
- Two libraries read structs of kbatch. lz4 ignores the reserved fields of ``LZ4F_preferences_t``, which are zero. zlib
  compares the size of ``z_stream`` with its own.
- ISA-L does not declare the layout of ``struct inflate_state`` stable. Only the fields at its beginning are used,
  256 KiB are allocated for its 87 KiB, and the range of versions ends with the latest minor version that was tested.
- A function writes only to the output that it is given. The kernels check sizes and checksums as for any other
  input; payloads that are not ordinary are left to `kbatch.batches.careful.decompress_carefully`.

Checks at import
----------------
1. ``KBATCH_NATIVE_CODECS`` is not ``0`` in the environment.
2. The version of the package is in its range. The tests of the codecs pass with the oldest and the newest release in
   the range: lz4 4.3.0 and 4.4.5, zstandard 0.23.0 and 0.25.0, isal 1.7.0 and 1.9.1; and with zlib 1.2.13.
3. The extension module exports every function of the group (the groups are separated by semicolons above).
4. The decompressing functions return a known text from its compressed form. The compressing functions return the same
   bytes as the package's Python function.

If a check fails, no function of the group is used: the kernels call the Python functions of the package, or, without
isal, the functions of zlib. Results are equal and take longer; `kbatch.batches.codecs` describes the one known
difference.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

import lz4.frame
import zstandard

__all__ = ["addresses"]

_TEXT = b"plain and simple, plain and simple, plain and simple"
# The text compressed by LZ4_compress_default, by LZ4F_compressFrame, by ZSTD_compress, and as a raw deflate stream.
_LZ4_BLOCK = bytes.fromhex("ff03706c61696e20616e642073696d706c652c2012000a50696d706c65")
_LZ4_FRAME = bytes.fromhex(
    "04224d186c403400000000000000ab1d000000ff03706c61696e20616e642073696d706c652c2012000a50696d706c6500000000ec375582"
)
_ZSTD = bytes.fromhex("28b52ffd2434c5000090706c61696e20616e642073696d706c652c200100ca9961a317fbb8")
_DEFLATED = bytes.fromhex("2bc849cccc5348cc4b5128cecc2dc849d5512820280200")

# zlib's `z_stream`, and its constants for a raw stream that is complete in the input.
_ZLIB_STREAM = struct.Struct("@PILPILPPPPPiLL")
_ZLIB_RAW = -15
_ZLIB_FINISH = 4
_ZLIB_STREAM_END = 1

# The first fields of ISA-L's `struct inflate_state`, and an upper bound of its size.
_ISAL_STATE = struct.Struct("@PIIPQIi")
_ISAL_STATE_SIZE = 256 << 10

# More than lz4 and zstd require for the compressed text.
_COMPRESSED_CAPACITY = 1000

_pointer = ctypes.c_void_p
_size = ctypes.c_size_t
_Version = tuple[int, int]


class _Functions(NamedTuple):
    """Functions of a library that are used together or not at all."""

    package: str
    versions: tuple[_Version, _Version]  # from the first, below the second
    module: str
    work: Callable[[ctypes.CDLL], bool]
    names: tuple[str, ...]


@functools.cache
def addresses() -> dict[str, int]:
    """Return the addresses of the C functions that passed all checks, by their names in C.

    Returns
    -------
    dict
        For each group of functions, all addresses or none. Empty if the environment variable ``KBATCH_NATIVE_CODECS``
        is ``0``.

    Examples
    --------
    >>> from kbatch.batches.native import addresses
    >>> all(isinstance(address, int) for address in addresses().values())
    True
    """
    found: dict[str, int] = {}
    if os.environ.get("KBATCH_NATIVE_CODECS") == "0":
        return found
    for functions in _FUNCTIONS:
        # After any error, the package's Python functions are used instead.
        with contextlib.suppress(Exception):
            first, end = functions.versions
            if first <= _version(functions.package) < end:
                library = _library(functions.module)
                pointers = {name: ctypes.cast(getattr(library, name), _pointer).value or 0 for name in functions.names}
                if functions.work(library):
                    found.update(pointers)
    return found


def _version(package: str) -> _Version:
    """Return the version from the package itself: reading its metadata would take about a millisecond."""
    module = importlib.import_module(package)
    text: str = module.ZLIB_RUNTIME_VERSION if package == "zlib" else module.__version__
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def _library(module: str) -> ctypes.CDLL:
    """Return the library that is an extension module; it also gives access to the libraries it is linked to."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise ImportError(module)
    # A module that is part of the interpreter has no file.
    return ctypes.CDLL(spec.origin if spec.has_location else None)


def _lz4_decompresses(library: ctypes.CDLL) -> bool:
    out = ctypes.create_string_buffer(len(_TEXT))
    if library.LZ4_decompress_safe(_LZ4_BLOCK, out, len(_LZ4_BLOCK), len(_TEXT)) != len(_TEXT) or out.raw != _TEXT:
        return False
    context = _pointer()
    out = ctypes.create_string_buffer(len(_TEXT))
    written, read = _size(len(_TEXT)), _size(len(_LZ4_FRAME))
    library.LZ4F_createDecompressionContext.restype = _size
    library.LZ4F_decompress.restype = _size
    if library.LZ4F_createDecompressionContext(ctypes.byref(context), 100):
        return False
    remaining = library.LZ4F_decompress(context, out, ctypes.byref(written), _LZ4_FRAME, ctypes.byref(read), None)
    library.LZ4F_freeDecompressionContext(context)
    return remaining == 0 and written.value == len(_TEXT) and out.raw == _TEXT


def _lz4_compresses(library: ctypes.CDLL) -> bool:
    # LZ4F_preferences_t as in `codecs.pxd`: independent blocks of 64 KiB, and the default, 0, for everything else.
    preferences = struct.pack("@4iQI2i5I", 4, 1, 0, 0, 0, 0, 0, 0, *bytes(5))
    out = ctypes.create_string_buffer(_COMPRESSED_CAPACITY)
    library.LZ4F_compressFrame.restype = _size
    size = library.LZ4F_compressFrame(out, _size(_COMPRESSED_CAPACITY), _TEXT, _size(len(_TEXT)), preferences)
    expected: bytes = lz4.frame.compress(_TEXT, block_size=4, block_linked=False, store_size=False)
    return out.raw[:size] == expected


def _zstd_decompresses(library: ctypes.CDLL) -> bool:
    out = ctypes.create_string_buffer(len(_TEXT))
    library.ZSTD_createDCtx.restype = _pointer
    library.ZSTD_decompressDCtx.restype = _size
    context = _pointer(library.ZSTD_createDCtx())
    if not context:
        return False
    written = library.ZSTD_decompressDCtx(context, out, _size(len(_TEXT)), _ZSTD, _size(len(_ZSTD)))
    library.ZSTD_freeDCtx(context)
    return written == len(_TEXT) and out.raw == _TEXT


def _zstd_compresses(library: ctypes.CDLL) -> bool:
    out = ctypes.create_string_buffer(_COMPRESSED_CAPACITY)
    library.ZSTD_createCCtx.restype = _pointer
    library.ZSTD_CCtx_setParameter.restype = library.ZSTD_compress2.restype = _size
    context = _pointer(library.ZSTD_createCCtx())
    if not context:
        return False
    # Level 19 compresses the text to other bytes than the default level.
    library.ZSTD_CCtx_setParameter(context, 100, 19)
    size = library.ZSTD_compress2(context, out, _size(_COMPRESSED_CAPACITY), _TEXT, _size(len(_TEXT)))
    library.ZSTD_freeCCtx(context)
    return out.raw[:size] == zstandard.ZstdCompressor(19).compress(_TEXT)


def _zlib_decompresses(library: ctypes.CDLL) -> bool:
    stream = ctypes.create_string_buffer(_ZLIB_STREAM.size)
    out = ctypes.create_string_buffer(len(_TEXT) + 1)
    # inflateInit2_() compares the first digit of the version and the size of the stream with its own.
    if library.inflateInit2_(stream, _ZLIB_RAW, b"1", _ZLIB_STREAM.size) != 0:
        return False
    state = list(_ZLIB_STREAM.unpack_from(stream))
    source = ctypes.create_string_buffer(_DEFLATED)
    state[0], state[1] = ctypes.addressof(source), len(_DEFLATED)
    state[3], state[4] = ctypes.addressof(out), len(_TEXT) + 1
    _ZLIB_STREAM.pack_into(stream, 0, *(value or 0 for value in state))
    status = library.inflate(stream, _ZLIB_FINISH)
    _, unread, _, _, capacity, *_ = _ZLIB_STREAM.unpack_from(stream)
    library.inflateEnd(stream)
    return status == _ZLIB_STREAM_END and (unread, capacity) == (0, 1) and out.raw[:-1] == _TEXT


def _isal_decompresses(library: ctypes.CDLL) -> bool:
    state = ctypes.create_string_buffer(_ISAL_STATE_SIZE)
    out = ctypes.create_string_buffer(len(_TEXT) + 1)
    source = ctypes.create_string_buffer(_DEFLATED + b"tail")
    library.isal_inflate_init(state)
    out_start, in_start = ctypes.addressof(out), ctypes.addressof(source)
    _ISAL_STATE.pack_into(state, 0, out_start, len(_TEXT) + 1, 0, in_start, 0, len(_DEFLATED) + 4, 0)
    if library.isal_inflate_stateless(state) != 0:
        return False
    next_out, capacity, _, next_in, _, unread, _ = _ISAL_STATE.unpack_from(state)
    progress = (next_out - out_start, capacity, next_in - in_start, unread)
    return progress == (len(_TEXT), 1, len(_DEFLATED), 4) and out.raw[:-1] == _TEXT


_LZ4 = ("lz4", ((4, 3), (5, 0)), "lz4.frame._frame")
_ZSTANDARD = ("zstandard", ((0, 23), (1, 0)), "zstandard._cffi")
_ZLIB = ("zlib", ((1, 2), (2, 0)), "zlib")
_ISAL = ("isal", ((1, 7), (1, 10)), "isal.isal_zlib")

_FUNCTIONS = [
    _Functions(
        *_LZ4,
        _lz4_decompresses,
        ("LZ4_decompress_safe", "LZ4F_createDecompressionContext", "LZ4F_decompress", "LZ4F_freeDecompressionContext"),
    ),
    _Functions(*_LZ4, _lz4_compresses, ("LZ4F_compressFrame",)),
    _Functions(*_ZSTANDARD, _zstd_decompresses, ("ZSTD_createDCtx", "ZSTD_decompressDCtx", "ZSTD_freeDCtx")),
    _Functions(
        *_ZSTANDARD,
        _zstd_compresses,
        ("ZSTD_createCCtx", "ZSTD_CCtx_setParameter", "ZSTD_compress2", "ZSTD_freeCCtx"),
    ),
    _Functions(*_ZLIB, _zlib_decompresses, ("inflateInit2_", "inflateReset", "inflate", "inflateEnd")),
    _Functions(*_ISAL, _isal_decompresses, ("isal_inflate_init", "isal_inflate_stateless")),
]
