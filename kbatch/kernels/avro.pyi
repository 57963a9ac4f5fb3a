from typing import NamedTuple

import numpy as np
import numpy.typing as npt

class Contents(NamedTuple):
    rows: int
    valid: npt.NDArray[np.bool_]
    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int32]

class Columns:
    def __new__(
        cls,
        nodes: npt.NDArray[np.int32],
        limits: npt.NDArray[np.uint64],
        children: npt.NDArray[np.int32],
        max_bytes: int,
    ) -> Columns: ...
    def decode(
        self,
        offsets: npt.NDArray[np.int32],
        content: npt.NDArray[np.uint8],
        selected: npt.NDArray[np.uint8],
        skip: int,
        verdicts: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int32],
    ) -> bool: ...
    def column(self, number: int) -> Contents: ...
