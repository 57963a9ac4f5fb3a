"""Small batches that become large tables, and the memory that a call takes.

A measurement runs in a child process that is forked for it, so that memory of earlier calls is not counted.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import zstandard

from kbatch.batches.codecs import compress
from kbatch.format import Codec
from kbatch.kernels.checksum import crc32c

MIB = 1 << 20

# The smallest record of magic 2: no key, no value, no headers.
RECORD = bytes.fromhex("0c000000010100")


def varint(number: int) -> bytes:
    """Return an unsigned varint. A record stores numbers that are not negative as twice their value."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def record(value: bytes = b"", headers: int = 0) -> bytes:
    """Return a record of magic 2 with headers of two bytes: an empty key and a null value."""
    body = b"\0\0\0\x01" + varint(2 * len(value)) + value + varint(2 * headers) + b"\0\x01" * headers
    return varint(2 * len(body)) + body


def batch(payload: bytes, count: int, codec: str = "none", *, offset: int = 0, style: str = "") -> bytes:
    """Return a valid batch of magic 2; style "raw" is snappy without blocks, "wide" zstd with a window of 128 MiB."""
    number = Codec[codec.upper()]
    if style == "raw":
        stored = bytes(cramjam.snappy.compress_raw(payload))
    elif codec == "zstd":
        # As Java's clients write: a stream without its size, so that the window is bounded.
        window = zstandard.ZstdCompressionParameters.from_level(
            3, write_content_size=False, window_log=27 if style == "wide" else 0
        )
        stream = zstandard.ZstdCompressor(compression_params=window).compressobj()
        stored = stream.compress(payload) + stream.flush()
    else:
        stored = compress(number, memoryview(payload))
    rest = struct.pack(">hiqqqhii", number, max(count - 1, 0), 1000, 1000, -1, -1, -1, count) + stored
    return struct.pack(">qiibI", offset, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def message(magic: int, value: bytes | None, codec: int = 0, offset: int = 0) -> bytes:
    """Return a message of magic 0 or 1 without a key."""
    body = bytes([magic, codec]) + (struct.pack(">q", 1000) if magic else b"") + struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(magic: int, count: int, codec: str, value: bytes | None = None) -> bytes:
    """Return a compressed message set of `count` messages."""
    number = Codec[codec.upper()]
    inner = message(magic, value) * count
    return message(magic, compress(number, memoryview(inner), magic=magic), number, offset=0)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


# Of glibc's malloc.h.
_M_MMAP_THRESHOLD = -3


def measured(call: Callable[[], Any]) -> tuple[int, Any]:
    """Return the increase of the resident memory during `call`, in bytes, and its result or the text of its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with open(reader, "rb") as file:
            answer = file.read()
        os.waitpid(child, 0)
        found: tuple[int, Any] = pickle.loads(answer)
        return found
    try:
        os.close(reader)
        # As in a new process: glibc raises this limit when large blocks are freed, and smaller ones grow by copying.
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)
        # Resets the peak.
        Path("/proc/self/clear_refs").write_text("5")
        before, mapped = _status("VmRSS:"), _status("RssFile:")
        try:
            result = call()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        # A fork has no pages of libraries until it accesses them.
        increase = _status("VmHWM:") - before - max(0, _status("RssFile:") - mapped)
        answer = pickle.dumps((increase, result))
        with open(writer, "wb") as file:
            file.write(answer)
    finally:
        os._exit(0)
