"""``kbatch consume TOPIC...``: the records of live topics, one per line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kbatch.cli.broker_flags import (
    CLIENT_SETTINGS,
    KAFKA_URL,
    add_broker_flags,
    as_config,
    given_settings,
    live_topics,
    warnings_as_lines,
)
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON_LINES, UsageError, add_flags, given_options, given_values, usage
from kbatch.cli.selection_flags import RANGES, SelectionFlags, add_selection, given_selection
from kbatch.cli.value_flags import add_value_arguments, value_options
from kbatch.options import (
    BOOLEAN,
    ON_ERROR,
    OnError,
    ValueKind,
    choice,
    documented,
    option,
    options_of,
    size,
    whole_number,
)
from kbatch.plan.read_options import ReadOptions

if TYPE_CHECKING:
    from kbatch.log.topics import TopicChoice

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Write the records of live topics as JSON lines, or their values alone: from an offset or time to the end that the topics
have now, or with --follow also the records that arrive later.

TOPIC is a name, or a glob such as 'orders-*'. Internal topics are read only if they are named.

No group is joined and nothing is committed, unless --group names one.
"""

_EPILOG = f"""\
examples:
  kbatch consume orders --bootstrap-server localhost:9092            all records
  kbatch consume orders --bootstrap-server localhost:9092 --tail 10  the last ten of each partition
  kbatch consume orders --config client.properties --follow          new records, until Ctrl-C
  kbatch consume orders --config client.properties --follow --times -1h: --format value
  kbatch consume orders --config client.properties --offsets 1000:1010 --partition 0 | jq .value
  kbatch consume 'orders-*' --config client.properties --values json | jq .value.id
  kbatch consume orders --config client.properties --values avro --value-schema order.avsc --value-framing confluent
  kbatch consume orders --config client.properties --group etl --follow > orders.jsonl

{RANGES}
--follow:
  Begins with the records that are written from now on, unless --offsets, --times or --tail chooses earlier ones
  (--offsets 0: for all), and ends with Ctrl-C.

--group:
  The command joins the group, reads the partitions that are assigned to it from their committed offsets on, and commits
  the offsets of lines after it has written them. A partition without a committed offset begins as the setting
  auto.offset.reset states, by default with the earliest record, or with --follow the latest. With --partition, it
  does not join the group but commits for it. The setting enable.auto.commit=false leaves offsets as they are.

--format value:
  Each value is followed by a line break; null is an empty line. A terminal gets escapes of what is not printable. With
  --values, it is the JSON of the decoded value, and null if it cannot be decoded.

bytes in JSON, --values and --keys:
  As for kbatch dump; see kbatch help dump. Lines have no file and position.

--isolation read_committed:
  Writes the records of committed transactions, up to the last stable offset.

{CLIENT_SETTINGS}"""

_STATUSES = {
    1: "error, such as a topic that does not exist; lines may have been written",
    3: "done, but with damage, which is reported on standard error and left out (--on-error skip or stop)",
}

_LINE_FORMAT = choice("json", "value")
_DECODED = (
    "Write decoded values (keys) as JSON in place of their bytes. json without a schema\nwrites values as they are."
)
_PATTERN = [each for each in options_of(ReadOptions) if each.name == "topic_pattern"]


def _check_group(text: str) -> None:
    if not text.strip():
        raise ValueError("must be the name of a group")


@documented
@dataclass(frozen=True)
class ConsumeFlags:
    """The flags of ``kbatch consume``.

    Attributes
    ----------
    {options}
    """

    follow: bool = option(BOOLEAN, False, flag="--follow", help="wait for new records, until Ctrl-C")
    group: str | None = option(
        ValueKind(str, "etl", _check_group, metavar="NAME"), None, flag="--group",
        help="join this group, and commit what is written",
    )  # fmt: skip
    format: Literal["json", "value"] = option(
        _LINE_FORMAT, "json", flag={"--format": _LINE_FORMAT, "--json": JSON_LINES},
        help="JSON lines, or values alone, each followed by a line break",
    )  # fmt: skip
    control: bool = option(BOOLEAN, False, flag="--control", help="also write control records (transaction markers)")
    max_bytes_shown: int | None = option(
        size(0), None, flag="--max-bytes-shown",
        help="in JSON: write at most the first SIZE bytes of a key, a value or a header's value (default: all)",
    )  # fmt: skip
    tail: int | None = option(
        whole_number(1), None, flag="--tail",
        help="the last N records of each partition, among those that the other options choose",
    )  # fmt: skip
    max_records: int | None = option(whole_number(0), None, flag="--max-records", help="stop after N records")
    on_error: OnError = option(
        ON_ERROR, "raise", flag="--on-error",
        help="at damage, and at formats that cannot be read: fail; stop reading that partition; or skip it. All "
        "losses are listed",
    )  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "consume",
        run,
        help="print the records of live topics",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="name or glob of topics")
    add_broker_flags(parser.add_argument_group("cluster"))
    flags = {each.name: each for each in options_of(ConsumeFlags)}
    group = parser.add_argument_group("which records")
    add_flags(group, _PATTERN)
    add_selection(
        group, "partitions", "offsets", "times", "isolation", "key", reason="the arguments TOPIC choose topics"
    )
    add_flags(group, [flags.pop(name) for name in ("tail", "follow", "max_records", "group")])
    add_value_arguments(parser.add_argument_group("formats of keys and values"), _DECODED)
    add_flags(parser, flags.values())


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    import kbatch
    from kbatch.cli.consume_lines import ConsumeLines
    from kbatch.cli.decoded_values import DecodedValues

    flags, selection = given_options(ConsumeFlags, arguments), given_selection(arguments)
    with usage():
        formats = value_options(arguments)
    topics = _topics(arguments)
    options = _read_options(flags, selection)
    settings = given_settings(arguments)
    if flags.group is not None:
        options |= {"group": flags.group, "auto_commit": settings.enable_auto_commit is not False}
    if flags.format == "value" and ("key" in formats.parsed or flags.max_bytes_shown is not None):
        raise UsageError("--keys and --max-bytes-shown belong to --format json")
    lines = ConsumeLines(
        values_only=flags.format == "value",
        decoded=DecodedValues.of(formats, lambda: live_topics(settings, topics)) if formats.parsed else None,
        max_shown=flags.max_bytes_shown,
        remaining=flags.max_records,
    )
    with (
        warnings_as_lines("consume"),
        kbatch.consume(topics, config=as_config(settings, flags.group), **options) as consumer,
    ):
        if not (consumer.ranges or flags.follow or flags.group):
            raise kbatch.KbatchError(f"no topic matches {arguments.topic_pattern!r}")
        lines.write(consumer, follows=flags.follow, is_member=flags.group is not None)
    return 3 if lines.damaged else 0


def _topics(arguments: argparse.Namespace) -> TopicChoice:
    from kbatch.java_patterns import java_pattern

    url = next((each for each in arguments.topics if each.startswith(KAFKA_URL)), None)
    if url is not None:
        raise UsageError("the address of a cluster is not a TOPIC: --bootstrap-server takes it")
    pattern = given_values(_PATTERN, arguments)[0].get("topic_pattern")
    if not arguments.topics and pattern is None:
        raise UsageError("TOPIC is missing: the name of a topic, or a glob; kbatch topics lists them")
    return [*arguments.topics, *([] if pattern is None else [java_pattern(pattern)])]


def _read_options(flags: ConsumeFlags, selection: SelectionFlags) -> dict[str, Any]:
    """Return the arguments of `kbatch.consume` that choose records."""
    bounds = {
        name: getattr(selection, name)
        for name in ("start_offset", "stop_offset", "start_timestamp", "stop_timestamp")
        if getattr(selection, name) is not None
    }
    if flags.follow and (selection.stop_offset is not None or selection.stop_timestamp is not None):
        raise UsageError("--follow has no end: --offsets A: and --times FROM: choose where it begins")
    if len(selection.key) > 1:
        raise UsageError("--key may be given once")
    if flags.group is not None:
        if (bounds or flags.tail is not None) and selection.partitions is None:
            raise UsageError(
                "--group begins at the committed offsets, so that --offsets, --times and --tail need --partition, with "
                "which the command is no member of the group"
            )
        if flags.max_records is not None:
            raise UsageError("--group commits the offsets of whole batches, in which --max-records may end")
    return {
        **bounds,
        **({"end": None} if flags.follow else {}),
        **({"key": selection.key[0]} if selection.key else {}),
        **({"columns": ["value"]} if flags.format == "value" and not flags.control else {}),
        "partitions": selection.partitions,
        "last": flags.tail,
        "isolation": selection.isolation,
        "include_control": flags.control,
        "on_error": flags.on_error,
    }
