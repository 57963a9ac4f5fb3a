"""write_log: DataFrames as log directories, read back by kbatch and aiokafka. A write succeeds or changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_batches import batch as one_batch
from log_batches import write_segment
from written_logs import HEADERS, expected, found, frame, pa, tree

import kbatch
from kbatch.broker.partitioner import key_partition, key_partitions, murmur2
from kbatch.errors import LogDirectoryError
from kbatch.log import roll_back, write_log
from kbatch.log.write import commit as commit_module


@pytest.mark.parametrize("compression", [None, "gzip:1", "snappy", "lz4", "zstd:3"])
def test_written_logs_have_the_rows_of_the_frame(tmp_path: Path, compression: str | None) -> None:
    table = frame(400)
    written = write_log(tmp_path / "logs", table, codec=compression, batch_size=300)
    assert found(tmp_path / "logs") == expected(table)
    assert sum(each.records for each in written) == 400
    assert [(each.topic, each.partition, each.first_offset) for each in written] == [
        (f"topic.{topic}", partition, 0) for topic in range(2) for partition in range(3)
    ]
    log = kbatch.Log(tmp_path / "logs" / "topic.1-2")
    assert len(log.batches()) > 3
    assert set(log.batches()["attributes"] & 7) == {kbatch.Codec[(compression or "none").partition(":")[0].upper()]}
    assert log.leader_epochs.tolist() == [(0, 0)]
    assert (log.segments[0].has(".index"), log.segments[0].has(".timeindex")) == (True, True)
    # No other files remain.
    assert sorted(os.listdir(tmp_path)) == ["logs"]
    assert all("kbatch" not in name for name in os.listdir(tmp_path / "logs"))


def test_aiokafka_reads_written_logs(tmp_path: Path) -> None:
    records = pytest.importorskip("aiokafka.record.memory_records")
    table = frame(100)
    write_log(tmp_path, table, codec="lz4", batch_size=500)
    write_log(tmp_path, table, codec="zstd")
    for (topic, partition), rows in expected(table, table).items():
        seen = []
        for path in sorted((tmp_path / f"{topic}-{partition}").glob("*.log")):
            reader = records.MemoryRecords(path.read_bytes())
            while reader.has_next():
                one = reader.next_batch()
                assert one.validate_crc()
                seen += [(r.offset, r.timestamp, r.key, r.value, [(k.encode(), v) for k, v in r.headers]) for r in one]
        assert seen == rows


def test_an_append_continues_the_offsets_and_keeps_the_files(tmp_path: Path) -> None:
    frames = [frame(30, first=30 * n, partitions=2) for n in range(4)]
    before: dict[str, bytes | None] = {}
    for n, each in enumerate(frames):
        written = write_log(tmp_path, each, codec=["none", "gzip", "lz4", "zstd"][n])
        now = tree(tmp_path)
        assert {name: now[name] for name in before} == before
        before = now
        assert found(tmp_path) == expected(*frames[: n + 1])
        assert {each.first_offset for each in written} == {n * 15}
    log = kbatch.Log(tmp_path / "topic.0-0")
    assert [segment.base_offset for segment in log.segments] == [0, 15, 30, 45]


def test_an_append_continues_the_leader_epoch(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    write_segment(directory, 0, [kbatch.encode([b"a", b"b"], leader_epoch=7)], indexes=True)
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n7 1\n")
    write_log(tmp_path, pa.table({"value": ["c"]}), topic="orders", num_partitions=1)
    log = kbatch.Log(directory)
    assert log.batches()["partition_leader_epoch"].tolist() == [7, 7]
    assert log.leader_epochs.tolist() == [(3, 0), (7, 1)]
    assert [table.values() for table in log.tables()] == [[b"a", b"b"], [b"c"]]


def test_segments_are_at_most_segment_bytes_large(tmp_path: Path) -> None:
    table = frame(2000, topics=1, partitions=1)
    write_log(tmp_path, [table.slice(0, 900), table.slice(900)], batch_size=1000, segment_bytes=5000)
    log = kbatch.Log(tmp_path / "topic.0-0")
    assert len(log.segments) > 5
    assert all(segment.size <= 5000 for segment in log.segments)
    assert found(tmp_path) == expected(table)


def test_frames_of_other_libraries_are_written_like_arrow(tmp_path: Path) -> None:
    table = frame(60)
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    as_pandas = table.to_pandas()
    as_pandas["headers"] = [
        None if row is None else [(each["key"], each["value"]) for each in row] for row in table["headers"].to_pylist()
    ]
    forms = {
        "pandas": as_pandas,
        "pandas of arrow": table.to_pandas(types_mapper=pandas.ArrowDtype),
        "polars": polars.from_arrow(table),
        "reader": table.to_reader(7),
        "batches": iter(table.to_batches(max_chunksize=9)),
        "batch": table.combine_chunks().to_batches()[0],
        "dictionary": table.set_column(3, "topic", table["topic"].dictionary_encode()),
        "views": table.set_column(2, "value", table["value"].cast(pa.binary_view())),
    }
    for name, each in forms.items():
        write_log(tmp_path / name, each)
        assert found(tmp_path / name) == expected(table), name


def test_a_record_table_keeps_its_offsets(tmp_path: Path, golden: Path) -> None:
    log = kbatch.Log(golden / "logs" / "codec-zstd-0")
    write_log(tmp_path, log.tables(), topic="copy", num_partitions=1, codec="zstd")
    copy = kbatch.Log(tmp_path / "copy-0")
    assert (copy.start_offset, copy.end_offset) == (log.start_offset, log.end_offset)
    columns = ("offset", "timestamp", "timestampType", "key", "value", "headers")
    one, other = (pa.concat_tables(t.to_arrow(columns=columns) for t in each.tables()) for each in (log, copy))
    assert one.combine_chunks().equals(other.combine_chunks())


# -- kept offsets


def offset_rows(offsets: list[int | None], value: str = "v") -> Any:
    return pa.table({"offset": pa.array(offsets, pa.int64()), "value": [value] * len(offsets)})


def test_offsets_of_the_frame_can_be_kept(tmp_path: Path) -> None:
    to = {"topic": "t", "num_partitions": 1}
    write_log(tmp_path, offset_rows([5, 6, 9]), **to)
    write_log(tmp_path, offset_rows([20, 5_000_000_000]), **to)
    write_log(tmp_path, offset_rows([1, 1]), offsets="assign", **to)
    log = kbatch.Log(tmp_path / "t-0")
    kept = [5, 6, 9, 20, 5_000_000_000, 5_000_000_001, 5_000_000_002]
    assert np.concatenate([table.records["offset"] for table in log.tables()]).tolist() == kept
    assert [segment.base_offset for segment in log.segments] == [5, 20, 5_000_000_000, 5_000_000_001]
    before = tree(tmp_path)
    for offsets, message in (
        ([5_000_000_002, 5_000_000_009], "t-0: can't write offset 5000000002: the log's last offset is 5000000002"),
        ([6_000_000_000, 6_000_000_000], "t-0: offset 6000000000 comes after 6000000000; sort"),
        ([-4], "t-0: offset -4 is negative"),
        ([6_000_000_000, None], "t-0: offset is null"),
    ):
        with pytest.raises((ValueError, LogDirectoryError), match=message):
            write_log(tmp_path, offset_rows(offsets), **to)
        assert tree(tmp_path) == before


# -- partitions


def test_partitions_are_chosen_as_kafka_does(tmp_path: Path) -> None:
    keys = [None if n % 3 == 0 else os.urandom(n % 40) for n in range(600)]
    partitions = [n % 4 if n % 10 == 0 else None for n in range(600)]
    table = pa.table(
        {"key": keys, "value": [str(n) for n in range(600)], "partition": pa.array(partitions, pa.int64())}
    )
    write_log(tmp_path, table, topic="t", num_partitions=4)
    turn = 0
    values_by_partition: dict[int, list[bytes]] = {}
    for n, (key, partition) in enumerate(zip(keys, partitions, strict=True)):
        if partition is None and key is None:
            partition, turn = turn % 4, turn + 1
        elif partition is None:
            partition = key_partition(key or b"", 4)
        values_by_partition.setdefault(partition, []).append(b"%d" % n)
    seen = {log.partition: [v for table in log.tables() for v in table.values()] for log in kbatch.find_logs(tmp_path)}
    assert seen == values_by_partition


def test_a_column_of_keys_is_hashed_like_single_keys() -> None:
    keys = [os.urandom(n) for n in range(70)] + [b"", b"\xff" * 1000]
    for column in (pa.array(keys), pa.array(keys, pa.binary_view()), pa.array([b"x", *keys, b"y"])[1:-1]):
        assert key_partitions(column, 7).tolist() == [key_partition(key, 7) for key in keys]
    assert key_partitions(pa.array(["21"]), 1 << 30).tolist() == [(murmur2(b"21") & 0x7FFFFFFF) % (1 << 30)]
    assert key_partitions(pa.array([], pa.binary()), 3).tolist() == []


def test_many_partitions_are_written(tmp_path: Path) -> None:
    table = frame(1500, topics=1, partitions=150)
    write_log(tmp_path, table)
    assert found(tmp_path) == expected(table)


# -- refused input


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"key": ["a"]}, {}, "required column 'value' is missing"),
        ({"value": ["a"]}, {}, "column 'topic' is missing"),
        ({"value": ["a"], "partition": [-1]}, {"topic": "t"}, "partition -1 must be 0 to 2147483647"),
        ({"value": ["a"], "partition": [1 << 31]}, {"topic": "t"}, "partition 2147483648 must be"),
        ({"value": ["a"], "partition": ["1"]}, {"topic": "t"}, "column 'partition' must be an integer, not string"),
        ({"value": ["a"], "topic": pa.array([None], pa.string()), "partition": [0]}, {}, "the topic is null"),
        (
            {"value": ["a"], "topic": ["../a"], "partition": [0]},
            {},
            r"topic must be a name that Kafka allows.*, got '\.\./a'",
        ),
        (
            {"value": ["a"], "topic": [".."], "partition": [0]},
            {},
            r"topic must be a name that Kafka allows.*, got '\.\.'",
        ),
        (
            {"value": ["a"]},
            {"topic": "a/b", "num_partitions": 1},
            "topic must be a name that Kafka allows.*, got 'a/b'",
        ),
        ({"value": ["a"]}, {"topic": "t", "num_partitions": 0}, "num_partitions must be 1 to 2147483647, got 0"),
        ({"value": [1]}, {"topic": "t", "num_partitions": 1}, "column 'value' must be binary or string, not int64"),
        ({"value": ["a"], "key": [1.5]}, {"topic": "t", "num_partitions": 1}, "column 'key' must be binary or string"),
        ({"value": ["a"], "val": ["b"]}, {"topic": "t", "num_partitions": 1}, "column 'val' can't be written"),
        ({"value": ["a"], "headers": ["b"]}, {"topic": "t", "num_partitions": 1}, "column 'headers' must be array<"),
        (
            {"value": ["a"], "timestamp": ["b"]},
            {"topic": "t", "num_partitions": 1},
            "column 'timestamp' must be a time",
        ),
        (
            {"value": ["a"], "timestamp": [-7]},
            {"topic": "t", "num_partitions": 1},
            "t-0, 1 rows: record 0: timestamp",
        ),
        ({"value": ["a"]}, {"topic": "t", "num_partitions": 1, "codec": "brotli"}, "codec must be none, gzip"),
        ({"value": ["a"]}, {"topic": "t", "num_partitions": 1, "codec": "gzip:77"}, "gzip:1 to gzip:9"),
        ({"value": ["a"]}, {"topic": "t", "num_partitions": 1, "codec": "zstd:x"}, "codec must be none, gzip"),
        ({"value": ["a"]}, {"topic": "t", "num_partitions": 1, "mode": "ignore"}, "mode must be"),
        ({"value": ["a"]}, {"topic": "t", "num_partitions": 1, "offsets": "drop"}, "offsets must be"),
        ({"value": ["a"]}, {"topic": "t", "num_partitions": 1, "segment_bytes": 0}, "segment_bytes must be"),
    ],
)
def test_invalid_rows_and_options_are_refused_with_a_reason(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        write_log(tmp_path / "logs", pa.table(columns), **options)
    assert os.listdir(tmp_path) == []


def test_missing_headers_of_pandas_are_empty(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    rows = [[("h", b"1")], np.nan, None, [{"key": "h", "value": None}]]
    frame = pd.DataFrame({"value": [b"v"] * 4, "headers": pd.Series(rows, dtype=object)})
    write_log(tmp_path / "logs", frame, topic="t", num_partitions=1)
    (table,) = kbatch.Log(tmp_path / "logs" / "t-0").tables()
    assert table.records["header_count"].tolist() == [1, 0, 0, 1]
    frame["headers"] = [[], [], [("h",)], []]
    with pytest.raises(TypeError, match=r"headers\[2\] must be a list of \(key, value\) pairs"):
        write_log(tmp_path / "logs", frame, topic="t", num_partitions=1)


def test_a_headers_key_must_not_be_null(tmp_path: Path) -> None:
    table = pa.table({"value": ["a"], "headers": pa.array([[(None, b"x")]], HEADERS)})
    with pytest.raises(ValueError, match="a header has no key"):
        write_log(tmp_path, table, topic="t", num_partitions=1)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("bad", [5, "path", {"value": [1]}, [b"a"]])
def test_other_objects_are_not_frames(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(TypeError, match="a frame must be an Arrow table"):
        write_log(tmp_path / "logs", bad, topic="t", num_partitions=1)
    assert os.listdir(tmp_path) == []


def test_unusable_log_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root, message in (
        ("s3://bucket/logs", "local or mounted file systems only"),
        (tmp_path / "file", "is not a directory"),
        (tmp_path / "missing" / "logs", "its parent .* is not a directory"),
    ):
        with pytest.raises(LogDirectoryError, match=message):
            write_log(root, frame())


def test_an_empty_frame_writes_nothing(tmp_path: Path) -> None:
    assert write_log(tmp_path / "logs", frame(0)) == []
    assert os.listdir(tmp_path) == []
    assert write_log(tmp_path, frame(0)) == []
    assert tree(tmp_path) == {}


# -- existing logs


def test_the_mode_decides_about_existing_logs(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    write_log(root, frame(30, partitions=4), mode="error")
    (root / "log-start-offset-checkpoint").write_text("0\n1\ntopic.0 0 3\n")
    (root / "meta.properties").write_text("version=1\n")
    write_segment(root / "__cluster_metadata-0", 0, [one_batch(0, [1])])
    before = tree(root)
    with pytest.raises(LogDirectoryError, match=r"exists already, with logs \(topic.0-0, topic.0-2, topic.1-1, ...\)"):
        write_log(root, frame(), mode="error")
    assert tree(root) == before
    table = frame(10, topics=1, partitions=1)
    write_log(root, table, mode="overwrite")
    assert sorted(os.listdir(root)) == [".lock", "__cluster_metadata-0", "meta.properties", "topic.0-0"]
    shutil.rmtree(root / "__cluster_metadata-0")
    assert found(root) == expected(table)


def test_the_empty_segment_at_a_logs_end_is_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [one_batch(0, [1, 2])], indexes=True)
    write_segment(directory, 2, [])
    (directory / f"{2:020}.index").write_bytes(bytes(8192))
    (directory / f"{2:020}.snapshot").write_bytes(b"a broker's")
    write_log(tmp_path, pa.table({"value": ["new"]}), topic="t", num_partitions=1)
    log = kbatch.Log(directory)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert [value for table in log.tables() for value in table.values()] == [b"value", b"value", b"new"]
    assert (directory / f"{2:020}.index").stat().st_size == 0
    assert (directory / f"{2:020}.snapshot").read_bytes() == b"a broker's"


@pytest.mark.parametrize(
    ("tail", "kind"), [(one_batch(2, [5])[:40], "partial"), (bytes(64), "zeros"), (b"x" * 99, "damaged")]
)
def test_a_log_with_bytes_after_its_last_batch_is_not_continued(tmp_path: Path, tail: bytes, kind: str) -> None:
    write_segment(tmp_path / "t-0", 0, [one_batch(0, [1, 2])], tail=tail)
    before = tree(tmp_path)
    table = pa.table({"value": ["a", "b"], "topic": ["a", "t"], "partition": [0, 0]})
    with pytest.raises(LogDirectoryError, match=rf"{len(tail)} bytes after the last complete batch \({kind}\)"):
        write_log(tmp_path, table)
    assert tree(tmp_path) == before


def test_a_held_lock_prevents_a_write(tmp_path: Path) -> None:
    code = """if True:
        import fcntl, sys
        file = open(sys.argv[1], "w")
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("locked", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(LogDirectoryError, match="a broker or another writer holds this lock; nothing was written"):
            write_log(tmp_path, frame())
        assert tree(tmp_path) == {}
        with pytest.raises(LogDirectoryError, match="holds this lock"):
            roll_back(tmp_path)
        other.communicate()
    write_log(tmp_path, frame())
    # Within one process, file locks do not exclude each other.
    with commit_module.locked(str(tmp_path)), pytest.raises(LogDirectoryError, match="holds this lock"):
        write_log(tmp_path, frame())
    assert found(tmp_path) == expected(frame())


def test_the_second_writer_of_a_new_directory_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "logs"

    def rows() -> Iterator[Any]:
        yield frame(10)
        write_log(root, frame(20))

    with pytest.raises(LogDirectoryError, match=r"another writer may have created it meanwhile\. Nothing was written"):
        write_log(root, rows())
    assert found(root) == expected(frame(20))
    assert os.listdir(tmp_path) == ["logs"]


def test_two_writers_of_an_existing_directory_both_succeed(tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield frame(10)
        write_log(tmp_path, frame(20))

    write_log(tmp_path, rows())
    assert found(tmp_path) == expected(frame(20), frame(10))
