"""Directories of random logs for scans: transactions, null keys and timestamps, timestamps that descend, and damage."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

import oracle
from log_batches import write_segment
from random_conditions import Values
from transaction_logs import ABORT, COMMIT, marker

__all__ = ["ScannedLogs", "scanned_logs"]

BEGIN = 1_700_000_000_000
STEP = 1000
KEYS = (None, b"", b"a", b"b", b"\x00\xff")
CODECS = ("none", "gzip", "lz4")
SEGMENTS, BATCHES = 3, 6


@dataclass
class ScannedLogs:
    """A log directory, values to compare its records with, and whether it has damage."""

    root: Path
    values: Values
    size: int = 0
    is_damaged: bool = False
    logs: list[Path] = field(default_factory=list)
    # By topic, of each partition the batches with their first offset and the offset after the last one.
    batches: dict[str, list[list[tuple[bytes, int, int]]]] = field(default_factory=dict)


def scanned_logs(root: Path, seed: int, *, damage: float = 0.0, lengths: bool = True) -> ScannedLogs:
    """Write logs of several segments; with a chance of `damage`, bytes of a batch other than its base offset change.

    `lengths` is whether its length may change too.

    No checksum covers a base offset, and seeks rely on ascending offsets. The last batch of a log remains good, since
    bounds that count from the end rely on its header.
    """
    draw = random.Random(seed)
    made = ScannedLogs(root, _values(draw))
    for topic, count in (("a", 2), ("b", 1), ("a.b-c", 1)):
        for partition in range(count):
            offset, undecided = 0, set[int]()
            directory = root / f"{topic}-{partition}"
            made.logs.append(directory)
            written: list[tuple[bytes, int, int]] = []
            made.batches.setdefault(topic, []).append(written)
            for segment in range(SEGMENTS):
                base, batches, number = offset, [], draw.randint(1, BATCHES)
                for place in range(number):
                    batch, count_of = _batch(draw, offset, undecided)
                    is_last = (segment, place) == (SEGMENTS - 1, number - 1)
                    if draw.random() < damage and not is_last:
                        made.is_damaged = True
                        batch = _changed(draw, batch, lengths)
                    batches.append(batch)
                    written.append((batch, offset, offset + count_of))
                    offset += count_of + (draw.randint(1, 4) if draw.random() < 0.1 else 0)
                write_segment(directory, base, batches, indexes=draw.random() < 0.6)
                made.size += sum(map(len, batches))
    return made


def _batch(draw: random.Random, offset: int, undecided: set[int]) -> tuple[bytes, int]:
    """Return a batch of records, or a marker of an open transaction, and its number of offsets."""
    producer = draw.randint(1, 3)
    if producer in undecided and draw.random() < 0.5:
        undecided.discard(producer)
        kind = draw.choice([ABORT, COMMIT])
        time = BEGIN + STEP * offset
        return marker(offset, producer, kind, base_timestamp=time, max_timestamp=time), 1
    is_transactional = draw.random() < 0.4
    if is_transactional:
        undecided.add(producer)
    count = draw.randint(1, 6)
    base = -1 if draw.random() < 0.15 else BEGIN + STEP * offset + draw.randrange(-6 * STEP, 6 * STEP)
    deltas = [0 if base < 0 else draw.randrange(-STEP, STEP) for _ in range(count)]
    keys = [draw.choice(KEYS) for _ in range(count)]
    records = [oracle.encode_record(i, deltas[i], keys[i], b"v" * draw.randrange(40)) for i in range(count)]
    batch = oracle.build_batch(
        records,
        codec=draw.choice(CODECS),
        base_offset=offset,
        base_timestamp=base,
        max_timestamp=-1 if base < 0 else base + max(deltas),
        producer_id=producer if is_transactional else -1,
        attributes=oracle.TRANSACTIONAL if is_transactional else 0,
    )
    return batch, count


def _changed(draw: random.Random, batch: bytes, lengths: bool) -> bytes:
    content = bytearray(batch)
    at = draw.randrange(8, len(content))
    for place in range(at, min(len(content), at + draw.choice([1, 1, 4, 40]))):
        content[place] ^= draw.randrange(1, 256)
    if not lengths:
        content[8:12] = batch[8:12]
    elif content[8:12] != batch[8:12]:
        # A length that reaches far beyond the file only takes longer to find.
        content[8:12] = struct.pack(">i", struct.unpack(">i", content[8:12])[0] % 1000)
    return bytes(content)


def _values(draw: random.Random) -> Values:
    offsets = [-1, 0, 1, 1 << 40, *(draw.randrange(60) for _ in range(8))]
    times = [-1, 0, BEGIN - 10**9, BEGIN + 10**9, *(BEGIN + draw.randrange(60 * STEP) for _ in range(8))]
    return Values(["a", "b", "a.b-c", "c"], [-1, 0, 1, 2], offsets, times, [b"", b"a", b"b", b"\x00\xff", b"zz"])
