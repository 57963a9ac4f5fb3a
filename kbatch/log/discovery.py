"""Finds the logs under a broker's log directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from kbatch.arguments import check_types
from kbatch.errors import LogDirectoryError
from kbatch.log.log_list import LogList
from kbatch.log.logs import Log
from kbatch.log.store.listing import (
    ListedDirectory,
    is_log_name,
    list_directories,
    list_path,
    missing_path,
    no_segments,
)
from kbatch.log.store.names import parse_directory_name, parse_segment_name, parse_topic_id_name
from kbatch.log.store.storage import each_once, identity, locate
from kbatch.log.topics import TopicChoice, TopicFilter, partition_numbers
from kbatch.public_names import public_in

__all__ = ["distinct_logs", "find_logs", "open_logs", "root_list"]


@public_in("kbatch")
def find_logs(
    root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    topics: TopicChoice | None = None,
    partitions: Iterable[int] | None = None,
    marked: bool = False,
    predicate: Callable[[str, int], bool] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> LogList:
    """Find the logs of every topic-partition under a broker's log directory, or under several.

    Parameters
    ----------
    root : str or path, or iterable of them
        A broker's log directory (one of ``log.dirs``), or a topic-partition directory; local, or a URL such as
        ``s3://bucket/logs``. Also the root of tiered storage, in the known layouts (DSK-R18): Kafka's
        ``LocalTieredStorage`` and Aiven's plugin.
    topics : str, re.Pattern, or iterable of them, optional
        Only these topics: names, globs such as ``"orders-*"``, and compiled regular expressions, which must match the
        whole name. Directories of other topics are not listed.
    partitions : iterable of int, optional
        Only these partitions of each topic.
    marked : bool
        Whether to return directories marked ``-delete``, ``-future`` or ``-stray`` too (DSK-R9). The broker is about to
        delete them, is copying them from another log directory, or does not own them according to the cluster's
        metadata. Their records may exist in another directory too.
    predicate : callable, optional
        Selects logs: called with the topic and partition of each directory's name. Directories for which it returns
        False are not listed.
    storage_options : mapping of str to str, optional
        The options of the filesystem of a URL. For ``s3``: the arguments of `pyarrow.fs.S3FileSystem`, such as
        ``access_key``, ``secret_key``, ``region`` and ``endpoint_override``. For pyarrow's other filesystems: the query
        parameters of `pyarrow.fs.FileSystem.from_uri`. For fsspec: the arguments of its filesystem.
        ``implementation=fsspec`` selects fsspec for schemes that both support.

    Returns
    -------
    LogList
        A list of `Log`, sorted by topic, partition and `mark`, without directories that have no segment. It includes
        internal topics such as ``__consumer_offsets``, which `scan_logs` of a directory and exports leave out. Its
        `to_arrow`, `to_polars`, `to_pandas` and `tables` return the records of all logs.

    Raises
    ------
    LogDirectoryError
        If `root` is missing, is not a directory, or contains no log: no topic-partition directory with segments. It is
        not an error if `predicate`, `partitions` or a regular expression rejects all. If `topics` has a name or a glob
        of which there is no log, or if two directories have the same topic-partition: Kafka refuses that too.

    References
    ----------
    Rules such as DSK-R18 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> [log.topic for log in kbatch.find_logs("tests/golden/logs") if log.topic.startswith("codec-l")]
    ['codec-lz4']
    >>> [log.topic for log in kbatch.find_logs("tests/golden/logs", topics=["txn", "codec-l*"])]
    ['codec-lz4', 'txn']
    """
    check_types(find_logs, locals())
    roots = root_list(root)
    chosen, numbers = None if topics is None else TopicFilter(topics), partition_numbers(partitions)
    seen: set[str | None] = set()

    def is_named(topic: str | None, partition: int | None) -> bool:
        return (chosen is None or chosen(topic)) and (numbers is None or partition in numbers)

    def is_chosen(topic: str, partition: int) -> bool:
        seen.add(topic)
        return is_named(topic, partition) and (predicate is None or predicate(topic, partition))

    # Without a condition, directories are listed whatever their names are.
    needed = predicate if topics is None and partitions is None else is_chosen
    found = [log for each in roots for log in _logs_of(each, marked, needed, storage_options)]
    # A root that is a topic-partition directory itself is not subject to the predicate.
    seen |= {log.topic for log in found}
    found = [log for log in found if is_named(log.topic, log.partition)]
    refusal = None if chosen is None else chosen.refusal(seen)
    if refusal is not None:
        raise LogDirectoryError(f"{', '.join(str(each) for each in roots)}: {refusal}", source=str(roots[0]))
    if len(roots) > 1:
        found = distinct_logs(found)
    return LogList(sorted(found, key=lambda log: (log.topic or "", log.partition or 0, log.mark or "")))


def root_list(
    root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], name: str = "root"
) -> list[str | os.PathLike[str]]:
    """Return one or several log directories as a list.

    Raises
    ------
    ValueError
        If there is none.
    """
    if isinstance(root, str | bytes | os.PathLike) or not isinstance(root, Iterable):
        return [root]
    roots = list(root)
    if not all(isinstance(each, str | os.PathLike) for each in roots):
        raise TypeError(f"{name} must be one or several paths, got {type(root).__name__} of other objects")
    if not roots:
        raise ValueError(f"{name} must name a log directory, got an empty list")
    return roots


def distinct_logs(logs: Iterable[Log]) -> list[Log]:
    """Return each log once, since paths may overlap.

    Raises
    ------
    LogDirectoryError
        If two directories have the same topic-partition, as Kafka's ``LogManager``: their records would be doubled.
    """
    found = each_once(logs, lambda log: identity(log.path))
    directories: dict[tuple[str, int | None, str | None], str] = {}
    for log in found:
        if log.topic is None or log.path.endswith(".log"):
            continue
        name = (log.topic, log.partition, log.mark)
        other = directories.setdefault(name, log.path)
        if other != log.path:
            raise LogDirectoryError(
                f"{log.topic}-{log.partition} is in {other} and in {log.path}: give only one of them", source=log.path
            )
    return found


def _logs_of(
    root: str | os.PathLike[str],
    marked: bool,
    predicate: Callable[[str, int], bool] | None,
    storage_options: Mapping[str, str] | None,
) -> list[Log]:
    storage, path = locate(root, storage_options)
    listing = list_path(storage, path, "directory")
    if listing is None:
        raise LogDirectoryError(f"{path}: not a directory", source=path)
    here = ListedDirectory(storage, path, listing)
    if here.is_log(marked):
        return [Log._listed(here, None)]
    directories = [name for name, entry in listing.items() if entry.is_directory]
    by_name = [name for name in directories if is_log_name(name, marked)]
    chosen = [name for name in by_name if predicate is None or predicate(*parse_directory_name(name)[:2])]
    # In tiered storage the files of a directory show whether it is a topic-partition or a topic.
    tiered = [name for name in directories if parse_topic_id_name(name) is not None and name not in by_name]
    found = list_directories(here, [*chosen, *tiered])
    logs = [Log._listed(each, listing) for each in found if each.is_log(marked)]
    # Aiven's plugin has a directory for the topic, and in it one for each partition.
    topics = [each for each in found if not each.has_segments and parse_topic_id_name(os.path.basename(each.path))]
    for directory in [here, *topics]:
        topic = parse_topic_id_name(os.path.basename(storage.absolute(directory.path)))
        if topic is None:
            continue
        numbers = [name for name, entry in directory.listing.items() if entry.is_directory and name.isdecimal()]
        numbers = [name for name in numbers if predicate is None or predicate(topic, int(name))]
        logs += [Log._listed(each, None) for each in list_directories(directory, numbers) if each.is_log(marked)]
    any_exists = logs or len(by_name) > len(chosen) or topics
    if predicate is not None:
        logs = [log for log in logs if predicate(log.topic or "", log.partition or 0)]
    if not logs and (predicate is None or not any_exists):
        raise no_segments(here, marked) or LogDirectoryError(
            f"{path}: no topic-partition directory ('topic-0', with segments) in this directory", source=path
        )
    return logs


def open_logs(
    path: str | os.PathLike[str],
    *,
    predicate: Callable[[str, int], bool] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Log | LogList:
    """Open the log at a path (a segment or a topic-partition directory), or all logs of a broker's log directory.

    Raises
    ------
    LogDirectoryError
        If there is nothing at the path, or it can't be listed.
    """
    storage, text = locate(path, storage_options)
    entry = storage.find(text)
    if entry is None:
        raise missing_path(storage, text)
    try:
        names = storage.list(text) if entry.is_directory else []
    except OSError as error:
        raise LogDirectoryError(f"{text}: can't be listed: {error.strerror}", source=text) from error
    if entry.is_directory and not any(parse_segment_name(name) is not None for name in names):
        return find_logs(text, predicate=predicate, storage_options=storage_options)
    return Log(text, storage_options=storage_options)
