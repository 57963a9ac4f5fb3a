"""Kills exports at random times: ``python killed_exports.py FORMAT LOGS OUT KILLS`` prints the number that were killed.

It is a process of its own, which forks for each export: no library has started threads in it.
"""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

import log_batches
import pyarrow.parquet
from local_export import export
from log_batches import NOW


def grow(root: Path, partition: int, first: int) -> None:
    """Add a segment of 40 records to a log."""
    batches = [log_batches.batch(first + i, [NOW + first + i] * 2) for i in range(0, 40, 2)]
    log_batches.write_segment(root / f"t-{partition}", first, batches)


def run_and_kill(root: Path, out: Path, kind: str, seconds: float) -> bool:
    """Export in a child process, and kill it; return whether it was killed before its end.

    Raises
    ------
    RuntimeError
        If the export failed.
    """
    child = os.fork()
    if child == 0:
        _export_and_exit(root, out, kind)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.001)
    else:
        os.kill(child, 9)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            return True
        if os.waitstatus_to_exitcode(status):
            raise RuntimeError("the export failed")
    return False


def _export_and_exit(root: Path, out: Path, kind: str) -> NoReturn:
    try:
        export(root, out, format=kind)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(kind: str, root: Path, out: Path, kills: int) -> None:
    assert pyarrow.parquet is not None
    if kind == "delta":
        import deltalake.transaction  # noqa: F401
    numbers = random.Random(20)
    for partition in range(3):
        grow(root, partition, 0)
    usual = []
    for name in ("1", "2", "3"):
        began = time.monotonic()
        run_and_kill(root, out.with_name(name), kind, 120)
        usual.append(time.monotonic() - began)
    killed = 0
    for i in range(1, kills + 1):
        # Every fourth run may end.
        seconds = 120.0 if i % 4 == 0 else numbers.uniform(0.1, 1.3) * min(usual)
        killed += run_and_kill(root, out, kind, seconds)
        grow(root, i % 3, 40 * (1 + (i - 1) // 3))
    print(killed)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
