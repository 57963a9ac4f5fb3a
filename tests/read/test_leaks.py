"""Calls do not leak memory, whether they return or raise: the resident memory stays the same."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
from generated_kinds import KINDS

import kbatch
from kbatch.protocol import FetchResponse, decode_message, encode_message
from kbatch.values import AvroParser

# KBATCH_TEST_ALL=1 makes a million calls, which takes minutes.
CALLS = 1_000_000 if os.environ.get("KBATCH_TEST_ALL") == "1" else 20_000
# Less than one byte for each of a million calls.
MAX_GROWTH = 768 << 10


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def calls() -> list[Callable[[], Any]]:
    """Return calls of every decoder with good and bad input of each magic and codec; about half of them raise."""
    import pyarrow as pa

    avro = AvroParser({"type": "array", "items": ["null", "string"]})
    column = pa.array([b"\2\2\2a\0", b"\2", None], pa.binary())
    response = b"".join(encode_message(FetchResponse(), 12))
    steps: list[Callable[[], Any]] = [
        lambda: avro.parse(column),
        lambda: decode_message(FetchResponse, response, 12),
        lambda: decode_message(FetchResponse, response[:-1], 12),
        lambda: kbatch.encode([b"v", None], headers=[[("h", b"v")], []], codec="lz4"),
    ]
    for batch in KINDS.values():
        changed = batch[:-1] + bytes([batch[-1] ^ 1])
        invalid = oracle.build_batch(payload=b"\x7f" + batch[:20], record_count=2)
        for data in (batch, changed, invalid, batch[:8] + bytes(4) + batch[12:]):
            steps.append(lambda data=data: kbatch.decode(data))
            steps.append(lambda data=data: kbatch.decode(data + batch, on_error="skip", crc="mark").headers)  # noqa: B023
            steps.append(lambda data=data: list(kbatch.decode_stream([data[:50], data[50:]], on_error="skip")))
            steps.append(lambda data=data: kbatch.recompress(data, "gzip"))
    return steps


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_resident_memory_is_flat_over_many_calls_and_errors() -> None:
    steps = calls()
    raised = 0

    def run(count: int) -> None:
        nonlocal raised
        for step in itertools.islice(itertools.cycle(steps), count):
            with contextlib.suppress(kbatch.KbatchError):
                step()
                continue
            raised += 1

    # Caches and the pool of buffers fill at first.
    run(CALLS // 4)
    before = resident()
    run(CALLS)
    growth = resident() - before
    assert raised > CALLS // 4
    assert growth < MAX_GROWTH, f"{CALLS} calls, {growth} bytes more"
