"""An argument of a wrong type is refused with its name; no error of Python or NumPy from inside reaches the caller."""

from __future__ import annotations

import importlib
import inspect
import linecache
import re
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_origin

import numpy as np
import pytest

import kbatch
from kbatch.arguments import check_types
from kbatch.errors import KbatchError

pytest.importorskip("pyarrow")
pytest.importorskip("pandas")
pytest.importorskip("polars")
pytest.importorskip("google.protobuf")
pytest.importorskip("pyspark")

import argument_cases
import public_api

PACKAGE = Path(kbatch.__file__).parent


class Unknown:
    """A class that no function knows."""


WRONG = [
    None,
    7,
    -7,
    "text",
    b"bytes",
    [1],
    {},
    Unknown(),
    1.5,
    float("nan"),
    10**30,
    True,
    np.arange(3),
    np.array([1, 2], "M8[s]"),
]

# Public classes and functions whose arguments are not checked, with the reason.
RECORD = "it is returned to callers, who do not make it; a constructor of plain fields"
CALLED_BY_SPARK = "Spark calls it"
NOT_CHECKED = {
    **dict.fromkeys(
        (
            "kbatch.Consumer",
            "kbatch.live.ConsumerMetrics",
            "kbatch.live.PartitionLeader",
            "kbatch.live.ReadOrigin",
            "kbatch.live.ServerAddress",
            "kbatch.live.TopicMetadata",
            "kbatch.Loss",
            "kbatch.OpenTransaction",
            "kbatch.RecordTable",
            "kbatch.RewriteReport",
            "kbatch.RewriteReport.add",
            "kbatch.Scan",
            "kbatch.Tail",
            "kbatch.Transactions",
            "kbatch.log.Compaction",
            "kbatch.log.ComparedLog",
            "kbatch.log.ComparedRecord",
            "kbatch.log.MissingOffsets",
            "kbatch.log.Comparison",
            "kbatch.log.Difference",
            "kbatch.log.Written",
            "kbatch.log.PartitionComparison",
            "kbatch.log.LogList",
            "kbatch.protocol.Capture",
            "kbatch.protocol.CapturedExchange",
            "kbatch.protocol.CapturedMessage",
            "kbatch.protocol.Exchange",
            "kbatch.protocol.FetchedPartition",
            "kbatch.protocol.Request",
            "kbatch.protocol.Response",
            "kbatch.protocol.SkippedBytes",
            "kbatch.protocol.UnknownMessage",
            "kbatch.ExportSummary",
            "kbatch.PartitionSummary",
            "kbatch.IndexedLog",
            "kbatch.Report",
            "kbatch.ExportVerification",
            "kbatch.FollowSummary",
            "kbatch.spark.MapInArrow",
            "kbatch.spark.StreamMetrics",
            "kbatch.spark.TopicMetrics",
            "kbatch.values.FieldDeviation",
            "kbatch.values.Parsed",
            "kbatch.values.ParsedValues",
        ),
        RECORD,
    ),
    **dict.fromkeys(
        (
            "kbatch.spark.KbatchDataSource",
            "kbatch.spark.KbatchDataSource.reader",
            "kbatch.spark.KbatchDataSource.streamReader",
            "kbatch.spark.KbatchDataSource.streamWriter",
            "kbatch.spark.KbatchDataSource.writer",
        ),
        CALLED_BY_SPARK,
    ),
    **dict.fromkeys(
        (
            "kbatch.live.TokenProvider",
            "kbatch.live.Transport",
            "kbatch.live.Transport.receive_into",
            "kbatch.live.Transport.send",
            "kbatch.live.Transport.set_timeout",
            "kbatch.live.TransportFactory",
        ),
        "a protocol, which callers implement",
    ),
    "kbatch.live.ClientSettings": "ClientSettings.of checks its arguments and makes it",
    "kbatch.live.connect_socket": "it is called by kbatch, in place of a factory of the caller",
    "kbatch.BatchStatus.damaged": "a mask of a column of the table",
    "kbatch.BatchStatus.sound": "a mask of a column of the table",
    "kbatch.RecordTable.require": "it takes names only, and refuses unknown ones",
    "kbatch.Scan.select": "it takes names only, and refuses unknown ones",
    "kbatch.Segment.listed": "it needs the listing of a storage, which only kbatch makes",
    "kbatch.TimestampType.of": "a column of the table",
    "kbatch.log.LogWriter.append_scanned": "rows that kbatch scanned; append takes bytes of callers",
    "kbatch.log.read_producer_snapshot": "its path is read as by read_transaction_index",
    "kbatch.spark.decode_frame": "it needs a session of Spark; decode_in_arrow checks its options",
    "kbatch.spark.read_logs": "it needs a session of Spark",
    "kbatch.spark.register": "it needs a session of Spark",
    "kbatch.values.Parser": "a protocol",
    "kbatch.values.Parser.parse": "a protocol",
}


def public_callables() -> Iterator[tuple[str, Any]]:
    """Yield functions, classes and methods that have parameters, by name."""
    seen = set()
    for module in public_api.MODULES:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if not callable(value) or value in seen or get_origin(value) is Literal:
                continue
            seen.add(value)
            if not isinstance(value, type):
                yield f"{module}.{name}", value
            elif not issubclass(value, BaseException) and not _is_message(value):
                yield from _methods(f"{module}.{name}", value)


def _is_message(cls: type) -> bool:
    # Fields of messages are checked when the message is written.
    return issubclass(cls, kbatch.protocol.Message)


def _methods(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    if not hasattr(cls, "__members__"):
        yield name, cls
    for owner in cls.__mro__:
        for attribute, value in vars(owner).items() if owner.__module__.startswith("kbatch") else ():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if not attribute.startswith("_") and inspect.isfunction(function):
                yield f"{name}.{attribute}", function


def has_parameters(target: Any) -> bool:
    return bool(inspect.signature(target).parameters.keys() - {"self", "cls"})


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[argument_cases.Case]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("arguments"))
        yield argument_cases.cases()


def test_every_public_callable_has_a_case_or_a_reason(cases: list[argument_cases.Case]) -> None:
    listed = {each.name for each in cases}
    known = {name for name, target in public_callables() if has_parameters(target)}
    assert known - listed - NOT_CHECKED.keys() == set()
    assert NOT_CHECKED.keys() - known == set()
    assert NOT_CHECKED.keys() & listed == set()


def test_valid_calls_succeed(cases: list[argument_cases.Case]) -> None:
    for case in cases:
        positional, named = case.arguments({})
        case.call(*positional, **named)


def is_deliberate(error: Exception) -> bool:
    """Whether a ``raise`` statement of the package raised an error, and not an operation on a value."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(last.filename)
    path = path if path.is_absolute() else PACKAGE.parent / path
    return PACKAGE in path.parents and "raise" in linecache.getline(str(path), last.lineno or 0)


def faults(case: argument_cases.Case, parameter: str, wrong: object) -> list[str]:
    """Return what is wrong with the error for an argument; nothing if the argument is accepted."""
    positional, named = case.arguments({parameter: wrong})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.call(*positional, **named)
    except (KbatchError, IsADirectoryError):
        # A path of no file, or bytes that are not a batch.
        return []
    except (TypeError, ValueError, IndexError) as error:
        message = str(error)
        found = [] if is_deliberate(error) else ["raised by an operation on the value"]
        # An element of `chunks` or `stream` is a chunk.
        names = ["chunk", parameter.removesuffix("s"), case.name.rpartition(".")[2], *case.parameters]
        if not any(re.search(rf"\b{name}", message) for name in names) and str(wrong) not in message:
            found.append("names no parameter")
        is_container = isinstance(wrong, list | dict | np.ndarray)
        if isinstance(error, TypeError) and not is_container and type(wrong).__name__ not in message:
            found += [] if repr(wrong) in message or "got" in message else ["does not say what came"]
        return [f"{each}: {type(error).__name__}: {message}" for each in found]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def test_an_argument_of_a_wrong_type_is_named_in_the_error(cases: list[argument_cases.Case]) -> None:
    found = [
        f"{case.name}({parameter}={wrong!r}): {fault}"
        for case in cases
        for parameter in case.parameters
        for wrong in WRONG
        for fault in faults(case, parameter, wrong)
    ]
    assert not found, "\n".join(found)


# Parameters that take any value.
ANY_VALUE = {
    "kbatch.RecordTable.equals(other)",
    "kbatch.RecordTable.values_as(fill)",
}


def test_no_parameter_accepts_an_object_of_an_unknown_class(cases: list[argument_cases.Case]) -> None:
    accepted = []
    for case in cases:
        for parameter in case.parameters:
            positional, named = case.arguments({parameter: Unknown()})
            try:
                case.call(*positional, **named)
            except Exception:
                continue
            accepted.append(f"{case.name}({parameter})")
    assert set(accepted) <= ANY_VALUE


def read(path: str, threads: int = 1, columns: list[str] | None = None, flag: bool = False) -> None:
    check_types(read, locals())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": 7}, "path must be a str, got int"),
        ({"path": "x", "threads": "2"}, "threads must be an int, got str"),
        ({"path": "x", "threads": True}, "threads must be an int, got bool"),
        ({"path": "x", "threads": np.timedelta64(1, "s")}, "threads must be an int, got timedelta64"),
        ({"path": "x", "flag": 1}, "flag must be a bool, got int"),
    ],
)
def test_the_message_has_the_parameter_the_accepted_types_and_the_type(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        read(**arguments)


def test_integers_beyond_64_bits_are_refused_before_they_reach_a_kernel() -> None:
    with pytest.raises(ValueError, match=r"^threads must be at most 9,223,372,036,854,775,807, got 1,000"):
        read("x", 10**30)


def test_integers_and_booleans_of_numpy_are_accepted() -> None:
    read("x", np.int32(3), flag=np.bool_(True))  # type: ignore[arg-type]
