"""The reasons why codecs refuse payloads, for a run of the kernels that passes over bad batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.batches.arena import Arena, ArenaFullError, FixedArena, PayloadError
from kbatch.batches.codecs import decompress
from kbatch.errors import Fault
from kbatch.records.loss_list import LossList

__all__ = ["Refusals"]

# The memory of different texts after which a run ends, so that they are counted for the table.
_MAX_TEXT_BYTES = 64 << 10


class Refusals:
    """Called by `Pipeline.run_skipping` for payloads that the kernels do not decompress.

    Only refused payloads are passed over. Any other result is left to the caller of the run: a payload that can be
    decompressed, or one that needs more memory than the arena or the table has.

    Parameters
    ----------
    data : ndarray of uint8
        The bytes that hold the payloads.
    arena : Arena
        Of the pipeline. It does not grow, since the kernels write to it.
    limit : int
        The maximum size of a payload after decompression.
    losses : LossList
        Gets the texts of the reasons.
    """

    def __init__(self, data: npt.NDArray[np.uint8], arena: Arena, limit: int, losses: LossList) -> None:
        self._data = data.data
        self._arena = FixedArena(arena.view)
        self._limit = limit
        self._losses = losses
        self._most = losses.nbytes + _MAX_TEXT_BYTES

    def __call__(
        self, codec: int, magic: int, position: int, size: int, used: int, room: int
    ) -> tuple[int, int, int] | None:
        """Return the reason, the expected and the found value if a payload is refused, else None.

        The parameters are described at `Pipeline.run_skipping`.
        """
        self._arena.used = used
        limit = min(self._limit, max(room, 0))
        try:
            decompress(codec, self._data[position : position + size], self._arena, limit, magic)
        except ArenaFullError:
            return None
        except PayloadError as error:
            fault, _, _, expected, found, text = error.finding
        else:
            return None
        if (fault == Fault.OVER_LIMIT and room < self._limit) or self._losses.nbytes > self._most:
            return None
        return self._losses._reason(fault, text), expected, found
