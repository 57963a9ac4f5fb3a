"""Schemas by id from a registry: each value is read with the schema of its id, each schema is requested once."""

from __future__ import annotations

import json
import pickle
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from scripted_registry import Reference, ScriptedRegistry, framed, serving

pytest.importorskip("pyarrow")

import pyarrow as pa

import kbatch
from kbatch.live import ClientSettings
from kbatch.value_options import FormatOptions, ValueOptions
from kbatch.values import schema_registry
from kbatch.values.json_schema import json_schema_type
from kbatch.values.registry_parser import registry_parser
from kbatch.values.registry_settings import RegistrySettings
from kbatch.values.schema_registry import SchemaRegistry

SECRET = "s3cr3t-value"
V1 = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "tag", "type": "string", "default": "none"}]}


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with serving() as made:
        yield made


def parser_of(registry: ScriptedRegistry, kind: str = "avro", subject: str = "orders-value", **options: Any) -> Any:
    settings = RegistrySettings.of({"schema.registry.url": registry.url, **options.pop("settings", {})})
    return registry_parser(kind, settings, lambda: [subject], options.pop("schema", None), **options)


def parsed(parser: Any, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    found = parser.parse(pa.array(values, pa.binary()))
    return found.values.to_pylist(), dict(zip(found.bad.tolist(), found.errors, strict=True))


# -- Avro


def test_values_are_read_with_the_schema_of_their_id_and_returned_in_the_latest(registry: ScriptedRegistry) -> None:
    first = registry.register("orders-value", V1)
    second = registry.register("orders-value", V2)
    values = [framed(first, b"\x02"), framed(second, b"\x04\x02a"), None, framed(first, b"\x06")]
    found = parser_of(registry).parse(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == [{"id": 1, "tag": "none"}, {"id": 2, "tag": "a"}, None, {"id": 3, "tag": "none"}]
    assert found.schema_ids.tolist() == [first, second, -1, first]
    assert not len(found.bad)


def test_a_given_schema_is_that_of_the_result_and_no_subject_is_asked_for(registry: ScriptedRegistry) -> None:
    number = registry.register("orders-value", V2)
    parser = parser_of(registry, schema=V1)
    assert parsed(parser, framed(number, b"\x04\x02a")) == ([{"id": 2}], {})
    assert registry.requests == [f"/schemas/ids/{number}"]


def test_each_schema_is_requested_once_by_all_threads_and_tables(registry: ScriptedRegistry) -> None:
    number = registry.register("orders-value", V1)
    parsers = [parser_of(registry, schema=V1) for _ in range(4)]
    threads = [threading.Thread(target=parsed, args=(each, framed(number, b"\x02"))) for each in parsers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.requests == [f"/schemas/ids/{number}"]


def test_an_unknown_id_makes_values_bad_and_is_not_asked_for_again(registry: ScriptedRegistry) -> None:
    number = registry.register("orders-value", V1)
    parser = parser_of(registry)
    for _ in range(2):
        values, errors = parsed(parser, framed(77, b"\x02"), framed(number, b"\x02"), b"\1x", framed(77, b""))
        assert values == [None, {"id": 1}, None, None]
        assert errors[0] == errors[3] == "unknown schema id 77: the registry has no such schema"
        assert errors[2].startswith("no Confluent framing")
    assert registry.requests.count("/schemas/ids/77") == 1


def test_an_unknown_id_is_asked_for_again_after_a_time(
    registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "UNKNOWN_SECONDS", 0)
    parser = parser_of(registry, schema=V1)
    assert parsed(parser, framed(1, b"\x02"))[1]
    assert registry.register("orders-value", V1) == 1
    assert parsed(parser, framed(1, b"\x02")) == ([{"id": 1}], {})


def test_bytes_that_look_like_many_ids_cause_a_bounded_number_of_requests(
    registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "MAX_UNKNOWN", 3)
    errors = parsed(parser_of(registry, schema=V1), *(framed(number, b"\x02") for number in range(9)))[1]
    assert len(errors) == 9
    assert len(registry.requests) == 3
    assert errors[8].endswith("not asked for, because the registry has none of 3 other ids")


def test_the_cache_is_bounded(registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "MAX_CACHED", 2)
    client = SchemaRegistry(RegistrySettings.of(registry.url))
    for number in [registry.register("s", {**V1, "name": f"r{i}"}) for i in range(3)]:
        client.schema(number)
    client.schema(3)
    client.schema(1)
    assert [path[-1] for path in registry.requests] == ["1", "2", "3", "1"]


def test_a_schema_that_does_not_fit_the_result_makes_its_values_bad(registry: ScriptedRegistry) -> None:
    other = registry.register("x", {**V1, "fields": [{"name": "id", "type": "string"}]})
    broken = registry.register("x", '{"type": "nothing"}')
    of_json = registry.register("x", '{"type": "object"}', "JSON")
    errors = parsed(
        parser_of(registry, schema=V1), framed(other, b"\x02a"), framed(broken, b""), framed(of_json, b"{}")
    )[1]
    assert errors[0].startswith(f"schema id {other}: ")
    assert errors[1].startswith(f"schema id {broken}: Avro schema, at the top level")
    assert errors[2] == f"schema id {of_json} is JSON, not AVRO"


def test_references_of_avro_are_resolved_with_their_namespaces(registry: ScriptedRegistry) -> None:
    kind = {"type": "enum", "name": "kind", "namespace": "shop.types", "symbols": ["a", "b"]}
    registry.register("kind", kind)
    user = {
        "type": "record", "name": "user", "fields": [{"name": "kind", "type": "shop.types.kind"}],
    }  # fmt: skip
    registry.register("user", user, references=(Reference("shop.types.kind", "kind", 1),))
    order = {
        "type": "record", "name": "order", "namespace": "shop",
        "fields": [
            {"name": "by", "type": "user"}, {"name": "to", "type": ["null", "user"]},
            {"name": "kinds", "type": {"type": "array", "items": "shop.types.kind"}},
        ],
    }  # fmt: skip
    number = registry.register("orders-value", order, references=(Reference("user", "user", 1),))
    values, errors = parsed(parser_of(registry), framed(number, b"\x02\x02\x00\x04\x00\x02\x00"))
    assert errors == {}
    assert values == [{"by": {"kind": "b"}, "to": {"kind": "a"}, "kinds": ["a", "b"]}]


@pytest.mark.parametrize("references", [(Reference("a", "a", 1),), (Reference("gone", "gone", 1),)])
def test_references_that_are_circular_or_missing_make_values_bad(
    registry: ScriptedRegistry, references: tuple[Reference, ...]
) -> None:
    registry.register("a", V1, references=(Reference("a", "a", 1),))
    number = registry.register("orders-value", V2, references=references)
    errors = parsed(parser_of(registry, schema=V1), framed(number, b"\x04\x02a"))[1]
    assert list(errors) == [0]


def test_a_parser_can_be_pickled_and_projected(registry: ScriptedRegistry) -> None:
    number = registry.register("orders-value", V2)
    from kbatch.values.projection import projected

    part = projected(parser_of(registry), pa.struct({"tag": pa.string()}))
    again = pickle.loads(pickle.dumps(part))
    assert parsed(again, framed(number, b"\x04\x02a"), framed(number, b"\x04")) == (
        [{"tag": "a"}, None],
        {1: "byte 6: ends within the datum"},
    )


# -- Protobuf and JSON


def descriptors(message: str = "Order", package: str = "shop") -> bytes:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="any", package=package, syntax="proto3")
    file.dependency.extend(["user.proto", "google/protobuf/timestamp.proto", "confluent/meta.proto"])
    file.message_type.add(name="Before")
    made = file.message_type.add(name=message)
    made.field.add(name="id", number=1, type=3, label=1)
    made.field.add(name="user", number=2, type=11, label=1, type_name=".shop.User")
    made.field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    return file.SerializeToString()


USER = 'syntax = "proto3"; package shop; message User { string name = 1; }'
ORDER = """
syntax = "proto3"; package shop; import "user.proto"; import "google/protobuf/timestamp.proto";
message Before {} message Order { int64 id = 1; User user = 2; google.protobuf.Timestamp at = 3; }
"""


def user_descriptor() -> bytes:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3")
    file.message_type.add(name="User").field.add(name="name", number=1, type=9, label=1)
    return file.SerializeToString()


@pytest.mark.parametrize("serializes", ["all", "ids", "none", "fails"])
def test_protobuf_is_read_from_descriptors_or_from_text(registry: ScriptedRegistry, serializes: str) -> None:
    pytest.importorskip("google.protobuf")
    if serializes != "all":
        pytest.importorskip("grpc_tools")
    registry.serializes = serializes
    registry.register("user", USER, "PROTOBUF", serialized=user_descriptor())
    number = registry.register(
        "orders-value", ORDER, "PROTOBUF", references=(Reference("user.proto", "user", 1),), serialized=descriptors()
    )
    parser = parser_of(registry, "protobuf", message="shop.Order")
    values, errors = parsed(
        parser, framed(number, b"\x08\x05\x12\x03\x0a\x01a", b"\x02\x02"), framed(number, b"\x08\x05", b"\0")
    )
    assert values == [{"id": 5, "user": {"name": "a"}, "at": None}, None]
    assert errors == {1: "expected message path [1], found [0]"}
    assert any("format=serialized" in path for path in registry.requests)


def test_the_message_path_is_that_of_the_writers_file(registry: ScriptedRegistry) -> None:
    from google.protobuf import descriptor_pb2

    def file(*names: str) -> bytes:
        made = descriptor_pb2.FileDescriptorProto(package="p", syntax="proto3")
        for name in names:
            made.message_type.add(name=name).field.add(name="id", number=1, type=3, label=1)
        return made.SerializeToString()

    first = registry.register("orders-value", "1", "PROTOBUF", serialized=file("A", "B"))
    second = registry.register("orders-value", "2", "PROTOBUF", serialized=file("B", "A"))
    other = registry.register("other", "3", "PROTOBUF", serialized=file("C"))
    parser = parser_of(registry, "protobuf", message="p.A")
    values = [framed(first, b"\x08\x01", b"\0"), framed(second, b"\x08\x02", b"\x02\x02"), framed(other, b"", b"\0")]
    assert parsed(parser, *values) == (
        [{"id": 1}, {"id": 2}, None],
        {2: f"schema id {other}: its file has no message p.A"},
    )


def test_json_schema_gives_the_columns_of_json_values(registry: ScriptedRegistry) -> None:
    address = {"$id": "address", "type": "object", "properties": {"city": {"type": "string"}}}
    registry.register("address", address, "JSON")
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"oneOf": [{"type": "null"}, {"type": "number"}]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "home": {"$ref": "address.json"},
        },
        "$defs": {"tag": {"type": ["string", "null"]}},
    }
    number = registry.register("orders-value", schema, "JSON", references=(Reference("address.json", "address", 1),))
    text = {"id": 1, "price": 2.5, "tags": ["a"], "home": {"city": "x"}}
    values, errors = parsed(
        parser_of(registry, "json"), framed(number, json.dumps(text).encode()), framed(number, b"no"), framed(9, b"{}")
    )
    assert values == [text, None, None]
    assert list(errors) == [1, 2]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object"}, "at the top level: an object without properties, for which there is no column; give"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, r"at a: values of several types \(integer, string\)"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, "at a: anyOf of 2 schemas"),
        ({"properties": {"a": True}}, "at a: any value is allowed"),
        ({"properties": {"a": {"$ref": "#"}}}, "at a: the type contains itself"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "at a: [$]ref leads nowhere: #/nowhere"),
        ({"properties": {"a": {"$ref": "other"}}}, "at a: there is no reference 'other'"),
        ({"properties": {"a": {"type": "array"}}}, "at a: an array whose items have no single schema"),
        ({"properties": {"a": {"type": "money"}}}, "at a: the type 'money'"),
    ],
)
def test_a_json_schema_without_columns_is_refused_with_the_place(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^the JSON Schema, {message}"):
        json_schema_type(json.dumps(schema))


def test_a_json_schema_that_refers_often_to_a_place_takes_linear_time() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for i in range(1, 30):
        part = {"$ref": f"#/d/d{i - 1}"}
        definitions[f"d{i}"] = {"type": "object", "properties": {"a": part, "b": part}}
    begun = time.process_time()
    kind = json_schema_type(json.dumps({"$ref": "#/d/d12", "d": definitions}))
    assert time.process_time() - begun < 5
    assert kind.num_fields == 2


# -- which schema


def test_several_topics_need_one_schema(registry: ScriptedRegistry) -> None:
    settings = RegistrySettings.of(registry.url)
    registry.register("a-value", V1)
    registry.register("b-value", V1)
    registry.register("c-value", V2)
    assert registry_parser("avro", settings, lambda: ["a-value", "b-value", "a-value"]).type.num_fields == 1
    with pytest.raises(ValueError, match=r"^the subjects a-value and c-value have different schemas"):
        registry_parser("avro", settings, lambda: ["a-value", "c-value"])
    with pytest.raises(ValueError, match=r"^the schema of the result is unknown, because the input has no topic"):
        registry_parser("avro", settings, list)
    with pytest.raises(kbatch.RegistryError, match=r"there is no subject 'd-value'; name another one"):
        registry_parser("avro", settings, lambda: ["d-value"])
    with pytest.raises(ValueError, match=r"^the schema of subject a-value is AVRO, and the format is json"):
        registry_parser("json", settings, lambda: ["a-value"])


def test_subjects_are_quoted_in_urls(registry: ScriptedRegistry) -> None:
    registry.register("a/../b?c", V1)
    assert parser_of(registry, subject="a/../b?c").type.num_fields == 1
    assert registry.requests[0] == "/subjects/a%2F..%2Fb%3Fc/versions/latest"


# -- faults


@pytest.mark.parametrize("fault", [500, 503, 429, "cut"])
def test_requests_that_fail_for_a_time_are_repeated(registry: ScriptedRegistry, fault: int | str) -> None:
    number = registry.register("orders-value", V1)
    registry.faults = [fault]
    assert parsed(parser_of(registry, schema=V1), framed(number, b"\x02")) == ([{"id": 1}], {})
    assert len(registry.requests) == 2


def test_a_registry_that_is_not_reachable_is_an_error_and_the_values_are_not_bad(registry: ScriptedRegistry) -> None:
    parser = registry_parser(
        "avro",
        RegistrySettings.of({"url": "http://127.0.0.1:9", "max.retries": 1}),
        list,
        V1,
    )
    with pytest.raises(kbatch.RegistryError, match=r"^schema registry http://127.0.0.1:9: can't be reach.* after 2"):
        parsed(parser, framed(1, b"\x02"))
    registry.faults = [500, 500]
    other = parser_of(registry, schema=V1, settings={"schema.registry.max.retries": 1})
    with pytest.raises(kbatch.RegistryError, match=r"HTTP status 500, after 2 attempts; check schema.registry.url"):
        parsed(other, framed(1, b"\x02"))


def test_the_next_url_is_tried_if_one_fails(registry: ScriptedRegistry) -> None:
    number = registry.register("orders-value", V1)
    settings = RegistrySettings.of(f"http://127.0.0.1:9,{registry.url}")
    assert SchemaRegistry(settings).schema(number).kind == "AVRO"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("garbage", "is not a JSON object"),
        (401, r"HTTP status 401 \(scripted\) for /schemas/ids/1; check basic.auth.user.info or bearer.auth.token"),
        (404, r"HTTP status 404 \(scripted\) for /schemas/ids/1; check the path of schema.registry.url"),
    ],
)
def test_answers_that_do_not_change_are_errors_at_once(
    registry: ScriptedRegistry, fault: int | str, message: str
) -> None:
    registry.faults = [fault]
    with pytest.raises(kbatch.RegistryError, match=message):
        parsed(parser_of(registry, schema=V1), framed(1, b"\x02"))
    assert len(registry.requests) == 1


def test_a_registry_that_hangs_is_an_error_after_the_timeout(registry: ScriptedRegistry) -> None:
    registry.faults = ["slow", "slow"]
    settings = {"schema.registry.request.timeout.ms": 50, "schema.registry.max.retries": 0}
    with pytest.raises(kbatch.RegistryError, match=r"timed out"):
        parsed(parser_of(registry, schema=V1, settings=settings), framed(1, b"\x02"))


def test_redirects_to_other_servers_are_not_followed(registry: ScriptedRegistry) -> None:
    with serving() as other:
        registry.faults = ["redirect"]
        registry.redirect_to = other.url
        settings = {"basic.auth.user.info": f"me:{SECRET}"}
        with pytest.raises(kbatch.RegistryError, match=r"it redirects to 127.0.0.1"):
            parsed(parser_of(registry, schema=V1, settings=settings), framed(1, b"\x02"))
        assert other.requests == []
    registry.faults = ["redirect"]
    registry.redirect_to = registry.url
    number = registry.register("orders-value", V1)
    assert parsed(parser_of(registry, schema=V1, settings=settings), framed(number, b"\x02")) == ([{"id": 1}], {})


def test_a_response_beyond_the_limit_is_an_error(registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_MAX_ANSWER", 10)
    registry.register("orders-value", V1)
    with pytest.raises(kbatch.RegistryError, match=r"a response of more than 10 bytes"):
        SchemaRegistry(RegistrySettings.of(registry.url)).schema(1)


# -- authentication and settings


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "me:pw"}, "Basic bWU6cHc="),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "abc"}, "Bearer abc"),
    ],
)
def test_credentials_are_sent(registry: ScriptedRegistry, settings: dict[str, str], header: str) -> None:
    registry.register("orders-value", V1)
    registry.authorization = header
    assert parser_of(registry, settings=settings).type.num_fields == 1
    assert all(each["Authorization"] == header for each in registry.headers)
    with pytest.raises(kbatch.RegistryError, match=r"HTTP status 401"):
        parser_of(registry)


def test_secrets_are_in_no_repr_and_no_error(registry: ScriptedRegistry) -> None:
    secrets = {"basic.auth.user.info": f"me:{SECRET}", "schema.registry.ssl.key.password": SECRET}
    settings = RegistrySettings.of({"schema.registry.url": registry.url, **secrets})
    options = ValueOptions.of({"values": "avro", "schema_registry": {"schema.registry.url": registry.url, **secrets}})
    assert options.value.registry == settings
    registry.faults = [403]
    with pytest.raises(kbatch.RegistryError) as raised:
        SchemaRegistry(settings).schema(1)
    texts = [repr(settings), repr(SchemaRegistry(settings)), repr(options), str(raised.value)]
    for url in (f"http://me:{SECRET}@host", f"http://host?token={SECRET}", f"me:{SECRET}@host"):
        with pytest.raises(ValueError, match=r"^schema.registry.url must be http") as refused:
            RegistrySettings.of(url)
        texts.append(str(refused.value))
    assert not [text for text in texts if SECRET in text]
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "schema.registry.url is missing"),
        ({"url": "ftp://x"}, "schema.registry.url must be http://HOST:PORT or https"),
        (
            {"url": "http://a", "ssl.ca.locatoin": "x"},
            "unknown setting 'schema.registry.ssl.ca.locatoin', did you mean",
        ),
        ({"url": "http://a", "basic.auth.user.info": "me"}, "basic.auth.user.info must be USER:PASSWORD"),
        (
            {"url": "http://a", "basic.auth.user.info": "a:b", "bearer.auth.token": "c"},
            "basic.auth.user.info and bearer.auth.token exclude each other",
        ),
        ({"url": "http://a", "basic.auth.credentials.source": "SASL_INHERIT"}, "basic.auth.credentials.source must be"),
        ({"url": "http://a", "ssl.truststore.location": "x.jks"}, "schema.registry.ssl.truststore.location is of type"),
        ({"url": "http://a", "ssl.key.location": "k"}, "schema.registry.ssl.key.location needs"),
        ({"url": "http://a", "schema.registry.url": "http://b"}, "schema.registry.url is given twice"),
        ({"url": "http://a", "max.retries": "many"}, "schema.registry.max.retries must be a whole number"),
        ({"url": "http://a", "bearer.auth.token": "a\nb"}, "bearer.auth.token must be a text of one line"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        RegistrySettings.of(given)


def test_one_file_has_the_settings_of_the_cluster_and_of_the_registry(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=a:9092\nsecurity.protocol=SSL\nssl.ca.location=broker.pem\n"
        "schema.registry.url=https://r/apis/ccompat/v7/\nschema.registry.ssl.truststore.type=PEM\n"
        "schema.registry.ssl.truststore.location=ca.pem\nbasic.auth.user.info=me:pw\n"
    )
    found = RegistrySettings.of(path)
    assert found == RegistrySettings(("https://r/apis/ccompat/v7",), user_info="me:pw", ca_location="ca.pem")
    assert ClientSettings.of(path).ssl_ca_location == "broker.pem"
    with pytest.raises(ValueError, match=r"no-such-file: can't read the settings of the schema registry: No such file"):
        RegistrySettings.of("no-such-file")


def test_tls_verifies_the_registry_and_shows_the_certificate_of_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("server"))
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(context) as registry:
        registry.register("orders-value", V1)
        mutual = {
            "schema.registry.ssl.ca.location": str(authority.path),
            "schema.registry.ssl.certificate.location": authority.sign("client"),
        }
        assert parser_of(registry, settings=mutual).type.num_fields == 1
        with pytest.raises(kbatch.RegistryError, match=r"its certificate is not trusted: .* set schema.registry.ssl"):
            parser_of(registry)
        refused = {"schema.registry.ssl.ca.location": str(authority.path), "schema.registry.max.retries": 0}
        with pytest.raises(kbatch.RegistryError, match=r"can't be reached"):
            parser_of(registry, settings=refused)
    with pytest.raises(ValueError, match=r"^schema.registry.ssl.ca.location has no certificates"):
        SchemaRegistry(RegistrySettings.of({"url": "https://a", "ssl.ca.location": str(tmp_path / "none")}))


def test_options_of_a_registry_have_to_fit() -> None:
    url = "http://127.0.0.1:9"
    for given, message in (
        ({"values": "avro", "value_subject": "s", "value_schema": "x"}, "value_subject requires schema_registry"),
        (
            {"values": "json", "value_framing": "confluent"},
            "value_framing confluent with values json requires schema",
        ),
        ({"schema_registry": url}, "schema_registry requires values or keys in json, avro, protobuf"),
        ({"schema_registry": url, "values": "avro", "value_framing": "none"}, "values avro requires value_schema"),
        ({"schema_registry": url, "values": "string"}, "schema_registry requires values or keys in json"),
        (
            {"schema_registry": url, "values": "avro", "value_subject": "s", "value_schema": "x"},
            "value_subject and value_schema exclude each other",
        ),
        (
            {"schema_registry": url, "values": "avro", "value_reader_schema": "x"},
            "value_reader_schema and schema_registry exclude each other",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            ValueOptions.of(given)
    made = ValueOptions.of({"schema_registry": url, "values": "avro", "keys": "json", "key_framing": "none"})
    assert made.key == FormatOptions("json", framing="none")
    assert made.value.registry == RegistrySettings((url,))
    assert not made.value.inferred
    with pytest.raises(TypeError, match=r"^schema_registry must be a URL, a file or a mapping, got int"):
        ValueOptions.of({"schema_registry": 5, "values": "avro"})
