"""Catalogue sections 2 and 4: the batch header of magic 2, timestamps, offsets, counts, empty and control batches."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import oracle
import pytest
from oracle import (
    CONTROL,
    DELETE_HORIZON,
    INT32_MAX,
    INT64_MAX,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    build_batch,
    encode_record,
    three,
)
from tables import assert_accounted, batches_of, lost, offsets_of, records_of

import kbatch
from kbatch import BatchStatus, Codec
from kbatch.kernels.scan import scan_headers, survey

CODECS = ["none", "gzip", "snappy", "snappy-raw", "lz4", "zstd"]
Crc = Literal["verify", "mark", "skip"]


def timestamps_of(data: bytes) -> list[int]:
    return kbatch.decode(data).records["timestamp"].tolist()


def assert_refused(batch: bytes, kind: type[kbatch.KbatchError], status: BatchStatus, **options: Any) -> None:
    """Check that the error has the position of the batch, and that on_error="skip" loses only this batch."""
    before, after = three(0), three(900)
    data = before + batch + after
    with pytest.raises(kind) as caught:
        kbatch.decode(data, **options)
    assert type(caught.value) is kind
    assert caught.value.position == len(before)
    assert caught.value.base_offset == struct.unpack_from(">q", batch)[0]
    assert caught.value.source is None
    table = kbatch.decode(data, on_error="skip", **options)
    assert offsets_of(table) == [0, 1, 2, 900, 901, 902]
    assert lost(table) == [(len(before), len(before) + len(batch))]
    assert table.batches["status"].tolist() == [BatchStatus.OK, status, BatchStatus.OK]
    assert table.batches["first_record"].tolist() == [0, 3, 3]
    assert_accounted(table, len(data))


def assert_invalid(batch: bytes, **options: Any) -> None:
    assert_refused(batch, kbatch.InvalidRecordError, BatchStatus.INVALID, **options)


# -- 2.1 attributes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("flags", [0, LOG_APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON, 0x58])
def test_att_r1_attribute_bits_have_their_documented_meaning(codec: str, flags: int) -> None:
    table = kbatch.decode(three(7, codec=codec, attributes=flags, producer_id=5, producer_epoch=1))
    assert offsets_of(table) == [7, 8, 9]
    attributes = int(table.batches["attributes"][0])
    assert attributes == flags | oracle.CODECS[codec]
    assert Codec(attributes & 7) == oracle.CODECS[codec]


@pytest.mark.parametrize("bits", [0x80, 0x7F00, -0x8000, -0x80])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_att_r2_unknown_bits_are_kept_and_ignored(bits: int, codec: str) -> None:
    table = kbatch.decode(three(attributes=bits, codec=codec))
    assert offsets_of(table) == [0, 1, 2]
    assert table.batches["attributes"].tolist() == [bits | oracle.CODECS[codec]]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_att_r3_unknown_codec_is_unsupported(codec: int) -> None:
    assert_refused(three(50, attributes=codec, producer_id=9), kbatch.UnsupportedFormatError, BatchStatus.UNSUPPORTED)
    empty = build_batch(attributes=codec, base_offset=50)
    assert_refused(empty, kbatch.UnsupportedFormatError, BatchStatus.UNSUPPORTED)
    assert kbatch.scan(empty)["attributes"].tolist() == [codec]
    # The same in a run of compressed batches, which takes another code path.
    mixed = three(0, codec="gzip") + empty + three(90, codec="gzip")
    assert offsets_of(kbatch.decode(mixed, on_error="skip")) == [0, 1, 2, 90, 91, 92]


@pytest.mark.parametrize("flags", [CONTROL, CONTROL | TRANSACTIONAL])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_att_r4_r5_control_and_transactional_are_independent(flags: int, codec: str) -> None:
    """A control batch may be compressed, and may be non-transactional."""
    marker = build_batch([encode_record(key=b"\0\0\0\1", value=bytes(6))], codec=codec, attributes=flags)
    table = kbatch.decode(marker, include_control=True)
    assert table.key(0) == b"\0\0\0\1"
    assert int(table.batches["attributes"][0]) & 0x30 == flags


def test_att_r4_transactional_batches_return_their_records() -> None:
    data = three(attributes=TRANSACTIONAL, producer_id=4, producer_epoch=0, base_sequence=0)
    assert offsets_of(kbatch.decode(data)) == [0, 1, 2]


# -- 2.2 timestamps


def test_ts_r1_timestamps_are_base_plus_delta() -> None:
    assert timestamps_of(three()) == [1000, 1005, 1009]
    wraps = build_batch([encode_record(timestamp_delta=1)], base_timestamp=INT64_MAX)
    assert timestamps_of(wraps) == [-INT64_MAX - 1]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_ts_r2_log_append_time_is_max_timestamp(codec: str) -> None:
    batch = three(attributes=LOG_APPEND_TIME, max_timestamp=7777, codec=codec)
    assert timestamps_of(batch) == [7777] * 3
    assert timestamps_of(three(attributes=LOG_APPEND_TIME, max_timestamp=-1)) == [-1] * 3


def test_ts_r3_negative_timestamps_are_returned_as_stored() -> None:
    records = [encode_record(0, 0), encode_record(1, -7), encode_record(2, 1)]
    assert timestamps_of(build_batch(records, base_timestamp=-1)) == [-1, -8, 0]


def test_ts_r4_max_timestamp_is_not_checked() -> None:
    table = kbatch.decode(three(max_timestamp=3))
    assert table.records["timestamp"].tolist() == [1000, 1005, 1009]
    assert table.batches["max_timestamp"].tolist() == [3]


def test_ts_r5_delete_horizon_is_the_base_of_deltas() -> None:
    batch = build_batch([encode_record(timestamp_delta=-4000)], attributes=DELETE_HORIZON, base_timestamp=5000)
    table = kbatch.decode(batch)
    assert table.records["timestamp"].tolist() == [1000]
    assert table.batches["base_timestamp"].tolist() == [5000]


def test_ts_r6_delete_horizon_does_not_change_log_append_time() -> None:
    batch = three(attributes=DELETE_HORIZON | LOG_APPEND_TIME, base_timestamp=5000, max_timestamp=7777)
    table = kbatch.decode(batch)
    assert table.records["timestamp"].tolist() == [7777] * 3
    assert table.batches["base_timestamp"].tolist() == [5000]


def test_ts_r7_empty_batch_keeps_its_timestamps() -> None:
    table = kbatch.decode(build_batch(base_timestamp=-1, max_timestamp=1234))
    assert table.batches["base_timestamp"].tolist() == [-1]
    assert table.batches["max_timestamp"].tolist() == [1234]


# -- 2.3 offsets and counts


def test_off_r1_next_offset_is_from_the_header() -> None:
    """Compaction may have removed the last records, so the number of rows does not give the next offset."""
    batch = build_batch([encode_record(0), encode_record(3)], last_offset_delta=9)
    table = kbatch.decode(batch)
    assert offsets_of(table) == [0, 3]
    row = table.batches[0]
    assert int(row["base_offset"]) + int(row["last_offset_delta"]) + 1 == 10


@pytest.mark.parametrize(
    ("deltas", "last"),
    [([2, 1, 1], 2), ([-1], 0), ([50], 0), ([0, 1, 2], 0), ([0, 1, 2], -5), ([-(2**31), INT32_MAX], 1)],
)
@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_off_r2_offset_deltas_are_used_as_stored(deltas: list[int], last: int, codec: str) -> None:
    records = [encode_record(delta) for delta in deltas]
    table = kbatch.decode(build_batch(records, base_offset=100, last_offset_delta=last, codec=codec))
    assert offsets_of(table) == [100 + delta for delta in deltas]
    assert table.batches["last_offset_delta"].tolist() == [last]


def test_off_r3_records_before_the_start_offset_are_dropped() -> None:
    """FCH-R3: a response begins with a complete batch, which may contain earlier offsets."""
    batch = build_batch([encode_record(i, key=b"%d" % i) for i in range(6)])
    table = kbatch.decode(batch, start_offset=3)
    assert offsets_of(table) == [3, 4, 5]
    assert [table.key(i) for i in range(3)] == [b"3", b"4", b"5"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [-1, -(2**31)])
def test_cnt_r1_negative_count_is_invalid(codec: str, count: int) -> None:
    assert_invalid(three(20, codec=codec, record_count=count))


@pytest.mark.parametrize("codec", CODECS)
def test_cnt_r2_the_payload_of_a_batch_without_records_is_not_read(codec: str) -> None:
    for payload in (None, b"", b"no stream of any kind"):
        table = kbatch.decode(three(20, codec=codec, record_count=0, payload=payload) + three(30))
        assert offsets_of(table) == [30, 31, 32]
        assert table.batches["status"].tolist() == [0, 0]
        assert table.batches["first_record"].tolist() == [0, 0]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_cnt_r3_a_count_that_differs_from_the_records_is_invalid(codec: str, count: int) -> None:
    assert_invalid(three(20, codec=codec, record_count=count))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("extra", [b"\0", b"\0\0", encode_record(3, key=b"k")])
def test_cnt_r4_bytes_after_the_last_record_are_invalid(codec: str, extra: bytes) -> None:
    records = [encode_record(i, key=b"k") for i in range(3)]
    payload = oracle.compress(codec, b"".join(records) + extra)
    assert_invalid(build_batch(records, codec=codec, payload=payload, base_offset=20))


def test_cnt_r5_count_and_last_offset_delta_are_not_compared() -> None:
    assert offsets_of(kbatch.decode(three(last_offset_delta=INT32_MAX))) == [0, 1, 2]


def test_cnt_r6_checksum_comes_before_the_count() -> None:
    stale = oracle.with_crc(three(20, record_count=2), oracle.crc32c(three(20)[21:]))
    assert_refused(stale, kbatch.CrcMismatchError, BatchStatus.BAD_CRC)
    with pytest.raises(kbatch.CrcMismatchError, match="its records cannot be decoded either"):
        kbatch.decode(stale, crc="mark")
    with pytest.raises(kbatch.InvalidRecordError):
        kbatch.decode(stale, crc="skip")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [INT32_MAX, 2**24, 100_000])
def test_cnt_r7_a_count_above_what_the_bytes_can_hold_is_invalid(codec: str, count: int) -> None:
    assert_invalid(three(20, codec=codec, record_count=count))
    with pytest.raises(kbatch.KbatchError):
        kbatch.decode(build_batch(codec=codec, record_count=count))


HOSTILE = """
import re, sys, pathlib
import kbatch
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) << 10
for name in sys.argv[1:]:
    data = pathlib.Path(name).read_bytes()
    before = peak()
    for on_error in ("raise", "skip"):
        try:
            kbatch.decode(data, on_error=on_error)
        except kbatch.KbatchError:
            pass
    used = peak() - before
    assert used < 48 << 20, f"{name} took {used} bytes"
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads peak memory from /proc")
def test_cnt_r7_declared_counts_and_lengths_are_not_allocated(golden: Path, tmp_path: Path) -> None:
    """CNT-R7, SN-R7, L4-R6, ZS-R6, FRM-R6, HDR-R1: memory is bounded by the input, not by declared counts or lengths.

    COL-R5: the record count of the header is a hint, bounded by the size of the payload.
    """
    import subprocess

    names = ["CNT-06", "CNT-16", "SN-07", "SN-08", "SN-14", "L4-20", "ZS-11", "ZS-08", "ZS-09", "FRM-15", "HDR-07G"]
    made = {
        "count": three(record_count=INT32_MAX, codec="zstd"),
        "length": struct.pack(">qiib", 0, INT32_MAX, -1, 2) + bytes(100),
        "value": build_batch([encode_record(value=b"v", value_length=INT32_MAX)]),
        "headers": build_batch([encode_record(header_count=INT32_MAX)]),
        # One small batch may allocate a little; a thousand of them must not add up.
        "many": b"".join(three(i, codec="gzip", record_count=2**24) for i in range(1000)),
    }
    for name, data in made.items():
        (tmp_path / name).write_bytes(data)
    files = [str(golden / "vectors" / f"{name}.bin") for name in names] + [str(tmp_path / name) for name in made]
    run = subprocess.run([sys.executable, "-c", HOSTILE, *files], capture_output=True, text=True, check=False)
    assert run.stdout == "done\n", run.stderr


def test_emp_r1_empty_batches_have_rows_and_offsets() -> None:
    """EMP-01: an empty batch has no records, but has a row and advances the next offset."""
    empty = build_batch(base_offset=20, last_offset_delta=4, producer_id=3, producer_epoch=1, base_sequence=8)
    table = kbatch.decode(empty + three(25))
    assert offsets_of(table) == [25, 26, 27]
    assert table.batches["record_count"].tolist() == [0, 3]
    assert table.batches["base_offset"].tolist() == [20, 25]
    assert table.batches["last_offset_delta"].tolist() == [4, 2]
    assert table.batches["base_sequence"].tolist() == [8, -1]
    assert table.records["batch"].tolist() == [1, 1, 1]
    assert kbatch.decode(empty).consumed == 61


def test_emp_r2_an_empty_control_batch_has_a_row() -> None:
    data = three(0) + build_batch(base_offset=3, attributes=CONTROL | TRANSACTIONAL) + three(4)
    for include_control in (False, True):
        table = kbatch.decode(data, include_control=include_control)
        assert offsets_of(table) == [0, 1, 2, 4, 5, 6]
        assert len(table.batches) == 3


# -- 2.4 producer fields


def test_seq_r1_r4_sequences_follow_from_the_columns() -> None:
    """SEQ-01, SEQ-02, SEQ-04: sequences advance by offset delta, wrap from INT32_MAX to 0, and are never negative."""
    expected = {INT32_MAX - 1: [INT32_MAX - 1, INT32_MAX, 0], 10: [10, 11, 12], -2: [-1] * 3, -1: [-1] * 3}
    for base, sequences in expected.items():
        table = kbatch.decode(three(40, base_sequence=base, producer_id=1))
        assert table.batches["base_sequence"].tolist() == [base]
        assert [record.sequence for record in records_of(table)] == sequences
    gap = build_batch([encode_record(0), encode_record(5)], base_sequence=10, last_offset_delta=9)
    assert [record.sequence for record in records_of(kbatch.decode(gap))] == [10, 15]


@pytest.mark.parametrize("fields", [(7, 3, -1), (-1, -1, 5), (7, -1, 5), (INT64_MAX, 32767, INT32_MAX), (-9, -9, -9)])
def test_seq_r5_r7_producer_fields_are_returned_as_stored(fields: tuple[int, int, int]) -> None:
    producer_id, epoch, base_sequence = fields
    batch = three(producer_id=producer_id, producer_epoch=epoch, base_sequence=base_sequence, partition_leader_epoch=-1)
    row = kbatch.decode(batch).batches[0]
    assert (int(row["producer_id"]), int(row["producer_epoch"]), int(row["base_sequence"])) == fields
    assert int(row["partition_leader_epoch"]) == -1


# -- 4 control batches


@pytest.mark.parametrize("key", [None, b"", b"\0\0", b"\0\0\0\x63", b"\xff\xff\0\1", b"\0\1\0\0", b"\0\0\0\1 and more"])
def test_ctl_r1_r2_control_batches_are_decoded_whatever_their_key(key: bytes | None) -> None:
    """Decoding does not interpret the control key; the batch is valid with any key."""
    marker = build_batch([encode_record(key=key, value=b"")], attributes=CONTROL | TRANSACTIONAL)
    table = kbatch.decode(marker, include_control=True)
    assert table.key(0) == key
    assert len(kbatch.decode(marker)) == 0


def test_ctl_r4_a_control_batch_may_have_several_records() -> None:
    records = [encode_record(i, key=b"\0\0\0\1", value=bytes(6)) for i in range(3)]
    table = kbatch.decode(build_batch(records, attributes=CONTROL), include_control=True)
    assert offsets_of(table) == [0, 1, 2]
    assert (table.batches["attributes"][table.records["batch"]] & CONTROL != 0).all()


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_ctl_r5_control_records_are_returned_only_on_request(codec: str) -> None:
    marker = build_batch([encode_record(key=b"\0\0\0\1", value=bytes(6))], base_offset=3, attributes=CONTROL)
    data = three(0, codec=codec) + marker + three(4, codec=codec)
    assert offsets_of(kbatch.decode(data)) == [0, 1, 2, 4, 5, 6]
    assert offsets_of(kbatch.decode(data, include_control=True)) == [0, 1, 2, 3, 4, 5, 6]
    withheld = kbatch.decode(data)
    assert withheld.batches["base_offset"].tolist() == [0, 3, 4]
    assert withheld.batches["first_record"].tolist() == [0, 3, 3]
    assert withheld.consumed == len(data)


def test_ctl_r5_checksums_of_control_batches_are_verified() -> None:
    marker = build_batch([encode_record(key=b"\0\0\0\1", value=bytes(6))], base_offset=3, attributes=CONTROL)
    with pytest.raises(kbatch.CrcMismatchError):
        kbatch.decode(oracle.with_crc(marker, 0))


def test_ctl_r7_kraft_control_batches_are_decoded(golden: Path) -> None:
    """Leader change, snapshot header and footer, version, voters: control batches without transactions."""
    data = (golden / "logs" / "kraft-control-0" / "00000000000000000000.log").read_bytes()
    table = kbatch.decode(data, include_control=True)
    kinds = [struct.unpack(">hh", table.key(i) or b"")[1] for i in range(len(table))]
    assert sorted(kinds) == [2, 3, 4, 5, 6]
    assert (table.batches["attributes"] & TRANSACTIONAL == 0).all()
    assert (table.batches["producer_id"] == -1).all()
    assert len(kbatch.decode(data)) == 0


def test_the_header_of_every_batch_is_in_its_row() -> None:
    """COL-R3: unsigned checksum, 64 bits of producer id, attributes as stored."""
    batch = three(
        123456789012,
        partition_leader_epoch=17,
        attributes=TRANSACTIONAL,
        last_offset_delta=5,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_009,
        producer_id=4_000_000_000,
        producer_epoch=12,
        base_sequence=99,
    )
    (have,) = batches_of(kbatch.decode(batch))
    assert have == oracle.decode(batch).batches[0]
    assert have.producer_id == 4_000_000_000


@pytest.mark.parametrize("magic", [0, 1])
def test_leg_r1_a_message_has_no_fields_of_a_producer(magic: int) -> None:
    """Magic 0 and 1 store no producer, sequence or leader epoch: all are -1, as for a batch without them."""
    row = kbatch.scan(oracle.build_message(b"k", b"v", magic=magic, offset=5, timestamp=7))[0]
    fields = ["producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch", "base_timestamp"]
    assert row[fields].tolist() == (-1,) * 5
    assert row[["base_offset", "last_offset", "last_offset_delta", "record_count"]].tolist() == (5, 5, 0, 1)
    assert row["max_timestamp"] == (7 if magic else -1)


def test_rows_outside_of_the_requested_range_are_not_written() -> None:
    """The kernel fills rows from `first` up to `end`, also if the bytes contain more batches."""
    data = np.frombuffer(oracle.build_batch([oracle.encode_record()]) * 10, np.uint8)
    rows = np.zeros(8, kbatch.BATCH_DTYPE)
    scanned = scan_headers(data, rows, 2, 5, 0, 0)
    assert (scanned.rows, scanned.position) == (3, 3 * len(data) // 10)
    assert (rows["size"] > 0).tolist() == [False, False, True, True, True, False, False, False]
    rows.flags.writeable = False
    with pytest.raises((ValueError, BufferError, TypeError)):
        scan_headers(data, rows, 0, 1, 0, 0)
    assert survey(rows[2:5], False)[0] == 3
