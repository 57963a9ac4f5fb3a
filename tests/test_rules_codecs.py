"""Catalogue section 5: what each codec's reader takes and refuses, seen through whole batches."""

from __future__ import annotations

import gzip
import itertools
import struct
import zlib

import lz4.frame
import oracle
import pytest
import snappy
import zstandard
from oracle import XERIAL, build_batch, compress, encode_record, three, xerial
from tables import assert_accounted, lost, offsets_of, records_of

import kbatch
from kbatch import BatchStatus, Limits

CODECS = ["gzip", "snappy", "snappy-raw", "lz4", "zstd"]
RECORDS = [
    encode_record(0, 0, b"k", b"a" * 40),
    encode_record(1, 5, b"k", b"b" * 40),
    encode_record(2, 9, b"k", b"c" * 40),
]
PLAIN = b"".join(RECORDS)
codecs = pytest.mark.parametrize("codec", CODECS)


def batch_of(codec: str, payload: bytes, base_offset: int = 50) -> bytes:
    return build_batch(RECORDS, codec=codec, payload=payload, base_offset=base_offset)


def assert_read(codec: str, payload: bytes) -> None:
    batch = batch_of(codec, payload)
    table = kbatch.decode(three(0) + batch + three(60, codec="gzip"))
    assert offsets_of(table) == [0, 1, 2, 50, 51, 52, 60, 61, 62]
    assert records_of(table)[3:6] == list(oracle.decode(batch).batches[0].records)


def assert_refused(codec: str, payload: bytes, *kinds: type[kbatch.KbatchError]) -> None:
    batch = batch_of(codec, payload)
    assert oracle.decode(batch).error is not None
    data = three(0, codec="lz4") + batch + three(60, codec=codec)
    start = len(three(0, codec="lz4"))
    with pytest.raises(kinds or (kbatch.CodecError,)) as caught:
        kbatch.decode(data)
    assert (caught.value.position, caught.value.base_offset) == (start, 50)
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [0, 1, 2, 60, 61, 62]
    assert lost(table) == [(start, start + len(batch))]
    assert table.batches["status"][1] in (BatchStatus.BAD_CODEC, BatchStatus.INVALID)
    assert_accounted(table, len(data))


# -- 5.1 all codecs


@codecs
def test_cod_r1_only_the_records_are_compressed(codec: str) -> None:
    records = [encode_record(i, i, b"%d" % i, b"value %d " % i * 9) for i in range(2000)]
    batch = build_batch(records, codec=codec, base_offset=100)
    row = kbatch.scan(batch)[0]
    assert (int(row["base_offset"]), int(row["record_count"]), int(row["last_offset_delta"])) == (100, 2000, 1999)
    table = kbatch.decode(batch)
    assert records_of(table) == list(oracle.decode(batch).batches[0].records)


@codecs
def test_cod_r2_payload_that_is_no_stream(codec: str) -> None:
    for payload in (b"no stream of any kind, but long enough", b"\0" * 30, b"\xff" * 30):
        assert_refused(codec, payload)


@codecs
def test_cod_r2_stream_cut_anywhere(codec: str) -> None:
    """Also where only the trailer or the end mark is missing."""
    stream = compress(codec, PLAIN)
    for cut in range(1, len(stream)):
        batch = batch_of(codec, stream[:cut])
        with pytest.raises((kbatch.CodecError, kbatch.InvalidRecordError)) as caught:
            kbatch.decode(batch)
        if codec in ("gzip", "lz4", "zstd"):
            assert type(caught.value) is kbatch.CodecError


@codecs
def test_cod_r3_no_payload(codec: str) -> None:
    assert_refused(codec, b"", kbatch.CodecError, kbatch.InvalidRecordError)
    assert len(kbatch.decode(build_batch(codec=codec, payload=b""))) == 0


@codecs
@pytest.mark.parametrize("garbage", [b"\0", b"ab", b"abc", b"garbage after the stream"])
def test_cod_r4_bytes_after_the_stream(codec: str, garbage: bytes) -> None:
    """Ignored after gzip and LZ4, and up to three after xerial snappy (SN-R5, L4-R11, ZS-R7)."""
    payload = compress(codec, PLAIN) + garbage
    if codec in ("gzip", "lz4") or (codec == "snappy" and len(garbage) < 4):
        assert_read(codec, payload)
    else:
        assert_refused(codec, payload)


@codecs
def test_cod_r5_concatenated_streams(codec: str) -> None:
    first, rest = RECORDS[0], b"".join(RECORDS[1:])
    payload = compress(codec, first) + compress(codec, rest)
    if codec == "lz4":  # L4-R1: the first frame only, which is too few records
        assert_refused(codec, payload, kbatch.InvalidRecordError)
        assert_read(codec, compress(codec, PLAIN) + compress(codec, rest))
    elif codec == "snappy-raw":
        assert_refused(codec, payload)
    else:
        assert_read(codec, payload)


@codecs
def test_cod_r6_more_bytes_than_records(codec: str) -> None:
    assert_refused(codec, compress(codec, PLAIN + b"\0\0"), kbatch.InvalidRecordError)


@codecs
def test_cod_r7_any_flipped_byte_is_safe(codec: str) -> None:
    """With the checksum off the result may be garbage; it is records or a typed error, and the next batch is whole."""
    stream = compress(codec, PLAIN)
    for at, bit in itertools.product(range(len(stream)), (0, 3, 7)):
        changed = bytearray(stream)
        changed[at] ^= 1 << bit
        data = batch_of(codec, bytes(changed)) + three(60, codec=codec)
        table = kbatch.decode(data, crc="skip", on_error="skip")
        assert offsets_of(table)[-3:] == [60, 61, 62]
        assert_accounted(table, len(data))


@codecs
def test_cod_r8_output_is_bounded_while_decompressing(codec: str) -> None:
    bomb = build_batch([encode_record(value=bytes(1 << 20))], codec=codec, base_offset=50)
    assert len(kbatch.decode(bomb, limits=Limits(max_decompressed_bytes=2 << 20))) == 1
    data = three(0) + bomb + three(60)
    limits = Limits(max_decompressed_bytes=64 << 10)
    with pytest.raises(kbatch.LimitExceededError, match="max_decompressed_bytes") as caught:
        kbatch.decode(data, limits=limits)
    assert (caught.value.position, caught.value.base_offset) == (88, 50)
    table = kbatch.decode(data, limits=limits, on_error="skip")
    assert offsets_of(table) == [0, 1, 2, 60, 61, 62]
    assert table.batches["status"].tolist() == [0, BatchStatus.OVER_LIMIT, 0]


@codecs
def test_cod_r8_limit_is_inclusive(codec: str) -> None:
    batch = batch_of(codec, compress(codec, PLAIN))
    assert len(kbatch.decode(batch, limits=Limits(max_decompressed_bytes=len(PLAIN)))) == 3
    with pytest.raises(kbatch.LimitExceededError):
        kbatch.decode(batch, limits=Limits(max_decompressed_bytes=len(PLAIN) - 1))


@codecs
def test_cod_r9_a_failure_leaves_nothing_behind(codec: str) -> None:
    good = batch_of(codec, compress(codec, PLAIN), base_offset=70)
    wanted = records_of(kbatch.decode(good))
    bad = batch_of(codec, compress(codec, PLAIN)[:-3])
    for _ in range(5):
        with pytest.raises(kbatch.CodecError):
            kbatch.decode(bad)
        assert records_of(kbatch.decode(good)) == wanted
    assert records_of(kbatch.decode(bad * 3 + good, on_error="skip")) == wanted


def test_codecs_may_change_from_batch_to_batch() -> None:
    order = ["none", "gzip", "none", "none", "zstd", "snappy", "none", "lz4", "snappy-raw", "none"]
    data = b"".join(three(10 * i, codec=codec) for i, codec in enumerate(order))
    table = kbatch.decode(data)
    wanted = [record for batch in oracle.decode(data).batches for record in batch.records]
    assert records_of(table) == wanted
    assert offsets_of(table) == [10 * i + j for i in range(len(order)) for j in range(3)]


# -- 5.2 gzip


def member(plain: bytes, flags: int = 0, fields: bytes = b"", crc: int | None = None, size: int | None = None) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(plain) + deflate.flush()
    crc = zlib.crc32(plain) if crc is None else crc
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6)
    return head + fields + body + struct.pack("<II", crc, len(plain) if size is None else size)


def test_gz_r1_parts_of_the_header_and_members() -> None:
    assert_read("gzip", member(PLAIN))
    assert_read("gzip", member(PLAIN, 0x08, b"a file's name\0"))  # FNAME
    assert_read("gzip", member(PLAIN, 0x04, struct.pack("<H", 5) + b"extra"))  # FEXTRA
    head = b"\x1f\x8b\x08\x02" + bytes(6)
    assert_read("gzip", member(PLAIN, 0x02, struct.pack("<H", zlib.crc32(head) & 0xFFFF)))  # FHCRC
    assert_read("gzip", member(PLAIN) + member(b""))
    assert_read("gzip", b"".join(member(PLAIN[i : i + 7]) for i in range(0, len(PLAIN), 7)))


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_gz_r1_levels(level: int) -> None:
    assert_read("gzip", gzip.compress(PLAIN, level, mtime=0))


def test_gz_r2_r5_trailer_is_verified() -> None:
    assert_refused("gzip", member(PLAIN, crc=0))
    assert_refused("gzip", member(PLAIN, size=len(PLAIN) + 1))
    assert_refused("gzip", member(PLAIN, size=0xFFFFFFFF))
    assert_refused("gzip", member(PLAIN)[:-8])
    assert_refused("gzip", member(RECORDS[0]) + member(PLAIN, crc=1))


def test_gz_r3_zlib_and_raw_deflate_are_refused() -> None:
    assert_refused("gzip", zlib.compress(PLAIN))
    assert_refused("gzip", zlib.compress(PLAIN, wbits=-15))


@pytest.mark.parametrize("count", [1, 3, 8, 600])
def test_gz_r4_zero_padding(count: int) -> None:
    assert_read("gzip", member(PLAIN) + bytes(count))


# -- 5.3 snappy


def test_sn_r1_both_shapes() -> None:
    assert_read("snappy", xerial(PLAIN))
    assert_read("snappy", snappy.compress(PLAIN))


@pytest.mark.parametrize("versions", [(1, 1), (0x01000000, 0x01000000), (2, 1), (-1, 99)])
def test_sn_r2_xerial_versions_are_not_looked_at(versions: tuple[int, int]) -> None:
    assert_read("snappy", XERIAL[:8] + struct.pack(">ii", *versions) + xerial(PLAIN)[16:])


def test_sn_r2_magic_alone_is_no_header() -> None:
    """SN-R10: a raw block may begin with the magic."""
    assert_refused("snappy", XERIAL[:8])
    assert_refused("snappy", XERIAL[:15])


@pytest.mark.parametrize("chunk", [1, 5, 32 << 10, 64 << 10])
def test_sn_r3_chunks_of_any_size(chunk: int) -> None:
    assert_read("snappy", xerial(PLAIN, chunk))
    big = build_batch([encode_record(value=bytes(range(256)) * 300)], codec="snappy", payload=None)
    assert len(kbatch.decode(big)) == 1


def test_sn_r4_another_header_in_place_of_a_chunk() -> None:
    assert_read("snappy", xerial(RECORDS[0]) + xerial(RECORDS[1]) + xerial(RECORDS[2]))
    assert_read("snappy", XERIAL + xerial(PLAIN))


def test_sn_r5_cut_chunk() -> None:
    assert_refused("snappy", xerial(PLAIN)[:-1])
    assert_refused("snappy", xerial(PLAIN) + struct.pack(">i", 10) + b"123456789")


def test_sn_r6_empty_chunk_and_no_chunk() -> None:
    assert_refused("snappy", XERIAL + struct.pack(">i", 0) + xerial(PLAIN)[16:])
    assert_refused("snappy", XERIAL, kbatch.InvalidRecordError, kbatch.CodecError)
    assert len(kbatch.decode(build_batch(codec="snappy", payload=XERIAL))) == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 10_000])
def test_sn_r7_chunk_length_beyond_the_payload(length: int) -> None:
    assert_refused("snappy", XERIAL + struct.pack(">i", length) + snappy.compress(PLAIN))


@pytest.mark.parametrize("claim", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff" * 6, b"\x80"])
def test_sn_r7_raw_block_claims_too_much(claim: bytes) -> None:
    """SN-14, SN-15."""
    assert_refused("snappy", claim + b"abcd")
    assert_refused("snappy", XERIAL + struct.pack(">i", len(claim) + 4) + claim + b"abcd")


def test_sn_r8_official_framing_is_not_kafkas() -> None:
    assert_refused("snappy", b"\xff\x06\x00\x00sNaPpY" + bytes(40))


# -- 5.4 lz4


def lz4_frame(plain: bytes = PLAIN, **options: object) -> bytes:
    return bytes(lz4.frame.compress(plain, **{"store_size": False, "block_linked": False} | options))


def described(flags: int, block: int, rest: bytes, checksum: int | None = None) -> bytes:
    """Return a frame with this descriptor; its checksum byte is right unless given."""
    return b"\x04\x22\x4d\x18" + bytes([flags, block, descriptor_checksum(flags, block, checksum)]) + rest


def descriptor_checksum(flags: int, block: int, given: int | None) -> int:
    return xxh32(bytes([flags, block])) >> 8 & 0xFF if given is None else given


def xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 4 bytes, which is all that a descriptor without a size has."""
    number = 0x165667B1 + len(data)
    for byte in data:
        number = (number + byte * 0x165667B1) & 0xFFFFFFFF
        number = ((number << 11 | number >> 21) * 0x9E3779B1) & 0xFFFFFFFF
    number = ((number ^ number >> 15) * 0x85EBCA77) & 0xFFFFFFFF
    number = ((number ^ number >> 13) * 0xC2B2AE3D) & 0xFFFFFFFF
    return number ^ number >> 16


BLOCKS = lz4_frame(block_size=4)[7:]


def test_l4_r1_first_frame_only() -> None:
    assert described(0x60, 0x40, BLOCKS) == lz4_frame(block_size=4)
    assert_read("lz4", lz4_frame())
    assert_read("lz4", lz4_frame() + lz4_frame())


def test_l4_r2_linked_blocks_are_read() -> None:
    records = [encode_record(i, i, b"%d" % i, b"some value %d " % i * 20) for i in range(2000)]
    payload = lz4_frame(b"".join(records), block_linked=True, block_size=4)
    assert not payload[4] & 0x20
    table = kbatch.decode(build_batch(records, codec="lz4", payload=payload))
    assert table.records["offset"].tolist() == list(range(2000))


@pytest.mark.parametrize(
    ("flags", "block"),
    [(0x20, 0x40), (0xA0, 0x40), (0x61, 0x40), (0x62, 0x40), (0x60, 0x30), (0x60, 0x00), (0x60, 0xC0), (0x60, 0x41)],
)
def test_l4_r3_descriptor(flags: int, block: int) -> None:
    """Version, dictionary id, reserved bits, block sizes: L4-15, L4-16, L4-17."""
    assert_refused("lz4", described(flags, block, BLOCKS))


def test_l4_r4_descriptor_checksum() -> None:
    right = lz4_frame()[6]
    for wrong in (right ^ 1, right ^ 0x80, 0):
        if wrong != right:
            assert_refused("lz4", lz4_frame()[:6] + bytes([wrong]) + lz4_frame()[7:])


def test_l4_r6_content_size() -> None:
    assert_read("lz4", lz4_frame(store_size=True))


def test_l4_r7_checksums_are_verified() -> None:
    content = lz4_frame(content_checksum=True)
    blocks = lz4_frame(block_checksum=True)
    assert_read("lz4", content)
    assert_read("lz4", blocks)
    assert_refused("lz4", content[:-1] + bytes([content[-1] ^ 1]))
    assert_refused("lz4", blocks[:-5] + bytes([blocks[-5] ^ 1]) + blocks[-4:])


def test_l4_r8_end_mark_is_required() -> None:
    assert lz4_frame().endswith(bytes(4))
    assert_refused("lz4", lz4_frame()[:-4])
    assert_refused("lz4", lz4_frame()[:-1])


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
def test_l4_r9_blocks_of_every_size_stored_or_not(block_size: int) -> None:
    assert_read("lz4", lz4_frame(block_size=block_size))
    stored = struct.pack("<I", len(PLAIN) | 0x80000000) + PLAIN + bytes(4)
    assert_read("lz4", described(0x60, block_size << 4, stored))


def test_l4_r9_block_above_its_maximum() -> None:
    big = [encode_record(value=bytes(70_000))]
    plain = b"".join(big)
    payload = described(0x60, 0x40, struct.pack("<I", len(plain) | 0x80000000) + plain + bytes(4))
    with pytest.raises(kbatch.CodecError):
        kbatch.decode(build_batch(big, codec="lz4", payload=payload))


def test_l4_r10_other_kinds_of_frame() -> None:
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    assert_refused("lz4", skippable + lz4_frame())
    assert_refused("lz4", b"\x02\x21\x4c\x18" + lz4_frame()[7:])
    assert_refused("lz4", lz4_frame()[11:-4])


# -- 5.5 zstd


def zstd(plain: bytes = PLAIN, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(plain)  # type: ignore[arg-type]


SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"skip!"
EMPTY_FRAME = zstd(b"")


def test_zs_r2_no_content_size() -> None:
    assert_read("zstd", zstd(write_content_size=False))
    streaming = zstandard.ZstdCompressor().compressobj()
    assert_read("zstd", streaming.compress(PLAIN) + streaming.flush())


@pytest.mark.parametrize(
    "payload",
    [
        zstd() + EMPTY_FRAME,
        EMPTY_FRAME + zstd(),
        SKIPPABLE + zstd(),
        zstd() + SKIPPABLE,
        SKIPPABLE + zstd(RECORDS[0]) + SKIPPABLE + EMPTY_FRAME + zstd(RECORDS[1] + RECORDS[2]) + SKIPPABLE,
        zstd(RECORDS[0], write_content_size=False) + zstd(RECORDS[1] + RECORDS[2]),
    ],
)
def test_zs_r3_frames_and_skippable_frames(payload: bytes) -> None:
    assert_read("zstd", payload)


def test_zs_r4_frame_checksum_is_verified() -> None:
    good = zstd(write_checksum=True)
    assert_read("zstd", good)
    assert_refused("zstd", good[:-1] + bytes([good[-1] ^ 1]))


@pytest.mark.parametrize(("log", "read"), [(27, True), (28, False), (31, False)])
def test_zs_r5_window_of_up_to_128_mib(log: int, read: bool) -> None:
    """The window descriptor of a frame is rewritten: exponent in the upper five bits, from 10 on."""
    streaming = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frame = bytearray(streaming.compress(PLAIN) + streaming.flush())
    assert not frame[4] & 0x20  # no single segment: byte 5 is the window
    frame[5] = (log - 10) << 3
    if read:
        assert_read("zstd", bytes(frame))
    else:
        assert_refused("zstd", bytes(frame))


def test_zs_r6_dictionaries_and_claims() -> None:
    samples = [b"value %d of some topic " % i * 5 for i in range(500)]
    dictionary = zstandard.train_dictionary(2000, samples)
    assert_refused("zstd", zstd(dict_data=dictionary))
    claim = b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", 1 << 40) + b"\x01\x00\x00"
    assert_refused("zstd", claim)


def test_zs_r7_cut_and_garbage() -> None:
    frame = zstd(write_checksum=True)
    for cut in range(1, len(frame)):
        assert_refused("zstd", frame[:cut])
    for garbage in (b"\0", b"abcdefghij", frame[:4], SKIPPABLE[:-1]):
        assert_refused("zstd", frame + garbage)
