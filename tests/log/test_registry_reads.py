"""Values whose schemas are in a registry, in logs, scans, live topics, exports and listings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import ScriptedCluster, ScriptedPartition
from scripted_registry import ScriptedRegistry, framed, serving

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

import kbatch
from kbatch.__main__ import main
from kbatch.log.write.log_writer import LogWriter

SECRET = "s3cr3t-value"
V1 = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "tag", "type": "string", "default": "none"}]}
ROWS = [{"id": 1, "tag": "none"}, {"id": 2, "tag": "a"}]


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with serving() as made:
        made.register("orders-value", V1)
        made.register("orders-value", V2)
        yield made


VALUES = [framed(1, b"\x02"), framed(2, b"\x04\x02a"), framed(9, b"\x02")]


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    with LogWriter(tmp_path / "logs-of-orders-0") as writer:
        writer.append(kbatch.encode(VALUES, timestamps=1000))
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "logs-of-orders-0").rename(root / "orders-0")
    return root


def test_logs_and_scans_read_values_of_a_registry(logdir: Path, registry: ScriptedRegistry) -> None:
    options: Any = {"values": "avro", "schema_registry": registry.url}
    columns = ["value", "value_error", "value_schema_id"]
    expected = {"value": [*ROWS, None], "value_error": [None, None, "unknown schema id 9: the registry has no such sc"]}
    scan = kbatch.scan_logs(logdir, **options).select(columns)
    logs = (kbatch.find_logs(logdir), kbatch.Log(logdir / "orders-0"))
    for made in (scan.to_arrow(), *(each.to_arrow(columns=columns, **options) for each in logs)):
        assert made["value"].to_pylist() == expected["value"]
        assert [error and error[:48] for error in made["value_error"].to_pylist()] == expected["value_error"]
        assert made["value_schema_id"].to_pylist() == [1, 2, 9]
    fields = kbatch.scan_logs(logdir, columns=["offset", "value.tag", "value_bad"], **options)
    assert fields.to_arrow()["value.tag"].to_pylist() == ["none", "a", None]
    assert len([path for path in registry.requests if path.startswith("/schemas/ids/")]) == 3


def test_a_registry_is_not_asked_for_without_the_option(logdir: Path, registry: ScriptedRegistry) -> None:
    kbatch.find_logs(logdir).to_arrow(values="avro", value_schema=V1, value_framing="confluent", columns=["value_bad"])
    with pytest.raises(ValueError, match=r"^values avro requires value_schema"):
        kbatch.find_logs(logdir).to_arrow(values="avro")
    assert registry.requests == []


def test_live_topics_read_values_of_a_registry(registry: ScriptedRegistry, tmp_path: Path) -> None:
    partition = ScriptedPartition()
    partition.write(VALUES[:2])
    cluster = ScriptedCluster(orders=[partition])
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers=broker-1\nschema.registry.url={registry.url}\n")
    consumer = kbatch.consume(
        "orders", config=config, schema_registry=config, values="avro", columns=["value"], transport=cluster.connect
    )
    assert consumer.to_arrow()["value"].to_pylist() == ROWS


def test_exports_write_the_columns_of_a_registry(logdir: Path, registry: ScriptedRegistry, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = {"schema.registry.url": registry.url, "basic.auth.user.info": f"me:{SECRET}"}
    summary = kbatch.export(
        logdir, out, engine="local", values="avro", schema_registry=settings, flatten=True, max_bad="1"
    )
    assert summary.records == 3
    table = pq.read_table(out, columns=["id", "tag", "value_schema_id"]).to_pydict()
    assert table == {"id": [1, 2, None], "tag": ["none", "a", None], "value_schema_id": [1, 2, 9]}
    for path in out.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_an_export_fails_if_the_registry_does_not_answer(
    logdir: Path, registry: ScriptedRegistry, tmp_path: Path
) -> None:
    registry.faults = [403]
    with pytest.raises(kbatch.RegistryError, match="HTTP status 403"):
        kbatch.export(logdir, tmp_path / "out", engine="local", values="avro", schema_registry=registry.url)
    settings = {"schema.registry.url": registry.url, "schema.registry.max.retries": 0}
    kbatch.export(logdir, tmp_path / "out", engine="local", values="avro", value_schema=V1, schema_registry=settings)
    assert (tmp_path / "out" / "_manifest.json").exists()


def test_commands_read_values_of_a_registry(
    logdir: Path, registry: ScriptedRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--values", "avro", "--schema-registry", registry.url]
    assert main(["dump", str(logdir / "orders-0"), *flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["value"] for line in lines] == [*ROWS, None]
    segment = tmp_path / f"{0:020}.log"
    segment.write_bytes(kbatch.encode(VALUES[:1]))
    assert main(["dump", str(segment), *flags]) == 1
    assert "the input has no topic" in capsys.readouterr().err
    assert main(["dump", str(segment), *flags, "--value-subject", "orders-value"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == ROWS[0]
    assert main(["export", str(logdir), str(tmp_path / "out"), "--engine", "local", *flags, "--max-bad", "1"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["dump", str(segment), "--values", "avro", "--schema-registry", f"http://me:{SECRET}@h"])
    assert SECRET not in capsys.readouterr().err
