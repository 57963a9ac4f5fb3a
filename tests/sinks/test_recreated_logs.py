"""Exports that continue after a log was recreated, with other records at the same offsets."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import log_batches
import pytest
from log_batches import NOW

import kbatch
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.sinks.delta import _app

pytest.importorskip("pyarrow")

from export_outputs import FORMATS, Output, batches

every_format = pytest.mark.parametrize("out", FORMATS, indirect=True)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def made_again(first: int, count: int, value: bytes = b"other") -> list[bytes]:
    """Return batches with the offsets, sizes and leader epochs of `batches`, but other values."""
    return [log_batches.batch(base, [NOW + base, NOW + base + 1], value=value) for base in range(first, 2 * count, 2)]


def rewrite(root: Path, found: list[bytes]) -> None:
    """Replace the log of t-0, as a copy of a directory does: the files have the same names, and no topic id."""
    shutil.rmtree(root / "t-0")
    log_batches.write_segment(root / "t-0", 0, found)


@pytest.mark.parametrize("count", [10, 11, 30])
@every_format
def test_a_log_that_was_made_again_without_a_topic_id_is_recognized_by_what_was_read_last(
    root: Path, out: Output, count: int
) -> None:
    """The new log has the same leader epoch, and ends at the position or beyond it."""
    out.write(root)
    rewrite(root, made_again(0, count))
    before = out.files()
    message = "t-0: the last run ended before offset 20, but the log was recreated: the record with offset 19"
    with pytest.raises(kbatch.LogDirectoryError, match=message):
        out.write(root)
    assert out.files() == before
    summary = out.write(root, ReadOptions(fail_on_data_loss=False))
    assert [(change["kind"], change["position"], change["resumed_at"]) for change in summary.changes] == [
        ("recreated", 20, 0)
    ]
    assert summary.records == 2 * count
    assert out.offsets()["t-0"] == sorted([*range(20), *range(2 * count)])
    assert out.write(root).action == "unchanged"


def test_a_log_made_again_is_recognized_when_its_first_new_batch_ends_elsewhere(root: Path, out: Output) -> None:
    out.write(root)
    rewrite(root, [log_batches.batch(0, [NOW + 1] * 30)])
    with pytest.raises(kbatch.LogDirectoryError, match="the record with offset 19 is another one"):
        out.write(root)


@pytest.mark.parametrize("end", [7, 8])
def test_a_position_within_a_batch_recognizes_its_log(root: Path, out: Output, end: int) -> None:
    out.write(root, ReadOptions(ending=Bound(offsets={"t": {0: end, 1: -1}})))
    assert out.write(root).records == 20 - end
    out.write(root, ReadOptions(ending=Bound(offsets={"t": {0: end, 1: -1}})), mode="overwrite")
    rewrite(root, made_again(0, 30))
    with pytest.raises(kbatch.LogDirectoryError, match=f"the record with offset {end - 1} is another one"):
        out.write(root)


def test_an_older_leader_epoch_shows_that_a_log_was_made_again(tmp_path: Path, out: Output) -> None:
    """Leader epochs ascend within a log, so a batch of an older one is not a truncation."""
    root = tmp_path / "logs"
    log_batches.write_segment(root / "t-0", 0, batches(0, 10, epoch=5))
    out.write(root)
    rewrite(root, batches(0, 30, epoch=2))
    with pytest.raises(kbatch.LogDirectoryError, match="the leader epoch of offset 19 was 5 and is now 2"):
        out.write(root)
    summary = out.write(root, ReadOptions(fail_on_data_loss=False))
    assert [(change["kind"], change["resumed_at"]) for change in summary.changes] == [("recreated", 0)]
    assert summary.records == 60


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_recompressed_log_is_continued(root: Path, out: Output, codec: str, caplog: pytest.LogCaptureFixture) -> None:
    """Recompression changes the checksum of a batch, and not its records."""
    out.write(root)
    rewrite(root, [kbatch.recompress(each, codec) for each in batches(0, 13)])
    summary = out.write(root)
    assert (summary.action, summary.records, summary.changes) == ("continued", 6, [])
    assert caplog.records == []


def test_a_log_converted_to_another_magic_is_continued(tmp_path: Path, out: Output) -> None:
    root, options = tmp_path / "logs", {"magic": 1, "timestamps": [NOW + n for n in range(20)]}
    values = [b"%d" % n for n in range(30)]
    log_batches.write_segment(root / "t-0", 0, [bytes(kbatch.encode(values[:20], **options))])
    assert out.write(root).records == 20
    old = bytes(kbatch.encode(values, **{**options, "timestamps": [NOW + n for n in range(30)]}))
    rewrite(root, [bytes(kbatch.convert(old, 2, batch_size=150))])
    assert len(kbatch.Log(root / "t-0").batches()) > 2
    summary = out.write(root)
    assert (summary.action, summary.records, summary.changes) == ("continued", 10, [])


@pytest.mark.parametrize("kind", ["record removed", "batch removed", "all removed before", "rewritten, record kept"])
def test_a_compacted_log_is_continued_and_a_warning_says_that_it_cannot_be_recognized(
    root: Path, out: Output, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    out.write(root)
    kept = batches(0, 9)
    if kind == "record removed":
        # The log cleaner keeps the offsets of the batch.
        kept.append(log_batches.batch(18, [NOW + 18], last_delta=1))
    elif kind == "all removed before":
        kept = []
    elif kind == "rewritten, record kept":
        kept = [*batches(0, 5), bytes(kbatch.encode([b"value"], offsets=[19], timestamps=NOW + 19, leader_epoch=0))]
    rewrite(root, [*kept, *batches(20, 3)])
    summary = out.write(root)
    assert (summary.action, summary.records, summary.changes) == ("continued", 6, [])
    warned = [record.getMessage() for record in caplog.records]
    if kind == "rewritten, record kept":
        assert warned == []
    else:
        assert len(warned) == 1
        assert "what was read last of t-0 is not there unchanged, because of compaction or damage" in warned[0]


def test_retention_up_to_the_position_is_no_change(root: Path, out: Output, caplog: pytest.LogCaptureFixture) -> None:
    """The batch before the position is gone, and nothing else."""
    out.write(root)
    shutil.rmtree(root / "t-0")
    log_batches.write_segment(root / "t-0", 20, batches(20, 3))
    summary = out.write(root)
    assert (summary.records, summary.changes, caplog.records) == (6, [], [])


def test_damage_of_the_batch_before_a_position_is_not_taken_for_another_log(
    root: Path, out: Output, caplog: pytest.LogCaptureFixture
) -> None:
    out.write(root)
    broken = bytearray(batches(18, 1)[0])
    broken[20] ^= 1
    rewrite(root, [*batches(0, 9), bytes(broken), *batches(20, 3)])
    assert out.write(root).records == 6
    assert "is not there unchanged, because of compaction or damage" in caplog.text


@pytest.mark.parametrize("out", ["parquet", "delta", "iceberg"], indirect=True)
def test_a_position_of_an_earlier_release_is_continued(
    root: Path, out: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no checksums; the next run that reads something adds them."""
    with monkeypatch.context() as earlier:
        earlier.setattr(
            "kbatch.sinks.delta._app", lambda *parts: ("" if "checksums" not in parts else "no-") + _app(*parts)
        )
        for module in ("kbatch.plan.positions", "kbatch.sinks.iceberg"):
            earlier.setattr(f"{module}.asdict", lambda each: dict(list(asdict(each).items())[:3]))
        out.write(root)
    log_batches.write_segment(root / "t-0", 20, batches(20, 3))
    assert out.write(root).records == 6
    rewrite(root, made_again(0, 30))
    with pytest.raises(kbatch.LogDirectoryError, match="the record with offset 25 is another one"):
        out.write(root)


def test_the_log_of_a_position_after_a_control_batch_is_recognized_by_the_batch(tmp_path: Path, out: Output) -> None:
    root = tmp_path / "logs"
    first, again = (log_batches.batch(0, [NOW], value=value) for value in (b"a", b"b"))
    marker, other = (
        kbatch.encode_marker("commit", producer_id=producer, producer_epoch=0, offset=1, timestamp=NOW, leader_epoch=0)
        for producer in (7, 8)
    )
    log_batches.write_segment(root / "t-0", 0, [first, marker])
    out.write(root)
    rewrite(root, [again, other, *batches(2, 3)])
    with pytest.raises(kbatch.LogDirectoryError, match="the checksum of the batch with offset 1 was"):
        out.write(root)
    rewrite(root, [first, marker, *batches(2, 3)])
    assert out.write(root).records == 6
