"""The options of the JVM that a local session starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from kbatch.spark.driver import java
from kbatch.spark.driver.java import local_java_options

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the options of this machine."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("master", ["local", "local[1]", "local[*]", "local[4,2]"])
def test_a_local_master_starts_a_cheap_jvm(master: str) -> None:
    """Python workers do the work, so the JVM needs neither the second compiler nor a parallel collector."""
    assert local_java_options(master, {"spark.driver.memory": "2g"}) == {
        OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    }


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://host:7077", "yarn", "k8s://https://host"])
def test_a_cluster_keeps_the_options_of_its_jvms(master: str) -> None:
    assert local_java_options(master, {}) == {}


@pytest.mark.parametrize("name", [OPTIONS, "spark.driver.defaultJavaOptions"])
def test_options_of_the_user_are_kept(name: str, tmp_path: Path) -> None:
    """The JVM does not start with two garbage collectors, so any option of the user replaces all of ours."""
    assert local_java_options("local[2]", {name: "-XX:+UseG1GC"}) == {}
    for line in (f"{name} -XX:+UseG1GC", f"  {name}=-XX:+UseG1GC", f"{name}: -Dx=1"):
        (tmp_path / "spark-defaults.conf").write_text(f"# {name}\nspark.master local\n\n{line}\n")
        assert local_java_options("local[2]", {}) == {}
    (tmp_path / "spark-defaults.conf").write_text(f"# {name} -XX:+UseG1GC\nspark.driver.memory 1g\n")
    assert OPTIONS in local_java_options("local[2]", {})


@pytest.mark.parametrize("name", ["SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"])
def test_options_in_the_environment_are_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "-XX:+UseParallelGC")
    assert local_java_options("local[2]", {}) == {}


def test_settings_are_found_next_to_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setattr(java, "_find_spark_home", lambda: str(tmp_path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"{OPTIONS} -XX:+UseG1GC\n")
    assert local_java_options("local[2]", {}) == {}


@pytest.mark.spark
def test_the_jvm_of_a_session_has_the_options(spark: Any) -> None:
    """The options reach the JVM, and a setting that the user gives replaces them."""
    runtime = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert "-XX:+UseSerialGC" in list(runtime.getInputArguments())
