"""The types that type checkers report for the public API, checked by mypy and pyright; no function here is called.

`test_public_api_types` checks that every public class and function occurs in an `assert_type`.
"""

from __future__ import annotations

import datetime
import io
import mmap
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, assert_type
from uuid import UUID

import numpy as np
import numpy.typing as npt

import kbatch
import kbatch.log
import kbatch.values
from kbatch.protocol import (
    ApiKey,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    Message,
    MetadataResponse,
    Response,
    ResponseHeader,
    UnknownMessage,
    aborted_transactions,
    common_versions,
    decode_fetch,
    decode_message,
    decode_request,
    decode_response,
    message_class,
)

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

    import kbatch.spark

    Rows = npt.NDArray[np.void]


def reading(data: bytes, file: io.BufferedReader, chunks: list[bytes]) -> None:
    assert_type(kbatch.scan(data), Rows)
    assert_type(kbatch.decode(data), kbatch.RecordTable)
    assert_type(kbatch.decode(memoryview(data), isolation="read_committed", threads=2), kbatch.RecordTable)
    assert_type(kbatch.decode(bytearray(data), columns=["offset"]), kbatch.RecordTable)
    array = np.frombuffer(data, np.uint8)
    assert_type(kbatch.decode(array), kbatch.RecordTable)
    assert_type(kbatch.scan(array), Rows)
    assert_type(kbatch.convert(array, 2), bytes)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert_type(kbatch.decode(mapped), kbatch.RecordTable)
    assert_type(kbatch.decode_stream(file, max_bytes=1 << 20, on_error="skip"), Iterator[kbatch.RecordTable])
    assert_type(kbatch.decode_stream(chunks), Iterator[kbatch.RecordTable])
    decoder = kbatch.StreamDecoder(crc="mark", limits=kbatch.Limits(max_batch_bytes=1 << 20))
    assert_type(decoder, kbatch.StreamDecoder)
    assert_type(decoder.feed(data), int)
    assert_type(decoder.feed(array), int)
    assert_type(decoder.read_from(file.readinto), int)
    assert_type(decoder.flush(), kbatch.RecordTable)
    assert_type(decoder.finish(), kbatch.RecordTable)
    assert_type(decoder.tables(chunks), Iterator[kbatch.RecordTable])
    assert_type((decoder.position, decoder.pending_bytes, decoder.stopped), tuple[int, int, bool])
    kbatch.decode(data, isolation="serializable")  # type: ignore[arg-type]
    kbatch.decode(data, on_error="ignore")  # type: ignore[arg-type]
    kbatch.decode(["text"])  # type: ignore[arg-type]
    kbatch.decode_stream(chunks, isolated=True)  # type: ignore[call-arg]


def table(table: kbatch.RecordTable) -> None:
    assert_type(table.records, Rows)
    assert_type(table.batches, Rows)
    assert_type(table.headers, Rows)
    assert_type(table.data, npt.NDArray[np.uint8])
    assert_type(table.columns, tuple[str, ...])
    assert_type((table.losses[0], table.losses[:2]), tuple[kbatch.Loss, list[kbatch.Loss]])
    assert_type(table.pending, list[tuple[int, int]])
    assert_type((table.consumed, table.last_stable_offset), tuple[int, int | None])
    assert_type((table.remaining, table.num_rows), tuple[int, int])
    assert_type(table.schema, pa.Schema)
    assert_type(table["offset"], pa.ChunkedArray)
    assert_type(table.head(3), kbatch.RecordTable)
    assert_type(table.headers_of(0), list[tuple[bytes, bytes | None]])
    assert_type(table.equals(table), bool)
    assert_type(kbatch.concat_tables([table, table]), kbatch.RecordTable)
    assert_type(table[polars.Series([True])], kbatch.RecordTable)
    assert_type((table.source, table.topic, table.partition), tuple[str | None, str | None, int | None])
    assert_type(len(table), int)
    assert_type(table[:5], kbatch.RecordTable)
    assert_type(table[table.records["offset"] > 7], kbatch.RecordTable)
    assert_type(table.select(["offset"]), kbatch.RecordTable)
    assert_type(table.key(0), bytes | None)
    assert_type(table.value(0), bytes | None)
    assert_type(table.keys(), list[bytes | None])
    assert_type(table.values(), list[bytes | None])
    assert_type(table.values_as(">i8"), npt.NDArray[Any])
    assert_type(table.to_arrow(columns=["offset"], binary="binary_view"), pa.Table)
    assert_type(table.to_pandas(dtype_backend="pyarrow"), pandas.DataFrame)
    assert_type(table.to_polars(), polars.DataFrame)
    table.consumed = 0  # type: ignore[misc]
    table.to_pandas(dtype_backend="polars")  # type: ignore[arg-type]


def values(table: kbatch.RecordTable, column: pa.Array) -> None:
    parsed = table.values_json(on="key", unknown="ignore")
    assert_type(parsed, kbatch.values.ParsedValues[kbatch.RecordTable])
    assert_type(parsed.deviations, list[kbatch.values.FieldDeviation])
    assert_type(parsed.schema_ids, pa.ChunkedArray)
    assert_type(table.values_avro("schema.avsc"), kbatch.values.ParsedValues[kbatch.RecordTable])
    assert_type(table.values_protobuf(b"", "Message"), kbatch.values.ParsedValues[kbatch.RecordTable])
    assert_type(table.values_struct("id:>i8"), kbatch.values.ParsedValues[kbatch.RecordTable])
    assert_type(table.values_text(), kbatch.values.ParsedValues[kbatch.RecordTable])
    assert_type(parsed.table, kbatch.RecordTable)
    assert_type(parsed.table.to_pandas(), pandas.DataFrame)
    assert_type(parsed.on, Literal["key", "value"])
    assert_type(parsed.bad, npt.NDArray[np.int64])
    assert_type(parsed.errors, list[str])
    assert_type(parsed.bad_values, list[bytes])
    assert_type(parsed.values, pa.ChunkedArray)
    assert_type(parsed.to_arrow(["offset"]), pa.Table)
    without_an_argument: kbatch.values.ParsedValues = parsed
    assert_type(without_an_argument.table, Any)
    assert_type(kbatch.values.infer_json([b"{}", None]), pa.DataType)
    assert_type(kbatch.values.JsonParser(kbatch.values.infer_json([])).parse(column), kbatch.values.Parsed)
    assert_type(kbatch.values.AvroParser("long").parse(column), kbatch.values.Parsed)
    assert_type(kbatch.values.ProtobufParser(b"").parse(column), kbatch.values.Parsed)
    assert_type(kbatch.values.FixedParser(">i8").parse(column), kbatch.values.Parsed)
    parsers: list[kbatch.values.Parser] = [kbatch.values.TextParser()]
    assert_type(parsers[0].parse(column), kbatch.values.Parsed)
    assert_type(parsers, list[kbatch.values.Parser])
    assert_type(kbatch.values.TextParser().parse(column).bad, npt.NDArray[np.int64])


def writing(table: kbatch.RecordTable, file: IO[bytes], path: Path) -> None:
    assert_type(kbatch.encode([b"a", None], keys=[b"k", None], codec="zstd:3"), bytes)
    assert_type(kbatch.encode(np.arange(3), codec=kbatch.Codec.LZ4), bytes)
    assert_type(kbatch.encode_table(table, omitted="drop"), bytes)
    assert_type(kbatch.encode_empty(0, 9), bytes)
    assert_type(kbatch.encode_marker("commit", producer_id=1, producer_epoch=0), bytes)
    assert_type(kbatch.encode_marker(kbatch.ControlType.ABORT, producer_id=1, producer_epoch=0), bytes)
    with kbatch.BatchWriter(file, codec="gzip") as writer:
        assert_type(writer, kbatch.BatchWriter)
        assert_type(writer.append(b"value", key=b"key"), int)
        assert_type(writer.append_many([b"value"]), range | npt.NDArray[np.int64])
        assert_type(writer.pending, int)
    with kbatch.log.LogWriter(path) as log:
        assert_type(log, kbatch.log.LogWriter)
        assert_type(log.append(b""), Rows)
    assert_type(kbatch.log.write_log(path, table, topic="orders"), list[kbatch.log.Written])
    assert_type(kbatch.log.roll_back(path, unfinished=True), int)
    kbatch.encode([b"a"], timestamp_type="log")  # type: ignore[arg-type]
    name: kbatch.CodecName
    for name in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert_type(name, kbatch.CodecName)
        assert_type(kbatch.encode([b"a"], codec=name), bytes)
    kbatch.encode([b"a"], codec="zsdt")  # type: ignore[arg-type]
    kbatch.BatchWriter(file, codec="lz4:99")  # type: ignore[arg-type]
    kbatch.recompress(b"", "brotli")  # type: ignore[arg-type]
    kbatch.export("logs", "out", compression="zstd:3")
    kbatch.export("logs", "out", compression="brotli")  # type: ignore[arg-type]
    kbatch.encode_marker("commit")  # type: ignore[call-arg]


def rewriting(data: bytes, path: Path) -> None:
    report = kbatch.RewriteReport()
    assert_type(report, kbatch.RewriteReport)
    assert_type((report.records, report.damage, report.lost), tuple[int, list[kbatch.Loss], dict[str, int]])
    assert_type(kbatch.convert(data, 1, lossy="drop", report=report), bytes)
    assert_type(kbatch.recompress(data, "zstd", on_error="skip"), bytes)
    assert_type(kbatch.log.convert_log(path, path / "new"), kbatch.RewriteReport)
    assert_type(kbatch.log.recompress_log(kbatch.Log(path), path / "new", "lz4"), kbatch.RewriteReport)
    assert_type(kbatch.log.compact_log(path, path / "new"), kbatch.log.Compaction)
    assert_type(kbatch.log.compact_log(path, path / "new").damage, list[kbatch.Loss])
    statistics = assert_type(kbatch.log.log_statistics(kbatch.Log(path)), kbatch.log.LogStatistics)
    assert_type(
        kbatch.log.sum_statistics([("orders", statistics)]),
        tuple[list[kbatch.log.StatisticsSums], kbatch.log.StatisticsSums],
    )
    assert_type(kbatch.write_report(path, path / "page.html").control_records, int)
    kbatch.convert(data, lossy="ignore")  # type: ignore[arg-type]


def scans(path: Path, expression: pc.Expression) -> None:
    scan = kbatch.scan_logs(path, topics="orders-*", partitions=[0], start="-1h", key="k", columns=["offset", "value"])
    assert_type(scan, kbatch.Scan)
    assert_type(kbatch.scan_logs([path, "s3://bucket/logs"], storage_options={"region": "eu"}), kbatch.Scan)
    assert_type(kbatch.index_logs(path, "index", topics="orders-*", threads=2), list[kbatch.IndexedLog])
    assert_type(kbatch.index_logs(path)[0].refused, list[tuple[str, str]])
    assert_type(kbatch.write_report(path, path / "report.html", topics=["orders"]), kbatch.Report)
    assert_type(kbatch.write_report(kbatch.find_logs(path), "report.html").advice[0].change, str)
    assert_type(kbatch.Log(path).to_arrow(key="k", index=False), pa.Table)
    assert_type(kbatch.scan_logs(kbatch.Log(path), isolation="read_committed", threads=2), kbatch.Scan)
    assert_type(kbatch.scan_logs(kbatch.find_logs(path)).columns, list[str])
    assert_type(scan.filter(expression).select("offset", "value").select(["value"]), kbatch.Scan)
    assert_type((scan.schema, scan.count(), scan.explain()), tuple[pa.Schema, int, str])
    assert_type((scan.head(3), scan.tail(), scan.to_arrow(binary="binary_view")), tuple[pa.Table, pa.Table, pa.Table])
    assert_type(scan.reader(), pa.RecordBatchReader)
    assert_type(scan.to_polars(), polars.DataFrame)
    assert_type(scan.lazy(), polars.LazyFrame)
    assert_type(scan.to_pandas(dtype_backend="pyarrow"), pandas.DataFrame)
    assert_type(scan.dataset(), ds.Dataset)
    kbatch.scan_logs(path, limit=5)  # type: ignore[call-arg]


def live(path: Path) -> None:
    consumer = kbatch.consume(
        "orders-*", partitions=[0], bootstrap_servers=["a:9092"], start="-1h", key="k", config=path
    )
    assert_type(kbatch.consume(["a"], bootstrap_servers="a"), kbatch.Consumer)
    assert_type(consumer.ranges, dict[tuple[str, int], tuple[int, int | None]])
    assert_type(next(consumer), kbatch.RecordTable)
    assert_type(list(consumer), list[kbatch.RecordTable])
    assert_type((consumer.schema, consumer.to_arrow(binary="binary_view")), tuple[pa.Schema, pa.Table])
    assert_type(consumer.reader(), pa.RecordBatchReader)
    assert_type(consumer.to_polars(), polars.DataFrame)
    assert_type(consumer.to_pandas(dtype_backend="pyarrow"), pandas.DataFrame)
    kbatch.consume("orders", bootstrap_servers="a", sasl_oauthbearer_token=lambda: "token", end=None)
    kbatch.consume("orders", bootstrap_servers="a", transport=kbatch.live.connect_socket, request_timeout_ms=5)
    member = kbatch.consume("orders", bootstrap_servers="a", group="etl", auto_commit=True, session_timeout_ms=9000)
    kbatch.consume("orders", bootstrap_servers="a", group_id="etl", partition_assignment_strategy=["range"])
    assert_type(member.commit(), None)
    assert_type((member.lag, member.positions), tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]])
    assert_type((member.missing_offsets, member.metrics.lag[("a", 0)]), tuple[list[kbatch.log.MissingOffsets], int])
    kbatch.consume(
        "orders", bootstrap_servers="a", flush_rows=1, flush_bytes="1m", flush_interval="1s", client_rack="b"
    )
    kbatch.consume("orders", bootstrap_servers="a", on_metrics=print, fail_on_data_loss=False)
    assert_type(member.assignment, list[tuple[str, int]])
    settings = kbatch.live.ClientSettings.of({"bootstrap.servers": "a"}, client_id="b")
    with kbatch.live.Cluster(settings) as cluster:
        assert_type(cluster.topics(), list[kbatch.live.TopicMetadata])
        assert_type(cluster.offsets({("orders", 0): -1}), dict[tuple[str, int], int | None])


def logs(path: Path, progress: Callable[[str, int], bool]) -> None:
    log = kbatch.Log(path)
    assert_type(log, kbatch.Log)
    assert_type(kbatch.find_logs(path, predicate=progress), kbatch.log.LogList)
    logs = kbatch.log.find_logs(str(path))
    assert_type(kbatch.find_logs([path, str(path)], topics=["a", re.compile("b.*")]), kbatch.log.LogList)
    assert_type(logs, kbatch.log.LogList)
    assert_type(logs[0], kbatch.Log)
    assert_type(kbatch.log.find_logs(path), kbatch.log.LogList)
    assert_type(kbatch.log.Log(path), kbatch.log.Log)
    assert_type(logs[:2], kbatch.log.LogList)
    assert_type(logs["orders"], kbatch.log.LogList)
    assert_type(logs["orders", 0], kbatch.Log)
    logs["orders", "0"]  # type: ignore[index]
    statistics = kbatch.log.log_statistics(kbatch.Log(path))
    assert_type(kbatch.log.log_statistics(kbatch.Log(path)), kbatch.log.LogStatistics)
    assert_type(
        kbatch.log.sum_statistics([("orders", statistics)]),
        tuple[list[kbatch.log.StatisticsSums], kbatch.log.StatisticsSums],
    )
    compared = kbatch.log.compare_logs(path, logs, match="key")
    assert_type(kbatch.log.compare_logs(path, logs), kbatch.log.Comparison)
    assert_type(kbatch.log.backup_topics("kafka://localhost", path, topics="a"), list[kbatch.log.Written])
    assert_type(compared.partitions, list[kbatch.log.PartitionComparison])
    assert_type(compared.partitions[0].a, kbatch.log.ComparedLog | None)
    assert_type(compared.partitions[0].first, kbatch.log.Difference | None)
    if (first := compared.partitions[0].first) is not None:
        assert_type(first.a, kbatch.log.ComparedRecord | None)
    assert_type(list(logs), list[kbatch.Log])
    assert_type(logs.tables(columns=["topic"], start_offset=5), Iterator[kbatch.RecordTable])
    assert_type(logs.to_arrow(columns=["topic"], isolation="read_committed"), pa.Table)
    assert_type(log.to_arrow(start_offset=5, binary="binary_view"), pa.Table)
    assert_type(log.to_polars(columns=["value"], threads=2), polars.DataFrame)
    assert_type(log.to_pandas(dtype_backend="pyarrow"), pandas.DataFrame)
    assert_type(list(log), list[kbatch.RecordTable])
    assert_type(log.reader(columns=["value"], start="-1h", end="latest", key="k"), pa.RecordBatchReader)
    assert_type(logs.reader(start={0: 100, 1: "latest"}, key=b"k"), pa.RecordBatchReader)
    assert_type(logs.head(3, start={"orders": {0: 100}}, end=datetime.datetime.now()), pa.Table)
    assert_type(log.tail(start=datetime.timedelta(hours=1), binary="large_binary"), pa.Table)
    assert_type((log.count(on_error="skip", last=5), logs.count()), tuple[int, int])
    assert_type((log.schema, logs.schema), tuple[pa.Schema, pa.Schema])
    assert_type(log.last_timestamp, int | None)
    log.head(limit=5)  # type: ignore[call-arg]
    log.count(start=1.5)  # type: ignore[arg-type]
    assert_type(log.to_arrow(values="json", value_schema={"id": "bigint"}, columns=["value.id"]), pa.Table)
    assert_type(logs.to_polars(values="json", value_schema="id bigint", keys="string"), polars.DataFrame)
    assert_type(log.to_pandas(values="avro", value_schema=Path("a.avsc"), value_framing="confluent"), pandas.DataFrame)
    assert_type(log.reader(values=kbatch.values.TextParser(), keys="struct", key_schema=">i8"), pa.RecordBatchReader)
    assert_type(log.head(3, values="protobuf", value_schema=b"", value_message="shop.Order"), pa.Table)
    log.to_arrow(values="jsn")  # type: ignore[arg-type]
    log.to_arrow(values="json", value_unknown="drop")  # type: ignore[arg-type]
    log.to_arrow(start_ofset=5)  # type: ignore[call-arg]
    log.to_arrow(isolation="serializable")  # type: ignore[arg-type]
    assert_type(log.tables(), Iterator[kbatch.RecordTable])
    assert_type(log.batches(), Rows)
    assert_type(log.transactions(), kbatch.Transactions)
    assert_type(log.offset_for_timestamp(0), int | None)
    assert_type((log.size, log.start_offset, log.end_offset), tuple[int, int, int])
    assert_type(log.topic_id, uuid.UUID | None)
    assert_type(log.leader_epochs, Rows)
    assert_type(log.incomplete_tail, kbatch.Tail)
    assert_type(log.incomplete_tail.kind, Literal["none", "partial", "zeros", "damaged"])
    assert_type(kbatch.Segment(path).scan(), Iterator[Rows])
    assert_type(kbatch.Segment(path).last_batch(), tuple[np.void | None, kbatch.log.Tail])
    assert_type(kbatch.log.Segment(path).window(0, 10), npt.NDArray[np.uint8])
    assert_type(kbatch.log.read_leader_epochs(path), Rows)
    assert_type(kbatch.log.read_meta_properties(path), dict[str, str])
    assert_type(kbatch.log.read_offset_checkpoint(path), dict[tuple[str, int], int])
    assert_type(kbatch.log.read_partition_metadata(path).topic_id, uuid.UUID)
    assert_type(kbatch.log.read_producer_snapshot(path), Rows)
    assert_type(kbatch.log.read_transaction_index(path), Rows)


def internal_topics(table: kbatch.RecordTable) -> None:
    assert_type(kbatch.log.consumer_offsets(table).skipped, dict[int, int])
    assert_type(kbatch.log.transaction_state(table).skipped, dict[int, int])
    assert_type(kbatch.log.group_records(table).skipped, dict[int, int])
    assert_type(kbatch.log.share_group_state(table).skipped, dict[int, int])
    assert_type(kbatch.log.remote_log_metadata(table).skipped, dict[int, int])
    assert_type(kbatch.log.cluster_metadata(table).skipped, dict[int, int])
    assert_type(kbatch.log.metadata_records(table), pa.Table)
    assert_type(kbatch.log.control_value(2, b""), dict[str, Any])


def transactions(table: kbatch.RecordTable, found: kbatch.Transactions) -> None:
    assert_type(kbatch.control_records(table), Rows)
    assert_type(found.open, Sequence[kbatch.OpenTransaction])
    assert_type(found.last_stable_offset, int | None)
    assert_type(found.aborted, Rows)


def broker(data: bytearray, rows: Rows) -> None:
    topic = kbatch.TopicConfig(compression_type="lz4", timestamp_type=kbatch.TimestampType.LOG_APPEND_TIME)
    assert_type(topic, kbatch.TopicConfig)
    assert_type(kbatch.validate_batch(data, topic, origin="client"), kbatch.RecordTable)
    assert_type(kbatch.assign_offsets(data, 5), int)
    assert_type(kbatch.accept_batch(data, 5, topic), bytearray)
    checker = kbatch.SequenceChecker()
    assert_type(checker, kbatch.SequenceChecker)
    assert_type(checker.check(rows, on_error="mark"), Rows)
    assert_type(checker.producers(), Rows)
    assert_type([refusal.row for refusal in checker.refusals(rows)], list[int])


def format(rows: Rows) -> None:
    assert_type(kbatch.Limits().max_decompressed_bytes, int)
    assert_type(kbatch.Limits().max_batch_bytes, int | None)
    assert_type(kbatch.BatchStatus.sound(rows["status"]), npt.NDArray[np.bool_])
    assert_type(kbatch.TimestampType.of(rows), npt.NDArray[np.int32])
    assert_type(kbatch.Codec(4), kbatch.Codec)
    assert_type(kbatch.ControlType(0), kbatch.ControlType)
    assert_type(kbatch.Loss(0, 1, "reason").base_offset, int | None)
    assert_type(kbatch.BATCH_DTYPE, np.dtype[np.void])
    assert_type(kbatch.__version__, str)


def errors(error: kbatch.KbatchError, refused: kbatch.RefusedError) -> None:
    assert_type((error.source, error.position), tuple[str | None, int | None])
    assert_type((error.base_offset, error.record), tuple[int | None, int | None])
    assert_type(refused.code, kbatch.ErrorCode)
    assert_type(kbatch.CodecError("message", position=5), kbatch.CodecError)
    assert_type(kbatch.ConversionLossError("message"), kbatch.ConversionLossError)
    assert_type(kbatch.CorruptBatchError("message"), kbatch.CorruptBatchError)
    assert_type(kbatch.CrcMismatchError("message"), kbatch.CrcMismatchError)
    assert_type(kbatch.FencedError("message"), kbatch.FencedError)
    assert_type(kbatch.InvalidRecordError("message"), kbatch.InvalidRecordError)
    assert_type(kbatch.KbatchError("message"), kbatch.KbatchError)
    assert_type(kbatch.LimitExceededError("message"), kbatch.LimitExceededError)
    assert_type(kbatch.ProtocolError("message"), kbatch.ProtocolError)
    assert_type(kbatch.LogDirectoryError("message"), kbatch.LogDirectoryError)
    assert_type(kbatch.MissingColumnError("message"), kbatch.MissingColumnError)
    assert_type(kbatch.MissingDependencyError("message"), kbatch.MissingDependencyError)
    assert_type(kbatch.OutOfOrderSequenceError("message"), kbatch.OutOfOrderSequenceError)
    assert_type(kbatch.RefusedError("message"), kbatch.RefusedError)
    assert_type(kbatch.RegistryError("message"), kbatch.RegistryError)
    assert_type(kbatch.TransactionStateError("message"), kbatch.TransactionStateError)
    assert_type(kbatch.TruncatedBatchError("message"), kbatch.TruncatedBatchError)
    assert_type(kbatch.UnsupportedFormatError("message"), kbatch.UnsupportedFormatError)
    # Callers may catch the classes of Python.
    builtin: list[ValueError | ImportError] = [kbatch.MissingColumnError(""), kbatch.MissingDependencyError("")]
    assert_type(builtin, list[ValueError | ImportError])


def protocol(data: bytes) -> None:
    topic = FetchRequest.FetchTopic(topic="t", partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=7)])
    request = FetchRequest(max_wait_ms=500, topics=[topic], unknown_tags={9: b""})
    assert_type(request.topics, list[FetchRequest.FetchTopic])
    assert_type(request.topics[0].partitions[0].fetch_offset, int)
    response = decode_message(FetchResponse, data, 12)
    assert_type(response, FetchResponse)
    assert_type(response.responses[0].topic_id, UUID)
    assert_type(response.responses[0].partitions[0].records, bytes | bytearray | memoryview | None)
    FetchRequest(max_wait="500")  # type: ignore[call-arg]
    response.responsess  # type: ignore[attr-defined]  # noqa: B018
    # The key of the API decides the class of the message.
    answer = decode_response(data, ApiKey.FETCH, 12)
    assert_type(answer, Response[FetchResponse] | UnknownMessage[ResponseHeader])
    assert_type(answer.message, FetchResponse)
    assert_type(answer.message.responses[0].partitions[0].high_watermark, int)
    assert_type(decode_response(data, 3, 12).message, MetadataResponse)
    assert_type(decode_response(data, ApiKey.API_VERSIONS, 4).message.api_keys[0].max_version, int)
    assert_type(decode_response(data, request.max_wait_ms, 12).message, Any)
    answer.message.responsess  # type: ignore[attr-defined]  # noqa: B018
    if isinstance(answer, UnknownMessage):
        assert_type(answer.body, memoryview)
    received = decode_request(data)
    assert_type(received.header.client_id, str | None)
    if isinstance(received.message, FetchRequest):
        assert_type(received.message.topics[0].partitions[0].fetch_offset, int)
    assert_type(message_class("FetchRequest"), type[FetchRequest])
    assert_type(message_class(str(data)), type[Message])
    assert_type(common_versions(ApiVersionsResponse()), dict[ApiKey, int])
    assert_type(decode_fetch(response, request=request)[0].table, kbatch.RecordTable)
    assert_type(aborted_transactions(response.responses[0].partitions[0]), list[tuple[int, int]] | None)
    decode_fetch(request)  # type: ignore[arg-type]
    FetchRequest(max_wait_ms="500")  # type: ignore[arg-type]


def spark(session: SparkSession, frame: DataFrame, schema: StructType, summary: kbatch.ExportSummary) -> None:
    assert_type(kbatch.spark.read_logs(session, "logs", where="offset > 1"), DataFrame)
    assert_type(kbatch.export("logs", "out", engine="spark", isolation="read_committed"), kbatch.ExportSummary)
    assert_type(kbatch.export("logs", "out", engine="local", start="-1h", by_day=True), kbatch.ExportSummary)
    followed = kbatch.follow("logs", "out", available_now=True)
    assert_type(kbatch.follow("logs", "out", commit_interval="1m", topics=["t"]), kbatch.FollowSummary)
    assert_type((followed.commits, followed.lag.bytes), tuple[int, int])
    verified = kbatch.verify_export("out", ["logs"])
    assert_type(kbatch.verify_export("out", "logs", table="db.t"), kbatch.ExportVerification)
    assert_type(verified.findings[0].first_offset, int | None)
    assert_type(summary.partitions, list[kbatch.PartitionSummary])
    assert_type((summary.damaged, summary.exit_status), tuple[bool, int])
    assert_type(summary.batches, dict[kbatch.CodecName, int])
    assert_type(kbatch.spark.register(session), None)
    metrics = kbatch.spark.stream_metrics({})
    assert_type(kbatch.spark.stream_metrics({}), kbatch.spark.StreamMetrics)
    assert_type(metrics.topics, dict[str, kbatch.spark.TopicMetrics])
    assert_type(metrics.topics["orders"].lag_offsets, int | None)
    assert_type(kbatch.spark.spark_session("local[2]").__enter__(), SparkSession)
    assert_type(kbatch.spark.decode_frame(frame, "value"), DataFrame)
    assert_type(kbatch.spark.decode_batches("value"), Callable[[Iterable[Any]], Iterator[Row]])
    assert_type(kbatch.spark.decode_in_arrow("value", keep=schema), kbatch.spark.MapInArrow)
    assert_type(kbatch.spark.KbatchDataSource.name(), str)
    assert_type(kbatch.spark.SparkStartError("message"), kbatch.spark.SparkStartError)
