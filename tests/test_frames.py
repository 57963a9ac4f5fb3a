"""The kernels that decompress plain payloads and compress (`frames`, `repack`), held against the packages."""

import gzip
import random
import signal
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from test_codecs import (
    LARGE,
    LIMIT,
    NOISE,
    SMALL,
    WRITERS,
    XERIAL,
    as_gzip,
    as_java_lz4,
    as_lz4,
    as_raw_snappy,
    as_xerial,
    as_zstd,
)

import kbatch
from kbatch import codecs as codecs_module
from kbatch import libraries, recompression
from kbatch.checksums import write_crcs
from kbatch.codecs import Arena, PayloadError, decompress, decompress_carefully
from kbatch.format import Codec
from kbatch.kernels import frames, repack
from kbatch.kernels.frames import Codecs
from kbatch.libraries import addresses

GUARD = 64
CODEC_NAMES = ["none", "gzip", "snappy", "lz4", "zstd"]
CODECS = Codecs(addresses())
PACKAGES = Codecs({})
CODECS_HAVE_ISAL = "isal_inflate_stateless" in addresses()
CODECS_HAVE_ZSTD = "ZSTD_decompressDCtx" in addresses()
WITHOUT_ISAL = Codecs({name: address for name, address in addresses().items() if not name.startswith("isal")})


def plain(codec, payload, capacity=1 << 20, limit=LIMIT, magic=2):
    """Return what the kernel makes of a payload, None if it isn't plain; and check that it keeps to its room.

    Also that the packages, where no C functions are found, give the same or nothing, and ISA-L what zlib does or
    nothing.
    """
    found = plain_by(CODECS, codec, payload, capacity, limit, magic)
    assert found in (None, plain_by(WITHOUT_ISAL, codec, payload, capacity, limit, magic))
    assert plain_by(PACKAGES, codec, payload, capacity, limit, magic) in (None, found)
    return found


def plain_by(codecs, codec, payload, capacity=1 << 20, limit=LIMIT, magic=2):
    memory = np.full(capacity + 2 * GUARD, 0xA5, np.uint8)
    size = frames.plain(codecs, codec, magic > 0, memoryview(payload), memory[GUARD : capacity + GUARD].data, limit)
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[capacity + GUARD :] == 0xA5).all()
    if size < 0:
        return None
    assert size <= limit
    return memory[GUARD : GUARD + size].tobytes()


def agrees(codec, payload, limit=LIMIT, magic=2):
    """Check that the kernel gives what the careful way gives, or nothing; tell which."""
    found = plain(codec, payload, limit=limit, magic=magic)
    if found is not None:
        arena = Arena()
        decompress_carefully(codec, memoryview(payload), arena, limit, magic)
        assert found == arena.array().tobytes()
    assert outcome(decompress, codec, payload, limit, magic) == outcome(
        decompress_carefully, codec, payload, limit, magic
    )
    return found is not None


def outcome(way, codec, payload, limit, magic):
    """Give what comes of a payload: its bytes, or what is said to be wrong with it."""
    arena = Arena()
    try:
        size = way(codec, memoryview(payload), arena, limit, magic)
    except PayloadError as error:
        assert arena.used == 0
        return error.finding
    assert arena.used == size
    return arena.array().tobytes()


PLAIN = {
    "gzip": (Codec.GZIP, as_gzip),
    "snappy-raw": (Codec.SNAPPY, as_raw_snappy),
    "snappy-xerial": (Codec.SNAPPY, as_xerial),
    "lz4-java": (Codec.LZ4, as_java_lz4),
    "lz4-size": (Codec.LZ4, lambda data: as_lz4(data, size=True)),
    "lz4-4m": (Codec.LZ4, lambda data: as_lz4(data, block_size=7)),
    "zstd": (Codec.ZSTD, as_zstd),
    "zstd-size-checksum": (Codec.ZSTD, lambda data: as_zstd(data, size=True, checksum=True)),
}
every_plain = pytest.mark.parametrize(("codec", "write"), PLAIN.values(), ids=PLAIN)


@every_plain
@pytest.mark.parametrize("data", [b"x", SMALL, LARGE[:16_000], LARGE[:120_000], NOISE], ids=lambda data: str(len(data)))
def test_cod_r1_ordinary_streams_are_plain(codec, write, data):
    assert plain(codec, write(data), capacity=8 << 20) == data
    assert plain_by(PACKAGES, codec, write(data), capacity=8 << 20) == data


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("data", [b"", SMALL, LARGE, bytes(300_000)], ids=lambda data: str(len(data)))
def test_cod_r1_every_stream_is_as_the_careful_way_has_it(name, data):
    codec, write = WRITERS[name]
    agrees(codec, write(data))


@every_plain
def test_cod_r2_truncations_and_what_follows_the_stream(codec, write):
    payload = write(SMALL)
    for end in range(len(payload)):
        agrees(codec, payload[:end])
    for tail in (b"\0", b"\0" * 9, b"junk", payload[:4], payload, write(b""), write(LARGE[:1000])):
        agrees(codec, payload + tail)


@every_plain
def test_cod_r7_any_flipped_bit(codec, write):
    payload = bytearray(write(SMALL + NOISE[:40]))
    outcomes = set()
    for bit in range(8 * len(payload)):
        payload[bit >> 3] ^= 1 << (bit & 7)
        outcomes.add(agrees(codec, bytes(payload), limit=1 << 20))
        payload[bit >> 3] ^= 1 << (bit & 7)
    assert False in outcomes


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 2, 3, 4]), st.binary(max_size=80), st.booleans())
def test_cod_r7_any_bytes(codec, body, framed):
    starts = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff", XERIAL, b"\x04\x22\x4d\x18\x60\x40\x82", b"\x28\xb5\x2f\xfd\0\x38"]
    agrees(codec, starts[codec - 1] + body if framed else body, limit=1 << 16)


@every_plain
@pytest.mark.parametrize("data", [SMALL, LARGE[:120_000], NOISE], ids=["small", "large", "noise"])
def test_cod_r8_neither_limit_nor_room_is_passed(codec, write, data):
    payload = write(data)
    for short in (1, 2, len(data) // 2, len(data)):
        assert plain(codec, payload, limit=len(data) - short) is None
        assert plain(codec, payload, capacity=len(data) - short) is None


@pytest.mark.parametrize("claim", [0, len(SMALL) - 1, len(SMALL) + 1, 1 << 31, (1 << 32) - 1])
def test_gz_r5_a_wrong_size_is_not_plain(claim):
    assert plain(Codec.GZIP, as_gzip(SMALL)[:-4] + struct.pack("<I", claim)) is None


def test_cod_r5_gzip_members_are_never_lost():
    member, empty = as_gzip(SMALL), as_gzip(b"")
    # Two members of one size: the last one tells the size of the first.
    assert plain(Codec.GZIP, member * 2) is None
    assert plain(Codec.GZIP, empty + member) in (None, SMALL)
    assert plain(Codec.GZIP, member + empty) is None
    assert plain(Codec.GZIP, member + b"\0" * 8) is None


def test_gz_r1_a_header_may_have_more_in_it():
    payload = gzip.compress(SMALL, mtime=0)
    assert plain(Codec.GZIP, payload[:3] + b"\x08" + payload[4:10] + b"name\0" + payload[10:]) == SMALL


@pytest.mark.parametrize("block", [0x40, 0x50, 0x60, 0x70])
@pytest.mark.parametrize("size", [None, 0, len(SMALL), 0x0123456789ABCDEF])
def test_l4_r4_and_r5_header_checksum(block, size):
    head = b"\x04\x22\x4d\x18" + (bytes([0x60, block]) if size is None else struct.pack("<BBQ", 0x68, block, size))
    rest = struct.pack("<I", len(SMALL) | 1 << 31) + SMALL + b"\0\0\0\0"
    wanted = SMALL if size in (None, len(SMALL)) else None
    right = 0
    for number in range(256):
        header = head + bytes([number])
        try:
            lz4.frame.get_frame_info(header)
            right += 1
            expected = wanted
        except RuntimeError:
            expected = None
        assert plain(Codec.LZ4, header + rest) == plain(Codec.LZ4, header + rest, magic=1) == expected
        assert plain(Codec.LZ4, header + rest, magic=0) == wanted
    assert right == 1


@pytest.mark.parametrize("size", [0, 1, len(SMALL) - 1, len(SMALL) + 1, 1 << 40])
@pytest.mark.parametrize("blocks", [as_zstd(SMALL)[6:], bytes.fromhex("010000")], ids=["full", "empty"])
def test_zs_r6_a_wrong_content_size_is_not_plain(size, blocks):
    for code, form in ((0, "<B"), (2, "<I"), (3, "<Q")):
        if size < 1 << 8 * struct.calcsize(form):
            frame = struct.pack("<IB", 0xFD2FB528, code << 6 | 0x20) + struct.pack(form, size) + blocks
            agrees(Codec.ZSTD, frame)
            right = size == 0 and len(blocks) == 3 and CODECS_HAVE_ZSTD
            assert plain(Codec.ZSTD, frame) == (b"" if right else None)


def sealed(batch):
    """Write the checksum of an entry anew."""
    data = np.frombuffer(bytearray(batch), np.uint8)
    write_crcs(data, kbatch.scan(data))
    return data.tobytes()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_payload_with_nothing_to_read_in_it_is_not_looked_at(codec):
    batch = bytearray(kbatch.encode([b"a"] * 9, timestamps=5, codec=codec))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[57:61] = struct.pack(">i", -1)
    with pytest.raises(kbatch.InvalidRecordError, match="record count is -1"):
        kbatch.decode(sealed(batch))
    control = bytearray(kbatch.encode([b"a"] * 9, timestamps=5, codec=codec))
    control[61:] = b"\xff" * (len(control) - 61)
    control[22] |= 0x20
    assert len(kbatch.decode(sealed(control))) == 0
    with pytest.raises(kbatch.CodecError):
        kbatch.decode(sealed(control), include_control=True)


def test_leg_r17_a_wrapper_without_a_value():
    wrapper = bytearray(kbatch.encode([b"a"] * 9, timestamps=5, magic=1, codec="gzip"))
    wrapper[30:34] = struct.pack(">i", -1)
    with pytest.raises(kbatch.InvalidRecordError, match="value"):
        kbatch.decode(sealed(wrapper))


@pytest.mark.parametrize(
    ("name", "codec", "payload"),
    [("decompressobj", Codec.GZIP, as_gzip(SMALL)), ("ZstdDecompressor", Codec.ZSTD, as_zstd(SMALL))],
)
def test_nothing_that_a_package_raises_is_an_empty_payload(name, codec, payload, monkeypatch):
    """What isn't an Exception either, such as a panic of Rust's."""

    class PanicException(BaseException):
        pass

    class Library:
        def __init__(self, *_):
            pass

        def decompress(self, *_):
            raise PanicException

    assert plain_by(PACKAGES, codec, payload) == SMALL
    monkeypatch.setattr(frames, name, Library)
    assert plain_by(Codecs({}), codec, payload) is None


@pytest.mark.parametrize("error", [TypeError, ValueError, OSError, AttributeError])
def test_a_library_that_cannot_be_opened_is_left_alone(error, monkeypatch):
    """Windows has no library without a name, for one: `ctypes` raises TypeError there."""

    def refuse(*_):
        raise error

    monkeypatch.setattr(libraries.ctypes, "CDLL", refuse)
    assert libraries.addresses.__wrapped__() == {}


def gzip_members(dice):
    """Give gzip members whose deflate stream is damaged and whose trailer is that of what zlib makes of it, if it can.

    With each of them what zlib makes of it.
    """
    text = b"".join(dice.choices([dice.randbytes(dice.randrange(1, 20)) for _ in range(50)], k=dice.randrange(400)))
    made = zlib.compressobj(dice.randrange(10), zlib.DEFLATED, -15, 8, dice.choice([0, zlib.Z_RLE, zlib.Z_FIXED]))
    stream = made.compress(text) + made.flush()
    for _ in range(30):
        damaged = bytearray(stream)
        for _ in range(dice.choice([0, 1, 1, 2])):
            # Headers of blocks are where most can go wrong.
            damaged[dice.randrange(min(len(stream), dice.choice([4, 30, 90, 1 << 20])))] ^= 1 << dice.randrange(8)
        member = zlib.decompressobj(-15)
        try:
            plain = member.decompress(bytes(damaged))
        except zlib.error:
            plain = None
        if plain is not None and (not member.eof or member.unused_data):
            plain = None
        trailer = struct.pack("<II", zlib.crc32(plain or text), len(text if plain is None else plain))
        yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + bytes(damaged) + trailer, plain


@pytest.mark.parametrize("seed", range(60))
def test_gz_r1_damaged_streams_are_taken_and_refused_as_by_zlib(seed):
    for member, expected in gzip_members(random.Random(seed)):
        assert plain_by(WITHOUT_ISAL, Codec.GZIP, member) == expected
        assert plain_by(PACKAGES, Codec.GZIP, member) == expected
        # What zlib takes, ISA-L takes; of what zlib refuses, the trailer doesn't hold.
        assert plain_by(CODECS, Codec.GZIP, member) == expected


def test_gz_r1_isal_takes_codes_that_are_incomplete():
    """The one known difference: nothing writes such streams, and their checksum has to hold."""
    pytest.importorskip("isal", reason="needs the extra fast", exc_type=ImportError)
    # One dynamic block: literal "A" and the end of the block have two bits each, half of the codes stand for nothing.
    bits = [(0b101, 3), (0, 5), (0, 5), (15, 4)]
    bits += [
        (4 if symbol < 16 else 0, 3) for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
    ]
    bits += [(int(f"{2 if symbol in (65, 256) else 0:04b}"[::-1], 2), 4) for symbol in range(257)] + [(0, 4)]
    bits += [(0b00, 2), (0b10, 2)]
    value = size = 0
    for number, width in bits:
        value |= number << size
        size += width
    stream = value.to_bytes(-(-size // 8), "little")
    with pytest.raises(zlib.error):
        zlib.decompressobj(-15).decompress(stream)
    head, trailer = b"\x1f\x8b\x08\0\0\0\0\0\0\xff", struct.pack("<II", zlib.crc32(b"A"), 1)
    assert plain_by(WITHOUT_ISAL, Codec.GZIP, head + stream + trailer) is None
    assert plain_by(CODECS, Codec.GZIP, head + stream + trailer) == b"A"
    assert plain_by(CODECS, Codec.GZIP, head + stream + struct.pack("<II", 0, 1)) is None


@pytest.mark.parametrize("flags", range(32))
def test_gzip_headers_with_everything_in_them(flags):
    header = b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff"
    header += b"\x03\0abc" if flags & 4 else b""
    header += b"name\0" if flags & 8 else b""
    header += b"comment\0" if flags & 16 else b""
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF) if flags & 2 else b""
    member = header + zlib.compress(b"plain" * 50, wbits=-15) + struct.pack("<II", zlib.crc32(b"plain" * 50), 250)
    assert plain_by(WITHOUT_ISAL, Codec.GZIP, member) == b"plain" * 50
    # ISA-L's way leaves checksums of headers to zlib.
    expected = None if flags & 2 and CODECS_HAVE_ISAL else b"plain" * 50
    assert plain_by(CODECS, Codec.GZIP, member) == expected
    for cut in range(len(header)):
        assert plain_by(CODECS, Codec.GZIP, member[:cut] + member[-8:]) is None


# -- compression

LEVELS = {1: [-1, 1, 6, 9], 2: [0], 3: [0, 1, 2, 3, 9, 12, 17], 4: [-131072, -5, 1, 3, 7, 12, 19, 22]}
TEXTS = [b"", b"x", SMALL, LARGE[:16_000], LARGE[:70_000], NOISE, NOISE[:65_536], bytes(131_072)]
every_level = pytest.mark.parametrize(
    ("codec", "level"), [(codec, level) for codec, levels in LEVELS.items() for level in levels]
)


def by_package(codec, level, data):
    if codec == Codec.GZIP:
        member = zlib.compressobj(level, zlib.DEFLATED, 31)
        return member.compress(data) + member.flush()
    if codec == Codec.SNAPPY:
        return as_xerial(data)
    if codec == Codec.LZ4:
        return lz4.frame.compress(data, compression_level=level, block_size=4, block_linked=False, store_size=False)
    return zstandard.ZstdCompressor(level).compress(data)


@every_level
@pytest.mark.parametrize("codecs", [CODECS, PACKAGES], ids=["functions", "packages"])
def test_cod_r10_compressed_is_what_the_package_writes(codecs, codec, level):
    for data in TEXTS:
        assert frames.packed(codecs, codec, level, 2, memoryview(data)) == by_package(codec, level, data)


@pytest.mark.parametrize("codecs", [CODECS, PACKAGES], ids=["functions", "packages"])
def test_l4_r5_the_header_checksum_of_magic_0(codecs):
    for data in TEXTS:
        frame = by_package(Codec.LZ4, 0, data)
        assert frames.packed(codecs, 3, 0, 1, memoryview(data)) == frame
        assert frames.packed(codecs, 3, 0, 0, memoryview(data)) == frame[:6] + b"\x1a" + frame[7:]


@every_plain
def test_every_length_has_room_for_what_it_is_compressed_to(codec, write):
    """Noise, which no codec makes smaller; snappy refuses to begin where there is no room for the worst."""
    arena = Arena()
    for length in [*range(300), *(size + more for size in (32 << 10, 64 << 10, 128 << 10) for more in (-1, 0, 1))]:
        data = (NOISE * 2)[:length]
        packed = frames.packed(CODECS, codec, 1, 2, memoryview(data))
        assert frames.packed(PACKAGES, codec, 1, 2, memoryview(data)) == packed
        arena.used = 0
        decompress_carefully(codec, memoryview(packed), arena, LIMIT)
        assert arena.array().tobytes() == data


@pytest.mark.parametrize(("name", "codec"), [("lz4_compress", 3), ("ZstdCompressor", 4), ("compressobj", 1)])
def test_what_a_package_raises_is_raised(name, codec, monkeypatch):
    """By all of encode, recompress and `compress`; and what follows is as if nothing had happened."""

    class PanicException(BaseException):
        pass

    def refuse(*_, **__):
        raise PanicException

    values = [b"value %d" % i for i in range(1000)]
    plain = kbatch.encode(values, timestamps=5)
    packed = kbatch.encode(values, timestamps=5, codec=codec)
    monkeypatch.setattr(codecs_module._contexts, "codecs", Codecs({}))
    assert kbatch.encode(values, timestamps=5, codec=codec) == packed
    with monkeypatch.context() as patched:
        patched.setattr(frames, name, refuse)
        patched.setattr(codecs_module._contexts, "codecs", Codecs({}))
        for write in (
            lambda: kbatch.encode(values, timestamps=5, codec=codec),
            lambda: kbatch.recompress(plain, Codec(codec)),
            lambda: codecs_module.compress(codec, memoryview(b"plain")),
        ):
            with pytest.raises(PanicException):
                write()
    assert kbatch.recompress(plain, Codec(codec)) == packed


def test_a_package_that_writes_more_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(frames, "lz4_compress", lambda *_, **__: bytes(200))
    with pytest.raises(RuntimeError, match="has made 200 bytes"):
        frames.packed(PACKAGES, 3, 0, 2, memoryview(b"plain"))
    monkeypatch.setattr(frames, "lz4_compress", lambda *_, **__: b"\x04\x22\x4d\x18\x60\x40")
    for magic in (1, 2):
        assert len(frames.packed(PACKAGES, 3, 0, magic, memoryview(b"plain"))) == 6
    with pytest.raises(RuntimeError, match="a frame of another kind: 04224d186040"):
        frames.packed(PACKAGES, 3, 0, 0, memoryview(b"plain"))


@pytest.mark.parametrize(
    ("package", "name", "functions"),
    [
        (libraries.lz4.frame, "compress", {"LZ4F_compressFrame"}),
        (
            libraries.zstandard,
            "ZstdCompressor",
            {"ZSTD_createCCtx", "ZSTD_CCtx_setParameter", "ZSTD_compress2", "ZSTD_freeCCtx"},
        ),
    ],
)
def test_functions_that_write_something_else_than_the_package_are_left_alone(package, name, functions, monkeypatch):
    class Other:
        def __new__(cls, *_, **__):
            return b"something else"

    found = libraries.addresses()
    monkeypatch.setattr(package, name, Other)
    assert libraries.addresses.__wrapped__() == {key: value for key, value in found.items() if key not in functions}


# -- rewriting by the same functions


def row_of(batch):
    return kbatch.scan(batch).copy()


def repacked(batch, codec, *, limit=LIMIT, scratch=1 << 20, room=1 << 20, rows=None, codecs=CODECS, lo=0, most=1 << 40):
    """Give what the kernel writes, None if that is nothing, and check that it keeps to its room."""
    rows = row_of(batch) if rows is None else rows
    before = rows.copy()
    memory = np.full(room + 2 * GUARD, 0xA5, np.uint8)
    spare = np.full(scratch + 2 * GUARD, 0xA5, np.uint8)
    data = np.frombuffer(batch, np.uint8)
    level = codecs_module.level_of(codec, None)
    out, used = memory[GUARD : room + GUARD], spare[GUARD : scratch + GUARD]
    last, size = repack.repack(data, rows, lo, 0, codecs, codec, level, limit, used, out, most)
    for array in (memory, spare):
        assert (array[:GUARD] == 0xA5).all()
        assert (array[-GUARD:] == 0xA5).all()
    if last == lo:
        assert (rows == before).all()
        assert size == 0
        return None
    assert size <= room
    return out[:size].tobytes()


@pytest.mark.parametrize("target", CODEC_NAMES)
@pytest.mark.parametrize("own", CODEC_NAMES)
@pytest.mark.parametrize("codecs", [CODECS, PACKAGES], ids=["functions", "packages"])
def test_batches_under_another_codec(own, target, codecs):
    values = [b"value %d" % i for i in range(1000)]
    batch = kbatch.encode(values, timestamps=5, codec=own, batch_size=1 << 20)
    wanted = kbatch.encode(values, timestamps=5, codec=target, batch_size=1 << 20)
    codec = Codec[target.upper()].value
    assert repacked(batch, codec, codecs=codecs) == wanted
    size = len(kbatch.encode(values, timestamps=5, batch_size=1 << 20)) - 61
    if own != "none":
        assert repacked(batch, codec, codecs=codecs, limit=size) == wanted
        assert repacked(batch, codec, codecs=codecs, limit=size - 1) is None
        if target != "none":
            assert repacked(batch, codec, codecs=codecs, scratch=size) == wanted
            assert repacked(batch, codec, codecs=codecs, scratch=size - 1) is None
    for room in (0, 60, 61, 62, size, size + 60):
        assert repacked(batch, codec, codecs=codecs, room=room) is None
    assert repacked(batch, codec, codecs=codecs, room=61 + size + size // 5 + 128) == wanted


def test_repack_is_bounded_by_the_data_and_the_rows():
    batch = kbatch.encode([b"value"] * 100, timestamps=5, codec="lz4")
    for name, value in (("size", len(batch) + 1), ("size", 60), ("size", -1), ("size", 1 << 62), ("position", 1),
                        ("position", -1), ("position", 1 << 62), ("magic", 1), ("magic", 0)):  # fmt: skip
        rows = row_of(batch)
        rows[name] = value
        assert repacked(batch, 4, rows=rows) is None, name
    rows = row_of(batch)
    for lo, codec in ((-1, 4), (2, 4), (0, -1), (0, 8)):
        with pytest.raises(IndexError):
            repacked(batch, codec, rows=rows, lo=lo)
    old = kbatch.encode([b"value"] * 100, timestamps=5, codec="lz4", magic=1)
    assert repacked(old, 1) == kbatch.recompress(old, "gzip")
    # Messages are other entries of a log.
    assert repacked(old, 0) is None
    assert repacked(kbatch.encode([b"value"], timestamps=5, magic=1), 1) is None


def test_repack_ends_with_the_batch_by_which_there_is_enough():
    data = kbatch.encode([b"value"] * 100, timestamps=5, codec="lz4", batch_size=200)
    batches = kbatch.scan(data)
    assert len(batches) > 4
    wanted = kbatch.recompress(data, "none")
    sizes = kbatch.scan(wanted)["size"]
    for count in range(1, 5):
        assert repacked(data, 0, most=int(sizes[:count].sum())) == wanted[: sizes[:count].sum()]
        assert repacked(data, 0, most=int(sizes[:count].sum()) - 1) == wanted[: sizes[:count].sum()]


@pytest.mark.parametrize("target", CODEC_NAMES)
@pytest.mark.parametrize("own", CODEC_NAMES[1:])
def test_cod_r8_batches_that_grow_a_thousandfold_are_recompressed(own, target):
    """The kernel has no room for them, which doesn't show."""
    parts = [[b"a"] * 50, [bytes(3 << 20)], [b"b" * 100] * 10]
    data = b"".join(kbatch.encode(part, timestamps=5, codec=own, batch_size=4 << 20) for part in parts)
    wanted = b"".join(kbatch.encode(part, timestamps=5, codec=target, batch_size=4 << 20) for part in parts)
    if own != target:
        assert kbatch.recompress(data, target) == wanted
        with pytest.raises(kbatch.LimitExceededError, match="decompresses to more than 3000000 bytes"):
            kbatch.recompress(data, target, limits=kbatch.Limits(max_decompressed_bytes=3_000_000))


@pytest.mark.parametrize("target", CODEC_NAMES)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_batches_without_room_are_rewritten_one_by_one(magic, target, monkeypatch):
    """What stands for any batch is what stands for ordinary ones."""
    if magic < 2 and target in ("none", "zstd"):
        return
    fields = {"timestamps": 5} if magic else {}
    values = [LARGE[i : i + 300] for i in range(0, 90_000, 300)]
    data = b"".join(
        kbatch.encode(values, magic=magic, codec=own, batch_size=20_000, base_offset=1000 * i, **fields)
        for i, own in enumerate(CODEC_NAMES[1 : 4 if magic < 2 else 5])
    )
    both = kbatch.RewriteReport(), kbatch.RewriteReport()
    made = kbatch.recompress(data, target, report=both[0])
    monkeypatch.setattr(recompression, "_ORDINARY_BYTES", 0)
    monkeypatch.setattr(recompression, "BLOCK_BYTES", 100)
    assert kbatch.recompress(data, target, report=both[1]) == made
    assert both[0] == both[1]
    assert kbatch.decode(made).values() == values * (len(CODEC_NAMES) - 1 if magic == 2 else 3)


def test_contexts_are_those_of_a_thread():
    values = [LARGE[i : i + 200] for i in range(0, 200_000, 200)]
    wanted = {level: kbatch.encode(values, timestamps=5, codec="zstd", level=level) for level in (1, 3, 9)}

    def encode(level):
        return level, kbatch.encode(values, timestamps=5, codec="zstd", level=level)

    with ThreadPoolExecutor(4) as pool:
        for level, made in pool.map(encode, [1, 3, 9, 3, 1, 9, 9, 1] * 4):
            assert made == wanted[level]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that signal")
@pytest.mark.parametrize("rewrite", [False, True], ids=["encode", "recompress"])
def test_a_signal_ends_a_long_compression(rewrite):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    values = [LARGE[i : i + 1000] for i in range(0, 300_000, 10)]
    plain = kbatch.encode(values, timestamps=5, batch_size=16384)

    def compress():
        if rewrite:
            kbatch.recompress(plain, "zstd", level=19)
        else:
            kbatch.encode(values, timestamps=5, codec="zstd", level=19, batch_size=16384)

    before = signal.signal(signal.SIGALRM, ring)
    start = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Alarm):
            compress()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - start < 2
