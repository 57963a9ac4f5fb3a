"""The workers of pytest-xdist: one of them runs all tests of a group, so that its fixtures are created once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xdist")

TESTS = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("group", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in "ab"])
def test_one(group, number):
    Path(f"{group}-{os.environ['PYTEST_XDIST_WORKER']}").touch()
"""


def test_one_worker_runs_all_tests_of_a_group(tmp_path: Path) -> None:
    """Other pairs of versions distribute each test alone, which nothing but the time of a run shows."""
    (tmp_path / "test_grouped.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-n", "2", "--dist", "loadgroup"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name[0] for path in tmp_path.glob("?-gw*")) == ["a", "b"], done.stdout
