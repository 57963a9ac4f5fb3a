"""Spark Connect, where the client has no JVM, and errors that stay readable after the JVM has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kbatch.spark", exc_type=ImportError)

import kbatch.spark
from kbatch.spark.driver.kept_errors import keep_readable
from kbatch.spark.driver.session import is_connect

# pyspark-client has none of these, nor py4j.
CLIENT = """
import sys, warnings
warnings.simplefilter("ignore")
for name in ("py4j", "pyspark.core", "pyspark.java_gateway", "pyspark.context", "pyspark.rdd"):
    sys.modules[name] = None
import kbatch.spark
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_imported_with_the_client_of_spark_connect_alone() -> None:
    """The client cannot start Spark; the error states what to do."""
    code = """
print(kbatch.spark.KbatchDataSource({"path": "/data"}).schema().names)
try:
    with kbatch.spark.spark_session():
        pass
except kbatch.MissingDependencyError as error:
    print(error)
"""
    out = run(CLIENT + code)
    assert out.startswith("['key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'timestampType']")
    assert "cannot start Spark" in out
    assert "spark_session('sc://host:15002'), or install PySpark itself: pip install 'kafka-record-batch[spark]'" in out


def test_an_export_over_spark_connect_states_what_to_do(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = r"which Spark Connect does not have: .*kbatch export --master spark://.*read_logs\(spark, path\)\.write"
    with pytest.raises(ValueError, match=message):
        kbatch.spark.export(golden / "logs", tmp_path / "out", master="sc://host:15002")
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert is_connect(remote)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: remote)
    with pytest.raises(ValueError, match=message):
        kbatch.spark.export(golden / "logs", tmp_path / "out")
    with kbatch.spark.spark_session() as active:
        assert active is remote


class Origin:
    """A reference to an object of the JVM."""

    alive = True


class Captured(Exception):
    """An exception as PySpark makes it: its texts are in the JVM."""

    def __str__(self) -> str:
        assert Origin.alive
        return "the text"

    def getCondition(self) -> str:
        assert Origin.alive
        return "CONDITION"

    def getMessageParameters(self) -> dict[str, str]:
        raise RuntimeError("there are none")


Captured.__module__ = "pyspark.errors.exceptions.captured"


def test_errors_keep_their_texts_and_class(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("of a caller")
    error.__cause__ = Captured()
    error.__cause__.__context__ = error
    keep_readable(error)
    monkeypatch.setattr(Origin, "alive", False)
    kept: Any = error.__cause__
    assert isinstance(kept, Captured)
    assert (str(kept), kept.getCondition(), type(kept).__name__) == ("the text", "CONDITION", "Captured")
    assert type(error) is ValueError


@pytest.mark.spark
def test_an_error_that_leaves_a_session_is_readable() -> None:
    """The session's JVM has ended when the caller reads the text."""
    code = """
import warnings
warnings.simplefilter("ignore")
from pyspark.errors import AnalysisException
import kbatch.spark
try:
    with kbatch.spark.spark_session("local[1]") as spark:
        spark.sql("SELECT nosuch FROM range(3)")
except AnalysisException as error:
    print(type(error).__name__, error.getCondition() if hasattr(error, "getCondition") else error.getErrorClass())
    print(str(error).splitlines()[0])
"""
    out = run(code)
    assert out.startswith("AnalysisException UNRESOLVED_COLUMN")
    assert "`nosuch` cannot be resolved" in out
