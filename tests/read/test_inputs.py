"""What `decode` and `decode_stream` read, and what they answer to other arguments."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from golden_logs import LOGS

import kbatch
from kbatch.log import write_log

SEGMENT = LOGS / "codec-none-0" / "00000000000000000000.log"
COUNT = 1825
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_decode_reads_a_path_and_an_open_file(isolation: Any) -> None:
    with open(SEGMENT, "rb") as file:
        for data in (SEGMENT, str(SEGMENT), file, io.BytesIO(SEGMENT.read_bytes())):
            assert len(kbatch.decode(data, isolation=isolation)) == COUNT
    assert kbatch.decode(SEGMENT).source == str(SEGMENT)


def test_decode_stream_reads_a_path() -> None:
    for path in (SEGMENT, str(SEGMENT)):
        assert sum(map(len, kbatch.decode_stream(path))) == COUNT


def test_decode_refuses_a_pipe_and_decode_stream_reads_it(tmp_path: Path) -> None:
    """`decode` would wait for a writer; a stream is what `decode_stream` is for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(kbatch.LogDirectoryError, match="pipe: can't be read: it is a FIFO; only regular files"):
        kbatch.decode(pipe)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(pipe.write_bytes, SEGMENT.read_bytes())
        found = sum(len(table) for table in kbatch.decode_stream(pipe))
        assert written.result() == SEGMENT.stat().st_size
    assert found == len(kbatch.decode(SEGMENT))


def test_text_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\xfe")
    with open(tmp_path / "a.log") as file:
        for call in (kbatch.decode, kbatch.decode_stream):
            with pytest.raises(TypeError, match=r"open for binary reading, as open\(path, 'rb'\)"):
                call(file)


@pytest.mark.parametrize("wrong", [[b"a"], (b"a" for _ in "a"), None, 5], ids=["list", "generator", "None", "int"])
def test_decode_names_the_function_for_chunks(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"takes one buffer .* got \w+; kbatch.decode_stream takes an iterable"):
        kbatch.decode(wrong)


@pytest.mark.parametrize("call", [kbatch.decode, kbatch.decode_stream])
def test_paths_that_are_no_segment_name_the_call_that_reads_them(call: Any, tmp_path: Path) -> None:
    with pytest.raises(kbatch.LogDirectoryError, match=r"is a directory; kbatch.Log\(path\).tables\(\) reads"):
        call(tmp_path)
    with pytest.raises(ValueError, match=r"does not read URLs; use kbatch.Log\('s3://b/t-0'\)"):
        call("s3://b/t-0")
    with pytest.raises(kbatch.LogDirectoryError, match=r"missing.log: can't be read: No such file or directory"):
        call(tmp_path / "missing.log")


@pytest.mark.parametrize(
    ("content", "look"),
    [
        (gzip.compress(b"abc" * 100, mtime=0), "a gzip file; decompress it first"),
        (b"PK\x03\x04" + bytes(50), "a zip file"),
        (b"PAR1" + bytes(range(40, 90)), "a Parquet file"),
        (b'{"offset": 5, "value": "abcdefgh"}', "JSON"),
        (b"offset,key,value\n1,a,b\n2,c,d\n3,e,f\n", "text"),
    ],
    ids=["gzip", "zip", "parquet", "json", "text"],
)
def test_another_kind_of_file_is_named(content: bytes, look: str, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(content)
    for read in (
        lambda: kbatch.decode(content),
        lambda: kbatch.decode(path),
        lambda: kbatch.scan(content),
        lambda: list(kbatch.decode_stream(path)),
        lambda: list(kbatch.Log(path).tables()),
    ):
        with pytest.raises(kbatch.CorruptBatchError, match=f"not a Kafka log: the bytes look like {look}"):
            read()


@pytest.mark.parametrize("wrong", [b"a-0", bytearray(b"a-0"), 5, None], ids=repr)
def test_a_log_is_not_opened_from_another_type_than_a_path(wrong: Any) -> None:
    for call in (kbatch.Log, kbatch.find_logs):
        with pytest.raises(TypeError, match=r"^(path|root) must be a str.* os.PathLike.*, got \w+"):
            call(wrong)
    with pytest.raises(TypeError, match=r"got bytes; kbatch.decode reads batches from a buffer"):
        kbatch.Log(b"a-0")  # type: ignore[arg-type]


def test_values_are_parsed_from_keys_and_values_only() -> None:
    table = kbatch.decode(SEGMENT)
    with pytest.raises(ValueError, match="on must be 'value' or 'key', got 'headers'"):
        table.values_json(on="headers")  # type: ignore[arg-type]


def test_write_log_has_one_partition_by_default(tmp_path: Path) -> None:
    (written,) = write_log(tmp_path / "logs", pa.table({"value": [b"a", b"b"]}), topic="orders")
    assert (written.partition, written.records) == (0, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda table: table.value("a"), TypeError, "row must be an integer, got 'a'"),
        (lambda table: table.key(1825), IndexError, "row 1,825 is not in a table of 1,825 records"),
        (lambda table: table.headers_of(-1826), IndexError, "row -1,826 is not in a table of 1,825 records"),
        (lambda table: table.head("x"), TypeError, "n must be an int, got str"),
        (lambda table: table.select(5), TypeError, "columns must be a sequence, got int"),
        (lambda table: table.to_arrow(columns=5), TypeError, "columns must be a sequence or None, got int"),
        (lambda table: table.values_avro("/nope"), ValueError, "^/nope: can't read an Avro schema: No such file or"),
        (
            lambda table: table.values_avro(README),
            ValueError,
            r"README\.md: not an Avro schema: expected JSON or",
        ),
    ],
)
def test_wrong_arguments_of_a_table_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(kbatch.decode(SEGMENT))


def test_rows_of_a_table_count_back_from_its_end() -> None:
    table = kbatch.decode(SEGMENT)
    assert table.value(-1) == table.value(COUNT - 1) == table.values()[-1]


def test_write_log_names_the_output_if_the_disk_is_full(tmp_path: Path) -> None:
    """Files are written in a stage, whose name users never see."""
    code = f"""
import resource, signal, kbatch.log, pyarrow
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    kbatch.log.write_log({str(tmp_path / "logs")!r}, pyarrow.table({{"value": [bytes(1 << 15)] * 9}}), topic="t")
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"[Errno 27] File too large: {str(tmp_path / 'logs')!r}\n"
    assert list(tmp_path.iterdir()) == []


def test_streams_name_the_file_that_they_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"a line of text\n" * 9)
    with open(path, "rb") as file:
        for stream in (path, str(path), file):
            with pytest.raises(kbatch.CorruptBatchError, match=f"^{path}: not a Kafka log") as caught:
                list(kbatch.decode_stream(stream))
            assert caught.value.source == str(path)
    with pytest.raises(kbatch.CorruptBatchError, match=r"^orders: not a Kafka log"):
        list(kbatch.decode_stream(path, source="orders"))


def test_inputs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with open(tmp_path / "x.log", "wb") as file, pytest.raises(TypeError, match="a file that is open for reading"):
        kbatch.decode(file)
    with pytest.raises(ValueError, match=r"^kbatch\.decode: the path is empty"):
        kbatch.decode("")
    for call in (kbatch.Log, kbatch.find_logs, kbatch.Segment):
        for path, problem in (("", "is empty"), ("a\0b", "contains a null byte")):
            with pytest.raises(kbatch.LogDirectoryError, match=rf"^the path '.*' {problem}"):
                call(path)
    with pytest.raises(TypeError, match=r"dtype must be a dtype of NumPy such as '>i8', got None"):
        kbatch.decode(SEGMENT).values_struct(None)
    for call in (kbatch.scan, lambda path: kbatch.recompress(path, "zstd"), lambda path: kbatch.convert(path, 1)):
        with pytest.raises(TypeError, match=r"got \w+; read the file first, as pathlib\.Path\(path\)\.read_bytes\(\)"):
            call(tmp_path / "x.log")


def test_errors_of_write_log_name_no_options_of_spark(tmp_path: Path) -> None:
    rows = pa.table({"value": [b"a", b"b"], "offset": [2, 1]})
    with pytest.raises(ValueError, match="offset 1 comes after 2; sort the rows") as caught:
        write_log(tmp_path, rows, topic="t")
    assert "Spark" not in str(caught.value)
    with pytest.raises(TypeError, match=r"a frame must be an Arrow table, .* got Series"):
        write_log(tmp_path, pd.Series([b"a"]), topic="t")


def test_columns_of_a_table_are_not_chosen_by_index() -> None:
    with pytest.raises(TypeError, match=r"; select\(\) returns a table with some of the columns"):
        kbatch.decode(SEGMENT)[["offset", "key"]]  # type: ignore[list-item]
