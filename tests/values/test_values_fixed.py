"""Fixed-width values as columns, compared with NumPy; and text."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from value_tables import table_of

pytest.importorskip("pyarrow")


from kbatch.values.fixed import FixedParser, parse_dtype

STRUCT = np.dtype(
    [("id", ">i8"), ("flag", "u1"), ("at", [("x", "<f4"), ("y", ">f4")]), ("v", ">i2", (2, 3)), ("s", "S3")]
)


@given(st.lists(st.none() | st.binary(min_size=32, max_size=32) | st.binary(max_size=40), max_size=20))
def test_bad_values_keep_their_bytes(values: list[bytes | None]) -> None:
    assert STRUCT.itemsize == 32
    parsed = table_of(values).values_struct(STRUCT)
    parsed.values.validate(full=True)
    bad = [row for row, value in enumerate(values) if value is not None and len(value) != 32]
    assert parsed.bad.tolist() == bad
    assert parsed.bad_values == [values[row] for row in bad]
    assert parsed.errors == [f"expected 32 bytes, found {len(values[row] or b'')}" for row in bad]
    for value, found in zip(values, parsed.values.to_pylist(), strict=True):
        if value is None or len(value) != 32:
            assert found is None
            continue
        expected = np.frombuffer(value, STRUCT)[0]
        assert (found["id"], found["flag"], found["s"]) == (expected["id"], expected["flag"], expected["s"])
        assert np.array_equal(found["v"], expected["v"])
        assert np.array_equal([found["at"]["x"], found["at"]["y"]], list(expected["at"]), equal_nan=True)


def test_single_numbers_and_keys_are_parsed() -> None:
    parsed = table_of([b"v"] * 3, [(7).to_bytes(8, "big"), b"", None]).values_struct(">i8", on="key")
    assert parsed.values.to_pylist() == [7, None, None]
    assert parsed.bad.tolist() == [1]
    assert table_of([b"\1", b"\0"]).values_struct("?").values.to_pylist() == [True, False]


@pytest.mark.parametrize("text", ["id", "id:>i8,", "id:zz", "a:i4,a:i4", ":i4:", "a:i4,b:3)i4", "a:" + "(" * 300])
def test_invalid_dtype_texts_raise(text: str) -> None:
    with pytest.raises(ValueError, match="is not a struct"):
        parse_dtype(text)


@pytest.mark.parametrize("dtype", ["O", "V0", "U3"])
def test_dtypes_without_a_fixed_size_raise(dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype"):
        table_of([b""]).values_struct(np.dtype(dtype))


@given(
    st.lists(st.none() | st.text(max_size=5).map(lambda t: t.encode("utf-8", "surrogatepass")) | st.binary(max_size=4))
)
def test_text_is_parsed_as_utf8(values: list[bytes | None]) -> None:
    parsed = table_of(values).values_text()
    bad = set(parsed.bad.tolist())
    for row, (value, found) in enumerate(zip(values, parsed.values.to_pylist(), strict=True)):
        if value is None:
            assert found is None
            assert row not in bad
        elif row in bad:
            assert found is None
            with pytest.raises(UnicodeDecodeError):
                value.decode()
        else:
            assert found == value.decode()
    assert parsed.bad_values == [values[row] for row in sorted(bad)]


@pytest.mark.parametrize("dtype", ["c16", "id:>i8,z:c8", "M8", np.longdouble])
def test_dtypes_without_an_arrow_type_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"dtype \S+ has no Arrow type"):
        FixedParser(dtype)


@pytest.mark.parametrize("kind", ["S1", "S5", "V1", "V5", "S300"])
def test_bytes_of_a_fixed_length_are_those_of_numpy(kind: str) -> None:
    """NumPy removes trailing NULs of S, and keeps all bytes of V."""
    import pyarrow as pa

    draw = random.Random(1)
    width = np.dtype(kind).itemsize
    values = [bytes(draw.choice(b"\0\0\0A\xff") for _ in range(width)) for _ in range(1000)]
    column = pa.array([*values, b"short" * 100, None])
    parsed = FixedParser(kind).parse(column)
    expected = [value.rstrip(b"\0") if kind[0] == "S" else value for value in values]
    assert parsed.values.to_pylist() == [*expected, None, None]
    assert FixedParser(kind).parse(column[:1000]).values.to_pylist() == expected
    named = FixedParser(f"a:{kind},b:u1").parse(pa.array([value + b"\7" for value in values]))
    assert named.values.to_pylist() == [{"a": value, "b": 7} for value in expected]
