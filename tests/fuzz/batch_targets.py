"""Targets that read and write record batches: each takes any bytes, and fails where a promise of kbatch is broken."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oracle
from agreement import assert_agrees
from choices import Choices, PackedChoices, guarded, split
from streams import Outcome, assert_same, streamed, whole
from tables import assert_accounted, records_of

import kbatch

LIMITS = kbatch.Limits(max_decompressed_bytes=1 << 20)
SMALL_LIMITS = kbatch.Limits(max_decompressed_bytes=3000, max_batch_bytes=2000)

# More chunks make a run slower, but reach no other code.
MAX_CHUNKS = 200


def use(table: kbatch.RecordTable) -> None:
    """Read everything that a table refers to."""
    assert len(table.records) == len(table)
    available = table.columns
    if "headers" in available:
        assert len(table.headers) == int(table.records["header_count"].sum())
    for name, values in (("key", table.keys), ("value", table.values)):
        if name in available:
            assert len(values()) == len(table)
    present = [name for name in ("offset", "timestamp", "key", "value", "headers") if name in available]
    for binary in ("binary", "binary_view"):
        table.to_arrow(columns=present, binary=binary).validate(full=True)  # type: ignore[arg-type]


def read_options(choices: PackedChoices) -> dict[str, Any]:
    return {
        "on_error": choices.of(["skip", "raise", "stop"]),
        "crc": choices.of(["verify", "mark", "skip"]),
        "isolation": choices.of(["read_uncommitted", "read_committed"]),
        "include_control": choices.of([False, True]),
        "threads": choices.of([1, 1, 1, 2]),
        "limits": choices.of([LIMITS, SMALL_LIMITS]),
        "start_offset": choices.of([None, None, 0, 1, 3, 102, 103]),
        "stop_offset": choices.of([None, None, 0, 2, 104, 2**63 - 1]),
        "columns": choices.of([None, None, ["offset"], ["key", "value"]]),
    }


def fuzz_decode(data: bytes) -> None:
    """Decode with any options; with ``on_error="skip"`` every byte is accounted for."""
    choices, data = split(data)
    options = read_options(choices)
    try:
        table = kbatch.decode(guarded(data), **options)
    except kbatch.KbatchError as error:
        assert options["on_error"] == "raise" or isinstance(error, kbatch.LimitExceededError), error
        return
    assert 0 <= table.consumed <= len(data)
    use(table)
    everything = {"on_error": "skip", "crc": "verify", "isolation": "read_uncommitted", "include_control": True}
    if everything.items() <= options.items() and options["start_offset"] is options["stop_offset"] is None:
        assert_accounted(table, len(data))


def fuzz_oracle(data: bytes) -> None:
    """Decode as the slow decoder of the tests does: the same records, or the same error at the same place."""
    choices, data = split(data)
    assert_agrees(data, verify=choices.of([True, False]))


def fuzz_scan(data: bytes) -> None:
    """Frame as the oracle does."""
    _, data = split(data)
    positions = []
    error = None
    at = 0
    while at < len(data):
        try:
            size = oracle.next_entry(data, at)
        except oracle.OracleError as found:
            error = found
            break
        if not size:
            break
        positions.append((at, size))
        at += size
    try:
        batches = kbatch.scan(guarded(data))
    except kbatch.CorruptBatchError as found:
        assert error is not None, found
        assert found.position == at
        return
    assert error is None, error
    assert list(zip(batches["position"].tolist(), batches["size"].tolist(), strict=True)) == positions


def fuzz_stream(data: bytes) -> None:
    """Decode a stream, cut and flushed anywhere: the result equals one decode of all bytes."""
    choices, data = split(data)
    options: dict[str, Any] = {
        "on_error": choices.of(["skip", "raise", "stop"]),
        "crc": choices.of(["verify", "mark", "skip"]),
        "limits": LIMITS,
    }
    size = max(choices.of([1, 7, 16, 61, 100, 1000]), len(data) // MAX_CHUNKS)
    often = choices.of([1, 2, 5, 1000])
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert_same(streamed(chunks, lambda i: i % often == 0, **options), whole(data, **options))


def fuzz_committed(data: bytes) -> None:
    """Follow transactions in a stream and in a buffer; no record of an aborted transaction is returned by one only."""
    choices, data = split(data)
    options: dict[str, Any] = {"on_error": "skip", "isolation": "read_committed", "limits": LIMITS}
    size = max(choices.of([1, 50, 61, 200, 5000]), len(data) // MAX_CHUNKS)
    try:
        table = kbatch.decode(data, **options)
    except kbatch.LimitExceededError:
        return
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    outcome = Outcome(kbatch.decode_stream(chunks, **options))
    if outcome.error is not None:
        assert isinstance(outcome.error, kbatch.LimitExceededError), outcome.error
        return
    found = [record for batch, _ in outcome.batches for record in batch.records]
    use(table)
    # A buffer may end with an incomplete batch, a stream may not: then more bytes are lost. A buffer withholds all
    # records from the first undecided offset on, a stream only later records, which is the same if offsets ascend.
    offsets = kbatch.decode(data, on_error="skip", limits=LIMITS, include_control=True).records["offset"]
    if table.consumed == len(data) and (np.diff(offsets) > 0).all():
        assert found == records_of(table)


def some_records(choices: Choices) -> dict[str, Any]:
    """Take columns for `kbatch.encode`."""
    columns: dict[str, list[Any]] = {"values": [], "keys": [], "timestamps": [], "offsets": [], "headers": []}
    offset = choices.number(choices.of([1, 2, 7]))
    while choices.left():
        sizes = choices.number(1)
        columns["values"].append(None if sizes & 15 == 15 else choices.take(sizes & 15) * (1 + 9 * (sizes & 1)))
        columns["keys"].append(None if sizes >> 7 else choices.take(sizes >> 4 & 3))
        columns["timestamps"].append(choices.signed(choices.of([1, 2, 6, 8])))
        columns["headers"].append([("h", None), ("", choices.take(3))][: choices.number(1) % 3])
        columns["offsets"].append(offset)
        offset += 1 + (choices.number(2) if sizes >> 6 & 1 else 0)
    return columns


def fuzz_encode(data: bytes) -> None:
    """Encode records and decode them again; the oracle reads the same records."""
    choices, data = split(data)
    magic = choices.of([2, 2, 1, 0])
    columns = some_records(Choices(data))
    if magic < 2 or choices.of([False, True]):
        del columns["headers"]
    if magic == 0:
        del columns["timestamps"]
    codecs = ["none", "gzip", "snappy", "lz4", *(["zstd"] if magic == 2 else [])]
    options: dict[str, Any] = {
        "codec": choices.of(codecs),
        "batch_size": choices.of([None, 1, 100, 1000]),
        "max_records": choices.of([None, 1, 3]),
    }
    try:
        encoded = kbatch.encode(magic=magic, **columns, **options)
    except (ValueError, kbatch.KbatchError):
        # The magic cannot store a timestamp or an offset.
        return
    table = kbatch.decode(encoded)
    assert table.consumed == len(encoded)
    assert table.values() == columns["values"]
    assert table.keys() == columns["keys"]
    assert table.records["offset"].tolist() == columns["offsets"]
    if "timestamps" in columns:
        assert table.records["timestamp"].tolist() == columns["timestamps"]
    truth = oracle.decode(encoded)
    assert truth.error is None, truth.error
    assert [record for batch in truth.batches for record in batch.records] == records_of(table)


def fuzz_rewrite(data: bytes) -> None:
    """Convert and recompress any batches: the result decodes to the same records."""
    choices, data = split(data)
    skip: dict[str, Any] = {"on_error": "skip", "limits": LIMITS}
    report = kbatch.RewriteReport()
    magic = choices.of([None, 0, 1, 2])
    # Message sets cannot be compressed with zstd.
    codec = choices.of(["none", "gzip", "snappy", "lz4", "zstd"][: 4 if magic in (0, 1) else 5])
    batch_size = choices.of([1, 200, 16384])
    try:
        before = kbatch.decode(data, include_control=True, **skip)
        if magic is None:
            made = kbatch.recompress(guarded(data), codec, batch_size=batch_size, report=report, **skip)
        else:
            lossy = choices.of(["drop", "raise"])
            made = kbatch.convert(
                guarded(data), magic, codec=codec, lossy=lossy, batch_size=batch_size, report=report, **skip
            )  # type: ignore[arg-type]
    except (kbatch.LimitExceededError, kbatch.ConversionLossError, kbatch.UnsupportedFormatError):
        return
    # Batches whose payload is not parsed are copied, also with invalid records.
    after = kbatch.decode(made, include_control=True, **skip)
    assert after.consumed == len(made)
    # Records that decode but that no batch can store, such as descending offsets, are reported.
    lost = {(loss.position, loss.length) for loss in before.losses}
    if magic in (None, 2) and lost >= {(loss.position, loss.length) for loss in report.damage}:
        assert np.array_equal(after.records["offset"], before.records["offset"])
        assert after.keys() == before.keys()
        assert after.values() == before.values()


def fuzz_broker(data: bytes) -> None:
    """Check and append produced batches as a broker does."""
    choices, data = split(data)
    checker = kbatch.SequenceChecker()
    for first, second in itertools.pairwise([0, len(data) // 2, len(data)]):
        part = data[first:second] if choices.of([False, True]) else data
        try:
            kbatch.validate_batch(part)
            kbatch.accept_batch(part, choices.of([0, 5, 1 << 62]))
        except kbatch.KbatchError:
            pass
        try:
            appended = bytearray(part)
            kbatch.assign_offsets(appended, choices.of([0, 7, 1 << 40]))
            checker.check(kbatch.scan(appended))
        except kbatch.KbatchError:
            continue
