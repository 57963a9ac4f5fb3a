"""Makes JSON texts fit a type: unknown fields are left out, and fields of another type become null or their text.

`kbatch.kernels.jsonfields` does the work; this module compiles types for it and names its findings.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.escaping import printable
from kbatch.extras import require
from kbatch.kernels.jsonfields import FINDING_COLUMNS, FINDINGS, FieldTree
from kbatch.quantities import INT32_MAX
from kbatch.values.deviations import FURTHER, DeviationKind, FieldDeviation
from kbatch.values.parsed import ByteSlices

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FittedTexts", "NodeShape", "fit_texts"]


class NodeShape(IntEnum):
    """Kinds of nodes; the twin is `Shape` in kernels/jsonfields.pyx."""

    STRUCT = 0
    LIST = 1
    BOOLEAN = 2
    INTEGER = 3
    DIGITS = 4
    DOUBLE = 5
    NUMBER = 6
    STRING = 7
    TEXT = 8


# By `JsonValueKind` and by `Kind` in kernels/jsonfields.pyx.
_FOUND = ("an object", "an array", "a string", "a number", "a boolean")
_CONTAINERS = {NodeShape.STRUCT: "an object", NodeShape.LIST: "an array"}
_DEVIATION_KINDS: tuple[DeviationKind, ...] = ("unknown", "conflict", "text")
# The characters of a name in a path.
_SHOWN_NAME = 100


class FittedTexts(NamedTuple):
    """Texts that fit a type.

    Attributes
    ----------
    texts : ByteSlices
        For each row of the column; empty for rows that were not chosen.
    errors : dict of int to str
        The reason for each row that has lost data.
    deviations : list of FieldDeviation
    doubtful : ndarray of bool
        For each chosen row, whether a parser may accept or refuse the text for something that was left out.
    """

    texts: ByteSlices
    errors: dict[int, str]
    deviations: list[FieldDeviation]
    doubtful: npt.NDArray[np.bool_]


class _Tree(NamedTuple):
    """A compiled type. Each node has its parent, its part of the path, and its type."""

    tree: FieldTree
    parents: list[int]
    parts: list[str]
    types: list[str]

    def path(self, node: int) -> str:
        """Return the path of a node, such as ``user.tags[]``."""
        parts = []
        while node:
            parts.append(self.parts[node])
            node = self.parents[node]
        return "".join(reversed(parts)).removeprefix(".")


def fit_texts(
    kind: pa.DataType,
    slices: ByteSlices,
    rows: npt.NDArray[np.int64],
    kept: pa.DataType | None = None,
    doubted: Iterable[DeviationKind] = (),
) -> FittedTexts:
    """Change texts so that they fit a type, and describe the fields that did not. Invalid JSON is not changed.

    Parameters
    ----------
    kind : pyarrow.DataType
    slices : ByteSlices
    rows : ndarray of int64
        The chosen rows.
    kept : pyarrow.DataType, optional
        The part of `kind` that the texts are to have: a struct of some fields. The others are checked and left out.
    doubted : iterable of {"unknown", "conflict", "text"}
        The deviations that make a text doubtful.
    """
    compiled = _tree_of(kind, kind if kept is None else kept)
    doubts = np.zeros(len(rows), np.uint8)
    bits = sum(1 << _DEVIATION_KINDS.index(each) for each in doubted)
    lengths = slices.offsets[rows + 1].astype(np.int64) - slices.offsets[rows]
    out = np.empty(min(4 * int(lengths.sum()), INT32_MAX), np.uint8)
    offsets, marks = np.zeros(len(rows) + 1, np.int32), np.zeros(len(rows), np.int32)
    findings = np.zeros((FINDINGS, FINDING_COLUMNS), np.int64)
    compiled.tree.fit(slices.offsets, slices.content, rows, out, offsets, marks, findings, doubts, bits)
    sizes = np.zeros(len(slices.offsets) - 1, np.int32)
    sizes[rows] = np.diff(offsets)
    starts = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=starts[1:])
    texts = ByteSlices(starts, out[: int(offsets[-1])], slices.valid)
    described = {
        number: _deviation_of(compiled, finding, slices.content, listed=number < FINDINGS - len(_DEVIATION_KINDS))
        for number, finding in enumerate(findings.tolist())
        if finding[4]
    }
    reasons = {number: _error(each) for number, each in described.items()}
    lost = np.flatnonzero(marks >= 0)
    errors = dict(zip(rows[lost].tolist(), map(reasons.__getitem__, marks[lost].tolist()), strict=True))
    return FittedTexts(texts, errors, list(described.values()), doubts.view(np.bool_))


def _deviation_of(
    compiled: _Tree, finding: list[int], content: npt.NDArray[np.uint8], *, listed: bool
) -> FieldDeviation:
    kind, node, detail, length, count, row = finding
    if not listed:
        return FieldDeviation(_DEVIATION_KINDS[kind], None, FURTHER, count, row)
    path = compiled.path(node)
    if _DEVIATION_KINDS[kind] == "unknown":
        name = str(json.loads(b'"%s"' % content[detail : detail + length].tobytes()))
        name = _shown_field(name)
        path = f"{path}.{name}" if path else name
        return FieldDeviation("unknown", path, "not in the schema", count, row)
    found = f"found {_FOUND[detail]}"
    if _DEVIATION_KINDS[kind] == "text":
        return FieldDeviation("text", path, found, count, row)
    expected = compiled.types[node]
    if found == "found a number" and expected not in ("an object", "an array", "bool"):
        found += " that it cannot represent"
    return FieldDeviation("conflict", path, f"expected {expected}, {found}", count, row)


def _error(deviation: FieldDeviation) -> str:
    if deviation.field is None:
        return "a field is not in the schema" if deviation.kind == "unknown" else "a field has another type"
    if deviation.kind == "unknown":
        return f"field {deviation.field!r} is not in the schema"
    return f"{printable(deviation.field)}: {deviation.reason}" if deviation.field else deviation.reason


def _shown_field(name: str) -> str:
    return name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}..."


@functools.lru_cache(maxsize=32)
def _tree_of(kind: pa.DataType, kept: pa.DataType) -> _Tree:
    types = require("pyarrow", "arrow", "values_json()").types
    shapes: list[tuple[int, int]] = []
    limits: list[tuple[int, int]] = []
    fields: list[tuple[int, int]] = []
    names: list[bytes] = []
    parents: list[int] = []
    parts: list[str] = []
    shown: list[str] = []
    hidden: list[bool] = []

    def add(each: pa.DataType, of_kept: pa.DataType | None, parent: int, part: str) -> int:
        number = len(shapes)
        hidden.append(of_kept is None)
        shape, *of_shape = _shape(types, each)
        shapes.append((shape, 0))
        limits.append((of_shape[0], of_shape[1]))
        parents.append(parent)
        parts.append(part)
        shown.append(_CONTAINERS[shape] if shape in _CONTAINERS else str(each))
        if shape == NodeShape.LIST:
            shapes[number] = (shape, add(each.value_type, of_kept and of_kept.value_type, number, "[]"))
        elif shape == NodeShape.STRUCT:
            parts_kept = {} if of_kept is None else {field.name: field.type for field in of_kept}
            for field in each:
                below = add(field.type, parts_kept.get(field.name), number, f".{_shown_field(field.name)}")
                fields.append((number, below))
                names.append(field.name.encode())
        return number

    add(kind, kept, 0, "")
    tree = FieldTree(
        np.array(shapes, np.int32),
        np.array(limits, np.uint64),
        np.array(fields, np.int32).reshape(-1, 2),
        names,
        np.array(hidden, np.bool_),
    )
    return _Tree(tree, parents, parts, shown)


def _shape(types: Any, kind: pa.DataType) -> tuple[NodeShape, int, int]:
    """Return the shape of a type, with the limits of its integers."""
    if types.is_struct(kind):
        return NodeShape.STRUCT, 0, 0
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return NodeShape.LIST, 0, 0
    if types.is_boolean(kind):
        return NodeShape.BOOLEAN, 0, 0
    if types.is_signed_integer(kind):
        least = 1 << (kind.bit_width - 1)
        return NodeShape.INTEGER, least, least - 1
    if types.is_unsigned_integer(kind):
        return NodeShape.INTEGER, 0, (1 << kind.bit_width) - 1
    if types.is_decimal(kind) and kind.scale == 0:
        return NodeShape.DIGITS, 0, kind.precision
    if types.is_null(kind):
        # No number has so few digits.
        return NodeShape.DIGITS, 0, 0
    if types.is_float64(kind):
        return NodeShape.DOUBLE, 0, 0
    if types.is_floating(kind) or types.is_decimal(kind):
        return NodeShape.NUMBER, 0, 0
    if types.is_string(kind) or types.is_large_string(kind):
        return NodeShape.TEXT, 0, 0
    return NodeShape.STRING, 0, 0
