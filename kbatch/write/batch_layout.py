"""The settings that the batches of one `encode` call or writer share, and the checks of single arguments."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from kbatch.batches.codecs import parse_codec
from kbatch.format import (
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    INT32_MAX,
    INT64_MAX,
    Codec,
    TimestampType,
)
from kbatch.kernels.sizes import Plan
from kbatch.quantities import SizeLike, bounds_text, size_between
from kbatch.write.record_columns import millisecond

__all__ = ["BatchLayout", "BatchRows", "append_time_of", "check_range", "now"]

# Rows of BATCH_DTYPE.
BatchRows: TypeAlias = npt.NDArray[np.void]


def now() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def check_range(name: str, value: Any, minimum: int, maximum: int) -> None:
    """Raise unless `value` is an integer within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not minimum <= value <= maximum:
        raise ValueError(f"{name} must be {bounds_text(minimum, maximum, int(value))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """The settings that all batches of one `encode` call or writer share; see `encode` for the parameters.

    Raises
    ------
    ValueError
        If Kafka clients must not write such batches (ATT-R6, ZS-R1).
    """

    magic: int = 2
    codec: Codec = Codec.NONE
    level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    delete_horizon: int | None = None

    @classmethod
    def of(
        cls,
        *,
        magic: int,
        codec: Codec | str | None,
        timestamp_type: TimestampType | Literal["create_time", "log_append_time"],
        **fields: Any,
    ) -> BatchLayout:
        """Return the layout for arguments of `encode`."""
        if isinstance(timestamp_type, str):
            try:
                timestamp_type = TimestampType[timestamp_type.upper()]
            except KeyError:
                raise ValueError(
                    f"timestamp_type must be 'create_time' or 'log_append_time', got {timestamp_type!r}"
                ) from None
        if not isinstance(timestamp_type, int | np.integer) or timestamp_type not in (0, 1):
            raise ValueError(
                "timestamp_type must be 'create_time', 'log_append_time' or a kbatch.TimestampType, got "
                f"{timestamp_type!r}"
            )
        chosen, level = (Codec.NONE, None) if codec is None else parse_codec(codec)
        layout = cls(magic=magic, codec=chosen, level=level, timestamp_type=TimestampType(timestamp_type), **fields)
        layout._check()
        return layout

    def _check(self) -> None:
        if self.magic not in (0, 1, 2):
            raise ValueError(f"magic must be 0, 1 or 2, got {self.magic!r}")
        check_range("leader_epoch", self.leader_epoch, -1, INT32_MAX)
        check_range("producer_id", self.producer_id, -1, INT64_MAX)
        check_range("producer_epoch", self.producer_epoch, -1, 2**15 - 1)
        check_range("base_sequence", self.base_sequence, -1, INT32_MAX)
        if not isinstance(self.transactional, bool | np.bool_):
            raise TypeError(f"transactional must be a bool, got {type(self.transactional).__name__}")
        if self.delete_horizon is not None:
            check_range("delete_horizon", self.delete_horizon, 0, INT64_MAX)
        if self.magic < 2:
            if self.codec == Codec.ZSTD:
                raise ValueError(f"zstd needs magic 2, got magic {self.magic}")
            for name, unset in (
                ("leader_epoch", -1),
                ("producer_id", -1),
                ("producer_epoch", -1),
                ("base_sequence", -1),
                ("transactional", False),
                ("delete_horizon", None),
            ):
                if getattr(self, name) != unset:
                    raise ValueError(f"{name} needs magic 2, got magic {self.magic}")
        if self.timestamp_type not in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME):
            raise ValueError("timestamp_type must be CREATE_TIME or LOG_APPEND_TIME; magic 0 ignores it")
        if self.magic == 0 and self.timestamp_type == TimestampType.LOG_APPEND_TIME:
            raise ValueError("magic 0 has no timestamps, and so no log_append_time")
        if self.producer_id < 0:
            if self.transactional:
                raise ValueError("a transactional batch needs a producer_id")
            for name in ("producer_epoch", "base_sequence"):
                if getattr(self, name) >= 0:
                    raise ValueError(f"{name} needs a producer_id")
        else:
            for name in ("producer_epoch", "base_sequence"):
                if getattr(self, name) < 0:
                    raise ValueError(f"a batch with a producer_id needs a {name}")

    @property
    def attributes(self) -> int:
        """The attributes of every batch (ATT-R1)."""
        return (
            int(self.codec)
            | ATTRIBUTE_LOG_APPEND_TIME * (self.timestamp_type == TimestampType.LOG_APPEND_TIME)
            | ATTRIBUTE_TRANSACTIONAL * self.transactional
            | ATTRIBUTE_DELETE_HORIZON * (self.delete_horizon is not None)
        )

    def plan(self, batch_size: SizeLike | None, max_records: int | None) -> Plan:
        """Return how records are cut into batches."""
        if batch_size is not None:
            batch_size = size_between("batch_size", batch_size, 0, INT32_MAX)
        if max_records is not None:
            check_range("max_records", max_records, 1, INT32_MAX)
        return Plan(
            self.magic,
            self.attributes,
            max_bytes=INT32_MAX if batch_size is None else batch_size,
            max_records=INT32_MAX if max_records is None else max_records,
            cut=batch_size is not None or max_records is not None,
            horizon=self.delete_horizon,
        )

    def complete(self, batches: BatchRows, base_sequence: int, append_time: int | None) -> int:
        """Set the fields of measured batches that don't depend on records; return the sequence after them.

        Sequences continue across batches and advance with offsets, as in `DefaultRecordBatch.lastSequence` (SEQ-R3);
        2^31 - 1 is followed by 0 (SEQ-R1). An append time is the maximum timestamp of its batch (TS-R8).
        """
        batches["partition_leader_epoch"] = self.leader_epoch
        batches["producer_id"] = self.producer_id
        batches["producer_epoch"] = self.producer_epoch
        batches["base_sequence"] = -1
        if append_time is not None:
            batches["max_timestamp"] = append_time
        if self.producer_id < 0:
            return base_sequence
        steps = batches["last_offset_delta"].astype(np.int64) + 1
        after = base_sequence + np.cumsum(steps)
        batches["base_sequence"] = (after - steps) & INT32_MAX
        return int(after[-1]) & INT32_MAX if len(after) else base_sequence


def append_time_of(layout: BatchLayout, append_time: Any) -> int | None:
    """Return the append time of batches, by default the time of this call; None for create_time."""
    if layout.timestamp_type != TimestampType.LOG_APPEND_TIME:
        if append_time is not None:
            raise ValueError("append_time needs timestamp_type='log_append_time'")
        return None
    appended = now() if append_time is None else millisecond(append_time)
    check_range("append_time", appended, -1, INT64_MAX)
    return appended
