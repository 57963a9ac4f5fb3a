"""The record of all exports to an output: a report is committed with the data, and repeated until somebody sees it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import log_batches
import pytest
from log_batches import NOW
from transaction_logs import data, txn

import kbatch
from kbatch.cli import main
from kbatch.log.store.storage import filesystem
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.value_options import FormatOptions, ValueOptions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.dataset")

import iceberg_catalog  # noqa: E402
from local_export import export  # noqa: E402

from kbatch.cli.export_summary import summary_lines  # noqa: E402
from kbatch.sinks.directories import StoreTarget  # noqa: E402
from kbatch.sinks.manifest import MANIFEST  # noqa: E402
from kbatch.sinks.outputs import OutputPlace, open_place  # noqa: E402
from kbatch.sinks.run_record import RunRecord, RunReport  # noqa: E402
from kbatch.sinks.summary import ExportSummary  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

MISSING = "offsets 20 to 39 are missing between the segments"


def add(root: Path, first: int, *, partition: int = 0) -> Path:
    batches = [log_batches.batch(base, [NOW, NOW]) for base in range(first, first + 20, 2)]
    return log_batches.write_segment(root / f"t-{partition}", first, batches)


class Output:
    """An output of some format; `write` exports to it."""

    def __init__(self, kind: str, place: OutputPlace) -> None:
        self.kind = kind
        self.place = place

    def write(self, root: Path, options: ReadOptions | None = None, **given: Any) -> ExportSummary:
        where: dict[str, Any] = {"format": "parquet" if self.kind == "object store" else self.kind}
        if self.kind == "iceberg":
            where |= {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}
        return export(root, self.place.url, options, storage=dict(self.place.storage), **where, **given)

    def reports(self) -> list[str]:
        return sorted(name for name in self.place.files() if name.startswith("_reports/"))


def new_bucket(server: str, directory: Path) -> OutputPlace:
    """Return a place in a bucket of its own."""
    own = {"access_key": "me", "secret_key": "secret", "background_writes": "false"}
    storage = {**own, "endpoint_override": f"http://{server}"}
    bucket = f"reports{zlib.crc32(os.fsencode(directory))}"
    filesystem(f"s3://{bucket}", {**storage, "allow_bucket_creation": "true"})[0].create_dir(bucket)
    return open_place(f"s3://{bucket}/out", storage)


@pytest.fixture
def out(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Output:
    kind: str = getattr(request, "param", "parquet")
    if kind == "delta":
        pytest.importorskip("deltalake")
    if kind == "iceberg":
        iceberg_catalog.use(tmp_path, monkeypatch)
    if kind == "object store":
        return Output(kind, new_bucket(request.getfixturevalue("s3_server"), tmp_path))
    return Output(kind, open_place(str(tmp_path / "out"), {}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log without the offsets 20 to 39."""
    for first in (0, 40):
        add(tmp_path / "logs", first)
    return tmp_path / "logs"


every_format = pytest.mark.parametrize("out", ["parquet", "arrow", "delta", "iceberg", "object store"], indirect=True)


@every_format
def test_the_report_of_a_run_that_nobody_saw_is_repeated_once(root: Path, out: Output) -> None:
    first = out.write(root, is_seen=False)
    assert first.report in out.reports()
    second = out.write(root)
    assert (second.action, second.run_status, second.exit_status) == ("unchanged", 0, 3)
    (unseen,) = second.unseen_reports
    assert (unseen["run"], unseen["report"], unseen["exit_status"]) == (first.run, first.report, 3)
    assert (unseen["gaps"], unseen["losses"]) == (first.gaps, first.losses)
    text = "\n".join(summary_lines(second))
    assert "Earlier exports ended before anybody saw their reports:" in text
    assert f"run {first.run}: created, 40 records" in text
    assert MISSING in text
    third = out.write(root)
    assert (third.exit_status, third.unseen_reports) == (0, [])
    assert len(out.reports()) == 2


@every_format
def test_runs_without_anything_to_report_leave_no_report(root: Path, out: Output) -> None:
    for path in (root / "t-0").glob("*40.log"):
        path.unlink()
    assert out.write(root, is_seen=False).report == ""
    add(root, 20)
    assert out.write(root, is_seen=False).exit_status == 0
    assert out.reports() == []


@every_format
def test_all_reports_remain_when_the_data_is_replaced(root: Path, out: Output) -> None:
    out.write(root)
    add(root, 80)
    out.write(root)
    again = out.write(root, mode="overwrite")
    assert (again.action, again.gap_count) == ("replaced", 2)
    assert len(out.reports()) == 6
    record = RunRecord(out.place)
    found = list(record.read(record.names()).values())
    assert [each.action for each in found] == ["created", "continued", "replaced"]
    assert [[gap["first_offset"] for gap in each.gaps] for each in found] == [[20], [60], [20, 60]]
    assert [each.exit_status for each in found] == [3, 3, 3]


@every_format
def test_readers_do_not_take_reports_for_data(root: Path, out: Output) -> None:
    out.write(root)
    assert out.reports()
    if out.kind == "delta":
        import deltalake

        table = deltalake.DeltaTable(out.place.url)
        assert table.to_pyarrow_table().num_rows == 40
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        assert len(out.reports()) == 2
    elif out.kind == "iceberg":
        assert iceberg_catalog.table().scan().to_arrow().num_rows == 40
    else:
        kind = "arrow" if out.kind == "arrow" else "parquet"
        found = pa.dataset.dataset(out.place.path(), filesystem=out.place.fs, format=kind, partitioning="hive")
        assert found.to_table().num_rows == 40


# -- what is reported


def damage(root: Path) -> ReadOptions:
    path = root / "t-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    return ReadOptions(on_error="skip")


def accepted(root: Path) -> ReadOptions:
    path = root / "t-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    return ReadOptions(crc="mark")


def withheld(root: Path) -> ReadOptions:
    path = log_batches.segment_path(root / "t-0", 20)
    path.write_bytes(data(20) + txn(21, 7) + data(22))
    return ReadOptions(isolation="read_committed")


def named(root: Path) -> ReadOptions:
    return ReadOptions(ending=Bound(offsets={"t": {0: 30}}), fail_on_data_loss=False)


def unparsed(root: Path) -> ReadOptions:
    return ReadOptions(values=ValueOptions(value=FormatOptions(format="json", schema="a int")))


@pytest.mark.parametrize(
    ("make", "status", "expected"),
    [
        (damage, 3, r"lost       85 bytes in 1 place: .*/_losses\n.*byte 0: 85 bytes: .*checksum"),
        (accepted, 3, r"checksums  1 batch accepted despite a wrong checksum"),
        (withheld, 4, r"withheld   t-0: 1 open transaction, \d+ bytes in 2 batches"),
        (named, 3, r"missing    t-0: the read asks for offsets below 30, but the first one available is 0"),
        (unparsed, 5, r"unparsed   20 values unparsed or incomplete, more than --max-bad allows"),
    ],
)
def test_the_report_has_what_the_summary_has(
    tmp_path: Path, out: Output, make: Callable[[Path], ReadOptions], status: int, expected: str
) -> None:
    root = tmp_path / "logs"
    add(root, 0)
    options = make(root)
    assert out.write(root, options, is_seen=False).exit_status == status
    again = out.write(root, ReadOptions(values=options.values, isolation=options.isolation))
    assert again.exit_status == status
    text = "\n".join(summary_lines(again))
    assert re.search(expected, text[text.index("Earlier exports ended") :]) is not None


@pytest.mark.parametrize("kind", ["deleted", "truncated"])
def test_a_changed_log_is_reported_again_whatever_the_exit_status(tmp_path: Path, out: Output, kind: str) -> None:
    root = tmp_path / "logs"
    first = add(root, 0)
    out.write(root)
    allowing = ReadOptions(fail_on_data_loss=False)
    if kind == "deleted":
        first.unlink()
        add(root, 40)
    else:
        first.write_bytes(first.read_bytes()[: 5 * 85])
    out.write(root, allowing, is_seen=False)
    again = out.write(root)
    (unseen,) = again.unseen_reports
    assert [each["kind"] for each in unseen["changes"]] == [kind]
    assert (again.run_status, again.exit_status) == (0, 3 if kind == "deleted" else 0)
    assert f"changed    {unseen['changes'][0]['reason']}; continued at offset" in "\n".join(summary_lines(again))


def test_the_exit_status_is_that_of_the_worst_run(tmp_path: Path) -> None:
    cases = {(0,): 0, (5, 0): 5, (5, 4): 4, (0, 4, 3, 5): 3, (3, 0): 3}
    for (own, *others), expected in cases.items():
        summary = ExportSummary("logs", "out", too_many_bad=own == 5, bad_crc_batches=int(own == 3))
        summary.unseen_reports = [{"exit_status": status} for status in others]
        assert (summary.run_status, summary.exit_status) == (own, expected)


def test_a_report_lists_the_first_hundred_and_counts_all(tmp_path: Path, out: Output) -> None:
    for first in range(0, 4 * 130, 4):
        log_batches.write_segment(tmp_path / "logs" / "t-0", first, [log_batches.batch(first, [NOW, NOW])])
    summary = out.write(tmp_path / "logs", is_seen=False)
    text = out.place.read(summary.report)
    assert text is not None
    assert len(text) < 100_000
    report = RunReport.parse(text, "")
    assert (len(report.losses), report.loss_count, len(report.gaps), report.gap_count) == (100, 129, 100, 129)
    lines = "\n".join(summary_lines(out.write(tmp_path / "logs")))
    assert f"and 109 more places; {out.place.url}/_losses lists all" in lines


def test_many_unseen_reports_are_repeated_a_hundred_at_a_time(root: Path, out: Output) -> None:
    first = out.write(root)
    text = out.place.read(first.report)
    assert text is not None
    for number in range(130):
        name = RunRecord.name(f"{number:08x}", datetime.fromtimestamp(number, UTC))
        out.place.write(name, text.replace(first.run.encode(), f"{number:08x}".encode()))
    counts = [len(out.write(root).unseen_reports) for _ in range(3)]
    assert counts == [100, 30, 0]


# -- runs that end early


@every_format
def test_a_run_that_fails_to_commit_leaves_no_report(root: Path, out: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has found is found again by the next run."""

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if out.kind == "delta":
            patch.setattr("deltalake.transaction.create_table_with_add_actions", fail)
        elif out.kind == "iceberg":
            patch.setattr("kbatch.sinks.iceberg.IcebergTable._transaction", fail)
        else:
            patch.setattr("kbatch.sinks.directories.new_manifest", fail)
        with pytest.raises((OSError, kbatch.KbatchError), match="No space left"):
            out.write(root)
    assert out.reports() == []
    assert [gap["first_offset"] for gap in out.write(root).gaps] == [20]


def test_an_output_that_changes_before_the_commit_gets_no_report(
    root: Path, stored: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stored
    out.write(root)
    add(root, 80)
    names = out.reports()
    commit = StoreTarget.commit

    def late(self: StoreTarget, what: Any) -> None:
        out.place.write(MANIFEST, (out.place.read(MANIFEST) or b"") + b" ")
        commit(self, what)

    with monkeypatch.context() as patch:
        patch.setattr(StoreTarget, "commit", late)
        with pytest.raises(kbatch.KbatchError, match="was changed by another export"):
            out.write(root)
    assert out.reports() == names


@pytest.fixture
def stored(s3_server: str, tmp_path: Path) -> Output:
    return Output("object store", new_bucket(s3_server, tmp_path))


@pytest.mark.parametrize("out", ["delta", "iceberg"], indirect=True)
def test_a_committed_run_is_recognized_after_the_clean_up_of_the_table(
    root: Path, out: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a Delta table and the snapshots of an Iceberg table are removed after some time."""
    (root / "t-0" / f"{40:020d}.log").rename(root / "later")
    out.write(root)
    (root / "t-0" / f"{40:020d}.log").touch()
    summary = out.write(root, is_seen=False)
    assert (summary.action, summary.files, summary.gap_count) == ("continued", [], 1)
    (Path(out.place.url) / f"_temporary-{summary.run}").mkdir()
    if out.kind == "delta":
        import deltalake

        table = deltalake.DeltaTable(out.place.url)
        table.create_checkpoint()
        for path in (Path(out.place.url) / "_delta_log").glob("*.json"):
            path.unlink()
        assert not any("kbatch.run" in each for each in deltalake.DeltaTable(out.place.url).history())
    assert out.write(root).exit_status == 3
    assert summary.report in out.reports()


@every_format
def test_the_report_of_a_killed_run_that_was_not_committed_is_removed(root: Path, out: Output) -> None:
    first = out.write(root)
    report = json.loads(out.place.read(first.report) or b"") | {"run": "0123abcd"}
    name = RunRecord.name("0123abcd", datetime.now(UTC))
    if out.kind in ("parquet", "arrow"):
        # There, the report is in the work directory until the run has begun to commit.
        name = f"_temporary-0123abcd/new/{name}"
    out.place.write(name, json.dumps(report).encode())
    out.place.write("_temporary-0123abcd/owner.json", b"{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kbatch.sinks.working.DEAD_SECONDS", 0)
        assert out.write(root).exit_status == 0
    assert len(out.reports()) == 2


def test_a_report_that_cannot_be_marked_is_printed_again(
    root: Path, out: Output, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = OutputPlace.write

    def refuse(self: OutputPlace, name: str, text: bytes) -> None:
        if name.endswith(".seen"):
            raise PermissionError(13, "Permission denied")
        write(self, name, text)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "kbatch"):
        patch.setattr(OutputPlace, "write", refuse)
        assert out.write(root).exit_status == 3
        assert out.write(root).exit_status == 3
    assert "cannot be marked as seen" in caplog.text
    assert out.write(root).exit_status == 3
    assert out.write(root).exit_status == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"run": "a", "ended": "b", "exit_status": "3"}',
        b'{"run": "a", "ended": "b", "exit_status": 3, "losses": [{"file": 1}]}',
        b'{"run": "a", "ended": "b", "exit_status": 3, "changes": 7}',
    ],
)
def test_a_file_that_is_no_report_is_an_error_that_names_it(root: Path, out: Output, text: bytes) -> None:
    out.write(root)
    out.place.write("_reports/20260101T000000000Z-0123abcd.json", text)
    with pytest.raises(kbatch.LogDirectoryError, match=r"_reports/2026.*: not the report of an export .* move it"):
        out.write(root)


# -- the command line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def command(*arguments: object) -> tuple[int, str, str]:
        status = main(["export", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def test_the_command_prints_unseen_reports_and_marks_them(root: Path, out: Output, run: Any) -> None:
    pytest.importorskip("kbatch.spark", exc_type=ImportError)
    first = out.write(root, is_seen=False)
    # Nothing is new, so Spark is not started.
    flags = [root, out.place.url, "--master", "spark://host:7077"]
    status, text, _ = run(*flags)
    assert status == 3
    assert f"run {first.run}: created, 40 records" in text
    assert MISSING in text
    status, text, _ = run(*flags)
    assert (status, "Earlier exports" in text) == (0, False)


def test_the_command_marks_nothing_that_it_could_not_print(
    root: Path, out: Output, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kbatch.spark", exc_type=ImportError)

    def full(*lines: str) -> None:
        raise OSError(28, "No space left on device")

    out.write(root, is_seen=False)
    with monkeypatch.context() as patch:
        patch.setattr("kbatch.cli.export.print_lines", full)
        assert run(root, out.place.url, "--master", "spark://host:7077")[0] == 1
    status, text, _ = run(root, out.place.url, "--master", "spark://host:7077", "--json")
    document = json.loads(text)
    assert (status, document["exit_status"], document["damaged"]) == (3, 3, True)
    assert [each["gap_offsets"] for each in document["unseen_reports"]] == [20]


@every_format
def test_report_prints_the_record_and_changes_nothing(root: Path, out: Output, run: Any) -> None:
    out.write(root)
    add(root, 80)
    out.write(root, is_seen=False)
    names = out.reports()
    storage = [text for each in out.place.storage.items() for text in ("--storage-option", "=".join(each))]
    status, text, err = run("--report", out.place.url, *storage)
    assert (status, err) == (0, "")
    first, second = text.index(": created, 40 records\n"), text.index(": continued, 20 records; nobody has seen this")
    assert first < text.index(MISSING) < second < text.index("offsets 60 to 79 are missing")
    assert text.count("lost       20 offsets in 1 gap of unknown cause between segments") == 2
    document = json.loads(run("--json", "--report", out.place.url, *storage)[1])
    assert (document["command"], document["exit_status"], document["damaged"]) == ("export", 0, True)
    assert (document["out"], document["logs"]) == (out.place.url, [])
    assert [(each["gap_offsets"], each["seen"], each["finished"]) for each in document["reports"]] == [
        (20, True, True), (20, False, True),
    ]  # fmt: skip
    assert out.reports() == names


def test_report_states_which_runs_have_not_ended(root: Path, out: Output, run: Any) -> None:
    summary = out.write(root, is_seen=False)
    (Path(out.place.url) / f"_temporary-{summary.run}").mkdir()
    text = run("--report", out.place.url)[1]
    assert "; nobody has seen this report; it has not ended, or was killed: the next export decides\n" in text
    (report,) = json.loads(run("--report", out.place.url, "--json")[1])["reports"]
    assert report["finished"] is False


def test_report_of_an_output_without_losses(root: Path, out: Output, run: Any) -> None:
    (root / "t-0" / f"{40:020d}.log").unlink()
    out.write(root)
    status, text, _ = run("--report", out.place.url)
    assert status == 0
    assert "no export has lost, withheld or found anything missing or changed" in text
    document = json.loads(run("--report", out.place.url, "--json")[1])
    assert (document["damaged"], document["reports"]) == (False, [])


def test_report_needs_the_output_of_an_export(tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for name in ("other", "missing"):
        status, text, err = run("--report", tmp_path / name)
        assert (status, text) == (1, "")
        assert f"{tmp_path / name}: not the output of an export" in err
    for words in (["logs", "out"], ["out"]):
        with pytest.raises(SystemExit) as caught:
            run("--report", tmp_path, *words)
        assert caught.value.code == 2
        assert "--report takes the output of exports, and no LOGDIR" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("out")
    assert "the following arguments are required: OUT" in capsys.readouterr().err


def test_control_characters_of_a_report_do_not_reach_the_terminal(root: Path, out: Output, run: Any) -> None:
    summary = out.write(root)
    text = (out.place.read(summary.report) or b"").replace(b"offsets 20", b"\\u001b[31moffsets 20")
    out.place.write(summary.report, text)
    assert "\x1b" not in run("--report", out.place.url)[1]


def test_report_needs_no_spark(root: Path, out: Output, tmp_path: Path) -> None:
    out.write(root)
    code = "import sys; sys.modules['pyspark'] = None; from kbatch.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "export", "--report", out.place.url]
    paths = str(Path(kbatch.__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stderr) == (0, "")
    assert MISSING in done.stdout
