"""The bounds of the verification: where damage, gaps and index entries begin and end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from generated_logs import snapshot
from log_batches import DAY, NOW, batch, segment_path, write_segment
from oracle import build_batch, encode_record
from transaction_logs import ABORT, marker, txn

import kbatch
from kbatch.log.check import verification
from kbatch.log.check.verification import verify_log, verify_transaction_index
from kbatch.log.check.verification_report import VerificationReport


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


# -- tables of any size


@pytest.fixture(params=[1, 1 << 20], ids=["batch by batch", "in one table"])
def _table_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification reads a segment in tables: findings must not depend on where they end."""
    monkeypatch.setattr(verification, "TABLE_BYTES", request.param)


def broken(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


GAPS = {
    "no offset is missing": ([(0, 2), (2, 1), (3, 1)], None),
    "one offset": ([(0, 2), (3, 1)], (1, "1 is followed by 3")),
    "two gaps": ([(0, 1), (2, 1), (3, 1), (5, 1)], (1, "0 is followed by 2, and 1 more gap")),
    "three gaps": ([(0, 1), (2, 1), (4, 1), (6, 1)], (1, "0 is followed by 2, and 2 more gaps")),
    "the gap after another batch": ([(0, 1), (1, 1), (9, 1)], (2, "1 is followed by 9")),
}


@pytest.mark.usefixtures("_table_sizes")
@pytest.mark.parametrize("name", GAPS)
def test_missing_offsets_are_one_note_at_the_batch_after_the_first_gap(tmp_path: Path, name: str) -> None:
    sent, expected = GAPS[name]
    data = [batch(base, [NOW] * count) for base, count in sent]
    write_segment(tmp_path / "t-0", 0, data)
    found = [(each.position, each.text, each.damage) for each in verify(tmp_path / "t-0").findings]
    if expected is None:
        assert found == []
    else:
        row, text = expected
        assert found == [(sum(map(len, data[:row])), f"offsets are missing: {text}", False)]


@pytest.mark.usefixtures("_table_sizes")
def test_each_segment_has_its_own_note_of_missing_offsets(tmp_path: Path) -> None:
    """A segment without missing offsets has none."""
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW]), batch(2, [NOW])])
    write_segment(tmp_path / "t-0", 3, [batch(3, [NOW]), batch(4, [NOW])])
    third = write_segment(tmp_path / "t-0", 5, [batch(5, [NOW]), batch(7, [NOW]), batch(9, [NOW])])
    report = verify(tmp_path / "t-0")
    assert texts(report, damage=False) == [
        "offsets are missing: 0 is followed by 2",
        "offsets are missing: 5 is followed by 7, and 1 more gap",
    ]
    assert report.findings[1].file == str(third)


@pytest.mark.usefixtures("_table_sizes")
@pytest.mark.parametrize(
    ("layout", "notes"),
    [
        # A letter is a good batch, an underscore a damaged one: offsets are missing next to it only.
        ("a_c", 0),
        ("_b", 0),
        ("__c", 0),
        ("a__d", 0),
        ("a_c.e", 1),
        ("a.c_e", 1),
        ("a.c_", 1),
        ("_b.d", 1),
    ],
)
def test_offsets_are_missing_next_to_damage_because_of_it(tmp_path: Path, layout: str, notes: int) -> None:
    data = []
    for offset, kind in enumerate(layout):
        if kind != ".":
            data.append(broken(batch(offset, [NOW])) if kind == "_" else batch(offset, [NOW]))
    write_segment(tmp_path / "t-0", 0, data)
    report = verify(tmp_path / "t-0")
    assert len(texts(report, damage=False)) == notes
    assert len(texts(report, damage=True)) == 1


@pytest.mark.usefixtures("_table_sizes")
def test_an_empty_segment_explains_no_missing_offsets(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW])])
    write_segment(tmp_path / "t-0", 1, [])
    last = write_segment(tmp_path / "t-0", 2, [batch(3, [NOW])])
    report = verify(tmp_path / "t-0")
    assert [(each.file, each.text) for each in report.findings if "is followed by" in each.text] == [
        (str(last), "offsets are missing: 0 is followed by 3")
    ]


@pytest.mark.usefixtures("_table_sizes")
def test_the_first_batch_of_a_log_may_have_any_offset_from_its_segments_on(tmp_path: Path) -> None:
    """DSK-R1: the offsets before it may have been deleted or compacted."""
    write_segment(tmp_path / "t-0", 0, [batch(5, [NOW]), batch(6, [NOW])])
    assert verify(tmp_path / "t-0").findings == []


@pytest.mark.usefixtures("_table_sizes")
@pytest.mark.parametrize(
    ("sent", "base", "expected"),
    [
        ([5, 5], 5, [(1, "base offset 5 after a batch that extends to 5")]),
        ([6, 5], 5, [(1, "base offset 5 after a batch that extends to 6")]),
        ([4], 5, [(0, "base offset 4 is below the segment's, 5")]),
        ([5], 5, []),
    ],
)
def test_a_batch_begins_after_the_one_before_and_not_below_its_segment_dsk_r13(
    tmp_path: Path, sent: list[int], base: int, expected: list[tuple[int, str]]
) -> None:
    data = [batch(offset, [NOW]) for offset in sent]
    write_segment(tmp_path / "t-0", base, data)
    found = [(each.position, each.text) for each in verify(tmp_path / "t-0").findings if each.damage]
    assert found == [(len(data[0]) * row, text) for row, text in expected]


@pytest.mark.parametrize(("second", "expected"), [(1, ["begins at offset 1, but"]), (2, [])])
def test_a_segment_begins_after_the_last_offset_of_the_one_before_dsk_r1(
    tmp_path: Path, second: int, expected: list[str]
) -> None:
    """The overlap is one finding at byte 0, and not one for each of its batches."""
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW, NOW])])
    write_segment(tmp_path / "t-0", second, [batch(second, [NOW]), batch(second + 1, [NOW])])
    report = verify(tmp_path / "t-0")
    assert [each.text[: len("begins at offset 1, but")] for each in report.findings] == expected
    assert [each.position for each in report.findings] == [0] * len(expected)


RECORDS = {
    "the offsets of a batch": ([0, 1, 2], 0, 2, None),
    "an offset twice": ([0, 1, 1, 2], 0, 3, "offsets of its records do not ascend, at 1"),
    "a smaller offset": ([0, 2, 1, 1, 3], 0, 4, "offsets of its records do not ascend, at 1"),
    "an offset above the last one": ([0, 1, 3], 0, 2, "record offset 3 is outside the batch"),
}


@pytest.mark.usefixtures("_table_sizes")
@pytest.mark.parametrize("name", RECORDS)
def test_the_first_record_that_contradicts_its_batch_is_one_finding(tmp_path: Path, name: str) -> None:
    """Records of two batches are not compared with each other."""
    deltas, base, last, expected = RECORDS[name]
    records = [encode_record(delta, 0, None, b"v") for delta in deltas]
    data = [batch(0, [NOW]), build_batch(records, base_offset=1 + base, last_offset_delta=last), batch(2 + last, [NOW])]
    write_segment(tmp_path / "t-0", 0, data)
    found = [(each.position, each.text) for each in verify(tmp_path / "t-0").findings]
    if expected is None:
        assert found == []
    else:
        shown = expected.rsplit(" ", 1)
        text = f"{shown[0]} {int(shown[1]) + 1}" if shown[1].isdecimal() else expected.replace("offset 3", "offset 4")
        assert found == [(len(data[0]), f"base offset 1: {text}")]


@pytest.mark.parametrize(("latest", "count"), [(NOW, 0), (NOW - 1, 1)])
def test_no_record_is_later_than_the_max_timestamp_of_its_batch(tmp_path: Path, latest: int, count: int) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW - 1, NOW, NOW], max_timestamp=latest)])
    report = verify(tmp_path / "t-0")
    assert [each.text for each in report.findings] == [
        f"base offset 0: a record's timestamp, {NOW}, is later than the batch's max_timestamp"
    ] * count


def test_a_report_counts_what_was_read(tmp_path: Path) -> None:
    good, bad = batch(0, [NOW, NOW]), broken(batch(2, [NOW]))
    write_segment(tmp_path / "t-0", 0, [good, bad, batch(3, [NOW])])
    write_segment(tmp_path / "t-0", 4, [batch(4, [NOW])])
    report = verify(tmp_path / "t-0")
    assert (report.segments, report.batches, report.damaged_batches, report.records) == (2, 4, 1, 4)
    assert report.bytes == 4 * len(batch(0, [NOW])) + len(good) - len(batch(0, [NOW]))


# -- sequences


@pytest.mark.usefixtures("_table_sizes")
@pytest.mark.parametrize(("later", "count"), [(DAY - 1, 1), (DAY, 0)])
def test_a_producer_expires_a_day_after_its_last_batch_prd_r16(tmp_path: Path, later: int, count: int) -> None:
    """After that, brokers accept any sequence."""
    data = [
        kbatch.encode(
            [b"v"], timestamps=at, base_offset=offset, producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        for offset, (at, sequence) in enumerate([(NOW, 0), (NOW + later, 5)])
    ]
    write_segment(tmp_path / "t-0", 0, data)
    report = verify(tmp_path / "t-0", sequences=True)
    assert len([text for text in texts(report, damage=True) if "sequence" in text]) == count
    # Sequences are verified only on request.
    assert verify_log(kbatch.Log(tmp_path / "t-0").segments).findings == []


@pytest.mark.usefixtures("_table_sizes")
@pytest.mark.parametrize(
    ("sent", "explained"),
    [
        ([(0, 0), (1, 5)], False),
        ([(0, 0), (2, 5)], True),
        ([(0, 0), (1, 1), (3, 5)], True),
        # The gap is before the producer's last batch, so its batches are all there.
        ([(0, 0), (2, 1), (3, 5)], False),
        ([(0, 0), (2, 1), (3, None), (4, 5)], False),
        ([(0, 0), (2, None), (3, 5)], True),
        ([(0, 0), (1, None), (3, None), (4, 5)], True),
        # Of several gaps, the last one decides.
        ([(0, 0), (2, None), (3, 1), (5, 5)], True),
        ([(0, 0), (2, None), (4, 1), (5, 5)], False),
    ],
)
def test_a_missing_sequence_is_a_note_if_offsets_are_missing_since_the_producers_last_batch_prd_r16(
    tmp_path: Path, sent: list[tuple[int, int | None]], explained: bool
) -> None:
    data = [
        batch(offset, [NOW])
        if sequence is None
        else kbatch.encode(
            [b"v"], timestamps=NOW, base_offset=offset, producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        for offset, sequence in sent
    ]
    write_segment(tmp_path / "t-0", 0, data)
    found = [each for each in verify(tmp_path / "t-0", sequences=True).findings if "sequence" in each.text]
    assert [each.damage for each in found] == [not explained]
    assert found[0].text.endswith("; offsets in between are missing") == explained
    assert found[0].position == sum(map(len, data[:-1]))


@pytest.mark.usefixtures("_table_sizes")
@pytest.mark.parametrize("at", [1, 9])
def test_a_repeated_sequence_is_damage_also_after_missing_offsets(tmp_path: Path, at: int) -> None:
    data = [
        kbatch.encode([b"v"], timestamps=NOW, base_offset=offset, producer_id=7, producer_epoch=0, base_sequence=4)
        for offset in (0, at)
    ]
    write_segment(tmp_path / "t-0", 0, data)
    found = [each for each in verify(tmp_path / "t-0", sequences=True).findings if "sequence" in each.text]
    assert [each.damage for each in found] == [True]
    assert "offsets in between" not in found[0].text


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


# -- entries of a transaction index

# The log begins at offset 10, and the first remaining batch of producer 7's transaction is at 12 (TXI-R6).
ENTRIES = {
    "the first batch": (12, 14, True, None),
    "a batch before the log": (9, 14, True, None),
    "the first offset of the log": (10, 14, False, "first offset is 10, the first remaining batch has 12"),
    "an offset of the log": (11, 14, False, "first offset is 11, the first remaining batch has 12"),
    "a later offset": (13, 14, None, "first offset is 13, the transaction began at 12"),
    "another last stable offset": (12, 13, False, "last stable offset is 13, the markers give 14"),
    "a higher last stable offset": (12, 15, False, "last stable offset is 15, the markers give 14"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_the_entry_of_an_aborted_transaction_agrees_with_the_log_txi_r5(tmp_path: Path, name: str) -> None:
    """A transaction that begins too late would return aborted records; other differences have no effect."""
    first, stable, is_note, expected = ENTRIES[name]
    data = [batch(10, [NOW]), batch(11, [NOW]), txn(12, 7), marker(13, 7, ABORT), txn(14, 8), marker(15, 8, ABORT)]
    path = write_segment(tmp_path, 10, data)
    # Its entry is the second one.
    other = aborted(8, 14, 15, 16)
    path.with_suffix(".txnindex").write_bytes(aborted(7, first, 13, stable) + other)
    report = verify(tmp_path)
    assert [(each.position, each.text, each.damage) for each in report.findings] == (
        [] if expected is None else [(0, f"producer 7, marker at offset 13: {expected}", is_note is None)]
    )


def test_entries_and_missing_entries_are_found_at_their_bytes_txi_r1(tmp_path: Path) -> None:
    """A missing one at the end, in the order of markers; an entry without a marker is a note: compaction keeps it."""
    data = [txn(0, 9), txn(1, 8), marker(2, 9, ABORT), marker(3, 8, ABORT), txn(4, 7), marker(5, 7, ABORT)]
    path = write_segment(tmp_path, 0, data)
    path.with_suffix(".txnindex").write_bytes(aborted(7, 4, 5, 6) + aborted(6, 4, 6, 7))
    found = [(each.position, each.damage, each.text) for each in verify(tmp_path).findings]
    missing = "no entry for the aborted transaction of producer"
    assert found == [
        (34, False, "producer 6, marker at offset 6: no such marker follows a transaction's data in the log"),
        (68, True, f"{missing} 9 with the marker at offset 2"),
        (68, True, f"{missing} 8 with the marker at offset 3"),
    ]


@pytest.mark.parametrize("indexed", [(0, 1), (0,), (1,), ()])
@pytest.mark.parametrize("offset_index", [False, True])
def test_a_transaction_belongs_to_the_index_of_the_segment_of_its_marker_txi_r2(
    tmp_path: Path, indexed: tuple[int, ...], offset_index: bool
) -> None:
    """A segment without any index file is a copy without them; one that has others has lost its own."""
    paths = [
        write_segment(tmp_path, 0, [txn(0, 8), txn(1, 7), marker(2, 7, ABORT)], indexes=offset_index),
        write_segment(tmp_path, 3, [marker(3, 8, ABORT), txn(4, 9), marker(5, 9, ABORT)], indexes=offset_index),
    ]
    entries = [aborted(7, 1, 2, 0), aborted(8, 0, 3, 4) + aborted(9, 4, 5, 6)]
    for number in indexed:
        paths[number].with_suffix(".txnindex").write_bytes(entries[number])
    report = verify(tmp_path)
    missing = [
        (str(paths[number].with_suffix(".txnindex")), marker_at)
        for number, markers in enumerate([[2], [3, 5]])
        for marker_at in markers
        if number not in indexed and offset_index
    ]
    assert [(each.file, int(each.text.rsplit(" ", 1)[1])) for each in report.findings] == missing
    assert report.side_files == len(indexed) + 4 * offset_index
    for number, path in enumerate(paths):
        if number in indexed:
            for segments in (kbatch.Log(tmp_path).segments, []):
                one = verify_transaction_index(str(path.with_suffix(".txnindex")), segments)
                assert (one.findings, one.side_files) == ([], 1)


def test_entries_are_not_compared_with_markers_that_may_be_damaged(tmp_path: Path) -> None:
    for base in (0, 2):
        path = write_segment(tmp_path, base, [txn(base, 7), marker(base + 1, 7, ABORT)])
        path.with_suffix(".txnindex").write_bytes(b"")
    segment_path(tmp_path, 0).write_bytes(txn(0, 7) + broken(marker(1, 7, ABORT)))
    report = verify(tmp_path)
    notes = [(each.file, each.position) for each in report.findings if not each.damage]
    assert notes == [(str(segment_path(tmp_path, base, ".txnindex")), 0) for base in (0, 2)]
    assert report.side_files == 2


def test_damage_gives_no_note_about_a_transaction_index_that_does_not_exist(tmp_path: Path) -> None:
    """A broker makes the file with the first aborted transaction of a segment."""
    path = write_segment(tmp_path, 0, [batch(0, [NOW]), broken(batch(1, [NOW]))])
    path.with_suffix(".index").write_bytes(b"")
    report = verify(tmp_path)
    assert not any(each.file.endswith(".txnindex") for each in report.findings)
    assert report.damaged_batches == 1


def test_an_unreadable_index_does_not_hide_the_next_one(tmp_path: Path) -> None:
    first = write_segment(tmp_path, 0, [batch(0, [NOW])])
    second = write_segment(tmp_path, 1, [txn(1, 7), marker(2, 7, ABORT)])
    first.with_suffix(".txnindex").write_bytes(b"\0\1" + bytes(32))
    second.with_suffix(".txnindex").write_bytes(b"")
    report = verify(tmp_path)
    assert [(each.file, each.damage) for each in report.findings] == [
        (str(path.with_suffix(".txnindex")), True) for path in (first, second)
    ]
    assert report.side_files == 2
