import numpy as np
import numpy.typing as npt

FINDING_COLUMNS: int
FINDINGS: int

class FieldTree:
    def __init__(
        self,
        shapes: npt.NDArray[np.int32],
        limits: npt.NDArray[np.uint64],
        fields: npt.NDArray[np.int32],
        names: list[bytes],
        hidden: npt.NDArray[np.bool_] | None = None,
    ) -> None: ...
    def fit(
        self,
        offsets: npt.NDArray[np.int32],
        content: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.int64],
        out: npt.NDArray[np.uint8],
        out_offsets: npt.NDArray[np.int32],
        marks: npt.NDArray[np.int32],
        findings: npt.NDArray[np.int64],
        doubts: npt.NDArray[np.uint8] | None = None,
        doubted: int = 0,
    ) -> None: ...
