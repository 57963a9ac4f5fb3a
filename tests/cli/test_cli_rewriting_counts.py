"""``kbatch convert`` and ``recompress`` count records, control records and open transactions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_logs import LOGS

import kbatch
from kbatch.cli import main

Capture = pytest.CaptureFixture[str]
OPEN = [each._asdict() for each in kbatch.Log(LOGS / "txn-0").transactions().open]


@pytest.mark.parametrize("command", [["convert"], ["recompress", "--codec", "zstd"], ["recompress", "--codec", "none"]])
def test_records_control_records_and_open_transactions_are_counted(
    command: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert main([*command, str(LOGS / "txn-0"), str(tmp_path / "a")]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'a'}: 337 records, 34 control records; 165 batches (21.9 KiB) -> 165 (")
    assert [line.split()[:3] for line in rest[-2:]] == [["txn-0", "1002", "362"], ["txn-0", "1004", "367"]]
    assert main([*command, "--json", str(LOGS / "txn-0"), str(tmp_path / "b")]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["logs"]
    assert (shown["records"], shown["control_records"], shown["uncounted_batches"]) == (337, 34, 0)
    assert shown["open_transactions"] == OPEN
    assert kbatch.Log(tmp_path / "b").count() == 337


def test_a_magic_without_transactions_has_no_open_ones(tmp_path: Path, capsys: Capture) -> None:
    command = [
        "convert",
        "--magic",
        "1",
        "--lossy",
        "drop",
        "--codec",
        "none",
        str(LOGS / "txn-0"),
        str(tmp_path / "a"),
    ]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path / 'a'}: 337 records; 165 batches" in out
    assert "open transaction" not in out


def test_message_sets_that_are_not_parsed_make_the_number_a_lower_bound(tmp_path: Path, capsys: Capture) -> None:
    """LEG-R23: headers of compressed message sets have no record count."""
    assert main(["recompress", "--codec", "gzip", str(LOGS / "magic1-0"), str(tmp_path / "a")]) == 0
    assert f"{tmp_path / 'a'}: at least " in capsys.readouterr().out
    assert main(["convert", str(LOGS / "magic1-0"), str(tmp_path / "b")]) == 0
    assert f"{tmp_path / 'b'}: 110 records; " in capsys.readouterr().out
