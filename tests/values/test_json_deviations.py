"""Values that do not fit an inferred schema keep their data: in the fields that fit, as text, or as bytes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from value_tables import table_of

pytest.importorskip("pyarrow")

import pyarrow as pa

from kbatch.kernels.jsonfields import FINDING_COLUMNS, FINDINGS, FieldTree
from kbatch.values import JsonParser, infer_json
from kbatch.values.deviations import MAX_DEVIATIONS
from kbatch.values.json_fields import fit_texts
from kbatch.values.parsed import slices_of

KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("big", pa.decimal128(38, 0)),
        ("price", pa.float64()),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("sub", pa.struct([("x", pa.int64()), ("deep", pa.list_(pa.struct([("é", pa.float64())])))])),
    ]
)

names = st.sampled_from(
    ["id", "small", "big", "price", "ok", "text", "tags", "sub", "x", "deep", "é", "new", 'q"\\', ""]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([2**63 - 1, -(2**63), 2**63, 2**53 + 1, 2**15, -(2**15), 10**37, 10**38])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5), max_leaves=12
)


def fitted(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """Return the value that the column should have, and whether it lacks data."""
    types = pa.types
    if value is None:
        return None, False
    if types.is_struct(kind):
        if not isinstance(value, dict):
            return None, True
        parts = {field.name: fitted(value.get(field.name), field.type) for field in kind}
        more = any(value[name] is not None for name in value.keys() - parts.keys())
        return {name: part for name, (part, _) in parts.items()}, more or any(lost for _, lost in parts.values())
    if types.is_list(kind):
        if not isinstance(value, list):
            return None, True
        parts = [fitted(item, kind.value_type) for item in value]
        return [part for part, _ in parts], any(lost for _, lost in parts)
    if types.is_string(kind):
        return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)), False
    if types.is_boolean(kind):
        return (value, False) if isinstance(value, bool) else (None, True)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, True
    if types.is_float64(kind):
        exact = isinstance(value, float) or (float(value) == value and abs(value) < 2**64)
        return (float(value), False) if exact else (None, True)
    most = (10**kind.precision if types.is_decimal(kind) else 2 ** (kind.bit_width - 1)) - 1
    least = -most if types.is_decimal(kind) else -most - 1
    return (value, False) if isinstance(value, int) and least <= value <= most else (None, True)


@given(st.lists(documents, min_size=1, max_size=20), st.booleans(), st.sampled_from([None, 1]))
@example([{"big": 10**38, "small": 2**15, "sub": {"deep": [{"é": 2**53 + 1}, 1]}}], True, 1)
def test_every_value_keeps_the_fields_that_fit(values: list[Any], escaped: bool, indent: int | None) -> None:
    texts = [json.dumps(value, ensure_ascii=escaped, indent=indent).encode() for value in values]
    parsed = JsonParser(KIND, "keep").parse(pa.array(texts, pa.binary()))
    for row, (value, found) in enumerate(zip(values, parsed.values.to_pylist(), strict=True)):
        expected, lost = fitted(value, KIND)
        assert (row in parsed.bad) == lost
        assert same(found, expected)
    assert len(parsed.errors) == len(parsed.bad)
    assert bool(len(parsed.bad)) == any(each.kind != "text" for each in parsed.deviations)


def same(found: Any, expected: Any) -> bool:
    """Whether values are equal; texts of JSON may differ in spaces and escapes."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, str) and found != expected:
        return bool(json.loads(found) == json.loads(expected))
    return bool(found == expected)


@given(st.lists(documents, min_size=1, max_size=12))
def test_an_inferred_type_loses_nothing_of_its_samples(values: list[Any]) -> None:
    """Only texts that are not objects, next to a majority of objects, do not fit."""
    texts = [json.dumps(value).encode() for value in values]
    parsed = JsonParser(infer_json(texts), "keep").parse(pa.array(texts, pa.binary()))
    assert all(not isinstance(values[row], dict) for row in parsed.bad.tolist())
    assert all(each.field == "" for each in parsed.deviations if each.kind != "text")


@pytest.mark.parametrize(
    ("samples", "kind"),
    [
        ([b'{"a":1}', b'{"a":1.5}'], pa.float64()),
        ([b'{"a":1}', b'{"a":[1]}', b'{"a":1}'], pa.string()),
        ([b'{"a":{"b":1}}', b'{"a":true}'], pa.string()),
        ([b'{"a":null}', b'{"a":true}'], pa.bool_()),
        ([b'{"a":[1]}', b'{"a":["x"]}'], pa.list_(pa.string())),
        ([b'{"a":[{"b":1}]}', b'{"a":[{"b":"x"}]}'], pa.list_(pa.struct([("b", pa.string())]))),
    ],
)
def test_kinds_in_conflict_widen_to_a_common_type(samples: list[bytes], kind: pa.DataType) -> None:
    assert infer_json(samples) == pa.struct([("a", kind)])
    parsed = table_of(samples).values_json()
    assert parsed.bad.tolist() == []
    expected = [json.loads(text)["a"] for text in samples]
    if pa.types.is_string(kind):
        assert [json.loads(row["a"]) for row in parsed.values.to_pylist()] == expected


def test_a_single_odd_value_does_not_cost_the_columns_of_objects() -> None:
    parsed = table_of([b'{"a":1}', b'"ping"', b'{"a":2}']).values_json()
    assert parsed.values.to_pylist() == [{"a": 1}, None, {"a": 2}]
    assert parsed.errors == ["expected an object, found a string"]


def test_deviations_have_names_counts_and_the_first_record() -> None:
    values = [b'{"id":1,"tag":"a","sub":{"x":1}}'] * 3000
    values[2500] = b'{"id":"x","tag":5,"sub":{"x":1,"new":[1]}}'
    values[2600] = b'{"id":"y","late":null}'
    parser = JsonParser(infer_json(values[:10]), "keep")
    parsed = parser.parse(pa.array(values, pa.binary()))
    assert parsed.values[2500].as_py() == {"id": None, "tag": "5", "sub": {"x": 1}}
    assert parsed.bad.tolist() == [2500, 2600]
    assert parsed.errors == ["id: expected int64, found a string"] * 2
    assert parsed.deviations == [
        ("conflict", "id", "expected int64, found a string", 2, 2500),
        ("text", "tag", "found a number", 1, 2500),
        ("unknown", "sub.new", "not in the schema", 1, 2500),
    ]


def test_the_list_of_deviations_is_bounded() -> None:
    """A hundred fields are named; the occurrences of further ones are counted."""
    values = [b'{"id":1}'] * 3000
    flood = [json.dumps({"id": 1} | {f"n{i}_{k}": i for k in range(5)}).encode() for i in range(400)]
    parsed = table_of(values + flood).values_json(pa.struct([("id", pa.int64())]), unknown="keep")
    named = [each for each in parsed.deviations if each.field is not None]
    assert len(named) == MAX_DEVIATIONS
    assert sum(each.occurrences for each in parsed.deviations) == 2000
    (further,) = (each for each in parsed.deviations if each.field is None)
    assert (further.kind, further.occurrences) == ("unknown", 2000 - MAX_DEVIATIONS)
    assert parsed.bad.tolist() == list(range(3000, 3400))
    assert all("is not in the schema" in error for error in parsed.errors)
    long = table_of([b'{"%s": 1}' % (b"n" * 5000)]).values_json(pa.struct([("id", pa.int64())]), unknown="keep")
    assert len(str(long.deviations[0].field)) < 200


@pytest.mark.parametrize(
    "text",
    [
        b'{"new":[1,}',
        b'{"new":{"a" 1}}',
        b'{"new":tru}',
        b'{"new":01}',
        b'{"new":1.}',
        b'{"new":"\\x"}',
        b'{"new":"\\u12g4"}',
        b'{"text":{1:2}}',
        b'{"text":[1 2]}',
        b'{"text":-}',
        b'{"id":1,}',
        b'{"id":1 "text":2}',
        b'{"id" 1}',
        b'{"tags":[1,]}',
        b'{"new":1]',
        b'{"id":1e400000x}',
    ],
)
def test_invalid_json_in_ignored_places_is_bad(text: bytes) -> None:
    """Omitted fields, and values that become text, must be JSON too."""
    parsed = JsonParser(KIND, "keep").parse(pa.array([b'{"id":1}', text, b'{"id":2}'], pa.binary()))
    assert parsed.bad.tolist() == [1]
    assert [value and value["id"] for value in parsed.values.to_pylist()] == [1, None, 2]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("id", b"\\u0069d"),
        ("é", b"\\u00e9"),
        ("𝄞", b"\\uD834\\udd1e"),
        ('a"/\n', b'a\\"\\/\\n'),
        ("\b\f\r\t", b"\\b\\f\\r\\t"),
    ],
)
def test_escaped_names_are_names_of_the_schema(name: str, key: bytes) -> None:
    parsed = JsonParser(pa.struct([(name, pa.int64())]), "keep").parse(pa.array([b'{"' + key + b'":1}'], pa.binary()))
    assert (parsed.bad.tolist(), parsed.values.to_pylist()) == ([], [{name: 1}])


def test_a_lone_surrogate_is_not_a_name() -> None:
    kind = pa.struct([("a", pa.int64())])
    for key in (b"\\ud834", b"\\ud834\\u0041", b"a" * 50 + b"\\n"):
        parsed = JsonParser(kind, "keep").parse(pa.array([b'{"a":1,"%s":2}' % key], pa.binary()))
        assert parsed.values.to_pylist() == [{"a": 1}]
        assert parsed.bad.tolist() == [0]


def test_names_with_lone_surrogates_are_unknown_fields() -> None:
    """Arrow cannot represent them; their values are kept as bytes."""
    parsed = table_of([b'{"a":1,"\\udd1e":2}']).values_json()
    assert parsed.values.to_pylist() == [{"a": 1}]
    assert parsed.bad_values == [b'{"a":1,"\\udd1e":2}']


def test_a_text_that_does_not_fit_into_the_memory_is_copied() -> None:
    column = pa.array([b'{"id":1}', b'{"id":"x"}', b'{"id":2}'], pa.binary())
    slices = slices_of(column)
    rows = np.arange(3)
    tree = FieldTree(
        np.array([[0, 0], [3, 0]], np.int32),
        np.array([[0, 0], [9, 9]], np.uint64),
        np.array([[0, 1]], np.int32),
        [b"id"],
    )
    out, offsets, marks = np.empty(26, np.uint8), np.zeros(4, np.int32), np.zeros(3, np.int32)
    tree.fit(slices.offsets, slices.content, rows, out, offsets, marks, np.zeros((FINDINGS, FINDING_COLUMNS), np.int64))
    assert out.tobytes() == b"".join(column.to_pylist())
    assert marks.tolist() == [-1, -1, -1]
    fit = fit_texts(pa.struct([("id", pa.int64())]), slices, rows)
    assert [fit.texts.row(row) for row in range(3)] == [b'{"id":1}', b'{"id":null}', b'{"id":2}']


def test_the_kernel_rejects_rows_and_memory_out_of_range() -> None:
    tree = FieldTree(np.zeros((1, 2), np.int32), np.zeros((1, 2), np.uint64), np.zeros((0, 2), np.int32), [])
    content = np.frombuffer(b"{}", np.uint8)
    table = np.zeros((FINDINGS, FINDING_COLUMNS), np.int64)

    def fit(offsets: list[int], row: int, room: int = 8, ends: int = 2, findings: Any = table) -> None:
        tree.fit(
            np.array(offsets, np.int32), content, np.array([row], np.int64), np.empty(room, np.uint8),
            np.zeros(ends, np.int32), np.zeros(1, np.int32), findings,
        )  # fmt: skip

    fit([0, 2], 0)
    for arguments in [([0, 2], 1), ([0, 2], -1), ([0, 3], 0), ([2, 1], 0), ([0, 2], 0, 1), ([0, 2], 0, 8, 1)]:
        with pytest.raises(IndexError):
            fit(*arguments)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="findings"):
        fit([0, 2], 0, findings=np.zeros((1, 6), np.int64))
    for shapes, fields, names in [([[0, 5]], [], []), ([[0, 0]], [[0, 7]], [b"a"]), ([[0, 0]], [[-1, 0]], [b"a"])]:
        with pytest.raises(IndexError):
            FieldTree(
                np.array(shapes, np.int32),
                np.zeros((1, 2), np.uint64),
                np.array(fields, np.int32).reshape(-1, 2),
                names,
            )
    with pytest.raises(ValueError, match="node"):
        FieldTree(np.zeros((0, 2), np.int32), np.zeros((0, 2), np.uint64), np.zeros((0, 2), np.int32), [])
