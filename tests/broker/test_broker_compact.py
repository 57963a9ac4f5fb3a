"""`compact_log` compared with Kafka's cleaner, batch by batch, on random logs. Needs Java, but no broker."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compaction import EXPIRATION, NOW, RETENTION, random_log, write_log
from oracle import decode

import kbatch
from kbatch.log import compact_log

pytestmark = pytest.mark.broker

LOGS = 60


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Path, int, int]]:
    """Logs before and after Kafka's cleaner, and their first dirty offsets; one JVM cleans all."""
    from broker.server import Unavailable, find_jars, find_java

    try:
        java, jars = find_java(), find_jars()
    except Unavailable as error:
        pytest.skip(str(error))
    where = tmp_path_factory.mktemp("cleaner")
    path = f"{jars}/*"
    source = Path(__file__).parents[1] / "broker" / "cleaner" / "Clean.java"
    compiler = Path(java).with_name("javac")
    if not compiler.exists():
        pytest.skip(f"needs a JDK: no javac next to {java}")
    subprocess.run([compiler, "-nowarn", "-cp", path, "-d", where, source], check=True)
    logs, lines = {}, []
    for seed in range(LOGS):
        rng = random.Random(seed)
        log = closed_log(rng, seed)
        modified = [NOW - 20_000 + 4_000 * i for i in range(len(log))]
        mine = write_log(where / f"in{seed}-0", log, modified=modified)
        theirs = Path(shutil.copytree(mine, where / f"kafka{seed}-0"))
        dirty = rng.choice(list(log)[:-1]) if seed % 3 == 0 else min(log)
        size = rng.choice([500, 3000, 1 << 20])
        logs[seed] = mine, theirs, dirty, size
        lines.append("\t".join(map(str, (theirs, NOW, RETENTION, dirty, EXPIRATION, size))))
    (where / "list").write_text("\n".join(lines))
    command = [java, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{where}:{path}", "Clean", f"{where}/list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return logs


def closed_log(rng: random.Random, seed: int) -> dict[int, bytes]:
    """Make a log for which both cleaners have equal rules: every transaction is ended, the last segment is empty, and
    the last batch of the cleaned part is of magic 2."""
    log = random_log(rng, segments=rng.randint(2, 4), entries=20, legacy=seed % 2 == 0)
    base = max(log)
    end = max([base, *(batch.last_offset + 1 for data in log.values() for batch in decode(data).batches)])
    for producer in (1, 2, 3):
        log[base] += kbatch.encode_marker(
            rng.choice(["commit", "abort"]), producer_id=producer, producer_epoch=99, offset=end, timestamp=NOW
        )
        end += 1
    return log | {end: b""}


@pytest.mark.parametrize("seed", range(LOGS))
def test_compacted_logs_equal_those_of_kafkas_cleaner(
    cleaned: dict[int, tuple[Path, Path, int, int]], seed: int, tmp_path: Path
) -> None:
    mine, theirs, dirty, size = cleaned[seed]
    compact_log(
        mine,
        tmp_path / "out-0",
        now=NOW,
        delete_retention_ms=RETENTION,
        producer_expiration_ms=EXPIRATION,
        first_dirty_offset=dirty,
        segment_bytes=size,
    )
    names = sorted(path.name for path in theirs.glob("*.log"))
    assert sorted(path.name for path in (tmp_path / "out-0").glob("*.log")) == names
    for name in names:
        assert contents(tmp_path / "out-0" / name) == contents(theirs / name)
        indexes = [(each / name).with_suffix(".txnindex") for each in (tmp_path / "out-0", theirs)]
        assert entries(indexes[0]) == entries(indexes[1])
        assert int(os.stat(tmp_path / "out-0" / name).st_mtime) == int(os.stat(theirs / name).st_mtime)


def contents(path: Path) -> list[tuple[Any, ...]]:
    """Return the fields of each batch that do not depend on the compressor."""
    found = decode(path.read_bytes())
    assert found.error is None
    assert not found.unread
    return [
        batch._replace(position=0, **({"size": 0, "crc": 0} if batch.attributes & 7 else {})) for batch in found.batches
    ]


def entries(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
