"""A schema registry with the endpoints of Confluent's that a reader uses, and the faults that tests script."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

from kbatch.values.schema_registry import SchemaRegistry

__all__ = ["Reference", "ScriptedRegistry", "framed", "serving"]


class Reference(NamedTuple):
    """What a schema states about another one."""

    name: str
    subject: str
    version: int


class ScriptedRegistry:
    """The schemas, and what the server does.

    Attributes
    ----------
    url : str
    requests : list of str
        The paths that were requested, with their queries.
    faults : list of int or str
        For the next requests: an HTTP status, "cut", "slow", "garbage" or "redirect".
    authorization : str or None
        The header that requests must have.
    headers : list
        The headers of each request.
    serializes : {"all", "ids", "none", "fails"}
        Where ``format=serialized`` has an effect; with "fails" it is an error.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.faults: list[int | str] = []
        self.authorization: str | None = None
        self.serializes = "all"
        self.redirect_to = ""
        self._schemas: dict[int, dict[str, Any]] = {}
        self._serialized: dict[int, str] = {}
        self._subjects: dict[str, list[int]] = {}

    def register(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        *,
        references: tuple[Reference, ...] = (),
        serialized: bytes | None = None,
        number: int | None = None,
    ) -> int:
        """Add a version to a subject; return the id of the schema, which is the same for equal schemas."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            entry["schemaType"] = kind
        if references:
            entry["references"] = [each._asdict() for each in references]
        known = next((key for key, each in self._schemas.items() if each == entry), None)
        number = known or number or max(self._schemas, default=0) + 1
        self._schemas[number] = entry
        if serialized is not None:
            self._serialized[number] = base64.b64encode(serialized).decode()
        self._subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the body for a path."""
        path, _, query = path.partition("?")
        if query and self.serializes == "fails":
            return 500, {}
        if self.serializes == "none" or (self.serializes == "ids" and not path.startswith("/schemas/ids/")):
            query = ""
        parts = [unquote(part) for part in path.split("/")[1:]]
        match parts:
            case ["schemas", "ids", text]:
                if int(text) not in self._schemas:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, self._body(int(text), query)
            case ["subjects", subject, "versions", version]:
                versions = self._subjects.get(subject)
                if versions is None:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                place = len(versions) if version == "latest" else int(version)
                if not 1 <= place <= len(versions):
                    return 404, {"error_code": 40402, "message": "Version not found."}
                number = versions[place - 1]
                return 200, {"subject": subject, "version": place, "id": number, **self._body(number, query)}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _body(self, number: int, query: str) -> dict[str, Any]:
        body = dict(self._schemas[number])
        if query == "format=serialized" and number in self._serialized:
            body["schema"] = self._serialized[number]
        return body


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[ScriptedRegistry]:
    """Serve a registry on a free port of this machine."""
    # An earlier registry may have had the same port.
    SchemaRegistry._shared.clear()
    registry = ScriptedRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            registry.headers.append(dict(self.headers))
            fault = registry.faults.pop(0) if registry.faults else None
            if fault == "slow":
                time.sleep(0.5)
            if isinstance(fault, int):
                return self.send(fault, json.dumps({"error_code": fault, "message": "scripted"}).encode())
            if fault == "garbage":
                return self.send(200, b"<html>")
            if fault == "redirect":
                self.send_response(302)
                self.send_header("Location", f"{registry.redirect_to}{self.path}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            if registry.authorization is not None and self.headers.get("Authorization") != registry.authorization:
                return self.send(401, b'{"error_code": 401, "message": "Unauthorized"}')
            status, body = registry.answer(self.path)
            data = json.dumps(body).encode()
            return self.send(status, data, len(data) + 10 if fault == "cut" else None)

        def send(self, status: int, data: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(length or len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that refuse the certificate close the connection."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    registry.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def framed(number: int, data: bytes, path: bytes = b"") -> bytes:
    """Return a value with the prefix that serializers write; `path` is the message path of Protobuf."""
    return b"\0" + number.to_bytes(4, "big") + path + data
