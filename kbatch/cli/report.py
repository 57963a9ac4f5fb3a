"""``kbatch report PATH... -o FILE``: a page with what is in logs."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kbatch.cli.broker_flags import CLIENT_SETTINGS, add_broker_flags, given_settings, live_brokers
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, STORAGE, UsageError, add_flags, given_options, given_storage
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.terminal import (
    ProgressLine,
    counted,
    format_lost,
    format_records,
    format_size,
    log_dict,
    print_lines,
    print_summary,
)
from kbatch.options import ValueKind, documented, option, options_of

if TYPE_CHECKING:
    from typing import Any

    from kbatch.report.writing import Report

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Write an HTML page with what is in logs: records and bytes over time, sizes by topic and codec, batches and records,
keys, lateness, missing offsets, producers, transactions, tombstones, damage, and settings that look wrong with what to
change. The page is one file, needs no network and runs no scripts.

PATH is a topic-partition directory, a broker's log directory, or a URL of one; or a live cluster, kafka://HOST:PORT,
whose topics are fetched to the end that they have now. Logs are read once; damage is skipped and drawn.
"""


_EPILOG = f"""\
examples:
  kbatch report /var/lib/kafka/data -o report.html
  kbatch report --topic 'orders-*' /var/lib/kafka/data -o orders.html
  kbatch report --json data -o report.html | jq '.advice[] | [.where, .finding]'
  kbatch report --topic orders kafka://localhost:9092 --config client.properties -o report.html

The section on keys needs the extra "report". docs/report.md describes the page.

{CLIENT_SETTINGS}"""


_STATUSES = {
    1: "error, such as a PATH that cannot be read",
    3: "done, but with damage: the lost bytes are part of the section on damage only",
}


@documented
@dataclass(frozen=True)
class ReportFlags:
    """The flags of ``kbatch report``.

    Attributes
    ----------
    {options}
    """

    output: str = option(
        ValueKind(str, "report.html", metavar="FILE", letter="-o"), flag="--output",
        help="the page, which replaces an earlier one when it is complete",
    )  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "report",
        run,
        help="write a page with what is in logs",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="log directory, or a URL of one; or kafka://HOST:PORT")
    add_flags(parser, [*options_of(ReportFlags), *STORAGE, *JSON])
    add_selection(parser, "topics", "partitions", reason="whole logs are described")
    add_broker_flags(parser, without_servers=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    flags = given_options(ReportFlags, arguments)
    if flags.output == "-":
        raise UsageError("--output is a file; standard output gets the summary")
    url = live_brokers(arguments.paths, arguments)
    report, logs = _report_on_files(arguments, flags) if url is None else _report_on_cluster(url, arguments, flags)
    status = 3 if report.losses else 0
    if arguments.json:
        totals = {name: value for name, value in asdict(report).items() if name != "logs"}
        print_summary("report", status, logs, damaged=status == 3, **totals)
        return status
    print_lines(*_report_lines(report))
    return status


def _report_on_files(arguments: argparse.Namespace, flags: ReportFlags) -> tuple[Report, list[dict[str, Any]]]:
    from kbatch.cli.inputs import open_logs_once
    from kbatch.report.writing import write_report

    selection, given = given_selection(arguments), given_storage(arguments)
    with ProgressLine("listing ...") as line:
        logs = open_logs_once(arguments.paths, selection, given)
        report = write_report(logs, flags.output, progress=line.show_bytes)
    return report, [log_dict(log, log.path) for log in logs]


def _report_on_cluster(
    url: str, arguments: argparse.Namespace, flags: ReportFlags
) -> tuple[Report, list[dict[str, Any]]]:
    from kbatch.live import ClusterSource
    from kbatch.report.writing import write_report

    if given_storage(arguments):
        raise UsageError(f"--storage-option belongs to files, not to a cluster, {url}")
    chosen = given_selection(arguments)
    with ProgressLine("connecting ...") as line:
        report = write_report(
            ClusterSource(given_settings(arguments, url)),
            flags.output,
            topics=chosen.topics,
            partitions=chosen.partitions,
            progress=lambda done, total: line.write(f"{done:,} of {counted(total, 'offset')}"),
        )
    return report, []


def _report_lines(report: Report) -> list[str]:
    still_open = f"; {counted(report.open_transactions, 'open transaction')}" if report.open_transactions else ""
    lost = f"; lost: {format_lost(report.lost_bytes, report.missing_offsets)}" if report.losses else ""
    problems = sum(each.level == "problem" for each in report.advice)
    return [
        f"{report.path}: {counted(report.logs, 'log')}, {format_records(report.records, report.control_records)}, "
        f"{format_size(report.bytes)}{still_open}{lost}",
        f"{counted(problems, 'problem')} and {counted(len(report.advice) - problems, 'setting')} to look at",
    ]
