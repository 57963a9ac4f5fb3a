"""Random logs to compact, and a reference implementation of Kafka's log cleaner with one object per record.

``clean`` follows ``Cleaner.doClean``, ``CleanedTransactionMetadata`` and ``MemoryRecords.filterTo`` line by line. It
reads with `oracle.decode` and shares no code with kbatch, which only encodes the batches of the logs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oracle import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, Batch, Record, build_message_set, decode

import kbatch

NOW = 1_700_000_000_000
RETENTION = 5_000
EXPIRATION = 50_000


# -- logs


def random_log(rng: random.Random, *, legacy: bool = True, segments: int = 3, entries: int = 12) -> dict[int, bytes]:
    """Make a log: the bytes of its segments by base offset. The last segment is sometimes empty."""
    log: dict[int, bytes] = {}
    offset = rng.choice([0, 0, 5, 2**33])
    sequences: dict[int, int] = {}
    epochs: dict[int, int] = {}
    open_now: set[int] = set()
    for number in range(segments):
        base, data = offset, b""
        for _ in range(0 if number == segments - 1 and rng.random() < 0.3 else rng.randint(1, entries)):
            one, last = random_entry(rng, offset, sequences, epochs, open_now, legacy)
            data += one
            offset = last + 1 + rng.choice([0, 0, 0, 3])
        log[base] = data
        offset = max(offset, base + 1)
    return log


def random_entry(
    rng: random.Random,
    offset: int,
    sequences: dict[int, int],
    epochs: dict[int, int],
    open_now: set[int],
    legacy: bool,
) -> tuple[bytes, int]:
    """Make a batch, a message set or a marker; return it and its last offset."""
    kind = rng.choice(
        ["data"] * 4 + ["idempotent"] * 2 + ["transaction"] * 4 + ["marker"] * 4 + ["empty"] + ["old"] * 2
    )
    count = rng.randint(1, 5)
    keys = [rng.choice([b"a", b"b", b"c", b"d", b"e" * 40, b"", None]) for _ in range(count)]
    values = [rng.choice([b"", b"value", b"x" * 100, None]) for _ in range(count)]
    times = [rng.choice([-1, *range(NOW - 60_000, NOW, 7_001)]) for _ in range(count)]
    codec = rng.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"])
    steps = sorted(rng.sample(range(count + 4), count))
    offsets = [offset + step - steps[0] for step in steps]
    if kind == "old" and legacy:
        magic = rng.choice([0, 1])
        codec = rng.choice(["none", "gzip", "snappy", "lz4"])
        if codec == "none":
            keys, values, times, offsets = keys[:1], values[:1], times[:1], offsets[:1]
        appended = rng.choice([None, NOW - 1000]) if magic else None
        one = build_message_set(
            list(zip(keys, values, strict=True)),
            codec=codec,
            magic=magic,
            base_offset=offset,
            deltas=[each - offset for each in offsets],
            timestamps=times if magic else [-1] * len(times),
            append_time=appended,
        )
        return one, offsets[-1]
    fields: dict[str, Any] = {"leader_epoch": rng.choice([-1, 4])}
    if kind in ("transaction", "marker"):
        producer = rng.choice([1, 2, 3])
        epoch = epochs.setdefault(producer, 0)
        if kind == "marker":
            open_now.discard(producer)
            time = NOW - rng.randrange(0, 70_000)
            marker = kbatch.encode_marker(
                rng.choice(["commit", "abort"]),
                producer_id=producer,
                producer_epoch=epoch,
                offset=offset,
                timestamp=time,
                leader_epoch=fields["leader_epoch"],
            )
            if rng.random() < 0.4:
                marker = with_horizon(marker, rng.choice([NOW - 1, NOW, NOW + 1, NOW + 1000]))
            if rng.random() < 0.2:
                epochs[producer] += 1
                sequences.pop(producer, None)
            return marker, offset
        open_now.add(producer)
        fields |= {"producer_id": producer, "producer_epoch": epoch, "transactional": True}
    elif kind in ("idempotent", "empty"):
        producer = rng.choice([11, 12])
        fields |= {"producer_id": producer, "producer_epoch": 0}
    if "producer_id" in fields:
        fields["base_sequence"] = sequences.get(fields["producer_id"], 0)
        sequences[fields["producer_id"]] = fields["base_sequence"] + offsets[-1] - offset + 1
    if kind == "empty":
        return kbatch.encode_empty(offset, offsets[-1], max_timestamp=NOW - 1000, **fields), offsets[-1]
    if rng.random() < 0.3:
        fields["timestamp_type"] = "log_append_time"
        fields["append_time"] = rng.choice([NOW - 60_000, NOW - 10])
    if rng.random() < 0.2:
        fields["delete_horizon"] = rng.choice([NOW - 1, NOW, NOW + 1, NOW + 1000])
    headers = [[("h", b"1"), ("h", None)] if rng.random() < 0.2 else None for _ in range(count)]
    one = kbatch.encode(values, keys=keys, timestamps=times, headers=headers, offsets=offsets, codec=codec, **fields)
    return one, offsets[-1]


def with_horizon(marker: bytes, horizon: int) -> bytes:
    """Set the delete horizon of an encoded batch."""
    table = kbatch.decode(marker, include_control=True)
    batches = table.batches.copy()
    batches["attributes"] |= DELETE_HORIZON
    batches["base_timestamp"] = horizon
    return kbatch.encode_table(
        kbatch.RecordTable(table.records, batches, table.data, consumed=table.consumed, source=None)
    )


def write_log(directory: Path, log: Mapping[int, bytes], *, modified: Sequence[int] = ()) -> Path:
    """Write only the segment files; `modified` are their modification times in milliseconds."""
    import os

    directory.mkdir(parents=True)
    for i, (base, data) in enumerate(log.items()):
        path = directory / f"{base:020d}.log"
        path.write_bytes(data)
        if modified:
            os.utime(path, ns=(modified[i] * 1_000_000, modified[i] * 1_000_000))
    return directory


# -- the cleaner


class Kept(NamedTuple):
    """A batch of the result: its bytes if they are unchanged, else its header and records."""

    same: bytes | None
    header: tuple[int, ...] = ()
    records: tuple[Record, ...] = ()

    @classmethod
    def of(cls, batch: Batch, raw: bytes) -> Kept:
        """Return the header and records of a batch that was rewritten."""
        return cls(
            None,
            (
                batch.magic,
                batch.base_offset,
                batch.last_offset_delta,
                batch.partition_leader_epoch,
                batch.attributes,
                batch.base_timestamp,
                batch.max_timestamp,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.record_count,
            ),
            tuple(record._replace(sequence=0) for record in batch.records),
        )


def is_control(batch: Batch) -> bool:
    return batch.magic == 2 and bool(batch.attributes & CONTROL)


def is_transactional(batch: Batch) -> bool:
    return batch.magic == 2 and bool(batch.attributes & TRANSACTIONAL)


def horizon_of(batch: Batch) -> int | None:
    return batch.base_timestamp if batch.magic == 2 and batch.attributes & DELETE_HORIZON else None


class TransactionMetadata:
    """``CleanedTransactionMetadata``."""

    def __init__(self, aborted: Sequence[tuple[int, int, int]]) -> None:
        self.aborted = sorted(aborted, key=lambda entry: entry[1])
        self.ongoing_committed: set[int] = set()
        self.ongoing_aborted: dict[int, list[Any]] = {}
        self.index: list[tuple[int, int, int]] = []

    def consume(self, offset: int) -> None:
        while self.aborted and self.aborted[0][1] <= offset:
            entry = self.aborted.pop(0)
            self.ongoing_aborted.setdefault(entry[0], [entry, False])

    def on_control(self, batch: Batch) -> bool:
        self.consume(batch.last_offset)
        if not batch.records:
            return True
        kind = int.from_bytes((batch.records[0].key or b"")[2:4], "big")
        if kind == 0:
            entry = self.ongoing_aborted.pop(batch.producer_id, None)
            if entry is not None and entry[1]:
                self.index.append(entry[0])
                return False
            return True
        if kind == 1:
            found = batch.producer_id in self.ongoing_committed
            self.ongoing_committed.discard(batch.producer_id)
            return not found
        return False

    def on_batch(self, batch: Batch) -> bool:
        self.consume(batch.last_offset)
        if not is_transactional(batch):
            return False
        if batch.producer_id in self.ongoing_aborted:
            self.ongoing_aborted[batch.producer_id][1] = True
            return True
        self.ongoing_committed.add(batch.producer_id)
        return False


def find_transactions(batches: Sequence[Batch]) -> tuple[list[tuple[int, int, int]], int | None, set[int]]:
    """Return aborted transactions (producer, first and last offset), the last stable offset, and open producers."""
    begun: dict[int, int] = {}
    aborted = []
    for batch in batches:
        if is_control(batch) and batch.records:
            first = begun.pop(batch.producer_id, None)
            if first is not None and (batch.records[0].key or b"")[3] == 0:
                aborted.append((batch.producer_id, first, batch.last_offset))
        elif is_transactional(batch) and not is_control(batch):
            begun.setdefault(batch.producer_id, batch.base_offset)
    return aborted, min(begun.values(), default=None), set(begun)


def active_producers(batches: Sequence[Batch], still_open: set[int], now: int, expiration: int) -> dict[int, tuple]:
    """``ProducerStateManager``: the last data offset (or None) and the epoch of each producer."""
    state: dict[int, list[Any]] = {}
    for batch in batches:
        if batch.magic < 2 or batch.producer_id < 0 or (is_control(batch) and not batch.records):
            continue
        entry = state.setdefault(batch.producer_id, [None, batch.producer_epoch, 0])
        if entry[1] != batch.producer_epoch:
            entry[:2] = [None, batch.producer_epoch]
        if not is_control(batch):
            entry[0] = batch.last_offset
        entry[2] = batch.max_timestamp
    return {
        producer: (last, epoch)
        for producer, (last, epoch, time) in state.items()
        if producer in still_open or now - time < expiration
    }


def clean(
    log: Mapping[int, bytes],
    *,
    now: int = NOW,
    retention: int = RETENTION,
    expiration: int = EXPIRATION,
    first_dirty: int | None = None,
    include_active: bool = False,
    modified: Sequence[int] = (),
) -> tuple[dict[int, list[Kept]], list[tuple[int, int, int]]]:
    """Clean a log without joining segments; return the batches of each segment, and the ``.txnindex`` entries."""
    bases = list(log)
    segments = {}
    for base, data in log.items():
        found = decode(data)
        assert found.error is None
        assert not found.unread
        segments[base] = found.batches
    everything = [batch for batches in segments.values() for batch in batches]
    aborted, stable, still_open = find_transactions(everything)
    end = bases[-1]
    if include_active:
        end = max([end, *(batch.last_offset + 1 for batch in everything)])
    end = end if stable is None else min(end, stable)
    start = bases[0] if first_dirty is None else max(first_dirty, bases[0])
    if end <= start:
        end = 0
    producers = active_producers(everything, still_open, now, expiration)

    latest: dict[bytes, int] = {}
    metadata = TransactionMetadata(aborted)
    for batch in everything:
        if batch.last_offset >= end:
            break
        if is_control(batch):
            metadata.on_control(batch)
        elif not metadata.on_batch(batch):
            for record in batch.records:
                if record.key is not None and record.offset >= start:
                    latest[record.key] = record.offset

    clean_part = [i for i, base in enumerate(bases) if base < start]
    legacy_horizon = modified[clean_part[-1]] - retention if modified and first_dirty and clean_part else 0
    metadata = TransactionMetadata(aborted)
    out: dict[int, list[Kept]] = {}
    for i, base in enumerate(bases):
        keeps_legacy = not modified or modified[i] > legacy_horizon
        out[base] = []
        for batch in segments[base]:
            raw = log[base][batch.position : batch.position + batch.size]
            if batch.last_offset >= end:
                out[base].append(Kept(raw))
                continue
            kept = clean_batch(batch, raw, metadata, producers, latest, end, now, retention, keeps_legacy=keeps_legacy)
            if kept is not None:
                out[base].append(kept)
    later = [entry for entry in aborted if entry[2] >= end]
    return out, metadata.index + later


def clean_batch(
    batch: Batch,
    raw: bytes,
    metadata: TransactionMetadata,
    producers: Mapping[int, tuple],
    latest: Mapping[bytes, int],
    end: int,
    now: int,
    retention: int,
    *,
    keeps_legacy: bool,
) -> Kept | None:
    control = is_control(batch)
    horizon = horizon_of(batch)
    can_discard = metadata.on_control(batch) if control else metadata.on_batch(batch)
    discards = can_discard and (not control or (horizon is not None and horizon <= now))
    is_last = False
    if batch.magic == 2 and batch.producer_id in producers:
        last, epoch = producers[batch.producer_id]
        is_last = batch.last_offset == last if last is not None else control and batch.producer_epoch == epoch
    retain_empty = is_last or batch.last_offset + 1 == end

    def stays(record: Record) -> bool:
        if discards:
            return False
        if control:
            return True
        if record.key is None or record.offset < latest.get(record.key, -1):
            return False
        keeps = keeps_legacy if batch.magic < 2 else horizon is None or now < horizon
        return record.value is not None or keeps

    kept = [record for record in batch.records if stays(record)]
    attributes = batch.attributes & 0x3F if batch.magic == 2 else batch.attributes & 7
    if batch.magic == 1:
        attributes |= batch.attributes & LOG_APPEND_TIME
    if kept:
        sets = (any(record.value is None for record in kept) or (can_discard and control)) and horizon is None
        if batch.magic == 2 and len(kept) == len(batch.records) and not sets:
            return Kept(raw)
        base_timestamp = now + retention if sets else kept[0].timestamp if horizon is None else horizon
        attributes |= DELETE_HORIZON if sets or horizon is not None else 0
        appended = attributes & LOG_APPEND_TIME
        base = batch.base_offset if batch.magic == 2 else kept[0].offset
        last = batch.last_offset if batch.magic == 2 else kept[-1].offset
        largest = batch.max_timestamp if appended else max(record.timestamp for record in kept)
    elif retain_empty:
        attributes &= ~7
        base, last = batch.base_offset, batch.last_offset
        base_timestamp, largest = -1, batch.max_timestamp
    else:
        return None
    header = (
        2,
        base,
        last - base,
        batch.partition_leader_epoch,
        attributes,
        base_timestamp,
        largest,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(kept),
    )
    return Kept(None, header, tuple(record._replace(sequence=0) for record in kept))


def check(directory: Path, expected: Mapping[int, list[Kept]]) -> None:
    """Compare the segments of a directory with the result of `clean`."""
    assert sorted(path.name for path in directory.glob("*.log")) == [f"{base:020d}.log" for base in expected]
    for base, batches in expected.items():
        data = (directory / f"{base:020d}.log").read_bytes()
        found = decode(data)
        assert found.error is None
        assert not found.unread
        got = []
        for batch, kept in zip(found.batches, batches, strict=False):
            raw = data[batch.position : batch.position + batch.size]
            got.append(Kept(raw) if kept.same is not None else Kept.of(batch, raw))
        assert got == batches[: len(got)]
        assert len(found.batches) == len(batches)
