"""What a report finds wrong, and the numbers that it gives as the reason."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from report_pages import Page
from transaction_logs import COMMIT, marker, txn

import kbatch

HOUR = 3_600_000


def log_of(root: Path, name: str, *batches: bytes) -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "00000000000000000000.log").write_bytes(b"".join(batches))
    return root


def findings(root: Path, out: Path) -> list[str]:
    return [each.finding for each in kbatch.write_report(root, out).advice]


@pytest.mark.parametrize("magic", [0, 1])
def test_single_messages_of_old_formats_are_no_tiny_batches(magic: int, tmp_path: Path) -> None:
    batches = [kbatch.encode([b"v" * 20], base_offset=i, magic=magic) for i in range(200)]
    found = findings(log_of(tmp_path / "logs", "t-0", *batches), tmp_path / "r.html")
    assert not [finding for finding in found if "tiny batches" in finding]
    assert "200 batches in the message format of Kafka before 0.11" in found


def test_the_headers_of_tiny_batches_are_those_of_magic_2(tmp_path: Path) -> None:
    new = [kbatch.encode([b"v" * 20], base_offset=i) for i in range(60)]
    old = [kbatch.encode([b"v" * 20], base_offset=60 + i, magic=1) for i in range(40)]
    found = findings(log_of(tmp_path / "logs", "t-0", *new, *old), tmp_path / "r.html")
    (finding,) = [finding for finding in found if "tiny batches" in finding]
    assert finding.endswith(f"{61 * 60 / len(b''.join([*new, *old])):.0%} of the topic")


def test_skew_is_a_multiple_of_the_average_partition(tmp_path: Path) -> None:
    for number in range(400):
        records = 100 if number == 7 else 10
        log_of(tmp_path / "logs", f"t-{number}", kbatch.encode([b"v" * 40] * records))
    found = findings(tmp_path / "logs", tmp_path / "r.html")
    (finding,) = [finding for finding in found if "skewed" in finding]
    assert finding.startswith("skewed partitions: t-7 has 4.7 KiB, 8.")
    assert finding.endswith(" times the average of 400 partitions")


def test_a_transaction_at_the_end_of_an_idle_log_is_a_problem(tmp_path: Path) -> None:
    begin = round(time.time() * 1000) - 72 * HOUR
    logs = log_of(tmp_path / "logs", "t-0", txn(0, 1, base_timestamp=begin, max_timestamp=begin))
    (found,) = kbatch.write_report(logs, tmp_path / "r.html").advice
    assert (found.level, found.where) == ("problem", "t")
    assert found.finding == "1 transaction open at the end of the log, begun more than 15 minutes before this report"


def test_a_transaction_that_has_just_begun_is_no_problem(tmp_path: Path) -> None:
    begin = round(time.time() * 1000) - 60_000
    logs = log_of(tmp_path / "logs", "t-0", txn(0, 1, base_timestamp=begin, max_timestamp=begin))
    report = kbatch.write_report(logs, tmp_path / "r.html")
    assert (report.open_transactions, report.advice) == (1, ())


def test_a_hanging_transaction_is_counted_once(tmp_path: Path) -> None:
    begin = round(time.time() * 1000) - 72 * HOUR
    batches = [
        txn(0, 1, base_timestamp=begin, max_timestamp=begin),
        txn(1, 2, base_timestamp=begin + HOUR, max_timestamp=begin + HOUR),
        marker(2, 2, COMMIT, base_timestamp=begin + HOUR),
    ]
    (found,) = kbatch.write_report(log_of(tmp_path / "logs", "t-0", *batches), tmp_path / "r.html").advice
    assert found.finding.startswith(
        "1 transaction open for more than 15 minutes when the log ends; the longest for 1 h"
    )


def test_the_summary_leaves_out_times_in_the_future(tmp_path: Path) -> None:
    now = 1_700_000_000_000
    batches = [
        kbatch.encode([b"v"] * 3, timestamps=[now, now + 90_000, 2**63 - 1]),
        kbatch.encode([b"v"], base_offset=3, timestamps=-1),
    ]
    kbatch.write_report(log_of(tmp_path / "logs", "t-0", *batches), tmp_path / "r.html")
    (tile,) = [text for text in Page(tmp_path / "r.html").texts["li"] if "from 2023" in text]
    assert tile == "1 min 30 sfrom 2023-11-14 22:13:20 to 2023-11-14 22:14:50; 1 record in the future"
