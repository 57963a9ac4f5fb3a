"""``kbatch verify``: valid files have no findings, and each kind of damage is reported with its position."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from log_batches import batch, segment_path, write_segment

import kbatch
from kbatch.cli import main


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def command(*arguments: object) -> tuple[int, str, str]:
        status = main(["verify", *map(str, arguments)])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.fixture
def txn(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LOGS / "txn-0", tmp_path / "txn-0", copy_function=shutil.copyfile))


def findings(text: str, *, notes: bool = False) -> list[str]:
    return [line for line in text.splitlines() if ": byte " in line and (notes or ": note: " not in line)]


def patch(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def test_files_of_kafka_are_valid(run: Any) -> None:
    """Every log of the golden files, with all its auxiliary files."""
    status, out, err = run(LOGS)
    assert (status, err) == (0, "")
    assert findings(out) == []
    assert len([line for line in out.splitlines() if ": ok" in line]) == len(list(LOGS.iterdir()))
    assert (
        "txn-0: ok (3 segments, 165 batches, 337 records, 34 control records, 21.9 KiB; 12 index and snapshot files)"
        in out
    )


@pytest.mark.parametrize("path", sorted(p for p in LOGS.glob("*-0/*") if p.suffix != ".jsonl" and p.suffix != ".json"))
def test_single_files_are_valid(path: Path, run: Any) -> None:
    status, out, _ = run(path)
    assert status == 0, out
    assert findings(out) == []


def test_json_has_findings_and_notes(run: Any, txn: Path) -> None:
    patch(segment_path(txn, 186), 3000, b"\0\0")
    status, out, _ = run("--json", txn, LOGS / "prealloc-0")
    assert status == 3
    shown = json.loads(out)
    assert shown["damaged"]
    assert [log["damaged"] for log in shown["logs"]] == [True, False]
    first, second = shown["logs"]
    assert (first["topic"], first["partition"], first["segments"], first["batches"]) == ("txn", 0, 3, 165)
    assert [(one["file"], one["position"]) for one in first["findings"]] == [(str(segment_path(txn, 186)), 2966)]
    assert [one["position"] for one in second["notes"]] == [397]


@pytest.mark.parametrize("position", range(0, 3600, 97))
def test_a_flipped_bit_is_one_finding_at_its_batch(position: int, run: Any, txn: Path) -> None:
    """CRC-R1, CRC-R2: a flipped bit under the checksum is one finding, at its batch; elsewhere there may be none."""
    path = segment_path(txn, 186)
    data = path.read_bytes()
    start = 0
    while start + 12 + int.from_bytes(data[start + 8 : start + 12], "big") <= position:
        start += 12 + int.from_bytes(data[start + 8 : start + 12], "big")
    patch(path, position, bytes([data[position] ^ 0x10]))
    status, out, _ = run(txn)
    if position - start >= 17:
        assert status == 3
        assert len(findings(out)) == 1
    else:
        assert len(findings(out)) <= 4


def test_descending_offsets_within_a_segment_are_damage(run: Any, tmp_path: Path) -> None:
    """FRM-R11; gaps are notes."""
    path = write_segment(tmp_path / "t-0", 5, [batch(5, [1, 2]), batch(6, [3]), batch(9, [3]), batch(20, [4])])
    status, out, _ = run(path)
    second = len(batch(5, [1, 2]))
    assert status == 3
    assert findings(out) == [f"{path}: byte {second}: base offset 6 after a batch that extends to 6"]
    assert "note: offsets are missing: 6 is followed by 9, and 1 more gap" in out
    path = write_segment(tmp_path / "u-0", 5, [batch(4, [1])])
    assert "byte 0: base offset 4 is below the segment's, 5" in run(path)[1]


@pytest.mark.parametrize("sequences", [[], ["--sequences"]])
def test_gaps_between_the_smallest_and_the_largest_offset_are_found(
    run: Any, tmp_path: Path, sequences: list[str]
) -> None:
    """FRM-R11: no difference or neighbour of offsets overflows, which NumPy only warns about."""
    smallest, largest = -(2**63), 2**63 - 1
    path = segment_path(tmp_path, 0)
    path.write_bytes(batch(smallest, [1]) + batch(largest, [2]) + batch(smallest, [3]))
    status, out, _ = run(path, *sequences)
    assert status == 3
    assert f"byte 0: base offset {smallest} is below the segment's, 0" in out
    assert f"base offset {smallest} after a batch that extends to {largest}" in out
    assert f"note: offsets are missing: {smallest} is followed by {largest}\n" in out


def test_missing_sequences_are_damage_unless_offsets_are_missing(run: Any, tmp_path: Path) -> None:
    """PRD-R10, PRD-R11, PRD-R16: missing sequences are damage, unless offsets are missing too."""

    def produced(offset: int, sequence: int, producer_id: int = 7, epoch: int = 0, timestamp: int = 1000) -> bytes:
        return kbatch.encode(
            [b"a", b"b"],
            timestamps=timestamp,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    size = len(produced(0, 0))
    whole = [produced(0, 8), produced(2, 10), produced(4, 0, 8), produced(6, 12)]
    path = write_segment(tmp_path / "t-0", 0, [*whole, produced(8, 16), produced(10, 16), produced(12, 18)])
    assert run(path)[0] == 0
    status, out, _ = run("--sequences", path)
    assert status == 3
    assert findings(out) == [
        f"{path}: byte {4 * size}: base offset 8: sequence 16 of producer 7; expected 14 after 13",
        f"{path}: byte {5 * size}: base offset 10: sequence 16 of producer 7 is a duplicate of the batch at offset 8",
    ]
    # An offset gap explains missing sequences only after the gap, not before it.
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nu 0 20\n")
    write_segment(tmp_path / "u-0", 0, [produced(0, 8), produced(2, 0, 8)])
    write_segment(tmp_path / "u-0", 20, [produced(20, 12), produced(22, 4, 8), produced(24, 8, 8)])
    status, out, _ = run("--sequences", tmp_path / "u-0")
    assert status == 3
    assert len(findings(out)) == 1
    assert "base offset 24: sequence 8 of producer 8; expected 6 after 5" in findings(out)[0]
    between = "offsets in between are missing"
    assert f"note: base offset 20: sequence 12 of producer 7; expected 10 after 9; {between}" in out
    assert f"note: base offset 22: sequence 4 of producer 8; expected 2 after 1; {between}" in out
    # A broker forgets producers after a day, and then accepts an epoch that it would have fenced.
    path = write_segment(tmp_path / "v-0", 0, [produced(0, 0, epoch=3), produced(2, 9, epoch=1, timestamp=86_401_000)])
    assert run("--sequences", path)[0] == 0
    path = write_segment(tmp_path / "w-0", 0, [produced(0, 0, epoch=3), produced(2, 9, epoch=1, timestamp=86_400_999)])
    status, out, _ = run("--sequences", path)
    assert status == 0
    assert "note: base offset 2: epoch 1 of producer 7 after its epoch 3" in out


def test_sequences_of_kafkas_logs_are_valid(run: Any) -> None:
    status, out, _ = run("--sequences", LOGS)
    assert (status, findings(out)) == (0, [])


def test_overlapping_segments_are_damage(run: Any, tmp_path: Path) -> None:
    """DSK-R13: an overlap is damage, reported once; a gap that compaction has left is not."""
    write_segment(tmp_path / "t-0", 0, [batch(0, [1, 2, 3])])
    second = write_segment(tmp_path / "t-0", 2, [batch(2, [1]), batch(3, [1])])
    write_segment(tmp_path / "t-0", 100, [batch(100, [1])])
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 100\n")
    status, out, _ = run(tmp_path / "t-0")
    assert status == 3
    assert len(findings(out)) == 1
    assert f"{second}: byte 0: begins at offset 2, but" in out
    assert "note: offsets are missing: 3 is followed by 100" in out


def test_timestamps_and_records_are_compared_with_the_header(run: Any, tmp_path: Path) -> None:
    """TS-R4: a max_timestamp that is too small misleads seeks; one that is too large is normal after compaction."""
    one = batch(3, [1, 1], last_delta=0)
    batches = [batch(0, [1, 9], max_timestamp=8), batch(2, [1], max_timestamp=50), one, batch(5, [7], max_timestamp=7)]
    path = write_segment(tmp_path / "t-0", 0, batches)
    status, out, _ = run(path)
    assert status == 3
    shown = sorted(findings(out))
    assert len(shown) == 2
    assert "byte 0: base offset 0: a record's timestamp, 9, is later than the batch's max_timestamp" in shown[0]
    assert "base offset 3: record offset 4 is outside the batch" in shown[1]


def test_incomplete_ends_are_notes_in_the_last_segment_only(run: Any, tmp_path: Path) -> None:
    """FRM-R7, DSK-R14: zeros or an unfinished batch are notes in the last segment, damage in any other."""
    one = batch(0, [1, 2])
    for name, tail in (("zeros-0", bytes(4000)), ("cut-0", one[:-1])):
        write_segment(tmp_path / name, 2, [batch(2, [1])], tail=tail)
        status, out, _ = run(tmp_path / name)
        assert status == 0
        assert len(findings(out, notes=True)) == 1
        write_segment(tmp_path / name, 0, [one], tail=tail)
        status, out, _ = run(tmp_path / name)
        assert status == 3
        assert f"byte {len(one)}: " in findings(out)[0]
        # A single file is checked by the same rule, because the directory shows which segment is the last.
        assert run(segment_path(tmp_path / name, 0))[0] == 3
        assert run(segment_path(tmp_path / name, 2))[0] == 0


def test_offset_index_entries_are_checked(run: Any, txn: Path) -> None:
    """DSK-R2, DSK-R5."""
    path = segment_path(txn, 186, ".index")
    data = path.read_bytes()
    relative, position = struct.unpack_from(">ii", data, 16)
    for at, change, text in (
        (
            20,
            struct.pack(">i", position + 1),
            f"byte 16: entry of offset {186 + relative}: no batch begins at position",
        ),
        (20, struct.pack(">i", 1 << 30), "is beyond the segment's"),
        (16, struct.pack(">i", relative + 1), "no batch ends with this offset"),
        (16, struct.pack(">i", 1 + struct.unpack_from(">i", data, 8)[0]), "byte 16: entry of offset"),
        (16, struct.pack(">i", -5), "entries must ascend"),
        (len(data), b"\1\2\3", "not a multiple of an entry's 8 bytes"),
    ):
        patch(path, at, change)
        for target in (path, txn):
            status, out, _ = run(target)
            assert status == 3, text
            assert len(findings(out)) >= 1
            assert any(text in line and str(path) in line for line in findings(out)), out
        path.write_bytes(data)


def test_time_index_entries_are_checked(run: Any, txn: Path) -> None:
    """DSK-R3, DSK-R4."""
    path = segment_path(txn, 186, ".timeindex")
    data = path.read_bytes()
    timestamp, relative = struct.unpack_from(">qi", data, 12)
    for at, change, text in (
        (12, struct.pack(">q", timestamp + 1), "the largest up to that batch is"),
        (12, struct.pack(">q", timestamp - 1), "the largest up to that batch is"),
        (12, struct.pack(">q", 5), "entries must not descend"),
        (len(data) - 4, struct.pack(">i", 1 << 20), "the segment ends at"),
        (len(data), b"\1", "not a multiple of an entry's 12 bytes"),
    ):
        patch(path, at, change)
        for target in (path, txn):
            status, out, _ = run(target)
            assert status == 3, text
            assert any(text in line and str(path) in line for line in findings(out)), out
        path.write_bytes(data)
    assert relative > 0


@pytest.mark.parametrize("indexed", [True, False], ids=["entries", "empty"])
@pytest.mark.parametrize(("suffix", "width"), [(".index", 8), (".timeindex", 12)])
def test_only_the_index_files_of_the_active_segment_are_preallocated(
    run: Any, tmp_path: Path, indexed: bool, suffix: str, width: int
) -> None:
    """DSK-R4: `AbstractIndex` makes a file of index.max.bytes, rounded down to entries, and trims it at the roll."""
    # The first batch has no entry: a broker adds one only after index.interval.bytes.
    active = write_segment(tmp_path / "t-0", 5, [batch(5, [7]), batch(6, [9])])
    entry = struct.pack(">ii", 1, active.stat().st_size // 2) if suffix == ".index" else struct.pack(">qi", 9, 1)
    used = entry if indexed else b""
    index = active.with_suffix(suffix)
    index.write_bytes(used)
    os.truncate(index, (10 << 20) // width * width)
    for target in (tmp_path / "t-0", active, index):
        status, out, _ = run(target)
        assert (status, findings(out, notes=True)) == (0, []), out
    write_segment(tmp_path / "t-0", 20, [batch(20, [10])])
    for target in (tmp_path / "t-0", index):
        status, out, _ = run(target)
        assert status == 3
        (finding,) = (line for line in findings(out) if str(index) in line)
        zeros = (10 << 20) // width * width - len(used)
        assert finding.endswith(
            f"{suffix}: byte {len(used)}: {zeros} bytes of zeros after the entries: only the last segment's index is "
            "preallocated"
        )


def test_damage_in_a_preallocated_index_is_found(run: Any, tmp_path: Path) -> None:
    """DSK-R2, DSK-R3: the zeros of the active segment's files do not hide wrong entries before them."""
    path = write_segment(tmp_path / "t-0", 5, [batch(5, [7]), batch(6, [9])])
    for suffix, entry in ((".index", struct.pack(">ii", 1, 3)), (".timeindex", struct.pack(">qi", 8, 1))):
        path.with_suffix(suffix).write_bytes(entry + bytes(len(entry) * 1000))
    status, out, _ = run(tmp_path / "t-0")
    assert status == 3
    assert len(findings(out)) == 2


def test_transaction_index_entries_are_checked(run: Any, txn: Path) -> None:
    """TXI-R1, TXI-R5: an entry that is missing or begins too late would return aborted records."""
    path = segment_path(txn, 0, ".txnindex")
    data = path.read_bytes()
    for content, text in (
        (data[34:], "no entry for the aborted transaction of producer 1001 with the marker at offset 30"),
        (
            data[:10] + struct.pack(">q", 16) + data[18:],
            "byte 0: producer 1001, marker at offset 30: first offset is 16",
        ),
        (b"\0\1" + data[2:], "byte 0: unsupported entry version 1"),
        (data[34:68] + data[:34], "byte 34: marker at offset 30 after one at 50"),
    ):
        path.write_bytes(content)
        for target in (path, txn):
            status, out, _ = run(target)
            assert status == 3, text
            assert any(text in line for line in findings(out)), out
    path.unlink()
    status, out, _ = run(txn)
    assert status == 3
    assert len(findings(out)) == len(data) // 34


def test_a_snapshot_explains_transactions_of_deleted_segments(run: Any, txn: Path) -> None:
    """TXI-R6, TXI-R7: the snapshot lists which transactions were open there."""
    for path in txn.glob(f"{0:020d}.*"):
        path.unlink()
    assert run(txn)[0] == 0


def test_producer_snapshots_are_checked(run: Any, txn: Path) -> None:
    """DSK-R6."""
    path = segment_path(txn, 280, ".snapshot")
    patch(path, 30, b"\x55")
    for target in (path, txn):
        status, out, _ = run(target)
        assert status == 3
        assert len(findings(out)) == 1
        assert f"{path}: byte 2: stored checksum is" in out


def test_logs_without_index_files_are_valid(run: Any, txn: Path) -> None:
    """DSK-R5: index files are optional, so a copy of the segments alone is valid."""
    for path in txn.iterdir():
        if path.suffix != ".log":
            path.unlink()
    assert run(txn)[0] == 0


def test_an_index_without_its_segment_is_reported(run: Any, tmp_path: Path) -> None:
    path = segment_path(tmp_path, 0, ".index")
    path.write_bytes(b"")
    status, out, err = run(path)
    assert (status, out) == (1, "")
    assert "its segment does not exist" in err


@pytest.mark.parametrize("count", [100, 9], ids=["a wrong length", "the beginning of a batch by its length"])
@pytest.mark.parametrize(
    ("first", "look"), [(b"\x1f\x8b\x08", "a gzip file; decompress it first"), (b"\x7fELF", "an ELF file")]
)
def test_a_file_of_another_kind_is_named(
    first: bytes, look: str, count: int, run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Among the segments of a log it is damage, since the other segments are verified; a single file is refused."""
    other = tmp_path / "other"
    other.write_bytes(first + bytes(range(count)))
    status, out, err = run(other)
    assert (status, out) == (1, "")
    assert f"{other}: not a Kafka log: the bytes look like {look}" in err
    directory = tmp_path / "t-0"
    directory.mkdir()
    segment = shutil.copy(other, directory / f"{0:020d}.log")
    status, out, _ = run(directory)
    assert status == 3
    assert out.startswith(f"{segment}: byte 0: not a Kafka log: the bytes look like {look}")
    assert (" (byte 0: " in out) == (count == 100)
    for command in (["dump"], ["dump", "--records"]):
        assert main([*command, str(directory)]) == 3
        err = capfd.readouterr().err
        assert err.startswith(f"kbatch dump: {segment}: byte 0: not a Kafka log: the bytes look like {look}")
