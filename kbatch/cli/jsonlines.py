"""Batches, records and index entries as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kbatch.cli.batches import BATCH_FIELDS, TIMESTAMP_TYPES, codec_names, last_sequences, timestamp_types
from kbatch.cli.control_fields import control_fields
from kbatch.cli.decoded_values import DecodedValues
from kbatch.cli.shown import json_bytes, quoted
from kbatch.format import ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_TRANSACTIONAL, BatchStatus
from kbatch.kernels.slices import header_keys, header_values, record_keys, record_values
from kbatch.options import On
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable

__all__ = ["batch_lines", "entry_lines", "loss_line", "place_of", "record_lines", "value_lines"]

_STATUS = [status.name.lower() for status in BatchStatus]
# The number of records formatted at a time.
_FORMATTED_RECORDS = 4096
_JSON_FLAGS = ("false", "true")


def place_of(topic: str | None, partition: int | None, file: str | None) -> str:
    """Return the fields that begin each line of a file, or of a live topic without one, as JSON without braces.

    Examples
    --------
    >>> print(place_of("orders", 0, "00000000000000000000.log"))
    "topic": "orders", "partition": 0, "file": "00000000000000000000.log"
    """
    shown = ("null", "null") if topic is None else (quoted(topic), partition)
    name = "" if file is None else f', "file": {quoted(file)}'
    return f'"topic": {shown[0]}, "partition": {shown[1]}{name}'


def batch_lines(
    table: RecordTable, rows: npt.NDArray[np.intp], place: str, errors: dict[int, str], *, in_file: bool = True
) -> Iterator[str]:
    """Yield one line per batch in `rows`, with the fields of `place_of`; `errors` has descriptions by position.

    Without `in_file`, positions are left out: they are those in the response of a broker.
    """
    batches = table.batches[rows]
    new = batches["magic"] == 2
    for row, codec, kind, is_new, sequence in zip(
        batches[BATCH_FIELDS].tolist(), codec_names(batches),
        timestamp_types(batches).tolist(), new.tolist(), last_sequences(batches).tolist(),
        strict=True,
    ):  # fmt: skip
        (
            base_offset, last_offset, count, base_timestamp, max_timestamp, producer_id, producer_epoch,
            base_sequence, epoch, position, size, crc, attributes, magic, status,
        ) = row  # fmt: skip
        line = (
            f'{{{place}{_position(position, in_file)}, "size": {size}, "magic": {magic}, '
            f'"base_offset": {_known(base_offset, is_new or count >= 0)}, "last_offset": {last_offset}, '
            f'"count": {_known(count, count >= 0 or is_new)}, "codec": "{codec}", "crc": {crc}, '
            f'"status": "{_STATUS[status]}", "timestamp_type": "{TIMESTAMP_TYPES[kind]}", '
            f'"base_timestamp": {_known(base_timestamp, is_new and base_timestamp != -1)}, '
            f'"max_timestamp": {_known(max_timestamp, max_timestamp != -1)}, '
            f'"transactional": {_JSON_FLAGS[is_new and attributes & ATTRIBUTE_TRANSACTIONAL != 0]}, '
            f'"control": {_JSON_FLAGS[is_new and attributes & ATTRIBUTE_CONTROL != 0]}, '
            f'"delete_horizon_ms": {_known(base_timestamp, is_new and attributes & ATTRIBUTE_DELETE_HORIZON != 0)}, '
            f'"producer_id": {_known(producer_id, is_new and producer_id != -1)}, '
            f'"producer_epoch": {_known(producer_epoch, is_new and producer_epoch != -1)}, '
            f'"base_sequence": {_known(base_sequence, is_new and base_sequence != -1)}, '
            f'"last_sequence": {_known(sequence, is_new and sequence != -1)}, '
            f'"partition_leader_epoch": {_known(epoch, is_new and epoch != -1)}'
        )
        error = errors.get(position)
        yield f"{line}}}" if error is None else f'{line}, "error": {quoted(error)}}}'


def record_lines(
    table: RecordTable,
    place: str,
    max_bytes: int | None,
    decoded: DecodedValues | None = None,
    *,
    in_file: bool = True,
) -> Iterator[str]:
    """Yield one line per record; keys, values and header values that are not decoded are cut to `max_bytes`.

    Without `in_file`, positions are left out.
    """
    batches = table.batches
    kinds = [f'"{TIMESTAMP_TYPES[kind]}"' for kind in timestamp_types(batches).tolist()]
    positions = [_position(each, in_file) for each in batches["position"].tolist()]
    control = ((batches["attributes"] & ATTRIBUTE_CONTROL) != 0) & (batches["magic"] == 2)
    has_control = bool(control[table.records["batch"]].any())
    for start in range(0, len(table), _FORMATTED_RECORDS):
        part = table[start : start + _FORMATTED_RECORDS]
        rows = part.records
        keys = _byte_strings(record_keys, rows, part.data, "key_len", max_bytes)
        values = _byte_strings(record_values, rows, part.data, "value_len", max_bytes)
        if decoded is not None:
            is_control = control[rows["batch"]] if has_control else np.zeros(len(rows), np.bool_)
            keys = _decoded(decoded, part, "key", is_control, keys, max_bytes)
            values = _decoded(decoded, part, "value", is_control, values, max_bytes)
        headers = _json_headers(part, max_bytes)
        for i, (offset, timestamp, batch, key, value) in enumerate(
            zip(rows["offset"].tolist(), rows["timestamp"].tolist(), rows["batch"].tolist(), keys, values, strict=True)
        ):
            time = "null" if timestamp == -1 else timestamp
            line = (
                f'{{{place}{positions[batch]}, "offset": {offset}, "timestamp": {time}, '
                f'"timestamp_type": {kinds[batch]}, "key": {key}, "value": {value}, "headers": [{headers[i]}]'
            )
            if has_control and control[batch]:
                fields = control_fields(part.key(i), part.value(i))
                line += f', "control": {json.dumps(fields, ensure_ascii=False)}'
            yield line + "}"


def value_lines(table: RecordTable, decoded: DecodedValues | None = None) -> Iterator[bytes]:
    """Yield the bytes of each value, empty for null, or the JSON of decoded values."""
    made = None if decoded is None else decoded.values(table, "value")
    yield from (
        (each or b"" for each in record_values(table.records, table.data)) if made is None else map(str.encode, made)
    )


def loss_line(loss: Loss, place: str, *, in_file: bool = True) -> str:
    """Return a line for bytes that cannot be framed as batches."""
    return (
        f'{{{place}{_position(loss.position, in_file)}, "size": {loss.length}, "status": "lost", '
        f'"error": {quoted(loss.reason)}}}'
    )


def entry_lines(place: str, entries: npt.NDArray[np.void]) -> Iterator[str]:
    """Yield one line per entry of an index file or snapshot, with the fields of its dtype."""
    names = entries.dtype.names or ()
    for row in entries:
        fields = json.dumps(dict(zip(names, row.tolist(), strict=True)), ensure_ascii=False)
        yield f"{{{place}, {fields[1:]}"


def _position(position: int, in_file: bool) -> str:
    return f', "position": {position}' if in_file else ""


def _known(number: int, known: bool) -> int | str:
    return number if known else "null"


def _byte_strings(  # type: ignore[no-untyped-def]
    gather, rows: npt.NDArray[np.void], data: npt.NDArray[np.uint8], length: str, limit: int | None
) -> list[str]:
    """Return JSON for a column of byte strings; bytes that are cut off are not copied."""
    if limit is None or not (rows[length] > limit).any():
        return [json_bytes(each) for each in gather(rows, data)]
    cut = rows.copy()
    cut[length] = np.minimum(cut[length], limit)
    return [json_bytes(*each) for each in zip(gather(cut, data), rows[length].tolist(), strict=True)]


def _decoded(
    decoded: DecodedValues,
    table: RecordTable,
    on: On,
    is_control: npt.NDArray[np.bool_],
    raw: list[str],
    limit: int | None,
) -> list[str]:
    """Return the fields of decoded keys or values; control records have none."""
    if not is_control.any():
        return decoded.fields(table, on, limit) or raw
    made = decoded.fields(table[~is_control], on, limit)
    if made is None:
        return raw
    rest = iter(made)
    return [each if control else next(rest) for each, control in zip(raw, is_control.tolist(), strict=True)]


def _json_headers(table: RecordTable, limit: int | None) -> list[str]:
    headers = table.headers
    keys = [json_bytes(key) for key in header_keys(headers, table.data)]
    values = _byte_strings(header_values, headers, table.data, "value_len", limit)
    pairs = [f"[{key}, {value}]" for key, value in zip(keys, values, strict=True)]
    return list(map(", ".join, table._by_record(pairs)))
