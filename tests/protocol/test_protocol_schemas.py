"""The message tables compared with the definitions in Kafka's jars, field by field."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol_messages import (
    LISTED_APIS,
    all_definitions,
    definitions,
    parse_versions,
    sent_by_clients,
    stable_versions,
)

from kbatch.protocol import supported_versions
from kbatch.protocol.codec import _is_flexible
from kbatch.protocol.schema import TABLES, FieldSchema, MessageSchema, message_schemas

try:
    from broker.server import Unavailable, find_jars
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

JAVA = Path(__file__).parent / "java"
# The releases that the tables follow. Kafka 4 dropped versions that 3.9 has. "newest" is a release range, which is
# resolved again in each run: it finds what a release after the current one has changed.
RELEASES = ["current", "3.9", pytest.param("newest", marks=pytest.mark.long)]

# Fields that Kafka 4 has renamed.
RENAMED = {("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch"}
# Differences within common versions: the later definition drops a value, the earlier one rejects it.
DROPPABLE_SINCE = {
    ("ProduceRequest", "topic_data.name"),
    ("ProduceResponse", "responses.name"),
    ("OffsetCommitRequest", "topics.name"),
    ("OffsetCommitResponse", "topics.name"),
    ("OffsetFetchRequest", "groups.topics.name"),
    ("OffsetFetchResponse", "groups.topics.name"),
    ("TxnOffsetCommitRequest", "topics.name"),
    ("TxnOffsetCommitResponse", "topics.name"),
}


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.fixture(scope="module")
def find_release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def found(release: str) -> Path:
        try:
            if release == "newest":
                return find_jars(JAVA / "newest.xml", tmp_path_factory.mktemp("newest"))
            return find_jars(JAVA / "pom.xml") if release == "3.9" else find_jars()
        except Unavailable as error:
            pytest.skip(str(error))

    return found


def default_of(field: dict[str, Any], inner: list[dict[str, Any]] | None) -> Any:
    text = field.get("default")
    kind = field["type"]
    if text == "null":
        return None
    if kind.startswith("[]"):
        return ()
    if inner is not None:
        return ...
    if kind == "bool":
        return str(text).lower() == "true"
    if kind == "string":
        return text or ""
    if kind.startswith(("int", "uint")):
        return int(str(text), 0) if text else 0
    return {"float64": 0.0, "uuid": "00000000-0000-0000-0000-000000000000", "bytes": b"", "records": None}[kind]


def clipped(versions: range, valid: range) -> range:
    return range(max(versions.start, valid.start), min(versions.stop, valid.stop))


def rows_of_jar(definition: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the path and the properties of each field."""
    valid = parse_versions(definition["validVersions"])
    common = {each["name"]: each["fields"] for each in definition.get("commonStructs", [])}

    def walk(fields: list[dict[str, Any]], path: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for field in fields:
            # A tagged field needs no other versions.
            versions = clipped(parse_versions(field.get("versions", field.get("taggedVersions"))), valid)
            if not versions:
                continue
            name = path + snake(field["name"])
            inner = field.get("fields", common.get(field["type"].removeprefix("[]")))
            kind = "old_string" if field.get("flexibleVersions") == "none" else field["type"]
            tagged = parse_versions(field.get("taggedVersions"))
            assert not tagged or clipped(tagged, valid) == versions
            yield (
                name,
                (
                    kind,
                    versions,
                    clipped(parse_versions(field.get("nullableVersions")), versions),
                    field.get("tag"),
                    default_of(field, inner),
                    # If every version has the field, its value is never dropped.
                    versions == valid or bool(field.get("ignorable")),
                ),
            )
            if inner is not None:
                yield from walk(inner, f"{name}.")

    yield from walk(definition["fields"], "")


def rows_of_table(schema: MessageSchema, valid: range) -> Iterator[tuple[str, tuple[Any, ...]]]:
    def walk(fields: tuple[FieldSchema, ...], path: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for field in fields:
            versions = clipped(field.versions, valid)
            if not versions:
                continue
            default = str(field.default) if field.type == "uuid" else field.default
            yield (
                path + field.name,
                (
                    field.type,
                    versions,
                    clipped(field.nullable, versions),
                    field.tag,
                    default,
                    versions == valid or field.droppable,
                ),
            )
            yield from walk(field.fields, f"{path}{field.name}.")

    yield from walk(schema.fields, "")


@pytest.mark.parametrize("release", RELEASES)
def test_tables_equal_kafkas_definitions(release: str, find_release: Callable[[str], Path]) -> None:
    compared = 0
    for name, definition in definitions(find_release(release)):
        schema = message_schemas()[name]
        valid = parse_versions(definition["validVersions"])
        if release == "3.9" and valid.stop <= schema.versions.start:
            # The only version in 3.9 is a draft.
            assert name.startswith("Share")
            continue
        assert valid.start >= schema.versions.start
        assert valid.stop <= schema.versions.stop, name
        assert release == "3.9" or valid.stop == schema.versions.stop, name
        assert release != "3.9" or valid.start == schema.versions.start, name
        assert definition.get("apiKey") == schema.api_key
        flexible = parse_versions(definition["flexibleVersions"])
        assert clipped(flexible, valid) == clipped(schema.flexible, valid), name
        theirs, ours = list(rows_of_jar(definition)), list(rows_of_table(schema, valid))
        if release == "3.9":
            theirs = [
                (RENAMED.get((name, path), path), (*facts[:-1], True) if (name, path) in DROPPABLE_SINCE else facts)
                for path, facts in theirs
            ]
        assert ours == theirs, name
        compared += len(ours)
    assert compared > 900


@pytest.mark.parametrize("release", RELEASES)
def test_every_api_that_clients_send_has_a_schema(release: str, find_release: Callable[[str], Path]) -> None:
    ours = supported_versions()
    sent = [each for _, each in all_definitions(find_release(release)) if sent_by_clients(each)]
    assert len(sent) > 60
    # By number: ListConfigResources had another name in 3.9.
    missing = [each["name"] for each in sent if not set(stable_versions(each)) <= set(ours.get(each["apiKey"], ()))]
    assert missing == []
    if release != "3.9":
        assert {each["apiKey"] for each in sent} == set(ours)


@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[2]])
def test_every_record_type_of_an_internal_topic_has_a_schema(release: str, find_release: Callable[[str], Path]) -> None:
    """Those of `__cluster_metadata` have schemas in part, and the legacy ones are the first version of others."""
    stored = {
        name
        for name, each in all_definitions(find_release(release))
        if (each["type"].startswith("coordinator-") and not name.startswith("Legacy"))
        or re.fullmatch(r"Remote\w+Record", name)
    }
    assert len(stored) > 46
    assert stored <= set(message_schemas())


@pytest.mark.parametrize("release", RELEASES)
def test_the_header_of_every_request_is_known(release: str, find_release: Callable[[str], Path]) -> None:
    """Also of requests between brokers, which have no schema."""
    compared = 0
    for name, definition in all_definitions(find_release(release)):
        if definition["type"] == "request" and definition["validVersions"] != "none":
            flexible = parse_versions(definition["flexibleVersions"])
            for version in parse_versions(definition["validVersions"]):
                assert _is_flexible(definition["apiKey"], version) == (version in flexible), (name, version)
                compared += 1
    assert compared > 150


def test_the_listed_apis_are_those_of_kafka(find_release: Callable[[str], Path]) -> None:
    """The list is for tests without a jar."""
    current, old = (
        {each["apiKey"]: each for _, each in all_definitions(find_release(release)) if sent_by_clients(each)}
        for release in ("current", "3.9")
    )
    lines = []
    for key, each in sorted(current.items()):
        versions = parse_versions(each["validVersions"])
        start = min(versions.start, parse_versions(old[key]["validVersions"]).start) if key in old else versions.start
        flexible = parse_versions(each["flexibleVersions"])
        lines.append(f"{key} {each['name']} {start}-{versions[-1]} {flexible.start if flexible else 'none'}")
    assert lines == LISTED_APIS.read_text().splitlines()


def test_every_field_is_documented_in_original_words(find_release: Callable[[str], Path]) -> None:
    copied = []
    for _, definition in definitions(find_release("current")):
        stack = [*definition["fields"], *(f for each in definition.get("commonStructs", []) for f in each["fields"])]
        while stack:
            field = stack.pop()
            copied.append(field.get("about", "").lower().strip(" ."))
            stack += field.get("fields", [])
    text = " ".join(" ".join(TABLES).lower().split())
    assert not [about for about in copied if len(about) > 40 and about in text]

    def walk(fields: tuple[FieldSchema, ...]) -> Iterator[FieldSchema]:
        for field in fields:
            yield field
            yield from walk(field.fields)

    for schema in message_schemas().values():
        for field in walk(schema.fields):
            assert re.fullmatch(r"[A-Z0-9].{5,130}\.", field.meaning), (schema.name, field)
