"""Samples of live partitions: keys and values at places spread over their offsets, to infer a schema."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kbatch.live.live_partitions import LivePartition
from kbatch.log.sampling import SAMPLED_ROWS
from kbatch.options import Crc, On
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.values.parsed import sample

__all__ = ["sample_partitions"]

# Each place takes two requests to a broker that may be far away.
_PLACES = 16
_SAMPLE_SIZE = 256 << 10


def sample_partitions(logs: Sequence[LivePartition], on: On, crc: Crc = "verify") -> list[bytes]:
    """Return keys or values from places spread evenly over the offsets of partitions; skip damage.

    Raises
    ------
    BrokerError, AuthenticationError
    """
    lengths = np.array([max(log.end_offset - log.start_offset, 0) for log in logs], np.int64)
    ends = np.cumsum(lengths)
    if not len(ends) or not ends[-1]:
        return []
    targets = np.unique(np.linspace(0, ends[-1] - 1, _PLACES).astype(np.int64))
    decoding = DecodeOptions(crc=crc, on_error="skip")
    found: list[bytes] = []
    seen: set[tuple[int, int]] = set()
    for target in targets.tolist():
        number = int(np.searchsorted(ends, target, "right"))
        log = logs[number]
        offset = log.end_offset - (int(ends[number]) - target)
        table = decode_part(log.fetched(offset, _SAMPLE_SIZE, "fetch of a sample"), decoding)
        if len(table) and (first := (number, int(table.batches["base_offset"][0]))) not in seen:
            seen.add(first)
            found += sample(table, on, SAMPLED_ROWS // _PLACES)
    return found
