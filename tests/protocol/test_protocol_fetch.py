"""Fetch responses as tables: offsets, aborted transactions, errors, and timestamps of records."""

from __future__ import annotations

import sys
import uuid
from typing import Any

import numpy as np
import pytest
from support.bombs import MIB, RECORD, batch, measured, record

import kbatch
from kbatch import LimitExceededError, Limits
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


LIMIT = 16 * MIB
WINDOW = 8 * MIB


def response_of(*records: bytes, topic: str = "orders") -> Any:
    partitions = [FetchResponse.PartitionData(partition_index=i, records=each) for i, each in enumerate(records)]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic=topic, partitions=partitions)])


def many_rows(codec: str) -> bytes:
    """11 MiB of rows, of 1.4 MB of payload."""
    return batch(RECORD * 200_000, 200_000, codec)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "records",
    [
        [many_rows("zstd")] * 50,
        [many_rows("none")] * 10,
        [batch(record(bytes(LIMIT // 4)), 1, "gzip")] * 20,
        [batch(record(b"v"), 1, "lz4")] * 2000,
        [batch(RECORD, 1)[:40]] * 2000,
        [b""] * 8000,
    ],
    ids=["compressed", "uncompressed", "large values", "small partitions", "partial batches", "empty partitions"],
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_tables_of_all_partitions_stay_within_one_limit(records: list[bytes], isolation: Any) -> None:
    response, limits = response_of(*records), Limits(max_table_bytes=LIMIT)
    decode_fetch(response_of(batch(record(bytes(MIB)), 1, "zstd"), records[0]), isolation=isolation)
    for on_error in ("raise", "skip"):
        increase, result = measured(
            lambda on_error=on_error: len(decode_fetch(response, limits=limits, on_error=on_error, isolation=isolation))
        )
        assert increase <= LIMIT * 13 // 10 + WINDOW, on_error
        if on_error == "raise" or len(records) > 100:
            assert isinstance(result, str), result
            assert result.startswith("LimitExceededError: orders-"), result
            assert f"take more than {LIMIT} bytes" in result
            assert "at a time, or raise Limits(max_table_bytes=...)" in result
        else:
            assert result == len(records)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_tables_of_a_response_are_those_of_its_partitions_up_to_exactly_the_limit(codec: str) -> None:
    """Each table counts with its rows, its payloads, and 20 KiB for its pages, the last one without these."""
    records = [batch(record(b"v" * size) * count, count, codec) for size, count in ((10, 1000), (5000, 3), (0, 2000))]
    single = [kbatch.decode(each) for each in records]
    needed = 2 * (20 << 10)
    for table in single:
        needed += table.records.nbytes + table.batches.nbytes + (table.data.nbytes if codec != "none" else 0)
    response = response_of(*records)
    fetched = decode_fetch(response, limits=Limits(max_table_bytes=needed))
    for each, table in zip(fetched, single, strict=True):
        assert np.array_equal(each.table.records, table.records)
        assert np.array_equal(each.table.batches, table.batches)
        assert np.array_equal(each.table.data, table.data)
        assert (each.table.consumed, each.table.source) == (table.consumed, None)
    with pytest.raises(
        LimitExceededError,
        match=rf"orders-2, byte 0, base offset 0: with this batch all tables take more than {needed - 1} bytes of "
        r"memory, \d+ of them for other partitions; fetch fewer bytes at a time, or raise Limits\(max_table_bytes",
    ) as caught:
        decode_fetch(response, limits=Limits(max_table_bytes=needed - 1))
    assert (caught.value.source, caught.value.position, caught.value.base_offset) == ("orders-2", 0, 0)
    skipped = decode_fetch(response, limits=Limits(max_table_bytes=needed - 1), on_error="skip")
    assert [len(each.table) for each in skipped] == [1000, 3, 0]
    assert "all tables take more than" in skipped[2].table.losses[0].reason


def test_the_views_of_each_table_fit_next_to_all_tables_of_a_response() -> None:
    records = [batch(record(b"v" * 100) * 1000, 1000, "zstd")] * 3
    rows = kbatch.decode(records[0])
    size = rows.records.nbytes + rows.batches.nbytes + rows.data.nbytes + (20 << 10)
    view = rows.to_arrow().nbytes
    for rest, fits in ((4 * view, True), (view // 4, False)):
        for each in decode_fetch(response_of(*records), limits=Limits(max_table_bytes=3 * size + rest)):
            if fits:
                assert each.table.to_arrow().num_rows == 1000
            else:
                with pytest.raises(LimitExceededError, match=r"raise limits=kbatch\.Limits\(max_table_bytes=\.\.\.\)"):
                    each.table.to_arrow()


def test_an_error_in_a_partition_names_the_topic_or_its_id_and_the_partition() -> None:
    good = bytes(kbatch.encode([b"v"]))
    bad = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(kbatch.CrcMismatchError, match=r"^orders-1, byte 0, base offset 0: stored checksum"):
        decode_fetch(response_of(good, bad))
    response = response_of(good, bad, topic="")
    response.responses[0].topic_id = topic_id = uuid.UUID(int=7)
    with pytest.raises(kbatch.CrcMismatchError, match=f"^{topic_id}-1, byte 0"):
        decode_fetch(response)
