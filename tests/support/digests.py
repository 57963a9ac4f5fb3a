"""Digests of results that must not change: reading damaged input in every way, and all kinds of output (`written`).

``tests/golden/digests`` holds the inputs (``inputs.json``) and a digest for each group of cases (``digests.json``). The
digests were computed with an earlier release. This module uses only the public API, so it runs with any version.
`test_digests` compares the digests. Run this file to work with them:

    python tests/support/digests.py --list                        the groups
    python tests/support/digests.py --show GROUP CASE             one result in full
    python tests/support/digests.py --dump FILE [GROUP ...]       the digest of each case, to compare with diff
    python tests/support/digests.py --compare PYTHON [GROUP ...]  the cases that differ under another checkout's python
    python tests/support/digests.py --compare PYTHON --accept REASON [GROUP ...]
                                                          ... and list them in changes.tsv as intended

GROUP is a pattern such as ``'decode *'``. ``--full`` runs all cases instead of the sample of the ordinary test run.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import hashlib
import itertools
import json
import lzma
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kbatch

GOLDEN = Path(__file__).parents[1] / "golden"
DIRECTORY = GOLDEN / "digests"

ISOLATIONS = ("read_uncommitted", "read_committed")
ON_ERROR = ("raise", "stop", "skip")
CRC = ("verify", "mark", "skip")
OPTIONS = [
    {"isolation": isolation, "on_error": on_error, "crc": crc}
    for isolation, on_error, crc in itertools.product(ISOLATIONS, ON_ERROR, CRC)
]
# In each rotation, a case runs with one of the 18 combinations of options. The ordinary test run does the first
# rotation.
ROTATIONS = len(OPTIONS)

BATCH_FIELDS = [
    "position",
    "size",
    "status",
    "magic",
    "base_offset",
    "last_offset",
    "last_offset_delta",
    "record_count",
    "attributes",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "partition_leader_epoch",
    "crc",
]


class Case(NamedTuple):
    """One computation: its name contains the mutation and the options, and `result` returns the result to compare."""

    name: str
    result: Callable[[], Any]


# -- inputs


@functools.cache
def inputs() -> dict[str, list[bytes]]:
    """Return the entries of each input by name; `digest_inputs` made them."""
    with (DIRECTORY / "inputs.json").open() as file:
        return {name: [bytes.fromhex(entry) for entry in entries] for name, entries in json.load(file).items()}


@functools.cache
def vectors() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted((GOLDEN / "vectors").glob("*.bin"))}


# -- results


def reason_class(reason: str) -> str:
    """Return the class of a loss's reason, which does not depend on the exact wording."""
    patterns = {
        "checksum": r"checksum",
        "limit": r"decompresses to more|batch of \d+ bytes, a",
        "framing": r"length field|magic is|no batch",
        "truncated": r"is cut|ends within|incomplete",
        "not read": r"^not read",
        "count": r"record count|records, \d+ present|remain after the last",
        "codec": r"codec id",
    }
    return next((name for name, pattern in patterns.items() if re.search(pattern, reason)), "other")


def rows_of(tables: Iterable[kbatch.RecordTable]) -> dict[str, list[Any]]:
    """Return the batches, the records with headers, and the losses of all tables together."""
    batches: list[Any] = []
    records: list[Any] = []
    losses: list[Any] = []
    for table in tables:
        data = table.data
        first = len(batches)
        batches += table.batches[BATCH_FIELDS].tolist()
        headers: dict[int, list[Any]] = {}
        if table.records["header_count"].any():
            for record, key_pos, value_pos, key_len, value_len in table.headers.tolist():
                key = data[key_pos : key_pos + key_len].tobytes()
                value = None if value_len < 0 else data[value_pos : value_pos + value_len].tobytes()
                headers.setdefault(record, []).append((key, value))
        columns = (table.records["offset"].tolist(), table.records["timestamp"].tolist(), table.keys(), table.values())
        of_batch = (table.records["batch"] + first).tolist()
        records += [
            (batch, *row, headers.get(i, [])) for i, (batch, *row) in enumerate(zip(of_batch, *columns, strict=True))
        ]
        losses += table.losses
    # The status of a bad batch is the class of its loss; a loss without a batch row is classified by its reason.
    statuses = {row[0]: kbatch.BatchStatus(row[2]).name for row in batches}
    losses = [(loss.position, loss.length, statuses.get(loss.position) or reason_class(loss.reason)) for loss in losses]
    return {"batches": batches, "records": records, "losses": losses}


def failure(error: kbatch.KbatchError) -> dict[str, Any]:
    return {"error": type(error).__name__, "position": error.position}


def transactions_of(table: kbatch.RecordTable) -> dict[str, Any]:
    return {"pending": [tuple(each) for each in table.pending], "last_stable_offset": table.last_stable_offset}


def decoded(data: bytes, options: dict[str, Any]) -> dict[str, Any]:
    try:
        table = kbatch.decode(data, **options)
    except kbatch.KbatchError as error:
        return failure(error)
    return {**rows_of([table]), "consumed": table.consumed, **transactions_of(table)}


def read_log(directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Read a log; an error is returned alone, because the number of tables before it depends on window sizes."""
    segments: dict[str, list[kbatch.RecordTable]] = {}
    try:
        for table in kbatch.Log(directory).tables(**options):
            segments.setdefault(Path(table.source or "").name, []).append(table)
    except kbatch.KbatchError as error:
        return failure(error)
    return {name: rows_of(tables) for name, tables in segments.items()}


def streamed(data: bytes, at: int, options: dict[str, Any]) -> dict[str, Any]:
    """Feed `data` in two parts and flush after each."""
    decoder = kbatch.StreamDecoder(**options)
    tables: list[kbatch.RecordTable] = []
    error: dict[str, Any] = {}
    try:
        for chunk in (data[:at], data[at:]):
            decoder.feed(chunk)
            tables.append(decoder.flush())
        # One flush returns the batches before damage, and the next one raises the error.
        tables.append(decoder.flush())
        tables.append(decoder.finish())
    except kbatch.KbatchError as found:
        error = failure(found)
    return {**rows_of(tables), **error}


def expected_of_stream(data: bytes, options: dict[str, Any]) -> dict[str, Any]:
    """Return the result that a stream of `data` must have: the result of `decode`, changed by the end of the stream.

    An incomplete last batch, which `decode` ignores, is a loss or an error at the end of a stream. Before an error, a
    stream has returned all earlier batches except the ones that a transaction withholds.
    """
    error: dict[str, Any] = {}
    try:
        table = kbatch.decode(data, **options)
        end = table.consumed
    except kbatch.KbatchError as found:
        error = failure(found)
        end = found.position or 0
        table = kbatch.decode(data, **options | {"on_error": "stop"})
    result = rows_of([table])
    if not error and end < len(data):
        too_long = states_too_long(data[end:])
        if options["on_error"] == "raise":
            error = {"error": "LimitExceededError" if too_long else "TruncatedBatchError", "position": end}
        elif not (result["losses"] and sum(result["losses"][-1][:2]) >= len(data)):
            result["losses"].append((end, len(data) - end, "limit" if too_long else "truncated"))
    if error:
        undecided = kbatch.BatchStatus.UNDECIDED
        kept = [i for i, row in enumerate(result["batches"]) if row[0] < end and row[2] != undecided]
        renumbered = {old: new for new, old in enumerate(kept)}
        result["batches"] = [result["batches"][i] for i in kept]
        result["records"] = [(renumbered[row[0]], *row[1:]) for row in result["records"] if row[0] in renumbered]
        result["losses"] = []
    return {**result, **error}


def states_too_long(entry: bytes) -> bool:
    """Return whether the header of an incomplete entry states a size above the default limit of a batch."""
    return len(entry) >= 17 and int.from_bytes(entry[8:12], "big") + 12 > kbatch.Limits().max_decompressed_bytes


def ascends(data: bytes, options: dict[str, Any]) -> bool:
    """Return whether the offsets of batches ascend.

    If they do not, a transaction that begins later may withhold earlier rows, which a stream may have returned already.
    This difference is documented.
    """
    batches = kbatch.decode(data, on_error="skip", crc=options["crc"]).batches
    batches = batches[(batches["status"] == 0) | ((batches["status"] == 1) & (options["crc"] != "verify"))]
    return all((batches["base_offset"] <= batches["last_offset"]).tolist()) and all(
        (batches["last_offset"][:-1] < batches["base_offset"][1:]).tolist()
    )


# -- mutations

Mutated = tuple[str, bytes, int]
# The ordinary test run takes one in this number of mutations, with one of the combinations of options.
SAMPLED = {"decode": 4, "log": 12, "stream": 16, "stream, splits": 2, "stream, vectors": 64}


def is_damaged(name: str) -> bool:
    """Return whether an input is already damaged; its bits are then not flipped."""
    return not name.startswith(("magic", "mixed", "transactions"))


def mutations(name: str, data: bytes) -> Iterator[Mutated]:
    """Yield an input and its mutations: a name, the bytes, and the position at which a stream of them is split."""
    yield "as it is", data, 0
    for size in range(len(data)):
        yield f"cut {size}", data[:size], chosen(f"{name} cut {size}", size + 1)
    for bit in range(0 if is_damaged(name) else 8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield f"flip {bit}", bytes(changed), chosen(f"{name} flip {bit}", len(data) + 1)


def splits(data: bytes) -> Iterator[Mutated]:
    for at in range(len(data) + 1):
        yield f"split {at}", data, at


def chosen(name: str, count: int) -> int:
    """Return a number below `count` that depends only on the name."""
    return zlib.crc32(name.encode()) % count


def cases_of(
    name: str,
    mutated: Iterable[Mutated],
    part: int | None,
    run: Callable[[bytes, int, dict[str, Any]], Any],
    sampled: int,
) -> Iterator[Case]:
    """Yield each mutation with the options of a rotation, or the sample of the ordinary test run if `part` is None."""
    for mutation, data, at in mutated:
        number = chosen(f"{name} {mutation}", ROTATIONS * sampled)
        if part is None and number // ROTATIONS:
            continue
        options = OPTIONS[(number + (part or 0)) % ROTATIONS]
        yield Case(f"{mutation} {' '.join(options.values())}", functools.partial(run, data, at, options))


# -- routes


def run_decode(data: bytes, _at: int, options: dict[str, Any]) -> Any:
    return decoded(data, options)


class LogRoute:
    """Reads bytes as a segment of a log: the last segment, one followed by another, or one with a .txnindex."""

    def __init__(self, directory: Path, layout: str) -> None:
        self.directory = directory / f"{layout}-0"
        self.directory.mkdir()
        self.segment = self.directory / f"{0:020d}.log"
        if layout == "closed":
            entry = inputs()["damage"][0]
            base = 1 << 40
            (self.directory / f"{base:020d}.log").write_bytes(struct.pack(">q", base) + entry[8:])
            # Compaction has removed the offsets between the segments, so they are no loss.
            (directory / "cleaner-offset-checkpoint").write_text(f"0\n1\n{layout} 0 {base}\n")
        if layout == "indexed":
            entries = [(7, 0, 2, 1), (7, 5, 9, 5)]
            index = b"".join(struct.pack(">hqqqq", 0, *each) for each in entries)
            self.segment.with_suffix(".txnindex").write_bytes(index)

    def __call__(self, data: bytes, _at: int, options: dict[str, Any]) -> Any:
        self.segment.write_bytes(data)
        return read_log(self.directory, options)


Group = tuple[str, Iterator[Case]]


def reading_groups(directory: Path, parts: Iterable[int | None]) -> Iterator[Group]:
    """Yield the groups of cases that read, by route, input, and rotation of options or sample."""
    live, closed, indexed = (LogRoute(directory, layout) for layout in ("live", "closed", "indexed"))

    def run_log(data: bytes, at: int, options: dict[str, Any]) -> Any:
        return (live, closed)[zlib.crc32(data) % 2](data, at, options)

    files = [(name, data, 0) for name, data in vectors().items()]
    for part, (route, run) in itertools.product(parts, (("decode", run_decode), ("log", run_log))):
        suffix = "sample" if part is None else part
        for name, entries in inputs().items():
            yield (
                f"{route}, {name}, {suffix}",
                cases_of(name, mutations(name, b"".join(entries)), part, run, SAMPLED[route]),
            )
        yield f"{route}, vectors, {suffix}", cases_of("vectors", files, part, run, 1)
        if route == "log":
            mutated = mutations("transactions", b"".join(inputs()["transactions"]))
            yield (
                f"indexed log, transactions, {suffix}",
                cases_of("transactions", mutated, part, indexed, SAMPLED[route]),
            )


class Comparison(NamedTuple):
    """The result of a stream, and the expected result, from `decode` on the same bytes."""

    found: dict[str, Any]
    expected: dict[str, Any]


def run_stream(data: bytes, at: int, options: dict[str, Any]) -> Comparison | None:
    if options["isolation"] == "read_committed" and not ascends(data, options):
        return None
    return Comparison(streamed(data, at, options), expected_of_stream(data, options))


def stream_groups(parts: Iterable[int | None]) -> Iterator[Group]:
    """Yield the groups of streams, whose results are compared with the results of `decode` and not with digests."""
    files = [
        (f"{name} {split}", data, at)
        for name, data in vectors().items()
        if len(data) <= 300
        for split, data, at in splits(data)
    ]
    for part in parts:
        suffix = "sample" if part is None else part
        for name, entries in inputs().items():
            data = b"".join(entries)
            cases = (
                cases_of(name, splits(data), part, run_stream, SAMPLED["stream, splits"]),
                cases_of(name, mutations(name, data), part, run_stream, SAMPLED["stream"]),
            )
            yield f"stream, {name}, {suffix}", itertools.chain(*cases)
        yield f"stream, vectors, {suffix}", cases_of("vectors", files, part, run_stream, SAMPLED["stream, vectors"])


# -- digests


def digest(result: Any) -> str:
    return hashlib.blake2b(repr(result).encode(), digest_size=6).hexdigest()


def digest_of_group(digests: Iterable[tuple[str, str]]) -> str:
    return digest(list(digests))


def load(name: str) -> Any:
    path = DIRECTORY / name
    return json.loads(path.read_text()) if path.exists() else {}


def save(name: str, content: Any) -> None:
    (DIRECTORY / name).write_text(json.dumps(content, indent=1) + "\n")


class Change(NamedTuple):
    """A case whose result was changed intentionally."""

    group: str
    case: str
    before: str
    after: str
    reason: str


def changes() -> dict[tuple[str, str], Change]:
    """Return the intended changes by group and case.

    ``changes.tsv.xz`` has changes of very many cases, which are not edited again; ``changes.tsv`` takes precedence.
    """
    archive = DIRECTORY / "changes.tsv.xz"
    archived = [Change(*line.split("\t")) for line in lzma.decompress(archive.read_bytes()).decode().splitlines()]
    return {(change.group, change.case): change for change in [*archived, *edited_changes()]}


def edited_changes() -> list[Change]:
    """Return the changes of ``changes.tsv``."""
    return [Change(*line.split("\t")) for line in (DIRECTORY / "changes.tsv").read_text().splitlines()]


def digests_of(group: str, cases: Iterable[Case]) -> list[tuple[str, str]]:
    """Return the digest of each case; a result that is listed as an intended change has the digest from before."""
    listed = changes_of_group().get(group, {})
    found = []
    for case in cases:
        value = digest(case.result())
        change = listed.get(case.name)
        found.append((case.name, change.before if change and change.after == value else value))
    return found


@functools.cache
def changes_of_group() -> dict[str, dict[str, Change]]:
    groups: dict[str, dict[str, Change]] = {}
    for (group, case), change in changes().items():
        groups.setdefault(group, {})[case] = change
    return groups


def differing_streams(cases: Iterable[Case]) -> list[str]:
    """Return the names of the cases in which a stream differs from `decode`."""
    found = []
    for case in cases:
        comparison = case.result()
        if comparison is not None and comparison.found != comparison.expected:
            found.append(case.name)
    return found


# -- commands


def all_groups(directory: Path, parts: Iterable[int | None]) -> Iterator[tuple[str, Iterator[Case]]]:
    parts = list(parts)
    yield from frozen_groups(directory, parts)
    yield from stream_groups(parts)


def frozen_groups(directory: Path, parts: Iterable[int | None]) -> Iterator[Group]:
    """Yield the groups that have a committed digest."""
    from written import writing_groups

    parts = list(parts)
    yield from reading_groups(directory, parts)
    yield from writing_groups(directory, parts)


def committed() -> dict[str, str]:
    """Return the digests by group, without digests of compressed bytes if the library versions differ."""
    from written import libraries

    same = load("libraries.json") == libraries()
    return {group: value for group, value in load("digests.json").items() if same or not group.startswith("bytes")}


def matching(groups: Iterable[tuple[str, Any]], patterns: list[str]) -> Iterator[tuple[str, Any]]:
    for group, cases in groups:
        if not patterns or any(fnmatch.fnmatch(group, pattern) for pattern in patterns):
            yield group, cases


def write(directory: Path, parts: Iterable[int | None]) -> None:
    """Compute and store all digests; run this only with the release whose results must be kept."""
    values: dict[str, str] = {}
    for group, cases in frozen_groups(directory, parts):
        values[group] = digest_of_group((case.name, digest(case.result())) for case in cases)
    from written import libraries

    save("libraries.json", libraries())
    save("digests.json", load("digests.json") | values)


def write_streams(parts: Iterable[int | None]) -> None:
    """List the streams that differ from `decode`; the list may only become shorter."""
    found = {group: differing_streams(cases) for group, cases in stream_groups(parts)}
    listed = {group: names for group, names in load("streams.json").items() if group not in found}
    save("streams.json", listed | {group: names for group, names in found.items() if names})


def dump(directory: Path, parts: Iterable[int | None], patterns: list[str], out: Any) -> None:
    for group, cases in matching(all_groups(directory, parts), patterns):
        for case in cases:
            result = case.result()
            value = digest(result.found if isinstance(result, Comparison) else result)
            print(group, case.name, value, sep="\t", file=out)


def show(directory: Path, parts: Iterable[int | None], patterns: list[str]) -> None:
    group, case_name = patterns
    for _, cases in matching(all_groups(directory, parts), [group]):
        for case in cases:
            if case.name == case_name:
                result = case.result()
                for title, part in result._asdict().items() if isinstance(result, Comparison) else [("result", result)]:
                    print(f"{title}:")
                    for name, rows in part.items():
                        print(f"  {name}: {rows}")


def compare(python: str, reason: str | None, full: bool, patterns: list[str]) -> int:
    """Print the cases whose digests differ from the results of another checkout's interpreter, which must be kept."""
    dumps = []
    for interpreter in (python, sys.executable):
        command = [interpreter, __file__, "--dump", "-", *(["--full"] if full else []), *patterns]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        dumps.append({(group, case): value for group, case, value in (line.split("\t") for line in lines)})
    before, after = dumps
    different = [key for key in before if after.get(key) != before[key]]
    for group, case in different:
        print(group, case, sep="\t")
    print(f"{len(different)} of {len(before)} cases differ")
    if reason is not None:
        archived = changes()
        listed = {(each.group, each.case): each for each in edited_changes()}
        for key in different:
            # If a case changes again, its first digest stays, because the committed group digest contains it.
            first = archived[key].before if key in archived else before[key]
            listed[key] = Change(*key, first, after[key], reason)
        lines = ["\t".join(listed[key]) + "\n" for key in sorted(listed)]
        (DIRECTORY / "changes.tsv").write_text("".join(lines))
    return bool(different)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true")
    action.add_argument("--show", action="store_true")
    action.add_argument("--dump", metavar="FILE")
    action.add_argument("--compare", metavar="PYTHON")
    action.add_argument("--write-inputs", action="store_true", help="build new inputs, which invalidates all digests")
    action.add_argument("--write", action="store_true", help="compute the digests; only with the release to keep")
    action.add_argument("--write-streams", action="store_true", help="list the streams that differ from decode")
    parser.add_argument("--accept", metavar="REASON")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("patterns", nargs="*", metavar="GROUP")
    args = parser.parse_args()
    parts: list[int | None] = [None, *range(ROTATIONS)] if args.full else [None]
    if args.compare:
        return compare(args.compare, args.accept, args.full, args.patterns)
    if args.write_inputs:
        import digest_inputs

        digest_inputs.write(DIRECTORY / "inputs.json")
        return 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if args.list:
            for group, _ in matching(all_groups(directory, parts), args.patterns):
                print(group)
        elif args.show:
            show(directory, [None, *range(ROTATIONS)], args.patterns)
        elif args.dump:
            with sys.stdout if args.dump == "-" else open(args.dump, "w") as out:
                dump(directory, parts, args.patterns, out)
        elif args.write:
            write(directory, parts)
        elif args.write_streams:
            write_streams(parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
