"""The bounds of the verification: where damage, gaps and index entries begin and end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from generated_logs import snapshot
from log_batches import NOW, batch, segment_path, write_segment
from transaction_logs import ABORT, marker, txn

import kbatch
from kbatch.log.report import VerificationReport
from kbatch.log.verification import verify_log


def verify(directory: Path, *, sequences: bool = False) -> VerificationReport:
    return verify_log(kbatch.Log(directory).segments, sequences=sequences)


def texts(report: VerificationReport, *, damage: bool) -> list[str]:
    return [each.text for each in report.findings if each.damage == damage]


def test_bytes_after_the_last_batch_of_a_closed_segment_are_one_finding_and_count_as_progress(tmp_path: Path) -> None:
    """DSK-R14: they are damage, and not the incomplete end of a log."""
    first = write_segment(tmp_path / "t-0", 0, [batch(0, [NOW])], tail=b"\xff" * 40)
    second = write_segment(tmp_path / "t-0", 1, [batch(1, [NOW])])
    reached: list[int] = []
    report = verify_log(kbatch.Log(tmp_path / "t-0").segments, progress=reached.append)
    assert len(report.findings) == 1
    assert report.findings[0].damage
    assert report.findings[0].position == len(batch(0, [NOW]))
    assert sorted(reached) == reached
    assert reached[-1] == first.stat().st_size + second.stat().st_size
    assert first.stat().st_size in reached
    # Without the callback, the findings are the same.
    assert verify(tmp_path / "t-0").findings == report.findings


def test_missing_offsets_next_to_a_damaged_batch_are_no_note(tmp_path: Path) -> None:
    """The damaged batch had them."""
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW])])
    damaged = bytearray(batch(1, [NOW]))
    damaged[-1] ^= 1
    write_segment(tmp_path / "t-0", 1, [bytes(damaged), batch(2, [NOW])])
    report = verify(tmp_path / "t-0")
    assert len(texts(report, damage=True)) == 1
    assert texts(report, damage=False) == []


@pytest.mark.parametrize(("gap_before", "damage"), [(10, True), (11, False)])
def test_a_missing_sequence_is_explained_by_a_gap_after_the_batch_before_it_prd_r16(
    tmp_path: Path, gap_before: int, damage: bool
) -> None:
    """Compaction may have removed the batches with the missing sequences, but only where offsets are missing."""
    sent = [(0, 0), (10, 1), (gap_before + 1, 5)] if gap_before == 10 else [(0, 0), (1, 1), (11, 5)]
    data = [
        kbatch.encode([b"v"], timestamps=NOW, base_offset=at, producer_id=7, producer_epoch=0, base_sequence=sequence)
        for at, sequence in sent
    ]
    write_segment(tmp_path / "t-0", 0, data)
    report = verify(tmp_path / "t-0", sequences=True)
    found = [text for text in texts(report, damage=damage) if "sequence" in text]
    assert len(found) == 1
    assert ("; offsets in between are missing" in found[0]) is not damage


def test_a_time_index_entry_of_time_0_in_a_segment_with_timestamps_is_damage_dsk_r3(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW]), batch(1, [NOW + 1])], indexes=True)
    path = segment_path(tmp_path / "t-0", 0, ".timeindex")
    content = bytearray(path.read_bytes())
    struct.pack_into(">q", content, 0, 0)
    path.write_bytes(content)
    write_segment(tmp_path / "t-0", 2, [batch(2, [NOW + 2])])
    assert any(
        f"timestamp 0, the largest up to that batch is {NOW}" in each
        for each in texts(verify(tmp_path / "t-0"), damage=True)
    )


@pytest.mark.parametrize(("suffix", "width"), [(".index", 8), (".timeindex", 12)])
def test_an_incomplete_index_entry_is_found_at_its_first_byte(tmp_path: Path, suffix: str, width: int) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW]), batch(1, [NOW + 1])], indexes=True)
    write_segment(tmp_path / "t-0", 2, [batch(2, [NOW + 2])])
    path = segment_path(tmp_path / "t-0", 0, suffix)
    path.write_bytes(path.read_bytes() + b"\x01\x02\x03")
    found = [each for each in verify(tmp_path / "t-0").findings if each.file == str(path)]
    assert [(each.position, each.damage) for each in found] == [(2 * width, True)]


# -- transactions that a snapshot lists

REMOTE = "-a2JhdGNoLXRlc3RzLWJrcg"


def aborted(producer: int, first: int, last: int, stable: int) -> bytes:
    """Write an entry of a ``.txnindex`` (TXI-R1)."""
    return struct.pack(">hqqqq", 0, producer, first, last, stable)


def test_the_snapshot_of_a_remote_segment_lists_no_transactions_before_it_txi_r7(tmp_path: Path) -> None:
    """Its snapshot has the state after the segment (DSK-R18): the second transaction of producer 7 is open there."""
    path = write_segment(tmp_path, 0, [batch(0, [NOW]), txn(1, 7), marker(2, 7, ABORT), txn(3, 7)])
    path.with_suffix(".txnindex").write_bytes(aborted(7, 1, 2, 3))
    snapshot(tmp_path, 0, {7: (3, 3)})
    for each in list(tmp_path.iterdir()):
        each.rename(each.with_stem(each.stem + REMOTE))
    report = verify(tmp_path)
    assert report.side_files == 2
    assert report.findings == []


@pytest.mark.parametrize("first", [-1, 0, 5])
def test_a_transaction_in_a_snapshot_may_have_begun_at_any_offset_txi_r7(tmp_path: Path, first: int) -> None:
    """0 is an offset; with -1 the producer has no transaction, and its marker aborts nothing (TXI-R3)."""
    path = write_segment(tmp_path, 10, [marker(10, 7, ABORT), batch(11, [NOW])])
    path.with_suffix(".txnindex").write_bytes(aborted(7, first, 10, 11) if first >= 0 else b"")
    snapshot(tmp_path, 10, {7: (9, first)})
    report = verify(tmp_path)
    assert report.side_files == 2
    assert report.findings == []
