"""``kbatch verify OUT --against LOGDIR``: whether the output of exports has every record of its logs exactly once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbatch.cli.broker_flags import given_settings
from kbatch.cli.flags import UsageError, given_storage
from kbatch.cli.selection_flags import given_selection
from kbatch.cli.styles import styled
from kbatch.cli.terminal import ProgressLine, counted, print_lines, print_summary

if TYPE_CHECKING:
    from kbatch.sinks.export_verification import ExportVerification
    from kbatch.sinks.partition_check import ExportFinding, PartitionVerification

__all__ = ["verify_output"]


def verify_output(
    arguments: argparse.Namespace, against: Sequence[str], table: str | None, catalog: str | None, url: str | None
) -> int:
    """Verify one output, against directories or the cluster of a URL; return the exit status."""
    selection = given_selection(arguments)
    if not against:
        raise UsageError("--table and --catalog go with --against")
    if len(arguments.paths) != 1:
        raise UsageError("--against takes one PATH, the output of exports")
    if arguments.sequences or selection.topics is not None or selection.partitions is not None:
        raise UsageError("--against excludes --sequences, --topic and --partition: the whole output is checked")
    from kbatch.sinks.export_verification import verify_export

    source: Any = against
    if url is not None:
        from kbatch.live import ClusterSource

        source = ClusterSource(given_settings(arguments, url))
    with ProgressLine("planning ...", name=url or "") as line:

        def on_finding(finding: ExportFinding) -> None:
            print_lines(_line_of(finding))

        result = verify_export(
            arguments.paths[0],
            source,
            table=table,
            catalog=catalog,
            storage_options=given_storage(arguments),
            on_finding=None if arguments.json else on_finding,
            progress=line.show_bytes,
        )
    status = 3 if result.damaged else 0
    if arguments.json:
        logs = [_partition_dict(each) for each in result.partitions]
        print_summary("verify", status, logs, damaged=result.damaged, out=result.out)
    else:
        print_lines(_verdict(result))
    return status


def _line_of(finding: ExportFinding) -> str:
    place = f"{finding.topic}-{finding.partition}:"
    if finding.damage:
        return styled(f"{place} {finding.text}", "error", place)
    return styled(f"{place} note: {finding.text}", "warning", "note:")


def _verdict(result: ExportVerification) -> str:
    parts = result.partitions
    records, compared, missing, doubled = (
        sum(getattr(each, name) for each in parts) for name in ("records", "compared", "missing", "doubled")
    )
    found = f"DAMAGED, {missing:,} missing and {doubled:,} doubled" if result.damaged else "ok"
    line = (
        f"{result.out}: {found} ({counted(len(parts), 'topic-partition')}, {counted(records, 'record')}, "
        f"{counted(compared, 'record')} of the logs)"
    )
    return styled(line, "error", found) if result.damaged else line


def _partition_dict(each: PartitionVerification) -> dict[str, Any]:
    def listed(damage: bool) -> list[dict[str, Any]]:
        names = ("kind", "first_offset", "last_offset", "total", "text")
        return [{name: getattr(x, name) for name in names} for x in each.findings if x.damage == damage]

    names = ("topic", "partition", "start", "end", "records", "compared", "missing", "doubled")
    fields = {name: getattr(each, name) for name in names}
    return {"name": f"{each.topic}-{each.partition}", **fields, "findings": listed(True), "notes": listed(False)}
