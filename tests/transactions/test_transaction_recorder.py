"""A recorder keeps what a tracker needs, whichever transactions are open before, and nothing of most committed ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kbatch.format import ControlType
from kbatch.transactions import EVENT_DTYPE, OpenTransaction, TransactionRecorder, TransactionTracker, recorder
from kbatch.transactions.events import DATA, INDEXED_ABORT, LOST_BYTES, LOST_MARKER, NO_PRODUCER

COMMIT, ABORT = int(ControlType.COMMIT), int(ControlType.ABORT)

# Producer ids and kinds, in log order.
History = list[tuple[int, int]]


def events_of(history: History, first: int = 100) -> Any:
    """Events at ascending offsets and positions; an entry of an index has a first offset a few offsets before."""
    events = np.zeros(len(history), EVENT_DTYPE)
    events["offset"] = events["last_offset"] = first + np.arange(len(history))
    events["position"] = 10 * events["offset"]
    events["timestamp"] = 7 * events["offset"]
    if history:
        events["producer_id"], events["kind"] = np.array(history, np.int64).T
    indexed = events["kind"] == INDEXED_ABORT
    events["offset"][indexed] -= events["offset"][indexed] % 7
    return events


def followed(events: Any, open_before: list[OpenTransaction]) -> Any:
    tracker = TransactionTracker(open_before)
    tracker.replay(events)
    found = tracker.result()
    markers = [column.tolist() for column in tracker.abort_markers]
    spans = found._spans.aborted.tolist(), found._spans.undecided.tolist(), found._spans.stable_position
    return found.aborted.tolist(), found.undecided.tolist(), list(found.open), found.last_stable_offset, spans, markers


def kept(history: History) -> History:
    """The events that a recorder keeps."""
    recorder = TransactionRecorder()
    recorder.replay(events_of(history))
    return [(event[0], event[4]) for event in recorder.events.tolist()]


KINDS = {
    "usual": [DATA] * 10 + [COMMIT] * 8 + [ABORT] * 2,
    "damaged": [DATA] * 10 + [COMMIT] * 8 + [ABORT, LOST_MARKER, INDEXED_ABORT, LOST_BYTES],
    "markers": [DATA, COMMIT, ABORT],
}


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("producers", [2, 9])
def test_a_tracker_has_the_same_result_for_recorded_events(
    kinds: list[int], producers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any transactions open before, for parts in a row, any marks, and events that are dropped early or late."""
    choose = random.Random(producers)
    dropped = 0
    for _ in range(300):
        monkeypatch.setattr(recorder, "_SPARE_EVENTS", choose.choice([0, 3, 10**6]))
        history = [
            (NO_PRODUCER if kind == LOST_BYTES and choose.random() < 0.5 else choose.randrange(producers), kind)
            for kind in choose.choices(kinds, k=choose.randrange(60))
        ]
        events = events_of(history)
        before = [OpenTransaction(number, number, 5) for number in range(producers) if choose.random() < 0.4]
        cut = choose.randrange(len(events) + 1)
        parts = [TransactionRecorder(), TransactionRecorder()]
        for part, piece in zip(parts, (events[:cut], events[cut:]), strict=True):
            for begin in range(0, len(piece), 7):
                part.replay(piece[begin : begin + 7])
                if choose.random() < 0.5:
                    part.mark()
        recorded = np.concatenate([part.events for part in parts])
        dropped += len(events) - len(recorded)
        assert followed(recorded, before) == followed(events, before), history
    assert dropped > 1000


def test_a_recorder_resumes_from_its_mark() -> None:
    """What follows the mark may be read again and be different, as after a truncation."""
    choose = random.Random(3)
    for _ in range(300):
        history = [(choose.randrange(4), kind) for kind in choose.choices(KINDS["damaged"], k=40)]
        other = [(choose.randrange(4), kind) for kind in choose.choices(KINDS["damaged"], k=20)]
        mark = choose.randrange(40)
        first = TransactionRecorder()
        first.replay(events_of(history)[:mark])
        first.mark()
        first.replay(events_of(history)[mark:])
        assert len(first.events) <= len(history)
        second = TransactionRecorder(events=first.marked_events)
        changed = events_of(history[:mark] + other)
        second.replay(changed[mark:])
        before = [OpenTransaction(number, number, 5) for number in range(4) if choose.random() < 0.4]
        assert followed(second.events, before) == followed(changed, before), (history, other, mark)


def test_committed_transactions_have_no_events_but_the_first_marker_of_a_producer() -> None:
    pairs = [(7, DATA), (7, COMMIT), (8, DATA), (7, DATA), (8, COMMIT), (7, COMMIT), (7, COMMIT)]
    assert kept(pairs) == [(7, COMMIT), (8, COMMIT)]
    assert kept([(7, ABORT), *pairs[:2]]) == [(7, ABORT)]
    assert kept([(7, LOST_MARKER), *pairs[:2]]) == [(7, LOST_MARKER)]
    # A marker is kept if an earlier transaction may be open: an entry of an index may be of another transaction.
    assert kept([(7, INDEXED_ABORT), *pairs[:2]]) == [(7, INDEXED_ABORT), (7, COMMIT)]


def test_transactions_that_lost_bytes_may_have_ended_are_kept() -> None:
    for lost in ((NO_PRODUCER, LOST_BYTES), (9, LOST_BYTES)):
        assert kept([(7, DATA), lost, (7, COMMIT)]) == [(7, DATA), lost, (7, COMMIT)]
        assert kept([(7, DATA), (7, COMMIT), lost, (7, DATA), (7, COMMIT)]) == [(7, COMMIT), lost]


def test_the_earliest_transaction_open_at_the_end_of_another_is_kept() -> None:
    """An aborted transaction is listed with the last stable offset at its marker."""
    begun = [(1, DATA), (2, DATA), (3, DATA), (4, DATA)]
    ended = [(1, COMMIT), (4, ABORT), (2, COMMIT), (3, COMMIT)]
    assert kept([*begun, *ended]) == [(2, DATA), (4, DATA), (1, COMMIT), (4, ABORT), (2, COMMIT), (3, COMMIT)]


def test_events_before_a_mark_do_not_depend_on_later_ones() -> None:
    recorder = TransactionRecorder()
    recorder.replay(events_of([(7, DATA), (7, COMMIT), (7, DATA)]))
    recorder.mark()
    recorder.replay(events_of([(7, COMMIT), (7, DATA), (7, COMMIT)], 200))
    assert recorder.marked_events["kind"].tolist() == [COMMIT, DATA]
    assert recorder.events["kind"].tolist() == [COMMIT, DATA, COMMIT]


def test_a_recorder_drops_events_before_it_exceeds_its_limit() -> None:
    history = [(number % 10, kind) for number in range(30_000) for kind in (DATA, COMMIT)]
    limited = TransactionRecorder(max_bytes=recorder.EVENT_BYTES * 10_000)
    limited.replay(events_of(history))
    assert limited.used_bytes <= recorder.EVENT_BYTES * 10_000
    assert len(limited.events) == 10
