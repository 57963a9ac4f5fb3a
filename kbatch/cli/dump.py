"""``kbatch dump PATH...``: batches, records and index entries, one per line."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kbatch.cli.arguments import add_command
from kbatch.cli.ranges import RANGES, Ranges, add_ranges, given_ranges
from kbatch.cli.usage import (
    UsageError,
    add_storage_option,
    argument,
    number_argument,
    parse_bytes,
    size_argument,
    storage_options,
)
from kbatch.options import ISOLATION

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
List the contents of segments and their auxiliary files: one line per batch or per record, as JSON or in the format of
Kafka's kafka-dump-log.

PATH is an auxiliary file of a segment (.index, .timeindex, .txnindex, .snapshot), a topic-partition directory (all its
segments), a broker's log directory (all its topic-partitions), or a segment: any other file. - is standard input, a
stream of batches such as a segment.

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
  kbatch dump --format kafka --print-data-log data/orders-0/00000000000000000000.log
  kbatch dump data/orders-0/00000000000000000000.timeindex
  kbatch dump --protocol requests.bin responses.bin              the messages of a captured connection

{RANGES}
--isolation read_committed:
  Lists what a consumer with this isolation level gets: no aborted records, and nothing from the first open transaction
  on. Transaction markers are read from the segments at PATH. If records of open or undecided transactions are withheld,
  they are reported on standard error, and the exit status is 4.

standard input:
  Batches are listed as they arrive. An incomplete batch at the end is not damage. Memory is bounded; read_committed
  also keeps the bytes from the first open transaction on. Offsets can't count back from the end of a stream.

--protocol:
  Each file holds one direction of a connection: messages of Kafka's protocol, each after its length (int32). Each line
  is a message, with its fields by name and its record batches decoded. A response has the version of the request with
  the same correlation id. A message whose API or version is not known has "body", its bytes after the header.

bytes in JSON:
  A key, a value or a header is a string if its bytes are UTF-8 without control characters other than tabs and line
  breaks, {{"base64": "..."}} if they are not, and null for null. With --max-bytes-shown, longer ones are cut to
  {{"text": "...", "size": N}} or {{"base64": "...", "size": N}}. Headers are a list of [key, value].

--format kafka:
  Fields have the names and order of kafka-dump-log (Kafka 4.3). --records is its --deep-iteration. The differences:
  bytes that are not text, or contain a line break, are printed as base64:...; the listing continues after damage; index
  files are listed, but not compared with the log (`kbatch verify` compares them); and standard error has no
  "-1 is followed by ..." for a segment that does not begin at offset 0.

"""


_STATUSES = {
    1: "error, such as a PATH that cannot be read",
    3: "done, but with damage, which is reported on standard error and left out of the listing",
    4: "done without damage, but --isolation read_committed withheld records of open or undecided transactions",
}


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
        help="segment, auxiliary file of one, or directory; a URL of one; or - for standard input",
    )
    add_storage_option(parser)
    parser.add_argument(
        "--protocol",
        action="store_true",
        help="list the messages of a connection: PATH is what a client sent, a second PATH what the broker answered",
    )
    parser.add_argument("--records", action="store_true", help="print one line per record, not per batch")
    parser.add_argument(
        "--format", choices=("json", "kafka"), default="json", help="format of the lines (default: %(default)s)"
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="print JSON lines, which is the default"
    )
    parser.add_argument(
        "--print-data-log",
        action="store_true",
        help="with --format kafka: also print keys and values, which JSON always has; implies --records",
    )
    _add_filters(parser.add_argument_group("which records"))
    parser.add_argument(
        "--control",
        action="store_true",
        help="with --records: also print control records (transaction markers), as --format kafka always does",
    )
    parser.add_argument(
        "--max-bytes-shown",
        metavar="SIZE",
        type=size_argument(0),
        help="in JSON: print at most the first SIZE bytes of a key, a value or a header's value (default: all)",
    )


def _add_filters(group: argparse._ArgumentGroup) -> None:
    add_ranges(group)
    group.add_argument(
        "--tail",
        metavar="N",
        type=number_argument(1),
        help="the last N records of each log, among those that the other options choose; implies --records",
    )
    group.add_argument(
        "--topic",
        metavar="TOPIC",
        dest="topics",
        action="append",
        default=[],
        help="only this topic, or the topics of a glob such as 'orders-*'; may be given more than once",
    )
    group.add_argument(
        "--isolation",
        choices=ISOLATION.choices,
        default="read_uncommitted",
        help="list all records, or those that a consumer with read_committed gets (default: %(default)s)",
    )
    group.add_argument(
        "--key",
        metavar="KEY",
        dest="keys",
        action="append",
        default=[],
        type=argument(parse_bytes),
        help="records with this key: text, hex:00ff or base64:AP8=; may be given more than once, for records with any "
        "of the keys",
    )
    group.add_argument(
        "--producer",
        metavar="ID",
        type=number_argument(-1),
        help="batches of this producer id; -1 for batches without one",
    )
    group.add_argument(
        "--max-records",
        metavar="N",
        type=number_argument(0),
        help="stop after N records, or without --records after N batches",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.cli.inputs import find_inputs
    from kbatch.cli.listing import Listing

    if arguments.paths.count("-") > 1:
        raise UsageError("standard input (-) can be read only once")
    if arguments.protocol:
        return _run_protocol(arguments)
    inputs = find_inputs(
        arguments.paths,
        streams=True,
        topics=arguments.topics,
        storage_options=storage_options(arguments),
    )
    dump = Listing(arguments)
    if "-" in arguments.paths and dump.needs_end:
        raise UsageError("--tail and negative offsets need the end of a log, which standard input (-) does not have")
    try:
        for each in inputs:
            if each.kind == "log":
                dump.log(each)
            elif each.kind == "stream":
                dump.stream(each)
            else:
                dump.side_file(each)
    finally:
        sys.stdout.flush()
    dump.print_gaps()
    return 3 if dump.damaged else 4 if dump.withheld else 0


def _run_protocol(arguments: argparse.Namespace) -> int:
    from kbatch.cli.messages import dump_messages

    of_logs = ("records", "print_data_log", "tail", "producer", "control", "max_records", "keys", "topics")
    is_given = any(getattr(arguments, name) not in (None, False, []) for name in of_logs)
    if (
        is_given
        or given_ranges(arguments) != Ranges()
        or arguments.format != "json"
        or arguments.isolation != "read_uncommitted"
    ):
        raise UsageError("with --protocol, the only other option is --max-bytes-shown")
    if len(arguments.paths) > 2:
        raise UsageError(f"--protocol takes one or two files, got {len(arguments.paths)}")
    return dump_messages(arguments.paths, arguments.max_bytes_shown)
