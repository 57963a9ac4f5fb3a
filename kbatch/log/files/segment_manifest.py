"""The ``.rsm-manifest`` of a segment that Aiven's plugin has uploaded to tiered storage."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError, UnsupportedFormatError
from kbatch.format import INT32_MAX, INT64_MAX
from kbatch.json_text import parse_json
from kbatch.log.store.chunked_file import ChunkLayout, zstd_content
from kbatch.log.store.names import parse_kafka_uuid
from kbatch.log.store.storage import Storage

__all__ = ["SegmentManifest", "read_segment_manifest"]

_MANIFEST_LIMIT = 16 << 20
# The limit of the plugin on the sizes of the chunks, which are binary data in the text of the manifest.
_MAX_CHUNK_INDEX = 10 << 20


@dataclass(frozen=True)
class SegmentManifest:
    """A segment in tiered storage, as the broker that uploaded it knew it.

    Attributes
    ----------
    layout : ChunkLayout or None
        None if the manifest has no index of chunks.
    is_encrypted : bool
    topic_id : UUID or None
    start_offset, last_offset : int or None
    leader_epochs : tuple of (int, int)
        Each leader epoch of the segment, and its first offset.
    """

    layout: ChunkLayout | None
    is_encrypted: bool = False
    topic_id: uuid.UUID | None = None
    start_offset: int | None = None
    last_offset: int | None = None
    leader_epochs: tuple[tuple[int, int], ...] = ()

    def check_readable(self, path: str) -> None:
        """Raise UnsupportedFormatError if the segment at a path is encrypted."""
        if self.is_encrypted:
            raise UnsupportedFormatError(
                f"{path}: uploaded with encryption according to its .rsm-manifest, whose data key only the plugin of "
                "the brokers can decrypt; read the topic through a broker, or upload without encryption",
                source=path,
            )


def read_segment_manifest(path: str, storage: Storage) -> SegmentManifest:
    """Read the manifest of a segment.

    Raises
    ------
    FileNotFoundError
    LogDirectoryError
        If it can't be read or is malformed.
    """
    try:
        content = parse_json(storage.read(path, _MANIFEST_LIMIT)[0])
        return _manifest_of(content)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise LogDirectoryError(f"{path}: can't be read as a manifest: {reason}", source=path) from error


def _manifest_of(content: Any) -> SegmentManifest:
    version, is_compressed = content.get("version"), bool(content.get("compression"))
    if version is not None and str(version) != "1":
        raise ValueError(f"its version is {version!r}, and kbatch reads version 1")
    if str(content.get("segmentFormat", "kafka")).lower() != "kafka":
        raise ValueError(f"the segment was uploaded in the format {content['segmentFormat']!r}, not as a Kafka log")
    index = content["chunkIndex"] if is_compressed else content.get("chunkIndex")
    is_encrypted = bool(content.get("encryption"))
    layout = None if index is None else _layout(index, is_compressed, is_encrypted)
    known = content.get("remoteLogSegmentMetadata") or {}
    topic_id = (known.get("remoteLogSegmentId") or {}).get("topicIdPartition", {}).get("topicId")
    epochs = sorted((int(epoch), int(first)) for epoch, first in (known.get("segmentLeaderEpochs") or {}).items())
    return SegmentManifest(
        layout,
        is_encrypted,
        None if topic_id is None else parse_kafka_uuid(topic_id),
        _offset_field(known.get("startOffset")),
        _offset_field(known.get("endOffset")),
        tuple(epochs),
    )


def _offset_field(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= INT64_MAX else None


def _layout(index: Any, is_compressed: bool, is_encrypted: bool) -> ChunkLayout:
    size, chunk_size = _size_field(index, "originalFileSize"), _size_field(index, "originalChunkSize")
    if chunk_size == 0:
        raise ValueError("originalChunkSize is 0")
    count = -(-size // chunk_size)
    if index["type"] == "fixed":
        sizes = np.full(count, _size_field(index, "transformedChunkSize"), np.int64)
        sizes[-1:] = _size_field(index, "finalTransformedChunkSize")
    elif index["type"] == "variable":
        sizes = _chunk_sizes(index["transformedChunks"])
    else:
        raise ValueError(f"the type of the index of chunks is {index['type']!r}, expected fixed or variable")
    if len(sizes) != count and not (count == 0 and not sizes.any()):
        raise ValueError(f"there are {len(sizes)} chunks, but a segment of {size} bytes has {count}")
    layout = ChunkLayout(size, chunk_size, np.concatenate([[0], np.cumsum(sizes)]), is_compressed)
    if not is_compressed and not is_encrypted and layout.stored_size != size:
        raise ValueError(f"the chunks have {layout.stored_size} bytes, and the segment {size}")
    return layout


def _size_field(index: Any, name: str) -> int:
    value = index[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT32_MAX:
        raise ValueError(f"{name} is {value!r}, expected a size in bytes")
    return value


def _chunk_sizes(text: str) -> npt.NDArray[np.int64]:
    """Decode the sizes of chunks: a count, a base, a width, the differences from the base, and the last size."""
    content = zstd_content(memoryview(base64.b64decode(text, validate=True)), _MAX_CHUNK_INDEX)
    data = np.frombuffer(content, np.uint8)
    count = _int32_at(data, 0)
    if count == 0:
        return np.empty(0, np.int64)
    if count == 1:
        sizes = np.array([_int32_at(data, 4)], np.int64)
    else:
        base, width = _int32_at(data, 4), int(data[8:9].sum())
        end = 9 + (count - 1) * width
        if not 1 <= width <= 4 or len(data) != end + 4:
            raise ValueError(f"the sizes of {count} chunks have {len(data)} bytes")
        digits = data[9:end].reshape(count - 1, width).astype(np.int64)
        differences = (digits << (8 * np.arange(width - 1, -1, -1))).sum(axis=1)
        sizes = np.concatenate([base + differences, [_int32_at(data, end)]])
    if sizes.min() < 0 or sizes.max() > INT32_MAX:
        raise ValueError("a chunk has an impossible size")
    return sizes


def _int32_at(data: npt.NDArray[np.uint8], position: int) -> int:
    if len(data) < position + 4:
        raise ValueError(f"the sizes of chunks have only {len(data)} bytes")
    return int.from_bytes(data[position : position + 4].tobytes(), "big", signed=True)
