"""Delta tables: files and positions in one commit of the table's log.

The positions are transaction identifiers (``txn`` actions). Unlike commit information, they survive the clean-up of the
table's log, and Delta refuses a commit if another commit has since written the same identifier.

- ``kbatch``: counts the commits of exports, so that two concurrent exports always conflict.
- ``kbatch.base``: the value of this count at the last overwrite. Positions of earlier bases do not count.
- ``kbatch.run``: the last run, as a number, which identifies a run that was killed after its commit.
- ``kbatch.<base>:<topic>-<partition>``: the next offset.
- ``kbatch.<base>.<topic id>:<topic>-<partition>``: the fingerprint of the log, in 63 bits. The id may be ``unknown``.
  From the highest bits: one more than the leader epoch (15 bits), the `checksum_bits` of the batch before the position
  (24 bits), and the checksum of its last record (24 bits). Each is 0 if it is unknown, or if the leader epoch has more
  bits. The fingerprint is -1 if the topic was recreated with another id.

A commit of 100,000 files takes 370 MiB of memory in the library, and about 100 MiB more for each identifier per
position.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

import pyarrow as pa

from kbatch.errors import LogDirectoryError
from kbatch.extras import require
from kbatch.plan.positions import CHECKSUM_BITS, Position, checksum_bits
from kbatch.sinks.commits import Commit, CommittedFile, DataFileName, LogName, OutputState, TableCommitError
from kbatch.sinks.delta_log import read_identifiers
from kbatch.sinks.files import HIVE_NULL, WrittenFile
from kbatch.sinks.offset_ranges import OFFSETS_KEY, commit_metadata
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.schema_changes import SchemaChange, SchemaUnion, union_of
from kbatch.sinks.table_target import accepted_run, columns_differ, table_changed, table_failure

__all__ = ["DeltaTable", "delta_storage"]

_COUNT_ID = "kbatch"
_BASE_ID = "kbatch.base"
_UNKNOWN_ID = "unknown"
# The fingerprint for an id that the topic no longer has.
_OBSOLETE_ID = -1
_MAX_EPOCH = (1 << 63 - 2 * CHECKSUM_BITS) - 2
# The identifier of the last run, and the key in the commit information.
_RUN_ID = _RUN_KEY = "kbatch.run"
# With this number of files or more, a new table is created before the commit that adds the files: if the commit created
# the table too, the library would hold two more copies of all actions, 170 MiB for 100,000 files.
_MANY_FILES = 20_000
# Marks the commit that creates the table without files.
_EMPTY_KEY = "kbatch.empty"
# A filter that matches no partition: an overwrite with it removes no file.
_NO_PARTITION = [("partition", "=", "0"), ("partition", "=", "1")]
_LOCAL_TIME = re.compile('"(type|elementType|keyType|valueType)": ?"timestamp_ntz"')
_NO_WIDENING = "deltalake does not write tables with type widening"


class DeltaTable:
    """A Delta table at the directory of an export.

    Parameters
    ----------
    out : OutputPlace
    by_day : bool
    """

    def __init__(self, out: OutputPlace, by_day: bool) -> None:
        self._lib: Any = require("deltalake", "delta", "format delta")
        self._out = out
        self._partition_by = ["topic", "partition", *(["date"] if by_day else [])]
        self._options = delta_storage(out.storage)
        self._count: int | None = None
        self._base = 0
        self._known: dict[tuple[str, int], Position] = {}
        # The topic ids with which each position was written.
        self._ids: dict[tuple[str, int], list[str]] = {}
        # Kept from `check_partitions` to `check_columns`, because opening a table reads all of its log.
        self._opened: Any = None

    @property
    def title(self) -> str:
        """The table, for messages."""
        return f"{self._out.url}: the Delta table"

    def check_partitions(self) -> None:
        """Raise an error if the table has other partition columns."""
        self._opened = table = self._open()
        if table is None:
            return
        found = table.metadata().partition_columns
        if found != self._partition_by:
            raise LogDirectoryError(
                f"{self._out.url}: a Delta table partitioned by {', '.join(found) or 'nothing'}, not by "
                f"{', '.join(self._partition_by)}",
                source=self._out.url,
            )

    def check_columns(self, schema: pa.Schema, *, replace: bool) -> list[SchemaChange]:
        """Return how the columns change; raise if the table's rules do not allow it."""
        table, self._opened = self._opened, None
        return [] if table is None or replace else self._union(table, schema).changes

    def _union(self, table: Any, schema: pa.Schema) -> SchemaUnion:
        present, given = (pa.schema(each.to_arrow()) for each in (table.schema(), self._schema(schema)))
        union = union_of(present, given, same_types=_NO_WIDENING)
        if union.differing:
            raise columns_differ(f"{self.title} has", union)
        return union

    def exists(self) -> bool:
        """Whether there is a table."""
        return bool(self._lib.DeltaTable.is_deltatable(self._out.url, storage_options=self._options))

    def schema(self) -> pa.Schema | None:
        """Return the columns of the table; None without a table."""
        return None if self._opened is None else pa.schema(self._opened.schema().to_arrow())

    def has_run(self, run: str) -> bool:
        """Whether the table has the files of a run."""
        table = self._open()
        if table is None:
            return False
        if table.transaction_version(_RUN_ID) == _run_number(run):
            return True
        marked = any(each.get(_RUN_KEY) == run for each in table.history())
        return marked or any(f"/run-{run}/" in uri for uri in table.file_uris())

    def load(self, logs: Sequence[LogName]) -> OutputState:
        """Return the positions of logs."""
        if self._opened is None or not self.exists():
            self._opened = self._open()
        table = self._opened
        if table is None:
            return OutputState(False, {})
        table.update_incremental()
        self._count = table.transaction_version(_COUNT_ID)
        if self._count is None:
            # If a run is killed after it has created the table but before its commit, the table is empty.
            is_empty = table.version() == 0 and _EMPTY_KEY in table.history(1)[0]
            return OutputState(not is_empty, None if table.file_uris() else {})
        self._base = table.transaction_version(_BASE_ID) or 0
        found = read_identifiers(self._out, table.version(), [_RUN_ID, *_prefixes(self._base)])
        fingerprints = self._fingerprints(found)
        for log in logs:
            position = self._position(found, log, fingerprints.get(f"{log.topic}-{log.partition}", {}))
            if position is not None:
                self._known[log.topic, log.partition] = position
        return OutputState(True, dict(self._known), _run_of_number(found.get(_RUN_ID)))

    def _fingerprints(self, found: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return the fingerprint of each log for each topic id that is not obsolete, by topic-partition."""
        fingerprints: dict[str, dict[str, int]] = {}
        begin = f"kbatch.{self._base}."
        for identifier, fingerprint in found.items():
            if identifier.startswith(begin) and fingerprint != _OBSOLETE_ID:
                topic_id, _, name = identifier.removeprefix(begin).partition(":")
                fingerprints.setdefault(name, {})[topic_id] = fingerprint
        return fingerprints

    def _position(self, found: Mapping[str, int], log: LogName, fingerprints: Mapping[str, int]) -> Position | None:
        next_offset = found.get(_app(self._base, log.topic, log.partition))
        if next_offset is None:
            return None
        self._ids[log.topic, log.partition] = list(fingerprints)
        ids = [each for each in fingerprints if each != _UNKNOWN_ID]
        topic_id = log.topic_id if log.topic_id in ids else ids[-1] if ids else None
        # The commit of a position writes the same fingerprint for all ids that are not obsolete.
        epoch, batch_crc, record_crc = _parse_fingerprint(next(iter(fingerprints.values()), 0))
        return Position(next_offset, epoch, topic_id, batch_crc, record_crc)

    def commit(self, run: str, commit: Commit) -> None:
        """Add or replace the files, with the positions, in one transaction."""
        from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

        actions: Any = _Created(lambda: map(self._action, commit.files), len(commit.files))
        count = sum(1 for _ in self._identifiers(run, commit))
        transactions: Any = _Created(lambda: starmap(Transaction, self._identifiers(run, commit)), count)
        properties = CommitProperties(
            custom_metadata={_RUN_KEY: run, **commit_metadata(commit.offsets)},
            app_transactions=transactions,
            max_commit_retries=15,
        )
        schema = self._schema(commit.schema)
        try:
            table = self._open()
            if table is None and len(commit.files) < _MANY_FILES:
                create_table_with_add_actions(
                    self._out.url,
                    schema,
                    actions,
                    mode="error",
                    partition_by=self._partition_by,
                    storage_options=self._options,
                    commit_properties=properties,
                )
            else:
                self._add(self._create(schema) if table is None else table, commit, actions, properties)
        except TableCommitError:
            raise
        except Exception as error:
            accepted = accepted_run(self, run)
            if accepted is True:
                return
            if accepted is False and ("oncurrent transaction" in str(error) or "already exists" in str(error)):
                raise table_changed(self.title) from error
            raise table_failure(self.title, error, unknown=accepted is None) from error

    def _add(self, table: Any, commit: Commit, actions: Any, properties: Any) -> None:
        """Add or replace the files of an existing table, and add columns to it."""
        if table.transaction_version(_COUNT_ID) != self._count:
            raise table_changed(self.title)
        union = None if commit.replace else self._union(table, commit.schema)
        changes = union is not None and bool(union.changes)
        schema = self._schema(commit.schema) if union is None else self._lib.Schema.from_arrow(union.schema)
        self._allow_types(table, schema)
        table.create_write_transaction(
            actions,
            # Only an overwrite can change the columns in the transaction that adds the files.
            mode="overwrite" if commit.replace or changes else "append",
            schema=schema,
            partition_by=self._partition_by,
            partition_filters=_NO_PARTITION if changes else None,
            commit_properties=properties,
        )

    def contents(self) -> tuple[str | None, list[DataFileName]]:
        """Return the run that committed last, and the data files."""
        table = self._open()
        if "deletionVectors" in (table.protocol().reader_features or ()):
            raise LogDirectoryError(
                f"{self.title} may have deletion vectors, which kbatch does not read: remove them and the table "
                "feature (REORG TABLE ... APPLY (PURGE), ALTER TABLE ... DROP FEATURE deletionVectors)",
                source=self._out.url,
            )
        actions = pa.table(table.get_add_actions(flatten=True))
        columns = actions.select(["partition.topic", "partition.partition", "path"]).columns
        files = list(starmap(DataFileName, zip(*(each.to_pylist() for each in columns), strict=True)))
        return _run_of_number(table.transaction_version(_RUN_ID)), files

    def commit_offsets(self, run: str) -> str | None:
        """Return the offsets in the commit information of a run."""
        table = self._open()
        found: Iterator[str | None] = (each.get(OFFSETS_KEY) for each in table.history() if each.get(_RUN_KEY) == run)
        return next(found, None)

    def _allow_types(self, table: Any, schema: Any) -> None:
        """Enable the table feature that columns of local times need; it has no other effect."""
        feature = self._lib.TableFeatures.TimestampWithoutTimezone
        if _LOCAL_TIME.search(schema.to_json()) and "timestampNtz" not in (table.protocol().writer_features or ()):
            table.alter.add_feature(feature, allow_protocol_versions_increase=True)

    def _create(self, schema: Any) -> Any:
        """Create the table without files."""
        from deltalake.transaction import CommitProperties

        return self._lib.DeltaTable.create(
            self._out.url,
            schema,
            partition_by=self._partition_by,
            storage_options=self._options,
            commit_properties=CommitProperties(custom_metadata={_EMPTY_KEY: "true"}),
        )

    def _identifiers(self, run: str, commit: Commit) -> Iterator[tuple[str, int]]:
        """Yield the transaction identifiers of the run, and of the positions that change, with their versions."""
        count = (self._count or 0) + 1
        fresh = commit.replace or self._count is None
        base = count if fresh else self._base
        yield _COUNT_ID, count
        yield _RUN_ID, _run_number(run)
        if fresh:
            yield _BASE_ID, base
        for (topic, partition), position in commit.positions.items():
            if fresh or self._known.get((topic, partition)) != position:
                fingerprint = _fingerprint(position)
                yield _app(base, topic, partition), position.next_offset
                # Exports with and without the id may alternate.
                own = [position.topic_id or _UNKNOWN_ID]
                for each in dict.fromkeys(own if fresh else [*self._ids.get((topic, partition), []), *own]):
                    is_other = position.topic_id not in (None, each) and each != _UNKNOWN_ID
                    yield _app(base, topic, partition, each), _OBSOLETE_ID if is_other else fingerprint

    def _action(self, file: CommittedFile) -> Any:
        from deltalake.transaction import AddAction

        values: dict[str, str | None] = {"topic": file.topic, "partition": str(file.partition)}
        if "date" in self._partition_by:
            values["date"] = self._date(file)
        now = int(time.time() * 1000)
        return AddAction(file.name, file.written.file_bytes, values, now, True, _stats(file.written))

    def _date(self, file: CommittedFile) -> str | None:
        date = file.written.date
        if date is not None and date.startswith(("+", "-")):
            raise TableCommitError(
                f"{file.topic}-{file.partition}, offset {file.written.first_offset}: a timestamp of the day {date}, "
                "which a Delta table cannot represent; write it without by_day"
            )
        return None if date == HIVE_NULL else date

    def _open(self) -> Any:
        if not self.exists():
            return None
        return self._lib.DeltaTable(self._out.url, storage_options=self._options)

    def _schema(self, schema: pa.Schema) -> Any:
        kinds = {"topic": pa.string(), "partition": pa.int32(), "date": pa.date32()}
        columns = pa.schema([*schema, *((name, kinds[name]) for name in self._partition_by)])
        return self._lib.Schema.from_arrow(columns)


class _Created(Sequence[Any]):
    """Objects that deltalake copies one by one. Each is created only when it is copied, to save memory."""

    def __init__(self, create: Callable[[], Iterator[Any]], count: int) -> None:
        self._create = create
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return self._create()

    def __getitem__(self, index: Any) -> Any:
        return list(self._create())[index]


def _run_number(run: str) -> int:
    """Return the id of a run as a version number, whose bytes are the characters of the id."""
    return int.from_bytes(run.encode("ascii")[:8], "big")


def _run_of_number(number: int | None) -> str | None:
    """Return the run id of a version number."""
    return None if number is None else number.to_bytes(8, "big").lstrip(b"\0").decode("ascii", "replace")


def _app(base: int, topic: str, partition: int, topic_id: str | None = None) -> str:
    """Return the identifier of a position, or with a topic id, of the log's fingerprint."""
    return f"kbatch.{base}{'' if topic_id is None else f'.{topic_id}'}:{topic}-{partition}"


def _fingerprint(position: Position) -> int:
    """Return the fingerprint of the log of a position."""
    epoch = -1 if position.leader_epoch is None or position.leader_epoch > _MAX_EPOCH else position.leader_epoch
    packed = epoch + 1
    for crc in (position.batch_crc, position.record_crc):
        packed = packed << CHECKSUM_BITS | (0 if crc is None else checksum_bits(crc))
    return packed


def _parse_fingerprint(packed: int) -> tuple[int | None, int | None, int | None]:
    """Return the leader epoch, and the checksums of the batch and the record before a position."""
    mask = (1 << CHECKSUM_BITS) - 1
    epoch = (packed >> 2 * CHECKSUM_BITS) - 1
    return None if epoch < 0 else epoch, packed >> CHECKSUM_BITS & mask or None, packed & mask or None


def _prefixes(base: int) -> list[str]:
    """Return the prefixes of the identifiers of positions and of fingerprints."""
    return [f"kbatch.{base}:", f"kbatch.{base}."]


def _stats(file: WrittenFile) -> str:
    minimum: dict[str, Any] = {"offset": file.first_offset}
    maximum: dict[str, Any] = {"offset": file.last_offset}
    for bounds, value in ((minimum, file.first_timestamp), (maximum, file.last_timestamp)):
        # The format supports only years of four digits.
        if value is not None and -62_135_596_800_000_000 <= value < 253_402_300_800_000_000:
            text = str(pa.scalar(value // 1000, pa.timestamp("ms")))
            bounds["timestamp"] = text.replace(" ", "T") + "Z"
    stats = {
        "numRecords": file.rows,
        "minValues": minimum,
        "maxValues": maximum,
        "nullCount": {"offset": 0, "timestamp": file.null_timestamps},
    }
    return json.dumps(stats, separators=(",", ":"))


def delta_storage(storage: Mapping[str, str]) -> dict[str, str] | None:
    """Return options of pyarrow's S3FileSystem under their names in delta-rs."""
    names = {
        "access_key": "AWS_ACCESS_KEY_ID",
        "secret_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
        "region": "AWS_REGION",
        "endpoint_override": "AWS_ENDPOINT_URL",
    }
    options = {names.get(name, name): value for name, value in storage.items() if name != "scheme"}
    scheme = storage.get("scheme", "https")
    endpoint = options.get("AWS_ENDPOINT_URL")
    if endpoint is not None and "://" not in endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint = f"{scheme}://{endpoint}"
    if endpoint is not None and endpoint.startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    return options or None
