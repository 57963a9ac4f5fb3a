"""Commands on a log that lacks a segment: the gap counts as damage, unless compaction is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_batches import batch, write_segment

import kbatch
from kbatch.cli import main

MISSING = "offsets 2 to 3 are missing between the segments"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def command(*arguments: object) -> tuple[int, str, str]:
        status = main([*map(str, arguments)])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for first in (0, 4):
        write_segment(tmp_path / "logs" / "t-0", first, [batch(first, [1000, 1000])])
    return tmp_path / "logs" / "t-0"


@pytest.fixture(params=[False, True], ids=["unknown cause", "compacted"])
def is_compacted(request: pytest.FixtureRequest, log: Path) -> bool:
    if request.param:
        (log.parent / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    return bool(request.param)


def test_verify_lists_a_gap_of_unknown_cause_as_damage(run: Any, log: Path, is_compacted: bool) -> None:
    status, out, _ = run("verify", log)
    assert status == (0 if is_compacted else 3)
    assert (f"{MISSING} {0:020d}.log and {4:020d}.log: a gap of unknown cause" in out) is not is_compacted
    assert ("note: offsets are missing: 1 is followed by 4" in out) is is_compacted
    document = json.loads(run("verify", "--json", log)[1])
    assert len(document["logs"][0]["findings"]) == (0 if is_compacted else 1)
    assert len(document["logs"][0]["notes"]) == (1 if is_compacted else 0)


@pytest.mark.parametrize("flags", [[], ["--headers-only"]])
def test_stats_counts_the_missing_offsets(run: Any, log: Path, is_compacted: bool, flags: list[str]) -> None:
    status, out, _ = run("stats", "--details", *flags, log)
    assert status == (0 if is_compacted else 3)
    assert ("2 offsets in 1 place: `kbatch verify` lists them" in out) is not is_compacted
    (entry,) = json.loads(run("stats", "--json", *flags, log)[1])["logs"]
    assert (entry["losses"], entry["lost_bytes"], entry["missing_offsets"]) == (
        (0, 0, 0) if is_compacted else (1, 0, 2)
    )


def test_dump_reports_a_gap(run: Any, log: Path, is_compacted: bool) -> None:
    for flags in ([], ["--records"], ["--format", "kafka"], ["--offsets", "1:5"], ["--tail", "3"]):
        status, _, err = run("dump", *flags, log)
        assert status == (0 if is_compacted else 3)
        assert (MISSING in err) is not is_compacted
    for flags in (["--offsets", "4:"], ["--offsets", ":2"], ["--tail", "2"], ["--max-records", "1"]):
        assert run("dump", *flags, log)[0] == 0
    lines = [json.loads(line) for line in run("dump", log)[1].splitlines()]
    lost = [line for line in lines if line["status"] == "lost"]
    assert [line["size"] for line in lost] == ([] if is_compacted else [0])


def test_diff_reports_a_gap_as_damage(run: Any, log: Path, is_compacted: bool) -> None:
    status, out, err = run("diff", log, log)
    assert status == (0 if is_compacted else 2)
    assert (MISSING in out + err) is not is_compacted


def test_conversions_warn_of_a_gap(log: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.warns(RuntimeWarning, match="^1 gap of unknown cause between segments, whose offsets are missing here"):
        assert kbatch.Log(log).to_arrow().num_rows == 4
