"""The batch reader of a live cluster, without Spark: damage, tables of counts and losses, and what tasks get."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from live_readers import live_reader, reader_rows
from scripted_broker import ScriptedCluster, ScriptedPartition
from socket_broker import served

pytest.importorskip("pyspark")

import kbatch
from kbatch.live import BrokerError
from kbatch.protocol import ApiKey
from kbatch.spark.live_reader import KbatchLiveReader


@pytest.fixture
def log() -> ScriptedPartition:
    """Ten batches of three records; the fifth is damaged."""
    log = ScriptedPartition()
    for number in range(10):
        log.write([b"%d" % number] * 3, keys=[b"a", b"b", None], timestamps=[1, 2, 3])
    damaged = bytearray(log.batches[4])
    damaged[-1] ^= 1
    log.batches[4] = bytes(damaged)
    return log


@pytest.fixture
def address(log: ScriptedPartition) -> Iterator[str]:
    with served(ScriptedCluster(t=[log])) as address:
        yield address


def reader(address: str, *columns: str, **options: Any) -> KbatchLiveReader:
    return live_reader(address, "t", *columns, **options)


def offsets(address: str, **options: str) -> list[int]:
    return [each["offset"] for each in reader_rows(reader(address, "offset", **options))]


WITHOUT_DAMAGE = [offset for offset in range(30) if offset not in (12, 13, 14)]


@pytest.mark.parametrize("divided", [{}, {"minPartitions": "7"}, {"maxRecordsPerPartition": "4"}])
def test_damage_is_an_error_or_skipped_or_ends_the_partition(address: str, divided: dict[str, str]) -> None:
    with pytest.raises(kbatch.CrcMismatchError, match=r"t-0.*base offset 12"):
        offsets(address, **divided)
    assert offsets(address, onError="skip", **divided) == WITHOUT_DAMAGE
    assert offsets(address, failOnDataLoss="false", **divided) == WITHOUT_DAMAGE
    assert offsets(address, onError="stop", **divided) == list(range(12))


def test_damage_outside_of_the_chosen_offsets_is_not_reported(address: str) -> None:
    assert offsets(address, endingOffsets='{"t": {"0": 11}}') == list(range(11))
    assert offsets(address, startingOffsets='{"t": {"0": 16}}') == list(range(16, 30))


@pytest.mark.parametrize("divided", [{}, {"minPartitions": "3"}])
def test_the_table_of_losses_has_each_damaged_batch_once(address: str, divided: dict[str, str]) -> None:
    [loss] = reader_rows(reader(address, table="losses", **divided))
    assert (loss["topic"], loss["partition"], loss["file"], loss["base_offset"]) == ("t", 0, "t-0", 12)
    assert loss["length"] > 0
    assert "checksum" in loss["reason"]


def test_the_table_of_counts_has_the_records_of_each_partition(address: str) -> None:
    found = reader_rows(reader(address, table="counts", onError="skip"))
    assert sum(each["records"] for each in found) == 27


def test_a_key_chooses_records(address: str) -> None:
    assert offsets(address, key="b", onError="skip") == [offset for offset in WITHOUT_DAMAGE if offset % 3 == 1]


def test_a_task_gets_no_bounds_of_the_whole_read(address: str) -> None:
    bounds = {"startingOffsets": '{"t": {"0": 16}}', "endingOffsets": '{"t": {"0": 20}}'}
    made = reader(address, "offset", **bounds)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.options.starting.offsets, copy.options.ending.offsets, copy.options.topics) == (None, None, None)
    assert [each["offset"] for each in reader_rows(made)] == [16, 17, 18, 19]


@pytest.mark.parametrize("divided", [{}, {"minPartitions": "7"}])
def test_records_that_retention_deletes_after_the_plan_are_data_loss(
    log: ScriptedPartition, address: str, divided: dict[str, str]
) -> None:
    made = reader(address, "offset", onError="skip", **divided)
    tasks = made.partitions()
    log.start = 6
    with pytest.raises(BrokerError, match="the records before offset 6 were deleted by retention"):
        [batch for task in tasks for batch in made.read(task)]
    made.options = replace(made.options, fail_on_data_loss=False)
    with pytest.warns(RuntimeWarning, match="the records before offset 6"):
        found = [offset for task in tasks for batch in made.read(task) for offset in batch["offset"].to_pylist()]
    assert found == [offset for offset in WITHOUT_DAMAGE if offset >= 6]


def test_responses_grow_with_the_range() -> None:
    """A small range is not fetched with megabytes."""
    cluster = ScriptedCluster(t=[ScriptedPartition()])
    for _ in range(8):
        cluster.topics["t"][0].write([bytes(100_000)] * 10)
    with served(cluster) as other:
        assert offsets(other) == list(range(80))
        requests = cluster.sent(ApiKey.FETCH)
        sizes = [part.partition_max_bytes for each in requests for topic in each.topics for part in topic.partitions]
        assert sizes[:3] == [256 << 10, 1 << 20, 4 << 20]
        assert {each.max_bytes for each in requests} == {8 << 20}


def test_a_record_that_is_too_large_for_a_row_names_how_to_read_it() -> None:
    cluster = ScriptedCluster(t=[ScriptedPartition()])
    cluster.topics["t"][0].write([bytes(5000)])
    with served(cluster) as address, pytest.raises(kbatch.LimitExceededError) as raised:
        reader_rows(reader(address, "value", maxRecordBytes="1000"))
    assert "5000 bytes of value exceed maxRecordBytes" in str(raised.value)
    assert "kbatch.consume('t', partitions=[0], start=0) reads the record" in str(raised.value)
