"""``kbatch export LOGDIR OUT``: write a broker's log directory as Parquet or Arrow files or a table, on Spark."""

from __future__ import annotations

import argparse
from typing import Any

from kbatch.cli.arguments import add_command
from kbatch.cli.ranges import RANGES, add_ranges
from kbatch.cli.usage import add_json, name_and_value
from kbatch.cli.values import add_value_arguments
from kbatch.options import add_flags, options_of
from kbatch.plan.read_options import ReadOptions
from kbatch.sinks.write_options import WriteOptions

__all__ = ["add_parser"]

# The flags of `ReadOptions`, by group.
_GROUPS = {
    "which records": (
        "topics",
        "topic_pattern",
        "partitions",
        "starting",
        "ending",
        "isolation",
        "key",
        "key_partitions",
        "include_headers",
        "include_control",
    ),
    "damage": ("on_error", "fail_on_data_loss", "on_gap", "crc", "timestamp_overflow"),
}


_DESCRIPTION = """\
Read the topic-partition directories under each LOGDIR (a broker's log directory, a copy of it, or one such directory)
and write their records to OUT, partitioned by topic and partition. Records become visible only after the export has
succeeded; in an object store, OUT/_manifest.json lists the files that count.

If OUT exists, the export continues: it writes only the records that earlier exports to OUT have not written, so that
the same command twice writes nothing the second time. --mode overwrite replaces the data. An export that was killed is
finished or undone by the next one.

By default all records are written, including those of aborted and open transactions. --isolation read_committed writes
what a consumer under read_committed gets: no records of aborted transactions, and none from the first open transaction
of a topic-partition on. If records are withheld, the summary reports it, OUT/_transactions lists the transactions, and
the exit status is 4.

What an export loses, withholds, or finds missing or changed is also recorded in OUT/_reports. If an export dies after
its commit, before its summary is printed, the next one prints its report and has its exit status. --report OUT prints
all reports, and exports nothing.

examples:
  kbatch export /var/lib/kafka/data /lake/raw
  kbatch export --report /lake/raw
  kbatch export /backup/kafka /lake/orders --topic orders --times 2026-03-01:2026-03-02 --values json --by-day
  kbatch export /var/lib/kafka/data /lake/table --format delta
  kbatch export s3://backup/kafka s3://lake/raw --isolation read_committed --on-error skip
"""


_EPILOG = f"""\
{RANGES}
--times:
  As in Spark's Kafka source, a partition is read from its first record with the time FROM or a later one, up to its
  first record with the time TO or a later one. Records in between are exported whatever their timestamps.
"""


_STATUSES = {
    1: "error: nothing is written",
    3: "done, but with losses, which OUT/_losses lists, with missing offsets, which the summary lists, or with batches "
    "accepted despite a wrong checksum; or an earlier run had this status, and nobody saw its report (also 4 and 5)",
    4: "done without losses, but --isolation read_committed withheld records: OUT/_transactions lists the transactions",
    5: "done without losses, but more keys and values than --max-bad allows cannot be parsed completely: key_bad and "
    "value_bad have their bytes, key_error and value_error the reason",
    130: "interrupted: nothing is written",
}


class _ReportAction(argparse.Action):
    """Stores the output whose reports are to be printed, and makes the positional arguments optional."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        setattr(namespace, self.dest, values)
        for action in parser._actions:
            if not action.option_strings:
                action.required = False


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "export",
        help="log directories to Parquet, on Spark",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument(
        "logdirs",
        metavar="LOGDIR",
        nargs="+",
        help="log directory, or one topic-partition of it; several for a broker with several log.dirs",
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        help="directory to create or to continue, or a URL such as s3://bucket/directory",
    )
    add_json(parser)
    parser.add_argument(
        "--report",
        action=_ReportAction,
        metavar="OUT",
        help="print what all exports to OUT have lost, withheld, or found missing or changed; export nothing",
    )
    reading = {each.name: each for each in options_of(ReadOptions)}
    for title, names in _GROUPS.items():
        group = parser.add_argument_group(title)
        if "starting" in names:
            add_ranges(group)
        add_flags(group, [reading[name] for name in names])
    add_value_arguments(parser)
    files = parser.add_argument_group("files")
    add_flags(files, options_of(WriteOptions))
    files.add_argument("--table", metavar="DB.T", help="with --format iceberg: the table; its files are written to OUT")
    files.add_argument(
        "--catalog", metavar="NAME", help="with --format iceberg: the catalog in pyiceberg's configuration"
    )
    _add_running(parser.add_argument_group("running"))


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
        help="an option of the file system of a LOGDIR or OUT that is a URL, such as region=eu-central-1; "
        "follow_links=true follows symbolic links in a local LOGDIR; may be given more than once",
    )
    add_flags(group, [each for each in options_of(ReadOptions) if each.name == "split_bytes"])
