import numpy as np
import numpy.typing as npt

def first_records(
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.void],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    out: npt.NDArray[np.void],
) -> int: ...
def payloads(
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.void],
    lo: int,
    hi: int,
    origin: int,
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> None: ...
def headers(data: npt.NDArray[np.uint8], records: npt.NDArray[np.void], out: npt.NDArray[np.void]) -> int: ...
