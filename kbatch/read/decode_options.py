"""What a decoding can be asked for: the options that `decode`, streams, logs and Spark have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from kbatch.format import COLUMNS, DEFAULT_LIMITS, Limits, record_dtype
from kbatch.options import choice
from kbatch.read import workers
from kbatch.records.data import checked_columns
from kbatch.transactions import AbortedRanges

__all__ = ["CRC", "ISOLATION", "ON_ERROR", "Crc", "DecodeOptions", "Isolation", "OnError"]

Crc = Literal["verify", "mark", "skip"]
OnError = Literal["raise", "stop", "skip"]
Isolation = Literal["read_uncommitted", "read_committed"]

# The kinds of these options, for every place that offers them.
CRC, ON_ERROR, ISOLATION = choice(*get_args(Crc)), choice(*get_args(OnError)), choice(*get_args(Isolation))


# Not frozen, though nothing changes one: that would take a tenth of all that is done before the kernels begin.
@dataclass(slots=True)
class DecodeOptions:
    """The options that everything which decodes has in common; `decode` says what they mean.

    Columns are those wanted, in the order of `kbatch.format.COLUMN_FIELDS` whatever order they are given in; None is
    all of them.

    Four are for those who decode a larger source by the part: `aborted`, `undecided` and `stable_offset` say what
    read_committed leaves out: of the whole source the aborted transactions, those whose marker is lost, and what is at
    or after its last stable offset.
    With `framing_only` no payload is looked at: the table has batches, of which the bad ones are marked, and losses.
    Then batches outside of `start_offset` and `stop_offset` have rows too, but damage in them is only marked.
    `thread_bytes`, 1 or more, is how many stored bytes there have to be for each of the `threads`; None is what was
    measured to be worth a thread.
    """

    isolation: Isolation = "read_uncommitted"
    include_control: bool = False
    crc: Crc = "verify"
    on_error: OnError = "raise"
    start_offset: int | None = None
    stop_offset: int | None = None
    limits: Limits = DEFAULT_LIMITS
    aborted: AbortedRanges | None = None
    undecided: AbortedRanges | None = None
    stable_offset: int | None = None
    framing_only: bool = False
    columns: Sequence[str] | None = None
    threads: int = 1
    thread_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, kind in ("isolation", ISOLATION), ("crc", CRC), ("on_error", ON_ERROR):
            try:
                kind.check(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        for name in ("start_offset", "stop_offset"):
            if (offset := getattr(self, name)) is not None and not isinstance(offset, int | np.integer):
                raise TypeError(f"{name} must be an integer or None, got {offset!r}")
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits must be kbatch.Limits, got {self.limits!r}")
        self.threads = workers.thread_count(self.threads)
        if self.thread_bytes is not None and self.thread_bytes < 1:
            raise ValueError(f"thread_bytes must be 1 or more, got {self.thread_bytes!r}")
        if self.columns is not None:
            self.columns = checked_columns(self.columns)

    @property
    def record_columns(self) -> tuple[str, ...]:
        """The columns of a table that is decoded so."""
        return COLUMNS if self.columns is None else tuple(self.columns)

    @property
    def record_dtype(self) -> np.dtype[np.void]:
        """The dtype of its records."""
        return record_dtype(self.record_columns)
