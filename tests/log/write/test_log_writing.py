"""LogWriter: the files of a topic-partition, compared with the files that Kafka wrote for the same batches."""

from __future__ import annotations

import os
import re
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kbatch
from kbatch.format import ABORTED_DTYPE
from kbatch.log import LogWriter, read_leader_epochs, read_transaction_index
from kbatch.log.check.verification import verify_log
from kbatch.log.write.staging import NewOutput

# Logs of a broker with log.index.interval.bytes=1024 and one append per batch.
NAMES = [
    "codec-none-0",
    "codec-gzip-0",
    "codec-snappy-0",
    "codec-lz4-0",
    "codec-zstd-0",
    "txn-0",
    "compact-src-0",
    "mixed-0",
    "upconvert-0",
]


def batch(offset: int, *, values: Any = (b"v",), **fields: Any) -> bytes:
    return kbatch.encode(list(values), base_offset=offset, **({"timestamps": 1000 + offset} | fields))


def write(path: Path, parts: list[bytes], then: type[BaseException] | None = None) -> None:
    with LogWriter(path, sync=False) as writer:
        for part in parts:
            writer.append(part)
        if then is not None:
            raise then


def index_of(path: Path) -> list[tuple[int, int]]:
    return [(offset, position) for offset, position in struct.iter_unpack(">ii", path.read_bytes())]


def times_of(path: Path) -> list[tuple[int, int]]:
    return [(timestamp, offset) for timestamp, offset in struct.iter_unpack(">qi", path.read_bytes())]


@pytest.mark.parametrize("piece", [1, 7, 10_000])
@pytest.mark.parametrize("name", NAMES)
def test_files_equal_the_files_of_kafka(name: str, piece: int, golden: Path, tmp_path: Path) -> None:
    log = kbatch.Log(golden / "logs" / name)
    with LogWriter(tmp_path / name, index_interval_bytes=1024, base_offset=0) as writer:
        for segment in log.segments:
            if segment.base_offset:
                writer.roll(segment.base_offset)
            for rows in segment.scan():
                for start in range(0, len(rows), piece):
                    part = rows[start : start + piece]
                    stop = int(part["position"][-1] + part["size"][-1])
                    writer.append(segment.window(int(part["position"][0]), stop))
    made = {path.name for path in (tmp_path / name).iterdir()}
    for path in sorted((golden / "logs" / name).iterdir()):
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex"):
            assert (tmp_path / name / path.name).read_bytes() == path.read_bytes(), path.name
            made.remove(path.name)
    assert made == {"leader-epoch-checkpoint"}
    assert len(read_leader_epochs(tmp_path / name / "leader-epoch-checkpoint")) > 0


def test_segments_are_rolled_by_size(tmp_path: Path) -> None:
    size = len(batch(0))
    with LogWriter(tmp_path / "t-0", segment_bytes=3 * size, sync=False) as writer:
        writer.append(b"".join(batch(offset) for offset in range(10, 17)))
        assert writer.segments == [10, 13, 16]
        assert (writer.next_offset, writer.bytes_written) == (17, 7 * size)
        # A batch larger than a segment gets a separate segment.
        writer.append(batch(17, values=[bytes(4 * size)]))
        writer.append(batch(18))
    log = kbatch.Log(tmp_path / "t-0")
    assert [segment.base_offset for segment in log.segments] == [10, 13, 16, 17, 18]
    assert [row for table in log.tables() for row in table.records["offset"].tolist()] == list(range(10, 19))
    assert not verify_log(log.segments).findings


def test_segments_are_rolled_by_offsets_and_by_index_entries(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "t-0", sync=False) as writer:
        writer.append(batch(5) + batch(5 + 2**31 - 1) + batch(5 + 2**31) + batch(2**40))
    assert writer.segments == [5, 5 + 2**31, 2**40]
    with LogWriter(tmp_path / "u-0", index_interval_bytes=0, segment_index_bytes=60, sync=False) as writer:
        writer.append(b"".join(batch(offset) for offset in range(13)))
    # A .timeindex has space for five entries. The last entry is written when the segment is closed, and the first
    # batch of a segment has no entry.
    assert writer.segments == [0, 5, 10]
    for base in writer.segments:
        assert len(times_of(tmp_path / f"u-0/{base:020d}.timeindex")) <= 5
    assert not verify_log(kbatch.Log(tmp_path / "u-0").segments).findings


def test_the_time_index_has_the_largest_timestamps_so_far(tmp_path: Path) -> None:
    """DSK-R3: entries have the largest timestamp so far and its batch; batches without timestamps have no entry."""
    times = [-1, 50, 40, 50, 60, 55]
    with LogWriter(tmp_path / "t-0", index_interval_bytes=0, sync=False) as writer:
        for offset, time in enumerate(times):
            writer.append(batch(offset, timestamps=time))
    size = len(batch(0))
    assert index_of(tmp_path / "t-0/00000000000000000000.index") == [(i, i * size) for i in range(1, 6)]
    assert times_of(tmp_path / "t-0/00000000000000000000.timeindex") == [(50, 1), (60, 4)]
    with LogWriter(tmp_path / "u-0", sync=False) as writer:
        writer.append(kbatch.encode([b"a", b"b"], magic=0))
    assert times_of(tmp_path / "u-0/00000000000000000000.timeindex") == []


def test_a_segment_is_named_by_the_first_offset_of_a_message_set(tmp_path: Path) -> None:
    """LEG-R23: the header of a compressed message set does not contain the first offset."""
    with LogWriter(tmp_path / "t-0", sync=False) as writer:
        writer.append(kbatch.encode([b"a", b"b"], base_offset=30, magic=1, codec="gzip"))
    assert writer.segments == [30]
    assert kbatch.Log(tmp_path / "t-0").end_offset == 32


def test_given_aborted_transactions_are_written_to_their_segment(tmp_path: Path) -> None:
    rows = np.array([(7, 0, 3, 4), (8, 1, 12, 13)], ABORTED_DTYPE)
    with LogWriter(tmp_path / "t-0", follow_transactions=False, sync=False) as writer:
        writer.append(batch(0))
        writer.append_aborted(rows)
        writer.append(batch(3))
        writer.roll(10)
        writer.append(batch(12))
    assert read_transaction_index(tmp_path / "t-0/00000000000000000000.txnindex").tolist() == rows[:1].tolist()
    assert read_transaction_index(tmp_path / "t-0/00000000000000000010.txnindex").tolist() == rows[1:].tolist()


def test_leader_epochs_are_written_unless_the_file_is_given(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "t-0", sync=True) as writer:
        for offset, epoch in enumerate([-1, 2, 2, 1, 5, -1, 5]):
            writer.append(batch(offset, leader_epoch=epoch))
        writer.write_file("partition.metadata", b"version: 0\n")
    assert (tmp_path / "t-0/leader-epoch-checkpoint").read_text() == "0\n2\n2 1\n5 4\n"
    assert (tmp_path / "t-0/partition.metadata").read_bytes() == b"version: 0\n"
    with LogWriter(tmp_path / "u-0", sync=False) as writer:
        writer.append(batch(0, leader_epoch=1))
        writer.write_file("leader-epoch-checkpoint", b"0\n0\n")
    assert (tmp_path / "u-0/leader-epoch-checkpoint").read_bytes() == b"0\n0\n"


def test_a_log_without_batches(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "t-0", base_offset=77, sync=False):
        pass
    log = kbatch.Log(tmp_path / "t-0")
    assert (log.start_offset, log.end_offset, log.size) == (77, 77, 0)


def test_one_file(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "orders.log", sync=False) as writer:
        writer.append(batch(3))
    assert os.listdir(tmp_path) == ["orders.log"]
    with LogWriter(tmp_path / "00000000000000000002.log", segment_bytes=1, index_interval_bytes=0) as writer:
        writer.append(batch(3) + batch(4))
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["orders.log", *(f"00000000000000000002{suffix}" for suffix in (".log", ".index", ".timeindex"))]
    )
    assert index_of(tmp_path / "00000000000000000002.index") == [(2, len(batch(3)))]
    with pytest.raises(kbatch.LogDirectoryError, match="exists already"):
        LogWriter(tmp_path / "orders.log")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([batch(5), batch(5)], "offsets 5 to 5 come after 5"),
        ([batch(5, values=[b"a", b"b"]) + batch(6)], "offsets 6 to 6 come after 6"),
        ([batch(5), kbatch.encode([b"a"], magic=1, codec="gzip", base_offset=4)], "offsets 4 to 4 come after 5"),
    ],
)
def test_offsets_must_ascend(parts: list[bytes], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        write(tmp_path / "t-0", parts)
    assert os.listdir(tmp_path) == []


def test_incomplete_and_invalid_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(kbatch.TruncatedBatchError):
        write(tmp_path / "t-0", [batch(0) + batch(1)[:-1]])
    with pytest.raises(kbatch.CorruptBatchError):
        write(tmp_path / "t-0", [bytes(100)])
    assert os.listdir(tmp_path) == []


def test_files_get_their_names_only_at_the_end(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "t-0", segment_bytes=1)
    for offset in range(3):
        writer.append(batch(offset))
    (staging,) = os.listdir(tmp_path)
    assert (staging[:5], staging[-4:]) == (".t-0.", ".tmp")
    with pytest.raises(kbatch.LogDirectoryError):
        kbatch.find_logs(tmp_path)
    writer.close()
    writer.close()
    assert os.listdir(tmp_path) == ["t-0"]
    with pytest.raises(ValueError, match="closed"):
        writer.append(batch(9))


def test_an_existing_log_is_not_replaced(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "t-0", sync=False)
    writer.append(batch(0))
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0/kept").touch()
    with pytest.raises(kbatch.LogDirectoryError, match="exists already"):
        writer.close()
    assert os.listdir(tmp_path) == ["t-0"]
    assert os.listdir(tmp_path / "t-0") == ["kept"]
    with pytest.raises(kbatch.LogDirectoryError, match="exists already"):
        LogWriter(tmp_path / "t-0")
    # An empty directory may be replaced.
    (tmp_path / "u-0").mkdir()
    with LogWriter(tmp_path / "u-0", sync=False) as writer:
        writer.append(batch(0))
    assert kbatch.Log(tmp_path / "u-0").end_offset == 1


def test_an_error_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("disk full")

    with LogWriter(tmp_path / "kept-0", sync=False) as writer:
        writer.append(batch(0))
    for name in ("fsync", "rename"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            with pytest.raises(OSError, match="disk full"), LogWriter(tmp_path / "t-0") as writer:
                writer.append(batch(0))
        assert os.listdir(tmp_path) == ["kept-0"]
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "t-0", [batch(0)], then=KeyboardInterrupt)
    with pytest.raises(TypeError), NewOutput(tmp_path / "all") as output:
        output.write_file("meta.properties", None)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["kept-0"]


def test_file_system_errors_name_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    made = tmp_path / "t-0"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: '{made}'"), LogWriter(made) as writer:
            writer.append(batch(0, values=[bytes(2 << 20)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{made}'"), LogWriter(made) as writer:
        writer.append(batch(0))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("out", ["t-0", "00000000000000000000.log"])
def test_an_interrupt_after_the_rename_removes_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    real = os.fsync

    def interrupted(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), os.stat(tmp_path)):
            assert (tmp_path / out).exists()
            raise KeyboardInterrupt
        real(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt), LogWriter(tmp_path / out) as writer:
        writer.append(batch(0))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex"])
def test_files_of_another_segment_are_not_taken_over(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"00000000000000000000{suffix}").write_bytes(b"")
    with pytest.raises(kbatch.LogDirectoryError, match="exists already"):
        LogWriter(tmp_path / "00000000000000000000.log")
    assert os.listdir(tmp_path) == [f"00000000000000000000{suffix}"]


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(kbatch.LogDirectoryError, match="to a local path only"):
        LogWriter("s3://bucket/t-0")
    with pytest.raises(kbatch.LogDirectoryError, match=r"t-0: its parent .*missing is not a directory"):
        LogWriter(tmp_path / "missing" / "t-0")
    with pytest.raises(ValueError, match="segment_bytes must be 1 to"):
        LogWriter(tmp_path / "t-0", segment_bytes=0)
    writer = LogWriter(tmp_path / "t-0")
    writer.append(batch(4))
    with pytest.raises(ValueError, match="base_offset must be at least 5"):
        writer.roll(4)
    writer.discard()
    assert os.listdir(tmp_path) == []


def test_an_output_that_cannot_be_created_is_named_without_its_temporary_directory(tmp_path: Path) -> None:
    for out in (tmp_path / ("x" * 300), "/proc/t-0"):
        with pytest.raises(kbatch.LogDirectoryError) as caught:
            LogWriter(out).close()
        assert re.fullmatch(rf"{out}: can't be written: [A-Z][a-z ]+", str(caught.value))
