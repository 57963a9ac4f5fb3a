"""Logs with keys and unordered timestamps, and their rows, for the tests of conditions on columns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import oracle
from log_batches import write_segment
from view_records import EPOCH

BEGIN = 1_700_000_000_000
# Topic, partition, offset, timestamp and key.
Row = tuple[str, int, int, datetime | None, bytes | None]


@dataclass
class KeyedLogs:
    """A log directory, its rows in order of the logs, and the size of all segments."""

    root: str
    rows: list[Row] = field(default_factory=list)
    size: int = 0


def keyed_logs(
    root: Path, topics: Sequence[str], partitions: int, keys: Sequence[bytes | None], seed: int
) -> KeyedLogs:
    """Write logs of three segments of 40 records; some timestamps descend, and some are missing."""
    draw = random.Random(seed)
    logs = KeyedLogs(str(root))
    for topic in topics:
        for partition in range(partitions):
            for segment in range(3):
                batches = []
                for first in range(40 * segment, 40 * segment + 40, 8):
                    base = -1 if draw.random() < 0.1 else BEGIN + 1000 * first + draw.randrange(-20_000, 20_000)
                    deltas = [0 if base < 0 else draw.randrange(-500, 500) for _ in range(8)]
                    chosen = [draw.choice(keys) for _ in range(8)]
                    records = [oracle.encode_record(i, deltas[i], chosen[i], b"v" * 50) for i in range(8)]
                    highest = -1 if base < 0 else base + max(deltas)
                    batches.append(
                        oracle.build_batch(records, base_offset=first, base_timestamp=base, max_timestamp=highest)
                    )
                    for i in range(8):
                        at = None if base < 0 else EPOCH + timedelta(milliseconds=base + deltas[i])
                        logs.rows.append((topic, partition, first + i, at, chosen[i]))
                write_segment(root / f"{topic}-{partition}", 40 * segment, batches, indexes=True)
                logs.size += sum(map(len, batches))
    return logs
