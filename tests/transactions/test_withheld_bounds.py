"""The transactions that a stream withholds: until which position, and what a snapshot of them keeps."""

from __future__ import annotations

import numpy as np
import pytest

from kbatch.read.withheld import EndedTransactions, PendingTransactions

# Producer id, first and last position.
ENDED = [(7, 0, 10), (8, 5, 20), (7, 12, 30), (9, 25, 30)]


@pytest.mark.parametrize(
    ("position", "kept"), [(0, 4), (10, 4), (11, 3), (20, 3), (21, 2), (30, 2), (31, 0), (1000, 0)]
)
def test_an_ended_transaction_is_kept_until_its_last_batch_is_returned(position: int, kept: int) -> None:
    """The position is that of the next batch, so a transaction that ends there is kept."""
    transactions = EndedTransactions()
    transactions.add(ENDED)
    transactions.release(position)
    assert len(transactions) == kept
    expected = ENDED[len(ENDED) - kept :]
    assert sorted(map(tuple, transactions.of_producers([7, 8, 9, 10], None).tolist())) == sorted(expected)
    # A producer may have further transactions after it.
    transactions.add([(7, 40, 50)])
    assert [7, 40, 50] in transactions.of_producers([7], None).tolist()
    assert len(transactions) == kept + 1


@pytest.mark.parametrize(
    ("stop", "expected"), [(0, []), (1, [ENDED[0]]), (12, [ENDED[0]]), (13, [ENDED[0], ENDED[2]]), (None, ENDED[::2])]
)
def test_a_transaction_is_withheld_from_batches_if_it_begins_before_their_end(
    stop: int | None, expected: list[tuple[int, int, int]]
) -> None:
    transactions = EndedTransactions()
    transactions.add(ENDED)
    assert list(map(tuple, transactions.of_producers([7], stop).tolist())) == expected


def test_many_ended_transactions_are_found_and_released_in_the_order_of_their_ends() -> None:
    random = np.random.default_rng(4)
    transactions, kept, released = EndedTransactions(), list[tuple[int, int, int]](), 0
    for step in range(3000):
        kept.append((int(random.integers(30)), int(random.integers(step + 1)), step))
        transactions.add(kept[-1:])
        if random.random() < 0.1:
            released = int(random.integers(released, step + 1))
            transactions.release(released)
            kept = [each for each in kept if each[2] >= released]
        producer, stop = int(random.integers(30)), int(random.integers(step + 1))
        of_producer = [each for each in kept if each[0] == producer]
        assert len(transactions) == len(kept)
        assert list(map(tuple, transactions.of_producers([producer], None).tolist())) == of_producer
        # The first one that begins later ends the search.
        before = next((at for at, each in enumerate(of_producer) if each[1] >= stop), len(of_producer))
        assert list(map(tuple, transactions.of_producers([producer], stop).tolist())) == of_producer[:before]
        assert len(transactions._rows) <= 4 * 2 * len(kept)


@pytest.mark.parametrize(("position", "kept"), [(9, 2), (10, 2), (11, 1), (20, 1), (21, 0)])
def test_an_undecided_transaction_is_pending_until_its_last_batch_is_returned(position: int, kept: int) -> None:
    pending = PendingTransactions()
    pending.add_undecided(7, 3, 10)
    pending.add_undecided(8, 1, 20)
    before = pending.snapshot()
    pending.release(position)
    assert len(pending) == kept
    assert pending.snapshot()() == [(8, 1), (7, 3)][:kept]
    assert before() == [(8, 1), (7, 3)]


def test_an_ended_transaction_is_not_in_later_snapshots_and_stays_in_earlier_ones() -> None:
    pending = PendingTransactions()
    empty = pending.snapshot()
    pending.begin(7, 5)
    one = pending.snapshot()
    pending.end(7)
    pending.begin(7, 9)
    pending.begin(8, 2)
    two = pending.snapshot()
    pending.begin(9, 1)
    pending.end(9)
    assert [each() for each in (empty, one, two, pending.snapshot())] == [
        [],
        [(7, 5)],
        [(8, 2), (7, 9)],
        [(8, 2), (7, 9)],
    ]
    assert len(pending) == 2


@pytest.mark.parametrize("seed", range(3))
def test_snapshots_keep_what_was_pending_and_their_history_is_bounded(seed: int) -> None:
    """The history has at most 64 ended transactions, and as many as pending ones."""
    random = np.random.default_rng(seed)
    pending = PendingTransactions()
    still: dict[int, int] = {}
    lost: list[tuple[int, int, int]] = []
    taken, longest = [], 0
    for step in range(600):
        producer = int(random.integers(5))
        if producer in still:
            pending.end(producer)
            first = still.pop(producer)
            if random.random() < 0.3:
                lost.append((producer, first, step))
                pending.add_undecided(*lost[-1])
        else:
            still[producer] = step
            pending.begin(producer, step)
        if random.random() < 0.2:
            pending.release(step - 10)
            lost = [each for each in lost if each[2] >= step - 10]
        snapshot = pending.snapshot()
        expected = sorted([*still.items(), *((each[0], each[1]) for each in lost)], key=lambda pair: pair[1])
        assert len(pending) == len(expected)
        taken.append((snapshot, expected))
        longest = max(longest, len(pending._ends) - 2 * len(pending))
    assert [snapshot() for snapshot, _ in taken] == [expected for _, expected in taken]
    assert longest == 64


def test_an_unchanged_state_has_one_snapshot() -> None:
    pending = PendingTransactions()
    pending.begin(7, 5)
    first = pending.snapshot()
    assert pending.snapshot() is first
    pending.end(7)
    assert pending.snapshot() is not first
