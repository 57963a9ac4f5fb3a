"""`kbatch dump --digests`: digests of blocks of offsets, of logs and live topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from scripted_broker import ScriptedCluster, ScriptedPartition

from kbatch.cli import block_digests, main
from kbatch.log import LogWriter, compare_logs, convert_log, recompress_log

RECORDS = 300
URL = "kafka://localhost"


def partition(per_batch: int, codec: str = "none", changed: int | None = None) -> ScriptedPartition:
    made = ScriptedPartition()
    values = [b"other" if i == changed else b"%d" % i for i in range(RECORDS)]
    for first in range(0, RECORDS, per_batch):
        part = values[first : first + per_batch]
        made.write(part, timestamps=[1_700_000_000_000 + first + i for i in range(len(part))], codec=codec)
    return made


def blocks(capsys: pytest.CaptureFixture[str], *arguments: Any) -> list[dict[str, Any]]:
    assert main(["dump", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return [json.loads(line) for line in captured.out.splitlines()]


def site(monkeypatch: pytest.MonkeyPatch, *partitions: ScriptedPartition) -> None:
    """Let the URL be that of a cluster with these partitions."""
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", ScriptedCluster(orders=list(partitions)).connect)


def test_the_lines_of_two_sites_lead_to_the_first_difference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = (partition(7), partition(50, "zstd")), (partition(100, "lz4"), partition(1, changed=177))
    offsets = "0:"
    for size in (64, 8, 1):
        found = []
        for each in sites:
            site(monkeypatch, *each)
            found.append(blocks(capsys, URL, "--topic", "orders", "--digests", size, "--offsets", offsets))
        differing = [line for line, other in zip(*found, strict=True) if line != other]
        assert [(line["partition"], line["offset"], line["records"]) for line in differing] == [
            (1, 177 // size * size, size)
        ]
        offsets = f"{differing[0]['offset']}:{differing[0]['offset'] + size}"


def test_a_topic_and_its_log_directory_have_the_same_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site(monkeypatch, partition(9, "gzip"), partition(9))
    for number in range(2):
        with LogWriter(tmp_path / f"orders-{number}", segment_bytes=500) as writer:
            for batch in partition(25).batches:
                writer.append(batch)
    found = blocks(capsys, URL, "--topic", "orders", "--digests", 128)
    assert found == blocks(capsys, tmp_path, "--digests", 128)
    assert [(line["partition"], line["offset"], line["records"]) for line in found] == [
        (number, *block) for number in range(2) for block in ((0, 128), (128, 128), (256, 44))
    ]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_one_block_has_the_digest_of_a_comparison(isolation: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log = LOGS / "txn-0"
    arguments = (log, "--digests", 1 << 62, "--isolation", isolation)
    assert main(["dump", *map(str, arguments)]) == (4 if isolation == "read_committed" else 0)
    [line] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = compare_logs(log, log, digests=True, isolation=isolation).partitions[0].a
    assert expected is not None
    assert line == {
        "topic": "txn", "partition": 0, "file": None, "offset": 0,
        "records": expected.records, "digest": expected.digest,
    }  # fmt: skip


def test_copies_with_another_magic_or_codec_have_the_same_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = LOGS / "magic1-0"
    for name in "2z":
        (tmp_path / name).mkdir()
    convert_log(source, tmp_path / "2" / "magic1-0", 2)
    recompress_log(tmp_path / "2" / "magic1-0", tmp_path / "z" / "magic1-0", "zstd")
    expected = blocks(capsys, source, "--digests", 16)
    assert len(expected) == 7
    for name in "2z":
        assert blocks(capsys, tmp_path / name, "--digests", 16) == expected


def test_files_without_a_topic_are_told_apart_by_their_paths(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(partition(300).batches[0])
    found = blocks(capsys, *paths, "--digests", 1000)
    assert [(line["topic"], line["partition"], line["file"]) for line in found] == [
        (None, None, str(path)) for path in paths
    ]
    assert len({line["digest"] for line in found}) == 1


def test_damage_is_reported_and_has_no_digest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    batches = partition(100).batches
    batches[1] = batches[1][:-1] + b"\xff"
    (tmp_path / "damaged").write_bytes(b"".join(batches))
    assert main(["dump", str(tmp_path / "damaged"), "--digests", "100"]) == 3
    captured = capsys.readouterr()
    assert [json.loads(line)["offset"] for line in captured.out.splitlines()] == [0, 200]
    assert "base offset 100: stored checksum is" in captured.err


def test_the_number_of_blocks_is_limited(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(block_digests, "MAX_BLOCKS", 10)
    (tmp_path / "log").write_bytes(partition(300).batches[0])
    assert len(blocks(capsys, tmp_path / "log", "--digests", 30)) == 10
    with pytest.raises(SystemExit, match="2"):
        main(["dump", str(tmp_path / "log"), "--digests", "29"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "more than 10 blocks of 29 offsets; choose a larger --digests, or --offsets of a part" in captured.err


@pytest.mark.parametrize("flags", [["--format", "kafka"], ["--values", "json"]])
def test_digests_are_not_combined_with_other_forms_of_records(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dump", str(LOGS / "txn-0"), "--digests", "9", *flags])
    assert "--digests prints neither decoded values nor --format kafka" in capsys.readouterr().err
