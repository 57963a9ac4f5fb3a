"""The memory of parsed values: how much they take, before it is allocated.

A short value can take much memory: every row of a column, and every item of a list, has a place in each column of the
fields below it, also if the value has none of the fields. Two bytes of JSON, ``{}``, become 20,000 places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbatch.errors import LimitExceededError
from kbatch.extras import require
from kbatch.quantities import SizeLike, size_between

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ERROR_BYTES",
    "MAX_PARSED_BYTES",
    "ListMemory",
    "MemoryBudget",
    "TypeMemory",
    "ValuesTooLargeError",
    "memory_of_type",
]

# The memory that parsed values may take without another limit.
MAX_PARSED_BYTES = 2 << 30
# The memory of a bad row: its number and its error.
ERROR_BYTES = 256
# The memory of a place in a column besides the value: its validity, offset, and share of temporary arrays.
_PLACE_BYTES = 8


class ValuesTooLargeError(LimitExceededError):
    """The columns of values that are parsed at once need more memory than allowed."""


class MemoryBudget:
    """The memory that the columns of some values may take, in bytes."""

    def __init__(self, max_bytes: SizeLike) -> None:
        self.max_bytes = self.rest = size_between("max_bytes", max_bytes, 0)

    def take(self, size: int) -> None:
        """Use `size` bytes; ValuesTooLargeError if they exceed the rest."""
        self.rest -= size
        if self.rest < 0:
            raise ValuesTooLargeError(f"takes more than {self.max_bytes} bytes of memory as columns")

    def take_errors(self, count: int) -> None:
        """Use the memory of the errors of `count` bad rows, before they are made."""
        self.take(count * ERROR_BYTES)


class TypeMemory(NamedTuple):
    """The memory of values of a type, in bytes, without the contents of strings.

    Attributes
    ----------
    row : int
        Of a value, without the items of its lists.
    item : int
        Of an item of any list or map, without the items of its own lists.
    """

    row: int
    item: int


def memory_of_type(kind: pa.DataType) -> TypeMemory:
    """Return the memory of values of an Arrow type."""
    types = require("pyarrow", "arrow", "parsing values").types
    if types.is_struct(kind):
        fields = [memory_of_type(field.type) for field in kind]
        return TypeMemory(
            _PLACE_BYTES + sum(field.row for field in fields), max((field.item for field in fields), default=0)
        )
    if types.is_map(kind):
        key, value = memory_of_type(kind.key_type), memory_of_type(kind.item_type)
        return TypeMemory(_PLACE_BYTES, max(key.row + value.row, value.item))
    if types.is_list(kind) or types.is_large_list(kind):
        item = memory_of_type(kind.value_type)
        return TypeMemory(_PLACE_BYTES, max(item.row, item.item))
    try:
        return TypeMemory(_PLACE_BYTES + (kind.bit_width + 7) // 8, 0)
    except ValueError:
        # Types without a fixed width.
        return TypeMemory(_PLACE_BYTES, 0)


class ListMemory(NamedTuple):
    """Where a type has lists, and the memory of their items.

    Attributes
    ----------
    item : int
        Of an item, in bytes, if the type is a list; otherwise 0.
    below : ListMemory or None
        The lists in the items.
    fields : dict of str to ListMemory
        The fields of a struct that have lists.
    """

    item: int
    below: ListMemory | None
    fields: dict[str, ListMemory]

    @classmethod
    def of(cls, kind: pa.DataType) -> ListMemory:
        """Return the lists of an Arrow type."""
        types = require("pyarrow", "arrow", "parsing values").types
        if types.is_list(kind) or types.is_large_list(kind):
            below = cls.of(kind.value_type)
            return cls(memory_of_type(kind.value_type).row, below if below.item or below.fields else None, {})
        if not types.is_struct(kind):
            return cls(0, None, {})
        parts = {field.name: cls.of(field.type) for field in kind}
        return cls(0, None, {name: part for name, part in parts.items() if part.item or part.fields})
