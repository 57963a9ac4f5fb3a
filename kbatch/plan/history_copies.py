"""The logs in the paths of a history: the copies of partitions of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from kbatch.errors import LogDirectoryError
from kbatch.live.cluster import PartitionKey
from kbatch.log import Log, find_logs
from kbatch.log.store.storage import locate

__all__ = ["found_copies"]


def found_copies(
    paths: Iterable[str],
    wanted: Container[PartitionKey],
    storage_options: Mapping[str, str],
    note: Callable[[str], None],
) -> dict[PartitionKey, list[Log]]:
    """Return the copies of partitions, in the order of the paths.

    Parameters
    ----------
    paths : iterable of str
        Paths and URLs of the history.
    wanted : container of (topic, partition)
    storage_options : mapping of str to str
    note : callable
        Called with the reason if a path has no copies.

    Raises
    ------
    LogDirectoryError
        If a path does not exist.
    """
    found: dict[PartitionKey, list[Log]] = {}
    for path in paths:
        storage, text = locate(path, storage_options)
        if storage.find(text) is None:
            raise LogDirectoryError(f"{text}: no such directory, given as history", source=text)
        try:
            logs = find_logs(
                path, predicate=lambda topic, number: (topic, number) in wanted, storage_options=storage_options
            )
        except LogDirectoryError as error:
            note(str(error))
            continue
        for log in logs:
            key = (log.topic or "", log.partition or 0)
            if key in wanted:
                found.setdefault(key, []).append(log)
    return found
