"""``kbatch compact PATH OUT``: logs as Kafka's cleaner leaves them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kbatch.cli.filters import parse_time
from kbatch.cli.inputs import add_storage_option, open_logs, storage_options
from kbatch.cli.terminal import ProgressLine, counted, format_size
from kbatch.cli.usage import argument, whole_number
from kbatch.format import INT32_MAX, INT64_MAX
from kbatch.log.storage import locate
from kbatch.log.write.compaction import Compaction, compact_log
from kbatch.log.write.rewriting import check_apart
from kbatch.log.write.staging import staged

__all__ = ["add_parser"]

_DESCRIPTION = """\
Write a log compacted by the rules of Kafka's cleaner: of every key the last record; tombstones and transaction markers
as long as consumers may still need them; no records without a key, and none of aborted transactions. Offsets stay.

PATH is a topic-partition directory, a segment (.log), or a broker's log directory; OUT is what it becomes, and must not
exist yet. OUT is there when all of it is done, and else not at all. Index files are written anew. Damage of a segment
is an error: `kbatch verify` shows it. Producer snapshots and leader epochs that can't be read are left out: they
can be made anew from the log. A run that is killed leaves a directory .NAME.*.tmp beside OUT, which nobody needs.

A broker never cleans the last segment of a log, and neither does this, but with --include-active.
"""

_EPILOG = """\
examples:
  kbatch compact data/accounts-0 compacted/accounts-0
  kbatch compact backup/accounts-0 compacted/accounts-0 --include-active
  kbatch compact data/accounts-0 compacted/accounts-0 --delete-retention-ms 0 --dedupe-buffer-bytes 2000000000

"""

# The time and what is added to it stay below 2**63 together.
_MOST_TIME = INT64_MAX // 2
# Option, default, least and most, what it says: those of `compact` that are numbers.
_NUMBERS = (
    ("delete_retention_ms", 86_400_000, 0, _MOST_TIME, "keep tombstones and markers for so long, once they could go"),
    ("min_compaction_lag_ms", 0, 0, INT64_MAX, "clean nothing from the first segment on that has something younger"),
    ("first_dirty_offset", None, 0, INT64_MAX, "look only at keys from here on, as after an earlier cleaning"),
    ("segment_bytes", 1 << 30, 1, INT32_MAX, "join neighbouring segments that together are no larger"),
    ("segment_index_bytes", 10 << 20, 24, INT32_MAX, "the same, of each of their index files"),
    ("producer_expiration_ms", 86_400_000, 0, INT64_MAX, "keep what a broker has to know of producers for so long"),
    ("dedupe_buffer_bytes", 128 << 20, 64, INT64_MAX, "memory for keys, 24 bytes and a tenth each"),
)


def add_parser(commands: Any, *, epilog: str) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = commands.add_parser(
        "compact",
        help="logs as Kafka's cleaner leaves them",
        description=_DESCRIPTION,
        epilog=_EPILOG + epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="topic-partition directory, segment or log directory, or a URL")
    parser.add_argument("out", metavar="OUT", help="what is written")
    parser.add_argument("--include-active", action="store_true", help="clean the last segment, too")
    parser.add_argument(
        "--now",
        type=argument(_time),
        metavar="TIME",
        help="time of the compaction, in ISO 8601 (UTC) or milliseconds (default: now)",
    )
    for name, default, least, most, what in _NUMBERS:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=whole_number(least, most),
            default=default,
            metavar=name.split("_")[-1].upper(),
            help=what + shown,
        )
    add_storage_option(parser)
    parser.add_argument("--json", action="store_true", help="print what was done as JSON, one line a log")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    options = {name: getattr(arguments, name) for name, *_ in _NUMBERS}
    options |= {"now": arguments.now, "include_active": arguments.include_active}
    given = storage_options(arguments)
    logs, is_directory = open_logs(arguments.path, given)
    done: list[tuple[str, Compaction]] = []
    with ProgressLine() as line:
        if is_directory:
            check_apart(locate(arguments.path, given)[1], arguments.out)
            total, before = 2 * sum(log.size for log in logs), 0
            with staged(arguments.out) as stage:
                for log in logs:
                    name = f"{log.topic}-{log.partition}"
                    options["progress"] = _teller(line, before, total)
                    done.append((name, compact_log(log, os.path.join(stage.directory, name), **options)))
                    before += 2 * log.size
        else:
            options["progress"] = _teller(line, 0, 2 * logs[0].size)
            done.append((arguments.out, compact_log(logs[0], arguments.out, **options)))
    for name, result in done:
        print(_json(name, result) if arguments.json else _text(name, result))
    return 3 if any(result.damage for _, result in done) else 0


def _time(text: str) -> int:
    try:
        time = parse_time(text)
    except (ValueError, OverflowError):
        time = None
    if time is None:
        raise ValueError(f"{text!r} is neither a time in ISO 8601 nor milliseconds since the epoch")
    if not 0 <= time <= _MOST_TIME:
        raise ValueError(f"must be 0 to {_MOST_TIME} milliseconds since the epoch, got {time}")
    return time


def _teller(line: ProgressLine, before: int, total: int) -> Callable[[int, int], None]:
    # Each log is read twice.
    return lambda read, _: line.show_bytes((before + read) // 2, total // 2)


def _json(name: str, result: Compaction) -> str:
    return json.dumps({"log": name, **asdict(result), "damage": [loss._asdict() for loss in result.damage]})


def _text(name: str, result: Compaction) -> str:
    lines = [
        f"{name}: {counted(result.records_in, 'record')} in {format_size(result.bytes_in)} to {result.records_out:,} "
        f"in {format_size(result.bytes_out)}; {counted(result.keys, 'key')}, {result.batches_rewritten:,} of "
        f"{counted(result.batches_out, 'batch')} rewritten, {counted(result.segments_in, 'segment')} to "
        f"{result.segments_out:,}"
    ]
    if result.end_offset == result.first_dirty_offset:
        lines.append("  nothing was cleaned: a broker leaves the last segment and what is undecided or young alone")
    for stay, gone, what in (
        (result.tombstones, result.tombstones_removed, "tombstones"),
        (result.markers, result.markers_removed, "transaction markers"),
    ):
        if stay or gone:
            lines.append(f"  {what}: {stay:,} stay, {gone:,} are dropped")
    if result.aborted:
        lines.append(f"  dropped: {result.aborted:,} records of aborted transactions")
    if result.keyless:
        lines.append(f"  dropped: {result.keyless:,} records without a key, which a compacted topic should not have")
    if result.tail_bytes:
        lines.append(f"  not copied: {result.tail_bytes:,} bytes after the last whole batch")
    lines += [f"  left out: {loss.length:,} bytes: {loss.reason}" for loss in result.damage]
    return "\n".join(lines)
