"""Parses fixed-width structs into an Arrow column, with one gather into a NumPy structured array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_fields, check_types, numpy_dtype
from kbatch.extras import require
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.values.memory import MAX_PARSED_BYTES, MemoryBudget, memory_of_type
from kbatch.values.parsed import Parsed, empty_structs, slices_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FixedParser", "parse_dtype", "pruned_dtype"]


# The memory of the position, the length and the verdict of a row.
_STRUCT_ROW_BYTES = 16
# Values are gathered in blocks of this size, because the index of each byte takes 8 bytes.
_GATHERED_BYTES = 64 << 10


def parse_dtype(text: str) -> np.dtype[Any]:
    """Read a dtype from text: ``"id:>i8,price:>f8"`` for a struct, ``">i8"`` for one number.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from kbatch.values.fixed import parse_dtype
    >>> parse_dtype("id:>i8,flag:u1"), parse_dtype(">i4")
    (dtype([('id', '>i8'), ('flag', 'u1')]), dtype('>i4'))
    """
    try:
        if ":" not in text:
            return np.dtype(text.strip())
        pairs = [part.rpartition(":") for part in text.split(",")]
        return np.dtype([(name.strip(), code.strip()) for name, _, code in pairs])
    except (TypeError, ValueError, SyntaxError) as error:  # NumPy evaluates a shape in parentheses as Python code.
        raise ValueError(
            f"{text!r} is not a struct: expected NAME:CODE,... with NumPy codes such as >i8: {error}"
        ) from None


@public_in("kbatch.values")
@dataclass(frozen=True)
class FixedParser:
    """Parser of values of one size.

    Attributes
    ----------
    dtype : dtype
        Type and byte order: Java's ``LongSerializer`` writes ``">i8"``. Supported are numbers, booleans, ``S`` and
        ``V`` (binary; ``S`` without trailing NULs), structs of them, and arrays of a fixed length. Padding is ignored.
    type : pyarrow.DataType
        The Arrow type, with integers of the same width and sign.

    Examples
    --------
    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from kbatch.values import FixedParser
    >>> rows = np.array([(1, 2.5)], [("id", ">i8"), ("price", ">f8")])
    >>> parsed = FixedParser("id:>i8,price:>f8").parse(pa.array([rows.tobytes(), b"short"]))
    >>> parsed.values.to_pylist(), parsed.bad.tolist()
    ([{'id': 1, 'price': 2.5}, None], [1])
    """

    dtype: npt.DTypeLike
    type: pa.DataType = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        pa = require("pyarrow", "arrow", "values_struct()")
        try:
            dtype = parse_dtype(self.dtype) if isinstance(self.dtype, str) else numpy_dtype(self.dtype)
        except ValueError as error:
            raise ValueError(f"dtype {error}") from None
        if dtype.hasobject or dtype.itemsize == 0:
            raise TypeError(f"dtype must have a fixed size in bytes, got {dtype}")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "type", _fixed_array(pa, np.empty(0, dtype)).type)

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""
        check_types(FixedParser.parse, locals())
        pa = require("pyarrow", "arrow", "values_struct()")
        dtype = np.dtype(self.dtype)
        # The bytes are gathered, and then become columns.
        budget = MemoryBudget(max_bytes)
        budget.take(len(column) * (_STRUCT_ROW_BYTES + 2 * dtype.itemsize + memory_of_type(self.type).row))
        slices = slices_of(column)
        starts = slices.offsets[:-1].astype(np.int64)
        lengths = slices.offsets[1:] - starts
        good = slices.valid & (lengths == dtype.itemsize)
        out = np.zeros((len(starts), dtype.itemsize), np.uint8)
        if len(starts) and good.all():
            out[:] = slices.content[starts[0] : starts[0] + out.size].reshape(out.shape)
        else:
            rows = np.flatnonzero(good)
            step = max(1, _GATHERED_BYTES // dtype.itemsize)
            for part in (rows[i : i + step] for i in range(0, len(rows), step)):
                out[part] = slices.content[starts[part, None] + np.arange(dtype.itemsize)]
        # A structured dtype makes a subarray one element.
        made = np.ascontiguousarray(out).reshape(-1).view([("value", dtype)])["value"]
        bad = np.flatnonzero(slices.valid & ~good).astype(np.int64, copy=False)
        budget.take_errors(len(bad))
        errors = [f"expected {dtype.itemsize} bytes, found {length}" for length in lengths[bad].tolist()]
        return Parsed(_fixed_array(pa, made, None if good.all() else ~good), bad, errors)


def pruned_dtype(dtype: npt.DTypeLike, kind: pa.DataType) -> np.dtype[Any]:
    """Return the part of a struct's dtype with the fields of an Arrow type, of the same size."""
    whole = np.dtype(dtype)
    if whole.fields is None or not hasattr(kind, "field"):
        return whole
    parts = {each.name: whole.fields[each.name] for each in kind}
    formats = [pruned_dtype(part[0], kind.field(name).type) for name, part in parts.items()]
    offsets = [part[1] for part in parts.values()]
    return np.dtype({"names": list(parts), "formats": formats, "offsets": offsets, "itemsize": whole.itemsize})


def _fixed_array(pa: Any, array: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return an array as an Arrow array in the machine's byte order, null where `mask` is True."""
    if array.dtype.names == ():
        return empty_structs(np.ones(len(array), np.bool_) if mask is None else ~mask)
    if array.dtype.names is not None:
        fields = [_fixed_array(pa, array[name], mask) for name in array.dtype.names]
        names = list(array.dtype.names)
        return pa.StructArray.from_arrays(fields, names, mask=None if mask is None else pa.array(mask))
    if array.ndim > 1:
        width = array.shape[1]
        items = _fixed_array(pa, array.reshape(-1, *array.shape[2:]), None if mask is None else np.repeat(mask, width))
        # A list, since Spark has no list of a fixed size.
        offsets = np.arange(len(array) + 1, dtype=np.int32) * width
        kind = pa.list_(items.type)
        return pa.Array.from_buffers(kind, len(array), [_validity(pa, mask), pa.py_buffer(offsets)], children=[items])
    if array.dtype.kind in "SV":
        return _binary_array(pa, array, mask)
    if array.dtype.kind == "U":
        raise TypeError("dtype U has 4 bytes per character; use S for text")
    try:
        return pa.array(array.astype(array.dtype.newbyteorder("="), copy=False), mask=mask)
    except pa.ArrowNotImplementedError:
        raise TypeError(f"dtype {array.dtype} has no Arrow type") from None


def _binary_array(pa: Any, array: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None) -> Any:
    """Return an array of dtype S or V as a binary array; S without trailing NULs, as NumPy returns them."""
    count, width = len(array), array.dtype.itemsize
    rows = np.ascontiguousarray(array).view(np.uint8).reshape(count, width) if width else np.empty((count, 0), np.uint8)
    step = max(1, _GATHERED_BYTES // max(width, 1))
    lengths = np.full(count, width, np.int32)
    content = rows
    if array.dtype.kind == "S" and width:
        for i in range(0, count, step):
            is_text = rows[i : i + step, ::-1] != 0
            lengths[i : i + step] = np.where(is_text.any(1), width - is_text.argmax(1), 0)
        content = np.empty(lengths.sum(dtype=np.int64), np.uint8)
        end = 0
        for i in range(0, count, step):
            part = rows[i : i + step][np.arange(width) < lengths[i : i + step, None]]
            content[end : end + len(part)] = part
            end += len(part)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_validity(pa, mask), pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _validity(pa: Any, mask: npt.NDArray[np.bool_] | None) -> Any:
    """Return the validity bitmap of an array that is null where `mask` is True."""
    return None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
