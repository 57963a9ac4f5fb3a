"""Iceberg tables: files and positions in one commit of the catalog.

The positions are table properties, ``kbatch.position.<topic>-<partition>``, set by the transaction that adds the files.
Properties of a snapshot would be lost when the snapshot expires.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from kbatch.errors import LogDirectoryError
from kbatch.escaping import one_line
from kbatch.extras import require
from kbatch.json_text import parse_json
from kbatch.plan.positions import Position
from kbatch.sinks.commits import Commit, CommittedFile, DataFileName, LogName, OutputState, TableCommitError
from kbatch.sinks.files import DAY_MICROSECONDS
from kbatch.sinks.offset_ranges import OFFSETS_KEY, commit_metadata
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.schema_changes import SchemaChange, SchemaUnion, union_of
from kbatch.sinks.table_target import accepted_run, columns_differ, table_changed, table_failure

__all__ = ["IcebergTable"]

_COUNT_PROPERTY = "kbatch.commits"
_POSITION = "kbatch.position."
# The property with the run of a snapshot, and the table property with the last run, because snapshots expire.
_RUN_PROPERTY = "kbatch.run"
_NAME_MAPPING = "schema.name-mapping.default"
_RETRIES = "commit.retry.num-retries"
# The number of attempts to commit if other programs, such as a compaction, commit at the same time.
_ATTEMPTS = 5


class IcebergTable:
    """An Iceberg table whose files are in the directory of an export.

    Parameters
    ----------
    out : OutputPlace
    by_day : bool
    name : str
        The table's name, with its namespace.
    catalog : str or None
        The name of its catalog in pyiceberg's configuration; None is the default catalog.
    """

    def __init__(self, out: OutputPlace, by_day: bool, name: str, catalog: str | None) -> None:
        catalogs: Any = require("pyiceberg.catalog", "iceberg", "format iceberg")
        if "." not in name:
            raise ValueError(f"an Iceberg table's name must have a namespace, such as db.orders, got {name!r}")
        self._out = out
        self._by_day = by_day
        self._name = name
        self._count: str | None = None
        try:
            self._catalog = catalogs.load_catalog(catalog)
        except Exception as error:
            # Any configuration error: a missing driver, an unreachable server, a wrong value.
            raise TableCommitError(
                f"Iceberg catalog {catalog or 'default'!r} cannot be opened: {one_line(error)}"
            ) from error
        # pyiceberg warns about every column without statistics, and keys and values have none.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

    @property
    def title(self) -> str:
        """The table, for messages."""
        return f"Iceberg table {self._name}"

    def check_partitions(self) -> None:
        """Raise an error if the table has other partitions."""
        table = self._open()
        if table is None:
            return
        days = [field for field in table.spec().fields if "day" in str(field.transform)]
        if bool(days) != self._by_day:
            how = "by day: write it with by_day" if days else "without days: write it without by_day"
            raise LogDirectoryError(f"{self.title} is partitioned {how}")

    def check_columns(self, schema: pa.Schema, *, replace: bool) -> list[SchemaChange]:
        """Return how the columns change; raise if the table's rules do not allow it."""
        table = self._open()
        return [] if table is None or replace else self._union(table, schema).changes

    def _union(self, table: Any, schema: pa.Schema) -> SchemaUnion:
        union = _union_of(table.schema().as_arrow(), schema)
        if union.differing:
            raise columns_differ(f"{self.title} has", union)
        return union

    def exists(self) -> bool:
        """Whether there is a table."""
        return self._open() is not None

    def schema(self) -> pa.Schema | None:
        """Return the columns of the table; None without a table."""
        table = self._open()
        return None if table is None else table.schema().as_arrow()

    def _open(self) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def has_run(self, run: str) -> bool:
        """Whether the table has the files of a run."""
        table = self._open()
        if table is not None and table.properties.get(_RUN_PROPERTY) == run:
            return True
        summaries = [] if table is None else [each.summary for each in table.snapshots()]
        return any(each is not None and each.additional_properties.get(_RUN_PROPERTY) == run for each in summaries)

    def load(self, logs: Sequence[LogName]) -> OutputState:
        """Return the positions of logs."""
        table = self._open()
        if table is None:
            return OutputState(False, {})
        self._count = table.properties.get(_COUNT_PROPERTY)
        if self._count is None:
            return OutputState(True, {} if table.current_snapshot() is None else None)
        found = {}
        for log in logs:
            text = table.properties.get(f"{_POSITION}{log.topic}-{log.partition}")
            if text is not None:
                found[log.topic, log.partition] = Position(**parse_json(text))
        return OutputState(True, found, table.properties.get(_RUN_PROPERTY))

    def commit(self, run: str, commit: Commit) -> None:
        """Add or replace the files, with the positions, in one transaction."""
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._transaction(run, commit).commit_transaction()
                    return
                except TableCommitError:
                    raise
                except Exception as error:
                    # This error of pyiceberg guarantees that nothing was committed.
                    if type(error).__name__ != "CommitFailedException" or attempt == _ATTEMPTS:
                        raise
        except TableCommitError:
            raise
        except Exception as error:
            accepted = accepted_run(self, run)
            if accepted is not True:
                raise table_failure(self.title, error, unknown=accepted is None) from error

    def contents(self) -> tuple[str | None, list[DataFileName]]:
        """Return the run that committed last, and the data files."""
        found = []
        table, root = self._open(), f"{self._root}/"
        specs = {number: [each.name for each in spec.fields] for number, spec in table.specs().items()}
        for task in table.scan().plan_files():
            file = task.file
            names = specs[file.spec_id]
            if task.delete_files or not {"topic", "partition"} <= {*names} or not file.file_path.startswith(root):
                raise LogDirectoryError(
                    f"{self.title}: {file.file_path} has rows that other files delete, or is outside of {root} or not "
                    "partitioned by topic and partition, which kbatch does not read",
                    source=self._out.url,
                )
            topic, partition = (file.partition[names.index(name)] for name in ("topic", "partition"))
            found.append(DataFileName(topic, partition, file.file_path.removeprefix(root)))
        return table.properties.get(_RUN_PROPERTY), found

    def commit_offsets(self, run: str) -> str | None:
        """Return the offsets in the properties of the snapshot of a run."""
        for snapshot in self._open().snapshots():
            summary = snapshot.summary
            if summary is not None and summary.additional_properties.get(_RUN_PROPERTY) == run:
                text: str | None = summary.additional_properties.get(OFFSETS_KEY)
                return text
        return None

    def _transaction(self, run: str, commit: Commit) -> Any:
        from pyiceberg.expressions import AlwaysTrue

        table = self._open()
        if table is None:
            transaction = self._created(commit.schema)
        else:
            if table.properties.get(_COUNT_PROPERTY) != self._count:
                raise table_changed(self.title)
            # A retry by pyiceberg would not compare the positions again.
            table.metadata.properties[_RETRIES] = "0"
            transaction = table.transaction()
            if commit.replace:
                transaction.delete(AlwaysTrue(), {_RUN_PROPERTY: run})
                self._replace_columns(transaction, table, commit.schema)
            elif self._union(table, commit.schema).changes:
                with transaction.update_schema() as update:
                    update.union_by_name(commit.schema)
        metadata = transaction.table_metadata
        properties = {_COUNT_PROPERTY: str(int(self._count or 0) + 1), _RUN_PROPERTY: run}
        if metadata.name_mapping() is None:
            properties[_NAME_MAPPING] = metadata.schema().name_mapping.model_dump_json()
        for (topic, partition), position in commit.positions.items():
            properties[f"{_POSITION}{topic}-{partition}"] = json.dumps(asdict(position))
        if commit.replace and table is not None:
            stale = [name for name in table.properties if name.startswith(_POSITION) and name not in properties]
            if stale:
                transaction.remove_properties(*stale)
        transaction.set_properties(properties)
        if commit.files:
            named = {_RUN_PROPERTY: run, **commit_metadata(commit.offsets)}
            with transaction.update_snapshot(named).fast_append() as append:
                for data_file in self._data_files(transaction.table_metadata, commit.files):
                    append.append_data_file(data_file)
        return transaction

    @staticmethod
    def _replace_columns(transaction: Any, table: Any, schema: pa.Schema) -> None:
        present = table.schema().as_arrow()
        differing = [
            each.name
            for each in present
            if each.name not in schema.names or _is_replaced(pa.schema([each]), pa.schema([schema.field(each.name)]))
        ]
        if differing:
            with transaction.update_schema(allow_incompatible_changes=True) as update:
                for name in differing:
                    update.delete_column(name)
        with transaction.update_schema() as update:
            update.union_by_name(schema)

    def _created(self, schema: pa.Schema) -> Any:
        from pyiceberg.transforms import DayTransform

        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        transaction = self._catalog.create_table_transaction(self._name, schema, location=self._root)
        with transaction.update_spec() as spec:
            spec.add_identity("topic")
            spec.add_identity("partition")
            if self._by_day:
                spec.add_field("timestamp", DayTransform(), "timestamp_day")
        return transaction

    @property
    def _root(self) -> str:
        return f"file://{self._out.url}" if self._out.local else self._out.url

    def _data_files(self, metadata: Any, files: Sequence[CommittedFile]) -> Any:
        """Yield the entries of files from the reports of their tasks, without reading the files."""
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        fields = {field.name: field for field in metadata.schema().fields}
        for file in files:
            written = file.written
            bounds: dict[str, tuple[Any, Any]] = {
                "topic": (file.topic, file.topic),
                "partition": (file.partition, file.partition),
                "offset": (written.first_offset, written.last_offset),
                "timestamp": (written.first_timestamp, written.last_timestamp),
            }
            known = [(fields[name], *ends) for name, ends in bounds.items() if ends[0] is not None]
            partition: list[Any] = [file.topic, file.partition]
            if self._by_day:
                time = written.first_timestamp
                partition.append(None if time is None else time // DAY_MICROSECONDS)
            nulls = {"topic": 0, "partition": 0, "offset": 0, "timestamp": written.null_timestamps}
            yield DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"{self._root}/{file.name}",
                file_format=FileFormat.PARQUET,
                partition=Record(*partition),
                record_count=written.rows,
                file_size_in_bytes=written.file_bytes,
                column_sizes={},
                value_counts={fields[name].field_id: written.rows for name in nulls},
                null_value_counts={fields[name].field_id: count for name, count in nulls.items()},
                nan_value_counts={},
                lower_bounds={field.field_id: to_bytes(field.field_type, low) for field, low, _ in known},
                upper_bounds={field.field_id: to_bytes(field.field_type, high) for field, _, high in known},
                key_metadata=None,
                split_offsets=None,
                equality_ids=None,
                sort_order_id=None,
                spec_id=metadata.default_spec_id,
            )


def _union_of(present: pa.Schema, given: pa.Schema) -> SchemaUnion:
    return union_of(present, given, same_types=None, has_small_integers=False)


def _is_replaced(present: pa.Schema, given: pa.Schema) -> bool:
    """Whether replacing all data must drop and recreate a column."""
    union = _union_of(present, given)
    return bool(union.differing or union.changes)
