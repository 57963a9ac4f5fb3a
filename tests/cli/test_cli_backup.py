"""`kbatch backup`: the output, later runs, JSON, wrong usage and interrupts."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from live_reading import partition
from scripted_broker import Fault, ScriptedCluster

import kbatch
from kbatch.cli import main
from kbatch.protocol import ApiKey

URL = "kafka://localhost"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    made = ScriptedCluster(orders=[partition(5, 3), partition(2)], others=[partition(1)])
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", made.connect)
    return made


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    try:
        status = main(["backup", *map(str, arguments)])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_each_log_has_a_line_and_later_runs_continue(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    size = [sum(map(len, log.batches)) for log in cluster.topics["orders"]]
    assert run(capsys, URL, out, "--topic", "orders") == (
        0,
        f"orders-0: offsets 0 to 8 (exclusive), 8 records, {size[0]} bytes\n"
        f"orders-1: offsets 0 to 2 (exclusive), 2 records, {size[1]} bytes\n",
        "",
    )
    cluster.topics["orders"][1].write([b"2"])
    status, text, _ = run(capsys, URL, out, "--topic", "ord*", "--partition", "0,1", "--json")
    document = json.loads(text)
    assert (status, document["out"]) == (0, str(out))
    assert {log["name"]: log["records"] for log in document["logs"]} == {"orders-0": 0, "orders-1": 1}
    assert run(capsys, URL, out, "--topic", "orders", "--partition", "1")[1] == (
        "orders-1: nothing new, the end is offset 3\n"
    )
    assert kbatch.Log(out / "orders-1").count() == 3


def test_what_is_cut_is_stated(capsys: pytest.CaptureFixture[str], cluster: ScriptedCluster, tmp_path: Path) -> None:
    arguments = (URL, tmp_path / "out", "--topic", "orders", "--partition", "1")
    assert run(capsys, *arguments)[0] == 0
    (path,) = (tmp_path / "out" / "orders-1").glob("*.log")
    path.write_bytes(path.read_bytes() + b"garbage")
    assert run(capsys, *arguments) == (
        0,
        "orders-1: nothing new, the end is offset 2\n"
        "  7 bytes at the end of the backup were no valid batches, and were cut\n",
        "",
    )


def test_control_records_are_stated_apart(
    capsys: pytest.CaptureFixture[str], cluster: ScriptedCluster, tmp_path: Path
) -> None:
    log = cluster.topics["orders"][0]
    log.batches.append(
        kbatch.encode([b"t"], offsets=[8], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    log.batches.append(kbatch.encode_marker("commit", offset=9, producer_id=1, producer_epoch=0))
    status, out, _ = run(capsys, URL, tmp_path / "out", "--topic", "orders", "--partition", "0")
    assert (status, out.split(", ")[1:3]) == (0, ["9 records", "1 control record"])


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["logs", "out", "--topic", "a"], 2, "a backup is of a cluster, kafka://HOST:PORT, got logs"),
        ([URL, "out"], 2, "--topic is required; --topic '*' is all topics that are not internal"),
        ([URL, "out", "--topic", "order"], 1, "there is no topic 'order'"),
        ([URL, "no/such/out", "--topic", "orders"], 1, "no/such/out: can't be written: No such file or directory"),
        ([URL, "out", "--topic", "orders", "--offsets", "1:2"], 2, "--offsets has no meaning for this command: whole"),
        ([URL, "out", "--topic", "orders", "--setting", "sasl.password=x"], 2, "other users can see command lines"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_state_what_is_wrong(
    arguments: list[str],
    status: int,
    message: str,
    cluster: ScriptedCluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(capsys, *arguments)
    assert found[:2] == (status, "")
    assert message in found[2]
    assert not list(tmp_path.glob("**/*.log"))


def test_an_interrupt_ends_within_a_second_and_leaves_no_unfinished_files(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    began = []

    def interrupt() -> None:
        began.append(time.monotonic())
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()

    out = tmp_path / "out"
    assert run(capsys, URL, out, "--topic", "others")[0] == 0
    cluster.fail(ApiKey.FETCH, Fault(hangs=True, run=interrupt))
    assert run(capsys, URL, out, "--topic", "orders") == (130, "", "kbatch backup: interrupted\n")
    assert time.monotonic() - began[0] < 2
    assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["others-0"]
    assert run(capsys, URL, out, "--topic", "orders")[0] == 0
    assert kbatch.Log(out / "orders-0").count() == 8
