"""`accept_batch` compared with Kafka's LogValidator on records that one of them refuses. Needs Java, but no broker."""

from __future__ import annotations

import gzip
import itertools
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from entries import repaired
from oracle import build_message

import kbatch

pytestmark = pytest.mark.broker

NOW = 1_700_000_000_000
SOURCE = Path(__file__).parent / "validator" / "Validate.java"


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], list[str]]:
    """Runs LogValidator on lines of records in hex, codec, magic, whether the topic is compacted, and origin."""
    from broker.server import Unavailable, find_jars, find_java

    try:
        program, jars = find_java(), find_jars()
    except Unavailable as error:
        pytest.skip(str(error))
    compiler = Path(program).with_name("javac")
    if not compiler.exists():
        pytest.skip(f"needs a JDK: no javac next to {program}")
    where = tmp_path_factory.mktemp("validator")
    subprocess.run([compiler, "-nowarn", "-cp", f"{jars}/*", "-d", where, SOURCE], check=True)
    command = [program, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]

    def run(lines: list[str]) -> list[str]:
        done = subprocess.run(
            [*command, "-cp", f"{where}:{jars}/*", "Validate"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return done.stdout.splitlines()

    return run


def messages(magic: int, *keys: bytes | None) -> list[bytes]:
    return [build_message(key, b"value", magic=magic, offset=i, timestamp=NOW) for i, key in enumerate(keys)]


def wrapped(magic: int, payload: bytes, last: int) -> bytes:
    made = build_message(None, gzip.compress(payload, mtime=0), magic=magic, offset=last, timestamp=NOW)
    return repaired(made[:17] + b"\1" + made[18:])


def accepted(data: bytes, topic: kbatch.TopicConfig, **options: Any) -> str:
    """Return the outcome as `Validate` prints it, for a topic whose records may be of any time."""
    try:
        return f"ok {len(kbatch.decode(kbatch.accept_batch(data, 100, topic, now_ms=NOW, **options)))}"
    except kbatch.RefusedError as error:
        return f"{error.code.name} {','.join(map(str, error.records.tolist()))}".rstrip()


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_cut_within_its_first_12_bytes_is_dropped_as_in_java_leg_r14(
    magic: int, java: Callable[[list[str]], list[str]]
) -> None:
    """Java drops every cut message at the end of a compressed set; from 12 bytes on, `accept_batch` refuses it."""
    whole = messages(magic, b"a", b"b", b"c")
    sets = [wrapped(magic, b"".join(whole[:2]) + whole[2][:cut], 1) for cut in range(len(whole[2]))]
    theirs = java([f"{data.hex()} producer {magic} false CLIENT" for data in sets])
    assert theirs == ["ok 2"] * len(sets)
    ours = [accepted(data, kbatch.TopicConfig(magic=magic)) for data in sets]
    assert ours[:12] == theirs[:12]
    assert set(ours[12:]) == {"INVALID_RECORD"}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["producer", "gzip"])
def test_a_refused_message_of_an_uncompressed_set_is_record_0_as_in_java(
    magic: int, codec: str, java: Callable[[list[str]], list[str]]
) -> None:
    sets = [b"".join(messages(magic, *(None if i >= bad else b"k" for i in range(4)))) for bad in range(4)]
    theirs = java([f"{data.hex()} {codec} {magic} true CLIENT" for data in sets])
    assert theirs == ["InvalidRecordException 0"] * 4
    topic = kbatch.TopicConfig(magic=magic, compression_type=codec, compacted=True)  # type: ignore[arg-type]
    assert [accepted(data, topic) for data in sets] == ["INVALID_RECORD 0"] * 4


@pytest.mark.parametrize("target", ["producer", "zstd"])
def test_batches_with_incomplete_producer_fields_cannot_be_re_encoded_as_in_java(
    target: str, java: Callable[[list[str]], list[str]]
) -> None:
    data = kbatch.encode([b"v"], timestamps=NOW, codec="gzip")
    made, expected = [], []
    for transactional, producer, epoch, sequence in itertools.product((0, 0x10), (-1, 7), (-1, 0), (-1, 0)):
        header = struct.pack(">h", transactional | 1) + data[23:43] + struct.pack(">qhi", producer, epoch, sequence)
        made.append(repaired(data[:21] + header + data[57:]))
        is_incomplete = transactional if producer == -1 else -1 in (epoch, sequence)
        expected.append(not is_incomplete or target == "producer")
    theirs = java([f"{each.hex()} {target} 2 false COORDINATOR" for each in made])
    assert theirs == ["ok 1" if is_stored else "IllegalArgumentException" for is_stored in expected]
    topic = kbatch.TopicConfig(compression_type=target)  # type: ignore[arg-type]
    assert [accepted(each, topic, origin="coordinator") for each in made] == [
        "ok 1" if is_stored else "UNKNOWN_SERVER_ERROR" for is_stored in expected
    ]
