from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.kernels.search import EntryChecksums

class Framed(NamedTuple):
    position: int
    rows: int
    losses: int
    suspect_end: int
    is_damaged: bool

def frame_damaged(
    checksums: EntryChecksums,
    window: npt.NDArray[np.uint8],
    origin: int,
    position: int,
    stop: int,
    batches: npt.NDArray[np.void],
    losses: npt.NDArray[np.int64],
    *,
    max_size: int,
    max_records: int,
    source_end: int | None,
    keeps_headers: bool,
) -> Framed: ...
