"""The report of a verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbatch.transactions import OpenTransaction

__all__ = ["OnFinding", "VerificationFinding", "VerificationReport"]


class VerificationFinding(NamedTuple):
    """A fault or a note.

    A fault is damage: a state of a file that no broker writes, and that loses records or misleads a reader. A state
    that occurs in healthy logs (missing offsets, a file that ends with an incomplete batch) is a note.

    Attributes
    ----------
    file : str
    position : int
        Byte in the file.
    text : str
    damage : bool
        False for a note.
    """

    file: str
    position: int
    text: str
    damage: bool = True


OnFinding = Callable[[VerificationFinding], None]


@dataclass(slots=True)
class VerificationReport:
    """The result of verifying a log or a file.

    Attributes
    ----------
    segments, batches, records, control_records, bytes : int
        Number of segments, batches, records and bytes read; `bytes` counts segment files only. Records of control
        batches, such as transaction markers, count in `control_records` instead of `records`.
    open_transactions : sequence of OpenTransaction
        Transactions without a marker, by first offset.
    damaged_batches : int
        Number of batches that are damaged, or have a damaged message inside; they count in `batches` too.
    side_files : int
        Number of index files and snapshots.
    findings : list of VerificationFinding
    on_finding : callable, optional
        Called with each finding.
    """

    segments: int = 0
    batches: int = 0
    records: int = 0
    control_records: int = 0
    open_transactions: Sequence[OpenTransaction] = ()
    bytes: int = 0
    damaged_batches: int = 0
    side_files: int = 0
    findings: list[VerificationFinding] = field(default_factory=list)
    on_finding: OnFinding | None = None

    @property
    def damaged(self) -> bool:
        """Whether any finding is damage."""
        return any(finding.damage for finding in self.findings)

    def add(self, file: str, position: int, text: str, *, damage: bool = True) -> None:
        """Add a finding."""
        finding = VerificationFinding(file, position, text, damage)
        self.findings.append(finding)
        if self.on_finding is not None:
            self.on_finding(finding)
