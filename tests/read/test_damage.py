"""Damage loses bytes in proportion to the damage, and takes time and memory in proportion to the input."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from log_batches import write_segment
from tables import assert_accounted, lost, offsets_of

import kbatch
from kbatch.batches.framing import scan_part
from kbatch.kernels.buffers import pool_stats, trim
from kbatch.kernels.search import EntryChecksums
from kbatch.log.store.local_files import bytes_read

GOOD = oracle.build_batch([oracle.encode_record(value=b"v")])
BAD_CRC = oracle.with_crc(GOOD, 1)
INVALID = oracle.build_batch(payload=b"\x7f" * 9, record_count=1)
NO_GZIP = oracle.build_batch(payload=b"no gzip, this", record_count=1, attributes=1)
BAD_GZIP = oracle.build_batch(payload=gzip.compress(b"\x7f" * 9), record_count=1, attributes=1)


@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
@pytest.mark.parametrize(
    "unit",
    [
        [GOOD, BAD_CRC],
        [BAD_CRC, BAD_CRC, GOOD],
        [GOOD, bytes(73)],
        [oracle.with_crc(INVALID, 1), oracle.with_crc(INVALID, 1), GOOD],
        [INVALID],
        [NO_GZIP],
        [GOOD, BAD_GZIP],
        [BAD_GZIP],
    ],
    ids=[
        "every second",
        "two of every three",
        "zeros after each good batch",
        "invalid",
        "all invalid",
        "payload is not gzip",
        "invalid record in gzip",
        "every record invalid in gzip",
    ],
)
def test_bad_batches_take_linear_time(unit: list[bytes], crc: str) -> None:
    """The work on the bytes after a bad batch must not be repeated for each bad batch."""
    data = b"".join(unit) * (400_000 // len(b"".join(unit)))
    before = pool_stats().live_bytes
    began = time.process_time()
    table = kbatch.decode(data, crc=crc, on_error="skip")  # type: ignore[arg-type]
    assert time.process_time() - began < 5
    assert pool_stats().live_bytes - before < 20 * len(data) + (8 << 20)
    assert table.consumed == len(data)
    good = data.count(GOOD)
    assert len(table) >= good
    if crc == "verify":
        assert len(table) == good
        assert_accounted(table, len(data))


def test_crafted_headers_do_not_end_the_search_for_smaller_batches() -> None:
    """Headers that declare megabytes exhaust the length budget of the search; smaller batches are still found."""
    fake = bytearray(GOOD[:61])
    fake[8:12] = (3_000_000).to_bytes(4, "big")
    data = bytes(12) + bytes(fake) * 60 + GOOD * 50_000
    table = kbatch.decode(data, on_error="skip")
    assert len(table) == 50_000
    assert lost(table) == [(0, 12 + 60 * 61)]


def huge_header(size: int) -> bytes:
    """Build a header that declares a batch of `size` bytes, without the bytes after it."""
    header = bytearray(GOOD[:61])
    header[8:12] = (size - 12).to_bytes(4, "big")
    return bytes(header)


@pytest.mark.parametrize("crc", ["verify", "skip"])
@pytest.mark.parametrize("kind", ["magic 2", "magic 0"])
def test_overlong_lengths_between_good_batches_take_linear_time(kind: str, crc: str) -> None:
    """Each header declares half of the input, and a good batch follows; the declared bytes are not summed each time."""
    seconds = []
    for size in (1 << 18, 1 << 20):
        wrong = huge_header(size) if kind == "magic 2" else oracle.build_message(None, b"", magic=0, length=size, crc=5)
        data = (GOOD + wrong) * (2 * size // len(GOOD + wrong))
        began = time.process_time()
        table = kbatch.decode(data, crc=crc, on_error="skip")  # type: ignore[arg-type]
        seconds.append(time.process_time() - began)
    # The time of sums would grow with the square.
    assert seconds[1] < 7 * seconds[0]
    if crc == "verify":
        assert len(table) == data.count(GOOD)
        assert_accounted(table, len(data))
        # The last header declares more bytes than the input has: it is an incomplete batch.
        assert sum(loss.length for loss in table.losses) == table.consumed - len(GOOD) * len(table)


@pytest.mark.parametrize("unit", ["good between", "text between"])
@pytest.mark.parametrize("max_bytes", [1, 64 << 10, 64 << 20])
def test_overlong_lengths_in_a_log_take_linear_time(tmp_path: Path, max_bytes: int, unit: str) -> None:
    """Each length needs a larger window of the file, although only a small part of the window is used."""
    between, size, total = (GOOD, 1 << 20, 1 << 20) if unit == "good between" else (b"text" * 1000, 8 << 20, 24 << 20)
    data = (between + huge_header(size)) * (total // (len(between) + 61))
    path = write_segment(tmp_path / "t-0", 0, [], tail=data + GOOD)
    write_segment(tmp_path / "t-0", 1000, [])
    began = time.process_time()
    count = lost_bytes = 0
    for table in kbatch.Log(tmp_path / "t-0").tables(on_error="skip", max_bytes=max_bytes):
        count += len(table)
        lost_bytes += sum(loss.length for loss in table.losses)
    assert time.process_time() - began < 6
    assert count == data.count(GOOD) + 1
    assert lost_bytes == path.stat().st_size - count * len(GOOD)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("max_bytes", [64 << 10, 64 << 20])
@pytest.mark.parametrize(
    "unit", [GOOD + b"\xff" * 30, GOOD + BAD_CRC, GOOD + huge_header(100_000), GOOD + huge_header(1 << 20)]
)
def test_damaged_bytes_of_a_log_are_read_from_disk_a_few_times_at_most(
    tmp_path: Path, unit: bytes, max_bytes: int, live: bool
) -> None:
    """The search uses the window that is already in memory, for a live file and for a mapped one."""
    for count in (1500, 6000):
        directory = tmp_path / f"{count}-0"
        path = write_segment(directory, 0, [], tail=unit * count + GOOD)
        if not live:
            write_segment(directory, 1 << 40, [])
        before = bytes_read()
        tables = kbatch.Log(directory).tables(on_error="skip", max_bytes=max_bytes)
        assert sum(map(len, tables)) == count + 1
        assert bytes_read() - before < 7 * path.stat().st_size


def outcome(tables: Iterator[kbatch.RecordTable]) -> tuple[list[int], list[kbatch.Loss], type[Exception] | None]:
    """Return the offsets and losses of the tables, and the class of the error raised after the last table."""
    offsets, losses, error = [], [], None
    try:
        for table in tables:
            offsets += offsets_of(table)
            losses += table.losses
    except kbatch.KbatchError as caught:
        error = type(caught)
    return offsets, losses, error


def fed(data: bytes, size: int, **options: Any) -> Iterator[kbatch.RecordTable]:
    decoder = kbatch.StreamDecoder(**options)
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        # The decoder returns the table before the damage, then raises the error.
        yield decoder.flush()
        yield decoder.flush()
    yield decoder.finish()


@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
@pytest.mark.parametrize("crc", ["verify", "skip"])
@pytest.mark.parametrize(
    "kind", ["forged", "forged, default limit", "complete", "complete and last", "truncated and last"]
)
def test_a_batch_above_the_limit_is_the_same_damage_for_every_kind_of_input(
    tmp_path: Path, kind: str, crc: str, on_error: str
) -> None:
    """FRM-R6, FRM-R14: this holds even if the source ends inside the batch; only a last batch may be incomplete."""
    first, last = oracle.three(0), oracle.three(20)
    large = oracle.build_batch([oracle.encode_record(value=bytes(500))], base_offset=10)
    forged = oracle.three(10)
    forged = forged[:8] + b"\x40" + forged[9:]
    data = {
        "forged": first + forged + last,
        "forged, default limit": first + forged + last,
        "complete": first + large + last,
        "complete and last": first + large,
        "truncated and last": first + large[:-100],
    }[kind]
    limits = kbatch.Limits() if "default" in kind else kbatch.Limits(max_batch_bytes=200)
    options: dict[str, Any] = {"on_error": on_error, "crc": crc, "limits": limits}
    paths = [write_segment(tmp_path / name, 0, [], tail=data) for name in ("live-0", "closed-0")]
    write_segment(tmp_path / "closed-0", 23, [])
    length = data.find(last) - len(first) if on_error == "skip" and last in data else len(data) - len(first)
    offsets = [0, 1, 2, 20, 21, 22] if on_error == "skip" and last in data else [0, 1, 2]
    routes = {
        "file": kbatch.Log(paths[1].parent).tables(**options),
        "small tables": kbatch.Log(paths[1].parent).tables(max_bytes=1, **options),
        "stream": kbatch.decode_stream([data], **options),
        "chunks": fed(data, 50, **options),
        "one chunk": fed(data, len(data), **options),
        "live file": kbatch.Log(paths[0].parent).tables(**options),
        "buffer": (kbatch.decode(part, **options) for part in [data]),
    }
    for name, tables in routes.items():
        found, losses, error = outcome(tables)
        if kind == "truncated and last" and name in ("live file", "buffer"):
            assert (found, losses, error) == (offsets, [], None)
        elif on_error == "raise":
            # One table cannot be returned before the error is raised.
            assert (found, losses, error) == ([] if name == "buffer" else offsets, [], kbatch.LimitExceededError), name
        else:
            assert (found, [loss[:2] for loss in losses], error) == (offsets, [(len(first), length)], None), name
            assert f"above the limit of {limits.max_batch_bytes or 256 << 20};" in losses[0].reason


@pytest.mark.parametrize("crc", ["mark", "skip"])
@pytest.mark.parametrize("max_bytes", [64 << 10, 256 << 10, 64 << 20])
def test_bad_batches_are_skipped_by_their_length_whatever_the_window(tmp_path: Path, crc: str, max_bytes: int) -> None:
    """If bad checksums are accepted, an invalid batch among batches with bad checksums loses only itself."""
    batches = [oracle.with_crc(oracle.three(10 * i), 1) for i in range(3000)]
    batches[3] = oracle.with_crc(oracle.build_batch(payload=b"\x7f" * 30, record_count=1, base_offset=30), 1)
    path = write_segment(tmp_path / "t-0", 0, batches)
    table = kbatch.decode(path.read_bytes(), crc=crc, on_error="skip")  # type: ignore[arg-type]
    assert len(table) == 3 * 2999
    tables = list(kbatch.Log(path).tables(crc=crc, on_error="skip", max_bytes=max_bytes))  # type: ignore[arg-type]
    assert [offset for each in tables for offset in offsets_of(each)] == offsets_of(table)
    assert [loss[:4] for each in tables for loss in each.losses] == [loss[:4] for loss in table.losses]


def test_a_damaged_length_in_a_live_log_is_an_error_not_the_end_of_the_log(tmp_path: Path) -> None:
    """The batch looks like an incomplete last one, but complete batches follow it: this is an error or a loss."""
    batches = [oracle.three(10 * i) for i in range(10)]
    damaged = bytearray(batches[4])
    damaged[9] ^= 0x40
    size = len(batches[0])
    path = write_segment(tmp_path / "t-0", 0, [*batches[:4], bytes(damaged), *batches[5:]])
    log = kbatch.Log(path)
    with pytest.raises(kbatch.CorruptBatchError, match="beyond complete batches") as caught:
        list(log.tables())
    assert (caught.value.source, caught.value.position) == (str(path), 4 * size)
    for on_error, count, length in (("stop", 4, 6 * size), ("skip", 9, size)):
        tables = list(log.tables(on_error=on_error))  # type: ignore[arg-type]
        assert sum(map(len, tables)) == 3 * count
        assert [(loss.position, loss.length) for each in tables for loss in each.losses] == [(4 * size, length)]


def test_record_counts_of_compressed_batches_do_not_allocate_memory() -> None:
    """CNT-R7: forged record counts must not prevent the good batch after them from being read."""
    forged = oracle.build_batch(payload=bytes(1000), record_count=2**31 - 1, attributes=4)
    # A reused pool block counts with its full size, even if the request is smaller.
    trim()
    before = pool_stats().live_bytes
    table = kbatch.decode(forged * 2000 + GOOD, on_error="skip")
    assert len(table) == 1
    assert pool_stats().live_bytes - before < 16 * len(forged) * 2000


def test_offset_bounds_work_at_the_limits_of_int64() -> None:
    """FRM-R12: offsets wrap, and the largest offset is inside the default bounds."""
    top = 2**63 - 1
    data = oracle.build_batch([oracle.encode_record(value=b"v")], base_offset=top)
    assert offsets_of(kbatch.decode(data, start_offset=0)) == [top]
    assert offsets_of(kbatch.decode(data, start_offset=0, stop_offset=2**70)) == [top]
    assert offsets_of(kbatch.decode(data, stop_offset=top)) == []
    wrapping = oracle.three(2**63 - 2)
    assert offsets_of(kbatch.decode(wrapping, start_offset=0)) == [2**63 - 2, 2**63 - 1]
    for wrong in ("1", 1.5):
        with pytest.raises(TypeError, match="must be an integer"):
            kbatch.decode(data, start_offset=wrong)  # type: ignore[arg-type]


def test_a_table_is_indexed_by_slices_row_numbers_and_masks() -> None:
    table = kbatch.decode(oracle.three(10) + oracle.three(20))
    assert offsets_of(table[[-3, -1]]) == [20, 22]
    assert offsets_of(table[np.array([True, False] * 3)]) == [10, 12, 21]
    assert table[[-3, -1]].batches["first_record"].tolist() == [0, 0]
    assert not table[[0]].records.flags.writeable
    assert len(table[[]]) == 0
    with pytest.raises(ValueError, match="ascend"):
        table[[-1, 0]]
    for wrong in (b"offset", None, 3, (slice(1), slice(1))):
        with pytest.raises(TypeError, match="a table takes a column's name, a slice"):
            table[wrong]  # type: ignore[index]
    with pytest.raises(TypeError, match="row numbers or a mask"):
        table[[[0, 1]]]


# -- junk before an entry


def test_wrong_lengths_hide_no_valid_entry_after_them() -> None:
    """Headers that declare megabytes precede batches of 1 MiB: every kind of input returns all valid batches."""
    large = oracle.build_batch([oracle.encode_record(value=bytes(1 << 20))], base_offset=10)
    data = GOOD + b"\xff" * 20 + huge_header(8 << 20) * 30 + huge_header(2 << 20) * 130 + (GOOD + large) * 8 + GOOD
    for table in (kbatch.decode(data, on_error="skip"), *streamed_at_once(data)):
        assert len(table) == 18
        assert [loss[:2] for loss in table.losses] == [(len(GOOD), 20 + 160 * 61)]


def streamed_at_once(data: bytes) -> list[kbatch.RecordTable]:
    decoder = kbatch.StreamDecoder(on_error="skip")
    decoder.feed(data)
    return [decoder.finish()]


@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
def test_the_search_after_damage_always_verifies_checksums(crc: str) -> None:
    """FRM-R13: after damage, only the checksum distinguishes a batch from bytes that look like one."""
    data = b"\xff" * 20 + BAD_CRC + b"\xff" * 20 + GOOD
    table = kbatch.decode(data, crc=crc, on_error="skip")  # type: ignore[arg-type]
    assert lost(table) == [(0, len(data) - len(GOOD))]
    assert len(table) == 1


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("cut", [1, 20, 61, 100, 5000])
def test_a_message_in_damage_with_an_earlier_offset_is_not_an_entry_however_the_stream_is_chunked(
    cut: int, magic: int
) -> None:
    """LEG-R26: an uncompressed message must have an offset after the last good batch, even of an earlier flush."""
    first, last = oracle.three(200), oracle.three(300)
    old = oracle.build_message(None, b"old", magic=magic, offset=100)
    data = first + b"\xff" * 40 + old + b"\xff" * 40 + last
    whole = kbatch.decode(data, on_error="skip")
    assert offsets_of(whole) == [200, 201, 202, 300, 301, 302]
    for at in range(len(data)):
        decoder = kbatch.StreamDecoder(on_error="skip")
        offsets, losses = [], []
        for start, stop in ((0, at), (at, min(at + cut, len(data))), (min(at + cut, len(data)), len(data))):
            decoder.feed(data[start:stop])
            table = decoder.flush()
            offsets += offsets_of(table)
            losses += table.losses
        table = decoder.finish()
        assert offsets + offsets_of(table) == offsets_of(whole)
        assert losses + table.losses == whole.losses


# -- message sets

MIXED = (Path(__file__).parents[1] / "golden" / "logs" / "mixed-0" / "00000000000000000000.log").read_bytes()
MIXED_ROWS = scan_part(np.frombuffer(MIXED, np.uint8)).batches
STARTS = MIXED_ROWS["position"].tolist()


def found(data: bytes, position: int = 0, *, final: bool = True, max_size: int = 256 << 20) -> tuple[int, bool]:
    status, at, _ = EntryChecksums().find(
        np.frombuffer(data, np.uint8),
        0,
        position,
        len(data),
        max_size=max_size,
        max_records=max_size // 7,
        source_end=len(data) if final else None,
        reached=None,
    )
    return at, status == 1


def all_found(data: bytes) -> list[int]:
    """Return the positions of all entries: search, advance by the length of the entry found, and repeat."""
    positions = []
    position, more = found(data)
    while more:
        positions.append(position)
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        position, more = found(data, position + size)
    assert position == len(data)
    return positions


def test_a_search_from_any_byte_finds_the_next_entry_of_any_magic() -> None:
    """FRM-R13: the search finds the entry that begins at its start position, or the next one."""
    assert set(MIXED_ROWS["magic"].tolist()) == {0, 1, 2}
    assert all_found(MIXED) == STARTS
    for position in range(len(MIXED)):
        following = next((start for start in STARTS if start >= position), None)
        assert found(MIXED, position) == ((len(MIXED), False) if following is None else (following, True))


@pytest.mark.parametrize("junk", [b"", b"\0", bytes(300), b"\xff" * 31, b"\x02" * 100, b"some text, " * 20])
def test_one_damaged_entry_loses_no_other_entry(junk: bytes) -> None:
    """Each entry in turn is damaged in its header, truncated, or preceded by junk; all other entries are found."""
    for bad, start in enumerate(STARTS):
        others = [*STARTS[:bad], *STARTS[bad + 1 :]]
        size = int(MIXED_ROWS["size"][bad])
        for at in (9, 11, 16, 17, 21, size - 1):
            data = bytearray(MIXED)
            data[start + at] ^= 0x21
            assert all_found(bytes(data)) == others, (bad, at)
        # The first half of the entry is missing.
        half = size // 2
        cut = MIXED[:start] + junk + MIXED[start + half :]
        moved = len(junk) - half
        assert all_found(cut) == [other + moved if other > start else other for other in others], bad
        table = kbatch.decode(cut, on_error="skip")
        assert_accounted(table, len(cut))
        # The only entries lost after the damage have a magic that the search does not look for.
        positions = [start, *(other + moved if other > start else other for other in others)]
        assert set(table.batches["position"].tolist()) <= set(positions)
        good = [STARTS[i] + (moved if i > bad else 0) for i in np.flatnonzero(MIXED_ROWS["magic"] == 2) if i != bad]
        status = table.batches["status"] == kbatch.BatchStatus.OK
        assert set(table.batches["position"][status & (table.batches["magic"] == 2)].tolist()) == set(good)


def test_a_search_in_a_window_skips_no_entry() -> None:
    """If more input follows, the next search begins at the first entry that cannot be decided yet (LEG-R26)."""
    for bad in range(0, len(STARTS) - 2, 3):
        begin, expected = STARTS[bad] + 1, STARTS[bad + 1]
        for end in range(begin, STARTS[bad + 2] + 70):
            position, whole = found(MIXED[:end], begin, final=False)
            assert position == expected if whole else position <= expected
            # A search that starts there finds the same entry as a search in the whole input.
            assert found(MIXED, position) == (expected, True)
        padded = MIXED + b"\xff" * (1 << 20)  # longer than any key that the search accepts
        assert found(padded, begin, final=False) == (expected, True)


def test_a_search_accepts_the_messages_that_kafka_reads() -> None:
    """LEG-R1, LEG-R3, LEG-R6, LEG-R8: all but messages with very long keys or many bytes after the value."""
    for magic in (0, 1):
        believed = [
            oracle.build_message(None, None, magic=magic),
            oracle.build_message(b"", b"", magic=magic),
            oracle.build_message(b"k" * 1000, b"", magic=magic),
            oracle.build_message(b"k" * (1 << 20), None, magic=magic),
            oracle.build_message(None, b"v" * 3_000_000, magic=magic),
            oracle.build_message(None, b"v", magic=magic, extra=b"xx"),
            oracle.build_message(b"k", None, magic=magic, extra=bytes(1024)),
            oracle.build_message(None, b"v", magic=magic, attributes=0xF8),
            oracle.build_message(None, b"v", magic=magic, key_length=-7),
            oracle.build_message(None, None, magic=magic, value_length=-(2**31)),
            oracle.build_message(b"k", b"v", magic=magic, offset=-1, timestamp=-1),
            *(
                oracle.build_message_set([(b"k", b"v" * 100)] * 9, magic=magic, codec=codec, base_offset=77)
                for codec in oracle.LEGACY_CODECS
                if codec != "none"
            ),
        ]
        for entry in believed:
            junk = b"\xfe" * 5
            assert found(junk + entry + junk) == (5, True)
            assert found(junk + oracle.with_crc(GOOD, 1) + entry) == (5 + len(GOOD), True)
            # The message must be complete and its checksum valid.
            assert found(junk + entry[:12] + bytes(4) + entry[16:]) == (5 + len(entry), False)
            assert found(junk + entry[:-1]) == (5 + len(entry) - 1, False)
            assert found(junk + entry[:-1], final=False) == (5, False)
            assert found(junk + entry, max_size=len(entry))[1]
            assert not found(junk + entry, max_size=len(entry) - 1)[1]
        for entry in (
            oracle.build_message(b"k", b"v", magic=magic, attributes=4),
            oracle.build_message(b"k", b"v", magic=magic, attributes=7),
            oracle.build_message(b"k", b"v", magic=magic, key_length=3),
            oracle.build_message(b"k", b"v", magic=magic, value_length=2),
            oracle.build_message(b"k", b"v", magic=magic, extra=bytes(1025)),
            oracle.build_message(b"k" * ((1 << 20) + 1), b"v", magic=magic),
        ):
            assert not found(entry)[1]


HOSTILE = {
    "zeros": bytes(8 << 20),
    "random": np.random.default_rng(5).bytes(8 << 20),
    "text": (b'{"user":12345,"event":"view","amount":123.45}\n' * 200_000)[: 8 << 20],
    "wide text": ("any text at all " * 300_000).encode("utf-16-be")[: 8 << 20],
    "01": b"\x01" * (8 << 20),
    "02": b"\x02" * (8 << 20),
    "numbers of 2 bytes": np.random.default_rng(6).integers(0, 4, 1 << 20).astype(">i2").tobytes(),
    "numbers of 4 bytes": np.random.default_rng(7).integers(0, 4, 1 << 19).astype(">i4").tobytes(),
    "numbers of 8 bytes": np.random.default_rng(8).integers(0, 4, 1 << 18).astype(">i8").tobytes(),
    "headers of messages": oracle.build_message(None, bytes(1000))[:34] * 60_000,
    "messages with bad checksums": oracle.build_message(b"k", b"v", crc=0) * 50_000,
    # Each message declares all of the following bytes: a search that checked each of them would be quadratic.
    "nested messages": b"".join(
        oracle.build_message(None, None, magic=0, length=14 + 26 * i, value_length=26 * i, crc=0)
        for i in range(60_000, 0, -1)
    ),
}


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_search_without_a_match_takes_linear_time(name: str, final: bool) -> None:
    data = HOSTILE[name]
    began = time.process_time()
    position, whole = found(data, final=final)
    assert time.process_time() - began < 3
    assert not whole
    if final:
        assert position == len(data)


@pytest.mark.parametrize("name", ["zeros", "random", "text", "02"])
def test_entries_after_bytes_that_look_like_headers_are_found(name: str) -> None:
    data = HOSTILE[name][: 1 << 20] + b"\xff" * 70
    assert found(data + MIXED) == (len(data), True)


def test_a_batch_of_invalid_records_with_a_good_checksum_has_a_right_length() -> None:
    """A batch in one of its values is not returned, also if no valid entry follows directly."""
    inner = oracle.build_batch([oracle.encode_record(value=b"inner")], base_offset=50)
    bad = oracle.build_batch([oracle.encode_record(value=inner), b"\x06\x00\x00"])
    good = oracle.build_batch([oracle.encode_record(value=b"good")], base_offset=60)
    table = kbatch.decode(bad + b"\xff" * 40 + good, on_error="skip")
    assert table.values() == [b"good"]
    assert [loss[:2] for loss in table.losses] == [(0, len(bad)), (len(bad), 40)]
