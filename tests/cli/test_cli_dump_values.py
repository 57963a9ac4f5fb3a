"""``kbatch dump --values``: decoded keys and values as JSON; a bad value is shown as its bytes, with the reason."""

from __future__ import annotations

import base64
import datetime
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_batches import write_segment
from value_tables import batch_of, write_log

pytest.importorskip("pyarrow")

from kbatch.cli import main

ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}, {"name": "raw", "type": "bytes"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
    {"name": "price", "type": "double"}, {"name": "real", "type": "float"}, {"name": "ok", "type": "boolean"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "inner", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}}]}  # fmt: skip


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run ``kbatch dump``: status, lines as objects, standard error."""

    def command(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        status = main(["dump", *map(str, arguments)])
        captured = capfd.readouterr()
        return status, [json.loads(line) for line in captured.out.splitlines()], captured.err

    return command


def order(**changes: Any) -> dict[str, Any]:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    whole = {
        "id": 2**60, "name": "é\n", "raw": b"\xff", "at": epoch, "day": datetime.date(2024, 2, 29),
        "cost": Decimal("-12345678901234567.80"), "price": 0.1, "real": 0.1, "ok": True, "tags": ["a", ""],
        "counts": {"k": 1}, "inner": {"x": -5},
    }  # fmt: skip
    return whole | changes


def encoded(schema: Any, value: Any) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_avro_values_are_printed_as_json(tmp_path: Path, run: Any) -> None:
    good = encoded(ORDER, order())
    values = [good, None, good[:-1], encoded(ORDER, order(name=None, price=float("nan"), real=float("-inf"), tags=[]))]
    root = write_log(tmp_path / "logs", "t", values, [b"\x02", None, b"\x80", b"\x03"])
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(ORDER))
    status, found, error = run(
        "--values", "avro", "--value-schema", schema, "--keys", "avro", "--key-schema", '"int"', root
    )
    assert (status, error) == (0, "")
    assert found[0]["value"] == {
        "id": 2**60, "name": "é\n", "raw": {"base64": "/w=="}, "at": "1970-01-01T00:00:00.000000Z", "day": "2024-02-29",
        "cost": -12345678901234567.80, "price": 0.1, "real": 0.1, "ok": True, "tags": ["a", ""], "counts": {"k": 1},
        "inner": {"x": -5},
    }  # fmt: skip
    assert [each["key"] for each in found] == [1, None, None, -2]
    assert found[1]["value"] is None
    assert "value_bad" not in found[0]
    assert "value_bad" not in found[1]
    assert found[2]["value"] is None
    # The bytes are those of the value, and the other side of the record is not affected.
    assert base64.b64decode(found[2]["value_bad"]["base64"]) == good[:-1]
    assert found[2]["value_error"] == f"byte {len(good) - 1}: ends within the datum"
    assert found[2]["key_bad"] == {"base64": "gA=="}
    assert [found[3]["value"][name] for name in ("name", "price", "real", "tags")] == [None, "NaN", "-Infinity", []]


def test_digits_of_decimals_are_printed_exactly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = write_log(tmp_path / "logs", "t", [encoded(ORDER, order())])
    assert main(["dump", "--values", "avro", "--value-schema", json.dumps(ORDER), root]) == 0
    assert '"cost": -12345678901234567.80, "price": 0.1, "real": 0.1,' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (253402300799999999, "9999-12-31T23:59:59.999999Z"),
        (253402300800000000, 253402300800000000),
        (-62135596800000000, "0001-01-01T00:00:00.000000Z"),
        (-62135596800000001, -62135596800000001),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_time_outside_of_four_digit_years_is_an_integer(tmp_path: Path, run: Any, micros: int, text: Any) -> None:
    """Python and other readers of ISO 8601 have no such year; the number is what is stored."""
    kind = {"type": "long", "logicalType": "timestamp-micros"}
    root = write_log(tmp_path / "logs", "t", [encoded("long", micros)])
    assert run("--values", "avro", "--value-schema", json.dumps(kind), root)[1][0]["value"] == text


def test_json_without_a_schema_is_printed_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All digits, the order of fields and repeated fields stay; a line has no line break."""
    digits = "1" * 5000
    values = [
        b'{"b": 1,\r\n\t"a": [1.50, ' + digits.encode() + b'], "b": "x"}',
        b" 5\n",
        b'"\xc3\xa9"',
        b"{",
        b"[NaN]",
        b"",
        None,
    ]
    root = write_log(tmp_path / "logs", "t", values)
    assert main(["dump", "--values", "json", root]) == 0
    text = capfd.readouterr().out
    assert '"value": {"b": 1,   "a": [1.50, ' + digits + '], "b": "x"}, "headers"' in text
    found = [json.loads(line, parse_int=str) for line in text.splitlines()]
    assert [each["value"] for each in found[1:]] == ["5", "é", None, None, None, None]
    bad = [(each.get("value_bad"), each.get("value_error")) for each in found]
    assert bad[3][0] == "{"
    assert bad[4] == ("[NaN]", "NaN is not JSON")
    assert bad[5] == ("", "Expecting value: line 1 column 1 (char 0)")
    assert bad[6] == (None, None)
    assert len(found) == len(values)


def test_json_with_a_schema_has_its_fields(tmp_path: Path, run: Any) -> None:
    root = write_log(tmp_path / "logs", "t", [b'{"id": 1, "more": 2}', b'{"id": "x"}', b'{"id": 3, "n": null}'])
    schema = ("--values", "json", "--value-schema", "id bigint, n string", root)
    _, found, _ = run(*schema)
    assert [each["value"] for each in found] == [{"id": 1, "n": None}, None, {"id": 3, "n": None}]
    assert found[1]["value_bad"] == '{"id": "x"}'
    _, found, _ = run("--value-unknown-fields", "keep", *schema)
    assert (found[0]["value"], found[0]["value_bad"]) == ({"id": 1, "n": None}, '{"id": 1, "more": 2}')
    assert found[0]["value_error"] == "field 'more' is not in the schema"


def test_structs_and_strings_are_printed_as_json(tmp_path: Path, run: Any) -> None:
    rows = np.array([(1, 2.5)], [("id", ">i8"), ("price", ">f8")])
    root = write_log(tmp_path / "logs", "t", [rows.tobytes(), b"short"], ["käse".encode(), b"\xff"])
    _, found, _ = run("--values", "struct", "--value-schema", "id:>i8,price:>f8", "--keys", "string", root)
    assert [each["value"] for each in found] == [{"id": 1, "price": 2.5}, None]
    assert (found[1]["value_bad"], found[1]["value_error"]) == ("short", "expected 16 bytes, found 5")
    assert [each["key"] for each in found] == ["käse", None]
    assert (found[1]["key_bad"], found[1]["key_error"]) == ({"base64": "/w=="}, "byte 0: not UTF-8")


def test_protobuf_values_are_printed_as_json(tmp_path: Path, run: Any) -> None:
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, duration_pb2

    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(duration_pb2.DESCRIPTOR.serialized_pb)
    (tmp_path / "set").write_bytes(files.SerializeToString())
    root = write_log(tmp_path / "logs", "t", [duration_pb2.Duration(seconds=5).SerializeToString(), b"\xff"])
    message = ("--value-schema", tmp_path / "set", "--value-message", "google.protobuf.Duration")
    _, found, _ = run("--values", "protobuf", *message, root)
    assert [each["value"] for each in found] == [{"seconds": 5, "nanos": 0}, None]
    assert found[1]["value_bad"] == {"base64": "/w=="}


def test_the_schema_id_of_framing_is_a_field(tmp_path: Path, run: Any) -> None:
    root = write_log(tmp_path / "logs", "t", [b"\0\0\0\0\7\2", b"\0\0\0\0\7", b"x"])
    _, found, _ = run("--values", "avro", "--value-schema", '"long"', "--value-framing", "confluent", root)
    assert [each.get("value_schema_id") for each in found] == [7, 7, None]
    assert [each["value"] for each in found] == [1, None, None]


def test_bad_bytes_are_cut_and_decoded_values_are_not(tmp_path: Path, run: Any) -> None:
    root = write_log(tmp_path / "logs", "t", [b'"abcdefgh"', b"abcdefgh"])
    _, found, _ = run("--values", "json", "--max-bytes-shown", "3", root)
    assert found[0]["value"] == "abcdefgh"
    assert found[1]["value_bad"] == {"text": "abc", "size": 8}


def test_control_records_are_not_decoded(tmp_path: Path, run: Any) -> None:
    golden = Path(__file__).parents[1] / "golden" / "logs" / "txn-0"
    _, raw, _ = run("--records", "--control", "--offsets", "0:60", golden)
    _, found, _ = run(
        "--control", "--values", "string", "--keys", "struct", "--key-schema", "V1", "--offsets", "0:60", golden
    )
    control = [number for number, each in enumerate(raw) if "control" in each]
    assert control
    assert [found[number] for number in control] == [raw[number] for number in control]
    assert len(found) == len(raw)


def test_filters_apply_to_the_bytes_of_keys(tmp_path: Path, run: Any) -> None:
    root = write_log(tmp_path / "logs", "t", [b"1", b"2"], [b'"a"', b'"b"'])
    _, found, _ = run("--values", "json", "--keys", "json", "--key", '"b"', root)
    assert [(each["key"], each["value"]) for each in found] == [("b", 2)]


def test_standard_input_is_decoded(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(batch_of([b'{"id": 1}', b"no"]))

    monkeypatch.setattr("sys.stdin", Input())
    _, found, _ = run("--values", "json", "-")
    assert [each["value"] for each in found] == [{"id": 1}, None]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--values", "json", "--format", "kafka"], 2, "--values and --keys print JSON, not --format kafka"),
        (["--values", "json", "--protocol"], 2, "with --protocol, the only other option is --max-bytes-shown"),
        (["--values", "avro"], 2, "--values avro requires --value-schema"),
        (["--key-schema", "x"], 2, "--key-schema without --keys, which is binary by default"),
        (["--values", "avro", "--value-schema", "no.avsc"], 1, "no.avsc: can't read an Avro schema"),
        (["--values", "json", "--value-schema", "m map<string,int>"], 1, "JSON can't be read as"),
        (["--values", "avro", "--value-schema", '{"type": "oops"}'], 1, "unknown Avro type 'oops'"),
    ],
)
def test_wrong_formats_and_schemas_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    root = write_log(tmp_path / "logs", "t", [b"1"])
    if status == 2:
        with pytest.raises(SystemExit) as ended:
            main(["dump", *arguments, root])
        assert ended.value.code == 2
    else:
        assert main(["dump", *arguments, root]) == status
    captured = capfd.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_damage_is_reported_next_to_decoded_values(tmp_path: Path, run: Any) -> None:
    good = batch_of([b"1"])
    bad = bytearray(batch_of([b"2"], base_offset=1))
    bad[-1] ^= 1
    write_segment(tmp_path / "t-0", 0, [good, bytes(bad), batch_of([b"3"], base_offset=2)])
    status, found, error = run("--values", "json", tmp_path / "t-0")
    assert status == 3
    assert [each["value"] for each in found] == [1, 3]
    assert "base offset 1" in error
