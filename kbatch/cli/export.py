"""``kbatch export LOGDIR OUT``: write log directories or live topics as Parquet or Arrow files, or as a table."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from kbatch.cli.broker_flags import (
    CLIENT_SETTINGS,
    add_broker_flags,
    given_settings,
    live_brokers,
    warnings_as_lines,
)
from kbatch.cli.command_parser import add_command
from kbatch.cli.export_summary import summary_document, summary_lines
from kbatch.cli.flags import (
    JSON,
    NAME_AND_VALUE,
    REPEATED_PATHS,
    STORAGE,
    UsageError,
    add_flags,
    given_options,
    given_storage,
    given_values,
    usage,
)
from kbatch.cli.reports import print_record
from kbatch.cli.selection_flags import RANGES, SelectionFlags, add_selection, given_selection
from kbatch.cli.terminal import (
    ProgressLine,
    print_json,
    print_lines,
)
from kbatch.cli.value_flags import add_value_arguments, value_options
from kbatch.options import (
    TEXT,
    EngineName,
    Option,
    as_named,
    choice,
    documented,
    option,
    options_of,
    per_topic,
    whole_number,
)
from kbatch.plan.read_options import Bound, ReadOptions, TopicPolicy, split_policies
from kbatch.sinks.write_options import WriteOptions

if TYPE_CHECKING:
    from kbatch.sinks.exports import Engine, ExportedLogs

__all__ = [
    "ExportFlags",
    "add_export_flags",
    "add_parser",
    "chosen_engine",
    "export_options",
    "export_source",
    "read_options",
    "run",
    "write_options",
]

# By group, the options of a read that `add_selection` does not add.
_GROUPS = {
    "which records": (
        "topic_pattern",
        "starting",
        "ending",
        "key_partitions",
        "index",
        "include_headers",
        "include_control",
    ),
    "damage": ("on_error", "fail_on_data_loss", "on_gap", "crc", "timestamp_overflow"),
    "running": ("split_bytes",),
}


def _with_topics(each: Option) -> Option:
    """Return an option; if it can differ between topics, its flags also take ``TOPIC=POLICY``."""
    if each.name not in TopicPolicy.__annotations__:
        return each
    flags = {
        flag: replace(per_topic(kind), help=kind.help and _add_topics(kind.help)) for flag, kind in each.flags.items()
    }
    return replace(each, kind=per_topic(each.kind), flags=flags, help=_add_topics(each.help))


def _add_topics(text: str) -> str:
    return f"{text}. May be repeated: the value of a TOPIC overrides the one for all"


_READ_FLAGS = {each.name: _with_topics(each) for each in options_of(ReadOptions)}


_DESCRIPTION = """\
Read the topic-partition directories under each LOGDIR (a broker's log directory, a copy of it, or one such directory)
and write their records to OUT, partitioned by topic and partition. Records become visible only after the export has
succeeded; in an object store, OUT/_manifest.json lists the files that count. In place of LOGDIR, kafka://HOST:PORT is a
live cluster, whose topics are exported up to the ends that they have when the command begins.

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
  kbatch export /var/lib/kafka/data /lake/raw --engine spark --master spark://host:7077
  kbatch export --report /lake/raw
  kbatch export /backup/kafka /lake/orders --topic orders --times 2026-03-01:2026-03-02 --values json --by-day
  kbatch export /var/lib/kafka/data /lake/table --format delta
  kbatch export kafka://localhost:9092 /lake/raw --topic orders --config client.properties
  kbatch export kafka://localhost:9092 /lake/raw --topic orders --history /mnt/tier
  kbatch export s3://backup/kafka s3://lake/raw --isolation read_committed --on-error skip
  kbatch export /var/lib/kafka/data /lake/raw --on-error clicks=skip --allow-missing-offsets clicks=true
"""


_EPILOG = f"""\
{RANGES}
--times:
  As in Spark's Kafka source, a partition is read from its first record with the time FROM or a later one, up to its
  first record with the time TO or a later one. Records in between are exported whatever their timestamps.

{CLIENT_SETTINGS}"""


_STATUSES = {
    1: "error: nothing is written",
    3: "done, but with losses, which OUT/_losses lists, with missing offsets, which the summary lists, or with batches "
    "accepted despite a wrong checksum; or an earlier run had this status, and nobody saw its report (also 4 and 5)",
    4: "done without losses, but --isolation read_committed withheld records: OUT/_transactions lists the transactions",
    5: "done without losses, but more keys and values than --max-bad allows cannot be parsed completely: key_bad and "
    "value_bad have their bytes, key_error and value_error the reason",
    130: "interrupted: nothing is written",
}


@documented
@dataclass(frozen=True)
class ExportFlags:
    """The flags of ``kbatch export`` that are neither about reading nor about files.

    Attributes
    ----------
    {options}
    """

    table: str | None = option(
        replace(TEXT, metavar="DB.T"), None, flag="--table",
        help="with --format iceberg: the table; its files are written to OUT",
    )  # fmt: skip
    catalog: str | None = option(
        replace(TEXT, metavar="NAME"), None, flag="--catalog",
        help="with --format iceberg: the catalog in pyiceberg's configuration",
    )  # fmt: skip
    engine: EngineName = option(
        choice(*get_args(EngineName)), "auto", flag="--engine",
        help="what runs the tasks: threads of this process; Spark; or auto: Spark with --master or --conf, or if the "
        "logs have 1 TiB or more and PySpark is installed, else this process. Rows, files and commits are the same",
    )  # fmt: skip
    threads: int | None = option(
        whole_number(1), None, flag="--threads", help="with the local engine: tasks at a time (default: all cores)"
    )
    master: str | None = option(
        replace(TEXT, metavar="URL"), None, flag="--master", help="Spark master (default: this machine, all cores)"
    )
    conf: tuple[tuple[str, str], ...] = option(
        NAME_AND_VALUE, (), flag="--conf", help="a setting of Spark; may be given more than once"
    )
    history: tuple[str, ...] = option(
        REPEATED_PATHS, (), flag="--history",
        help="with kafka://: a log directory or tiered storage with copies of the topics, also a URL, whose closed "
        "segments are read; only the rest is fetched. May be repeated. Workers of Spark need the same paths",
    )  # fmt: skip
    metrics: str | None = option(
        replace(TEXT, metavar="FILE"), None, flag="--metrics",
        help="replace this file, such as kbatch.prom, at the end of the run with metrics for Prometheus's node "
        "exporter: records, bytes, losses and lag by topic, seconds, success",
    )  # fmt: skip


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
        run,
        help="log directories or live topics to Parquet or tables, in this process or on Spark",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument(
        "logdirs",
        metavar="LOGDIR",
        nargs="+",
        help="log directory, or one topic-partition of it; several for a broker with several log.dirs; or "
        "kafka://HOST:PORT",
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        help="directory to create or to continue, or a URL such as s3://bucket/directory",
    )
    add_flags(parser, JSON)
    parser.add_argument(
        "--report",
        action=_ReportAction,
        metavar="OUT",
        help="print what all exports to OUT have lost, withheld, or found missing or changed; export nothing",
    )
    add_export_flags(parser)


def add_export_flags(parser: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
    """Add the flags of the records, the files and the engine of an export, without the options in `leave_out`."""
    own = {each.name: each for each in options_of(ExportFlags)}
    titles = ("which records", "damage", "formats of keys and values", "files", "running", "cluster")
    groups = {title: parser.add_argument_group(title) for title in titles}
    add_selection(groups["which records"], "topics", "partitions", "offsets", "times", "isolation", "key")
    for title, names in _GROUPS.items():
        add_flags(groups[title], [_READ_FLAGS[name] for name in names if name not in leave_out])
    add_value_arguments(groups["formats of keys and values"])
    files = [each for each in options_of(WriteOptions) if each.name not in leave_out]
    add_flags(groups["files"], [*files, own["table"], own["catalog"]])
    add_flags(
        groups["running"], [*(own[name] for name in ("engine", "threads", "master", "conf", "metrics")), *STORAGE]
    )
    add_flags(groups["cluster"], [own["history"]])
    add_broker_flags(groups["cluster"], without_servers=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    if arguments.report is not None:
        return print_record(arguments)
    from kbatch.sinks.exports import run_export

    flags = given_options(ExportFlags, arguments)
    with usage():
        reading, writing = export_options(arguments)
        choose = chosen_engine(flags)
    source, name = export_source(arguments, reading)
    with ProgressLine("planning ...", name=name) as line, warnings_as_lines("export"):
        summary = run_export(
            source,
            arguments.out,
            choose,
            reading,
            writing,
            table=flags.table,
            catalog=flags.catalog,
            progress=line.show_bytes,
            mark_seen=False,
            metrics=flags.metrics,
        )
    if arguments.json:
        print_json(summary_document("export", summary))
    else:
        print_lines(*summary_lines(summary, has_history=bool(flags.history)))
    sys.stdout.flush()
    summary.mark_seen()
    return summary.exit_status


def export_source(arguments: argparse.Namespace, reading: ReadOptions) -> tuple[ExportedLogs, str]:
    """Return what the command exports, and the name of a cluster and its topics for the line of progress."""
    url = live_brokers(arguments.logdirs, arguments)
    history = given_options(ExportFlags, arguments).history
    if url is None:
        if history:
            raise UsageError("--history goes with kafka://HOST:PORT: log directories are given as LOGDIR")
        return arguments.logdirs, ""
    from kbatch.live import ClusterSource

    storage = given_storage(arguments) if history else None
    source = ClusterSource(given_settings(arguments, url), history=history or None, storage_options=storage)
    topics = reading.topics or reading.assign or ([reading.topic_pattern] if reading.topic_pattern else [])
    return source, " ".join(filter(None, [source.describe(), ", ".join(topics)]))


def read_options(arguments: argparse.Namespace) -> ReadOptions:
    """Return the options of reading that the flags state."""
    from kbatch.log.store.storage import is_url

    given, names = given_values(_READ_FLAGS.values(), arguments)
    given |= {name: dict(given[name]) for name in TopicPolicy.__annotations__ if name in given}
    selection = given_selection(arguments)
    if selection.key:
        given["key"], *others = selection.key
        if others:
            raise ValueError("--key may be given once: an export reads the records of one key")
    given |= _bounds(selection, given)
    given["values"] = value_options(arguments)
    if any(map(is_url, arguments.logdirs)):
        given["storage"] = {name.lower(): value for name, value in given_storage(arguments).items()}
    # A partition without a record at or after the starting time has nothing to export.
    return cast(ReadOptions, as_named(lambda: ReadOptions(latest_if_no_timestamp=True, **split_policies(given)), names))


def _bounds(selection: SelectionFlags, given: Mapping[str, Any]) -> dict[str, Bound]:
    """Return the bounds that ``--offsets`` and ``--times`` set."""
    with warnings.catch_warnings():
        # The parser of the arguments has printed the warnings about times.
        warnings.simplefilter("ignore", UserWarning)
        bounds = {
            "starting": Bound(offset=selection.start_offset, timestamp=selection.start_timestamp),
            "ending": Bound(offset=selection.stop_offset, timestamp=selection.stop_timestamp),
        }
    bounds = {side: bound for side, bound in bounds.items() if bound != Bound()}
    for side in bounds:
        if side in given:
            raise ValueError(f"--{side}-offsets excludes --offsets and --times that have this side")
    return bounds


def chosen_engine(flags: ExportFlags) -> Callable[[int], Engine]:
    """Return what chooses the engine, as `kbatch.exporting.engine_choice` does."""
    from kbatch.exporting import engine_choice

    names = {each.name: flag for each in options_of(ExportFlags) for flag in each.flags}
    conf = dict(flags.conf)
    choose: Callable[[int], Engine] = as_named(
        lambda: engine_choice(flags.engine, threads=flags.threads, master=flags.master, conf=conf), names
    )
    return choose


def export_options(arguments: argparse.Namespace) -> tuple[ReadOptions, WriteOptions]:
    """Return the options of reading and of the files that the flags state."""
    reading, writing = read_options(arguments), write_options(arguments)
    if writing.flatten and not reading.values.parsed:
        raise ValueError("--flatten needs --values or --keys")
    if writing.new_fields == "bad" and not reading.values.infers:
        raise ValueError("--new-fields bad needs --values json or --keys json without a schema")
    return reading, writing


def write_options(arguments: argparse.Namespace) -> WriteOptions:
    """Return the options of the files that the flags state."""
    given, names = given_values(options_of(WriteOptions), arguments)
    writing: WriteOptions = as_named(lambda: WriteOptions(storage=given_storage(arguments), **given), names)
    if writing.format == "iceberg" and arguments.table is None:
        raise ValueError("--format iceberg needs --table")
    if writing.format != "iceberg" and (arguments.table is not None or arguments.catalog is not None):
        raise ValueError("--table and --catalog go with --format iceberg")
    return writing
