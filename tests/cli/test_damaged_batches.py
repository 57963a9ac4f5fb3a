"""Every route reports the same first cause of a damaged batch, and counts damaged batches alike."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import build_message, build_wrapper

import kbatch
from kbatch.cli import main
from kbatch.format import BatchStatus
from kbatch.log.check.statistics import observed_statistics
from kbatch.log.check.verification import verify_log
from kbatch.plan.read_options import ReadOptions

CODECS = ("gzip", "snappy", "lz4", "zstd")
STATUS = BatchStatus.BAD_CRC


def with_bad_payload(codec: str, magic: int = 2, count: int = 4, bad: int = 1) -> tuple[bytes, int, int]:
    """Return batches of which one has a payload that cannot be decompressed; its position and size."""
    values = [b"%d" % (i * i) for i in range(200)]
    times = None if magic == 0 else 1000
    parts = [
        bytearray(kbatch.encode(values, timestamps=times, codec=codec, magic=magic, base_offset=200 * i))
        for i in range(count)
    ]
    start = len(parts[bad]) // 2
    parts[bad][start : start + 40] = b"\xff" * 40
    return b"".join(parts), sum(map(len, parts[:bad])), len(parts[bad])


def log_of(root: Path, *segments: tuple[int, bytes]) -> Path:
    directory = root / "t-0"
    directory.mkdir()
    for base, data in segments:
        (directory / f"{base:020d}.log").write_bytes(data)
    return directory


def reasons(*tables: kbatch.RecordTable) -> list[str]:
    return [loss.reason for table in tables for loss in table.losses]


@pytest.mark.parametrize(("codec", "magic"), [*((codec, 2) for codec in CODECS), ("gzip", 1), ("lz4", 0)])
def test_the_wrong_checksum_is_the_reason_in_every_route(
    codec: str, magic: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CRC-R1: with ``crc="mark"``, the codec error that follows a wrong checksum does not replace it."""
    data, position, size = with_bad_payload(codec, magic)
    directory = log_of(tmp_path, (0, data))
    first = reasons(kbatch.decode(data, on_error="skip"))[0]
    assert first.startswith("stored checksum is 0x")
    options: dict[str, Any] = {"crc": "mark", "on_error": "skip"}
    for tables in (
        [kbatch.decode(data, **options)],
        list(kbatch.decode_stream(io.BytesIO(data), **options)),
        list(kbatch.Log(directory).tables(**options)),
    ):
        (reason,) = reasons(*tables)
        assert reason.startswith(f"{first}; its records cannot be decoded either: ")
        status = np.concatenate([table.batches["status"] for table in tables])
        assert status.tolist() == [0, STATUS, 0, 0]
    with pytest.raises(kbatch.CrcMismatchError, match=first) as caught:
        kbatch.decode(data, crc="mark")
    assert caught.value.position == position
    (finding,) = verify_log(kbatch.Log(directory).segments).findings
    assert finding.text.endswith(f"{first} ({size:,} bytes)")
    assert main(["dump", str(directory)]) == 3
    printed = capsys.readouterr()
    assert first in printed.err
    row = next(each for each in map(json.loads, printed.out.splitlines()) if each["position"] == position)
    assert row["status"] == "bad_crc"
    assert row["error"].startswith(first)


def test_threads_report_the_wrong_checksum_too() -> None:
    values = [bytes(100)] * 2000
    parts = [bytearray(kbatch.encode(values, timestamps=1000, codec="lz4", base_offset=2000 * i)) for i in range(40)]
    parts[30][100:140] = b"\xff" * 40
    data = b"".join(parts)
    one, two = (kbatch.decode(data, crc="mark", on_error="skip", threads=threads) for threads in (1, 2))
    assert one.batches["status"].tolist() == two.batches["status"].tolist() == [0] * 30 + [STATUS] + [0] * 9
    assert reasons(one) == reasons(two)


def test_a_marked_batch_that_cannot_be_decoded_counts_as_lost_only(tmp_path: Path) -> None:
    from kbatch.sinks.task import TaskReport

    data, _, size = with_bad_payload("zstd")
    wrong = bytearray(kbatch.encode([b"abc"], timestamps=1000, base_offset=1000))
    wrong[-2] ^= 1
    table = kbatch.decode(data + bytes(wrong), crc="mark", on_error="skip")
    counts = TaskReport(0, "t", 0).with_table(table, bad_crc_accepted=True).counts
    assert (counts.bad_crc_batches, counts.loss_count, counts.lost_bytes) == (1, 1, size)
    assert counts.log_bytes == len(data) - size + len(wrong)
    assert ReadOptions(crc="mark").crc == "mark"


def test_verify_stats_and_repr_count_damaged_batches_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CRC-R7: a wrong checksum inside of a compressed message is damage in each of them, too."""
    data, *_ = with_bad_payload("zstd")
    inner = [build_message(None, b"value", magic=1, offset=i, crc=1 if i == 1 else None) for i in range(3)]
    data += build_wrapper(b"".join(inner), codec="gzip", magic=1, offset=802)
    data += kbatch.encode([b"end"], timestamps=1000, base_offset=900)
    directory = log_of(tmp_path, (0, data))
    segments = kbatch.Log(directory).segments
    table = kbatch.decode(data, on_error="skip")
    report, statistics = verify_log(segments), observed_statistics(segments, None)
    damaged = int(BatchStatus.damaged(table.batches["status"]).sum())
    assert damaged == 2
    assert report.damaged_batches == statistics.damaged_batches == damaged
    assert report.batches == statistics.batches == len(table.batches) == 6
    assert f"{damaged} damaged batches" in repr(table)
    assert main(["verify", str(directory)]) == main(["stats", "--details", str(directory)]) == 3
    printed = capsys.readouterr().out
    assert "6 batches (2 damaged)" in printed
    assert "0 empty, 2 damaged" in printed
    assert observed_statistics(segments, None, headers_only=True).damaged_batches is None


def test_a_damaged_inner_message_is_a_damaged_batch() -> None:
    status = np.arange(len(BatchStatus), dtype=np.uint8)
    names = {BatchStatus(int(each)).name for each in status[BatchStatus.damaged(status)]}
    assert names == {"BAD_CRC", "INVALID", "BAD_CODEC", "UNSUPPORTED", "OVER_LIMIT", "BAD_INNER_CRC"}


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_offsets_that_a_damaged_batch_contained_are_not_noted_as_missing(bad: int, tmp_path: Path) -> None:
    data, position, _ = with_bad_payload("zstd", bad=bad)
    after = kbatch.encode([b"v"] * 3, timestamps=1000, base_offset=800)
    directory = log_of(tmp_path, (0, data), (800, after))
    findings = verify_log(kbatch.Log(directory).segments).findings
    assert [(finding.position, finding.damage) for finding in findings] == [(position, True)]


def test_other_missing_offsets_are_still_noted(tmp_path: Path) -> None:
    data, position, _ = with_bad_payload("zstd")
    gap = len(data)
    data += kbatch.encode([b"v"], timestamps=1000, base_offset=900)
    findings = verify_log(kbatch.Log(log_of(tmp_path, (0, data))).segments).findings
    assert [(finding.position, finding.damage) for finding in findings] == [(position, True), (gap, False)]
    assert findings[1].text == "offsets are missing: 799 is followed by 900"


def test_counts_of_one_agree_in_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = kbatch.encode([b"1"], timestamps=0)
    log = log_of(tmp_path, (0, data + b"x"))
    for command in ("dump", "verify"):
        assert main([command, str(log)]) == 0
        printed = "".join(capsys.readouterr())
        assert f"byte {len(data)}: " in printed
        assert "1 byte of an incomplete batch" in printed
    assert main(["stats", "--details", str(log)]) == 0
    assert "0 in 0 records" in capsys.readouterr().out
    with pytest.raises(kbatch.TruncatedBatchError, match="the stream ends within a batch, after 1 byte; feed the rest"):
        list(kbatch.decode_stream([data, b"x"]))
    with pytest.raises(kbatch.TruncatedBatchError, match="the stream ends within a batch, after 60 of 69 bytes; feed"):
        list(kbatch.decode_stream([data, data[:60]]))
