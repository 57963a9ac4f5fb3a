"""``kbatch dump --protocol REQUESTS [RESPONSES]``: the messages of a captured connection as JSON lines."""

from __future__ import annotations

import json
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from typing_extensions import Buffer

import kbatch
from kbatch.batches.regular_files import open_regular
from kbatch.cli import jsonlines
from kbatch.cli.inputs import standard_input
from kbatch.cli.shown import json_bytes
from kbatch.cli.terminal import print_errors, write_lines
from kbatch.errors import KbatchError, LimitExceededError, ProtocolError
from kbatch.escaping import escaped_json
from kbatch.protocol import (
    Message,
    MessageSplitter,
    Request,
    Response,
    UnknownMessage,
    decode_request,
    decode_response,
)

__all__ = ["dump_messages"]

_CHUNK_SIZE = 1 << 20
# API and version of the requests that wait for a response, by correlation id.
_Pending = dict[int, tuple[int, int]]


def dump_messages(paths: list[str], max_bytes: int | None) -> int:
    """Print the messages of one or two byte streams; return the exit status.

    Parameters
    ----------
    paths : list of str
        Requests of a client and, if there are two, responses of the broker.
    max_bytes : int or None
        Largest number of bytes of a key, a value or another byte string that is shown.
    """
    pending: _Pending = {}
    damaged = False
    for path, is_response in zip(paths, (False, True), strict=False):
        try:
            for position, data in _split(path):
                line: dict[str, Any] = {"file": path, "position": position, "size": len(data)}
                try:
                    line |= _response(data, pending, max_bytes) if is_response else _request(data, pending, max_bytes)
                except (LimitExceededError, ProtocolError) as error:
                    line["error"] = str(error)
                    _report(path, position, error)
                    damaged = True
                write_lines([json.dumps(line, ensure_ascii=False)], escaped_json)
        except KbatchError as error:
            # Without a valid length nothing after it can be split.
            _report(path, None, error)
            damaged = True
    return 3 if damaged else 0


def _report(path: str, position: int | None, error: KbatchError) -> None:
    at = "" if position is None else f"message at byte {position}: "
    print_errors(f"kbatch dump: {path}: {at}{error}")


def _split(path: str) -> Iterator[tuple[int, memoryview]]:
    splitter = MessageSplitter()
    position = 0
    for chunk in _chunks(path):
        for message in splitter.feed(chunk):
            yield position, message
            position += 4 + len(message)
    splitter.finish()


def _chunks(path: str) -> Iterator[bytes]:
    position = 0
    with ExitStack() as to_close:
        read = standard_input().read1 if path == "-" else to_close.enter_context(open_regular(path)).read
        while True:
            try:
                chunk = read(_CHUNK_SIZE)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} at byte {position}", path) from None
            if not chunk:
                return
            yield chunk
            position += len(chunk)


def _request(data: memoryview, pending: _Pending, max_bytes: int | None) -> dict[str, Any]:
    if len(data) >= 8:
        # A message that cannot be read may have a response that can.
        numbers = (int.from_bytes(data[at:end], "big", signed=True) for at, end in ((4, 8), (0, 2), (2, 4)))
        correlation_id, api_key, version = numbers
        pending[correlation_id] = api_key, version
    request = decode_request(data)
    return {
        "type": "request",
        "api": request.api_key.name,
        "version": request.version,
        "correlation_id": request.header.correlation_id,
        "client_id": request.header.client_id,
        **_content(request, max_bytes),
    }


def _response(data: memoryview, pending: _Pending, max_bytes: int | None) -> dict[str, Any]:
    correlation_id = int.from_bytes(data[:4], "big", signed=True)
    if correlation_id not in pending:
        raise ProtocolError(f"no request has the correlation id {correlation_id}")
    api_key, version = pending.pop(correlation_id)
    response = decode_response(data, api_key, version)
    return {
        "type": "response",
        "api": response.api_key.name,
        "version": response.version,
        "correlation_id": correlation_id,
        **_content(response, max_bytes),
    }


def _content(decoded: Request | Response | UnknownMessage, max_bytes: int | None) -> dict[str, Any]:
    if isinstance(decoded, UnknownMessage):
        return {"body": _bytes(decoded.body, max_bytes)}
    return {"message": _fields_as_json(decoded.message, decoded.version, max_bytes)}


def _fields_as_json(message: Message, version: int, max_bytes: int | None) -> dict[str, Any]:
    found = {}
    for field in message.schema.fields:
        if version not in field.versions:
            continue
        value = getattr(message, field.name)
        if field.type == "records":
            found[field.name] = None if value is None else _records_as_json(value, max_bytes)
        else:
            found[field.name] = _as_json(value, version, max_bytes)
    if message.unknown_tags:
        found["unknown_tags"] = {str(tag): _bytes(data, max_bytes) for tag, data in message.unknown_tags.items()}
    return found


def _as_json(value: Any, version: int, max_bytes: int | None) -> Any:
    if isinstance(value, Message):
        return _fields_as_json(value, version, max_bytes)
    if isinstance(value, list):
        return [_as_json(each, version, max_bytes) for each in value]
    if isinstance(value, bytes):
        return _bytes(value, max_bytes)
    if isinstance(value, uuid.UUID):
        return urlsafe_b64encode(value.bytes).decode().rstrip("=")
    return value


def _bytes(data: Buffer | None, max_bytes: int | None) -> Any:
    if data is None:
        return None
    shown = bytes(data)
    return json.loads(json_bytes(shown[:max_bytes], len(shown)))


def _records_as_json(data: memoryview, max_bytes: int | None) -> dict[str, Any]:
    """Return the batches with their records, in the form of ``kbatch dump``; damaged bytes are listed as lost."""
    table = kbatch.decode(data, include_control=True, on_error="skip")
    place = jsonlines.place_of(None, None, "")
    batches = [json.loads(line) for line in jsonlines.batch_lines(table, np.arange(len(table.batches)), place, {})]
    records = [json.loads(line) for line in jsonlines.record_lines(table, place, max_bytes)]
    losses = [json.loads(jsonlines.loss_line(loss, place)) for loss in table.losses]
    for each in (*batches, *records, *losses):
        # The message names the file, and the fields around the records the topic-partition.
        for name in ("topic", "partition", "file"):
            del each[name]
    for batch in batches:
        batch["records"] = []
    for record, row in zip(records, table.records["batch"].tolist(), strict=True):
        del record["position"]
        batches[row]["records"].append(record)
    found: dict[str, Any] = {"size": len(data), "batches": batches}
    if losses:
        found["lost"] = losses
    if table.consumed < len(data):
        found["incomplete_batch"] = len(data) - table.consumed
    return found
