import numpy as np
import numpy.typing as npt

def flatten(
    data: npt.NDArray[np.uint8],
    records: npt.NDArray[np.void],
    batches: npt.NDArray[np.void],
    magic: int,
    after: int,
    out: memoryview,
) -> tuple[int, int, int, int]: ...
def lower(
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.void],
    origin: int,
    magic: int,
    after: int,
    rows: npt.NDArray[np.void],
    out: memoryview,
    drops: bool,
    check_crc: bool,
    max_crc: int,
) -> tuple[int, int, int, int, int, int]: ...
def merge(
    data: npt.NDArray[np.uint8],
    messages: npt.NDArray[np.void],
    origin: int,
    batch_size: int,
    out: memoryview,
    made: npt.NDArray[np.void],
    max_crc: int,
) -> tuple[int, int]: ...
