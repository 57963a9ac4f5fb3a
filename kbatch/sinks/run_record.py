"""The reports of exports: the losses, withheld records, missing offsets and changed logs of each run, as files.

The file of a run is written before its commit, and removed if the run is undone. It is never changed, even if the data
is replaced. An empty file next to it marks a report as seen: a run that dies after its commit cannot print its summary,
so the next run prints the report.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from kbatch.errors import LogDirectoryError
from kbatch.json_text import parse_json
from kbatch.log.selection import REMOTE_THREADS
from kbatch.sinks.file_names import EXPORT_PREFIX
from kbatch.sinks.manifest import MANIFEST
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.summary import MAX_LISTED, ExportSummary
from kbatch.sinks.working import WORK_PREFIX

__all__ = ["REPORTS", "RunRecord", "RunReport"]

# Readers ignore names that begin with an underscore.
REPORTS = "_reports"
_SUFFIX = ".json"
_SEEN = ".seen"

# The keys of the rows of a report's lists.
_KEYS = {
    "losses": ("file", "position", "length", "reason"),
    "gaps": ("topic", "partition", "first_offset", "last_offset"),
    "changes": ("kind", "resumed_at", "reason"),
    "missing_offsets": ("reason",),
    "schema_changes": ("column", "change", "type"),
    "withheld": ("topic", "partition", "open_count", "undecided_count", "undecided_batches", "undecided_bytes"),
}


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The report of a run. Lists have their first hundred entries; the counts include all entries.

    Attributes
    ----------
    run : str
    ended : str
        The time before the commit, in ISO 8601 and UTC.
    exit_status : int
        The exit status of the run, without the reports of earlier runs.
    change_count, changes, missing_count, missing_offsets
        Changed logs, and offsets that the options name but the logs do not have.
    schema_change_count, schema_changes
        Columns and fields of structs that the run added to the data.
    withheld_count, withheld
        Topic-partitions with withheld batches: topic, partition, last_stable_offset, open_count, undecided_count,
        undecided_batches, undecided_bytes.

    `ExportSummary` describes the other attributes.
    """

    run: str
    ended: str
    exit_status: int
    mode: str = "continue"
    action: str = "created"
    isolation: str = "read_uncommitted"
    records: int = 0
    lost_bytes: int = 0
    loss_count: int = 0
    losses: list[dict[str, Any]] = field(default_factory=list)
    losses_table: str | None = None
    gap_offsets: int = 0
    gap_count: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)
    change_count: int = 0
    changes: list[dict[str, Any]] = field(default_factory=list)
    missing_count: int = 0
    missing_offsets: list[dict[str, Any]] = field(default_factory=list)
    schema_change_count: int = 0
    schema_changes: list[dict[str, Any]] = field(default_factory=list)
    bad_crc_batches: int = 0
    withheld_transactions: int = 0
    transactions_table: str | None = None
    undecided_batches: int = 0
    undecided_bytes: int = 0
    withheld_count: int = 0
    withheld: list[dict[str, Any]] = field(default_factory=list)
    bad_keys: int = 0
    bad_values: int = 0
    incomplete_keys: int = 0
    incomplete_values: int = 0
    too_many_bad: bool = False

    @classmethod
    def of(cls, summary: ExportSummary, ended: datetime) -> RunReport:
        """Return the report of a run that is about to commit."""
        names = ("topic", "partition", "last_stable_offset", "open_count", "undecided_count", *_WITHHELD)
        held = [part for part in summary.partitions if part.undecided_batches]
        own: dict[str, Any] = {
            "ended": ended.isoformat("T", "milliseconds"),
            "exit_status": summary.run_status,
            "change_count": len(summary.changes),
            "missing_count": len(summary.missing_offsets),
            "schema_change_count": len(summary.schema_changes),
            "withheld_count": len(held),
            "withheld": [{name: getattr(part, name) for name in names} for part in held[:MAX_LISTED]],
        }
        same = {each.name: getattr(summary, each.name) for each in fields(cls) if each.name not in own}
        lists = {name: value[:MAX_LISTED] for name, value in same.items() if isinstance(value, list)}
        return cls(**{**same, **lists, **own})

    @classmethod
    def parse(cls, text: bytes, url: str) -> RunReport:
        """Parse the report in a file.

        Raises
        ------
        LogDirectoryError
            If the text is not a report.
        """
        try:
            found = parse_json(text)
            kinds = {each.name: each.type for each in fields(cls)}
            report = cls(**{name: found[name] for name in kinds if name in found})
            for name, kind in kinds.items():
                _check_field(name, str(kind), getattr(report, name))
        except (ValueError, KeyError, TypeError) as error:
            raise LogDirectoryError(
                f"{url}: not the report of an export ({type(error).__name__}: {error}); move it elsewhere",
                source=url,
            ) from error
        return report

    @property
    def has_content(self) -> bool:
        """Whether the run has anything to report."""
        return self.exit_status != 0 or self.change_count > 0 or self.schema_change_count > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        return asdict(self)


_TEXT_KEYS = ("file", "reason", "topic", "kind", "column", "change", "type")
_WITHHELD = ("undecided_batches", "undecided_bytes")
_FIELD_KINDS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "str | None": str | None}


def _check_field(name: str, kind: str, value: Any) -> None:
    """Raise an error for a value that a field of a report cannot have."""
    if kind in _FIELD_KINDS:
        if not isinstance(value, _FIELD_KINDS[kind]):
            raise ValueError(f"{name} is {str(value)[:100]!r}")
        return
    for row in value:
        for key in _KEYS[name]:
            expected = str if key in _TEXT_KEYS else int
            if not isinstance(row[key], expected):
                raise ValueError(f"{key} in {name} is {str(row[key])[:100]!r}")


class RunRecord:
    """The reports of the runs to an output.

    Parameters
    ----------
    out : OutputPlace
    """

    def __init__(self, out: OutputPlace) -> None:
        self._out = out
        self._place = out.at(REPORTS)

    @property
    def is_of_exports(self) -> bool:
        """Whether the output has been written by an export."""
        return any(name in (MANIFEST, REPORTS) or name.startswith(EXPORT_PREFIX) for name in self._out.entries())

    @property
    def unfinished_runs(self) -> set[str]:
        """The runs whose work directories exist: the next run decides whether they are committed."""
        return {name.removeprefix(WORK_PREFIX) for name in self._out.entries() if name.startswith(WORK_PREFIX)}

    @staticmethod
    def name(run: str, ended: datetime) -> str:
        """Return the name of a run's report, relative to the output; names sort by time."""
        return f"{REPORTS}/{ended:%Y%m%dT%H%M%S}{ended.microsecond // 1000:03d}Z-{run}{_SUFFIX}"

    def names(self, *, unseen: bool = False) -> list[str]:
        """Return the names of the reports by time, optionally only of unseen reports."""
        entries = set(self._place.entries())
        found = sorted(name for name in entries if name.endswith(_SUFFIX))
        return [f"{REPORTS}/{name}" for name in found if not (unseen and name + _SEEN in entries)]

    def read(self, names: Sequence[str]) -> dict[str, RunReport]:
        """Return reports by name, without those that no longer exist.

        Raises
        ------
        LogDirectoryError
            If a file is not a report.
        """

        def one(name: str) -> RunReport | None:
            text = self._out.read(name)
            return None if text is None else RunReport.parse(text, f"{self._out.url}/{name}")

        with ThreadPoolExecutor(1 if self._out.local else REMOTE_THREADS) as pool:
            found = zip(names, pool.map(one, names), strict=True)
            return {name: report for name, report in found if report is not None}

    def remove(self, run: str) -> None:
        """Remove the report of a run that is undone."""
        for name in self._place.entries():
            # The name of a file that is being written has a further suffix.
            if f"-{run}{_SUFFIX}" in name:
                self._place.remove(name)
                self._out.remove_empty(REPORTS)

    def mark_seen(self, names: Sequence[str]) -> None:
        """Mark reports as seen; where that is impossible, the next run repeats them."""
        for name in names:
            try:
                self._out.write(name + _SEEN, b"")
            except Exception as error:
                # The export has succeeded, and fsspec file systems raise their own exceptions.
                logging.getLogger(__name__).warning("%s/%s cannot be marked as seen: %s", self._out.url, name, error)
                return
