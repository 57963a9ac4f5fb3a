"""`async for table in consumer`: the event loop is not blocked, and a cancelled task loses no table."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from live_reading import consumed, offsets, partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.live import BrokerError
from kbatch.protocol import ApiKey


def test_async_for_returns_the_tables_of_a_loop() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 4), partition(3)])

    async def read() -> dict[tuple[str, int], list[int]]:
        async with consumed(cluster, fetch_max_bytes=1) as consumer:
            return offsets([table async for table in consumer])

    assert asyncio.run(read()) == {("orders", 0): list(range(20)), ("orders", 1): list(range(3))}
    assert all(each.is_closed for each in cluster.open)


def test_the_loop_runs_while_a_table_is_waited_for() -> None:
    made = ScriptedPartition()
    cluster = ScriptedCluster(orders=[made])

    async def read() -> int:
        ticks = 0
        async with consumed(cluster, end=None) as consumer:
            waiting = asyncio.ensure_future(consumer.__anext__())
            while ticks < 20:
                await asyncio.sleep(0.001)
                ticks += 1
            assert not waiting.done()
            made.write([b"0"])
            assert len(await waiting) == 1
        return ticks

    assert asyncio.run(read()) == 20


def test_after_a_timeout_the_consumer_is_usable_and_no_table_is_lost() -> None:
    made = ScriptedPartition()
    cluster = ScriptedCluster(orders=[made])

    async def read() -> list[int]:
        found: list[int] = []
        async with consumed(cluster, end=None) as consumer:
            for number in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(consumer.__anext__(), 0.05)
                made.write([b"%d" % number])
                await asyncio.sleep(0.05)
                found += (await consumer.__anext__()).records["offset"].tolist()
        return found

    assert asyncio.run(read()) == [0, 1, 2]


def test_a_task_that_is_cancelled_in_a_block_closes_the_consumer() -> None:
    cluster = ScriptedCluster(orders=[ScriptedPartition()])

    async def read() -> None:
        async with consumed(cluster, end=None) as consumer:
            async for _ in consumer:
                pass

    async def cancel() -> None:
        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    began = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - began < 3
    assert all(each.is_closed for each in cluster.open)


def test_an_error_is_raised_in_the_task() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])

    def refuse(response: object) -> None:
        part = response.responses[0].partitions[0]  # type: ignore[attr-defined]
        part.error_code, part.records = kbatch.ErrorCode.TOPIC_AUTHORIZATION_FAILED, b""

    cluster.fail(ApiKey.FETCH, Fault(change=refuse))

    async def read() -> None:
        consumer = consumed(cluster)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await consumer.__anext__()
        with pytest.raises(StopAsyncIteration):
            await consumer.__anext__()

    asyncio.run(read())


def test_two_tasks_cannot_wait_for_the_same_table() -> None:
    cluster = ScriptedCluster(orders=[ScriptedPartition()])

    async def read() -> None:
        async with consumed(cluster, end=None) as consumer:
            first = asyncio.ensure_future(consumer.__anext__())
            await asyncio.sleep(0.01)
            with pytest.raises(RuntimeError, match="another task waits"):
                await consumer.__anext__()
            first.cancel()

    asyncio.run(read())


def test_a_consumer_that_is_dropped_after_a_cancellation_closes_its_connections() -> None:
    cluster = ScriptedCluster(orders=[ScriptedPartition()])

    async def read() -> None:
        consumer = consumed(cluster, end=None)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.__anext__(), 0.05)

    asyncio.run(read())
    gc.collect()
    deadline = time.monotonic() + 5
    while any(each.name.startswith("kbatch-") for each in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread still runs"
        time.sleep(0.01)
    assert all(each.is_closed for each in cluster.open)


WAITS = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import kbatch
from scripted_broker import ScriptedCluster, ScriptedPartition

cluster = ScriptedCluster(orders=[ScriptedPartition()])
consumer = kbatch.consume("orders", transport=cluster.connect, bootstrap_servers="broker-1", end=None)

async def read():
    try:
        await asyncio.wait_for(consumer.__anext__(), 0.1)
    except asyncio.TimeoutError:
        print("timeout")

asyncio.run(read())
"""


def test_a_thread_that_waits_does_not_keep_the_process() -> None:
    support = str(Path(__file__).parents[1] / "support")
    done = subprocess.run(
        [sys.executable, "-c", WAITS, support], capture_output=True, text=True, timeout=20, check=True
    )
    assert (done.stdout, done.stderr) == ("timeout\n", "")
