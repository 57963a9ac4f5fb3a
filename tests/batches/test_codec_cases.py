"""Decompression by both ways, the C functions and the packages: the table of cases, and tests outside the table."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import oracle
import pytest
from codec_cases import (
    CASES,
    GZIP,
    LARGE,
    LIMIT,
    LZ4,
    NOISE,
    ORDINARY,
    PLAIN,
    RECORDS,
    SMALL,
    SNAPPY,
    VECTORS,
    WRITERS,
    ZSTD,
    Case,
    Writer,
    as_gzip,
    as_lz4,
    vector,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import XERIAL, build_batch, encode_record, three
from tables import assert_accounted, lost, offsets_of, records_of

import kbatch
from kbatch import BatchStatus, Limits
from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.careful import decompress_carefully
from kbatch.batches.codecs import decompress
from kbatch.batches.native import addresses
from kbatch.errors import Fault, Finding
from kbatch.format import Codec
from kbatch.kernels import codecs
from kbatch.kernels.buffers import pool_stats, trim
from kbatch.kernels.codecs import Codecs

GUARD = 64
NATIVE = Codecs(addresses())
WITHOUT_ISAL = Codecs({name: address for name, address in addresses().items() if not name.startswith("isal")})
# The C function that the kernel needs to decompress ordinary payloads; for snappy any native codec suffices.
FUNCTIONS = {GZIP: "inflate", SNAPPY: "inflate", LZ4: "LZ4_decompress_safe", ZSTD: "ZSTD_decompressDCtx"}
NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
BOMBS = ["COD-09-gzip", "COD-09-snappy-xerial", "COD-09-lz4", "COD-09-zstd"]

both_ways = pytest.mark.parametrize("way", [decompress, decompress_carefully], ids=["native", "careful"])
every_writer = pytest.mark.parametrize(("codec", "write"), WRITERS.values(), ids=WRITERS)
every_ordinary = pytest.mark.parametrize(("codec", "write"), ORDINARY.values(), ids=ORDINARY)
every_codec = pytest.mark.parametrize("codec", list(NAMES), ids=NAMES.values())


def outcome(way, codec, payload, limit=LIMIT, magic=2, arena=None) -> bytes | Finding:
    """Return the uncompressed bytes of a payload or the fault in it, and check the arena's invariants."""
    arena = Arena() if arena is None else arena
    arena.used = 0
    assert way(Codec.NONE, memoryview(b"before"), arena, LIMIT) == 6
    finding = None
    size = 0
    try:
        size = way(codec, memoryview(payload), arena, limit, magic)
    except PayloadError as error:
        finding = error.finding
    assert arena.used == 6 + size
    assert arena.view[:6] == b"before"
    if finding is not None:
        assert finding.fault is not Fault.CODEC or finding.detail
        return finding
    return arena.array()[6:].tobytes()


def kernel(codec, payload, capacity=8 << 20, limit=LIMIT, magic=2, by=NATIVE) -> bytes | None:
    """Return the bytes the kernel writes, or None if it declines, and check that it stays within its capacity."""
    memory = np.full(capacity + 2 * GUARD, 0xA5, np.uint8)
    size = codecs.decompress_into(
        by, codec, magic > 0, memoryview(payload), memory[GUARD : capacity + GUARD].data, limit
    )
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[capacity + GUARD :] == 0xA5).all()
    assert size <= min(limit, capacity)
    return None if size < 0 else memory[GUARD : GUARD + size].tobytes()


def agree(codec, payload, limit=LIMIT, magic=2) -> bool:
    """Check that both ways have the same outcome, and return whether the kernel handles the payload."""
    careful = outcome(decompress_carefully, codec, payload, limit, magic)
    assert outcome(decompress, codec, payload, limit, magic) == careful
    found = kernel(codec, payload, 1 << 20, limit, magic)
    assert found in (None, careful)
    assert found in (None, kernel(codec, payload, 1 << 20, limit, magic, WITHOUT_ISAL))
    assert kernel(codec, payload, 1 << 20, limit, magic, Codecs({})) is None
    return found is not None


# -- the table


def test_every_rule_has_a_case() -> None:
    rules = {"COD": range(1, 9), "GZ": range(1, 6), "SN": [*range(1, 9), 10], "L4": range(1, 12), "ZS": range(2, 8)}
    expected = {f"{name}-R{number}" for name, numbers in rules.items() for number in numbers} - {"COD-R7"}
    assert expected == {rule for case in CASES for rule in case.rules.split()}


@both_ways
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_every_case_has_its_outcome(case: Case, way) -> None:
    """COD-R1 to COD-R6, COD-R8, GZ-R1 to GZ-R5, SN-R1 to SN-R8, SN-R10, L4-R1 to L4-R11, ZS-R2 to ZS-R7."""
    arena = Arena()
    for payload in case.payloads:
        found = outcome(way, case.codec, payload, case.limit, case.magic, arena)
        if not isinstance(case.outcome, Fault):
            assert isinstance(found, bytes)
            assert found == case.outcome or len(found) == case.outcome
        else:
            assert isinstance(found, Finding)
            assert found.fault is case.outcome
            assert case.detail in found.detail
            assert found.fault is not Fault.OVER_LIMIT or found.expected == case.limit
        if case.limit > LIMIT:
            # The declared size of a payload is not allocated.
            fresh = Arena()
            with pytest.raises(PayloadError):
                way(case.codec, memoryview(payload), fresh, case.limit, case.magic)
            assert len(fresh.view) < 1 << 20
            if case.codec == SNAPPY:
                assert len(fresh.view) == (256 << 10 if way is decompress and addresses() else 0)
    if case.outcome is Fault.OVER_LIMIT:
        assert len(arena.view) <= max(2 * case.limit, 256 << 10, 8 * max(map(len, case.payloads)) + 6)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_the_kernel_has_the_outcome_of_the_case_or_declines(case: Case) -> None:
    """The kernel returns the expected bytes or declines the payload; it handles ordinary ones."""
    for payload in case.payloads:
        found = kernel(case.codec, payload, limit=case.limit, magic=case.magic)
        if case.ordinary and FUNCTIONS[case.codec] in addresses():
            assert found is not None
        if found is not None:
            assert not isinstance(case.outcome, Fault)
            assert found == case.outcome or len(found) == case.outcome
            assert found == kernel(case.codec, payload, limit=case.limit, magic=case.magic, by=WITHOUT_ISAL)


def small(case: Case) -> bool:
    """Return whether the outcome also holds for a batch, and is quick to test; `test_vectors` has the vectors."""
    known = case.magic == 2 and isinstance(case.outcome, bytes | Fault)
    return known and len(case.payloads) <= 300 and all(len(payload) <= 1000 for payload in case.payloads)


@pytest.mark.parametrize("case", list(filter(small, CASES)), ids=[case.id for case in filter(small, CASES)])
def test_batch_has_the_outcome_of_its_payload(case: Case) -> None:
    """A batch of three records between two others has the outcome of its payload (COD-R3, COD-R6, CNT-R2)."""
    limits = Limits(max_decompressed_bytes=max(1, min(case.limit, 1 << 40)))
    other_codec = "none" if case.limit < LIMIT else NAMES[case.codec]
    before, after = three(0), three(60, codec=other_codec)
    refused = {
        Fault.CODEC: (kbatch.CodecError, BatchStatus.BAD_CODEC),
        Fault.OVER_LIMIT: (kbatch.LimitExceededError, BatchStatus.OVER_LIMIT),
    }
    for payload in case.payloads:
        if case.limit == 0:
            continue
        batch = build_batch(RECORDS, codec=NAMES[case.codec], payload=bytes(payload), base_offset=50)
        data = before + batch + after
        table = kbatch.decode(data, limits=limits, on_error="skip", threads=1)
        assert_accounted(table, len(data))
        if case.outcome == PLAIN:
            assert offsets_of(table) == [0, 1, 2, 50, 51, 52, 60, 61, 62]
            assert records_of(table)[3:6] == list(oracle.decode(batch).batches[0].records)
            assert not lost(table)
            continue
        kind, status = refused.get(case.outcome, (kbatch.InvalidRecordError, BatchStatus.INVALID))
        with pytest.raises(kind) as caught:
            kbatch.decode(data, limits=limits, threads=1)
        assert (caught.value.position, caught.value.base_offset) == (len(before), 50)
        assert offsets_of(table) == [0, 1, 2, 60, 61, 62]
        assert lost(table) == [(len(before), len(before) + len(batch))]
        assert table.batches["status"].tolist() == [0, status, 0]
        if case.outcome is not Fault.OVER_LIMIT:
            assert oracle.decode(batch).error is not None


def test_native_codecs_can_be_switched_off() -> None:
    """With KBATCH_NATIVE_CODECS=0 no C function decompresses; .ci/run runs the tests of this folder that way."""
    environment = os.environ | {"KBATCH_NATIVE_CODECS": "0"}
    program = "from kbatch.batches.native import addresses; assert addresses() == {}"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    # The same payload and the same error as with these functions.
    program = """if True:
        import kbatch
        good = kbatch.encode([b"value" * 100] * 10, codec="{0}")
        assert kbatch.decode(good).to_arrow()["value"].to_pylist() == [b"value" * 100] * 10
        print(kbatch.decode(good[:-9] + bytes(9), crc="skip", on_error="skip").losses)
    """
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        command = [sys.executable, "-c", program.format(codec)]
        outputs = {
            subprocess.run(command, env=os.environ | switch, capture_output=True, text=True, check=True).stdout
            for switch in ({}, {"KBATCH_NATIVE_CODECS": "0"})
        }
        assert len(outputs) == 1


# -- all codecs


@every_writer
def test_cod_r2_r4_both_ways_agree_about_truncations_and_tails(codec: Codec, write: Writer) -> None:
    payload = write(SMALL)
    for end in range(len(payload)):
        agree(codec, payload[:end])
    for tail in (b"\0", b"\0" * 9, b"junk", payload[:4], payload, write(b""), write(LARGE[:1000])):
        agree(codec, payload + tail)


@pytest.mark.parametrize("size", [0, 1, len(SMALL), 1 << 40])
def test_zs_r6_both_ways_agree_about_content_sizes_of_empty_frames(size: int) -> None:
    for code, form in ((0, "<B"), (2, "<I"), (3, "<Q")):
        if size < 1 << 8 * struct.calcsize(form):
            frame = struct.pack("<IB", 0xFD2FB528, code << 6 | 0x20) + struct.pack(form, size) + b"\1\0\0"
            assert agree(ZSTD, frame) == (size == 0 and "ZSTD_decompressDCtx" in addresses())


@every_writer
def test_cod_r7_any_flipped_bit_is_safe(codec: Codec, write: Writer) -> None:
    payload = bytearray(write(SMALL + NOISE[:40]))
    faults = set()
    for bit in range(8 * len(payload)):
        payload[bit >> 3] ^= 1 << (bit & 7)
        agree(codec, bytes(payload), limit=1 << 20)
        found = outcome(decompress, codec, payload, limit=1 << 20)
        faults.add(found.fault if isinstance(found, Finding) else None)
        payload[bit >> 3] ^= 1 << (bit & 7)
    assert {Fault.CODEC} <= faults <= {None, Fault.CODEC, Fault.OVER_LIMIT}


@every_writer
def test_cod_r7_any_flipped_bit_of_a_batch_is_safe(codec: Codec, write: Writer) -> None:
    """Without the checksum the result is any bytes or a typed error, and the next batch is complete."""
    stream = write(PLAIN)
    for at, bit in itertools.product(range(len(stream)), (0, 3, 7)):
        changed = bytearray(stream)
        changed[at] ^= 1 << bit
        batch = build_batch(RECORDS, codec=NAMES[codec], payload=bytes(changed), base_offset=50)
        data = batch + three(60, codec=NAMES[codec])
        table = kbatch.decode(data, crc="skip", on_error="skip")
        assert offsets_of(table)[-3:] == [60, 61, 62]
        assert_accounted(table, len(data))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(NAMES)), st.binary(max_size=80), st.booleans())
def test_cod_r7_any_bytes_are_safe(codec: Codec, body: bytes, framed: bool) -> None:
    starts = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff", XERIAL, b"\x04\x22\x4d\x18\x60\x40\x82", b"\x28\xb5\x2f\xfd\0\x38"]
    agree(codec, starts[codec - 1] + body if framed else body, limit=1 << 16)


@every_ordinary
@pytest.mark.parametrize("data", [SMALL, LARGE[:120_000], NOISE], ids=["small", "large", "noise"])
def test_cod_r8_the_kernel_respects_limit_and_capacity(codec: Codec, write: Writer, data: bytes) -> None:
    payload = write(data)
    for short in (1, 2, len(data) // 2, len(data)):
        assert kernel(codec, payload, limit=len(data) - short) is None
        assert kernel(codec, payload, capacity=len(data) - short) is None


@both_ways
@every_codec
def test_cod_r8_memory_follows_the_stored_size_and_not_the_limit(codec: Codec, way) -> None:
    arena = Arena()
    for size, max_capacity in ((0, 256 << 10), (100, 256 << 10), (1 << 20, 10 << 20)):
        with pytest.raises(PayloadError):
            way(codec, memoryview(b"\xff" * size), arena, 1 << 50)
        assert len(arena.view) <= max_capacity
    arena = Arena()
    with pytest.raises(PayloadError):
        way(codec, memoryview(b"\xff" * (1 << 20)), arena, 1000)
    assert len(arena.view) <= 256 << 10


@both_ways
@pytest.mark.parametrize("name", BOMBS)
def test_cod_r8_a_bomb_allocates_memory_up_to_the_limit_only(name: str, way) -> None:
    codec, payload = vector(name)
    assert len(outcome(way, codec, payload, limit=16 << 20)) == 8_388_622
    gc.collect()
    trim()
    held = pool_stats().live_bytes
    arena = Arena()
    with pytest.raises(PayloadError) as caught:
        way(codec, memoryview(payload), arena, 1 << 20)
    assert caught.value.finding.fault is Fault.OVER_LIMIT
    assert caught.value.finding.expected == 1 << 20
    # Every byte of output is in a block: blocks in use, and outgrown blocks, which are on the free list.
    assert pool_stats().live_bytes - held + pool_stats().free_bytes < 3 << 20


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.parametrize("name", BOMBS)
def test_cod_r8_a_bomb_uses_little_resident_memory(name: str, switch: str) -> None:
    """The resident memory of a separate process also counts the buffers of the libraries."""
    pytest.importorskip("resource")
    program = (
        "import base64, resource, sys\n"
        "from kbatch.batches.arena import *\n"
        "from kbatch.batches.codecs import *\n"
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
    command = [sys.executable, "-c", program, str(VECTORS / f"{name}.bin")]
    environment = os.environ | {"KBATCH_NATIVE_CODECS": switch}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    fault, kilobytes = done.stdout.split()
    assert fault == "OVER_LIMIT"
    assert int(kilobytes) < (3 << 10) * (1024 if sys.platform == "darwin" else 1)


@both_ways
@every_writer
def test_cod_r9_a_failed_payload_does_not_affect_the_next(codec: Codec, write: Writer, way) -> None:
    good, other = write(LARGE), write(SMALL)
    arena = Arena()
    for bad in (good[: len(good) // 2], good[:40] + b"\xff" * 30 + good[70:], other[:-3], b"junk" * 9):
        # Without checksums a damaged payload may decode; this test is about the payload after it.
        with contextlib.suppress(PayloadError):
            way(codec, memoryview(bad), arena, LIMIT)
        with pytest.raises(PayloadError):
            way(codec, memoryview(good), arena, 1000)
        assert outcome(way, codec, good, arena=arena) == LARGE
        assert outcome(way, codec, other, arena=arena) == SMALL


@both_ways
def test_cod_r9_a_content_size_of_a_failed_frame_is_forgotten(way) -> None:
    with pytest.raises(PayloadError):
        way(LZ4, memoryview(as_lz4(LARGE, block_linked=True, store_size=True))[:-100], Arena(), LIMIT)
    assert outcome(way, LZ4, as_lz4(SMALL, content_checksum=True)) == SMALL


@every_writer
def test_cod_r9_a_failed_batch_leaves_no_state(codec: Codec, write: Writer) -> None:
    good = build_batch(RECORDS, codec=NAMES[codec], payload=write(PLAIN), base_offset=70)
    expected = records_of(kbatch.decode(good))
    assert len(expected) == 3
    bad = build_batch(RECORDS, codec=NAMES[codec], payload=write(PLAIN)[:-3], base_offset=50)
    for _ in range(5):
        with pytest.raises(kbatch.CodecError):
            kbatch.decode(bad)
        assert records_of(kbatch.decode(good)) == expected
    assert records_of(kbatch.decode(bad * 3 + good, on_error="skip")) == expected


@both_ways
def test_cod_r9_threads_do_not_share_state(way) -> None:
    failures = []

    def work(name: str) -> None:
        codec, write = WRITERS[name]
        payload = write(LARGE)
        for _ in range(15):
            with pytest.raises(PayloadError):
                way(codec, memoryview(payload)[:50], Arena(), LIMIT)
            if outcome(way, codec, payload) != LARGE:
                failures.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in [*WRITERS, *WRITERS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@both_ways
@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_named(codec: int, way) -> None:
    finding = outcome(way, codec, b"anything")
    assert (finding.fault, finding.found) == (Fault.UNKNOWN_CODEC, codec)


# -- whole batches


@every_writer
def test_cod_r1_only_the_records_are_compressed(codec: Codec, write: Writer) -> None:
    records = [encode_record(i, i, b"%d" % i, b"value %d " % i * 9) for i in range(2000)]
    batch = build_batch(records, codec=NAMES[codec], payload=write(b"".join(records)), base_offset=100)
    row = kbatch.scan(batch)[0]
    assert (int(row["base_offset"]), int(row["record_count"]), int(row["last_offset_delta"])) == (100, 2000, 1999)
    assert records_of(kbatch.decode(batch)) == list(oracle.decode(batch).batches[0].records)


def test_cod_r1_codecs_may_change_from_batch_to_batch() -> None:
    order = ["none", "gzip", "none", "none", "zstd", "snappy", "none", "lz4", "snappy-raw", "none"]
    data = b"".join(three(10 * i, codec=codec) for i, codec in enumerate(order))
    table = kbatch.decode(data)
    assert records_of(table) == [record for batch in oracle.decode(data).batches for record in batch.records]
    assert offsets_of(table) == [10 * i + j for i in range(len(order)) for j in range(3)]


@every_codec
def test_cod_r3_a_batch_without_records_may_have_an_empty_payload(codec: Codec) -> None:
    """SN-R6: for snappy, also a stream without chunks."""
    assert len(kbatch.decode(build_batch(codec=NAMES[codec], payload=b""))) == 0
    assert len(kbatch.decode(build_batch(codec="snappy", payload=XERIAL))) == 0


@every_codec
def test_cod_r8_only_batches_above_the_limit_are_errors(codec: Codec) -> None:
    bomb = build_batch([encode_record(value=bytes(1 << 20))], codec=NAMES[codec], base_offset=50)
    assert len(kbatch.decode(bomb, limits=Limits(max_decompressed_bytes=2 << 20))) == 1
    with pytest.raises(kbatch.LimitExceededError, match="max_decompressed_bytes") as caught:
        kbatch.decode(three(0) + bomb + three(60), limits=Limits(max_decompressed_bytes=64 << 10))
    assert (caught.value.position, caught.value.base_offset) == (88, 50)


# -- the arena


def test_an_arena_keeps_its_content_when_it_grows() -> None:
    arena = Arena(10)
    assert len(arena.view) == 10
    assert decompress(Codec.NONE, memoryview(b"0123456789"), arena, LIMIT) == 10
    early = arena.array()
    arena.reserve(5_000_000)
    assert len(arena.view) >= 5_000_010
    assert arena.array().tobytes() == early.tobytes() == b"0123456789"
    assert arena.view.format == "B"


def test_arena_array_is_read_only_not_a_copy_and_outlives_the_arena() -> None:
    arena = Arena()
    decompress(GZIP, memoryview(as_gzip(SMALL)), arena, LIMIT)
    array = arena.array()
    assert (array.dtype, array.shape, array.flags.writeable) == (np.uint8, (len(SMALL),), False)
    assert array.ctypes.data == np.asarray(arena.view).ctypes.data
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    del arena
    other = Arena(len(SMALL))
    other.view[:] = bytes(len(SMALL))
    assert array.tobytes() == SMALL


def test_empty_arena_gives_an_empty_array() -> None:
    assert Arena().array().shape == (0,)


@both_ways
def test_an_arena_reuses_the_memory_of_the_one_before(way) -> None:
    trim()
    payloads = [(codec, memoryview(write(LARGE))) for codec, write in WRITERS.values()]
    before = pool_stats().fresh
    counts = []
    for _ in range(3):
        # A growing arena may return smaller blocks to the system (`kbatch.kernels.buffers`); this one has a fixed size.
        arena = Arena((len(payloads) + 1) * len(LARGE))
        for codec, payload in payloads:
            way(codec, payload, arena, LIMIT)
        assert arena.array().tobytes() == LARGE * len(payloads)
        del arena
        counts.append(pool_stats().fresh - before)
    assert counts[0] >= 1
    assert counts == [counts[0]] * 3
