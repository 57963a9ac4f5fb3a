"""isolation="read_committed" in `decode` and `Log.tables`: what Kafka's consumer hands out, and what is withheld."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from oracle import build_batch, three
from tables import assert_accounted, lost, offsets_of

import kbatch

GOLDEN = Path(__file__).parents[1] / "golden"
TXN = GOLDEN / "logs" / "txn-0"
TRUTH: dict[str, Any] = json.loads((TXN / "READ_COMMITTED.json").read_text())
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
def test_fetch_responses(path: Path) -> None:
    """TXN-R1 to TXN-R14: the offsets handed out, and the next one to fetch (TXN-R11)."""
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
        return b"".join(path.read_bytes() for path in sorted(TXN.glob("*.log")))

    @pytest.mark.parametrize("max_bytes", [1, 4096, 64 << 20])
    def test_any_size_of_tables_gives_the_truth(self, max_bytes: int) -> None:
        """The marker may stand in a later table or segment than what it decides (TXN-R15, LSO-R2)."""
        tables = list(kbatch.Log(TXN).tables(isolation="read_committed", max_bytes=max_bytes))
        assert [offset for table in tables for offset in offsets_of(table)] == TRUTH["readCommittedOffsets"]
        wanted = [(int(producer), first) for producer, first in TRUTH["open"].items()]
        assert all(table.pending == wanted for table in tables)
        assert {table.last_stable_offset for table in tables} == {TRUTH["lastStableOffset"]}

    def test_any_range_of_offsets_is_the_truth_within_it(self) -> None:
        rng = np.random.default_rng(7)
        log = kbatch.Log(TXN)
        for start, stop in np.sort(rng.integers(0, 380, (100, 2))).tolist():
            tables = log.tables(isolation="read_committed", start_offset=start, stop_offset=stop, max_bytes=2048)
            have = [offset for table in tables for offset in offsets_of(table)]
            assert have == [offset for offset in TRUTH["readCommittedOffsets"] if start <= offset < stop]

    def test_bytes_decide_by_their_own_markers(self) -> None:
        table = committed(self.data())
        assert offsets_of(table) == TRUTH["readCommittedOffsets"]
        assert table.pending == [(1002, 362), (1004, 367)]
        assert table.last_stable_offset == 362
        assert table.consumed == len(self.data())

    def test_a_list_decides_alone(self) -> None:
        """With a fetch response's list nothing is withheld: a broker sends nothing beyond its last stable offset."""
        pairs = [(entry["producerId"], entry["firstOffset"]) for entry in TRUTH["aborted"]]
        every = offsets_of(kbatch.decode(self.data()))
        wanted = [offset for offset in every if offset in set(TRUTH["readCommittedOffsets"]) or offset >= 362]
        wanted = [offset for offset in wanted if offset != 366]
        table = committed(self.data(), aborted=pairs[::-1] + pairs[:3])
        assert offsets_of(table) == wanted
        assert table.pending == []
        rows = np.array(
            [(entry["producerId"], entry["firstOffset"], entry["lastOffset"], -1) for entry in TRUTH["aborted"]],
            kbatch.ABORTED_DTYPE,
        )
        assert offsets_of(committed(self.data(), aborted=rows)) == wanted

    def test_batches_left_out_have_rows_that_say_so(self) -> None:
        table = committed(self.data())
        aborted = table.batches["status"] == kbatch.BatchStatus.ABORTED
        ranges = {(entry["producerId"], entry["firstOffset"], entry["lastOffset"]) for entry in TRUTH["aborted"]}
        for row in table.batches[aborted]:
            within = [r for r in ranges if r[0] == row["producer_id"] and r[1] <= row["base_offset"] <= r[2]]
            assert len(within) == 1
            assert row["base_offset"] + 0 not in offsets_of(table)
        assert aborted.sum() > 13

    def test_control_records_are_there_if_wanted(self) -> None:
        table = committed(self.data(), include_control=True)
        rows = kbatch.control_records(table)
        assert sorted(set(offsets_of(table)) - set(TRUTH["readCommittedOffsets"])) == rows["offset"].tolist()
        commits = {entry["markerOffset"] for entry in TRUTH["committed"]}
        aborts = {entry["lastOffset"] for entry in TRUTH["aborted"]}
        for row in rows:
            assert row["type"] == (kbatch.ControlType.COMMIT if row["offset"] in commits else kbatch.ControlType.ABORT)
        # Offset 156 is the marker of a transaction that wrote nothing here (TXI-R3).
        assert {offset for offset in commits | aborts if offset < 362} | {156} == set(rows["offset"].tolist())

    def test_a_log_from_its_middle_on(self, tmp_path: Path) -> None:
        """TXI-R6: what began in a segment that is gone is decided by its marker all the same."""
        directory = tmp_path / "txn-0"
        shutil.copytree(TXN, directory, copy_function=shutil.copyfile)
        (directory / f"{0:020d}.log").unlink()
        tables = kbatch.Log(directory).tables(isolation="read_committed")
        have = [offset for table in tables for offset in offsets_of(table)]
        assert have == [offset for offset in TRUTH["readCommittedOffsets"] if offset >= 186]


def test_nothing_is_guessed_of_what_is_open() -> None:
    """LSO-R1: from the first undecided transaction on all is withheld, also of producers without transactions."""
    data = three(0) + data_batch(3, 7) + three(6) + data_batch(9, 8) + marker(12, 8, COMMIT)
    table = committed(data)
    assert offsets_of(table) == [0, 1, 2]
    assert table.pending == [(7, 3)]
    assert table.last_stable_offset == 3
    assert offsets_of(committed(data + marker(13, 7, COMMIT))) == list(range(12))
    assert offsets_of(committed(data + marker(13, 7, ABORT))) == [0, 1, 2, *range(6, 12)]


def test_aborted_batches_are_not_even_decompressed() -> None:
    """A payload that can't be read costs nothing if its transaction was aborted; its checksum is looked at."""
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


def test_an_aborted_batch_with_a_bad_checksum_gives_nothing() -> None:
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
def test_a_flipped_bit_withholds_no_more_than_its_batch(bit: int) -> None:
    """A header that lies opens no transaction that nobody ends; of the base offset before it no checksum knows."""
    first = three(0)
    bad = bytearray(three(3))
    bad[bit // 8] ^= 1 << bit % 8
    data = first + bytes(bad) + three(6) + data_batch(9, 7) + marker(12, 7, COMMIT)
    table = committed(data, on_error="skip")
    kept = offsets_of(table)
    assert [offset for offset in kept if offset < 3 or offset >= 6][:9] == [0, 1, 2, *range(6, 12)]
    assert table.pending == []


def test_markers_behind_damage_decide() -> None:
    """A damaged length hides batches from a walk over headers; the decoding finds them again, and so must this."""
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


def test_damage_in_a_log_hides_no_marker(tmp_path: Path) -> None:
    """The same over files: a segment whose headers can't be followed to its end is followed by its bytes."""
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
def test_where_bad_checksums_are_accepted_the_log_believes_them(tmp_path: Path, crc: Any) -> None:
    """What is handed out whatever its checksum is belongs to its transaction, and so does its marker."""
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


def test_bad_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="isolation must be one of 'read_uncommitted', 'read_committed'"):
        kbatch.decode(b"", isolation="serializable")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="entry 0 must be a pair of integers"):
        committed(b"", aborted=[7])
    with pytest.raises(ValueError, match="entry 1 must be"):
        committed(b"", aborted=[(7, 1), (7, 1, 2)])


def test_crc_r6_an_aborted_batch_is_verified_before_it_is_left_out() -> None:
    bad = bytearray(data_batch(0, 7))
    bad[-1] ^= 1
    data = bytes(bad) + marker(3, 7, ABORT)
    with pytest.raises(kbatch.CrcMismatchError):
        committed(data, aborted=[(7, 0)])
    assert lost(committed(data, aborted=[(7, 0)], on_error="skip")) == [(0, len(bad))]
