from typing import NamedTuple

import numpy as np
import numpy.typing as npt

class Scanned(NamedTuple):
    rows: int
    position: int
    fault: int
    expected: int
    found: int

def scan_headers(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], first: int, end: int, position: int, origin: int
) -> Scanned: ...
def scan_file(fd: int, rows: npt.NDArray[np.void], position: int, end: int) -> tuple[Scanned, int, int]: ...
def survey(rows: npt.NDArray[np.void], include_control: bool) -> tuple[int, int]: ...
