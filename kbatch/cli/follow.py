"""``kbatch follow LOGDIR OUT``: export log directories or live topics continuously."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kbatch.cli.broker_flags import CLIENT_SETTINGS, warnings_as_lines
from kbatch.cli.command_parser import add_command
from kbatch.cli.export import ExportFlags, add_export_flags, chosen_engine, export_options, export_source
from kbatch.cli.export_summary import summary_document
from kbatch.cli.flags import JSON, add_flags, given_options, usage
from kbatch.cli.reports import report_lines
from kbatch.cli.terminal import ProgressLine, counted, format_records, format_size, print_json, print_lines
from kbatch.options import as_named, options_of
from kbatch.sinks.follow_options import FollowOptions

if TYPE_CHECKING:
    from kbatch.plan.backlog import Lag
    from kbatch.plan.read_options import ReadOptions
    from kbatch.sinks.follower import FollowProgress, FollowSummary
    from kbatch.sinks.summary import ExportSummary

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Export what is in the topic-partition directories under each LOGDIR, or in the topics of a live cluster
(kafka://HOST:PORT), and then what is appended to them: one commit after the other, each of which is an export that
continues (kbatch help export). Every record is written once, however often the command is stopped or killed; start it
again with the same arguments.

It commits when a record has waited for the time of --commit-interval, or when the bytes of --commit-size wait. A commit
reads about as many bytes at most, from the oldest segments on, so that a long history takes several commits. Each
commit writes at least a file for each topic-partition with new records: shorter intervals make smaller files.

SIGTERM and Ctrl-C end it. A commit that has begun is finished first; otherwise it ends within a second, and the files
of the unfinished run are removed. An error, such as a full disk, ends it too. Earlier commits remain. While it runs,
other exports to OUT end with an error.

On a terminal a line shows what is running, and how far the export is behind the logs. With --json each commit is one
line, the document that kbatch export prints with the fields lag_bytes and lag_offsets. Otherwise only what is lost,
withheld, missing or changed is printed.

examples:
  kbatch follow /var/lib/kafka/data /lake/raw
  kbatch follow /var/lib/kafka/data /lake/table --format delta --commit-interval 1m --metrics /var/lib/node/kbatch.prom
  kbatch follow /var/lib/kafka/data /lake/raw --available-now
  kbatch verify /lake/raw --against /var/lib/kafka/data
  kbatch follow kafka://localhost:9092 /lake/orders --topic orders --format delta --config client.properties
"""

_STATUSES = {
    0: "everything is committed that the logs had at the start (--available-now)",
    1: "error; what was committed before remains",
    3: "as 0, but a commit has losses, missing offsets, or batches accepted despite a wrong checksum",
    4: "as 0, without losses, but --isolation read_committed withheld records in a commit",
    5: "as 0, without losses, but more keys and values than --max-bad allows cannot be parsed completely",
    130: "stopped by SIGTERM or Ctrl-C",
}

# One run replaces or refuses data; an export that follows has no end.
_LEFT_OUT = ("mode", "ending")


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "follow",
        run,
        help="log directories or live topics to Parquet or tables, continuously",
        description=_DESCRIPTION,
        epilog=CLIENT_SETTINGS,
        statuses=_STATUSES,
    )
    parser.add_argument(
        "logdirs",
        metavar="LOGDIR",
        nargs="+",
        help="log directory, or one topic-partition of it, of a local or mounted file system; several for a broker "
        "with several log.dirs; or kafka://HOST:PORT",
    )
    parser.add_argument(
        "out", metavar="OUT", help="directory to create or to continue, or a URL such as s3://bucket/directory"
    )
    add_flags(parser, JSON)
    add_flags(parser.add_argument_group("commits"), options_of(FollowOptions))
    add_export_flags(parser, _LEFT_OUT)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.sinks.exports import ExportSetup
    from kbatch.sinks.follower import Follower
    from kbatch.sinks.metrics import MetricsFile

    flags, following = given_options(ExportFlags, arguments), given_options(FollowOptions, arguments)
    with usage():
        reading, writing = export_options(arguments)
        choose = chosen_engine(flags)
    metrics = None if flags.metrics is None else MetricsFile(flags.metrics, arguments.out)
    source, name = export_source(arguments, reading)
    setup = ExportSetup.of(source, arguments.out, reading, writing, flags.table, flags.catalog, None)
    with ProgressLine("planning ...", name=name) as line, warnings_as_lines("follow"):
        commits = _CommitLines(line, as_json=arguments.json)
        with usage():
            follower: Follower = as_named(
                lambda: Follower(
                    setup,
                    choose,
                    following,
                    on_commit=commits.on_commit,
                    progress=commits.on_progress,
                    metrics=metrics,
                ),
                {"ending": "the end of --offsets or --times", "on_error": "--on-error"},
            )
        summary = follower.run()
    if not arguments.json:
        still_open = f"; {counted(summary.open_count, 'open transaction')}" if summary.open_count else ""
        print_lines(
            f"{_records_and_markers(summary, reading)} in {counted(summary.commits, 'commit')}: {summary.out}; "
            f"{_lag_text(summary.lag)}{still_open}"
        )
    return summary.exit_status


def _records_and_markers(summary: FollowSummary, reading: ReadOptions) -> str:
    """Return the number of records, and that of control records if there are any."""
    written = summary.control_records if reading.include_control else 0
    text = format_records(summary.records - written, summary.control_records)
    return text if written or not summary.control_records else f"{text} (not written)"


class _CommitLines:
    """What is printed for each commit, and on the line of progress."""

    def __init__(self, line: ProgressLine, *, as_json: bool) -> None:
        self._line = line
        self._as_json = as_json
        self._last = "nothing committed yet"

    def on_commit(self, summary: ExportSummary, lag: Lag) -> None:
        now = datetime.now(UTC)
        self._last = f"last commit {now:%H:%M:%S} UTC, {counted(summary.records, 'record')}"
        if self._as_json:
            print_json(summary_document("follow", summary, lag_bytes=lag.bytes, lag_offsets=lag.offsets), one_line=True)
            return
        from kbatch.sinks.run_record import RunReport

        report = RunReport.of(summary, now)
        lines = report_lines(report, summary.out) if report.has_content else []
        for each in summary.unseen_reports:
            earlier = RunReport(**{name: value for name, value in each.items() if name != "report"})
            lines += report_lines(earlier, summary.out, ["an earlier run, whose report nobody has seen"])
        print_lines(*lines, flush=True)

    def on_progress(self, progress: FollowProgress) -> None:
        if progress.total_bytes:
            self._line.show_bytes(progress.read_bytes, progress.total_bytes, progress.records)
        else:
            self._line.restart()
            self._line.write(f"{_lag_text(progress.lag)}; {self._last}")


def _lag_text(lag: Lag) -> str:
    return f"{counted(lag.offsets, 'offset')} ({format_size(lag.bytes)}) behind"
