"""What stands beside the segments of a log that is written anew: copied, or left out where it can't be read."""

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
# The last of the log: a broker reads it first.
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
    # Names that no broker gives: of tiered storage, and what is still being written.
    for name in ("00000000000000000371-a2JhdGNoLXRlc3RzLWJrcg.snapshot", f"{SNAPSHOT}.deleted"):
        shutil.copy(path / SNAPSHOT, path / name)
    return path


def beside(path: Path) -> dict[str, bytes]:
    return {
        each.name: each.read_bytes()
        for each in path.iterdir()
        if ".snapshot" in each.name or each.name in (EPOCHS, METADATA)
    }


@pytest.mark.parametrize("write", ALL)
def test_what_can_be_read_is_copied(write: Callable[..., list[kbatch.Loss]], source: Path, tmp_path: Path) -> None:
    assert write(source, tmp_path / "out-0") == []
    copied = beside(tmp_path / "out-0")
    assert set(copied) >= {SNAPSHOT, EPOCHS, METADATA}
    assert all(name[:20].isdigit() and len(name) == len(SNAPSHOT) for name in set(copied) - {EPOCHS, METADATA})
    assert copied.items() <= beside(source).items()


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flipped, "byte 2: stored checksum is 0x"),
        (lambda data: data[:-1], "byte 2: stored checksum is 0x"),
        (lambda data: b"", "byte 0: ends within the 10 bytes of its header"),
        (lambda data: b"\0\2" + data[2:], "byte 0: unsupported producer snapshot version 2"),
    ],
    ids=["flipped", "cut", "empty", "version"],
)
@pytest.mark.parametrize("write", ALL)
def test_a_snapshot_that_can_not_be_read_is_left_out(
    write: Callable[..., list[kbatch.Loss]],
    damage: Callable[[bytes], bytes],
    said: str,
    source: Path,
    tmp_path: Path,
) -> None:
    """DSK-R6: a broker deletes it, and follows the log from the one before."""
    path = source / SNAPSHOT
    path.write_bytes(damage(path.read_bytes()))
    (loss,) = write(source, tmp_path / "out-0")
    assert loss.reason.startswith(f"{path}, {said}")
    assert loss.reason.endswith("; it can be rebuilt from the log")
    assert (loss.position, loss.length, loss.base_offset) == (0, path.stat().st_size, None)
    copied = beside(tmp_path / "out-0")
    assert SNAPSHOT not in copied
    assert {EPOCHS, METADATA} <= set(copied)


@pytest.mark.parametrize("write", ALL)
def test_leader_epochs_that_can_not_be_read_are_made_anew(
    write: Callable[..., list[kbatch.Loss]], source: Path, tmp_path: Path
) -> None:
    """DSK-R11: a broker gives up a log directory with such a file; the batches have the epochs too."""
    (source / EPOCHS).write_text("0\n2\n0 0\n")
    (loss,) = write(source, tmp_path / "out-0")
    assert loss.reason.startswith(f"{source / EPOCHS}, line 2: ")
    assert read_leader_epochs(tmp_path / "out-0" / EPOCHS)["epoch"].tolist() == [0, 1, 2, 3, 4]


def test_below_magic_2_no_snapshot_is_looked_at(source: Path, tmp_path: Path) -> None:
    (source / SNAPSHOT).write_bytes(b"")
    report = convert_log(source, tmp_path / "out-0", 1, lossy="drop", codec="gzip")
    assert report.damage == []
    assert set(beside(tmp_path / "out-0")) == {EPOCHS, METADATA}


@pytest.mark.parametrize("arguments", [["convert"], ["recompress", "--codec", "lz4"], ["compact", "--include-active"]])
def test_the_command_line_tells(
    arguments: list[str], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / SNAPSHOT).write_bytes(b"")
    assert main([*arguments, str(source), str(tmp_path / "out-0")]) == 3
    said = capsys.readouterr().out
    assert "skipped: " in said
    assert f"{source / SNAPSHOT}, byte 0: ends within" in said
    assert main(["verify", str(tmp_path / "out-0")]) == 0
    if arguments[0] == "compact":
        capsys.readouterr()
        assert main([*arguments, str(source), str(tmp_path / "two-0"), "--json"]) == 3
        (loss,) = json.loads(capsys.readouterr().out)["damage"]
        assert (loss["position"], loss["length"]) == (0, 0)
        assert SNAPSHOT in loss["reason"]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
