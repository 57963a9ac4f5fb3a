"""Directories of logs: transactions, wrong offsets, damaged batches, and segments that overlap or have wrong names."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import NamedTuple

from log_batches import segment_path
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn


class WrittenLog(NamedTuple):
    """A log and its bytes by segment."""

    path: Path
    segments: list[bytes]


def moved(batch: bytes, offset: int) -> bytes:
    """Set the base offset of a batch, which no checksum covers."""
    return struct.pack(">q", offset) + batch[8:]


def wrong_offset(draw: random.Random, offset: int) -> int:
    """Choose an offset instead of `offset`: a flipped bit, a smaller or larger one, or one of a neighbour."""
    kind = draw.randrange(4)
    if kind == 0:
        return offset ^ (1 << draw.randrange(62))
    if kind == 1:
        return draw.randrange(offset + 1)
    return offset + draw.choice([-3, -2, -1, 1, 2, 3, 1 << 20, 1 << 50]) if kind == 2 else 0


def write_log(directory: Path, seed: int, *, is_damaged: bool = True, overlaps: bool = False) -> WrittenLog:
    """Write a log of several segments; the keys of its records are their true offsets.

    Damaged batches have good neighbours in their segment: where a segment is lost at one of its ends, the names of the
    files show what the bytes do not.
    """
    draw = random.Random(seed)
    path = directory / f"t-{seed}"
    path.mkdir()
    wrong = draw.choice([0, 0.1, 0.3])
    offset = name = 0
    segments: list[bytes] = []
    for number in range(draw.randint(1, 4)):
        if number:
            # The true offset, one above all offsets of the segment, or one within the segment before.
            shift = draw.choice([0, 0, 80, -2 if overlaps else 0])
            name = max(offset + shift, name + 1)
        batches: list[bytes] = []
        for _ in range(draw.randint(1, 9)):
            producer, count, kind = draw.randint(4, 7), draw.randint(1, 3), draw.random()
            if kind < 0.2:
                batch = data(offset, count=count)
            elif kind < 0.6:
                batch = txn(offset, producer, count)
            else:
                batch, count = marker(offset, producer, draw.choice([ABORT, COMMIT])), 1
            if draw.random() < wrong:
                batch = moved(batch, max(0, wrong_offset(draw, offset)))
            batches.append(batch)
            offset += count
            if draw.random() < 0.1:
                # Compaction, or a gap.
                offset += draw.randint(1, 5)
        if is_damaged:
            for i in range(1, len(batches) - 1):
                if draw.random() < 0.2:
                    batches[i] = damaged(batches[i], draw.choice([-1, 22, 47]))
        segment_path(path, name).write_bytes(b"".join(batches))
        segments.append(b"".join(batches))
    return WrittenLog(path, segments)
