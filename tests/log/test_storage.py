"""Logs in filesystems with URLs: fsspec's memory filesystem, an S3 server, tiered storage."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_logs import LOGS
from log_batches import batch, write_segment

import kbatch
from kbatch.cli import main
from kbatch.errors import LogDirectoryError, UnsupportedFormatError
from kbatch.log import read_transaction_index
from kbatch.log.selection import open_selected
from kbatch.log.store.local_files import bytes_read
from kbatch.log.store.storage import Storage, filesystem, locate
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions, parse_options
from kbatch.plan.tasks import task_tables

pytest.importorskip("pyarrow.fs")
fsspec = pytest.importorskip("fsspec")

NAMES = ("codec-none-0", "codec-zstd-0", "txn-0")
ID, TOPIC_ID = "tqimKeZwStOEOwRzT3L5oQ", "MWJ6FHTfRYy67jzwZdeqSQ"


@pytest.fixture
def memory() -> Iterator[str]:
    """The golden logs in fsspec's memory filesystem."""
    fs = fsspec.filesystem("memory")
    for name in NAMES:
        for file in (LOGS / name).iterdir():
            fs.pipe(f"/kb/logs/{name}/{file.name}", file.read_bytes())
    yield "memory://kb/logs"
    fs.rm("/kb", recursive=True)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """The number of requests to the memory filesystem by ("ls" or "get", path), and of bytes returned."""
    counted: Counter[tuple[str, str]] = Counter()
    cls = fsspec.get_filesystem_class("memory")
    cat_file, find = cls.cat_file, cls.find

    def counting_cat(self: Any, path: str, start: int | None = None, end: int | None = None, **rest: Any) -> bytes:
        data: bytes = cat_file(self, path, start=start, end=end, **rest)
        counted["get", path] += 1
        counted["bytes", ""] += len(data)
        return data

    def counting_find(self: Any, path: str, **rest: Any) -> Any:
        counted["ls", path] += 1
        return find(self, path, **rest)

    monkeypatch.setattr(cls, "cat_file", counting_cat)
    monkeypatch.setattr(cls, "find", counting_find)
    return counted


def same_records(remote: kbatch.Log, local: kbatch.Log, **options: Any) -> int:
    got, expected = list(remote.tables(**options)), list(local.tables(**options))
    for name in ("offset", "timestamp", "key_len", "value_len"):
        np.testing.assert_array_equal(
            np.concatenate([table.records[name] for table in got]),
            np.concatenate([table.records[name] for table in expected]),
        )
    values = [value for table in got for value in table.values()]
    assert values == [value for table in expected for value in table.values()]
    return len(values)


def check_logs(root: str, options: dict[str, str] | None = None) -> None:
    logs = kbatch.find_logs(root, storage_options=options)
    assert [f"{log.topic}-{log.partition}" for log in logs] == list(NAMES)
    for log in logs:
        assert log.path == f"{root}/{log.topic}-{log.partition}"
        local = kbatch.Log(LOGS / f"{log.topic}-{log.partition}")
        assert (log.start_offset, log.end_offset, log.size) == (local.start_offset, local.end_offset, local.size)
        assert log.topic_id == local.topic_id
        np.testing.assert_array_equal(log.leader_epochs, local.leader_epochs)
        np.testing.assert_array_equal(log.batches(), local.batches())
        for isolation in ("read_uncommitted", "read_committed"):
            assert same_records(log, local, isolation=isolation) > 0
            same_records(log, local, isolation=isolation, max_bytes=5000)
        middle = local.end_offset // 2
        assert same_records(log, local, start_offset=middle, stop_offset=middle + 20) > 0
        timestamp = int(local.batches()["max_timestamp"][2])
        assert log.offset_for_timestamp(timestamp) == local.offset_for_timestamp(timestamp)
        same_records(log, local, start_timestamp=timestamp)
        for segment, other in zip(log.segments, local.segments, strict=True):
            np.testing.assert_array_equal(segment.transaction_index(), other.transaction_index())
            snapshot, expected = segment.producer_snapshot(), other.producer_snapshot()
            assert (snapshot is None) == (expected is None)
            for offset in range(segment.base_offset or 0, local.end_offset, 97):
                assert segment.seek_offset(offset) == other.seek_offset(offset)
        assert pickle.loads(pickle.dumps(log.segments[0])).seek_offset(5) == local.segments[0].seek_offset(5)


def test_logs_in_fsspec_are_read_as_local_ones(memory: str) -> None:
    check_logs(memory)
    (log,) = open_selected([f"{memory}/txn-0", f"{memory}/txn-0/"])
    assert log.topic == "txn"
    path = f"{memory}/txn-0/00000000000000000000"
    assert kbatch.Log(f"{path}.log").topic == "txn"
    assert len(read_transaction_index(f"{path}.txnindex")) > 0


def test_a_plan_lists_each_directory_once_and_sends_few_requests(
    memory: str, requests: Counter[tuple[str, str]]
) -> None:
    logs = open_selected([memory])
    listed = {path: count for (kind, path), count in requests.items() if kind == "ls"}
    assert listed == {"/kb/logs": 1, **{f"/kb/logs/{name}": 1 for name in NAMES}}
    assert sum(count for (kind, _), count in requests.items() if kind == "get") == 0
    before = bytes_read()
    got = requests["bytes", ""]
    options = ReadOptions(split_bytes=20_000)
    tasks = plan(logs, options)
    assert bytes_read() - before == requests["bytes", ""] - got
    assert sum(count for (kind, _), count in requests.items() if kind == "ls") == 4
    # Requests get an index, or the headers between two split points; no index is read twice.
    assert all(count == 1 for (kind, path), count in requests.items() if kind == "get" and path.endswith("index"))
    assert all(count <= 8 for (kind, _), count in requests.items() if kind == "get")
    tasks = pickle.loads(pickle.dumps(tasks))
    for log in logs:
        assert log.end_offset == kbatch.Log(LOGS / f"{log.topic}-0").end_offset
        assert [log.segments[-1].seek_offset(offset) for offset in (0, 300, 3000)]
    assert all(count == 1 for (kind, path), count in requests.items() if kind == "get" and path.endswith("index"))
    rows = sum(len(table) for task in tasks for _, table in task_tables(task, options))
    assert rows == sum(len(table) for name in NAMES for table in kbatch.Log(LOGS / name).tables())


def large_log(directory: Path, batches: int = 400, size: int = 10_000) -> Path:
    """Write a log without index files, with batches of about `size` bytes."""
    write_segment(directory / "large-0", 0, [batch(i, [i], value=bytes(size)) for i in range(batches)])
    return directory / "large-0"


def test_a_seek_reads_few_bytes_and_a_walk_reads_local_headers_or_each_remote_byte_once(tmp_path: Path) -> None:
    local = large_log(tmp_path)
    fs = fsspec.filesystem("memory")
    fs.pipe(f"/kb/large-0/{0:020d}.log", (local / f"{0:020d}.log").read_bytes())
    size = (local / f"{0:020d}.log").stat().st_size
    for path, least, most in ((str(local), 0, 0.2), ("memory://kb/large-0", 1, 1.2)):
        segment = kbatch.Log(path).segments[0]
        before = bytes_read()
        segment.seek_offset(2)
        assert bytes_read() - before <= 200 << 10
        before = bytes_read()
        assert sum(len(rows) for rows in segment.scan()) == 400
        assert least * size <= bytes_read() - before <= most * size
    before = bytes_read()
    assert sum(len(table) for table in kbatch.Log("memory://kb/large-0").tables(max_bytes=1 << 20)) == 400
    assert bytes_read() - before <= segment.size + (256 << 10)
    fs.rm("/kb", recursive=True)


def test_local_directories_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        shutil.copytree(LOGS / name, tmp_path / name)
    listed: Counter[str] = Counter()
    list_directory = Storage.list

    def counting(storage: Storage, path: str) -> Any:
        listed[path] += 1
        return list_directory(storage, path)

    monkeypatch.setattr(Storage, "list", counting)
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} is listed again"))
    plan(open_selected([str(tmp_path)]), ReadOptions())
    assert listed == {str(tmp_path): 1, **{str(tmp_path / name): 1 for name in NAMES}}


def test_a_log_of_ten_thousand_segments_opens_quickly(tmp_path: Path) -> None:
    for partition in range(100):
        directory = tmp_path / f"many-{partition}"
        directory.mkdir()
        for i in range(100):
            (directory / f"{i:020d}.log").touch()
    start = time.process_time()
    logs = open_selected([str(tmp_path)])
    # About 0.2 s on an idle machine; the limit allows for a busy one.
    assert time.process_time() - start < 2
    assert sum(len(log.segments) for log in logs) == 10_000


def test_truncated_and_deleted_objects_are_errors(memory: str) -> None:
    fs = fsspec.filesystem("memory")
    log = kbatch.Log(f"{memory}/codec-none-0")
    path = "/kb/logs/codec-none-0/00000000000000000000.log"
    data = fs.cat_file(path)
    fs.pipe(path, data[: len(data) // 2])
    with pytest.raises(LogDirectoryError, match=r"memory://kb.*was truncated after the log was opened"):
        list(log.tables())
    fs.rm(path)
    with pytest.raises(LogDirectoryError, match=r"memory://kb.*0\.log: can't be read: no such object"):
        list(log.tables())


def test_the_start_checkpoint_is_used_and_a_failed_request_is_an_error(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = fsspec.filesystem("memory")
    path = "/kb/logs/log-start-offset-checkpoint"
    fs.pipe(path, b"0\n1\ncodec-none 0 1000\n")
    assert [log.start_offset for log in kbatch.find_logs(memory)] == [1000, 0, 0]
    log = kbatch.Log(f"{memory}/codec-none-0")
    assert log.start_offset == 1000
    fs.pipe(path, b"0\n1\ncodec-none 0 1001\n\n")
    cat_file = type(fs).cat_file

    def failing(self: Any, name: str, *positional: Any, **named: Any) -> bytes:
        if name == path:
            raise OSError("reset by peer")
        return bytes(cat_file(self, name, *positional, **named))

    monkeypatch.setattr(type(fs), "cat_file", failing)
    with pytest.raises(LogDirectoryError, match=r"memory://kb/logs/log-start-offset-checkpoint: can't be read: reset"):
        _ = kbatch.find_logs(memory)[0].start_offset


def test_the_last_object_may_end_with_a_partial_batch(memory: str) -> None:
    path = "/kb/logs/codec-none-0/00000000000000001825.log"
    fs = fsspec.filesystem("memory")
    fs.pipe(path, fs.cat_file(path)[:-10])
    log = kbatch.Log(f"{memory}/codec-none-0")
    assert log.incomplete_tail.kind == "partial"
    assert 0 < sum(len(table) for table in log.tables()) < 3160


def test_invalid_urls_and_options_are_refused() -> None:
    for url, error, text in (
        ("memory://kb/nothing", LogDirectoryError, "memory://kb/nothing: no such directory"),
        ("nosuch://x/y", LogDirectoryError, "nosuch://x: Protocol not known"),
        ("s3:///key", LogDirectoryError, "no bucket"),
        ("s3://me:secret@bucket/x", ValueError, "are not allowed in the URL"),
        ("s3://bucket/x?endpoint_override=y", ValueError, "are not allowed in the URL"),
    ):
        with pytest.raises(error, match=text) as caught:
            kbatch.find_logs(url)
        assert "secret" not in str(caught.value)
    for options, text in (
        ({"nosuch": "1"}, "nosuch"),
        ({"anonymous": 1}, "must be true or false, got '1'"),
        ({"anonymous": "maybe"}, "must be true or false"),
        ({"implementation": "own"}, "must be pyarrow or fsspec"),
        ({"request_timeout": "soon"}, "request_timeout must be a number, got 'soon'"),
    ):
        with pytest.raises(ValueError, match=text):
            filesystem("s3://bucket/x", options)
    with pytest.raises(ValueError, match=r"option headers starts with .* but is not a JSON object") as caught:
        filesystem("memory://x", {"headers": '{"token": secret}'})
    assert "secret" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    paths, options = parse_options({"path": "s3://b/x", "storage.secret_key": "hidden", "storage.Region": "r"})
    assert (paths, options.storage) == (["s3://b/x"], {"secret_key": "hidden", "region": "r"})
    storage, _ = locate(paths[0], options.storage)
    assert "hidden" not in repr(options) + repr(storage)


def test_file_urls_are_local_paths() -> None:
    for url in (f"file://{LOGS}", f"file:{LOGS}"):
        assert len(kbatch.find_logs(url)) == len(kbatch.find_logs(LOGS))
    assert filesystem(f"file://{LOGS}")[1] == str(LOGS)


# -- tiered storage (DSK-R18)


def tiered(root: Path, layout: str, padded: bool = True) -> None:
    """Copy a golden log to tiered storage, in the given layout; LocalTieredStorage pads the offsets in Kafka 4.3."""
    target = root / (f"my-topic-7-{TOPIC_ID}" if layout == "local" else f"my-topic-{TOPIC_ID}/7")
    target.mkdir(parents=True)
    for file in (LOGS / "txn-0").iterdir():
        stem, _, suffix = file.name.partition(".")
        if stem.isdigit() and suffix in ("log", "index", "timeindex", "txnindex", "snapshot"):
            offset = stem if padded else str(int(stem))
            shutil.copy(file, target / f"{offset}-{ID}.{suffix}")


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("layout", ["local", "aiven"])
def test_the_directory_decides_the_layout_of_tiered_storage(tmp_path: Path, layout: str, padded: bool) -> None:
    tiered(tmp_path, layout, padded)
    (tmp_path / f"empty-{TOPIC_ID}").mkdir()
    (log,) = kbatch.find_logs(tmp_path)
    assert (log.topic, log.partition, log.mark) == ("my-topic", 7, None)
    assert not log.segments[-1].live
    local = kbatch.Log(LOGS / "txn-0")
    assert [segment.base_offset for segment in log.segments] == [segment.base_offset for segment in local.segments]
    assert same_records(log, local, isolation="read_committed") == 228
    assert len(log.segments[0].transaction_index()) == len(local.segments[0].transaction_index())
    assert len(log.segments[0].offset_index()) == len(local.segments[0].offset_index())
    assert kbatch.Log(log.segments[1].path).partition == 7
    assert [other.partition for other in kbatch.find_logs(log.path)] == [7]
    if layout == "aiven":
        assert [other.partition for other in kbatch.find_logs(os.path.dirname(log.path))] == [7]


def test_directories_that_resemble_tiered_storage_are_not_tiered(tmp_path: Path) -> None:
    # A topic may have such a name; its segments have no ids.
    name = f"odd-3-{TOPIC_ID[:19]}-12"
    shutil.copytree(LOGS / "codec-none-0", tmp_path / name)
    (tmp_path / f"t-{TOPIC_ID}" / "0").mkdir(parents=True)
    shutil.copy(LOGS / "codec-none-0" / f"{0:020d}.log", tmp_path / f"t-{TOPIC_ID}" / "0")
    (log,) = kbatch.find_logs(tmp_path)
    assert (log.topic, log.partition) == (f"odd-3-{TOPIC_ID[:19]}", 12)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"version": "1", "compression": False, "encryption": {"dataKey": "x", "aad": "y"}}, "encryption"),
        ({"version": "1", "compression": False}, None),
    ],
)
def test_encrypted_chunks_are_refused(tmp_path: Path, manifest: dict[str, Any], message: str | None) -> None:
    tiered(tmp_path, "aiven")
    for file in list(tmp_path.rglob("*.log")):
        file.with_suffix(".rsm-manifest").write_text(json.dumps(manifest))
    (log,) = kbatch.find_logs(tmp_path)
    if message is None:
        assert sum(len(table) for table in log.tables()) == 337
        return
    with pytest.raises(
        UnsupportedFormatError, match=rf"\.log: uploaded with {message} according to its \.rsm-manifest"
    ):
        list(log.tables())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"version": ' * 100_000, "[]", "{"])
def test_a_segment_manifest_that_is_no_manifest_is_an_error_that_names_it(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tiered(tmp_path, "aiven")
    (path, *_) = sorted(tmp_path.rglob("*.log"))
    manifest = path.with_suffix(".rsm-manifest")
    manifest.write_text(text)
    (log,) = kbatch.find_logs(tmp_path)
    with pytest.raises(LogDirectoryError, match="can't be read as a manifest") as caught:
        list(log.tables())
    assert caught.value.source == str(manifest)
    for command in ("verify", "dump"):
        assert main([command, str(log.path)]) != 0
        shown = capsys.readouterr()
        assert f"{manifest}: can't be read as a manifest" in shown.out + shown.err


# -- S3


@pytest.fixture(scope="module")
def s3(s3_server: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """The golden logs in a bucket: its URL, options for pyarrow, and for s3fs."""
    endpoint = f"http://{s3_server}"
    options = {"access_key": "me", "secret_key": "secret", "endpoint_override": endpoint}
    fs, _ = filesystem("s3://bucket", {**options, "allow_bucket_creation": "true", "background_writes": "false"})
    fs.create_dir("bucket")
    for name in NAMES:
        for file in (LOGS / name).iterdir():
            with fs.open_output_stream(f"bucket/logs/{name}/{file.name}") as stream:
                stream.write(file.read_bytes())
    own = {"implementation": "fsspec", "key": "me", "secret": "secret", "endpoint_url": endpoint}
    return "s3://bucket/logs", options, own


S3 = tuple[str, dict[str, str], dict[str, str]]


def test_logs_in_s3_are_read_as_local_ones(s3: S3) -> None:
    check_logs(s3[0], s3[1])
    assert [log.topic for log in open_selected([s3[0].replace("s3:", "s3a:"), s3[0]], s3[1])] == [
        name.removesuffix("-0") for name in NAMES
    ]


def test_logs_in_s3_are_read_through_s3fs_too(s3: S3) -> None:
    pytest.importorskip("s3fs")
    check_logs(s3[0], s3[2])


@pytest.mark.parametrize("which", [1, 2], ids=["pyarrow", "s3fs"])
def test_missing_objects_are_reported_with_their_url(s3: S3, which: int) -> None:
    if which == 2:
        pytest.importorskip("s3fs")
    options: dict[str, str] = s3[which]
    for url in ("s3://nosuch/logs", "s3://bucket/nosuch"):
        with pytest.raises(LogDirectoryError, match=rf"{url}: .*(no such directory|bucket does not exist)"):
            kbatch.find_logs(url, storage_options=options)
        with pytest.raises(LogDirectoryError, match=rf"{url}: .*(no such file or directory|bucket does not exist)"):
            kbatch.Log(url, storage_options=options)


def test_an_unreachable_endpoint_is_reported_quickly() -> None:
    options = {"access_key": "me", "secret_key": "secret", "endpoint_override": "http://127.0.0.1:1"}
    start = time.monotonic()
    with pytest.raises(LogDirectoryError, match=r"s3://bucket/logs: can't be reached: .*onnect") as caught:
        kbatch.find_logs("s3://bucket/logs", storage_options=options)
    assert time.monotonic() - start < 30
    assert "secret" not in str(caught.value)


def test_refused_credentials_are_reported() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        options = {"anonymous": "true", "endpoint_override": f"http://127.0.0.1:{server.server_port}"}
        try:
            with pytest.raises(LogDirectoryError, match=r"s3://bucket/logs: can't be reached: .*ACCESS_DENIED"):
                kbatch.find_logs("s3://bucket/logs", storage_options=options)
        finally:
            server.shutdown()
            thread.join()


def test_an_object_replaced_by_a_shorter_one_is_an_error(s3: S3) -> None:
    fs, _ = filesystem(s3[0], s3[1])
    path = f"bucket/other/codec-none-0/{0:020d}"
    data = (LOGS / "codec-none-0" / f"{0:020d}.log").read_bytes()
    for suffix in (".log", ".index"):
        with fs.open_output_stream(path + suffix) as stream:
            stream.write((LOGS / "codec-none-0" / f"{0:020d}{suffix}").read_bytes())
    split = plan(open_selected(["s3://bucket/other"], s3[1]), ReadOptions(storage=s3[1]))[0]
    with fs.open_output_stream(f"{path}.log") as stream:
        stream.write(data[:5000])
    for options in (s3[1], s3[2]):
        log = kbatch.find_logs("s3://bucket/logs", storage_options=options)[0].segments[0]
        log.path, log.size = f"s3://{path}.log", len(data)
        with pytest.raises(LogDirectoryError, match="was truncated"):
            log.window(0, len(data))
    # The same holds for the last segment of a log.
    with pytest.raises(LogDirectoryError, match="was truncated"):
        list(task_tables(split, ReadOptions(storage=s3[1])))


def test_commands_take_urls(s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for name, value in s3[1].items() for word in ("--storage-option", f"{name}={value}")]
    outputs = []
    for path, more in ((f"{s3[0]}/txn-0", options), (str(LOGS / "txn-0"), [])):
        for command in ("dump", "verify", "stats"):
            assert main([command, path, *more]) == 0
        out = capsys.readouterr().out
        outputs.append(out.replace(path, "LOG"))
        assert main(["dump", f"{path}/{0:020d}.txnindex", *more]) == 0
        assert main(["verify", f"{path}/{0:020d}.index", *more]) == 0
        outputs[-1] += capsys.readouterr().out.replace(path, "LOG")
    assert outputs[0] == outputs[1]


def test_the_interpreter_exits_cleanly_with_open_tables(s3: S3) -> None:
    code = (
        "import kbatch, sys\n"
        f"logs = kbatch.find_logs({s3[0]!r}, storage_options={s3[1]!r})\n"
        "tables = iter(logs[0].tables())\n"
        "print(len(next(tables)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0


def test_local_logs_need_no_pyarrow() -> None:
    code = (
        f"import kbatch, sys; kbatch.find_logs({str(LOGS)!r})\n"
        "print(*(module in sys.modules for module in ('pyarrow', 'fsspec')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.spark
def test_spark_reads_s3(s3: S3, spark: Any) -> None:
    reader = spark.read.format("kbatch").option("splitBytes", "20k")
    for name, value in s3[1].items():
        reader = reader.option(f"storage.{name}", value)
    for isolation in ("read_uncommitted", "read_committed"):
        frame = reader.option("isolationLevel", isolation).load(s3[0])
        got = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
        expected = {
            name.removesuffix("-0"): sum(len(table) for table in kbatch.Log(LOGS / name).tables(isolation=isolation))
            for name in NAMES
        }
        assert got == expected
