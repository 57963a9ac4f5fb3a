"""Fetch messages of 1,000 partitions: the codecs of kbatch, kafka-python and aiokafka, in turns.

Run as ``python -m bench.protocol``; with ``--check`` it fails if kbatch is slower than one of the others. The clock is
CPU time. Each contestant reads the same response and writes the same request, and its result is compared with kbatch's;
a line has the median of its rounds, and the ratio to kbatch's.
"""

from __future__ import annotations

import gc
import io
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import kbatch
from kbatch.protocol import FetchRequest, FetchResponse, decode_message, encode_message

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.consumer as kafka_python
import aiokafka.protocol.fetch as aiokafka

PARTITIONS = 1000
ROUNDS = 60
# The newest versions with topic names that all contestants support; aiokafka supports up to 11.
VERSIONS = (4, 11, 12)

Contestants = dict[str, Callable[[], Any]]


def response(size: int) -> Any:
    records = memoryview(bytes(kbatch.encode([bytes(size)])))
    partitions = [
        FetchResponse.PartitionData(
            partition_index=i,
            high_watermark=i,
            last_stable_offset=i,
            log_start_offset=0,
            aborted_transactions=[],
            records=records,
        )
        for i in range(PARTITIONS)
    ]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="orders", partitions=partitions)])


def request() -> Any:
    partitions = [
        FetchRequest.FetchPartition(partition=i, fetch_offset=i, partition_max_bytes=1 << 20) for i in range(PARTITIONS)
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchRequest.FetchTopic(topic="orders", partitions=partitions)],
    )


def readers(version: int, size: int) -> Contestants:
    data = b"".join(encode_message(response(size), version))
    found: Contestants = {
        "kbatch": lambda: decode_message(FetchResponse, data, version),
        "kafka-python": lambda: kafka_python.FetchResponse.decode(data, version=version),
    }
    kind = getattr(aiokafka, f"FetchResponse_v{version}", None)
    if kind is not None:
        found["aiokafka"] = lambda: kind.decode(io.BytesIO(data))
        (topic,) = found["aiokafka"]().topics
        assert [each[:3] for each in topic[1]] == [(i, 0, i) for i in range(PARTITIONS)]
    expected = [each.to_dict() for each in found["kbatch"]().responses[0].partitions]
    theirs = found["kafka-python"]().responses[0].partitions
    for name in ("partition_index", "error_code", "high_watermark", "records"):
        assert [getattr(each, name) for each in theirs] == [each[name] for each in expected]
    return found


def writers(version: int) -> Contestants:
    message = request()
    expected = b"".join(encode_message(message, version))
    theirs = kafka_python.FetchRequest.decode(expected, version=version)
    theirs._header = None
    found: Contestants = {
        "kbatch": lambda: encode_message(message, version),
        "kafka-python": lambda: theirs.encode(version=version),
    }
    assert bytes(theirs.encode(version=version)) == expected
    kind = getattr(aiokafka, f"FetchRequest_v{version}", None)
    if kind is not None:
        parsed = kind.decode(io.BytesIO(expected))
        assert parsed.encode() == expected
        found["aiokafka"] = parsed.encode
    return found


def medians(contestants: Contestants) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for name, function in contestants.items():
                start = time.process_time()
                result = function()
                times[name].append(time.process_time() - start)
                del result
    finally:
        gc.enable()
    return {name: statistics.median(found) for name, found in times.items()}


def show(title: str, contestants: Contestants) -> bool:
    """Print the medians; return whether kbatch is the fastest."""
    found = medians(contestants)
    print(title)
    for name, seconds in found.items():
        print(f"  {name:14} {seconds * 1e3:8.3f} ms   {seconds / found['kbatch']:6.2f}")
    return min(found.values()) == found["kbatch"]


def main() -> int:
    fastest = []
    for version in VERSIONS:
        for size in (10, 10_000):
            fastest.append(show(f"read a Fetch response v{version}, records of {size} bytes", readers(version, size)))
        fastest.append(show(f"write a Fetch request v{version}", writers(version)))
    return 0 if all(fastest) or sys.argv[1:] != ["--check"] else 1


if __name__ == "__main__":
    sys.exit(main())
