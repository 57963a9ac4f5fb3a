"""The result of a comparison of logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbatch.escaping import counted
from kbatch.options import Match
from kbatch.public_names import public_in
from kbatch.records.display import short_repr
from kbatch.records.loss_list import Loss
from kbatch.transactions import OpenTransaction

__all__ = ["ComparedLog", "ComparedRecord", "Comparison", "Difference", "PartitionComparison"]


@public_in("kbatch.log")
class ComparedRecord(NamedTuple):
    """A record of one side of a difference.

    Attributes
    ----------
    offset : int
    timestamp : int or None
        Milliseconds since the epoch.
    key, value : bytes or None
    headers : list of (bytes, bytes or None)

    Examples
    --------
    >>> from kbatch.log import compare_logs
    >>> logs = "tests/golden/logs/compact-src-0", "tests/golden/logs/compact-pass1-0"
    >>> record = compare_logs(*logs).partitions[0].first.a
    >>> record.offset, record.timestamp, record.key
    (0, 1700000185000, b'key-17')
    """

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


@public_in("kbatch.log")
@dataclass(frozen=True, slots=True, repr=False)
class Difference:
    """A record that differs, or that only one side has.

    Attributes
    ----------
    a, b : ComparedRecord or None
        The record of each side; None if this side does not have it.
    fields : tuple of str
        Which of timestamp, key, value and headers differ; empty if only one side has the record.
    row : int or None
        With ``match="order"`` the number of records before it; otherwise None.

    Examples
    --------
    >>> from kbatch.log import compare_logs
    >>> logs = "tests/golden/logs/compact-src-0", "tests/golden/logs/compact-pass1-0"
    >>> compare_logs(*logs, match="order").partitions[0].first.fields
    ('timestamp', 'key', 'value')
    """

    a: ComparedRecord | None
    b: ComparedRecord | None
    fields: tuple[str, ...] = ()
    row: int | None = None

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)


@public_in("kbatch.log")
@dataclass(slots=True, repr=False)
class ComparedLog:
    """The records read of one side of a partition.

    Attributes
    ----------
    path : str
    records : int
        Records read, without control records.
    control_records : int
        Control records in the same batches and between them, such as transaction markers. They are not compared.
    open_transactions : sequence of OpenTransaction
        The transactions of the log without a marker, by first offset, if a transaction is in what was read.
    keyless : int
        With ``match="key"`` the records without a key, which are not compared.
    withheld : int
        Under read_committed, the open and undecided transactions, whose records are withheld.
    losses : list of Loss
        Byte ranges that were skipped because of damage; each reason begins with the file.
    start_offset, end_offset : int or None
        With ``extent="common"``, the first offset of the log, and the one after its last record; under read_committed
        the last stable offset.
    digest : str or None
        With ``digests=True``, 32 hexadecimal digits over offset, timestamp, key, value and headers of the records that
        were read. They depend on neither batches nor codecs, and are the same on every machine.

    Examples
    --------
    >>> from kbatch.log import compare_logs
    >>> logs = "tests/golden/logs/compact-src-0", "tests/golden/logs/compact-pass1-0"
    >>> compare_logs(*logs).partitions[0].a.records
    99
    """

    path: str
    records: int = 0
    control_records: int = 0
    open_transactions: Sequence[OpenTransaction] = ()
    keyless: int = 0
    withheld: int = 0
    losses: list[Loss] = field(default_factory=list)
    start_offset: int | None = None
    end_offset: int | None = None
    digest: str | None = None

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)


@public_in("kbatch.log")
@dataclass(slots=True, repr=False)
class PartitionComparison:
    """The comparison of the two logs of a topic-partition.

    Attributes
    ----------
    topic : str or None
    partition : int or None
    a, b : ComparedLog or None
        The sides; None if a side does not have the partition.
    matching, different, only_a, only_b : int
        Records that are equal, that differ, and that only one side has; with ``match="key"`` keys instead of records.
    fields : dict of str to int
        The number of records in which a field differs, for timestamp, key, value and headers.
    first : Difference or None
        The first difference: with the lowest offset, or by ``match="order"`` the first in order. With ``match="key"``
        the one with the lowest offset in `a`, else in `b`.
    compared_offsets : (int, int) or None
        With ``extent="common"`` the offsets that were compared, the second one exclusive: those that both logs have,
        within the bounds of the caller. None if neither log has an offset within these.

    Examples
    --------
    >>> from kbatch.log import compare_logs
    >>> logs = "tests/golden/logs/compact-src-0", "tests/golden/logs/compact-pass1-0"
    >>> partition = compare_logs(*logs).partitions[0]
    >>> partition.matching, partition.different, partition.only_a, partition.only_b
    (19, 0, 80, 0)
    """

    topic: str | None
    partition: int | None
    a: ComparedLog | None
    b: ComparedLog | None
    matching: int = 0
    different: int = 0
    only_a: int = 0
    only_b: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    first: Difference | None = None
    compared_offsets: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)

    @property
    def sides(self) -> list[ComparedLog]:
        """The sides that have the partition."""
        return [side for side in (self.a, self.b) if side is not None]

    @property
    def equal(self) -> bool:
        """Whether both sides have the partition, no record differs, and the logs are not disjoint."""
        return len(self.sides) == 2 and not (self.different or self.only_a or self.only_b or self.disjoint)

    @property
    def disjoint(self) -> bool:
        """Whether nothing could be compared: a log has offsets within the bounds, but both have none in common."""
        return self.compared_offsets is not None and self.compared_offsets[0] >= self.compared_offsets[1]

    @property
    def damaged(self) -> bool:
        """Whether damage was skipped on a side; then `equal` concerns only the remaining records."""
        return any(side.losses for side in self.sides)


@public_in("kbatch.log")
@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The result of `compare_logs`.

    Attributes
    ----------
    match : {"offset", "order", "key"}
    partitions : list of PartitionComparison
        Sorted by topic and partition.

    Examples
    --------
    >>> from kbatch.log import compare_logs
    >>> logs = "tests/golden/logs/compact-src-0", "tests/golden/logs/compact-pass1-0"
    >>> compare_logs(*logs)
    <Comparison of 1 topic-partition: 1 different>
    """

    match: Match
    partitions: list[PartitionComparison]

    def __repr__(self) -> str:
        different = sum(not each.equal for each in self.partitions)
        damaged = ", damaged" if self.damaged else ""
        result = f"{different:,} different" if different else "all equal"
        return f"<Comparison of {counted(len(self.partitions), 'topic-partition')}: {result}{damaged}>"

    @property
    def equal(self) -> bool:
        """Whether all partitions are equal."""
        return all(each.equal for each in self.partitions)

    @property
    def damaged(self) -> bool:
        """Whether damage was skipped in any partition."""
        return any(each.damaged for each in self.partitions)
