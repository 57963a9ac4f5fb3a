"""Kills followers of logs that grow: ``python killed_followers.py SETTINGS LOGS OUT KILLS`` prints their commits.

SETTINGS are keywords of `local_follow.follow`, as JSON. It is a process of its own, which forks for each follower: no
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

import pyarrow.parquet
from local_follow import GrowingLog, follow

from kbatch.sinks import working


def _follow_and_exit(root: Path, out: str, settings: dict[str, Any], commits: int) -> NoReturn:
    def on_commit(summary: Any, lag: Any) -> None:
        os.write(commits, b".")

    try:
        follow(root, out, on_commit=on_commit, commit_interval=0.0, commit_bytes=4000, **settings)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def run_and_kill(root: Path, out: str, settings: dict[str, Any], logs: list[GrowingLog], seconds: float) -> int:
    """Follow in a child process while the logs grow, and kill it; return the number of its commits.

    Raises
    ------
    RuntimeError
        If the child has ended by itself.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _follow_and_exit(root, out, settings, writer)
    os.close(writer)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for log in logs:
            log.append()
        time.sleep(0.01)
    os.kill(child, 9)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reader, "rb") as pipe:
        commits = len(pipe.read())
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the follower has ended")
    return commits


def main(settings: dict[str, Any], root: Path, out: str, kills: int) -> None:
    assert pyarrow.parquet is not None
    if settings["format"] == "delta":
        import deltalake  # noqa: F401
    if settings["format"] == "iceberg":
        import pyiceberg.catalog.sql  # noqa: F401
    # One follower runs at a time, so the owner of any other work directory in an object store is dead.
    working.DEAD_SECONDS = 0
    numbers = random.Random(35)
    logs = [GrowingLog(root / f"t-{partition}") for partition in range(3)]
    for log in logs:
        log.append()
    commits = [run_and_kill(root, out, settings, logs, numbers.uniform(0.05, 1.5)) for _ in range(kills)]
    print(sum(commits))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
