"""``kbatch export LOGDIR OUT``: a broker's log directory to Parquet, on Spark."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from kbatch.cli.terminal import ProgressLine, aligned, format_size, format_time

if TYPE_CHECKING:
    from kbatch.spark.export import ExportSummary

__all__ = ["add_parser", "format_summary"]

_DESCRIPTION = """\
Read the topic-partition directories under LOGDIR (a broker's log directory, a copy of it, or one such directory) and
write their records to OUT as Parquet, partitioned by topic and partition. OUT appears when all of it is written.

By default every record is written, also those of transactions that were aborted or are still open. With
--isolation read_committed it is what a consumer under read_committed gets: no records of aborted transactions, and
nothing of a topic-partition from its first open transaction on. The summary tells what was left out, and what is
withheld until a marker decides it; that is no damage, and the exit status stays 0.
"""


def add_parser(commands: Any, *, epilog: str) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = commands.add_parser(
        "export",
        help="log directories to Parquet, on Spark",
        description=_DESCRIPTION,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logdir", metavar="LOGDIR", help="log directory, or one topic-partition of it")
    parser.add_argument("out", metavar="OUT", help="directory to make; must not exist")
    parser.add_argument("--master", metavar="URL", help="Spark master (default: this machine, all cores)")
    parser.add_argument(
        "--topic", action="append", metavar="T", help="only this topic; may be given more than once (default: all)"
    )
    parser.add_argument("--headers", action="store_true", help="write the column of record headers too")
    parser.add_argument("--control", action="store_true", help="write control records (transaction markers) too")
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="every record; or only those of committed transactions and of none, as far as all is decided "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "stop", "skip"),
        default="raise",
        help="at damage, and at formats that aren't read: give up; end that partition there; or pass over it. What is "
        "lost stands in the summary, and all of it in OUT/_losses (default: %(default)s)",
    )
    parser.add_argument(
        "--crc",
        choices=("verify", "mark", "skip"),
        default="verify",
        help="check checksums; check but take bad batches, and count them; or don't (default: %(default)s)",
    )
    parser.add_argument(
        "--timestamp-overflow",
        choices=("raise", "null"),
        default="raise",
        help="what becomes of a timestamp beyond the year 294247 (default: %(default)s)",
    )
    parser.add_argument(
        "--compression",
        choices=("zstd", "snappy", "gzip", "none"),
        default="zstd",
        help="of the Parquet files (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.spark.export import export
    from kbatch.spark.options import ReadOptions

    options = ReadOptions(
        topics=tuple(arguments.topic) if arguments.topic else None,
        include_headers=arguments.headers,
        include_control=arguments.control,
        isolation=arguments.isolation,
        crc=arguments.crc,
        on_error=arguments.on_error,
        timestamp_overflow=arguments.timestamp_overflow,
    )
    with ProgressLine("starting Spark ...") as line:
        summary = export(
            arguments.logdir,
            arguments.out,
            master=arguments.master,
            options=options,
            compression=arguments.compression,
            progress=line.show,
        )
    print(json.dumps(summary.to_dict(), indent=1) if arguments.json else format_summary(summary))
    return 3 if summary.damaged else 0


def format_summary(summary: ExportSummary) -> str:
    """Return the summary as text for people.

    Parameters
    ----------
    summary : ExportSummary

    Returns
    -------
    str
        Lines without a last line break.
    """
    batches = ", ".join(f"{count:,} {codec}" for codec, count in summary.batches.items()) or "none"
    log_rate = summary.log_bytes / summary.seconds if summary.seconds else 0.0
    lines = [
        f"{summary.records:,} records of {len(summary.partitions)} topic-partitions in {len(summary.files)} files: "
        f"{summary.out}",
        "",
        f"  read       {format_size(summary.log_bytes)} of batches ({batches})",
        f"  written    {format_size(summary.file_bytes)} of Parquet",
        *_left_out_lines(summary),
        f"  lost       {_lost(summary)}",
        f"  time       {summary.seconds:.1f} s, {summary.records_per_second:,.0f} records/s, "
        f"{format_size(round(log_rate))}/s (Spark took {summary.start_seconds:.1f} s to start)",
    ]
    for part in summary.partitions:
        if part.unfinished_bytes:
            lines.append(
                f"  unfinished {part.topic}-{part.partition} ends with {format_size(part.unfinished_bytes)} of an "
                "incomplete batch: cut off, or still being written"
            )
    if summary.bad_crc_batches:
        lines.append(f"  checksums  {summary.bad_crc_batches:,} batches taken whose checksum is wrong")
    head = ("topic-partition", "records", "offsets", "first time (UTC)", "last time (UTC)", "lost")
    rows = [head]
    for part in summary.partitions:
        offsets = "-" if part.first_offset is None else f"{part.first_offset} - {part.last_offset}"
        rows.append(
            (
                f"{part.topic}-{part.partition}",
                f"{part.records:,}",
                offsets,
                format_time(part.first_timestamp),
                format_time(part.last_timestamp),
                format_size(part.lost_bytes) if part.lost_bytes else "-",
            )
        )
    lines.append("")
    # Names and times to the left, numbers to the right.
    lines += aligned(rows, left=frozenset((0, 3, 4)))
    if summary.losses:
        lines += ["", "Lost:"]
        lines += _loss_lines(summary)
    return "\n".join(lines)


def _left_out_lines(summary: ExportSummary, most: int = 20) -> list[str]:
    """Tell what read_committed left out: how much was aborted, and by partition what is undecided."""
    if summary.isolation == "read_uncommitted":
        return []
    lines = [f"  aborted    {format_size(summary.aborted_bytes)} in {summary.aborted_batches:,} batches left out"]
    withheld = [part for part in summary.partitions if part.undecided_batches]
    for part in withheld[:most]:
        why = []
        if part.open_count:
            producers = _producers(part.open_transactions, part.open_count)
            count = _count(part.open_count, "open transaction")
            why.append(f"{count} from offset {part.last_stable_offset} on ({producers})")
        if part.undecided_count:
            producers = _producers(part.undecided_transactions, part.undecided_count)
            why.append(f"{_count(part.undecided_count, 'transaction')} with a damaged marker ({producers})")
        lines.append(
            f"  withheld   {part.topic}-{part.partition}: {', '.join(why)}: "
            f"{format_size(part.undecided_bytes)} in {_count(part.undecided_batches, 'batch')}"
        )
    if len(withheld) > most:
        rest = withheld[most:]
        size, batches = (sum(getattr(part, f"undecided_{name}") for part in rest) for name in ("bytes", "batches"))
        lines.append(
            f"  withheld   {format_size(size)} in {_count(batches, 'batch')} of {len(rest):,} more topic-partitions; "
            f"{summary.out}/_manifest.json has all of them"
        )
    return lines


def _producers(transactions: list[dict[str, int]], count: int, most: int = 5) -> str:
    ids = ", ".join(str(each["producer_id"]) for each in transactions[:most])
    return f"producer {ids}{', ...' if count > most else ''}"


def _count(n: int, name: str) -> str:
    plural = "es" if name.endswith("ch") else "s"
    return f"{n:,} {name}{'' if n == 1 else plural}"


def _loss_lines(summary: ExportSummary, most: int = 20) -> list[str]:
    """Tell losses by file and reason: a file that can't be read has as many as it has batches."""
    count: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    for loss in summary.losses:
        place = (loss["file"], loss["reason"])
        count[place] += 1
        size[place] += loss["length"]
        first.setdefault(place, loss["position"])
    lines = []
    for (file, reason), n in list(count.items())[:most]:
        places = f"byte {first[file, reason]}" if n == 1 else f"{n} places from byte {first[file, reason]} on"
        lines.append(f"  {file}, {places}: {format_size(size[file, reason])}: {reason}")
    told = sum(list(count.values())[:most])
    if told < summary.loss_count:
        lines.append(
            f"  and {summary.loss_count - told:,} more places; {summary.out}/{summary.losses_table} has all of them"
        )
    return lines


def _lost(summary: ExportSummary) -> str:
    if not summary.loss_count:
        return "nothing"
    return f"{format_size(summary.lost_bytes)} in {summary.loss_count:,} places: {summary.out}/{summary.losses_table}"
