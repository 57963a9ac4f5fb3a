"""What the header of a damaged batch shows of the batch: which transactions may have ended in it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from log_batches import write_segment
from oracle import CONTROL, TRANSACTIONAL, build_batch, encode_record
from transaction_logs import ABORT, damaged, data, marker, txn

import kbatch
from kbatch.log.committed import follow_transactions
from kbatch.read.decode_options import DecodeOptions
from kbatch.transactions.control_parsing import MAX_MARKER_SIZE

# The size of a batch with one record without key, value and headers, and of Kafka's markers.
SMALLEST, USUAL = 68, 78


def undecided(directory: Path, lost: Sequence[bytes], following: int | None, *, below: int | None = None) -> list[int]:
    """Return the producers whose transactions are undecided after these bytes; 7 and 8 are open before, from 0 and 1.

    Every transaction is either undecided or open afterwards.
    """
    batches = [txn(0, 7), txn(1, 8), *lost, *([] if following is None else [data(following)])]
    write_segment(directory, 0, [b"".join(batches)])
    if below is not None:
        write_segment(directory, below, [data(below)])
    found = follow_transactions(kbatch.Log(directory).segments, DecodeOptions(on_error="skip"))
    producers = found.undecided["producer_id"].tolist()
    assert sorted([*producers, *(each.producer_id for each in found.open)]) == [7, 8]
    return sorted(producers)


def bad(offset: int = 2, *, size: int | None = None, **fields: Any) -> bytes:
    """Build a batch with one record and a wrong checksum."""
    made = (
        build_batch([encode_record(value=bytes(length))], base_offset=offset, **fields)
        for length in range(1 + (size or 0))
    )
    return damaged(next(batch for batch in made if size in (None, len(batch))))


ALL = [7, 8]
SEQUENCE: dict[str, Any] = {"producer_id": 5, "producer_epoch": 3, "base_sequence": 9}
NONE: dict[str, Any] = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}

HEADERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "producer, epoch and sequence": (SEQUENCE, []),
    "each of them 0": ({"producer_id": 0, "producer_epoch": 0, "base_sequence": 0}, []),
    "no sequence": (SEQUENCE | {"base_sequence": -1}, ALL),
    "no epoch": (SEQUENCE | {"producer_epoch": -1}, ALL),
    "no producer": (SEQUENCE | {"producer_id": -1}, ALL),
    "a control batch with a sequence": (SEQUENCE | {"attributes": CONTROL}, ALL),
    "a transactional batch with a sequence": (SEQUENCE | {"attributes": TRANSACTIONAL}, []),
    "none of them": (NONE, []),
    "a sequence only": (NONE | {"base_sequence": 0}, ALL),
    "an epoch only": (NONE | {"producer_epoch": 0}, ALL),
    "a producer only": (NONE | {"producer_id": 0}, ALL),
    "a control batch without any of them": (NONE | {"attributes": CONTROL}, ALL),
    "no records": (SEQUENCE | {"record_count": 0}, ALL),
    "less than no records": (SEQUENCE | {"record_count": -1}, ALL),
    "a wrong magic": (SEQUENCE | {"magic": 3}, []),
}


@pytest.mark.parametrize("name", HEADERS)
def test_two_fields_show_that_a_damaged_batch_was_one_of_records_seq_r6(tmp_path: Path, name: str) -> None:
    """The control bit, and the sequence or the producer id. Otherwise any marker may have been there."""
    fields, expected = HEADERS[name]
    assert undecided(tmp_path, [bad(size=USUAL + 1, **fields)], 3) == expected


@pytest.mark.parametrize(
    ("count", "delta", "expected"),
    [(2, 1, []), (2, 2, []), (3, 2, []), (2, 0, ALL), (3, 1, ALL), (1, 1, ALL), (1, 0, ALL)],
)
@pytest.mark.parametrize("attributes", [0, CONTROL])
@pytest.mark.parametrize("size", [SMALLEST, USUAL])
def test_the_record_count_and_the_last_offset_show_that_a_damaged_batch_was_no_marker(
    tmp_path: Path, size: int, attributes: int, count: int, delta: int, expected: list[int]
) -> None:
    """Also for a batch of exactly the size of a marker."""
    fields = SEQUENCE | {"base_sequence": -1, "attributes": attributes}
    lost = bad(size=size, record_count=count, last_offset_delta=delta, **fields)
    assert undecided(tmp_path, [lost], 2 + delta + 1) == expected


@pytest.mark.parametrize(("size", "expected"), [(USUAL - 1, []), (USUAL, ALL), (USUAL + 1, [])])
@pytest.mark.parametrize("fields", [SEQUENCE, NONE])
def test_the_sequence_of_a_damaged_batch_of_the_size_of_markers_shows_nothing(
    tmp_path: Path, fields: dict[str, Any], size: int, expected: list[int]
) -> None:
    assert undecided(tmp_path, [bad(size=size, **fields)], 3) == expected


@pytest.mark.parametrize(
    ("size", "junk", "expected"),
    [(MAX_MARKER_SIZE, 0, ALL), (MAX_MARKER_SIZE + 1, 0, []), (MAX_MARKER_SIZE + 1, 5, ALL)],
)
def test_a_damaged_batch_that_is_larger_than_any_marker_is_none_if_the_lengths_lead_through(
    tmp_path: Path, size: int, junk: int, expected: list[int]
) -> None:
    lost = bad(size=size, **SEQUENCE | {"base_sequence": -1})
    assert undecided(tmp_path, [lost, b"\xff" * junk], 3) == expected


@pytest.mark.parametrize(
    ("lost", "following", "expected"),
    [
        ([damaged(marker(2, 7, ABORT))], 3, [7]),
        ([damaged(marker(2, 7, ABORT)), damaged(marker(3, 8, ABORT))], 4, ALL),
        # No transaction of this producer is open, so its id may be damaged.
        ([damaged(marker(2, 9, ABORT))], 3, ALL),
        # One more offset is missing than the header explains, before or after it.
        ([damaged(marker(2, 7, ABORT))], 4, ALL),
        ([damaged(marker(3, 7, ABORT))], 4, ALL),
        ([bad(2, **NONE)], 3, []),
        ([bad(2, **NONE)], 4, ALL),
        ([bad(3, **NONE)], 4, ALL),
        ([bad(2, **NONE), bad(3, **NONE)], 4, []),
        ([bad(2, **NONE), bad(4, **NONE)], 5, ALL),
        # No offset is missing.
        ([b"\xff" * 100], 2, []),
        ([damaged(marker(2, 7, ABORT))], 2, []),
        ([damaged(marker(1, 7, ABORT))], 2, []),
        # Offsets descend, and show nothing.
        ([b"\xff" * 100], 1, ALL),
        ([b"\xff" * 100], 3, ALL),
        # An offset that is not above that of the batch before is wrong, or one of the others is.
        ([], 0, ALL),
        ([], 1, ALL),
        ([], 2, []),
        ([], 3, []),
        # Nothing follows: the transactions stay open, except for a marker's own.
        ([b"\xff" * 100], None, []),
        ([damaged(marker(2, 7, ABORT))], None, [7]),
    ],
)
def test_each_missing_offset_belongs_to_a_damaged_header_or_any_marker_may_have_had_it(
    tmp_path: Path, lost: list[bytes], following: int | None, expected: list[int]
) -> None:
    assert undecided(tmp_path, lost, following) == expected


@pytest.mark.parametrize(("below", "expected"), [(2, []), (3, [7]), (4, ALL)])
def test_the_next_segment_shows_which_offsets_are_missing_at_the_end(
    tmp_path: Path, below: int, expected: list[int]
) -> None:
    assert undecided(tmp_path, [damaged(marker(2, 7, ABORT))], None, below=below) == expected


def test_an_indexed_marker_aborts_its_transaction_where_others_are_undecided_txi_r2(tmp_path: Path) -> None:
    """Two offsets are missing, and the index lists one. The others are undecided from the batch before on."""
    path = write_segment(tmp_path, 0, [txn(0, 7), txn(1, 8), damaged(marker(2, 7, ABORT)), data(4)])
    path.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 2, 3))
    found = follow_transactions(kbatch.Log(tmp_path).segments, DecodeOptions(on_error="skip"))
    assert found.aborted[["producer_id", "first_offset", "last_offset"]].tolist() == [(7, 0, 2)]
    assert found.undecided[["producer_id", "first_offset", "last_offset"]].tolist() == [(8, 1, 1)]
    assert found.open == []
