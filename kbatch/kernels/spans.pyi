import numpy as np
import numpy.typing as npt

class Span: ...

def check_layouts(
    batches: npt.NDArray[np.void], records: npt.NDArray[np.void], headers: npt.NDArray[np.void]
) -> int: ...
