"""Cases of `digests` that write: `encode`, conversion, recompression and compaction.

Compressed bytes depend on the versions of the codecs' libraries. Therefore one group compares the decoded output, and a
second group, "bytes of ...", compares the bytes, if the library versions are the same as for the digests.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import compaction
import numpy as np
import pyarrow as pa
from digests import BATCH_FIELDS, GOLDEN, Case, Group, chosen, failure, inputs, rows_of, vectors

import kbatch
import kbatch.log

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The ordinary test run takes one in this number of cases.
SAMPLED = 12
TIME = 1_700_000_000_000
# Fields that contain the size of the output, or are computed from its bytes.
OF_BYTES = {"position", "size", "crc"}


def libraries() -> dict[str, str]:
    """Return the library versions that compressed bytes depend on."""
    found = {"zlib": zlib.ZLIB_RUNTIME_VERSION}
    for name in ("cramjam", "isal", "lz4", "python-snappy", "zstandard"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


class Output:
    """The output by file name; output that is not a file has the name "bytes"."""

    def __init__(self, files: dict[str, bytes], report: Any = None) -> None:
        self.files = files
        self.report = report

    def content(self) -> Any:
        """Return the decoded output, without the sizes that depend on compression."""
        chosen = [i for i, name in enumerate(BATCH_FIELDS) if name not in OF_BYTES]
        found = {}
        for name, data in self.files.items():
            if name.endswith((".log", "bytes")):
                table = kbatch.decode(data, include_control=True, crc="mark", on_error="skip")
                rows = rows_of([table])
                batches = [[row[i] for i in chosen] for row in rows["batches"]]
                found[name] = [batches, rows["records"], table.consumed == len(data)]
        counts = {
            name: value
            for name, value in (asdict(self.report) if self.report is not None else {}).items()
            if isinstance(value, int) and "bytes" not in name
        }
        return sorted(self.files), found, counts

    def bytes(self) -> Any:
        return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(self.files.items())}


def outcome(make: Callable[[], Output], view: str) -> Any:
    try:
        output = make()
    except (kbatch.KbatchError, TypeError, ValueError) as error:
        return failure(error) if isinstance(error, kbatch.KbatchError) else type(error).__name__
    return output.content() if view == "content" else output.bytes()


# -- encode


def records(count: int) -> dict[str, Any]:
    rng = random.Random(count)
    values = [rng.choice([None, b"", b"v", b"value " * rng.randrange(1, 40)]) for _ in range(count)]
    keys = [rng.choice([None, b"", b"key %d" % i]) for i in range(count)]
    headers = [rng.choice([None, [], [("h", b"1"), ("h", None)], [(b"\xff", b"")]]) for _ in range(count)]
    times = [TIME + rng.randrange(-5000, 5000) for _ in range(count)]
    offsets = list(itertools.accumulate([7, *(rng.choice([1, 1, 5]) for _ in range(count - 1))]))
    return {"values": values, "keys": keys, "headers": headers, "timestamps": times, "offsets": offsets}


def encoded(**options: Any) -> Output:
    return Output({"bytes": kbatch.encode(options.pop("values"), **options)})


def encode_cases() -> Iterator[tuple[str, Callable[[], Output]]]:
    forms: dict[str, Callable[[list[Any]], Any]] = {
        "list": list,
        "binary": lambda rows: pa.array(rows, pa.binary()),
        "large_binary": lambda rows: pa.array(rows, pa.large_binary()),
        "binary_view": lambda rows: pa.array(rows, pa.binary()).cast(pa.binary_view()),
        "chunked": lambda rows: pa.chunked_array([rows[:3], rows[3:]], pa.binary()),
    }
    options: dict[str, dict[str, Any]] = {
        "alone": {},
        "producer": {"producer_id": 5, "producer_epoch": 2, "base_sequence": 2**31 - 3, "transactional": True},
        "append time": {"timestamp_type": "log_append_time", "append_time": TIME},
        "small batches": {"batch_size": 400},
        "few records": {"max_records": 3, "leader_epoch": 9},
        "horizon": {"delete_horizon": TIME + 1},
    }
    for magic, codec, form, name in itertools.product((0, 1, 2), CODECS, forms, options):
        made: dict[str, Any] = records(40)
        made |= {"values": forms[form](made["values"]), "keys": forms[form](made["keys"])}
        made |= {"magic": magic, "codec": codec, **options[name]}
        if magic < 2:
            del made["headers"]
        if magic == 0:
            del made["timestamps"]
        yield f"{magic} {codec} {form}, {name}", functools.partial(encoded, **made)
    plain = {"timestamps": TIME, "base_offset": 3}
    arrays = {
        "text": ["a", "", None, "ü"],
        "fixed": np.array([b"ab", b"cd"], "S2"),
        "integers": np.arange(5, dtype=">i8"),
        "struct": np.zeros(3, [("a", ">i4"), ("b", "u1")]),
        "one column": np.arange(6, dtype=np.uint8).reshape(2, 3),
    }
    for name, values in arrays.items():
        yield f"values {name}", functools.partial(encoded, values=values, **plain)
    for size in (0, 1, 2, 63, 64, 8191, 8192, 70_000):
        yield f"value of {size}", functools.partial(encoded, values=[b"x" * size] * 2, **plain)
    for kind in ("commit", "abort"):
        marker = functools.partial(
            kbatch.encode_marker, kind, producer_id=7, producer_epoch=1, coordinator_epoch=3, offset=9, timestamp=TIME
        )
        yield f"marker {kind}", lambda marker=marker: Output({"bytes": marker()})
    yield (
        "empty",
        lambda: Output({"bytes": kbatch.encode_empty(5, 9, producer_id=3, producer_epoch=0, base_sequence=1)}),
    )


def encode_table_cases() -> Iterator[tuple[str, Callable[[], Output]]]:
    def run(data: bytes, codec: str | None) -> Output:
        table = kbatch.decode(data, include_control=True, on_error="skip")
        return Output({"bytes": kbatch.encode_table(table, codec=codec, omitted="drop")})

    for (name, data), codec in itertools.product(sources(), (None, *CODECS)):
        yield f"{name} {codec}", functools.partial(run, data, codec)


# -- rewriting


@functools.cache
def segments() -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted((GOLDEN / "logs").glob("*/*0.log"))}


def sources() -> list[tuple[str, bytes]]:
    made = [(name, b"".join(entries)) for name, entries in inputs().items()]
    return made + list(vectors().items()) + list(segments().items())


def rewritten(function: Callable[..., bytes], data: bytes, target: Any, **options: Any) -> Output:
    report = kbatch.RewriteReport()
    return Output({"bytes": function(data, target, report=report, **options)}, report)


def rewriting_cases(kind: str) -> Iterator[tuple[str, Callable[[], Output]]]:
    for (name, data), on_error in itertools.product(sources(), ("raise", "skip")):
        if kind == "recompress":
            for codec, size in itertools.product(CODECS, (16384, 100)):
                yield (
                    f"{name} {codec} {size} {on_error}",
                    functools.partial(rewritten, kbatch.recompress, data, codec, batch_size=size, on_error=on_error),
                )
            continue
        for magic, codec, lossy in itertools.product((0, 1, 2), (None, "none", "gzip"), ("raise", "drop")):
            options = {"codec": codec, "lossy": lossy, "on_error": on_error}
            yield (
                f"{name} {magic} {codec} {lossy} {on_error}",
                functools.partial(rewritten, kbatch.convert, data, magic, **options),
            )


def log_output(directory: Path, run: Callable[[Path], Any]) -> Output:
    """Write a log to a new directory, and return its files."""
    out = directory / f"written-{len(list(directory.iterdir()))}" / "t-0"
    out.parent.mkdir()
    report = run(out)
    files = {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}
    return Output(files, report)


def log_cases(kind: str, directory: Path) -> Iterator[tuple[str, Callable[[], Output]]]:
    logs = sorted(path for path in (GOLDEN / "logs").iterdir() if path.is_dir())
    if kind == "compact_log":
        for seed in range(12):
            source = directory / f"random{seed}-0"
            source.mkdir(exist_ok=True)
            for base, data in compaction.random_log(random.Random(seed)).items():
                (source / f"{base:020d}.log").write_bytes(data)
            logs.append(source)
    for log in logs:
        if kind == "compact_log":
            for active, retention in itertools.product((False, True), (0, 86_400_000)):
                run = functools.partial(
                    kbatch.log.compact_log,
                    log,
                    now=TIME + 5000,
                    include_active=active,
                    delete_retention_ms=retention,
                    segment_bytes=20_000,
                )
                yield f"{log.name} {active} {retention}", functools.partial(log_output, directory, run)
        elif kind == "convert_log":
            for magic in (0, 1, 2):
                run = functools.partial(kbatch.log.convert_log, log, magic=magic, lossy="drop", on_error="skip")
                yield f"{log.name} {magic}", functools.partial(log_output, directory, run)
        else:
            for codec in CODECS:
                run = functools.partial(kbatch.log.recompress_log, log, codec=codec, on_error="skip")
                yield f"{log.name} {codec}", functools.partial(log_output, directory, run)


def writing_groups(directory: Path, parts: Iterable[int | None]) -> Iterator[Group]:
    """Yield the groups of cases that write: a sample, and all cases with the first rotation."""
    made: dict[str, Callable[[], Iterator[tuple[str, Callable[[], Output]]]]] = {
        "encode": encode_cases,
        "encode_table": encode_table_cases,
        "convert": functools.partial(rewriting_cases, "convert"),
        "recompress": functools.partial(rewriting_cases, "recompress"),
        "compact_log": functools.partial(log_cases, "compact_log", directory),
        "convert_log": functools.partial(log_cases, "convert_log", directory),
        "recompress_log": functools.partial(log_cases, "recompress_log", directory),
    }
    views = (("content", ""), ("bytes", "bytes of "))
    for (name, cases), (view, title) in itertools.product(made.items(), views):
        if None in parts:
            yield f"{title}{name}, sample", cases_in(cases(), view, SAMPLED)
        if 0 in parts:
            yield f"{title}{name}, all", cases_in(cases(), view, 1)


def cases_in(made: Iterable[tuple[str, Callable[[], Output]]], view: str, one_of: int) -> Iterator[Case]:
    for name, make in made:
        if not chosen(name, one_of):
            yield Case(name, functools.partial(outcome, make, view))
