from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

COPY_SLACK: Final[int]

class CapacityError(RuntimeError): ...

class Filled(NamedTuple):
    timestamp_nulls: int
    timestamp_overflows: int
    headers: int

class BinarySink:
    nulls: Final[int]
    nbytes: Final[int]
    def __init__(
        self,
        rows: int,
        width: int,
        slots: npt.NDArray[np.uint8],
        content: npt.NDArray[np.uint8] | None = None,
        valid: npt.NDArray[np.uint8] | None = None,
        view_shift: int = 30,
    ) -> None: ...

def fill_records(
    records: npt.NDArray[np.void],
    data: npt.NDArray[np.uint8],
    *,
    offset: npt.NDArray[np.int64] | None = None,
    timestamp: npt.NDArray[np.int64] | None = None,
    timestamp_valid: npt.NDArray[np.uint8] | None = None,
    timestamp_scale: int = 1,
    key: BinarySink | None = None,
    value: BinarySink | None = None,
    first_row: int = 0,
) -> Filled: ...
def fill_headers(
    headers: npt.NDArray[np.void],
    data: npt.NDArray[np.uint8],
    first_record: int,
    offsets: npt.NDArray[np.int32],
    *,
    valid: npt.NDArray[np.uint8] | None = None,
    key: BinarySink,
    value: BinarySink,
    first_row: int = 0,
) -> None: ...
