"""The manifest of a directory of files: the summary of the last run, the positions, and the files of each run."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kbatch.errors import LogDirectoryError
from kbatch.json_text import json_parts, parse_json
from kbatch.plan.positions import Position, parse_positions, plain_positions
from kbatch.publishing import inner_names
from kbatch.sinks.commits import Commit
from kbatch.sinks.offset_ranges import OFFSETS_KEY
from kbatch.sinks.outputs import OutputPlace

__all__ = ["MANIFEST", "Manifest", "new_manifest"]

# Readers ignore names that begin with an underscore.
MANIFEST = "_manifest.json"


@dataclass(frozen=True)
class Manifest:
    """The manifest of an existing output.

    Attributes
    ----------
    text : bytes
        The contents of the file.
    positions : dict of (topic, partition) to Position
    runs : list of dict
        For each run, in order, its ``run``, ``records``, ``files``, ``side_files`` and ``kbatch.offsets``.
    schema : pyarrow.Schema or None
        The columns of all files, as ``arrow_schema``: a schema message of Arrow IPC in Base64.
    """

    text: bytes
    positions: dict[tuple[str, int], Position]
    runs: list[dict[str, Any]]
    schema: pa.Schema | None = None

    @classmethod
    def read(cls, out: OutputPlace) -> Manifest | None:
        """Return the manifest of an output, or None without one.

        Raises
        ------
        LogDirectoryError
            If the file is damaged.
        """
        text = out.read(MANIFEST)
        if text is None:
            return None
        try:
            found = parse_json(text)
            runs = list(found["runs"])
            for run in runs:
                inner_names([*run["files"], *run["side_files"]])
            return cls(text, parse_positions(found["positions"]), runs, _parse_schema(found.get("arrow_schema")))
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise LogDirectoryError(
                f"{out.url}/{MANIFEST}: not the manifest of an export ({type(error).__name__}: {error}); restore it "
                "from a copy, or choose another directory",
                source=out.url,
            ) from error

    @property
    def last_run(self) -> str | None:
        """The run that committed last."""
        return self.runs[-1]["run"] if self.runs else None

    @property
    def files(self) -> list[str]:
        """The names of all data files, relative to the output."""
        return [name for run in self.runs for name in run["files"]]

    @property
    def side_files(self) -> list[str]:
        """The names of the files of side tables."""
        return [name for run in self.runs for name in run["side_files"]]


def _parse_schema(text: str | None) -> pa.Schema | None:
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def new_manifest(run: str, commit: Commit, before: Manifest | None, schema: pa.Schema | None) -> Iterator[bytes]:
    """Return the parts of the manifest after a commit; `schema` has the columns of all files."""
    kept = None if commit.replace else before
    positions = {**(kept.positions if kept is not None else {}), **commit.positions}
    entry = {
        "run": run,
        "records": commit.summary["records"],
        "files": [file.name for file in commit.files],
        "side_files": list(commit.side_files),
        OFFSETS_KEY: commit.offsets,
    }
    runs = [*([] if kept is None else kept.runs), entry]
    columns = base64.b64encode((commit.schema if schema is None else schema).serialize()).decode("ascii")
    document = {**commit.summary, "arrow_schema": columns, "positions": plain_positions(positions), "runs": runs}
    return json_parts(document)
