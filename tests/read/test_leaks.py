"""Calls do not leak memory, whether they return or raise: allocated and resident memory stay the same."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
from generated_kinds import KINDS
from tables import short_inputs

import kbatch
from kbatch.kernels import buffers
from kbatch.protocol import FetchResponse, decode_message, encode_message
from kbatch.values import AvroParser

# KBATCH_TEST_ALL=1 makes a million calls, which takes minutes.
CALLS = 1_000_000 if os.environ.get("KBATCH_TEST_ALL") == "1" else 8_000
# Caches of Python objects vary by a few kilobytes.
MAX_ALLOCATED = 256 << 10
# The allocator writes to pages of freed memory that were not resident, up to the largest size of the heap so far.
MAX_RESIDENT = 16 << 20


class MallocInfo(ctypes.Structure):
    """The result of glibc's ``mallinfo2``."""

    # Of these, uordblks counts the bytes in use in the heap, and hblkhd the bytes in mapped blocks.
    _fields_ = [(f"other{i}", ctypes.c_size_t) for i in range(4)]
    _fields_ += [
        (name, ctypes.c_size_t) for name in ("hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def allocated() -> int:
    """Return the bytes that are allocated by ``malloc``, including mapped blocks, without free blocks of the pool."""
    gc.collect()
    buffers.trim()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallocInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
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


@short_inputs
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc counts allocations since 2.33")
def test_memory_is_flat_over_many_calls_and_errors() -> None:
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
    before = allocated(), resident()
    run(CALLS)
    growth = allocated() - before[0], resident() - before[1]
    print(f"{CALLS} calls, {raised} raised: {growth[0]} bytes more allocated, {growth[1]} resident")
    assert raised > CALLS // 4
    assert growth[0] < MAX_ALLOCATED
    assert growth[1] < MAX_RESIDENT
