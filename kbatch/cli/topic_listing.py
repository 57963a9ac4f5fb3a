"""``kbatch topics [TOPIC...]``: the topics, partitions and groups of a live cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.cli.broker_flags import CLIENT_SETTINGS, KAFKA_URL, add_broker_flags, given_settings
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, UsageError, add_flags, given_options
from kbatch.cli.open_transactions import open_transaction_lines
from kbatch.cli.selection_flags import add_selection
from kbatch.cli.styles import styled
from kbatch.cli.tables import table_lines
from kbatch.cli.terminal import ProgressLine, counted, format_size, print_errors, print_lines, print_summary
from kbatch.options import BOOLEAN, documented, option, options_of

if TYPE_CHECKING:
    from kbatch.live.cluster_listing import ListedGroup, ListedPartition, ListedTopic

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
List the topics of a live cluster, or the partitions of each TOPIC, a name or a glob such as 'orders-*': leaders,
replicas, offsets, open transactions and sizes. With --groups also groups: their states, members, committed offsets and
lag.

Internal topics are listed if they are named, or with --internal.
"""

_EPILOG = f"""\
examples:
  kbatch topics --bootstrap-server localhost:9092           one line per topic
  kbatch topics orders --bootstrap-server localhost:9092    one line per partition
  kbatch topics orders --groups --config client.properties  and the groups that read it
  kbatch topics --groups --json --config client.properties | jq '.groups[] | [.name, .lag]'

columns:
  offsets   the offsets from the first to the end; a log with gaps, such as a compacted one, has fewer records
  end       the offset after the last record
  stable    the last stable offset, if a transaction is open: read_committed reads up to here
  open      the open transactions, which are listed below the table with producer, first offset and time; - if the
            leader does not state them
  isr       the replicas in sync with the leader
  size      the bytes of the leaders' logs; - if the principal lacks the ACL DESCRIBE on the cluster
  lag       the offsets from the committed one to the end

{CLIENT_SETTINGS}"""

_STATUSES = {1: "error, such as a topic that does not exist"}


@documented
@dataclass(frozen=True)
class TopicsFlags:
    """The flags of ``kbatch topics``.

    Attributes
    ----------
    {options}
    """

    groups: bool = option(
        BOOLEAN, False, flag="--groups", help="also list groups; with TOPIC, those with offsets or members there"
    )
    internal: bool = option(BOOLEAN, False, flag="--internal", help="also list internal topics")


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "topics",
        run,
        help="list topics, partitions and groups of a live cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="name or glob of topics (default: all)")
    add_broker_flags(parser.add_argument_group("cluster"))
    add_flags(parser, [*options_of(TopicsFlags), *JSON])
    add_selection(parser, reason="it lists whole topics, and the arguments TOPIC choose them")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.live import Cluster
    from kbatch.live.cluster_listing import ClusterListing

    flags = given_options(TopicsFlags, arguments)
    if any(each.startswith(KAFKA_URL) for each in arguments.topics):
        raise UsageError("the address of a cluster is not a TOPIC: --bootstrap-server takes it")
    settings = given_settings(arguments)
    with ProgressLine("asking the brokers ..."), Cluster(settings) as cluster:
        listing = ClusterListing(cluster, arguments.topics, internal=flags.internal)
        groups = listing.groups() if flags.groups else None
    if arguments.json:
        listed = {} if groups is None else {"groups": list(map(_group_dict, groups))}
        topics = list(map(_topic_dict, listing.topics))
        print_summary("topics", 0, [], damaged=False, topics=topics, **listed, notes=listing.notes)
        return 0
    print_lines(*(_partition_table(listing.topics) if arguments.topics else _topic_table(listing.topics)))
    logs = [
        (f"{each.topic}-{each.partition}", each.open_transactions, len(each.open_transactions))
        for topic in listing.topics
        for each in topic.partitions
        if each.open_transactions
    ]
    if logs:
        print_lines("", *open_transaction_lines(logs))
    for group in groups or ():
        print_lines("", *_group_lines(group))
    if groups is not None and not groups:
        print_lines("", "no groups")
    print_errors(*(f"kbatch topics: {note}" for note in listing.notes))
    return 0


def _topic_table(topics: list[ListedTopic]) -> list[str]:
    rows: list[tuple[str, ...]] = [("topic", "partitions", "replicas", "offsets", "open", "size", "")]
    for topic in topics:
        parts = topic.partitions
        rows.append(
            (
                topic.name,
                f"{len(parts):,}",
                _extremes(len(each.replicas) for each in parts),
                _number(_sum(each.offsets for each in parts)),
                _number(_sum(_open_count(each) for each in parts)),
                _size_text(_sum(each.size for each in parts)),
                _problems(parts),
            )
        )
    if not any(row[-1] for row in rows):
        return table_lines([row[:-1] for row in rows], left=frozenset([0]), indent="")
    return table_lines(rows, left=frozenset((0, 6)), indent="", losses=frozenset([6]))


def _problems(parts: list[ListedPartition]) -> str:
    without = sum(each.leader is None for each in parts)
    behind = sum(each.leader is not None and len(each.in_sync) < len(each.replicas) for each in parts)
    texts = [f"{without:,} offline"] if without else []
    return ", ".join([*texts, *([f"{behind:,} not in sync"] if behind else [])])


def _partition_table(topics: list[ListedTopic]) -> list[str]:
    parts = [each for topic in topics for each in topic.partitions]
    has_open = any(each.stable != each.end for each in parts)
    titles = ["topic-partition", "leader", "replicas", "isr", "first", "end", "offsets", "open", "size"]
    rows = []
    for each in parts:
        is_whole = set(each.in_sync) == set(each.replicas)
        cells = [
            f"{each.topic}-{each.partition}",
            "none" if each.leader is None else str(each.leader),
            _ids(each.replicas),
            "all" if is_whole else _ids(each.in_sync),
            _offset(each.first),
            _offset(each.end),
            _number(each.offsets),
            _number(_open_count(each)),
            _size_text(each.size),
        ]
        rows.append([*cells[:6], _offset(each.stable), *cells[6:]] if has_open else cells)
    if has_open:
        titles.insert(6, "stable")
    return table_lines([titles, *rows], left=frozenset((0, 2, 3)), indent="")


def _group_lines(group: ListedGroup) -> Iterator[str]:
    members = [] if group.members is None else [counted(group.members, "member")]
    lag = _sum(each.lag for each in group.partitions if each.committed is not None)
    parts = [group.state or "state unknown", group.kind, *members, *([] if lag is None else [f"lag {lag:,}"])]
    yield styled(f"group {group.name}: {', '.join(parts)}", "heading", f"group {group.name}:")
    if not group.partitions:
        return
    rows = [("topic-partition", "committed", "end", "lag", "member")]
    for each in group.partitions:
        name = f"{each.topic}-{each.partition}"
        rows.append((name, _offset(each.committed), _offset(each.end), _number(each.lag), each.member or "-"))
    yield from table_lines(rows, left=frozenset((0, 4)))


def _topic_dict(topic: ListedTopic) -> dict[str, Any]:
    return {**topic._asdict(), "partitions": [_listed_partition(each) for each in topic.partitions]}


def _listed_partition(each: ListedPartition) -> dict[str, Any]:
    listed = each.open_transactions
    still_open = None if listed is None else [transaction._asdict() for transaction in listed]
    return {**each._asdict(), "open_transactions": still_open, "offsets": each.offsets}


def _open_count(each: ListedPartition) -> int | None:
    return None if each.open_transactions is None else len(each.open_transactions)


def _group_dict(group: ListedGroup) -> dict[str, Any]:
    return {
        **group._asdict(),
        "lag": _sum(each.lag for each in group.partitions if each.committed is not None),
        "partitions": [{**each._asdict(), "lag": each.lag} for each in group.partitions],
    }


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, or None if there is no number, or one is not known."""
    found = list(numbers)
    known = [each for each in found if each is not None]
    return sum(known) if found and len(known) == len(found) else None


def _extremes(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return "-".join(map(str, dict.fromkeys((found[0], found[-1])))) if found else "-"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers)) or "none"


def _offset(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _size_text(size: int | None) -> str:
    return "-" if size is None else format_size(size)
