"""A `ScriptedCluster` behind a socket, for commands in other processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scripted_broker import ScriptedCluster

from kbatch.live import ClientSettings, ServerAddress

__all__ = ["served"]


@contextmanager
def served(cluster: ScriptedCluster) -> Iterator[str]:
    """Serve the first broker of a cluster; yield its address. Metadata has this address for the broker."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster.addresses[cluster.brokers[0]] = ("127.0.0.1", port)
        threading.Thread(target=_accept, args=(server, cluster), daemon=True).start()
        yield f"127.0.0.1:{port}"


def _accept(server: socket.socket, cluster: ScriptedCluster) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection, cluster), daemon=True).start()


def _answer(connection: socket.socket, cluster: ScriptedCluster) -> None:
    transport = cluster.connect(ServerAddress("localhost", 9092), ClientSettings.of(bootstrap_servers="localhost"))
    transport.set_timeout(0.02)
    buffer = memoryview(bytearray(1 << 16))
    # A command may end at any time.
    with connection, suppress(OSError):
        while data := connection.recv(1 << 16):
            transport.send([data])
            with suppress(TimeoutError):
                while count := transport.receive_into(buffer):
                    connection.sendall(buffer[:count])
