"""A valid call of each public function and constructor, and the public callables whose arguments are not checked."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scripted_broker import ScriptedCluster, ScriptedPartition

import kbatch
import kbatch.live
import kbatch.log
import kbatch.protocol
import kbatch.values
from kbatch.log.read_arguments import ReadArguments

TEXT = [b'{"a": 1}'] * 3
DATA = kbatch.encode(TEXT, keys=[b"k"] * 3, timestamps=1000, headers=[[("h", b"v")]] * 3)
SEGMENT = f"{0:020}.log"


class Case(NamedTuple):
    """A call. `target` has the signature; `valid` makes the required arguments, and others that the call needs."""

    name: str
    target: Callable[..., Any]
    call: Callable[..., Any]
    valid: dict[str, Callable[[], Any]]

    def arguments(self, changed: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the named arguments, with some of them replaced."""
        given = {name: make() for name, make in self.valid.items()} | changed
        positional = [
            given.pop(each.name)
            for each in inspect.signature(self.target).parameters.values()
            if each.kind is each.POSITIONAL_ONLY and each.name in given
        ]
        return positional, given

    @property
    def parameters(self) -> list[str]:
        # The options of `**options` are tested with the functions that have them as parameters, such as `Log.tables`.
        target = inspect.unwrap(self.target)
        named = [
            each.name
            for each in inspect.signature(target).parameters.values()
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name not in ("self", "cls")
        ]
        return [*named, *(name for name in self.valid if name not in named)]


def _listed(result: Any) -> Any:
    """Read a generator, whose errors come with its first element."""
    return list(itertools.islice(result, 3)) if isinstance(result, Iterator) else result


_CASES: list[Case] = []


def _case(name: str, target: Callable[..., Any], /, **valid: Callable[[], Any]) -> None:
    _CASES.append(Case(name, target, lambda *args, **given: _listed(target(*args, **given)), valid))


def _method(name: str, make: Callable[[], Any], /, **valid: Callable[[], Any]) -> None:
    """Add a method; `make` makes an object for each call."""
    attribute = name.rpartition(".")[2]

    def call(*args: Any, **given: Any) -> Any:
        return _listed(getattr(make(), attribute)(*args, **given))

    _CASES.append(Case(name, getattr(make(), attribute), call, valid))


def _table() -> kbatch.RecordTable:
    return kbatch.decode(DATA)


_numbers = itertools.count()


def _out() -> str:
    return f"out{next(_numbers)}-0"


def _batch_cases() -> None:
    values: dict[str, Callable[[], Any]] = {"values": lambda: TEXT}
    _case("kbatch.decode", kbatch.decode, data=lambda: DATA)
    _case("kbatch.decode_stream", kbatch.decode_stream, stream=lambda: io.BytesIO(DATA))
    _case("kbatch.scan", kbatch.scan, data=lambda: DATA)
    _case("kbatch.encode", kbatch.encode, **values)
    _case("kbatch.encode_table", kbatch.encode_table, table=_table)
    _case("kbatch.encode_empty", kbatch.encode_empty, base_offset=lambda: 1, last_offset=lambda: 2)
    _case(
        "kbatch.encode_marker",
        kbatch.encode_marker,
        kind=lambda: "commit",
        producer_id=lambda: 1,
        producer_epoch=lambda: 0,
    )
    _case("kbatch.convert", kbatch.convert, data=lambda: DATA)
    _case("kbatch.recompress", kbatch.recompress, data=lambda: DATA, codec=lambda: "gzip")
    _case("kbatch.concat_tables", kbatch.concat_tables, tables=lambda: [_table()])
    _case("kbatch.control_records", kbatch.control_records, table=_table)
    _case("kbatch.accept_batch", kbatch.accept_batch, data=lambda: DATA, base_offset=lambda: 0)
    _case("kbatch.validate_batch", kbatch.validate_batch, data=lambda: DATA)
    _case("kbatch.assign_offsets", kbatch.assign_offsets, data=lambda: bytearray(DATA), base_offset=lambda: 0)
    _case("kbatch.Limits", kbatch.Limits)
    _case("kbatch.TopicConfig", kbatch.TopicConfig)
    _method("kbatch.TopicConfig.codec_of", kbatch.TopicConfig, source=lambda: 1)
    _case("kbatch.SequenceChecker", kbatch.SequenceChecker)
    for name in ("check", "refusals"):
        _method(f"kbatch.SequenceChecker.{name}", kbatch.SequenceChecker, batches=_table)
    _case("kbatch.StreamDecoder", kbatch.StreamDecoder)
    _method("kbatch.StreamDecoder.feed", kbatch.StreamDecoder, chunk=lambda: DATA)
    _method("kbatch.StreamDecoder.read_from", kbatch.StreamDecoder, readinto=lambda: io.BytesIO(DATA).readinto)
    _method("kbatch.StreamDecoder.tables", kbatch.StreamDecoder, chunks=lambda: [DATA])
    _case("kbatch.BatchWriter", kbatch.BatchWriter, file=io.BytesIO)
    _method("kbatch.BatchWriter.append", lambda: kbatch.BatchWriter(io.BytesIO()), value=lambda: b"v")
    _method("kbatch.BatchWriter.append_many", lambda: kbatch.BatchWriter(io.BytesIO()), **values)


def _table_cases() -> None:
    valid: dict[str, dict[str, Callable[[], Any]]] = {
        "equals": {"other": _table},
        "head": {},
        "headers_of": {"row": lambda: 0},
        "key": {"row": lambda: 0},
        "select": {"columns": lambda: ["offset"]},
        "to_arrow": {},
        "to_pandas": {},
        "to_polars": {},
        "value": {"row": lambda: 0},
        "values_as": {"dtype": lambda: "S8"},
        "values_avro": {"schema": lambda: '{"type": "long"}'},
        "values_json": {},
        "values_protobuf": {"descriptors": _descriptors},
        "values_struct": {"dtype": lambda: "S8"},
        "values_text": {},
    }
    for name, given in valid.items():
        _method(f"kbatch.RecordTable.{name}", _table, **given)


def _descriptors() -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.empty_pb2 import DESCRIPTOR

    found = FileDescriptorSet()
    DESCRIPTOR.CopyToProto(found.file.add())
    return found.SerializeToString()


def _live_cases() -> None:
    made = ScriptedPartition()
    made.write(TEXT)
    live: dict[str, Callable[[], Any]] = {
        "topics": lambda: "orders",
        "transport": lambda: ScriptedCluster(orders=[made]).connect,
        "bootstrap_servers": lambda: "broker-1",
    }
    _case("kbatch.consume", kbatch.consume, **live)
    settings = kbatch.live.ClientSettings.of(bootstrap_servers="broker-1")
    _case(
        "kbatch.log.backup_topics",
        kbatch.log.backup_topics,
        source=lambda: kbatch.live.ClusterSource(settings, transport=live["transport"]()),
        out=_out,
        topics=lambda: "orders",
    )
    _case("kbatch.live.Cluster", kbatch.live.Cluster, settings=lambda: settings, transport=live["transport"])
    _case(
        "kbatch.live.ClusterSource",
        kbatch.live.ClusterSource,
        settings=lambda: settings,
        history=lambda: ["."],
        storage_options=dict,
    )
    _method(
        "kbatch.live.ClusterSource.open",
        lambda: kbatch.live.ClusterSource(settings),
        arguments=lambda: ReadArguments.of(None, {}),
    )
    _method("kbatch.live.Cluster.topics", lambda: kbatch.live.Cluster(settings, transport=live["transport"]()))
    _method(
        "kbatch.live.Cluster.offsets",
        lambda: kbatch.live.Cluster(settings, transport=live["transport"]()),
        wanted=lambda: {("orders", 0): -1},
    )
    _case("kbatch.live.ClientSettings.of", kbatch.live.ClientSettings.of, bootstrap_servers=lambda: "broker-1")
    _case("kbatch.live.BearerToken", kbatch.live.BearerToken, value=lambda: "token")
    for name in ("reader", "to_arrow", "to_pandas", "to_polars"):
        _method(f"kbatch.Consumer.{name}", lambda: kbatch.consume(**{name: make() for name, make in live.items()}))


def _statistics_cases(log: str) -> None:
    module = kbatch.log
    _case("kbatch.log.log_statistics", module.log_statistics, log=lambda: kbatch.Log(log))
    _case("kbatch.log.LogStatistics", module.LogStatistics, decoded=lambda: True)
    _case("kbatch.log.StatisticsSums", module.StatisticsSums)
    _case("kbatch.log.sum_statistics", module.sum_statistics, logs=lambda: [])


def _log_cases(log: str) -> None:
    module = kbatch.log
    segment = os.path.join(log, SEGMENT)

    def exported() -> str:
        return kbatch.export(log, _out(), engine="local").out

    _case("kbatch.Log", kbatch.Log, path=lambda: log)
    _method("kbatch.Log.tables", lambda: kbatch.Log(log))
    _method("kbatch.Log.transactions", lambda: kbatch.Log(log))
    _method("kbatch.Log.offset_for_timestamp", lambda: kbatch.Log(log), timestamp=lambda: 1_000_000_000_000)
    for name in ("reader", "head", "tail", "count", "to_arrow", "to_pandas", "to_polars"):
        _method(f"kbatch.Log.{name}", lambda: kbatch.Log(log))
        _method(f"kbatch.log.LogList.{name}", lambda: kbatch.find_logs(log))
    _method("kbatch.log.LogList.tables", lambda: kbatch.find_logs(log))
    _case("kbatch.find_logs", kbatch.find_logs, root=lambda: log)
    _case("kbatch.export", kbatch.export, logdir=lambda: log, out=_out, engine=lambda: "local")
    following = {"engine": lambda: "local", "available_now": lambda: True}
    _case("kbatch.follow", kbatch.follow, logdir=lambda: log, out=_out, **following)
    _case("kbatch.verify_export", kbatch.verify_export, out=exported, against=lambda: log)
    _case("kbatch.scan_logs", kbatch.scan_logs, source=lambda: log)
    _case("kbatch.index_logs", kbatch.index_logs, source=lambda: log, index=_out)
    _case("kbatch.write_report", kbatch.write_report, source=lambda: log, out=_out)
    for name in ("reader", "head", "tail", "to_arrow", "to_pandas"):
        _method(f"kbatch.Scan.{name}", lambda: kbatch.scan_logs(log))
    _method("kbatch.Scan.filter", lambda: kbatch.scan_logs(log), condition=lambda: pc.field("offset") >= 0)
    _case("kbatch.Segment", kbatch.Segment, path=lambda: segment)
    needed: dict[str, dict[str, Callable[[], Any]]] = {
        "window": {"start": lambda: 0, "stop": lambda: 9},
        "scan": {},
        "seek_offset": {"offset": lambda: 0},
        "seek_timestamp": {"timestamp": lambda: 1_000_000_000_000},
        "end_for_offset": {"offset": lambda: 0},
        "last_batch": {},
        "has": {"suffix": lambda: ".index"},
        "sibling": {"suffix": lambda: ".index"},
    }
    for name, given in needed.items():
        _method(f"kbatch.Segment.{name}", lambda: kbatch.Segment(segment), **given)
    _case(
        "kbatch.log.write_log", module.write_log, root=_out, frame=lambda: pa.table({"value": ["v"]}), topic=lambda: "t"
    )
    _case("kbatch.log.convert_log", module.convert_log, log=lambda: log, out=_out)
    _case("kbatch.log.recompress_log", module.recompress_log, log=lambda: log, out=_out, codec=lambda: "zstd")
    _case("kbatch.log.compact_log", module.compact_log, log=lambda: log, out=_out)
    _case("kbatch.log.compare_logs", module.compare_logs, a=lambda: log, b=lambda: log)
    _case("kbatch.log.roll_back", module.roll_back, root=lambda: log)
    for name in (
        "cluster_metadata",
        "consumer_offsets",
        "group_records",
        "metadata_records",
        "remote_log_metadata",
        "share_group_state",
        "transaction_state",
    ):
        _case(f"kbatch.log.{name}", getattr(module, name), table=lambda: kbatch.decode(b""))
    _case("kbatch.log.control_value", module.control_value, type_id=lambda: 0, value=lambda: bytes(6))
    files = {
        "read_leader_epochs": b"0\n1\n0 0\n",
        "read_meta_properties": b"version=1\nnode.id=3\n",
        "read_offset_checkpoint": b"0\n1\nt 0 3\n",
        "read_partition_metadata": b"version: 0\ntopic_id: a2J0Y2gtdGVzdHMtYmtyZw\n",
        "read_transaction_index": b"",
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
        _case(f"kbatch.log.{name}", getattr(module, name), path=lambda name=name: name)
    _case("kbatch.log.LogWriter", module.LogWriter, directory=_out)
    aborted = np.zeros(0, kbatch.ABORTED_DTYPE)
    methods: dict[str, dict[str, Callable[[], Any]]] = {
        "append": {"data": lambda: DATA},
        "append_aborted": {"aborted": lambda: aborted},
        "roll": {},
        "write_file": {"name": lambda: "partition.metadata", "data": lambda: b"version: 0"},
    }
    for name, given in methods.items():
        _CASES.append(Case(f"kbatch.log.LogWriter.{name}", getattr(module.LogWriter, name), _written(name), given))


def _written(name: str) -> Callable[..., Any]:
    """Return a call of a method of a `LogWriter` whose files are removed afterwards."""

    def call(**given: Any) -> None:
        writer = kbatch.log.LogWriter(_out(), sync=False)
        try:
            getattr(writer, name)(**given)
        finally:
            writer.discard()

    return call


def _value_cases() -> None:
    module = kbatch.values
    column: dict[str, Callable[[], Any]] = {"column": lambda: pa.array(TEXT)}
    _case("kbatch.values.AvroParser", module.AvroParser, schema=lambda: '{"type": "long"}')
    _case("kbatch.values.FixedParser", module.FixedParser, dtype=lambda: "S8")
    _case("kbatch.values.JsonParser", module.JsonParser, type=lambda: pa.struct({"a": pa.int64()}))
    _case("kbatch.values.ProtobufParser", module.ProtobufParser, descriptors=_descriptors)
    _method("kbatch.values.AvroParser.parse", lambda: module.AvroParser('{"type": "long"}'), **column)
    _method("kbatch.values.FixedParser.parse", lambda: module.FixedParser("S8"), **column)
    _method("kbatch.values.JsonParser.parse", lambda: module.JsonParser(pa.struct({"a": pa.int64()})), **column)
    _method("kbatch.values.ProtobufParser.parse", lambda: module.ProtobufParser(_descriptors()), **column)
    _method("kbatch.values.TextParser.parse", module.TextParser, **column)
    _case("kbatch.values.infer_json", module.infer_json, samples=lambda: TEXT)
    _method("kbatch.values.ParsedValues.to_arrow", lambda: _table().values_text())
    _method(
        "kbatch.values.ParsedValues.of",
        lambda: module.ParsedValues,
        table=_table,
        on=lambda: "value",
        parser=module.TextParser,
    )


def _conversation_with_a_request() -> Any:
    conversation = kbatch.protocol.Conversation()
    request = kbatch.protocol.encode_request(kbatch.protocol.MetadataRequest(topics=None), 1, framed=False)
    conversation.request(b"".join(bytes(each) for each in request))
    return conversation


def _protocol_cases() -> None:
    module = kbatch.protocol
    request = b"".join(
        bytes(each) for each in module.encode_request(module.MetadataRequest(topics=None), 1, framed=False)
    )
    response = b"".join(bytes(each) for each in module.encode_response(module.MetadataResponse(), 1, framed=False))
    _case("kbatch.protocol.decode_request", module.decode_request, data=lambda: request)
    _case(
        "kbatch.protocol.decode_response",
        module.decode_response,
        data=lambda: response,
        api_key=lambda: 3,
        version=lambda: 1,
    )
    _case(
        "kbatch.protocol.decode_message",
        module.decode_message,
        cls=lambda: module.MetadataRequest,
        data=lambda: bytes(4),
        version=lambda: 1,
    )
    written: dict[str, Callable[[], Any]] = {
        "message": lambda: module.MetadataRequest(topics=None),
        "version": lambda: 1,
    }
    for name in ("encode_message", "encode_request"):
        _case(f"kbatch.protocol.{name}", getattr(module, name), **written)
    _case(
        "kbatch.protocol.encode_response",
        module.encode_response,
        message=lambda: module.MetadataResponse(),
        version=lambda: 1,
    )
    _case("kbatch.protocol.message_class", module.message_class, name=lambda: "MetadataRequest")
    _case("kbatch.protocol.split_messages", module.split_messages, data=lambda: bytes([0, 0, 0, 1, 7]))
    _case("kbatch.protocol.MessageSplitter", module.MessageSplitter)
    _method("kbatch.protocol.MessageSplitter.feed", module.MessageSplitter, chunk=lambda: bytes([0, 0, 0, 1, 7]))
    _case("kbatch.protocol.Conversation", module.Conversation)
    _method("kbatch.protocol.Conversation.request", module.Conversation, data=lambda: request)
    _method("kbatch.protocol.Conversation.expects", module.Conversation, correlation_id=lambda: 1)
    _method("kbatch.protocol.Conversation.response", _conversation_with_a_request, data=lambda: response)
    _case(
        "kbatch.protocol.read_capture",
        module.read_capture,
        path=lambda: str(Path(__file__).parents[1] / "golden" / "protocol" / "orders.pcap"),
    )
    _case("kbatch.protocol.decode_fetch", module.decode_fetch, response=lambda: module.FetchResponse())
    _case(
        "kbatch.protocol.aborted_transactions",
        module.aborted_transactions,
        partition=lambda: module.FetchResponse.PartitionData(),
    )
    _case("kbatch.protocol.common_versions", module.common_versions, response=lambda: module.ApiVersionsResponse())


def _spark_cases() -> None:
    from kbatch import spark as module

    for name in ("decode_batches", "decode_in_arrow"):
        _case(f"kbatch.spark.{name}", getattr(module, name))
    # Wrong arguments have to be refused before Java starts.
    source = {"description": "v2.python.PythonMicroBatchStream@1", "numInputRows": 1}
    source |= {"startOffset": None, "endOffset": {"t": {"0": 1}}, "latestOffset": None}
    _case(
        "kbatch.spark.stream_metrics", module.stream_metrics, progress=lambda: {"durationMs": {}, "sources": [source]}
    )
    call = _until_java(module.spark_session)
    _CASES.append(Case("kbatch.spark.spark_session", module.spark_session, call, {}))


class Reached(Exception):
    """A call got as far as the start of Java."""


def _until_java(function: Callable[..., Any]) -> Callable[..., Any]:
    def stop() -> None:
        raise Reached

    def call(**given: Any) -> None:
        with mock.patch("kbatch.spark.driver.session.ensure_java", stop), contextlib.suppress(Reached):
            found = function(**given)
            if hasattr(found, "__enter__"):
                found.__enter__()

    return call


def cases() -> list[Case]:
    """Return the calls; the current directory takes their files."""
    log = "logs/t-0"
    os.makedirs(log)
    Path(log, SEGMENT).write_bytes(DATA)
    _CASES.clear()
    _batch_cases()
    _table_cases()
    _log_cases(log)
    _statistics_cases(log)
    _live_cases()
    _value_cases()
    _protocol_cases()
    _spark_cases()
    return list(_CASES)
