"""Reads all transaction identifiers (``txn`` actions) of a Delta table in one pass over its log.

deltalake reads the whole log for each identifier. As the Delta protocol defines, the files of a version are its newest
complete checkpoint and the commits after it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet

from kbatch.errors import LogDirectoryError
from kbatch.sinks.outputs import OutputPlace

__all__ = ["log_files", "read_identifiers"]

_COMMIT_NAME = re.compile(r"(\d{20})\.json")
# Names of checkpoints: classic, one of several parts, or with a UUID (V2, whose sidecars have no identifiers).
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})\.parquet|\.[^.]+\.(?:parquet|json)|\.parquet)")
_ACTION = pa.struct([("appId", pa.string()), ("version", pa.int64())])
# Bytes of the actions of a commit that are parsed together.
_CHUNK = 4 << 20


def read_identifiers(table: OutputPlace, version: int, prefixes: Sequence[str]) -> dict[str, int]:
    """Return the versions of the identifiers that begin with one of the prefixes, at a version of the table.

    Identifiers of a checkpoint come first, then others in the order of the commits that wrote them last. Identifiers
    expire only with a table property and a ``lastUpdated``, which kbatch does not write.

    Raises
    ------
    LogDirectoryError
        If a file of the log is missing or damaged.
    """
    log = table.at("_delta_log")
    found: dict[str, int] = {}
    for name in log_files(log.entries(), version, log.url):
        try:
            for actions in _actions(log, name):
                ids, versions = actions.flatten()
                chosen = pc.starts_with(ids, prefixes[0])
                for prefix in prefixes[1:]:
                    chosen = pc.or_(chosen, pc.starts_with(ids, prefix))
                pairs = (each.filter(chosen).to_pylist() for each in (ids, versions))
                for identifier, each in zip(*pairs, strict=True):
                    found.pop(identifier, None)
                    found[identifier] = each
        except (ValueError, OSError) as error:
            raise LogDirectoryError(
                f"{log.url}/{name}: not a readable file of a Delta table's log ({type(error).__name__}: {error}); "
                "restore it from a copy",
                source=log.url,
            ) from error
    return found


def log_files(names: Iterable[str], version: int, url: str) -> list[str]:
    """Return the log files of a version of the table: its newest complete checkpoint, and the commits after it.

    Raises
    ------
    LogDirectoryError
        If a commit is missing.
    """
    commits: dict[int, str] = {}
    checkpoints: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if commit := _COMMIT_NAME.fullmatch(name):
            commits[int(commit[1])] = name
        elif (found := _CHECKPOINT.fullmatch(name)) and int(found[1]) <= version:
            # A checkpoint of several parts is incomplete if a part is missing; any other is complete by itself.
            parts = int(found[3] or 1)
            files = checkpoints.setdefault((int(found[1]), parts), [])
            files[:] = [*files, name] if found[3] else [name]
    complete = [(at, files) for (at, parts), files in checkpoints.items() if len(files) == parts]
    begin, chosen = max(complete, default=(-1, []))
    for number in range(begin + 1, version + 1):
        if number not in commits:
            raise LogDirectoryError(
                f"{url}/{number:020d}.json: missing, although no later checkpoint has its actions; restore it from a "
                "copy",
                source=url,
            )
    return [*sorted(chosen), *(commits[number] for number in range(begin + 1, version + 1))]


def _actions(log: OutputPlace, name: str) -> Iterator[pa.StructArray]:
    """Yield the ``txn`` actions of a file, without nulls."""
    with log.open(name) as file:
        if name.endswith(".parquet"):
            parquet = pyarrow.parquet.ParquetFile(file)
            if "txn" in parquet.schema_arrow.names:
                for batch in parquet.iter_batches(columns=["txn.appId", "txn.version"]):
                    yield batch.column("txn").drop_null()
            return
        with io.BufferedReader(file, 1 << 20) as buffered:
            for lines in _json_chunks(line for line in buffered if b'"txn"' in line):
                yield _parsed_actions(lines)


def _json_chunks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of lines of about `_CHUNK` bytes."""
    chunk: list[bytes] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size > _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _parsed_actions(lines: Sequence[bytes]) -> pa.StructArray:
    # A line that is longer than a block would be an error.
    block = max(1 << 20, 2 * max(map(len, lines)))
    table = pyarrow.json.read_json(
        pa.BufferReader(b"".join(lines)),
        read_options=pyarrow.json.ReadOptions(block_size=block),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("txn", _ACTION)]), unexpected_field_behavior="ignore"
        ),
    )
    return table.column("txn").combine_chunks().drop_null()
