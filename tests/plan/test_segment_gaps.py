"""DSK-R13: offsets missing between two segments are a gap of unknown cause, unless something shows a compaction."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from log_batches import batch, write_segment

import kbatch
from kbatch.log.check.statistics import log_statistics
from kbatch.log.check.verification import verify_log
from kbatch.log.gaps import SegmentGaps
from kbatch.log.store.storage import filesystem
from kbatch.plan.planner import plan
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.plan.tasks import task_tables
from kbatch.records.loss_list import Loss

# Offsets first to last, inclusive.
Gap = tuple[int, int]


def full(first: int, count: int = 20) -> list[bytes]:
    """Return batches of two records each, without a gap."""
    return [batch(base, [1000, 1000]) for base in range(first, first + count, 2)]


def checkpoint(root: Path, *entries: str) -> None:
    (root / "cleaner-offset-checkpoint").write_text("\n".join(["0", str(len(entries)), *entries, ""]))


def gap_of(loss: Loss) -> Gap:
    assert "a gap of unknown cause" in loss.reason
    assert loss.length == 0
    found = re.match(r"offsets? (\d+)(?: to (\d+))? (?:is|are) missing between the segments \d{20}", loss.reason)
    assert found is not None
    assert loss.base_offset == int(found[1])
    return int(found[1]), int(found[2] or found[1])


def gaps_by_tables(log: kbatch.Log, **options: Any) -> list[Gap]:
    return [gap_of(loss) for table in log.tables(**options) for loss in table.losses]


def gaps_by_tasks(log: kbatch.Log, **options: Any) -> list[Gap]:
    """Return the gaps that tasks find, which does not depend on how the log is divided."""
    found = []
    for divided in ({}, {"split_bytes": 1}, {"min_partitions": 7}, {"max_records_per_partition": 3}):
        chosen = ReadOptions(**divided, **options)
        tasks = [list(task_tables(splits, chosen)) for splits in plan([log], chosen)]
        losses = [(split, loss) for task in tasks for split, table in task for loss in table.losses]
        assert all(loss.position == split.size for split, loss in losses)
        found.append([gap_of(loss) for _, loss in losses])
    assert all(each == found[0] for each in found)
    return found[0]


def gaps_by_verify(log: kbatch.Log) -> list[Gap]:
    report = verify_log(log.segments)
    faults = [each for each in report.findings if each.damage]
    found = [gap_of(Loss(each.position, 0, each.text, int(each.text.split()[1]))) for each in faults]
    for headers_only in (False, True):
        statistics = log_statistics(log, headers_only=headers_only)
        assert statistics.losses == len(found)
        assert statistics.missing_offsets == sum(last - first + 1 for first, last in found)
    return found


def every_route(directory: Path) -> list[Gap]:
    log = kbatch.Log(directory)
    found = gaps_by_tables(log)
    assert gaps_by_tables(log, threads=2, max_bytes=1 << 20) == found
    assert gaps_by_tables(log, isolation="read_committed") == found
    assert gaps_by_tasks(log) == found
    assert gaps_by_tasks(log, isolation="read_committed") == found
    assert gaps_by_verify(log) == found
    return found


# -- without a sign of a compaction


@pytest.mark.parametrize("gap", [1, 2, 20, 10**12])
def test_a_missing_segment_is_a_gap_of_unknown_cause(tmp_path: Path, gap: int) -> None:
    write_segment(tmp_path / "t-0", 0, full(0))
    write_segment(tmp_path / "t-0", 20 + gap, full(20 + gap))
    assert every_route(tmp_path / "t-0") == [(20, 19 + gap)]


def test_consecutive_segments_have_no_gap(tmp_path: Path) -> None:
    for first in (7, 27, 47):
        write_segment(tmp_path / "t-0", first, full(first))
    write_segment(tmp_path / "t-0", 67, [])
    assert every_route(tmp_path / "t-0") == []


def test_each_gap_is_listed_by_itself(tmp_path: Path) -> None:
    for first in (0, 40, 60, 100):
        write_segment(tmp_path / "t-0", first, full(first))
    assert every_route(tmp_path / "t-0") == [(20, 39), (80, 99)]


def test_a_segment_that_has_lost_its_end_leaves_a_gap(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, full(0)[:4])
    write_segment(tmp_path / "t-0", 20, full(20))
    assert every_route(tmp_path / "t-0") == [(8, 19)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_empty_segment_leaves_a_gap_unless_it_is_the_last(tmp_path: Path, number: int) -> None:
    for i in range(3):
        write_segment(tmp_path / "t-0", 20 * i, [] if i == number else full(20 * i))
    assert every_route(tmp_path / "t-0") == ([] if number == 2 else [(20 * number, 20 * number + 19)])


def test_offsets_before_an_empty_last_segment_are_missing(tmp_path: Path) -> None:
    """The next record gets the offset in the name of the active segment."""
    write_segment(tmp_path / "t-0", 0, full(0))
    write_segment(tmp_path / "t-0", 40, [])
    assert every_route(tmp_path / "t-0") == [(20, 39)]


def test_offsets_before_the_first_segment_were_removed_by_retention(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 1000, full(1000))
    assert every_route(tmp_path / "t-0") == []


def test_offsets_below_the_log_start_offset_are_not_missing(tmp_path: Path) -> None:
    for first in (0, 40):
        write_segment(tmp_path / "t-0", first, full(first))
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 40\n")
    log = kbatch.Log(tmp_path / "t-0")
    assert gaps_by_tables(log) == gaps_by_tasks(log) == []
    assert gaps_by_tables(log, start_offset=0) == [(20, 39)]


def test_empty_batches_and_control_batches_have_offsets(tmp_path: Path) -> None:
    """EMP-R1, OFF-R1: the header of the last batch gives the next offset, also if its records were removed."""
    write_segment(tmp_path / "t-0", 0, [*full(0), batch(20, [], last_delta=19)])
    write_segment(tmp_path / "t-0", 40, full(40))
    assert every_route(tmp_path / "t-0") == []


def test_a_next_segment_that_begins_below_its_name_ends_the_gap(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, full(0, 18))
    write_segment(tmp_path / "t-0", 99, full(20, 4))
    log = kbatch.Log(tmp_path / "t-0")
    assert gaps_by_tables(log) == gaps_by_tasks(log) == [(18, 19)]


@pytest.mark.parametrize("damage", [0, -1])
def test_damage_at_the_end_of_a_segment_explains_the_gap(tmp_path: Path, damage: int) -> None:
    """The loss lists it; other damage explains nothing."""
    path = write_segment(tmp_path / "t-0", 0, full(0))
    write_segment(tmp_path / "t-0", 30, full(30))
    data = bytearray(path.read_bytes())
    data[70 if damage == 0 else -1] ^= 1
    path.write_bytes(data)
    log = kbatch.Log(tmp_path / "t-0")
    options = ReadOptions(on_error="skip")
    for losses in (
        [loss for table in log.tables(on_error="skip") for loss in table.losses],
        [loss for task in plan([log], options) for _, each in task_tables(task, options) for loss in each.losses],
    ):
        assert [loss.length > 0 for loss in losses] == ([True, False] if damage == 0 else [True])
    assert len([each for each in verify_log(log.segments).findings if each.damage]) == (2 if damage == 0 else 1)


def test_an_accepted_batch_with_a_wrong_checksum_is_not_missing(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", 0, full(0))
    write_segment(tmp_path / "t-0", 20, full(20))
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    log = kbatch.Log(tmp_path / "t-0")
    assert gaps_by_tables(log, crc="mark") == gaps_by_tasks(log, crc="mark") == []
    assert gaps_by_tables(log, crc="skip") == gaps_by_tasks(log, crc="skip") == []


# -- the range of a read


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (None, 20, []),
        (None, 21, [(20, 20)]),
        (19, 22, [(20, 21)]),
        (20, None, [(20, 39)]),
        (25, 30, [(25, 29)]),
        (39, None, [(39, 39)]),
        (40, None, []),
        (0, 100, [(20, 39)]),
    ],
)
def test_a_read_lists_the_missing_offsets_of_its_range(
    tmp_path: Path, start: int | None, stop: int | None, expected: list[Gap]
) -> None:
    for first in (0, 40):
        write_segment(tmp_path / "t-0", first, full(first), indexes=True)
    log = kbatch.Log(tmp_path / "t-0")
    assert gaps_by_tables(log, start_offset=start, stop_offset=stop) == expected
    bounds = {"starting": Bound(offset=start), "ending": Bound(offset=stop)}
    given = {side: bound for side, bound in bounds.items() if bound.offset is not None}
    assert gaps_by_tasks(log, **given) == expected


def test_a_read_of_times_lists_the_gaps_after_its_first_batch(tmp_path: Path) -> None:
    for i, first in enumerate((0, 40, 80)):
        write_segment(tmp_path / "t-0", first, [batch(first, [1000 * i] * 20)], indexes=True)
    log = kbatch.Log(tmp_path / "t-0")
    assert gaps_by_tables(log, start_timestamp=1) == [(60, 79)]
    assert gaps_by_tables(log, start_timestamp=2000) == []
    assert gaps_by_tables(log, last=30) == [(60, 79)]


# -- what shows a compaction


@pytest.mark.parametrize(
    ("cleaned", "expected"),
    [(20, [(20, 39)]), (21, [(21, 39)]), (39, [(39, 39)]), (40, []), (41, []), (10**15, []), (0, [(20, 39)])],
)
def test_the_cleaners_checkpoint_explains_the_gaps_below_it(tmp_path: Path, cleaned: int, expected: list[Gap]) -> None:
    """``LogCleanerManager`` stores the first offset that was not cleaned."""
    for first in (0, 40, 60):
        write_segment(tmp_path / "t-0", first, full(first))
    checkpoint(tmp_path, "other 0 1000", f"t 0 {cleaned}", "t 1 1000")
    assert every_route(tmp_path / "t-0") == expected


@pytest.mark.parametrize("text", ["", "0\n", "1\n1\nt 0 90\n", "0\n2\nt 0 90\n", "0\n1\nt 1 90\n", "0\n1\nt 0 x\n"])
def test_a_checkpoint_without_the_topic_partition_explains_nothing(tmp_path: Path, text: str) -> None:
    for first in (0, 40):
        write_segment(tmp_path / "t-0", first, full(first))
    (tmp_path / "cleaner-offset-checkpoint").write_text(text)
    assert every_route(tmp_path / "t-0") == [(20, 39)]


def test_the_checkpoint_belongs_to_the_live_log(tmp_path: Path) -> None:
    for first in (0, 40):
        write_segment(tmp_path / "t-0.0123456789abcdef-stray", first, full(first))
    checkpoint(tmp_path, "t 0 90")
    assert gaps_by_tables(kbatch.Log(tmp_path / "t-0.0123456789abcdef-stray")) == [(20, 39)]


def test_the_checkpoint_is_found_from_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (0, 40):
        write_segment(tmp_path / "t-0", first, full(first))
    checkpoint(tmp_path, "t 0 40")
    for directory, path in ((tmp_path, "t-0"), (tmp_path / "t-0", ".")):
        monkeypatch.chdir(directory)
        assert gaps_by_tables(kbatch.Log(path)) == []


def test_the_checkpoint_is_found_in_an_object_store(tmp_path: Path, s3_server: str) -> None:
    pytest.importorskip("pyarrow")
    own = {"access_key": "me", "secret_key": "secret", "endpoint_override": f"http://{s3_server}"}
    bucket = f"gaps{zlib.crc32(os.fsencode(tmp_path))}"
    fs, _ = filesystem(f"s3://{bucket}", {**own, "allow_bucket_creation": "true"})
    fs.create_dir(bucket)

    def upload(name: str, text: bytes) -> None:
        with fs.open_output_stream(f"{bucket}/{name}") as file:
            file.write(text)

    for first in (0, 40):
        upload(f"logs/t-0/{first:020d}.log", b"".join(full(first)))
    log = kbatch.Log(f"s3://{bucket}/logs/t-0", storage_options=own)
    assert gaps_by_tables(log) == gaps_by_tasks(log, storage=own) == [(20, 39)]
    upload("logs/cleaner-offset-checkpoint", b"0\n1\nt 0 40\n")
    (log,) = kbatch.find_logs(f"s3://{bucket}/logs", storage_options=own)
    assert gaps_by_tables(log) == gaps_by_tasks(log, storage=own) == []


COMPACTED = {
    "a missing batch": [*full(0)[:3], *full(0)[5:]],
    "no first batch": full(0)[1:],
    "fewer records than offsets": [*full(0)[:3], batch(6, [1000], last_delta=3), *full(0)[5:]],
    "an empty batch": [*full(0)[:3], batch(6, [], last_delta=3), *full(0)[5:]],
}


def moved(batches: list[bytes], by: int) -> list[bytes]:
    """Return batches with other offsets, which their checksums do not cover."""
    return [(int.from_bytes(each[:8], "big") + by).to_bytes(8, "big") + each[8:] for each in batches]


@pytest.mark.parametrize("sign", COMPACTED)
@pytest.mark.parametrize("where", [0, 40, 60, 80])
def test_signs_of_compaction_within_segments_explain_the_gaps_around_and_below(
    tmp_path: Path, sign: str, where: int
) -> None:
    """CMP-R1, CMP-R2, EMP-R1: compaction begins at the start of the log, and cleans whole segments."""
    for first in (0, 40, 60, 80, 120):
        batches = moved(COMPACTED[sign], first) if first == where else full(first)
        write_segment(tmp_path / "t-0", first, batches)
    # What is after a segment with signs is unknown, unless its own end was removed.
    expected = {0: [(100, 119)], 40: [(100, 119)], 60: [(100, 119)], 80: []}[where]
    assert every_route(tmp_path / "t-0") == expected


@pytest.mark.parametrize(
    ("limit", "searched"), [(0, 1), (850 + 752, 1), (850 + 753, 2), (2 * 850 + 752, 2), (2 * 850 + 753, 3)]
)
def test_the_search_for_signs_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, searched: int
) -> None:
    """The next segment is searched in any case, and further ones up to a size, so that gaps take linear time."""
    monkeypatch.setattr("kbatch.log.gaps._MAX_SEARCHED_BYTES", limit)
    compacted = COMPACTED["fewer records than offsets"]
    assert (len(b"".join(full(0))), len(b"".join(compacted))) == (850, 753)
    for first in (0, 40, 60, 80):
        write_segment(tmp_path / "t-0", first, full(first))
    for number, first in enumerate((40, 60, 80), 1):
        write_segment(tmp_path / "t-0", first, moved(compacted, first))
        found = gaps_by_tables(kbatch.Log(tmp_path / "t-0"))
        assert found == ([] if number <= searched else [(20, 39)])
        write_segment(tmp_path / "t-0", first, full(first))


def test_a_delete_horizon_is_set_by_the_cleaner(tmp_path: Path) -> None:
    """TS-R5, CMP-R5"""
    one = kbatch.encode([None, b"v"], keys=[b"a", b"b"], timestamps=1000, base_offset=0, delete_horizon=5000)
    write_segment(tmp_path / "t-0", 0, [bytes(one)])
    write_segment(tmp_path / "t-0", 40, full(40))
    assert every_route(tmp_path / "t-0") == []


@pytest.mark.parametrize(("cleaned", "expected"), [(19, [(20, 39)]), (4, []), (10, [(20, 39)])])
def test_signs_below_the_checkpoint_show_nothing_above_it(tmp_path: Path, cleaned: int, expected: list[Gap]) -> None:
    """A dirty segment that follows the cleaned part of the log is missing."""
    write_segment(tmp_path / "t-0", 0, COMPACTED["a missing batch"])
    write_segment(tmp_path / "t-0", 40, full(40))
    checkpoint(tmp_path, f"t 0 {cleaned}")
    assert every_route(tmp_path / "t-0") == expected


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("is_compacted", [True, False])
def test_gaps_within_compressed_message_sets_show_a_compaction(tmp_path: Path, magic: int, is_compacted: bool) -> None:
    """LEG-R11: headers of compressed message sets do not show their first offset."""
    offsets = [0, 1, 2, 10, 11] if is_compacted else [7, 8, 9, 10, 11]
    source = kbatch.encode([b"v"] * 5, offsets=offsets, timestamps=1000)
    data = kbatch.convert(bytes(source), magic, codec="gzip", lossy="drop")
    assert data[16] == magic
    write_segment(tmp_path / "t-0", offsets[0], [])
    (tmp_path / "t-0" / f"{offsets[0]:020d}.log").write_bytes(data)
    write_segment(tmp_path / "t-0", 40, full(40))
    assert every_route(tmp_path / "t-0") == ([] if is_compacted else [(12, 39)])


@pytest.mark.parametrize("flipped", ["checksum", "base offset up", "base offset down"])
def test_damage_is_not_a_sign_of_compaction(tmp_path: Path, flipped: str) -> None:
    """A batch without a good checksum shows nothing, and neither do offsets that do not ascend."""
    batches = full(40)
    if flipped == "checksum":
        wrong = bytearray(batch(44, [1000, 1000], last_delta=3))
        wrong[-1] ^= 1
        batches[2:4] = [bytes(wrong)]
    else:
        batches[3] = moved(batches[3:4], 1000 if flipped == "base offset up" else -46)[0]
    write_segment(tmp_path / "t-0", 0, full(0))
    write_segment(tmp_path / "t-0", 40, batches)
    log = kbatch.Log(tmp_path / "t-0")
    losses = [loss for table in log.tables(on_error="skip") for loss in table.losses]
    assert [gap_of(loss) for loss in losses if not loss.length] == [(20, 39)]


def test_golden_logs_of_a_compacted_topic_have_no_gap(golden: Path, tmp_path: Path) -> None:
    for name in ("compact-pass1-0", "compact-src-0", "txn-0"):
        shutil.copytree(golden / "logs" / name, tmp_path / name)
        assert every_route(tmp_path / name) == []


def test_compacted_logs_of_kbatch_have_no_gap(golden: Path, tmp_path: Path) -> None:
    kbatch.log.compact_log(golden / "logs" / "txn-0", tmp_path / "txn-0", include_active=True)
    assert gaps_by_verify(kbatch.Log(tmp_path / "txn-0")) == []


# -- onGap


def test_raise_names_the_gap_and_what_to_do(tmp_path: Path) -> None:
    for first in (0, 40):
        write_segment(tmp_path / "t-0", first, full(first))
    log = kbatch.Log(tmp_path / "t-0")
    options = ReadOptions(on_gap="raise")
    read: list[int] = []

    def read_all() -> None:
        for splits in plan([log], options):
            for _, table in task_tables(splits, options):
                read.extend(table.records["offset"].tolist())

    expected = (
        r"^t-0: offsets 20 to 39 are missing between the segments 0{20}\.log and 0{18}40\.log: a gap of unknown cause, "
        r"since nothing shows that compaction has removed them \(/.*/0{20}\.log, /.*/0{18}40\.log\); restore the "
        r"missing segment, or read what is there and list the gap with onGap=report \(kbatch export: --gaps report\)$"
    )
    with pytest.raises(kbatch.LogDirectoryError, match=expected) as caught:
        read_all()
    assert caught.value.source == log.segments[1].path
    assert read == list(range(20))
    read.clear()
    checkpoint(tmp_path, "t 0 40")
    read_all()
    assert read == [*range(20), *range(40, 60)]


def test_a_gap_that_is_not_read_is_not_raised(tmp_path: Path) -> None:
    for first in (0, 40):
        write_segment(tmp_path / "t-0", first, full(first))
    log = kbatch.Log(tmp_path / "t-0")
    for start, stop in ((None, 20), (40, None)):
        bounds = {"starting": Bound(offset=start), "ending": Bound(offset=stop)}
        given = {side: bound for side, bound in bounds.items() if bound.offset is not None}
        options = ReadOptions(on_gap="raise", **given)
        tables = [table for task in plan([log], options) for _, table in task_tables(task, options)]
        assert sum(map(len, tables)) == 20


def test_without_missing_offsets_no_file_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examined(*arguments: Any) -> Any:
        raise AssertionError("examined")

    for first in (0, 20, 40):
        write_segment(tmp_path / "t-0", first, full(first))
    monkeypatch.setattr(SegmentGaps, "_shows_compaction", examined)
    monkeypatch.setattr(SegmentGaps, "_cleaned_offset", examined)
    monkeypatch.setattr("kbatch.log.gaps._begin_of", examined)
    assert every_route(tmp_path / "t-0") == []
