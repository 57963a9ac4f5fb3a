"""The kernel that decompresses runs of plain payloads (`kbatch.kernels.frames`), held against `kbatch.codecs`."""

import gzip
import random
import struct
import zlib

import lz4.frame
import numpy as np
import pytest
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

from kbatch.codecs import Arena, PayloadError, decompress, decompress_run
from kbatch.errors import Fault
from kbatch.format import BATCH_DTYPE, BatchStatus, Codec
from kbatch.kernels.frames import Codecs, Run
from kbatch.libraries import addresses

GUARD = 64
CODECS = Codecs(addresses())
PACKAGES = Codecs({})
CODECS_HAVE_ISAL = "isal_inflate_stateless" in addresses()
CODECS_HAVE_ZSTD = "ZSTD_decompressDCtx" in addresses()
WITHOUT_ISAL = Codecs({name: address for name, address in addresses().items() if not name.startswith("isal")})


def payload_run(payloads, limit=LIMIT, *, magic=2, include_control=False):
    """Make a run of (codec, payload), and the arrays that tell where each payload is."""
    rows = np.zeros(len(payloads), BATCH_DTYPE)
    rows["attributes"] = [codec for codec, _ in payloads]
    rows["record_count"] = 1
    rows["magic"] = magic
    sizes = np.array([len(payload) for _, payload in payloads], np.int64)
    positions = np.cumsum(sizes) - sizes
    data = memoryview(b"".join(payload for _, payload in payloads))
    return Run(data, rows, 0, len(rows), positions, sizes, limit, include_control), rows, positions, sizes


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
    run, _, positions, sizes = payload_run([(codec, payload)], limit, magic=magic)
    memory = np.full(capacity + 2 * GUARD, 0xA5, np.uint8)
    out = memory[: capacity + GUARD]
    done, used = run.decompress(0, out.data, GUARD, 1 << 40, codecs)
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[capacity + GUARD :] == 0xA5).all()
    if done == 0:
        assert (used, positions[0], sizes[0]) == (GUARD, 0, len(payload))
        return None
    assert (positions[0], sizes[0]) == (GUARD, used - GUARD)
    assert sizes[0] <= limit
    return memory[GUARD:used].tobytes()


def agrees(codec, payload, limit=LIMIT, magic=2):
    """Check that the kernel gives what `decompress` gives, or nothing; tell which."""
    found = plain(codec, payload, limit=limit, magic=magic)
    if found is not None:
        arena = Arena()
        decompress(codec, memoryview(payload), arena, limit, magic)
        assert found == arena.array().tobytes()
    return found is not None


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
def test_cod_r1_every_stream_is_as_decompress_has_it(name, data):
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


def test_a_run_takes_turns_with_decompress_and_grows_the_arena():
    shuffled = random.Random(5)
    cases = [(codec, write(data), data) for data in (SMALL, LARGE, NOISE) for codec, write in WRITERS.values()]
    cases += [(Codec.NONE, data, data) for data in (b"", SMALL, LARGE)]
    cases = shuffled.sample(cases, len(cases))
    run, _, positions, sizes = payload_run([case[:2] for case in cases])
    arena = Arena()
    assert decompress_run(run, 0, arena, 1 << 40) == (len(cases), None)
    out = arena.array().tobytes()
    assert arena.used == sizes.sum()
    for (_, _, data), start, size in zip(cases, positions.tolist(), sizes.tolist(), strict=True):
        assert out[start : start + size] == data


def test_a_run_stops_once_there_is_enough():
    run, _, positions, _ = payload_run([(Codec.GZIP, as_gzip(SMALL))] * 5)
    arena = Arena(1 << 20)
    assert decompress_run(run, 0, arena, len(SMALL) + 1) == (2, None)
    assert decompress_run(run, 2, arena, 1 << 40) == (5, None)
    assert positions.tolist() == [i * len(SMALL) for i in range(5)]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, 5])
def test_cod_r9_a_run_ends_at_a_bad_payload_with_the_finding_of_decompress(codec):
    run, _, _, sizes = payload_run([(Codec.NONE, SMALL), (codec, b"no stream"), (Codec.NONE, SMALL)])
    arena = Arena(1 << 20)
    done, finding = decompress_run(run, 0, arena, 1 << 40)
    with pytest.raises(PayloadError) as caught:
        decompress(codec, memoryview(b"no stream"), Arena(), LIMIT)
    assert (done, finding, arena.used, sizes[0]) == (1, caught.value.finding, len(SMALL), len(SMALL))


def test_compressed_batches_with_nothing_to_read_are_not_looked_at():
    run, rows, _, sizes = payload_run([(Codec.LZ4, b"no stream")] * 4 + [(Codec.LZ4, as_java_lz4(SMALL))])
    rows["record_count"][:2] = 0, -1
    rows["status"][2] = BatchStatus.ABORTED
    rows["status"][4] = BatchStatus.BAD_CRC
    rows["attributes"][3] |= 0x20
    arena = Arena(1 << 20)
    assert decompress_run(run, 0, arena, 1 << 40) == (5, None)
    assert sizes.tolist() == [0, 0, 0, 0, len(SMALL)]


def test_a_control_batch_is_read_where_it_is_wanted():
    run, rows, _, sizes = payload_run([(Codec.LZ4, as_java_lz4(SMALL))], include_control=True)
    rows["attributes"] |= 0x20
    assert decompress_run(run, 0, Arena(1 << 20), 1 << 40) == (1, None)
    assert sizes[0] == len(SMALL)


def test_leg_a_wrapper_without_a_value_is_a_finding():
    run, _, _, sizes = payload_run([(Codec.GZIP, b"")], magic=1)
    sizes[0] = -1
    done, finding = decompress_run(run, 0, Arena(), 1 << 40)
    assert (done, finding.fault) == (0, Fault.WRAPPER_VALUE)


def test_rows_and_payloads_out_of_range_are_refused():
    run, rows, positions, sizes = payload_run([(Codec.NONE, SMALL)])
    out = memoryview(bytearray(1000))
    for start, size in ((-1, 1), (1, len(SMALL)), (len(SMALL) + 1, -1), (0, 1 << 62), (1 << 62, 1 << 62)):
        positions[0], sizes[0] = start, size
        with pytest.raises(IndexError):
            run.decompress(0, out, 0, 1 << 40, CODECS)
        with pytest.raises(IndexError):
            run.payload(0)
    for row in (-1, 1, 1 << 62):
        with pytest.raises(IndexError):
            run.payload(row)
        with pytest.raises(IndexError):
            run.done(row, 0, 0)
    for used in (-1, 1001):
        with pytest.raises(IndexError):
            run.decompress(0, out, used, 1 << 40, CODECS)
    for lo, hi in ((-1, 1), (0, 2)):
        with pytest.raises(IndexError):
            Run(memoryview(SMALL), rows, lo, hi, positions, sizes, LIMIT, False)


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
