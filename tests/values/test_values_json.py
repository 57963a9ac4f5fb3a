"""JSON values as columns, compared with Python's parser: no value is lost, and rows do not affect each other."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from value_tables import table_of

pytest.importorskip("pyarrow")

import pyarrow as pa

from kbatch.kernels.jsontext import check_texts, join
from kbatch.values import JsonParser, infer_json
from kbatch.values.ddl import parse_ddl
from kbatch.values.json import MAX_DEPTH
from kbatch.values.parsed import parse_column

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("sub", pa.struct([("x", pa.int64()), ("deep", pa.list_(pa.struct([("y", pa.string())])))])),
    ]
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | texts,
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000),
        "ok": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | texts, max_size=3),
        "sub": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "x": st.integers(-5, 5),
                "deep": st.lists(st.none() | st.fixed_dictionaries({"y": texts}), max_size=2),
            },
        ),
    },
)
HOSTILE = [
    b"",
    b" \n",
    b"{",
    b"}",
    b'{"id":1',
    b'{"id":1}}',
    b'{"id":1}{"id":2}',
    b'{"id":1}\n{"id":2}',
    b'{"id":1},{"id":2}',
    b'{"id":1},"v":{"id":2}',
    b'{"id":1},"x":1',
    b'{"id":1}}\n{"v":{"id":2}',
    b'"a',
    b'"\\',
    b'{"name":"\\',
    b'{"id":1}\0',
    b'{"name":"a\nb"}',
    b'{"name":"\xff"}',
    b'{"name":"\xed\xa0\x80"}',
    b'{"id":01}',
    b'{"id":1e3}',
    b'{"id":1.0}',
    b'{"id":9223372036854775808}',
    b'{"id":"1"}',
    b'{"id":[1]}',
    b'{"sub":{"deep":[1]}}',
    b'{"tags":"a"}',
    b'{"id":1,"id":2}',
    b"[1]",
    b"1",
    b"true",
    b'{"id":1} x',
    b"/**/{}",
    b"\xef\xbb\xbf{}",
    b"[" * 5000,
    b"{'id':1}",
]


def expected(value: Any, kind: pa.DataType) -> Any:
    """Return the expected column value: every field of the type, null if the value lacks the field."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: expected(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [expected(item, kind.value_type) for item in value]
    return float(value) if pa.types.is_floating(kind) else value


@st.composite
def encoded(draw: st.DrawFn) -> bytes:
    indent = draw(st.sampled_from([None, 1]))
    return json.dumps(draw(fitting), indent=indent, ensure_ascii=draw(st.booleans())).encode()


@given(
    st.lists(st.none() | st.just(b"null") | encoded() | st.sampled_from(HOSTILE) | st.binary(max_size=6), max_size=40)
)
@example(HOSTILE)
@example([b'{"id":1}', *HOSTILE, b'{"id":2}'])
def test_bad_values_keep_their_bytes(values: list[bytes | None]) -> None:
    table = table_of(values)
    kind = pa.struct(list(SCHEMA))
    alone = JsonParser(kind)
    parsed = table.values_json(SCHEMA)
    assert parsed.values.type == kind
    bad = set(parsed.bad.tolist())
    assert len(parsed.errors) == len(bad)
    assert all(parsed.errors)
    for row, (value, found) in enumerate(zip(values, parsed.values.to_pylist(), strict=True)):
        if row in bad:
            assert value is not None
            assert found is None
            # The value is also bad without its neighbours.
            assert alone.parse(pa.array([value], pa.binary())).bad.tolist() == [0]
        elif value is None:
            assert found is None
        else:
            assert found == expected(json.loads(value), kind)
            assert value not in HOSTILE
    assert parsed.bad_values == [values[row] for row in sorted(bad)]
    whole = parsed.to_arrow()
    assert whole.column("value_bad").to_pylist() == [value if row in bad else None for row, value in enumerate(values)]
    assert whole.num_rows == len(values)


@given(st.lists(encoded(), min_size=1, max_size=20))
def test_all_values_that_match_the_type_are_parsed(values: list[bytes]) -> None:
    assert table_of(values).values_json(SCHEMA).bad.tolist() == []


@pytest.mark.parametrize("share", [1, 2, 100, 999])
def test_bad_rows_are_found_among_many(share: int) -> None:
    """The parser divides blocks to find bad rows; a bad row does not change other rows."""
    good = [json.dumps({"id": i, "name": f"n{i}", "tags": ["a"] * (i % 3)}).encode() for i in range(3000)]
    bad = [b"oops", b'{"id":"x"}', b'{"id":1.5}', b'{"id":1}{"id":2}', b'{"name":1}']
    values = [bad[i % len(bad)] if i % share == 0 else value for i, value in enumerate(good)]
    parsed = table_of(values).values_json(SCHEMA)
    assert parsed.bad.tolist() == list(range(0, 3000, share))
    found = parsed.values.to_pylist()
    for i, value in enumerate(values):
        assert found[i] == (None if i % share == 0 else expected(json.loads(value), parsed.values.type))


def test_values_larger_than_a_block_are_parsed() -> None:
    """A value of 5 MB between small ones exceeds Arrow's blocks of 2 MiB."""
    values = [b'{"name":"a"}', json.dumps({"name": "x" * 5_000_000}).encode(), b'{"name":"b"}', b"[]"]
    parsed, bad, *_ = parse_column(JsonParser(pa.struct(list(SCHEMA))), [pa.array(values, pa.binary())])
    assert [value and len(value["name"]) for value in parsed.to_pylist()] == [1, 5_000_000, 1, None]
    assert bad.tolist() == [3]


def test_any_type_is_allowed_at_the_top_level() -> None:
    assert table_of([b"[1,2]", b"[]", b"{}", b"null"]).values_json(pa.list_(pa.int64())).values.to_pylist() == [
        [1, 2], [], None, None,
    ]  # fmt: skip
    parsed = table_of([b'"a"', b" 1 ", b'"\\u00e9"']).values_json(pa.string())
    assert parsed.values.to_pylist() == ["a", None, "é"]
    assert parsed.bad.tolist() == [1]
    assert table_of([b" 1 ", b"\n2\n"]).values_json(pa.int64()).values.to_pylist() == [1, 2]


def test_keys_are_parsed_like_values() -> None:
    parsed = table_of([b"v", None], [b'{"a":1}', b"x"]).values_json(on="key")
    assert parsed.values.to_pylist() == [{"a": 1}, None]
    assert parsed.to_arrow(["offset"]).to_pydict() == {
        "key": [{"a": 1}, None],
        "offset": [0, 1],
        "key_bad": [None, b"x"],
        "key_error": [None, "Expecting value: line 1 column 1 (char 0)"],
        "key_schema_id": [None, None],
    }
    with pytest.raises(ValueError, match="on must be"):
        table_of([b"1"]).values_json(pa.int64(), on="headers")  # type: ignore[arg-type]


def test_unknown_fields_are_ignored_or_bad() -> None:
    values = [b'{"a":1,"b":{"c":1}}', b'{"a":2}', b'{"a":3,"z":null}', b'{"a":4,"b":{"d":1}}']
    given_type = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.int64())]))])
    assert table_of(values).values_json(given_type).bad.tolist() == []
    strict = table_of(values).values_json(given_type, unknown="bad")
    assert strict.bad.tolist() == [2, 3]
    assert strict.values.to_pylist()[:2] == [{"a": 1, "b": {"c": 1}}, {"a": 2, "b": None}]
    # The same within lists, and if the unknown fields have conflicting types.
    values = [b'{"l":[{"x":1}]}', b'{"l":[{"x":1},{"y":1}]}', b'{"l":[{"y":"s"}]}', b'{"l":null}', b'{"l":[]}']
    lists = pa.struct([("l", pa.list_(pa.struct([("x", pa.int64())])))])
    strict = table_of(values).values_json(lists, unknown="bad")
    assert strict.bad.tolist() == [1, 2]
    assert strict.values.to_pylist() == [{"l": [{"x": 1}]}, None, None, {"l": None}, {"l": []}]
    with pytest.raises(ValueError, match="unknown must be"):
        table_of(values).values_json(lists, unknown="nosuch")  # type: ignore[arg-type]


def test_a_schema_is_inferred_from_a_sample() -> None:
    assert infer_json([b'{"a":1}', b'{"a":2.5}', b"oops", None, b'{"b":[{"c":null}]}']) == pa.struct(
        [("a", pa.float64()), ("b", pa.list_(pa.struct([("c", pa.string())])))]
    )
    # Fields of several kinds are text; times stay strings; large integers keep their precision.
    assert infer_json([b'{"a":1}', b'{"a":2}', b'{"a":"x"}']) == pa.struct([("a", pa.string())])
    assert infer_json([b'"2024-01-01T00:00:00Z"']) == pa.string()
    assert infer_json([b"1", b"18446744073709551615"]) == pa.decimal128(38, 0)
    assert infer_json([b"1" * 50]) == pa.string()
    assert infer_json([b"9" * 100_000]) == pa.string()
    assert infer_json([b"9007199254740992", b"1.5"]) == pa.float64()
    assert infer_json([b"9007199254740993", b"1.5"]) == pa.string()
    assert infer_json([]) == pa.string()
    parsed = table_of([b"1", b"18446744073709551615"]).values_json()
    assert parsed.values.to_pylist() == [Decimal(1), Decimal(2**64 - 1)]
    # An object with very many names does not become a struct with a field for each.
    flood = json.dumps({f"n{i}": i for i in range(20_000)} | {"a": 1}).encode()
    assert infer_json([flood, b'{"a":1}', b'{"a":2,"b":{"c":1}}', b'{"b":{"c":2}}']) == pa.struct(
        [("a", pa.int64()), ("b", pa.struct([("c", pa.int64())]))]
    )
    # Values that do not fit the inferred type are kept as bytes.
    values = [b'{"a":1}'] * 5000
    values[1234] = b'{"a":1,"late":true}'
    parsed = table_of(values).values_json()
    assert (parsed.bad.tolist(), parsed.bad_values) == ([1234], [values[1234]])
    assert parsed.values[1234].as_py() == {"a": 1}
    # The same without the fields that fit, if the caller asks for it.
    assert table_of(values).values_json(unknown="bad").values[1234].as_py() is None


def test_strings_and_numbers_are_converted_to_the_type() -> None:
    kind = parse_ddl("d date, t timestamp, n decimal(6,2), f float, b binary, s smallint")
    good = b'{"d":"2024-02-29","t":"2024-02-29 01:02:03.5","n":1.25,"f":1.5,"b":"ab","s":-5}'
    values = [good, b'{"d":"2024-02-30"}', b'{"d":5}', b'{"t":"soon"}', b'{"n":1.255}', b'{"s":40000}', b"{}"]
    parsed = table_of(values).values_json(kind)
    assert parsed.bad.tolist() == [1, 2, 3, 4, 5]
    first = parsed.values[0].as_py()
    assert (str(first["d"]), str(first["n"]), first["f"], first["b"], first["s"]) == (
        "2024-02-29",
        "1.25",
        1.5,
        b"ab",
        -5,
    )
    assert first["t"].isoformat() == "2024-02-29T01:02:03.500000+00:00"
    assert parsed.values[6].as_py() == dict.fromkeys(first)
    with pytest.raises(TypeError, match="JSON can't be read as"):
        table_of([b"{}"]).values_json(parse_ddl("m map<string,int>"))
    with pytest.raises(TypeError, match=r"pyarrow.*Schema"):
        table_of([b"{}"]).values_json(["a int"])  # type: ignore[arg-type]


def test_deep_brackets_do_not_crash() -> None:
    """Arrow 26 crashes if it infers the type of 100,000 brackets, so the test runs in a subprocess."""
    code = """
import pyarrow as pa, kbatch
from kbatch.values import JsonParser, infer_json
for unknown in ("ignore", "bad", "keep"):
    for text in (b'{"x":' + b"[" * 100000 + b"]" * 100000 + b"}", b"[" * 1000000, b'{"a":' * 100000):
        parsed = JsonParser(pa.struct([("a", pa.int64())]), unknown).parse(pa.array([text, b'{"a":1}'], pa.binary()))
        assert parsed.bad.tolist() == [0], parsed
        assert parsed.values[1].as_py() == {"a": 1}
assert infer_json([text]) == pa.string()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    for unknown in ("ignore", "bad", "keep"):
        parser = JsonParser(pa.struct([("a", pa.int64())]), unknown)
        values = pa.array([b'{"a":1,"x":' + deepest[1:-1] + b"}"], pa.binary())
        assert parser.parse(values).bad.tolist() == ([] if unknown == "ignore" else [0])


@given(st.binary(max_size=30) | st.text(max_size=20).map(str.encode))
@example(b'"\xf4\x8f\xbf\xbf"')
@example(b'"\xc0\x80"')
def test_the_kernel_accepts_every_json_text(text: bytes) -> None:
    """The kernel accepts what Python's parser accepts, except NaN; accepted text has the structure of one line."""
    verdicts = np.zeros(1, np.uint8)
    content = np.frombuffer(text, np.uint8)
    check_texts(np.array([0, len(text)], np.int32), content, np.zeros(1, np.int64), verdicts, MAX_DEPTH)
    try:
        json.loads(text.decode())
        assert verdicts[0] == 0
    except ValueError:
        pass
    if verdicts[0] == 0:
        text.decode()
        lines = pa.array([b'{"a":1}', text, b'{"a":2}'], pa.binary())
        assert JsonParser(pa.struct([("a", pa.int64())])).parse(lines).values.to_pylist()[::2] == [{"a": 1}, {"a": 2}]


def test_kernels_reject_rows_out_of_range() -> None:
    content = np.frombuffer(b"[1]", np.uint8)
    one = np.zeros(1, np.uint8)
    for offsets, row in [([0, 3], 1), ([0, 3], -1), ([0, 4], 0), ([2, 1], 0), ([-1, 2], 0)]:
        bounds, rows = np.array(offsets, np.int32), np.array([row], np.int64)
        with pytest.raises(IndexError):
            check_texts(bounds, content, rows, one, 5)
        with pytest.raises(IndexError):
            join(bounds, content, rows, b"<", b">", np.zeros(99, np.uint8))
    with pytest.raises(IndexError):
        join(np.array([0, 3], np.int32), content, np.zeros(1, np.int64), b"<", b">", np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="verdicts"):
        check_texts(np.array([0, 3], np.int32), content, np.zeros(2, np.int64), one, 5)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a int, b struct<c: string, `d e`:array<map<string,bigint>>>", None),
        ("array<int>", pa.list_(pa.field("element", pa.int32()))),
        ("a decimal, b decimal(5), c decimal(38,38) not null comment 'x, y'", None),
        ("date date, int int", pa.struct([("date", pa.date32()), ("int", pa.int32())])),
    ],
)
def test_ddl_equals_sparks_types(text: str, kind: pa.DataType | None) -> None:
    found = parse_ddl(text)
    if kind is not None:
        assert found == kind
    elif text.startswith("a int"):
        assert str(found) == "struct<a: int32, b: struct<c: string, d e: list<element: map<string, int64>>>>"
    else:
        assert found == pa.struct(
            [("a", pa.decimal128(10, 0)), ("b", pa.decimal128(5, 0)), ("c", pa.decimal128(38, 38))]
        )


@pytest.mark.parametrize(
    "text", ["", "a", "a nothing", "a int,", "a int b int", "a array<int", "a int, a int", "(", "a decimal(39)"]
)
def test_invalid_ddl_raises(text: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        parse_ddl(text)


def test_slices_of_tables_and_empty_tables_are_parsed() -> None:
    table = table_of([b'{"a":1}', b"x", b'{"a":3}', None])
    assert table[1:].values_json(pa.struct([("a", pa.int64())])).values.to_pylist() == [None, {"a": 3}, None]
    assert table[1:].values_json().bad.tolist() == [0]
    empty = table[:0].values_json()
    assert (len(empty.values), empty.bad.tolist(), empty.to_arrow().num_rows) == (0, [], 0)
