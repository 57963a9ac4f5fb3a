"""Pauses between the attempts of a request."""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Increasing pauses between attempts, with the randomness of Kafka's clients.

    Parameters
    ----------
    first_ms, max_ms : int
    """

    def __init__(self, first_ms: int, max_ms: int) -> None:
        self._first_ms = first_ms
        self._max_ms = max(first_ms, max_ms)
        self._failures = 0

    def next_seconds(self) -> float:
        """Return the pause before the next attempt."""
        milliseconds = min(self._first_ms << min(self._failures, 30), self._max_ms)
        self._failures += 1
        return milliseconds / 1000 * random.uniform(0.8, 1.2)
