import numpy as np
import numpy.typing as npt

def decode(
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.void],
    lo: int,
    hi: int,
    origin: int,
    positions: npt.NDArray[np.int64] | None,
    sizes: npt.NDArray[np.int64] | None,
    out: npt.NDArray[np.void],
    used: int,
    include_control: bool,
    check_crc: bool,
    trimmed: bool,
    first_offset: int,
    last_offset: int,
) -> tuple[int, int, int, int, int, int, int]: ...
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
