"""One flipped bit loses one batch: any bit of a log of all magics, in `decode` and in `Log.tables`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import oracle
import pytest
from log_batches import segment_path
from tables import lost, offsets_of

import kbatch

Row = tuple[int, int, bytes | None, bytes | None]


def entries(base: int) -> list[bytes]:
    """Return batches and message sets with 21 offsets, starting at `base`."""
    pair = (b"k", b"v" * 5)
    return [
        oracle.three(base),
        oracle.build_message(b"k", b"v", magic=0, offset=base + 3),
        oracle.build_message(b"k", b"v", magic=1, offset=base + 4),
        oracle.three(base + 5),
        oracle.build_message_set([pair] * 3, magic=0, codec="gzip", base_offset=base + 8),
        oracle.build_message_set([pair] * 3, magic=1, codec="gzip", base_offset=base + 11),
        oracle.build_batch([oracle.encode_record(value=b"x" * 40)], base_offset=base + 14),
        oracle.build_message(None, b"v" * 30, magic=1, offset=base + 15),
        oracle.build_batch(
            [oracle.encode_record(i, i, b"k", b"v") for i in range(2)], codec="lz4", base_offset=base + 16
        ),
        oracle.three(base + 18),
    ]


def rows_of(tables: Iterable[kbatch.RecordTable]) -> list[Row]:
    return [
        row
        for table in tables
        for row in zip(
            offsets_of(table), table.records["timestamp"].tolist(), table.keys(), table.values(), strict=True
        )
    ]


# Whether as many bits as possible are flipped; .ci/long sets the variable.
EVERY = bool(os.environ.get("KBATCH_TEST_ALL"))
BASE = 100
ENTRIES = entries(BASE)
DATA = b"".join(ENTRIES)
STARTS = np.cumsum([0, *map(len, ENTRIES)]).tolist()
MAGICS = [entry[16] for entry in ENTRIES]
ROWS = [rows_of([kbatch.decode(entry)]) for entry in ENTRIES]


def flip(bit: int) -> tuple[bytes, int, int]:
    """Return the bytes with one bit flipped, the entry that contains it, and the byte within that entry."""
    data = bytearray(DATA)
    data[bit // 8] ^= 1 << bit % 8
    entry = int(np.searchsorted(STARTS, bit // 8, "right")) - 1
    return bytes(data), entry, bit // 8 - STARTS[entry]


def unchecked(entry: int, at: int) -> bool:
    """Return whether no checksum covers the byte: offsets and leader epochs (CRC-R1, CRC-R7)."""
    return at < 8 or (MAGICS[entry] == 2 and 12 <= at < 16)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_decode_loses_the_batch_and_nothing_else(isolation: str) -> None:
    # The same engine reads under read_committed. The stride is coprime to all field sizes.
    for bit in range(0, 8 * STARTS[-2], 1 if isolation == "read_uncommitted" or EVERY else 5):
        data, bad, at = flip(bit)
        table = kbatch.decode(data, on_error="skip", isolation=isolation)  # type: ignore[arg-type]
        if unchecked(bad, at) and not table.losses:
            assert [row[1:] for row in rows_of([table])] == [row[1:] for rows in ROWS for row in rows], bit
            continue
        # In a compressed set of magic 1, the messages contradict a negative offset.
        assert not unchecked(bad, at) or (MAGICS[bad] == 1 and at < 8), bit
        assert lost(table) == [(STARTS[bad], STARTS[bad + 1])], bit
        assert rows_of([table]) == [row for i, rows in enumerate(ROWS) if i != bad for row in rows], bit


def test_the_last_batch_is_lost_or_incomplete() -> None:
    """With a longer length the batch looks as if it were being written: `consumed` is its position (FRM-R3)."""
    whole = [row for rows in ROWS[:-1] for row in rows]
    for bit in range(8 * (STARTS[-2] + 8), 8 * STARTS[-1]):
        data, bad, at = flip(bit)
        if unchecked(bad, at):
            continue
        table = kbatch.decode(data, on_error="skip")
        assert rows_of([table]) == whole
        lengths = [loss.length for loss in table.losses]
        assert table.consumed == STARTS[-2] + sum(lengths)
        assert len(DATA) - table.consumed < 17 if lengths else 8 <= at < 12


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    segment_path(directory, BASE + 21).write_bytes(oracle.three(BASE + 21))
    return directory


LAST = rows_of([kbatch.decode(oracle.three(BASE + 21))])


@pytest.mark.parametrize("indexes", [False, True])
def test_a_log_loses_the_batch_and_nothing_else(log_path: Path, indexes: bool) -> None:
    """A damaged header hides no other batch, for any window size and any offset bounds (OFF-R3)."""
    path = segment_path(log_path, BASE)
    if indexes:
        path.with_suffix(".index").write_bytes(
            b"".join(struct.pack(">ii", ROWS[i][-1][0] - BASE, STARTS[i]) for i in (2, 4, 6, 8))
        )
    options = [
        {},
        {"max_bytes": 1},
        {"max_bytes": 300, "isolation": "read_committed"},
        {"start_offset": 104},
        {"start_offset": 107, "max_bytes": 1},
        {"start_offset": 112},
        {"stop_offset": 105},
        {"stop_offset": 109, "isolation": "read_committed"},
        {"stop_offset": 116, "max_bytes": 1},
        {"start_offset": 104, "stop_offset": 115},
    ]
    # The stride is coprime to all field sizes, so that each run flips different bits of each field.
    for number, bit in enumerate(range(0, 8 * STARTS[-2], 3 if EVERY else 13)):
        data, bad, at = flip(bit)
        path.write_bytes(data)
        for given in (options[number % len(options)], options[-1 - number % 7]):
            start, stop = given.get("start_offset", 0), given.get("stop_offset", 1 << 40)
            log = kbatch.Log(log_path, use_indexes=indexes)
            tables = list(log.tables(on_error="skip", **given))  # type: ignore[arg-type]
            have = rows_of(tables)
            expected = [
                row for i, rows in enumerate([*ROWS, LAST]) if i != bad for row in rows if start <= row[0] < stop
            ]
            # A wrong offset before the next segment may look like a gap, which has no bytes.
            damaged = [table for table in tables if any(loss.length for loss in table.losses)]
            losses = [each for table in damaged for each in lost(table)]
            if unchecked(bad, at):
                # The damaged offset may be outside the bounds. A message set is selected by its last offset. In a
                # compressed set of magic 1, the messages contradict a negative offset.
                assert losses == [] or (MAGICS[bad] == 1 and at < 8), (bit, given)
                assert losses in ([], [(STARTS[bad], STARTS[bad + 1])]), (bit, given)
                assert all(row in have for row in expected if row not in ROWS[4]), (bit, given)
                continue
            assert have == expected, (bit, given)
            outside = all(not start <= row[0] < stop for row in ROWS[bad])
            assert losses in ([[]] if outside else []) + [[(STARTS[bad], STARTS[bad + 1])]], (bit, given)


@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
@pytest.mark.parametrize(("at", "value"), [(0, 0x7F), (23, 0x01), (9, 0x01)], ids=["offset", "delta", "length"])
def test_a_damaged_header_does_not_end_an_offset_range(log_path: Path, at: int, value: int, on_error: str) -> None:
    """A range must not silently end at the first header whose offset is above its end: the offset may be damaged."""
    data = bytearray(DATA)
    data[at] = value
    segment_path(log_path, BASE).write_bytes(data)
    log = kbatch.Log(log_path)
    options = {"stop_offset": 115, "on_error": on_error}
    if at and on_error != "skip":
        if on_error == "raise":
            with pytest.raises(kbatch.KbatchError):
                list(log.tables(**options))  # type: ignore[arg-type]
        else:
            tables = list(log.tables(**options))  # type: ignore[arg-type]
            assert rows_of(tables) == []
            assert [loss.position for table in tables for loss in table.losses][:1] == [0]
    else:
        assert rows_of(log.tables(**options)) == [row for rows in ROWS[1:] for row in rows if row[0] < 115]  # type: ignore[arg-type]


def test_offset_bounds_of_decode_hide_no_batch() -> None:
    """A batch outside the bounds is skipped only if its checksum is valid, because its length may be damaged."""
    for start, stop in ((104, None), (107, 112), (None, 108)):
        low, high = start or 0, stop or 1 << 40
        for bit in range(0, 8 * STARTS[-2], 5):
            data, bad, at = flip(bit)
            if unchecked(bad, at):
                continue
            table = kbatch.decode(data, on_error="skip", start_offset=start, stop_offset=stop)
            expected = [row for i, rows in enumerate(ROWS) if i != bad for row in rows if low <= row[0] < high]
            assert rows_of([table]) == expected, bit
            assert lost(table) == [(STARTS[bad], STARTS[bad + 1])], bit
