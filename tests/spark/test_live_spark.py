"""Spark reads a live cluster without a jar: columns, options, divided partitions, tables, SQL and streams."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import ScriptedCluster, ScriptedPartition
from socket_broker import served

pytest.importorskip("kbatch.spark", exc_type=ImportError)

import kbatch
import kbatch.spark
from kbatch.spark.source_api import HAS_DATA_SOURCE, HAS_LIMITS, DataSourceReader

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_DATA_SOURCE, reason="before PySpark 4.0"),
]
SECURED = {
    "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "me",
    "kafka.sasl.password": "swordfish",
}  # fmt: skip


@pytest.fixture(scope="module")
def scripted() -> ScriptedCluster:
    """A topic with 60 records of JSON in two partitions, and one with null, empty and headers."""
    logs = [ScriptedPartition(), ScriptedPartition()]
    for number in range(60):
        text = json.dumps({"id": number, "name": f"n{number}"}).encode()
        if number % 2 == 0:
            logs[0].write([text], keys=[b"k%d" % (number % 6)], timestamps=[1_700_000_000_000 + number])
        else:
            logs[1].write([text], timestamps=[1_700_000_000_000 + number], codec="lz4")
    odd = ScriptedPartition()
    odd.write(
        [None, b"", b"x"],
        keys=[b"", None, b"k"],
        timestamps=[0, 1, 2],
        headers=[[], [("h", None), ("h", b"")], [("i", b"1")]],
    )
    return ScriptedCluster(orders=logs, odd=[odd])


@pytest.fixture(scope="module")
def address(scripted: ScriptedCluster) -> Iterator[str]:
    with served(scripted) as address:
        yield address


def frame(spark: Any, address: str, topic: str = "orders", **options: str) -> Any:
    reader = spark.read.format("kbatch").option("kafka.bootstrap.servers", address)
    return reader.option("subscribe", topic).options(**options).load()


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, found.select("topic", "partition", "offset", "value").collect()))


def test_columns_are_those_of_sparks_kafka_source(spark: Any, address: str) -> None:
    found = frame(spark, address, "odd")
    assert found.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    with_headers = frame(spark, address, "odd", includeHeaders="true")
    assert with_headers.columns == [*found.columns, "headers"]
    records = with_headers.orderBy("offset").collect()
    assert [each.key and bytes(each.key) for each in records] == [b"", None, b"k"]
    assert [each.value and bytes(each.value) for each in records] == [None, b"", b"x"]
    assert [(each.topic, each.partition, each.offset, each.timestampType) for each in records] == [
        ("odd", 0, offset, 0) for offset in range(3)
    ]
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC).timestamp()
    assert [each.timestamp.timestamp() - epoch for each in records] == [0.0, 0.001, 0.002]
    headers = [each.headers and [(h.key, h.value and bytes(h.value)) for h in each.headers] for each in records]
    assert headers == [None, [("h", None), ("h", b"")], [("i", b"1")]]


def test_divided_partitions_give_the_same_rows(spark: Any, address: str) -> None:
    whole = frame(spark, address)
    divided = frame(spark, address, minPartitions="7")
    limited = frame(spark, address, maxRecordsPerPartition="10")
    assert whole.rdd.getNumPartitions() == 2
    assert divided.rdd.getNumPartitions() == 8
    assert limited.rdd.getNumPartitions() == 6
    assert len(rows(whole)) == 60
    assert rows(divided) == rows(limited) == rows(whole)


def test_the_actions_of_a_frame_have_the_same_offsets(spark: Any) -> None:
    log = ScriptedPartition()
    log.write([b"a"] * 3)
    with served(ScriptedCluster(t=[log])) as address:
        found = frame(spark, address, "t")
        assert found.count() == 3
        log.write([b"b"])
        # PySpark 4.0, which passes no conditions to sources, makes a reader for each action.
        assert found.count() == (3 if hasattr(DataSourceReader, "pushFilters") else 4)
        assert found.filter("offset = 2").count() == 1
        assert frame(spark, address, "t").count() == 4


def test_bounds_choose_what_is_read(spark: Any, address: str) -> None:
    bounds = {
        "startingOffsets": '{"orders": {"0": 25, "1": -2}}', "endingOffsets": '{"orders": {"0": -1, "1": 2}}',
    }  # fmt: skip
    found = [(number, offset) for _, number, offset, _ in rows(frame(spark, address, **bounds))]
    assert found == [(0, offset) for offset in range(25, 30)] + [(1, 0), (1, 1)]
    times = {"startingTimestamp": "1700000000050", "endingTimestamp": "1700000000055"}
    found = [(number, offset) for _, number, offset, _ in rows(frame(spark, address, **times))]
    assert found == [(0, 25), (0, 26), (0, 27), (1, 25), (1, 26)]


def test_a_schema_is_a_projection_and_values_are_typed_columns(spark: Any, address: str) -> None:
    live = {"kafka.bootstrap.servers": address, "subscribe": "orders"}
    projected = spark.read.format("kbatch").options(**live).schema("offset long, partition int").load()
    assert projected.count() == 60
    assert projected.columns == ["offset", "partition"]
    typed = frame(spark, address, valueFormat="json")
    assert typed.selectExpr("sum(value.id)", "min(value.name)").first() == (1770, "n0")
    assert typed.filter("value_error IS NOT NULL").count() == 0


def test_a_path_may_be_a_url_and_a_condition_reduces_what_is_read(spark: Any, address: str) -> None:
    url = f"kafka://{address}"
    assert spark.read.format("kbatch").option("subscribe", "orders").load(url).count() == 60
    some = kbatch.spark.read_logs(
        spark, url, where="partition = 0 AND offset >= 20 AND offset < 23", options={"subscribe": "orders"}
    )
    assert [offset for _, _, offset, _ in rows(some)] == [20, 21, 22]
    assert kbatch.spark.read_logs(spark, url, columns=[], options={"subscribe": "orders"}).count() == 60
    keyed = frame(spark, address, key="k2")
    assert [offset for _, _, offset, _ in rows(keyed)] == list(range(1, 30, 3))


def test_options_that_are_unknown_or_do_not_apply_are_errors(spark: Any, address: str) -> None:
    for options, message in (
        ({"minPartition": "3"}, "unknown option 'minpartition', did you mean 'minPartitions'"),
        ({"table": "transactions"}, "table transactions does not apply to a live cluster"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be 'latest' in a batch read"),
    ):
        with pytest.raises(Exception, match=message):
            frame(spark, address, **options).count()
    with pytest.raises(Exception, match="a live cluster needs one of subscribe, subscribePattern and assign"):
        spark.read.format("kbatch").option("kafka.bootstrap.servers", address).load()
    with pytest.raises(Exception, match="there is no topic 'order', did you mean 'orders'"):
        frame(spark, address, "order").count()


def test_sql_reads_a_cluster_and_tables_store_no_secrets(spark: Any, address: str) -> None:
    options = f"`kafka.bootstrap.servers` '{address}', subscribe 'orders'"
    spark.sql("DROP TABLE IF EXISTS live_orders")
    spark.sql(f"CREATE TABLE live_orders USING kbatch OPTIONS ({options})")
    try:
        assert spark.sql("SELECT count(*) FROM live_orders WHERE partition = 1").first()[0] == 30
    finally:
        spark.sql("DROP TABLE live_orders")
    with pytest.raises(Exception, match=r"kafka\.sasl\.password: a table does not store .* security"):
        spark.sql(f"CREATE TABLE secret_orders USING kbatch OPTIONS ({options}, `kafka.sasl.password` 'swordfish')")
    spark.sql("DROP TABLE IF EXISTS secret_orders")


def test_plans_have_no_secrets(
    spark: Any, scripted: ScriptedCluster, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    scripted.password = b"swordfish"
    found = frame(spark, address, **SECURED)
    assert found.count() == 60
    found.explain(True)
    found.explain("formatted")
    jaas = 'x.PlainLoginModule required username="me" password="swordfish";'
    secured = {name: value for name, value in SECURED.items() if "PLAIN" in value or name.endswith("mechanism")}
    stream = spark.readStream.format("kbatch").options(**secured, **{"kafka.sasl.jaas.config": jaas})
    stream.options(**{"kafka.bootstrap.servers": address, "subscribe": "orders"}).load().explain(True)
    with pytest.raises(Exception, match="Authentication failed") as raised:
        frame(spark, address, **{**SECURED, "kafka.sasl.password": "sardine"}).count()
    out = capfd.readouterr()
    text = out.out + repr(found) + str(raised.value)
    assert "kbatch" in text
    assert "swordfish" not in text
    assert "sardine" not in text


def test_a_stream_continues_from_its_checkpoint(
    spark: Any, scripted: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    scripted.password = b"swordfish"
    log = ScriptedPartition()
    log.write([b"a"] * 10)
    with scripted.lock:
        scripted.topics["growing"], scripted.ids["growing"] = [log], scripted.ids["odd"]
    reader = spark.readStream.format("kbatch").option("kafka.bootstrap.servers", address).options(**SECURED)
    reader = reader.options(subscribe="growing", startingOffsets="earliest", maxOffsetsPerTrigger="4")

    def run(**trigger: Any) -> list[int]:
        written = reader.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "state"))
        query = written.option("path", str(tmp_path / "out")).trigger(**trigger).start()
        if "processingTime" in trigger:
            query.processAllAvailable()
            query.stop()
        assert query.awaitTermination(120)
        return sorted(each.offset for each in spark.read.parquet(str(tmp_path / "out")).collect())

    assert run(availableNow=True) == list(range(10 if HAS_LIMITS else 4))
    log.write([b"b"] * 5)
    assert run(processingTime="100 milliseconds") == list(range(15))
    assert run(once=True) == list(range(15))
    offsets = sorted((tmp_path / "state" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    ids = {"growing": {str(scripted.ids["odd"]): [0]}}
    assert last == {"growing": {"0": 15}, "$ids": ids, "$epochs": {"growing": {"0": 0}}}
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"swordfish" not in path.read_bytes(), path


def test_the_code_of_the_page_prints_what_the_page_shows(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [ScriptedPartition(), ScriptedPartition()]
    for log, first, totals in zip(logs, (1, 4), [(9.5, 4.5, 6.0), (3.0, 4.0)], strict=True):
        texts = [b'{"id": %d, "total": %.1f}' % (first + i, total) for i, total in enumerate(totals)]
        log.write(texts, timestamps=1000)
    page = Path(__file__).parents[2] / "docs" / "spark-live.md"
    blocks = re.findall(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    with served(ScriptedCluster(orders=logs)) as address:
        for code, expected in blocks:
            exec(compile(code.replace("localhost:9092", address), str(page), "exec"), names)
            # Before PySpark 4.2, the stream ends after one micro-batch of two records.
            assert capsys.readouterr().out == (expected if HAS_LIMITS or expected != "5\n" else "2\n")
