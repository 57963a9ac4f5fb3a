"""``kbatch follow`` as a process: lines of commits, signals, and ``kbatch verify --against`` of what it wrote."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS

import kbatch
from kbatch.cli import main

pytest.importorskip("pyarrow")

from local_follow import GrowingLog
from test_cli_interrupts import SECONDS


def start(root: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    arguments = [
        "follow",
        str(root),
        str(out),
        "--json",
        "--commit-interval",
        "10ms",
        *(flags or ["--engine", "local"]),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "kbatch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(kbatch.__file__).parents[1])},
    )


def first_commit(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the rest of the output and the errors; `communicate` would drop what `first_commit` has buffered."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        return process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_signal_ends_a_waiting_follower_within_a_second(engine: str, number: signal.Signals, tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(3)
    process = start(tmp_path / "logs", tmp_path / "out", "--engine", engine)
    commit = first_commit(process)
    assert (commit["command"], commit["action"], commit["records"], commit["lag_offsets"]) == (
        "follow",
        "created",
        6,
        0,
    )
    log.append()
    assert first_commit(process)["records"] == 2
    began = time.monotonic()
    process.send_signal(number)
    output, errors = ended(process)
    assert (process.returncode, output, errors) == (130, "", "kbatch follow: interrupted\n")
    assert time.monotonic() - began < SECONDS
    assert sorted(os.listdir(tmp_path / "out")) == ["_manifest.json", "topic=t"]


def test_a_signal_at_any_time_leaves_whole_commits(tmp_path: Path) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    logs = [GrowingLog(root / f"t-{number}") for number in range(2)]
    for log in logs:
        log.append(200)
    numbers = random.Random(3)
    committed = 0
    for _ in range(6):
        process = start(root, out, "--engine", "local", "--commit-size", "1k")
        committed += first_commit(process)["records"]
        end = time.monotonic() + numbers.uniform(0, 0.2)
        while time.monotonic() < end:
            logs[0].append()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        output, errors = ended(process)
        assert (process.returncode, errors) == (130, "kbatch follow: interrupted\n")
        assert time.monotonic() - began < SECONDS
        committed += sum(json.loads(line)["records"] for line in output.splitlines())
        # Every commit was printed, and nothing else is in the output.
        manifest = json.loads((out / "_manifest.json").read_text())
        assert sum(run["records"] for run in manifest["runs"]) == committed
        assert [name for name in os.listdir(out) if name.startswith("_temporary-")] == []
        found = kbatch.verify_export(out, root)
        assert (found.damaged, {finding.kind for finding in found.findings} <= {"behind"}) == (False, True)


def test_without_json_a_pipe_gets_one_line_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    GrowingLog(tmp_path / "logs" / "t-0").append(20)
    out = tmp_path / "out"
    arguments = ["follow", str(tmp_path / "logs"), str(out), "--available-now", "--commit-size", "1k"]
    assert main([*arguments, "--engine", "local"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("40 records in ")
    assert captured.out.endswith(f"commits: {out}; 0 offsets (0 bytes) behind\n")
    assert main(["verify", str(out), "--against", str(tmp_path / "logs")]) == 0
    assert capsys.readouterr().out == f"{out}: ok (1 topic-partition, 40 records, 40 records of the logs)\n"


def test_a_terminal_shows_the_lag(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(3)
    ours, theirs = pty.openpty()
    flags = ["--engine", "local", "--commit-interval", "10h"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kbatch", "follow", str(tmp_path / "logs"), str(tmp_path / "out"), *flags],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(Path(kbatch.__file__).parents[1])},
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    while b"0 offsets (0 bytes) behind; last commit " not in shown and time.monotonic() < deadline:
        shown += os.read(ours, 1000)
    log.append(2)
    while b"4 offsets (" not in shown and time.monotonic() < deadline:
        shown += os.read(ours, 1000)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    os.close(ours)
    assert b" UTC, 6 records" in shown
    assert b"4 offsets (" in shown


def test_losses_of_a_commit_are_printed_and_the_exit_status_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    GrowingLog(tmp_path / "logs" / "t-0").append(5)
    path = tmp_path / "logs" / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    arguments = ["follow", str(tmp_path / "logs"), str(tmp_path / "out"), "--available-now", "--engine", "local"]
    assert main([*arguments, "--on-error", "skip"]) == 3
    assert "  lost       " in capsys.readouterr().out
    # The report was seen.
    assert main([*arguments, "--on-error", "skip"]) == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_missing_records_have_exit_status_3_and_are_named(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    GrowingLog(root / "t-0").append(5)
    kbatch.export(root, out, engine="local")
    (path,) = out.rglob("part-*.parquet")
    path.unlink()
    assert main(["verify", str(out), "--against", str(root), *(["--json"] if as_json else [])]) == 3
    printed = capsys.readouterr().out
    if as_json:
        document = json.loads(printed)
        (log,) = document["logs"]
        assert (document["damaged"], document["exit_status"], log["missing"]) == (True, 3, 10)
        assert [(each["first_offset"], each["last_offset"]) for each in log["findings"]] == [(0, 9)]
    else:
        assert printed.splitlines() == [
            "t-0: missing in the output, though the log has it: offsets 0 to 9",
            f"{out}: DAMAGED, 10 missing and 0 doubled (1 topic-partition, 0 records, 10 records of the logs)",
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "a", "b", "--against", "c"], "--against takes one PATH"),
        (["verify", "a", "--table", "db.t"], "--table and --catalog go with --against"),
        (["verify", "a", "--against", "c", "--topic", "t"], "--against excludes --sequences, --topic and --partition"),
        (["follow", "a", "b", "--offsets", ":5"], "is for an export that ends"),
        (["follow", "a", "b", "--on-error", "stop"], "--on-error stop is not valid"),
        (["follow", "a", "b", "--mode", "overwrite"], "unrecognized arguments: --mode"),
        (["follow", "a", "b", "--commit-size", "0"], "--commit-size"),
    ],
)
def test_arguments_that_exclude_each_other_are_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_the_last_line_has_the_control_records_next_to_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(__file__).parents[1] / "golden" / "logs" / "txn-0"
    command = ["follow", str(log), str(tmp_path / "out"), "--engine", "local", "--available-now"]
    assert main(command) == 0
    assert "337 records, 34 control records (not written) in 1 commit: " in capsys.readouterr().out
    command[2] = str(tmp_path / "all")
    assert main([*command, "--control"]) == 0
    assert "337 records, 34 control records in 1 commit: " in capsys.readouterr().out


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("size", ["1k", "1m"])
def test_the_last_line_counts_control_records_and_open_transactions(
    size: str, isolation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A transaction that one commit begins and a later one ends is not open."""
    out = tmp_path / "out"
    flags = ["--available-now", "--engine", "local", "--commit-size", size, "--isolation", isolation]
    main(["follow", str(LOGS / "txn-0"), str(out), *flags])
    (line,) = [each for each in capsys.readouterr().out.splitlines() if str(out) in each and "behind" in each]
    assert re.search(r"^\d+ records, 3[34] control records \(not written\) in ", line)
    assert line.endswith(" behind; 2 open transactions")
