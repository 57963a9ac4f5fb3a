"""The work directories of an output: the run that is writing to it, and runs that ended without cleaning up.

On a mounted file system the directory is locked, and the system releases the lock of a killed process. An object store
has no locks: there a run renews a small file, and a file that was not renewed for five minutes belongs to a dead run.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import socket
import threading
from datetime import UTC, datetime
from typing import Any

import pyarrow.fs

from kbatch.errors import LogDirectoryError
from kbatch.json_text import parse_json
from kbatch.publishing import WorkDirectory, directory_lock, is_abandoned
from kbatch.sinks.outputs import OutputPlace

__all__ = ["RUN_DIGITS", "WORK_PREFIX", "RunLock"]

# Seconds between the renewals of a run in an object store, and seconds without a renewal until the run counts as dead.
# After a kill, a user waits for this time; few processes are suspended for minutes.
RENEWAL_SECONDS = 30.0
DEAD_SECONDS = 300.0

# A run's id: hexadecimal digits.
RUN_DIGITS = 8
# The names of work directories within an output.
WORK_PREFIX = "_temporary-"
_OWNER = "owner.json"


class RunLock:
    """The lock of a run on its output; `acquire` finds the work directories of other runs.

    Parameters
    ----------
    out : OutputPlace
        The output, for messages.
    parent : OutputPlace
        The place where the directory is created.
    prefix : str
        The name of the directory without the run's id.
    run : str
        The run's id.

    Attributes
    ----------
    place : OutputPlace
        The directory.
    """

    def __init__(self, out: OutputPlace, parent: OutputPlace, prefix: str, run: str) -> None:
        self.place = parent.at(prefix + run)
        self._out = out
        self._parent = parent
        self._prefix = prefix
        self._run = run
        self._own = {run}
        self._work = WorkDirectory(self.place.path())
        self._ended = threading.Event()

    def acquire(self, within: RunLock | None = None) -> list[str]:
        """Create and lock the directory; return the ids of dead runs, whose directories still exist.

        A lock that the caller already holds, `within`, does not conflict.

        Raises
        ------
        LogDirectoryError
            If another run is writing to the output.
        """
        if within is not None:
            self._own.add(within._run)
        if not self._parent.local:
            return self._acquire_remote()
        # Held briefly, so that if two runs begin at the same time, one of them sees the other.
        with directory_lock(os.path.realpath(self._parent.path())):
            others = self._others()
            for run in others:
                if not is_abandoned(self._parent.path(self._prefix + run)):
                    raise self._busy(run)
            self._work.lock()
            self._write_owner()
        return others

    def _acquire_remote(self) -> list[str]:
        self._write_owner()
        now = self._renewed(self._run)
        others = self._others()
        for run in others:
            renewed = self._renewed(run)
            if renewed is not None and (now is None or now - renewed < DEAD_SECONDS):
                self.place.remove_all()
                raise self._busy(run)
        threading.Thread(target=self._renew, name="kbatch-owner", daemon=True).start()
        return others

    def remove(self, run: str) -> None:
        """Remove the directory of a dead run."""
        self._parent.remove_all(self._prefix + run)

    def release(self, *, keep: bool = False) -> None:
        """Unlock the directory, and remove it unless the next run needs it (`keep`)."""
        self._ended.set()
        if not keep and self.place.exists():
            self.place.remove_stage()
        self._work.release()

    def _others(self) -> list[str]:
        work = re.compile(rf"{re.escape(self._prefix)}([0-9a-f]{{{RUN_DIGITS}}})")
        found = [work.fullmatch(name) for name in self._parent.entries()]
        return sorted(each[1] for each in found if each is not None and each[1] not in self._own)

    def _write_owner(self) -> None:
        self.place.make()
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat("T", "seconds")}
        self.place.write(_OWNER, json.dumps(owner).encode())

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL_SECONDS):
            with contextlib.suppress(OSError):
                self._write_owner()

    def _renewed(self, run: str) -> float | None:
        """Return when the owner file of a run's directory was renewed, by the store's clock; None without an owner."""
        info = self._parent.fs.get_file_info(self._parent.path(f"{self._prefix}{run}/{_OWNER}"))
        if info.type == pyarrow.fs.FileType.NotFound:
            return None
        return 0.0 if info.mtime is None else info.mtime.timestamp()

    def _busy(self, run: str) -> LogDirectoryError:
        directory = self._parent.at(self._prefix + run)
        owner: Any = {}
        with contextlib.suppress(OSError, ValueError):
            owner = parse_json(directory.read(_OWNER) or b"{}")
        known = isinstance(owner, dict) and owner.keys() == {"pid", "host", "since"}
        who = f" (process {owner['pid']} on {owner['host']}, since {owner['since']})" if known else ""
        return LogDirectoryError(
            f"{self._out.url}: another export is writing to it{who}; run this one again when it has ended. If it was "
            f"killed on another machine, {posixpath.basename(directory.url)} next to its files may be removed",
            source=self._out.url,
        )
