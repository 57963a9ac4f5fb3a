"""Exports that fail: a killed worker, a full disk, secrets in messages, and the exit status."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import log_batches
import pytest
from log_batches import NOW

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


def test_a_worker_killed_while_it_writes_a_file_is_retried(retried: tuple[Path, dict[str, Any]]) -> None:
    directory, results = retried
    assert (directory / "killed").exists()
    paths = sorted((directory / "out").rglob("*.parquet"))
    assert results["exported"] == [1000, len(paths)]
    found = [offset for path in paths for offset in pq.ParquetFile(path).read(["offset"])["offset"].to_pylist()]
    assert found == list(range(1000))
    assert sorted(os.listdir(directory / "out")) == ["_manifest.json", "topic=t"]
    assert not list(directory.glob("out.tmp*"))


def test_a_full_disk_is_reported_in_one_line(retried: tuple[Path, dict[str, Any]]) -> None:
    """A file size limit, like a full disk, gives a message of one line that names the file, and no output."""
    directory, results = retried
    kind, text = results["full disk"]
    assert kind == "KbatchError"
    assert re.fullmatch(r"while exporting .*t-0/0{20}\.log: OSError: .*File too large.*", text)
    assert [path.name for path in directory.iterdir() if path.name.startswith("full")] == []
