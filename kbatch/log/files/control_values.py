"""Values of control records (CTL-R3, CTL-R7)."""

from __future__ import annotations

from typing import Any

from kbatch.arguments import check_types
from kbatch.errors import InvalidRecordError, ProtocolError, UnsupportedFormatError
from kbatch.format import ControlType
from kbatch.protocol.stored import decode_control
from kbatch.public_names import public_in

__all__ = ["control_value"]

_SCHEMAS: dict[int, str] = {
    ControlType.ABORT: "EndTxnMarker",
    ControlType.COMMIT: "EndTxnMarker",
    ControlType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlType.KRAFT_VOTERS: "VotersRecord",
}


@public_in("kbatch.log")
def control_value(
    type_id: int, value: bytes | None, *, source: str | None = None, offset: int | None = None
) -> dict[str, Any]:
    """Decode the value of a control record.

    Parameters
    ----------
    type_id : int
        The type from the record's key: 0 abort, 1 commit, 2 leader change, 3 snapshot header, 4 snapshot footer,
        5 KRaft version, 6 KRaft voters (CTL-R2).
    value : bytes or None
    source, offset : optional
        The file and the record's offset, for errors.

    Returns
    -------
    dict
        The schema's fields by their names in snake case; directory ids are `uuid.UUID`. Empty for an unknown type.

    Raises
    ------
    InvalidRecordError
        If the value is null or does not match its schema.
    UnsupportedFormatError
        If the version of a KRaft record is unknown. Markers of a later version are read as version 0, as in Kafka.

    References
    ----------
    Rules such as CTL-R2 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> control_value(1, bytes([0, 0, 0, 0, 0, 7]))
    {'version': 0, 'coordinator_epoch': 7}
    """
    check_types(control_value, locals())
    schema = _SCHEMAS.get(type_id)
    if schema is None:
        return {}
    where = ", ".join([*([source] if source else []), *([f"offset {offset}"] if offset is not None else [])])
    where = f"{where}: " if where else ""
    if value is None:
        raise InvalidRecordError(f"{where}{schema} has no value", source=source)
    try:
        version, message = decode_control(schema, value)
    except ProtocolError as error:
        raise InvalidRecordError(f"{where}{schema}, {error}", source=source) from None
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(f"{where}{error}", source=source) from None
    fields: dict[str, Any] = _with_plain_names(message.to_dict(version=version))
    return {"version": version} | fields


def _with_plain_names(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_plain_names(each) for each in value]
    if isinstance(value, dict):
        return {name.replace("k_raft", "kraft"): _with_plain_names(each) for name, each in value.items()}
    return value
