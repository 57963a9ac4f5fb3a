"""The other files of a log directory: DSK-R6, DSK-R7, DSK-R10 to DSK-R13, TXI-R1 to TXI-R3, TXI-R7."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from golden_logs import GOLDEN
from log_batches import batch, write_segment

import kbatch
from kbatch.errors import CrcMismatchError, KbatchError, LogDirectoryError, UnsupportedFormatError
from kbatch.format import ABORTED_DTYPE, PRODUCER_DTYPE
from kbatch.log.files.checkpoints import LEADER_EPOCH_DTYPE, read_leader_epochs, read_offset_checkpoint
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.files.properties import read_meta_properties, read_partition_metadata
from kbatch.log.files.transaction_index import read_transaction_index

TXN = GOLDEN / "logs" / "txn-0"
STATE = GOLDEN / "internal" / "state"
NULL_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


# -- transaction index


def test_transaction_index_of_a_log_txi_r1_txi_r2_txi_r3() -> None:
    truth = json.loads((TXN / "READ_COMMITTED.json").read_text())
    log = kbatch.Log(TXN)
    parts = [segment.transaction_index() for segment in log.segments]
    assert [len(part) for part in parts] == [6, 4, 3]
    aborted = np.concatenate(parts)
    assert aborted.dtype == ABORTED_DTYPE
    assert aborted[["producer_id", "first_offset", "last_offset"]].tolist() == [
        (one["producerId"], one["firstOffset"], one["lastOffset"]) for one in truth["aborted"]
    ]
    assert (aborted["last_offset"][1:] > aborted["last_offset"][:-1]).all()
    for segment, part in zip(log.segments, parts, strict=True):
        assert segment.base_offset is not None
        assert (part["last_offset"] >= segment.base_offset).all()
    with pytest.raises(ValueError, match="read-only"):
        parts[0]["producer_id"] = 0


@pytest.mark.parametrize("cut", range(1, 34))
def test_fragment_of_an_entry_ends_a_transaction_index_txi_r1(tmp_path: Path, cut: int) -> None:
    data = (TXN / "00000000000000000280.txnindex").read_bytes()
    path = tmp_path / "0.txnindex"
    path.write_bytes(data[:-cut])
    assert (
        read_transaction_index(path).tolist()
        == read_transaction_index(TXN / "00000000000000000280.txnindex")[:-1].tolist()
    )


@pytest.mark.parametrize("version", [1, 5, -1])
def test_later_version_of_a_transaction_index_is_an_error_txi_r1(tmp_path: Path, version: int) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 1, 2, 3, 4) + struct.pack(">hqqqq", version, 1, 4, 5, 6))
    with pytest.raises(
        UnsupportedFormatError, match=rf"0\.txnindex, byte 34: unsupported entry version {version};"
    ) as caught:
        read_transaction_index(path)
    assert (caught.value.source, caught.value.position) == (str(path), 34)


def test_transaction_index_that_descends_is_an_error_txi_r2(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 1, 2, 30, 4) + struct.pack(">hqqqq", 0, 1, 4, 30, 6))
    with pytest.raises(LogDirectoryError, match=r"byte 34: marker at offset 30 after one at 30"):
        read_transaction_index(path)
    # Zeros, for example in a sparse file, are not valid entries.
    path.write_bytes(bytes(340))
    with pytest.raises(LogDirectoryError, match=r"byte 34: marker at offset 0 after one at 0"):
        read_transaction_index(path)


def test_transaction_index_of_another_segment_is_an_error(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", 100, [batch(100, [1])])
    shutil.copy(TXN / "00000000000000000000.txnindex", path.with_suffix(".txnindex"))
    with pytest.raises(LogDirectoryError, match="marker at offset 30, below the segment's base offset 100"):
        kbatch.Segment(path).transaction_index()


def test_a_segment_without_index_files_dsk_r7(tmp_path: Path) -> None:
    segment = kbatch.Segment(write_segment(tmp_path / "t-0", 5, [batch(5, [1])]))
    assert segment.transaction_index().tolist() == []
    assert segment.transaction_index().dtype == ABORTED_DTYPE
    assert segment.producer_snapshot() is None
    with pytest.raises(LogDirectoryError, match="can't be read: No such file"):
        read_transaction_index(tmp_path / "none.txnindex")


# -- producer snapshot


def test_producer_snapshot_matches_the_batches_dsk_r6_txi_r7() -> None:
    """At the log's end, the snapshot has each producer's last batch and the first offset of its open transaction."""
    producers = read_producer_snapshot(TXN / "00000000000000000371.snapshot")
    assert producers.dtype == PRODUCER_DTYPE
    rows = kbatch.Log(TXN).batches()
    assert sorted(producers["producer_id"].tolist()) == [1001, 1002, 1003, 1004, 1009]
    for producer in producers:
        own = rows[rows["producer_id"] == producer["producer_id"]]
        data = own[own["attributes"] & 0x20 == 0]
        assert producer["timestamp"] == own["max_timestamp"][-1]
        if not len(data):
            assert (producer["producer_id"], producer["last_offset"], producer["last_sequence"]) == (1009, -1, -1)
            continue
        last = data[-1]
        assert producer["last_offset"] == last["base_offset"] + last["last_offset_delta"]
        assert producer["offset_delta"] == last["last_offset_delta"]
        # The sequence of one producer wraps within its last batch.
        assert (int(producer["last_sequence"]) - int(producer["offset_delta"])) % 2**31 == last["base_sequence"]
        assert producer["producer_epoch"] == own["producer_epoch"][-1]
    truth = json.loads((TXN / "READ_COMMITTED.json").read_text())
    opened = producers[producers["current_txn_first_offset"] >= 0]
    assert opened["current_txn_first_offset"].min() == 362
    assert truth["lastStableOffset"] == 362


def test_snapshot_of_each_segment_dsk_r6() -> None:
    snapshots = [segment.producer_snapshot() for segment in kbatch.Log(TXN).segments]
    assert [None if one is None else len(one) for one in snapshots] == [None, 4, 4]


def test_empty_producer_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "0.snapshot"
    path.write_bytes(struct.pack(">hIi", 1, crc32c(bytes(4)), 0))
    assert read_producer_snapshot(path).tolist() == []


def test_every_bit_flip_of_a_producer_snapshot_is_detected_dsk_r6(tmp_path: Path) -> None:
    data = (TXN / "00000000000000000186.snapshot").read_bytes()
    path = tmp_path / "0.snapshot"
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(UnsupportedFormatError if bit < 16 else CrcMismatchError) as caught:
            read_producer_snapshot(path)
        assert caught.value.source == str(path)


def test_every_truncation_of_a_producer_snapshot_is_detected_dsk_r6(tmp_path: Path) -> None:
    data = (TXN / "00000000000000000186.snapshot").read_bytes()
    path = tmp_path / "0.snapshot"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(LogDirectoryError if size < 10 else CrcMismatchError):
            read_producer_snapshot(path)


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31 - 1])
def test_a_producer_snapshot_with_a_wrong_count_is_refused(tmp_path: Path, count: int) -> None:
    body = struct.pack(">i", count) + bytes(46)
    path = tmp_path / "0.snapshot"
    path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
    with pytest.raises(LogDirectoryError, match=f"byte 6: count is {count}, but 46 bytes follow, with 46 per producer"):
        read_producer_snapshot(path)


def test_sparse_giant_state_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "giant"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    for read in (
        read_transaction_index,
        read_producer_snapshot,
        read_leader_epochs,
        read_offset_checkpoint,
        read_partition_metadata,
        read_meta_properties,
    ):
        with pytest.raises(LogDirectoryError, match="a file of this kind has at most"):
            read(path)


# -- text files


def test_text_files_that_kafka_wrote_dsk_r10_dsk_r11_dsk_r12() -> None:
    assert read_offset_checkpoint(STATE / "log-start-offset-checkpoint") == {
        ("orders", 0): 0,
        ("a-b.c_d", 2**31 - 1): 2**63 - 1,
    }
    epochs = read_leader_epochs(STATE / "leader-epoch-checkpoint")
    assert epochs.dtype == LEADER_EPOCH_DTYPE
    assert epochs.tolist() == [(0, 0), (7, 1200)]
    assert read_partition_metadata(STATE / "partition.metadata") == (
        0,
        uuid.UUID("01020304-0506-0708-1112-131415161718"),
    )
    assert read_meta_properties(STATE / "meta.properties") == {
        "version": "1",
        "cluster.id": "q1Sh-9_ISia_zwGINzRvyQ",
        "node.id": "3",
        "directory.id": "AAAAAAAAAAMAAAAAAAAABA",
        "odd: key=": " \\ text\twith a \u20ac",
    }


@pytest.mark.parametrize("text", ["", "0\n", "0", "0\n0\n", "0\n0"])
def test_checkpoints_without_entries_dsk_r11(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    assert read_offset_checkpoint(path) == {}
    assert read_leader_epochs(path).tolist() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n", "line 1: unsupported version 1; supported is 0"),
        ("x\n0\n", "line 1: 'x' is not a 32-bit integer"),
        ("\n0\n", "line 1: '' is not a 32-bit integer"),
        ("0\n2\nt 0 5\n", "line 2: declares 2 entries, but 1 follow"),
        ("0\n1\nt 0 5\nt 1 5\n", "line 2: declares 1 entries, but 2 follow"),
        ("0\n-1\n", "line 2: declares -1 entries, but 0 follow"),
        ("0\n2147483648\n", "line 2: '2147483648' is not a 32-bit integer"),
        ("0\n1\nt 0\n", "line 3: expected topic, partition and offset, found 't 0'"),
        ("0\n1\nt 0 5 6\n", "line 3: expected topic, partition and offset"),
        ("0\n1\n t 5\n", "line 3: expected topic, partition and offset"),
        ("0\n2\nt 0 5\n\n", "line 4: expected topic, partition and offset, found ''"),
        ("0\n1\nt x 5\n", "line 3: 'x' is not a 32-bit integer"),
        ("0\n1\nt 0 9223372036854775808\n", "line 3: '9223372036854775808' is not a 64-bit integer"),
        ("0\n1\nt 0 5_0\n", "line 3: '5_0' is not a 64-bit integer"),
        ("0\n1\nt 0 \u0665\n", "is not a 64-bit integer"),
        ("0\n1\nt 0 " + "9" * 100_000 + "\n", r"\(100000 characters\) is not a 64-bit integer"),
    ],
)
def test_malformed_offset_checkpoints_dsk_r11(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text(text)
    with pytest.raises(LogDirectoryError, match=message) as caught:
        read_offset_checkpoint(path)
    assert caught.value.source == str(path)
    assert str(caught.value).startswith(f"{path}, line ")
    assert len(str(caught.value)) < len(str(path)) + 300


@pytest.mark.parametrize("text", ["0\n1\n5\n", "0\n1\n5 x\n", "0\n1\n2147483648 0\n", "0\n1\n1 2 3\n", "0\n5\n1 2\n"])
def test_malformed_leader_epochs_dsk_r11(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(text)
    with pytest.raises(LogDirectoryError, match=r"leader-epoch-checkpoint, line [23]: "):
        read_leader_epochs(path)


def test_a_binary_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(range(256)))
    for read in (read_offset_checkpoint, read_leader_epochs, read_partition_metadata):
        with pytest.raises(LogDirectoryError, match="line 1"):
            read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected 'version: ...', found the end of the file"),
        ("version: 0\n", "line 2: expected 'topic_id: ...', found the end"),
        ("version: -1\ntopic_id: AQIDBAUGBwgREhMUFRYXGA", "line 1: expected a version of 0 or later"),
        ("version: x\ntopic_id: AQIDBAUGBwgREhMUFRYXGA", "line 1: 'x' is not a 32-bit integer"),
        ("topic_id: AQIDBAUGBwgREhMUFRYXGA\nversion: 0", "line 1: expected 'version: ...'"),
        ("version: 0\ntopic_id: AQIDBAUGBwgREhMUFRYX", "line 2: expected the 22 characters"),
        ("version: 0\ntopic_id: AQIDBAUGBwgREhMUFRYX!!", "line 2: expected the 22 characters"),
        (f"version: 0\ntopic_id: {NULL_TOPIC_ID}", "line 2: expected the 22 characters"),
    ],
)
def test_malformed_partition_metadata_dsk_r12(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text(text)
    with pytest.raises(LogDirectoryError, match=message):
        read_partition_metadata(path)


def test_later_version_of_partition_metadata_is_read_dsk_r12(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text("version: 3\ntopic_id: AQIDBAUGBwgREhMUFRYXGA\n")
    assert read_partition_metadata(path).version == 3


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1\r\nb:2\rc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# comment=1\n  ! other\n\n\t a =  x y \n", {"a": "x y "}),
        ("long = one\\\n   two\\\\\nnext=1", {"long": "onetwo\\", "next": "1"}),
        ("k\\u0041=\\u00e9\\n\\q\nempty\n=v", {"kA": "\u00e9\nq", "empty": "", "": "v"}),
        ("last\\", {"last": ""}),
    ],
)
def test_java_properties_dsk_r10(tmp_path: Path, text: str, properties: dict[str, str]) -> None:
    path = tmp_path / "meta.properties"
    path.write_bytes(text.encode())
    assert read_meta_properties(path) == properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("k=a\\\nb\nz=1\n", {"k": "ab", "z": "1"}),
        ("k=a\\\\\nb\nz=1\n", {"k": "a\\", "b": "", "z": "1"}),
        ("k=a\\\\\\\nb\nz=1\n", {"k": "a\\b", "z": "1"}),
        ("k=a\\\\\\\n\\\nz=1\n", {"k": "a\\z=1"}),
        ("k=a\\\\\\\n\\\\\nz=1\n", {"k": "a\\\\", "z": "1"}),
        ("k=a\\\n \t\\\n\f#b\nz=1\n", {"k": "a#b", "z": "1"}),
        ("k=a\\\n\nz=1\n", {"k": "a", "z": "1"}),
        ("k=a\\", {"k": "a"}),
    ],
)
def test_a_line_continues_after_an_odd_number_of_backslashes_dsk_r10(
    tmp_path: Path, text: str, properties: dict[str, str]
) -> None:
    """Also if its end is joined to backslashes of the lines before it: their number is even by then."""
    path = tmp_path / "meta.properties"
    path.write_text(text)
    assert read_meta_properties(path) == properties


def test_a_property_of_many_lines_takes_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_bytes(b"key=" + b"a\\\n" * 1_000_000 + b"b")
    began = time.process_time()
    assert read_meta_properties(path) == {"key": "a" * 1_000_000 + "b"}
    assert time.process_time() - began < 20


def test_an_invalid_escape_in_properties_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("a=1\nb=\\u12\n")
    with pytest.raises(LogDirectoryError, match=r"line 2: '\\u' without four hexadecimal digits"):
        read_meta_properties(path)


# -- state of a log


def test_topic_id_and_leader_epochs_of_a_log_dsk_r11_dsk_r12(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", 0, [batch(0, [1, 2])])
    log = kbatch.Log(tmp_path / "t-0")
    assert log.topic_id is None
    assert log.leader_epochs.tolist() == []
    assert log.leader_epochs.dtype == LEADER_EPOCH_DTYPE
    shutil.copy(STATE / "partition.metadata", path.parent)
    shutil.copy(STATE / "leader-epoch-checkpoint", path.parent)
    for log in (kbatch.Log(tmp_path / "t-0"), kbatch.Log(path)):
        assert log.topic_id == uuid.UUID("01020304-0506-0708-1112-131415161718")
        assert log.leader_epochs["start_offset"].tolist() == [0, 1200]
    (path.parent / "partition.metadata").write_text("x")
    with pytest.raises(LogDirectoryError, match="line 1"):
        _ = log.topic_id


def started(tmp_path: Path, checkpoint: str, name: str = "t-0") -> kbatch.Log:
    """A log of offsets 10 to 15 in two segments, under a checkpoint."""
    directory = tmp_path / name
    write_segment(directory, 10, [batch(10, [1, 2]), batch(12, [3, 4])])
    write_segment(directory, 14, [batch(14, [5, 6])])
    (tmp_path / "log-start-offset-checkpoint").write_text(checkpoint)
    return kbatch.Log(directory)


def offsets(log: kbatch.Log, **options: int) -> list[int]:
    return [offset for table in log.tables(**options) for offset in table.records["offset"].tolist()]


@pytest.mark.parametrize("start", [11, 12, 13, 14, 15, 16])
def test_log_begins_at_the_log_start_offset_dsk_r13(tmp_path: Path, start: int) -> None:
    log = started(tmp_path, f"0\n2\nother 0 13\nt 0 {start}\n")
    assert (log.start_offset, log.start_checkpoint) == (start, start)
    assert offsets(log) == list(range(start, 16))
    assert offsets(log, stop_offset=15) == list(range(start, 15))
    # Records before the log start offset can be read explicitly while they are on disk.
    assert offsets(log, start_offset=0) == list(range(10, 16))
    assert offsets(log, start_offset=start - 1) == list(range(start - 1, 16))
    assert log.offset_for_timestamp(1) == (start if start < 16 else None)
    assert len(log.batches()) == 3
    assert [log.start_offset for log in kbatch.find_logs(tmp_path)] == [start]


@pytest.mark.parametrize(
    "checkpoint",
    [
        "0\n1\nt 0 10\n",
        "0\n1\nt 0 0\n",
        "0\n1\nt 0 -1\n",
        "0\n1\nt 1 12\n",
        "0\n1\nt 0 17\n",
        "0\n2\nt 0 12\n",
        "1\n1\nt 0 12\n",
        "",
    ],
)
def test_a_checkpoint_that_does_not_apply_to_the_log_is_ignored_dsk_r13(tmp_path: Path, checkpoint: str) -> None:
    """Checkpoints at or below the first segment, of another log, beyond the end (an older copy), or malformed."""
    log = started(tmp_path, checkpoint)
    assert (log.start_offset, log.start_checkpoint) == (10, None)
    assert offsets(log) == list(range(10, 16))


def test_the_log_start_offset_applies_to_the_current_directory_only_dsk_r13(tmp_path: Path) -> None:
    log = started(tmp_path, "0\n1\nt 0 12\n")
    single = kbatch.Log(log.segments[0].path)
    assert (single.start_offset, single.start_checkpoint, offsets(single)) == (10, None, [10, 11, 12, 13])
    marked = started(tmp_path, "0\n1\nt 0 12\n", "t-0.77-future")
    assert (marked.start_offset, marked.start_checkpoint) == (10, None)


def test_a_changed_checkpoint_is_read_again_dsk_r13(tmp_path: Path) -> None:
    log = started(tmp_path, "0\n1\nt 0 12\n")
    assert log.start_offset == 12
    assert started(tmp_path, "0\n1\nt 0 000013\n").start_offset == 13
    (tmp_path / "log-start-offset-checkpoint").unlink()
    assert kbatch.Log(log.path).start_offset == 10


def test_state_files_with_a_flipped_bit_are_read_or_refused(tmp_path: Path) -> None:
    """A file with one flipped bit is read, or refused with an error of kbatch."""
    path = tmp_path / "file"
    for source, read in (
        (STATE / "log-start-offset-checkpoint", read_offset_checkpoint),
        (STATE / "leader-epoch-checkpoint", read_leader_epochs),
        (STATE / "partition.metadata", read_partition_metadata),
        (STATE / "meta.properties", read_meta_properties),
        (TXN / "00000000000000000280.txnindex", read_transaction_index),
    ):
        data = source.read_bytes()
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            with contextlib.suppress(KbatchError):
                read(path)
