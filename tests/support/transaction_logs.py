"""Batches of transactions, and a slow, simple model of Kafka's broker and consumer, written without kbatch."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import oracle
from oracle import CONTROL, TRANSACTIONAL, build_batch, encode_record

ABORT, COMMIT = 0, 1


def data(offset: int, producer_id: int = -1, count: int = 1, *, transactional: bool = False, **fields: object) -> bytes:
    """Build a batch of small records; with a producer id, the batch is idempotent."""
    records = [encode_record(i, 0, b"k%d" % (offset + i), b"v") for i in range(count)]
    fields.setdefault("producer_epoch", 0 if producer_id >= 0 else -1)
    attributes = TRANSACTIONAL if transactional else 0
    return build_batch(records, base_offset=offset, producer_id=producer_id, attributes=attributes, **fields)  # type: ignore[arg-type]


def txn(offset: int, producer_id: int, count: int = 1, **fields: object) -> bytes:
    return data(offset, producer_id, count, transactional=True, **fields)


def control_record(
    kind: int, *, delta: int = 0, key: bytes | None = b"", value: bytes | None = b"", version: int = 0, epoch: int = 0
) -> bytes:
    """Build a control record; an empty key or value is replaced by the correct one."""
    key = struct.pack(">hh", version, kind) if key == b"" else key
    value = struct.pack(">hi", 0, epoch) if value == b"" else value
    return encode_record(delta, 0, key, value)


def marker(offset: int, producer_id: int, kind: int, **fields: object) -> bytes:
    return control(offset, producer_id, [control_record(kind)], **fields)


def control(offset: int, producer_id: int, records: Sequence[bytes], **fields: object) -> bytes:
    fields.setdefault("attributes", CONTROL | TRANSACTIONAL)
    return build_batch(records, base_offset=offset, producer_id=producer_id, **fields)  # type: ignore[arg-type]


def damaged(batch: bytes, at: int = -1) -> bytes:
    """Flip a bit of one byte, by default of the last byte, which is the header count of the last record."""
    broken = bytearray(batch)
    broken[at] ^= 0x40
    return bytes(broken)


def marker_kind(batch: oracle.Batch) -> int | None:
    """Return the type of a transaction marker, or None if the batch is not a marker (CTL-R1, CTL-R4, TXN-R10)."""
    if not batch.attributes & CONTROL or batch.producer_id < 0 or not batch.records:
        return None
    key = batch.records[0].key
    if key is None or len(key) < 4:
        return None
    version, kind = struct.unpack_from(">hh", key)
    return kind if version >= 0 and kind in (ABORT, COMMIT) else None


class Fold(NamedTuple):
    """The transactions of a log: index entries, open ones by first offset, last stable offset, ABORT markers."""

    aborted: list[tuple[int, int, int, int]]
    open: list[tuple[int, int, int]]
    last_stable_offset: int | None
    abort_markers: list[tuple[int, int]]
    undecided: Sequence[tuple[int, int, int, int]] = ()


def fold(
    batches: Iterable[oracle.Batch],
    begun: Iterable[tuple[int, int, int]] = (),
    lost: Iterable[tuple[int, int]] = (),
) -> Fold:
    """Rebuild the transactions as ``LogSegment.recover`` does, batch by batch (TXI-R5).

    `lost` are damaged markers, as (producer id, offset) in order, whose transactions end in an unknown way.
    """
    ongoing = {pid: (first, timestamp) for pid, first, timestamp in begun}
    aborted, markers, undecided = [], [], []
    left = list(lost)

    def lose(before: float) -> None:
        while left and left[0][1] < before:
            pid, offset = left.pop(0)
            ended = ongoing.pop(pid, None)
            if ended is not None:
                stable = min((first for first, _ in ongoing.values()), default=offset + 1)
                undecided.append((pid, ended[0], offset, stable))

    for batch in batches:
        lose(batch.base_offset)
        pid = batch.producer_id
        if batch.magic != 2 or pid < 0:
            continue
        if batch.attributes & CONTROL:
            kind = marker_kind(batch)
            if kind is None:
                continue
            if kind == ABORT:
                markers.append((pid, batch.base_offset))
            ended = ongoing.pop(pid, None)
            if ended is not None and kind == ABORT:
                stable = min((first for first, _ in ongoing.values()), default=batch.base_offset + 1)
                aborted.append((pid, ended[0], batch.base_offset, stable))
        elif batch.attributes & TRANSACTIONAL and pid not in ongoing:
            ongoing[pid] = (batch.base_offset, batch.base_timestamp)
    lose(float("inf"))
    still = sorted(((pid, *began) for pid, began in ongoing.items()), key=lambda t: t[1])
    return Fold(aborted, still, min((t[1] for t in still), default=None), markers, tuple(undecided))


def consume(
    batches: Iterable[oracle.Batch],
    aborted: Iterable[tuple[int, int]] | None,
    fetch_offset: int,
    *,
    read_committed: bool = True,
) -> tuple[list[int], int]:
    """Return the offsets that the consumer's ``CompletedFetch`` returns, and the next to fetch (TXN-R1, TXN-R2)."""
    queue = [(first, pid) for pid, first in aborted or ()]
    heapq.heapify(queue)
    aborted_producers: set[int] = set()
    offsets = []
    position = fetch_offset
    for batch in batches:
        last = batch.base_offset + batch.last_offset_delta
        keep = True
        if read_committed and batch.producer_id >= 0:
            while queue and queue[0][0] <= last:
                aborted_producers.add(heapq.heappop(queue)[1])
            if marker_kind(batch) == ABORT:
                aborted_producers.discard(batch.producer_id)
            elif batch.attributes & TRANSACTIONAL and batch.producer_id in aborted_producers:
                keep = False
        if keep and not batch.attributes & CONTROL:
            offsets += [r.offset for r in batch.records if r.offset >= position]
        position = max(position, last + 1)
    return offsets, position
