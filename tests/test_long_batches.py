"""One long batch that two threads share: what they make of it is what one makes of it, whatever its bytes."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbatch
from kbatch.kernels import decode as kernel

HEADER = 61
# From so many bytes a record is guessed, if so many follow each other.
GUESSED_BYTES = 16 << 10
GUESSED_RECORDS = 16


# -- where a record begins


def starts_of(payload: bytes) -> list[int]:
    """Where each record of a payload begins, by the lengths alone."""
    starts, at = [], 0
    while at < len(payload):
        starts.append(at)
        length, shift = 0, 0
        while True:
            byte = payload[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += length >> 1
    return starts


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_record_is_guessed_from_any_byte(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    count = data.draw(st.integers(1, 300))
    most = data.draw(st.sampled_from([1, 10, 70, 900, 9000]))
    values = [rng.bytes(int(rng.integers(0, most))) for _ in range(count)]
    keys = [None if len(value) % 3 else value[:5] for value in values]
    headers = [[("k", value[:5])] if len(value) % 5 == 0 else [] for value in values]
    times = np.cumsum(rng.integers(0, data.draw(st.sampled_from([1, 5, 1 << 20])), count))
    payload = kbatch.encode(values, keys=keys, headers=headers, timestamps=times)[HEADER:]
    starts = starts_of(payload)
    after = data.draw(st.integers(0, len(payload) + 5))
    found = kernel.guess(np.frombuffer(payload, np.uint8), after)
    if found is not None:
        at, number = found
        assert after <= at < after + GUESSED_BYTES
        assert starts[number] == at
    elif most <= 70:
        # The last of them are left to who reads to the end.
        assert sum(start >= after for start in starts) <= GUESSED_RECORDS + 50


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 3100), st.integers(0, 40))
def test_a_guess_stays_within_its_bytes(noise: bytes, after: int, count: int) -> None:
    """Whatever they are, and also where they look like records up to their end."""
    records = b"".join(oracle.encode_record(i, i, b"k", b"v") for i in range(count))
    for payload in (noise, noise + records, records + noise):
        found = kernel.guess(np.frombuffer(payload, np.uint8), after)
        if found is not None:
            assert after <= found[0] < len(payload)


def test_what_is_no_run_of_records_is_no_guess() -> None:
    for payload in (b"", b"\x0c", bytes(100_000), b"\xff" * 100_000, b"\x7e\x00" * 50_000):
        assert kernel.guess(np.frombuffer(payload, np.uint8), 0) is None
    # A gap in the offsets.
    for last, found in ((GUESSED_RECORDS - 2, (22 * 15, 16)), (GUESSED_RECORDS - 1, (0, 0))):
        records = [oracle.encode_record(i + (i > last), value=b"v" * 15) for i in range(200)]
        payload = np.frombuffer(b"".join(records), np.uint8)
        assert kernel.guess(payload, 0) == found
    with pytest.raises(ValueError, match="0 or more"):
        kernel.guess(b"", -1)
