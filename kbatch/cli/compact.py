"""``kbatch compact PATH OUT``: compact logs as Kafka's log cleaner does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, STORAGE, UsageError, add_flags, given_options, given_storage
from kbatch.cli.open_transactions import open_text
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.styles import styled
from kbatch.cli.terminal import ProgressLine, counted, format_size, log_dict, loss_dicts, print_lines, print_summary
from kbatch.options import BOOLEAN, INT32_MAX, INT64_MAX, ValueKind, documented, option, options_of, size, whole_number
from kbatch.quantities import parse_time

if TYPE_CHECKING:
    from kbatch.log.logs import Log
    from kbatch.log.write.compaction import Compaction

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Write a compacted copy of a log, by the rules of Kafka's log cleaner: the last record of each key; tombstones and
transaction markers as long as consumers may need them; no records without a key or of aborted transactions. Offsets do
not change.

PATH is a topic-partition directory, a segment (.log), or a broker's log directory. OUT must not exist yet, and
appears only after the compaction has succeeded. Index files are rebuilt. A damaged segment is an error: `kbatch verify`
lists the damage. Unreadable producer snapshots and leader epochs are not copied: a broker rebuilds them from the log. A
run that is killed leaves a directory .NAME.*.tmp next to OUT, which the next run to the same OUT removes.

As on a broker, the last segment of a log is not cleaned, unless --include-active is given. Where the cleaned part ends
before the end of the log, the output states why: the last segment, an open transaction, --min-compaction-lag-ms or
--min-cleanable-dirty-ratio.

With --dry-run nothing is written, and OUT is not needed. The log is read as for a compaction, so that segments, dirty
ratio, and the records and bytes to be removed are those of a compaction.
"""


_EPILOG = """\
examples:
  kbatch compact --dry-run data/accounts-0
  kbatch compact data/accounts-0 compacted/accounts-0
  kbatch compact backup/accounts-0 compacted/accounts-0 --include-active
  kbatch compact data/accounts-0 compacted/accounts-0 --delete-retention-ms 0 --dedupe-buffer-bytes 2000000000

"""


# The sum of the time and a retention must fit in an int64.
_MAX_TIME = INT64_MAX // 2


_STATUSES = {
    1: "error, such as damage: nothing is written",
    3: "done, but the output lists damage that was skipped",
    130: "interrupted: nothing is written",
}


def _parse_now(text: str) -> int:
    time = parse_time(text)
    if not 0 <= time <= _MAX_TIME:
        raise ValueError(f"must be 0 to {_MAX_TIME} milliseconds since the epoch, got {time}")
    return time


def _parse_ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be a number from 0 to 1, got {text!r}") from None


def _check_ratio(value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"must be a number from 0 to 1, got {value}")


@documented
@dataclass(frozen=True)
class CompactFlags:
    """The flags of ``kbatch compact``: parameters of `kbatch.log.compact_log`.

    Attributes
    ----------
    {options}
    """

    dry_run: bool = option(
        BOOLEAN, False, flag="--dry-run", help="print what a compaction would do, and write nothing; OUT is not needed"
    )
    include_active: bool = option(BOOLEAN, False, flag="--include-active", help="also clean the last segment")
    now: int | None = option(
        ValueKind(_parse_now, "2026-03-01", metavar="TIME"), None, flag="--now",
        help="time of the compaction, in ISO 8601 (UTC) or milliseconds (default: now)",
    )  # fmt: skip
    delete_retention_ms: int = option(
        whole_number(0, _MAX_TIME, "MS"), 86_400_000, flag="--delete-retention-ms",
        help="how long to keep tombstones and markers that could be removed",
    )  # fmt: skip
    min_compaction_lag_ms: int = option(
        whole_number(0, INT64_MAX, "MS"), 0, flag="--min-compaction-lag-ms",
        help="do not clean records younger than this, nor segments after them",
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = option(
        ValueKind(_parse_ratio, "0.5", _check_ratio, metavar="RATIO"), 0.0, flag="--min-cleanable-dirty-ratio",
        help="clean a log only if more than this part of its bytes was never cleaned, as far as --first-dirty-offset "
        "states it; a broker's default is 0.5",
    )  # fmt: skip
    first_dirty_offset: int | None = option(
        whole_number(0, INT64_MAX, "OFFSET"), None, flag="--first-dirty-offset",
        help="collect keys from this offset on, where the last cleaning ended",
    )  # fmt: skip
    segment_bytes: int = option(
        size(1, INT32_MAX), 1 << 30, flag="--segment-bytes",
        help="merge neighbouring segments up to this size",
    )  # fmt: skip
    segment_index_bytes: int = option(
        size(24, INT32_MAX), 10 << 20, flag="--segment-index-bytes",
        help="merge them up to this size of each index file",
    )  # fmt: skip
    producer_expiration_ms: int = option(
        whole_number(0, INT64_MAX, "MS"), 86_400_000, flag="--producer-expiration-ms",
        help="how long to keep the last batch of an idle producer",
    )  # fmt: skip
    dedupe_buffer_bytes: int = option(
        size(64), 128 << 20, flag="--dedupe-buffer-bytes",
        help="memory for keys: 24 bytes per key, plus 10 %",
    )  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "compact",
        run,
        help="compact logs as Kafka's log cleaner does",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("path", metavar="PATH", help="topic-partition directory, segment or log directory, or a URL")
    parser.add_argument("out", metavar="OUT", nargs="?", help="the copy to write; not needed with --dry-run")
    add_flags(parser, [*options_of(CompactFlags), *STORAGE, *JSON])
    add_selection(parser, "topics", "partitions", reason="whole logs are compacted")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.cli.inputs import open_path
    from kbatch.log.store.storage import locate
    from kbatch.log.write.compaction import compact_log
    from kbatch.log.write.rewriting import check_apart
    from kbatch.log.write.staging import NewOutput

    flags = given_options(CompactFlags, arguments)
    out = arguments.out
    if out is None and not flags.dry_run:
        raise UsageError("OUT is missing: the copy to write; --dry-run needs none")
    options: dict[str, Any] = asdict(flags)
    given, selection = given_storage(arguments), given_selection(arguments)
    done: list[tuple[str, Compaction]] = []
    with ProgressLine("listing ...") as line:
        logs, is_directory = open_path(arguments.path, selection, given)
        total, before = 2 * sum(log.size for log in logs), 0
        if is_directory and out is not None:
            check_apart(locate(arguments.path, given)[1], out)
        with NewOutput(out) if is_directory and not flags.dry_run else nullcontext() as output:
            for log in logs:
                name = f"{log.topic}-{log.partition}" if is_directory else out or log.path
                options["progress"] = _progress_of(line, before, total)
                target = None if is_directory else out
                if output is not None:
                    target = os.path.join(output.new, name)
                done.append((name, compact_log(log, target, **options)))
                before += 2 * log.size
    damaged = any(result.damage for _, result in done)
    status = 3 if damaged else 0
    if arguments.json:
        results = [_compaction_dict(log, result) for log, (_, result) in zip(logs, done, strict=True)]
        print_summary("compact", status, results, damaged=damaged, out=out, dry_run=flags.dry_run)
    else:
        for name, result in done:
            print_lines(*_result_lines(name, result, flags))
        if flags.dry_run:
            print_lines("nothing was written (--dry-run)")
    return status


def _progress_of(line: ProgressLine, before: int, total: int) -> Callable[[int, int], None]:
    # Each log is read twice.
    return lambda read, _: line.show_bytes((before + read) // 2, total // 2)


def _compaction_dict(log: Log, result: Compaction) -> dict[str, Any]:
    counts = {each.name: getattr(result, each.name) for each in fields(result)}
    for name in ("damage", "dry_run"):
        del counts[name]
    counts["open_transactions"] = [each._asdict() for each in result.open_transactions]
    counts["dirty_ratio"] = round(result.dirty_ratio, 4)
    return log_dict(log, log.path, **counts, losses=loss_dicts(result.damage))


def _result_lines(name: str, result: Compaction, flags: CompactFlags) -> list[str]:
    """Return the result of a log, or with --dry-run what it would be, as text."""
    removed = result.records_in - result.records_out
    freed = max(result.bytes_in - result.bytes_out, 0)
    would = "would be " if result.dry_run else ""
    size = format_size(result.clean_bytes + result.dirty_bytes)
    lines: list[str] = [
        f"{name}: {counted(result.records_in, 'record')} ({format_size(result.bytes_in)}) -> {result.records_out:,} "
        f"({format_size(result.bytes_out)}); {counted(result.keys, 'key')}; {result.batches_rewritten:,} of "
        f"{counted(result.batches_out, 'batch')} {would}rewritten; {counted(result.segments_in, 'segment')} -> "
        f"{result.segments_out:,}",
        f"  {would}removed: {counted(removed, 'record')}, {format_size(freed)}; dirty ratio {result.dirty_ratio:.2f} "
        f"({format_size(result.dirty_bytes)} of {size})",
        *_limit_lines(result, flags),
    ]
    for kept, gone, what in (
        (result.tombstones, result.tombstones_removed, "tombstones"),
        (result.markers, result.markers_removed, "transaction markers"),
    ):
        if kept or gone:
            lines.append(f"  {what}: {kept:,} kept, {gone:,} {would}removed")
    if result.control_records_in:
        lines.append(f"  control records: {result.control_records_in:,} -> {result.control_records_out:,}")
    if result.open_transactions:
        lines.append(styled(f"  {open_text(result.open_transactions)}", "warning"))
    if result.aborted:
        lines.append(f"  {would}removed: {counted(result.aborted, 'record')} of aborted transactions")
    if result.keyless:
        keyless = counted(result.keyless, "record")
        lines.append(f"  {would}removed: {keyless} without a key, which a compacted topic should not have")
    if result.tail_bytes:
        lines.append(f"  not copied: {counted(result.tail_bytes, 'byte')} after the last complete batch")
    losses = (f"  skipped: {counted(loss.length, 'byte')}: {loss.reason}" for loss in result.damage)
    return [*lines, *(styled(line, "error", "skipped:") for line in losses)]


def _limit_lines(result: Compaction, flags: CompactFlags) -> list[str]:
    """Return why the log, or a part of it, was not cleaned, with the setting that decides it."""
    is_cleaned = result.end_offset > result.first_dirty_offset
    if result.limit is None:
        if is_cleaned:
            return []
        reason = f"the log has no batch from offset {result.first_dirty_offset} on"
    elif result.limit == "active_segment":
        reason = "a broker still writes to the last segment; --include-active cleans it too"
    elif result.limit == "open_transaction":
        first = result.open_transactions[0]
        reason = (
            f"producer {first.producer_id} has an open transaction from offset {first.first_offset} on, which must be "
            "committed or aborted first"
        )
    elif result.limit == "min_compaction_lag":
        reason = (
            f"the next segment has a record younger than {flags.min_compaction_lag_ms} ms (--min-compaction-lag-ms; "
            "min.compaction.lag.ms of the topic)"
        )
    else:
        reason = (
            f"the dirty ratio is {result.dirty_ratio:.2f}, not more than {flags.min_cleanable_dirty_ratio:g} "
            "(--min-cleanable-dirty-ratio; min.cleanable.dirty.ratio of the topic)"
        )
    where = f"from offset {result.end_offset} on, nothing" if is_cleaned else "nothing"
    what = f"{where} {'would be' if result.dry_run else 'was'} cleaned:"
    return [styled(f"  {what} {reason}", "warning", what)]
