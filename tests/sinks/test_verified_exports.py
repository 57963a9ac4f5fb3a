"""The verification of outputs against their logs: a record that is missing or doubled is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kbatch

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import export_outputs  # noqa: E402
import iceberg_catalog  # noqa: E402
import numpy as np  # noqa: E402
from export_outputs import Output, batches  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from local_export import export  # noqa: E402
from local_follow import GrowingLog, follow  # noqa: E402
from log_batches import NOW, batch, write_segment  # noqa: E402

from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks import offset_windows, partition_check  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def verified(out: Output | Path, root: Path, **options: Any) -> kbatch.ExportVerification:
    kind, path = (out.kind, out.path) if isinstance(out, Output) else ("parquet", out)
    tables = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME} if kind == "iceberg" else {}
    return kbatch.verify_export(path, root, **tables, **options)


def kinds(found: kbatch.ExportVerification) -> list[str]:
    return [finding.kind for finding in found.findings]


def data_files(out: Output) -> list[Path]:
    return sorted(path for path in out.path.rglob("part-*") if path.suffix in (".parquet", ".arrow"))


def change(path: Path, keep: Any) -> None:
    """Write a data file again, with these of its rows."""
    keep = pa.array(keep, pa.int64())
    if path.suffix == ".arrow":
        rows = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all().take(keep)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    else:
        pq.write_table(pq.ParquetFile(path).read().take(keep), path, row_group_size=7)


@pytest.mark.parametrize("out", export_outputs.FORMATS, indirect=True)
def test_an_export_that_continues_has_every_record_once(out: Output, root: Path) -> None:
    out.write(root)
    write_segment(root / "t-0", 20, batches(20, 10))
    out.write(root)
    found = verified(out, root)
    assert (found.findings, found.damaged) == ([], False)
    assert [(part.topic, part.partition, part.start, part.end, part.compared) for part in found.partitions] == [
        ("t", 0, 0, 40, 40),
        ("t", 1, 0, 10, 10),
    ]


@pytest.mark.parametrize("out", export_outputs.FORMATS, indirect=True)
def test_a_removed_row_and_a_doubled_row_are_named(out: Output, root: Path) -> None:
    out.write(root)
    first, second = data_files(out)
    change(first, [0, 1, *range(5, 20)])
    change(second, [0, 1, 1, 1, *range(2, 10)])
    found = verified(out, root)
    assert found.damaged
    named = [(each.partition, each.kind, each.first_offset, each.last_offset, each.total) for each in found.findings]
    assert named == [(0, "missing", 2, 4, 3), (1, "doubled", 1, 1, 1)]
    assert [(part.missing, part.doubled) for part in found.partitions] == [(3, 0), (0, 2)]


@pytest.mark.parametrize("out", ["parquet", "arrow"], indirect=True)
def test_a_copied_and_a_removed_file_are_found(out: Output, root: Path) -> None:
    out.write(root)
    first, second = data_files(out)
    copy = first.with_name(first.name.replace("part-0", "part-1"))
    shutil.copy(first, copy)
    second.unlink()
    found = verified(out, root)
    assert [(each.kind, each.first_offset, each.last_offset) for each in found.findings] == [
        ("doubled", 0, 19),
        ("missing", 0, 9),
    ]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_removed_and_doubled_is_found_exactly(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """The rows of files, in any order, less some and with some twice; in windows of a few offsets."""
    place = tmp_path_factory.mktemp("verified")
    log = GrowingLog(place / "logs" / "t-0", data.draw(st.integers(1, 9)))
    log.append(data.draw(st.integers(1, 16)))
    follow(place / "logs", place / "out", available_now=True, commit_bytes=data.draw(st.integers(200, 2000)))
    everything = np.arange(log.end)
    files = data_files(Output("parquet", place / "out"))
    expected = np.zeros(log.end, int)
    for path in files:
        offsets = pq.ParquetFile(path).read(["offset"])["offset"].to_numpy()
        rows = data.draw(st.lists(st.integers(0, len(offsets) - 1), max_size=2 * len(offsets)))
        if data.draw(st.booleans()):
            rows = list(range(len(offsets)))
        change(path, rows)
        np.add.at(expected, offsets[rows], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_windows, "WINDOW_ROWS", data.draw(st.integers(1, 50)))
        found = verified(place / "out", place / "logs")
    got: dict[str, set[int]] = {"missing": set(), "doubled": set()}
    for each in found.findings:
        got[each.kind] |= set(range(each.first_offset or 0, (each.last_offset or 0) + 1))
    assert got["missing"] == set(everything[expected == 0].tolist())
    assert got["doubled"] == set(everything[expected > 1].tolist())
    (part,) = found.partitions
    assert (part.missing, part.doubled) == (int((expected == 0).sum()), int(np.maximum(expected - 1, 0).sum()))
    assert found.damaged == bool((expected != 1).any())


def test_windows_are_bounded_by_the_size_of_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the output lacks, and rows that the log lacks, do not make a window larger."""
    root, out = tmp_path / "logs", Output("parquet", tmp_path / "out")
    log = GrowingLog(root / "t-0", 50)
    log.append(400)
    follow(root, out.path, available_now=True, commit_bytes=8000)
    for number, path in enumerate(data_files(out)):
        rows = pq.ParquetFile(path).metadata.num_rows
        change(path, range(rows) if number % 2 else range(0))
    (root / "t-0" / f"{300:020d}.log").unlink()
    sizes: list[tuple[int, int]] = []
    original = partition_check.windows

    def windows(*arguments: Any) -> Any:
        for window in original(*arguments):
            sizes.append((len(window.written), len(window.expected)))
            yield window

    monkeypatch.setattr(partition_check, "windows", windows)
    monkeypatch.setattr(offset_windows, "WINDOW_ROWS", 20)
    found = verified(out, root)
    assert sum(part.missing for part in found.partitions) > 100
    assert len(sizes) > 20
    # Row groups have seven rows.
    assert max(map(max, sizes)) <= 20 + 7


def test_offsets_of_control_batches_and_aborted_transactions_are_not_missing(golden: Path, tmp_path: Path) -> None:
    root = golden / "logs"
    for isolation in "read_uncommitted", "read_committed":
        export(root, tmp_path / isolation, ReadOptions(isolation=isolation))  # type: ignore[arg-type]
        found = verified(tmp_path / isolation, root)
        assert not found.damaged
        assert {*kinds(found)} <= {"behind"}
    export(root, tmp_path / "control", ReadOptions(include_control=True))
    assert verified(tmp_path / "control", root).findings == []


def test_losses_that_a_copy_of_the_log_does_not_have_are_missing(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    path = root / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    size = len(data) // 10
    data[3 * size + 70] ^= 1
    path.write_bytes(data)
    export(root, tmp_path / "out", ReadOptions(on_error="skip"))
    # Compared with the damaged log, nothing is missing: the offsets of its lost bytes are unknown.
    assert [(each.kind, each.damage) for each in verified(tmp_path / "out", root).findings] == [
        ("lost", False),
        ("damaged", False),
    ]
    found = verified(tmp_path / "out", tmp_path / "copy")
    assert [(each.kind, each.first_offset, each.last_offset) for each in found.findings] == [
        ("missing", 6, 7),
        ("lost", 0, 19),
    ]
    assert "had losses" in found.findings[0].text


def test_what_the_log_does_not_have_any_more_is_compared_by_its_number(root: Path, tmp_path: Path) -> None:
    out = Output("parquet", tmp_path / "out")
    write_segment(root / "t-0", 20, batches(20, 10))
    out.write(root)
    (root / "t-0" / f"{0:020d}.log").unlink()
    found = verified(out, root)
    assert [(each.kind, each.damage, each.first_offset, each.last_offset) for each in found.findings] == [
        ("gone", False, 0, 19)
    ]
    path = data_files(out)[0]
    change(path, [0, *range(2, 40)])
    found = verified(out, root)
    assert [(each.kind, each.damage) for each in found.findings] == [("fewer", True), ("gone", False)]
    assert "the commits wrote 40 records, and the output has 39" in found.findings[0].text
    shutil.rmtree(root / "t-0")
    assert kinds(verified(out, root)) == ["fewer", "gone"]


def test_compaction_after_the_export_leaves_extra_rows(tmp_path: Path) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    write_segment(root / "t-0", 0, batches(0, 10))
    export(root, out)
    write_segment(root / "t-0", 0, [*batches(0, 2), *batches(10, 5)])
    found = verified(out, root)
    assert [(each.kind, each.total, each.damage) for each in found.findings] == [("extra", 6, False)]


@pytest.mark.parametrize("out", export_outputs.FORMATS, indirect=True)
def test_the_rows_of_a_log_that_was_truncated_or_made_again_are_not_compared(out: Output, root: Path) -> None:
    out.write(root)
    # The topic-partition t-0 is truncated at offset 10, and t-1 recreated.
    write_segment(root / "t-0", 0, [*batches(0, 5), *batches(10, 2, epoch=1)])
    write_segment(root / "t-1", 0, [batch(i, [NOW + 7 * i]) for i in range(12)])
    summary = out.write(root, ReadOptions(fail_on_data_loss=False))
    assert {change["kind"] for change in summary.changes} == {"truncated", "recreated"}
    found = verified(out, root)
    assert [(each.partition, each.kind, each.total) for each in found.findings] == [
        (0, "restarted", 10),
        (1, "restarted", 10),
    ]
    assert [(part.start, part.end, part.compared) for part in found.partitions] == [(0, 14, 14), (0, 12, 12)]


@pytest.mark.parametrize("out", export_outputs.FORMATS, indirect=True)
def test_an_export_that_replaced_the_data_is_compared_alone(out: Output, root: Path) -> None:
    out.write(root)
    write_segment(root / "t-0", 20, batches(20, 10))
    out.write(root, mode="overwrite")
    assert verified(out, root).findings == []


def test_an_export_that_is_behind_or_began_later_is_a_note(root: Path, tmp_path: Path) -> None:
    from kbatch.bounds import Bound

    export(root, tmp_path / "out", ReadOptions(starting=Bound(offset=4)))
    write_segment(root / "t-0", 20, batches(20, 10))
    found = verified(tmp_path / "out", root)
    assert [(each.kind, each.first_offset, each.total) for each in found.findings] == [("behind", 20, 20)]
    assert found.partitions[0].start == 4


def test_offsets_between_two_commits_that_none_covers_are_missing(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(root, out)
    write_segment(root / "t-0", 20, batches(20, 10))
    manifest = json.loads((out / "_manifest.json").read_text())
    for position in manifest["positions"]:
        if position["partition"] == 0:
            position |= {"next_offset": 26, "batch_crc": None, "record_crc": None}
    (out / "_manifest.json").write_text(json.dumps(manifest))
    export(root, out)
    found = verified(out, root)
    assert [(each.kind, each.first_offset, each.last_offset) for each in found.findings] == [("missing", 20, 25)]


def test_rows_of_no_commit_are_damage(root: Path, tmp_path: Path) -> None:
    out = Output("parquet", tmp_path / "out")
    out.write(root)
    path = data_files(out)[0]
    rows = pq.ParquetFile(path).read()
    strange = rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array([1000 + i for i in range(20)]))
    pq.write_table(strange.slice(0, 3), path.with_name("foreign.parquet"))
    found = verified(out, root)
    assert [(each.kind, each.first_offset, each.last_offset) for each in found.findings] == [("uncovered", 1000, 1002)]


def test_an_export_of_one_key_is_compared_by_its_number(root: Path, tmp_path: Path) -> None:
    export(root, tmp_path / "out", ReadOptions(key=b"none"))
    found = verified(tmp_path / "out", root)
    assert (found.damaged, {*kinds(found)}) == (False, {"unknown"})


@pytest.mark.parametrize("out", ["delta", "iceberg"], indirect=True)
def test_the_metadata_of_a_table_replaces_the_file_of_a_run(out: Output, root: Path) -> None:
    first = out.write(root)
    write_segment(root / "t-0", 20, batches(20, 10))
    out.write(root)
    (out.path / f"_export-{first.run}" / "_offsets.json").unlink()
    assert verified(out, root).findings == []


def test_a_run_of_which_nothing_is_known_is_named(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export(root, out)
    write_segment(root / "t-0", 20, batches(20, 10))
    export(root, out)
    manifest = json.loads((out / "_manifest.json").read_text())
    del manifest["runs"][0]["kbatch.offsets"]
    (out / "_manifest.json").write_text(json.dumps(manifest))
    found = verified(out, root)
    assert (found.damaged, {*kinds(found)}) == (False, {"unknown"})
    assert first.run in found.findings[0].text
    assert (found.partitions[0].start, found.partitions[0].end) == (20, 40)


@pytest.mark.parametrize("text", ["[]", "{}", '{"after": 1}', "7", "x"])
def test_offsets_that_are_none_name_their_file(text: str, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(root, out)
    manifest = json.loads((out / "_manifest.json").read_text())
    manifest["runs"][0]["kbatch.offsets"] = text
    (out / "_manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(kbatch.LogDirectoryError, match=r"_manifest\.json: not the offsets of a commit"):
        verified(out, root)


def test_something_else_than_an_output_is_an_error(root: Path, tmp_path: Path) -> None:
    with pytest.raises(kbatch.LogDirectoryError, match="not the output of an export"):
        kbatch.verify_export(root, root)
    export(root, tmp_path / "out")
    (path, *_) = (tmp_path / "out").rglob("part-*.parquet")
    path.write_bytes(b"something else")
    with pytest.raises(kbatch.LogDirectoryError, match=r"\.parquet: its offsets cannot be read"):
        kbatch.verify_export(tmp_path / "out", root)
