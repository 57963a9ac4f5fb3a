from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.kernels.codecs import Codecs

class Outcome(NamedTuple):
    used: int
    row: int
    trouble: int
    found: int

class Column:
    length: Final[int]
    def add_nulls(self, count: int) -> None: ...
    def add_offsets(
        self, offsets: Buffer, width: int, first: int, count: int, data: Buffer | None, valid: Buffer | None = None
    ) -> None: ...
    def add_views(
        self, views: Buffer, first: int, count: int, buffers: list[Buffer], valid: Buffer | None = None
    ) -> None: ...
    def add_items(
        self,
        items: npt.NDArray[Any],
        width: int,
        strip: bool = False,
        valid: Buffer | None = None,
        valid_start: int = 0,
    ) -> None: ...
    def add_slices(
        self, positions: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]
    ) -> None: ...
    def add_objects(self, objects: list[Any]) -> int: ...

class Records:
    count: Final[int]
    def __init__(
        self,
        values: Column,
        keys: Column | None,
        *,
        offsets: npt.NDArray[np.int64] | None = None,
        first_offset: int = 0,
        timestamps: npt.NDArray[np.int64] | None = None,
        timestamp: int = -1,
        header_first: npt.NDArray[np.int64] | None = None,
        header_count: npt.NDArray[np.int32] | None = None,
        header_keys: Column | None = None,
        header_values: Column | None = None,
    ) -> None: ...

class Plan:
    def __init__(
        self,
        magic: int,
        attributes: int,
        *,
        room: int = ...,
        max_records: int = ...,
        cut: bool = False,
        strict: bool = True,
        horizon: int | None = None,
    ) -> None: ...

def measure(records: Records, plan: Plan, row: int, batches: npt.NDArray[np.void], used: int) -> Outcome: ...
def measure_batches(records: Records, batches: npt.NDArray[np.void]) -> Outcome: ...
def payload(records: Records, batches: npt.NDArray[Any], i: int, skip: int, out: memoryview) -> tuple[int, int]: ...
def write(
    records: Records | None,
    batches: npt.NDArray[np.void],
    codecs: Codecs,
    levels: Sequence[int],
    out: memoryview,
) -> Outcome: ...
def packed_room(batches: npt.NDArray[np.void]) -> int: ...
def frame(batches: npt.NDArray[np.void], out: memoryview) -> None: ...

class Growing:
    used: Final[int]
    def append(self, piece: Buffer, expected: int) -> None: ...
    def reserve(self, size: int) -> None: ...
    def spare(self, size: int) -> memoryview | None: ...
    def take(self) -> bytes: ...
