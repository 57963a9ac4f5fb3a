"""The check of the kernels' instruction counts: reading of profiles, and comparison with committed figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import instructions
from bench.instructions import FIGURES, Run, Step, compare, parse

STEP = Step(1000, "10 records", {"decode.decode": 900, "scan.scan": 100})
RUN = Run("x86_64", "gcc 12", True, {"decode": STEP, "scan": Step(500, "10 records", {"scan.scan": 500})})

PROFILE = """\
version: 1
events: Ir
fl=(1) ???
fn=(1) PyEval
ob=(1) /usr/lib/libpython.so
16 100
ob=(2) /somewhere/kbatch/kernels/decode.cpython-311-x86_64-linux-gnu.so
fn=(2) __pyx_pw_6kbatch_7kernels_6decode_1decode
10 40
+3 2
cob=(3) /usr/lib/libc.so.6
cfn=(3) memcpy
calls=2 20
* 5000
-1 8
fn=(4) __pyx_fuse_0__pyx_f_6kbatch_7kernels_6decode_read_batch.isra.0
12 7
ob=(3)
fn=(3)
20 5000
ob=(2)
fn=(2)
11 1
fn=(5) kb_crc32c
7 3
fn=(6) __Pyx_GetBuffer
7 4
totals: 5100
"""


def with_decode(step: Step) -> Run:
    return replace(RUN, steps=RUN.steps | {"decode": step})


def test_only_instructions_of_kernels_are_counted() -> None:
    assert parse(PROFILE.splitlines(True)) == {
        "decode.decode": 40 + 2 + 8 + 1,
        "decode.read_batch": 7,
        "kb_crc32c": 3,
        "what Cython makes": 4,
    }


def test_equal_counts_and_small_changes_pass() -> None:
    assert compare(RUN, RUN) == ([], [])
    assert compare(with_decode(replace(STEP, total=1029)), RUN) == ([], [])


def test_ten_percent_more_instructions_fail_and_name_the_function() -> None:
    worse = Step(1100, "10 records", {"decode.decode": 990, "scan.scan": 110})
    failures, notes = compare(with_decode(worse), RUN)
    assert notes == []
    (failure,) = failures
    assert failure.startswith("decode: 1,000 instructions before, 1,100 now (+10.0%): decode.decode +90, scan.scan +10")
    assert "--renew" in failure


def test_much_lower_counts_request_new_figures() -> None:
    failures, notes = compare(with_decode(replace(STEP, total=900)), RUN)
    assert failures == []
    assert "-10.0%" in notes[0]
    assert "--renew" in notes[0]


@pytest.mark.parametrize("other", [replace(RUN, compiler="gcc 14"), replace(RUN, crc_level=0)])
def test_another_compiler_is_reported_and_has_a_larger_tolerance(other: Run) -> None:
    failures, notes = compare(replace(other, steps=with_decode(replace(STEP, total=1290)).steps), RUN)
    assert failures == []
    assert "the tolerance is 30% instead of 3%" in notes[0]
    failures, _ = compare(replace(other, steps=with_decode(replace(STEP, total=1310)).steps), RUN)
    assert len(failures) == 1


def test_another_architecture_is_reported_and_not_compared() -> None:
    failures, notes = compare(replace(with_decode(replace(STEP, total=9000)), machine="aarch64"), RUN)
    assert failures == []
    assert "nothing is compared" in notes[0]


def test_steps_and_inputs_must_equal_those_of_the_figures() -> None:
    fewer = replace(RUN, steps={"decode": STEP})
    assert compare(fewer, RUN)[0][0].startswith("scan: only in the figures")
    assert compare(RUN, fewer)[0][0].startswith("scan: only in the run")
    failures, _ = compare(with_decode(replace(STEP, input="11 records")), RUN)
    assert failures[0].startswith("decode: the input was 10 records, and is 11 records")


def test_the_command_fails_if_figures_are_ten_percent_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A simulated regression: the command compares the counts with figures that are a tenth lower."""
    committed = Run.read(FIGURES)
    monkeypatch.setattr(instructions, "count", lambda: committed)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert instructions.main([]) == 0
    less = {name: replace(step, total=step.total * 9 // 10) for name, step in committed.steps.items()}
    path = tmp_path / "figures.json"
    replace(committed, steps=less).write(path)
    assert instructions.main(["--figures", str(path)]) == 1
    assert capsys.readouterr().out.count("FAILED") == len(less)
    assert instructions.main(["--renew", "--figures", str(path)]) == 0
    assert json.loads(path.read_text()) == json.loads(FIGURES.read_text())


def test_every_step_runs_without_callgrind() -> None:
    """The steps run without callgrind, which takes half a minute; CI runs them with it."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.instructions", "--child"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"].keys() == Run.read(FIGURES).steps.keys()
