"""encode() of decoded tables: golden files, selections, omitted batches and other codecs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracle
import pytest
from encoded_inputs import encode_input, payload_of
from golden_logs import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from peers import (
    Input,
    entries_of,
    inputs,
)
from tables import batches_of, records_of

import kbatch


def without_place(batches: list[oracle.Batch]) -> list[oracle.Batch]:
    return [batch._replace(position=0, size=0, crc=0) for batch in batches]


def files() -> list[Path]:
    return sorted(
        [*GOLDEN.glob("logs/*/*.log"), *GOLDEN.glob("internal/*/*.log"), *GOLDEN.glob("legacy-clients/*.bin")]
    )


@pytest.mark.parametrize("path", files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_files_are_encoded_to_equal_batches(path: Path) -> None:
    """Uncompressed batches have equal bytes, others equal payloads, except timestamps under log append time."""
    data = path.read_bytes()
    table = kbatch.decode(data, include_control=True, on_error="stop")
    assert table.consumed > 0
    # A preallocated tail is not a batch, so it is a loss.
    again = kbatch.encode_table(table, omitted="drop" if table.losses else "raise")
    assert without_place(batches_of(kbatch.decode(again, include_control=True))) == without_place(batches_of(table))
    assert oracle.decode(again).error is None
    before, after = entries_of(data[: table.consumed]), entries_of(again)
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        attributes = old[22] if old[16] == 2 else old[17]
        if attributes & oracle.LOG_APPEND_TIME and (old[16] == 2 or attributes & 7):
            continue
        assert payload_of(old) == payload_of(new)
        if not attributes & 7:
            assert old == new


REFUSED_TABLES = {
    "LEG-15": "compressed message of magic 0 cannot keep",
    "LEG-16": "compressed message with an append time cannot keep messages of magic 0",
    "LEG-28": "checksum is wrong",
}


@pytest.mark.parametrize("path", sorted((GOLDEN / "vectors").glob("*.bin")), ids=lambda path: path.stem)
def test_decoded_tables_can_be_encoded(path: Path) -> None:
    """Unusual batches keep their records, offsets and fields, or the table is refused."""
    data = path.read_bytes()
    try:
        table = kbatch.decode(data, include_control=True)
    except kbatch.KbatchError:
        return
    if path.stem in REFUSED_TABLES:
        with pytest.raises(ValueError, match=REFUSED_TABLES[path.stem]):
            kbatch.encode(table)
        return
    again = kbatch.decode(kbatch.encode(table), include_control=True)
    assert records_of(again) == records_of(table)
    names = [
        "base_timestamp",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "record_count",
        "magic",
    ]
    if path.stem not in {"LEG-07", "LEG-11"}:  # a compressed message without relative offsets gets one (LEG-R12)
        names += ["base_offset", "last_offset", "last_offset_delta", "partition_leader_epoch"]
    for name in names:
        assert again.batches[name].tolist() == table.batches[name].tolist()
    # Batches without records lose their codec (EMP-R3).
    has_records = table.batches["record_count"] > 0
    assert (again.batches["attributes"][has_records] == table.batches["attributes"][has_records]).all()
    assert kbatch.encode(again) == kbatch.encode(table)


def log(*parts: bytes) -> bytes:
    return b"".join(parts)


TRANSACTION = log(
    kbatch.encode([b"a", b"b"], timestamps=1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
    kbatch.encode_marker("abort", producer_id=9, producer_epoch=0, offset=2, timestamp=2),
    kbatch.encode([b"c"], timestamps=3, base_offset=3, codec="zstd"),
)


def test_omitted_batches_are_an_error_unless_dropped() -> None:
    """Omitted control batches, aborted transactions and damage are errors unless omitted="drop"."""
    with pytest.raises(ValueError, match="byte 77, base offset 2: the decode left out this control batch"):
        kbatch.encode(kbatch.decode(TRANSACTION))
    whole = kbatch.decode(TRANSACTION, include_control=True)
    assert kbatch.encode(whole) == TRANSACTION
    committed = kbatch.decode(TRANSACTION, isolation="read_committed")
    with pytest.raises(ValueError, match=r"byte 0, base offset 0: the decode left out this batch \(ABORTED\)"):
        kbatch.encode(committed)
    kept = kbatch.decode(kbatch.encode_table(committed, omitted="drop"))
    assert (kept.values(), kept.records["offset"].tolist()) == ([b"c"], [3])
    damaged = bytearray(TRANSACTION)
    damaged[70] ^= 1
    skipped = kbatch.decode(damaged, on_error="skip", include_control=True)
    with pytest.raises(ValueError, match="byte 0: the decode lost 77 bytes"):
        kbatch.encode(skipped)
    assert kbatch.encode_table(skipped, omitted="drop") == TRANSACTION[77:]
    marked = kbatch.decode(damaged, crc="mark", include_control=True)
    with pytest.raises(ValueError, match="byte 0, base offset 0: the checksum is wrong"):
        kbatch.encode_table(marked, omitted="drop")
    assert kbatch.encode_table(marked[marked.records["batch"] > 0], omitted="drop") == TRANSACTION[77:]
    with pytest.raises(ValueError, match="omitted must be"):
        kbatch.encode_table(whole, omitted="keep")  # type: ignore[arg-type]


@given(made=st.lists(inputs(), min_size=1, max_size=4), data=st.data())
def test_a_selection_keeps_its_batches(made: list[Input], data: st.DataObject) -> None:
    """OFF-R4: records keep their offsets, and the remaining batches their fields, as after compaction."""
    table = kbatch.decode(b"".join(encode_input(one) for one in made))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))), bool)
    chosen = table[mask]
    again = kbatch.decode(kbatch.encode(chosen))
    assert records_of(again) == [record for record, keep in zip(records_of(table), mask, strict=True) if keep]
    left = np.unique(chosen.records["batch"])
    for name in ("base_offset", "last_offset", "base_timestamp", "max_timestamp", "producer_id", "base_sequence"):
        assert again.batches[name].tolist() == table.batches[name][left].tolist()


def test_a_table_can_be_encoded_with_another_codec() -> None:
    data = log(TRANSACTION, kbatch.encode_empty(4, 6), kbatch.encode([b"d"] * 3, base_offset=7, magic=1, codec="lz4"))
    table = kbatch.decode(data, include_control=True)
    again = kbatch.decode(kbatch.encode(table, codec="gzip:9"), include_control=True)
    assert records_of(again) == records_of(table)
    assert (again.batches["attributes"] & 7).tolist() == [1, 0, 1, 0, 1]  # not the control batch (ATT-R5)
    with pytest.raises(ValueError, match="zstd needs magic 2, got batches of magic 0 or 1"):
        kbatch.encode(table, codec="zstd")
    with pytest.raises(ValueError, match=r"codec must be .* got 'gzip:10'"):
        kbatch.encode(table, codec="gzip:10")
    with pytest.raises(ValueError, match="only codec may be given"):
        kbatch.encode(table, base_offset=5)
    with pytest.raises(ValueError, match="only codec may be given"):
        kbatch.encode(table, keys=[None])


def test_rows_outside_their_buffer_are_refused() -> None:
    """Users may change the rows of a table, so positions and lengths are checked."""
    table = kbatch.decode(kbatch.encode([b"abc"] * 3, timestamps=0))
    for field, value in [("value_pos", 10**6), ("value_pos", -1), ("value_len", 10**6), ("key_len", 5)]:
        rows = table.records.copy()
        rows[field][1] = value
        if field == "key_len":
            rows["key_pos"] = 2**62
        broken = kbatch.RecordTable(rows, table.batches, table.data)
        with pytest.raises(ValueError, match="outside of their buffer"):
            kbatch.encode(broken)


def test_a_table_of_some_columns_is_refused() -> None:
    table = kbatch.decode(kbatch.encode([b"a"]))
    rows = np.zeros(1, [("offset", "<i8"), ("batch", "<i4")])
    with pytest.raises(ValueError, match="only some of its columns"):
        kbatch.encode(kbatch.RecordTable(rows, table.batches, table.data))
