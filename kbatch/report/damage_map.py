"""Where the damage of a log is, in constant memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kbatch.log.check.statistics import TablePlace
from kbatch.log.gaps import SegmentGap
from kbatch.log.segment import Segment
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable

__all__ = ["DamageMap"]

_PARTS = 200
_LISTED_LOSSES = 50


class DamageMap:
    """The lost bytes of a log in equal parts of all its segments joined, and the first losses.

    A partition of a cluster has no segments: its losses are listed, and have no place in the log.

    Attributes
    ----------
    size : int
        Bytes of all segments.
    lost : ndarray of float64, shape (parts,)
        Lost bytes of each part.
    gaps : list of float
        The places of the first gaps of unknown cause, from 0 to 1.
    listed : list of Loss
        With the names of their files.
    count : int
        Of all losses and gaps of unknown cause.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        starts = np.cumsum([0, *(segment.size for segment in segments)])
        self.size = int(starts[-1])
        self._starts = dict(zip((segment.path for segment in segments), starts.tolist(), strict=False))
        self.lost: npt.NDArray[np.float64] = np.zeros(_PARTS)
        self.gaps: list[float] = []
        self.listed: list[Loss] = []
        self.count = 0

    def add(self, place: TablePlace, table: RecordTable) -> None:
        """Add the losses of a table."""
        losses = table.losses
        if not losses:
            return
        self._list(place.path, losses)
        if place.path not in self._starts:
            return
        edges = np.linspace(0, self.size, _PARTS + 1) - self._starts[place.path]
        # The lost bytes before each edge.
        before = np.append(0, np.cumsum(losses.lengths))
        at = np.searchsorted(losses.positions, edges, "right")
        last = np.maximum(at - 1, 0)
        within = np.minimum(edges - losses.positions[last], losses.lengths[last])
        self.lost += np.diff(np.where(at > 0, before[last] + within, 0))

    def add_gaps(self, gaps: Sequence[SegmentGap]) -> None:
        """Add the gaps of unknown cause between two segments."""
        for gap in gaps:
            if not gap.compacted:
                if len(self.gaps) < _PARTS:
                    self.gaps.append((self._starts[gap.before] + gap.position) / max(self.size, 1))
                self._list(gap.before, [Loss(gap.position, 0, gap.reason, gap.first_offset)])

    def _list(self, path: str, losses: Sequence[Loss]) -> None:
        self.count += len(losses)
        for loss in losses[: max(_LISTED_LOSSES - len(self.listed), 0)]:
            self.listed.append(loss._replace(file=os.path.basename(path)))
