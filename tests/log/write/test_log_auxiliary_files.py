"""Auxiliary files of a rewritten log: they are copied, or omitted if they can't be read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kbatch
from kbatch.cli import main
from kbatch.log import compact_log, convert_log, read_leader_epochs, recompress_log

EPOCHS = "leader-epoch-checkpoint"
METADATA = "partition.metadata"
# The last snapshot of the log, which a broker reads first.
SNAPSHOT = "00000000000000000371.snapshot"


def compacted(source: Path, out: Path) -> list[kbatch.Loss]:
    return compact_log(source, out, include_active=True).damage


def converted(source: Path, out: Path) -> list[kbatch.Loss]:
    return convert_log(source, out, 2).damage


def recompressed(source: Path, out: Path) -> list[kbatch.Loss]:
    return recompress_log(source, out, "lz4").damage


ALL = (compacted, converted, recompressed)


@pytest.fixture
def source(golden: Path, tmp_path: Path) -> Path:
    path = tmp_path / "txn-0"
    shutil.copytree(golden / "logs" / "txn-0", path)
    (path / EPOCHS).write_text("0\n1\n0 0\n")
    (path / METADATA).write_text("version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n")
    # Names that are not a broker's current snapshots: of tiered storage, and of a deleted file.
    for name in ("00000000000000000371-a2JhdGNoLXRlc3RzLWJrcg.snapshot", f"{SNAPSHOT}.deleted"):
        shutil.copy(path / SNAPSHOT, path / name)
    return path


def auxiliary_files(path: Path) -> dict[str, bytes]:
    return {
        each.name: each.read_bytes()
        for each in path.iterdir()
        if ".snapshot" in each.name or each.name in (EPOCHS, METADATA)
    }


@pytest.mark.parametrize("write", ALL)
def test_readable_auxiliary_files_are_copied(
    write: Callable[..., list[kbatch.Loss]], source: Path, tmp_path: Path
) -> None:
    assert write(source, tmp_path / "out-0") == []
    copied = auxiliary_files(tmp_path / "out-0")
    assert set(copied) >= {SNAPSHOT, EPOCHS, METADATA}
    assert all(name[:20].isdigit() and len(name) == len(SNAPSHOT) for name in set(copied) - {EPOCHS, METADATA})
    assert copied.items() <= auxiliary_files(source).items()


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flipped, "byte 2: stored checksum is 0x"),
        (lambda data: data[:-1], "byte 2: stored checksum is 0x"),
        (lambda data: b"", "byte 0: ends within the 10 bytes of its header"),
        (lambda data: b"\0\2" + data[2:], "byte 0: unsupported producer snapshot version 2"),
    ],
    ids=["flipped", "cut", "empty", "version"],
)
@pytest.mark.parametrize("write", ALL)
def test_an_unreadable_snapshot_is_omitted_and_reported(
    write: Callable[..., list[kbatch.Loss]],
    damage: Callable[[bytes], bytes],
    message: str,
    source: Path,
    tmp_path: Path,
) -> None:
    """DSK-R6: a broker deletes such a snapshot, and follows the log from the previous one."""
    path = source / SNAPSHOT
    path.write_bytes(damage(path.read_bytes()))
    (loss,) = write(source, tmp_path / "out-0")
    assert loss.reason.startswith(f"{path}, {message}")
    assert loss.reason.endswith("; it can be rebuilt from the log")
    assert (loss.position, loss.length, loss.base_offset) == (0, path.stat().st_size, None)
    copied = auxiliary_files(tmp_path / "out-0")
    assert SNAPSHOT not in copied
    assert {EPOCHS, METADATA} <= set(copied)


@pytest.mark.parametrize("write", ALL)
def test_unreadable_leader_epochs_are_rebuilt_from_the_batches(
    write: Callable[..., list[kbatch.Loss]], source: Path, tmp_path: Path
) -> None:
    """DSK-R11: a broker does not load a log directory with such a file; the epochs are also in the batches."""
    (source / EPOCHS).write_text("0\n2\n0 0\n")
    (loss,) = write(source, tmp_path / "out-0")
    assert loss.reason.startswith(f"{source / EPOCHS}, line 2: ")
    assert read_leader_epochs(tmp_path / "out-0" / EPOCHS)["epoch"].tolist() == [0, 1, 2, 3, 4]


def test_snapshots_are_ignored_below_magic_2(source: Path, tmp_path: Path) -> None:
    (source / SNAPSHOT).write_bytes(b"")
    report = convert_log(source, tmp_path / "out-0", 1, lossy="drop", codec="gzip")
    assert report.damage == []
    assert set(auxiliary_files(tmp_path / "out-0")) == {EPOCHS, METADATA}


@pytest.mark.parametrize("arguments", [["convert"], ["recompress", "--codec", "lz4"], ["compact", "--include-active"]])
def test_commands_report_unreadable_auxiliary_files(
    arguments: list[str], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / SNAPSHOT).write_bytes(b"")
    assert main([*arguments, str(source), str(tmp_path / "out-0")]) == 3
    message = capsys.readouterr().out
    assert "skipped: " in message
    assert f"{source / SNAPSHOT}, byte 0: ends within" in message
    assert main(["verify", str(tmp_path / "out-0")]) == 0
    capsys.readouterr()
    assert main([*arguments, str(source), str(tmp_path / "two-0"), "--json"]) == 3
    (loss,) = json.loads(capsys.readouterr().out)["logs"][0]["losses"]
    assert (loss["position"], loss["length"]) == (0, 0)
    assert SNAPSHOT in loss["reason"]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
