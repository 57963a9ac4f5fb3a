"""Runs a script of this directory that starts processes and kills them at random times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kbatch


def run_rounds(script: ModuleType, settings: dict[str, Any], root: Path, out: Any, kills: int) -> int:
    """Return how many of the processes were killed; the script must succeed, and print nothing else."""
    path = Path(str(script.__file__))
    paths = os.pathsep.join([str(path.parent), str(Path(kbatch.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, path, json.dumps(settings), root, out, str(kills)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)
