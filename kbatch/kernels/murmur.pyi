import numpy as np
import numpy.typing as npt

def murmur2(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], out: npt.NDArray[np.uint32]) -> None: ...
