"""The side files of a topic-partition that a rewritten log keeps: producer snapshots, leader epochs and the topic's id.

They remain valid as long as segments keep their base offsets. A snapshot that can't be read is not copied: a broker
deletes such a file and follows the log from the previous snapshot (``ProducerStateManager.loadFromSnapshot``). Leader
epochs that can't be read are not copied either: `LogWriter` writes the epochs in the batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kbatch.errors import KbatchError
from kbatch.log.logs import Log
from kbatch.log.state import (
    LEADER_EPOCH_CHECKPOINT,
    MAX_SIDE_FILE,
    read_leader_epochs,
    read_producer_snapshot,
    too_large,
)
from kbatch.log.write.log_writer import LogWriter
from kbatch.records.loss_list import Loss

__all__ = ["copy_side_files", "side_files"]

_COPIED_NAMES = re.compile(rf"{LEADER_EPOCH_CHECKPOINT}|partition\.metadata|(\d{{20}})\.snapshot", re.ASCII)


def side_files(log: Log) -> dict[str, int | None]:
    """Return the names of these files in the directory of a log, each with its offset if it is a producer snapshot."""
    found = (_COPIED_NAMES.fullmatch(name) for name in sorted(log.segments[0].storage.list(log.path)))
    return {match[0]: None if match[1] is None else int(match[1]) for match in found if match}


def copy_side_files(log: Log, names: Iterable[str], writer: LogWriter) -> list[Loss]:
    """Copy the files with these names; return a loss for each file that can't be read and was not copied.

    Raises
    ------
    LogDirectoryError
        If a file is too large for its kind.
    """
    storage = log.segments[0].storage
    damage = []
    for name in names:
        path = storage.join(log.path, name)
        data, size = storage.read(path, MAX_SIDE_FILE)
        if len(data) < size:
            raise too_large(path, size)
        try:
            if name.endswith(".snapshot"):
                read_producer_snapshot(path, storage=storage)
            elif name == LEADER_EPOCH_CHECKPOINT:
                read_leader_epochs(path, storage=storage)
        except KbatchError as error:
            damage.append(Loss(0, size, f"{error}; it can be rebuilt from the log", file=path))
        else:
            writer.write_file(name, data)
    return damage
