"""Exports that fail: a killed worker, a full disk, secrets in messages, and the exit status."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import log_batches
import pytest
from log_batches import DAY, NOW

import kbatch
from kbatch.cli import main

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from kbatch.sinks.write_options import WriteOptions  # noqa: E402

pytestmark = pytest.mark.spark


def test_help_lists_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "4 done without losses, but --isolation read_committed withheld records" in text
    assert "OUT/_transactions" in text


def test_a_failed_run_keeps_the_files_of_earlier_runs(tmp_path: Path) -> None:
    """A run that fails after it has written files removes its own files only."""
    from local_export import export

    from kbatch.sinks.table_target import TableTarget

    pytest.importorskip("deltalake")
    root, out = tmp_path / "logs", tmp_path / "out"
    log_batches.write_segment(root / "t-0", 0, [log_batches.batch(0, [NOW])])
    export(root, out, format="delta")
    before = sorted(out.rglob("*"))
    log_batches.write_segment(root / "t-0", 1, [log_batches.batch(1, [NOW])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableTarget, "commit", refuse)
        with pytest.raises(RuntimeError, match="no"):
            export(root, out, format="delta")
    assert sorted(out.rglob("*")) == before


def refuse(*arguments: Any) -> None:
    raise RuntimeError("no")


def test_messages_contain_no_secrets(tmp_path: Path) -> None:
    from kbatch.sinks.outputs import open_place

    storage = {"access_key": "a", "secret_key": "hush", "endpoint_override": "http://127.0.0.1:1"}
    writing = WriteOptions(storage=storage)
    assert "hush" not in repr(writing)
    assert "hush" not in repr(open_place("s3://bucket/x", writing.storage))


FAILING = """
import os, resource, signal
from pathlib import Path


class KillOnce:
    \"\"\"A transform that ends its worker in the middle of a task, once.\"\"\"

    def __init__(self, mark):
        self.mark = mark

    def schema(self, schema):
        return schema

    def apply(self, batch):
        if batch.column("offset")[0].as_py() >= 500:
            try:
                Path(self.mark).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return batch


class SmallFiles:
    \"\"\"A transform that limits the size of the files of its worker.\"\"\"

    def schema(self, schema):
        return schema

    def apply(self, batch):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
        return batch
"""
RUN = """
import sys, warnings
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
import failing
from kbatch.spark import WriteOptions, export, spark_session

directory = sys.argv[1]
writing = WriteOptions(row_group_rows=100, by_day=True)
with spark_session("local[2,3]", conf={"spark.speculation": "true"}):
    summary = export(
        f"{directory}/logs", f"{directory}/out", transform=failing.KillOnce(f"{directory}/killed"), writing=writing
    )
    print(summary.records, len(summary.files), flush=True)
    export(f"{directory}/large", f"{directory}/full", transform=failing.SmallFiles(), writing=writing)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Two exports of one Spark that retries tasks, in a process of its own: a worker is killed, and a disk is full."""
    directory = tmp_path_factory.mktemp("failing")
    batches = [log_batches.batch(i, [NOW + i * DAY // 300]) for i in range(1000)]
    log_batches.write_segment(directory / "logs" / "t-0", 0, batches)
    noise = Random(1)
    batches = [log_batches.batch(i, [NOW], value=noise.randbytes(10_000)) for i in range(1000)]
    log_batches.write_segment(directory / "large" / "t-0", 0, batches)
    (directory / "failing.py").write_text(FAILING)
    paths = os.pathsep.join([str(directory), str(Path(kbatch.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", RUN, directory],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return directory, done


Exported = tuple[Path, subprocess.CompletedProcess[str]]


def test_a_worker_killed_while_it_writes_a_file_is_retried(exported: Exported) -> None:
    directory, done = exported
    assert (directory / "killed").exists(), done.stderr
    paths = sorted((directory / "out").rglob("*.parquet"))
    assert done.stdout.split() == ["1000", str(len(paths))]
    found = [offset for path in paths for offset in pq.ParquetFile(path).read(["offset"])["offset"].to_pylist()]
    assert found == list(range(1000))
    assert sorted(os.listdir(directory / "out")) == ["_manifest.json", "topic=t"]
    assert not list(directory.glob("out.tmp*"))


def test_a_full_disk_is_reported_in_one_line(exported: Exported) -> None:
    """A file size limit, like a full disk, gives a message of one line that names the file, and no output."""
    directory, done = exported
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(r"KbatchError: while exporting .*t-0/0{20}\.log: OSError: .*File too large", last)
    assert set(os.listdir(directory)) - {"__pycache__"} == {"failing.py", "killed", "large", "logs", "out"}
