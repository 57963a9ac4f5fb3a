"""The start of the command line: what it imports, how soon an export ends, and Ctrl-C during imports."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kbatch
from kbatch.cli.running import make_parser

COMMANDS = sorted(make_parser()[1])
HEAVY = ("numpy", "pyarrow", "pandas", "polars", "pyspark", "kbatch.format", "kbatch.log")


def imported_by(*arguments: str) -> set[str]:
    """Return the modules that a command imports."""
    code = """
import sys
from kbatch.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code in (0, 2), end
print("modules:", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_version_imports_no_parser() -> None:
    """It takes little longer than the start of Python."""
    code = """
import sys
sys.argv[1:] = ["--version"]
before = {*sys.modules}
from kbatch.cli import main
status = main()
import os
os.write(1, " ".join(sorted({*sys.modules} - before)).encode())
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, modules = done.stdout.splitlines()
    assert version == f"kbatch {kbatch.__version__}"
    allowed = {"kbatch", "kbatch.version", "kbatch.lazy_names", "kbatch.interrupts", "kbatch.cli", "importlib"}
    assert {*modules.split()} - allowed == {each for each in modules.split() if each.startswith(("importlib.", "_"))}
    assert done.stderr == ""


def test_the_version_takes_less_than_a_tenth_of_a_second_of_processor_time() -> None:
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "kbatch", "--version"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.1


@pytest.mark.parametrize(
    ("target", "status", "error"),
    [("/dev/full", 1, "kbatch: No space left on device\n"), ("&-", 0, ""), ("/dev/null", 0, "")],
)
def test_the_version_reports_a_full_disk_and_no_closed_output(target: str, status: int, error: str) -> None:
    command = f"{sys.executable} -m kbatch --version >{target}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, error)


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["help"], ["completion", "bash"], ["no-such-command"], ["dump", "--no-such-option"]],
    ids=" ".join,
)
def test_what_needs_no_data_does_not_import_numpy(arguments: list[str]) -> None:
    assert not imported_by(*arguments) & {*HEAVY}


def test_the_help_of_no_command_imports_numpy() -> None:
    code = f"""
import sys
from kbatch.cli import main
for command in {COMMANDS}:
    assert main(["help", command]) == 0
    try:
        main([command, "--help"])
    except SystemExit:
        pass
print("modules:", *({{*{HEAVY}}} & {{*sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nmodules:\n")


# Packages and modules that an export of Parquet files by the local engine does not need.
UNUSED = (
    "asyncio", "deltalake", "duckdb", "fsspec", "google", "multiprocessing", "pandas", "polars", "prometheus_client",
    "pyarrow.dataset", "pyarrow.json", "pyiceberg", "pyspark", "kbatch.log.check", "kbatch.log.write",
    "kbatch.protocol", "kbatch.rewrite", "kbatch.scans", "kbatch.sinks.delta", "kbatch.sinks.iceberg", "kbatch.spark",
    "kbatch.write",
)  # fmt: skip


@pytest.mark.parametrize("flags", [[], ["--format", "arrow"]], ids=" ".join)
def test_an_export_by_the_local_engine_imports_only_what_it_uses(
    flags: list[str], golden: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    command = ["export", str(golden / "logs"), str(tmp_path / "out"), "--engine", "local", *flags]
    assert sorted(imported_by(*command) & {*UNUSED}) == []


def test_the_first_export_by_the_local_engine_takes_less_than_a_second_of_processor_time(
    golden: Path, tmp_path: Path
) -> None:
    """The whole run from the start of Python on, so the first file is there before."""
    pytest.importorskip("pyarrow")
    times = []
    for number in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        arguments = ["export", golden / "logs", tmp_path / str(number), "--engine", "local"]
        subprocess.run([sys.executable, "-m", "kbatch", *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("handling", ["", "try: sleep()\nexcept BaseException: raise RuntimeError('init failed')"])
def test_an_interrupt_during_an_import_ends_with_one_line(
    number: signal.Signals, handling: str, tmp_path: Path
) -> None:
    """Also if a module turns the interrupt into another exception, as C code of NumPy does."""
    begin = "import time\ndef sleep():\n    print('importing', flush=True)\n    time.sleep(60)\n"
    (tmp_path / "numpy.py").write_text(begin + (handling or "sleep()"))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from kbatch.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "stats", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        output = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, ("", "kbatch stats: interrupted\n"))


def test_the_handlers_are_installed_before_the_parsers_are_imported() -> None:
    code = """
import signal, sys
import kbatch.cli
assert "argparse" not in sys.modules
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "kbatch.cli.running":
            print(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
sys.meta_path.insert(0, Finder)
kbatch.cli.main(["help"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True\n")


def test_help_to_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m kbatch help export | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n0\n")
    assert done.stderr == ""
