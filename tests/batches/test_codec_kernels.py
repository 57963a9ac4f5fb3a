"""Libraries called by kernels, compression, and recompression (`codecs`, `repack`)."""

import random
import re
import signal
import struct
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import numpy as np
import pytest
import zstandard
from codec_cases import LARGE, LIMIT, NOISE, ORDINARY, SMALL, as_xerial, gzip_member

import kbatch
from kbatch.batches import codecs as codecs_module
from kbatch.batches import native
from kbatch.batches.arena import Arena
from kbatch.batches.careful import decompress_carefully
from kbatch.batches.native import addresses
from kbatch.format import Codec
from kbatch.kernels import codecs as codecs_kernel
from kbatch.kernels import repack
from kbatch.kernels.checksum import write_crcs
from kbatch.kernels.codecs import Codecs
from kbatch.rewrite.recompression import Recompression
from kbatch.rewrite.rewriter import rewrite_bytes

GUARD = 64
CODEC_NAMES = ["none", "gzip", "snappy", "lz4", "zstd"]
CODECS = Codecs(addresses())
PACKAGES = Codecs({})
WITHOUT_ISAL = Codecs({name: address for name, address in addresses().items() if not name.startswith("isal")})
needs_functions = pytest.mark.skipif(not addresses(), reason="needs the C functions of the packages")
needs_zlib = pytest.mark.skipif("inflate" not in addresses(), reason="needs the functions of zlib")
every_ordinary = pytest.mark.parametrize(("codec", "write"), ORDINARY.values(), ids=ORDINARY)
both_compressors = pytest.mark.parametrize(
    "codecs", [pytest.param(CODECS, marks=needs_functions), PACKAGES], ids=["functions", "packages"]
)
PACKAGE_NAMES = dict.fromkeys(group.package for group in native._FUNCTIONS)


def functions_of(package):
    """Return the names of the C functions of a package."""
    return {name for group in native._FUNCTIONS if group.package == package for name in group.names}


def gunzipped(member, by):
    """Return the bytes that the kernel decompresses from a gzip member, or None if it declines."""
    memory = np.empty(1 << 20, np.uint8)
    size = codecs_kernel.decompress_into(by, Codec.GZIP, True, memoryview(member), memory.data, LIMIT)
    return None if size < 0 else memory[:size].tobytes()


def with_valid_crc(batch):
    """Return the entry with the CRC written again."""
    data = np.frombuffer(bytearray(batch), np.uint8)
    write_crcs(data, kbatch.scan(data))
    return data.tobytes()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_payload_of_a_batch_without_returned_records_is_not_decompressed(codec):
    batch = bytearray(kbatch.encode([b"a"] * 9, timestamps=5, codec=codec))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[57:61] = struct.pack(">i", -1)
    with pytest.raises(kbatch.InvalidRecordError, match="record count is -1"):
        kbatch.decode(with_valid_crc(batch))
    control = bytearray(kbatch.encode([b"a"] * 9, timestamps=5, codec=codec))
    control[61:] = b"\xff" * (len(control) - 61)
    control[22] |= 0x20
    assert len(kbatch.decode(with_valid_crc(control))) == 0
    with pytest.raises(kbatch.CodecError):
        kbatch.decode(with_valid_crc(control), include_control=True)


def test_leg_r17_a_wrapper_without_a_value_is_invalid():
    wrapper = bytearray(kbatch.encode([b"a"] * 9, timestamps=5, magic=1, codec="gzip"))
    wrapper[30:34] = struct.pack(">i", -1)
    with pytest.raises(kbatch.InvalidRecordError, match="value"):
        kbatch.decode(with_valid_crc(wrapper))


# -- libraries


@pytest.mark.parametrize("error", [TypeError, ValueError, OSError, AttributeError])
def test_a_library_that_cannot_be_opened_is_not_used(error, monkeypatch):
    """Opening may fail, for example on Windows, where `ctypes` raises TypeError for a library without a name."""

    def refuse(*_):
        raise error

    monkeypatch.setattr(native.ctypes, "CDLL", refuse)
    assert native.addresses.__wrapped__() == {}


@pytest.mark.parametrize(
    ("package", "name", "functions"),
    [
        (native.lz4.frame, "compress", {"LZ4F_compressFrame"}),
        (
            native.zstandard,
            "ZstdCompressor",
            {"ZSTD_createCCtx", "ZSTD_CCtx_setParameter", "ZSTD_compress2", "ZSTD_freeCCtx"},
        ),
    ],
)
def test_functions_that_write_other_bytes_than_the_package_are_not_used(package, name, functions, monkeypatch):
    class Other:
        def __new__(cls, *_, **__):
            return b"something else"

    found = native.addresses()
    monkeypatch.setattr(package, name, Other)
    assert native.addresses.__wrapped__() == {key: value for key, value in found.items() if key not in functions}


def set_version(package, version, monkeypatch):
    name = "ZLIB_RUNTIME_VERSION" if package == "zlib" else "__version__"
    monkeypatch.setattr(pytest.importorskip(package), name, version)


@pytest.mark.parametrize("package", PACKAGE_NAMES)
@pytest.mark.parametrize("which", ["older", "newer", "not a version"])
def test_functions_of_an_unverified_version_are_not_used(package, which, monkeypatch):
    ((first, end),) = {group.versions for group in native._FUNCTIONS if group.package == package}
    older = f"{first[0]}.{first[1] - 1}.99" if first[1] else f"{first[0] - 1}.99"
    newer = f"{end[0]}.{end[1]}.0rc1"
    found = native.addresses()
    set_version(package, {"older": older, "newer": newer}.get(which, which), monkeypatch)
    remaining = native.addresses.__wrapped__()
    assert remaining == {name: address for name, address in found.items() if name not in functions_of(package)}
    # The packages' Python functions are used instead.
    monkeypatch.setattr(codecs_module._contexts, "codecs", Codecs(remaining), raising=False)
    for codec in CODEC_NAMES[1:]:
        batch = kbatch.encode([b"value"] * 100, timestamps=5, codec=codec)
        assert kbatch.decode(batch, threads=1).values() == [b"value"] * 100
        assert kbatch.recompress(batch, "none") == kbatch.encode([b"value"] * 100, timestamps=5)


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("lz4", "4.3.0"),
        ("lz4", "4.10.0.post1"),
        ("zstandard", "0.23.0.dev1"),
        ("zlib", "1.3.1.zlib-ng"),
        ("isal", "1.9"),
    ],
)
def test_versions_in_the_range_are_used(package, version, monkeypatch):
    set_version(package, version, monkeypatch)
    assert native.addresses.__wrapped__() == native.addresses()


@needs_functions
def test_every_function_is_found_where_wheels_are_installed():
    """On Linux; if this fails for a new version of a package, it no longer exports the functions."""
    pytest.importorskip("isal")
    if sys.platform == "linux":
        assert set(addresses()) == {name for package in PACKAGE_NAMES for name in functions_of(package)}


def test_the_documented_functions_and_versions_are_the_ones_in_use():
    text = native.__doc__.split("Why this is safe")[0]
    names = {name for group in native._FUNCTIONS for name in group.names}
    assert set(re.findall(r"\b(?:LZ4F?_|ZSTD_|isal_inflate|inflate)\w*", text)) == names
    for group in native._FUNCTIONS:
        first, end = (".".join(map(str, version)).removesuffix(".0") for version in group.versions)
        assert re.search(rf"^{group.package} +{group.module} +>={first}, <{end} ", text, re.MULTILINE)


# -- gzip


def gzip_members(dice):
    """Yield gzip members with a damaged deflate stream, each with the bytes that zlib decompresses, or None.

    The trailer matches those bytes if zlib accepts the stream.
    """
    text = b"".join(dice.choices([dice.randbytes(dice.randrange(1, 20)) for _ in range(50)], k=dice.randrange(400)))
    made = zlib.compressobj(dice.randrange(10), zlib.DEFLATED, -15, 8, dice.choice([0, zlib.Z_RLE, zlib.Z_FIXED]))
    stream = made.compress(text) + made.flush()
    for _ in range(30):
        damaged = bytearray(stream)
        for _ in range(dice.choice([0, 1, 1, 2])):
            # Damage in block headers has the most varied effects.
            damaged[dice.randrange(min(len(stream), dice.choice([4, 30, 90, 1 << 20])))] ^= 1 << dice.randrange(8)
        member = zlib.decompressobj(-15)
        try:
            uncompressed = member.decompress(bytes(damaged))
        except zlib.error:
            uncompressed = None
        if uncompressed is not None and (not member.eof or member.unused_data):
            uncompressed = None
        trailer = struct.pack(
            "<II", zlib.crc32(uncompressed or text), len(text if uncompressed is None else uncompressed)
        )
        yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + bytes(damaged) + trailer, uncompressed


@needs_zlib
@pytest.mark.parametrize("seed", range(60))
def test_gz_r1_the_kernel_accepts_the_same_damaged_streams_as_zlib(seed):
    for member, expected in gzip_members(random.Random(seed)):
        assert gunzipped(member, WITHOUT_ISAL) == expected
        # ISA-L accepts every stream that zlib accepts; for streams that zlib rejects, the trailer does not match.
        assert gunzipped(member, CODECS) == expected


@needs_zlib
def test_gz_r1_isal_accepts_incomplete_codes():
    """This is the only known difference to zlib: no encoder writes such streams, and the checksum is verified."""
    pytest.importorskip("isal", reason="needs the extra fast", exc_type=ImportError)
    # One dynamic block: literal "A" and the end of the block have two-bit codes; half of the codes are unassigned.
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
    assert gunzipped(head + stream + trailer, WITHOUT_ISAL) is None
    assert gunzipped(head + stream + trailer, CODECS) == b"A"
    assert gunzipped(head + stream + struct.pack("<II", 0, 1), CODECS) is None


@needs_zlib
@pytest.mark.parametrize("flags", range(32))
def test_gz_r1_headers_may_have_any_optional_field(flags):
    optional = (b"\x03\0abc" if flags & 4 else b"") + (b"name\0" if flags & 8 else b"")
    optional += b"comment\0" if flags & 16 else b""
    member = gzip_member(flags, optional, b"plain" * 50)
    header = 10 + len(optional) + (flags & 2)
    assert gunzipped(member, WITHOUT_ISAL) == b"plain" * 50
    # The kernel's ISA-L path declines header checksums.
    expected = None if flags & 2 and "isal_inflate_stateless" in addresses() else b"plain" * 50
    assert gunzipped(member, CODECS) == expected
    for cut in range(header):
        assert gunzipped(member[:cut] + member[-8:], CODECS) is None


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
@both_compressors
def test_cod_r10_kernels_compress_to_the_same_bytes_as_the_package(codecs, codec, level):
    for data in TEXTS:
        found = codecs_kernel.compress_to_bytes(codecs, codec, level, 2, memoryview(data))
        assert found == by_package(codec, level, data)


@both_compressors
def test_l4_r5_magic_0_has_its_own_lz4_header_checksum(codecs):
    for data in TEXTS:
        frame = by_package(Codec.LZ4, 0, data)
        assert codecs_kernel.compress_to_bytes(codecs, 3, 0, 1, memoryview(data)) == frame
        assert codecs_kernel.compress_to_bytes(codecs, 3, 0, 0, memoryview(data)) == frame[:6] + b"\x1a" + frame[7:]


@every_ordinary
def test_the_compressed_size_is_bounded_for_every_length(codec, write):
    """No codec compresses noise; snappy does not start unless the worst case fits."""
    arena = Arena()
    for length in [*range(300), *(size + more for size in (32 << 10, 64 << 10, 128 << 10) for more in (-1, 0, 1))]:
        data = (NOISE * 2)[:length]
        compressed = codecs_kernel.compress_to_bytes(CODECS, codec, 1, 2, memoryview(data))
        assert codecs_kernel.compress_to_bytes(PACKAGES, codec, 1, 2, memoryview(data)) == compressed
        arena.used = 0
        decompress_carefully(codec, memoryview(compressed), arena, LIMIT)
        assert arena.array().tobytes() == data


@pytest.mark.parametrize(("name", "codec"), [("lz4_compress", 3), ("ZstdCompressor", 4), ("compressobj", 1)])
def test_errors_of_packages_are_raised(name, codec, monkeypatch):
    """encode, recompress and `compress` raise them, and later calls are not affected."""

    class PanicException(BaseException):
        pass

    def refuse(*_, **__):
        raise PanicException

    values = [b"value %d" % i for i in range(1000)]
    uncompressed = kbatch.encode(values, timestamps=5)
    compressed = kbatch.encode(values, timestamps=5, codec=codec)
    monkeypatch.setattr(codecs_module._contexts, "codecs", Codecs({}))
    assert kbatch.encode(values, timestamps=5, codec=codec) == compressed
    with monkeypatch.context() as patched:
        patched.setattr(codecs_kernel, name, refuse)
        patched.setattr(codecs_module._contexts, "codecs", Codecs({}))
        for write in (
            lambda: kbatch.encode(values, timestamps=5, codec=codec),
            lambda: kbatch.recompress(uncompressed, Codec(codec)),
            lambda: codecs_module.compress(codec, memoryview(b"plain")),
        ):
            with pytest.raises(PanicException):
                write()
    assert kbatch.recompress(uncompressed, Codec(codec)) == compressed


def test_output_of_a_package_above_the_capacity_is_an_error(monkeypatch):
    monkeypatch.setattr(codecs_kernel, "lz4_compress", lambda *_, **__: bytes(200))
    with pytest.raises(RuntimeError, match="has compressed to 200 bytes"):
        codecs_kernel.compress_to_bytes(PACKAGES, 3, 0, 2, memoryview(b"plain"))
    monkeypatch.setattr(codecs_kernel, "lz4_compress", lambda *_, **__: b"\x04\x22\x4d\x18\x60\x40")
    for magic in (1, 2):
        assert len(codecs_kernel.compress_to_bytes(PACKAGES, 3, 0, magic, memoryview(b"plain"))) == 6
    with pytest.raises(RuntimeError, match="an unexpected frame header: 04224d186040"):
        codecs_kernel.compress_to_bytes(PACKAGES, 3, 0, 0, memoryview(b"plain"))


# -- rewriting by the same functions


def row_of(batch):
    return kbatch.scan(batch).copy()


def repack_batch(
    batch,
    codec,
    *,
    limit=LIMIT,
    scratch=1 << 20,
    capacity=1 << 20,
    rows=None,
    codecs=CODECS,
    lo=0,
    target_bytes=1 << 40,
):
    """Return the bytes the kernel writes, or None if it declines, and check that it stays within its capacity."""
    rows = row_of(batch) if rows is None else rows
    before = rows.copy()
    memory = np.full(capacity + 2 * GUARD, 0xA5, np.uint8)
    spare = np.full(scratch + 2 * GUARD, 0xA5, np.uint8)
    data = np.frombuffer(batch, np.uint8)
    level = codecs_module.level_of(codec, None)
    out, used = memory[GUARD : capacity + GUARD], spare[GUARD : scratch + GUARD]
    target = repack.Target(codecs, codec, level, limit)
    last, size = repack.repack(target, data, rows, lo, 0, used, out, target_bytes)
    for array in (memory, spare):
        assert (array[:GUARD] == 0xA5).all()
        assert (array[-GUARD:] == 0xA5).all()
    if last == lo:
        assert (rows == before).all()
        assert size == 0
        return None
    assert size <= capacity
    return out[:size].tobytes()


@pytest.mark.parametrize("target", CODEC_NAMES)
@pytest.mark.parametrize("own", CODEC_NAMES)
@both_compressors
def test_the_kernel_recompresses_like_encode(own, target, codecs):
    values = [b"value %d" % i for i in range(1000)]
    batch = kbatch.encode(values, timestamps=5, codec=own, batch_size=1 << 20)
    expected = kbatch.encode(values, timestamps=5, codec=target, batch_size=1 << 20)
    codec = Codec[target.upper()].value
    if own != "none" and codecs is PACKAGES:
        assert repack_batch(batch, codec, codecs=codecs) is None  # without C functions the kernel declines
        return
    assert repack_batch(batch, codec, codecs=codecs) == expected
    size = len(kbatch.encode(values, timestamps=5, batch_size=1 << 20)) - 61
    if own != "none":
        assert repack_batch(batch, codec, codecs=codecs, limit=size) == expected
        assert repack_batch(batch, codec, codecs=codecs, limit=size - 1) is None
        if target != "none":
            assert repack_batch(batch, codec, codecs=codecs, scratch=size) == expected
            assert repack_batch(batch, codec, codecs=codecs, scratch=size - 1) is None
    for capacity in (0, 60, 61, 62, size, size + 60):
        assert repack_batch(batch, codec, codecs=codecs, capacity=capacity) is None
    assert repack_batch(batch, codec, codecs=codecs, capacity=61 + size + size // 5 + 128) == expected


@needs_functions
def test_repack_is_bounded_by_the_data_and_the_rows():
    batch = kbatch.encode([b"value"] * 100, timestamps=5, codec="lz4")
    for name, value in (("size", len(batch) + 1), ("size", 60), ("size", -1), ("size", 1 << 62), ("position", 1),
                        ("position", -1), ("position", 1 << 62), ("magic", 1), ("magic", 0)):  # fmt: skip
        rows = row_of(batch)
        rows[name] = value
        assert repack_batch(batch, 4, rows=rows) is None, name
    rows = row_of(batch)
    for lo, codec in ((-1, 4), (2, 4), (0, -1), (0, 8)):
        with pytest.raises(IndexError):
            repack_batch(batch, codec, rows=rows, lo=lo)
    old = kbatch.encode([b"value"] * 100, timestamps=5, codec="lz4", magic=1)
    assert repack_batch(old, 1) == kbatch.recompress(old, "gzip")
    # The kernel handles batches only, no messages.
    assert repack_batch(old, 0) is None
    assert repack_batch(kbatch.encode([b"value"], timestamps=5, magic=1), 1) is None


@needs_functions
def test_repack_stops_after_the_batch_that_reaches_the_requested_size():
    data = kbatch.encode([b"value"] * 100, timestamps=5, codec="lz4", batch_size=200)
    batches = kbatch.scan(data)
    assert len(batches) > 4
    expected = kbatch.recompress(data, "none")
    sizes = kbatch.scan(expected)["size"]
    for count in range(1, 5):
        assert repack_batch(data, 0, target_bytes=int(sizes[:count].sum())) == expected[: sizes[:count].sum()]
        assert repack_batch(data, 0, target_bytes=int(sizes[:count].sum()) - 1) == expected[: sizes[:count].sum()]


@pytest.mark.parametrize("target", CODEC_NAMES)
@pytest.mark.parametrize("own", CODEC_NAMES[1:])
def test_cod_r8_batches_that_grow_a_thousandfold_are_recompressed(own, target):
    """The kernel's capacity does not suffice, so another path recompresses them, with the same result."""
    parts = [[b"a"] * 50, [bytes(3 << 20)], [b"b" * 100] * 10]
    data = b"".join(kbatch.encode(part, timestamps=5, codec=own, batch_size=4 << 20) for part in parts)
    expected = b"".join(kbatch.encode(part, timestamps=5, codec=target, batch_size=4 << 20) for part in parts)
    if own != target:
        assert kbatch.recompress(data, target) == expected
        with pytest.raises(kbatch.LimitExceededError, match="decompresses to more than 3000000 bytes"):
            kbatch.recompress(data, target, limits=kbatch.Limits(max_decompressed_bytes=3_000_000))


@pytest.mark.parametrize("target", CODEC_NAMES)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_batches_above_the_capacity_are_rewritten_one_by_one(magic, target):
    """The path for any batch writes the same bytes as the one for ordinary batches."""
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
    one_by_one = Recompression(target, report=both[1])
    one_by_one.block_bytes, one_by_one.ordinary_bytes = 100, 0
    assert rewrite_bytes(one_by_one, data) == made
    assert both[0] == both[1]
    assert kbatch.decode(made).values() == values * (len(CODEC_NAMES) - 1 if magic == 2 else 3)


def test_every_thread_has_its_own_compression_contexts():
    values = [LARGE[i : i + 200] for i in range(0, 200_000, 200)]
    expected = {level: kbatch.encode(values, timestamps=5, codec=f"zstd:{level}") for level in (1, 3, 9)}

    def encode(level):
        return level, kbatch.encode(values, timestamps=5, codec=f"zstd:{level}")

    with ThreadPoolExecutor(4) as pool:
        for level, made in pool.map(encode, [1, 3, 9, 3, 1, 9, 9, 1] * 4):
            assert made == expected[level]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
@pytest.mark.parametrize("rewrite", [False, True], ids=["encode", "recompress"])
def test_a_signal_ends_a_long_compression(rewrite):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    values = [LARGE[i : i + 1000] for i in range(0, 300_000, 10)]
    uncompressed = kbatch.encode(values, timestamps=5, batch_size=16384)

    def compress():
        if rewrite:
            kbatch.recompress(uncompressed, "zstd:19")
        else:
            kbatch.encode(values, timestamps=5, codec="zstd:19", batch_size=16384)

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
