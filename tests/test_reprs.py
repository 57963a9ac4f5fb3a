"""Every public object has a short representation without a memory address; `dir(kbatch)` lists the public names."""

from __future__ import annotations

import importlib
import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from golden_logs import LOGS
from public_api import MODULES

import kbatch
import kbatch.log
import kbatch.protocol
import kbatch.spark
import kbatch.values
from kbatch.log.files.internal_topics import ConsumerOffsets, TransactionStates
from kbatch.plan.read_options import ReadOptions
from kbatch.sinks.write_options import WriteOptions

LOSSES = [kbatch.Loss(position, 100, "reason " * 50, position) for position in range(5000)]
ROWS = pa.table({f"column {number}": range(1000) for number in range(50)})


def table(count: int = 5000) -> kbatch.RecordTable:
    return kbatch.decode(kbatch.encode([b'{"number": 1, "text": "abc"}', b"bad"] * (count // 2), timestamps=0))


def fed() -> kbatch.StreamDecoder:
    decoder = kbatch.StreamDecoder()
    decoder.feed(kbatch.encode([b"v"], timestamps=0))
    return decoder


def written() -> kbatch.BatchWriter:
    writer = kbatch.BatchWriter(io.BytesIO())
    writer.append(b"v")
    return writer


OBJECTS: dict[str, Callable[[], Any]] = {
    "RecordTable": table,
    "ParsedValues": lambda: table().values_json(pa.struct([(f"field {n}", pa.int64()) for n in range(60)])),
    "Parsed": lambda: kbatch.values.TextParser().parse(pa.array([b"text"] * 1000)),
    "JsonParser": lambda: kbatch.values.JsonParser(pa.struct([(f"field {n}", pa.int64()) for n in range(500)])),
    "AvroParser": lambda: kbatch.values.AvroParser(
        {"type": "record", "name": "r", "fields": [{"name": f"f{n}", "type": "long"} for n in range(500)]}
    ),
    "FixedParser": lambda: kbatch.values.FixedParser(">i8"),
    "TextParser": kbatch.values.TextParser,
    "Transactions": lambda: kbatch.Transactions(
        np.zeros(5000, kbatch.ABORTED_DTYPE), [kbatch.OpenTransaction(n, n) for n in range(5000)], 0
    ),
    "OpenTransaction": lambda: kbatch.OpenTransaction(1, 2),
    "RewriteReport": lambda: kbatch.RewriteReport(damage=LOSSES),
    "Compaction": lambda: kbatch.log.Compaction(damage=LOSSES),
    "BatchWriter": written,
    "StreamDecoder": fed,
    "SequenceChecker": kbatch.SequenceChecker,
    "MessageSplitter": kbatch.protocol.MessageSplitter,
    "Log": lambda: kbatch.Log(LOGS / "txn-0"),
    "LogList": lambda: kbatch.log.LogList([kbatch.Log(LOGS / "txn-0")] * 1000),
    "Segment": lambda: kbatch.Log(LOGS / "txn-0").segments[0],
    "Tail": lambda: kbatch.Log(LOGS / "txn-0").incomplete_tail,
    "Limits": kbatch.Limits,
    "Loss": lambda: LOSSES[0],
    "TopicConfig": kbatch.TopicConfig,
    "ConsumerOffsets": lambda: ConsumerOffsets(ROWS, ROWS, dict.fromkeys(range(1000), 1)),
    "TransactionStates": lambda: TransactionStates(ROWS, {}),
    "Request": lambda: kbatch.protocol.FetchRequest(),
    "MessageSchema": lambda: kbatch.protocol.FetchResponse.schema,
    "ExportSummary": lambda: kbatch.ExportSummary("in", "out", losses=[{"position": 1}] * 999, files=["f"] * 999),
    "PartitionSummary": lambda: kbatch.PartitionSummary("t", 0, open_transactions=[{"producer_id": 1}] * 999),
    "ReadOptions": lambda: ReadOptions(topics=tuple(f"topic-{number}" for number in range(999))),
    "WriteOptions": lambda: WriteOptions(compression="zstd:3"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_the_repr_has_at_most_ten_lines_and_no_address(name: str) -> None:
    text = repr(OBJECTS[name]())
    assert len(text) <= 1200
    assert len(text.splitlines()) <= 10
    assert " at 0x" not in text
    assert name in text


@pytest.mark.parametrize(
    "module", [kbatch, kbatch.log, kbatch.values, kbatch.protocol], ids=lambda module: module.__name__
)
def test_every_public_class_has_a_repr_of_its_own(module: Any) -> None:
    classes = [each for name in module.__all__ if inspect.isclass(each := getattr(module, name))]
    assert classes
    protocols = {kbatch.values.Parser}
    assert [each.__name__ for each in classes if each.__repr__ is object.__repr__ and each not in protocols] == []


def test_reprs_agree_in_number(tmp_path: Path) -> None:
    assert repr(fed()) == "<StreamDecoder at byte 0: 69 bytes pending, 1 complete batch>"
    assert repr(written()) == "<BatchWriter at offset 1: 1 record pending, 0 bytes written>"
    assert repr(table(2)) == "<RecordTable: 2 records in 1 batch>"
    assert repr(kbatch.SequenceChecker()) == "<SequenceChecker: 0 producers>"
    with kbatch.log.LogWriter(tmp_path / "t-0") as writer:
        writer.append(kbatch.encode([b"v"], timestamps=0))
        assert repr(writer) == "<LogWriter at offset 1: 1 segment, 69 bytes>"
    parsed = table().values_json(pa.struct([("number", pa.int64())]))
    assert repr(parsed).startswith(
        "<ParsedValues of value: 5,000 records of type struct<number: int64>, 2,500 bad, first: "
    )


def test_dir_lists_the_public_names() -> None:
    packages = {"live", "log", "protocol", "spark", "values"}
    assert {*kbatch.__all__} <= {*dir(kbatch)} <= {*kbatch.__all__} | packages
    assert all(hasattr(kbatch, name) for name in dir(kbatch))


@pytest.mark.parametrize("name", MODULES[1:])
def test_dir_of_every_public_package_lists_its_public_names_only(name: str) -> None:
    if name == "kbatch.spark":
        pytest.importorskip("pyspark")
    module = importlib.import_module(name)
    assert {*dir(module)} == {*module.__all__}
    assert all(hasattr(module, each) for each in dir(module))
