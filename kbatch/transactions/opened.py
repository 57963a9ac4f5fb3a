"""Open transactions in arrays: an object for each would take hundreds of bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from kbatch.format import NO_TIMESTAMP
from kbatch.public_names import public_in

__all__ = [
    "INDEX_BYTES",
    "OPEN_BYTES",
    "Begun",
    "OpenTransaction",
    "OpenTransactions",
    "OpenedRows",
    "ProducerIndex",
    "as_array",
]

_OPEN_DTYPE = np.dtype([("producer_id", "<i8"), ("first_offset", "<i8"), ("first_timestamp", "<i8")])
# Producers that an index adds one by one before it sorts them, as a part of the sorted ones and at least.
_RECENT_PART = 8
_RECENT = 1024
# Rows of ended transactions that are kept, in addition to a fraction of the number of open ones.
_SPARE_OPEN_ROWS = 64
# The memory of an open transaction: a row with its flag, and a quarter of one that has ended or that an array reserves;
# an entry of the sorted index, and a part of one of the unsorted index (a dict of two int objects takes up to 192 bytes
# for each); and a row of the result with a copy, or the arrays of a sort.
_OPEN_FIELDS = 4
_OPEN_ROW_BYTES = (8 * _OPEN_FIELDS + 1) * 5 // 4
INDEX_BYTES = 16 * 9 // 8 + 192 // _RECENT_PART
OPEN_BYTES = _OPEN_ROW_BYTES + INDEX_BYTES + 8 * _OPEN_FIELDS + _OPEN_DTYPE.itemsize + 21


@public_in("kbatch")
class OpenTransaction(NamedTuple):
    """A transaction that no marker has decided yet.

    Attributes
    ----------
    producer_id : int
    first_offset : int
        Base offset of its first batch (LSO-R3).
    first_timestamp : int
        Base timestamp of that batch, in milliseconds since the epoch; -1 if unknown.

    References
    ----------
    Rules such as LSO-R3 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.Log("tests/golden/logs/txn-0").transactions().open[0]
    OpenTransaction(producer_id=1002, first_offset=362, first_timestamp=1700000040000)
    """

    producer_id: int
    first_offset: int
    first_timestamp: int = NO_TIMESTAMP


class OpenTransactions(Sequence[OpenTransaction]):
    """A sequence of open transactions, each of which is an object only while it is used.

    Parameters
    ----------
    producer_ids, first_offsets, first_timestamps : ndarray of int64, shape (transactions,)
    """

    __slots__ = ("_rows",)

    def __init__(
        self,
        producer_ids: npt.NDArray[np.int64],
        first_offsets: npt.NDArray[np.int64],
        first_timestamps: npt.NDArray[np.int64],
    ) -> None:
        self._rows = np.empty(len(producer_ids), _OPEN_DTYPE)
        columns = (producer_ids, first_offsets, first_timestamps)
        for name, column in zip(_OPEN_DTYPE.names or (), columns, strict=True):
            self._rows[name] = column

    @classmethod
    def of(cls, transactions: Iterable[OpenTransaction]) -> OpenTransactions:
        """Return these transactions as such a sequence."""
        if isinstance(transactions, cls):
            return transactions
        values = array("q")
        for each in transactions:
            values.extend(map(int, OpenTransaction(*each)))
        return cls(*np.array(values, np.int64).reshape(-1, 3).T)

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """The columns ``producer_id``, ``first_offset`` and ``first_timestamp``."""
        return self._rows

    def below(self, offset: int) -> OpenTransactions:
        """Return those that begin before an offset."""
        rows = self._rows[self._rows["first_offset"] < offset]
        return OpenTransactions(rows["producer_id"], rows["first_offset"], rows["first_timestamp"])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> OpenTransaction: ...

    @overload
    def __getitem__(self, index: slice) -> list[OpenTransaction]: ...

    def __getitem__(self, index: int | slice) -> OpenTransaction | list[OpenTransaction]:
        """Return one, or a list of those of a slice."""
        if isinstance(index, slice):
            return [OpenTransaction(*row) for row in self._rows[index].tolist()]
        return OpenTransaction(*self._rows[index].tolist())

    def __iter__(self) -> Iterator[OpenTransaction]:
        for begin in range(0, len(self._rows), _RECENT):
            yield from self[begin : begin + _RECENT]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OpenTransactions):
            return np.array_equal(self._rows, other._rows)
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self[:])

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenTransactions, tuple(self._rows[name] for name in _OPEN_DTYPE.names or ())


class Begun(NamedTuple):
    """The first batch of an open transaction."""

    position: int
    first_offset: int
    producer_id: int
    first_timestamp: int


def as_array(numbers: npt.NDArray[np.int64]) -> array[int]:
    """Return numbers as an array that can grow."""
    values = array("q")
    values.frombytes(numbers.reshape(-1).view(np.uint8).data)
    return values


class ProducerIndex:
    """A number for each of many producer ids.

    The ids are sorted in an array, except for recent ones: adding and removing one takes constant amortized time, and
    finding one a binary search.
    """

    __slots__ = ("_count", "_ids", "_numbers", "_recent")

    def __init__(self, ids: npt.ArrayLike = (), numbers: npt.ArrayLike = ()) -> None:
        self._recent: dict[int, int] = {}
        self._sort(np.asarray(ids, np.int64), np.asarray(numbers, np.int64))

    def _sort(self, ids: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> None:
        order = np.argsort(ids)
        # The number of a producer that was removed is -1.
        self._ids, self._numbers = as_array(ids[order]), as_array(numbers[order])
        self._count = len(order)

    def __len__(self) -> int:
        return self._count

    def find(self, producer_id: int) -> int:
        """Return the number of a producer, or -1."""
        number = self._recent.get(producer_id)
        if number is not None:
            return number
        at = bisect_left(self._ids, producer_id)
        return self._numbers[at] if at < len(self._ids) and self._ids[at] == producer_id else -1

    def add(self, producer_id: int, number: int) -> None:
        """Add a producer that is not in the index."""
        self._recent[producer_id] = number
        self._count += 1
        if len(self._recent) > _RECENT + len(self._ids) // _RECENT_PART:
            ids, numbers = self.columns()
            self._recent = {}
            self._sort(ids, numbers)

    def pop(self, producer_id: int) -> int:
        """Remove a producer; return its number, or -1."""
        number = self._recent.pop(producer_id, -1)
        if number < 0:
            at = bisect_left(self._ids, producer_id)
            if at == len(self._ids) or self._ids[at] != producer_id or self._numbers[at] < 0:
                return -1
            number, self._numbers[at] = self._numbers[at], -1
        self._count -= 1
        return number

    def columns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return all producer ids and their numbers, in no particular order."""
        ids, numbers = np.array(self._ids, np.int64), np.array(self._numbers, np.int64)
        kept, count = numbers >= 0, len(self._recent)
        recent = (np.fromiter(each, np.int64, count) for each in (self._recent.keys(), self._recent.values()))
        ids, numbers = (np.append(old[kept], new) for old, new in zip((ids, numbers), recent, strict=True))
        return ids, numbers


class OpenedRows:
    """The open transactions of a tracker, in the order in which they began."""

    def __init__(self) -> None:
        # The fields of `Begun`, and whether the transaction is open. Rows before `_first` are not.
        self._rows = array("q")
        self._is_open = bytearray()
        self._first = 0
        self._index = ProducerIndex()

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, producer_id: int) -> bool:
        return self._index.find(producer_id) >= 0

    def get(self, producer_id: int) -> Begun | None:
        """Return the open transaction of a producer, or None."""
        row = self._index.find(producer_id)
        return None if row < 0 else self._row(row)

    def begin(self, transaction: Begun) -> None:
        """Add a transaction; the producer has no open one, and it begins after the others."""
        rows = len(self._is_open)
        if rows > _SPARE_OPEN_ROWS and rows > len(self) + len(self) // _RECENT_PART + _SPARE_OPEN_ROWS:
            self._forget_ended()
        self._index.add(transaction.producer_id, len(self._is_open))
        self._rows.extend(transaction)
        self._is_open.append(1)

    def end(self, producer_id: int) -> Begun | None:
        """Remove the open transaction of a producer and return it, or None."""
        row = self._index.pop(producer_id)
        if row < 0:
            return None
        self._is_open[row] = 0
        return self._row(row)

    def first(self) -> Begun | None:
        """Return the earliest transaction, or None."""
        row = self._is_open.find(1, self._first)
        self._first = len(self._is_open) if row < 0 else row
        return None if row < 0 else self._row(row)

    def clear(self) -> None:
        """Remove all transactions."""
        self.__init__()  # type: ignore[misc]

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the fields of all transactions in order, as a new array of shape (transactions, 4)."""
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, _OPEN_FIELDS)
        return rows[np.frombuffer(self._is_open, np.bool_)]

    def _row(self, row: int) -> Begun:
        return Begun(*self._rows[_OPEN_FIELDS * row : _OPEN_FIELDS * (row + 1)])

    def _forget_ended(self) -> None:
        rows = self.rows()
        self._rows = as_array(rows)
        self._is_open = bytearray(b"\1") * len(rows)
        self._first = 0
        self._index = ProducerIndex(rows[:, 2], np.arange(len(rows)))
