"""Kills exports of a cluster: ``python killed_live.py SETTINGS OUT KILLS`` prints how many were killed.

SETTINGS are keywords of `local_export.export`, as JSON, and ``follows``. The broker is a process of its own, which
appends records on request. At the end an export that is not killed must have every record once.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any, NoReturn

import killed_exports
import killed_followers
import pyarrow.parquet
from scripted_broker import ScriptedCluster, ScriptedPartition
from socket_broker import served

import kbatch
from kbatch.sinks import working

PARTITIONS = 3


class BrokerProcess:
    """A broker in a child process; `url` is its address."""

    def __init__(self) -> None:
        commands, self._commands = os.pipe()
        address, answer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._commands)
            self._serve(commands, answer)
        self.url = f"kafka://{os.read(address, 100).decode()}"

    def append(self, count: int = 1) -> None:
        """Append batches of five records to each partition."""
        os.write(self._commands, b"+" * count)

    def close(self) -> None:
        os.close(self._commands)
        os.waitpid(self._child, 0)

    def _serve(self, commands: int, answer: int) -> NoReturn:
        partitions = [ScriptedPartition() for _ in range(PARTITIONS)]
        cluster = ScriptedCluster(1, t=partitions)
        with served(cluster) as address:
            os.write(answer, address.encode())
            while given := os.read(commands, 100):
                with cluster.lock:
                    for _ in given:
                        for each in partitions:
                            each.write([b"v%d" % (each.end + i) for i in range(5)])
            os._exit(0)


def main(settings: dict[str, Any], out: str, kills: int) -> None:
    follows = settings.pop("follows")
    broker = BrokerProcess()
    assert pyarrow.parquet is not None
    if settings["format"] == "delta":
        import deltalake  # noqa: F401
    if settings["format"] == "iceberg":
        import pyiceberg.catalog.sql  # noqa: F401
    working.DEAD_SECONDS = 0
    numbers = random.Random(38)
    broker.append(20)
    killed = 0
    root: Any = broker.url
    if follows:
        for i in range(kills):
            # The first one has the time for commits also on a busy machine.
            seconds = 3.0 if i == 0 else numbers.uniform(0.05, 1.0)
            killed += killed_followers.run_and_kill(root, out, settings, [broker], seconds)  # type: ignore[list-item]
    else:
        began = time.monotonic()
        killed_exports.run_and_kill(root, out, settings, 120)
        usual = time.monotonic() - began
        broker.append(3)
        for i in range(1, kills + 1):
            seconds = 120.0 if i % 3 == 0 else numbers.uniform(0.1, 1.3) * usual
            began = time.monotonic()
            if killed_exports.run_and_kill(root, out, settings, seconds):
                killed += 1
            else:
                # The first run may have taken longer, since the machine was busy.
                usual = min(usual, time.monotonic() - began)
            broker.append(3)
    killed_exports.run_and_kill(root, out, settings, 120)
    tables = {name: settings[name] for name in ("table", "catalog") if name in settings}
    found = kbatch.verify_export(out, root, **tables)
    broker.close()
    assert (found.damaged, found.findings) == (False, []), found
    assert sum(part.compared for part in found.partitions) >= 20 * 5 * PARTITIONS
    print(killed)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
