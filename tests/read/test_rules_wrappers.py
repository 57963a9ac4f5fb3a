"""Catalogue section 8: compressed messages of magic 0 and 1, and the messages they contain (LEG-R9 to LEG-R18)."""

from __future__ import annotations

import struct

import oracle
import pytest
from message_set_cases import ABC, magics, offsets, refused, rows_of, wrapped
from oracle import (
    LEGACY_CODECS,
    LOG_APPEND_TIME,
    build_message,
    build_message_set,
    build_wrapper,
    message_set,
)
from tables import offsets_of

import kbatch


@magics
@wrapped
@pytest.mark.parametrize("key", [None, b"", b"a key that nobody reads"])
def test_leg_r9_the_key_of_a_wrapper_is_ignored(magic: int, codec: str, key: bytes | None) -> None:
    """LEG-04, LEG-22: the records are the messages inside the value."""
    inner = message_set(ABC, magic=magic, offsets=[10, 11, 12] if magic == 0 else [0, 1, 2])
    entry = build_wrapper(inner, codec=codec, magic=magic, offset=12, key=key)
    assert [(row[0], *row[2:]) for row in rows_of(entry)] == [(10 + i, *ABC[i]) for i in range(3)]


@pytest.mark.parametrize(("inner", "outer"), [([10, 11, 12], 12), ([0, 1, 2], 12), ([0, 1, 2], 0), ([7, 3, 90], 5)])
def test_leg_r10_offsets_in_magic_0_are_returned_as_stored(inner: list[int], outer: int) -> None:
    """LEG-05, LEG-11: the offset of the wrapper does not change them."""
    assert (
        offsets(build_wrapper(message_set(ABC, magic=0, offsets=inner), codec="gzip", magic=0, offset=outer)) == inner
    )


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ([0, 1, 2], 12, [10, 11, 12]),  # LEG-04
        ([0, 1, 2, 10], 20, [10, 11, 12, 20]),  # LEG-06: a gap that compaction left
        ([10, 11, 12], 12, [10, 11, 12]),  # LEG-10: absolute offsets
        ([0, 1, 2], 2, [0, 1, 2]),  # LEG-49
        ([3], 12, [12]),  # compaction removed all but the last message
        ([5, 6], 2**63 - 1, [2**63 - 2, 2**63 - 1]),
    ],
)
def test_leg_r11_offsets_in_magic_1_are_relative_to_the_last(inner: list[int], outer: int, expected: list[int]) -> None:
    contents = [(None, b"%d" % i) for i in range(len(inner))]
    assert offsets(build_wrapper(message_set(contents, offsets=inner), codec="gzip", offset=outer)) == expected


def test_leg_r11_every_wrapper_has_its_own_base_offset() -> None:
    """LEG-47: two wrappers follow each other."""
    data = build_message_set(ABC, codec="gzip", base_offset=10) + build_message_set(ABC, codec="lz4", base_offset=13)
    table = kbatch.decode(data)
    assert offsets_of(table) == [10, 11, 12, 13, 14, 15]
    assert table.batches["first_record"].tolist() == [0, 3]
    assert table.records["batch"].tolist() == [0, 0, 0, 1, 1, 1]


def test_leg_r12_a_wrapper_of_offset_0_keeps_the_inner_offsets() -> None:
    """LEG-07, LEG-08: producers send wrappers with offset 0; any other offset below the last inner one is invalid."""
    inner = message_set(ABC, offsets=[0, 1, 2])
    assert offsets(build_wrapper(inner, codec="gzip", offset=0)) == [0, 1, 2]
    assert offsets(build_wrapper(message_set(ABC, offsets=[7, 8, 9]), codec="gzip", offset=0)) == [7, 8, 9]
    inner = message_set(ABC, offsets=[8, 9, 10])
    for outer in (1, 5, 9, -1):
        entry = build_wrapper(inner, codec="gzip", offset=outer)
        refused(entry, kbatch.InvalidRecordError, f"offset of the compressed message is {outer}, below the offset 10")
    assert offsets(build_wrapper(inner, codec="gzip", offset=10)) == [8, 9, 10]


@magics
def test_leg_r12_offset_bounds_of_a_wrapper_of_offset_0_apply_to_its_records(magic: int) -> None:
    """The offset 0 is not the last offset of the set."""
    entry = build_wrapper(message_set(ABC, magic=magic), codec="gzip", magic=magic, offset=0)
    for start in range(4):
        assert offsets_of(kbatch.decode(entry, start_offset=start)) == [0, 1, 2][start:]


def test_leg_r13_unordered_inner_offsets_are_accepted() -> None:
    """LEG-09, LEG-51: broken clients write offsets that are all zero, or descending."""
    assert offsets(build_wrapper(message_set(ABC, offsets=[0, 0, 0]), codec="gzip", offset=12)) == [12, 12, 12]
    assert offsets(build_wrapper(message_set(ABC, offsets=[2, 1, 0]), codec="gzip", offset=12)) == [14, 13, 12]
    table = kbatch.decode(build_wrapper(message_set(ABC, offsets=[2, 1, 0]), codec="gzip", offset=12))
    batch = table.batches[0]
    assert (batch["base_offset"], batch["last_offset"], batch["last_offset_delta"]) == (14, 12, -2)


@magics
@wrapped
def test_leg_r14_a_truncated_inner_set_is_invalid(magic: int, codec: str) -> None:
    """LEG-20, LEG-21: invalid unless the set ends with up to 11 bytes after complete messages, which Java accepts."""
    inner = message_set(ABC, magic=magic)
    starts = [0]
    while starts[-1] < len(inner):
        starts.append(starts[-1] + 12 + struct.unpack_from(">i", inner, starts[-1] + 8)[0])
    for cut in range(len(inner) + 1):
        whole = max(i for i, start in enumerate(starts) if start <= cut)
        entry = build_wrapper(inner[:cut], codec=codec, magic=magic, offset=2)
        if cut - starts[whole] < 12 and whole > 0:
            # In magic 1 the last complete message has the wrapper's offset, as if it were the last of the set.
            assert offsets(entry) == [i if magic == 0 else i + 3 - whole for i in range(whole)]
        elif whole == 0 and cut < 12:
            refused(entry, kbatch.InvalidRecordError, "holds no messages")
        else:
            refused(entry, kbatch.InvalidRecordError, "inner message is incomplete", record=whole)
    for stray in (b"\0" * 11, b"\xff" * 11, b"x"):
        assert len(offsets(build_wrapper(inner + stray, codec=codec, magic=magic, offset=2))) == 3


@magics
@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_leg_r14_an_inner_length_below_the_minimum_is_invalid(magic: int, length: int) -> None:
    bad = build_message(b"k", b"v", magic=magic, length=length)
    entry = build_wrapper(message_set(ABC[:2], magic=magic) + bad, codec="gzip", magic=magic, offset=2)
    refused(entry, kbatch.InvalidRecordError, f"inner message is {length}, its magic needs at least 14", record=2)


@magics
def test_leg_r14_an_inner_length_below_the_minimum_of_magic_1_is_invalid(magic: int) -> None:
    bad = build_message(None, None, magic=1, length=21)
    entry = build_wrapper(bad, codec="gzip", magic=magic, offset=2)
    refused(entry, kbatch.InvalidRecordError, "inner message is 21, its magic needs at least 22", record=0)


@magics
@pytest.mark.parametrize("length", [2**31 - 1, 2**31 - 12, 2**30, 24])
def test_leg_r14_an_inner_length_beyond_the_set_is_invalid(magic: int, length: int) -> None:
    bad = build_message(None, None, magic=magic, length=length)
    entry = build_wrapper(bad, codec="lz4", magic=magic, offset=2)
    refused(entry, kbatch.InvalidRecordError, f"it takes {length + 12} bytes, {len(bad)} remain", record=0)


@wrapped
def test_leg_r15_the_wrapper_determines_the_timestamp_type(codec: str) -> None:
    """LEG-12, LEG-13: under LogAppendTime all records have the wrapper's timestamp, else each has its own."""
    pytest.importorskip("pyarrow")
    for inner_bits in (0, LOG_APPEND_TIME):
        inner = message_set(ABC, timestamps=[100, 101, -1], attributes=inner_bits)
        for bits, expected in ((LOG_APPEND_TIME, [777] * 3), (0, [100, 101, -1])):
            entry = build_wrapper(inner, codec=codec, offset=12, timestamp=777, attributes=bits)
            assert [row[1] for row in rows_of(entry)] == expected
            view = kbatch.decode(entry).to_arrow()
            assert view["timestampType"].to_pylist() == [int(bits > 0)] * 3
            assert view["timestamp"].cast("int64").to_pylist() == [None if t == -1 else t for t in expected]


@pytest.mark.parametrize(
    ("outer", "bits", "inner", "timestamps", "stamp_type"),
    [
        (1, 0, 0, [-1] * 3, 0),  # LEG-14
        (0, 0, 1, [100, 101, 102], -1),  # LEG-15
        (0, LOG_APPEND_TIME, 1, [100, 101, 102], -1),  # magic 0 does not have this bit
        (1, LOG_APPEND_TIME, 0, [-1] * 3, 1),  # LEG-16
    ],
)
def test_leg_r16_inner_messages_may_have_another_magic(
    outer: int, bits: int, inner: int, timestamps: list[int], stamp_type: int
) -> None:
    """The wrapper's magic determines the offsets, the message's magic its fields.

    Kafka's consumer takes the timestamp type from the wrapper (`CompletedFetch.fetchRecords`).
    """
    pytest.importorskip("pyarrow")
    stored = [10, 11, 12] if outer == 0 else [0, 1, 2]
    messages = message_set(ABC, magic=inner, offsets=stored, timestamps=[100, 101, 102])
    entry = build_wrapper(messages, codec="gzip", magic=outer, offset=12, timestamp=777, attributes=bits)
    assert rows_of(entry) == [(10 + i, timestamps[i], *ABC[i]) for i in range(3)]
    assert kbatch.decode(entry).to_arrow()["timestampType"].to_pylist() == [stamp_type] * 3


def test_leg_r16_a_wrapper_may_contain_both_magics() -> None:
    inner = build_message(b"0", b"x", magic=0, offset=0) + build_message(b"1", b"y", magic=1, offset=1, timestamp=5)
    expected = [(11, -1, b"0", b"x"), (12, 5, b"1", b"y")]
    assert rows_of(build_wrapper(inner, codec="snappy", magic=1, offset=12)) == expected


@magics
@wrapped
def test_leg_r17_a_wrapper_without_messages_is_invalid(magic: int, codec: str) -> None:
    """LEG-17, LEG-18: the value is null or empty, or contains no messages."""
    bits = oracle.CODECS[codec]
    null = build_message(b"k", None, magic=magic, offset=50, attributes=bits)
    refused(null, kbatch.InvalidRecordError, "compressed message has no value")
    for length in (-2, 1, 2**31 - 1):
        entry = build_message(None, None, magic=magic, offset=50, attributes=bits, value_length=length)
        refused(entry, kbatch.InvalidRecordError, "compressed message has no value")
        entry = build_message(None, None, magic=magic, offset=50, attributes=bits, key_length=max(length, 1))
        refused(entry, kbatch.InvalidRecordError, "compressed message has no value")
    for few in (b"", b"\0" * 11):
        refused(build_wrapper(few, codec=codec, magic=magic, offset=50), kbatch.InvalidRecordError, "no messages")
    empty = build_message(None, b"", magic=magic, offset=50, attributes=bits)
    if codec == "snappy-raw":
        return  # the same bits as snappy
    refused(empty, kbatch.CodecError, "gzip|snappy|lz4")


@magics
@wrapped
def test_leg_r18_nested_wrappers_and_batches_are_invalid(magic: int, codec: str) -> None:
    """LEG-19, LEG-50: a wrapper contains neither wrappers nor batches of magic 2, even after good messages."""
    good = message_set(ABC[:1], magic=magic)
    for record, before in ((0, b""), (1, good)):
        for inner_codec in LEGACY_CODECS[1:]:
            nested = build_wrapper(message_set(ABC, magic=magic), codec=inner_codec, magic=magic, offset=2)
            entry = build_wrapper(before + nested, codec=codec, magic=magic, offset=2)
            refused(entry, kbatch.InvalidRecordError, "inner message is compressed itself", record=record)
        for later in (2, 3, 127, -1):
            entry = build_wrapper(before + oracle.three(0, magic=later), codec=codec, magic=magic, offset=2)
            refused(entry, kbatch.InvalidRecordError, f"inner message has magic {later % 256}", record=record)
