"""`kbatch diff` of live topics: exit statuses, text, JSON, and the settings of two clusters."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

from kbatch.cli import main
from kbatch.live import ClientSettings, ServerAddress
from kbatch.log import LogWriter
from kbatch.protocol import ApiKey

A, B = "kafka://localhost", "kafka://broker-1"


def partition(values: list[bytes], *, start: int = 0, codec: str = "none", per_batch: int = 2) -> ScriptedPartition:
    made = ScriptedPartition(start=start)
    for first in range(0, len(values), per_batch):
        part = values[first : first + per_batch]
        made.write(part, timestamps=[1_700_000_000_000 + first + i for i in range(len(part))], codec=codec)
    return made


VALUES = [b"%d" % i for i in range(10)]


class Clusters:
    """Two clusters, by the address in their settings; `settings` has those of each connection."""

    def __init__(self, a: ScriptedCluster, b: ScriptedCluster) -> None:
        self._by_host = {"localhost": a, "broker-1": b}
        self.settings: dict[str, ClientSettings] = {}

    def connect(self, server: ServerAddress, settings: ClientSettings) -> Any:
        host = settings.bootstrap_servers[0].host
        self.settings[host] = settings
        return self._by_host[host].connect(server, settings)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    """Topics that are equal, that differ at offset 4, and that are in one cluster only."""
    a = ScriptedCluster(
        same=[partition(VALUES)],
        other=[partition(VALUES)],
        only_a=[partition(VALUES)],
    )
    b = ScriptedCluster(
        same=[partition(VALUES, codec="gzip", per_batch=4)],
        other=[partition([*VALUES[:4], b"x", *VALUES[5:]])],
        copy=[partition(VALUES, per_batch=10)],
    )
    b.topics["other"][0].start = 2
    made = Clusters(a, b)
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", made.connect)
    return made


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(["diff", *arguments])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_two_clusters_as_text(clusters: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, A, B, "--topic", "other", "--topic", "sam*")
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        "other-0: different: 8 records in A and 8 records in B",
        "  7 records equal, 1 different (value 1), 0 only in A, 0 only in B",
        "  first difference: offset 4: value",
        '    A  value      "4"',
        '    B  value      "x"',
        "  offsets: 0 to 10 in A, 2 to 10 in B; compared are 2 to 10 (exclusive)",
        "same-0: equal: 10 records",
        "different: 1 of 2 topic-partitions",
    ]


def test_all_offsets_are_compared_if_asked_for(clusters: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, A, B, "--topic", "other", "--extent", "all")
    assert status == 1
    assert "7 records equal, 1 different (value 1), 2 only in A, 0 only in B" in out


def test_chosen_offsets_that_only_one_topic_has_are_a_difference(
    clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", A, B, "--topic", "other", "--offsets", "0:2"]) == 1
    assert "0 to 10 in A, 2 to 10 in B; none of the chosen offsets is in both\ndifferent" in capsys.readouterr().out
    assert main(["diff", A, B, "--topic", "other", "--offsets", "1:4"]) == 0
    assert "compared are 2 to 4 (exclusive)" in capsys.readouterr().out


def test_equal_topics_have_status_0_and_other_names_are_paired(
    clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, A, B, "--topic", "same")[0] == 0
    clusters._by_host["broker-1"].topics["copy"] = clusters._by_host["localhost"].topics["only-a"]
    status, out, err = run(capsys, A, B, "--topic", "only-a", "--other-topic", "copy")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "only-a-0: equal: 10 records"


def test_a_mirror_with_other_offsets_is_advised_to_match_by_order(
    clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    advice = "  no offset has the same record: for a topic that was mirrored with other offsets, use --match order"
    for values in ([b"first", *VALUES], [b"x"] * 20):
        clusters._by_host["broker-1"].topics["copy"] = [partition(values)]
        status, out, _ = run(capsys, A, B, "--topic", "same", "--other-topic", "copy")
        assert (status, advice in out.splitlines()) == (1, True)
    later = ScriptedPartition(start=100)
    later.write([b"1"])
    clusters._by_host["broker-1"].topics["copy"] = [later]
    assert advice in run(capsys, A, B, "--topic", "same", "--other-topic", "copy")[1].splitlines()
    assert advice not in run(capsys, A, B, "--topic", "other")[1].splitlines()
    clusters._by_host["broker-1"].topics["copy"] = [ScriptedPartition()]
    status, out, _ = run(capsys, A, B, "--topic", "same", "--other-topic", "copy")
    assert (status, advice in out.splitlines()) == (1, False)


def test_json_has_the_offsets_and_digests_of_both_sides(clusters: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, A, B, "--topic", "other", "--json", "--digests")
    document = json.loads(out)
    (log,) = document["logs"]
    assert (status, document["equal"], log["compared_offsets"]) == (1, False, [2, 10])
    assert [(log[name]["path"], log[name]["start_offset"], log[name]["end_offset"]) for name in "ab"] == [
        (f"{A}:9092", 0, 10),
        (f"{B}:9092", 2, 10),
    ]
    digests = {log[name]["digest"] for name in "ab"}
    assert len(digests) == 2
    assert all(len(digest) == 32 for digest in digests)
    assert (log["first"]["a"]["offset"], log["first"]["a"]["value"], log["first"]["b"]["value"]) == (4, "4", "x")


def test_a_directory_and_a_cluster(clusters: Clusters, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with LogWriter(tmp_path / "same-0") as writer:
        for batch in clusters._by_host["localhost"].topics["same"][0].batches:
            writer.append(batch)
    for sides in ((str(tmp_path), A), (A, str(tmp_path)), (str(tmp_path / "same-0"), A)):
        status, out, err = run(capsys, *sides)
        assert (status, err) == (0, "")
        assert out.splitlines()[0] == "same-0: equal: 10 records"
    assert run(capsys, str(tmp_path), str(tmp_path), "--topic", "same", "--other-topic", "none")[0] == 2


def test_each_cluster_has_its_settings(clusters: Clusters, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "b.properties"
    config.write_text("client.id=west\n")
    arguments = ("--setting", "client.id=east", "--other-config", str(config), "--other-setting", "fetch.max.wait.ms=7")
    assert run(capsys, A, B, "--topic", "same", *arguments)[0] == 0
    assert (clusters.settings["localhost"].client_id, clusters.settings["broker-1"].client_id) == ("east", "west")
    assert clusters.settings["broker-1"].fetch_max_wait_ms == 7
    assert clusters.settings["localhost"].fetch_max_wait_ms != 7
    # The settings of the only cluster, even if it is the second.
    with LogWriter(tmp_path / "same-0") as writer:
        writer.append(clusters._by_host["broker-1"].topics["same"][0].batches[0])
    assert run(capsys, str(tmp_path), B, "--setting", "client.id=only")[0] == 0
    assert clusters.settings["broker-1"].client_id == "only"


def test_an_interrupt_ends_within_a_second(clusters: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    began: list[float] = []

    def interrupt() -> None:
        began.append(time.monotonic())
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()

    clusters._by_host["broker-1"].fail(ApiKey.FETCH, Fault(hangs=True, run=interrupt))
    assert run(capsys, A, B, "--topic", "same") == (130, "", "kbatch diff: interrupted\n")
    assert time.monotonic() - began[0] < 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "y", "--config", "f"], "--config belongs to a cluster, kafka://HOST:PORT, not to files"),
        ([A, "y", "--other-setting", "a=b"], "--other-setting belongs to a cluster, kafka://HOST:PORT, not to files"),
        (["x", B, "--config", "f", "--other-config", "f"], "--config belongs to a cluster"),
        ([A, B, "--other-setting", "sasl.password=x"], "--other-setting sasl.password: other users can see"),
        ([A, B, "--other-setting", "no.such=x"], "no.such"),
        ([A, B, "--extent", "common", "--match", "key"], 'extent="common" is for match="offset"'),
        ([A, B, "--other-topic", "x"], "the other topic 'x' is the name of one topic in b: choose exactly one"),
        ([A, B, "--topic", "sane"], "there is no topic 'sane'"),
    ],
    ids=str,
)
def test_wrong_usage_has_status_2(
    arguments: list[str], message: str, clusters: Clusters, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
