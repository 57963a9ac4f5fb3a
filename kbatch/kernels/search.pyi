from typing import NamedTuple

import numpy as np
import numpy.typing as npt

class Found(NamedTuple):
    status: int
    position: int
    needed: int

class Lengths(NamedTuple):
    last: int
    position: int
    holds: bool
    used: int

class EntryChecksums:
    def __new__(cls) -> EntryChecksums: ...
    def first_byte(self, position: int) -> int: ...
    def holds(self, window: npt.NDArray[np.uint8], origin: int, position: int, size: int, *, lowest: int) -> bool: ...
    def first_bad(
        self, window: npt.NDArray[np.uint8], origin: int, batches: npt.NDArray[np.void], row: int, end: int
    ) -> tuple[int, int]: ...
    def find(
        self,
        window: npt.NDArray[np.uint8],
        origin: int,
        position: int,
        stop: int,
        *,
        max_size: int,
        max_records: int,
        source_end: int | None,
        reached: int | None,
    ) -> Found: ...

def last_claimed(
    window: npt.NDArray[np.uint8],
    origin: int,
    position: int,
    stop: int,
    *,
    max_size: int,
    max_records: int,
    base_offset: int,
) -> int: ...
def follow_lengths(
    window: npt.NDArray[np.uint8],
    origin: int,
    position: int,
    stop: int,
    max_size: int,
    headers: npt.NDArray[np.void] | None = None,
    used: int = 0,
) -> Lengths: ...
