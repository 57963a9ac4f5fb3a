from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.kernels.codecs import Codecs
from kbatch.kernels.sizes import Outcome
from kbatch.kernels.source import Records

def payload(records: Records, batches: npt.NDArray[Any], i: int, skip: int, out: memoryview) -> tuple[int, int]: ...
def write(
    records: Records | None,
    batches: npt.NDArray[np.void],
    codecs: Codecs,
    levels: Sequence[int],
    out: memoryview,
) -> Outcome: ...
def packed_room(batches: npt.NDArray[np.void]) -> int: ...
def frame(batches: npt.NDArray[np.void], out: memoryview) -> None: ...
