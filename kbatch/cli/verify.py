"""``kbatch verify PATH...``: check segments and their auxiliary files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from kbatch.cli.inputs import Input, find_inputs, is_last
from kbatch.cli.summaries import log_dict, print_summary
from kbatch.cli.terminal import ProgressLine, counted, format_size, print_lines
from kbatch.cli.usage import storage_options
from kbatch.errors import LogDirectoryError
from kbatch.log.logs import Log
from kbatch.log.names import parse_segment_name
from kbatch.log.report import OnFinding, VerificationFinding, VerificationReport
from kbatch.log.segment import Segment
from kbatch.log.verification import verify_index, verify_log, verify_snapshot, verify_transaction_index

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    inputs = find_inputs(arguments.paths, storage_options=storage_options(arguments))
    total = sum(segment.size for each in inputs for segment in each.segments)
    reports = []
    done = 0
    with ProgressLine() as line:

        def on_finding(finding: VerificationFinding) -> None:
            line.write("")
            print_lines(_finding_line(finding))

        def progress(read: int) -> None:
            line.show_bytes(done + read, total)

        for each in inputs:
            report = _verify(each, arguments.sequences, None if arguments.json else on_finding, progress)
            reports.append((each, report))
            done += report.bytes
            if not arguments.json:
                line.write("")
                print_lines(_summary(each, report))
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
    directory = os.path.dirname(each.path) or "."
    if any(parse_segment_name(name) is not None for name in each.storage.list(directory)):
        return Log(directory, storage_options=each.storage.options).segments
    return []


def _finding_line(finding: VerificationFinding) -> str:
    return f"{finding.file}: byte {finding.position}: {'' if finding.damage else 'note: '}{finding.text}"


def _summary(each: Input, report: VerificationReport) -> str:
    damage = sum(finding.damage for finding in report.findings)
    notes = len(report.findings) - damage
    verdict = f"DAMAGED, {counted(damage, 'finding')}" if damage else "ok"
    if notes:
        verdict += f", {counted(notes, 'note')}"
    if each.kind != "log":
        return f"{each.path}: {verdict}"
    control = f"{counted(report.control_records, 'control record')}, " if report.control_records else ""
    return (
        f"{each.name}: {verdict} ({counted(report.segments, 'segment')}, {counted(report.batches, 'batch')}"
        f"{f' ({report.damaged_batches:,} damaged)' if report.damaged_batches else ''}, "
        f"{counted(report.records, 'record')}, {control}{format_size(report.bytes)}; "
        f"{counted(report.side_files, 'index and snapshot file')})"
    )


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
        bytes=report.bytes,
        side_files=report.side_files,
        findings=listed(True),
        notes=listed(False),
    )
