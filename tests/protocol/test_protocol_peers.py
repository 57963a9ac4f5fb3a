"""Generated messages compared with two other implementations: Kafka's generated classes and kafka-python."""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from protocol_messages import VERSIONS, definitions, generate, parse_versions

from kbatch import ErrorCode
from kbatch.protocol import ApiKey, Message, decode_message, encode_message, message_class
from kbatch.protocol.schema import FieldSchema

try:
    from broker.server import Unavailable, find_jars, find_java

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka.protocol.admin
        import kafka.protocol.consumer
        import kafka.protocol.metadata
        import kafka.protocol.producer
        import kafka.protocol.sasl
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

JAVA = Path(__file__).parent / "java"
ROUNDS = 6
# Messages and fields that kafka-python 3.0 lacks.
NOT_IN_KAFKA_PYTHON = {
    f"{name}{kind}"
    for kind in ("Request", "Response")
    for name in (
        "AddRaftVoter",
        "AlterShareGroupOffsets",
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "CreateDelegationToken",
        "DeleteShareGroupOffsets",
        "DescribeDelegationToken",
        "DescribeShareGroupOffsets",
        "ExpireDelegationToken",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
        "RemoveRaftVoter",
        "RenewDelegationToken",
        "ShareAcknowledge",
        "ShareFetch",
        "ShareGroupDescribe",
        "ShareGroupHeartbeat",
        "StreamsGroupDescribe",
        "StreamsGroupHeartbeat",
        "StreamsGroupTopologyDescriptionUpdate",
        "UnregisterBroker",
        "UnregisterController",
    )
}
NEWER_THAN_KAFKA_PYTHON = {
    (f"{name}{kind}", version)
    for kind in ("Request", "Response")
    for name, version in (("ApiVersions", 5), ("DeleteGroups", 3), ("TxnOffsetCommit", 6))
}
KAFKA_PYTHON = {
    name: getattr(module, name)
    for module in (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.sasl,
    )
    for name in dir(module)
    if name.endswith(("Request", "Response"))
}


def joined(message: Any, version: int) -> bytes:
    return b"".join(encode_message(message, version))


def messages(name: str, version: int) -> list[Any]:
    rng = random.Random(f"peers {name} {version}")
    return [message_class(name)(), *(generate(rng, name, version) for _ in range(ROUNDS))]


def as_json(message: Message, version: int) -> dict[str, Any]:
    """Return a message as Kafka's JSON converters do: without tagged fields that have their default."""

    def one(field: FieldSchema, value: Any) -> Any:
        if isinstance(value, Message):
            return as_json(value, version)
        if isinstance(value, list):
            return [one(field, each) for each in value]
        if isinstance(value, uuid.UUID):
            return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return value

    found = {}
    for field in message.schema.fields:
        value = getattr(message, field.name)
        if version not in field.versions or (field.tag is not None and value == getattr(type(message)(), field.name)):
            continue
        name = re.sub(r"_(\w)", lambda match: match[1].upper(), field.name)
        if field.type == "records" and value is not None:
            # The converters do not show the bytes.
            found["records"] = ""
        else:
            found[name] = one(field, value)
    return found


def run_java(directory: Path, lines: list[str], *arguments: str) -> list[str]:
    command = [find_java(), "-XX:TieredStopAtLevel=1", "-cp", f"{directory}/*", str(JAVA / "Codec.java"), *arguments]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def java_class_path(pom: Path | None) -> Path:
    try:
        find_java()
        return find_jars() if pom is None else find_jars(pom)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.broker
@pytest.mark.parametrize("pom", [None, JAVA / "pom.xml"], ids=["kafka 4", "kafka 3.9"])
def test_kafkas_classes_read_and_write_the_same_bytes(pom: Path | None) -> None:
    """Kafka's classes read the bytes of kbatch with the same values, and write the same bytes, which kbatch reads."""
    directory = java_class_path(pom)
    valid = {name: parse_versions(each["validVersions"]) for name, each in definitions(directory)}
    current = (
        {} if pom is None else {n: parse_versions(d["validVersions"]) for n, d in definitions(java_class_path(None))}
    )
    cases = [
        (name, version, message)
        for name, version in VERSIONS
        if version in valid.get(name, ()) and version not in current.get(name, ())
        for message in messages(name, version)
    ]
    lines = [f"{name} {version} {joined(message, version).hex()}" for name, version, message in cases]
    answers = run_java(directory, lines)
    assert len(answers) == len(cases) > 200
    for (name, version, message), line, answer in zip(cases, lines, answers, strict=True):
        assert not answer.startswith(("error", "trailing")), (name, version, answer)
        data, text = answer.split(" ", 1)
        assert data == line.split(" ")[2], (name, version)
        assert json.loads(text) == as_json(message, version), (name, version)
        assert decode_message(message_class(name), bytes.fromhex(data), version) == message


@pytest.mark.broker
@pytest.mark.parametrize("release", ["current", pytest.param("newest", marks=pytest.mark.long)])
def test_error_codes_and_api_keys_equal_kafkas(release: str, tmp_path: Path) -> None:
    directory = java_class_path(None)
    if release == "newest":
        directory = find_jars(JAVA / "newest.xml", tmp_path)
    lines = [line.split(" ") for line in run_java(directory, [], "tables")]
    errors = {(int(number), name, retriable == "true") for kind, number, name, retriable in lines if kind == "error"}
    assert errors == {(int(code), code.name, code.retriable) for code in ErrorCode}
    keys = {(int(number), name, title) for kind, number, name, title in lines if kind == "api"}
    assert keys == {(int(key), key.name, key.title) for key in ApiKey}


def value_of(theirs: Any, name: str) -> Any:
    # kafka-python shortens the names of some fields, and has the older name of another.
    if name == "generation_id_or_member_epoch" and not hasattr(theirs, name):
        name = "generation_id"
    short = name.removeprefix("cluster_").removeprefix("topic_")
    return getattr(theirs, name if short != "authorized_operations" or hasattr(theirs, name) else short)


def same_as_kafka_python(ours: Any, theirs: Any, version: int) -> bool:
    """Return whether an object of kafka-python has the same values; it has None for a missing tagged field."""
    if isinstance(ours, Message):
        return all(
            (field.tag is not None and getattr(ours, field.name) == getattr(type(ours)(), field.name))
            or same_as_kafka_python(getattr(ours, field.name), value_of(theirs, field.name), version)
            for field in ours.schema.fields
            if version in field.versions
        )
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(lambda a, b: same_as_kafka_python(a, b, version), ours, theirs))
    if isinstance(ours, uuid.UUID) and theirs is None:
        return ours.int == 0
    if isinstance(theirs, set):
        # A bit field.
        return ours == sum(1 << bit for bit in theirs)
    return bool(ours == theirs)


def simplify(message: Any, version: int) -> None:
    """Remove what kafka-python does not write back: unknown tagged fields, and the sign of a bit field."""
    message.unknown_tags = {}
    for field in message.schema.fields:
        value = getattr(message, field.name)
        if field.name.endswith("authorized_operations") and version in field.versions and field.type == "int32":
            setattr(message, field.name, abs(value) & 0xFFFF)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                simplify(each, version)


# Kafka 4's definitions, which kafka-python reads, do not have these fields.
REMOVED = {
    ("ListOffsetsRequest", 0),
    ("ListOffsetsResponse", 0),
    ("OffsetCommitRequest", 1),
    ("DescribeConfigsResponse", 0),
}


@pytest.mark.parametrize(
    ("name", "version"),
    [
        case
        for case in VERSIONS
        if case[0].endswith(("Request", "Response"))
        and case[0] not in NOT_IN_KAFKA_PYTHON
        and case not in REMOVED | NEWER_THAN_KAFKA_PYTHON
    ],
)
def test_kafka_python_reads_and_writes_the_same_bytes(name: str, version: int) -> None:
    theirs: Callable[..., Any] = KAFKA_PYTHON[name]
    for message in messages(name, version):
        simplify(message, version)
        if name == "ApiVersionsResponse":
            # kafka-python reads a response with any error as one of version 0.
            message.error_code = 0
        data = joined(message, version)
        read = theirs.decode(data, version=version)
        assert same_as_kafka_python(message, read, version), (message, read)
        # kafka-python's encoder requires a header, which its decoder does not create.
        read._header = None
        written = bytes(read.encode(version=version))
        assert decode_message(message_class(name), written, version) == message


def test_the_gaps_of_kafka_python_are_current() -> None:
    names = {name for name, _ in VERSIONS if name.endswith(("Request", "Response"))}
    assert names - set(KAFKA_PYTHON) == NOT_IN_KAFKA_PYTHON
    known = [(name, version) for name, version in VERSIONS if name in names - NOT_IN_KAFKA_PYTHON]
    assert {case for case in known if case[1] > KAFKA_PYTHON[case[0]].max_version} == NEWER_THAN_KAFKA_PYTHON


@pytest.mark.broker
def test_stored_records_are_those_of_kafkas_serializers() -> None:
    """`test_stored_records` decodes them."""
    golden = Path(__file__).parents[1] / "golden" / "internal" / "stored.txt"
    command = [find_java(), "-XX:TieredStopAtLevel=1", "-cp", f"{java_class_path(None)}/*", str(JAVA / "Stored.java")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == golden.read_text()
