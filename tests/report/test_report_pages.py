"""The page of a report: escaping, size, its parts, and logs with nothing, damage or absurd values."""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from golden_logs import LOGS
from log_batches import write_segment
from report_logs import BEGIN, DAY, write_report_logs
from report_pages import Page, cells, number
from transaction_logs import ABORT, COMMIT, damaged, marker, txn

import kbatch
from kbatch.log.check import statistics
from kbatch.report.pictures import Pictures
from kbatch.report.scales import time_ticks

HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_KEY = b"</td><script>alert('k')</script>&\x1b[31m\xff\xe2\x80\xae"


def made(logs: Path | kbatch.log.LogList, out: Path) -> tuple[kbatch.Report, Page]:
    report = kbatch.write_report(logs, out)
    return report, Page(out)


def log_of(root: Path, name: str, *batches: bytes) -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "00000000000000000000.log").write_bytes(b"".join(batches))
    return root


def test_names_and_keys_are_escaped(tmp_path: Path) -> None:
    values = [b"<b>"] * 100
    keys = [HOSTILE_KEY] * 50 + [b"key-%d" % number for number in range(50)]
    logs = log_of(tmp_path / "a<b>\x1b\udcff", f"{HOSTILE}-0", kbatch.encode(values, keys=keys, timestamps=BEGIN))
    _, page = made(logs, tmp_path / "report.html")
    assert "<img" not in page.source
    assert "<script" not in page.source
    assert {tag for tag, _ in page.attributes} & {"img", "script", "b"} == {"b"}
    assert not [text for text in page.texts["b"] if "<" in text and HOSTILE not in text]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", page.source)
    assert any(HOSTILE in text for text in page.texts["th"])
    assert not [name for _, attributes in page.attributes for name in attributes if name.startswith("on")]


def test_hostile_keys_are_shown_as_text(tmp_path: Path) -> None:
    pytest.importorskip("datasketches")
    keys = [HOSTILE_KEY] * 50 + [b"key-%d" % number for number in range(50)]
    logs = log_of(tmp_path / "logs", "t-0", kbatch.encode([b""] * 100, keys=keys, timestamps=BEGIN))
    _, page = made(logs, tmp_path / "report.html")
    (row,) = page.table("Keys with")
    assert row["key"] == r"</td><script>alert('k')</script>&\x1b[31m\xff\u202e"
    assert row["records"] == "50"


def test_a_page_needs_no_network_and_runs_no_scripts(tmp_path: Path) -> None:
    _, page = made(write_report_logs(tmp_path / "logs", 3000), tmp_path / "report.html")
    tags = {tag for tag, _ in page.attributes}
    assert not tags & {"script", "link", "iframe", "object", "embed", "img", "base", "form"}
    assert "http://" not in page.source
    assert "https://" not in page.source
    assert "url(" not in page.source
    assert ("meta", "default-src 'none'; style-src 'unsafe-inline'") in [
        (tag, attributes.get("content")) for tag, attributes in page.attributes
    ]
    targets = [attributes["href"] for tag, attributes in page.attributes if tag == "a"]
    names = {attributes.get("id") for _, attributes in page.attributes}
    assert {f"#{name}" for name in names} >= set(targets)
    assert "prefers-color-scheme:dark" in page.source


def test_pictures_have_texts_and_tables_have_headers(tmp_path: Path) -> None:
    _, page = made(write_report_logs(tmp_path / "logs", 3000), tmp_path / "report.html")
    pictures = [attributes for tag, attributes in page.attributes if tag == "svg"]
    assert len(pictures) > 8
    names = [name for each in pictures for name in (each["aria-labelledby"] or "").split()]
    assert len(set(names)) == len(names) == 2 * len(pictures)
    assert {attributes.get("id") for tag, attributes in page.attributes if tag in ("title", "desc")} >= set(names)
    assert all(page.texts["desc"])
    assert len(page.texts["table"]) == len(page.tables) == len(page.texts["caption"])
    assert all("scope" in attributes for tag, attributes in page.attributes if tag == "th")


@pytest.mark.parametrize("hours", [1, 36, 47.9, 72, 100, 24 * 300])
def test_texts_of_time_axes_do_not_overlap(hours: float) -> None:
    begin = 1_772_409_600_000
    picture = Pictures().areas("t", "d", [], time_ticks(begin, begin + int(hours * 3_600_000)), [(0, "0"), (1, "1")])
    ends = []
    for x, anchor, text in re.findall(r'<text x="([\d.]+)" y="164"(?: text-anchor="(\w+)")?>([^<]*)<', picture):
        width = 6.3 * len(text)
        left = float(x) - {"": 0, "middle": width / 2, "end": width}[anchor]
        assert not ends or left > ends[-1]
        ends.append(left + width)
    assert len(ends) >= 2


def test_a_page_has_at_most_a_megabyte(tmp_path: Path) -> None:
    """Also with 400 topics with long names and keys, each with damage and transactions."""
    rng = np.random.default_rng(1)
    for topic in range(400):
        producers = [int(each) for each in rng.integers(1, 1 << 62, 12)]
        batches = [txn(3 * i, producer, 3, base_timestamp=BEGIN + i) for i, producer in enumerate(producers)]
        data = b"".join([*batches, *(damaged(batch) for batch in batches)])
        log_of(tmp_path / "logs", f"{chr(39) * 200}{topic:03}-{topic}", data)
    report, page = made(tmp_path / "logs", tmp_path / "report.html")
    assert report.topics == 400
    assert len(page.source.encode()) < 1_000_000
    assert "and 350 more" in page.source


@pytest.mark.parametrize("batches", [[], [kbatch.encode_empty(base_offset=0, last_offset=4)]])
def test_a_log_without_records_has_a_page(batches: list[bytes], tmp_path: Path) -> None:
    report, page = made(log_of(tmp_path / "logs", "t-0", *batches), tmp_path / "report.html")
    assert (report.records, report.losses, report.advice) == (0, 0, ())
    assert page.row("Partitions", "t-0")["records"] == "0"
    assert "There are no transactions." in page.source


def test_absurd_times_are_counted_and_do_not_stretch_the_axis(tmp_path: Path) -> None:
    times = [-1, -1, 2**63 - 1, 2**62, *(BEGIN + 1000 * i for i in range(3600))]
    logs = log_of(tmp_path / "logs", "t-0", kbatch.encode([b"v"] * len(times), timestamps=times))
    report, page = made(logs, tmp_path / "report.html")
    row = page.row("Lateness by topic", "t")
    assert cells(row, "without a time", "in the future", "late", "records timed by producers") == [2, 2, 0, 3600]
    assert "Records per 30 seconds" in page.source
    assert "Not drawn: 2 records at times far from all others." in page.source
    assert {each.where for each in report.advice} >= {"t"}


def test_logs_of_the_same_partition_are_drawn_once_each(tmp_path: Path) -> None:
    for name, count in (("t-0", 3), (f"t-0.{'0' * 32}-future", 4)):
        log_of(tmp_path / "logs", name, kbatch.encode([b"v"] * count, timestamps=BEGIN))
    log_of(tmp_path / "other", "t-0", kbatch.encode([b"v"] * 5, timestamps=BEGIN))
    logs = [*kbatch.find_logs(tmp_path / "logs", marked=True), kbatch.Log(tmp_path / "other" / "t-0")]
    report, page = made(kbatch.log.LogList(logs), tmp_path / "report.html")
    assert report.records == 12
    assert sorted(row["partition"] for row in page.table("Partitions")) == ["t-0", "t-0", "t-0 (future)"]
    assert "At most 12 per millisecond" in page.source


def test_times_of_the_broker_are_never_late(tmp_path: Path) -> None:
    batches = [
        kbatch.encode([b"v"] * 2, base_offset=2 * i, timestamp_type="log_append_time", append_time=BEGIN - i)
        for i in range(10)
    ]
    _, page = made(log_of(tmp_path / "logs", "t-0", *batches), tmp_path / "report.html")
    assert cells(page.row("Lateness by topic", "t"), "late", "timed by the broker") == [0, 20]


def test_damage_is_skipped_and_listed(tmp_path: Path) -> None:
    batches = [kbatch.encode([b"v"] * 10, base_offset=10 * i, timestamps=BEGIN + i) for i in range(20)]
    batches[7] = damaged(batches[7])
    logs = log_of(tmp_path / "logs", "t-0", *batches, b"rubbish")
    report, page = made(logs, tmp_path / "report.html")
    found = list(kbatch.Log(logs / "t-0").tables(on_error="skip"))
    losses = [loss for table in found for loss in table.losses]
    assert (report.losses, report.records) == (len(losses), 190)
    assert report.lost_bytes == sum(loss.length for loss in losses)
    rows = page.table("Damaged places")
    assert [number(row["byte"]) for row in rows] == [loss.position for loss in losses]
    assert rows[0]["offset"] == "70"
    assert (rows[0]["partition"], rows[0]["file"]) == ("t-0", "00000000000000000000.log")
    assert number(page.row("Missing offsets", "t-0")["lost"]) == 10
    assert any(each.level == "problem" and "damaged" in each.finding for each in report.advice)


@pytest.mark.parametrize("seed", range(10))
def test_random_damage_never_prevents_a_report(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for path in sorted(LOGS.rglob("*.log")):
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([0, 1, 5, 40]) if data else 0):
            at = rng.randrange(len(data))
            extreme = rng.choice([-1, 0, 1 << 40, (1 << 63) - 1, -(1 << 63)]).to_bytes(8, signed=True)
            data[at : at + rng.choice([0, 1, 8, 100])] = rng.choice([b"", b"\xff", extreme, bytes(50)])
        copy = tmp_path / "logs" / path.relative_to(LOGS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
    report, page = made(tmp_path / "logs", tmp_path / "report.html")
    lost = [statistics.log_statistics(log).losses for log in kbatch.find_logs(tmp_path / "logs")]
    assert report.losses == sum(lost)
    assert len(page.table("Partitions")) == len(lost)


def test_a_missing_segment_is_a_gap(tmp_path: Path) -> None:
    for base in (0, 100, 300):
        batch = kbatch.encode([b"v"] * 100, base_offset=base, timestamps=BEGIN)
        write_segment(tmp_path / "logs" / "t-0", base, [batch])
    report, page = made(tmp_path / "logs", tmp_path / "report.html")
    assert (report.losses, report.lost_bytes, report.missing_offsets) == (1, 0, 100)
    (row,) = page.table("Damaged places")
    assert cells(row, "lost bytes", "offset") == [0, 200]
    assert number(page.row("Missing offsets", "t-0")["lost"]) == 100


def test_transactions_are_open_aborted_or_without_a_marker(tmp_path: Path) -> None:
    batches = [
        txn(0, 1, 2, base_timestamp=BEGIN), marker(2, 1, COMMIT, base_timestamp=BEGIN + 500),
        txn(3, 2, 2, base_timestamp=BEGIN), marker(5, 2, ABORT, base_timestamp=BEGIN + 90_000),
        txn(6, 3, 2, base_timestamp=BEGIN), damaged(marker(8, 3, COMMIT)),
        txn(9, 4, 2, base_timestamp=BEGIN), txn(11, 5, 1, base_timestamp=BEGIN + DAY),
    ]  # fmt: skip
    report, page = made(log_of(tmp_path / "logs", "t-0", *batches), tmp_path / "report.html")
    row = page.row("Transactions by partition", "t-0")
    assert cells(row, "committed", "aborted", "undecided", "open") == [1, 1, 1, 2]
    shown = {each["producer and partition"]: each for each in page.table("The same transactions")}
    assert {name: each["outcome"] for name, each in shown.items()} == {
        "4 · t-0": "open", "5 · t-0": "open", "3 · t-0": "undecided", "2 · t-0": "aborted", "1 · t-0": "committed"
    }  # fmt: skip
    assert [shown[f"{producer} · t-0"]["duration"] for producer in (1, 2, 4)] == ["500 ms", "1 min 30 s", "1 d"]
    assert report.open_transactions == 2
    problems = [each.finding for each in report.advice if each.level == "problem"]
    assert any("1 transaction open for more than 15 minutes" in each for each in problems)
    assert any("1 transaction whose marker is lost" in each for each in problems)


def test_all_hanging_transactions_are_counted_and_some_are_listed(tmp_path: Path) -> None:
    times = [BEGIN + 1000 * i for i in range(2000)]
    batches = [txn(i, i + 1, base_timestamp=when, max_timestamp=when) for i, when in enumerate(times)]
    report, page = made(log_of(tmp_path / "logs", "t-0", *batches), tmp_path / "report.html")
    assert report.open_transactions == 2000
    older = sum(times[-1] - when > 900_000 for when in times)
    assert f"{older:,} transactions open for more than 15 minutes" in report.advice[0].finding
    assert page.table("The same transactions")[0]["producer and partition"] == "1 · t-0"
    assert len(page.table("The same transactions")) < 50


def test_memory_does_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both logs are read in several tables."""
    monkeypatch.setattr(statistics, "TABLE_BYTES", 4 << 20)
    peaks = []
    for count in (200_000, 800_000):
        logs = tmp_path / str(count)
        (logs / "t-0").mkdir(parents=True)
        with open(logs / "t-0" / "00000000000000000000.log", "wb") as file:
            for start in range(0, count, 100_000):
                numbers = np.arange(start, start + 100_000)
                file.write(
                    kbatch.encode(
                        numbers, keys=numbers * 7919, timestamps=BEGIN + numbers, base_offset=start, max_records=50
                    )
                )
        tracemalloc.start()
        report = kbatch.write_report(logs, tmp_path / "report.html")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert report.records == count
    assert peaks[1] < 1.15 * peaks[0]
