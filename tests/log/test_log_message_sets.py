"""Logs with message sets of magic 0 and 1, read as tables and splits, from an offset or timestamp, and with damage."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import oracle
import pytest
from golden_logs import LOGS
from tables import batches_of, records_of

import kbatch
from kbatch.log import Log
from kbatch.log.selection import open_selected
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.tasks import task_tables

NAMES = ["magic0-0", "magic1-0", "mixed-0", "upconvert-0"]
names = pytest.mark.parametrize("name", NAMES)


def assert_kafka_reads_the_same(tables: Iterable[kbatch.RecordTable], log: Log) -> None:
    """Compare digests of the records, and the fields that both report, with the results of Kafka's classes."""
    (segment,) = log.segments
    lines = Path(segment.path + ".expected.jsonl").read_text().splitlines()
    expected = [row for row in map(json.loads, lines) if "position" in row]
    batches = [batch for table in tables for batch in batches_of(table)]
    assert [(b.position, b.size, b.magic, b.crc, b.max_timestamp, len(b.records)) for b in batches] == [
        tuple(row[name] for name in ("position", "size", "magic", "crc", "maxTimestamp", "records")) for row in expected
    ]
    assert [oracle.digest(b.records) for b in batches] == [row["sha1"] for row in expected]
    for batch, row in zip(batches, expected, strict=True):
        assert (batch.base_offset, batch.last_offset) == (row["first50"][0][0], row["lastOffset"])  # LEG-R23
        assert batch.record_count == row["records"]


@names
@pytest.mark.parametrize("max_bytes", [1, 700, 5000, 64 << 20])
def test_tables_of_any_size_have_the_records_that_kafka_reads(name: str, max_bytes: int) -> None:
    log = Log(LOGS / name)
    assert_kafka_reads_the_same(log.tables(max_bytes=max_bytes), log)


@names
@pytest.mark.parametrize("split_bytes", [1, 300, 2000, 1 << 20])
def test_splits_of_any_size_have_the_records_that_kafka_reads(name: str, split_bytes: int) -> None:
    logs = open_selected([str(LOGS / name)])
    options = ReadOptions(split_bytes=split_bytes)
    tasks = plan(logs, options)
    assert len(tasks) > 3 or split_bytes > 1000
    assert_kafka_reads_the_same((table for task in tasks for _, table in task_tables(task, options)), logs[0])


@names
@pytest.mark.parametrize("use_indexes", [True, False])
def test_bounds_by_offset_cut_within_wrappers_off_r3_leg_r25(name: str, use_indexes: bool) -> None:
    log = Log(LOGS / name, use_indexes=use_indexes)
    everything = [record for table in log.tables() for record in records_of(table)]
    ends = [None, *range(0, everything[-1].offset + 3, 5)]
    for start in ends:
        for stop in ends:
            expected = [
                r for r in everything if (start is None or r.offset >= start) and (stop is None or r.offset < stop)
            ]
            have = [r for t in log.tables(start_offset=start, stop_offset=stop) for r in records_of(t)]
            assert have == expected, (start, stop)


@names
@pytest.mark.parametrize("use_indexes", [True, False])
def test_seeks_find_the_batch_of_an_offset_or_timestamp_leg_r2_leg_r23(name: str, use_indexes: bool) -> None:
    """A seek finds the first batch whose last offset is at or after the offset, or that reaches the timestamp."""
    (segment,) = Log(LOGS / name).segments
    rows = Log(segment.path).batches()
    last, stamps, starts = (rows[field].tolist() for field in ("last_offset", "max_timestamp", "position"))
    end = starts[-1] + int(rows["size"][-1])
    for offset in range(-1, last[-1] + 2):
        expected = next((at for at, reaches in zip(starts, last, strict=True) if reaches >= offset), end)
        assert segment.seek_offset(offset, use_indexes=use_indexes) == expected
    for stamp in sorted({t + d for t in stamps for d in (-1, 0, 1)}):
        expected = next((at for at, reaches in zip(starts, stamps, strict=True) if reaches >= stamp), end)
        assert segment.seek_timestamp(stamp, use_indexes=use_indexes) == expected


@names
def test_bounds_by_timestamp_choose_records_ts_r4(name: str) -> None:
    """Records of magic 0 have no timestamp, and are before every timestamp."""
    log = Log(LOGS / name)
    everything = [record for table in log.tables() for record in records_of(table)]
    stamps = sorted({r.timestamp + d for r in everything for d in (-1, 0, 1) if r.timestamp > 0})
    for stamp in stamps[::5]:
        have = [r for table in log.tables(start_timestamp=stamp) for r in records_of(table)]
        assert have == [r for r in everything if r.timestamp >= stamp]
        first = next((r.offset for r in everything if r.timestamp >= stamp), None)
        assert log.offset_for_timestamp(stamp) == first


# -- damage


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments of about 200 KiB each, larger than a window, with every kind of entry."""
    draw = random.Random(5)
    directory = tmp_path_factory.mktemp("sets") / "sets-0"
    directory.mkdir()
    offset = 0
    for _ in range(2):
        path = directory / f"{offset:020d}.log"
        data = b""
        while len(data) < 200_000:
            kind = draw.randrange(4)
            if kind == 3:
                data += oracle.three(offset, codec=draw.choice(["none", "gzip", "zstd"]))
                offset += 3
                continue
            contents = [
                (draw.choice([None, b"", b"key"]), draw.choice([None, draw.randbytes(draw.randrange(2000))]))
                for _ in range(draw.randint(1, 6))
            ]
            codec = draw.choice(oracle.LEGACY_CODECS)
            data += oracle.build_message_set(contents, codec=codec, magic=kind % 2, base_offset=offset)
            offset += len(contents)
        path.write_bytes(data)
    return directory


def test_a_long_log_has_the_records_of_the_oracle(long_log: Path) -> None:
    log = Log(long_log)
    expected = [r for s in log.segments for b in oracle.decode(Path(s.path).read_bytes()).batches for r in b.records]
    assert [r.offset for r in expected] == list(range(len(expected)))
    for max_bytes in (1, 30_000, 64 << 20):
        assert [r for table in log.tables(max_bytes=max_bytes) for r in records_of(table)] == expected
    for split_bytes in (1000, 50_000):
        options = ReadOptions(split_bytes=split_bytes)
        tasks = plan([log], options)
        assert [r for task in tasks for _, t in task_tables(task, options) for r in records_of(t)] == expected


@pytest.mark.parametrize("seed", range(25))
def test_losses_do_not_depend_on_the_splits(long_log: Path, tmp_path: Path, seed: int) -> None:
    """With random damage to lengths, magic and content, splits give the rows and losses of a read of the whole log.

    Only damaged batches are lost, or a batch next to an overwritten range.
    """
    draw = random.Random(seed)
    copy = tmp_path / "sets-0"
    shutil.copytree(long_log, copy)
    path = draw.choice(sorted(copy.glob("*.log")))
    data = bytearray(path.read_bytes())
    rows = kbatch.scan(data)
    truth = oracle.decode(bytes(data)).batches
    hit = []
    for _ in range(draw.randint(1, 4)):
        row = draw.randrange(len(rows))
        start, size = int(rows["position"][row]), int(rows["size"][row])
        damage = draw.choice(["length", "magic", "byte", "stretch"])
        if damage == "length":
            at, junk = start + 8, draw.randbytes(4)
        elif damage == "magic":
            at, junk = start + 16, draw.randbytes(1)
        elif damage == "byte":
            at = start + draw.randrange(17, size)
            junk = bytes([data[at] ^ 255])
        else:
            at, junk = start, draw.randbytes(min(draw.randrange(20_000), len(data) - start))
        data[at : at + len(junk)] = junk
        hit.append((at, at + len(junk)))
    path.write_bytes(data)
    (log,) = open_selected([str(copy)])
    whole = [r.offset for t in log.tables(on_error="skip") for r in records_of(t)]
    lost = [(table.source, loss) for table in log.tables(on_error="skip") for loss in table.losses]
    spared = [b for b in truth if not any(a < b.position + b.size and b.position < z for a, z in hit)]
    assert set(whole) >= {r.offset for b in spared for r in b.records}
    if path.read_bytes() != (long_log / path.name).read_bytes():
        assert lost
    assert lost == [(t.source, loss) for t in log.tables(on_error="skip", max_bytes=1) for loss in t.losses]
    for split_bytes in (1000, 30_000):
        options = ReadOptions(on_error="skip", split_bytes=split_bytes)
        pieces = [(s, t) for task in plan([log], options) for s, t in task_tables(task, options)]
        assert [offset for _, t in pieces for offset in t.records["offset"].tolist()] == whole
        assert [(split.path, loss) for split, table in pieces for loss in table.losses] == lost
