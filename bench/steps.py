"""Run a step of a benchmark in a fresh process, ``python -m MODULE --step``, with its input and result as JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["add_step_arguments", "run_fresh"]

ROOT = Path(__file__).parent.parent


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all benchmarks with steps have."""
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="run once with few records, to check the results")
    parser.add_argument("--dir", type=Path, help="directory for the logs (default: the system's temporary directory)")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)


def run_fresh(
    module: str, order: dict[str, Any], *, seconds: float, stderr: int | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """Run the step of a module in a fresh process.

    Parameters
    ----------
    module : str
        With ``--step``, it reads the order from standard input and prints the result as the last line.
    order : dict
        The input of the step.
    seconds : float
        The time limit, after which `subprocess.TimeoutExpired` is raised.
    stderr : int, optional
        ``subprocess.PIPE`` to return the standard error.

    Returns
    -------
    dict or None
        The result; None if the process failed.
    str or None
        The standard error, if `stderr` requests it.
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
