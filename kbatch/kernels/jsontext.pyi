import numpy as np
import numpy.typing as npt

def check_texts(
    offsets: npt.NDArray[np.int32],
    content: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
    verdicts: npt.NDArray[np.uint8],
    max_depth: int,
) -> None: ...
def join(
    offsets: npt.NDArray[np.int32],
    content: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
    prefix: bytes,
    suffix: bytes,
    out: npt.NDArray[np.uint8],
) -> int: ...
