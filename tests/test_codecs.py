"""The four codecs on the reading side: one test or more for each rule of section 5 of the catalogue."""

import contextlib
import functools
import gc
import gzip
import random
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import cramjam
import lz4.block
import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kbatch import codecs
from kbatch.codecs import Arena, PayloadError
from kbatch.errors import Fault
from kbatch.format import Codec
from kbatch.kernels.buffers import pool_stats, trim

VECTORS = Path(__file__).parent / "golden" / "vectors"
LIMIT = 16 << 20
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)

_random = random.Random(7)
SMALL = b"kbatch reads record batches; " * 3
LARGE = b"".join(b'{"id":%d,"user":"u-%06d"}' % (i, _random.randrange(10**6)) for i in range(12_000))
NOISE = _random.randbytes(100_000)


def as_gzip(data):
    return gzip.compress(data, mtime=0)


def as_raw_snappy(data):
    return bytes(cramjam.snappy.compress_raw(data))


def as_xerial(data, block_size=32 << 10, header=XERIAL):
    blocks = [as_raw_snappy(data[i : i + block_size]) for i in range(0, len(data), block_size)]
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def as_java_lz4(data):
    """64 KiB blocks, independent, no checksums, no content size, as Java and librdkafka write it."""
    out = [b"\x04\x22\x4d\x18\x60\x40\x82"]
    for i in range(0, len(data), 65536):
        chunk = data[i : i + 65536]
        packed = lz4.block.compress(chunk, store_size=False)
        stored = len(packed) >= len(chunk)
        out += [struct.pack("<I", len(chunk) | 1 << 31), chunk] if stored else [struct.pack("<I", len(packed)), packed]
    return b"".join(out) + b"\0\0\0\0"


def as_lz4(data, *, linked=False, block_checksum=False, content_checksum=False, size=False, block_size=4):
    return lz4.frame.compress(
        data,
        block_linked=linked,
        block_checksum=block_checksum,
        content_checksum=content_checksum,
        store_size=size,
        block_size=block_size,
    )


def as_zstd(data, *, size=False, checksum=False, window_log=0):
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, write_content_size=size, write_checksum=checksum, window_log=window_log
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters)
    if size:
        return packer.compress(data)
    stream = packer.compressobj()
    return stream.compress(data) + stream.flush()


WRITERS = {
    "gzip": (Codec.GZIP, as_gzip),
    "snappy-xerial": (Codec.SNAPPY, as_xerial),
    "snappy-raw": (Codec.SNAPPY, as_raw_snappy),
    "lz4-java": (Codec.LZ4, as_java_lz4),
    "lz4-linked": (Codec.LZ4, functools.partial(as_lz4, linked=True, size=True)),
    "lz4-checksums": (Codec.LZ4, functools.partial(as_lz4, block_checksum=True, content_checksum=True)),
    "zstd": (Codec.ZSTD, as_zstd),
    "zstd-size-checksum": (Codec.ZSTD, functools.partial(as_zstd, size=True, checksum=True)),
}
every_writer = pytest.mark.parametrize(("codec", "write"), WRITERS.values(), ids=WRITERS)


@pytest.fixture(autouse=True, scope="module", params=[codecs.decompress, codecs.decompress_carefully])
def way(request):
    """Hold both ways to every rule: that by the C functions where these can be, and that by the packages alone."""
    global decompress
    decompress = request.param


decompress = codecs.decompress


every_codec_number = pytest.mark.parametrize("codec", [1, 2, 3, 4])


def plain(codec, payload, limit=LIMIT, arena=None):
    """Decompress, and hold `decompress` to what it promises about the arena."""
    arena = Arena() if arena is None else arena
    before = arena.used
    size = decompress(codec, memoryview(payload), arena, limit)
    assert arena.used == before + size
    return arena.array()[before:].tobytes()


def refused(codec, payload, limit=LIMIT):
    """Check that a payload is refused and that the arena is as it was; return the finding."""
    arena = Arena()
    assert decompress(Codec.NONE, memoryview(b"before"), arena, LIMIT) == 6
    with pytest.raises(PayloadError) as caught:
        decompress(codec, memoryview(payload), arena, limit)
    assert arena.array().tobytes() == b"before"
    finding = caught.value.finding
    assert finding.fault is not Fault.CODEC or finding.detail
    return finding


def is_no_stream(codec, payload):
    assert refused(codec, payload).fault is Fault.CODEC


def vector(name):
    batch = (VECTORS / f"{name}.bin").read_bytes()
    return batch[22] & 7, batch[61:]


# -- the arena


def test_arena_grows_and_keeps_what_is_in_it():
    arena = Arena(10)
    assert len(arena.view) == 10
    assert decompress(Codec.NONE, memoryview(b"0123456789"), arena, LIMIT) == 10
    early = arena.array()
    arena.reserve(5_000_000)
    assert len(arena.view) >= 5_000_010
    assert arena.array().tobytes() == early.tobytes() == b"0123456789"
    assert arena.view.format == "B"


def test_arena_array_is_read_only_not_a_copy_and_outlives_the_arena():
    arena = Arena()
    decompress(Codec.GZIP, memoryview(as_gzip(SMALL)), arena, LIMIT)
    array = arena.array()
    assert (array.dtype, array.shape, array.flags.writeable) == (np.uint8, (len(SMALL),), False)
    assert array.ctypes.data == np.asarray(arena.view).ctypes.data
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    del arena
    other = Arena(len(SMALL))
    other.view[:] = bytes(len(SMALL))
    assert array.tobytes() == SMALL


def test_empty_arena_gives_an_empty_array():
    assert Arena().array().shape == (0,)


def test_arena_memory_is_used_again():
    trim()
    payloads = [(codec, memoryview(write(LARGE))) for codec, write in WRITERS.values()]
    before = pool_stats().fresh
    counts = []
    for _ in range(3):
        # Of one that grows, some of the smaller blocks may go back to the system: see `kbatch.kernels.buffers`.
        arena = Arena((len(payloads) + 1) * len(LARGE))
        for codec, payload in payloads:
            decompress(codec, payload, arena, LIMIT)
        del arena
        counts.append(pool_stats().fresh - before)
    assert counts[0] >= 1
    assert counts == [counts[0]] * 3


@every_codec_number
def test_cod_r8_room_is_made_by_what_is_stored_and_not_by_the_limit(codec):
    arena = Arena()
    for size, most in ((0, 256 << 10), (100, 256 << 10), (1 << 20, 10 << 20)):
        with pytest.raises(PayloadError):
            decompress(codec, memoryview(b"\xff" * size), arena, 1 << 50)
        assert len(arena.view) <= most
    arena = Arena()
    with pytest.raises(PayloadError):
        decompress(codec, memoryview(b"\xff" * (1 << 20)), arena, 1000)
    assert len(arena.view) <= 256 << 10


# -- all codecs


@every_writer
@pytest.mark.parametrize("data", [b"", b"x", SMALL, LARGE, NOISE, bytes(300_000)], ids=lambda d: str(len(d)))
def test_cod_r1_every_codec_gives_its_plain_bytes(codec, write, data):
    assert plain(codec, write(data)) == data


@every_writer
def test_cod_r1_payloads_follow_each_other_in_the_arena(codec, write):
    arena = Arena()
    for data in (SMALL, LARGE, b"", NOISE, SMALL):
        assert plain(codec, write(data), arena=arena) == data
    assert arena.array().tobytes() == SMALL + LARGE + NOISE + SMALL


@pytest.mark.parametrize("name", ["COD-01-lz4", "COD-01-snappy-raw", "SN-13", "L4-11"])
def test_cod_r1_java_vectors(name):
    assert len(plain(*vector(name))) == 452_562


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("payload", [b"", b"\0", b"this is no compressed stream at all"])
def test_cod_r2_and_r3_what_is_no_stream_is_refused(codec, payload):
    if (codec, payload) != (Codec.SNAPPY, b"\0"):  # an empty raw block
        is_no_stream(codec, payload)


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"snappy-xerial"}))
@pytest.mark.parametrize("data", [SMALL, LARGE[:70_000]], ids=["small", "large"])
def test_cod_r2_every_truncation_is_refused(name, data):
    codec, write = WRITERS[name]
    payload = write(data)
    for end in [*range(0, len(payload), 1 + len(payload) // 300), *range(max(0, len(payload) - 20), len(payload))]:
        is_no_stream(codec, payload[:end])


@pytest.mark.parametrize("name", ["COD-03-gzip", "COD-03-lz4", "COD-03-snappy-xerial", "COD-03-zstd"])
def test_cod_r2_cut_vectors(name):
    is_no_stream(*vector(name))


@pytest.mark.parametrize("name", ["COD-04-snappy-raw", "COD-04-snappy-xerial", "COD-05-snappy-raw", "COD-05-zstd"])
def test_cod_r2_and_r3_vectors(name):
    is_no_stream(*vector(name))


@pytest.mark.parametrize("junk", [b"trailing", b"\0" * 9, b"\x1f\x8b", b"\x04\x22\x4d\x18"])
def test_cod_r4_bytes_after_the_stream(junk):
    assert plain(Codec.GZIP, as_gzip(SMALL) + junk) == SMALL
    for name in ("lz4-java", "lz4-linked", "lz4-checksums"):
        assert plain(Codec.LZ4, WRITERS[name][1](SMALL) + junk) == SMALL
    is_no_stream(Codec.ZSTD, as_zstd(SMALL) + junk)
    is_no_stream(Codec.SNAPPY, as_raw_snappy(SMALL) + junk)
    if len(junk) > 3:
        is_no_stream(Codec.SNAPPY, as_xerial(SMALL) + junk)


def test_cod_r5_concatenation():
    assert plain(Codec.GZIP, as_gzip(SMALL) + as_gzip(LARGE)) == SMALL + LARGE
    assert plain(Codec.ZSTD, as_zstd(SMALL) + as_zstd(LARGE)) == SMALL + LARGE
    assert plain(Codec.SNAPPY, as_xerial(SMALL) + as_xerial(LARGE)) == SMALL + LARGE
    assert plain(Codec.LZ4, as_java_lz4(SMALL) + as_java_lz4(LARGE)) == SMALL
    is_no_stream(Codec.SNAPPY, as_raw_snappy(SMALL) + as_raw_snappy(SMALL))


@every_writer
def test_cod_r7_any_flipped_bit_is_safe(codec, write):
    payload = bytearray(write(SMALL + NOISE[:40]))
    outcomes = set()
    for bit in range(8 * len(payload)):
        payload[bit >> 3] ^= 1 << (bit & 7)
        arena = Arena()
        try:
            outcomes.add(decompress(codec, memoryview(payload), arena, 1 << 20) == arena.used)
        except PayloadError as error:
            outcomes.add(error.finding.fault)
            assert arena.used == 0
        payload[bit >> 3] ^= 1 << (bit & 7)
    assert outcomes <= {True, Fault.CODEC, Fault.OVER_LIMIT}
    assert Fault.CODEC in outcomes


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 2, 3, 4]), st.binary(max_size=80), st.booleans())
def test_cod_r7_any_bytes_are_safe(codec, body, framed):
    starts = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff", XERIAL, b"\x04\x22\x4d\x18\x60\x40\x82", b"\x28\xb5\x2f\xfd\0\x38"]
    arena = Arena()
    fault, size = None, 0
    try:
        size = decompress(codec, memoryview(starts[codec - 1] + body if framed else body), arena, 1 << 16)
    except PayloadError as error:
        fault = error.finding.fault
    assert fault in (None, Fault.CODEC, Fault.OVER_LIMIT)
    assert arena.used == size <= 1 << 16


@pytest.mark.parametrize("name", ["COD-09-gzip", "COD-09-snappy-xerial", "COD-09-lz4", "COD-09-zstd"])
def test_cod_r8_a_bomb_never_gets_the_memory(name):
    codec, payload = vector(name)
    assert len(plain(codec, payload, limit=16 << 20)) == 8_388_622
    gc.collect()
    trim()
    held = pool_stats().live_bytes
    arena = Arena()
    with pytest.raises(PayloadError) as caught:
        decompress(codec, memoryview(payload), arena, 1 << 20)
    assert caught.value.finding.fault is Fault.OVER_LIMIT
    assert caught.value.finding.wanted == 1 << 20
    # Every byte of output went to blocks: those still held, and those outgrown, which lie on the free list.
    assert pool_stats().live_bytes - held + pool_stats().free_bytes < 3 << 20


@pytest.mark.parametrize("name", ["COD-09-gzip", "COD-09-snappy-xerial", "COD-09-lz4", "COD-09-zstd"])
def test_cod_r8_a_bomb_leaves_the_process_small(name):
    """Resident memory in a process of its own, so that the libraries' own buffers count too."""
    pytest.importorskip("resource")
    program = (
        "import base64, resource, sys\n"
        "from kbatch.codecs import *\n"
        "batch = open(sys.argv[1], 'rb').read()\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "plain = {1: 'H4sIAAAAAAACAwMAAAAAAAAAAAA=', 2: 'AA==', 3: 'BCJNGGBAggAAAAA=', 4: 'KLUv/QA4AQAA'}\n"
        "decompress(batch[22] & 7, memoryview(base64.b64decode(plain[batch[22] & 7])), Arena(), 10)\n"
        "before = peak()\n"
        "try:\n"
        "    decompress(batch[22] & 7, memoryview(batch)[61:], Arena(), 1 << 20)\n"
        "except PayloadError as error:\n"
        "    print(error.finding.fault.name, peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(VECTORS / f"{name}.bin")], capture_output=True, text=True, check=True
    )
    fault, kilobytes = done.stdout.split()
    assert fault == "OVER_LIMIT"
    assert int(kilobytes) < (3 << 10) * (1024 if sys.platform == "darwin" else 1)


@every_writer
@pytest.mark.parametrize("data", [SMALL, LARGE, NOISE], ids=["small", "large", "noise"])
def test_cod_r8_the_limit_is_exact(codec, write, data):
    payload = write(data)
    assert plain(codec, payload, limit=len(data)) == data
    for limit in (len(data) - 1, len(data) // 2, 0):
        finding = refused(codec, payload, limit=limit)
        assert (finding.fault, finding.wanted) == (Fault.OVER_LIMIT, limit)


def test_cod_r8_the_limit_counts_the_sum_of_concatenated_streams():
    for codec, write in ((Codec.GZIP, as_gzip), (Codec.ZSTD, as_zstd), (Codec.SNAPPY, as_xerial)):
        assert plain(codec, write(SMALL) * 3, limit=3 * len(SMALL)) == SMALL * 3
        assert refused(codec, write(SMALL) * 3, limit=3 * len(SMALL) - 1).fault is Fault.OVER_LIMIT


def test_cod_r8_zero_limit_takes_empty_output_only():
    for codec, write in WRITERS.values():
        assert plain(codec, write(b""), limit=0) == b""


@every_writer
def test_cod_r9_a_failed_payload_does_not_poison_the_next(codec, write):
    good, other = write(LARGE), write(SMALL)
    arena = Arena()
    for bad in (good[: len(good) // 2], good[:40] + b"\xff" * 30 + good[70:], other[:-3], b"junk" * 9):
        # Without checksums a damaged payload may decode; what counts is the one after it.
        with contextlib.suppress(PayloadError):
            decompress(codec, memoryview(bad), arena, LIMIT)
        with pytest.raises(PayloadError):
            decompress(codec, memoryview(good), arena, 1000)
        assert plain(codec, good, arena=arena) == LARGE
        assert plain(codec, other, arena=arena) == SMALL


def test_cod_r9_a_content_size_of_a_failed_frame_is_forgotten():
    with pytest.raises(PayloadError):
        decompress(Codec.LZ4, memoryview(as_lz4(LARGE, linked=True, size=True))[:-100], Arena(), LIMIT)
    assert plain(Codec.LZ4, as_lz4(SMALL, content_checksum=True)) == SMALL


def test_cod_r9_threads_do_not_share_state():
    failures = []

    def work(name):
        codec, write = WRITERS[name]
        payload = write(LARGE)
        for _ in range(15):
            with pytest.raises(PayloadError):
                decompress(codec, memoryview(payload)[:50], Arena(), LIMIT)
            if plain(codec, payload) != LARGE:
                failures.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in [*WRITERS, *WRITERS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_named(codec):
    finding = refused(codec, b"anything")
    assert (finding.fault, finding.found) == (Fault.UNKNOWN_CODEC, codec)


# -- gzip


def gzip_member(flags, optional):
    body = zlib.compressobj(wbits=-15)
    head = b"\x1f\x8b\x08" + bytes([flags]) + b"\0" * 4 + b"\0\xff" + optional
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    return head + body.compress(SMALL) + body.flush() + struct.pack("<II", zlib.crc32(SMALL), len(SMALL))


def test_gz_r1_optional_header_parts_and_members():
    for flags, optional in ((8, b"name\0"), (4, b"\3\0abc"), (2, b""), (0x10, b"comment\0"), (0x0E, b"\0\0name\0")):
        member = gzip_member(flags, optional)
        assert plain(Codec.GZIP, member) == SMALL
        assert plain(Codec.GZIP, as_gzip(LARGE) + member + as_gzip(b"") + member) == LARGE + SMALL + SMALL
    assert len(plain(*vector("GZ-08"))) == len(plain(*vector("COD-06-gzip"))) == 27


def test_gz_r1_many_members_take_time_in_proportion():
    assert plain(Codec.GZIP, as_gzip(b"") * 50_000) == b""


def test_gz_r2_trailer_is_verified():
    member = as_gzip(SMALL)
    is_no_stream(Codec.GZIP, member[:-8] + b"\1\2\3\4" + member[-4:])
    is_no_stream(Codec.GZIP, member[:-4] + b"\1\2\3\4")
    is_no_stream(Codec.GZIP, member + member[:-1])
    is_no_stream(*vector("GZ-09"))


def test_gz_r3_zlib_and_raw_deflate_are_refused():
    is_no_stream(Codec.GZIP, zlib.compress(SMALL))
    is_no_stream(Codec.GZIP, zlib.compress(SMALL, wbits=-15))


def test_gz_r4_zero_padding_is_ignored():
    assert plain(Codec.GZIP, as_gzip(SMALL) + bytes(8)) == SMALL
    assert len(plain(*vector("GZ-07"))) == 27


def test_gz_r5_claimed_size_allocates_nothing():
    arena = Arena()
    with pytest.raises(PayloadError):
        decompress(Codec.GZIP, memoryview(as_gzip(SMALL)[:-4] + b"\xff" * 4), arena, 1 << 33)
    assert len(arena.view) < 1 << 20


# -- snappy


def test_sn_r1_both_shapes():
    assert plain(Codec.SNAPPY, as_xerial(LARGE)) == plain(Codec.SNAPPY, as_raw_snappy(LARGE)) == LARGE


@pytest.mark.parametrize("versions", [struct.pack("<ii", 1, 1), struct.pack(">ii", 2, 1), b"\xff" * 8])
def test_sn_r2_versions_are_not_looked_at(versions):
    assert plain(Codec.SNAPPY, as_xerial(LARGE, header=XERIAL[:8] + versions)) == LARGE


def test_sn_r2_magic_without_a_whole_header_is_raw():
    for size in (8, 12, 15):
        is_no_stream(Codec.SNAPPY, XERIAL[:size])
    assert len(plain(*vector("SN-01"))) == len(plain(*vector("SN-02"))) == 27


@pytest.mark.parametrize("block_size", [5, 1000, 50_000, 1 << 20])
def test_sn_r3_any_block_size(block_size):
    assert plain(Codec.SNAPPY, as_xerial(LARGE[:100_000], block_size)) == LARGE[:100_000]
    assert len(plain(*vector("SN-12"))) == 27


def test_sn_r4_a_header_in_place_of_a_length_restarts():
    assert plain(Codec.SNAPPY, as_xerial(SMALL) + XERIAL + as_xerial(LARGE) + XERIAL) == SMALL + LARGE
    is_no_stream(Codec.SNAPPY, as_xerial(SMALL) + XERIAL[:15])
    is_no_stream(Codec.SNAPPY, as_xerial(SMALL) + XERIAL[:4] + b"another header")


def test_sn_r5_up_to_three_bytes_at_the_end_are_ignored_and_a_cut_chunk_is_not():
    for tail in (b"\0", b"\0\0", b"\xff\xff\xff"):
        assert plain(Codec.SNAPPY, as_xerial(SMALL) + tail) == SMALL
    assert len(plain(*vector("SN-09"))) == 27
    payload = as_xerial(LARGE)
    for end in range(len(payload) - 300, len(payload)):
        is_no_stream(Codec.SNAPPY, payload[:end])


def test_sn_r6_empty_chunk_is_refused_and_no_chunk_is_empty_output():
    is_no_stream(*vector("SN-06"))
    is_no_stream(Codec.SNAPPY, as_xerial(SMALL) + bytes(4))
    assert plain(Codec.SNAPPY, XERIAL) == b""
    assert plain(Codec.SNAPPY, XERIAL + struct.pack(">i", 1) + b"\0") == b""


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 10])
def test_sn_r7_chunk_length_is_bounded_by_the_bytes(length):
    is_no_stream(Codec.SNAPPY, XERIAL + struct.pack(">i", length) + b"\x02\x04ab")


@pytest.mark.parametrize("claim", [b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x40"])
@pytest.mark.parametrize("xerial", [False, True])
def test_sn_r7_claimed_size_is_not_allocated(claim, xerial):
    block = claim + b"\x04ab"
    arena = Arena()
    with pytest.raises(PayloadError) as caught:
        decompress(2, memoryview(XERIAL + struct.pack(">i", len(block)) + block if xerial else block), arena, 1 << 40)
    assert caught.value.finding.fault is Fault.CODEC
    assert len(arena.view) == (256 << 10 if decompress is codecs.decompress else 0)


def test_sn_r7_the_densest_block_is_taken():
    zeros = bytes(1 << 20)
    assert len(as_raw_snappy(zeros)) * 22 > len(zeros) > len(as_raw_snappy(zeros)) * 20
    assert plain(Codec.SNAPPY, as_raw_snappy(zeros)) == zeros


@pytest.mark.parametrize("name", ["SN-07", "SN-08", "SN-14", "SN-16"])
def test_sn_r7_and_r8_vectors(name):
    is_no_stream(*vector(name))


def test_sn_r8_official_framing_is_refused():
    is_no_stream(Codec.SNAPPY, bytes(cramjam.snappy.compress(SMALL)))


# -- lz4


def test_l4_r1_first_frame_only():
    assert plain(Codec.LZ4, as_java_lz4(SMALL) + as_lz4(LARGE)) == SMALL
    assert plain(Codec.LZ4, as_lz4(LARGE, content_checksum=True) + as_java_lz4(SMALL)) == LARGE
    assert len(plain(*vector("L4-10"))) == 27


def test_l4_r2_linked_blocks_are_read():
    payload = as_lz4(LARGE, linked=True)
    assert payload[4] & 0x20 == 0
    assert plain(Codec.LZ4, payload) == LARGE


def rechecked(payload):
    """Give a header the checksum that fits it, by asking the library for the one of 256 that it takes."""
    end = 14 if payload[4] & 8 else 6
    for check in range(256):
        fixed = payload[:end] + bytes([check]) + payload[end + 1 :]
        try:
            lz4.frame.get_frame_info(fixed[: end + 1])
        except RuntimeError:
            continue
        return fixed
    return payload


@pytest.mark.parametrize("flags", [0x20, 0xA0, 0xE0, 0x61, 0x62, 0x63])
def test_l4_r3_flags(flags):
    frame = as_java_lz4(SMALL)
    is_no_stream(Codec.LZ4, rechecked(frame[:4] + bytes([flags]) + frame[5:]))


@pytest.mark.parametrize("descriptor", [0x00, 0x30, 0xC0, 0x41, 0x48])
def test_l4_r3_block_descriptor(descriptor):
    frame = as_java_lz4(SMALL)
    is_no_stream(Codec.LZ4, rechecked(frame[:5] + bytes([descriptor]) + frame[6:]))


@pytest.mark.parametrize("name", ["L4-15", "L4-17"])
def test_l4_r3_vectors(name):
    is_no_stream(*vector(name))


@pytest.mark.parametrize("options", [{}, {"size": True}, {"content_checksum": True}, {"linked": True, "size": True}])
def test_l4_r4_only_the_right_header_checksum_is_taken(options):
    frame = as_lz4(SMALL, **options)
    end = 14 if options.get("size") else 6
    for check in range(256):
        changed = frame[:end] + bytes([check]) + frame[end + 1 :]
        if changed == frame:
            assert plain(Codec.LZ4, changed) == SMALL
        else:
            is_no_stream(Codec.LZ4, changed)


def test_l4_r4_java_writes_0x82():
    assert as_java_lz4(b"")[4:7] == rechecked(as_java_lz4(b""))[4:7] == b"\x60\x40\x82"


def test_l4_r6_content_size_is_read_and_never_allocated():
    assert plain(Codec.LZ4, as_lz4(SMALL, size=True)) == SMALL
    assert len(plain(*vector("L4-06"))) == 27
    for linked in (False, True):
        frame = as_lz4(SMALL, size=True, linked=linked)
        arena = Arena()
        with pytest.raises(PayloadError) as caught:
            decompress(3, memoryview(rechecked(frame[:6] + struct.pack("<Q", 1 << 40) + frame[14:])), arena, 1 << 50)
        assert caught.value.finding.fault is Fault.CODEC
        assert len(arena.view) < 1 << 20


@pytest.mark.parametrize("options", [{"content_checksum": True}, {"block_checksum": True}])
@pytest.mark.parametrize("linked", [False, True])
def test_l4_r7_checksums_are_verified(options, linked):
    frame = as_lz4(LARGE, linked=linked, **options)
    assert plain(Codec.LZ4, frame) == LARGE
    at = -1 if "content_checksum" in options else -5
    changed = bytearray(frame)
    changed[at] ^= 1
    is_no_stream(Codec.LZ4, bytes(changed))


def test_l4_r7_vectors():
    assert len(plain(*vector("L4-02"))) == 27
    is_no_stream(*vector("L4-03"))
    is_no_stream(*vector("L4-05"))


def test_l4_r8_end_mark_is_required():
    for name in ("lz4-java", "lz4-linked"):
        is_no_stream(Codec.LZ4, WRITERS[name][1](LARGE)[:-4])


def test_l4_r9_block_lengths():
    head = as_java_lz4(b"")[:7]
    stored = struct.pack("<I", 1 << 31 | 65536) + NOISE[:65536]
    assert plain(Codec.LZ4, head + stored + bytes(4)) == NOISE[:65536]
    too_long = struct.pack("<I", 1 << 31 | 65537) + NOISE[:65537]
    is_no_stream(Codec.LZ4, head + too_long + bytes(4))
    packed = lz4.block.compress(LARGE[:70_000], store_size=False)  # short, but gives more than a block may
    is_no_stream(Codec.LZ4, head + struct.pack("<I", len(packed)) + packed + bytes(4))
    is_no_stream(*vector("L4-19"))
    assert len(plain(*vector("L4-18"))) == 310


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
def test_l4_r9_every_block_size(block_size):
    data = LARGE * 20
    assert plain(Codec.LZ4, as_lz4(data, block_size=block_size)) == data
    assert refused(Codec.LZ4, as_lz4(data, block_size=block_size), limit=100_000).fault is Fault.OVER_LIMIT


def test_l4_r9_a_malformed_block_is_not_taken_for_one_past_the_limit():
    block = b"\xf0\xff"
    payload = as_java_lz4(b"")[:7] + struct.pack("<I", len(block)) + block + bytes(4)
    assert refused(Codec.LZ4, payload, limit=10).fault is Fault.CODEC


def test_l4_r10_other_frames_are_refused():
    frame = as_java_lz4(SMALL)
    is_no_stream(Codec.LZ4, struct.pack("<II", 0x184D2A50, 4) + b"skip" + frame)
    is_no_stream(Codec.LZ4, b"\x02\x21\x4c\x18" + frame[7:])
    is_no_stream(Codec.LZ4, lz4.block.compress(SMALL, store_size=False))
    is_no_stream(*vector("L4-12"))
    is_no_stream(*vector("L4-14"))


def test_l4_r11_bytes_after_the_end_mark_are_ignored():
    assert plain(Codec.LZ4, as_java_lz4(SMALL) + NOISE) == SMALL
    assert len(plain(*vector("COD-02-lz4"))) == 27


# -- zstd

SKIPPABLE = struct.pack("<II", 0x184D2A5F, 5) + b"skip!"


def test_zs_r2_no_content_size_is_needed():
    payload = as_zstd(LARGE)
    assert zstandard.get_frame_parameters(payload).content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert plain(Codec.ZSTD, payload) == LARGE
    assert len(plain(*vector("ZS-01"))) == 27


def test_zs_r3_frames_skippable_frames_and_empty_frames():
    frame = as_zstd(SMALL)
    frames = [SKIPPABLE, frame, SKIPPABLE, as_zstd(b""), frame, as_zstd(LARGE, size=True), SKIPPABLE]
    assert plain(Codec.ZSTD, b"".join(frames)) == SMALL + SMALL + LARGE
    assert plain(Codec.ZSTD, SKIPPABLE) == b""
    for name in ("ZS-05", "ZS-07", "ZS-12", "COD-06-zstd"):
        assert len(plain(*vector(name))) == 27
    is_no_stream(Codec.ZSTD, frame + SKIPPABLE[:-1])
    is_no_stream(Codec.ZSTD, frame + struct.pack("<II", 0x184D2A50, 2**32 - 1))


def test_zs_r4_checksum_is_verified():
    frame = as_zstd(LARGE, checksum=True)
    assert plain(Codec.ZSTD, frame) == LARGE
    is_no_stream(Codec.ZSTD, frame[:-1] + bytes([frame[-1] ^ 1]))
    is_no_stream(Codec.ZSTD, frame[:-4])
    # The checksum is verified also where the limit is exactly the size.
    changed = frame[:-1] + bytes([frame[-1] ^ 1])
    assert refused(Codec.ZSTD, changed, limit=len(LARGE)).fault is Fault.CODEC
    assert len(plain(*vector("ZS-03"))) == 27
    is_no_stream(*vector("ZS-04"))


def test_zs_r5_windows_up_to_2_to_the_27():
    assert plain(Codec.ZSTD, as_zstd(SMALL, window_log=27)) == SMALL
    is_no_stream(Codec.ZSTD, as_zstd(SMALL, window_log=28))
    assert len(plain(*vector("ZS-08"))) == 27
    is_no_stream(*vector("ZS-09"))


def test_zs_r6_dictionary_is_refused():
    dictionary = zstandard.train_dictionary(1024, [LARGE[i : i + 200] for i in range(0, 60_000, 200)])
    payload = zstandard.ZstdCompressor(dict_data=dictionary).compress(SMALL)
    finding = refused(Codec.ZSTD, payload)
    assert finding.fault is Fault.CODEC
    assert "dictionary" in finding.detail


def test_zs_r6_claimed_content_size_allocates_nothing():
    for window in (b"", b"\x38"):
        descriptor = b"\xc0" if window else b"\xe0"
        payload = b"\x28\xb5\x2f\xfd" + descriptor + window + struct.pack("<Q", 1 << 40) + b"\1\0\0"
        arena = Arena()
        with pytest.raises(PayloadError) as caught:
            decompress(Codec.ZSTD, memoryview(payload), arena, 1 << 50)
        assert caught.value.finding.fault is Fault.CODEC
        assert len(arena.view) < 1 << 20
    is_no_stream(*vector("ZS-11"))


def test_zs_r6_declared_size_does_not_lift_the_limit():
    payload = as_zstd(bytes(8 << 20), size=True)
    arena = Arena()
    with pytest.raises(PayloadError) as caught:
        decompress(Codec.ZSTD, memoryview(payload), arena, 1 << 20)
    assert caught.value.finding.fault is Fault.OVER_LIMIT
    assert len(arena.view) <= 2 << 20


def test_zs_r7_garbage_and_truncation():
    is_no_stream(*vector("COD-02-zstd"))
    is_no_stream(*vector("COD-08-zstd"))
    for tail in (b"\0", b"\0" * 8, b"\x28\xb5\x2f\xfd", as_zstd(SMALL)[:-1]):
        is_no_stream(Codec.ZSTD, as_zstd(SMALL) + tail)
