"""Kills exports at each step of writing: ``python killed_steps.py SETTINGS ROOT OUT EVERY``.

SETTINGS are keywords of `local_export.export`, as JSON. For every step, an export continues an output, finds a gap in
its log, and is killed at the step; the next one must report the gap, and the one after it nothing. Every EVERY-th step
is tried. The script prints the number of killed exports, and of those whose report the next one repeated. It is a
process of its own, which forks for each export: no library has started threads in it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import log_batches
import pyarrow.parquet
from local_export import export
from log_batches import NOW

from kbatch import publishing
from kbatch.sinks import delta, iceberg, outputs, working

# What a run calls to change something, which is not always a function of `os`.
STEPS = {
    outputs.OutputPlace: ("write", "create", "make", "remove", "remove_all"),
    publishing.os: ("rename", "rmdir", "unlink"),
    delta.DeltaTable: ("commit",),
    iceberg.IcebergTable: ("commit",),
}


def add(root: Path, first: int) -> None:
    """Write a segment of 20 records."""
    batches = [log_batches.batch(base, [NOW, NOW]) for base in range(first, first + 20, 2)]
    log_batches.write_segment(root / "t-0", first, batches)


def kill_at(step: int) -> None:
    """Kill this process before or after the call of one of `STEPS`: at the `step`-th such moment."""
    passed = 0

    def moment() -> None:
        nonlocal passed
        passed += 1
        if passed == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            moment()
            result = original(*arguments, **options)
            moment()
            return result

        return call

    for owner, names in STEPS.items():
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))


def in_child(*arguments: Any) -> dict[str, Any] | None:
    """Call `summary_of` in a child process; return its result, or None if the process was killed.

    Raises
    ------
    RuntimeError
        If it failed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run_and_exit(arguments, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return None
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError("the export failed")
    found: dict[str, Any] = json.loads(text)
    return found


def _run_and_exit(arguments: tuple[Any, ...], writing: int) -> NoReturn:
    try:
        with os.fdopen(writing, "w") as pipe:
            json.dump(summary_of(*arguments), pipe)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def summary_of(root: Path, out: str, settings: dict[str, Any], step: int = 0) -> dict[str, Any]:
    """Export; return the exit status, and the gaps of the run and of the reports that nobody had seen."""
    if step:
        kill_at(step)
    summary = export(root, out, is_seen=not step, **settings)
    unseen = [gap for report in summary.unseen_reports for gap in report["gaps"]]
    return {"status": summary.exit_status, "own": summary.gaps, "unseen": unseen}


def main(settings: dict[str, Any], root: Path, out: str, every: int) -> None:
    assert pyarrow.parquet is not None
    if settings["format"] == "iceberg":
        import pyiceberg.catalog.sql  # noqa: F401
    # One export runs at a time, so the owner of any other work directory in an object store is dead.
    working.DEAD_SECONDS = 0
    killed = repeated = 0
    step = 1
    while True:
        shutil.rmtree(root, ignore_errors=True)
        add(root, 0)
        chosen = settings | ({"table": f"db.t{step}"} if "table" in settings else {})
        here = f"{out}{step}"
        assert in_child(root, here, chosen) == {"status": 0, "own": [], "unseen": []}
        add(root, 40)
        first = in_child(root, here, chosen, step)
        second = in_child(root, here, chosen)
        assert second is not None, step
        assert second["status"] == 3, (step, second)
        gaps = second["own"] + second["unseen"]
        assert [(gap["first_offset"], gap["last_offset"]) for gap in gaps] == [(20, 39)], (step, second)
        assert in_child(root, here, chosen) == {"status": 0, "own": [], "unseen": []}, step
        killed += first is None
        repeated += bool(second["unseen"])
        if first is not None:
            # The run has ended before this step, and nobody has seen its summary.
            assert second["unseen"], step
            break
        step += every
    print(killed, repeated)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
