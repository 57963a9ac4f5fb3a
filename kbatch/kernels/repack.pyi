import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.kernels.codecs import Codecs

class Target:
    def __init__(self, codecs: Codecs, codec: int, level: int, limit: int) -> None: ...

def repack(
    target: Target,
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.void],
    lo: int,
    origin: int,
    scratch: Buffer,
    out: Buffer,
    max_bytes: int,
) -> tuple[int, int]: ...
