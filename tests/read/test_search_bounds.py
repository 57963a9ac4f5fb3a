"""Where the search after damage finds the next entry: at any byte, and with an offset that may follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from oracle import build_batch, build_message, encode_record, with_crc
from tables import lost, offsets_of

import kbatch
from kbatch.format import MIN_ENTRY_SIZE
from kbatch.kernels.search import EntryChecksums
from kbatch.log.reading import MIN_WINDOW
from kbatch.log.store.local_files import LocalFile
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.read.windows import BufferWindows

# Results of `EntryChecksums.find`.
NOT_FOUND, NEEDS_MORE = 0, 2
# The checksum of a batch.
CRC_AT = 17
BATCH = build_batch([encode_record(value=b"v")])


@pytest.mark.parametrize(
    "good",
    [BATCH, build_message(b"k", b"v", offset=1), build_message(b"k", b"v", magic=0, offset=1)],
    ids=["magic 2", "magic 1", "magic 0"],
)
@pytest.mark.parametrize("junk", [b"\xff", b"\0"], ids=["ones", "zeros"])
def test_an_entry_after_damage_is_found_at_every_byte(good: bytes, junk: bytes) -> None:
    """The search advances by one byte, within the blocks that it skips as a whole and between them."""
    for length in [*range(1, 70), 1000, 1001]:
        table = kbatch.decode(good + junk * length + good[:8].replace(b"\x01", b"\x02") + good[8:], on_error="skip")
        assert lost(table) == [(len(good), len(good) + length)]
        assert len(table) == 2


# Entries with a valid checksum, and whether a writer may have made them.
SMALLEST = [encode_record(delta) for delta in range(3)]
POSSIBLE: dict[str, tuple[bytes, bool]] = {
    "as many records as the bytes allow": (build_batch(SMALLEST), True),
    "one record more than the bytes allow": (build_batch(SMALLEST, record_count=4), False),
    "one record more than the bytes and a part of a record allow": (
        build_batch(payload=b"".join(SMALLEST) + bytes(6), record_count=4),
        False,
    ),
    "fewer records than the bytes allow": (build_batch(SMALLEST, record_count=0), True),
    "less than no records": (build_batch(SMALLEST, record_count=-1), False),
    "a record in no bytes": (build_batch([], record_count=1), False),
    "no records": (build_batch([]), True),
    "the last codec": (build_batch(SMALLEST, codec="zstd"), True),
    "less than no records, compressed": (build_batch(SMALLEST, codec="zstd", record_count=-1), False),
    "an unknown codec": (build_batch(SMALLEST, attributes=5), False),
    "an unknown magic": (build_message(None, bytes(100), magic=3, offset=1), False),
}
for _magic in (0, 1):
    POSSIBLE |= {
        f"{name}, magic {_magic}": (build_message(key, value, magic=_magic, offset=1, **fields), is_found)
        for name, key, value, fields, is_found in [
            ("neither key nor value", None, None, {}, True),
            ("key and value", b"k", b"v", {}, True),
            ("key only", b"key", None, {}, True),
            ("an empty key and value", b"", b"", {}, True),
            ("as many bytes after the value as are accepted", b"k", b"v", {"extra": bytes(1024)}, True),
            ("more bytes after the value", b"k", b"v", {"extra": bytes(1025)}, False),
            ("a value of one byte more", b"k", b"v", {"value_length": 2}, False),
            ("a key that takes the bytes of the value's length", b"key", None, {"key_length": 7}, False),
            ("a key of one byte more", b"key", None, {"key_length": 4}, False),
            ("the longest key", bytes(1 << 20), b"v", {}, True),
            ("a longer key", bytes((1 << 20) + 1), b"v", {}, False),
            ("the last codec", None, b"v", {"attributes": 3}, True),
            ("an unknown codec", None, b"v", {"attributes": 4}, False),
        ]
    }


@pytest.mark.parametrize("name", POSSIBLE)
def test_an_entry_that_no_writer_makes_is_not_found_whatever_its_checksum(name: str) -> None:
    """Others are, with records or as a loss of their own; at the end of the source too."""
    entry, is_found = POSSIBLE[name]
    first, junk = BATCH, b"\xff" * 30
    for after in (b"", BATCH):
        table = kbatch.decode(first + junk + entry + after, on_error="skip")
        loss = table.losses[0]
        assert (loss.position, loss.length) == (len(first), len(junk) + (0 if is_found else len(entry)))


@pytest.mark.parametrize(
    "name", [name for name, (entry, is_found) in POSSIBLE.items() if len(entry) < 500 and is_found]
)
def test_an_entry_of_which_only_a_part_is_known_may_be_possible(name: str) -> None:
    """A stream is searched up to any byte of its header, and goes on with more bytes."""
    entry, _ = POSSIBLE[name]
    for cut in range(len(entry)):
        decoder = kbatch.StreamDecoder(on_error="skip")
        decoder.feed(BATCH + b"\xff" * 30 + entry[:cut])
        tables = [decoder.flush(), decoder.flush()]
        decoder.feed(entry[cut:] + BATCH)
        tables += [decoder.flush(), decoder.finish()]
        loss = next(each for table in tables for each in table.losses)
        assert (loss.position, loss.length) == (len(BATCH), 30), cut


@pytest.mark.parametrize("junk", [b"\xff", b"\0"], ids=["ones", "zeros"])
@pytest.mark.parametrize(
    "entry",
    [
        # Bytes of no other position look like a length or a magic.
        build_batch([encode_record(value=b"v")], base_offset=0x7F7F7F7F7F7F7F7F),
        build_batch([encode_record(value=b"v")], base_offset=0, partition_leader_epoch=0),
        build_batch([encode_record(value=bytes(178))], base_offset=0, partition_leader_epoch=0),
        build_message(None, None, magic=0),
        build_message(None, bytes(242), magic=0),
        build_message(None, bytes(65536 - 14), magic=0),
    ],
    ids=["high offset", "low offset", "256 bytes", "shortest message", "message of 256", "message of 65536"],
)
def test_an_entry_is_found_at_every_place_of_a_block_that_looks_empty(entry: bytes, junk: bytes) -> None:
    """Without a good entry before it, any offset may follow."""
    assert (entry[8:12] == bytes([0, 0, 1, 0])) == (entry[10] == 1)
    for length in range(1, 2 * 64 + 2):
        table = kbatch.decode(junk * length + entry, on_error="skip")
        assert (lost(table), len(table)) == ([(0, length)], 1)


def crafted(offset: int) -> bytes:
    """Build a message whose bytes look like the header of another message one byte earlier.

    Its magic, 0, is the last byte of this message's checksum; its length, 32, is the upper part of this one's length.
    """
    for number in range(100_000):
        value = b"%08d" % number
        message = build_message(None, value.ljust(32 * 256 - 22, b"x"), offset=offset, timestamp=0)
        assert message[8:12] == (32 * 256).to_bytes(4, "big")
        if message[15] == 0:
            return message
    raise AssertionError


def test_an_entry_one_byte_after_a_plausible_header_is_found() -> None:
    """A header that is plausible, but whose checksum does not match, is not the end of the search."""
    first, second = build_message(b"k", b"v", offset=1), crafted(256)
    table = kbatch.decode(first + b"\0" * 5 + second, on_error="skip")
    assert lost(table) == [(len(first), len(first) + 5)]
    assert table.records["offset"].tolist() == [1, 256]


@pytest.mark.parametrize(
    ("offset", "found"),
    [(4, False), (5, False), (6, True), (5 + 2**31, True), (6 + 2**31, False)],
)
def test_the_offset_of_a_message_after_damage_exceeds_the_last_one_frm_r12(offset: int, found: bool) -> None:
    """The checksum of a message does not cover its offset: it must be higher, by at most the range of a segment."""
    first, second = build_message(b"k", b"v", offset=5), build_message(b"k", b"w", offset=offset)
    table = kbatch.decode(first + b"\xff" * 20 + second, on_error="skip")
    assert len(table) == 1 + found
    assert lost(table) == [(len(first), len(first) + 20 + (0 if found else len(second)))]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("before", [[9], [5, 9], [5, 9, 9], list(range(10))])
@pytest.mark.parametrize(("offset", "found"), [(7, False), (9, False), (10, True)])
def test_the_offset_after_damage_exceeds_that_of_the_last_of_several_messages_frm_r12(
    offset: int, found: bool, before: list[int], magic: int
) -> None:
    head = b"".join(build_message(b"k", b"v", magic=magic, offset=each) for each in before)
    after = build_message(b"k", b"w", magic=magic, offset=offset)
    data = head + b"\xff" * 20 + after + build_message(b"k", b"x", magic=magic, offset=11)
    expected = [*before, *([offset] if found else []), 11]
    for tables in [kbatch.decode(data, on_error="skip")], kbatch.decode_stream([data], on_error="skip", max_bytes=500):
        assert [each for table in tables for each in offsets_of(table)] == expected


def test_a_search_up_to_a_known_end_needs_no_more_bytes() -> None:
    """An entry may begin at the last place before `stop`; the bytes after it are needed only for later places."""
    data = np.full(100, 0xFF, np.uint8)
    options: dict[str, Any] = {"max_size": 1000, "max_records": 1000, "source_end": None, "reached": None}
    last = len(data) - MIN_ENTRY_SIZE + 1
    assert EntryChecksums().find(data, 0, 0, last, **options).status == NOT_FOUND
    assert EntryChecksums().find(data, 0, 0, last + 1, **options).status == NEEDS_MORE
    assert EntryChecksums().find(data, 0, 0, last + 1, **options | {"source_end": 100}).status == NOT_FOUND


@pytest.mark.parametrize(
    ("origin", "lowest", "position", "size"),
    [
        (10, 9, 20, len(BATCH)),
        (10, 21, 20, len(BATCH)),
        (10, 20, 20, MIN_ENTRY_SIZE - 1),
        (10, 20, 20, len(BATCH) + 1),
        (10, 20, 20, 60),
    ],
)
def test_the_kernel_refuses_entries_outside_of_the_window(origin: int, lowest: int, position: int, size: int) -> None:
    window = np.frombuffer(bytes(10) + BATCH, np.uint8)
    assert EntryChecksums().holds(window, 10, 20, len(BATCH), lowest=20)
    # Only entries of magic 2 have a header of this size.
    for magic in (0, 1, 3):
        unknown = np.frombuffer(bytes(16) + bytes([magic]), np.uint8)
        assert not EntryChecksums().holds(unknown, 10, 10, MIN_ENTRY_SIZE, lowest=10)
    with pytest.raises(IndexError, match="out of range"):
        EntryChecksums().holds(window, origin, position, size, lowest=lowest)


@pytest.mark.parametrize("crc", ["verify", "skip"])
@pytest.mark.parametrize("start_offset", [None, 5])
@pytest.mark.parametrize("route", ["buffer", "stream", "log"])
def test_entries_inside_of_a_wrong_length_need_a_good_checksum(
    route: str, start_offset: int | None, crc: Any, tmp_path: Path
) -> None:
    """Also with ``crc="skip"``. The last entry is larger than the others."""

    def good(offset: int, size: int = 1) -> bytes:
        return build_batch([encode_record(value=b"v" * size)], base_offset=offset)

    bad = bytearray(good(3))
    bad[CRC_AT] ^= 1
    inside = good(2) + bytes(bad) + good(4, 500)
    first = bytearray(good(1))
    first[8:12] = (len(first) - 12 + len(inside) + 10).to_bytes(4, "big")
    data = good(0) + bytes(first) + inside + good(5) + good(6)
    options: dict[str, Any] = {"crc": crc, "on_error": "skip", "start_offset": start_offset}
    if route == "buffer":
        tables = [kbatch.decode(data, **options)]
    elif route == "stream":
        tables = list(kbatch.decode_stream([data], **options))
    else:
        (tmp_path / "t-0").mkdir()
        (tmp_path / "t-0" / f"{0:020}.log").write_bytes(data)
        tables = list(kbatch.Log(tmp_path / "t-0").tables(**options))
    offsets = [offset for table in tables for offset in table.records["offset"].tolist()]
    assert offsets == [offset for offset in (0, 2, 4, 5, 6) if offset >= (start_offset or 0)]
    # A bad batch is lost wherever its offsets are, and good ones outside of the requested offsets have no row.
    at = len(good(0)) + len(first) + len(good(2))
    assert [each for table in tables for each in lost(table)] == [
        (len(good(0)), len(good(0)) + len(first)),
        (at, at + len(bad)),
    ]
    rows = [offset for table in tables for offset in table.batches["base_offset"].tolist()]
    assert [offset for offset in rows if offset not in (1, 3)] == offsets


@pytest.mark.parametrize("tail", [b"", BATCH])
def test_a_batch_inside_of_a_bad_one_whose_length_is_right_is_not_returned(tail: bytes) -> None:
    """The length is right if the source ends there, or a good batch follows."""
    outer = bytearray(build_batch([encode_record(value=BATCH)]))
    outer[-1] ^= 1
    table = kbatch.decode(bytes(outer) + tail, on_error="skip")
    assert len(table) == (1 if tail else 0)
    assert lost(table) == [(0, len(outer))]


class ExactWindows(BufferWindows):
    """A source that gives the damage engine the requested bytes only; all bytes after them are inverted."""

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        data = super().window(0, self.end).copy()
        if stop <= start:
            # The window of a table.
            return data[start:]
        data[stop:] ^= 0xFF
        return data[start:stop]


@pytest.mark.parametrize("sizes", [(1, 500), (500, 1), (500,)])
def test_the_engine_requests_all_bytes_of_the_entries_that_it_verifies(sizes: tuple[int, ...]) -> None:
    """Entries inside of a wrong length, where the last one may be larger or smaller than the others."""
    inside = b"".join(build_batch([encode_record(value=b"v" * size)], base_offset=i) for i, size in enumerate(sizes, 2))
    first = bytearray(build_batch([encode_record(value=b"v")], base_offset=1))
    first[8:12] = (len(first) - 12 + len(inside) - 10).to_bytes(4, "big")
    data = BATCH + bytes(first) + inside
    table = BatchReader(DecodeOptions(on_error="skip")).read(ExactWindows(np.frombuffer(data, np.uint8)))
    assert offsets_of(table) == [0, *range(2, 2 + len(sizes))]
    assert lost(table) == [(len(BATCH), len(BATCH) + len(first))]


def test_an_entry_that_ends_with_the_file_is_found_if_it_is_larger_than_a_window(tmp_path: Path) -> None:
    """The search needs the bytes up to the end of the file, and no more."""
    last = build_batch([encode_record(value=b"v" * (MIN_WINDOW + 100))], base_offset=2)
    (tmp_path / f"{0:020}.log").write_bytes(BATCH + b"\xff" * 20 + last)
    tables = list(kbatch.Log(tmp_path).tables(on_error="skip", max_bytes=MIN_WINDOW))
    assert [offset for table in tables for offset in offsets_of(table)] == [0, 2]
    assert [each for table in tables for each in lost(table)] == [(len(BATCH), len(BATCH) + 20)]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_stream_loses_a_message_with_a_wrong_length_at_once(magic: int) -> None:
    """The lengths of key and value and the checksum show where the message ends, so no byte after it is needed."""
    message = build_message(b"k", b"v", magic=magic, length=10)
    decoder = kbatch.StreamDecoder(on_error="skip")
    decoder.feed(message)
    assert lost(decoder.flush()) == [(0, len(message))]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of all reads of files."""
    sizes: list[int] = []

    def read(file: LocalFile, start: int, stop: int, capacity: int = 0) -> npt.NDArray[np.uint8]:
        sizes.append(stop - start)
        return original(file, start, stop, capacity)

    original = LocalFile.window
    monkeypatch.setattr(LocalFile, "window", read)
    return sizes


@pytest.mark.parametrize("distance", [0, 8, 17])
@pytest.mark.parametrize("size", [2 * MIN_WINDOW, 2_000_000])
def test_a_search_reads_a_file_in_large_parts_wherever_a_wrong_length_leads(
    size: int, distance: int, tmp_path: Path, reads: list[int]
) -> None:
    """The bytes after a bad batch may be in another window than the batch."""
    max_bytes = 8 * MIN_WINDOW
    window = max_bytes * 3 // 8 // 2
    bad = bytearray(BATCH + b"\xff" * (size - len(BATCH)))
    bad[8:12] = (window - distance - len(BATCH) - 12).to_bytes(4, "big")
    (tmp_path / f"{0:020}.log").write_bytes(BATCH + bad + BATCH.replace(bytes(8), b"\0" * 7 + b"\5", 1))
    tables = list(kbatch.Log(tmp_path).tables(on_error="skip", max_bytes=max_bytes))
    assert [offset for table in tables for offset in offsets_of(table)] == [0, 5]
    assert len(reads) <= 50
    assert sum(reads) <= 4 * (size + window)


def test_wrong_lengths_that_lead_all_over_a_file_do_not_multiply_its_reads(tmp_path: Path, reads: list[int]) -> None:
    data = bytearray()
    count = 5000
    for number in range(count):
        bad = bytearray(BATCH)
        bad[8:12] = (number * 7_919_000 % (2 * count * len(BATCH)) + 60).to_bytes(4, "big")
        bad[30] ^= 1
        data += (2 * number).to_bytes(8, "big") + BATCH[8:] + bad
    (tmp_path / f"{0:020}.log").write_bytes(data)
    tables = list(kbatch.Log(tmp_path).tables(on_error="skip", max_bytes=MIN_WINDOW))
    assert sum(map(len, tables)) == count
    assert sum(reads) <= 20 * len(data)


def test_entries_outside_of_a_window_are_an_error() -> None:
    data = np.frombuffer(BATCH, np.uint8)
    batches = kbatch.scan(BATCH)
    checksums = EntryChecksums()
    assert checksums.first_bad(data, 0, batches, 0, 1)[0] == 1
    for window, origin in ((data[:-1], 0), (data, 1), (data, -1), (data[:0], 0)):
        with pytest.raises(IndexError, match="entry out of range"):
            checksums.first_bad(window, origin, batches, 0, 1)


@pytest.mark.parametrize("bad", [1, 2, 3])
@pytest.mark.parametrize(("good", "after"), [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("chunk", [None, 7])
def test_bad_batches_whose_lengths_lead_to_the_end_are_one_loss(
    chunk: int | None, good: int, after: int, bad: int
) -> None:
    """The damage ends at the end of the source or at the next good batch, and reading goes on there."""
    batches = [build_batch([encode_record(value=b"v")], base_offset=offset) for offset in range(good + bad + after)]
    for number in range(good, good + bad):
        batches[number] = batches[number][:-1] + bytes([batches[number][-1] ^ 2])
    data = b"".join(batches)
    chunks = [data] if chunk is None else [data[at : at + chunk] for at in range(0, len(data), chunk)]
    tables = list(kbatch.decode_stream(chunks, on_error="skip"))
    size = len(batches[0])
    assert [each for table in tables for each in lost(table)] == [(good * size, (good + bad) * size)]
    assert len([loss for table in tables for loss in table.losses]) == 1
    assert [offset for table in tables for offset in offsets_of(table)] == [
        offset for offset in range(len(batches)) if not good <= offset < good + bad
    ]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_lower_limit_does_not_hide_a_batch_from_the_search(codec: str) -> None:
    """A batch with more records than a payload within the limit: it is returned, or its loss names the limit."""
    first = build_batch([encode_record(value=b"v")])
    second = build_batch([encode_record(delta) for delta in range(200)], base_offset=1, codec=codec)
    data = first + b"\xff" * 30 + second
    table = kbatch.decode(data, on_error="skip", limits=kbatch.Limits(max_decompressed_bytes=700))
    found = [(loss.position, loss.length) for loss in table.losses]
    if codec == "none":
        assert found == [(len(first), 30)]
        assert len(table) == 201
    else:
        assert found == [(len(first), 30), (len(first) + 30, len(second))]
        assert "max_decompressed_bytes" in table.losses[1].reason


@pytest.mark.parametrize(("count", "is_found"), [(1 << 24, True), ((1 << 31) - 1, False)])
def test_a_compressed_batch_with_more_records_than_the_largest_payload_is_not_found(count: int, is_found: bool) -> None:
    """With a possible count, its loss is one of its own."""
    first = build_batch([encode_record(value=b"v")])
    second = build_batch([encode_record()], base_offset=1, codec="gzip", record_count=count)
    table = kbatch.decode(first + b"\xff" * 30 + second, on_error="skip")
    assert [(loss.position, loss.length) for loss in table.losses] == (
        [(len(first), 30), (len(first) + 30, len(second))] if is_found else [(len(first), 30 + len(second))]
    )


@pytest.mark.parametrize("crc", ["skip", "mark"])
def test_any_header_after_a_bad_batch_shows_that_its_length_is_right_unless_checksums_are_verified(crc: Any) -> None:
    """Also that of a batch with a wrong checksum, which a search would not find."""
    bad = with_crc(FAULTS["an invalid record"], 1)
    unverified = with_crc(build_batch([encode_record(value=b"v")], base_offset=1), 1)
    table = kbatch.decode(BATCH + bad + unverified + b"\xff" * 20, crc=crc, on_error="skip")
    assert table.records["offset"].tolist() == [0, 1]
    assert lost(table)[0] == (len(BATCH), len(BATCH) + len(bad))
    verified = kbatch.decode(BATCH + bad + unverified + b"\xff" * 20, on_error="skip")
    assert lost(verified) == [(len(BATCH), len(BATCH) + len(bad) + len(unverified) + 20)]


FAULTS = {
    "too many records": build_batch([encode_record()], record_count=2),
    "an invalid record": build_batch([encode_record(length=1)]),
    "an invalid payload": build_batch(codec="gzip", payload=b"no gzip", record_count=1),
    "an unknown codec": build_batch([encode_record()], attributes=7),
    "an invalid message": build_message(b"k", b"v", magic=1, key_length=1000),
}


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("name", FAULTS)
def test_the_length_of_a_bad_batch_with_a_good_checksum_is_right(name: str, chunk: int | None) -> None:
    """So the damage after it is another one. The checksum covers the end of the batch."""
    good, bad = build_batch([encode_record(value=b"v")]), FAULTS[name]
    data = good + bad + b"\xff" * 20 + good
    chunks = [data] if chunk is None else [data[at : at + chunk] for at in range(0, len(data), chunk)]
    tables = list(kbatch.decode_stream(chunks, on_error="skip"))
    assert [(loss.position, loss.length) for table in tables for loss in table.losses] == [
        (len(good), len(bad)),
        (len(good) + len(bad), 20),
    ]
    assert sum(map(len, tables)) == 2


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("before", [b"", build_message(b"k", b"v", offset=0)])
def test_a_message_whose_length_reaches_beyond_the_source_ends_where_its_fields_show(before: bytes, magic: int) -> None:
    """It is damage, and not an incomplete end."""
    bad = bytearray(build_message(b"k", b"v", magic=magic, offset=1))
    bad[8:12] = (1000).to_bytes(4, "big")
    after = build_message(b"k", b"w", magic=magic, offset=2)
    table = kbatch.decode(before + bytes(bad) + after, on_error="skip")
    assert lost(table) == [(len(before), len(before) + len(bad))]
    assert table.records["offset"].tolist() == [0, 2][not before :]
    # At the end too, if the checksum is good for its fields; otherwise the last message is incomplete.
    assert lost(kbatch.decode(before + bytes(bad), on_error="skip")) == [(len(before), len(before) + len(bad))]
    bad[-1] ^= 1
    table = kbatch.decode(before + bytes(bad), on_error="skip")
    assert (table.losses, table.consumed) == ([], len(before))


@pytest.mark.parametrize("size", [1, 30_000])
@pytest.mark.parametrize("count", [3, 70])
def test_lengths_lead_through_any_number_of_bad_batches_of_any_size(tmp_path: Path, count: int, size: int) -> None:
    """Also if they need more than a window, or if headers are kept."""
    bad = [build_batch([encode_record(value=b"v" * size)], base_offset=offset) for offset in range(count)]
    data = b"".join(each[:-1] + bytes([each[-1] ^ 2]) for each in bad)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(data)
    for tables in [kbatch.decode(data, on_error="skip")], kbatch.Log(tmp_path / "t-0").tables(on_error="skip"):
        assert [each for table in tables for each in lost(table)] == [(0, len(data))]
    windows = BufferWindows(np.frombuffer(data, np.uint8))
    headers = BatchReader(DecodeOptions(on_error="skip", framing_only=True)).read(windows).batches
    assert headers["base_offset"].tolist() == list(range(count))


@pytest.mark.parametrize("value", [None, b"v"])
def test_a_message_with_a_wrong_magic_ends_where_another_message_follows_its_length(value: bytes | None) -> None:
    """Whatever offset that one has; a search accepts only an offset that may follow (FRM-R12)."""
    first = build_message(b"k", b"v", magic=0, offset=5)
    bad = bytearray(build_message(None, value, magic=0, offset=6))
    bad[16] = 9
    table = kbatch.decode(first + bytes(bad) + build_message(b"k", b"w", magic=0, offset=3), on_error="skip")
    assert table.records["offset"].tolist() == [5, 3]
    assert lost(table) == [(len(first), len(first) + len(bad))]


@pytest.mark.parametrize("crc", ["verify", "skip"])
def test_a_batch_without_records_after_damage_is_found(crc: Any) -> None:
    """Compaction leaves them. It has the size of a header."""
    good, empty = build_batch([encode_record(value=b"v")]), build_batch([], base_offset=1)
    data = good + b"\xff" * 30 + empty + b"\xff" * 30 + good
    table = kbatch.decode(data, crc=crc, on_error="skip")
    assert lost(table) == [(len(good), len(good) + 30), (len(good) + 30 + len(empty), len(data) - len(good))]
    assert table.batches["record_count"].tolist() == [1, 0, 1]
