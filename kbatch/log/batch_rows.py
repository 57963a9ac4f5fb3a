"""The batch headers of a log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError, finding_to_error
from kbatch.format import BATCH_DTYPE
from kbatch.log.segment import Segment, check_order, last_offset

__all__ = ["all_batches"]


def all_batches(segments: Sequence[Segment]) -> npt.NDArray[np.void]:
    """Return the headers of all batches of some segments, as `Log.batches` does."""
    parts = [np.empty(0, BATCH_DTYPE)]
    reached, before = None, ""
    for segment in segments:
        check_order(before, reached, segment.path, segment.base_offset)
        end = 0
        for rows in segment.scan():
            parts.append(rows)
            end = int(rows["position"][-1] + rows["size"][-1])
            if (last := last_offset(rows)) is not None:
                reached, before = last, segment.path
        with segment.open() as file:
            tail = file.tail_at(end)
        if tail.finding is not None:
            raise finding_to_error(tail.finding, source=segment.path, position=end)
        if tail.kind != "none" and not segment.live:
            raise LogDirectoryError(
                f"{segment.path}, byte {end}: {tail.size} bytes after the last complete batch; "
                "only the last segment of a log may have them",
                source=segment.path,
                position=end,
            )
    return np.concatenate(parts)
