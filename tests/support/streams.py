"""Helpers of the tests of streams: combined results of tables, and a decoder that is fed and flushed at any points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import oracle
from tables import batches_of

import kbatch


class Outcome:
    """The combined result of tables: batches with their records and status, losses, and the error, if any."""

    def __init__(self, tables: Iterable[kbatch.RecordTable]) -> None:
        self.batches: list[tuple[oracle.Batch, int]] = []
        self.losses: list[tuple[int, int, int | None]] = []
        self.reasons: list[str] = []
        self.consumed = 0
        self.error: kbatch.KbatchError | None = None
        try:
            for table in tables:
                self.batches += zip(batches_of(table), table.batches["status"].tolist(), strict=True)
                self.losses += [(loss.position, loss.length, loss.base_offset) for loss in table.losses]
                self.reasons += [loss.reason for loss in table.losses]
                self.consumed += table.consumed
        except kbatch.KbatchError as error:
            self.error = error


def with_end(outcome: Outcome, data: bytes, options: dict[str, Any]) -> Outcome:
    left = len(data) - outcome.consumed
    if options.get("on_error", "raise") == "raise":
        if left:
            outcome.error = kbatch.TruncatedBatchError("", position=outcome.consumed)
    elif not outcome.losses or sum(outcome.losses[-1][:2]) < len(data):
        if left:
            outcome.losses.append((outcome.consumed, left, None))
            outcome.consumed = len(data)
    else:
        outcome.consumed = len(data)
    return outcome


def whole(data: bytes, **options: Any) -> Outcome:
    """Decode the whole input, and add the outcome of a stream's end: an incomplete batch is an error or a loss."""
    try:
        outcome = Outcome([kbatch.decode(data, **options)])
    except kbatch.KbatchError as error:
        found = error
    else:
        return with_end(outcome, data, options)
    outcome = Outcome([kbatch.decode(data[: found.position], **options)])
    outcome.error = found
    return outcome


def streamed(chunks: Iterable[bytes], flush: Callable[[int], bool] = lambda _: True, **options: Any) -> Outcome:
    def tables() -> Iterator[kbatch.RecordTable]:
        decoder = kbatch.StreamDecoder(**options)
        fed = 0
        for i, chunk in enumerate(chunks):
            ready = decoder.feed(chunk)
            fed += len(chunk)
            assert decoder.position + decoder.pending_bytes == fed
            if flush(i):
                table = decoder.flush()
                assert ready or not (len(table.batches) or table.losses or table.consumed)
                yield table
                assert decoder.position + decoder.pending_bytes == fed
        for _ in range(2):
            yield decoder.flush()
        yield decoder.finish()
        assert (decoder.position, decoder.pending_bytes) == (fed, 0)

    return Outcome(tables())


def assert_same(found: Outcome, expected: Outcome) -> None:
    assert found.batches == expected.batches
    assert found.losses == expected.losses
    if expected.error is None:
        assert found.error is None
        assert found.consumed == expected.consumed
    else:
        assert found.error is not None
        assert (found.error.position, found.error.base_offset) == (expected.error.position, expected.error.base_offset)
        if not isinstance(found.error, kbatch.LimitExceededError):
            assert type(found.error) is type(expected.error)
            if str(expected.error):
                assert str(found.error) == str(expected.error)


def bytewise(data: bytes, size: int = 1) -> list[bytes]:
    """Cut data into chunks of `size` bytes."""
    return [data[i : i + size] for i in range(0, len(data), size)]


def cut(data: bytes, points: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]
