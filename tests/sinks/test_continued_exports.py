"""Exports that continue: every record once, whatever was exported before."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import log_batches
import pytest
from log_batches import NOW

import kbatch
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.value_options import FormatOptions, ValueOptions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import iceberg_catalog  # noqa: E402
from export_outputs import FORMATS, Output, batches  # noqa: E402
from local_export import log_offsets  # noqa: E402

every_format = pytest.mark.parametrize("out", FORMATS, indirect=True)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@every_format
def test_a_second_run_writes_nothing(root: Path, out: Output) -> None:
    first = out.write(root)
    assert (first.action, first.records) == ("created", 30)
    before = out.files()
    second = out.write(root)
    assert (second.action, second.records, second.files) == ("unchanged", 0, [])
    assert out.files() == before
    assert out.offsets() == log_offsets(root)
    assert [part.continued_from for part in second.partitions] == [20, 10]


@every_format
def test_a_run_with_nothing_new_does_not_start_spark(
    root: Path, out: Output, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kbatch.spark", exc_type=ImportError)
    from kbatch.cli import main

    first = out.write(root)
    before = out.files()

    def start(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("kbatch.spark.export_job.spark_session", start)
    # A preallocated segment ends with zeros, and one that is being written with an incomplete batch.
    for number, tail in enumerate((bytes(500), batches(10, 1)[0][:50])):
        with open(root / f"t-{number}" / f"{0:020d}.log", "ab") as file:
            file.write(tail)
    names = ["--table", iceberg_catalog.TABLE, "--catalog", iceberg_catalog.NAME] if out.kind == "iceberg" else []
    flags = [str(root), str(out.path), "--format", out.kind, *names, "--master", "spark://host:7077"]
    assert main(["export", *flags]) == 0
    assert "Nothing new: earlier exports have written all of these records." in capsys.readouterr().out
    assert main(["export", *flags, "--ending-offsets", '{"t":{"0":20,"1":10}}', "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["action"], document["start_seconds"], document["records"]) == ("unchanged", 0, 0)
    assert out.files() == before
    assert first.action == "created"
    # A topic that was recreated without records: the position changes, and no task is needed.
    for path in (root / "t-1").glob("*.log"):
        path.write_bytes(b"")
    assert main(["export", *flags, "--allow-missing-offsets"]) == 0
    assert "continued at offset 0" in capsys.readouterr().out
    log_batches.write_segment(root / "t-1", 0, batches(0, 1))
    with pytest.raises(AssertionError, match="Spark was started"):
        main(["export", *flags])


@every_format
def test_new_records_are_added_once(root: Path, out: Output) -> None:
    out.write(root)
    log_batches.write_segment(root / "t-0", 20, batches(20, 3))
    log_batches.write_segment(root / "t-2", 0, batches(0, 2))
    second = out.write(root)
    assert (second.action, second.records) == ("continued", 10)
    assert [(part.continued_from, part.next_offset) for part in second.partitions] == [(20, 26), (10, 10), (None, 4)]
    assert out.offsets() == log_offsets(root)
    assert out.write(root).action == "unchanged"


@every_format
def test_overwrite_replaces_all_data(root: Path, out: Output) -> None:
    out.write(root)
    again = out.write(root, ReadOptions(partitions=frozenset([1])), mode="overwrite")
    assert (again.action, again.records) == ("replaced", 10)
    assert out.offsets() == {"t-1": list(range(10))}
    # The positions are replaced too: the other topic-partition is exported from its start.
    assert out.write(root).records == 20
    assert out.offsets() == log_offsets(root)


@every_format
def test_error_refuses_an_output_with_data(root: Path, out: Output) -> None:
    out.write(root, mode="error")
    before = out.files()
    with pytest.raises(kbatch.LogDirectoryError, match="already has data; mode continue adds what is new"):
        out.write(root, mode="error")
    assert out.files() == before


@every_format
def test_runs_of_other_partitions_keep_the_positions(root: Path, out: Output) -> None:
    for number in (0, 1, 0):
        out.write(root, ReadOptions(partitions=frozenset([number])))
    assert out.offsets() == log_offsets(root)
    assert out.write(root).action == "unchanged"


def test_a_range_of_offsets_continues_where_it_ended(root: Path, out: Output) -> None:
    for end in (7, 12, 20):
        ending = Bound(offsets={"t": {0: end, 1: -1}})
        out.write(root, ReadOptions(ending=ending))
    assert out.offsets() == log_offsets(root)


def test_a_position_comes_before_a_starting_offset(root: Path, out: Output) -> None:
    out.write(root)
    starting = Bound(offsets={"t": {0: 4, 1: -2}})
    assert out.write(root, ReadOptions(starting=starting)).action == "unchanged"


def test_a_start_that_retention_has_passed_does_not_matter_after_a_position(root: Path, out: Output) -> None:
    """The same command succeeds each day, although the log loses its oldest records."""
    for path in (root / "t-1").iterdir():
        path.unlink()
    (root / "t-1").rmdir()
    log_batches.write_segment(root / "t-0", 20, batches(20, 3))
    since = ReadOptions(starting=Bound(offsets={"t": {0: 4}}))
    assert out.write(root, since).records == 22
    (root / "t-0" / f"{0:020d}.log").unlink()
    log_batches.write_segment(root / "t-0", 26, batches(26, 2))
    second = out.write(root, since)
    assert (second.action, second.records, second.exit_status) == ("continued", 4, 0)
    beyond = ReadOptions(starting=Bound(offsets={"t": {0: 4}}), ending=Bound(offsets={"t": {0: 40}}))
    with pytest.raises(kbatch.LogDirectoryError, match="asks for offsets below 40, but the first one available is 20"):
        out.write(root, beyond)


def test_an_incomplete_batch_is_read_by_the_next_run(root: Path, out: Output) -> None:
    path = root / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes() + b"".join(batches(20, 1))
    path.write_bytes(whole[:-10])
    assert out.write(root).partitions[0].unfinished_bytes > 0
    path.write_bytes(whole)
    assert out.write(root).records == 2
    assert out.offsets() == log_offsets(root)


def test_withheld_transactions_are_read_when_they_are_decided(tmp_path: Path, out: Output, golden: Path) -> None:
    """LSO-R1: under read_committed a run ends at the last stable offset."""
    source = golden / "logs" / "txn-0"
    log = kbatch.Log(source)
    stable = log.transactions().last_stable_offset
    assert stable is not None
    root = tmp_path / "logs"
    shutil.copytree(source, root / "txn-0")
    first = out.write(root, ReadOptions(isolation="read_committed"))
    assert first.partitions[0].next_offset == stable
    assert out.write(root, ReadOptions(isolation="read_committed")).records == 0
    committed = [int(x) for table in log.tables(isolation="read_committed") for x in table.records["offset"]]
    assert out.offsets() == {"txn-0": committed}


# -- logs that changed


@pytest.mark.parametrize("out", ["parquet", "delta", "iceberg"], indirect=True)
def test_records_deleted_by_retention_are_an_error_or_a_reported_gap(root: Path, out: Output) -> None:
    out.write(root)
    log_batches.write_segment(root / "t-0", 40, batches(40, 3))
    (root / "t-0" / f"{0:020d}.log").unlink()
    before = out.files()
    message = "t-0: the last run ended before offset 20, but offsets 20 to 39 were deleted"
    with pytest.raises(kbatch.LogDirectoryError, match=message):
        out.write(root)
    assert out.files() == before
    summary = out.write(root, ReadOptions(fail_on_data_loss=False))
    assert [(change["kind"], change["position"], change["resumed_at"]) for change in summary.changes] == [
        ("deleted", 20, 40)
    ]
    assert summary.exit_status == 3
    assert out.offsets()["t-0"] == [*range(20), *range(40, 46)]
    assert out.write(root).action == "unchanged"


@pytest.mark.parametrize("out", ["parquet", "delta", "iceberg"], indirect=True)
def test_a_truncated_log_is_an_error_or_resumed_at_its_end(root: Path, out: Output) -> None:
    out.write(root)
    path = root / "t-0" / f"{0:020d}.log"
    path.write_bytes(b"".join(batches(0, 6)))
    with pytest.raises(kbatch.LogDirectoryError, match="the log was truncated: its end is now offset 12"):
        out.write(root)
    summary = out.write(root, ReadOptions(fail_on_data_loss=False))
    assert [(change["kind"], change["resumed_at"]) for change in summary.changes] == [("truncated", 12)]
    path.write_bytes(b"".join([*batches(0, 6), *batches(12, 2, epoch=1)]))
    assert out.write(root).records == 4


@pytest.mark.parametrize("out", ["parquet", "delta", "iceberg"], indirect=True)
def test_a_log_that_was_truncated_and_grew_is_recognized_by_its_leader_epoch(root: Path, out: Output) -> None:
    out.write(root)
    path = root / "t-0" / f"{0:020d}.log"
    path.write_bytes(b"".join([*batches(0, 6), *batches(12, 20, epoch=3)]))
    with pytest.raises(kbatch.LogDirectoryError, match="leader epoch of offset 19 was 0 and is now 3"):
        out.write(root)
    summary = out.write(root, ReadOptions(fail_on_data_loss=False))
    assert [(change["kind"], change["resumed_at"]) for change in summary.changes] == [("truncated", 12)]
    assert summary.records == 40


@every_format
def test_a_topic_that_was_created_again_is_recognized_by_its_id(root: Path, out: Output) -> None:
    """Also if it was recreated twice, or the directory of an earlier one is back; the error names both ids."""
    metadata = root / "t-0" / "partition.metadata"
    ids = {}
    for each in "gAQ":
        metadata.write_text(f"version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrc{each}\n")
        ids[each] = kbatch.log.read_partition_metadata(metadata).topic_id
    first, *others = "gAQgA"
    metadata.write_text(f"version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrc{first}\n")
    out.write(root)
    assert out.write(root).action == "unchanged"
    for each in others:
        metadata.write_text(f"version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrc{each}\n")
        message = f"t-0: .* the topic was recreated: its id was {ids[first]}, and is now {ids[each]}"
        with pytest.raises(kbatch.LogDirectoryError, match=message):
            out.write(root)
        summary = out.write(root, ReadOptions(fail_on_data_loss=False))
        assert [(change["kind"], change["resumed_at"]) for change in summary.changes] == [("recreated", 0)]
        assert summary.records == 20
        assert out.write(root).action == "unchanged"
        first = each


@every_format
def test_a_topic_created_again_with_older_leader_epochs_is_continued(root: Path, out: Output) -> None:
    """Runs without an id before do not matter: the epochs of the former topic are not those of the new one."""
    metadata = root / "t-0" / "partition.metadata"
    log_batches.write_segment(root / "t-0", 20, batches(20, 3, epoch=5))
    metadata.write_text("version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n")
    out.write(root)
    metadata.unlink()
    log_batches.write_segment(root / "t-0", 26, batches(26, 3, epoch=7))
    assert out.write(root).records == 6
    shutil.rmtree(root / "t-0")
    log_batches.write_segment(root / "t-0", 0, batches(0, 30, epoch=2))
    assert out.write(root, ReadOptions(fail_on_data_loss=False)).records == 60
    for number, text in enumerate(("version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n", "")):
        metadata.write_text(text) if text else metadata.unlink()
        base = 60 + 6 * number
        log_batches.write_segment(root / "t-0", base, batches(base, 3, epoch=3))
        assert out.write(root).records == 6


@pytest.mark.parametrize("out", ["parquet", "delta", "iceberg"], indirect=True)
def test_the_id_of_a_topic_may_be_unknown_for_some_runs(root: Path, out: Output) -> None:
    """A copy of the log without partition.metadata is exported in between."""
    metadata = root / "t-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n")
    out.write(root)
    metadata.unlink()
    log_batches.write_segment(root / "t-0", 20, batches(20, 3, epoch=5))
    assert out.write(root).records == 6
    metadata.write_text("version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n")
    assert out.write(root).action == "unchanged"
    log_batches.write_segment(root / "t-0", 26, batches(26, 3, epoch=6))
    assert out.write(root).records == 6


def test_offsets_removed_by_compaction_are_counted(root: Path, out: Output) -> None:
    out.write(root)
    kept = [*batches(24, 1), log_batches.batch(30, [NOW], last_delta=4)]
    log_batches.write_segment(root / "t-0", 20, kept)
    summary = out.write(root)
    part = summary.partitions[0]
    # Offsets 20 to 23 and 26 to 29 have no batch, 31 to 34 no record.
    assert (part.records, part.next_offset, part.removed_offsets) == (3, 35, 12)
    assert (summary.exit_status, out.write(root).action) == (0, "unchanged")


# -- other columns


TEXT = ReadOptions(values=ValueOptions(value=FormatOptions("string")))


@every_format
def test_columns_that_cannot_be_read_together_are_refused(root: Path, out: Output) -> None:
    out.write(root)
    log_batches.write_segment(root / "t-0", 20, batches(20, 3))
    before = out.files()
    with pytest.raises(kbatch.LogDirectoryError, match=r"other columns: .*value.*overwrite") as caught:
        out.write(root, TEXT)
    assert "value (binary, not string)" in str(caught.value) or out.kind == "delta"
    with pytest.raises(kbatch.LogDirectoryError, match=r"day|date"):
        out.write(root, by_day=True)
    assert out.files() == before
    assert out.write(root).records == 6


@every_format
def test_overwrite_replaces_the_columns(root: Path, out: Output) -> None:
    out.write(root)
    assert out.write(root, TEXT, mode="overwrite").action == "replaced"
    assert out.offsets() == log_offsets(root)
    log_batches.write_segment(root / "t-0", 20, batches(20, 3))
    assert out.write(root, TEXT).records == 6
    if out.kind in ("delta", "iceberg"):
        table = out.table().to_pyarrow_table() if out.kind == "delta" else out.table().scan().to_arrow()
        assert table.column("value").to_pylist() == ["value"] * 36


def test_files_that_a_user_has_removed_do_not_stop_an_export(root: Path, out: Output) -> None:
    for path in out.write(root).files:
        (out.path / path).unlink()
    log_batches.write_segment(root / "t-0", 20, batches(20, 3))
    assert out.write(root).records == 6


# -- outputs of other origin


def test_a_directory_of_another_origin_is_refused(root: Path, out: Output) -> None:
    out.path.mkdir()
    (out.path / "mine.txt").write_text("x")
    for mode in ("continue", "overwrite", "error"):
        with pytest.raises(kbatch.LogDirectoryError, match="exists already, and is not the output of an export"):
            out.write(root, mode=mode)
    assert os.listdir(out.path) == ["mine.txt"]


@pytest.mark.parametrize("out", ["delta", "iceberg"], indirect=True)
def test_data_without_positions_is_replaced_only_on_request(
    root: Path, out: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.write(root)
    name = {"delta": "_COUNT_ID", "iceberg": "_COUNT_PROPERTY"}[out.kind]
    monkeypatch.setattr(f"kbatch.sinks.{out.kind}.{name}", "other")
    before = out.files()
    with pytest.raises(kbatch.LogDirectoryError, match="has data, but no positions at which an export could continue"):
        out.write(root)
    assert out.files() == before
    assert out.write(root, mode="overwrite").action == "replaced"
    assert out.offsets() == log_offsets(root)
    assert out.write(root).action == "unchanged"
