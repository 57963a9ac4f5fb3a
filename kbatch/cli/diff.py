"""``kbatch diff A B``: compare the records of two logs, directories of logs, or live clusters."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from kbatch.cli.broker_flags import CLIENT_SETTINGS, KAFKA_URL, BrokerFlags, add_broker_flags, settings_of
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, NAME_AND_VALUE, STORAGE, UsageError, add_flags, given_options, given_storage, usage
from kbatch.cli.open_transactions import open_text
from kbatch.cli.selection_flags import RANGES, SelectionFlags, add_selection, given_selection
from kbatch.cli.shown import json_bytes
from kbatch.cli.styles import styled
from kbatch.cli.terminal import (
    ProgressLine,
    counted,
    damage_lines,
    format_size,
    loss_dicts,
    print_errors,
    print_lines,
    print_summary,
)
from kbatch.options import (
    BOOLEAN,
    TEXT,
    ComparedExtent,
    Match,
    RaiseOrSkip,
    ValueKind,
    choice,
    documented,
    option,
    options_of,
    size,
)

if TYPE_CHECKING:
    from kbatch.log.check.differences import ComparedLog, ComparedRecord, Difference, PartitionComparison

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Compare the records of two logs, directories of logs or live clusters, which are paired by topic and partition. Batches,
codecs, magic and segments may differ: records are equal if timestamp, key, value and headers are equal. Prints for each
topic-partition the number of records on each side and the first difference.

A and B are segments (.log), topic-partition directories, brokers' log directories, or clusters, kafka://HOST:PORT.
"""


_EPILOG = f"""\
examples:
  kbatch diff /var/lib/kafka/data /backup/kafka
  kbatch diff data/orders-0 backup/orders-0 && echo equal
  kbatch diff --match order data/orders-0 mirror/eu.orders-0
  kbatch diff --match key data/accounts-0 compacted/accounts-0
  kbatch diff kafka://east:9092 kafka://west:9092 --topic orders --config east.properties --other-config west.properties
  kbatch diff /backup kafka://localhost:9092 --topic orders
  kbatch diff --times -1h: --json data backup | jq '.logs[] | select(.equal | not)'

--match:
  offset  records with the same offset are compared
  order   the first records of both sides are compared, then the second ones, and so on: for mirrored topics, whose
          offsets differ. After a difference, the comparison resumes at the next record that both sides have, among the
          next 1,024 records of each side
  key     the last record of each key is compared: for compacted topics. A key whose last record is a tombstone (a null
          value) counts as absent. Records without a key are not compared

kafka://HOST:PORT:
  Topics are fetched once, to the ends that they have now. By default only the offsets that both logs have are compared,
  because retention and producers move the ends of a live log; --extent all also finds records before and after them. If
  one side is files, by default only their topics are compared.

{CLIENT_SETTINGS}\
  --config and --setting are for the cluster A, --other-config and --other-setting for the cluster B. If only B is a
  cluster, --config and --setting are for it.

{RANGES}
"""


_STATUSES = {
    0: "the records are equal",
    1: "the records differ",
    2: "wrong usage, an error, or damage",
}


@documented
@dataclass(frozen=True)
class DiffFlags:
    """The flags of ``kbatch diff``.

    Attributes
    ----------
    {options}
    """

    match: Match = option(
        choice(*get_args(Match)), "offset", flag="--match",
        help="which records are compared with each other; see below",
    )  # fmt: skip
    extent: ComparedExtent | None = option(
        choice(*get_args(ComparedExtent)), None, flag="--extent",
        help="which offsets --match offset compares: those that both logs have, or all, so that a record before or "
        "after the other log is a difference. Default is common if A or B is a cluster, else all",
    )  # fmt: skip
    digests: bool = option(
        BOOLEAN, False, flag="--digests",
        help="print a digest of the records of each side, which depends on neither batches nor codecs; kbatch dump "
        "--digests prints those of blocks of offsets",
    )  # fmt: skip
    other_topic: str | None = option(
        TEXT, None, flag="--other-topic", help="the name of the topic in B, if it is not the one of --topic"
    )
    other_config: str | None = option(
        ValueKind(str, "client.properties", metavar="FILE"), None, flag="--other-config",
        help="as --config, for the cluster B",
    )  # fmt: skip
    other_settings: tuple[tuple[str, str], ...] | None = option(
        NAME_AND_VALUE, None, flag="--other-setting", help="as --setting, for the cluster B; may be repeated"
    )
    on_error: RaiseOrSkip = option(
        choice(*get_args(RaiseOrSkip)), "raise", flag="--on-error",
        help="at damage: fail, or skip and list it, with exit status 2",
    )  # fmt: skip
    max_bytes_shown: int = option(
        size(0), 100, flag="--max-bytes-shown",
        help="print at most the first SIZE bytes of a key, a value or a header's value",
    )  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "diff",
        run,
        help="compare the records of two logs, directories or live topics",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
        error_status=2,
    )
    parser.add_argument("a", metavar="A", help="segment or directory, or a URL of one; or kafka://HOST:PORT")
    parser.add_argument("b", metavar="B", help="the other side, of any of these kinds")
    add_flags(parser, [*options_of(DiffFlags), *STORAGE, *JSON])
    add_selection(
        parser, "topics", "partitions", "offsets", "times", "isolation",
        reason="all keys are compared; --match key compares the last record of each",
    )  # fmt: skip
    add_broker_flags(parser, without_servers=True)


# The headers of a record that the text shows.
_TEXT_HEADERS = 8


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.log import Log, compare_logs

    flags, selection = given_options(DiffFlags, arguments), given_selection(arguments)
    with ProgressLine("listing ...") as line:
        with usage():
            sides = _opened(arguments, flags, selection)
        is_opened = all(isinstance(side, Log | list) for side in sides)
        logs = [log for side in sides for log in ([side] if isinstance(side, Log) else side)] if is_opened else []
        total = sum(log.size for log in logs)
        chosen: dict[str, Any] = {}
        if not is_opened:
            chosen = {
                "topics": selection.topics,
                "partitions": selection.partitions,
                "other_topic": flags.other_topic,
                "storage_options": given_storage(arguments),
            }

        def on_partition(result: PartitionComparison) -> None:
            for name, side in (("A", result.a), ("B", result.b)):
                if side is not None and side.losses:
                    print_errors(*damage_lines(f"kbatch diff: {name}: skipped", side.losses), style="error")
            if not arguments.json:
                print_lines(*_partition_lines(result, flags))

        comparison = compare_logs(
            *sides,
            match=flags.match,
            extent=flags.extent,
            digests=flags.digests,
            **chosen,
            on_error=flags.on_error,
            progress=lambda done: line.show_bytes(done, total) if is_opened else line.write(format_size(done)),
            on_partition=on_partition,
            isolation=selection.isolation,
            start_offset=selection.start_offset,
            stop_offset=selection.stop_offset,
            start_timestamp=selection.start_timestamp,
            stop_timestamp=selection.stop_timestamp,
        )
    status = 2 if comparison.damaged else 0 if comparison.equal else 1
    partitions = comparison.partitions
    if arguments.json:
        results = [_result_dict(each, flags.max_bytes_shown) for each in partitions]
        print_summary(
            "diff", status, results, damaged=comparison.damaged, equal=comparison.equal, match=comparison.match
        )
    elif not isinstance(sides[0], Log):
        differing = sum(not each.equal for each in partitions)
        number = counted(len(partitions), "topic-partition")
        print_lines(f"different: {differing:,} of {number}" if differing else f"equal: {number}")
    return status


def _opened(arguments: argparse.Namespace, flags: DiffFlags, selection: SelectionFlags) -> list[Any]:
    """Return both sides; files are opened if there is neither a cluster nor another topic."""
    from kbatch.cli.inputs import open_paths
    from kbatch.live import ClusterSource

    paths = [arguments.a, arguments.b]
    live = [path.startswith(KAFKA_URL) for path in paths]
    given = {"--": given_options(BrokerFlags, arguments)}
    given["--other-"] = BrokerFlags(None, flags.other_config, flags.other_settings)
    unused = BrokerFlags()
    if live == [False, True] and given["--other-"] == unused:
        given = {"--other-": unused, "--": given["--"]}
    if not any(live) and flags.other_topic is None and all(each == unused for each in given.values()):
        return list(open_paths(paths, selection, given_storage(arguments)))
    sides: list[Any] = []
    for path, is_cluster, (prefix, each) in zip(paths, live, given.items(), strict=True):
        if not is_cluster and each != unused:
            flag = "config" if each.config is not None else "setting"
            raise UsageError(f"{prefix}{flag} belongs to a cluster, {KAFKA_URL}HOST:PORT, not to files")
        sides.append(ClusterSource(settings_of(each, path, prefix)) if is_cluster else path)
    return sides


def _compared_name(result: PartitionComparison) -> str:
    return result.sides[0].path if result.topic is None else f"{result.topic}-{result.partition}"


def _partition_lines(result: PartitionComparison, flags: DiffFlags) -> list[str]:
    """Return the result of a topic-partition as text."""
    sides = [(name, side) for name, side in (("A", result.a), ("B", result.b)) if side is not None]
    records = " and ".join(f"{counted(side.records, 'record')} in {name}" for name, side in sides)
    noun = "key" if flags.match == "key" else "record"
    if len(result.sides) < 2:
        only = f"only in {'A' if result.a else 'B'}:"
        lines: list[str] = [styled(f"{_compared_name(result)}: {only} {records}", "warning", only)]
    elif result.equal:
        compared = f" of {records}" if noun == "key" else ""
        lines = [f"{_compared_name(result)}: equal: {counted(result.matching, noun)}{compared}"]
    else:
        fields = ", ".join(f"{name} {count:,}" for name, count in result.fields.items())
        different = f"{result.different:,} different" + (f" ({fields})" if fields else "")
        lines = [
            styled(f"{_compared_name(result)}: different: {records}", "warning", "different:"),
            f"  {counted(result.matching, noun)} equal, {different}, {result.only_a:,} only in A, "
            f"{result.only_b:,} only in B",
        ]
        if result.first is not None:
            lines += _first_lines(result.first, flags)
    lines += _extent_lines(result)
    are_empty = any(side.start_offset == side.end_offset for side in result.sides if side.end_offset is not None)
    are_apart = result.disjoint and not _overlap(result)
    if flags.match == "offset" and not result.matching and (result.different or are_apart) and not are_empty:
        lines.append(
            "  no offset has the same record: for a topic that was mirrored with other offsets, use --match order"
        )
    for name, side in sides:
        lines += _notes(name, side)
    return lines


def _extent_lines(result: PartitionComparison) -> list[str]:
    """Return the offsets of both logs if they differ, and those that were compared."""
    if result.compared_offsets is None:
        return []
    ranges = {name: (side.start_offset, side.end_offset) for name, side in (("A", result.a), ("B", result.b)) if side}
    if len(set(ranges.values())) == 1:
        return []
    first, stop = result.compared_offsets
    none = "none of the chosen offsets is in both" if _overlap(result) else "no offset is in both"
    compared = f"compared are {first} to {stop} (exclusive)" if first < stop else none
    return [f"  offsets: {', '.join(f'{low} to {high} in {name}' for name, (low, high) in ranges.items())}; {compared}"]


def _overlap(result: PartitionComparison) -> bool:
    """Whether the logs of both sides have common offsets, also outside of the chosen ones."""
    return max(side.start_offset or 0 for side in result.sides) < min(side.end_offset or 0 for side in result.sides)


def _notes(name: str, side: ComparedLog) -> list[str]:
    notes: list[str] = []
    if side.digest is not None:
        notes.append(f"  {name}: digest {side.digest}")
    if side.control_records:
        notes.append(f"  {name}: {counted(side.control_records, 'control record')}, not compared")
    if side.open_transactions:
        notes.append(styled(f"  {name}: {open_text(side.open_transactions)}", "warning"))
    if side.keyless:
        notes.append(f"  {name}: {counted(side.keyless, 'record')} without a key, not compared")
    if side.withheld:
        notes.append(f"  {name}: records of {counted(side.withheld, 'open or undecided transaction')} are withheld")
    if side.losses:
        lost = sum(loss.length for loss in side.losses)
        losses = f"{counted(len(side.losses), 'loss')} of {counted(lost, 'byte')}"
        notes.append(styled(f"  {name}: DAMAGED: {losses}, not compared", "error", "DAMAGED:"))
    return notes


def _first_lines(first: Difference, flags: DiffFlags) -> list[str]:
    """Return the first difference: where, and the fields that differ on each side, or the fields of the only record."""
    records = [(name, record) for name, record in (("A", first.a), ("B", first.b)) if record is not None]
    offsets = {record.offset for _, record in records}
    where = (
        f"offset {records[0][1].offset}"
        if len(offsets) == 1
        else " and ".join(f"offset {record.offset} in {name}" for name, record in records)
    )
    if first.row is not None:
        where = f"record {first.row:,} ({where})"
    if flags.match == "key":
        where += f", key {json_bytes(*_cut_bytes(records[0][1].key, flags.max_bytes_shown))}"
    if len(records) == 1:
        lines = [f"  first difference: {where}: only in {records[0][0]}"]
        fields: tuple[str, ...] = ("timestamp", "key", "value", "headers")
    else:
        lines = [f"  first difference: {where}: {', '.join(first.fields)}"]
        fields = first.fields
    for field in fields:
        lines += [f"    {name}  {field:<9}  {_shown(record, field, flags.max_bytes_shown)}" for name, record in records]
    return lines


def _cut_bytes(data: bytes | None, limit: int) -> tuple[bytes | None, int]:
    """Return at most `limit` bytes, and the size before."""
    return (None, -1) if data is None else (data[:limit], len(data))


def _shown(record: ComparedRecord, field: str, limit: int) -> str:
    """Return a field of a record as text."""
    if field == "timestamp":
        from kbatch.records.display import shown_time

        return "none" if record.timestamp is None else f"{record.timestamp} ({shown_time(record.timestamp)})"
    if field == "headers":
        pairs = [_header(key, value, limit) for key, value in record.headers[:_TEXT_HEADERS]]
        if len(record.headers) > _TEXT_HEADERS:
            pairs.append(f"... {counted(len(record.headers) - _TEXT_HEADERS, 'more header')}")
        return f"[{', '.join(pairs)}]"
    return json_bytes(*_cut_bytes(record.key if field == "key" else record.value, limit))


def _header(key: bytes, value: bytes | None, limit: int) -> str:
    return f"[{json_bytes(*_cut_bytes(key, limit))}, {json_bytes(*_cut_bytes(value, limit))}]"


def _result_dict(result: PartitionComparison, limit: int) -> dict[str, Any]:
    """Return the result of a topic-partition for JSON."""
    first = result.first
    return {
        "name": _compared_name(result),
        "topic": result.topic,
        "partition": result.partition,
        "equal": result.equal,
        "matching": result.matching,
        "different": result.different,
        "only_a": result.only_a,
        "only_b": result.only_b,
        "compared_offsets": None if result.compared_offsets is None else list(result.compared_offsets),
        "fields": result.fields,
        "first": None
        if first is None
        else {
            "row": first.row,
            "fields": list(first.fields),
            "a": _record_dict(first.a, limit),
            "b": _record_dict(first.b, limit),
        },
        "a": _side_dict(result.a),
        "b": _side_dict(result.b),
    }


def _side_dict(side: ComparedLog | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "path": side.path,
        "records": side.records,
        "control_records": side.control_records,
        "open_transactions": [each._asdict() for each in side.open_transactions],
        "start_offset": side.start_offset,
        "end_offset": side.end_offset,
        "digest": side.digest,
        "keyless": side.keyless,
        "withheld_transactions": side.withheld,
        "losses": loss_dicts(side.losses),
    }


def _record_dict(record: ComparedRecord | None, limit: int) -> dict[str, Any] | None:
    if record is None:
        return None
    texts = {name: json_bytes(*_cut_bytes(getattr(record, name), limit)) for name in ("key", "value")}
    headers = ", ".join(_header(key, value, limit) for key, value in record.headers)
    texts["headers"] = f"[{headers}]"
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **{name: json.loads(text) for name, text in texts.items()},
    }
