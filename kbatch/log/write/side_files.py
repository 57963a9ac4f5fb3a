"""What a broker keeps beside the segments of a topic-partition, and what of it goes with a log that is written anew.

Producer snapshots, leader epochs and the topic's id stay true as long as segments keep their base offsets. A snapshot
that can't be read is left out: a broker deletes such a one and follows the log from the snapshot before
(``ProducerStateManager.loadFromSnapshot``). So are leader epochs: `LogWriter` writes those that the batches tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.log.logs import Log
from kbatch.log.state import read_leader_epochs, read_producer_snapshot
from kbatch.log.write.log_writer import LogWriter
from kbatch.records.data import Loss

__all__ = ["copy_beside", "names_beside"]

_LEADER_EPOCHS = "leader-epoch-checkpoint"
_NAMES = re.compile(rf"{_LEADER_EPOCHS}|partition\.metadata|(\d{{20}})\.snapshot", re.ASCII)
_MOST = 256 << 20


def names_beside(log: Log) -> dict[str, int | None]:
    """Return the names of these files in the directory of a log, and of producer snapshots the offset."""
    found = (_NAMES.fullmatch(name) for name in sorted(log.segments[0].storage.list(log.path)))
    return {match[0]: None if match[1] is None else int(match[1]) for match in found if match}


def copy_beside(log: Log, names: Iterable[str], writer: LogWriter) -> list[Loss]:
    """Copy files of these names; return those that were left out, since they can't be read.

    Raises
    ------
    LogDirectoryError
        If a file is far too large to be one of its kind.
    """
    storage = log.segments[0].storage
    damage = []
    for name in names:
        path = storage.join(log.path, name)
        data, size = storage.read(path, _MOST)
        if len(data) < size:
            raise LogDirectoryError(f"{path}: {size} bytes are too many for a file of this kind", source=path)
        try:
            if name.endswith(".snapshot"):
                read_producer_snapshot(path, storage=storage)
            elif name == _LEADER_EPOCHS:
                read_leader_epochs(path, storage=storage)
        except KbatchError as error:
            damage.append(Loss(0, size, f"{error}; it can be made anew from the log"))
        else:
            writer.write_file(name, data)
    return damage
