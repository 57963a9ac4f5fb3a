"""Every command on files with random damage: a documented exit status, an error of one line, no traceback."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from kbatch.cli import main

SIDE_FILES = (".index", ".timeindex", ".txnindex", ".snapshot")
LISTING = (
    ["dump"],
    ["dump", "--records", "--control", "--offsets", "3:50"],
    ["dump", "--format", "kafka", "--print-data-log"],
    ["dump", "--times", "1700000000000:1700000103112", "--producer", "1001"],
    ["verify"],
    ["verify", "--sequences", "--json"],
    ["stats", "--details"],
    ["stats", "--headers-only", "--json"],
)
WRITING = (
    ["convert", "--magic", "0", "--codec", "gzip"],
    ["convert", "--magic", "1", "--codec", "lz4", "--lossy", "drop", "--on-error", "skip"],
    ["convert", "--batch-size", "100"],
    ["recompress", "--codec", "zstd"],
    ["recompress", "--codec", "none", "--on-error", "skip", "--segment-bytes", "500"],
    ["compact", "--include-active"],
)


def damage(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes()) or bytearray(rng.randbytes(20))
    at = rng.randrange(len(data))
    kind = rng.randrange(6)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[rng.randrange(min(len(data), 70))] = rng.randrange(256)
    elif kind == 2:
        data[at : at + 8] = b"\xff" * 8
    elif kind == 3:
        data[at : at + 200] = bytes(len(data[at : at + 200]))
    elif kind == 4:
        del data[at:]
    else:
        data[at:at] = rng.randbytes(rng.randrange(1, 50))
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(24))
def test_damage(seed: int, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(seed)
    name = rng.choice(sorted(os.listdir(golden / "logs")))
    log = tmp_path / "logs" / name
    shutil.copytree(golden / "logs" / name, log, copy_function=shutil.copyfile)
    segments, files = sorted(log.glob("*.log")), sorted(log.iterdir())
    for _ in range(rng.choice([1, 1, 2, 5])):
        damage(rng, rng.choice(segments * 3 + files))
    path = rng.choice([log, log, log.parent, rng.choice(segments)])
    for command in LISTING:
        assert main([*command, str(path)]) in (0, 1, 3)
    for match in ("offset", "order", "key"):
        # Damage is found twice, and the remaining records are equal.
        assert main(["diff", "--match", match, "--on-error", "skip", str(path), str(path)]) in (0, 2)
    for side_file in files:
        if side_file.suffix in SIDE_FILES:
            for command in ("dump", "verify"):
                assert main([command, str(side_file)]) in (0, 1, 3)
    suffix = ".log" if path in segments else ""
    for number, (command, *options) in enumerate(WRITING):
        capsys.readouterr()
        status = main([command, str(path), str(tmp_path / f"{number}-0{suffix}"), *options])
        assert status in (0, 1, 3)
        if status == 1:
            assert capsys.readouterr().err.count("\n") == 1
            assert [each for each in os.listdir(tmp_path) if f"{number}-0" in each] == []
    assert not [each for each in os.listdir(tmp_path) if each.endswith(".tmp")]
