"""Catalogue section 4: control records."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from oracle import CONTROL, build_batch, encode_record, three
from transaction_logs import ABORT, COMMIT, control, control_record, marker, txn

import kbatch
from kbatch.batches.framing import byte_array, scan_part
from kbatch.format import CONTROL_DTYPE, ControlType
from kbatch.transactions import OpenTransaction, TransactionTracker, control_records

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"


class ExpectedRow(NamedTuple):
    kind: int
    version: int
    coordinator_epoch: int
    valid: int


NO_KEY = ExpectedRow(-1, -1, -1, 0)
# CTL-02, 07, 09, 10 and 16 have no file: they are built from the catalogue.
BUILT = {
    "CTL-02": control_record(ABORT, epoch=3),
    "CTL-07": control_record(COMMIT, key=struct.pack(">hhh", 0, COMMIT, 7), epoch=3),
    "CTL-09": control_record(COMMIT, value=None),
    "CTL-10": control_record(COMMIT, value=b"\0\0"),
    "CTL-16": control_record(COMMIT, value=struct.pack(">hiq", 0, 3, 9)),
}
CONTROL_VECTORS = {
    "CTL-01": ExpectedRow(COMMIT, 0, 3, 1),
    "CTL-02": ExpectedRow(ABORT, 0, 3, 1),
    "CTL-03": ExpectedRow(99, 0, -1, 1),
    "CTL-04": ExpectedRow(COMMIT, 1, 3, 1),
    "CTL-05": NO_KEY,
    "CTL-06": NO_KEY,
    "CTL-07": ExpectedRow(COMMIT, 0, 3, 1),
    "CTL-08": NO_KEY,
    "CTL-09": ExpectedRow(COMMIT, 0, -1, 0),
    "CTL-10": ExpectedRow(COMMIT, 0, -1, 0),
    "CTL-11": ExpectedRow(COMMIT, 0, 3, 1),
    "CTL-12": ExpectedRow(COMMIT, 0, -1, 0),
    "CTL-13": ExpectedRow(COMMIT, 0, 3, 1),
    "CTL-14": ExpectedRow(COMMIT, 0, 3, 1),
    "CTL-15": ExpectedRow(ControlType.LEADER_CHANGE, 0, -1, 1),
    "CTL-16": ExpectedRow(COMMIT, 0, 3, 1),
}


def vector(name: str) -> bytes:
    if name in BUILT:
        return control(0, 9, [BUILT[name]], producer_epoch=2)
    return (VECTORS / f"{name}.bin").read_bytes()


def rows_of(data: bytes) -> np.ndarray:
    return control_records(kbatch.decode(data, include_control=True))


def row_fields(rows: np.ndarray) -> list[ExpectedRow]:
    return [ExpectedRow(*row) for row in rows[["type", "version", "coordinator_epoch", "valid"]].tolist()]


def is_open_after(data: bytes, producer_id: int = 9) -> bool:
    """Return whether a transaction that is open before the control batch stays open after it."""
    array = byte_array(data)
    tracker = TransactionTracker([OpenTransaction(producer_id, -5)])
    tracker.add(array, scan_part(array).batches, 0)
    return tracker.result().open == [(producer_id, -5, -1)]


@pytest.mark.parametrize("name", CONTROL_VECTORS)
def test_ctl_vectors_have_their_key_and_value(name: str) -> None:
    """CTL-R1, CTL-R2, CTL-R3: key and value of every vector; the batch decodes for any key and value."""
    rows = rows_of(vector(name))
    count = 3 if name == "CTL-13" else 1
    assert rows.dtype == CONTROL_DTYPE
    assert row_fields(rows) == [CONTROL_VECTORS[name]] * count
    kraft = name == "CTL-15"
    assert rows["producer_id"].tolist() == [-1 if kraft else 9] * count
    assert rows["producer_epoch"].tolist() == [-1 if kraft else 2] * count
    assert rows["record"].tolist() == rows["offset"].tolist() == list(range(count))
    assert rows["batch"].tolist() == [0] * count
    assert rows["timestamp"].tolist() == [1000] * count


@pytest.mark.parametrize("name", CONTROL_VECTORS)
def test_ctl_vectors_end_transactions_by_their_key(name: str) -> None:
    """As in Kafka's consumer, only the key decides whether a record is a marker; the value is ignored."""
    assert is_open_after(vector(name)) == (CONTROL_VECTORS[name].kind not in (ABORT, COMMIT))


@pytest.mark.parametrize("kind", [-7, -1, 7, 99, 32767])
def test_ctl_r2_unknown_types_never_fail(kind: int) -> None:
    data = control(0, 9, [control_record(kind)])
    assert row_fields(rows_of(data)) == [ExpectedRow(kind, 0, -1, 1)]
    assert is_open_after(data)


@pytest.mark.parametrize("kind", ControlType)
def test_ctl_r3_only_a_marker_has_a_value_to_parse(kind: ControlType) -> None:
    is_marker = kind in (ControlType.ABORT, ControlType.COMMIT)
    assert row_fields(rows_of(control(0, 9, [control_record(kind, value=b"x")]))) == [
        ExpectedRow(kind, 0, -1, not is_marker)
    ]
    assert row_fields(rows_of(control(0, 9, [control_record(kind, epoch=-4)]))) == [
        ExpectedRow(kind, 0, -4 if is_marker else -1, 1)
    ]


def test_ctl_r4_only_the_first_record_decides() -> None:
    """Further records are decoded as control records; neither their content nor damage in them matters."""
    first, second = control_record(COMMIT), control_record(ABORT, delta=1)
    both = control(0, 9, [first, second])
    assert [row.kind for row in row_fields(rows_of(both))] == [COMMIT, ABORT]
    assert not is_open_after(both)
    assert is_open_after(control(0, 9, [control_record(99), second]))
    assert not is_open_after(control(0, 9, [first, b"\x80\x80\x80"], record_count=2))
    assert not is_open_after(control(0, 9, [first, second], record_count=2_000_000_000))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x20",
        b"\x80\x80\x80\x80\x80\x80",
        b"\xff\xff\xff\xff\x0f" + bytes(20),
        b"\x01" + bytes(20),
        bytes(20),
        control_record(COMMIT)[:-1],
        b"\x80\x80\x80\x80\x08" + control_record(COMMIT),
    ],
    ids=["empty", "cut", "endless length", "length -2^31", "length -1", "length 0", "short", "long length"],
)
@pytest.mark.parametrize("count", [1, 2, 2**31 - 1, 0, -1])
def test_ctl_r4_a_batch_with_an_unreadable_first_record_is_not_a_marker(payload: bytes, count: int) -> None:
    good = marker(1, 8, COMMIT)
    broken = build_batch(payload=payload, attributes=CONTROL, producer_id=9, record_count=count)
    assert is_open_after(broken + good)
    assert is_open_after(good + broken)
    assert not is_open_after(broken + good, 8)


def test_one_record_must_fill_its_batch() -> None:
    """Kafka's iterator checks this at the last record (CNT-R4); further records of the count are not checked."""
    payload = control_record(COMMIT) + b"rest"
    assert is_open_after(control(0, 9, [payload], record_count=1))
    assert not is_open_after(control(0, 9, [payload], record_count=2))


def test_var_r2_bits_of_the_length_beyond_32_are_dropped() -> None:
    record = control_record(COMMIT)
    assert record[0] < 0x80
    for last in (0x00, 0x10, 0x70):
        wide = bytes([record[0] | 0x80, 0x80, 0x80, 0x80, last]) + record[1:]
        for records in ([wide], [wide, control_record(ABORT, delta=1)]):
            assert not is_open_after(control(0, 9, records))


def test_the_length_of_the_first_record_may_have_one_to_five_bytes() -> None:
    """Headers of the first record are ignored."""
    for size in (1, 40, 70, 9000, 1 << 20):
        record = encode_record(0, 0, struct.pack(">hh", 0, COMMIT), bytes(size), [(b"h", b"v")])
        assert not is_open_after(control(0, 9, [record, control_record(ABORT, delta=1)]))
        assert not is_open_after(control(0, 9, [record]))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "snappy-raw", "lz4", "zstd"])
def test_att_r5_compressed_control_batches_are_read(codec: str) -> None:
    uncompressed = marker(0, 1, ABORT)
    compressed = control(1, 9, [control_record(COMMIT, epoch=6), control_record(ABORT, delta=1)], codec=codec)
    data = uncompressed + compressed + marker(3, 2, ABORT)
    assert row_fields(rows_of(data)) == [
        ExpectedRow(0, 0, 0, 1),
        ExpectedRow(1, 0, 6, 1),
        ExpectedRow(0, 0, 0, 1),
        ExpectedRow(0, 0, 0, 1),
    ]
    for producer_id in (1, 2, 9):
        assert not is_open_after(data, producer_id)
    assert is_open_after(control(0, 9, [], payload=b"no such stream", record_count=1, codec=codec))
    # TXN-R10: a batch without records is not a marker, whatever its payload has.
    assert is_open_after(control(0, 9, [control_record(ABORT)], record_count=0, codec=codec))


def test_cod_r8_a_compressed_control_batch_has_a_limit() -> None:
    bomb = control(0, 9, [control_record(COMMIT, value=bytes(1 << 20))], codec="zstd")
    array = byte_array(bomb + marker(1, 8, COMMIT))
    tracker = TransactionTracker([OpenTransaction(9, 1), OpenTransaction(8, 2)], limits=kbatch.Limits(1 << 16))
    tracker.add(array, scan_part(array).batches, 0)
    assert tracker.result().open == [(9, 1, -1)]


def test_att_r3_a_batch_with_an_unknown_codec_is_not_a_marker() -> None:
    assert is_open_after(control(0, 9, [control_record(COMMIT)], attributes=0x35))


def test_emp_r2_an_empty_control_batch_is_not_a_marker() -> None:
    """EMP-04: an empty control batch is neither an abort nor a commit."""
    data = (VECTORS / "EMP-04.bin").read_bytes()
    assert len(rows_of(data)) == 0
    assert is_open_after(data)


def test_ctl_r7_kraft_control_records_are_decoded(golden: Path) -> None:
    data = (golden / "logs" / "kraft-control-0" / "00000000000000000000.log").read_bytes()
    rows = rows_of(data)
    assert [ControlType(kind).name for kind in rows["type"].tolist()] == [
        "LEADER_CHANGE",
        "SNAPSHOT_HEADER",
        "KRAFT_VERSION",
        "KRAFT_VOTERS",
        "SNAPSHOT_FOOTER",
    ]
    assert rows["valid"].all()
    assert (rows["coordinator_epoch"] == -1).all()
    assert is_open_after(data)


def test_ctl_r8_kraft_snapshot_files_are_decoded() -> None:
    """The file has a header, with version and voters in the same batch, data with offsets from 0, and a footer."""

    def kraft(offset: int, *kinds: ControlType) -> bytes:
        records = [encode_record(i, key=struct.pack(">hh", 0, kind), value=b"") for i, kind in enumerate(kinds)]
        return build_batch(records, base_offset=offset, attributes=CONTROL)

    first = [ControlType.SNAPSHOT_HEADER, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS]
    data = kraft(0, *first) + three(3) + kraft(6, ControlType.SNAPSHOT_FOOTER)
    assert rows_of(data)["type"].tolist() == [*first, ControlType.SNAPSHOT_FOOTER]
    assert kbatch.decode(data, include_control=True).records["offset"].tolist() == list(range(7))
    assert kbatch.decode(data).records["offset"].tolist() == [3, 4, 5]


def test_control_records_may_be_among_data_records() -> None:
    """Row numbers refer to `table.records`, also in a slice, a selection and a trimmed table."""
    data = three(0) + marker(3, 7, ABORT) + txn(4, 8, 2) + three(6, attributes=0) + control(9, -1, [], record_count=0)
    data += control(10, 9, [control_record(COMMIT, epoch=2), control_record(5, delta=1)], producer_epoch=4) + three(12)
    table = kbatch.decode(data, include_control=True)
    rows = control_records(table)
    assert rows["offset"].tolist() == [3, 10, 11]
    assert rows["type"].tolist() == [ABORT, COMMIT, 5]
    assert rows["producer_id"].tolist() == [7, 9, 9]
    assert rows["producer_epoch"].tolist() == [-1, 4, 4]
    assert rows["batch"].tolist() == [1, 5, 5]
    for part in (
        table,
        table[2:],
        table[table.records["offset"] > 3],
        table[[0, 3, 9, 10, 11]],
        kbatch.decode(data, include_control=True, start_offset=2, stop_offset=11),
    ):
        rows = control_records(part)
        expected = [offset for offset in part.records["offset"].tolist() if offset in (3, 10, 11)]
        assert part.records["offset"][rows["record"]].tolist() == rows["offset"].tolist() == expected


def test_a_table_without_control_records_returns_no_rows() -> None:
    for table in (
        kbatch.decode(b"", include_control=True),
        kbatch.decode(three(), include_control=True),
        kbatch.decode(three() + marker(3, 7, ABORT)),
    ):
        rows = control_records(table)
        assert rows.dtype == CONTROL_DTYPE
        assert len(rows) == 0


def test_a_damaged_control_batch_returns_no_rows() -> None:
    bad = bytearray(marker(3, 7, ABORT))
    bad[-1] ^= 1
    table = kbatch.decode(three() + bytes(bad) + marker(4, 7, COMMIT), include_control=True, on_error="skip")
    assert control_records(table)["offset"].tolist() == [4]
