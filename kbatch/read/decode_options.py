"""The options that `decode`, streams, logs and Spark have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.format import COLUMNS, DEFAULT_LIMITS, INT64_MAX, Limits, record_dtype
from kbatch.options import CRC, ISOLATION, ON_ERROR, Crc, Isolation, OnError
from kbatch.read import workers
from kbatch.records.data import checked_columns
from kbatch.transactions import Withheld

__all__ = ["Crc", "DecodeOptions", "Isolation", "OnError"]


# Nothing changes an instance, but a frozen dataclass would add a tenth to the time before the kernels start.
@dataclass(slots=True)
class DecodeOptions:
    """The options of decoding. `decode` documents most of them; these are the others.

    `columns` are the columns of the table's views, in their order; None means all columns.

    Readers that follow the transactions of a source set `withheld`, with positions in the same source: read_committed
    leaves out these batches.

    With `framing_only`, payloads are not read. The table has batches, with the bad ones marked, and losses. Batches
    outside of `start_offset` and `stop_offset` have rows too, but damage in them is only marked.

    With `is_strict`, the size of a table that a reader requests is a limit: a batch that does not fit is refused.

    `used_bytes` is what other tables of the same result take of the limit of a table.

    `thread_bytes`, at least 1, is the number of stored bytes for each of the `threads`. None is the measured number
    from which another thread pays off.
    """

    isolation: Isolation = "read_uncommitted"
    include_control: bool = False
    crc: Crc = "verify"
    on_error: OnError = "raise"
    start_offset: int | None = None
    stop_offset: int | None = None
    limits: Limits = DEFAULT_LIMITS
    withheld: Withheld | None = None
    framing_only: bool = False
    columns: Sequence[str] | None = None
    threads: int = 1
    thread_bytes: int | None = None
    is_strict: bool = False
    used_bytes: int = 0

    def __post_init__(self) -> None:
        for name, kind in ("isolation", ISOLATION), ("crc", CRC), ("on_error", ON_ERROR):
            try:
                kind.check(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        if not isinstance(self.include_control, bool | np.bool_):
            raise TypeError(f"include_control must be a bool, got {type(self.include_control).__name__}")
        for name in ("start_offset", "stop_offset"):
            if (offset := getattr(self, name)) is not None and not isinstance(offset, int | np.integer):
                raise TypeError(f"{name} must be an integer or None, got {offset!r}")
            if offset is not None and offset < 0:
                raise ValueError(
                    f"{name} must not be negative, got {offset}; only kbatch.Log knows the end of the log, from which "
                    "negative offsets count back"
                )
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits must be kbatch.Limits, got {self.limits!r}")
        self.threads = workers.thread_count(self.threads)
        if self.thread_bytes is not None and self.thread_bytes < 1:
            raise ValueError(f"thread_bytes must be 1 or more, got {self.thread_bytes!r}")
        if self.columns is not None:
            self.columns = checked_columns(self.columns)

    @property
    def record_columns(self) -> tuple[str, ...]:
        """The columns that are decoded with these options."""
        return COLUMNS if self.columns is None else tuple(self.columns)

    @property
    def table_columns(self) -> tuple[str, ...] | None:
        """The argument `columns` of a table that is decoded with these options."""
        return None if self.columns is None else tuple(self.columns)

    @property
    def offset_range(self) -> tuple[int, int]:
        """The first and the last offset to return, within the bounds of int64, as kernels take them."""
        first = -INT64_MAX - 1 if self.start_offset is None else int(self.start_offset)
        last = INT64_MAX if self.stop_offset is None else int(self.stop_offset) - 1
        return min(max(first, -INT64_MAX - 1), INT64_MAX), min(max(last, -INT64_MAX - 1), INT64_MAX)

    def may_have_records(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Return which batches may have records between the first and the last offset to return.

        The decision uses the headers, as brokers do. They do not suffice if offsets wrap or decrease, nor for a
        compressed message set, whose base offset is unknown and -1: producers leave its offset 0 (LEG-R12).
        """
        lowest, highest = self.offset_range
        first, last = batches["base_offset"], batches["last_offset"]
        unknown = (last < first) | ((first < 0) & (last == 0))
        within: npt.NDArray[np.bool_] = unknown | ((last >= lowest) & (first <= highest))
        return within

    @property
    def record_dtype(self) -> np.dtype[np.void]:
        """The dtype of the records of such a table."""
        return record_dtype(self.record_columns)
