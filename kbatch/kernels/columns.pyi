from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

COPY_SLACK: Final[int]

class NoRoomError(RuntimeError): ...

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

class Extent:
    start: Final[int]
    stop: Final[int]
    key_bytes: Final[int]
    value_bytes: Final[int]
    header_count: Final[int]
    header_start: Final[int]
    header_stop: Final[int]
    header_key_bytes: Final[int]
    header_value_bytes: Final[int]

def measure(
    records: npt.NDArray[np.void],
    start: int = 0,
    *,
    max_rows: int = ...,
    max_column_bytes: int = ...,
    max_bytes: int = ...,
    headers: npt.NDArray[np.void] | None = None,
    header_start: int = 0,
) -> Extent: ...
def estimate(records: npt.NDArray[np.void], size: int) -> Extent: ...
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
def gather_by_batch(
    records: npt.NDArray[np.void],
    of_batch: npt.NDArray[np.int32],
    out: npt.NDArray[np.int32],
    *,
    first_row: int = 0,
) -> None: ...
def gather_fixed(
    records: npt.NDArray[np.void],
    data: npt.NDArray[np.uint8],
    itemsize: int,
    out: npt.NDArray[np.uint8],
    fill: npt.NDArray[np.uint8] | None = None,
) -> int: ...
def record_keys(records: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes | None]: ...
def record_values(records: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes | None]: ...
def keys_equal(
    key_pos: npt.NDArray[np.int64],
    key_len: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
    key: npt.NDArray[np.uint8] | bytes,
    out: npt.NDArray[np.uint8],
) -> int: ...
def header_keys(headers: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes]: ...
def header_values(headers: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes | None]: ...
