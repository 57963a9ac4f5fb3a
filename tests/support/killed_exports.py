"""Kills exports at random times: ``python killed_exports.py SETTINGS LOGS OUT KILLS`` prints how many were killed.

SETTINGS are keywords of `local_export.export`, as JSON. It is a process of its own, which forks for each export: no
library has started threads in it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import log_batches
import pyarrow.parquet
from local_export import export
from log_batches import NOW

from kbatch.sinks import working


def grow(root: Path, partition: int, first: int) -> None:
    """Add a segment of 40 records to a log."""
    batches = [log_batches.batch(first + i, [NOW + first + i] * 2) for i in range(0, 40, 2)]
    log_batches.write_segment(root / f"t-{partition}", first, batches)


def run_and_kill(root: Path, out: str, settings: dict[str, Any], seconds: float) -> bool:
    """Export in a child process, and kill it; return whether it was killed before its end.

    Raises
    ------
    RuntimeError
        If the export failed.
    """
    child = os.fork()
    if child == 0:
        _export_and_exit(root, out, settings)
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


def _export_and_exit(root: Path, out: str, settings: dict[str, Any]) -> NoReturn:
    try:
        export(root, out, **settings)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(settings: dict[str, Any], root: Path, out: str, kills: int) -> None:
    assert pyarrow.parquet is not None
    if settings["format"] == "delta":
        pass
    if settings["format"] == "iceberg":
        import pyiceberg.catalog.sql  # noqa: F401
    # One export runs at a time, so the owner of any other work directory in an object store is dead.
    working.DEAD_SECONDS = 0
    numbers = random.Random(20)
    for partition in range(3):
        grow(root, partition, 0)
    usual = []
    for name in ("1", "2", "3"):
        other = {"table": f"db.t{name}"} if "table" in settings else {}
        began = time.monotonic()
        run_and_kill(root, f"{out}{name}", settings | other, 120)
        usual.append(time.monotonic() - began)
    killed = 0
    for i in range(1, kills + 1):
        # Every fourth run may end.
        seconds = 120.0 if i % 4 == 0 else numbers.uniform(0.1, 1.3) * min(usual)
        killed += run_and_kill(root, out, settings, seconds)
        grow(root, i % 3, 40 * (1 + (i - 1) // 3))
    print(killed)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
