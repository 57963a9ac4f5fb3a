"""``kbatch compact PATH OUT``: compact logs as Kafka's log cleaner does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kbatch.cli.inputs import open_path
from kbatch.cli.parsers.compact import NUMBER_OPTIONS
from kbatch.cli.summaries import log_dict, loss_dicts, print_summary
from kbatch.cli.terminal import ProgressLine, counted, format_size, print_lines
from kbatch.cli.usage import storage_options
from kbatch.log.logs import Log
from kbatch.log.storage import locate
from kbatch.log.write.compaction import Compaction, compact_log
from kbatch.log.write.rewriting import check_apart
from kbatch.log.write.staging import staged

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    options = {name: getattr(arguments, name) for name, *_ in NUMBER_OPTIONS}
    options |= {"now": arguments.now, "include_active": arguments.include_active}
    given = storage_options(arguments)
    logs, is_directory = open_path(arguments.path, given)
    done: list[tuple[str, Compaction]] = []
    with ProgressLine() as line:
        if is_directory:
            check_apart(locate(arguments.path, given)[1], arguments.out)
            total, before = 2 * sum(log.size for log in logs), 0
            with staged(arguments.out) as stage:
                for log in logs:
                    name = f"{log.topic}-{log.partition}"
                    options["progress"] = _progress_of(line, before, total)
                    done.append((name, compact_log(log, os.path.join(stage.directory, name), **options)))
                    before += 2 * log.size
        else:
            options["progress"] = _progress_of(line, 0, 2 * logs[0].size)
            done.append((arguments.out, compact_log(logs[0], arguments.out, **options)))
    damaged = any(result.damage for _, result in done)
    status = 3 if damaged else 0
    if arguments.json:
        results = [_compaction_dict(log, result) for log, (_, result) in zip(logs, done, strict=True)]
        print_summary("compact", status, results, damaged=damaged, out=arguments.out)
    else:
        for name, result in done:
            print_lines(*_result_lines(name, result))
    return status


def _progress_of(line: ProgressLine, before: int, total: int) -> Callable[[int, int], None]:
    # Each log is read twice.
    return lambda read, _: line.show_bytes((before + read) // 2, total // 2)


def _compaction_dict(log: Log, result: Compaction) -> dict[str, Any]:
    counts = asdict(result)
    del counts["damage"]
    return log_dict(log, log.path, **counts, losses=loss_dicts(result.damage))


def _result_lines(name: str, result: Compaction) -> list[str]:
    lines = [
        f"{name}: {counted(result.records_in, 'record')} ({format_size(result.bytes_in)}) -> {result.records_out:,} "
        f"({format_size(result.bytes_out)}); {counted(result.keys, 'key')}; {result.batches_rewritten:,} of "
        f"{counted(result.batches_out, 'batch')} rewritten; {counted(result.segments_in, 'segment')} -> "
        f"{result.segments_out:,}"
    ]
    if result.end_offset == result.first_dirty_offset:
        lines.append("  nothing was cleaned: the last segment, open transactions and young records are never cleaned")
    for kept, removed, name in (
        (result.tombstones, result.tombstones_removed, "tombstones"),
        (result.markers, result.markers_removed, "transaction markers"),
    ):
        if kept or removed:
            lines.append(f"  {name}: {kept:,} kept, {removed:,} removed")
    if result.aborted:
        lines.append(f"  removed: {counted(result.aborted, 'record')} of aborted transactions")
    if result.keyless:
        keyless = counted(result.keyless, "record")
        lines.append(f"  removed: {keyless} without a key, which a compacted topic should not have")
    if result.tail_bytes:
        lines.append(f"  not copied: {counted(result.tail_bytes, 'byte')} after the last complete batch")
    lines += [f"  skipped: {counted(loss.length, 'byte')}: {loss.reason}" for loss in result.damage]
    return lines
