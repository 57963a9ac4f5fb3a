"""Memory and CPU seconds of the driver of an export of very many small logs.

``python -m bench.driver [--logs 100000] [--format delta]`` makes a log directory of hard links to a small log, and
exports it twice in processes of their own. The tasks do not run: empty files and reports as theirs take their place,
so that the figures are those of the driver alone. The second export finds nothing new. The last row measures
`DeltaTable.load` of all positions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.partitions import make_logs
from kbatch.log import Log
from kbatch.log.selection import choose_logs
from kbatch.plan.planner import Mapper
from kbatch.plan.positions import known_epoch, record_checksum
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split, Task
from kbatch.sinks.commits import LogName
from kbatch.sinks.counts import Counts, Progress
from kbatch.sinks.export_run import ExportRun, open_target
from kbatch.sinks.files import WrittenFile
from kbatch.sinks.outputs import open_place
from kbatch.sinks.run_input import DirectoryInput
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.task import ExportJob, TaskReport, reports_of
from kbatch.sinks.write_options import OutputFormat, WriteOptions

__all__ = ["UnreadExecutor", "export_unread", "main"]


class UnreadExecutor:
    """Creates an empty file for each split, and reports that it holds all records of the log.

    Parameters
    ----------
    log : Log
        All logs are the same.
    """

    cores = 2
    mapper: Mapper | None = None

    def __init__(self, log: Log) -> None:
        self._end = log.end_offset
        *_, last = log.tables()
        self._position = {
            "begin_offset": 0,
            "end_offset": self._end,
            "leader_epoch": known_epoch(last.batches[-1]),
            "batch_crc": int(last.batches["crc"][-1]),
            "record_crc": record_checksum(last, len(last) - 1),
        }

    def run(self, job: ExportJob, tasks: Sequence[Task[Split]], progress: Progress | None) -> Iterator[TaskReport]:
        """Return the reports, which are sent as JSON."""
        return reports_of(self._reports(job, tasks))

    def _reports(self, job: ExportJob, tasks: Sequence[tuple[Split, ...]]) -> Iterator[str]:
        last, time_us = self._end - 1, 1_700_000_000_000_000
        for number, splits in enumerate(tasks):
            for split in splits:
                assert split.topic is not None
                assert split.partition is not None
                name = job.names.data_file((split.topic, split.partition), None, 0, number, ".parquet")
                with job.names.place.create(name):
                    pass
                written = WrittenFile(name, 10_000, self._end, 0, last, time_us, time_us)
                counts = Counts(
                    records=self._end,
                    file_count=1,
                    file_bytes=written.file_bytes,
                    log_bytes=split.end,
                    codecs={"none": 10},
                    first_offset=0,
                    last_offset=last,
                )
                yield TaskReport(number, split.topic, split.partition, counts, [written], **self._position).to_json()


def export_unread(
    root: Path, out: Path, kind: OutputFormat, *, before_commit: Callable[[], object] | None = None
) -> ExportSummary:
    """Export the logs of a directory, which are the same, without reading them."""
    options, writing = ReadOptions(), WriteOptions(format=kind)
    place = open_place(str(out), {})
    logs = choose_logs([str(root)], options.selection, options.storage)
    executor = UnreadExecutor(logs[0])
    target = open_target(place, writing, table=None, catalog=None)
    with ExportRun(DirectoryInput([str(root)], options), target, logs, options, writing, None) as run:
        del logs
        run.run(None if run.has_nothing_to_read() else executor, None)
        if before_commit is not None:
            before_commit()
        return run.commit()


def _measured(root: Path, out: Path, kind: OutputFormat) -> None:
    began = time.monotonic()
    summary = export_unread(root, out, kind)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, seconds = used.ru_utime + used.ru_stime, time.monotonic() - began
    action = f"{kind}, {summary.action}, {len(summary.partitions):,} logs"
    print(f"| {action} | {used.ru_maxrss / 1e3:.0f} | {cpu:.1f} | {seconds:.1f} |", flush=True)


def _read_positions(count: int, out: Path, kind: OutputFormat) -> None:
    from kbatch.sinks.delta import DeltaTable

    began, cpu_began = time.monotonic(), time.process_time()
    state = DeltaTable(open_place(str(out), {}), False).load([LogName("many", i, None) for i in range(count)])
    cpu, seconds = time.process_time() - cpu_began, time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"| {kind}, {len(state.positions or ()):,} positions | {peak:.0f} | {cpu:.1f} | {seconds:.1f} |", flush=True)


def main() -> None:
    """Print the figures as rows of a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m bench.driver", description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--format", choices=["parquet", "arrow", "delta"], default="delta", help="default: delta")
    parser.add_argument("--dir", type=Path, help="directory for the logs (default: the system's temporary directory)")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=options.dir) as made:
        root, out = Path(made, "logs"), Path(made, "out")
        root.mkdir()
        make_logs(root, options.logs, segments=1)
        print("| export | peak, MB | CPU s | s |\n|---|---:|---:|---:|", flush=True)
        runs: list[tuple[Callable[..., None], Any]] = [(_measured, root), (_measured, root)]
        if options.format == "delta":
            runs.append((_read_positions, options.logs))
        for target, given in runs:
            process = context.Process(target=target, args=(given, out, options.format))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
