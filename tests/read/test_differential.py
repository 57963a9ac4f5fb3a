"""decode() compared with the oracle, aiokafka and kafka-python: generated input, truncations, flipped bits, logs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import oracle
import pytest
from agreement import assert_agrees
from golden_logs import LOGS
from hypothesis import example, given
from hypothesis import strategies as st
from peers import (
    BUILDERS,
    NUMBERS,
    SET_BUILDERS,
    AiokafkaBatch,
    AiokafkaSet,
    Input,
    KafkaPythonBatch,
    KafkaPythonSet,
    SetInput,
    as_appended,
    build_set_with_oracle,
    build_with_oracle,
    expected_of_set,
    expected_records,
    inputs,
    read_set_with,
    read_with,
    set_inputs,
)
from tables import assert_accounted, batches_of, lost, records_of, short_inputs

import kbatch


@pytest.mark.parametrize("builder", BUILDERS)
@given(made=st.lists(inputs(), min_size=1, max_size=4))
def test_decode_agrees_with_oracle_and_peers(builder: str, made: list[Input]) -> None:
    parts = [as_appended(BUILDERS[builder](one), one) for one in made]
    data = b"".join(parts)
    table = kbatch.decode(data)
    put_in = [record for one in made for record in expected_records(one)]
    assert records_of(table) == put_in
    assert batches_of(table) == oracle.decode(data).batches
    assert table.consumed == len(data)
    without_sequence = [record._replace(sequence=-1) for record in put_in]
    for peer in (AiokafkaBatch, KafkaPythonBatch):
        assert [record for part in parts for record in read_with(peer, part)] == without_sequence


@given(made=inputs(), start=st.integers(-5, 3000), length=st.integers(0, 3000))
def test_offset_bounds_filter_the_records(made: Input, start: int, length: int) -> None:
    data = as_appended(build_with_oracle(made), made)
    first = max(made.base_offset + start, 0)
    table = kbatch.decode(data, start_offset=first, stop_offset=first + length)
    assert records_of(table) == [r for r in expected_records(made) if first <= r.offset < first + length]


# -- generated message sets


@pytest.mark.parametrize("builder", SET_BUILDERS)
@given(made=st.lists(set_inputs(), min_size=1, max_size=4))
def test_message_sets_agree_with_oracle_and_peers(builder: str, made: list[SetInput]) -> None:
    """LEG-R2 to LEG-R15; without xxhash the peers do not read lz4 in magic 0 (LEG-R20)."""
    if builder != "oracle":
        made = [one for one in made if (one.magic, one.codec) != (0, "lz4")]
    parts = [SET_BUILDERS[builder](one) for one in made]
    data = b"".join(parts)
    table = kbatch.decode(data)
    put_in = [record for one in made for record in expected_of_set(one)]
    assert records_of(table) == put_in
    assert batches_of(table) == oracle.decode(data).batches
    assert table.consumed == len(data)
    for one, part in zip(made, parts, strict=True):
        if (one.magic, one.codec) != (0, "lz4"):
            for peer in (KafkaPythonSet, AiokafkaSet):
                assert read_set_with(peer, part) == expected_of_set(one)


@given(
    made=st.lists(st.one_of(set_inputs(), inputs()), min_size=1, max_size=6),
    start=st.integers(-5, 3000),
    length=st.integers(0, 3000),
)
def test_a_buffer_may_mix_magics(made: list[SetInput | Input], start: int, length: int) -> None:
    """FRM-R13; OFF-R3, LEG-R25: offset bounds filter the records, even if offsets are not in order."""
    data = b""
    put_in = []
    for one in made:
        if isinstance(one, SetInput):
            data += build_set_with_oracle(one)
            put_in += expected_of_set(one)
        else:
            data += as_appended(build_with_oracle(one), one)
            put_in += expected_records(one)
    table = kbatch.decode(data)
    assert records_of(table) == put_in
    assert batches_of(table) == oracle.decode(data).batches
    first = put_in[0].offset + start
    trimmed = kbatch.decode(data, start_offset=first, stop_offset=first + length)
    assert records_of(trimmed) == [r for r in put_in if first <= r.offset < first + length]


MESSAGES = st.builds(
    oracle.build_message,
    key=st.one_of(st.none(), st.binary(max_size=9)),
    value=st.one_of(st.none(), st.binary(max_size=9)),
    magic=st.sampled_from([0, 0, 0, 1, 1, 1, 2, -1]),
    offset=st.one_of(st.integers(0, 20), st.integers(-(2**63), 2**63 - 1)),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    attributes=st.sampled_from([0, 0, 0, 0, 8, 0xF0, 1, 7]),
    key_length=st.one_of(st.none(), st.none(), st.none(), st.integers(-3, 30), NUMBERS),
    value_length=st.one_of(st.none(), st.none(), st.none(), st.integers(-3, 30), NUMBERS),
    extra=st.one_of(st.just(b""), st.just(b""), st.binary(max_size=5)),
    length=st.one_of(st.none(), st.none(), st.none(), st.none(), st.none(), st.integers(-3, 60), NUMBERS),
)


@short_inputs
@given(
    messages=st.lists(MESSAGES, max_size=5),
    stray=st.binary(max_size=14),
    codec=st.sampled_from(["none", "gzip", "snappy", "snappy-raw", "lz4"]),
    magic=st.sampled_from([0, 1]),
    offset=st.one_of(st.integers(0, 20), st.integers(-(2**63), 2**63 - 1)),
    attributes=st.sampled_from([0, 8, 0xF8]),
    value_length=st.one_of(st.none(), st.none(), st.none(), NUMBERS),
    broken_lz4=st.one_of(st.none(), st.booleans()),
)
def test_any_message_and_any_wrapper_agree_with_the_oracle(
    messages: list[bytes], stray: bytes, codec: str, **fields: Any
) -> None:
    """Both accept the input with the same records, or both reject it with the same error."""
    data = b"".join(messages) + stray
    if codec != "none":
        data = oracle.build_wrapper(data, codec=codec, **fields) + AFTER
    for verify in (True, False):
        assert_agrees(data, verify=verify)
    assert_accounted(kbatch.decode(data, on_error="skip"), len(data))


AFTER = oracle.build_message(b"k", b"v", offset=140)


@given(
    fields=st.fixed_dictionaries(
        {
            "base_offset": st.integers(-(2**63), 2**63 - 1),
            "partition_leader_epoch": NUMBERS,
            "attributes": st.integers(-(2**15), 2**15 - 1).map(lambda bits: bits & ~oracle.CONTROL),
            "last_offset_delta": NUMBERS,
            "base_timestamp": st.integers(-(2**63), 2**63 - 1),
            "max_timestamp": st.integers(-(2**63), 2**63 - 1),
            "producer_id": st.integers(-(2**63), 2**63 - 1),
            "producer_epoch": st.integers(-(2**15), 2**15 - 1),
            "base_sequence": NUMBERS,
            "record_count": st.one_of(st.none(), NUMBERS, st.integers(-1, 8)),
        }
    ),
    records=st.lists(
        st.builds(
            oracle.encode_record,
            offset_delta=st.one_of(NUMBERS, st.binary(min_size=1, max_size=6)),
            timestamp_delta=st.one_of(st.integers(-(2**63), 2**63 - 1), st.binary(min_size=1, max_size=11)),
            key=st.one_of(st.none(), st.binary(max_size=9)),
            value=st.one_of(st.none(), st.binary(max_size=9)),
            attributes=st.integers(0, 255),
            length=st.one_of(st.none(), st.none(), st.none(), st.integers(-3, 60), st.binary(min_size=1, max_size=6)),
            key_length=st.one_of(st.none(), st.none(), st.none(), st.integers(-3, 60)),
            value_length=st.one_of(st.none(), st.none(), st.none(), NUMBERS),
            header_count=st.one_of(st.none(), st.none(), st.none(), st.integers(-3, 60)),
            extra=st.one_of(st.just(b""), st.just(b""), st.binary(max_size=5)),
        ),
        max_size=5,
    ),
    codec=st.sampled_from(["none", "none", "gzip", "snappy-raw"]),
)
def test_any_header_and_any_record_bytes_agree_with_the_oracle(
    fields: dict[str, Any], records: list[bytes], codec: str
) -> None:
    """Both accept the input with the same records, or both reject it with the same error."""
    # The batch is framed without a codec, so the codec bits of `attributes` are arbitrary; sometimes they are correct.
    batch = oracle.build_batch(records, codec="none", **fields)
    if codec != "none":
        fields["attributes"] &= ~7
        batch = oracle.build_batch(records, codec=codec, **fields)
    assert_agrees(batch)


# -- damage


def small_buffer() -> tuple[bytes, list[oracle.Batch]]:
    """Return four batches: one compressed, one empty, one with headers; small enough to flip every bit."""
    data = (
        oracle.three(100, producer_id=5, producer_epoch=0, base_sequence=0)
        + oracle.build_batch(
            [oracle.encode_record(i, i, b"key", b"value " * 6, [(b"h", b"1"), (b"n", None)]) for i in range(3)],
            base_offset=110,
            codec="snappy",
        )
        + oracle.build_batch(base_offset=120, last_offset_delta=4)
        + oracle.three(130)
    )
    return data, oracle.decode(data).batches


SMALL, SMALL_BATCHES = small_buffer()


def small_sets() -> tuple[bytes, list[oracle.Batch]]:
    """Return message sets of both magics, compressed and uncompressed, with a batch between them."""
    contents: list[tuple[bytes | None, bytes | None]] = [(b"key", b"a value " * 3), (None, b""), (b"", None)]
    data = (
        oracle.build_message_set(contents, codec="gzip", base_offset=100)
        + oracle.build_message(b"k", b"v", magic=0, offset=103)
        + oracle.build_message_set(contents, codec="snappy", magic=0, base_offset=104)
        + oracle.three(107)
        + oracle.build_message(b"k", b"v", offset=110)
        + oracle.build_message_set(contents, codec="lz4", magic=0, base_offset=111, deltas=[0, 4, 5])
        + oracle.build_message_set(contents, codec="lz4", base_offset=120, append_time=777)
    )
    return data, oracle.decode(data).batches


SETS, SET_BATCHES = small_sets()
INPUTS = pytest.mark.parametrize(
    ("data", "batches"), [(SMALL, SMALL_BATCHES), (SETS, SET_BATCHES)], ids=["batches", "sets"]
)


@short_inputs
@INPUTS
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
def test_every_truncation_returns_the_complete_batches(data: bytes, batches: list[oracle.Batch], on_error: Any) -> None:
    """A truncation is neither an error nor a loss: the complete batches before it are returned (FRM-R3, LEG-R26)."""
    for cut in range(len(data) + 1):
        table = kbatch.decode(data[:cut], on_error=on_error)
        whole = [batch for batch in batches if batch.position + batch.size <= cut]
        assert batches_of(table) == whole
        assert table.consumed == sum(batch.size for batch in whole)
        assert table.losses == []


def flipped(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


@INPUTS
@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_raises_at_its_batch(data: bytes, batches: list[oracle.Batch], bit: int) -> None:
    """The error and its position are the oracle's; bits that no checksum covers raise no error (CRC-R2)."""
    assert oracle.decode(data).batches == batches
    for at in range(len(data)):
        assert_agrees(flipped(data, at, bit))


@INPUTS
@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_without_checksums_agrees_with_the_oracle(
    data: bytes, batches: list[oracle.Batch], bit: int
) -> None:
    """Without checksums a flipped bit may change records; decode() and the oracle return the same ones."""
    assert oracle.decode(data).batches == batches
    for at in range(len(data)):
        assert_agrees(flipped(data, at, bit), verify=False)


@INPUTS
@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_loses_one_batch(data: bytes, batches: list[oracle.Batch], bit: int) -> None:
    """on_error="skip" returns exactly the batches without the flipped bit, whichever field it is in."""
    for at in range(len(data)):
        changed = flipped(data, at, bit)
        hit = next(b for b in batches if b.position <= at < b.position + b.size)
        field = at - hit.position
        others = [b for b in batches if b is not hit]
        table = kbatch.decode(changed, on_error="skip")
        assert_accounted(table, len(changed))
        good = [b for b, row in zip(batches_of(table), table.batches, strict=True) if not row["status"]]
        # A negative offset is below the offsets in the wrapper (LEG-R12).
        too_small = (field, bit) == (0, 7) and hit.magic == 1 and hit.attributes & 7
        # The checksum does not cover the base offset, nor the leader epoch of magic 2.
        if (field < 8 and not too_small) or (hit.magic == 2 and 12 <= field < 16):
            assert [b.position for b in good] == [b.position for b in batches]
            assert [b for b in good if b.position != hit.position] == others
            assert lost(table) == []
        else:
            assert good == others, (at, bit)
            if hit is batches[-1] and 8 <= field < 12:
                # No batch follows, so a wrong length cannot be distinguished from an incomplete batch: the bytes that
                # the length covers are lost, and the rest of the input is an unread tail.
                assert lost(table) == ([(hit.position, table.consumed)] if table.consumed > hit.position else [])
            else:
                assert lost(table) == [(hit.position, hit.position + hit.size)]


@given(cuts=st.lists(st.tuples(st.integers(0, len(SMALL)), st.integers(0, 60), st.binary(max_size=60)), max_size=4))
@example(cuts=[(0, 0, b"{\x00\x00\x00\x00\x00\x00\x00\x10\x00")])
def test_removed_and_inserted_bytes_lose_no_complete_batch(cuts: list[tuple[int, int, bytes]]) -> None:
    """on_error="skip" finds every batch that is still complete, and accounts for every byte."""
    data = SMALL + oracle.three(140)
    for at, count, replacement in cuts:
        data = data[:at] + replacement + data[at + count :]
    whole = [part for b in SMALL_BATCHES if (part := SMALL[b.position : b.position + b.size]) in data]
    table = kbatch.decode(data, on_error="skip")
    assert_accounted(table, len(data))
    found = {bytes(data[row["position"] : row["position"] + row["size"]]) for row in table.batches if not row["status"]}
    assert found >= set(whole)
    assert_agrees(data)


@short_inputs
@given(data=st.binary(max_size=400))
def test_random_bytes_agree_with_the_oracle(data: bytes) -> None:
    assert_agrees(data)
    assert_accounted(kbatch.decode(data, on_error="skip"), len(data))


def test_many_random_batches_agree_with_the_oracle() -> None:
    """The bytes resemble batches; they are deterministic and made without the overhead of Hypothesis."""
    chance = random.Random(8)
    pieces = [SMALL, SMALL[:61], SMALL[88:200], bytes(40), b"\xff" * 40, b"\2" * 40]
    for _ in range(1500):
        data = bytearray(b"".join(chance.choices(pieces, k=chance.randint(1, 4))))
        for _ in range(chance.randint(0, 6)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        for crc in ("verify", "skip"):
            table = kbatch.decode(bytes(data), on_error="skip", crc=crc)  # type: ignore[arg-type]
            assert_accounted(table, len(data))
        assert len(batches_of(table)) == len(table.batches)
        assert_agrees(bytes(data), verify=False)


# -- golden logs


def magic_2_logs() -> list[Path]:
    """Return the segments that, according to Kafka's classes, have only batches of magic 2."""
    logs = []
    for path in sorted(LOGS.glob("*/*.log")):
        lines = [json.loads(line) for line in expected_of(path)]
        if all(line.get("magic", 2) == 2 for line in lines):
            logs.append(path)
    return logs


def expected_of(path: Path) -> list[str]:
    return path.with_name(path.name + ".expected.jsonl").read_text().splitlines()


def test_there_are_golden_logs() -> None:
    assert len(magic_2_logs()) >= 15


@pytest.mark.parametrize("path", magic_2_logs(), ids=lambda path: f"{path.parent.name}/{path.stem.lstrip('0') or 0}")
def test_golden_logs_agree_with_kafkas_classes(path: Path) -> None:
    """The header fields and record digests of every batch equal what Kafka's classes read."""
    *expected, end = [json.loads(line) for line in expected_of(path)]
    data = path.read_bytes()
    assert len(data) == end["fileSize"]
    if "error" in end:
        with pytest.raises(kbatch.CorruptBatchError) as caught:
            kbatch.decode(data)
        assert caught.value.position == end["end"]
    table = kbatch.decode(data, include_control=True, on_error="skip" if "error" in end else "raise")
    assert lost(table) == ([(end["end"], end["fileSize"])] if "error" in end else [])
    batches = batches_of(table)
    codecs = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    assert [
        (b.position, b.size, b.base_offset, b.record_count, b.crc, b.producer_id, b.base_sequence, b.max_timestamp)
        for b in batches
    ] == [
        tuple(
            line[name]
            for name in (
                "position",
                "size",
                "baseOffset",
                "count",
                "crc",
                "producerId",
                "baseSequence",
                "maxTimestamp",
            )
        )
        for line in expected
    ]
    assert [b.attributes & 7 for b in batches] == [codecs[line["codec"]] for line in expected]
    assert [oracle.digest(b.records) for b in batches] == [line["sha1"] for line in expected]
    assert sum(len(b.records) for b in batches) == len(table) == sum(line["records"] for line in expected)


@pytest.mark.parametrize("path", magic_2_logs()[::3], ids=lambda path: path.parent.name)
def test_oracle_reads_golden_logs(path: Path) -> None:
    *expected, end = [json.loads(line) for line in expected_of(path)]
    data = path.read_bytes()[: end["end"]][:200_000]
    batches = oracle.decode(data, verify=False).batches
    assert [oracle.digest(b.records) for b in batches] == [line["sha1"] for line in expected][: len(batches)]
    assert batches
