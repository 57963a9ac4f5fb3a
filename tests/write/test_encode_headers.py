"""encode() of record headers: sequences, Arrow lists of structs, and errors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import kbatch
import kbatch.kernels.slices

HEADERS: list[list[tuple[bytes, bytes | None]] | None] = [
    [(b"h", b"1"), (b"h", b"2"), (b"", b""), (b"n", None)],
    None,
    [],
    [(b"k%d" % i, bytes([i]) * i) for i in range(200)],
    [(b"last", b"x" * 300)],
]
PAIRS = [row or [] for row in HEADERS]


def headers_of(data: bytes) -> list[list[tuple[bytes, bytes | None]]]:
    table = kbatch.decode(data)
    rows: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(len(table))]
    names = kbatch.kernels.slices.header_keys(table.headers, table.data)
    values = kbatch.kernels.slices.header_values(table.headers, table.data)
    for record, name, value in zip(table.headers["record"].tolist(), names, values, strict=True):
        rows[record].append((name, value))
    return rows


PAIR = pa.struct([("key", pa.binary()), ("value", pa.binary())])


def arrow_headers(kind: pa.DataType) -> pa.Array:
    rows = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in HEADERS]
    return pa.array(rows, pa.list_(PAIR)).cast(kind)


@pytest.mark.parametrize(
    "headers",
    [
        HEADERS,
        tuple(HEADERS),
        [row and [(k.decode(), v) for k, v in row] for row in HEADERS],
        [row and [[k, v] for k, v in row] for row in HEADERS],
        arrow_headers(pa.list_(PAIR)),
        arrow_headers(pa.large_list(PAIR)),
        pa.chunked_array([arrow_headers(pa.list_(PAIR)).slice(0, 2), arrow_headers(pa.list_(PAIR)).slice(2)]),
        pa.array(HEADERS, pa.map_(pa.binary(), pa.binary())),
        pa.concat_arrays([pa.array(HEADERS, pa.map_(pa.string(), pa.binary_view()))] * 2).slice(5),
        pl.Series(arrow_headers(pa.list_(PAIR))),
        pd.Series(arrow_headers(pa.list_(PAIR)), dtype=pd.ArrowDtype(pa.list_(PAIR))),
        pd.Series(HEADERS, index=[9, 8, 7, 6, 5]),
        arrow_headers(pa.list_(PAIR)).to_pandas(),
        pd.Series(arrow_headers(pa.list_(PAIR)).to_pandas().where([True, False, True, True, True])),
    ],
    ids=lambda h: f"{type(h).__module__}.{type(h).__name__}",
)
def test_headers_of_every_kind_are_encoded(headers: Any) -> None:
    """HDR-R3, HDR-R5."""
    assert headers_of(kbatch.encode([b"v"] * 5, headers=headers)) == PAIRS
    assert headers_of(kbatch.encode([b"v"] * 5, headers=headers, batch_size=200, codec="zstd")) == PAIRS


def test_sliced_arrow_headers_are_encoded() -> None:
    array = arrow_headers(pa.list_(PAIR))
    assert headers_of(kbatch.encode([b"v"] * 2, headers=array.slice(3))) == PAIRS[3:]
    assert headers_of(kbatch.encode([b"v"] * 2, headers=pa.nulls(2))) == [[], []]
    table = kbatch.decode(kbatch.encode([b"v"] * 5, headers=array))
    for frame in (table.to_arrow(), table.to_pandas(), table.to_polars()):
        assert headers_of(kbatch.encode([b"v"] * 5, headers=frame["headers"])) == PAIRS
    assert kbatch.encode([], headers=array.slice(5)) == b""


@pytest.mark.parametrize(
    ("headers", "error", "text"),
    [
        ([[(None, b"")]], ValueError, r"headers\[0\]: a header needs a key"),
        (pa.array([[{"key": None, "value": b""}]], pa.list_(PAIR)), ValueError, "record 0: a header has no key"),
        (pa.array([[None]], pa.list_(PAIR)), ValueError, r"headers\[0\]: a header is null"),
        ([[(b"k", "v")]], TypeError, "a header value must be bytes or None, got str"),
        ([[(1, b"v")]], TypeError, "a header key must be bytes or None, got int"),
        ([[("\ud800", b"v")]], ValueError, r"headers\[0\]: a header key cannot be encoded as UTF-8"),
        ([{"k": b"v"}], TypeError, r"headers\[0\] must be a list of \(key, value\) pairs"),
        ([[b"kv"]], TypeError, "must be a list of"),
        ([[(b"k",)]], TypeError, "must be a list of"),
        ([b"k"], TypeError, "must be a list of"),
        ({"k": b"v"}, TypeError, "got dict"),
        (5, TypeError, "got int"),
        (pa.array([b"k"]), TypeError, "headers must be lists of"),
        (pa.array([[b"k"]]), TypeError, "headers must be lists of"),
        (pa.array([[{"a": 1, "b": 2, "c": 3}]]), TypeError, "headers must be lists of"),
        (pa.array([[], []], pa.list_(PAIR)), ValueError, "headers and values must have the same length"),
    ],
)
def test_invalid_headers_are_refused(headers: Any, error: type[Exception], text: str) -> None:
    """HDR-R7."""
    with pytest.raises(error, match=text):
        kbatch.encode([b"v"], headers=headers)
