"""The options of a read of a live cluster: the options of Spark's Kafka source, and its settings ``kafka.*``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from kbatch import options as opts
from kbatch.live.cluster_source import ClusterSource
from kbatch.live.settings import ClientSettings
from kbatch.log.store.storage import is_cluster_url
from kbatch.plan.cluster_history import check_history_options
from kbatch.plan.read_options import (
    ReadOptions,
    ignored_options,
    log_ignored,
    parse_options,
    parse_paths,
    parse_read,
    warn_ignored,
)

__all__ = ["is_live", "is_secret_setting", "parse_cluster_options", "parse_source", "warn_without_effect"]

_PREFIX, _SERVERS = "kafka.", "kafka.bootstrap.servers"
# Options of Spark's Kafka source without an effect: kbatch joins no group, and has its own retries and time-outs.
_WITHOUT_MEANING = ("fetchoffset.", "kafkaconsumer.", "groupidprefix", "kafka.group.id")
# Settings that Spark's Kafka source refuses too.
_NOT_ALLOWED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "nothing is committed to Kafka; the offsets of a stream are in its checkpoint",
    "kafka.interceptor.classes": "Java classes are not supported",
    "kafka.key.deserializer": "keys are bytes; use keyFormat, or a Spark function",
    "kafka.value.deserializer": "values are bytes; use valueFormat, or a Spark function",
}
_HISTORY = "history"
# Options for reads of files, as messages spell them.
_OF_FILES = {
    "keyIndex": "a key index is of files; the option key alone chooses the records of a key",
    "onGap": "a broker does not state why offsets are missing",
    "paths": "name the brokers in kafka.bootstrap.servers",
}
# Options that are allowed with a history, because they apply to its files.
_OF_HISTORY = {
    "splitBytes": "the sizes of records are not known before they are fetched, except for those in files of a "
    "history; use minPartitions or maxRecordsPerPartition",
    "storage.*": "storage options are of file systems, such as that of a history",
}
# The prefixes of settings that may contain a secret.
_SECRET_PREFIXES = ("kafka.sasl.", "kafka.ssl.", "kafka.socks5.")


def is_live(options: Mapping[str, str]) -> bool:
    """Whether options name a live cluster: by a URL as path, or by servers without a path.

    With the path of a directory, servers have no effect, so that only the format and path of a query need to change.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "path" in given or "paths" in given:
        return is_cluster_url(given.get("path", ""))
    return _SERVERS in given


def is_secret_setting(name: str) -> bool:
    """Whether an option may contain a secret of a Kafka client."""
    return name.lower().startswith(_SECRET_PREFIXES)


def parse_source(options: Mapping[str, str]) -> tuple[list[str] | ClusterSource, ReadOptions]:
    """Return the directories or the cluster to read, and the options; errors are as for `parse_options`."""
    return parse_cluster_options(options) if is_live(options) else parse_options(options)


def parse_cluster_options(options: Mapping[str, str]) -> tuple[ClusterSource, ReadOptions]:
    """Return the cluster with its history, and the options, from the strings that Spark passes.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case. Those that begin with ``kafka.`` are settings of the client (`ClientSettings`), without this
        prefix; ``path`` may be a URL ``kafka://HOST:PORT`` instead of ``kafka.bootstrap.servers``. ``history`` has
        the paths of copies of the logs, in the form of ``paths``. The other options are the same as for directories
        (`parse_options`), without options about files.

    Raises
    ------
    ValueError
        An unknown option or setting, a value that an option cannot have, or options that contradict each other. The
        message contains no secret.
    LogDirectoryError
        If a local path of the history does not exist.

    Examples
    --------
    >>> from kbatch.plan.cluster_options import parse_cluster_options
    >>> given = {"kafka.bootstrap.servers": "a:9092", "subscribe": "orders", "minPartitions": "8"}
    >>> source, read = parse_cluster_options(given)
    >>> source, read.topics, read.min_partitions
    (<ClusterSource: kafka://a:9092>, ('orders',), 8)
    """
    given = {name.lower(): value for name, value in options.items()}
    refused = _OF_FILES if _HISTORY in given else {**_OF_FILES, **_OF_HISTORY}
    for name, reason in refused.items():
        if found := sorted(each for each in given if fnmatchcase(each, name.lower())):
            which = found[0] if "*" in name else name
            raise ValueError(f"{which} does not apply to a live cluster: {reason}")
    for name, reason in _NOT_ALLOWED.items():
        if name in given:
            raise ValueError(f"{name}: {reason}")
    settings = {
        name: value
        for name, value in given.items()
        if name.startswith(_PREFIX) and name not in ("kafka.group.id", "kafka.isolation.level")
    }
    apart = {"path", *settings, *_without_effect(given, is_stream=False)}
    read = parse_read(given, apart, refused, [_HISTORY])
    if read.topics is None and read.topic_pattern is None and read.assign is None:
        raise ValueError("no topics: a live cluster needs one of subscribe, subscribePattern and assign")
    if read.table == "transactions":
        raise ValueError("table transactions does not apply to a live cluster: a broker does not list transactions")
    history = None
    if _HISTORY in given:
        history = parse_paths(_HISTORY, given[_HISTORY])
        opts.as_named(lambda: check_history_options(read), {"on_error": "onError"})
    client = _client_settings(given, settings)
    return ClusterSource(client, history=history, storage_options=read.storage if history else None), read


def _client_settings(given: Mapping[str, str], settings: Mapping[str, str]) -> ClientSettings:
    config = {name.removeprefix(_PREFIX): value for name, value in settings.items()}
    if "path" in given:
        if _SERVERS in settings:
            raise ValueError(f"path and {_SERVERS} exclude each other: both name brokers")
        config["bootstrap.servers"] = given["path"]
    try:
        return ClientSettings.of(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"options {_PREFIX}*: {error}") from None


def _without_effect(options: Iterable[str], *, is_stream: bool) -> list[str]:
    return ignored_options(options, _WITHOUT_MEANING, is_stream=is_stream)


def warn_without_effect(options: Mapping[str, str], *, is_stream: bool = False) -> None:
    """Log one warning that names the options without an effect for the directories or the cluster to read."""
    if is_live(options):
        log_ignored(_without_effect(options, is_stream=is_stream), "a live cluster", is_stream=is_stream)
    else:
        warn_ignored(options, is_stream=is_stream)
