import numpy as np
import numpy.typing as npt

from kbatch.kernels.frames import Codecs
from kbatch.kernels.helper import Work

class Pipeline(Work):
    next: int
    position: int
    used: int
    arena_used: int
    lo: int
    hi: int
    sharing: int
    wrong_at: int
    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[np.void],
        lo: int,
        hi: int,
        origin: int,
        out: npt.NDArray[np.void],
        used: int,
        arena: memoryview | None,
        arena_used: int,
        *,
        packed: bool,
        keep: bool,
        crc: int,
        check_inner: bool,
        framing_only: bool,
        most: int,
        limit: int,
        include_control: bool,
        trimmed: bool,
        first_offset: int,
        last_offset: int,
        position: int = -1,
        max_size: int = ...,
    ) -> None: ...
    def work_alone(self, codecs: Codecs) -> None: ...
    def work(self, codecs: Codecs) -> None: ...
    def abandon(self) -> None: ...
