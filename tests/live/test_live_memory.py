"""The resident memory of a process that reads a topic: at most twice `max_bytes` more than before the read."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scripted_broker import ScriptedCluster
from socket_broker import RepeatedPartition, served

import kbatch

# The smallest one that the documentation states.
MAX_BYTES = 8 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the memory is that of /proc")

READS = """
import sys
import kbatch
from kbatch.kernels.buffers import trim

address, max_bytes, form = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def resident(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

def read(**options):
    consumer = kbatch.consume("orders", bootstrap_servers=address, max_bytes=max_bytes, **options)
    return sum(len(each) for each in (consumer.reader() if form == "arrow" else consumer))

read(last=1)
trim()
before = resident("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
print(read(), resident("VmHWM") - before)
"""


@pytest.mark.parametrize("form", ["tables", "arrow"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_resident_memory_is_at_most_twice_the_memory_of_the_read(codec: str, form: str) -> None:
    if form == "arrow":
        pytest.importorskip("pyarrow")
    values = [b"%d %s" % (number * 7919, b"abcdefgh" * 11) for number in range(600)]
    batch = kbatch.encode(values, codec=codec)
    count = 32_000_000 // sum(map(len, values))
    parts = [RepeatedPartition(batch, len(values), count // 2) for _ in range(2)]
    with served(ScriptedCluster(orders=parts)) as address:
        done = subprocess.run(
            [sys.executable, "-c", READS, address, str(MAX_BYTES), form],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stderr == ""
    records, grown = map(int, done.stdout.split())
    assert records == 2 * (count // 2) * len(values)
    assert grown <= 2 * MAX_BYTES
