"""Fetch responses as tables: offsets, aborted transactions, errors, and timestamps of records."""

from __future__ import annotations

from typing import Any

import pytest

import kbatch
from kbatch.protocol import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    aborted_transactions,
    decode_fetch,
    decode_message,
    encode_message,
)


def transactional(producer_id: int, base_offset: int, *values: bytes) -> bytes:
    return bytes(
        kbatch.encode(
            list(values),
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


def received(partitions: list[Any], version: int) -> Any:
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])
    return decode_message(FetchResponse, b"".join(encode_message(response, version)), version)


@pytest.mark.parametrize("version", [4, 11, 12])
def test_aborted_transactions_are_dropped_under_read_committed(version: int) -> None:
    records = (
        transactional(7, 0, b"aborted")
        + transactional(8, 1, b"kept")
        + bytes(kbatch.encode_marker("abort", offset=2, producer_id=7, producer_epoch=0))
    )
    partition = FetchResponse.PartitionData(
        partition_index=3,
        high_watermark=3,
        last_stable_offset=3,
        records=records,
        aborted_transactions=[FetchResponse.AbortedTransaction(producer_id=7, first_offset=0)],
    )
    response = received([partition], version)
    assert aborted_transactions(response.responses[0].partitions[0]) == [(7, 0)]
    (committed,) = decode_fetch(response, isolation="read_committed")
    assert (committed.topic, committed.partition, committed.high_watermark) == ("t", 3, 3)
    assert [committed.table.value(row) for row in range(len(committed.table))] == [b"kept"]
    (everything,) = decode_fetch(response)
    assert len(everything.table) == 2


def test_a_partition_with_an_error_has_no_rows_and_does_not_affect_others() -> None:
    """FCH-R5, FCH-R6: an error has Kafka's name of its code, or UNKNOWN and the code."""
    partitions = [
        FetchResponse.PartitionData(partition_index=0, error_code=1, records=None),
        FetchResponse.PartitionData(partition_index=1, error_code=4711, records=b""),
        FetchResponse.PartitionData(partition_index=2, records=kbatch.encode([b"v"])),
        # The broker's error for clients without zstd.
        FetchResponse.PartitionData(partition_index=3, error_code=76, records=b""),
    ]
    fetched = decode_fetch(received(partitions, 11))
    assert [each.error.name for each in fetched] == [
        "OFFSET_OUT_OF_RANGE",
        "UNKNOWN_4711",
        "NONE",
        "UNSUPPORTED_COMPRESSION_TYPE",
    ]
    assert [len(each.table) for each in fetched] == [0, 0, 1, 0]


def test_records_before_the_fetch_offset_are_dropped() -> None:
    """FCH-R3: the first batch may begin before the fetch offset."""
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=2)
    request = FetchRequest(topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])])
    response = received([FetchResponse.PartitionData(records=kbatch.encode([b"a", b"b", b"c"]))], 11)
    (fetched,) = decode_fetch(response, request=request)
    assert fetched.table.records["offset"].tolist() == [2]


def test_a_partial_last_batch_is_not_damage() -> None:
    """FCH-R2: a broker may truncate the last batch of a response."""
    batch = bytes(kbatch.encode([b"v"]))
    (fetched,) = decode_fetch(received([FetchResponse.PartitionData(records=batch + batch[:40])], 11))
    assert (len(fetched.table), fetched.table.consumed) == (1, len(batch))


@pytest.mark.parametrize("timestamps", [[0, 2**40], [2**62, 0], [1_700_000_000_000, 5, 2**53]])
def test_timestamp_deltas_have_64_bits(timestamps: list[int]) -> None:
    """TS-R1: a reader that keeps 32 bits loses the upper half."""
    records = kbatch.encode([b"v"] * len(timestamps), timestamps=timestamps)
    assert abs(timestamps[1] - timestamps[0]) > 2**32
    (fetched,) = decode_fetch(received([FetchResponse.PartitionData(records=records)], 12))
    assert fetched.table.records["timestamp"].tolist() == timestamps


@pytest.mark.parametrize("version", [0, 4, 12])
def test_the_records_of_a_partition_are_not_copied(version: int) -> None:
    """Records of any size are a view of the received bytes, so the work does not depend on their size."""
    large = bytes(20_000_000)
    response = FetchResponse(
        responses=[
            FetchResponse.FetchableTopicResponse(topic="t", partitions=[FetchResponse.PartitionData(records=large)])
        ]
    )
    buffers = encode_message(response, version)
    assert sum(len(each) for each in buffers if not isinstance(each, memoryview)) < 100
    data = b"".join(buffers)
    records = decode_message(FetchResponse, data, version).responses[0].partitions[0].records
    assert records.obj is data
    assert records.readonly


def test_a_partition_has_the_fields_of_its_version() -> None:
    """FCH-R1: fields that a version lacks have their defaults."""
    partition = FetchResponse.PartitionData(
        partition_index=1,
        error_code=2,
        high_watermark=3,
        last_stable_offset=4,
        log_start_offset=5,
        aborted_transactions=[],
        preferred_read_replica=6,
        current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=7, leader_epoch=8),
        records=b"",
    )
    since = {"last_stable_offset": 4, "aborted_transactions": 4, "log_start_offset": 5, "current_leader": 12}
    for version in range(12, 19):
        topics = [FetchResponse.FetchableTopicResponse(partitions=[partition])]
        data = b"".join(encode_message(FetchResponse(responses=topics), version))
        (read,) = decode_message(FetchResponse, data, version).responses[0].partitions
        assert read == partition
    for version in (0, 1, 4, 5):
        left = FetchResponse.PartitionData(
            partition_index=1, high_watermark=3, last_stable_offset=4, log_start_offset=5, records=b""
        )
        read = received([left], version).responses[0].partitions[0].to_dict(changed=True)
        expected = left.to_dict(changed=True)
        assert read == {name: value for name, value in expected.items() if since.get(name, 0) <= version}


@pytest.mark.parametrize(("timestamp", "version"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_list_offsets_has_special_timestamps(timestamp: int, version: int) -> None:
    """FCH-R8: negative timestamps request special offsets, such as the earliest and the latest."""
    partition = ListOffsetsRequest.ListOffsetsPartition(timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[partition])])
    assert decode_message(ListOffsetsRequest, b"".join(encode_message(request, version)), version) == request
