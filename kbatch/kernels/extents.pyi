from typing import Final

import numpy as np
import numpy.typing as npt

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

def measure_extent(
    records: npt.NDArray[np.void],
    start: int = 0,
    *,
    max_rows: int = ...,
    max_column_bytes: int = ...,
    max_bytes: int = ...,
    headers: npt.NDArray[np.void] | None = None,
    header_start: int = 0,
) -> Extent: ...
def estimate_extent(records: npt.NDArray[np.void], size: int) -> Extent: ...
