"""Catalogue section 1: the framing of batches, the bytes a checksum covers, and where reading resumes after damage."""

from __future__ import annotations

import mmap
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from oracle import INT32_MAX, INT64_MAX, build_batch, encode_record, three
from tables import assert_accounted, lost, offsets_of, records_of, short_inputs

import kbatch
import kbatch.batches.framing

A, B, C = three(10), three(20), three(30)
SIZE = len(A)


def entry(length: int, magic: int = 2, offset: int = 0, size: int = 100) -> bytes:
    """Return the first fields of an entry, followed by zeros."""
    return (struct.pack(">qiib", offset, length, -1, magic) + bytes(size))[:size]


def raised(data: bytes, kind: type[kbatch.KbatchError], **options: Any) -> kbatch.KbatchError:
    with pytest.raises(kind) as caught:
        kbatch.decode(data, **options)
    return caught.value


# -- framing


def test_frm_r1_every_entry_begins_with_offset_and_length() -> None:
    table = kbatch.decode(A)
    assert offsets_of(table) == [10, 11, 12]
    assert table.batches["size"].tolist() == [88]
    assert table.consumed == 88


@pytest.mark.parametrize("length", [13, 1, 0, -1, -(2**31)])
def test_frm_r2_length_below_the_minimum_is_corrupt(length: int) -> None:
    error = raised(A + entry(length), kbatch.CorruptBatchError)
    assert error.position == SIZE
    assert str(length) in str(error)
    # The length is checked before the number of remaining bytes: offset and length suffice.
    assert raised(A + entry(length, size=12), kbatch.CorruptBatchError).position == SIZE
    assert raised(entry(length), kbatch.CorruptBatchError).position == 0


@short_inputs
@pytest.mark.parametrize("cut", range(SIZE))
def test_frm_r3_incomplete_last_batch_is_not_an_error(cut: int) -> None:
    for on_error in ("raise", "stop", "skip"):
        table = kbatch.decode(A + B[:cut], on_error=on_error)  # type: ignore[arg-type]
        assert offsets_of(table) == [10, 11, 12]
        assert table.consumed == SIZE
        assert table.losses == []
    assert kbatch.decode(B[:cut]).consumed == 0
    assert len(kbatch.scan(A + B[:cut])) == 1


@pytest.mark.parametrize("magic", [3, 4, 127, -1, -128])
def test_frm_r4_unknown_magic_is_corrupt(magic: int) -> None:
    error = raised(A + entry(60, magic), kbatch.CorruptBatchError)
    assert error.position == SIZE
    assert f"magic is {magic}" in str(error)
    with pytest.raises(kbatch.CorruptBatchError):
        kbatch.scan(A + entry(60, magic))


@pytest.mark.parametrize(("magic", "length"), [(2, 48), (2, 14), (1, 21), (1, 14)])
def test_frm_r5_length_below_the_header_of_its_magic_is_corrupt(magic: int, length: int) -> None:
    assert raised(A + entry(length, magic, size=12 + length), kbatch.CorruptBatchError).position == SIZE
    assert raised(A + entry(length, magic, size=17), kbatch.CorruptBatchError).position == SIZE


def test_frm_r5_the_smallest_batch_is_a_header_without_records() -> None:
    table = kbatch.decode(build_batch())
    assert len(table.batches) == 1
    assert table.consumed == 61


def test_frm_r6_length_int32_max_is_partial() -> None:
    table = kbatch.decode(A + entry(INT32_MAX))
    assert table.consumed == SIZE
    assert kbatch.decode(entry(INT32_MAX)).consumed == 0


def test_frm_r7_zero_tail_is_corrupt_in_a_buffer() -> None:
    assert raised(A + bytes(100), kbatch.CorruptBatchError).position == SIZE
    assert kbatch.decode(A + bytes(11)).consumed == SIZE
    table = kbatch.decode(A + bytes(100), on_error="skip")
    assert lost(table) == [(SIZE, SIZE + 100)]
    assert offsets_of(table) == [10, 11, 12]


def test_frm_r8_stop_never_reads_past_the_damage() -> None:
    data = A + entry(13, size=25) + B
    table = kbatch.decode(data, on_error="stop")
    assert offsets_of(table) == [10, 11, 12]
    assert table.consumed == SIZE
    assert lost(table) == [(SIZE, len(data))]


def test_frm_r9_a_batch_that_crosses_the_end_of_a_view_is_partial() -> None:
    table = kbatch.decode(memoryview(A + A)[:100])
    assert offsets_of(table) == [10, 11, 12]
    assert table.consumed == SIZE


def test_frm_r10_overflow_batch_is_partial() -> None:
    overflow = entry(89, magic=0, offset=-1, size=100)
    for data in (overflow, A + overflow):
        table = kbatch.decode(data)
        assert table.consumed == len(data) - 100
        assert -1 not in offsets_of(table)


def test_frm_r11_base_offsets_may_decrease_and_repeat() -> None:
    assert offsets_of(kbatch.decode(A + three(5) + three(5))) == [10, 11, 12, 5, 6, 7, 5, 6, 7]


@pytest.mark.parametrize(
    ("base", "expected"),
    [(INT64_MAX - 1, [INT64_MAX - 1, INT64_MAX, -INT64_MAX - 1]), (-5, [-5, -4, -3])],
)
def test_frm_r12_offsets_are_plain_int64(base: int, expected: list[int]) -> None:
    """FRM-17 and FRM-18: sums wrap, and negative base offsets are valid."""
    assert offsets_of(kbatch.decode(three(base))) == expected


def test_frm_r13_every_entry_may_have_another_magic() -> None:
    """A message of magic 1 between batches of magic 2 is decoded as magic 1; also in fetch responses (FCH-R2)."""
    body = bytes([1, 0]) + struct.pack(">qii", 5, -1, -1)
    message = struct.pack(">qiI", 13, len(body) + 4, zlib.crc32(body)) + body
    data = A + message + B
    table = kbatch.decode(data)
    assert offsets_of(table) == [10, 11, 12, 13, 20, 21, 22]
    assert table.batches["magic"].tolist() == [2, 1, 2]
    assert table.records["batch"].tolist() == [0, 0, 0, 1, 2, 2, 2]


def test_frm_r14_consumed_is_zero_without_a_complete_batch() -> None:
    """A batch larger than the fetched bytes returns no records and no error, and consumes no bytes (FCH-R4)."""
    table = kbatch.decode(A[:-1])
    assert (len(table), len(table.batches), table.consumed) == (0, 0, 0)


def test_frm_r15_base_offset_is_taken_as_written() -> None:
    assert offsets_of(kbatch.decode(three(0) + three(0))) == [0, 1, 2, 0, 1, 2]


def test_frm_r16_position_is_the_first_byte_of_the_batch() -> None:
    data = A + build_batch(base_offset=13) + three(20, codec="gzip") + C
    table = kbatch.decode(data)
    sizes = table.batches["size"]
    assert table.batches["position"].tolist() == [0, *np.cumsum(sizes)[:-1].tolist()]
    assert int(sizes.sum()) == len(data) == table.consumed
    assert (kbatch.scan(data)["position"] == table.batches["position"]).all()


def test_batches_may_begin_at_any_byte() -> None:
    """COL-R9: the format aligns no field."""
    for shift in range(1, 9):
        data = memoryview(bytes(shift) + A + B)[shift:]
        assert offsets_of(kbatch.decode(data)) == [10, 11, 12, 20, 21, 22]


def test_data_may_be_any_object_with_a_buffer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(A)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    expected = records_of(kbatch.decode(A))
    for data in (bytearray(A), memoryview(A), np.frombuffer(A, np.uint8), mapped):
        assert records_of(kbatch.decode(data)) == expected
    with pytest.raises(TypeError, match="buffer"):
        kbatch.decode(["text"])  # type: ignore[arg-type]


# -- checksums


def test_crc_r1_crc32c_of_attributes_to_end() -> None:
    assert oracle.crc32c(b"123456789") == 0xE3069283
    table = kbatch.decode(A)
    assert int(table.batches["crc"][0]) == oracle.crc32c(A[21:])
    compressed = three(codec="zstd")
    assert int(kbatch.decode(compressed).batches["crc"][0]) == oracle.crc32c(compressed[21:])


def test_crc_r2_base_offset_and_leader_epoch_are_not_covered() -> None:
    changed = struct.pack(">q", 999) + A[8:12] + struct.pack(">i", 42) + A[16:]
    table = kbatch.decode(changed)
    assert offsets_of(table) == [999, 1000, 1001]
    assert table.batches["partition_leader_epoch"].tolist() == [42]


@pytest.mark.parametrize("at", range(17, SIZE))
def test_crc_r3_every_other_byte_is_covered(at: int) -> None:
    changed = bytearray(A)
    changed[at] ^= 0x10
    error = raised(bytes(changed), kbatch.CrcMismatchError)
    assert (error.position, error.base_offset) == (0, 10)


def test_crc_r4_a_bad_batch_is_skipped_by_its_length() -> None:
    bad = oracle.with_crc(B, 0)
    data = A + bad + C
    error = raised(data, kbatch.CrcMismatchError)
    assert (error.position, error.base_offset, error.record) == (SIZE, 20, None)
    assert "0x00000000" in str(error)

    skipped = kbatch.decode(data, on_error="skip")
    assert offsets_of(skipped) == [10, 11, 12, 30, 31, 32]
    assert skipped.batches["status"].tolist() == [0, kbatch.BatchStatus.BAD_CRC, 0]
    assert [(loss.position, loss.length, loss.base_offset) for loss in skipped.losses] == [(SIZE, SIZE, 20)]
    assert skipped.consumed == len(data)

    stopped = kbatch.decode(data, on_error="stop")
    assert offsets_of(stopped) == [10, 11, 12]
    assert stopped.consumed == SIZE
    assert lost(stopped) == [(SIZE, len(data))]


def test_crc_r4_mark_returns_the_records_and_sets_the_status() -> None:
    data = A + oracle.with_crc(B, 0) + C
    table = kbatch.decode(data, crc="mark")
    assert offsets_of(table) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert table.batches["status"].tolist() == [0, kbatch.BatchStatus.BAD_CRC, 0]
    assert table.batches["first_record"].tolist() == [0, 3, 6]
    assert table.losses == []


def test_crc_r4_skip_does_not_verify_checksums() -> None:
    table = kbatch.decode(A + oracle.with_crc(B, 0) + C, crc="skip")
    assert len(table) == 9
    assert table.batches["status"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("crc", "error", "status"),
    [
        ("mark", kbatch.CrcMismatchError, kbatch.BatchStatus.BAD_CRC),
        ("skip", kbatch.InvalidRecordError, kbatch.BatchStatus.INVALID),
    ],
)
def test_crc_r4_a_batch_with_a_bad_checksum_and_an_invalid_record_returns_no_records(
    crc: Any, error: type[kbatch.KbatchError], status: kbatch.BatchStatus
) -> None:
    """The first fault that was found stays the reason."""
    bad = oracle.with_crc(three(20, record_count=4), 0)
    assert raised(A + bad + C, error, crc=crc).position == SIZE
    table = kbatch.decode(A + bad + C, crc=crc, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 30, 31, 32]
    assert table.batches["status"].tolist()[1] == status


@pytest.mark.parametrize("magic", [0, 1])
def test_crc_r7_crc32_of_magic_to_end(magic: int) -> None:
    """LEG-27: the checksum covers every byte from the magic on, and not the offset."""
    message = oracle.build_message(b"key", b"value", magic=magic, offset=20)
    for at in range(12, len(message)):
        changed = bytearray(A + message + B)
        changed[SIZE + at] ^= 0x10
        if at == 16:  # another magic: the entry cannot be framed
            raised(bytes(changed), kbatch.CorruptBatchError)
            continue
        error = raised(bytes(changed), kbatch.CrcMismatchError)
        assert (error.position, error.base_offset) == (SIZE, 20)
        table = kbatch.decode(changed, on_error="skip")
        assert offsets_of(table) == [10, 11, 12, 20, 21, 22]
        assert table.batches["status"].tolist() == [0, kbatch.BatchStatus.BAD_CRC, 0]
        assert lost(table) == [(SIZE, SIZE + len(message))]


# -- options


@pytest.mark.parametrize("name", ["crc", "on_error", "isolation"])
def test_unknown_choices_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        kbatch.decode(A, **{name: "perhaps"})


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (None, None, [10, 11, 12, 20, 21, 22, 30, 31, 32]),
        (11, None, [11, 12, 20, 21, 22, 30, 31, 32]),
        (13, None, [20, 21, 22, 30, 31, 32]),
        (None, 22, [10, 11, 12, 20, 21]),
        (12, 31, [12, 20, 21, 22, 30]),
        (21, 22, [21]),
        (15, 18, []),
        (0, 0, []),
        (22, 21, []),
    ],
)
def test_offsets_are_trimmed_inside_batches(codec: str, start: int, stop: int, expected: list[int]) -> None:
    """OFF-R3: a fetch returns complete batches; `stop_offset` is exclusive."""
    data = b"".join(three(base, codec=codec) for base in (10, 20, 30))
    table = kbatch.decode(data, start_offset=start, stop_offset=stop)
    assert offsets_of(table) == expected
    assert table.consumed == len(data)
    assert {record.offset for record in records_of(table)} == set(expected)


# -- resuming after damage


@pytest.mark.parametrize("junk", [entry(13, size=25), entry(60, 7, size=80), b"\xff" * 300, bytes(64)])
def test_skip_resumes_at_the_next_good_batch(junk: bytes) -> None:
    data = A + junk + B + C
    error = raised(data, kbatch.CorruptBatchError)
    assert error.position == SIZE
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert lost(table) == [(SIZE, SIZE + len(junk))]
    assert_accounted(table, len(data))


def test_skip_resumes_after_bytes_that_look_like_a_huge_batch() -> None:
    junk = b"\x02" * 200  # magic 2 and a length of 32 MiB
    data = A + junk + B
    assert kbatch.decode(data).consumed == SIZE
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 20, 21, 22]
    assert lost(table) == [(SIZE, SIZE + len(junk))]


def test_skip_resumes_only_at_a_valid_checksum() -> None:
    """Bytes that only look like a header are skipped: wrong checksum, then wrong length, then wrong magic."""
    lures = oracle.with_crc(B, 1) + B[:-5] + B[:16] + b"\x03" + B[17:]
    data = A + entry(13, size=25) + lures + C
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 30, 31, 32]
    assert lost(table) == [(SIZE, len(data) - SIZE)]
    assert_accounted(table, len(data))


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("junk", [entry(13, size=25), b"\xff" * 300, bytes(64)])
def test_skip_resumes_at_message_sets(junk: bytes, magic: int, codec: str) -> None:
    """FRM-R13: the search after damage looks for entries of every magic."""
    messages = oracle.build_message_set([(b"k", b"a"), (None, b"b" * 40)], codec=codec, magic=magic, base_offset=20)
    rows = kbatch.batches.framing.scan_part(np.frombuffer(messages, np.uint8), origin=SIZE + len(junk)).batches
    data = A + junk + messages + junk + C
    table = kbatch.decode(data, on_error="skip")
    assert table.batches["position"].tolist() == [0, *rows["position"].tolist(), len(data) - SIZE]
    assert table.batches["magic"].tolist() == [2, *([magic] * len(rows)), 2]
    assert_accounted(table, len(data))
    assert table.consumed == len(data)


def test_skip_reports_damage_at_both_ends_and_in_between() -> None:
    junk = entry(0, size=40)
    data = junk + A + junk + junk + B + junk + C + junk
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert sum(loss.length for loss in table.losses) == 5 * 40
    assert len(lost(table)) == 4
    assert_accounted(table, len(data))
    assert table.consumed == len(data)


def test_skip_finds_batches_that_a_damaged_length_hides() -> None:
    """A batch whose length exceeds the input looks like an incomplete last batch."""
    damaged = B[:8] + struct.pack(">i", 10_000) + B[12:]
    data = A + damaged + C
    assert kbatch.decode(data).consumed == SIZE
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 30, 31, 32]
    assert lost(table) == [(SIZE, 2 * SIZE)]
    assert_accounted(table, len(data))


@pytest.mark.parametrize("length", [SIZE - 12 + 50, SIZE - 12 - 5, 2 * SIZE - 12 + 1])
def test_skip_does_not_follow_a_damaged_length(length: int) -> None:
    """The checksum does not cover the length: if both are wrong, kbatch searches for the next batch."""
    damaged = B[:8] + struct.pack(">i", length) + B[12:]
    data = A + damaged + C + three(40)
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 30, 31, 32, 40, 41, 42]
    assert lost(table) == [(SIZE, 2 * SIZE)]
    assert_accounted(table, len(data))


def test_skip_does_not_return_a_batch_inside_a_lost_value() -> None:
    """A bad batch with a valid length is skipped as a whole, including the batch inside one of its values."""
    outer = build_batch([encode_record(0, 0, b"k", three(500))], base_offset=20)
    bad = oracle.with_crc(outer, 0)
    data = A + bad + C
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 30, 31, 32]
    assert lost(table) == [(SIZE, SIZE + len(bad))]


@pytest.mark.parametrize("attributes", [0x80, 0x7F00, -0x8000])
def test_skip_resumes_at_a_batch_with_unknown_attributes(attributes: int) -> None:
    """ATT-R2 also applies to the search after damage: only length, magic and checksum decide."""
    data = A + entry(13, size=25) + three(20, attributes=attributes) + C
    table = kbatch.decode(data, on_error="skip")
    assert offsets_of(table) == [10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_positions_count_from_the_start_of_the_input() -> None:
    bad = three(50, record_count=4)
    data = A + entry(0, size=33) + B + bad
    table = kbatch.decode(data, on_error="skip")
    assert table.batches["position"].tolist() == [0, SIZE + 33, 2 * SIZE + 33]
    assert [loss.position for loss in table.losses] == [SIZE, 2 * SIZE + 33]
    assert table.losses[-1].base_offset == 50
