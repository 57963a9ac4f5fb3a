"""Section 5 of the catalogue as a table: the payloads that each codec's reader accepts, with the result, or refuses."""

from __future__ import annotations

import functools
import gzip
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import cramjam
import lz4.block
import lz4.frame
import zstandard
from oracle import XERIAL, encode_record, with_lz4_header_checksum

from kbatch.errors import Fault
from kbatch.format import Codec

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
LIMIT = 16 << 20
GZIP, SNAPPY, LZ4, ZSTD = Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD

_random = random.Random(7)
SMALL = b"kbatch reads record batches; " * 3
LARGE = b"".join(b'{"id":%d,"user":"u-%06d"}' % (i, _random.randrange(10**6)) for i in range(12_000))
NOISE = _random.randbytes(100_000)
# The payload of a batch of three records, so that most cases can also be decoded as a batch.
RECORDS = [encode_record(i, 5 * i, b"k", bytes([97 + i]) * 40) for i in range(3)]
PLAIN = b"".join(RECORDS)
FIRST, REST = RECORDS[0], RECORDS[1] + RECORDS[2]


class Case(NamedTuple):
    """Payloads with one outcome: their decompressed bytes, the number of bytes, or the fault of all of them."""

    rules: str
    name: str
    codec: Codec
    payloads: tuple[bytes | memoryview, ...]
    outcome: bytes | int | Fault
    limit: int = LIMIT
    magic: int = 2
    ordinary: bool = False  # decompressed by the kernel, not by the package's Python functions
    detail: str = ""

    @property
    def id(self) -> str:
        return f"{self.rules} {self.codec.name.lower()} {self.name}"


# -- writers


def as_gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def as_raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def as_xerial(data: bytes, block_size: int = 32 << 10, header: bytes = XERIAL) -> bytes:
    blocks = [as_raw_snappy(data[i : i + block_size]) for i in range(0, len(data), block_size)]
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def as_java_lz4(data: bytes) -> bytes:
    """Compress as Java and librdkafka do: independent blocks of 64 KiB, no checksums, no content size."""
    out = [b"\x04\x22\x4d\x18\x60\x40\x82"]
    for i in range(0, len(data), 65536):
        chunk = data[i : i + 65536]
        block = lz4.block.compress(chunk, store_size=False)
        stored = len(block) >= len(chunk)
        out += [struct.pack("<I", len(chunk) | 1 << 31), chunk] if stored else [struct.pack("<I", len(block)), block]
    return b"".join(out) + b"\0\0\0\0"


def as_lz4(data: bytes = PLAIN, **options: object) -> bytes:
    return bytes(lz4.frame.compress(data, **{"store_size": False, "block_linked": False, "block_size": 4} | options))


def as_zstd(data: bytes = PLAIN, *, size: bool = False, checksum: bool = False, window_log: int = 0) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, write_content_size=size, write_checksum=checksum, window_log=window_log
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    if size:
        return compressor.compress(data)
    stream = compressor.compressobj()
    return stream.compress(data) + stream.flush()


Writer = Callable[[bytes], bytes]
WRITERS: dict[str, tuple[Codec, Writer]] = {
    "gzip": (GZIP, as_gzip),
    "snappy-xerial": (SNAPPY, as_xerial),
    "snappy-raw": (SNAPPY, as_raw_snappy),
    "lz4-java": (LZ4, as_java_lz4),
    "lz4-size": (LZ4, functools.partial(as_lz4, store_size=True)),
    "lz4-4m": (LZ4, functools.partial(as_lz4, block_size=7)),
    "lz4-linked": (LZ4, functools.partial(as_lz4, block_linked=True, store_size=True)),
    "lz4-checksums": (LZ4, functools.partial(as_lz4, block_checksum=True, content_checksum=True)),
    "zstd": (ZSTD, as_zstd),
    "zstd-size-checksum": (ZSTD, functools.partial(as_zstd, size=True, checksum=True)),
}
# The kernel decompresses the output of these.
ORDINARY = {name: writer for name, writer in WRITERS.items() if name not in ("lz4-linked", "lz4-checksums")}


def vector(name: str) -> tuple[Codec, bytes]:
    batch = (VECTORS / f"{name}.bin").read_bytes()
    return Codec(batch[22] & 7), batch[61:]


def changed(payload: bytes, at: int) -> bytes:
    """Flip the lowest bit of one byte."""
    copy = bytearray(payload)
    copy[at] ^= 1
    return bytes(copy)


# -- the table


def _reads(rules: str, name: str, codec: Codec, *payloads: bytes, to: bytes = PLAIN, **more: object) -> Case:
    return Case(rules, name, codec, payloads, to, **more)  # type: ignore[arg-type]


def _refuses(rules: str, name: str, codec: Codec, *payloads: bytes | memoryview, **more: object) -> Case:
    return Case(rules, name, codec, payloads, Fault.CODEC, **more)  # type: ignore[arg-type]


def _vectors(rules: str, size: int | None, *names: str) -> Iterator[Case]:
    for name in names:
        codec, payload = vector(name)
        yield Case(rules, f"vector {name}", codec, (payload,), Fault.CODEC if size is None else size)


def _of_all_codecs() -> Iterator[Case]:
    for name, (codec, write) in WRITERS.items():
        for data in (b"", b"x", SMALL, PLAIN, LARGE, NOISE, bytes(300_000)):
            ordinary = name in ORDINARY and 0 < len(data) != 300_000
            yield _reads("COD-R1", f"{name} of {len(data)}", codec, write(data), to=data, ordinary=ordinary)
        for data in (SMALL, PLAIN, LARGE[:70_000]):
            payload = write(data)
            view = memoryview(payload)
            cuts = [*range(0, len(view), 1 + len(view) // 300), *range(max(0, len(view) - 20), len(view))]
            if name == "snappy-xerial":
                if len(data) > 32 << 10:  # a cut between chunks is accepted (SN-R5), so cut only within chunks
                    cuts = [*range(1, 16), *range(len(view) - 300, len(view))]
                else:
                    yield _reads(
                        "COD-R2 SN-R5", f"cut {name} of {len(data)}", codec, *(view[:i] for i in range(16, 20)), to=b""
                    )
                    cuts = [*range(16), *range(20, len(view))]
            yield _refuses("COD-R2 SN-R5 L4-R8 ZS-R7", f"cut {name} of {len(data)}", codec, *(view[:i] for i in cuts))
        for data in (SMALL, PLAIN, LARGE, NOISE):
            yield _reads("COD-R8", f"{name} of {len(data)} at the limit", codec, write(data), to=data, limit=len(data))
            for limit in (len(data) - 1, len(data) // 2, 0):
                name_of = f"{name} of {len(data)} above {limit}"
                yield Case("COD-R8", name_of, codec, (write(data),), Fault.OVER_LIMIT, limit=limit)
        yield _reads("COD-R8", f"nothing of {name} under a limit of 0", codec, write(b""), to=b"", limit=0)
        yield _reads("COD-R6", f"more bytes than records of {name}", codec, write(PLAIN + b"\0\0"), to=PLAIN + b"\0\0")
    texts = (
        b"",
        b"this is no compressed stream at all",
        b"no stream of any kind, but long enough",
        b"\0" * 30,
        b"\xff" * 30,
    )
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        yield _refuses("COD-R2 COD-R3", "not a stream", codec, *texts)
        if codec != SNAPPY:  # an empty raw block
            yield _refuses("COD-R2", "a single zero", codec, b"\0")
    yield from _vectors("COD-R1", 452_562, "COD-01-lz4", "COD-01-snappy-raw", "SN-13", "L4-11")
    yield from _vectors("COD-R2", None, "COD-03-gzip", "COD-03-lz4", "COD-03-snappy-xerial", "COD-03-zstd")
    yield from _vectors(
        "COD-R2 COD-R3", None, "COD-04-snappy-raw", "COD-04-snappy-xerial", "COD-05-snappy-raw", "COD-05-zstd"
    )
    # Bytes after the stream.
    tails = (
        b"\0",
        b"ab",
        b"abc",
        b"\xff\xff\xff",
        b"trailing",
        b"\0" * 9,
        b"\x1f\x8b",
        b"\x04\x22\x4d\x18",
        b"garbage after it",
    )
    yield _reads("COD-R4 GZ-R4", "bytes after the stream", GZIP, *(as_gzip(PLAIN) + tail for tail in tails))
    for name in ("lz4-java", "lz4-linked", "lz4-checksums"):
        written = WRITERS[name][1](PLAIN)
        yield _reads("COD-R4 L4-R11", f"bytes after {name}", LZ4, *(written + tail for tail in (*tails, NOISE)))
    yield _refuses("COD-R4 ZS-R7", "bytes after the stream", ZSTD, *(as_zstd() + tail for tail in tails))
    yield _refuses("COD-R4", "bytes after a raw block", SNAPPY, *(as_raw_snappy(PLAIN) + tail for tail in tails))
    short = [tail for tail in tails if len(tail) < 4]
    long = [tail for tail in tails if len(tail) > 3]
    yield _reads("COD-R4 SN-R5", "up to three bytes after chunks", SNAPPY, *(as_xerial(PLAIN) + tail for tail in short))
    yield _refuses("COD-R4 SN-R5", "more bytes after chunks", SNAPPY, *(as_xerial(PLAIN) + tail for tail in long))
    for codec, write in ((GZIP, as_gzip), (ZSTD, as_zstd), (SNAPPY, as_xerial)):
        joined = write(FIRST) + write(REST), write(PLAIN) + write(b""), write(b"") + write(PLAIN)
        yield _reads("COD-R5", "concatenated streams", codec, *joined)
        yield _reads("COD-R5", "concatenated, large", codec, write(SMALL) + write(LARGE), to=SMALL + LARGE)
        three = write(SMALL) * 3
        yield _reads(
            "COD-R5 COD-R8", "the sum of streams at the limit", codec, three, to=SMALL * 3, limit=len(SMALL) * 3
        )
        over = Case("COD-R5 COD-R8", "the sum of streams", codec, (three,), Fault.OVER_LIMIT, limit=len(SMALL) * 3 - 1)
        yield over
    yield _reads("COD-R5 L4-R1", "the first frame only", LZ4, as_java_lz4(FIRST) + as_java_lz4(REST), to=FIRST)
    yield _refuses("COD-R5", "concatenated raw blocks", SNAPPY, as_raw_snappy(FIRST) + as_raw_snappy(REST))


def gzip_member(
    flags: int = 0, optional: bytes = b"", data: bytes = PLAIN, crc: int | None = None, size: int | None = None
) -> bytes:
    body = zlib.compressobj(wbits=-15)
    head = b"\x1f\x8b\x08" + bytes([flags]) + b"\0" * 4 + b"\0\xff" + optional
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    trailer = zlib.crc32(data) if crc is None else crc, len(data) if size is None else size
    return head + body.compress(data) + body.flush() + struct.pack("<II", *trailer)


def _of_gzip() -> Iterator[Case]:
    parts = ((8, b"name\0"), (4, b"\3\0abc"), (2, b""), (0x10, b"comment\0"), (0x0E, b"\0\0name\0"), (0, b""), (1, b""))
    members = [gzip_member(flags, optional) for flags, optional in parts]
    yield _reads("GZ-R1", "parts of the header", GZIP, *members)
    yield _reads("GZ-R1", "a file's name", GZIP, members[0], ordinary=True)
    large = [as_gzip(LARGE) + member + as_gzip(b"") + member for member in members]
    yield _reads("GZ-R1", "members with parts", GZIP, *large, to=LARGE + PLAIN + PLAIN)
    pieces = b"".join(as_gzip(PLAIN[i : i + 7]) for i in range(0, len(PLAIN), 7))
    yield _reads("GZ-R1", "many members", GZIP, pieces, as_gzip(b"") * 50_000 + as_gzip(PLAIN))
    yield _reads("GZ-R1", "levels", GZIP, *(gzip.compress(PLAIN, level, mtime=0) for level in (0, 1, 6, 9)))
    yield from _vectors("GZ-R1", 27, "GZ-08", "COD-06-gzip")
    member = as_gzip(PLAIN)
    trailers = [gzip_member(crc=0), gzip_member(size=len(PLAIN) + 1), member[:-8], member + member[:-1]]
    trailers += [member[:-8] + b"\1\2\3\4" + member[-4:], member[:-4] + b"\1\2\3\4"]
    trailers += [as_gzip(FIRST) + gzip_member(data=REST, crc=1), changed(member, -1), changed(member, -5)]
    yield _refuses("GZ-R2", "wrong trailers", GZIP, *trailers)
    yield from _vectors("GZ-R2", None, "GZ-09")
    yield _refuses("GZ-R3", "zlib and raw deflate", GZIP, zlib.compress(PLAIN), zlib.compress(PLAIN, wbits=-15))
    yield _reads("GZ-R4", "zero padding", GZIP, *(member + bytes(count) for count in (1, 3, 8, 600)))
    yield from _vectors("GZ-R4", 27, "GZ-07")
    sizes = (0, len(PLAIN) - 1, len(PLAIN) + 1, 1 << 31, (1 << 32) - 1)
    wrong = [gzip_member(size=size) for size in sizes]
    yield _refuses("GZ-R5", "a claim is not allocated", GZIP, *wrong, limit=1 << 33)


def _chunk(block: bytes, length: int | None = None) -> bytes:
    return struct.pack(">i", len(block) if length is None else length) + block


def _of_snappy() -> Iterator[Case]:
    raw, stream = as_raw_snappy(PLAIN), as_xerial(PLAIN)
    yield _reads("SN-R1", "both shapes", SNAPPY, raw, stream)
    versions = [struct.pack("<ii", 1, 1), struct.pack(">ii", 2, 1), struct.pack(">ii", -1, 99), b"\xff" * 8]
    yield _reads("SN-R2", "versions are not looked at", SNAPPY, *(XERIAL[:8] + two + stream[16:] for two in versions))
    yield _refuses(
        "SN-R2 SN-R10", "the magic without a whole header is raw", SNAPPY, *(XERIAL[:n] for n in (8, 12, 15))
    )
    yield from _vectors("SN-R2", 27, "SN-01", "SN-02")
    chunks = [as_xerial(PLAIN, size) for size in (1, 5, 32 << 10, 64 << 10)]
    yield _reads("SN-R3", "chunks of any size", SNAPPY, *chunks)
    large = [as_xerial(LARGE[:100_000], size) for size in (5, 1000, 50_000, 1 << 20)]
    yield _reads("SN-R3", "large chunks of any size", SNAPPY, *large, to=LARGE[:100_000])
    yield from _vectors("SN-R3", 27, "SN-12")
    restarted = [as_xerial(FIRST) + XERIAL + as_xerial(REST) + XERIAL, XERIAL + stream]
    restarted.append(b"".join(as_xerial(record) for record in RECORDS))
    yield _reads("SN-R4", "a header in place of a length", SNAPPY, *restarted)
    yield _refuses("SN-R4", "no whole header", SNAPPY, stream + XERIAL[:15], stream + XERIAL[:4] + b"another header")
    yield from _vectors("SN-R5", 27, "SN-09")
    yield _refuses("SN-R5", "a cut chunk", SNAPPY, stream[:-1], stream + _chunk(b"123456789", 10))
    yield _refuses("SN-R6", "an empty chunk", SNAPPY, stream + bytes(4), XERIAL + bytes(4) + stream[16:])
    yield from _vectors("SN-R6", None, "SN-06")
    yield _reads("SN-R6", "no chunk", SNAPPY, XERIAL, XERIAL + _chunk(b"\0"), to=b"")
    lengths = (-1, -(2**31), 2**31 - 1, 10_000)
    beyond = [XERIAL + _chunk(block, length) for length in (*lengths, len(raw) + 1) for block in (raw, b"\x02\x04ab")]
    yield _refuses("SN-R7", "a chunk beyond the payload", SNAPPY, *beyond)
    claims = [
        b"\x80\x80\x80\x80\x08",
        b"\xff\xff\xff\xff\x0f",
        b"\x80\x80\x40",
        b"\xff\xff\xff\xff\x07",
        b"\xff" * 6,
        b"\x80",
    ]
    blocks = [claim + rest for claim in claims for rest in (b"\x04ab", b"abcd")]
    blocks += [XERIAL + _chunk(block) for block in blocks]
    yield _refuses("SN-R7", "a claim is not allocated", SNAPPY, *blocks, limit=1 << 40)
    yield _reads("SN-R7", "the densest block", SNAPPY, as_raw_snappy(bytes(1 << 20)), to=bytes(1 << 20))
    yield from _vectors("SN-R7 SN-R8", None, "SN-07", "SN-08", "SN-14", "SN-16")
    official = [bytes(cramjam.snappy.compress(PLAIN)), b"\xff\x06\x00\x00sNaPpY" + bytes(40)]
    yield _refuses("SN-R8", "the official framing", SNAPPY, *official)


def _described(flags: int, block: int, rest: bytes) -> bytes:
    """Return a frame whose descriptor has the correct checksum."""
    return with_lz4_header_checksum(b"\x04\x22\x4d\x18" + bytes([flags, block, 0]) + rest)


def _of_lz4() -> Iterator[Case]:
    frame = as_java_lz4(PLAIN)
    blocks = frame[7:]
    assert _described(0x60, 0x40, blocks) == frame
    yield _reads(
        "L4-R1", "the first frame only", LZ4, *(frame + other for other in (frame, as_lz4(LARGE), as_lz4(b"")))
    )
    yield _reads("L4-R1", "a checked frame first", LZ4, as_lz4(LARGE, content_checksum=True) + frame, to=LARGE)
    yield from _vectors("L4-R1", 27, "L4-10")
    assert not as_lz4(LARGE, block_linked=True)[4] & 0x20
    yield _reads("L4-R2", "linked blocks", LZ4, as_lz4(LARGE, block_linked=True), to=LARGE)
    yield _reads("L4-R2", "a linked block", LZ4, as_lz4(block_linked=True))
    flags = [_described(flags, 0x40, blocks) for flags in (0x20, 0xA0, 0xE0, 0x61, 0x62, 0x63)]
    yield _refuses("L4-R3", "versions, dictionaries and reserved flags", LZ4, *flags)
    sizes = [_described(0x60, block, blocks) for block in (0x00, 0x30, 0xC0, 0x41, 0x48)]
    yield _refuses("L4-R3", "block descriptors", LZ4, *sizes)
    yield from _vectors("L4-R3", None, "L4-15", "L4-17")
    kinds: list[dict[str, object]] = [{"content_checksum": True}, {"block_linked": True, "store_size": True}]
    kinds += [{"block_size": size, "store_size": stored} for size in (4, 5, 6, 7) for stored in (False, True)]
    for options in kinds:
        right = as_lz4(**options)
        end = 14 if options.get("store_size") else 6
        others = [right[:end] + bytes([check]) + right[end + 1 :] for check in range(256) if check != right[end]]
        name = " ".join(f"{key}={value}" for key, value in options.items())
        yield _reads("L4-R4", f"the header checksum, {name}", LZ4, right)
        yield _refuses("L4-R4", f"another header checksum, {name}", LZ4, *others)
        yield _refuses("L4-R4", f"another header checksum in magic 1, {name}", LZ4, *others, magic=1)
        yield _reads("L4-R5", f"any header checksum in magic 0, {name}", LZ4, right, *others, magic=0)
    yield _reads("L4-R6", "a content size", LZ4, as_lz4(store_size=True))
    yield from _vectors("L4-R6", 27, "L4-06")
    for linked in (False, True):
        sized = as_lz4(store_size=True, block_linked=linked)
        claims = [
            sized[:6] + struct.pack("<Q", size) + sized[14:] for size in (0x0123456789ABCDEF, 1 << 40, len(PLAIN) + 1)
        ]
        claims = [with_lz4_header_checksum(claim) for claim in claims]
        yield _refuses("L4-R6", f"a claim is not allocated, linked {linked}", LZ4, *claims, limit=1 << 50)
        yield _refuses("L4-R5 L4-R6", f"a claim in magic 0, linked {linked}", LZ4, *claims, magic=0)
        for kind, at in (("content_checksum", -1), ("block_checksum", -5)):
            checked, large = (as_lz4(data, block_linked=linked, **{kind: True}) for data in (PLAIN, LARGE))
            yield _reads("L4-R7", f"{kind}, linked {linked}", LZ4, checked)
            yield _reads("L4-R7", f"{kind} of many blocks, linked {linked}", LZ4, large, to=LARGE)
            yield _refuses("L4-R7", f"a wrong {kind}, linked {linked}", LZ4, changed(checked, at), changed(large, at))
    yield from _vectors("L4-R7", 27, "L4-02")
    yield from _vectors("L4-R7", None, "L4-03", "L4-05")
    assert frame.endswith(bytes(4))
    unended = [frame[:-4], frame[:-1], as_lz4(block_linked=True)[:-4], as_java_lz4(LARGE)[:-4]]
    yield _refuses("L4-R8", "no end mark", LZ4, *unended)
    stored = struct.pack("<I", len(PLAIN) | 1 << 31) + PLAIN + bytes(4)
    sized = [as_lz4(block_size=size) for size in (4, 5, 6, 7)] + [
        _described(0x60, size << 4, stored) for size in (4, 5, 6, 7)
    ]
    yield _reads("L4-R9", "blocks of every size, stored or not", LZ4, *sized)
    for size in (4, 5, 6, 7):
        payload = as_lz4(LARGE * 20, block_size=size)
        yield _reads("L4-R9", f"many blocks of size {size}", LZ4, payload, to=LARGE * 20)
        yield Case(
            "L4-R9", f"many blocks of size {size} above a limit", LZ4, (payload,), Fault.OVER_LIMIT, limit=100_000
        )
    head = frame[:7]
    noise = head + struct.pack("<I", 1 << 31 | 65536) + NOISE[:65536] + bytes(4)
    yield _reads("L4-R9", "the longest stored block", LZ4, noise, to=NOISE[:65536])
    block = lz4.block.compress(LARGE[:70_000], store_size=False)  # short, but decompresses to more than the maximum
    too_long = [head + struct.pack("<I", 1 << 31 | 65537) + NOISE[:65537] + bytes(4)]
    too_long.append(head + struct.pack("<I", len(block)) + block + bytes(4))
    yield _refuses("L4-R9", "blocks above their maximum", LZ4, *too_long)
    malformed = head + struct.pack("<I", 2) + b"\xf0\xff" + bytes(4)
    yield _refuses("L4-R9", "a malformed block under a limit", LZ4, malformed, limit=10)
    yield from _vectors("L4-R9", None, "L4-19")
    yield from _vectors("L4-R9", 310, "L4-18")
    others = [struct.pack("<II", 0x184D2A50, 4) + b"skip" + frame, b"\x02\x21\x4c\x18" + frame[7:], frame[11:-4]]
    yield _refuses("L4-R10", "other frames", LZ4, *others, lz4.block.compress(PLAIN, store_size=False))
    yield from _vectors("L4-R10", None, "L4-12", "L4-14")
    yield from _vectors("L4-R11", 27, "COD-02-lz4")


SKIPPABLE = struct.pack("<II", 0x184D2A5F, 5) + b"skip!"


def _of_zstd() -> Iterator[Case]:
    frame, sized, empty = as_zstd(), as_zstd(size=True), as_zstd(b"")
    assert zstandard.get_frame_parameters(frame).content_size == zstandard.CONTENTSIZE_UNKNOWN
    yield _reads(
        "ZS-R2", "no content size", ZSTD, frame, zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN)
    )
    yield from _vectors("ZS-R2", 27, "ZS-01")
    frames = [
        frame + empty,
        empty + frame,
        SKIPPABLE + frame,
        frame + SKIPPABLE,
        as_zstd(FIRST) + as_zstd(REST, size=True),
    ]
    frames.append(SKIPPABLE + as_zstd(FIRST, size=True) + SKIPPABLE + empty + as_zstd(REST) + SKIPPABLE)
    yield _reads("ZS-R3", "frames, skippable frames and empty frames", ZSTD, *frames)
    yield _reads("ZS-R3", "a skippable frame alone", ZSTD, SKIPPABLE, to=b"")
    yield from _vectors("ZS-R3", 27, "ZS-05", "ZS-07", "ZS-12", "COD-06-zstd")
    cut = [frame + SKIPPABLE[:-1], frame + struct.pack("<II", 0x184D2A50, 2**32 - 1)]
    yield _refuses("ZS-R3", "a cut skippable frame", ZSTD, *cut)
    checked, large = as_zstd(checksum=True), as_zstd(LARGE, checksum=True)
    yield _reads("ZS-R4", "a checksum", ZSTD, checked)
    yield _refuses(
        "ZS-R4", "a wrong checksum", ZSTD, changed(checked, -1), changed(large, -1), checked[:-4], large[:-4]
    )
    # The checksum is also verified if the limit is exactly the size.
    yield _refuses("ZS-R4", "a wrong checksum at the limit", ZSTD, changed(large, -1), limit=len(LARGE))
    yield from _vectors("ZS-R4", 27, "ZS-03")
    yield from _vectors("ZS-R4", None, "ZS-04")
    assert not frame[4] & 0x20  # so that byte 5 is the window: its exponent minus 10, in the upper five bits
    windows = {log: frame[:5] + bytes([log - 10 << 3]) + frame[6:] for log in (27, 28, 31)}
    yield _reads("ZS-R5", "the widest window", ZSTD, windows[27], as_zstd(window_log=27))
    yield _refuses("ZS-R5", "wider windows", ZSTD, windows[28], windows[31], as_zstd(window_log=28))
    yield from _vectors("ZS-R5", 27, "ZS-08")
    yield from _vectors("ZS-R5", None, "ZS-09")
    dictionary = zstandard.train_dictionary(1024, [LARGE[i : i + 200] for i in range(0, 60_000, 200)])
    with_dictionary = zstandard.ZstdCompressor(dict_data=dictionary).compress(PLAIN)
    yield _refuses("ZS-R6", "a dictionary", ZSTD, with_dictionary, detail="dictionary")
    claim = struct.pack("<Q", 1 << 40) + b"\1\0\0"
    claims = [b"\x28\xb5\x2f\xfd\xc0\x38" + claim, b"\x28\xb5\x2f\xfd\xe0" + claim]
    yield _refuses("ZS-R6", "a claim is not allocated", ZSTD, *claims, limit=1 << 50)
    zeros = as_zstd(bytes(8 << 20), size=True)
    yield Case("ZS-R6", "a claim does not lift the limit", ZSTD, (zeros,), Fault.OVER_LIMIT, limit=1 << 20)
    wrong = [
        struct.pack("<IB", 0xFD2FB528, code << 6 | 0x20) + struct.pack(form, size) + frame[6:]
        for code, form in ((0, "<B"), (2, "<I"), (3, "<Q"))
        for size in (0, 1, len(PLAIN) - 1, len(PLAIN) + 1, 1 << 40)
        if size < 1 << 8 * struct.calcsize(form)
    ]
    yield _refuses("ZS-R6", "a wrong content size", ZSTD, *wrong)
    yield from _vectors("ZS-R6", None, "ZS-11")
    tails = (b"\0", b"\0" * 8, b"\x28\xb5\x2f\xfd", b"abcdefghij", sized[:-1], SKIPPABLE[:-1])
    yield _refuses("ZS-R7", "garbage after a frame", ZSTD, *(good + tail for good in (frame, sized) for tail in tails))
    yield from _vectors("ZS-R7", None, "COD-02-zstd", "COD-08-zstd")


CASES = [*_of_all_codecs(), *_of_gzip(), *_of_snappy(), *_of_lz4(), *_of_zstd()]
