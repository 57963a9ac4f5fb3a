import numpy as np
import numpy.typing as npt

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
def keys_equal(
    key_pos: npt.NDArray[np.int64],
    key_len: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
    key: npt.NDArray[np.uint8] | bytes,
    out: npt.NDArray[np.uint8],
) -> int: ...
def slices_equal(
    positions: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
    other_positions: npt.NDArray[np.int64],
    other_lengths: npt.NDArray[np.int32],
    other_data: npt.NDArray[np.uint8],
    out: npt.NDArray[np.uint8],
) -> int: ...
def record_keys(records: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes | None]: ...
def record_values(records: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes | None]: ...
def header_keys(headers: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes]: ...
def header_values(headers: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> list[bytes | None]: ...
