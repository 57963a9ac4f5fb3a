import numpy as np
import numpy.typing as npt

def scan(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], position: int, origin: int
) -> tuple[int, int, int, int, int]: ...
def find_candidate(data: npt.NDArray[np.uint8], position: int, max_size: int) -> int: ...
