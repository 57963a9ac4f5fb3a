"""Random messages of Kafka's protocol, and the messages of Kafka's jars."""

from __future__ import annotations

import json
import random
import re
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kbatch.protocol import Message, message_class
from kbatch.protocol.schema import FieldSchema, message_schemas

__all__ = [
    "LISTED_APIS",
    "VERSIONS",
    "all_definitions",
    "definitions",
    "generate",
    "parse_versions",
    "sent_by_clients",
    "stable_versions",
]

# API key, name, versions and first flexible version of each request that clients of Kafka 4.4 send.
LISTED_APIS = Path(__file__).parents[1] / "golden" / "protocol" / "apis.txt"
# Every message in every version.
VERSIONS = [(name, version) for name, schema in message_schemas().items() for version in schema.versions]

# InitializeShareGroupState to ReadShareGroupStateSummary: from the coordinator of a share group to the broker with its
# state.
BETWEEN_BROKERS = range(83, 88)

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}
_TEXTS = ["", "a", "orders", "grüße-☃", "\U0001f600" * 3, "x" * 130, "\0"]


def _value(rng: random.Random, cls: type[Message], field: FieldSchema, version: int, kind: str) -> Any:
    if field.fields:
        return _structure(rng, cls, getattr(cls, field.element), field.fields, version)
    if kind == "bool":
        return rng.random() < 0.5
    if kind in _BITS:
        bits = _BITS[kind]
        low = 0 if kind.startswith("u") else -(1 << bits - 1)
        high = low + (1 << bits) - 1
        return rng.choice([0, 1, low, high, rng.randint(low, high)])
    if kind == "uuid":
        return uuid.UUID(int=rng.choice([0, rng.getrandbits(128)]))
    if kind == "float64":
        return rng.choice([0.0, -1.5, rng.random()])
    if kind.endswith("string"):
        return rng.choice(_TEXTS)
    data = rng.randbytes(rng.choice([0, 1, 200, 3000]))
    return memoryview(data) if kind == "records" else data


def _structure(
    rng: random.Random, top: type[Message], cls: type[Message], fields: tuple[FieldSchema, ...], version: int
) -> Message:
    flexible = version in top.schema.flexible
    made = cls()
    for field in fields:
        if version not in field.versions or (field.tag is not None and rng.random() < 0.5):
            continue
        if version in field.nullable and rng.random() < 0.3:
            value = None
        elif field.type.startswith("[]"):
            count = rng.choice([0, 1, 2]) if field.fields else rng.choice([0, 1, 3, 130])
            value = [_value(rng, top, field, version, field.element) for _ in range(count)]
        else:
            value = _value(rng, top, field, version, field.type)
        setattr(made, field.name, value)
    if flexible and rng.random() < 0.3:
        made.unknown_tags = {rng.randint(40, 60): rng.randbytes(3), 70000: b""}
    return made


def generate(rng: random.Random, name: str, version: int) -> Any:
    """Make a message with random values in all fields of a version."""
    cls = message_class(name)
    return _structure(rng, cls, cls, message_schemas()[name].fields, version)


def parse_versions(text: str | None) -> range:
    """Return the versions that Kafka's JSON means by ``0``, ``0-4``, ``3+`` or ``none``."""
    if text in (None, "none"):
        return range(0)
    assert text is not None
    found = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
    assert found is not None, text
    return range(int(found[1]), 1 << 15 if found[2] else int(found[3] or found[1]) + 1)


def sent_by_clients(definition: dict[str, Any]) -> bool:
    """Return whether a definition is of a request that clients send to brokers, in a version that is not a draft."""
    return (
        definition["type"] == "request"
        and "broker" in definition.get("listeners", [])
        and definition["apiKey"] not in BETWEEN_BROKERS
        and len(stable_versions(definition)) > 0
    )


def stable_versions(definition: dict[str, Any]) -> range:
    """Return the versions of a request without the draft that may still change."""
    valid = parse_versions(definition["validVersions"])
    return valid[:-1] if definition.get("latestVersionUnstable") else valid


def definitions(jars: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and definition of the messages in the jars of a directory that kbatch reads too."""
    for name, definition in all_definitions(jars):
        if name in message_schemas():
            yield name, definition


def all_definitions(jars: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and definition of every message in the jars of a directory."""
    for path in sorted(jars.glob("kafka-*.jar")):
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.namelist()):
                name = Path(entry).stem
                if Path(entry).suffix == ".json" and "message" in Path(entry).parts:
                    # Comments are whole lines, or follow a value.
                    text = archive.read(entry).decode()
                    yield name, json.loads(re.sub(r"^\s*//.*$|//[^\"\n]*$", "", text, flags=re.MULTILINE))
