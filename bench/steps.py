"""A step of a benchmark, run in a fresh process: ``python -m MODULE --step``, with its order and result as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["run_fresh"]

ROOT = Path(__file__).parent.parent


def run_fresh(
    module: str, order: dict[str, Any], *, seconds: float, stderr: int | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """Give a module its order.

    Parameters
    ----------
    module : str
        Its ``--step`` reads the order from standard input, and prints the result as the last line.
    order : dict
    seconds : float
        How long it may take; `subprocess.TimeoutExpired` is raised after that.
    stderr : int, optional
        ``subprocess.PIPE`` to have it.

    Returns
    -------
    dict or None
        The result; None if the process failed.
    str or None
        What it wrote to standard error, if that is wanted.
    """
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    done = subprocess.run(
        [sys.executable, "-m", module, "--step"],
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        text=True,
        timeout=seconds,
        check=False,
    )
    return (None if done.returncode else json.loads(done.stdout.splitlines()[-1])), done.stderr
