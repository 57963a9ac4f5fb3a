"""The Spark session of a command: local by default, without log output, and stopped when the command ends."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyspark.util
from pyspark.sql import SparkSession

from kbatch.arguments import check_types
from kbatch.errors import KbatchError, MissingDependencyError
from kbatch.extras import extra_hint, package_command
from kbatch.interrupts import HeldInterrupts
from kbatch.public_names import public_in
from kbatch.publishing import WorkDirectory, remove_abandoned
from kbatch.spark.driver.java import ensure_java, local_java_options
from kbatch.spark.driver.kept_errors import keep_readable
from kbatch.unfinished import forget_unfinished, register_unfinished

__all__ = ["SparkStartError", "active_session", "is_connect", "spark_session"]

# Seconds that a JVM has to end by itself.
_GRACE = 10.0
# The names of scratch directories, as `tempfile.mkdtemp` makes them.
_SCRATCH_PREFIX = "kbatch-spark-"
_SCRATCH = re.compile(_SCRATCH_PREFIX + "[a-z0-9_]{8}")


@public_in("kbatch.spark")
class SparkStartError(KbatchError):
    """Spark could not be started."""


@public_in("kbatch.spark")
@contextlib.contextmanager
def spark_session(
    master: str | None = None, *, app_name: str = "kbatch", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield the active session, or else start one and stop it afterwards, with its JVM and workers.

    Parameters
    ----------
    master : str, optional
        Spark's master URL; None is the active session, or else ``local[*]``. The URL of a Spark Connect server,
        ``sc://host:port``, makes a session with it.
    app_name : str
        The name of the application in Spark.
    conf : mapping of str to str, optional
        Spark's settings, such as ``{"spark.executor.memory": "4g"}``. They override the defaults.

    Yields
    ------
    SparkSession
        A new session has no web UI, the time zone UTC, this interpreter for its workers, and no log on the terminal. A
        session of Spark Connect has the settings of its server, and `conf`.

    Raises
    ------
    MissingDependencyError
        If there is no Java that Spark can use, or only ``pyspark-client``, which cannot start Spark.
    SparkStartError
        If Spark did not start; the message has the error that it logged.
    ValueError
        If a master or settings are given and a session is active: a process can have only one.

    Examples
    --------
    >>> from kbatch.spark import spark_session
    >>> with spark_session("local[1]") as spark:  # doctest: +SKIP
    ...     spark.range(3).count()
    3
    """
    check_types(spark_session, locals())
    active = active_session()
    if active is not None:
        if master is not None:
            raise ValueError("a Spark session is active in this process, so its master cannot be changed")
        if conf:
            raise ValueError("a Spark session is active in this process, so its settings cannot be changed")
        yield active
        return
    if master is not None and master.startswith("sc://"):
        with _connect_session(master, app_name, conf or {}) as spark:
            yield spark
        return
    _require_jvm()
    ensure_java()
    with (
        _scratch_directory() as scratch,
        Path(scratch, "spark.log").open("wb") as sink,
        _own_session(master, app_name, conf or {}, scratch, sink) as spark,
    ):
        yield spark


def active_session() -> SparkSession | None:
    """Return the active session, if there is one."""
    try:
        return SparkSession.getActiveSession()
    except ImportError:
        # Without a JVM and without the packages of Spark Connect there can be none.
        return None


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, which has no RDDs and no JVM in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextlib.contextmanager
def _scratch_directory() -> Iterator[str]:
    """Yield a directory for the files of a session, and first remove those of runs that were killed."""
    remove_abandoned(tempfile.gettempdir(), _SCRATCH)
    work = WorkDirectory(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX))
    work.lock(0o700)
    register_unfinished(work, work.remove)
    try:
        yield work.path
    finally:
        work.remove()
        forget_unfinished(work)


def _require_jvm() -> None:
    """Raise if only ``pyspark-client`` is installed; PySpark 3.5 has no such package."""
    is_remote_only = getattr(pyspark.util, "is_remote_only", None)
    if is_remote_only is not None and is_remote_only():
        raise MissingDependencyError(
            "this PySpark is a client of Spark Connect, which cannot start Spark: connect to a server with "
            f"spark_session('sc://host:15002'), or install PySpark itself with {extra_hint('spark')}"
        )


@contextlib.contextmanager
def _connect_session(url: str, app_name: str, given: Mapping[str, str]) -> Iterator[SparkSession]:
    builder: Any = SparkSession.builder
    try:
        spark = builder.remote(url).appName(app_name).create()
    except ImportError as error:
        raise MissingDependencyError(
            f"Spark Connect needs packages that are not installed ({error}): "
            f"{package_command('pyspark[connect]')}, or pyspark-client"
        ) from error
    try:
        for key, value in given.items():
            spark.conf.set(key, value)
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _own_session(
    master: str | None, app_name: str, given: Mapping[str, str], scratch: str, sink: IO[bytes]
) -> Iterator[SparkSession]:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    # By default, workers run the `python3` of the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False)
    master = master or "local[*]"
    conf.setMaster(master).setAppName(app_name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Workers start with the current directory on their path: in a source tree, its uncompiled package would be
        # imported there instead of the installed one.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        **local_java_options(master, given),
        **given,
    }
    for key, value in settings.items():
        conf.set(key, value)
    # Spark's log, Java's warnings and the workers write to the JVM's standard error. One line of it is shown if no
    # session starts.
    process: subprocess.Popen[bytes] | None = None
    gateway: Any = None
    try:
        try:
            # An interrupt while the JVM starts would leave it running.
            with HeldInterrupts():
                launch: Callable[..., Any] = launch_gateway
                gateway = launch(conf, popen_kwargs={"stdout": sink, "stderr": sink})
                process = gateway.proc
                context = SparkContext(conf=conf, gateway=gateway)
                spark = SparkSession(context)
        except Exception as error:
            raise SparkStartError(f"Spark did not start: {_start_error(sink.name, error)}") from error
        try:
            yield spark
        except Exception as error:
            keep_readable(error)
            raise
    finally:
        _stop(gateway, process)


def _stop(gateway: Any, process: subprocess.Popen[bytes] | None) -> None:
    """Stop the session and its JVM, in whatever state an interrupt has left them."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        with contextlib.suppress(Exception):
            context.stop()
    with contextlib.suppress(Exception):
        if gateway is not None:
            gateway.shutdown()
    SparkSession._instantiatedSession = None
    # A later session of this process starts its own JVM.
    SparkContext._gateway = None
    SparkContext._jvm = None
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its standard input is closed
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start_error(log: str, error: Exception) -> str:
    """Return the first error in Spark's log, or else its last line or that of the exception."""
    lines = [line.strip() for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "ERROR" in line or line.lower().startswith("error")]
    return (telling or lines or str(error).splitlines() or [type(error).__name__])[-1 if not telling else 0]
