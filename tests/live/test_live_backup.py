"""`backup_topics`: the batches of a live topic as a log directory, which later runs continue."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from live_reading import partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition
from served_logs import cluster_source

import kbatch
from kbatch.errors import LogDirectoryError
from kbatch.live import BrokerError
from kbatch.log import (
    LogWriter,
    Written,
    backup_topics,
    compare_logs,
    log_statistics,
    read_leader_epochs,
    read_transaction_index,
)
from kbatch.log.write import log_appender
from kbatch.protocol import ApiKey


def backup(cluster: ScriptedCluster, out: Path, topics: Any = "orders", **options: Any) -> list[Written]:
    return backup_topics(cluster_source(cluster), out, topics=topics, **options)


def stored(directory: Path) -> bytes:
    """Return the bytes of all segments."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def sent(log: ScriptedPartition) -> bytes:
    return b"".join(log.batches)


def write_more(log: ScriptedPartition, *sizes: int, epoch: int | None = None) -> None:
    log.epoch = log.epoch if epoch is None else epoch
    for size in sizes:
        log.write([b"%d" % (log.end + i) for i in range(size)], timestamps=1_000_000)


def leftovers(out: Path) -> list[str]:
    return [path.name for path in out.iterdir() if ".tmp" in path.name]


def test_the_batches_are_those_of_the_broker_byte_for_byte(tmp_path: Path) -> None:
    log = partition(5, 1, 9, codec="zstd")
    cluster = ScriptedCluster(orders=[log])
    assert backup(cluster, tmp_path / "out") == [Written("orders", 0, 0, 15, 15, len(sent(log)), 1)]
    directory = tmp_path / "out/orders-0"
    assert stored(directory) == sent(log)
    assert kbatch.Log(directory).topic_id == cluster.ids["orders"]
    assert sorted(path.name for path in directory.iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert compare_logs(tmp_path / "out", cluster_source(cluster)).equal
    assert not leftovers(tmp_path / "out")


@pytest.mark.parametrize("name", ["txn", "mixed", "compact-src", "codec-gzip", "magic1", "magic0"])
def test_a_backup_has_the_files_that_the_writer_of_logs_makes(name: str, tmp_path: Path) -> None:
    data = stored(LOGS / f"{name}-0")
    rows = kbatch.scan(data)
    batches = [data[row["position"] : row["position"] + row["size"]] for row in rows]
    first = min(int(rows["last_offset"][0]), max(int(rows["base_offset"][0]), 0))
    cluster = ScriptedCluster(**{name.replace("-", "_"): [ScriptedPartition(batches, start=first)]})
    # The rest comes in later runs, one batch at a time at first.
    log = cluster.topics[name][0]
    written = []
    for count in (1, 2, 5, len(batches)):
        log.batches = batches[:count]
        written += backup(cluster, tmp_path / "out", name)
    statistics = log_statistics(kbatch.Log(LOGS / f"{name}-0"))
    for field in ("records", "control_records"):
        assert sum(getattr(each, field) for each in written) == getattr(statistics, field)
    made = tmp_path / f"out/{name}-0"
    assert stored(made) == data
    with LogWriter(tmp_path / f"{name}-0") as writer:
        writer.append(data)
    aborted, expected = (
        [tuple(row) for path in sorted(each.glob("*.txnindex")) for row in read_transaction_index(path)]
        for each in (made, tmp_path / f"{name}-0")
    )
    assert aborted == expected
    found, epochs = (
        read_leader_epochs(each / "leader-epoch-checkpoint").tolist()
        if (each / "leader-epoch-checkpoint").exists()
        else []
        for each in (made, tmp_path / f"{name}-0")
    )
    assert found == epochs


def test_control_records_and_open_transactions_are_counted_apart(tmp_path: Path) -> None:
    data = stored(LOGS / "txn-0")
    rows = kbatch.scan(data)
    batches = [data[row["position"] : row["position"] + row["size"]] for row in rows]
    (written,) = backup(ScriptedCluster(orders=[ScriptedPartition(batches)]), tmp_path / "out")
    assert (written.records, written.control_records) == (337, 34)
    assert list(written.open_transactions) == list(kbatch.Log(LOGS / "txn-0").transactions().open)


def test_a_later_run_appends_from_the_end_exactly_once(tmp_path: Path) -> None:
    log, other = partition(5, 1), partition(3)
    cluster = ScriptedCluster(orders=[log, other])
    backup(cluster, tmp_path / "out")
    write_more(log, 4, 2, epoch=3)
    assert backup(cluster, tmp_path / "out") == [
        Written("orders", 0, 6, 12, 6, len(sent(log)) - len(b"".join(log.batches[:2])), 1),
        Written("orders", 1, 3, 3, 0, 0, 0),
    ]
    directory = tmp_path / "out/orders-0"
    assert stored(directory) == sent(log)
    assert read_leader_epochs(directory / "leader-epoch-checkpoint").tolist() == [(0, 0), (3, 6)]
    assert [segment.base_offset for segment in kbatch.Log(directory).segments] == [0, 6]
    before = stored(directory)
    assert [each.records for each in backup(cluster, tmp_path / "out")] == [0, 0]
    assert stored(directory) == before


def test_nothing_is_fetched_again(tmp_path: Path) -> None:
    log = partition(5, 5, 5)
    cluster = ScriptedCluster(orders=[log])
    backup(cluster, tmp_path / "out")
    write_more(log, 5)
    cluster.requests.clear()
    backup(cluster, tmp_path / "out")
    offsets = [
        part.fetch_offset
        for message in cluster.sent(ApiKey.FETCH)
        for topic in message.topics
        for part in topic.partitions
    ]
    assert min(offsets) == 15


def test_an_empty_partition_has_an_empty_segment_at_its_first_offset(tmp_path: Path) -> None:
    log = ScriptedPartition(start=42)
    cluster = ScriptedCluster(orders=[log])
    assert backup(cluster, tmp_path / "out") == [Written("orders", 0, 42, 42, 0, 0, 1)]
    assert (kbatch.Log(tmp_path / "out/orders-0").start_offset, stored(tmp_path / "out/orders-0")) == (42, b"")
    write_more(log, 3)
    backup(cluster, tmp_path / "out")
    assert stored(tmp_path / "out/orders-0") == sent(log)
    assert kbatch.Log(tmp_path / "out/orders-0").end_offset == 45


def test_a_start_within_a_batch_is_the_log_start_offset_of_the_backup(tmp_path: Path) -> None:
    log = partition(10, 10)
    log.start = 4
    cluster = ScriptedCluster(orders=[log], others=[partition(3)])
    backup(cluster, tmp_path / "out", "others")
    backup(cluster, tmp_path / "out")
    found = kbatch.Log(tmp_path / "out/orders-0")
    assert (stored(tmp_path / "out/orders-0"), found.start_offset, found.count()) == (sent(log), 4, 16)
    assert compare_logs(tmp_path / "out", cluster_source(cluster), extent="all").equal


def test_segments_and_commits_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = partition(*[5] * 40)
    size = len(sent(log)) // 40
    cluster = ScriptedCluster(orders=[log, partition(5)])
    monkeypatch.setattr(log_appender, "COMMIT_BYTES", 8 * size)
    backup(cluster, tmp_path / "out", segment_bytes=3 * size)
    found = kbatch.Log(tmp_path / "out/orders-0")
    assert stored(tmp_path / "out/orders-0") == sent(log)
    assert max(segment.size for segment in found.segments) <= 3 * size + 50
    assert read_leader_epochs(tmp_path / "out/orders-0/leader-epoch-checkpoint").tolist() == [(0, 0)]


def test_what_was_committed_before_an_error_stays_and_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = partition(*[5] * 10)
    damaged = log.batches[8]
    log.batches[8] = damaged[:-1] + bytes([damaged[-1] ^ 1])
    cluster = ScriptedCluster(orders=[log])
    monkeypatch.setattr(log_appender, "COMMIT_BYTES", 1)
    source = cluster_source(cluster, fetch_max_bytes=1)
    with pytest.raises(kbatch.CrcMismatchError, match=r"broker broker-1:9092, orders-0.*"):
        backup_topics(source, tmp_path / "out", topics="orders", segment_bytes=1)
    # The last batch before the error was not committed yet.
    assert kbatch.Log(tmp_path / "out/orders-0").end_offset == 35
    assert not leftovers(tmp_path / "out")
    log.batches[8] = damaged
    backup(cluster, tmp_path / "out")
    assert stored(tmp_path / "out/orders-0") == sent(log)


@pytest.mark.parametrize("tail", ["cut", "zeros", "damaged"])
def test_a_torn_tail_is_cut_and_its_batch_is_fetched_again(tail: str, tmp_path: Path) -> None:
    log = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[log])
    backup(cluster, tmp_path / "out")
    (path,) = (tmp_path / "out/orders-0").glob("*.log")
    data = path.read_bytes()
    torn = {
        "cut": data[:-3],
        "zeros": data + bytes(1000),
        "damaged": data[:-1] + bytes([data[-1] ^ 1]),
    }[tail]
    path.write_bytes(torn)
    path.with_suffix(".timeindex").write_bytes(b"\xff" * 24)
    write_more(log, 2)
    (written,) = backup(cluster, tmp_path / "out")
    last = len(log.batches[3])
    assert written.cut_bytes == {"cut": last - 3, "zeros": 1000, "damaged": last}[tail]
    assert stored(tmp_path / "out/orders-0") == sent(log)
    with LogWriter(tmp_path / "orders-0") as writer:
        writer.append(sent(log))
    for suffix in ("index", "timeindex"):
        name = f"{0:020d}.{suffix}"
        assert (tmp_path / "out/orders-0" / name).read_bytes() == (tmp_path / "orders-0" / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda cluster: cluster.ids.update(orders=uuid.UUID(int=7)),
            "with id 00000000-0000-0000-0000-000000000007: the topic was deleted and recreated",
        ),
        (
            lambda cluster: cluster.topics["orders"][0].batches.pop(),
            "it ends at offset 15, but the topic at 10: the topic was truncated or recreated",
        ),
        (
            lambda cluster: setattr(cluster.topics["orders"][0], "start", 20),
            "it ends at offset 15, and retention has deleted the records before offset 20",
        ),
    ],
    ids=["incarnation", "truncated", "retention"],
)
def test_a_topic_that_does_not_continue_the_backup_is_a_clear_error(change: Any, message: str, tmp_path: Path) -> None:
    log = partition(5, 5, 5)
    cluster = ScriptedCluster(orders=[log])
    backup(cluster, tmp_path / "out")
    before = stored(tmp_path / "out/orders-0")
    if "retention" in message:
        write_more(log, 10)
    change(cluster)
    with pytest.raises(LogDirectoryError, match=f"orders-0: can't be continued: .*{message}"):
        backup(cluster, tmp_path / "out")
    assert stored(tmp_path / "out/orders-0") == before
    assert not leftovers(tmp_path / "out")


def test_another_history_by_leader_epochs_is_a_clear_error(tmp_path: Path) -> None:
    log = ScriptedPartition(epoch=2)
    write_more(log, 5, 5)
    cluster = ScriptedCluster(orders=[log])
    backup(cluster, tmp_path / "out")
    log.batches.pop()
    write_more(log, 9, epoch=4)
    with pytest.raises(
        LogDirectoryError, match="leader epoch 2, which ends at offset 5 in the topic: the topic was tr"
    ):
        backup(cluster, tmp_path / "out")


def test_a_directory_that_is_locked_is_not_written(tmp_path: Path) -> None:
    from kbatch.log.write.commit import locked

    cluster = ScriptedCluster(orders=[partition(5)])
    (tmp_path / "out").mkdir()
    with locked(str(tmp_path / "out")), pytest.raises(LogDirectoryError, match="holds this lock; nothing was written"):
        backup(cluster, tmp_path / "out")
    with pytest.raises(LogDirectoryError, match="a backup can be written to a local path only"):
        backup(cluster, "s3://bucket/out")  # type: ignore[arg-type]
    with pytest.raises(BrokerError, match="there is no topic 'order'"):
        backup(cluster, tmp_path / "out", "order")


def test_a_lost_connection_is_retried(tmp_path: Path) -> None:
    log = partition(*[5] * 10)
    cluster = ScriptedCluster(orders=[log])
    cluster.fail(ApiKey.FETCH, Fault(cut=300), Fault(), Fault(cut=10))
    backup_topics(cluster_source(cluster, fetch_max_bytes=500), tmp_path / "out", topics="orders")
    assert stored(tmp_path / "out/orders-0") == sent(log)


def test_memory_does_not_grow_with_the_topic(tmp_path: Path) -> None:
    def peak(batches: int) -> int:
        log = ScriptedPartition()
        for _ in range(batches):
            log.write([b"x" * 10_000] * 100)
        source = cluster_source(ScriptedCluster(orders=[log]))
        tracemalloc.start()
        backup_topics(source, tmp_path / f"out-{batches}", topics="orders")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)
    # Three responses of 8 MiB, of which the test has copies.
    assert peak(120) < peak(60) + (8 << 20)


def test_progress_ends_with_no_offset_left(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    log = partition(*[5] * 10)
    source = cluster_source(ScriptedCluster(orders=[log]), fetch_max_bytes=500)
    backup_topics(source, tmp_path / "out", topics="orders", progress=lambda *each: seen.append(each))
    assert seen[-1] == (len(sent(log)), 0)
    assert len(seen) >= 3


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
from live_reading import partition
from scripted_broker import ScriptedCluster
from served_logs import cluster_source
from kbatch.log import backup_topics
from kbatch.log.write import log_appender

log_appender.COMMIT_BYTES = 1
steps = 0
def step(function):
    def counted(*args, **options):
        global steps
        steps += 1
        if steps == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return counted
os.rename = step(os.rename)
os.fsync = step(os.fsync)
os.mkdir = step(os.mkdir)
source = cluster_source(ScriptedCluster(orders=[partition(*[5] * 4), partition(7)]), fetch_max_bytes=1)
backup_topics(source, sys.argv[1], topics="orders", segment_bytes=1)
"""


@pytest.mark.parametrize("part", [0, 1])
def test_after_a_kill_at_any_step_the_next_run_has_every_batch_once(part: int, tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED.format(path=[path for path in sys.path if path])))
    expected = sent(partition(*[5] * 4)), sent(partition(7))
    killed = 0
    for step in range(1 + 8 * part, 40 + 8 * part, 16):
        out = tmp_path / f"out-{step}"
        status = subprocess.run([sys.executable, script, out, str(step)], timeout=60, check=False).returncode
        killed += status == -signal.SIGKILL
        backup(ScriptedCluster(orders=[partition(*[5] * 4), partition(7)]), out)
        assert tuple(stored(out / f"orders-{number}") for number in (0, 1)) == expected
        assert not leftovers(out)
        assert kbatch.Log(out / "orders-0").count() == 20
    assert killed >= 2
