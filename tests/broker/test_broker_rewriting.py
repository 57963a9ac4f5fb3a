"""Rewritten logs under a real broker: it accepts their index files, and consumers get the same records."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import kbatch
from kbatch.log import convert_log, recompress_log

try:
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    from broker import reading
    from broker.server import Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

# The broker's setting, so that indexes rebuilt after an unclean shutdown are the same.
INTERVAL = {"index_interval_bytes": 1024}
# Golden logs, by the topic that they become.
SOURCES = {
    "transactions": ("txn-0", lambda source, out: recompress_log(source, out, "zstd", **INTERVAL)),
    "plain": ("codec-gzip-0", lambda source, out: recompress_log(source, out, "none", **INTERVAL)),
    "packed": (
        "codec-none-0",
        lambda source, out: recompress_log(source, out, "lz4", segment_bytes=20_000, **INTERVAL),
    ),
    "upgraded": ("magic1-0", lambda source, out: convert_log(source, out, 2, **INTERVAL)),
    "mixed": ("mixed-0", lambda source, out: convert_log(source, out, 2, codec="snappy", **INTERVAL)),
}
PARTITIONS = [(topic, 0) for topic in SOURCES]


@pytest.fixture(scope="module")
def rewritten(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rewritten")
    for topic, (name, rewrite) in SOURCES.items():
        rewrite(golden / "logs" / name, directory / f"{topic}-0")
    return directory


@pytest.fixture(scope="module")
def with_topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that has the topics."""
    try:
        broker = Broker(tmp_path_factory.mktemp("broker"))
    except Unavailable as error:
        pytest.skip(str(error))
    with broker:
        # By default brokers delete and roll segments older than a week.
        config = {"retention.ms": "-1", "retention.bytes": "-1"}
        topics = [NewTopic(topic, 1, 1, config=config) for topic in SOURCES]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics(topics).values():
            future.result(60)
        reading.wait_for_leaders(broker.bootstrap, PARTITIONS)
        yield broker


@pytest.fixture(scope="module", params=["clean", "unclean"])
def own_broker(request: pytest.FixtureRequest, with_topics: Broker, rewritten: Path) -> Broker:
    """The broker restarted on the logs, with and without the file of a clean shutdown."""
    broker = with_topics
    broker.stop()
    for topic in SOURCES:
        place = broker.log_dir / f"{topic}-0"
        metadata = (place / "partition.metadata").read_bytes()
        shutil.rmtree(place)
        shutil.copytree(rewritten / f"{topic}-0", place)
        (place / "partition.metadata").write_bytes(metadata)
    if request.param == "unclean":
        (broker.log_dir / ".kafka_cleanshutdown").unlink()
    broker.start()
    reading.wait_for_leaders(broker.bootstrap, PARTITIONS)
    return broker


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_consumers_get_the_same_records(own_broker: Broker, golden: Path, isolation: str) -> None:
    found = reading.consumed(own_broker.bootstrap, PARTITIONS, isolation)
    for topic, (name, _) in SOURCES.items():
        expected = reading.rows_of(kbatch.Log(golden / "logs" / name).tables(isolation=isolation))
        assert [row[2:] for row in found[topic, 0]] == [(*row[2:4], max(row[4], 0), *row[5:]) for row in expected], (
            topic
        )


def test_offsets_and_timestamps_are_found_by_index(own_broker: Broker, golden: Path) -> None:
    """The broker finds them with the written .index and .timeindex files."""
    at = own_broker.bootstrap
    latest = reading.offsets_of(at, PARTITIONS, OffsetSpec.latest())
    stable = reading.offsets_of(at, PARTITIONS, OffsetSpec.latest(), "read_committed")
    for topic, (name, _) in SOURCES.items():
        log = kbatch.Log(golden / "logs" / name)
        assert latest[topic, 0] == log.end_offset
        stable_offset = log.transactions().last_stable_offset
        assert stable[topic, 0] == (log.end_offset if stable_offset is None else stable_offset)
        times = sorted({int(time) for table in log.tables() for time in table.records["timestamp"] if time >= 0})
        for time in times[:: max(len(times) // 5, 1)]:
            found = reading.offsets_of(at, [(topic, 0)], OffsetSpec.for_timestamp(time))
            assert found[topic, 0] == log.offset_for_timestamp(time), (topic, time)


def test_the_broker_logs_no_warnings_and_keeps_the_indexes(own_broker: Broker, rewritten: Path) -> None:
    output = [line for line in own_broker.output().splitlines() if "WARN" in line or "ERROR" in line]
    # The golden logs have later leader epochs than this new cluster.
    output = [line for line in output if "LeaderEpochFileCache" not in line]
    assert not [line for line in output if any(f"{topic}-0" in line for topic in SOURCES)]
    # This test is the last one with the broker, which starts again only on new logs.
    own_broker.stop()
    for topic in SOURCES:
        for path in (rewritten / f"{topic}-0").glob("*.*index"):
            kept = own_broker.log_dir / f"{topic}-0" / path.name
            assert kept.read_bytes() == path.read_bytes(), kept


def test_dump_log_segments_accepts_the_index_files(rewritten: Path, tmp_path: Path) -> None:
    try:
        broker = Broker(tmp_path)
    except Unavailable as error:
        pytest.skip(str(error))
    tool = "org.apache.kafka.tools.DumpLogSegments"
    files = sorted(str(path) for path in rewritten.glob("*/*") if path.suffix in (".index", ".timeindex"))
    assert len(files) > 20
    for check in ("--index-sanity-check", "--verify-index-only"):
        try:
            output = broker.run_class(tool, check, "--files", ",".join(files))
        except (RuntimeError, subprocess.SubprocessError) as error:
            pytest.fail(str(error))
        assert "Mismatches" not in output, output
        assert "Found timestamp mismatch" not in output
        assert "out of order" not in output
        assert "Invalid" not in output
        if check == "--index-sanity-check":
            assert [path for path in files if f"{path} passed sanity check." not in output] == []
