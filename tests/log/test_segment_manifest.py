"""Segments that Aiven's plugin has uploaded to tiered storage: manifests, and compressed chunks (DSK-R18)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from history_copies import TOPIC_ID, chunk_sizes, tiered_log
from hypothesis import given
from hypothesis import strategies as st

import kbatch
from kbatch.cli import main
from kbatch.errors import LogDirectoryError
from kbatch.log.files.segment_manifest import read_segment_manifest
from kbatch.log.store.storage import Storage

LOGS = Path(__file__).parents[1] / "golden" / "logs"


@pytest.mark.parametrize("chunk", [64, 1000, 20_000, 1 << 22])
@pytest.mark.parametrize("layout", ["local", "aiven", "aiven-zstd"])
def test_a_log_in_tiered_storage_is_the_log_that_was_uploaded(tmp_path: Path, layout: str, chunk: int) -> None:
    for name in ("txn-0", "codec-lz4-0"):
        tiered_log(LOGS / name, tmp_path, layout, chunk=chunk, last=True)
    logs = kbatch.find_logs(tmp_path)
    assert [(log.topic, log.partition, log.topic_id) for log in logs] == [
        ("codec-lz4", 0, TOPIC_ID),
        ("txn", 0, TOPIC_ID),
    ]
    for log in logs:
        local = kbatch.Log(LOGS / f"{log.topic}-0")
        assert [segment.size for segment in log.segments] == [segment.size for segment in local.segments]
        for isolation in ("read_uncommitted", "read_committed"):
            assert log.to_arrow(isolation=isolation).equals(local.to_arrow(isolation=isolation))
        start = local.end_offset - 20
        assert log.to_arrow(start_offset=start).equals(local.to_arrow(start_offset=start))
        assert kbatch.Segment(log.segments[0].path, live=False).size == local.segments[0].size
        windows = [(0, 10), (5, 3000), (200, 201), (local.segments[0].size - 7, local.segments[0].size + 9)]
        for begin, end in windows:
            found = log.segments[0].window(begin, end)
            assert found.tobytes() == local.segments[0].window(begin, end).tobytes()
    assert main(["verify", str(tmp_path)]) == 0


def test_leader_epochs_of_tiered_storage_are_those_of_the_last_segment(tmp_path: Path) -> None:
    made = tiered_log(LOGS / "txn-0", tmp_path, "local")
    (log,) = kbatch.find_logs(tmp_path)
    Path(log.segments[-1].path).with_suffix(".leader_epoch_checkpoint").write_text("0\n2\n3 0\n5 40\n")
    assert log.leader_epochs.tolist() == [(3, 0), (5, 40)]
    for file in made.glob("*.leader_epoch_checkpoint"):
        file.unlink()
    assert not len(log.leader_epochs)


def test_a_scan_of_a_compressed_tier_reads_ranges(tmp_path: Path) -> None:
    tiered_log(LOGS / "codec-none-0", tmp_path, "aiven-zstd", chunk=4096, last=True)
    scan = kbatch.scan_logs(tmp_path, topics="codec-none", start_offset=1800, stop_offset=1900)
    assert scan.select("offset").to_arrow().column(0).to_pylist() == list(range(1800, 1900))
    assert scan.count() == 100


@given(sizes=st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=50), base=st.integers(0, 1000))
def test_sizes_of_chunks_are_decoded(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], base: int) -> None:
    path = tmp_path_factory.mktemp("manifest") / "x.rsm-manifest"
    chunk = 100
    path.write_text(json.dumps(manifest(sizes, chunk, len(sizes) * chunk - base % chunk)))
    layout = read_segment_manifest(str(path), Storage()).layout
    assert layout is not None
    assert (layout.positions[1:] - layout.positions[:-1]).tolist() == sizes
    assert layout.stored_size == sum(sizes)


def test_the_sizes_of_a_test_of_the_plugin_are_decoded(tmp_path: Path) -> None:
    """Of ChunkIndexSerializationTest: 10, 20 and 30, compressed by the plugin's library."""
    path = tmp_path / "x.rsm-manifest"
    path.write_text(json.dumps(manifest([], 100, 250, transformedChunks="KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe")))
    layout = read_segment_manifest(str(path), Storage()).layout
    assert layout is not None
    assert layout.positions.tolist() == [0, 10, 30, 60]


def manifest(sizes: list[int], chunk: int, size: int, **changes: Any) -> dict[str, Any]:
    packed = zstandard.ZstdCompressor().compress(chunk_sizes(sizes))
    index = {
        "type": "variable",
        "originalChunkSize": chunk,
        "originalFileSize": size,
        "transformedChunks": base64.b64encode(packed).decode(),
    }
    return {"version": "1", "compression": True, "chunkIndex": index | changes}


def packed(data: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(data)).decode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"originalChunkSize": 0}, "originalChunkSize is 0"),
        ({"originalChunkSize": -1}, "originalChunkSize is -1, expected a size"),
        ({"originalChunkSize": 1 << 40}, "expected a size in bytes"),
        ({"originalFileSize": True}, "originalFileSize is True"),
        ({"originalFileSize": 10_000_000}, "there are 3 chunks, but a segment of 10000000 bytes has 100000"),
        ({"type": "other"}, "the type of the index of chunks is 'other'"),
        ({"transformedChunks": "?"}, "can't be read as a manifest"),
        ({"transformedChunks": base64.b64encode(b"no zstd").decode()}, "can't be read as a manifest"),
        ({"transformedChunks": packed(b"\0\0\0\x03\0\0\0\0\x09" + bytes(30))}, "the sizes of 3 chunks have 39 bytes"),
        ({"transformedChunks": packed(b"\0\0")}, "have only 2 bytes"),
        ({"transformedChunks": packed(b"\x7f\xff\xff\xff\0\0\0\0\x01")}, "the sizes of 2147483647 chunks have 9"),
        ({"transformedChunks": packed(bytes(11 << 20))}, "can't be read as a manifest"),
        ({"transformedChunks": packed(b"\0\0\0\x01\xff\xff\xff\xff")}, "impossible size"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_an_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.rsm-manifest"
    path.write_text(json.dumps(manifest([30, 30, 30], 100, 250, **changes)))
    with pytest.raises(LogDirectoryError, match=message) as caught:
        read_segment_manifest(str(path), Storage())
    assert caught.value.source == str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("chunkIndex"), "there is no 'chunkIndex'"),
        (lambda content: content.update(version="2"), "its version is '2'"),
        (lambda content: content.update(segmentFormat="iceberg"), "in the format 'iceberg'"),
        (lambda content: content.update(remoteLogSegmentMetadata=[1]), "can't be read as a manifest"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = tmp_path / "x.rsm-manifest"
    content = manifest([30, 30, 30], 100, 250)
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(LogDirectoryError, match=message):
        read_segment_manifest(str(path), Storage())


def cut_object(data: bytes) -> bytes:
    return data[:-1]


def damaged_chunk(data: bytes) -> bytes:
    return data[:10] + b"\xff" * 10 + data[20:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut_object, "the object was cut, or belongs to another upload"),
        (damaged_chunk, "chunk 0 can't be decompressed"),
    ],
)
def test_a_compressed_object_that_is_damaged_is_an_error_that_names_it(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    made = tiered_log(LOGS / "codec-none-0", tmp_path, "aiven-zstd", chunk=4096, last=True)
    path = min(made.glob("*.log"))
    path.write_bytes(change(path.read_bytes()))
    (log,) = kbatch.find_logs(tmp_path)
    with pytest.raises(LogDirectoryError, match=message) as caught:
        log.to_arrow()
    assert caught.value.source == str(path)
