import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

AVAILABLE: bool
MAX_SIZE: int
MAX_SIZE_LEGACY: int
FOLD: int

def crc32c(data: Buffer, fold: int = 64) -> int: ...
def crc32(data: Buffer, fold: int = 64) -> int: ...
def crc32c_shift(crc: int, nbytes: int) -> int: ...
def crc32_shift(crc: int, nbytes: int) -> int: ...
def crc32_pieces(data: Buffer, ends: npt.NDArray[np.int64], fold: int = 64) -> list[int]: ...
def verify(
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.void],
    lo: int,
    hi: int,
    origin: int,
    max_size: int,
    max_size_legacy: int,
) -> tuple[int, int, int]: ...
def reseal(data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], max_size: int, max_size_legacy: int) -> int: ...
