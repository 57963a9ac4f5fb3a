"""Delta and Iceberg: the Parquet files of an export become part of a table, with one transaction of its own.

The tasks have written the files; the driver tells the table's library of them. Nothing is read or written again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.extras import require
from kbatch.sinks.files import HIVE_NULL, WrittenFile
from kbatch.sinks.outputs import Place

__all__ = ["CommittedFile", "OutputTable", "TableCommitError", "open_table"]

# The property of a snapshot that tells the run.
_RUN = "kbatch.first-file"


class TableCommitError(KbatchError):
    """A table's library refused the files, or doesn't know whether it took them."""

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


@dataclass(frozen=True)
class CommittedFile:
    """A data file in its place.

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
    """A table that takes files."""

    def check(self, schema: pa.Schema) -> None:
        """Fail if there is a table that such files can't be added to."""

    def commit(self, files: Sequence[CommittedFile], schema: pa.Schema) -> None:
        """Add the files, all of them or none; make the table if there is none."""


def open_table(kind: str, out: Place, *, by_day: bool, name: str | None, catalog: str | None) -> OutputTable:
    """Return the table of an export.

    Parameters
    ----------
    kind : {"delta", "iceberg"}
    out : Place
        A Delta table itself; of an Iceberg table where this run's files are.
    by_day : bool
    name : str or None
        An Iceberg table's, with its namespace.
    catalog : str or None
        Its catalog's, as pyiceberg's configuration calls it; None is the default one.

    Raises
    ------
    MissingDependencyError
        Without the library.
    TableCommitError, ValueError
        If there is no such catalog, or no name.
    """
    if kind == "delta":
        return _DeltaTable(out, by_day)
    if name is None:
        raise ValueError("format iceberg needs the table's name, such as db.orders")
    return _IcebergTable(out, by_day, name, catalog)


class _DeltaTable:
    def __init__(self, out: Place, by_day: bool) -> None:
        self._lib: Any = require("deltalake", "delta", "format delta")
        self._out = out
        self._partition_by = ["topic", "partition", *(["date"] if by_day else [])]
        self._options = _delta_storage(out.storage)

    def check(self, schema: pa.Schema) -> None:
        table = self._open()
        if table is None:
            if self._out.exists():
                raise LogDirectoryError(
                    f"{self._out.url}: already exists and is not a Delta table; choose a new directory, or remove it",
                    source=self._out.url,
                )
            return
        found = table.metadata().partition_columns
        if found != self._partition_by:
            raise LogDirectoryError(
                f"{self._out.url}: a Delta table partitioned by {', '.join(found) or 'nothing'}, not by "
                f"{', '.join(self._partition_by)}",
                source=self._out.url,
            )
        there, ours = (_fields(each) for each in (table.schema(), self._schema(schema)))
        if there != ours:
            names = sorted(name for name in {*there, *ours} if there.get(name) != ours.get(name))
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
                "which a Delta table can't name; write it without days"
            )
        return None if date == HIVE_NULL else date

    def _took(self, files: Sequence[CommittedFile]) -> bool | None:
        """Tell whether the table has the files all the same; None if it can't be asked."""
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


def _fields(schema: Any) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in json.loads(schema.to_json())["fields"]}


def _delta_stats(file: WrittenFile) -> str:
    least: dict[str, Any] = {"offset": file.first_offset}
    most: dict[str, Any] = {"offset": file.last_offset}
    for bounds, value in ((least, file.first_timestamp), (most, file.last_timestamp)):
        # Four digits of a year are what its format has.
        if value is not None and -62_135_596_800_000_000 <= value < 253_402_300_800_000_000:
            text = str(pa.scalar(value // 1000, pa.timestamp("ms")))
            bounds["timestamp"] = text.replace(" ", "T") + "Z"
    stats = {
        "numRecords": file.rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": {"offset": 0, "timestamp": file.null_timestamps},
    }
    return json.dumps(stats)


def _delta_storage(storage: Mapping[str, str]) -> dict[str, str] | None:
    """Say options of pyarrow's S3FileSystem as delta-rs does."""
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
    def __init__(self, out: Place, by_day: bool, name: str, catalog: str | None) -> None:
        catalogs: Any = require("pyiceberg.catalog", "iceberg", "format iceberg")
        if "." not in name:
            raise ValueError(f"an Iceberg table's name has a namespace, such as db.orders, got {name!r}")
        self._out = out
        self._by_day = by_day
        self._name = name
        try:
            self._catalog = catalogs.load_catalog(catalog)
        except Exception as error:
            # Whatever its configuration leads to: a missing driver, a server that isn't there, a wrong value.
            raise TableCommitError(f"Iceberg catalog {catalog or 'default'!r} can't be opened: {error}") from error
        # It warns of every column without statistics, which keys and values don't have.
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
            how = "by day: write it with days" if days else "without days: write it without"
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
                # Names that no other run has: no need to look through the table for them.
                transaction.add_files(paths, {_RUN: paths[0]}, check_duplicate_files=False)
            transaction.commit_transaction()
        except Exception as error:
            took = self._took(paths)
            if took is not True:
                raise _failure(f"Iceberg table {self._name}", error, unknown=took is None) from error

    def _took(self, paths: Sequence[str]) -> bool | None:
        """Tell whether the table has the files all the same; None if it can't be asked."""
        try:
            if not self._catalog.table_exists(self._name):
                return False
            snapshots = self._catalog.load_table(self._name).snapshots()
            return bool(paths) and any(
                each.summary is not None and each.summary.additional_properties.get(_RUN) == paths[0]
                for each in snapshots
            )
        except Exception:
            return None


def _failure(table: str, error: Exception, *, unknown: bool) -> TableCommitError:
    text = "can't tell whether it took the files, which are kept" if unknown else "didn't take the files"
    return TableCommitError(f"{table} {text}: {type(error).__name__}: {error}", unknown=unknown)
