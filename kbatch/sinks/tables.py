"""Delta and Iceberg: the Parquet files of an export become part of a table, in one transaction.

The tasks have written the files; the driver registers them with the table's library. No data is read or written again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from kbatch.errors import KbatchError, LogDirectoryError, exists_already
from kbatch.escaping import one_line
from kbatch.extras import require
from kbatch.sinks.files import HIVE_NULL, WrittenFile
from kbatch.sinks.outputs import OutputPlace

__all__ = ["CommittedFile", "OutputTable", "TableCommitError", "open_table"]

# The property of a snapshot that identifies the run.
_RUN_PROPERTY = "kbatch.first-file"


class TableCommitError(KbatchError):
    """A table's library rejected the files, or it is unknown whether it accepted them."""

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


@dataclass(frozen=True)
class CommittedFile:
    """A data file in its final place.

    Attributes
    ----------
    name : str
        Relative to the output.
    topic : str
    partition : int
    written : WrittenFile
    """

    name: str
    topic: str
    partition: int
    written: WrittenFile


class OutputTable(Protocol):
    """A table to which files can be added."""

    def check(self, schema: pa.Schema) -> None:
        """Raise if the table exists and files with this schema cannot be added to it."""

    def commit(self, files: Sequence[CommittedFile], schema: pa.Schema) -> None:
        """Add all files or none; create the table if it does not exist."""


def open_table(kind: str, out: OutputPlace, *, by_day: bool, name: str | None, catalog: str | None) -> OutputTable:
    """Return the table of an export.

    Parameters
    ----------
    kind : {"delta", "iceberg"}
    out : OutputPlace
        The Delta table itself, or the directory of this run's files for an Iceberg table.
    by_day : bool
    name : str or None
        The name of an Iceberg table, with its namespace.
    catalog : str or None
        The name of its catalog in pyiceberg's configuration; None is the default catalog.

    Raises
    ------
    MissingDependencyError
        If the library is not installed.
    TableCommitError, ValueError
        If the catalog does not exist, or the name is missing.
    """
    if kind == "delta":
        return _DeltaTable(out, by_day)
    if name is None:
        raise ValueError("format iceberg needs the table's name, such as db.orders")
    return _IcebergTable(out, by_day, name, catalog)


class _DeltaTable:
    def __init__(self, out: OutputPlace, by_day: bool) -> None:
        self._lib: Any = require("deltalake", "delta", "format delta")
        self._out = out
        self._partition_by = ["topic", "partition", *(["date"] if by_day else [])]
        self._options = _delta_storage(out.storage)

    def check(self, schema: pa.Schema) -> None:
        table = self._open()
        if table is None:
            if self._out.exists():
                raise exists_already(self._out.url, "exists already, and is not a Delta table")
            return
        found = table.metadata().partition_columns
        if found != self._partition_by:
            raise LogDirectoryError(
                f"{self._out.url}: a Delta table partitioned by {', '.join(found) or 'nothing'}, not by "
                f"{', '.join(self._partition_by)}",
                source=self._out.url,
            )
        present, given = (_delta_fields(each) for each in (table.schema(), self._schema(schema)))
        if present != given:
            names = sorted(name for name in {*present, *given} if present.get(name) != given.get(name))
            raise LogDirectoryError(
                f"{self._out.url}: a Delta table with other columns: {', '.join(names)} differ", source=self._out.url
            )

    def commit(self, files: Sequence[CommittedFile], schema: pa.Schema) -> None:
        from deltalake.transaction import AddAction, create_table_with_add_actions

        now = int(time.time() * 1000)
        actions = []
        for file in files:
            values: dict[str, str | None] = {"topic": file.topic, "partition": str(file.partition)}
            if "date" in self._partition_by:
                values["date"] = self._date(file)
            actions.append(AddAction(file.name, file.written.file_bytes, values, now, True, _delta_stats(file.written)))
        try:
            table = self._open()
            if table is None:
                create_table_with_add_actions(
                    self._out.url,
                    self._schema(schema),
                    actions,
                    mode="error",
                    partition_by=self._partition_by,
                    storage_options=self._options,
                )
            elif actions:
                table.create_write_transaction(
                    actions, mode="append", schema=self._schema(schema), partition_by=self._partition_by
                )
        except Exception as error:
            took = self._took(files)
            if took is not True:
                raise _failure(f"{self._out.url}: the Delta table", error, unknown=took is None) from error

    def _date(self, file: CommittedFile) -> str | None:
        date = file.written.date
        if date is not None and date.startswith(("+", "-")):
            raise TableCommitError(
                f"{file.topic}-{file.partition}, offset {file.written.first_offset}: a timestamp of the day {date}, "
                "which a Delta table cannot represent; write it without by_day"
            )
        return None if date == HIVE_NULL else date

    def _took(self, files: Sequence[CommittedFile]) -> bool | None:
        """Return whether the table has the files despite the error; None if it cannot be read."""
        try:
            table = self._open()
            return table is not None and bool(files) and any(uri.endswith(files[0].name) for uri in table.file_uris())
        except Exception:
            return None

    def _open(self) -> Any:
        if not self._lib.DeltaTable.is_deltatable(self._out.url, storage_options=self._options):
            return None
        return self._lib.DeltaTable(self._out.url, storage_options=self._options)

    def _schema(self, schema: pa.Schema) -> Any:
        kinds = {"topic": pa.string(), "partition": pa.int32(), "date": pa.date32()}
        columns = pa.schema([*schema, *((name, kinds[name]) for name in self._partition_by)])
        return self._lib.Schema.from_arrow(columns)


def _delta_fields(schema: Any) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in json.loads(schema.to_json())["fields"]}


def _delta_stats(file: WrittenFile) -> str:
    minimum: dict[str, Any] = {"offset": file.first_offset}
    maximum: dict[str, Any] = {"offset": file.last_offset}
    for bounds, value in ((minimum, file.first_timestamp), (maximum, file.last_timestamp)):
        # The format has years of four digits only.
        if value is not None and -62_135_596_800_000_000 <= value < 253_402_300_800_000_000:
            text = str(pa.scalar(value // 1000, pa.timestamp("ms")))
            bounds["timestamp"] = text.replace(" ", "T") + "Z"
    stats = {
        "numRecords": file.rows,
        "minValues": minimum,
        "maxValues": maximum,
        "nullCount": {"offset": 0, "timestamp": file.null_timestamps},
    }
    return json.dumps(stats)


def _delta_storage(storage: Mapping[str, str]) -> dict[str, str] | None:
    """Return options of pyarrow's S3FileSystem with the names of delta-rs."""
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


class _IcebergTable:
    def __init__(self, out: OutputPlace, by_day: bool, name: str, catalog: str | None) -> None:
        catalogs: Any = require("pyiceberg.catalog", "iceberg", "format iceberg")
        if "." not in name:
            raise ValueError(f"an Iceberg table's name must have a namespace, such as db.orders, got {name!r}")
        self._out = out
        self._by_day = by_day
        self._name = name
        try:
            self._catalog = catalogs.load_catalog(catalog)
        except Exception as error:
            # Any error of its configuration: a missing driver, an unreachable server, a wrong value.
            raise TableCommitError(
                f"Iceberg catalog {catalog or 'default'!r} cannot be opened: {one_line(error)}"
            ) from error
        # It warns about every column without statistics, and keys and values have none.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

    def check(self, schema: pa.Schema) -> None:
        if not self._catalog.table_exists(self._name):
            return
        table = self._catalog.load_table(self._name)
        there = {field.name: str(field.field_type) for field in table.schema().fields}
        missing = [name for name in schema.names if name not in there]
        if missing:
            raise LogDirectoryError(f"Iceberg table {self._name} has no column {', '.join(missing)}")
        days = [field for field in table.spec().fields if "day" in str(field.transform)]
        if bool(days) != self._by_day:
            how = "by day: write it with by_day" if days else "without days: write it without by_day"
            raise LogDirectoryError(f"Iceberg table {self._name} is partitioned {how}")

    def commit(self, files: Sequence[CommittedFile], schema: pa.Schema) -> None:
        from pyiceberg.transforms import DayTransform

        root = f"file://{self._out.url}" if self._out.local else self._out.url
        paths = [f"{root}/{file.name}" for file in files]
        try:
            if self._catalog.table_exists(self._name):
                transaction = self._catalog.load_table(self._name).transaction()
            else:
                self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
                transaction = self._catalog.create_table_transaction(self._name, schema, location=root)
                with transaction.update_spec() as spec:
                    spec.add_identity("topic")
                    spec.add_identity("partition")
                    if self._by_day:
                        spec.add_field("timestamp", DayTransform(), "timestamp_day")
            if paths:
                # The names are unique to the run, so the table need not be searched for them.
                transaction.add_files(paths, {_RUN_PROPERTY: paths[0]}, check_duplicate_files=False)
            transaction.commit_transaction()
        except Exception as error:
            took = self._took(paths)
            if took is not True:
                raise _failure(f"Iceberg table {self._name}", error, unknown=took is None) from error

    def _took(self, paths: Sequence[str]) -> bool | None:
        """Return whether the table has the files despite the error; None if it cannot be read."""
        try:
            if not self._catalog.table_exists(self._name):
                return False
            snapshots = self._catalog.load_table(self._name).snapshots()
            return bool(paths) and any(
                each.summary is not None and each.summary.additional_properties.get(_RUN_PROPERTY) == paths[0]
                for each in snapshots
            )
        except Exception:
            return None


def _failure(table: str, error: Exception, *, unknown: bool) -> TableCommitError:
    text = "may have accepted the files, which are kept" if unknown else "did not accept the files"
    return TableCommitError(f"{table} {text}: {type(error).__name__}: {one_line(error)}", unknown=unknown)
