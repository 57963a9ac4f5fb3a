from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.kernels.source import RecordColumns

class WriteOutcome(NamedTuple):
    used: int
    row: int
    fault: int
    found: int

class Plan:
    def __init__(
        self,
        magic: int,
        attributes: int,
        *,
        max_bytes: int = ...,
        max_records: int = ...,
        cut: bool = False,
        strict: bool = True,
        horizon: int | None = None,
    ) -> None: ...

def cut_batches(
    records: RecordColumns, plan: Plan, row: int, batches: npt.NDArray[np.void], used: int
) -> WriteOutcome: ...
def measure_batches(records: RecordColumns, batches: npt.NDArray[np.void]) -> WriteOutcome: ...
