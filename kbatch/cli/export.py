"""``kbatch export LOGDIR OUT``: a broker's log directory to Parquet and the like, on Spark."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kbatch.cli.inputs import name_and_value, storage_options
from kbatch.cli.terminal import ProgressLine, aligned, counted, format_size, format_time
from kbatch.cli.usage import usage, whole_number
from kbatch.cli.values import add_value_arguments, value_options
from kbatch.log.storage import is_url

if TYPE_CHECKING:
    from kbatch.spark.options import ReadOptions
    from kbatch.spark.summary import ExportSummary
    from kbatch.spark.write_options import WriteOptions

__all__ = ["add_parser", "format_summary"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What options of the data source and of `WriteOptions` are called here, for their errors.
_FLAGS = {
    "subscribe": "--topic",
    "partitions": "--partitions",
    "keyPartitions": "--key-partitions",
    "startingOffsets": "--starting-offsets",
    "endingOffsets": "--ending-offsets",
    "splitBytes": "--split-size",
    "compression": "--compression",
}

_DESCRIPTION = """\
Read the topic-partition directories under LOGDIR (a broker's log directory, a copy of it, or one such directory) and
write their records to OUT, partitioned by topic and partition. OUT appears when all of it is written; of an object
store's files those count beside which there is _SUCCESS.

By default every record is written, also those of transactions that were aborted or are still open. With
--isolation read_committed it is what a consumer under read_committed gets: no records of aborted transactions, and
nothing of a topic-partition from its first open transaction on. The summary tells what was left out, and what is
withheld until a marker decides it: OUT/_transactions has the transactions, and the exit status is 4.

examples:
  kbatch export /var/lib/kafka/data /lake/raw
  kbatch export /backup/kafka /lake/orders --topic orders --from 2026-03-01 --to 2026-03-02 --values json --by-day
  kbatch export s3://backup/kafka s3://lake/raw --isolation read_committed --on-error skip
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
    parser.add_argument(
        "out",
        metavar="OUT",
        help="directory to make, or a URL such as s3://bucket/directory; must not exist, unless as a table to add to",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    _add_records(parser.add_argument_group("which records"))
    add_value_arguments(parser)
    _add_damage(parser.add_argument_group("damage"))
    _add_files(parser.add_argument_group("files"))
    _add_running(parser.add_argument_group("running"))
    parser.set_defaults(run=run)


def _add_records(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--topic", action="append", metavar="T", help="only this topic; may be given more than once (default: all)"
    )
    group.add_argument("--partitions", metavar="N,N-N", help="only these partitions of each topic, such as 0,2,5-7")
    group.add_argument(
        "--from", dest="since", metavar="TIME", help="from the first record on that has this time, in ISO 8601; UTC if "
        "it doesn't say"
    )  # fmt: skip
    group.add_argument(
        "--to", dest="until", metavar="TIME", help="up to the first record that has this time or a later one"
    )
    group.add_argument(
        "--starting-offsets", metavar="JSON", help='first offsets, as {"topic": {"0": 23}}; -2 is the earliest'
    )
    group.add_argument(
        "--ending-offsets",
        metavar="JSON",
        help='offsets before which to stop, as {"topic": {"0": 45}}; -1 is the latest',
    )
    group.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="every record; or only those of committed transactions and of none, as far as all is decided "
        "(default: %(default)s)",
    )
    group.add_argument("--key", metavar="TEXT", help="only the records of this key, taken as UTF-8")
    group.add_argument(
        "--key-partitions",
        metavar="N",
        help="with --key: look only where Kafka's default partitioner puts the key among so many partitions",
    )
    group.add_argument("--headers", action="store_true", help="write the column of record headers too")
    group.add_argument("--control", action="store_true", help="write control records (transaction markers) too")


def _add_damage(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--on-error",
        choices=("raise", "stop", "skip"),
        default="raise",
        help="at damage, and at formats that aren't read: give up; end that partition there; or pass over it. What is "
        "lost stands in the summary, and all of it in OUT/_losses (default: %(default)s)",
    )
    group.add_argument(
        "--crc",
        choices=("verify", "mark", "skip"),
        default="verify",
        help="check checksums; check but take bad batches, and count them; or don't (default: %(default)s)",
    )
    group.add_argument(
        "--timestamp-overflow",
        choices=("raise", "null"),
        default="raise",
        help="what becomes of a timestamp beyond the year 294247 (default: %(default)s)",
    )


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--format",
        choices=("parquet", "arrow", "delta", "iceberg"),
        default="parquet",
        help="Parquet files, Arrow IPC files, or a Delta or Iceberg table, new or added to (default: %(default)s)",
    )
    group.add_argument("--table", metavar="DB.T", help="of --format iceberg: the table; OUT is where its files go")
    group.add_argument(
        "--catalog", metavar="NAME", help="of --format iceberg: the catalog in pyiceberg's configuration"
    )
    group.add_argument(
        "--by-day",
        action="store_true",
        help="a directory date=YYYY-MM-DD for the day (UTC) of the timestamps; of Iceberg a partition field",
    )
    group.add_argument(
        "--compression",
        metavar="CODEC[:LEVEL]",
        default="zstd",
        help="zstd, snappy, gzip, lz4 or none, with a level such as zstd:3 (default: %(default)s)",
    )
    group.add_argument(
        "--file-size",
        metavar="SIZE",
        help="aim for files of this size, such as 1g; tasks read about as much then (default: up to 512m, as large as "
        "tasks of --split-size make them)",
    )
    group.add_argument(
        "--row-group-size", metavar="SIZE", help="bytes of a row group before it is compressed (default: 64m)"
    )
    group.add_argument(
        "--row-group-rows", type=whole_number(1), metavar="N", help="most rows of a row group (default: 1048576)"
    )
    group.add_argument(
        "--dictionary",
        metavar="COLUMN,...",
        help="columns that Parquet may encode with a dictionary, or none (default: key,timestampType,headers)",
    )


def _add_running(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--master", metavar="URL", help="Spark master (default: this machine, all cores)")
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=VALUE",
        help="a setting of Spark; may be given more than once",
    )
    group.add_argument(
        "--storage-option",
        dest="storage_options",
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=VALUE",
        help="an option of the file system of a LOGDIR or OUT that is a URL, such as region=eu-central-1; may be given "
        "more than once",
    )
    group.add_argument("--split-size", metavar="SIZE", help="most bytes of the log that a task reads (default: 128m)")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.spark.export import export

    with usage(_FLAGS):
        options, writing = _read_options(arguments), _write_options(arguments)
    with ProgressLine("starting Spark ...") as line:
        summary = export(
            arguments.logdir,
            arguments.out,
            master=arguments.master,
            conf=dict(arguments.conf),
            options=options,
            writing=writing,
            table=arguments.table,
            catalog=arguments.catalog,
            progress=line.show,
        )
    print(json.dumps(summary.to_dict(), indent=1) if arguments.json else format_summary(summary))
    return summary.exit_status


def _read_options(arguments: argparse.Namespace) -> ReadOptions:
    from kbatch.spark.options import parse_options

    given = {
        "subscribe": ",".join(arguments.topic) if arguments.topic else None,
        "partitions": arguments.partitions,
        "key": arguments.key,
        "keyPartitions": arguments.key_partitions,
        "startingTimestamp": _milliseconds("--from", arguments.since),
        "endingTimestamp": _milliseconds("--to", arguments.until),
        # A partition without a record that new has none to export.
        "startingOffsetsByTimestampStrategy": "latest",
        "startingOffsets": arguments.starting_offsets,
        "endingOffsets": arguments.ending_offsets,
        "isolationLevel": arguments.isolation,
        "includeHeaders": str(arguments.headers).lower(),
        "includeControl": str(arguments.control).lower(),
        "onError": arguments.on_error,
        "crc": arguments.crc,
        "timestampOverflow": arguments.timestamp_overflow,
        "splitBytes": arguments.split_size,
    }
    for time, offsets in (("since", "starting_offsets"), ("until", "ending_offsets")):
        if getattr(arguments, time) is not None and getattr(arguments, offsets) is not None:
            names = {"since": "--from", "until": "--to"}
            raise ValueError(f"{names[time]} and --{offsets.replace('_', '-')} exclude each other")
    if arguments.key_partitions is not None and arguments.key is None:
        raise ValueError("--key-partitions says where a key is: it needs --key")
    strings = {name: value for name, value in given.items() if value is not None}
    if is_url(arguments.logdir):
        strings.update({f"storage.{name}": value for name, value in arguments.storage_options})
    _, options = parse_options({"path": arguments.logdir, **strings})
    return replace(options, values=value_options(arguments))


def _write_options(arguments: argparse.Namespace) -> WriteOptions:
    from kbatch.spark.options import parse_size
    from kbatch.spark.write_options import WriteOptions

    if arguments.format == "iceberg" and arguments.table is None:
        raise ValueError("--format iceberg needs --table")
    if arguments.format != "iceberg" and (arguments.table is not None or arguments.catalog is not None):
        raise ValueError("--table and --catalog go with --format iceberg")
    given: dict[str, Any] = {"storage": storage_options(arguments)}
    if arguments.file_size is not None:
        given["file_bytes"] = parse_size("--file-size", arguments.file_size)
    if arguments.row_group_size is not None:
        given["row_group_bytes"] = parse_size("--row-group-size", arguments.row_group_size)
    if arguments.row_group_rows is not None:
        given["row_group_rows"] = arguments.row_group_rows
    if arguments.dictionary is not None:
        names = arguments.dictionary.split(",")
        given["dictionary"] = () if names == ["none"] else tuple(names)
    return WriteOptions(arguments.format, arguments.compression, by_day=arguments.by_day, **given)


def _milliseconds(name: str, text: str | None) -> str | None:
    """Return an ISO time as milliseconds since the epoch, rounded up: no record before it counts."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} must be a time such as 2026-03-01 or 2026-03-01T06:00:00Z, got {text!r}") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return str(-((_EPOCH - when) // timedelta(milliseconds=1)))


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
        f"{counted(summary.records, 'record')} of {counted(len(summary.partitions), 'topic-partition')} in "
        f"{counted(len(summary.files), 'file')}: "
        f"{summary.out}",
        "",
        f"  read       {format_size(summary.log_bytes)} of batches ({batches})",
        f"  written    {format_size(summary.file_bytes)} of {'Arrow' if summary.format == 'arrow' else 'Parquet'}",
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
    if summary.bad_keys or summary.bad_values:
        sides = [(n, name) for n, name in ((summary.bad_keys, "key"), (summary.bad_values, "value")) if n]
        counts = " and ".join(counted(n, name) for n, name in sides)
        columns = " and ".join(f"{name}_bad" for _, name in sides)
        lines.append(f"  unparsed   {counts}: null here, with their bytes in {columns}")
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
            count = counted(part.open_count, "open transaction")
            why.append(f"{count} from offset {part.last_stable_offset} on ({producers})")
        if part.undecided_count:
            producers = _producers(part.undecided_transactions, part.undecided_count)
            why.append(f"{counted(part.undecided_count, 'transaction')} with a damaged marker ({producers})")
        lines.append(
            f"  withheld   {part.topic}-{part.partition}: {', '.join(why)}: "
            f"{format_size(part.undecided_bytes)} in {counted(part.undecided_batches, 'batch')}"
        )
    if len(withheld) > most:
        rest = withheld[most:]
        size, batches = (sum(getattr(part, f"undecided_{name}") for part in rest) for name in ("bytes", "batches"))
        lines.append(
            f"  withheld   {format_size(size)} in {counted(batches, 'batch')} of {len(rest):,} more topic-partitions; "
            f"{summary.out}/{summary.manifest} has all of them"
        )
    if summary.transactions_table is not None:
        count = counted(summary.withheld_transactions, "transaction")
        lines.append(f"  undecided  {count}: {summary.out}/{summary.transactions_table}")
    return lines


def _producers(transactions: list[dict[str, int]], count: int, most: int = 5) -> str:
    ids = ", ".join(str(each["producer_id"]) for each in transactions[:most])
    return f"producer {ids}{', ...' if count > most else ''}"


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
    places = counted(summary.loss_count, "place")
    return f"{format_size(summary.lost_bytes)} in {places}: {summary.out}/{summary.losses_table}"
