"""A proxy between clients and a broker: it records every message, and rewrites the addresses that clients learn.

Clients connect to the broker that metadata names. The proxy puts its own port there with `kbatch.protocol`, so that all
traffic passes it, and clients work with messages that kbatch has written. It also makes connections fail.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from kbatch.protocol import ApiKey, MessageSplitter, decode_request, decode_response, encode_response

__all__ = ["Cut", "Exchange", "Proxy", "recording"]


class Exchange(NamedTuple):
    """A request or a response, as it was sent."""

    direction: str
    connection: int
    api_key: int
    version: int
    data: bytes


class Cut(Exception):
    """Raised by `Proxy.change`: the connection ends after these bytes."""

    def __init__(self, sent: bytes = b"") -> None:
        super().__init__()
        self.sent = sent


class Proxy:
    """A proxy to one broker.

    Attributes
    ----------
    change : callable or None
        Gets each response before it is sent, and returns other bytes for it, or None. It may raise `Cut`, and wait.
    exchanges : list of Exchange
        All messages, if the proxy records them.
    """

    def __init__(self, bootstrap: str, *, port: int = 0, records: bool = True) -> None:
        host, broker_port = bootstrap.rsplit(":", 1)
        self._broker = (host, int(broker_port))
        self._records = records
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = self._server.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.exchanges: list[Exchange] = []
        self.errors: list[BaseException] = []
        self.change: Callable[[Exchange], bytes | None] | None = None
        self._sockets: list[socket.socket] = []
        self._passes = threading.Event()
        self._passes.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections, and accept no others."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.go_on()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        ended, self._sockets = self._sockets, []
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def hang(self) -> None:
        """Keep connections open, and pass nothing on until `go_on`."""
        self._passes.clear()

    def go_on(self) -> None:
        """Pass on what was held back."""
        self._passes.set()

    def _accept(self) -> None:
        connection = 0
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._broker)
            except OSError:
                client.close()
                continue
            self._sockets = [each for each in self._sockets if each.fileno() >= 0] + [client, broker]
            pending: dict[int, tuple[int, int]] = {}
            for source, target, answers in ((client, broker, False), (broker, client, True)):
                arguments = (source, target, answers, pending, connection)
                threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()
            connection += 1

    def _pass_on(
        self,
        source: socket.socket,
        target: socket.socket,
        answers: bool,
        pending: dict[int, tuple[int, int]],
        connection: int,
    ) -> None:
        splitter = MessageSplitter()
        try:
            while chunk := source.recv(1 << 16):
                for message in splitter.feed(chunk):
                    data = bytes(message)
                    sent = len(data).to_bytes(4, "big") + data
                    if answers:
                        api_key, version = pending.pop(int.from_bytes(data[:4], "big"))
                        exchange = Exchange("response", connection, api_key, version, data)
                        changed = None if self.change is None else self.change(exchange)
                        sent = changed or self._rewritten(data, api_key, version) or sent
                    else:
                        api_key, version, correlation = (
                            int.from_bytes(data[a:b], "big") for a, b in ((0, 2), (2, 4), (4, 8))
                        )
                        exchange = Exchange("request", connection, api_key, version, data)
                        if api_key != ApiKey.PRODUCE or decode_request(data).message.acks:
                            pending[correlation] = (api_key, version)
                    if self._records:
                        self.exchanges.append(exchange)
                    self._passes.wait()
                    target.sendall(sent)
        except Cut as cut:
            with suppress(OSError):
                target.sendall(cut.sent)
        except OSError:
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            # A thread that waits for bytes returns only after a shutdown.
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _rewritten(self, data: bytes, api_key: int, version: int) -> bytes | None:
        if api_key not in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER):
            return None
        response: Any = decode_response(data, api_key, version)
        message = response.message
        if api_key == ApiKey.FIND_COORDINATOR:
            nodes = message.coordinators if version >= 4 else [message]
        else:
            nodes = message.brokers
        for node in nodes:
            if node.port == self._broker[1]:
                node.port = self.port
        return b"".join(encode_response(message, response.version, header=response.header))


@contextmanager
def recording(bootstrap: str) -> Iterator[Proxy]:
    """Run a proxy to the broker at `bootstrap`."""
    proxy = Proxy(bootstrap)
    try:
        yield proxy
    finally:
        proxy.close()
