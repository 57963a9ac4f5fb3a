"""``kbatch stats PATH...``: statistics of topic-partitions."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kbatch.cli.broker_flags import CLIENT_SETTINGS, add_broker_flags, given_settings, live_brokers
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, STORAGE, UsageError, add_flags, given_options, given_storage
from kbatch.cli.open_transactions import open_transaction_lines
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.styles import styled
from kbatch.cli.tables import labelled_lines, table_lines
from kbatch.cli.terminal import (
    ProgressLine,
    counted,
    format_lost,
    format_size,
    format_time,
    log_dict,
    print_lines,
    print_summary,
)
from kbatch.options import BOOLEAN, documented, option, options_of

if TYPE_CHECKING:
    from kbatch.log.check.statistics import Distribution, LogStatistics
    from kbatch.log.check.statistics_sums import StatisticsSums

__all__ = ["add_parser", "run"]

# The columns that a narrow terminal does not show, in the order in which they are left out.
_NARROWING = ("segments", "first time (UTC)", "batches", "last time (UTC)", "offsets", "codecs")
_SECONDS = re.compile(r"(?<=^\d{4}-\d\d-\d\d \d\d:\d\d):\d\d$")

_DESCRIPTION = """\
Summarize topic-partitions: segments, batches, records, control records, open transactions, sizes, offsets, times and
codecs with their ratios; with the sums of each topic and the bytes of each codec. Open transactions are listed with
their producer, first offset and time.

PATH is a segment (.log, .checkpoint), a topic-partition directory, or a broker's log directory; or a live cluster,
kafka://HOST:PORT, whose topics are fetched to the end that they have now.
"""


_EPILOG = f"""\
examples:
  kbatch stats /var/lib/kafka/data                 one line per topic-partition and topic
  kbatch stats --details data/orders-0             all statistics of one
  kbatch stats --headers-only /var/lib/kafka/data  fast: decodes nothing, computes no checksums
  kbatch stats --json data | jq '.logs[] | [.name, .records]'
  kbatch stats --topic orders kafka://localhost:9092 --config client.properties

columns:
  records   records without control records; a + means that some headers do not state their number
  control   control records, such as transaction markers; in the table of codecs, control batches
  open      open transactions
  codecs    the codecs with their ratios; mixed if a narrow table has several, with the ratio of all payloads together
  lost      bytes lost to damage, and offsets in gaps of unknown cause

On a narrow terminal tables leave out columns, whose names follow the table; --details has all of them.

A ratio divides the decompressed size of payloads by their stored size. Percentiles are exact below 4096, and within one
percent above. Times are the smallest and largest timestamp of a record, or with --headers-only of a batch header.

{CLIENT_SETTINGS}"""


_STATUSES = {
    1: "error, such as a PATH that cannot be read",
    3: "done, but with damage: the lost bytes are not part of the statistics",
}


@documented
@dataclass(frozen=True)
class StatsFlags:
    """The flags of ``kbatch stats``.

    Attributes
    ----------
    {options}
    """

    headers_only: bool = option(BOOLEAN, False, flag="--headers-only", help="read only batch headers, decode nothing")
    details: bool = option(BOOLEAN, False, flag="--details", help="print all statistics of each topic-partition")


class Counted(NamedTuple):
    """A log, with its name in the table and its entry in JSON, and its statistics."""

    name: str
    entry: dict[str, Any]
    statistics: LogStatistics


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "stats",
        run,
        help="summarize topic-partitions",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="segment or directory, or a URL of one; or kafka://HOST:PORT"
    )
    add_flags(parser, [*STORAGE, *options_of(StatsFlags), *JSON])
    add_selection(parser, "topics", "partitions", reason="whole logs are counted")
    add_broker_flags(parser, without_servers=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.log.check.statistics_sums import sum_statistics

    flags = given_options(StatsFlags, arguments)
    url = live_brokers(arguments.paths, arguments)
    found = _of_files(arguments, flags) if url is None else _of_cluster(url, arguments, flags)
    damaged = any(each.statistics.losses or each.statistics.damaged_batches for each in found)
    status = 3 if damaged else 0
    topics, total = sum_statistics((each.entry["topic"], each.statistics) for each in found)
    if arguments.json:
        logs = [{**each.entry, **each.statistics.to_dict()} for each in found]
        by_topic = [{"topic": each.topic, **each.to_dict()} for each in topics]
        print_summary("stats", status, logs, damaged=damaged, totals=total.to_dict(), topics=by_topic)
    else:
        print_lines(*_all_tables(found, total, topics))
        if flags.details:
            for each in found:
                print_lines("", *_details(each.name, each.statistics))
    return status


def _of_files(arguments: argparse.Namespace, flags: StatsFlags) -> list[Counted]:
    from kbatch.cli.inputs import find_inputs
    from kbatch.log.check.statistics import observed_statistics

    selection, given = given_selection(arguments), given_storage(arguments)
    found: list[Counted] = []
    done = 0
    with ProgressLine("listing ...") as line:
        inputs = find_inputs(arguments.paths, selection, given, logs_only=True)
        total = sum(segment.size for each in inputs for segment in each.segments)
        for each in inputs:
            before = done

            def progress(read: int, before: int = before) -> None:
                line.show_bytes(before + read, total)

            statistics = observed_statistics(each.segments, None, headers_only=flags.headers_only, progress=progress)
            found.append(Counted(each.name, log_dict(each.log, each.path), statistics))
            done += statistics.bytes
    return found


def _of_cluster(url: str, arguments: argparse.Namespace, flags: StatsFlags) -> list[Counted]:
    from kbatch.live import Cluster
    from kbatch.live.partition_statistics import partition_statistics

    if given_storage(arguments):
        raise UsageError(f"--storage-option belongs to files, not to a cluster, {url}")
    selection = given_selection(arguments)
    settings = given_settings(arguments, url)
    with ProgressLine(f"connecting to {url} ...") as line, Cluster(settings) as cluster:
        counted_logs = partition_statistics(
            cluster,
            selection.topics or "*",
            selection.partitions,
            headers_only=flags.headers_only,
            progress=lambda size, left: line.write(f"{format_size(size)}, {counted(left, 'offset')} left"),
        )
    return [Counted(f"{log.topic}-{log.partition}", log_dict(log, url), one) for log, one in counted_logs]


class _Row(NamedTuple):
    """What the tables have of a log, a topic, or all: the fields of `LogStatistics` and `StatisticsSums`."""

    name: str
    one: LogStatistics | StatisticsSums

    @property
    def counts(self) -> list[str]:
        one = self.one
        return [
            f"{one.batches:,}",
            f"{one.records:,}{'+' if one.uncounted_batches else ''}",
            f"{one.control_records:,}",
            f"{one.open:,}",
            format_size(one.bytes),
        ]

    @property
    def lost(self) -> str:
        return format_lost(self.one.lost_bytes, self.one.missing_offsets)


def _all_tables(found: list[Counted], total: StatisticsSums, topics: list[StatisticsSums]) -> list[str]:
    """Return the tables: of the logs, of the topics, of the codecs, and of the open transactions."""
    lines = _table(found, total)
    if len(found) > 1 and topics:
        lines += ["", *_sums_table(topics, total)]
    if total.codecs:
        lines += ["", *_codec_table(total)]
    open_logs = ((each.name, each.statistics.open_transactions, each.statistics.open) for each in found)
    still_open = open_transaction_lines(open_logs)
    return [*lines, *([""] if still_open else []), *still_open]


def _table(found: list[Counted], total: StatisticsSums) -> list[str]:
    titles = [
        "topic-partition", "segments", "batches", "records", "control", "open", "size", "offsets", "first time (UTC)",
        "last time (UTC)", "codecs", "lost",
    ]  # fmt: skip
    rows = [titles]
    ratios = [titles[10]]
    for name, _, one in found:
        row = _Row(name, one)
        offsets = "-" if one.first_offset is None else f"{one.first_offset} - {one.last_offset}"
        times = (format_time(one.first_timestamp), format_time(one.last_timestamp))
        rows.append([name, f"{one.segments or 0:,}", *row.counts, offsets, *times, _ratios(one), row.lost])
        ratios.append(_ratio_of_all(one))
    if len(found) > 1:
        row = _Row("all", total)
        rows.append(["all", f"{total.segments or 0:,}", *row.counts, "", "", "", "", row.lost])
        ratios.append("")
    if total.segments is None:
        rows = [[row[0], *row[2:]] for row in rows]
    columns = {title: i for i, title in enumerate(rows[0])}
    left = frozenset(columns[name] for name in (titles[0], *titles[8:11]))
    optional = [columns[title] for title in _NARROWING if title in columns]
    minutes = {columns[title]: [_to_minutes(row[columns[title]]) for row in rows] for title in titles[8:10]}
    return table_lines(
        rows,
        left=left,
        indent="",
        losses=frozenset([columns["lost"]]),
        short={columns["codecs"]: ratios, **minutes},
        optional=optional,
    )


def _to_minutes(time: str) -> str:
    """Return a time without its seconds; other texts are unchanged."""
    return _SECONDS.sub("", time)


def _sums_table(topics: list[StatisticsSums], total: StatisticsSums) -> list[str]:
    rows = [["topic", "partitions", "batches", "records", "control", "open", "size", "bytes by codec", "lost"]]
    ratios = ["codecs"]
    for name, sums in [*((str(each.topic), each) for each in topics), ("all", total)]:
        row = _Row(name, sums)
        rows.append([name, f"{sums.logs:,}", *row.counts, _codec_sizes(sums), row.lost])
        ratios.append(_ratio_of_all(sums))
    return table_lines(
        rows, left=frozenset((0, 7)), indent="", losses=frozenset([8]), short={7: ratios}, optional=(2, 1, 7)
    )


def _codec_table(total: StatisticsSums) -> list[str]:
    rows = [["codec", "batches", "control", "size", "share", "decompressed", "ratio"]]
    size = sum(entry["bytes"] for entry in total.codecs.values())
    for name, entry in total.to_dict()["codecs"].items():
        plain = entry["plain_bytes"]
        rows.append(
            [
                name,
                f"{entry['batches'] - entry['control_batches']:,}",
                f"{entry['control_batches']:,}",
                format_size(entry["bytes"]),
                f"{entry['bytes'] / size:.1%}" if size else "-",
                "-" if plain is None else format_size(plain),
                "-" if entry["ratio"] is None else f"{entry['ratio']:.2f}x",
            ]
        )
    return table_lines(rows, left=frozenset([0]), indent="")


def _ratios(one: LogStatistics) -> str:
    texts = []
    for name, entry in one.to_dict()["codecs"].items():
        ratio = f" {entry['ratio']:.2f}x" if entry["ratio"] is not None and name != "none" else ""
        texts.append(f"{name}{ratio}")
    return ", ".join(texts) or "-"


def _ratio_of_all(one: LogStatistics | StatisticsSums) -> str:
    """Return the codec, or ``mixed``, with the ratio of all payloads together."""
    codecs = one.to_dict()["codecs"]
    if not codecs:
        return "-"
    name = next(iter(codecs)) if len(codecs) == 1 else "mixed"
    plain = [entry["plain_bytes"] for entry in codecs.values()]
    stored = sum(entry["payload_bytes"] for entry in codecs.values())
    return name if name == "none" or None in plain or not stored else f"{name} {sum(plain) / stored:.2f}x"


def _codec_sizes(sums: StatisticsSums) -> str:
    """Return the bytes by codec, with the ratio of each."""
    texts = []
    for name, entry in sums.to_dict()["codecs"].items():
        ratio = f" ({entry['ratio']:.2f}x)" if entry["ratio"] is not None and name != "none" else ""
        texts.append(f"{name} {format_size(entry['bytes'])}{ratio}")
    return ", ".join(texts) or "-"


def _details(name: str, one: LogStatistics) -> list[str]:
    lines: list[str] = [styled(name, "heading")]

    def add(name: str, text: str) -> None:
        lines.extend(labelled_lines(name, text, 17))

    size = format_size(one.bytes)
    add("size", size if one.segments is None else f"{size} in {counted(one.segments, 'segment')}")
    add("offsets", "-" if one.first_offset is None else f"{one.first_offset} - {one.last_offset}")
    add("time (UTC)", f"{format_time(one.first_timestamp)} to {format_time(one.last_timestamp)}")
    add("records", f"{_Row(name, one).counts[1]} and {counted(one.control_records, 'control record')}")
    add(
        "batches",
        f"{one.batches:,}: {one.control_batches:,} control, {one.transactional_batches:,} transactional, "
        f"{one.empty_batches:,} empty" + (f", {one.damaged_batches:,} damaged" if one.damaged_batches else ""),
    )
    add("magic", ", ".join(f"{magic}: {count:,}" for magic, count in sorted(one.magics.items())) or "-")
    for name, entry in one.to_dict()["codecs"].items():
        plain = (
            ""
            if entry["plain_bytes"] is None
            else f"; payloads decompress to about {format_size(entry['plain_bytes'])}"
        )
        ratio = "" if entry["ratio"] is None else f", {entry['ratio']:.2f}x"
        add(f"codec {name}", f"{counted(entry['batches'], 'batch')}, {format_size(entry['bytes'])}{plain}{ratio}")
    add("records per batch", _distribution(one.records_per_batch))
    add("batch bytes", _distribution(one.batch_bytes))
    if one.decoded:
        add("record bytes", f"{_distribution(one.record_bytes)} (key and value)")
        add(
            "null",
            f"{counted(one.null_keys, 'key')}, {counted(one.null_values, 'value')}; "
            f"{counted(one.tombstones, 'tombstone')}",
        )
        add("headers", f"{one.headers:,} in {counted(one.records_with_headers, 'record')}")
    if one.uncounted_batches:
        add("not counted", f"records of {one.uncounted_batches:,} compressed message sets")
    undecided = f", {one.undecided:,} with a lost marker" if one.undecided else ""
    add("transactions", f"{one.committed:,} committed, {one.aborted:,} aborted, {one.open:,} open{undecided}")
    add("producers", f"{one.producers:,}")
    if one.losses:
        lost = format_lost(one.lost_bytes, one.missing_offsets)
        add("lost", f"{lost} in {counted(one.losses, 'place')}: `kbatch verify` lists them")
    return lines


def _distribution(numbers: Distribution) -> str:
    if not numbers.count:
        return "-"
    from kbatch.log.check.statistics import PERCENTILES

    percentiles = ", ".join(f"p{percent} {numbers.percentile(percent):,}" for percent in PERCENTILES)
    return f"mean {numbers.mean:,.1f}, min {numbers.smallest:,}, {percentiles}, max {numbers.largest:,}"
