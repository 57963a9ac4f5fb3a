"""`kbatch dump` and `kbatch stats` of a cluster: the same lines and statistics as of its log directories."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from report_pages import Page
from scripted_broker import ScriptedCluster, ScriptedPartition
from transaction_logs import txn

import kbatch
from kbatch.cli import main

URL = "kafka://localhost"
TOPICS = ["txn", "codec-zstd", "mixed", "compact-src"]


def partition_of(directory: Any) -> ScriptedPartition:
    """Return a partition with the batches of a log."""
    data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    rows = kbatch.scan(data)
    batches = [data[row["position"] : row["position"] + row["size"]] for row in rows]
    return ScriptedPartition(batches, start=int(rows["base_offset"][0]))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    made = ScriptedCluster(**{name.replace("-", "_"): [partition_of(LOGS / f"{name}-0")] for name in TOPICS})
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", made.connect)
    return made


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(cluster: ScriptedCluster, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def made(*arguments: Any) -> tuple[int, str, str]:
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsysbinary.readouterr()
        return status, captured.out.decode(), captured.err.decode()

    return made


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the lines without the fields of files."""
    lines = list(map(json.loads, text.splitlines()))
    for line in lines:
        line.pop("file", None)
        line.pop("position", None)
    return lines


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--records"],
        ["--records", "--control"],
        ["--records", "--offsets", "5:30"],
        ["--records", "--offsets", "-7:", "--max-records", "3"],
        ["--tail", "4"],
        ["--records", "--key", "key-3", "--key", "key-4"],
        ["--key", "key-3"],
        ["--producer", "4001"],
        ["--records", "--times", "2023-11-14T22:13:21Z:2023-11-14T22:13:50Z"],
        ["--max-records", "2"],
        ["--records", "--max-bytes-shown", "2"],
        ["--values", "string", "--tail", "2"],
    ],
    ids=" ".join,
)
def test_a_listing_is_that_of_the_log_directory(run: Run, topic: str, arguments: list[str]) -> None:
    status, out, err = run("dump", *arguments, "--topic", topic, URL)
    assert (status, err) == (0, "")
    _, expected, _ = run("dump", *arguments, LOGS / f"{topic}-0")
    assert lines_of(out) == [line for line in lines_of(expected) if line.get("count") != 0]
    assert '"file"' not in out
    assert '"position"' not in out


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("arguments", [[], ["--headers-only"]], ids=["decoded", "headers"])
def test_statistics_are_those_of_the_log_directory(run: Run, topic: str, arguments: list[str]) -> None:
    found = [
        json.loads(run("stats", "--json", *arguments, *given)[1])
        for given in (("--topic", topic, URL), (LOGS / f"{topic}-0",))
    ]
    (live,), (of_files,) = (document["logs"] for document in found)
    assert (live.pop("path"), live.pop("segments")) == (URL, None)
    del of_files["path"], of_files["segments"]
    for name, codec in of_files["codecs"].items():
        # It is approximate, and responses have other bounds than tables of files.
        plain = live["codecs"][name].pop("plain_bytes"), codec.pop("plain_bytes")
        assert plain == (None, None) or plain[0] == pytest.approx(plain[1], abs=len(TOPICS))
    assert live == of_files


def test_statistics_have_one_line_for_each_partition(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, out, err = run("stats", "--details", URL)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in lines[:6]] == [
        "topic-partition",
        *sorted(f"{each}-0" for each in TOPICS),
        "all",
    ]
    assert "segments" not in lines[0]
    assert "codec zstd" in out


def test_batches_after_the_end_of_the_read_are_not_counted(run: Run, cluster: ScriptedCluster) -> None:
    log = cluster.topics["codec-zstd"][0]
    whole = log.batches
    _, before, _ = run("stats", "--json", "--headers-only", "--topic", "codec-zstd", URL)
    end = log.end

    class Growing(ScriptedPartition):
        """Has another batch after its offsets were listed."""

        @property
        def end(self) -> int:
            return end

    cluster.topics["codec-zstd"] = [Growing([*whole, kbatch.encode([b"later"], base_offset=end)], start=log.start)]
    _, after, _ = run("stats", "--json", "--headers-only", "--topic", "codec-zstd", URL)
    assert json.loads(after) == json.loads(before)


def test_damage_is_reported_with_its_offset(run: Run, cluster: ScriptedCluster) -> None:
    batches = cluster.topics["codec-zstd"][0].batches
    # A bit of the checksum, which follows 17 bytes.
    batches[1] = batches[1][:17] + bytes([batches[1][17] ^ 1]) + batches[1][18:]
    offset = int(kbatch.scan(batches[1])["base_offset"][0])
    status, out, err = run("dump", "--topic", "codec-zstd", URL)
    assert status == 3
    assert lines_of(out)[1]["status"] == "bad_crc"
    assert err.startswith(f"kbatch dump: codec-zstd-0: base offset {offset}: wrong checksum 0x")
    status, out, err = run("dump", "--records", "--topic", "codec-zstd", URL)
    assert status == 3
    assert f"base offset {offset}: " in err
    status, out, _ = run("stats", "--json", "--topic", "codec-zstd", URL)
    assert (status, json.loads(out)["logs"][0]["damaged_batches"]) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dump", "--format", "kafka", URL], "--format kafka belongs to files, not to a cluster"),
        (["dump", "--protocol", URL], "--protocol belongs to files, not to a cluster"),
        (["dump", "--no-index", URL], "--index or --no-index belongs to files, not to a cluster"),
        (["dump", "--storage-option", "a=b", URL], "--storage-option belongs to files, not to a cluster"),
        (["dump", "--tail", "1", "--producer", "1", URL], "--tail with --producer or several --key belongs to files"),
        (["dump", URL, "x"], "a cluster (kafka://HOST:PORT) is read without other paths"),
        (["stats", URL, "x"], "a cluster (kafka://HOST:PORT) is read without other paths"),
        (["stats", "--storage-option", "a=b", URL], "--storage-option belongs to files, not to a cluster"),
        (["dump", "--config", "x", str(LOGS)], "--config belongs to a cluster, kafka://HOST:PORT, not to files"),
        (["stats", "--setting", "a=b", str(LOGS)], "--setting belongs to a cluster, kafka://HOST:PORT, not to files"),
        (["dump", "kafka://me:secret@host"], "a kafka URL is kafka://HOST:PORT[,HOST:PORT] and has no settings"),
        (["stats", "kafka://"], "a kafka URL is kafka://HOST:PORT[,HOST:PORT]"),
    ],
    ids=lambda value: " ".join(value[:-1]) if isinstance(value, list) else None,
)
def test_what_belongs_to_files_or_to_a_cluster_is_refused_elsewhere(
    run: Run, arguments: list[str], message: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert f"error: {message}" in err
    assert "secret" not in err


@pytest.mark.parametrize("command", ["dump", "stats"])
def test_a_topic_that_does_not_exist_is_an_error_of_one_line(run: Run, command: str) -> None:
    status, out, err = run(command, "--topic", "mixd", URL)
    assert (status, out) == (1, "")
    assert err.startswith(f"kbatch {command}: broker localhost:9092: there is no topic 'mixd', did you mean 'mixed'?")
    assert len(err.splitlines()) == 1


# -- reports


@pytest.mark.parametrize("topic", TOPICS)
def test_the_report_on_a_topic_has_the_figures_of_its_directory(topic: str, run: Run, tmp_path: Path) -> None:
    page, directory = tmp_path / "live.html", tmp_path / "files.html"
    status, text, _ = run("report", "--json", "--topic", topic, URL, "-o", page)
    found = json.loads(text)
    expected = kbatch.write_report(LOGS / f"{topic}-0", directory)
    assert status == 0
    names = ("records", "bytes", "open_transactions", "losses", "missing_offsets")
    assert {name: found[name] for name in names} == {name: getattr(expected, name) for name in names}

    def figures(path: Path) -> list[str]:
        """Return the rows of tables, without segments, and without transactions, whose open ones last until now."""
        text = re.sub(r'<section id="transactions">.*?</section>', "", path.read_text(), flags=re.DOTALL)
        rows = re.findall(r"<tr .*?</tr>", text, re.DOTALL)
        return [re.sub(r"<td[^>]*data-label=.segments.[^>]*>.*?</td>", "", row) for row in rows]

    assert len(figures(page)) > 10
    assert figures(page) == figures(directory)


def test_the_report_on_a_cluster_has_all_topics_and_names_the_cluster(run: Run, tmp_path: Path) -> None:
    status, text, errors = run("report", URL, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (status, errors) == (0, "")
    assert "kafka://localhost:9092" in page
    assert all(name in page for name in TOPICS)
    assert "no segment is missing" not in page
    assert text.startswith(f"{tmp_path / 'page.html'}: {len(TOPICS)} logs, ")


def test_the_report_on_a_cluster_lists_damaged_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = bytearray(kbatch.encode([b"v"] * 3, base_offset=0))
    sound = bytes(kbatch.encode([b"w"] * 2, base_offset=3))
    data[-2] ^= 1
    cluster = ScriptedCluster(t=[ScriptedPartition([bytes(data), sound])])
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", cluster.connect)
    report = kbatch.write_report("kafka://localhost", tmp_path / "page.html", topics="t")
    assert (report.records, report.losses, report.lost_bytes) == (2, 1, len(data))
    page = Page(tmp_path / "page.html")
    (row,) = page.table("Damaged places")
    assert [row[name] for name in ("partition", "file", "byte", "lost bytes")] == ["t-0", "-", "-", str(len(data))]
    assert "checksum" in row["reason"]
    assert "Lost bytes, from the first" not in page.source


def test_an_open_transaction_of_a_cluster_lasts_until_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin = round(time.time() * 1000) - 3_600_000
    cluster = ScriptedCluster(t=[ScriptedPartition([txn(0, 1, base_timestamp=begin, max_timestamp=begin)])])
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", cluster.connect)
    (found,) = kbatch.write_report("kafka://localhost", tmp_path / "page.html", topics="t").advice
    assert found.level == "problem"
    assert found.finding.startswith("1 transaction open for more than 15 minutes; the longest for 1 h,")


def test_settings_of_a_cluster_belong_to_its_url(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="config has the settings of a cluster"):
        kbatch.write_report(LOGS / "txn-0", tmp_path / "page.html", config={"client.id": "c"})
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(LOGS / "txn-0"), "--config", "x", "-o", str(tmp_path / "page.html")])
