from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kbatch.kernels.batch_decoder import BatchDecoder, Outcome
from kbatch.kernels.codecs import Codecs

class Pipeline(BatchDecoder):
    def run(self, codecs: Codecs) -> Outcome: ...
    def run_skipping(
        self,
        codecs: Codecs,
        losses: npt.NDArray[np.int64],
        statuses: bytes,
        refusal: Callable[[int, int, int, int, int, int], tuple[int, int, int] | None] | None,
    ) -> tuple[Outcome, int, int]: ...
    def run_shared(self, codecs: Codecs) -> Outcome: ...
    def help(self, codecs: Codecs) -> None: ...
    def abandon(self) -> None: ...
