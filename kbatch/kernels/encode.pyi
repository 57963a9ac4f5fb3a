from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.kernels.codecs import Codecs
from kbatch.kernels.sizes import WriteOutcome
from kbatch.kernels.source import RecordColumns

def payload(
    records: RecordColumns, batches: npt.NDArray[Any], i: int, skip: int, out: memoryview
) -> tuple[int, int]: ...
def write(
    records: RecordColumns | None,
    batches: npt.NDArray[np.void],
    codecs: Codecs,
    levels: Sequence[int],
    out: memoryview,
) -> WriteOutcome: ...
def max_encoded_size(batches: npt.NDArray[np.void]) -> int: ...
def write_headers(batches: npt.NDArray[np.void], out: memoryview) -> None: ...
