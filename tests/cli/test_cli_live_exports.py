"""`kbatch export`, `kbatch follow` and `kbatch verify --against` of a cluster: what they print, and exit statuses."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from history_copies import write_log
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.cli import main
from kbatch.protocol import ApiKey

pytest.importorskip("pyarrow")

URL = "kafka://localhost"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    made = ScriptedCluster(orders=[ScriptedPartition(), ScriptedPartition()], clicks=[ScriptedPartition()])
    for partition in (*made.topics["orders"], *made.topics["clicks"]):
        partition.write([b"a", b"b", b"c"])
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", made.connect)
    return made


@pytest.fixture
def run(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def made(*arguments: Any) -> tuple[int, str, str]:
        # A session of Spark that other tests have left would be taken otherwise.
        engine = ["--engine", "local"] if arguments[0] in ("export", "follow") else []
        try:
            status = main([*map(str, arguments), *engine])
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return made


def test_the_summary_names_the_cluster_and_its_topics(run: Run, tmp_path: Path) -> None:
    status, text, _ = run("export", URL, tmp_path / "out")
    assert status == 0
    assert text.startswith("9 records of 3 topic-partitions in 3 files")
    assert "  source     kafka://localhost:9092, 2 topics: clicks, orders\n" in text
    status, text, _ = run("export", URL, tmp_path / "out", "--json")
    assert (json.loads(text)["action"], json.loads(text)["logdir"]) == ("unchanged", "kafka://localhost:9092")


def test_an_export_follows_and_is_verified(cluster: ScriptedCluster, run: Run, tmp_path: Path) -> None:
    run("export", URL, tmp_path / "out", "--topic", "orders")
    cluster.topics["orders"][1].write([b"d"])
    status, text, _ = run("follow", URL, tmp_path / "out", "--topic", "orders", "--available-now")
    assert (status, text) == (0, f"1 record in 1 commit: {tmp_path}/out; 0 offsets (0 bytes) behind\n")
    status, text, _ = run("verify", tmp_path / "out", "--against", URL)
    assert (status, text) == (0, f"{tmp_path}/out: ok (2 topic-partitions, 7 records, 7 records of the logs)\n")
    del cluster.topics["orders"]
    status, text, _ = run("verify", tmp_path / "out", "--against", URL)
    assert "there is no log" in text


def test_a_topic_that_acls_hide_is_not_taken_for_a_deleted_one(
    cluster: ScriptedCluster, run: Run, tmp_path: Path
) -> None:
    def hide(response: Any) -> None:
        for topic in response.topics:
            topic.error_code, topic.partitions = kbatch.ErrorCode.TOPIC_AUTHORIZATION_FAILED, []

    run("export", URL, tmp_path / "out", "--topic", "orders")
    cluster.fail(ApiKey.METADATA, *[Fault(change=hide)] * 9)
    status, _, errors = run("verify", tmp_path / "out", "--against", URL)
    assert status == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in errors
    assert "the principal needs the ACLs DESCRIBE and READ on this topic" in errors


def test_the_summary_states_what_is_from_the_history_and_a_line_what_it_lacks(
    cluster: ScriptedCluster, run: Run, tmp_path: Path
) -> None:
    log = cluster.topics["orders"][0]
    log.write([b"d"])
    write_log(tmp_path / "disk" / "orders-0", log.batches, [1], cluster.ids["orders"])
    arguments = ("--topic", "orders", "--history", tmp_path / "disk")
    status, text, errors = run("export", URL, tmp_path / "out", *arguments)
    assert (status, errors) == (0, "")
    assert re.search(r"\n  history    \d+ bytes of them with 3 records from files, \d+ bytes from the cluster\n", text)
    _, text, _ = run("export", URL, tmp_path / "out", *arguments)
    assert "\n  history    none of them from files, all from the cluster\n" in text
    write_log(tmp_path / "disk" / "orders-1", log.batches, [1], uuid.UUID(int=7))
    for command, out in (("export", "again"), ("follow", "followed")):
        more = ("--available-now",) if command == "follow" else ()
        status, text, errors = run(command, URL, tmp_path / out, *arguments, *more)
        assert status == 0
        assert f"kbatch {command}: history: orders-1: offsets 0 to 2 fetched from the cluster, since " in errors
    status, _, errors = run("export", URL, tmp_path / "none", "--history", "kafka://b:9092")
    assert (status, "kafka://b:9092: history needs paths of log directories or tiered storage" in errors) == (1, True)
    status, _, errors = run("export", tmp_path / "disk", tmp_path / "files", *arguments)
    assert (status, "--history goes with kafka://HOST:PORT" in errors) == (2, True)


def test_offsets_from_the_last_stable_one_on_are_withheld(cluster: ScriptedCluster, run: Run, tmp_path: Path) -> None:
    cluster.topics["orders"][0].stable = 1
    status, text, _ = run("export", URL, tmp_path / "out", "--isolation", "read_committed")
    assert status == 4
    assert "withheld   orders-0: 2 offsets from the last stable offset 1 on, since transactions are open" in text


def test_a_topic_that_was_created_again_is_one_line(cluster: ScriptedCluster, run: Run, tmp_path: Path) -> None:
    run("export", URL, tmp_path / "out")
    cluster.ids["orders"] = uuid.uuid4()
    status, _, text = run("export", URL, tmp_path / "out", "--topic", "orders")
    assert status == 1
    assert len(text.splitlines()) == 1
    assert "--allow-missing-offsets" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", URL, "x", "out"], "a cluster (kafka://HOST:PORT) is read without other paths"),
        (["follow", URL, "x", "out"], "a cluster (kafka://HOST:PORT) is read without other paths"),
        (["export", "--config", "x", str(LOGS), "out"], "--config belongs to a cluster"),
        (["follow", "--setting", "a=b", str(LOGS), "out"], "--setting belongs to a cluster"),
        (["verify", "--config", "x", "out"], "--config belongs to a cluster"),
        (["verify", "out", "--against", URL, "--against", "x"], "a cluster (kafka://HOST:PORT) is read without other"),
        (["export", URL, "out", "--setting", "sasl.password=x"], "other users can see command lines"),
        (["export", "kafka://me:secret@host", "out"], "a kafka URL is kafka://HOST:PORT[,HOST:PORT]"),
    ],
)
def test_wrong_usage_is_reported(run: Run, arguments: list[str], message: str) -> None:
    status, _, text = run(*arguments)
    assert status == 2
    assert message in text
    assert "secret" not in text
