"""``kbatch verify PATH...``: check segments and their auxiliary files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kbatch.cli.broker_flags import CLIENT_SETTINGS, add_broker_flags, live_brokers
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, STORAGE, add_flags, given_options, given_storage
from kbatch.cli.open_transactions import open_text
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.styles import styled
from kbatch.cli.terminal import ProgressLine, counted, format_records, format_size, log_dict, print_lines, print_summary
from kbatch.options import BOOLEAN, TEXT, ValueKind, documented, option, options_of

if TYPE_CHECKING:
    from kbatch.cli.inputs import Input
    from kbatch.log.check.verification_report import OnFinding, VerificationFinding, VerificationReport
    from kbatch.log.segment import Segment

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Check segments and their auxiliary files: checksum, structure, offsets and timestamps of every batch; index files
against the segment; .txnindex files against the transaction markers; the checksums of producer snapshots.

PATH is a segment (.log, .checkpoint), an auxiliary file of one (.index, .timeindex, .txnindex, .snapshot), a
topic-partition directory, or a broker's log directory.

Each finding is printed on a line, "file: byte N: text". A finding that need not be damage is a note: missing offsets,
which compaction and transactions cause too; zeros or an incomplete batch at the end of the last segment.

With --against, PATH is the output of kbatch export or kbatch follow: a directory, a Delta table, or the files of an
Iceberg table (--table). Its column offset is compared with the offsets of the logs in LOGDIR that its commits cover.
Each record that is missing or doubled is damage. Records that the logs no longer have, or that the export has not
reached, are a note.
"""


_EPILOG = f"""\
examples:
  kbatch verify /var/lib/kafka/data
  kbatch verify data/orders-0 || echo damaged
  kbatch verify data/orders-0/00000000000000000000.timeindex
  kbatch verify --sequences data/orders-0
  kbatch verify --json data/orders-0 | jq '.logs[].findings[]'
  kbatch verify /lake/raw --against /var/lib/kafka/data
  kbatch verify /lake/raw --against kafka://localhost:9092 --config client.properties

{CLIENT_SETTINGS}"""


_STATUSES = {
    0: "no damage; there may be notes",
    1: "error, such as a PATH that cannot be read",
    3: "damage, which the findings list",
}


@documented
@dataclass(frozen=True)
class VerifyFlags:
    """The flags of ``kbatch verify``.

    Attributes
    ----------
    {options}
    """

    against: tuple[str, ...] = option(
        ValueKind(lambda text: (text,), "/var/lib/kafka/data", metavar="LOGDIR", repeated=True), (), flag="--against",
        help="PATH is the output of kbatch export or follow: check that it has every record of the logs in LOGDIR "
        "once; may be given more than once. Or kafka://HOST:PORT, for the topics of a cluster",
    )  # fmt: skip
    table: str | None = option(
        replace(TEXT, metavar="DB.T"),
        None,
        flag="--table",
        help="with --against: the Iceberg table of the files in PATH",
    )
    catalog: str | None = option(
        replace(TEXT, metavar="NAME"), None, flag="--catalog",
        help="with --table: the catalog in pyiceberg's configuration",
    )  # fmt: skip
    sequences: bool = option(
        BOOLEAN, False, flag="--sequences",
        help="also check the sequence numbers of idempotent producers for missing and duplicate batches",
    )  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "verify",
        run,
        help="check checksums, structure, offsets and index files",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="segment, auxiliary file of one, or directory; or a URL of one"
    )
    add_flags(parser, [*options_of(VerifyFlags), *STORAGE, *JSON])
    add_selection(parser, "topics", "partitions", reason="whole files are checked")
    add_broker_flags(parser, without_servers=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.cli.inputs import find_inputs

    flags = given_options(VerifyFlags, arguments)
    url = live_brokers(flags.against, arguments)
    if flags.against or flags.table or flags.catalog:
        from kbatch.cli.verify_output import verify_output

        return verify_output(arguments, flags.against, flags.table, flags.catalog, url)
    sequences = flags.sequences
    selection, given = given_selection(arguments), given_storage(arguments)
    reports = []
    done = 0
    with ProgressLine("listing ...") as line:
        inputs = find_inputs(arguments.paths, selection, given)
        total = sum(segment.size for each in inputs for segment in each.segments)

        def on_finding(finding: VerificationFinding) -> None:
            print_lines(_finding_line(finding))

        def progress(read: int) -> None:
            line.show_bytes(done + read, total)

        for each in inputs:
            report = _verify(each, sequences, None if arguments.json else on_finding, progress)
            reports.append((each, report))
            done += report.bytes
            if not arguments.json:
                print_lines(*_summary(each, report))
    damaged = any(report.damaged for _, report in reports)
    status = 3 if damaged else 0
    if arguments.json:
        print_summary("verify", status, [_report_dict(*each) for each in reports], damaged=damaged)
    return status


def _verify(
    each: Input,
    sequences: bool,
    on_finding: OnFinding | None,
    progress: Callable[[int], None],
) -> VerificationReport:
    from kbatch.cli.inputs import is_last
    from kbatch.errors import LogDirectoryError
    from kbatch.log.check.verification import verify_index, verify_log, verify_snapshot, verify_transaction_index
    from kbatch.log.segment import Segment

    if each.kind == "log":
        whole = each.log is not None and not each.log.path.endswith(".log")
        return verify_log(each.segments, whole=whole, sequences=sequences, on_finding=on_finding, progress=progress)
    if each.kind == "snapshot":
        return verify_snapshot(each.path, on_finding=on_finding, storage=each.storage)
    if each.kind == "txnindex":
        return verify_transaction_index(each.path, _log_around(each), on_finding=on_finding, storage=each.storage)
    path = os.path.splitext(each.path)[0] + ".log"
    if each.storage.find(path) is None:
        raise LogDirectoryError(f"{each.path}: its segment does not exist: {path}", source=each.path)
    is_live = is_last(each.storage, path)
    segment = Segment(path, live=is_live, storage_options=each.storage.options)
    return verify_index(each.path, segment, on_finding=on_finding, storage=each.storage)


def _log_around(each: Input) -> list[Segment]:
    from kbatch.log.logs import Log
    from kbatch.log.store.names import parse_segment_name

    directory = os.path.dirname(each.path) or "."
    if any(parse_segment_name(name) is not None for name in each.storage.list(directory)):
        return Log(directory, storage_options=each.storage.options).segments
    return []


def _finding_line(finding: VerificationFinding) -> str:
    place = f"{finding.file}: byte {finding.position}:"
    if finding.damage:
        return styled(f"{place} {finding.text}", "error", place)
    return styled(f"{place} note: {finding.text}", "warning", "note:")


def _summary(each: Input, report: VerificationReport) -> list[str]:
    damage = sum(finding.damage for finding in report.findings)
    notes = len(report.findings) - damage
    verdict = f"DAMAGED, {counted(damage, 'finding')}" if damage else "ok"
    if notes:
        verdict += f", {counted(notes, 'note')}"
    if each.kind != "log":
        return [_verdict_line(f"{each.path}: {verdict}", damage)]
    line = (
        f"{each.name}: {verdict} ({counted(report.segments, 'segment')}, {counted(report.batches, 'batch')}"
        f"{f' ({report.damaged_batches:,} damaged)' if report.damaged_batches else ''}, "
        f"{format_records(report.records, report.control_records)}, "
        f"{format_size(report.bytes)}; {counted(report.side_files, 'index and snapshot file')})"
    )
    opened = [styled(f"  {open_text(report.open_transactions)}", "warning")] if report.open_transactions else []
    return [_verdict_line(line, damage), *opened]


def _verdict_line(line: str, damage: int) -> str:
    return styled(line, "error", f"DAMAGED, {counted(damage, 'finding')}") if damage else line


def _report_dict(each: Input, report: VerificationReport) -> dict[str, Any]:
    def listed(damage: bool) -> list[dict[str, Any]]:
        return [
            {"file": finding.file, "position": finding.position, "text": finding.text}
            for finding in report.findings
            if finding.damage == damage
        ]

    return log_dict(
        each.log,
        each.path,
        damaged=report.damaged,
        segments=report.segments,
        batches=report.batches,
        damaged_batches=report.damaged_batches,
        records=report.records,
        control_records=report.control_records,
        open_transactions=[transaction._asdict() for transaction in report.open_transactions],
        bytes=report.bytes,
        side_files=report.side_files,
        findings=listed(True),
        notes=listed(False),
    )
