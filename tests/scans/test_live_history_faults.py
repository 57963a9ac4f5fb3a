"""The history of a cluster: files that are missing, damaged or of another log, retention, and transactions."""

from __future__ import annotations

import gc
import itertools
import re
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from history_cluster import BATCH, BEGIN, cut, fetched_offsets, log_of, offsets, partition, served, source_of
from history_copies import tiered_log
from scripted_broker import ScriptedPartition
from transaction_logs import ABORT, COMMIT, data, marker, txn

import kbatch
from kbatch.errors import LogDirectoryError
from kbatch.scans.history_source import HistorySource


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while any(each.name.startswith("kbatch-") for each in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread still runs"
        time.sleep(0.01)


# -- what is missing, damaged, or of another log


def test_a_missing_segment_is_fetched_and_reported(tmp_path: Path) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path, [3, 3, 3])
    next(log.glob(f"{30:020d}.log")).unlink()
    with pytest.warns(RuntimeWarning, match="orders-0: offsets 30 to 59 fetched from the cluster, since no file"):
        assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path))) == list(range(120))
    assert set(fetched_offsets(cluster)) == {30, 90}


def flipped(path: Path) -> None:
    found = bytearray(path.read_bytes())
    found[-5] ^= 1
    path.write_bytes(bytes(found))


@pytest.mark.parametrize(
    ("layout", "change", "reason"),
    [
        ("local", cut, r"partial data: it was cut"),
        ("local", lambda path: path.write_bytes(b""), "it has no batch"),
        ("local", flipped, "wrong checksum"),
        ("aiven", cut, r"according to its \.rsm-manifest: the object was cut"),
        ("aiven-zstd", cut, r"according to its \.rsm-manifest: the object was cut"),
        ("aiven-zstd", lambda path: path.with_suffix(".rsm-manifest").write_text("{"), "can't be read as a manifest"),
        (
            "aiven",
            lambda path: path.with_suffix(".rsm-manifest").write_text(
                path.with_suffix(".rsm-manifest")
                .read_text()
                .replace('"compression"', '"encryption": {"aad": "x"}, "x"')
            ),
            "uploaded with encryption",
        ),
    ],
)
def test_an_object_that_is_unsound_is_fetched_instead(tmp_path: Path, layout: str, change: Any, reason: str) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    made = tiered_log(log, tmp_path / "tier", layout, cluster.ids["orders"])
    change(sorted(made.glob("*.log"))[1])
    scan = kbatch.scan_logs(source_of(cluster, tmp_path / "tier"))
    with pytest.warns(RuntimeWarning, match=f"orders-0: offsets 30 to 59 fetched from the cluster, since .*{reason}"):
        assert offsets(scan) == list(range(120))
    assert set(fetched_offsets(cluster)) == {30, 90}
    assert re.search(rf"not read: .*{made.name}.*{reason}", scan.explain())


@pytest.mark.parametrize("layout", ["disk", "local", "aiven-zstd"])
@pytest.mark.parametrize("reverse", [False, True])
def test_damage_within_a_file_is_fetched_from_there_on(tmp_path: Path, layout: str, reverse: bool) -> None:
    made = partition()
    cluster = served(made)
    batches = list(made.batches)
    batches[4] = batches[4][:-20] + bytes([batches[4][-20] ^ 1]) + batches[4][-19:]
    root = tmp_path / "disk"
    log = log_of(cluster, root, [3, 3, 3], batches=batches)
    if layout != "disk":
        tiered_log(log, root := tmp_path / "tier", layout, cluster.ids["orders"])
    scan = kbatch.scan_logs(source_of(cluster, root))
    with pytest.warns(RuntimeWarning, match="orders-0: offsets 40 to 59 fetched from the cluster, since .*checksum"):
        found = scan.tail(100).column("offset").to_pylist() if reverse else offsets(scan)
    assert found == list(range(20 if reverse else 0, 120))
    assert set(fetched_offsets(cluster)) <= ({40, 90} if not reverse else {*fetched_offsets(cluster)})


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("taken", [None, 0, 1])
def test_a_file_that_is_deleted_after_the_plan_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int | None, reverse: bool
) -> None:
    """It is deleted before it is divided among tasks, or when some of them were made."""
    for name in ("FIRST_BYTES", "TASK_BYTES"):
        monkeypatch.setattr(f"kbatch.scans.history_source.{name}", 300)
    cluster = served(partition())
    log = log_of(cluster, tmp_path, [3, 3, 3])
    source = HistorySource(source_of(cluster, tmp_path))
    reading = kbatch.scan_logs(source.cluster)._reading
    opened = source.open(reading.arguments)
    [chosen] = reading._chosen(opened)
    planned = opened.plan(reading._request(chosen))
    path = next(log.glob(f"{30:020d}.log"))
    if taken is None:
        path.unlink()
    tasks = []
    of_file = 0
    for task in opened.tasks([planned], reverse=reverse):
        of_file += getattr(task[1], "path", None) == str(path)
        if of_file > (taken or 0) and path.exists():
            path.unlink()
        tasks.append(task)
    assert len(tasks) > 5
    tables = [table for task in tasks for table in opened.tables(*task, ("offset",), reverse=reverse)]
    found = [i for table in (reversed(tables) if reverse else tables) for i in table.records["offset"].tolist()]
    assert found == list(range(120))
    with pytest.warns(RuntimeWarning, match="fetched from the cluster, since .*30.log"):
        opened.__exit__(None, None, None)


@pytest.mark.parametrize("on_error", ["skip", "stop"])
def test_damage_before_the_log_start_offset_is_treated_as_in_a_log_directory(tmp_path: Path, on_error: Any) -> None:
    made = partition()
    cluster = served(made)
    log = log_of(cluster, tmp_path, [3, 3, 3])
    made.start = 80
    path = log / f"{30:020d}.log"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    scan = kbatch.scan_logs(source_of(cluster, tmp_path, include_expired=True), on_error=on_error)
    with pytest.warns(RuntimeWarning, match="1 damaged batch|damaged"):
        found = offsets(scan)
    assert found == list(range(40)) + (list(range(50, 120)) if on_error == "skip" else [])


def test_transactions_that_no_file_decides_are_an_error(tmp_path: Path) -> None:
    batches, aborted = transactions()
    made = TransactionalPartition(list(batches))
    made.ended = aborted
    cluster = served(made)
    log = log_of(cluster, tmp_path, [3, 5, 4, 2])
    sorted(log.glob("*.log"))[1].unlink()
    made.start = 14
    scan = kbatch.scan_logs(
        source_of(cluster, tmp_path, include_expired=True), isolation="read_committed", stop_offset=3
    )
    with pytest.raises(LogDirectoryError, match="orders-0: transactions that begin at offset 1 or later end between"):
        scan.to_arrow()


@pytest.mark.parametrize(
    ("cluster_epochs", "copy_epochs", "reason"),
    [
        ([0] * 6 + [2] * 6, [0] * 3 + [1] * 9, r"leader epoch 1 at offset (30|59), and the cluster does not"),
        ([0] * 3 + [2] * 9, [0] * 6 + [2] * 6, r"leader epoch 0 at offset (30|59), and the cluster does not"),
        ([0] * 12, [0] * 3 + [7] * 9, r"leader epoch 7 at offset 30, and the cluster is at epoch 0: it is another log"),
        ([0] * 6 + [1] * 6, [0] * 3 + [1] * 9, "leader epoch 1 at offset 30, and the cluster has an earlier one there"),
    ],
)
def test_a_copy_of_a_replica_that_diverged_is_read_up_to_there(
    tmp_path: Path, cluster_epochs: list[int], copy_epochs: list[int], reason: str
) -> None:
    cluster = served(partition(epochs=cluster_epochs))
    log_of(cluster, tmp_path, [3, 3, 3], batches=partition(epochs=copy_epochs).batches)
    with pytest.warns(RuntimeWarning, match=reason):
        found = kbatch.scan_logs(source_of(cluster, tmp_path)).to_arrow()
    assert found.column("offset").to_pylist() == list(range(120))
    assert 30 in fetched_offsets(cluster)
    assert min(fetched_offsets(cluster)) == 30


def test_leader_epochs_of_the_checkpoint_are_compared_too(tmp_path: Path) -> None:
    epochs = [0] * 5 + [1] * 7
    cluster = served(partition(epochs=epochs))
    log = log_of(cluster, tmp_path, [9])
    scan = kbatch.scan_logs(source_of(cluster, tmp_path))
    (log / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 50\n")
    assert offsets(scan) == list(range(120))
    assert set(fetched_offsets(cluster)) == {90}
    (log / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 40\n")
    with pytest.warns(RuntimeWarning, match="leader epoch 1 at offset 40, and the cluster has an earlier one"):
        assert offsets(scan) == list(range(120))


@pytest.mark.parametrize("has_id", [True, False])
def test_a_log_of_a_topic_that_was_made_again_is_not_read(tmp_path: Path, has_id: bool) -> None:
    cluster = served(partition())
    old = ScriptedPartition()
    for i in range(12):
        old.write([b"old %d" % i] * BATCH)
    log_of(cluster, tmp_path, [3, 3, 3], batches=old.batches, topic_id=uuid.UUID(int=7) if has_id else None)
    reason = "it was recreated" if has_id else "is not the one that the cluster has: it is another log"
    with pytest.warns(RuntimeWarning, match=f"orders-0: offsets 0 to 119 fetched from the cluster, since .*{reason}"):
        table = kbatch.scan_logs(source_of(cluster, tmp_path)).to_arrow()
    assert table.column("value").to_pylist() == [b"value %d" % i for i in range(120)]


def test_the_tier_of_a_topic_that_was_made_again_has_both_topics(tmp_path: Path) -> None:
    cluster = served(partition())
    old = ScriptedPartition()
    for i in range(12):
        old.write([b"old %d" % i] * BATCH)
    old_id = uuid.UUID(int=7)
    tiered_log(log_of(cluster, tmp_path / "old", [4, 4], batches=old.batches), tmp_path / "tier", "local", old_id)
    tiered_log(log_of(cluster, tmp_path / "new", [4, 4]), tmp_path / "tier", "local", cluster.ids["orders"])
    table = kbatch.scan_logs(source_of(cluster, tmp_path / "tier")).to_arrow()
    assert table.column("value").to_pylist() == [b"value %d" % i for i in range(120)]
    assert set(fetched_offsets(cluster)) == {80}


def test_copies_of_an_old_broker_have_no_topic_id_and_are_read_if_a_batch_is_equal(tmp_path: Path) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path, [3, 3, 3], topic_id=None)
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path))) == list(range(120))
    # One batch is fetched to be compared.
    assert set(fetched_offsets(cluster)) == {89, 90}


def test_an_empty_tier_is_reported_and_all_is_fetched(tmp_path: Path) -> None:
    cluster = served(partition())
    scan = kbatch.scan_logs(source_of(cluster, tmp_path))
    assert f"not read: {tmp_path}: no topic-partition directory" in scan.explain()
    with pytest.warns(RuntimeWarning, match=r"no topic-partition directory .*; all is fetched instead"):
        assert offsets(scan) == list(range(120))


# -- retention


def test_records_before_the_log_start_offset_are_returned_only_if_asked_for(tmp_path: Path) -> None:
    made = partition()
    cluster = served(made)
    log_of(cluster, tmp_path, [3, 3, 3])
    made.start = 45
    scan = kbatch.scan_logs(source_of(cluster, tmp_path))
    assert offsets(scan) == list(range(45, 120))
    everything = kbatch.scan_logs(source_of(cluster, tmp_path, include_expired=True))
    assert offsets(everything) == list(range(120))
    assert set(fetched_offsets(cluster)) == {90}
    late = kbatch.scan_logs(source_of(cluster, tmp_path, include_expired=True), start_timestamp=BEGIN + 25_000)
    assert offsets(late) == list(range(25, 120))
    assert "offsets: 120 of 120" in everything.explain()


def test_the_last_segment_of_a_backup_is_read_if_the_cluster_has_deleted_it(tmp_path: Path) -> None:
    made = partition()
    cluster = served(made)
    log_of(cluster, tmp_path, [3], batches=made.batches[:6])
    made.start = 60
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path, include_expired=True))) == list(range(120))
    assert set(fetched_offsets(cluster)) == {60}


def test_expired_records_that_no_sound_file_has_are_one_error(tmp_path: Path) -> None:
    made = partition()
    cluster = served(made)
    log = log_of(cluster, tmp_path, [3, 3, 3])
    made.start = 80
    path = log / f"{30:020d}.log"
    content = path.read_bytes()
    cut(path)
    scan = kbatch.scan_logs(source_of(cluster, tmp_path, include_expired=True))
    with pytest.raises(
        LogDirectoryError, match=r"orders-0: offsets 30 to 59 can't be read: deleted from .*30\.log"
    ) as e:
        scan.to_arrow()
    assert e.value.source == str(path)
    path.write_bytes(content[:-30] + bytes(30))
    flip = bytearray(content)
    flip[len(content) // 2] ^= 1
    path.write_bytes(bytes(flip))
    with pytest.raises(LogDirectoryError, match=r"orders-0: offsets 40 to 59 can't be read: deleted from .*30\.log"):
        scan.to_arrow()
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path))) == list(range(80, 120))


# -- compaction


def compacted(batches: Sequence[bytes], keep: Sequence[int]) -> list[bytes]:
    return [batch for i, batch in enumerate(batches) if i in keep]


def test_a_copy_that_is_not_compacted_yet_has_more_records_than_the_cluster(tmp_path: Path) -> None:
    made = partition()
    cluster = served(made)
    log_of(cluster, tmp_path, [3, 3, 3])
    made.batches = compacted(made.batches, [0, 4, 5, 9, 10, 11])
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path))) == list(range(120))


def test_offsets_that_compaction_has_removed_are_not_fetched(tmp_path: Path) -> None:
    made = partition()
    cluster = served(made)
    kept = [0, 1, 3, 5, 7, 9, 10, 11]
    log = log_of(cluster, tmp_path, [3, 3, 3])
    for base in (0, 30, 60):
        numbers = [i for i in range(base // 10, base // 10 + 3) if i in kept]
        (log / f"{base:020d}.log").write_bytes(b"".join(made.batches[i] for i in numbers))
        (log / f"{base:020d}.index").unlink()
        (log / f"{base:020d}.timeindex").unlink()
    made.batches = compacted(made.batches, kept)
    expected = [i for i in range(120) if i // 10 in kept]
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path))) == expected
    assert min(fetched_offsets(cluster)) >= 80


# -- transactions


def transactions() -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """Return batches of transactions that overlap, and the aborted ones: producer, first offset, marker."""
    batches = [
        data(0),
        txn(1, 1, 2),
        txn(3, 2, 2),
        marker(5, 1, ABORT),
        txn(6, 1, 1),
        txn(7, 3, 2),
        data(9),
        marker(10, 1, COMMIT),
        txn(11, 2, 1),
        marker(12, 2, ABORT),
        txn(13, 1, 1),
        marker(14, 3, COMMIT),
        data(15),
        marker(16, 1, ABORT),
        txn(17, 2, 1),
        marker(18, 2, COMMIT),
        data(19, count=2),
    ]
    return batches, [(1, 1, 5), (2, 3, 12), (1, 13, 16)]


class TransactionalPartition(ScriptedPartition):
    ended: Sequence[tuple[int, int, int]] = ()

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        return [(producer, first) for producer, first, end in self.ended if end >= offset]


COMMITTED = [0, 6, 7, 8, 9, 15, 17, 19, 20]


@pytest.mark.parametrize(
    "seams", [*itertools.combinations(range(1, 17), 1), *itertools.combinations(range(2, 17, 3), 2)]
)
@pytest.mark.parametrize("missing", [None, 0, 1])
def test_transactions_that_cross_a_seam_are_decided(
    tmp_path: Path, seams: tuple[int, ...], missing: int | None
) -> None:
    """The marker is in a file or at the broker, and so are the records, in any order."""
    batches, aborted = transactions()
    made = TransactionalPartition(list(batches))
    made.ended = aborted
    cluster = served(made)
    sizes = [end - begin for begin, end in itertools.pairwise((0, *seams))]
    log = log_of(cluster, tmp_path, sizes)
    if missing is not None and missing < len(sizes):
        sorted(log.glob("*.log"))[missing].unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for stop in (None, 4, 13, 16):
            bound: dict[str, Any] = {} if stop is None else {"stop_offset": stop}
            scan = kbatch.scan_logs(source_of(cluster, tmp_path), isolation="read_committed", **bound)
            assert offsets(scan) == [i for i in COMMITTED if stop is None or i < stop]


@pytest.mark.parametrize("start", [4, 8, 12, 14])
def test_transactions_before_the_log_start_offset_are_decided_by_files_and_the_cluster(
    tmp_path: Path, start: int
) -> None:
    batches, aborted = transactions()
    made = TransactionalPartition(list(batches))
    made.ended = aborted
    cluster = served(made)
    log_of(cluster, tmp_path, [3, 5, 4, 2])
    made.start = start
    for stop in (None, 4, 9):
        bound: dict[str, Any] = {} if stop is None else {"stop_offset": stop}
        source = source_of(cluster, tmp_path, include_expired=True)
        scan = kbatch.scan_logs(source, isolation="read_committed", **bound)
        assert offsets(scan) == [i for i in COMMITTED if stop is None or i < stop]
