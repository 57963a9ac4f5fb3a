"""Message sets of magic 0 and 1 as Kafka 0.8.2, 0.10.0 and 2.8 wrote them: LEG-R4, R5, R9 to R11, R15, R23, L4-R5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest

import kbatch
from kbatch.format import ATTRIBUTE_CODEC, ATTRIBUTE_LOG_APPEND_TIME

GOLDEN = Path(__file__).parents[1] / "golden" / "legacy-clients"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.bin"))


def written(name: str) -> list[tuple[Any, ...]]:
    """Return the records that Kafka's classes wrote: (offset, timestamp, timestamp type, key, value)."""

    def cut(text: str | None, times: int = 1) -> bytes | None:
        return None if text is None else bytes.fromhex(text) * times

    rows = map(json.loads, (GOLDEN / f"{name}.jsonl").read_text().splitlines())
    return [
        (row["offset"], row["timestamp"], row["timestampType"], cut(row["key"]), cut(row["value"], row.get("times", 1)))
        for row in rows
    ]


def read(table: kbatch.RecordTable) -> list[tuple[Any, ...]]:
    magic = table.batches["magic"][table.records["batch"]]
    kinds = table.batches["attributes"][table.records["batch"]] & ATTRIBUTE_LOG_APPEND_TIME
    types = [-1 if m == 0 else int(k > 0) for m, k in zip(magic.tolist(), kinds.tolist(), strict=True)]
    columns = (table.records["offset"].tolist(), table.records["timestamp"].tolist(), types)
    return list(zip(*columns, table.keys(), table.values(), strict=True))


def test_the_files_cover_every_client_magic_and_codec() -> None:
    assert len(NAMES) == 31
    for magic, codecs in [(0, ("none", "gzip", "snappy", "lz4")), (1, ("none", "gzip", "snappy", "lz4"))]:
        for codec in codecs:
            assert sum(f"-magic{magic}-{codec}" in name for name in NAMES) >= 3


@pytest.mark.parametrize("name", [name for name in NAMES if "-lz4" in name])
def test_lz4_of_magic_0_has_the_header_checksum_of_its_time(name: str) -> None:
    """L4-R5: this checks the files, not kbatch. The LZ4 library rejects frames with such checksums."""
    data = (GOLDEN / f"{name}.bin").read_bytes()
    frame = data[data.index(b"\x04\x22\x4d\x18") :]
    right = oracle.lz4_header_checksum(frame[4:6])
    wrong = oracle.lz4_header_checksum(frame[:6])
    assert right != wrong
    assert frame[6] == (wrong if "-magic0-" in name else right)


@pytest.mark.parametrize("name", NAMES)
def test_records_are_decoded_as_written(name: str) -> None:
    table = kbatch.decode((GOLDEN / f"{name}.bin").read_bytes())
    assert not table.losses
    magic, codec = name.split("-magic")[1].split("-")[:2]
    assert {int(row["magic"]) for row in table.batches} == {int(magic)}
    assert {kbatch.Codec(int(row["attributes"]) & ATTRIBUTE_CODEC).name.lower() for row in table.batches} == {codec}
    rows = written(name)
    assert read(table) == rows
    # One row per uncompressed message or per wrapper.
    sets = len(rows) if codec == "none" else 1 if name.startswith("clients-0.8") else 2
    assert len(table.batches) == sets
    assert not table.headers.size


@pytest.mark.parametrize("name", NAMES)
def test_a_log_of_message_sets_is_read_from_any_offset(name: str, tmp_path: Path) -> None:
    """LEG-R23, OFF-R3: some offsets are known only after decompression; reading may start inside a set."""
    rows = written(name)
    directory = tmp_path / "old-0"
    directory.mkdir()
    (directory / f"{rows[0][0]:020d}.log").write_bytes((GOLDEN / f"{name}.bin").read_bytes())
    log = kbatch.Log(directory)
    assert (log.start_offset, log.end_offset) == (rows[0][0], rows[-1][0] + 1)
    assert [row for table in log.tables() for row in read(table)] == rows
    middle = rows[len(rows) // 3][0]
    tables = log.tables(start_offset=middle, isolation="read_committed")
    assert [row for table in tables for row in read(table)] == [row for row in rows if row[0] >= middle]


@pytest.mark.parametrize("name", NAMES)
def test_arrow_has_the_timestamp_types(name: str) -> None:
    pytest.importorskip("pyarrow")
    table = kbatch.decode((GOLDEN / f"{name}.bin").read_bytes()).to_arrow()
    rows = written(name)
    assert table["timestampType"].to_pylist() == [row[2] for row in rows]
    stamps = [None if one is None else int(one.timestamp() * 1000 + 0.5) for one in table["timestamp"].to_pylist()]
    assert stamps == [None if row[1] == -1 else row[1] for row in rows]
