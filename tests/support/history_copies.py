"""Copies of logs as the history of a cluster: log directories, and both layouts of tiered storage."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import zstandard
from log_batches import write_segment

import kbatch

__all__ = ["TOPIC_ID", "chunk_sizes", "copied_log", "kafka_id", "tiered_log", "write_log", "write_partition_metadata"]

TOPIC_ID = uuid.UUID(bytes=b"kbatch-tests-tpc")
_SUFFIXES = ("index", "timeindex", "txnindex", "snapshot")


def kafka_id(number: uuid.UUID) -> str:
    """Return the text of an id in Kafka."""
    return base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")


def write_partition_metadata(directory: Path, topic_id: uuid.UUID) -> None:
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {kafka_id(topic_id)}\n")


def write_log(directory: Path, batches: Sequence[bytes], sizes: Iterable[int], topic_id: uuid.UUID | None) -> Path:
    """Write batches as segments with these numbers of batches; those that are left are the active segment."""
    rest = list(batches)
    end = 0
    for size in [*sizes, len(rest)]:
        part, rest = rest[:size], rest[size:]
        base = int(kbatch.scan(part[0])["base_offset"][0]) if part else end
        write_segment(directory, base, part, indexes=True)
        if part:
            end = int(kbatch.scan(part[-1])["last_offset"][-1]) + 1
        if not rest and not part:
            break
    if topic_id is not None:
        write_partition_metadata(directory, topic_id)
    return directory


def copied_log(log: Path, root: Path, segments: slice = slice(None)) -> Path:
    """Copy some segments of a log, and an empty active segment after them."""
    target = root / log.name
    target.mkdir(parents=True)
    found = sorted(log.glob("*.log"))
    chosen = found[segments]
    for file in chosen:
        for each in log.glob(f"{file.stem}.*"):
            shutil.copy(each, target)
    if (log / "partition.metadata").exists():
        shutil.copy(log / "partition.metadata", target)
    if chosen:
        end = kbatch.Log(chosen[-1]).end_offset
        following = found[found.index(chosen[-1]) + 1 :]
        base = int(following[0].stem) if following else end
        (target / f"{base:020d}.log").touch()
    return target


def tiered_log(
    log: Path, root: Path, layout: str, topic_id: uuid.UUID = TOPIC_ID, *, chunk: int = 300, last: bool = False
) -> Path:
    """Upload the closed segments of a log (all of them with `last`): "local", "aiven" or "aiven-zstd"."""
    topic, _, partition = log.name.rpartition("-")
    text = kafka_id(topic_id)
    target = root / (f"{topic}-{partition}-{text}" if layout == "local" else f"{topic}-{text}/{partition}")
    target.mkdir(parents=True)
    segments = kbatch.Log(log).segments
    for number, segment in enumerate(segments if last else segments[:-1]):
        source = Path(segment.path)
        name = f"{source.stem}-{kafka_id(uuid.UUID(int=number + 1))}"
        data = source.read_bytes()
        row, _ = segment.last_batch()
        assert row is not None
        if layout == "local":
            for suffix in _SUFFIXES:
                if (found := source.with_suffix(f".{suffix}")).exists():
                    shutil.copy(found, target / f"{name}.{suffix}")
            (target / f"{name}.log").write_bytes(data)
            epoch = int(row["partition_leader_epoch"])
            (target / f"{name}.leader_epoch_checkpoint").write_text(f"0\n1\n{max(epoch, 0)} {segment.base_offset}\n")
            continue
        manifest = _manifest(data, layout == "aiven-zstd", chunk)
        chunks = [data[i : i + chunk] for i in range(0, len(data), chunk)]
        if layout == "aiven-zstd":
            chunks = [zstandard.ZstdCompressor().compress(each) for each in chunks]
            packed = zstandard.ZstdCompressor().compress(chunk_sizes([len(each) for each in chunks]))
            manifest["chunkIndex"]["transformedChunks"] = base64.b64encode(packed).decode()
        manifest["remoteLogSegmentMetadata"] = {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": text,
                    "topicPartition": {"topic": topic, "partition": int(partition)},
                },
                "id": name[-22:],
            },
            "startOffset": segment.base_offset,
            "endOffset": int(row["last_offset"]),
            "segmentLeaderEpochs": {str(max(int(row["partition_leader_epoch"]), 0)): segment.base_offset},
        }
        (target / f"{name}.log").write_bytes(b"".join(chunks))
        (target / f"{name}.rsm-manifest").write_text(json.dumps(manifest))
    return target


def _manifest(data: bytes, is_compressed: bool, chunk: int) -> dict[str, Any]:
    index: dict[str, Any] = {"originalChunkSize": chunk, "originalFileSize": len(data)}
    if is_compressed:
        index["type"] = "variable"
    else:
        last = len(data) % chunk or min(chunk, len(data))
        index |= {"type": "fixed", "transformedChunkSize": chunk, "finalTransformedChunkSize": last}
    part = {"position": 0, "size": 1}
    indexes = dict.fromkeys(("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction"), part)
    return {"version": "1", "chunkIndex": index, "segmentIndexes": indexes, "compression": is_compressed}


def chunk_sizes(sizes: Sequence[int]) -> bytes:
    """Encode the sizes of chunks as Aiven's plugin does."""
    if len(sizes) < 2:
        return struct.pack(f">i{len(sizes)}i", len(sizes), *sizes)
    base = min(sizes[:-1])
    width = max((max(sizes[:-1]) - base).bit_length() + 7, 8) // 8
    middle = b"".join((each - base).to_bytes(width, "big") for each in sizes[:-1])
    return struct.pack(">iib", len(sizes), base, width) + middle + struct.pack(">i", sizes[-1])
