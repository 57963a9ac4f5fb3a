"""Small uncompressed batches of magic 2, which are checked and parsed in runs of 32: each gives what it gives alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import oracle
import pytest
from entries import repaired
from hypothesis import given
from hypothesis import strategies as st
from tables import decode_by_threads

import kbatch

# The number of batches in a run, and the size up to which a batch belongs to one.
RUN = 32
RUN_BATCH = 1 << 10
COUNT = 100
PLACES = [0, 1, 30, 31, 32, 33, 63, 64, 97, 98, 99]
COUNT_AT, ATTRIBUTES_AT, CRC_AT = 57, 21, 17
with_threads = pytest.mark.parametrize("threads", [1, 2], ids=["one thread", "two threads"])


def value(i: int) -> bytes | None:
    return None if i % 17 == 3 else bytes([i % 256]) * (i * 7 % 90)


@cache
def small(i: int, count: int = 1, **fields: Any) -> bytes:
    records = [oracle.encode_record(n, n, None if i % 5 else b"k" * (i % 30), value(i)) for n in range(count)]
    return oracle.build_batch(records, base_offset=10 * i, base_timestamp=1000 + i, **fields)


def with_count(batch: bytes, count: int) -> bytes:
    return repaired(batch[:COUNT_AT] + count.to_bytes(4, "big", signed=True) + batch[COUNT_AT + 4 :])


def control(i: int) -> bytes:
    key = b"\0\0\0\1"
    return oracle.build_batch([oracle.encode_record(0, 0, key, b"\0\0\0\0\0\0")], base_offset=10 * i,
                              attributes=oracle.CONTROL | oracle.TRANSACTIONAL, producer_id=7)  # fmt: skip


def overlong(i: int) -> bytes:
    """Return a batch whose record has a length in more bytes than necessary, which is valid (VAR-R3)."""
    record = oracle.encode_record(0, 0, None, b"v" * (i % 50))
    return oracle.build_batch([bytes([record[0] | 0x80, 0]) + record[1:]], base_offset=10 * i)


# Batches that a run contains or ends at, by name; all are valid.
KINDS: dict[str, Any] = {
    "one record": small,
    "ten records": lambda i: small(i, 10),
    "no record": lambda i: oracle.build_batch([], base_offset=10 * i, last_offset_delta=3),
    "LogAppendTime": lambda i: small(i, 2, attributes=oracle.LOG_APPEND_TIME, max_timestamp=77),
    "headers": lambda i: oracle.build_batch(
        [oracle.encode_record(0, 0, b"k", b"v", [(b"a", None), (b"b", b"1")])], base_offset=10 * i
    ),
    "descending offsets and times": lambda i: oracle.build_batch(
        [oracle.encode_record(5, 5, b"k", b"v"), oracle.encode_record(-1, -70_000, b"k", b"v")], base_offset=10 * i
    ),
    "far apart": lambda i: oracle.build_batch([oracle.encode_record(1 << 29, 1 << 40, None, None)], base_offset=10 * i),
    "control": control,
    "compressed": lambda i: small(i, 3, codec="lz4"),
    "overlong": overlong,
    "as large as possible": lambda i: oracle.build_batch(
        [oracle.encode_record(0, 0, None, b"v" * (RUN_BATCH - 61 - 9))], base_offset=10 * i
    ),
    "larger than a run's": lambda i: oracle.build_batch(
        [oracle.encode_record(0, 0, None, b"v" * RUN_BATCH)], base_offset=10 * i
    ),
    "magic 1": lambda i: oracle.build_message(b"k", value(i), magic=1, offset=10 * i),
    "magic 0": lambda i: oracle.build_message(None, value(i), magic=0, offset=10 * i),
}


def content(table: kbatch.RecordTable) -> tuple[list[Any], list[Any]]:
    """Return records, keys, values, headers and batches of a table, without positions."""
    columns = [table.records[name].tolist() for name in ("offset", "timestamp", "key_len", "value_len")]
    found = zip(*columns, table.keys(), table.values(), map(table.headers_of, range(len(table))), strict=True)
    return list(found), [row[name] for row in table.batches for name in ("base_offset", "status", "crc")]


@cache
def alone(entry: bytes, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return the content of one batch: after it no bytes follow, and no run begins."""
    return content(kbatch.decode(entry, **options))


def check(entries: list[bytes], **options: Any) -> None:
    """Check that batches give together what each gives alone."""
    data = b"".join(entries)
    each = [alone(entry, **options) for entry in entries]
    expected = tuple([one for found in each for one in found[part]] for part in (0, 1))
    for threads in (1, 2):
        together = kbatch.decode(data, threads=threads, **options)
        assert content(together) == expected
        assert together.consumed == len(data)
        counts = np.bincount(together.records["batch"], minlength=len(together.batches))
        held = together.batches["first_record"][counts > 0]
        assert held.tolist() == (np.cumsum(counts) - counts)[counts > 0].tolist()


def test_largest_batch_of_a_run_has_the_size_that_it_claims() -> None:
    assert len(KINDS["as large as possible"](1)) == RUN_BATCH
    assert len(KINDS["larger than a run's"](1)) > RUN_BATCH


@pytest.mark.parametrize("include_control", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_batch_of_any_kind_is_decoded_at_any_place_of_a_run(kind: str, place: int, include_control: bool) -> None:
    entries = [small(i) for i in range(COUNT)]
    entries[place] = KINDS[kind](place)
    check(entries, include_control=include_control)


@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), max_size=3 * RUN),
    repeat=st.integers(1, 3),
    columns=st.sampled_from([None, ("offset", "timestamp", "key", "value", "headers")]),
    crc=st.sampled_from(["verify", "mark", "skip"]),
)
def test_runs_of_any_kinds_decode_as_each_batch_alone(
    kinds: list[str], repeat: int, columns: tuple[str, ...] | None, crc: str
) -> None:
    made = [KINDS[kind] for kind in kinds for _ in range(repeat)]
    check([make(i) for i, make in enumerate(made)], columns=columns, crc=crc)


@with_threads
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_checksum_loses_only_its_batch(place: int, threads: int) -> None:
    """CRC-R1: the error has the position of the batch, anywhere in the run."""
    entries = [small(i) for i in range(COUNT)]
    at = len(b"".join(entries[:place]))
    data = bytearray(b"".join(entries))
    data[at + len(entries[place]) - 1] ^= 1
    with pytest.raises(kbatch.CrcMismatchError) as error:
        decode_by_threads(data, threads=threads)
    assert (error.value.position, error.value.base_offset) == (at, 10 * place)
    table = decode_by_threads(data, on_error="skip", threads=threads)
    assert table.records["offset"].tolist() == [10 * i for i in range(COUNT) if i != place]
    assert [(loss.position, loss.length) for loss in table.losses] == [(at, len(entries[place]))]
    assert table.batches["status"][place] != 0


@with_threads
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_checksum_is_marked_in_its_batch_alone(place: int, threads: int) -> None:
    entries = [small(i) for i in range(COUNT)]
    at = len(b"".join(entries[:place]))
    data = bytearray(b"".join(entries))
    data[at + CRC_AT] ^= 1
    table = decode_by_threads(data, crc="mark", threads=threads)
    assert np.flatnonzero(table.batches["status"]).tolist() == [place]
    assert table.values() == [value(i) for i in range(COUNT)]
    skipped = decode_by_threads(data, crc="skip", threads=threads)
    assert not skipped.batches["status"].any()
    assert skipped.values() == table.values()


@with_threads
@pytest.mark.parametrize("count", [-1, 2, 9, 1 << 20, 2**31 - 1])
@pytest.mark.parametrize("place", PLACES)
def test_a_wrong_record_count_is_an_error_of_its_batch(place: int, count: int, threads: int) -> None:
    """CNT-R1: records are neither missing nor left over, anywhere in the run."""
    entries = [small(i) for i in range(COUNT)]
    entries[place] = with_count(entries[place], count)
    with pytest.raises(kbatch.KbatchError) as alone:
        kbatch.decode(entries[place])
    with pytest.raises(type(alone.value)) as error:
        decode_by_threads(b"".join(entries), threads=threads)
    assert (error.value.position, error.value.base_offset) == (len(b"".join(entries[:place])), 10 * place)
    table = decode_by_threads(b"".join(entries), on_error="skip", threads=threads)
    assert table.records["offset"].tolist() == [10 * i for i in range(COUNT) if i != place]


@pytest.mark.parametrize("field", ["record", "key", "value"])
@pytest.mark.parametrize("place", PLACES)
def test_a_length_beyond_its_record_does_not_reach_into_the_next_batch(place: int, field: str) -> None:
    """REC-R4: the bytes after a payload are those of the next batch, and belong to no record of this one."""
    record = oracle.encode_record(0, 0, b"key", b"value")
    at = {"record": 0, "key": 4, "value": 8}[field]
    for more in (1, 2, 20, 40):
        longer = record[:at] + bytes([record[at] + 2 * more]) + record[at + 1 :]
        entries = [small(i) for i in range(COUNT)]
        entries[place] = oracle.build_batch([longer], base_offset=10 * place)
        with pytest.raises(kbatch.KbatchError) as alone:
            kbatch.decode(entries[place])
        with pytest.raises(type(alone.value)) as error:
            kbatch.decode(b"".join(entries))
        assert error.value.base_offset == 10 * place


@pytest.mark.parametrize("count", [1, 2, 5])
def test_tables_of_every_size_have_all_records_in_order(count: int) -> None:
    """A table ends after the batch that fills it, also within a run."""
    entries = [small(i, count) for i in range(COUNT)]
    data = b"".join(entries)
    expected = [value(i) for i in range(COUNT) for _ in range(count)]
    sizes = set()
    for max_bytes in range(1, 30_000, 613):
        tables = list(kbatch.decode_stream([data], max_bytes=max_bytes))
        assert [one for table in tables for one in table.values()] == expected
        sizes.update(len(table.batches) for table in tables)
    assert {1, 2, 31, 33} <= sizes


def test_a_batch_ends_exactly_where_the_readable_bytes_end() -> None:
    """Records are read in advance only where bytes follow: every length of the last batches is tested."""
    for last in range(60):
        entries = [small(0), oracle.build_batch([oracle.encode_record(0, 0, None, b"v" * last)], base_offset=10)]
        for more in range(3):
            check(entries + [small(2 + i) for i in range(more)])


@pytest.mark.parametrize("place", PLACES)
def test_the_payload_of_a_batch_without_records_is_not_read(place: int) -> None:
    """CNT-R2: whatever its payload contains, anywhere in the run."""
    entries = [small(i) for i in range(COUNT)]
    entries[place] = with_count(entries[place], 0)
    check(entries)
