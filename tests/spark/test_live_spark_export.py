"""Exports of a live cluster by Spark: the tasks, positions and files are those of the local engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_broker import ScriptedCluster, ScriptedPartition
from socket_broker import served

import kbatch

pytestmark = pytest.mark.spark


def test_spark_and_the_local_engine_continue_each_other(spark: Any, tmp_path: Path) -> None:
    partitions = [ScriptedPartition() for _ in range(2)]

    def write(count: int) -> None:
        for each in partitions:
            for _ in range(count):
                each.write([b"value %d" % (each.end + i) for i in range(5)])

    write(40)
    cluster = ScriptedCluster(1, orders=partitions)
    with served(cluster) as address:
        url, out = f"kafka://{address}", tmp_path / "out"
        first = kbatch.export(url, out, engine="spark", split_bytes=2000)
        assert (first.engine, first.records) == ("spark", 400)
        assert len(first.files) > 2
        write(3)
        assert kbatch.export(url, out, engine="local").records == 30
        write(3)
        last = kbatch.export(url, out, engine="spark")
        assert (last.action, last.records, last.partitions[0].continued_from) == ("continued", 30, 215)
        found = kbatch.verify_export(out, url)
    assert (found.damaged, found.findings) == (False, [])
