from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

class Cause(IntEnum):
    DONE = 0
    RECORDS = 1
    ARENA = 2
    PAYLOAD = 3
    FAULT = 4
    ORDER = 5
    TABLE = 6

class Outcome(NamedTuple):
    row: int
    used: int
    arena_used: int
    cause: int
    needed: int
    fault: int
    record: int
    at: int
    expected: int
    found: int

class Config:
    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        *,
        origin: int,
        crc: int,
        check_inner: bool,
        framing_only: bool,
        keep: bool,
        max_bytes: int,
        table_bytes: int,
        owned: bool,
        max_scratch: int,
        limit: int,
        include_control: bool,
        trimmed: bool,
        first_offset: int,
        last_offset: int,
    ) -> None: ...

class BatchDecoder:
    def __init__(
        self,
        config: Config,
        batches: npt.NDArray[np.void],
        lo: int,
        hi: int,
        records: npt.NDArray[np.void],
        used: int,
        arena: memoryview | None,
        arena_used: int,
    ) -> None: ...
    def resume(self, size: int) -> Outcome: ...
