"""Values of control records (CTL-R3, CTL-R7).

The schemas are ``EndTxnMarker``, ``LeaderChangeMessage``, ``SnapshotHeaderRecord``, ``SnapshotFooterRecord``,
``KRaftVersionRecord`` and ``VotersRecord`` of Apache Kafka's clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbatch.arguments import check_types
from kbatch.errors import InvalidRecordError, UnsupportedFormatError
from kbatch.protocol.primitives import Reader, WireError

__all__ = ["control_value"]

# Smallest sizes of a voter in leader change and voters records, and of an endpoint.
_MIN_VOTER = 5
_MIN_FULL_VOTER = 27
_MIN_ENDPOINT = 5


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
        raise InvalidRecordError(f"{where}{schema.name} has no value", source=source)
    reader = Reader(value, flexible=schema.flexible)
    try:
        version = reader.int16()
        if version < 0:
            raise WireError(f"byte 0: version is {version}")
        if version > schema.known and schema.flexible:
            raise UnsupportedFormatError(
                f"{where}unsupported {schema.name} version {version}; supported are 0 to {schema.known}", source=source
            )
        fields = schema.read(reader, version)
        reader.tags()
    except WireError as error:
        raise InvalidRecordError(f"{where}{schema.name}, {error}", source=source) from None
    return {"version": version, **fields}


def _end_txn_marker(reader: Reader, version: int) -> dict[str, Any]:
    return {"coordinator_epoch": reader.int32()}


def _leader_change(reader: Reader, version: int) -> dict[str, Any]:
    def voter() -> dict[str, Any]:
        fields: dict[str, Any] = {"voter_id": reader.int32()}
        if version >= 1:
            fields["voter_directory_id"] = reader.uuid()
        reader.tags()
        return fields

    return {
        "leader_id": reader.int32(),
        "voters": reader.array(voter, min_size=_MIN_VOTER),
        "granting_voters": reader.array(voter, min_size=_MIN_VOTER),
    }


def _snapshot_header(reader: Reader, version: int) -> dict[str, Any]:
    return {"last_contained_log_timestamp": reader.int64()}


def _snapshot_footer(reader: Reader, version: int) -> dict[str, Any]:
    return {}


def _kraft_version(reader: Reader, version: int) -> dict[str, Any]:
    return {"kraft_version": reader.int16()}


def _kraft_voters(reader: Reader, version: int) -> dict[str, Any]:
    def endpoint() -> dict[str, Any]:
        fields = {"name": reader.string(), "host": reader.string(), "port": reader.uint16()}
        reader.tags()
        return fields

    def feature() -> dict[str, Any]:
        fields = {"min_supported_version": reader.int16(), "max_supported_version": reader.int16()}
        reader.tags()
        return fields

    def voter() -> dict[str, Any]:
        fields = {
            "voter_id": reader.int32(),
            "voter_directory_id": reader.uuid(),
            "endpoints": reader.array(endpoint, min_size=_MIN_ENDPOINT),
            "kraft_version_feature": feature(),
        }
        reader.tags()
        return fields

    return {"voters": reader.array(voter, min_size=_MIN_FULL_VOTER)}


class _Schema(NamedTuple):
    name: str
    known: int
    flexible: bool
    read: Callable[[Reader, int], dict[str, Any]]


_SCHEMAS = {
    0: _Schema("EndTxnMarker", 0, False, _end_txn_marker),
    1: _Schema("EndTxnMarker", 0, False, _end_txn_marker),
    2: _Schema("LeaderChangeMessage", 1, True, _leader_change),
    3: _Schema("SnapshotHeaderRecord", 0, True, _snapshot_header),
    4: _Schema("SnapshotFooterRecord", 0, True, _snapshot_footer),
    5: _Schema("KRaftVersionRecord", 0, True, _kraft_version),
    6: _Schema("VotersRecord", 0, True, _kraft_voters),
}
