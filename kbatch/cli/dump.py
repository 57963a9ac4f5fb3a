"""``kbatch dump PATH...``: batches, records and index entries, one per line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kbatch.cli.broker_flags import (
    CLIENT_SETTINGS,
    add_broker_flags,
    as_config,
    given_settings,
    live_brokers,
    live_topics,
    warnings_as_lines,
)
from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import (
    JSON_LINES,
    STORAGE,
    UsageError,
    add_flags,
    given_options,
    given_storage,
    given_values,
    usage,
)
from kbatch.cli.selection_flags import INDEX, RANGES, SelectionFlags, add_selection, given_index, given_selection
from kbatch.cli.value_flags import add_value_arguments, value_options
from kbatch.options import BOOLEAN, choice, documented, option, options_of, size, whole_number

if TYPE_CHECKING:
    from kbatch.cli.dump_listing import Listing
    from kbatch.cli.inputs import Input
    from kbatch.live import ClientSettings
    from kbatch.value_options import ValueOptions

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
List the contents of segments and their auxiliary files: one line per batch or per record, as JSON or in the format of
Kafka's kafka-dump-log.

PATH is an auxiliary file of a segment (.index, .timeindex, .txnindex, .snapshot), a topic-partition directory (all its
segments), a broker's log directory (all its topic-partitions), or a segment: any other file. - is standard input, a
stream of batches such as a segment. kafka://HOST:PORT is a live cluster, whose topics are fetched to the end that they
have now; kbatch consume follows them.

Damage is reported on standard error, and the listing resumes at the next good batch.
"""


_EPILOG = f"""\
examples:
  kbatch dump data/orders-0                                      one line per batch
  kbatch dump --records data/orders-0 | jq -r .key               one line per record
  kbatch dump --records --offsets 1000:1010 data/orders-0        these ten offsets
  kbatch dump --tail 10 data/orders-0                            the last ten records
  kbatch dump --records --times 2024-05-01:2024-05-02 data/orders-0
  kbatch dump --records --key hex:00ff data/orders-0             all records with a key
  kbatch dump --producer 4001 data/orders-0                      all batches of a producer
  kbatch dump --records --topic orders --isolation read_committed data
  zstdcat segment.zst | kbatch dump -                            batches from a pipe
  kbatch dump --values avro --value-schema order.avsc data/orders-0
  kbatch dump --values json --tail 5 data/orders-0 | jq .value.id
  kbatch dump --format kafka --print-data-log data/orders-0/00000000000000000000.log
  kbatch dump --digests 65536 --topic orders kafka://localhost:9092
  kbatch dump data/orders-0/00000000000000000000.timeindex
  kbatch dump --topic orders --tail 10 kafka://localhost:9092 --config client.properties
  kbatch dump --protocol kafka.pcapng                            the messages of captured traffic
  kbatch dump --protocol requests.bin responses.bin              the messages of one connection

{RANGES}
--isolation read_committed:
  Lists what a consumer with this isolation level gets: no aborted records, and nothing from the first open transaction
  on. Transaction markers are read from the segments at PATH. If records of open or undecided transactions are withheld,
  they are reported on standard error, and the exit status is 4.

standard input:
  Batches are listed as they arrive. An incomplete batch at the end is not damage. Memory is bounded; read_committed
  also keeps the bytes from the first open transaction on. Offsets can't count back from the end of a stream.

--protocol:
  PATH is a capture that tcpdump, tshark or Wireshark has written (pcap or pcapng), or one direction of a connection:
  messages of Kafka's protocol, each after its length (int32). Each line is a message, with its fields by name and its
  record batches decoded. A response has the version of the request with the same correlation id. A message whose API
  or version is not known has "body", its bytes after the header. In a capture, ids of topics are shown with the names
  that its metadata have; bytes that were not captured are reported on standard error, with the exit status 3.

kafka://HOST:PORT:
  Lines have no file and no position. Batches without records, which compaction leaves, are not listed. --isolation
  read_committed lists records up to the last stable offset, with the exit status 0. --format kafka, --protocol and the
  index of keys belong to files.

bytes in JSON:
  A key, a value or a header is a string if its bytes are UTF-8 without control characters other than tabs and line
  breaks, {{"base64": "..."}} if they are not, and null for null. With --max-bytes-shown, longer ones are cut to
  {{"text": "...", "size": N}} or {{"base64": "...", "size": N}}. Headers are a list of [key, value].

--values and --keys:
  A decoded value is JSON in place of its bytes: bytes in it as above, times in ISO 8601, decimals as numbers, and NaN
  as a string. A value that cannot be decoded completely is null, or lacks fields; its bytes are then in "value_bad",
  and the reason in "value_error". With framing, "value_schema_id" is the id of its schema. Decoded values are not cut.

--digests N:
  One line for the offsets 0 to N (exclusive), N to 2N, and so on, if they have records. The digest depends on offset,
  timestamp, key, value and headers, and on neither batches nor codecs, so the lines of equal logs are equal on every
  machine. Where the first line differs between two sites, --offsets of that block and a smaller N find the record.

--format kafka:
  Fields have the names and order of kafka-dump-log (Kafka 4.3). --records is its --deep-iteration. The differences:
  bytes that are not text, or contain a line break, are printed as base64:...; the listing continues after damage; index
  files are listed, but not compared with the log (`kbatch verify` compares them); and standard error has no
  "-1 is followed by ..." for a segment that does not begin at offset 0.

{CLIENT_SETTINGS}"""


_STATUSES = {
    1: "error, such as a PATH that cannot be read",
    3: "done, but with damage, which is reported on standard error and left out of the listing",
    4: "done without damage, but --isolation read_committed withheld records of open or undecided transactions",
}


_FORMAT = choice("json", "kafka")


_DECODED_VALUES = (
    "In JSON, print decoded values (keys) in place of their bytes; implies --records. json without a schema\n"
    "prints values as they are."
)


@documented
@dataclass(frozen=True)
class DumpFlags:
    """The flags of ``kbatch dump``.

    Attributes
    ----------
    {options}
    """

    protocol: bool = option(
        BOOLEAN, False, flag="--protocol",
        help="list the messages of captured traffic: PATH is a pcap or pcapng file, or the bytes that a client sent; a "
        "second PATH has those that the broker answered",
    )  # fmt: skip
    records: bool = option(BOOLEAN, False, flag="--records", help="print one line per record, not per batch")
    format: Literal["json", "kafka"] = option(
        _FORMAT, "json", flag={"--format": _FORMAT, "--json": JSON_LINES}, help="format of the lines"
    )
    print_data_log: bool = option(
        BOOLEAN, False, flag="--print-data-log",
        help="with --format kafka: also print keys and values, which JSON always has; implies --records",
    )  # fmt: skip
    control: bool = option(
        BOOLEAN, False, flag="--control",
        help="with --records: also print control records (transaction markers), as --format kafka always does",
    )  # fmt: skip
    max_bytes_shown: int | None = option(
        size(0), None, flag="--max-bytes-shown",
        help="in JSON: print at most the first SIZE bytes of a key, a value or a header's value (default: all)",
    )  # fmt: skip
    digests: int | None = option(
        whole_number(1), None, flag="--digests",
        help="in JSON: in place of the records of each N offsets, print their number and a digest as kbatch diff "
        "--digests has; see below",
    )  # fmt: skip
    tail: int | None = option(
        whole_number(1), None, flag="--tail",
        help="the last N records of each log, among those that the other options choose; implies --records",
    )  # fmt: skip
    producer: int | None = option(
        whole_number(-1, metavar="ID"), None, flag="--producer",
        help="batches of this producer id; -1 for batches without one",
    )  # fmt: skip
    max_records: int | None = option(
        whole_number(0), None, flag="--max-records",
        help="stop after N records, or without --records after N batches",
    )  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "dump",
        run,
        help="list batches, records or index entries",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="segment, auxiliary file of one, or directory; a URL of one; kafka://HOST:PORT; or - for standard input",
    )
    flags = {each.name: each for each in options_of(DumpFlags)}
    group = parser.add_argument_group("which records")
    add_selection(group, "topics", "partitions", "offsets", "times", "isolation", "key")
    add_flags(group, INDEX)
    add_flags(group, [flags.pop(name) for name in ("tail", "producer", "max_records")])
    add_value_arguments(parser.add_argument_group("formats of keys and values"), _DECODED_VALUES)
    add_broker_flags(parser.add_argument_group("cluster"), without_servers=True)
    add_flags(parser, [*STORAGE, *flags.values()])


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.cli.block_digests import BlockDigests
    from kbatch.cli.decoded_values import DecodedValues
    from kbatch.cli.dump_listing import Listing
    from kbatch.cli.inputs import find_inputs

    if arguments.paths.count("-") > 1:
        raise UsageError("standard input (-) can be read only once")
    flags, selection = given_options(DumpFlags, arguments), given_selection(arguments)
    with usage():
        formats = value_options(arguments)
    url = live_brokers(arguments.paths, arguments)
    if flags.protocol:
        if url is not None:
            raise UsageError(f"--protocol belongs to files, not to a cluster, {url}")
        return _run_protocol(arguments.paths, flags, selection, formats)
    if flags.digests is not None and (formats.parsed or flags.format == "kafka"):
        raise UsageError("--digests prints neither decoded values nor --format kafka")
    if formats.parsed and flags.format == "kafka":
        raise UsageError("--values and --keys print JSON, not --format kafka")
    inputs: Sequence[Input] = ()
    settings: ClientSettings | None = None
    if url is None:
        inputs = find_inputs(arguments.paths, selection, given_storage(arguments), streams=True)
    else:
        settings = given_settings(arguments, url)

    def topics() -> list[str]:
        if settings is not None:
            return live_topics(settings, selection.topics or "*")
        return [topic for each in inputs if (topic := each.topic_partition[0]) is not None]

    listing = Listing(
        selection=selection,
        records=flags.records,
        kafka=flags.format == "kafka",
        data=flags.print_data_log,
        control=flags.control,
        tail=flags.tail,
        producer=flags.producer,
        remaining=flags.max_records,
        max_shown=flags.max_bytes_shown,
        decoded=DecodedValues.of(formats, topics) if formats.parsed else None,
        index=given_index(arguments) if url is None else None,
        digests=None if flags.digests is None else BlockDigests(flags.digests),
    )
    try:
        if settings is None:
            _list_files(listing, arguments, inputs)
        else:
            _list_cluster(listing, settings, arguments, flags)
        listing.print_digests()
    finally:
        sys.stdout.flush()
    listing.print_gaps()
    return 3 if listing.damaged else 4 if listing.withheld else 0


def _list_files(listing: Listing, arguments: argparse.Namespace, inputs: Sequence[Input]) -> None:
    if "-" in arguments.paths and listing.needs_end:
        raise UsageError("--tail and negative offsets need the end of a log, which standard input (-) does not have")
    for each in inputs:
        if each.kind == "log":
            listing.log(each)
        elif each.kind == "stream":
            listing.stream(each)
        else:
            listing.side_file(each)


def _list_cluster(listing: Listing, settings: ClientSettings, arguments: argparse.Namespace, flags: DumpFlags) -> None:
    import kbatch

    refused = {
        "--format kafka": flags.format == "kafka",
        "--print-data-log": flags.print_data_log,
        "--index or --no-index": given_values(INDEX, arguments)[0],
        "--storage-option": given_storage(arguments),
    }
    for flag, value in refused.items():
        if value:
            raise UsageError(f"{flag} belongs to files, not to a cluster")
    selection = listing.selection
    if flags.tail is not None and (flags.producer is not None or len(selection.key) > 1):
        raise UsageError("--tail with --producer or several --key belongs to files, not to a cluster")
    with (
        warnings_as_lines("dump"),
        kbatch.consume(selection.topics or "*", config=as_config(settings), **listing.read_options) as consumer,
    ):
        listing.live(consumer)


def _run_protocol(paths: list[str], flags: DumpFlags, selection: SelectionFlags, formats: ValueOptions) -> int:
    from kbatch.cli.dump_protocol import dump_messages

    if (
        formats.parsed
        or selection != SelectionFlags()
        or flags != DumpFlags(protocol=True, max_bytes_shown=flags.max_bytes_shown)
    ):
        raise UsageError("with --protocol, the only other option is --max-bytes-shown")
    if len(paths) > 2:
        raise UsageError(f"--protocol takes one or two files, got {len(paths)}")
    return dump_messages(paths, flags.max_bytes_shown)
