"""isolation="read_committed" on Spark: the data source, its table of transactions, the export, and raw batches."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from golden_logs import COMMITTED, LOGS, TXN_FACTS, TXN_LOG
from log_batches import write_segment
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn

import kbatch
from kbatch.cli import main

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from kbatch.log.selection import open_selected
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions, parse_options
from kbatch.plan.tasks import task_tables

pytestmark = pytest.mark.spark


def load(spark: Any, path: object, schema: str | None = None, **options: str) -> Any:
    reader = spark.read.format("kbatch").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(path))


def offsets(spark: Any, path: object, **options: str) -> list[int]:
    options = {"isolationLevel": "read_committed", **options}
    return sorted(row.offset for row in load(spark, path, "offset long", **options).collect())


def planned(path: object, **options: Any) -> tuple[list[int], list[kbatch.records.data.Loss]]:
    """Offsets in the order of tasks, and losses, without a session."""
    chosen = ReadOptions(**{"isolation": "read_committed", **options})
    have, losses = [], []
    for task in plan(open_selected([str(path)]), chosen):
        # As they reach a worker.
        for _, table in task_tables(pickle.loads(pickle.dumps(task)), chosen):
            have += table.records["offset"].tolist()
            losses += table.losses
    return have, losses


def write_log(directory: Path, *segments: tuple[int, Sequence[bytes]]) -> Path:
    for base_offset, batches in segments:
        write_segment(directory, base_offset, batches)
    return directory


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three logs: one with a marker in its second segment, one with an open transaction, one without transactions.

    read_committed returns offsets 5, 6 and 8 of t-0, 0 and 1 of t-1, and all of plain-0.
    """
    root = tmp_path_factory.mktemp("several") / "logs"
    write_log(
        root / "t-0",
        (0, [txn(0, 7, 3), txn(3, 8, 2), data(5), data(6)]),
        (7, [marker(7, 7, ABORT), txn(8, 7), marker(9, 7, COMMIT), marker(10, 8, ABORT)]),
    )
    write_log(root / "t-1", (0, [data(0), data(1)]), (2, [txn(2, 9), data(3, count=2), txn(5, 7), marker(6, 7, ABORT)]))
    write_log(root / "plain-0", (0, [data(0, count=3), data(3, 4, 2)]))
    return root


# -- the data source


@pytest.mark.parametrize("split_bytes", ["4k", "128m"])
def test_any_split_gives_the_committed_offsets(spark: Any, split_bytes: str) -> None:
    """TXN-R15, LSO-R2: a marker decides records in other splits, segments and tasks."""
    frame = load(spark, TXN_LOG, "offset long", splitBytes=split_bytes, isolationLevel="read_committed")
    assert (frame.rdd.getNumPartitions() == 1) == (split_bytes == "128m")
    assert sorted(row.offset for row in frame.collect()) == COMMITTED


@pytest.mark.parametrize("split_bytes", [1, 500, 2000, 6000, 1 << 27])
def test_rows_have_the_order_of_the_log(split_bytes: int) -> None:
    assert planned(TXN_LOG, split_bytes=split_bytes) == (COMMITTED, [])


@pytest.mark.parametrize("window", [(0, 20), (16, 30), (19, 26), (100, 187), (187, 290), (250, 371), (360, 365)])
def test_committed_records_within_offsets(spark: Any, window: tuple[int, int]) -> None:
    """A marker may be after the window's end, and its transaction may begin before the window."""
    start, stop = window
    expected = [offset for offset in COMMITTED if start <= offset < stop]
    bounds = {
        "startingOffsets": json.dumps({"txn": {"0": start}}),
        "endingOffsets": json.dumps({"txn": {"0": stop}}),
    }
    for split_bytes in (1, 1500, 1 << 27):
        chosen = parse_options({"path": "/x", **bounds})[1]
        assert planned(TXN_LOG, starting=chosen.starting, ending=chosen.ending, split_bytes=split_bytes) == (
            expected, []
        )  # fmt: skip
    assert offsets(spark, TXN_LOG, splitBytes="1500", **bounds) == expected


def test_the_isolation_option_has_two_names_and_a_default(spark: Any) -> None:
    everything = [record for table in kbatch.Log(TXN_LOG).tables() for record in table.records["offset"]]
    assert len(everything) > len(COMMITTED)
    names = ("isolationLevel", "ISOLATIONLEVEL", "kafka.isolation.level")
    for name in names:
        frame = load(spark, TXN_LOG, "offset long", **{name: "read_committed"})
        assert sorted(row.offset for row in frame.collect()) == COMMITTED
        assert load(spark, TXN_LOG, **{name: "read_uncommitted"}).count() == len(everything)
    assert sorted(row.offset for row in load(spark, TXN_LOG).collect()) == everything
    assert parse_options({"path": "/x"})[1].isolation == "read_uncommitted"
    for options, message in (
        ({"isolationLevel": "read_committed", "kafka.isolation.level": "read_committed"}, "exclude each other"),
        ({"isolationLevel": "serializable"}, "isolationLevel must be one of 'read_uncommitted', 'read_committed'"),
        ({"kafka.isolation.level": "READ"}, "kafka.isolation.level must be one of"),
    ):
        with pytest.raises(Exception, match=message):
            load(spark, TXN_LOG, **options)


def test_each_log_decides_its_own_transactions(spark: Any, several: Path) -> None:
    """A producer id has independent transactions in every partition."""
    for split_bytes in ("100", "128m"):
        frame = load(spark, several, splitBytes=split_bytes, isolationLevel="read_committed")
        got = sorted((row.topic, row.partition, row.offset) for row in frame.collect())
        assert got == [
            *(("plain", 0, offset) for offset in range(5)),
            *(("t", 0, offset) for offset in (5, 6, 8)),
            *(("t", 1, offset) for offset in (0, 1)),
        ]
    assert offsets(spark, several, subscribe="t", partitions="1") == [0, 1]


def test_control_records_with_read_committed(spark: Any, several: Path) -> None:
    assert offsets(spark, several, topics="t", partitions="0", includeControl="true") == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("split_bytes", [1, 100, 1 << 27])
def test_a_lost_marker_leaves_its_transaction_undecided(spark: Any, tmp_path: Path, split_bytes: int) -> None:
    bad = damaged(marker(4, 7, COMMIT))
    log = write_log(
        tmp_path / "t-0",
        (0, [data(0), txn(1, 8), marker(2, 8, COMMIT)]),
        (3, [txn(3, 7), bad, data(5), txn(6, 8)]),
        (7, [marker(7, 8, COMMIT), data(8)]),
    )
    have, losses = planned(log, on_error="skip", split_bytes=split_bytes)
    assert have == [0, 1, 5, 6, 8]
    assert [(loss.position, loss.length, loss.base_offset) for loss in losses] == [(len(txn(3, 7)), len(bad), 4)]
    assert offsets(spark, log, onError="skip", splitBytes=str(split_bytes)) == [0, 1, 5, 6, 8]
    states = load(spark, log, table="transactions", onError="skip").collect()
    expected = [(7, 3, 4, "undecided", None)]
    assert [(r.producer_id, r.first_offset, r.last_offset, r.state, r.last_stable_offset) for r in states] == expected
    (row,) = load(spark, log, table="losses", isolationLevel="read_committed").collect()
    assert (row.position, row.length) == (len(txn(3, 7)), len(bad))
    with pytest.raises(kbatch.CrcMismatchError):
        planned(log, split_bytes=split_bytes)
    # The next markers of the producer decide only its new transactions.
    write_log(log, (9, [txn(9, 7), marker(10, 7, ABORT), data(11), txn(12, 7), marker(13, 7, COMMIT)]))
    assert planned(log, on_error="skip", split_bytes=split_bytes)[0] == [0, 1, 5, 6, 8, 11, 12]


@pytest.mark.parametrize("split_bytes", [1, 100, 1 << 27])
def test_markers_after_damage_decide_transactions(tmp_path: Path, split_bytes: int) -> None:
    """A damaged length hides the next batches from a walk over headers, in planning and in tasks."""
    bad = bytearray(data(3))
    bad[8:12] = (1 << 20).to_bytes(4, "big")
    log = write_log(
        tmp_path / "t-0",
        (0, [txn(0, 7, 3), bytes(bad), txn(4, 8), marker(5, 7, ABORT), marker(6, 8, COMMIT)]),
        (7, [data(7)]),
    )
    have, losses = planned(log, on_error="skip", split_bytes=split_bytes)
    assert have == [4, 7]
    assert [loss.length for loss in losses] == [len(bad)]


def test_damage_gives_the_rows_and_losses_of_the_tables(spark: Any, tmp_path: Path) -> None:
    """With flipped bits in many batches, any splits give the rows and losses of a read without Spark."""
    log = tmp_path / "txn-0"
    shutil.copytree(TXN_LOG, log, copy_function=shutil.copyfile)
    for path in sorted(log.glob("*.log")):
        raw = bytearray(path.read_bytes())
        starts = kbatch.scan(raw)["position"].tolist()
        for row, at in ((3, 70), (9, 18), (11, 10), (15, 64), (-3, 8)):
            raw[starts[row] + at] ^= 4
        path.write_bytes(raw)
    for on_error in ("skip", "stop"):
        tables = list(kbatch.Log(log).tables(isolation="read_committed", on_error=on_error))  # type: ignore[arg-type]
        expected = [offset for table in tables for offset in table.records["offset"].tolist()]
        assert expected
        assert expected != COMMITTED
        assert offsets(spark, log, splitBytes="700", onError=on_error) == expected
        for split_bytes in (1, 700, 4000):
            have, losses = planned(log, on_error=on_error, split_bytes=split_bytes)
            assert have == expected
            assert losses == [loss for table in tables for loss in table.losses]


def test_damage_that_may_hide_markers_is_an_error_at_any_offset(spark: Any, tmp_path: Path) -> None:
    """With onError=raise, damage outside the requested offsets is an error if it may hide a marker of these records."""
    length = bytearray(data(2))
    length[8:12] = (5).to_bytes(4, "big")
    begin = [data(0), txn(1, 7)]
    for number, (hidden, error, at, left) in enumerate(
        (
            ([bytes(length), marker(3, 7, COMMIT)], kbatch.CorruptBatchError, 0, [0, 1, 4, 5]),
            ([data(2), damaged(marker(3, 7, COMMIT))], kbatch.CrcMismatchError, len(data(2)), [0, 2, 4, 5]),
            ([data(2), marker(3, 7, COMMIT)[:-1]], kbatch.TruncatedBatchError, len(data(2)), [0, 2, 4, 5]),
        )
    ):
        log = write_log(tmp_path / f"t-{number}", (0, [*begin, *hidden]), (4, [data(4), data(5)]))
        before, after = ({f"{side}Offsets": json.dumps({"t": {str(number): offset}})}
                         for side, offset in (("ending", 2), ("starting", 4)))  # fmt: skip
        where = len(begin[0] + begin[1]) + at
        for window in (before, after, {}):
            chosen = parse_options({"path": "/x", "isolationLevel": "read_committed", **window})[1]
            with pytest.raises(error, match=rf"{0:020d}\.log, byte {where}[,:]"):
                plan(open_selected([str(log)]), chosen)
        with pytest.raises(Exception, match=rf"{0:020d}\.log, byte {where}[,:]"):
            offsets(spark, log, **after)
        # No requested record is withheld, or the read skips the damage.
        assert offsets(spark, log, endingOffsets=json.dumps({"t": {str(number): 1}})) == [0]
        assert planned(log, on_error="skip")[0] == left
        assert load(spark, log, **after).count() == 2


def test_splits_have_the_aborted_ranges_of_their_segment_only() -> None:
    """TXI-R4: a split has the aborted ranges that overlap its segment, as in the log's transaction index."""
    logs = open_selected([str(TXN_LOG)])
    options = ReadOptions(isolation="read_committed", split_bytes=1000)
    tasks = plan(logs, options)
    bases = [segment.base_offset or 0 for segment in logs[0].segments]
    stops = [*bases[1:], TXN_FACTS["logEndOffset"]]
    for split in (split for task in tasks for split in task):
        number = bases.index(int(Path(split.path).stem))
        expected = [
            entry["producerId"]
            for entry in TXN_FACTS["aborted"]
            if entry["firstOffset"] < stops[number] and entry["lastOffset"] >= bases[number]
        ]
        assert split.withheld is not None
        ranges = split.withheld.aborted
        assert ranges.producer_id.tolist() == sorted(expected)
        assert ranges.by == "position"
        assert ((ranges.first >= 0) & (ranges.last < split.size)).all()
        assert split.stable_offset == TXN_FACTS["lastStableOffset"]
        assert len(pickle.dumps(split)) < 1200 + 24 * len(expected)
    plain = plan(logs, ReadOptions(split_bytes=1000))
    assert all(split.withheld is None and split.stable_offset is None for task in plain for split in task)


def test_a_split_stays_small_in_a_log_of_many_aborted_transactions(tmp_path: Path) -> None:
    segments = []
    for number in range(20):
        base = 200 * number
        batches = [batch for i in range(0, 200, 2) for batch in (txn(base + i, 7), marker(base + i + 1, 7, ABORT))]
        segments.append((base, batches))
    log = write_log(tmp_path / "t-0", *segments)
    tasks = plan(open_selected([str(log)]), ReadOptions(isolation="read_committed", split_bytes=4000))
    splits = [split for task in tasks for split in task]
    assert len(splits) > 60
    assert {len(split.withheld.aborted) for split in splits if split.withheld is not None} == {100}
    assert max(len(pickle.dumps(split)) for split in splits) < 100 * 24 + 1500
    assert planned(log) == ([], [])


# -- the table of transactions

SCHEMA = (
    "topic string, partition int, producer_id bigint, first_offset bigint, last_offset bigint, state string, "
    "first_timestamp timestamp, last_stable_offset bigint"
)


def transactions(spark: Any, path: object, **options: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in load(spark, path, table="transactions", **options).collect()]


def golden_rows() -> list[tuple[Any, ...]]:
    stable = TXN_FACTS["lastStableOffset"]
    rows: list[tuple[Any, ...]] = [
        ("txn", 0, entry["producerId"], entry["firstOffset"], entry["lastOffset"], "aborted", None, stable)
        for entry in TXN_FACTS["aborted"]
    ]
    when: dict[int, int] = {}
    for path in TXN_LOG.glob("*.log.expected.jsonl"):
        for batch in map(json.loads, path.read_text().splitlines()):
            # The timestamp of its first record, which producers store as the base timestamp.
            if batch.get("first50"):
                when[batch["baseOffset"]] = batch["first50"][0][1]
    for producer_id, first in sorted(TXN_FACTS["open"].items(), key=lambda item: item[1]):
        first_time = datetime.fromtimestamp(when[first] / 1000, UTC).astimezone().replace(tzinfo=None)
        rows.append(("txn", 0, int(producer_id), first, None, "open", first_time, stable))
    return rows


def test_the_table_of_transactions_has_the_golden_transactions(spark: Any) -> None:
    from pyspark.sql.types import StructType

    frame = load(spark, LOGS, table="transactions", topics="txn,codec-none,kraft-control")
    assert frame.schema == StructType.fromDDL(SCHEMA)
    assert [tuple(row) for row in frame.collect()] == golden_rows()
    for options in ({"splitBytes": "1"}, {"onError": "skip"}, {"isolationLevel": "read_committed"}):
        assert transactions(spark, LOGS, topics="txn,codec-none", **options) == golden_rows()
    assert frame.filter("state = 'open'").count() == 2
    assert transactions(spark, LOGS, topics="codec-none,magic0,prealloc") == []


def test_the_table_of_transactions_covers_several_logs(spark: Any, several: Path) -> None:
    t0 = [("t", 0, 7, 0, 7, "aborted", None, None), ("t", 0, 8, 3, 10, "aborted", None, None)]
    got = transactions(spark, several)
    assert got[:3] == [*t0, ("t", 1, 7, 5, 6, "aborted", None, 2)]
    assert [row[:6] + row[7:] for row in got[3:]] == [("t", 1, 9, 2, None, "open", 2)]
    assert transactions(spark, several, assign='{"t": [0]}') == t0
    schema = "last_offset bigint, producer_id bigint"
    frame = load(spark, several, schema, table="transactions", subscribePattern="t", splitBytes="1")
    assert frame.columns == ["last_offset", "producer_id"]
    assert sorted(map(tuple, frame.collect()), key=str) == [(10, 8), (6, 7), (7, 7), (None, 9)]
    with pytest.raises(Exception, match="no column 'offset'; the columns are topic, partition, producer_id"):
        load(spark, several, "offset bigint", table="transactions").count()
    with pytest.raises(Exception, match="column 'state' is string, not int"):
        load(spark, several, "state int", table="transactions").count()


def test_the_table_of_transactions_is_limited_by_offsets(spark: Any) -> None:
    """The table has the transactions that overlap the offsets; their markers may be anywhere."""
    rows = golden_rows()
    for start, stop in ((0, 16), (31, 52), (140, 187), (363, 366), (301, 302)):
        bounds = {
            "startingOffsets": json.dumps({"txn": {"0": start}}),
            "endingOffsets": json.dumps({"txn": {"0": stop}}),
        }
        expected = [row for row in rows if row[3] < stop and (row[4] is None or row[4] >= start)]
        assert transactions(spark, TXN_LOG, **bounds) == expected


def test_a_wrong_checksum_within_an_open_transaction_is_an_error_unless_skipped(spark: Any, tmp_path: Path) -> None:
    """With skip, a batch with several records is no marker, by two fields of its header."""
    parts = [txn(0, 7, 2), damaged(txn(2, 7, 2)), damaged(data(4, count=2)), marker(6, 7, ABORT)]
    log = write_log(tmp_path / "t-0", (0, parts))
    assert transactions(spark, log, onError="skip") == [("t", 0, 7, 0, 6, "aborted", None, None)]
    with pytest.raises(Exception, match="stored checksum"):
        transactions(spark, log)


def test_damage_that_hides_transactions_is_an_error_unless_skipped(spark: Any, tmp_path: Path) -> None:
    bad = bytearray(data(1))
    bad[8:12] = (5).to_bytes(4, "big")
    log = write_log(tmp_path / "t-0", (0, [txn(0, 7), bytes(bad), marker(2, 7, ABORT)]), (3, [txn(3, 7)]))
    with pytest.raises(Exception, match=rf"{0:020d}\.log, byte {len(txn(0, 7))}"):
        transactions(spark, log)
    with pytest.raises(Exception, match=rf"{0:020d}\.log, byte {len(txn(0, 7))}"):
        transactions(spark, log, failOnDataLoss="true")
    got = transactions(spark, log, onError="skip")
    assert [row[2:6] for row in got] == [(7, 0, 2, "aborted"), (7, 3, None, "open")]
    cut = write_log(tmp_path / "cut-0", (0, [txn(0, 7), data(1)[:-3]]), (2, [marker(2, 7, ABORT)]))
    with pytest.raises(Exception, match="only the last segment of a log may end with an incomplete batch"):
        transactions(spark, cut)
    assert [row[2:6] for row in transactions(spark, cut, onError="skip")] == [(7, 0, 0, "undecided")]
    # A partial batch at the end of the last segment is not damage.
    live = write_log(tmp_path / "live-0", (0, [txn(0, 7), marker(1, 7, COMMIT)[:-3]]))
    assert [row[2:6] for row in transactions(spark, live)] == [(7, 0, None, "open")]


def test_open_transactions_may_have_no_timestamp(spark: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "none-0", (0, [txn(0, 7, base_timestamp=-1)]))
    assert [row[6] for row in transactions(spark, log)] == [None]
    log = write_log(tmp_path / "late-0", (0, [txn(0, 7, base_timestamp=1 << 60)]))
    with pytest.raises(Exception, match="timestamp 1152921504606846976 ms does not fit"):
        transactions(spark, log)
    assert [row[6] for row in transactions(spark, log, timestampOverflow="null")] == [None]


# -- the export


def run_export(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = main(["export", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out


def test_an_export_has_the_committed_records(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    status, text = run_export(capsys, TXN_LOG, out, "--isolation", "read_committed", "--json")
    # Undecided records are not damage, but the export is incomplete.
    assert status == 4
    assert [row.offset for row in spark.read.parquet(str(out)).orderBy("offset").collect()] == COMMITTED
    summary = json.loads(text)
    (part,) = summary["logs"]
    assert (summary["isolation"], summary["records"], summary["lost_bytes"]) == (
        "read_committed", len(COMMITTED), 0,
    )  # fmt: skip
    assert (part["last_stable_offset"], part["open_count"]) == (362, 2)
    assert part["open_transactions"] == [
        {"producer_id": 1002, "first_offset": 362, "first_timestamp": 1700000040000},
        {"producer_id": 1004, "first_offset": 367, "first_timestamp": 1700000040000},
    ]
    assert part["last_offset"] == COMMITTED[-1]
    # Every byte of the log is read, omitted as aborted, or withheld.
    batches = kbatch.Log(TXN_LOG).batches()
    undecided = batches[batches["last_offset"] >= 362]
    assert (part["undecided_batches"], part["undecided_bytes"]) == (len(undecided), int(undecided["size"].sum()))
    transactional = batches[((batches["attributes"] & 0x30) == 0x10) & (batches["last_offset"] < 362)]
    aborted = [
        row
        for row in transactional
        for entry in TXN_FACTS["aborted"]
        if row["producer_id"] == entry["producerId"]
        and entry["firstOffset"] <= row["base_offset"] <= entry["lastOffset"]
    ]
    assert (part["aborted_batches"], part["aborted_bytes"]) == (len(aborted), sum(int(row["size"]) for row in aborted))
    assert part["log_bytes"] + part["aborted_bytes"] + part["undecided_bytes"] == int(batches["size"].sum())
    assert sum(summary["batches"].values()) == len(batches) - len(aborted) - len(undecided)
    for name in ("aborted_batches", "aborted_bytes", "undecided_batches", "undecided_bytes"):
        assert summary[name] == part[name]
    assert json.loads((out / "_manifest.json").read_text())["partitions"] == [
        {name: value for name, value in part.items() if name != "name"}
    ]


def test_the_summary_reports_omitted_records(
    spark: Any, several: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = run_export(capsys, TXN_LOG, tmp_path / "golden", "--isolation", "read_committed")
    assert status == 4
    (line,) = (line for line in text.splitlines() if "withheld" in line)
    assert line.startswith("  withheld   txn-0: 2 open transactions from offset 362 on (producer 1002, 1004): ")
    assert "  lost       nothing" in text.splitlines()
    status, text = run_export(capsys, several, tmp_path / "several", "--isolation", "read_committed")
    assert status == 4
    size = sum(map(len, (txn(2, 9), data(3, count=2), txn(5, 7), marker(6, 7, ABORT))))
    assert [line for line in text.splitlines() if "withheld" in line] == [
        f"  withheld   t-1: 1 open transaction from offset 2 on (producer 9): {size} bytes in 4 batches"
    ]
    size = len(txn(0, 7, 3)) + len(txn(3, 8, 2))
    assert f"  aborted    {size} bytes in 2 batches omitted" in text.splitlines()
    # By default nothing is omitted, so the summary has no such lines.
    status, text = run_export(capsys, several, tmp_path / "all")
    assert status == 0
    assert "withheld" not in text
    assert "aborted" not in text
    assert spark.read.parquet(str(tmp_path / "all")).count() == 23 - 4


def test_lists_of_open_transactions_are_bounded(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for partition in range(25):
        write_log(tmp_path / "logs" / f"t-{partition}", (0, [txn(i, 100 + i) for i in range(50)]))
    status, text = run_export(capsys, tmp_path / "logs", tmp_path / "out", "--isolation", "read_committed")
    assert status == 4
    lines = [line for line in text.splitlines() if "withheld" in line]
    assert lines[0].startswith(
        "  withheld   t-0: 50 open transactions from offset 0 on (producer 100, 101, 102, 103, 104, ...): "
    )
    assert len(lines) == 21
    assert lines[-1].endswith(
        f" in 250 batches of 5 more topic-partitions; {tmp_path / 'out'}/_manifest.json lists all"
    )
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert [(part["open_count"], len(part["open_transactions"])) for part in manifest["partitions"]] == [(50, 20)] * 25


def test_damage_next_to_undecided_records_is_counted_once(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged batch counts as lost even if it would have been withheld; each byte is counted once."""
    bad_marker = damaged(marker(5, 7, COMMIT))
    bad_aborted = damaged(txn(1, 8))
    batches = [data(0), bad_aborted, txn(2, 8), marker(3, 8, ABORT), txn(4, 7), bad_marker, data(6), damaged(data(7))]
    log = write_log(tmp_path / "t-0", (0, batches))
    arguments = (log, tmp_path / "out", "--isolation", "read_committed", "--on-error", "skip", "--json")
    status, text = run_export(capsys, *arguments)
    assert status == 3
    (part,) = json.loads(text)["logs"]
    assert (part["records"], part["last_offset"]) == (2, 6)
    assert part["log_bytes"] == len(data(0)) + len(marker(3, 8, ABORT)) + len(data(6))
    assert part["aborted_bytes"] == len(txn(2, 8))
    assert part["undecided_bytes"] == len(txn(4, 7))
    assert part["lost_bytes"] == len(bad_marker) + len(bad_aborted) + len(data(7))
    assert (part["last_stable_offset"], part["open_count"], part["open_transactions"]) == (None, 0, [])
    assert part["undecided_count"] == 1
    assert part["undecided_transactions"] == [{"producer_id": 7, "first_offset": 4, "last_offset": 5}]
    status, text = run_export(capsys, log, tmp_path / "text", "--isolation", "read_committed", "--on-error", "skip")
    assert "withheld   t-0: 1 transaction with a damaged marker (producer 7): " in text


def test_help_describes_the_written_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "By default all records are written" in text
    assert "--isolation {read_uncommitted,read_committed}" in text
    with pytest.raises(SystemExit) as done:
        main(["export", "a", "b", "--isolation", "serializable"])
    assert done.value.code == 2
