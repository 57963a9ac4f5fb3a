"""Losses: ranges of bytes that gave no records."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from kbatch.errors import Fault, Finding, finding_text
from kbatch.public_names import public_in

__all__ = ["Loss", "LossList"]

# The fields of a row: position, length, base offset, reason, and the expected and the found value of the reason.
_ROW_FIELDS = 6
# The reason is the fault, whether there is a base offset, the number of the text plus 1, and that of the file plus 1.
_FAULT, _HAS_OFFSET, _TEXT_SHIFT, _FILE_SHIFT = 0x7F, 0x80, 8, 36
_TEXT_MASK = (1 << _FILE_SHIFT - _TEXT_SHIFT) - 1
# By fault: bytes that no batch begins with have no base offset.
_OFFSET_FLAGS = np.full(_FAULT + 1, _HAS_OFFSET)
_OFFSET_FLAGS[[Fault.LENGTH_TOO_SMALL, Fault.BAD_MAGIC, Fault.BATCH_TOO_SHORT, Fault.LENGTH_TOO_LONG]] = 0
# The memory of a row with the spare capacity of the array, and of a text in addition to its characters.
_ROW_BYTES = _ROW_FIELDS * 8 * 9 // 8
_TEXT_OVERHEAD = 200


@public_in("kbatch")
class Loss(NamedTuple):
    """A range of bytes of the source that gave no records, or a gap between two segments of a log.

    Attributes
    ----------
    position, length : int
        The range, in bytes from the beginning of the source. A gap has the length 0, at the end of the segment before.
    reason : str
        Why the range was lost, or which offsets are missing.
    base_offset : int or None
        Base offset of the batch that was lost, if its header could be framed; the first offset of a gap.
    file : str or None
        The source, if it is known: the file of the log's segment.

    Examples
    --------
    >>> import kbatch
    >>> data = bytearray(kbatch.encode([b"v"], timestamps=1000))
    >>> data[-1] ^= 1
    >>> [(loss.position, loss.length, loss.base_offset) for loss in kbatch.decode(data, on_error="skip").losses]
    [(0, 69, 0)]
    """

    position: int
    length: int
    reason: str
    base_offset: int | None = None
    file: str | None = None


class LossList(Sequence[Loss]):
    """The losses of a table, by position. A `Loss` is made when it is accessed: until then, one takes 54 bytes.

    It is compared with lists, and concatenated with them to a list.
    """

    __slots__ = ("_numbers", "_rows", "_source", "_text_bytes", "_texts")

    def __init__(self, losses: Iterable[Loss] = ()) -> None:
        self._rows = array("q")
        # The file of a loss without one of its own.
        self._source: str | None = None
        # The different files, and texts of reasons that are not the text of a fault alone, and their numbers.
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._text_bytes = 0
        for loss in losses:
            self._append(*loss)

    def _append(
        self,
        position: int,
        length: int,
        reason: Finding | str,
        base_offset: int | None = None,
        file: str | None = None,
    ) -> None:
        """Append a loss; a `Finding` takes no memory for its text."""
        if isinstance(reason, str):
            number, expected, found = self._reason(0, reason), 0, 0
        else:
            fault, _, _, expected, found, text = reason
            number = self._reason(fault, text)
        if file is not None and file != self._source:
            number |= (self._number(file) + 1) << _FILE_SHIFT
        if base_offset is None:
            self._rows.extend((position, length, 0, number, expected, found))
        else:
            self._rows.extend((position, length, base_offset, number | _HAS_OFFSET, expected, found))

    def _reason(self, fault: int, text: str) -> int:
        """Return the reason with this fault and text as in a row, without a base offset."""
        return fault | (self._number(text) + 1) << _TEXT_SHIFT if text or not fault else fault

    def _append_rows(self, rows: npt.NDArray[np.int64]) -> None:
        """Append losses in the form of `Pipeline.run_skipping`: the fault decides whether there is a base offset."""
        if len(rows):
            rows[:, 3] |= _OFFSET_FLAGS[rows[:, 3] & _FAULT]
            self._rows.frombytes(rows.tobytes())

    def _settle(self, first: int, end: int) -> None:
        """Sort the losses from number `first` on by position, and drop those that do not begin before `end`."""
        rows = np.array(self._rows[first * _ROW_FIELDS :], np.int64).reshape(-1, _ROW_FIELDS)
        rows = rows[rows[:, 0] < end]
        self._truncate(first)
        self._rows.frombytes(rows[np.argsort(rows[:, 0], kind="stable")].tobytes())

    def _truncate(self, count: int) -> None:
        """Keep the first `count` losses."""
        del self._rows[count * _ROW_FIELDS :]

    def _number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
            self._text_bytes += len(text) + _TEXT_OVERHEAD
        return number

    def _of(self, source: str | None) -> LossList:
        """Return the same losses, with `source` as the file of those that name none."""
        named = LossList()
        named._rows, named._texts, named._numbers = self._rows, self._texts, self._numbers
        named._text_bytes = self._text_bytes
        named._source = self._source if source is None else source
        return named

    def _extended(self, losses: Iterable[Loss]) -> LossList:
        """Return a list of these losses and then `losses`."""
        longer = LossList()
        longer._rows, longer._texts, longer._numbers = self._rows[:], self._texts[:], self._numbers.copy()
        longer._text_bytes, longer._source = self._text_bytes, self._source
        for loss in losses:
            longer._append(*loss)
        return longer

    @property
    def nbytes(self) -> int:
        """The memory of all losses, in bytes."""
        return len(self._rows) * _ROW_BYTES // _ROW_FIELDS + self._text_bytes

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """The position of each loss."""
        return np.array(self._rows[::_ROW_FIELDS], np.int64)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The length of each loss."""
        return np.array(self._rows[1::_ROW_FIELDS], np.int64)

    @property
    def end(self) -> int:
        """The position after the last lost byte, 0 without losses."""
        return int((self.positions + self.lengths).max(initial=0))

    def _loss(self, at: int) -> Loss:
        position, length, base_offset, reason, expected, found = self._rows[at : at + _ROW_FIELDS]
        fault = reason & _FAULT
        number, file = reason >> _TEXT_SHIFT & _TEXT_MASK, reason >> _FILE_SHIFT
        text = self._texts[number - 1] if number else ""
        if fault:
            text = finding_text(Finding(Fault(fault), expected=expected, found=found, detail=text))
        return Loss(
            position,
            length,
            text,
            base_offset if reason & _HAS_OFFSET else None,
            self._texts[file - 1] if file else self._source,
        )

    def __len__(self) -> int:
        return len(self._rows) // _ROW_FIELDS

    def __iter__(self) -> Iterator[Loss]:
        return map(self._loss, range(0, len(self._rows), _ROW_FIELDS))

    @overload
    def __getitem__(self, index: int, /) -> Loss: ...

    @overload
    def __getitem__(self, index: slice, /) -> list[Loss]: ...

    def __getitem__(self, index: int | slice, /) -> Loss | list[Loss]:
        places = range(0, len(self._rows), _ROW_FIELDS)[index]
        return self._loss(places) if isinstance(places, int) else list(map(self._loss, places))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LossList | list):
            return NotImplemented
        return len(self) == len(other) and all(map(Loss.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Iterable[Loss]) -> list[Loss]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Loss]) -> list[Loss]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))
