"""How busy the machine is with other work, which makes measurements slower and uneven."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["BUSY", "OtherWork", "other_work"]

STAT = Path("/proc/stat")
# While others use more processors than this, measurements are not comparable.
BUSY = 0.1


class OtherWork:
    """Measures the processors that other processes use, or that a hypervisor gives to others, from now on."""

    def __init__(self) -> None:
        self._began = self._used()

    def processors(self) -> float | None:
        """Return the mean number of processors in use by others, or None on a system without ``/proc/stat``.

        Children of this process belong to it once they have ended.
        """
        if self._began is None or (now := self._used()) is None:
            return None
        (others, seconds), (others_then, seconds_then) = now, self._began
        return max(others - others_then, 0.0) / max(seconds - seconds_then, 1e-9)

    @staticmethod
    def _used() -> tuple[float, float] | None:
        try:
            # user, nice, system, idle, iowait, irq, softirq, steal; guests are included in user.
            ticks = [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return None
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return busy - sum(os.times()[:4]), time.monotonic()


def other_work(seconds: float = 2.0) -> float | None:
    """Return the mean number of processors that others use during the next `seconds`, or None if it is not known."""
    work = OtherWork()
    time.sleep(seconds)
    return work.processors()
