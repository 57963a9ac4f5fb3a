"""Catalogue section 6: message sets of magic 0 and 1, and the records decoded from them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import oracle
import pytest
from message_set_cases import ABC, AFTER, BEFORE, magics, offsets, refused, rows_of, wrapped
from oracle import (
    LEGACY_CODECS,
    LOG_APPEND_TIME,
    Record,
    build_message,
    build_message_set,
    build_wrapper,
    message_set,
    three,
)
from tables import lost, offsets_of, records_of

import kbatch
from kbatch import BatchStatus, Limits, TimestampType

# -- framing and fields


@magics
def test_leg_r1_the_shortest_message_has_null_key_and_value(magic: int) -> None:
    """LEG-23 to LEG-26: the minimum length is 14 in magic 0 and 22 in magic 1; a smaller one is corrupt."""
    entry = build_message(None, None, magic=magic, offset=7)
    assert struct.unpack_from(">i", entry, 8)[0] == (14, 22)[magic]
    assert rows_of(entry) == [(7, (-1, 1000)[magic], None, None)]
    short = build_message(None, None, magic=magic, offset=7, length=(13, 21)[magic])
    for data in (short, BEFORE + short):
        with pytest.raises(kbatch.CorruptBatchError, match=r"at least (14|22)") as caught:
            kbatch.decode(data)
        assert caught.value.position == len(data) - len(short)
    with pytest.raises(kbatch.CorruptBatchError):
        kbatch.scan(build_message(None, None, magic=1, length=14))  # LEG-24


@magics
def test_leg_r2_an_uncompressed_message_is_a_batch_of_one_record(magic: int) -> None:
    data = message_set([(b"k", b"v"), (None, None)], magic=magic, offsets=[5, 6], timestamps=[10, 11])
    size = len(data) - (26, 34)[magic]
    for batches in (kbatch.scan(data), kbatch.decode(data).batches):
        assert batches["base_offset"].tolist() == batches["last_offset"].tolist() == [5, 6]
        assert batches["last_offset_delta"].tolist() == [0, 0]
        assert batches["record_count"].tolist() == [1, 1]
        assert batches["position"].tolist() == [0, size]
        assert batches["size"].tolist() == [size, len(data) - size]
    table = kbatch.decode(data)
    assert table.batches["first_record"].tolist() == table.records["batch"].tolist() == [0, 1]
    assert (table.keys(), table.values()) == ([b"k", None], [b"v", None])


def test_leg_r2_uncompressed_messages_are_not_copied() -> None:
    data = np.frombuffer(message_set(ABC), np.uint8)
    assert np.shares_memory(kbatch.decode(data).data, data)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_leg_r3_unused_attribute_bits_are_ignored(codec: str) -> None:
    """LEG-35, LEG-36: bit 3 of magic 0 and bits 4 to 7 of both magics are ignored and not returned."""
    for magic, extra, reported in [(0, 0xF8, 0), (0, 0x08, 0), (1, 0xF0, 0), (1, 0xF8, 8), (1, 0x20, 0), (1, 0x10, 0)]:
        if codec == "none":
            entry = build_message(b"k", b"v", magic=magic, offset=9, attributes=extra)
            bits = reported
        else:
            inner = message_set([(b"k", b"v")], magic=magic, offsets=[9 if magic == 0 else 0])
            entry = build_wrapper(inner, codec=codec, magic=magic, offset=9, attributes=extra)
            bits = reported | 1
        assert offsets(entry) == [9]
        assert kbatch.scan(entry)["attributes"].tolist() == [bits]
        assert kbatch.decode(entry).batches["attributes"].tolist() == [bits]
        # Bits 4 and 5 do not make it a transactional or a control batch (LEG-R24).
        assert offsets_of(kbatch.decode(entry, isolation="read_committed")) == [9]


@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_leg_r4_magic_0_has_no_timestamps(codec: str) -> None:
    """LEG-01, LEG-05, LEG-11: the timestamp is -1, or null in views, and its type is null."""
    pytest.importorskip("pyarrow")
    table = kbatch.decode(build_message_set(ABC, codec=codec, magic=0, base_offset=10, append_time=777))
    assert offsets_of(table) == [10, 11, 12]
    assert table.records["timestamp"].tolist() == [-1] * 3
    assert set(table.batches["max_timestamp"].tolist()) == set(table.batches["base_timestamp"].tolist()) == {-1}
    view = table.to_arrow()
    assert view["timestamp"].to_pylist() == [None] * 3
    assert view["timestampType"].to_pylist() == [TimestampType.NO_TIMESTAMP_TYPE] * 3


@pytest.mark.parametrize("timestamp", [42, -1, -7, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_leg_r5_timestamps_are_returned_as_stored(timestamp: int, attributes: int) -> None:
    """LEG-02, LEG-03, LEG-48: -1 is null, other negative timestamps are values."""
    pytest.importorskip("pyarrow")
    entry = build_message(b"k", b"v", offset=4, timestamp=timestamp, attributes=attributes)
    assert rows_of(entry) == [(4, timestamp, b"k", b"v")]
    view = kbatch.decode(entry).to_arrow(columns=["timestamp", "timestampType"])
    assert view["timestamp"].cast("int64").to_pylist() == [None if timestamp == -1 else timestamp]
    assert view["timestampType"].to_pylist() == [int(attributes > 0)]


@magics
@pytest.mark.parametrize("codec", LEGACY_CODECS)
@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_leg_r6_any_negative_length_is_null(magic: int, codec: str, length: int) -> None:
    messages = [
        build_message(None, b"v", magic=magic, offset=0, key_length=length),
        build_message(b"k", None, magic=magic, offset=1, value_length=length),
        build_message(None, None, magic=magic, offset=2, key_length=length, value_length=length),
    ]
    entry = b"".join(messages)
    if codec != "none":
        entry = build_wrapper(entry, codec=codec, magic=magic, offset=2)
    assert [row[2:] for row in rows_of(entry)] == [(None, b"v"), (b"k", None), (None, None)]


@magics
def test_leg_r6_null_key_with_bytes_is_misread(magic: int) -> None:
    """LEG-32: the key's byte is read as the first byte of the value's length, which is then out of range."""
    entry = build_message(b"k", b"v", magic=magic, offset=50, key_length=-2)
    refused(entry, kbatch.InvalidRecordError, "value length", record=0)


@magics
@pytest.mark.parametrize("codec", LEGACY_CODECS)
@pytest.mark.parametrize("length", [2, 6, 100, 2**31 - 1])
@pytest.mark.parametrize("field", ["key", "value"])
def test_leg_r7_a_key_or_value_beyond_the_message_is_invalid(magic: int, codec: str, length: int, field: str) -> None:
    """LEG-33: one byte too long is invalid, even in a wrapper, where the bytes of the next message follow."""
    if (field, length) == ("key", 2):
        length = 3  # two bytes of the key become part of the value's length, which is huge
    wrong = build_message(b"k", b"v", magic=magic, offset=51, **{f"{field}_length": length})  # type: ignore[arg-type]
    record = 0
    if codec != "none":
        good = build_message(b"k", b"v" * 200, magic=magic, offset=50)
        wrong = build_wrapper(good + wrong + good, codec=codec, magic=magic, offset=52)
        record = 1
    error = refused(wrong, kbatch.InvalidRecordError, f"{field} length is|value length is", record=record)
    assert str(length) in str(error) or field == "key"


@magics
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_leg_r8_bytes_after_the_value_are_ignored(magic: int, codec: str) -> None:
    """LEG-34: they are ignored in wrappers too; the checksum covers them."""
    entry = build_message(b"k", b"v", magic=magic, offset=7, extra=b"xx")
    if codec != "none":
        entry = build_wrapper(entry, codec=codec, magic=magic, offset=7, extra=b"yyy")
    assert rows_of(entry) == [(7, (-1, 1000)[magic], b"k", b"v")]
    changed = entry[:-1] + b"z"
    refused(changed, kbatch.CrcMismatchError, "checksum", offset=7)


@magics
@pytest.mark.parametrize("codec", [4, 5, 6, 7])
def test_leg_r19_zs_r1_unknown_codecs_and_zstd_are_unsupported(magic: int, codec: int) -> None:
    """LEG-37, LEG-38: the attributes alone decide, for any value; the next entry is read."""
    payload = oracle.compress("zstd", message_set(ABC, magic=magic))
    for value in (payload, b"", None):
        entry = build_message(None, value, magic=magic, offset=50, attributes=codec)
        refused(entry, kbatch.UnsupportedFormatError, f"codec id is {codec}, messages of magic {magic} allow 0 to 3")
        assert kbatch.decode(entry, on_error="skip").batches["status"].tolist() == [BatchStatus.UNSUPPORTED]
    # The header can still be read, and the checksum is verified first.
    assert kbatch.scan(entry)["attributes"].tolist() == [codec]
    refused(build_message(None, b"", magic=magic, attributes=codec, crc=1), kbatch.CrcMismatchError, "checksum")


@pytest.mark.parametrize("frame", ["plain", "content size", "linked", "checksums"])
def test_leg_r20_l4_r5_lz4_header_checksum_is_verified_in_magic_1_only(frame: str) -> None:
    """LEG-39 to LEG-42, LEG-46: magic 0 allows any header checksum, magic 1 only the correct one."""
    import lz4.frame

    inner = message_set([(None, b"some value " * 20_000)] * 3)
    options: dict[str, Any] = {
        "plain": {"block_linked": False, "store_size": False},
        "content size": {"block_linked": False, "store_size": True},
        "linked": {"block_linked": True, "store_size": False},
        "checksums": {"block_linked": True, "store_size": True, "content_checksum": True, "block_checksum": True},
    }[frame]
    payload = lz4.frame.compress(inner, **options)
    at = 14 if payload[4] & 0x08 else 6
    right, broken = (oracle.with_lz4_header_checksum(payload, broken=b)[at] for b in (False, True))
    assert right != broken
    for checksum in (right, broken, 0, 255):
        value = payload[:at] + bytes([checksum]) + payload[at + 1 :]
        old, new = (build_message(None, value, magic=m, offset=2, attributes=3) for m in (0, 1))
        assert offsets(old) == [0, 1, 2]
        if checksum == right:
            assert offsets(new) == [0, 1, 2]
        else:
            refused(new, kbatch.CodecError, "lz4")


def test_l4_r5_lz4_frames_of_old_producers_are_read() -> None:
    """Clients of magic 0 write a header with descriptor 60 40 and checksum 1a; the correct checksum is 82."""
    value = build_wrapper(message_set(ABC, magic=0), codec="lz4", magic=0, offset=2)[26:]
    assert value[:7].hex() == "04224d1860401a"
    value = build_wrapper(message_set(ABC), codec="lz4", magic=1, offset=2)[34:]
    assert value[:7].hex() == "04224d18604082"


@magics
@pytest.mark.parametrize("codec", ["snappy", "snappy-raw"])
def test_leg_r21_snappy_is_read_framed_and_raw(magic: int, codec: str) -> None:
    """LEG-43 to LEG-45: xerial framing with one or several chunks, and the raw block that other clients write."""
    contents = [(b"%d" % i, b"value " * 3000) for i in range(20)]
    entry = build_message_set(contents, codec=codec, magic=magic, base_offset=100)
    assert [row[2:] for row in rows_of(entry)] == contents


@wrapped
@magics
def test_leg_r22_leg_r23_leg_r24_the_row_of_a_wrapper_is_completed_by_decoding(magic: int, codec: str) -> None:
    """COL-R7: a scan reads the header; decoding adds the base offset, the record count and the last offset delta."""
    entry = build_message_set(ABC, codec=codec, magic=magic, base_offset=10, timestamps=[50, 70, 60])
    rows = kbatch.scan(entry)
    decoded = kbatch.decode(entry).batches
    assert rows["last_offset"].tolist() == decoded["last_offset"].tolist() == [12]
    assert (rows["base_offset"].tolist(), rows["record_count"].tolist()) == ([-1], [-1])
    assert (decoded["base_offset"].tolist(), decoded["record_count"].tolist()) == ([10], [3])
    assert decoded["last_offset_delta"].tolist() == [2]
    for batches in (rows, decoded):
        (row,) = batches
        assert row["max_timestamp"] == (-1, 70)[magic]
        assert row["base_timestamp"] == -1
        for name in ("producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch"):
            assert row[name] == -1
        assert (row["magic"], row["attributes"], row["size"]) == (magic, oracle.CODECS[codec], len(entry))
        assert row["crc"] == zlib.crc32(entry[16:])
    assert kbatch.decode(build_message_set(ABC, codec=codec, append_time=777)).batches["max_timestamp"] == [777]


def test_leg_r23_errors_give_the_offset_of_the_header() -> None:
    entry = build_wrapper(b"", codec="gzip", offset=77)
    assert "base offset 77" in str(refused(entry, kbatch.InvalidRecordError, "no messages", offset=77))


def test_leg_r24_read_committed_returns_message_sets() -> None:
    """Message sets have no transactions; those before the first open transaction are returned, later ones withheld."""
    old = build_message_set(ABC, codec="gzip", base_offset=10) + build_message(b"k", b"v", offset=13)
    open_one = three(14, attributes=oracle.TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0)
    late = build_message_set(ABC, codec="gzip", base_offset=17)
    table = kbatch.decode(old + open_one + late, isolation="read_committed")
    assert offsets_of(table) == [10, 11, 12, 13]
    assert (table.pending, table.last_stable_offset) == ([(7, 14)], 14)
    assert offsets_of(kbatch.decode(old, isolation="read_committed", aborted=[(-1, 0), (7, 0)])) == [10, 11, 12, 13]


@magics
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_leg_r25_off_r3_records_outside_the_bounds_are_excluded(magic: int, codec: str) -> None:
    data = build_message_set(ABC, codec=codec, magic=magic, base_offset=10)
    data += build_message_set(ABC, codec=codec, magic=magic, base_offset=13, deltas=[0, 2, 7])
    everything = records_of(kbatch.decode(data))
    assert [r.offset for r in everything] == [10, 11, 12, 13, 15, 20]
    for start in (None, 0, *range(9, 23)):
        for stop in (None, 0, *range(9, 23)):
            table = kbatch.decode(data, start_offset=start, stop_offset=stop)
            expected = [
                r for r in everything if (start is None or r.offset >= start) and (stop is None or r.offset < stop)
            ]
            assert records_of(table) == expected
            for i, row in enumerate(table.batches):
                assert row["first_record"] == sum(int(b) < i for b in table.records["batch"])
                if codec != "none":  # the row describes the whole batch, not the selected records
                    assert row["record_count"] == 3


@magics
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_leg_r26_a_truncated_entry_is_partial(magic: int, codec: str) -> None:
    """LEG-29: the entry is truncated at every byte."""
    entry = build_message_set(ABC[:1], codec=codec, magic=magic, base_offset=10)
    for cut in range(len(entry)):
        for on_error in ("raise", "stop", "skip"):
            table = kbatch.decode(BEFORE + entry[:cut], on_error=on_error)  # type: ignore[arg-type]
            assert (offsets_of(table), table.consumed, table.losses) == ([0, 1, 2], len(BEFORE), [])
            assert len(kbatch.scan(BEFORE + entry[:cut])) == 1


@magics
@pytest.mark.parametrize("codec", LEGACY_CODECS)
@pytest.mark.parametrize("base_offset", [0, 1, 100, 2**40])
def test_leg_r27_message_sets_of_kafka_are_read(magic: int, codec: str, base_offset: int) -> None:
    contents: list[tuple[bytes | None, bytes | None]] = [(b"%d" % i, b"v" * i) for i in range(300)]
    stamps = [5000 + i * (-1) ** i for i in range(300)]
    for append_time in (None, 777):
        data = build_message_set(
            contents, codec=codec, magic=magic, base_offset=base_offset, timestamps=stamps, append_time=append_time
        )
        timestamps = [-1] * 300 if magic == 0 else stamps if append_time is None else [append_time] * 300
        assert records_of(kbatch.decode(data)) == [
            Record(base_offset + i, timestamps[i], -1, *contents[i]) for i in range(300)
        ]


@pytest.mark.parametrize(("magic", "size"), [(0, 28), (1, 36)])
def test_leg_r28_the_size_includes_offset_and_length(magic: int, size: int) -> None:
    entry = build_message(b"k", b"v", magic=magic)
    assert len(entry) == size
    assert kbatch.scan(entry)["size"].tolist() == [size]
    table = kbatch.decode(entry)
    assert table.records["key_pos"].tolist() == [(22, 30)[magic]]
    assert table.records["value_pos"].tolist() == [size - 1]


# -- checksums


@magics
@wrapped
def test_crc_r5_a_bad_inner_checksum_is_flagged(magic: int, codec: str) -> None:
    """LEG-28: the wrapper is valid and its records are returned; flagged BAD_INNER_CRC unless crc="skip"."""
    for bad in range(3):
        messages = [build_message(*ABC[i], magic=magic, offset=i, crc=1 if i == bad else None) for i in range(3)]
        entry = build_wrapper(b"".join(messages), codec=codec, magic=magic, offset=2)
        data = BEFORE + entry + AFTER
        for crc, status in (("verify", 7), ("mark", 7), ("skip", 0)):
            for on_error in ("raise", "stop", "skip"):
                table = kbatch.decode(data, crc=crc, on_error=on_error)  # type: ignore[arg-type]
                assert offsets_of(table) == [0, 1, 2, 0, 1, 2, 90]
                assert table.batches["status"].tolist() == [0, status, 0]
                assert table.losses == []
    assert BatchStatus.BAD_INNER_CRC == 7


@magics
def test_crc_r5_the_checksum_of_the_wrapper_takes_precedence(magic: int) -> None:
    """If both checksums are bad, the error names the wrapper: its messages are not read."""
    entry = build_wrapper(build_message(b"k", b"v", magic=magic, crc=1), codec="gzip", magic=magic, offset=50, crc=2)
    refused(entry, kbatch.CrcMismatchError, "checksum")
    table = kbatch.decode(entry, crc="mark")
    assert table.batches["status"].tolist() == [BatchStatus.BAD_CRC]
    assert len(table) == 1


@magics
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_crc_r7_the_checksum_covers_the_message_from_its_magic_on(magic: int, codec: str) -> None:
    """LEG-27: a flipped bit is detected from the checksum on, and not in the offset."""
    entry = build_message_set(ABC[:1], codec=codec, magic=magic, base_offset=50)
    assert struct.unpack_from(">I", entry, 12)[0] == zlib.crc32(entry[16:])
    for at in [*range(8), *range(12, 16), *range(17, len(entry))]:
        changed = bytearray(entry)
        changed[at] ^= 0x10
        if at < 8:
            assert len(kbatch.decode(changed)) == 1
            continue
        stored, summed = struct.unpack_from(">I", changed, 12)[0], zlib.crc32(changed[16:])
        error = refused(bytes(changed), kbatch.CrcMismatchError, "checksum", offset=50)
        assert f"{stored:08x}" in str(error)
        assert f"{summed:08x}" in str(error)


# -- limits


@magics
@wrapped
def test_cod_r8_a_wrapper_above_the_limit_is_an_error(magic: int, codec: str) -> None:
    entry = build_message_set([(None, bytes(1 << 20))] * 3, codec=codec, magic=magic, base_offset=50)
    assert len(entry) < 1 << 18
    data = BEFORE + entry + AFTER
    assert len(kbatch.decode(data, limits=Limits(max_decompressed_bytes=(3 << 20) + 200))) == 7
    limits = Limits(max_decompressed_bytes=(3 << 20) - 1)
    with pytest.raises(kbatch.LimitExceededError) as caught:
        kbatch.decode(data, limits=limits)
    assert (caught.value.position, caught.value.base_offset) == (len(BEFORE), 52)
    table = kbatch.decode(data, limits=limits, on_error="skip")
    assert offsets_of(table) == [0, 1, 2, 90]
    assert table.batches["status"].tolist() == [0, BatchStatus.OVER_LIMIT, 0]
    assert lost(table) == [(len(BEFORE), len(BEFORE) + len(entry))]
    assert table.data.nbytes < 3 << 20


def test_memory_for_many_records_in_few_bytes_follows_their_count() -> None:
    """Each byte holds thousands of messages: rows are allocated for the counted messages, not for the possible ones."""
    entry = build_message_set([(None, None)] * 60_000, codec="gzip", base_offset=0)
    table = kbatch.decode(entry * 3)
    assert len(table) == 180_000
    assert table.batches["record_count"].tolist() == [60_000] * 3
    assert table.records["offset"][-1] == 59_999
