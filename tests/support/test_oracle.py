"""The oracle's decoder and builder of message sets: catalogue section 6, golden files, and the peers."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import lz4.frame
import oracle
import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from oracle import Record, build_message, build_message_set, build_wrapper, message_set

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that importlib.resources has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

GOLDEN = Path(__file__).parents[1] / "golden"
THREE: list[tuple[bytes | None, bytes | None]] = [(b"k0", b"v0"), (b"k1", b"v1"), (b"k2", b"v2")]
LOG_APPEND_TIME = oracle.LOG_APPEND_TIME


def read(data: bytes, *, verify: bool = True) -> list[Record]:
    decoded = oracle.decode(data, verify=verify)
    assert decoded.error is None
    assert decoded.unread == 0
    return [record for batch in decoded.batches for record in batch.records]


def offsets(data: bytes) -> list[int]:
    return [record.offset for record in read(data)]


def timestamps(data: bytes) -> list[int]:
    return [record.timestamp for record in read(data)]


def refused(data: bytes) -> type[oracle.OracleError]:
    decoded = oracle.decode(data)
    assert decoded.batches == []
    assert decoded.error is not None
    assert decoded.unread == len(data)
    return type(decoded.error)


# -- golden files


@pytest.mark.parametrize("name", ["logs/magic0-0", "logs/magic1-0", "logs/mixed-0"])
def test_golden_message_sets_are_read_like_kafka(name: str) -> None:
    """FRM-R13: the oracle reads every entry like Kafka's own classes."""
    (path,) = (GOLDEN / name).glob("*.log")
    *expected, end = [
        json.loads(line) for line in path.with_name(path.name + ".expected.jsonl").read_text().splitlines()
    ]
    batches, error, unread = oracle.decode(path.read_bytes())
    assert (error, unread) == (None, 0)
    assert end["end"] == end["fileSize"]
    assert [(b.position, b.size, b.magic, b.crc, b.last_offset, b.max_timestamp, len(b.records)) for b in batches] == [
        tuple(line[name] for name in ("position", "size", "magic", "crc", "lastOffset", "maxTimestamp", "records"))
        for line in expected
    ]
    assert [oracle.digest(b.records) for b in batches] == [line["sha1"] for line in expected]
    assert {b.attributes & 7 for b in batches} >= {0, 1, 2, 3}


# -- rules without a vector in `golden`


def test_leg_r1_lengths_have_a_minimum() -> None:
    assert refused(build_message(None, None, magic=0, length=13)) is oracle.Corrupt
    assert refused(build_message(None, None, magic=1, length=21)) is oracle.Corrupt
    assert read(build_message(None, None, magic=0)) == [Record(0, -1, -1, None, None)]


def test_leg_r3_unknown_attributes_are_ignored() -> None:
    """LEG-35, LEG-36: bit 3 has no meaning in magic 0, and bits 4 to 7 have none in any magic."""
    (batch,) = oracle.decode(build_message(b"k", b"v", magic=0, attributes=0xF8)).batches
    assert (batch.attributes, batch.max_timestamp, batch.records[0].timestamp) == (0, -1, -1)
    (batch,) = oracle.decode(build_message(b"k", b"v", magic=1, attributes=0xF8, timestamp=7)).batches
    assert (batch.attributes, batch.max_timestamp, batch.records[0].timestamp) == (LOG_APPEND_TIME, 7, 7)


@pytest.mark.parametrize("timestamp", [-1, -7, 0, 2**63 - 1])
def test_leg_r5_any_timestamp_is_valid(timestamp: int) -> None:
    assert timestamps(build_message(b"k", b"v", timestamp=timestamp)) == [timestamp]


def test_leg_r6_r7_r8_lengths_in_a_message_are_checked() -> None:
    """LEG-33, LEG-34, LEG-27."""
    for magic in (0, 1):
        assert read(build_message(None, b"v", magic=magic, key_length=-2))[0].key is None
        assert read(build_message(b"k", None, magic=magic, value_length=-(2**31)))[0].value is None
        assert refused(build_message(b"k", b"v", magic=magic, key_length=2)) is oracle.Invalid
        assert refused(build_message(b"k", b"v", magic=magic, key_length=6)) is oracle.Invalid
        assert refused(build_message(b"k", b"v", magic=magic, value_length=2)) is oracle.Invalid
        assert refused(build_message(b"k", b"v", magic=magic, key_length=2**31 - 1)) is oracle.Invalid
        assert read(build_message(b"", b"v", magic=magic, extra=b"xx")) == read(build_message(b"", b"v", magic=magic))
        assert refused(build_message(b"k", b"v", magic=magic, crc=0)) is oracle.BadCrc


def test_leg_r9_the_key_of_a_wrapper_is_ignored() -> None:
    inner = message_set(THREE)
    assert read(build_wrapper(inner, codec="gzip", offset=12, key=b"w")) == read(
        build_wrapper(inner, codec="gzip", offset=12)
    )


def test_leg_r10_to_r13_inner_offsets_are_relative_to_the_wrapper() -> None:
    def wrapped(stored: list[int], offset: int, magic: int = 1) -> bytes:
        contents = [(None, b"v")] * len(stored)
        return build_wrapper(
            message_set(contents, magic=magic, offsets=stored), codec="gzip", offset=offset, magic=magic
        )

    assert offsets(wrapped([10, 11, 12], 12, magic=0)) == [10, 11, 12]
    assert offsets(wrapped([0, 1, 2], 99, magic=0)) == [0, 1, 2]
    assert offsets(wrapped([0, 1, 2], 12)) == [10, 11, 12]
    assert offsets(wrapped([0, 1, 2, 10], 20)) == [10, 11, 12, 20]
    assert offsets(wrapped([10, 11, 12], 12)) == [10, 11, 12]
    assert offsets(wrapped([0, 1, 2], 12) + wrapped([0, 1, 2], 15)) == [10, 11, 12, 13, 14, 15]
    assert offsets(wrapped([0, 1, 2], 0)) == [0, 1, 2]
    assert refused(wrapped([0, 1, 2], 1)) is oracle.Invalid
    assert refused(wrapped([0, 1, 2], -1)) is oracle.Invalid
    assert offsets(wrapped([0, 0, 0], 12)) == [12, 12, 12]  # LEG-09
    assert offsets(wrapped([2, 1, 0], 12)) == [14, 13, 12]  # LEG-51
    (batch,) = oracle.decode(wrapped([0, 1, 2, 10], 20)).batches
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (10, 20, 4)  # LEG-R23


def test_leg_r14_an_incomplete_inner_set_is_invalid() -> None:
    """LEG-20, LEG-21: a rest that is shorter than an offset and a length is ignored, as in Kafka."""
    inner = message_set(THREE)
    for cut in range(1, len(inner)):
        data = build_wrapper(inner[:cut], codec="gzip", offset=12)
        stray = cut % (len(inner) // 3)
        if cut < 12 or stray >= 12:
            assert refused(data) is oracle.Invalid
        else:
            assert len(read(data)) == cut // (len(inner) // 3)
    assert refused(build_wrapper(inner + bytes(12), codec="gzip", offset=12)) is oracle.Invalid
    assert refused(build_wrapper(inner[:16] + b"\3" + inner[17:], codec="gzip", offset=12)) is oracle.Invalid


def test_leg_r15_r16_wrapper_and_inner_magic_decide_timestamps() -> None:
    """LEG-12 to LEG-16: the wrapper has offsets and timestamp type; the inner magic decides the fields."""
    old = message_set(THREE, magic=0, offsets=[0, 1, 2])
    new = message_set(THREE, magic=1, offsets=[0, 1, 2], timestamps=[100, 101, 102])
    marked = message_set(THREE, magic=1, offsets=[0, 1, 2], timestamps=[100, 101, 102], attributes=LOG_APPEND_TIME)
    late = {"codec": "gzip", "offset": 12, "timestamp": 777, "attributes": LOG_APPEND_TIME}
    early = late | {"attributes": 0}
    assert timestamps(build_wrapper(new, **late)) == [777] * 3  # type: ignore[arg-type]
    (batch,) = oracle.decode(build_wrapper(marked, **early)).batches  # type: ignore[arg-type]
    assert batch.attributes & LOG_APPEND_TIME == 0
    assert [record.timestamp for record in batch.records] == [100, 101, 102]
    for fields in (late, early):
        data = build_wrapper(old, **fields)  # type: ignore[arg-type]
        assert (offsets(data), timestamps(data)) == ([10, 11, 12], [-1] * 3)
    data = build_wrapper(new, magic=0, **late)  # type: ignore[arg-type]
    assert (offsets(data), timestamps(data)) == ([0, 1, 2], [100, 101, 102])
    both = old + message_set(THREE[:1], offsets=[3], timestamps=[103])
    assert timestamps(build_wrapper(both, codec="gzip", offset=13)) == [-1, -1, -1, 103]


def test_leg_r17_r18_empty_and_nested_wrappers_are_invalid() -> None:
    inner = message_set(THREE)
    assert refused(build_message(None, None, attributes=1)) is oracle.Invalid
    assert refused(build_wrapper(b"", codec="gzip")) is oracle.Invalid
    assert refused(build_message(None, b"", attributes=1)) is oracle.CodecFailure
    assert (
        refused(build_wrapper(build_wrapper(inner, codec="gzip", offset=2), codec="gzip", offset=2)) is oracle.Invalid
    )
    assert refused(build_wrapper(inner + oracle.three(3), codec="gzip", offset=5)) is oracle.Invalid


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(4, 8))
def test_leg_r19_zstd_and_unknown_codecs_are_unsupported(magic: int, codec: int) -> None:
    payload = oracle.compress("zstd", message_set(THREE, magic=magic))
    assert refused(build_message(None, payload, magic=magic, attributes=codec)) is oracle.Unsupported


def test_l4_r5_the_header_checksum_depends_on_the_magic() -> None:
    """LEG-39 to LEG-42, LEG-46: magic 0 accepts any header checksum, magic 1 only the correct one."""
    assert oracle.lz4_header_checksum(bytes.fromhex("6040")) == 0x82
    assert oracle.lz4_header_checksum(bytes.fromhex("04224d186040")) == 0x1A
    for magic in (0, 1):
        inner = message_set(THREE, magic=magic)
        assert len(read(build_wrapper(inner, codec="lz4", magic=magic, offset=2, broken_lz4=False))) == 3
        broken = build_wrapper(inner, codec="lz4", magic=magic, offset=2, broken_lz4=True)
        if magic == 0:
            assert len(read(broken)) == 3
        else:
            assert refused(broken) is oracle.CodecFailure
    sized = lz4.frame.compress(message_set(THREE, magic=0), store_size=True)
    assert (
        len(read(build_message(None, oracle.with_lz4_header_checksum(sized, broken=True), magic=0, attributes=3))) == 3
    )
    assert oracle.with_lz4_header_checksum(sized) == sized


def test_crc_r5_inner_checksums_are_verified_on_request() -> None:
    """LEG-28: a wrong inner checksum is an error if checksums are verified, else the message is read."""
    inner = bytearray(message_set(THREE))
    inner[-1] ^= 1
    data = build_wrapper(bytes(inner), codec="gzip", offset=12)
    assert refused(data) is oracle.BadCrc
    assert [record.value for record in read(data, verify=False)] == [b"v0", b"v1", b"v3"]


def test_leg_r26_r28_sizes_and_incomplete_sets() -> None:
    for magic, overhead in ((0, 26), (1, 34)):
        message = build_message(b"k", b"v", magic=magic)
        assert len(message) == overhead + 2
        for cut in range(len(message)):
            assert oracle.decode(message[:cut]) == ([], None, cut)


# -- comparison with the peers

CONTENT = st.one_of(st.none(), st.just(b""), st.binary(max_size=60), st.just(b"value " * 500))


@given(
    contents=st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=8),
    codec=st.sampled_from(oracle.LEGACY_CODECS),
    magic=st.sampled_from([0, 1]),
    base_offset=st.integers(1, 2**40),
    append_time=st.one_of(st.none(), st.integers(0, 2**41)),
    data=st.data(),
)
def test_peers_read_what_the_oracle_builds(
    contents: list[tuple[bytes | None, bytes | None]],
    codec: str,
    magic: int,
    base_offset: int,
    append_time: int | None,
    data: Any,
) -> None:
    """LEG-R27."""
    count = len(contents)
    steps = data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    deltas = [sum(steps[1 : i + 1]) for i in range(count)]
    times = data.draw(st.lists(st.integers(0, 2**41), min_size=count, max_size=count))
    built = build_message_set(
        contents,
        codec=codec,
        magic=magic,
        base_offset=base_offset,
        deltas=deltas,
        timestamps=times,
        append_time=append_time,
    )
    if magic == 0:
        times = [-1] * count
    elif append_time is not None:
        times = [append_time] * count
    expected = [
        (base_offset + delta, time, key, value)
        for delta, time, (key, value) in zip(deltas, times, contents, strict=True)
    ]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read(built)] == expected
    if codec == "lz4" and magic == 0:
        return  # aiokafka refuses this codec (LEG-R20), and so does kafka-python without the xxhash package.
    for peer in (AiokafkaRecords, KafkaPythonRecords):
        found = []
        entries = peer(built)
        while entries.has_next():
            batch = entries.next_batch()
            assert batch.validate_crc()
            # Both peers return None for a missing timestamp.
            found += [(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value) for r in batch]
        assert found == expected


def test_a_wrapper_has_the_greatest_timestamp() -> None:
    """LEG-R22, LEG-R27."""
    (batch,) = oracle.decode(build_message_set(THREE, codec="gzip", timestamps=[5, 9, 7], base_offset=4)).batches
    assert (batch.max_timestamp, batch.base_offset, batch.last_offset) == (9, 4, 6)
    assert struct.unpack_from(">q", build_message_set(THREE, codec="gzip", base_offset=4)) == (6,)
