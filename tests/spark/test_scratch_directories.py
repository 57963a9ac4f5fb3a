"""The directories of Spark sessions in the temporary directory: each run removes those of runs that were killed."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kbatch.spark.driver.session import _scratch_directory

HOLD = """
import sys
from kbatch.spark.driver.session import _scratch_directory
with _scratch_directory() as path:
    print(path, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield a process that holds a scratch directory until its standard input is closed, and the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_a_session_removes_the_directories_of_killed_runs_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Another program's, and a link to a directory elsewhere.
    others = [tmp_path / "kbatch-spark-bench-abcdefgh", tmp_path / "spark-abcdefgh"]
    for path in others:
        path.mkdir()
    (tmp_path / "kbatch-spark-linked__").symlink_to(others[0])
    with holder(tmp_path) as (killed, left), holder(tmp_path) as (_, kept):
        Path(left, "warehouse").mkdir()
        Path(left, "warehouse", "table").write_text("x")
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        with _scratch_directory() as path:
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
            assert {each.name for each in tmp_path.iterdir()} == {
                os.path.basename(path), kept.name, "kbatch-spark-linked__", *(each.name for each in others)
            }  # fmt: skip
        assert not os.path.exists(path)
        assert kept.exists()
    assert not kept.exists()


def test_a_directory_is_removed_after_an_error_and_is_not_taken_from_a_run_of_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail() -> None:
        with _scratch_directory() as first, _scratch_directory() as second:
            assert sorted(map(str, tmp_path.iterdir())) == sorted([first, second])
            raise ValueError("fails")

    with pytest.raises(ValueError, match="fails"):
        fail()
    assert list(tmp_path.iterdir()) == []
