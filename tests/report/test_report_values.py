"""The values of a report are those that are computed from the records one by one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_logs import write_report_logs
from report_pages import Page, cells, number

import kbatch
from kbatch.escaping import format_time
from kbatch.report.scales import format_duration

Record = dict[str, Any]


class Written:
    """The logs of the tests, their records as Python objects, and the page."""

    def __init__(self, root: Path) -> None:
        self.root = write_report_logs(root / "logs", 6000)
        self.report = kbatch.write_report(self.root, root / "report.html")
        self.page = Page(root / "report.html")
        self.logs = {f"{log.topic}-{log.partition}": log for log in kbatch.find_logs(self.root)}
        self.records: dict[str, list[Record]] = {
            name: log.to_arrow(columns=["key", "value", "offset", "timestamp"]).to_pylist()
            for name, log in self.logs.items()
        }

    def of_topic(self, topic: str) -> list[Record]:
        return [record for name, found in self.records.items() if name.startswith(f"{topic}-") for record in found]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("report"))


def milliseconds(record: Record) -> int:
    return round(record["timestamp"].timestamp() * 1000)


def test_the_rows_of_partitions_have_their_records_segments_and_times(written: Written) -> None:
    for name, records in written.records.items():
        row = written.page.row("Partitions", name)
        assert cells(row, "records", "segments") == [len(records), len(written.logs[name].segments)]
        times = [milliseconds(record) for record in records]
        assert (row["first time (UTC)"], row["last time (UTC)"]) == (format_time(min(times)), format_time(max(times)))


def test_the_summary_has_the_sums(written: Written) -> None:
    report = written.report
    assert (report.logs, report.topics) == (9, 4)
    assert report.records == sum(map(len, written.records.values()))
    assert report.bytes == sum(log.size for log in written.logs.values())
    assert (report.losses, report.open_transactions) == (0, 1)


def test_ratios_are_those_of_the_decompressed_payloads(written: Written) -> None:
    stored = plain = 0
    for name, log in written.logs.items():
        if name.startswith("orders-"):
            for segment in log.segments:
                data = Path(segment.path).read_bytes()
                uncompressed = kbatch.recompress(data, "none")
                uncompressed = uncompressed if isinstance(uncompressed, bytes) else uncompressed[0]
                batches = len(kbatch.scan(data))
                stored += len(data) - 61 * batches
                plain += len(uncompressed) - 61 * batches
    shown = float(written.page.row("Topics", "orders")["compression ratio"].removesuffix("x"))
    assert shown == pytest.approx(plain / stored, rel=0.02)


def test_late_records_are_those_with_an_earlier_time_than_one_before(written: Written) -> None:
    late: list[int] = []
    for name, records in written.records.items():
        latest = 0
        for record in records if name.startswith("orders-") else ():
            latest = max(latest, milliseconds(record))
            late += [latest - milliseconds(record)] if milliseconds(record) < latest else []
    row = written.page.row("Lateness by topic", "orders")
    assert number(row["late"]) == len(late) > 50
    assert row["latest"] == format_duration(max(late))
    assert [number(written.page.row("Lateness by topic", "clicks")[name]) for name in ("late", "in the future")] == [
        0,
        0,
    ]


def test_missing_offsets_are_those_without_a_record(written: Written) -> None:
    offsets = [record["offset"] for record in written.records["customers-0"]]
    row = written.page.row("Missing offsets", "customers-0")
    assert number(row["missing"]) == offsets[-1] + 1 - len(offsets) > 0
    assert row["offsets"] == f"0 to {offsets[-1]:,}"
    assert number(row["lost"]) == 0
    assert number(row["batches written by the log cleaner"]) > 0


def test_producers_have_their_batches_and_records(written: Written) -> None:
    batches: Counter[int] = Counter()
    records: Counter[int] = Counter()
    for batch in written.logs["payments-0"].batches():
        if not batch["attributes"] & 0x20:
            batches[int(batch["producer_id"])] += 1
            records[int(batch["producer_id"])] += int(batch["record_count"])
    rows = [row for row in written.page.table("Producers") if row["topic"] == "payments"]
    assert {number(row["producer id"]): cells(row, "batches", "records") for row in rows} == {
        producer: [batches[producer], records[producer]] for producer in batches
    }


def test_transactions_are_counted_and_the_longest_are_listed(written: Written) -> None:
    found = written.logs["payments-0"].transactions()
    row = written.page.row("Transactions by partition", "payments-0")
    assert cells(row, "aborted", "open", "undecided") == [len(found.aborted), len(found.open), 0]
    assert cells(row, "committed")[0] > 0
    shown = written.page.table("The same transactions")
    (still,) = [each for each in shown if each["outcome"] == "open"]
    assert still["producer and partition"].startswith(f"{found.open[0].producer_id} ")
    assert still["offsets"] == f"{found.open[0].first_offset:,} to ?"
    # The times of the first batch and of the marker of an aborted transaction.
    by_offset = {int(batch["base_offset"]): batch for batch in written.logs["payments-0"].batches()}
    durations = {
        f"{row['first_offset']:,} to {row['last_offset']:,}": int(
            by_offset[row["last_offset"]]["base_timestamp"] - by_offset[row["first_offset"]]["base_timestamp"]
        )
        for row in found.aborted
    }
    aborted = [each for each in shown if each["outcome"] == "aborted"]
    assert aborted
    assert all(each["duration"] == format_duration(durations[each["offsets"]]) for each in aborted)


def test_tombstones_are_records_with_a_key_and_a_null_value(written: Written) -> None:
    count = sum(record["value"] is None and record["key"] is not None for record in written.of_topic("customers"))
    assert number(written.page.row("Tombstones by topic", "customers")["tombstones"]) == count > 0
    assert [row["topic"] for row in written.page.table("Tombstones by topic")] == ["customers"]


def test_sizes_have_the_mean_and_the_largest_of_records(written: Written) -> None:
    sizes = [len(record["key"] or b"") + len(record["value"] or b"") for record in written.of_topic("clicks")]
    row = written.page.row("Sizes by topic", "clicks")
    assert row["bytes of a record: mean"] == f"{round(np.mean(sizes), 2):,.1f}"
    assert row["largest record"] == f"{max(sizes)} bytes"
    assert (row["records of a batch: mean"], row["records of a batch: p99"]) == ("2.0", "2")


def test_keys_are_estimated_within_their_bounds(written: Written) -> None:
    pytest.importorskip("datasketches")
    for topic in ("orders", "customers", "payments"):
        keys = Counter(record["key"] for record in written.of_topic(topic) if record["key"] is not None)
        row = written.page.row("Keys by topic", topic)
        assert number(row["records with a key"]) == sum(keys.values())
        # Three times the standard error.
        assert number(row["different keys, about"]) == pytest.approx(len(keys), rel=0.02)
    keys = Counter(record["key"] for record in written.of_topic("orders"))
    frequent = [row for row in written.page.table("Keys with") if row["topic"] == "orders"]
    assert [row["key"] for row in frequent[:3]] == [key.decode() for key, _ in keys.most_common(3)]
    for row in frequent:
        least, _, most = row["records"].partition(" to ")
        assert number(least) <= keys[row["key"].encode()] <= number(most or least)


def test_keys_need_the_extra_and_all_else_does_not(written: Written, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasketches", None)
    kbatch.write_report(written.root, tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert "Keys were not counted: the package datasketches, of the extra report" in page.source
    assert page.table("Partitions") == written.page.table("Partitions")


def test_settings_that_look_wrong_are_named_with_a_change(written: Written) -> None:
    found = {(each.level, each.where, each.finding.partition(":")[0]) for each in written.report.advice}
    assert ("setting", "clicks", "tiny batches") in found
    assert ("setting", "clicks", "no compression") in found
    assert ("setting", "orders", "skewed partitions") in found
    assert any(where == "payments-0" and level == "problem" for level, where, _ in found)
    assert all(each.change for each in written.report.advice)
    assert not any(where == "customers" for _, where, _ in found)
    advice = "".join(written.page.texts["li"])
    assert all(each.finding in advice for each in written.report.advice)


def test_topics_and_partitions_are_chosen(written: Written, tmp_path: Path) -> None:
    report = kbatch.write_report(written.root, tmp_path / "r.html", topics="orders", partitions=[1, 2])
    assert (report.logs, report.records) == (2, sum(len(written.records[f"orders-{n}"]) for n in (1, 2)))
    assert "only topics orders and partitions 1, 2" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("topics", "shown"), [(["orders", "pay*"], "orders, pay*"), (["orders", re.compile("pay.*")], "orders, pay.*")]
)
def test_chosen_topics_are_shown_as_they_were_given(written: Written, tmp_path: Path, topics: Any, shown: str) -> None:
    kbatch.write_report(written.root, tmp_path / "r.html", topics=topics)
    assert f"only topics {shown}<" in (tmp_path / "r.html").read_text()
