"""``kbatch stats PATH...``: statistics of topic-partitions."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kbatch.cli.broker_flags import CLIENT_SETTINGS, add_broker_flags, given_settings, live_brokers
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, STORAGE, UsageError, add_flags, given_options, given_storage
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.terminal import (
    ProgressLine,
    counted,
    fitted,
    format_lost,
    format_size,
    format_time,
    labelled_lines,
    log_dict,
    print_lines,
    print_summary,
    table_lines,
)
from kbatch.options import BOOLEAN, documented, option, options_of

if TYPE_CHECKING:
    from kbatch.log.check.statistics import Distribution, LogStatistics

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Summarize topic-partitions: segments, batches, records, sizes, offsets, times, codecs with their ratios, transactions.

PATH is a segment (.log, .checkpoint), a topic-partition directory, or a broker's log directory; or a live cluster,
kafka://HOST:PORT, whose topics are fetched to the end that they have now.
"""


_EPILOG = f"""\
examples:
  kbatch stats /var/lib/kafka/data                 one line per topic-partition
  kbatch stats --details data/orders-0             all statistics of one
  kbatch stats --headers-only /var/lib/kafka/data  fast: decodes nothing, computes no checksums
  kbatch stats --json data | jq '.logs[] | [.name, .records]'
  kbatch stats --topic orders kafka://localhost:9092 --config client.properties

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
    flags = given_options(StatsFlags, arguments)
    url = live_brokers(arguments.paths, arguments)
    found = _of_files(arguments, flags) if url is None else _of_cluster(url, arguments, flags)
    damaged = any(each.statistics.losses or each.statistics.damaged_batches for each in found)
    status = 3 if damaged else 0
    if arguments.json:
        logs = [{**each.entry, **each.statistics.to_dict()} for each in found]
        print_summary("stats", status, logs, damaged=damaged)
    else:
        print_lines(*_table(found))
        if flags.details:
            for each in found:
                print_lines("", *_details(each.name, each.statistics))
    return status


def _of_files(arguments: argparse.Namespace, flags: StatsFlags) -> list[Counted]:
    from kbatch.cli.inputs import find_inputs
    from kbatch.log.check.statistics import log_statistics

    inputs = find_inputs(arguments.paths, given_selection(arguments), given_storage(arguments), logs_only=True)
    total = sum(segment.size for each in inputs for segment in each.segments)
    found: list[Counted] = []
    done = 0
    with ProgressLine() as line:
        for each in inputs:
            before = done

            def progress(read: int, before: int = before) -> None:
                line.show_bytes(before + read, total)

            statistics = log_statistics(each.segments, headers_only=flags.headers_only, progress=progress)
            found.append(Counted(each.name, log_dict(each.log, each.path), statistics))
            done += statistics.bytes
    return found


def _of_cluster(url: str, arguments: argparse.Namespace, flags: StatsFlags) -> list[Counted]:
    from kbatch.live import Cluster
    from kbatch.live.partition_statistics import partition_statistics

    if given_storage(arguments):
        raise UsageError(f"--storage-option belongs to files, not to a cluster, {url}")
    selection = given_selection(arguments)
    with Cluster(given_settings(arguments, url)) as cluster, ProgressLine() as line:
        counted_logs = partition_statistics(
            cluster,
            selection.topics or "*",
            selection.partitions,
            headers_only=flags.headers_only,
            progress=lambda size, left: line.write(f"{format_size(size)}, {counted(left, 'offset')} left"),
        )
    return [Counted(f"{log.topic}-{log.partition}", log_dict(log, url), one) for log, one in counted_logs]


def _table(found: list[Counted]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("topic-partition", "segments", "batches", "records", "control", "size", "offsets", "first time (UTC)",
         "last time (UTC)", "codecs", "lost")
    ]  # fmt: skip
    for name, _, one in found:
        rows.append(
            (
                name,
                f"{one.segments or 0:,}",
                f"{one.batches:,}",
                f"{one.records:,}{'+' if one.uncounted_batches else ''}",
                f"{one.control_records:,}",
                format_size(one.bytes),
                "-" if one.first_offset is None else f"{one.first_offset} - {one.last_offset}",
                format_time(one.first_timestamp),
                format_time(one.last_timestamp),
                _codecs(one),
                format_lost(one.lost_bytes, one.missing_offsets),
            )
        )
    if len(found) > 1:
        both = [one for _, _, one in found]
        rows.append(
            (
                "all",
                f"{sum(one.segments or 0 for one in both):,}",
                f"{sum(one.batches for one in both):,}",
                f"{sum(one.records for one in both):,}{'+' if any(one.uncounted_batches for one in both) else ''}",
                f"{sum(one.control_records for one in both):,}",
                format_size(sum(one.bytes for one in both)),
                "",
                "",
                "",
                "",
                format_lost(sum(one.lost_bytes for one in both), sum(one.missing_offsets for one in both)),
            )
        )
    if any(one.segments is None for _, _, one in found):
        return table_lines([(row[0], *row[2:]) for row in rows], left=frozenset((0, 6, 7, 8)), indent="")
    return table_lines(rows, left=frozenset((0, 7, 8, 9)), indent="")


def _codecs(one: LogStatistics) -> str:
    codecs = one.to_dict()["codecs"]
    texts = []
    for name, entry in codecs.items():
        ratio = f" {entry['ratio']:.2f}x" if entry["ratio"] is not None and name != "none" else ""
        texts.append(f"{name}{ratio}")
    return ", ".join(texts) or "-"


def _details(name: str, one: LogStatistics) -> list[str]:
    from kbatch.format import NO_TIMESTAMP

    lines = [fitted(name)]

    def add(name: str, text: str) -> None:
        lines.extend(labelled_lines(name, text, 17))

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
    for producer, offset, timestamp in one.open_transactions:
        time = format_time(None if timestamp == NO_TIMESTAMP else timestamp)
        add("open", f"producer {producer}, from offset {offset}, {time}")
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
