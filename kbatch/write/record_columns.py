"""Arguments of `encode` -> columns of the encode kernel, without a Python object per value for array input.

Keys, values and the keys and values of headers may be a sequence of bytes and None; a NumPy array, where the bytes of
each item are a value; an Arrow array, chunked or not, of bytes, strings or fixed-width numbers; or a column of pandas
or Polars. Arrow data is taken through ``__arrow_c_array__`` and ``__arrow_c_stream__``. Buffers are borrowed, not
copied.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from kbatch.extras import require
from kbatch.format import NO_TIMESTAMP
from kbatch.kernels.source import Column
from kbatch.quantities import EPOCH, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Headers",
    "byte_column",
    "check_bytes",
    "check_length",
    "header_column",
    "header_pairs",
    "millisecond",
    "milliseconds",
    "offsets_array",
]

_NUMBER_ADVICE = "use NumPy arrays for numbers of a fixed width"
_ADVICE = {
    str: "encode the strings, as in [v.encode() if isinstance(v, str) else v for v in values]",
    int: _NUMBER_ADVICE,
    float: _NUMBER_ADVICE,
}
_ADVICE_FOR_ONE = {str: "encode it, as in text.encode()", int: "convert it, as in number.to_bytes(8)"}


class Headers(NamedTuple):
    """Record headers as columns: record ``i`` has ``header_count[i]`` rows from ``header_first[i]`` on."""

    header_first: npt.NDArray[np.int64]
    header_count: npt.NDArray[np.int32]
    header_keys: Column
    header_values: Column


def byte_column(values: Any, what: str) -> Column:
    """Make the column of `values`; `what` is their name in errors ("values", "keys").

    Raises
    ------
    TypeError
        If their type has no defined conversion to bytes.
    """
    column = Column()
    if isinstance(values, np.ndarray):
        _add_numpy(column, values, what)
    elif _is_pandas(values):
        _add_pandas(column, values, what)
    elif _is_polars_object(values):
        # Its Arrow export would contain the addresses of the objects.
        _add_objects(column, values.to_list(), what)
    elif hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        for chunk in _arrow_chunks(values, what):
            _add_arrow(column, chunk, what)
    elif isinstance(values, str | bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
        raise TypeError(
            f"{what} must be a sequence of bytes or None, or a NumPy, Arrow, pandas or Polars column, "
            f"got {type(values).__name__}"
        )
    else:
        _add_objects(column, list(values), what)
    return column


def check_bytes(value: Any, what: str) -> bytes | None:
    """Return one key or value as bytes, or raise `TypeError` with advice."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    advice = next((f"; {text}" for kind, text in _ADVICE_FOR_ONE.items() if isinstance(value, kind)), "")
    raise TypeError(f"{what} must be bytes or None, got {type(value).__name__}{advice}")


def _add_objects(column: Column, values: list[Any], what: str) -> None:
    bad = column.add_objects(values)
    if bad >= 0:
        value = values[bad]
        advice = next((f": {text}" for kind, text in _ADVICE.items() if isinstance(value, kind)), "")
        raise TypeError(f"{what}[{bad}] must be bytes or None, got {type(value).__name__}{advice}")


def _add_numpy(column: Column, values: npt.NDArray[Any], what: str) -> None:
    kind = values.dtype.kind
    if values.ndim == 2 and values.dtype in (np.uint8, np.int8) and not np.ma.isMaskedArray(values):
        rows = values.view(np.uint8)
        column.add_items(rows if rows.strides[1] == 1 else np.ascontiguousarray(rows), rows.shape[1])
        return
    if values.ndim != 1:
        raise TypeError(
            f"{what} must be a one-dimensional array, or a two-dimensional one of uint8 with one row per value; "
            f"got {values.ndim} dimensions of {values.dtype}"
        )
    valid: Any = None
    if kind == "O":
        _add_objects(column, values.tolist(), what)  # None where it is masked
        return
    if isinstance(values, np.ma.MaskedArray):
        valid = np.packbits(~np.ma.getmaskarray(values), bitorder="little")
        values = values.data
    if kind in "UT":
        raise TypeError(f"{what} must not be an array of {values.dtype}: {_ADVICE[str]}")
    elif values.dtype.hasobject:
        raise TypeError(f"{what} must not be an array of {values.dtype}, whose items contain Python objects")
    else:
        width = values.dtype.itemsize
        # As raw bytes, since NumPy does not export buffers of every dtype. NULs at the end of `S` items are padding.
        column.add_items(np.asarray(values).view(f"V{width}"), width, kind == "S", valid)


def _is_polars_object(values: Any) -> bool:
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(values, polars.Series) and values.dtype == polars.Object


def _is_pandas(values: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(
        values, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray
    )


def _add_pandas(column: Column, values: Any, what: str) -> None:
    if isinstance(values.dtype, np.dtype):
        _add_numpy(column, _objects_of_pandas(values), what)
        return
    for chunk in _arrow_chunks(values, what):
        _add_arrow(column, chunk, what)


def _objects_of_pandas(values: Any) -> npt.NDArray[Any]:
    """Return a column with a NumPy dtype; objects that pandas treats as missing (None, NaN, NA, NaT) become None."""
    array: npt.NDArray[Any] = values.to_numpy()
    if array.dtype.kind == "O":
        missing = np.asarray(values.isna())
        if missing.any():
            array = array.copy()
            array[missing] = None
    return array


def _arrow_chunks(values: Any, what: str) -> list[pa.Array]:
    if (columns := getattr(values, "columns", None)) is not None:
        raise TypeError(f"{what} must be one column, got a {type(values).__name__} with {len(columns)}")
    pa = require("pyarrow", "arrow", f"{what} of type {type(values).__name__}")
    if isinstance(values, pa.Array):
        return [values]
    if hasattr(values, "__arrow_c_stream__") and not isinstance(values, pa.ChunkedArray):
        values = pa.chunked_array(values)
    elif not isinstance(values, pa.ChunkedArray):
        values = pa.array(values)
        if isinstance(values, pa.Array):
            return [values]
    return list(values.chunks)


def _add_arrow(column: Column, array: pa.Array, what: str) -> None:
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        array, kind = array.storage, array.storage.type
    if types.is_dictionary(kind):
        dictionary = array.dictionary
        if types.is_binary_view(dictionary.type) or types.is_string_view(dictionary.type):
            # pyarrow cannot take rows from views.
            dictionary = dictionary.cast(pa.large_binary())
        array = dictionary.take(array.indices)
        kind = array.type
    count, first = len(array), array.offset
    if types.is_null(kind):
        column.add_nulls(count)
        return
    if not count:
        return
    valid, *buffers = array.buffers()
    if types.is_binary(kind) or types.is_string(kind):
        column.add_offsets(buffers[0], 4, first, count, buffers[1], valid)
    elif types.is_large_binary(kind) or types.is_large_string(kind):
        column.add_offsets(buffers[0], 8, first, count, buffers[1], valid)
    elif types.is_binary_view(kind) or types.is_string_view(kind):
        column.add_views(buffers[0], first, count, buffers[1:], valid)
    elif types.is_fixed_size_binary(kind) or types.is_integer(kind) or types.is_floating(kind):
        width = kind.bit_width // 8
        rows = np.frombuffer(buffers[0], np.uint8) if buffers[0] is not None else np.empty(0, np.uint8)
        if width == 0:
            rows = np.empty((count, 0), np.uint8)
        else:
            rows = rows[first * width : (first + count) * width].reshape(count, width)
        column.add_items(rows, width, False, valid, first)
    else:
        raise TypeError(f"{what} must not be an Arrow column of {kind}; {_arrow_advice(kind)}")


def _arrow_advice(kind: pa.DataType) -> str:
    """Return advice on converting a column of this type."""
    from pyarrow import types

    number = None
    if types.is_boolean(kind):
        number = "int8"
    elif types.is_temporal(kind) and not types.is_interval(kind):
        number = f"int{kind.bit_width}"
    if number is not None:
        return f"cast it to {number} for a number of fixed width, or to string for text"
    if types.is_decimal(kind):
        return "cast it to string for text"
    return "encode each value, as in [None if v is None else json.dumps(v).encode() for v in values.to_pylist()]"


def offsets_array(offsets: Any, count: int) -> npt.NDArray[np.int64]:
    """Return the offsets of `count` records."""
    array = np.ma.asanyarray(offsets) if not _is_arrow(offsets) else _arrow_numbers(offsets, "offsets", None)
    if not count and not array.size:
        return np.empty(0, np.int64)
    if array.ndim != 1:
        raise TypeError(f"offsets must be a one-dimensional array, got {array.ndim} dimensions")
    if array.dtype.kind not in "iu":
        raise TypeError(f"offsets must be integers, got an array of {array.dtype}")
    check_length("offsets", len(array), count)
    if np.ma.is_masked(array):
        raise ValueError("offsets must not be null")
    return _as_int64(np.ma.getdata(array), "offsets")


def _as_int64(array: npt.NDArray[Any], what: str) -> npt.NDArray[np.int64]:
    """Return integers as int64."""
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and len(array) and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what} must be below 2**63, got {array.max()}")
    return array.astype(np.int64, copy=False)


def check_length(what: str, found: int, expected: int) -> None:
    """Raise `ValueError` unless a column is as long as the values."""
    if found != expected:
        raise ValueError(f"{what} and values must have the same length, got {found} and {expected}")


def _is_arrow(column: Any) -> bool:
    return not isinstance(column, np.ndarray) and (
        hasattr(column, "__arrow_c_array__") or hasattr(column, "__arrow_c_stream__")
    )


def _arrow_numbers(column: Any, what: str, null: int | None) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    from pyarrow import types

    parts = [np.empty(0, np.int64)]
    for chunk in _arrow_chunks(column, what):
        if types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_decode()
        if chunk.null_count and null is None:
            raise ValueError(f"{what} must not be null")
        if types.is_timestamp(chunk.type) and null is not None:
            parts.append(_rounded_down(chunk.to_numpy(zero_copy_only=False), missing=chunk.null_count > 0))
            continue
        if not types.is_integer(chunk.type) and not types.is_null(chunk.type):
            allowed = "integers" if null is None else "integers or timestamps"
            raise TypeError(f"{what} must be {allowed}, got an Arrow column of {chunk.type}")
        missing = chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else None
        if missing is not None:
            chunk = (chunk.cast(pa.int64()) if types.is_null(chunk.type) else chunk).fill_null(0)
        numbers = _as_int64(chunk.to_numpy(zero_copy_only=False), what)
        parts.append(numbers if missing is None else np.where(missing, np.int64(null or 0), numbers))
    return np.concatenate(parts) if len(parts) != 2 else parts[1]


def _rounded_down(times: npt.NDArray[np.datetime64], *, missing: bool = True) -> npt.NDArray[np.int64]:
    """Return datetime64 of any unit in milliseconds; NaT becomes -1, unless `missing` rules it out."""
    array = times.astype("datetime64[ms]", copy=False).view(np.int64)
    if missing and (absent := np.isnat(times)).any():
        return np.where(absent, np.int64(NO_TIMESTAMP), array)
    return array


def milliseconds(timestamps: Any, count: int) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Return the timestamps of `count` records: an array, or None and the timestamp of all records.

    Finer units are rounded down to milliseconds; missing timestamps (None, null, NaT, masked) are -1.
    """
    if isinstance(timestamps, int | np.integer | str | datetime.date | datetime.timedelta | np.datetime64):
        return None, millisecond(timestamps)
    if _is_pandas(timestamps):
        dtype = timestamps.dtype
        if getattr(dtype, "kind", "") == "M" and not hasattr(dtype, "pyarrow_dtype"):
            # With a unit, times with a time zone do not become objects.
            unit = dtype.unit if hasattr(dtype, "unit") else np.datetime_data(dtype)[0]
            timestamps = timestamps.to_numpy(f"datetime64[{unit}]")
        elif isinstance(dtype, np.dtype):
            timestamps = _objects_of_pandas(timestamps)
    if _is_arrow(timestamps) or _is_pandas(timestamps):
        array: npt.NDArray[Any] = _arrow_numbers(timestamps, "timestamps", NO_TIMESTAMP)
    elif isinstance(timestamps, bytes | Mapping) or not isinstance(timestamps, Iterable):
        raise _bad_timestamps(timestamps)
    else:
        array = timestamps if isinstance(timestamps, np.ndarray) else _number_array(list(timestamps))
    if array.ndim != 1:
        raise TypeError(f"timestamps must be a one-dimensional array, got {array.ndim} dimensions")
    if not len(array):
        array = np.empty(0, np.int64)
    if array.dtype.kind in "OU":
        array = _each_millisecond(array)
    missing = np.ma.getmaskarray(array) if np.ma.is_masked(array) else None
    array = np.ma.getdata(array)
    if array.dtype.kind == "M":
        array = _rounded_down(array)
    if array.dtype.kind not in "iu":
        raise _bad_timestamps(timestamps)
    check_length("timestamps", len(array), count)
    array = _as_int64(array, "timestamps")
    return array if missing is None else np.where(missing, np.int64(NO_TIMESTAMP), array), NO_TIMESTAMP


def _number_array(values: list[Any]) -> npt.NDArray[Any]:
    """Make an array of numbers or times, or of objects if they have no common NumPy dtype."""
    try:
        return np.asarray(values)
    except ValueError:
        array = np.empty(len(values), object)
        array[:] = values
        return array


def _each_millisecond(values: npt.NDArray[np.object_]) -> npt.NDArray[np.int64]:
    """Convert times that are Python objects: int, datetime, or None, NaN and NaT for a missing timestamp."""
    out = np.empty(len(values), np.int64)
    for i, value in enumerate(values.tolist()):
        try:
            out[i] = NO_TIMESTAMP if value is None or value != value else millisecond(value)
        except OverflowError:
            raise ValueError(f"timestamps[{i}] must be below 2**63, got {value}") from None
        except (TypeError, ValueError) as error:
            raise type(error)(f"timestamps[{i}]: {error}") from None
    return out


def _bad_timestamps(found: Any) -> TypeError:
    kind = f"an array of {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
    return TypeError(
        "timestamps must be milliseconds since the epoch as integers, datetime, datetime64, texts in ISO 8601, an "
        f"Arrow column of timestamps, or one of these for all records (-1 means no timestamp), got {kind}"
    )


def millisecond(timestamp: Any) -> int:
    """Return one timestamp in milliseconds since the epoch."""
    if isinstance(timestamp, bool):
        raise _bad_timestamps(timestamp)
    if isinstance(timestamp, int | np.integer):
        return int(timestamp)
    if isinstance(timestamp, np.datetime64):
        return NO_TIMESTAMP if np.isnat(timestamp) else int(timestamp.astype("datetime64[ms]").view(np.int64))
    if isinstance(timestamp, str) and not timestamp.strip().lstrip("+-").isdigit():
        with contextlib.suppress(ValueError):
            timestamp = datetime.datetime.fromisoformat(timestamp.strip())
    if isinstance(timestamp, str | datetime.date | datetime.timedelta) and not isinstance(timestamp, datetime.datetime):
        return parse_time(timestamp, "timestamp")
    if isinstance(timestamp, datetime.datetime):
        if timestamp != timestamp:  # pandas.NaT
            return NO_TIMESTAMP
        when = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=datetime.UTC)
        return (when - EPOCH) // datetime.timedelta(milliseconds=1)
    raise _bad_timestamps(timestamp)


def header_column(headers: Any, count: int) -> Headers | None:
    """Return the headers of `count` records as columns; None if there are none."""
    if headers is None:
        return None
    if _is_pandas(headers) and isinstance(headers.dtype, np.dtype):
        headers = _objects_of_pandas(headers)
    if _is_arrow(headers) or _is_pandas(headers):
        return _arrow_headers(headers, count)
    if isinstance(headers, str | bytes | Mapping) or not isinstance(headers, Iterable):
        raise TypeError(f"headers must be a list of (key, value) pairs for each record, got {type(headers).__name__}")
    rows = [header_pairs(row, f"headers[{i}]") for i, row in enumerate(headers)]
    check_length("headers", len(rows), count)
    counts = np.fromiter(map(len, rows), np.int32, count)
    if not counts.any():
        return None
    return _header_columns(counts, [key for row in rows for key, _ in row], [value for row in rows for _, value in row])


def _header_columns(counts: npt.NDArray[np.int32], keys: Any, values: Any) -> Headers:
    first = np.cumsum(counts, dtype=np.int64) - counts
    return Headers(first, counts, byte_column(keys, "header keys"), byte_column(values, "header values"))


def header_pairs(headers: Any, what: str) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of one record; keys may be str and are encoded as UTF-8, as in Kafka.

    A pair may also be a mapping, as in pandas columns converted from Arrow.
    """
    if headers is None:
        return []
    if isinstance(headers, str | bytes | Mapping) or not isinstance(headers, Iterable):
        _refuse_headers(what, headers)
    pairs = []
    for pair in headers:
        if isinstance(pair, Mapping) and pair.keys() == {"key", "value"}:
            key, value = pair["key"], pair["value"]
        elif isinstance(pair, tuple | list) and len(pair) == 2:
            key, value = pair
        else:
            _refuse_headers(what, headers)
        if key is None:
            raise ValueError(f"{what}: a header needs a key; only its value may be null")  # HDR-R7
        if isinstance(key, str):
            try:
                key = key.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"{what}: a header key cannot be encoded as UTF-8: {error}") from None
        pairs.append((check_bytes(key, f"{what}: a header key") or b"", check_bytes(value, f"{what}: a header value")))
    return pairs


def _refuse_headers(what: str, found: Any) -> NoReturn:
    raise TypeError(f"{what} must be a list of (key, value) pairs or None, got {found!r:.60}")


def _arrow_headers(headers: Any, count: int) -> Headers | None:
    import pyarrow as pa
    from pyarrow import types

    chunks = _arrow_chunks(headers, "headers")
    check_length("headers", sum(map(len, chunks)), count)
    if not count:
        return None
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    kind = array.type
    if types.is_null(kind):
        return None
    if types.is_map(kind):
        keys, values = array.keys, array.items
    elif (types.is_list(kind) or types.is_large_list(kind)) and types.is_struct(kind.value_type):
        pairs = array.values
        if pairs.type.num_fields != 2:
            raise TypeError(f"headers must be lists of (key, value), got an Arrow column of {kind}")
        names = {pairs.type.field(i).name for i in range(2)}
        keys, values = (
            pairs.field(name if names == {"key", "value"} else i) for i, name in enumerate(("key", "value"))
        )
        if pairs.null_count:
            inside = np.zeros(len(pairs) + 1, np.int64)
            np.cumsum(pairs.is_null().to_numpy(zero_copy_only=False), out=inside[1:])
            edges = array.offsets.to_numpy()
            bad = (inside[edges[1:]] > inside[edges[:-1]]) & array.is_valid().to_numpy(zero_copy_only=False)
            if bad.any():
                raise ValueError(f"headers[{int(np.argmax(bad))}]: a header is null; only its value may be")
    else:
        raise TypeError(f"headers must be lists of (key, value), got an Arrow column of {kind}")
    edges = array.offsets.to_numpy().astype(np.int64)
    counts = np.diff(edges).astype(np.int32)
    if array.null_count:
        counts[array.is_null().to_numpy(zero_copy_only=False)] = 0
    if not counts.any():
        return None
    return Headers(edges[:-1], counts, byte_column(keys, "header keys"), byte_column(values, "header values"))
