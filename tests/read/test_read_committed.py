"""isolation="read_committed" in `decode` and `Log.tables`: Kafka's consumer returns and withholds the same records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from golden_logs import GOLDEN, TXN_FACTS, TXN_LOG
from oracle import build_batch, three
from tables import assert_accounted, lost, offsets_of

import kbatch

VECTORS = sorted((GOLDEN / "vectors" / "txn").glob("TXN-*.json"))
TRANSACTIONAL = oracle.TRANSACTIONAL
ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


def data_batch(offset: int, producer_id: int) -> bytes:
    return three(offset, producer_id=producer_id, attributes=TRANSACTIONAL)


def marker(offset: int, producer_id: int, key: bytes) -> bytes:
    record = oracle.encode_record(key=key, value=bytes(6))
    return build_batch([record], base_offset=offset, producer_id=producer_id, attributes=TRANSACTIONAL | oracle.CONTROL)


def committed(data: bytes, **options: Any) -> kbatch.RecordTable:
    return kbatch.decode(data, isolation="read_committed", **options)


@pytest.mark.parametrize("path", VECTORS, ids=[path.stem for path in VECTORS])
def test_fetch_responses_return_what_kafkas_consumer_returns(path: Path) -> None:
    """TXN-R1 to TXN-R14: the offsets returned, and the next offset to fetch (TXN-R11)."""
    case = json.loads(path.read_text())
    aborted = case["aborted"]
    table = kbatch.decode(
        bytes.fromhex(case["hex"]),
        isolation="read_committed" if case["isolation"] else "read_uncommitted",
        aborted=None if aborted is None else [tuple(pair) for pair in aborted],
        start_offset=case["fetchOffset"],
    )
    assert offsets_of(table) == case["offsets"]
    assert int(table.batches["last_offset"][-1]) + 1 == case["nextOffset"]
    assert table.pending == []
    assert table.last_stable_offset is None


def test_there_are_vectors() -> None:
    assert len(VECTORS) >= 15


class TestGoldenLog:
    def data(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(TXN_LOG.glob("*.log")))

    @pytest.mark.parametrize("max_bytes", [1, 4096, 64 << 20])
    def test_tables_of_any_size_return_the_committed_records(self, max_bytes: int) -> None:
        """A marker may be in a later table or segment than the data of its transaction (TXN-R15, LSO-R2)."""
        tables = list(kbatch.Log(TXN_LOG).tables(isolation="read_committed", max_bytes=max_bytes))
        assert [offset for table in tables for offset in offsets_of(table)] == TXN_FACTS["readCommittedOffsets"]
        expected = [(int(producer), first) for producer, first in TXN_FACTS["open"].items()]
        assert all(table.pending == expected for table in tables)
        assert {table.last_stable_offset for table in tables} == {TXN_FACTS["lastStableOffset"]}

    def test_any_offset_range_returns_its_committed_records(self) -> None:
        rng = np.random.default_rng(7)
        log = kbatch.Log(TXN_LOG)
        for start, stop in np.sort(rng.integers(0, 380, (100, 2))).tolist():
            tables = log.tables(isolation="read_committed", start_offset=start, stop_offset=stop, max_bytes=2048)
            have = [offset for table in tables for offset in offsets_of(table)]
            assert have == [offset for offset in TXN_FACTS["readCommittedOffsets"] if start <= offset < stop]

    def test_markers_in_the_input_decide_transactions(self) -> None:
        table = committed(self.data())
        assert offsets_of(table) == TXN_FACTS["readCommittedOffsets"]
        assert table.pending == [(1002, 362), (1004, 367)]
        assert table.last_stable_offset == 362
        assert table.consumed == len(self.data())

    def test_an_aborted_list_decides_without_markers(self) -> None:
        """With the aborted list nothing is withheld: a broker sends no data beyond its last stable offset."""
        pairs = [(entry["producerId"], entry["firstOffset"]) for entry in TXN_FACTS["aborted"]]
        every = offsets_of(kbatch.decode(self.data()))
        expected = [offset for offset in every if offset in set(TXN_FACTS["readCommittedOffsets"]) or offset >= 362]
        expected = [offset for offset in expected if offset != 366]
        table = committed(self.data(), aborted=pairs[::-1] + pairs[:3])
        assert offsets_of(table) == expected
        assert table.pending == []
        rows = np.array(
            [(entry["producerId"], entry["firstOffset"], entry["lastOffset"], -1) for entry in TXN_FACTS["aborted"]],
            kbatch.ABORTED_DTYPE,
        )
        assert offsets_of(committed(self.data(), aborted=rows)) == expected

    def test_excluded_batches_keep_their_rows_with_a_status(self) -> None:
        table = committed(self.data())
        aborted = table.batches["status"] == kbatch.BatchStatus.ABORTED
        ranges = {(entry["producerId"], entry["firstOffset"], entry["lastOffset"]) for entry in TXN_FACTS["aborted"]}
        for row in table.batches[aborted]:
            within = [r for r in ranges if r[0] == row["producer_id"] and r[1] <= row["base_offset"] <= r[2]]
            assert len(within) == 1
            assert row["base_offset"] + 0 not in offsets_of(table)
        assert aborted.sum() > 13

    def test_control_records_are_returned_on_request(self) -> None:
        table = committed(self.data(), include_control=True)
        rows = kbatch.control_records(table)
        assert sorted(set(offsets_of(table)) - set(TXN_FACTS["readCommittedOffsets"])) == rows["offset"].tolist()
        commits = {entry["markerOffset"] for entry in TXN_FACTS["committed"]}
        aborts = {entry["lastOffset"] for entry in TXN_FACTS["aborted"]}
        for row in rows:
            assert row["type"] == (kbatch.ControlType.COMMIT if row["offset"] in commits else kbatch.ControlType.ABORT)
        # Offset 156 is the marker of a transaction that wrote nothing here (TXI-R3).
        assert {offset for offset in commits | aborts if offset < 362} | {156} == set(rows["offset"].tolist())

    def test_a_log_may_be_read_from_any_segment(self, tmp_path: Path) -> None:
        """TXI-R6: a transaction that began in a deleted segment is decided by its marker."""
        directory = tmp_path / "txn-0"
        shutil.copytree(TXN_LOG, directory, copy_function=shutil.copyfile)
        (directory / f"{0:020d}.log").unlink()
        tables = kbatch.Log(directory).tables(isolation="read_committed")
        have = [offset for table in tables for offset in offsets_of(table)]
        assert have == [offset for offset in TXN_FACTS["readCommittedOffsets"] if offset >= 186]


def test_records_after_an_open_transaction_are_withheld() -> None:
    """LSO-R1: all records from the first undecided transaction on are withheld, for every producer."""
    data = three(0) + data_batch(3, 7) + three(6) + data_batch(9, 8) + marker(12, 8, COMMIT)
    table = committed(data)
    assert offsets_of(table) == [0, 1, 2]
    assert table.pending == [(7, 3)]
    assert table.last_stable_offset == 3
    assert offsets_of(committed(data + marker(13, 7, COMMIT))) == list(range(12))
    assert offsets_of(committed(data + marker(13, 7, ABORT))) == [0, 1, 2, *range(6, 12)]


def test_aborted_batches_are_not_decompressed() -> None:
    """An unreadable payload is not an error if its transaction was aborted; its checksum is still verified."""
    broken = build_batch(
        payload=b"no such stream",
        base_offset=3,
        producer_id=7,
        attributes=TRANSACTIONAL | 1,
        record_count=3,
        last_offset_delta=2,
    )
    data = three(0) + broken + marker(6, 7, ABORT) + three(7)
    with pytest.raises(kbatch.CodecError):
        kbatch.decode(data)
    assert offsets_of(committed(data)) == [0, 1, 2, 7, 8, 9]


def test_an_aborted_batch_with_a_bad_checksum_returns_no_records() -> None:
    bad = bytearray(data_batch(3, 7))
    bad[-2] ^= 1
    data = three(0) + bytes(bad) + data_batch(6, 7) + marker(9, 7, ABORT) + three(10)
    assert offsets_of(committed(data, crc="mark")) == [0, 1, 2, 10, 11, 12]
    assert offsets_of(committed(data, crc="skip")) == [0, 1, 2, 10, 11, 12]
    with pytest.raises(kbatch.CrcMismatchError):
        committed(data)
    table = committed(data, on_error="skip")
    assert offsets_of(table) == [0, 1, 2, 10, 11, 12]
    assert len(lost(table)) == 1


@pytest.mark.parametrize("bit", range(64, 8 * 61, 3))
def test_a_flipped_bit_withholds_only_its_batch(bit: int) -> None:
    """A damaged header must not open a transaction that never ends; no checksum covers the base offset."""
    first = three(0)
    bad = bytearray(three(3))
    bad[bit // 8] ^= 1 << bit % 8
    data = first + bytes(bad) + three(6) + data_batch(9, 7) + marker(12, 7, COMMIT)
    table = committed(data, on_error="skip")
    kept = offsets_of(table)
    assert [offset for offset in kept if offset < 3 or offset >= 6][:9] == [0, 1, 2, *range(6, 12)]
    assert table.pending == []


def test_markers_after_damage_decide_transactions() -> None:
    """A damaged length hides batches from a scan of headers; the search for markers must find them as decoding does."""
    bad = bytearray(three(3))
    bad[8:12] = (1 << 20).to_bytes(4, "big")
    data = data_batch(0, 7) + bytes(bad) + marker(6, 7, ABORT) + three(7)
    table = committed(data, on_error="skip")
    assert offsets_of(table) == [7, 8, 9]
    assert_accounted_without_aborted(table, len(data))
    bad[8:12] = (60).to_bytes(4, "big")
    data = data_batch(0, 7) + bytes(bad) + marker(6, 7, COMMIT) + three(7)
    assert offsets_of(committed(data, on_error="skip")) == [0, 1, 2, 7, 8, 9]


def assert_accounted_without_aborted(table: kbatch.RecordTable, size: int) -> None:
    batches = table.batches.copy()
    batches["status"][kbatch.BatchStatus.sound(batches["status"])] = kbatch.BatchStatus.OK
    assert_accounted(
        kbatch.RecordTable(table.records, batches, table.data, consumed=table.consumed, losses=table.losses), size
    )


def test_a_lost_marker_leaves_its_transaction_undecided() -> None:
    bad = bytearray(marker(6, 7, COMMIT))
    bad[-1] ^= 1
    table = committed(three(0) + data_batch(3, 7) + bytes(bad) + three(7), on_error="skip")
    assert offsets_of(table) == [0, 1, 2, 7, 8, 9]
    assert table.last_stable_offset is None
    assert table.pending == [(7, 3)]
    assert lost(table)[0][1] - lost(table)[0][0] == len(bad)


def test_damage_in_a_log_hides_no_markers(tmp_path: Path) -> None:
    """If the header chain of a segment breaks before its end, its bytes are searched for batches."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    bad = bytearray(three(3))
    bad[8:12] = (1 << 20).to_bytes(4, "big")
    (directory / f"{0:020d}.log").write_bytes(data_batch(0, 7) + bytes(bad) + marker(6, 7, ABORT) + three(7))
    (directory / f"{10:020d}.log").write_bytes(data_batch(10, 7) + marker(13, 7, COMMIT) + data_batch(14, 9))
    tables = list(kbatch.Log(directory).tables(isolation="read_committed", on_error="skip"))
    assert [offset for table in tables for offset in offsets_of(table)] == [7, 8, 9, 10, 11, 12]
    assert tables[0].pending == [(9, 14)]
    transactions = kbatch.Log(directory).transactions(on_error="skip")
    assert transactions.aborted.tolist() == [(7, 0, 6, 7)]
    assert transactions.open[0][:2] == (9, 14)


@pytest.mark.parametrize("crc", ["mark", "skip"])
def test_markers_with_accepted_bad_checksums_decide_transactions(tmp_path: Path, crc: Any) -> None:
    """If bad checksums are accepted, such batches and such markers belong to their transactions."""
    parts = [bytearray(part) for part in (data_batch(0, 7), marker(3, 7, ABORT), data_batch(4, 8), three(7))]
    for part in parts[:3]:
        part[17] ^= 1
    data = b"".join(parts)
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(data)
    for table in (committed(data, crc=crc), *kbatch.Log(directory).tables(isolation="read_committed", crc=crc)):
        assert offsets_of(table) == []
        assert table.pending == [(8, 4)]
    assert offsets_of(committed(data[: -len(parts[3])] + bytes(marker(7, 8, COMMIT)), crc=crc)) == [4, 5, 6]


def test_invalid_aborted_lists_are_rejected() -> None:
    with pytest.raises(ValueError, match="isolation must be one of 'read_uncommitted', 'read_committed'"):
        kbatch.decode(b"", isolation="serializable")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="entry 0 must be a pair of integers"):
        committed(b"", aborted=[7])
    with pytest.raises(ValueError, match="entry 1 must be"):
        committed(b"", aborted=[(7, 1), (7, 1, 2)])


def test_crc_r6_an_aborted_batch_is_verified_before_it_is_excluded() -> None:
    bad = bytearray(data_batch(0, 7))
    bad[-1] ^= 1
    data = bytes(bad) + marker(3, 7, ABORT)
    with pytest.raises(kbatch.CrcMismatchError):
        committed(data, aborted=[(7, 0)])
    assert lost(committed(data, aborted=[(7, 0)], on_error="skip")) == [(0, len(bad))]
