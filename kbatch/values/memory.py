"""The memory of parsed values: how much they take, before it is allocated.

A short value can take much memory: every row of a column, and every item of a list, has a place in each column of the
fields below it, also if the value has none of the fields. Two bytes of JSON, ``{}``, become 20,000 places.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from kbatch.errors import LimitExceededError
from kbatch.extras import require
from kbatch.quantities import SizeLike, size_between

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ERROR_BYTES",
    "MAX_PARSED_BYTES",
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
# The memory of a column besides its places: the objects of an array, and what pads its buffers.
_COLUMN_BYTES = 1024


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

    def give_back(self, size: int) -> None:
        """Return `size` bytes that were taken and are free again."""
        self.rest += size

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
    of_columns : int
        Of the columns of an array, however few values it has.
    """

    row: int
    item: int
    of_columns: int


def memory_of_type(kind: pa.DataType) -> TypeMemory:
    """Return the memory of values of an Arrow type."""
    types = require("pyarrow", "arrow", "parsing values").types
    row, item, children = _PLACE_BYTES, 0, []
    if types.is_struct(kind):
        children = [memory_of_type(field.type) for field in kind]
        row += sum(child.row for child in children)
        item = max((child.item for child in children), default=0)
    elif types.is_map(kind):
        children = [memory_of_type(kind.key_type), memory_of_type(kind.item_type)]
        item = max(sum(child.row for child in children), children[1].item)
    elif types.is_list(kind) or types.is_large_list(kind):
        children = [memory_of_type(kind.value_type)]
        item = max(children[0].row, children[0].item)
    else:
        # Types without a fixed width, such as strings, have none.
        with contextlib.suppress(ValueError):
            row += (kind.bit_width + 7) // 8
    return TypeMemory(row, item, _COLUMN_BYTES + sum(child.of_columns for child in children))
