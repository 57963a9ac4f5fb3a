from typing import Final

import numpy as np
import numpy.typing as npt

class KeyOffsets:
    max_bytes: Final[int]
    def __new__(cls, max_bytes: int, secret: bytes | None = None) -> KeyOffsets: ...
    def __len__(self) -> int: ...
    @property
    def most_keys(self) -> int: ...
    def add(
        self,
        offsets: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        data: npt.NDArray[np.uint8],
    ) -> int: ...
    def latest(
        self,
        offsets: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        data: npt.NDArray[np.uint8],
        out: npt.NDArray[np.uint8],
    ) -> None: ...

def hash_slices(
    secret: bytes,
    positions: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
    out: npt.NDArray[np.uint64],
) -> None: ...
def siphash(secret: bytes, data: bytes) -> bytes: ...
