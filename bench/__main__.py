"""Run every contestant on the same corpora in the same run; print a table of ratios and the floors, and draw a chart.

``python -m bench`` runs from the top of a clone, with ``pip install -e '.[bench]'``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.floors import FOREIGN, floors
from bench.load import BUSY, OtherWork, other_work
from bench.results import Results, compact, foreign_versions

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
PACKAGES = (
    *("kafka-record-batch", "aiokafka", "kafka-python", "pyarrow", "pandas", "numpy"),
    *("crc32c", "cramjam", "lz4", "zstandard", "isal"),
)


class Recorder:
    """A pytest plugin that collects the results of pytest-benchmark, the failures, and the skips with their reasons."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"benchmarks": []}
        self.skipped: dict[str, None] = {}
        self.failed: list[str] = []

    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        self.found = output_json

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            path, _, reason = report.longrepr
            self.skipped[f"{Path(path).name}: {reason.removeprefix('Skipped: ')}"] = None
        elif report.failed:
            self.failed.append(report.nodeid)


def versions() -> dict[str, str]:
    """Return the versions of the packages that are compared or used."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Return a one-line description of this machine."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), name)
    return f"{name}, {os.cpu_count()} cores, {platform.system()}"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmarks in this process; return the document that `Results` reads."""
    try:
        import pytest
        import pytest_benchmark  # noqa: F401 - a plugin
    except ImportError as error:
        raise SystemExit(f"bench: {error}; run pip install -e '.[bench]'") from None

    recorder = Recorder()
    others = OtherWork()
    with tempfile.TemporaryDirectory() as scratch:
        # pytest-benchmark calls the recorder only if it is given a file to write.
        arguments = [str(HERE), "-q", "--benchmark-quiet", "-p", "no:cacheprovider", "--disable-warnings"]
        arguments += [f"--benchmark-json={scratch}/found.json"]
        arguments += ["-k", options.k] if options.k else []
        code = pytest.main(arguments, plugins=[recorder])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"bench: pytest ended with {code!r}")
    from bench.corpora import default_size

    found = versions()
    return {
        "machine": machine(),
        "versions": found | foreign_versions(recorder.found),
        "size": default_size(),
        "quick": options.quick,
        "other_work": others.processors(),
        "skipped": [*(f"{name} is not installed" for name in PACKAGES if name not in found), *recorder.skipped],
        "failed": recorder.failed,
        "live": {},
        "results": compact(recorder.found),
    }


def run_live(options: argparse.Namespace) -> dict[str, Any]:
    """Run `bench.live`; return records per second by topic, client and kind of result."""
    with tempfile.TemporaryDirectory() as scratch:
        figures = Path(scratch) / "live.json"
        command = [sys.executable, "-m", "bench.live", f"--json={figures}"]
        subprocess.run(command + ["--quick"] * options.quick, cwd=HERE.parent, check=True)
        return json.loads(figures.read_text())["records_per_second"]


def refuse_busy(processors: float | None, when: str) -> None:
    """Exit if other processes use more processors than `BUSY`."""
    if processors is not None and processors > BUSY:
        raise SystemExit(
            f"bench: other processes {when} {processors:.2f} processors, and --readme accepts at most {BUSY}: "
            "end them, or wait, and measure again"
        )


def verdict(results: Results, options: argparse.Namespace) -> int:
    """Return the exit status: 1 if a benchmark failed or did not run, or with ``--check`` if a floor is not met."""
    if results.failed:
        return 1
    found = floors(results)
    if options.check and not all(floor.met for floor in found):
        return 1
    # A complete run measures every floor, except that toolchains of other languages may be missing if that is reported.
    left_out = {FOREIGN} if any(line.startswith("test_foreign") for line in results.skipped) else set()
    missing = [floor.text for floor in found if floor.measured is None and floor.needs not in left_out]
    if missing and not options.k:
        print("floors that did not run, although this was a complete run:", *missing, sep="\n  ", file=sys.stderr)
        return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks, or read the results of an earlier run; print the report and draw the chart."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run everything once, on little data, to check results")
    parser.add_argument("-k", "--corpus", dest="k", metavar="EXPRESSION", default="",
                        help="select benchmarks as with pytest's -k: 'small and decode', 'zstd', 'arrow'")  # fmt: skip
    parser.add_argument("--mb", type=float, help="size of a corpus in 10^6 bytes before compression (default: 32)")
    parser.add_argument("--live", action="store_true", help="also run Python clients and kbatch against a broker")
    parser.add_argument("--details", action="store_true", help="also print every contestant")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a floor is not met or did not run")
    parser.add_argument("--out", type=Path, default=HERE / "corpora" / "out",
                        help="directory for results.json, report.md and the chart (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", type=Path, help="file for the results (default: results.json in the directory --out)")
    parser.add_argument(
        "--from", dest="read", type=Path, metavar="FILE", help="run nothing; read the results of an earlier run"
    )
    parser.add_argument("--readme", action="store_true",
                        help="write the chart and the tables to README.md, docs/benchmarks.md and bench/")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.readme and (options.quick or options.k):
        parser.error("--readme accepts only complete, timed runs: not with --quick or -k")
    # The modules that are imported below read these variables.
    if options.quick:
        os.environ["KBATCH_BENCH_QUICK"] = "1"
    if options.mb:
        os.environ["KBATCH_BENCH_MB"] = str(options.mb)

    if options.read:
        results = Results.read(options.read)
    else:
        if options.readme:
            refuse_busy(other_work(), "use")
        document = run(options)
        # If this fails, the measurements above are still written.
        try:
            if options.live:
                document["live"] = run_live(options)
        except subprocess.CalledProcessError as error:
            document["failed"].append(str(error))
        results = Results(document)

    from bench.chart import draw
    from bench.report import report

    options.out.mkdir(parents=True, exist_ok=True)
    target = options.json or options.out / "results.json"
    results.write(target)
    text = report(results, detailed=options.details)
    (options.out / "report.md").write_text(report(results, detailed=True))
    charts = draw(results, options.out)
    print(text)
    print("written:", target, options.out / "report.md", *charts)
    if options.readme:
        refuse_busy(results.other_work, "used")
        from bench.readme import renew

        print("renewed:", *renew(results))
    return verdict(results, options)


if __name__ == "__main__":
    sys.exit(main())
