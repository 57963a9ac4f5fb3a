"""The fields of control records, with their names in Kafka."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from kbatch.errors import KbatchError
from kbatch.escaping import escaped_json
from kbatch.format import ControlType
from kbatch.log.files.control_values import control_value

__all__ = ["control_fields", "control_text"]

# As Kafka's DumpLogSegments writes them.
_KRAFT = {
    ControlType.LEADER_CHANGE: "LeaderChange:",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlType.KRAFT_VERSION: "KRaftVersion",
    ControlType.KRAFT_VOTERS: "KRaftVoters",
}
_TYPES = {int(kind): kind for kind in ControlType}


def control_fields(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return the fields of a control record.

    Returns
    -------
    dict
        ``type``, which is the name of a `ControlType`, the number of an unknown type, or None if the key cannot be read
        (CTL-R1); and the value's fields by their names in Kafka's schemas, or ``error``.
    """
    number = _type(key)
    if number is None:
        return {"type": None, "error": "the key of the control record cannot be read"}
    kind = _TYPES.get(number)
    fields: dict[str, Any] = {"type": number if kind is None else kind.name}
    try:
        fields |= _plain(control_value(number, value))
    except KbatchError as error:
        fields["error"] = str(error)
    return fields


def control_text(key: bytes | None, value: bytes | None) -> str:
    """Return a control record in the format of DumpLogSegments (DMP-5)."""
    number = _type(key)
    kind = None if number is None else _TYPES.get(number)
    if kind is None:
        return f"controlType: UNKNOWN({-1 if number is None else number})"
    fields = control_fields(key, value)
    del fields["type"]
    if kind in _KRAFT:
        return f"{_KRAFT[kind]} {escaped_json(json.dumps(fields, separators=(',', ':'), ensure_ascii=False))}"
    if "error" in fields:
        return f"endTxnMarker: {kind.name} error: {fields['error']}"
    return f"endTxnMarker: {kind.name} coordinatorEpoch: {fields['coordinatorEpoch']}"


def _type(key: bytes | None) -> int | None:
    if key is None or len(key) < 4 or key[0] & 0x80:
        return None
    return int.from_bytes(key[2:4], "big", signed=True)


def _plain(value: Any) -> Any:
    """Name fields as Kafka's JSON converters do, and write ids as Kafka does."""
    if isinstance(value, dict):
        return {_camel(name): _plain(field) for name, field in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    joined = first + "".join(map(str.capitalize, rest))
    return "kRaft" + joined.removeprefix("kraft") if joined.startswith("kraft") else joined
