"""Properties of generated damage: a buffer, a stream in any chunks and a log give the same, and nothing aborted."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import oracle
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from log_batches import segment_path
from streams import Outcome, with_end
from tables import assert_accounted, short_inputs
from transaction_logs import ABORT, COMMIT, marker

import kbatch

NEXT = 1 << 41
# Shrinking takes minutes.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
LIMITS = kbatch.Limits(max_batch_bytes=1500)
LEGACY_CODECS = [None, "gzip", "snappy", "lz4"]
CODECS = ["none", "none", "none", "gzip", "snappy", "lz4", "zstd"]


class Damaged(NamedTuple):
    """Damaged bytes, and the offsets that are in no transaction, or in a committed one, of the undamaged log.

    If a stretch was cut out without a trace, a marker may be missing that no reader can miss: `committed` is then None.
    """

    data: bytes
    committed: frozenset[int] | None


def some_entry(draw: st.DrawFn, offset: int) -> tuple[bytes, int, str, int]:
    """Build a batch, message or message set; return it, the number of its offsets, its kind and its producer."""
    producer = draw(st.integers(1, 3))
    count = draw(st.sampled_from([1, 2, 3] * 5 + [60]))
    contents = [(b"k", draw(st.sampled_from([b"", b"v", b"value" * 4, bytes(90)]))) for _ in range(min(count, 3))]
    contents += [(b"k", b"v")] * (count - len(contents))
    match draw(st.sampled_from(["txn"] * 4 + ["abort", "commit"] * 2 + ["plain", "idempotent", "message", "set"])):
        case "abort":
            return marker(offset, producer, ABORT), 1, "abort", producer
        case "commit":
            return marker(offset, producer, COMMIT), 1, "commit", producer
        case "message":
            return oracle.build_message(*contents[0], magic=draw(st.integers(0, 1)), offset=offset), 1, "message", -1
        case "set":
            codec = draw(st.sampled_from(LEGACY_CODECS[1:]))
            magic = draw(st.integers(0, 1))
            return oracle.build_message_set(contents, magic=magic, codec=codec, base_offset=offset), count, "set", -1
        case kind:
            batch = oracle.build_batch(
                [oracle.encode_record(i, i, key, value) for i, (key, value) in enumerate(contents)],
                # Many records are smaller than their number suggests only if they are compressed.
                codec=draw(st.sampled_from(CODECS if count <= 3 else CODECS[3:])),
                base_offset=offset,
                producer_id=-1 if kind == "plain" else producer,
                producer_epoch=-1 if kind == "plain" else 0,
                base_sequence=-1 if kind == "plain" else offset % 1000,
                attributes=oracle.TRANSACTIONAL if kind == "txn" else 0,
            )
            return batch, count, kind, producer


def forged_header(draw: st.DrawFn, offset: int) -> bytes:
    """Build a header whose length and checksum are not those of its bytes."""
    header = bytearray(marker(offset, draw(st.integers(1, 3)), COMMIT)[:61])
    header[8:12] = draw(st.sampled_from([49, 66, 100, 144, 1000, 1400, 2**30, 2**32 - 1])).to_bytes(4, "big")
    header[17] ^= 1
    return bytes(header)


@st.composite
def damaged_logs(draw: st.DrawFn) -> Damaged:
    entries: list[bytes] = []
    begun: dict[int, list[int]] = {}
    committed: set[int] = set()
    offset = draw(st.sampled_from([0, 7, 2**40]))
    for _ in range(draw(st.integers(1, 14))):
        entry, count, kind, producer = some_entry(draw, offset)
        entries.append(entry)
        if kind == "txn":
            begun.setdefault(producer, []).extend(range(offset, offset + count))
        elif kind in ("abort", "commit"):
            ended = begun.pop(producer, [])
            committed.update(ended if kind == "commit" else ())
        else:
            committed.update(range(offset, offset + count))
        offset += count + draw(st.sampled_from([0, 0, 0, 0, 2]))
    whole = b"".join(entries)
    starts = [0, *itertools.accumulate(map(len, entries))]
    pieces = [bytearray(entry) for entry in entries]
    leaves_trace = True
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(pieces) - 1))
        piece = pieces[at]
        # No checksum covers the base offset, and every reader believes it.
        first = min(draw(st.integers(8, max(8, len(piece) - 1))), len(piece))
        match draw(st.sampled_from(["flip", "flip", "byte", "range", "entries", "length", "insert", "forge", "cut"])):
            case "flip" if first < len(piece):
                piece[first] ^= 1 << draw(st.integers(0, 7))
            case "byte" if first < len(piece):
                piece[first] = draw(st.sampled_from([0, 0x7F, 0x80, 0xFF]))
            case "range":
                last = draw(st.integers(first, len(piece)))
                piece[first:last] = bytes([draw(st.sampled_from([0, 0xFF, 0x55]))]) * (last - first)
            case "entries":
                for each in pieces[at : at + draw(st.integers(1, 3))]:
                    each[:] = bytes([draw(st.sampled_from([0, 0xFF]))]) * len(each)
            case "length":
                size = draw(st.sampled_from([len(b"".join(pieces[at : at + n])) for n in (1, 2, 3)] + [0, 40, 5000]))
                piece[8:12] = max(0, size - 12).to_bytes(4, "big")
            case "insert":
                piece[:0] = draw(st.sampled_from([bytes(20), b"\xff" * 90, whole[starts[0] : starts[1]][:70]]))
            case "forge":
                piece[:0] = forged_header(draw, draw(st.integers(0, 50)))
            case "cut":
                del piece[draw(st.integers(0, len(piece))) :]
                leaves_trace = False
    data = b"".join(pieces)
    end = draw(st.sampled_from([len(data), len(data), len(data), draw(st.integers(0, len(data)))]))
    return Damaged(data[:end], frozenset(committed) if leaves_trace else None)


def whole_outcome(data: bytes, options: dict[str, Any]) -> tuple[Outcome, kbatch.RecordTable | None]:
    """Decode all bytes at once; after an error, the batches before it."""
    try:
        table = kbatch.decode(data, **options)
    except kbatch.KbatchError as found:
        outcome = Outcome([kbatch.decode(data, **options | {"on_error": "stop"})])
        outcome.batches = [(batch, status) for batch, status in outcome.batches if batch.position < found.position]
        outcome.losses, outcome.error = [], found
        return outcome, None
    return Outcome([table]), table


def streamed_outcome(
    draw: st.DrawFn, data: bytes, options: dict[str, Any]
) -> tuple[Outcome, kbatch.RecordTable | None]:
    """Decode the bytes in some chunks, flushed at some points or by tables of a size; return the last table too."""
    points = draw(st.lists(st.integers(0, len(data)), max_size=12))
    chunks = [data[a:b] for a, b in itertools.pairwise([0, *sorted(points), len(data)])]
    last: list[kbatch.RecordTable] = []

    def tables() -> Any:
        decoder = kbatch.StreamDecoder(**options)
        if max_bytes is not None:
            yield from decoder.tables(iter(chunks), max_bytes=max_bytes)
            return
        for chunk, flushes in zip(chunks, itertools.cycle(flush_points), strict=False):
            decoder.feed(chunk)
            if flushes:
                yield decoder.flush()
        for _ in range(2):
            yield decoder.flush()
        last.append(decoder.finish())
        yield last[0]

    # `tables` does not take the chunks after damage that ends the reading.
    max_bytes = draw(st.sampled_from([None, None, 1, 300, 1 << 20])) if options["on_error"] != "stop" else None
    flush_points = draw(st.lists(st.booleans(), min_size=1, max_size=5))
    return Outcome(tables()), last[0] if last else None


def logged_outcome(directory: Path, data: bytes, options: dict[str, Any], *, live: bool, max_bytes: int) -> Outcome:
    for path in directory.glob("*.log"):
        path.unlink()
    segment_path(directory, 0).write_bytes(data)
    if not live:
        segment_path(directory, NEXT).write_bytes(b"")
    outcome = Outcome(kbatch.Log(directory).tables(start_offset=0, max_bytes=max_bytes, **options))
    # The offsets before the next segment are a gap of unknown cause.
    outcome.losses = [loss for loss in outcome.losses if loss[1]]
    return outcome


def returned(outcome: Outcome) -> list[int]:
    return [record.offset for batch, _ in outcome.batches for record in batch.records]


def assert_same_outcome(found: Outcome, expected: Outcome) -> None:
    assert found.batches == expected.batches
    assert found.losses == expected.losses
    # A stream and a sealed segment also report why the last entry of a buffer is incomplete (FRM-R6).
    if isinstance(expected.error, kbatch.TruncatedBatchError):
        assert isinstance(found.error, kbatch.KbatchError)
    else:
        assert type(found.error) is type(expected.error)
    if expected.error is not None:
        assert found.error is not None
        assert (found.error.position, found.error.base_offset) == (expected.error.position, expected.error.base_offset)


def is_damaged_tail(data: bytes, outcome: Outcome, options: dict[str, Any]) -> bool:
    """Whether a good batch follows the incomplete last one, which only a log looks for unless damage is skipped."""
    if options["on_error"] == "skip" or outcome.error is not None or outcome.losses:
        return False
    losses = kbatch.decode(data, **options | {"on_error": "skip"}).losses
    return any(loss.position == outcome.consumed for loss in losses)


def ends_well(table: kbatch.RecordTable | None, size: int) -> bool:
    """Whether the input ends with a good batch."""
    if table is None or table.consumed < size or not len(table.batches):
        return False
    return not table.losses or sum(table.losses[-1][:2]) < size


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "t-0"
    path.mkdir()
    return path


@short_inputs
@settings(phases=PHASES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_buffers_streams_and_logs_give_the_same_for_any_damage(directory: Path, data: st.DataObject) -> None:
    damaged = data.draw(damaged_logs())
    content = damaged.data
    on_error = data.draw(st.sampled_from(["skip", "skip", "skip", "stop", "raise"]))
    crc = data.draw(st.sampled_from(["verify", "verify", "verify", "mark", "skip"]))
    isolation = data.draw(st.sampled_from(["read_uncommitted", "read_committed"]))
    options: dict[str, Any] = {"on_error": on_error, "crc": crc, "isolation": isolation, "limits": LIMITS}
    expected, table = whole_outcome(content, options)
    is_committed = isolation == "read_committed"
    if table is not None and crc == "verify" and on_error == "skip" and not is_committed:
        assert_accounted(table, len(content))
    if is_committed and crc == "verify" and damaged.committed is not None:
        # Damage never turns an aborted record into a committed one.
        assert set(returned(expected)) <= damaged.committed

    stream, last = data.draw(st.composite(streamed_outcome)(content, options))
    at_end = with_end(whole_outcome(content, options)[0], content, options) if expected.error is None else expected
    if at_end.error is not None and is_committed:
        for outcome in (at_end, stream):
            outcome.batches = [each for each in outcome.batches if each[1] != kbatch.BatchStatus.UNDECIDED]
    offsets = [batch.base_offset for batch, _ in expected.batches]
    if not is_committed or offsets == sorted(offsets):
        assert_same_outcome(stream, at_end)
        if last is not None and table is not None and on_error == "skip":
            assert (last.pending, last.last_stable_offset) == (table.pending, table.last_stable_offset)

    live = data.draw(st.booleans())
    if live and content.endswith(bytes(12)):
        # Zeros at the end of a live segment are not damage.
        return
    max_bytes = data.draw(st.sampled_from([1, 300, 1 << 20]))
    logged = logged_outcome(directory, content, options, live=live, max_bytes=max_bytes)
    if is_committed and crc == "verify" and damaged.committed is not None:
        assert set(returned(logged)) <= damaged.committed
    if is_committed and (on_error != "skip" or not (live or ends_well(table, len(content)))):
        # A log also uses the markers after damage that ends a read, and the loss of a sealed segment's end.
        return
    is_cut = live and not is_damaged_tail(content, expected, options)
    assert_same_outcome(logged, expected if is_cut else at_end)
