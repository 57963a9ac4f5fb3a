"""The offsets that each commit of an export covers, as text in its metadata, to verify that no record is missing.

In a directory, the entry of the run in the manifest has the text. In a Delta table, the commit information has it, in
an Iceberg table the properties of the snapshot. These expire, so a file of the run, ``_export-<run>/_offsets.json``,
has it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbatch.json_text import parse_json
from kbatch.sinks.file_names import EXPORT_PREFIX

__all__ = ["OFFSETS_KEY", "CommitOffsets", "OffsetRange", "commit_metadata", "offsets_file"]

# The key in the metadata of a table's commit, and in a manifest.
OFFSETS_KEY = "kbatch.offsets"
# The largest JSON text of offsets that a commit stores in its metadata, in characters. Larger text is only in the file
# of the run. Each commit of an Iceberg table rewrites the metadata of all its snapshots.
MAX_INLINE = 16 << 10


class OffsetRange(NamedTuple):
    """The offsets of a topic-partition that a commit covers.

    Attributes
    ----------
    start, end : int
        The range; `end` is exclusive.
    records : int
        The number of records written.
    has_losses : int
        1 if bytes were damaged or offsets were missing between segments, else 0.
    restart : str
        ``"deleted"``, ``"truncated"`` or ``"recreated"`` if the log had changed, so that the range does not begin at
        the end of the previous one (`kbatch.plan.positions.LogChange`); else empty.
    """

    start: int
    end: int
    records: int = 0
    has_losses: int = 0
    restart: str = ""


@dataclass(frozen=True)
class CommitOffsets:
    """The offsets that a commit covers.

    Attributes
    ----------
    after : str or None
        The run whose commit precedes this one; None for the first commit, and for a commit that replaced the data.
    isolation : str
    has_control : bool
        Whether control records were written.
    has_key : bool
        Whether only the records of one key were written.
    ranges : dict of (topic, partition) to OffsetRange
    """

    after: str | None = None
    isolation: str = "read_uncommitted"
    has_control: bool = False
    has_key: bool = False
    ranges: Mapping[tuple[str, int], OffsetRange] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the offsets as JSON: ``ranges`` has, by topic, rows of the partition and the fields of its range."""
        options = {"after": self.after, "isolation": self.isolation, "control": self.has_control, "key": self.has_key}
        ranges: dict[str, list[list[Any]]] = {}
        for (topic, partition), each in self.ranges.items():
            row = [partition, *each]
            while row[-1] in (0, "") and len(row) > 4:
                row.pop()
            ranges.setdefault(topic, []).append(row)
        return json.dumps({**options, "ranges": ranges}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> CommitOffsets:
        """Parse the result of `to_text`.

        Raises
        ------
        ValueError, KeyError, TypeError
            If the text has another form.
        """
        found = parse_json(text)
        ranges = {
            (topic, int(row[0])): OffsetRange(*row[1:]) for topic, rows in found["ranges"].items() for row in rows
        }
        after = found["after"]
        if not (after is None or isinstance(after, str)):
            raise ValueError(f"after is {after!r}")
        return cls(after, str(found["isolation"]), bool(found["control"]), bool(found["key"]), ranges)


def offsets_file(run: str) -> str:
    """Return the name of the file with the offsets of a run to a table, relative to the directory of its files."""
    return f"{EXPORT_PREFIX}{run}/_offsets.json"


def commit_metadata(text: str) -> dict[str, str]:
    """Return the offsets of a commit as an entry of its metadata; empty if they are too large for it.

    Examples
    --------
    >>> from kbatch.sinks.offset_ranges import CommitOffsets, OffsetRange, commit_metadata
    >>> commit_metadata(CommitOffsets(ranges={("t", 0): OffsetRange(0, 40, 40)}).to_text())["kbatch.offsets"]
    '{"after":null,"isolation":"read_uncommitted","control":false,"key":false,"ranges":{"t":[[0,0,40,40]]}}'
    """
    return {OFFSETS_KEY: text} if len(text) <= MAX_INLINE else {}
