"""Compare the number of instructions that kernels execute for fixed inputs with committed figures; nothing is timed.

``python -m bench.instructions`` runs every step under callgrind, counts the instructions of the kernels' own code (not
of Python or the libraries that they call), and exits with 1 if a step takes more than `TOLERANCE` above its figure in
``bench/instructions.json``. ``--renew`` writes that file.

Counts are the same on every run and every machine, but depend on the compiler. With another compiler, or if the
processor that valgrind emulates selects other code, `WIDE_TOLERANCE` applies, which still detects large regressions. On
another architecture nothing is compared. The output reports both cases.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Run", "Step", "compare", "count", "main", "parse"]

FIGURES = Path(__file__).with_name("instructions.json")
# Two runs give equal counts. The tolerance is for other versions of Cython and Python, which change the code around the
# loops.
TOLERANCE = 0.03
# Compilers differ by up to this much; a fast path that is no longer taken costs more.
WIDE_TOLERANCE = 0.30
SIZE = 300_000
# A kernel that no step calls: callgrind starts a new part of the profile whenever it is entered.
MARKER = "__pyx_pw_6kbatch_7kernels_6murmur_*"
SYMBOL = re.compile(r"__pyx_(?:fuse_\d+_*)?(?:pyx_)?(?:f|pf|pw)_6kbatch_7kernels_\d+(\w+?)_(?:\d+)?(\w+)")


@dataclass(frozen=True)
class Step:
    """The instructions of a step, in total and by function, and a description of its input."""

    total: int
    input: str
    functions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The steps of a run, and everything that their figures depend on."""

    machine: str
    compiler: str
    crc_level: int
    steps: dict[str, Step]

    @classmethod
    def read(cls, path: Path) -> Run:
        facts = json.loads(path.read_text())
        return cls(**(facts | {"steps": {name: Step(**step) for name, step in facts["steps"].items()}}))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


# -- the process that runs under callgrind


def work() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return the steps by name: the name of a corpus (empty for none), and the function to run."""
    import numpy as np
    import pyarrow as pa

    import kbatch
    from bench.corpora import corpus
    from kbatch.kernels import checksum

    steps: dict[str, tuple[str, Callable[[], Any]]] = {}
    columns = ["offset", "timestamp", "key", "value"]
    codecs = [f"medium-16k-{codec}" for codec in ("gzip", "snappy", "snappy-raw", "lz4", "zstd")]
    for name in ("small", "medium", "large", "headers", "single", "ten", "small-v1", *codecs, "medium-16k-v1-lz4"):
        data = corpus(name, SIZE).data
        steps[f"decode {name}"] = name, lambda data=data: kbatch.decode(data)
    single = corpus("single", SIZE).data
    steps["scan single"] = "single", lambda: kbatch.scan(single)
    for name in ("small", "headers"):
        table = kbatch.decode(corpus(name, SIZE).data)
        steps[f"headers {name}"] = name, lambda table=table: kbatch.decode(table.data).headers
    for name in ("small", "medium", "large"):
        table = kbatch.decode(corpus(name, SIZE).data)
        steps[f"to_arrow {name}"] = name, lambda table=table: table.to_arrow(columns=columns)
        steps[f"to_arrow views {name}"] = (
            name,
            lambda table=table: table.to_arrow(columns=columns, binary="binary_view"),
        )
        arrow = table.to_arrow(columns=columns).combine_chunks()
        times = arrow["timestamp"].cast(pa.int64())
        steps[f"encode {name}"] = (
            name,
            lambda arrow=arrow, times=times: kbatch.encode(
                arrow["value"], keys=arrow["key"], timestamps=times, batch_size=16 << 10
            ),
        )
    noise = np.arange(SIZE, dtype=np.uint32).astype(np.uint8)
    steps["CRC-32C"] = "", lambda: checksum.crc32c(noise)
    steps["CRC-32"] = "", lambda: checksum.crc32(noise)
    return steps


def described(name: str) -> str:
    """Describe the content of a corpus, independently of the version of the codec that compressed it."""
    from bench.corpora import corpus

    if not name:
        return str(SIZE)
    facts = corpus(name, SIZE)
    sums = facts.sums
    return f"{sums.records} records, {facts.batches} batches, {facts.payload_bytes} bytes, {sums.values_crc:08x}"


def child() -> None:
    """Run every step with `run_marked`; print the steps and their inputs."""
    from kbatch.kernels import checksum

    steps = work()
    run_marked(function for _, function in steps.values())
    inputs = {name: described(what) for name, (what, _) in steps.items()}
    print(json.dumps({"crc_level": checksum.LEVEL, "steps": inputs}))


def run_marked(functions: Iterable[Callable[[], Any]], *, warm: bool = True) -> None:
    """Run each function between two calls of the marker, after it has run once without them if `warm`."""
    import numpy as np

    from kbatch.kernels.murmur import murmur2

    def marker() -> None:
        murmur2(np.zeros(1, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.uint32))

    for function in functions:
        if warm:
            function()
        marker()
        result = function()
        marker()
        del result


# -- the process that starts callgrind


def parse(lines: Iterable[str], where: str = "/kbatch/kernels/") -> dict[str, int]:
    """Return the instructions that each function executed itself, from one part of a profile.

    Only functions in object files whose path contains `where` are counted: by default the kernels; if it is empty, also
    the interpreter and all libraries.
    """
    names: dict[str, dict[str, str]] = {"ob": {}, "fn": {}}
    current = {"ob": "", "fn": ""}
    found: dict[str, int] = defaultdict(int)
    inclusive = False
    for line in lines:
        kind, _, rest = line.partition("=")
        if kind in ("ob", "fn", "cob", "cfn"):
            # A name is written once, with a number; later only the number is written.
            number, _, name = rest.strip().partition(" ")
            known = names[kind[-2:]]
            if name:
                known[number] = name
            if kind in current:
                current[kind] = known.get(number, number)
        elif kind == "calls":
            inclusive = True
        elif line[:1] in "+-*0123456789" and line.strip():
            if not inclusive and where in current["ob"]:
                found[readable(current["fn"])] += int(line.split()[1])
            inclusive = False
    return dict(found)


def total(lines: Iterable[str]) -> int:
    """Return the instructions of one part of a profile, of all code: what `parse` would return in total."""
    return next(int(line.split()[1]) for line in lines if line.startswith("totals: "))


def readable(symbol: str) -> str:
    """Return the name of a function in the source of a kernel; functions that Cython generates share one name."""
    symbol = symbol.partition("'")[0].partition(".")[0]
    if match := SYMBOL.match(symbol):
        return f"{match[1]}.{match[2]}"
    return "what Cython makes" if symbol.lower().startswith("__pyx") else symbol


def compiler() -> str:
    """Return the compiler that compiled the kernels, from the comment that it left in one of them."""
    from kbatch.kernels import decode

    found = re.search(rb"(GCC: [^\0]*|[^\0]*clang version[^\0]*)", Path(decode.__file__).read_bytes())
    text = found[1].decode("ascii", "replace") if found else "unknown"
    version = re.search(r"(\d+)\.\d+\.\d+", text.rpartition(")")[2] or text)
    return f"{'gcc' if text.startswith('GCC') else 'clang'} {version[1]}" if version else text


def profile(module: str, out: Path) -> Any:
    """Run ``python -m module --child`` under callgrind; return the JSON that it prints.

    The profile of function i of `run_marked` is in the file `out` with the suffix ``.{2 * i + 2}``.
    """
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--dump-before={MARKER}"]
    command += [sys.executable, "-m", module, "--child"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"valgrind ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def count() -> Run:
    """Run the steps under callgrind."""
    from bench.corpora import corpus

    for name in {what for what, _ in work().values()} - {""}:
        corpus(name, SIZE)  # under callgrind, making it takes fifty times as long
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "profile"
        reported = profile("bench.instructions", out)
        steps = {}
        for i, (name, what) in enumerate(reported["steps"].items()):
            with out.with_name(f"profile.{2 * i + 2}").open() as lines:
                functions = parse(lines)
            total = sum(functions.values())
            largest = sorted(functions.items(), key=lambda item: -item[1])
            steps[name] = Step(total, what, {function: n for function, n in largest if n >= total / 100})
    return Run(platform.machine(), compiler(), reported["crc_level"], steps)


def compare(run: Run, figures: Run) -> tuple[list[str], list[str]]:
    """Compare a run with the committed figures; return failures and notes."""
    renew = "if this is intended, run `python -m bench.instructions --renew`"
    failures: list[str] = []
    notes: list[str] = []
    if run.machine != figures.machine:
        return [], [f"the figures are for {figures.machine}, this machine is {run.machine}: nothing is compared"]
    same = (run.compiler, run.crc_level) == (figures.compiler, figures.crc_level)
    tolerance = TOLERANCE if same else WIDE_TOLERANCE
    if not same:
        notes.append(
            f"the figures are for {figures.compiler}{'' if figures.crc_level else ' with tables for checksums'}, "
            f"this build is {run.compiler}{'' if run.crc_level else ' with tables'}: "
            f"the tolerance is {tolerance:.0%} instead of {TOLERANCE:.0%}"
        )
    for name in sorted(run.steps.keys() ^ figures.steps.keys()):
        failures.append(f"{name}: only in {'the run' if name in run.steps else 'the figures'}; {renew}")
    for name in run.steps.keys() & figures.steps.keys():
        step, figure = run.steps[name], figures.steps[name]
        if step.input != figure.input:
            failures.append(f"{name}: the input was {figure.input}, and is {step.input}; {renew}")
            continue
        change = step.total / figure.total - 1
        text = f"{name}: {figure.total:,} instructions before, {step.total:,} now ({change:+.1%})"
        if change > tolerance:
            more = {
                function: step.functions.get(function, 0) - figure.functions.get(function, 0)
                for function in step.functions.keys() | figure.functions.keys()
            }
            worst = sorted((item for item in more.items() if item[1] > 0), key=lambda item: -item[1])[:3]
            where = ", ".join(f"{function} {n:+,}" for function, n in worst) or "spread over small functions"
            failures.append(f"{text}: {where}; {renew}")
        elif change < -tolerance:
            notes.append(f"{text}: run `python -m bench.instructions --renew`, so that a later loss is detected")
    return sorted(failures), notes


def main(arguments: list[str] | None = None) -> int:
    """Compare the instruction counts of the kernels with the committed figures, or write new figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=main.__doc__)
    parser.add_argument("--renew", action="store_true", help="write new figures instead of comparing")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="file of figures (default: the committed one)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child()
        return 0
    if not shutil.which("valgrind"):
        print("bench.instructions: valgrind is not installed (on Debian: apt-get install valgrind)", file=sys.stderr)
        return 2
    run = count()
    if options.renew:
        run.write(options.figures)
        print(f"{len(run.steps)} steps written to {options.figures}")
        return 0
    failures, notes = compare(run, Run.read(options.figures))
    for name, step in run.steps.items():
        print(f"{step.total:12,}  {name}")
    for text in (*notes, *(f"FAILED {failure}" for failure in failures)):
        print(text)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
