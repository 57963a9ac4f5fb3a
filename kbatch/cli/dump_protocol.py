"""``kbatch dump --protocol``: the messages of a capture, or of a connection's two byte streams, as JSON lines."""

from __future__ import annotations

import json
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Buffer

import kbatch
from kbatch.batches.regular_files import open_regular
from kbatch.cli import jsonlines
from kbatch.cli.inputs import standard_input
from kbatch.cli.shown import json_bytes
from kbatch.cli.terminal import print_errors, write_lines
from kbatch.errors import KbatchError, LimitExceededError, ProtocolError
from kbatch.escaping import counted, escaped_json
from kbatch.protocol import (
    Conversation,
    Message,
    MessageSplitter,
    read_capture,
)
from kbatch.protocol.codec import Request, Response, UnknownMessage
from kbatch.protocol.packet_file import is_capture

__all__ = ["dump_messages"]

_CHUNK_SIZE = 1 << 20


class _Shown(NamedTuple):
    """How messages are shown: the largest number of bytes of a value, and the names of topics by id."""

    max_bytes: int | None
    topic_names: Mapping[uuid.UUID, str]


def dump_messages(paths: list[str], max_bytes: int | None) -> int:
    """Print the messages of a capture, or of one or two byte streams; return the exit status.

    Parameters
    ----------
    paths : list of str
        A pcap or pcapng file; or requests of a client and, if there are two, responses of the broker.
    max_bytes : int or None
        Largest number of bytes of a key, a value or another byte string that is shown.
    """
    if len(paths) == 1 and paths[0] != "-" and is_capture(paths[0]):
        return _dump_capture(paths[0], max_bytes)
    conversation = Conversation()
    shown = _Shown(max_bytes, conversation.topic_names)
    damaged = False
    for path, is_response in zip(paths, (False, True), strict=False):
        try:
            for position, data in _split(path):
                line: dict[str, Any] = {"file": path, "position": position, "size": len(data)}
                try:
                    decoded = conversation.response(data).response if is_response else conversation.request(data)
                    line |= _decoded_line(decoded, is_response, shown)
                except (LimitExceededError, ProtocolError) as error:
                    line["error"] = str(error)
                    _report(path, f"message at byte {position}: ", error)
                    damaged = True
                write_lines([json.dumps(line, ensure_ascii=False)], escaped_json)
        except KbatchError as error:
            # Without a valid length nothing after it can be split.
            _report(path, "", error if error.position else _no_stream(path, error))
            damaged = True
    return 3 if damaged else 0


def _dump_capture(path: str, max_bytes: int | None) -> int:
    """Print the messages of a capture, in the order in which they were captured."""
    capture = read_capture(path)
    shown = _Shown(max_bytes, capture.topic_names)
    for each in capture.messages():
        line: dict[str, Any] = {
            "time": each.time.isoformat(timespec="microseconds"),
            "client": each.client,
            "broker": each.broker,
            "size": each.size,
        }
        if each.message is None:
            line |= {"correlation_id": each.correlation_id, "error": str(each.error)}
        else:
            line |= _decoded_line(each.message, each.is_response, shown)
        write_lines([json.dumps(line, ensure_ascii=False)], escaped_json)
    for lost in capture.skipped:
        source, target = (lost.broker, lost.client) if lost.is_response else (lost.client, lost.broker)
        sizes = [
            f"{counted(size, 'byte')} {kind}"
            for size, kind in ((lost.skipped, "skipped"), (lost.missing, "missing"))
            if size
        ]
        parts = [f"{source} to {target}"] * bool(source) + [" and ".join(sizes)] * bool(sizes) + [lost.reason]
        text = ": ".join(parts)
        print_errors(f"kbatch dump: {path}: {text}", style="error")
    return 3 if capture.skipped else 0


def _no_stream(path: str, error: KbatchError) -> KbatchError:
    """Return an error of the first length, which another kind of file has there."""
    if not isinstance(error, LimitExceededError) or path == "-":
        return error
    return ProtocolError(
        "the file does not begin with a message of Kafka's protocol, and is neither a pcap nor a pcapng file; convert "
        "captures of other formats with editcap -F pcapng IN OUT"
    )


def _report(path: str, at: str, error: KbatchError) -> None:
    print_errors(f"kbatch dump: {path}: {at}{error}", style="error")


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


def _decoded_line(decoded: Request | Response | UnknownMessage, is_response: bool, shown: _Shown) -> dict[str, Any]:
    found = {
        "type": "response" if is_response else "request",
        "api": decoded.api_key.name,
        "version": decoded.version,
        "correlation_id": decoded.header.correlation_id,
    }
    if not is_response:
        found["client_id"] = decoded.header.client_id
    if isinstance(decoded, UnknownMessage):
        return found | {"body": _bytes(decoded.body, shown.max_bytes)}
    return found | {"message": _fields_as_json(decoded.message, decoded.version, shown)}


def _fields_as_json(message: Message, version: int, shown: _Shown) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.schema.fields:
        if version not in field.versions:
            continue
        value = getattr(message, field.name)
        if field.type == "records":
            found[field.name] = None if value is None else _records_as_json(value, shown.max_bytes)
            continue
        # Versions with ids of topics have no names.
        if field.name == "topic_id" and value in shown.topic_names and not {"topic", "name"} & found.keys():
            found["topic"] = shown.topic_names[value]
        found[field.name] = _as_json(value, version, shown)
    if message.unknown_tags:
        found["unknown_tags"] = {str(tag): _bytes(data, shown.max_bytes) for tag, data in message.unknown_tags.items()}
    return found


def _as_json(value: Any, version: int, shown: _Shown) -> Any:
    if isinstance(value, Message):
        return _fields_as_json(value, version, shown)
    if isinstance(value, list):
        return [_as_json(each, version, shown) for each in value]
    if isinstance(value, bytes):
        return _bytes(value, shown.max_bytes)
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
