import numpy as np
import numpy.typing as npt

from kbatch.kernels.batch_decoder import BatchDecoder, Config, Outcome

class BatchRuns(BatchDecoder):
    def __init__(
        self,
        config: Config,
        batches: npt.NDArray[np.void],
        lo: int,
        arena: memoryview | None,
        arena_used: int,
        size: int,
        records: npt.NDArray[np.void],
    ) -> None: ...
    def begin(self) -> Outcome: ...
    def rewind(self) -> None: ...
    def undo(self) -> None: ...
    @property
    def remaining_records(self) -> int: ...
    def parse_run(self, records: npt.NDArray[np.void]) -> Outcome: ...
