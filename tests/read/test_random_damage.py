"""Random damage in larger logs: `decode` and `Log.tables` lose the same, damaged entries and no others."""

from __future__ import annotations

import random
from pathlib import Path

import oracle
import pytest
from log_batches import segment_path
from tables import assert_accounted, offsets_of

import kbatch


def some_entry(rng: random.Random, offset: int) -> tuple[bytes, int]:
    """Build an entry of any magic and codec; return it with its number of records."""
    count = rng.randint(1, 5)
    contents = [(rng.choice([None, b"", b"key"]), rng.randbytes(rng.choice([0, 5, 50, 500]))) for _ in range(count)]
    magic = rng.choice([0, 1, 2, 2, 2])
    if magic == 2:
        records = [oracle.encode_record(i, i, key, value) for i, (key, value) in enumerate(contents)]
        codec = rng.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"])
        return oracle.build_batch(records, codec=codec, base_offset=offset), count
    codec = rng.choice([None, "gzip", "snappy", "lz4"])
    if codec is None:
        return oracle.build_message(*contents[0], magic=magic, offset=offset), 1
    return oracle.build_message_set(contents, magic=magic, codec=codec, base_offset=offset), count


def damage(rng: random.Random, data: bytearray, start: int, size: int) -> None:
    """Damage one entry in bytes that a checksum or the framing covers, so that the damage is detected."""
    begin = 21 if data[start + 16] == 2 else 16
    # More than one flipped bit in the length of a compressed message set may expose its messages (LEG-R11).
    kind = rng.randrange(2 if data[start + 16] < 2 and data[start + 17] & 7 else 4)
    if kind == 0:
        data[start + rng.choice([8, 9, 10, 11])] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[start + rng.randrange(begin, size)] ^= 1 << rng.randrange(8)
    elif kind == 2:
        at = rng.randrange(size)
        rest = size - at
        data[start + at : start + size] = bytes(rest) if any(data[start + at : start + size]) else b"\1" * rest
    else:
        data[start + 8 : start + size] = rng.randbytes(size - 8)


@pytest.mark.parametrize("seed", range(60))
def test_only_damaged_entries_are_lost(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    entries, offsets = [], []
    offset = 0
    for _ in range(rng.randint(30, 250)):
        entry, count = some_entry(rng, offset)
        entries.append(entry)
        offsets.append(range(offset, offset + count))
        offset += count + rng.choice([0, 0, 3])
    starts = [0]
    for entry in entries:
        starts.append(starts[-1] + len(entry))
    data = bytearray(b"".join(entries))
    bad = set(rng.sample(range(len(entries) - 1), rng.randint(1, 8)))
    # The end of such a set is also unknown if the entry after it is damaged too.
    bad = {i for i in bad if i + 1 not in bad or entries[i][16] == 2}
    for i in bad:
        damage(rng, data, starts[i], len(entries[i]))
    table = kbatch.decode(data, on_error="skip")
    expected = [offset for i, each in enumerate(offsets) if i not in bad for offset in each]
    assert offsets_of(table) == expected
    assert_accounted(table, len(data))
    lost = {at for loss in table.losses for at in range(loss.position, loss.position + loss.length)}
    assert lost == {at for i in bad for at in range(starts[i], starts[i + 1])}

    directory = tmp_path / "t-0"
    directory.mkdir()
    segment_path(directory, 0).write_bytes(data)
    if rng.random() < 0.5:
        segment_path(directory, offset + 1).write_bytes(b"")
    low, high = sorted(rng.choices(range(offset + 1), k=2))
    for options in (
        {},
        {"isolation": "read_committed"},
        {"start_offset": low},
        {"stop_offset": high},
        {"start_offset": low, "stop_offset": high},
    ):
        tables = list(
            kbatch.Log(directory).tables(on_error="skip", max_bytes=rng.choice([1, 3000, 1 << 20]), **options)  # type: ignore[arg-type]
        )
        first, end = options.get("start_offset", 0), options.get("stop_offset", offset)
        have = [each for one in tables for each in offsets_of(one)]
        assert have == [each for each in expected if first <= each < end]
        reported = [
            at for one in tables for loss in one.losses for at in range(loss.position, loss.position + loss.length)
        ]
        assert len(reported) == len(set(reported))
        assert set(reported) <= lost
        within = {i for i in bad if offsets[i][-1] >= first and offsets[i][0] < end}
        assert set(reported) >= {at for i in within for at in range(starts[i], starts[i + 1])}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_messages_inside_a_wrapper_of_wrong_length_are_not_entries_of_the_log(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """LEG-R11: messages that do not compress are stored verbatim in a wrapper, with relative offsets."""
    rng = random.Random(1)
    for _ in range(15):
        contents = [(None, rng.randbytes(rng.choice([5, 50, 500]))) for _ in range(rng.randint(1, 5))]
        wrapper = oracle.build_message_set(contents, magic=magic, codec=codec, base_offset=1000)
        for bit in range(32):
            bad = bytearray(wrapper)
            bad[8 + bit // 8] ^= 1 << bit % 8
            data = oracle.three(997) + bytes(bad) + oracle.three(1010)
            table = kbatch.decode(data, on_error="skip")
            assert offsets_of(table) == [997, 998, 999, 1010, 1011, 1012]
            assert [(loss.position, loss.length) for loss in table.losses] == [(88, len(wrapper))]
    path = segment_path(tmp_path, 997)
    path.write_bytes(data)
    have = [each for one in kbatch.Log(path).tables(on_error="skip", max_bytes=1) for each in offsets_of(one)]
    assert have == [997, 998, 999, 1010, 1011, 1012]
