from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

class Codecs:
    def __init__(self, functions: Mapping[str, int]) -> None: ...

class Run:
    lo: int
    hi: int
    limit: int
    def __init__(
        self,
        data: memoryview,
        batches: npt.NDArray[np.void],
        lo: int,
        hi: int,
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        limit: int,
        include_control: bool,
    ) -> None: ...
    def payload(self, i: int) -> tuple[int, int, memoryview | None]: ...
    def done(self, i: int, position: int, size: int) -> None: ...
    def decompress(self, i: int, out: memoryview, used: int, stop: int, codecs: Codecs) -> tuple[int, int]: ...
