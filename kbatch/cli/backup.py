"""``kbatch backup kafka://HOST:PORT OUT``: live topics to a log directory, batch for batch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.cli.broker_flags import CLIENT_SETTINGS, KAFKA_URL, add_broker_flags, given_settings
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, UsageError, add_flags, given_options
from kbatch.cli.open_transactions import open_text
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.styles import styled
from kbatch.cli.terminal import ProgressLine, counted, format_records, format_size, print_lines, print_summary
from kbatch.options import INT32_MAX, documented, option, options_of, size

if TYPE_CHECKING:
    from kbatch.log import Written

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Write live topics to a log directory, with the batches that brokers send, up to the ends that the topics have now.

OUT has a directory for each topic-partition, as a broker's log directory: segments, indexes, leader epochs, topic id.
Logs that OUT has already are continued where they end, so the same command brings a backup up to date. After an error,
an interrupt or a kill, the next run continues after the last commit.
"""


_EPILOG = f"""\
examples:
  kbatch backup kafka://localhost:9092 /backup --topic orders
  kbatch backup kafka://localhost:9092 /backup --topic '*' --config client.properties
  kbatch diff /backup kafka://localhost:9092
  kbatch stats /backup

{CLIENT_SETTINGS}"""


_STATUSES = {
    1: "error: what was committed before stays, and the next run continues after it",
    130: "interrupted: as after an error",
}


@documented
@dataclass(frozen=True)
class BackupFlags:
    """The flags of ``kbatch backup``.

    Attributes
    ----------
    {options}
    """

    segment_bytes: int = option(
        size(1, INT32_MAX), 1 << 30, flag="--segment-bytes",
        help="begin a new segment before one becomes larger than this, as segment.bytes of a broker",
    )  # fmt: skip
    index_interval_bytes: int = option(
        size(0, INT32_MAX), 4096, flag="--index-interval-bytes",
        help="bytes of the log per index entry, as index.interval.bytes of a broker",
    )  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "backup",
        run,
        help="copy live topics to a log directory",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("source", metavar="kafka://HOST:PORT", help="some brokers of the cluster")
    parser.add_argument("out", metavar="OUT", help="log directory")
    add_flags(parser, [*options_of(BackupFlags), *JSON])
    add_selection(parser, "topics", "partitions", reason="whole topics are copied")
    add_broker_flags(parser, without_servers=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.live import ClusterSource
    from kbatch.log import backup_topics

    flags, selection = given_options(BackupFlags, arguments), given_selection(arguments)
    if not arguments.source.startswith(KAFKA_URL):
        raise UsageError(f"a backup is of a cluster, {KAFKA_URL}HOST:PORT, got {arguments.source}")
    if selection.topics is None:
        raise UsageError("--topic is required; --topic '*' is all topics that are not internal")
    source = ClusterSource(given_settings(arguments, arguments.source))
    with ProgressLine() as line:
        logs = backup_topics(
            source,
            arguments.out,
            topics=selection.topics,
            partitions=selection.partitions,
            segment_bytes=flags.segment_bytes,
            index_interval_bytes=flags.index_interval_bytes,
            progress=lambda done, left: line.write(f"{format_size(done)}, {counted(left, 'offset')} left"),
        )
    if arguments.json:
        entries = [_written_dict(log) for log in logs]
        print_summary("backup", 0, entries, damaged=False, out=arguments.out)
        return 0
    for log in logs:
        records = format_records(log.records, log.control_records)
        new = f"offsets {log.first_offset} to {log.next_offset} (exclusive), {records}, {format_size(log.bytes)}"
        name = f"{log.topic}-{log.partition}"
        print_lines(f"{name}: {new}" if log.bytes else f"{name}: nothing new, the end is offset {log.next_offset}")
        if log.cut_bytes:
            cut = f"{counted(log.cut_bytes, 'byte')} at the end of the backup were no valid batches, and were cut"
            print_lines(styled(f"  {cut}", "warning"))
        if log.open_transactions:
            print_lines(styled(f"  {open_text(log.open_transactions)}", "warning"))
    return 0


def _written_dict(log: Written) -> dict[str, Any]:
    still_open = [each._asdict() for each in log.open_transactions]
    return {"name": f"{log.topic}-{log.partition}", **log._asdict(), "open_transactions": still_open}
