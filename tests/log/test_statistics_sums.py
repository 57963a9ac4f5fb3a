"""Sums of statistics by topic and codec; control records and open transactions next to records in every command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_logs import LOGS

import kbatch
from kbatch.cli import main
from kbatch.log import compare_logs, log_statistics, sum_statistics
from kbatch.log.check.verification import verify_log
from kbatch.sinks.task_transactions import TaskTransactions
from kbatch.transactions import OpenTransaction

OPEN = [OpenTransaction(1002, 362, 1_700_000_040_000), OpenTransaction(1004, 367, 1_700_000_040_000)]
SHOWN = "2 open transactions (producer 1002 from offset 362 since 2023-11-14 22:14:00, producer 1004 from offset 367"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return two topics with three topic-partitions."""
    for source, name in (("txn-0", "orders-0"), ("codec-zstd-0", "orders-1"), ("codec-lz4-0", "payments-0")):
        shutil.copytree(LOGS / source, tmp_path / "logs" / name)
    return tmp_path / "logs"


@pytest.mark.parametrize("how", [[], ["--headers-only"]])
def test_sums_are_those_of_the_logs(how: list[str], logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", *how, str(logs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    orders, payments = found["topics"]
    assert (orders["topic"], payments["topic"]) == ("orders", "payments")
    for sums, parts in ((orders, found["logs"][:2]), (payments, found["logs"][2:]), (found["totals"], found["logs"])):
        assert sums["logs"] == len(parts)
        for name in ("segments", "bytes", "batches", "control_batches", "records", "control_records", "lost_bytes"):
            assert sums[name] == sum(each[name] for each in parts), name
        for name in ("tombstones", "null_keys", "damaged_batches"):
            assert sums[name] == (None if how else sum(each[name] for each in parts)), name
        for codec, entry in sums["codecs"].items():
            for name in ("batches", "bytes", "control_batches", "control_bytes"):
                assert entry[name] == sum(each["codecs"].get(codec, {}).get(name, 0) for each in parts)
        assert sums["transactions"]["open"] == sum(each["transactions"]["open"] for each in parts)
    assert (orders["open_since"], payments["open_since"]) == (OPEN[0].first_timestamp, None)
    codecs = found["totals"]["codecs"]
    assert sum(entry["bytes"] for entry in codecs.values()) == found["totals"]["bytes"]
    assert codecs["none"]["control_batches"] == 34


def test_sums_are_printed_without_details(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(logs)]) == 0
    by_log, by_topic, by_codec, still_open = (x.splitlines() for x in capsys.readouterr().out.split("\n\n"))
    assert [line.split()[0] for line in by_log] == ["topic-partition", "orders-0", "orders-1", "payments-0", "all"]
    assert by_topic[0].split()[:6] == ["topic", "partitions", "batches", "records", "control", "open"]
    assert by_topic[1].split()[:6] == ["orders", "2", "195", "3,481", "34", "2"]
    assert by_topic[3].split()[:6] == ["all", "3", "225", "6,689", "34", "2"]
    assert "lz4 61.2 KiB (2.70x)" in by_topic[2]
    assert [line.split()[0] for line in by_codec] == ["codec", "gzip", "lz4", "none", "snappy", "zstd"]
    assert still_open[0] == "2 open transactions:"
    assert still_open[2].split() == ["orders-0", "1002", "362", "2023-11-14", "22:14:00"]


def test_the_functions_return_the_same(logs: Path) -> None:
    topics, total = sum_statistics([(log.topic, log_statistics(log)) for log in kbatch.find_logs(logs)])
    assert [(each.topic, each.logs, each.records, each.control_records, each.open) for each in topics] == [
        ("orders", 2, 3481, 34, 2),
        ("payments", 1, 3208, 0, 0),
    ]
    one = log_statistics(kbatch.Log(logs / "orders-0"))
    assert (total.topic, total.records, total.producers, list(one.open_transactions)) == (None, 6689, 7, OPEN)
    with pytest.raises(TypeError, match="logs must be pairs"):
        sum_statistics([1])  # type: ignore[list-item]


def test_verify_and_diff_state_control_records_and_open_transactions(capsys: pytest.CaptureFixture[str]) -> None:
    log = kbatch.Log(LOGS / "txn-0")
    report = verify_log(log.segments)
    assert (report.records, report.control_records, list(report.open_transactions)) == (337, 34, OPEN)
    for match in ("offset", "order", "key"):
        (pair,) = compare_logs(log, log, match=match).partitions
        assert pair.a is not None
        assert (pair.a.records, pair.a.control_records, list(pair.a.open_transactions)) == (337, 34, OPEN)
    assert main(["verify", str(LOGS / "txn-0")]) == 0
    printed = capsys.readouterr().out
    assert "337 records, 34 control records, " in printed
    assert SHOWN in printed
    assert main(["diff", str(LOGS / "txn-0"), str(LOGS / "codec-zstd-0")]) == 1
    printed = capsys.readouterr().out
    assert "  A: 34 control records, not compared\n" in printed
    assert f"  A: {SHOWN}" in printed
    assert "  B: " not in printed


def test_a_part_of_a_log_has_the_control_records_in_it() -> None:
    log = kbatch.Log(LOGS / "txn-0")
    (pair,) = compare_logs(log, log, start_offset=10, stop_offset=60).partitions
    tables = log.tables(start_offset=10, stop_offset=60, include_control=True)
    assert pair.a is not None
    assert pair.a.control_records == sum(len(kbatch.control_records(table)) for table in tables)


@pytest.mark.parametrize(
    ("flags", "records", "control"),
    [([], 337, 34), (["--control"], 371, 34), (["--isolation", "read_committed"], 228, 33)],
    ids=str,
)
def test_exports_state_control_records_and_open_transactions(
    flags: list[str], records: int, control: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    main(["export", str(LOGS / "txn-0"), str(tmp_path / "out"), "--engine", "local", *flags, "--json"])
    found = json.loads(capsys.readouterr().out)
    (part,) = found["logs"]
    assert (found["records"], found["control_records"]) == (records, control)
    assert (part["records"], part["control_records"]) == (records, control)
    assert found["include_control"] == ("--control" in flags)
    assert (part["open_count"], part["open_transactions"]) == (2, [each._asdict() for each in OPEN])
    main(["export", str(LOGS / "txn-0"), str(tmp_path / "text"), "--engine", "local", *flags])
    lines = capsys.readouterr().out.splitlines()
    headline = "337 records, 34 control records of" if "--control" in flags else f"{records} records of"
    assert lines[0].startswith(headline)
    assert f"  control    {control} control records, {'written' if '--control' in flags else 'not written'}" in lines
    assert "2 open transactions:" in lines


def opened(batches: Any) -> list[OpenTransaction]:
    """Return the transactions without a marker after them, by first offset."""
    still: dict[int, OpenTransaction] = {}
    for batch in batches[(batches["attributes"] & 0x10 != 0) & (batches["producer_id"] >= 0)]:
        producer = int(batch["producer_id"])
        if batch["attributes"] & 0x20:
            still.pop(producer, None)
        elif producer not in still:
            still[producer] = OpenTransaction(producer, int(batch["base_offset"]), int(batch["base_timestamp"]))
    return sorted(still.values(), key=lambda each: each.first_offset)


@pytest.mark.parametrize("rows", [1, 2, 7, 50, 1000])
def test_tasks_find_the_open_transactions_of_the_whole_log(rows: int) -> None:
    """Any division of a log into tasks, and of these into tables, has the same result."""
    batches = np.concatenate([table.batches for table in kbatch.Log(LOGS / "txn-0").tables(include_control=True)])
    for end in range(0, len(batches), 5):
        found = TaskTransactions()
        for begin in range(0, end, rows):
            part = batches[begin : min(begin + rows, end)]
            half = len(part) // 2
            found = found.then(TaskTransactions().with_batches(part[:half], None).with_batches(part[half:], None))
        assert found.transactions() == opened(batches[:end])


def test_lost_bytes_may_have_ended_transactions() -> None:
    table = next(iter(kbatch.Log(LOGS / "txn-0").tables(include_control=True)))
    batches = table.batches
    before = TaskTransactions().with_batches(batches[:3], None)
    assert before.transactions() == opened(batches[:3])
    assert before.opened
    after = before.with_batches(batches[3:15], int(batches["position"][9]))
    assert after.ends_all
    assert after.transactions() == opened(batches[10:15])
    assert before.then(after) == after
