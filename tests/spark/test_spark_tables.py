"""Tables and views of SQL over logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from pyspark.sql.types import LongType, StructField, StructType

from kbatch.spark.datasource import KbatchDataSource
from kbatch.spark.table_options import created_options, read_table_options, with_options

SCHEMA = StructType([StructField("offset", LongType())])
# Properties that Spark 4.3 passes for the clauses of CREATE TABLE, and `is_managed_location`, which it reserves.
PROPERTIES = {
    "location": "file:/data", "path": "file:/data", "subscribe": "txn", "option.subscribe": "txn", "owner": "me",
    "provider": "kbatch", "comment": "c", "collation": "UTF8_BINARY", "external": "true", "is_managed_location": "true",
    "my property": "x", "option.path": "/data",
}  # fmt: skip


@pytest.fixture(scope="module")
def sql(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run SQL in a database of its own."""
    spark.sql(f"CREATE DATABASE tables LOCATION '{tmp_path_factory.mktemp('warehouse')}'")
    spark.sql("USE tables")
    yield spark.sql
    spark.sql("USE default")
    spark.sql("DROP DATABASE tables CASCADE")


def test_properties_that_spark_adds_are_not_options() -> None:
    assert created_options(PROPERTIES) == {"subscribe": "txn", "path": "file:/data"}


def test_options_of_a_reader_are_not_properties_of_a_table() -> None:
    """An option that a user misspells as one of Spark's properties is refused."""
    assert created_options({"path": "/data", "subscribe": "a"}) is None
    for name in ("owner", "provider", "location", "comment"):
        with pytest.raises(ValueError, match=f"unknown option '{name}'"):
            KbatchDataSource({"path": "/data", name: "x"}).schema()


def test_unknown_options_of_a_table_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown option 'subscibe', did you mean 'subscribe'"):
        KbatchDataSource({**PROPERTIES, "option.subscibe": "txn"}).schema()


def test_a_table_does_not_store_secrets() -> None:
    with pytest.raises(ValueError, match=r"storage.secret_key: a table does not store options .* WITH \(`storage.sec"):
        created_options({**PROPERTIES, "option.storage.secret_key": "s"})
    with pytest.raises(ValueError, match=r"^basic.auth.user.info: a table does not store options"):
        created_options({**PROPERTIES, "option.basic.auth.user.info": "s"})


def test_stored_options_apply_to_the_table_only() -> None:
    """A reader with a path of its own, for instance one with the schema of a table, has its own options."""
    schema = with_options(SCHEMA, {"path": "/data", "subscribe": "txn"})
    assert read_table_options({}, schema) == {"path": "/data", "subscribe": "txn"}
    assert read_table_options({"subscribe": "other"}, schema) == {"path": "/data", "subscribe": "other"}
    assert read_table_options({"path": "/other"}, schema) == {"path": "/other"}
    assert read_table_options({"paths": '["/other"]'}, schema) == {"paths": '["/other"]'}
    assert read_table_options({"subscribe": "a"}, SCHEMA) == {"subscribe": "a"}


@pytest.mark.spark
def test_create_table_reads_the_logs(sql: Any, golden: Path) -> None:
    root = golden / "logs"
    sql(f"CREATE TABLE t USING kbatch OPTIONS (path '{root}', subscribe 'txn') COMMENT 'c' TBLPROPERTIES ('a' = 'b')")
    assert sql("SELECT count(*) FROM t").first()[0] == 337
    assert sql("SELECT max(offset) FROM t WHERE topic = 'txn' AND offset < 100").first()[0] < 100
    committed = sql("SELECT count(*) FROM t WITH (isolationLevel = 'read_committed')").first()[0]
    assert 0 < committed < 337
    sql(f"CREATE TABLE located USING kbatch OPTIONS (subscribe 'tx*', includeHeaders true) LOCATION '{root}'")
    assert "headers" in sql("SELECT * FROM located").columns
    assert sql("SELECT count(*) FROM located").first()[0] == 337


@pytest.mark.spark
def test_a_view_and_a_table_have_several_directories_and_globs(sql: Any, golden: Path) -> None:
    paths = f"{golden / 'logs' / 'txn-0'},{golden / 'logs' / 'codec-lz4-0'}"
    sql(f"CREATE TEMPORARY VIEW both USING kbatch OPTIONS (paths '{paths}')")
    sql(f"CREATE TABLE lz4 USING kbatch OPTIONS (paths '{paths}', subscribe 'codec-*')")
    assert {row.topic for row in sql("SELECT DISTINCT topic FROM both").collect()} == {"txn", "codec-lz4"}
    assert {row.topic for row in sql("SELECT DISTINCT topic FROM lz4").collect()} == {"codec-lz4"}


@pytest.mark.spark
def test_errors_of_a_table_state_what_to_do(sql: Any, golden: Path) -> None:
    with pytest.raises(Exception, match="unknown option 'nosuch'"):
        sql(f"CREATE TABLE bad USING kbatch OPTIONS (path '{golden / 'logs'}', nosuch 'x')")
    sql(f"CREATE TABLE listed (offset bigint) USING kbatch OPTIONS (path '{golden / 'logs'}')")
    with pytest.raises(Exception, match=r"USING kbatch OPTIONS \(path '...'\) without a list of columns"):
        sql("SELECT * FROM listed").collect()
