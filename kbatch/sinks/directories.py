"""A directory of Parquet or Arrow files as the output of a run: on a mounted file system, or in an object store.

On a mounted file system, the first run builds the directory next to its place, and one rename makes it visible. Later
runs write below ``OUT/_temporary-<run>``; their commit is a journal there (`kbatch.publishing.Journal`). If a run was
killed before it wrote its journal, the next run removes its files; if it was killed later, the next run finishes it.

An object store has no rename: tasks write files under their final names, which contain the run's id, and the new
manifest commits them. Only readers of the manifest never see files of unfinished runs.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from kbatch.errors import LogDirectoryError, exists_already
from kbatch.publishing import Journal, move_all
from kbatch.sinks.commits import Commit, LogName, OutputState
from kbatch.sinks.file_names import TRANSACTIONS, FileNames, run_of
from kbatch.sinks.files import file_schema
from kbatch.sinks.manifest import MANIFEST, Manifest, new_manifest
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.run_record import RunRecord
from kbatch.sinks.schema_changes import SchemaChange, union_of
from kbatch.sinks.table_target import check_parent, columns_differ, keep_only, table_changed
from kbatch.sinks.working import WORK_PREFIX

__all__ = ["SUCCESS", "DirectoryTarget", "StoreTarget"]

# Concurrent requests that delete objects.
DELETE_THREADS = 16

SUCCESS = "_SUCCESS"
# Spark refuses to merge files with different types in a column.
_ONE_TYPE = "not all readers combine files with several types in a column"
# The number of files to try when reading the columns of the data.
_TRIED_FILES = 8


def _check_directory(out: OutputPlace, entries: Sequence[str]) -> None:
    """Raise an error if a directory has entries, but no manifest and no work directory of an export."""
    ours = [name for name in entries if name == MANIFEST or name.startswith(WORK_PREFIX)]
    if entries and not ours:
        raise exists_already(out.url, f"exists already, and is not the output of an export (no {MANIFEST})")


def _replaced(commit: Commit, before: Manifest | None) -> list[str]:
    """Return the names of files that a commit removes: all files, or only the old list of withheld transactions."""
    if before is None:
        return []
    if commit.replace:
        return [*before.files, *before.side_files]
    return [name for name in before.side_files if name.startswith(f"{TRANSACTIONS}/")]


class _FilesTarget:
    """An output that is described by a manifest."""

    manifest = MANIFEST

    def __init__(self, out: OutputPlace, run: str) -> None:
        self.out = out
        self.run = run
        self.committed = False
        self._before: Manifest | None = None
        # The columns of all files after this run.
        self._schema: pa.Schema | None = None

    def data_schema(self) -> pa.Schema | None:
        """Return the columns of all files; None without a file."""
        before = self._before
        if before is None or not before.files or before.schema is not None:
            return None if before is None or not before.files else before.schema
        # The manifest comes from an earlier release, in which all files have the same columns.
        for name in reversed(before.files[-_TRIED_FILES:]):
            # A user may have removed old files.
            with contextlib.suppress(FileNotFoundError):
                return file_schema(self.out, name)
        return None

    def check_columns(self, schema: pa.Schema, *, by_day: bool, replace: bool) -> list[SchemaChange]:
        """Return how the columns change; raise if readers cannot combine the new files and those of earlier runs."""
        self._schema = schema
        if self._before is None or not self._before.files or replace:
            return []
        if ("/date=" in self._before.files[-1]) != by_day:
            raise LogDirectoryError(
                f"{self.out.url}: the files of earlier exports have {'no' if by_day else 'a'} directory for each day; "
                "use the options of these exports, another directory, or mode overwrite, which replaces the data",
                source=self.out.url,
            )
        present = self.data_schema()
        if present is None:
            return []
        union = union_of(present, schema, same_types=_ONE_TYPE)
        if union.differing:
            raise columns_differ(f"{self.out.url}: the files of earlier exports have", union)
        self._schema = union.schema
        return union.changes

    def load(self, logs: Sequence[LogName]) -> OutputState:
        """Return the positions in the manifest."""
        self._before = Manifest.read(self.out)
        if self._before is None:
            return OutputState(False, {})
        return OutputState(True, self._before.positions, self._before.last_run)


class DirectoryTarget(_FilesTarget):
    """A directory of a mounted file system; see `kbatch.sinks.commits.RunTarget`.

    Parameters
    ----------
    out : OutputPlace
    run : str
    """

    def __init__(self, out: OutputPlace, run: str) -> None:
        super().__init__(out, run)
        self._work: OutputPlace | None = None

    def check_place(self) -> None:
        """Raise an error if the directory is not empty and not the output of an export."""
        check_parent(self.out)
        _check_directory(self.out, self.out.entries())

    def work_directory(self) -> tuple[OutputPlace, str]:
        """Return the directory itself, or its parent if it does not exist yet."""
        if self.out.entries():
            parent, prefix = self.out, WORK_PREFIX
        else:
            directory, name = posixpath.split(self.out.path())
            parent, prefix = OutputPlace(directory, self.out.storage), f"{name}.tmp-"
        self._work = parent.at(prefix + self.run)
        return parent, prefix

    def recover(self, dead: Sequence[str]) -> None:
        """Finish runs that had begun to commit."""
        for run in dead:
            journal = Journal.read(self.out.path(WORK_PREFIX + run))
            if journal is not None:
                journal.finish()

    def load(self, logs: Sequence[LogName]) -> OutputState:
        """Return the positions in the manifest, which must not have appeared since `work_directory`."""
        state = super().load(logs)
        if state.exists and not self._working.url.startswith(f"{self.out.url}/"):
            raise table_changed(self.out.url)
        return state

    def names(self) -> FileNames:
        """Return names in a directory that becomes the output, or whose files are renamed."""
        place = self._working.at("new")
        place.make()
        return FileNames(place, self.run)

    @property
    def _working(self) -> OutputPlace:
        assert self._work is not None
        return self._work

    def commit(self, commit: Commit) -> None:
        """Rename the directory, or its files."""
        place = self.names().place
        moved = [*(file.name for file in commit.files), *commit.side_files]
        moved += [] if commit.report is None else [commit.report]
        keep_only(place, "", moved)
        place.write_parts(MANIFEST, new_manifest(self.run, commit, self._before, self._schema))
        if self._before is None:
            # Fails if another process has created the output meanwhile, unless it is an empty directory.
            move_all([(place.path(), self.out.path())], sync=False)
            self.committed = True
            return
        journal = Journal(self._working.path(), [*moved, MANIFEST], _replaced(commit, self._before))
        journal.write()
        self.committed = True
        journal.finish()

    def undo(self) -> None:
        """Do nothing: the files are in the work directory."""


class StoreTarget(_FilesTarget):
    """A prefix of an object store.

    Parameters
    ----------
    out : OutputPlace
    run : str
    """

    def check_place(self) -> None:
        """Raise an error if the prefix has objects and is not the output of an export."""
        _check_directory(self.out, self.out.entries())

    def work_directory(self) -> tuple[OutputPlace, str]:
        """Return the prefix itself."""
        return self.out, WORK_PREFIX

    def recover(self, dead: Sequence[str]) -> None:
        """Remove the files that the manifest does not list, if a run was killed."""
        if dead:
            manifest = Manifest.read(self.out)
            listed = set() if manifest is None else {*manifest.files, *manifest.side_files}
            for run in {*dead} - (set() if manifest is None else {each["run"] for each in manifest.runs}):
                RunRecord(self.out).remove(run)
            self._remove([name for name in self.out.files() if run_of(name) is not None and name not in listed])

    def names(self) -> FileNames:
        """Return names in their final place."""
        return FileNames(self.out, self.run)

    def commit(self, commit: Commit) -> None:
        """Replace the manifest; remove files of failed attempts, and replaced files."""
        committed = {*(file.name for file in commit.files), *commit.side_files}
        self._remove([name for name in self._own_files() if name not in committed])
        now = self.out.read(MANIFEST)
        if now != (None if self._before is None else self._before.text):
            raise table_changed(f"{self.out.url}/{MANIFEST}")
        self.out.write_parts(MANIFEST, new_manifest(self.run, commit, self._before, self._schema))
        self.committed = True
        self._remove(_replaced(commit, self._before))
        self.out.write(SUCCESS, b"")

    def undo(self) -> None:
        """Remove the files of this run, and the names of directories if the run has created the output."""
        self._remove(self._own_files())
        RunRecord(self.out).remove(self.run)
        if self._before is None and all(name.startswith(WORK_PREFIX) for name in self.out.files()):
            self.out.remove_all()

    def _own_files(self) -> list[str]:
        return [name for name in self.out.files() if run_of(name) == self.run]

    def _remove(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(DELETE_THREADS) as pool:
            for done in [pool.submit(self.out.remove, name) for name in names]:
                done.result()
