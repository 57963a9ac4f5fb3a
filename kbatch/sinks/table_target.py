"""Tables as outputs: tasks write files under their final names, and the table's commit makes them visible."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from kbatch.errors import LogDirectoryError, exists_already
from kbatch.escaping import one_line
from kbatch.json_text import json_parts
from kbatch.log.topics import first_names
from kbatch.sinks.commits import Commit, DataFileName, LogName, OutputState, TableCommitError
from kbatch.sinks.file_names import EXPORT_PREFIX, FileNames
from kbatch.sinks.offset_ranges import offsets_file
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.run_record import REPORTS, RunRecord
from kbatch.sinks.schema_changes import SchemaChange, SchemaUnion
from kbatch.sinks.working import WORK_PREFIX

__all__ = [
    "Table",
    "TableTarget",
    "accepted_run",
    "check_parent",
    "columns_differ",
    "keep_only",
    "table_changed",
    "table_failure",
]


class Table(Protocol):
    """A table of a library."""

    @property
    def title(self) -> str:
        """The table, for messages."""

    def check_partitions(self) -> None:
        """Raise an error if the table exists and has other partitions."""

    def check_columns(self, schema: pa.Schema, *, replace: bool) -> list[SchemaChange]:
        """Return how the columns change with files of this schema; raise if they cannot be added."""

    def exists(self) -> bool:
        """Whether there is a table."""

    def schema(self) -> pa.Schema | None:
        """Return the columns of the table; None without a table."""

    def has_run(self, run: str) -> bool:
        """Whether the table has the files of a run."""

    def load(self, logs: Sequence[LogName]) -> OutputState:
        """Return the positions of logs."""

    def commit(self, run: str, commit: Commit) -> None:
        """Add all files and positions, or nothing; create the table if it does not exist."""

    def contents(self) -> tuple[str | None, list[DataFileName]]:
        """Return the run that committed last, and the data files, including files of other programs.

        Raises
        ------
        LogDirectoryError
            If other files delete rows of files, or the table has other partitions.
        """

    def commit_offsets(self, run: str) -> str | None:
        """Return the offsets in the metadata of the commit of a run, if it has them."""


class TableTarget:
    """A Delta or Iceberg table as the output of a run.

    Parameters
    ----------
    out : OutputPlace
        The directory of the files; for Delta, of the table.
    run : str
    table : Table
    in_table : bool
        Whether the table is in `out`, which must then contain nothing else.
    """

    def __init__(self, out: OutputPlace, run: str, table: Table, *, in_table: bool) -> None:
        self.out = out
        self.run = run
        self._table = table
        self._in_table = in_table
        self._side = f"{EXPORT_PREFIX}{run}/"
        self.manifest = f"{self._side}_manifest.json"
        self.committed = False
        self._made = False

    def data_schema(self) -> pa.Schema | None:
        """Return the columns of the table."""
        return self._table.schema()

    def check_columns(self, schema: pa.Schema, *, by_day: bool, replace: bool) -> list[SchemaChange]:
        """Return how the columns of the table change; its partitions have been checked."""
        return self._table.check_columns(schema, replace=replace)

    def check_place(self) -> None:
        """Raise an error if the place has something other than a table, or a table with other partitions."""
        check_parent(self.out)
        self._table.check_partitions()
        if self._in_table and not self._table.exists() and _is_foreign(self.out):
            raise exists_already(self.out.url, "exists already, and is not a Delta table")

    def work_directory(self) -> tuple[OutputPlace, str]:
        """Create and return the directory of the files."""
        self._made = not self.out.exists()
        self.out.make()
        return self.out, WORK_PREFIX

    def recover(self, dead: Sequence[str]) -> None:
        """Remove the files of runs that the table does not have."""
        for run in dead:
            if not self._table.has_run(run):
                self._remove(run)

    def load(self, logs: Sequence[LogName]) -> OutputState:
        """Return the positions of logs."""
        return self._table.load(logs)

    def names(self) -> FileNames:
        """Return names below a directory of this run."""
        return FileNames(self.out, self.run, f"run-{self.run}/", self._side)

    def commit(self, commit: Commit) -> None:
        """Write the manifest of the run, and commit the files to the table."""
        keep_only(self.out, f"run-{self.run}", [file.name for file in commit.files])
        keep_only(self.out, self._side.rstrip("/"), commit.side_files)
        self.out.write_parts(self.manifest, json_parts(commit.summary))
        # The metadata of the commit expires: snapshots with their properties, and the files of Delta's log.
        self.out.write(offsets_file(self.run), commit.offsets.encode())
        try:
            self._table.commit(self.run, commit)
            self.committed = True
        except TableCommitError as error:
            self.committed = error.unknown
            raise

    def undo(self) -> None:
        """Remove the files of this run, and files of the library in a directory that this run created."""
        self._remove(self.run)
        if self._made and self.out.local:
            self.out.remove_all()

    def _remove(self, run: str) -> None:
        for name in (f"run-{run}", f"{EXPORT_PREFIX}{run}"):
            self.out.at(name).remove_stage()
        RunRecord(self.out).remove(run)


def _is_foreign(out: OutputPlace) -> bool:
    """Whether a directory has entries that no export to a table creates."""
    return any(not name.startswith((EXPORT_PREFIX, REPORTS, WORK_PREFIX, "run-")) for name in out.entries())


def check_parent(out: OutputPlace) -> None:
    """Raise an error if a directory of a mounted file system cannot be created or written to."""
    if not out.local:
        return
    exists = os.path.lexists(out.url)
    if exists and not os.path.isdir(out.url):
        raise LogDirectoryError(f"{out.url}: already exists, and is not a directory", source=out.url)
    parent = out.url if exists else os.path.dirname(out.url)
    if not os.path.isdir(parent):
        raise LogDirectoryError(f"{out.url}: the directory {parent} does not exist", source=out.url)
    if not os.access(parent, os.W_OK):
        raise LogDirectoryError(f"{out.url}: no permission to write in {parent}", source=out.url)


def keep_only(place: OutputPlace, directory: str, names: Sequence[str]) -> None:
    """Remove the files of a directory that are not in `names`: files of failed or repeated attempts of tasks.

    Raises
    ------
    LogDirectoryError
        If one of the names does not exist.
    """
    there, expected = set(place.files(directory)), set(names)
    for name in there - expected:
        place.remove(name)
    missing = sorted(expected - there)
    if missing:
        raise LogDirectoryError(
            f"{place.path(missing[0])}: written by a Spark worker, but not found by the driver; the output must be on "
            "a file system that the driver and all workers share",
            source=place.url,
        )


def accepted_run(table: Table, run: str) -> bool | None:
    """Whether a table has the files of a run despite an error; None if the table cannot be read."""
    try:
        return table.has_run(run)
    except Exception:
        return None


def table_changed(title: str) -> TableCommitError:
    """Return the error for a run during which another export committed to the table."""
    return TableCommitError(
        f"{title} was changed by another export during this one, which has written nothing; run it again"
    )


def columns_differ(title: str, union: SchemaUnion) -> LogDirectoryError:
    """Return the error for data whose columns cannot be combined with those of files."""
    return LogDirectoryError(
        f"{title} other columns: {first_names(union.differing)}; use the options of these "
        "exports, another output, or mode overwrite, which replaces the data and the columns"
    )


def table_failure(title: str, error: Exception, *, unknown: bool) -> TableCommitError:
    """Return the error for an exception of a table's library."""
    text = "may have accepted the files, which are kept" if unknown else "did not accept the files"
    return TableCommitError(f"{title} {text}: {type(error).__name__}: {one_line(error)}", unknown=unknown)
