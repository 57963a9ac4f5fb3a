"""Targets that read a log directory: segments with index files, state files, and the records of internal topics."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from batch_targets import LIMITS, use
from choices import Choices, split
from oracle_primitives import zigzag
from tables import records_of

import kbatch
import kbatch.log as logs
from kbatch.log.check.verification import verify_index, verify_log, verify_snapshot, verify_transaction_index

_DIRECTORY = Path(tempfile.mkdtemp(prefix="kbatch-fuzz-"))
INDEXES = {".index": 8, ".timeindex": 12, ".txnindex": 34}


def written_log(choices: Any, data: bytes) -> Path:
    """Write a segment and index files; the entries of the index files are the last bytes of `data`."""
    directory = _DIRECTORY / "topic-0"
    directory.mkdir(exist_ok=True)
    for suffix, size in INDEXES.items():
        count = choices.of([0, 0, 1, 2, 4])
        path = directory / f"{0:020}{suffix}"
        if not count:
            path.unlink(missing_ok=True)
            continue
        cut = max(len(data) - count * size - choices.of([0, 0, 0, 3]), 0)
        path.write_bytes(data[cut:])
        data = data[:cut]
    (directory / f"{0:020}.log").write_bytes(data)
    other = directory / f"{1 << 40:020}.log"
    if choices.of([True, False]):
        other.write_bytes(b"")
    else:
        other.unlink(missing_ok=True)
    return directory


def fuzz_log(data: bytes) -> None:
    """Read, seek in and verify a log; without bounds its tables have the records of one `kbatch.decode`."""
    choices, data = split(data)
    directory = written_log(choices, data)
    log = kbatch.Log(directory, use_indexes=choices.of([True, False]))
    options: dict[str, Any] = {
        "start_offset": choices.of([None, 0, 1, 101]),
        "stop_offset": choices.of([None, None, 3, 104]),
        "start_timestamp": choices.of([None, None, 0, 1005]),
        "isolation": choices.of(["read_uncommitted", "read_committed"]),
        "max_bytes": choices.of([1, 300, 1 << 20]),
    }
    found = []
    try:
        for number, table in enumerate(log.tables(on_error="skip", limits=LIMITS, **options)):
            # With small tables there are many.
            if number < 3:
                use(table)
            found += records_of(table)
    except kbatch.KbatchError as error:
        # A `.txnindex` or a state file that cannot be read is an error in each mode.
        assert isinstance(error, kbatch.LimitExceededError | kbatch.LogDirectoryError | kbatch.CorruptBatchError), error
        return
    bounds = ("start_offset", "stop_offset", "start_timestamp")
    if all(options[name] is None for name in bounds) and options["isolation"] == "read_uncommitted":
        content = log.segments[0].path
        whole = kbatch.decode(Path(content).read_bytes(), on_error="skip", limits=LIMITS)
        if whole.consumed == Path(content).stat().st_size:
            assert found == records_of(whole)
    verify_log(log.segments, limits=LIMITS, sequences=choices.of([True, False]))
    for suffix in INDEXES:
        path = str(directory / f"{0:020}{suffix}")
        if not Path(path).exists():
            continue
        if suffix == ".txnindex":
            verify_transaction_index(path, log.segments)
        else:
            verify_index(path, log.segments[0])


def _verify_snapshot(path: Path) -> None:
    verify_snapshot(str(path))


STATE: list[tuple[str, Callable[[Any], Any]]] = [
    ("0.txnindex", logs.read_transaction_index),
    ("0.snapshot", logs.read_producer_snapshot),
    ("0.snapshot", _verify_snapshot),
    ("leader-epoch-checkpoint", logs.read_leader_epochs),
    ("recovery-point-offset-checkpoint", logs.read_offset_checkpoint),
    ("partition.metadata", logs.read_partition_metadata),
    ("meta.properties", logs.read_meta_properties),
]


def fuzz_state(data: bytes) -> None:
    """Read each kind of state file; the only exceptions are `KbatchError`, with the path."""
    choices, data = split(data)
    name, read = choices.of(STATE)
    path = _DIRECTORY / name
    path.write_bytes(data)
    try:
        read(path)
    except kbatch.KbatchError as error:
        assert str(path) in str(error), error


def table_of_rows(rows: list[tuple[bytes | None, bytes | None]], *, control: bool) -> kbatch.RecordTable:
    """Build a table of these keys and values, of control records or of data."""
    payload = b""
    for i, row in enumerate(rows):
        body = b"\0\0" + zigzag(i)
        for part in row:
            body += zigzag(-1) if part is None else zigzag(len(part)) + part
        payload += zigzag(len(body) + 1) + body + b"\0"
    head = (57 + len(payload) - 8).to_bytes(4, "big") + b"\xff" * 4 + b"\2" + bytes(4)
    fields = (0x30 if control else 0).to_bytes(2, "big") + (len(rows) - 1).to_bytes(4, "big", signed=True)
    fields += bytes(16) + (1).to_bytes(8, "big") + bytes(2) + b"\xff" * 4 + len(rows).to_bytes(4, "big")
    return kbatch.decode(bytes(8) + head + fields + payload, crc="skip", include_control=True)


def fuzz_internal(data: bytes) -> None:
    """Decode the records of internal topics and control records."""
    choices, data = split(data)
    rows: list[tuple[bytes | None, bytes | None]] = []
    taken = Choices(data)
    read = choices.of(
        [
            logs.consumer_offsets,
            logs.transaction_state,
            logs.metadata_records,
            logs.cluster_metadata,
            kbatch.control_records,
        ]
    )
    while taken.left():
        key, value = taken.number(1), taken.number(1)
        rows.append((None if key == 255 else taken.take(key), None if value == 255 else taken.take(value)))
    table = table_of_rows(rows, control=read is kbatch.control_records)
    assert table.keys() == [key for key, _ in rows]
    with contextlib.suppress(kbatch.KbatchError):
        read(table)
    for key, value in rows[:5]:
        try:
            logs.control_value(int.from_bytes((key or b"\0")[:2], "big"), value)
        except kbatch.KbatchError:
            continue
