"""encode() compared with the oracle's builders, decode(), aiokafka and kafka-python; refused arguments (ATT-R6)."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import numpy as np
import oracle
import pytest
from encoded_inputs import encode_input, payload_of
from golden_logs import GOLDEN
from hypothesis import example, given
from hypothesis import strategies as st
from peers import (
    CONTENT,
    AiokafkaBatch,
    AiokafkaSet,
    Input,
    KafkaPythonBatch,
    KafkaPythonSet,
    SetInput,
    entries_of,
    expected_of_set,
    expected_records,
    inputs,
    read_set_with,
    read_with,
    set_inputs,
)
from tables import batches_of, records_of

import kbatch
from kbatch.batches.codecs import compress

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
INT32_MAX = 2**31 - 1


def built_by_oracle(made: Input) -> bytes:
    """Return the canonical form of a batch, built field by field."""
    records = [
        oracle.encode_record(
            delta, timestamp - made.timestamps[0], key, value, [(name.encode(), data) for name, data in headers]
        )
        for delta, timestamp, (key, value, headers) in zip(made.deltas, made.timestamps, made.contents, strict=True)
    ]
    return oracle.build_batch(
        records,
        payload=compress(oracle.CODECS[made.codec], memoryview(b"".join(records))),
        base_offset=made.base_offset,
        attributes=oracle.CODECS[made.codec] | oracle.LOG_APPEND_TIME * made.log_append_time,
        base_timestamp=made.timestamps[0],
        max_timestamp=made.max_timestamp if made.log_append_time else max(made.timestamps),
        last_offset_delta=made.deltas[-1],
        producer_id=made.producer_id,
        producer_epoch=-1 if made.producer_id < 0 else 3,
        base_sequence=-1 if made.producer_id < 0 else made.base_sequence,
    )


@given(made=inputs())
def test_batches_equal_the_oracle_and_every_reader_reads_them(made: Input) -> None:
    """REC-R8, TS-R8, VAR-R4, HDR-R5."""
    data = encode_input(made)
    assert data == built_by_oracle(made)
    assert oracle.decode(data).error is None
    table = kbatch.decode(data)
    assert records_of(table) == expected_records(made)
    assert batches_of(table) == oracle.decode(data).batches
    without_sequence = [record._replace(sequence=-1) for record in expected_records(made)]
    for peer in (AiokafkaBatch, KafkaPythonBatch):
        assert read_with(peer, data) == without_sequence
    # With log append time, Kafka ignores the timestamps of records, and encoded records have none (TS-R2).
    again = kbatch.encode(table)
    assert batches_of(kbatch.decode(again)) == [
        batch._replace(crc=new.crc, size=new.size)
        for batch, new in zip(batches_of(table), oracle.decode(again).batches, strict=True)
    ]
    if not made.log_append_time:
        assert again == data


@given(made=inputs(), batch_size=st.integers(0, 4000), max_records=st.one_of(st.none(), st.integers(1, 5)))
def test_records_are_split_into_batches_like_producers_do(
    made: Input, batch_size: int, max_records: int | None
) -> None:
    """PRD-R15: batches have exact sizes; a larger record has a separate batch; sequences continue (SEQ-R1, SEQ-R3)."""
    data = encode_input(made, batch_size=batch_size, max_records=max_records)
    expected_of_input = [record._replace(sequence=-1) for record in expected_records(made)]
    assert [record._replace(sequence=-1) for record in records_of(kbatch.decode(data))] == expected_of_input
    plain = encode_input(made._replace(codec="none"), batch_size=batch_size, max_records=max_records)
    batches = oracle.decode(plain).batches
    assert [b.record_count for b in batches] == [b.record_count for b in oracle.decode(data).batches]
    sequence = made.base_sequence
    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        assert batch.record_count <= (max_records or INT32_MAX)
        assert batch.size <= batch_size or batch.record_count == 1
        if made.producer_id >= 0:
            assert batch.base_sequence == sequence
            sequence = oracle.sequence(sequence, batch.last_offset_delta + 1)
        if after is not None and batch.record_count != max_records:
            first = after.records[0]
            times = made.timestamps[expected_of_input.index(first._replace(sequence=-1))] - batch.base_timestamp
            delta = first.offset - batch.base_offset
            more = oracle.encode_record(delta, times, first.key, first.value, first.headers)
            assert batch.size + len(more) > batch_size


@given(made=set_inputs())
def test_message_sets_equal_the_oracle_and_every_reader_reads_them(made: SetInput) -> None:
    """LEG-R27, L4-R5."""
    magic = made.magic
    appended = made.append_time is not None and magic == 1
    data = kbatch.encode(
        [value for _, value in made.contents],
        keys=[key for key, _ in made.contents],
        timestamps=made.timestamps if magic else None,
        offsets=[made.base_offset + delta for delta in made.deltas],
        magic=magic,
        codec=made.codec,
        timestamp_type="log_append_time" if appended else "create_time",
        append_time=made.append_time if appended else None,
    )
    # Kafka's builder gives the append time to every message, also to messages in a compressed one.
    stamps = [made.append_time] * len(made.deltas) if appended else made.timestamps
    bits = oracle.LOG_APPEND_TIME * appended
    relative = magic == 1 and made.codec != "none"
    inner = oracle.message_set(
        made.contents,
        magic=magic,
        offsets=made.deltas if relative else [made.base_offset + delta for delta in made.deltas],
        timestamps=stamps,
        attributes=bits,
    )
    if made.codec != "none":
        inner = oracle.build_message(
            None,
            compress(oracle.CODECS[made.codec], memoryview(inner), magic=magic),
            magic=magic,
            offset=made.base_offset + made.deltas[-1],
            timestamp=max(stamps),
            attributes=bits | oracle.CODECS[made.codec],
        )
    assert data == inner
    table = kbatch.decode(data)
    assert records_of(table) == expected_of_set(made)
    assert batches_of(table) == oracle.decode(data).batches
    assert kbatch.encode(table) == data
    if (magic, made.codec) != (0, "lz4"):  # one peer refuses it, and the other needs the xxhash package
        for peer in (KafkaPythonSet, AiokafkaSet):
            assert read_set_with(peer, data) == expected_of_set(made)


@given(
    contents=st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=9),
    leader_epoch=st.integers(-1, INT32_MAX),
    producer=st.one_of(
        st.just((-1, -1, -1)),
        st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, INT32_MAX)),
    ),
    transactional=st.booleans(),
    horizon=st.one_of(st.none(), st.integers(0, 2**62)),
    codec=st.sampled_from(CODECS),
)
def test_every_header_field_can_be_given(
    contents: list[tuple[bytes | None, bytes | None]],
    leader_epoch: int,
    producer: tuple[int, int, int],
    transactional: bool,
    horizon: int | None,
    codec: str,
) -> None:
    transactional = transactional and producer[0] >= 0
    data = kbatch.encode(
        [value for _, value in contents],
        keys=[key for key, _ in contents],
        timestamps=5000,
        codec=codec,
        leader_epoch=leader_epoch,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
        delete_horizon=horizon,
    )
    (batch,) = oracle.decode(data).batches
    assert batch.partition_leader_epoch == leader_epoch
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == producer
    assert batch.attributes == (
        oracle.CODECS[codec] | oracle.TRANSACTIONAL * transactional | oracle.DELETE_HORIZON * (horizon is not None)
    )
    assert batch.base_timestamp == (5000 if horizon is None else horizon)  # TS-R5
    assert batch.max_timestamp == 5000
    assert {record.timestamp for record in batch.records} == {5000}
    assert [(record.key, record.value) for record in batch.records] == contents
    assert kbatch.encode(kbatch.decode(data)) == data


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
@example([0, -1, 1, 63])
@example([-64, 64, 8191, 8192])
@example([2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_varints_have_their_shortest_form(deltas: list[int]) -> None:
    """VAR-R4, VAR-R6: shown by the timestamp deltas of a table, for which all values are allowed."""
    records = [oracle.encode_record(i, delta, b"k", b"v") for i, delta in enumerate(deltas)]
    data = oracle.build_batch(records, base_timestamp=0)
    assert kbatch.encode(kbatch.decode(data)) == data


def test_the_example_of_the_catalogue_is_encoded() -> None:
    """REC-R8, TS-R8, LEG-R28."""
    data = kbatch.encode([b"v"], keys=[b"k"], timestamps=0)
    assert data[61:] == bytes.fromhex("10 00 00 00 02 6b 02 76 00")
    assert data == oracle.build_batch([oracle.encode_record(0, 0, b"k", b"v")], base_timestamp=0, max_timestamp=0)
    (batch,) = oracle.decode(kbatch.encode([b""] * 3, timestamps=[5, 3, 9])).batches
    assert (batch.base_timestamp, batch.max_timestamp) == (5, 9)
    assert [len(kbatch.encode([b"v"], keys=[b"k"], magic=magic)) for magic in (0, 1)] == [28, 36]


def test_no_records_give_no_bytes() -> None:
    """EMP-R3."""
    for magic in (0, 1, 2):
        assert kbatch.encode([], magic=magic, codec="gzip") == b""
    assert kbatch.encode(np.empty(0, "S4"), keys=[], headers=[], timestamps=[], offsets=[]) == b""


def test_values_may_be_omitted() -> None:
    table = kbatch.decode(kbatch.encode(None, keys=[b"a", b"b"]))
    assert (table.keys(), table.values()) == ([b"a", b"b"], [None, None])


def test_the_default_timestamp_is_the_current_time() -> None:
    before = datetime.datetime.now(datetime.UTC)
    tables = [
        kbatch.decode(kbatch.encode([b"a"])),
        kbatch.decode(kbatch.encode([b"a"], magic=1)),
        kbatch.decode(kbatch.encode([b"a"], timestamp_type=kbatch.TimestampType.LOG_APPEND_TIME)),
        kbatch.decode(kbatch.encode([b"a"], magic=1, timestamp_type="log_append_time")),
        kbatch.decode(kbatch.encode_marker("commit", producer_id=0, producer_epoch=0), include_control=True),
    ]
    after = datetime.datetime.now(datetime.UTC)
    for table in tables:
        assert int(before.timestamp() * 1000) <= table.records["timestamp"][0] <= after.timestamp() * 1000
    assert [table.batches["attributes"][0] & 8 for table in tables] == [0, 0, 8, 8, 0]


def test_large_batches_have_correct_checksums() -> None:
    """The crc32c package computes the CRCs of large batches, and the kernel computes all others."""
    for size in (64 << 10, (64 << 10) + 1, 1 << 20):
        data = kbatch.encode([b"x" * (size - 61 - 12), b"", b"y"], timestamps=0, batch_size=size)
        table = kbatch.decode(data)
        assert len(table) == 3
        assert sorted(table.batches["size"].tolist())[-1] > size - 61


# -- codecs


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [0, 1, 40_000, 300_000])
def test_payloads_equal_those_of_java_after_decoding(codec: str, size: int) -> None:
    """COD-R11, by decoding; L4-R12, SN-R9."""
    plain = (b"some text that repeats itself, " * (size // 30 + 1))[:size]
    data = kbatch.encode([plain], timestamps=0, codec=codec)
    (record,) = oracle.decode(data).batches[0].records
    assert record.value == plain
    for peer in (AiokafkaBatch, KafkaPythonBatch):
        assert [r.value for r in read_with(peer, data)] == [plain]
    if codec == "lz4":
        assert data[61:68] == bytes.fromhex("04224d18 60 40 82")
        assert data.endswith(b"\0\0\0\0")
    elif codec == "snappy":
        assert data[61:77] == oracle.XERIAL
        assert data[61:] == oracle.xerial(payload_of(data))
    elif codec == "gzip":
        assert data[61:71] == bytes.fromhex("1f8b08 00 00000000 00 03")


def test_lz4_of_magic_0_has_the_historical_header_checksum() -> None:
    """L4-R5: the checksum 0x1a includes the magic; the correct one is 0x82."""
    old, new = (kbatch.encode([b"v"], timestamps=0 if magic else None, magic=magic, codec="lz4") for magic in (0, 1))
    assert old[26:33] == bytes.fromhex("04224d18 60 40 1a")
    assert new[34:41] == bytes.fromhex("04224d18 60 40 82")


@pytest.mark.parametrize(
    ("codec", "levels"), [("gzip", [-1, 1, 9]), ("lz4", [1, 3, 9, 17]), ("zstd", [-131072, -1, 0, 1, 22])]
)
def test_levels_change_the_size(codec: str, levels: list[int]) -> None:
    """COD-R10."""
    values = [b'{"user": %d, "page": "/%d"}' % (i * 7919 % 1000, i % 37) for i in range(3000)]
    sizes = []
    for level in levels:
        data = kbatch.encode(values, timestamps=0, codec=f"{codec}:{level}")
        assert kbatch.decode(data).values() == values
        sizes.append(len(data))
    assert sizes[-1] < max(sizes)
    assert kbatch.decode(kbatch.encode(values, codec=codec)).values() == values


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", 0), ("gzip", 10), ("gzip", -2), ("lz4", 0), ("lz4", 18), ("zstd", 23), ("zstd", -131073)],
)
def test_invalid_levels_are_refused(codec: str, level: int) -> None:
    """COD-R10: the message lists the codecs and their ranges of levels."""
    with pytest.raises(ValueError, match="codec must be none, gzip, snappy, lz4 or zstd") as caught:
        kbatch.encode([b"a"], codec=f"{codec}:{level}")
    assert "(gzip:1 to gzip:9, lz4:1 to lz4:17, zstd:-131072 to zstd:22)" in str(caught.value)
    assert str(caught.value).endswith(f"got '{codec}:{level}'")


# -- refused arguments


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"transactional": True}, "transactional batch needs a producer_id"),
        ({"producer_id": 1, "base_sequence": 0}, "needs a producer_epoch"),
        ({"producer_id": 1, "producer_epoch": 0}, "needs a base_sequence"),
        ({"producer_epoch": 0}, "producer_epoch needs a producer_id"),
        ({"base_sequence": 0}, "base_sequence needs a producer_id"),
        ({"magic": 1, "codec": "zstd"}, "zstd needs magic 2"),
        ({"magic": 0, "codec": "zstd"}, "zstd needs magic 2"),
        ({"magic": 1, "headers": [[(b"k", b"v")]]}, "headers need magic 2"),
        ({"magic": 0, "headers": [None]}, "headers need magic 2"),
        ({"magic": 1, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0}, "producer_id needs magic 2"),
        ({"magic": 1, "transactional": True}, "transactional needs magic 2"),
        ({"magic": 1, "delete_horizon": 5}, "delete_horizon needs magic 2"),
        ({"magic": 0, "leader_epoch": 5}, "leader_epoch needs magic 2"),
        ({"magic": 0, "timestamps": 5}, "magic 0 has no timestamps"),
        ({"magic": 0, "timestamp_type": "log_append_time"}, "magic 0 has no timestamps"),
        ({"magic": 3}, "magic must be 0, 1 or 2"),
        ({"timestamp_type": "now"}, "timestamp_type must be"),
        ({"timestamp_type": kbatch.TimestampType.NO_TIMESTAMP_TYPE}, "timestamp_type must be"),
        ({"append_time": 5}, "append_time needs"),
        ({"timestamp_type": "log_append_time", "append_time": -2}, "append_time must be at least -1, got -2"),
        ({"codec": "lzo"}, "codec must be none, gzip, snappy, lz4 or zstd, optionally with a level"),
        ({"codec": 5}, "codec must be 0 to 4, got 5"),
        ({"codec": "snappy:1"}, "codec must be none, gzip, .* got 'snappy:1'"),
        ({"codec": "none:1"}, "codec must be none, gzip, .* got 'none:1'"),
        ({"headers": [[(None, b"v")]]}, r"headers\[0\]: a header needs a key"),
        ({"timestamps": [-2]}, "record 0: timestamp is -2"),
        ({"timestamps": -2}, "timestamps must be at least -1, got -2"),
        ({"timestamps": [1, 2]}, "timestamps and values must have the same length, got 2 and 1"),
        ({"keys": [b"a", b"b"]}, "keys and values must have the same length, got 2 and 1"),
        ({"headers": [None, None]}, "headers and values must have the same length"),
        ({"offsets": [1, 2]}, "offsets and values must have the same length"),
        ({"offsets": [-1]}, "must be at least 0, got -1"),
        ({"offsets": [5], "base_offset": 3}, "exclude each other"),
        ({"base_offset": -1}, "base_offset must be at least 0, got -1"),
        ({"base_offset": 2**63}, "base_offset must be at most 9,223,372,036,854,775,807, got 9,"),
        ({"leader_epoch": -2}, "leader_epoch must be -1 to"),
        ({"producer_id": -2}, "producer_id must be at least -1, got -2"),
        ({"producer_id": 1, "producer_epoch": 2**15, "base_sequence": 0}, "producer_epoch must be -1 to 32767"),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": 2**31}, "base_sequence must be -1 to"),
        ({"delete_horizon": -1}, "delete_horizon must be at least 0, got -1"),
        ({"batch_size": -1}, "batch_size must be 0 to"),
        ({"batch_size": 2**31}, "batch_size must be 0 to"),
        ({"max_records": 0}, "max_records must be 1 to"),
    ],
)
def test_invalid_arguments_of_encode_are_refused(options: dict[str, Any], text: str) -> None:
    """ATT-R6, ZS-R1, TS-R8, HDR-R7, LEG-R24."""
    with pytest.raises(ValueError, match=text):
        kbatch.encode([b"a"], **options)


@pytest.mark.parametrize("offsets", [[3, 3], [3, 2], [0, 1, 1]])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_offsets_must_ascend(offsets: list[int], batch_size: int | None) -> None:
    """REC-R8."""
    with pytest.raises(ValueError, match=f"record {len(offsets) - 1}: offset is .*must be strictly increasing"):
        kbatch.encode([b"a"] * len(offsets), offsets=offsets, batch_size=batch_size)


def test_offsets_of_one_batch_span_at_most_an_int32() -> None:
    """REC-R8: a delta is an int32; if several batches are allowed, a larger gap starts a new batch."""
    near = kbatch.encode([b"a", b"b"], offsets=[7, 7 + INT32_MAX])
    assert kbatch.decode(near).records["offset"].tolist() == [7, 7 + INT32_MAX]
    with pytest.raises(ValueError, match="record 1: offset is 2147483648 above the first of its batch"):
        kbatch.encode([b"a", b"b"], offsets=[7, 8 + INT32_MAX])
    cut = kbatch.encode([b"a", b"b"], offsets=[7, 8 + INT32_MAX], max_records=10)
    assert kbatch.scan(cut)["base_offset"].tolist() == [7, 8 + INT32_MAX]
    last = kbatch.encode([b"a", b"b"], base_offset=2**63 - 2)
    assert kbatch.decode(last).records["offset"].tolist() == [2**63 - 2, 2**63 - 1]
    with pytest.raises(ValueError, match=r"offsets must be below 2\*\*63"):
        kbatch.encode([b"a", b"b", b"c"], base_offset=2**63 - 2)
    plain = kbatch.encode([b"a", b"b"], offsets=[7, 2**62], magic=1)  # each is a separate entry
    assert kbatch.decode(plain).records["offset"].tolist() == [7, 2**62]


def test_batches_above_two_gib_are_refused() -> None:
    """Batches of 2 GiB are refused before they are written; one value is repeated to save memory."""
    value = bytes(4 << 20)
    with pytest.raises(ValueError, match=r"record 511: the batch would take 2147\d+ bytes"):
        kbatch.encode([value] * 600, timestamps=0)
    with pytest.raises(ValueError, match=r"record 511: the batch would take 2147\d+ bytes"):
        kbatch.encode([value] * 600, magic=1, codec="gzip")


# -- markers and empty batches


def test_markers_equal_the_markers_of_a_broker() -> None:
    """CTL-R6, SEQ-R6: the markers equal all markers of a broker's log, byte for byte."""
    seen = set()
    for path in [GOLDEN / "vectors" / "CTL-01.bin", *GOLDEN.glob("logs/txn-0/*.log")]:
        for entry in entries_of(path.read_bytes()):
            (batch,) = oracle.decode(entry).batches
            if not batch.attributes & oracle.CONTROL:
                continue
            (record,) = batch.records
            assert record.key is not None
            assert record.value is not None
            kind = kbatch.ControlType(record.key[3])
            seen.add(kind)
            fields = {
                "producer_id": batch.producer_id,
                "producer_epoch": batch.producer_epoch,
                "coordinator_epoch": struct.unpack(">i", record.value[2:])[0],
                "offset": batch.base_offset,
                "timestamp": record.timestamp,
                "leader_epoch": batch.partition_leader_epoch,
            }
            assert kbatch.encode_marker(kind, **fields) == entry
            assert kbatch.encode_marker(kind.name.lower(), **fields) == entry  # type: ignore[arg-type]
    assert seen == {kbatch.ControlType.COMMIT, kbatch.ControlType.ABORT}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "end"}, "'commit' or 'abort'"),
        ({"kind": kbatch.ControlType.LEADER_CHANGE}, "'commit' or 'abort'"),
        ({"producer_id": -1}, "producer_id must be at least 0, got -1"),
        ({"producer_epoch": -1}, "producer_epoch must be 0 to"),
        ({"coordinator_epoch": 2**31}, "coordinator_epoch must be"),
        ({"offset": -1}, "^offset must be at least 0, got -1"),
        ({"timestamp": -5}, "^timestamp must be at least -1, got -5"),
    ],
)
def test_invalid_markers_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kbatch.encode_marker(**({"kind": "commit", "producer_id": 1, "producer_epoch": 1} | options))

    with pytest.raises(TypeError, match="timestamps must be"):
        kbatch.encode_marker("commit", producer_id=1, producer_epoch=1, timestamp=[1])
    with pytest.raises(TypeError, match="transactional must be a bool, got str"):
        kbatch.encode([b"a"], transactional="no")  # type: ignore[arg-type]


def test_empty_batches_keep_their_fields() -> None:
    """EMP-R1, EMP-R3, TS-R7."""
    fields = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 5}
    data = kbatch.encode_empty(20, 24, max_timestamp=777, transactional=True, leader_epoch=4, **fields)
    assert data == oracle.build_batch(
        base_offset=20,
        last_offset_delta=4,
        base_timestamp=-1,
        max_timestamp=777,
        partition_leader_epoch=4,
        attributes=oracle.TRANSACTIONAL,
        **fields,
    )
    table = kbatch.decode(data)
    assert (len(table), kbatch.encode(table)) == (0, data)
    control = kbatch.encode_empty(3, 3, control=True, transactional=True, producer_id=9, producer_epoch=2)
    assert oracle.decode(control).batches[0].attributes == oracle.CONTROL | oracle.TRANSACTIONAL
    assert oracle.decode(control).batches[0].base_sequence == -1
    with pytest.raises(ValueError, match="last_offset must be 20 to"):
        kbatch.encode_empty(20, 19)
    with pytest.raises(ValueError, match="last_offset must be"):
        kbatch.encode_empty(0, 2**31)
    with pytest.raises(ValueError, match="needs a base_sequence"):
        kbatch.encode_empty(3, 3, producer_id=9, producer_epoch=2)


def test_an_int_column_is_read_back() -> None:
    numbers = np.array([1, -(2**40), 0], ">i8")
    assert kbatch.decode(kbatch.encode(numbers)).values_as(">i8").tolist() == numbers.tolist()


@pytest.mark.parametrize("key", [None, 0, 1, 8, 62, 63, 64, 65])
def test_lengths_around_the_growth_of_varints(key: int | None) -> None:
    """REC-R1: lengths of records, keys and values have one more byte from 64 and from 8192; offset deltas from 64."""
    for length in (*range(300), *range(8100, 8260)):
        values = [bytes([65 + i]) * length for i in range(3)]
        keys = None if key is None else [b"k" * key] * 3
        for offsets in ([0, 1, 2], [0, 63, 64], [0, 8191, 8192]):
            data = kbatch.encode(values, keys=keys, offsets=offsets, timestamps=[5, 5 + 63, 5 + 64])
            table = kbatch.decode(data)
            assert table.values() == values
            assert table.keys() == (keys or [None] * 3)
            assert table.records["offset"].tolist() == offsets
            assert table.records["timestamp"].tolist() == [5, 68, 69]
