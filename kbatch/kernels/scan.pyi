import numpy as np
import numpy.typing as npt

def scan(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], first: int, end: int, position: int, origin: int
) -> tuple[int, int, int, int, int]: ...
def survey(rows: npt.NDArray[np.void], include_control: bool) -> tuple[int, int]: ...
