"""Appending of produced batches (catalogue section 9); test_broker_appending compares with a real broker."""

from __future__ import annotations

import itertools
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kbatch
from kbatch import ErrorCode, TimestampType, TopicConfig
from kbatch.batches.checksums import good_crcs
from kbatch.kernels.checksum import write_crcs
from kbatch.records.display import shown_time

NOW = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
KINDS = [(magic, codec) for magic in (2, 1, 0) for codec in CODECS if magic == 2 or codec != "zstd"]
APPEND_TIME = TopicConfig(timestamp_type=TimestampType.LOG_APPEND_TIME)


def batch(values: list[bytes | None], magic: int = 2, codec: str = "none", **fields: Any) -> bytes:
    if magic > 0:
        fields.setdefault("timestamps", [NOW + n for n in range(len(values))])
    return kbatch.encode(values, keys=[b"k"] * len(values), magic=magic, codec=codec, **fields)


def changed(data: bytes, at: int, code: str, value: int, *, write_crc: bool = True) -> bytes:
    out = bytearray(data)
    struct.pack_into(">" + code, out, at, value)
    if write_crc:
        write_crcs(np.frombuffer(out, np.uint8), kbatch.scan(bytes(out)).copy())
    return bytes(out)


def refusal(data: bytes, topic: TopicConfig | None = None, **options: Any) -> kbatch.RefusedError:
    with pytest.raises(kbatch.RefusedError) as caught:
        kbatch.validate_batch(data, topic, **({"now_ms": NOW} | options))
    return caught.value


# -- assign_offsets


@pytest.mark.parametrize(("magic", "codec"), [kind for kind in KINDS if kind[0] or kind[1] == "none"])
def test_offsets_are_assigned_in_place(magic: int, codec: str) -> None:
    """PRD-R6: neither the checksum nor the payload changes."""
    parts = [batch([b"a" * 100, None, b"c"], magic, codec), batch([b"d"], magic, codec)]
    data = bytearray(b"".join(parts))
    before = kbatch.decode(bytes(data))
    assert kbatch.assign_offsets(data, 1000, leader_epoch=7) == 1004
    after = kbatch.decode(bytes(data))
    assert after.records["offset"].tolist() == [1000, 1001, 1002, 1003]
    assert after.values() == before.values()
    assert after.batches["crc"].tolist() == before.batches["crc"].tolist()
    assert set(after.batches["partition_leader_epoch"].tolist()) == {7 if magic == 2 else -1}
    if magic == 2:
        expected = kbatch.encode(before)
        assert expected != bytes(data)
        assert [bytes(part[12 + 4 :]) for part in parts] == [
            bytes(data)[row["position"] + 16 : row["position"] + row["size"]] for row in after.batches
        ]


@pytest.mark.parametrize(("magic", "codec"), [kind for kind in KINDS if kind[0]])
def test_append_time_is_the_timestamp_of_every_record(magic: int, codec: str) -> None:
    """PRD-R7, CRC-R8: the broker sets timestamp type and time, and the checksum; in magic 2 record timestamps stay."""
    data = bytearray(batch([b"a" * 100, b"b"], magic, codec))
    kbatch.assign_offsets(data, 5, append_time=NOW + 99)
    table = kbatch.decode(bytes(data))
    assert table.records["timestamp"].tolist() == [NOW + 99] * 2
    assert set(TimestampType.of(table.batches).tolist()) == {TimestampType.LOG_APPEND_TIME}
    assert good_crcs(np.frombuffer(data, np.uint8), kbatch.scan(bytes(data)), 0).all()
    if codec == "none":
        assert bytes(data) == kbatch.encode(
            [b"a" * 100, b"b"],
            keys=[b"k"] * 2,
            timestamps=[NOW, NOW + 1],
            magic=magic,
            base_offset=5,
            timestamp_type="log_append_time",
            append_time=NOW + 99,
        )


def test_checksums_of_large_batches_are_written() -> None:
    """Batches whose checksums the crc32c package computes."""
    data = bytearray(batch([bytes(200_000)]))
    kbatch.assign_offsets(data, 0, append_time=1)
    assert kbatch.decode(data).records["timestamp"].tolist() == [1]


def test_gaps_between_offsets_are_kept() -> None:
    data = bytearray(kbatch.encode([b"a", b"b"], offsets=[0, 9]) + kbatch.encode_empty(0, 4) + batch([b"c"]))
    assert kbatch.assign_offsets(data, 100) == 116
    assert kbatch.decode(bytes(data)).records["offset"].tolist() == [100, 109, 115]


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (batch([b"a"], 0, "gzip"), kbatch.UnsupportedFormatError, "compressed message of magic 0 can't"),
        (
            kbatch.encode([b"a", b"b"], offsets=[0, 4], magic=1, codec="gzip"),
            kbatch.UnsupportedFormatError,
            "aren't numbered 0, 1, 2",
        ),
        (changed(batch([b"a"]), 23, "i", -1), kbatch.InvalidRecordError, "last offset delta is -1"),
        (batch([b"a"])[:-1], kbatch.TruncatedBatchError, "is incomplete"),
        (batch([b"a"]) + b"\xff" * 20, kbatch.CorruptBatchError, "length field is -1"),
        (changed(batch([b"a"], 1, "gzip"), 34, "i", 5, write_crc=False), kbatch.CodecError, "gzip"),
    ],
    ids=["magic 0", "offsets", "delta", "cut", "framing", "codec"],
)
def test_batches_without_assignable_offsets_are_unchanged(data: bytes, error: type[Exception], match: str) -> None:
    whole = bytearray(batch([b"before"], 2) + data)
    before = bytes(whole)
    with pytest.raises(error, match=match):
        kbatch.assign_offsets(whole, 50, leader_epoch=1)
    assert bytes(whole) == before


def test_invalid_arguments_of_assign_offsets_are_refused() -> None:
    data = batch([b"a", b"b"])
    with pytest.raises(TypeError, match="writable"):
        kbatch.assign_offsets(data, 0)
    with pytest.raises(ValueError, match="below 2\\*\\*63"):
        kbatch.assign_offsets(bytearray(data), 2**63 - 1)
    assert kbatch.assign_offsets(bytearray(data), 2**63 - 2) == 2**63
    with pytest.raises(ValueError, match="append time"):
        kbatch.assign_offsets(bytearray(batch([b"a"], 0)), 0, append_time=5)
    with pytest.raises(ValueError, match="base_offset"):
        kbatch.assign_offsets(bytearray(data), -1)
    assert kbatch.assign_offsets(bytearray(), 9) == 9
    assert kbatch.assign_offsets(np.frombuffer(bytearray(data), np.uint8), 9) == 11


# -- validate_batch


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_batches_of_producers_are_valid(magic: int, codec: str) -> None:
    table = kbatch.validate_batch(
        batch([b"a", None], magic, codec), TopicConfig(magic=magic, compacted=True), now_ms=NOW
    )
    assert table.values() == [b"a", None]


def test_a_request_has_one_batch_or_uncompressed_messages() -> None:
    """PRD-R1: one batch, or any number of uncompressed messages of one magic."""
    one = batch([b"a"])
    assert refusal(one + one).code == ErrorCode.INVALID_RECORD
    assert refusal(b"").code == ErrorCode.INVALID_RECORD
    old = TopicConfig(magic=1)
    assert len(kbatch.validate_batch(batch([b"a", b"b"], 1), old, now_ms=NOW)) == 2
    packed = batch([b"a"], 1, "gzip")
    for data in (packed + packed, packed + batch([b"a"], 1), batch([b"a"], 1) + packed, batch([b"a"], 1) + one):
        assert refusal(data, old).code == ErrorCode.INVALID_RECORD
    assert "another" not in str(refusal(batch([b"a"], 1) + batch([b"b"], 0), old))
    assert refusal(batch([b"a"], 1) + batch([b"b"], 0), old).code == ErrorCode.INVALID_RECORD


def test_errors_name_every_invalid_record() -> None:
    """PRD-R4."""
    values: list[bytes | None] = [b"v"] * 6
    keys = [b"k", None, b"", None, None, None]
    times = [NOW, NOW, NOW + 3_600_001, NOW, NOW + 7_200_000, -1]
    data = kbatch.encode(values, keys=keys, timestamps=times)
    late = refusal(data)
    assert (late.code, late.records.tolist()) == (ErrorCode.INVALID_TIMESTAMP, [2, 4])
    keyless = refusal(data, TopicConfig(compacted=True, timestamp_after_max_ms=2**62))
    assert (keyless.code, keyless.records.tolist()) == (ErrorCode.INVALID_RECORD, [1, 3, 4, 5])
    assert str(keyless).endswith("records without a key, for a compacted topic: record 1, 3, 4 and 1 more")
    both = refusal(data, TopicConfig(compacted=True))
    assert (both.code, both.records.tolist()) == (ErrorCode.INVALID_TIMESTAMP, [1, 2, 3, 4, 5])
    copy = pickle.loads(pickle.dumps(both))
    assert (copy.code, copy.records.tolist(), str(copy)) == (both.code, both.records.tolist(), str(both))
    before = refusal(batch([b"a"], timestamps=NOW - 6), TopicConfig(timestamp_before_max_ms=5))
    assert before.code == ErrorCode.INVALID_TIMESTAMP
    times = [f"{time} ({shown_time(time)})" for time in (NOW - 6, NOW - 5)]
    assert str(before).endswith(f"timestamp is {times[0]}, earlier than the topic allows: {times[1]}: record 0")
    after = refusal(batch([b"a"], timestamps=NOW + 3_600_001), TopicConfig())
    times = [f"{time} ({shown_time(time)})" for time in (NOW + 3_600_001, NOW + 3_600_000)]
    assert str(after).endswith(f"timestamp is {times[0]}, later than the topic allows: {times[1]}: record 0")


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_timestamps_at_the_bounds_are_accepted_prd_r4(codec: str) -> None:
    """``LogValidator.recordHasInvalidTimestamp`` compares with ``>``."""
    topic = TopicConfig(timestamp_before_max_ms=5, timestamp_after_max_ms=7)
    kbatch.validate_batch(batch([b"a", b"b"], codec=codec, timestamps=[NOW - 5, NOW + 7]), topic, now_ms=NOW)
    for late in (NOW - 6, NOW + 8):
        assert refusal(batch([b"a", b"b"], codec=codec, timestamps=[NOW, late]), topic).records.tolist() == [1]


def test_a_producer_may_not_set_log_append_time() -> None:
    data = batch([b"a"], timestamp_type="log_append_time", append_time=NOW)
    assert refusal(data, APPEND_TIME).code == ErrorCode.INVALID_TIMESTAMP
    # As in Kafka, only the timestamp is checked if the topic uses create time.
    kbatch.validate_batch(data, now_ms=NOW)
    missing = batch([b"a"], timestamp_type="log_append_time", append_time=-1)
    assert refusal(missing).code == ErrorCode.INVALID_TIMESTAMP


def test_sizes_are_limited() -> None:
    data = batch([b"a" * 1000])
    kbatch.validate_batch(data, TopicConfig(max_message_bytes=len(data), segment_bytes=len(data)), now_ms=NOW)
    assert refusal(data, TopicConfig(max_message_bytes=len(data) - 1)).code == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(data, TopicConfig(segment_bytes=len(data) - 1)).code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert TopicConfig().max_message_bytes == 1_048_588
    packed = batch([b"a" * 1000], codec="gzip")
    small = TopicConfig(max_message_bytes=200, compression_type="uncompressed")
    kbatch.validate_batch(packed, small, now_ms=NOW)
    with pytest.raises(kbatch.RefusedError, match="after re-encoding") as caught:
        kbatch.accept_batch(packed, 0, small, now_ms=NOW)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_old_formats_are_accepted_if_they_are_converted() -> None:
    """PRD-R8."""
    assert refusal(batch([b"a"], 1)).code == ErrorCode.INVALID_RECORD
    assert refusal(batch([b"a"], 2), TopicConfig(magic=1)).code == ErrorCode.INVALID_RECORD
    old = TopicConfig(magic=1, converting=True)
    idempotent = batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0)
    assert refusal(idempotent, old).code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    for data, code in (
        (batch([b"a"], headers=[[("h", b"1")]]), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch([b"a"], codec="zstd"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ):
        with pytest.raises(kbatch.RefusedError) as caught:
            kbatch.accept_batch(data, 0, old, now_ms=NOW)
        assert caught.value.code == code


def test_messages_in_a_compressed_message_are_validated() -> None:
    """PRD-R4: their magic and their checksums."""
    from oracle import build_message, build_wrapper

    old = TopicConfig(magic=1)
    for inner, code in (
        (build_message(b"k", b"v", magic=0), ErrorCode.INVALID_RECORD),
        (changed(build_message(b"k", b"v", magic=1), 12, "I", 5, write_crc=False), ErrorCode.CORRUPT_MESSAGE),
    ):
        data = build_wrapper(inner, codec="gzip", magic=1)
        kbatch.decode(data, crc="skip")
        error = refusal(data, old)
        assert (error.code, error.records.tolist()) == (code, [0])


def wrapped(*messages: bytes) -> bytes:
    from oracle import build_wrapper

    return build_wrapper(b"".join(messages), codec="gzip", magic=1)


def test_an_invalid_timestamp_takes_precedence_over_another_magic_prd_r4() -> None:
    """LogValidator.processRecordErrors: INVALID_TIMESTAMP if any record has it, with all bad records."""
    from oracle import build_message

    old = TopicConfig(magic=1)
    good = build_message(b"k", b"v", magic=1, timestamp=NOW)
    late = build_message(b"k", b"v", magic=1, timestamp=NOW + 3_600_001)
    other = build_message(b"k", b"v", magic=0)
    for messages, code, records in (
        ((other, late, good), ErrorCode.INVALID_TIMESTAMP, [0, 1]),
        ((late, good, other), ErrorCode.INVALID_TIMESTAMP, [0, 2]),
        ((good, other, good), ErrorCode.INVALID_RECORD, [1]),
    ):
        error = refusal(wrapped(*messages), old)
        assert (error.code, error.records.tolist()) == (code, records)
    # A compacted topic requires keys; a message of another magic is reported once, with any key.
    keyless = build_message(None, b"v", magic=1, timestamp=NOW)
    error = refusal(wrapped(keyless, other, build_message(None, b"v", magic=0)), TopicConfig(magic=1, compacted=True))
    assert (error.code, error.records.tolist()) == (ErrorCode.INVALID_RECORD, [0, 1, 2])
    assert "have another magic or no key" in str(error)


def test_a_bad_checksum_takes_precedence_over_all_errors_of_records_prd_r4() -> None:
    """LogValidator.validateRecord throws at a bad checksum, but does not verify it in a message of another magic."""
    from oracle import build_message

    old = TopicConfig(magic=1)
    late = build_message(b"k", b"v", magic=1, timestamp=NOW + 3_600_001)
    bad = changed(build_message(b"k", b"v", magic=1, timestamp=NOW), 12, "I", 5, write_crc=False)
    other = changed(build_message(b"k", b"v", magic=0), 12, "I", 5, write_crc=False)
    for messages in ((late, other, bad), (bad, other, late)):
        error = refusal(wrapped(*messages), old)
        assert (error.code, error.records.tolist()) == (ErrorCode.CORRUPT_MESSAGE, [messages.index(bad)])
    error = refusal(wrapped(other, late), old)
    assert (error.code, error.records.tolist()) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])


def test_the_first_bad_message_of_an_uncompressed_set_decides_prd_r4() -> None:
    """LogValidator calls processRecordErrors once per batch, and an uncompressed message is a batch of record 0."""
    from oracle import build_message

    good = build_message(b"k", b"v", magic=1, timestamp=NOW)
    late = build_message(b"k", b"v", magic=1, timestamp=NOW + 3_600_001)
    keyless = build_message(None, b"v", magic=1, timestamp=NOW)
    other = build_message(b"k", b"v", magic=0)
    for target in ("producer", "gzip"):
        topic = TopicConfig(magic=1, compacted=True, compression_type=target)  # type: ignore[arg-type]
        for messages, code, records in (
            ((good, keyless, late), ErrorCode.INVALID_RECORD, [0]),
            ((good, late, keyless, late), ErrorCode.INVALID_TIMESTAMP, [0]),
            ((good, late, other), ErrorCode.INVALID_TIMESTAMP, [0]),
            ((good, keyless, other, late), ErrorCode.INVALID_RECORD, [0]),
        ):
            error = refusal(b"".join(messages), topic)
            assert (error.code, error.records.tolist()) == (code, records)
            assert error.position == len(good)
        error = refusal(good + other + late, topic)
        assert (error.code, error.records.tolist(), error.position) == (ErrorCode.INVALID_RECORD, [], len(good))
        assert "magic is 0, but 1 in the messages before" in str(error)


def test_coordinators_may_append_control_batches() -> None:
    """PRD-R2."""
    marker = kbatch.encode_marker("abort", producer_id=3, producer_epoch=0, timestamp=NOW)
    offsets = changed(changed(batch([b"a"]), 43, "q", 3), 51, "h", 0)
    for data in (marker, offsets):
        assert refusal(data).code == ErrorCode.INVALID_RECORD
        for topic in (TopicConfig(), TopicConfig(compacted=True)):
            made = kbatch.accept_batch(data, 70, topic, origin="coordinator", now_ms=NOW)
            row = kbatch.scan(made)[0]
            assert row[["base_offset", "producer_id", "producer_epoch", "base_sequence"]].tolist() == (70, 3, 0, -1)
    # Kafka's builder refuses a producer without a sequence, so a coordinator's batch cannot be re-encoded.
    topic = TopicConfig(compression_type="zstd", compacted=True)
    with pytest.raises(kbatch.RefusedError, match="a batch with a producer id has no sequence") as caught:
        kbatch.accept_batch(offsets, 70, topic, origin="coordinator", now_ms=NOW)
    assert caught.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert isinstance(caught.value, kbatch.InvalidRecordError)
    # Markers are not compressed.
    stored = kbatch.accept_batch(marker, 0, TopicConfig(compression_type="zstd"), origin="coordinator", now_ms=NOW)
    assert kbatch.scan(stored)["attributes"].tolist() == [0x30]


def test_a_transactional_batch_without_a_producer_id_that_is_re_encoded_is_an_invalid_record() -> None:
    transactional = changed(batch([b"a"]), 21, "h", 0x10)
    kept = kbatch.accept_batch(transactional, 0, TopicConfig(), now_ms=NOW)
    assert kbatch.scan(kept)["attributes"].tolist() == [0x10]
    with pytest.raises(kbatch.InvalidRecordError, match="a transactional batch has no producer id"):
        kbatch.accept_batch(transactional, 0, TopicConfig(compression_type="zstd"), now_ms=NOW)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_input_is_accepted_or_rejected(magic: int) -> None:
    """With any byte changed, and at any length, input is accepted or rejected; accepted input can be decoded."""
    topic = TopicConfig(magic=magic)
    data = batch([b"value", None], magic, "gzip")
    for cut in range(len(data)):
        assert refusal(data[:cut], topic).code != ErrorCode.NONE
    for at, flip in itertools.product(range(len(data)), (1, 0x80)):
        broken = bytearray(data)
        broken[at] ^= flip
        try:
            made = kbatch.accept_batch(broken, 7, topic, now_ms=NOW)
        except kbatch.RefusedError:
            continue
        assert kbatch.decode(made).records["offset"].tolist() == [7, 8]


# -- accept_batch


@pytest.mark.parametrize("topic_magic", [2, 1, 0])
@pytest.mark.parametrize(("magic", "codec"), KINDS)
@pytest.mark.parametrize("target", ["producer", "uncompressed", "gzip", "snappy", "lz4"])
def test_stored_records_equal_the_sent_records(magic: int, codec: str, topic_magic: int, target: Any) -> None:
    """PRD-R5: in place or rewritten, the stored records equal the sent ones."""
    if topic_magic < 2 and codec == "zstd" and target == "producer":
        return
    topic = TopicConfig(magic=topic_magic, compression_type=target, converting=True)
    sent = batch([b"a" * 300, None, b""], magic, codec)
    made = kbatch.accept_batch(sent, 40, topic, leader_epoch=5, now_ms=NOW)
    table, before = kbatch.decode(made), kbatch.decode(sent)
    assert table.records["offset"].tolist() == [40, 41, 42]
    assert (table.keys(), table.values()) == (before.keys(), before.values())
    times = [-1] * 3 if 0 in (magic, topic_magic) else [NOW, NOW + 1, NOW + 2]
    assert table.records["timestamp"].tolist() == times
    expected = {"producer": codec, "uncompressed": "none"}.get(target, target)
    assert set((table.batches["attributes"] & 7).tolist()) == {kbatch.Codec[expected.upper()]}
    assert set(table.batches["magic"].tolist()) == {topic_magic}
    if topic_magic == 2:
        assert table.batches["partition_leader_epoch"].tolist() == [5]
        assert table.batches["max_timestamp"].tolist() == [max(times)]


def test_messages_without_relative_offsets_are_rewritten() -> None:
    """LEG-R13: some clients give every message the offset 0."""
    from oracle import build_message, build_wrapper

    inner = b"".join(build_message(b"k", value, magic=1, offset=0, timestamp=NOW) for value in (b"a", b"b"))
    made = kbatch.accept_batch(build_wrapper(inner, codec="gzip", magic=1), 9, TopicConfig(magic=1), now_ms=NOW)
    table = kbatch.decode(made)
    assert table.records["offset"].tolist() == [9, 10]
    assert table.values() == [b"a", b"b"]


def test_the_max_timestamp_is_computed_from_the_records() -> None:
    """TS-R4: the header is ignored, and the checksum is written only if the max timestamp changes."""
    right = batch([b"a", b"b"])
    wrong = changed(right, 35, "q", 5)
    assert kbatch.accept_batch(wrong, 0, now_ms=NOW) == kbatch.accept_batch(right, 0, now_ms=NOW)
    assert kbatch.scan(kbatch.accept_batch(right, 0, now_ms=NOW))["crc"] == kbatch.scan(right)["crc"]


def test_recompression_keeps_transactional_fields() -> None:
    data = batch([b"a"], producer_id=3, producer_epoch=1, base_sequence=2**31 - 1, transactional=True)
    made = kbatch.accept_batch(data, 0, TopicConfig(compression_type="zstd"), now_ms=NOW)
    fields = ["producer_id", "producer_epoch", "base_sequence", "attributes"]
    assert kbatch.scan(made)[fields].tolist() == [(3, 1, 2**31 - 1, 0x14)]


def test_up_conversion_equals_kafkas(golden: Path) -> None:
    """PRD-R8: record for record as Kafka's LogValidator converts message sets of magic 0 and 1."""
    log = (golden / "logs" / "upconvert-0" / "00000000000000000000.log").read_bytes()
    theirs = kbatch.decode(log)
    for row, one in enumerate(theirs.batches):
        rows = np.flatnonzero(theirs.records["batch"] == row)
        old = int(theirs.records["timestamp"][rows[0]] >= 0)
        part = theirs[rows[0] : rows[-1] + 1]
        codec = kbatch.Codec(int(one["attributes"]) & 7).name.lower()
        times = {"timestamps": part.records["timestamp"]} if old else {}
        sent = kbatch.encode(part.values(), keys=part.keys(), magic=old, **times)
        epoch = int(one["partition_leader_epoch"])
        target: Any = "uncompressed" if codec == "none" else codec
        topic = TopicConfig(converting=True, compression_type=target)
        made = kbatch.accept_batch(sent, int(one["base_offset"]), topic, leader_epoch=epoch, now_ms=NOW)
        same = ["base_offset", "last_offset", "base_timestamp", "max_timestamp", "record_count", "attributes", "magic"]
        assert kbatch.scan(made)[same].tolist() == [one[same].tolist()]
        if codec == "none":
            assert bytes(made) == log[one["position"] : one["position"] + one["size"]]


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=20),
    st.sampled_from(KINDS),
    st.integers(0, 2**40),
)
def test_accepted_batches_are_complete(values: list[bytes | None], kind: tuple[int, str], offset: int) -> None:
    magic, codec = kind
    made = kbatch.accept_batch(batch(values, magic, codec), offset, TopicConfig(magic=magic), now_ms=NOW)
    table = kbatch.decode(made)
    assert table.values() == values
    assert table.records["offset"].tolist() == list(range(offset, offset + len(values)))


def test_topic_configs_are_checked() -> None:
    for wrong in (
        {"max_message_bytes": -1},
        {"segment_bytes": 0},
        {"magic": 3},
        {"timestamp_type": TimestampType.NO_TIMESTAMP_TYPE},
        {"magic": 1, "compression_type": "zstd"},
        {"compression_type": "brotli"},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 (the messages differ)
            TopicConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", [{"magic": 1, "converting": True}, {"magic": 0, "converting": True}])
def test_conversion_of_an_empty_batch_writes_no_bytes(topic: dict[str, Any]) -> None:
    """EMP-R3."""
    empty = kbatch.encode_empty(0, 4, max_timestamp=5)
    assert kbatch.accept_batch(empty, 10, kbatch.TopicConfig(**topic), origin="coordinator") == b""


def test_an_inner_message_of_a_higher_magic_is_refused_prd_r4() -> None:
    """LogValidator: the magic of each message must be that of the wrapper, not only lower."""
    from oracle import build_message, build_wrapper

    good, other = build_message(b"k", b"v", magic=0), build_message(b"k", b"v", magic=1, timestamp=NOW)
    error = refusal(build_wrapper(good + other, codec="gzip", magic=0), TopicConfig(magic=0))
    assert (error.code, error.records.tolist()) == (ErrorCode.INVALID_RECORD, [1])


def test_the_base_offset_of_a_produced_batch_is_0_prd_r3() -> None:
    for base_offset in (1, 2**40):
        error = refusal(batch([b"a"], base_offset=base_offset))
        assert error.code == ErrorCode.INVALID_RECORD
        assert "base offset of a produced batch must be 0" in str(error)
    kbatch.validate_batch(batch([b"a"], base_offset=1), now_ms=NOW, origin="coordinator")


@pytest.mark.parametrize("producer_id", [0, 1, 2**40])
def test_every_producer_id_needs_a_sequence_prd_r9(producer_id: int) -> None:
    """0 is a producer id: -1 stands for none."""
    good = batch([b"a"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    kbatch.validate_batch(good, now_ms=NOW)
    error = refusal(changed(good, 53, "i", -1))
    assert (error.code, error.position) == (ErrorCode.INVALID_RECORD, 0)
    assert "sequence is -1 in a batch with a producer id" in str(error)


def test_an_unknown_codec_is_an_unknown_error_in_magic_2_only() -> None:
    """``CompressionType.forId`` throws; only message sets are checked for their codec before."""
    assert refusal(changed(batch([b"a"]), 21, "h", 7)).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_messages_around_a_compressed_one_are_refused_at_its_place() -> None:
    """A compressed message is alone; after uncompressed ones it is refused itself, else the message that follows."""
    plain, compressed = batch([b"a"], 1), batch([b"b"], 1, "gzip")
    after = refusal(plain + compressed, TopicConfig(magic=1))
    assert (after.position, "a compressed message after uncompressed ones" in str(after)) == (len(plain), True)
    before = refusal(compressed + plain, TopicConfig(magic=1))
    assert (before.position, "a second batch" in str(before)) == (len(compressed), True)


def test_a_message_of_another_magic_is_refused_before_its_own_faults() -> None:
    """Kafka compares the magic of a message with the first one before it looks at keys and timestamps."""
    from oracle import build_message

    good, other = build_message(b"k", b"v", magic=1, timestamp=NOW), build_message(None, b"v", magic=0)
    error = refusal(good + other, TopicConfig(magic=1, compacted=True))
    assert "magic is 0, but 1 in the messages before" in str(error)
