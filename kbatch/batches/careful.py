"""Decompression by the Python functions of the packages: slower than the kernels, for payloads of any shape."""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
import zlib
from typing import Any, NoReturn

import cramjam
import lz4.frame
import numpy as np
import zstandard

from kbatch.batches.arena import Arena, PayloadError
from kbatch.errors import Fault, Finding
from kbatch.format import Codec

__all__ = ["decompress_carefully"]

# The output requested at a time from lz4, which allocates the maximum output of a call: 315 to 410 us for 1 MiB with a
# kept context, as lz4.frame.decompress takes.
LZ4_STEP = 256 << 10
# The compressed bytes that zlib gets at a time. It copies the input that it does not use, which would take quadratic
# time if it got the whole payload.
GZIP_FEED = 256 << 10
# The first step into a member, in bytes; each further one is four times as long. With 256 KiB at once, 2,000 members of
# 30 bytes took 8.1 times the instructions of 500 (`python -m bench.linear`).
GZIP_FIRST_FEED = 1 << 10
# The output requested from zlib at a time: with smaller pieces, 1 MiB takes up to a tenth longer.
GZIP_STEP = 1 << 20
# zlib's objects take several times the size of a piece, so it is smaller if the limit is low: a part of the limit.
GZIP_STEPS = 128
GZIP_MIN_STEP = 64 << 10

# Plain integers: comparing with a member of an enum takes 100 ns, and there may be three of them for a small batch.
_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = map(int, Codec)

_GZIP_MEMBER = b"\x1f\x8b\x08"

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
# The densest element of snappy is a three-byte copy of 64 bytes.
_SNAPPY_MAX_RATIO = 22

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HAS_SIZE = 0x08  # the flag, and the bytes that the content size takes
_LZ4_INDEPENDENT = 0x20
_LZ4_CHECKSUMS = 0x14
_LZ4_STORED = 0x80000000
# Every byte of a block adds at most 255 bytes to a length. A higher ratio would give the same results: it only bounds
# the memory that is reserved, and a block that exceeds the limit is decompressed by the stream decoder.
_LZ4_MAX_RATIO = 255

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50
# Bytes from a frame's magic to its first block, by descriptor: magic and descriptor, window (unless there is a single
# segment), dictionary id, content size.
_ZSTD_HEADER_SIZES = [
    5 + (not d & 0x20) + (0, 1, 2, 4)[d & 3] + (1 << (d >> 6) if d >> 6 else (d >> 5 & 1)) for d in range(256)
]
_ZSTD_STEP = (1 << 20) + 1
# Memory of a context that is kept: the window of 8 MiB that Kafka's clients use at most, and the library's tables. For
# any later frame, the library writes to all of the largest window that the context ever had.
_ZSTD_MAX_KEPT = 10 << 20
_ZSTD_MAX_BLOCK = 128 << 10

_int32_be = struct.Struct(">i").unpack_from
_uint32_le = struct.Struct("<I").unpack_from
_frame_start = struct.Struct("<IB").unpack_from
_uint64_le = struct.Struct("<Q").unpack_from


class _PythonContexts(threading.local):
    """The contexts that each thread keeps: creating one costs more than decompressing a small payload."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()
        self.lz4: object | None = None


_python_contexts = _PythonContexts()


def decompress_carefully(codec: int, payload: memoryview, arena: Arena, limit: int, magic: int = 2) -> int:
    """Decompress like `kbatch.batches.codecs.decompress`, but by the Python functions of the packages, which is slower.

    It decompresses every payload that Kafka decompresses, of any shape and size, reports the fault of all others, and
    allocates no memory beyond the limit. Parameters, results and errors are the same.
    """
    if codec == _LZ4:
        size = _decompress_lz4(payload, arena, limit, magic > 0)
    elif codec == _ZSTD:
        size = _decompress_zstd(payload, arena, limit)
    elif codec == _SNAPPY:
        size = _decompress_snappy(payload, arena, limit)
    elif codec == _GZIP:
        size = _decompress_gzip(payload, arena, limit)
    elif codec == _NONE:
        return append_uncompressed(payload, arena)
    else:
        raise PayloadError(Finding(Fault.UNKNOWN_CODEC, found=codec))
    arena.used += size
    return size


def append_uncompressed(payload: memoryview, arena: Arena) -> int:
    """Append `payload` as it is to `arena`, and return its size."""
    size = len(payload)
    arena.reserve(size)
    arena.view[arena.used : arena.used + size] = payload
    arena.used += size
    return size


def _refuse_payload(detail: str) -> NoReturn:
    # `from None`: if a library raised an error, the detail has its message.
    raise PayloadError(Finding(Fault.CODEC, detail=detail)) from None


def _refuse_size(limit: int) -> NoReturn:
    raise PayloadError(Finding(Fault.OVER_LIMIT, expected=limit))


def _append(chunk: bytes, arena: Arena, produced: int, limit: int) -> int:
    """Write a chunk after the `produced` bytes of this payload, and return the new number of bytes."""
    end = produced + len(chunk)
    if end > limit:
        _refuse_size(limit)
    arena.reserve(end, produced)
    arena.view[arena.used + produced : arena.used + end] = chunk
    return end


def _room(arena: Arena, start: int, size: int) -> Any:
    """Return bytes of the arena for cramjam to write to; in builds without the GIL it takes no memoryview for that."""
    return np.asarray(arena.view[start : start + size])


def _decompress_gzip(payload: memoryview, arena: Arena, limit: int) -> int:
    # zlib's object is as fast as zlib.decompress(), which has no limit and takes one member only.
    if not payload:
        _refuse_payload("gzip: the payload is empty")
    position = produced = 0
    most = min(GZIP_STEP, max(limit // GZIP_STEPS, GZIP_MIN_STEP))
    while True:
        member = zlib.decompressobj(wbits=31)
        # zlib copies the input after a member: a payload of small members must not be copied for each of them.
        size = GZIP_FIRST_FEED
        while not member.eof:
            feed = payload[position : position + size]
            size = min(4 * size, GZIP_FEED)
            try:
                chunk = member.decompress(feed, min(most, limit - produced + 1))
            except zlib.error as error:
                _refuse_payload(f"gzip: {error}")
            # At the end of a member, `unconsumed_tail` may repeat `unused_data`.
            taken = len(feed) - len(member.unused_data if member.eof else member.unconsumed_tail)
            if not chunk and not taken and not member.eof:
                _refuse_payload("gzip: the stream is cut short")
            position += taken
            produced = _append(chunk, arena, produced, limit)
        # Anything but another member ends the stream, zero padding as well as garbage (COD-R4, GZ-R4).
        if payload[position : position + 3] != _GZIP_MEMBER:
            return produced


def _decompress_snappy(payload: memoryview, arena: Arena, limit: int) -> int:
    # The versions in the header are not looked at: there are writers with another byte order (SN-R2).
    if len(payload) < _XERIAL_HEADER_SIZE or payload[:8] != _XERIAL_MAGIC:
        return _decompress_snappy_block(payload, arena, 0, limit)
    end = len(payload)
    position = _XERIAL_HEADER_SIZE
    produced = 0
    while end - position >= 4:  # fewer are ignored (SN-R5)
        length = _int32_be(payload, position)[0]
        if 0 < length <= end - position - 4:
            position += 4
            block = payload[position : position + length]
            produced += _decompress_snappy_block(block, arena, produced, limit)
            position += length
        elif end - position >= _XERIAL_HEADER_SIZE and payload[position : position + 8] == _XERIAL_MAGIC:
            position += _XERIAL_HEADER_SIZE  # a further stream (SN-R4)
        else:
            _refuse_payload(
                f"snappy: chunk length is {length} at payload byte {position}, {end - position - 4} bytes remain"
            )
    return produced


def _decompress_snappy_block(block: memoryview, arena: Arena, produced: int, limit: int) -> int:
    """Append a raw block after the `produced` bytes of this payload."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_MAX_RATIO * len(block):
            _refuse_payload(f"snappy: a block of {len(block)} bytes declares a size of {size}")
        if size > limit - produced:
            _refuse_size(limit)
        arena.reserve(produced + size, produced)
        start = arena.used + produced
        written = cramjam.snappy.decompress_raw_into(block, _room(arena, start, size))
    except cramjam.DecompressionError as error:
        _refuse_payload(f"snappy: {error}")
    if written != size:
        _refuse_payload(f"snappy: a block declares a size of {size} bytes and contains {written}")
    return size


@functools.lru_cache(maxsize=256)
def _lz4_header(header: bytes, check: bool) -> tuple[int, bool]:
    """Check the descriptor of a frame; return its largest block size and whether its blocks are simple.

    Simple blocks are independent, in a frame without checksums, as Java and librdkafka write them. There are few
    different descriptors, so that the result is cached for each.
    """
    if len(header) < 7 or not header.startswith(_LZ4_MAGIC):
        _refuse_payload("lz4: the payload doesn't begin with a frame")
    flags, block_descriptor = header[4], header[5]
    if len(header) < 7 + (flags & _LZ4_HAS_SIZE):
        _refuse_payload("lz4: the stream is cut short in its header")
    if flags >> 6 != 1 or flags & 0x03:  # the lowest bit announces a dictionary id (L4-R3)
        _refuse_payload(f"lz4: the frame's flags are 0x{flags:02x}: not version 1, a reserved bit or a dictionary")
    if block_descriptor & 0x8F or block_descriptor >> 4 < 4:
        _refuse_payload(f"lz4: the frame's block descriptor is 0x{block_descriptor:02x}; expected 0x40 to 0x70")
    if check:
        try:
            lz4.frame.get_frame_info(header)  # verifies the header checksum (L4-R4)
        except RuntimeError as error:
            _refuse_payload(f"lz4: {error}")
    return 1 << (2 * (block_descriptor >> 4) + 8), flags & (_LZ4_INDEPENDENT | _LZ4_CHECKSUMS) == _LZ4_INDEPENDENT


@functools.lru_cache(maxsize=256)
def _lz4_header_checksum(header: bytes) -> bytes:
    """Return the checksum byte of `header`, by trying all values: the library only verifies it."""
    for number in range(256):
        with contextlib.suppress(RuntimeError):
            lz4.frame.get_frame_info(header + bytes([number]))
            return bytes([number])
    _refuse_payload("lz4: the frame's header is malformed")


def _decompress_lz4(payload: memoryview, arena: Arena, limit: int, check_header: bool) -> int:
    # Decompressing each block into the arena is the fastest way from Python: 1 MiB of 64 KiB blocks takes 240 us, where
    # lz4.frame.decompress takes 290 and a copy of its bytes 60 more, LZ4FrameDecompressor 310 with the copy,
    # lz4.block.decompress for each block 320, and cramjam's frame decoder 300 (and 4 us at every call for its context).
    end = len(payload)
    has_size = end > 4 and payload[4] & _LZ4_HAS_SIZE
    position = 7 + has_size
    block_max, plain = _lz4_header(bytes(payload[:position]), check_header)
    if not plain:
        return _decompress_lz4_stream(payload, arena, limit, check_header)
    base = arena.used
    produced = 0
    while end - position >= 4:
        length = _uint32_le(payload, position)[0]
        position += 4
        if length == 0:
            if has_size and _uint64_le(payload, 6)[0] != produced:
                size = _uint64_le(payload, 6)[0]
                _refuse_payload(f"lz4: the frame declares a size of {size} bytes and contains {produced}")
            return produced  # bytes after the first frame are ignored (L4-R1, L4-R11)
        stored = length & _LZ4_STORED
        length &= ~_LZ4_STORED
        if length > block_max or length > end - position:
            _refuse_payload(f"lz4: block length is {length}, the maximum is {block_max}; {end - position} bytes remain")
        block = payload[position : position + length]
        room = length if stored else min(block_max, _LZ4_MAX_RATIO * length)
        fits = room <= limit - produced
        if not fits:
            room = limit - produced
        arena.reserve(produced + room, produced)
        start = base + produced
        if not stored:
            try:
                produced += cramjam.lz4.decompress_block_into(block, _room(arena, start, room), room)
            except cramjam.DecompressionError:
                if fits:
                    _refuse_payload(f"lz4: the block at payload byte {position} is malformed")
                # It is malformed or exceeds the limit: the stream decoder, which stops at any byte, determines which.
                return _decompress_lz4_stream(payload, arena, limit, check_header)
        elif fits:
            arena.view[start : start + length] = block
            produced += length
        else:
            _refuse_size(limit)
        position += length
    _refuse_payload("lz4: the stream is cut short, it has no end mark")


def _decompress_lz4_stream(payload: memoryview, arena: Arena, limit: int, check_header: bool) -> int:
    """Decompress a frame with linked blocks (L4-R2) or checksums, which the library verifies (L4-R7)."""
    if not check_header:
        # The library requires it.
        at = 6 + (payload[4] & _LZ4_HAS_SIZE)
        checksum = _lz4_header_checksum(bytes(payload[:at]))
        payload = memoryview(b"".join((payload[:at], checksum, payload[at + 1 :])))
    # The context is kept only after a whole frame: resetting it within a frame does not clear its remaining content
    # size (liblz4 1.9.4), and the library would then reject the next frame (COD-R9).
    context = _python_contexts.lz4 or lz4.frame.create_decompression_context()
    _python_contexts.lz4 = None
    position = produced = 0
    while True:
        # A copy of the whole output of lz4.frame.decompress would add 80 us for 1 MiB.
        step = min(LZ4_STEP, limit - produced + 1)
        try:
            chunk, taken, at_end = lz4.frame.decompress_chunk(context, payload[position:], max_length=step)
        except RuntimeError as error:
            _refuse_payload(f"lz4: {error}")
        position += taken
        produced = _append(chunk, arena, produced, limit)
        if at_end:
            _python_contexts.lz4 = context
            return produced
        if len(chunk) < step and position == len(payload):
            _refuse_payload("lz4: the stream is cut short")


def _decompress_zstd(payload: memoryview, arena: Arena, limit: int) -> int:
    # The stream reader with a kept context writes to the arena and takes no longer than the one-shot decompress(),
    # which would have to allocate the limit for a frame without its size, and ignores the limit for one with it.
    bound = min(_zstd_bound(payload), limit) + 1
    base = arena.used
    produced = 0
    # The first capacity suffices for any ordinary batch; for larger ones it grows in steps.
    step = max(_ZSTD_STEP, 8 * len(payload))
    reader = _python_contexts.zstd.stream_reader(payload, read_across_frames=True)
    try:
        while True:
            # One byte more than the maximum: a full buffer then means that there is more output, and not that the
            # checksum after the last byte has not been read.
            arena.reserve(min(produced + step, bound), produced)
            # No view may remain when the arena grows.
            with arena.view[base + produced : base + bound] as room:
                size, capacity = reader.readinto(room), len(room)
            produced += size
            if produced > limit:
                _refuse_size(limit)
            if size < capacity:
                return produced
            step = max(_ZSTD_STEP, produced)
    except zstandard.ZstdError as error:
        # Which of the two texts the library has depends on what its context has decompressed before.
        _refuse_payload(f"zstd: {error}".replace("Destination buffer is too small", "Data corruption detected"))
    finally:
        if _python_contexts.zstd.memory_size() > _ZSTD_MAX_KEPT:
            _python_contexts.zstd = zstandard.ZstdDecompressor()


def _zstd_bound(payload: memoryview) -> int:
    """Walk over frames and blocks; return the maximum number of bytes they can decompress to.

    The stream reader takes a cut frame for the end of the input, so that the walk is what finds it (COD-R2). It is an
    index over blocks of 128 KiB each, and looks at no byte within them.

    Sources: RFC 8878, sections 3.1.1 (frames, blocks) and 3.1.2 (skippable frames).
    """
    end = len(payload)
    position = bound = 0
    if not end:
        _refuse_payload("zstd: the payload is empty")
    while position < end:
        if end - position < 8:  # the shortest frame has 9 bytes, the shortest skippable one has 8
            _refuse_payload(f"zstd: {end - position} bytes at payload byte {position} are too few for a frame")
        magic, descriptor = _frame_start(payload, position)
        if magic != _ZSTD_MAGIC:
            if magic & 0xFFFFFFF0 != _ZSTD_SKIPPABLE_MAGIC:
                _refuse_payload(f"zstd: no frame begins with 0x{magic:08x} at payload byte {position}")
            position += 8 + _uint32_le(payload, position + 4)[0]
            if position > end:
                _refuse_payload("zstd: the stream is cut short in a skippable frame")
            continue
        if descriptor & 3:
            id_at = position + 6 - (descriptor >> 5 & 1)
            if any(payload[id_at : id_at + (0, 1, 2, 4)[descriptor & 3]]):
                _refuse_payload("zstd: the frame needs a dictionary")
        start = position
        position += _ZSTD_HEADER_SIZES[descriptor]
        before = bound
        last = 0
        while not last:
            if end - position < 3:
                _refuse_payload("zstd: the stream is cut short")
            header = payload[position] | payload[position + 1] << 8 | payload[position + 2] << 16
            last = header & 1
            kind = header >> 1 & 3
            size = header >> 3
            if kind == 2:  # compressed
                position += 3 + size
                bound += _ZSTD_MAX_BLOCK
            else:  # stored; one byte repeated; reserved, which the library refuses
                position += 4 if kind == 1 else 3 + size
                bound += size
        position += descriptor & 4  # the checksum's bit has the value of its size
        if position > end:
            _refuse_payload("zstd: the stream is cut short")
        # The library checks the content size that a frame declares, unless the last block is empty (ZS-R6).
        # Content sizes stored in one or two bytes are too small to matter.
        if descriptor >= 0x80:
            blocks_at = start + _ZSTD_HEADER_SIZES[descriptor]
            claim = int.from_bytes(payload[blocks_at - (8 if descriptor >= 0xC0 else 4) : blocks_at], "little")
            if claim > bound - before:
                _refuse_payload(f"zstd: a frame declares {claim} bytes, its blocks can contain {bound - before}")
    return bound
