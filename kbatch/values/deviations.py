"""Fields of JSON values that do not fit an inferred schema: which, how often, and where first."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kbatch.public_names import public_in

__all__ = ["MAX_DEVIATIONS", "DeviationKind", "DeviationTable", "FieldDeviation"]

DeviationKind = Literal["unknown", "conflict", "text"]

# The number of fields that are listed; further ones are counted together, for each kind.
MAX_DEVIATIONS = 100
FURTHER = "further fields"


@public_in("kbatch.values")
class FieldDeviation(NamedTuple):
    """A field of JSON values that does not fit an inferred schema.

    Attributes
    ----------
    kind : {"unknown", "conflict", "text"}
        The schema lacks the field (its name is then ``field``); it has another type, so that the column has null; or
        it is in a column of text, which has its JSON text.
    field : str or None
        Path, such as ``user.tags[]``; empty for the whole value. None means all fields after the first hundred.
    reason : str
    occurrences : int
        Their number, including those in values that cannot be parsed for another reason.
    row : int
        The first record with it.

    Examples
    --------
    >>> import kbatch
    >>> table = kbatch.decode(kbatch.encode([b'{"a": 1, "b": "x"}', b'{"a": 1}', b'{"a": 1, "b": 2}']))
    >>> table.values_json().deviations
    [FieldDeviation(kind='text', field='b', reason='found a number', occurrences=1, row=2)]
    """

    kind: DeviationKind
    field: str | None
    reason: str
    occurrences: int
    row: int


class DeviationTable:
    """Counts deviations by key, whose last two items are the field and the reason, and keeps the first place of each.

    At most `MAX_DEVIATIONS` keys are kept, and one for the further fields with the same other items.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str | None, ...], tuple[int, tuple[object, ...]]] = {}

    def add(self, key: tuple[str | None, ...], count: int, place: tuple[object, ...]) -> None:
        """Add occurrences; `place` is the first of them."""
        if key not in self.found and len(self.found) >= MAX_DEVIATIONS:
            key = (*key[:-2], None, FURTHER)
        before, first = self.found.get(key, (0, place))
        self.found[key] = (before + count, first)
