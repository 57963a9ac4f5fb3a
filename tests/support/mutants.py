"""Mutation testing: changes one operator, constant or bound at a time, and reports the changes that no test notices.

    python tests/support/mutants.py [--sample N] [--only PATH ...] [--max-survivors PERCENT] [--list]

It works in a copy of the checkout, whose kernels must be built. A mutant is killed if a test fails, crashes or takes
far longer than usual. Survivors that are known to be equivalent are listed in ``mutants.tsv`` with the reason; the
run ends with status 1 if more than --max-survivors percent of the mutants survive otherwise.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tokenize
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("mutants.tsv")

# Replacements of operators and names. The first group exchanges bounds, the second one operations.
REPLACEMENTS: dict[str, tuple[str, ...]] = {
    "<": ("<=",),
    "<=": ("<",),
    ">": (">=",),
    ">=": (">",),
    "==": ("!=",),
    "!=": ("==", "<"),
    "+": ("-",),
    "-": ("+",),
    "*": ("+",),
    "//": ("*",),
    "%": ("*",),
    "&": ("|",),
    "|": ("&",),
    "^": ("|",),
    "<<": (">>",),
    ">>": ("<<",),
    "+=": ("-=",),
    "-=": ("+=",),
    "|=": ("&=",),
    "&=": ("|=",),
    "and": ("or",),
    "or": ("and",),
    "not": ("",),
    "True": ("False",),
    "False": ("True",),
    "min": ("max",),
    "max": ("min",),
    "minimum": ("maximum",),
    "maximum": ("minimum",),
    '"left"': ('"right"',),
    '"right"': ('"left"',),
    "bisect_left": ("bisect_right",),
    "bisect_right": ("bisect_left",),
    "continue": ("break",),
    "break": ("pass",),
}
# Operators that are surrounded by spaces. Without them they are casts, addresses, pointers or signs.
BINARY = {text for text in REPLACEMENTS if not text[0].isalpha() and text[0] != '"'}
# Prefetching changes no result.
NO_RESULT = re.compile(r"prefetch|\bahead\b|PAYLOAD_AHEAD|HEADERS_AHEAD")
# A mutant may take this much more CPU time than the unchanged code.
TIME_FACTOR, TIME_ALLOWANCE = 5, 20
# The plugin of Hypothesis was imported before the fork.
_IGNORED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
MEMORY_BYTES = 12 << 30
WALL_SECONDS = 900


class Target(NamedTuple):
    """A file to mutate.

    Attributes
    ----------
    path : str
    tests : tuple of str
        Tests that kill nearly all mutants, within seconds.
    slow : tuple of str
        Tests of the mutants that survive `tests`.
    module : str or None
        The module to compile in `kbatch.kernels`.
    """

    path: str
    tests: tuple[str, ...]
    slow: tuple[str, ...] = ()
    module: str | None = None


_RECORD_TESTS = ("tests/read/test_rules_records.py", "tests/read/test_rules_header.py")
TARGETS = (
    Target("kbatch/broker/producers.py", ("tests/broker/test_producers.py",)),
    Target("kbatch/broker/validation.py", ("tests/broker/test_appending.py",)),
    Target(
        "kbatch/log/files/indexes.py",
        ("tests/log/test_log_segments.py",),
        ("tests/cli/test_cli_verify.py", "tests/log/test_storage.py", "tests/log/test_log_tables.py"),
    ),
    Target(
        "kbatch/log/check/index_checks.py",
        ("tests/log/test_verification_bounds.py", "tests/log/test_log_segments.py", "tests/cli/test_cli_verify.py"),
    ),
    Target(
        "kbatch/log/check/verification.py",
        ("tests/log/test_verification_bounds.py",),
        ("tests/cli/test_cli_verify.py", "tests/log/test_log_state.py"),
    ),
    Target(
        "kbatch/log/write/compaction.py",
        (
            "tests/log/write/test_compaction_bounds.py",
            "tests/log/test_log_compaction.py",
            "tests/log/write/test_compact.py",
        ),
    ),
    Target(
        "kbatch/log/write/cleaning.py",
        (
            "tests/log/write/test_compaction_bounds.py",
            "tests/log/test_log_compaction.py",
            "tests/log/write/test_compact.py",
        ),
    ),
    Target(
        "kbatch/kernels/keymap.pyx",
        ("tests/kernels/test_key_hashes.py", "tests/log/write/test_compact.py"),
        module="keymap",
    ),
    Target(
        "kbatch/batches/framing.py",
        (
            "tests/batches/test_framing_bounds.py",
            "tests/read/test_rules_framing.py",
            "tests/read/test_rules_message_sets.py",
        ),
        ("tests/read/test_random_damage.py", "tests/log/test_log_segments.py"),
    ),
    Target(
        "kbatch/kernels/scan.pyx",
        (
            "tests/batches/test_framing_bounds.py",
            "tests/read/test_rules_header.py",
            "tests/read/test_rules_framing.py",
        ),
        ("tests/read/test_vectors.py",),
        "scan",
    ),
    Target(
        "kbatch/kernels/records.pxd",
        _RECORD_TESTS,
        ("tests/read/test_vectors.py",),
        "decode",
    ),
    Target("kbatch/kernels/murmur.pyx", ("tests/broker/test_partitioner.py",), module="murmur"),
    Target(
        "kbatch/kernels/search.pyx",
        ("tests/read/test_header_chain.py", "tests/read/test_search_bounds.py"),
        ("tests/read/test_random_damage.py", "tests/read/test_damage.py", "tests/read/test_damage_compressed.py"),
        "search",
    ),
    Target(
        "kbatch/read/damage.py",
        ("tests/read/test_search_bounds.py",),
        (
            "tests/transactions/test_lost_markers.py",
            "tests/read/test_random_damage.py",
            "tests/read/test_damage.py",
            "tests/read/test_damage_compressed.py",
            "tests/read/test_losses.py",
            "tests/read/test_building_bounds.py",
            "tests/read/test_streaming.py",
        ),
    ),
    Target("kbatch/read/budget.py", ("tests/read/test_budget_bounds.py",)),
    Target(
        "kbatch/read/splitting.py",
        ("tests/read/test_splitting_bounds.py",),
        ("tests/read/test_table_memory.py", "tests/read/test_threads.py"),
    ),
    Target(
        "kbatch/read/building.py",
        (
            "tests/read/test_building_bounds.py",
            "tests/read/test_splitting_bounds.py",
            "tests/read/test_rules_header.py",
        ),
        ("tests/read/test_losses.py", "tests/read/test_search_bounds.py"),
    ),
    Target("kbatch/read/withheld.py", ("tests/transactions/test_withheld_bounds.py",)),
    Target("kbatch/read/stable.py", ("tests/read/test_stable_bounds.py",), ("tests/read/test_stream_committed.py",)),
    Target(
        "kbatch/log/committed.py",
        (
            "tests/log/test_committed_bounds.py",
            "tests/log/test_growing_segments.py",
            "tests/transactions/test_lost_bounds.py",
        ),
        ("tests/log/test_follow_transactions.py",),
    ),
    Target(
        "kbatch/log/write/journal.py",
        ("tests/log/write/test_hostile_journals.py",),
        ("tests/log/write/test_write_log_failures.py",),
    ),
    Target(
        "kbatch/transactions/lost.py",
        ("tests/transactions/test_lost_bounds.py",),
        ("tests/log/test_committed_bounds.py", "tests/transactions/test_lost_markers.py"),
    ),
    Target(
        "kbatch/transactions/aborted.py",
        ("tests/transactions/test_aborted_ranges.py", "tests/transactions/test_transactions.py"),
    ),
    Target(
        "kbatch/transactions/control_parsing.py",
        (
            "tests/transactions/test_rules_control.py",
            "tests/transactions/test_transactions.py",
            "tests/transactions/test_damaged_transactions.py",
        ),
    ),
    Target(
        "kbatch/transactions/tracker.py",
        (
            "tests/transactions/test_transactions.py",
            "tests/transactions/test_damaged_transactions.py",
            "tests/transactions/test_lost_markers.py",
        ),
        ("tests/read/test_stream_committed.py", "tests/log/test_follow_transactions.py"),
    ),
)


class Mutant(NamedTuple):
    """A change of one token: `before` at a line and column (0 is the first one) becomes `after`.

    `source` is the stripped line, with the number of its occurrence in the file if it is not the first one.
    """

    path: str
    line: int
    column: int
    before: str
    after: str
    source: str
    number: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies the mutant in ``mutants.tsv``, which other changes of the file keep."""
        return self.path, self.source, f"{self.before} #{self.number}", self.after or "(removed)"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column + 1}: {self.before} -> {self.after or '(removed)'}"


def mutants_of(target: Target, text: str) -> list[Mutant]:
    """Return all mutants of a file's text."""
    lines = text.splitlines()
    skipped = _skipped_spans(text) if target.path.endswith(".py") else []
    seen: Counter[str] = Counter()
    titles = []
    for line in lines:
        seen[line.strip()] += 1
        count = seen[line.strip()]
        titles.append(line.strip() if count == 1 else f"{line.strip()} [{count}]")
    found = []
    for token in _tokens(text):
        row, column = token.start
        if row > len(lines):
            break
        line = lines[row - 1]
        if any(start <= token.start < stop for start, stop in skipped) or _is_declaration(line, target.path):
            continue
        spaced = line[column - 1 : column] == " " and line[column + len(token.string) :][:1] in (" ", "")
        for after in _replacements(token, spaced=spaced):
            number = line.count(token.string, 0, column) + 1
            found.append(Mutant(target.path, row, column, token.string, after, titles[row - 1], number))
    return found


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def _replacements(token: tokenize.TokenInfo, *, spaced: bool) -> tuple[str, ...]:
    text = token.string
    if token.type == tokenize.NUMBER:
        try:
            return (str(int(text, 0) + 1),)
        except ValueError:
            return ()
    if text in BINARY and not spaced:
        return ()
    return REPLACEMENTS.get(text, ())


def _is_declaration(line: str, path: str) -> bool:
    """Return whether a line has no code that decides anything: imports, annotations of C, prefetching."""
    line = line.strip()
    if line.startswith(("import ", "from ", "@", "#")) or NO_RESULT.search(line):
        return True
    return not path.endswith(".py") and bool(re.match(r"cdef (inline )?[\w* ]+\w\(.*(nogil|,)", line))


def _skipped_spans(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the spans of annotations, imports and blocks for type checkers."""
    spans = []
    for node in ast.walk(ast.parse(text)):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node.returns]
        elif (
            isinstance(node, ast.Import | ast.ImportFrom)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("dataclass", "field", "cast"))
        ):
            parts = [node]
        spans += [
            ((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset))  # type: ignore[attr-defined]
            for part in parts
            if part is not None
        ]
    return spans


class Copy:
    """A copy of the checkout. Files are mutated and tests run only there.

    Tests run in forks of this process, which has imported their heavy dependencies, but not kbatch.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # New files too, so that a test works before it is committed.
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        missing = sorted(
            {name for each in TARGETS for name in (*each.tests, *each.slow) if not (ROOT / name).is_file()}
        )
        if missing:
            raise SystemExit(f"no such tests: {', '.join(missing)}")
        built = [str(path.relative_to(ROOT)) for path in (ROOT / "kbatch" / "kernels").glob("*.so")]
        if not built:
            raise SystemExit("the kernels are not built; run 'pip install -e .' first")
        for name in [*filter(None, listed.split("\0")), *built]:
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, directory / name)
        self.compiler = Compiler(directory)

    def run_tests(self, tests: Sequence[str], cpu_seconds: int | None, *, cache: bool = False) -> int:
        """Run tests in a fork until the first failure; return its wait status: 0 if all pass."""
        child = os.fork()
        if child == 0:
            self._become_pytest(tests, cpu_seconds, cache=cache)
        end = time.monotonic() + WALL_SECONDS
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                break
            time.sleep(0.02)
        return status

    def _become_pytest(self, tests: Sequence[str], cpu_seconds: int | None, *, cache: bool) -> None:
        status = 70
        try:
            os.setsid()
            os.chdir(self.directory)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            if cpu_seconds is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
            sys.dont_write_bytecode = not cache
            sys.path[0] = str(self.directory)
            os.environ["PYTHONPATH"] = str(self.directory)
            log = os.open("pytest.log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            import pytest

            present = [name for name in tests if os.path.exists(name)]
            options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not spark and not broker", "-W", _IGNORED]
            status = int(pytest.main([*options, "-k", "not linear_time and not seconds", *present]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def write(self, path: str, text: str) -> None:
        """Replace a file, and discard the bytecode of a module."""
        (self.directory / path).write_text(text)
        for stale in (self.directory / path).parent.glob(f"__pycache__/{Path(path).stem}.*"):
            stale.unlink()


class Compiler:
    """Compiles one kernel without optimization, with the Cython directives of ``setup.py``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        setup = ast.parse((directory / "setup.py").read_text())
        (directives,) = (
            ast.literal_eval(node.value)
            for node in ast.walk(setup)
            if isinstance(node, ast.keyword) and node.arg == "compiler_directives"
        )
        self.options = [f"-X{name}={value}" for name, value in directives.items() if name != "language_level"]
        self.command = shlex.split(os.environ.get("CC", "gcc"))

    def build(self, module: str) -> bool:
        """Compile a kernel in place; return whether that succeeded."""
        source = f"kbatch/kernels/{module}"
        cython = [sys.executable, "-m", "cython", "-3", "--shared=kbatch.kernels._cython", *self.options]
        flags = ["-O0", "-fno-strict-aliasing", "-g0", "-w", "-fPIC", "-I.", f"-I{sysconfig.get_path('include')}"]
        out = f"{source}{sysconfig.get_config_var('EXT_SUFFIX')}"
        steps = (
            [*cython, f"{source}.pyx", "-o", f"{source}.c"],
            [*self.command, *flags, "-c", f"{source}.c", "-o", f"{source}.o"],
            [*self.command, "-shared", f"{source}.o", "-o", f"{out}.new"],
        )
        for step in steps:
            if subprocess.run(step, cwd=self.directory, capture_output=True, check=False).returncode:
                return False
        # A new file: processes may have mapped the old one.
        os.replace(self.directory / f"{out}.new", self.directory / out)
        return True


def outcome_of(copy: Copy, target: Target, mutant: Mutant, text: str, limits: dict[tuple[str, ...], int]) -> str:
    """Return what happens with a mutant: killed, survived, or invalid if it does not compile."""
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.column] + mutant.after + line[mutant.column + len(mutant.before) :]
    copy.write(target.path, "".join(lines))
    if target.module is not None and not copy.compiler.build(target.module):
        return "invalid"
    for tests in filter(None, (target.tests, target.slow)):
        if copy.run_tests(tests, limits[tests]):
            return "killed"
    return "survived"


def run_target(copy: Copy, target: Target, chosen: Sequence[Mutant], equivalent: set[tuple[str, ...]]) -> list[str]:
    """Run the mutants of one file, and restore it; return the outcomes."""
    text = (copy.directory / target.path).read_text()
    if target.module is not None and not copy.compiler.build(target.module):
        raise SystemExit(f"{target.module} can't be compiled")
    limits = {}
    for tests in filter(None, (target.tests, target.slow)):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if copy.run_tests(tests, None, cache=True):
            raise SystemExit(
                f"tests of the unchanged {target.path} fail:\n{(copy.directory / 'pytest.log').read_text()}"
            )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        limits[tests] = int(TIME_FACTOR * used + TIME_ALLOWANCE)
    outcomes = []
    for mutant in chosen:
        outcome = "equivalent" if mutant.key in equivalent else outcome_of(copy, target, mutant, text, limits)
        outcomes.append(outcome)
        print(f"{outcome:10} {mutant}   {mutant.source}", flush=True)
    copy.write(target.path, text)
    if target.module is not None:
        copy.compiler.build(target.module)
    return outcomes


def known_equivalents() -> set[tuple[str, ...]]:
    """Read ``mutants.tsv``: path, line, token, replacement and reason of each equivalent mutant."""
    with EQUIVALENT.open(newline="") as file:
        return {tuple(row[:4]) for row in csv.reader(file, delimiter="\t") if row and not row[0].startswith("#")}


def main() -> None:
    """Run the mutants, and print a table of their outcomes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="number of mutants, chosen at random from all files")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--only", nargs="+", default=[], help="mutate these files only")
    parser.add_argument("--list", action="store_true", help="list the mutants and exit")
    parser.add_argument("--lines", help="mutate these lines only: FIRST-LAST")
    parser.add_argument("--max-survivors", type=float, default=0, help="percent that may survive (default: 0)")
    options = parser.parse_args()
    targets = [target for target in TARGETS if not options.only or target.path in options.only]
    found = [mutant for target in targets for mutant in mutants_of(target, (ROOT / target.path).read_text())]
    if options.lines:
        first, last = map(int, options.lines.split("-"))
        found = [mutant for mutant in found if first <= mutant.line <= last]
    if options.sample is not None and options.sample < len(found):
        found = sorted(random.Random(options.seed).sample(found, options.sample))
    if options.list:
        for mutant in found:
            print(*mutant.key, sep="\t")
        return
    # Imported once, for all forks.
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401

    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        copy = Copy(Path(directory))
        for target in targets:
            chosen = [mutant for mutant in found if mutant.path == target.path]
            if chosen:
                counts = Counter(run_target(copy, target, chosen, known_equivalents()))
                totals += counts
                print(f"-- {target.path}: {len(chosen)} mutants, {dict(counts)}", flush=True)
    print(f"-- all: {totals.total()} mutants, {dict(totals)}")
    if totals["survived"] > options.max_survivors / 100 * totals.total():
        raise SystemExit(
            "mutants survived: test the rule that each one breaks, or add it to mutants.tsv with the reason"
        )


if __name__ == "__main__":
    main()
