"""A scripted broker behind a socket, for reads in another process, and a partition of any length."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from scripted_broker import ScriptedCluster, ScriptedPartition

from kbatch.protocol import MessageSplitter, decode_request, encode_response

__all__ = ["RepeatedPartition", "served"]


class RepeatedPartition(ScriptedPartition):
    """One batch of `rows` records, `count` times."""

    def __init__(self, batch: bytes, rows: int, count: int) -> None:
        super().__init__()
        self._batch, self._rows, self._count = batch, rows, count

    @property
    def end(self) -> int:
        return self._rows * self._count

    def records(self, offset: int, size: int, end: int) -> bytes:
        first = offset // self._rows
        # The checksum does not cover the base offset.
        return b"".join(
            struct.pack(">q", number * self._rows) + self._batch[8:]
            for number in range(first, min(first + max(size // len(self._batch), 1), self._count))
        )


@contextlib.contextmanager
def served(cluster: ScriptedCluster) -> Iterator[str]:
    """Serve broker 1 of a cluster, and return its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        metadata = cluster._metadata

        def here(*arguments: Any) -> Any:
            response = metadata(*arguments)
            for each in response.brokers:
                each.host, each.port = host, port
            return response

        cluster._metadata = here  # type: ignore[method-assign]
        threading.Thread(target=_accept, args=(server, cluster), daemon=True).start()
        yield f"{host}:{port}"
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, cluster: ScriptedCluster) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            threading.Thread(target=_serve, args=(client, cluster), daemon=True).start()


def _serve(client: socket.socket, cluster: ScriptedCluster) -> None:
    splitter = MessageSplitter()
    with client, contextlib.suppress(OSError):
        while data := client.recv(1 << 16):
            for message in splitter.feed(data):
                request: Any = decode_request(bytes(message))
                made, _ = cluster.answer(1, request)
                client.sendall(
                    b"".join(encode_response(made, request.version, correlation_id=request.header.correlation_id))
                )
