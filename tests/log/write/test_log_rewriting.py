"""Logs converted to another magic or recompressed with another codec: directories, files, memory, commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import build_message, build_wrapper

import kbatch
from kbatch.cli import main
from kbatch.log import LogWriter, convert_log, recompress_log
from kbatch.log.check.verification import verify_log
from kbatch.log.write.rewriting import rewrite_logs
from kbatch.rewrite.recompression import Recompression

LOGS = sorted(path.name for path in (Path(__file__).parents[2] / "golden/logs").iterdir())


def rows_of(path: Path, **options: Any) -> list[Any]:
    found: list[Any] = []
    for table in kbatch.Log(path).tables(**options):
        columns = (table.records["offset"].tolist(), table.records["timestamp"].tolist())
        found += zip(*columns, table.keys(), table.values(), strict=True)
    return found


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir() if each.suffix not in (".jsonl", ".json")}


def write_log(path: Path, mebibytes: int, *, codec: str = "lz4", segment_bytes: int = 1 << 30) -> int:
    """Write a log with this many mebibytes of nearly incompressible records; return its size."""
    values = np.random.default_rng(1).integers(0, 256, (1024, 1000), np.uint8)
    with LogWriter(path, segment_bytes=segment_bytes, sync=False) as writer:
        for i in range(mebibytes):
            data = kbatch.encode(values, timestamps=1000 + i, base_offset=1024 * i, codec=codec, batch_size=65536)
            writer.append(data)
    return writer.bytes_written


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("name", LOGS)
def test_recompressed_logs_have_the_same_records_and_auxiliary_files(
    name: str, codec: str, golden: Path, tmp_path: Path
) -> None:
    source, out = golden / "logs" / name, tmp_path / name
    if codec == "zstd" and name in ("magic0-0", "magic1-0", "mixed-0"):
        with pytest.raises(kbatch.ConversionLossError) as caught:
            recompress_log(source, out, codec)
        assert caught.value.source == str(source / "00000000000000000000.log")
        assert os.listdir(tmp_path) == []
        return
    report = recompress_log(source, out, codec, max_bytes=4096, index_interval_bytes=1024)
    for options in ({}, {"isolation": "read_committed"}, {"include_control": True}):
        assert rows_of(out, **options) == rows_of(source, **options)
    assert not verify_log(kbatch.Log(out).segments, whole=True).damaged
    log, made = kbatch.Log(source), kbatch.Log(out)
    assert [one.base_offset for one in made.segments] == [one.base_offset for one in log.segments]
    # Auxiliary files are present, and equal unless they depend on sizes.
    assert names(out) >= names(source)
    for path in source.iterdir():
        if path.suffix in (".snapshot", ".txnindex"):
            assert (out / path.name).read_bytes() == path.read_bytes()
    assert (report.bytes_written, report.damage, report.lost) == (made.size, [], {})


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("name", LOGS)
def test_converted_logs_have_the_same_records(name: str, magic: int, golden: Path, tmp_path: Path) -> None:
    source, out = golden / "logs" / name, tmp_path / name
    convert_log(source, out, magic, codec="gzip" if magic < 2 else None, lossy="drop", max_bytes=4096)
    assert set(kbatch.Log(out).batches()["magic"].tolist()) <= {magic}
    expected = [(row[0], -1 if magic == 0 else row[1], *row[2:]) for row in rows_of(source)]
    assert rows_of(out) == expected
    assert not verify_log(kbatch.Log(out).segments, whole=True).damaged
    if magic < 2:
        # Older magics have no producers and transactions.
        assert not [each for each in names(out) if each.endswith((".snapshot", ".txnindex"))]


def test_the_txnindex_of_a_log_that_begins_within_a_transaction_is_kept(golden: Path, tmp_path: Path) -> None:
    """The .txnindex may list a transaction that began before the log; without an index it is made from the markers."""
    source = tmp_path / "txn-0"
    shutil.copytree(golden / "logs/txn-0", source)
    (source / "00000000000000000000.log").unlink()
    out = tmp_path / "b"
    recompress_log(source, out, "gzip")
    index = "00000000000000000186.txnindex"
    assert (out / index).read_bytes() == (source / index).read_bytes()
    (source / index).unlink()
    recompress_log(source, tmp_path / "c", "gzip")
    made, expected = (kbatch.Log(path).segments[0].transaction_index() for path in (tmp_path / "c", out))
    assert made["last_offset"].tolist() == expected["last_offset"].tolist()


def test_segments_may_lose_all_batches(tmp_path: Path) -> None:
    fields: Any = {"producer_id": 7, "producer_epoch": 0}
    with LogWriter(tmp_path / "t-0", sync=False) as writer:
        for first in (0, 10, 20, 30):
            writer.roll(first) if first else None
            if first != 10:
                writer.append(kbatch.encode([b"v"], base_offset=first, timestamps=1))
            if first in (10, 30):
                writer.append(kbatch.encode_marker("commit", offset=first + 1, timestamp=1, **fields))
    convert_log(tmp_path / "t-0", tmp_path / "u-0", 1, lossy="drop")
    assert [segment.base_offset for segment in kbatch.Log(tmp_path / "u-0").segments] == [0, 20, 30]
    assert [row[0] for row in rows_of(tmp_path / "u-0")] == [0, 20, 30]


def test_a_message_set_with_too_distant_offsets_is_refused(tmp_path: Path) -> None:
    """PRD-R8: the error names the file and the batch."""
    inner = build_message(b"k", b"a", offset=5) + build_message(b"k", b"b", offset=2**31 + 5)
    path = tmp_path / "t-0/00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(build_wrapper(inner, codec="gzip", offset=2**31 + 5))
    with pytest.raises(kbatch.InvalidRecordError) as caught:
        convert_log(tmp_path / "t-0", tmp_path / "u-0")
    assert str(caught.value).startswith(f"{path}, byte 0, base offset ")
    assert str(caught.value).endswith(": offset is 2147483648 above the first of its batch, more than an int32 holds")
    assert os.listdir(tmp_path) == ["t-0"]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("codec", ["snappy", "none"])
def test_split_segments_have_the_aborted_transactions_of_their_markers(
    indexed: bool, codec: str, golden: Path, tmp_path: Path
) -> None:
    """Each transaction is in the .txnindex of its marker's segment, where consumers look for it."""
    source = tmp_path / "source-0"
    shutil.copytree(golden / "logs/txn-0", source)
    if not indexed:
        for path in source.glob("*.txnindex"):
            path.unlink()
    recompress_log(source, tmp_path / "txn-0", codec, segment_bytes=500)
    log = kbatch.Log(tmp_path / "txn-0")
    assert len(log.segments) > 30
    assert not verify_log(log.segments, whole=True).damaged
    entries = [segment.transaction_index() for segment in log.segments]
    expected = np.concatenate([segment.transaction_index() for segment in kbatch.Log(golden / "logs/txn-0").segments])
    assert np.concatenate(entries)[["producer_id", "first_offset", "last_offset"]].tolist() == (
        expected[["producer_id", "first_offset", "last_offset"]].tolist()
    )
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.end_offset]
    for segment, end, rows in zip(log.segments, ends, entries, strict=True):
        assert ((segment.base_offset <= rows["last_offset"]) & (rows["last_offset"] < end)).all()


def test_segments_larger_than_the_limit_are_split(golden: Path, tmp_path: Path) -> None:
    recompress_log(golden / "logs/codec-gzip-0", tmp_path / "t-0", "none", segment_bytes=30_000)
    log = kbatch.Log(tmp_path / "t-0")
    assert len(log.segments) > 4
    assert all(segment.size <= 30_000 for segment in log.segments)
    assert {0, 1631} < {segment.base_offset for segment in log.segments}
    assert rows_of(tmp_path / "t-0") == rows_of(golden / "logs/codec-gzip-0")


def test_damage(golden: Path, tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    shutil.copytree(golden / "logs/codec-none-0", source)
    path = source / "00000000000000001825.log"
    data = bytearray(path.read_bytes())
    row = kbatch.scan(bytes(data))[3]
    data[int(row["position"]) + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(kbatch.CrcMismatchError) as caught:
        recompress_log(source, tmp_path / "u-0", "zstd")
    assert (caught.value.source, caught.value.position) == (str(path), int(row["position"]))
    assert os.listdir(tmp_path) == ["t-0"]
    report = recompress_log(source, tmp_path / "u-0", "zstd", on_error="skip")
    (loss,) = report.damage
    assert (loss.position, loss.length) == (int(row["position"]), int(row["size"]))
    assert loss.file == str(path)
    assert str(path) not in loss.reason
    assert rows_of(tmp_path / "u-0") == rows_of(source, on_error="skip")


@pytest.mark.parametrize("tail", [b"", bytes(500), kbatch.encode([b"cut"], base_offset=9)[:-1]], ids=len)
def test_bytes_after_the_last_batch_are_reported_as_not_copied(
    tail: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DSK-R14: a partial batch or zeros at the end are not damage, but they are reported."""
    (tmp_path / "t-0").mkdir()
    batches = [kbatch.encode([b"v"] * 3, base_offset=first) for first in (0, 3, 6)]
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(batches[0] + batches[1])
    (tmp_path / "t-0" / f"{6:020d}.log").write_bytes(batches[2] + tail)
    report = recompress_log(tmp_path / "t-0", tmp_path / "u-0", "gzip", max_bytes=100)
    assert (report.tail_bytes, report.damage, report.batches) == (len(tail), [], 3)
    assert main(["convert", str(tmp_path / "t-0"), str(tmp_path / "v-0")]) == 0
    output = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not copied")]
    assert output == ([f"not copied: {len(tail):,} bytes after the last complete batch"] if tail else [])
    assert kbatch.Log(tmp_path / "v-0").end_offset == 9


def test_outputs_inside_the_input_are_refused(golden: Path, tmp_path: Path) -> None:
    source = tmp_path / "logs"
    shutil.copytree(golden / "logs", source)
    for out in (source / "txn-0/x-0", source / "txn-0"):
        with pytest.raises(kbatch.LogDirectoryError, match="is inside the input"):
            recompress_log(source / "txn-0", out, "gzip")
    with pytest.raises(kbatch.LogDirectoryError, match="is inside the input"):
        rewrite_logs(source, source / "x", Recompression("gzip"))
    with pytest.raises(kbatch.LogDirectoryError, match="has 3 segments"):
        recompress_log(source / "txn-0", tmp_path / "txn.log", "gzip")
    assert os.listdir(tmp_path) == ["logs"]


@pytest.mark.parametrize("codec", ["lz4", "none"])
def test_memory_does_not_depend_on_the_size(codec: str, tmp_path: Path) -> None:
    """Rewrites 200 MB under an address-space limit that is smaller than the log."""
    size = write_log(tmp_path / "t-0", 200, codec=codec)
    assert size > 200_000_000
    code = (
        "import resource, sys, kbatch\n"
        "from kbatch.log import convert_log, recompress_log\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (160 << 20),) * 2)\n"
        "report = recompress_log(sys.argv[1], sys.argv[2], 'snappy', sync=False)\n"
        "assert report.bytes > 200_000_000 and report.rewritten == report.batches\n"
        "report = convert_log(sys.argv[2], sys.argv[3], 1, sync=False)\n"
        "assert report.records == 200 * 1024, report\n"
    )
    arguments = [tmp_path / name for name in ("t-0", "u-0", "v-0")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert kbatch.Log(tmp_path / "v-0").end_offset == 200 * 1024


def test_the_commands(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = golden / "logs"
    assert main(["recompress", f"{logs}/txn-0", f"{tmp_path}/txn-0", "--codec", "zstd:9"]) == 0
    assert "165 batches (21.9 KiB) -> 165" in capsys.readouterr().out
    assert rows_of(tmp_path / "txn-0", isolation="read_committed") == rows_of(
        logs / "txn-0", isolation="read_committed"
    )
    # The output is one file, with index files if its name has the base offset.
    path = f"{logs}/magic1-0/00000000000000000000.log"
    assert main(["convert", path, f"{tmp_path}/new.log", "--magic", "2", "--codec", "lz4:3"]) == 0
    (tmp_path / "one").mkdir()
    assert main(["convert", path, f"{tmp_path}/one/00000000000000000000.log"]) == 0
    assert sorted(os.listdir(tmp_path)) == ["new.log", "one", "txn-0"]
    suffixes = sorted(each.suffix for each in (tmp_path / "one").iterdir())
    assert suffixes == [".index", ".log", ".timeindex"]
    assert set(kbatch.scan((tmp_path / "new.log").read_bytes())["attributes"].tolist()) == {3}
    capsys.readouterr()
    # A conversion that loses something is refused, or reports the loss.
    lossy = ["convert", f"{logs}/txn-0", f"{tmp_path}/old-0", "--magic", "1", "--codec", "gzip"]
    assert main(lossy) == 1
    assert "does not support control batches" in capsys.readouterr().err
    assert not (tmp_path / "old-0").exists()
    assert main([*lossy, "--lossy", "drop"]) == 0
    assert "lost: 34 control batch(es)" in capsys.readouterr().out
    assert main(lossy) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", f"{tmp_path}/nowhere", f"{tmp_path}/x-0"]) == 1
    assert "no such file or directory" in capsys.readouterr().err


def test_commands_rewrite_every_log_of_a_directory_or_nothing(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "data"
    for name in ("codec-none-0", "txn-0"):
        shutil.copytree(golden / "logs" / name, source / name)
    (source / "txn-0/partition.metadata").write_text("version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n")
    (source / "meta.properties").write_text("version=1\n")
    (source / "log-start-offset-checkpoint").write_text("0\n1\ntxn 0 9\n")
    (source / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    shutil.copytree(source / "txn-0", source / "txn-0.0123456789abcdef0123456789abcdef-delete")
    assert main(["recompress", str(source), f"{tmp_path}/out", "--codec", "lz4"]) == 0
    assert sorted(os.listdir(tmp_path / "out")) == [
        "codec-none-0",
        "log-start-offset-checkpoint",
        "meta.properties",
        "txn-0",
    ]
    assert (tmp_path / "out/txn-0/partition.metadata").exists()
    assert kbatch.Log(tmp_path / "out/txn-0").start_offset == 9
    assert main(["verify", "--json", f"{tmp_path}/out"]) == 0
    # A failed command writes nothing.
    capsys.readouterr()
    path = source / "txn-0/00000000000000000280.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert main(["recompress", str(source), f"{tmp_path}/two", "--codec", "gzip"]) == 1
    assert sorted(os.listdir(tmp_path)) == ["data", "out"]
    assert main(["recompress", str(source), f"{tmp_path}/two", "--codec", "gzip", "--on-error", "skip"]) == 3
    last = kbatch.scan(path.read_bytes())[-1]
    output = capsys.readouterr().out
    assert f"skipped: {path}, byte {last['position']}, {last['size']:,} bytes: " in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["recompress", "a", "b"],
        ["recompress", "a", "b", "--codec", "brotli"],
        ["recompress", "a", "b", "--codec", "gzip:x"],
        ["recompress", "a", "b", "--codec", "zstd:99"],
        ["convert", "a", "b", "--magic", "3"],
        ["convert", "a"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2
    assert "usage: kbatch" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", 60)
    process = subprocess.Popen(
        [sys.executable, "-m", "kbatch", "recompress", f"{tmp_path}/t-0", f"{tmp_path}/u-0", "--codec", "zstd:19"],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "kbatch recompress: interrupted\n")
    assert os.listdir(tmp_path) == ["t-0"]


def test_json_of_verify_is_clean(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recompress_log(golden / "logs/txn-0", tmp_path / "txn-0", "snappy")
    assert main(["verify", "--json", f"{tmp_path}/txn-0"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert (log["damaged"], log["findings"], log["segments"]) == (False, [], 3)
