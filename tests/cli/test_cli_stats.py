"""``kbatch stats``: counts compared with the known contents of the golden files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_logs import LOGS
from log_batches import batch, segment_path, write_segment

import kbatch
from kbatch.cli import main
from kbatch.log import compare_logs
from kbatch.log.check.statistics import Distribution, log_statistics
from kbatch.log.check.verification import verify_log


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def command(*arguments: object) -> tuple[int, str, str]:
        status = main(["stats", *map(str, arguments)])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir()))
def test_counts_equal_the_decoded_tables(name: str, run: Any) -> None:
    status, out, _ = run("--json", LOGS / name)
    assert status == 0
    (shown,) = json.loads(out)["logs"]
    log = kbatch.Log(LOGS / name)
    tables = list(log.tables(include_control=True))
    batches = np.concatenate([table.batches for table in tables])
    control = [
        ((table.batches["attributes"] & 0x20 != 0) & (table.batches["magic"] == 2))[table.records["batch"]]
        for table in tables
    ]
    records = np.concatenate([table.records[~mask] for table, mask in zip(tables, control, strict=True)])
    assert shown["segments"] == len(log.segments)
    assert shown["bytes"] == log.size
    assert shown["batches"] == len(batches)
    assert shown["records"] == len(records)
    assert shown["control_records"] == sum(int(mask.sum()) for mask in control)
    assert (shown["first_offset"], shown["last_offset"]) == (batches["base_offset"].min(), batches["last_offset"].max())
    times = records["timestamp"][records["timestamp"] != -1]
    assert shown["first_timestamp"] == (times.min() if len(times) else None)
    assert shown["last_timestamp"] == (times.max() if len(times) else None)
    assert shown["null_keys"] == (records["key_len"] < 0).sum()
    assert shown["null_values"] == (records["value_len"] < 0).sum()
    assert shown["tombstones"] == ((records["value_len"] < 0) & (records["key_len"] >= 0)).sum()
    assert shown["headers"] == records["header_count"].sum()
    assert sum(entry["batches"] for entry in shown["codecs"].values()) == len(batches)
    assert sum(shown["magics"].values()) == len(batches)
    assert shown["producers"] == len({int(one) for one in batches["producer_id"] if one >= 0})
    sizes = np.maximum(records["key_len"], 0) + np.maximum(records["value_len"], 0)
    if len(sizes):
        expected = np.percentile(sizes, [50, 90, 99], method="inverted_cdf").tolist()
        assert [shown["record_bytes"][name] for name in ("p50", "p90", "p99")] == expected


@pytest.mark.parametrize("how", [[], ["--headers-only"]])
def test_transactions_are_counted_by_state(how: list[str], run: Any) -> None:
    """TXI-R5: 13 aborted, 20 committed, 2 open, even if nothing is decoded."""
    _, out, _ = run("--json", *how, LOGS / "txn-0")
    (shown,) = json.loads(out)["logs"]
    assert shown["transactions"] == {"committed": 20, "aborted": 13, "undecided": 0, "open": 2}
    assert shown["open_transactions"] == [each._asdict() for each in kbatch.Log(LOGS / "txn-0").transactions().open]
    assert shown["open_transactions"][0] == {
        "producer_id": 1002,
        "first_offset": 362,
        "first_timestamp": 1700000040000,
    }
    assert (shown["records"], shown["control_records"]) == (337, 34)
    assert (shown["name"], shown["topic"], shown["partition"]) == ("txn-0", "txn", 0)


def test_headers_only_reports_unknown_counts(run: Any) -> None:
    """LEG-R23: headers of compressed message sets have no record count."""
    _, out, _ = run("--json", "--headers-only", LOGS / "magic1-0", LOGS / "codec-zstd-0")
    old, new = json.loads(out)["logs"]
    assert old["uncounted_batches"] > 0
    assert old["records"] < 110
    assert new["uncounted_batches"] == 0
    assert new["records"] == 3144
    assert new["record_bytes"] is new["null_keys"] is new["codecs"]["zstd"]["plain_bytes"] is None
    _, out, _ = run("--headers-only", LOGS / "magic1-0")
    assert f"{old['records']}+" in out


def test_uncompressed_sizes_are_estimated_within_one_percent(run: Any) -> None:
    """The estimate is compared with the sizes of the decompressed payloads."""
    from kbatch.batches.arena import Arena
    from kbatch.batches.codecs import decompress

    for codec, number in (("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)):
        log = kbatch.Log(LOGS / f"codec-{codec}-0")
        exact = 0
        for segment in log.segments:
            data = Path(segment.path).read_bytes()
            for row in log.batches() if len(log.segments) == 1 else np.concatenate(list(segment.scan())):
                payload = data[row["position"] + 61 : row["position"] + row["size"]]
                exact += decompress(number, memoryview(payload), Arena(), 1 << 30)
        _, out, _ = run("--json", log.path)
        (shown,) = json.loads(out)["logs"]
        entry = shown["codecs"][codec]
        assert entry["plain_bytes"] == pytest.approx(exact, rel=0.01)
        assert entry["ratio"] == pytest.approx(exact / entry["payload_bytes"], rel=0.02)


def test_counts_are_printed_as_a_table(run: Any) -> None:
    status, out, err = run(LOGS)
    assert (status, err) == (0, "")
    rows = out.partition("\n\n")[0].splitlines()
    assert rows[0].split()[:3] == ["topic-partition", "segments", "batches"]
    assert [row.split()[0] for row in rows[1:]] == [*sorted(path.name for path in LOGS.iterdir()), "all"]
    (txn,) = [row for row in rows if row.startswith("txn-0")]
    assert txn.split()[:11] == ["txn-0", "3", "165", "337", "34", "2", "21.9", "KiB", "0", "-", "370"]
    _, out, _ = run("--details", LOGS / "txn-0")
    assert "20 committed, 13 aborted, 2 open" in out
    opened = [line.split() for line in out.splitlines() if line.startswith("  txn-0")]
    assert opened == [
        ["txn-0", "1002", "362", "2023-11-14", "22:14:00"],
        ["txn-0", "1004", "367", "2023-11-14", "22:14:00"],
    ]
    assert "30 keys, 0 values; 0 tombstones" in out


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir()))
def test_stats_and_verify_count_the_records_that_a_read_returns(name: str) -> None:
    """Records of control batches are counted apart, as `diff` and `export` leave them out."""
    log = kbatch.Log(LOGS / name)
    expected = sum(len(table) for table in log.tables())
    control = sum(len(kbatch.control_records(table)) for table in log.tables(include_control=True))
    for counted in (log_statistics(log), verify_log(log.segments)):
        assert (counted.records, counted.control_records) == (expected, control)
    (pair,) = compare_logs(log, log).partitions
    assert pair.a.records == expected


@pytest.mark.parametrize("how", [[], ["--headers-only"]])
def test_damage_is_counted(how: list[str], run: Any, tmp_path: Path) -> None:
    directory = tmp_path / "txn-0"
    shutil.copytree(LOGS / "txn-0", directory, copy_function=shutil.copyfile)
    path = segment_path(directory, 186)
    data = bytearray(path.read_bytes())
    data[2966 + 8] ^= 0xFF
    path.write_bytes(data)
    status, out, _ = run("--json", *how, directory)
    assert status == 3
    (shown,) = json.loads(out)["logs"]
    assert (shown["losses"], shown["lost_bytes"], shown["batches"]) == (1, 119, 164)


def test_logs_without_records_are_counted(run: Any, tmp_path: Path) -> None:
    write_segment(tmp_path / "a-0", 7, [])
    write_segment(tmp_path / "b-0", 0, [batch(0, [], last_delta=3, max_timestamp=77)])
    for how in ([], ["--headers-only"], ["--details"]):
        assert run(*how, tmp_path)[0] == 0
    _, out, _ = run("--json", tmp_path)
    empty, hollow = json.loads(out)["logs"]
    assert (empty["batches"], empty["first_offset"], empty["record_bytes"]["p50"]) == (0, None, None)
    assert (hollow["batches"], hollow["empty_batches"], hollow["records"], hollow["last_offset"]) == (1, 1, 0, 3)


def test_distributions_are_exact_for_small_numbers_and_close_for_large_ones() -> None:
    numbers = np.concatenate([np.arange(4096), np.geomspace(4096, 2**31 - 1, 5000).astype(np.int64)])
    found = Distribution()
    for part in np.array_split(np.random.default_rng(0).permutation(numbers), 7):
        found.add(part)
    assert (found.count, found.smallest, found.largest) == (len(numbers), 0, 2**31 - 1)
    assert found.mean == pytest.approx(numbers.mean())
    for percent in (1, 10, 40, 50, 90, 99, 100):
        expected = int(np.percentile(numbers, percent, method="inverted_cdf"))
        if expected < 4096:
            assert found.percentile(percent) == expected
        else:
            assert expected <= (found.percentile(percent) or 0) <= expected * 1.01
