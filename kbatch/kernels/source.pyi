from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

class Column:
    length: Final[int]
    def add_nulls(self, count: int) -> None: ...
    def add_offsets(
        self, offsets: Buffer, width: int, first: int, count: int, data: Buffer | None, valid: Buffer | None = None
    ) -> None: ...
    def add_views(
        self, views: Buffer, first: int, count: int, buffers: list[Buffer], valid: Buffer | None = None
    ) -> None: ...
    def add_items(
        self,
        items: npt.NDArray[Any],
        width: int,
        strip: bool = False,
        valid: Buffer | None = None,
        valid_start: int = 0,
    ) -> None: ...
    def add_slices(
        self, positions: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]
    ) -> None: ...
    def add_objects(self, objects: list[Any]) -> int: ...

class RecordColumns:
    count: Final[int]
    def __init__(
        self,
        values: Column,
        keys: Column | None,
        *,
        offsets: npt.NDArray[np.int64] | None = None,
        first_offset: int = 0,
        timestamps: npt.NDArray[np.int64] | None = None,
        timestamp: int = -1,
        header_first: npt.NDArray[np.int64] | None = None,
        header_count: npt.NDArray[np.int32] | None = None,
        header_keys: Column | None = None,
        header_values: Column | None = None,
    ) -> None: ...
