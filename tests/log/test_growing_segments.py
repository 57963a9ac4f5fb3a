"""Where the transactions of a segment are resumed once its file has grown: before what damage may still hide."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from log_batches import segment_path, write_segment
from oracle import encode_record, three
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn

import kbatch
from kbatch.log import committed
from kbatch.log.committed import follow_transactions, segment_transactions
from kbatch.read.decode_options import DecodeOptions

SKIP = DecodeOptions(on_error="skip")


def with_length(batch: bytes, length: int) -> bytes:
    """Replace the length field of a batch."""
    return batch[:8] + struct.pack(">i", length) + batch[12:]


@pytest.fixture
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is read in tables, after each of which it may be resumed."""
    monkeypatch.setattr(committed, "followed_table_bytes", lambda _: 1)


def end_of(directory: Path, batches: Sequence[bytes], below: int | None = None) -> int:
    write_segment(directory, 0, [], tail=b"".join(batches))
    return segment_transactions(kbatch.Log(directory).segments[0], below, SKIP).end


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_undamaged_segment_is_resumed_after_its_last_batch(tmp_path: Path, count: int) -> None:
    batches = [three(3 * number) for number in range(count)]
    assert end_of(tmp_path, batches) == sum(map(len, batches))


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize(
    ("extra", "resumes_at"),
    [(-1, 4), (0, 4), (1, 1), (1000, 1), ((1 << 31) - 1 - 12, 4)],
    ids=["shorter", "up to the last batch", "into the last batch", "beyond the end", "above the limit"],
)
def test_a_segment_is_resumed_before_a_length_that_may_turn_out_to_be_right(
    tmp_path: Path, extra: int, resumes_at: int
) -> None:
    """Once the file is longer, the batches after it may be inside of it. A length above the limit is wrong."""
    batches = [three(3 * number) for number in range(4)]
    size = len(batches[0])
    batches[1] = damaged(with_length(batches[1], min(2 * size + extra, (1 << 31) - 1 - 12) - 12))
    assert end_of(tmp_path, batches) == resumes_at * size


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize("form", ["wrong length", "wrong length and magic"])
@pytest.mark.parametrize(("limit", "resumes_at"), [(0, 1), (-1, 5)])
def test_a_length_up_to_the_limit_may_turn_out_to_be_right(
    tmp_path: Path, form: str, limit: int, resumes_at: int
) -> None:
    batches = [three(3 * number) for number in range(5)]
    size = len(batches[0])
    long = damaged(with_length(batches[1], 9 * size - 12))
    batches[1] = damaged(long, 16) if form == "wrong length and magic" else long
    write_segment(tmp_path, 0, batches)
    options = DecodeOptions(on_error="skip", limits=kbatch.Limits(max_batch_bytes=9 * size + limit))
    found = segment_transactions(kbatch.Log(tmp_path).segments[0], None, options)
    assert found.offsets == (0, 14)
    assert found.end == resumes_at * size


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize("damage", [b"\xff" * 60, damaged(three(3)), damaged(three(3)) * 2], ids=["junk", "one", "two"])
def test_a_segment_is_resumed_before_a_batch_after_damage_that_is_not_complete_yet(
    tmp_path: Path, damage: bytes
) -> None:
    """The batches in its value are returned until the file has all of it."""
    inner = three(4)
    outer = oracle.build_batch([oracle.encode_record(value=inner + bytes(100))], base_offset=4)
    first = three(0)
    assert end_of(tmp_path, [first, damage, outer[:-50]]) == len(first)
    found = segment_transactions(kbatch.Log(tmp_path).segments[0], None, SKIP)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(first + damage + outer + three(7))
    grown = kbatch.Log(tmp_path).segments[0]
    resumed, fresh = (segment_transactions(grown, None, SKIP, since) for since in (found, None))
    assert resumed.end == fresh.end == path.stat().st_size
    assert resumed.offsets == fresh.offsets


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("before", [[], [b"\xff" * 9, three(1)]], ids=["nothing", "damage"])
def test_a_segment_is_resumed_before_a_message_that_is_not_complete_yet(
    tmp_path: Path, before: list[bytes], magic: int
) -> None:
    """The batch in its value is returned until the file has all of it."""
    parts = [three(0), *before]
    message = oracle.build_message(None, bytes(60) + three(4) + bytes(100), magic=magic, offset=4)
    assert end_of(tmp_path, [*parts, message[:-50]]) == 0
    assert end_of(tmp_path, [*parts, message]) == sum(map(len, parts)) + len(message)


@pytest.mark.parametrize("wide", [0, 1, 2])
def test_a_segment_is_resumed_before_all_lengths_of_a_table_that_may_turn_out_to_be_right(
    tmp_path: Path, wide: int
) -> None:
    """Whichever of them leads beyond the end of the file."""
    bad = [damaged(three(3 * number)) for number in range(3)]
    bad[wide] = damaged(with_length(bad[wide], 5000))
    parts = [three(0), *(part for one in bad for part in (one, b"\xff" * 9, three(9)))]
    assert end_of(tmp_path, parts) == 0
    bad[wide] = damaged(with_length(bad[wide], 30))
    parts = [three(0), *(part for one in bad for part in (one, b"\xff" * 9, three(9)))]
    assert end_of(tmp_path, parts) == sum(map(len, parts))


def test_an_entry_that_the_file_cuts_has_no_size(tmp_path: Path) -> None:
    """Its length field has to be in the file."""
    write_segment(tmp_path, 0, [three(0), three(3)])
    (segment,) = kbatch.Log(tmp_path).segments
    size = segment.size // 2
    for left in (13, 12, 11, 1):
        *whole, last = committed._entry_sizes(segment, np.array([0, size, 2 * size - left])).tolist()
        assert whole == [size, size]
        assert (last == 0) == (left < 12)


@pytest.mark.usefixtures("_small_tables")
def test_a_batch_that_is_not_complete_yet_is_found_at_every_place_of_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damage is searched in several windows."""
    monkeypatch.setattr(committed, "_HEADER_WINDOW", 100)
    first, inner = three(0), three(4)
    outer = oracle.build_batch([encode_record(value=inner + bytes(400))], base_offset=4)
    for junk in range(1, 420, 7):
        assert end_of(tmp_path, [first, b"\xff" * junk, outer[:-10]]) == len(first), junk


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize("more", [0, 1])
def test_a_length_in_damage_up_to_the_end_of_the_file_has_proved_to_be_wrong(tmp_path: Path, more: int) -> None:
    """One of a byte more may be right once the file is longer."""
    first, inner = three(0), three(4)
    outer = oracle.build_batch([encode_record()], base_offset=4)
    outer = damaged(with_length(outer, len(outer) + len(inner) + more - 12))
    parts = [first, b"\xff" * 70, outer, inner]
    assert end_of(tmp_path, parts) == (len(first) if more else sum(map(len, parts)))


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize(
    ("base", "offset", "may_follow"), [(0, 0, True), (0, 4, True), (10, 10, True), (10, 5, False), (10, 9, False)]
)
def test_a_batch_that_damage_hides_has_an_offset_of_its_segment(
    tmp_path: Path, base: int, offset: int, may_follow: bool
) -> None:
    inner = three(base + 4)
    outer = oracle.build_batch([encode_record(value=inner + bytes(100))], base_offset=offset)
    path = write_segment(tmp_path, base, [])
    path.write_bytes(b"\xff" * 40 + outer[:-50])
    (segment,) = kbatch.Log(tmp_path).segments
    at = 40 + outer.index(inner) + len(inner)
    assert segment_transactions(segment, None, SKIP).end == (0 if may_follow else at)


@pytest.mark.usefixtures("_small_tables")
def test_a_header_after_damage_claims_nothing(tmp_path: Path) -> None:
    """Values may contain headers, of batches that are larger than the file."""
    header = oracle.build_batch([encode_record(value=bytes(5000))], base_offset=4)[:61]
    parts = [three(0), b"\xff" * 70, oracle.build_batch([encode_record(value=header)], base_offset=4)]
    assert end_of(tmp_path, parts) == sum(map(len, parts))


@pytest.mark.parametrize("form", ["junk", "a bad batch"])
def test_markers_after_damage_at_the_beginning_of_a_segment_decide(tmp_path: Path, form: str) -> None:
    path = write_segment(tmp_path, 0, [])
    batches = [
        b"\xff" * 50 if form == "junk" else damaged(data(0)),
        *(txn(1, 7), txn(2, 8), data(3), marker(4, 7, ABORT), data(5), marker(6, 8, COMMIT), txn(7, 9)),
    ]
    path.write_bytes(b"".join(batches))
    found = follow_transactions(kbatch.Log(tmp_path).segments, SKIP)
    assert found.aborted[["producer_id", "first_offset", "last_offset"]].tolist() == [(7, 1, 4)]
    assert [each.producer_id for each in found.open] == [9]
    assert len(found.undecided) == 0


@pytest.mark.usefixtures("_small_tables")
@pytest.mark.parametrize("hurt", [None, 2, 4])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_segment_that_grows_has_the_transactions_of_the_whole_file(
    tmp_path: Path, on_error: Any, hurt: int | None
) -> None:
    """Whatever was known of it, from each batch on and within one."""
    batches = [txn(0, 7), txn(1, 8), marker(2, 7, ABORT), txn(3, 7), marker(4, 8, COMMIT), data(5), marker(6, 7, ABORT)]
    if hurt is not None:
        batches[hurt] = damaged(batches[hurt])
    whole = b"".join(batches)
    options = DecodeOptions(on_error=on_error)
    path = segment_path(tmp_path, 0)
    known = []
    for stop in [*(sum(map(len, batches[:count])) for count in range(len(batches))), len(whole) - 1, len(whole)]:
        path.write_bytes(whole[:stop])
        known.append(segment_transactions(kbatch.Log(tmp_path).segments[0], None, options))
    path.write_bytes(whole)
    segment = kbatch.Log(tmp_path).segments[0]
    for below in (None, 7):
        expected = segment_transactions(segment, below, options)
        assert expected.is_closed == (below is not None)
        assert expected.offsets == (0, 6)
        for since in known:
            found = segment_transactions(segment, below, options, since)
            assert found.events.tolist() == expected.events.tolist()
            assert found.end == expected.end
            assert found.offsets == expected.offsets


def test_a_segment_is_recognized_by_the_batch_at_which_it_is_resumed(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, [])
    empty = segment_transactions(kbatch.Log(tmp_path).segments[0], None, SKIP)
    path.write_bytes(txn(0, 7) + txn(1, 8))
    (segment,) = kbatch.Log(tmp_path).segments
    known = segment_transactions(segment, None, SKIP)
    path.write_bytes(txn(0, 6) + txn(1, 8) + data(2))
    (longer,) = kbatch.Log(tmp_path).segments
    path.write_bytes(txn(0, 7) + txn(1, 6))
    (other,) = kbatch.Log(tmp_path).segments
    assert other.size == segment.size
    assert not known.is_of(other)
    assert empty.is_of(other)
    path.write_bytes(txn(0, 6) + txn(1, 8) + data(2))
    assert known.is_of(longer)


def test_a_segment_whose_index_has_changed_is_followed_from_its_beginning(tmp_path: Path) -> None:
    """An entry may appear for a marker that was lost before: a broker rebuilds the index."""
    path = write_segment(tmp_path, 0, [data(0), txn(1, 7), damaged(marker(2, 7, ABORT)), data(3)])
    before = segment_transactions(kbatch.Log(tmp_path).segments[0], None, SKIP)
    assert before.end == path.stat().st_size
    path.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 1, 2, 3))
    segment = kbatch.Log(tmp_path).segments[0]
    expected = segment_transactions(segment, None, SKIP)
    assert expected.events.tolist() != before.events.tolist()
    assert segment_transactions(segment, None, SKIP, before).events.tolist() == expected.events.tolist()
