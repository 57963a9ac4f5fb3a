"""A dry run of a compaction, and the reason why a log, or a part of it, is not cleaned."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from log_batches import write_segment

import kbatch
from kbatch.cli import main
from kbatch.log import compact_log

NOW = 1_800_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of three segments, with four records of two keys each; the second is younger than the first."""
    for base, time in ((0, NOW - 10_000_000), (4, NOW - 5_000), (8, NOW - 5_000)):
        batches = [
            kbatch.encode([b"v"] * 2, keys=[b"a", b"b"], timestamps=time, base_offset=offset)
            for offset in (base, base + 2)
        ]
        write_segment(tmp_path / "t-0", base, batches)
    return tmp_path / "t-0"


def reasons(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(line.strip() for line in capsys.readouterr().out.splitlines() if " cleaned:" in line)


@pytest.mark.parametrize("name", ["compact-src-0", "txn-0", "mixed-0"])
@pytest.mark.parametrize("active", [False, True])
def test_a_dry_run_counts_what_a_compaction_does(name: str, active: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"now": NOW, "include_active": active}
    planned = compact_log(LOGS / name, None, dry_run=True, **options)
    done = compact_log(LOGS / name, tmp_path / name, **options)
    assert asdict(planned) == {**asdict(done), "dry_run": True}
    assert planned.bytes_out == kbatch.Log(tmp_path / name).size


def test_a_dry_run_writes_nothing(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(log.parent.rglob("*"))
    assert main(["compact", "--dry-run", str(log)]) == 0
    assert main(["compact", "--dry-run", str(log), str(log.parent / "out-0")]) == 0
    assert main(["compact", "--dry-run", str(log.parent)]) == 0
    assert sorted(log.parent.rglob("*")) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{log}: 12 records (")
    assert "8 batches would be rewritten" not in lines[0]
    assert lines[1].startswith("  would be removed: 6 records, ")
    assert "dirty ratio 1.00" in lines[1]
    assert lines.count("nothing was written (--dry-run)") == 3


def test_without_an_output_a_dry_run_is_required(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compact", str(log)])
    assert "OUT is missing" in capsys.readouterr().err
    with pytest.raises(ValueError, match="out is required"):
        compact_log(log, None)


@pytest.mark.parametrize(
    ("flags", "limit", "text"),
    [
        ([], "active_segment", "from offset 8 on, nothing was cleaned: a broker still writes to the last segment"),
        (["--include-active"], None, ""),
        (
            ["--min-compaction-lag-ms", "60000"],
            "min_compaction_lag",
            "from offset 4 on, nothing was cleaned: the next segment has a record younger than 60000 ms "
            "(--min-compaction-lag-ms; min.compaction.lag.ms of the topic)",
        ),
        (
            ["--min-compaction-lag-ms", "99999999999"],
            "min_compaction_lag",
            "nothing was cleaned: the next segment has a record younger than 99999999999 ms",
        ),
        (
            ["--first-dirty-offset", "4", "--min-cleanable-dirty-ratio", "0.5"],
            "dirty_ratio",
            "nothing was cleaned: the dirty ratio is 0.50, not more than 0.5 (--min-cleanable-dirty-ratio; "
            "min.cleanable.dirty.ratio of the topic)",
        ),
        (["--first-dirty-offset", "4", "--min-cleanable-dirty-ratio", "0.4"], "active_segment", "from offset 8 on"),
        (
            ["--first-dirty-offset", "12", "--include-active"],
            None,
            "nothing was cleaned: the log has no batch from offset 12",
        ),
    ],
)
def test_the_output_names_the_reason_and_the_setting(
    flags: list[str], limit: str | None, text: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compact", "--now", str(NOW), str(log)]
    assert main([*command, str(tmp_path / "out-0"), *flags]) == 0
    shown = reasons(capsys)
    assert shown.startswith(text) if text else shown == ""
    assert main([*command, str(tmp_path / "again-0"), *flags, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["logs"]
    assert found["limit"] == limit


def test_an_open_transaction_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", str(LOGS / "txn-0"), str(tmp_path / "txn-0"), "--include-active"]) == 0
    assert reasons(capsys) == (
        "from offset 362 on, nothing was cleaned: producer 1002 has an open transaction from offset 362 on, "
        "which must be committed or aborted first"
    )


def test_the_dirty_ratio_is_that_of_whole_segments(log: Path) -> None:
    sizes = [os.path.getsize(segment.path) for segment in kbatch.Log(log).segments]
    done = compact_log(log, None, dry_run=True, first_dirty_offset=4, include_active=True)
    assert (done.clean_bytes, done.dirty_bytes) == (sizes[0], sum(sizes[1:]))
    assert done.dirty_ratio == pytest.approx(2 / 3)


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "x", "nan"])
def test_a_ratio_outside_of_0_to_1_is_wrong_usage(ratio: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compact", str(log), "out", f"--min-cleanable-dirty-ratio={ratio}"])
    assert "argument --min-cleanable-dirty-ratio: must be a number from 0 to 1" in capsys.readouterr().err
