"""The log directory of a real broker, running and stopped: kbatch reads the records that a consumer gets.

TXN-R2 to R5, LSO-R1, LSO-R2, CMP, DSK-R13, TS-R1, EMP-R1, HDR-R5, COD: see the catalogue. The expected
records are the ones that a consumer gets; the writers are librdkafka, aiokafka and kafka-python.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import kbatch
from kbatch.format import ATTRIBUTE_CODEC, ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_LOG_APPEND_TIME
from kbatch.log.check.verification import verify_log
from kbatch.log.files.checkpoints import read_offset_checkpoint
from kbatch.log.files.internal_topics import (
    cluster_metadata,
    consumer_offsets,
    metadata_records,
    transaction_state,
)
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.files.transaction_index import read_transaction_index

try:
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    from broker import reading, scenario
    from broker.clients import CODECS, WRITERS, librdkafka, plain
    from broker.reading import Partition, Row
    from broker.server import Broker
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

PARTITIONS = [(topic, partition) for topic, (count, _) in scenario.TOPICS.items() for partition in range(count)]
INTERNAL = [("__consumer_offsets", 0), ("__transaction_state", 0), ("__transaction_state", 1)]
ISOLATIONS = ["read_uncommitted", "read_committed"]

# One group with the other tests of the running broker; tests of the stopped broker follow.
while_running = pytest.mark.parametrize("disk", ["running"], indirect=True)
each_partition = pytest.mark.parametrize("where", PARTITIONS, ids=lambda where: f"{where[0]}-{where[1]}")


class Truth(NamedTuple):
    """Results of the broker and its consumers."""

    done: scenario.Scenario
    rows: dict[str, dict[Partition, list[Row]]]
    earliest: dict[Partition, int]
    latest: dict[Partition, int]
    stable: dict[Partition, int]
    open: dict[Partition, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def truth(broker: Broker) -> Truth:
    at = broker.bootstrap
    done = scenario.write(broker)
    return Truth(
        done,
        {isolation: reading.consumed(at, PARTITIONS, isolation) for isolation in ISOLATIONS},
        reading.offsets_of(at, PARTITIONS, OffsetSpec.earliest()),
        reading.offsets_of(at, PARTITIONS, OffsetSpec.latest()),
        reading.offsets_of(at, PARTITIONS, OffsetSpec.latest(), "read_committed"),
        reading.open_transactions(at, PARTITIONS),
    )


@pytest.fixture(scope="module", params=["running", "stopped"])
def disk(request: pytest.FixtureRequest, broker: Broker, truth: Truth) -> Iterator[Path]:
    """The log directory of the running broker, and then of the stopped one."""
    if request.param == "running":
        yield broker.log_dir
        return
    broker.stop()
    yield broker.log_dir
    broker.start()
    reading.wait_for_leaders(broker.bootstrap, PARTITIONS)


UNCLEANED = {topic for topic, (_, settings) in scenario.TOPICS.items() if "cleanup.policy" not in settings}


def log_of(directory: Path, where: Partition) -> kbatch.Log:
    return kbatch.Log(directory / f"{where[0]}-{where[1]}")


def codecs_of(log: kbatch.Log) -> set[str]:
    return {kbatch.Codec(int(bits) & ATTRIBUTE_CODEC).name.lower() for bits in log.batches()["attributes"]}


@each_partition
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_records_equal_the_records_of_a_consumer(disk: Path, truth: Truth, where: Partition, isolation: Any) -> None:
    tables = log_of(disk, where).tables(isolation=isolation)
    assert reading.rows_of(tables) == truth.rows[isolation][where]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_small_tables_give_the_same_records(disk: Path, truth: Truth, isolation: Any) -> None:
    for where in [("transactions", 0), ("transactions", 2), ("compacted", 0)]:
        tables = list(log_of(disk, where).tables(isolation=isolation, max_bytes=1))
        assert len(tables) > 10
        assert reading.rows_of(tables) == truth.rows[isolation][where]


@while_running
@pytest.mark.parametrize("partition", range(3))
@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_fetched_bytes_give_the_same_records(
    disk: Path, broker: Broker, truth: Truth, isolation: Any, max_bytes: int, partition: int
) -> None:
    """TXN-R1 to R12, FRM-R3: each response with its list of aborted transactions, as in a consumer."""
    where = ("transactions", partition)
    rows: list[Row] = []
    offset, responses, partial = 0, 0, 0
    while True:
        fetched = reading.fetch(broker.bootstrap, where, offset, isolation, max_bytes)
        assert (fetched.last_stable_offset, fetched.high_watermark) == (truth.stable[where], truth.latest[where])
        assert (fetched.aborted is None) == (isolation == "read_uncommitted")
        if not fetched.records:
            break
        table = kbatch.decode(fetched.records, isolation=isolation, aborted=fetched.aborted, start_offset=offset)
        partial += table.consumed < len(fetched.records)
        responses += 1
        rows += reading.rows_of([table])
        offset = int(table.batches["last_offset"][-1]) + 1
    assert offset == (truth.stable if isolation == "read_committed" else truth.latest)[where]
    assert [row[2:] for row in rows] == [row[2:] for row in truth.rows[isolation][where]]
    assert (responses > 5) == (max_bytes < 1000)
    # A response may end within a batch.
    assert partial or max_bytes != 700


@each_partition
def test_offsets_equal_the_offsets_of_the_broker(disk: Path, truth: Truth, where: Partition) -> None:
    log = log_of(disk, where)
    assert log.end_offset == truth.latest[where]
    if "cleanup.policy" in scenario.TOPICS[where[0]][1]:
        # The cleaner keeps the log start offset, even if it removes the first batch.
        assert log.start_offset >= truth.earliest[where] == 0
    else:
        # In "trimmed" it is within a segment: brokers delete whole segments, and the checkpoint has the offset.
        assert log.start_offset == truth.earliest[where]
        assert (log.start_checkpoint is not None) == (where[0] == "trimmed")
        assert truth.earliest[where] == (truth.done.trimmed[where[1]] if where[0] == "trimmed" else 0)


def test_find_logs_finds_every_partition(disk: Path) -> None:
    expected = sorted({*PARTITIONS, *INTERNAL, ("__cluster_metadata", 0)})
    topics = {topic for topic, _ in expected}
    # Other tests may have used the broker already.
    found = [(log.topic, log.partition) for log in kbatch.find_logs(disk)]
    assert [one for one in found if one[0] in topics] == expected


def test_batches_equal_the_output_of_dump_log_segments(disk: Path, broker: Broker) -> None:
    logs = [log for log in kbatch.find_logs(disk) if log.topic != "__cluster_metadata"]
    segments = [segment for log in logs for segment in log.segments]
    files = ",".join(segment.path for segment in segments)
    dumped = broker.run_class("org.apache.kafka.tools.DumpLogSegments", "--files", files)
    pattern = re.compile(
        r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: -?\d+ "
        r"producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (-?\d+) isTransactional: (\w+) "
        r"isControl: (\w+) deleteHorizonMs: \S+ position: (\d+) (\w+): (-?\d+) size: (\d+) "
        r"magic: (\d+) compresscodec: (\w+) crc: (\d+) isvalid: true"
    )
    expected = {}
    for part in dumped.split("Dumping ")[1:]:
        path, *lines = part.splitlines()
        found = [pattern.match(line) for line in lines if line.startswith("baseOffset: ")]
        expected[path] = [match.groups() for match in found if match is not None]
        assert len(expected[path]) == len(found)
    assert sum(map(len, expected.values())) > 400
    for segment in segments:
        rows = np.concatenate([np.empty(0, kbatch.BATCH_DTYPE), *segment.scan()])
        ours = []
        for row in rows:
            bits = int(row["attributes"])
            ours.append(
                (
                    *(int(row["base_offset"]), int(row["base_offset"] + row["last_offset_delta"])),
                    *(int(row[name]) for name in ("record_count", "base_sequence", "producer_id", "producer_epoch")),
                    *(int(row["partition_leader_epoch"]), str(bool(bits & 0x10)).lower()),
                    *(str(bool(bits & 0x20)).lower(), int(row["position"])),
                    *("LogAppendTime" if bits & ATTRIBUTE_LOG_APPEND_TIME else "CreateTime", int(row["max_timestamp"])),
                    *(int(row["size"]), int(row["magic"])),
                    *(kbatch.Codec(bits & ATTRIBUTE_CODEC).name.lower(), int(row["crc"])),
                )
            )
        assert [tuple(map(str, row)) for row in ours] == expected[f"{segment.path}"]


def test_consumers_get_the_sent_records(truth: Truth) -> None:
    """Checks the other tests, without kbatch: the records contain the unusual fields."""
    for (topic, partition), messages in truth.done.sent.items():
        rows = truth.rows["read_uncommitted"][topic, partition]
        skips_null_headers = topic.startswith("codec-") and list(WRITERS)[partition] == "kafka-python"
        expected = [
            (
                one.timestamp,
                one.key,
                one.value,
                tuple((k.encode(), v) for k, v in one.headers if v is not None or not skips_null_headers),
            )
            for one in messages
        ]
        assert [(row.timestamp, row.key, row.value, row.headers) for row in rows] == expected
    assert {topic for topic, _ in truth.done.sent} >= {"codec-zstd", "broker-zstd"}


@while_running
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_of_every_client_is_read(disk: Path, truth: Truth, codec: str) -> None:
    for partition in range(len(WRITERS)):
        # librdkafka does not compress a batch that would not become smaller.
        assert codecs_of(log_of(disk, (f"codec-{codec}", partition))) - {"none"} == {codec} - {"none"}
    stored = "uncompressed" if codec == "none" else codec
    assert codecs_of(log_of(disk, (f"broker-{stored}", 0))) == {codec}


@while_running
def test_records_have_the_append_time_of_their_batch(disk: Path, truth: Truth) -> None:
    """TS-R1: the timestamp deltas of the records are ignored."""
    log = log_of(disk, ("append-time", 0))
    batches = log.batches()
    assert (batches["attributes"] & ATTRIBUTE_LOG_APPEND_TIME).all()
    assert codecs_of(log) == set(CODECS)
    for table in log.tables():
        stamps = table.batches["max_timestamp"][table.records["batch"]]
        assert (table.records["timestamp"] == stamps).all()
        assert stamps.min() > scenario.EPOCH + 86_400_000


@while_running
def test_the_cleaner_has_cleaned(disk: Path, truth: Truth) -> None:
    """CMP: the log is compacted, so the comparison with the consumer covers compacted logs."""
    for topic in ("compacted", "tombstones-gone"):
        log = log_of(disk, (topic, 0))
        assert len(log.segments) >= 2
        cleaned = [row for row in truth.rows["read_uncommitted"][topic, 0] if row.offset < log.segments[-1].base_offset]
        keys = [row.key for row in cleaned]
        assert len(set(keys)) == len(keys) < 20
        assert b"" in keys
        offsets = [row.offset for row in cleaned]
        assert offsets[-1] - offsets[0] > 3 * len(offsets)
        # Aborted records have been removed.
        assert not any((row.value or b"").startswith(b"aborted") for row in cleaned)
        tombstones = {row.key for row in cleaned if row.value is None}
        assert tombstones == ({b"key-1", b"new"} if topic == "compacted" else set())
        if topic == "compacted":
            horizons = log.batches()["attributes"] & ATTRIBUTE_DELETE_HORIZON
            assert horizons.any()
            assert not horizons.all()


def test_no_log_of_a_broker_has_a_gap_of_unknown_cause(disk: Path, truth: Truth, tmp_path: Path) -> None:
    """DSK-R13: also the internal topics and the metadata log; a copy without a segment has one."""
    assert read_offset_checkpoint(disk / "cleaner-offset-checkpoint")["compacted", 0] > 0
    for log in kbatch.find_logs(disk):
        assert [loss for table in log.tables() for loss in table.losses] == []
    whole = next(log for log in kbatch.find_logs(disk) if len(log.segments) > 2 and log.topic in UNCLEANED)
    copied = tmp_path / Path(whole.path).name
    shutil.copytree(whole.path, copied)
    missing, following = (Path(segment.path).name for segment in whole.segments[1:3])
    (copied / missing).unlink()
    (loss,) = [loss for table in kbatch.Log(copied).tables() for loss in table.losses]
    assert (loss.length, loss.base_offset) == (0, int(missing.removesuffix(".log")))
    last = int(following.removesuffix(".log")) - 1
    assert loss.reason.startswith(f"offsets {loss.base_offset} to {last} are missing between the segments")


def test_pending_transactions_equal_the_brokers_open_transactions(disk: Path, truth: Truth) -> None:
    """LSO-R1, LSO-R2: compared with DescribeProducers, and with ListOffsets under read_committed."""
    assert [len(truth.open["transactions", partition]) for partition in range(3)] == [2, 1, 0]
    for where in PARTITIONS:
        tables = list(log_of(disk, where).tables(isolation="read_committed"))
        for table in tables:
            assert [tuple(one) for one in table.pending] == truth.open[where]
            assert table.last_stable_offset == (truth.stable[where] if truth.open[where] else None)
        if truth.open[where]:
            assert tables
            assert truth.stable[where] < truth.latest[where]
        else:
            assert truth.stable[where] == truth.latest[where]


def test_aborted_transactions_equal_the_transaction_index(disk: Path, truth: Truth) -> None:
    """TXI-R5: the markers give the entries of the .txnindex files, also after the last stable offset."""
    for partition in range(3):
        log = log_of(disk, ("transactions", partition))
        indexes = [Path(segment.path).with_suffix(".txnindex") for segment in log.segments]
        entries = [read_transaction_index(index).tolist() for index in indexes if index.exists()]
        aborted = [one for each in entries for one in each]
        assert len(aborted) >= 6
        assert log.transactions().aborted.tolist() == aborted


def test_the_last_snapshot_has_the_producers_of_the_broker(disk: Path, broker: Broker, truth: Truth) -> None:
    """DSK-R6: a broker writes a snapshot when it stops, including open transactions."""
    for partition in range(3):
        path = max((disk / f"transactions-{partition}").glob("*.snapshot"))
        if not broker.runs:
            assert int(path.stem) == truth.latest["transactions", partition]
            producers = read_producer_snapshot(path)
            found = np.sort(producers[producers["current_txn_first_offset"] >= 0], order="current_txn_first_offset")
            ours = found[["producer_id", "current_txn_first_offset"]].tolist()
            assert ours == truth.open["transactions", partition]


@while_running
@pytest.mark.parametrize("topic", ["rolled", "append-time", "codec-zstd", "transactions"])
def test_offsets_for_timestamps_equal_the_brokers(disk: Path, broker: Broker, truth: Truth, topic: str) -> None:
    where = (topic, 0)
    log = log_of(disk, where)
    stamps = sorted({row.timestamp for row in truth.rows["read_uncommitted"][where]})
    asked = [0, *stamps[:: max(1, len(stamps) // 12)], stamps[-1], stamps[-1] + 1]
    for timestamp in asked:
        expected = reading.offsets_of(broker.bootstrap, [where], OffsetSpec.for_timestamp(timestamp))[where]
        found = log.offset_for_timestamp(timestamp)
        assert (-1 if found is None else found) == expected, timestamp


@while_running
def test_a_growing_log_has_complete_batches_only(disk: Path, broker: Broker) -> None:
    """FRM-R3: a log opened at any time gives complete batches and no damage."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic("growing", 1, 1)])["growing"].result(60)
    messages = plain(30_000)
    sent = threading.Event()

    def write() -> None:
        try:
            with librdkafka(broker.bootstrap, "lz4", enable_idempotence=True) as producer:
                for one in messages:
                    producer.produce("growing", one.value, one.key, partition=0, timestamp=one.timestamp)
                    producer.poll(0)
        finally:
            sent.set()

    writer = threading.Thread(target=write)
    writer.start()
    lengths = []
    try:
        while True:
            last = sent.is_set()
            log = log_of(disk, ("growing", 0))
            tables = list(log.tables())
            assert not any(table.losses for table in tables)
            values = [value for table in tables for value in table.values()]
            assert values == [one.value for one in messages[: len(values)]]
            assert [n for table in tables for n in table.records["offset"].tolist()] == list(range(len(values)))
            assert log.end_offset == len(values)
            lengths.append(len(values))
            if last:
                break
    finally:
        writer.join(60)
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(messages)
    assert len(set(lengths)) > 2


def test_verify_finds_no_damage_in_the_files_of_a_running_or_stopped_broker(
    disk: Path, request: pytest.FixtureRequest
) -> None:
    """DSK-R4: the index files of active segments are preallocated while the broker runs."""
    logs = kbatch.find_logs(disk)
    # A broker of 4.4 that stops leaves the index of its controller's log preallocated.
    topics = [log for log in logs if log.topic != "__cluster_metadata"]
    sizes = {log.path: os.path.getsize(log.segments[-1].sibling(".index")) for log in topics}
    assert (max(sizes.values()) >= 1 << 20) == (request.node.callspec.params["disk"] == "running")
    for log in logs:
        assert not [each for each in verify_log(log.segments).findings if each.damage], log.path


def test_internal_logs_are_read_without_loss(disk: Path) -> None:
    for where in [*INTERNAL, ("__cluster_metadata", 0)]:
        tables = list(log_of(disk, where).tables(include_control=True))
        assert not any(table.losses for table in tables)
        assert sum(map(len, tables)) > 0


def test_consumer_offsets_equal_the_commits_of_the_group(disk: Path, truth: Truth) -> None:
    """DSK-R15: the last offset of each partition; offsets of committed transactions count, of aborted ones not."""
    pytest.importorskip("pyarrow")

    def commits(isolation: Any) -> list[dict[str, Any]]:
        tables = log_of(disk, ("__consumer_offsets", 0)).tables(isolation=isolation)
        rows = [row for table in tables for row in consumer_offsets(table).offsets.to_pylist()]
        assert {row["group"] for row in rows} == {scenario.GROUP}
        return rows

    committed = commits("read_committed")
    # confluent-kafka sends the NUL at the end of a C string too.
    last = {(row["topic"], row["partition"]): (row["committed_offset"], row["metadata"][:-1]) for row in committed}
    assert last == truth.done.committed
    assert 999 not in {row["committed_offset"] for row in committed}
    assert 999 in {row["committed_offset"] for row in commits("read_uncommitted")}
    tables = log_of(disk, ("__consumer_offsets", 0)).tables()
    groups = [row for table in tables for row in consumer_offsets(table).groups.to_pylist()]
    assert {row["group"] for row in groups} == {scenario.GROUP}
    assert max(len(row["members"]) for row in groups) == 1


def test_transaction_state_matches_the_producers(disk: Path, truth: Truth) -> None:
    """DSK-R16: the last state of each transactional id."""
    pytest.importorskip("pyarrow")
    last = {}
    for partition in range(2):
        for table in log_of(disk, ("__transaction_state", partition)).tables():
            for row in transaction_state(table).transactions.to_pylist():
                last[row["transactional_id"]] = row
    # Outcome of the last transaction of each.
    expected = {
        "rd-none": "CompleteCommit",
        "rd-lz4": "CompleteAbort",
        "rd-zstd": "CompleteAbort",
        "aio": "CompleteAbort",
        "kafka-python": "CompleteAbort",
        "compacted-kept": "CompleteCommit",
        "compacted-aborted": "CompleteAbort",
        "tombstones-gone-kept": "CompleteCommit",
        "tombstones-gone-aborted": "CompleteAbort",
        "offsets": "CompleteAbort",
        "open-0": "Ongoing",
        "open-1": "Ongoing",
    }
    assert {name: last[name]["status"] for name in last if name in expected} == expected
    assert last["open-0"]["partitions"] == [{"topic": "transactions", "partitions": [0]}]
    (where,) = last["open-1"]["partitions"]
    assert (where["topic"], sorted(where["partitions"])) == ("transactions", [0, 1])
    opened = [last[name]["producer_id"] for name in ("open-0", "open-1")]
    assert opened == [producer for producer, _ in truth.open["transactions", 0]]


def test_metadata_names_every_topic(disk: Path, truth: Truth) -> None:
    """DSK-R17."""
    pytest.importorskip("pyarrow")
    names, leaders = set(), set()
    for table in log_of(disk, ("__cluster_metadata", 0)).tables():
        assert None not in metadata_records(table)["record_type"].to_pylist()
        found = cluster_metadata(table).tables
        names.update(found["TopicRecord"]["name"].to_pylist())
        leaders.update(found["PartitionRecord"]["leader"].to_pylist())
    assert len(leaders) == 1
    assert names >= {*scenario.TOPICS, "__consumer_offsets", "__transaction_state"}
