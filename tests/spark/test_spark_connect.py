"""Spark Connect, where the client has no JVM, and errors that stay readable after the JVM has ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kbatch.spark", exc_type=ImportError)

import kbatch
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


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], str]:
    """Run a script, and return its output. PySpark takes ``python -c`` for a doctest."""

    def output_of(code: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return output_of


def test_the_package_is_imported_with_the_client_of_spark_connect_alone(run: Callable[[str], str]) -> None:
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
    assert "spark_session('sc://host:15002'), or install PySpark itself with the extra 'spark': " in out


def test_an_export_over_spark_connect_states_what_to_do(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = r"which Spark Connect does not have: .*kbatch export --master spark://.*read_logs\(spark, path\)\.write"
    with pytest.raises(ValueError, match=message):
        kbatch.export(golden / "logs", tmp_path / "out", engine="spark", master="sc://host:15002")
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert is_connect(remote)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: remote)
    with pytest.raises(ValueError, match=message):
        kbatch.export(golden / "logs", tmp_path / "out", engine="spark")
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

    def getErrorClass(self) -> str:
        warnings.warn("use getCondition instead", FutureWarning, stacklevel=2)
        return "CONDITION"


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
    # Its warning about a deprecated method is not shown.
    assert kept.getErrorClass() == "CONDITION"
    assert type(error) is ValueError


@pytest.mark.spark
def test_an_error_that_leaves_a_session_is_readable(retried: tuple[Path, dict[str, Any]]) -> None:
    """The session's JVM has ended when the caller reads the text."""
    kind, condition, text = retried[1]["error"]
    assert (kind, condition.split(".")[0]) == ("AnalysisException", "UNRESOLVED_COLUMN")
    assert "`nosuch` cannot be resolved" in text.splitlines()[0]


# -- with a server and pyspark-client in an environment of its own: KBATCH_TEST_ALL=1, as in .ci/long

SERVER = """
import sys, warnings
warnings.simplefilter("ignore")
import kbatch.spark
settings = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin", "spark.connect.grpc.binding.port": PORT}
with kbatch.spark.spark_session("local[2]", conf=settings):
    print("ready", flush=True)
    sys.stdin.read()
"""
# pyspark-client needs no py4j and no Java.
CLIENT_PACKAGES = ("grpcio", "grpcio-status", "googleapis-common-protos", "pandas", "pyarrow", "zstandard")
CALLS = """
import warnings
warnings.simplefilter("ignore")
import kbatch
from kbatch.spark import decode_frame, read_logs, register, spark_session
with spark_session(f"sc://localhost:{PORT}") as spark:
    register(spark)
    print(spark.read.format("kbatch").option("subscribe", "txn").load(ROOT).count())
    where = "topic = 'txn' AND offset BETWEEN 100 AND 200"
    print(read_logs(spark, ROOT, where=where, columns=["offset"]).count())
    spark.sql(f"CREATE TEMPORARY VIEW v USING kbatch OPTIONS (path '{ROOT}', subscribe 'txn')")
    print(spark.sql("SELECT count(*) FROM v").collect()[0][0])
    data = open(f"{ROOT}/codec-zstd-0/00000000000000000000.log", "rb").read()
    print(decode_frame(spark.createDataFrame([(bytearray(data),)], "bytes binary"), "bytes").count())
    try:
        kbatch.export(ROOT, "/nowhere")
    except ValueError as error:
        print(error)
"""

if os.environ.get("KBATCH_TEST_ALL"):

    @pytest.mark.spark
    def test_pyspark_client_reads_logs_from_a_server(golden: Path, tmp_path: Path) -> None:
        environment = tmp_path / "client"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        own = ("numpy", "lz4", "cramjam", "crc32c", "typing_extensions")
        # The client may be released later than the server.
        pip = [
            environment / "bin" / "python",
            "-m",
            "pip",
            "install",
            "-q",
            "pyspark-client>=4.0",
            *CLIENT_PACKAGES,
            *own,
        ]
        subprocess.run(pip, check=True)
        (packages,) = environment.glob("lib/python*/site-packages")
        (packages / "kbatch.pth").write_text(str(Path(kbatch.__file__).parents[1]))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for name, code in (("server.py", SERVER), ("client.py", CALLS)):
            (tmp_path / name).write_text(f"PORT = '{port}'\nROOT = {str(golden / 'logs')!r}\n{code}")
        command = [sys.executable, tmp_path / "server.py"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            command = [environment / "bin" / "python", tmp_path / "client.py"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
            server.communicate()
        assert done.returncode == 0, done.stderr
        counts = done.stdout.splitlines()
        assert counts[:4] == ["337", "90", "337", "1847"]
        assert "which Spark Connect does not have" in counts[4]
